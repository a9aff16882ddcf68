"""envs.make and envs.gym_env: the list of environments, and the arena under Gymnasium's own checker."""

import importlib
import inspect
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import psutil
import pytest

import envs
from common.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


def test_unknown_environments_are_one_clear_line():
    with pytest.raises(UsageError, match="there is no such environment"):
        envs.make("mars")
    with pytest.raises(UsageError, match="its sites are shop, forum"):
        envs.make("arena/shop+bank")


def test_a_name_holds_the_version_of_its_tasks():
    assert [envs.full_name(name) for name in ("arena", "arena/map", "arena-v1", "webshop")] == [
        "arena-v2",
        "arena-v2/map",
        "arena-v1",
        "webshop",
    ]
    assert envs.make("arena").tasks("eval") == envs.make("arena-v2").tasks("eval")
    assert {task.site for task in envs.make("arena-v1").tasks("eval")} == {"shop", "forum"}
    with pytest.raises(UsageError, match="arena-v1/map: its sites are shop, forum "):
        envs.make("arena-v1/map")
    for name in ("arena-v3", "arena-v", "arena-vx"):
        with pytest.raises(UsageError, match="there is arena-v1 and arena-v2"):
            envs.make(name)


DOORS = """
from envs import Task
from envs.text import Move, Page, TextEnv


class Doors(TextEnv):
    def tasks(self, split):
        return [Task(f"{split}-{c}", "doors", f"open the {c} door", 3, split, template=c) for c in ("red", "blue")]

    def oracle(self, task):
        return [Move(f"open {task.template}")]

    def _begin(self, task):
        return self._page("two doors")

    def _do(self, text):
        return self._page("it opens", score=float(text == f"open {self._task.template}"))

    def _page(self, text, **more):
        actions = "open red", "open blue"
        return Page(text, actions, lines=(text,), elements=tuple((action, "button") for action in actions), **more)
"""
SCRIPTS_OPTIONS = dict(page_tokens=100, count_tokens=len, port=0, real_input=False, screenshots=False, obey_robots=True)


def test_an_environment_of_ones_own_needs_no_line_here(tmp_path, monkeypatch):
    (tmp_path / "my_doors.py").write_text(DOORS)
    monkeypatch.chdir(tmp_path)
    env = envs.make("my_doors:Doors", **SCRIPTS_OPTIONS)
    task = env.tasks("train")[0]
    assert task.config is None and envs.has_check(env, task)  # it scores every episode
    assert env.task_from_text("another", task) is None
    with pytest.raises(UsageError, match="nothing varies the instructions of Doors: --no-curriculum"):
        env.vary(task, None)
    with pytest.raises(UsageError, match="my_doors:Doors: Doors takes no `screenshots`: there is no picture of it"):
        envs.make("my_doors:Doors", screenshots=True)
    for name, says in (("my_doors:Windows", "has no attribute 'Windows'"), ("your_doors:Doors", "No module named")):
        with pytest.raises(UsageError, match=says):
            envs.make(name)


@pytest.mark.parametrize("name", ["webshop", "alfworld"])
def test_text_environments_take_what_scripts_offer_and_have_no_pictures(name):
    if name == "alfworld":
        pytest.importorskip("textworld", reason="pip install -r requirements-alfworld.txt")
    assert envs.make(name, **SCRIPTS_OPTIONS).scores_all
    with pytest.raises(UsageError, match=f"--env-id {name} is text: there is no picture of it, for an agent that sees"):
        envs.make(name, screenshots=True, viewport=(96, 96), paced=True)


def test_one_site_has_its_own_tasks_only():
    env = envs.make("arena/forum")
    assert {task.site for task in env.tasks("eval")} == {"forum"}


def check_under_gymnasium(env):
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(spec|render).*")
        check_env(env, skip_render_check=True)


def play_oracle(env):
    """The last step of the first training task's oracle; what was shown before it is in `info`, whole."""
    inner = env.unwrapped.env
    task = inner.tasks("train")[0]
    obs, info = env.reset(options={"task": task})
    assert obs["goal"] == info["obs"]["goal"] == task.instruction
    for move in inner.oracle(task):
        obs, reward, terminated, _, info = env.step(inner.resolve(move, info["obs"]))
    assert terminated and reward == 1.0
    return obs, info


def test_gymnasiums_checker_accepts_it():
    env = envs.gym_env("arena/shop", screenshots=True)
    try:
        check_under_gymnasium(env)
        obs, info = play_oracle(env)
        assert info["obs"]["screenshot"].startswith(b"\x89PNG") and info["obs"]["boxes"] and info["verdict"] == 1.0
        assert obs["title"] == info["obs"]["title"]
    finally:
        env.close()


