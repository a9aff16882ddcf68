"""crps.py's formulas against slow, independent computations, and the rules of its buffer and curriculum."""

import copy
import math
import random
from collections import Counter
from dataclasses import replace
from statistics import fmean, pstdev
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crps
import variants.crps as variants
from common.errors import UsageError
from common.lm import learn, llm
from common.lm.args import values_of
from common.lm.rollout import Player
from common.replay import Step, Trajectory
from envs import Task
from tests.nets import net_of

outcomes_ = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12)


# ------------------------------------------------------------------------------------------------------- the equations
@given(outcomes_)
def test_group_advantages_are_equation_4(rewards):
    got = crps.group_advantages(torch.tensor(rewards)).tolist()
    spread = pstdev(rewards)
    expected = [(r - fmean(rewards)) / (spread + 1e-6) if spread else 0.0 for r in rewards]
    assert got == pytest.approx(expected, abs=1e-4)


def test_group_advantages_of_the_known_vector():
    got = crps.group_advantages(torch.tensor([1.0, 1.0] + [0.0] * 6))
    assert got[0].item() == pytest.approx(1.7321, abs=1e-4) and got[-1].item() == pytest.approx(-0.5774, abs=1e-4)


@given(st.floats(-5, 5), st.integers(1, 9))
def test_a_group_of_equal_rewards_says_nothing(reward, size):
    assert crps.group_advantages(torch.full((size,), reward)).tolist() == [0.0] * size


@given(outcomes_)
def test_leave_one_out_is_the_mean_of_the_others(rewards):
    got = variants.leave_one_out_advantages(torch.tensor(rewards)).tolist()
    expected = [r - fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert got == pytest.approx(expected, abs=1e-5)


steps_ = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8)


@given(steps_, st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None)
def test_gae_is_the_weighted_sum_of_temporal_differences(steps, gamma, lam):
    rewards, values = ([step[i] for step in steps] for i in (0, 1))
    got = variants.gae(torch.tensor(rewards), torch.tensor(values), gamma, lam)
    following = [*values[1:], 0.0]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    for t in range(len(steps)):
        expected = sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(steps)))
        assert got[t].item() == pytest.approx(expected, abs=1e-5)


def test_gae_ends():
    rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.2, 0.5, 0.4])
    torch.testing.assert_close(variants.gae(rewards, values, 1.0, 1.0), 1.0 - values)  # the return minus V
    torch.testing.assert_close(variants.gae(rewards, values, 0.9, 0.0), torch.tensor([0.25, -0.14, 0.6]))


@given(st.lists(st.tuples(st.floats(-4, 0), st.floats(-4, 0)), min_size=1, max_size=6), st.floats(-2, 2))
@settings(deadline=None)
def test_policy_loss_is_the_clipped_objective_and_its_gradient(tokens, advantage):
    new, old = (torch.tensor([[t[i] for t in tokens]], dtype=torch.float64) for i in (0, 1))
    new.requires_grad_()
    loss = crps.policy_loss(new, old, torch.tensor([advantage], dtype=torch.float64), 0.2)
    loss.sum().backward()
    for i, (after, before) in enumerate(tokens):
        ratio = math.exp(after - before)
        clipped = min(max(ratio, 0.8), 1.2)
        assert loss[0, i].item() == pytest.approx(-min(ratio * advantage, clipped * advantage), abs=1e-9)
        if 0.81 < ratio < 1.19:
            assert new.grad[0, i].item() == pytest.approx(-ratio * advantage, abs=1e-9)
        elif (advantage > 0 and ratio > 1.21) or (advantage < 0 and ratio < 0.79):
            assert new.grad[0, i].item() == 0.0


@given(st.floats(-3, 0), st.floats(-3, 0))
def test_k3_is_never_negative_and_unbiased_at_its_root(new, ref):
    got = crps.kl_k3(torch.tensor([[new]], dtype=torch.float64), torch.tensor([[ref]], dtype=torch.float64)).item()
    assert got >= -1e-12 and got == pytest.approx(math.exp(ref - new) - 1 - (ref - new), abs=1e-9)


