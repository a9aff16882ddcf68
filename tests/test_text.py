"""Text environments: the example of docs/hacking.md as it stands there, in both formats."""

import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from common.errors import StateMismatch
from envs import Prefix

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    found = re.findall(r"```python\n# doors\.py\n(.*?)```", (ROOT / "docs/hacking.md").read_text(), re.DOTALL)
    file = tmp_path_factory.mktemp("doors") / "doors.py"
    file.write_text(found[0])
    module = ModuleType("doors")
    SourceFileLoader("doors", str(file)).exec_module(module)
    return module.Doors


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
    assert obs["actions"] == ("look", "open red", "open green", "open blue")
    for wrong in ('do(action="Click", element="9")', 'do(action="Click", element="x")', "open pink", "do(", ""):
        obs, reward, terminated, truncated, _ = await env.step(wrong)
        assert obs["error"] and not reward and not terminated
        if truncated:
            break
    assert truncated  # five steps
    await env.reset(task)
    await env.step('do(action="Click", element="1")')
    _, reward, terminated, _, info = await env.step('do(action="Click", element="2")')
    assert terminated and reward == 0.0 and info["score"] == 0.0  # the red one, not the green one


async def test_a_state_comes_back_in_another_slot(doors):
    env = doors()
    task, other = env.tasks("train")[0], env.fork()
    await env.reset(task)
    await env.step("look")
    prefix = await env.prefix()
    obs, info = await other.restore(prefix)
    assert info["hash"] == prefix.hashes[-1] and "open red" in obs["actions"]
    *_, info = await other.step("open red")
    assert info["verdict"] == 1.0
    with pytest.raises(StateMismatch):
        await other.restore(Prefix(task, prefix.actions, ("", "0" * 16)))
    with pytest.raises(StateMismatch, match="ended"):
        await other.restore(Prefix(task, ("look", "open red", "look"), ("",) * 4))
    await env.step("look")  # the first slot is where it was
    assert len((await env.prefix()).actions) == 2
