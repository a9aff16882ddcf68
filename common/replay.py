"""Trajectories: the records every script trains on, and the append-only store that keeps them on disk.

Tokens are stored as they were sampled and are never tokenised again. On disk a run's trajectories are JSON lines, one
trajectory a line, with screenshots as image files beside them; nothing is ever pickled.
"""

import gzip
import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Task:
    """One instruction in one world.

    `seed` is the content seed of the world the task lives in; `config` is the task in WebArena's JSON schema (sites,
    start_url, intent, intent_template, instantiation_dict, eval). `steps` is what the oracle needs, 0 where unknown.
    """

    task_id: str
    site: str
    instruction: str
    max_steps: int
    split: str = "train"
    seed: int = 0
    template: str = ""
    requirements: int = 1
    steps: int = 0
    config: dict | None = None


@dataclass(frozen=True)
class Prefix:
    """The beginning of an episode, as `env.restore` wants it: what was done, and the hash of what was seen after it.

    `hashes` has one entry more than `actions`: the start page's. `snapshot` is the server's state, or a phone's, and
    `history` the paths of the tab's pages, the current one last; both are left out where only a replay can bring the
    page back.
    """

    task: Task
    actions: tuple[str, ...]
    hashes: tuple[str, ...]
    snapshot: object = None
    history: tuple[str, ...] = ()


@dataclass
class Step:
    """One action and what the policy saw when it chose it.

    `prompt_ids` and `action_ids` are token ids, `logprobs` [len(action_ids)] those of the sampling policy, `version`
    counts that policy's updates. Prompts are kept as 4-byte arrays: lists of numbers would take nine times that.
    `observation` is the page text before the action, `hash` the environment's for all that was seen; `reward` and
    `error` are what the action brought. `screenshot` is a file name relative to the run's folder, `touches` where the
    action touched that picture, [x, y] in shares of it (a drag: start and end). `value`, `advantage` and `ref_logprob`
    (log pi_ref of the whole action) are the learner's.
    """

    prompt_ids: list[int]
    action_ids: list[int]
    logprobs: list[float]
    version: int
    observation: str
    action: str
    reward: float = 0.0
    error: str = ""
    url: str = ""
    hash: str = ""
    screenshot: str | None = None
    touches: list[list[float]] = field(default_factory=list)
    value: float | None = None
    advantage: float | None = None
    ref_logprob: float | None = None
    # not stored: whose step this is and at which t (`steps_of`), and what a learner notes on it
    trajectory: "Trajectory | None" = field(default=None, repr=False, compare=False)
    t: int = field(default=0, compare=False)

    __hash__ = object.__hash__  # a step is itself alone, though another may be equal

    def __post_init__(self):
        self.prompt_ids = array("i", self.prompt_ids)


# What an episode is for: a demonstration; a rollout before the first phase, of training; episodes that only a judge
# learns from; evaluation; the test of the start, of its fine-tuned control, of what was trained.
KINDS = "demo", "start", "rollout", "label", "eval", "test before", "test control", "test after"
TITLES = {"oracle": "demo", "start-up": "start", "refresh": "label", "rollouts": "rollout", "test": "eval"}


def kind_of(title: str) -> str:
    """The kind of the episodes that a run shows under this title; "" for a title of one's own."""
    if title.startswith("phase "):
        return "rollout"
    if title.startswith("ORM data"):
        return "label"
    return title if title in KINDS else TITLES.get(title, "")


@dataclass
class Trajectory:
    """One episode. `policy` is the title that it was played under and `kind` what it is for, one of KINDS. `verdict` is
    the environment's own (None where it has none for this instruction), `score` a graded one, `judged` the outcome
    reward model's, and `reward` the one training uses. `place` is its place among the tasks that were played together;
    the first `prefix` steps are an earlier trajectory's, which the environment brought back. A fault never becomes a
    trajectory."""

    task: Task
    seed: int
    attempt: int
    steps: list[Step] = field(default_factory=list)
    ending: str = "truncated"  # "exit", "truncated", or "overflow": its prompt had no room for another answer
    answer: str = ""
    verdict: float | None = None
    score: float | None = None
    judged: float | None = None
    reward: float = 0.0
    phase: int = 0
    policy: str = ""
    kind: str = ""
    place: int = 0
    prefix: int = 0
    final_observation: str = ""

    __hash__ = object.__hash__

    def __post_init__(self):
        self.kind = self.kind or kind_of(self.policy)  # runs of before kept the title alone

    @property
    def success(self) -> bool:
        """By the true verdict; where there is none, by the judge's opinion of an episode that ended by an exit."""
        if self.verdict is not None:
            return bool(self.verdict)
        return self.ending == "exit" and (self.judged or 0.0) > 0.5