def test_k3_estimates_the_divergence():
    torch.manual_seed(0)
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.4, 0.4, 0.2])
    drawn = torch.multinomial(p, 200_000, replacement=True)
    got = crps.kl_k3(p.log()[drawn][None], q.log()[drawn][None]).mean().item()
    assert got == pytest.approx((p * (p / q).log()).sum().item(), abs=0.01)


def test_initial_suffix_is_equation_9():
    assert crps.initial_suffix(0.25, 12, 0.2, 0.8, 1, 12) == 4
    assert crps.initial_suffix(0.0, 3, 0.2, 0.8, 1, 3) == 1  # floor(0.6) below k_min
    assert crps.initial_suffix(1.0, 20, 0.2, 0.8, 1, 10) == 10
    assert crps.initial_suffix(0.5, 6, 0.2, 0.8, 1, 6) == 3
    for accuracy in range(9):
        for length in range(1, 51):
            exact = (2 * 8 + 6 * accuracy) * length // 80  # in whole numbers
            assert crps.initial_suffix(accuracy / 8, length, 0.2, 0.8, 1, length) == max(1, min(exact, length))
    for low, high, accuracy, length, exact in ((0.1, 0.7, 0.375, 40, 13), (0.2, 0.9, 1.0, 30, 27)):
        assert crps.initial_suffix(accuracy, length, low, high, 1, length) == exact  # a hair less in floats


def test_the_controller_is_equations_11_and_12():
    controller = crps.SuffixController(4, 12)
    assert controller.update(1.0) == 6 and controller.rate == pytest.approx(0.95)
    assert controller.update(0.0) == 4 and controller.rate == pytest.approx(0.095)
    assert controller.update(0.5) == 4  # .46: within the band
    slow = crps.SuffixController(4, 12, smoothing=0.1)
    assert [slow.update(1.0) for _ in range(10)] == [4] * 8 + [6, 8]  # 1 - .5 * .9^n passes .8 at n = 9
    for _ in range(20):
        controller.update(1.0)
    assert controller.k == 12
    for _ in range(20):
        controller.update(0.0)
    assert controller.k == 1


@given(st.lists(st.sampled_from([i / 8 for i in range(9)]), max_size=30), st.integers(1, 20), st.integers(1, 8))
def test_the_controller_against_a_table(accuracies, length, step):
    controller, k, rate = crps.SuffixController(1, length, 0.2, 0.8, 0.9, step), 1, 0.5
    for accuracy in accuracies:
        rate = 0.1 * rate + 0.9 * accuracy
        k = min(k + step, length) if rate > 0.8 else max(k - step, 1) if rate < 0.2 else k
        assert controller.update(accuracy) == k


def test_group_entropy_is_equation_14():
    assert crps.group_entropy(2, 8) == pytest.approx(0.8113, abs=1e-4)
    assert crps.group_entropy(4, 8) == 1.0
    assert crps.group_entropy(0, 8) == crps.group_entropy(8, 8) == 0.0


# ------------------------------------------------------------------------------------------- the buffer and the groups
def task(number):
    return Task(f"t{number}", "webshop", f"buy {number}", 15)


def episode(number, steps, reward, prefix=0, rng=None):
    rng = rng or random.Random(number)
    made = Trajectory(task(number), 0, 0, reward=reward, verdict=reward, prefix=prefix)
    for i in range(steps):
        prompt = [rng.randint(2, 49) for _ in range(rng.randint(3, 20))]
        action = [rng.randint(2, 49) for _ in range(rng.randint(1, 6))] + [1]
        made.steps.append(Step(prompt, action, [-1.0] * len(action), 0, "page", f"> click[{i}]", hash=f"h{i}"))
    return made


def group_of(number, rewards, entry=None, suffix=0, steps=6):
    rollouts = [episode(number, steps + i, r) for i, r in enumerate(rewards)]
    return crps.Group(task(number), entry, suffix, rollouts)


def make_args(**changes):
    return crps.Args(**{**values_of(crps.Args, "tiny"), "preset": "tiny", "cpu_threads": 0, **changes})


