"""What the comparisons over seeds (webrl.py, crps.py, grpo.py, distrl.py) have in common: a run of a script, an
evaluation of its policy elsewhere, a line of results, a table's cells, a figure of curves."""

import json
import math
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

from common.lm.run import read_metrics
from common.lm.stats import Interval, mean_ci, paired_difference
from common.replay import TrajectoryStore

ROOT = Path(__file__).resolve().parent.parent


def folder_of(runs_dir, name, flags):
    """Where a run of that name goes; other flags are other runs, and another fine-tuned start, too."""
    own = f"-{zlib.crc32(flags.encode()):08x}" if flags else ""
    return ROOT / runs_dir / re.sub(r"[/ ]", "-", f"{name}{own}")


def run(folder, script, flags, label):
    """One run of a script in a folder of its own, which is emptied before; the run's folder, or None where it failed
    (and said why)."""
    shutil.rmtree(folder, ignore_errors=True)
    if not succeeds([script, *flags, "--runs-dir", str(folder)], label):
        return None
    (path,) = folder.iterdir()
    return path


def go_on(begin, folder, script, flags, label):
    """What has been begun in the folder `begin`, gone on with in a copy of it, by other flags; as `run`."""
    shutil.rmtree(folder, ignore_errors=True)
    path = Path(shutil.copytree(begin, folder / begin.name))
    return path if succeeds([script, "--resume", str(path), *flags], label) else None


def succeeds(command, label):
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(f"{label}: {done.stderr.strip()[-400:]}", flush=True)
    return not done.returncode


def commit():
    """The commit of this checkout, in short."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()


def without_episodes(path):
    """Deletes a run's episodes, which are most of its folder."""
    shutil.rmtree(path / "screenshots", ignore_errors=True)
    for file in ("trajectories.jsonl", "episodes.html"):
        (path / file).unlink(missing_ok=True)


def evaluate(path, env_id, num_envs=16, num_tasks=0):
    """Success on an environment's test tasks (the first `num_tasks`, or all) of the policy in a run's folder, with all
    that the metrics say of it; None where the evaluation failed (and said why)."""
    folder = path.parent.parent / f"{path.parent.name}-elsewhere"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["tools/eval.py", "--env-id", env_id, "--model-id", str(path), "--num-envs", str(num_envs)]
    command += ["--num-tasks", str(num_tasks)]
    if not succeeds([*command, "--runs-dir", str(folder)], str(path)):
        return None
    (found,) = folder.iterdir()
    row = next(row for row in reversed(read_metrics(found)) if "test/success" in row)
    shutil.rmtree(folder)
    return {name.removeprefix("test/"): value for name, value in row.items() if name.startswith("test/")}


def record_of(path, curves, x, part="test_after/"):
    """What a run's folder says, fit for JSON: commit, steps, minutes, the test by the metrics that begin with `part`
    ("test_after/"), which tasks it had (a checksum), their outcomes (a 1 or 0 each, in the order of their ids) and the
    steps of these (of a success; 0), the curves of those names over `x`."""
    rows = read_metrics(path)
    last, tested = rows[-1], next(row for row in reversed(rows) if f"{part}success" in row)
    placed = [row for row in rows if x in row]
    policy = part.rstrip("/").replace("_", " ")  # its episodes have its name
    tested_on = [t for t in TrajectoryStore(path / "trajectories.jsonl") if t.policy == policy]
    tests = {t.task.task_id: len(t.steps) if t.success else 0 for t in tested_on}
    drawn = {name: [[r[x], round(r[name], 5)] for r in placed if r.get(name) is not None] for name in curves}
    return {
        "commit": commit(),
        "steps": last["global_step"],
        "restored": next((row[r] for row in reversed(rows) if (r := "charts/restored_steps") in row), 0),
        "minutes": round(sum(v for k, v in last.items() if k.startswith("time/")) / 60, 2),
        "time": {k[5:]: v for k, v in last.items() if k.startswith("time/")},
        "test": {k.removeprefix(part): v for k, v in tested.items() if k.startswith(part)},
        "tasks": zlib.crc32(" ".join(sorted(tests)).encode()),
        "outcomes": "".join(str(int(tests[task] > 0)) for task in sorted(tests)),
        "lengths": [tests[task] for task in sorted(tests)],
        "curves": {name: curve for name, curve in drawn.items() if curve},
    }