STORED = [name for name in Step.__dataclass_fields__ if name not in ("trajectory", "t")]


def _fields(record) -> dict:
    if isinstance(record, Step):
        return {name: getattr(record, name) for name in STORED}
    if isinstance(record, Trajectory | Task):
        return vars(record)  # dataclasses.asdict copies every token id: ten times slower
    if isinstance(record, array):
        return record.tolist()
    raise TypeError(f"{type(record).__name__} has no place in a trajectory: use Python numbers, text and lists")


def to_json(trajectory: Trajectory) -> str:
    """One line of ASCII. Python writes the shortest digits that give the same float back, so the trip is exact.

    Raises TypeError where a field holds a tensor or the like.
    """
    return json.dumps(trajectory, default=_fields, separators=(",", ":"))


def from_json(line: str | bytes) -> Trajectory:
    """The inverse of `to_json`. Raises ValueError on a torn line and TypeError on a record with unknown fields."""
    record = json.loads(line)
    if not isinstance(record, dict):  # a torn tail can be a bare number
        raise ValueError("not a trajectory record")
    steps = [Step(**step) for step in record.pop("steps")]
    if "outcome" in record:  # as runs of before called it
        record["ending"] = record.pop("outcome")
    return Trajectory(task=Task(**record.pop("task")), steps=steps, **record)


def append_lines(path: Path, lines: list[str]) -> list[int]:
    """Appends whole lines, synced to disk; gives their offsets. After a torn line it starts on a fresh one.

    Raises OSError where the disk is full, with the file as it was before the call.
    """
    if not lines:
        return []
    encoded = [line.encode() + b"\n" for line in lines]
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        end = os.fstat(fd).st_size
        torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
        offsets, position = [], end + torn
        for line in encoded:
            offsets.append(position)
            position += len(line)
        data = memoryview(b"\n" * torn + b"".join(encoded))
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        except BaseException:  # Ctrl-C as well as OSError: never leave half a record in the middle
            os.ftruncate(fd, end)
            raise
    finally:
        os.close(fd)
    return offsets


def truncate(path: Path, size: int) -> None:
    """Drops what was appended after the file had `size` bytes; never makes it longer."""
    if path.exists() and size < path.stat().st_size:
        os.truncate(path, size)


def image_name(data: bytes) -> str:
    """The name of an image file, made of its content, in a run's folder."""
    kind = "png" if data.startswith(b"\x89PNG") else "jpg" if data.startswith(b"\xff\xd8") else "webp"
    return f"screenshots/{hashlib.sha256(data).hexdigest()[:24]}.{kind}"


class TrajectoryStore:
    """Append-only JSON lines at `path`; images in `screenshots/` beside it. One writer, any number of readers.

    Iterating reads the file lazily from the start. A record that a crash or a full disk cut short is lost, alone:
    reading skips it and the next append starts on a line of its own. With `writes` false nothing is appended.
    """

    def __init__(self, path: str | Path, writes: bool = True):
        self.path, self.writes = Path(path), writes
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, trajectories: Iterable[Trajectory]) -> list[int]:
        """Writes the batch, synced to disk when it returns (`append_lines`); gives each record's offset, for `read`."""
        if not self.writes:
            return []
        return append_lines(self.path, [to_json(trajectory) for trajectory in trajectories])

    def __iter__(self) -> Iterator[Trajectory]:
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            for line in file:
                try:
                    trajectory = from_json(line)
                except ValueError:
                    continue
                yield trajectory

    def read(self, offset: int) -> Trajectory:
        """The trajectory that `append` put at `offset`."""
        with open(self.path, "rb") as file:
            file.seek(offset)
            return from_json(file.readline())

    @property
    def size(self) -> int:
        """Bytes on disk. A checkpoint stores it, so that a resumed run can `truncate` to it and go on from there."""
        return self.path.stat().st_size if self.path.exists() else 0

    def add_image(self, data: bytes) -> str:
        """Stores an image once; gives its name (`image_name`) for `Step.screenshot`."""
        name = image_name(data)
        file = self.path.parent / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            aside = file.with_suffix(".tmp")
            try:
                aside.write_bytes(data)
                aside.replace(file)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
        return name


