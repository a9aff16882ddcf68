"""What distrl.py's --algorithm and --released name besides the paper's own: its baselines and the released code."""

from dataclasses import replace

import torch

from digirl import returns, step_advantages

# --released: what the published code does where that is not what the paper says.
RELEASED = dict(
    gamma=0.5,
    reward="released",
    retrace=False,
    v_trace=True,
    corrected_rewards="all",
    target_share=0.0,
    binarise=True,
    beta=0.0,
    repeats_anywhere=True,
    trajectory_value="first",
    filter_quantile=0.9,
    prioritised=False,
    w1=50.0,
    w2=1.0,
    w3=0.01,
    judge_states=True,
    buffer_steps=10000,
    refresh_every=1,
    refresh_size=0,
    batch_trajectories=64,
    batch_size=192,
    actor_epochs=20,
    critic_epochs=5,
    learning_rate=1e-4,
    critic_learning_rate=1e-4,
    anneal_lr=False,
    max_grad_norm=0.01,
    critic_max_grad_norm=0.01,
)

# --algorithm digirl: Bai et al. 2024, as released, on DistRL's workers and buffer (digirl.py: the whole method).
DIGIRL = dict(
    gamma=0.5,
    retrace=False,
    v_trace=False,
    target_share=0.0,
    importance_ratio=False,
    binarise=True,
    beta=0.0,
    repeat_penalty=0.0,
    invalid_penalty=0.0,
    trajectory_value="first",
    filter_quantile=0.9,
    prioritised=False,
)


def other_algorithms(paper):
    """{name: Algorithm}; `paper` is the paper's own, A-RIDE."""

    def digirl(outcomes, rewards, corrected, baseline, gamma):
        return step_advantages(outcomes, baseline, gamma, step_cost=0.05)

    return {
        "digirl": replace(paper, advantages=digirl, defaults=DIGIRL),
        "filtered-bc": replace(paper, critics=False),
    }


def released_rewards(outcomes, paid, gamma):
    """The released code's: besides what a step is `paid` (the outcome and the penalties) the return from t on, which
    counts the outcome twice at the end, and 0.05 less a step. [T], [T] -> [T]."""
    return paid + returns(outcomes, gamma) - 0.05


def v_trace(deltas, ratios, gamma):
    """V-trace's corrections (Espeholt et al. 2018, both truncations at 1), which is what the released code computes in
    Retrace's place: no lambda, and min(1, rho_t) on the step's own TD error delta_t. [T], [T] -> [T]."""
    ratios = ratios.clamp(max=1.0)
    corrections, following = [], 0.0
    for t in reversed(range(len(deltas))):
        following = ratios[t] * deltas[t] + gamma * ratios[t] * following
        corrections.append(following)
    return torch.stack(corrections[::-1])
