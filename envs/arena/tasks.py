"""Tasks from templates: instructions in WebArena's JSON schema, their checks and their oracles.

A site's `<site>_tasks.py` lists Templates. Everything here is text and dictionaries; no server and no browser.
"""

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property

from common.actions import Action, format_action
from envs import Task, webarena
from envs.arena.content import SEEDS, World

MAX_STEPS = 15
TRIES = 300  # draws of slots that mean no task in their world, before it has none
# Tasks of each world and site.
PER_WORLD = {"train": 20, "eval": 4, "test": 4}


@dataclass(frozen=True)
class Move:
    """One step of an oracle: act on the page line `kind "label" [id]`, whatever its id is."""

    kind: str  # link, button, box, select, check, radio, item; "exit" for exit_move, "tab" for tab_move
    label: str
    op: str = "Click"  # Click, Type, Search, Select Dropdown Option, ...
    argument: str | None = None


def exit_move(message):
    """The closing step, `exit(message=...)`."""
    return Move("exit", "", "Exit", message)


def tab_move(number):
    """To the tab of that number, from 1."""
    return Move("tab", "", "Switch Tab", str(number))


def resolve(move, obs_text):
    """The action text of `move` on the page `obs_text` (compact format).

    Raises LookupError if no line `"label" kind [id]` is there; the first one counts if there are several.
    """
    if move.kind in ("exit", "tab"):
        return format_action(Action(move.op, None, move.argument, ""))
    name = f'"{move.label}" {move.kind}'
    found = re.search(rf"^{re.escape(name)} \[(\d+)\]", obs_text, re.MULTILINE)
    if found is None:
        raise LookupError(f"no {name} on the page")
    return format_action(Action(move.op, found[1], move.argument, f"# Element: {name} [{found[1]}]"))


def slot_kind(slot):
    """Slots that take the same values: "product2" is a "product"."""
    return slot.rstrip("0123456789")


# What a slot's value looks like, by kind; every other one is a single word. Free text (WORDS) is only safe at the end
# of a phrasing or before words that no value can hold.
PATTERNS = {
    **dict.fromkeys(("count", "stars", "order", "price", "votes", "phone", "number"), r"\d+"),
    **dict.fromkeys(("product", "person"), r"[a-z]+ [a-z]+"),
}
WORD = r"[a-z0-9]+"
WORDS = rf"{WORD}(?: {WORD})*"


@dataclass(frozen=True)
class Template:
    """A kind of task. The functions get a World and the slots, a dict of strings that stand verbatim on the pages."""

    name: str
    kind: str  # information, navigation, state, impossible
    requirements: int
    phrasings: tuple[str, ...]  # "add {count} {product} to the cart"; all phrasings name the same slots
    sample: Callable  # (world, rng) -> slots, or None if this world has no such task
    config: Callable  # (world, slots) -> WebArena's "eval" dict; raises LookupError if the slots name what is not there
    oracle: Callable  # (world, slots) -> list[Move], exit included
    family: str = ""  # templates of one family differ in the number of requirements (`vary`)
    patterns: dict = field(default_factory=dict, hash=False)  # slot kind -> regex, where PATTERNS does not fit
    values_from: tuple[str, ...] = ()  # `vary` takes values only from instructions of these templates; (): from all
    max_steps: int = MAX_STEPS  # for each site
    sites: tuple[str, ...] = ()  # of a task that crosses sites, in the order of their tabs; (): the site it belongs to

    @cached_property
    def slots(self):
        """The slot names, in order of appearance."""
        return tuple(re.findall(r"{(\w+)}", self.phrasings[0]))

    @cached_property
    def _regexes(self):
        patterns = PATTERNS | self.patterns
        return [
            re.compile(
                "".join(
                    f"(?P<{part}>{patterns.get(slot_kind(part), WORD)})" if i % 2 else re.escape(part)
                    for i, part in enumerate(re.split(r"{(\w+)}", phrasing))
                )
            )
            for phrasing in self.phrasings
        ]

    def parse(self, text):
        """The slots of an instruction made from one of the phrasings, else None."""
        for regex in self._regexes:
            found = regex.fullmatch(text.strip())
            if found:
                return found.groupdict()
        return None


def until_valid(draw, config):
    """A sampler: slots by `draw(world, rng)`, drawn again where it or `config` raises LookupError; None after TRIES."""

    def sample(world, rng):
        for _ in range(TRIES):
            try:
                slots = draw(world, rng)
                config(world, slots)
            except LookupError:
                continue
            return slots
        return None

    return sample


def build(template, site, world, slots, phrasing, task_id):
    """The Task of `slots` in `world`. Raises LookupError if what the slots name does not exist there."""
    intent, sites = phrasing.format(**slots), template.sites or (site,)
    config = {
        "sites": list(sites),
        "task_id": task_id,
        "require_login": True,
        "storage_state": None,
        "start_url": webarena.AND.join(f"__{name.upper()}__" for name in sites),
        "geolocation": None,
        "intent_template": re.sub(r"{(\w+)}", r"{{\1}}", phrasing),
        "instantiation_dict": dict(slots),
        "intent": intent,
        "require_reset": False,
        "eval": template.config(world, slots),
    }
    steps = len(template.oracle(world, slots))
    return Task(
        task_id=task_id,
        site="+".join(sites),
        instruction=intent,
        max_steps=template.max_steps * len(sites),
        split=world.split,
        seed=world.seed,
        template=template.name,
        requirements=template.requirements,
        steps=steps,
        config=config,
    )


