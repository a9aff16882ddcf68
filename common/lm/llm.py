"""Language models, those that see among them: loading, prompts, token log-probabilities, generation. Tokens in, tokens
out; pictures as the bytes of their files.

A model's `reader` makes its tokens: a tokenizer, or of a model that sees a processor. A prompt is a list of token ids,
or a `Prompt`, which has pictures. Padding, stop tokens, masks and the sampling noise live here and nowhere else. torch
and transformers are imported inside the functions that need them, so that `--help` answers at once.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError
from common.lm import fsdp, parallel
from common.screen import load as load_picture

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Completion:
    """What was sampled: token ids (stop token included when it was reached), their log-probs under the distribution
    sampled from, and the policy version."""

    ids: list
    logprobs: list
    version: int


def load(model_id, lora_rank=0, load_in_4bit=False, gradient_checkpointing=False, device=None, vision=False):
    """Load a language model and its reader: the tokenizer, with `vision` (a model that takes pictures) the processor.

    `model_id`: a local folder (relative ones are tried from the project's root too) or a hub id. With `lora_rank` > 0
    the base is frozen and LoRA adapters are trained; `load_in_4bit` quantises the base (bitsandbytes, needs a GPU);
    `gradient_checkpointing` keeps one layer's activations at a time in training, for a third more computation.
    A folder of adapters is loaded as the model they make of their base. Returns (model in eval mode, reader). Raises
    UsageError where there is no such model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()  # the script has its own
    if vision:
        from common.lm import tiny_vision  # noqa: F401  registers its tower
    path, base, offline = where_is(model_id)
    adapted = base != path
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if adapted and lora_rank:
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
    reader = load_processor(path) if vision else load_tokenizer(model_id)
    try:
        kind = AutoModelForImageTextToText if vision else AutoModelForCausalLM
        model = kind.from_pretrained(base, local_files_only=offline, **options)
    except (OSError, ValueError) as error:
        raise UsageError(cannot_load(model_id, error, offline)) from error
    if adapted:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, path).merge_and_unload()
    if not load_in_4bit:
        model = model.to(device)
    check_head(model, model_id)
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if lora_rank:
        model = add_adapters(model, lora_rank, load_in_4bit)
    return fsdp.shard(model).eval(), reader


def where_is(model_id):
    """(the model's folder or hub id; that of its base, where it is a folder of adapters; whether that must come from
    the hub's cache). Raises UsageError for a path that is not there."""
    path = base = find_model(model_id)
    adapters = Path(path) / "adapter_config.json"
    if adapters.is_file():
        base = find_model(json.loads(adapters.read_text())["base_model_name_or_path"])
    return path, base, not os.path.isdir(base) and not hub_answers(base)


def sees(model_id):
    """Whether a model (a local folder or hub id) takes pictures, by its configuration. Errors as of `load`."""
    from transformers import AutoConfig

    from common.lm import tiny_vision  # noqa: F401  registers its tower

    _, base, offline = where_is(model_id)
    try:
        return hasattr(AutoConfig.from_pretrained(base, local_files_only=offline), "vision_config")
    except (OSError, ValueError) as error:
        raise UsageError(cannot_load(model_id, error, offline)) from error


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


def load_processor(path):
    """The processor of a model's folder or hub id: `tokenizer`, `image_processor`, `image_token`."""
    import transformers

    from common.lm import tiny_vision  # noqa: F401  registers its tower

    try:
        return transformers.AutoProcessor.from_pretrained(path)
    except (ImportError, AttributeError):  # it has a part for videos, which transformers makes with torchvision only
        return PictureProcessor(path)


class PictureProcessor:
    """What is used here of the processor of a model that also sees videos: the text's image tokens, as many as the grid
    of a picture's patches has after merging."""

    def __init__(self, path):
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self.image_processor = transformers.AutoImageProcessor.from_pretrained(path)
        config = transformers.AutoConfig.from_pretrained(path)
        self.image_token = self.tokenizer.convert_ids_to_tokens(config.image_token_id)

    def __call__(self, text, images, add_special_tokens):
        rows, grids = [], iter(())
        if images:
            grids = iter(self.image_processor(images=images)["image_grid_thw"].tolist())
        for part in text:
            first, *others = part.split(self.image_token)
            for other in others:
                time, height, width = next(grids)
                count = time * height * width // self.image_processor.merge_size**2
                first += self.image_token * count + other
            rows.append(self.tokenizer.encode(first, add_special_tokens=add_special_tokens))
        return {"input_ids": rows}

    def save_pretrained(self, folder):
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)


