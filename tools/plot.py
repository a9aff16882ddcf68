"""Plots of one run or several: success by phase and by site, the judge, groups and replay, losses, and where the time
went.

    python tools/plot.py runs/RUN                        # PNG files in runs/RUN/plots
    python tools/plot.py runs/A runs/B runs/C            # in plots/, with a table of their results in plots/results.md
    python tools/plot.py runs/A runs/B --out comparison --metrics losses/policy_loss rollout/length

Runs of the same script (as kept in their folders) whose arguments differ in the seed alone are one curve: their mean
and its 95 % interval (Student's t). A single run's success has the interval over its tasks instead (Wilson).
"""

import json
import math
import sys
import zlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import UsageError
from common.lm.run import read_metrics, run_main
from common.lm.stats import Interval, mean_ci, paired_difference

NO_SETTING = ("seed", "track", "wandb_project_name", "wandb_entity", "runs_dir", "port", "resume", "screenshots")
COLOURS = ("#2f6db3", "#c8553d", "#3a8a5c", "#8a5fb0", "#b8862b", "#4aa3a8", "#7d7d7d")
PARTS = {"pages": "#2f6db3", "generation": "#3a8a5c", "training": "#c8553d", "control": "#8a5fb0", "other": "#b9b4ab"}


@dataclass
class Args:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """folders of runs"""
    out: str = ""
    """folder to write to; empty: plots/ in the run's folder, for several runs plots/ here"""
    x: Literal["phase", "steps"] = "phase"
    """horizontal axis: phases (iterations), or environment steps of training"""
    metrics: tuple[str, ...] = ()
    """names of metrics to draw besides, in metrics.png"""


@dataclass
class Group:
    """Runs that differ in the seed alone: `rows` is each run's list of metrics, `seeds` their seeds, `settings` their
    arguments but for those of NO_SETTING, and the script."""

    label: str
    colour: str
    rows: list[list[dict]]
    seeds: list[int]
    settings: dict


def scripts_of(runs: tuple[str, ...]) -> list[str]:
    """The script that made each run, by the name it has in the run's folder; where runs were made by different files
    of one name, with a checksum. "" where there is none."""
    kept = [next(iter(sorted(Path(run).glob("*.py"))), None) for run in runs]
    sums = [zlib.crc32(path.read_bytes()) if path else 0 for path in kept]
    found = []
    for path, checksum in zip(kept, sums):
        same = {other_sum for other, other_sum in zip(kept, sums) if path and other and other.name == path.name}
        found.append("" if path is None else path.name if len(same) == 1 else f"{path.name} {checksum:08x}")
    return found


def load(runs: tuple[str, ...]) -> list[Group]:
    """The runs, grouped by their script and arguments. A group's label is its --exp-name where that tells the groups
    apart, else what it differs in from others."""
    settings, seeds = [], {}
    for run, script in zip(runs, scripts_of(runs)):
        file = Path(run) / "args.json"
        known = json.loads(file.read_text()) if file.exists() else {"run": run}
        seeds[run] = known.get("seed", 0)
        named = known.get("exp_name") or Path(script or "run").stem  # of a copy: its own
        own = {"script": script} | {name: value for name, value in known.items() if name not in NO_SETTING}
        settings.append(own | {"exp_name": named})
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    varying = [name for name in names if len({repr(setting.get(name)) for setting in settings}) > 1]
    named = [str(setting["exp_name"]) for setting in settings]
    kinds = {(name, *(repr(setting.get(key)) for key in varying)) for name, setting in zip(named, settings)}
    found: dict[str, list[str]] = {}
    for run, setting, name in zip(runs, settings, named):
        if len(kinds) > len(set(named)):
            name = ", ".join(f"{key.replace('_', ' ')} {setting.get(key)}" for key in varying)
        found.setdefault(name, []).append(run)
    groups = []
    for (label, members), colour in zip(found.items(), COLOURS * len(found)):
        several = f" ({len(members)} seeds)" if len(members) > 1 else ""
        metrics = [read_metrics(run) for run in members]
        own = settings[runs.index(members[0])]
        groups.append(Group(label + several, colour, metrics, [seeds[run] for run in members], own))
    return groups


