"""The back office in the real browser: every oracle scores 1, everything short of it or beside it scores 0.

CLEANGUI_WORLDS=100 plays every template in that many worlds instead of a few.
"""

import asyncio
import os
import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import pytest_asyncio

from envs.arena import SITES, Arena, shop_admin, shop_admin_tasks, tasks
from envs.arena.content import SEEDS, World
from envs.arena.shop_admin import NEXT, ROWS, change_lines, office, ranking
from envs.arena.tasks import Move, build, exit_move, resolve, task_from_text
from tests import arena_site
from tests.arena_site import in_slots, play

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORLDS = int(os.environ.get("CLEANGUI_WORLDS", 1))
SLOTS = 6
BY_NAME = {template.name: template for template in shop_admin_tasks.TEMPLATES}
DONE = exit_move("done")
SHOW, SAVE = Move("button", "show"), Move("button", "save")
FIND, TYPE, SELECT = shop_admin_tasks._to, shop_admin_tasks._type, shop_admin_tasks._select


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slots():
    root = Arena(sites=["shop_admin"], timeout=60)  # a busy machine is not a fault
    yield [root, *(root.fork() for _ in range(SLOTS - 1))]
    await root.close()


@pytest.fixture
def arena(slots):
    return slots[0]


draw = partial(arena_site.draw, "shop_admin", shop_admin_tasks.TEMPLATES)


async def act(env, obs, *moves):
    """The observation after these moves."""
    for move in moves:
        obs, *_ = await env.step(resolve(move, obs["text"]))
    return obs


