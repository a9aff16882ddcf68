"""grpo_async.py's equations and its pool of rollouts, against slow and independent computations."""

import asyncio
import contextlib
import copy
import io
import json
import math
import os
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import grpo_async
from common import visual
from common.actions import Action, ActionError, parse
from common.errors import EnvFault, TooManyFaults, UsageError
from common.lm import learn, llm
from common.lm.rollout import Slots, play
from common.replay import Step, Trajectory, TrajectoryStore, image_name
from envs import Task
from envs.arena import Arena
from envs.miniwob import MiniWoB
from envs.site import Site
from envs.webarena_sites import WebArena
from envs.webgym import WebGym
from grpo_async import Pool, decoupled_loss, group_advantages, step_weights
from tests.nets import net_of
from tools import pretrain_vl
from variants import grpo_async as baselines

FINITE = st.floats(-3, 3)
TASK = Task("t", "gallery", "buy a large red ring", 10, "train", 0)


def by_token(logprob, prox, behave, advantage, eps, dual, cap):
    """Eq. 1 of one token in plain Python, minus the sign: what is to be minimised."""
    weight = math.exp(prox - behave)
    if cap and weight > cap:
        return 0.0
    ratio = math.exp(logprob - prox)
    clipped = min(max(ratio, 1 - eps), 1 + eps)
    loss = -min(ratio * advantage, clipped * advantage)
    if dual and advantage < 0:
        loss = min(loss, dual * abs(advantage))
    return weight * loss


def loss_of(logprob, prox=-1.1, behave=-1.4, advantage=1.0, **options):
    one = [torch.tensor([[value]], dtype=torch.float64) for value in (logprob, prox, behave)]
    loss, _ = decoupled_loss(*one, torch.tensor([advantage], dtype=torch.float64), torch.tensor([[True]]), **options)
    return loss.item()


def test_known_values():
    assert loss_of(-1.0) == pytest.approx(-1.49182, abs=1e-5)
    assert loss_of(-0.8) == pytest.approx(-1.61983, abs=1e-5)  # clipped
    assert loss_of(-0.8, prox=-1.4) == pytest.approx(-1.2)  # coupled: pi_behave in pi_prox's place
    assert loss_of(-1.6, advantage=-1.0) == pytest.approx(1.07989, abs=1e-5)
    assert loss_of(1.0, advantage=-1.0) == pytest.approx(3 * math.exp(0.3))  # the dual clip
    assert loss_of(-1.0, behave=-3.0) == 0.0  # pi_prox / pi_behave = 6.7 is above the cap
    assert loss_of(-1.0, behave=-3.0, behave_cap=0.0) == pytest.approx(-math.exp(1.9) * math.exp(0.1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_is_the_token_by_token_sum_whatever_the_padding(data):
    rows = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    width = max(rows) + data.draw(st.integers(0, 2))
    values = [[[data.draw(FINITE) for _ in range(3)] for _ in range(width)] for _ in rows]
    advantages = [data.draw(FINITE) for _ in rows]
    tensor = torch.tensor(values, dtype=torch.float64)
    mask = torch.tensor([[t < length for t in range(width)] for length in rows])
    loss, shares = decoupled_loss(*tensor.unbind(-1), torch.tensor(advantages, dtype=torch.float64), mask)
    for i, length in enumerate(rows):
        for t in range(width):
            expected = by_token(*values[i][t], advantages[i], 0.2, 3.0, 5.0) if t < length else 0.0
            assert loss[i, t].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    capped = [math.exp(values[i][t][1] - values[i][t][2]) > 5 for i, length in enumerate(rows) for t in range(length)]
    assert shares["capped"].item() == pytest.approx(sum(capped) / len(capped))


def test_gradients_raise_good_tokens_and_lower_bad_ones():
    for advantage in (1.0, -1.0):
        logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
        prox = torch.tensor([[-1.0, -1.0]], requires_grad=True)
        behave = torch.tensor([[-1.2, -1.0]], requires_grad=True)
        mask = torch.tensor([[True, False]])
        decoupled_loss(logprobs, prox, behave, torch.tensor([advantage]), mask)[0].sum().backward()
        assert logprobs.grad[0, 0].item() == pytest.approx(-advantage * math.exp(0.2))
        assert logprobs.grad[0, 1] == 0  # masked
        assert behave.grad is None or not behave.grad.any()  # a constant


def test_outside_the_clip_range_there_is_no_gradient():
    for logprob, advantage, moves in ((-0.5, 1.0, False), (-0.5, -1.0, True), (-1.5, 1.0, True), (-1.5, -1.0, False)):
        logprobs = torch.tensor([[logprob]], requires_grad=True)
        others = torch.tensor([[-1.0]])
        loss, shares = decoupled_loss(logprobs, others, others, torch.tensor([advantage]), torch.tensor([[True]]))
        loss.sum().backward()
        assert bool(logprobs.grad.any()) == moves
        assert shares["clipped"].item() == (not moves)
    logprobs = torch.tensor([[0.5]], requires_grad=True)
    loss, shares = decoupled_loss(logprobs, others, others, torch.tensor([-1.0]), torch.tensor([[True]]))
    loss.sum().backward()
    assert loss.item() == 3 and not logprobs.grad.any() and shares["dual_clipped"].item() == 1


def test_a_ratio_that_overflows_is_capped_and_leaves_the_other_gradients_whole():
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    behave, mask = torch.tensor([[-1.0, -95.0]]), torch.tensor([[True, True]])
    loss, shares = decoupled_loss(logprobs, logprobs.detach(), behave, torch.tensor([1.0]), mask)
    loss.sum().backward()
    assert loss.tolist() == [[-1.0, 0.0]] and logprobs.grad.tolist() == [[-1.0, 0.0]]
    assert shares["capped"].item() == 0.5


def test_weights_of_steps():
    steps = torch.tensor([5, 10, 20])
    assert step_weights(steps, "constant").tolist() == pytest.approx([0.1] * 3)
    assert step_weights(steps, "constant", k=4).tolist() == pytest.approx([0.25] * 3)
    assert step_weights(steps, "trajectory").tolist() == pytest.approx([0.2, 0.1, 0.05])
    with pytest.raises(ValueError, match="neither constant"):
        step_weights(steps, "half")


def test_advantages_are_those_of_the_population():
    assert group_advantages(torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0])).tolist()[0] == pytest.approx(1.7321, abs=1e-4)
    assert not group_advantages(torch.full((8,), 0.3)).any()


# --- the pool --------------------------------------------------------------------------------------------------------


def trajectory(version, reward, first="same", shown="a"):
    return SimpleNamespace(steps=[SimpleNamespace(version=version, hash=first, screenshot=shown)], reward=reward)


