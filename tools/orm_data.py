"""Collect labelled episodes for the outcome reward model from finished runs.

    python tools/orm_data.py runs/A runs/B --slips 2000 --out labelled.jsonl.gz
    python webrl.py --orm-data labelled.jsonl.gz

What counts is an episode on a training instruction, with the verdict of its true checker. Generated instructions never
count (their true verdict is not trained on), nor do demonstrations and evaluations. Each line of the file holds what
the model reads: instruction, actions, last page, verdict, and which policy it was of.

`--slips` plays more episodes on training instructions: the oracle's, with one slip each. A policy that is paid by a
judge finds what the judge overlooks (it stops early, takes the neighbour's post, goes on after the work is done), and
the episodes of policies that were paid by the true verdict hold few of these.
"""

import asyncio
import gzip
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import envs
from common.actions import Action, format_action
from common.errors import UsageError
from common.lm.rollout import BatchedPolicy, FaultLog, play_all
from common.lm.run import run_main
from common.replay import TrajectoryStore

Slip = Literal["quit", "skip", "elsewhere", "answer", "more"]


@dataclass
class Args:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """folders of runs"""
    slips: int = 0
    """episodes of the oracle with one slip to play"""
    env_id: str = "arena-v1"
    """the environment to play them in"""
    seed: int = 1
    """seed of the slips"""
    out: str = "labelled.jsonl.gz"
    """file to write"""


def labelled(run_path):
    """The run's labelled episodes as records, in the order they were played.

    Raises UsageError where there is no run.
    """
    run_path = Path(run_path)
    try:
        env_id = json.loads((run_path / "args.json").read_text())["env_id"]
        trajectories = TrajectoryStore(run_path / "trajectories.jsonl")
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"no run in {run_path}: give the folder that holds args.json") from error
    training = {task.task_id: task.instruction for task in envs.make(env_id).tasks("train")}
    for t in trajectories:
        if t.verdict is not None and t.kind != "demo" and training.get(t.task.task_id) == t.task.instruction:
            yield {
                "instruction": t.task.instruction,
                "actions": [step.action for step in t.steps],
                "page": t.final_observation,
                "verdict": int(bool(t.verdict) and t.ending == "exit"),
                "policy": t.policy,
            }


def exit_action(message):
    return format_action(Action("Exit", None, message, ""))


def other_answer(answer, page, rng):
    """Something else to say at the end: N/A, done, or what the page shows."""
    shown = re.findall(r'^"([^"]+)" link', page, re.MULTILINE)
    shown += re.findall(r"\b\d+\b|[a-z]+ [a-z]+(?=\")", page)
    others = [text for text in ("N/A", "done", rng.choice(shown or ["done"])) if text != answer]
    return rng.choice(others)


def other_click(name, page, rng):
    """A click on a link or button of the page that is not called `name`."""
    found = re.findall(r'^("[^"]*" (?:link|button)) \[(\d+)\]', page, re.MULTILINE)
    element, number = rng.choice([pair for pair in found if pair[0] != name] or found)
    return format_action(Action("Click", number, None, f"# Element: {element} [{number}]"))


async def play_with_slip(env, task, slip: Slip, rng):
    """The oracle's episode on `task` with one slip: a record, as of `labelled`.

    quit: it stops before the end. skip: it leaves a step out. elsewhere: it clicks on something else. answer: it says
    something else at the end. more: it goes on with a click when all is done. What it then cannot find ends it.
    """
    obs, info = await env.reset(task, seed=0)
    moves = env.oracle(task)
    at = rng.randrange(max(1, len(moves) - 1))
    plan = {"quit": [*moves[:at], moves[-1]], "skip": moves[:at] + moves[at + 1 :]}.get(slip, moves)
    actions, over = [], False
    while not over:
        done = len(actions)
        last = done >= len(plan) - 1
        if (slip == "elsewhere" and done == at) or (slip == "more" and last and done == len(moves) - 1):
            action = other_click(f'"{moves[done].label}" {moves[done].kind}', obs["text"], rng)
        elif last:
            answer = moves[-1].argument
            unseen = answer not in ("done", "N/A") and answer not in obs["text"]  # nobody would say what was not shown
            changed = slip == "answer" or unseen or (slip == "quit" and rng.random() < 0.5)
            action = exit_action(other_answer(answer, obs["text"], rng) if changed else answer)
        else:
            try:
                action = env.resolve(plan[done], obs)
            except LookupError:
                action = exit_action(other_answer(moves[-1].argument, obs["text"], rng))
        actions.append(action)
        obs, _, terminated, truncated, info = await env.step(action)
        over = terminated or truncated
    return {
        "instruction": task.instruction,
        "actions": actions,
        "page": obs["text"],
        "verdict": int(info["verdict"]),
        "policy": f"oracle, slip: {slip}",
    }


def slipped(args):
    """`args.slips` such episodes on training instructions, the slips in turn; the two that fail most come twice."""

    async def play_once(env, task, attempt, index):
        rng = random.Random(f"{args.seed} {index}")
        return await play_with_slip(env, task, kinds[index % len(kinds)], rng)

    async def play():
        policy = BatchedPolicy(None)
        try:
            return await play_all([root] + [root.fork() for _ in range(15)], tasks, policy, play_once, FaultLog())
        finally:
            await root.close()

    kinds = (*Slip.__args__, "quit", "elsewhere")
    root = envs.make(args.env_id)
    tasks = root.tasks("train")
    tasks = random.Random(args.seed).choices(tasks, k=args.slips)
    return asyncio.run(play())


def main(args):
    """Write the file; what the model would read twice is kept once."""
    records = {}
    played = (record for run_path in args.runs for record in labelled(run_path))
    for record in [*played, *(slipped(args) if args.slips else [])]:
        text = (record["instruction"], *record["actions"], record["page"])
        records.setdefault(text, record)
    if not records:
        raise UsageError("no labelled episode on a training instruction: name runs that hold some, or --slips N")
    lines = "".join(json.dumps(record) + "\n" for record in records.values())
    Path(args.out).write_bytes(gzip.compress(lines.encode(), mtime=0))  # the same bytes for the same runs
    won = sum(record["verdict"] for record in records.values())
    print(f"{args.out}: {len(records)} labelled episodes, {won / len(records):.0%} of them successes")


if __name__ == "__main__":
    run_main(main, tyro.cli(Args, description=__doc__))
