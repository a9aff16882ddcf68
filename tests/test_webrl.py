"""webrl.py's formulas against slow, independent computations, and the curriculum's and replay's rules."""

import json
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import digirl
import envs
import variants.webrl as variants
import webrl
from common.errors import UsageError
from common.lm import learn, stats
from common.lm.args import parse_args, values_of
from common.lm.net import value_net
from common.lm.rollout import Player
from common.lm.run import Timer
from common.replay import Step, Trajectory
from envs import Task
from tests.nets import net_of

values_ = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12)


@given(values_, st.sampled_from([0.0, 1.0]), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_advantages_are_equation_15(values, reward, gamma, lam):
    got = webrl.advantages(torch.tensor(values, dtype=torch.float64), reward, gamma, lam)
    last = len(values) - 1
    for t, value in enumerate(values):
        r_t = reward if t == last else 0.0
        following = values[t + 1] if t < last else 0.0  # V after the end is 0
        one_step = r_t + gamma * following - value
        final_step = gamma ** (last - t) * reward - value
        assert got[t].item() == pytest.approx(lam * one_step + (1 - lam) * final_step, abs=1e-12)


def test_advantages_of_the_known_vectors():
    # Eq. 8 with r_t = 0, V = .3, V' = .6, r_T = 1: 0.5; Eq. 15 with T - t = 2, gamma = .9: 0.375
    assert webrl.advantages(torch.tensor([0.3, 0.6]), 1.0, 1.0, 0.5)[0].item() == pytest.approx(0.5)
    assert webrl.advantages(torch.tensor([0.3, 0.6, 0.5]), 1.0, 0.9, 0.5)[0].item() == pytest.approx(0.375)
    assert webrl.advantages(torch.tensor([0.3]), 1.0)[0].item() == pytest.approx(0.7)  # the rewarded step itself
    assert webrl.advantages(torch.tensor([0.3]), 0.0)[0].item() == pytest.approx(-0.3)


def test_policy_loss_of_the_known_vector_and_its_gradient():
    logprob = torch.tensor([-3.0], requires_grad=True)
    loss = webrl.policy_loss(logprob, torch.tensor([-3.5]), torch.tensor([0.4]), beta=1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.01)
    assert logprob.grad.item() == pytest.approx(0.2)


@given(
    st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.floats(-1, 1)), min_size=1, max_size=8),
    st.floats(0.01, 2),
)
@settings(max_examples=100, deadline=None)
def test_policy_loss_is_equation_12_and_its_gradient_equation_6(rows, beta):
    logprobs = torch.tensor([r[0] for r in rows], dtype=torch.float64, requires_grad=True)
    reference, advantage = (torch.tensor([r[i] for r in rows], dtype=torch.float64) for i in (1, 2))
    loss = webrl.policy_loss(logprobs, reference, advantage, beta)
    loss.backward()
    assert loss.item() == pytest.approx(sum((beta * (p - q) - a) ** 2 for p, q, a in rows) / len(rows))
    for got, (p, q, a) in zip(logprobs.grad, rows, strict=True):
        assert got.item() == pytest.approx(-2 * beta * (a - beta * (p - q)) / len(rows), abs=1e-9)


def test_a_good_action_becomes_likelier_and_a_bad_one_less():
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    webrl.policy_loss(logprobs, torch.tensor([-1.0, -1.0]), torch.tensor([0.5, -0.5]), 0.1).backward()
    assert logprobs.grad[0] < 0 < logprobs.grad[1]  # descent raises the first log-prob and lowers the second


def test_the_released_advantage_is_a_sign():
    values = torch.tensor([0.5, 0.56, 0.5])
    assert variants.released_advantages(values, 1.0).tolist() == [1.0] * 3  # an outcome paid at every step drowns V
    # of a failure's steps those are good after which V has risen by 0.05
    assert variants.released_advantages(values, 0.0).tolist() == pytest.approx([1.0, -0.6, -0.6])
    assert variants.released_advantages(torch.tensor([0.5, 0.54]), 0.0).tolist() == pytest.approx([-0.6, -0.6])
    # the last step's next state is its own page: V cannot rise there
    assert variants.released_advantages(torch.tensor([0.5, 0.4]), 0.0).tolist() == pytest.approx([-0.6, -0.6])
    # the return of a success of three steps at gamma = .9 is 2.71, 1.9, 1: with the outcome it outweighs a fall of V by
    # 3.66 before the first step and by 2.85 before the second
    for fall, signs in ((3.65, [1.0, 1.0]), (3.67, [-0.6, 1.0])):
        assert variants.released_advantages(torch.tensor([fall, 0.0, 0.0]), 1.0).tolist()[:2] == pytest.approx(signs)
    for fall, sign in ((2.84, 1.0), (2.86, -0.6)):
        values = torch.tensor([fall, fall, 0.0])
        assert variants.released_advantages(values, 1.0)[1].item() == pytest.approx(sign)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.sampled_from([0.0, 1.0]), st.floats(0.1, 1))
@settings(max_examples=60, deadline=None)
def test_digirls_advantages_are_those_of_its_own_script(values, reward, gamma):
    outcomes = torch.zeros(len(values))
    outcomes[-1] = reward
    own = digirl.step_advantages(outcomes, torch.tensor([*values, 0.0]), gamma, 0.05)
    got = webrl.VARIANTS["digirl"].advantages(torch.tensor(values), reward, make_args(gamma=gamma))
    assert got.tolist() == pytest.approx(own.tolist(), abs=1e-6)  # where they are near 0, float32 rounds


def test_digirl_values_the_first_page_of_a_step_that_is_replayed_alone():
    made = trajectory(random.Random(3), 4, 1.0)
    steps, args = webrl.steps_of([made]), make_args(loss="digirl")
    critic = value_net(net_of(*webrl.llm.load(args.model_id), args))
    webrl.set_advantages([steps[2]], critic, args)
    assert [step.value for step in made.steps] == [0.5, None, 0.5, 0.5]  # V = 0.5 everywhere
    assert made.steps[2].advantage == pytest.approx(-0.05 + args.gamma) and made.steps[1].advantage is None
    webrl.set_advantages([steps[3]], critic, args)
    assert made.steps[3].advantage == pytest.approx(-0.5 - 0.05 + 1 + 1)  # the last one: V after it is 0
    assert variants.passed(steps[2:], 0.5) == steps[2:]


