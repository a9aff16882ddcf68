"""crps.py from end to end on the embedded WebShop: it learns, goes on after a kill bit for bit, and takes bad input."""

import math
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
SMALL = """--cpu-threads 2 --num-envs 16 --groups-per-iteration 4 --group-size 4 --eval-tasks 4 --test-tasks 6
--eval-every 2 --save-every 1 --iterations 3 --total-steps 0 --p-replay 0.5 --lockstep""".split()


def run_crps(runs_dir, *flags, kill=None, code=0, run=run_script):
    """`crps.py` with these flags; with `kill` (module, function, n) it must not survive the n-th call."""
    script = ["-c", KILLER.replace("webrl.py", "crps.py"), *kill, "crps.py"] if kill else ["crps.py"]
    done = run([*script, "--runs-dir", runs_dir, *flags])
    assert done.returncode == (-signal.SIGKILL if kill else code), done.stdout + done.stderr
    return done.stdout + done.stderr


def metrics(run):
    rows = read_metrics(run)
    return [{name: repr(value) for name, value in row.items() if not name.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def actor(tmp_path_factory):
    """A policy that succeeds now and then: fine-tuned on demonstrations."""
    folder = tmp_path_factory.mktemp("sft")
    small = "--algorithm sft --num-demos 96 --sft-epochs 3 --test-tasks 1 --no-test-before --cpu-threads 2".split()
    run_crps(folder, *small)
    (run,) = folder.iterdir()
    return checkpoint.latest(run).folder("actor")


def test_killed_and_resumed_is_bit_for_bit_the_run_that_was_not(tmp_path, actor):
    flags = [*SMALL, "--num-demos", "0", "--model-id", actor]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    output = run_crps(whole, *flags)
    for part in ("Test success", "Task score", "Episodes", "Plots"):
        assert part in output
    for kill, iteration in (
        (("common.lm.learn", "backward", 1), 0),  # the first batch's update
        (("common.lm.checkpoint", "save", 3), 2),  # the third batch is done but not saved
    ):
        run_crps(cut, *flags, "--resume", "auto", kill=kill)
        (run,) = cut.iterdir()
        assert checkpoint.latest(run).state["counts"]["iteration"] == iteration
    run_crps(cut, *flags, "--resume", "auto")
    (expected,) = whole.iterdir()
    assert metrics(run) == metrics(expected)
    ours, theirs = (checkpoint.latest(r).path / "actor/model.safetensors" for r in (run, expected))
    assert ours.read_bytes() == theirs.read_bytes()
    rows = metrics(expected)
    glossary.check("crps.md", read_metrics(expected))
    assert [row["charts/iteration"] for row in rows] == ["0", "1", "2", "3", "3"]
    stored = list(TrajectoryStore(expected / "trajectories.jsonl"))
    assert stored == list(TrajectoryStore(run / "trajectories.jsonl"))
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
    assert int(rows[-1]["global_step"]) == steps  # restored steps are not interactions


def test_two_processes_give_the_losses_of_one(tmp_path, actor):
    flags = [
        *SMALL,
        "--num-demos",
        "0",
        "--model-id",
        actor,
        "--iterations",
        "2",
        "--cpu-threads",
        "1",
        "--no-test-before",
    ]
    flags += ["--algorithm", "ppo", "--p-replay", "1"]  # with a critic; replays in the second batch
    run_crps(tmp_path / "one", *flags)
    out = run_crps(tmp_path / "two", *flags, run=run_two)
    assert out.count("2 processes") == out.count("run folder") == 1
    one, two = (next((tmp_path / name).iterdir()) for name in ("one", "two"))
    rows = [read_metrics(run) for run in (one, two)]
    assert len(rows[0]) == len(rows[1])
    for a, b in zip(*rows, strict=True):
        for name in a:
            if not name.startswith("time/") and not (isinstance(a[name], float) and math.isnan(a[name])):
                assert math.isclose(a[name], b[name], rel_tol=2e-3, abs_tol=1e-4), (name, a[name], b[name])
    assert rows[0][2]["groups/replayed"] > 0 and rows[0][2]["charts/restored_steps"] > 0
    glossary.check("crps.md", rows[0])
    stored = [list(TrajectoryStore(run / "trajectories.jsonl")) for run in (one, two)]
    assert [(t.task.task_id, t.prefix, t.reward) for t in stored[0]] == [
        (t.task.task_id, t.prefix, t.reward) for t in stored[1]
    ]


def test_a_chat_model_with_adapters_and_a_reference(tmp_path):
    """What a large model needs, on a small one: chat template, paper's preset, LoRA, KL, wandb."""
    model, tokenizer = llm.load("assets/tiny")
    tokenizer.chat_template = QWEN
    folder = tmp_path / "chat"
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    small = """--preset paper --num-demos 0 --lora-rank 4 --iterations 1 --group-size 2 --groups-per-iteration 2
    --num-envs 4 --max-new-tokens 4 --test-tasks 1 --no-test-before --eval-every 9 --track
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


def test_rejection_fine_tuning_learns_once(tmp_path, actor):
    flags = [
        *SMALL,
        "--algorithm",
        "rft",
        "--num-demos",
        "0",
        "--model-id",
        actor,
        "--iterations",
        "1",
        "--no-test-before",
    ]
    run_crps(tmp_path, *flags)
    (run,) = tmp_path.iterdir()
    weights = checkpoint.latest(run).weights("actor")
    assert checkpoint.latest(run).state["counts"]["tuned"]
    before = metrics(run)
    run_crps(tmp_path, *flags, "--resume", str(run))  # it was finished: the test is played again, nothing else
    assert metrics(run) == before
    assert all(value.equal(checkpoint.latest(run).weights("actor")[name]) for name, value in weights.items())
    stored = [t.policy for t in TrajectoryStore(run / "trajectories.jsonl")]
    assert stored == ["rollouts"] * 16 + ["test after"] * 6


@pytest.mark.skipif(find_spec("alfworld") is None, reason="needs requirements-alfworld.txt")
def test_alfworld_plays_too(tmp_path):
    small = """--num-demos 6 --sft-epochs 1 --group-size 2 --groups-per-iteration 2 --num-envs 4 --iterations 1
    --eval-every 1 --eval-tasks 1 --test-tasks 6 --no-test-before""".split()
    run_crps(tmp_path, "--env-id", "alfworld/tiny", *small)
    (run,) = tmp_path.iterdir()
    rows = read_metrics(run)
    kinds = {name[16:] for name in rows[-1] if name.startswith("test_after/kind_")}
    assert kinds == {"pick", "look", "clean", "heat", "cool", "pick2"}
    glossary.check("crps.md", rows)


def test_wrong_input_is_one_line(tmp_path):
    for flags, message in (
        (["--env-id", "arena", "--data-dir", "x"], "--data-dir: arena"),
        (["--data-dir", "nowhere"], "nowhere"),
    ):
        output = run_crps(tmp_path, *flags, code=2).strip().splitlines()
        assert len(output) == 1 and message in output[0], output
        assert not list(tmp_path.iterdir())  # nothing was begun
