"""Where webrl.py's time goes on this machine, and how its three loops compare with the plain way to write them.

    python benchmarks/once/speed.py --model runs/RUN --write-docs        # the actor of its last checkpoint; 5 minutes

- Episodes a minute with 1 to 16 concurrent browser contexts, and the share of the wall time in model calls.
- Generated tokens a second of `llm.generate`, one call for the episodes that wait (half of them, as in the rollouts),
  against `model.generate` called for one episode at a time, on the same prompts, without a browser beside it.
- Training tokens a second (padding not counted) of the fine-tuning against the Hugging Face Trainer, on the same model,
  steps and batch size.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import envs
import webrl
from benchmarks.docs import write_docs
from common.lm import checkpoint, learn, llm
from common.lm.args import values_of
from common.lm.net import Net
from common.lm.rollout import Player
from common.lm.run import Run, run_main
from common.replay import steps_of

DOCS = ROOT / "docs/webrl.md"
TINY = values_of(webrl.Args, "tiny")


@dataclass
class Args:
    model: str = "assets/tiny"
    """a run's folder (the actor of its last checkpoint) or a model"""
    contexts: tuple[int, ...] = (1, 2, 4, 8, 16)
    """concurrent episodes"""
    episodes: int = 96
    """training tasks played with each number of contexts (a quarter of it with one and two)"""
    steps: int = 1200
    """steps of demonstrations that both trainers learn from"""
    seed: int = 1
    """draws the tasks"""
    write_docs: bool = False
    """put the tables into docs/webrl.md"""


def play(args, folder, model, tokenizer, contexts, env, runner):
    """Episodes with that many contexts: (a row's figures, the trajectories)."""
    settings = replace(webrl.Args(), **TINY, env_id="arena-v1", seed=args.seed)
    run = Run.create(settings, __file__, folder)

    def prompt(instruction, steps, obs):
        return webrl.agent_prompt(tokenizer, instruction, steps, obs)

    player = Player(env, model, tokenizer, prompt, run, runner, contexts, settings.max_new_tokens)
    tasks = random.Random(args.seed).sample(env.tasks("train"), args.episodes)
    runner.run(env.reset(tasks[0]))  # the browser has started
    player.play(tasks[:contexts], 1.0, 0, "warm-up", kind="rollout")
    if contexts < 4:
        tasks = tasks[: max(4, len(tasks) // 4)]
    run.timer.seconds.clear()
    run.timer.metrics()
    run.timer.seconds.clear()
    start, tokens = time.perf_counter(), player.tokens
    played = player.play(tasks, 1.0, 1, f"{contexts} contexts", kind="rollout")
    seconds = time.perf_counter() - start
    generating = run.timer.metrics()["time/generation"]
    for slot in player.envs[1:]:
        runner.run(slot.close())
    steps = sum(len(t.steps) for t in played)
    figures = (60 * len(played) / seconds, steps / seconds, generating / seconds, (player.tokens - tokens) / generating)
    return figures, played


def plain_generation(model, tokenizer, prompts):
    """Tokens a second of transformers' own generate, one prompt a call, as a loop over one episode would."""
    settings = dict(
        do_sample=True,
        max_new_tokens=TINY["max_new_tokens"],
        pad_token_id=tokenizer.pad_token_id,
    )
    tokens, start = 0, time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt.tolist()])
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
        tokens += out.shape[1] - ids.shape[1]
    return tokens / (time.perf_counter() - start)


def batched_generation(model, tokenizer, prompts, size):
    """Tokens a second of `llm.generate` on the same prompts, `size` a call."""
    tokens, start = 0, time.perf_counter()
    for first in range(0, len(prompts), size):
        batch = prompts[first : first + size]
        seeds = range(first, first + len(batch))
        tokens += sum(len(c.ids) for c in llm.generate(model, tokenizer, batch, seeds, 1.0, TINY["max_new_tokens"]))
    return tokens / (time.perf_counter() - start)


