"""Language models: loading, token log-probabilities, generation. Tokens in, tokens out.

Left padding, stop tokens, masks and the sampling noise live here and nowhere else. torch and transformers are imported
inside the functions that need them, so that `--help` answers at once.
"""

import contextlib
import hashlib
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Completion:
    """What was sampled: token ids (stop token included when it was reached), their log-probs under the distribution
    sampled from, and the policy version."""

    ids: list
    logprobs: list
    version: int


def load(model_id, lora_rank=0, load_in_4bit=False, device=None):
    """Load a causal language model and its tokenizer.

    `model_id`: a local folder (relative ones are tried from the project's root too) or a hub id. With `lora_rank` > 0
    the base is frozen and LoRA adapters are trained; `load_in_4bit` quantises the base (bitsandbytes, needs a GPU).
    Returns (model in eval mode, tokenizer). Raises UsageError where there is no such model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # the script has its own
    path = find_model(model_id)
    offline = not os.path.isdir(path) and not hub_answers(path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if load_in_4bit and device == "cpu":
        raise UsageError("--load-in-4bit needs a GPU: drop the flag or run where torch.cuda.is_available()")
    # weights that are trained stay in float32: an update of 1e-6 is lost in bfloat16
    options = {"dtype": torch.bfloat16 if device == "cuda" and lora_rank else torch.float32}
    if load_in_4bit:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        options["device_map"] = {"": 0}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=offline)
        model = AutoModelForCausalLM.from_pretrained(path, local_files_only=offline, **options)
    except (OSError, ValueError) as error:
        reason = "the hub cannot be reached and its cache has none" if offline else str(error).splitlines()[0]
        raise UsageError(f"cannot load the model {model_id!r}: {reason}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not load_in_4bit:
        model = model.to(device)
    if lora_rank:
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model) if load_in_4bit else model
        model = get_peft_model(model, LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear"))
    return model.eval(), tokenizer


def find_model(model_id):
    """The folder of a local model, or the id itself where it looks like one of the hub (`owner/name`).

    Raises UsageError for a path that is not there.
    """
    for path in (Path(model_id), ROOT / model_id):
        if (path / "config.json").is_file():
            return str(path)
    looks_local = model_id.startswith((".", "/", "~", "assets/", "runs/")) or model_id.count("/") != 1
    if looks_local or os.path.isdir(model_id):
        raise UsageError(f"no model at {model_id!r}: give a folder with a config.json, or a hub id such as owner/name")
    return model_id


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


def ask(url, model, prompt, flag):
    """One reply of a model behind an OpenAI-compatible API at `url`; its key is read from OPENAI_API_KEY.

    Raises UsageError, naming the command line's `flag`, when the server cannot be reached.
    """
    import openai

    key = os.environ.get("OPENAI_API_KEY", "none")  # a server of one's own wants none
    client = openai.OpenAI(base_url=url, api_key=key, timeout=60, max_retries=3)
    try:
        reply = client.chat.completions.create(
            model=model, temperature=1.0, messages=[{"role": "user", "content": prompt}]
        )
    except openai.OpenAIError as error:
        raise UsageError(f"{flag} {url}: {error}") from error
    return reply.choices[0].message.content or ""


def is_tiny(model_id):
    """Whether a local model is as small as the committed one: then a script's tiny preset is the default."""
    for path in (Path(model_id), ROOT / model_id):
        with contextlib.suppress(OSError, ValueError):
            return json.loads((path / "config.json").read_text()).get("hidden_size", 1 << 20) <= 256
    return False


def stop_ids(model, tokenizer):
    """Every token that ends a turn: the tokenizer's, and what the model's generation config names (chat models)."""
    ids = {tokenizer.eos_token_id}
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids.update(configured if isinstance(configured, (list, tuple)) else [configured])
    return sorted(i for i in ids if i is not None)


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
    from transformers import LogitsProcessorList

    if not prompts:
        return []
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    stops = stop_ids(model, tokenizer)
    sampler = gumbel_sampler(seeds, temperature, model.device)
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            repetition_penalty=1.0,  # some chat models' own setting would sample what nobody scores
            logits_processor=LogitsProcessorList([sampler]),
            eos_token_id=stops,
            pad_token_id=pad,
        )
    new = out[:, width:].tolist()
    logprobs = torch.stack(sampler.logprobs, dim=1).tolist()  # one copy to the host for the whole batch
    completions = []
    for row, row_logprobs in zip(new, logprobs, strict=True):
        length = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        completions.append(Completion(row[:length], row_logprobs[:length], version))
    return completions


