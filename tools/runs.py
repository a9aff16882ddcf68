"""The runs of a folder as a table; a page that compares some of them, down to the same task's episodes.

    python tools/runs.py                                 # the runs in runs/, the last begun below
    python tools/runs.py comparison                      # those of another folder
    python tools/runs.py runs/A runs/B                   # these, and runs/compare.html
    python tools/runs.py runs/A runs/B --page ab.html

Below a run stand the flags in which it differs from most of the others that have them, or all where no value has most.
"""

import base64
import io
import json
import math
import string
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import UsageError
from common.lm import origin
from common.lm.run import read_metrics, run_main
from common.lm.stats import Interval, paired_difference
from common.replay import Trajectory, TrajectoryStore
from tools import plot, view

PARTS = {"start": ["test_before"], "control": ["test_control"], "after": ["test_after", "test"], "eval": ["eval"]}
# kinds of evaluations, those that say most about a run first
KINDS = {"test after": "test tasks", "eval": "eval tasks, last time", "test before": "test tasks, before training"}


@dataclass
class Args:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ("runs",)
    """folders of runs, or one that holds runs"""
    page: str = ""
    """the page to write; empty: compare.html beside the runs, where two or more are named"""
    x: Literal["phase", "steps"] = "phase"
    """horizontal axis of the curves: phases (iterations), or environment steps of training"""
    image_width: int = 640
    """screenshots on the page are scaled down to this many pixels"""
    megabytes: float = 24.0
    """episodes on the page, and as much for their screenshots; past it only their outcomes are there"""


@dataclass
class Run:
    """What a run's folder says: its arguments with the `script`, the rows of its metrics, its origin's records."""

    path: Path
    settings: dict
    rows: list[dict]
    records: list[dict]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def last(self) -> dict:
        return self.records[-1] if self.records else {}

    def success(self, part: str) -> Interval:
        """Of the start, the control, after training or the last evaluation, over tasks; NaN where it was not played."""
        found = (plot.last(self.rows, f"{prefix}/success") for prefix in PARTS[part])
        for prefix, value in zip(PARTS[part], found):
            if not math.isnan(value):
                return Interval(value, *(plot.last(self.rows, f"{prefix}/{end}") for end in ("low", "high")))
        return Interval(math.nan, math.nan, math.nan)

    def state(self) -> str:
        """running, finished, stopped or failed; of a run of before that was recorded, finished or unfinished."""
        return origin.state(self.last) or ("unfinished" if math.isnan(self.success("after").estimate) else "finished")

    def reached(self) -> str:
        """Its last phase or iteration that is in the metrics."""
        for name, limit in (("phase", "num_phases"), ("iteration", "iterations")):
            at = plot.last(self.rows, f"charts/{name}")
            if not math.isnan(at):
                return f"{name} {at:.0f}/{self.settings[limit]}" if limit in self.settings else f"{name} {at:.0f}"
        return ""

    def minutes(self) -> str:
        seconds = sum(value for name, value in (self.rows or [{}])[-1].items() if name.startswith("time/"))
        return f"{seconds / 60:.1f}" if seconds else ""


def find(paths: tuple[str, ...]) -> list[Path]:
    """The runs' folders: those named, and those in the folders named, the last begun or resumed last. Raises UsageError
    where there are none."""
    found = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise UsageError(f"{path}: no such folder")
        held = [path] if is_run(path) else sorted(filter(is_run, path.iterdir()), key=_begun)
        if not held:
            raise UsageError(f"{path}: no run in it (a run's folder has an args.json)")
        found += held
    return list(dict.fromkeys(found))


def is_run(path: Path) -> bool:
    return (path / "args.json").is_file()


def _begun(path: Path) -> float:
    return (path / "args.json").stat().st_mtime


def load(paths: list[Path]) -> list[Run]:
    """What the folders say; a file that is missing or torn says nothing."""
    runs = []
    for path, script in zip(paths, plot.scripts_of(tuple(map(str, paths)))):
        try:
            settings = json.loads((path / "args.json").read_text())
            settings = settings if isinstance(settings, dict) else {}
        except ValueError:
            settings = {}
        rows = read_metrics(path) if (path / "metrics.jsonl").is_file() else []
        runs.append(Run(path, {"script": script} | settings, rows, origin.read(path)))
    return runs


