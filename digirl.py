"""DigiRL: training in-the-wild device-control agents with autonomous reinforcement learning (arXiv 2406.11896).

The baseline that DistRL compares with: synchronous rounds of rollouts; a value of the instruction that filters
trajectories, a value of each step that filters actions, and maximum likelihood on what is left. What is here is what
the released code computes: its advantage-weighted regression has weights 0 and 1. Phones are the default; anything that
has episodes can be played, web sites too (--env-id).

    python digirl.py                                  # tiny model, simulated phones, two CPU cores
    python digirl.py --env-id phone/shopping
    python digirl.py --no-filter-trajectories         # also --no-filter-steps: Filtered BC without both
    python digirl.py --model-id Qwen/Qwen2.5-7B-Instruct --num-demos 0 --lora-rank 64 --load-in-4bit
"""

import asyncio
import math
import random
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F

import envs
from common.errors import TooManyFaults, UsageError
from common.lm import fsdp, learn, llm, parallel
from common.lm.args import RunArgs, check_ranges, own_first, parse_args
from common.lm.critic import make_critic, state_values, value_logits
from common.lm.engine import Engine
from common.lm.learn import adamw, mean_loss
from common.lm.rollout import Player
from common.lm.run import Run, run_main
from common.lm.stats import evaluation_metrics, rollout_metrics
from common.replay import read_demos, step_lengths, steps_of
from tools import plot, view


@own_first
@dataclass
class Args(RunArgs):
    lockstep: bool = False
    """let every batch of the policy wait for all episodes: the same seed gives the same metrics, bit for bit on a CPU,
    and so does a run that was killed and resumed (slower)"""

    # the environment
    env_id: str = "phone/general"
    """the environment: phone/general, phone/shopping, arena (envs/__init__.py lists them)"""
    num_envs: int = 8
    """episodes played at once (released: 8 emulators)"""
    max_steps: int = 0
    """longest episode; 0: the task's own (phones: 15 or 20; released: 10 and 20)"""
    screenshots: bool = False
    """keep a screenshot of every step"""
    phone_delay: str = "0"
    """seconds that a step on a simulated phone takes longer than it does, as on real ones: a median, or MEDIAN:SIGMA of
    a lognormal, 2.5:0.6; most of its spread is between episodes"""
    phone_spread: float = 1.0
    """how many times slower the slowest simulated phone is than the fastest"""

    # the model
    model_id: str = "assets/tiny-phone"
    """base language model: a local folder or a hub id"""
    engine: str = ""
    """URL of a vLLM server that samples the actions; needs --lora-rank: after every iteration it loads the new adapter
    (docs/gpu.md)"""
    max_new_tokens: int = 128
    """longest action in tokens (released: 128)"""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """plain text; or the same in the model's chat template; auto: chat where the tokenizer has one"""

    # supervised fine-tuning: the start
    demos: str = ""
    """demonstrations: a trajectories.jsonl of your own; empty: the environment's oracle plays num_demos tasks"""
    num_demos: int = 128
    """demonstrations that the oracle plays on training tasks; 0: none, and no fine-tuning"""
    sft_epochs: int = 3
    """passes over the demonstrations"""
    sft_batch_size: int = 32
    """steps per update of the fine-tuning"""

    # DigiRL
    gamma: float = 0.5
    """discount of the Monte-Carlo return (released: 0.5)"""
    step_cost: float = 0.05
    """subtracted from every advantage (released: 0.05)"""
    filter_trajectories: bool = True
    """instruction-level filter: the actor gets trajectories that went best against the value of their instruction"""
    filter_quantile: float = 0.9
    """those at or above this quantile of the buffer's trajectories (released: 0.9, of all so far)"""
    filter_steps: bool = True
    """step-level filter: the actor gets actions of positive advantage"""
    buffer_size: int = 2000
    """newest trajectories that are drawn from (released: 2000)"""
    batch_trajectories: int = 16
    """trajectories of a round (released: 16)"""
    iterations: int = 600
    """rounds (released: 600)"""
    total_trajectories: int = 0
    """stop at the first round that reaches so many trajectories; 0: at `iterations`"""
    train_seconds: float = 0.0
    """stop at the first round after so many seconds, without those of evaluations and of the start; 0: never"""
    batch_size: int = 128
    """steps per update, drawn uniformly with replacement (released: 32 times 4)"""
    instruction_updates: int = 5
    """updates of the instruction-level value a round (released: 5)"""
    step_updates: int = 5
    """updates of the step-level value a round (released: 5)"""
    actor_updates: int = 20
    """updates of the actor a round (released: 20)"""
    learning_rate: float = 1e-5
    """the actor's rate (released: 1e-4, of AutoUI's 1.3 B parameters)"""
    critic_learning_rate: float = 1e-5
    """the values' rate (released: 1e-4)"""
    max_grad_norm: float = 1.0
    """clip of the norm of the actor's gradient (released: 0.01; the values' and the fine-tuning's: 1)"""

    # evaluation
    eval_every: int = 20
    """rounds between two evaluations"""
    eval_tasks: int = 96
    """tasks of the eval split, played greedily"""
    test_tasks: int = 96
    """tasks of the test split played at the start and at the end (released: 96)"""
    test_before: bool = True
    """play them at the start, too"""
    save_every: int = 20
    """rounds between two checkpoints"""


