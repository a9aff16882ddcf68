"""tools/pretrain_tiny.py: the tokenizer, the synthetic pages, going on from a checkpoint."""

import random
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

import envs
from common.errors import UsageError
from tools import pretrain_tiny

TINY = Path(__file__).parent.parent / "assets/tiny"
SMALL = dict(steps=2, batch_size=4, hidden_size=32, num_layers=1, num_heads=1, ff_size=32, workers=0, threads=1)


@pytest.fixture
def no_probes(monkeypatch):
    """The probes are most of so short a run's time."""
    monkeypatch.setattr(pretrain_tiny, "probe", lambda *args, **kwargs: {})


@pytest.fixture(scope="module")
def tokenizer():
    return pretrain_tiny.build_tokenizer()


def test_a_word_is_the_same_single_token_after_a_space_and_after_a_quote(tokenizer):
    for word in pretrain_tiny.vocabulary():
        spaced = tokenizer.encode(f" {word}", add_special_tokens=False)
        quoted = tokenizer.encode(f'= "{word}', add_special_tokens=False)
        assert len(spaced) == 1 and quoted[-1:] == spaced, word


def test_the_committed_tokenizer_is_the_one_the_tool_makes(tokenizer):
    assert AutoTokenizer.from_pretrained(TINY).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(("model", "env_id"), [("tiny", "arena"), ("tiny-phone", "phone/general+shopping")])
def test_no_word_of_a_task_is_split(model, env_id):
    """A word of several pieces is copied less surely than a whole one."""
    tokenizer = AutoTokenizer.from_pretrained(TINY.parent / model)
    words = set()
    env = envs.make(env_id)
    for split in ("train", "eval", "test"):
        for task in env.tasks(split):
            words.update(re.findall(r"[A-Za-z]+", task.instruction))
    split = {word for word in words if len(tokenizer.encode(f" {word}", add_special_tokens=False)) > 1}
    assert split <= {"I", "x"}


KINDS = [kind for kind, _, _ in pretrain_tiny.MIX if kind is not pretrain_tiny.repeat_example]  # that is no page


@pytest.mark.parametrize("kind", KINDS)
def test_examples_survive_the_tokenizer(tokenizer, kind):
    for seed in range(50):
        context, answer = kind(random.Random(seed))
        text = context + (answer if isinstance(answer, str) else "".join(answer))
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_run_goes_on_with_a_larger_vocabulary(tmp_path, monkeypatch, no_probes):
    args = pretrain_tiny.Args(out=str(tmp_path / "first"), **SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(pretrain_tiny, "VOCABULARY", [w for w in pretrain_tiny.VOCABULARY if w != "upvoted"])
        pretrain_tiny.main(args)
    assert "sha256" in (tmp_path / "first/README.md").read_text()
    old_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    tokenizer = pretrain_tiny.build_tokenizer()
    new = set(tokenizer.get_vocab()) - set(old_tokenizer.get_vocab())
    assert "Ġupvoted" in new

    old = LlamaForCausalLM.from_pretrained(tmp_path / "first")
    config = old.config.__class__(**{**old.config.to_dict(), "vocab_size": len(tokenizer)})
    model = LlamaForCausalLM(config)
    pretrain_tiny.take_over(model, tokenizer, tmp_path / "first")
    text = 'page "home"\n"red lamp" link [3]\n'
    before, after = (t.encode(text, return_tensors="pt", add_special_tokens=False) for t in (old_tokenizer, tokenizer))
    with torch.no_grad():
        hidden_before = old.model(before).last_hidden_state
        hidden_after = model.model(after).last_hidden_state
    assert torch.allclose(hidden_before, hidden_after, atol=1e-6)

    pretrain_tiny.main(pretrain_tiny.Args(out=str(tmp_path / "second"), init=str(tmp_path / "first"), **SMALL))
    assert "going on" in (tmp_path / "second/README.md").read_text()
    assert LlamaForCausalLM.from_pretrained(tmp_path / "second").config.vocab_size == len(tokenizer)


def test_more_words_become_tokens(tmp_path, monkeypatch, no_probes):
    monkeypatch.setattr(pretrain_tiny, "VOCABULARY", list(pretrain_tiny.VOCABULARY))
    (tmp_path / "words.txt").write_text("Zebrafish order\nBankster")
    pretrain_tiny.main(pretrain_tiny.Args(out=str(tmp_path / "a"), words=str(tmp_path / "words.txt"), **SMALL))
    vocab = AutoTokenizer.from_pretrained(tmp_path / "a").get_vocab()
    assert {"ĠZebrafish", "ĠBankster", "Ġorder"} <= set(vocab)
    assert len(vocab) == len(AutoTokenizer.from_pretrained(TINY)) + 2
    assert pretrain_tiny.VOCABULARY[-2:] == ["Bankster", "Zebrafish"]


def test_words_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "picture").write_bytes(b"\xff\xd8\xff")
    for name in ("nowhere", "picture"):
        with pytest.raises(UsageError, match=f"--words .*{name}: "):
            pretrain_tiny.main(pretrain_tiny.Args(out=str(tmp_path / "a"), words=str(tmp_path / name), **SMALL))


def test_the_same_command_makes_the_same_weights(tmp_path, no_probes):
    for name in ("a", "b"):
        pretrain_tiny.main(pretrain_tiny.Args(out=str(tmp_path / name), **SMALL))
    one, two = (LlamaForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "b"))
    assert all(torch.equal(one[key], two[key]) for key in one)
