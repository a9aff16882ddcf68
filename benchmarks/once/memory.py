"""Peak memory of WebRL's networks: the released code's layout, and this project's with all weights and with LoRA.

    python benchmarks/once/memory.py --write-docs

Each layout takes one training step of actor and critic on the same batch, in a process of its own; what counts is the
process's peak resident memory above that of the same process with torch loaded and no model. The model has random
weights. The arithmetic for larger models is printed below the measurement.
"""

import gc
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.docs import write_docs
from common.lm.run import run_main

DOCS = ROOT / "docs/gpu.md"
LAYOUTS = {
    "released": "released code: actor, critic and reference as three models",
    "full": "webrl.py, all weights: actor and critic; reference log-probs are stored numbers",
    "full-orm": "the same with the outcome reward model in the same process",
    "lora": "webrl.py, `--lora-rank 16`: actor, critic and outcome reward model on one base",
}


@dataclass
class Args:
    layout: Literal["all", "released", "full", "full-orm", "lora"] = "all"
    """which layout to measure"""
    model: str = ""
    """the model's folder; empty: one with random weights is made"""
    write_docs: bool = False
    """put the tables into docs/gpu.md"""


def make_model(folder, layers=12):
    """A Llama-shaped checkpoint with random weights (59 M parameters) and the tiny tokenizer's files."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=32000, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(ROOT / "assets/tiny").save_pretrained(folder)


def resident(field):
    """The process's resident memory in bytes: now (VmRSS) or at its peak (VmHWM). Linux only."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{field}:\s+(\d+)", status, re.MULTILINE)[1])


def step(layout, folder):
    """One training step of actor and critic in this layout; the process's peak memory above its start, in bytes."""
    import torch

    import webrl
    from common.lm import llm
    from common.lm.net import Net, value_net
    from common.replay import Step

    llm.load("assets/tiny", lora_rank=1)  # what the libraries take is not the layout's
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    rank = 16 if layout == "lora" else 0
    args = webrl.Args(model_id=folder, lora_rank=rank)
    actor = Net(*llm.load(folder, rank), tokens=258)
    networks = [actor, value_net(actor)]
    if layout == "released":
        reference, _ = llm.load(folder)
    if layout in ("full-orm", "lora"):
        networks.append(webrl.make_orm(actor, args))
    steps = [Step(range(2, 250), list(range(2, 12)), [], 0, "", "") for _ in range(2)]
    if layout == "released":
        with torch.no_grad():
            Net(reference, actor.reader, tokens=258).logprobs(steps)

    def loss_of(network):
        if network.is_value:
            return lambda part: network.value_logits([step.prompt_ids for step in part]).sum()
        return lambda part: -network.logprobs(part)[0].sum()

    for network in networks:
        network.begin(1e-6).descend(loss_of(network), [steps])
        network.optimizer.zero_grad()  # the networks learn in turn: their gradients are not held together
    return resident("VmHWM") - before


def arithmetic(billions, layers, hidden, rank=64):
    """GB of weights, gradients and AdamW's states by layout, without activations: (released, full, LoRA, LoRA 4-bit).

    Weights that are trained: 4 bytes, gradients 4, AdamW 8. Frozen ones: 2 bytes in bfloat16, about 0.55 in NF4. The
    released code trains two models and keeps a third in bfloat16; webrl.py has two or three, one learning at a time.
    """
    adapters = 3 * rank * layers * 20 * hidden / 1e9  # three networks; inputs and outputs of a layer's seven matrices
    released = billions * (2 * 16 + 2)
    full = billions * (2 * 12 + 4)
    return released, full, 2 * billions + 16 * adapters, 0.55 * billions + 16 * adapters


def main(args):
    """Measure one layout, or all of them in processes of their own."""
    if args.layout != "all":
        print(step(args.layout, args.model))
        return
    lines = ["| layout | peak memory |", "|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        size = (Path(folder) / "model.safetensors").stat().st_size
        for layout, name in LAYOUTS.items():
            command = [sys.executable, __file__, "--layout", layout, "--model", folder]
            peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
            lines.append(f"| {name} | {peak / 2**20:,.0f} MiB, {peak / size:.1f} x the weights |")
            print(lines[-1], flush=True)
    lines = [f"A model of {size / 4e6:.0f} M parameters ({size / 2**20:.0f} MiB in float32):", "", *lines, ""]
    lines += ["| weights, gradients, optimiser (GB) | released layout | all weights | LoRA 64 | LoRA 64, 4-bit base |"]
    lines += ["|---|---|---|---|---|"]
    for name, *shape in (("8B", 8.0, 32, 4096), ("70B", 70.6, 80, 8192)):
        lines.append(f"| {name} | " + " | ".join(f"{gb:,.0f}" for gb in arithmetic(*shape)) + " |")
    text = "\n".join(lines)
    print(text)
    if args.write_docs:
        write_docs(DOCS, "memory", text)


if __name__ == "__main__":
    run_main(main, tyro.cli(Args))
