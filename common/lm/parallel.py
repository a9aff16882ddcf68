"""Data parallelism under `torchrun` or `accelerate launch`: every process computes its share of every batch; all hold
the same weights. With one process nothing here does anything.

Either every process plays its share of the episodes, too, and all hold the same records (webrl.py, crps.py, digirl.py),
or the first one plays with Ray's workers and tells the others what to compute (`everywhere` and `follow`:
grpo_async.py, distrl.py). Only the first process (`is_main`) writes the run's folder.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from common.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

LET_GO, CHECKPOINT_WRITTEN = "let go", None  # what followers hear besides calls


def size() -> int:
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which one this is, from 0."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this process writes the run's folder."""
    return rank() == 0


def start() -> None:
    """Join the other processes, where `torchrun` or `accelerate launch` started several (gloo on CPUs, NCCL on GPUs),
    and say how many there are.

    Raises UsageError for a DeepSpeed configuration: it is not read, FSDP's is.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true"):
        raise UsageError("DeepSpeed is not used here: launch with FSDP instead, which splits the same (docs/gpu.md)")
    if size() > 1:
        import torch
        from accelerate import PartialState

        # the first process may wait for hours for what phones or browsers play, the others for it
        state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
        if state.num_processes != size():
            raise UsageError(f"{size()} processes were announced, and {state.num_processes} are there")
        if is_main():
            print(f"{size()} processes", flush=True)


def sharded() -> bool:
    """Whether `accelerate launch` was told to use FSDP: the layers' weights are then split over the processes, and all
    must make the same number of passes."""
    return size() > 1 and os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def share(items: list) -> list:
    """This process's part of a list: every size-th item."""
    return items[rank() :: size()]


def gather(items: list) -> list:
    """The processes' lists as one list, the same in all of them."""
    if size() == 1:
        return items
    from accelerate.utils import gather_object

    return gather_object(items)


def broadcast(value: T) -> T:
    """The first process's value, in all of them."""
    if size() == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def everywhere(function: Callable) -> Callable:
    """For scripts whose first process plays: `function(learner, *given)`, called there, runs in all processes, by the
    first one's random state and iteration; the others `follow`. What one of these calls in turn is called plainly."""

    @functools.wraps(function)
    def in_all_processes(learner, *given):
        global _at_work
        if _at_work or size() == 1 or not is_main():
            return function(learner, *given)
        broadcast((function.__module__, function.__name__, learner.rng.getstate(), learner.iteration, given))
        _at_work = True
        try:
            return function(learner, *given)
        finally:
            _at_work = False

    return in_all_processes


_at_work = False  # whether a function of `everywhere` is


def follow(learner) -> None:
    """What the other processes do: what the first one calls, until it lets them go."""
    while (job := broadcast(None)) != LET_GO:
        if job is not CHECKPOINT_WRITTEN:
            module, name, rng, learner.iteration, given = job
            learner.rng.setstate(rng)
            getattr(sys.modules[module], name)(learner, *given)


def let_go() -> None:
    """The first process needs those that `follow` no more."""
    broadcast(LET_GO)


def column_sums(rows: list[Tensor], width: int, device) -> list[float]:
    """Sums over the rows (tensors [width], of this process's micro-batches) and the processes, as floats; the same in
    whatever order threads made the rows."""
    import torch

    columns = torch.stack(rows).double().cpu().T.tolist() if rows else [[0.0]] * width  # none: the others had all
    total = torch.tensor([math.fsum(column) for column in columns], device=device)
    add_up([total])
    return total.tolist()


def add_up(tensors: list[Tensor]) -> None:
    """Sum each tensor over the processes, in place."""
    if size() > 1:
        import torch.distributed as dist

        for tensor in tensors:
            dist.all_reduce(tensor)