def differing(runs: list[Run]) -> list[dict[str, str]]:
    """Of each run its flags that not all runs which have them agree on."""
    silent = set(plot.NO_SETTING) - {"seed"}
    texts = [{name: str(value) for name, value in run.settings.items() if name not in silent} for run in runs]
    names = dict.fromkeys(name for text in texts for name in text)
    varying = [name for name in names if len({text[name] for text in texts if name in text}) > 1]
    return [{name: text[name] for name in varying if name in text} for text in texts]


def unusual(flags: list[dict[str, str]]) -> list[dict[str, str]]:
    """Of each run those of the flags that have not the value of most runs."""
    usual = {}
    for name in dict.fromkeys(name for own in flags for name in own):
        (value, count), *_ = Counter(own[name] for own in flags if name in own).most_common(1)
        usual[name] = value if 2 * count > sum(name in own for own in flags) else None
    return [{name: value for name, value in own.items() if value != usual[name]} for own in flags]


def listing(runs: list[Run]) -> str:
    """The table for a terminal."""
    lines = [["run", "script", "state", "at", *PARTS, "minutes"]]
    for run in runs:
        rates = [plot.show(run.success(part), 3) for part in PARTS]
        script = run.settings["script"].partition(" ")[0]
        lines.append([run.name, script, run.state(), run.reached(), *rates, run.minutes()])
    shown = [column for column in zip(*lines) if any(column[1:])]
    widths = [max(map(len, column)) for column in shown]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in zip(*shown)]
    for number, (run, own) in enumerate(zip(runs, unusual(differing(runs))), 1):
        flags = ", ".join(f"{name} {textwrap.shorten(value, 60)}" for name, value in own.items())
        notes = [run.last["reason"]] if run.last.get("reason") and run.state() == "failed" else []
        notes += [flags] if flags else []
        notes += [f"from step {record['step']} on: {_changes(record)}" for record in run.records if "changed" in record]
        table[number] += "".join("\n" + textwrap.indent(textwrap.fill(note, 112), "    ") for note in notes)
    return "\n".join(table)


def _changes(record: dict) -> str:
    """The flags that were other ones from a resume on."""
    return ", ".join(f"{name} {now} (before: {before})" for name, (before, now) in record["changed"].items())


def evaluations(run: Run) -> dict[str, dict[str, Trajectory]]:
    """Of each of KINDS the run's last evaluation: its trajectories by task."""
    found, titles = {}, {}
    for trajectory in TrajectoryStore(run.path / "trajectories.jsonl"):
        # the test tasks that tools/eval.py plays are held against those of a run
        kind = "test after" if trajectory.policy == "test" else trajectory.kind
        if titles.get(kind) != (title := (trajectory.policy, trajectory.phase)):
            found[kind], titles[kind] = {}, title
        if kind in KINDS:
            found[kind][trajectory.task.task_id] = trajectory
    return found


def last_evaluation(runs: list[Run]) -> tuple[str, list[dict[str, Trajectory]]]:
    """The kind of evaluation in which two runs at least played the same tasks, and each run's trajectories of it by
    task; "" where there is none."""
    played = [evaluations(run) for run in runs]
    for kind in KINDS:
        of_kind = [own.get(kind, {}) for own in played]
        if any(count > 1 for count in Counter(task for own in of_kind for task in own).values()):
            return kind, of_kind
    return "", [{} for _ in runs]


def compared_tasks(played: list[dict[str, Trajectory]], megabytes: float) -> tuple[list[dict], list[list[Trajectory]]]:
    """What the page shows of every task that two runs or more played, those with different outcomes first; and the
    trajectories of each run whose episodes are there, up to so many megabytes."""
    counts = Counter(task for own in played for task in own)
    outcomes = {task: [own[task].success if task in own else None for own in played] for task in counts}
    shared = [task for task, count in counts.items() if count > 1]
    shared.sort(key=lambda task: len({outcome for outcome in outcomes[task] if outcome is not None}) < 2)
    tasks, kept, size = [], [[] for _ in played], 0
    for name in shared:
        task = next(own[name].task for own in played if name in own)
        episodes = [view.episode_data(own[name]) if name in own else None for own in played]
        size += len(json.dumps(episodes))
        fits = size <= megabytes * 1e6
        for own, held in zip(played, kept):
            held += [own[name]] if fits and name in own else []
        about = dict(id=name, site=task.site, instruction=task.instruction, outcomes=outcomes[name])
        tasks.append(about | {"episodes": episodes if fits else None})
    return tasks, kept


