"""The learning comparisons of docs/grpo_async.md: losses, step weights, synchronous and not, over seeds, on two cores.

    python benchmarks/grpo.py --seeds 3                        # goes on where it was stopped; docs say how long
    python benchmarks/grpo.py --seeds 3 --arms constant batch32
    python benchmarks/grpo.py --report --write-docs            # tables and plots from what there is

Each run's result is one line of benchmarks/results/grpo.jsonl, written when it is done; what is there is not run again.
All arms of a seed begin with the same fine-tuned policy, which is also the arm "sft", and train on equally many
trajectories. "base" is the model before that. One run at a time: it takes two cores.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import comparison, control
from benchmarks.comparison import success
from benchmarks.docs import write_docs
from common.lm import checkpoint
from common.lm.run import run_main
from common.lm.stats import mean_ci

RESULTS = ROOT / "benchmarks/results/grpo.jsonl"
MAIN = "raft", "reinforce", "coupled", "trajectory", "constant", "control"
ARMS = {
    "raft": "--loss raft",
    "raft-fast": "--loss raft --learning-rate 8e-4",
    "reinforce": "--loss reinforce --sync",
    "coupled": "--loss coupled",
    "trajectory": "--step-weight trajectory",
    "constant": "",
    "sync": "--sync",
    "tokens": "--loss-mean tokens",
    "batch32": "--batch-trajectories 32",
    "horizon20": "--train-horizon 20",
    "control": "",  # the start, fine-tuned on its demonstrations for as many updates as constant made
}
NAMES = {"base": "base", "sft": "SFT", "control": "SFT for as many updates more",
         "raft": "RAFT++", "raft-fast": "RAFT++, twice the rate",
         "reinforce": "REINFORCE, synchronous", "coupled": "coupled, 1/k", "trajectory": "decoupled, 1/\\|tau\\|",
         "constant": "decoupled, 1/k", "sync": "decoupled, 1/k, synchronous", "tokens": "decoupled, mean over tokens",
         "batch32": "decoupled, 1/k, batch of 32", "horizon20": "decoupled, 1/k, tasks of 20 steps, too"}  # fmt: skip
CURVES = """
rollout/reward eval/success losses/clip_fraction losses/dual_clip_fraction losses/capped_fraction losses/surprise
rollout/length rollout/success_length rollout/failure_length rollout/tokens_per_step staleness/mean
perf/trajectories_per_hour charts/updates
""".split()


@dataclass
class Args:
    seeds: int = 3
    """seeds 1 to N"""
    arms: tuple[Literal[*ARMS], ...] = MAIN
    """which arms (see ARMS in this file)"""
    trajectories: int = 1920
    """trajectories that a run trains on"""
    flags: str = ""
    """further flags of grpo_async.py, for all arms; kept in the results"""
    report: bool = False
    """print the tables of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put them into docs/grpo_async.md, with plots"""
    runs_dir: str = "runs/grpo"
    """where the runs' folders go; their trajectories are deleted when a run is done"""


# ----------------------------------------------------------------------------------------------------------- the runs
def run(args, name, seed, flags):
    """One run of grpo_async.py; its folder, or None where it failed."""
    own = f"--preset tiny --seed {seed} --exp-name {name} {args.flags} {flags}"
    return comparison.run(folder_of(args, name, seed), "grpo_async.py", own.split(), f"{name} {seed}")


def folder_of(args, name, seed):
    return comparison.folder_of(args.runs_dir, f"{name}-{seed}", args.flags)


def batches(args, flags):
    """As many as have the trajectories."""
    words = flags.split()
    size = int(words[words.index("--batch-trajectories") + 1]) if "--batch-trajectories" in words else 128
    return args.trajectories // size


def start(args, seed):
    """The run of a seed's fine-tuned policy: its folder. What its first test shows is the arm "sft"."""
    folder = folder_of(args, "sft", seed)
    if not list(folder.glob("*/checkpoints/*/actor")):
        still = "--iterations 1 --batch-trajectories 8 --no-dynamic-sampling --learning-rate 0"
        weak = "--num-demos 500 --sft-epochs 1"  # the preset of before, which these results are of
        path = run(args, "sft", seed, f"{weak} {still}")
        if path is not None and not measured(args, "sft", seed):
            keep(args, "sft", seed, path, "test_before/")
    (path,) = folder.iterdir()
    return path


def keep(args, arm, seed, path, part="test_after/"):
    """One line of results."""
    setting = {"arm": arm, "seed": seed, "flags": args.flags, "trajectories": args.trajectories}
    comparison.append(RESULTS, setting | comparison.record_of(path, CURVES, "charts/iteration", part))
    if arm != "sft":  # its demonstrations are the control's
        comparison.without_episodes(path)


def results(args):
    """What has been measured in this setting."""
    return comparison.results(RESULTS, NAMES, {"flags": args.flags, "trajectories": args.trajectories})


def measured(args, arm, seed):
    return seed in results(args).get(arm, {})


