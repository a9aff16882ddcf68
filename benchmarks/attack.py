"""Attacks on whole runs, and what was lost by them: nothing, or the exit code is 1.

    python benchmarks/attack.py                       # 20 random kills of webrl.py's smoke preset
    python benchmarks/attack.py --kills 4 --seed 7

Kills: a run in lockstep is killed with -9 at a random moment and goes on with `--resume auto`, again and again, until
so many kills have hit one; runs that reach their end are held against one that nobody killed. Every metric but times,
and every token that was sampled, must be the same. A kill costs about half of a run (half a minute on two cores).
"""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.lockstep import differences
from common.errors import UsageError
from common.lm import checkpoint, origin
from common.lm.run import run_main


@dataclass
class Args:
    kills: int = 20
    """kills in all"""
    script: str = "webrl.py"
    """a script with --lockstep"""
    seed: int = 1
    """of the moments"""
    folder: str = ""
    """where the runs are made; empty: a temporary folder, deleted afterwards"""


def begin(args, runs_dir):
    """The script's process, which goes on with what is in `runs_dir`, or begins there."""
    flags = ["--preset", "smoke", "--lockstep", "--runs-dir", str(runs_dir), "--resume", "auto"]
    with open(runs_dir.with_suffix(".log"), "a") as log:
        return subprocess.Popen([sys.executable, args.script, *flags], cwd=ROOT, stdout=log, stderr=log)


def finish(process, runs_dir):
    """Waits for a run's end. Returns its folder; what was begun and never saved is no run."""
    if process.wait():
        last = runs_dir.with_suffix(".log").read_text().strip().splitlines()[-1:]
        raise UsageError(f"{runs_dir.name} ended with {process.returncode}: {''.join(last)}")
    return next(path for path in runs_dir.iterdir() if checkpoint.latest(path))


def killed_run(args, folder, seconds, left, rng):
    """A run that is killed up to `left` times at random moments of what is left of it. Returns its folder, and how many
    kills hit it."""
    folder.mkdir(parents=True)
    hits = 0
    while hits < left:
        process = begin(args, folder)
        pause = rng.uniform(0.1, 0.9) * seconds
        try:
            process.wait(pause)
            break  # it was over before
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        hits += 1
        saved = max((one.step for path in folder.iterdir() for one in checkpoint.every(path)), default=None)
        print(f"  killed after {pause:.0f} s; saved: {'nothing yet' if saved is None else f'step {saved}'}", flush=True)
    return finish(begin(args, folder) if process.returncode else process, folder), hits


def main(args):
    if args.kills < 1:
        raise UsageError("--kills must be at least 1")
    rng = random.Random(args.seed)
    folder = Path(args.folder or tempfile.mkdtemp(prefix="attack-"))
    whole = folder / "whole"
    whole.mkdir(parents=True)
    started = time.monotonic()
    expected = finish(begin(args, whole), whole)
    seconds = time.monotonic() - started
    print(f"a whole run takes {seconds:.0f} s", flush=True)
    kills, runs, lost = 0, 0, []
    while kills < args.kills:
        runs += 1
        path, hits = killed_run(args, folder / f"killed-{runs}", seconds, min(5, args.kills - kills), rng)
        kills += hits
        found = differences(expected, path)
        found += [] if origin.read(path)[-1]["state"] == "finished" else ["it is not finished by its origin.json"]
        lost += found
        print(f"run {runs}, {hits} kills: {'the same' if not found else '; '.join(found[:5])}", flush=True)
    minutes = (time.monotonic() - started) / 60
    print(f"\n| attack | tried | runs | differ | minutes |\n| --- | --- | --- | --- | --- |\n"
          f"| kill -9, {args.script} | {kills} | {runs} | {len(lost)} | {minutes:.0f} |")  # fmt: skip
    if not args.folder:
        shutil.rmtree(folder)
    if lost:
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
