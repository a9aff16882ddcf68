"""Language models, those that see among them: loading, prompts, token log-probabilities, generation. Tokens in, tokens
out; pictures as the bytes of their files.

A model's `reader` makes its tokens: a tokenizer, or of a model that sees a processor. A prompt is a list of token ids,
or a `Prompt`, which has pictures. Padding, stop tokens, masks and the sampling noise live here and nowhere else. torch
and transformers are imported inside the functions that need them, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UsageError
from common.lm import fsdp, parallel
from common.screen import load as load_picture

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import Cache
    from transformers import PreTrainedTokenizerBase as Tokenizer
    from transformers import ProcessorMixin as Processor

    Reader = Tokenizer | Processor
    Ids = Sequence[Sequence[int]]  # token ids of several prompts or actions

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Completion:
    """What was sampled: token ids (stop token included when it was reached), their log-probs under the distribution
    sampled from, and the policy version."""

    ids: list[int]
    logprobs: list[float]
    version: int


def load(
    model_id: str,
    lora_rank: int = 0,
    load_in_4bit: bool = False,
    gradient_checkpointing: bool = False,
    device: str | None = None,
    vision: bool = False,
) -> tuple[Module, Reader]:
    """Load a language model and its reader: the tokenizer, with `vision` (a model that takes pictures) the processor.

    `model_id`: a local folder (relative ones are tried from the project's root too) or a hub id. With `lora_rank` > 0
    the base is frozen and LoRA adapters are trained; `load_in_4bit` quantises the base (bitsandbytes, needs a GPU);
    `gradient_checkpointing` keeps one layer's activations at a time in training, for a third more computation.
    A folder of adapters is loaded as the model they make of their base. Returns (model in eval mode, reader). Raises
    UsageError where there is no such model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # the script has its own
    base = base_id(model_id)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if base != model_id and lora_rank:
        raise UsageError(f"{model_id!r} is a folder of adapters: merge it first (tools/export.py), then train new ones")
    if parallel.sharded() and lora_rank:
        raise UsageError("FSDP splits weights that are trained, --lora-rank freezes them: one of the two")
    if load_in_4bit and not lora_rank:
        raise UsageError("--load-in-4bit needs --lora-rank: quantised weights cannot be trained")
    if load_in_4bit and device == "cpu":
        raise UsageError("--load-in-4bit needs a GPU: drop the flag or run where torch.cuda.is_available()")
    # weights that are trained stay in float32: an update of 1e-6 is lost in bfloat16
    fast = device == "cuda" or (device == "cpu" and multiplies_bfloat16() and size_of(model_id) != "tiny")
    options = {"dtype": torch.bfloat16 if fast and lora_rank else torch.float32}
    if load_in_4bit:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        options["device_map"] = {"": torch.cuda.current_device()}
    reader = load_processor(model_id) if vision else load_tokenizer(model_id)
    model = from_pretrained(AutoModelForImageTextToText if vision else AutoModelForCausalLM, base, **options)
    if base != model_id:
        quiet_peft()
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, find_model(model_id)).merge_and_unload()
    if not load_in_4bit:
        model = model.to(device)
    check_head(model, model_id)
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if lora_rank:
        model = add_adapters(model, lora_rank, load_in_4bit)
    return fsdp.shard(model).eval(), reader


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it (AMX, AVX-512): LoRA on a model of 135 M parameters then learns 2.2
    times as many tokens a second as in float32, and reads 2.4 to 3.7 times as many."""
    import torch

    return any(torch.cpu.get_capabilities().get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def from_pretrained(kind: type, model_id: str, **options):
    """A `kind` (of transformers) of a local folder or hub id: from the hub's cache, where the hub cannot be reached.
    Raises UsageError where there is none."""
    from common.lm import tiny_vision  # noqa: F401  registers its tower

    path = find_model(model_id)
    offline = not os.path.isdir(path) and not hub_answers(path)
    try:
        return kind.from_pretrained(path, local_files_only=offline, **options)
    except (OSError, ValueError) as error:
        reason = "the hub cannot be reached and its cache has none" if offline else str(error).splitlines()[0]
        raise UsageError(f"cannot load the model {model_id!r}: {reason}") from error


def base_id(model_id: str) -> str:
    """The model itself, or where it is a folder of adapters their base. Raises UsageError for a path that is not
    there."""
    adapters = Path(find_model(model_id)) / "adapter_config.json"
    return json.loads(adapters.read_text())["base_model_name_or_path"] if adapters.is_file() else model_id


def sees(model_id: str) -> bool:
    """Whether a model (a local folder or hub id) takes pictures, by its configuration. Errors as of `load`."""
    from transformers import AutoConfig

    return hasattr(from_pretrained(AutoConfig, base_id(model_id)), "vision_config")


def load_tokenizer(model_id: str) -> Tokenizer:
    """The tokenizer of a model as `load` takes it, with a padding token. Raises UsageError where there is none."""
    from transformers import AutoTokenizer

    tokenizer = from_pretrained(AutoTokenizer, model_id)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_processor(model_id: str) -> Processor | PictureProcessor:
    """The processor of a model that sees: `tokenizer`, `image_processor`, `image_token`. Raises UsageError where there
    is none."""
    from transformers import AutoProcessor

    try:
        return from_pretrained(AutoProcessor, model_id)
    except (ImportError, AttributeError):  # it has a part for videos, which transformers makes with torchvision only
        return PictureProcessor(model_id)


class PictureProcessor:
    """What is used here of the processor of a model that also sees videos: the text's image tokens, as many as the grid
    of a picture's patches has after merging."""

    def __init__(self, model_id):
        from transformers import AutoConfig, AutoImageProcessor

        self.tokenizer = load_tokenizer(model_id)
        self.image_processor = from_pretrained(AutoImageProcessor, model_id)
        config = from_pretrained(AutoConfig, base_id(model_id))
        self.image_token = self.tokenizer.convert_ids_to_tokens(config.image_token_id)

    def __call__(self, text, images, add_special_tokens):
        grids = self.image_processor(images=images)["image_grid_thw"].tolist() if images else []
        counts = iter([math.prod(grid) // self.image_processor.merge_size**2 for grid in grids])
        rows = [re.sub(re.escape(self.image_token), lambda token: token[0] * next(counts), part) for part in text]
        return self.tokenizer(rows, add_special_tokens=add_special_tokens)

    def save_pretrained(self, folder):
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)


def tokenizer_of(reader: Reader) -> Tokenizer:
    """The tokenizer itself of what may be a processor."""
    return getattr(reader, "tokenizer", reader)


def quiet_peft() -> None:
    """No warnings of a kernel for CPUs that is not installed, and of what PEFT asks transformers by an old name."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)


def add_adapters(model: Module, lora_rank: int, in_4bit: bool = False) -> Module:
    """The model with its weights frozen and LoRA adapters, in float32, on every linear layer."""
    quiet_peft()
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


def copy_network(model: Module) -> Module:
    """A copy with trained weights of its own. Frozen weights, a LoRA model's base, are shared and held once."""
    import copy

    if parallel.sharded():
        return fsdp.shard(fsdp.whole_copy(model))
    frozen = [p for p in model.parameters() if not p.requires_grad]
    frozen += [p.quant_state for p in frozen if hasattr(p, "quant_state")]  # bitsandbytes keeps the scales there
    return copy.deepcopy(model, {id(shared): shared for shared in frozen})


def new_adapters(model: Module) -> Module:
    """The LoRA model with adapters as at the start of training: the base model's function."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.reset_lora_parameters("default", True)
    return model


def load_trained(model: Module, folder: str | Path) -> None:
    """Put the weights that `save_pretrained` wrote to `folder` into a model of the same kind."""
    import torch
    from safetensors.torch import load_file

    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(Path(folder) / "adapter_model.safetensors"))
    else:
        fsdp.fill(model, type(model).from_pretrained(folder, dtype=torch.float32).state_dict())


def find_model(model_id: str) -> str:
    """The folder of a local model, or the id itself where it looks like one of the hub (`owner/name`).

    Raises UsageError for a path that is not there.
    """
    for path in (Path(model_id), ROOT / model_id):
        if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
            return str(path)
    looks_local = model_id.startswith((".", "/", "~", "assets/", "models/", "runs/")) or model_id.count("/") != 1
    if looks_local or os.path.isdir(model_id):
        raise UsageError(f"no model at {model_id!r}: give a folder with a config.json, or a hub id such as owner/name")
    return model_id


@functools.cache
def hub_answers(model_id: str) -> bool:
    """Whether the hub can be reached: one request, without the library's minute of retries."""
    import huggingface_hub

    try:
        huggingface_hub.model_info(model_id, timeout=10)
    except huggingface_hub.errors.HfHubHTTPError:  # it answered: no such model, or none for you
        return True
    except Exception:  # of whichever HTTP client the library has by now, or HF_HUB_OFFLINE=1
        return False
    return True


def size_of(model_id: str) -> str:
    """The --preset for a model of its size, by its configuration: "tiny" up to TINY_WIDTH, "small" below two
    billion weights, else "paper"; so where nobody knows."""
    config = _config_of(model_id)
    config = config.get("text_config", config)  # of a model that sees
    width, layers = config.get("hidden_size"), config.get("num_hidden_layers")
    if not width or not layers:
        return "paper"
    inner = config.get("intermediate_size") or 4 * width
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    weights = layers * (4 * width**2 + 3 * width * inner * experts) + width * config.get("vocab_size", 0)
    return "tiny" if width <= TINY_WIDTH else "small" if weights < 2e9 else "paper"


TINY_WIDTH = 256


def is_tiny(model: Module) -> bool:
    """Whether the model's --preset is "tiny"."""
    return model.config.get_text_config().hidden_size <= TINY_WIDTH


def _config_of(model_id):
    """A model's configuration as a dictionary, {} where there is none; of a folder without an import of
    transformers."""
    with contextlib.suppress(UsageError, OSError, ValueError):
        if (path := Path(find_model(model_id))).is_dir():
            return json.loads((path / "config.json").read_text())
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(model_id, local_files_only=not hub_answers(model_id)).to_dict()
    return {}


def stop_ids(model: Module, tokenizer: Tokenizer) -> list[int]:
    """Every token that ends a turn: the tokenizer's, and what the model's generation config names (chat models)."""
    ids = {tokenizer.eos_token_id, end_of_turn(tokenizer)}
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids.update(configured if isinstance(configured, (list, tuple)) else [configured])
    return sorted(i for i in ids if i is not None)


def context_of(model: Module) -> float:
    """Tokens that a prompt and its answer may have together, by the model's configuration: infinite where it does not
    say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf


@functools.cache
def end_of_turn(tokenizer: Tokenizer) -> int:
    """The token that ends an assistant's turn: what the chat template puts after one, else the end of the sequence."""
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("b")[2]
        for token in tokenizer.encode(after, add_special_tokens=False)[:1]:
            if token in tokenizer.all_special_ids:
                return token
    return tokenizer.eos_token_id


def chat_prompt(tokenizer: Tokenizer, system: str, user: str) -> list[int]:
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


def without_special_tokens(reader: Reader, text: str) -> str:
    """The text without strings that the reader would take for its control tokens: a page must not end a turn, nor ask
    for a picture."""
    special = [token.content for token in tokenizer_of(reader).added_tokens_decoder.values() if token.special]
    special += filter(None, [getattr(reader, "image_token", None)])  # some tokenizers have it as a plain word
    while found := [token for token in special if token in text]:  # again: what is left may form another one
        for token in found:
            text = text.replace(token, "")
    return text


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything printable: the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


class Prompt(list):
    """Token ids, image tokens expanded; `images`: the pictures in the order of their tokens (bytes of image files, or
    whatever stands for them until they are needed); `turns`: the chat that they were made of, if there is one."""

    def __init__(self, ids: Sequence[int], images: Sequence[bytes] = (), turns: list[dict] | None = None):
        super().__init__(ids)
        self.images, self.turns = list(images), turns


def encode(processor: Processor, text: str, images: Sequence[bytes], turns: list[dict] | None = None) -> Prompt:
    """The Prompt of a text with image placeholders and as many pictures."""
    pictures = [load_picture(image) for image in images]
    given = processor(text=[text], images=pictures or None, add_special_tokens=False)
    return Prompt(given["input_ids"][0], images, turns)


def image_token(reader: Reader) -> int | None:
    """The id of a processor's image token; None of a tokenizer."""
    return reader.tokenizer.convert_tokens_to_ids(reader.image_token) if hasattr(reader, "tokenizer") else None


def base_of(model: Module) -> Module:
    """The model without its adapters' wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def takes_pictures(model: Module) -> bool:
    return hasattr(model.config, "vision_config")


def picture_inputs(model: Module, reader: Reader, prompts: Ids, ids: Tensor) -> dict[str, Tensor]:
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


def generate(
    model: Module,
    reader: Reader,
    prompts: Ids,
    seeds: Sequence[int],
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    version: int = 0,
) -> list[Completion]:
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
    width, cache = max(map(len, prompts)), shared_cache(model, prompts)
    read = cache.get_seq_length() if cache else 0  # padding comes behind it
    ids = [[*p[:read], *[pad] * (width - len(p)), *p[read:]] for p in prompts]
    mask = [[1] * read + [0] * (width - len(p)) + [1] * (len(p) - read) for p in prompts]
    ids, mask = torch.tensor(ids, device=model.device), torch.tensor(mask, device=model.device)
    inputs = {"input_ids": ids, "attention_mask": mask} | picture_inputs(model, reader, prompts, ids)
    if cache:
        inputs["past_key_values"] = cache
    config = GenerationConfig(  # the model's own must not change what is sampled from
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=stops, pad_token_id=pad
    )
    if ids.numel() > PREFILL_TOKENS and not any(getattr(prompt, "images", ()) for prompt in prompts):
        config.prefill_chunk_size = max(1, PREFILL_TOKENS // len(prompts))
    with torch.no_grad(), autocast(model):
        # not the adapters' wrapper: it swaps a method of the model meanwhile, and two threads may generate
        out = base_of(model).generate(
            **inputs, generation_config=config, logits_processor=LogitsProcessorList([sampler])
        )
    completions, logprobs = [], torch.stack(sampler.logprobs, dim=1)
    for row, row_logprobs in zip(out[:, width:].tolist(), logprobs.tolist(), strict=True):
        length = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        completions.append(Completion(row[:length], row_logprobs[:length], version))
    return completions


SHARED_TOKENS = 1024  # to be saved: fewer are not worth a forward pass of their own


def shared_cache(model: Module, prompts: Ids) -> Cache | None:
    """Keys and values of the tokens that all prompts begin with (a chat's system turn), read once for all of them: a
    transformers cache with a row for each. None where that saves little, with pictures, and for models that do not
    attend to all tokens alike (a window counts the padding between what is shared and what is not)."""
    import torch
    from transformers.cache_utils import DynamicCache, DynamicLayer

    same = itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    count = min(len(list(same)), min(map(len, prompts)) - 1)  # one at least is left to read
    if count * (len(prompts) - 1) < SHARED_TOKENS or takes_pictures(model) or parallel.sharded():
        return None
    ids = torch.tensor([prompts[0][:count]], device=model.device)
    with torch.no_grad(), autocast(model):
        cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None
    cache.batch_repeat_interleave(len(prompts))
    return cache


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


def sample(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
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


def hidden_states(model: Module, reader: Reader, prompts: Ids, actions: Ids | None = None) -> tuple[Tensor, Tensor]:
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


def body_of(model: Module) -> Module:
    """The model without its output head."""
    return base_of(model).base_model


class Head:
    """What a model's own forward makes of its last hidden states: the output matrix, then the cap or the scale that its
    configuration has (Gemma, Granite, Cohere, Falcon-H1). A `forbidden` token is never sampled: minus infinity."""

    def __init__(self, model: Module, forbidden: int | None = None):
        import torch

        self.matrix = model.get_output_embeddings()
        config, device = model.config.get_text_config(), self.matrix.weight.device
        self.cap = getattr(config, "final_logit_softcapping", None)
        multipliers = (getattr(config, name, None) for name in ("logit_scale", "lm_head_multiplier"))
        self.scale = math.prod(1.0 if number is None else number for number in multipliers)
        self.scale /= getattr(config, "logits_scaling", None) or 1.0
        self.forbidden = None if forbidden is None else torch.tensor([forbidden], device=device)

    def __call__(self, hidden: Tensor, tokens: list[int] | None = None) -> Tensor:
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


def check_head(model: Module, model_id: str) -> None:
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


def action_states(model: Module, reader: Reader, prompts: Ids, actions: Ids) -> list[Tensor]:
    """The hidden states that the actions' tokens are sampled from, with gradient: a list of N tensors [tokens, D]."""
    hidden, _ = hidden_states(model, reader, prompts, actions)
    # the token at position t is predicted by the hidden state at t - 1
    return [row[len(p) - 1 : len(p) + len(a) - 1] for row, p, a in zip(hidden, prompts, actions, strict=True)]


def action_logits(model: Module, reader: Reader, prompts: Ids, actions: Ids) -> list[Tensor]:
    """What the actions' tokens are sampled from: a list of N tensors [tokens, V], with gradient; an image token is at
    minus infinity."""
    head = Head(model, image_token(reader))
    return [head(states) for states in action_states(model, reader, prompts, actions)]


def autocast(model: Module) -> contextlib.AbstractContextManager:
    """Matrices multiplied in bfloat16: on a GPU whatever type the weights are kept in, else where they are in it."""
    import torch

    half = model.device.type == "cuda" or base_of(model).dtype == torch.bfloat16
    return torch.autocast(model.device.type, torch.bfloat16, enabled=half)


def token_logprobs(
    model: Module, reader: Reader, prompts: Ids, actions: Ids, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the actions' tokens under the model, with gradient unless the caller forbids it.

    prompts: N token id lists or `Prompt`s; actions: N token id lists. Returns (logprobs [N, L], mask [N, L]) with L the
    longest action; 0 and False in the padding, and at an image token: no policy of ours chooses one. The head runs on
    the actions' positions only.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    states = torch.cat(action_states(model, reader, prompts, actions))  # [all tokens, D]
    tokens = torch.tensor([token for action in actions for token in action], device=states.device)
    real = tokens != (-1 if (picture := image_token(reader)) is None else picture)
    chosen = chosen_logprobs(Head(model, picture), states, tokens, temperature).where(real, 0.0)
    lengths = [len(action) for action in actions]
    chosen, real = chosen.split(lengths), real.split(lengths)
    return pad_sequence(chosen, batch_first=True), pad_sequence(real, batch_first=True)


LOGITS_AT_ONCE = 1 << 25  # 128 MiB in float32


def chosen_logprobs(head: Head, hidden: Tensor, target: Tensor, temperature: float = 1.0) -> Tensor:
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
