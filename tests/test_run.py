"""The run folder: metrics, time breakdown, checkpoints that survive a kill, resume, how a script ends, intervals."""

import errno
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from common.errors import UsageError
from common.lm import checkpoint, origin
from common.lm.args import check_ranges
from common.lm.run import Run, Timer, read_metrics
from common.lm.stats import evaluation_metrics, mean_ci, paired_difference, rollout_metrics, wilson
from common.replay import Step, Trajectory
from envs import Task

ROOT = Path(__file__).parent.parent


@dataclass
class Args:
    env_id: str = "arena"
    exp_name: str = "webrl"
    seed: int = 1
    track: bool = False
    wandb_project_name: str = "cleangui"
    wandb_entity: str | None = None


def trajectory(number: int) -> Trajectory:
    return Trajectory(Task(f"t{number}", "shop", "buy", 15), number, 0, [Step([1], [2], [-0.5], 0, "page", "exit()")])


def python(code: str, **options) -> subprocess.CompletedProcess:
    """Run the code in a process that listens to Ctrl-C, wherever the tests run."""
    command = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, **options)


# -- the folder and the metrics


def test_folder_holds_arguments_script_and_metrics(tmp_path):
    import numpy as np

    run = Run.create(Args(), __file__, tmp_path / "runs")
    assert run.path.parent == tmp_path / "runs" and run.name.startswith("arena__webrl__1__")
    assert json.loads((run.path / "args.json").read_text())["seed"] == 1
    assert (run.path / "test_run.py").read_text() == Path(__file__).read_text()
    run.log({"losses/policy": np.float32(0.5), "charts/success": 0.25}, step=10)
    run.log({"losses/policy": float("nan")}, step=20)
    rows = read_metrics(run.path)
    assert [row["global_step"] for row in rows] == [10, 20]
    assert rows[0]["losses/policy"] == 0.5 and math.isnan(rows[1]["losses/policy"])
    assert "NaN" not in (run.path / "metrics.jsonl").read_text()  # which is not JSON
    assert rows[0]["time/other"] >= 0


def test_two_runs_in_one_second_have_two_folders(tmp_path):
    assert len({Run.create(Args(env_id="a/b"), __file__, tmp_path).path for _ in range(3)}) == 3
    assert all(p.parent == tmp_path for p in tmp_path.iterdir())


def test_many_tasks_by_name_make_a_folder_of_their_own(tmp_path):
    names = [f"miniwob/{'+'.join(f'click-checkboxes-{i}' for i in range(30))}+{last}" for last in "ab"]
    paths = [Run.create(Args(env_id=name), __file__, tmp_path).path for name in names]
    assert len({path.name.split("__")[0] for path in paths}) == 2 and max(len(p.name) for p in paths) < 120


def test_a_wrong_flag_leaves_no_folder_and_a_run_that_began_stays(tmp_path):
    for error, logs, stays in (
        (UsageError("no such file"), 0, 0),
        (UsageError("later"), 1, 1),
        (OSError("full"), 0, 1),
    ):
        runs = tmp_path / str(error)
        with pytest.raises(type(error)), Run.create(Args(), __file__, runs) as run:
            for _ in range(logs):
                run.log({"charts/success": 0.5}, step=1)
            raise error
        assert len(list(runs.iterdir())) == stays, error


def test_unwritable_folder_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to .*file"):
        Run.create(Args(), __file__, tmp_path / "file" / "runs")


def test_reading_metrics_skips_a_torn_line(tmp_path):
    run = Run.create(Args(), __file__, tmp_path)
    run.log({"a": 1}, step=1)
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"global_step": 2, "a"')
    run.log({"a": 3}, step=3)
    assert [row["a"] for row in read_metrics(run.path)] == [1, 3]
    with pytest.raises(UsageError, match="is no run"):
        read_metrics(tmp_path)