def simulate(seed, eta, group_size, groups, players, batches, straggle=0.0):
    """A learner that takes a batch whenever there is one; players of random speed. Yields (version, batch, pool)."""
    rng = random.Random(seed)
    pool = Pool(lambda number: f"task {number}", group_size, group_size * groups, eta)
    running, taken = [], 0  # (time left, group, member, version at the beginning)
    for _ in range(100_000):
        while len(running) < players and (job := pool.next()) is not None:
            slow = 50 if rng.random() < straggle else 1
            running.append([rng.randint(1, 6) * slow, *job, pool.version])
        assert pool.accepted + pool.running <= (eta + pool.version + 1) * pool.batch_trajectories
        for entry in list(running):
            entry[0] -= 1
            if entry[0] <= 0:
                running.remove(entry)
                _, group, member, version = entry
                pool.put(group.number, member, trajectory(version, float(rng.random() < 0.5)))
        if rng.random() < 0.3 and (batch := pool.take()) is not None:
            yield pool.version, batch, pool
            pool.version += 1
            taken += 1
            if taken == batches:
                return
    raise AssertionError("the pool stands still")


@pytest.mark.parametrize("eta", [0, 1, 2, 4])
@pytest.mark.parametrize("straggle", [0.0, 0.1])
def test_nothing_older_than_eta_is_ever_taken_and_nothing_stands_still(eta, straggle):
    for seed in range(5):
        lags, stale = [], 0
        for version, batch, pool in simulate(seed, eta, 4, 3, 10, 30, straggle):
            assert len(batch) == 3 and all(len(group.done) == 4 for group in batch)
            assert [group.number for group in batch] == sorted(group.number for group in batch)
            lags += [version - group.oldest() for group in batch]
            stale = pool.counts["stale"]
            assert all(group.is_mixed() for group in batch)
        assert min(lags) >= 0 and max(lags) <= eta
        assert straggle or not stale  # without stragglers nothing is in vain


def test_a_group_is_as_old_as_its_oldest_step():
    steps = [[SimpleNamespace(version=version, hash="a") for version in versions] for versions in ((3, 4), (2, 5))]
    done = {member: SimpleNamespace(steps=own, reward=float(member)) for member, own in enumerate(steps)}
    assert grpo_async.Group(0, None, done=done).oldest() == 2


def recorded(folder, phases):
    """A run's folder with rollouts {iteration: {place: versions of the steps}}."""
    store = TrajectoryStore(folder / "trajectories.jsonl")
    for phase, places in phases.items():
        for place, versions in places.items():
            steps = [Step([1], [2], [0.0], version, "", "done") for version in versions]
            attempt = place % 3  # after so many faults
            store.append([Trajectory(TASK, 0, attempt, steps, phase=phase, place=place, policy="rollouts")])
    store.append([Trajectory(TASK, 0, 0, [], policy="test before")])


def test_a_schedule_is_read_and_one_that_does_not_fit_is_refused(tmp_path):
    phases = {1: {0: [0, 0], 1: [0]}, 2: {5: [0, 1], 4: [1]}, 3: {6: [2], 7: [1, 1, 2]}}
    recorded(tmp_path, phases)
    args = grpo_async.Args(schedule=str(tmp_path), batch_trajectories=2, group_size=2, iterations=3, staleness=1)
    assert baselines.read_schedule(args) == {
        phase: {place: (place % 3, versions) for place, versions in places.items()} for phase, places in phases.items()
    }
    for flags, said in [
        ({"iterations": 4}, "it has 3 batches, not 4"),
        ({"batch_trajectories": 4}, "its batches have 2 trajectories"),
        ({"staleness": 0}, "older steps than --staleness 0"),
        ({"schedule": str(tmp_path / "none")}, "no run with rollouts"),
    ]:
        with pytest.raises(UsageError, match=said):
            baselines.read_schedule(replace(args, **flags))


def test_a_synchronous_run_refuses_a_schedule_with_older_steps(tmp_path):
    recorded(tmp_path, {1: {0: [0], 1: [0]}, 2: {2: [1], 3: [0]}})
    flags = dict(schedule=str(tmp_path), batch_trajectories=2, group_size=2, iterations=2, sync=True)
    with pytest.raises(UsageError, match="older steps than --staleness 0"):
        grpo_async.main(replace(grpo_async.Args(), **flags))


def test_what_is_too_old_makes_place_for_others_at_once():
    """The slots that stand still are told, though no batch is there yet."""
    pool, told = Pool(str, 2, 4, 0), []
    complete(pool, trajectory(0, 0.0), trajectory(0, 1.0))
    players = SimpleNamespace(notify=lambda: told.append(pool.capacity()))
    system = SimpleNamespace(pool=pool, players=players, drop=lambda names: None)
    system._forget = partial(grpo_async.System._forget, system)
    assert grpo_async.System._take(system) is None and not told
    pool.version = 1
    assert grpo_async.System._take(system) is None and told == [8] and pool.counts["stale"] == 1


def test_groups_of_equal_rewards_free_their_place():
    pool = Pool(str, 2, 4, 0)
    for number in range(5):
        (group, first), (_, second) = pool.next(), pool.next()
        for member in (first, second):
            pool.put(group.number, member, trajectory(0, 1.0))
        assert pool.counts["all_equal"] == number + 1 and pool.accepted == pool.running == 0
    assert pool.take() is None


def test_what_was_lost_is_played_again_first():
    pool = Pool(str, 2, 4, 0)
    jobs = [pool.next() for _ in range(4)]
    assert pool.next() is None  # eta is 0: no more than a batch
    for group, member in (jobs[0], jobs[2]):
        pool.put_back(group.number, member)
    again = [pool.next() for _ in range(2)]
    assert pool.counts["lost"] == 2 and pool.next() is None
    assert {(group.number, member) for group, member in again} == {(0, 0), (1, 0)}
    for group, member in (*again, jobs[1], jobs[3]):
        pool.put(group.number, member, trajectory(0, float(member)))
    assert [group.number for group in pool.take()] == [0, 1]


def complete(pool, *ends):
    """The next group, with a trajectory for each of its members."""
    for end in ends:
        group, member = pool.next()
        pool.put(group.number, member, end)
    return group


def test_rollouts_that_began_with_something_else_are_no_group():
    pool = Pool(str, 2, 2, 1)
    complete(pool, trajectory(0, 0.0, "this"), trajectory(0, 1.0, "that"))
    assert pool.counts["unlike"] == 1 and pool.accepted == pool.running == 0 and pool.take() is None
    assert len(pool.discarded) == 2


def test_groups_without_screenshots_are_gathered_again_and_the_others_wait():
    pool = Pool(str, 2, 4, 0)
    first, second = (complete(pool, trajectory(0, 0.0), trajectory(0, 1.0)) for _ in range(2))
    assert pool.take() == [first, second] and pool.next() is None
    pool.give_back([second], [first])
    assert pool.counts["no_pictures"] == 1 and pool.take() is None
    third = complete(pool, trajectory(0, 0.0), trajectory(0, 1.0))
    assert pool.take() == [second, third]


