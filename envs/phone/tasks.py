"""The phone's tasks: instructions from templates, what must be true in the end, and the moves of an oracle.

A template's `goal` says what the phone keeps after the task was done; everything else must be as it was before. So a
task that was not done, done with another value, or done together with more scores 0. Templates by group are in
web_tasks.py (general, shopping), app_tasks.py (apps, install) and world_tasks.py (world).
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from common.actions import Action, format_action
from envs import Task
from envs.phone import apps
from envs.phone.apps import browser
from envs.phone.words import SEEDS, World

GROUPS = ("general", "shopping", "apps", "world", "install")
NOT_IN_TRAINING = ("install",)
PER_WORLD = {"train": 5, "eval": 5, "test": 4}  # tasks of each world and group
TRIES = 60
SHORT, LONG = 15, 20  # horizons, in steps


@dataclass(frozen=True)
class Move:
    """One step of an oracle: act on the line `"label" kind [id]` of the screen; kind "" is any kind."""

    label: str
    op: str = "Click"
    argument: str | None = None
    kind: str = ""

    @property
    def thought(self):
        return ""


WAIT = Move("", "Wait")
BACK, HOME, ENTER = (Move("", "Press", key) for key in ("Back", "Home", "Enter"))
FREE = ("Press", "Wait", "Scroll Down", "Scroll Up", "Exit", "Go Back")  # moves on no element


def tap(label, kind=""):
    return Move(label, kind=kind)


def enter(label, words):
    """Type into a box, or set a slider."""
    return Move(label, "Type", words)


def search(label, words):
    """Type into a box, then Enter."""
    return Move(label, "Search", words)


def answer(words="done"):
    return Move("", "Exit", words)


def find(move, text):
    """(label, kind, id) of a move's line on a screen's text, None if it is not there; of several, the first one that
    is this label, then the first one whose label or value begins with it."""
    if move.op in FREE:
        return "", "", ""
    label, kind = re.escape(move.label.replace('"', "'")), move.kind or r"\w+"
    for pattern in (rf'^"({label})" ({kind}) \[(\d+)\]', rf'^"({label}[^"]*)" ({kind}) \[(\d+)\]'):
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found.groups()
    return None


def resolve(move, text):
    """The action text of a move on a screen's text."""
    found = find(move, text)
    if found is None:
        raise LookupError(f'no "{move.label}" {move.kind} on the screen')
    label, kind, id = found
    comment = f'# Element: "{label}" {kind} [{id}]' if id else ""
    return format_action(Action(move.op, id or None, move.argument, comment))


# --- what must be true in the end ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """`changes`: what the phone keeps otherwise than before, by the names of `record`. `answer`: what is to be said,
    one of several ways. `place`: what must hold for the phone's state besides (what is seen, what runs)."""

    changes: dict = field(default_factory=dict)
    answer: tuple = ()
    place: Callable | None = None


def record(state):
    """All that a phone keeps, as values that can be compared; no times, no order that does not matter."""
    store, shop, clock = state.store, state.shop, state.clock
    return {
        "settings": state.settings,
        "contacts": tuple(sorted(state.contacts, key=repr)),
        "threads": {thread.phone: tuple((m.words, m.sent) for m in thread.messages) for thread in state.threads},
        "alarms": clock.alarms,
        "cities": clock.cities,
        "notes": state.notes,
        "events": state.events,
        "files": state.files,
        "bookmarks": state.browser.bookmarks,
        "carts": tuple(sorted(state.browser.carts)),
        "cart": tuple(sorted(shop.cart, key=repr)),
        "orders": shop.orders,
        "wishes": shop.wishes,
        "apps": tuple(sorted(name for name, _ in store.apps)),
        "options": tuple(sorted(store.on)),
        "accounts": tuple(sorted(store.accounts)),
        "rated": tuple(sorted(store.rated)),
        "timer": clock.timer is not None,
        "stopwatch": clock.watch[1] is not None,
    }


def holds(goal, before, after, said):
    """Whether a goal is reached: what is kept, what is said, where the phone is."""
    if goal.answer and plain(said) not in [plain(one) for one in goal.answer]:
        return False
    return record(after) == record(before) | goal.changes and (goal.place is None or goal.place(after))


def plain(words):
    """An answer without what does not matter: case, spaces, a dollar sign, a final stop."""
    return " ".join((words or "").casefold().split()).strip(" .$\"'")


def shows(package, name, about=None):
    """For `place`: this screen of an app is in front."""

    def place(state):
        return state.front == package and state.screen.name == name and about in (None, state.screen.about)

    return place


def visits(*addresses):
    """For `place`: the browser in front shows one of these pages."""
    return lambda state: state.front == browser.PACKAGE and browser.address(state) in addresses


