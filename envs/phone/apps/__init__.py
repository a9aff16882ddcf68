"""The phone's apps, one file each: what it keeps (a field of State) and a function for each of its screens.

An app's file has PACKAGE, LABEL, ICON (an icon and a colour), PERMISSION (what it asks for, "" for nothing), SCREENS
(name -> function of the State that gives a Window), and `begin(world)`, the fields of State that are its own.
"""

from envs.phone.apps import browser, calendar, clock, contacts, files, launcher, messages, notes, settings, shop, store
from envs.phone.screen import LAUNCHER, Screen, State

APPS = {
    app.PACKAGE: app for app in (settings, contacts, messages, clock, notes, calendar, files, browser, shop, store)
}  # in no order that matters
FIELDS = {
    settings.PACKAGE: ("settings",), contacts.PACKAGE: ("contacts",), messages.PACKAGE: ("threads",),
    clock.PACKAGE: ("clock",), notes.PACKAGE: ("notes",), calendar.PACKAGE: ("events",), files.PACKAGE: ("files",),
    browser.PACKAGE: ("browser",), shop.PACKAGE: ("shop",), store.PACKAGE: ("store",),
}  # fmt: skip


def begin(world, height, asks):
    """A new phone: morning of a day that the seed draws; apps ask for their permission with probability `asks`."""
    rng = world.rng("phone")
    now = rng.randint(20, 300) * 86_400 + rng.randint(8 * 60, 11 * 60) * 60
    asking = tuple(package for package, app in APPS.items() if app.PERMISSION and rng.random() < asks)
    state = State(world, float(now), ((LAUNCHER, (Screen("main"),)),), height=height, asks=asking)
    values = {}
    for app in APPS.values():
        values |= app.begin(world, state.time)
    return State(**{name: getattr(state, name) for name in state.__dataclass_fields__} | values)


def installed(state):
    """The packages of all apps that can be opened."""
    return [*APPS, *(store.package(name) for name in store.installed(state))]


def window(state):
    """The window of the app in front."""
    screen = state.screen
    if state.front == LAUNCHER:
        return launcher.SCREENS[screen.name](state)
    app = APPS.get(state.front)
    return app.SCREENS[screen.name](state) if app else store.INSIDE[screen.name](state)


def label(state, package):
    """The name under an app's icon."""
    return APPS[package].LABEL if package in APPS else store.name_of(package)


def icon(state, package):
    """(icon, colour) of an app."""
    return APPS[package].ICON if package in APPS else store.icon_of(package)


def permission(package):
    return APPS[package].PERMISSION if package in APPS else "send you notifications"
