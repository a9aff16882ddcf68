"""How well a model finds what it is told to click on: one step, on screenshots of the gallery in real Chromium.

    python benchmarks/once/grounding.py        # assets/tiny-vl, test worlds

Every page on the oracles' ways is asked for everything that can be clicked on it ("click on take out small red ring");
right is a click inside the element's box.
"""

import asyncio
import random
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import envs
from common.actions import parse
from common.lm import llm
from common.lm.run import run_main
from common.lm.stats import wilson
from common.visual import read_action
from envs.arena.gallery import COLOURS, HELD_OUT, SIZES


@dataclass
class Args:
    model_id: str = "assets/tiny-vl"
    """model: a local folder or a hub id"""
    split: str = "test"
    """worlds to look at: train, eval or test"""
    tasks: int = 40
    """tasks whose oracle is followed"""
    side: int = 96
    """width and height of the page"""
    seed: int = 1
    """which tasks"""


async def look(args):
    """(screenshot, label, box) of everything that can be clicked on the oracles' pages, each picture and label once."""
    env, seen = envs.make("gallery", screenshots=True, viewport=(args.side, args.side)), {}
    try:
        for task in random.Random(args.seed).sample(env.tasks(args.split), args.tasks):
            obs, _ = await env.reset(task)
            for move in env.oracle(task):
                labels = dict(re.findall(r'^"([^"]+)" (?:link|button) \[(\d+)\]', obs["text"], re.MULTILINE))
                for label, id in labels.items():
                    same = [obs["boxes"][number] for number in re.findall(rf'"{label}" \w+ \[(\d+)\]', obs["text"])]
                    seen[obs["screenshot"], label] = same if len(same) > 1 else [obs["boxes"][id]]
                obs, *_ = await env.step(env.resolve(move, obs))
    finally:
        await env.close()
    return seen


def kind(label):
    """What is asked for; of things, whether the pair of colour and shape is held out."""
    words = label.removeprefix("take out ").split()
    if len(words) == 3 and words[0] in SIZES and words[1] in COLOURS:
        place = "basket" if label.startswith("take out") else "shelf"
        return f"{place}, held out" if tuple(words[1:]) in HELD_OUT else place
    return "door" if label.endswith("room") else "button"


def main(args):
    model, processor = llm.load(args.model_id, vision=True)
    seen, right = asyncio.run(look(args)), defaultdict(list)
    asked = list(seen.items())
    for first in range(0, len(asked), 64):
        part = asked[first : first + 64]
        prompts = [llm.encode(processor, f"click on {label}<image><answer>", [shot]) for (shot, label), _ in part]
        answers = llm.generate(model, processor, prompts, [0] * len(prompts), temperature=0.0, max_new_tokens=4)
        for ((_, label), boxes), completion in zip(part, answers, strict=True):
            said = processor.tokenizer.decode(completion.ids, skip_special_tokens=True)
            right[kind(label)].append(hits(read_action(said, (args.side, args.side)), boxes))
    for name, values in sorted(right.items()):
        print(f"{name:18} {wilson(sum(values), len(values))} of {len(values)}")


def hits(text, boxes):
    try:
        x, y = map(int, parse(text).argument.split(","))
    except (ValueError, AttributeError):
        return False
    return any(left <= x <= left + width and top <= y <= top + height for left, top, width, height in boxes)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
