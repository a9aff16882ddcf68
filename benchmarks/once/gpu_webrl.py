"""How fast webrl.py's three heavy passes are on one GPU, and how much memory they take: the table in docs/gpu.md.

    python benchmarks/once/gpu_webrl.py --write-docs        # a Llama-3.1-8B-shaped model at 16k context

The model has random weights (the passes cost the same) and LoRA adapters on every linear layer. Generation, the
log-prob pass (reference, replay filter, critic's values) and the update (forward, backward, AdamW on the adapters, with
gradient checkpointing) are the functions that the script calls.
"""

import platform
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from transformers import AutoModelForCausalLM, LlamaConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.docs import write_docs
from common.errors import UsageError
from common.lm import llm
from common.lm.net import Net
from common.lm.run import run_main

DOCS = Path(__file__).resolve().parents[2] / "docs/gpu.md"
SHAPES = {
    "llama-8b": dict(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, rope_theta=500000.0,
    ),
    "small": dict(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=4096,
    ),
}  # fmt: skip
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16, from the makers' data sheets


@dataclass
class Args:
    shape: Literal["llama-8b", "small"] = "llama-8b"
    """the model's shape"""
    context: int = 16384
    """tokens of a step: page, history and action"""
    action: int = 64
    """tokens of the action"""
    shared: int = 0
    """tokens that all prompts begin with: generation reads them once"""
    compile_layers: bool = False
    """let torch compile every decoder layer before the first pass"""
    sequences: int = 4
    """steps per pass; each is a micro-batch of its own in the update"""
    lora_rank: int = 64
    """rank of the adapters"""
    repeats: int = 3
    """timed calls of each pass, after one that is not"""
    write_docs: bool = False
    """put the table into docs/gpu.md"""


class Tokens:
    """What the passes need of a tokenizer."""

    pad_token_id, eos_token_id, chat_template = 0, 1, None


def build(args):
    """The model with random weights, straight on the device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.shape == "llama-8b" and device.type == "cpu":
        raise UsageError("a model of 8 B parameters wants a GPU: run with --shape small, or where there is one")
    config = LlamaConfig(**SHAPES[args.shape], max_position_embeddings=131072, pad_token_id=0, eos_token_id=1)
    with device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        )
    model.activation_checkpointing_enable({"use_reentrant": False})
    model = llm.add_adapters(model, args.lora_rank)
    if args.compile_layers:
        for layer in llm.body_of(model).layers:
            layer.compile()
    return model


def timed(call, repeats, device):
    """Seconds of one call, and the peak memory in bytes while it ran (of the process on a CPU, since it began)."""

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    call()
    wait()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    seconds = (time.perf_counter() - start) / repeats
    if device.type == "cuda":
        return seconds, torch.cuda.max_memory_allocated()
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forward_flops(config, parameters, sequences, length):
    """Multiply-adds of one forward pass, twice: the matrices (2 per parameter and token; the head runs on the action
    alone and is left out) and causal attention (2 T^2 D a layer)."""
    attention = 2 * length**2 * config.hidden_size * config.num_hidden_layers
    return sequences * (2 * parameters * length + attention)


def measure(args):
    """Rows of the table: (pass, tokens a second, share of the device's peak or None, peak memory in GiB)."""
    torch.manual_seed(0)
    model = build(args)
    device, config = model.device, model.config
    parameters = sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name and "embed" not in name)
    parameters -= config.vocab_size * config.hidden_size * (not config.tie_word_embeddings)  # the head
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, config.vocab_size, (args.sequences, args.context), generator=generator)
    ids[:, : args.shared] = ids[0, : args.shared]
    ids = ids.tolist()
    prompts, actions = [row[: -args.action] for row in ids], [row[-args.action :] for row in ids]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)
    peak = next((value for name, value in PEAK_FLOPS.items() if name in device_name(device)), None)

    def generate():
        llm.generate(model, Tokens, prompts, list(range(args.sequences)), 1.0, args.action)

    def log_probs():
        with torch.no_grad():
            llm.token_logprobs(model, Tokens, prompts, actions)

    def update():
        def loss_sum(rows):
            logprobs, _ = llm.token_logprobs(model, Tokens, [prompts[i] for i in rows], [actions[i] for i in rows])
            return -logprobs.sum()

        rows = list(range(args.sequences))
        net = Net(model, Tokens, args.context, optimizer=optimizer)
        net.descend(loss_sum, [rows], lambda part: [args.context] * len(part))

    tokens = args.sequences * args.context
    flops = forward_flops(config, parameters, args.sequences, args.context)
    results = []
    for name, call, counted, work in (
        ("generation (new tokens; prompts are read within)", generate, args.sequences * args.action, None),
        ("log-prob pass", log_probs, tokens, flops),
        ("update", update, tokens, 2 * flops),  # frozen weights have no gradient of their own; nothing twice
    ):
        model.train(call is update)
        seconds, memory = timed(call, args.repeats, device)
        share = work / seconds / peak if work and peak else None
        results.append((name, counted / seconds, share, memory / 2**30))
        print(f"{name}: {counted / seconds:.0f} tokens a second, {memory / 2**30:.2f} GiB", flush=True)
    return results


def device_name(device):
    """The GPU's or the processor's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def table(args, results):
    """The rows as Markdown, with what they were measured on and how."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given = {k.replace("_", "-"): v for k, v in vars(args).items() if k != "write_docs" and v is not False}
    flags = " ".join(f"--{k}" if v is True else f"--{k} {v}" for k, v in given.items())
    lines = [
        f"{device_name(device)}, torch {torch.__version__}, `python benchmarks/once/gpu_webrl.py {flags}`:",
        "",
        "| pass | tokens a second | share of the peak | peak memory |",
        "|---|---|---|---|",
    ]
    for name, rate, share, memory in results:
        lines.append(f"| {name} | {rate:,.0f} | {'' if share is None else f'{share:.0%}'} | {memory:.2f} GiB |")
    return "\n".join(lines)


def main(args):
    """Measure, print, and write the table where it is asked for."""
    if args.action + args.shared >= args.context:
        raise UsageError("--action and --shared must be shorter than --context")
    results = measure(args)
    text = table(args, results)
    print(text)
    if args.write_docs:
        write_docs(DOCS, "gpu_webrl", text)


if __name__ == "__main__":
    run_main(main, tyro.cli(Args))
