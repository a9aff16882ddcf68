"""common/lm/players.py: slots that never stand still, and batches of what waits."""

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from common.errors import EnvFault, TooManyFaults
from common.lm.players import Batcher, Players
from common.lm.rollout import FaultLog


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    """As `start_ray` leaves it: what a lost worker is asked starts no Ray."""
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)


def players_of(slots, jobs, done, workers=1, version=0):
    """Players that play jobs, (coroutine function of a worker, again), in their order; a worker is its name."""
    started = []

    def start_worker(number):
        started.append(f"worker {number}, the {len(started)}. of all")
        return started[-1]

    def next_rollout(worker):
        if not jobs:
            return None
        call, again = jobs.pop(0)
        return call(worker), done, again

    async def status():
        return ""

    players = Players(start_worker, workers, slots, next_rollout, status, version)
    players.started = started
    return players


def finish(players):
    players.close()
    players.thread.join(timeout=10)
    assert not players.thread.is_alive()


def until(players, condition):
    """As the learner waits, but not for ever."""
    players.notify()
    with players.changed:
        assert players.changed.wait_for(lambda: players.error or condition(), timeout=30)
        assert players.error is None


def answers(value, waited=0.0, fault=None):
    """A call that answers this, with a fault on the way."""

    async def call(worker, *_):
        log = FaultLog()
        log.record()
        if fault:
            log.record(EnvFault(fault))
        return value, log, waited

    return call


async def dies(worker, *_):
    raise ActorDiedError()


async def broken(worker, *_):
    raise ZeroDivisionError("in an episode")


def test_every_slot_plays_at_its_own_pace():
    """One slow episode holds up one slot; a condition of the learner's is asked again after each end."""
    ended, slow = [], []

    async def held(worker):
        slow.append(asyncio.Event())
        await slow[0].wait()
        return "slow", FaultLog(), 1.0

    jobs = [(held, None)] + [(answers("quick"), None)] * 20
    players = players_of(2, jobs, ended.append)
    players.start()
    until(players, lambda: ended.count("quick") == 20)
    assert "slow" not in ended and players.playing == 1
    players.loop.call_soon_threadsafe(slow[0].set)
    until(players, lambda: "slow" in ended)
    with players.changed:  # what is there to do only now is begun when somebody says so
        jobs.append((answers("quick"), None))
    until(players, lambda: ended.count("quick") == 21)
    finish(players)
    assert players.timeline == []  # `done` had nothing to show


def test_the_timeline_has_what_was_played_and_the_faults_are_counted(tmp_path):
    jobs = [(answers("a", 0.25, "the page hung"), None), (answers(None), None)]
    players = players_of(1, jobs, lambda what: what and {"what": what})
    players.start()
    until(players, lambda: players.faults.episodes == 3)
    players.write_timeline(SimpleNamespace(path=tmp_path), {"batch": 1})
    first, second = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert first.pop("begun") <= first.pop("ended")
    assert first == {"what": "a", "worker": 0, "model": 0.25} and second == {"batch": 1}
    metrics = players.metrics()
    assert metrics["rollout/faults"] == 1 and metrics["perf/trajectories_per_hour"] == 0
    finish(players)


