"""Export a run's actor as one model folder that any server loads: LoRA adapters are merged into their base.

python tools/export.py runs/RUN --out my-agent
vllm serve my-agent
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import UsageError
from common.lm import checkpoint, llm
from common.lm.run import run_main


@dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """the run's folder; its last checkpoint is exported"""
    out: str = "exported"
    """folder to write"""
    network: str = "actor"
    """actor or orm"""
    dtype: str = "bfloat16"
    """the weights' type in the file: bfloat16, float16 or float32"""


def main(args):
    """Write the folder and say where it is."""
    import torch

    last, damaged = checkpoint.whole(args.run, lambda one: one.damage(f"{args.network}/"))
    for one, why in damaged.items():
        print(f"{args.run}: checkpoint {one.path.name} is damaged ({why}): the one before it")
    if last is None or not last.folder(args.network).is_dir():
        raise UsageError(f"{args.run} has no checkpoint with a network {args.network!r}")
    if args.dtype not in ("bfloat16", "float16", "float32"):
        raise UsageError(f"--dtype {args.dtype}: bfloat16, float16 or float32")
    if Path(args.out).exists():
        raise UsageError(f"--out {args.out} is there already")
    model, tokenizer = llm.load(str(last.folder(args.network)), device="cpu")
    model.to(getattr(torch, args.dtype)).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"{args.network} of {last.path} written to {args.out}")


if __name__ == "__main__":
    run_main(main, tyro.cli(Args))
