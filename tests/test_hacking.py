"""A script that a user copies and changes is an experiment of its own: its runs, its plots, its prompt."""

import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer

from common.errors import UsageError
from common.lm import llm
from common.lm.run import read_metrics
from common.replay import Step, Task, Trajectory, TrajectoryStore
from tests.scripts import run_script
from tests.test_llm import halving_model
from tools import play

ROOT = Path(__file__).resolve().parent.parent
SMALL = """--num-demos 16 --sft-epochs 1 --cpu-threads 2 --num-envs 8 --groups-per-iteration 2 --group-size 4
--iterations 1 --total-steps 0 --eval-every 9 --test-tasks 2 --max-steps 6 --max-new-tokens 16 --kl-coef 0.01
--save-every 1""".split()
# what the user changes in the copy: a loss, a flag, a metric, the prompt
CHANGES = (
    (
        "    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantages)\n",
        "    return -ratio * advantages\n",
    ),
    (
        "    lockstep: bool",
        '    my_scale: float = 1.0\n    """what my loss is multiplied by"""\n    lockstep: bool',
    ),
    (
        "        loss = policy_loss(logprobs, old_logprobs, advantage, args.clip_eps)\n",
        "        loss = args.my_scale * policy_loss(logprobs, old_logprobs, advantage, args.clip_eps)\n",
    ),
    (
        'metrics |= {"charts/iteration": learner.iteration, "charts/updates": learner.updates}',
        'metrics |= {"charts/iteration": learner.iteration, "charts/updates": learner.updates, "my/metric": 7.0}',
    ),
    ("Task Instruction: ", "My Instruction: "),
)


