"""Make the tiny base language model that lets every script run on a laptop: `python tools/pretrain_tiny.py`.

It trains a Llama of 0.8 million parameters and its tokenizer from scratch on synthetic text, and writes an
ordinary Hugging Face checkpoint to assets/tiny. The base knows how to copy, to look a label up and to read a value from
a page in the text format of common/html.py; it has never seen a web site, a task of an environment or a workflow.

What makes so small a model able to point at things (measured, docs/webrl.md):
- an element's id follows its label, on the page and in the action, so that pointing is plain induction;
- dense supervision: many look-ups for one page, every one of them in the loss, nothing else in the loss;
- labels of one page share words, so that matching the last word is not enough.

The data are drawn anew for every batch from (seed, batch number): the same command gives the same weights on the same
machine. 40 minutes on two cores; a GPU is used where there is one. The committed base went on from such a run with
`--init`: its card has both commands.
"""

import dataclasses
import hashlib
import json
import math
import random
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
import sys

sys.path.insert(0, str(ROOT))
from common.errors import UsageError
from common.lm import learn
from common.lm.net import Net
from common.lm.run import run_main
from envs.arena import forum, shop
from envs.arena import words as arena_words


@dataclass
class Args:
    out: str = str(ROOT / "assets/tiny")
    """where the checkpoint goes"""
    easy_share: float = 0.2
    """share of the run over which the easy beginning fades out"""
    seed: int = 1
    """seed of weights and data"""
    steps: int = 11000
    """optimiser steps"""
    batch_size: int = 32
    """examples per step"""
    learning_rate: float = 3e-3
    """peak; 100 warm-up steps, constant to 45 % of the run, then cosine to a tenth"""
    muon: bool = True
    """Muon instead of AdamW for the matrices"""
    mimetic: bool = True
    """begin with W_K = W_Q and W_O = W_V^T in every attention head"""
    hidden_size: int = 96
    """width"""
    num_layers: int = 4
    """depth"""
    num_heads: int = 3
    """attention heads"""
    head_dim: int = 32
    """width of a head"""
    ff_size: int = 256
    """width of the feed-forward layer"""
    init: str = ""
    """go on from this checkpoint of the same sizes instead of from scratch, without the easy beginning; words that its
    tokenizer splits and ours does not become new tokens"""
    words: str = ""
    """a file of more words, each a token and in the data; tools/phone.txt has those of the phone's screens"""
    threads: int = 2
    """parts of a batch computed side by side, one thread each (on a GPU it is computed whole)"""
    workers: int = 1
    """processes that draw data"""
    probe_every: int = 400
    """steps between two probes of held-out accuracy"""


# --------------------------------------------------------------------------------------------------------- tokenizer
MAX_ID = 99
PIECES = 1000  # byte-level pieces, for what is in no word list
KINDS = ["link", "button", "box", "select", "check", "radio", "item"]
RESERVED = (
    ["Task Instruction:", "Action History:\n", "Action:\n", "Actions:\n", "Success:", " YES", " NO"]
    + ['# Element: "', "# Note: ", 'do(action="Click", ', 'do(action="Right Click", ', 'do(action="Hover", ']
    + [f'do(action="{name}", argument="' for name in ("Type", "Search", "Select Dropdown Option", "Switch Tab", "Goto")]
    + [f'do(action="{name}")' for name in ("Scroll Down", "Scroll Up", "Press Enter", "Wait", "New Tab", "Close Tab")]
    + ['do(action="', '", argument="', 'exit(message="', "go_backward()", "go_forward()", '")', '", ', '"\n', "\n", '"']
    + [f'" {kind} [' for kind in KINDS]
    + ['page "', 'text "', 'error "', '" = "', ' = "', '" of "', '" "', " on\n", " disabled\n", "above ", "below "]
    + ["tabs ", "search[", "click[", "]", "> "]
    + [f"{i}]" for i in range(1, MAX_ID + 1)]
    + [f'element="{i}")' for i in range(1, MAX_ID + 1)]
)
# Words of the environments to come, so that one tokenizer serves them all.
MORE_WORDS = """alarm clock timer stopwatch contact message call phone camera photo gallery wifi bluetooth brightness
volume ringtone airplane mode battery network display screen keyboard setting permission install uninstall app apps
store download swipe tap scroll drag long press notification dismiss allow deny fridge microwave stove countertop sink
basin sinkbasin toilet bathtub garbagecan dresser sidetable armchair bed drawer cabinet coffeemachine toaster desklamp
apple egg lettuce bread potato tomato mug knife pan pot soapbar spraybottle handtowel candle creditcard keychain
cellphone laptop newspaper remotecontrol statue vase watch pillow box cloth clean heat cool slice examine put take go
open close move look inventory arrive nothing happens see cart checkout order orders price stock rating review reviews
shipping express standard address payment confirm cancel subscribe unsubscribe upvote downvote comment comments vote
votes board boards post posts profile bio forum shop home search account login logout wishlist size color quantity add
added remove removed delete deleted save saved posted submit submitted edit edited write written total date status
pending shipped delivered cancelled small medium large yes no back next previous page results sort newest top oldest
cheapest category categories kitchen garden sports toys music office clothing gift wrap street city road avenue commit
issue issues label project member role developer maintainer reporter guest branch merge star stars walking driving
minutes km distance route january february march april may june july august september october november december monday
tuesday wednesday thursday friday saturday sunday hello thanks please welcome great good bad poor nice love like hate
buy bought sell sold works broke broken quality value money gift recommend return arrived late early email user name
title body text reply author member since joined likes followers find show me what how many much who which when where
in stock there are is the of to from with by on and at for a an not available exist does do did done rated said say
wrote commented subscribed unsubscribed upvoted downvoted activity product products quantity quantities cost gave today
dearest least most overnight fine cabin""".split()


