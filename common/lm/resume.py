"""Which run `--resume` goes on with, and from which of its checkpoints; and that one process alone is at work on it."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from common.errors import UsageError
from common.lm import checkpoint, origin, parallel
from common.lm.checkpoint import Checkpoint

FIXED = "env_id", "seed", "model_id", "lora_rank"  # what a run was begun with, to its end
SHOWN = "track", "wandb_project_name", "wandb_entity", "runs_dir", "resume", "port"
LOCK = ".lock"


def saved_args(run_path: str | Path) -> dict:
    """The arguments of an earlier run, as its args.json has them. Raises UsageError where the folder has none."""
    try:
        saved = json.loads((Path(run_path) / "args.json").read_text())
    except (OSError, ValueError):
        saved = None
    if not isinstance(saved, dict):
        raise UsageError(f"nothing to resume: {run_path} has no readable args.json")
    return saved


def newest(args, script: Path) -> str:
    """`--resume auto`: the run of `args.runs_dir` that was saved last, of those of this script and of `args`'
    environment, name and seed that are not finished; "" where there is none. Says which one it is, and which newer ones
    have no checkpoint."""
    ages, without = {}, {}
    for file in Path(args.runs_dir).glob("*/args.json"):
        run_path = file.parent
        with contextlib.suppress(UsageError, OSError):
            if not _is_like(saved_args(run_path), args, script) or not _is_of(run_path, script) or _finished(run_path):
                continue
            last = checkpoint.latest(run_path)
            kind = ages if last else without
            kind[run_path] = (last.path if last else file).stat().st_mtime
    found = max(ages, key=ages.get, default=None)
    for run_path in sorted(without, key=without.get):
        if without[run_path] > ages.get(found, 0.0):
            _say(f"--resume auto: {run_path} has no checkpoint, it is left as it is")
    _say(f"--resume auto: {f'goes on with {found}' if found else 'there is nothing to go on with, a new run begins'}")
    return str(found or "")


def fitting(args, saved: dict):
    """The arguments with which the run `args.resume`, whose own are `saved`, goes on. Raises UsageError where a flag
    given anew is not what it was begun with, or an address was kept without its password and is not given anew."""
    if getattr(args, "env_id", None) == _unversioned(saved.get("env_id")):  # its tasks are of the version of then
        args = replace(args, env_id=saved["env_id"])
    for name in FIXED:
        before, now = saved.get(name), getattr(args, name, None)
        if before not in (None, now):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--resume {args.resume}: it was begun with {flag} {before}, not {now}")
    for name, value in asdict(args).items():
        if origin.HIDDEN in str(value):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--resume {args.resume}: {flag} {value} was kept without what is secret: give it again")
    return args


def last_whole(run_path: str | Path) -> Checkpoint:
    """The newest checkpoint that is whole, with all trajectories that it knows of. Says which newer ones are not, and
    why, and puts them aside. Raises UsageError where there is none."""

    def problem(one):
        return one.damage() or _lost(Path(run_path) / "trajectories.jsonl", one.meta["trajectories_size"])

    found, damaged = checkpoint.whole(run_path, problem)
    reasons = "; ".join(f"checkpoint {one.path.name} is damaged: {why}" for one, why in damaged.items())
    if found is None:
        raise UsageError(f"nothing to resume: {run_path} has no checkpoint that is whole: {reasons}")
    for one in damaged:
        aside = one.path.with_name(f"damaged-{one.path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        one.path.rename(aside)
    if damaged:
        _say(f"{reasons} (kept as damaged-*); the run goes on from the earlier one, {found.path.name}")
    missing = _lost(Path(run_path) / "metrics.jsonl", found.meta["metrics_size"])
    if missing:
        _say(f"warning: {run_path}: {missing}: its curves have a gap")
    return found


def lock(run_path: Path) -> IO[str]:
    """Keeps other processes off the run's folder for as long as the file that it gives is open: to this process's end
    at most, however that comes. Raises UsageError where another one is at work on it, OSError where it cannot write."""
    file = open(run_path / LOCK, "a+")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        who = file.read().strip() or "another process"
        file.close()
        raise UsageError(f"{run_path}: {who} is at work on this run") from None
    except OSError:
        return file  # a file system without locks
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def checked(run_path: Path, script: Path) -> Path:
    """`run_path`. Raises UsageError where it is no run of this script that could go on."""
    if checkpoint.latest(run_path) is None:
        raise UsageError(f"nothing to resume: {run_path} has no checkpoint")
    if not _is_of(run_path, script):
        whose = ", ".join(sorted(path.name for path in run_path.glob("*.py")))
        raise UsageError(f"--resume {run_path}: it is a run of {whose}, not of {script.name}")
    return run_path


def changed(run_path: Path, args) -> dict[str, list]:
    """{flag: [what it was, what it is]} of a run's flags that are other ones now, but for where and how it is shown."""
    before = saved_args(run_path)
    now = json.loads(origin.without_secrets(json.dumps(asdict(args), default=str)))
    return {
        name: [before[name], value]
        for name, value in now.items()
        if name in before and before[name] != value and name not in SHOWN
    }


def _is_of(run_path: Path, script: Path) -> bool:
    """Whether a run is the script's: its folder holds a script of that name, or none."""
    return (run_path / script.name).is_file() or not any(run_path.glob("*.py"))


def _is_like(saved, args, script):
    """Whether a run's environment (of whatever version), name and seed are those of `args`."""

    def of(values):
        return _unversioned(values.get("env_id")), values.get("exp_name") or script.stem, values.get("seed")

    return of(saved) == of(vars(args))


def _unversioned(env_id):
    return re.sub(r"-v\d+(?=/|$)", "", str(env_id))


def _finished(run_path):
    return any(record.get("state") == "finished" for record in origin.read(run_path)[-1:])


def _lost(file: Path, size: int) -> str:
    """What is missing of a file's first `size` bytes, which are lines of JSON; "" where nothing is."""
    there = file.stat().st_size if file.exists() else 0
    if there < size:
        return f"{file.name} has {there} of {size} bytes"
    broken = 0
    if size:
        with open(file, "rb") as lines:
            while lines.tell() < size:
                line = lines.readline()
                broken += not _is_json(line) or lines.tell() > size
    return f"{broken} lines of {file.name} cannot be read" if broken else ""


def _is_json(line):
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _say(line):
    if parallel.is_main():
        print(line, flush=True)