def test_the_summary_holds_the_gain_against_the_control(tmp_path, capsys):
    def played(*won):
        return [Trajectory(Task(f"t{i}", "shop", "buy", 5), 0, 0, verdict=float(one)) for i, one in enumerate(won)]

    start, control, after = played(0, 0, 0, 1), played(0, 0, 1, 1), played(0, 1, 1, 1)
    with Run.create(Args(), __file__, tmp_path) as run:
        run.summary(start, after, control, "Others gain as much.")
        said = capsys.readouterr().out
        assert "\nOthers gain as much.\nTook " in said
        for line in ("the start      0.250 [", "the control    0.500 [", "reinforcement  0.750 ["):
            assert line in said
        assert "above the start: 0.500 [" in said and "above the control: 0.250 [" in said
        assert "control.py" not in said and "Not shown to be above the control" in said  # of four tasks
        run.summary(start, played(1, 1, 1, 1), played(0, 0, 0, 0))
        said = capsys.readouterr().out
        assert "Not shown" not in said
        assert "above the control: 1.000 on every task\n" in said  # no interval where nothing differs
        (run.path / "start").mkdir()  # there is something to make a control of
        run.summary(start, after)
        said = capsys.readouterr().out
        assert f"control.py test_run.py {run.path}" in said and "above the control" not in said
        run.summary([], after)
        assert "above" not in capsys.readouterr().out


def judged(number, verdict, said, ending="exit", reward=0.0):
    task = Task(f"t{number}", "https://h.example/a+b", "buy", 5)
    return Trajectory(task, 0, 0, verdict=verdict, judged=said, ending=ending, reward=reward)


def test_what_a_judge_claims_stands_apart_from_what_checks_know_and_beside_its_record(tmp_path, capsys):
    with Run.create(Args(), __file__, tmp_path) as run:
        after = [judged(0, 0.0, 0.9), judged(1, 0.0, 0.8), judged(2, None, 0.9), judged(3, None, 0.7)]
        run.trajectories.append(after)
        run.summary([judged(0, 0.0, 0.1), judged(2, None, 0.1)], after)
        said = capsys.readouterr().out
        checked, claimed = "2 held-out tasks with a check", "2 held-out tasks without one, by the judge"
        assert said.index(checked) < said.index("reinforcement  0.000 [") < said.index(claimed)
        assert said.index(claimed) < said.index("reinforcement  1.000 [") < said.index("The judge on the 2 episodes")
        assert "accuracy 0.000, precision 0.000, recall unknown" in said
        assert "above the start: 0.000" in said and "above the start: 1.000" in said
    with Run.create(Args(seed=2), __file__, tmp_path) as run:
        run.trajectories.append(after[2:])
        run.summary([], after[2:])
        said = capsys.readouterr().out
        assert "Test success on 2 held-out tasks (95 %" in said and "Nobody knows how good the judge is" in said
        run.summary([], after[:2])
        assert "The judge on" not in capsys.readouterr().out
    metrics = evaluation_metrics(after, "eval")
    assert (metrics["eval/checked_success"], metrics["eval/judged_success"], metrics["eval/success"]) == (0, 1, 0.5)
    assert metrics["eval/site_h.example"] == 0.5  # by host, and no task that crosses sites
    assert "eval/checked_success" not in evaluation_metrics(after[:2], "eval")


def test_a_printed_line_holds_faults_and_why_nothing_was_rewarded(tmp_path, capsys):
    known = {"rollout/reward": 0.0, "rollout/faults": 0, "rollout/dropped": 0, "rollout/unanswered": 0}
    with Run.create(Args(), __file__, tmp_path) as run:
        run.report("phase 1", known, "rollout/reward eval/success")
        assert capsys.readouterr().out == "phase 1: rollout reward 0\n"
        rollouts = [judged(0, None, 0.1), judged(1, 0.0, None), judged(2, 1.0, 0.3), judged(3, 0.0, None, "truncated")]
        rollouts += [judged(4, None, None), judged(5, None, None, "overflow")]
        counts = {"rollout/faults": 3, "rollout/unanswered": 2}
        run.report("phase 1", known | rollout_metrics(rollouts) | counts, "rollout/reward")
        first, second = capsys.readouterr().out.splitlines()
        assert first == "phase 1: rollout reward 0, faults 3, unanswered 2"
        assert second == (
            "phase 1: no rollout was rewarded: 2 the judge called failures, 1 the check called failures, "
            "1 ran out of steps, 1 nobody judged, 1 ran out of room in the prompt"
        )
        run.log(rollout_metrics(rollouts), 1)
        assert "no rollout was rewarded" in read_metrics(run.path)[-1]["rollout/note"]
        run.report("phase 2", rollout_metrics([]), "")
        assert "none is left, all were lost to faults or got no judgement" in capsys.readouterr().out
    assert "rollout/note" not in rollout_metrics([*rollouts, judged(6, None, 0.9, reward=1.0)])


