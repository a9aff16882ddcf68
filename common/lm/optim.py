"""What every script's optimisers have in common: fine-tuning, the rate's course, a loss that must be a number."""

import math
import random

import torch

from common.errors import UsageError
from common.lm import llm, parallel
from common.replay import pair_lengths


def adamw(model, learning_rate, betas, eps, weight_decay):
    """AdamW over what is trained of a model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    fused = None if parallel.sharded() else True  # the fused kernel takes no mix of whole and split tensors
    return torch.optim.AdamW(parameters, learning_rate, betas, eps, weight_decay, fused=fused)


def warmup_cosine(progress, warmup=0.1, floor=0.0):
    """Factor of a learning rate: up over the share `warmup`, then a cosine down to `floor`."""
    if progress < warmup:
        return (progress + 1e-3) / warmup
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def set_learning_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def mean_loss(losses, what):
    """Mean of the updates' losses. Raises UsageError where one is not finite: these weights are lost, not the run."""
    mean = torch.stack(losses).mean().item() if losses else math.nan
    if losses and not math.isfinite(mean):
        raise UsageError(f"the {what}'s loss is {mean}: lower its learning rate (the last checkpoint is whole)")
    return mean


def fine_tune(model, optimizer, pairs, loss_sum, args, updates=0):
    """Supervised fine-tuning: token cross-entropy on the actions of the pairs (trajectory, t).

    `loss_sum(pairs)`: the sum of -log pi over all tokens of their actions, a scalar. `args.sft_epochs` passes in
    batches of `args.sft_batch_size` steps; or `updates` of them, in as many passes as these take. The rate rises to
    `args.sft_learning_rate` over a tenth, then falls to 0 along a cosine. The model is in training mode.
    Returns the mean loss of the last pass.
    """
    rng, losses = random.Random(args.seed), []
    a_pass = math.ceil(len(pairs) / args.sft_batch_size)
    updates = updates or args.sft_epochs * a_pass
    for number in range(updates):
        if number % a_pass == 0:
            batches, losses = llm.random_batches(len(pairs), args.sft_batch_size, rng), []
        set_learning_rate(optimizer, args.sft_learning_rate * warmup_cosine(number / updates))
        items = [pairs[i] for i in batches[number % a_pass]]
        count = sum(len(t.steps[i].action_ids) for t, i in items)
        loss, _ = llm.gradient_step(
            model, optimizer, items, pair_lengths(items), loss_sum, count, args.micro_batch_tokens
        )
        losses.append(loss)
    return mean_loss(losses, "SFT")
