"""Environments. `make(env_id)` is the one list of them; every one keeps the contract of docs/environments.md.

Text in, text out; nothing under `envs/` imports torch. An environment's `reset`, `step` and `close` are coroutines that
return Gymnasium's tuples; `gym_env(env_id)` wraps one as a synchronous `gymnasium.Env`.
"""

import hashlib
import importlib
import inspect
import os
import random
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from common.errors import StateMismatch, UsageError
from common.replay import Prefix as Prefix
from common.replay import Task as Task  # the author of an environment finds them here

if TYPE_CHECKING:
    from envs.synchronous import SynchronousEnv

Obs = dict[str, Any]
Info = dict[str, Any]


class Environment(Protocol):
    """What every environment does; docs/environments.md says how. A Protocol for type checkers: nothing inherits it."""

    def tasks(self, split: str) -> list[Task]: ...
    def fork(self) -> "Environment": ...
    def oracle(self, task: Task) -> Iterable[Any]: ...
    def resolve(self, move: Any, obs: Obs) -> str: ...
    def vary(self, task: Task, rng: random.Random) -> list[str] | list[Task]: ...
    def task_from_text(self, text: str, like: Task) -> Task | None: ...
    async def reset(self, task: Task, seed: int = 0) -> tuple[Obs, Info]: ...
    async def step(self, text: str) -> tuple[Obs, float, bool, bool, Info]: ...
    async def prefix(self) -> Prefix: ...
    async def restore(self, prefix: Prefix) -> tuple[Obs, Info]: ...
    async def close(self) -> None: ...


def observation_hash(obs: Obs) -> str:
    """16 hex digits for what the agent sees (address without the port, title, text, admissible actions): equal across
    ports and runs."""
    path = obs["url"].partition("://")[2].partition("/")[2]
    seen = "\n".join((path, obs["title"], obs["text"], *obs.get("actions", ())))
    return hashlib.sha256(seen.encode()).hexdigest()[:16]


async def replay(env: Environment, prefix: Prefix) -> tuple[Obs, Info]:
    """Do a prefix's actions again from a reset: (obs, info) of the state after it. Raises StateMismatch if what is seen
    in the end is not what was seen then, or if the episode ends before."""
    obs, info = await env.reset(prefix.task)
    over = False
    for number, action in enumerate(prefix.actions):
        if over:
            raise StateMismatch(f"{prefix.task.task_id}: the episode ended before action {number}")
        obs, _, terminated, truncated, info = await env.step(action)
        over = terminated or truncated
    if info["hash"] != prefix.hashes[-1]:
        raise StateMismatch(f"{prefix.task.task_id}: after {len(prefix.actions)} actions something else is seen")
    return obs, info


# versions of their tasks: another list of tasks is another version
NEWEST = {"arena": 2, "gallery": 1, "phone": 1, "phone-adb": 1}


def full_name(env_id: str) -> str:
    """`env_id` with the version of its tasks, which results are kept under: "arena/map" is "arena-v2/map"."""
    name, slash, part = env_id.partition("/")
    return f"{name}-v{NEWEST[name]}{slash}{part}" if name in NEWEST else env_id


def has_check(env: Environment, task: Task) -> bool:
    """Whether the environment says itself what succeeded at this task: by the task's own check, or because it scores
    every episode (`scores_all`)."""
    return task.config is not None or getattr(env, "scores_all", False)


# What scripts offer to any environment: text and phones have no pages, phones no port, text no pictures.
PAGE_OPTIONS = "port", "page_tokens", "count_tokens", "real_input"
SITE_OPTIONS = "tasks", "start_url", "hosts", "action_interval", "real_clock", "obey_robots"
PICTURE_OPTIONS = "screenshots", "viewport", "paced"


