"""webrl.py from end to end as a user runs it: real Chromium, the embedded sites, the committed tiny model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import psutil
import pytest

import webrl
from benchmarks.once import soak
from common.errors import UsageError
from common.lm.args import parse_args
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests import glossary
from tests.scripts import Script, run_script
from webrl import Args

ROOT = Path(__file__).resolve().parent.parent
SMALL = """--num-demos 6 --sft-epochs 1 --orm-episodes 16 --orm-epochs 1 --start-episodes 8 --instructions-per-phase 6
--num-phases 2 --eval-tasks 2 --test-tasks 2 --num-envs 3 --max-new-tokens 32 --orm-data= --curriculum""".split()
LEAST = "--num-demos 3 --start-episodes 2 --eval-tasks 0 --test-tasks 1 --num-phases 1".split()  # of all but a phase
PAID = Args.orm_threshold


def start(tmp_path, *flags):
    return Script(["webrl.py", *SMALL, "--runs-dir", tmp_path, *flags])


def play_run(tmp_path, *flags, env=None, code=0):
    """Output and errors of webrl.py with these flags."""
    done = run_script(["webrl.py", *SMALL, "--runs-dir", tmp_path, *flags], env)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--model-id", "no/such/model/folder"], "no model at"),
        (["--model-id", "nowhere/model"], "hub cannot be reached"),
        (["--env-id", "nowhere"], "there is no such environment"),
        (["--env-id", "arena/bank"], "its sites are"),
        (["--demos", "missing.jsonl"], "missing.jsonl"),
        (["--orm-data", "absent.jsonl"], "absent.jsonl"),
        (["--orm-model-id", "runs/absent"], "no model at 'runs/absent'"),
        (["--micro-batch-tokens", "0"], "--micro-batch-tokens"),
        (["--resume", "nowhere"], "nothing to resume: nowhere"),
        (["--engine", "http://127.0.0.1:9/v1"], "--engine needs --lora-rank"),
        (["--engine", "http://127.0.0.1:9/v1", "--lora-rank", "2", "--lockstep"], "one of them only"),
        (["--prompt-format", "chat"], "has no chat template"),
        (["--judge", "nobody"], "orm, env or a URL"),
        (["--judge", "http://127.0.0.1:9/v1"], "127.0.0.1:9"),
        (["--load-in-4bit"], "--load-in-4bit needs --lora-rank"),
        (["--load-in-4bit", "--lora-rank", "2"], "needs a GPU"),
        (["--generator", "http://127.0.0.1:9/v1"], "127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, flags, says):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(UsageError) as error:
        webrl.main(
            parse_args(Args, [*SMALL, "--cpu-threads", "0", "--runs-dir", str(tmp_path), *flags], webrl.tiny_values)
        )
    assert says in str(error.value) and len(str(error.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())  # nothing was begun


@pytest.mark.parametrize(
    "flag, lines", [("--no-such-flag", None), ("--beta=0", 1)]
)  # tyro draws a box with a suggestion
def test_bad_input_ends_with_exit_code_2(tmp_path, flag, lines):
    out, err = play_run(tmp_path, flag, code=2)
    assert flag.split("=")[0] in err and "Traceback" not in err
    assert lines is None or len(err.strip().splitlines()) == lines, err


def test_an_orm_with_another_tokenizer_is_refused_before_anything_is_played(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(ROOT / "assets/orm", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["never"] = words.pop(max(words, key=words.get))
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    out, err = play_run(tmp_path, "--orm-model-id", other, code=2)
    assert "its tokenizer is not that of" in err and len(err.strip().splitlines()) == 1, err
    assert not list(tmp_path.glob("arena*"))


def test_no_chromium_is_one_line(tmp_path):
    out, err = play_run(tmp_path, env={**os.environ, "CHROMIUM": "/no/such/browser"}, code=2)
    assert "/no/such/browser" in err and "Traceback" not in err


def test_a_busy_port_is_one_line(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        out, err = play_run(tmp_path, "--port", server.getsockname()[1], code=2)
    assert "port" in err and "Traceback" not in err


def test_the_whole_method_runs_with_chromium_killed_on_the_way(tmp_path):
    labelled = tmp_path / "labelled.jsonl"
    record = {"instruction": "log out", "actions": ['exit(message="")'], "page": 'page "account"', "verdict": 0}
    labelled.write_text(f"{json.dumps(record)}\n" * 3)
    runs = tmp_path / "runs"
    flags = ["--orm-refresh", "3", "--start-buffer", "both", "--screenshots", "--orm-data", labelled, "--control"]
    process = start(runs, *flags)
    killed = kill_chromium(process, runs)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert killed
    (run,) = runs.iterdir()
    rows = read_metrics(run)
    last = rows[-2]
    assert last["charts/phase"] == 2 and last["global_step"] > 0
    for name in ("rollout/reward", "losses/policy_loss", "losses/critic_loss", "replay/steps", "eval/success"):
        assert name in last
    assert "test_after/success" in rows[-1] and "test_before/success" in rows[1]
    assert max(row.get("rollout/faults", 0) for row in rows) >= 1  # the kill was a fault ...
    episodes = list(TrajectoryStore(run / "trajectories.jsonl"))
    assert not soak.traces(episodes)  # ... and no episode of it was kept
    check_the_glossary(rows)
    assert rows[1]["orm/labelled"] == 16  # start-up, demonstrations, and of the file as many as asked for
    trained_on = [t for t in episodes if t.policy.startswith("phase")]
    assert len(trained_on) == 12
    assert all(t.reward == (t.judged > PAID and t.ending == "exit") for t in trained_on)  # never the true verdict
    assert (run / "episodes.html").exists() and (run / "plots" / "success.png").exists()
    for part in ("the start ", "the control ", "reinforcement ", "above the start", "above the control", str(run)):
        assert part in out
    control = [t for t in episodes if t.policy == "test control"]
    assert sorted(t.task.task_id for t in control) == sorted(
        t.task.task_id for t in episodes if t.policy == "test after"
    )
    assert rows[-1]["test_control/episodes"] == 2 and rows[-1]["time/control"] > 0
    checkpoints = list((run / "checkpoints").iterdir())
    assert len(checkpoints) == 2 and all((c / "actor" / "config.json").exists() for c in checkpoints)
    check_a_checkpoint_can_be_trained_on(tmp_path, checkpoints[-1] / "actor")


def test_a_served_judge_pays_and_its_silence_is_no_reward(tmp_path):
    url = soak.judge_server(soak.Args(silent=0.0, neither=3), Counter())
    play_run(tmp_path, *LEAST, "--judge", url)
    (run,) = tmp_path.iterdir()
    rollouts = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "phase 1"]
    assert len(rollouts) == 4  # every third answer was neither YES nor NO
    assert all(t.judged is not None and t.reward == (t.judged > PAID and t.ending == "exit") for t in rollouts)


def test_filtered_behaviour_cloning_runs_on_training_instructions_and_the_true_verdict(tmp_path):
    play_run(tmp_path, *LEAST, "--loss", "sft", "--no-curriculum", "--judge", "env", "--no-replay")
    (run,) = tmp_path.iterdir()
    rows = read_metrics(run)
    assert not any(name.startswith(("orm", "losses/critic", "replay")) for row in rows for name in row)
    rollouts = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "phase 1"]
    assert len(rollouts) == 6 and all(t.reward == (t.verdict and t.ending == "exit") for t in rollouts)
    assert all(t.task.config and t.judged is None for t in rollouts)
    if any(t.reward for t in rollouts):
        assert rows[-2]["charts/updates"] > 0


def check_the_glossary(rows):
    """docs/webrl.md and docs/metrics.md explain every metric that is logged, and the former no other."""
    own, logged = glossary.check("webrl.md", rows)
    absent = {pattern for pattern in own if not any(fnmatch(name, pattern) for name in logged)}
    assert absent <= {"losses/advantage_replay"}  # where nothing was in the band


def check_a_checkpoint_can_be_trained_on(tmp_path, folder):
    from common.lm import llm

    model, tokenizer = llm.load(str(folder))
    done = llm.generate(model, tokenizer, [tokenizer.encode("Task Instruction: log out\nAction:\n")], [1])
    assert done[0].ids


def kill_chromium(process, runs_dir):
    """Kill the browser in the middle of an episode: as soon as the first screenshot of one is on disk."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(runs_dir.glob("*/screenshots/*.png")):
            return soak.kill_chromium(psutil.Process(process.pid).children(recursive=True)) > 0
        time.sleep(0.02)
    return False


def in_foreground():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def in_background():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell script does for what it starts with `&`


@pytest.mark.parametrize("sent, before", [(signal.SIGINT, in_foreground), (signal.SIGTERM, in_background)])
def test_ctrl_c_leaves_a_checkpoint(tmp_path, sent, before):
    command = [sys.executable, "webrl.py", *SMALL, *LEAST, "--start-episodes", "8", "--runs-dir", str(tmp_path)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=before, **pipes) as process:
        for line in process.stdout:
            if line.startswith("SFT"):
                process.send_signal(sent)
                break
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "checkpoint" in out and "Traceback" not in err
    (run,) = tmp_path.iterdir()
    assert list((run / "checkpoints").glob("*/actor/model.safetensors"))