def gumbel_sampler(seeds, temperature, device):
    """A logits processor that makes greedy decoding sample: argmax(log p / T + Gumbel noise) is a draw from the softmax
    at temperature T. Every row has its own generator, which `torch.multinomial` does not offer."""
    import torch
    from transformers import LogitsProcessor

    class Sampler(LogitsProcessor):
        def __init__(self):
            self.generators = [torch.Generator(device="cpu").manual_seed(seed) for seed in seeds]
            self.logprobs = []

        def __call__(self, input_ids, scores):  # scores [B, V]
            logprobs = torch.log_softmax(scores.float() / (temperature or 1.0), dim=-1)
            choice = logprobs
            if temperature > 0:
                noise = torch.stack([torch.rand(scores.shape[-1], generator=g) for g in self.generators])
                noise = noise.clamp_(min=1e-20).log_().neg_().clamp_(min=1e-20).log_().neg_()
                choice = logprobs + noise.to(device)
            self.logprobs.append(logprobs.gather(1, choice.argmax(-1, keepdim=True)).squeeze(1))
            return choice

    return Sampler()


def hidden_states(model, sequences, pad_id):
    """Last-layer hidden states of right-padded sequences: ([B, L, D], lengths [B]).

    Under a causal mask right padding cannot reach the real tokens, so no attention mask is needed.
    """
    import torch

    lengths = torch.tensor([len(s) for s in sequences], device=model.device)
    width = int(max(map(len, sequences)))
    ids = torch.tensor([list(s) + [pad_id] * (width - len(s)) for s in sequences], device=model.device)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.get_decoder()(input_ids=ids).last_hidden_state, lengths


def token_logprobs(model, tokenizer, prompts, actions, temperature=1.0):
    """Log-probabilities of the actions' tokens under the model, with gradient unless the caller forbids it.

    prompts, actions: lists of N token id lists. Returns (logprobs [N, L], mask [N, L]) with L the longest action; 0 and
    False in the padding. The head runs on the actions' positions only, so [sum of lengths, V] is all that is held.
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
    logits = model.get_output_embeddings()(hidden[rows[mask], position[mask]]).float() / (temperature or 1.0)  # [M, V]
    chosen = logits.gather(1, target[mask][:, None]).squeeze(1) - logits.logsumexp(dim=-1)
    return torch.zeros(mask.shape, device=hidden.device).masked_scatter(mask, chosen), mask


def length_batches(lengths, batch_size, rng=None):
    """Index batches. With `rng` (random.Random): random ones, each sorted by length, so that its micro-batches pad
    little. Without: of like lengths, longest first, for passes without gradient."""
    order = list(range(len(lengths)))
    if rng is None:
        order.sort(key=lambda i: -lengths[i])
        return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    rng.shuffle(order)
    # batches of equal size, give or take one: a leftover of a single item would be a full step of its own
    count = math.ceil(len(order) / batch_size)
    return [sorted(order[i::count], key=lambda i: -lengths[i]) for i in range(count)]


def gradient_step(model, optimizer, items, loss_sum, count, micro_batch_size, max_norm=1.0):
    """One optimiser step on the loss `loss_sum(items) / count`, accumulated over micro-batches of the items: the same
    gradient whatever their size. Clips the gradient's norm to `max_norm`. Returns (loss, norm before clipping), as
    tensors."""
    import torch

    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer.zero_grad()
    losses = []
    if _threads is None:
        for part in split(items, micro_batch_size):
            loss = loss_sum(part) / count
            loss.backward()
            losses.append(loss.detach())
    else:

        def loss_and_gradients(part):
            loss = loss_sum(part) / count
            return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

        for loss, gradients in _threads.map(loss_and_gradients, split(items, micro_batch_size)):
            losses.append(loss)  # in the parts' order: the sum does not depend on which thread was first
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return torch.stack(losses).sum(), norm


def map_batches(function, items, lengths, batch_size=64):
    """`function(list of items) -> tensor [len]` over length-sorted batches without gradient; a list in items' order."""
    import torch

    def without_gradient(batch):
        with torch.no_grad():
            return function([items[i] for i in batch]).tolist()

    batches = length_batches(lengths, batch_size)
    run = map if _threads is None else _threads.map
    results = [None] * len(items)
    for batch, values in zip(batches, run(without_gradient, batches), strict=True):
        for i, value in zip(batch, values, strict=True):
            results[i] = value
    return results


def split(items, size):
    """The items in parts of at most `size`."""
    return [items[i : i + size] for i in range(0, len(items), size)]


_threads = None  # a ThreadPoolExecutor after use_threads


def use_threads(count):
    """From now on `count` micro-batches at a time are computed on the CPU, each by one thread. On a tiny model two
    threads inside torch's operations are slower than one; two micro-batches side by side are 1.7 times as fast."""
    global _threads
    import torch

    torch.set_num_threads(1)
    _threads = ThreadPoolExecutor(count) if count > 1 else None
