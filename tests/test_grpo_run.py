"""grpo_async.py whole: real Ray, real Chromium, the tiny model that sees; killed, resumed, its parts killed, its
schedule played again, in two processes. A run costs some 40 CPU seconds before it has begun (what its processes import,
Chromium), so each proves what one can."""

import contextlib
import json
import random
import re
import signal
from pathlib import Path

import psutil
import pytest

import grpo_async
from common.errors import UsageError
from common.lm.args import parse_args
from common.lm.checkpoint import latest
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests import glossary
from tests.scripts import Script, ray_nodes, run_script, run_two

ROOT = Path(__file__).resolve().parent.parent
SMALL = """--env-id gallery/count+take_out --batch-trajectories 8 --group-size 4 --iterations 3 --eval-every 2
--save-every 1 --test-tasks 0 --eval-tasks 4 --no-dynamic-sampling --envs-per-worker 4 --max-steps 10 --sft-epochs 2
--update-epochs 1 --minibatches 8 --learning-rate 1e-4""".split()


def command(folder, *flags):
    return ["grpo_async.py", "--runs-dir", str(folder), *SMALL, *flags]


def play_run(folder, *flags, env=None):
    """grpo_async.py to its end; its output."""
    done = run_script(command(folder, *flags), env)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_of(folder):
    (run,) = Path(folder).iterdir()
    return run


def batches(run):
    return [row for row in read_metrics(run) if "staleness/max" in row]


# Their weights; at most two batches may be sampled by the first of them.
TASKS = "--env-id gallery/count+take_out+exchange --train-horizon 10 --staleness 1 --learning-rate 1e-3".split()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run from demonstrations to the summary on two Ray nodes, as on two machines, with evaluations beside training:
    (its folder, its output, on each node the names of its processes)."""
    folder, flags = tmp_path_factory.mktemp("whole"), "--num-demos 96 --test-tasks 4 --eval-servers 1 --eval-every 1"
    with ray_nodes(1, 2) as (address, nodes):
        process = Script(command(folder, *TASKS, *flags.split(), "--ray-address", address))
        for line in process.lines():
            if line.startswith("iteration 2"):
                parts = [{command_of(child) for child in psutil.Process(n.pid).children(True)} for n in nodes]
        output, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
    return run_of(folder), output, parts


@pytest.fixture(scope="module")
def whole(recorded):
    return recorded[:2]


@pytest.fixture(scope="module")
def trained(whole):
    """Flags that start from that run's fine-tuned policy."""
    return "--num-demos", "0", "--model-id", str(whole[0] / "start"), "--preset", "tiny"


def command_of(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()[:1])
    return ""


def test_a_run_from_demonstrations_to_the_summary(whole):
    run, out = whole
    assert "demonstrations of" in out and "Test success" in out and "iteration 2" in out
    rows = batches(run)
    assert [row["charts/iteration"] for row in rows] == [1, 2, 3]
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 1 for row in rows)
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


def test_the_page_of_docs_lists_every_metric(whole):
    glossary.check("grpo_async.md", read_metrics(whole[0]))


def test_evaluations_beside_training_are_of_the_version_that_they_name(whole):
    run = whole[0]
    rows, trajectories = read_metrics(run), list(TrajectoryStore(run / "trajectories.jsonl"))
    assert [row["charts/iteration"] for row in rows if "eval/success" in row] == [1, 2, 3]
    assert not any("eval/success" in row for row in batches(run))
    played = [t for t in trajectories if t.kind == "eval"]
    assert len(played) == 12 and all({step.version for step in t.steps} == {t.phase} for t in played)


def test_the_parts_are_on_both_nodes(recorded):
    found = [
        [name for name in ("RolloutWorker", "PolicyServer") if any(name in c for c in part)] for part in recorded[2]
    ]
    assert all(found) and {name for names in found for name in names} == {"RolloutWorker", "PolicyServer"}, recorded[2]


def test_rollouts_are_of_short_tasks_and_demonstrations_of_all(whole):
    templates = {}
    for trajectory in TrajectoryStore(whole[0] / "trajectories.jsonl"):
        templates.setdefault(trajectory.policy, set()).add(trajectory.task.template)
    assert templates["oracle"] == {"count", "take_out", "exchange"} and templates["rollouts"] == {"count", "take_out"}