def difference(played: list[dict[str, Trajectory]], number: int) -> str:
    """How a run's success differs from the first run's, over the tasks that both played."""
    shared = [task for task in played[number] if task in played[0]]
    if not number or not shared:
        return ""
    pairs = [(played[number][task].success, played[0][task].success) for task in shared]
    return f"{plot.show(paired_difference(*zip(*pairs)), 3)} on {len(shared)} tasks"


def facts(run: Run) -> list[str]:
    """Lines on where a run comes from and how far it is."""
    record, about = run.last, run.last.get("machine", {})
    commit = (record.get("commit") or "")[:10]
    changed = f" with {record['uncommitted']}" if record.get("uncommitted") else ""
    state = [run.state(), run.reached(), f"{run.minutes()} min" if run.minutes() else ""]
    where = [about.get("host", ""), about.get("cpu", ""), ", ".join(about.get("gpus", []))]
    code = [record.get("branch", ""), f"commit {commit}{changed}" if commit else ""]
    began = record.get("started", "")[:16].replace("T", " ")
    lines = [state, [began, *code], where, [record.get("reason", "")], [record.get("command", "")]]
    return [text for line in lines if (text := " · ".join(part for part in line if part))]


def curves(runs: list[Run], labels: list[str], x: str) -> list[list[str]]:
    """(Name, picture as a data URI) of tools/plot.py's plots, a curve for each run."""
    groups = [
        plot.Group(label, colour, [run.rows], [run.settings.get("seed", 0)], run.settings)
        for run, label, colour in zip(runs, labels, plot.COLOURS * len(runs))
        if run.rows
    ]
    pictures = []
    for name, figure in plot.figures(groups, x) if groups else ():
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=140)
        pictures.append([name, "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()])
    return pictures


def compare(runs: list[Run], args: Args) -> str:
    """The page, as HTML that needs nothing else. Raises UsageError for fewer than two runs, or too many."""
    letters = string.ascii_uppercase[: len(runs)]
    if not 2 <= len(runs) <= len(string.ascii_uppercase):
        raise UsageError(f"a page compares 2 to {len(string.ascii_uppercase)} runs, and these are {len(runs)}")
    kind, played = last_evaluation(runs)
    tasks, kept = compared_tasks(played, args.megabytes)
    images = {}
    for run, trajectories in zip(runs, kept):
        images |= view.pictures(trajectories[::-1], run.path, args.image_width, args.megabytes / len(runs))
    flags = differing(runs)
    names = dict.fromkeys(name for own in flags for name in own)
    results = [["", *PARTS, f"above {letters[0]}, paired, on {KINDS.get(kind, 'no tasks')}"]]
    for number, (letter, run) in enumerate(zip(letters, runs)):
        rates = [plot.show(run.success(part), 3) for part in PARTS]
        results.append([letter, *rates, difference(played, number)])
    results = list(zip(*(column for column in zip(*results) if any(column[1:]))))
    colours = plot.COLOURS * len(runs)
    data = dict(
        name=f"{len(runs)} runs compared",
        threshold=view.Args.judge_threshold,
        images=images,
        kind=KINDS.get(kind, ""),
        runs=[
            dict(letter=letter, colour=colour, name=run.name, facts=facts(run))
            for letter, run, colour in zip(letters, runs, colours)
        ],
        results=results,
        flags=[["", *letters], *([name, *(own.get(name, "") for own in flags)] for name in names)],
        figures=curves(runs, [f"{letter} {run.name}"[:60] for letter, run in zip(letters, runs)], args.x),
        tasks=tasks,
    )
    return view.fill("compare.html", "compare.js", data["name"], data)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    paths = find(args.runs)
    runs = load(paths)
    print(listing(runs))
    if args.page or (len(args.runs) > 1 and all(is_run(Path(path)) for path in args.runs)):
        out = Path(args.page or paths[0].parent / "compare.html")
        page = compare(runs, args)
        try:
            out.write_text(page)
        except OSError as error:
            raise UsageError(f"cannot write to {out}: {error.strerror}") from error
        print(f"\n{out} ({len(page) / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_main(main)
