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

import common.interrupt  # noqa: F401  # isort: skip

import math
import random
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F

import envs
from common.errors import UsageError
from common.lm import estimate, net, parallel
from common.lm.args import RunArgs, check_ranges, own_first, parse_args, preset
from common.lm.learn import mean_loss
from common.lm.net import Net, value_net
from common.lm.phone_prompts import AGENT_SYSTEM_PROMPT, agent_prompt, agent_task  # noqa: F401 (tools)
from common.lm.run import run_main
from common.lm.session import check_flags, load_actor, session
from common.lm.stats import evaluation_metrics, rollout_metrics
from common.replay import prompt_lengths, read_demos, steps_of
from tools import plot, view


@own_first
@dataclass
class Args(RunArgs):
    # of those that all scripts share (common/lm/args.py)
    cpu_threads: int = preset(0, tiny=2)
    sft_learning_rate: float = preset(1e-5, tiny=1e-3, small=1.5e-4)
    micro_batch_tokens: int = preset(16384, tiny=1536, small=1024)
    adam_eps: float = preset(1e-8, tiny=3e-5, small=1e-8)

    lockstep: bool = False
    """let every batch of the policy wait for all episodes: the same seed gives the same metrics, bit for bit on a CPU,
    and so does a run that was killed and resumed (slower)"""

    # the environment
    env_id: str = "phone/general"
    """the environment: phone/general, phone/shopping, arena (envs/__init__.py lists them)"""
    num_envs: int = preset(8, tiny=32, small=16, smoke=4)
    """episodes played at once (released: 8 emulators)"""
    max_steps: int = 0
    """longest episode; 0: the task's own (phones: 15 or 20; released: 10 and 20)"""
    judge_states: bool = preset(True, tiny=False)
    """ask the check after every step, and end a successful episode there (released); off: at its exit alone"""
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
    max_new_tokens: int = preset(128, tiny=40, small=64)
    """longest action in tokens (released: 128)"""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """plain text; or the same in the model's chat template; auto: chat where the tokenizer has one"""

    # supervised fine-tuning: the start
    demos: str = ""
    """demonstrations: a trajectories.jsonl of your own; empty: the environment's oracle plays num_demos tasks"""
    num_demos: int = preset(128, tiny=100, small=48, smoke=12)
    """demonstrations that the oracle plays on training tasks; 0: none, and no fine-tuning"""
    sft_epochs: int = preset(3, tiny=8, small=3, smoke=2)
    """passes over the demonstrations"""
    sft_batch_size: int = preset(32, tiny=16, small=4)
    """steps per update of the fine-tuning"""

    # DigiRL
    gamma: float = preset(0.5, tiny=1.0)
    """discount of the Monte-Carlo return (released: 0.5)"""
    step_cost: float = 0.05
    """subtracted from every advantage (released: 0.05)"""
    filter_trajectories: bool = True
    """instruction-level filter: the actor gets trajectories that went best against the value of their instruction"""
    filter_quantile: float = preset(0.9, tiny=0.5)
    """those at or above this quantile of the buffer's trajectories (released: 0.9, of all so far)"""
    filter_steps: bool = True
    """step-level filter: the actor gets actions of positive advantage"""
    buffer_steps: int = preset(2000, tiny=10000)
    """newest steps that are drawn from, in whole trajectories (released: 2000)"""
    batch_trajectories: int = preset(16, tiny=64, small=48, smoke=8)
    """trajectories of a round (released: 16)"""
    iterations: int = preset(600, tiny=30, small=6, smoke=3)
    """rounds (released: 600)"""
    total_trajectories: int = 0
    """stop at the first round that reaches so many trajectories; 0: at `iterations`"""
    train_seconds: float = 0.0
    """stop at the first round after so many seconds, without those of evaluations and of the start; 0: never"""
    batch_size: int = preset(128, tiny=16, small=8)
    """steps per update, drawn uniformly with replacement (released: 32 times 4)"""
    instruction_batch_size: int = preset(256, tiny=16)
    """trajectories per update of the instruction-level value (released: 32 times 8)"""
    instruction_updates: int = preset(5, tiny=8, smoke=2)
    """updates of the instruction-level value a round (released: 5)"""
    step_updates: int = preset(5, tiny=20, smoke=2)
    """updates of the step-level value a round (released: 5)"""
    actor_updates: int = preset(20, tiny=20, smoke=4)
    """updates of the actor a round (released: 20)"""
    learning_rate: float = preset(1e-4, tiny=2e-4, small=2e-5)
    """the actor's rate (released: 1e-4, of AutoUI's 1.3 B parameters)"""
    critic_learning_rate: float = preset(1e-4, tiny=3e-4, small=3e-5)
    """the values' rate (released: 1e-4)"""
    max_grad_norm: float = preset(0.01, tiny=0.1)
    """clip of the norm of the actor's gradient (released: 0.01; the fine-tuning's: 1)"""
    critic_max_grad_norm: float = preset(0.01, tiny=1.0)
    """the same of the values' (released: 0.01)"""

    # evaluation
    eval_every: int = preset(20, tiny=10, smoke=2)
    """rounds between two evaluations"""
    eval_tasks: int = preset(96, tiny=60, small=16, smoke=3)
    """tasks of the eval split, played greedily"""
    test_tasks: int = preset(96, tiny=200, small=100, smoke=6)
    """tasks of the test split played at the start and at the end (released: 96)"""
    test_before: bool = True
    """play them at the start, too"""
    save_every: int = preset(20, tiny=5, smoke=2)
    """rounds between two checkpoints"""


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
    """The networks and the script's random state: what a checkpoint holds."""

    actor: Net
    rng: random.Random
    values: dict = field(default_factory=dict)  # "instruction" and "step": their Nets
    iteration: int = -1  # the last one done; 0: fine-tuned
    updates: int = 0
    seconds: float = 0.0  # of the rounds, evaluations left out


