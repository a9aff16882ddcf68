"""The arguments that all scripts share, and how a command line becomes them.

A script's `class Args(RunArgs)` has the method's own fields, which `--help` shows first (`own_first`). A field whose
default depends on --preset has all of its values in its own line: `num_demos: int = preset(128, tiny=40)`.
"""

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, TypeVar

from common.errors import UsageError
from common.lm import llm, resume

T = TypeVar("T")


def preset(paper: T, tiny: T, **others: T) -> T:
    """A field with a default for each --preset: the paper's, that of the tiny model, others by their names (small,
    smoke). A preset of another name has the tiny value where it has none of its own."""
    return field(default=paper, metadata={"presets": {"tiny": tiny, **others}})


def values_of(args_class: type, name: str) -> dict:
    """{field: value} of what a preset changes of the defaults. "paper" changes nothing."""
    if name == "paper":
        return {}
    given = {f.name: f.metadata["presets"] for f in fields(args_class) if "presets" in f.metadata}
    return {key: values.get(name, values["tiny"]) for key, values in given.items()}


# Every preset's rates are of full weights. What trains through LoRA's small matrices, the second of which begins at
# zero, needs larger ones: ten times as large is where they are as good (Schulman and others, "LoRA without regret").
LORA_RATE = 10


def lora_rates(defaults: "RunArgs") -> dict[str, float]:
    """{field: default} of all learning rates under --lora-rank."""
    names = (f.name for f in fields(defaults) if f.name.endswith("learning_rate"))
    return {name: float(f"{LORA_RATE * getattr(defaults, name):.6g}") for name in names}


# Fields that some script called otherwise, and what they are there now.
RENAMED = {
    "sft": "num_demos",  # off: 0
    "minibatch_size": "batch_size",
    "batch_size": "batch_trajectories",  # where it counted trajectories
    "lockstep": "schedule",  # where it was a run's folder
    "judge_url": "judge",
    "lam": "advantage_lambda",
    "buffer_size": "buffer_steps",  # where it counted trajectories
}
# What a run of before did, whose arguments have no such field yet.
BEFORE = {"eval_servers": 0, "judge_states": False, "critic_max_grad_norm": 1.0, "eval_beside": False}


@dataclass
class RunArgs:
    exp_name: str = ""
    """the name of this experiment; empty: that of the script's file"""
    seed: int = 1
    """seed of the experiment"""
    track: bool = False
    """log to wandb (online, or offline with WANDB_MODE=offline)"""
    wandb_project_name: str = "cleangui"
    """wandb's project"""
    wandb_entity: str | None = None
    """wandb's entity (team)"""
    runs_dir: str = "runs"
    """where the run's folder is made"""
    resume: str = ""
    """go on with a run: its folder (its own flags hold unless given anew), or auto: the newest of this environment,
    name and seed that is not finished, where there is one"""
    real_clock: bool = False
    """--env-id site: pages wait in true time, in the place of a clock that moves with actions alone"""
    lora_rank: int = preset(0, tiny=0, small=16)
    """train LoRA adapters of this rank instead of all weights, at ten times the preset's learning rates (a rate that is
    given is taken as it is); 0: all weights"""
    preset: Literal["auto", "tiny", "small", "paper", "smoke"] = "auto"
    """defaults: paper, for models of its size (its values, and the released code's where it gives none); small, for
    models of 100 M to 2 B weights on a laptop: LoRA, an hour; tiny, for the models in assets/; smoke: every part of the
    method in a minute, to see that it runs; auto: by the model's size"""
    load_in_4bit: bool = False
    """quantise the base with bitsandbytes (QLoRA)"""
    cpu_threads: int = 0
    """micro-batches computed side by side on a CPU, one thread each (for tiny models), and threads of each worker on
    Ray; 0: one at a time, torch's own threads inside each operation, as many as cores are idle"""
    gradient_checkpointing: bool = False
    """keep one layer's activations at a time in training: less memory for a third more computation"""
    sft_learning_rate: float = 1e-5
    """peak rate; warm-up over a tenth, then cosine"""
    temperature: float = 1.0
    """sampling temperature of rollouts"""
    adam_eps: float = 1e-8
    """epsilon of all optimisers' Adam; a larger one lets the embeddings of words that training never shows stay as they
    are"""
    micro_batch_tokens: int = 16384
    """tokens of one forward and backward pass, padding included: fewer need less memory and give the same gradient; a
    longer step goes alone"""
    reply_timeout: float = 300.0
    """seconds for one whole reply of a model by URL (an engine, a judge, a generator): longer is a fault"""
    episode_timeout: float = 0.0
    """seconds for one episode: the step after them is a fault, and it is played again; 0: no limit"""


