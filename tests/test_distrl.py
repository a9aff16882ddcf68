"""distrl.py's equations against slow computations of their own, and its parts without Ray."""

import asyncio
import json
import math
import os
import random
import threading
from base64 import b64encode
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import digirl
import distrl
from benchmarks.once import judge as judge_benchmark
from common.errors import EnvFault, EnvHang, UsageError
from common.lm import learn, llm
from common.lm.args import parse_args
from common.lm.evaluator import Album, Evaluator, Watched
from common.lm.run import Run, read_metrics
from common.lm.serve import served_model
from common.replay import Step, Trajectory
from distrl import Args, Learner, ReplayBuffer
from envs import Task
from tests.nets import net_of
from variants import distrl as variants

ROOT = Path(__file__).resolve().parent.parent
REWARDS, VALUES = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.2, 0.4, 0.6, 0.0])
RATIOS = torch.tensor([0.5, 2.0, 0.8])


def test_retrace_and_v_trace_on_known_numbers():
    assert distrl.retrace(REWARDS, VALUES, RATIOS, 0.9, 0.9).tolist() == pytest.approx([0.483352, 0.3992, 0.4])
    assert variants.v_trace(distrl.td_errors(REWARDS, VALUES, 0.9), RATIOS, 0.9).tolist() == pytest.approx(
        [0.2726, 0.428, 0.32]
    )


def numbers(low, high, size):
    return st.lists(st.floats(low, high), min_size=size, max_size=size)


episodes = st.integers(1, 8).flatmap(
    lambda steps: st.tuples(numbers(-2, 2, steps), numbers(0, 1, steps + 1), numbers(0, 4, steps))
)


@settings(deadline=None, max_examples=60)
@given(episodes, st.floats(0, 1), st.floats(0, 1))
def test_retrace_is_its_double_sum(episode, gamma, lam):
    rewards, values, ratios = (torch.tensor(one, dtype=torch.float64) for one in episode)
    slow = []
    for t in range(len(rewards)):
        total = 0.0
        for k in range(t, len(rewards)):
            trace = math.prod(lam * min(1.0, ratios[i].item()) for i in range(t + 1, k + 1))
            total += gamma ** (k - t) * trace * (rewards[k] + gamma * values[k + 1] - values[k]).item()
        slow.append(total)
    assert distrl.retrace(rewards, values, ratios, gamma, lam).tolist() == pytest.approx(slow, abs=1e-9)
    found = distrl.one_step(None, rewards, values, values, gamma).tolist()
    assert found == pytest.approx([(r + gamma * v - u).item() for r, v, u in zip(rewards, values[1:], values)])


@settings(deadline=None, max_examples=60)
@given(episodes, st.floats(0, 1))
def test_v_trace_is_its_sum(episode, gamma):
    rewards, values, ratios = (torch.tensor(one, dtype=torch.float64) for one in episode)
    slow = []
    for t in range(len(rewards)):
        total = 0.0
        for k in range(t, len(rewards)):
            trace = math.prod(min(1.0, ratios[i].item()) for i in range(t, k))
            error = (rewards[k] + gamma * values[k + 1] - values[k]).item()
            total += gamma ** (k - t) * trace * min(1.0, ratios[k].item()) * error
        slow.append(total)
    assert variants.v_trace(distrl.td_errors(rewards, values, gamma), ratios, gamma).tolist() == pytest.approx(
        slow, abs=1e-9
    )


def test_on_policy_with_full_traces_the_corrected_value_is_the_return():
    ones = torch.ones(3)
    corrected = VALUES[:-1] + distrl.retrace(REWARDS, VALUES, ones, 0.9, 1.0)
    assert corrected.tolist() == pytest.approx([0.81, 0.9, 1.0])
    assert distrl.returns(REWARDS, 0.9).tolist() == pytest.approx([0.81, 0.9, 1.0])
    one_step = distrl.retrace(REWARDS, VALUES, ones, 0.9, 0.0)  # no trace: the TD error alone
    assert one_step.tolist() == pytest.approx(distrl.td_errors(REWARDS, VALUES, 0.9).tolist())


def test_rewards_are_the_outcome_the_return_from_the_next_step_and_the_penalties():
    zeros = torch.zeros(3)
    assert distrl.shaped_rewards(REWARDS, REWARDS, 0.5).tolist() == pytest.approx([0.5, 1.0, 1.0])
    assert distrl.shaped_rewards(zeros, zeros, 0.5).tolist() == [0.0, 0.0, 0.0]
    assert variants.released_rewards(REWARDS, REWARDS, 0.5).tolist() == pytest.approx([0.2, 0.45, 1.95])
    repeats, invalid = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0])
    assert distrl.outcome_rewards(zeros, repeats, invalid, 0.4, 1.0).tolist() == pytest.approx([-1.0, -0.4, -0.8])
    found = distrl.outcome_rewards(REWARDS, repeats, invalid, 0.4, 1.0)
    assert found.tolist() == pytest.approx([-1.0, -0.4, 0.2])


def test_the_outcome_alone_values_a_step_by_what_it_changes():
    """gamma = lambda = 1, on-policy: 1 - V in a success, -V in a failure, penalties on top; the last step counts as the
    others do."""
    made = Trajectory(TASK, 0, 0, [Step([1], [2], [-1.0], 0, f"screen {i}", f"a{i}") for i in range(4)], reward=1.0)
    made.steps[1].error = "refused"
    values, args = torch.tensor([0.2, 0.4, 0.5, 0.9, 0.0]), replace(ARGS, gamma=1.0, retrace_lambda=1.0)
    for outcome in (1.0, 0.0):
        advantage, _, _ = distrl.assess(made, values, torch.ones(4), outcome, replace(args, reward="outcome"))
        expected = [outcome - 0.2, outcome - 0.4 - 1.0, outcome - 0.5, outcome - 0.9]
        assert advantage.tolist() == pytest.approx(expected)
    printed, _, _ = distrl.assess(made, values, torch.ones(4), 1.0, args)
    assert printed.tolist() == pytest.approx([1.8, 0.6, 1.5, 0.1])