async def test_every_oracle_scores_and_no_prefix_does(slots, capsys):
    sizes, lengths = [], Counter()

    async def run(env, name, seed, split):
        task, _, _ = draw(name, seed, split)
        oracle, verdicts = env.oracle(task), []
        reward, pages = await play(env, task, oracle, verdicts)
        assert reward == 1.0, (task.instruction, pages[-1]["text"])
        asked = "string_match" in task.config["eval"]["eval_types"]
        assert verdicts == [0.0] * (len(oracle) - 1) + [float(not asked)], task.instruction
        if asked:
            assert await env.verdict("") == 0.0
        assert not any(line.startswith(("above", "below")) for page in pages for line in page["text"].splitlines())
        assert all(page["text"] == page["text"].lower() for page in pages)
        sizes.extend(len(page["text"].split()) for page in pages)
        lengths[len(oracle)] += 1

    worlds = [(seed, split) for split in SEEDS for seed in SEEDS[split]]
    worlds = random.Random(0).sample(worlds, min(WORLDS, len(worlds)))
    await in_slots(slots, [(name, *world) for world in worlds for name in BY_NAME], run)
    sizes.sort()
    with capsys.disabled():
        marks = [sizes[len(sizes) * part // 100] for part in (0, 5, 50, 95)] + sizes[-1:]
        print(f"\n{sum(lengths.values())} oracles; words a page at 0, 5, 50, 95, 100 %: {marks}; steps {lengths}")
    assert sizes[-1] <= 130 and max(lengths) <= 9


async def test_other_values_score_0(slots):
    async def run(env, name, seed):
        task, world, _ = draw(name, seed)
        for purpose in range(20):
            other, _, wrong = draw(name, seed, purpose=purpose)
            if other.config["eval"] != task.config["eval"]:
                reward, _ = await play(env, task, BY_NAME[name].oracle(world, wrong))
                # a task that is impossible is so whatever is looked for
                assert reward == float(BY_NAME[name].kind == "impossible"), (task.instruction, wrong)
                return
        raise AssertionError(f"{name} has one value only")

    await in_slots(slots, [(name, 3 + k) for k in range(max(1, WORLDS // 10)) for name in BY_NAME], run)


async def test_near_misses_score_0(slots):
    """One thing too many, too few or wrong, in tasks that are otherwise done."""
    jobs = []

    def near(name, change, seed=5):
        task, world, drawn = draw(name, seed)
        jobs.append((task, change(BY_NAME[name].oracle(world, drawn), world, drawn)))

    def other(rows, drawn):
        """The name of a row that the task does not name."""
        return next(row.name for row in rows if not set(row.name.split()) & set(" ".join(drawn.values()).split()))

    def order_too(moves, world, drawn):
        name = other(office(world).orders, drawn)
        way = [*FIND(name)[:1], Move("link", f"order {name}"), TYPE("note", "wash the lamp"), SAVE]
        return [*moves[:-1], *way, moves[-1]]

    def product_too(moves, world, drawn):
        name = other([p for p in office(world).products if p.status == "enabled"], drawn)
        return [*moves[:-1], *FIND(name), Move("button", "disable"), moves[-1]]

    def member_too(moves, world, drawn):
        name = other([m for m in office(world).members if m.group != "press"], drawn)
        return [*moves[:-1], *FIND(name), SELECT("group", "press"), SAVE, moves[-1]]

    def review_too(moves, world, drawn):
        accepted = [Move("link", "reviews"), SELECT("status", "accepted"), SHOW]
        name = next(r.name for r in office(world).reviews if r.status == "accepted")
        way = [*accepted, Move("link", name), Move("link", "delete review"), Move("button", "yes, delete")]
        return [*moves[:-1], *way, moves[-1]]

    def instead(label, value):
        """Another value in the field of that label."""
        return lambda moves, world, drawn: [replace(m, argument=value) if m.label == label else m for m in moves]

    def swapped(moves, world, drawn):
        """The price in the box of the stock and the other way round."""
        labels = {"price": "stock", "stock": "price"}
        return [replace(move, label=labels.get(move.label, move.label)) for move in moves]

    def without(label):
        return lambda moves, world, drawn: [move for move in moves if move.label != label]

    def shorter(moves, world, drawn):
        return [replace(move, argument=move.argument[:-1]) if move.op == "Type" else move for move in moves]

    def ends(*last):
        return lambda moves, world, drawn: [*moves[: -len(last)], *last]

    def adds(*last):
        return lambda moves, world, drawn: [*moves[:-1], *last]

    state = [name for name, template in BY_NAME.items() if template.kind == "state"]
    extras = (order_too, product_too, member_too, review_too)
    for i, name in enumerate(state):
        near(name, extras[i % 4])
        near(name, extras[(i + 1) % 4])
    for i, name in enumerate(name for name, template in BY_NAME.items() if template.kind == "impossible"):
        near(name, extras[i % 4])
        near(name, ends(DONE))
    for name in ("note", "status_note", "status_note_group", "price", "price_stock", "group_city"):
        near(name, shorter)
    for name in ("price", "price_stock", "price_stock_disable"):
        near(name, swapped)
        near(name, adds(Move("link", "edit product"), TYPE("stock", "99"), SAVE, DONE))
    near("price_stock", without("stock"))
    near("price_stock_disable", without("disable"))
    near("price_stock_disable", adds(Move("button", "enable"), DONE))
    near("status_note", without("note"))
    near("status_note", without("status"))
    near("group_city", without("city"))
    near("group_city", without("group"))
    for name in ("disable", "disable_two"):
        near(name, adds(Move("button", "enable"), DONE))
    near("enable", adds(Move("button", "disable"), DONE))
    near("accept", lambda m, w, d: [*m[:-2], Move("link", "delete review"), Move("button", "yes, delete"), DONE])
    near("delete", lambda m, w, d: [*m[:-3], Move("button", "accept"), DONE])
    near("delete", ends(Move("link", "no, go back"), DONE))
    for name in ("show_orders", "show_member_orders", "show_products", "show_top"):
        near(name, adds(Move("link", "home"), DONE))
        near(name, without("show"))
    near("show_orders", adds(Move("link", "next page"), DONE))
    near("show_orders", lambda m, w, d: [*m[:-2], TYPE("member", office(w).members[0].name), SHOW, DONE])
    near("show_products", instead("sort", "name"))
    near("show_member_orders", instead("status", "all"))
    near("open_member", lambda m, w, d: [*m[:-1], Move("link", "show orders"), DONE])
    for name in (name for name, template in BY_NAME.items() if template.kind == "information"):
        near(name, lambda m, w, d: [*m[:-1], exit_move(f"{m[-1].argument} or 7")])
        near(name, lambda m, w, d: [*m[:-1], exit_move("N/A")])

    async def run(env, task, moves):
        reward, pages = await play(env, replace(task, max_steps=99), moves)
        assert reward == 0.0, (task.instruction, moves, pages[-1]["text"])

    await in_slots(slots, jobs, run)


async def test_done_in_another_order_or_by_another_way_scores_1(arena):
    async def scores(name, change, seed=7):
        task, world, drawn = draw(name, seed)
        moves = change(BY_NAME[name].oracle(world, drawn), world, drawn)
        reward, pages = await play(arena, replace(task, max_steps=99), moves)
        assert reward == 1.0, (task.instruction, moves, pages[-1]["text"])

    def oracle(name, **slots):
        return lambda moves, world, drawn: BY_NAME[name].oracle(world, {k: drawn[v] for k, v in slots.items()})

    await scores("accept_two", oracle("accept_two", review="review2", review2="review"))
    await scores("disable_two", oracle("disable_two", product="product2", product2="product"))
    status, note = oracle("set_status", order="order", status="status"), oracle("note", order="order", note="note")
    await scores("status_note", lambda *a: [*status(*a)[:-1], *note(*a)])
    await scores("status_note", lambda *a: [*note(*a)[:-1], *status(*a)])
    wrong_first = [TYPE("price", "100"), SAVE, Move("link", "edit product")]
    await scores("price", lambda m, w, d: [*m[:3], *wrong_first, *m[3:]])
    await scores("disable", lambda m, w, d: [*m[:-1], Move("button", "enable"), *m[-2:]])
    await scores("group", lambda m, w, d: [*m[:-1], Move("link", "home"), Move("link", "changes"), DONE])
    await scores("show_orders", lambda m, w, d: [*m[:1], SELECT("status", "delivered"), SHOW, *m[1:]])
    template, world = BY_NAME["show_orders"], World(7)
    task = build(template, "shop_admin", world, {"status": "delivered"}, template.phrasings[0], "delivered")
    there_and_back = [Move("link", "next page"), Move("link", "previous page"), DONE]
    assert (await play(arena, task, [*arena.oracle(task)[:-1], *there_and_back]))[0] == 1.0


async def test_pages_say_what_was_done_and_what_is_wrong(arena):
    task, world, drawn = draw("price", 8)
    obs, _ = await arena.reset(replace(task, max_steps=99))
    name, person = drawn["product"], office(world).members[0]
    order = next(order for order in office(world).orders if order.status == "pending")

    async def text(*moves):
        nonlocal obs
        obs = await act(arena, obs, *moves)
        return obs["text"]

    edit = [*FIND(name), Move("link", "edit product")]
    assert 'text "the price must be 1 to 9999"' in await text(*edit, TYPE("price", "0"), SAVE)
    assert '"price" box [' in obs["text"] and '= "0"' in obs["text"]
    assert 'text "the stock must be 0 to 9999"' in await text(TYPE("price", "7"), TYPE("stock", "Many"), SAVE)
    page = await text(TYPE("stock", "0"), SAVE)
    assert f'text "saved {name}: price 7, stock 0"' in page and 'text "price 7"' in page and 'text "stock 0"' in page
    enabled = office(world).product(name).status == "enabled"
    button, status = ("disable", "disabled") if enabled else ("enable", "enabled")
    page = await text(Move("button", button))
    assert f'text "{name} is {status}"' in page and f'text "status {status}"' in page
    assert f'"{button}" button' not in page
    page = await text(*FIND(person.name), TYPE("city", ""), SAVE)
    assert 'text "the city must have 1 to 60 letters"' in page
    page = await text(TYPE("city", "New  York"), SELECT("group", "press"), SAVE)
    assert f'text "saved {person.name}: group press, city new york"' in page and 'text "city new york"' in page
    to_order = [Move("box", "search", "Search", order.name), Move("link", f"order {order.name}")]
    page = await text(*to_order, TYPE("note", "x" * 61), SELECT("status", "shipped"), SAVE)
    assert 'text "a note has at most 60 letters"' in page and 'text "status pending"' in page
    assert '"status" select [10] = "shipped"' in page
    page = await text(TYPE("note", "wash the lamp"), SAVE)
    assert f'text "saved order {order.name}: status shipped, note wash the lamp"' in page
    assert '= "shipped" of "shipped" "delivered"' in page and 'text "note wash the lamp"' in page
    one, two = [r.name for r in office(world).reviews if r.status == "waiting"][:2]
    page = await text(Move("link", "reviews"), Move("link", one), Move("button", "accept"))
    assert (
        f'text "accepted the review of {one}"' in page and "9 reviews waiting" in page and f'"{one}" link' not in page
    )
    page = await text(Move("link", two), Move("link", "delete review"), Move("button", "yes, delete"))
    assert f'text "deleted the review of {two}"' in page and "8 reviews waiting" in page
    page = await text(SELECT("status", "accepted"), SHOW)
    assert "7 reviews accepted" in page and two not in page
    page = await text(Move("link", "home"), Move("link", "changes"))
    old, pending = office(world).product(name), [] if person.group == "press" else [("group", person.group, "press")]
    lines = change_lines(
        [
            ("product", name, "price", old.price, 7),
            ("product", name, "stock", old.stock, "0"),
            ("product", name, "status", old.status, status),
            *(("member", person.name, *change) for change in (("city", person.city, "new york"), *pending)),
            ("order", order.name, "status", "pending", "shipped"),
            ("order", order.name, "note", order.note, "wash the lamp"),
            ("review", one, "status", "waiting", "accepted"),
            ("review", two, "status", "waiting", "deleted"),
        ]
    )
    assert [line[6:-1] for line in page.splitlines() if ": " in line] == lines


async def test_only_the_manager_comes_in(arena):
    task, world, _ = draw("price", 8)
    obs, _ = await arena.reset(replace(task, max_steps=99))
    obs = await act(arena, obs, Move("button", "log out"))
    assert "you are logged out" in obs["text"] and world.user not in obs["text"] and '"orders" link' not in obs["text"]
    for path in ("", "/orders", "/changes", "/products/x/edit", "/report/top"):
        obs, *_ = await arena.step(f'do(action="Goto", argument="{arena._shared.server.urls["SHOP_ADMIN"]}{path}")')
        assert obs["title"] == "log in" and not obs["error"], path
    other = world.people[3]
    for name, password in ((other, f"{other.split()[0]}1"), (world.user, "wrong")):
        obs = await act(arena, obs, TYPE("name", name), TYPE("password", password), Move("button", "log in"))
        assert "wrong name or password" in obs["text"]
    assert await arena.verdict("done") == 0.0
    login = [TYPE("password", f"{world.user.split()[0]}1"), Move("button", "log in")]
    obs = await act(arena, obs, *login)
    assert f"logged in as {world.user}" in obs["text"] and obs["title"] == "office"


async def test_what_there_is_not_is_a_page_that_says_so(arena):
    task, world, _ = draw("price", 8)
    await arena.reset(replace(task, max_steps=99))
    base = arena._shared.server.urls["SHOP_ADMIN"]
    stranger, missing = office(world).strangers[0].replace(" ", "-"), office(world).missing[0].replace(" ", "-")
    for path in (
        f"members/{stranger}",
        f"products/{missing}",
        f"products/{missing}/edit",
        "orders/1",
        "reviews/x",
        "x",
    ):
        obs, *_ = await arena.step(f'do(action="Goto", argument="{base}/{path}")')
        assert obs["title"] == "not found", path
    one = next(r.name for r in office(world).reviews if r.status == "waiting")
    moves = [Move("link", "reviews"), Move("link", one), Move("link", "delete review"), Move("button", "yes, delete")]
    obs, *_ = await arena.step(f'do(action="Goto", argument="{base}/")')
    await act(arena, obs, *moves)
    obs, *_ = await arena.step(f'do(action="Goto", argument="{base}/reviews/{one.replace(" ", "-")}")')
    assert obs["title"] == "not found"


async def test_names_are_found_by_whole_words(arena):
    """ "anna port" is not "anna porter", in the search and in the filter."""
    assert shop_admin._has("anna port", "anna port") and shop_admin._has("anna port", "port")
    assert not shop_admin._has("anna porter", "anna port") and shop_admin._has("anna porter", "")
    task, world, _ = draw("price", 9)
    obs, _ = await arena.reset(replace(task, max_steps=99))
    name = office(world).members[0].name
    first, count = name.split()[0], sum(order.member == name for order in office(world).orders)
    obs = await act(arena, obs, Move("link", "orders"), TYPE("member", name), SHOW)
    assert f'text "{count} orders"' in obs["text"]
    obs = await act(arena, obs, TYPE("member", name[:-1]), SHOW)
    assert 'text "0 orders"' in obs["text"]
    obs = await act(arena, obs, Move("box", "search", "Search", first))
    named = sum(member.name.split()[0] == first for member in office(world).members)
    assert named and f'text "{named} found for {first}"' in obs["text"]
    assert (
        'text "type the number of an order or a name"'
        in (await act(arena, obs, Move("box", "search", "Search", "")))["text"]
    )


async def test_slots_never_see_each_other(slots):
    drawn = [draw(("set_status", "accept_two")[i % 2], 10)[0] for i in range(len(slots))]
    played = await asyncio.gather(*(play(env, task, env.oracle(task)) for env, task in zip(slots, drawn)))
    assert all(reward == 1.0 for reward, _ in played)
    for i, (_, pages) in enumerate(played):
        assert [page["text"] for page in pages] == [page["text"] for page in played[i % 2][1]]


async def test_instructions_mean_their_checks_only_where_that_exists():
    like, world, _ = draw("price", 11)
    content = office(world)
    enabled = [product.name for product in content.products if product.status == "enabled"]
    orders = {status: next(o for o in content.orders if o.status == status) for status in NEXT}
    waiting = [review for review in content.reviews if review.status == "waiting"]
    accepted = next(review for review in content.reviews if review.status == "accepted")
    twice = next(r.member for r in waiting if [o.member for o in waiting].count(r.member) == 2)
    member, stranger = content.members[0], content.strangers[0]
    group = next(group for group in shop_admin.GROUPS if group != member.group)
    pending, delivered = orders["pending"].name, orders["delivered"].name
    for text, template in (
        (like.instruction, "price"),
        (f"set the price of {content.missing[0]} to 23", "no_price"),
        (f"set the price of {enabled[0]} to {content.product(enabled[0]).price}", None),
        (f"set the price of {enabled[0]} to 00100", None),
        (f"set the price of {enabled[0]} to 10000", None),
        (f"set the price of {enabled[0]} to 100 and the stock to 0", "price_stock"),
        (f"disable {enabled[0]} and {enabled[1]}", "disable_two"),
        (f"disable {enabled[0]} and {enabled[0]}", None),
        (f"enable {enabled[0]}", None),
        (f"set order {pending} to delivered", "set_status"),
        (f"set order {delivered} to shipped", "stuck"),
        (f"set order {delivered} to delivered", None),
        (f"set order {pending} to lost", None),
        (f"what is the status of order {pending}", "order_status"),
        ("what is the status of order 1999", "no_order"),
        ("set order 1999 to shipped", None),
        (f"accept the review of {waiting[0].name}", "accept"),
        (f"accept the review of {accepted.name}", None),
        (f"accept the review of {waiting[0].member} for {content.missing[0]}", "no_review"),
        (f"accept all reviews of {twice}", "accept_all"),
        (f"accept all reviews of {stranger}", None),
        (f"move {member.name} to group {group}", "group"),
        (f"move {member.name} to group {member.group}", None),
        (f"move {member.name} to group gold", None),
        (f"move {stranger} to group {group}", "no_group"),
        (f"how many orders of {stranger} are pending", None),
        ("show the lost orders", None),
        ("which product sold most in july", None),
        ("write something nice", None),
    ):
        task = task_from_text(text, like, shop_admin_tasks.TEMPLATES)
        assert (task and task.template) == template, text


async def test_no_other_site_says_it_with_the_same_words():
    others = [(site.NAME, module) for site, module in SITES if module is not shop_admin_tasks]
    ours = [draw(name, seed, purpose=purpose)[0] for name in BY_NAME for seed in (12, 13) for purpose in range(4)]
    for _, module in others:
        assert not [task.instruction for task in ours if tasks.find(task.instruction, module.TEMPLATES)]
    theirs = Arena(sites=[name for name, _ in others]).tasks("eval")
    assert theirs and not [t.instruction for t in theirs if tasks.find(t.instruction, shop_admin_tasks.TEMPLATES)]


async def test_every_question_has_one_answer():
    for split in SEEDS:
        for seed in SEEDS[split]:
            world = World(seed, split)
            content = office(world)
            for rows in (content.products, content.members, content.orders, content.reviews):
                assert len({row.name for row in rows}) == len(rows)
            members, goods = {m.name for m in content.members}, {p.name for p in content.products}
            assert not members & {world.user, *content.strangers} and not goods & {*content.missing, *members}
            assert len({p.stock for p in content.products}) == len(goods)
            assert [o.name for o in content.orders] == sorted(o.name for o in content.orders)
            for month in shop_admin.MONTHS:
                best = ranking((o.product, o.count) for o in content.orders if o.month == month)
                assert best[0][1] > best[1][1]
            assert len([r for r in content.reviews if r.status == "waiting"]) > ROWS  # on two pages
    assert office.__wrapped__(World(3)) == office(World(3)) != office(World(4))
