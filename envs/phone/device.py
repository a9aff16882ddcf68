"""A simulated Android phone, in this process: touches and keys in; picture and hierarchy out.

Everything that it is, is one immutable State: reading `state` is a snapshot, assigning it restores the phone. Time is
the phone's own (`advance`), what is random comes from the seed, and equal inputs give equal phones.
"""

import random
import re
import zlib
from dataclasses import replace
from functools import lru_cache
from xml.sax.saxutils import escape

from common.actions import ActionError
from envs.phone import apps
from envs.phone.paint import NAVIGATION_KEYS, Painter, appearance, keys
from envs.phone.screen import (
    LAUNCHER,
    NAVIGATION,
    WIDTH,
    Screen,
    ask,
    back,
    bottom,
    hide_keyboard,
    home,
    open_app,
    swap,
    with_stack,
)
from envs.phone.words import World

BACK, HOME, TAB, ENTER, DELETE, RECENTS = 4, 3, 61, 66, 67, 187
MOVE_END, FORWARD_DELETE = 123, 112
HELD = 0.5  # seconds after which a touch is a long press
MOVED = 12  # units that a touch may move and still be a tap
PERMISSIONS = "com.android.permissioncontroller"
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CLASSES = {
    "window": "android.widget.FrameLayout", "group": "android.view.ViewGroup", "bar": "android.view.ViewGroup",
    "row": "android.widget.LinearLayout", "tab": "android.widget.FrameLayout", "text": "android.widget.TextView",
    "list": "androidx.recyclerview.widget.RecyclerView", "button": "android.widget.Button",
    "image": "android.widget.ImageView", "imagebutton": "android.widget.ImageButton",
    "field": "android.widget.EditText", "switch": "android.widget.Switch", "check": "android.widget.CheckBox",
    "radio": "android.widget.RadioButton", "slider": "android.widget.SeekBar",
    "progress": "android.widget.ProgressBar", "dial": "android.view.View", "hand": "android.view.View",
}  # fmt: skip