async def test_it_works_where_an_event_loop_is_running():
    """As in a notebook: in the loop's own thread."""
    env = envs.gym_env("arena/shop")
    threads = set(threading.enumerate())
    try:
        play_oracle(env)
    finally:
        env.close()
    env.close()
    assert not env._thread.is_alive() and env._thread in threads and not env.unwrapped.env._shared.server.alive


def test_gymnasiums_checker_accepts_a_text_environment():
    env = envs.gym_env("webshop")
    check_under_gymnasium(env)
    _, info = play_oracle(env)
    assert info["obs"].keys() >= {"actions", "screenshot"} and info["hash"] and info["score"] == 1.0
    env.close()


def test_what_no_space_of_gymnasiums_can_list_is_whole_in_info(tmp_path, monkeypatch):
    (tmp_path / "french_doors.py").write_text(DOORS.replace("two doors", "deux portes à côté"))
    monkeypatch.chdir(tmp_path)
    env = envs.gym_env("french_doors:Doors")
    obs, info = env.reset(seed=1)
    env.close()
    assert "portes ? c?t?" in obs["text"] and "portes à côté" in info["obs"]["text"] and obs in env.observation_space


LEFT_OPEN = """
import sys, psutil, envs
env = envs.gym_env(sys.argv[1])
env.reset(seed=0)
print(*(child.pid for child in psutil.Process().children(recursive=True)))
"""


def test_one_that_nobody_closes_ends_with_the_interpreter():
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN, "arena/shop"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    children = [int(pid) for pid in done.stdout.split()]
    left = [psutil.Process(pid) for pid in children if psutil.pid_exists(pid)]
    left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]  # ended, and nobody's now
    assert children and not psutil.wait_procs(left, timeout=60)[1]


def test_every_environment_keeps_the_contract():
    """The methods of envs.Environment, with its arguments' names."""
    from envs.alfworld import ALFWorld
    from envs.arena import Arena
    from envs.miniwob import MiniWoB
    from envs.phone import PhoneEnv
    from envs.site import Site
    from envs.webarena_sites import WebArena
    from envs.webgym import WebGym
    from envs.webshop import WebShop
    from envs.webshop.pages import WebShopPages

    contract = {name: value for name, value in vars(envs.Environment).items() if inspect.isfunction(value)}
    table = (ROOT / "docs/environments.md").read_text()
    for name in contract:
        assert name.startswith("_") or f"env.{name}(" in table, name
    public = {name: list(inspect.signature(m).parameters) for name, m in contract.items() if not name.startswith("_")}
    assert len(public) == 11
    for kind in (ALFWorld, Arena, MiniWoB, PhoneEnv, Site, WebArena, WebGym, WebShop, WebShopPages):
        for name, takes in public.items():
            if kind is PhoneEnv and name == "tasks":  # a function that its constructor is given
                continue
            if name == "resolve" and not hasattr(kind, name):  # nothing has an oracle's moves there
                assert kind in (Site, WebArena, WebGym)
                continue
            assert list(inspect.signature(getattr(kind, name)).parameters) == takes, (kind, name)


@pytest.mark.parametrize("module", ["envs", "envs.site", "envs.text", "envs.synchronous"])
def test_public_functions_have_type_hints(module):
    module = importlib.import_module(module)
    found = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    functions = [value for value in found if inspect.isfunction(value)]
    for kind in (kind for kind in found if inspect.isclass(kind) and not kind.__name__.startswith("_")):
        functions += [value for value in vars(kind).values() if inspect.isfunction(value)]
    functions = [f for f in functions if not f.__name__.startswith("_") or f.__name__ == "__init__"]
    assert functions
    for function in functions:
        takes = [name for name in inspect.signature(function).parameters if name != "self"]
        hints = set(function.__annotations__)
        missing = {*takes, *([] if function.__name__ in ("__init__",) else ["return"])} - hints
        assert not missing or function.__qualname__.startswith("Environment._"), (function.__qualname__, missing)


WITHOUT_TORCH = """
import sys, envs, envs.webarena_sites
for env_id in ("arena", "webshop", "webshop-pages", "alfworld"):
    envs.make(env_id)
    assert "torch" not in sys.modules, env_id
"""


def test_environments_do_not_import_torch():
    assert subprocess.run([sys.executable, "-c", WITHOUT_TORCH]).returncode == 0