def vocabulary():
    """All words that should be one token, and those the data are drawn from: sorted, without repetition."""
    english = (ROOT / "tools/english.txt").read_text().split()
    named = {
        *forum.BOARDS,
        *shop.CATEGORIES,
        *shop.CITIES,
        *shop.COLORS,
        *shop.ADDRESSES,
        *shop.SHIPPING,
        *shop.VERDICTS,
    }
    return sorted(set(english) | set(MORE_WORDS) | set(arena_words.everything()) | named)


def read_words(path):
    """The words of a file. Raises UsageError where it cannot be read."""
    try:
        return set(Path(path).read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--words {path}: {getattr(error, 'strerror', None) or 'no text'}") from error


def build_tokenizer():
    """Byte-level BPE in which a quoted word is the same token as a spaced one, digits stand alone and the fixed phrases
    of the page and action formats are single tokens. Decoding gives the text back."""
    tokenizer = Tokenizer(models.BPE())
    # `"red` and ` red` must be one token for copying to generalise: a space goes in after an opening quote on the way
    # in and comes out again on the way back.
    tokenizer.normalizer = normalizers.Replace(Regex(r'(?<=[\s=(])"(?=[A-Za-z])'), '" ')
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace(Regex(r'(?<=[\s=(])" (?=[A-Za-z])'), '"')]
    )
    rare = random.Random(0)
    corpus = [f" {word}" for word in VOCABULARY] + [f" {random_word(rare)}" for _ in range(20_000)]
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    # Every listed word becomes one token whatever its frequency: `ignore_merges` looks whole words up first.
    trained = json.loads(tokenizer.to_str())["model"]
    vocab = dict(trained["vocab"])
    for word in VOCABULARY:
        vocab.setdefault(f"Ġ{word}", len(vocab))
    tokenizer.model = models.BPE(vocab=vocab, merges=[tuple(m) for m in trained["merges"]], ignore_merges=True)
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    tokenizer.add_tokens([AddedToken(phrase, normalized=True, special=False) for phrase in RESERVED])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


# -------------------------------------------------------------------------------------------------------------- data
VOCABULARY = vocabulary()  # `--words` adds to it
EASY_WORDS = random.Random(0).sample(VOCABULARY, 200)
SYLLABLES = "an er on th in ou le st qu ar el io ba ke mi ro ta su po ne vi lo da".split()
UI = """home search account cart orders save delete cancel yes no next previous back submit add edit post comment
subscribe top new old profile settings help log out in sort more boards filter apply""".split()
FIELDS = """price stock rating status date total author votes comments email phone city bio size color weight board
category members stars owner""".split()
MONTHS = """january february march april may june july august september october november december""".split()
# Words that mean nothing to a look-up. None of the arena's lists: what is filler here would be passed over as a name
# there.
FILLER = """the a of in to for on with and my please user order page item product show me go by its called it that
this is""".split()
assert not set(FILLER) & set(arena_words.everything())


