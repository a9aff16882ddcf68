"""Clock: alarms, the time elsewhere, a timer and a stopwatch, all by the phone's own clock."""

from dataclasses import dataclass, replace
from datetime import timedelta

from envs.phone.glyphs import polar
from envs.phone.screen import (
    WIDTH,
    Widget,
    ask,
    button,
    check,
    dialog,
    draft,
    entry,
    header,
    hour,
    leave,
    line_of,
    page,
    row,
    say,
    swap,
    switch,
    text,
    then,
    to,
)

PACKAGE, LABEL, ICON, PERMISSION = "com.android.deskclock", "Clock", ("clock", (60, 64, 120)), ""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CITIES = {"Paris": 1, "Zurich": 1, "Manila": 8, "Sydney": 10, "Prague": 1, "Seoul": 9, "Lima": -5, "Cairo": 2,
          "Nairobi": 3, "Mumbai": 5, "Bangkok": 7, "Tokyo": 9, "Denver": -7, "Toronto": -5}  # fmt: skip


@dataclass(frozen=True)
class Alarm:
    hour: int
    minute: int
    on: bool = True
    days: tuple = ()
    label: str = ""


@dataclass(frozen=True)
class Clock:
    """`timer`: (seconds left when it last started or stopped, when it started or None); `watch` the same, of the
    seconds that have gone by; `laps` are whole seconds."""

    alarms: tuple = ()
    cities: tuple = ("Paris",)
    timer: tuple | None = None
    watch: tuple = (0.0, None)
    laps: tuple = ()


def begin(world, time):
    rng = world.rng("clock")
    hours = rng.sample(range(24), 3)
    minutes = [int(minute) for minute in world.pool("minute")]
    alarms = [Alarm(one, rng.choice(minutes), rng.random() < 0.5) for one in hours]
    cities = tuple(sorted(rng.sample(sorted(CITIES), 2)))
    return {"clock": Clock(tuple(sorted(alarms, key=lambda alarm: (alarm.hour, alarm.minute))), cities)}


def with_alarm(clock, alarm, old=None):
    """The clock with an alarm (None: none) in the place of an old one."""
    alarms = [one for one in clock.alarms if one != old] + [alarm] * (alarm is not None)
    return replace(clock, alarms=tuple(sorted(alarms, key=lambda one: (one.hour, one.minute, one.label))))


def elapsed(pair, now):
    """Whole seconds of a (seconds, started) pair."""
    seconds, started = pair
    return int(seconds + (now - started if started is not None else 0))


def left_of(timer, now):
    seconds, started = timer
    return max(int(seconds - (now - started if started is not None else 0)), 0)


def _tabs(state):
    names = (("alarm", "Alarm"), ("clock", "World"), ("timer", "Timer"), ("stopwatch", "Stopwatch"))
    chosen = {"main": "Alarm"}.get(state.screen.name, state.screen.name.title())
    return [(icon, name, name == chosen, _tab("main" if name == "Alarm" else name.lower())) for icon, name in names]


def _tab(name):
    return lambda state: swap(state, replace(state.screen, name=name, scroll=0, draft=(), dialog="", about=None))


def _show(state, hours, minutes):
    return hour(hours, minutes, state.settings.whole_day)


def _main(state):
    rows = []
    for alarm in state.clock.alarms:

        def flip(state, alarm=alarm):
            return replace(state, clock=with_alarm(state.clock, replace(alarm, on=not alarm.on), alarm))

        note = ", ".join(day[:3] for day in alarm.days) or "Once"
        note = f"{alarm.label} - {note}" if alarm.label else note
        time = _show(state, alarm.hour, alarm.minute)
        values = {"hour": alarm.hour, "minute": alarm.minute, "label": alarm.label, "days": alarm.days}
        open_it = Widget("row", (0, 0, WIDTH - 76, 76), tap=to("alarm", alarm, **values), parts=(
            text(time, 18, 8, 240, 36, 30, ink="ink" if alarm.on else "soft", id="time"),
            text(note, 18, 46, 240, 20, 13, ink="soft", id="repeat"),
        ))  # fmt: skip
        turn = replace(switch(alarm.on), box=(WIDTH - 60, 26, 44, 24), tap=flip, label=f"Alarm {time}")
        rows.append(line_of(open_it, turn, height=76))
    new = to("alarm", None, hour=state.time.hour + 1 if state.time.hour < 23 else 0, minute=0, days=())
    return page(state, "Alarm", rows, up=False, tabs=_tabs(state), fab=("plus", "Add alarm", new))


