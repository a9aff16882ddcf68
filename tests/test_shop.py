"""The shop in the real browser: every oracle scores 1, everything short of it or beside it scores 0.

CLEANGUI_ORACLES=2000 plays that many oracles instead of a few; they go round all worlds of all splits.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from functools import partial

import pytest
import pytest_asyncio
from playwright.async_api import Error as PlaywrightError

from common.errors import EnvFault, StateMismatch
from envs import Prefix
from envs.arena import Arena, shop, shop_tasks
from envs.arena.content import SEEDS
from envs.arena.shop import catalogue
from envs.arena.tasks import Move, exit_move, resolve
from tests import arena_site
from tests.arena_site import in_slots, play

pytestmark = pytest.mark.asyncio(loop_scope="module")
ORACLES = int(os.environ.get("CLEANGUI_ORACLES", 40))
SLOTS = 8
BY_NAME = {template.name: template for template in shop_tasks.TEMPLATES}
FIND = shop_tasks._find


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slots():
    root = Arena(sites=["shop"])
    yield [root, *(root.fork() for _ in range(SLOTS - 1))]
    await root.close()


@pytest.fixture
def arena(slots):
    return slots[0]


draw = partial(arena_site.draw, "shop", shop_tasks.TEMPLATES)


async def test_every_oracle_scores_and_no_prefix_does(slots, capsys):
    sizes, lengths = [], Counter()

    async def run(env, name, seed, split):
        task, _, _ = draw(name, seed, split)
        oracle, verdicts = env.oracle(task), []
        reward, pages = await play(env, task, oracle, verdicts)
        assert reward == 1.0, (task.instruction, pages[-1]["text"])
        answers = "string_match" in task.config["eval"]["eval_types"]
        assert not any(verdicts[:-1]), (task.instruction, verdicts)
        assert verdicts[-1] == (0.0 if answers else 1.0), task.instruction
        assert not any(line.startswith(("above", "below")) for page in pages for line in page["text"].splitlines())
        sizes.extend(len(page["text"].split()) for page in pages)
        lengths[len(oracle)] += 1

    worlds = [(seed, split) for split in SEEDS for seed in SEEDS[split]]
    random.Random(0).shuffle(worlds)
    names = list(BY_NAME)
    # After each round of the worlds the templates shift by one place, so that the pairs go on being new.
    pairs = [(names[(i + i // len(worlds)) % len(names)], *worlds[i % len(worlds)]) for i in range(ORACLES)]
    await in_slots(slots, pairs, run)
    sizes.sort()
    with capsys.disabled():
        marks = [sizes[len(sizes) * part // 100] for part in (0, 5, 50, 95)] + sizes[-1:]
        print(f"\n{sum(lengths.values())} oracles; words a page at 0, 5, 50, 95, 100 %: {marks}; steps {lengths}")


async def test_other_values_score_0(slots):
    async def run(env, name, seed):
        task, world, _ = draw(name, seed)
        for purpose in range(20):
            other, _, wrong = draw(name, seed, purpose=purpose)
            if other.config["eval"] != task.config["eval"]:
                reward, _ = await play(env, task, BY_NAME[name].oracle(world, wrong))
                assert reward == 0.0, (task.instruction, wrong)
                return

    await in_slots(slots, [(name, seed) for name in BY_NAME for seed in (3,)], run)


DONE = exit_move("done")
ADD = Move("button", "add to cart")


async def test_near_misses_score_0(slots):
    """One thing too many, too few or wrong, in tasks that are otherwise done."""
    jobs = []

    def near(name, change, seed=5):
        task, world, drawn = draw(name, seed)
        jobs.append((task, change(BY_NAME[name].oracle(world, drawn), world, drawn)))

    def product(world, not_named):
        return next(p.name for p in catalogue(world).products if not (p.sizes or p.colors) and p.name not in not_named)

    def extra(moves, world, drawn):
        return [*moves[:-1], *FIND(product(world, drawn.values())), ADD, DONE]

    def wrapped(moves, world, drawn):
        return [*moves[:-2], Move("check", "gift wrap"), *moves[-2:]]

    def cleared(moves, world, drawn):
        first = catalogue(world).cart[0][0].name
        return [*moves[:-1], Move("link", "cart"), Move("link", f"remove {first}"), Move("button", "yes, remove"), DONE]

    def changed(moves, world, drawn):
        first, count = catalogue(world).cart[0][0].name, catalogue(world).cart[0][1]
        to_form = [Move("link", "cart"), Move("link", "change quantities")]
        return [*moves[:-1], *to_form, Move("box", first, "Type", str(count + 1)), Move("button", "save"), DONE]

    def twice(moves, world, drawn):
        return [*moves[:-1], *moves]

    def unconfirmed(moves, world, drawn):
        return [*moves[:-2], Move("link", "no, go back"), DONE]

    for change in (extra, wrapped, cleared, changed, twice):
        near("add", change)
    near("add-size-color", wrapped), near("add-size", twice), near("add-two", extra), near("add-two", wrapped)
    near("buy", twice)
    for name in ("buy", "buy-size"):
        near(name, lambda m, w, d: [m[0], m[1], Move("check", "gift wrap"), *m[2:]])
        near(name, lambda m, w, d: [Move("link", "cart"), Move("link", "check out"), *m[-4:]])
    for name in ("remove", "cancel-order"):
        near(name, unconfirmed)
    near("remove", extra)
    near("review", twice)
    near("missing-add", lambda m, w, d: [*FIND(product(w, ())), ADD, *m])
    for name in ("price", "stock", "stars", "order-total", "extreme", "missing-price"):
        near(name, lambda m, w, d: [*m[:-1], exit_move(f"{m[-1].argument} or 7")])

    async def run(env, task, moves):
        reward, pages = await play(env, task, moves)
        assert reward == 0.0, (task.instruction, moves, pages[-1]["text"])

    await in_slots(slots, jobs, run)


async def test_forms_say_what_is_wrong(arena):
    task, world, drawn = draw("buy-size", 6)
    product = drawn["product"]
    obs, _ = await arena.reset(task)

    async def act(*moves):
        nonlocal obs
        for move in moves:
            obs, *_ = await arena.step(resolve(move, obs["text"]))
        return obs["text"]

    assert 'text "choose a size"' in await act(*FIND(product), ADD)
    assert "the quantity must be 1 to" in await act(Move("box", "quantity", "Type", "0"), ADD)
    assert '"quantity" box [' in obs["text"] and '= "0"' in obs["text"]
    await act(Move("box", "quantity", "Type", "2"))
    await act(Move("select", "size", "Select Dropdown Option", "large"), Move("button", "buy now"))
    assert 'text "choose an address"' in await act(Move("button", "place order"))
    await act(Move("select", "address", "Select Dropdown Option", "cabin"))
    assert 'text "choose a shipping method"' in await act(Move("button", "place order"))
    assert 'text "choose the stars"' in await act(
        *FIND(product), Move("link", "write a review"), Move("button", "post review")
    )


async def test_log_out_and_in(arena):
    task, world, _ = draw("city", 6)
    obs, _ = await arena.reset(task)
    other = world.people[3]
    moves = [
        Move("link", "account"),
        Move("button", "log out"),
        Move("box", "name", "Type", other),
        Move("box", "password", "Type", "wrong"),
        Move("button", "log in"),
        Move("box", "password", "Type", f"{other.split()[0]}1"),
        Move("button", "log in"),
        Move("link", "orders"),
    ]
    seen = []
    for move in moves:
        obs, *_ = await arena.step(resolve(move, obs["text"]))
        seen.append(obs["text"])
    assert "you are logged out" in seen[1] and world.user not in seen[1]
    assert "wrong name or password" in seen[4]
    assert f"logged in as {other}" in seen[6] and "0 orders" in seen[7]


async def test_what_cannot_be_done_is_an_error_in_the_observation(arena):
    task, _, _ = draw("add", 7)
    start, _ = await arena.reset(task)
    for action in ("", "hello", 'do(action="Click", element="99")', 'do(action="Fly")', "exit(", "import os"):
        obs, reward, terminated, truncated, _ = await arena.step(action)
        assert obs["error"] and obs["text"] == start["text"] and (reward, terminated, truncated) == (0.0, False, False)
    obs, *_ = await arena.step(resolve(Move("link", "cart"), obs["text"]))
    assert not obs["error"]
    for _ in range(task.max_steps - 7):
        assert not truncated
        obs, reward, terminated, truncated, info = await arena.step("nothing")
    assert truncated and not terminated and reward == 0.0 and info["verdict"] == 0.0


async def test_the_same_task_twice_looks_the_same_and_slots_are_apart(slots):
    tasks = [draw("add", 8 + i % 2)[0] for i in range(len(slots))]
    played = await asyncio.gather(*(play(env, task, env.oracle(task)) for env, task in zip(slots, tasks)))
    assert all(reward == 1.0 for reward, _ in played)
    for i, (_, pages) in enumerate(played):
        assert [p["text"] for p in pages] == [p["text"] for p in played[i % 2][1]]


async def test_restore_by_snapshot_and_by_replay(slots):
    """A restored episode looks the same and goes on the same way, whichever slot it comes back in."""
    first, second = slots[:2]
    for name in ("add-two", "buy-size"):
        task, _, _ = draw(name, 9)
        oracle = first.oracle(task)
        obs, _ = await first.reset(task)
        prefixes, texts = [await first.prefix()], [obs["text"]]
        for move in oracle[:-1]:
            obs, *_ = await first.step(resolve(move, obs["text"]))
            prefixes.append(await first.prefix())
            texts.append(obs["text"])
        kinds = {prefix.snapshot is None for prefix in prefixes}
        assert kinds == ({True, False} if name == "buy-size" else {False}), "forms in the making are replayed"
        for number in (0, 2, 3, len(prefixes) - 1):
            prefix = prefixes[number]
            plain = Prefix(prefix.task, prefix.actions, prefix.hashes)  # as read back from a stored trajectory
            for way in (prefix, plain):
                obs, _ = await second.restore(way)
                assert obs["text"] == texts[number]
                for move in oracle[number:]:
                    obs, reward, *_ = await second.step(resolve(move, obs["text"]))
                assert reward == 1.0


async def test_go_back_works_after_a_restore(slots):
    first, second = slots[:2]
    task, _, _ = draw("add-two", 9)
    obs, _ = await first.reset(task)
    for move in first.oracle(task)[:2]:
        obs, *_ = await first.step(resolve(move, obs["text"]))
    prefix = await first.prefix()
    await second.restore(prefix)
    for _ in range(2):
        one, two = await first.step("go_backward()"), await second.step("go_backward()")
        assert one[0]["text"] == two[0]["text"] and one[0]["error"] == two[0]["error"]


async def test_restore_notices_another_state(slots):
    task, _, _ = draw("add-two", 9)
    obs, _ = await slots[0].reset(task)
    for move in slots[0].oracle(task)[:3]:
        obs, *_ = await slots[0].step(resolve(move, obs["text"]))
    prefix = await slots[0].prefix()
    other = Prefix(draw("add-two", 10)[0], prefix.actions, prefix.hashes)  # the same actions in another world
    with pytest.raises(StateMismatch):
        await slots[1].restore(other)
    forged = Prefix(task, prefix.actions, (*prefix.hashes[:-1], "0" * 16), prefix.snapshot, prefix.history)
    with pytest.raises(StateMismatch):
        await slots[1].restore(forged)


async def test_a_crashed_browser_is_a_fault_and_the_next_reset_works():
    arena = Arena(sites=["shop"])
    try:
        task, _, _ = draw("add", 8)
        obs, _ = await arena.reset(task)
        await arena.verdict("")  # so that the checks have a tab to lose
        chromium = await arena._shared.browser.connect()
        with contextlib.suppress(PlaywrightError):
            await (await chromium.new_browser_cdp_session()).send("Browser.crash")
        with pytest.raises(EnvFault):
            await arena.step(resolve(Move("link", "cart"), obs["text"]))
        reward, _ = await play(arena, task, arena.oracle(task))
        assert reward == 1.0
    finally:
        await arena.close()


async def test_the_oracle_shows_the_way_in_the_released_page_format_too():
    arena = Arena(sites=["shop"], format="webrl")
    try:
        task, _, _ = draw("add", 8)
        obs, _ = await arena.reset(task)
        assert obs["text"].startswith("<")
        reward, _ = await play(arena, task, arena.oracle(task))
        assert reward == 1.0
    finally:
        await arena.close()


async def test_instructions_without_a_check_can_be_played(arena):
    from envs import Task

    like, _, _ = draw("add", 8)
    task = Task("evolved", "shop", "add something nice to the cart", 15, like.split, like.seed)
    obs, _ = await arena.reset(task)
    assert obs["goal"] == task.instruction
    _, reward, terminated, _, info = await arena.step('exit(message="done")')
    assert terminated and reward == 0.0 and info["verdict"] is None


async def test_pages_follow_each_other_in_one_document(arena):
    born = "() => performance.timeOrigin"
    task, world, _ = draw("add", 3)
    await arena.reset(task)
    documents = [await arena._session.read(None, lambda page: page.evaluate(born))]
    name = catalogue(world).products[0].name
    await arena.step(f'do(action="Search", argument="{name}", element="{find(arena, "search")}")')  # GET
    await arena.step(f'do(action="Click", element="{find(arena, name)}")')
    obs, *_ = await arena.step(f'do(action="Click", element="{find(arena, "add to cart")}")')  # POST and redirect
    assert "?done=" in obs["url"] and "post" not in obs["url"], obs
    added = obs["text"]
    obs, *_ = await arena.step("go_backward()")
    assert name in obs["title"] and "done" not in obs["url"]
    obs, *_ = await arena.step("go_forward()")
    assert obs["text"] == added
    documents.append(await arena._session.read(None, lambda page: page.evaluate(born)))
    other, *_ = draw("add", 4)
    obs, _ = await arena.reset(other)  # the next episode, too
    documents.append(await arena._session.read(None, lambda page: page.evaluate(born)))
    assert documents[0] == documents[1] == documents[2]
    fresh = arena.fork()
    assert obs == (await fresh.reset(other))[0]
    obs, *_ = await arena.step("go_backward()")
    assert "no page to go back to" in obs["error"]
    await fresh.close()


@pytest.mark.parametrize("way", ["get", "post"])
async def test_a_server_error_is_a_fault_whichever_way_the_page_is_asked_for(way, monkeypatch):
    def fail(request, *args, **values):
        raise RuntimeError("broken on purpose")

    env = Arena(sites=["shop"])
    try:
        task, world, _ = draw("add", 3)
        await env.reset(task)
        name = catalogue(world).products[0].name
        await env.step(f'do(action="Search", argument="{name}", element="{find(env, "search")}")')
        if way == "post":
            await env.step(f'do(action="Click", element="{find(env, name)}")')
        for function in ("page", "done"):
            monkeypatch.setattr(shop, function, fail)
        with pytest.raises(EnvFault, match="502"):
            await env.step(f'do(action="Click", element="{find(env, "add to cart" if way == "post" else name)}")')
        monkeypatch.undo()
        await env.reset(task)
    finally:
        await env.close()


def find(env, label):
    """The id of the element with this label on the slot's page."""
    return next(node["id"] for node in env._page.nodes if node.get("label") == label)
