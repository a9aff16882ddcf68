"""The tiny model that sees: pictures as the browser's, questions with the right answers; it learns, saves and loads."""

import asyncio
import dataclasses
import io
import math
import random
import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import envs
from envs.arena import gallery
from envs.arena.content import World
from envs.arena.gallery import HELD_OUT, SIDE, rooms
from envs.arena.tasks import Move
from tools import pretrain_vl
from tools.pretrain_vl import GRID, Scenes, cell, encode, hits, paint

ARGS = pretrain_vl.Args(steps=4, batch_size=4, hidden_size=32, num_layers=1, num_heads=2, threads=1, workers=0)


@pytest.fixture(scope="module")
def tokenizer():
    return pretrain_vl.build_tokenizer()


def scenes(tokenizer, count, **options):
    source = Scenes(dataclasses.replace(ARGS, batch_size=1), tokenizer, **options)
    return [source.example(number, 0) for number in range(count)]


def test_no_word_of_a_task_is_unknown(tokenizer):
    env = envs.make("gallery")
    for split in ("train", "eval", "test"):
        for task in env.tasks(split):
            ids = tokenizer.encode(task.instruction, add_special_tokens=False)
            assert tokenizer.unk_token_id not in ids, task.instruction
            assert len(ids) == len(re.findall(r"\w+|,", task.instruction))


def test_pictures_are_those_of_the_browser():
    """So that what was learnt on drawn pages holds on true ones."""

    async def play():
        env = envs.make("gallery", screenshots=True, viewport=(SIDE, SIDE), timeout=60)
        try:
            for seed in (0, 3):
                content = rooms(World(seed))
                task = next(task for task in env.tasks("train") if task.seed == seed)
                common = list(gallery.basket_marks(list(enumerate(content.basket)), "/"))
                obs, _ = await env.reset(task)
                doors = gallery.home_marks(content.shelves, content.by)
                yield obs, [*doors, *gallery.buttons(at_home=True), *common]
                room, shelves = next(iter(content.shelves.items()))
                obs, *_ = await env.step(env.resolve(Move("link", f"{room} room"), obs))
                last = len(shelves) - 1
                yield obs, [*gallery.shelf_marks(shelves[0], room, 0), *gallery.buttons(room, 0, last), *common]
        finally:
            await env.close()

    async def compare():
        async for obs, marks in play():
            seen = np.asarray(Image.open(io.BytesIO(obs["screenshot"])).convert("RGB"), np.float32)
            difference = np.abs(seen - paint(marks))
            assert difference.mean() < 1.5 and (difference > 64).mean() < 0.001

    asyncio.run(compare())


def test_scenes_hold_held_out_pairs_only_where_asked(tokenizer):
    def pairs(**options):
        for marks, *_ in scenes(tokenizer, 150, **options):
            for mark in marks:
                words = (pretrain_vl.describe(mark) or ()) if mark.post and mark.label != "pay" else ()
                if words:
                    yield tuple(words[1:])

    assert not set(pairs()) & HELD_OUT
    assert set(pairs(held_out=True)) >= HELD_OUT