def test_the_store_keeps_a_picture_as_long_as_somebody_uses_it():
    store = grpo_async.Store()
    for name in ("a", "a", "b"):
        store.put(name, name.encode(), "worker")
    one = SimpleNamespace(steps=[SimpleNamespace(screenshot=name) for name in ("a", "a", "b")])  # it saw "a" twice
    assert grpo_async.names_of([one]) == ["a", "b"]
    store.drop(grpo_async.names_of([one]))
    assert store.get(["a", "b"]) == [b"a", None] and store.size() == (1, 1)
    store.drop(["a", "never"])
    assert store.size() == (0, 0)


def test_a_lost_workers_pictures_leave_the_store_and_those_of_its_finished_episodes_stay():
    store = grpo_async.Store()
    for worker, name in ((1, "first page"), (1, "done"), (1, "playing"), (2, "first page"), (1, "a fault's")):
        store.put(name, b"", worker)
    store.ended(1, ["done"], ["a fault's"])
    assert store.size()[0] == 3
    store.forget(1)
    assert store.get(["first page", "done", "playing"]) == [b"", b"", None]
    store.put("late", b"", 1)  # was on its way as the worker died
    store.ended(1, ["playing"], ["first page"])  # and so was this
    store.drop(["done"])
    store.ended(2, [], ["first page"])
    assert store.size() == (0, 0)


def test_a_dropped_task_takes_its_group_with_it():
    pool = Pool(str, 2, 2, 0)
    (group, first), (_, second) = pool.next(), pool.next()
    pool.put(group.number, first, None)
    assert pool.counts["faulty"] == 1 and pool.running == 0
    pool.put(group.number, second, trajectory(0, 1.0))  # comes too late
    other, _ = pool.next()
    assert other.number == 1 and pool.take() is None


@pytest.mark.parametrize(
    "reason, ends, said",
    [
        ("unlike", (trajectory(0, 0.0, "this"), trajectory(0, 1.0, "that")), "different first pages"),
        ("all_equal", (trajectory(0, 1.0), trajectory(0, 1.0)), "too hard for the policy, or too easy"),
        ("faulty", (None,), "dropped after faults"),
        ("stale", (trajectory(-9, 0.0), trajectory(-9, 1.0)), "older than --staleness"),
    ],
)
def test_what_only_ever_happens_in_vain_ends_the_run_with_the_reason(reason, ends, said):
    pool = Pool("task {}".format, 2, 4, 1)
    for number in range(19):
        complete(pool, *ends)
        pool.take()
        assert (reason in pool.in_vain()) == (number > 1)  # more than a batch
    with pytest.raises(TooManyFaults, match=f"20 groups in a row .*pool/{reason}.* of task .*{said}"):
        complete(pool, *ends)
        pool.take()


def test_a_group_of_use_ends_a_row():
    pool = Pool(str, 2, 2, 10)
    for _ in range(3):
        for _ in range(9):
            complete(pool, trajectory(0, 1.0), trajectory(0, 1.0))
        complete(pool, trajectory(0, 0.0), trajectory(0, 1.0))
    assert pool.counts["all_equal"] == 27 and not pool.in_vain()


def test_where_a_site_changes_first_pages_are_not_compared():
    pool = Pool(str, 2, 2, 1, alike=False)
    complete(pool, trajectory(0, 0.0, "this"), trajectory(0, 1.0, "that"))
    assert len(pool.take()) == 1 and not pool.counts
    assert Site.live and WebGym.live and WebArena.live and not Arena.live and not MiniWoB.live


def test_after_a_resume_all_that_was_begun_and_not_trained_on_is_played_again():
    pool = Pool(str, 2, 4, 2)
    trained, waits = (complete(pool, trajectory(0, 0.0), trajectory(0, 1.0)) for _ in range(2))
    assert complete(pool, trajectory(0, 1.0), trajectory(0, 1.0)).number == 2  # in vain
    making = pool.next()[0]
    pool.ready.remove(trained)
    state = json.loads(json.dumps(pool.state()))
    for _ in range(2):  # killed before it gathered anything: the same again
        pool = Pool(str, 2, 4, 2)
        pool.set_state(state)
        state = pool.state()
    assert [complete(pool, trajectory(0, 0.0), trajectory(0, 1.0)).number for _ in range(4)] == [
        waits.number,
        making.number,
        4,
        5,
    ]


def test_after_a_resume_the_bound_holds():
    pool = Pool(str, 4, 8, 2)
    pool.set_state({"version": 5, "begun": 40, "counts": {"stale": 1}})
    begun = 0
    while pool.next() is not None:
        begun += 1
    assert begun == (2 + 1) * 8 and min(pool.making) == 40
    assert pool.state()["version"] == 5


# --- what an agent says ----------------------------------------------------------------------------------------------

SIZE = (1280, 720)


@pytest.mark.parametrize(
    "answer, action",
    [
        ("click x0 y7", 'do(action="Click", argument="80,675")'),
        ("click x7 y0", 'do(action="Click", argument="1200,45")'),
        ("done", 'exit(message="done")'),
        ("answer 3", 'exit(message="3")'),
        ('<tool_call>{"name": "click", "arguments": {"coordinate": [500, 1000]}}</tool_call>',
         'do(action="Click", argument="640,719")'),
        ('<tool_call>{"name": "double_click", "arguments": {"coordinate": [0, 0]}}</tool_call>',
         'do(action="Double Click", argument="0,0")'),
        ('<tool_call>{"name": "hover", "arguments": {"mark": 7}}</tool_call>', 'do(action="Hover", element="7")'),
        ('<tool_call>{"name": "type", "arguments": {"text": "a", "coordinate": [10, 20], "enter": true}}</tool_call>',
         'do(action="Search", argument="a", element="13,14")'),
        ('<tool_call>{"name": "type", "arguments": {"text": "a"}}</tool_call>',
         'do(action="Type", argument="a", element="focus")'),
        ('<tool_call>{"name": "scroll", "arguments": {"direction": "down"}}</tool_call>', 'do(action="Scroll Down")'),
        ('<tool_call>{"name": "scroll", "arguments": {"direction": "up", "coordinate": [500, 500]}}</tool_call>',
         'do(action="Scroll Up", element="640,360")'),
        ('<tool_call>{"name": "drag", "arguments": {"from": [0, 0], "to": [1000, 1000]}}</tool_call>',
         'do(action="Drag", argument="0,0,1279,719")'),
        ('<tool_call>{"name": "key", "arguments": {"key": "Enter"}}</tool_call>', 'do(action="Press Enter")'),
        ('<tool_call>{"name": "wait", "arguments": {}}</tool_call>', 'do(action="Wait")'),
        ('<tool_call>{"name": "back"}</tool_call>', "go_backward()"),
        ('<tool_call>{"name": "goto", "arguments": {"url": "http://a.b/"}}</tool_call>',
         'do(action="Goto", argument="http://a.b/")'),
        ('<tool_call>{"name": "answer", "arguments": {"content": "12 \\"km\\""}}</tool_call>',
         'exit(message="12 \\"km\\"")'),
        ('<think>click <tool_call>{"name": "wait"}</tool_call></think><tool_call>{"name": "back"}</tool_call>',
         "go_backward()"),
    ],
)  # fmt: skip
def test_answers_are_actions(answer, action):
    assert parse(visual.read_action(answer, SIZE)) == parse(action)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "click x9",
        "click here",
        "answer",
        "<tool_call>{}</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "click", "arguments": {"coordinate": [1]}}</tool_call>',
        '<tool_call>{"name": "click", "arguments": {"coordinate": ["a", null]}}</tool_call>',
        '<tool_call>{"name": "click", "arguments": {"coordinate": [Infinity, NaN]}}</tool_call>',
        '<tool_call>{"name": "scroll", "arguments": {"direction": "left"}}</tool_call>',
        '<tool_call>{"name": "click", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": ["click"], "arguments": {}}</tool_call>',
    ],
)
def test_what_is_no_action_is_left_for_the_environment_to_refuse(answer):
    assert visual.read_action(answer, SIZE) == answer
    with pytest.raises(ActionError):
        parse(answer)


