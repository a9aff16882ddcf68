"""The app store, and what is inside the apps that come from it."""

from dataclasses import dataclass, replace

from envs.phone.screen import (
    WIDTH,
    Widget,
    ask,
    button,
    colour,
    dialog,
    entry,
    header,
    image,
    leave,
    line_of,
    open_app,
    page,
    paragraph,
    row,
    say,
    search_box,
    text,
    to,
    toggle,
    wide_button,
    with_stack,
)
from envs.phone.words import everything

PACKAGE, LABEL, ICON, PERMISSION = "org.cleangui.store", "Store", ("store", (24, 128, 56)), ""
SECONDS = 4  # that an installation takes
SHAPES = ("diamond", "leaf", "bolt", "heart", "cloud", "truck", "drop", "ring", "star_full", "film", "music", "flag")
OPTIONS = ("Notifications", "Dark mode", "Save data", "Sync contacts")


@dataclass(frozen=True)
class Store:
    """`apps`: (name, when it is ready) of each app that was installed; `on`: (name, option) that are switched on;
    `accounts`: (name, e-mail address) of who signed in."""

    apps: tuple = ()
    on: tuple = ()
    accounts: tuple = ()
    rated: tuple = ()  # (name, stars)


def begin(world, time):
    rng = world.rng("store")
    names = sorted(rng.sample(everything("app"), 5))
    on = tuple((name, option) for name in names for option in OPTIONS if rng.random() < 0.5)
    return {"store": Store(tuple((name, 0.0) for name in names), on)}


def package(name):
    return f"app.{name.lower()}"


def name_of(package):
    return package.removeprefix("app.").capitalize()


def icon_of(package):
    name = name_of(package)
    return SHAPES[sum(map(ord, name)) * 5 % len(SHAPES)], colour(name)


def installed(state):
    """The names of the apps that are ready."""
    return [name for name, ready in state.store.apps if ready <= state.now]


def _facts(world, name):
    rng = world.rng(f"store/{name}")
    return (
        rng.randint(30, 49) / 10,
        rng.randint(4, 120),
        rng.choice(("Tools", "Food", "Travel", "Music", "Games", "News")),
    )


def _app_row(state, name):
    stars, size, kind = _facts(state.world, name)
    glyph, tint = icon_of(package(name))
    note = f"{stars} stars, {kind}, {size} MB"
    return row(name, note, to("app", name), icon=glyph, disc=tint)


def _main(state):
    words, rows = state.screen.get("find").lower(), [search_box(state, "find", "Search apps")]
    if words:
        found = [name for name in everything("app") if words in name.lower()]
        rows += [_app_row(state, name) for name in found] or [paragraph("No app found", ink="soft")]
        return page(state, "Store", rows, up=False)
    rng = state.world.rng("featured")
    names = rng.sample(everything("app"), 8)
    rows += [row("My apps", f"{len(installed(state))} installed", to("mine"), icon="download"), header("For you")]
    rows += [_app_row(state, name) for name in names]
    return page(state, "Store", rows, up=False)


def _mine(state):
    return page(state, "My apps", [_app_row(state, name) for name in sorted(installed(state))])


def removed(state, name):
    """The phone without an app and all that it kept."""
    store = state.store
    kept = {key: tuple(pair for pair in getattr(store, key) if pair[0] != name) for key in ("apps", "on", "accounts")}
    return replace(with_stack(state, package(name), ()), store=replace(store, **kept))