def own_first(args_class: type) -> type:
    """A script's Args with its own fields before those of RunArgs, in `--help` too."""
    shared = RunArgs.__dataclass_fields__
    each = args_class.__dataclass_fields__
    mine = {name: one for name, one in each.items() if name not in shared}
    args_class.__dataclass_fields__ = mine | {name: each[name] for name in shared}
    return args_class


def parse_args(args_class: type[T], argv: Sequence[str] | None = None, variant: Callable = lambda args: {}) -> T:
    """The command line as an `args_class` with the defaults of its --preset (`preset`), where it has that flag.
    `variant(args)` gives what other flags change of these defaults. With `--resume` the defaults are that run's
    arguments, and `resume` is its folder. A flag always wins, or is refused."""
    import tyro

    argv = sys.argv[1:] if argv is None else list(argv)
    silent = [word for word in argv if word not in ("-h", "--help")]  # help is printed with the preset's values
    first, unknown = tyro.cli(args_class, args=silent, return_unknown_args=True)
    for word in unknown:
        old = word.split("=")[0].removeprefix("--").replace("-", "_")
        new = RENAMED.get(old.removeprefix("no_"))
        if word.startswith("--") and new in args_class.__dataclass_fields__:
            now = "--num-demos 0" if old == "no_sft" else f"--{new.replace('_', '-')}"
            unit = " and counts steps, not trajectories" if new == "buffer_steps" else ""
            raise UsageError(f"{word.split('=')[0]} is called {now} now{unit}")
    if first.resume == "auto" and issubclass(args_class, RunArgs):
        wanted = _with_preset(args_class, silent, first, variant)
        first = replace(first, resume=resume.newest(wanted, Path(inspect.getfile(args_class))))
    if not first.resume:
        return replace(_with_preset(args_class, argv, first, variant), resume="")
    saved = _saved_args(args_class, Path(first.resume))
    args = tyro.cli(args_class, args=argv, default=replace(args_class(), **saved))
    return resume.fitting(replace(args, resume=first.resume), saved)


def _with_preset(args_class, argv, first, variant):
    """The command line with the defaults of its preset; `first` is what it says without."""
    import tyro

    silent = [word for word in argv if word not in ("-h", "--help")]
    if not hasattr(first, "preset"):
        return tyro.cli(args_class, args=argv)
    name = first.preset
    if name == "auto":
        name = llm.size_of(first.model_id)
    defaults = replace(args_class(), **values_of(args_class, name) | variant(replace(first, preset=name)))
    if tyro.cli(args_class, args=silent, default=defaults).lora_rank:  # small has adapters of its own
        defaults = replace(defaults, **lora_rates(defaults))
    return replace(tyro.cli(args_class, args=argv, default=defaults), preset=name)


def check_ranges(args, at_least_1: str = "", shares: str = "", above_0: str = "", any_value: str = "") -> None:
    """Raises UsageError where a number among the arguments makes no sense: those of `at_least_1` (names in a string),
    of `shares` (from 0 to 1) and of `above_0`; all others must not be negative, but for those of `any_value`."""
    rules = dict.fromkeys(at_least_1.split(), "be at least 1")
    rules |= dict.fromkeys(shares.split(), "be from 0 to 1")
    rules |= dict.fromkeys(above_0.split(), "be above 0") | dict.fromkeys(any_value.split(), "be a number")
    allowed = {  # nan is never
        "be at least 1": lambda value: value >= 1,
        "be from 0 to 1": lambda value: 0 <= value <= 1,
        "be above 0": lambda value: value > 0,
        "be a number": lambda value: not math.isnan(value),
        "not be negative": lambda value: value >= 0,
    }
    for name, value in vars(args).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            rule = rules.pop(name, "not be negative")
            if not allowed[rule](value):
                raise UsageError(f"--{name.replace('_', '-')} must {rule}, and is {value:g}")
    assert not rules, f"no number among the arguments: {', '.join(rules)}"


def _saved_args(args_class: type, run_path: Path) -> dict:
    """The arguments of an earlier run. Raises UsageError where the folder has none."""
    saved = resume.saved_args(run_path)
    known = args_class.__dataclass_fields__
    for old, new in RENAMED.items():  # a run of before
        if old in saved and old not in known and new in known and new not in saved:
            saved[new] = saved[old]
    if saved.get("sft") is False:
        saved["num_demos"] = 0
    if saved.get("judge") == "" and "judge_url" in saved:
        saved["judge"] = "env"
    if "buffer_size" in saved and "buffer_steps" in known:
        saved["buffer_steps"] = 5 * saved["buffer_size"]  # a trajectory on phones has 4 to 5 steps
    saved = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}  # JSON's lists
    saved = values_of(args_class, saved.get("preset", "paper")) | BEFORE | saved
    return {name: value for name, value in saved.items() if name in known}
