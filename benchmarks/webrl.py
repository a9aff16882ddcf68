"""The comparisons of docs/webrl.md, docs/miniwob.md and docs/real.md: WebRL and its baselines from the same
start, over seeds.

    python benchmarks/webrl.py --seeds 3 --arms main           # Table 1, in the shop; goes on where it was stopped
    python benchmarks/webrl.py --seeds 3 --arms ablations      # also offline, table2, figure7, figures, all (GROUPS)
    python benchmarks/webrl.py --quick
    python benchmarks/webrl.py two-sites --seeds 3             # shop and forum
    python benchmarks/webrl.py arena --seeds 3                 # all five sites
    python benchmarks/webrl.py miniwob --seeds 3
    python benchmarks/webrl.py miniwob --arms webrl filtered-bc no-curriculum
    python benchmarks/webrl.py small --seeds 3 --arms demo     # a small real model on MiniWoB++; small-arena: transfer
    python benchmarks/webrl.py miniwob --report --write-docs   # tables from what there is

Each run is one line of benchmarks/results/webrl.jsonl, written when it is done; what is there is not run again.
All arms of a seed go on from one folder: the same fine-tuned policy (which is also the arm "sft"), start-up rollouts,
reward model and critic. One run at a time takes two cores; --processes N runs several.
"""

import asyncio
import json
import shutil
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

import tyro
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import envs
import webrl
from benchmarks import comparison, control
from benchmarks.comparison import success
from benchmarks.docs import write_docs
from common.actions import parse
from common.errors import UsageError
from common.lm import checkpoint
from common.lm.args import values_of
from common.lm.run import run_main
from common.lm.stats import mean_ci
from envs.miniwob import SETS
from envs.miniwob_oracles import SOLUTIONS

