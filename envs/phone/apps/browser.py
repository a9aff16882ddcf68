"""The browser: an address bar, tabs, private ones too, bookmarks, and the pages of the small web (web.py)."""

from dataclasses import dataclass, replace

from envs.phone.apps import web
from envs.phone.screen import (
    STATUS,
    WIDTH,
    Screen,
    Widget,
    box,
    colour,
    dialog,
    hide_keyboard,
    image,
    leave,
    line_of,
    menu,
    open_screen,
    page,
    paragraph,
    row,
    say,
    search_box,
    swap,
    text,
    to,
    wide_button,
    with_stack,
)
from envs.phone.words import everything

PACKAGE, LABEL, ICON = "org.cleangui.browser", "Browser", ("globe", (66, 133, 244))
PERMISSION = "know where you are"


@dataclass(frozen=True)
class Browser:
    """`tabs`: (address, whether it is private); the one in front shows what the app's last screen is about."""

    tabs: tuple = (("", False),)
    current: int = 0
    bookmarks: tuple = ()
    carts: tuple = ()  # (site, what)


def begin(world, time):
    return {"browser": Browser()}


def address(state):
    """What the browser shows, "" where that is a new tab."""
    stack = dict(state.stacks).get(PACKAGE, ())
    shown = [screen.about for screen in stack if screen.name == "main"]
    return (shown[-1] if shown else None) or ""


def go(state, where):
    """To another page, in the same tab."""
    return open_screen(_kept(state, where), "main", where)


def _link(where):
    return lambda state: go(state, where)


def _kept(state, where):
    tabs, now = list(state.browser.tabs), state.browser.current
    tabs[now] = where, tabs[now][1]
    return replace(state, browser=replace(state.browser, tabs=tuple(tabs)))


def _show(state, number):
    """The tab of that number in front."""
    where = state.browser.tabs[number][0]
    state = replace(state, browser=replace(state.browser, current=number))
    return with_stack(hide_keyboard(state), PACKAGE, (Screen("main", where),))


def _new_tab(state, private=False):
    state = _kept(state, address(state))
    tabs = (*state.browser.tabs, ("", private))
    return _show(replace(state, browser=replace(state.browser, tabs=tabs)), len(tabs) - 1)


def _close(state, number):
    tabs = tuple(tab for i, tab in enumerate(state.browser.tabs) if i != number) or (("", False),)
    state = replace(state, browser=replace(state.browser, tabs=tabs, current=min(state.browser.current, len(tabs) - 1)))
    return with_stack(state, PACKAGE, (Screen("main", tabs[state.browser.current][0]), Screen("tabs")))


def typed(words):
    """The address that words in the address bar lead to: they are one, or they are searched for."""
    words = " ".join(words.split())
    if "." in words and " " not in words:
        return words.lower().removeprefix("https://").removeprefix("http://").removeprefix("www.").rstrip("/")
    return f"{web.FINDER}/search/{words.replace(' ', '+')}"


def _main(state):
    screen, browser = state.screen, state.browser
    here = screen.about or ""
    private = browser.tabs[browser.current][1]

    def enter(state):
        words = state.screen.get("url").strip()
        return go(swap(state, replace(state.screen.set(url=""), focus="")), typed(words)) if words else state

    over = None
    if screen.dialog == "menu":
        over = menu(state, [
            ("New tab", _new_tab), ("New private tab", lambda state: _new_tab(state, True)),
            ("Add bookmark", lambda state: _mark(state, here)), ("Bookmarks", to("bookmarks")),
        ])  # fmt: skip
    shown = page(state, "", _blocks(state, here), bar=False, over=over)
    root = shown.behind or shown.root
    bar = box(state, "url", "Search or type web address", 10, STATUS + 6, 252, 42, enter, fill="card", line="",
              radius=21, icon="mask" if private else "search")  # fmt: skip
    if here and screen.focus != "url":
        bar = replace(bar, text=here)
    elif screen.focus != "url":
        bar = replace(bar, text="")
    tap = bar.tap
    bar = replace(bar, tap=lambda state: tap(swap(state, state.screen.set(url=""))))  # typing replaces the address
    count = str(len(browser.tabs))
    buttons = (
        image("tabs", 264, STATUS + 5, 44, f"Tabs, {count} open", tap=to("tabs"), ink="ink", size=26),
        text(count, 264, STATUS + 5, 44, 44, 12, align="center", bold=True),
        image("more", 308, STATUS + 5, 44, "More options", tap=dialog("menu"), ink="ink"),
    )
    top = STATUS + 54
    listed = root.parts[0]
    high = listed.box[3] - (top - STATUS)
    offset, most = listed.scroll
    rows = sum(part.box[3] for part in _blocks(state, here))
    most = max(rows + 8 - high, 0)
    listed = replace(listed, box=(0, top, WIDTH, high), scroll=(min(offset, most), most))
    root = replace(root, parts=(bar, *buttons, listed))
    return replace(shown, behind=root) if over else replace(shown, root=root)


