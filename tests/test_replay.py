"""The trajectory store: exact round trips, torn lines, a full disk, images."""

import dataclasses
import errno
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import replay
from common.errors import UsageError
from common.replay import (
    Step,
    Trajectory,
    TrajectoryStore,
    from_json,
    read_demos,
    step_lengths,
    steps_of,
    to_json,
    truncate,
)
from envs import Task

text = st.text(st.characters(), max_size=20)  # lone surrogates, NUL and line separators included
floats = st.floats(allow_nan=False)
steps = st.builds(
    Step,
    prompt_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4),
    action_ids=st.lists(st.integers(0, 2**31), max_size=4),
    logprobs=st.lists(floats, max_size=4),
    version=st.integers(0, 1000),
    observation=text,
    action=text,
    reward=floats,
    error=text,
    url=text,
    screenshot=st.none() | text,
    value=st.none() | floats,
    advantage=st.none() | floats,
)
tasks = st.builds(
    Task,
    task_id=text,
    site=text,
    instruction=text,
    max_steps=st.integers(1, 30),
    config=st.none() | st.dictionaries(text, text | st.integers() | st.lists(text, max_size=3), max_size=3),
)
trajectories = st.builds(
    Trajectory,
    task=tasks,
    seed=st.integers(),
    attempt=st.integers(0, 9),
    steps=st.lists(steps, max_size=3),
    answer=text,
    verdict=st.none() | floats,
    judged=st.none() | floats,
    reward=floats,
    phase=st.integers(0, 99),
    policy=text,
    final_observation=text,
)


def episode(number: int) -> Trajectory:
    step = Step([1, 2], [3], [-0.1], 0, "page", 'exit(message="a")')
    return Trajectory(Task(f"t{number}", "shop", "buy", 15), seed=number, attempt=0, steps=[step])


@given(trajectories)
@settings(max_examples=200, deadline=None)
def test_round_trip_is_exact_and_one_line(trajectory):
    line = to_json(trajectory)
    assert from_json(line) == trajectory
    assert len(line.splitlines()) == 1


def test_append_read_iterate(tmp_path):
    store = TrajectoryStore(tmp_path / "run" / "trajectories.jsonl")
    assert list(store) == [] and store.size == 0 and store.append([]) == []
    offsets = store.append([episode(0), episode(1)]) + store.append([episode(2)])
    assert [t.seed for t in store] == [0, 1, 2]
    assert [store.read(offset).seed for offset in offsets] == [0, 1, 2]
    assert next(iter(store)).seed == 0  # lazy: one may stop early


def test_every_cut_of_the_last_line_costs_that_line_alone(tmp_path):
    store = TrajectoryStore(tmp_path / "t.jsonl")
    start = store.append([episode(0), episode(1)])[1]
    whole = store.path.read_bytes()
    for cut in range(start + 1, len(whole) - 1):
        store.path.write_bytes(whole[:cut])
        assert [t.seed for t in store] == [0], cut
        (offset,) = store.append([episode(2)])
        assert [t.seed for t in store] == [0, 2], cut
        assert store.read(offset).seed == 2
    store.path.write_bytes(whole[:-1])  # only the newline is lost: nothing else is
    store.append([episode(2)])
    assert [t.seed for t in store] == [0, 1, 2]


def test_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    store = TrajectoryStore(tmp_path / "t.jsonl")
    store.append([episode(0)])
    before = store.path.read_bytes()
    real_write = os.write

    def write(fd, data):  # the disk takes 100 bytes, then is full
        if os.fstat(fd).st_size >= len(before) + 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, bytes(data[:100]))

    with monkeypatch.context() as patch:
        patch.setattr(replay.os, "write", write)
        with pytest.raises(OSError) as failure:
            store.append([episode(1), episode(2)])
    assert failure.value.errno == errno.ENOSPC
    assert store.path.read_bytes() == before
    store.append([episode(3)])
    assert [t.seed for t in store] == [0, 3]


def test_truncate_goes_back_to_a_checkpoint(tmp_path):
    store = TrajectoryStore(tmp_path / "t.jsonl")
    store.append([episode(0)])
    size = store.size
    store.append([episode(1)])
    truncate(store.path, size)
    assert [t.seed for t in store] == [0]
    truncate(store.path, 10**9)  # never makes the file longer
    assert store.size == size