def test_a_list_of_tasks_comes_before_all_rollouts_and_in_order():
    """Also where a worker is lost on the way; what was dropped is None."""
    ended, asked, found, calls = [], [], [], {1: [dies, answers("b")], 2: [answers(None)]}

    def call(worker, index):
        asked.append(index)
        return calls.get(index, [answers("ac"[index // 2])]).pop(0)(worker)

    jobs = [(answers("rollout"), None)] * 3
    players = players_of(1, jobs, ended.append)

    def begin():  # the list is there before the thread begins
        del players.notify
        players.start()

    players.notify = begin
    learner = threading.Thread(target=lambda: found.append(players.play_each(call, 3)), daemon=True)
    learner.start()
    learner.join(timeout=30)
    assert found == [["a", "b", None]]
    assert asked == [0, 1, 1, 2] and players.listed is None
    until(players, lambda: len(ended) == 3)
    finish(players)
    assert players.faults.faults == 1 and players.faults.last == "rollout worker 0 is gone"


def test_a_list_beside_rollouts_takes_turns_with_them():
    began, ended = [], []

    def noted(value):
        def call(worker):
            began.append(value)
            return answers(value)(worker)

        return call

    players = players_of(1, [(noted("rollout"), None)] * 2, ended.append)
    listed = players.begin_each(lambda worker, index: noted(index)(worker), 4, beside=True)
    assert not listed.over()
    players.start()
    assert players.finish_each(listed) == [0, 1, 2, 3] and listed.over()
    assert began == ["rollout", 0, "rollout", 1, 2, 3] and ended == ["rollout"] * 2
    finish(players)


def test_a_lost_worker_gets_one_successor_and_its_episode_is_played_again():
    ended, jobs, both = [], [], []

    async def falls(worker):  # both slots are playing
        both.append(asyncio.Event())
        if len(both) == 2:
            both[0].set()
        await both[0].wait()
        raise ActorDiedError()

    async def sound(worker):
        return worker, FaultLog(), 0.0

    jobs += [(falls, lambda: jobs.append((sound, None)))] * 2
    players = players_of(2, jobs, ended.append)
    players.start()
    until(players, lambda: len(ended) == 2)
    finish(players)
    assert len(players.started) == 2 and set(ended) == {players.started[1]} and players.faults.faults == 1


def test_workers_that_never_answer_stop_the_run():
    """Three in a row; one that answered once may be lost as often as faults may be."""
    players = players_of(1, [(dies, lambda: None)] * 3 + [(broken, None)], None)  # it would be the fourth
    players.start()
    with pytest.raises(TooManyFaults, match="rollout worker 0 cannot start"):
        players.wait(lambda: None)
    assert len(players.started) == 3
    ended, jobs = [], [(dies, lambda: None), (dies, lambda: None), (answers("sound"), None)] * 3
    players = players_of(1, jobs, ended.append)
    players.start()
    until(players, lambda: len(ended) == 3)
    finish(players)
    assert players.faults.faults == 6


def test_a_worker_without_a_policy_plays_nothing():
    ended, jobs, asked = [], [(answers("now"), None)], threading.Event()
    players = players_of(1, jobs, ended.append, version=-1)
    look = players._next
    players._next = lambda number: (look(number), asked.set())[0]
    players.start()
    assert asked.wait(timeout=30) and len(jobs) == 1
    with players.changed:
        players.workers[0].version = 0
    until(players, lambda: ended)
    finish(players)


def test_an_error_of_ours_reaches_the_learner():
    players = players_of(1, [(broken, None)], None)
    players.start()
    with pytest.raises(ZeroDivisionError, match="in an episode"):
        players.wait(lambda: None)


def test_what_waits_at_a_moment_is_one_batch():
    """Prompts that come while a batch is sampled are the next one, of one temperature; an error is whoever's asked."""
    batches = []

    async def sample(prompts, seeds, temperature):
        await asyncio.sleep(0)
        batches.append((list(prompts), list(seeds), temperature))
        if "bad" in prompts:
            raise ValueError("bad prompt")
        return [prompt.upper() for prompt in prompts]

    async def ask():
        batched = Batcher(sample)
        calls = [batched(name, n, temperature) for n, (name, temperature) in enumerate(asked)]
        return await asyncio.gather(*calls, return_exceptions=True)

    asked = [("a", 1.0), ("b", 0.0), ("c", 1.0), ("bad", 0.0)]
    answers = asyncio.run(ask())
    assert answers[0] == "A" and answers[2] == "C"
    assert [type(answer) for answer in answers[1::2]] == [ValueError] * 2
    assert batches == [(["a", "c"], [0, 2], 1.0), (["b", "bad"], [1, 3], 0.0)]


def test_a_prompt_that_nobody_waits_for_any_more_holds_up_nobody():
    async def ask():
        async def sample(prompts, seeds, temperature):
            begun.set()
            await goes_on.wait()
            return prompts

        begun, goes_on, batched = asyncio.Event(), asyncio.Event(), Batcher(sample)
        left = asyncio.create_task(batched("left", 0, 1.0))
        stays = asyncio.create_task(batched("stays", 1, 1.0))
        await begun.wait()
        left.cancel()
        goes_on.set()
        return await stays

    assert asyncio.run(ask()) == "stays"
