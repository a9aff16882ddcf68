"""How fast the text mode of WebShop is, and how hard its embedded catalogue.

    python benchmarks/once/webshop.py

- Seconds to build the catalogue with its index, memory, seconds to list all tasks with their oracles' lengths.
- Steps per second of CPU time, searches included, of a policy that draws admissible actions (it searches for the
  instruction) and of the oracle, in both formats.
- The share of goals bought rightly, and the mean score, of three shoppers who choose the wanted options: one that takes
  the first result, one that reads titles and prices, and the oracle. The first two search for the attributes and the
  noun, or for all words of the instruction but the price.
"""

import asyncio
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.lm.run import run_main
from envs import webshop
from envs.webshop import engine, records, reward


@dataclass
class Args:
    data_dir: str = ""
    """a folder with the original's files ("": the embedded catalogue)"""
    steps: int = 20_000
    """steps of the random policy, and at least of the oracle"""
    goals: int = 0
    """how many goals the shoppers get, from the test split on (0: all)"""
    seed: int = 1
    """of the random policy"""


async def random_steps(env, steps, seed):
    """Steps per CPU second of a policy that draws among the admissible actions."""
    rng, tasks, done = random.Random(seed), env.tasks("train"), 0
    start = time.process_time()
    while done < steps:
        task = rng.choice(tasks)
        obs, _ = await env.reset(task)
        over = False
        while not over:
            action = rng.choice(obs["actions"])
            obs, _, terminated, truncated, _ = await env.step(
                f"search[{words(task.config)}]" if action == webshop.SEARCH else action
            )
            over, done = terminated or truncated, done + 1
    return done / (time.process_time() - start)


async def oracle_steps(env, steps):
    """Steps per CPU second of the oracle, which looks for its product anew in each episode."""
    done, tasks = 0, env.tasks("train")
    start = time.process_time()
    while done < steps:
        for task in tasks:
            obs, _ = await env.reset(task)
            for move in env.oracle(task):
                obs, *_ = await env.step(env.resolve(move, obs))
                done += 1
            if done >= steps:
                break
    return done / (time.process_time() - start)


def words(goal):
    """The instruction without its price."""
    return re.sub(r", and price lower than .*", "", goal["instruction_text"])


def attributes_and_noun(goal):
    return " ".join([*goal["attributes"], goal["query"]])


def buy(world, goal, asin):
    """The score of buying a product with those of the wanted option values that it has."""
    wanted = reward.wanted_options(goal["goal_options"])
    options = world.shop.products[asin].options.items()
    chosen = tuple((name, value) for name, values in options for value in values if value in wanted)
    return world.score(goal, engine.State("item", asin=asin, options=chosen))


def take_first(world, goal, query):
    """Buys the first result."""
    found = world.shop.search(query(goal))
    return buy(world, goal, found[0]) if found else 0.0


def read_titles_and_prices(world, goal, query):
    """Buys the first of the results below the bound whose titles have the noun and say most of the attributes."""
    products = [world.shop.products[asin] for asin in world.shop.search(query(goal))]
    fitting = [p for p in products if p.price <= goal["price_upper"] and goal["query"] in p.title]
    said = [sum(attribute in p.title for attribute in goal["attributes"]) for p in fitting]
    return buy(world, goal, fitting[said.index(max(said))].asin) if fitting else 0.0


def follow_oracle(world, goal, query):
    """Buys what the oracle buys."""
    moves = [move.action[6:-1] for move in world.oracle(goal)]
    shop, state = world.shop, world.shop.search_for(moves[0][1:])
    for label in moves[1:]:
        state = shop.links(state)[label]
    return world.score(goal, state)


def main(args):
    process = psutil.Process()
    before, start = process.memory_info().rss, time.process_time()
    env = webshop.WebShop(args.data_dir)
    world = webshop.world(args.data_dir)
    print(f"build: {time.process_time() - start:.2f} s", end=", ")
    print(f"memory {(process.memory_info().rss - before) / 2**20:.0f} MiB", end=", ")
    print(f"{len(world.shop.products):,} products, {len(world.goals):,} goals")
    start = time.process_time()
    sizes = {split: len(env.tasks(split)) for split in records.SPLITS}
    print(f"tasks: {time.process_time() - start:.2f} s, {sizes}")
    for format in ("compact", "original"):
        env = webshop.WebShop(args.data_dir, format)
        env.tasks("train")
        drawn = asyncio.run(random_steps(env, args.steps, args.seed))
        led = asyncio.run(oracle_steps(env, args.steps))
        print(f"{format}: random policy {drawn:,.0f} steps/CPU-s, oracle {led:,.0f} steps/CPU-s")
    goals = world.goals[: args.goals or None]
    for shopper in (take_first, read_titles_and_prices, follow_oracle):
        for query in (attributes_and_noun, words):
            scores = [shopper(world, goal, query) for goal in goals]
            success, mean = sum(score == 1.0 for score in scores) / len(goals), sum(scores) / len(goals)
            name = f"{shopper.__name__}, {query.__name__}" if shopper is not follow_oracle else "oracle"
            print(f"{name}: success {success:.3f}, score {mean:.3f}")
            if shopper is follow_oracle:
                break
    print(f"memory at the end: {process.memory_info().rss / 2**20:.0f} MiB")


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args)))