RESULTS = ROOT / "benchmarks/results/webrl.jsonl"
ONE_PHASE = "--num-phases 1"  # what the paper runs for one phase
BAND = f"--perplexity-low {1 / 0.95} --perplexity-high 2 --replay-ratio 1.5"  # the preset replays sure actions, too
ALL_REPLAY = "--replay-failures --perplexity-low 0 --perplexity-high inf"  # DigiRL's buffer
NO_FLOOR = "--advantage-floor -inf --floored-keep 1"  # the preset's floor of 0 leaves no action to push down
ARMS = {
    "filtered-bc": "--loss sft --no-curriculum",
    "filtered-bc-offline": f"--loss sft --no-replay {ONE_PHASE}",
    "awr": "--loss awr --no-curriculum",
    "awr-offline": f"--loss awr --no-replay {ONE_PHASE}",
    "digirl": f"--loss digirl --fixed-instructions {ALL_REPLAY}",
    "digirl-curriculum": f"--loss digirl {ALL_REPLAY}",
    "digirl-alone": "",  # digirl.py
    "fixed": "--fixed-instructions",
    "no-curriculum": "--no-curriculum",
    "released": "--loss released",
    "no-replay": "--no-replay",
    "no-kl": "--loss reinforce",
    "no-kl-no-replay": "--loss reinforce --no-replay",
    "forward-kl": "--loss forward-kl",
    "fresh-critic": "--critic-replay none",
    "success-critic": "--critic-replay success",
    "failures": "--replay-failures",
    "no-floor": NO_FLOOR,
    "no-floor-failures": f"--replay-failures {NO_FLOOR}",
    "no-floor-no-kl": f"--loss reinforce {NO_FLOOR}",
    "true-verdict": "--judge env",
    "band-all": f"{ONE_PHASE} --perplexity-low 0 --perplexity-high inf --replay-ratio 1.5",
    "band-low": f"{ONE_PHASE} --perplexity-low 0 --perplexity-high {1 / 0.95} --replay-ratio 1.5",
    "band-paper": f"{ONE_PHASE} {BAND}",
    "band-high": f"{ONE_PHASE} --perplexity-low 2 --perplexity-high inf --replay-ratio 1.5",
    "band-all-as-many": f"{ONE_PHASE} --perplexity-low 0 --perplexity-high inf --replay-ratio 0.95",
    "band-low-as-many": f"{ONE_PHASE} --perplexity-low 0 --perplexity-high {1 / 0.95} --replay-ratio 0.95",
    "webrl": "",  # the paper's, with the curriculum; the tiny preset is "no-curriculum"
    "control": "",  # the start, fine-tuned on its demonstrations for as many updates as these two made, whichever more
}
BETAS = 0.01, 0.1, 1.0, 10.0
# Eq. 12's gradient is 2 beta A and less: at .01 it is below the clip, and below what Adam's epsilon makes small. Both
# are scaled, so that a step is as long as elsewhere. (The critic's update is after the actor's only one.)
BETA_FLAGS = {beta: f"--beta {beta}" for beta in BETAS} | {0.01: "--beta 0.01 --max-grad-norm 0.01 --adam-eps 3e-6"}
ARMS |= {f"beta-{b:g}": f"{ONE_PHASE} {BAND} {BETA_FLAGS[b]}" for b in BETAS if b != 0.1}  # 0.1 is band-paper
ARMS |= {f"beta-{beta:g}-no-replay": f"{ONE_PHASE} {BETA_FLAGS[beta]} --no-replay" for beta in BETAS}
NAMES = {
    "sft": "SFT",
    "filtered-bc": "Filtered BC",
    "filtered-bc-offline": "Filtered BC, offline",
    "awr": "AWR",
    "awr-offline": "AWR, offline",
    "digirl-alone": "digirl.py, training instructions, true verdict",
    "digirl": "DigiRL",
    "digirl-curriculum": "DigiRL with the curriculum",
    "released": "WebRL, the released loss",
    "no-curriculum": "WebRL, training instructions",
    "fixed": "WebRL, instructions of phase 1",
    "no-replay": "WebRL without replay",
    "no-kl": "WebRL without the KL constraint",
    "no-kl-no-replay": "WebRL without either",
    "forward-kl": "WebRL by Eq. 13",
    "fresh-critic": "WebRL, critic on fresh rollouts",
    "success-critic": "WebRL, critic on fresh rollouts and the actor's replay",
    "failures": "WebRL, failures in replay",
    "no-floor": "WebRL, advantages below 0",
    "no-floor-failures": "advantages below 0, failures in replay",
    "no-floor-no-kl": "advantages below 0, without the KL constraint",
    "true-verdict": "WebRL, paid by the true verdict",
    "band-all": "replay of any perplexity",
    "band-low": "below 1/.95",
    "band-paper": "1/.95 to 1/.5, beta .1",
    "band-high": "above 1/.5",
    "band-all-as-many": "of any perplexity, as many steps as in the band",
    "band-low-as-many": "below 1/.95, as many steps as in the band",
    "webrl": "WebRL",
    "control": "SFT for as many updates more",
}
NAMES |= {f"beta-{beta:g}": f"beta {beta:g}" for beta in BETAS if beta != 0.1}
NAMES |= {f"beta-{beta:g}-no-replay": f"beta {beta:g}, no replay" for beta in BETAS}
# What the paper shows together: {what: its arms, the last of them the one that the others are held against}.
EXHIBITS = {
    "Table 1, every method online, at equal episodes": "sft control filtered-bc awr digirl-alone digirl "
    "true-verdict no-curriculum webrl",
    "Table 1 by the paper's protocol: Filtered BC and AWR offline on the first phase's rollouts, DigiRL online on its "
    "instructions": "sft filtered-bc-offline awr-offline digirl webrl",
    "Figure 5, ablations": "sft no-kl-no-replay no-kl no-replay fixed no-curriculum webrl",
    "Table 2, replay by perplexity, one phase": "sft band-all band-low band-high band-all-as-many band-low-as-many "
    "band-paper",
    "Figure 7, beta, one phase": "sft beta-0.01 beta-1 beta-10 beta-0.01-no-replay beta-0.1-no-replay "
    "beta-1-no-replay beta-10-no-replay band-paper",
    "Figures 9, 10 and 16; the released loss": "sft forward-kl no-replay fresh-critic success-critic failures released "
    "webrl",
    "Figures 5 and 16 with advantages below 0, which the preset raises to 0": "sft webrl no-floor-no-kl "
    "no-floor-failures no-floor",
    "Figure 14, both methods with and without the curriculum": "digirl digirl-curriculum fixed webrl",
}  # fmt: skip
GROUPS = {
    "demo": "filtered-bc no-curriculum control",
    "main": "filtered-bc awr digirl webrl no-curriculum control",
    "offline": "filtered-bc-offline awr-offline",
    "ablations": "no-kl-no-replay no-kl no-replay fixed no-curriculum",
    "table2": "band-all band-low band-paper band-high band-all-as-many band-low-as-many",
    "figure7": "band-paper " + " ".join(name for name in ARMS if name.startswith("beta-")),
    "figures": "forward-kl fresh-critic success-critic failures released digirl-curriculum",
    "no-floors": "no-floor no-floor-failures no-floor-no-kl",
    "all": " ".join(ARMS),
}
CLAIMS = {
    "WebRL above SFT (Table 1)": ("webrl", "sft"),
    "WebRL above its control: SFT for as many updates": ("webrl", "control"),
    "on training instructions above the control": ("no-curriculum", "control"),
    "WebRL above Filtered BC (Table 1)": ("webrl", "filtered-bc"),
    "on training instructions above Filtered BC, which has them, too": ("no-curriculum", "filtered-bc"),
    "WebRL above AWR (Table 1)": ("webrl", "awr"),
    "WebRL above DigiRL (Table 1)": ("webrl", "digirl"),
    "above Filtered BC on the first phase's rollouts (Table 1)": ("webrl", "filtered-bc-offline"),
    "above AWR on the first phase's rollouts (Table 1)": ("webrl", "awr-offline"),
    "replay helps (Figure 5)": ("webrl", "no-replay"),
    "the KL constraint helps (Figure 5)": ("webrl", "no-kl"),
    "and without replay (Figure 5)": ("no-replay", "no-kl-no-replay"),
    "the KL constraint helps with advantages below 0 (Figure 5)": ("no-floor", "no-floor-no-kl"),
    "the curriculum helps (Figures 5, 14)": ("webrl", "fixed"),
    "and against training instructions": ("webrl", "no-curriculum"),
    "the curriculum helps DigiRL (Figure 14)": ("digirl-curriculum", "digirl"),
    "WebRL above DigiRL with the curriculum (Figure 14)": ("webrl", "digirl-curriculum"),
    "WebRL above DigiRL without a curriculum for either (Figure 14)": ("fixed", "digirl"),
    "the band is better than replay of any perplexity (Table 2)": ("band-paper", "band-all"),
    "and than as many steps of any": ("band-paper", "band-all-as-many"),
    "better than familiar actions alone (Table 2)": ("band-paper", "band-low"),
    "and than as many of these": ("band-paper", "band-low-as-many"),
    "any perplexity is better than familiar actions alone (Table 2)": ("band-all", "band-low"),
    "better than unfamiliar ones alone (Table 2)": ("band-paper", "band-high"),
    "a beta of .01 is worse (Figure 7)": ("band-paper", "beta-0.01"),
    "and without replay (Figure 7)": ("beta-0.1-no-replay", "beta-0.01-no-replay"),
    "without replay a beta of 1 is worse (Figure 7)": ("beta-0.1-no-replay", "beta-1-no-replay"),
    "without replay a beta of 10 is worse (Figure 7)": ("beta-0.1-no-replay", "beta-10-no-replay"),
    "with replay a beta of 10 is as good (Figure 7)": ("beta-10", "band-paper", 0.03),
    "Eq. 11 on all data is better than Eq. 13 on fresh data (Figure 9)": ("webrl", "forward-kl"),
    "and on fresh data, both": ("no-replay", "forward-kl"),
    "the critic is better with the actor's replay (Figure 10)": ("success-critic", "fresh-critic"),
    "replay of successes alone is better (Figure 16)": ("webrl", "failures"),
    "replay of successes alone is better with advantages below 0 (Figure 16)": ("no-floor", "no-floor-failures"),
}
SPLITS = {  # what a test is split by: {part of the metrics' names: (title, first column)}
    "site": ("Table 1 by site", "site"),
    "steps": ("Figure 4", "steps the oracle needs"),
    "requirements": ("Figure 6", "requirements"),
    "error": ("Figure 3, error types", "share of episodes"),
}
CURVES = """
rollout/reward rollout/true_success eval/success losses/critic_auc losses/grad_norm losses/ref_minus_new_logprob
replay/steps replay/in_band charts/updates curriculum/too_easy curriculum/too_hard
orm/accuracy orm/precision orm/auc orm/base_rate orm_test/accuracy orm_test/precision orm_test/auc orm_test/base_rate
eval/site_shop eval/site_shop_admin eval/site_forum eval/site_code eval/site_map eval/site_several
""".split()
# What the tiny model can represent of MiniWoB++: a scripted solution wins every episode within ten actions, all that it
# types or points at stands in the instruction or on the page, or is a key's name (nothing is computed or measured), and
# page and action fit the preset's 400 and 48 tokens. `--represented` looks again.
TRAIN = """
buy-ticket choose-date-easy choose-date-medium click-checkboxes click-checkboxes-transfer click-collapsible
click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog click-dialog-2 click-option
click-shades click-test-2 click-test-transfer count-shape drag-shapes-2 enter-password enter-text enter-text-dynamic
focus-text focus-text-2 identify-shape login-user login-user-popup multi-layouts multi-orderings navigate-tree
odd-or-even read-table read-table-2 search-engine text-transform unicode-test use-autocomplete use-autocomplete-nodelay
visual-addition
""".split()  # of BrowserGym's training tasks
HELD_OUT = """
ascending-numbers choose-list click-button click-button-sequence click-color click-link click-menu click-menu-2
click-scroll-list click-tab click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-widget
email-inbox email-inbox-delete email-inbox-forward email-inbox-forward-nl email-inbox-important email-inbox-noscroll
email-inbox-reply email-inbox-star-reply find-greatest find-word form-sequence-2 form-sequence-3 generate-number
phone-book social-media use-spinner
""".split()  # of its test tasks
SETTINGS = {
    "shop": "--env-id arena-v1/shop",
    "two-sites": "--env-id arena-v1",
    "arena": "--env-id arena-v2",
    "miniwob": f"--env-id miniwob/{'+'.join(TRAIN)} --judge env --test-tasks {5 * len(TRAIN)}",
    "small": "--env-id miniwob/small --judge env --model-id models/smollm2-135m --prompt-format plain --num-demos 36",
    "small-arena": "--env-id arena-v2 --judge env --model-id models/smollm2-135m --prompt-format plain",
}
QUICK = {
    "seeds": 1,
    "phases": 1,
    "runs_dir": "runs/webrl-quick",
    "arms": ("main", "offline", "ablations"),
    "flags": "--sft-epochs 12 --start-episodes 96 --orm-episodes 1200 --instructions-per-phase 64 --test-tasks 50",
}
# Where a policy is tested besides, and what that is called.
ELSEWHERE = {"miniwob": f"miniwob/{'+'.join(HELD_OUT)}", "small": "miniwob/small-unseen"}
ELSEWHERE["small-arena"] = "miniwob/small+small-unseen"  # does what the arena teaches carry over?
THERE = {
    "miniwob": "BrowserGym's test tasks",
    "small": "tasks of the same kinds, none of which it was trained on",
    "small-arena": "MiniWoB++, on which it was never trained",
}


