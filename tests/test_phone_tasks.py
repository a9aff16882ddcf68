"""The phone's tasks: every oracle scores 1 in every split, and what is not quite the task scores 0."""

import hashlib
import json
import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest

import envs
from envs.phone import tasks
from envs.phone.apps.calendar import Event
from envs.phone.apps.notes import Note
from envs.phone.device import Device
from envs.phone.words import SEEDS, World

TEMPLATES = tasks.templates()
SPLITS = tuple(SEEDS)
# what they ask for has no value of its own: there is nothing to hold out
WITHOUT_VALUES = {"battery", "stopwatch", "next_event", "new_tab", "private_tab"}
IMPOSSIBLE = {"no_alarm", "no_contact"}  # who says at once that it cannot be done is right
FROZEN = {"train": "88cfe909b1e1e9d7", "eval": "a4ea6b9a16dc049c", "test": "f4e821655849e454"}


@lru_cache(None)
def drawn(name, split, count=2):
    """Tasks of a template, on the first phones of a split that have one."""
    found = []
    for seed in SEEDS[split]:
        task = tasks.draw(TEMPLATES[name], seed, random.Random(f"{name}/{seed}"))
        found += [task] if task else []
        if len(found) == count:
            return found
    raise AssertionError(f"{name}: {len(found)} tasks in {split}")


def splits_of(name):
    return [split for split in SPLITS if split != "train" or TEMPLATES[name].group not in tasks.NOT_IN_TRAINING]


async def play(env, task, each=None):
    """(reward, steps) of the oracle's episode; `each(env)` is called before each of its own moves."""
    obs, _ = await env.reset(task)
    for steps, move in enumerate(env.oracle(task), 1):
        if each:
            each(env, move)
        obs, reward, terminated, truncated, _ = await env.step(env.resolve(move, obs))
        assert not obs["error"], (task.instruction, move, obs["error"])
        if terminated or truncated:
            return reward, steps
    raise AssertionError(task.instruction)


@pytest.mark.parametrize("split", SPLITS)
async def test_every_oracle_scores_in_four_fifths_of_the_horizon(split):
    env = envs.make("phone")  # permissions and late screens included
    for name in TEMPLATES:
        for task in drawn(name, split) if split in splits_of(name) else ():
            reward, steps = await play(env, task)
            assert reward == 1.0, task.instruction
            assert steps <= 0.8 * task.max_steps, (task.instruction, steps)
            assert task.steps <= steps and task.max_steps in (tasks.SHORT, tasks.LONG)


async def test_every_oracle_scores_by_gestures():
    env = envs.make("phone", format="aitw")
    for name in TEMPLATES:
        task = drawn(name, "test")[0]
        reward, steps = await play(env, task)
        assert reward == 1.0, (task.instruction, steps)


async def test_nothing_is_done_before_the_last_move():
    """Doing nothing, or stopping anywhere before the end, scores 0; so does another answer than the right one."""
    env = envs.make("phone", asks=0, late=0)

    def early(env, move):
        asked = env._task.steps and goal_of(env._task).answer
        assert env.verdict("done") == 0.0 or (move.op == "Exit" and not asked), (env._task.instruction, move)
        assert env.verdict("N/A") == 0.0 or move.op == "Exit" or env._task.template in IMPOSSIBLE
        assert env.verdict("") == 0.0 or move.op == "Exit"

    for name in TEMPLATES:
        for task in drawn(name, splits_of(name)[-1]):
            assert (await play(env, task, early))[0] == 1.0


def goal_of(task):
    return TEMPLATES[task.template].goal(tasks.fresh(task.seed), task.config["slots"])


async def test_another_value_scores_0():
    """What solves a task does not solve another one of its template on the same phone."""
    env, rng, compared = envs.make("phone", asks=0, late=0), random.Random(0), set()
    for name, template in TEMPLATES.items():
        task = drawn(name, splits_of(name)[-1])[0]
        others = [tasks.draw(template, task.seed, rng) for _ in range(12)]
        others = [other for other in others if other.config["slots"] != task.config["slots"]]
        if not others:
            continue
        said = tasks.oracle(task)[-1].argument
        await play(env, task)
        for other in others:
            mine, yours = goal_of(task), goal_of(other)
            same = (mine.changes, mine.answer) == (yours.changes, yours.answer)
            if same and not mine.place:  # two questions with one answer; the same two things in another order
                continue
            assert not tasks.is_done(other, env._first, env._phone.state, said), (task.instruction, other.instruction)
            compared.add(name)
    assert len(compared) > 70


async def test_more_than_was_asked_for_scores_0():
    """A note, an event, a changed setting or a sent message besides: the whole phone is compared."""
    env = envs.make("phone", asks=0, late=0)
    for name in TEMPLATES:
        task = drawn(name, splits_of(name)[0])[0]
        said = tasks.oracle(task)[-1].argument
        await play(env, task)
        after = env._phone.state
        assert tasks.is_done(task, env._first, after, said)
        more = (
            replace(after, notes=(*after.notes, Note("One more"))),
            replace(after, events=(*after.events, Event("One more", "2026-12-31", 9))),
            replace(after, settings=replace(after.settings, vibrate=not after.settings.vibrate)),
            replace(after, contacts=after.contacts[1:]),
            replace(after, files=after.files[1:]),
            replace(after, threads=after.threads[1:]),
            replace(after, shop=replace(after.shop, orders=after.shop.orders * 2)),
            replace(after, browser=replace(after.browser, carts=(*after.browser.carts, ("x", "y")))),
            replace(after, store=replace(after.store, apps=(*after.store.apps, ("Else", 0.0)))),
            replace(after, clock=replace(after.clock, alarms=after.clock.alarms[1:])),
        )
        for state in more:
            assert not tasks.is_done(task, env._first, state, said), task.instruction


