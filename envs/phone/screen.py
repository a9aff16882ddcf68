"""What the simulated phone is made of: its state, the widgets that a screen shows, and the moves between screens.

A screen is described once, as a tree of Widgets with boxes. The picture (paint.py), what a tap hits and the hierarchy
that uiautomator writes (device.py) all come from that tree. Lengths are in units of 1/360 of the screen's width. What a
tap does is a function from one State to the next; nothing is ever changed in place, so a State is a snapshot.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache

from envs.phone.glyphs import wrap
from envs.phone.words import World

WIDTH = 360
STATUS, BAR, NAVIGATION = 24, 52, 40  # heights of the status bar, an app's bar, the bar with Back, Home and Recents
KEYBOARD = 208
EPOCH = datetime(2026, 1, 1)
LAUNCHER = "com.android.launcher3"


@dataclass(frozen=True, slots=True)
class Widget:
    """A thing on the screen. `box` is left, top, width, height in its parent; `kind` gives uiautomator's class."""

    kind: str
    box: tuple
    text: str = ""
    id: str = ""
    label: str = ""  # for who cannot see: the content description
    tap: Callable | None = None  # State -> State
    hold: Callable | None = None
    slide: Callable | None = None  # (State, percent) -> State
    flick: Callable | None = None  # of a window: (State, "up", "down", "left" or "right") -> State
    enter: Callable | None = None  # of a field: what the Enter key does
    on: bool | None = None  # of what can be checked
    value: int = 0  # of a slider, in percent
    hint: str = ""
    focused: bool = False
    scroll: tuple | None = None  # of a list: (offset, the largest offset)
    parts: tuple = ()
    # how it looks: colours are names of paint.py's palette or (r, g, b)
    size: int = 14
    ink: object = "ink"
    fill: object = ""
    line: object = ""
    radius: int = 0
    align: str = "left"
    bold: bool = False
    icon: str = ""
    wrapped: bool = False


@dataclass(frozen=True)
class Screen:
    """One screen of an app's stack: its name, what it is about, what was entered and not saved yet."""

    name: str
    about: object = None
    draft: tuple = ()  # ((key, value), ..)
    focus: str = ""  # the field that is typed into
    scroll: int = 0
    dialog: str = ""

    def get(self, key, default=""):
        return dict(self.draft).get(key, default)

    def set(self, **values):
        return replace(self, draft=tuple(sorted((dict(self.draft) | values).items())))


@dataclass(frozen=True)
class State:
    """A whole phone. `stacks` are the apps that run, (package, screens), the last used first; the other fields after
    `height` are what the apps keep, each an immutable value of its own module."""

    world: World
    now: float  # seconds after EPOCH, by the phone's own clock
    stacks: tuple
    front: str = LAUNCHER
    height: int = 640
    keyboard: str = ""  # "", "abc", "ABC", "123"
    asks: tuple = ()  # packages that ask for a permission when they are next in front
    toast: tuple = ("", 0.0)  # a message, and when it goes away
    shown: object = None  # while the screen is late: the State it still shows ..
    ready: float = 0.0  # .. until then
    inputs: int = 0
    settings: object = None
    contacts: tuple = ()
    threads: tuple = ()
    clock: object = None
    notes: tuple = ()
    events: tuple = ()
    files: tuple = ()
    browser: object = None
    shop: object = None
    store: object = None

    @property
    def time(self):
        return EPOCH + timedelta(seconds=int(self.now))

    @property
    def screen(self):
        """The screen in front."""
        return dict(self.stacks)[self.front][-1]


@dataclass(frozen=True)
class Window:
    """What is in front: `root` takes the touches, `behind` is only seen (the page under a dialog)."""

    package: str
    activity: str
    root: Widget
    behind: Widget | None = None
    dismiss: Callable | None = None  # what a tap beside a dialog does


# --- moves between screens -----------------------------------------------------------------------------------------


def swap(state, screen):
    """`screen` in the place of the one in front."""
    return with_stack(state, state.front, (*dict(state.stacks)[state.front][:-1], screen))


def with_stack(state, package, stack):
    others = tuple(pair for pair in state.stacks if pair[0] != package)
    mine = ((package, stack),) if stack else ()
    return replace(state, stacks=(*mine, *others))


def open_screen(state, name, about=None, **draft):
    """One screen deeper in the app in front."""
    stack = dict(state.stacks)[state.front]
    return hide_keyboard(with_stack(state, state.front, (*stack, Screen(name, about).set(**draft))))


def open_app(state, package, *screens):
    """An app in front: as it was left, or with `screens`, or from its first screen."""
    stack = screens or dict(state.stacks).get(package) or (Screen("main"),)
    return replace(hide_keyboard(with_stack(state, package, tuple(stack))), front=package)


