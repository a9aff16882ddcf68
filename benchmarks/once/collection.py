"""How many more trajectories workers collect when nobody waits for the slowest phone; docs/distrl.md's tables.

    python benchmarks/once/collection.py        # about 75 minutes, most of it waiting: the phones are slow

distrl.py's own System plays for a fixed time, without a learner, on simulated phones that are as slow as real ones:
lognormal seconds a step, most of whose spread is between episodes (`--phone-delay MEDIAN:SIGMA`). Synchronous: every
phone plays one episode, all wait for the slowest, and so on. Trajectories that ended in that time count. One line a
cell in benchmarks/results/collection.jsonl; what is there is not measured again.
"""

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import distrl
import envs
from benchmarks.docs import write_docs
from common.lm import llm
from common.lm.args import values_of
from common.lm.cluster import start_ray
from common.lm.run import run_main

RESULTS = ROOT / "benchmarks/results/collection.jsonl"


@dataclass
class Args:
    model: str = "assets/tiny-phone"
    """the policy (a folder or hub id); the tiny base is no good one, its episodes end when it happens to say so"""
    phones: tuple[int, ...] = (8, 32)
    """phones of the comparison"""
    sigmas: tuple[float, ...] = (0.0, 0.3, 0.64, 1.0, 1.3)
    """spread of the phones' times: 95 in 100 episodes lie within exp(3.6 sigma) of each other, 1.3: 100 times"""
    scaling: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """phones of the scaling, asynchronous at sigma 0.3"""
    median: float = 1.0
    """seconds of a step, median"""
    seconds: float = 150.0
    """how long a cell is measured"""
    workers: int = 1
    """workers that hold the phones"""
    max_steps: int = 10
    """longest episode"""
    seed: int = 1
    """draws tasks and answers"""
    report: bool = False
    """print the tables of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put them into docs/distrl.md, with a plot"""


SCALING_SIGMA = 0.3


