"""webrl.py on two processes gives the losses of one process with the whole batch."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch

from common.lm import checkpoint, llm, parallel
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests.scripts import run_script, run_two
from tests.test_demo import ROOT, SMALL

FLAGS = [*SMALL, *"--cpu-threads 1 --orm-refresh 3 --num-phases 1 --start-buffer both --floored-keep 1".split()]
FLAGS += "--orm-episodes 12 --eval-tasks 1 --test-tasks 3".split()
# Without GPUs `accelerate launch --cpu --num_processes 2` starts one process, which would be compared with itself.
LAUNCH = "-m torch.distributed.run --standalone --nproc_per_node 2".split()


def play_run(folder, *launch, flags=(), run=run_script, **variables):
    command = ["webrl.py", *FLAGS, "--runs-dir", str(folder), *flags]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    if launch:
        command = [sys.executable, *launch, *command]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    else:
        done = run(command, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = folder.iterdir()
    return run, done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model with a head of its own, as large models have one: the flag that names it."""
    model, tokenizer = llm.load("assets/tiny")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    folder = tmp_path_factory.mktemp("untied")
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    return "--model-id", str(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, model):
    return play_run(tmp_path_factory.mktemp("one"), flags=model)[0]


def check_the_same(one, two):
    """Losses, metrics, episodes and weights of two runs."""
    rows = [read_metrics(run) for run in (one, two)]
    assert len(rows[0]) == len(rows[1])
    compared = 0
    for a, b in zip(*rows, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if not name.startswith("time/") and not (isinstance(a[name], float) and math.isnan(a[name])):
                assert math.isclose(a[name], b[name], rel_tol=2e-3, abs_tol=1e-5), (name, a[name], b[name])
                compared += name.startswith("losses/")
    assert compared >= 8
    stored = [list(TrajectoryStore(run / "trajectories.jsonl")) for run in (one, two)]
    assert [(t.policy, t.task.task_id) for t in stored[0]] == [(t.policy, t.task.task_id) for t in stored[1]]
    for network in ("actor", "orm", "critic"):
        weights = [checkpoint.latest(run).weights(network) for run in (one, two)]
        assert weights[0].keys() == weights[1].keys()
        for name, value in weights[0].items():
            assert (value - weights[1][name]).abs().max() < 1e-3, name


def test_two_processes_give_the_losses_of_one(tmp_path, model, alone):
    two, out = play_run(tmp_path, *LAUNCH, flags=model)
    assert out.count("2 processes") == out.count("run folder") == out.count("above the start") == 1  # one speaks
    check_the_same(alone, two)


def test_two_processes_that_share_the_weights_give_the_losses_of_one_and_resume(tmp_path, model, alone):
    fsdp = dict(ACCELERATE_USE_FSDP="true")
    two, out = play_run(tmp_path, run=run_two, flags=model, **fsdp)
    assert "2 processes" in out
    check_the_same(alone, two)
    play_run(tmp_path, run=run_two, flags=("--resume", str(two), "--num-phases", "2", "--no-control"), **fsdp)
    assert checkpoint.latest(two).state["phase"] == 2
    args = ("--lora-rank", "2")
    with pytest.raises(AssertionError, match="one of the two"):
        play_run(tmp_path / "lora", run=run_two, flags=args, **fsdp)


def test_column_sums_do_not_depend_on_the_order_of_the_rows():
    rows = [torch.tensor([1e8, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1e8, 4.0])]  # 1 is lost in float32
    for order in itertools.permutations(rows):
        assert parallel.column_sums(list(order), 2, "cpu") == [1.0, 7.0]
    assert parallel.column_sums([], 2, "cpu") == [0.0, 0.0]
