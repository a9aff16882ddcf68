"""The learning comparisons of docs/distrl.md: DistRL, DigiRL, Filtered BC and the ablations, over seeds, on two cores.

    python benchmarks/distrl.py --seeds 3                              # equal trajectories; goes on where it stopped
    python benchmarks/distrl.py --seeds 3 --env-id phone/shopping "--flags=--num-demos 400"
    python benchmarks/distrl.py --seeds 3 --seconds 300        # equal time: synchronous ones play less in it
    python benchmarks/distrl.py --seeds 1 --arms grid                  # the weights of the priority
    python benchmarks/distrl.py --report --write-docs                  # tables and plots from what there is

Each run's result is one line of benchmarks/results/distrl.jsonl, written when it is done; what is there is not run
again. All arms of a seed begin with the same fine-tuned policy, which is also the arm "sft", and play as many
trajectories (or, with --seconds, train for as long).
"""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import comparison, control
from benchmarks.comparison import success
from benchmarks.docs import write_docs
from common.errors import UsageError
from common.lm import checkpoint
from common.lm.run import run_main
from common.lm.stats import mean_ci

RESULTS = ROOT / "benchmarks/results/distrl.jsonl"
MAIN = "distrl", "digirl", "filtered-bc", "digirl-sync", "digirl-alone", "control"
DIGIRL = "--algorithm digirl --gamma 1 --filter-quantile 0.5"  # as digirl.py's tiny preset
GRID = {
    f"w {a:g} {b:g} {c:g}": f"--w1 {a} --w2 {b} --w3 {c}" for a, b, c in product((0.1, 1, 10), (0.01, 1), (0.01, 1))
}
ARMS = {
    "filtered-bc": "--algorithm filtered-bc",
    "digirl-alone": "",  # digirl.py
    "digirl-sync": f"{DIGIRL} --sync",
    "digirl": DIGIRL,
    "distrl": "",
    "sync": "--sync",
    "no-retrace": "--no-retrace",
    "v-trace": "--v-trace",
    "no-prioritised": "--no-prioritised",
    "entropy": "--beta 0.01 --entropy exact",
    "no-penalties": "--repeat-penalty 0 --invalid-penalty 0",
    "return": "--reward return",
    "released": "--released",
    "control": "",  # the start, fine-tuned on its demonstrations for as many updates as distrl made
} | GRID
NAMES = {"sft": "warm-up policy (SFT)", "control": "SFT for as many updates more", "filtered-bc": "Filtered BC",
         "digirl-alone": "DigiRL (digirl.py)",
         "digirl-sync": "DigiRL, synchronous", "digirl": "DigiRL, asynchronous", "distrl": "DistRL",
         "sync": "DistRL, synchronous", "no-retrace": "no Retrace", "v-trace": "V-trace",
         "no-prioritised": "no prioritised replay", "entropy": "entropy .01", "no-penalties": "no penalties",
         "return": "the return in the reward", "released": "as released"} | {name: name for name in GRID}  # fmt: skip
CURVES = """
rollout/reward eval/success replay/success staleness/mean losses/advantage losses/positive losses/ratio_before
losses/trajectory_auc losses/critic_loss losses/td_error losses/trained_steps charts/trajectories charts/seconds
charts/updates
""".split()


@dataclass
class Args:
    env_id: str = "phone/general"
    """phone/general or phone/shopping"""
    seeds: int = 3
    """seeds 1 to N"""
    arms: tuple[Literal["grid", *ARMS], ...] = MAIN
    """which arms (see ARMS in this file); grid: all of GRID"""
    trajectories: int = 1000
    """trajectories that a run plays"""
    seconds: float = 0.0
    """train for so long instead"""
    phone_delay: str = "2:0.6"
    """as distrl.py's: 1,000 trajectories of 32 phones then take as long as the training on them; with 0 they are played
    by the first few policies, long before that ends"""
    processes: int = 1
    """runs side by side: phones are slow, so that two cores have time for two"""
    unseen: str = "phone/install"
    """the group that is never trained on: what the runs of MAIN are tested on, too; empty: not"""
    flags: str = ""
    """further flags of distrl.py and digirl.py, for all arms; kept in the results"""
    report: bool = False
    """print the tables of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put them into docs/distrl.md, with plots"""
    runs_dir: str = "runs/distrl"
    """where the runs' folders go; their trajectories are deleted when a run is done"""


