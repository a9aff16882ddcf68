"""crps.py from end to end: it learns, goes on after a kill bit for bit, trains what large models need, plays others."""

import math
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from common.lm import checkpoint, llm
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests import glossary
from tests.scripts import run_script, run_two
from tests.test_prompts import QWEN
from tests.test_resume import KILLER

ROOT = Path(__file__).resolve().parent.parent
# Doors of docs/hacking.md: episodes of two steps, at which eight demonstrations make a policy succeed now and then.
SMALL = """--env-id doors:Doors --num-demos 8 --cpu-threads 2 --num-envs 16 --groups-per-iteration 4 --group-size 4
--eval-tasks 2 --test-tasks 2 --eval-every 2 --save-every 1 --iterations 2 --total-steps 0 --lockstep""".split()


@pytest.fixture(scope="module", autouse=True)
def doors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    page = (ROOT / "docs/hacking.md").read_text()
    (folder / "doors.py").write_text(re.search(r"```python\n# doors\.py\n(.*?)```", page, re.DOTALL)[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


def run_crps(runs_dir, *flags, kill=None, run=run_script):
    """`crps.py` with these flags; with `kill` (module, function, n) it must not survive the n-th call."""
    script = ["-c", KILLER.replace("webrl.py", "crps.py"), *kill, "crps.py"] if kill else ["crps.py"]
    done = run([*script, "--runs-dir", runs_dir, *flags], dict(os.environ))
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stdout + done.stderr
    return done.stdout + done.stderr


def metrics(run):
    rows = read_metrics(run)
    return [{name: repr(value) for name, value in row.items() if not name.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(a run's flags, the run, what it said): with a critic; in the second batch every buffered task is replayed."""
    folder = tmp_path_factory.mktemp("whole")
    flags = [*SMALL, "--algorithm", "ppo", "--p-replay", "1"]
    output = run_crps(folder, *flags)
    (run,) = folder.iterdir()
    return flags, run, output


def test_a_run_s_output_metrics_and_restarts(whole):
    _, run, output = whole
    for part in ("Test success", "Task score", "Episodes", "Plots"):
        assert part in output
    rows = read_metrics(run)
    glossary.check("crps.md", rows)
    assert [row["charts/iteration"] for row in rows] == [0, 1, 2, 2]
    assert rows[2]["groups/replayed"] > 0 and rows[2]["charts/restored_steps"] > 0
    stored = list(TrajectoryStore(run / "trajectories.jsonl"))
    replayed = [t for t in stored if t.prefix]
    assert replayed, "no replay group in this run: choose another seed"
    by_task = {}
    for t in stored:
        by_task.setdefault(t.task.task_id, []).append(t)
    for t in replayed:  # every prefix is the beginning of a success that was stored before
        sources = [s for s in by_task[t.task.task_id] if s.reward == 1.0 and s.steps[: t.prefix] == t.steps[: t.prefix]]
        assert any(s is not t for s in sources)
        assert t.steps[t.prefix].hash == sources[0].steps[t.prefix].hash
    steps = sum(len(t.steps) - t.prefix for t in stored if t.policy == "rollouts")
    assert rows[-1]["global_step"] == steps  # restored steps are not interactions


def test_killed_and_resumed_is_bit_for_bit_the_run_that_was_not(tmp_path, whole):
    flags, expected, _ = whole
    for kill, iteration in (
        (("common.lm.net", "Net.values", 1), 0),  # the first batch's update
        (("common.lm.checkpoint", "save", 2), 1),  # the second batch, replays among it, is done but not saved
    ):
        run_crps(tmp_path, *flags, "--resume", "auto", kill=kill)
        (run,) = tmp_path.iterdir()
        assert checkpoint.latest(run).state["counts"]["iteration"] == iteration
    run_crps(tmp_path, *flags, "--resume", "auto")
    assert metrics(run) == metrics(expected)
    for name in ("actor/model.safetensors", "critic.safetensors"):
        ours, theirs = (checkpoint.latest(r).path / name for r in (run, expected))
        assert ours.read_bytes() == theirs.read_bytes()
    assert list(TrajectoryStore(expected / "trajectories.jsonl")) == list(TrajectoryStore(run / "trajectories.jsonl"))


def test_two_processes_give_the_losses_of_one(tmp_path, whole):
    flags, one, _ = whole
    out = run_crps(tmp_path, *flags, "--cpu-threads", "1", run=run_two)
    assert out.count("2 processes") == out.count("run folder") == 1
    (two,) = tmp_path.iterdir()
    rows = [read_metrics(run) for run in (one, two)]
    assert len(rows[0]) == len(rows[1])
    for a, b in zip(*rows, strict=True):
        for name in a:
            if not name.startswith("time/") and not (isinstance(a[name], float) and math.isnan(a[name])):
                assert math.isclose(a[name], b[name], rel_tol=2e-3, abs_tol=1e-4), (name, a[name], b[name])
    stored = [list(TrajectoryStore(run / "trajectories.jsonl")) for run in (one, two)]
    assert [(t.task.task_id, t.prefix, t.reward) for t in stored[0]] == [
        (t.task.task_id, t.prefix, t.reward) for t in stored[1]
    ]


def test_a_chat_model_with_adapters_and_a_reference(tmp_path):
    """What a large model needs, on a small one and WebShop: chat template, paper's preset, LoRA, KL, wandb."""
    model, tokenizer = llm.load("assets/tiny")
    tokenizer.chat_template = QWEN
    folder = tmp_path / "chat"
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    small = """--preset paper --num-demos 0 --lora-rank 4 --iterations 1 --group-size 2 --groups-per-iteration 2
    --num-envs 4 --max-new-tokens 4 --max-steps 4 --test-tasks 1 --no-test-before --eval-every 9 --track
    --learning-rate 1e-3""".split()
    out = run_crps(tmp_path / "runs", "--model-id", folder, *small)
    assert "Task score" in out
    (run,) = (tmp_path / "runs").iterdir()
    rows = read_metrics(run)
    assert rows[1]["losses/trained_steps"] > 0 and rows[1]["losses/reference_kl"] < 1e-3
    glossary.check("crps.md", rows)
    last = checkpoint.latest(run)
    for name in ("actor", "reference"):
        assert (last.folder(name) / "adapter_model.safetensors").is_file()
    assert list(run.glob("wandb/offline-run-*"))
    stored = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "rollouts"]
    prompt = tokenizer.decode(list(stored[0].steps[1].prompt_ids))
    assert "WebShop e-commerce environment" in prompt and "[SEP]" in prompt and "already taken 1 step" in prompt


def test_rejection_fine_tuning_goes_on_from_fine_tuning_and_learns_once(tmp_path):
    run_crps(tmp_path, *SMALL, "--algorithm", "sft", "--no-test-before")
    (run,) = tmp_path.iterdir()
    titles = [t.policy for t in TrajectoryStore(run / "trajectories.jsonl")]
    assert titles == ["oracle"] * 8 + ["test after"] * 2
    start = checkpoint.latest(run).weights("actor")
    found = []
    for _ in range(2):  # the second time it was finished: the test is played again, nothing else
        run_crps(tmp_path, *SMALL, "--algorithm", "rft", "--no-test-before", "--iterations", "1", "--resume", run)
        assert checkpoint.latest(run).state["counts"]["tuned"]
        titles = [t.policy for t in TrajectoryStore(run / "trajectories.jsonl")]
        assert titles == ["oracle"] * 8 + ["rollouts"] * 16 + ["test after"] * 2
        found.append((metrics(run), checkpoint.latest(run).weights("actor")))
    (rows, tuned), (rows_again, tuned_again) = found
    assert rows_again == rows and all(value.equal(tuned_again[name]) for name, value in tuned.items())
    assert not all(value.equal(start[name]) for name, value in tuned.items())


@pytest.mark.skipif(find_spec("alfworld") is None, reason="needs requirements-alfworld.txt")
def test_alfworld_plays_too(tmp_path):
    small = """--num-demos 6 --sft-epochs 1 --group-size 2 --groups-per-iteration 2 --num-envs 4 --iterations 1
    --eval-every 1 --eval-tasks 1 --test-tasks 6 --no-test-before --max-steps 20 --max-new-tokens 8""".split()
    run_crps(tmp_path, "--env-id", "alfworld/tiny", *small)
    (run,) = tmp_path.iterdir()
    rows = read_metrics(run)
    kinds = {name[16:] for name in rows[-1] if name.startswith("test_after/kind_")}
    assert kinds == {"pick", "look", "clean", "heat", "cool", "pick2"}
    glossary.check("crps.md", rows)