TINY = values_of(webrl.Args, "tiny")


def preset_of(setting):
    return "small" if setting.startswith("small") else "tiny"


@dataclass
class Args:
    setting: Annotated[Literal[*SETTINGS], tyro.conf.Positional] = "shop"
    """the environment, and what it needs of flags (SETTINGS in this file)"""
    seeds: int = 3
    """seeds 1 to N"""
    arms: tuple[Literal[*GROUPS, *ARMS], ...] = ("webrl",)
    """which arms (ARMS in this file), or groups of them (GROUPS)"""
    phases: int = 0
    """phases N of every run; 0: the preset's"""
    quick: bool = False
    """a look at twelve arms in some fifteen minutes: one seed, one phase, few tasks (QUICK in this file); its figures
    say nothing about methods"""
    flags: str = ""
    """further flags of webrl.py, for all arms; kept in the results"""
    processes: int = 1
    """runs side by side, for machines with more than two cores"""
    report: bool = False
    """print the tables of what has been measured; run nothing"""
    write_docs: bool = False
    """with --report: put them into docs/webrl.md, docs/miniwob.md or docs/real.md"""
    represented: bool = False
    """instead: play MiniWoB++'s scripted solutions and print which tasks the tiny model can represent"""
    runs_dir: str = "runs/webrl"
    """where the runs' folders go; their trajectories are deleted when a run is done"""


