"""Text environments: the example of docs/hacking.md as it stands there, in both formats, and its training."""

import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from common.errors import StateMismatch
from common.lm.run import read_metrics
from envs import Prefix
from tests.scripts import run_script

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/hacking.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    (folder / "doors.py").write_text(re.search(r"```python\n# doors\.py\n(.*?)```", PAGE, re.DOTALL)[1])
    return folder


@pytest.fixture(scope="module")
def doors(folder):
    module = ModuleType("doors")
    SourceFileLoader("doors", str(folder / "doors.py")).exec_module(module)
    return module.Doors


def test_it_trains_to_a_success_that_moves(folder, tmp_path):
    """The page's command, cut short: on doors that no training task names."""
    flags = re.search(r"^\.venv/bin/python crps\.py (--env-id doors:Doors .*)$", PAGE, re.MULTILINE)[1].split()
    short = "--lockstep --total-steps 1200 --eval-every 99 --eval-tasks 0 --test-tasks 50 --save-every 99".split()
    done = run_script([ROOT / "crps.py", *flags, *short, "--runs-dir", tmp_path], cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    rows = read_metrics(run)
    before = next(row["test_before/success"] for row in rows if "test_before/success" in row)
    assert 0.2 < before < 0.8 and rows[-1]["test_after/success"] > before + 0.15, rows[-1]


@pytest.mark.parametrize("format", ["compact", "original"])
async def test_its_oracle_solves_it(doors, format):
    env = doors(format=format)
    for task in env.tasks("train"):
        obs, info = await env.reset(task)
        for move in env.oracle(task):
            assert obs["error"] == "" and obs["goal"] == task.instruction
            obs, reward, terminated, truncated, info = await env.step(env.resolve(move, obs))
        assert (reward, terminated, truncated, info["verdict"], info["score"]) == (1.0, True, False, 1.0, 1.0)
        with pytest.raises(RuntimeError):
            await env.step("look")


async def test_actions_are_numbered_elements_and_their_own_words(doors):
    env = doors()
    task = env.tasks("train")[1]
    obs, _ = await env.reset(task)
    assert obs["text"] == 'text "a curtain"\n"look" button [1]' and obs["actions"] == ("look",)
    assert env.resolve(env.oracle(task)[0], obs) == '# Element: "look" button [1]\ndo(action="Click", element="1")'
    with pytest.raises(LookupError):
        env.resolve(env.oracle(task)[1], obs)
    obs, *_ = await env.step("look")
    opens = obs["actions"][1:]
    assert obs["actions"][0] == "look" and len(set(opens)) == 6 and f"open {task.template}" in opens
    for wrong in ('do(action="Click", element="9")', 'do(action="Click", element="x")', "open pink", "do(", ""):
        obs, reward, terminated, truncated, _ = await env.step(wrong)
        assert obs["error"] and not reward and not terminated
        if truncated:
            break
    assert truncated  # five steps
    await env.reset(task)
    await env.step('do(action="Click", element="1")')
    other = next(number for number, action in enumerate(opens, 2) if action != f"open {task.template}")
    _, reward, terminated, _, info = await env.step(f'do(action="Click", element="{other}")')
    assert terminated and reward == 0.0 and info["score"] == 0.0  # another door than the task's


def test_no_task_is_in_two_splits(doors):
    named = [{task.template for task in doors().tasks(split)} for split in ("train", "eval", "test")]
    assert all(named) and len(set().union(*named)) == sum(map(len, named))


async def test_a_state_comes_back_in_another_slot(doors):
    env = doors()
    task, other = env.tasks("train")[0], env.fork()
    await env.reset(task)
    await env.step("look")
    prefix = await env.prefix()
    obs, info = await other.restore(prefix)
    assert info["hash"] == prefix.hashes[-1] and f"open {task.template}" in obs["actions"]
    *_, info = await other.step(f"open {task.template}")
    assert info["verdict"] == 1.0
    with pytest.raises(StateMismatch):
        await other.restore(Prefix(task, prefix.actions, ("", "0" * 16)))
    with pytest.raises(StateMismatch, match="ended"):
        await other.restore(Prefix(task, ("look", f"open {task.template}", "look"), ("",) * 4))
    await env.step("look")  # the first slot is where it was
    assert len((await env.prefix()).actions) == 2