def random_word(rng):
    """A word that is in no list: two to four syllables."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


class Scribe:
    """Draws one synthetic page and the look-ups on it. One instance per example."""

    def __init__(self, rng, ease):
        self.rng = rng
        # The easy beginning knows few words: copying them is found sooner, and carries over to all others later.
        self.words = EASY_WORDS if rng.random() < ease else VOCABULARY
        # Few words per page: labels share words, so that a match has to be of the whole label. At first most pages have
        # many words instead, with which induction is found sooner.
        sizes = (40, 80) if rng.random() < ease else (6, 30)
        self.pool = [self.fresh_word() for _ in range(rng.randint(*sizes))]

    def fresh_word(self):
        return random_word(self.rng) if self.rng.random() < 0.1 else self.rng.choice(self.words)

    def word(self):
        return self.rng.choice(self.pool)

    def number(self):
        r = self.rng
        return str(r.randint(1, 9)) if r.random() < 0.35 else str(r.randint(10, 99 if r.random() < 0.6 else 9999))

    def phrase(self, low=1, high=3):
        return " ".join(self.word() for _ in range(self.rng.randint(low, high)))

    def value(self):
        r = self.rng.random()
        if r < 0.35:
            return self.number()
        if r < 0.42:
            return f"${self.number()}"
        if r < 0.47:
            return f"{self.rng.choice(MONTHS)} {self.rng.randint(1, 28)}"
        if r < 0.54:
            return f"{self.word()} {self.number()}"
        return self.phrase(1, 4)

    def label(self):
        r = self.rng.random()
        if r < 0.18:
            return self.rng.choice(UI)
        if r < 0.26:
            return f"{self.rng.choice(FIELDS + self.pool)} {self.number()}"
        if r < 0.32:
            return f"{self.rng.choice(UI)} {self.phrase(1, 2)}"
        if r < 0.42:
            return self.number()
        return self.phrase(1, 1) if r < 0.55 else self.phrase(2, 2) if r < 0.85 else self.phrase(3, 5)

    def filler(self, high=3):
        return " ".join(
            self.rng.choice(FILLER) if self.rng.random() < 0.8 else self.word()
            for _ in range(self.rng.randint(0, high))
        )

    def page(self, low=2, high=14, texts=(0, 6)):
        """Lines of a page, and its elements, fields and rows (what the look-ups ask for)."""
        rng = self.rng
        elements, seen = [], set()
        for _ in range(rng.randint(low, high)):
            # now and then the same label on two kinds of element: then the kind decides
            label = rng.choice(elements)["label"] if elements and rng.random() < 0.05 else self.label()
            kind = rng.choice(["link"] * 4 + ["button"] * 3 + ["box"] * 2 + ["select"] * 2 + ["check", "radio", "item"])
            if (label, kind) in seen:
                continue
            seen.add((label, kind))
            element = {"kind": kind, "label": label, "value": "", "options": [], "on": False}
            if kind == "box" and rng.random() < 0.25:
                element["value"] = self.value()
            if kind == "select":
                element["options"] = list(dict.fromkeys(self.phrase(1, 2) for _ in range(rng.randint(2, 5))))
                element["value"] = element["options"][0]
            if kind in ("check", "radio"):
                element["on"] = rng.random() < 0.3
            elements.append(element)
        for i, element in enumerate(elements):
            element["id"] = i + 1
        for element in elements:  # a line of details under a label, as lists have it
            element["details"] = []
            if element["kind"] in ("link", "item") and rng.random() < 0.35:
                element["details"] = self.details()
        facts = [(field, self.value()) for field in rng.sample(FIELDS, rng.randint(0, 4))]
        rows = []
        if rng.random() < 0.3:  # a table: several things with the same fields
            fields = rng.sample(FIELDS, rng.randint(1, 2))
            names = {self.phrase(1, 3) for _ in range(rng.randint(2, 5))}
            rows = [(name, [(field, self.value()) for field in fields]) for name in sorted(names)]
        sayings = []
        if rng.random() < 0.25:
            sayings = [(self.phrase(1, 2), self.phrase(1, 4)) for _ in range(rng.randint(1, 3))]
        noise = [self.phrase(2, 8) for _ in range(rng.randint(*texts))]
        parts = {"title": self.phrase(1, 3), "elements": elements, "facts": facts, "rows": rows}
        return parts | {"sayings": sayings, "noise": noise}

    def details(self):
        """One to three (field, value, text): "price 24", "24 votes" or "by someone"."""
        chosen = []
        for field in self.rng.sample([*FIELDS, "by"], self.rng.randint(1, 3), counts=[1] * len(FIELDS) + [6]):
            if field == "by" and any(f == "by" for f, _, _ in chosen):
                continue
            value = self.phrase(1, 2) if field == "by" else self.value() if self.rng.random() < 0.4 else self.number()
            before = field != "by" and value[0].isdigit() and self.rng.random() < 0.5
            chosen.append((field, value, f"{value} {field}" if before else f"{field} {value}"))
        return chosen

    def render(self, page):
        """The page in the compact format of common/html.py; texts are scattered between the elements."""
        rng = self.rng
        lines = []
        for element in page["elements"]:
            details = ", ".join(text for _, _, text in element["details"])
            lines.append(element_line(element) + (f'\ntext "{details}"' if details else ""))
        texts = [
            f'text "{value} {field}"' if value.isdigit() and rng.random() < 0.5 else f'text "{field} {value}"'
            for field, value in page["facts"]
        ]
        texts += [
            rng.choice(['text "{}: {}"', 'text "{}"\ntext "{}"']).format(who, what) for who, what in page["sayings"]
        ]
        texts += ['text "' + " ".join([name] + [f"{f} {v}" for f, v in fields]) + '"' for name, fields in page["rows"]]
        texts += [f'text "{noise}"' for noise in page["noise"]]
        rng.shuffle(texts)
        if rng.random() < 0.5:  # texts together, as on a product page
            at = rng.randint(0, len(lines))
            lines[at:at] = texts
        else:
            for text in texts:
                lines.insert(rng.randint(0, len(lines)), text)
        if rng.random() < 0.1:
            lines.append(f"below {rng.randint(1, 20)}")
        return "\n".join([f'page "{page["title"]}"'] + lines) + "\n"

    def look_up(self, page):
        """One (instruction part, action, effect on the page) that the page answers, or None."""
        rng = self.rng
        r = rng.random()
        elements = page["elements"]
        detailed = [element for element in elements if element["details"]]
        if r < 0.18 and detailed:
            element = rng.choice(detailed)
            field, value, _ = rng.choice(element["details"])
            asks = ["what is the {} of {}", "{} of {}", "how many {} does {} have", "tell me the {} of {}"]
            whose = ["who wrote {1}", "who made {1}", "whose is {1}", "author of {1}"]
            ask = rng.choice(whose if field == "by" else asks).format(field, element["label"])
            return ask, f'exit(message="{value}")', None
        if r < 0.22 and page["sayings"]:
            who, what = rng.choice(page["sayings"])
            if rng.random() < 0.5:
                return rng.choice(["who wrote {}", "who said {}"]).format(what), f'exit(message="{who}")', None
            return rng.choice(["what does {} say", "what did {} write"]).format(who), f'exit(message="{what}")', None
        if r < 0.34 and (page["facts"] or page["rows"]):
            if page["rows"] and (rng.random() < 0.5 or not page["facts"]):
                name, fields = rng.choice(page["rows"])
                field, value = rng.choice(fields)
                ask = rng.choice(
                    [f"what is the {field} of {name}", f"{field} of {name}", f"tell me the {name} {field}"]
                )
            else:
                field, value = rng.choice(page["facts"])
                ask = rng.choice(
                    [f"what is the {field}", f"what {field} {self.filler(2)}".strip(), f"tell me the {field}"]
                )
            return ask, f'exit(message="{value}")', None
        if not elements:
            return None
        element = rng.choice(elements)
        kind, label = element["kind"], element["label"]
        if kind == "box":
            value = self.value()
            ask = rng.choice(
                [f"{label} {value}", f"set {label} to {value}", f"write {value} in {label}", f"{value} for {label}"]
            )
            name = "Search" if label == "search" or rng.random() < 0.15 else "Type"
            ask = (
                f"search for {value} {'' if label == 'search' else 'in ' + label}".strip() if name == "Search" else ask
            )
            return ask, act(element, name, value), (element, "value", value)
        if kind == "select":
            option = rng.choice(element["options"])
            ask = rng.choice([f"{label} {option}", f"set {label} to {option}", f"{option} {label}", f"choose {option}"])
            return ask, act(element, "Select Dropdown Option", option), (element, "value", option)
        ask = " ".join(f"{self.filler()} {label} {self.filler(2)}".split())
        return ask, act(element, "Click"), (element, "on", True)


def element_line(element):
    """One element as common/html.py prints it."""
    line = f'"{element["label"]}" {element["kind"]} [{element["id"]}]'
    if element["kind"] in ("box", "select") and element["value"]:
        line += f' = "{element["value"]}"'
    if element["kind"] == "select":
        line += " of " + " ".join(f'"{option}"' for option in element["options"])
    if element["kind"] in ("check", "radio") and element["on"]:
        line += " on"
    return line


def act(element, name, argument=None):
    """An action in the released grammar, with its `# Element:` line."""
    argument = "" if argument is None else f'argument="{argument}", '
    return (
        f'# Element: "{element["label"]}" {element["kind"]} [{element["id"]}]\n'
        f'do(action="{name}", {argument}element="{element["id"]}")'
    )


def prompt(instruction, history, page):
    """The prompt the scripts use: instruction, action history, current page."""
    past = "".join(f"{action}\n" for action in history)
    return f"Task Instruction: {' '.join(instruction.split())}\nAction History:\n{past}{page}"


def repeat_example(rng, ease=0.0):
    """A random sequence of words, numbers, ids and kinds, then the same again: where induction begins. What is never
    copied here (ids are tokens of their own) is not copied anywhere else for thousands of steps."""
    scribe = Scribe(rng, ease)
    text = ""
    for _ in range(rng.randint(4, 24)):
        r = rng.random()
        if r < 0.3 * (1 - ease):
            text += f'" {rng.choice(KINDS)} [{rng.randint(1, 30)}]' + rng.choice(["", '\n"'])
        else:
            text += " " + (scribe.number() if r < 0.4 else scribe.fresh_word() if r < 0.85 else rng.choice(UI))
    return f'text "start{text}\n', text


def listing_example(rng, ease=0.0):
    """A page's elements, then each of them in another order with its id: many look-ups for one page."""
    scribe = Scribe(rng, ease)
    page = scribe.page(3, 12, texts=(0, 2))
    order = [e for e in page["elements"] if e["kind"] not in ("box", "select")] or page["elements"]
    rng.shuffle(order)
    # Without the labels in the instruction every label stands in one place only: the look-up in its purest form.
    instruction = ", ".join(e["label"] for e in order) if rng.random() > 0.25 + 0.5 * ease else scribe.word()
    return prompt(instruction, [], scribe.render(page)) + "Actions:\n", "\n".join(act(e, "Click") for e in order)