COUNTS = "iteration", "updates", "seconds"


def save(learner, player):
    """A checkpoint: the actor as a Hugging Face folder, what the values learn, optimisers and generators."""
    counts = {name: getattr(learner, name) for name in COUNTS}
    state = {"counts": counts, "player": player.state()}
    nets = {"actor": learner.actor} | learner.values
    player.run.save_checkpoint(player.steps, *net.states_of(nets, learner.rng), state)


def restore(learner, buffer, player, args):
    """Everything as it was at the run's last checkpoint."""
    run, state = player.run, player.run.resumed.state
    vars(learner).update(state["counts"])
    if learner.iteration < 0:  # stopped before there was anything to go on from
        run.start_over()
        return
    make_learner(learner, args)
    net.restore(run, {"actor": learner.actor} | learner.values, learner.rng)
    store(buffer, [t for t in run.trajectories if t.kind == "rollout"], args.buffer_steps)
    player.set_state(state["player"])
    player.publish(learner.actor.model)


def make_learner(learner, args):
    """The optimiser of reinforcement learning, and the two values from the fine-tuned policy."""
    learner.actor.begin(args.learning_rate)
    names = "instruction", "step"
    learner.values = {name: value_net(learner.actor).begin(args.critic_learning_rate) for name in names}


# --------------------------------------------------------------------------------------------------------- the updates
def filtered(learner, trajectories, args):
    """Instruction level: the trajectories that the actor gets."""
    if not args.filter_trajectories:
        return list(trajectories)
    values = learner.values["instruction"].values([t.steps[0].prompt_ids for t in trajectories])
    scores = trajectory_scores(torch.tensor([t.reward for t in trajectories]), torch.tensor(values))
    keep = at_least_quantile(scores, args.filter_quantile)
    return [t for t, kept in zip(trajectories, keep.tolist(), strict=True) if kept]


def outcomes_of(trajectory):
    """Rewards [T]: the outcome at the last step."""
    outcomes = torch.zeros(len(trajectory.steps))
    outcomes[-1] = trajectory.reward
    return outcomes


def set_advantages(learner, trajectories, args):
    """Step level: each step's `value` and `advantage`; 1 where actions are not filtered."""
    values = iter(learner.values["step"].values([step.prompt_ids for step in steps_of(trajectories)]))
    for trajectory in trajectories:
        value = torch.tensor([*(next(values) for _ in trajectory.steps), 0.0])
        advantage = step_advantages(outcomes_of(trajectory), value, args.gamma, args.step_cost)
        for step, v, a in zip(trajectory.steps, value.tolist(), advantage.tolist()):
            step.value, step.advantage = v, a if args.filter_steps else 1.0


