"""Networks whose weights are split over the processes of `accelerate launch` (torch's FSDP2), where it was told so
(`parallel.sharded`). Everywhere else these functions do what their plain counterparts do.

All processes must make the same calls: gathering a weight, and every pass through a layer, waits for the others.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from common.errors import UsageError
from common.lm import parallel

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer


def shard(model: Module) -> Module:
    """Where `parallel.sharded`: the model with its layers' weights, gradients and optimiser states split over the
    processes (torch's FSDP2), its input embeddings, too, unless they are the head's, which stays whole: it is asked a
    different number of times in each process."""
    if not parallel.sharded():
        return model
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(model.device.type, (parallel.size(),))
    halved = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if model.device.type == "cuda" else {}
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    units = [*model.get_decoder().layers, *([embeddings] if embeddings.weight is not head.weight else [])]
    for unit in units:
        # each is a root of its own, and roots stay whole after a forward pass unless told otherwise
        fully_shard(unit, mesh=mesh, reshard_after_forward=True, mp_policy=MixedPrecisionPolicy(**halved))
        unit.set_force_sum_reduction_for_comms(True)  # losses are shares of a batch's: they add up
        unit.set_gradient_divide_factor(1.0)
    return model


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts, gathered from the processes where it is split: all must call."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def split_like(value: Tensor, tensor: Tensor) -> Tensor:
    """This process's part of a whole tensor, split as `tensor` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)


def whole_copy(model: Module, into: Module | None = None, half: bool = False) -> Module:
    """A sharded model's copy that is not, new or filled again; `half`: in bfloat16, on a GPU."""
    import torch
    from transformers import AutoModelForCausalLM

    if into is None:
        dtype = torch.bfloat16 if half and model.device.type == "cuda" else model.dtype
        with model.device, torch.random.fork_rng():  # its weights are drawn, and filled at once
            into = AutoModelForCausalLM.from_config(model.config, dtype=dtype).eval()
        into.generation_config = model.generation_config
        if model.is_activation_checkpointing:
            into.activation_checkpointing_enable({"use_reentrant": False})
    with torch.no_grad():
        weights = into.state_dict()
        for name, value in model.state_dict().items():
            weights[name].copy_(whole(value))
    return into


def to_save(model: Module) -> Module | SimpleNamespace:
    """The model, or in its stead what has its `save_pretrained`: by one process alone, with the weights of all."""
    if not parallel.sharded():
        return model
    own = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}  # what is tied is there once
    weights = {name: whole(value).detach().cpu() for name, value in model.state_dict().items() if name in own}
    return SimpleNamespace(save_pretrained=partial(model.save_pretrained, state_dict=weights))


def optimizer_state(optimizer: Optimizer) -> dict:
    """The optimiser's `state_dict`, with whole tensors on the CPU."""
    state = optimizer.state_dict()
    each = {i: {name: whole(value).cpu() for name, value in one.items()} for i, one in state["state"].items()}
    return state | {"state": each}


def load_optimizer(optimizer: Optimizer, state: dict) -> None:
    """The inverse of `optimizer_state`; rates and epsilons stay what they are: a flag given anew holds."""
    flags = [{key: group[key] for key in ("lr", "eps")} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, given in zip(optimizer.param_groups, flags, strict=True):
        group.update(given)
        for parameter in group["params"]:
            each = optimizer.state.get(parameter, {})
            each |= {name: split_like(value, parameter) for name, value in each.items() if name != "step"}


def trained(model: Module) -> dict[str, Tensor]:
    """The weights that are trained, whole, by name, on the CPU."""
    return {name: whole(p.detach()).cpu() for name, p in model.named_parameters() if p.requires_grad}


def fill(model: Module, weights: dict[str, Tensor]) -> None:
    """Put whole tensors by name into the model's."""
    import torch

    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(split_like(value, own[name]))


def clip_gradients(parameters: list[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients so that their norm is at most `max_norm`; the norm before, as a tensor."""
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

    if not parallel.sharded():
        return clip_grad_norm_(parameters, max_norm)
    kinds = [[p for p in parameters if hasattr(p, "full_tensor") is split] for split in (True, False)]
    norms = [whole(get_total_norm([p.grad for p in some])) for some in kinds]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for some in kinds:
        clip_grads_with_norm_(some, max_norm, norm)
    return norm


def evened(groups: list[list[int]]) -> list[list[int]]:
    """The index groups, split further so that every process has as many.

    Raises UsageError where there are fewer items than processes.
    """
    groups = [list(group) for group in groups]
    while len(groups) % parallel.size():
        largest = max(groups, key=len)
        if len(largest) == 1:
            raise UsageError(f"a batch of {len(groups)} steps is too small for {parallel.size()} processes under FSDP")
        groups.append(largest[len(largest) // 2 :])
        del largest[len(largest) // 2 :]
    return groups
