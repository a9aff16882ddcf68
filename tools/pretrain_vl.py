"""Make the tiny base model that sees: `python tools/pretrain_vl.py`. An ordinary Llava checkpoint in assets/tiny-vl.

It is trained from scratch on pictures of single pages in the look of envs/arena/gallery.py (drawn by Pillow, never by a
browser) and one-step instructions: click on the large red circle, on the arrow; on what hangs here of a list and is not
in the basket yet, on the door of its room; count the small things. It has seen no task, no order of pages, and no pair
of colour and shape that is held out (gallery.HELD_OUT).

What makes so small a model see (measured; docs/grpo_async.md):
- the instruction stands before the image, so that an image token knows what is asked for;
- image tokens are trained, too: is a click here right (yes, no), is it spoken of (on a list, wherever it hangs; of the
  counted size), what is here (size, colour, shape), which place is it;
- a convolutional tower with BatchNorm; coordinates as two tokens, x and y, of an 8 by 8 grid.

The data are drawn anew from the seed: the same command gives the same weights on the same machine.
"""

import dataclasses
import hashlib
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch.utils.data import DataLoader, Dataset
from transformers import (
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.lm.tiny_vision import TinyVisionConfig
from envs.arena import gallery, gallery_tasks
from envs.arena.gallery import COLOURS, COLUMNS, HELD_OUT, ROWS, SHAPES, SHELF, SIDE, SIZES

GRID = 8  # places a side: an answer's x and y
SPECIAL = ["<pad>", "<eos>", "<unk>", "<image>", "<answer>"]
SMOOTH = 8  # a mask is drawn this many times larger
LISTS = 15  # lists are asked about as often as all the rest of their page


@dataclass
class Args:
    out: str = str(ROOT / "assets/tiny-vl")
    """where the checkpoint goes"""
    seed: int = 1
    """seed of weights and data"""
    steps: int = 10000
    """optimiser steps"""
    batch_size: int = 32
    """pictures per step"""
    learning_rate: float = 2e-3
    """peak; 100 warm-up steps, cosine over the second half"""
    hidden_size: int = 96
    """width of the language model and the tower"""
    num_layers: int = 4
    """layers of the language model"""
    num_heads: int = 4
    """its heads"""
    threads: int = 2
    """threads of torch"""
    workers: int = 1
    """processes that draw"""
    probe_every: int = 500
    """steps between two probes"""


# ------------------------------------------------------------------------------------------------------------ the words
def vocabulary():
    """What instructions, names and answers are made of."""
    phrasings = " ".join(phrasing for template in gallery_tasks.TEMPLATES for phrasing in template.phrasings)
    words = re.findall(r"[a-z]+", re.sub(r"{\w+}", "", phrasings))
    words += [*SIZES, *COLOURS, *SHAPES, *gallery.PLURALS.values(), *ROWS, *COLUMNS, *gallery_tasks.NUMBERS]
    words += (
        "click on answer done after take out put room next previous shelf home basket pay yes no things nothing".split()
    )
    words += [f"x{n}" for n in range(GRID)] + [f"y{n}" for n in range(GRID)] + [str(n) for n in range(11)] + [",", "."]
    return list(dict.fromkeys(words))


def build_tokenizer():
    """Whole words, lower case, punctuation by itself."""
    words = SPECIAL + vocabulary()
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>", "answer_token": "<answer>"},
        model_max_length=512,
    )


def build_processor(tokenizer):
    """Pictures of any size as SIDE by SIDE pixels, one image token a place."""
    half = [0.5, 0.5, 0.5]
    images = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_mean=half, image_std=half)
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=SIDE // GRID,
        vision_feature_select_strategy="full",
        image_token="<image>",
        num_additional_image_tokens=0,
    )


