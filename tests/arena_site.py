"""What the tests of the arena's sites have in common: draw a task, play moves, many slots at a time."""

import asyncio

from envs.arena.content import World
from envs.arena.tasks import build


def draw(site, templates, name, seed=0, split="train", purpose="test"):
    """A task of template `name`, its world and slots."""
    world, template = World(seed, split), next(template for template in templates if template.name == name)
    rng = world.rng(f"{purpose}/{name}")
    drawn = next(slots for _ in range(100) if (slots := template.sample(world, rng)) is not None)
    return build(template, site, world, drawn, rng.choice(template.phrasings), f"{name}-{seed}"), world, drawn


async def play(env, task, moves, verdicts=None):
    """The reward of the moves and the observations; `verdicts` gets what "done" would score before each step."""
    obs, _ = await env.reset(task)
    pages = [obs]
    for move in moves:
        if verdicts is not None:
            verdicts.append(await env.verdict("done"))
        obs, reward, terminated, truncated, _ = await env.step(env.resolve(move, obs))
        assert not obs["error"], (task.instruction, move, obs["error"], obs["text"])
        pages.append(obs)
    assert terminated and not truncated
    return reward, pages


async def in_slots(slots, jobs, run):
    """What `run(env, *job)` gave for all jobs, as many at a time as there are slots, in the order of their ends."""
    queue, results = list(reversed(jobs)), []

    async def worker(env):
        while queue:
            results.append(await run(env, *queue.pop()))

    async with asyncio.TaskGroup() as group:
        for env in slots:
            group.create_task(worker(env))
    return results