# ----------------------------------------------------------------------------------------------------------- the runs
def folder_of(args, name, seed):
    return comparison.folder_of(args.runs_dir, f"{args.setting}-{name}-{seed}", args.flags)


def start(args, seed):
    """The folder of a run that is ready for phase 1. What its test shows is the arm "sft"."""
    folder = folder_of(args, "start", seed)
    (there,) = list(folder.glob("*/")) or [None]
    last = there and checkpoint.latest(there)
    if not last or last.state["phase"] != 0 or not measured(args, "sft", seed):
        flags = f"--preset {preset_of(args.setting)} --seed {seed} --num-phases 0 --eval-tasks 0"
        flags = f"{SETTINGS[args.setting]} {flags} {args.flags}"
        path = comparison.run(folder, "webrl.py", flags.split(), f"start {seed}")
        if path is None:
            return None
        if not measured(args, "sft", seed):
            keep(args, "sft", seed, path, "test_before/")
    return started(args, seed)


def keep(args, arm, seed, path, part="test_after/", policy=None):
    """One line of results; `policy`: the folder of the run that was evaluated in `path`, where it is another."""
    record = {"arm": arm, "seed": seed, **setting(args), "start": fingerprint(args, seed)}
    if elsewhere := ELSEWHERE.get(args.setting):
        record["elsewhere"] = comparison.evaluate(policy or path, elsewhere)
        if record["elsewhere"] is None:
            return
    record |= comparison.record_of(path, CURVES, "charts/phase", part)
    if arm == "digirl-alone":
        values = json.loads((path / "args.json").read_text())
        tests = json.loads((started(args, seed) / "args.json").read_text())["test_tasks"]
        found = comparison.evaluate(path, values["env_id"], 16, tests)
        if found is None:
            return
        record |= {"test": found, "outcomes": ""}
    comparison.append(results_file(args), record)