def updates(record):
    """How many updates of the actor a record's run made; 0 where that was not kept."""
    return int(record["curves"].get("charts/updates", [[0, 0]])[-1][1])


def append(file, record):
    """The record as a line of a file of results, and a line on the terminal."""
    file.parent.mkdir(exist_ok=True)
    with open(file, "a") as lines:
        lines.write(json.dumps(record) + "\n")
    done = f"{record['test']['success']:.3f} in {record['minutes']} minutes"
    print(f"{record['arm']} {record['seed']}: {done}", flush=True)


def results(file, order, wanted):
    """The records of a file of results that have all of `wanted`, {arm: {seed: record}} in the arms' `order`."""
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {}
    for arm in order:
        for r in records:
            if r["arm"] == arm and all(r.get(key) == value for key, value in wanted.items()):
                found.setdefault(arm, {})[r["seed"]] = r
    return found


def show(interval, seeds=3):
    """A cell: the interval of three seeds or more; of two it says nothing."""
    few = seeds < 3 or math.isnan(interval.low)
    return f"{interval.estimate:.3f}" if few else f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def spread(values):
    """A cell: the mean, and the lowest to the highest of some seeds' values where they differ."""
    low, high = min(values), max(values)
    return f"{sum(values) / len(values):.2f}" + (f" ({low:.2f} to {high:.2f})" if high > low else "")


def success(record):
    return record["test"]["success"]


SAME = 0.1  # differences of success below this are none


class Difference(NamedTuple):
    """How much more one arm has than another, paired at `seeds` seeds; `over`: what the interval is over."""

    interval: Interval
    seeds: int
    over: Literal["seeds", "tasks", "nothing"]

    def __str__(self):
        mark = ONLY_TASKS if self.over == "tasks" else ""
        return f"{self.interval.estimate:.3f}" if self.over == "nothing" else f"{self.interval}{mark}"

    @property
    def verdict(self):
        more = self.over != "nothing" and self.interval.low > 0
        less = self.over != "nothing" and self.interval.high < 0
        return self._said("holds" if more else "does not hold" if less else "cannot tell")

    def verdict_of_none(self, within=SAME):
        """Of the claim that there is no difference: one below `within` is none."""
        low, high = self.interval.low, self.interval.high
        if self.over == "nothing":
            return "cannot tell"
        same, other = max(-low, high) <= within, low > within or high < -within
        return self._said(f"holds, within {within:g}" if same else "does not hold" if other else "cannot tell")

    def _said(self, verdict):
        few = self.over == "tasks" and verdict != "cannot tell"
        return f"{verdict}, at {self.seeds} seed{'s' * (self.seeds > 1)}" if few else verdict


ONLY_TASKS = "°"  # explained under the tables: TASKS_NOTE
TASKS_NOTE = f"{ONLY_TASKS} over the test tasks of fewer than three seeds: it knows nothing of other seeds."


def difference(arms, arm, other, value):
    """The Difference of two arms' `value(record)` at the seeds that both have, None where there are none. With three
    seeds or more the interval is over seeds; with fewer, for success, over the test tasks of these."""
    runs = paired_runs(arms, arm, other, value)
    if not runs:
        return None
    found = over_tasks(runs) if value is success and len(runs) < 3 else None
    if found is not None:
        return Difference(found, len(runs), "tasks")
    over = "nothing" if len(runs) < 3 else "seeds"
    return Difference(paired_difference(*zip(*[[value(a), value(b)] for a, b in runs])), len(runs), over)


def paired_runs(arms, arm, other, value):
    """The records of two arms at the seeds at which both have a value, and went on from the same start as far as it is
    known (`start`, a checksum)."""
    if arm == other:
        return []
    both = [arms.get(name, {}) for name in (arm, other)]
    seeds = sorted(both[0].keys() & both[1].keys())
    runs = [tuple(records[seed] for records in both) for seed in seeds]
    runs = [pair for pair in runs if len({record.get("start") for record in pair} - {None}) < 2]
    return [pair for pair in runs if None not in map(value, pair)]