def differences(groups: list[Group]) -> str:
    """Markdown: every argument in which the groups differ, a column each; empty where there is one group."""
    names = list(dict.fromkeys(name for group in groups for name in group.settings))
    names = [name for name in names if len({repr(group.settings.get(name)) for group in groups}) > 1]
    lines = [["what differs", *(group.label for group in groups)]]
    lines += [[name.replace("_", " "), *(str(group.settings.get(name, "")) for group in groups)] for name in names]
    return markdown(lines) if len(groups) > 1 else ""


def values(rows: list[dict], name: str, x: str) -> dict[float, float]:
    """A metric of one run by phase (iteration) or step; where a phase has several rows the last one counts."""
    axes = ("charts/phase", "charts/iteration") if x == "phase" else ("global_step",)
    points = {}
    for row in rows:
        at = next((row[axis] for axis in axes if row.get(axis) is not None), None)
        if at is not None and isinstance(row.get(name), int | float) and math.isfinite(row[name]):
            points[at] = row[name]
    return dict(sorted(points.items()))


def on_grid(points: dict[float, float], grid: list[float]) -> dict[float, float]:
    """A curve at the grid's points that lie within it, by linear interpolation."""
    import numpy as np

    inside = [at for at in grid if points and min(points) <= at <= max(points)]
    return dict(zip(inside, np.interp(inside, list(points), list(points.values())).tolist()))


GRID = 40  # points of a curve over several runs whose batches end at different steps


def curve(group: Group, name: str, x: str) -> dict[float, Interval]:
    """Mean and interval over the group's runs at every point; over tasks where there is one run and it logged that."""
    runs = [values(rows, name, x) for rows in group.rows]
    if x == "steps" and set().union(*runs) != set(max(runs, key=len)):
        last_step = max(at for run in runs for at in [0, *run])
        runs = [on_grid(run, [last_step * i / GRID for i in range(GRID + 1)]) for run in runs]
    points = {at: mean_ci([run[at] for run in runs if at in run]) for at in sorted(set().union(*runs))}
    prefix = name.rpartition("/")[0]
    if len(runs) == 1 and name.endswith("/success"):
        low, high = (values(group.rows[0], f"{prefix}/{end}", x) for end in ("low", "high"))
        return {at: Interval(p.estimate, low.get(at, math.nan), high.get(at, math.nan)) for at, p in points.items()}
    return points


def metric_names(groups: list[Group], prefix: str) -> list[str]:
    """Names that begin with `prefix`, in the order in which they were first logged."""
    return list(
        dict.fromkeys(n for g in groups for rows in g.rows for row in rows for n in row if n.startswith(prefix))
    )


def draw(axes, group: Group, name: str, x: str, label: str, colour: str, **style) -> bool:
    """One curve with its band; False where the group has no such metric."""
    points = curve(group, name, x)
    if not points:
        return False
    at, middle = list(points), [p.estimate for p in points.values()]
    axes.plot(at, middle, label=label, color=colour, marker="o" if len(at) < 30 else "", markersize=3.5, **style)
    low, high = ([getattr(p, end) for p in points.values()] for end in ("low", "high"))
    axes.fill_between(at, low, high, color=colour, alpha=0.14, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)  # there is no phase 1.5
    return True


def axis_label(x: str) -> str:
    return "phase or iteration" if x == "phase" else "environment steps"