def dense_example(rng, ease=0.0):
    """Several look-ups of all kinds on one page, answered one after the other."""
    scribe = Scribe(rng, ease)
    page = scribe.page(2, 10, texts=(0, 3))
    found = [x for x in (scribe.look_up(page) for _ in range(rng.randint(2, 6))) if x]
    return (
        prompt(rng.choice([", ", " and ", " then "]).join(x[0] for x in found), [], scribe.render(page)) + "Actions:\n",
        "\n".join(x[1] for x in found),
    )


def next_example(rng, ease=0.0):
    """An instruction of one to four parts, the first of them done already (the history and the page say so): the next
    action, or the exit when all are done."""
    scribe = Scribe(rng, ease)
    page = scribe.page(2, 14)
    found = [x for x in (scribe.look_up(page) for _ in range(rng.randint(1, 4))) if x]
    ends = [i for i, x in enumerate(found) if x[2] is None]
    if ends:
        found = found[: ends[0] + 1]  # an answer ends the list
    done = rng.randint(0, len(found) if found and found[-1][2] else max(0, len(found) - 1))
    history = [act(e, "Click") for e in scribe.page(0, 3)["elements"]] if rng.random() < 0.3 else []
    for _, action, (element, key, value) in found[:done]:
        history.append(action)
        element[key] = value
    instruction = rng.choice([", ", " and ", " then ", " "]).join(x[0] for x in found)
    answer = found[done][1] if done < len(found) else 'exit(message="done")'
    lead = scribe.filler(3)
    return prompt(f"{lead} {instruction}", history, scribe.render(page)) + "Action:\n", answer


