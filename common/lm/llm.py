"""Language models: loading, token log-probabilities, generation. Tokens in, tokens out.

Left padding, stop tokens, masks and the sampling noise live here and nowhere else. torch and transformers are imported
inside the functions that need them, so that `--help` answers at once.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError
from common.lm import fsdp, parallel

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Completion:
    """What was sampled: token ids (stop token included when it was reached), their log-probs under the distribution
    sampled from, and the policy version."""

    ids: list
    logprobs: list
    version: int


def load(model_id, lora_rank=0, load_in_4bit=False, gradient_checkpointing=False, device=None, vision=False):
    """Load a causal language model and its tokenizer.

    `model_id`: a local folder (relative ones are tried from the project's root too) or a hub id. With `lora_rank` > 0
    the base is frozen and LoRA adapters are trained; `load_in_4bit` quantises the base (bitsandbytes, needs a GPU);
    `gradient_checkpointing` keeps one layer's activations at a time in training, for a third more computation;
    `vision`: a model that takes pictures (common/lm/vlm.py).
    A folder of adapters is loaded as the model they make of their base. Returns (model in eval mode, tokenizer). Raises
    UsageError where there is no such model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()  # the script has its own
    path = base = find_model(model_id)
    adapters = Path(path) / "adapter_config.json"
    if adapters.is_file():
        base = find_model(json.loads(adapters.read_text())["base_model_name_or_path"])
    offline = not os.path.isdir(base) and not hub_answers(base)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if adapters.is_file() and lora_rank:
        raise UsageError(f"{model_id!r} is a folder of adapters: merge it first (tools/export.py), then train new ones")
    if parallel.sharded() and lora_rank:
        raise UsageError("FSDP splits weights that are trained, --lora-rank freezes them: one of the two")
    if load_in_4bit and not lora_rank:
        raise UsageError("--load-in-4bit needs --lora-rank: quantised weights cannot be trained")
    if load_in_4bit and device == "cpu":
        raise UsageError("--load-in-4bit needs a GPU: drop the flag or run where torch.cuda.is_available()")
    # weights that are trained stay in float32: an update of 1e-6 is lost in bfloat16
    options = {"dtype": torch.bfloat16 if device == "cuda" and lora_rank else torch.float32}
    if load_in_4bit:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        options["device_map"] = {"": torch.cuda.current_device()}
    tokenizer = load_tokenizer(model_id)
    try:
        kind = AutoModelForImageTextToText if vision else AutoModelForCausalLM
        model = kind.from_pretrained(base, local_files_only=offline, **options)
    except (OSError, ValueError) as error:
        raise UsageError(cannot_load(model_id, error, offline)) from error
    if adapters.is_file():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, path).merge_and_unload()
    if not load_in_4bit:
        model = model.to(device)
    check_head(model, model.model if vision else model.get_decoder(), model_id)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if lora_rank:
        model = add_adapters(model, lora_rank, load_in_4bit)
    return fsdp.shard(model).eval(), tokenizer


def load_tokenizer(model_id):
    """The tokenizer of a model as `load` takes it, with a padding token. Raises UsageError where there is none."""
    from transformers import AutoTokenizer

    path = find_model(model_id)
    offline = not os.path.isdir(path) and not hub_answers(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=offline)
    except (OSError, ValueError) as error:
        raise UsageError(cannot_load(model_id, error, offline)) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def cannot_load(model_id, error, offline):
    reason = "the hub cannot be reached and its cache has none" if offline else str(error).splitlines()[0]
    return f"cannot load the model {model_id!r}: {reason}"


