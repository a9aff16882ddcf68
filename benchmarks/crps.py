"""The comparisons of docs/crps.md: every method and ablation of the paper, over seeds, on two cores.

    python benchmarks/crps.py --env-id webshop --seeds 10          # about 4 hours; goes on where it was stopped
    python benchmarks/crps.py --env-id alfworld --seeds 5
    python benchmarks/crps.py --env-id alfworld --arms crps fixed-k p05 p80 --seeds 3
    python benchmarks/crps.py --report --write-docs                # tables and plots from what there is

Each run's result is one line of benchmarks/results/crps.jsonl, written when it is done; what is there is not run again.
All arms of a seed begin with the same fine-tuned policy, and stop at the first batch that reaches the same number of
environment steps sampled by the policy. Two runs go side by side, one thread each.
"""

import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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

RESULTS = ROOT / "benchmarks/results/crps.jsonl"
MAIN = ("rft", "ppo", "rloo", "grpo", "replay", "crps", "control")
ARMS = {
    "rft": "--algorithm rft --replay none",
    "ppo": "--algorithm ppo --replay none --group-size 1 --groups-per-iteration 64",
    "rloo": "--algorithm rloo --replay none",
    "grpo": "--replay none",
    "replay": "--replay start",
    "crps": "",
    "fixed-k": "--fixed-k 10",
    "fixed-k3": "--fixed-k 3",
    "p05": "--p-replay 0.05",
    "p20": "--p-replay 0.2",
    "p80": "--p-replay 0.8",
    "step1": "--k-step 1",
    "step4": "--k-step 4",
    "step6": "--k-step 6",
    "step8": "--k-step 8",
    "smoothing01": "--smoothing 0.1",
    "smoothing05": "--smoothing 0.5",
    "smoothing10": "--smoothing 1.0",
    "control": "",  # the start, fine-tuned on its demonstrations for as many updates as crps made
}
NAMES = {
    "sft": "SFT", "control": "SFT for as many updates more",
    "rft": "RFT", "ppo": "PPO", "rloo": "RLOO", "grpo": "GRPO", "replay": "GRPO + experience replay",
    "crps": "GRPO + CRPS", "fixed-k": "CRPS, k = 10", "fixed-k3": "CRPS, k = 3", "p05": "CRPS, p_replay .05",
    "p20": "CRPS, p_replay .2", "p80": "CRPS, p_replay .8", "smoothing01": "CRPS, smoothing .1",
    "smoothing05": "CRPS, smoothing .5", "smoothing10": "CRPS, smoothing 1",
} | {f"step{n}": f"CRPS, step {n}" for n in (1, 4, 6, 8)}  # fmt: skip
CURVES = """
rollout/reward eval/success groups/all_zero groups/all_one groups/entropy groups/fresh_all_zero groups/fresh_success
replay/success
replay/suffix_mean replay/suffix_share replay/convergence_steps replay/converged replay/buffer_size replay/mastered
rollout/restore_mismatches charts/updates
""".split()


@dataclass
class Args:
    env_id: str = "webshop"
    """webshop or alfworld"""
    seeds: int = 10
    """seeds 1 to N"""
    arms: tuple[Literal[*ARMS], ...] = MAIN
    """which arms (see ARMS in this file)"""
    flags: str = ""
    """further flags of crps.py, for all arms; kept in the results"""
    processes: int = 2
    """runs side by side"""
    report: bool = False
    """print the tables of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put them into docs/crps.md, with plots"""
    docs_name: str = ""
    """the part of docs/crps.md, and the plot; empty: the environment's"""
    runs_dir: str = "runs/crps"
    """where the runs' folders go; their trajectories are deleted when a run is done"""


def folder_of(args, name, seed):
    return comparison.folder_of(args.runs_dir, f"{args.env_id}-{name}-{seed}", args.flags)


def run(args, name, seed, flags):
    """One run of crps.py; its folder, or None where it failed."""
    own = f"--env-id {args.env_id} --seed {seed} --cpu-threads 1 --exp-name {name} {flags} {args.flags}"
    return comparison.run(folder_of(args, name, seed), "crps.py", own.split(), f"{name} {seed}")


