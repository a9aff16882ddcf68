"""distrl.py whole: real Ray, simulated phones; its worker killed, the host killed and resumed; in step; bad input."""

import json
from pathlib import Path

import psutil
import pytest

from common.lm.checkpoint import latest
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests import glossary
from tests.scripts import Script, run_script

ROOT = Path(__file__).resolve().parent.parent
SMALL = """--env-id phone/general --phones-per-worker 4 --iterations 3 --eval-every 2 --save-every 1 --test-tasks 0
--eval-tasks 2 --warmup-trajectories 6 --batch-trajectories 6 --refresh-every 2 --max-steps 4""".split()


def command(folder, *flags):
    return ["distrl.py", "--runs-dir", str(folder), *SMALL, *flags]


def play_run(folder, *flags):
    """distrl.py to its end; its output."""
    done = run_script(command(folder, *flags))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_of(folder):
    (run,) = Path(folder).iterdir()
    return run


def iterations(run):
    return [row for row in read_metrics(run) if "charts/updates" in row]


def rollouts_of(run):
    return [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "rollouts"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, ray_address):
    """A run from demonstrations to the summary: (its folder, its output)."""
    folder = tmp_path_factory.mktemp("whole")
    flags = "--num-demos 24 --test-tasks 2 --screenshots --advantage-floor -1 --filter-quantile 0.2 --beta 0.01".split()
    flags += ["--judge-states"]
    out = play_run(folder, *flags, "--replay-ratio", "0", "--ray-address", ray_address)
    return run_of(folder), out


@pytest.fixture(scope="module")
def trained(whole):
    """Flags that start from what that run ended with."""
    return "--num-demos", "0", "--model-id", str(latest(whole[0]).folder("actor")), "--preset", "tiny"


def test_a_run_from_demonstrations_to_the_summary(whole):
    run, out = whole
    assert "demonstrations of" in out and "Test success" in out and "iteration 2" in out
    rows = iterations(run)
    assert [row["charts/iteration"] for row in rows] == [1, 2, 3]
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] for row in rows)
    assert all(row["rollout/faults"] == row["rollout/lost"] == 0 and row["perf/workers"] == 1 for row in rows)
    assert all(row["losses/trained_steps"] > 0 and row["losses/grad_norm"] > 0 for row in rows)
    assert max(row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row) < 1e-4
    assert sum(row.get("perf/transfers", 0) for row in rows) >= 2
    rollouts = rollouts_of(run)
    assert len(rollouts) == rows[-1]["charts/trajectories"] >= 6
    assert len({t.place for t in rollouts}) == len({t.seed for t in rollouts}) == len(rollouts)
    for trajectory in rollouts:
        assert 1 <= len(trajectory.steps) <= 4 and trajectory.reward in (0.0, 1.0)
        for step in trajectory.steps:
            assert (run / step.screenshot).is_file() and len(step.logprobs) == len(step.action_ids)
    lines = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    assert {line["place"] for line in lines} >= {t.place for t in rollouts}
    assert all(line["begun"] < line["ended"] for line in lines)


def test_the_page_of_docs_lists_every_metric(whole):
    glossary.check("distrl.md", read_metrics(whole[0]))


def test_a_worker_is_killed_then_the_host_and_the_run_goes_on(tmp_path, trained):
    flags = "--iterations", "5", "--replay-ratio", "1", "--eval-every", "1"
    process = Script(command(tmp_path, *trained, *flags))
    for line in process.lines():
        if line.startswith("iteration 1,"):
            (worker,) = workers_of(process.pid)
            worker.kill()
        if line.startswith("iteration 4,"):
            break
    process.kill()
    process.communicate()
    run = run_of(tmp_path)
    rows = iterations(run)  # the third at least, whose worker played the second evaluation
    assert rows[-1]["rollout/faults"] >= 1 and rows[-1]["perf/workers"] == 1  # the worker's end, and another one there
    kept = latest(run).state
    assert kept["counts"]["iteration"] in (3, 4)
    play_run(tmp_path, *flags, "--resume", str(run))
    rows = iterations(run)
    assert [row["charts/iteration"] for row in rows] == [1, 2, 3, 4, 5]
    received = [row["charts/trajectories"] for row in rows]
    assert received == sorted(received) and received[-1] >= 30
    assert rows[-1]["rollout/faults"] >= kept["faults"]["faults"] and rows[-1]["rollout/lost"] >= kept["lost"]
    rollouts = rollouts_of(run)
    places = [t.place for t in rollouts]  # what was on its way is played, nothing twice
    assert len(set(places)) == len(places) and set(range(20)) <= set(places)
    assert len(rollouts) == received[-1] and all(t.ending == "exit" or len(t.steps) == 4 for t in rollouts)
    gaps = [row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row]
    assert gaps and max(gaps) < 1e-4  # new workers have the newest weights, not the base's


def workers_of(pid):
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            found += [child] if "ray::RolloutWorker" in " ".join(child.cmdline()[:1]) else []
        except psutil.NoSuchProcess:
            continue
    return found


def test_in_step_all_wait_for_the_slowest_and_steps_are_of_the_newest_policy(tmp_path, trained, ray_address):
    flags = *trained, "--sync", "--replay-ratio", "1", "--iterations", "3", "--algorithm", "filtered-bc"
    play_run(tmp_path, *flags, "--phone-delay", "0.05", "--learning-rate", "1e-3", "--ray-address", ray_address)
    run = run_of(tmp_path)
    assert [row["charts/iteration"] for row in iterations(run)] == [1, 2, 3]
    rounds = {}
    for trajectory in rollouts_of(run):
        rounds.setdefault(trajectory.place // 4, []).append({step.version for step in trajectory.steps})
    for number, versions in rounds.items():
        assert len(versions) == 4 and all(one == versions[0] and len(one) == 1 for one in versions), number
    lines = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    for number in list(rounds)[1:]:
        last = max(line["ended"] for line in lines if line["place"] // 4 == number - 1)
        assert min(line["begun"] for line in lines if line["place"] // 4 == number) >= last


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--num-workers", "0"], "--num-workers must be at least 1"),
        (["--retrace-lambda", "1.5"], "--retrace-lambda must be from 0 to 1"),
        (["--sync", "--replay-ratio", "0"], "--sync needs --replay-ratio"),
        (["--total-trajectories", "-1"], "--total-trajectories must not be negative"),
        (["--phone-delay", "fast"], "phone_delay 'fast'"),
        (["--serials", "a"], "--serials names 1 phones"),
        (["--buffer-steps", "4"], "--buffer-steps must hold at least --batch-trajectories"),
        (["--env-id", "mars"], "there is no such environment"),
        (["--env-id", "phone/mars"], "phone: groups: there are"),
        (["--demos", "none.jsonl"], "--demos none.jsonl: no such file"),
        (["--algorithm", "mine"], "--algorithm mine: one of distrl, digirl, filtered-bc"),
        (["--judge", "http://127.0.0.1:9/v1"], "--judge http://127.0.0.1:9/v1: no model is served there"),
        (["--prompt-format", "chat"], "has no chat template"),
        (["--eval-every", "0"], "--eval-every must be at least 1"),
        (["--total-trajectories", "3"], "--total-trajectories must be at least --warmup-trajectories"),
    ],
)
def test_bad_input_is_one_line(tmp_path, flags, said):
    done = run_script(["distrl.py", "--runs-dir", str(tmp_path), *SMALL, *flags], timeout=120)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())  # nothing was begun