@pytest.mark.parametrize("name, found", [("a:b", "':'"), ("50%", "'%'"), ("what?", "'?'"), ("a\nb", r"'\n'")])
def test_a_name_that_wandb_does_not_take_is_refused_at_once(tmp_path, name, found):
    with pytest.raises(
        UsageError, match=rf"(?s)--exp-name .*takes no {re.escape(found)} in a run's name: leave it out"
    ):
        Run.create(Args(exp_name=name, track=True), __file__, tmp_path)
    assert not list(tmp_path.iterdir())
    with Run.create(Args(exp_name=name.replace("\n", "")), __file__, tmp_path):  # without --track it is a folder's
        pass


def test_a_project_that_wandb_does_not_take_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(UsageError, match="--track: Invalid project name.*another --wandb-project-name"):
        Run.create(Args(track=True, wandb_project_name="a:b"), __file__, tmp_path)


def test_wandb_offline_gets_every_row(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    with Run.create(Args(track=True), __file__, tmp_path) as run:
        run.log({"losses/policy": 0.5}, step=10)
        run.log({"losses/policy": 0.25}, step=5)  # out of order: kept, since step= is never given
        assert wandb.run.name == run.name
        assert wandb.run.summary["losses/policy"] == 0.25
    assert wandb.run is None
    assert list(run.path.glob("wandb/offline-run-*/*.wandb"))


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    with Run.create(Args(track=True), __file__, tmp_path) as run:
        first = wandb.run.id
        run.log({"losses/policy": 0.5}, step=10)
        run.save_checkpoint(10, {}, {}, {})
    with Run.create(Args(track=True), __file__, tmp_path, run.path) as again:
        again.begin()
        assert wandb.run.id == first and again.name == run.name
        again.log({"losses/policy": 0.25}, step=20)
    assert all(first in folder.name for folder in run.path.glob("wandb/offline-run-*"))
    with Run.create(Args(track=True), __file__, tmp_path) as other:
        assert wandb.run.id != first and other.name != run.name


def test_wandb_gets_origin_group_tags_episodes_and_pages(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    for seed in (1, 2):
        args = Args(env_id="arena/shop+map", seed=seed, track=True)
        with Run.create(args, __file__, tmp_path) as run:
            assert wandb.run.group == "arena-shop+map__webrl"
            assert set(wandb.run.tags) == {"test_run", "arena-shop+map"}  # these Args have no preset
            (record,) = json.loads((run.path / "origin.json").read_text())
            assert {wandb.run.config[name] for name in ("commit", "command")} == {record["commit"], record["command"]}
            played = [trajectory(0), trajectory(1)]
            played[0].kind, played[1].kind, played[0].verdict = "test after", "rollout", 1.0
            run.trajectories.append(played)
            (run.path / "plots").mkdir()
            for name in ("plots/success.png", "episodes.html", "uncommitted.diff", "trajectories-not.txt"):
                (run.path / name).write_text("text")
    wandb.teardown()  # its service writes the file's end when the run is finished already
    (file,) = run.path.glob("wandb/offline-run-*/*.wandb")
    kept = "test_run.py", "args.json", "origin.json", "uncommitted.diff", "plots/success.png", "episodes.html"
    log = file.read_bytes()
    assert all(name.encode() in log for name in kept) and b"trajectories-not" not in log
    (table,) = run.path.glob("wandb/offline-run-*/files/media/table/test_episodes*.json")
    assert json.loads(table.read_text())["data"] == [["test after", "t0", "buy", True, 1, "truncated"]]


def test_an_error_of_wandb_is_a_line_and_ends_nothing(tmp_path, monkeypatch, capsys):
    import wandb

    def fail(*given, **more):
        raise wandb.errors.CommError("no\nspace there")

    monkeypatch.setenv("WANDB_MODE", "offline")
    with Run.create(Args(track=True), __file__, tmp_path) as run:
        monkeypatch.setattr(wandb.Artifact, "add_file", fail)
        monkeypatch.setattr(wandb.run, "log", fail)
        run.log({"a": 1}, step=1)
    assert wandb.run is None and origin.read(run.path)[-1]["state"] == "finished"
    assert capsys.readouterr().out == "warning: --track: no space there\n"  # of the row and of the files: once
    with pytest.raises(KeyboardInterrupt), Run.create(Args(track=True), __file__, tmp_path) as run:
        run.log({"a": 1}, step=1)
        raise KeyboardInterrupt
    assert wandb.run is None and origin.read(run.path)[-1]["state"] == "stopped"


# -- time


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("common.lm.run.time.perf_counter", clock.perf_counter)
    return clock


def test_timer_parts_nest_and_add_up(clock):
    timer = Timer()
    clock.now = 1
    with timer("pages"):
        clock.now = 3
        with timer("generation"):
            clock.now = 7
        clock.now = 8
    clock.now = 10
    assert timer.metrics() == {"time/other": 3, "time/pages": 3, "time/generation": 4}
    assert sum(timer.seconds.values()) == 10


def test_timer_parts_may_overlap_and_fail(clock):
    timer = Timer()
    pages, generation = timer("pages"), timer("generation")
    pages.__enter__()
    clock.now = 1
    generation.__enter__()
    clock.now = 3
    pages.__exit__(None, None, None)  # ends first, though it began first
    clock.now = 6
    with pytest.raises(ValueError), timer("training"):
        clock.now = 7
        raise ValueError
    generation.__exit__(None, None, None)
    clock.now = 9
    assert timer.metrics() == {"time/other": 2, "time/pages": 1, "time/generation": 5, "time/training": 1}


def test_timer_in_threads_loses_nothing():
    timer = Timer()

    def work():
        for _ in range(200):
            with timer("a"), timer("b"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timer._active == []


# -- checkpoints


def learner():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[2].weight = model[1].weight  # tied, as embeddings are
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimiser.step()
    return model, optimiser


def test_checkpoint_round_trip(tmp_path):
    import torch

    run = Run.create(Args(), __file__, tmp_path)
    assert run.latest() is None
    model, optimiser = learner()
    head = {"value": torch.randn(3, 3).t()}
    tensors = {"optimiser": optimiser.state_dict(), "rng": torch.get_rng_state()}
    run.save_checkpoint(
        7, {"critic": dict(model.named_parameters()), "head": head}, tensors, {"phase": 2, "failed": ["a"]}
    )
    expected = torch.rand(3)

    saved = run.latest()
    assert saved.step == 7 and saved.state == {"phase": 2, "failed": ["a"]}
    other, other_optimiser = learner()
    with torch.no_grad():
        other[0].weight.zero_()
    other.load_state_dict(saved.weights("critic"), strict=False)  # what is tied is there once
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))
    assert torch.equal(saved.weights("head")["value"], head["value"])
    loaded = saved.tensors()
    other_optimiser.load_state_dict(loaded["optimiser"])
    assert torch.equal(
        other_optimiser.state_dict()["state"][0]["exp_avg"], optimiser.state_dict()["state"][0]["exp_avg"]
    )
    torch.set_rng_state(loaded["rng"])
    assert torch.equal(expected, torch.rand(3))
    with pytest.raises(UsageError, match="no weights named actor"):
        saved.weights("actor")


def test_pretrained_models_go_to_one_folder_with_their_tokenizer(tmp_path):
    class Part:
        def __init__(self, name):
            self.name = name

        def save_pretrained(self, folder):
            Path(folder).mkdir(exist_ok=True)
            (Path(folder) / self.name).write_text(self.name)

    run = Run.create(Args(), __file__, tmp_path)
    run.save_checkpoint(1, {"actor": [Part("model"), Part("tokenizer")], "orm": [Part("model")]}, {}, {})
    saved = run.latest()
    assert sorted(p.name for p in saved.folder("actor").iterdir()) == ["model", "tokenizer"]
    assert [p.name for p in saved.folder("orm").iterdir()] == ["model"]


def test_the_last_two_are_kept_and_one_step_can_be_saved_twice(tmp_path):
    run = Run.create(Args(), __file__, tmp_path)
    for step in (100, 2000, 2000):
        run.save_checkpoint(step, {}, {}, {"step": step})
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["0002-2000", "0003-2000"]


def test_a_checkpoint_that_fails_leaves_the_former_ones(tmp_path, monkeypatch):
    run = Run.create(Args(), __file__, tmp_path)
    run.save_checkpoint(1, {}, {}, {"ok": True})

    class Full:
        def save_pretrained(self, folder):
            raise RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)")

    with pytest.raises(OSError) as failure:
        run.save_checkpoint(2, {"actor": [Full()]}, {}, {})
    assert failure.value.errno == errno.ENOSPC
    assert run.latest().step == 1
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["0001-1"]