# What the tiny model needs instead; docs/digirl.md explains each.
TINY = dict(
    num_envs=32,
    cpu_threads=2,
    max_new_tokens=40,
    num_demos=100,
    sft_learning_rate=1e-3,
    sft_epochs=8,
    sft_batch_size=16,
    gamma=1.0,
    filter_quantile=0.5,
    batch_trajectories=64,
    iterations=30,
    batch_size=16,
    instruction_updates=8,
    step_updates=20,
    actor_updates=20,
    learning_rate=2e-4,
    critic_learning_rate=3e-4,
    max_grad_norm=0.1,
    micro_batch_tokens=1536,
    adam_eps=3e-5,
    eval_every=10,
    eval_tasks=60,
    test_tasks=200,
    save_every=5,
)


# ------------------------------------------------------------------------------------------------------- the equations
def returns(rewards, gamma):
    """Monte-Carlo returns G_t = sum_{k >= t} gamma^{k-t} r_k of one trajectory. [T] -> [T]."""
    found, following = [], 0.0
    for reward in reversed(rewards.unbind()):
        following = reward + gamma * following
        found.append(following)
    return torch.stack(found[::-1])


def step_advantages(outcomes, values, gamma, step_cost):
    """Step level: A_t = V(s_{t+1}) - V(s_t) - cost + r_t + G_t. outcomes r [T]; values [T + 1], the last one that of
    the state after the end -> [T]."""
    return values[1:] - values[:-1] - step_cost + outcomes + returns(outcomes, gamma)


def trajectory_scores(outcomes, instruction_values):
    """Instruction level: how much better a trajectory went than its instruction lets expect. [M], [M] -> [M]."""
    return outcomes - instruction_values


def at_least_quantile(scores, quantile):
    """Which scores are at or above the quantile of all; ties stay. [M] -> bool [M]."""
    return scores >= torch.quantile(scores, quantile)


def policy_loss(logprobs, advantages):
    """Maximum likelihood on actions of positive advantage: -mean(1[A > 0] log pi). Log-probs of whole actions and
    advantages [N]; scalar."""
    return -(logprobs * (advantages > 0)).mean()


def value_loss(value_logits, labels):
    """Cross-entropy of a value and 1[G > 0]. [N], [N]; scalar."""
    return F.binary_cross_entropy_with_logits(value_logits, labels.to(value_logits.dtype))