class Device:
    """A phone with the content of `seed` and a screen of `size` pixels.

    `asks`: the share of apps that ask for a permission when they are first opened; `late`: the share of new screens
    that are seen only 0.5 to 2.5 seconds after the touch that opened them.
    """

    def __init__(self, seed, size=(360, 640), asks=0.2, late=0.03):
        self.size, self.asks, self.late = tuple(size), asks, late
        self._painter = Painter(self.size)
        self._scale = self.size[0] / WIDTH
        self._frame, self._dump = (None, None, None), (None, None)
        self.state = self.new(seed)

    def new(self, seed):
        """The state of a phone like this one that is new and has the content of a seed."""
        return apps.begin(World(seed), round(self.size[1] / self._scale), self.asks)

    # --- what an app's driver does ----------------------------------------------------------------------------------

    @property
    def packages(self):
        """The packages that are installed."""
        return [LAUNCHER, *apps.installed(self.state)]

    def start(self, package):
        """Open an app at its first screen, as its icon does when it was not running; False if it is not installed."""
        if package not in self.packages:
            return False
        self._do(home if package == LAUNCHER else lambda state: open_app(state, package))
        return True

    def stop(self, package):
        """End an app: it will begin at its first screen."""
        state = self.state
        if package == state.front != LAUNCHER:
            state = home(state)
        self._do(lambda _: state if package == LAUNCHER else with_stack(state, package, ()))

    def clear(self, package):
        """Forget all that an app keeps: what it held when the phone was new comes back."""
        self.stop(package)
        fresh = apps.begin(self.state.world, self.state.height, 0)
        self.state = replace(self.state, **{name: getattr(fresh, name) for name in apps.FIELDS.get(package, ())})

    def foreground(self):
        """(package, activity) of what is in front."""
        front = window(self.state)
        return front.package, front.activity

    # --- inputs -----------------------------------------------------------------------------------------------------

    def tap(self, x, y):
        self._touch(x, y, "tap")

    def double_tap(self, x, y):
        self._touch(x, y, "tap")
        self._touch(x, y, "tap")

    def long_press(self, x, y, seconds=1.0):
        self.advance(seconds)
        self._touch(x, y, "hold" if seconds >= HELD else "tap")

    def swipe(self, x0, y0, x1, y1, seconds=0.3):
        """A finger from one pixel to another. One that hardly moves is a tap, or a long press if it takes its time."""
        if max(abs(x1 - x0), abs(y1 - y0)) < MOVED * self._scale:
            self.long_press(x0, y0, seconds)
            return
        self.advance(seconds)
        x, y, dx, dy = (value / self._scale for value in (x0, y0, x1 - x0, y1 - y0))
        self._do(lambda state: _swiped(state, x, y, dx, dy))

    def text(self, string):
        """Type into the field that has the focus; nothing happens without one. Line ends are Enter, tabs Tab, as where
        the text comes by adb. Raises ActionError for what no keyboard has."""
        if found := re.search(r"[^ -\x7e\n\t\r\x80-\ud7ff\ue000-\U0010ffff]", string):
            raise ActionError(f"{found[0]!r} cannot be typed on a phone")
        for part in re.split(r"([\n\t])", re.sub(r"\r\n?", "\n", string)):
            if part in ("\n", "\t"):
                self.key(ENTER if part == "\n" else TAB)
            elif part:  # no input in the sense of `_do`: one text may come in several pieces
                self.state = _typed(self.state, part)

    def key(self, code):
        """An Android key code: 4 Back, 3 Home, 61 Tab, 66 Enter, 67 Delete, 187 Recents; any other one does nothing."""
        if code not in (MOVE_END, FORWARD_DELETE):  # the caret is always at the end
            self._do(lambda state: _pressed(state, code))

    def fill(self, held, words, unsure=False):
        """Put a text in the place of the one that the focused field holds."""
        for _ in held:
            self.key(DELETE)
        self.text(words)

    def advance(self, seconds):
        """Let the phone's own clock run."""
        state = replace(self.state, now=self.state.now + seconds)
        if state.shown is not None and state.now >= state.ready:
            state = replace(state, shown=None)
        self.state = state

    def _touch(self, x, y, how):
        x, y = x / self._scale, y / self._scale
        self._do(lambda state: _touched(state, x, y, how))

    def _do(self, change):
        """`change` the state; a new screen may be late."""
        before, after = self.state, change(self.state)
        after = replace(after, inputs=before.inputs + 1)
        draw = random.Random(zlib.crc32(f"{before.world.seed}/{before.inputs}/late".encode()))
        if before.shown is None and draw.random() < self.late and _place(before) != _place(after):
            after = replace(after, shown=before, ready=after.now + draw.uniform(0.5, 2.5))
        self.state = after

    # --- what is seen -----------------------------------------------------------------------------------------------

    def screenshot(self):
        """The picture of the screen, RGB. The same object until it changes: copy it before you draw on it."""
        seen = self._seen()
        if self._frame[0] is not seen:
            look, picture = appearance(window(seen), seen), self._frame[1]
            if look != self._frame[2]:
                picture = self._painter.paint(window(seen), seen, seen.height)
            self._frame = seen, picture, look
        return self._frame[1]

    def hierarchy(self):
        """The window in front as `uiautomator dump` writes it."""
        seen = self._seen()
        if self._dump[0] is not seen:
            self._dump = seen, _xml(window(seen), seen, self._scale)
        return self._dump[1]

    def _seen(self):
        return self.state if self.state.shown is None else self.state.shown


_last = None, None  # the state whose window was asked for last, and the window: it is asked for several times


def window(state):
    """What is in front: the app's window, or the question for a permission over it."""
    global _last
    known, made = _last
    if known is not state:
        made = _window(state)
        _last = state, made
    return made