def test_killed_while_saving(tmp_path):
    code = f"""
import os, signal
from common.lm import checkpoint, origin
from pathlib import Path
class Killer:
    def save_pretrained(self, folder):
        Path(folder).mkdir()
        (Path(folder) / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save({str(tmp_path)!r}, 1, {{}}, {{}}, {{"global_step": 1, "state": 1}})
checkpoint.save({str(tmp_path)!r}, 2, {{"actor": [Killer()]}}, {{}}, {{"global_step": 2, "state": 2}})
"""
    assert python(code).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # the whole one and the one cut short
    assert checkpoint.latest(tmp_path).state == 1
    checkpoint.save(tmp_path, 3, {}, {}, {"global_step": 3, "state": 3})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["0001-1", "0002-3"]


def test_resume_drops_what_came_after_the_checkpoint(tmp_path):
    run = Run.create(Args(), __file__, tmp_path)
    run.trajectories.append([trajectory(0)])
    run.log({"a": 1}, step=1)
    run.timer.seconds["pages"] = 100.0
    run.save_checkpoint(1, {}, {}, {"phase": 1})
    run.trajectories.append([trajectory(1)])
    run.log({"a": 2}, step=2)

    run.lock.close()
    again = Run.create(Args(), __file__, tmp_path, run.path)
    assert again.path == run.path and again.resumed.state == {"phase": 1}
    assert [t.seed for t in again.trajectories] == [0, 1] and len(read_metrics(run.path)) == 2  # until it is loaded
    again.begin()
    assert [t.seed for t in again.trajectories] == [0]
    assert [row["a"] for row in read_metrics(again.path)] == [1]
    assert again.timer.metrics()["time/pages"] == 100
    with Run.create(Args(seed=2), __file__, tmp_path) as other:
        assert other.resumed is None and other.path != run.path
    with pytest.raises(UsageError, match="nothing to resume"):
        Run.create(Args(), __file__, tmp_path, other.path)


