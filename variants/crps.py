"""What crps.py's --algorithm may name besides the paper's own: its baselines RLOO, PPO, RFT and SFT."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from common.lm import learn
from common.lm.learn import mean_loss
from common.replay import prompt_lengths, steps_of


@dataclass(frozen=True)
class Algorithm:
    """What --algorithm names: `advantages(rewards)` of a group's rollouts, [G] -> [G], or a `critic`'s (GAE); whether
    it `plays`, and whether it `updates` the policy after every batch."""

    advantages: Callable | None = None
    critic: bool = False
    plays: bool = True
    updates: bool = True


def other_algorithms():
    """{name: Algorithm}."""
    return {
        "rloo": Algorithm(leave_one_out_advantages),
        "ppo": Algorithm(critic=True),
        "rft": Algorithm(updates=False),  # plays first, and fine-tunes on what succeeded
        "sft": Algorithm(plays=False, updates=False),
    }


def leave_one_out_advantages(rewards):
    """RLOO (Kool et al. 2019): each reward minus the mean of the group's others. [G] -> [G], zero for a single one."""
    size = len(rewards)
    if size < 2:
        return torch.zeros_like(rewards)
    return rewards - (rewards.sum() - rewards) / (size - 1)


def gae(rewards, values, gamma=1.0, lam=0.95):
    """Generalised advantage estimation (Schulman et al. 2016) over an episode's steps; V after the end is 0.
    rewards, values [T] -> [T]."""
    advantages, advantage, next_value = torch.zeros_like(values), 0.0, 0.0
    for t in reversed(range(len(values))):
        advantage = rewards[t] + gamma * next_value - values[t] + gamma * lam * advantage
        advantages[t], next_value = advantage, values[t]
    return advantages


def set_gae(trajectories, critic, args, normalised):
    """PPO: GAE by the critic before its update into the steps' `advantage`, `normalised` ([N] -> [N]) over the batch;
    the returns, what the critic learns, into their `value`."""
    steps = steps_of(trajectories)
    values = dict(zip(steps, critic.values([step.prompt_ids for step in steps], as_probability=False), strict=True))
    for trajectory in trajectories:
        own = steps_of([trajectory])
        value, rewards = torch.tensor([values[step] for step in own]), torch.zeros(len(own))
        rewards[-1] = trajectory.reward  # Eq. 2
        advantages = gae(rewards, value, args.gamma, args.gae_lambda)
        for step, advantage, v in zip(own, advantages.tolist(), value.tolist(), strict=True):
            step.advantage, step.value = advantage, advantage + v
    advantages = normalised(torch.tensor([step.advantage for step in steps]))
    for step, advantage in zip(steps, advantages.tolist(), strict=True):
        step.advantage = advantage


def update_critic(critic, steps, rng, args):
    """PPO: squared error of V and the returns; the mean loss."""

    def loss_sum(part):
        values = critic.value_logits([step.prompt_ids for step in part])
        targets = torch.tensor([step.value for step in part], device=values.device)
        return 0.5 * ((values - targets) ** 2).sum()

    batches = learn.shuffled(steps, args.batch_size, args.update_epochs, rng)
    losses, _ = critic.descend(loss_sum, batches, prompt_lengths)
    return mean_loss(losses, "critic")


def rejection_fine_tune(learner, player, args):
    """RFT: fine-tuning on the demonstrations and on every success of the run's rollouts."""
    good = [t for t in player.run.trajectories if t.kind == "demo" or (t.kind == "rollout" and t.reward)]
    with player.run.timer("training"):
        loss = learner.actor.fine_tune(steps_of(good), args)
    learner.tuned = True
    player.version += 1
    player.publish(learner.actor.model)
    player.run.log({"losses/sft_loss": loss, "charts/iteration": learner.iteration}, player.steps)
