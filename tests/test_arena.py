"""The arena's frame: worlds, splits, task texts, the server. (Sites have tests of their own.)"""

import hashlib
import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from html import unescape

import pytest

from common.errors import UsageError
from envs.arena import CROSS, SITES, VERSIONS, Arena, tasks, words
from envs.arena.content import SEEDS, World
from envs.arena.server import COOKIE, Server
from envs.webarena import check

NAMES = tuple(site.NAME for site, _ in SITES)
EVERYTHING = Arena()  # nothing of it is started; its tasks are made once
TEMPLATES = EVERYTHING.templates


@pytest.fixture(scope="module")
def server():
    server = Server([site for site, _ in SITES]).start()
    yield server
    server.stop()


def get(server, path, episode=None, data=None):
    request = urllib.request.Request(server.url + path, data, {"Cookie": f"{COOKIE}={episode}"} if episode else {})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


# --- worlds and splits --------------------------------------------------------------------------------------------


def test_splits_share_no_seed_and_no_word():
    seeds = [seed for split in SEEDS for seed in SEEDS[split]]
    assert len(seeds) == len(set(seeds))
    for kind in ("adjective", "noun", "first", "last", "topic", "verb"):
        pools = [set(words.pool(kind, split)) for split in SEEDS]
        assert sum(map(len, pools)) == len(set.union(*pools))
    trained = {word for kind in words._LISTS for word in words.pool(kind, "train")}
    held_out = {word for kind in words._LISTS for split in ("eval", "test") for word in words.pool(kind, split)}
    assert not trained & held_out  # not even as a word of another kind


def group(task):
    return CROSS if "+" in task.site else task.site


# Results in docs/ are of exactly these tasks: a change of any is a new version of the arena, named in every result.
# Those of before 26 November 2026 that say "test" are of tasks that are "spent" now.
FROZEN = {
    "arena-v1": {
        "train": "87d123b04001d95c",
        "eval": "b6a76f2cef88cbc2",
        "test": "1e445e87945fbfeb",
        "spent": "f3820bcdc7989b99",
    },
    "arena-v2": {
        "train": "c91f09fb9976b025",
        "eval": "9e72bf7eced79673",
        "test": "c97137f88cdc477c",
        "spent": "2640ae8808f8f4bb",
    },
    "gallery-v1": {
        "train": "407dccd7a39965d7",
        "eval": "a9f6af9ace935610",
        "test": "2cd257be78f9b733",
        "spent": "e3b0c44298fc1c14",
    },
}


@pytest.mark.parametrize("split", [*SEEDS, "spent"])
@pytest.mark.parametrize("version", FROZEN)
def test_tasks_are_those_of_the_results(split, version):
    digest = hashlib.sha256()
    for task in Arena(VERSIONS[version]).tasks(split):
        content = [task.task_id, task.instruction, task.max_steps, task.config]
        digest.update(json.dumps(content, sort_keys=True).encode())
    assert digest.hexdigest()[:16] == FROZEN[version][split]


@pytest.mark.parametrize("version", FROZEN)
def test_fresh_and_spent_test_tasks_are_all_of_them(version):
    arena = Arena(VERSIONS[version])
    assert arena.tasks("spent") + arena.tasks("test") == tasks.split_tasks("test", arena.templates)


@pytest.mark.parametrize(("part", "whole"), [("shop", "arena-v1"), ("forum", "arena-v1"), ("map", "arena-v2")])
def test_of_a_part_nothing_that_the_whole_has_spent_is_fresh(part, whole):
    spent = [task for task in Arena(VERSIONS[whole]).tasks("spent") if task.site == part]
    some = Arena((part,))
    fresh = {task.task_id for task in some.tasks("test")}
    assert spent == some.tasks("spent")[: len(spent)] and not fresh & {task.task_id for task in spent}
    assert len(some.tasks("test")) + len(some.tasks("spent")) == len(SEEDS["test"]) * tasks.PER_WORLD["test"]