def verify_example(rng, ease=0.0):
    """A page and several statements: does one of its lines say all that the statement says?"""
    scribe = Scribe(rng, ease)
    plain = rng.random() < max(0.3, ease)  # statements in the page's own words, few other lines
    facts = []
    for _ in range(rng.randint(1, 5)):
        parts = [scribe.number()] if rng.random() < 0.4 else []
        parts += [scribe.phrase(1, 3)]
        if rng.random() < 0.5:
            parts += [f"{rng.choice(FIELDS)} {scribe.value()}"]
        if rng.random() < 0.3:
            parts += [f"in {scribe.phrase(1, 2)}"]
        facts.append(parts)
    page = scribe.page(0, 1 if plain else 6, texts=(0, 0 if plain else 2))
    page["noise"] += [
        " ".join([rng.choice(["added", "posted", "saved", "order", "by", ""])] + f).strip() for f in facts
    ]
    statements = []
    for _ in range(rng.randint(3, 8)):
        parts = list(rng.choice(facts))
        truth = rng.random() < 0.5
        if not truth:  # change one word or number of it
            i = rng.randrange(len(parts))
            pieces = parts[i].split()
            j = rng.randrange(len(pieces))
            new = scribe.number() if pieces[j].isdigit() else scribe.word()
            truth = new == pieces[j]
            pieces[j] = new
            parts[i] = " ".join(pieces)
            truth = truth or any(all(p in f for p in parts) for f in facts)
        if plain or rng.random() < 0.4:
            statement = " ".join(parts)
        else:
            statement = f"{scribe.filler(2)} " + f" {rng.choice(FILLER)} ".join(parts)
        statements.append((" ".join(statement.split()), " YES" if truth else " NO"))
    context = scribe.render(page)
    return context, [f"Task Instruction: {s}\nSuccess:{v}\n" for s, v in statements]


