"""What a network learns with: batches and micro-batches, gradients (`backward`), the rate's course.

Nothing here knows what an item is: a loss takes a list of them and gives the sum of theirs.
"""

import math
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from common.errors import UsageError
from common.lm import parallel


def warmup_cosine(progress: float, warmup: float = 0.1, floor: float = 0.0, updates: float = math.inf) -> float:
    """Factor of a learning rate: up over the share `warmup`, then a cosine down to `floor`. A single one of `updates`
    has no warm-up: it would learn next to nothing."""
    if updates == 1:
        warmup = 0.0
    if progress < warmup:
        return min(1.0, (progress + 1e-3) / warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def mean_loss(losses: list[Tensor], what: str) -> float:
    """Mean of the updates' losses. Raises UsageError where one is not finite: these weights are lost, not the run."""
    mean = torch.stack(losses).mean().item() if losses else math.nan
    if losses and not math.isfinite(mean):
        raise UsageError(f"the {what}'s loss is {mean}: lower its learning rate (the last checkpoint is whole)")
    return mean


def shuffled(items: Sequence, batch_size: int, epochs: int, rng: random.Random) -> list[list]:
    """The items in random batches of at most `batch_size`, `epochs` times over: a list of lists."""
    batches = []
    for _ in range(epochs):
        order = list(items)
        rng.shuffle(order)
        # batches of equal size, give or take one: a leftover of a single item would be a full step of its own
        count = math.ceil(len(order) / batch_size)
        batches += [order[i::count] for i in range(count)]
    return batches


def micro_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Index groups of like lengths, longest first, each of at most `tokens` tokens, padding included; a longer sequence
    goes alone."""
    groups = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def train_mode(model: torch.nn.Module) -> None:
    """Training, but for the statistics of BatchNorm, which stay those of pretraining."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()


def backward(parameters: list[Tensor], parts: list[list], loss_of: Callable[[list], Tensor]) -> Tensor:
    """The gradient of the parts' losses, summed over parts and processes, into the parameters; the loss."""
    losses = []
    if _threads is None:
        for part in parts:
            loss = loss_of(part)
            loss.backward()
            losses.append(loss.detach())
    else:

        def loss_and_gradients(part):
            loss = loss_of(part)
            return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

        for loss, gradients in _threads.map(loss_and_gradients, parts):
            losses.append(loss)  # in the parts' order: the sum does not depend on which thread was first
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    loss = torch.stack(losses).sum() if losses else torch.zeros((), device=parameters[0].device)
    if parallel.size() > 1:
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        parallel.add_up([p.grad for p in parameters if not hasattr(p, "full_tensor")] + [loss])
    return loss


def padded(rows: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """Lists of numbers as a tensor [N, L] beside the tensor `like` [N, L], zeros behind them."""
    width = like.shape[1]
    return torch.tensor([list(row) + [0.0] * (width - len(row)) for row in rows], device=like.device)


def map_batches(function: Callable[[list], Tensor], items: Sequence, lengths: Sequence[int], tokens: int) -> list:
    """`function(list of items) -> tensor [len]` without gradient, over batches of like lengths and at most `tokens`
    tokens; a list in items' order."""

    def without_gradient(batch):
        with torch.no_grad():
            return function([items[i] for i in batch]).tolist()

    batches = micro_batches(lengths, tokens)
    if parallel.sharded() and batches:  # every process must make as many passes: the last one's result counts once
        batches += [batches[-1]] * (-len(batches) % parallel.size())
    batches = parallel.share(batches)
    results = []
    for batch, values in zip(batches, mapper()(without_gradient, batches), strict=True):
        results += zip(batch, values, strict=True)
    return [value for _, value in sorted(dict(parallel.gather(results)).items())]


def in_parts(function: Callable[[list], list], items: list) -> list:
    """`function(list of items) -> list` on as many parts of the items as `use_threads` has threads: a list in their
    order."""
    if _threads is None or len(items) < 2:
        return function(items)
    size = math.ceil(len(items) / _threads._max_workers)
    parts = [items[i : i + size] for i in range(0, len(items), size)]
    return [result for results in _threads.map(function, parts) for result in results]


_threads = None  # a ThreadPoolExecutor after use_threads


def side_by_side() -> int:
    """How many micro-batches are computed at a time."""
    return 1 if _threads is None else _threads._max_workers


def mapper() -> Callable:
    """`map`, which computes so many at a time."""
    return map if _threads is None else _threads.map


def leave_busy_cores(load: float) -> None:
    """Torch's threads inside an operation: as many as cores are idle at this load average, one at least. Two threads on
    two busy cores take ten times the CPU's time of one: they spin while they wait for each other. OMP_NUM_THREADS
    decides where it is set."""
    if "OMP_NUM_THREADS" not in os.environ and not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(min(torch.get_num_threads(), max(1, cores - round(load))))


def use_threads(count: int) -> None:
    """From now on `count` micro-batches at a time are computed on the CPU, each by one thread. On a tiny model two
    threads inside torch's operations are slower than one; two micro-batches side by side are 1.7 times as fast. On a
    GPU they go one after another: two hold twice the memory, and torch 2.11 can choose another attention kernel for one
    (its order of kernels is set by the first call, unlocked), which gradient checkpointing ends with an error."""
    global _threads

    torch.set_num_threads(1)
    alone = count == 1 or parallel.sharded() or torch.cuda.is_available()
    _threads = None if alone else ThreadPoolExecutor(count)