PARTS = ["chrom", "ray::RolloutWorker", "ray::PolicyServer", "ray::Store"]


def kill_parts(process, parts):
    """Kill what runs of these parts of a run, one after the other."""
    for part in parts:
        for child in psutil.Process(process.pid).children(True):
            if part in command_of(child):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def test_parts_are_killed_then_the_host_and_the_run_goes_on(tmp_path, trained, ray_address):
    often = "--iterations", "5", "--eval-every", "1", "--eval-tasks", "1"
    process, rng = Script(command(tmp_path, *trained, *often)), random.Random(1)
    # without a store no server that is started anew could have the weights from there
    parts = {1: PARTS[:1], 2: rng.sample(PARTS, 4), 3: ["ray::Store", "ray::PolicyServer"]}
    for line in process.lines():
        number = int(line.split()[1].strip(",")) if line.startswith("iteration") else 0
        kill_parts(process, parts.get(number, []))
        if number == 4:
            process.kill()
    assert "restart will fail" not in process.communicate()[1]  # Ray's warning
    assert process.returncode == -signal.SIGKILL
    run = run_of(tmp_path)
    assert latest(run).state["counts"]["iteration"] in (3, 4)
    play_run(tmp_path, *often, "--resume", str(run), "--ray-address", ray_address)
    rows = batches(run)
    assert [row["charts/iteration"] for row in rows] == list(range(1, 6))
    assert all(row["rollout/episodes"] == 8 and row["staleness/max"] <= 2 for row in rows)
    assert rows[2]["rollout/faults"] > 0  # the browser's
    assert rows[3]["pool/lost"] > 0  # the worker's
    assert rows[2]["perf/pictures"] < 8 * 11 * 4  # what lost workers played has left the store
    assert rows[-1]["rollout/faults"] >= rows[2]["rollout/faults"]  # counted on over the resume
    gaps = [row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row]
    assert gaps and max(gaps) < 1e-3  # a server started anew has the newest weights, not the base's


@pytest.mark.parametrize("flags", [["--loss", "raft"], ["--loss", "reinforce", "--sync"]], ids=["raft", "reinforce"])
def test_the_baselines_run(tmp_path, trained, ray_address, flags):
    more = "--iterations", "2", "--save-every", "9", "--eval-tasks", "0", "--ray-address", ray_address
    play_run(tmp_path, *trained, *flags, *more)
    run = run_of(tmp_path)
    rows = batches(run)
    rollouts = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "rollouts"]
    assert len(rollouts) == 16 and len({t.place for t in rollouts}) == 16
    assert all(row["losses/trained_trajectories"] > 0 and row["losses/grad_norm"] > 0 for row in rows)
    if "raft" in flags:
        assert all(t.reward == 1 for t in rollouts) and all(row["losses/trained_trajectories"] == 8 for row in rows)


