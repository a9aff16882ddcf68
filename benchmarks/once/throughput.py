"""How much faster asynchronous rollouts are, on slow pages; docs/grpo_async.md's tables and curves of throughput.

    python benchmarks/once/throughput.py --model runs/RUN        # the actor of a run's last checkpoint; about 2 hours

grpo_async.py runs twice for each distribution of page delays (lognormal, by its median and sigma), with --sync and
without, everything else alike: same workers, same training, no groups dropped. Trajectories an hour are those trained
on, from the first batch asked for to the last one published. One line a run in benchmarks/results/throughput.jsonl.

Beside each figure stands the best possible: the same episodes and updates, as long as they took, in an event-by-event
simulation that loses no time between them (`best_possible`).
"""

import heapq
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.docs import write_docs
from common.lm import checkpoint
from common.lm.run import read_metrics, run_main
from grpo_async import Pool

RESULTS = ROOT / "benchmarks/results/throughput.jsonl"


@dataclass
class Args:
    model: str = "assets/tiny-vl"
    """a run's folder (the actor of its last checkpoint) or a model"""
    medians: tuple[float, ...] = (0.1, 0.3, 1.0)
    """medians of the page delays, seconds"""
    sigmas: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5)
    """sigmas of their lognormals"""
    no_delay: bool = True
    """pages as fast as they are, too"""
    batches: int = 6
    """batches a run"""
    batch_size: int = 32
    """trajectories of a batch"""
    envs: int = 16
    """concurrent episodes"""
    max_steps: int = 12
    """longest episode"""
    seed: int = 1
    """draws tasks, answers and delays"""
    flags: str = ""
    """further flags of grpo_async.py, for both runs; kept in the results"""
    report: bool = False
    """print the tables of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put them into docs/grpo_async.md, with plots"""
    runs_dir: str = "runs/throughput"
    """where the runs' folders go"""


# ---------------------------------------------------------------------------------------------------------- the optimum
def best_possible(lengths, updates, slots, group_size, batch_size, eta):
    """Seconds that these episodes and updates take at least: a slot begins the next episode at the moment the last one
    ends, if admission lets it, and the learner takes a batch when there is one.

    lengths: seconds of the episodes, in the order in which they began (as many as are needed: they come again);
    updates: seconds of each batch's training and publishing. Drives the script's own `Pool`.
    """
    pool = Pool(lambda number: None, group_size, batch_size, eta, "any")
    now, ends, idle, begun, training = 0.0, [], slots, 0, None
    while pool.version < len(updates):
        while idle and (job := pool.next()) is not None:
            group, member = job
            length = lengths[begun % len(lengths)]
            heapq.heappush(ends, (now + length, begun, group.number, member, pool.version))
            idle, begun = idle - 1, begun + 1
        if training is None and pool.take() is not None:
            training = now + updates[pool.version]
        if training is not None and (not ends or training <= ends[0][0]):
            now, training = training, None
            pool.version += 1
            continue
        now, _, number, member, version = heapq.heappop(ends)
        idle += 1
        pool.put(number, member, SimpleNamespace(steps=[SimpleNamespace(version=version, hash="")], reward=0.0))
    return now


# ---------------------------------------------------------------------------------------------------------------- a run
def run(args, median, sigma, sync):
    """One run of grpo_async.py; its line of results, or None where it failed."""
    model = args.model
    if (Path(model) / "checkpoints").is_dir():
        model = str(checkpoint.latest(model).folder("actor"))
    folder = Path(args.runs_dir) / f"{median}-{sigma}-{'sync' if sync else 'async'}"
    flags = {
        "preset": "tiny",
        "model-id": model,
        "seed": args.seed,
        "runs-dir": folder,
        "page-delay": median,
        "page-delay-sigma": sigma,
        "envs-per-worker": args.envs,
        "batch-trajectories": args.batch_size,
        "iterations": args.batches,
        "max-steps": args.max_steps,
        "train-horizon": 0,
        "test-tasks": 0,
        "eval-every": 10**6,
        "save-every": 10**6,
    }
    command = [
        sys.executable,
        "grpo_async.py",
        "--num-demos",
        "0",
        "--no-dynamic-sampling",
        *(["--sync"] if sync else []),
    ]
    command += [word for name, value in flags.items() for word in (f"--{name}", str(value))] + args.flags.split()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(f"{folder}: {done.stderr.strip()[-400:]}", flush=True)
        return None
    path = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    rows = [json.loads(line) for line in (path / "timeline.jsonl").read_text().splitlines()]
    args_of_run = json.loads((path / "args.json").read_text())
    lags = [(row["staleness/mean"], row["staleness/max"]) for row in read_metrics(path) if "staleness/max" in row]
    eta = 0 if sync else args_of_run["staleness"]
    return {"median": median, "sigma": sigma, "sync": sync} | measure(rows, args, eta, args_of_run["group_size"], lags)