def build_model(tokenizer, args):
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        intermediate_size=3 * args.hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.num_heads,
        num_key_value_heads=args.num_heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.08,
    )
    config = LlavaConfig(
        vision_config=TinyVisionConfig(hidden_size=args.hidden_size, image_size=SIDE),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=GRID * GRID,
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(config)


# --------------------------------------------------------------------------------------------------------- the pictures
@cache
def mask(outline, side):
    """Coverage, 0 to 1, of the pixels of a figure's box: [side, side, 1]."""
    image = Image.new("L", (side * SMOOTH, side * SMOOTH))
    draw = ImageDraw.Draw(image)
    for n, polygon in enumerate(gallery.OUTLINES[outline]):
        points = [(side * x * SMOOTH - 0.5, side * y * SMOOTH - 0.5) for x, y in polygon]
        draw.polygon(points, fill=0 if n else 255)
    return np.asarray(image.resize((side, side), Image.Resampling.BOX), np.float32)[..., None] / 255


def paint(marks):
    """The picture of a page, [SIDE, SIDE, 3] from 0 to 255."""
    page = np.full((SIDE, SIDE, 3), 255, np.float32)
    for mark in marks:
        part = page[mark.y : mark.y + mark.side, mark.x : mark.x + mark.side]
        colour = np.frombuffer(bytes.fromhex(mark.colour[1:]), np.uint8)
        part += mask(mark.outline, mark.side)[: len(part)] * (colour - part)  # the bar's box leaves the page
    return page


def draw_name(rng, held_out):
    while True:
        colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        if held_out or (colour, shape) not in HELD_OUT:
            return f"{rng.choice(list(SIZES))} {colour} {shape}"


def draw_things(rng, count, held_out):
    """Things that differ, on a shelf; often of one colour or one shape, as in a room."""
    while True:
        names = {draw_name(rng, held_out) for _ in range(200)}
        by = rng.choice(("any", "colour", "shape"))
        if by != "any":
            wanted = rng.choice(list(COLOURS) if by == "colour" else SHAPES)
            names = {name for name in names if wanted in name.split()}
        if len(names) >= count:
            return list(gallery._hang(rng.sample(sorted(names), count), rng))


def draw_page(rng, held_out=False):
    """Marks of a page, and its one-step instructions: [(text, the marks that a click may hit, or a number's word)]."""
    kind = rng.choices(("shelf", "home", "till", "paid"), (12, 3, 2, 1))[0]
    basket = list(enumerate(draw_name(rng, held_out) for _ in range(rng.choice((0, 0, 1, 2, 3, 4, 6, 8, 10)))))
    asks = []
    if kind == "shelf":
        shelf = draw_things(rng, rng.randint(1, SHELF), held_out)
        marks = list(gallery.shelf_marks(shelf, "x", 1))
        asks += _asks_of_things(shelf, marks, rng)
        amounts, basket = draw_list(rng, [thing.name for thing in shelf], basket, held_out)
        wanted = [mark for mark in marks if missing(mark.label, amounts, basket)]
        asks += LISTS * [(_listed(amounts), wanted or "nothing")]
        marks += gallery.buttons("x", rng.choice((0, 1)), rng.choice((0, 1, 2)))
    elif kind == "home":
        by = rng.choice(("colour", "shape"))
        doors = list(COLOURS) if by == "colour" else list(SHAPES)
        rng.shuffle(doors)
        marks = [*gallery.home_marks(doors, by), *gallery.buttons(at_home=True)]
        amounts, basket = draw_list(rng, [], basket, held_out)
        behind = {word for name in amounts if missing(name, amounts, basket) for word in name.split()}
        open_doors = [mark for mark in marks if mark.label.endswith("room") and mark.label.split()[0] in behind]
        asks += LISTS * [(f"the room of {_listed(amounts)}", open_doors or "nothing")]
    elif kind == "till":
        marks = [*gallery.till_marks(basket), *gallery.buttons()]
    else:
        marks = [*gallery.paid_marks([draw_name(rng, held_out) for _ in range(rng.randint(1, 10))]), *gallery.buttons()]
    strip = list(gallery.basket_marks(basket, "/"))
    for label in {mark.label for mark in [*marks, *strip] if mark.label}:
        asks.append((label, [mark for mark in [*marks, *strip] if mark.label == label]))
    return marks + strip, asks


def draw_list(rng, here, basket, held_out):
    """Amounts of a few things, {name: count}, of which some hang `here`, and a basket that has some of them."""
    amounts = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 5, 6))):
        name = rng.choice(here) if here and rng.random() < 0.4 else draw_name(rng, held_out)
        amounts[name] = rng.choice((1, 1, 2, 2, 3))
    there = [name for _, name in basket if rng.random() < 0.5]
    for name, count in amounts.items():
        there += [name] * rng.choice((0, 0, count, rng.randint(0, count)))
    rng.shuffle(there)
    return amounts, list(enumerate(there[: gallery.BASKET]))