@given(st.text(max_size=200))
def test_no_answer_breaks_the_reader(text):
    visual.read_action(text, SIZE)
    visual.read_action(f"<tool_call>{text}</tool_call>", SIZE)


@pytest.mark.parametrize("chat", [True, False])
def test_demonstrations_say_what_is_read_back(chat):
    obs = {"boxes": {"3": (100, 200, 40, 20)}}
    said = visual.write_action('do(action="Click", element="3")', obs, SIZE, chat)
    x, y = map(int, parse(visual.read_action(said, SIZE)).argument.split(","))
    assert abs(x - 120) <= (1 if chat else 80) and abs(y - 210) <= (1 if chat else 45)
    for message in ("done", "3"):
        said = visual.write_action(f'exit(message="{message}")', obs, SIZE, chat)
        assert parse(visual.read_action(said, SIZE)) == Action("Exit", None, message)


@pytest.mark.parametrize(
    "text, back",
    [
        ('do(action="Click", argument="40,50")', Action("Click", None, "40,50")),
        ('do(action="Double Click", element="3")', Action("Double Click", None, "120,210")),
        ('do(action="Type", element="3", argument="a lamp")', Action("Type", "120,210", "a lamp")),
        ('do(action="Search", element="focus", argument="a")', Action("Search", "focus", "a")),
        ('do(action="Drag", element="3", argument="4")', Action("Drag", None, "120,210,300,310")),
        ('do(action="Drag", argument="10,20,120,80")', Action("Drag", None, "10,20,120,80")),
        ('do(action="Scroll Down")', Action("Scroll Down")),
        ('do(action="Press", argument="Enter")', Action("Press", None, "Enter")),
        ('do(action="Goto", argument="http://a/")', Action("Goto", None, "http://a/")),
        ('do(action="Go Back")', Action("Go Back")),
        ('do(action="Wait")', Action("Wait")),
    ],
)
def test_what_a_demonstration_does_is_said_by_a_tool_call(text, back):
    obs = {"boxes": {"3": (100, 200, 40, 20), "4": (280, 300, 40, 20)}}
    size = 1000, 1000  # the tools' own coordinates
    assert parse(visual.read_action(visual.write_action(text, obs, size, True), size)) == back
    if back.name != "Click":
        with pytest.raises(LookupError):
            visual.write_action(text, obs, size, False)


@pytest.mark.parametrize("name", ["Select Dropdown Option", "Press"])
def test_what_no_tool_does_is_no_demonstration(name):
    text = f'do(action="{name}", element="3", argument="End")'
    with pytest.raises(LookupError, match=f"no tool does {name}"):
        visual.write_action(text, {"boxes": {"3": (100, 200, 40, 20)}}, (1000, 1000), True)


def test_the_keys_of_a_memory_are_counted():
    memory = '{"task": "a", "facts": {"x": 1, "y": [{"z": 2}]}}'
    assert grpo_async.memory_keys(f"<think>Memory: {{}}</think>Memory: {memory}\nProgress: {{}}") == 5
    assert grpo_async.memory_keys("Memory: {}\nAction: none") == 0
    for none in ("click x1 y2", "Memory: none", "Memory: [1]", 'Memory: {"a": ', "Action: Memory: {}"):
        assert grpo_async.memory_keys(none) is None


def test_lengths_of_successes_failures_answers_and_memories():
    def played(reward, *answers):
        steps = [Step([1], [2] * len(answer), [], 0, "", answer) for answer in answers]
        return SimpleNamespace(reward=reward, steps=steps, ending="exit")

    some = [played(1.0, "ab", 'Memory: {"a": 1}'), played(0.0, "a"), played(0.0, "a", "b", "c")]
    assert grpo_async.lengths(some) == {
        "rollout/success_length": 2.0,
        "rollout/failure_length": 2.0,
        "rollout/memory_keys": 1.0,
        "rollout/tokens_per_step": (2 + 16 + 4) / 6,
        "rollout/overflowed": 0.0,
    }
    assert "rollout/success_length" not in grpo_async.lengths(some[1:])


def test_history_is_shown_without_thoughts_and_the_newest_rounds_with_pictures(monkeypatch):
    shown = []
    template = SimpleNamespace(
        chat_template="there is one",
        apply_chat_template=lambda turns, **_: shown.append(turns) or "text",
        encode=lambda text, **_: text.split(),
        added_tokens_decoder={},
    )
    monkeypatch.setattr(grpo_async.llm, "encode", lambda processor, text, images, turns=None: images)
    steps = [Step([], [], [], 0, "", f"<think>no</think>said {n}", screenshot=f"picture {n}") for n in range(3)]
    obs = {"screenshot": b"now", "error": "covered"}
    processor = SimpleNamespace(tokenizer=template)
    assert grpo_async.agent_prompt(processor, "buy it", steps, obs, "chat", 1) == [b"now"]
    every = ["picture 0", "picture 1", "picture 2", b"now"]
    for length in range(4):
        for count in range(1, 7):
            prompt = grpo_async.agent_prompt(processor, "buy it", steps[:length], obs, "chat", count)
            assert prompt == [*every[:length], b"now"][-count:]
            assert sum(part["type"] == "image" for turn in shown[-1] for part in turn["content"]) == len(prompt)
    assert grpo_async.agent_prompt(processor, "buy it", steps, obs, "chat", 3) == ["picture 1", "picture 2", b"now"]
    turns = shown[-1]
    assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 2, "user"]
    pictures = [sum(part["type"] == "image" for part in turn["content"]) for turn in turns if turn["role"] == "user"]
    assert pictures == [1, 1, 1]
    first = "Task: buy it\nYour actions so far:\n1. said 0: the page changed"
    assert turns[1]["content"][0]["text"] == first and "covered" in turns[-1]["content"][0]["text"]
    said = [turn["content"][0]["text"] for turn in turns if turn["role"] == "assistant"]
    assert said == ["said 1", "said 2"]
    # the released history_window of 1: one round besides the picture of now
    assert grpo_async.agent_prompt(processor, "buy it", steps, obs, "chat") == ["picture 2", b"now"]


