"""What the scripts that play in their own process begin and end with: the model, the run's folder, a Player."""

import asyncio
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from common.errors import TooManyFaults, UsageError
from common.lm import estimate, learn, llm, parallel, serve
from common.lm.engine import Engine
from common.lm.net import Net
from common.lm.rollout import Player, check_end, within
from common.lm.run import Run


def check_flags(args) -> None:
    """Raises UsageError where flags that several scripts have do not go together, a file is not there, or no engine is
    served: before any model is loaded."""
    if args.engine and not args.lora_rank:
        raise UsageError("--engine needs --lora-rank: it loads the newest adapter, not all weights")
    for flag in ("lockstep", "schedule"):  # grpo_async.py's
        if args.engine and getattr(args, flag, False):
            raise UsageError(f"--{flag} fixes the batches, which --engine leaves to the server: one of them only")
    if args.engine:
        room_of(serve.served_context(args.engine, "--engine"), args.max_new_tokens, f"--engine {args.engine}")
    demos = getattr(args, "demos", "")
    if demos and not Path(demos).is_file():
        raise UsageError(f"--demos {demos}: no such file")


def context_with(args, model) -> float:
    """Tokens that a prompt and its answer may have together for the model, and for the server of --engine."""
    served = serve.served_context(args.engine, "--engine") if args.engine else math.inf
    return min(llm.context_of(model), served)


def room_of(context: float, max_new_tokens: int, whose: str) -> float:
    """Tokens that a prompt may have where prompt and answer have `context` together: those of the longest answer are
    kept free. Raises UsageError where that leaves nothing."""
    if max_new_tokens >= context:
        reason = f"prompt and answer have {context} tokens together"
        raise UsageError(f"{whose}: {reason}, --max-new-tokens {max_new_tokens} leaves no room for a prompt")
    return context - max_new_tokens


def base_model(args) -> tuple:
    """How a script's model is loaded: the first arguments of `llm.load`."""
    return args.model_id, args.lora_rank, args.load_in_4bit, args.gradient_checkpointing


def load_actor(args, vision: bool = False, betas: tuple[float, float] = (0.9, 0.98)) -> Net:
    """Joins the other processes, if there are any, seeds, and loads the model of --model-id. Raises UsageError where it
    cannot be had, or does not go with --prompt-format."""
    parallel.start()
    torch.manual_seed(args.seed)  # before the model: new adapters are drawn
    if args.cpu_threads:
        learn.use_threads(args.cpu_threads)
    elif not getattr(args, "lockstep", False) and not getattr(args, "schedule", ""):  # which promise the same bits
        learn.leave_busy_cores(os.getloadavg()[0])
    model, reader = llm.load(*base_model(args), vision=vision)
    actor = Net(model, reader, args.micro_batch_tokens, args.adam_eps, betas)
    if args.prompt_format == "chat" and not actor.tokenizer.chat_template:
        raise UsageError(f"--prompt-format chat: the tokenizer of {args.model_id} has no chat template")
    return actor


@contextmanager
def session(
    args, script, actor: Net, env, prompt: Callable, save: Callable, work: Callable, **options
) -> Iterator[Player]:
    """A Player on the environment, and in it the run's folder, to the run's end. What the run will cost is said first:
    `work` is the script's function in common/lm/estimate.py. Ctrl-C and too many faults leave a checkpoint
    (`save(player)`, where there is none yet) and say how to go on. `options`: more of Player's."""
    with asyncio.Runner() as runner, Run.create(args, script, args.runs_dir, args.resume) as run:
        stops = llm.stop_ids(actor.model, actor.tokenizer)
        engine = Engine(args.engine, stops) if args.engine else None
        context = context_with(args, actor.model)
        player = Player(
            env,
            actor.model,
            actor.reader,
            within(prompt, room_of(context, args.max_new_tokens, f"--model-id {args.model_id}")),
            run,
            runner,
            num_envs=args.num_envs,
            max_new_tokens=args.max_new_tokens,
            lockstep=args.lockstep,
            engine=engine,
            save=save,
            **options,
        )
        try:
            estimate.begin(args, actor, env, prompt, work, run.say, player.write_action, player.read_action, runner)
            if engine:  # one that loads no such adapters says so now, not after the first hour
                player.publish(actor.model)
            torch.manual_seed(args.seed)
            yield player
            check_end(run, parallel.gather([player.faults]), getattr(args, "judge", ""))
        except (KeyboardInterrupt, TooManyFaults):
            if run.latest() is None:
                save(player)
            run.say(f"checkpoint {run.latest().path}; go on with --resume {run.path}")
            raise
        finally:
            runner.run(env.close())
            if player.engine is not None and parallel.is_main():
                player.engine.close()