# -------------------------------------------------------------------------------------------------------- the networks
@dataclass
class Learner:
    """The networks, their optimisers and the script's random state: what a checkpoint holds."""

    actor: torch.nn.Module
    tokenizer: object
    rng: random.Random
    optimizer: torch.optim.Optimizer | None = None
    values: dict = field(default_factory=dict)  # "instruction" and "step": their networks
    value_optimizers: dict = field(default_factory=dict)
    iteration: int = -1  # the last one done; 0: fine-tuned
    updates: int = 0
    seconds: float = 0.0  # of the rounds, evaluations left out


COUNTS = "iteration", "updates", "seconds"


def save(learner, player):
    """A checkpoint: the actor as a Hugging Face folder, what the values learn, optimisers and generators."""
    weights = {"actor": [fsdp.to_save(learner.actor), learner.tokenizer]}
    states = {"rng": learner.rng.getstate(), "torch": torch.get_rng_state()}
    if learner.optimizer is not None:
        states["actor"] = fsdp.optimizer_state(learner.optimizer)
    for name, network in learner.values.items():
        weights[name] = fsdp.trained(network)
        states[name] = fsdp.optimizer_state(learner.value_optimizers[name])
    counts = {name: getattr(learner, name) for name in COUNTS}
    state = {"counts": counts, "player": player.state()}
    player.run.save_checkpoint(player.steps, weights, states, state)


def restore(learner, buffer, player, args):
    """Everything as it was at the run's last checkpoint."""
    run = player.run
    checkpoint = run.resumed
    state, tensors = checkpoint.state, checkpoint.tensors()
    vars(learner).update(state["counts"])
    if learner.iteration < 0:  # stopped before there was anything to go on from
        run.start_over()
        return
    make_learner(learner, args)
    llm.load_trained(learner.actor, checkpoint.folder("actor"))
    fsdp.load_optimizer(learner.optimizer, tensors["actor"])
    for name, network in learner.values.items():
        fsdp.fill(network, checkpoint.weights(name))  # the rest is the same base
        fsdp.load_optimizer(learner.value_optimizers[name], tensors[name])
    buffer.extend(t for t in run.trajectories if t.kind == "rollout")
    player.set_state(state["player"])
    player.publish(learner.actor)
    learner.rng.setstate(tensors["rng"])
    torch.set_rng_state(tensors["torch"])


def base_model(args):
    return args.model_id, args.lora_rank, args.load_in_4bit, args.gradient_checkpointing


def make_learner(learner, args):
    """The optimiser of reinforcement learning, and the two values from the fine-tuned policy."""
    learner.optimizer = make_optimizer(learner.actor, args.learning_rate, args)
    learner.values = {name: make_critic(learner.actor) for name in ("instruction", "step")}
    rate = args.critic_learning_rate
    learner.value_optimizers = {name: make_optimizer(v, rate, args) for name, v in learner.values.items()}


def make_optimizer(model, learning_rate, args):
    """AdamW over what is trained of a model."""
    return adamw(model, learning_rate, betas=(0.9, 0.98), eps=args.adam_eps, weight_decay=0.01)


# --------------------------------------------------------------------------------------------------------- the prompts
def agent_prompt(tokenizer, instruction, steps, obs, prompt_format="auto"):
    """The agent's prompt as token ids: instruction, action history, current screen.

    steps: those so far (plain: their actions' token ids as they were sampled); obs: the environment's observation.
    """
    stop = llm.end_of_turn(tokenizer)
    past = [[i for i in step.action_ids if i != stop] for step in steps]
    if prompt_format == "chat" or (prompt_format == "auto" and tokenizer.chat_template):
        task = agent_task(instruction, [tokenizer.decode(ids) for ids in past], obs)
        return llm.chat_prompt(tokenizer, AGENT_SYSTEM_PROMPT, task)
    instruction, page = (llm.without_special_tokens(tokenizer, text) for text in (instruction, page_and_error(obs)))
    ids = tokenizer.encode(f"Task Instruction: {instruction}\nAction History:\n", add_special_tokens=False)
    newline = tokenizer.encode("\n", add_special_tokens=False)
    for action in past:
        ids += action + newline
    return ids + tokenizer.encode(f"{page}Action:\n", add_special_tokens=False)


