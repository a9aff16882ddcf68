"""Environments. `make(env_id)` is the one list of them; every one keeps the contract of docs/environments.md.

Text in, text out; nothing under `envs/` imports torch. An environment's `reset`, `step` and `close` are coroutines that
return Gymnasium's tuples; `gym_env(env_id)` wraps one as a synchronous `gymnasium.Env`.
"""

import hashlib
from dataclasses import dataclass

from common.errors import StateMismatch, UsageError


@dataclass(frozen=True)
class Task:
    """One instruction in one world.

    `seed` is the content seed of the world the task lives in; `config` is the task in WebArena's JSON schema (sites,
    start_url, intent, intent_template, instantiation_dict, eval). `steps` is what the oracle needs, 0 where unknown.
    """

    task_id: str
    site: str
    instruction: str
    max_steps: int
    split: str = "train"
    seed: int = 0
    template: str = ""
    requirements: int = 1
    steps: int = 0
    config: dict | None = None


def observation_hash(obs):
    """16 hex digits for what the agent sees (address without the port, title, text, admissible actions): equal across
    ports and runs."""
    path = obs["url"].partition("://")[2].partition("/")[2]
    seen = "\n".join((path, obs["title"], obs["text"], *obs.get("actions", ())))
    return hashlib.sha256(seen.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Prefix:
    """The beginning of an episode, as `env.restore` wants it: what was done, and the hash of what was seen after it.

    `hashes` has one entry more than `actions`: the start page's. `snapshot` is the server's state, or a phone's, and
    `history` the paths of the tab's pages, the current one last; both are left out where only a replay can bring the
    page back.
    """

    task: Task
    actions: tuple[str, ...]
    hashes: tuple[str, ...]
    snapshot: object = None
    history: tuple[str, ...] = ()


async def replay(env, prefix):
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


def full_name(env_id):
    """`env_id` with the version of its tasks, which results are kept under: "arena/map" is "arena-v2/map"."""
    name, slash, part = env_id.partition("/")
    return f"{name}-v{NEWEST[name]}{slash}{part}" if name in NEWEST else env_id


# What a script may ask of any environment, and a phone has no use for: it has no browser, and its screens are short.
PAGE_OPTIONS = "port", "page_tokens", "count_tokens", "real_input"
SITE_OPTIONS = "tasks", "start_url", "hosts", "action_interval", "obey_robots"


def make(env_id, **options):
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
    and `tasks`) with `serials`: your own phones and emulators, see envs/phone. Raises UsageError for an unknown name.
    """
    site = {name: options.pop(name) for name in SITE_OPTIONS if name in options}
    serials = options.pop("serials", ())
    if serials and not env_id.startswith("phone"):
        raise UsageError(f"--serials is for --env-id phone:FILE, not {env_id}")
    if env_id.startswith("phone"):
        options = {name: value for name, value in options.items() if name not in PAGE_OPTIONS}
    if env_id.startswith("webarena"):
        options["tasks"] = site.pop("tasks", "")  # training instructions
    name, _, path = env_id.partition(":")
    if name in ("site", "webgym"):
        from envs.site import Site
        from envs.webgym import WebGym

        path = site.pop("tasks", "") or path
        if not path:
            page = "hacking" if name == "site" else "webgym"
            way = f"{name}:FILE, or --tasks FILE where the script has it"
            raise UsageError(f"--env-id {name} needs a file of tasks: {way} (docs/{page}.md has an example)")
        options.pop("port", None)  # of a server that we start
        return (Site if name == "site" else WebGym)(path, **site, **options)
    if name == "phone" and (path or site.get("tasks") or serials):
        from envs.phone import attached

        path = site.pop("tasks", "") or path
        if not path or not serials:
            raise UsageError("your own phones: --env-id phone:FILE --serials NAME.. (docs/android.md has an example)")
        if options.pop("phone_delay", 0) not in (0, "0", ""):
            raise UsageError("phone_delay is for simulated phones: yours take the time that they take")
        for other in ("viewport", "phone_spread"):
            options.pop(other, None)
        return attached(path, serials, **options)
    if serials:
        raise UsageError(f"--serials is for --env-id phone:FILE, not {env_id}")
    if given := [name for name in SITE_OPTIONS[:-1] if site.get(name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} is for --env-id site and webgym, not {env_id}")
    if env_id == "webshop":
        from envs.webshop import WebShop

        return WebShop(**options)
    if env_id == "webshop-pages":
        from envs.webshop.pages import WebShopPages

        return WebShopPages(**options)
    if env_id.startswith("webarena"):
        from envs.webarena_sites import BENCHMARKS, WebArena

        name, _, path = env_id.partition(":")
        name, _, part = name.partition("/")
        if name in BENCHMARKS:
            options.pop("port", None)
            return WebArena(name, path, part.split("+") if part else None, **options)
    name, _, part = env_id.partition("/")
    if name == "alfworld":
        from envs.alfworld import ALFWorld

        return ALFWorld(**options | ({"size": part} if part else {}))
    if name == "miniwob":
        from envs.miniwob import MiniWoB

        options.pop("port", None)
        return MiniWoB(part, **options)
    if name.partition("-v")[0] in ("phone", "phone-adb"):
        from envs.phone import simulated

        if full_name(name) not in ("phone-v1", "phone-adb-v1"):
            raise UsageError(f"--env-id {env_id}: there are phone-v1 and phone-adb-v1")
        return simulated(part.split("+") if part else None, adb=name.startswith("phone-adb"), **options)
    if full_name(name).partition("-v")[0] in NEWEST:
        from envs.arena import VERSIONS, Arena

        known = VERSIONS.get(full_name(name))
        if known is None:
            versions = " and ".join(version for version in VERSIONS if version.startswith(name.partition("-")[0]))
            raise UsageError(f"--env-id {env_id}: there is {versions}")
        if known == ("gallery",):
            return Arena(sites=known, only=part.split("+") if part else (), **options)
        sites = part.split("+") if part else known
        if set(sites) <= set(known):
            return Arena(sites=sites, **options)
        raise UsageError(f"--env-id {env_id}: its sites are {', '.join(known)} (join several with +)")
    known = (
        "arena (or arena/map, ..), gallery, webshop, webshop-pages, alfworld, webarena, webarena-lite, miniwob, phone"
    )
    known += ", phone-adb, phone:FILE, site:FILE and webgym:FILE"
    raise UsageError(f"--env-id {env_id}: there is no such environment; there are {known}")


def gym_env(env_id, split="train", **options):
    """The same environment as a synchronous `gymnasium.Env`, for code that expects one.

    `reset(seed=n)` begins a task drawn from `split` by the seed, or `reset(options={"task": task})` that one.
    Observations are dicts of text (goal, text, url, error), actions are text.
    """
    import asyncio
    import string

    import gymnasium
    from gymnasium.spaces import Dict, Text

    charset = string.printable
    keys = ("goal", "text", "url", "error")

    class SynchronousEnv(gymnasium.Env):
        metadata = {"render_modes": []}
        observation_space = Dict({key: Text(100_000, min_length=0, charset=charset) for key in keys})
        action_space = Text(4096, min_length=0, charset=charset)

        def __init__(self):
            self.env = make(env_id, **options)
            self.runner = asyncio.Runner()

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            tasks = self.env.tasks(split)
            task = (options or {}).get("task") or tasks[int(self.np_random.integers(len(tasks)))]
            obs, info = self.runner.run(self.env.reset(task, seed=seed or 0))
            return self._plain(obs), info

        def step(self, action):
            obs, reward, terminated, truncated, info = self.runner.run(self.env.step(action))
            return self._plain(obs), float(reward), terminated, truncated, info

        def close(self):
            self.runner.run(self.env.close())
            self.runner.close()

        def _plain(self, obs):
            return {key: "".join(c if c in charset else "?" for c in obs[key]) for key in keys}

    return SynchronousEnv()
