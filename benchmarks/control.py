"""What plain fine-tuning would have made of a run's start: the control without which a gain of reinforcement is none.

    python benchmarks/control.py webrl.py                   # of the newest finished run of webrl.py under runs/
    python benchmarks/control.py crps.py runs/A runs/B      # of these; means over them
    python benchmarks/control.py webrl.py --report --write-docs

The control begins with the run's fine-tuned start, goes on with the same fine-tuning on the same demonstrations (rate,
batch, warm-up and cosine anew) for as many updates of the actor as the run made, and plays the same test tasks. So does
the start once more: its outcomes must be those that the run itself had, or the difference says nothing.

Each run is a line of benchmarks/results/control.jsonl; the control's policy stays in the run's folder, in control/.
"""

import importlib
import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import comparison
from benchmarks.docs import write_docs
from common.errors import UsageError
from common.lm import checkpoint, fsdp, learn, llm
from common.lm.run import read_metrics, run_main
from common.lm.session import load_actor
from common.lm.stats import mean_ci, paired_difference, wilson
from common.replay import TrajectoryStore, steps_of

RESULTS = ROOT / "benchmarks/results/control.jsonl"
SCRIPTS = "webrl.py", "crps.py", "grpo_async.py", "distrl.py", "digirl.py"


@dataclass
class Args:
    script: tyro.conf.Positional[str]
    """which script's runs"""
    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """the runs' folders; none: the newest finished one under runs_dir"""
    runs_dir: str = "runs"
    """where to look for it"""
    learning_rate: float = 0.0
    """the control's rate; 0: the fine-tuning's"""
    cpu_threads: int = 2
    """threads of the control's training"""
    num_envs: int = 16
    """episodes played at once"""
    setting: str = ""
    """a name for these runs in the results; empty: the environment's"""
    report: bool = False
    """print the table of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put it into the script's page of the docs"""


def module_of(script):
    """The script as a module. Raises UsageError for a name that is none of SCRIPTS."""
    if script not in SCRIPTS:
        raise UsageError(f"{script}: one of {', '.join(SCRIPTS)}")
    return importlib.import_module(script.removesuffix(".py"))


def settings_of(module, run):
    """The run's arguments as the script's Args."""
    saved = json.loads((run / "args.json").read_text())
    return module.Args(**{name: value for name, value in saved.items() if name in module.Args.__dataclass_fields__})


def finished_runs(script, runs_dir):
    """The folders of the script's finished runs that kept their start, the newest last."""
    found = [path.parent for path in (ROOT / runs_dir).glob("*/start") if (path.parent / script).is_file()]
    ended = [run for run in found if any("test_after/success" in row for row in read_metrics(run))]
    return sorted(ended, key=lambda run: (run / "metrics.jsonl").stat().st_mtime)


def demonstrations(run):
    """What the run's start was fine-tuned on. Raises UsageError where there was nothing."""
    demos = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.kind == "demo"]
    if not demos:
        raise UsageError(f"{run} has no demonstrations: its start was not fine-tuned, and there is no control")
    return demos


def updates_of(run):
    """How many updates the run's actor got. Raises UsageError where it got none."""
    updates = max((row.get("charts/updates", 0) for row in read_metrics(run)), default=0)
    if not updates:
        raise UsageError(f"{run} made no update: there is nothing to compare")
    return int(updates)


def fine_tuned(module, args, weights, demos, folder, updates=0):
    """Fine-tune a model as the script does: from `weights` (a folder of a run's actor; None: the base model) on `demos`
    (screenshots in the run's `folder`), for `updates` updates or else the script's passes. Returns (the actor and its
    tokenizer or processor, the loss)."""
    load = getattr(module, "load_learner", None) or (lambda args: module.Learner(load_actor(args), random.Random(0)))
    learner = load(args)
    actor = learner.actor
    if weights is not None:
        llm.load_trained(actor.model, weights)
    learn.use_threads(args.cpu_threads or 1)
    if hasattr(learner, "folder"):  # distrl.py reads screenshots from there
        learner.folder = folder
    if hasattr(learner, "pictures"):  # grpo_async.py has them by name
        names = {step.screenshot for demo in demos for step in demo.steps}
        learner.pictures = {name: (folder / name).read_bytes() for name in names}
    loss = actor.fine_tune(steps_of(demos), args, updates)
    return [actor.model, actor.reader], loss