def page_and_error(obs):
    """The observation as a prompt shows it: the page, and why the last action was refused, if it was."""
    error = f'error "{obs["error"]}"\n' if obs["error"] else ""
    return f"{obs['text']}\n{error}"


def agent_task(instruction, actions, obs):
    """What a chat model is told besides AGENT_SYSTEM_PROMPT: the instruction, its answers so far, the page."""
    history = "".join(f"{action}\n" for action in actions)
    return f"Task Instruction: {instruction}\nAction History:\n{history}{page_and_error(obs)}"


AGENT_SYSTEM_PROMPT = """You operate an Android phone to do the user's task. You see the task, your actions so far and
the screen as text, where what can be touched has a number. Answer with one action and nothing else:
do(action="Click", element="3"), or "Double Click", or "Right Click" for a long press
do(action="Type", argument="some text", element="3") into a box or, a percentage, onto a slider; "Search" presses Enter
after it
do(action="Press", argument="Back"), or "Home", "Enter", "Recents", "Delete"
do(action="Scroll Down"), do(action="Scroll Up"), do(action="Wait")
exit(message="the answer, N/A if the task cannot be done, or done")
Before it, say in a line what the element is (# Element: ...)."""


# --------------------------------------------------------------------------------------------------------- the updates
def values_of(learner, name, states, args):
    pad_id = learner.tokenizer.pad_token_id
    return torch.tensor(state_values(learner.values[name], states, pad_id, args.micro_batch_tokens))


def filtered(learner, trajectories, args):
    """Instruction level: the trajectories that the actor gets."""
    if not args.filter_trajectories:
        return list(trajectories)
    values = values_of(learner, "instruction", [list(t.steps[0].prompt_ids) for t in trajectories], args)
    scores = trajectory_scores(torch.tensor([t.reward for t in trajectories]), values)
    keep = at_least_quantile(scores, args.filter_quantile)
    return [t for t, kept in zip(trajectories, keep.tolist(), strict=True) if kept]


def outcomes_of(trajectory):
    """Rewards [T]: the outcome at the last step."""
    outcomes = torch.zeros(len(trajectory.steps))
    outcomes[-1] = trajectory.reward
    return outcomes


def set_advantages(learner, trajectories, args):
    """Step level: each step's `value` and `advantage`; 1 where actions are not filtered."""
    states = [list(step.prompt_ids) for step in steps_of(trajectories)]
    values = iter(values_of(learner, "step", states, args).tolist())
    for trajectory in trajectories:
        value = torch.tensor([*(next(values) for _ in trajectory.steps), 0.0])
        advantage = step_advantages(outcomes_of(trajectory), value, args.gamma, args.step_cost)
        for step, v, a in zip(trajectory.steps, value.tolist(), advantage.tolist()):
            step.value, step.advantage = v, a if args.filter_steps else 1.0


def drawn(items, args, rng):
    """A batch, uniformly with replacement."""
    return rng.choices(items, k=args.batch_size)


def update_values(learner, buffer, args):
    """The two classifiers, on everything in the buffer. Metrics."""
    starts = [(list(t.steps[0].prompt_ids), t.reward) for t in buffer]
    labels = {t: (returns(outcomes_of(t), args.gamma) > 0).float().tolist() for t in buffer}
    states = [(list(step.prompt_ids), labels[step.trajectory][step.t]) for step in steps_of(buffer)]
    return {
        "losses/instruction_value_loss": fit(learner, "instruction", starts, args.instruction_updates, args),
        "losses/step_value_loss": fit(learner, "step", states, args.step_updates, args),
    }