def update(buffer, groups, **changes):
    offsets = {t: 100 + i for i, t in enumerate(t for group in groups for t in group.rollouts)}
    return crps.update_buffer(buffer, groups, offsets, make_args(**changes))


def test_only_successes_of_groups_that_also_fail_are_kept():
    buffer = {}
    groups = [group_of(0, [0] * 8), group_of(1, [1.0] * 8), group_of(2, [0, 1.0, 1.0, 0]), group_of(3, [1.0] * 7 + [0])]
    update(buffer, groups, alpha_max=0.875, beta_min=0.2, beta_max=0.8)
    assert list(buffer) == ["t2", "t3"]  # Eq. 7 at alpha_max = .875
    entry = buffer["t2"]
    assert len(entry.trajectory.steps) == 7 and entry.trajectory.reward == 1.0  # the shorter of its two successes
    assert entry.offset == 100 + 16 + 1
    assert entry.controller.k == crps.initial_suffix(0.5, 7, 0.2, 0.8, 1, 7) and entry.controller.length == 7
    update(buffer, [group_of(4, [1.0, 0, 0, 0])], alpha_max=0.2)
    assert "t4" not in buffer


def test_the_oldest_task_leaves_a_full_buffer():
    buffer = {}
    for number in range(5):
        update(buffer, [group_of(number, [1.0, 0.0])], buffer_size=3)
    assert list(buffer) == ["t2", "t3", "t4"]


def test_by_difficulty_the_most_extreme_leaves_and_what_may_go_either_way_is_replayed():
    buffer = {}
    update(buffer, [group_of(number, [1.0, 0.0]) for number in range(3)])
    rates = {"t0": 0.5, "t1": 0.98, "t2": 0.1}
    for name, rate in rates.items():
        buffer[name].controller.rate = rate
    rng, tasks = random.Random(3), [task(9)]
    args = make_args(groups_per_iteration=1, p_replay=1.0, difficulty_aware=True)
    first = Counter(crps.draw_groups(buffer, tasks, rng, args)[0].task.task_id for _ in range(4000))
    weights = {name: rate * (1 - rate) for name, rate in rates.items()}
    for name, weight in weights.items():
        assert first[name] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)
    update(buffer, [group_of(3, [1.0, 0.0])], buffer_size=3, difficulty_aware=True)
    assert list(buffer) == ["t0", "t2", "t3"]  # 0.98 is nearest to an end


def test_a_replay_group_moves_its_own_controller_and_is_not_inserted_again():
    buffer = {}
    update(buffer, [group_of(1, [1.0, 0.0]), group_of(2, [1.0, 0.0])])
    first, second = buffer["t1"], buffer["t2"]
    before = first.controller.k, second.controller.k, first.trajectory
    update(buffer, [group_of(1, [1.0] * 8, first, suffix=3)])
    assert (first.controller.k, second.controller.k, first.trajectory) == (before[0] + 2, before[1], before[2])
    update(buffer, [group_of(1, [0.0] * 8, first, suffix=3)])
    assert first.controller.k == before[0]


def test_convergence_steps_are_the_groups_outside_the_band():
    buffer = {}
    update(buffer, [group_of(1, [1.0, 0.0], steps=12)])
    entry = buffer["t1"]
    assert update(buffer, [group_of(1, [1.0, 0.0], entry, 3)])[0] == []  # it was never outside
    for _ in range(3):
        assert update(buffer, [group_of(1, [0.0] * 8, entry, 3)])[0] == []
    assert update(buffer, [group_of(1, [1.0, 0.0], entry, 3)])[0] == [3]
    assert update(buffer, [group_of(1, [1.0, 0.0], entry, 3)])[0] == []


def test_mastery_takes_two_groups_of_the_whole_trajectory():
    buffer = {}
    update(buffer, [group_of(1, [1.0, 0.0])])
    entry = buffer["t1"]
    whole = len(entry.trajectory.steps)
    for rewards, suffix, left in (
        ([1.0] * 8, whole, True),
        ([1.0] * 8, whole - 1, True),  # not the whole: it begins anew
        ([1.0] * 8, whole, True),
        ([1.0] * 7 + [0.0], whole, True),
        ([1.0] * 8, whole, True),
        ([1.0] * 8, whole, False),
    ):
        _, mastered = update(buffer, [group_of(1, rewards, entry, suffix)])
        assert ("t1" in buffer) == left == (mastered == 0)