def as_run(path, run, script, parts):
    """A policy as a run's folder, which tools/eval.py plays as it plays the run: with its arguments and its prompt."""
    shutil.rmtree(path, ignore_errors=True)
    meta = {"global_step": 0, "metrics_size": 0, "trajectories_size": 0, "seconds": {}, "state": {}}
    checkpoint.save(path, 0, {"actor": [fsdp.to_save(parts[0]), *parts[1:]]}, {}, meta)
    for name in ("args.json", script):
        shutil.copy(run / name, path / name)
    return path


def evaluation(policy, folder, args, split="test", num_tasks=0, num_envs=16, tasks=()):
    """Plays a policy (a run's folder, or an actor in it) on the split's tasks of these ids, in this order, or else on
    its first ones, at the seed and the temperature that the scripts evaluate with. Returns the evaluation's folder, the
    only one in `folder`, which is emptied before. Raises UsageError where it fails."""
    temperature = getattr(args, "eval_temperature", 0.0)
    command = ["--model-id", str(Path(policy).resolve()), "--env-id", args.env_id, "--split", split, "--seed", "1234"]
    command += ["--num-tasks", str(num_tasks), "--num-envs", str(num_envs), "--temperature", str(temperature)]
    shutil.rmtree(folder, ignore_errors=True)
    if tasks:
        named = Path(f"{folder}.tasks").resolve()
        named.write_text("\n".join(tasks) + "\n")
        command += ["--tasks", str(named)]
    command = [sys.executable, "tools/eval.py", *command, "--runs-dir", str(Path(folder).resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if tasks:
        named.unlink()
    if done.returncode:
        raise UsageError(f"{policy} could not be evaluated: {done.stderr.strip()[-400:]}")
    (found,) = Path(folder).iterdir()
    return found


def played(run, policy):
    """{task_id: success} of a run's or an evaluation's episodes of that name, in the order they were played in."""
    return {t.task.task_id: t.success for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == policy}


def trained_on(script, run, updates, folder, learning_rate=0.0, cpu_threads=2):
    """The control of a run: its start, fine-tuned on its demonstrations for `updates` updates, as a run's folder.
    Returns (this `folder`, number of demonstrations, rate, loss). Raises UsageError where there is no start."""
    module = module_of(script)
    if not (run / "start").is_dir() or not (run / script).is_file():
        raise UsageError(f"{run} is no run of {script} that kept its start")
    args, demos = settings_of(module, run), demonstrations(run)
    args = replace(args, sft_learning_rate=learning_rate or args.sft_learning_rate, cpu_threads=cpu_threads)
    parts, loss = fine_tuned(module, args, run / "start", demos, run, updates)
    return as_run(folder, run, script, parts), len(demos), args.sft_learning_rate, loss


def as_arm(script, begin, method, folder):
    """The control as an arm of a comparison: the start in the run's folder `begin`, fine-tuned for as many updates as
    the record `method` of another arm has (None: it was not measured), in `folder`. Returns the folder of its
    evaluation on the test tasks, of which comparison.record_of makes a record (part "test/"), or None where there is
    no control (and says why)."""
    updates = comparison.updates(method) if method else 0
    try:
        if not updates:
            raise UsageError("the arm that it is of was not measured, or its number of updates was not kept")
        path, *_ = trained_on(script, begin, updates, folder)
        args = settings_of(module_of(script), begin)
        tasks = list(played(begin, "test before"))
        return evaluation(path, Path(f"{folder}-evaluation"), args, num_tasks=args.test_tasks, tasks=tasks)
    except UsageError as error:
        print(f"control of {begin}: {error}", flush=True)
        return None


def measure(script, run, options):
    """The record of a finished run and its control."""
    module, run = module_of(script), Path(run)
    if not (run / script).is_file():
        raise UsageError(f"{run} is no run of {script}")
    args, updates = settings_of(module, run), updates_of(run)
    after, before = played(run, "test after"), played(run, "test before")
    if not after:
        raise UsageError(f"{run} is not finished: it has no test episodes")
    print(f"{run.name}: {updates} updates of its start, then {len(after)} test tasks, twice", flush=True)
    given = options.learning_rate, options.cpu_threads
    control, demos, rate, loss = trained_on(script, run, updates, run / "control", *given)
    found = {}
    for name, policy in (("start", run / "start"), ("control", control)):
        path = evaluation(policy, run / "evaluation", args, num_envs=options.num_envs, tasks=list(after))
        found[name] = played(path, "test")
    shutil.rmtree(run / "evaluation")
    tasks = sorted(after.keys() & found["start"].keys() & found["control"].keys())
    default = module.Args()
    return {
        "script": script,
        "setting": options.setting or args.env_id,
        "seed": args.seed,
        "run": run.name,
        "flags": {name: value for name, value in vars(args).items() if value != getattr(default, name)},
        "commit": comparison.commit(),
        "demos": demos,
        "updates": updates,
        "rate": rate,
        "loss": loss,
        "tasks": tasks,
        "start": digits(found["start"], tasks),
        "control": digits(found["control"], tasks),
        "after": digits(after, tasks),
        "differ": sum(before[task] != found["start"][task] for task in tasks if task in before),
        "before": bool(before),
    }


def digits(outcomes, tasks):
    return "".join(str(int(outcomes[task])) for task in tasks)


def summary(record):
    """What a run's control says, in four lines."""
    wins = {name: [int(digit) for digit in record[name]] for name in ("start", "control", "after")}
    rates = {name: wilson(sum(won), len(won)) for name, won in wins.items()}
    lines = [f"{name:<8}{rates[name]}" for name in wins]
    over = [f"{name} {paired_difference(wins['after'], wins[name])}" for name in ("control", "start")]
    lines.append(f"the run above its {', above its '.join(over)}")
    if record["before"]:
        lines.append(
            f"the start's outcomes here differ from the run's on {record['differ']} of {len(wins['start'])} tasks"
        )
    return "\n".join(lines)


def table(script):
    """A row for each setting: means over seeds, and the paired difference, over seeds from three on, else tasks."""
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    records = [r for r in records if r["script"] == script]
    heads = "setting", "seeds", "start", "control", "after reinforcement", "above the control", "above the start"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for setting in dict.fromkeys(r["setting"] for r in records):
        own = list({r["seed"]: r for r in records if r["setting"] == setting}.values())  # the last of a seed
        rates = {name: [share(r[name]) for r in own] for name in ("start", "control", "after")}
        cells = [setting, str(len(own)), *(comparison.show(mean_ci(rate), len(own)) for rate in rates.values())]
        for other in ("control", "start"):
            if len(own) >= 3:
                cells.append(str(paired_difference(rates["after"], rates[other])))
            else:
                wins = [[int(digit) for r in own for digit in r[name]] for name in ("after", other)]
                cells.append(f"{paired_difference(*wins)}{comparison.ONLY_TASKS}")
        lines.append(f"| {' | '.join(cells)} |")
    return comparison.page(["\n".join(lines)]) if len(lines) > 2 else ""


def share(digits):
    return digits.count("1") / len(digits)


def main(options):
    module_of(options.script)
    if not options.report:
        runs = options.runs or finished_runs(options.script, options.runs_dir)[-1:]
        if not runs:
            raise UsageError(f"no finished run of {options.script} under {options.runs_dir}: python {options.script}")
        for run in runs:
            record = measure(options.script, run, options)
            with open(RESULTS, "a") as lines:
                lines.write(json.dumps(record) + "\n")
            print(summary(record), flush=True)
    text = table(options.script)
    if not text:
        raise UsageError(f"nothing measured yet: python benchmarks/control.py {options.script}")
    print(text)
    if options.write_docs:
        write_docs(ROOT / f"docs/{options.script.removesuffix('.py')}.md", "control", text)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