def fit(learner, name, examples, updates, args):
    """Cross-entropy of a value on (token ids, label) examples; the mean loss."""
    network, optimizer, pad_id = learner.values[name], learner.value_optimizers[name], learner.tokenizer.pad_token_id

    def loss_sum(part):
        logits = value_logits(network, [state for state, _ in part], pad_id)
        labels = torch.tensor([label for _, label in part], device=logits.device)
        return value_loss(logits, labels) * len(part)

    def lengths(part):
        return [len(state) for state, _ in part]

    batches = [drawn(examples, args, learner.rng) for _ in range(updates)]
    losses, _ = learn.descend(network, optimizer, loss_sum, batches, lengths, args.micro_batch_tokens)
    return mean_loss(losses, "value")


def update_actor(learner, trajectories, args):
    """Maximum likelihood on the actions that passed both filters. Metrics."""
    actor, steps = learner.actor, steps_of(trajectories)

    def loss_sum(part):
        prompts, actions = [step.prompt_ids for step in part], [step.action_ids for step in part]
        logprobs, _ = llm.token_logprobs(actor, learner.tokenizer, prompts, actions, args.temperature)
        logprobs = logprobs.sum(dim=1)  # [N] log pi of the whole action
        advantages = torch.tensor([step.advantage for step in part], device=logprobs.device)
        return policy_loss(logprobs, advantages) * len(part)

    batches, counts = [], []
    for _ in range(args.actor_updates):
        batch = drawn(steps, args, learner.rng)
        if good := [step for step in batch if step.advantage > 0]:  # the others add 0
            batches.append(good)
            counts.append(len(batch))
    losses, norms = learn.descend(
        actor, learner.optimizer, loss_sum, batches, step_lengths, args.micro_batch_tokens, args.max_grad_norm, counts
    )
    learner.updates += len(batches)
    trained = sum(map(len, batches))
    metrics = {"losses/trained_steps": trained, "losses/passed_trajectories": len(trajectories)}
    if losses:
        norm = torch.stack(norms).mean().item()
        metrics |= {"losses/policy_loss": mean_loss(losses, "actor"), "losses/grad_norm": norm}
    return metrics


def fine_tune(learner, demos, args, updates=0):
    """Supervised fine-tuning on demonstrations; `updates` as in learn.fine_tune. The last pass's mean loss."""
    actor, tokenizer = learner.actor, learner.tokenizer

    def loss_sum(part):
        prompts, actions = [step.prompt_ids for step in part], [step.action_ids for step in part]
        return -llm.token_logprobs(actor, tokenizer, prompts, actions)[0].sum()

    optimizer = make_optimizer(actor, args.sft_learning_rate, args)
    return learn.fine_tune(actor, optimizer, steps_of(demos), loss_sum, args, updates)


# ------------------------------------------------------------------------------------------------------------ the loop
def draw_tasks(tasks, count, rng):
    """`count` of the tasks at random, none a second time before all have had their turn."""
    return [task for _ in range(math.ceil(count / len(tasks))) for task in rng.sample(tasks, len(tasks))][:count]


def evaluate(player, tasks, name, iteration):
    """Greedy episodes at seeds that are the same for every run: (trajectories, metrics)."""
    trajectories = player.play(tasks, 0.0, 1234, name, iteration)
    player.run.trajectories.append(trajectories)
    return trajectories, evaluation_metrics(trajectories, name.replace(" ", "_"))