def test_the_mixture_is_equation_13():
    buffer, tasks = {}, [task(i) for i in range(1000, 1300)]
    update(buffer, [group_of(i, [1.0, 0.0]) for i in range(200)])
    args, rng = make_args(groups_per_iteration=50, p_replay=0.2), random.Random(0)
    groups = [g for _ in range(200) for g in crps.draw_groups(buffer, tasks, rng, args)]
    assert sum(g.entry is not None for g in groups) / len(groups) == pytest.approx(0.2, abs=0.015)
    one = crps.draw_groups(buffer, tasks, rng, make_args(groups_per_iteration=100, p_replay=1.0))
    assert max(Counter(g.task.task_id for g in one).values()) == 1  # no task twice
    assert all(g.suffix == g.entry.controller.k for g in one)
    assert not any(g.entry for g in crps.draw_groups(buffer, tasks, rng, make_args(replay="none", p_replay=1.0)))
    few = {key: buffer[key] for key in list(buffer)[:2]}
    assert sum(g.entry is not None for g in crps.draw_groups(few, tasks, rng, make_args(p_replay=1.0))) == 2


def test_where_replays_begin():
    buffer = {}
    update(buffer, [group_of(1, [1.0, 0.0], steps=9)])
    rng, tasks = random.Random(0), [task(5)]

    def start(**changes):
        return crps.draw_groups(buffer, tasks, rng, make_args(p_replay=1.0, groups_per_iteration=1, **changes))[
            0
        ].start()

    entry = buffer["t1"]
    assert start() == (entry.trajectory, 9 - entry.controller.k)  # Eq. 8
    assert start(fixed_k=4)[1] == 5 and start(fixed_k=100)[1] == 0 and start(replay="start")[1] == 0
    assert crps.Group(task(5)).start() is None


def test_the_diagnostics():
    buffer = {}
    update(buffer, [group_of(1, [1.0, 0.0])])
    groups = [group_of(2, [0.0] * 4), group_of(3, [1.0] * 4), group_of(4, [1.0, 0.0, 0.0, 0.0])]
    groups.append(group_of(1, [1.0, 1.0, 0.0, 0.0], buffer["t1"], suffix=3))
    metrics = crps.group_metrics(groups)
    assert metrics["groups/all_zero"] == metrics["groups/all_one"] == metrics["groups/replayed"] == 0.25
    assert metrics["groups/entropy"] == pytest.approx((crps.group_entropy(1, 4) + 1) / 4)
    assert metrics["groups/fresh_all_zero"] == pytest.approx(1 / 3)
    assert metrics["replay/success_k3"] == metrics["replay/success"] == 0.5 and metrics["replay/groups_k3"] == 1
    assert metrics["replay/suffix_mean"] == 3 and metrics["replay/suffix_share"] == 0.5


class Playing:
    """Plays what `outcomes` says of each rollout: None (lost to a fault), or (verdict, first hash)."""

    def __init__(self, outcomes):
        self.outcomes, self.steps = outcomes, 0

    def play(self, tasks, temperature, seed, name, iteration, starts):
        played = []
        for place, outcome in enumerate(self.outcomes):
            if outcome is None:
                continue
            trace, prefix = starts[place] or (None, 0)
            rollout = episode(place, prefix + 3, None, prefix)
            rollout.task, rollout.place, rollout.verdict, rollout.score = tasks[place], place, outcome[0], 0.7
            rollout.steps[prefix].hash = outcome[1]
            played.append(rollout)
        return played


