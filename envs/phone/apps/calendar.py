"""Calendar: a month, the events of a day, an event, a form."""

from calendar import monthrange
from dataclasses import dataclass, replace
from datetime import date, timedelta

from envs.phone.apps.clock import time_dialog
from envs.phone.screen import (
    WIDTH,
    Widget,
    ask,
    colour,
    dialog,
    draft,
    entry,
    header,
    hour,
    image,
    leave,
    line_of,
    page,
    paragraph,
    row,
    say,
    swap,
    text,
    to,
)

PACKAGE, LABEL, ICON = "com.android.calendar", "Calendar", ("calendar", (217, 48, 37))
PERMISSION = "access your calendar"


@dataclass(frozen=True)
class Event:
    title: str
    day: str  # 2026-03-04
    hour: int
    minute: int = 0
    place: str = ""


def begin(world, time):
    """Eight events in the three weeks that begin today; a day has no two events at the same hour."""
    rng, events, taken = world.rng("calendar"), [], set()
    while len(events) < 8:
        day = (time.date() + timedelta(days=rng.randint(0, 20))).isoformat()
        at = day, rng.randint(8, 19)
        if at in taken:
            continue
        taken.add(at)
        title = f"{rng.choice(world.pool('topic'))} {rng.choice(world.pool('matter')).lower()}"
        place = f"{rng.randint(2, 98)} {rng.choice(world.pool('street'))} Street" if rng.random() < 0.6 else ""
        minute = int(rng.choice(world.pool("minute")))
        if title not in [event.title for event in events]:
            events.append(Event(title, *at, minute, place))
    return {"events": in_order(events)}


def in_order(events):
    return tuple(sorted(events, key=lambda event: (event.day, event.hour, event.minute, event.title)))


def long_day(day):
    """ "Wednesday, March 4" of 2026-03-04."""
    there = date.fromisoformat(day)
    return f"{there.strftime('%A, %B')} {there.day}"


def _main(state):
    """A month and the events of its chosen day."""
    screen = state.screen
    chosen = date.fromisoformat(screen.get("day") or state.time.date().isoformat())
    first = chosen.replace(day=1)
    busy = {event.day for event in state.events}

    def shift(state, months):
        month = first.month - 1 + months
        new = date(first.year + month // 12, month % 12 + 1, 1)
        return swap(state, state.screen.set(day=new.isoformat()))

    parts = [
        image("previous", 4, 2, 40, "Previous month", tap=lambda state: shift(state, -1)),
        text(first.strftime("%B %Y"), 44, 2, WIDTH - 88, 40, 18, align="center", bold=True, id="month"),
        image("next", WIDTH - 44, 2, 40, "Next month", tap=lambda state: shift(state, 1)),
    ]
    parts += [text(name, 8 + 49 * i, 44, 49, 18, 12, ink="soft", align="center") for i, name in enumerate("MTWTFSS")]
    for number in range(1, monthrange(first.year, first.month)[1] + 1):
        there = first.replace(day=number)
        place = first.weekday() + number - 1
        parts.append(_day(there, place, there == chosen, there == state.time.date(), there.isoformat() in busy))
    weeks = (first.weekday() + monthrange(first.year, first.month)[1] + 6) // 7
    rows = [line_of(*parts, height=70 + 38 * weeks), header(long_day(chosen.isoformat()))]
    mine = [event for event in state.events if event.day == chosen.isoformat()]
    rows += [_event_row(state, event) for event in mine] or [paragraph("No events", ink="soft")]
    new = to("form", None, day=chosen.isoformat(), hour=9, minute=0)
    buttons = [("menu", "Schedule", to("schedule"))]
    return page(state, "Calendar", rows, up=False, buttons=buttons, fab=("plus", "New event", new))


def _day(there, place, chosen, today, busy):
    left, top = 8 + 49 * (place % 7), 64 + 38 * (place // 7)
    ink = "on accent" if chosen else "accent" if today else "ink"
    parts = [text(str(there.day), 7, 1, 34, 34, 15, align="center", ink=ink, fill="accent" if chosen else "", radius=17,
                  bold=today)]  # fmt: skip
    if busy:
        parts.append(Widget("image", (22, 28, 5, 5), fill=ink, radius=3, label="has events"))
    return Widget("row", (left, top, 49, 38), tap=draft(day=there.isoformat()), parts=tuple(parts), id="day")


def _event_row(state, event):
    when = hour(event.hour, event.minute, state.settings.whole_day)
    note = f"{when}, {event.place}" if event.place else when
    return row(event.title, note, to("event", event), icon="calendar", disc=colour(event.title))


def _schedule(state):
    """All events from today on."""
    rows, day = [], ""
    for event in state.events:
        if event.day < state.time.date().isoformat():
            continue
        if event.day != day:
            rows.append(header(long_day(event.day)))
        day = event.day
        rows.append(_event_row(state, event))
    return page(state, "Schedule", rows)


def _event(state):
    event = state.screen.about

    def delete(state):
        state = leave(replace(state, events=tuple(one for one in state.events if one != event)))
        return say(state, "Event deleted")

    over = None
    if state.screen.dialog == "delete":
        over = ask(state, "Delete event?", event.title, "Delete", delete)
    rows = [
        paragraph(event.title, 24, bold=True),
        row(long_day(event.day), hour(event.hour, event.minute, state.settings.whole_day), icon="clock"),
    ]
    rows += [row(event.place, "Location", icon="place")] if event.place else []
    kept = {"title": event.title, "day": event.day, "hour": event.hour, "minute": event.minute, "place": event.place}
    buttons = [("edit", "Edit event", to("form", event, **kept)), ("trash", "Delete event", dialog("delete"))]
    return page(state, "", rows, buttons=buttons, over=over)


def _form(state):
    screen, old = state.screen, state.screen.about

    def save(state):
        title = screen.get("title").strip()
        if not title:
            return say(state, "Enter a title")
        new = Event(title, screen.get("day"), screen.get("hour"), screen.get("minute"), screen.get("place").strip())
        others = [event for event in state.events if event != old]
        state = leave(leave(state)) if old else leave(state)
        return say(replace(state, events=in_order([*others, new])), "Event saved")

    def shift(days):
        return draft(day=(date.fromisoformat(screen.get("day")) + timedelta(days=days)).isoformat())

    over = time_dialog(state, "hour", "minute") if screen.dialog else None
    when = line_of(
        image("previous", 8, 6, 44, "Previous day", tap=shift(-1)),
        text(long_day(screen.get("day")), 52, 6, WIDTH - 104, 44, 17, align="center", id="day"),
        image("next", WIDTH - 52, 6, 44, "Next day", tap=shift(1)),
    )
    time = hour(screen.get("hour"), screen.get("minute"), state.settings.whole_day)
    rows = [
        entry(state, "title", "Title"),
        when,
        row("Time", icon="clock", value=time, tap=dialog("hour")),
        entry(state, "place", "Location"),
    ]
    title = "Edit event" if old else "New event"
    return page(state, title, rows, buttons=[("check", "Save", save)], over=over)


SCREENS = {"main": _main, "schedule": _schedule, "event": _event, "form": _form}