# ----------------------------------------------------------------------------------------------------------- the runs
def run(args, name, seed, script, flags):
    """One run of a script; its folder, or None where it failed."""
    own = f"--preset tiny --env-id {args.env_id} --seed {seed} {args.flags} {flags}"
    return comparison.run(folder_of(args, name, seed), script, own.split(), f"{name} {seed}")


def folder_of(args, name, seed):
    return comparison.folder_of(args.runs_dir, f"{args.env_id}-{name}-{seed}", args.flags)


def length_of(args):
    """How long a run is, and how slow its phones are, as flags."""
    length = f"--train-seconds {args.seconds}" if args.seconds else f"--total-trajectories {args.trajectories}"
    return f"--iterations 100000 {length} --phone-delay {args.phone_delay}"


def start(args, seed):
    """The run of a seed's fine-tuned policy: its folder, or None where that failed. Its test is the arm "sft"."""
    folder = folder_of(args, "sft", seed)
    if not list(folder.glob("*/checkpoints/*/actor")) or not measured(args, "sft", seed):
        nothing = "--iterations 1 --learning-rate 0 --warmup-trajectories 1 --batch-trajectories 1 --replay-ratio 0"
        path = run(args, "sft", seed, "distrl.py", nothing)
        if path is None:
            return None
        if not measured(args, "sft", seed):
            keep(args, "sft", seed, path, "test_before/")
    (path,) = folder.iterdir()
    return path


def keep(args, arm, seed, path, part="test_after/"):
    """One line of results."""
    asked = args.unseen and arm in ("sft", *MAIN) and arm != "control"
    unseen = comparison.evaluate(path, args.unseen, 32) if asked else None
    record = {"arm": arm, "seed": seed, **setting(args), "unseen": unseen and unseen["success"]}
    comparison.append(RESULTS, record | comparison.record_of(path, CURVES, "charts/iteration", part))
    if arm != "sft":  # its demonstrations are the control's
        comparison.without_episodes(path)


def setting(args):
    """What makes results comparable."""
    length = {"seconds": args.seconds} if args.seconds else {"trajectories": args.trajectories}
    return {"env_id": args.env_id, "flags": args.flags, "phone_delay": args.phone_delay, **length}


def results(args):
    """What has been measured in this setting."""
    return comparison.results(RESULTS, NAMES, setting(args))


def measured(args, arm, seed):
    return seed in results(args).get(arm, {})


def measure(args):
    """All runs that are not there yet."""
    arms = [one for arm in args.arms for one in (GRID if arm == "grid" else (arm,))]
    begins = {seed: start(args, seed) for seed in range(1, args.seeds + 1)}
    todo = [(arm, seed) for seed in begins for arm in arms if begins[seed] and not measured(args, arm, seed)]
    with ThreadPoolExecutor(args.processes) as pool:
        for own in (False, True):  # a control when its method is there
            part = [pair for pair in todo if (pair[0] == "control") is own]
            list(pool.map(lambda pair: one(args, *pair, begins[pair[1]]), part))


def one(args, arm, seed, begin):
    """A seed's run of an arm, from the fine-tuned policy of the run `begin`."""
    if arm == "control":
        method = results(args).get("distrl", {}).get(seed)
        path = control.as_arm("distrl.py", begin, method, folder_of(args, arm, seed))
        return path and keep(args, arm, seed, path, "test/")
    script = "digirl.py" if arm == "digirl-alone" else "distrl.py"
    flags = f"--num-demos 0 --model-id {checkpoint.latest(begin).folder('actor')} --no-test-before"
    flags += f" {length_of(args)} {ARMS[arm]}"
    path = run(args, arm, seed, script, flags)
    if path is not None:
        keep(args, arm, seed, path)
        shutil.rmtree(path / "checkpoints")