def read_labelled(path: str | Path) -> list[Trajectory]:
    """Labelled episodes that tools/orm_data.py wrote (JSON lines, gzipped or not): trajectories that hold what an
    outcome reward model reads (instruction, actions, last page) and the verdict.

    Raises UsageError with the line that cannot be read.
    """
    file = Path(path) if Path(path).is_file() else ROOT / path  # the default is relative to the project
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if str(path).endswith(".gz") else data).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"--orm-data {path}: {getattr(error, 'strerror', None) or error}") from error
    trajectories = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            task = Task(f"labelled-{number}", "", record["instruction"], len(record["actions"]))
            steps = [Step([], [], [], 0, "", action) for action in record["actions"]]
            page, verdict = record["page"], float(record["verdict"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--orm-data {path}, line {number}: no labelled episode ({error!r})") from error
        made = Trajectory(task, 0, 0, steps, ending="exit", verdict=verdict, policy="labelled", final_observation=page)
        trajectories.append(made)
    return trajectories


def read_demos(path: str | Path, prompt, encode, train_tasks) -> list[Trajectory]:
    """A user's demonstrations as trajectories of verdict 1.

    The file is a run's trajectories.jsonl, of which the successes on `train_tasks` count (the true verdict of a
    generated instruction is not trained on), or JSON lines with "instruction" and "steps", each step with "text" (the
    page) and "action". `prompt(instruction, steps, obs) -> ids` and `encode(action) -> ids` are the script's.
    Raises UsageError with the line that cannot be read.
    """
    try:
        lines = Path(path).read_text().split("\n")  # not splitlines: JSON may hold a U+2028
    except OSError as error:
        raise UsageError(f"--demos {path}: {error.strerror}") from error
    demos, known = [], {(task.task_id, task.instruction) for task in train_tasks}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            played = record.get("task")
            if played and (record["verdict"] != 1.0 or (played["task_id"], played["instruction"]) not in known):
                continue
            task = Task(**record["task"]) if "task" in record else None
            task = task or Task(f"demo-{number}", "", record["instruction"], len(record["steps"]))
            demo = Trajectory(task, seed=0, attempt=0, reward=1.0, verdict=1.0, policy="demo", ending="exit")
            error = ""  # what the step before brought stands on the page of this one
            for step in record["steps"]:
                obs = {"text": step.get("text") or step["observation"], "error": error}
                error = step.get("error", "")
                ids = prompt(task.instruction, demo.steps, obs)
                if ids is None:
                    raise ValueError(f"the prompt of step {len(demo.steps) + 1} has no room in the model's context")
                demo.steps.append(Step(ids, encode(step["action"]), [], 0, obs["text"], step["action"]))
            demo.final_observation = record.get("final_observation") or demo.steps[-1].observation
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(f"--demos {path}, line {number}: no demonstration ({error!r})") from error
        demos.append(demo)
    return demos


def steps_of(trajectories: Iterable[Trajectory]) -> list[Step]:
    """Every step that a trajectory's own policy took, the terminal one too; not those of a prefix, which an earlier
    one took. Each knows its `trajectory` and its place `t` in it from now on."""
    found = []
    for trajectory in trajectories:
        for t in range(trajectory.prefix, len(trajectory.steps)):
            trajectory.steps[t].trajectory, trajectory.steps[t].t = trajectory, t
            found.append(trajectory.steps[t])
    return found


def prompt_lengths(steps: list[Step]) -> list[int]:
    """Tokens of each step's prompt."""
    return [len(step.prompt_ids) for step in steps]


def step_lengths(steps: list[Step]) -> list[int]:
    """Tokens of each step's prompt and action."""
    return [len(step.prompt_ids) + len(step.action_ids) for step in steps]
