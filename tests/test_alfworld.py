"""ALFWorld: the fast engine against the unmodified one, generated games, solutions, and the original data's layout."""

import asyncio
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from common.errors import EnvFault, StateMismatch, UsageError
from envs import alfworld, alfworld_engine, alfworld_games
from envs.alfworld import ALFWorld

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("CLEANGUI_DATA", Path(__file__).parents[2] / "shared" / "data"))
needs_alfworld = pytest.mark.skipif(
    find_spec("alfworld") is None or find_spec("textworld") is None,
    reason="ALFWorld is not installed (requirements-alfworld.txt)",
)

# The engine as ALFWorld runs it, in a process that never imports this project: what is read, offered and won.
UNMODIFIED = """
import json, sys
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl import PddlEnv
assert "envs" not in sys.modules
for line in sys.stdin:
    job = json.loads(line)
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    env.load(job["game"])
    for commands in job["walks"]:
        state = env.reset()
        trace = [[state.feedback, state.admissible_commands, False]]
        for command in commands:
            state, _, done = env.step(command)
            trace.append([state.feedback, state.admissible_commands, done])
        print(json.dumps(trace))
"""
# What a process with another hash seed sees, from an empty cache.
ELSEWHERE = """
import asyncio, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests"]
from test_alfworld import digest
print(asyncio.run(digest(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("alfworld")


@pytest.fixture(scope="module")
def env(cache):
    return ALFWorld(cache_dir=cache, format="original")


def walk(game, seed, steps):
    """The commands of a random walk that opens, takes and moves more than it goes around; some are not admissible."""
    rng, state, commands = random.Random(seed), game.start, []
    while len(commands) < steps and not state.won:
        busy = [action for action in state.actions if not action.startswith(("go to", "examine", "look", "inventory"))]
        command = rng.choice(busy if busy and rng.random() < 0.6 else state.actions)
        command = rng.choice([command] * 12 + ["help", "take sun 1 from sky 1", f" {command} ", command.upper()])
        commands.append(command)
        state = game.step(state, command)[1]
    return commands


def trace(game, commands):
    """As UNMODIFIED prints it."""
    state, seen = game.start, [[game.intro, sorted([*game.start.actions, "help"]), False]]
    for command in commands:
        page, state = game.step(state, command)
        seen.append([page.text, sorted([*page.actions, "help"]), page.score == 1.0])
    return seen


async def play(env, task, actions):
    """The observations of an episode, and the last reward."""
    obs, info = await env.reset(task)
    seen, reward = [(obs["text"], obs["actions"], obs["error"], info["hash"])], 0.0
    for action in actions:
        obs, reward, _, _, info = await env.step(action)
        seen.append((obs["text"], obs["actions"], obs["error"], info["hash"]))
    return seen, reward


async def digest(cache):
    """A hash of all of a few games: tasks, solutions, thoughts, observations."""
    env, seen = ALFWorld(cache_dir=cache), []
    for task in env.tasks("train")[4:6]:
        moves = env.oracle(task)
        commands = walk(env._shared.game(task), 1, 30)
        seen += [task, moves, env.planner(task), await play(env, task, commands)]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


@needs_alfworld
def test_same_as_the_unmodified_engine(env):
    """Texts, commands and ends are equal byte for byte on random walks, from the first time and from memory."""
    jobs, games = [], []
    for task in env.tasks("train")[6:12]:
        game = env._shared.game(task)
        *files, _ = env._shared._files(task, env._shared.record(task)["attempt"])
        data = dict(zip(("pddl_domain", "grammar", "pddl_problem"), files))
        solved = [move.action for move in env.oracle(task)][:-1]
        walks = [walk(game, 1, 20), [*solved, *walk(game, 2, 5)]]
        jobs.append(json.dumps({"game": data, "walks": walks}))
        games += [(game, files, commands) for commands in walks]
    printed = subprocess.run([sys.executable, "-c", UNMODIFIED], input="\n".join(jobs), capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    traces = [json.loads(line) for line in printed.stdout.splitlines()]
    assert len(traces) == len(games) == 12
    for (game, files, commands), expected in zip(games, traces):
        assert trace(game, commands) == expected
        for state in game.states.values():
            state.edges.clear()  # and now every transition anew, in states that other walks reached
        assert trace(game, commands) == expected
        assert trace(alfworld_engine.Game(*files), commands) == expected


@needs_alfworld
async def test_all_types_are_solved_by_both_experts(env):
    for split in ("train", "test"):
        for task in env.tasks(split)[:6]:
            for expert in ("handcoded", "planner"):
                env.expert = expert
                moves = env.oracle(task)
                obs, _ = await env.reset(task)
                assert obs["goal"] == task.instruction == task.config["sentence"]
                assert obs["text"].startswith("You are in the middle of a room. Looking quickly around you, you see a ")
                assert obs["text"].endswith(f"Your task is to: {task.instruction}.")
                assert len(moves) <= alfworld.MAX_STEPS
                for number, move in enumerate(moves, 1):
                    assert 2 <= len(move.thought.split()) <= 6
                    assert "help" not in obs["actions"]
                    obs, reward, terminated, _, info = await env.step(env.resolve(move, obs))
                    assert (reward, terminated) == ((1.0, True) if number == len(moves) else (0.0, False))
                assert info["verdict"] == info["score"] == 1.0
            env.expert = "handcoded"
            assert 0 < len(env.planner(task)) <= len(env.oracle(task))


@needs_alfworld
async def test_mixed_expert_and_compact_format(cache):
    env = ALFWorld(cache_dir=cache, expert="mixed")
    tasks = env.tasks("train")[:12]
    planned = [[m.action for m in env.oracle(task)] == env.planner(task) for task in tasks[:6]]
    assert set(planned) == {True, False}
    obs, _ = await env.reset(tasks[0])
    first = obs["actions"][0]
    assert "Your task is" not in obs["text"]
    assert f'"{first}" link [1]' in obs["text"].splitlines()
    obs, reward, *_ = await env.step('do(action="Click", element="1")')
    assert obs["text"].startswith(f'text "you arrive at {first.removeprefix("go to ")}.')
    obs, _ = await env.reset(tasks[0])
    for move in env.oracle(tasks[0]):
        action = env.resolve(move, obs)
        assert f'"{move.action}"' in action
        obs, reward, *_ = await env.step(action)
    assert reward == 1.0


@needs_alfworld
async def test_tiny_rooms_hold_familiar_things_only(cache):
    env = ALFWorld(cache_dir=cache, size="tiny")
    for split in ("train", "eval", "test"):
        tasks = env.tasks(split)
        assert set(Counter(task.template for task in tasks).values()) == {len(tasks) // 6}
        for task in tasks:
            named = {task.config["object"], task.config["receptacle"] or task.config["lamp"]}
            assert named <= alfworld_games.FAMILIAR
    words = {name.lower() for name in alfworld_games.FAMILIAR}
    vocabulary = json.loads((ROOT / "assets/tiny/tokenizer.json").read_text())["model"]["vocab"]
    assert {word for word in words if f"Ġ{word}" not in vocabulary} == set()  # one token each
    for task in env.tasks("train")[:12]:
        obs, _ = await env.reset(task)
        places = {action.removeprefix("go to ").split()[0] for action in obs["actions"] if action.startswith("go to ")}
        assert places <= words and len([a for a in obs["actions"] if a.startswith("go to ")]) <= 8
        for move in env.oracle(task):
            obs, reward, *_ = await env.step(env.resolve(move, obs))
        assert reward == 1.0


@needs_alfworld
def test_splits(env):
    games = {split: env.tasks(split) for split in ("train", "eval", "test")}
    assert {split: len(tasks) for split, tasks in games.items()} == {"train": 300, "eval": 60, "test": 300}
    for tasks in games.values():
        assert set(Counter(task.template for task in tasks).values()) == {len(tasks) // 6}
        assert all(json.loads(json.dumps(task.config)) == task.config for task in tasks)
    for one, other in (("train", "eval"), ("train", "test"), ("eval", "test")):
        for key in (_room, _pair, lambda task: task.task_id, lambda task: task.seed):
            assert not {key(task) for task in games[one]} & {key(task) for task in games[other]}
    assert env.tasks("eval") == ALFWorld(cache_dir=env._shared.cache).tasks("eval")
    few = ALFWorld(games={"eval": 7})
    assert few.tasks("eval") == env.tasks("eval")[:7]


@needs_alfworld
def test_rooms(env):
    """A room, made by any attempt, has what the task needs, outside the place it belongs to."""
    for split in ("train", "eval", "test"):
        for number, task in enumerate(env.tasks(split)[:120]):
            for size, attempt in (("small", 0), ("full", number % 3)):
                game = task.config | {"size": size}
                problem = alfworld_games.problem(game, attempt)
                assert problem == alfworld_games.problem(game, attempt)
                named = problem.partition("(:init")[0]
                receptacles, objects = named.count(" - receptacle\n"), named.count(" - object\n")
                if size == "small":
                    assert alfworld_games.LEAST <= receptacles <= 15
                    assert 6 <= objects <= 13
                copies = len(re.findall(rf"^\(objectType \w+ {game['object']}Type\)$", problem, re.MULTILINE))
                assert copies >= (2 if game["type"] == "pick2" else 1)
                needed = alfworld_games.STATION.get(game["type"], "")
                assert f" {needed}Type)" in problem or not needed


@needs_alfworld
async def test_inadmissible_and_help(env):
    task = env.tasks("train")[0]
    obs, _ = await env.reset(task)
    here = obs["actions"]
    for action in ("Look", "take mug 1", "", "go to the moon", "look around"):
        obs, reward, terminated, truncated, _ = await env.step(action)
        assert (obs["text"], obs["actions"], reward, terminated) == ("Nothing happens.", here, 0.0, False)
        assert obs["error"]
    obs, *_ = await env.step("help")
    assert "Available commands" in obs["text"]
    assert not obs["error"]
    for _ in range(alfworld.MAX_STEPS - 6):
        obs, reward, terminated, truncated, info = await env.step("look")
    assert (reward, terminated, truncated, info["verdict"]) == (0.0, False, True, 0.0)


@needs_alfworld
async def test_restore(env):
    task = env.tasks("train")[5]
    moves = env.oracle(task)
    await env.reset(task)
    for move in moves[:4]:
        obs, *_ = await env.step(move.action)
    prefix = await env.prefix()
    rest, _ = await play_on(env, moves[4:])
    fork = env.fork()
    again, info = await fork.restore(prefix)
    assert again == obs
    assert info["hash"] == prefix.hashes[-1]
    there, reward = await play_on(fork, moves[4:])
    assert there == rest
    assert reward == 1.0
    wrong = type(prefix)(prefix.task, prefix.actions, (*prefix.hashes[:-1], "0" * 16))
    with pytest.raises(StateMismatch):
        await fork.restore(wrong)


@needs_alfworld
async def test_slots_do_not_see_each_other(env, cache, monkeypatch):
    """Eight slots in one game, in turns: what each sees is what it sees alone, with little memory, too."""
    task = env.tasks("train")[5]
    game = env._shared.game(task)
    walks = [walk(game, seed, 20) for seed in range(8)]
    alone = [await play(env, task, commands) for commands in walks]
    monkeypatch.setattr(alfworld_engine, "MAX_STATES", 20)
    monkeypatch.setattr(alfworld, "OPEN_GAMES", 1)
    other = ALFWorld(cache_dir=cache, format="original")
    slots = [other.fork() for _ in walks]
    seen = [[await slot.reset(task)] for slot in slots]
    for turn in range(20):
        if turn == 10:  # the game is given up for another one; who plays it keeps it
            await other.reset(env.tasks("train")[0])
            assert len(other._shared.open) == 1
        for slot, commands, steps in zip(slots, walks, seen):
            if turn < len(commands):
                steps.append(await slot.step(commands[turn]))
    for steps, (expected, reward) in zip(seen, alone):
        observed = [(step[0]["text"], step[0]["actions"], step[0]["error"], step[-1]["hash"]) for step in steps]
        assert observed == expected
        assert steps[-1][1] == reward if len(steps) > 1 else True
    await slots[0].close()
    assert other._shared.open
    await other.close()
    await other.close()
    assert not other._shared.open


@needs_alfworld
async def test_threads(env):
    tasks = env.tasks("eval")[:3]
    env.oracle(tasks[0])

    def episode(task):
        return asyncio.run(play(env.fork(), task, env.planner(task)))[1]

    rewards = await asyncio.gather(*(asyncio.to_thread(episode, task) for task in tasks * 2))
    assert rewards == [1.0] * 6


@needs_alfworld
def test_same_in_other_processes(tmp_path):
    """Another hash seed, an empty cache: the same games, solutions and observations."""
    here = asyncio.run(digest(tmp_path / "here"))
    assert here == asyncio.run(digest(tmp_path / "here"))  # from the cache
    there = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(ROOT), str(tmp_path / "there")],
        env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert there.stdout.strip() == here, there.stderr


@needs_alfworld
async def test_nothing_of_the_process_is_touched(tmp_path, capsys):
    argv, state = sys.argv, random.getstate()
    env = ALFWorld(cache_dir=tmp_path)
    task = env.tasks("train")[2]
    await play(env, task, [move.action for move in env.oracle(task)])
    assert sys.argv is argv
    assert random.getstate() == state
    assert capsys.readouterr().out == ""
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@needs_alfworld
async def test_a_broken_engine_is_a_fault(env, monkeypatch):
    task = env.tasks("train")[4]
    obs, _ = await env.reset(task)
    monkeypatch.setattr(env._game, "_go", lambda path: 1 / 0)
    env._state.edges.clear()
    with pytest.raises(EnvFault, match="ZeroDivisionError"):
        await env.step(obs["actions"][0])
    _, reward = await play(env, task, env.planner(task))  # a new engine
    assert reward == 1.0


@needs_alfworld
async def test_original_layout(tmp_path, cache):
    games = sorted((DATA / "alfworld" / "games").glob("*"))
    if not games:
        pytest.skip(f"{DATA}/alfworld is absent (CLEANGUI_DATA names the folder of alfworld/)")
    folder = tmp_path / "json_2.1.1"
    for game in games:
        shutil.copytree(game, folder / "train" / game.name / "trial_T1")
    shutil.copytree(games[0], folder / "valid_unseen" / games[0].name / "trial_T2")
    shutil.copytree(games[0], folder / "valid_unseen" / "pick_and_place_with_movable_recep-X" / "trial_T3")
    for place in (tmp_path, folder):
        env = ALFWorld(data_dir=str(place), cache_dir=cache, format="original")
        tasks = env.tasks("train")
        assert {task.template for task in tasks} == set(alfworld_games.TYPES)
        assert len(env.tasks("test")) == 1
    assert len(ALFWorld(data_dir=str(folder), games={"train": 2}).tasks("train")) == 2
    for task in tasks:
        assert (await play(env, task, [move.action for move in env.oracle(task)]))[1] == 1.0
        assert (await play(env, task, []))[0][0][0].endswith(f"Your task is to: {task.instruction}.")
    plan = env.planner(tasks[0])  # in a process of its own
    assert (await play(env, tasks[0], plan))[1] == 1.0
    assert plan == ALFWorld(data_dir=str(folder), cache_dir=cache).planner(tasks[0])
    with pytest.raises(UsageError, match="valid_seen"):
        env.tasks("eval")
    (folder / "train" / games[0].name / "trial_T1" / "traj_data.json").write_text("{")
    with pytest.raises(UsageError, match=r"traj_data\.json"):
        ALFWorld(data_dir=str(folder), cache_dir=cache).tasks("train")


@needs_alfworld
def test_planner_has_a_limit(env, monkeypatch):
    task = env.tasks("train")[0]
    *files, _ = env._shared._files(task, 0)
    monkeypatch.setattr(alfworld_engine.subprocess, "run", lambda *args, **kw: subprocess.CompletedProcess([], -24))
    assert alfworld_engine.limited_plan(*files) == []
    failed = subprocess.CompletedProcess([], 1, stderr="no such thing")
    monkeypatch.setattr(alfworld_engine.subprocess, "run", lambda *args, **kw: failed)
    with pytest.raises(EnvFault, match="no such thing"):
        alfworld_engine.limited_plan(*files)


def test_bad_options(tmp_path):
    with pytest.raises(UsageError, match="not ALFWorld's data"):
        ALFWorld(data_dir=str(tmp_path))
    with pytest.raises(UsageError, match="size is one of tiny, small, full"):
        ALFWorld(size="huge")
    with pytest.raises(UsageError, match="expert is one of"):
        ALFWorld(expert="me")
    with pytest.raises(UsageError, match="format is one of"):
        ALFWorld(format="html")
    with pytest.raises(UsageError, match="games is a dict"):
        ALFWorld(games={"dev": 3})


def test_not_installed(monkeypatch):
    """The module can be imported; what needs ALFWorld says what to do."""
    env = ALFWorld()
    for module in ("alfworld", "alfworld.gen", "alfworld.agents.environment.alfred_tw_env"):
        monkeypatch.setitem(sys.modules, module, None)
    for function in (alfworld_games._constants, alfworld_games.rooms, alfworld_games.goals):
        function.cache_clear()
    argv = sys.argv
    try:
        with pytest.raises(UsageError, match="pip install -r requirements-alfworld.txt"):
            env.tasks("train")
        with pytest.raises(UsageError, match="pip install -r requirements-alfworld.txt"):
            alfworld_engine.engine.__wrapped__()  # not the cached one
        assert sys.argv is argv
    finally:
        monkeypatch.undo()
    code = "import sys, envs.alfworld; sys.exit(bool({'textworld', 'alfworld', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def _room(task):
    return task.config["room"]


def _pair(task):
    return task.config["object"], task.config["receptacle"] or task.config["lamp"]


async def play_on(env, moves):
    """The rest of an episode."""
    texts, reward = [], 0.0
    for move in moves:
        obs, reward, *_ = await env.step(move.action)
        texts.append(obs["text"])
    return texts, reward