def world_tasks(site, templates, world, count, first=0):
    """`count` tasks of a site in one world, from template number `first` on, in big steps that reach every template.

    No instruction occurs twice.
    """
    rng = world.rng(f"tasks/{site}")
    stride = next(n for n in range(len(templates) // 3 + 1, 1000) if math.gcd(n, len(templates)) == 1)
    tasks, seen = [], set()
    for turn in range(20 * count):
        if len(tasks) == count:
            break
        template = templates[(first + turn * stride) % len(templates)]
        slots = template.sample(world, rng)
        if slots is None:
            continue
        phrasing = rng.choice(template.phrasings)
        if phrasing.format(**slots) in seen:
            continue
        task_id = f"{site}-{world.split}-{world.seed}-{len(tasks)}"
        tasks.append(build(template, site, world, slots, phrasing, task_id))
        seen.add(tasks[-1].instruction)
    return tasks


@cache  # they are always the same: 5,000 of a site take a second
def site_tasks(site, templates, split):
    """Of each world of a split the tasks of a site, a list; `templates` is a tuple."""
    count, worlds = PER_WORLD[split], [World(seed, split) for seed in SEEDS[split]]
    return [world_tasks(site, templates, world, count, first=number) for number, world in enumerate(worlds)]


def split_tasks(split, sites):
    """All tasks of a split, frozen by its seeds; `sites` maps a site's name to its templates.

    The order is by place in the world (every world's first task of every site, then every second one, ...), so that
    any beginning of the list covers worlds, sites and templates evenly.
    """
    worlds = list(zip(*(site_tasks(site, tuple(templates), split) for site, templates in sites.items())))
    return [site[k] for k in range(PER_WORLD[split]) for world in worlds for site in world if k < len(site)]


def find(text, templates):
    """The templates an instruction can be an instance of, as [(template, slots)]."""
    found = ((template, template.parse(text)) for template in templates)
    return [(template, slots) for template, slots in found if slots is not None]


def task_from_text(text, like, templates):
    """The task, with its true check, that `text` means in the world of `like`; None if it means none there."""
    world = World(like.seed, like.split)
    task_id = f"{like.site}-{like.split}-{like.seed}-{zlib.crc32(text.encode()):08x}"
    for template, slots in find(text, templates):
        phrasing = next(p for p in template.phrasings if p.format(**slots) == text.strip())
        try:
            return build(template, like.site, world, slots, phrasing, task_id)
        except LookupError:  # another template may have the same words: "price of X" where X is not sold
            continue
    return None


def vary(text, templates, others, rng):
    """Neighbouring instructions of `text`, from text alone, of its family and not easier: at most one of each way to
    differ, in this order:

    other values, another template with as many requirements, a requirement more. Values come from `others`, the other
    training instructions of the same world. What comes out may be impossible: telling is the filters' task.
    """
    seen = []  # (template name, slot kind, value)
    for other in [*others, text]:
        for template, slots in find(other, templates)[:1]:
            seen += [(template.name, slot_kind(slot), value) for slot, value in slots.items()]
    here = find(text, templates)
    if not here:
        return []
    template, slots = here[0]
    family = [t for t in templates if t.family == template.family and t != template]

    def fitting(target):
        return [(kind, v) for name, kind, v in seen if name in target.values_from or not target.values_from]

    others_of = {s: {v for kind, v in fitting(template) if kind == slot_kind(s)} - {slots[s]} for s in template.slots}
    free = [slot for slot in template.slots if others_of[slot]]
    ways = [
        ([template], rng.sample(free, rng.randint(1, len(free))) if free else []),  # none: another wording, if any
        ([t for t in family if t.requirements == template.requirements], []),
        ([t for t in family if t.requirements == template.requirements + 1], []),
    ]
    varied = []
    for candidates, changed in ways:
        if not candidates:
            continue
        target = rng.choice(candidates)
        values = fitting(target)
        kept = {s: v for s, v in slots.items() if s not in changed and (slot_kind(s), v) in values}
        filled = _fill(target, kept, values, {s: slots[s] for s in changed}, rng)
        if filled is not None:
            varied.append(rng.choice(target.phrasings).format(**filled))
    return [v for i, v in enumerate(varied) if v != text and v not in varied[:i]]


def _fill(template, kept, fitting, old, rng):
    """`kept` plus a value for each other slot: a `fitting` one, not used twice, not the `old` one; None without one."""
    filled = {slot: value for slot, value in kept.items() if slot in template.slots}
    for slot in template.slots:
        if slot not in filled:
            choice = {v for kind, v in fitting if kind == slot_kind(slot)} - {*filled.values(), old.get(slot)}
            if not choice:
                return None
            filled[slot] = rng.choice(sorted(choice))
    return filled
