"""Whether a change of the code leaves what the scripts compute as it was: small runs in lockstep, before and after.

    python benchmarks/lockstep.py runs/before                # before the change: make the runs
    python benchmarks/lockstep.py runs/before --compare      # after it: make them again, and say what differs

Every metric but times must be the same to the last digit, and so must the tokens that were sampled. distrl.py has no
lockstep. Some ten minutes on two cores each time.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.errors import UsageError
from common.lm import checkpoint
from common.lm.run import read_metrics, run_main
from common.replay import TrajectoryStore

WEBRL = """webrl.py --lockstep --cpu-threads 2 --num-demos 6 --sft-epochs 2 --orm-episodes 24 --orm-epochs 1
--start-episodes 12 --instructions-per-phase 8 --num-phases 2 --eval-tasks 3 --test-tasks 4 --num-envs 4 --orm-data="""
CRPS = """crps.py --lockstep --cpu-threads 2 --sft-epochs 4 --num-envs 16 --groups-per-iteration 4 --group-size 4
--eval-tasks 4 --test-tasks 6 --eval-every 2 --save-every 1 --iterations 3 --total-steps 0 --p-replay 0.5"""
DIGIRL = """digirl.py --lockstep --cpu-threads 2 --num-envs 4 --num-demos 12 --sft-epochs 2 --batch-trajectories 8
--iterations 3 --max-steps 6 --eval-every 2 --eval-tasks 2 --test-tasks 4 --instruction-updates 2 --step-updates 2
--actor-updates 2 --batch-size 8 --save-every 1"""
GRPO = """grpo_async.py --env-id gallery/count+take_out --batch-trajectories 8 --group-size 4 --iterations 3
--eval-every 2 --save-every 1 --test-tasks 0 --eval-tasks 4 --no-dynamic-sampling --envs-per-worker 4 --max-steps 10
--sft-epochs 2 --update-epochs 1 --minibatches 8 --learning-rate 1e-4"""
RUNS = {
    "webrl": f"{WEBRL} --curriculum --orm-refresh 3",
    "webrl-released": f"{WEBRL} --loss released --no-curriculum",
    "webrl-digirl": f"{WEBRL} --loss digirl --no-curriculum",
    "crps": CRPS,
    "crps-ppo": f"{CRPS} --algorithm ppo --replay none --kl-coef 0.01",
    "digirl": DIGIRL,
}


@dataclass
class Args:
    folder: tyro.conf.Positional[str]
    """where the runs are"""
    compare: bool = False
    """make them again, in a folder beside it, and compare"""
    only: tuple[str, ...] = ()
    """these runs alone (RUNS in this file, and grpo)"""


def make(folder, flags):
    """One run, in `folder`. Returns its path."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, *flags.split(), "--runs-dir", str(folder.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"{folder.name}: {done.stderr.strip()[-600:]}")
    (path,) = folder.iterdir()
    return path


def make_grpo(folder, record):
    """grpo_async.py plays by the schedule of a run without one, which `record` keeps, from that run's weights."""
    start = record / "grpo-start"
    if not start.is_dir():
        make(start, f"{GRPO} --num-demos 80")
    (run,) = start.iterdir()
    begin = f"--num-demos 0 --preset tiny --model-id {checkpoint.latest(run).folder('actor').resolve()}"
    free = record / "grpo-free"
    if not free.is_dir():
        make(free, f"{GRPO} {begin}")
    (schedule,) = free.iterdir()
    return make(folder, f"{GRPO} {begin} --schedule {schedule.resolve()}")


def what(run):
    """What must be the same: metrics, and each episode's title, task and tokens."""
    untimed = [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in read_metrics(run)]
    rows = [{k: repr(v) for k, v in row.items() if k != "charts/seconds"} for row in untimed]
    episodes = [
        (t.policy, t.task.task_id, t.reward, [list(s.action_ids) for s in t.steps])
        for t in TrajectoryStore(run / "trajectories.jsonl")
    ]
    return rows, sorted(episodes, key=repr)


def differences(before, after):
    """Lines that say what differs between two runs."""
    (rows, episodes), (new_rows, new_episodes) = what(before), what(after)
    lines = [] if len(rows) == len(new_rows) else [f"{len(rows)} rows of metrics, {len(new_rows)} now"]
    for number, (row, new) in enumerate(zip(rows, new_rows)):
        for name in sorted(row.keys() | new.keys()):
            if row.get(name) != new.get(name):
                lines.append(f"row {number}: {name} was {row.get(name)}, is {new.get(name)}")
    changed = sum(one != other for one, other in zip(episodes, new_episodes))
    if changed or len(episodes) != len(new_episodes):
        lines.append(f"{changed} of {len(episodes)} episodes ({len(new_episodes)} now)")
    return lines


def main(args):
    record = Path(args.folder)
    folder = record.with_name(f"{record.name}-now") if args.compare else record
    if unknown := set(args.only) - {*RUNS, "grpo"}:
        raise UsageError(f"--only {' '.join(sorted(unknown))}: there are {', '.join([*RUNS, 'grpo'])}")
    found = {}
    for name in args.only or (*RUNS, "grpo"):
        print(name, end=": ", flush=True)
        path = make_grpo(folder / name, record) if name == "grpo" else make(folder / name, RUNS[name])
        if not args.compare:
            print(path)
            continue
        if not (record / name).is_dir():
            raise UsageError(f"{record / name}: not there; make it before the change")
        found[name] = differences(next((record / name).iterdir()), path)
        print("the same" if not found[name] else "\n  ".join(["differs", *found[name][:12]]), flush=True)
    if any(found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