def success(groups: list[Group], x: str, plt):
    """Evaluation success; the test split with intervals at the ends: the start and after training as diamonds, the
    control (the start, fine-tuned on as long) as a square."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="none")
    marks = {"test_before": ("D", "the start"), "test_control": ("s", "control"), "test_after": ("D", "reinforcement")}
    drawn, shown = False, set()
    for group in groups:
        drawn |= draw(axes, group, "eval/success", x, group.label, group.colour)
        for part, (mark, name) in marks.items():
            for at, p in curve(group, f"{part}/success", x).items():
                drawn = True
                shown.add(part)
                error = [[max(0.0, p.estimate - p.low)], [max(0.0, p.high - p.estimate)]]
                beside = at * (0.96 if part == "test_control" else 1)  # or it hides what it is held against
                axes.errorbar(
                    [beside], [p.estimate], yerr=None if math.isnan(p.low) else error, fmt=mark, color=group.colour,
                    markersize=6, markerfacecolor="white", capsize=3,
                )  # fmt: skip
                if len(groups) == 1:
                    above = part == "test_after" or not p.low > 0.08  # below it would hide the axis
                    end = p.estimate if math.isnan(p.low) else p.high if above else p.low
                    up = 24 if part == "test_control" else 10  # of two that stand above, side by side
                    axes.annotate(
                        f"{name} {p.estimate:.3f}", (beside, end), xytext=(0, up if above else -10),
                        textcoords="offset points", ha="right" if at else "left", va="center", fontsize=9,
                    )  # fmt: skip
    said = "diamonds: test tasks; squares: the control" if "test_control" in shown else "diamonds: test tasks"
    axes.set(xlabel=axis_label(x), ylabel="success", ylim=(0, 1.02), title=f"Success on eval tasks ({said})")
    return figure if drawn else None


def sites(groups: list[Group], x: str, plt):
    """Evaluation success of each site, one panel a site."""
    names = [name for prefix in ("eval/site_", "eval/requirements_") for name in metric_names(groups, prefix)]
    return panels(groups, names, x, plt, "Success on eval tasks by site and by requirements", (0, 1.02))


def judge(groups: list[Group], x: str, plt):
    """How the outcome reward model's verdicts compare with the true ones on each phase's rollouts."""
    wanted = ("accuracy", "balanced_accuracy", "precision", "recall", "auc", "base_rate")
    names = [name for name in metric_names(groups, "orm/") if name.rpartition("/")[2] in wanted]
    return panels(groups, names, x, plt, "The judge against the true verdict, fresh rollouts", (0, 1.02))


def rollout_groups(groups: list[Group], x: str, plt):
    """What the groups of rollouts were like, and the replay's suffixes."""
    names = metric_names(groups, "groups/")
    wanted = ("success", "suffix_mean", "suffix_share", "buffer_size", "mastered")
    names += [name for name in metric_names(groups, "replay/") if names and name.partition("/")[2] in wanted]
    rows = [row for group in groups for run in group.rows for row in run]
    names = [name for name in names if any(row.get(name) for row in rows)]  # nothing to see in a line of zeros
    return panels(groups, names, x, plt, "Groups of rollouts, and replay", None)


def losses(groups: list[Group], x: str, plt):
    """Everything under losses/."""
    return panels(groups, metric_names(groups, "losses/"), x, plt, "Losses", None)


def asked(groups: list[Group], names: tuple[str, ...], x: str, plt):
    """The metrics that --metrics names. Raises UsageError for a name that no run has logged."""
    known = metric_names(groups, "")
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 3, 0.5)
            raise UsageError(f"--metrics {name}: no run has it" + (f"; {' or '.join(close)}?" if close else ""))
    return panels(groups, list(names), x, plt, "Metrics", None)


def panels(groups: list[Group], names: list[str], x: str, plt, title: str, limits):
    """One small panel a metric, every group in each."""
    lengths = {name: max(len(curve(group, name, x)) for group in groups) for name in names}
    # a figure logged once is no curve, unless the run has no more than that
    names = [name for name in names if lengths[name] > (1 if max(lengths.values()) > 1 else 0)]
    if not names:
        return None
    columns, kinds = min(3, len(names)), {name.partition("/")[0] for name in names}
    height = math.ceil(len(names) / columns)
    size = 3.6 * columns, 2.6 * height + HEAD
    figure, grid = plt.subplots(height, columns, figsize=size, squeeze=False, layout="none")
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes, name in zip(grid.flat, names):
        for group in groups:
            draw(axes, group, name, x, group.label, group.colour)
        title_of = name.partition("/")[2] if len(kinds) == 1 else name.replace("/", ": ")
        axes.set_title(title_of.replace("_", " "), fontsize=9.5)
        axes.set_xlabel(axis_label(x), fontsize=8.5)
        if limits:
            axes.set_ylim(*limits)
    figure.suptitle(title, x=0.01, y=1 - 0.07 / size[1], ha="left", va="top", fontweight="bold", fontsize=11)
    return figure


# Inches around a panel's axes: tick labels, half of a tick label, ticks and their label, title; a figure's own title;
# a line of its legend.
LEFT, RIGHT, BELOW, ABOVE, HEAD, LINE = 0.68, 0.12, 0.5, 0.28, 0.3, 0.24


