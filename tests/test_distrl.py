"""distrl.py's equations against slow computations of their own, and its parts without Ray."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distrl

REWARDS, VALUES = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.2, 0.4, 0.6, 0.0])
RATIOS = torch.tensor([0.5, 2.0, 0.8])


def test_retrace_and_v_trace_on_known_numbers():
    assert distrl.retrace(REWARDS, VALUES, RATIOS, 0.9, 0.9).tolist() == pytest.approx([0.483352, 0.3992, 0.4])
    assert distrl.v_trace(REWARDS, VALUES, RATIOS, 0.9).tolist() == pytest.approx([0.2726, 0.428, 0.32])


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
    found = distrl.advantages(rewards, values, gamma).tolist()
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
    assert distrl.v_trace(rewards, values, ratios, gamma).tolist() == pytest.approx(slow, abs=1e-9)


def test_on_policy_with_full_traces_the_corrected_value_is_the_return():
    ones = torch.ones(3)
    corrected = VALUES[:-1] + distrl.retrace(REWARDS, VALUES, ones, 0.9, 1.0)
    assert corrected.tolist() == pytest.approx([0.81, 0.9, 1.0])
    assert distrl.returns(REWARDS, 0.9).tolist() == pytest.approx([0.81, 0.9, 1.0])
    one_step = distrl.retrace(REWARDS, VALUES, ones, 0.9, 0.0)  # no trace: the TD error alone
    assert one_step.tolist() == pytest.approx(distrl.td_errors(REWARDS, VALUES, 0.9).tolist())


def test_rewards_are_the_outcome_the_return_from_the_next_step_and_the_penalties():
    zeros = torch.zeros(3)
    options = zeros, zeros, 0.5, 0.4, 1.0
    assert distrl.shaped_rewards(REWARDS, *options).tolist() == pytest.approx([0.5, 1.0, 1.0])
    assert distrl.shaped_rewards(zeros, *options).tolist() == [0.0, 0.0, 0.0]
    assert distrl.released_rewards(REWARDS, *options).tolist() == pytest.approx([0.2, 0.45, 1.95])
    repeats, invalid = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0])
    found = distrl.shaped_rewards(zeros, repeats, invalid, 0.5, 0.4, 1.0)
    assert found.tolist() == pytest.approx([-1.0, -0.4, -0.8])


def test_without_the_return_a_small_gamma_would_make_correct_steps_negative():
    sure = torch.tensor([0.6, 0.6, 0.6, 0.0])
    assert distrl.advantages(REWARDS, sure, 0.5)[1] < 0
    shaped = distrl.shaped_rewards(REWARDS, torch.zeros(3), torch.zeros(3), 0.5, 0.4, 1.0)
    assert all(distrl.advantages(shaped, sure, 0.5) > 0)


def test_repetitions_need_the_same_action_on_the_same_screen():
    assert distrl.repetitions(["a", "a", "a", "b", "a"], ["1", "1", "1", "1", "1"]) == [0, 1, 2, 0, 0]
    assert distrl.repetitions(["a", "a", "a"], ["1", "2", "2"]) == [0, 0, 1]
    assert distrl.repetitions([], []) == []


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


def test_priority_and_its_maxima():
    errors, entropies = torch.tensor([0.5, -1.0]), torch.tensor([1.0, 3.0])
    ratios = torch.tensor([0.4, 7.0])
    found = distrl.trajectory_priority(errors, ratios, entropies, (2.0, 0.5, 0.1), 1.5, 4.0)
    assert isinstance(found, float)
    assert found == pytest.approx(2.0 * 0.75 / 1.5 + 0.5 * 0.7 + 0.1 * 2.0 / 4.0)
    assert distrl.trajectory_priority(errors, ratios, entropies, (2.0, 0.5, 0.1), 0.0, 0.0) == pytest.approx(0.35)


def test_sampling_probabilities():
    found = distrl.sampling_probabilities(torch.tensor([1.0, 4.0, 0.0]))
    assert found.tolist() == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert distrl.sampling_probabilities([1.0, 4.0], alpha=0.0).tolist() == [0.5, 0.5]
    assert distrl.sampling_probabilities([1.0, 4.0], alpha=1.0).tolist() == pytest.approx([0.2, 0.8])
    assert distrl.sampling_probabilities([0.0, 0.0]).tolist() == [0.5, 0.5]