def _alarm(state):
    """A new alarm, or an old one: time, days, label."""
    screen, old = state.screen, state.screen.about

    def save(state):
        new = Alarm(screen.get("hour"), screen.get("minute"), True, screen.get("days"), screen.get("label").strip())
        state = leave(replace(state, clock=with_alarm(state.clock, new, old)))
        return say(state, f"Alarm set for {_show(state, new.hour, new.minute)}")

    def delete(state):
        return say(leave(replace(state, clock=with_alarm(state.clock, None, old))), "Alarm deleted")

    def day(name):
        chosen = screen.get("days")
        new = tuple(one for one in DAYS if (one in chosen) != (one == name))
        return draft(days=new)

    over = time_dialog(state, "hour", "minute") if screen.dialog else None
    time = text(_show(state, screen.get("hour"), screen.get("minute")), 0, 0, WIDTH, 64, 46, align="center", id="time")
    rows = [
        Widget("row", (0, 0, WIDTH, 64), tap=dialog("hour"), parts=(time,)),
        entry(state, "label", "Label"),
        header("Repeat"),
    ]
    rows += [row(name, tap=day(name), end=check(name in screen.get("days"))) for name in DAYS]
    buttons = [("trash", "Delete alarm", delete)] if old else []
    buttons.append(("check", "Save", save))
    return page(state, "Edit alarm" if old else "Add alarm", rows, buttons=buttons, over=over)