@pytest.mark.parametrize("split", SEEDS)
def test_tasks_are_frozen_by_their_seed_and_valid(split):
    arena, count = EVERYTHING, tasks.PER_WORLD[split]
    drawn = arena.tasks(split)
    assert len({task.task_id for task in drawn}) == len(drawn)
    for site, templates in TEMPLATES.items():
        for number in (0, len(SEEDS[split]) - 1):  # drawn again, not looked up
            again = tasks.world_tasks(site, templates, World(SEEDS[split][number], split), count, number)
            assert again == tasks.site_tasks(site, tuple(templates), split)[number]
        here = [task for task in drawn if group(task) == site]
        counts = Counter(task.template for task in here[: 4 * len(templates)])
        assert set(counts) == {template.name for template in templates}  # evenly from the beginning
    for task in drawn:
        check(task.config)
        assert json.loads(json.dumps(task.config)) == task.config
        assert task.config["intent"] == task.instruction and task.steps == len(arena.oracle(task)) <= task.max_steps
        assert task.instruction.isascii() and task.instruction == task.instruction.lower()


def test_worlds_of_a_split_use_its_words_only():
    everything = {split: {w for kind in words._LISTS for w in words.pool(kind, split)} for split in SEEDS}
    for split in SEEDS:
        known = set.union(*(everything[other] for other in SEEDS if other != split))
        values = {
            word
            for task in EVERYTHING.tasks(split)
            for slot, value in task.config["instantiation_dict"].items()
            if tasks.slot_kind(slot) in ("product", "person")
            for word in value.split()
        }
        assert values and not values & (known - everything[split])


# --- instructions as text -----------------------------------------------------------------------------------------


def test_an_instruction_means_its_own_check():
    arena = EVERYTHING
    for split in SEEDS:
        for task in arena.tasks(split):
            parsed = arena.task_from_text(task.instruction, task)
            assert parsed is not None, task.instruction
            assert parsed.config["eval"] == task.config["eval"], task.instruction


def test_what_cannot_be_parsed_or_is_not_there_has_no_check():
    arena = EVERYTHING
    task = arena.tasks("train")[0]
    for text in ("", "sing a song", "add 2 to the cart", "add 2 no such thing to the cart", task.instruction + " now"):
        assert arena.task_from_text(text, task) is None


def test_vary_proposes_neighbours_of_the_family_from_text_and_none_is_easier():
    arena, rng = EVERYTHING, random.Random(0)
    for site in NAMES:
        here, templates = [task for task in arena.tasks("train") if task.site == site], arena.templates[site]
        kinds, proposed, meant = Counter(), 0, 0
        for task in rng.sample(here, 300):
            varied, meant_by_text = arena.vary(task, rng), tasks.find(task.instruction, templates)[0][0]
            assert task.instruction not in varied and len(set(varied)) == len(varied)
            for text in varied:
                proposed += 1
                meanings = [template for template, _ in tasks.find(text, templates)]  # "price of X": where none is sold
                assert any(template.family == meant_by_text.family for template in meanings), (task.instruction, text)
                other = arena.task_from_text(text, task)
                if other is not None:
                    meant += 1
                    assert (other.seed, other.split) == (task.seed, task.split)
                    assert other.requirements >= task.requirements, (task.instruction, text)
                    kinds["template" if other.template != task.template else "values"] += 1
                    kinds[other.requirements - task.requirements] += 1
        print(f"{site}: {proposed / 300:.2f} proposals a task, {meant / proposed:.2f} of them with a check; {kinds}")
        assert proposed > 300 and meant > 0.7 * proposed, site
        assert min(kinds["template"], kinds["values"], kinds[0], kinds[1]) > 10
    task = arena.tasks("train")[3]
    assert arena.vary(task, random.Random(1)) == arena.vary(task, random.Random(1))