def test_flags_win_over_what_the_variants_set():
    def parsed(*argv):
        return parse_args(Args, list(argv), distrl.variant)

    assert parsed().reward == "outcome" and parsed("--preset", "paper").reward == "return"
    released = parsed("--released", "--filter-quantile", "0.3")
    assert (released.reward, released.gamma, released.filter_quantile) == ("released", 0.5, 0.3)
    digirl = parsed("--algorithm", "digirl", "--gamma", "0.7")
    assert (digirl.gamma, digirl.filter_quantile, digirl.importance_ratio) == (0.7, 0.9, False)


# What the released code has (scripts/config/multimachine, distrl/data/utils.py), by our fields.
RELEASED = dict(
    gamma=0.5, w1=50.0, w2=1.0, w3=0.01, filter_quantile=0.9, learning_rate=1e-4, critic_learning_rate=1e-4,
    max_grad_norm=0.01, critic_max_grad_norm=0.01, actor_epochs=20, critic_epochs=5, beta=0.0, buffer_steps=10000,
    batch_trajectories=64, batch_size=64 * 3, repeat_penalty=0.4, invalid_penalty=1.0, judge_states=True,
    refresh_every=1, refresh_size=0, anneal_lr=False,
)  # fmt: skip
PAPER = dict(
    warmup_trajectories=128, priority_alpha=0.5, reward="return", trajectory_value="terminal", retrace=True,
    prioritised=True, binarise=False, importance_ratio=True, judge_images=1, test_tasks=128, max_staleness=0,
    replay_ratio=0.0, iterations=400, max_new_tokens=128,
)  # fmt: skip
TINY = dict(
    gamma=1.0, retrace_lambda=0.95, w1=10.0, w2=0.3, w3=0.1, filter_quantile=0.6, learning_rate=2.5e-4,
    critic_learning_rate=3e-4, max_grad_norm=0.1, critic_max_grad_norm=1.0, actor_epochs=2, critic_epochs=1, beta=0.0,
    batch_trajectories=32, batch_size=16, refresh_every=10, refresh_size=64, judge_states=False, anneal_lr=True,
    advantage_floor=0.0, reward="outcome", replay_ratio=2.0, warmup_trajectories=64,
)  # fmt: skip


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--preset paper", RELEASED | PAPER | {"retrace_lambda": 1.0}),  # the paper's, and where it gives none released
        ("--preset paper --released", RELEASED),
        ("--preset tiny --released", RELEASED),
        ("--preset tiny", TINY),  # what docs/results.md was measured with
    ],
)
def test_values_of_the_presets(flags, expected):
    args = parse_args(Args, flags.split(), distrl.variant)
    assert {name: getattr(args, name) for name in expected} == expected


def test_a_run_of_before_goes_on_as_it_was(tmp_path):
    """Its buffer counted trajectories, and its episodes were judged at the agent's exit."""
    for script, preset, norm in ((distrl, "tiny", 0.1), (digirl, "tiny", 0.1), (distrl, "paper", 1.0)):
        saved = dict(preset=preset, buffer_size=10, gamma=0.7, max_grad_norm=norm)
        (tmp_path / "args.json").write_text(json.dumps(saved))
        args = parse_args(script.Args, ["--resume", str(tmp_path)])
        assert (args.buffer_steps, args.judge_states, args.critic_max_grad_norm) == (50, False, 1.0)
        assert (args.gamma, args.max_grad_norm, args.preset) == (0.7, norm, preset)
        assert not getattr(args, "eval_beside", False)
        if script is digirl:
            assert args.instruction_batch_size == 16  # what the field says nothing of is the preset's
        with pytest.raises(UsageError, match="called --buffer-steps now and counts steps, not trajectories$"):
            parse_args(script.Args, ["--buffer-size", "9"])


def test_without_the_return_a_small_gamma_would_make_correct_steps_negative():
    sure = torch.tensor([0.6, 0.6, 0.6, 0.0])
    assert distrl.one_step(None, REWARDS, sure, sure, 0.5)[1] < 0
    shaped = distrl.shaped_rewards(REWARDS, REWARDS, 0.5)
    assert all(distrl.one_step(None, shaped, sure, sure, 0.5) > 0)


def test_repetitions_need_the_same_action_on_the_same_screen():
    assert distrl.repetitions(["a", "a", "a", "b", "a"], ["1", "1", "1", "1", "1"]) == [0, 1, 2, 0, 0]
    assert distrl.repetitions(["a", "a", "a"], ["1", "2", "2"]) == [0, 0, 1]
    assert distrl.repetitions([], []) == []


def test_a_repeated_action_is_one_whatever_is_said_about_it():
    said = ["# Element: a", "# Element: the same once more", ""]
    answers = [f'{line}\ndo(action="Click", element="3")' for line in said]
    made = Trajectory(TASK, 0, 0, [Step([1], [2], [-1.0], 0, "page", answer) for answer in answers])
    args, values = replace(ARGS, gamma=1.0, reward="outcome", retrace=False), torch.tensor([0.5, 0.5, 0.5, 0.0])
    advantage, _, _ = distrl.assess(made, values, torch.ones(3), 0.0, args)
    assert advantage.tolist() == pytest.approx([0.0, -0.4, -0.5 - 0.8])
    assert distrl.without_comments("no action") == "no action"


def test_without_corrections_the_critic_learns_the_label_alone():
    made = trajectory(random.Random(6), reward=1.0)
    for flags, label in (({"retrace": False}, True), ({"retrace": False, "v_trace": True}, False), ({}, False)):
        _, targets, _ = distrl.assess(made, VALUES, RATIOS, 1.0, replace(ARGS, **flags))
        assert (targets.tolist() == [1.0] * 3) == label


