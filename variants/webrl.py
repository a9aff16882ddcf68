"""What webrl.py's --loss may name besides the paper's own: its baselines, its ablations, the released code."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from digirl import step_advantages


@dataclass(frozen=True)
class Variant:
    """What --loss names.

    loss(logprobs, reference, advantages, lengths, args): the mean over N actions, of log pi and log pi_ref of whole
    actions, advantages and tokens, [N] each. advantages(values, reward, args): [T] of one trajectory's actions.
    keep(steps, fresh, rng, args): which of the phase's steps (fresh ones and replayed) the actor is trained on.
    critic: whether any of this needs one (the curriculum may have one all the same). first: whether V of the first page
    is needed, too. capacity: steps that may be replayed, the newest (None: all).
    """

    loss: Callable
    advantages: Callable
    keep: Callable
    critic: bool = True
    first: bool = False
    capacity: int | None = None


def other_variants(paper):
    """{name: Variant}; `paper` is the paper's own."""

    def reinforce(logprobs, reference, advantages, lengths, args):
        return reinforce_loss(logprobs, advantages)

    def weighted(logprobs, reference, advantages, lengths, args):
        return weighted_loss(logprobs, advantages, args.beta)

    def released(logprobs, reference, signs, lengths, args):
        return released_loss(logprobs, reference, lengths, signs)

    def likelihood(logprobs, reference, advantages, lengths, args):
        return -logprobs.mean()

    def released_signs(values, reward, args):
        return released_advantages(values, reward, args.gamma)

    def step_level(values, reward, args):
        outcomes = torch.zeros_like(values)
        outcomes[-1] = reward
        after = torch.cat([values, values.new_zeros(1)])  # V after the end is 0
        return step_advantages(outcomes, after, args.gamma, step_cost=0.05)

    def everything(steps, fresh, rng, args):
        return steps

    def fresh_alone(steps, fresh, rng, args):  # Eq. 13's expectation is over pi_ref's actions
        return fresh

    def positive(steps, fresh, rng, args):  # the rest adds 0
        return [step for step in steps if step.advantage > 0]

    def both_levels(steps, fresh, rng, args):
        return passed(steps, args.filter_quantile) if steps else steps

    def successes(steps, fresh, rng, args):
        return [step for step in steps if step.trajectory.reward]

    return {
        "reinforce": replace(paper, loss=reinforce),
        "awr": replace(paper, loss=weighted, keep=everything),
        "forward-kl": replace(paper, loss=weighted, keep=fresh_alone),
        "released": Variant(released, released_signs, positive),
        "digirl": Variant(likelihood, step_level, both_levels, first=True, capacity=100_000),  # Table 5
        "sft": replace(paper, loss=likelihood, keep=successes, critic=False),
    }


def reinforce_loss(logprobs, advantages):
    """The policy gradient with V as its baseline (section 3.7's "w/o KL"): its gradient is -E[A grad log pi]. [N], [N];
    scalar."""
    return -(advantages * logprobs).mean()


def weighted_loss(logprobs, advantages, beta, largest=20.0):
    """Advantage-weighted regression (appendix A.3; Eq. 13 on actions of pi_ref): -E[exp(A / beta) log pi]. Weights are
    cut at `largest`, as in AWR's own paper (arXiv 1910.00177). [N], [N]; scalar."""
    return -((advantages / beta).exp().clamp(max=largest) * logprobs).mean()


def released_advantages(values, reward, gamma=0.9):
    """The released code's advantages of one trajectory's actions, [T] as in `advantages`: 1 where
    V_{t+1} - V_t - 0.05 + r + sum_k gamma^k r is positive, with the outcome r paid at every step, else -0.6."""
    to_go = torch.arange(len(values), 0, -1, dtype=values.dtype, device=values.device)  # steps from t to the end
    returns = sum(gamma**k * (k < to_go) for k in range(len(values))) * reward
    rise = torch.cat([values[1:], values[-1:]]) - values  # its state after the end is the last page once more
    return torch.where(rise - 0.05 + reward + returns >= 0, 1.0, -0.6)


def released_loss(logprobs, ref_logprobs, lengths, advantages):
    """The released code's loss at its micro-batches of one action. Sequence log-probs, lengths in tokens, signs [N];
    scalar. Actions of negative sign add nothing; the others' gradient is maximum likelihood's, falling to 0 where the
    log-ratio is 1 a token, or 0.2 where the reference was sure of the action."""
    ratio, sure = (logprobs - ref_logprobs) / lengths, (ref_logprobs / lengths).exp()
    beta = torch.where(sure >= 0.8, 5.0, 1.0)
    beta = torch.minimum(beta, (advantages / ratio).abs()).detach()
    loss = F.smooth_l1_loss(beta * ratio, advantages, reduction="none") / beta
    return (loss * (advantages > 0)).mean()


def passed(steps, quantile):
    """The steps that pass DigiRL's filters: of trajectories that went best against what their first page promised
    (outcome minus V, at or above the quantile of all), the actions of positive advantage."""
    scores = {step.trajectory: step.trajectory.reward - step.trajectory.steps[0].value for step in steps}
    bar = torch.quantile(torch.tensor(list(scores.values()), dtype=torch.float64), quantile).item()
    return [step for step in steps if scores[step.trajectory] >= bar and step.advantage > 0]
