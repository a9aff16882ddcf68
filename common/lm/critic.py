"""A state value on a language model: a copy of the policy with a head on the last token."""

import torch

from common.lm import learn, llm, vlm


def make_critic(actor):
    """The critic: a copy of the SFT model with a value head on the state's last token, zero at first (V = 0.5)."""
    model = llm.copy_network(actor)
    size = model.config.get_text_config().hidden_size
    head = torch.nn.Linear(size, 1, device=model.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return torch.nn.ModuleDict({"body": model, "head": head})


def value_logits(critic, prompts, pad_id, processor=None):
    """V's logit for each state (prompt token ids; with a processor: vlm.Prompts, with pictures): [N]."""
    if processor is not None:
        last = vlm.hidden_states(critic["body"], processor, prompts)[:, -1]
    else:
        hidden, lengths = llm.hidden_states(critic["body"], prompts, pad_id)
        last = hidden[torch.arange(len(prompts), device=hidden.device), lengths - 1]
    return critic["head"](last.float()).squeeze(-1)


def state_values(critic, prompts, pad_id, micro_batch_tokens, processor=None):
    """V of each state as `value_logits` takes them, without gradient: a list of floats. `micro_batch_tokens`: of one
    forward pass."""

    def value(batch):
        return value_logits(critic, batch, pad_id, processor).sigmoid()

    return learn.map_batches(value, prompts, [len(prompt) for prompt in prompts], micro_batch_tokens)
