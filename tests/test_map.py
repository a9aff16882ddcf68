"""The map in the real browser: every oracle scores 1, everything short of it or beside it scores 0.

CLEANGUI_WORLDS=100 plays every template in that many worlds instead of a few.
"""

import asyncio
import os
import random
from collections import Counter, deque
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from envs.arena import Arena, map_tasks
from envs.arena.content import SEEDS, World
from envs.arena.map import KINDS, LABELS, MINUTES, town, ways
from envs.arena.tasks import Move, exit_move, resolve, task_from_text
from tests import arena_site
from tests.arena_site import in_slots, play

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORLDS = int(os.environ.get("CLEANGUI_WORLDS", 1))
SLOTS = 6
BY_NAME = {template.name: template for template in map_tasks.TEMPLATES}
DONE = exit_move("done")
TOKENIZER = Tokenizer.from_file(str(Path(__file__).parents[1] / "assets/tiny/tokenizer.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slots():
    root = Arena(sites=["map"], timeout=60)  # a busy machine is not a fault
    yield [root, *(root.fork() for _ in range(SLOTS - 1))]
    await root.close()


@pytest.fixture
def arena(slots):
    return slots[0]


draw = partial(arena_site.draw, "map", map_tasks.TEMPLATES)


# --- the town --------------------------------------------------------------------------------------------------------


def worlds(count):
    every = [World(seed, split) for split in SEEDS for seed in SEEDS[split]]
    return random.Random(0).sample(every, count)


async def test_ways_are_the_shortest_and_lead_along_open_roads():
    longer = 0
    for world in worlds(10):
        content, length = town(world), {}
        for way in MINUTES:
            open_roads = {frozenset([(r.ax, r.ay), (r.bx, r.by)]): r.name for r in content.roads if getattr(r, way)}
            for place in content.places[:8]:
                start = (place.x, place.y)
                found = ways(content.roads, start, way)
                km, queue = {start: 0}, deque([start])
                while queue:
                    x, y = queue.popleft()
                    for point in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                        if frozenset([(x, y), point]) in open_roads and point not in km:
                            km[point] = km[x, y] + 1
                            queue.append(point)
                assert {point: found[point][0] for point in found} == km
                for end, (distance, streets, path) in found.items():
                    steps = [open_roads[frozenset(pair)] for pair in pairwise(path)]
                    assert (path[0], path[-1], len(steps)) == (start, end, distance)
                    assert [name for name, part in streets for _ in range(part)] == steps
                length |= {(way, place.name, other.name): km.get((other.x, other.y)) for other in content.places}
        pairs = [(length["walking", a, b], length["driving", a, b]) for way, a, b in length if way == "walking"]
        assert any(walking is None for walking, _ in pairs) and all(driving is not None for _, driving in pairs)
        longer += any(walking and walking > driving for walking, driving in pairs)
        longer += any(walking and walking < driving for walking, driving in pairs)
    assert longer > 10  # neither way is the shorter one everywhere


def distances(content, name, kind, way):
    """{name: km} of the places of a kind that `way` leads to, without the place `name` itself."""
    start = content.place(name)
    found = ways(content.roads, (start.x, start.y), way)
    here = [p for p in content.places if p.kind == kind and p != start and (p.x, p.y) in found]
    return {p.name: found[p.x, p.y][0] for p in here}


async def test_content_has_near_misses_and_no_two_of_what_is_asked_for():
    for world in worlds(40):
        content = town(world)
        names = [*(p.name for p in content.places), *content.missing]
        assert len(set(names)) == len(names) and len({p.address for p in content.places}) == len(content.places)
        assert len({(p.x, p.y) for p in content.places}) == len(content.places) >= 40
        assert max(Counter(name.split()[0] for name in names).values()) > 3
        for kind in KINDS:
            here = [p for p in content.places if p.kind == kind]
            assert len({p.rating for p in here}) == len(here) >= 5
        assert sum(p.x == content.island for p in content.places) >= 2
        task, _, drawn = draw("nearest", world.seed, world.split)
        km = distances(content, drawn["place"], drawn["kind"], drawn["way"])
        answer = task.config["eval"]["reference_answers"]["exact_match"]
        assert all(km[answer] < km[name] for name in km if name != answer), task.instruction


async def test_words_of_the_site_are_single_tokens():
    words = f"{' '.join([*KINDS, *LABELS, *MINUTES])} km minutes distance time opening phone address rating street"
    words += " avenue route places nearest change send take back save saved remove label kind show near found by from"
    for word in words.split():
        assert len(TOKENIZER.encode(f" {word}", add_special_tokens=False).ids) == 1, word


# --- tasks -----------------------------------------------------------------------------------------------------------


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
        sizes.extend(len(TOKENIZER.encode(page["text"]).ids) for page in pages)
        lengths[len(oracle)] += 1

    chosen = [(world.seed, world.split) for world in worlds(min(WORLDS, sum(map(len, SEEDS.values()))))]
    await in_slots(slots, [(name, *world) for world in chosen for name in BY_NAME], run)
    sizes.sort()
    with capsys.disabled():
        marks = [sizes[len(sizes) * part // 100] for part in (0, 5, 50, 95)] + sizes[-1:]
        print(f"\n{sum(lengths.values())} oracles; tokens a page at 0, 5, 50, 95, 100 %: {marks}; steps {lengths}")
    assert sizes[-1] <= 250 and min(lengths) >= 2 and max(lengths) <= 9


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

    await in_slots(slots, [(name, 3 + k) for k in range(max(1, WORLDS // 10)) for name in BY_NAME], run)


async def test_near_misses_score_0(slots):
    """One thing too many, too few or wrong, in tasks that are otherwise done."""
    jobs = []

    def near(name, change, seed=5):
        task, world, drawn = draw(name, seed)
        jobs.append((task, change(BY_NAME[name].oracle(world, drawn), world, drawn)))

    def another(world, drawn):
        """A place that neither the task nor the user's list names."""
        content = town(world)
        used = {*drawn.values(), *content.saved.values(), *content.changes}
        free = [p for p in content.places if p.name not in used and p.kind != drawn.get("kind")]
        return free[0].name

    def label(world, drawn):
        return next(label for label in LABELS if label not in {*town(world).saved, *drawn.values()})

    def extra_save(moves, world, drawn):
        return [*moves[:-1], *map_tasks._find(another(world, drawn)), *map_tasks._save(label(world, drawn)), moves[-1]]

    def extra_change(moves, world, drawn):
        extra = map_tasks._change({"phone": "234567"})
        return [*moves[:-1], *map_tasks._find(another(world, drawn)), *extra, moves[-1]]

    def extra_remove(moves, world, drawn):
        other = next(name for name in town(world).saved.values() if name not in drawn.values())
        return [*moves[:-1], *map_tasks._remove(other), moves[-1]]

    def extra_take_back(moves, world, drawn):
        name = next(iter(town(world).changes))
        return [*moves[:-1], *map_tasks._find(name), Move("button", "take back"), moves[-1]]

    def logged_out(moves, world, drawn):
        return [*moves[:-1], Move("link", "places"), Move("button", "log out"), moves[-1]]

    def undone(moves, world, drawn):
        button = "remove" if "label" in drawn else "take back"
        return [*moves[:-1], Move("button", button), moves[-1]]

    def wrong_label(moves, world, drawn):
        wrong = label(world, drawn)
        return [replace(move, argument=wrong) if move.argument == drawn["label"] else move for move in moves]

    def wrong_digit(moves, world, drawn):
        value = drawn.get("phone", drawn.get("opening"))
        wrong = value[:-1] + str((int(value[-1]) + 1) % 10)
        return [replace(move, argument=wrong) if move.argument == value else move for move in moves]

    def wrong_place(moves, world, drawn):
        wrong = another(world, drawn)
        name = {"argument": wrong}, {"label": wrong}
        return [
            replace(move, **name[move.op == "Click"]) if drawn["place"] in (move.argument, move.label) else move
            for move in moves
        ]

    def opening_too(moves, world, drawn):
        at = moves.index(Move("button", "send"))
        return [*moves[:at], Move("box", "opening time", "Type", "23"), *moves[at:]]

    def not_sent(moves, world, drawn):
        at = moves.index(Move("button", "send"))
        return [*moves[:at], Move("link", "no, go back"), *moves[at + 1 :]]

    def other_way(moves, world, drawn):
        wrong = next(way for way in MINUTES if way != drawn["way"])
        kept = [move for move in moves if move.label != "by"]
        at = kept.index(Move("button", "show"))
        return [*kept[:at], map_tasks._select("by", wrong), *kept[at:]]

    def turned(moves, world, drawn):
        swap = {"from": "to", "to": "from"}
        return [replace(move, label=swap.get(move.label, move.label)) for move in moves]

    def not_sorted(moves, world, drawn):
        return [move for move in moves if move.label != "rating"]

    def answer(text):
        return lambda m, w, d: [*m[:-1], exit_move(text(m[-1].argument) if callable(text) else text)]

    by_kind = {kind: [n for n, t in BY_NAME.items() if t.kind == kind] for kind in ("state", "information")}
    extras = (extra_save, extra_change, extra_remove, extra_take_back)
    for i, name in enumerate(by_kind["state"]):
        near(name, extras[i % 4])
        near(name, logged_out)
    near("take_back", extra_save), near("take_back", extra_remove), near("take_back", extra_change)
    for name in ("save", "relabel", "save_two", "replace", "save_highest", "save_nearest", "change_save"):
        near(name, wrong_label)
        near(name, undone)
    for name in ("phone", "opening", "phone_opening", "change_save"):
        near(name, wrong_digit)
        near(name, wrong_place)
        near(name, not_sent)
    for name in ("phone", "opening", "phone_opening"):
        near(name, undone)
    for name in ("save", "replace", "save_two", "show_place"):
        near(name, wrong_place)
    near("phone", opening_too)
    for name in ("show_route", "show_near"):
        near(name, other_way)
    near("show_route", turned)
    near("show_near", lambda m, w, d: [*m[:-1], Move("link", "next page"), DONE])
    near("show_rating", not_sorted), near("show_rating", lambda m, w, d: [*m[:-1], Move("link", "next page"), DONE])
    for name in by_kind["information"]:
        near(name, answer(lambda right: f"{right} or 7"))
        near(name, answer("N/A"))
    for name in ("distance", "minutes", "distance_saved"):
        near(name, answer(lambda right: str(int(right) + 1)))
    for name in ("no_fact", "no_save", "no_distance", "no_minutes", "no_remove"):
        near(name, answer("done"))
        for extra in extras:
            near(name, extra)
    near("no_save", lambda m, w, d: [*map_tasks._find(another(w, d)), *map_tasks._save(d["label"]), *m])

    async def run(env, task, moves):
        reward, pages = await play(env, replace(task, max_steps=99), moves)
        assert reward == 0.0, (task.instruction, moves, pages[-1]["text"])

    await in_slots(slots, jobs, run)


async def test_done_in_another_order_or_by_another_way_scores_1(arena):
    task, world, drawn = draw("save_two", 7)
    swap = {"place": "place2", "place2": "place", "label": "label2", "label2": "label"}
    swapped = BY_NAME["save_two"].oracle(world, {slot: drawn[swap[slot]] for slot in drawn})
    assert (await play(arena, task, swapped))[0] == 1.0
    task, world, drawn = draw("save", 7)
    place = town(world).place(drawn["place"])
    by_kind = [Move("link", "home"), Move("link", place.kind), Move("link", "rating")]
    here = sorted((p for p in town(world).places if p.kind == place.kind), key=lambda p: -p.rating)
    turn = [Move("link", "next page")] * (here.index(place) >= 5)
    saves = [*map_tasks._save(map_tasks._draw_label(world, world.rng("other"))), *map_tasks._save(drawn["label"])]
    assert (await play(arena, task, [*by_kind, *turn, Move("link", place.name), *saves, DONE]))[0] == 1.0
    task, world, drawn = draw("phone", 7)  # the second change of a place takes the place of the first
    wrong = map_tasks._change({"phone": "999999", "opening": "23"})
    assert (await play(arena, task, [*map_tasks._find(drawn["place"]), *wrong, *arena.oracle(task)]))[0] == 1.0
    task, world, drawn = draw("show_route", 7)
    moves = [replace(m, argument=f" {m.argument.title()} ") if m.op == "Type" else m for m in arena.oracle(task)]
    assert (await play(arena, task, moves))[0] == 1.0


async def test_answers_stand_on_the_last_page(slots):
    """And the fields of the form that was sent, so that the page can be judged."""

    async def run(env, name, seed):
        task, world, drawn = draw(name, seed)
        oracle = env.oracle(task)
        _, pages = await play(env, task, oracle)
        if BY_NAME[name].kind == "information":
            assert oracle[-1].argument in pages[-2]["text"]
        if {"place2", "way"} <= set(drawn):
            assert all(drawn[slot] in pages[-2]["text"] for slot in ("place", "place2", "way"))
        if BY_NAME[name].kind == "state":
            assert list(drawn.values())[-1] in pages[-2]["text"].split('text "', 2)[2], task.instruction

    await in_slots(slots, [(name, 12) for name in BY_NAME], run)


# --- pages -----------------------------------------------------------------------------------------------------------


async def test_pages_say_what_was_done_and_what_is_wrong(arena):
    task, world, drawn = draw("change_save", 8)
    content, name = town(world), drawn["place"]
    obs, _ = await arena.reset(replace(task, max_steps=99))
    assert len(obs["text"].splitlines()) == 8 + len(KINDS)  # the drawn map is no text

    async def act(*moves):
        nonlocal obs
        for move in moves:
            obs, *_ = await arena.step(resolve(move, obs["text"]))
        return obs["text"]

    def typed(label, text):
        return Move("box", label, "Type", text)

    show = Move("button", "show")
    assert "type the names of two places" in await act(Move("link", "route"), show)
    text = await act(typed("from", name), typed("to", content.missing[0]), show)
    assert f'text "there is no place {content.missing[0]}"' in text and f'"from" box [6] = "{name}"' in text
    assert "these are the same place" in await act(typed("to", name), show)
    other = next(p for p in content.places if p.x == content.island)
    assert 'text "no way by walking"' in await act(typed("to", other.name), show)
    text = await act(map_tasks._select("by", "driving"), show)
    assert f'text "{name} to {other.name} by driving"' in text and 'text "distance ' in text and ' minutes"' in text

    assert 'text "choose a kind"' in await act(*map_tasks._find(name), Move("link", "nearest"), show)
    text = await act(map_tasks._select("kind", "museum"), show)
    assert "choose a kind" not in text and text.count(" km, ") == 5 and '"next page" link' in text

    text = await act(Move("link", name), Move("button", "save"))
    assert 'text "choose a label"' in text and f'page "{name}"' in text
    taken, holder = next(iter(content.saved.items()))
    assert f'text "{holder} is saved as {taken}"' in await act(*map_tasks._save(taken)) and "remove" not in text
    text = await act(*map_tasks._save(drawn["label"]))
    assert f'text "saved {name} as {drawn["label"]}"' in text and f'text "saved as {drawn["label"]}"' in text
    text = await act(Move("button", "remove"))
    assert f'text "removed {name} from your places"' in text and f'"{name}" link' not in text

    send = Move("button", "send")
    assert 'text "nothing is changed"' in await act(*map_tasks._find(name), Move("link", "change"), send)
    for phone in ("23456", "2345678", "023456", "23456x"):
        assert 'text "a phone has 6 digits"' in await act(typed("phone", phone), send)
    assert "the opening time must be 0 to 23" in await act(typed("phone", "234567"), typed("opening time", "24"), send)
    text = await act(typed("opening time", "23"), send)
    assert f'text "sent your change of {name}: phone 234567, opening time 23"' in text
    assert 'text "your change: phone 234567, opening time 23"' in text
    assert f'text "phone {content.place(name).phone}"' in text  # until somebody accepts it
    text = await act(Move("button", "take back"))
    assert f'text "your change of {name} is taken back"' in text and "234567" not in text
    assert f"nothing found for {content.missing[1]}" in await act(*map_tasks._search(content.missing[1]))
    assert "type a name, a kind or an address" in await act(*map_tasks._search(""))


async def test_search_finds_by_name_kind_and_address_page_by_page(arena):
    task, world, _ = draw("save", 8)
    obs, _ = await arena.reset(replace(task, max_steps=99))
    places = town(world).places
    word = places[0].name.split()[1]
    street = places[0].address.split(" ", 1)[1]
    for query, wanted in (
        (word, [p for p in places if word in p.name.split()]),
        ("museum", [p for p in places if p.kind == "museum"]),
        (street, [p for p in places if p.address.endswith(f" {street}")]),
        (places[0].address, places[:1]),
        (f"{word} {places[0].kind}", [p for p in places if word in p.name.split() and p.kind == places[0].kind]),
    ):
        obs, *_ = await arena.step(resolve(map_tasks._search(query)[0], obs["text"]))
        assert f"{len(wanted)} found for {query}" in obs["text"]
        seen = []
        while True:
            seen += [line.split('"')[1] for line in obs["text"].splitlines() if '" link [' in line]
            if "next page" not in obs["text"]:
                break
            obs, *_ = await arena.step(resolve(Move("link", "next page"), obs["text"]))
        links = {"home", "route", "places", "next page", "previous page"}
        assert [name for name in seen if name not in links] == sorted(p.name for p in wanted), query


async def test_log_out_and_in(arena):
    task, world, drawn = draw("save", 8)
    obs, _ = await arena.reset(replace(task, max_steps=99))
    other = world.people[3]
    seen = []
    for move in (
        Move("link", "places"),
        Move("button", "log out"),
        *BY_NAME["save"].oracle(world, drawn)[:-1],  # saved by nobody leads to the log-in page
        Move("box", "name", "Type", other),
        Move("box", "password", "Type", "wrong"),
        Move("button", "log in"),
        Move("box", "password", "Type", f"{other.split()[0]}1"),
        Move("button", "log in"),
        Move("link", "places"),
    ):
        obs, *_ = await arena.step(resolve(move, obs["text"]))
        seen.append(obs["text"])
    assert "you are logged out" in seen[1] and world.user not in seen[1]
    assert seen[-7].startswith('page "log in"')
    assert "wrong name or password" in seen[-4]
    assert f"logged in as {other}" in seen[-2] and f"places of {other}" in seen[-1]
    assert not any(name in seen[-1] for name in [*town(world).saved.values(), *town(world).changes])
    for move in BY_NAME["save"].oracle(world, drawn)[:-1]:  # for somebody else
        obs, *_ = await arena.step(resolve(move, obs["text"]))
    assert f"saved {drawn['place']} as {drawn['label']}" in obs["text"] and await arena.verdict("done") == 0.0


async def test_addresses_that_lead_nowhere_say_so(arena):
    obs, _ = await arena.reset(replace(draw("save", 8)[0], max_steps=99))
    base = obs["url"].partition("/map/")[0]
    for path, text in (
        ("/p/999", "there is no such place"),
        ("/k/palace", "there is no such kind of place"),
        ("/route/1/1/walking", "there is no such route"),
        ("/route/1/2/flying", "there is no such route"),
        ("/route/1/999/walking", "there is no such place"),
        ("/p/1/near?kind=museum&by=flying", "choose a kind"),
        ("/route?from=%3Cb%3Ex%3C/b%3E&to=y&by=walking", "there is no place <b>x</b>"),
        ("/search?q=%25' or 1=1 --", "nothing found for %' or 1=1 --"),
        ("/k/museum?page=99", "places by name"),
    ):
        obs, *_ = await arena.step(f'do(action="Goto", argument="{base}/map{path}")')
        assert text in obs["text"] and not obs["error"], (path, obs["text"])


async def test_slots_never_see_each_other(slots):
    tasks = [draw(("save", "phone")[i % 2], 10)[0] for i in range(len(slots))]
    played = await asyncio.gather(*(play(env, task, env.oracle(task)) for env, task in zip(slots, tasks)))
    assert all(reward == 1.0 for reward, _ in played)
    for i, (_, pages) in enumerate(played):
        assert [page["text"] for page in pages] == [page["text"] for page in played[i % 2][1]]


async def test_instructions_mean_their_checks_only_where_that_exists():
    like, world, drawn = draw("save", 11)
    content, place, label = town(world), drawn["place"], drawn["label"]
    there = next(p.name for p in content.places if p.x != content.island and p.name not in (place, *content.changes))
    island = next(p.name for p in content.places if p.x == content.island)
    here = next(p.name for p in content.places if p.x != content.island)
    taken, saved = next(iter(content.saved.items()))
    phone = content.place(there).phone
    for text, template in (
        (like.instruction, "save"),
        (f"save {place} as {taken}", None),
        (f"save {place} as castle", None),
        (f"save {saved} as {label}", None),
        (f"save {content.missing[0]} as {label}", "no_save"),
        (f"save {place} as {label} and {place} as {label}", None),
        (f"save {place} as {label} and {there} as {label}", None),
        (f"change the label of {saved} to {label}", "relabel"),
        (f"change the label of {place} to {label}", None),
        (f"remove {saved} from my places", "remove"),
        (f"remove {place} from my places", "no_remove"),
        (f"what is the phone of {place}", "fact"),
        (f"what is the color of {place}", None),
        (f"what is the phone of {content.missing[1]}", "no_fact"),
        (f"how many km is it from {here} to {island} by driving", "distance"),
        (f"how many km is it from {here} to {island} by walking", "no_distance"),
        (f"how many km is it from {here} to {content.missing[0]} by driving", "no_distance"),
        (f"how many minutes does it take from {here} to {island} by walking", "no_minutes"),
        (f"how many km is it from {here} to {here} by driving", None),
        (f"how many km is it from {here} to {island} by flying", None),
        (f"how many km is it from {here} to {content.missing[0]} by flying", None),
        (f"show the route from {here} to {island} by walking", None),
        (f"change the phone of {there} to 234567", "phone"),
        (f"change the phone of {there} to {phone}", None),
        (f"change the phone of {there} to 034567", None),
        (f"change the phone of {there} to 23456", None),
        (f"change the phone of {next(iter(content.changes))} to 234567", None),
        (f"change the opening time of {there} to 24", None),
        (f"change the opening time of {there} to 23", "opening"),
        (f"take back my change of {next(iter(content.changes))}", "take_back"),
        (f"take back my change of {place}", None),
        ("which castle has the highest rating", None),
        ("which place is at 0 nowhere street", None),
        ("go somewhere nice", None),
    ):
        task = task_from_text(text, like, map_tasks.TEMPLATES)
        assert (task and task.template) == template, text
    tied = 0
    for start in content.places:
        for kind in KINDS:
            for way in MINUTES:
                text = f"which {kind} is nearest to {start.name} by {way}"
                km = sorted(distances(content, start.name, kind, way).values())
                unique = bool(km) and km[0] not in km[1:]
                assert (task_from_text(text, like, map_tasks.TEMPLATES) is not None) == unique, text
                tied += not unique
    assert 0 < tied < len(content.places) * len(KINDS) * len(MINUTES) / 2