def over_tasks(runs):
    """The interval of the difference in success over all test tasks of pairs of runs; None where their outcomes were
    not kept, or are of different tasks."""
    if not all(a.get("outcomes") and b.get("outcomes") and a.get("tasks") == b.get("tasks") for a, b in runs):
        return None
    return paired_difference(*[[int(digit) for pair in runs for digit in pair[i]["outcomes"]] for i in (0, 1)])


def versus(arms, arm, other, value):
    """A cell: the difference, or nothing."""
    return str(difference(arms, arm, other, value) or "")


def claim_table(arms, claims):
    """A verdict for each of `claims` that both arms were run for, by the difference's 95 % interval; "" where there is
    none. {claim: (the arm with more, the other, value(record))}, and where the claim is that none has more, the largest
    difference that is none.
    Beside it the difference in success of these very runs, over their test tasks, from three seeds on."""
    heads = "claim of the paper", "difference", "verdict", "of these runs, over tasks"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for claim, (more, less, value, *same) in claims.items():
        if found := difference(arms, more, less, value):
            of_tasks = over_tasks(paired_runs(arms, more, less, value)) if value is success else None
            cells = claim, found, found.verdict_of_none(*same) if same else found.verdict
            cells += (of_tasks if of_tasks is not None and found.over == "seeds" else "",)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def page(tables):
    """The tables that have something in them, one below the other."""
    text = "\n\n".join(table for table in tables if table)
    return f"{text}\n\n{TASKS_NOTE}" if ONLY_TASKS in text else text


def smooth(curve, window):
    """{x: mean of the last `window` values}: single batches are noisy."""
    values = [y for _, y in curve]
    return {x: sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i, (x, _) in enumerate(curve)}


def plot_curves(path, arms, names, panels, x_label, window=5):
    """Four panels {metric: title}, a line for each arm of `names` {arm: label}: means over seeds, with intervals where
    there are more than three; all but evaluations are means of the last `window` points. A metric that no run has
    leaves its place empty. `arms`: {arm: {seed: record}}.
    """
    from tools.plot import COLOURS, GRID, on_grid, pyplot

    plt = pyplot()
    figure, grid = plt.subplots(2, 2, figsize=(10, 6.4))
    for axes, (name, title) in zip(grid.flat, panels.items(), strict=True):
        for place, (arm, label) in enumerate(names.items()):
            colour, dashes = COLOURS[place % len(COLOURS)], "-" if place < len(COLOURS) else "--"
            last_points = 1 if name.startswith("eval") else window
            curves = [smooth(record["curves"].get(name, []), last_points) for record in arms[arm].values()]
            last = max((x for curve in curves for x in curve), default=0)
            points = [last * i / GRID for i in range(GRID + 1)]
            runs = [on_grid(curve, points) for curve in curves if curve]
            known = [x for x in points if runs and all(x in run for run in runs)]  # the longest alone would jump
            shown = {x: mean_ci([run[x] for run in runs]) for x in known}
            dots = {"marker": "o", "ms": 5} if len(shown) == 1 else {}  # a line would not show
            axes.plot(list(shown), [p.estimate for p in shown.values()], color=colour, ls=dashes, label=label, **dots)
            if len(runs) > 3:  # of fewer it would be wider than the axis
                low, high = [p.low for p in shown.values()], [p.high for p in shown.values()]
                axes.fill_between(list(shown), low, high, color=colour, alpha=0.13, lw=0)
        if not any(len(line.get_xdata()) for line in axes.lines):  # no judge where the page pays
            axes.set_axis_off()
            continue
        axes.set_title(title)
        axes.set_xlabel(x_label)
        axes.xaxis.get_major_locator().set_params(integer=True)  # there is no phase 1.25
        axes.set_ylim(0, 1.05 * axes.dataLim.y1 if axes.dataLim.y1 > 0 else None)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=140)
    plt.close(figure)