def runs(package):
    """For `place`: this app is in front."""
    return lambda state: state.front == package


# --- templates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A kind of task. `draw(state, rng)` gives slots (strings by name) for the phone as it begins, `goal(state, slots)`
    what must be true in the end; both raise LookupError for what cannot be. `oracle(state, slots)`: moves by what is
    visible, without the closing one where the task asks for no answer. Values that the instruction does not have may
    be read off the phone's screens by whoever follows it.
    """

    name: str
    group: str
    phrasings: tuple
    draw: Callable
    goal: Callable
    oracle: Callable
    horizon: int = SHORT


@lru_cache(512)
def fresh(seed):
    """The phone of a seed before anything was done; nothing in it asks or is late."""
    return apps.begin(World(seed), 640, 0)


@lru_cache(1)
def templates():
    """All templates by name."""
    from envs.phone import app_tasks, web_tasks, world_tasks

    listed = [*web_tasks.TEMPLATES, *app_tasks.TEMPLATES, *world_tasks.TEMPLATES]
    return {template.name: template for template in listed}


def build(template, seed, slots, phrasing, number):
    """The Task of `slots` on the phone of a seed. Raises LookupError if it cannot be, or is done before it begins."""
    state = fresh(seed)
    goal = template.goal(state, slots)
    if holds(goal, state, state, None):
        raise LookupError("nothing to do")
    world = state.world
    config = {"template": template.name, "slots": slots, "phrasing": phrasing}
    return Task(
        task_id=f"phone-{template.group}-{seed}-{number}",
        site=template.group,
        instruction=phrasing.format(**slots),
        max_steps=template.horizon,
        split=world.split,
        seed=seed,
        template=template.name,
        steps=len(_closed(template.oracle(state, slots))),
        config=config,
    )


def draw(template, seed, rng, number=0):
    """A task of a template on the phone of a seed, None if there is none."""
    for _ in range(TRIES):
        try:
            slots = template.draw(fresh(seed), rng)
            return build(template, seed, slots, rng.choice(template.phrasings), number)
        except LookupError:
            continue
    return None


@lru_cache(32)
def group_tasks(split, group):
    """The tasks of a group, world by world, in big steps that reach every template; frozen by the split's seeds."""
    mine = [template for template in templates().values() if template.group == group]
    stride = next(n for n in range(len(mine) // 3 + 1, 1000) if math.gcd(n, len(mine)) == 1)
    turn, worlds = 0, []
    for seed in SEEDS[split]:
        rng, found, seen = World(seed).rng(f"tasks/{group}"), [], set()
        for _ in range(8 * PER_WORLD[split]):
            if len(found) == PER_WORLD[split]:
                break
            task = draw(mine[turn * stride % len(mine)], seed, rng, len(found))
            turn += 1
            if task and task.instruction not in seen:
                found.append(task)
                seen.add(task.instruction)
        worlds.append(found)
    return worlds


def split_tasks(split, groups=GROUPS):
    """All tasks of a split: every world's first task of every group, then every second one, ..; so any beginning of the
    list covers worlds, groups and templates evenly."""
    if split not in SEEDS:
        raise ValueError(f"split {split!r} is none of {', '.join(SEEDS)}")
    groups = [group for group in groups if split != "train" or group not in NOT_IN_TRAINING]
    worlds = list(zip(*(group_tasks(split, group) for group in groups)))
    return [mine[k] for k in range(PER_WORLD[split]) for world in worlds for mine in world if k < len(mine)]


def is_done(task, before, after, said):
    """Whether a task was solved: `before` and `after` are the phone's states, `said` the agent's answer."""
    template = templates()[task.template]
    return holds(template.goal(before, task.config["slots"]), before, after, said)


def oracle(task):
    """The moves that solve a task, the closing one included."""
    template, state = templates()[task.template], fresh(task.seed)
    return _closed(template.oracle(state, task.config["slots"]))


def _closed(moves):
    return moves if moves and moves[-1].op == "Exit" else [*moves, answer()]


# --- for templates ---------------------------------------------------------------------------------------------------


def require(holds, what="no such task"):
    if not holds:
        raise LookupError(what)


def pick(rng, values):
    """One of `values`, LookupError if there is none."""
    values = list(values)
    require(values)
    return rng.choice(values)


def app(label):
    """Moves from the home screen into an app, or from anywhere after HOME."""
    first = ("Messages", "Browser", "Contacts", "Store", "Shop", "Clock", "Calendar", "Settings")
    if label in first:
        return [tap(label, "item")]
    return [Move("", "Scroll Down"), tap(label, "item")]  # a swipe up opens the drawer
