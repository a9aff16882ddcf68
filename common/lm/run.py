"""A run's folder: arguments, metrics, trajectories, checkpoints, the script as run; and how a script ends.

`runs/<env>__<script>__<seed>__<time>/` holds args.json, origin.json (where it comes from and how it ended) and
uncommitted.diff, metrics.jsonl, trajectories.jsonl with screenshots/, checkpoints/ (the last two), start/ (the
fine-tuned policy), unfinished.jsonl (episodes since the last checkpoint), the script, and what the script writes there
itself (report, plots, page of episodes).
"""

import asyncio
import contextlib
import errno
import inspect
import itertools
import json
import math
import re
import resource
import shutil
import signal
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import orm
from common.errors import EnvFault, TooManyFaults, UsageError
from common.lm import checkpoint, origin, parallel, resume
from common.lm.checkpoint import Checkpoint
from common.lm.stats import by_check, paired_difference, wilson
from common.replay import TrajectoryStore, append_lines, truncate

LOST = "rollout/faults rollout/dropped rollout/unanswered".split()  # are in every printed line where they are not 0
MANY_FILES, FEW_FILES = 4096, 128  # open at once; with fewer Chromium's pages do not answer
NOT_WANDBS = set(":;,#?'\\%")  # of a run's name; a slash becomes a hyphen


class Timer:
    """Seconds of wall time per part; the parts add up to the whole. `with timer("pages"): ...`

    Parts may nest or overlap (a model call in a thread while pages load): time goes to the part entered last that is
    still active, and to "other" where none is.
    """

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)
        self._active: list[str] = []
        self._mark = time.perf_counter()
        self._lock = threading.Lock()

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._active[-1] if self._active else "other"] += now - self._mark
        self._mark = now

    @contextlib.contextmanager
    def __call__(self, part: str):
        with self._lock:
            self._charge()
            self._active.append(part)
        try:
            yield
        finally:
            with self._lock:
                self._charge()
                last = len(self._active) - 1 - self._active[::-1].index(part)
                del self._active[last]

    def metrics(self) -> dict[str, float]:
        """`time/<part>` for every part, in seconds since the run began (resumed time included)."""
        with self._lock:
            self._charge()
            return {f"time/{part}": round(seconds, 3) for part, seconds in self.seconds.items()}