def settings(args, phones, sigma):
    """distrl.py's Args of a cell."""
    held = phones // min(args.workers, phones)
    own = distrl.Args(model_id=args.model, seed=args.seed, max_steps=args.max_steps)
    delay = f"{args.median}:{sigma}"
    return replace(
        own,
        **values_of(distrl.Args, "tiny")
        | {"num_workers": phones // held, "phones_per_worker": held, "phone_delay": delay},
    )


def collect(args, phones, sigma, sync):
    """The episodes of `seconds`: rows of distrl.py's timeline, `begun` and `ended` in seconds from the beginning."""
    own = settings(args, phones, sigma)
    tasks = distrl.tasks_of(envs.make(own.env_id), "train", own)
    start_ray("", own.num_workers)
    system = distrl.System(own, lambda place: tasks[llm.seed_of(args.seed, place) % len(tasks)])
    try:
        system.publish(llm.load(own.model_id)[0], 0)
        system.settle()
        wait(system, lambda: all(worker.version == 0 for worker in system.players.workers), 600)
        begin = time.time()
        end = begin + args.seconds
        while time.time() < end:
            system.allow(system.ended + system.slots if sync else float("inf"))
            wait(system, lambda: sync and system.ended >= system.allowed, end - time.time())
        with system.changed:
            rows = list(system.players.timeline)
    finally:
        system.players.close()
    shifted = [row | {"begun": row["begun"] - begin, "ended": row["ended"] - begin} for row in rows]
    return [row for row in shifted if row["ended"] <= args.seconds]


def wait(system, condition, seconds):
    """Until `condition()`, or so many seconds."""
    with system.changed:
        system.changed.wait_for(condition, timeout=max(0.0, seconds))


def measure(args, phones, sigma, sync):
    """A cell's line of results."""
    rows = collect(args, phones, sigma, sync)
    lengths = [row["ended"] - row["begun"] for row in rows]
    return {
        "phones": phones,
        "sigma": sigma,
        "sync": sync,
        "trajectories": len(rows),
        "seconds": args.seconds,
        "median": args.median,
        "workers": args.workers,
        "max_steps": args.max_steps,
        "steps": sum(row["steps"] for row in rows),
        "length": round(statistics.mean(lengths), 3) if rows else None,
        "shortest": round(min(lengths), 3) if rows else None,
        "longest": round(max(lengths), 3) if rows else None,
        "waiting_for_model": round(sum(row["model"] for row in rows) / max(1e-9, sum(lengths)), 4),
        "ended": sorted(round(row["ended"], 2) for row in rows),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def cells(args):
    """(phones, sigma, sync) of everything that is measured, each once."""
    compared = [(phones, sigma, sync) for phones in args.phones for sigma in args.sigmas for sync in (True, False)]
    return list(dict.fromkeys(compared + [(phones, SCALING_SIGMA, False) for phones in args.scaling]))


def measured(args):
    """{cell: its line}."""
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    same = "seconds", "median", "workers", "max_steps"
    lines = [line for line in lines if all(line[name] == getattr(args, name) for name in same)]
    return {(line["phones"], line["sigma"], line["sync"]): line for line in lines}


# ----------------------------------------------------------------------------------------------------------- the report
def collection_table(found, args):
    """Trajectories asynchronous over synchronous, by phones and spread."""
    lines = ["| phones | spread of episodes | asynchronous | synchronous | ratio | waiting for the policy |"]
    lines.append("|---" * 6 + "|")
    for phones in args.phones:
        for sigma in args.sigmas:
            pair = [found.get((phones, sigma, sync)) for sync in (False, True)]
            if None in pair:
                continue
            spread = pair[0]["longest"] / pair[0]["shortest"]
            ratio = pair[0]["trajectories"] / max(1, pair[1]["trajectories"])
            cells = [phones, f"{spread:.1f} times (sigma {sigma:g})", *(line["trajectories"] for line in pair)]
            cells += [f"{ratio:.2f}", f"{pair[0]['waiting_for_model']:.0%}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def scaling_rows(found, args):
    """[(phones, trajectories a minute, share of the ideal)]: the ideal is the one phone's rate times their number."""
    lines = {
        phones: found[phones, SCALING_SIGMA, False]
        for phones in args.scaling
        if (phones, SCALING_SIGMA, False) in found
    }
    rates = {phones: 60 * line["trajectories"] / line["seconds"] for phones, line in lines.items()}
    least = min(rates, default=1)
    return [(phones, rate, rate / (rates[least] * phones / least)) for phones, rate in rates.items()]


def scaling_table(rows):
    lines = ["| phones | trajectories a minute | of the ideal |", "|---" * 3 + "|"]
    return "\n".join(lines + [f"| {phones} | {rate:.1f} | {share:.2f} |" for phones, rate, share in rows])


def draw(found, args, path):
    """As the paper draws it: trajectories by time, asynchronous and synchronous; trajectories a minute by phones, and
    the ideal."""
    from tools.plot import COLOURS, pyplot

    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    phones, sigma = max(args.phones), 0.64 if 0.64 in args.sigmas else args.sigmas[-1]
    for colour, sync, label in zip(COLOURS, (False, True), ("asynchronous", "synchronous")):
        line = found.get((phones, sigma, sync))
        if line:
            left.step([0, *line["ended"]], range(len(line["ended"]) + 1), where="post", color=colour, label=label)
    left.set_title(f"trajectories, {phones} phones, sigma {sigma:g}")
    left.set_xlabel("seconds")
    if left.lines:
        left.legend()
    rows = scaling_rows(found, args)
    if rows:
        counts = [phones for phones, _, _ in rows]
        right.plot(counts, [rate for _, rate, _ in rows], marker="o", color=COLOURS[0], label="measured")
        right.plot(counts, [rate / share for _, rate, share in rows], ls="--", color="grey", label="ideal")
    right.set_title("trajectories a minute")
    right.set_xlabel("phones")
    right.set_ylim(0)
    right.legend()
    figure.savefig(path, dpi=140)
    plt.close(figure)


def report(args):
    found = measured(args)
    tables = collection_table(found, args), scaling_table(scaling_rows(found, args))
    print("\n\n".join(tables))
    if args.write_docs:
        draw(found, args, ROOT / "docs/images/collection.png")
        text = "\n\n".join(["![trajectories by time, and by phones](images/collection.png)", *tables])
        write_docs(ROOT / "docs/distrl.md", "collection", text)


def main(args):
    if args.report:
        report(args)
        return
    for cell in cells(args):
        if cell in measured(args):
            continue
        line = measure(args, *cell)
        RESULTS.parent.mkdir(exist_ok=True)
        with open(RESULTS, "a") as file:
            file.write(json.dumps(line) + "\n")
        shown = {name: value for name, value in line.items() if name != "ended"}
        print(shown, flush=True)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