def _window(state):
    inner = apps.window(state)
    if state.front not in state.asks:
        return inner
    label = apps.label(state, state.front)

    def answer(state):
        return replace(state, asks=tuple(package for package in state.asks if package != state.front))

    words = f"Allow {label} to {apps.permission(state.front)}?"
    over = ask(state, "Permission", words, "Allow", answer, "Don't allow", refuse=answer)
    behind = inner.behind or inner.root
    return replace(over, package=PERMISSIONS, activity=".GrantPermissionsActivity", behind=behind, dismiss=None)


# --- inputs ----------------------------------------------------------------------------------------------------------


def walk(widget, left=0, top=0, clip=(0, 0, 10_000, 10_000), depth=0):
    """(widget, its box on the screen as left, top, right, bottom, depth) of a tree, as far as it is seen."""
    x, y, width, height = widget.box
    left, top = left + x, top + y
    clip = max(clip[0], left), max(clip[1], top), min(clip[2], left + width), min(clip[3], top + height)
    if clip[0] >= clip[2] or clip[1] >= clip[3]:
        return
    yield widget, clip, depth
    for part in widget.parts:
        yield from walk(part, left, top, clip, depth + 1)


def _seen_part(state):
    return 0, 0, WIDTH, bottom(state)


def _hit(state, x, y, wanted):
    """The widget under a place that `wanted` holds for, the one that is painted last, and its box."""
    found = None
    for widget, box, _ in walk(window(state).root, clip=_seen_part(state)):
        if box[0] <= x < box[2] and box[1] <= y < box[3] and wanted(widget):
            found = widget, box
    return found


def _touched(state, x, y, how):
    if y >= state.height - NAVIGATION:
        return _pressed(state, NAVIGATION_KEYS[min(int(3 * x / WIDTH), 2)][1])
    if y >= bottom(state):
        struck = [key for (left, top, wide, high), _, key in keys(state.keyboard, state.height)
                  if left - 2 <= x < left + wide + 2 and top - 3 <= y < top + high + 3]  # fmt: skip
        return _struck(state, struck[0]) if struck else state
    found = _hit(state, x, y, lambda widget: widget.tap or widget.hold or widget.slide)
    front = window(state)
    if found is None:
        root = front.root
        inside = root.box[0] <= x < root.box[0] + root.box[2] and root.box[1] <= y < root.box[1] + root.box[3]
        return front.dismiss(state) if front.dismiss and not inside else state
    widget, box = found
    if widget.slide:
        return widget.slide(state, _percent(x, box))
    change = widget.hold if how == "hold" and widget.hold else widget.tap
    return change(state) if change else state


def _percent(x, box):
    return round(100 * min(max((x - box[0] - 12) / (box[2] - box[0] - 24), 0), 1))


def _swiped(state, x, y, dx, dy):
    if y >= bottom(state):
        return state
    found = _hit(state, x, y, lambda widget: widget.slide)
    if found:
        return found[0].slide(state, _percent(x + dx, found[1]))
    found = _hit(state, x, y, lambda widget: widget.scroll and widget.scroll[1])
    if found and abs(dy) >= abs(dx):
        offset, most = found[0].scroll
        return swap(state, replace(state.screen, scroll=round(min(max(offset - dy, 0), most))))
    flick = window(state).root.flick
    way = ("down" if dy > 0 else "up") if abs(dy) >= abs(dx) else ("right" if dx > 0 else "left")
    return flick(state, way) if flick else state


def _focused(state):
    """The field that is typed into, or None."""
    return next(
        (widget for widget, _, _ in walk(window(state).root) if widget.kind == "field" and widget.focused), None
    )


def _typed(state, string):
    focused = _focused(state)
    if focused is None:
        return state
    shift = "abc" if state.keyboard == "ABC" else state.keyboard
    return replace(swap(state, state.screen.set(**{focused.id: focused.text + string})), keyboard=shift)


