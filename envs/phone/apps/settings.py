"""Settings: toggles, sliders and choices on nested pages, and a search for them."""

from dataclasses import dataclass, replace

from envs.phone import apps
from envs.phone.screen import (
    WIDTH,
    Widget,
    choose,
    dialog,
    header,
    open_app,
    page,
    paragraph,
    row,
    search_box,
    slider,
    to,
    toggle,
    wide_button,
    with_stack,
)
from envs.phone.words import everything

PACKAGE, LABEL, ICON, PERMISSION = "com.android.settings", "Settings", ("gear", (84, 97, 112)), ""
FONTS = ("Small", "Default", "Large", "Largest")
TIMEOUTS = ("15 seconds", "30 seconds", "1 minute", "2 minutes", "5 minutes", "10 minutes")
NETWORKS = ("Home network", "Cafe guest", "Library", "Office 5G")


@dataclass(frozen=True)
class Settings:
    """What is set: toggles, levels in percent, choices, and the apps that may not send notifications."""

    wifi: bool = True
    bluetooth: bool = False
    airplane: bool = False
    data: bool = True
    hotspot: bool = False
    nfc: bool = False
    location: bool = False
    dark: bool = False
    rotate: bool = True
    saver: bool = False
    disturb: bool = False
    vibrate: bool = True
    whole_day: bool = False
    tips: bool = True
    brightness: int = 60
    media: int = 40
    ring: int = 70
    alarm_volume: int = 50
    timeout: str = "30 seconds"
    font: str = "Default"
    language: str = "English"
    network: str = NETWORKS[0]
    silent: tuple = ()


# toggle -> (its name on the screen, the page it is on)
TOGGLES = {
    "wifi": ("Wi-Fi", "internet"), "airplane": ("Airplane mode", "internet"), "data": ("Mobile data", "internet"),
    "hotspot": ("Hotspot", "internet"), "bluetooth": ("Bluetooth", "devices"), "nfc": ("NFC", "devices"),
    "dark": ("Dark theme", "display"), "rotate": ("Auto-rotate screen", "display"),
    "disturb": ("Do Not Disturb", "sound"), "vibrate": ("Vibrate for calls", "sound"),
    "saver": ("Battery Saver", "battery"), "location": ("Use location", "location"),
    "whole_day": ("Use 24-hour format", "system"), "tips": ("Tips and hints", "system"),
}  # fmt: skip
LEVELS = {
    "brightness": ("Brightness level", "display"), "media": ("Media volume", "sound"), "ring": ("Ring volume", "sound"),
    "alarm_volume": ("Alarm volume", "sound"),
}  # fmt: skip
PAGES = {
    "internet": ("Network & internet", "Wi-Fi, mobile data, hotspot", "wifi"),
    "devices": ("Connected devices", "Bluetooth, NFC", "bluetooth"),
    "app_list": ("Apps", "Notifications, what is installed", "apps"),
    "battery": ("Battery", "Battery Saver", "battery"),
    "display": ("Display", "Dark theme, brightness, font size", "sun"),
    "sound": ("Sound & vibration", "Volume, Do Not Disturb", "sound"),
    "location": ("Location", "Who may know where you are", "place"),
    "system": ("System", "Language, time, tips", "info"),
    "about": ("About phone", "Model and version", "phone"),
}


def begin(world, time):
    rng = world.rng("settings")
    values = {name: rng.random() < 0.5 for name in TOGGLES if name not in ("airplane", "dark")}
    values |= {name: rng.randint(2, 8) * 10 for name in LEVELS}
    values["dark"] = rng.random() < 0.25
    values["airplane"] = rng.random() < 0.2
    if values["airplane"]:
        values |= {"wifi": False, "bluetooth": False}
    values |= {"timeout": rng.choice(TIMEOUTS), "font": rng.choice(FONTS), "network": rng.choice(NETWORKS)}
    return {"settings": Settings(**values)}


def turned(settings, name, on):
    """The settings with a toggle on or off, and what follows from it: airplane mode ends Wi-Fi and Bluetooth."""
    settings = replace(settings, **{name: on})
    if name == "airplane" and on:
        return replace(settings, wifi=False, bluetooth=False)
    return settings


def _flip(name):
    def tap(state):
        return replace(state, settings=turned(state.settings, name, not getattr(state.settings, name)))

    return tap


def _toggle(state, name, note="", icon=""):
    return toggle(TOGGLES[name][0], getattr(state.settings, name), _flip(name), note, icon)


def _slider(state, name, icon):
    def slide(state, percent):
        return replace(state, settings=replace(state.settings, **{name: percent}))

    return slider(LEVELS[name][0], getattr(state.settings, name), slide, icon)


def _set(name):
    """For `choose`: option -> a tap that takes it."""
    return lambda option: lambda state: replace(state, settings=replace(state.settings, **{name: option}))


def _main(state):
    words = state.screen.get("find").lower()
    rows = [search_box(state, "find", "Search settings")]
    if words:
        known = [*TOGGLES.values(), *LEVELS.values(), *((PAGES[name][0], name) for name in PAGES)]
        known += [("Screen timeout", "display"), ("Font size", "display"), ("Language", "system")]
        rows += [row(name, PAGES[at][0], to(at), icon="search") for name, at in known if words in name.lower()]
    else:
        rows += [row(title, note, to(name), icon=icon, disc=_disc(name)) for name, (title, note, icon) in PAGES.items()]
    return page(state, "Settings", rows, up=False)