def tokenizer_of(reader):
    """The tokenizer itself of what may be a processor."""
    return getattr(reader, "tokenizer", reader)


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
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(Path(folder) / "adapter_model.safetensors"))
        return
    kind = AutoModelForImageTextToText if takes_pictures(model) else AutoModelForCausalLM
    fsdp.fill(model, kind.from_pretrained(folder, dtype=torch.float32).state_dict())


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


def without_special_tokens(reader, text):
    """The text without strings that the reader would take for its control tokens: a page must not end a turn, nor ask
    for a picture."""
    special = [token.content for token in tokenizer_of(reader).added_tokens_decoder.values() if token.special]
    special += filter(None, [getattr(reader, "image_token", None)])  # some tokenizers have it as a plain word
    while found := [token for token in special if token in text]:  # again: what is left may form another one
        for token in found:
            text = text.replace(token, "")
    return text


def seed_of(*parts):
    """A 63-bit seed from anything printable: the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


class Prompt(list):
    """Token ids, image tokens expanded; `images`: the pictures in the order of their tokens (bytes of image files, or
    whatever stands for them until they are needed); `turns`: the chat that they were made of, if there is one."""

    def __init__(self, ids, images=(), turns=None):
        super().__init__(ids)
        self.images, self.turns = list(images), turns


def encode(processor, text, images, turns=None):
    """The Prompt of a text with image placeholders and as many pictures."""
    pictures = [load_picture(image) for image in images]
    given = processor(text=[text], images=pictures or None, add_special_tokens=False)
    return Prompt(given["input_ids"][0], images, turns)


def image_token(reader):
    """The id of a processor's image token; None of a tokenizer."""
    token = getattr(reader, "image_token", None)
    return None if token is None or not hasattr(reader, "tokenizer") else reader.tokenizer.convert_tokens_to_ids(token)


