"""A run in lockstep that is killed with -9 and resumed gives the metrics of one that was not, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import control
from common.errors import UsageError
from common.lm import checkpoint, llm
from common.lm.args import parse_args
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests.scripts import run_script
from webrl import Args

ROOT = Path(__file__).resolve().parent.parent
SMALL = """--num-demos 4 --sft-epochs 1 --orm-episodes 12 --orm-epochs 1 --start-episodes 8 --instructions-per-phase 4
--num-phases 2 --eval-tasks 1 --test-tasks 2 --num-envs 4 --orm-refresh 4 --orm-data= --lockstep
--batch-size 16 --sft-batch-size 16 --start-buffer both --floored-keep 1 --curriculum""".split()
# runs webrl.py in a process that kills itself at the n-th call of one function
KILLER = """
import importlib, os, runpy, signal, sys
module, name, calls, *sys.argv = sys.argv[1:]
sys.path.insert(0, os.getcwd())
owner = importlib.import_module(module)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
attribute, count = name.split(".")[-1], 0
original = getattr(owner, attribute)
def counted(*args, **kwargs):
    global count
    count += 1
    if count == int(calls):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, attribute, original)
from common.lm import estimate
begin = estimate.begin
def begun(*args, **kwargs):
    begin(*args, **kwargs)  # it calls the same functions: not counted
    setattr(owner, attribute, counted)
estimate.begin = begun
runpy.run_path("webrl.py", run_name="__main__")
"""


def play_run(runs_dir, *flags, kill=None):
    """`webrl.py` with these flags; with `kill` (module, function, n) it must not survive the n-th call."""
    script = ["-c", KILLER, *kill, "webrl.py"] if kill else ["webrl.py"]
    done = run_script([*script, *SMALL, "--runs-dir", runs_dir, *flags])
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stdout + done.stderr
    return done.stdout


def metrics(run):
    rows = read_metrics(run)
    return [{name: repr(value) for name, value in row.items() if not name.startswith("time/")} for row in rows]


def test_killed_and_resumed_is_bit_for_bit_the_run_that_was_not(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    play_run(whole)
    for kill, phase in (
        (("common.lm.llm", "generate", 5), -1),  # the start-up's episodes, after the fine-tuning
        (("common.lm.learn", "backward", 6), 0),  # phase 1's update
        (("common.lm.checkpoint", "_sync", 7), 0),  # while its checkpoint is being written
        (("common.lm.checkpoint", "save", 2), 1),  # phase 2 is done but not saved
    ):
        play_run(cut, "--resume", "auto", kill=kill)
        (run,) = cut.iterdir()
        assert checkpoint.latest(run).state["phase"] == phase
        assert bool(list(run.glob("checkpoints/.*.tmp"))) == (kill[1] == "_sync")
    play_run(cut, "--resume", "auto")  # to the end
    (expected,) = whole.iterdir()
    assert metrics(run) == metrics(expected)
    assert [row["charts/phase"] for row in metrics(run)] == ["0", "0", "1", "2", "2"]
    names = ("actor/model.safetensors", "orm/model.safetensors", "critic.safetensors")
    for name in names:
        ours, theirs = (checkpoint.latest(r).path / name for r in (run, expected))
        assert ours.read_bytes() == theirs.read_bytes(), name
    stored, wanted = (list(TrajectoryStore(r / "trajectories.jsonl")) for r in (run, expected))
    for step in (step for t in stored + wanted for step in t.steps):
        step.url = step.url.split("/", 3)[-1]  # the sites' port is the system's choice
    assert stored == wanted
    check_who_played_the_tests(run, tmp_path / "control")


def check_who_played_the_tests(run, folder):
    """Test episodes of the start, of the control as benchmarks/control.py makes it, and of the run's last actor."""
    updates = json.loads((run / "metrics.jsonl").read_text().splitlines()[-2])["charts/updates"]
    assert updates > 0
    made, *_ = control.trained_on("webrl.py", run, updates, folder, cpu_threads=2)
    actors = {"before": run / "start", "control": made / "checkpoints/0001-0/actor"}
    actors["after"] = checkpoint.latest(run).folder("actor")
    episodes = list(TrajectoryStore(run / "trajectories.jsonl"))
    for name, actor in actors.items():
        model, tokenizer = llm.load(str(actor))
        steps = [step for t in episodes if t.policy == f"test {name}" for step in t.steps]
        prompts, actions = [list(s.prompt_ids) for s in steps], [s.action_ids for s in steps]
        logprobs, mask = llm.token_logprobs(model, tokenizer, prompts, actions, 1.0)
        for row, marks, step in zip(logprobs, mask, steps, strict=True):
            assert row[marks.bool()].tolist() == pytest.approx(step.logprobs, abs=1e-4), name


