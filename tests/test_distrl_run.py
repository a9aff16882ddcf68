"""distrl.py whole: real Ray, simulated phones; its worker killed, the host killed and resumed; bad input. In step:
test_distrl_vision.py."""

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
SMALL = """--env-id phone/general --phones-per-worker 4 --iterations 5 --eval-every 1 --save-every 1 --test-tasks 2
--eval-tasks 2 --warmup-trajectories 4 --batch-trajectories 4 --replay-ratio 1 --refresh-every 2 --max-steps 4
--num-demos 12 --sft-epochs 2 --advantage-floor -1 --filter-quantile 0.2 --beta 0.01 --judge-states --screenshots
--eval-beside""".split()


def command(folder, *flags):
    return ["distrl.py", "--runs-dir", str(folder), *SMALL, *flags]


def iterations(run):
    return [row for row in read_metrics(run) if "charts/updates" in row and "perf/workers" in row]


def played(run, kind):
    return [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.kind == kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from demonstrations to the summary, whose worker was killed, then the host: (its folder, its output, its
    rows before the host's end, the state of the checkpoint that it went on from)."""
    folder = tmp_path_factory.mktemp("whole")
    process, said = Script(command(folder)), ""
    for line in process.lines():
        said += line
        if line.startswith("iteration 1,") and "rollout reward" in line:  # an evaluation has begun
            (worker,) = workers_of(process.pid)
            worker.kill()
        if line.startswith("iteration 4,"):
            break
    process.kill()
    process.communicate()
    (run,) = folder.iterdir()
    rows, kept = iterations(run), latest(run).state
    done = run_script(command(folder, "--resume", str(run)))
    assert done.returncode == 0, done.stderr[-3000:]
    return run, said + done.stdout, rows, kept


def test_a_run_from_demonstrations_to_the_summary(whole):
    run, out, *_ = whole
    assert "demonstrations of" in out and "Test success" in out and "iteration 2" in out
    rows = iterations(run)
    assert [row["charts/iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] for row in rows)
    assert all(row["losses/trained_steps"] > 0 and row["losses/grad_norm"] > 0 for row in rows)
    assert sum(row.get("perf/transfers", 0) for row in rows) >= 2
    rollouts = played(run, "rollout")
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


def test_a_worker_is_killed_then_the_host_and_the_run_goes_on(whole):
    run, _, before, kept = whole
    assert before[-1]["rollout/faults"] >= 1 and before[-1]["perf/workers"] == 1  # the worker's end, and another one
    assert kept["counts"]["iteration"] in (3, 4)
    rows = iterations(run)
    received = [row["charts/trajectories"] for row in rows]
    assert received == sorted(received) and received[-1] >= 20
    assert rows[-1]["rollout/faults"] >= kept["faults"]["faults"] and rows[-1]["rollout/lost"] >= kept["lost"]
    rollouts = played(run, "rollout")
    places = [t.place for t in rollouts]  # what was on its way is played, nothing twice
    assert len(set(places)) == len(places) and set(range(12)) <= set(places)
    assert len(rollouts) == received[-1] and all(t.ending == "exit" or len(t.steps) == 4 for t in rollouts)
    gaps = [row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row]
    assert gaps and max(gaps) < 1e-4  # new workers have the newest weights, not the base's


def test_evaluations_beside_training_are_of_the_version_that_they_name(whole):
    run = whole[0]
    rows = [row["charts/iteration"] for row in read_metrics(run) if "eval/success" in row]
    assert rows == sorted(set(rows)) and {1, 2, 5} <= set(rows)  # the kill may have cut one off
    evaluated = played(run, "eval")
    assert {t.phase for t in evaluated} == set(rows) and len(evaluated) == 2 * len(rows)
    assert all(step.version == 1 + t.phase for t in evaluated for step in t.steps)  # every iteration published one


def workers_of(pid):
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            found += [child] if "ray::RolloutWorker" in " ".join(child.cmdline()[:1]) else []
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--num-workers", "0"], "--num-workers must be at least 1"),
        (["--retrace-lambda", "1.5"], "--retrace-lambda must be from 0 to 1"),
        (["--sync", "--replay-ratio", "0"], "--sync needs --replay-ratio"),
        (["--total-trajectories", "-1"], "--total-trajectories must not be negative"),
        (["--phone-delay", "fast"], "phone_delay 'fast'"),
        (["--serials", "a"], "--serials names 1 phones"),
        (["--buffer-steps", "3"], "--buffer-steps must hold at least --batch-trajectories"),
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