def store(buffer, trajectories, steps):
    """Trajectories into the buffer; the oldest ones leave it where there would be more than so many steps."""
    buffer.extend(trajectories)
    excess = len(steps_of(buffer)) - steps
    while excess > 0 and len(buffer) > 1:
        excess -= len(buffer.popleft().steps)


def update_values(learner, buffer, args):
    """The two classifiers, on everything in the buffer. Metrics."""
    success = {t: (returns(outcomes_of(t), args.gamma) > 0).float().tolist() for t in buffer}
    starts = {t.steps[0]: t.reward for t in buffer}
    labels = {step: success[step.trajectory][step.t] for step in steps_of(buffer)}
    size, instruction = args.instruction_batch_size, learner.values["instruction"]
    return {
        "losses/instruction_value_loss": fit(instruction, starts, args.instruction_updates, size, learner.rng, args),
        "losses/step_value_loss": fit(
            learner.values["step"], labels, args.step_updates, args.batch_size, learner.rng, args
        ),
    }


def fit(value, labels, updates, size, rng, args):
    """Cross-entropy of a value on the states of {step: label}, in batches drawn with replacement; the mean loss."""

    def loss_sum(part):
        logits = value.value_logits([step.prompt_ids for step in part])
        return value_loss(logits, torch.tensor([labels[step] for step in part], device=logits.device)) * len(part)

    batches = [rng.choices(list(labels), k=size) for _ in range(updates)]
    losses, _ = value.descend(loss_sum, batches, prompt_lengths, args.critic_max_grad_norm)
    return mean_loss(losses, "value")


def update_actor(learner, trajectories, args):
    """Maximum likelihood on the actions that passed both filters. Metrics."""
    actor, steps = learner.actor, steps_of(trajectories)

    def loss_sum(part):
        logprobs = actor.action_logprobs(part, args.temperature)  # [N]
        advantages = torch.tensor([step.advantage for step in part], device=logprobs.device)
        return policy_loss(logprobs, advantages) * len(part)

    batches, counts = [], []
    for _ in range(args.actor_updates):
        batch = learner.rng.choices(steps, k=args.batch_size)
        if good := [step for step in batch if step.advantage > 0]:  # the others add 0
            batches.append(good)
            counts.append(len(batch))
    losses, norms = actor.descend(loss_sum, batches, max_norm=args.max_grad_norm, counts=counts)
    learner.updates += len(batches)
    trained = sum(map(len, batches))
    metrics = {"losses/trained_steps": trained, "losses/passed_trajectories": len(trajectories)}
    if losses:
        norm = torch.stack(norms).mean().item()
        metrics |= {"losses/policy_loss": mean_loss(losses, "actor"), "losses/grad_norm": norm}
    return metrics


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
            metrics["losses/sft_loss"] = learner.actor.fine_tune(steps_of(demos), args)
        run.save_start(*learner.actor.weights())
    player.publish(learner.actor.model)
    if args.test_before and test_tasks:
        before, tested = evaluate(player, test_tasks, "test before", 0)
        metrics |= tested
        run.report("start", tested, "test_before/success")
    make_learner(learner, args)
    learner.iteration = 0
    run.log({**metrics, "charts/iteration": 0}, player.steps)
    save(learner, player)
    return before