def measure(args):
    """All runs that are not there yet."""
    if not measured(args, "base", 1):
        path = run(
            args,
            "base",
            1,
            "--num-demos 0 --iterations 1 --batch-trajectories 8 --no-dynamic-sampling --learning-rate 0",
        )
        keep(args, "base", 1, path, "test_before/")
    for seed in range(1, args.seeds + 1):
        started = start(args, seed)
        begin = f"--num-demos 0 --model-id {checkpoint.latest(started).folder('actor')}"
        for arm in sorted(args.arms, key=lambda arm: arm == "control"):  # last, when its method is there
            if measured(args, arm, seed):
                continue
            if arm == "control":
                method = results(args).get("constant", {}).get(seed)
                path = control.as_arm("grpo_async.py", started, method, folder_of(args, arm, seed))
                if path is not None:
                    keep(args, arm, seed, path, "test/")
                continue
            flags = f"--no-test-before {ARMS[arm]} --iterations {batches(args, ARMS[arm])}"
            path = run(args, arm, seed, f"{begin} {flags}")
            if path is not None:
                keep(args, arm, seed, path)
                shutil.rmtree(path / "checkpoints")


# ---------------------------------------------------------------------------------------------------------- the report
def last_third(name):
    """value(record): a curve's mean over the last third of the run."""
    return lambda record: mean_of(record, name)


def failure_to_success(record):
    return mean_of(record, "rollout/failure_length") / mean_of(record, "rollout/success_length")


CLAIMS = {
    "above the start": ("constant", "sft", success),
    "above its control: SFT for as many updates": ("constant", "control", success),
    "above RAFT++": ("constant", "raft", success),
    "above RAFT++ at twice its rate": ("constant", "raft-fast", success),
    "above synchronous REINFORCE": ("constant", "reinforce", success),
    "the decoupled loss ends higher than the coupled one": ("constant", "coupled", success),
    "the coupled loss clips more tokens": ("coupled", "constant", last_third("losses/clip_fraction")),
    "the coupled loss meets the dual clip more often": ("coupled", "constant", last_third("losses/dual_clip_fraction")),
    "success is the same with 1/k and 1/\\|tau\\|": ("constant", "trajectory", success, comparison.SAME),
    "1/\\|tau\\| takes more steps an episode": ("trajectory", "constant", last_third("rollout/length")),
    "1/\\|tau\\| has longer failures for its successes": ("trajectory", "constant", failure_to_success),
    "1/\\|tau\\| writes more tokens a step": ("trajectory", "constant", last_third("rollout/tokens_per_step")),
    "1/\\|tau\\| has less entropy": ("constant", "trajectory", last_third("losses/surprise")),
    "a batch of 128 is better than of 32": ("constant", "batch32", success),
}  # of the project page: more, less, of what
LEVELS = {"easy": (1,), "medium": (2, 3), "hard": (4, 5, 6)}


def level(record, name):
    """Success on the tasks of a level: requirements weigh alike."""
    parts = [record["test"].get(f"requirements_{n}") for n in LEVELS[name]]
    parts = [part for part in parts if part is not None]
    return sum(parts) / len(parts)


def success_table(arms):
    heads = "method", "seeds", "success", *LEVELS, "against SFT", "against 1/\\|tau\\|", "minutes"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, runs in arms.items():
        rows = list(runs.values())
        cells = [NAMES[arm], str(len(rows)), comparison.show(mean_ci([success(r) for r in rows]))]
        cells += [comparison.show(mean_ci([level(r, name) for r in rows])) for name in LEVELS]
        for other in ("sft", "trajectory"):
            cells.append("" if arm == "base" else comparison.versus(arms, arm, other, success))
        cells.append(f"{sorted(r['minutes'] for r in rows)[len(rows) // 2]:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def mean_of(record, name, part=1 / 3):
    """Mean of a curve over the last part of the run."""
    curve = [y for _, y in record["curves"].get(name, [])]
    last = curve[-max(1, round(len(curve) * part)) :]
    return sum(last) / len(last) if last else float("nan")


def behaviour_table(arms):
    """What training looked like, in the mean of its last third."""
    names = {"clipped": "losses/clip_fraction", "dual clip": "losses/dual_clip_fraction",
             "capped": "losses/capped_fraction", "lag": "staleness/mean", "surprise": "losses/surprise",
             "steps": "rollout/length", "steps of successes": "rollout/success_length",
             "of failures": "rollout/failure_length", "tokens a step": "rollout/tokens_per_step"}  # fmt: skip
    lines = [f"| method | {' | '.join(names)} | failure to success |", "|---" * (len(names) + 2) + "|"]
    for arm, runs in arms.items():
        rows = list(runs.values())
        if arm in ("base", "sft"):
            continue
        cells = [f"{mean_ci([mean_of(r, name) for r in rows]).estimate:.3g}" for name in names.values()]
        ratios = [failure_to_success(record) for record in rows]
        lines.append(f"| {NAMES[arm]} | {' | '.join(cells)} | {comparison.show(mean_ci(ratios))} |")
    return "\n".join(lines)


def plots(arms, path):
    """Training reward, how sure the policy is, clip fraction and steps by batches."""
    panels = {"rollout/reward": "success of rollouts", "losses/surprise": "mean -log-prob of a token",
              "losses/clip_fraction": "share of clipped tokens", "rollout/length": "steps of an episode"}  # fmt: skip
    names = {arm: NAMES[arm].replace("\\", "") for arm in MAIN if arm in arms}
    comparison.plot_curves(path, arms, names, panels, "batches")


def main(args):
    if not args.report:
        measure(args)
    arms = results(args)
    tables = success_table(arms), comparison.claim_table(arms, CLAIMS), behaviour_table(arms)
    text = comparison.page(tables)
    print(text)
    if args.write_docs:
        plots(arms, ROOT / "docs/images/grpo_async.png")
        write_docs(ROOT / "docs/grpo_async.md", "learning", f"![curves](images/grpo_async.png)\n\n{text}")


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