def place(figure, legend_lines: int) -> None:
    """Panels at set distances, above a legend of so many lines. A layout engine would draw everything twice more."""
    (width, height), grid = figure.get_size_inches(), figure.axes[0].get_gridspec()
    head, foot = HEAD if figure.get_suptitle() else 0.0, LINE * legend_lines
    across, down = width / grid.ncols - LEFT - RIGHT, (height - head - foot) / grid.nrows - ABOVE - BELOW
    figure.subplots_adjust(
        left=LEFT / width, right=1 - RIGHT / width, wspace=(LEFT + RIGHT) / across,
        bottom=(BELOW + foot) / height, top=1 - (ABOVE + head) / height, hspace=(ABOVE + BELOW) / down,
    )  # fmt: skip


def time_breakdown(groups: list[Group], x: str, plt):
    """Minutes of wall time by part, one bar a group (mean over its runs)."""
    names = [name for name in metric_names(groups, "time/") if any(name in rows[-1] for g in groups for rows in g.rows)]
    if not names:
        return None
    names.sort(key=lambda name: [*PARTS, name[5:]].index(name[5:]))
    figure, axes = plt.subplots(figsize=(7, 1.3 + 0.5 * len(groups)))
    for row, group in enumerate(groups):
        seconds = [sum(rows[-1].get(name, 0.0) for rows in group.rows) / len(group.rows) for name in names]
        left = 0.0
        for number, (name, value) in enumerate(zip(names, seconds)):
            colour = PARTS.get(name[5:], COLOURS[-1 - number % len(COLOURS)])
            axes.barh(row, value / 60, left=left / 60, color=colour, height=0.62, label="" if row else name[5:])
            if value > 0.07 * sum(seconds):
                share = f"{100 * value / sum(seconds):.0f} %"
                axes.text((left + value / 2) / 60, row, share, ha="center", va="center", color="white", fontsize=9)
            left += value
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.invert_yaxis()
    axes.grid(False)
    axes.set(xlabel="minutes", title="Where the time goes")
    return figure


def last(rows: list[dict], name: str) -> float:
    """A run's last value of a metric that is a number; NaN where it has none."""
    values = [row[name] for row in rows if row.get(name) is not None and not math.isnan(row[name])]
    return values[-1] if values else math.nan


# Columns of the table of results: title, a run's value, digits.
COLUMNS = (
    ("test before", lambda rows: last(rows, "test_before/success"), 3),
    ("control", lambda rows: last(rows, "test_control/success"), 3),
    ("test after", lambda rows: last(rows, "test_after/success"), 3),
    ("above the control", lambda rows: last(rows, "test_after/success") - last(rows, "test_control/success"), 3),
    ("gain", lambda rows: last(rows, "test_after/success") - last(rows, "test_before/success"), 3),
    ("steps", lambda rows: last(rows, "global_step"), 0),
    ("restored steps", lambda rows: last(rows, "charts/restored_steps"), 0),
    ("minutes", lambda rows: sum(v for k, v in rows[-1].items() if k.startswith("time/")) / 60, 1),
)


# What the judge is measured on: the first and the last phase's fresh rollouts, the final policy's test episodes.
STAGES = (
    ("first phase", lambda rows, name: last(rows[::-1], f"orm/{name}")),
    ("last phase", lambda rows, name: last(rows, f"orm/{name}")),
    ("test, after", lambda rows, name: last(rows, f"orm_test/{name}")),
)
JUDGED = ("precision", "balanced_accuracy", "auc", "accuracy", "base_rate")


def show(interval: Interval, digits: int) -> str:
    """An interval for a table; nothing where there is no estimate."""
    if math.isnan(interval.estimate):
        return ""
    known = not math.isnan(interval.low) and interval.low < interval.high  # of equal values nothing is known
    spread = f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]" if known else ""
    return f"{interval.estimate:.{digits}f}{spread}"


def markdown(lines: list[list[str]]) -> str:
    """A table whose first line is the head."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def judge_table(groups: list[Group]) -> str:
    """Markdown: the judge against the true verdict, as means over a group's runs; empty where nobody was judged."""
    lines = [["judge", "on", *(name.replace("_", " ") for name in JUDGED)]]
    for group in groups:
        for stage, value in STAGES:
            figures = [[value(rows, name) for rows in group.rows] for name in JUDGED]
            means = [mean_ci([f for f in runs if not math.isnan(f)]).estimate for runs in figures]
            if not all(map(math.isnan, means)):
                lines.append([group.label, stage, *(show(Interval(m, math.nan, math.nan), 3) for m in means)])
    return markdown(lines) if len(lines) > 1 else ""


