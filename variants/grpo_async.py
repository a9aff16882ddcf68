"""What grpo_async.py's baselines share, the update of one of them, WebGym's REINFORCE, and a run's schedule for another
one to play again."""

import math
from pathlib import Path

import torch

from common.errors import TooManyFaults, UsageError
from common.lm import learn, llm, parallel
from common.lm.learn import mean_loss, warmup_cosine
from common.replay import TrajectoryStore, steps_of

REPLAYED = 4  # WebGym's replay is of so many batches


def successes(rewards):
    """1 for a success, 0 for a failure. [G] -> [G]."""
    return (rewards > 0).float()


def changing_steps(trajectory):
    """RAFT++ and WebGym: its steps without those that did not change the picture; the last one is never among these."""
    steps = steps_of([trajectory])
    return [step for step, after in zip(steps, [*steps[1:], None]) if not after or step.screenshot != after.screenshot]


def draw_recent(steps, rng, share=0.4):
    """WebGym's replay: this share of the steps, oldest first, without replacement, each by the weight
    (position + 1)^2. A key of u^(1 / weight), the largest ones taken, draws like that."""
    keys = [rng.random() ** (1 / (position + 1) ** 2) for position in range(len(steps))]
    drawn = sorted(range(len(steps)), key=lambda position: -keys[position])[: math.ceil(share * len(steps))]
    return [steps[position] for position in sorted(drawn)]


@parallel.everywhere
def imitate(learner, steps, pictures, args):
    """WebGym's update: cross-entropy on the drawn steps, in the mean over tokens, two passes in the fine-tuning's
    batches. Metrics."""
    learner.pictures = pictures

    def loss_sum(part):
        return -learner.actor.logprobs(part, args.temperature)[0].sum()

    batches = learn.shuffled(steps, args.sft_batch_size, 2, learner.rng) if steps else []
    counts = [sum(len(step.action_ids) for step in batch) for batch in batches]
    rate = args.learning_rate * warmup_cosine(learner.iteration / args.iterations, 0.0167, 0.1)
    rates = [rate] * len(batches)
    losses, norms = learner.actor.descend(loss_sum, batches, max_norm=args.max_grad_norm, counts=counts, rates=rates)
    learner.updates += len(batches)
    metrics = {"losses/trained_trajectories": len({step.trajectory for step in steps}), "charts/learning_rate": rate}
    if losses:
        metrics["losses/policy_loss"] = metrics["losses/surprise"] = mean_loss(losses, "actor")
        metrics["losses/grad_norm"] = torch.stack(norms).mean().item()
    return metrics


def replay(learner, trajectories, args):
    """WebGym's batch: drawn from the steps that changed the picture of the last batches' successes of two steps or
    more; their pictures are in the run's folder. Metrics."""
    learner.recent = [t for t in learner.recent if t.phase > learner.iteration - REPLAYED]
    learner.recent += trajectories
    won = [t for t in learner.recent if t.reward > 0 and len(t.steps) > 1]
    steps = draw_recent([step for t in won for step in changing_steps(t)], learner.rng)
    names = {step.screenshot for drawn in steps for step in drawn.trajectory.steps}
    return imitate(learner, steps, {name: (learner.folder / name).read_bytes() for name in names}, args)


def read_schedule(args):
    """{iteration: {place: (attempt, versions of its steps)}} of the rollouts that the run --schedule was trained on; a
    place is the group's number times G plus the member. Raises UsageError where that run does not fit."""
    schedule = {}
    for trajectory in TrajectoryStore(Path(args.schedule) / "trajectories.jsonl"):
        if trajectory.kind == "rollout":
            versions = [step.version for step in trajectory.steps]
            schedule.setdefault(trajectory.phase, {})[trajectory.place] = trajectory.attempt, versions
    said = f"--schedule {args.schedule}: "
    if not schedule:
        raise UsageError(f"{said}no run with rollouts is there")
    if args.iterations > max(schedule):
        raise UsageError(f"{said}it has {max(schedule)} batches, not {args.iterations}: --iterations {max(schedule)}")
    if any(len(places) != args.batch_trajectories for places in schedule.values()):
        raise UsageError(f"{said}its batches have {len(schedule[max(schedule)])} trajectories: --batch-trajectories")
    if max(i - 1 - v for i, places in schedule.items() for _, row in places.values() for v in row) > args.staleness:
        raise UsageError(f"{said}it has older steps than --staleness {args.staleness} allows")
    return schedule


def play_again(system, iteration):
    """The groups of a batch of `system.schedule`, each step by the version that sampled it there. Raises TooManyFaults
    where one cannot be played."""
    size, groups, jobs = system.pool.group_size, {}, []
    for place, (attempt, versions) in system.schedule[iteration].items():
        number, member = divmod(place, size)
        groups.setdefault(number, system.pool.new_group(number))
        jobs.append((number, member, attempt, versions))

    def call(worker, index):
        number, member, attempt, versions = jobs[index]
        seed = llm.seed_of(system.args.seed, number, member)
        return worker.play.remote(groups[number].task, seed, system.args.temperature, False, versions, attempt)

    for (number, member, *_), trajectory in zip(jobs, system.players.play_each(call, len(jobs)), strict=True):
        if trajectory is None or trajectory.verdict is None:
            raise TooManyFaults(f"--schedule: {groups[number].task.task_id} cannot be played again")
        trajectory.reward, trajectory.place = float(trajectory.verdict), number * size + member
        system.steps += len(trajectory.steps)
        groups[number].done[member] = trajectory
    return [groups[number] for number in sorted(groups)]