def test_an_advantage_that_reads_a_state_without_a_value_is_an_error(monkeypatch):
    """A user's GAE reads V of all states that follow; of a replayed pair two are valued, which once counted as 0."""

    def gae(values, reward, gamma, lam):
        rewards = torch.zeros_like(values)
        rewards[-1] = reward
        errors = rewards + gamma * torch.cat([values[1:], values.new_zeros(1)]) - values
        return torch.stack([sum((gamma * lam) ** k * e for k, e in enumerate(errors[t:])) for t in range(len(values))])

    monkeypatch.setattr(webrl, "advantages", gae)
    made, args = trajectory(random.Random(3), 4, 1.0), make_args()
    critic = value_net(net_of(*webrl.llm.load(args.model_id), args))
    steps = webrl.steps_of([made])
    made.steps[3].value = 0.9  # by an earlier critic: not to be used
    with pytest.raises(ValueError, match="reads V of states other than t and t . 1"):
        webrl.set_advantages([steps[1]], critic, args)
    webrl.set_advantages([steps[2]], critic, args)  # all that follow are valued
    webrl.set_advantages(steps, critic, args)


def test_the_kind_of_an_episode_not_its_title_says_what_becomes_of_it():
    memory = webrl.Memory(set(), [])
    task = Task("a", "shop", "buy", max_steps=3)

    def episode(title, kind=""):
        return Trajectory(task, 0, 0, [Step([1], [2], [-0.5], 0, "p", "exit()")], reward=1.0, policy=title, kind=kind)

    memory.add([episode("warm-up", "start"), episode("phase 1"), episode("ORM data, T=1"), episode("eval")], "rollouts")
    assert [t.policy for t in memory.labelled] == ["warm-up", "ORM data, T=1"]
    assert [t.policy for t in memory.rollouts] == [t.policy for t in memory.replay_buffer] == ["warm-up", "phase 1"]


def test_digirls_filters():
    rng = random.Random(2)
    rollouts = [trajectory(rng, 2, reward) for reward in (1.0, 1.0, 0.0, 0.0)]
    for t, value in zip(rollouts, (0.25, 0.75, 0.25, 0.75), strict=True):  # scores .75, .25, -.25, -.75
        t.steps[0].value, t.steps[0].advantage, t.steps[1].advantage = value, 0.5, -0.5
    steps, first = webrl.steps_of(rollouts), [t.steps[0] for t in rollouts]
    assert variants.passed(steps, 1.0) == first[:1]
    assert variants.passed(steps, 2 / 3) == first[:2]  # what is at the quantile stays
    assert variants.passed(steps, 0.0) == first


@pytest.mark.parametrize("sure", [True, False])
def test_the_released_loss_pushes_up_to_a_log_ratio_a_token(sure):
    tokens, reference = 4, 4 * math.log(0.9 if sure else 0.5)
    slope = 5.0 if sure else 1.0
    for ratio in (-2.0, -0.3, 0.0, 0.5 / slope, 0.99 / slope, 1.2 / slope):
        logprob = torch.tensor([reference + tokens * ratio] * 2, dtype=torch.float64, requires_grad=True)
        signs = torch.tensor([1.0, -0.6], dtype=torch.float64)
        lengths, ref = torch.tensor([tokens] * 2), torch.tensor([reference] * 2, dtype=torch.float64)
        variants.released_loss(logprob, ref, lengths, signs).backward()
        per_token = -1.0 if ratio <= 0 else -max(0.0, 1 - slope * ratio)
        assert logprob.grad[0].item() == pytest.approx(per_token / tokens / 2, abs=1e-6)
        assert logprob.grad[1].item() == 0.0  # no bad action is ever pushed down


@given(
    st.lists(st.tuples(st.floats(-9, 0), st.floats(-1, 1)), min_size=1, max_size=8), st.sampled_from([0.1, 0.5, 2.0])
)
@settings(max_examples=100, deadline=None)
def test_the_gradients_of_reinforce_and_of_advantage_weighted_regression(rows, beta):
    for loss_of, weight in (
        (variants.reinforce_loss, lambda a: a),
        (lambda p, a: variants.weighted_loss(p, a, beta), lambda a: min(math.exp(a / beta), 20.0)),
    ):
        logprobs = torch.tensor([p for p, _ in rows], dtype=torch.float64, requires_grad=True)
        loss_of(logprobs, torch.tensor([a for _, a in rows], dtype=torch.float64)).backward()
        for got, (_, a) in zip(logprobs.grad.tolist(), rows, strict=True):
            assert got == pytest.approx(-weight(a) / len(rows), abs=1e-12)


def test_what_each_ablation_draws(monkeypatch):
    """Failures enter the replay only where they are asked for; forward-kl's actor sees no replay; the critic sees what
    --critic-replay says."""
    rng = random.Random(5)
    fresh = [trajectory(rng, 2, 1.0)]
    won, lost = trajectory(rng, 3, 1.0), trajectory(rng, 4, 0.0)
    seen = {}
    monkeypatch.setattr(webrl, "update_critic", lambda learner, steps, *_: seen.update(critic=steps))
    monkeypatch.setattr(webrl, "update_actor", lambda learner, steps, *_: seen.update(actor=steps) or {})
    actor = net_of(*webrl.llm.load(make_args().model_id), make_args())
    learner = webrl.Learner(actor, random.Random(0), critic=value_net(actor))
    memory = webrl.Memory(set(), [], rollouts=[won, lost], replay_buffer=[won])

    def episodes(**flags):
        flags = dict(loss="paper", replay_ratio=9.0, perplexity_low=0.0, perplexity_high=1e30, floored_keep=1.0) | flags
        update(learner, memory, fresh, 1, random.Random(0), make_args(**flags))
        return [{step.trajectory for step in seen[name]} for name in ("actor", "critic")]

    new, win, loss = fresh[0], won, lost
    assert episodes(critic_replay="success") == [{new, win}, {new, win}]
    assert episodes(critic_replay="none") == [{new, win}, {new}]
    assert episodes(critic_replay="success", replay_failures=True) == [{new, win, loss}, {new, win, loss}]
    assert episodes(critic_replay="success", replay=False) == [{new}, {new}]
    assert episodes(critic_replay="success", loss="forward-kl") == [{new}, {new, win}]
    assert episodes(critic_replay="success", loss="sft", replay_failures=True) == [{new, win}, {new, win, loss}]
    floored = dict(replay_failures=True, advantage_floor=0.0, floored_keep=0.0)  # V is 0.5: the failure's are below
    assert episodes(loss="paper", **floored)[0] == episodes(loss="reinforce", **floored)[0] == {new, win}
    assert episodes(loss="awr", **floored)[0] == {new, win, loss}  # at a floor of 0 a bad action would weigh exp(0)