@pytest.mark.parametrize("form", ["plain", "chat"])
def test_no_words_ask_for_a_picture(seeing, form):
    """A task, an answer or a page's error that holds the image token is text."""
    processor, picture = copy.deepcopy(seeing[1]), seeing[2]["picture 0"]
    processor.tokenizer.chat_template = """{% for turn in messages %}{% for part in turn['content'] %}
    {{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"""
    obs, token = {"screenshot": picture, "error": "no <image> here"}, llm.image_token(processor)
    steps = [Step([], [], [], 0, "", "click <image> x1 y1", screenshot=picture)] * 2
    asked = grpo_async.agent_prompt(processor, "buy a <image>", steps, obs, form)
    alone = grpo_async.agent_prompt(processor, "buy a", [], obs | {"error": ""}, form)
    assert asked.count(token) == len(asked.images) * alone.count(token) > 0


def test_older_steps_are_a_line_each_and_the_newest_have_room():
    answers = ['Memory: {}\nAction: Click "ok".\n<tool_call>{"name": "click"}</tool_call>']
    answers += ['<tool_call>{"name": "wait"}</tool_call>', "what else", "x " * 999]
    tokenizer = SimpleNamespace(encode=lambda text, **_: text.split())
    lines = grpo_async.past_actions(tokenizer, answers, ["a", "b", "b", "c", "c"]).split("\n")[1:]
    assert lines[:4] == [
        "Your actions so far:",
        '1. Click "ok".: the page changed',
        '2. {"name": "wait"}: the page did not change',
        "3. what else: the page changed",
    ]
    assert lines[4].endswith("x: the page did not change") and len(lines[4]) < 300
    assert grpo_async.past_actions(tokenizer, answers[:3], "abbc", tokens=14).split("\n")[2:] == lines[2:4]
    assert (
        grpo_async.past_actions(tokenizer, [], ["a"]) == grpo_async.past_actions(tokenizer, answers, "abcde", 1) == ""
    )


@pytest.mark.parametrize(
    "form, parts",
    [
        ("vanilla", ["Action"]),
        ("progress", ["Progress", "Intention", "Action"]),
        ("additive", ["Memory", "Progress", "Intention", "Action"]),
        ("compressive", ["Memory", "Progress", "Intention", "Action"]),
    ],
)
def test_answers_have_the_parts_of_their_format(monkeypatch, form, parts):
    monkeypatch.setattr(grpo_async.llm, "encode", lambda processor, text, images, turns=None: text)
    tokenizer = SimpleNamespace(
        chat_template="yes",
        apply_chat_template=lambda turns, **_: turns[0]["content"][0]["text"],
        added_tokens_decoder={},
    )
    asked = grpo_async.agent_prompt(
        SimpleNamespace(tokenizer=tokenizer), "", [], {"screenshot": b"", "error": ""}, response_format=form
    )
    said = re.findall(r"^(\w+): ", asked.partition("this form:")[2].partition("<tool_call>")[0], re.MULTILINE)
    assert said == parts and ("only add keys" in asked) == (form == "additive")


def test_a_prompt_without_room_ends_the_episode_as_a_failure_and_is_no_fault(seeing):
    """The first prompt has 16 tokens more than its picture's; with what was done before it has too many."""
    ended, pictures = [], list(seeing[2].values())
    worker = object.__new__(grpo_async.RolloutWorker)

    async def remote(*given):
        ended.append(given)

    worker.store, worker.name, worker.processor = SimpleNamespace(ended=SimpleNamespace(remote=remote)), 1, seeing[1]
    task = replace(TASK, config={})

    class Env:
        count = 0

        async def reset(self, task, seed):
            self.count = 0
            return {"screenshot": pictures[0], "error": "", "text": "", "url": ""}, {}

        async def step(self, action):
            self.count += 1
            obs, info = await Env().reset(None, 0)
            return obs, 0.0, self.count == 5, False, {"verdict": 1.0}

    async def episode(env, attempt, album):
        async def policy(prompt, seed):
            album.shown.append(f"picture {len(album.shown)}")
            return llm.Completion([7], [0.0], 0)

        decode, prompt = (lambda ids: "click x1 y1"), partial(worker._prompt, album)
        return await play(env, task, policy, prompt, decode, 3, attempt, image_name)

    def played(max_tokens, attempt=None):
        worker.args = replace(grpo_async.Args(), prompt_format="plain", max_tokens=max_tokens)
        worker.slots = Slots(Env(), 1)
        return asyncio.run(worker._play(task, episode, attempt))

    whole, _ = played(10_000)
    first = len(whole.steps[0].prompt_ids)
    cut, log = played(first + 1)
    assert (len(cut.steps), cut.ending, cut.verdict, cut.seed) == (1, "overflow", 0.0, 3) and log.faults == 0
    assert ended[-1] == (1, ["picture 0"], [])
    assert cut.attempt == 0 and played(first + 1, attempt=2)[0].attempt == 2  # as --schedule has it
    assert grpo_async.lengths([cut, whole])["rollout/overflowed"] == 0.5
    with pytest.raises(UsageError, match=f"--max-tokens {first}: the first prompt alone has {first}"):
        played(first)


# --- the update ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeing():
    """(model, processor, {name: picture}) of tiny-vl's kind, random."""
    torch.manual_seed(0)
    tokenizer = pretrain_vl.build_tokenizer()
    model = pretrain_vl.build_model(tokenizer, pretrain_vl.Args(hidden_size=32, num_layers=1, num_heads=2)).eval()
    pictures = {}
    for number in range(3):
        marks, *_ = pretrain_vl.Scenes(pretrain_vl.Args(), tokenizer).example(number, 0)
        out = io.BytesIO()
        Image.fromarray(pretrain_vl.paint(marks).round().astype("uint8")).save(out, "PNG")
        pictures[f"picture {number}"] = out.getvalue()
    return model, pretrain_vl.build_processor(tokenizer), pictures


