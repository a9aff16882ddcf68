"""No loss of any script has a gradient that is not finite, whatever finite log-probs it is given."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import crps
import digirl
import distrl
import grpo_async
import webrl
from variants import webrl as variants

# Of tokens and of whole actions; far apart is what a stale or truncated sampler gives.
LOGPROB = st.one_of(st.floats(-1e6, 0, width=32), st.sampled_from([0.0, -1.0, -95.0, -1e4]))
ADVANTAGE = st.one_of(st.floats(-100, 100, width=32), st.sampled_from([-1.0, 0.0, 1.0]))
ROWS = st.lists(st.tuples(LOGPROB, LOGPROB, LOGPROB, ADVANTAGE), min_size=1, max_size=4)


def check(loss_of, logprobs, *others):
    """The gradient of `loss_of(logprobs, *others)` and its value are finite."""
    logprobs = logprobs.clone().requires_grad_()
    loss = loss_of(logprobs, *others)
    loss.sum().backward()
    assert loss.isfinite().all(), (logprobs, others, loss)
    assert logprobs.grad.isfinite().all(), (logprobs, others, logprobs.grad)


def columns(rows):
    return torch.tensor(rows, dtype=torch.float32).unbind(1)


CAPPED = [(-1.0, -1.0, -95.0, 1.0)]  # pi_prox / pi_behave overflows


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from([0.0, 3.0]), st.sampled_from([0.0, 5.0]), st.data())
@example(CAPPED, 3.0, 5.0, None)
@example([(0.0, -95.0, -1.0, -1.0)], 0.0, 5.0, None)
def test_decoupled(rows, dual_clip, behave_cap, data):
    *logprobs, advantages = columns(rows)
    logprobs = [values[:, None].expand(-1, 2) for values in logprobs]
    masks = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))) if data else [True] * len(rows)
    mask = torch.tensor([[True, second] for second in masks])

    def loss(logprobs, *others):
        return grpo_async.decoupled_loss(logprobs, *others, advantages, mask, 0.2, dual_clip, behave_cap)[0]

    check(loss, *logprobs)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.floats(0.01, 10))
@example([(0.0, -95.0, -1.0, -1.0)], 1.0)
@example([(-95.0, 0.0, -1.0, -1.0)], 1.0)
def test_the_others(rows, beta):
    logprobs, reference, entropies, advantages = columns(rows)
    tokens, old = logprobs[:, None], reference[:, None]
    check(lambda x: crps.policy_loss(x, old, advantages), tokens)
    check(lambda x: crps.kl_k3(x, old), tokens)
    check(lambda x: webrl.policy_loss(x, reference, advantages, beta), logprobs)
    check(lambda x: variants.reinforce_loss(x, advantages), logprobs)
    check(lambda x: variants.weighted_loss(x, advantages, beta), logprobs)
    signs = torch.where(advantages >= 0, 1.0, -0.6)
    for lengths in (1, 40):
        check(lambda x, n=lengths: variants.released_loss(x, reference, torch.full_like(x, n), signs), logprobs)
    ratios = (logprobs - reference).exp()  # inf among them
    check(lambda x: distrl.policy_loss(x, ratios, advantages, -entropies, beta), logprobs)
    check(lambda x: distrl.policy_loss(logprobs, ratios, advantages, -x, beta), entropies)
    check(lambda x: digirl.policy_loss(x, advantages), logprobs)
    labels = (advantages > 0).float()
    for value_loss in (webrl.critic_loss, distrl.critic_loss, digirl.value_loss):
        check(lambda x, loss=value_loss: loss(x, labels), logprobs)