def start(args, seed):
    """The fine-tuned policy of a seed, which is also the arm "sft"."""
    folder = folder_of(args, "sft", seed)
    if not list(folder.glob("*/checkpoints/*/actor")):
        path = run(args, "sft", seed, "--algorithm sft --no-test-before")
        if path is not None and not measured(args, "sft", seed):
            keep(args, "sft", seed, path)


def keep(args, arm, seed, path, part="test_after/"):
    """One line of results."""
    setting = {"env_id": args.env_id, "arm": arm, "seed": seed, "flags": args.flags}
    comparison.append(RESULTS, setting | comparison.record_of(path, CURVES, "global_step", part))
    if arm != "sft":  # its demonstrations are the control's
        comparison.without_episodes(path)


def results(env_id, flags):
    """What has been measured."""
    if not RESULTS.exists():
        return []
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return [r for r in records if r["env_id"] == env_id and r["flags"] == flags]


def measured(args, arm, seed):
    return any(r["arm"] == arm and r["seed"] == seed for r in results(args.env_id, args.flags))


def one(args, arm, seed):
    """A seed's run of an arm, unless it has been measured."""
    if measured(args, arm, seed):
        return
    sft = list(folder_of(args, "sft", seed).iterdir())
    if not sft:
        return  # its start has failed, and said so
    if arm == "control":
        method = by_arm(results(args.env_id, args.flags)).get("crps", {}).get(seed)
        path = control.as_arm("crps.py", sft[0], method, folder_of(args, "control", seed))
        return path and keep(args, "control", seed, path, "test/")
    # RFT trains on the demonstrations once more: it makes them, and the same start, itself
    own = "" if arm == "rft" else f"--num-demos 0 --model-id {checkpoint.latest(sft[0]).folder('actor')}"
    path = run(args, arm, seed, f"--no-test-before {own} {ARMS[arm]}")
    if path is not None:
        keep(args, arm, seed, path)
        shutil.rmtree(path / "checkpoints")


# ----------------------------------------------------------------------------------------------------------- the report
def by_arm(records):
    """{arm: {seed: record}}, in ARMS' order."""
    found = {}
    for arm in ("sft", *ARMS):
        for record in records:
            if record["arm"] == arm:
                found.setdefault(arm, {})[record["seed"]] = record
    return found


def early(record, name, part=1 / 3):
    """Mean of a curve over the first part of the run, weighted by environment steps."""
    curve = record["curves"].get(name, [])
    end, total, weight, before = part * max((x for x, _ in curve), default=0), 0.0, 0.0, 0
    for x, y in curve:
        if before < end:
            total, weight, before = total + (x - before) * y, weight + x - before, x
    return total / weight if weight else float("nan")