def test_critic_targets_are_labels_and_corrected_values():
    corrections = torch.tensor([0.3, -0.9, 5.0])
    labels = distrl.critic_targets(REWARDS, VALUES, corrections, 0.0)
    assert labels.tolist() == [1.0, 1.0, 1.0]
    assert distrl.critic_targets(torch.zeros(3), VALUES, corrections, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert distrl.critic_targets(REWARDS, VALUES, corrections, 1.0).tolist() == pytest.approx([0.5, 0.0, 1.0])
    assert distrl.critic_targets(REWARDS, VALUES, corrections, 0.5).tolist() == pytest.approx([0.75, 0.5, 1.0])


def test_critic_loss_is_cross_entropy():
    logits, targets = torch.tensor([0.3, -2.0]), torch.tensor([1.0, 0.25])
    slow = 0.0
    for logit, target in zip(logits.tolist(), targets.tolist()):
        p = 1 / (1 + math.exp(-logit))
        slow -= (target * math.log(p) + (1 - target) * math.log(1 - p)) / 2
    assert distrl.critic_loss(logits, targets).item() == pytest.approx(slow)


def test_policy_loss_is_eq_1_and_its_gradient_has_the_right_signs():
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    ratios, good = torch.tensor([0.5, 3.0, 1.0], requires_grad=True), torch.tensor([1.0, -0.4, 0.0])
    loss = distrl.policy_loss(logprobs, ratios, good, -logprobs, 0.05)
    slow = -(0.5 * 1.0 * -1.0 + 1.0 * -0.4 * -2.0) / 3 - 0.05 * (1.0 + 2.0 + 0.5) / 3
    assert loss.item() == pytest.approx(slow)
    loss.backward()
    assert ratios.grad is None  # importance weights are weights
    expected = [(-0.5 + 0.05) / 3, (0.4 + 0.05) / 3, 0.05 / 3]  # descent: up, down, and down for the entropy
    assert logprobs.grad.tolist() == pytest.approx(expected)


def test_how_far_a_negative_advantage_pushes_down_is_what_the_docs_say():
    """log pi of one action of five that was replayed 1,000 times with advantage -1, its behaviour policy uniform: with
    and without the truncated ratio, side by side."""
    logits, behaviour, bad = torch.zeros(2, 5, requires_grad=True), math.log(0.2), torch.tensor([-1.0])
    optimizer = torch.optim.Adam([logits], lr=0.1, betas=(0.9, 0.98))
    for _ in range(1000):
        optimizer.zero_grad()
        rows = logits.log_softmax(-1)[:, :1]
        ratios = (rows[0].detach() - behaviour).exp(), torch.ones(1)
        sum(distrl.policy_loss(row, ratio, bad, -row, 0.0) for row, ratio in zip(rows, ratios)).backward()
        optimizer.step()
    bounded, unbounded = logits.log_softmax(-1)[:, 0].tolist()
    assert bounded > -20 and unbounded < -200
    page = (ROOT / "docs/distrl.md").read_text()
    assert f"log pi {bounded:.1f}" in page and f"without the ratio {unbounded:.1f}" in page
    assert "without bound" not in page + Path(distrl.__file__).read_text()


def test_priorities_and_their_maxima():
    errors, entropies = torch.tensor([0.5, -1.0]), torch.tensor([1.0, 3.0])
    means = distrl.trajectory_means(errors, torch.tensor([0.4, 7.0]), entropies)
    assert means.tolist() == pytest.approx([0.75, 0.7, 2.0])
    both, weights = torch.stack([means, torch.tensor([0.1, 0.2, 0.3])]), (2.0, 0.5, 0.1)
    slow = [2.0 * td / 1.5 + 0.5 * ratio + 0.1 * entropy / 4.0 for td, ratio, entropy in both.tolist()]
    assert distrl.trajectory_priorities(both, weights, 1.5, 4.0).tolist() == pytest.approx(slow)
    assert distrl.trajectory_priorities(both, weights, 0.0, 0.0).tolist() == pytest.approx([0.35, 0.1])


def test_sampling_probabilities():
    found = distrl.sampling_probabilities(torch.tensor([1.0, 4.0, 0.0]))
    assert found.tolist() == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert distrl.sampling_probabilities([1.0, 4.0], alpha=0.0).tolist() == [0.5, 0.5]
    assert distrl.sampling_probabilities([1.0, 4.0], alpha=1.0).tolist() == pytest.approx([0.2, 0.8])
    assert distrl.sampling_probabilities([0.0, 0.0]).tolist() == [0.5, 0.5]


# --- the replay buffer and what is drawn


def trajectory(rng, reward=0.0, steps=3, version=0, error=""):
    """An episode of random tokens on different screens."""
    task = Task("t", "general", "do it", 9)
    made = Trajectory(task, rng.randrange(1000), 0, ending="exit", verdict=reward, reward=reward)
    for t in range(steps):
        prompt = [rng.randrange(5, 300) for _ in range(rng.randrange(4, 20))]
        action = [rng.randrange(5, 300) for _ in range(rng.randrange(1, 6))]
        logprobs = [-rng.random() for _ in action]
        made.steps.append(Step(prompt, action, logprobs, version, f"page {t}", f"action {t}", error=error, hash=str(t)))
    return made


def note(buffer, trajectories, tds, iteration=1, filter_values=(0.5,) * 9):
    """An assessment with the same TD error at all steps of a trajectory, and what the filter goes by."""
    for made, td in zip(trajectories, tds, strict=True):
        for step in made.steps:
            step.td_error, step.ratio, step.entropy = td, 1.0, 1.0
    buffer.note(dict(zip(trajectories, filter_values)), iteration)


def filled(count, steps=3):
    """A buffer of so many trajectories, and these."""
    buffer, rng = ReplayBuffer(99, WEIGHTS), random.Random(1)
    made = [trajectory(rng, steps=steps) for _ in range(count)]
    for one in made:
        buffer.add(one)
    return buffer, made


WEIGHTS = (1.0, 0.0, 0.0)


def test_the_buffer_is_a_circle_of_steps():
    buffer, rng = ReplayBuffer(6, WEIGHTS), random.Random(1)
    made = [trajectory(rng, steps=steps) for steps in (2, 3, 1, 2, 4, 9)]
    held = []
    for one in made:
        buffer.add(one)
        held.append([made.index(kept) for kept in buffer.found])
    # whole trajectories, the oldest leave first; one that is longer than the buffer is there alone
    assert held == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [3, 4], [5]] and buffer.steps == 9