def start_actor(learner, player, train_tasks, test_tasks, args):
    """Supervised fine-tuning on demonstrations, and what the start can do: its test episodes."""
    run, metrics, before, demos = player.run, {}, [], []
    if args.demos:
        demos = read_demos(args.demos, player.prompt, player.encode_action, train_tasks)
    elif args.num_demos:
        demos = player.demonstrate(learner.rng.sample(train_tasks, min(len(train_tasks), args.num_demos)))
    if (args.demos or args.num_demos) and not demos:
        raise UsageError("there is no demonstration of a success: --demos FILE, --num-demos N, or 0 for none")
    if demos:
        run.trajectories.append(demos)
        run.say(f"{len(demos)} demonstrations of {len(steps_of(demos))} steps: fine-tuning")
        with run.timer("training"):
            metrics["losses/sft_loss"] = fine_tune(learner, demos, args)
        run.save_start(fsdp.to_save(learner.actor), learner.tokenizer)
    player.publish(learner.actor)
    if args.test_before and test_tasks:
        before, tested = evaluate(player, test_tasks, "test before", 0)
        metrics |= tested
        run.report("start", tested, "test_before/success")
    make_learner(learner, args)
    learner.iteration = 0
    run.log({**metrics, "charts/iteration": 0}, player.steps)
    save(learner, player)
    return before


def train(args, env, run, player, learner):
    """Fine-tuning, then rounds: rollouts, all waited for; the values, the filters and the actor."""
    train_tasks, eval_tasks, test_tasks = (tasks_of(env, split, args) for split in ("train", "eval", "test"))
    eval_tasks, test_tasks = some(eval_tasks, args.eval_tasks), some(test_tasks, args.test_tasks)
    buffer = deque(maxlen=args.buffer_size)
    before = begin(args, env, run, player, learner, buffer, train_tasks, test_tasks)
    while not finished(learner, args):
        begun = time.monotonic()
        learner.iteration += 1
        tasks = draw_tasks(train_tasks, args.batch_trajectories, learner.rng)
        seed = args.seed * 1000 + learner.iteration
        rollouts = player.play(tasks, args.temperature, seed, "rollouts", learner.iteration)
        rollouts = [t for t in rollouts if t.verdict is not None]  # the others' outcome is not known
        for trajectory in rollouts:
            trajectory.reward = float(bool(trajectory.verdict) and trajectory.outcome == "exit")
        run.trajectories.append(rollouts)
        player.steps += sum(len(t.steps) for t in rollouts)
        buffer.extend(rollouts)
        metrics = rollout_metrics(rollouts) | {"replay/size": len(buffer)}
        with run.timer("training"):
            metrics |= update_values(learner, buffer, args)
            passed = filtered(learner, buffer, args)
            set_advantages(learner, passed, args)
            steps = steps_of(passed)
            metrics["replay/passed_success"] = sum(t.reward for t in passed) / max(1, len(passed))
            metrics["losses/positive"] = sum(step.advantage > 0 for step in steps) / max(1, len(steps))
            metrics |= update_actor(learner, passed, args)
        player.version += 1
        player.publish(learner.actor)
        learner.seconds += time.monotonic() - begun
        metrics |= player.metrics()
        if learner.iteration % args.eval_every == 0 and eval_tasks:
            metrics |= evaluate(player, eval_tasks, "eval", learner.iteration)[1]
            shown = "rollout/reward", "replay/passed_success", "losses/positive", "losses/policy_loss", "eval/success"
            run.report(f"iteration {learner.iteration}, {player.steps} steps", metrics, *shown)
        metrics |= {"charts/iteration": learner.iteration, "charts/updates": learner.updates}
        metrics["charts/trajectories"] = learner.iteration * args.batch_trajectories
        run.log(metrics | {"charts/seconds": learner.seconds}, player.steps)
        if learner.iteration % args.save_every == 0:
            save(learner, player)
    finish(run, player, learner, before, test_tasks)


def finished(learner, args):
    trajectories = learner.iteration * args.batch_trajectories
    enough = learner.iteration >= args.iterations or 0 < args.total_trajectories <= trajectories
    return enough or 0 < args.train_seconds <= learner.seconds