def main_table(arms):
    """Success, score and differences of every method."""
    heads = "method", "seeds", "success", "score", "against GRPO", "against experience replay"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, runs in arms.items():
        rows = list(runs.values())
        cells = [NAMES.get(arm, arm), str(len(rows)), comparison.show(mean_ci([success(r) for r in rows]), len(rows))]
        cells.append(comparison.show(mean_ci([r["test"].get("score", success(r)) for r in rows]), len(rows)))
        cells += [comparison.versus(arms, arm, "grpo", success), comparison.versus(arms, arm, "replay", success)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kind_table(arms):
    """Success by kind of task."""
    kinds = sorted({k for runs in arms.values() for r in runs.values() for k in r["test"] if k.startswith("kind_")})
    lines = ["| method | " + " | ".join(k[5:].replace("_", " ") for k in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for arm, runs in arms.items():
        means = [mean_ci([r["test"].get(k, 0.0) for r in runs.values()]).estimate for k in kinds]
        lines.append(f"| {NAMES.get(arm, arm)} | " + " | ".join(f"{m:.2f}" for m in means) + " |")
    return "\n".join(lines)


def signal_table(arms):
    """The groups' signal in the first third, and the controller's convergence."""
    heads = "method", "all-zero groups, first third", "against GRPO", "entropy, first third", "against GRPO"
    heads = (*heads, "all-zero, fresh groups alone", "against GRPO", "suffix, mean", "convergence steps (tasks)")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, runs in arms.items():
        rows = [r for r in runs.values() if "groups/all_zero" in r["curves"]]
        if not rows or arm in ("ppo", "rft"):
            continue
        cells = [NAMES.get(arm, arm)]
        for name in ("groups/all_zero", "groups/entropy", "groups/fresh_all_zero"):
            if not all(r["curves"].get(name) for r in (*rows, *arms.get("grpo", {}).values())):
                cells += ["", ""]
                continue
            cells.append(comparison.show(mean_ci([early(r, name) for r in rows]), len(rows)))
            cells.append(comparison.versus(arms, arm, "grpo", lambda record, name=name: early(record, name)))
        suffixes = [y for r in rows for _, y in r["curves"].get("replay/suffix_mean", [])]
        waits, weights = [], []
        for r in rows:
            counts = dict(map(tuple, r["curves"].get("replay/converged", [])))
            for x, y in r["curves"].get("replay/convergence_steps", []):
                waits.append(y * counts[x])
                weights.append(counts[x])
        cells.append(f"{sum(suffixes) / len(suffixes):.1f}" if suffixes else "")
        cells.append(f"{sum(waits) / sum(weights):.2f} ({sum(weights)})" if weights else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def time_table(arms):
    """Wall time of whole runs, evaluations included: of each method's run of median time, because some were stopped
    for a while or ran beside other work. Only RFT's runs make the fine-tuned start themselves."""
    heads = "method", "minutes", "environment steps per second", "environment", "generation", "training", "other"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, runs in arms.items():
        if arm == "sft":
            continue
        record = sorted(runs.values(), key=lambda r: sum(r["time"].values()))[(len(runs) - 1) // 2]
        seconds, total = record["time"], sum(record["time"].values())
        cells = [NAMES.get(arm, arm), f"{total / 60:.1f}", f"{record['steps'] / total:.0f}"]
        cells += [f"{seconds[part] / total:.0%}" for part in ("pages", "generation", "training", "other")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plots(arms, path):
    """Training and evaluation success, all-zero groups and entropy by environment steps."""
    panels = {"rollout/reward": "success of rollouts (with replays)", "eval/success": "success on eval tasks",
              "groups/all_zero": "share of all-zero groups", "groups/entropy": "group entropy, bits"}  # fmt: skip
    names = {arm: NAMES[arm] for arm in ("grpo", "replay", "crps", "rloo", "ppo") if arm in arms}
    arms = {arm: {seed: without_groups(r) if arm == "ppo" else r for seed, r in arms[arm].items()} for arm in names}
    comparison.plot_curves(path, arms, names, panels, "environment steps")


def without_groups(record):
    """PPO's groups have one rollout each: what is said of them is not what is said of the others'."""
    return record | {"curves": {k: v for k, v in record["curves"].items() if not k.startswith("groups/")}}


def report(args):
    """Tables and plots from what has been measured."""
    arms = by_arm(results(args.env_id, args.flags))
    name = args.docs_name or args.env_id.replace("/", "-")
    text = comparison.page([main_table(arms), kind_table(arms), signal_table(arms), time_table(arms)])
    print(text)
    if args.write_docs:
        plots(arms, ROOT / f"docs/images/crps_{name}.png")
        write_docs(ROOT / "docs/crps.md", f"crps {name}", f"![curves](images/crps_{name}.png)\n\n{text}")


def main(args):
    if args.report:
        report(args)
        return
    begun = time.time()
    with ThreadPoolExecutor(args.processes) as pool:
        list(pool.map(lambda seed: start(args, seed), range(1, args.seeds + 1)))
        todo = [(arm, seed) for seed in range(1, args.seeds + 1) for arm in args.arms if arm != "sft"]
        for own in (False, True):  # a control when its method is there
            list(pool.map(lambda pair: one(args, *pair), [pair for pair in todo if (pair[0] == "control") is own]))
    print(f"{(time.time() - begun) / 60:.0f} minutes")


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