# Each kind of example with its share at the beginning and at the end.
MIX = [
    (repeat_example, 0.35, 0.08),
    (listing_example, 0.37, 0.16),
    (dense_example, 0.12, 0.22),
    (next_example, 0.08, 0.38),
    (verify_example, 0.08, 0.16),
]


def encode(tokenizer, example):
    """(context, answer) -> token ids and the mask of the tokens in the loss. Of a verify example only the verdicts and
    the statement's own words count (the latter teach the match as a language model)."""
    context, answer = example
    ids = tokenizer.encode(context, add_special_tokens=False)
    mask = [0] * len(ids)
    if isinstance(answer, str):
        new = tokenizer.encode(answer, add_special_tokens=False) + [tokenizer.eos_token_id]
        return ids + new, mask + [1] * len(new)
    words = len(ids) % 2  # every other time the statements' words count too: predicting them is matching them
    for statement in answer:
        new = tokenizer.encode(statement, add_special_tokens=False)
        ids, mask = ids + new, mask + [1 if i == len(new) - 2 else words for i in range(len(new))]
    return ids, mask


class Synthetic(Dataset):
    """Item i is batch i, drawn from (seed, i): a list of (ids, mask), of one length bucket out of eight batches."""

    def __init__(self, tokenizer_dir, seed, batches, batch_size, easy_share):
        self.tokenizer_dir, self.seed, self.batches, self.batch_size = tokenizer_dir, seed, batches, batch_size
        self.easy_share, self.tokenizer = easy_share, None

    def __len__(self):
        return self.batches // 8

    def __getitem__(self, index):
        if self.tokenizer is None:
            self.tokenizer = PreTrainedTokenizerFast.from_pretrained(self.tokenizer_dir)
        rng = random.Random(f"{self.seed}-{index}")
        ease = max(0.0, 1 - index / (self.easy_share * len(self))) if self.easy_share else 0.0
        kinds = [kind for kind, _, _ in MIX]
        weights = [ease * first + (1 - ease) * last for _, first, last in MIX]
        drawn = rng.choices(kinds, weights, k=8 * self.batch_size)
        examples = [encode(self.tokenizer, kind(rng, ease)) for kind in drawn]
        examples = [e for e in examples if len(e[0]) <= 640]
        examples.sort(key=lambda e: len(e[0]))  # like lengths together: little padding
        batches = [collate(examples[i : i + self.batch_size]) for i in range(0, len(examples), self.batch_size)]
        rng.shuffle(batches)
        return batches


