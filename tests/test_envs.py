"""envs.make and envs.gym_env: the list of environments, and the arena under Gymnasium's own checker."""

import subprocess
import sys
import warnings

import pytest

import envs
from common.errors import UsageError


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


def test_gymnasiums_checker_accepts_it():
    from gymnasium.utils.env_checker import check_env

    env = envs.gym_env("arena")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*(spec|render).*")
            check_env(env, skip_render_check=True)
        task = env.unwrapped.env.tasks("train")[0]
        obs, _ = env.reset(options={"task": task})
        assert obs["goal"] == task.instruction
        for move in env.unwrapped.env.oracle(task):
            action = env.unwrapped.env.resolve(move, obs)
            obs, reward, terminated, _, _ = env.step(action)
        assert terminated and reward == 1.0
    finally:
        env.close()


def test_gymnasiums_checker_accepts_a_text_environment():
    from gymnasium.utils.env_checker import check_env

    env = envs.gym_env("webshop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(spec|render).*")
        check_env(env, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("env_id", ["arena", "webshop", "webshop-pages", "alfworld"])
def test_environments_do_not_import_torch(env_id):
    code = f"import sys, envs; env = envs.make({env_id!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