def played_groups(seeing, seed=0):
    """Two groups of three, of 1 to 4 steps, whose log-probs at sampling are somewhat off; one group is all-equal."""
    model, processor, pictures = seeing
    rng, groups = random.Random(seed), []
    for number, rewards in enumerate(((1.0, 0.0, 0.0), (1.0, 1.0, 1.0))):
        group = grpo_async.Group(number, None)
        for member, reward in enumerate(rewards):
            steps = []
            for _ in range(rng.randint(1, 4)):
                name = rng.choice(list(pictures))
                prompt = llm.encode(processor, "buy a small red cross<image><answer>", [pictures[name]])
                action = [rng.randrange(5, 90) for _ in range(rng.randint(1, 4))]
                with torch.no_grad():
                    logprobs, _ = llm.token_logprobs(model, processor, [prompt], [action])
                behave = [value + rng.uniform(-0.5, 0.5) for value in logprobs[0].tolist()]
                steps.append(Step(list(prompt), action, behave, 0, "", "", screenshot=name))
            group.done[member] = Trajectory(TASK, 0, 0, steps, reward=reward)
        groups.append(group)
    return groups


def fine_tuned(seeing, groups, **flags):
    """(model, loss of the last epoch) after fine-tuning on all of the groups' steps."""
    model, processor, pictures = copy.deepcopy(seeing[0]), *seeing[1:]
    args = replace(grpo_async.Args(), prompt_format="plain", sft_learning_rate=1e-3, adam_eps=1e-2, **flags)
    learner = grpo_async.Learner(net_of(model, processor, args), random.Random(0))
    demos = [t for group in groups for t in group.done.values()]
    return model, grpo_async.fine_tune(learner, demos, pictures, args)


def test_fine_tuning_is_likelier_demonstrations_whatever_the_micro_batches_and_threads(seeing, monkeypatch):
    groups = played_groups(seeing)
    whole, first = fine_tuned(seeing, groups, sft_epochs=1)
    tokens = [t for group in groups for trajectory in group.done.values() for t in trajectory.steps]
    with torch.no_grad():  # one batch: its loss is that of the weights before
        scored = [
            llm.token_logprobs(
                seeing[0], seeing[1], [llm.Prompt(s.prompt_ids, [seeing[2][s.screenshot]])], [s.action_ids]
            )[0].sum()
            for s in tokens
        ]
    assert first == pytest.approx(-sum(scored).item() / sum(len(s.action_ids) for s in tokens), rel=1e-4)
    assert fine_tuned(seeing, groups, sft_epochs=20)[1] < first - 0.3
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    parts, loss = fine_tuned(seeing, groups, sft_epochs=1, micro_batch_tokens=200, cpu_threads=1)
    assert loss == pytest.approx(first, rel=1e-4) and learn._threads is None
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-3)


def gradient_of_update(seeing, groups, **flags):
    """The gradient that one update of the whole batch takes its step by."""
    model, processor, pictures = copy.deepcopy(seeing[0]), *seeing[1:]
    flags = {"minibatches": 1, "update_epochs": 1, "max_grad_norm": 1e6, "prompt_format": "plain"} | flags
    args = replace(grpo_async.Args(), **flags)
    learner = grpo_async.Learner(net_of(model, processor, args, sgd=True), random.Random(0), iteration=1)
    grpo_async.set_advantages(groups, args)
    metrics = grpo_async.update_actor(learner, groups, pictures, 0, args)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), metrics


def every_step(t):
    return t.steps


def without_standstill(t):
    return [
        step for n, step in enumerate(t.steps) if [step.screenshot] != [s.screenshot for s in t.steps[n + 1 : n + 2]]
    ]


def slow_gradient(
    seeing, groups, weight, token, trained=lambda t, a: a != 0, divide_by="trajectories", steps_of=every_step
):
    """The same, a step and a token at a time: the sum of `weight(trajectory) * token(logprob, prox, behave, A)` over
    all trajectories or tokens, those without an advantage among them."""
    model, processor, pictures = copy.deepcopy(seeing[0]), *seeing[1:]
    total, trajectories, tokens, trained_tokens = 0.0, 0, 0, 0
    for group in groups:
        rewards = [t.reward for t in group.done.values()]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        for t in group.done.values():
            advantage = (t.reward - mean) / (std + 1e-6) if std else 0.0
            trajectories += 1
            tokens += sum(len(step.action_ids) for step in t.steps)
            if not trained(t, advantage):
                continue
            for step in steps_of(t):
                prompt = llm.Prompt(step.prompt_ids, [pictures[step.screenshot]])
                logprobs, _ = llm.token_logprobs(model, processor, [prompt], [step.action_ids])
                for logprob, behave in zip(logprobs[0], step.logprobs, strict=True):
                    total = total + weight(t) * token(logprob, logprob.detach(), behave, advantage)
                    trained_tokens += 1
    (total / {"trajectories": trajectories, "tokens": tokens, "trained": trained_tokens}[divide_by]).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def eq_1(logprob, prox, behave, advantage, cap=5.0):
    """At the first update pi_theta is pi_prox: nothing is clipped yet."""
    weight = math.exp(prox.item() - behave)
    return -(logprob - prox).exp() * advantage * weight if weight <= cap else 0.0 * logprob


def coupled(logprob, prox, behave, advantage):
    ratio = (logprob - behave).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


@pytest.mark.parametrize(
    "flags, slow",
    [
        ({}, {"weight": lambda t: 0.1, "token": eq_1}),
        ({"k": 4.0}, {"weight": lambda t: 0.25, "token": eq_1}),
        ({"step_weight": "trajectory"}, {"weight": lambda t: 1 / len(t.steps), "token": eq_1}),
        ({"loss_mean": "tokens"}, {"weight": lambda t: 0.1, "token": eq_1, "divide_by": "tokens"}),
        ({"loss": "coupled"}, {"weight": lambda t: 0.1, "token": coupled}),
    ],
    ids=["constant", "k", "trajectory", "tokens", "coupled"],
)
def test_an_update_is_eq_1_step_by_step(seeing, flags, slow):
    groups = played_groups(seeing)
    expected = slow_gradient(seeing, groups, **slow)
    for tokens in (1, 16384):  # whatever the micro-batches
        gradient, metrics = gradient_of_update(seeing, groups, micro_batch_tokens=tokens, **flags)
        assert torch.allclose(gradient, expected, atol=1e-6, rtol=1e-3)
        assert metrics["losses/trained_trajectories"] == 3  # nothing is learnt from the group of equals


def test_raft_imitates_the_steps_of_successes_that_changed_the_picture(seeing):
    groups, won = played_groups(seeing), lambda t, _: t.reward > 0
    played = [t for group in groups for t in group.done.values()]
    assert [baselines.changing_steps(t) for t in played] == [without_standstill(t) for t in played]
    assert any(len(without_standstill(t)) < len(t.steps) for t in played if t.reward)
    how = dict(weight=lambda t: 1 / len(t.steps), token=lambda n, p, b, _: eq_1(n, p, b, 1.0), trained=won)
    expected = slow_gradient(seeing, groups, **how, steps_of=without_standstill)
    gradient, metrics = gradient_of_update(seeing, groups, loss="raft")
    assert torch.allclose(gradient, expected, atol=1e-6, rtol=1e-3) and metrics["losses/trained_trajectories"] == 4