def add_adapters(model, lora_rank, in_4bit=False):
    """The model with its weights frozen and LoRA adapters, in float32, on every linear layer."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from peft.tuners.lora import LoraLayer

    if in_4bit:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = get_peft_model(model, LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear"))
    for module in model.modules():
        if isinstance(module, LoraLayer):
            # PEFT would widen every layer's input to the adapters' float32, and autocast narrow it again: an eighth of
            # an update's time on a GPU (docs/gpu.md), for the same numbers
            module.cast_input_dtype_enabled = False
    return model


def copy_network(model):
    """A copy with trained weights of its own. Frozen weights, a LoRA model's base, are shared and held once."""
    import copy

    if parallel.sharded():
        return fsdp.shard(fsdp.whole_copy(model))
    frozen = [p for p in model.parameters() if not p.requires_grad]
    frozen += [p.quant_state for p in frozen if hasattr(p, "quant_state")]  # bitsandbytes keeps the scales there
    return copy.deepcopy(model, {id(shared): shared for shared in frozen})


def new_adapters(model):
    """The LoRA model with adapters as at the start of training: the base model's function."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.reset_lora_parameters("default", True)
    return model


def load_trained(model, folder):
    """Put the weights that `save_pretrained` wrote to `folder` into a model of the same kind."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(Path(folder) / "adapter_model.safetensors"))
        return
    fsdp.fill(model, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict())


def find_model(model_id):
    """The folder of a local model, or the id itself where it looks like one of the hub (`owner/name`).

    Raises UsageError for a path that is not there.
    """
    for path in (Path(model_id), ROOT / model_id):
        if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
            return str(path)
    looks_local = model_id.startswith((".", "/", "~", "assets/", "runs/")) or model_id.count("/") != 1
    if looks_local or os.path.isdir(model_id):
        raise UsageError(f"no model at {model_id!r}: give a folder with a config.json, or a hub id such as owner/name")
    return model_id


@functools.cache
def hub_answers(model_id):
    """Whether the hub can be reached: one request, without the library's minute of retries."""
    import huggingface_hub

    try:
        huggingface_hub.model_info(model_id, timeout=10)
    except huggingface_hub.errors.HfHubHTTPError:  # it answered: no such model, or none for you
        return True
    except Exception:  # of whichever HTTP client the library has by now, or HF_HUB_OFFLINE=1
        return False
    return True


def api_key():
    """The key for servers by URL, from OPENAI_API_KEY; a server of one's own wants none."""
    return os.environ.get("OPENAI_API_KEY", "none")


def ask(url, model, prompt, flag):
    """One reply of a model behind an OpenAI-compatible API at `url`; its key is read from OPENAI_API_KEY.

    Raises UsageError, naming the command line's `flag`, when the server cannot be reached.
    """
    if not parallel.is_main():  # one process asks
        return parallel.broadcast(None)
    import openai

    client = openai.OpenAI(base_url=url, api_key=api_key(), timeout=60, max_retries=3)
    try:
        reply = client.chat.completions.create(
            model=model, temperature=1.0, messages=[{"role": "user", "content": prompt}]
        )
    except openai.OpenAIError as error:
        raise UsageError(f"{flag} {url}: {error}") from error
    return parallel.broadcast(reply.choices[0].message.content or "")


def is_tiny(model_id):
    """Whether a local model is as small as the committed one: then a script's tiny preset is the default."""
    for path in (Path(model_id), ROOT / model_id):
        with contextlib.suppress(OSError, ValueError):
            config = json.loads((path / "config.json").read_text())
            return config.get("text_config", config).get("hidden_size", 1 << 20) <= 256  # or of a model that sees
    return False


def stop_ids(model, tokenizer):
    """Every token that ends a turn: the tokenizer's, and what the model's generation config names (chat models)."""
    ids = {tokenizer.eos_token_id, end_of_turn(tokenizer)}
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids.update(configured if isinstance(configured, (list, tuple)) else [configured])
    return sorted(i for i in ids if i is not None)


@functools.cache
def end_of_turn(tokenizer):
    """The token that ends an assistant's turn: what the chat template puts after one, else the end of the sequence."""
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("b")[2]
        for token in tokenizer.encode(after, add_special_tokens=False)[:1]:
            if token in tokenizer.all_special_ids:
                return token
    return tokenizer.eos_token_id