def python(*argv, code=0, cwd=ROOT):
    done = run_script(argv, os.environ | {"PYTHONPATH": str(ROOT)}, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the copy, a run of it and a run of the original."""
    folder = tmp_path_factory.mktemp("mine")
    text = (ROOT / "crps.py").read_text()
    for before, after in CHANGES:
        assert before in text, before
        text = text.replace(before, after, 1)
    (folder / "mine.py").write_text(text)
    python(folder / "mine.py", *SMALL, "--runs-dir", folder / "runs", "--my-scale", "2")
    python("crps.py", *SMALL, "--runs-dir", folder / "runs", "--seed", "2")
    return folder


def run_of(place, name):
    (run,) = place.glob(f"runs/webshop__{name}__*")
    return run


def test_the_copys_runs_are_its_own(place):
    mine, original = run_of(place, "mine"), run_of(place, "crps")
    assert (mine / "mine.py").is_file() and not (original / "mine.py").exists()
    assert any(row.get("my/metric") == 7 for row in read_metrics(mine))
    assert json.loads((mine / "args.json").read_text())["my_scale"] == 2
    before = {path: path.stat().st_mtime_ns for path in original.rglob("*")}
    flags = [*SMALL, "--runs-dir", place / "runs", "--my-scale", "2"]
    flags[flags.index("--iterations") + 1] = "2"
    python(place / "mine.py", *flags, "--resume", mine)
    assert max(row.get("charts/iteration", 0) for row in read_metrics(mine)) == 2
    assert {path: path.stat().st_mtime_ns for path in original.rglob("*")} == before
    out = python("crps.py", "--resume", mine, code=2)
    assert out.strip() == f"error: --resume {mine}: it is a run of mine.py, not of crps.py"


def test_it_is_plotted_beside_the_original_as_another_experiment(place):
    runs = run_of(place, "mine"), run_of(place, "crps")
    out = python("tools/plot.py", *runs, "--out", place / "plots", "--metrics", "losses/policy_loss")
    assert "| what differs | mine | crps |" in out and "| script | mine.py | crps.py |" in out
    assert "| my scale | 2.0 |" in out and (place / "plots/metrics.png").is_file()


def test_its_checkpoint_is_evaluated_with_its_own_prompt_and_its_episodes_are_shown(place):
    mine = run_of(place, "mine")
    python("tools/eval.py", "--env-id", "webshop", "--model-id", mine, "--num-tasks", 2, "--runs-dir", place / "evals")
    (evaluation,) = (place / "evals").iterdir()
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets/tiny")
    for run, word in ((evaluation, "My Instruction"), (run_of(place, "crps"), "Task Instruction")):
        step = next(iter(TrajectoryStore(run / "trajectories.jsonl"))).steps[0]
        assert tokenizer.decode(step.prompt_ids).startswith(word)
    assert "episodes.html" in python("tools/view.py", mine)


def diffs(page="hacking.md"):
    """(before, after) of every diff in a page of docs/."""
    found = []
    for block in re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL):
        lines = [(line[:1], line[1:]) for line in block.split("\n")[:-1]]
        before, after = (
            "\n".join(text for mark, text in lines if mark in kept or (not mark and kept)) for kept in (" -", " +")
        )
        found.append((before, after))
    return found


@pytest.fixture
def changed(tmp_path):
    """The files that docs/hacking.md changes, as modules, with all of its diffs applied."""
    texts = {name: (ROOT / name).read_text() for name in ("webrl.py", "crps.py", "common/lm/llm.py")}
    found = diffs()
    assert len(found) == 5 and all(len(after.split("\n")) <= 15 for _, after in found)
    for before, after in found:
        (name,) = [name for name, text in texts.items() if text.count(before) == 1]  # in one place
        texts[name] = texts[name].replace(before, after)
    modules = {}
    for name, text in texts.items():
        path = tmp_path / f"my_{Path(name).name}"
        path.write_text(text)
        modules[Path(name).stem] = play.load_script(path)
    return SimpleNamespace(**modules)


def test_the_first_hours_loss_is_the_one_below():
    (found,) = diffs("first_hour.md")
    assert found in diffs()


def test_a_loss_of_ones_own(changed):
    module = changed.webrl
    logprobs, reference, advantages = (torch.tensor(x, requires_grad=True) for x in ([-1.0], [-2.0], [0.5]))
    loss = module.VARIANTS["mine"].loss(logprobs, reference, advantages, torch.tensor([3]), module.Args())
    assert loss.item() == pytest.approx(0.5 * (0.1 - 0.5) ** 2)
    assert module.policy_loss(logprobs, reference, advantages, 0.1).item() == pytest.approx(loss.item())
    # the flag is taken: what is refused is the next thing that is wrong
    with pytest.raises(UsageError, match="--beta must be above 0"):
        module.main(module.Args(loss="mine", beta=0.0))
    with pytest.raises(UsageError, match="--loss yours: one of paper, mine, reinforce"):
        module.main(module.Args(loss="yours"))


def test_an_advantage_of_ones_own(changed):
    module = changed.crps
    steps = [Step([1], [2], [-0.1], 0, "page", "act") for _ in range(2)]
    rollouts = [Trajectory(Task("a", "shop", "buy", 3), 0, 0, [s], reward=r) for s, r in zip(steps, (1.0, 0.0))]
    args = module.Args(algorithm="mine")
    module.set_advantages([module.Group(None, None, 0, rollouts)], module.Learner(None, None), args)
    assert [step.advantage for step in steps] == [0.5, -0.5]
    with pytest.raises(UsageError, match="--k-max 1 is below"):  # the flag is taken
        module.main(module.Args(algorithm="mine", k_max=1, k_min=2))


def test_a_replay_of_ones_own(changed):
    buffer = [
        Trajectory(Task("a", "shop", "buy", 3), 0, 0, [Step([1], [2], [], 0, "page", "act")], phase=phase)
        for phase in (1, 3, 2)
    ]
    actor = SimpleNamespace(score=lambda function, steps: [(0.0, 1.5)] * len(steps))  # all are in the band
    steps, share = changed.webrl.draw_replay(buffer, actor, 2, random.Random(0), changed.webrl.Args())
    assert [step.trajectory.phase for step in steps] == [3, 2] and share == 1.0


def test_a_model_of_ones_own(changed):
    model = halving_model()
    model.config.my_multiplier = 0.5
    with pytest.raises(UsageError, match="in a way not known here"):
        llm.check_head(model, "mine")
    changed.llm.check_head(model, "mine")