def test_moves_resolve_against_the_page():
    page = 'page "cart"\n"home" link [1]\n"search" box [2] = "red lamp"\n"red lamp" link [3]\n"red lamp" link [14]'
    assert tasks.resolve(tasks.Move("link", "red lamp"), page) == (
        '# Element: "red lamp" link [3]\ndo(action="Click", element="3")'
    )
    assert tasks.resolve(tasks.Move("box", "search", "Search", "mug"), page) == (
        '# Element: "search" box [2]\ndo(action="Search", argument="mug", element="2")'
    )
    assert tasks.resolve(tasks.exit_move("done"), page) == 'exit(message="done")'
    with pytest.raises(LookupError):
        tasks.resolve(tasks.Move("button", "red lamp"), page)


# --- the server ---------------------------------------------------------------------------------------------------


def test_server_needs_an_episode(server):
    for episode in (None, "nobody"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(server, "/shop/", episode)
    episode = server.new(World(0))
    assert "categor" in get(server, "/shop/", episode)
    server.end(episode)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(server, "/shop/", episode)


def test_unknown_pages_are_404_pages(server):
    episode = server.new(World(0))
    long = "9" * 30  # more than SQLite's integers hold
    sites = [f"/{name}/p/{long}" for name in ("shop", "forum", "code", "map")]
    for path in ("/shop/p/999", "/shop/c/nothing", "/shop/orders/1", "/shop/what", "/shop/p/x", *sites):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server, path, episode)


@pytest.mark.parametrize("site", NAMES)
def test_back_from_the_second_page_is_the_first_ones_address(server, site):
    """A check may name the address of a list, which holds no page number."""
    episode, paths, seen = server.new(World(0)), [f"/{site}/"], 0
    for path in paths:
        text = get(server, path, episode)
        found = [unescape(href) for href in re.findall(r'<a href="(/[^"]+)"', text)]
        paths += [href for href in dict.fromkeys(found) if href not in paths and len(paths) < 80]
        after = re.search(r'href="([^"]+)">next page', text)
        if after and "page=" not in path:
            back = re.search(r'href="([^"]+)">previous page', get(server, unescape(after[1]), episode))
            assert unescape(back[1]) == re.sub(r"[?&]page=2$", "", unescape(after[1]))
            seen += 1
    assert seen


def test_episodes_never_see_each_other_and_snapshots_come_back(server):
    one, two = server.new(World(0)), server.new(World(0))
    fresh = get(server, "/shop/cart", one)
    image = server.snapshot(one)
    get(server, "/shop/cart/1/remove", one, b"")
    changed = get(server, "/shop/cart", one)
    assert changed != fresh and get(server, "/shop/cart", two) == fresh
    later = server.snapshot(one)
    server.restore(one, image)
    assert get(server, "/shop/cart", one) == fresh
    server.restore(two, later)
    assert get(server, "/shop/cart", two) == changed and get(server, "/shop/cart", one) == fresh


def test_an_episode_may_end_under_a_request(server):
    """Closed under a running statement, the database would take the process with it."""
    name = server.new(World(1, "train"))
    db, begun, ended, rows = server._episodes[name], threading.Event(), threading.Event(), []

    def pause():
        begun.set()
        ended.wait(10)
        return "done"

    def handle():
        db.create_function("pause", 0, pause)
        rows.append(db.execute("insert into done (text) values (pause())").lastrowid)

    thread = threading.Thread(target=handle)
    thread.start()
    assert begun.wait(10)
    server.end(name)
    ended.set()
    thread.join(10)
    assert rows == [1] and name not in server._episodes
    again = server.new(World(1, "train"))
    server.restore(again, server.snapshot(again))  # takes the place of one that may be in use, too
    server.end(again)


def test_a_busy_port_is_one_line(server):
    with pytest.raises(UsageError, match=str(server.port)):
        Server([], port=server.port)


def test_server_reset_speed(server, capsys):
    """Printed, not asserted: the machine may be busy."""
    first = [_seconds(lambda seed=seed: server.new(World(seed))) for seed in range(40, 60)]
    again = [_seconds(lambda seed=seed: server.new(World(seed))) for seed in range(40, 60)]
    with capsys.disabled():
        print(f"\nserver reset: {50 * sum(first):.2f} ms in a new world, {50 * sum(again):.3f} ms in a known one")


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
