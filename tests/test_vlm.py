"""Vision-language models: small random checkpoints of the families that people use, through the real code path."""

import io
import random

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForImageTextToText,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

from common.errors import UsageError
from common.lm import llm

WORDS = "<pad> <eos> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|> user".split()
WORDS += [f"w{n}" for n in range(60)]
SIZE = 56


def tokenizer():
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<|im_end|>")
    made.add_special_tokens({"additional_special_tokens": WORDS[2:8]})
    return made


def text_config(**more):
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return small | {"num_key_value_heads": 2, "vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 3} | more


def qwen(kind, config_kind, vision, text):
    """A Qwen model with vision, and the parts of its processor."""
    small = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 14}
    config = config_kind(
        vision_config=small | {"out_hidden_size": 32} | vision,
        text_config=text,
        image_token_id=6,
        video_token_id=7,
        vision_start_token_id=4,
        vision_end_token_id=5,
    )
    return kind(config), (Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=SIZE * SIZE), tokenizer())


ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}


def qwen2():
    vision = {"window_size": 56, "fullatt_block_indexes": [1]}
    return qwen(Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, vision, text_config(rope_parameters=ROPE))


def qwen3():
    vision = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    text = text_config(head_dim=8, rope_parameters=ROPE | {"mrope_interleaved": True})
    return qwen(Qwen3VLForConditionalGeneration, Qwen3VLConfig, vision, text)


def llava():
    vision = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=14,
        vision_use_head=False,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**text_config()),
        image_token_index=6,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE})
    processor = LlavaProcessor(
        images,
        tokenizer(),
        patch_size=14,
        vision_feature_select_strategy="full",
        image_token="<|image_pad|>",
        num_additional_image_tokens=0,
    )
    return LlavaForConditionalGeneration(config), (processor,)


@pytest.fixture(scope="module", params=[qwen2, qwen3, llava], ids=lambda family: family.__name__)
def loaded(request, tmp_path_factory):
    """(model, processor), saved and loaded by the auto classes."""
    torch.manual_seed(0)
    model, parts = request.param()
    folder = tmp_path_factory.mktemp(request.param.__name__)
    model.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
    return AutoModelForImageTextToText.from_pretrained(folder).eval(), llm.load_processor(folder)


def test_a_processor_that_cannot_be_had_is_one_line(monkeypatch):
    monkeypatch.setattr(llm, "hub_answers", lambda model_id: False)
    with pytest.raises(UsageError, match=r"'nowhere/model': the hub cannot be reached"):
        llm.load_processor("nowhere/model")


def picture(seed, size=(SIZE, SIZE)):
    rng = random.Random(seed)
    image = Image.new("RGB", size, tuple(rng.randrange(256) for _ in range(3)))
    image.paste(tuple(rng.randrange(256) for _ in range(3)), (10, 10, 40, 30))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def prompts(processor):
    def text(words, images):
        marks = " ".join(f"<|vision_start|> {processor.image_token} <|vision_end|>" for _ in range(images))
        return f"<|im_start|> user {words} {marks} w1".replace("  ", " ")

    shapes = (("w2 w3", 1), ("w4", 2), ("w5 w6 w7 w8", 1), ("w9 w9 w9", 0))
    return [
        llm.encode(processor, text(words, n), [picture(10 * i + k) for k in range(n)])
        for i, (words, n) in enumerate(shapes)
    ]


def test_image_tokens_are_as_many_as_the_model_sees(loaded):
    model, processor = loaded
    token = llm.image_token(processor)
    counts = [prompt.count(token) for prompt in prompts(processor)]
    assert counts[0] > 1 and counts == [counts[0], 2 * counts[0], counts[0], 0]


def test_training_gives_the_log_probs_of_sampling(loaded):
    model, processor = loaded
    given = prompts(processor)
    for temperature in (1.0, 0.7):
        sampled = llm.generate(model, processor, given, range(len(given)), temperature, 6, version=4)
        with torch.no_grad():
            logprobs, mask = llm.token_logprobs(model, processor, given, [c.ids for c in sampled], temperature)
        for completion, row, real in zip(sampled, logprobs, mask, strict=True):
            assert completion.version == 4 and real.sum() == len(completion.ids) == len(completion.logprobs)
            assert row[real].tolist() == pytest.approx(completion.logprobs, abs=2e-5)
            assert not row[~real].any()


def test_a_row_does_not_depend_on_its_batch(loaded):
    model, processor = loaded
    given = prompts(processor)
    together = llm.generate(model, processor, given, [7, 8, 9, 10], 1.0, 5)
    for number, prompt in enumerate(given):
        (alone,) = llm.generate(model, processor, [prompt], [7 + number], 1.0, 5)
        assert alone.ids == together[number].ids
        assert alone.logprobs == pytest.approx(together[number].logprobs, abs=2e-5)
    again = llm.generate(model, processor, given, [17, 18, 19, 20], 1.0, 5)
    assert [c.ids for c in again] != [c.ids for c in together]


def test_pictures_matter_and_are_not_mixed_up(loaded):
    model, processor = loaded
    first = prompts(processor)[0]
    other = llm.Prompt(first, [picture(99)])
    with torch.no_grad():
        both, _ = llm.token_logprobs(model, processor, [first, other], [[20, 21]] * 2)
        swapped, _ = llm.token_logprobs(model, processor, [other, first], [[20, 21]] * 2)
    assert not torch.allclose(both[0], both[1], atol=1e-4)
    assert torch.allclose(both, swapped.flip(0), atol=1e-5)


def test_an_image_token_in_an_action_is_no_exception_and_does_not_count(loaded):
    """A server may sample one that has no picture; an action that was stored may hold one."""
    model, processor = loaded
    token, given = llm.image_token(processor), prompts(processor)[:2]
    actions = [[20, token, 21], [token]]
    with torch.no_grad():
        logprobs, mask = llm.token_logprobs(model, processor, given, actions)
        plain, _ = llm.token_logprobs(model, processor, given, [[20, 0, 21], [0]])  # 0 is the padding token
    assert mask.tolist() == [[True, False, True], [False, False, False]]
    assert torch.equal(logprobs, plain * mask) and logprobs.isfinite().all()
    (whole, _) = llm.action_logits(model, processor, given, actions)
    assert whole.shape == (3, len(WORDS))


def test_gradients_reach_the_eyes(loaded):
    model, processor = loaded
    logprobs, _ = llm.token_logprobs(model, processor, prompts(processor)[:2], [[20], [21, 22]])
    logprobs.sum().backward()
    seen = [p.grad for name, p in model.named_parameters() if "vis" in name and p.grad is not None]
    assert seen and any(grad.abs().sum() > 0 for grad in seen)
    model.zero_grad()


def test_greedy_is_the_likeliest_token(loaded):
    model, processor = loaded
    given = prompts(processor)
    sampled = llm.generate(model, processor, given, [0] * 4, temperature=0.0, max_new_tokens=1)
    with torch.no_grad():
        for prompt, completion in zip(given, sampled, strict=True):
            every = [[token] for token in range(len(WORDS)) if token != llm.image_token(processor)]
            logprobs, _ = llm.token_logprobs(model, processor, [prompt] * len(every), every)
            assert every[logprobs[:, 0].argmax().item()] == completion.ids
            assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