def test_episodes_that_were_finished_before_a_kill_are_not_played_again(tmp_path):
    SMALL.remove("--lockstep")
    try:
        play_run(tmp_path, kill=("common.lm.rollout", "play_until_sound", 4 + 2 + 7))  # demonstrations, test, start-up
        (run,) = tmp_path.iterdir()
        finished = list(TrajectoryStore(run / "unfinished.jsonl"))
        assert {t.policy for t in finished} == {"test before", "start-up"}
        play_run(tmp_path, "--resume", str(run), "--critic-learning-rate", "0.00012")
    finally:
        SMALL.append("--lockstep")
    kept = {(t.policy, t.seed, t.task.task_id): t for t in TrajectoryStore(run / "trajectories.jsonl")}
    assert len([t for t in kept.values() if t.policy == "start-up"]) == 8
    (group,) = checkpoint.latest(run).tensors()["critic"]["param_groups"]
    assert group["lr"] == 0.00012  # the flag given anew
    for t in finished:
        assert kept[t.policy, t.seed, t.task.task_id].steps[0].logprobs == t.steps[0].logprobs
    assert [t.policy for t in TrajectoryStore(run / "unfinished.jsonl")] == ["test control"] * 2 + ["test after"] * 2


def test_a_resumed_run_keeps_its_own_flags(tmp_path):
    saved = {"seed": 7, "beta": 0.3, "num_phases": 9, "a_flag_of_old": 1}
    (tmp_path / "args.json").write_text(json.dumps(saved))
    args = parse_args(Args, ["--resume", str(tmp_path), "--num-phases", "12"])
    assert (args.seed, args.beta, args.num_phases, args.resume) == (7, 0.3, 12, str(tmp_path))
    assert args.num_demos == Args.num_demos  # no preset on top
    with pytest.raises(UsageError, match="nothing to resume"):
        parse_args(Args, ["--resume", str(tmp_path / "nowhere")])


FULL = """
mount -t tmpfs -o size=36m tmpfs "$1" || exit 77
shift
"$@"
code=$?
cp -r "$FULL_DISK/." "$COPY"
exit $code
"""


def test_a_full_disk_stops_the_run_with_its_last_checkpoint_whole(tmp_path):
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir(), copy.mkdir()
    command = [sys.executable, "webrl.py", *SMALL, "--no-lockstep", "--runs-dir", str(disk)]
    shell = ["unshare", "-rm", "sh", "-c", FULL, "sh", str(disk), *command]
    variables = {**os.environ, "FULL_DISK": str(disk), "COPY": str(copy)}
    if not shutil.which("unshare"):
        pytest.skip("needs unshare, to have a small disk")
    done = subprocess.run(shell, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("may not mount a small disk here")
    assert done.returncode == 1 and "the disk is full" in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("stopped: ") and "Traceback" not in done.stderr
    (run,) = copy.iterdir()
    last = checkpoint.latest(run)
    assert last.state["phase"] >= 0 and last.tensors()["critic"]["state"]
    assert last.weights("actor") and last.weights("orm") and last.weights("critic")
    assert not list(run.glob("checkpoints/.*.tmp"))