def chat_prompt(tokenizer, system, user):
    """One system and one user turn in the model's chat template, up to where the assistant begins: token ids. Special
    tokens in the user's text, which holds pages, are taken out. A template without a system turn gets it in the
    user's."""
    user = without_special_tokens(tokenizer, user)
    turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except Exception:  # jinja's, raised by the template itself
        turns = [{"role": "user", "content": f"{system}\n\n{user}"}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def without_special_tokens(tokenizer, text):
    """The text without strings that the tokenizer would read as its control tokens: a page must not end a turn."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    while found := [token for token in special if token in text]:  # again: what is left may form another one
        for token in found:
            text = text.replace(token, "")
    return text


def seed_of(*parts):
    """A 63-bit seed from anything printable: the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def generate(model, tokenizer, prompts, seeds, temperature=1.0, max_new_tokens=64, version=0):
    """Sample one completion for each prompt, in one batch.

    prompts: list of token id lists; seeds: one int a prompt. A row's tokens depend on its own seed, never on which rows
    share the batch. temperature 0 is greedy. Returns a list of Completion; log-probs are those of the distribution
    sampled from (of temperature 1 when greedy).
    """
    import torch

    if not prompts:
        return []
    device = model.device
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform = torch.stack([torch.rand(max_new_tokens, generator=g, dtype=torch.float64) for g in generators], dim=1)
    stops = stop_ids(model, tokenizer)
    stop_tokens = torch.tensor(stops, device=device)
    with torch.no_grad(), autocast(model):
        # not model.generate(), which has one random generator a batch and costs a tiny model a quarter more
        order, logits, cache, mask = prefill(model, prompts, tokenizer.pad_token_id, max_new_tokens)
        uniform = uniform[:, order].to(device)  # [tokens, B], moved once
        tokens = torch.full_like(uniform, stops[0] if stops else 0, dtype=torch.long)
        logprobs = torch.zeros_like(uniform, dtype=torch.float32)
        rows, position = torch.arange(len(prompts), device=device), mask.sum(dim=1, keepdim=True)
        going = torch.ones_like(rows, dtype=torch.bool)
        can_shrink = all(hasattr(layer, "batch_select_indices") for layer in cache.layers)  # linear attention cannot
        for number in range(max_new_tokens):
            token, logprob = sample(logits, temperature, uniform[number, rows])
            tokens[number, rows], logprobs[number, rows] = token, logprob
            going &= ~torch.isin(token, stop_tokens)
            left = int(going.sum())
            if number + 1 == max_new_tokens or not left:
                break
            if can_shrink and left <= 0.75 * len(rows):  # rows that have ended cost as much as the others
                cache.batch_select_indices(going.nonzero().flatten())
                rows, token, mask, position = rows[going], token[going], mask[going], position[going]
                going = going[going]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            inputs = {"input_ids": token[:, None], "attention_mask": mask, "position_ids": position + number}
            out = model(**inputs, past_key_values=cache, use_cache=True)
            logits, cache = out.logits[:, -1], out.past_key_values
    back = torch.tensor(order).argsort()
    tokens, logprobs = tokens.T.cpu()[back], logprobs.T.cpu()[back]
    completions = []
    for row, row_logprobs in zip(tokens.tolist(), logprobs.tolist(), strict=True):
        length = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        completions.append(Completion(row[:length], row_logprobs[:length], version))
    return completions


PREFILL_TOKENS = {"cpu": 1024, "cuda": 16384}


def prefill(model, prompts, pad_id, room):
    """The prompts through the model, in groups of like lengths and at most PREFILL_TOKENS tokens: little padding,
    bounded memory; a prompt that occurs several times (a group's rollouts begin alike) goes through once. Returns
    (order of the prompts in what follows, logits of the next tokens [B, V], key-value cache with room for `room`
    tokens more, attention mask [B, W]), padded on the left to one width W."""
    import torch
    import torch.nn.functional as F

    from common.lm import learn
    from common.lm.cache import is_plain, with_room

    places = {}  # of each different prompt
    for place, prompt in enumerate(prompts):
        places.setdefault(tuple(prompt), []).append(place)
    unique, where = list(places), list(places.values())
    width, device, plain = max(map(len, unique)), model.device, is_plain(model.config)
    if plain:
        groups = learn.micro_batches([len(p) for p in unique], PREFILL_TOKENS.get(device.type, 1024))
    else:  # parts of such caches cannot be put together
        unique, where, groups = prompts, [[i] for i in range(len(prompts))], [list(range(len(prompts)))]
    logits, caches, masks, rows = [], [], [], []
    for group in groups:
        longest = max(len(unique[i]) for i in group)
        ids = torch.tensor([[pad_id] * (longest - len(unique[i])) + list(unique[i]) for i in group], device=device)
        mask = torch.tensor(
            [[int(c >= longest - len(unique[i])) for c in range(longest)] for i in group], device=device
        )
        position = (mask.cumsum(dim=1) - 1).clamp(min=0)
        out = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=True, logits_to_keep=1)
        mine = [row for row, i in enumerate(group) for _ in where[i]]
        logits.append(out.logits[mine, -1])
        caches.append(out.past_key_values)
        masks.append(F.pad(mask[mine], (width - longest, 0)))
        rows.append(mine)
    order = [place for group in groups for i in group for place in where[i]]
    cache = with_room(caches, rows, width, room) if plain else caches[0]
    return order, torch.cat(logits), cache, torch.cat(masks)