# -- how a script ends

ENDINGS = {
    "raise UsageError('no model at /nowhere:\\n  give a folder')": (2, "error: no model at /nowhere: give a folder"),
    "raise TooManyFaults('more than 20 % faults: the shop refuses')": (
        1,
        "stopped: more than 20 % faults: the shop refuses",
    ),
    "raise ExceptionGroup('tasks', [TooManyFaults('25 of 100 faults')])": (1, "stopped: 25 of 100 faults"),
    "raise OSError(28, 'No space left on device', 'x')": (1, "stopped: the disk is full (x)"),
    "os.kill(os.getpid(), signal.SIGINT); wait()": (130, "stopped by the user"),
    "os.kill(os.getpid(), signal.SIGTERM); wait()": (130, "stopped by the user"),
    "pass": (0, ""),
}


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("body", ENDINGS)
def test_run_main(kind, body):
    code = f"""
import asyncio, os, signal
from common.errors import TooManyFaults, UsageError
from common.lm.run import run_main
{kind} main(seed):
    try:
        {body.replace("wait()", "signal.pause()" if kind == "def" else "await asyncio.Event().wait()")}
    finally:
        print("checkpoint", seed)
run_main(main, 3)
"""
    done = python(code)
    status, message = ENDINGS[body]
    assert (done.returncode, done.stdout) == (status, "checkpoint 3\n"), done.stderr
    assert done.stderr.startswith(message) and done.stderr.count("\n") == (1 if message else 0)