def test_priorities_of_different_times_compare():
    """TD errors .1, .9, .1, each the largest so far or not when it was assessed: equal errors, equal priorities."""
    buffer, made = filled(4)
    for one, td in zip(made, (0.1, -0.9, 0.1)):
        note(buffer, [one], [td])
    found = buffer.priorities(made).tolist()  # the last one was never assessed: the largest of all
    assert buffer.max_td == pytest.approx(0.9) and found == pytest.approx([1 / 9, 1.0, 1 / 9, 1.0])
    assert buffer.priorities(made[3:]).tolist() == [1.0]
    note(buffer, made[:1], [1.8])
    assert buffer.priorities(made).tolist() == pytest.approx([1.0, 0.5, 1 / 18, 1.0])


def test_draws_are_as_often_as_the_probabilities_say():
    buffer, made = filled(3)
    note(buffer, made, [1.0, 4.0, 0.25])
    torch.manual_seed(1)

    def shares(trajectories, alpha):
        drawn = [buffer.draw(trajectories, 1, alpha)[0] for _ in range(2000)]
        return [sum(one is another for another in drawn) / 2000 for one in trajectories]

    assert shares(made, 0.5) == pytest.approx([1 / 3.5, 2 / 3.5, 0.5 / 3.5], abs=0.04)
    assert shares(made, 0.0) == pytest.approx([1 / 3] * 3, abs=0.04)
    assert len(buffer.draw(made, 9, alpha=0.5)) == 3  # none twice
    assert buffer.draw([], 9, alpha=0.5) == []
    new = trajectory(random.Random(2))
    buffer.add(new)  # never assessed: as likely as the likeliest
    found = shares([*made, new], 0.5)
    assert found[3] == pytest.approx(found[1], rel=0.2)


def test_too_old_trajectories_are_not_drawn():
    buffer, rng = ReplayBuffer(99, WEIGHTS), random.Random(1)
    made = [trajectory(rng, version=version) for version in (0, 3, 5)]
    for one in made:
        buffer.add(one)
    made[2].steps[0].version = 2  # the oldest step counts
    assert [buffer.usable(5, bound) for bound in (0, 2, 3)] == [made, made[1:2], made[1:]]


def test_the_filter_keeps_what_is_above_the_quantile():
    buffer, made = filled(4)
    note(buffer, made, [1.0] * 4, filter_values=(0.1, 0.9, 0.5, 0.5))
    assert buffer.above_quantile(made, 0.5) == made[1:]
    assert buffer.above_quantile(made, 0.0) == made and buffer.above_quantile([], 0.5) == []


# --- the update


ARGS = Args(
    gamma=0.9, retrace_lambda=0.95, filter_quantile=0.0, micro_batch_tokens=64, batch_size=8, beta=0.02, cpu_threads=1,
    actor_epochs=1, critic_epochs=1, max_grad_norm=1.0, critic_max_grad_norm=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def base():
    return llm.load("assets/tiny-phone")


@pytest.fixture
def learner(base):
    torch.manual_seed(1)
    made = Learner(net_of(llm.copy_network(base[0]), base[1], ARGS), random.Random(1))
    distrl.make_critics(made, ARGS)
    for critic in made.critics.values():
        torch.nn.init.normal_(critic.model["head"].weight, std=0.05)
    return made


def update(learner, batch, chosen, args):
    """An iteration's updates: (metrics, what the filter goes by)."""
    metrics, filtered = distrl.learn_values(learner, batch, chosen, 0, args)
    return metrics | distrl.update_actor(learner, chosen, 0.0, args), filtered


def test_an_assessment_is_the_equations_on_single_forward_passes(learner, base):
    rng = random.Random(2)
    trajectories = [trajectory(rng, reward=1.0, steps=4), trajectory(rng, steps=2, error="refused"), trajectory(rng)]
    args = replace(ARGS, retrace_lambda=0.8, target_share=0.3)
    filtered = distrl.assess_all(learner, trajectories, args)
    for made in trajectories:
        values, ratios, entropies = [], [], []
        for step in made.steps:  # alone, without padding
            ids = torch.tensor([[*step.prompt_ids, *step.action_ids]])
            with torch.no_grad():
                logits = learner.actor.model(ids).logits[0].log_softmax(-1)
                critic = learner.critics["critic_value"].model
                body = critic["body"].model(ids[:, : len(step.prompt_ids)]).last_hidden_state[0, -1]
                values.append(critic["head"](body).sigmoid().item())
            start = len(step.prompt_ids) - 1
            logprob = sum(logits[start + k, token].item() for k, token in enumerate(step.action_ids))
            ratios.append(min(1.0, math.exp(logprob - sum(step.logprobs))))
            entropies.append(-logprob)
        assert [step.ratio for step in made.steps] == pytest.approx(ratios, rel=1e-3, abs=1e-9)
        assert [step.entropy for step in made.steps] == pytest.approx(entropies, rel=1e-4)
        outcomes, zeros = torch.zeros(len(values)), torch.zeros(len(values))
        outcomes[-1] = made.reward
        invalid = torch.tensor([float(bool(step.error)) for step in made.steps])
        rewards = distrl.shaped_rewards(outcomes, distrl.outcome_rewards(outcomes, zeros, invalid, 0.4, 1.0), 0.9)
        value = torch.tensor([*values, 0.0])
        corrections = distrl.retrace(outcomes, value, torch.tensor(ratios), 0.9, 0.8)
        ahead = torch.cat([(value[:-1] + corrections)[1:], torch.zeros(1)])
        assert [step.advantage for step in made.steps] == pytest.approx(
            (rewards + 0.9 * ahead - value[:-1]).tolist(), abs=1e-4
        )
        targets = distrl.critic_targets(outcomes, value, corrections, 0.3)
        assert [step.value for step in made.steps] == pytest.approx(targets.tolist(), abs=1e-4)
        errors = distrl.td_errors(outcomes, value, 0.9).tolist()
        assert [step.td_error for step in made.steps] == pytest.approx(errors, abs=1e-4)
        end = torch.tensor([[*made.steps[-1].prompt_ids, *made.steps[-1].action_ids]])
        with torch.no_grad():
            critic = learner.critics["critic_trajectory"].model
            state = critic["body"].model(end).last_hidden_state[0, -1]
            assert filtered[made] == pytest.approx(critic["head"](state).sigmoid().item(), abs=1e-4)


def test_fine_tuning_is_likelier_demonstrations_whatever_the_micro_batches_and_threads(base, monkeypatch):
    rng = random.Random(2)
    demos = [trajectory(rng, reward=1.0, steps=4), trajectory(rng, reward=1.0)]
    steps = [step for demo in demos for step in demo.steps]

    def fine_tuned(**options):
        args = replace(ARGS, sft_learning_rate=1e-4, adam_eps=1e-2, sft_batch_size=8, **options)
        made = Learner(net_of(llm.copy_network(base[0]), base[1], args), random.Random(1))
        return made.actor.model, distrl.fine_tune(made, demos, args)

    whole, first = fine_tuned(sft_epochs=1, cpu_threads=0, micro_batch_tokens=4096)
    with torch.no_grad():  # one batch: its loss is that of the weights before
        scored = [llm.token_logprobs(*base, [step.prompt_ids], [step.action_ids])[0].sum() for step in steps]
    assert first == pytest.approx(-sum(scored).item() / sum(len(step.action_ids) for step in steps), rel=1e-4)
    assert fine_tuned(sft_epochs=20)[1] < first - 0.3
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    parts, loss = fine_tuned(sft_epochs=1)
    assert loss == pytest.approx(first, rel=1e-4) and learn._threads is None
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-3)