def _struck(state, key):
    """A key of the on-screen keyboard."""
    if key == "shift":
        return replace(state, keyboard="abc" if state.keyboard == "ABC" else "ABC")
    if key == "123":
        return replace(state, keyboard="abc" if state.keyboard == "123" else "123")
    if key in ("delete", "enter"):
        return _pressed(state, DELETE if key == "delete" else ENTER)
    return _typed(state, key)


def _pressed(state, code):
    if code == HOME:
        return home(state)
    if code == RECENTS:
        return open_app(state, LAUNCHER, Screen("main"), Screen("recents"))
    if code == BACK:
        if state.front in state.asks:
            return replace(state, asks=tuple(package for package in state.asks if package != state.front))
        return back(state)
    focused = _focused(state)
    if focused is None:
        return state
    if code == TAB:
        fields = [widget for widget, _, _ in walk(window(state).root) if widget.kind == "field"]
        return fields[(fields.index(focused) + 1) % len(fields)].tap(state)
    if code == DELETE:
        return swap(state, state.screen.set(**{focused.id: focused.text[:-1]}))
    if code == ENTER:
        if focused.box[3] > 60:  # of several lines
            return _typed(state, "\n")
        return focused.enter(state) if focused.enter else hide_keyboard(state)
    return state


def _place(state):
    screen = state.screen
    return state.front, screen.name, screen.about, screen.dialog


# --- the hierarchy ---------------------------------------------------------------------------------------------------


def _xml(front, state, scale):
    shown = [(w, b, d) for w, b, d in walk(front.root, clip=_seen_part(state)) if w.kind != "hand"]
    lines, open_at = [], []
    numbers = [0]
    for place, (widget, box, depth) in enumerate(shown):
        while open_at and open_at[-1] >= depth:
            open_at.pop()
            numbers.pop()
            lines.append("</node>")
        leaf = place + 1 == len(shown) or shown[place + 1][2] <= depth
        lines.append(f"<node {_attributes(widget, box, front.package, numbers[-1], scale)}{' /' if leaf else ''}>")
        numbers[-1] += 1
        if not leaf:
            open_at.append(depth)
            numbers.append(0)
    lines += ["</node>"] * len(open_at)
    head = "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>"
    return f'{head}<hierarchy rotation="0">{"".join(lines)}</hierarchy>'


def _attributes(widget, box, package, number, scale):
    left, top, right, low = (round(edge * scale) for edge in box)
    kind, checkable = widget.kind, widget.kind in ("switch", "check", "radio")
    words = {"image": "", "slider": f"{widget.value}.0"}.get(kind, widget.text)
    name = f"{package}:id/{widget.id}" if widget.id else ""
    hint = f" hint={_quoted(widget.hint)}" if kind == "field" else ""
    return (
        f'index="{number}" text={_quoted(words)} resource-id="{name}" class="{CLASSES[kind]}" package="{package}" '
        f'content-desc={_quoted(widget.label)} checkable="{_flag(checkable)}" '
        f'checked="{_flag(checkable and widget.on)}" clickable="{_flag(widget.tap)}" enabled="true" '
        f'focusable="{_flag(widget.tap or widget.slide)}" focused="{_flag(widget.focused)}" '
        f'scrollable="{_flag(widget.scroll and widget.scroll[1])}" long-clickable="{_flag(widget.hold)}" '
        f'password="{_flag(widget.id == "password")}" selected="{_flag(kind == "tab" and widget.on)}" '
        f'bounds="[{left},{top}][{right},{low}]"{hint}'
    )


def _flag(value):
    return "true" if value else "false"


@lru_cache(8192)
def _quoted(words):
    words = NOT_IN_XML.sub(".", words)  # what uiautomator puts in their place
    return '"' + escape(words, {'"': "&quot;", "\n": "&#10;"}) + '"'