def test_a_batch_of_raft_is_full_of_successes():
    pool = Pool(str, 1, 4, 1, "successes")
    for reward in (1.0, 0.0, 1.0, 0.0, 1.0, 1.0):
        complete(pool, trajectory(0, reward))
    assert [group.number for group in pool.take()] == [0, 2, 4, 5] and pool.counts == {"failed": 2}


def test_webgyms_replay_draws_newer_steps_more_often_and_none_twice():
    rng, times = random.Random(0), [0] * 5
    for _ in range(4000):
        drawn = baselines.draw_recent(list(range(5)), rng)
        assert drawn == sorted(set(drawn)) and len(drawn) == 2
        for step in drawn:
            times[step] += 1
    weights = [(position + 1) ** 2 / 55 for position in range(5)]
    for i, first in enumerate(weights):  # drawn at once, or second after any other
        share = first + sum(other * first / (1 - other) for j, other in enumerate(weights) if j != i)
        assert times[i] / 4000 == pytest.approx(share, abs=0.03)
    assert baselines.draw_recent([], rng) == []


def test_webgyms_update_is_likelihood_on_what_changed_the_picture(seeing, tmp_path):
    model, processor, pictures = copy.deepcopy(seeing[0]), *seeing[1:]
    for name, picture in pictures.items():
        (tmp_path / name).write_bytes(picture)
    groups = played_groups(seeing)
    args = replace(grpo_async.Args(), prompt_format="plain", max_grad_norm=1e6, learning_rate=0.0)
    learner = grpo_async.Learner(net_of(model, processor, args, sgd=True), random.Random(0), iteration=1)
    drawn = []
    learner.actor.descend = lambda loss, batches, **rest: drawn.extend(batches) or ([], [])
    played = [t for group in groups for t in group.done.values()]
    learner.folder = tmp_path
    baselines.replay(learner, played, args)
    usable = [step for t in played if t.reward and len(t.steps) > 1 for step in without_standstill(t)]
    assert len(drawn) == 2 and {id(s) for s in drawn[0]} == {id(s) for s in drawn[1]} <= {id(s) for s in usable}
    assert len(drawn[0]) == math.ceil(0.4 * len(usable))
    del learner.actor.descend
    won = [t for t in played if t.reward]
    steps = [step for t in won for step in baselines.changing_steps(t)]
    metrics = baselines.imitate(learner, steps, pictures, args)
    how = dict(weight=lambda t: 1.0, token=lambda n, *_: -n, trained=lambda t, _: t.reward > 0)
    expected = slow_gradient(seeing, groups, **how, divide_by="trained", steps_of=without_standstill)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-3)
    assert learner.updates == 4 and metrics["losses/surprise"] > 0


@pytest.mark.parametrize("flags", [{}, {"loss_mean": "tokens"}], ids=["group", "tokens"])
def test_the_norm_is_clipped_as_that_of_a_mean_over_tokens_and_without_k(seeing, flags):
    groups = played_groups(seeing)
    whole = gradient_of_update(seeing, groups, loss_mean="tokens")[0].norm().item()
    for limit, binds in ((0.5 * whole, True), (2 * whole, False)):
        for k in (10.0, 2.5):
            free, clipped = (
                gradient_of_update(seeing, groups, k=k, max_grad_norm=norm, **flags)[0] for norm in (1e6, limit)
            )
            assert clipped.norm().item() == pytest.approx(free.norm().item() * (0.5 if binds else 1), rel=1e-4)


def trained_weights(seeing, groups, **flags):
    """How far one update moves the weights, by Adam as in training; its metrics; the minibatches of each pass."""
    model, processor, pictures = copy.deepcopy(seeing[0]), *seeing[1:]
    args = replace(grpo_async.Args(), prompt_format="plain", learning_rate=1e-3, **{"adam_eps": 1e-12} | flags)
    learner = grpo_async.Learner(net_of(model, processor, args, args.learning_rate), random.Random(0), iteration=10)
    seen, descend = [], learner.actor.descend
    learner.actor.descend = lambda loss, batches, **rest: seen.extend(batches) or descend(loss, batches, **rest)
    grpo_async.set_advantages(groups, args)
    metrics = grpo_async.update_actor(learner, groups, pictures, 0, args)
    before = dict(seeing[0].named_parameters())
    moved = torch.cat([(p - before[name]).detach().flatten() for name, p in model.named_parameters()])
    return moved, metrics, seen


@pytest.mark.parametrize("max_grad_norm", [1e6, 1e-3])
def test_a_smaller_k_is_a_longer_step_whether_the_clip_binds_or_not(seeing, max_grad_norm):
    groups = played_groups(seeing)
    flags = {"minibatches": 1, "update_epochs": 1, "max_grad_norm": max_grad_norm}
    ten, five = (trained_weights(seeing, groups, k=k, **flags)[0] for k in (10.0, 5.0))
    assert five.norm().item() == pytest.approx(2 * ten.norm().item(), rel=1e-2)
    constant, other = (trained_weights(seeing, groups, k=k, step_weight="trajectory", **flags)[0] for k in (10.0, 5.0))
    assert torch.equal(constant, other)


def test_every_pass_has_the_same_minibatches(seeing):
    groups = played_groups(seeing)
    batches = trained_weights(seeing, groups)[2]
    assert batches[:2] == batches[2:4] == batches[4:] and batches[0] != batches[1]
    assert sum(map(len, batches[:2])) == sum(len(t.steps) for t in groups[0].done.values())


def test_a_pass_has_as_many_updates_as_asked_for(seeing):
    groups = played_groups(seeing)
    groups[1].done[0].reward = 0.0  # then each trajectory has a gradient
    for count in range(1, 7):
        batches = trained_weights(seeing, groups, minibatches=count, update_epochs=1)[2]
        trained = sorted(len({step.trajectory for step in batch}) for batch in batches)
        assert len(trained) == count and sum(trained) == 6 and trained[-1] - trained[0] <= 1


def test_the_rate_never_rises_above_its_peak(seeing):
    assert max(learn.warmup_cosine(batch / 300, 0.0167, 0.1) for batch in range(1, 301)) <= 1.0


def test_the_proximal_policy_stays_that_of_the_batchs_beginning(seeing):
    """After a step in a batch the ratio to it is no longer 1, and the clip range ends the way."""
    groups = played_groups(seeing)
    model, processor, pictures = copy.deepcopy(seeing[0]), *seeing[1:]
    flags = {"minibatches": 1, "update_epochs": 12, "prompt_format": "plain", "learning_rate": 3e-3}
    args = replace(grpo_async.Args(), **flags)
    learner = grpo_async.Learner(net_of(model, processor, args, args.learning_rate), random.Random(0), iteration=100)
    grpo_async.set_advantages(groups, args)
    first = grpo_async.update_actor(learner, groups, pictures, 0, replace(args, update_epochs=1))
    assert first["losses/clip_fraction"] == 0
    later = grpo_async.update_actor(learner, groups, pictures, 0, args)
    assert later["losses/clip_fraction"] > 0