def base_of(model):
    """The model without its adapters' wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def takes_pictures(model):
    return hasattr(model.config, "vision_config")


def picture_inputs(model, reader, prompts, ids):
    """What a forward pass takes of the prompts' pictures, whose image tokens are in `ids`. The families differ in what
    pictures become (pixel values, grids of patches, token types): their processors and signatures say what."""
    if not takes_pictures(model):
        return {}
    inputs, pictures = {}, [load_picture(image) for p in prompts for image in getattr(p, "images", ())]
    if pictures:
        inputs |= reader.image_processor(images=pictures, return_tensors="pt")
    if "mm_token_type_ids" in inspect.signature(base_of(model).forward).parameters:
        token = image_token(reader)  # None: a script that reads text plays with a model that would see, too
        inputs["mm_token_type_ids"] = (ids == (-1 if token is None else token)).int()
    return {name: value.to(model.device) for name, value in inputs.items()}


PREFILL_TOKENS = 16384  # of prompts that go through the model at once: the activations of more want too much memory


def generate(model, reader, prompts, seeds, temperature=1.0, max_new_tokens=64, version=0):
    """Sample one completion for each prompt, in one batch.

    prompts: token id lists or `Prompt`s; seeds: one int a prompt. A row's tokens depend on its own seed, never on which
    rows share the batch. temperature 0 is greedy. Returns a list of Completion; log-probs are those of the distribution
    sampled from (of temperature 1 when greedy).

    By transformers' own `generate`: on the tiny model a sampler of our own, with a cache written in place and rows
    that leave the batch as they end, took three quarters of the time, which is a tenth of the demo's.
    """
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    if not prompts:
        return []
    tokenizer = tokenizer_of(reader)
    stops, pad = stop_ids(base_of(model), tokenizer), tokenizer.pad_token_id
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform = torch.stack([torch.rand(max_new_tokens, generator=g, dtype=torch.float64) for g in generators], dim=1)
    sampler = Sampler(uniform.to(model.device), temperature, image_token(reader))
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    inputs = {"input_ids": ids, "attention_mask": mask} | picture_inputs(model, reader, prompts, ids)
    config = GenerationConfig(  # the model's own must not change what is sampled from
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=stops, pad_token_id=pad
    )
    if ids.numel() > PREFILL_TOKENS and not any(getattr(prompt, "images", ()) for prompt in prompts):
        config.prefill_chunk_size = max(1, PREFILL_TOKENS // len(prompts))
    with torch.no_grad(), autocast(model):
        out = model.generate(**inputs, generation_config=config, logits_processor=LogitsProcessorList([sampler]))
    completions, logprobs = [], torch.stack(sampler.logprobs, dim=1)
    for row, row_logprobs in zip(out[:, width:].tolist(), logprobs.tolist(), strict=True):
        length = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        completions.append(Completion(row[:length], row_logprobs[:length], version))
    return completions


class Sampler:
    """A logits processor that chooses: it leaves the token that was sampled as the only one. `uniform` [tokens, B].
    The token `forbidden` is never chosen: an image token without a picture would break the next forward pass."""

    def __init__(self, uniform, temperature, forbidden):
        self.uniform, self.temperature, self.forbidden, self.logprobs = uniform, temperature, forbidden, []

    def __call__(self, input_ids, scores):
        import torch

        if self.forbidden is not None:
            scores[:, self.forbidden] = -torch.inf
        tokens, logprobs = sample(scores, self.temperature, self.uniform[len(self.logprobs)])
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


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


def hidden_states(model, reader, prompts, actions=None):
    """Last-layer hidden states of N prompts, each with its action's token ids behind it: ([N, L, D], lengths [N]).

    Padded on the right: under a causal mask that cannot reach the real tokens, so no attention mask is needed. An image
    token in an action has no picture, so the model is shown a padding token for it.
    """
    import torch

    picture, pad = image_token(reader), tokenizer_of(reader).pad_token_id
    actions = [[pad if token == picture else token for token in action] for action in actions or [()] * len(prompts)]
    rows = [[*p, *a] for p, a in zip(prompts, actions, strict=True)]
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=model.device)
    with autocast(model):
        out = body_of(model)(input_ids=ids, use_cache=False, **picture_inputs(model, reader, prompts, ids))
    return out.last_hidden_state, torch.tensor([len(row) for row in rows], device=model.device)


def body_of(model):
    """The model without its output head."""
    return base_of(model).model if takes_pictures(model) else base_of(model).get_decoder()


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


def check_head(model, model_id):
    """Raises UsageError where `Head` is not what the model's own forward makes of its last hidden states: sampling uses
    the one, the losses the other, and every ratio between them would be wrong."""
    import torch

    ids = torch.arange(8, device=model.device)[None]
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits.float().log_softmax(dim=-1)
        ours = Head(model)(body_of(model)(input_ids=ids, use_cache=False).last_hidden_state).log_softmax(dim=-1)
    error = (own - ours).abs().max().item()
    if not error < (1e-3 if model.dtype == torch.float32 else 0.05):
        raise UsageError(
            f"{model_id!r} caps or scales its logits in a way not known here (log-probs off by up to {error:.2g}): its "
            "losses would be wrong; use another model, or tell `Head` in common/lm/llm.py"
        )


def action_logits(model, reader, prompts, actions):
    """What the actions' tokens are sampled from: a list of N tensors [tokens, V], with gradient; an image token is at
    minus infinity."""
    hidden, _ = hidden_states(model, reader, prompts, actions)
    head = Head(model, image_token(reader))
    spans = ((len(p) - 1, len(p) + len(a) - 1) for p, a in zip(prompts, actions, strict=True))  # of t at t - 1
    return [head(row[begin:end]) for row, (begin, end) in zip(hidden, spans, strict=True)]


def autocast(model):
    """On a GPU: matrices multiplied in bfloat16, whatever type the weights are kept in."""
    import torch

    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda")


def token_logprobs(model, reader, prompts, actions, temperature=1.0):
    """Log-probabilities of the actions' tokens under the model, with gradient unless the caller forbids it.

    prompts: N token id lists or `Prompt`s; actions: N token id lists. Returns (logprobs [N, L], mask [N, L]) with L the
    longest action; 0 and False in the padding, and at an image token: no policy of ours chooses one. The head runs on
    the actions' positions only.
    """
    import torch

    hidden, _ = hidden_states(model, reader, prompts, actions)
    longest = max(map(len, actions))
    picture = image_token(reader)
    mask = [[i < len(a) and a[i] != picture for i in range(longest)] for a in actions]
    mask = torch.tensor(mask, device=hidden.device)
    # the token at position t is predicted by the hidden state at t - 1
    position = torch.tensor(
        [[len(p) - 1 + min(i, len(a) - 1) for i in range(longest)] for p, a in zip(prompts, actions, strict=True)],
        device=hidden.device,
    )
    target = torch.tensor([list(a) + [0] * (longest - len(a)) for a in actions], device=hidden.device)
    rows = torch.arange(len(actions), device=hidden.device)[:, None].expand_as(position)
    head = Head(model, picture)
    chosen = chosen_logprobs(head, hidden[rows[mask], position[mask]], target[mask], temperature)
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
