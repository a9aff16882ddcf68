"""The suffix controller alone, on policies of known competence: how many replay groups until their success rate is in
the band (the paper's Tables 2 and 3), and what happens where the steps are too large.

    python benchmarks/once/controller.py --write-docs        # a second

A policy does most steps of a trajectory rightly (.99) and a few, one in five at random, with a probability between .1
and .9: a suffix succeeds if all of its steps are done rightly. The first suffix is Eq. 9's. Counted, as the paper says,
are samples that begin extreme (the first group all failures or all successes, which is also the first estimate): groups
until the estimate of Eq. 11 is inside the band. A sample is unstable where the controller, left alone for 40 groups,
still moves k in more than half of the last 20.
"""

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.docs import write_docs
from common.lm.run import run_main
from common.lm.stats import mean_ci
from crps import SuffixController, initial_suffix

LENGTHS = {"ALFWorld": (10, 40), "WebShop": (4, 9)}  # of a successful trajectory, shortest and longest
STEPS, SMOOTHINGS = (1, 2, 4, 6, 8), (0.1, 0.5, 0.9, 1.0)
GROUP, BAND, LIMIT = 8, (0.2, 0.8), 40


@dataclass
class Args:
    samples: int = 4000
    """trajectories a cell"""
    seed: int = 1
    """seed"""
    write_docs: bool = False
    """put the tables into docs/crps.md"""


def sample(rng, lengths, step, smoothing):
    """One trajectory under one policy: (groups until the estimate is in the band, LIMIT + 1 where it never is, None
    where the first group was mixed or the task is mastered; whether it is unstable)."""
    length = rng.randint(*lengths)
    right = [rng.uniform(0.1, 0.9) if rng.random() < 0.2 else 0.99 for _ in range(length)]

    def group(k):
        return sum(all(rng.random() < q for q in right[length - k :]) for _ in range(GROUP)) / GROUP

    k = initial_suffix(group(length), length, 0.2, 0.8, 1, length)
    first = group(k)
    controller = SuffixController(k, length, *BAND, smoothing, step, rate=first)
    controller.update(first)
    waited, moves = None, []
    for number in range(1, LIMIT + 1):
        before = controller.k
        moves.append(controller.update(group(controller.k)) != before)
        if waited is None and BAND[0] <= controller.rate <= BAND[1]:
            waited = number
    # at the longest suffix and all successes there is nothing left to converge to: mastered
    mastered = waited is None and controller.k == length and controller.rate > BAND[1]
    return None if 0 < first < 1 or mastered else waited or LIMIT + 1, sum(moves[-20:]) > 10


def cell(args, lengths, step, smoothing):
    """Mean groups until the band with its interval, the share that never gets there, the share of unstable samples."""
    rng = random.Random(f"{args.seed}-{lengths}-{step}-{smoothing}")
    drawn = [sample(rng, lengths, step, smoothing) for _ in range(args.samples)]
    waits = [waited for waited, _ in drawn if waited is not None]
    arrived = [waited for waited in waits if waited <= LIMIT]
    return mean_ci(arrived), 1 - len(arrived) / len(waits), sum(unstable for _, unstable in drawn) / len(drawn)


def table(args, title, settings):
    lines = [f"| {title} | ALFWorld | never | unstable | WebShop | never | unstable |", "|---|---|---|---|---|---|---|"]
    for value, step, smoothing in settings:
        parts = []
        for lengths in LENGTHS.values():
            wait, never, unstable = cell(args, lengths, step, smoothing)
            parts.append(f"{wait.estimate:.2f} ± {wait.high - wait.estimate:.2f} | {never:.0%} | {unstable:.0%}")
        lines.append(f"| {value} | {' | '.join(parts)} |")
    return "\n".join(lines)


def main(args):
    steps = table(args, "step", [(step, step, 0.9) for step in STEPS])
    smoothings = table(args, "smoothing", [(smoothing, 2, smoothing) for smoothing in SMOOTHINGS])
    print(text := f"{steps}\n\n{smoothings}")
    if args.write_docs:
        write_docs(Path("docs/crps.md"), "controller", text)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