def test_a_version_counts_when_all_servers_have_it():
    """What is begun in between may be sampled by either: it is admitted by the older one."""
    pool, seen = Pool(str, 2, 2, 1), []

    def set_weights(*given):
        seen.append((given, system.given[0], pool.version))

    server = SimpleNamespace(set_weights=SimpleNamespace(remote=set_weights))
    system = SimpleNamespace(args=SimpleNamespace(num_servers=2), servers=[server] * 3, given=[None] * 3)
    system.kind, system.folder = grpo_async.PolicyServer, Path("adapters")
    system.ray, system.pool = SimpleNamespace(put=lambda weights: "weights", get=list), pool
    system.players, system.changed = SimpleNamespace(notify=lambda: None), contextlib.nullcontext()
    system._give = partial(grpo_async.System._give, system)
    grpo_async.System.publish(system, torch.nn.Linear(1, 1), 3)
    assert seen == [(("weights", 3), ("weights", 3), 0)] * 2  # one that is started anew now gets these, too
    assert pool.version == 3 and system.given[2] is None  # the evaluations'


def test_what_nobody_can_score_is_no_failure():
    """Its group is dropped as a whole, its screenshots are given back."""
    pool, dropped = Pool(str, 2, 2, 0), []
    system = SimpleNamespace(drop=dropped.extend, steps=0, pool=pool, players=SimpleNamespace(notify=lambda: None))
    system.args, system._forget = SimpleNamespace(group_size=2), partial(grpo_async.System._forget, system)
    (group, _), _ = pool.next(), pool.next()
    for member, verdict in enumerate((1.0, None)):
        played = trajectory(0, 0.0, shown=f"picture {member}")
        played.verdict = verdict
        shown = grpo_async.System._played(system, group.number, member, played)
        assert bool(shown) == (verdict is not None)
    assert pool.counts["faulty"] == 1 and pool.accepted == pool.running == 0 and pool.take() is None
    assert sorted(dropped) == ["picture 0", "picture 1"] and system.steps == 1


def test_a_lost_screenshot_is_the_fault_of_whoever_shows_it():
    """The others of the batch have their answers."""
    server = object.__new__(grpo_async.PolicyServer)

    async def get(names):
        return [None if name == "lost" else b"picture" for name in names]

    async def sample(prompts, seeds, temperature):
        return [llm.Completion(prompt.images, [], 0) for prompt in prompts]

    async def ask():
        server.given, server.batched, server.asked, server.tokens = asyncio.Event(), grpo_async.Batcher(sample), 0, 0
        server.given.set()
        prompts = [llm.Prompt([1], names) for names in (["a"], ["b", "lost"], ["c"])]
        return await asyncio.gather(*(server.complete(p, 0, 1.0) for p in prompts), return_exceptions=True)

    server.store = SimpleNamespace(get=SimpleNamespace(remote=get))
    first, second, third = asyncio.run(ask())
    assert first.ids == third.ids == [b"picture"] and isinstance(second, EnvFault)


class Stage:
    """What stands in for a run, a learner and a system at a run's beginning."""

    def __init__(self, iteration, trajectories, resumed):
        self.iteration, self.trajectories, self.resumed = iteration, trajectories, resumed
        self.said, self.rng, self.players, self.steps = [], random.Random(0), self, 0
        self.actor, self.model, self.path = self, None, "run"

    def begin_evaluation(self, tasks, name, iteration, beside=False):
        self.said.append((name, iteration, beside))
        return name

    def begin_each(self, call, count):
        return count

    def __getattr__(self, name):  # what the run logs and saves
        return lambda *given: contextlib.nullcontext() if name == "timer" else self.said.append((name, *given)) or []


def test_an_evaluation_that_a_kill_cut_off_is_begun_again():
    args, done = grpo_async.Args(eval_every=10, eval_servers=1), Trajectory(TASK, 0, 0, [], phase=10, policy="eval")
    for iteration, trajectories, servers, again in [
        (10, [], 1, True),
        (20, [done], 1, True),
        (10, [done], 1, False),  # it was over
        (11, [], 1, False),
        (0, [], 1, False),
        (10, [], 0, False),
    ]:
        stage = Stage(iteration, trajectories, resumed=True)
        begun = grpo_async.begin_again(stage, stage, stage, [TASK], replace(args, eval_servers=servers))
        assert (begun == "eval") == again and stage.said == [("eval", iteration, True)] * again


def test_the_starts_test_episodes_are_played_if_the_run_was_ended_before(monkeypatch):
    monkeypatch.setattr(grpo_async, "restore", lambda *_: None)
    monkeypatch.setattr(grpo_async, "save", lambda *_: None)
    monkeypatch.setattr(grpo_async, "evaluate", lambda *given: (["played"], {"test_before/success": 1.0}))
    done = Trajectory(TASK, 0, 0, [], policy="test before")
    for iteration, trajectories, tasks, before in [
        (0, [], [TASK], ["played"]),
        (0, [done], [TASK], [done]),
        (0, [], [], []),
        (3, [], [TASK], []),
    ]:
        stage = Stage(iteration, trajectories, resumed=True)
        assert grpo_async.begin(stage, stage, stage, [], tasks, grpo_async.Args()) == before
        assert ("log", {"charts/iteration": 0, "test_before/success": 1.0}, 0) in stage.said or before != ["played"]


def test_demonstrations_whose_screenshots_are_lost_are_left_out(monkeypatch):
    demos = [Trajectory(TASK, 0, 0, [Step([1], [2], [], 0, "", "done", screenshot=name)]) for name in ("a", "lost")]
    stage, used = Stage(0, [], resumed=False), []
    stage.finish = lambda count: (demos[:count], {"a": b"picture"})
    stage.trajectories = SimpleNamespace(add_image=str, append=used.extend)
    stage.weights = list
    monkeypatch.setattr(grpo_async, "fine_tune", lambda learner, demos, *_: used.extend(demos) or 0.5)
    for demo in demos:
        demo.verdict = 1.0
    metrics = grpo_async.start_actor(stage, stage, stage, [TASK, TASK], grpo_async.Args(num_demos=2))
    assert used == [demos[0]] * 2 and metrics == {"losses/sft_loss": 0.5}
    demos[0].verdict = 0.0
    with pytest.raises(UsageError, match="no demonstration of a success"):
        grpo_async.start_actor(stage, stage, stage, [TASK, TASK], grpo_async.Args(num_demos=2))
