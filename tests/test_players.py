"""common/players.py: slots that never stand still, and batches of what waits."""

import asyncio

import pytest
from ray.exceptions import ActorDiedError

from common.players import Batcher, Players


def players_of(slots, jobs, done, lost=None):
    """Players that play jobs, (coroutine function, again), in their order."""

    def next_job(number):
        if not jobs:
            return None
        call, again = jobs.pop(0)
        return call(), done, again, f"worker {number}"

    async def status():
        return ""

    return Players(slots, next_job, lost, status)


def finish(players):
    players.stop()
    players.thread.join(timeout=10)
    assert not players.thread.is_alive()


def test_every_slot_plays_at_its_own_pace():
    """One slow episode holds up one slot; a condition of the learner's is asked again after each end."""
    ended, slow = [], []

    async def held():
        slow.append(asyncio.Event())
        await slow[0].wait()
        return "slow"

    async def quick():
        return "quick"

    jobs = [(held, None)] + [(quick, None)] * 20
    players = players_of([0, 1], jobs, lambda outcome, number, begun: ended.append(outcome))
    players.start()
    assert players.wait(lambda: True if ended.count("quick") == 20 else None)
    assert "slow" not in ended and players.playing == 1
    players.loop.call_soon_threadsafe(slow[0].set)
    assert players.wait(lambda: True if "slow" in ended else None)
    with players.changed:  # what is there to do only now is begun when somebody says so
        jobs.append((quick, None))
    assert players.wait(lambda: True if ended.count("quick") == 21 else None)
    finish(players)


def test_a_lost_worker_is_told_and_its_episode_played_again():
    ended, told, jobs = [], [], []

    async def dies():
        raise ActorDiedError()

    async def sound():
        return "sound"

    def lost(number, worker, again, error):
        told.append((number, worker, type(error).__name__))
        again()

    jobs.append((dies, lambda: jobs.append((sound, None))))
    players = players_of([3], jobs, lambda outcome, number, begun: ended.append((outcome, number)), lost)
    players.start()
    assert players.wait(lambda: True if ended else None)
    finish(players)
    assert ended == [("sound", 3)] and told == [(3, "worker 3", "ActorDiedError")]


def test_an_error_of_ours_reaches_the_learner():
    async def broken():
        raise ZeroDivisionError("in an episode")

    players = players_of([0], [(broken, None)], None)
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