def test_other_errors_keep_their_traceback():
    done = python("from common.lm.run import run_main\ndef main(): 1 / 0\nrun_main(main)")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr


# -- intervals


def test_wilson():

    # Newcombe 1998, table I: 81/263 and 0/20
    assert wilson(81, 263) == pytest.approx((81 / 263, 0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0, 0, 0.1611), abs=1e-4)
    assert wilson(20, 20).high == 1 and wilson(20, 20).low == pytest.approx(0.8389, abs=1e-4)
    assert math.isnan(wilson(0, 0).estimate)


def test_mean_and_paired_difference():
    assert mean_ci([1, 2, 3]) == pytest.approx((2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    half = 5.8409 * (5 / 3) ** 0.5 / 4**0.5  # Student's t, three degrees of freedom, 99 %
    assert mean_ci([1, 2, 3, 4], level=0.99) == pytest.approx((2.5, 2.5 - half, 2.5 + half), abs=1e-4)
    assert mean_ci([0.5]).estimate == 0.5 and math.isnan(mean_ci([0.5]).low)
    assert math.isnan(mean_ci([]).estimate)
    assert paired_difference([2, 4, 6], [1, 2, 3]) == mean_ci([1, 2, 3])
    with pytest.raises(ValueError):
        paired_difference([1, 2], [1])


def test_metrics_survive_a_kill(tmp_path):
    code = f"""
import os, signal
from tests.test_run import Args
from common.lm.run import Run
run = Run.create(Args(), "x.py", {str(tmp_path)!r})
run.log({{"a": 1}}, step=1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert python(code, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == -signal.SIGKILL
    (path,) = tmp_path.iterdir()
    assert [row["a"] for row in read_metrics(path)] == [1]


# -- wrong numbers


@pytest.mark.parametrize("flags, message", [
    (dict(seed=-1), "--seed must not be negative, and is -1"),
    (dict(count=0), "--count must be at least 1, and is 0"),
    (dict(share=1.5), "--share must be from 0 to 1, and is 1.5"),
    (dict(share=math.nan), "--share must be from 0 to 1, and is nan"),
    (dict(rate=0.0), "--rate must be above 0, and is 0"),
    (dict(lowest_gain=math.nan), "--lowest-gain must be a number, and is nan"),
])  # fmt: skip
def test_numbers_out_of_range_are_named(flags, message):
    @dataclass
    class Numbers:
        seed: int = 1
        count: int = 1
        share: float = 1.0
        rate: float = 0.1
        lowest_gain: float = -math.inf
        track: bool = False
        env_id: str = "arena"

    ranges = dict(at_least_1="count", shares="share", above_0="rate", any_value="lowest_gain")
    check_ranges(Numbers(), **ranges)
    with pytest.raises(UsageError, match=message):
        check_ranges(Numbers(**flags), **ranges)
    with pytest.raises(AssertionError, match="rat"):
        check_ranges(Numbers(lowest_gain=0.0), above_0="rat")


@pytest.mark.parametrize("script", ["webrl", "crps", "digirl", "grpo_async", "distrl"])
def test_no_script_begins_with_a_number_that_is_none(script):
    module = importlib.import_module(script)
    numbers = [field for field in fields(module.Args) if isinstance(field.default, int | float)]
    for field in numbers:
        if not isinstance(field.default, bool):
            with pytest.raises(UsageError, match=f"--{field.name.replace('_', '-')} must .*, and is nan"):
                module.main(module.Args(**{field.name: math.nan}))
