"""How far a vision-language judge agrees with the simulated phone's own check, by the number of screens that it sees
(DistRL's Figure 5).

    python benchmarks/once/judge.py --judge http://localhost:8000/v1 --tasks 100

Every task is played twice: by the oracle to its end, and by the oracle until it stops one to three actions too early
and says that it is done. So half of the episodes succeed, and what fails looks as if it had nearly succeeded.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import envs
from common.errors import EnvFault
from common.lm.evaluator import Album, Evaluator, Watched
from common.lm.run import run_main
from common.lm.serve import served_model
from common.lm.stats import wilson
from distrl import JUDGE_PROMPT


@dataclass
class Args:
    judge: str
    """URL of an OpenAI-compatible server with a vision-language model; its key is read from OPENAI_API_KEY"""
    judge_model: str = ""
    """its name there; empty: the one model that is served"""
    env_id: str = "phone/general"
    """phone/general or phone/shopping"""
    tasks: int = 100
    """tasks of the test split, each played twice"""
    images: tuple[int, ...] = (1, 2, 4, 8)
    """numbers of screens, the last ones"""
    at_once: int = 8
    """questions under way at a time"""


async def play(env, task, moves, album):
    """(the actions, the check's verdict) of an episode; `moves` are the oracle's, or actions."""
    watched, actions = Watched(env, album), []
    obs, info = await watched.reset(task)
    for move in moves:
        actions.append(move if isinstance(move, str) else env.resolve(move, obs))
        obs, *_, info = await watched.step(actions[-1])
    return actions, info["verdict"]


async def episodes(args):
    """(task, actions, screens, verdict) of every episode."""
    env, found = envs.make(args.env_id, screenshots=True, asks=0, late=0), []
    for number, task in enumerate(env.tasks("test")[: args.tasks]):
        album = Album()
        actions, verdict = await play(env, task, env.oracle(task), album)
        found.append((task, actions, album, verdict))
        album = Album()
        early = [*actions[: max(0, len(actions) - 2 - number % 3)], 'exit(message="done")']
        actions, verdict = await play(env, task, early, album)
        found.append((task, actions, album, verdict))
    await env.close()
    return found


async def measure(args):
    judge = Evaluator(args.judge, args.judge_model or served_model(args.judge, "--judge"), JUDGE_PROMPT)
    played, free = await episodes(args), asyncio.Semaphore(args.at_once)

    async def ask(task, actions, album, verdict, count):
        async with free:
            try:
                said = await judge.success(task.instruction, actions[-2:], album.last(count))
            except EnvFault as fault:
                print(f"{task.task_id}: {fault}", file=sys.stderr)
                return None
        return said, verdict

    print("| screens | agreement | successes called so | failures called so | no answer |\n|---|---|---|---|---|")
    for count in args.images:
        replies = await asyncio.gather(*(ask(*episode, count) for episode in played))
        answers = [reply for reply in replies if reply is not None]
        cells = []
        for of in (None, 1.0, 0.0):
            chosen = [said == verdict for said, verdict in answers if of is None or verdict == of]
            share = wilson(sum(chosen), len(chosen))
            cells.append(f"{share.estimate:.3f} [{share.low:.3f}, {share.high:.3f}]")
        print(f"| {count} | {' | '.join(cells)} | {len(replies) - len(answers)} |", flush=True)


if __name__ == "__main__":
    run_main(lambda: measure(tyro.cli(Args, description=__doc__)))