class Run:
    """One run's folder and logger. Use as a context manager, so that wandb is told how it ended.

    `path`, `name`, `trajectories` (the store), `timer`, and `resumed` (the checkpoint it goes on from, or None).
    """

    def __init__(self, path: Path, args, script: str | Path = "", resumed: Checkpoint | None = None):
        self.path, self.args, self.script, self.resumed = path, args, Path(script), resumed
        self.name = path.name
        self.lock = resume.lock(path) if parallel.is_main() else None
        self.trajectories = TrajectoryStore(path / "trajectories.jsonl", writes=parallel.is_main())
        mine = f"-{parallel.rank()}" if parallel.rank() else ""
        self.unfinished = TrajectoryStore(path / f"unfinished{mine}.jsonl")  # episodes since the last checkpoint
        self.timer = Timer()
        self._wandb, self._warned, self._begun = None, set(), False

    @classmethod
    def create(cls, args, script_path: str | Path, runs_dir: str | Path = "runs", run_path: str | Path = "") -> "Run":
        """Makes a new folder in `runs_dir`, or opens that of the run at `run_path`, to go on from its last whole
        checkpoint: what it holds stays as it is until that is loaded (`begin`).

        `args` is the script's dataclass: `env_id` and `seed` are needed, `exp_name` (empty: the script's name),
        `track`, `wandb_project_name` and `wandb_entity` are used where it has them. Raises UsageError: folder not
        writable or in use, nothing to resume, a run of another script.
        """
        if not parallel.is_main():  # the first process makes the folder
            path, resumed = parallel.broadcast(None)
            return cls(path, args, script_path, resumed)
        exp_name = _exp_name(args, script_path)
        refused = [c for c in exp_name if c in NOT_WANDBS or not c.isprintable()]
        if refused and getattr(args, "track", False):
            raise UsageError(
                f"--exp-name {exp_name}: wandb (--track) takes no {refused[0]!r} in a run's name: leave it out"
            )
        try:
            if run_path:
                run = cls(resume.checked(Path(run_path), Path(script_path)), args, script_path)
                run.resumed = resume.last_whole(run.path)
                run.timer.seconds.update(run.resumed.meta["seconds"])
            else:
                name = f"{_group(args, script_path)}__{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
                run = cls(_new_folder(Path(runs_dir), name), args, script_path)
                run.begin()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise UsageError(f"cannot write to {error.filename or run_path or runs_dir}: {error.strerror}") from error
        parallel.broadcast((run.path, run.resumed))
        return run

    def begin(self) -> None:
        """The run's start, once its checkpoint is loaded where it goes on from one: what was logged after that is
        dropped, args.json and the script are those of now, origin.json has who goes on and which flags are other ones
        from here on, and wandb is told."""
        if parallel.is_main() and not self._begun:
            step, changed = (self.resumed.step, resume.changed(self.path, self.args)) if self.resumed else (0, {})
            if self.resumed:
                truncate(self.trajectories.path, self.resumed.meta["trajectories_size"])
                truncate(self.path / "metrics.jsonl", self.resumed.meta["metrics_size"])
            known = origin.without_secrets(json.dumps(asdict(self.args), indent=2, default=str))
            (self.path / "args.json").write_text(known + "\n")
            if self.script.is_file():
                shutil.copy(self.script, self.path / self.script.name)
            record = origin.begin(self.path, {"step": step, "changed": changed} if changed else {})
            if getattr(self.args, "track", False):
                self._start_wandb(json.loads(known) | {name: record[name] for name in ("commit", "command")})
        self._begun = True

    def _start_wandb(self, config: dict) -> None:
        import wandb  # slow to import, and wanted by few

        tags = self.script.stem, _env_name(self.args.env_id), getattr(self.args, "preset", "")
        argv = sys.argv
        try:
            sys.argv = [*map(origin.without_secrets, argv)]  # wandb keeps a copy
            self._wandb = wandb.init(
                project=getattr(self.args, "wandb_project_name", None) or "cleangui",
                entity=getattr(self.args, "wandb_entity", None) or None,
                name=self.name,
                id=self.name.replace(" ", "-")[-128:],  # the same on resume: wandb goes on with the same curve
                resume="allow",
                group=_group(self.args, self.script)[:128],  # the same for all seeds
                tags=[tag[:64] for tag in tags if tag],
                config=config,
                dir=str(self.path),
            )
        except wandb.errors.Error as error:
            reason, remedy = str(error).splitlines()[0], "wandb login, or WANDB_MODE=offline, or no --track"
            remedy = "another --wandb-project-name" if "project name" in reason else remedy
            raise UsageError(f"--track: {reason} ({remedy})") from error
        finally:
            sys.argv = argv
        self._wandb.define_metric("*", step_metric="global_step")

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """One line of metrics.jsonl: `global_step`, the metrics (numbers or text), and the `time/` breakdown so far."""
        if not parallel.is_main():
            return
        row = {"global_step": step, **metrics, **self.timer.metrics()}
        row = {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
        known = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
        append_lines(self.path / "metrics.jsonl", [json.dumps(known)])  # JSON knows neither NaN nor infinity
        self._track(lambda wandb_run: wandb_run.log(row))  # never step=: wandb would drop rows that come out of order

    def _track(self, do: Callable) -> None:
        """`do(wandb's run)`, with --track. A failure of wandb's is said once, and never the run's end."""
        if not self._wandb:
            return
        try:
            do(self._wandb)
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            if isinstance(error, OSError):  # its process is gone
                reason = f"wandb's process is gone ({reason}); metrics.jsonl has all that comes"
                self._drop_wandb()
            if reason not in self._warned:
                self.say(f"warning: --track: {reason}")
            self._warned.add(reason)

    def _drop_wandb(self) -> None:
        import wandb

        self._wandb = None
        with contextlib.suppress(Exception):
            wandb.teardown()  # else it tries to when Python ends, with a stack trace

    def _upload(self, wandb_run) -> None:
        """What the folder holds besides metrics, as wandb's artifact; the test episodes as its table."""
        import wandb

        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", self.name, flags=re.ASCII)[-128:], type="run")
        kept = "*.py", "args.json", origin.FILE, "uncommitted*.diff", "plots/*.png", "episodes.html"
        for file in sorted(file for pattern in kept for file in self.path.glob(pattern)):
            artifact.add_file(str(file), str(file.relative_to(self.path)), skip_cache=True)
        wandb_run.log_artifact(artifact)
        tested = [t for t in self.trajectories if t.kind.startswith("test")]
        if tested:
            rows = [[t.kind, t.task.task_id, t.task.instruction, t.success, len(t.steps), t.ending] for t in tested]
            columns = ["evaluation", "task", "instruction", "success", "steps", "ending"]
            wandb_run.log({"test_episodes": wandb.Table(columns=columns, data=rows)})

    def report(self, title: str, metrics: dict[str, Any], names: str) -> None:
        """One line on the terminal: the named metrics (with spaces between them), those that there are; faults and
        unanswered judgements so far, where there are some; and why no rollout was rewarded, where none was."""
        there = [name for name in names.split() if name in metrics]
        shown = [f"{name.replace('/', ' ').replace('_', ' ')} {metrics[name]:.4g}" for name in there]
        shown += [f"{name.partition('/')[2]} {metrics[name]}" for name in LOST if metrics.get(name)]
        self.say(f"{title}: {', '.join(shown)}")
        if "rollout/note" in metrics:
            self.say(f"{title}: {metrics['rollout/note']}")

    def say(self, line: str) -> None:
        """A line on the terminal, once however many processes there are; above a progress bar, if one is there."""
        from tqdm import tqdm

        if parallel.is_main():
            tqdm.write(origin.without_secrets(line))
            sys.stdout.flush()

    def save_checkpoint(self, step: int, weights: dict[str, Any], tensors: dict, state: dict) -> Path:
        """Saves a checkpoint that `create(..., resume=...)` goes on from; see `checkpoint.save` for the arguments."""
        self.timer.metrics()  # charges the time up to now
        meta = {
            "global_step": step,
            "metrics_size": _size(self.path / "metrics.jsonl"),
            "trajectories_size": self.trajectories.size,
            "seconds": self.timer.seconds,
            "state": state,
        }
        if parallel.is_main():
            checkpoint.save(self.path, step, weights, tensors, meta)
        parallel.broadcast(parallel.CHECKPOINT_WRITTEN)  # nobody goes on before it is there
        truncate(self.unfinished.path, 0)
        return self.latest().path

    def save_start(self, *parts: Any) -> None:
        """Keeps the fine-tuned policy that reinforcement begins with (a model, its tokenizer or processor) as the
        folder `start/`: what it is compared with, and benchmarks/control.py's own beginning."""
        if parallel.is_main():
            for part in parts:
                part.save_pretrained(self.path / "start")

    def start_over(self) -> None:
        """Begins with nothing of what the run has logged and played so far."""
        self.begin()
        if parallel.is_main():
            truncate(self.trajectories.path, 0)
            truncate(self.path / "metrics.jsonl", 0)
        parallel.broadcast(None)
        self.timer.seconds.clear()

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None."""
        return checkpoint.latest(self.path)

    def summary(self, before: list, after: list, control: list = (), note: str = "") -> None:
        """Prints success (trajectories of the same tasks) of the start, of the control and after reinforcement, the
        paired differences, a note on them, where the time went and where to look. `before` and `control` may be empty.
        Tasks with a check and tasks without one are reported apart; beside what a judge says of the latter stands how
        often it was right where a check knows."""
        lines, (checked, judged) = [], by_check(after)
        for group, others, kind in (
            (checked, [by_check(some)[0] for some in (before, control)], "with a check"),
            (judged, [by_check(some)[1] for some in (before, control)], "without one, by the judge"),
        ):
            if group:
                lines += _success(*others, group, f" {kind}" if checked and judged else "")
        if judged:
            lines.append(orm.record(self.trajectories))
        lines += [note] if note else []
        parts = self.timer.metrics()
        total = sum(parts.values()) or 1.0  # of a run that was ended before anything took time
        shares = ", ".join(f"{name.removeprefix('time/')} {seconds / total:.0%}" for name, seconds in parts.items())
        lines += [f"Took {total / 60:.1f} minutes: {shares}", f"Run folder  {self.path}"]
        lines.append(f"Checkpoint  {self.latest().path / 'actor' if self.latest() else 'none'}")
        if not control and (self.path / "start").is_dir():
            script = next(self.path.glob("*.py"), Path("SCRIPT")).name
            lines.append(
                f"Control     python benchmarks/control.py {script} {self.path}   # is the gain reinforcement's?"
            )
        if any(t.verdict is None for t in after):
            whose = "some of these" if checked else "these"
            self.say(f"\nNo true verdict is known for {whose} tasks: success is what the judge takes for it.")
        self.say("\n" + "\n".join(lines))

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if parallel.is_main() and self._begun:
            origin.end(self.path, *_state(error))
        begun = self.resumed or self.trajectories.path.exists() or (self.path / "metrics.jsonl").exists()
        if begun:
            self._track(self._upload)
        self._track(lambda wandb_run: wandb_run.finish(exit_code=0 if kind is None else 1))
        if isinstance(error, UsageError) and not begun and parallel.is_main():
            shutil.rmtree(self.path, ignore_errors=True)  # a wrong flag or file: nothing of the run is there
        if self.lock:
            self.lock.close()


def _success(before, control, after, kind):
    """The lines of a summary on tasks of one kind."""
    lines = [f"Test success on {len(after)} held-out tasks{kind} (95 % intervals)"]
    names = "the start", "the control"  # which is the start, fine-tuned for as many updates as the run made
    played = dict(zip(names, (before, control))) | {"reinforcement": after}
    for name, some in played.items():
        if some:
            lines.append(f"  {name:<15}{wilson(sum(t.success for t in some), len(some))}")
    for name in names:
        won = {t.task.task_id: t.success for t in played[name]}
        pairs = [(t.success, won[t.task.task_id]) for t in after if t.task.task_id in won]
        if pairs:
            difference = paired_difference(*zip(*pairs, strict=True))
            same = difference.low == difference.high  # of which no interval can be made
            said = f"{difference.estimate:.3f} on every task" if same else difference
            lines.append(f"  paired, above {name}: {said}")
    if control and not difference.low > 0:  # of the last, the control
        lines.append("Not shown to be above the control: fine-tuning alone may gain as much.")
    return lines


def read_metrics(run_path: str | Path) -> list[dict]:
    """The rows of metrics.jsonl, a torn line left out; NaN for what was no finite number. Raises UsageError where there
    are none."""
    file = Path(run_path) / "metrics.jsonl"
    if not file.exists():
        raise UsageError(f"{run_path} is no run: it has no metrics.jsonl")
    rows = []
    for line in file.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows.append({name: math.nan if value is None else value for name, value in row.items()})
    return rows


def run_main(main: Callable, *args) -> None:
    """Calls `main(*args)` (a function or a coroutine function) and ends the process as a user expects.

    One line on stderr and exit code 2 for UsageError, 1 for faults that stopped the run and for a full disk, 130 for
    Ctrl-C (SIGTERM does the same), after the script's own `finally` wrote its checkpoint.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell script's background job: deaf to Ctrl-C alone
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio replaces this one only
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _allow_files()
        result = main(*args)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except BaseException as error:
        message, code = _ending(error)
        if message is None:
            raise
        print(origin.without_secrets(" ".join(message.split())), file=sys.stderr)
        raise SystemExit(code) from None


def _allow_files() -> None:
    """As many open files as the system lets this process have, up to MANY_FILES. Raises UsageError for too few: pages
    that do not answer are all that one would see of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < FEW_FILES:
        raise UsageError(f"only {allowed} files may be open at once here (ulimit -n), too few for a browser: 4096 do")


def _terminate(number, frame):
    """As Ctrl-C: a running event loop cancels its main task, anything else is interrupted."""
    signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)


def _ending(error: BaseException) -> tuple[str | None, int]:
    while isinstance(error, BaseExceptionGroup):  # what asyncio.TaskGroup makes of it
        error = error.exceptions[0]
    if isinstance(error, UsageError):
        return f"error: {error}", 2
    if isinstance(error, EnvFault | TooManyFaults):
        return f"stopped: {error}", 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"stopped: the disk is full ({error.filename or error.strerror}); the last checkpoint is whole", 1
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "stopped: too many files are open at once: ulimit -n sets how many may be, 4096 do", 1
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO):
        what = error.filename or "the run's folder"
        return f"stopped: cannot write to {what}: {error.strerror}; the last checkpoint is whole", 1
    if isinstance(error, KeyboardInterrupt):
        return "stopped by the user", 130
    return None, 1


def _state(error: BaseException | None) -> tuple[str, str]:
    """How a run ended, for its origin.json, and why."""
    if error is None:
        return "finished", ""
    message, _ = _ending(error)
    words = " ".join((message or f"{type(error).__name__}: {error}").split())
    return ("stopped" if words.startswith("stopped") else "failed"), words


def _new_folder(runs_dir: Path, name: str) -> Path:
    runs_dir.mkdir(parents=True, exist_ok=True)
    for suffix in itertools.chain([""], (f"-{i}" for i in itertools.count(2))):  # several may start within a second
        with contextlib.suppress(FileExistsError):
            (runs_dir / (name + suffix)).mkdir()
            return runs_dir / (name + suffix)


def _exp_name(args, script: str | Path) -> str:
    return getattr(args, "exp_name", "") or Path(script).stem


def _group(args, script: str | Path) -> str:
    """What the names of runs begin with that differ in seed and time only."""
    return f"{_env_name(args.env_id)}__{_exp_name(args, script)}".replace("/", "-")


def _env_name(env_id: str) -> str:
    name = re.sub(r"[^\w.+-]+", "-", env_id)
    if len(name) > 64:  # many tasks by name: a file's name has 255 characters at most
        name = f"{name[:55]}-{zlib.crc32(env_id.encode()):08x}"
    return name


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