def host_of(learner, trajectories, version=1, **options):
    buffer = ReplayBuffer(1000, WEIGHTS)
    for made in trajectories:
        buffer.add(made)
    system = SimpleNamespace(version=version)
    return distrl.Host(learner, system, buffer, None, received=len(trajectories)), replace(ARGS, **options)


@pytest.mark.parametrize("kind", ["terminal", "first"])
def test_the_filter_holds_for_trajectories_that_nobody_has_assessed_yet(learner, kind):
    """64 failures that just came: V_traj looks at each of them before they are filtered."""
    rng = random.Random(5)
    made = [trajectory(rng) for _ in range(64)]
    host, args = host_of(learner, made, filter_quantile=0.75, batch_trajectories=64, trajectory_value=kind)
    batch, chosen = distrl.draw(host, args)
    values = learner.critics["critic_trajectory"].values([learner.end(t, kind) for t in made])
    expected = [-value if kind == "first" else value for value in values]
    assert [found.filter_value for found in host.buffer.found.values()] == pytest.approx(expected, abs=1e-5)
    assert len(batch) == 64 and len(chosen) == 16
    assert min(host.buffer.found[t].filter_value for t in chosen) > sorted(expected)[47] - 1e-5
    assert all(found.means is None for found in host.buffer.found.values())  # that comes when they are drawn


def test_an_iteration_waits_for_something_to_draw(learner):
    rng = random.Random(5)
    failed = [trajectory(rng, reward=0.0) for _ in range(4)]
    learner.iteration = 0
    host, args = host_of(learner, failed, warmup_trajectories=2, replay_ratio=0.0)
    assert distrl.missing(host, args) == 0
    assert distrl.missing(host, replace(args, warmup_trajectories=6)) == 2
    host.unknown = 1  # who was not evaluated counts for nothing
    assert distrl.missing(host, replace(args, warmup_trajectories=6)) == 3
    host.unknown, critics, learner.critics = 0, learner.critics, {}  # filtered-bc
    assert distrl.missing(host, args) == 1  # no success
    host.new = failed[:1]
    assert distrl.missing(host, args) == 0  # nor in what came since
    host.new, learner.critics, host.system.version = [], critics, 9
    assert distrl.missing(host, replace(args, max_staleness=3)) == 1  # all too old
    assert distrl.missing(host, replace(args, replay_ratio=2.0, batch_trajectories=20)) == 6


def test_a_round_of_which_nothing_came_does_not_end_a_run_in_step(learner):
    learner.iteration = 0
    host, args = host_of(learner, [], warmup_trajectories=2, sync=True)
    rounds = [[], [(trajectory(random.Random(seed)), {}) for seed in (1, 2)], []]
    host.run = SimpleNamespace(trajectories=SimpleNamespace(append=lambda made: None))
    ways = dict(take=lambda: [], play_round=lambda: rounds.pop(0), over=lambda: not rounds)
    host.system = SimpleNamespace(version=1, **ways)
    assert distrl.gather(host, args) and host.received == 2
    assert not distrl.gather(host, replace(args, warmup_trajectories=3))


class NoPhones:
    """A System whose rounds are scripted: what distrl.py's loop asks of it."""

    def __init__(self, rounds):
        self.rounds, self.version, self.steps, self.lost, self.begun = rounds, 0, 0, 0, 0
        faults = SimpleNamespace(state=lambda: {})
        self.players = SimpleNamespace(metrics=dict, write_timeline=lambda run: None, faults=faults)
        self.changed, self.take, self.metrics = threading.Lock(), list, dict

    def publish(self, model, version):
        self.version = version

    def over(self):
        return not self.rounds

    def play_round(self):
        self.steps += 1
        return self.rounds.pop(0)