def sample(logits, temperature, uniform):
    """A token for each row of logits [B, V] by its uniform number [B]: the first whose cumulative probability in the
    softmax at this temperature is above it; the likeliest at temperature 0. Returns (tokens [B], log-probs [B])."""
    import torch

    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature > 0:
        below = logprobs.double().exp().cumsum(dim=-1)
        chosen = torch.searchsorted(below, uniform[:, None] * below[:, -1:], right=True)
    else:
        chosen = logprobs.argmax(dim=-1, keepdim=True)
    return chosen.squeeze(1), logprobs.gather(1, chosen).squeeze(1)


def hidden_states(model, sequences, pad_id):
    """Last-layer hidden states of right-padded sequences: ([B, L, D], lengths [B]).

    Under a causal mask right padding cannot reach the real tokens, so no attention mask is needed.
    """
    import torch

    lengths = torch.tensor([len(s) for s in sequences], device=model.device)
    width = int(max(map(len, sequences)))
    ids = torch.tensor([list(s) + [pad_id] * (width - len(s)) for s in sequences], device=model.device)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with autocast(model):
        return base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state, lengths


class Head:
    """What a model's own forward makes of its last hidden states: the output matrix, then the cap or the scale that its
    configuration has (Gemma, Granite, Cohere, Falcon-H1). A `forbidden` token is never sampled: minus infinity."""

    def __init__(self, model, forbidden=None):
        import torch

        self.matrix = model.get_output_embeddings()
        config, device = model.config.get_text_config(), self.matrix.weight.device
        self.cap = getattr(config, "final_logit_softcapping", None)
        multipliers = (getattr(config, name, None) for name in ("logit_scale", "lm_head_multiplier"))
        self.scale = math.prod(1.0 if number is None else number for number in multipliers)
        self.scale /= getattr(config, "logits_scaling", None) or 1.0
        self.forbidden = None if forbidden is None else torch.tensor([forbidden], device=device)

    def __call__(self, hidden, tokens=None):
        """Logits [.., V] in float32 of hidden states [.., D]; with `tokens` (ids) theirs alone."""
        import torch
        import torch.nn.functional as F

        if tokens is None:
            logits = self.matrix(hidden).float()
        else:
            bias = getattr(self.matrix, "bias", None)
            logits = F.linear(
                hidden.float(), self.matrix.weight[tokens].float(), bias if bias is None else bias[tokens]
            )
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.cap:
            logits = self.cap * torch.tanh(logits / self.cap)
        return logits if self.forbidden is None else logits.index_fill(-1, self.forbidden, float("-inf"))