def test_a_batch_keeps_the_groups_that_can_be_compared():
    buffer = {}
    update(buffer, [group_of(1, [1.0, 0.0])], beta_min=0.5, beta_max=0.5)
    args = make_args(group_size=4, groups_per_iteration=4, p_replay=0.0)
    learner = crps.Learner(None, random.Random(1))
    win, loss = (1.0, "a"), (0.0, "a")
    outcomes = [win, loss, None, None, win, None, None, None, loss, loss, (0.0, "b"), loss, None, win, loss, loss]
    player = Playing(outcomes)
    groups = crps.collect(learner, buffer, player, [task(n) for n in range(4)], args)
    assert [[t.place for t in group.rollouts] for group in groups] == [[0, 1], [13, 14, 15]]  # half is enough
    assert [t.reward for t in groups[0].rollouts] == [1.0, 0.0]  # the verdict (Eq. 2), not the score
    assert player.steps == 3 * 10  # what was sampled counts, used or not
    args = make_args(group_size=2, groups_per_iteration=1, p_replay=1.0)
    player = Playing([win, loss])
    (group,) = crps.collect(learner, buffer, player, [task(5)], args)
    assert group.entry is buffer["t1"] and group.suffix == 3 and [t.prefix for t in group.rollouts] == [3, 3]
    assert player.steps == 2 * 3 and learner.restored == 2 * 3  # of a restart what follows the prefix
    player = Playing([win, loss])
    crps.collect(learner, buffer, player, [task(5)], replace(args, count_restored=True))
    assert player.steps == 2 * 6 and learner.restored == 4 * 3  # or all of it
    player = Playing([win, (None, "a")])  # of one nobody could say what it was worth
    (group,) = crps.collect(learner, buffer, player, [task(5)], args)
    assert [t.place for t in group.rollouts] == [0] and player.steps == 2 * 3 and learner.restored == 6 * 3
    assert not crps.collect(learner, buffer, Playing([None, None]), [task(5)], args)
    assert not buffer  # a start that cannot be brought back


# ----------------------------------------------------------------------------------- on a small model made by the test
@pytest.fixture(scope="module")
def tiny():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)

    class Tokenizer:
        pad_token_id, eos_token_id = 0, 1

    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, initializer_range=0.3, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), Tokenizer()


class PlayerStub(Player):
    steps, run = 0, SimpleNamespace(say=print)

    def __init__(self):
        """It plays nothing."""


def test_a_group_that_lost_its_others_says_nothing():
    for estimate in (crps.group_advantages, variants.leave_one_out_advantages):
        assert estimate(torch.tensor([1.0])).tolist() == [0.0]
    assert crps.group_advantages(torch.tensor([])).tolist() == []


def sampled(model, tokenizer, groups, shift=0.0):
    """Log-probs of the model into the groups' steps, as sampling would have left them."""
    for trajectory in (t for group in groups for t in group.rollouts):
        for step in trajectory.steps:
            with torch.no_grad():
                logprobs, _ = llm.token_logprobs(model, tokenizer, [step.prompt_ids], [step.action_ids])
            step.logprobs = (logprobs[0] + shift).tolist()


def update_once(tiny, groups, reference=None, **changes):
    """`update_actor` on a copy of the model: (gradient of its last minibatch, the copy, metrics)."""
    actor, args = copy.deepcopy(tiny[0]), make_args(anneal_lr=False, max_grad_norm=1e9, batch_size=999, **changes)
    reference = reference and net_of(reference, tiny[1], args)
    learner = crps.Learner(net_of(actor, tiny[1], args, sgd=True), random.Random(0), reference=reference)
    crps.set_advantages(groups, learner, args)
    metrics = crps.update_actor(learner, groups, PlayerStub(), args)
    gradients = [p.grad.flatten() for p in actor.parameters() if p.grad is not None]
    return torch.cat(gradients) if gradients else None, actor, metrics


def mixed_groups():
    rng = random.Random(3)
    groups = [
        crps.Group(task(n), None, 0, [episode(10 * n + i, rng.randint(1, 4), float(i % 3 == 0)) for i in range(4)])
        for n in range(3)
    ]
    return [*groups, crps.Group(task(9), None, 0, [episode(90 + i, 2, 1.0) for i in range(4)])]