def test_filtered_bc_is_maximum_likelihood_on_successes_from_the_start_to_a_checkpoint(base, tmp_path, monkeypatch):
    args = parse_args(
        Args,
        "--algorithm filtered-bc --sync --num-demos 0 --warmup-trajectories 4 --iterations 2 --save-every 1".split(),
    )
    args = replace(
        args, batch_trajectories=2, replay_ratio=0.5, runs_dir=str(tmp_path), learning_rate=1e-3, save_every=1
    )
    rng = random.Random(1)
    rounds = [[(trajectory(rng, reward=float(k % 2), version=version), {}) for k in range(4)] for version in (1, 2)]
    rounds[0][0][0].verdict = rounds[0][0][0].judged = None  # whom nobody evaluated
    rounds.insert(1, [(trajectory(rng), {})])
    won, batches, real = [t for played in rounds for t, _ in played if t.reward], [], distrl.update_actor
    monkeypatch.setattr(distrl, "finish", lambda *given: None)
    monkeypatch.setattr(distrl, "update_actor", lambda *given: batches.append(given[1]) or real(*given))
    learner = Learner(net_of(llm.copy_network(base[0]), base[1], args), random.Random(1))
    with Run.create(args, distrl.__file__, args.runs_dir) as run:
        host = distrl.Host(learner, NoPhones(rounds), ReplayBuffer(1000, WEIGHTS), run)
        distrl.train(args, host, [], [], [])
        assert run.latest().state["counts"]["iteration"] == 2 and set(run.latest().tensors()) == {
            "actor",
            "rng",
            "torch",
        }
    assert (host.received, host.unknown, host.system.version, learner.critics) == (9, 1, 3, {})
    assert [len(batch) for batch in batches] == [2, 2] and all(t in won for batch in batches for t in batch)
    rows = [row for row in read_metrics(run.path) if "charts/updates" in row]
    assert [row["losses/trained_steps"] for row in rows] == [6, 6] and "losses/critic_loss" not in rows[1]


def weights_of(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def test_the_update_does_not_depend_on_micro_batches_or_padding(base):
    ends = []
    for tokens in (16, 100_000):
        torch.manual_seed(1)
        args = replace(ARGS, micro_batch_tokens=tokens, adam_eps=1e-3)
        one = Learner(net_of(llm.copy_network(base[0]), base[1], args), random.Random(1))
        distrl.make_critics(one, args)
        rng = random.Random(3)
        batch = [trajectory(rng, reward=float(k % 2), steps=1 + k) for k in range(4)]
        metrics, filtered = update(one, batch, batch[1:], args)
        assert list(filtered) == batch
        weights = [weights_of(net.model) for net in one.nets().values()]
        ends.append([*weights, torch.tensor(metrics["losses/policy_loss"])])
    for first, second in zip(*ends, strict=True):
        assert torch.allclose(first, second, atol=1e-5)


def test_the_terminal_step_is_trained_on(learner):
    """Success is paid there: its log-prob rises, and without it nothing would change."""
    args = replace(ARGS, beta=0.0, advantage_floor=0.0, invalid_penalty=9.0, learning_rate=1e-3, actor_epochs=3)
    made = trajectory(random.Random(4), reward=1.0, steps=3, error="refused")
    made.steps[-1].error = ""
    before = weights_of(learner.actor.model)
    learner.actor.begin(args.learning_rate)
    distrl.assess_all(learner, [made], args)
    assert [step.advantage > 0 for step in made.steps] == [False, False, True]  # the others' penalties
    start = made.steps[-1].ref_logprob
    metrics = distrl.update_actor(learner, [made], 0.0, args)
    assert metrics["losses/trained_steps"] == 1 and not torch.equal(weights_of(learner.actor.model), before)
    distrl.assess_all(learner, [made], args)
    assert made.steps[-1].ref_logprob > start


def test_exact_entropy_is_that_of_the_tokens(learner):
    steps = trajectory(random.Random(5), steps=2).steps
    _, entropies = distrl.action_scores(learner.actor, steps, replace(ARGS, entropy="exact"))
    for step, entropy in zip(steps, entropies.tolist(), strict=True):
        ids = torch.tensor([[*step.prompt_ids, *step.action_ids]])
        with torch.no_grad():
            chances = learner.actor.model(ids).logits[0, len(step.prompt_ids) - 1 : -1].softmax(-1)
        assert entropy == pytest.approx(-(chances * chances.log()).sum().item(), rel=1e-4)


def test_variants_by_flag():
    rng, ones = random.Random(6), torch.ones(3)
    made, values = trajectory(rng, reward=1.0), VALUES
    plain, _, errors = distrl.assess(made, values, ones, 1.0, replace(ARGS, retrace=False, reward="outcome"))
    assert plain.tolist() == pytest.approx(errors.tolist())  # nothing is corrected
    refused = replace(made, steps=[replace(step, error="no such element") for step in made.steps])
    punished, _, same = distrl.assess(refused, values, ones, 1.0, replace(ARGS, retrace=False, reward="outcome"))
    assert same.tolist() == errors.tolist()  # priorities go by the outcome, as V does
    assert punished.tolist() == pytest.approx((plain - 1.0).tolist())
    *_, all_of_it = distrl.assess(refused, values, ones, 1.0, replace(ARGS, reward="outcome", corrected_rewards="all"))
    assert all_of_it.tolist() == pytest.approx(punished.tolist())
    literal, *_ = distrl.assess(made, values, ones, 1.0, replace(ARGS, corrected_baseline=True))
    corrected = values + torch.cat([distrl.retrace(REWARDS, values, ones, 0.9, 0.95), torch.zeros(1)])
    rewards = distrl.shaped_rewards(REWARDS, REWARDS, 0.9)
    assert literal.tolist() == pytest.approx(distrl.one_step(None, rewards, corrected, corrected, 0.9).tolist())
    traced, *_ = distrl.assess(made, values, RATIOS, 1.0, replace(ARGS, v_trace=True))
    ahead = values[:-1] + variants.v_trace(distrl.td_errors(REWARDS, values, 0.9), RATIOS, 0.9)
    assert traced[0].item() == pytest.approx((rewards[0] + 0.9 * ahead[1] - values[0]).item())
    signs, *_ = distrl.assess(made, values, ones, 0.0, replace(ARGS, binarise=True))
    assert set(signs.tolist()) <= {0.0, 1.0}
    digirl, *_ = distrl.assess(made, values, ones, 1.0, replace(ARGS, algorithm="digirl", **variants.DIGIRL))
    slow = [v - u - 0.05 + r + g for u, v, r, g in zip([0.2, 0.4, 0.6], [0.4, 0.6, 0.0], [0, 0, 1], [0.81, 0.9, 1.0])]
    assert digirl.tolist() == [float(a > 0) for a in slow]


def test_what_nobody_can_evaluate_is_not_played(tmp_path, monkeypatch, judge_url):
    played = []
    system = SimpleNamespace(players=SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(distrl, "start_ray", lambda *_: None)
    monkeypatch.setattr(distrl, "System", lambda args, draw_task: played.append(draw_task) or system)
    monkeypatch.setattr(distrl, "train", lambda args, host, train_tasks, *_: played.append(train_tasks))
    monkeypatch.setattr(distrl.envs, "has_check", lambda env, task: task.template == "weather")
    for flags in ([], ["--judge", judge_url]):
        distrl.main(parse_args(Args, ["--runs-dir", str(tmp_path), *flags]))
        draw_task, train_tasks = played[-2:]
        drawn = [draw_task(number) for number in range(len(train_tasks))]
        assert {task.task_id for task in drawn} == {task.task_id for task in train_tasks}
        assert all(task.template == "weather" for task in train_tasks) == (not flags)


# --- who says that an episode succeeded, and faults


def test_success_is_the_judges_or_the_checks_and_never_that_of_who_ran_out_of_steps():
    made = trajectory(random.Random(7))
    assert distrl.success_of(made) == 0.0
    assert distrl.success_of(replace(made, judged=1.0)) == 1.0
    assert distrl.success_of(replace(made, verdict=None)) is None
    assert distrl.success_of(replace(made, judged=1.0, ending="truncated")) == 0.0


class Replies(BaseHTTPRequestHandler):
    """A judge that says what it is told to say, and what it was asked."""

    says, asked = [], []

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "eye", "object": "model", "created": 0, "owned_by": "x"}]})

    def do_POST(self):
        Replies.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        text = Replies.says.pop(0)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        self.answer({"id": "1", "object": "chat.completion", "created": 0, "model": "eye", "choices": [choice]})

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def judge_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


