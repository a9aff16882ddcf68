"""Tasks that cross two sites, in the real browser: a tab for each site, what is read in one is used in the other."""

import random
from dataclasses import replace

import pytest
import pytest_asyncio

from envs.arena import SITES, Arena, cross_tasks, tasks
from envs.arena.content import SEEDS, World
from envs.arena.tasks import build, tab_move, task_from_text

pytestmark = pytest.mark.asyncio(loop_scope="module")
BY_NAME = {template.name: template for template in cross_tasks.TEMPLATES}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena():
    arena = Arena([site.NAME for site, _ in SITES], timeout=60)
    yield arena
    await arena.close()


def draw(name, seed=0, split="train", purpose="test"):
    """A task of template `name`, its world and slots."""
    world, template = World(seed, split), BY_NAME[name]
    rng = world.rng(f"{purpose}/{name}")
    drawn = template.sample(world, rng)
    return build(template, "cross", world, drawn, rng.choice(template.phrasings), f"{name}-{seed}"), world, drawn


async def play(env, task, moves, verdicts=None):
    """The reward of the moves and the pages seen; `verdicts` gets what "done" would score before each step."""
    obs, _ = await env.reset(task)
    pages, reward = [obs["text"]], None
    for move in moves:
        if verdicts is not None:
            verdicts.append(await env.verdict("done"))
        obs, reward, *_ = await env.step(env.resolve(move, obs))
        pages.append(obs["text"])
    return reward, pages


@pytest.mark.parametrize("name", BY_NAME)
async def test_the_oracle_scores_and_no_prefix_does(arena, name):
    split = ("train", "eval", "test")[len(name) % 3]
    task, world, drawn = draw(name, SEEDS[split][0], split)
    oracle, verdicts = arena.oracle(task), []
    reward, pages = await play(arena, task, oracle, verdicts)
    assert reward == 1.0, pages[-1]
    asked = "string_match" in task.config["eval"]["eval_types"]
    assert verdicts == [0.0] * (len(oracle) - 1) + [float(not asked)]
    first, second = (f"tabs {tab} of 2" in page for tab, page in ((1, pages[0]), (2, pages[-1])))
    assert first and second and task.site.count("+") == 1 and len(oracle) <= 14 and task.max_steps == 30
    assert task.config["start_url"] == " |AND| ".join(f"__{site.upper()}__" for site in task.site.split("+"))
    if asked and BY_NAME[name].kind == "information":
        assert await arena.verdict("") == 0.0


@pytest.mark.parametrize("name", [name for name, template in BY_NAME.items() if template.kind != "impossible"])
async def test_what_another_answer_would_lead_to_scores_0(arena, name):
    """The second half is done as it would be if the first site had said something else."""
    for purpose in range(60):
        task, world, drawn = draw(name, purpose % 6)
        _, _, wrong = draw(name, purpose % 6, purpose=purpose)
        mixed = drawn | {slot: wrong[slot] for slot in _asked(name)}
        try:
            moves = BY_NAME[name].oracle(world, mixed)
            if BY_NAME[name].config(world, mixed) == task.config["eval"]:
                continue
        except LookupError:
            continue
        reward, _ = await play(arena, task, moves)
        assert reward == 0.0, (task.instruction, mixed)
        return
    raise AssertionError("no other answer in these worlds")


def _asked(name):
    """The slots of the first half."""
    sites = BY_NAME[name].sites
    asked = next(
        template
        for (site, known), template in cross_tasks._TEMPLATES.items()
        if site == sites[0] and name.startswith(f"{site}-{known}-{sites[1]}")
    )
    return [slot for slot in BY_NAME[name].slots if slot in asked.slots]


async def test_a_state_behind_a_tab_comes_back_in_another_slot(arena):
    task, *_ = draw("shop_admin-top-code-new_issue", 3)
    moves, other = arena.oracle(task), arena.fork()
    obs, _ = await arena.reset(task)
    half = moves.index(tab_move(2)) + 3
    for move in moves[:half]:
        obs, *_ = await arena.step(arena.resolve(move, obs))
    try:
        there, _ = await other.restore(await arena.prefix())
        assert there["text"] == obs["text"] and "tabs 2 of 2" in obs["text"]
        for move in moves[half:]:
            there, reward, *_ = await other.step(other.resolve(move, there))
        assert reward == 1.0
    finally:
        await other.close()


async def test_an_instruction_without_a_check_begins_in_the_same_tabs(arena):
    task, *_ = draw("forum-author-code-assign", 2)
    known, _ = await arena.reset(task)
    new, _ = await arena.reset(replace(task, instruction="assign it to somebody", config=None, template=""))
    assert new["text"] == known["text"] and new["url"] == known["url"]


async def test_instructions_mean_their_check_and_vary_within_their_sites(arena):
    """Texts only."""
    crossing, rng = [task for task in arena.tasks("train") if "+" in task.site], random.Random(0)
    assert {task.template for task in crossing} == set(BY_NAME)
    meant = 0
    for task in rng.sample(crossing, 200):
        again = arena.task_from_text(task.instruction, task)
        assert again.config["eval"] == task.config["eval"] and again.site == task.site
        for text in arena.vary(task, rng):
            varied = arena.task_from_text(text, task)
            if varied is not None:
                meant += 1
                assert varied.site == task.site and varied.instruction != task.instruction
    assert meant > 50
    nobody = "assign issue 1 of no such to the author of a b in c"
    assert task_from_text(nobody, crossing[0], cross_tasks.TEMPLATES) is None


async def test_they_are_there_with_all_sites_only():
    assert not [task for task in Arena(["code", "forum"]).tasks("eval") if "+" in task.site]
    assert tasks.resolve(tab_move(2), "") == 'do(action="Switch Tab", argument="2")'