def site_table(groups: list[Group]) -> str:
    """Markdown: success on each site's test tasks before and after training; empty where there is only one site."""
    names = metric_names(groups, "test_after/site_")
    lines = [["by site", "test", *(name.removeprefix("test_after/site_") for name in names)]]
    for group in groups:
        for when in ("before", "after"):
            figures = [[last(rows, name.replace("after", when, 1)) for rows in group.rows] for name in names]
            means = [mean_ci([figure for figure in runs if not math.isnan(figure)]) for runs in figures]
            if not all(math.isnan(mean.estimate) for mean in means):
                lines.append([group.label, when, *(show(mean, 2) for mean in means)])
    return markdown(lines) if len(names) > 1 else ""


def table(groups: list[Group]) -> str:
    """Markdown: each group's figures as the mean over its runs with the 95 % interval, and how its success after
    training differs from the first group's at the same seeds."""

    def after(group: Group) -> dict[int, float]:
        return {seed: last(rows, "test_after/success") for seed, rows in zip(group.seeds, group.rows)}

    columns = [c for c in COLUMNS if any(not math.isnan(c[1](rows)) for g in groups for rows in g.rows)]
    titles = ["", *(title for title, _, _ in columns), "against the first"]
    lines = [titles]
    for group in groups:
        cells = [show(mean_ci([value(rows) for rows in group.rows]), digits) for _, value, digits in columns]
        here, first = after(group), after(groups[0])
        shared = sorted(here.keys() & first.keys())
        versus = paired_difference([here[s] for s in shared], [first[s] for s in shared])
        lines.append([group.label, *cells, "" if group is groups[0] else show(versus, 3)])
    return markdown(lines)


def pyplot():
    """matplotlib's, for files alone, in the look of all plots here."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({
        "figure.constrained_layout.use": True, "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "grid.color": "#e7e3dc", "axes.axisbelow": True, "axes.edgecolor": "#8b857c",
        "axes.titlelocation": "left", "axes.titlesize": 11, "axes.titleweight": "bold", "lines.linewidth": 1.8,
        "font.size": 9.5, "legend.frameon": False, "xtick.color": "#5c5750", "ytick.color": "#5c5750",
        "ytick.labelsize": 9,
    })  # fmt: skip
    return plt


def figures(groups: list[Group], x: str, metrics: tuple[str, ...] = ()):
    """(Name, figure) of every plot that there are metrics for; a figure is closed when the next one is asked for."""
    plt = pyplot()
    plots = {
        "success": success,
        "sites": sites,
        "judge": judge,
        "groups": rollout_groups,
        "losses": losses,
        "time": time_breakdown,
        "metrics": lambda groups, x, plt: asked(groups, metrics, x, plt) if metrics else None,
    }
    for name, plot in plots.items():
        figure = plot(groups, x, plt)
        if figure is None:  # no such metrics
            continue
        handles, labels = figure.axes[0].get_legend_handles_labels()
        columns = min(4, len(labels), int(figure.get_figwidth() / 1.75))
        if name == "time":  # as wide as its labels are
            figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        elif len(groups) > 1 and labels:
            figure.legend(handles, labels, loc="lower center", ncols=columns)
            place(figure, math.ceil(len(labels) / columns))
        else:
            place(figure, 0)
        yield name, figure
        plt.close(figure)


def write(args: Args) -> list[Path]:
    """Draws the runs' plots and gives the files. Raises UsageError where `args.out` cannot be written."""
    groups = load(args.runs)
    out = Path(args.out or (Path(args.runs[0]) / "plots" if len(args.runs) == 1 else "plots"))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}") from error
    files = []
    for name, figure in figures(groups, args.x, args.metrics):
        figure.savefig(out / f"{name}.png", dpi=150)
        files.append(out / f"{name}.png")
    (out / "results.md").write_text(
        "\n".join(
            part for part in (table(groups), differences(groups), site_table(groups), judge_table(groups)) if part
        )
    )
    return [*files, out / "results.md"]


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    if not args.runs:
        raise UsageError("give at least one run: python tools/plot.py runs/RUN")
    *plots, results = write(args)
    print("\n".join(map(str, plots)), results, "", results.read_text(), sep="\n")


if __name__ == "__main__":
    run_main(main)
