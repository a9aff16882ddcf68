"""How far plain fine-tuning goes, by the number of demonstrations and of passes over them: where all else starts.

    python benchmarks/sft.py --run RUN                      # on the demonstrations in RUN's folder
    python benchmarks/sft.py --run RUN --demos 200 --passes 8 16 --rates 5e-4 2e-3
    python benchmarks/sft.py --report --write-docs          # into docs/webrl.md and the other scripts' pages

RUN is a run of any script with as many demonstrations as asked for; the first N of them count (webrl.py draws them
evenly over templates), so that what is trained on fewer is trained on a part. Each cell fine-tunes the base model anew,
with a warm-up and a cosine of its own, and plays eval tasks: a line of benchmarks/results/sft.jsonl. What is there is
not run again.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import comparison, control
from benchmarks.docs import write_docs
from common.errors import UsageError
from common.lm.run import run_main
from common.lm.stats import mean_ci

RESULTS = ROOT / "benchmarks/results/sft.jsonl"


@dataclass
class Args:
    run: str = ""
    """a run: its demonstrations, base model, environment and seed"""
    demos: tuple[int, ...] = (20, 40, 80, 160, 320, 1000)
    """numbers of demonstrations"""
    passes: tuple[int, ...] = (4, 8, 16, 24, 48)
    """passes over them"""
    rates: tuple[float, ...] = (1e-3,)
    """peak learning rates"""
    eval_tasks: int = 240
    """eval tasks, from the beginning of the split"""
    processes: int = 2
    """cells side by side, one thread each"""
    runs_dir: str = "runs/sft"
    """where the cells' policies are put"""
    report: bool = False
    """print the table of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put it into the scripts' pages of the docs"""


def script_of(run):
    """Which script's run it is. Raises UsageError where it is none's."""
    found = [script for script in control.SCRIPTS if (run / script).is_file()]
    if not found or not (run / "args.json").is_file():
        raise UsageError("--run: the folder of a run whose demonstrations are to be used")
    return found[0]


def cell(run, count, passes, rate, options):
    """One cell's record."""
    script = script_of(run)
    module = control.module_of(script)
    args = replace(control.settings_of(module, run), sft_epochs=passes, sft_learning_rate=rate, cpu_threads=1)
    demos = control.demonstrations(run)[:count]
    if len(demos) < count:
        raise UsageError(f"{run} has {len(demos)} demonstrations, not {count}")
    parts, loss = control.fine_tuned(module, args, None, demos, run)
    name = f"{args.env_id.replace('/', '-')}-{args.seed}-{count}x{passes}-{rate:g}"
    policy = control.as_run(ROOT / options.runs_dir / name, run, script, parts)
    found = control.evaluation(policy, policy / "evaluation", args, "eval", options.eval_tasks, num_envs=8)
    won = control.played(found, "eval")
    record = {
        "script": script,
        "env_id": args.env_id,
        "seed": args.seed,
        "demos": count,
        "passes": passes,
        "rate": rate,
    }
    record |= {"commit": comparison.commit(), "loss": loss, "success": sum(won.values()) / len(won)}
    return record | {"outcomes": control.digits(won, sorted(won))}


def measured():
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def measure(options):
    """The cells that are not measured yet, dear ones last."""
    run = Path(options.run)
    script = script_of(run)
    args = control.settings_of(control.module_of(script), run)
    done = {(r["script"], r["env_id"], r["seed"], r["demos"], r["passes"], r["rate"]) for r in measured()}
    cells = sorted(product(options.demos, options.passes, options.rates), key=lambda cell: cell[0] * cell[1])
    cells = [cell for cell in cells if (script, args.env_id, args.seed, *cell) not in done]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for record in pool.map(cell, *zip(*[(run, *cell, options) for cell in cells], strict=True)) if cells else ():
            with open(RESULTS, "a") as lines:
                lines.write(json.dumps(record) + "\n")
            print(*(f"{k} {v}" for k, v in record.items() if k not in ("outcomes", "commit")), flush=True)


def table(script):
    """A row for each environment, number of demonstrations and rate, a column for each number of passes: means over
    seeds; "" where nothing was measured of the script."""
    records = [record for record in measured() if record["script"] == script]
    passes = sorted({r["passes"] for r in records})
    heads = ["environment", "demonstrations", "rate", *map(str, passes)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for env_id, count, rate in sorted({(r["env_id"], r["demos"], r["rate"]) for r in records}):
        cells = [env_id, str(count), f"{rate:g}"]
        for number in passes:
            row = env_id, count, rate, number
            own = [r["success"] for r in records if (r["env_id"], r["demos"], r["rate"], r["passes"]) == row]
            cells.append(f"{comparison.show(mean_ci(own), len(own))} ({len(own)})" if own else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if records else ""


def main(options):
    if not options.report:
        measure(options)
    for script in control.SCRIPTS:
        if text := table(script):
            print(f"{script}\n{text}\n")
            if options.write_docs:
                write_docs(ROOT / f"docs/{script.removesuffix('.py')}.md", "fine-tuning", text)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