def test_images_are_stored_once_by_content(tmp_path):
    store = TrajectoryStore(tmp_path / "t.jsonl")
    png, jpg = b"\x89PNG one", b"\xff\xd8 two"
    names = [store.add_image(png), store.add_image(png), store.add_image(jpg)]
    assert names[0] == names[1] != names[2]
    assert names[0].endswith(".png") and names[2].endswith(".jpg")
    assert (tmp_path / names[0]).read_bytes() == png
    assert len(list((tmp_path / "screenshots").iterdir())) == 2


def test_import_is_light():
    code = "import sys, common.replay, common.lm.run, common.lm.stats; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_tensor_is_refused_before_anything_is_written(tmp_path):
    store = TrajectoryStore(tmp_path / "t.jsonl")
    bad = episode(1)
    bad.reward = object()
    with pytest.raises(TypeError, match="object has no place"):
        store.append([episode(0), bad])
    assert store.size == 0


def test_demonstrations_are_the_successes_on_training_tasks(tmp_path):
    store = TrajectoryStore(tmp_path / "t.jsonl")
    train = [dataclasses.replace(episode(0).task, task_id=f"train-{number}") for number in range(3)]
    test = dataclasses.replace(train[0], task_id="test-0", split="test")
    generated = dataclasses.replace(train[0], instruction="buy two")  # its true verdict is not for training
    for task, verdict in ((train[0], 1.0), (train[1], 0.0), (test, 1.0), (train[2], None), (generated, 1.0)):
        store.append([dataclasses.replace(episode(0), verdict=verdict, task=task)])
    own = '{"instruction": "mine", "steps": [{"text": "p", "action": "a"}, {"text": "q", "action": "b", "error": "no"}'
    own += ', {"text": "r", "action": "c"}]}'
    (tmp_path / "demos.jsonl").write_text(store.path.read_text() + own)
    seen = []

    def prompt(instruction, past, obs):
        seen.append((instruction, len(past), obs["text"], obs["error"]))
        return [len(past)]

    demos = read_demos(tmp_path / "demos.jsonl", prompt, lambda action: [9], train)
    assert [d.task.instruction for d in demos] == ["buy", "mine"]
    assert all(d.verdict == d.reward == 1.0 for d in demos)
    assert seen[-3:] == [
        ("mine", 0, "p", ""),
        ("mine", 1, "q", ""),
        ("mine", 2, "r", "no"),
    ]  # what an action brought is on the next page


def test_a_line_that_is_no_demonstration_is_named(tmp_path):
    (tmp_path / "demos.jsonl").write_text('{"instruction": "x", "steps": []}\n')
    with pytest.raises(UsageError, match="line 1"):
        read_demos(tmp_path / "demos.jsonl", lambda *_: [1], lambda _: [2], [])


@pytest.mark.parametrize(
    "verdict, judged, outcome, success",
    [
        (1.0, 0.1, "exit", True),  # the check knows better than the judge
        (1.0, None, "truncated", True),  # where an episode that is cut off is scored
        (0.0, 0.9, "exit", False),
        (None, 0.9, "exit", True),
        (None, 0.9, "truncated", False),  # it never said that it was done
        (None, 0.5, "exit", False),
        (None, None, "exit", False),
    ],
)
def test_success_is_the_verdict_or_else_what_the_judge_thinks_of_an_exit(verdict, judged, outcome, success):
    trajectory = Trajectory(Task("1", "shop", "buy", 15), 0, 0, ending=outcome, verdict=verdict, judged=judged)
    assert trajectory.success is success


def test_steps_know_their_trajectory_and_are_as_long_as_prompt_and_action():
    steps = [Step([1] * length, [2] * 3, [], 0, "", "") for length in (4, 7)]
    made = dataclasses.replace(episode(1), steps=steps)
    found = steps_of([made])
    assert [(s.trajectory is made, s.t) for s in found] == [(True, 0), (True, 1)]  # the terminal step, too
    assert step_lengths(found) == [7, 10]
    assert '"t"' not in to_json(made) and from_json(to_json(made)) == made  # none of this is stored
    assert steps_of([dataclasses.replace(made, prefix=1)]) == steps[1:]  # the prefix is an earlier policy's