def test_a_schedule_played_again_is_the_same_bit_for_bit_in_two_processes_nearly(
    tmp_path, recorded, trained, ray_address
):
    first, again = recorded[0], []
    flags = [*TASKS, *trained, "--schedule", str(first), "--ray-address", ray_address]
    for name in ("second", "third"):
        play_run(tmp_path / name, *flags)
        again.append(run_of(tmp_path / name))

    def metrics(run):
        timed = ("time/", "perf/")
        return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in read_metrics(run)]

    def played(run):
        store = TrajectoryStore(run / "trajectories.jsonl")
        return {
            t.place: [(s.version, list(s.action_ids), s.logprobs) for s in t.steps]
            for t in store
            if t.policy == "rollouts"
        }

    assert str(metrics(again[0])) == str(metrics(again[1]))  # as text: NaN is not itself
    assert played(again[0]) == played(again[1])
    before, after = played(first), played(again[0])
    assert before.keys() == after.keys() and len({step[0] for steps in before.values() for step in steps}) > 1
    # Other batches give other last digits, of which Adam makes 1e-6 to 1e-4: now and then another token is drawn.
    same = [place for place in before if [s[:2] for s in before[place]] == [s[:2] for s in after[place]]]
    assert len(same) >= len(before) - 4
    for place in same:  # by the weights of that version
        for (*_, old), (*_, new) in zip(before[place], after[place], strict=True):
            assert new == pytest.approx(old, abs=1e-3)
    done = run_two(command(tmp_path / "two", *flags))
    assert done.returncode == 0 and "2 processes" in done.stdout, done.stderr[-3000:]
    two = run_of(tmp_path / "two")
    compared = 0
    for one, other in zip(batches(again[0]), batches(two), strict=True):  # two learners
        batch = [t.place for t in TrajectoryStore(two / "trajectories.jsonl") if t.phase == one["charts/iteration"]]
        if any([s[:2] for s in played(two)[p]] != [s[:2] for s in after[p]] for p in batch if p in after):
            break  # another token was drawn: from here on they learn from other episodes
        for name in ("losses/policy_loss", "losses/grad_norm", "losses/clip_fraction", "losses/approx_kl"):
            if name in one:  # where no group differs in its rewards nothing is trained on
                assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6)
                compared += 1
            assert (name in one) == (name in other)
    assert compared


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--loss", "mine"], "--loss mine: one of decoupled, coupled, raft, reinforce"),
        (["--batch-trajectories", "10"], "--batch-trajectories 10 is no multiple of --group-size 4"),
        (["--loss", "reinforce"], "--loss reinforce is synchronous, as WebGym is: add --sync"),
        (["--num-workers", "0"], "--num-workers must be at least 1"),
        (["--staleness", "-1"], "--staleness must not be negative"),
        (["--train-horizon", "9"], "--train-horizon 9: no task of gallery-v1/count+take_out is that short; 0: all"),
        (["--train-horizon", "-1"], "--train-horizon must not be negative"),
        (["--env-id", "mars"], "there is no such environment"),
        (["--engine", "http://127.0.0.1:9/v1"], "--engine needs --lora-rank"),
        (["--engine", "http://127.0.0.1:9/v1", "--lora-rank", "4"], "--engine needs a chat"),
        (["--engine", "http://127.0.0.1:9/v1", "--lora-rank", "4", "--num-servers", "2"], "--num-servers 1"),
    ],
)
def test_bad_input_is_refused_before_anything_begins(tmp_path, monkeypatch, flags, said):
    monkeypatch.setattr("common.lm.learn.use_threads", lambda count: None)  # of this process
    monkeypatch.setattr("common.lm.serve.served_context", lambda url, flag: 4096)  # who asks for one has one
    with pytest.raises(UsageError, match=re.escape(said)):
        grpo_async.main(parse_args(grpo_async.Args, ["--runs-dir", str(tmp_path), *SMALL, *flags]))
    assert not list(tmp_path.iterdir())


def test_a_schedule_is_not_gone_on_with(tmp_path):
    args = parse_args(grpo_async.Args, ["--runs-dir", str(tmp_path), *SMALL, "--schedule", "runs/none"])
    args.resume = "runs/one"  # as --resume auto leaves it
    with pytest.raises(UsageError, match="--schedule needs the weights of earlier versions"):
        grpo_async.main(args)


def test_bad_input_is_one_line(tmp_path):
    flags, said = ["--ray-address", "127.0.0.1:9"], "--ray-address 127.0.0.1:9: no Ray cluster answers"
    done = run_script(["grpo_async.py", "--runs-dir", str(tmp_path), *SMALL, *flags], timeout=120)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_tasks_that_nobody_checks_are_one_line(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    entry = '{"intent": "find it in %s", "start_url": "http://127.0.0.1:9/", "split": "%s"}\n'
    tasks.write_text("".join(entry % (split, split) for split in ("train", "eval", "test")))
    flags = ["--env-id", f"site:{tasks}", "--runs-dir", str(tmp_path / "runs")]
    for script, way in (("grpo_async.py", "nothing else says what succeeded"), ("distrl.py", "--judge URL asks")):
        done = run_script([script, *flags], timeout=120)
        assert done.returncode == 2 and "no training task has a check" in done.stderr and way in done.stderr, (
            done.stderr
        )
    assert not (tmp_path / "runs").exists()
