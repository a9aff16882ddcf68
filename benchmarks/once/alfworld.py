"""How fast ALFWorld is: the unmodified engine, the same with memoised parsers, and the environment's slots over `Game`.

    python benchmarks/once/alfworld.py        # 3 minutes

Each row is measured in a process of its own, on one game of each type, with a policy that draws admissible actions.
Steps are per second of this process's CPU time. "first" is the first episode of all slots in a game, transitions that
nobody has asked for included; "again" is another episode of all slots with other draws. "load" is from the files to the
first page, "reset" is a later reset of the same game.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

import tyro

ROOT = Path(__file__).resolve().parents[2]
# this file has the package's name, so its folder must not be on the path
sys.path[:] = [str(ROOT), *(place for place in sys.path if Path(place).resolve() != ROOT / "benchmarks/once")]

from common.lm.run import run_main
from envs import alfworld, alfworld_engine
from envs.alfworld import ALFWorld

ENGINES = {"unmodified": "unmodified engine", "memoised": "parsers memoised", "cached": "environment, {slots} slots"}


@dataclass
class Args:
    sizes: tuple[Literal["small", "full"], ...] = ("small", "full")
    """the rooms"""
    games: int = 6
    """games of each row: of each type one"""
    steps: int = 50
    """steps of an episode"""
    slots: int = 8
    """slots that play the same game at once"""
    engine: Literal["all", "unmodified", "memoised", "cached"] = "all"
    """one of them: its figures as JSON, without a table"""


def clock(function, *args):
    """(CPU seconds, result)."""
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def original(args, files):
    """One game in PddlEnv itself: (load, reset, steps per second) and nothing again."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    def load():
        env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        env.load(dict(zip(("pddl_domain", "grammar", "pddl_problem"), files)))
        return env, env.reset()

    load_seconds, (env, _) = clock(load)
    reset_seconds, state = clock(env.reset)
    rng, start, steps = random.Random(0), time.process_time(), 0
    for _ in range(args.steps):
        state, _, done = env.step(rng.choice(state.admissible_commands))
        steps += 1
        if done:
            break
    return load_seconds, reset_seconds, steps / (time.process_time() - start), None


def cached(args, env, task):
    """One game in an environment's slots, in turns: (load, reset, steps per second at first, and again)."""
    slots = [env.fork() for _ in range(args.slots)]

    def reset():
        return asyncio.run(slots[0].reset(task))

    async def episode(seed):
        rngs = [random.Random(f"{seed} {number}") for number in range(len(slots))]
        seen = [(await slot.reset(task))[0] for slot in slots]
        steps, over = 0, set()
        for _ in range(args.steps):
            for number, slot in enumerate(slots):
                if number not in over:
                    obs, _, terminated, truncated, _ = await slot.step(rngs[number].choice(seen[number]["actions"]))
                    seen[number], steps = obs, steps + 1
                    over |= {number} if terminated or truncated else set()
        return steps

    load_seconds, _ = clock(reset)
    reset_seconds, _ = clock(reset)
    speeds = []
    for seed in range(2):
        seconds, steps = clock(asyncio.run, episode(seed))
        speeds.append(steps / seconds)
    return load_seconds, reset_seconds, *speeds


def measure(args, size):
    """The means over the games: {"load", "reset", "first", "again"}."""
    env = ALFWorld(size=size)
    tasks, rows = env.tasks("train")[: args.games], []
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # noqa: F401 - not part of the first load

    package = Path(sys.modules["alfworld"].__file__).parent / "data"
    for task in tasks:
        domain, grammar = (package / "alfred.pddl").read_text(), (package / "alfred.twl2").read_text()
        problem = alfworld.alfworld_games.problem(task.config)
        files = domain, grammar.replace("UNKNOWN GOAL", task.instruction), problem
        if args.engine == "cached":
            env.oracle(task)  # the solution is on disk, as in every run but the first
            env = ALFWorld(size=size)
            rows.append(cached(args, env, task))
        else:
            if args.engine == "memoised":
                alfworld_engine.engine()  # which patches TextWorld
            rows.append(original(args, files))
    columns = zip(("load", "reset", "first", "again"), zip(*rows))
    return {name: None if None in values else mean(values) for name, values in columns}


def main(args):
    if args.engine != "all":
        print(json.dumps({size: measure(args, size) for size in args.sizes}))
        return
    print("| room | engine | load, s | reset, ms | steps/CPU-s, first | again |\n|---|---|---|---|---|---|")
    for size in args.sizes:
        for name, title in ENGINES.items():
            options = ["--games", args.games, "--steps", args.steps, "--slots", args.slots]
            command = [sys.executable, __file__, "--engine", name, "--sizes", size, *map(str, options)]
            row = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)[size]
            again = "" if row["again"] is None else f"{row['again']:,.0f}"
            print(f"| {size} | {title.format(slots=args.slots)} | {row['load']:.2f} | {row['reset'] * 1000:.1f} "
                  f"| {row['first']:,.0f} | {again} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    run_main(main, tyro.cli(Args))