async def test_the_evaluator_sees_the_last_screen_and_two_actions(judge_url):
    evaluator = Evaluator(judge_url, served_model(judge_url, "--judge"), distrl.JUDGE_PROMPT)
    Replies.says[:], Replies.asked[:] = (
        ["Done. Status: success", "It is unsuccessful.\nStatus: failure", "who knows"],
        [],
    )
    assert await evaluator.success('say "hi"', ["a", "b"], [b"\x89PNG1"]) == 1.0
    assert await evaluator.success("x", ["a"], [b"\x89PNG1"]) == 0.0
    with pytest.raises(EnvFault, match="neither success nor failure"):
        await evaluator.success("x", ["a"], [b"\x89PNG1"])
    first = Replies.asked[0]
    text, picture = first["messages"][0]["content"]
    assert first["model"] == "eye" and '"say \\"hi\\""' in text["text"] and '["a", "b"]' in text["text"]
    assert picture["image_url"]["url"] == "data:image/png;base64,iVBORzE="
    with pytest.raises(UsageError, match="--judge http://127.0.0.1:9/v1: no model"):
        served_model("http://127.0.0.1:9/v1", "--judge")


async def test_the_judge_says_which_actions_were_invalid(judge_url):
    made = trajectory(random.Random(1), steps=3)
    made.steps[1].error, album = "refused", Album()
    for picture in (b"\x89PNG0", b"\x89PNG1", b"\x89PNG2", b"\x89PNG3"):
        album.see({"screenshot": picture})
    judge = Evaluator(judge_url, "eye", distrl.ACTION_PROMPT)
    Replies.says[:], Replies.asked[:] = ["Status: success", "Status: failure"], []
    for t in range(3):
        await distrl.judge_action(judge, made, t, album)
    assert [step.error for step in made.steps] == ["", "refused", "the judge: invalid"]
    text, before, after = Replies.asked[1]["messages"][0]["content"]
    assert '["action 2"]' in text["text"] and before["image_url"]["url"].endswith(b64encode(b"\x89PNG2").decode())
    assert after["image_url"]["url"].endswith(b64encode(b"\x89PNG3").decode())


async def test_agreement_of_a_judge_that_always_says_success(judge_url, capsys):
    Replies.says[:], Replies.asked[:] = ["Status: success"] * 12, []
    await judge_benchmark.measure(judge_benchmark.Args(judge_url, tasks=3, images=(1, 3)))
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[2].split()[0] for row in rows] == ["0.500", "0.500"]
    assert "| 1.000 [" in rows[0] and "| 0.000 [" in rows[0]
    pictures = [len(asked["messages"][0]["content"]) - 1 for asked in Replies.asked]
    assert pictures[:6] == [1] * 6 and set(pictures[6:]) <= {2, 3}


async def test_an_album_has_the_screen_after_the_last_action():
    class Env:
        async def reset(self, task, seed):
            return {"screenshot": b"0"}, {}

        async def step(self, action):
            return {"screenshot": action.encode()}, 0.0, False, False, {}

    album = Album()
    env = Watched(Env(), album)
    await env.reset(None)
    for action in "121":
        await env.step(action)
    assert album.last(1) == [b"1"] and album.last(3) == [b"1", b"2", b"1"]


class Phone:
    """A phone of scripted faults: what `faults` has for an episode happens at its second action."""

    def __init__(self, faults):
        self.faults, self.played = faults, 0

    async def reset(self, task, seed=0):
        self.fault, self.count = self.faults.pop(0) if self.faults else None, 0
        self.played += 1
        return self.seen(), {"hash": "0"}

    def seen(self):
        return {"text": 'page "x"', "error": "", "url": "android://x", "title": "x", "screenshot": None}

    async def step(self, action):
        self.count += 1
        if self.fault and self.count == 2:
            raise self.fault
        over = self.count == 3
        return self.seen(), 0.0, over, False, {"hash": "0", "verdict": 1.0, "answer": ""} if over else {"hash": "0"}

    async def close(self):
        pass


