"""What webrl.py has besides the paper's own: what else --loss may name (baselines, ablations, the released code), the
released checkpoints' format, other prompts for a generator, the tiny preset where it is not in the shop."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

import envs
from common.lm import llm
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


# ---------------------------------------------------------------------------------- the released checkpoints' format
END = "<|eot_id|>"
USER, ASSISTANT = (f"<|start_header_id|>{role}<|end_header_id|>" for role in ("user", "assistant"))


def released_prompt(tokenizer, instruction, actions, html):
    """The string that the released checkpoints were trained on: one round a step, of which only the last holds its
    page; Llama 3's headers in every model. History and page together are cut to 15,872 characters."""
    texts = instruction, html, *actions
    instruction, html, *actions = (llm.without_special_tokens(tokenizer, text) for text in texts)
    history = "".join(
        f"Round {i}\n\n{END}{USER}\n{'** Simplified html **' if i else instruction}\n\n{END}{ASSISTANT}\n{action}\n\n"
        for i, action in enumerate(actions)
    )
    html = html[: max(0, 16384 - 512 - len(history))]
    now = f"Round {len(actions)}\n\n{END}{USER}\n{html}\n\n{END}{ASSISTANT}\n"
    return f"Task Instruction: {instruction}\n\n{history}{now}"


def released_chat_prompt(tokenizer, system, user):
    """`llm.chat_prompt` as the released ORM has it: Llama 3's headers, whatever the tokenizer's template."""
    user = llm.without_special_tokens(tokenizer, user)
    text = f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{system}{END}"
    text += f"{USER}\n\n{user}{END}{ASSISTANT}\n\n"
    return tokenizer.encode(text, add_special_tokens=False)


# ------------------------------------------------------------- ours; the paper has its own as pictures (Figures 19, 20)
OTHER_PROMPTS = {
    2: """Here are tasks on the web site "{site}" at which an assistant failed. For each one write a new task that
trains the same skill: a simpler relative, a rewording that says exactly what is wanted, or a variation with
another name taken from the list. Nothing may need what the site does not offer. Put every task in back quotes.
Failed tasks:
{tasks}""",
    3: """Act as the author of a curriculum for a web agent on "{site}". From the examples below derive new tasks: some
with one requirement less, some with one more, some that combine two of them. Keep to the names in the examples, be
concrete, and be sure that the site can do it. Put every task in back quotes.
Examples:
{tasks}""",
}

# ---------------------------------------------------- the tiny preset, whose values in webrl.py were found in the shop
SHOP = "arena-v1/shop"
# Elsewhere more templates want more demonstrations (five of each); where no reward model has been trained before, a
# run's own begins with the base model.
TWO_SITES = dict(num_demos=260, sft_epochs=8)
MORE_SITES = dict(num_demos=835, sft_epochs=8)
FIVE_SITES = dict(
    orm_model_id="assets/orm-v2",
    orm_data="assets/orm-v2/labelled.jsonl.gz",
    orm_episodes=6304,
    orm_demos=200,
)
NO_REWARD_MODEL = dict(orm_model_id="", orm_data="", orm_learning_rate=1e-3, orm_epochs=3)


def tiny_values(args):
    """What environment and model change of the tiny preset. A reward model reads its own model's tokens alone."""
    values = {}
    if args.preset == "tiny" and args.env_id != SHOP:
        values = dict(TWO_SITES if args.env_id.startswith("arena-v1") else MORE_SITES)  # what follows adds to it
        if not args.env_id.startswith("arena-v1"):
            values |= FIVE_SITES if envs.full_name(args.env_id).startswith("arena-v2") else NO_REWARD_MODEL
    if args.preset in ("tiny", "smoke") and llm.size_of(args.model_id) != "tiny":
        values |= NO_REWARD_MODEL if args.preset == "tiny" else dict(orm_model_id="")
    return values


def known_result(args):
    """What five seeds of this very preset say (docs/webrl.md), for its summary; "" for any other."""
    if args.preset != "tiny" or args.env_id != SHOP or args.curriculum or args.loss != "paper":
        return ""
    return """Over five seeds of this preset Filtered BC (the same command with --loss sft) gains as much as Eq. 12, or
more: what gains here is learning from what the judge accepts (docs/webrl.md)."""
