"""The launcher: a home screen of two pages, the drawer with all apps, the apps used last."""

from dataclasses import replace

from envs.phone import apps
from envs.phone.screen import (
    LAUNCHER,
    NAVIGATION,
    STATUS,
    WIDTH,
    Widget,
    Window,
    bottom,
    box,
    home,
    open_app,
    page,
    swap,
    text,
    to,
)

DOCK = ("com.android.messaging", "org.cleangui.browser", "com.android.contacts", "org.cleangui.store")
FIRST = ("org.cleangui.shop", "com.android.deskclock", "com.android.calendar", "com.android.settings")


def _icon(state, package, left, top, width, ink):
    """An app's icon with its name under it, one thing to tap."""
    name, (glyph, colour) = apps.label(state, package), apps.icon(state, package)
    face = Widget("image", ((width - 48) // 2, 2, 48, 48), icon=glyph, size=26, ink="white", fill=colour, radius=16)
    words = text(name, 0, 52, width, 20, 12, align="center", ink=ink)
    return Widget(
        "row", (left, top, width, 74), id="icon", parts=(face, words), tap=lambda state: open_app(state, package)
    )


def _main(state):
    number = state.screen.get("page", 0)
    second = [package for package in apps.installed(state) if package not in (*DOCK, *FIRST)]
    shown = FIRST if number == 0 else second[:12]
    parts = []
    if number == 0:
        words = state.time.strftime("%A, %B ") + str(state.time.day)
        clock = state.time.strftime("%H:%M") if state.settings.whole_day else state.time.strftime("%I:%M").lstrip("0")
        parts += [
            text(clock, 24, 56, 312, 64, 56, ink="white"),
            text(words, 26, 122, 300, 26, 17, ink="white"),
        ]
    first = state.height - NAVIGATION - 250 if number == 0 else 60
    parts += [_icon(state, p, 12 + 84 * (i % 4), first + 92 * (i // 4), 84, "white") for i, p in enumerate(shown)]
    low = state.height - NAVIGATION - 88
    for i in range(2):
        side = 8 if i == number else 6
        spot = (WIDTH // 2 - 9 + 14 * i, low - 22, side, side)
        parts.append(Widget("image", spot, fill="white", radius=4, label=f"Page {i + 1} of 2" if i == number else ""))
    parts += [_icon(state, package, 12 + 84 * i, low, 84, "white") for i, package in enumerate(DOCK)]
    root = Widget("window", (0, 0, WIDTH, state.height), parts=tuple(parts), fill="wallpaper", flick=_flick)
    return Window(LAUNCHER, ".Launcher", root)


def _flick(state, way):
    number = state.screen.get("page", 0)
    if way == "up":
        return to("drawer")(state)
    if way in ("left", "right"):
        return swap(state, state.screen.set(page=min(max(number + (1 if way == "left" else -1), 0), 1)))
    return state


def _drawer(state):
    """All apps, by name; the field above them finds one."""
    words = state.screen.get("find").lower()
    named = sorted((apps.label(state, package), package) for package in apps.installed(state))
    found = [package for name, package in named if words in name.lower()]
    top = STATUS + 64
    rows = [
        Widget("group", (0, 0, WIDTH, 88), parts=tuple(
            _icon(state, package, 12 + 84 * i, 6, 84, "ink") for i, package in enumerate(found[start:start + 4])))
        for start in range(0, len(found), 4)
    ]  # fmt: skip
    shown = page(state, "", rows, bar=False)
    find = box(state, "find", "Search apps", 16, STATUS + 8, WIDTH - 32, 46, fill="card", line="", radius=23,
               icon="search", enter=(lambda state: open_app(state, found[0])) if found else None)  # fmt: skip
    listed = shown.root.parts[0]
    room = bottom(state) - top
    most = max(sum(row.box[3] for row in rows) + 8 - room, 0)
    listed = replace(listed, box=(0, top, WIDTH, room), scroll=(min(listed.scroll[0], most), most))
    flick = (lambda state, way: home(state) if way == "down" else state) if not state.screen.scroll else None
    root = replace(shown.root, parts=(find, listed), flick=flick)
    return replace(shown, root=root, activity=".Drawer")


def _recents(state):
    """A card for each app that runs, the last used first."""
    parts, running = [], [package for package, _ in state.stacks if package != LAUNCHER]
    for i, package in enumerate(running[:4]):
        name, (glyph, colour) = apps.label(state, package), apps.icon(state, package)
        screens = dict(state.stacks)[package]
        inner = (
            Widget("image", (16, 16, 40, 40), icon=glyph, size=22, ink="white", fill=colour, radius=13),
            text(name, 70, 12, 180, 24, 17, bold=True, id="title"),
            text(
                "Last used" if i == 0 else f"{len(screens)} screen{'s' * (len(screens) > 1)} open",
                70,
                38,
                180,
                20,
                13,
                ink="soft",
            ),
        )
        parts.append(
            Widget("row", (24, 56 + 104 * i, 264, 92), fill="card", radius=20, parts=inner, id="task",
                   tap=lambda state, package=package: open_app(state, package))
        )  # fmt: skip
        close = Widget("imagebutton", (292, 80 + 104 * i, 44, 44), icon="close", label=f"Close {name}", ink="white",
                       tap=lambda state, package=package: _end(state, package))  # fmt: skip
        parts.append(close)
    if not running:
        parts.append(text("No recent apps", 0, 240, WIDTH, 30, 17, ink="white", align="center"))
    else:
        clear = Widget("button", (120, state.height - NAVIGATION - 72, 120, 44), "Clear all", fill="card", radius=22,
                       align="center", bold=True, tap=_end_all)  # fmt: skip
        parts.append(clear)
    root = Widget("window", (0, 0, WIDTH, state.height), parts=tuple(parts), fill="wallpaper")
    return Window(LAUNCHER, ".Recents", root)


def _end(state, package):
    return replace(state, stacks=tuple(pair for pair in state.stacks if pair[0] != package))


def _end_all(state):
    return home(replace(state, stacks=tuple(pair for pair in state.stacks if pair[0] == LAUNCHER)))


SCREENS = {"main": _main, "drawer": _drawer, "recents": _recents}