def hide_keyboard(state):
    return replace(state, keyboard="") if state.keyboard else state


def leave(state):
    """One screen back; out of the app from its first one."""
    state = hide_keyboard(state)
    stack = dict(state.stacks)[state.front]
    if len(stack) > 1:
        return with_stack(state, state.front, stack[:-1])
    if state.front == LAUNCHER:
        return state
    return home(with_stack(state, state.front, ()))


def home(state):
    return open_app(replace(state, front=LAUNCHER), LAUNCHER, Screen("main"))


def back(state):
    """What the Back key does: away with the keyboard, a dialog, a screen, the app."""
    if state.keyboard:
        return hide_keyboard(state)
    if state.screen.dialog:
        return close_dialog(state)
    return leave(state)


def close_dialog(state):
    return swap(hide_keyboard(state), replace(state.screen, dialog="", focus=""))


def say(state, text):
    """A message at the bottom, for three seconds."""
    return replace(state, toast=(text, state.now + 3))


def to(name, about=None, **draft):
    """A tap that opens a screen."""
    return lambda state: open_screen(state, name, about, **draft)


def draft(**values):
    """A tap that changes what the screen holds."""
    return lambda state: swap(state, state.screen.set(**values))


def dialog(name):
    """A tap that opens a dialog of the screen; what it holds is set by `values`."""
    return lambda state: swap(hide_keyboard(state), replace(state.screen, dialog=name, focus=""))


def then(*taps):
    """A tap that does one after the other."""

    def tap(state):
        for one in taps:
            state = one(state)
        return state

    return tap


def closing(tap):
    """A tap in a dialog, which goes away before."""
    return then(close_dialog, tap)


# --- widgets -------------------------------------------------------------------------------------------------------


def text(words, left, top, width, height, size=14, **look):
    return Widget("text", (left, top, width, height), words, size=size, **look)


def image(icon, left, top, side, label="", size=22, **look):
    """A picture in a square; a button where it has a `tap`."""
    kind = "imagebutton" if look.get("tap") else "image"
    return Widget(kind, (left, top, side, side), icon=icon, label=label, size=size, align="center", **look)


