"""distrl.py for half an hour at 32 phones while workers and adb servers die: does memory grow, does anything stop?

    python benchmarks/once/soak_phones.py --phone-delay 6:0.6        # half an hour; docs/distrl.md has what it said

Every phone speaks to a real adb server, as slowly as a real one. In turn a worker and an adb server are killed with
SIGKILL. Reported at the end: episodes, faults, what was killed, memory of the whole process tree over the run (the
first fifth is its warm-up), the longest time without an iteration, and whether any stored episode is a part of one.
Exit code 1 if one is, if memory grew by more than a tenth, or if nothing moved for long.
"""

import contextlib
import itertools
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import distrl
from benchmarks.once.soak import fifths, shared_memory
from common.lm.args import values_of
from common.lm.run import read_metrics, run_main
from common.replay import TrajectoryStore


@dataclass
class Args:
    model: str = "assets/tiny-phone"
    """the policy to begin with (a folder or hub id)"""
    env_id: str = "phone-adb/general"
    """the environment"""
    seconds: float = 1800.0
    """length of the run, evaluations left out"""
    workers: int = 2
    """workers, a process and an adb server each"""
    phones: int = 32
    """phones in all"""
    phone_delay: str = "2:0.6"
    """as distrl.py's"""
    kill_seconds: float = 150.0
    """time between two kills: a worker, an adb server, a worker .."""
    stall_seconds: float = 120.0
    """longest time without an iteration's episodes"""
    runs_dir: str = "runs/soak-phones"
    """where the run's folder is made"""
    seed: int = 1
    """of the run"""


class Watcher(threading.Thread):
    """Kills a worker or an adb server at intervals, and notes memory and progress every five seconds until `ended`."""

    def __init__(self, args, counts):
        super().__init__(daemon=True)
        self.args, self.counts, self.ended = args, counts, threading.Event()
        self.memory, self.stalled = [], 0.0

    def run(self):
        me, killed, moved, seen = psutil.Process(), time.monotonic(), time.monotonic(), -1
        victims = itertools.cycle([("worker killed", is_worker), ("adb server killed", is_adb)])
        while not self.ended.wait(5.0):
            tree = [me, *me.children(recursive=True)]
            if time.monotonic() - killed > self.args.kill_seconds:
                killed, (name, is_victim) = time.monotonic(), next(victims)
                self.counts[name] += kill_one(tree, is_victim)
            own, others = shared_memory(me), sum(shared_memory(process) for process in tree[1:])
            self.memory.append((own + others, own, others))
            ended = sum(file.stat().st_size for file in Path(self.args.runs_dir).glob("*/timeline.jsonl"))
            if ended != seen or not ended:  # before the first there are demonstrations and the fine-tuning
                moved, seen = time.monotonic(), ended
            self.stalled = max(self.stalled, time.monotonic() - moved)


def is_worker(command):
    return command and command[0].startswith("ray::RolloutWorker")


def is_adb(command):
    return command and Path(command[0]).name == "adb" and "nodaemon" in command


def kill_one(processes, is_victim):
    """SIGKILL to the first of the processes whose command line is meant; how many died."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if is_victim(process.cmdline()):
                process.kill()
                return 1
    return 0


def parts(trajectories):
    """Stored episodes that are a part of one: neither an end nor the last step."""
    return [t for t in trajectories if t.ending != "exit" and len(t.steps) < t.task.max_steps]


def main(args):
    """The run, and the report."""
    counts = Counter()
    watcher = Watcher(args, counts)
    own = distrl.Args(env_id=args.env_id, model_id=args.model, exp_name="soak", seed=args.seed, runs_dir=args.runs_dir)
    settings = values_of(distrl.Args, "tiny") | dict(
        num_workers=args.workers,
        phones_per_worker=args.phones // args.workers,
        phone_delay=args.phone_delay,
        train_seconds=args.seconds,
        iterations=1_000_000,
        buffer_steps=600,  # full within the first fifth: what grows after that is a leak
        eval_every=1_000_000,
        save_every=10,
        test_before=False,
        test_tasks=32,
    )
    watcher.start()
    start = time.monotonic()
    distrl.main(replace(own, **settings))
    watcher.ended.set()
    watcher.join()
    run = max(Path(args.runs_dir).glob("*soak*"), key=lambda path: path.stat().st_mtime)
    episodes, rows = list(TrajectoryStore(run / "trajectories.jsonl")), read_metrics(run)
    last = {name: value for row in rows for name, value in row.items()}
    broken = parts(episodes)
    whole, host, others = (fifths(some) for some in zip(*watcher.memory, strict=True))
    growth = whole[4] / whole[1] - 1
    whole, host, others = (" ".join(f"{each:.0f}" for each in some) for some in (whole, host, others))
    print(
        f"\n{len(episodes)} episodes in {(time.monotonic() - start) / 60:.0f} minutes, {last['charts/iteration']} "
        f"iterations; {', '.join(f'{name} {count} times' for name, count in sorted(counts.items()))}"
        f"\n{last['rollout/faults']} faults, {last['rollout/lost']} episodes lost with their worker, "
        f"{last['rollout/dropped']} tasks dropped"
        f"\nmemory in MiB, medians of the run's fifths: {whole} ({growth:+.0%} from the second to the last); this "
        f"process {host}; the others {others}"
        f"\nlongest time without an iteration's episodes {watcher.stalled:.0f} s"
        f"\nstored episodes that are a part of one {len(broken)}"
    )
    if broken or growth > 0.1 or watcher.stalled > args.stall_seconds or not all(counts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