def collate(examples):
    """Right-padded ids [B, L] and labels [B, L] (-100 outside the loss)."""
    length = max(len(ids) for ids, _ in examples)
    ids = np.zeros((len(examples), length), dtype=np.int64)
    labels = np.full((len(examples), length), -100, dtype=np.int64)
    for row, (tokens, mask) in enumerate(examples):
        ids[row, : len(tokens)] = tokens
        labels[row, : len(tokens)] = np.where(np.array(mask, dtype=bool), tokens, -100)
    return torch.from_numpy(ids), torch.from_numpy(labels)


# ---------------------------------------------------------------------------------------------------------- training
def answer_loss(model, ids, labels):
    """Cross-entropy over the labelled tokens only; the head runs on those positions alone. Returns (loss, correct)."""
    hidden = model.model(input_ids=ids).last_hidden_state  # [B, L, D]; right padding needs no mask under causality
    keep = labels[:, 1:] != -100
    logits = model.lm_head(hidden[:, :-1][keep])  # [N, V]
    target = labels[:, 1:][keep]
    return F.cross_entropy(logits, target), (logits.argmax(-1) == target), keep


@torch.no_grad()
def probe(model, tokenizer, seed=10**6, count=64):
    """Exact-match rate of the whole answer (teacher forcing) per kind of example, on unseen data."""
    model.eval()
    rates = {}
    for kind, _, _ in MIX:
        examples = [encode(tokenizer, kind(random.Random(f"probe-{seed}-{i}"))) for i in range(count)]
        ids, labels = collate(examples)
        _, correct, keep = answer_loss(model, ids.to(model.device), labels.to(model.device))
        correct, keep = correct.cpu(), keep.cpu()
        rows = keep.nonzero()[:, 0]
        wrong = torch.zeros(count).index_add_(0, rows, (~correct).float())
        name = kind.__name__.removesuffix("_example")
        if name == "verify":
            verdict = torch.isin(labels[:, 1:][keep], torch.tensor(tokenizer.encode(" YES NO")))
            correct = correct[verdict]
        # verdicts are many per example: report the share that is right
        rates[name] = correct.float().mean().item() if name == "verify" else (wrong == 0).float().mean().item()
        if name in ("repeat", "listing"):
            rates[f"{name}_tokens"] = correct.float().mean().item()
    model.train()
    return {name: round(rate, 3) for name, rate in rates.items()}