def our_training(model_id, demos):
    """Training tokens a second of `Net.fine_tune`."""
    args = replace(webrl.Args(), **TINY)
    learn.use_threads(args.cpu_threads)
    actor = Net(*llm.load(model_id), args.micro_batch_tokens, args.adam_eps)
    start = time.perf_counter()
    actor.fine_tune(steps_of(demos), args)
    return count_tokens(demos) / (time.perf_counter() - start)


def trainer(model_id, demos, folder, threads):
    """Training tokens a second of the Hugging Face Trainer at the same batch size, batches of like lengths."""
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    torch.set_num_threads(threads)
    model, tokenizer = llm.load(model_id)
    rows = []
    for demo in demos:
        for step in demo.steps:
            prompt, action = step.prompt_ids.tolist(), list(step.action_ids)
            rows.append({"input_ids": prompt + action, "labels": [-100] * len(prompt) + action})
    settings = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=TINY["sft_batch_size"],
        learning_rate=TINY["sft_learning_rate"],
        num_train_epochs=1,
        train_sampling_strategy="group_by_length",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    collate = DataCollatorForSeq2Seq(tokenizer, model=None)
    learner = Trainer(model=model, args=settings, train_dataset=rows, data_collator=collate)
    start = time.perf_counter()
    learner.train()
    return count_tokens(demos) / (time.perf_counter() - start)


def count_tokens(demos):
    return sum(len(s.prompt_ids) + len(s.action_ids) for demo in demos for s in demo.steps)


def demonstrations(args, tokenizer, env, runner, folder):
    """The oracle's episodes, as many as have `steps` steps."""
    run = Run.create(replace(webrl.Args(), seed=args.seed), __file__, folder)

    def prompt(instruction, steps, obs):
        return webrl.agent_prompt(tokenizer, instruction, steps, obs)

    model, _ = llm.load("assets/tiny")
    player = Player(env, model, tokenizer, prompt, run, runner, max(args.contexts), 48)
    return player.demonstrate(random.Random(args.seed).sample(env.tasks("train"), args.steps // 5))


def main(args):
    """Measure, print, and write the tables where it is asked for."""
    last = checkpoint.latest(args.model)
    model_id = str(last.folder("actor")) if last else args.model
    model, tokenizer = llm.load(model_id)
    length = TINY["page_tokens"]
    torch.set_num_threads(1)
    lines = ["| contexts | episodes a minute | steps a second | wall time in model calls | tokens a second in these |"]
    lines += ["|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        env = envs.make("arena-v1", page_tokens=length, count_tokens=lambda text: len(tokenizer.encode(text)))
        try:
            for contexts in args.contexts:
                figures, played = play(args, folder, model, tokenizer, contexts, env, runner)
                lines.append("| {} | {:.0f} | {:.1f} | {:.0%} | {:.0f} |".format(contexts, *figures))
                print(lines[-1], flush=True)
            demos = demonstrations(args, tokenizer, env, runner, folder)
        finally:
            runner.run(env.close())
        prompts = [step.prompt_ids for t in played for step in t.steps][:200]
        size = max(1, args.contexts[-1] // 2)
        plain, batched = [], []
        for threads in (1, os.cpu_count()):
            torch.set_num_threads(threads)
            plain.append(plain_generation(model, tokenizer, prompts))
            batched.append(batched_generation(model, tokenizer, prompts, size))
        ours = our_training("assets/tiny", demos)
        theirs = {threads: trainer("assets/tiny", demos, folder, threads) for threads in (1, os.cpu_count())}
    best, batch, most = max(plain), max(batched), max(theirs.values())
    both = f"the better of 1 and {os.cpu_count()} threads"
    lines += [
        "",
        f"Generation, no browser beside it: {batch:.0f} tokens a second with {size} prompts a call; {best:.0f} with a "
        f"`model.generate` for each prompt ({both}): {batch / best:.1f} times.",
        "",
        f"Training: {ours:,.0f} tokens a second; Hugging Face Trainer {most:,.0f} ({both}): {ours / most:.1f} times.",
    ]
    text = "\n".join(lines)
    print(text)
    if args.write_docs:
        write_docs(DOCS, "speed", text)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