def check_head(model, body, model_id):
    """Raises UsageError where `Head` is not what the model's own forward makes of the hidden states of its `body`:
    sampling uses the one, the losses the other, and every ratio between them would be wrong."""
    import torch

    ids = torch.arange(8, device=model.device)[None]
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits.float().log_softmax(dim=-1)
        ours = Head(model)(body(input_ids=ids, use_cache=False).last_hidden_state).log_softmax(dim=-1)
    error = (own - ours).abs().max().item()
    if not error < (1e-3 if model.dtype == torch.float32 else 0.05):
        raise UsageError(
            f"{model_id!r} caps or scales its logits in a way not known here (log-probs off by up to {error:.2g}): its "
            "losses would be wrong; use another model, or tell `Head` in common/lm/llm.py"
        )


def action_logits(model, tokenizer, prompts, actions):
    """What the actions' tokens are sampled from: a list of N tensors [tokens, V], with gradient."""
    sequences = [[*p, *a] for p, a in zip(prompts, actions, strict=True)]
    hidden, _ = hidden_states(model, sequences, tokenizer.pad_token_id)
    head = Head(model)
    spans = ((len(p) - 1, len(p) + len(a) - 1) for p, a in zip(prompts, actions, strict=True))  # of t at t - 1
    return [head(row[begin:end]) for row, (begin, end) in zip(hidden, spans, strict=True)]


def autocast(model):
    """On a GPU: matrices multiplied in bfloat16, whatever type the weights are kept in."""
    import torch

    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda")


def token_logprobs(model, tokenizer, prompts, actions, temperature=1.0):
    """Log-probabilities of the actions' tokens under the model, with gradient unless the caller forbids it.

    prompts, actions: lists of N token id lists. Returns (logprobs [N, L], mask [N, L]) with L the longest action; 0 and
    False in the padding. The head runs on the actions' positions only.
    """
    import torch

    sequences = [list(p) + list(a) for p, a in zip(prompts, actions, strict=True)]
    hidden, _ = hidden_states(model, sequences, tokenizer.pad_token_id)
    longest = max(map(len, actions))
    mask = torch.tensor([[i < len(a) for i in range(longest)] for a in actions], device=hidden.device)
    # the token at position t is predicted by the hidden state at t - 1
    position = torch.tensor(
        [[len(p) - 1 + min(i, len(a) - 1) for i in range(longest)] for p, a in zip(prompts, actions, strict=True)],
        device=hidden.device,
    )
    target = torch.tensor([list(a) + [0] * (longest - len(a)) for a in actions], device=hidden.device)
    rows = torch.arange(len(actions), device=hidden.device)[:, None].expand_as(position)
    chosen = chosen_logprobs(Head(model), hidden[rows[mask], position[mask]], target[mask], temperature)
    return torch.zeros(mask.shape, device=hidden.device).masked_scatter(mask, chosen), mask


LOGITS_AT_ONCE = 1 << 25  # 128 MiB in float32


def chosen_logprobs(head, hidden, target, temperature=1.0):
    """Log-probs of the target tokens [M] by the Head on hidden states [M, D]. The logits [M, V] are made in parts of
    LOGITS_AT_ONCE numbers, and once more in the backward pass where there are several: never all at once."""
    import torch
    from torch.utils.checkpoint import checkpoint

    def part(states, tokens):
        logits = head(states) / (temperature or 1.0)
        return logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(dim=-1)

    size = max(1, LOGITS_AT_ONCE // head.matrix.weight.shape[0])
    if len(target) <= size:
        return part(hidden, target)
    return torch.cat(
        [
            checkpoint(part, h, t, use_reentrant=False)
            for h, t in zip(hidden.split(size), target.split(size), strict=True)
        ]
    )