@torch.no_grad()
def look_alike(model):
    """Start every attention head at W_K = W_Q and W_O = W_V^T: it looks for tokens like the present one and adds what
    it finds as it is, which is half of copying (mimetic initialisation, arXiv 2305.09828)."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        attention.o_proj.weight.copy_(attention.v_proj.weight.T)


@torch.no_grad()
def take_over(model, tokenizer, folder):
    """Copy the weights of the checkpoint in `folder`; the embedding of a token it does not have stays as it is."""
    old = LlamaForCausalLM.from_pretrained(folder)
    rows = PreTrainedTokenizerFast.from_pretrained(folder).get_vocab()
    embedding = model.get_input_embeddings().weight.clone()
    for token, row in tokenizer.get_vocab().items():
        if token in rows:
            embedding[row] = old.get_input_embeddings().weight[rows[token]]
    old.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.load_state_dict(old.state_dict())
    model.get_input_embeddings().weight.copy_(embedding)


def make_optimizers(model, args):
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and args.muon]
    others = [p for p in model.parameters() if not any(p is q for q in inner)]
    options = {"lr": args.learning_rate, "weight_decay": 0.01}
    optimizers = [torch.optim.AdamW(others, betas=(0.9, 0.98), **options)]
    if inner:  # match_rms_adamw: steps as large as AdamW's, so that one rate serves both
        optimizers.append(torch.optim.Muon(inner, adjust_lr_fn="match_rms_adamw", **options))
    return optimizers


def main(args):
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = args.threads if device == "cpu" else 1
    learn.use_threads(threads)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.words:  # before the processes that draw data are forked
        VOCABULARY.extend(sorted(read_words(args.words) - set(VOCABULARY)))
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(out)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        intermediate_size=args.ff_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.num_heads,
        num_key_value_heads=args.num_heads,
        head_dim=args.head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.1,  # 0.02 keeps so narrow a model from ever finding the induction circuit
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    model = LlamaForCausalLM(config)
    if args.init:
        take_over(model, tokenizer, args.init)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(tokenizer)} tokens", flush=True)
    if args.mimetic and not args.init:
        look_alike(model)
    model.to(device)
    optimizers = make_optimizers(model, args)
    both = SimpleNamespace(zero_grad=model.zero_grad, step=lambda: [optimizer.step() for optimizer in optimizers])
    easy_share = 0.0 if args.init else args.easy_share
    data = Synthetic(str(out), args.seed, args.steps + 8, args.batch_size, easy_share)
    loader = DataLoader(data, batch_size=None, num_workers=args.workers, prefetch_factor=4 if args.workers else None)

    def loss_sum(rows):
        ids, labels = (torch.stack(part) for part in zip(*rows, strict=True))
        loss, _, keep = answer_loss(model, ids, labels)
        return loss * keep.sum()

    def lengths(rows):
        return [len(ids) for ids, _ in rows]

    step, tokens, rates, start = 0, 0, {}, time.process_time()
    for batches in loader:
        for ids, labels in batches:
            if step >= args.steps:
                break
            progress = step / args.steps
            decay = 1.0 if progress < 0.45 else 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - 0.45) / 0.55))
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] = args.learning_rate * min(1.0, (step + 1) / 100) * decay
            count, width = int((labels[:, 1:] != -100).sum()), len(ids[0])
            rows = list(zip(ids.to(device), labels.to(device), strict=True))
            net = Net(model, tokenizer, tokens=math.ceil(len(rows) / threads) * width, optimizer=both)
            (loss,), _ = net.descend(loss_sum, [rows], lengths, counts=[count])
            step, tokens = step + 1, tokens + ids.numel()
            if step % args.probe_every == 0 or step == args.steps:
                rates = probe(model, tokenizer)
                seconds = time.process_time() - start
                speed = f"{tokens / seconds:.0f} tokens/cpu-s, {seconds:.0f} cpu-s"
                print(f"step {step} loss {loss.item():.3f} {speed} {rates}", flush=True)
                model.save_pretrained(out)
    write_card(args, out, parameters, len(tokenizer), probe(model, tokenizer, seed=2 * 10**6, count=512))


def write_card(args, out, parameters, vocab, rates):
    """The model card: how it was made, what it can do, its hash."""
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    mix = ", ".join(f"{kind.__name__.removesuffix('_example')} {first:.0%} to {last:.0%}" for kind, first, last in MIX)
    settings = {k: v for k, v in dataclasses.asdict(args).items() if k not in ("out", "init", "words")}
    before = ""
    if args.init:
        first = hashlib.sha256((Path(args.init) / "model.safetensors").read_bytes()).hexdigest()
        before = f", going on (`--init`) from the checkpoint with sha256 `{first}`"
    command = "python tools/pretrain_tiny.py"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    commit = commit.stdout.strip() or "unknown"
    (out / "README.md").write_text(
        f"""# The tiny base language model

A Llama-style model of {parameters:,} parameters with its own tokenizer of {vocab} tokens, trained from scratch on
synthetic text. It can copy, look a label up and read a value from a page; it knows no site, no task and no workflow.

- made by `{command}` at commit {commit} ({json.dumps(settings)}){before}
- data: {mix} (see the docstrings of `tools/pretrain_tiny.py`), drawn from the seed; answers only in the loss
- words: all lists of `envs/arena/words.py` (its evaluation words included: a base model knows its language; no task
  holds them in training), {f"`{args.words}`, " if args.words else ""}`tools/english.txt` and random syllables
- exact answers on 512 unseen examples of each kind (share of right verdicts for verify): {json.dumps(rates)}
- sha256 of model.safetensors: `{digest}`
- licence: MIT, as the project
"""
    )
    print(re.sub(r"\n+", "\n", (out / "README.md").read_text()))


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