def _mark(state, here):
    marks = tuple(sorted({*state.browser.bookmarks, here} - {""}))
    return say(replace(state, browser=replace(state.browser, bookmarks=marks)), "Bookmark added")


def _blocks(state, here):
    rows = []
    for block in web.page(state.world, here).blocks:
        kind, *words = block
        if kind == "title":
            rows.append(paragraph(words[0], 22, bold=True))
        elif kind == "text":
            rows.append(paragraph(words[0], 16))
        elif kind == "fact":
            rows.append(row(words[0], value=words[1]))
        elif kind == "link":
            rows.append(row(words[0], words[1], _link(words[2]), icon="globe"))
        elif kind == "search":
            rows.append(search_box(state, "query", words[0], lambda state, before=words[1]: _search(state, before)))
        elif kind == "add":
            rows.append(wide_button("Add to cart", lambda state, words=words: _add(state, *words)))
            mine = state.browser.carts.count(tuple(words))
            rows += [paragraph(f"{mine} in your cart", ink="soft")] if mine else []
            rows.append(
                wide_button("View cart", lambda state, site=words[0]: go(state, f"{site}.com/cart"), quiet=True)
            )
        elif kind == "cart":
            rows += _cart(state, words[0])
        else:
            rows += _shortcuts(state)
    return rows


def _search(state, before):
    words = "+".join(state.screen.get("query").split())
    return go(swap(state, replace(state.screen, focus="")), before + words) if words else state


def _add(state, site, what):
    carts = (*state.browser.carts, (site, what))
    return say(replace(state, browser=replace(state.browser, carts=carts)), "Added to cart")


def _cart(state, site):
    mine = [what for one, what in state.browser.carts if one == site]

    def remove(state, what):
        carts = list(state.browser.carts)
        carts.remove((site, what))
        return replace(state, browser=replace(state.browser, carts=tuple(carts)))

    rows = [paragraph("Your cart", 20, bold=True)]
    for what in mine:
        bin = image("trash", 0, 0, 44, f"Remove {what}", tap=lambda state, what=what: remove(state, what))
        rows.append(row(what, icon="cart", end=bin))
    return rows if mine else [*rows, paragraph("Your cart is empty", ink="soft")]


def _shortcuts(state):
    """What a new tab shows: shops, four in a line."""
    sites, rows = (
        everything("site")[:8],
        [line_of(text("Browser", 0, 20, WIDTH, 50, 34, align="center", bold=True), height=90)],
    )
    for start in (0, 4):
        parts = []
        for i, site in enumerate(sites[start : start + 4]):
            look = {"size": 20, "ink": "white", "fill": colour(site), "radius": 22, "align": "center"}
            face = Widget("image", (20, 2, 44, 44), site[:1].upper(), **look)
            words = text(site, 0, 50, 84, 20, 12, align="center")
            parts.append(Widget("row", (12 + 84 * i, 0, 84, 74), tap=_link(f"{site}.com"), parts=(face, words)))
        rows.append(line_of(*parts, height=86))
    return rows


def _tabs(state):
    rows = []
    for i, (where, private) in enumerate(_kept(state, address(state)).browser.tabs):
        title = web.page(state.world, where).title
        end = image("close", 0, 0, 44, f"Close {title}", tap=lambda state, i=i: _close(state, i))
        note = "Private" if private else where or "Empty"
        rows.append(row(title, note, lambda state, i=i: _show(_kept(state, address(state)), i), icon="globe", end=end))
    rows.append(wide_button("New tab", _new_tab))
    return page(state, "Tabs", rows)


def _bookmarks(state):
    rows = [
        row(
            web.page(state.world, where).title,
            where,
            lambda state, where=where: go(leave(state), where),
            icon="star_full",
        )
        for where in state.browser.bookmarks
    ]
    return page(state, "Bookmarks", rows or [paragraph("No bookmarks", ink="soft")])


SCREENS = {"main": _main, "tabs": _tabs, "bookmarks": _bookmarks}
