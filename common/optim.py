"""What every script's optimisers have in common: the rate's course, and a loss that must be a number."""

import math

import torch

from common import parallel
from common.errors import UsageError


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