async def play_moves(task, moves):
    """The reward of some moves of our own."""
    env = envs.make("phone", asks=0, late=0)
    obs, _ = await env.reset(replace(task, max_steps=99))
    for move in [*moves, tasks.answer()]:
        obs, reward, *_ = await env.step(env.resolve(move, obs))
    return reward


async def test_slips_score_0():
    tap, enter, app = tasks.tap, tasks.enter, tasks.app
    (task, _), slots = drawn("add", "train"), drawn("add", "train")[0].config["slots"]
    right = TEMPLATES["add"].oracle(tasks.fresh(task.seed), slots)
    assert await play_moves(task, right) == 1.0
    assert await play_moves(task, [*right, right[-1]]) == 0.0  # twice in the cart
    task = drawn("contact", "train")[0]
    right = TEMPLATES["contact"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, right[:-1]) == 0.0  # not saved
    wrong = [enter("Phone", "555-0000") if move.label == "Phone" else move for move in right]
    assert await play_moves(task, wrong) == 0.0
    task = drawn("alarm", "train")[0]
    right = TEMPLATES["alarm"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, [*right, tap("Add alarm", "button"), tap("Save", "button")]) == 0.0  # two alarms
    task = drawn("draft", "train")[0]
    right = TEMPLATES["draft"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, [*right, tap("Save", "button")]) == 0.0  # it was not to be saved
    task = drawn("timer_set", "train")[0]
    right = TEMPLATES["timer_set"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, [*right, tap("Start", "button")]) == 0.0
    task = drawn("toggle", "train")[0]
    right = TEMPLATES["toggle"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, [*right, right[-1]]) == 0.0  # on and off again
    task = drawn("weather", "train")[0]
    right = TEMPLATES["weather"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, [*right, tasks.HOME]) == 0.0  # the page was left
    assert await play_moves(task, [*right, tasks.BACK]) == 0.0
    task = drawn("install_open", "test")[0]
    right = TEMPLATES["install_open"].oracle(tasks.fresh(task.seed), task.config["slots"])
    assert await play_moves(task, right[:-1]) == 0.0  # installed, not opened
    assert await play_moves(task, app(next(n for n, _ in tasks.fresh(task.seed).store.apps))) == 0.0


def test_answers_are_compared_without_what_does_not_matter():
    goal = tasks.Goal(answer=("$109",))
    state = tasks.fresh(0)
    for said, right in (
        ("$109", True),
        (" 109.", True),
        ("108", False),
        ("109 and 108", False),
        ("", False),
        (None, False),
    ):
        assert tasks.holds(goal, state, state, said) == right
    assert tasks.plain("  Oak  Street. ") == "oak street"


def test_groups_and_their_size():
    groups = Counter(template.group for template in TEMPLATES.values())
    assert set(groups) == set(tasks.GROUPS) and sum(groups.values()) >= 60
    assert groups["general"] == 20 and groups["shopping"] == 16 and groups["install"] == 9
    assert all(len(template.phrasings) > 1 for template in TEMPLATES.values())


@pytest.mark.parametrize("split", SPLITS)
def test_tasks_are_frozen_by_their_seed(split):
    env = envs.make("phone")
    listed = env.tasks(split)
    assert len({task.task_id for task in listed}) == len(listed) and {task.split for task in listed} == {split}
    assert {task.site for task in listed} == set(tasks.GROUPS) - ({"install"} if split == "train" else set())
    assert {task.template for task in listed} == {name for name in TEMPLATES if split in splits_of(name)}
    first = Counter(task.site for task in listed[: 5 * len(SEEDS[split])])
    assert max(first.values()) - min(first.values()) <= len(first)
    digest = hashlib.sha256()
    for task in listed:
        assert json.loads(json.dumps(task.config)) == task.config and task.seed in SEEDS[split]
        content = [task.task_id, task.instruction, task.max_steps, task.steps, task.config]
        digest.update(json.dumps(content, sort_keys=True).encode())
    assert digest.hexdigest()[:16] == FROZEN[split]


def test_phones_are_frozen_by_their_seed():
    digest = hashlib.sha256()
    for seed in (0, 7, 10_003, 20_011):
        device = Device(seed)
        digest.update(repr(tasks.record(device.state)).encode() + device.hierarchy().encode())
    assert digest.hexdigest()[:16] == "89f0d1b806087fe4"


def test_every_task_of_eval_and_test_names_what_no_training_task_of_its_kind_does():
    env, known = envs.make("phone"), {}
    for task in env.tasks("train"):
        known.setdefault(task.template, set()).update(task.config["slots"].values())
    for split in ("eval", "test"):
        for task in env.tasks(split):
            new = [value for value in task.config["slots"].values() if value not in known.get(task.template, ())]
            assert new or task.template in WITHOUT_VALUES, task.instruction


def test_phones_of_splits_share_no_names():
    def names(split):
        states = [tasks.fresh(seed) for seed in random.Random(0).sample(SEEDS[split], 20)]
        people = {contact.name for state in states for contact in state.contacts}
        return people | {one.title for state in states for one in (*state.notes, *state.events)}

    assert not names("train") & (names("eval") | names("test")) and not names("eval") & names("test")
    assert all(World(seed).split == split for split in SPLITS for seed in (SEEDS[split][0], SEEDS[split][-1]))