def test_the_gradient_does_not_depend_on_the_micro_batch_nor_on_threads(tiny):
    groups = mixed_groups()
    sampled(*tiny, groups, 0.05)
    whole, _, _ = update_once(tiny, groups, micro_batch_tokens=4000)
    for size in (1, 40, 90):
        torch.testing.assert_close(update_once(tiny, groups, micro_batch_tokens=size)[0], whole, atol=2e-6, rtol=1e-3)
    learn.use_threads(3)
    try:
        threaded = update_once(tiny, groups, micro_batch_tokens=60)[0]
    finally:
        learn.use_threads(1)
    torch.testing.assert_close(threaded, whole, atol=2e-6, rtol=1e-3)


def test_the_update_is_the_token_mean_of_the_objective(tiny):
    """Against one step at a time, token by token."""
    groups = mixed_groups()
    sampled(*tiny, groups, 0.05)
    gradient, _, metrics = update_once(tiny, groups)
    model, total, tokens = copy.deepcopy(tiny[0]), 0.0, 0
    for group in groups[:3]:  # the last one has no advantage
        rewards = [t.reward for t in group.rollouts]
        for t in group.rollouts:
            advantage = (t.reward - fmean(rewards)) / pstdev(rewards)
            for step in t.steps:
                ids = torch.tensor([list(step.prompt_ids) + step.action_ids])
                logits = model(ids).logits[0].log_softmax(-1)
                for j, token in enumerate(step.action_ids):
                    ratio = (logits[len(step.prompt_ids) + j - 1, token] - step.logprobs[j]).exp()
                    total = total - torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                    tokens += 1
    (total / tokens).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected, atol=2e-6, rtol=1e-3)
    assert metrics["losses/policy_loss"] == pytest.approx((total / tokens).item(), abs=1e-5)
    assert metrics["losses/approx_kl"] == pytest.approx(0.05, abs=1e-4)


def test_old_log_probs_can_be_the_model_s_own(tiny):
    groups = mixed_groups()
    sampled(*tiny, groups, 0.05)  # an engine that is off by so much
    _, _, metrics = update_once(tiny, groups, recompute_logprobs=True)
    assert metrics["rollout/logprob_gap"] == pytest.approx(0.05, abs=1e-4)
    assert metrics["losses/approx_kl"] == pytest.approx(0.0, abs=1e-5)


def test_a_replayed_prefix_has_no_gradient(tiny):
    groups = mixed_groups()[:1]
    sampled(*tiny, groups)
    alone, _, _ = update_once(tiny, groups)
    rng = random.Random(8)
    for t in groups[0].rollouts:
        t.steps[:0] = episode(77, 3, 1.0, rng=rng).steps
        t.prefix = 3
    behind, _, metrics = update_once(tiny, groups)
    torch.testing.assert_close(alone, behind)
    assert metrics["losses/trained_steps"] == sum(len(t.steps) - 3 for t in groups[0].rollouts)
    assert all(step.advantage is None for t in groups[0].rollouts for step in t.steps[:3])


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_an_update_makes_successes_likelier(tiny, algorithm):
    groups = mixed_groups()[:2]
    sampled(*tiny, groups)
    before = {id(s): sum(s.logprobs) for g in groups for t in g.rollouts for s in t.steps}
    actor, args = copy.deepcopy(tiny[0]), make_args(algorithm=algorithm, learning_rate=1e-3, anneal_lr=False)
    learner = crps.Learner(net_of(actor, tiny[1], args, 1e-3), random.Random(0))
    crps.set_advantages(groups, learner, args)
    crps.update_actor(learner, groups, PlayerStub(), args)
    sampled(actor.eval(), tiny[1], groups)
    change = {1.0: 0.0, 0.0: 0.0}
    for t in (t for g in groups for t in g.rollouts):
        change[t.reward] += sum(sum(s.logprobs) - before[id(s)] for s in t.steps)
    assert change[1.0] > 0 > change[0.0]