def _app(state):
    name, store = state.screen.about, state.store
    stars, size, kind = _facts(state.world, name)
    glyph, tint = icon_of(package(name))
    ready = dict(store.apps).get(name)

    def install(state):
        return replace(state, store=replace(state.store, apps=(*state.store.apps, (name, state.now + SECONDS))))

    def uninstall(state):
        return say(removed(state, name), f"{name} was uninstalled")

    def rate(count):
        others = tuple(pair for pair in store.rated if pair[0] != name)
        return lambda state: replace(state, store=replace(state.store, rated=(*others, (name, count))))

    over = None
    if state.screen.dialog == "remove":
        over = ask(state, "Uninstall?", f"{name} and what it keeps will be removed.", "Uninstall", uninstall)
    face = (
        image(glyph, 18, 12, 72, ink="white", fill=tint, radius=20, size=40),
        text(name, 106, 12, 230, 34, 24, bold=True, id="name"),
        text(f"{kind}, {size} MB", 106, 46, 230, 20, 14, ink="soft"),
        text(f"{stars} stars", 106, 66, 230, 20, 14, ink="soft"),
    )
    rows = [line_of(*face, height=100)]
    if ready is None:
        rows.append(wide_button("Install", install))
    elif ready > state.now:
        done = round(100 * (1 - (ready - state.now) / SECONDS))
        rows.append(line_of(Widget("progress", (16, 24, WIDTH - 32, 8), value=done), height=40))
        rows.append(paragraph("Installing...", ink="soft"))
    else:
        both = (
            button("Uninstall", 16, 8, 158, dialog("remove"), quiet=True),
            button("Open", 186, 8, 158, lambda state: open_app(state, package(name))),
        )
        rows.append(line_of(*both))
    rows += [header("About this app"), paragraph(f"{name} is one of the best-loved apps for {kind.lower()}.")]
    given = dict(store.rated).get(name, 0)
    rows.append(header(f"You gave {given} stars" if given else "Rate this app"))
    stars = [
        image("star_full" if i <= given else "star", 24 + 60 * i - 60, 4, 48, f"{i} stars", tap=rate(i), ink="accent")
        for i in range(1, 6)
    ]
    rows.append(line_of(*stars))
    return page(state, "", rows, over=over)


SCREENS = {"main": _main, "mine": _mine, "app": _app}


# --- inside an app ---------------------------------------------------------------------------------------------------


def _welcome(state):
    name = name_of(state.front)
    glyph, tint = icon_of(state.front)
    account = dict(state.store.accounts).get(name)
    rows = [
        line_of(image(glyph, 132, 30, 96, ink="white", fill=tint, radius=28, size=52), height=140),
        line_of(text(f"Welcome to {name}", 0, 0, WIDTH, 40, 24, align="center", bold=True), height=54),
    ]
    if account:
        rows.append(
            line_of(text(f"Signed in as {account}", 0, 0, WIDTH, 30, 14, align="center", ink="soft"), height=40)
        )
        rows.append(wide_button("Sign out", lambda state: _account(state, name, None), quiet=True))
    else:
        rows += [wide_button("Log in", to("login")), wide_button("Create account", to("login"), quiet=True)]
    rows.append(wide_button("Settings", to("options"), quiet=True))
    return page(state, name, rows, up=False)


def _account(state, name, address):
    others = tuple(pair for pair in state.store.accounts if pair[0] != name)
    mine = ((name, address),) if address else ()
    return replace(state, store=replace(state.store, accounts=(*others, *mine)))


def _login(state):
    name, address = name_of(state.front), state.screen.get("email").strip()

    def log_in(state):
        if "@" not in address or not state.screen.get("password"):
            return say(state, "Enter an e-mail address and a password")
        return leave(_account(state, name, address))

    rows = [
        paragraph(f"Log in to {name}", 22, bold=True),
        entry(state, "email", "Email"),
        entry(state, "password", "Password"),
        wide_button("Log in", log_in),
        wide_button("Forgot password?", to("forgot"), quiet=True, line=""),
    ]
    return page(state, "Log in", rows)


def _forgot(state):
    rows = [
        paragraph("Reset your password", 22, bold=True),
        paragraph("We send a link to your e-mail address.", ink="soft"),
        entry(state, "email", "Email"),
        wide_button("Send link", lambda state: say(leave(state), "Link sent")),
    ]
    return page(state, "Forgot password", rows)


def turned(store, name, option):
    """The store after an option of an app was switched."""
    pair = name, option
    return replace(store, on=tuple(p for p in store.on if p != pair) if pair in store.on else (*store.on, pair))


def _options(state):
    name = name_of(state.front)

    def flip(option):
        return lambda state: replace(state, store=turned(state.store, name, option))

    rows = [toggle(option, (name, option) in state.store.on, flip(option)) for option in OPTIONS]
    return page(state, f"{name} settings", rows)


INSIDE = {"main": _welcome, "login": _login, "forgot": _forgot, "options": _options}
