"""Text environments: the example of docs/hacking.md as it stands there, in both formats."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from common.errors import StateMismatch
from common.lm.run import read_metrics
from envs import Prefix

ROOT = Path(__file__).resolve().parent.parent
(DOORS,) = re.findall(r"```python\n# doors\.py\n(.*?)```", (ROOT / "docs/hacking.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    file = tmp_path_factory.mktemp("doors") / "doors.py"
    file.write_text(DOORS)
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
    assert len(obs["actions"]) == 7 and f"open {task.template}" in obs["actions"]
    for wrong in ('do(action="Click", element="9")', 'do(action="Click", element="x")', "open tin", "do(", ""):
        obs, reward, terminated, truncated, _ = await env.step(wrong)
        assert obs["error"] and not reward and not terminated
        if truncated:
            break
    assert truncated  # five steps
    await env.reset(task)
    obs, *_ = await env.step('do(action="Click", element="1")')
    wrong = next(n for n, action in enumerate(obs["actions"], 1) if n > 1 and action != f"open {task.template}")
    _, reward, terminated, _, info = await env.step(f'do(action="Click", element="{wrong}")')
    assert terminated and reward == 0.0 and info["score"] == 0.0


async def test_a_state_comes_back_in_another_slot(doors):
    env = doors()
    task, other = env.tasks("train")[0], env.fork()
    right = f"open {task.template}"
    await env.reset(task)
    await env.step("look")
    prefix = await env.prefix()
    obs, info = await other.restore(prefix)
    assert info["hash"] == prefix.hashes[-1] and right in obs["actions"]
    *_, info = await other.step(right)
    assert info["verdict"] == 1.0
    with pytest.raises(StateMismatch):
        await other.restore(Prefix(task, prefix.actions, ("", "0" * 16)))
    with pytest.raises(StateMismatch, match="ended"):
        await other.restore(Prefix(task, ("look", right, "look"), ("",) * 4))
    await env.step("look")  # the first slot is where it was
    assert len((await env.prefix()).actions) == 2


def test_the_example_of_the_docs_trains(tmp_path):
    """As the page says, with fewer steps: reinforcement gains on doors that no training task names."""
    (tmp_path / "doors.py").write_text(DOORS)
    flags = "--env-id doors:Doors --num-demos 8 --total-steps 2000 --eval-tasks 4 --test-tasks 60 --lockstep".split()
    command = [sys.executable, ROOT / "crps.py", *flags, "--runs-dir", tmp_path / "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    success = {name: value for row in read_metrics(run) for name, value in row.items() if name.endswith("/success")}
    assert success["test_after/success"] > success["test_before/success"] + 0.1