def worker_of(phone, monkeypatch, **options):
    monkeypatch.setattr(distrl, "make_env", lambda args, number: phone)
    return distrl.RolloutWorker(replace(ARGS, phones_per_worker=1, max_new_tokens=3, **options), 0)


TASK = Task("t", "general", "do it", 5, config={})


class Shown(Phone):
    """A phone that shows these screens, one after the other; its own check holds on the screens of `done`."""

    def __init__(self, screens, done=()):
        super().__init__([])
        self.screens, self.done = screens, done

    def seen(self):
        return super().seen() | {"screenshot": b"\x89PNG" + self.screens[self.count].encode()}

    def verdict(self, answer):
        return float(self.screens[self.count] in self.done)


async def test_the_judge_sees_every_new_screen_and_ends_the_episode(monkeypatch, judge_url):
    def judged(phone, says, **options):
        Replies.says[:], Replies.asked[:] = [f"Status: {said}" for said in says], []
        return worker_of(phone, monkeypatch, judge=judge_url, judge_model="eye", **options).play(TASK, 1, 1.0)

    (played, _), _, _ = await judged(Shown("0123", done="1"), ["failure", "success"])
    assert (played.ending, played.judged, played.verdict, len(played.steps)) == ("exit", 1.0, 0.0, 2)
    assert distrl.success_of(played) == 1.0 and not Replies.says
    # a screen that did not change is not judged again, the agent's own exit is
    (played, _), _, _ = await judged(Shown("0113"), ["failure", "success"])
    assert (played.ending, played.judged, len(played.steps), len(Replies.asked)) == ("exit", 1.0, 3, 2)
    (played, _), _, _ = await judged(Shown("0123"), ["failure"], judge_states=False)
    assert (played.judged, len(played.steps), len(Replies.asked)) == (0.0, 3, 1)


async def test_without_a_judge_the_check_ends_the_episode(monkeypatch):
    for on, steps in ((True, 2), (False, 3)):
        worker = worker_of(Shown("0123", done="2"), monkeypatch, judge_states=on)
        (played, _), _, _ = await worker.play(TASK, 1, 1.0)
        assert (played.ending, played.verdict, len(played.steps)) == ("exit", 1.0, steps)
    worker = worker_of(Shown("0123", done="2"), monkeypatch)  # as the last step that there may be is done
    (played, _), _, _ = await worker.play(replace(TASK, max_steps=2), 1, 1.0)
    assert (played.ending, played.verdict, len(played.steps)) == ("exit", 1.0, 2)
    worker = worker_of(Shown("0123"), monkeypatch)
    (played, _), _, _ = await worker.play(replace(TASK, max_steps=2), 1, 1.0)
    assert (played.ending, len(played.steps)) == ("truncated", 2) and distrl.success_of(played) == 0.0


async def test_an_episode_that_ends_in_a_fault_is_played_again_and_counted(monkeypatch):
    worker = worker_of(Phone([EnvFault("offline"), EnvHang("slow")]), monkeypatch)
    (played, pictures), log, waited = await worker.play(TASK, 1, 1.0)
    assert played.verdict == 1.0 and len(played.steps) == 3 and log.faults == 2 and log.episodes == 3
    assert played.attempt == 2 and pictures == {} and waited > 0


async def test_a_task_that_is_nothing_but_faults_is_dropped(monkeypatch):
    worker = worker_of(Phone([EnvFault("offline")] * 3), monkeypatch)
    played, log, _ = await worker.play(TASK, 1, 1.0)
    assert played is None and log.dropped == 1 and log.faults == 3


async def test_a_phone_that_fails_again_and_again_rests(monkeypatch):
    phone = Phone([EnvFault("offline")] * 6 + [None, EnvFault("offline"), EnvFault("offline"), EnvFault("offline")])
    worker, waits = worker_of(phone, monkeypatch), []
    loop = asyncio.get_running_loop()

    def at_once(seconds, call, *given):
        waits.append(seconds)
        loop.call_soon(call, *given)

    monkeypatch.setattr(loop, "call_later", at_once)
    for _ in range(4):
        await worker.play(TASK, 1, 1.0)
    assert waits == [5.0, 10.0, 0.0, 5.0]


async def test_a_worker_swaps_weights_between_two_batches_and_says_the_version(monkeypatch, base):
    worker = worker_of(Phone([]), monkeypatch)
    assert (await worker.newest.complete([5, 6, 7], 1, 0.0)).version == -1
    weights = {name: torch.zeros_like(p) for name, p in base[0].named_parameters()}

    async def fetched(value):
        await asyncio.sleep(0.01)
        return value

    assert await worker.pull([fetched(weights)], 3) > 0
    assert worker.newest.version == 3 and not any(p.any() for p in worker.newest.model.parameters())
    await worker.pull([fetched({})], 2)  # came late
    answers = await asyncio.gather(*(worker.newest.complete([5, 6, 7], seed, 1.0) for seed in range(3)))
    assert worker.newest.version == 3 and {answer.version for answer in answers} == {3}


async def test_an_evaluation_beside_training_is_of_the_version_that_it_names(monkeypatch, base):
    worker = worker_of(Phone([]), monkeypatch)
    weights = [{name: p.detach() * share for name, p in base[0].named_parameters()} for share in (0.5, 0.0)]

    async def of(version):
        return weights[version]

    await worker.pull([of(1)], 7)  # newer ones are there already
    (evaluated, _), _, _ = await worker.play(TASK, 1, 0.0, [of(0)], 4)
    (played, _), _, _ = await worker.play(TASK, 1, 0.0)
    (again, _), _, _ = await worker.play(TASK, 1, 0.0, [None], 4)  # fetched once
    assert [{step.version for step in made.steps} for made in (evaluated, played, again)] == [{4}, {7}, {4}]
    assert [step.logprobs for step in again.steps] == [step.logprobs for step in evaluated.steps]
    mean = sum(map(sum, (step.logprobs for step in evaluated.steps)))
    assert mean != pytest.approx(sum(map(sum, (step.logprobs for step in played.steps))))
