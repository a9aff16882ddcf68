"""A state value on a language model: a copy of the policy with a head on the last token."""

import torch

from common import llm


def make_critic(actor):
    """The critic: a copy of the SFT model with a value head on the state's last token, zero at first (V = 0.5)."""
    model = llm.copy_network(actor)
    head = torch.nn.Linear(model.config.hidden_size, 1, device=model.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return torch.nn.ModuleDict({"body": model, "head": head})


def value_logits(critic, prompts, pad_id):
    """V's logit for each state (prompt token ids): [N]."""
    hidden, lengths = llm.hidden_states(critic["body"], prompts, pad_id)
    last = hidden[torch.arange(len(prompts), device=hidden.device), lengths - 1]
    return critic["head"](last.float()).squeeze(-1)


def state_values(critic, prompts, pad_id, micro_batch_tokens):
    """V of each state, without gradient: a list of floats. `micro_batch_tokens`: of one forward pass."""

    def value(batch):
        return value_logits(critic, batch, pad_id).sigmoid()

    return llm.map_batches(value, prompts, [len(prompt) for prompt in prompts], micro_batch_tokens)
