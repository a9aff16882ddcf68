"""Vision-language models: what llm.py does, for prompts with pictures. Tokens in, tokens out; pictures as file bytes.

A prompt's token ids hold the image tokens as the model wants them, one for each patch that it sees, so that what is
trained on is what was sampled from. The families differ in what their pictures become (pixel values, grids of patches,
token types); their processors and forward signatures say what, nothing here names a family.
"""

import inspect

from common.errors import UsageError
from common.lm import llm
from common.screen import load as load_picture


class Prompt(list):
    """Token ids, image tokens expanded; `images`: the pictures in the order of their tokens (bytes of image files, or
    whatever stands for them until they are needed); `turns`: the chat that they were made of, if there is one."""

    def __init__(self, ids, images=(), turns=None):
        super().__init__(ids)
        self.images, self.turns = list(images), turns


def load(model_id, lora_rank=0, load_in_4bit=False, gradient_checkpointing=False, device=None):
    """(model in eval mode, processor) of a local folder or hub id; options and errors as of `llm.load`."""
    from common.lm import tiny_vision  # noqa: F401  registers its tower

    model, _ = llm.load(model_id, lora_rank, load_in_4bit, gradient_checkpointing, device, vision=True)
    return model, load_processor(llm.find_model(model_id))


def sees(model_id):
    """Whether a model (a local folder or hub id) takes pictures, by its configuration. Errors as of `llm.load`."""
    import json
    from pathlib import Path

    from transformers import AutoConfig

    from common.lm import tiny_vision  # noqa: F401  registers its tower

    path = base = llm.find_model(model_id)
    adapters = Path(path) / "adapter_config.json"
    if adapters.is_file():
        base = llm.find_model(json.loads(adapters.read_text())["base_model_name_or_path"])
    offline = not Path(base).is_dir() and not llm.hub_answers(base)
    try:
        return hasattr(AutoConfig.from_pretrained(base, local_files_only=offline), "vision_config")
    except (OSError, ValueError) as error:
        raise UsageError(llm.cannot_load(model_id, error, offline)) from error


def load_trained(model, folder):
    """Put the weights that `save_pretrained` wrote to `folder` into a model of the same kind."""
    if hasattr(model, "peft_config"):
        llm.load_trained(model, folder)
        return
    from transformers import AutoModelForImageTextToText

    model.load_state_dict(AutoModelForImageTextToText.from_pretrained(folder).state_dict())


def load_processor(path):
    """The processor of a model's folder or hub id: `tokenizer`, `image_processor`, `image_token`."""
    import transformers

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


def encode(processor, text, images, turns=None):
    """The Prompt of a text with image placeholders and as many pictures."""
    pictures = [load_picture(image) for image in images]
    given = processor(text=[text], images=pictures or None, add_special_tokens=False)
    return Prompt(given["input_ids"][0], images, turns)


def model_inputs(model, processor, prompts, actions=None):
    """What a forward pass takes of N Prompts, each with its action's token ids behind it: tensors on the model's
    device, padded on the left."""
    import torch

    rows = [list(p) + list(a) for p, a in zip(prompts, actions or [[]] * len(prompts), strict=True)]
    width, pad = max(map(len, rows)), processor.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask}
    pictures = [load_picture(image) for prompt in prompts for image in prompt.images]
    if pictures:
        inputs |= processor.image_processor(images=pictures, return_tensors="pt")
    if "mm_token_type_ids" in inspect.signature(base_of(model).forward).parameters:
        inputs["mm_token_type_ids"] = (ids == image_token(processor)).int()
    return {name: value.to(model.device) for name, value in inputs.items()}


def image_token(processor):
    return processor.tokenizer.convert_tokens_to_ids(processor.image_token)


def base_of(model):
    """The model without its adapters' wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def generate(model, processor, prompts, seeds, temperature=1.0, max_new_tokens=64, version=0):
    """Sample one completion for each Prompt, in one batch; see `llm.generate`, whose promises hold."""
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    if not prompts:
        return []
    stops = llm.stop_ids(base_of(model), processor.tokenizer)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform = torch.stack([torch.rand(max_new_tokens, generator=g, dtype=torch.float64) for g in generators], dim=1)
    sampler = Sampler(uniform.to(model.device), temperature, image_token(processor))
    inputs = model_inputs(model, processor, prompts)
    config = GenerationConfig(  # the model's own must not change what is sampled from
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=stops,
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    with torch.no_grad(), llm.autocast(model):
        out = model.generate(**inputs, generation_config=config, logits_processor=LogitsProcessorList([sampler]))
    tokens = out[:, inputs["input_ids"].shape[1] :].tolist()
    logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
    completions = []
    for row, row_logprobs in zip(tokens, logprobs, strict=True):
        length = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        completions.append(llm.Completion(row[:length], row_logprobs[:length], version))
    return completions


class Sampler:
    """A logits processor that chooses: it leaves the token that was sampled as the only one. `uniform` [tokens, B].
    The token `forbidden` is never chosen: an image token without a picture would break the next forward pass."""

    def __init__(self, uniform, temperature, forbidden):
        self.uniform, self.temperature, self.forbidden, self.logprobs = uniform, temperature, forbidden, []

    def __call__(self, input_ids, scores):
        import torch

        scores[:, self.forbidden] = -torch.inf
        tokens, logprobs = llm.sample(scores, self.temperature, self.uniform[len(self.logprobs)])
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


def hidden_states(model, processor, prompts, actions=None):
    """Last-layer hidden states of N Prompts, each with its action's token ids behind it, padded on the left:
    [N, L, D]."""
    inputs = model_inputs(model, processor, prompts, actions)
    with llm.autocast(model):
        return base_of(model).model(**inputs, use_cache=False).last_hidden_state


def action_logits(model, processor, prompts, actions):
    """What the actions' tokens are sampled from: a list of N tensors [tokens, V], with gradient; the image token is at
    minus infinity."""
    hidden = hidden_states(model, processor, prompts, actions)
    head = llm.Head(model, image_token(processor))
    return [head(row[-len(action) - 1 : -1]) for row, action in zip(hidden, actions, strict=True)]


def token_logprobs(model, processor, prompts, actions, temperature=1.0):
    """Log-probabilities of the actions' tokens after their Prompts, with gradient unless the caller forbids it.

    actions: lists of N token id lists. Returns (logprobs [N, L], mask [N, L]) with L the longest action; 0 and False in
    the padding. The head runs on the actions' positions only.
    """
    import torch

    hidden = hidden_states(model, processor, prompts, actions)
    longest = max(map(len, actions))
    mask = torch.tensor([[i < len(a) for i in range(longest)] for a in actions], device=hidden.device)
    # rows end together; the token at position t is predicted by the hidden state at t - 1
    width = hidden.shape[1]
    position = torch.tensor(
        [[width - 1 - len(a) + min(i, len(a) - 1) for i in range(longest)] for a in actions], device=hidden.device
    )
    target = torch.tensor([list(a) + [0] * (longest - len(a)) for a in actions], device=hidden.device)
    rows = torch.arange(len(actions), device=hidden.device)[:, None].expand_as(position)
    head = llm.Head(model, image_token(processor))
    chosen = llm.chosen_logprobs(head, hidden[rows[mask], position[mask]], target[mask], temperature)
    return torch.zeros(mask.shape, device=hidden.device).masked_scatter(mask, chosen), mask