def started(args, seed):
    """The folder of a seed's start."""
    (path,) = folder_of(args, "start", seed).iterdir()
    return path


def fingerprint(args, seed):
    """A checksum of the fine-tuned policy that a seed's runs go on from: only runs of the same one are pairs."""
    (weights,) = checkpoint.latest(started(args, seed)).folder("actor").glob("*model.safetensors")  # or the adapters'
    return zlib.crc32(weights.read_bytes())


def setting(args):
    """What makes results comparable."""
    return {"setting": args.setting, "phases": args.phases, "flags": args.flags}


def results(args):
    """What has been measured in this setting."""
    return comparison.results(results_file(args), NAMES, setting(args))


def results_file(args):
    """A look's results are of no use to others."""
    return ROOT / args.runs_dir / "results.jsonl" if args.quick else RESULTS


def measured(args, arm, seed):
    return seed in results(args).get(arm, {})


def measure(args):
    """All runs that are not there yet."""
    arms = dict.fromkeys(" ".join(GROUPS.get(name, name) for name in args.arms).split())  # groups may share some
    todo = [(arm, seed) for seed in range(1, args.seeds + 1) for arm in arms if not measured(args, arm, seed)]
    seeds = sorted({seed for _, seed in todo})
    with ThreadPoolExecutor(args.processes) as pool:
        begins = dict(zip(seeds, pool.map(partial(start, args), seeds), strict=True))
        for own in (False, True):  # a control when its method is there
            part = [pair for pair in todo if (pair[0] == "control") is own]
            list(pool.map(lambda pair: one(args, *pair, begins[pair[1]]), part))


def one(args, arm, seed, begin):
    """A seed's run of an arm, from the folder `begin` (None: there is no start)."""
    if begin is None:
        return
    if arm == "control":
        return keep_control(args, seed, begin)
    path = run_digirl(args, begin, seed) if arm == "digirl-alone" else go_on(args, begin, arm, seed)
    if path is not None:
        keep(args, arm, seed, path)
        comparison.without_episodes(path)  # the start keeps its own: the arms go on from them
        shutil.rmtree(path / "checkpoints")


def keep_control(args, seed, begin):
    """The control of a seed, once WebRL has been measured there, with the curriculum or without."""
    folder = folder_of(args, "control", seed)
    methods = [results(args).get(arm, {}).get(seed) for arm in ("webrl", "no-curriculum")]
    most = max(filter(None, methods), key=comparison.updates, default=None)
    path = control.as_arm("webrl.py", begin, most, folder)
    if path is not None:
        keep(args, "control", seed, path, "test/", folder)


def go_on(args, begin, arm, seed):
    """The phases of an arm of webrl.py."""
    tasks = values_of(webrl.Args, preset_of(args.setting))["eval_tasks"]
    flags = f"--num-phases {args.phases} --eval-tasks {tasks} --no-control --curriculum {ARMS[arm]}"
    return comparison.go_on(begin, folder_of(args, arm, seed), "webrl.py", flags.split(), f"{arm} {seed}")