def _disc(name):
    colours = ((26, 115, 232), (24, 128, 56), (227, 116, 0), (147, 52, 230), (217, 48, 37), (0, 121, 130))
    return colours[list(PAGES).index(name) % len(colours)]


def _internet(state):
    rows = [_toggle(state, "wifi", icon="wifi")]
    if state.settings.wifi:
        rows.append(row("Networks", state.settings.network, to("networks"), icon="next"))
    rows += [_toggle(state, "data", icon="signal"), _toggle(state, "airplane", icon="plane")]
    rows.append(_toggle(state, "hotspot", icon="globe"))
    return page(state, PAGES["internet"][0], rows)


def _networks(state):
    here = state.settings.network
    rows = [
        row(name, "Connected" if name == here else "Saved", _set("network")(name), icon="wifi") for name in NETWORKS
    ]
    return page(state, "Networks", rows)


def _devices(state):
    rows = [_toggle(state, "bluetooth", icon="bluetooth"), _toggle(state, "nfc", icon="send")]
    if state.settings.bluetooth:
        rows += [header("Nearby devices"), row("Headphones", "Not connected", icon="music")]
    return page(state, PAGES["devices"][0], rows)


def _display(state):
    now = state.settings
    over = {
        "timeout": lambda: choose(state, "Screen timeout", TIMEOUTS, now.timeout, _set("timeout")),
        "font": lambda: choose(state, "Font size", FONTS, now.font, _set("font")),
    }.get(state.screen.dialog)
    rows = [
        _slider(state, "brightness", "sun"),
        _toggle(state, "dark", icon="moon"),
        row("Screen timeout", f"After {now.timeout}", dialog("timeout"), icon="clock"),
        row("Font size", now.font, dialog("font"), icon="edit"),
        _toggle(state, "rotate", icon="reset"),
    ]
    return page(state, PAGES["display"][0], rows, over=over and over())


def _sound(state):
    rows = [_slider(state, "media", "music"), _slider(state, "ring", "bell"), _slider(state, "alarm_volume", "alarm")]
    rows += [_toggle(state, "disturb", icon="minus"), _toggle(state, "vibrate", icon="phone")]
    return page(state, PAGES["sound"][0], rows)


def _battery(state):
    level = 40 + state.world.seed % 55
    rows = [
        paragraph(f"{level}%", 40, bold=True),
        Widget("group", (0, 0, WIDTH, 28), parts=(Widget("progress", (16, 6, WIDTH - 32, 10), value=level),)),
        _toggle(state, "saver", "Turns off what can wait", icon="battery"),
    ]
    return page(state, PAGES["battery"][0], rows)


def _location(state):
    rows = [
        _toggle(state, "location", icon="place"),
        header("Recent requests"),
        row("Browser", "Yesterday", icon="globe"),
    ]
    return page(state, PAGES["location"][0], rows)


def _system(state):
    languages = tuple(everything("language"))
    over = None
    if state.screen.dialog == "language":
        over = choose(state, "Language", languages, state.settings.language, _set("language"))
    rows = [
        row("Language", state.settings.language, dialog("language"), icon="globe"),
        _toggle(state, "whole_day", state.time.strftime("%H:%M"), icon="clock"),
        _toggle(state, "tips", icon="info"),
    ]
    return page(state, PAGES["system"][0], rows, over=over)


def _about(state):
    rng = state.world.rng("about")
    facts = {
        "Device name": "Clean phone", "Model": f"CG-{rng.randint(100, 999)}", "Android version": "14",
        "Build number": f"CGP{rng.randint(1, 9)}.{rng.randint(100000, 999999)}",
        "Phone number": f"555-{rng.randint(1000, 9999)}",
    }  # fmt: skip
    return page(state, PAGES["about"][0], [row(name, value) for name, value in facts.items()])


def _app_list(state):
    named = sorted((apps.label(state, package), package) for package in apps.installed(state))
    rows = [
        row(name, icon=apps.icon(state, package)[0], disc=apps.icon(state, package)[1], tap=to("app", package))
        for name, package in named
    ]
    return page(state, "Apps", rows)


def _app(state):
    package = state.screen.about
    name, (glyph, colour) = apps.label(state, package), apps.icon(state, package)
    silent = package in state.settings.silent

    def flip(state):
        others = tuple(one for one in state.settings.silent if one != package)
        return replace(state, settings=replace(state.settings, silent=others if silent else (*others, package)))

    rows = [
        row(name, "Running" if package in dict(state.stacks) else "Not running", icon=glyph, disc=colour),
        toggle("Allow notifications", not silent, flip, icon="bell"),
        wide_button("Open", lambda state: open_app(state, package) if package in apps.installed(state) else state),
        wide_button(
            "Force stop", lambda state: with_stack(state, package, ()) if package != PACKAGE else state, quiet=True
        ),
    ]
    return page(state, "App info", rows)


SCREENS = {
    "main": _main, "internet": _internet, "networks": _networks, "devices": _devices, "display": _display,
    "sound": _sound, "battery": _battery, "location": _location, "system": _system, "about": _about,
    "app_list": _app_list, "app": _app,
}  # fmt: skip