# ---------------------------------------------------------------------------------------------------------- the report
CLAIMS = {
    "DistRL above the warm-up policy": ("distrl", "sft", success),
    "above its control: SFT for as many updates": ("distrl", "control", success),
    "above DigiRL on one machine": ("distrl", "digirl-alone", success),
    "above DigiRL in this system, synchronous": ("distrl", "digirl-sync", success),
    "above DigiRL in this system, asynchronous": ("distrl", "digirl", success),
    "above Filtered BC": ("distrl", "filtered-bc", success),
    "Retrace helps (Figure 7b)": ("distrl", "no-retrace", success),
    "prioritised replay helps (Figure 7b)": ("distrl", "no-prioritised", success),
    "penalties help": ("distrl", "no-penalties", success),
    "better on a group never trained on (Figure 12)": ("distrl", "digirl", lambda record: record["unseen"]),
}  # more, less, of what


def above(rows, level):
    """The share of all evaluations in training that lie above a level, as a cell; empty where there was none."""
    values = [y for r in rows for _, y in r["curves"].get("eval/success", [])]
    return f"{sum(y > level for y in values) / len(values):.0%}" if values else ""


def success_table(arms):
    heads = "method", "seeds", "success", "against SFT", "against Filtered BC", "against DigiRL", "unseen group"
    heads = (*heads, "evaluations above .6", "above .8", "minutes")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, runs in arms.items():
        rows = list(runs.values())
        cells = [NAMES[arm], str(len(rows)), comparison.show(mean_ci([success(r) for r in rows]), len(rows))]
        cells += [comparison.versus(arms, arm, other, success) for other in ("sft", "filtered-bc", "digirl")]
        unseen = [r["unseen"] for r in rows if r.get("unseen") is not None]
        cells.append(comparison.show(mean_ci(unseen), len(unseen)) if unseen else "")
        cells += [above(rows, level) if arm != "sft" else "" for level in (0.6, 0.8)]
        cells.append(f"{sorted(r['minutes'] for r in rows)[len(rows) // 2]:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def failure_table(arms):
    """How the test episodes failed, by the rules of common/lm/stats.py."""
    kinds = sorted({k for runs in arms.values() for r in runs.values() for k in r["test"] if k.startswith("error_")})
    heads = ["method", *(kind.removeprefix("error_").replace("_", " ") for kind in kinds), "steps"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, runs in arms.items():
        rows = list(runs.values())
        means = [sum(r["test"].get(kind, 0.0) for r in rows) / len(rows) for kind in (*kinds, "length")]
        lines.append(f"| {NAMES[arm]} | " + " | ".join(f"{mean:.2f}" for mean in means[:-1]) + f" | {means[-1]:.1f} |")
    return "\n".join(lines)


def plots(arms, path, by_time):
    """Success of rollouts and on eval tasks, V_traj's AUC and ratios by iterations, or by seconds of training."""
    panels = {"rollout/reward": "success of rollouts", "eval/success": "success on eval tasks",
              "losses/trajectory_auc": "V_traj: area under the curve", "losses/ratio_before": "mean ratio"}  # fmt: skip
    names = {arm: NAMES[arm] for arm in MAIN if arm in arms}
    if by_time:
        arms = {arm: {seed: seconds_of(record) for seed, record in arms[arm].items()} for arm in names}
    comparison.plot_curves(path, arms, names, panels, "seconds of training" if by_time else "iterations")


def seconds_of(record):
    """A record with its curves over seconds in the place of iterations."""
    seconds = dict(map(tuple, record["curves"]["charts/seconds"]))
    return {"curves": {name: [(seconds[x], y) for x, y in curve] for name, curve in record["curves"].items()}}


def main(args):
    if args.seconds and args.processes > 1:
        raise UsageError("--seconds gives every run as long: with --processes 1, or they share the cores")
    if not args.report:
        measure(args)
    arms = results(args)
    tables = success_table(arms), comparison.claim_table(arms, CLAIMS), failure_table(arms)
    text = comparison.page(tables)
    print(text)
    if args.write_docs:
        name = args.env_id.rpartition("/")[2] + ("-time" if args.seconds else "")
        plots(arms, ROOT / f"docs/images/distrl_{name}.png", bool(args.seconds))
        write_docs(ROOT / "docs/distrl.md", f"learning {name}", f"![curves](images/distrl_{name}.png)\n\n{text}")


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