def test_the_reference_holds_the_policy(tiny):
    groups = [group_of(1, [1.0] * 4)]  # no advantage: the divergence alone
    reference = copy.deepcopy(tiny[0])
    with torch.no_grad():
        for p in reference.parameters():
            p.add_(0.05 * torch.randn_like(p))
    sampled(*tiny, groups)
    gradient, _, metrics = update_once(tiny, groups, reference, kl_coef=0.1)
    assert metrics["losses/reference_kl"] > 0 and gradient.abs().sum() > 0
    before, gradients, at = metrics["losses/reference_kl"], gradient, 0
    closer = copy.deepcopy(tiny[0])
    with torch.no_grad():  # a step against the gradient brings the two together
        for p in closer.parameters():
            p -= 0.3 * gradients[at : at + p.numel()].view_as(p)
            at += p.numel()
    assert update_once((closer, tiny[1]), groups, reference, kl_coef=0.1)[2]["losses/reference_kl"] < before
    at_home, _, metrics = update_once(tiny, groups, copy.deepcopy(tiny[0]), kl_coef=0.1)
    assert metrics["losses/reference_kl"] == pytest.approx(0, abs=1e-5) and at_home.abs().max() < 1e-5
    assert update_once(tiny, groups)[2]["losses/trained_steps"] == 0  # without it there is nothing to learn


def test_ppo_values_states_and_normalises_over_the_batch(tiny):
    groups, args = mixed_groups(), make_args(algorithm="ppo", gamma=0.9, gae_lambda=0.8)
    critic = net_of(torch.nn.ModuleDict({"body": tiny[0], "head": torch.nn.Linear(32, 1)}), tiny[1], args)
    learner = crps.Learner(net_of(*tiny, args), random.Random(0), critic=critic)
    restored = max((t for g in groups for t in g.rollouts), key=lambda t: len(t.steps))
    restored.prefix = 2
    crps.set_advantages(groups, learner, args)
    assert all(step.advantage is None and step.value is None for step in restored.steps[:2])
    raw, got = [], []
    for t in (t for g in groups for t in g.rollouts):
        steps = t.steps[t.prefix :]
        with torch.no_grad():
            values = torch.stack([critic.value_logits([s.prompt_ids])[0] for s in steps])
        rewards = torch.zeros(len(steps))
        rewards[-1] = t.reward
        advantages = variants.gae(rewards, values, 0.9, 0.8)
        torch.testing.assert_close(torch.tensor([s.value for s in steps]), advantages + values, atol=1e-5, rtol=1e-4)
        raw += advantages.tolist()
        got += [s.advantage for s in steps]
    expected = [(a - fmean(raw)) / (pstdev(raw) + 1e-6) for a in raw]
    assert got == pytest.approx(expected, abs=1e-4)


def test_the_critic_learns_the_returns(tiny):
    torch.manual_seed(1)
    args = make_args(algorithm="ppo", batch_size=999, micro_batch_tokens=40)
    body, head = copy.deepcopy(tiny[0]), torch.nn.Linear(32, 1)
    critic = net_of(torch.nn.ModuleDict({"body": body, "head": head}), tiny[1], args, 1e-3)
    learner = crps.Learner(net_of(*tiny, args), random.Random(0), critic=critic)
    groups = mixed_groups()
    groups[0].rollouts[0].prefix = len(groups[0].rollouts[0].steps) - 1
    crps.set_advantages(groups, learner, args)
    targets = [(s.prompt_ids, s.value) for g in groups for t in g.rollouts for s in t.steps[t.prefix :]]
    with torch.no_grad():
        errors = [(critic.value_logits([prompt]).item() - value) ** 2 / 2 for prompt, value in targets]
    steps = crps.steps_of(t for group in groups for t in group.rollouts)
    losses = [variants.update_critic(critic, steps, learner.rng, args) for _ in range(20)]
    assert losses[0] == pytest.approx(fmean(errors), rel=1e-4)  # a mean over the steps of this batch
    assert losses[-1] < 0.5 * losses[0]


