"""DistRL: an asynchronous distributed reinforcement learning framework for on-device control agents.

The equations of its algorithm, A-RIDE; the system is still to come.
"""

import torch
import torch.nn.functional as F


# ------------------------------------------------------------------------------------------------------- the equations
def returns(rewards, gamma):
    """Monte-Carlo returns G_t = sum_{k >= t} gamma^{k-t} r_k of one trajectory (section 5.1). [T] -> [T]."""
    found, following = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * following
        found[t] = following
    return found


def repetitions(actions, screens):
    """How often each action has been repeated without a break: 0 where action or screen are not those of the step
    before. Two lists of T; a list of T whole numbers."""
    counts = []
    for t, now in enumerate(zip(actions, screens, strict=True)):
        counts.append(counts[-1] + 1 if t and now == (actions[t - 1], screens[t - 1]) else 0)
    return counts


def shaped_rewards(outcomes, repeats, invalid, gamma, repeat_penalty, invalid_penalty):
    """r_t of A.4.2: the outcome that the step itself is paid, the Monte-Carlo return from t + 1 on, and the penalties:
    the n-th repetition in a row costs n times `repeat_penalty`, an invalid action `invalid_penalty`. [T] -> [T]."""
    following = torch.cat([returns(outcomes, gamma)[1:], outcomes.new_zeros(1)])
    return outcomes + following - repeat_penalty * repeats - invalid_penalty * invalid


def released_rewards(outcomes, repeats, invalid, gamma, repeat_penalty, invalid_penalty):
    """The released code's: the return from t on besides the outcome, which so counts twice at the end, and 0.05 less a
    step. As `shaped_rewards`."""
    return outcomes + returns(outcomes, gamma) - 0.05 - repeat_penalty * repeats - invalid_penalty * invalid


def td_errors(rewards, values, gamma):
    """Eq. 3: delta_t = r_t + gamma V(s_{t+1}) - V(s_t). rewards [T], values [T + 1], the last one that of the state
    after the end (0 where the episode is over) -> [T]."""
    return rewards + gamma * values[1:] - values[:-1]


def retrace(rewards, values, ratios, gamma, lam):
    """Section 5.2: the corrections of V(s_t) <- V(s_t) + correction_t,

        sum_{k=t}^{H} gamma^{k-t} (prod_{i=t+1}^{k} c_i) delta_k with c_i = lambda min(1, rho_i).

    rewards [T], values [T + 1] as of `td_errors`, ratios rho = pi / mu of the actions [T], lam from 0 to 1 -> [T].
    """
    deltas, traces = td_errors(rewards, values, gamma), lam * ratios.clamp(max=1.0)
    corrections, following = torch.zeros_like(deltas), 0.0
    for t in reversed(range(len(deltas))):
        corrections[t] = deltas[t] + following
        following = gamma * traces[t] * corrections[t]
    return corrections


def v_trace(rewards, values, ratios, gamma):
    """V-trace's corrections (Espeholt et al. 2018, both truncations at 1), which is what the released code computes in
    Retrace's place: no lambda, and min(1, rho_t) on the step's own error. As `retrace`."""
    ratios = ratios.clamp(max=1.0)
    deltas = ratios * td_errors(rewards, values, gamma)
    corrections, following = torch.zeros_like(deltas), 0.0
    for t in reversed(range(len(deltas))):
        following = deltas[t] + gamma * ratios[t] * following
        corrections[t] = following
    return corrections


def advantages(rewards, values, gamma):
    """Section 5.1: one-step advantages A_t = r_t + gamma V(s_{t+1}) - V(s_t). [T], [T + 1] -> [T]."""
    return td_errors(rewards, values, gamma)


def critic_targets(outcomes, values, corrections, share):
    """What V(s_t) is to predict: 1[G_t > 0] (section 5.1) and, by `share`, the corrected value (section 5.2), kept a
    probability. outcomes [T], values [T + 1], corrections [T] -> [T]."""
    labels = (returns(outcomes, 1.0) > 0).to(values.dtype)  # any discount above 0 gives the same sign
    return (1 - share) * labels + share * (values[:-1] + corrections).clamp(0.0, 1.0)


def critic_loss(value_logits, targets):
    """The cross-entropies of section 5.1: of V(s_t) and its targets, of V_traj and the outcomes. [N], [N]; scalar."""
    return F.binary_cross_entropy_with_logits(value_logits, targets.to(value_logits.dtype))


def policy_loss(logprobs, ratios, advantages, entropy, beta):
    """Eq. 1, to be minimised: -mean(min(1, rho) A log pi) - beta mean(H). The penalty on invalid actions has no
    gradient there: it is in the advantages, by the rewards.

    logprobs: log pi(a_t | s_t) of whole actions; ratios: pi / mu of whole actions; entropy: H_t, the paper's
    -log pi(a_t | s_t) or an exact one. [N] each; scalar. The gradient goes through logprobs and entropy alone (Eq. 4,
    whose printed entropy term has the other sign).
    """
    weights = (ratios.clamp(max=1.0) * advantages).detach()
    return -(weights * logprobs).mean() - beta * entropy.mean()


def trajectory_priority(td_errors, ratios, entropies, weights, max_td, max_entropy):
    """Section 5.3: p = w1 mean|delta| / max_td + w2 mean(min(1, rho)) + w3 mean(H) / max_entropy of one trajectory.

    td_errors, ratios, entropies [T]; weights (w1, w2, w3); max_td, max_entropy: the largest |delta| and H seen so far
    (A.4.3; a part whose maximum is 0 counts 0). Truncated ratios, because only they are in [0, 1]. A float.
    """
    td = td_errors.abs().mean() / max_td if max_td > 0 else 0.0
    entropy = entropies.mean() / max_entropy if max_entropy > 0 else 0.0
    return float(weights[0] * td + weights[1] * ratios.clamp(max=1.0).mean() + weights[2] * entropy)


def sampling_probabilities(priorities, alpha=0.5):
    """A.4.2: P(tau) = p^alpha / sum p^alpha; alpha 0 is uniform. [M] -> [M]. All-zero priorities are uniform, too."""
    priorities = torch.as_tensor(priorities)
    powers = (priorities if priorities.is_floating_point() else priorities.float()) ** alpha
    if not powers.sum() > 0:
        powers = torch.ones_like(powers)
    return powers / powers.sum()