def test_questions_have_the_right_answers(tokenizer):
    kinds = set()
    for marks, text, wanted, _ in scenes(tokenizer, 400):
        things = [mark for mark in marks if "/add/" in mark.post]
        if text.split()[0] in ("a", "two", "three", "the"):
            missing = still_missing(text, [mark.label for mark in marks])
            words = {word for name in missing for word in name.split()}
            right = [mark for mark in things if mark.label in missing]
            if text.startswith("the room"):
                right = [mark for mark in marks if mark.label.endswith("room") and mark.label.split()[0] in words]
            assert wanted == (right or "nothing")
            kinds.add(f"{text.split()[0] == 'the'}, {wanted == 'nothing'}")
            continue
        if isinstance(wanted, str):
            size = text.split()[2]
            assert wanted == str(sum(mark.label.startswith(size) for mark in things))
            kinds.add("count")
            continue
        assert wanted and all(hits(mark, cell(mark)) for mark in wanted)
        if text.split()[0] in gallery.ROWS:
            row, column = text.split()
            (mark,) = wanted
            place = gallery.ROWS.index(row) * 3 + gallery.COLUMNS.index(column)
            assert ((mark.y - gallery.TOP) // 32) * 3 + mark.x // 32 == place
            kinds.add("place")
        elif any(mark.label == text for mark in marks):
            assert wanted == [mark for mark in marks if mark.label == text]
            kinds.add("name")
        else:  # a part of the look
            assert [mark for mark in things if set(text.split()) <= set(mark.label.split())] == wanted
            kinds.add("part")
    lists = {f"{door}, {nothing}" for door in (False, True) for nothing in (False, True)}
    assert kinds == {"count", "place", "name", "part"} | lists


def still_missing(text, labels):
    """Names in a list of amounts that the basket has too few of."""
    one = {plural: shape for shape, plural in gallery.PLURALS.items()}
    found = re.findall(r"(a|two|three) (\w+ \w+) (\w+)", text)
    wanted = {f"{look} {one.get(shape, shape)}": {"a": 1, "two": 2, "three": 3}[n] for n, look, shape in found}
    return [name for name, count in wanted.items() if labels.count(f"take out {name}") < count]


def test_targets_lie_where_the_marks_are(tokenizer):
    examples = [example for example in scenes(tokenizer, 60) if not isinstance(example[2], str)]
    _, ids, labels, match, _, words = encode(examples, tokenizer)
    for row, (marks, _, wanted, _) in enumerate(examples):
        said = tokenizer.convert_ids_to_tokens(labels[row].tolist())
        assert said[0] == "click" and pretrain_vl.is_right(said, wanted)
        assert set(match[row].nonzero()[:, 0].tolist()) == {cell(mark) for mark in wanted}
        named = {cell(mark) for mark in marks if mark.label}
        assert set((words[row, :, 0] >= 0).nonzero()[:, 0].tolist()) == named
    image = tokenizer.convert_tokens_to_ids("<image>")
    assert ((ids == image).sum(1) == GRID**2).all()


def test_what_an_instruction_speaks_of_is_marked_wherever_it_is(tokenizer):
    seen = set()
    examples = scenes(tokenizer, 200)
    *_, spoken, _ = encode(examples, tokenizer)
    for row, (marks, text, _, _) in enumerate(examples):
        asked = {
            "list": text.split()[0] in ("a", "two", "three") or text.startswith("the room of"),
            "count": text[:3] == "how",
        }
        kind = next((name for name, holds in asked.items() if holds), "other")
        one = {plural: shape for shape, plural in gallery.PLURALS.items()}
        listed = [
            f"{look} {one.get(shape, shape)}" for _, look, shape in re.findall(r"(a|two|three) (\w+ \w+) (\w+)", text)
        ]
        for mark in (mark for mark in marks if mark.label):
            wanted = {
                "list": mark.label.removeprefix("take out ") in listed,
                "count": text.split()[2:3] == mark.label.split()[:1],
                "other": -1,
            }[kind]
            assert spoken[row, cell(mark)] == float(wanted)
            seen.add((kind, float(wanted)))
    assert seen == {("list", 0.0), ("list", 1.0), ("count", 0.0), ("count", 1.0), ("other", -1.0)}


def test_it_learns_saves_and_loads_and_its_processor_makes_the_same_input(tmp_path, tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(pretrain_vl, "PROBES", {})
    args = dataclasses.replace(ARGS, out=str(tmp_path), steps=60, probe_every=15, batch_size=8)
    pretrain_vl.main(args)
    answers = [float(part) for part in re.findall(r"answer ([\d.]+)", capsys.readouterr().out)]
    assert answers[-1] < 0.75 * answers[0]
    model, processor = AutoModelForImageTextToText.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)
    (example,) = scenes(tokenizer, 1)
    pixels, ids, *_ = encode([example], tokenizer)
    marks, text, wanted, _ = example
    text = text if isinstance(wanted, str) else f"click on {text}"
    picture = Image.fromarray(paint(marks).round().astype(np.uint8))
    given = processor(images=picture, text=f"{text}<image><answer>", return_tensors="pt", add_special_tokens=False)
    assert given["input_ids"].tolist() == ids.tolist()
    assert torch.allclose(given["pixel_values"], pixels, atol=0.01)
    with torch.no_grad():
        first = model.eval()(**given).logits
        model.save_pretrained(tmp_path / "again")
        again = AutoModelForImageTextToText.from_pretrained(tmp_path / "again").eval()(**given).logits
    assert torch.equal(first, again)


def test_the_loss_of_what_is_spoken_of_is_a_place_at_a_time(tokenizer):
    torch.manual_seed(0)
    model = pretrain_vl.build_model(tokenizer, ARGS).eval()
    places = torch.tensor([tokenizer.convert_tokens_to_ids([f"x{n % GRID}", f"y{n // GRID}"]) for n in range(GRID**2)])
    batch = pixels, ids, _, _, spoken, _ = encode(scenes(tokenizer, 20), tokenizer)
    with torch.no_grad():
        given = pretrain_vl.losses(model, tokenizer, batch, places)[2].item()
        attention = (ids != tokenizer.pad_token_id).long()
        logits = model(input_ids=ids, attention_mask=attention, pixel_values=pixels).logits
    on, no = tokenizer.convert_tokens_to_ids(["on", "no"])
    by_label = {0.0: [], 1.0: []}  # each weighs a half, however rare
    for row, said in zip(logits, spoken.tolist(), strict=True):
        image = row[-1 - GRID**2 : -1]
        for token, label in zip(image, said, strict=True):
            if label >= 0:
                chance = torch.sigmoid(token[on] - token[no]).item()
                by_label[label].append(-math.log(chance if label else 1 - chance))
    assert given == pytest.approx(sum(sum(part) / len(part) for part in by_label.values()), rel=1e-4)


def test_losses_do_not_depend_on_padding(tokenizer):
    torch.manual_seed(0)
    model = pretrain_vl.build_model(tokenizer, ARGS).eval()
    places = torch.tensor([tokenizer.convert_tokens_to_ids([f"x{n % GRID}", f"y{n // GRID}"]) for n in range(GRID**2)])
    examples = [example for example in scenes(tokenizer, 20) if not isinstance(example[2], str)]  # of equal length
    for example in examples:  # the same answer whoever else is in the batch
        example[3].seed(0)
    together = pretrain_vl.losses(model, tokenizer, encode(examples, tokenizer), places)[0]
    for example in examples:
        example[3].seed(0)
    alone = [pretrain_vl.losses(model, tokenizer, encode([example], tokenizer), places)[0] for example in examples]
    assert together.item() == pytest.approx(torch.stack(alone).mean().item(), rel=1e-4)


def test_scenes_are_drawn_from_the_seed(tokenizer):
    def texts(seed):
        return [Scenes(dataclasses.replace(ARGS, seed=seed), tokenizer).example(n, 0)[1] for n in range(20)]

    assert texts(1) == texts(1) != texts(2)
    random.seed(0)
    assert texts(1) == texts(1)
