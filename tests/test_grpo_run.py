"""grpo_async.py whole: real Ray, real Chromium, the tiny model that sees; killed, resumed, its parts killed, its
schedule played again, in two processes."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from common.lm.checkpoint import latest
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests.scripts import run_script
from tests.test_parallel import LAUNCH

ROOT = Path(__file__).resolve().parent.parent
RAY = str(Path(sys.executable).with_name("ray"))
SMALL = """--env-id gallery/count+take_out --batch-trajectories 8 --group-size 4 --iterations 3 --eval-every 2
--save-every 1 --test-tasks 0 --eval-tasks 4 --no-dynamic-sampling --envs-per-worker 4 --max-steps 10 --sft-epochs 2
--update-epochs 1 --minibatches 8 --learning-rate 1e-4""".split()


def start(folder, *flags, launch=(), env=None):
    command = [sys.executable, *launch, "grpo_async.py", "--runs-dir", str(folder), *SMALL, *flags]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, timeout=300):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err[-3000:]
    return out


def run_of(folder):
    (run,) = Path(folder).iterdir()
    return run


def batches(run):
    return [row for row in read_metrics(run) if "staleness/max" in row]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from demonstrations to the summary: (its folder, its output)."""
    folder = tmp_path_factory.mktemp("whole")
    out = finish(start(folder, "--num-demos", "80", "--test-tasks", "4"))
    return run_of(folder), out


@pytest.fixture(scope="module")
def trained(whole):
    """Flags that start from what that run ended with."""
    return "--num-demos", "0", "--model-id", str(latest(whole[0]).folder("actor")), "--preset", "tiny"


def test_a_run_from_demonstrations_to_the_summary(whole):
    run, out = whole
    assert "demonstrations of" in out and "Test success" in out and "iteration 2" in out
    rows = batches(run)
    assert [row["charts/iteration"] for row in rows] == [1, 2, 3]
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)
    assert all(row["rollout/episodes"] == 8 for row in rows)
    assert [row["rollout/faults"] for row in rows] == [0, 0, 0]
    rollouts = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "rollouts"]
    assert len(rollouts) == 24
    for trajectory in rollouts:
        assert len(trajectory.steps) <= 10
        for step in trajectory.steps:
            assert (run / step.screenshot).is_file() and len(step.logprobs) == len(step.action_ids)
    for group in range(6):
        members = rollouts[4 * group : 4 * group + 4]
        assert len({t.task.task_id for t in members}) == len({t.steps[0].hash for t in members}) == 1
        assert len({t.seed for t in members}) == 4
    lines = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    times = [line for line in lines if "batch" in line]
    assert [sorted(t.place for t in rollouts if t.phase == line["batch"])[::4] for line in times] == [
        sorted(4 * number for number in line["groups"]) for line in times
    ]
    assert all(line["asked"] <= line["taken"] <= line["trained"] <= line["published"] for line in times)
    assert len([line for line in lines if "group" in line]) >= 24


def test_what_is_learnt_moves_the_weights_and_samples_are_from_them(whole):
    rows = batches(whole[0])
    assert any(row["losses/trained_trajectories"] > 0 and row["losses/grad_norm"] > 0 for row in rows)
    assert max(row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row) < 1e-4