def button(words, left, top, width, tap, height=40, quiet=False, **look):
    """A button with words on it; a `quiet` one has no colour of its own."""
    style = {"ink": "accent", "line": "line"} if quiet else {"ink": "on accent", "fill": "accent"}
    style |= {"radius": height // 2, "align": "center", "bold": True, "size": 14}
    return Widget("button", (left, top, width, height), words, tap=tap, **(style | look))


def paragraph(words, size=14, ink="ink", pad=6, bold=False):
    """Text over the whole width, as high as it needs to be."""
    high = round(len(wrap(words, size, WIDTH - 32)) * size * 1.4) + 2 * pad
    part = text(words, 16, 0, WIDTH - 32, high, size, ink=ink, wrapped=True, bold=bold)
    return Widget("group", (0, 0, WIDTH, high), parts=(part,))


def header(words):
    """The name of a group of rows."""
    return Widget("group", (0, 0, WIDTH, 34), parts=(text(words, 16, 8, WIDTH - 32, 24, 13, ink="accent", bold=True),))


def row(title, note="", tap=None, hold=None, icon="", tint="soft", disc="", end=None, id="", value=""):
    """A line of a list: a picture, a title, a note under it and something at its end, all one thing to tap.

    `disc` is the colour of a disc behind the picture; `icon` may be a letter.
    """
    high = 60 if note else 52
    left, parts = 16, []
    if icon:
        look = {"fill": disc, "radius": 18, "ink": "white"} if disc else {"ink": tint}
        if len(icon) == 1:
            parts.append(Widget("image", (14, high // 2 - 18, 36, 36), icon, align="center", size=16, **look))
        else:
            parts.append(image(icon, 14, high // 2 - 18, 36, size=20 if disc else 22, **look))
        left = 64
    right = WIDTH - 12 - (end.box[2] + 8 if end else 0)
    right -= 92 if value else 0
    parts.append(text(title, left, 8 if note else 0, right - left, 24 if note else high, 16, id="title"))
    if note:
        parts.append(text(note, left, 32, right - left, 20, 13, ink="soft", id="summary"))
    if value:
        parts.append(text(value, right + 4, 0, 88, high, 14, ink="soft", align="right"))
    if end:
        parts.append(replace(end, box=(WIDTH - 12 - end.box[2], (high - end.box[3]) // 2, *end.box[2:])))
    return Widget("row", (0, 0, WIDTH, high), id=id, tap=tap, hold=hold, parts=tuple(parts))


def switch(on):
    return Widget("switch", (0, 0, 44, 24), on=on)


def check(on):
    return Widget("check", (0, 0, 24, 24), on=on)


def radio(on):
    return Widget("radio", (0, 0, 24, 24), on=on)


def toggle(title, on, tap, note="", icon=""):
    """A row with a switch."""
    return row(title, note, tap, icon=icon, end=switch(on))


def slider(title, percent, slide, icon="sound"):
    """A row with a slider, which takes a tap or a swipe."""
    bar = Widget("slider", (60, 24, WIDTH - 84, 36), label=title, value=percent, slide=slide, id="slider")
    parts = image(icon, 14, 18, 36, ink="soft"), text(title, 64, 4, 220, 22, 14), bar
    return Widget("group", (0, 0, WIDTH, 64), parts=parts)


def box(state, key, hint, left=16, top=0, width=WIDTH - 32, height=48, enter=None, **look):
    """A field to type into; what it holds is the screen's draft under `key`. `enter` is what the Enter key does."""
    screen = state.screen

    def focus(state):
        return replace(swap(state, replace(state.screen, focus=key)), keyboard=state.keyboard or "abc")

    shown, parts = screen.get(key), ()
    focused = screen.focus == key
    if focused and shown:
        middle = min(height, 48) // 2
        parts = (image("close", width - 40, middle - 20, 40, f"Clear {hint}", 16, tap=draft(**{key: ""}), ink="soft"),)
    style = {"line": "line", "radius": 8} | look
    return Widget("field", (left, top, width, height), shown, tap=focus, hint=hint, focused=focused, id=key, size=16,
                  enter=enter, parts=parts, **style)  # fmt: skip


def entry(state, key, hint, high=48, enter=None):
    """A field over the whole width."""
    return Widget("group", (0, 0, WIDTH, high + 12), parts=(box(state, key, hint, top=6, height=high, enter=enter),))


def search_box(state, key, hint, enter=None):
    """A field as rows of a list have it on top."""
    field = box(state, key, hint, left=12, top=6, width=WIDTH - 24, height=44, enter=enter, fill="card", line="",
                radius=22, icon="search")  # fmt: skip
    return Widget("group", (0, 0, WIDTH, 58), parts=(field,))


def wide_button(words, tap, quiet=False, **look):
    """A button on a line of its own."""
    return Widget("group", (0, 0, WIDTH, 56), parts=(button(words, 16, 8, WIDTH - 32, tap, quiet=quiet, **look),))


def line_of(*parts, height=56):
    """Widgets side by side, in a line of the list."""
    return Widget("group", (0, 0, WIDTH, height), parts=parts)


def bottom(state):
    """Where the room of apps ends: at the keyboard, if it is up."""
    return state.height - NAVIGATION - (KEYBOARD if state.keyboard else 0)


def stack_up(rows, room, offset):
    """Rows under each other in a list `room` high, moved up by `offset`: (those that are seen, the largest offset)."""
    high = sum(one.box[3] for one in rows)
    most = max(high + 8 - room, 0)
    offset, seen, top = min(offset, most), [], 0
    for one in rows:
        if top + one.box[3] > offset and top - offset < room:
            seen.append(replace(one, box=(0, top - offset, *one.box[2:])))
        top += one.box[3]
    return tuple(seen), (offset, most)


def page(state, title, rows, up=True, buttons=(), fab=None, tabs=(), foot=None, bar=True, over=None):
    """An app's screen: a bar with a title and `buttons` [(icon, label, tap)], the rows of a list that scrolls, a round
    button `fab` (icon, label, tap), `tabs` [(icon, label, chosen, tap)] or a `foot` at the bottom, a dialog `over` it.
    """
    screen, end, parts = state.screen, bottom(state), []
    top = STATUS + (BAR if bar else 0)
    low = end - (56 if tabs and not state.keyboard else 0) - (foot.box[3] if foot else 0)
    seen, scroll = stack_up(rows, low - top, screen.scroll)
    if bar:
        parts.append(Widget("bar", (0, STATUS, WIDTH, BAR), parts=_bar(title, up, buttons), fill="paper"))
    parts.append(Widget("list", (0, top, WIDTH, low - top), parts=seen, scroll=scroll, id="list"))
    if tabs and not state.keyboard:
        wide = WIDTH // len(tabs)
        shown = [_tab(i * wide, wide, *one) for i, one in enumerate(tabs)]
        parts.append(Widget("group", (0, low, WIDTH, 56), parts=tuple(shown), fill="card"))
    if foot:
        parts.append(replace(foot, box=(0, low, *foot.box[2:])))
    if fab and not state.keyboard:
        icon, label, tap = fab
        parts.append(
            image(icon, WIDTH - 72, low - 72, 56, label, 26, tap=tap, fill="accent", ink="on accent", radius=18)
        )
    root = Widget("window", (0, 0, WIDTH, state.height), parts=tuple(parts), fill="paper")
    activity = "." + "".join(part.title() for part in screen.name.split("_"))
    if over is None:
        return Window(state.front, activity, root)
    return replace(over, package=state.front, activity=activity, behind=root)


def _bar(title, up, buttons):
    parts, left = [], 16
    if up:
        parts.append(image("back", 4, 4, 44, "Navigate up", tap=leave, ink="ink"))
        left = 54
    right = WIDTH - 4 - 44 * len(buttons)
    parts.append(text(title, left, 0, right - left, BAR, 20, id="title", bold=True))
    for i, (icon, label, tap) in enumerate(buttons):
        parts.append(image(icon, right + 44 * i, 4, 44, label, tap=tap, ink="ink"))
    return tuple(parts)


def _tab(left, wide, icon, label, chosen, tap):
    ink = "accent" if chosen else "soft"
    parts = image(icon, wide // 2 - 12, 7, 24, ink=ink), text(label, 0, 32, wide, 18, 12, ink=ink, align="center")
    return Widget("tab", (left, 0, wide, 56), tap=tap, on=chosen, parts=parts)


# --- dialogs -------------------------------------------------------------------------------------------------------


def _card(state, parts, high, wide=300):
    top = STATUS + max((bottom(state) - STATUS - high) // 2, 4)
    card = Widget("group", ((WIDTH - wide) // 2, top, wide, high), parts=tuple(parts), fill="card", radius=20)
    return Window("", "", card, dismiss=close_dialog)


def ask(state, title, words, yes, tap, no="Cancel", parts=(), high=0, refuse=close_dialog):
    """A dialog with a question and two buttons; `parts` of a height `high` between them."""
    lines = len(wrap(words, 14, 252)) if words else 0
    top = 56 + round(lines * 20)
    inner = [text(title, 24, 16, 252, 32, 18, bold=True, id="alertTitle")]
    if words:
        inner.append(text(words, 24, 52, 252, lines * 20, 14, ink="soft", wrapped=True, id="message"))
    inner += [replace(part, box=(part.box[0], part.box[1] + top, *part.box[2:])) for part in parts]
    low = top + high + 8
    wide = 128
    inner += [
        button(no, 18, low, wide, refuse, quiet=True, line="", id="button2"),
        button(yes, 300 - wide - 18, low, wide, closing(tap) if refuse is close_dialog else tap, id="button1"),
    ]
    return _card(state, inner, low + 52)


def prompt(state, title, key, hint, yes, tap):
    """A dialog with one field."""
    return ask(state, title, "", yes, tap, parts=(box(state, key, hint, 24, 0, 252, fill="card"),), high=56)


def choose(state, title, options, chosen, pick):
    """A dialog with radio buttons; `pick(option)` is what a tap on one does, after which the dialog goes away."""
    step = 44 if len(options) < 9 else 38
    parts = [text(title, 24, 14, 252, 30, 18, bold=True, id="alertTitle")]
    for i, option in enumerate(options):
        inner = Widget("radio", (16, step // 2 - 12, 24, 24), on=option == chosen), text(option, 52, 0, 220, step, 16)
        parts.append(Widget("row", (0, 52 + step * i, 300, step), tap=closing(pick(option)), parts=inner))
    return _card(state, parts, 52 + step * len(options) + 12)


def menu(state, options):
    """A menu at the upper right: [(words, tap)]."""
    parts = [
        Widget("row", (0, 6 + 44 * i, 190, 44), tap=closing(tap), parts=(text(words, 18, 0, 160, 44, 16, id="title"),))
        for i, (words, tap) in enumerate(options)
    ]
    card = Widget("group", (162, STATUS + 6, 190, 44 * len(options) + 12), parts=tuple(parts), fill="card", radius=8)
    return Window("", "", card, dismiss=close_dialog)


AVATARS = (
    (26, 115, 232), (217, 48, 37), (24, 128, 56), (147, 52, 230), (227, 116, 0), (0, 121, 130), (194, 24, 91),
    (93, 64, 55),
)  # fmt: skip


@lru_cache(1024)
def colour(name):
    """A colour that belongs to a name."""
    return AVATARS[sum(map(ord, name)) % len(AVATARS)]


def hour(hours, minutes, whole_day=False):
    """A time of day as the phone writes it: "7:05 PM", or "19:05"."""
    if whole_day:
        return f"{hours:02d}:{minutes:02d}"
    return f"{(hours - 1) % 12 + 1}:{minutes:02d} {'AM' if hours < 12 else 'PM'}"