def run_digirl(args, begin, seed):
    """digirl.py from the same policy, on as many episodes: training instructions, paid by the true verdict. Its own
    test tasks are others: these are played by tools/eval.py."""
    values = json.loads((begin / "args.json").read_text())
    episodes = args.phases * values["instructions_per_phase"]
    actor = checkpoint.latest(begin).folder("actor")
    flags = f"--env-id {values['env_id']} --preset tiny --seed {seed} --model-id {actor} --num-demos 0 --num-envs 16"
    flags += f" --max-new-tokens {values['max_new_tokens']} --no-test-before --eval-tasks 48 --test-tasks 1"
    flags += " --batch-trajectories 16"  # as released: 20 updates of the actor for every 16
    flags += f" --total-trajectories {episodes} --iterations 100000"
    return comparison.run(folder_of(args, "digirl-alone", seed), "digirl.py", flags.split(), f"digirl-alone {seed}")


# ---------------------------------------------------------------------------------------------------------- the report
def elsewhere(record):
    return record["elsewhere"]["success"]


def success_table(arms, own, named):
    """A row for each arm of `own`: success over seeds, against SFT and against the last of these, and (`named`) on the
    tasks elsewhere."""
    last = own[-1]
    heads = ["method", "seeds", "success", "against SFT", f"against {NAMES[last]}", "steps", "updates", "minutes"]
    heads[5:5] = [named, "against SFT there"] if named else []
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm in own:
        rows = list(arms[arm].values())
        cells = [NAMES[arm], str(len(rows)), comparison.show(mean_ci([success(r) for r in rows]), len(rows))]
        cells += [comparison.versus(arms, arm, other, success) for other in ("sft", last)]
        if named:
            cells.append(comparison.show(mean_ci([elsewhere(r) for r in rows]), len(rows)))
            cells.append(comparison.versus(arms, arm, "sft", elsewhere))
        cells.append(f"{sum(r['steps'] for r in rows) / len(rows):,.0f}")
        updates = [r["curves"]["charts/updates"][-1][1] for r in rows if "charts/updates" in r.get("curves", {})]
        cells.append(f"{sum(updates) / len(updates):,.0f}" if updates else "")
        cells.append(f"{sorted(r['minutes'] for r in rows)[len(rows) // 2]:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def claim_table(arms):
    """A verdict for each claim that both arms were run for."""
    return comparison.claim_table(
        arms, {claim: (more, less, success, *same) for claim, (more, less, *same) in CLAIMS.items()}
    )


def split_table(arms, head, part, kind):
    """A test's metrics of a kind ("site": success by site), a column for each arm: mean, lowest and highest over seeds
    of `part(record)`'s metrics whose names begin with it."""
    columns = {arm: [part(r) for r in runs.values()] for arm, runs in arms.items()}
    names = sorted({name for rows in columns.values() for row in rows for name in row if name.startswith(f"{kind}_")})
    lines = [f"| {head} | {' | '.join(NAMES[arm] for arm in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        cells = [comparison.spread([row[name] for row in rows]) for rows in columns.values()]
        lines.append(f"| {name.removeprefix(f'{kind}_').replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines) if names else ""


def shortest_successes(records):
    """{checksum of test tasks: the steps of the shortest success at each, by any of the methods; 0 where none had one}
    (Figure 4); {} where a record does not know its lengths."""
    if not all(record.get("lengths") for record in records):
        return {}
    found = {}
    for record in records:
        found.setdefault(record["tasks"], []).append(record["lengths"])
    return {tasks: [min(filter(None, each), default=0) for each in zip(*rows)] for tasks, rows in found.items()}


def rates_by_steps(shortest, record):
    """A record's success by the steps that its tasks require; tasks that nobody did are left out, as in the paper."""
    won = {}
    for steps, length in zip(shortest[record["tasks"]], record["lengths"], strict=True):
        if steps:
            won.setdefault("1-3" if steps <= 3 else "4-6" if steps <= 6 else "7+", []).append(length > 0)
    return {f"steps_{steps}": fmean(wins) for steps, wins in won.items()}


def size_table(args):
    """SFT and WebRL by the base model, of the runs with another one (`--flags="--model-id FOLDER"`)."""
    lines = ["| base model | seeds | SFT | WebRL | gain |", "|---|---|---|---|---|"]
    records = [json.loads(line) for line in results_file(args).read_text().splitlines()]
    for flags in sorted({r["flags"] for r in records if r["setting"] == args.setting and "--model-id" in r["flags"]}):
        arms = results(replace(args, flags=flags))
        base = flags.replace("=", " ").split("--model-id ")[1].split()[0]
        if "sft" in arms and "webrl" in arms:
            seeds = sorted(arms["sft"].keys() & arms["webrl"].keys())
            cells = [
                comparison.show(mean_ci([success(arms[arm][s]) for s in seeds]), len(seeds)) for arm in ("sft", "webrl")
            ]
            cells.append(comparison.versus(arms, "webrl", "sft", success))
            lines.append(f"| {Path(base).name} | {len(seeds)} | {' | '.join(cells)} |")
    return titled("By the size of the base model", "\n".join(lines)) if len(lines) > 2 else ""


def judge_table(arms):
    """The reward model against the true verdict: on the first and the last phase's rollouts, on the test episodes."""
    measures = {"agreement": "accuracy", "precision": "precision", "AUC": "auc", "base rate": "base_rate"}
    lines = [f"| judge | on | {' | '.join(measures)} |", "|---" * (len(measures) + 2) + "|"]
    for arm, runs in arms.items():
        for where, part, index in (("first phase", "orm", 0), ("last phase", "orm", -1), ("test", "orm_test", -1)):
            found = [[r["curves"].get(f"{part}/{name}") for r in runs.values()] for name in measures.values()]
            if not all(curve for curves in found for curve in curves):
                continue
            cells = [comparison.show(mean_ci([c[index][1] for c in curves]), len(curves)) for curves in found]
            lines.append(f"| {NAMES[arm]} | {where} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def phase_table(arms):
    """True success of the rollouts and on eval tasks, phase by phase, of arms with more than one."""
    lines = ["| method | true success of the rollouts, by phase | on eval tasks, after each phase |", "|---|---|---|"]
    for arm, runs in arms.items():
        rollouts, tests = (by_phase(runs, name) for name in ("rollout/true_success", "eval/success"))
        cells = [", ".join(f"{sum(v) / len(v):.3f}" for v in found.values()) for found in (rollouts, tests)]
        if max(map(len, (rollouts, tests))) > 1:
            lines.append(f"| {NAMES[arm]} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def by_phase(runs, name):
    """{phase: the seeds' values of a metric} of the phases that all runs have."""
    curves = [dict(map(tuple, r["curves"][name])) for r in runs.values() if name in r["curves"]]
    phases = sorted(set.intersection(*map(set, curves))) if curves else []
    return {phase: [curve[phase] for curve in curves] for phase in phases}


def site_phase_table(runs):
    """Success on eval tasks after each phase, with its interval over seeds (Figure 13), and by site (Figure 12): the
    mean, lowest and highest seed."""
    names = sorted({name for r in runs.values() for name in r["curves"] if name.startswith("eval/site_")})
    whole = by_phase(runs, "eval/success")
    sites = [by_phase(runs, name) for name in names]
    heads = ["after phase", "all", *(name.removeprefix("eval/site_").replace("_", " ") for name in names)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for phase, values in whole.items():
        cells = [f"{phase:g}", comparison.show(mean_ci(values), len(values))]
        cells += [comparison.spread(site[phase]) if phase in site else "" for site in sites]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if whole else ""


def exhibits(arms, named):
    """A success table for each of EXHIBITS that has two arms, of which one at least is in no table before it."""
    shown, tables = set(), []
    for title, names in EXHIBITS.items():
        own = [arm for arm in names.split() if arm in arms]
        if len(own) >= 2 and set(own) - shown:
            tables.append(f"{title}\n\n{success_table(arms, own, named)}")
            shown |= set(own)
    return tables


def plots(arms, path):
    """Rollouts, eval tasks, critic and judge, by phases: the control has none."""
    panels = {"rollout/true_success": "true success of rollouts", "eval/success": "success on eval tasks",
              "losses/critic_auc": "the critic's AUC", "orm/precision": "the judge's precision"}  # fmt: skip
    own = {arm: NAMES[arm] for arm in [*GROUPS["main"].split(), *GROUPS["ablations"].split()] if arm in arms}
    own.pop("control", None)
    comparison.plot_curves(path, arms, own, panels, "phases", window=1)


def titled(title, table):
    return table and f"{title}\n\n{table}"


def report(args):
    arms, there = results(args), THERE.get(args.setting, "")
    if not arms:
        raise UsageError(f"nothing has been measured yet: python benchmarks/webrl.py {args.setting} --seeds 3")
    compared = {arm: runs for arm, runs in arms.items() if arm in ("sft", *GROUPS["main"].split())}
    tables = [*exhibits(arms, there), claim_table(arms)]
    tables.append(titled("Phase by phase, the mean over seeds", phase_table(arms)))
    tables.append(titled("Figures 12 and 13, WebRL on eval tasks", site_phase_table(arms.get("webrl", {}))))
    tables += [titled("Table 3, the reward model against the true verdict", judge_table(compared)), size_table(args)]
    shortest = shortest_successes([record for runs in arms.values() for record in runs.values()])
    for kind, (title, head) in SPLITS.items():
        part = lambda record: record["test"]  # noqa: E731
        if kind == "steps" and shortest:
            part, head = partial(rates_by_steps, shortest), "steps of the shortest success"
        tables.append(titled(title, split_table(compared, head, part, kind)))
    if there:
        table = split_table(compared, "site", lambda record: record["elsewhere"], "site")
        tables.append(titled(f"On {there}, by site", table))
    return comparison.page(tables)


# ------------------------------------------------------------------------------------- what a tiny model can represent
KEYS = "Enter Tab Escape Home End PageUp PageDown ArrowUp ArrowDown Control+a Control+c Control+v".split()


async def represented(episodes=12):
    """The MiniWoB++ tasks that TRAIN and HELD_OUT are: printed by BrowserGym's split, with what the others lack."""
    env, tokenizer = envs.make("miniwob"), AutoTokenizer.from_pretrained(ROOT / "assets/tiny")
    try:
        tasks = env.tasks("train")
        for part in ("browsergym-train", "browsergym-test"):
            lacks = {}
            for name in SETS[part]:
                own = [task for task in tasks if task.site == name][:episodes]
                lacks[name] = [await lack(env, tokenizer, task) for task in own] if name in SOLUTIONS else ["no script"]
            print(f"{part}: {' '.join(name for name, found in lacks.items() if not any(found))}")
            for name, found in lacks.items():
                if any(found):
                    print(f"    {name}: {next(filter(None, found))}")
    finally:
        await env.close()


async def lack(env, tokenizer, task):
    """Why the tiny model could not play the scripted solution's episode of `task`, or ""."""

    def size(text):
        return len(tokenizer.encode(text, add_special_tokens=False))

    obs, info = await env.reset(task)
    for move in env.oracle(task):
        text = env.resolve(move, obs)
        argument = parse(text).argument
        if argument and argument not in KEYS and argument not in obs["text"] and argument not in task.instruction:
            return f"{argument!r} is neither on the page nor in the instruction"
        if size(obs["text"]) > TINY["page_tokens"] or size(text) > TINY["max_new_tokens"]:
            return f"a page of {size(obs['text'])} or an action of {size(text)} tokens"
        obs, *_, info = await env.step(text)
    return "" if info.get("score", 0.0) > 0 else "not solved within ten actions"


def main(args):
    if args.represented:
        return asyncio.run(represented())
    if args.quick and args.write_docs:
        raise UsageError("--quick is for looking, not for the docs: leave --write-docs out")
    if args.quick:
        args = replace(args, **QUICK)
    args = replace(args, phases=args.phases or values_of(webrl.Args, preset_of(args.setting))["num_phases"])
    if not args.report:
        measure(args)
    text = report(args)
    print(text)
    if args.write_docs:
        places = {
            "shop": ("webrl", "shop"),
            "two-sites": ("webrl", "two sites"),
            "arena": ("webrl", "sites"),
            "miniwob": ("miniwob", "learning"),
            "small": ("real", "small"),
            "small-arena": ("real", "transfer"),
        }
        page, mark = places[args.setting]
        image, arms = f"{page}_{mark.replace(' ', '_')}.png", results(args)
        if len(arms.keys() - {"sft"}) > 1:
            plots(arms, ROOT / "docs/images" / image)
            text = f"![curves](images/{image})\n\n{text}"
        write_docs(ROOT / f"docs/{page}.md", mark, text)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