# --------------------------------------------------------------------------------------------------------- the prompts
def test_an_answer_gives_its_action_back():
    for chat in (False, True):
        for action in ("click[buy now]", "go to cabinet 1", 'do(action="Type", argument="Big > small", element="3")'):
            for thought in ("", "color blue", "a > b"):
                assert crps.read_action(crps.write_action(action, thought, chat)) == action
    assert crps.read_action("<think>x</think><action> Click[Red]\n</action>") == "click[red]"
    assert crps.read_action("<action>one</action> no, <action>two</action>") == "two"
    assert crps.read_action("nothing of the kind") == "nothing of the kind"


def observation(text, actions=()):
    return {"text": text, "error": "", "actions": actions, "url": ""}


def test_the_plain_prompt_has_the_last_two_steps():
    _, tokenizer = llm.load("assets/tiny")
    steps = episode(1, 3, 0.0).steps
    for i, step in enumerate(steps):
        step.observation = f"page {i} " + "and so on " * 20
    obs = observation('"red lamp $4" link [1]')
    text = tokenizer.decode(crps.agent_prompt(tokenizer, "buy a lamp", steps, obs, history_tokens=6))
    assert text == (
        "Task Instruction: buy a lamp\nAction History:\npage 1 and\n> click[1]\npage 2 and\n> click[2]\n"
        'text "step 4"\n"red lamp $4" link [1]\nAction:\n'
    )
    without = tokenizer.decode(crps.agent_prompt(tokenizer, "buy a lamp", steps, obs, history_length=0))
    assert "click[" not in without


@pytest.mark.parametrize("env_id, words", [
    ("webshop", ("WebShop e-commerce environment", "which admissible action best advances the shopping goal")),
    ("alfworld", ("ALFRED Embodied Environment", "'click[red]',\n'click[buy now]'")),
    ("arena", ("operates a web browser", "do(action=")),
])  # fmt: skip
def test_the_chat_prompt_is_the_paper_s(env_id, words, monkeypatch):
    _, tokenizer = llm.load("assets/tiny")
    seen = []
    monkeypatch.setattr(llm, "chat_prompt", lambda tokenizer, system, user: seen.append(user))
    steps = episode(1, 3, 0.0).steps
    steps[2].action = "<think>so it is</think><action>click[blue]</action>"
    obs = observation("it is [SEP] here", ("click[red]", "click[buy now]")) | {"error": "not that"}
    crps.agent_prompt(tokenizer, "buy a lamp", steps, obs, "chat", env_id)
    for word in (*words, "buy a lamp", "already taken 3 step(s)", "most recent 2 observations", "now at step 4",
                 "Action 3: 'click[blue]'", "it is [SEP] here\nerror \"not that\"", "<think> </think>"):  # fmt: skip
        assert word in seen[0], word
    assert "so it is" not in seen[0] and "{" not in seen[0]


@pytest.mark.parametrize("flags, message", [
    (dict(group_size=1), "--group-size 1"),
    (dict(algorithm="ppo", group_size=1), "--group-size 1"),
    (dict(p_replay=1.5), "--p-replay must be from 0 to 1"),
    (dict(smoothing=0.0), "--smoothing 0"),
    (dict(rho_low=0.9), "--rho-low must not be above"),
    (dict(k_min=0), "--k-min must be at least 1"),
    (dict(k_min=5, k_max=3), "--k-max 3 is below"),
    (dict(alpha_max=1.5), "--alpha-max must be from 0 to 1"),
    (dict(test_tasks=-1), "--test-tasks must not be negative"),
    (dict(fixed_k=-1), "--fixed-k must not be negative"),
    (dict(eval_every=0), "--eval-every"),
    (dict(batch_size=0), "--batch-size"),
    (dict(demos="nowhere"), "no such file"),
    (dict(engine="http://x"), "--lora-rank"),
    (dict(env_id="arena", data_dir="x"), "--data-dir: arena"),
    (dict(data_dir="nowhere"), "nowhere"),
    (dict(screenshots=True), "there is no picture of it"),
])  # fmt: skip
def test_wrong_flags_are_one_line(flags, message, tmp_path):
    with pytest.raises(UsageError, match=message) as error:
        crps.main(make_args(**flags, runs_dir=str(tmp_path)))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())  # nothing was begun