def missing(name, amounts, basket):
    """Whether a list has more of a thing than the basket."""
    return sum(own == name for _, own in basket) < amounts.get(name, 0)


def _listed(amounts):
    """As the tasks say it: "a large red ring, two small blue crosses and three ..."."""
    words = [gallery_tasks._amount(count, name) for name, count in amounts.items()]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _asks_of_things(shelf, marks, rng):
    """By part of the look, where it is the only one; by place; how many."""
    parts = [tuple(thing.name.split()) for thing in shelf]
    for thing, mark, look in zip(shelf, marks, parts, strict=True):
        kept = tuple(word if rng.random() < 0.5 else None for word in look)
        alike = [other for other in parts if all(a is None or a == b for a, b in zip(kept, other, strict=True))]
        if any(kept) and len(alike) == 1:
            yield " ".join(word for word in kept if word), [mark]
        yield f"{ROWS[thing.place // len(COLUMNS)]} {COLUMNS[thing.place % len(COLUMNS)]}", [mark]
    size = rng.choice(list(SIZES))
    yield f"how many {size} things", str(sum(look[0] == size for look in parts))


# --------------------------------------------------------------------------------------------------------- the examples
def cell(mark):
    """The place, counted row by row, that holds the middle of a mark."""
    x, y = ((place + mark.side / 2) * GRID // SIDE for place in (mark.x, mark.y))
    return int(min(y, GRID - 1) * GRID + min(x, GRID - 1))


def hits(mark, place):
    """Whether a click into the middle of a place is on the mark's box."""
    x, y = (place % GRID + 0.5) * SIDE / GRID, (place // GRID + 0.5) * SIDE / GRID
    return mark.x <= x <= mark.x + mark.side and mark.y <= y <= mark.y + mark.side


def describe(mark):
    """Three words for what is there; None for what is only ornament."""
    words = mark.label.removeprefix("take out ").split()
    if not words:
        return None
    return tuple((words * 3)[:3]) if len(words) < 3 else tuple(words[-3:])


def spoken_of(text, mark):
    """Whether a list names what a mark shows, or a count asks for its size; None where the instruction is neither."""
    name = mark.label.removeprefix("take out ")
    if text.startswith("how many"):
        return name.startswith(text.split()[2]) and name == mark.label  # on the shelf
    amounts = re.findall(gallery_tasks.AMOUNT, text)
    return any(name in gallery_tasks._meant(amount) for amount in amounts) if amounts else None


class Scenes(Dataset):
    """Batch number -> tensors: pixels [N, 3, S, S], token ids [N, T] (left-padded) with the image's and the answer's,
    labels [N, 4] (the answer, -100 behind it), match [N, places], spoken [N, places] (`spoken_of`; -1: not asked),
    words [N, places, 3] (-1: nothing there)."""

    def __init__(self, args, tokenizer, first=0, held_out=False, ask=None):
        self.args, self.tokenizer, self.first, self.held_out, self.ask = args, tokenizer, first, held_out, ask

    def __len__(self):
        return 10**9

    def __getitem__(self, number):
        return encode([self.example(number, n) for n in range(self.args.batch_size)], self.tokenizer)

    def example(self, number, n):
        rng = random.Random(f"{self.args.seed}/{self.first + number}/{n}")
        while True:
            marks, asks = draw_page(rng, self.held_out)
            asks = sorted(asks, key=lambda pair: pair[0])
            if self.ask is not None:
                asks = [pair for pair in asks if self.ask(pair[0])]
            if asks:
                return marks, *rng.choice(asks), rng


def encode(examples, tokenizer):
    ids = tokenizer.convert_tokens_to_ids
    pixels = np.stack([paint(marks) for marks, *_ in examples]).transpose(0, 3, 1, 2) / 127.5 - 1
    prompts = [tokenizer.encode(text if text.startswith("how") else f"click on {text}") for _, text, *_ in examples]
    longest, image = max(map(len, prompts)), [ids("<image>")] * GRID**2
    rows = [[tokenizer.pad_token_id] * (longest - len(p)) + p + image + [ids("<answer>")] for p in prompts]
    labels, match = [], torch.zeros(len(examples), GRID**2)
    spoken = torch.full((len(examples), GRID**2), -1.0)
    words = torch.full((len(examples), GRID**2, 3), -1)
    for row, (marks, text, wanted, rng) in enumerate(examples):
        for mark in marks:
            if (described := describe(mark)) is not None:
                words[row, cell(mark)] = torch.tensor(ids(list(described)))
                if (asked := spoken_of(text, mark)) is not None:
                    spoken[row, cell(mark)] = float(asked)
        if isinstance(wanted, str):
            labels.append([*ids(["answer", wanted, "<eos>"]), -100])
            continue
        place = cell(rng.choice(wanted))
        labels.append(ids(["click", f"x{place % GRID}", f"y{place // GRID}", "<eos>"]))
        match[row, [cell(mark) for mark in wanted]] = 1.0
    return torch.from_numpy(pixels.astype(np.float32)), torch.tensor(rows), torch.tensor(labels), match, spoken, words


def losses(model, tokenizer, batch, places):
    """Cross-entropy of the answer, and of what the image tokens should say. places: [P, 2] ids of x and y."""
    pixels, ids, labels, match, spoken, words = batch
    said = labels[:, :-1].where(labels[:, :-1] >= 0, tokenizer.pad_token_id)
    whole = torch.cat([ids, said], 1)
    attention = (whole != tokenizer.pad_token_id).long()
    logits = model(input_ids=whole, attention_mask=attention, pixel_values=pixels, use_cache=False).logits.float()
    answer = F.cross_entropy(logits[:, -labels.shape[1] :].flatten(0, 1), labels.flatten())
    seen = logits[whole == model.config.image_token_index].view(len(ids), len(places), -1)
    yes, on, no = tokenizer.convert_tokens_to_ids(["yes", "on", "no"])
    right = F.binary_cross_entropy_with_logits(seen[..., yes] - seen[..., no], match, reduction="none")
    there = words[..., 0] >= 0
    groups = ((match > 0.5, 1.0), (there & (match < 0.5), 1.0), (~there, 0.3))
    clicks = sum(weight * right[group].mean() for group, weight in groups if group.any())
    spoken_loss = F.binary_cross_entropy_with_logits(seen[..., on] - seen[..., no], spoken, reduction="none")
    meant = sum((spoken_loss[group].mean() for group in (spoken == 0, spoken == 1) if group.any()), torch.zeros(()))
    words = torch.where(there[..., None], words, tokenizer.eos_token_id)
    wanted = torch.cat([words, places.expand(len(ids), -1, -1)], -1)
    named = -seen.log_softmax(-1).gather(-1, wanted).mean(-1)
    return answer, clicks, meant, named[there].mean() + named[~there].mean()


# ------------------------------------------------------------------------------------------------------------- training
PROBES = {
    "thing": (False, lambda text: len(text.split()) == 3 and text.split()[0] in SIZES),
    "thing, held out": (True, lambda text: len(text.split()) == 3 and tuple(text.split()[1:]) in HELD_OUT),
    "take out": (False, lambda text: text.startswith("take out")),
    "button": (False, lambda text: text in ("home", "basket", "pay", "next shelf", "previous shelf")),
    "room": (False, lambda text: text.endswith("room")),
    "list": (False, lambda text: text.split()[0] in gallery_tasks.NUMBERS),
    "list, held out": (True, lambda text: text.split()[0] in gallery_tasks.NUMBERS),
    "room of a list": (False, lambda text: text.startswith("the room")),
    "place": (False, lambda text: text.split()[0] in ROWS),
    "count": (False, lambda text: text.startswith("how many")),
}


@torch.no_grad()
def answer(model, tokenizer, pixels, ids, length=4):
    """Greedy answers, token ids [N, 4]."""
    model.eval()
    for _ in range(length):
        attention = (ids != tokenizer.pad_token_id).long()
        logits = model(input_ids=ids, attention_mask=attention, pixel_values=pixels, use_cache=False).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids[:, -length:]


def is_right(words, wanted):
    """Whether an answer's words do what is wanted: hit one of the marks, or say the number."""
    if isinstance(wanted, str):
        return list(words[:3]) == ["answer", wanted, "<eos>"]
    if words[0] != "click" or words[1][0] != "x" or words[2][0] != "y" or words[3] != "<eos>":
        return False
    return any(hits(mark, int(words[2][1:]) * GRID + int(words[1][1:])) for mark in wanted)


def probe(model, tokenizer, args, count=256):
    """Share of right answers on pictures that training does not see, by kind of instruction."""
    rates = {}
    for name, (held_out, ask) in PROBES.items():
        scenes = Scenes(dataclasses.replace(args, seed=10**6), tokenizer, held_out=held_out, ask=ask)
        examples = [scenes.example(n, 0) for n in range(count)]
        pixels, ids, *_ = encode(examples, tokenizer)
        words = [tokenizer.convert_ids_to_tokens(row) for row in answer(model, tokenizer, pixels, ids).tolist()]
        right = [is_right(said, wanted) for said, (_, _, wanted, _) in zip(words, examples, strict=True)]
        rates[name] = round(sum(right) / count, 3)
    return rates


def main(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    ids = tokenizer.convert_tokens_to_ids
    places = torch.tensor([ids([f"x{n % GRID}", f"y{n // GRID}"]) for n in range(GRID**2)])
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} words", flush=True)
    loader = DataLoader(Scenes(args, tokenizer), batch_size=None, sampler=range(args.steps), num_workers=args.workers)
    begun, sums = time.time(), Counter()
    for step, batch in enumerate(loader, 1):
        model.train()
        parts = losses(model, tokenizer, batch, places)
        rate = args.learning_rate * min(1.0, step / 100) * min(1.0, max(0.05, 2 * (1 - step / args.steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        sum(parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sums.update(
            {name: part.item() for name, part in zip(("answer", "clicks", "spoken of", "names"), parts, strict=True)}
        )
        if step % args.probe_every == 0 or step == args.steps:
            shown = ", ".join(f"{name} {total / args.probe_every:.3f}" for name, total in sums.items())
            sums.clear()
            print(f"step {step}, {time.time() - begun:.0f} s: {shown}; {probe(model, tokenizer, args)}", flush=True)
    model.eval()
    out = Path(args.out)
    model.save_pretrained(out)
    build_processor(tokenizer).save_pretrained(out)
    write_card(args, out, sum(p.numel() for p in model.parameters()), probe(model, tokenizer, args, 1000))


def write_card(args, out, parameters, rates):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    (out / "README.md").write_text(f"""# The tiny base model that sees

A Llava-style model of {parameters:,} parameters (a convolutional tower of ours, common/lm/tiny_vision.py), trained from
scratch on drawn pictures of single pages. It finds things by size, colour, shape and place, those of a list that are
not in the basket yet, and the doors of their rooms, and counts some; it knows no task and no order of pages.

- made by `python tools/pretrain_vl.py` at commit {commit.strip()} ({json.dumps(settings)})
- no picture had one of the pairs of colour and shape that are held out (envs/arena/gallery.py, HELD_OUT)
- share of right answers on 1,000 unseen pictures of each kind: {json.dumps(rates)}
- sha256 of model.safetensors: `{digest}`
- licence: MIT, as the project
""")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