def begin(args, env, run, player, learner, buffer, train_tasks, test_tasks):
    """The fine-tuned start, or the run as it was at its last checkpoint; the start's test episodes. Raises UsageError
    where nothing would say what succeeded."""
    torch.manual_seed(args.seed)
    if args.cpu_threads:
        learn.use_threads(args.cpu_threads)
    if not any(envs.has_check(env, task) for task in train_tasks):
        reason = "nothing says what succeeded: distrl.py --algorithm digirl --judge-url URL asks a judge"
        raise UsageError(f"{args.env_id}: no training task has a check of its own, {reason}")
    run.say(f"run folder {run.path}")
    if run.resumed:
        restore(learner, buffer, player, args)
    if learner.iteration < 0:
        return start_actor(learner, player, train_tasks, test_tasks, args)
    return [t for t in run.trajectories if t.kind == "test before"]


def finish(run, player, learner, before, test_tasks):
    """The test, the summary and the pages."""
    if run.latest().state["counts"] != {name: getattr(learner, name) for name in COUNTS}:
        save(learner, player)
    after, metrics = evaluate(player, test_tasks, "test after", learner.iteration)
    run.log({**metrics, "charts/iteration": learner.iteration}, player.steps)
    if after:
        run.summary(before, after)
    if parallel.is_main():
        print(f"Episodes    {view.write(run.path, view.Args(run=str(run.path), last=2))}")
        print(f"Plots       {', '.join(str(file) for file in plot.write(plot.Args(runs=(str(run.path),))))}")


def tasks_of(env, split, args):
    return [replace(task, max_steps=args.max_steps or task.max_steps) for task in env.tasks(split)]


def some(tasks, count):
    """So many of the tasks, spread evenly over all: neighbours in the list are alike."""
    return [tasks[i * len(tasks) // count] for i in range(count)] if count < len(tasks) else tasks


def main(args):
    args.env_id = envs.full_name(args.env_id)
    at_least_1 = """num_envs max_new_tokens sft_epochs sft_batch_size batch_trajectories batch_size micro_batch_tokens
    iterations buffer_size instruction_updates step_updates actor_updates eval_every save_every phone_spread"""
    check_ranges(args, at_least_1, shares="filter_quantile gamma", any_value="step_cost")
    if args.engine and not args.lora_rank:
        raise UsageError("--engine needs --lora-rank: after every iteration it loads an adapter, not all weights")
    if args.engine and args.lockstep:
        raise UsageError("--lockstep fixes the batches, which --engine leaves to the server: one of them only")
    if args.demos and not Path(args.demos).is_file():
        raise UsageError(f"--demos {args.demos}: no such file")
    parallel.start()
    torch.manual_seed(args.seed)  # before the model: new adapters are drawn
    learner = Learner(*llm.load(*base_model(args)), random.Random(args.seed))
    if args.prompt_format == "chat" and not learner.tokenizer.chat_template:
        raise UsageError(f"--prompt-format chat: the tokenizer of {args.model_id} has no chat template")
    paces = {"phone_delay": args.phone_delay, "phone_spread": args.phone_spread}
    is_phone = args.env_id.startswith("phone")
    env = envs.make(args.env_id, screenshots=args.screenshots, **paces if is_phone else {})
    with asyncio.Runner() as runner, Run.create(args, __file__, args.runs_dir, args.resume) as run:

        def prompt(instruction, steps, obs):
            return agent_prompt(learner.tokenizer, instruction, steps, obs, args.prompt_format)

        player = Player(
            env,
            learner.actor,
            learner.tokenizer,
            prompt,
            run,
            runner,
            num_envs=args.num_envs,
            max_new_tokens=args.max_new_tokens,
            lockstep=args.lockstep,
            engine=Engine(args.engine, llm.stop_ids(learner.actor, learner.tokenizer)) if args.engine else None,
        )
        try:
            train(args, env, run, player, learner)
        except (KeyboardInterrupt, TooManyFaults):
            if run.latest() is None:
                save(learner, player)
            run.say(f"checkpoint {run.latest().path}; go on with --resume {run.path}")
            raise
        finally:
            runner.run(env.close())


if __name__ == "__main__":
    run_main(lambda: main(parse_args(Args, {"tiny": TINY})))