def test_killed_and_resumed_it_goes_on(tmp_path, trained):
    process = start(tmp_path, *trained)
    for line in process.stdout:
        if line.startswith("iteration 2"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
    run = run_of(tmp_path)
    assert latest(run).state["counts"]["iteration"] in (1, 2)
    finish(start(tmp_path, "--resume", str(run)))
    rows = batches(run)
    assert [row["charts/iteration"] for row in rows] == [1, 2, 3]
    assert all(row["staleness/max"] <= 2 for row in rows)


def test_parts_are_killed_and_the_run_goes_on(tmp_path, trained):
    process = start(tmp_path, *trained, "--iterations", "10")
    parts = {2: "ray::RolloutWorker", 4: "ray::PolicyServer", 6: "ray::Store", 8: "chrom"}
    for line in process.stdout:
        number = int(line.split()[1].strip(",")) if line.startswith("iteration") else 0
        if number in parts:
            found = [
                child for child in psutil.Process(process.pid).children(True) if parts[number] in command_of(child)
            ]
            assert found, parts[number]
            for child in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
    finish(process)
    rows = batches(run_of(tmp_path))
    assert [row["charts/iteration"] for row in rows] == list(range(1, 11))
    assert all(row["rollout/episodes"] == 8 and row["staleness/max"] <= 2 for row in rows)
    assert rows[3]["pool/lost"] > 0  # the worker's
    assert rows[-1]["rollout/faults"] > rows[5]["rollout/faults"]  # the browser's
    gaps = [row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row]
    assert gaps and max(gaps) < 1e-3  # a server started anew has the newest weights, not the base's


@pytest.fixture
def cluster():
    """Two Ray nodes of one CPU each, as `ray start` makes them on two machines: (address, environment)."""
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address, nodes = None, []
    for place in ["--head", "--port", str(port), "--include-dashboard=false"], ["--address"]:
        command = [RAY, "start", *place, *([address] if address else []), "--num-cpus", "1", "--block"]
        node = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        nodes.append(node)
        for line in node.stdout:
            if "Local node IP" in line:
                address = address or f"{line.split()[-1]}:{port}"
            if "runtime started" in line:
                break
        assert node.poll() is None
    yield address, environment, nodes
    for node in nodes:
        for process in [*psutil.Process(node.pid).children(True), node]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
        node.stdout.close()


def test_the_same_command_on_two_nodes(tmp_path, trained, cluster):
    address, environment, nodes = cluster
    few = "--iterations", "2", "--ray-address", address, "--num-workers", "1"
    process = start(tmp_path, *trained, *few, env=environment)
    for line in process.stdout:
        if line.startswith("iteration 2"):
            break
    parts = [{command_of(child) for child in psutil.Process(node.pid).children(True)} for node in nodes]
    found = [{name for name in ("RolloutWorker", "PolicyServer") if any(name in c for c in part)} for part in parts]
    finish(process)
    assert sorted(map(len, found)) == [1, 1], parts  # one here, one there
    assert [row["charts/iteration"] for row in batches(run_of(tmp_path))] == [1, 2]


def command_of(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()[:1])
    return ""


def test_a_schedule_played_again_is_the_same_bit_for_bit_in_two_processes_nearly(tmp_path, trained):
    # so that versions differ: their weights, and at most two batches may be sampled by the first of them
    trained = *trained, "--staleness", "1", "--learning-rate", "1e-2"
    finish(start(tmp_path / "first", *trained))
    recorded = run_of(tmp_path / "first")
    again = []
    for name in ("second", "third"):
        finish(start(tmp_path / name, *trained, "--schedule", str(recorded)))
        again.append(run_of(tmp_path / name))

    def metrics(run):
        timed = ("time/", "perf/")
        return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in read_metrics(run)]

    def sampled(run):
        return [
            [(t.place, s.version, list(s.action_ids), s.logprobs) for t in store for s in t.steps]
            for store in [[t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "rollouts"]]
        ]

    assert str(metrics(again[0])) == str(metrics(again[1]))  # as text: NaN is not itself
    assert sampled(again[0]) == sampled(again[1])
    before, after = (sorted(sampled(run)[0]) for run in (recorded, again[0]))
    assert len({version for _, version, *_ in before}) > 1
    assert [step[:3] for step in before] == [step[:3] for step in after]
    for (*_, old), (*_, new) in zip(before, after, strict=True):  # by the weights of that version
        assert new == pytest.approx(old, abs=1e-3)  # Adam makes 1e-6 to 1e-4 of another order of sums
    out = finish(start(tmp_path / "two", *trained, "--schedule", str(recorded), launch=LAUNCH))
    assert "2 processes" in out
    for one, two in zip(batches(again[0]), batches(run_of(tmp_path / "two")), strict=True):  # two learners
        for name in ("losses/policy_loss", "losses/grad_norm", "losses/clip_fraction", "losses/approx_kl"):
            if name in one:  # where no group differs in its rewards nothing is trained on
                assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6)
            assert (name in one) == (name in two)


def test_rollouts_are_of_short_tasks_and_demonstrations_of_all(tmp_path):
    flags = "--env-id gallery/count+exchange --train-horizon 10 --num-demos 8 --iterations 1 --eval-tasks 0".split()
    finish(start(tmp_path, *flags, "--batch-trajectories", "32"))
    templates = {}
    for trajectory in TrajectoryStore(run_of(tmp_path) / "trajectories.jsonl"):
        templates.setdefault(trajectory.policy, set()).add(trajectory.task.template)
    assert templates == {"oracle": {"count", "exchange"}, "rollouts": {"count"}}


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--batch-trajectories", "10"], "--batch-trajectories 10 is no multiple of --group-size 4"),
        (["--num-workers", "0"], "--num-workers must be at least 1"),
        (["--staleness", "-1"], "--staleness must not be negative"),
        (["--train-horizon", "9"], "--train-horizon 9: no task of gallery-v1/count+take_out is that short; 0: all"),
        (["--train-horizon", "-1"], "--train-horizon must not be negative"),
        (["--env-id", "mars"], "there is no such environment"),
        (["--engine", "http://127.0.0.1:9/v1"], "--engine needs --lora-rank"),
        (["--engine", "http://127.0.0.1:9/v1", "--lora-rank", "4"], "--engine needs a chat"),
        (["--engine", "http://127.0.0.1:9/v1", "--lora-rank", "4", "--num-servers", "2"], "--num-servers 1"),
        (["--ray-address", "127.0.0.1:9"], "--ray-address 127.0.0.1:9: no Ray cluster answers"),
        (["--schedule", "runs/none", "--resume", "auto"], "--schedule needs the weights of earlier versions"),
    ],
)
def test_bad_input_is_one_line(tmp_path, flags, said):
    done = run_script(["grpo_async.py", "--runs-dir", str(tmp_path), *SMALL, *flags], timeout=120)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_tasks_that_nobody_checks_are_one_line(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"intent": "find it", "start_url": "http://127.0.0.1:9/", "split": "train"}\n')
    flags = ["--env-id", f"site:{tasks}", "--runs-dir", str(tmp_path / "runs")]
    for script, way in (("grpo_async.py", "nothing else says what succeeded"), ("distrl.py", "--judge URL asks")):
        done = run_script([script, *flags], timeout=120)
        assert done.returncode == 2 and "no training task has a check" in done.stderr and way in done.stderr, (
            done.stderr
        )
    assert not (tmp_path / "runs").exists()