def time_dialog(state, hours_key, minutes_key):
    """A clock's face to tap on: first the hour, then the minute; `screen.dialog` says which, "hour" or "minute"."""
    screen, whole = state.screen, state.settings.whole_day
    hours, minutes = screen.get(hours_key), screen.get(minutes_key)
    of_hours = screen.dialog == "hour"
    wide, parts = 300, [text("Select time", 24, 12, 200, 24, 14, ink="soft", id="title")]
    shown = f"{hours:02d}" if whole else str((hours - 1) % 12 + 1)
    for left, words, name in ((20, shown, "hour"), (118, f"{minutes:02d}", "minute")):
        chosen = (name == "hour") == of_hours
        face = text(words, 0, 0, 84, 60, 34, align="center", bold=True, ink="on accent" if chosen else "ink")
        parts.append(Widget("tab", (left, 42, 84, 60), tap=dialog(name), on=chosen, parts=(face,), radius=10,
                            fill="accent" if chosen else "track", id=f"{name}_view"))  # fmt: skip
    parts.append(text(":", 104, 42, 14, 60, 34, align="center"))
    for i, half in enumerate(("AM", "PM")):
        on = (hours >= 12) == (half == "PM")
        tap = draft(**{hours_key: hours % 12 + 12 * i})
        face = text(half, 0, 0, 64, 29, 14, align="center", bold=True, ink="on accent" if on else "ink")
        parts.append(Widget("tab", (216, 42 + 31 * i, 64, 29), tap=tap, on=on, parts=(face,), radius=8,
                            fill="accent" if on else "track"))  # fmt: skip
    parts.append(Widget("dial", (40, 116, 220, 220)))
    place = hours % 12 * 5 if of_hours else minutes
    parts.append(Widget("hand", (40, 116, 220, 220), value=place))
    for i in range(12):
        number = (i or 12) if of_hours else 5 * i
        x, y = polar(i, 12, 88)
        value = number % 12 + (12 if hours >= 12 else 0) if of_hours else number
        if of_hours:
            tap = then(draft(**{hours_key: value}), dialog("minute"))
        else:
            tap = draft(**{minutes_key: value})
        words = f"{number:02d}" if not of_hours else f"{value:02d}" if whole else str(number)
        on = place == 5 * i
        parts.append(Widget("button", (round(150 + x) - 20, round(226 + y) - 20, 40, 40), words, tap=tap, size=16,
                            align="center", ink="on accent" if on else "ink"))  # fmt: skip
    window = ask(state, "", "", "OK", lambda state: state)
    _, cancel, done = window.root.parts
    parts += [replace(cancel, box=(24, 346, 110, 40)), replace(done, box=(166, 346, 110, 40))]
    top = (state.height - 398) // 2
    root = Widget("group", ((WIDTH - wide) // 2, top, wide, 398), parts=tuple(parts), fill="card", radius=24)
    return replace(window, root=root)


def _world(state):
    rows = [
        line_of(
            text(_show(state, state.time.hour, state.time.minute), 0, 10, WIDTH, 70, 52, align="center"),
            text(f"{state.time.strftime('%A, %B')} {state.time.day}", 0, 80, WIDTH, 24, 15, ink="soft", align="center"),
            height=120,
        )
    ]
    for city in state.clock.cities:
        there = state.time + timedelta(hours=CITIES[city])
        rows.append(row(city, f"{CITIES[city]:+d} hours", end=text(_show(state, there.hour, there.minute), 0, 0, 100,
                    30, 20, align="right")))  # fmt: skip
    return page(state, "World clock", rows, up=False, tabs=_tabs(state), fab=("globe", "Add city", to("cities")))


def _cities(state):
    def flip(city):
        now = state.clock.cities
        new = tuple(sorted({*now} ^ {city}))
        return lambda state: replace(state, clock=replace(state.clock, cities=new))

    rows = [row(city, tap=flip(city), end=check(city in state.clock.cities)) for city in sorted(CITIES)]
    return page(state, "Cities", rows)


def _timer(state):
    timer = state.clock.timer
    return _set_timer(state) if timer is None else _running(state, timer)


def _set_timer(state):
    digits = state.screen.get("digits")
    padded = digits.rjust(6, "0")
    shown = f"{padded[:2]}h {padded[2:4]}m {padded[4:]}s"
    seconds = int(padded[:2]) * 3600 + int(padded[2:4]) * 60 + int(padded[4:])

    def start(state):
        return replace(state, clock=replace(state.clock, timer=(float(seconds), state.now)))

    def press(key):
        new = digits[:-1] if key == "erase" else (digits + key).lstrip("0")
        return draft(digits=new if len(new) <= 6 else digits)

    rows = [line_of(text(shown, 0, 6, WIDTH, 54, 38, align="center", id="timer_time",
                         ink="ink" if digits else "soft"), height=64)]  # fmt: skip
    keys = []
    for i, key in enumerate(("1", "2", "3", "4", "5", "6", "7", "8", "9", "00", "0", "erase")):
        place = (66 + 80 * (i % 3), 64 * (i // 3), 68, 58)
        look = {"fill": "card", "radius": 29, "align": "center", "tap": press(key), "size": 24}
        if key == "erase":
            keys.append(Widget("imagebutton", place, icon="erase", label="Backspace", **look))
        else:
            keys.append(Widget("button", place, key, **look))
    rows.append(line_of(*keys, height=262))
    fab = ("play", "Start", start) if seconds else None
    return page(state, "Timer", rows, up=False, tabs=_tabs(state), fab=fab)


def _running(state, timer):
    seconds, started = timer
    left = left_of(timer, state.now)

    def stop(state):
        new = (float(left_of(timer, state.now)), None) if started is not None else (seconds, state.now)
        return replace(state, clock=replace(state.clock, timer=new))

    def delete(state):
        return swap(replace(state, clock=replace(state.clock, timer=None)), state.screen.set(digits=""))

    shown = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
    face = Widget("dial", (60, 20, 240, 240)), text(shown, 60, 100, 240, 60, 44, align="center", id="timer_time")
    rows = [
        line_of(*face, height=280),
        line_of(
            button("Pause" if started is not None else "Resume", 40, 4, 130, stop, 48),
            button("Delete", 190, 4, 130, delete, 48, quiet=True),
            height=60,
        ),
    ]
    return page(state, "Timer", rows, up=False, tabs=_tabs(state))


def _stopwatch(state):
    clock, now = state.clock, state.now
    runs = clock.watch[1] is not None
    seconds = elapsed(clock.watch, now)

    def turn(state):
        old = state.clock.watch
        new = (float(elapsed(old, state.now)), None) if runs else (old[0], state.now)
        return replace(state, clock=replace(state.clock, watch=new))

    def lap(state):
        return replace(state, clock=replace(state.clock, laps=(*clock.laps, elapsed(clock.watch, state.now))))

    def reset(state):
        return replace(state, clock=replace(state.clock, watch=(0.0, None), laps=()))

    shown = f"{seconds // 60:02d}:{seconds % 60:02d}"
    rows = [
        line_of(text(shown, 0, 30, WIDTH, 90, 64, align="center", id="stopwatch_time"), height=150),
        line_of(
            button("Pause" if runs else "Start", 40, 4, 130, turn, 48),
            button("Lap" if runs else "Reset", 190, 4, 130, lap if runs else reset, 48, quiet=True),
            height=64,
        ),
    ]
    rows += [row(f"Lap {i + 1}", value=f"{lap // 60:02d}:{lap % 60:02d}") for i, lap in enumerate(clock.laps)]
    return page(state, "Stopwatch", rows, up=False, tabs=_tabs(state))


SCREENS = {
    "main": _main, "alarm": _alarm, "world": _world, "cities": _cities, "timer": _timer, "stopwatch": _stopwatch,
}  # fmt: skip