def test_critic_loss_is_the_cross_entropy_of_equation_7():
    logits, outcomes = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1.0, 0.0, 0.0])
    slow = 0.0
    for logit, outcome in zip(logits.tolist(), outcomes.tolist(), strict=True):
        value = 1 / (1 + math.exp(-logit))
        slow -= outcome * math.log(value) + (1 - outcome) * math.log(1 - value)
    assert webrl.critic_loss(logits, outcomes).item() == pytest.approx(slow / 3)


def test_perplexity_of_the_known_vector_and_its_padding():
    logprobs = torch.tensor([[-0.1, -0.2, -0.3, -99.0], [-1.0, -99.0, -99.0, -99.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    got = webrl.perplexity(logprobs, mask)
    assert got.tolist() == pytest.approx([1.2214, math.e], abs=1e-4)
    assert webrl.in_confidence_band(got).tolist() == [True, False]


def test_confidence_band_keeps_its_edges():
    ppl = torch.tensor([1.0, 1 / 0.95, 1.5, 2.0, 2.01])
    assert webrl.in_confidence_band(ppl).tolist() == [False, True, True, True, False]


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


def trajectory(rng, steps, reward):
    made = Trajectory(Task(f"t{rng.random()}", "shop", "do it", 15), 0, 0, reward=reward, verdict=reward)
    for _ in range(steps):
        prompt = [rng.randint(2, 49) for _ in range(rng.randint(3, 20))]
        action = [rng.randint(2, 49) for _ in range(rng.randint(1, 6))] + [1]
        made.steps.append(Step(prompt, action, [], 0, "page", "action"))
    return made


def make_args(**changes):
    return webrl.replace(
        webrl.Args(),
        **{
            **values_of(webrl.Args, "tiny"),
            "preset": "tiny",
            "anneal_lr": False,
            "learning_rate": 0.0,
            "max_grad_norm": 1e9,
            **changes,
        },
    )


def update(learner, memory, rollouts, phase, rng, args):
    """Lines 17 and 18. Metrics."""
    steps, metrics = webrl.experience(learner, memory, rollouts, rng, args)
    return metrics | webrl.update_actor(learner, steps, phase, rng, args)


def actor_gradient(model, tokenizer, trajectories, args):
    import copy

    actor = net_of(copy.deepcopy(model), tokenizer, args, sgd=True)
    steps = webrl.steps_of(trajectories)
    for number, step in enumerate(steps):
        step.advantage = math.sin(number)
    webrl.set_ref_logprobs(steps, actor)
    for step in steps:
        step.ref_logprob -= 0.1
    webrl.update_actor(webrl.Learner(actor, random.Random(0)), steps, 1, random.Random(0), args)
    return torch.cat([p.grad.flatten() for p in actor.model.parameters()])


def test_the_gradient_does_not_depend_on_the_micro_batch_nor_on_threads(tiny):
    rng = random.Random(1)
    trajectories = [trajectory(rng, rng.randint(1, 4), 1.0) for _ in range(6)]
    whole = actor_gradient(*tiny, trajectories, make_args(batch_size=64, micro_batch_tokens=2000))
    for size in (1, 40, 90):
        part = actor_gradient(*tiny, trajectories, make_args(batch_size=64, micro_batch_tokens=size))
        torch.testing.assert_close(part, whole, atol=2e-5, rtol=1e-3)
    learn.use_threads(3)
    try:
        threaded = actor_gradient(*tiny, trajectories, make_args(batch_size=64, micro_batch_tokens=60))
        again = actor_gradient(*tiny, trajectories, make_args(batch_size=64, micro_batch_tokens=60))
    finally:
        learn.use_threads(1)
    torch.testing.assert_close(threaded, whole, atol=2e-5, rtol=1e-3)
    assert threaded.equal(again)  # summed in one order, whichever thread was first


def test_replay_is_of_successes_in_the_band_and_capped(tiny):
    rng = random.Random(2)
    buffer = [trajectory(rng, 5, 1.0) for _ in range(40)]
    actor = net_of(*tiny, make_args())
    every = sorted(webrl.set_ref_logprobs(webrl.steps_of(buffer), actor))
    args = make_args(perplexity_low=every[50], perplexity_high=every[150])  # a band that holds half of them
    steps, share = webrl.draw_replay(buffer, actor, limit=25, rng=random.Random(0), args=args)
    assert len(steps) == 25 and share == pytest.approx(101 / 200)  # all were scored
    references = [step.ref_logprob for step in steps]
    again = webrl.set_ref_logprobs(steps, actor)
    assert all(every[50] - 1e-3 <= ppl <= every[150] + 1e-3 for ppl in again)
    assert [step.ref_logprob for step in steps] == pytest.approx(references, abs=1e-4)
    narrow = make_args(perplexity_low=1.0, perplexity_high=1.0001)
    assert webrl.draw_replay(buffer, actor, limit=25, rng=rng, args=narrow) == ([], 0.0)


def test_perplexity_and_log_pi_are_the_actors_whatever_the_rollouts_temperature(tiny):
    import copy

    steps = webrl.steps_of([trajectory(random.Random(2), 4, 1.0)])
    for step in steps:
        step.advantage = 0.5
    drifts, found = [], []
    for temperature in (1.0, 0.25):
        args = make_args(temperature=temperature, perplexity_low=0.0, perplexity_high=1e30)
        actor = net_of(copy.deepcopy(tiny[0]), tiny[1], args, 0.0)
        webrl.draw_replay([steps[0].trajectory], actor, 9, random.Random(0), args)
        found.append([step.ref_logprob for step in steps])
        metrics = webrl.update_actor(webrl.Learner(actor, random.Random(0)), steps, 1, random.Random(0), args)
        drifts.append(metrics["losses/ref_minus_new_logprob"])
    assert found[0] == found[1]
    assert found[0] == pytest.approx([sum(actor.token_logprobs([s])[s]) for s in steps], abs=1e-4)
    assert drifts == pytest.approx([0.0, 0.0], abs=1e-4)  # the update's log pi is that of pi_ref


@pytest.mark.parametrize("loss", ["paper", "sft"])
def test_an_update_moves_the_actions_the_right_way(tiny, loss):
    """One small step with real gradients: what has a positive advantage (or, for sft, succeeded) becomes likelier."""
    import copy

    rng = random.Random(5)
    trajectories = [trajectory(rng, 3, 1.0), trajectory(rng, 3, 0.0)]
    steps = webrl.steps_of(trajectories)
    args = make_args(learning_rate=1e-3, actor_epochs=1, loss=loss, batch_size=6)
    actor = net_of(copy.deepcopy(tiny[0]), tiny[1], args, args.learning_rate)
    webrl.set_ref_logprobs(steps, actor)
    for step in steps:
        step.advantage = 0.5 if step.trajectory.reward else -0.5
    before = {step: step.ref_logprob for step in steps}
    learner = webrl.Learner(actor, random.Random(0))
    kept = [step for step in steps if step.trajectory.reward] if loss == "sft" else steps
    metrics = webrl.update_actor(learner, kept, 1, rng, args)
    webrl.set_ref_logprobs(steps, actor)
    change = {1.0: 0.0, 0.0: 0.0}
    for step in steps:
        change[step.trajectory.reward] += step.ref_logprob - before[step]
    assert change[1.0] > 0
    assert loss == "sft" or change[0.0] < 0
    assert metrics["losses/grad_norm"] > 0 and learner.updates == 1


def test_a_loss_that_is_not_a_number_ends_the_run():
    with pytest.raises(UsageError, match="critic"):
        webrl.mean_loss([torch.tensor(1.0), torch.tensor(math.nan)], "critic")


def test_the_schedule_reaches_the_rate_and_its_floor():
    rates = [webrl.warmup_cosine(i / 1000, 0.1, 0.1) for i in range(1001)]
    assert max(rates) == pytest.approx(1.0) and rates.index(max(rates)) in (99, 100)
    assert rates[0] < 0.02 and rates[-1] == pytest.approx(0.1)
    assert rates[:100] == sorted(rates[:100]) and rates[100:] == sorted(rates[100:], reverse=True)
    assert webrl.warmup_cosine(0.1) == pytest.approx(1.0) and webrl.warmup_cosine(0.55) == pytest.approx(0.5)
    assert webrl.warmup_cosine(0.525, 0.05, 0.1) == pytest.approx(0.55)  # half of the way down to the floor


def test_a_single_update_has_no_warm_up():
    assert webrl.warmup_cosine(0.0, updates=1) == 1.0
    assert webrl.warmup_cosine(0.0, updates=2) == webrl.warmup_cosine(0.0) < 0.02


def test_values_are_set_where_the_advantage_needs_them(tiny):
    rng = random.Random(3)
    trajectories = [trajectory(rng, 4, 1.0), trajectory(rng, 3, 0.0)]
    args = make_args(gamma=0.9, advantage_lambda=0.5)
    critic = net_of(torch.nn.ModuleDict({"body": tiny[0], "head": torch.nn.Linear(32, 1)}), tiny[1], args)
    webrl.set_advantages(webrl.steps_of(trajectories), critic, args)
    for made in trajectories:
        states = [s.prompt_ids for s in made.steps]
        with torch.no_grad():
            values = torch.stack([critic.value_logits([s]).sigmoid()[0] for s in states])
        expected = webrl.advantages(values, made.reward, 0.9, 0.5)
        assert [s.advantage for s in made.steps] == pytest.approx(expected.tolist(), abs=1e-5)
    # a single replayed step needs its own value and the next one's only
    alone = trajectory(rng, 4, 1.0)
    webrl.set_advantages([webrl.steps_of([alone])[1]], critic, args)
    with torch.no_grad():
        values = torch.stack([critic.value_logits([s.prompt_ids]).sigmoid()[0] for s in alone.steps])
    assert alone.steps[1].advantage == pytest.approx(webrl.advantages(values, 1.0, 0.9, 0.5)[1].item(), abs=1e-5)
    assert alone.steps[0].value is None and alone.steps[3].value is None


def test_the_floor_keeps_a_share():
    rng = random.Random(0)
    made = trajectory(rng, 300, 0.0)
    for i, step in enumerate(made.steps):
        step.advantage = -0.5 if i % 3 else 0.2
    args = make_args(advantage_floor=-0.1, floored_keep=0.33)
    kept = webrl.floor_advantages(webrl.steps_of([made]), [], rng, args)
    assert min(s.advantage for s in made.steps) == -0.1
    floored = [1 for step in kept if step.advantage == -0.1]
    assert 40 <= len(floored) <= 95 and len(kept) - len(floored) == 100


def test_the_judge_in_force_pays_and_running_out_of_steps_does_not():
    def made(judged, verdict, ending="exit"):
        return Trajectory(Task("a", "shop", "buy", 15), 0, 0, judged=judged, verdict=verdict, ending=ending)

    assert webrl.outcome_reward(made(0.9, 0.0), "orm") == 1.0  # a true verdict never corrects the ORM
    assert webrl.outcome_reward(made(0.2, 1.0), "orm") == 0.0
    assert [webrl.outcome_reward(made(judged, 1.0), "orm", 0.8) for judged in (0.8, 0.81)] == [0.0, 1.0]
    assert webrl.outcome_reward(made(0.2, 1.0), "env") == 1.0
    assert webrl.outcome_reward(made(0.9, None), "env") == 0.0  # no checker
    assert webrl.outcome_reward(made(0.9, 1.0, "truncated"), "orm") == 0.0


def test_an_episode_that_was_cut_off_is_worth_as_much_everywhere(monkeypatch):
    """Where a check looks at the page alone it may pass without an exit (WebArena, WebGym)."""
    step = Step([1], [2], [-0.5], 0, "page", "scroll")
    task = Task("a", "shop", "buy", 15, config={"eval": {}})
    cut_off, ended = (Trajectory(task, 0, 0, [step], e, verdict=1.0, policy="start-up") for e in ("truncated", "exit"))
    quiet = SimpleNamespace(append=lambda _: None)
    run = SimpleNamespace(timer=Timer(), trajectories=quiet, report=lambda *_: None, log=lambda *_: None)
    play = lambda tasks, temperature, seed, title, *_: [cut_off, ended] if title == "start-up" else []  # noqa: E731
    player = SimpleNamespace(run=run, play=play, envs=[None], steps=0)
    args = make_args(judge="env", loss="sft", curriculum=False)
    learner = webrl.Learner(net_of(*webrl.llm.load(args.model_id), args), random.Random(0))
    memory = webrl.Memory(set(), [])
    monkeypatch.setattr(webrl, "save", lambda *_: None)
    webrl.start_memory(learner, memory, player, [task], [], args)
    assert (cut_off.reward, ended.reward) == (0.0, 1.0)
    assert memory.replay_buffer == [ended] and memory.failure_set == [task]
    labels = {}
    monkeypatch.setattr(webrl.orm, "train", lambda net, prompts, given, *_: labels.update(given=given))
    learner.orm = learner.actor
    webrl.train_orm(learner, memory.labelled, 1, args)
    assert labels["given"] == [0.0, 1.0] == [webrl.outcome_reward(t, "env") for t in (cut_off, ended)]


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_critic_begins_as_the_actor(lora_rank):
    args = make_args(lora_rank=lora_rank)
    actor, tokenizer = webrl.llm.load(args.model_id, lora_rank)
    with torch.no_grad():
        for p in actor.parameters():
            if p.requires_grad:
                p += 0.01 * torch.randn_like(p)
    critic = value_net(net_of(actor, tokenizer, args))
    prompts = [tokenizer.encode("Task Instruction: log out\nAction History:\n")]
    with torch.no_grad():
        torch.testing.assert_close(
            webrl.llm.hidden_states(critic.model["body"], tokenizer, prompts)[0],
            webrl.llm.hidden_states(actor, tokenizer, prompts)[0],
        )
        assert critic.value_logits(prompts).tolist() == [0.0]  # V = 0.5


def test_adapters_move_the_actor_and_the_critics_zero_head_as_far_as_all_weights_do():
    """By the paper's preset, in a few updates on the same steps."""
    made = [trajectory(random.Random(4), 4, 1.0)]
    steps = webrl.steps_of(made)
    states = [step.prompt_ids for step in steps]

    def moved(*flags):
        args = parse(["--preset", "paper", *flags])
        torch.manual_seed(0)
        actor = net_of(*webrl.llm.load(args.model_id, args.lora_rank), args, args.learning_rate)
        critic = value_net(actor).begin(args.critic_learning_rate)
        before = webrl.llm.hidden_states(actor.model, actor.reader, states)[0].detach()
        for _ in range(4):
            actor.descend(lambda part: -actor.action_logprobs(part).sum(), [steps])
        webrl.update_critic(critic, steps, 4, random.Random(0), args)
        now = webrl.llm.hidden_states(actor.model, actor.reader, states)[0].detach()
        return (now - before).norm().item(), critic.model["head"].weight.abs().mean().item()

    (full, full_head), (adapters, head) = moved(), moved("--lora-rank", "8")
    assert 1 / 3 < adapters / full < 3
    assert head == pytest.approx(10 * full_head, rel=0.2) and head > 3e-5  # four steps of 1e-5


@pytest.mark.parametrize("critic_first", [True, False])
def test_advantages_are_those_of_the_critic_that_was_asked_for(tiny, critic_first):
    """--critic-first: of the critic after its update on this phase's outcomes; otherwise of the one before it."""
    rng = random.Random(4)
    rollouts = [trajectory(rng, 3, float(won)) for won in (True, False, True, False)]
    args = make_args(critic_first=critic_first, replay=False, critic_learning_rate=1e-2, num_phases=1)
    learner = webrl.Learner(net_of(*webrl.llm.load(args.model_id), args, sgd=True), random.Random(0))
    learner.critic = value_net(learner.actor).begin(args.critic_learning_rate)  # V = 0.5 everywhere
    update(learner, webrl.Memory(set(), []), rollouts, 1, rng, args)
    values = [step.value for t in rollouts for step in t.steps]
    assert (values == [0.5] * len(values)) is not critic_first
    after = learner.critic.values([s.prompt_ids for t in rollouts for s in t.steps])
    assert after != [0.5] * len(after)  # it was updated in both orders
    assert (values == pytest.approx(after, abs=1e-5)) is critic_first


@pytest.mark.parametrize("loss", ["paper", "released", "reinforce", "awr", "forward-kl", "digirl", "sft"])
def test_every_loss_makes_the_actions_of_successes_likelier(loss):
    rng = random.Random(4)
    rollouts = [trajectory(rng, 3, float(won)) for won in (True, False, True, False)]
    args = make_args(loss=loss, replay=False, num_phases=1, learning_rate=1e-3, actor_epochs=8)
    actor = net_of(*webrl.llm.load(args.model_id), args, args.learning_rate)
    learner = webrl.Learner(actor, random.Random(0))
    if loss != "sft":  # V = 0.5 everywhere: Eq. 15's sign is the outcome's
        learner.critic = value_net(actor).begin(args.critic_learning_rate)
    metrics = update(learner, webrl.Memory(set(), []), rollouts, 1, rng, args)
    assert metrics["losses/policy_loss"] > 0
    won = webrl.steps_of([t for t in rollouts if t.reward])
    before = [step.ref_logprob for step in won]
    webrl.set_ref_logprobs(won, actor)
    assert sum(step.ref_logprob for step in won) > sum(before) + 1


@pytest.mark.parametrize("loss", ["digirl", "sft"])
def test_what_passes_a_filter_is_trained_on_by_maximum_likelihood(loss):
    rng = random.Random(4)
    rollouts = [trajectory(rng, 3, float(won)) for won in (True, False, True, False)]
    args = make_args(loss=loss, replay=False, num_phases=1, learning_rate=0.0, filter_quantile=0.5)
    learner = webrl.Learner(net_of(*webrl.llm.load(args.model_id), args, 0.0), random.Random(0))
    if loss == "digirl":  # V = 0.5 everywhere: the filters pass the successes' steps, all
        learner.critic = value_net(learner.actor).begin(0.0)
    metrics = update(learner, webrl.Memory(set(), []), rollouts, 1, rng, args)
    won = [step.ref_logprob for t in rollouts if t.reward for step in t.steps]
    assert metrics["losses/policy_loss"] == pytest.approx(-sum(won) / len(won), rel=1e-4)


def test_the_orm_learns_from_so_many_demonstrations():
    rng = random.Random(0)
    labelled = [trajectory(rng, 1, 1.0) for _ in range(30)]
    for i, t in enumerate(labelled):
        t.kind = "demo" if i % 3 else "start"
    memory = webrl.Memory(set(), [], labelled=labelled)
    found = webrl.labelled_episodes(memory, make_args(orm_demos=4))
    assert sum(t.kind == "demo" for t in found) == 4 and sum(t.kind == "start" for t in found) == 10
    assert found == webrl.labelled_episodes(memory, make_args(orm_demos=4))  # the same after a resume
    assert webrl.labelled_episodes(memory, make_args(orm_demos=20)) == labelled


def test_the_orms_held_out_tenth_is_of_instructions_that_it_never_saw(tiny, monkeypatch):
    rng = random.Random(0)
    labelled = [trajectory(rng, 2, float(i % 2)) for i in range(90)]
    for i, t in enumerate(labelled):
        t.task = webrl.replace(t.task, instruction=f"do {i // 3}")
    parts = {}

    def note(name):
        def call(*given):
            trajectories = next(some for some in given if isinstance(some, list))
            parts[name] = {t.task.instruction for t in trajectories}
            for t in trajectories:
                t.judged = 0.5
            return 0.1

        return call

    monkeypatch.setattr(webrl, "train_orm", note("trained"))
    monkeypatch.setattr(webrl, "judged", note("held"))
    run = SimpleNamespace(timer=Timer(), trajectories=SimpleNamespace(append=lambda _: None))
    player = SimpleNamespace(run=run, play=lambda *_: [])
    learner = webrl.Learner(net_of(*tiny, make_args()), random.Random(0))
    metrics = webrl.start_orm(learner, webrl.Memory(set(), labelled), player, [labelled[0].task], make_args())
    assert len(parts["held"]) == 3 and len(parts["trained"]) == 27 and not parts["held"] & parts["trained"]
    assert metrics["orm/labelled"] == 90 and metrics["orm_start/episodes"] == 9


def test_training_instructions_are_the_first_n():
    env = envs.make("arena-v1/shop")
    every = env.tasks("train")
    assert parse(["--preset", "paper"]).train_tasks == 1186 and parse([]).train_tasks == 0
    for flags, wanted in (([], every), (["--train-tasks", "40"], every[:40])):
        assert webrl.tasks_of(env, parse(flags))[0] == wanted
    assert len({task.template for task in every[:40]}) > 15  # of all kinds


def test_what_has_no_check_counts_as_a_failure_beside_the_known_success():
    rollouts = [trajectory(random.Random(0), 1, reward) for reward in (1.0, 1.0, 0.0, 0.0)]
    for t, config in zip(rollouts, ({"eval": {}}, {"eval": {}}, {"eval": {}}, None), strict=True):
        t.task, t.verdict = webrl.replace(t.task, config=config), t.reward if config else None
    metrics = stats.rollout_metrics(rollouts) | webrl.check_metrics(SimpleNamespace(), rollouts)
    assert metrics["rollout/true_success"] == pytest.approx(2 / 3) and metrics["curriculum/true_success"] == 0.5
    assert metrics["curriculum/checkable"] == 0.75
    scored = SimpleNamespace(scores_all=True)  # without a config: text environments
    assert webrl.check_metrics(scored, rollouts)["curriculum/checkable"] == 1.0


def test_the_orms_instructions_are_rewritten_where_that_has_a_check():
    """B.3; by an environment whose tasks cannot be done where they end in 5 or 7."""
    own = [Task(f"{i}", "shop", "buy", 15, config={"eval": {}}) for i in range(200)]
    rng = random.Random(0)
    made = webrl.rewritten(Sites(), own, rng, make_args())
    assert all(task.config is not None for task in made)
    assert all(task.instruction.startswith("buy ") and not task.instruction.endswith(("5", "7")) for task in made)

    class Silent(Sites):
        def task_from_text(self, text, like):
            return None

    assert webrl.rewritten(Silent(), own, rng, make_args()) == own
    played, labels = [], []
    player = SimpleNamespace(envs=[Sites()], play=lambda tasks, *_: played.append(tasks) or [])
    player.run = SimpleNamespace(timer=Timer(), trajectories=SimpleNamespace(append=labels.append))
    for curriculum in (True, False):
        args = make_args(curriculum=curriculum, orm_episodes=20)
        learner = SimpleNamespace(rng=random.Random(0), orm=None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(webrl, "train_orm", lambda *_: 0.0)
            patch.setattr(webrl, "judged", lambda *_: None)
            webrl.start_orm(learner, webrl.Memory(set(), []), player, own, args)
        words = {task.instruction for tasks in played for task in tasks}
        assert ("buy" not in words) is curriculum
        played.clear()


def test_a_generator_says_the_orms_instructions_in_other_words(monkeypatch):
    """What the task checks stays; where an answer lacks a task nobody knows which is whose, and all ten stay."""
    own = [Task(f"{i}", "shop", f"buy {i}", 15, config={"eval": {}, "intent": f"buy {i}"}) for i in range(25)]
    asked = []

    def ask(url, model, prompt, flag):
        given = prompt.partition("Tasks:\n")[2].split("\n")
        asked.append(len(given))
        return "Of course.\n" + "\n".join(f"- `please {text}`" for text in given if text != "buy 13")

    monkeypatch.setattr(webrl.serve, "ask", ask)
    args = make_args(generator="http://x", curriculum=True)
    made = webrl.rewritten(Sites(), own, random.Random(0), args)
    assert asked == [10, 10, 5]
    for i, (before, task) in enumerate(zip(own, made, strict=True)):
        words = before.instruction if 10 <= i < 20 else f"please {before.instruction}"
        assert task == webrl.replace(before, instruction=words)
    # what is held out of the ORM's training is not trained on in other words
    both = [Trajectory(task, 0, 0, [], verdict=1.0, kind="label") for task in own + made]
    trained = []
    monkeypatch.setattr(webrl, "train_orm", lambda learner, labelled, *_: trained.extend(labelled) or 0.0)
    monkeypatch.setattr(webrl, "judged", lambda *_: None)
    player = SimpleNamespace(envs=[Sites()], run=SimpleNamespace(timer=Timer(), trajectories=[]), play=lambda *_: [])
    player.run.trajectories = SimpleNamespace(append=lambda _: None)
    learner = SimpleNamespace(rng=random.Random(0), orm=None)
    webrl.start_orm(learner, webrl.Memory(set(), [], labelled=both), player, own, args)
    kept = Counter(t.task.task_id for t in trained)
    assert len(kept) == 23 and set(kept.values()) == {2}


def test_digirls_buffer_holds_its_newest_steps_and_replayed_demonstrations_are_counted(tiny, monkeypatch):
    rng = random.Random(0)
    buffer = [trajectory(rng, 5, 1.0) for _ in range(8)]
    for phase, t in enumerate(reversed(buffer)):
        t.phase, t.kind = phase, "rollout" if phase % 2 else "demo"
    actor, whole = net_of(*tiny, make_args()), dict(perplexity_low=0.0, perplexity_high=1e30, replay_ratio=9.0)
    assert webrl.VARIANTS["digirl"].capacity == 100_000 and webrl.VARIANTS["paper"].capacity is None  # Table 5
    monkeypatch.setitem(webrl.VARIANTS, "digirl", webrl.replace(webrl.VARIANTS["digirl"], capacity=12))

    def replayed(loss):
        return webrl.draw_replay(buffer, actor, 99, random.Random(0), make_args(loss=loss, **whole))[0]

    assert len(replayed("paper")) == 40
    newest = replayed("digirl")
    assert len(newest) == 12 and min(step.trajectory.phase for step in newest) == 5
    memory = webrl.Memory(set(), [], replay_buffer=buffer)
    learner = webrl.Learner(actor, random.Random(0))
    _, metrics = webrl.experience(learner, memory, [trajectory(rng, 5, 1.0)], rng, make_args(loss="sft", **whole))
    assert (metrics["replay/steps"], metrics["replay/demonstrations"]) == (40, 20)


def test_tasks_are_drawn_in_turn():
    drawn = webrl.draw_tasks(list(range(5)), 12, random.Random(0))
    assert len(drawn) == 12 and sorted(drawn[:5]) == sorted(drawn[5:10]) == list(range(5))
    assert webrl.draw_tasks(list(range(5)), 0, random.Random(0)) == []


def test_demonstrations_are_of_every_template_as_many():
    kinds = "a" * 50 + "b" * 5 + "c" * 2
    tasks = [Task(f"{kind}-{i}", "shop", "buy", 15, template=kind) for i, kind in enumerate(kinds)]
    counts = Counter(t.template for t in webrl.draw_evenly(tasks, 9, random.Random(0)))
    assert counts == {"a": 4, "b": 3, "c": 2} or counts == {"a": 3, "b": 4, "c": 2}
    drawn = webrl.draw_evenly(tasks, 100, random.Random(0))
    assert len(drawn) == len({t.task_id for t in drawn}) == 57
    first, second = (webrl.draw_evenly(tasks, 9, random.Random(seed)) for seed in (1, 2))
    assert first == webrl.draw_evenly(tasks, 9, random.Random(1)) != second


# ---------------------------------------------------------------------------------------------------------- curriculum
def test_fixed_instructions_are_those_of_phase_1():
    rng = random.Random(0)
    rollouts = [trajectory(rng, 1, 0.0) for _ in range(6)]
    for i, t in enumerate(rollouts):
        t.task, t.kind, t.phase = webrl.replace(t.task, instruction=f"do {i}"), "rollout" if i % 3 else "start", i % 3
    memory, learner = webrl.Memory(set(), [], rollouts=rollouts), SimpleNamespace(rng=random.Random(0))
    args = make_args(curriculum=True, fixed_instructions=True, instructions_per_phase=4)
    tasks, counts = webrl.phase_tasks(learner, memory, None, None, [], 3, args)
    assert sorted(task.instruction for task in tasks) == ["do 1", "do 1", "do 4", "do 4"] and not counts


class Sites:
    """Instructions are letters and a number; of some numbers there is no task."""

    def vary(self, task, rng):
        return [f"{task.instruction} {rng.randint(0, 30)}" for _ in range(3)]

    def task_from_text(self, text, like):
        return webrl.replace(like, instruction=text, config={"eval": {}}) if not text.endswith(("5", "7")) else None


def test_new_instructions_pass_the_filters_and_report_a_shortfall():
    failures = [Task("a", "shop", "buy", 15), Task("b", "shop", "sell", 15)]
    args = make_args(instructions_per_phase=20, filter_low=0.05, filter_high=0.75)

    def start_value(tasks):
        return [int(t.instruction.split()[-1]) / 30 for t in tasks]

    tasks, counts = webrl.new_instructions(Sites(), failures, set(), start_value, random.Random(0), args, 1)
    assert len(tasks) == 20 == len({t.instruction for t in tasks})
    assert all(0.05 <= v <= 0.75 for v in start_value(tasks))
    assert counts["infeasible"] > 0 and not any(t.instruction.endswith(("5", "7")) for t in tasks)
    assert counts["too_easy"] > 0 and counts["too_hard"] > 0 and counts["shortfall"] == 0
    none, counts = webrl.new_instructions(Sites(), failures, set(), lambda t: [0.9] * len(t), random.Random(0), args, 1)
    assert none == [] and counts["shortfall"] == 20


def test_the_first_page_of_a_world_is_looked_at_once_and_one_that_a_fault_kept_away_has_no_value():
    """Episodes show their worlds' first pages, demonstrations (which may be of another format) do not."""
    worlds = [Task(name, "shop", name, max_steps=3, seed=seed) for name, seed in (("a", 1), ("b", 2), ("c", 3))]
    memory, asked = webrl.Memory(set(), []), []

    def episode(task, policy, page):
        step = Step([1], [2], [-0.5], 0, page, "exit()")
        return Trajectory(task, 0, 0, [step], verdict=0.0, policy=policy, ending="exit")

    def first_pages(tasks):
        asked.append([task.task_id for task in tasks])
        return [None if task.seed == 3 else {"text": "seen now", "error": "", "url": ""} for task in tasks]

    memory.add([episode(worlds[0], "test before", "seen before"), episode(worlds[1], "demo", "another's")], "both")
    player = SimpleNamespace(first_pages=first_pages, prompt=lambda instruction, steps, obs: obs["text"])
    critic = SimpleNamespace(values=lambda states: [len(state) / 100 for state in states])
    learner = SimpleNamespace(critic=critic)
    for _ in range(2):
        values = webrl.start_values(learner, memory, player, [*worlds, worlds[1]], webrl.Args())
        assert values == [0.11, 0.08, 0.0, 0.08]
    assert asked == [["b", "c"], ["c"]]


def test_a_task_that_starts_elsewhere_shows_no_first_page_of_the_site():
    """On the real sites some tasks start deep inside; what a generator writes starts at the site's own start."""
    site = Task("a", "gitlab", "list the issues", 3, config={"start_url": "__GITLAB__"})
    deep = webrl.replace(site, config={"start_url": "__GITLAB__/byteblaze/a11y"})
    both = webrl.replace(site, site="gitlab+reddit", config={"start_url": "__GITLAB__ |AND| __REDDIT__"})
    own = webrl.replace(site, site="http://x.org/deep", config={"start_url": "http://x.org/deep"})
    memory, asked = webrl.Memory(set(), []), []
    for task, page in ((deep, "an issue"), (site, "a list of projects"), (both, "two tabs"), (own, "one's own")):
        step = Step([1], [2], [-0.5], 0, page, "exit()")
        memory.add([Trajectory(task, 0, 0, [step], verdict=0.0, policy="test before")], "rollouts")
    prompt = lambda instruction, steps, obs: obs["text"]  # noqa: E731
    player = SimpleNamespace(first_pages=lambda tasks: asked.append(tasks) or [], prompt=prompt)
    learner = SimpleNamespace(critic=SimpleNamespace(values=lambda states: states))
    written = [webrl.evolved_task(SimpleNamespace(task_from_text=lambda *_: None), "go", t) for t in (deep, both, own)]
    assert webrl.start_values(learner, memory, player, [*written, deep], webrl.Args()) == [
        "a list of projects",
        "two tabs",
        "one's own",
        "an issue",
    ]
    assert asked == [[]]


def test_a_judge_that_is_silent_now_and_then_stops_no_run(tiny, monkeypatch):
    env = SimpleNamespace(fork=lambda: None)
    player = Player(env, None, None, None, None, None, num_envs=4, max_new_tokens=1)
    learner, args = webrl.Learner(net_of(*tiny, make_args()), None), make_args(judge="http://x")
    scores = [0.7 if i >= 30 else None for i in range(250)]  # the lost ones together
    random.Random(0).shuffle(scores)
    monkeypatch.setattr(webrl, "orm_prompt", lambda *_: ([], []))
    monkeypatch.setattr(tiny[1], "decode", str, raising=False)
    monkeypatch.setattr(webrl.orm, "ask_p_yes", lambda url, prompts: scores[: len(prompts)])
    rollouts = [trajectory(random.Random(i), 1, 1.0) for i in range(250)]
    paid = webrl.judged(learner, player, rollouts, args, pays=True)
    assert [t.judged for t in paid] == [0.7] * 220 and player.faults.faults == player.faults.dropped == 30
    assert len(player.faults.recent) == 100 and 0.02 < player.faults.rate < 0.2
    state = json.loads(json.dumps(player.state()))
    assert webrl.judged(learner, player, rollouts[:0], args, pays=True) == [] and player.state() == state
    # an evaluation counts what a check knows, whatever the judge says
    assert webrl.judged(learner, player, rollouts, args) == rollouts and player.state() == state
    for t in rollouts[::2]:
        t.verdict = None
    assert webrl.judged(learner, player, rollouts, args) == [t for t in rollouts if t.verdict or t.judged]
    assert player.faults.faults == 30 + sum(score is None for score in scores[::2])
    # without a judge of either kind
    none = make_args(judge="env")
    assert webrl.judged(learner, player, rollouts, none) == rollouts[1::2]
    assert webrl.judged(learner, player, rollouts, none, pays=True) == rollouts


def test_the_page_of_episodes_has_the_judges_threshold(monkeypatch):
    shown = []
    monkeypatch.setattr(webrl, "evaluate", lambda *_: [])
    monkeypatch.setattr(webrl.view, "write", lambda path, args: shown.append((args.run, args.judge_threshold)))
    monkeypatch.setattr(webrl.plot, "write", lambda args: [])
    player = SimpleNamespace(run=SimpleNamespace(path="runs/x", log=lambda *_: None), steps=0)
    webrl.finish(make_args(orm_threshold=0.8, control=False), player, None, webrl.Memory(set(), []), [])
    assert shown == [("runs/x", 0.8)]


def test_without_a_generator_the_environment_says_what_is_feasible():
    env, args = envs.make("arena-v1/shop"), make_args()
    task = env.tasks("train")[0]
    there = next(t for t in env.tasks("train") if t.seed == task.seed and t != task).instruction
    for text, can_be_done in (
        (there, True),
        ("add 2 purple nothing and 1 pink nought to the cart", False),
        ("sing", False),
    ):
        assert webrl.feasible(webrl.evolved_task(env, text, task), args) is can_be_done


def test_error_types_follow_their_rules():
    def made(actions, outcome, errors=(), pages=True, verdict=0.0):
        t = Trajectory(Task("a", "shop", "buy", 15), 0, 0, verdict=verdict, ending=outcome)
        for i, action in enumerate(actions):
            t.steps.append(Step([], [], [], 0, f"page {i if pages else 0}", action, error="no" if i in errors else ""))
        return t

    stuck, attempt, recover, page = stats.ERRORS
    assert stats.error_type(made(["a", "b"], "truncated")) == stuck
    assert stats.error_type(made(["a", "b", "b", "b"], "exit")) == stuck
    assert stats.error_type(made(["x"], "exit", pages=False)) == attempt
    assert stats.error_type(made(["a", "b", "x"], "exit", errors=[1])) == recover
    assert stats.error_type(made(["a", "go_backward()", "x"], "exit")) == recover
    assert stats.error_type(made(["a", "b", "x"], "exit")) == page
    assert stats.error_type(made(["a"], "exit", verdict=1.0)) is None


# ----------------------------------------------------------------------------------------------------------- arguments
def parse(argv):
    return parse_args(webrl.Args, argv, webrl.tiny_values)


def test_the_tiny_preset_knows_where_a_reward_model_was_trained_before():
    names = "arena-v1/shop", "arena-v1", "miniwob", "arena/map"
    shop, two, elsewhere, five = (parse(["--env-id", name]) for name in names)
    assert (
        shop.orm_model_id == two.orm_model_id == "assets/orm"
        and shop.num_demos == values_of(webrl.Args, "tiny")["num_demos"]
    )
    assert (elsewhere.orm_model_id, elsewhere.orm_data) == ("", "") and elsewhere.num_demos == five.num_demos
    assert five.orm_model_id == "assets/orm-v2" and five.num_demos > 3 * two.num_demos > 9 * shop.num_demos
    assert parse(["--env-id", "arena", "--num-demos", "7"]).num_demos == 7  # a flag always wins
    for argv in (["--preset", "paper"], ["--model-id", "org/large"]):
        assert parse(["--env-id", "arena", *argv]).num_demos == webrl.Args().num_demos


def test_a_flag_wins_over_the_preset_and_the_preset_over_the_paper():
    tiny = parse([])
    assert tiny.preset == "tiny" and tiny.learning_rate == values_of(webrl.Args, "tiny")["learning_rate"]
    assert parse(["--learning-rate", "5e-6"]).learning_rate == 5e-6
    paper = parse(["--model-id", "meta-llama/Llama-3.1-8B"])
    assert (paper.preset, paper.learning_rate, paper.gamma, paper.advantage_lambda, paper.batch_size) == (
        "paper",
        1e-6,
        0.9,
        0.5,
        128,
    )
    assert paper.instructions_per_phase == 500 and paper.num_phases == 8 and paper.replay_ratio == 2.0
    assert parse(["--preset", "paper"]).orm_episodes == 12200
    assert parse(["--no-replay"]).replay is False


def test_the_rate_of_success_has_its_interval():
    def made(verdict, site, steps):
        t = Trajectory(Task("a", site, "buy", 15, requirements=1, steps=steps), 0, 0, verdict=verdict, ending="exit")
        t.steps = [Step([], [], [], 0, "p", "a"), Step([], [], [], 0, "q", "b")]
        return t

    metrics = stats.evaluation_metrics([made(1.0, "shop", 2), made(0.0, "shop", 5), made(1.0, "forum", 8)], "eval")
    assert metrics["eval/success"] == pytest.approx(2 / 3)
    assert metrics["eval/low"] < 2 / 3 < metrics["eval/high"]
    assert (metrics["eval/site_shop"], metrics["eval/site_forum"]) == (0.5, 1.0)
    assert (metrics["eval/steps_1-3"], metrics["eval/steps_4-6"], metrics["eval/steps_7+"]) == (1.0, 0.0, 1.0)
    assert sum(v for k, v in metrics.items() if "error_" in k) == pytest.approx(1 / 3)
