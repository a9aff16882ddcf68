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
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import checkpoint
from common.run import read_metrics, run_main

RESULTS = ROOT / "benchmarks/results/crps.jsonl"
MAIN = ("rft", "ppo", "rloo", "grpo", "replay", "crps")
ARMS = {
    "rft": "--algorithm rft --replay none",
    "ppo": "--algorithm ppo --replay none --group-size 1 --groups-per-iteration 64",
    "rloo": "--algorithm rloo --replay none",
    "grpo": "--replay none",
    "replay": "--replay start",
    "crps": "",
    "fixed-k": "--fixed-k 10",
    "p05": "--p-replay 0.05",
    "p80": "--p-replay 0.8",
    "step1": "--k-step 1",
    "step4": "--k-step 4",
    "step6": "--k-step 6",
    "step8": "--k-step 8",
    "smoothing01": "--smoothing 0.1",
    "smoothing05": "--smoothing 0.5",
    "smoothing10": "--smoothing 1.0",
}
CURVES = """
rollout/reward eval/success groups/all_zero groups/all_one groups/entropy groups/fresh_all_zero replay/success
replay/suffix_mean replay/suffix_share replay/convergence_steps replay/converged replay/buffer_size replay/mastered
rollout/restore_mismatches
""".split()


@dataclass
class Args:
    env_id: str = "webshop"
    """webshop or alfworld"""
    seeds: int = 10
    """seeds 1 to N"""
    arms: tuple[str, ...] = MAIN
    """which arms (see ARMS in this file)"""
    flags: str = ""
    """further flags of crps.py, for all arms; kept in the results"""
    processes: int = 2
    """runs side by side"""
    runs_dir: str = "runs/crps"
    """where the runs' folders go; their trajectories are deleted when a run is done"""


def run(args, name, seed, flags):
    """One run of crps.py; its folder."""
    folder = Path(args.runs_dir) / f"{args.env_id}-{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "crps.py", "--env-id", args.env_id, "--seed", str(seed), "--cpu-threads", "1"]
    command += ["--exp-name", name, "--runs-dir", str(folder), *flags.split(), *args.flags.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} {seed}: {done.stderr.strip()[-400:]}", flush=True)
        return None
    (path,) = folder.iterdir()
    for file in ("trajectories.jsonl", "episodes.html"):
        (path / file).unlink(missing_ok=True)
    return path


def start(args, seed):
    """The fine-tuned policy of a seed: its folder; its own result is the arm "sft"."""
    folder = Path(args.runs_dir) / f"{args.env_id}-sft-{seed}"
    found = list(folder.glob("*/checkpoints/*/actor"))
    if not found or not any(r["seed"] == seed and r["arm"] == "sft" for r in results(args.env_id, args.flags)):
        path = run(args, "sft", seed, "--algorithm sft --no-test-before")
        if path is None:
            return None
        keep(args, "sft", seed, path)
        found = list(folder.glob("*/checkpoints/*/actor"))
    return found[-1]


def keep(args, arm, seed, path):
    """One line of results."""
    rows = read_metrics(path)
    last = rows[-1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    curves = {name: [[r["global_step"], r[name]] for r in rows if r.get(name) is not None] for name in CURVES}
    record = {
        "env_id": args.env_id,
        "arm": arm,
        "seed": seed,
        "flags": args.flags,
        "commit": commit.stdout.strip(),
        "steps": last["global_step"],
        "minutes": round(sum(v for k, v in last.items() if k.startswith("time/")) / 60, 2),
        "time": {k[5:]: v for k, v in last.items() if k.startswith("time/")},
        "test": {k[11:]: v for k, v in last.items() if k.startswith("test_after/")},
        "curves": {name: [[x, round(y, 5)] for x, y in curve] for name, curve in curves.items() if curve},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with open(RESULTS, "a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{arm} {seed}: {record['test']['success']:.3f} in {record['minutes']} minutes", flush=True)


def results(env_id, flags):
    """What has been measured."""
    if not RESULTS.exists():
        return []
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return [r for r in records if r["env_id"] == env_id and r["flags"] == flags]


def one(args, arm, seed):
    if any(r["arm"] == arm and r["seed"] == seed for r in results(args.env_id, args.flags)):
        return
    actor = checkpoint_of(args, seed)
    # RFT trains on the demonstrations once more: it makes them, and the same start, itself
    own = "" if arm == "rft" else f"--no-sft --model-id {actor}"
    path = run(args, arm, seed, f"--no-test-before {own} {ARMS[arm]}")
    if path is not None:
        keep(args, arm, seed, path)
        for folder in path.glob("checkpoints"):
            shutil.rmtree(folder)


def checkpoint_of(args, seed):
    (folder,) = (Path(args.runs_dir) / f"{args.env_id}-sft-{seed}").iterdir()
    return checkpoint.latest(folder).folder("actor")


def main(args):
    begun = time.time()
    with ThreadPoolExecutor(args.processes) as pool:
        list(pool.map(lambda seed: start(args, seed), range(1, args.seeds + 1)))
        todo = [(arm, seed) for seed in range(1, args.seeds + 1) for arm in args.arms if arm != "sft"]
        list(pool.map(lambda pair: one(args, *pair), todo))
    print(f"{(time.time() - begun) / 60:.0f} minutes")


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
