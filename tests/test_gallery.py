"""The gallery in the real browser: every oracle scores 1, by element and by point; everything beside it scores 0."""

import io
import random
from dataclasses import replace
from functools import partial

import pytest
import pytest_asyncio
from PIL import Image

import envs
from common.errors import UsageError
from envs import Prefix
from envs.arena import gallery, gallery_tasks
from envs.arena.content import SEEDS, World
from envs.arena.gallery import BASKET, is_held_out, rooms
from envs.arena.tasks import Move, exit_move
from tests import arena_site
from tests.arena_site import in_slots, play

pytestmark = pytest.mark.asyncio(loop_scope="module")
BY_NAME = {template.name: template for template in gallery_tasks.TEMPLATES}
DONE, PAY, BASKET_LINK = exit_move("done"), Move("button", "pay"), Move("link", "basket")
SIDE = 384  # of the page, in pixels
draw = partial(arena_site.draw, "gallery", gallery_tasks.TEMPLATES)
# the first world of a split that has such a task: not every basket holds something
SEED_OF = {
    (name, split): next(seed for seed in SEEDS[split] if template.sample(World(seed, split), random.Random(0)))
    for name, template in BY_NAME.items()
    for split in SEEDS
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slots():
    root = envs.make("gallery", viewport=(SIDE, SIDE), screenshots=True, timeout=60)  # a busy machine is not a fault
    yield [root, *(root.fork() for _ in range(3))]
    await root.close()


@pytest.fixture
def arena(slots):
    return slots[0]


# --- content ---------------------------------------------------------------------------------------------------------


async def test_training_never_shows_a_held_out_pair_and_every_other_task_wants_one():
    env = envs.make("gallery")
    for seed in SEEDS["train"]:
        content = rooms(World(seed, "train"))
        hung = [thing.name for shelves in content.shelves.values() for shelf in shelves for thing in shelf]
        assert len(hung) == len(set(hung)) and not any(map(is_held_out, [*hung, *content.basket]))
    for split in ("eval", "test"):
        for task in env.tasks(split):
            world, slots = World(task.seed, split), task.config["instantiation_dict"]
            if task.template == "spot":
                wanted = [gallery_tasks._spot(world, slots)]
            elif task.template == "count":
                wanted = [thing.name for thing in rooms(world).shelves[slots["room"]][0]]
            else:
                wanted = [*gallery_tasks._amounts(slots), *(slots[s] for s in ("thing", "other") if s in slots)]
            assert any(map(is_held_out, wanted)), task.instruction


async def test_horizons_follow_requirements_and_leave_room_for_mistakes():
    for task in envs.make("gallery").tasks("test"):
        assert task.max_steps == {1: 10, 2: 20, 3: 20}.get(task.requirements, 30)
        assert task.steps <= 0.8 * task.max_steps or not task.template.startswith("put")
        assert task.steps < task.max_steps


async def test_shelves_hold_look_alikes():
    for seed in random.Random(0).sample(SEEDS["test"], 20):
        for shelves in rooms(World(seed, "test")).shelves.values():
            names = [thing.name.split() for shelf in shelves for thing in shelf]
            for name in names:
                assert any(sum(a != b for a, b in zip(name, other, strict=True)) == 1 for other in names)


async def test_marks_lie_on_the_page_and_apart():
    for seed in random.Random(1).sample(SEEDS["train"], 20):
        content = rooms(World(seed))
        for room, shelves in content.shelves.items():
            for number, shelf in enumerate(shelves):
                basket = list(enumerate([thing.name for thing in shelf] * 2))[:BASKET]
                marks = [
                    *gallery.shelf_marks(shelf, room, number),
                    *gallery.basket_marks(basket, "/gallery/"),
                    *gallery.buttons(room, number, len(shelves) - 1),
                ]
                boxes = [mark for mark in marks if mark.link or mark.post]
                for i, a in enumerate(boxes):
                    assert 0 <= a.x <= a.x + a.side <= gallery.SIDE and 0 <= a.y <= a.y + a.side <= gallery.SIDE
                    for b in boxes[:i]:
                        apart = abs(a.x + a.side / 2 - b.x - b.side / 2), abs(a.y + a.side / 2 - b.y - b.side / 2)
                        assert max(apart) >= (a.side + b.side) / 2, (a, b)


# --- tasks -----------------------------------------------------------------------------------------------------------


async def test_every_oracle_scores_and_no_prefix_does(slots):
    async def run(env, name, seed, split):
        task, _, _ = draw(name, seed, split)
        oracle, verdicts = env.oracle(task), []
        reward, _ = await play(env, task, oracle, verdicts)
        assert reward == 1.0, task.instruction
        asked = "string_match" in task.config["eval"]["eval_types"]
        assert verdicts == [0.0] * (len(oracle) - 1) + [float(not asked)], task.instruction

    await in_slots(slots, [(name, SEED_OF[name, split], split) for name in BY_NAME for split in SEEDS], run)


async def test_the_oracle_can_be_played_by_points(slots):
    """What is clicked on is where the picture shows it."""

    async def run(env, name):
        task, _, _ = draw(name, SEED_OF[name, "train"])
        obs, _ = await env.reset(task)
        for move in env.oracle(task):
            action = env.resolve(move, obs)
            if move.kind != "exit":
                box = next(n["box"] for n in env._page.nodes if n.get("label") == move.label)
                action = f'do(action="Click", argument="{round(box[0] + box[2] / 2)},{round(box[1] + box[3] / 2)}")'
            obs, reward, *_, info = await env.step(action)
            assert not obs["error"], obs["error"]
            if move.kind != "exit":
                (touch,) = info["touches"]
                assert touch == [round(box[0] + box[2] / 2) / SIDE, round(box[1] + box[3] / 2) / SIDE]
        assert reward == 1.0, task.instruction

    await in_slots(slots, [(name,) for name in BY_NAME], run)


async def test_look_alikes_and_wrong_counts_score_0(slots):
    jobs = []
    for name in ("put1", "put2", "put4"):
        task, world, drawn = draw(name, 5)
        names = gallery_tasks._amounts(drawn)
        oracle = BY_NAME[name].oracle(world, drawn)
        hung = [thing.name for shelves in rooms(world).shelves.values() for shelf in shelves for thing in shelf]
        near = [n for n in hung if n not in names and sum(a != b for a, b in zip(n.split(), names[0].split())) == 1]
        other = [near[0] if n == names[0] else n for n in names]
        jobs.append((task, [*gallery_tasks._walk(world, other), BASKET_LINK, PAY, DONE]))
        jobs.append((task, [*gallery_tasks._walk(world, [*names, names[0]]), BASKET_LINK, PAY, DONE]))
        jobs.append((task, [*gallery_tasks._walk(world, names[1:]), BASKET_LINK, *[PAY] * bool(names[1:]), DONE]))
        jobs.append((task, [*oracle[:-2], DONE]))  # not paid
        jobs.append((task, [*oracle[:-1], Move("link", "home"), *oracle]))  # paid twice
    for name in ("take_out", "exchange", "spot"):
        task, world, drawn = draw(name, SEED_OF[name, "train"])
        oracle = BY_NAME[name].oracle(world, drawn)
        jobs.append((task, oracle[1:] if name != "spot" else [*oracle[:-1], oracle[-2], DONE]))
    task, world, drawn = draw("count", 5)
    oracle = BY_NAME["count"].oracle(world, drawn)
    jobs.append((task, [oracle[0], exit_move(str(int(oracle[1].argument) + 1))]))
    task, world, drawn = draw("find", 5)
    jobs.append((task, [*BY_NAME["find"].oracle(world, drawn)[:-1], Move("link", "home"), DONE]))

    async def run(env, task, moves):
        reward, _ = await play(env, replace(task, max_steps=99), moves)
        assert reward == 0.0, (task.instruction, moves)

    await in_slots(slots, jobs, run)


async def test_mistakes_can_be_mended_and_a_full_basket_takes_no_more(arena):
    task, world, drawn = draw("put1", 6)
    names = gallery_tasks._amounts(drawn)
    hung = [thing.name for shelves in rooms(world).shelves.values() for shelf in shelves for thing in shelf]
    wrong = next(name for name in hung if name not in (*names, *rooms(world).basket))
    room = Move("link", "home")
    moves = [
        *gallery_tasks._walk(world, [wrong]),
        *(Move("button", f"take out {wrong}"), room),
        *BY_NAME["put1"].oracle(world, drawn),
    ]
    reward, _ = await play(arena, replace(task, max_steps=99), moves)
    assert reward == 1.0
    many = [*gallery_tasks._walk(world, [wrong]), *[Move("button", wrong)] * (BASKET + 2), DONE]
    _, pages = await play(arena, replace(task, max_steps=99), many)
    assert pages[-1]["text"].count('"take out ') == BASKET


async def test_a_shelf_has_one_address(arena):
    task, world, _ = draw("find", 7)
    room, shelves = next(iter(rooms(world).shelves.items()))
    on, back = Move("link", "next shelf"), Move("link", "previous shelf")
    _, pages = await play(arena, task, [Move("link", f"{room} room"), on, back, DONE])
    paths = [page["url"].partition("/gallery")[2] for page in pages]
    assert paths == ["/", f"/r/{room}", f"/r/{room}/2", f"/r/{room}", f"/r/{room}"] and len(shelves) > 1
    await arena.reset(task)
    obs, *_ = await arena.step(f'do(action="Goto", argument="{arena._shared.server.url}/gallery/r/{room}/1")')
    assert obs["url"].endswith(f"/gallery/r/{room}")


async def test_it_needs_no_reading_and_shows_its_colours(arena):
    """The picture of a page is that of its marks."""
    task, world, drawn = draw("put1", 8)
    oracle = arena.oracle(task)
    _, pages = await play(arena, task, oracle)
    assert not any("text" in line.split()[:1] for page in pages for line in page["text"].splitlines())
    name = gallery_tasks._amounts(drawn)[0]
    room, number = rooms(world).find(name)
    page = pages[1 + number]
    picture = Image.open(io.BytesIO(page["screenshot"])).convert("RGB")
    assert picture.size == (SIDE, SIDE)
    for mark in gallery.shelf_marks(rooms(world).shelves[room][number], room, number):
        if mark.outline == "ring":
            continue
        scale = SIDE / gallery.SIDE
        middle = mark.x + mark.side / 2, mark.y + mark.side / 2 + (mark.side / 8 if mark.outline == "triangle" else 0)
        seen = picture.getpixel(tuple(round(scale * place) for place in middle))
        wanted = tuple(bytes.fromhex(mark.colour[1:]))
        assert max(abs(a - b) for a, b in zip(seen, wanted, strict=True)) < 8, mark


async def test_restore_by_snapshot(slots):
    first, second = slots[:2]
    task, _, _ = draw("put2", 9)
    oracle = first.oracle(task)
    obs, _ = await first.reset(task)
    prefixes, texts = [await first.prefix()], [obs["text"]]
    for move in oracle[:-1]:
        obs, *_ = await first.step(first.resolve(move, obs))
        prefixes.append(await first.prefix())
        texts.append(obs["text"])
    for number in (1, 3, len(prefixes) - 2):
        prefix = prefixes[number]
        for way in (prefix, Prefix(prefix.task, prefix.actions, prefix.hashes)):
            obs, _ = await second.restore(way)
            assert obs["text"] == texts[number]
            for move in oracle[number:]:
                obs, reward, *_ = await second.step(second.resolve(move, obs))
            assert reward == 1.0


async def test_instructions_mean_their_own_check():
    env = envs.make("gallery")
    rng = random.Random(0)
    for task in rng.sample(env.tasks("train"), 300):
        parsed = env.task_from_text(task.instruction, task)
        assert parsed is not None and parsed.config["eval"] == task.config["eval"], task.instruction
    for text in ("put a large red cat in the basket and pay", "buy two small red circle", "buy a small red circles"):
        assert env.task_from_text(text, env.tasks("train")[0]) is None


async def test_some_of_its_tasks_are_chosen_by_level_or_template():
    every = envs.make("gallery").tasks("eval")
    easy = envs.make("gallery/easy").tasks("eval")
    assert easy == [task for task in every if task.max_steps == 10] and 0 < len(easy) < len(every)
    some = envs.make("gallery-v1/hard+count").tasks("eval")
    assert some == [task for task in every if task.max_steps == 30 or task.template == "count"]
    with pytest.raises(UsageError, match="no tasks named dull; there are easy, medium, hard, count"):
        envs.make("gallery/dull")