def measure(rows, args, eta, group_size, lags):
    """What a timeline says."""
    batches = [row for row in rows if "batch" in row]
    episodes = sorted((row for row in rows if "group" in row), key=lambda row: row["begun"])
    first, last = batches[0]["asked"], batches[-1]["published"]
    wall, trained = last - first, args.batch_size * len(batches)
    lengths = [row["ended"] - row["begun"] for row in episodes]
    updates = [row["published"] - row["taken"] for row in batches]
    playing = sum(max(0.0, min(row["ended"], last) - max(row["begun"], first)) for row in episodes)
    ended = sorted(row["ended"] - first for row in episodes)
    return {
        "seconds": round(wall, 2),
        "per_hour": round(3600 * trained / wall, 1),
        "best_per_hour": round(
            3600 * trained / best_possible(lengths, updates, args.envs, group_size, args.batch_size, eta), 1
        ),
        "slots_idle": round(1 - playing / (wall * args.envs), 4),
        "learner_idle": round(1 - sum(updates) / wall, 4),
        "waiting_for_model": round(sum(row["model"] for row in episodes) / sum(lengths), 4),
        "steps": round(sum(row["steps"] for row in episodes) / len(episodes), 2),
        "lag_mean": round(sum(mean for mean, _ in lags) / len(lags), 3),
        "lag_max": max(most for _, most in lags),
        "settings": settings_of(args)[:-1],
        "flags": args.flags,
        "ended": [round(x, 2) for x in ended],
        "published": [round(row["published"] - first, 2) for row in batches],
    }


# ----------------------------------------------------------------------------------------------------------- the report
def settings_of(args):
    return args.batches, args.batch_size, args.envs, args.max_steps, args.seed, args.flags


def measured(path):
    """{settings: {(median, sigma): {sync: line}}} of a file of results."""
    found = {}
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        cells = found.setdefault((*row["settings"], row.get("flags", "")), {})
        cells.setdefault((row["median"], row["sigma"]), {})[row["sync"]] = row
    return {settings: dict(sorted(cells.items())) for settings, cells in found.items()}


def report(found):
    """A table for each setting."""
    parts = []
    for (batches, size, envs, steps, _, flags), cells in found.items():
        also = f", {flags}" if flags else ""
        parts.append(
            f"Batches of {size} trajectories on {envs} slots ({batches} batches, at most {steps} steps{also}):"
        )
        parts.append(table(cells))
    return "\n\n".join(parts)


def later(row):
    """Trajectories an hour after the first batch, which is waited for in both ways: as in a long run."""
    return 3600 * row["settings"][1] * (len(row["published"]) - 1) / (row["published"][-1] - row["published"][0])


def table(found):
    heads = (
        "page delay, s",
        "sigma",
        "synchronous",
        "asynchronous",
        "times",
        "after the first batch",
        "minutes to 1,000",
    )
    heads += "of the best possible", "slots idle", "learner idle", "lag, mean and largest"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (median, sigma), both in found.items():
        if len(both) < 2:
            continue
        slow, fast = both[True], both[False]
        cells = [f"{median:g}", f"{sigma:g}" if median else "", f"{slow['per_hour']:,.0f}", f"{fast['per_hour']:,.0f}"]
        cells += [f"{fast['per_hour'] / slow['per_hour']:.2f}", f"{later(fast) / later(slow):.2f}"]
        cells += [", ".join(f"{60_000 / row['per_hour']:.1f}" for row in (slow, fast))]
        cells += [" and ".join(f"{row['per_hour'] / row['best_per_hour']:.2f}" for row in (slow, fast))]
        for name in ("slots_idle", "learner_idle"):
            cells.append(f"{slow[name]:.0%}, {fast[name]:.0%}")
        cells.append(f"{fast['lag_mean']:.2f}, {fast['lag_max']}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plots(found, path):
    """Instantaneous and cumulative trajectories of the slowest pages."""
    from tools.plot import COLOURS, pyplot

    plt = pyplot()
    median = max(median for median, _ in found)
    shown = [(sigma, both) for (own, sigma), both in found.items() if own == median and len(both) == 2]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for colour, (sigma, both) in zip(COLOURS, shown):
        for sync, row in both.items():
            style, label = ("--", "synchronous") if sync else ("-", "asynchronous")
            ended, window = row["ended"], 30.0
            times = [window / 2 + 2.0 * n for n in range(int((row["seconds"] - window) / 2))]
            rates = [3600 / window * sum(abs(x - t) <= window / 2 for x in ended) for t in times]
            left.plot(times, rates, style, color=colour, lw=1.6, label=f"{label}, sigma {sigma:g}")
            inside = [x for x in ended if 0 <= x <= row["seconds"]]
            right.plot(inside, range(1, len(inside) + 1), style, color=colour, lw=1.6)
    for axes, title in ((left, "trajectories an hour (30 s window)"), (right, "trajectories ended")):
        axes.set_title(title)
        axes.set_xlabel(f"seconds; page delay of median {median:g} s")
        axes.set_ylim(0)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def main(args):
    if not args.report:
        cells = [(0.0, 1.0)] * args.no_delay + [(m, s) for m in args.medians for s in args.sigmas]
        for median, sigma in cells:
            for sync in (True, False):
                if sync in measured(RESULTS).get(settings_of(args), {}).get((median, sigma), {}):
                    continue
                row = run(args, median, sigma, sync)
                if row is not None:
                    RESULTS.parent.mkdir(exist_ok=True)
                    with open(RESULTS, "a") as file:
                        file.write(json.dumps(row) + "\n")
                    print({name: row[name] for name in ("median", "sigma", "sync", "per_hour", "best_per_hour")})
    found = measured(RESULTS)
    print(report(found))
    if args.write_docs:
        plots(found[settings_of(args)], ROOT / "docs/images/throughput.png")
        write_docs(ROOT / "docs/grpo_async.md", "throughput", f"{report(found)}\n\n![curves](images/throughput.png)")


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