def without(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def text_options(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for an environment of text alone. Raises UsageError where pictures are asked for."""
    if options.get("screenshots"):
        raise UsageError(f"--env-id {env_id} is text: there is no picture of it, for an agent that sees or to keep")
    return without(options, PAGE_OPTIONS + PICTURE_OPTIONS)


def _webshop(env_id, part, path, options):
    from envs.webshop import WebShop

    return WebShop(**text_options(env_id, options))


def _webshop_pages(env_id, part, path, options):
    from envs.webshop.pages import WebShopPages

    return WebShopPages(**options)


def _alfworld(env_id, part, path, options):
    from envs.alfworld import ALFWorld

    return ALFWorld(**text_options(env_id, options) | ({"size": part} if part else {}))


def _site(env_id, part, path, options):
    from envs.site import Site

    clock = {"virtual_clock": not options.get("real_clock", False)}
    return Site(_file_of(env_id, path, options), **without(options, ("port", "tasks", "real_clock")) | clock)


def _webgym(env_id, part, path, options):
    from envs.webgym import WebGym

    return WebGym(_file_of(env_id, path, options), **without(options, ("port", "tasks", "real_clock")))  # it has one


def _file_of(env_id, path, options):
    name = env_id.partition(":")[0]
    if not (path := options.get("tasks") or path):
        page = "hacking" if name == "site" else "webgym"
        way = f"{name}:FILE, or --tasks FILE where the script has it"
        raise UsageError(f"--env-id {name} needs a file of tasks: {way} (docs/{page}.md has an example)")
    return path


def _webarena(env_id, part, path, options):
    from envs.webarena_sites import WebArena

    name = env_id.partition(":")[0].partition("/")[0]
    return WebArena(name, path, part.split("+") if part else None, **without(options, ("port",)))


def _miniwob(env_id, part, path, options):
    from envs.miniwob import MiniWoB

    return MiniWoB(part, **without(options, ("port",)))


def _phone(env_id, part, path, options):
    from envs.phone import attached, simulated

    name, tasks, serials = env_id.partition("/")[0], options.pop("tasks", ""), options.pop("serials", ())
    options = without(options, PAGE_OPTIONS)
    if env_id.partition(":")[0] == "phone" and (path or tasks or serials):
        if not (path := tasks or path) or not serials:
            raise UsageError("your own phones: --env-id phone:FILE --serials NAME.. (docs/android.md has an example)")
        if options.pop("phone_delay", 0) not in (0, "0", ""):
            raise UsageError("phone_delay is for simulated phones: yours take the time that they take")
        return attached(path, serials, **without(options, ("viewport", "phone_spread")))
    if serials:
        raise UsageError(f"--serials is for --env-id phone:FILE, not {env_id}")
    if full_name(name) not in ("phone-v1", "phone-adb-v1"):
        raise UsageError(f"--env-id {env_id}: there are phone-v1 and phone-adb-v1")
    return simulated(part.split("+") if part else None, adb=name.startswith("phone-adb"), **options)


def _arena(env_id, part, path, options):
    from envs.arena import VERSIONS, Arena

    name = env_id.partition("/")[0]
    known = VERSIONS.get(full_name(name))
    if known is None:
        versions = " and ".join(version for version in VERSIONS if version.startswith(name.partition("-")[0]))
        raise UsageError(f"--env-id {env_id}: there is {versions}")
    if known == ("gallery",):
        return Arena(sites=known, only=part.split("+") if part else (), **options)
    sites = part.split("+") if part else known
    if not set(sites) <= set(known):
        raise UsageError(f"--env-id {env_id}: its sites are {', '.join(known)} (join several with +)")
    return Arena(sites=sites, **options)


# name -> what makes it of (env_id, what is behind the "/", what is behind the ":", options)
ENVIRONMENTS = {
    "arena": _arena, "gallery": _arena, "webshop": _webshop, "webshop-pages": _webshop_pages, "alfworld": _alfworld,
    "webarena": _webarena, "webarena-lite": _webarena, "miniwob": _miniwob, "phone": _phone, "phone-adb": _phone,
    "site": _site, "webgym": _webgym,
}  # fmt: skip
WITH_TASKS = "site", "webgym", "webarena", "webarena-lite", "phone"  # those that take a file of tasks


def _own(env_id, module, name, options):
    """An environment of one's own, "module:Class": the class gets those of the script's options that it takes."""
    sys.path.insert(0, os.getcwd())
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--env-id {env_id}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    takes = inspect.signature(kind).parameters
    if options.get("screenshots") and "screenshots" not in takes:
        raise UsageError(f"--env-id {env_id}: {name} takes no `screenshots`: there is no picture of it")
    return kind(**{option: value for option, value in options.items() if option in takes})


def make(env_id: str, **options: Any) -> Environment:
    """The environment of that name; nothing is started before its first `reset`.

    "arena" (five sites and the tasks between them; "arena/map+code": some of the sites), which is short for "arena-v2";
    "arena-v1": the tasks of two sites that the first results are of; "gallery": a site for those who see
    ("gallery/easy+put2": some of its tasks, by level or template); see envs/arena.
    "site:tasks.json" (or "site" and `tasks`): the tasks of a file on any web site, see envs/site.py;
    "webgym:tasks.jsonl": the same with WebGym's tasks and its rubric judge, see envs/webgym.py. "webarena",
    "webarena-lite" (or "webarena/shopping+reddit": the tasks of some sites, or "webarena:tasks.json": a file of your
    own): the real sites, see envs/webarena_sites.py. "webshop", "alfworld": text in this process, see envs/text.py;
    "webshop-pages": WebShop in the browser; "alfworld/tiny", "alfworld/full": other rooms; "miniwob",
    "miniwob/click-test+enter-text": see envs/miniwob.py. "phone" (or "phone/general+shopping": some groups of its
    tasks): a simulated Android phone; "phone-adb": the same through a real adb server; "phone:tasks.jsonl" (or "phone"
    and `tasks`) with `serials`: your own phones and emulators, see envs/phone. "module:Class": an environment of your
    own, in a module that Python finds from here. Raises UsageError for an unknown name and for what a name cannot have.
    """
    name, _, path = env_id.partition(":")
    name, _, part = name.partition("/")
    kind = name.partition("-v")[0] if name.partition("-v")[0] in NEWEST else name
    if options.get("serials") and kind not in ("phone", "phone-adb"):
        raise UsageError(f"--serials is for --env-id phone:FILE, not {env_id}")
    known = kind in ENVIRONMENTS and (not path or kind in WITH_TASKS)
    takes = SITE_OPTIONS if kind in ("site", "webgym") else SITE_OPTIONS[:1] if kind in WITH_TASKS else ()
    # whether robots.txt is obeyed has a value in every script
    if given := [option for option in SITE_OPTIONS[:-1] if option not in takes and options.get(option)]:
        raise UsageError(f"--{given[0].replace('_', '-')} is for --env-id site and webgym, not {env_id}")
    options = without(options, [option for option in SITE_OPTIONS if option not in takes])
    options = options if kind in ("phone", "phone-adb") else without(options, ("serials",))
    if known:
        return ENVIRONMENTS[kind](env_id, part, path, options)
    if path and name not in ENVIRONMENTS:
        return _own(env_id, name, path, options)
    names = ", ".join(f"{name}:FILE" if name in ("site", "webgym") else name for name in ENVIRONMENTS)
    raise UsageError(
        f"--env-id {env_id}: there is no such environment; there are {names}, phone:FILE, and module:Class for your own"
    )


def gym_env(env_id: str, split: str = "train", **options: Any) -> "SynchronousEnv":
    """The same environment as a synchronous `gymnasium.Env`, for code that expects one, notebooks too.

    `reset(seed=n)` begins a task drawn from `split` by the seed, or `reset(options={"task": task})` that one.
    Observations are dicts of text (goal, text, url, title, error), actions are text; `info["obs"]` is all that the
    environment shows. Raises UsageError as `make`.
    """
    from envs.synchronous import SynchronousEnv

    return SynchronousEnv(make(env_id, **options), split)