def train(args, env, player, learner):
    """Fine-tuning, then rounds: rollouts, all waited for; the values, the filters and the actor."""
    run = player.run
    train_tasks, eval_tasks, test_tasks = (tasks_of(env, split, args) for split in ("train", "eval", "test"))
    train_tasks = [task for task in train_tasks if envs.has_check(env, task)]  # of others nobody knows the outcome
    eval_tasks, test_tasks = some(eval_tasks, args.eval_tasks), some(test_tasks, args.test_tasks)
    buffer = deque()
    before = begin(args, player, learner, buffer, train_tasks, test_tasks)
    while not finished(learner, args):
        begun = time.monotonic()
        learner.iteration += 1
        tasks = draw_tasks(train_tasks, args.batch_trajectories, learner.rng)
        seed = args.seed * 1000 + learner.iteration
        rollouts = player.play(tasks, args.temperature, seed, "rollouts", learner.iteration)
        rollouts = [t for t in rollouts if t.verdict is not None]  # the others' outcome is not known
        for trajectory in rollouts:
            trajectory.reward = float(bool(trajectory.verdict) and trajectory.ending == "exit")
        run.trajectories.append(rollouts)
        player.steps += sum(len(t.steps) for t in rollouts)
        store(buffer, rollouts, args.buffer_steps)
        if not buffer:
            continue  # all of the first round was dropped
        metrics = rollout_metrics(rollouts) | {"replay/size": len(buffer)}
        with run.timer("training"):
            passed = filtered(learner, buffer, args)  # by the values as they were, as in the released code
            metrics |= update_values(learner, buffer, args)
            set_advantages(learner, passed, args)
            steps = steps_of(passed)
            metrics["replay/passed_success"] = sum(t.reward for t in passed) / max(1, len(passed))
            metrics["losses/positive"] = sum(step.advantage > 0 for step in steps) / max(1, len(steps))
            metrics |= update_actor(learner, passed, args)
        metrics |= player.metrics() | {"charts/iteration": learner.iteration, "charts/updates": learner.updates}
        player.version += 1
        player.publish(learner.actor.model, metrics)
        learner.seconds += time.monotonic() - begun
        if learner.iteration % args.eval_every == 0 and eval_tasks:
            metrics |= evaluate(player, eval_tasks, "eval", learner.iteration)[1]
            shown = "rollout/reward replay/passed_success losses/positive losses/policy_loss eval/success"
            run.report(f"iteration {learner.iteration}, {player.steps} steps", metrics, shown)
        metrics["charts/trajectories"] = learner.iteration * args.batch_trajectories
        run.log(metrics | {"charts/seconds": learner.seconds}, player.steps)
        if learner.iteration % args.save_every == 0:
            save(learner, player)
    finish(player, learner, before, test_tasks)


def finished(learner, args):
    trajectories = learner.iteration * args.batch_trajectories
    enough = learner.iteration >= args.iterations or 0 < args.total_trajectories <= trajectories
    return enough or 0 < args.train_seconds <= learner.seconds


def begin(args, player, learner, buffer, train_tasks, test_tasks):
    """The fine-tuned start, or the run as it was at its last checkpoint; the start's test episodes. Raises UsageError
    where nothing would say what succeeded."""
    if not train_tasks:
        reason = "nothing says what succeeded: distrl.py --algorithm digirl --judge URL asks a judge"
        raise UsageError(f"{args.env_id}: no training task has a check of its own, {reason}")
    player.run.say(f"run folder {player.run.path}")
    if player.run.resumed:
        restore(learner, buffer, player, args)
    if learner.iteration < 0:
        return start_actor(learner, player, train_tasks, test_tasks, args)
    return [t for t in player.run.trajectories if t.kind == "test before"]


def finish(player, learner, before, test_tasks):
    """The test, the summary and the pages."""
    run = player.run
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
    iterations buffer_steps instruction_batch_size instruction_updates step_updates actor_updates eval_every save_every
    phone_spread"""
    check_ranges(args, at_least_1, shares="filter_quantile gamma", any_value="step_cost")
    check_flags(args)
    learner = Learner(load_actor(args), random.Random(args.seed))
    options = {"screenshots": args.screenshots, "real_clock": args.real_clock}
    if args.env_id.startswith("phone"):
        options |= {"phone_delay": args.phone_delay, "phone_spread": args.phone_spread}
    env = envs.make(args.env_id, **options)

    def prompt(instruction, steps, obs, skip=0):
        return agent_prompt(learner.actor.tokenizer, instruction, steps, obs, args.prompt_format, skip)

    saves, judged = partial(save, learner), args.judge_states
    with session(args, __file__, learner.actor, env, prompt, saves, estimate.digirl, judge_states=judged) as player:
        train(args, env, player, learner)


if __name__ == "__main__":
    run_main(lambda: main(parse_args(Args)))
