"""Task templates in single apps, in the spirit of Android in the Wild's Google Apps and Install."""

from dataclasses import replace
from datetime import date

from envs.phone.actions import IMPOSSIBLE
from envs.phone.apps import calendar, clock, files, notes, settings, store
from envs.phone.screen import hour
from envs.phone.tasks import (
    BACK,
    LONG,
    Goal,
    Move,
    Template,
    answer,
    app,
    enter,
    pick,
    require,
    shows,
    tap,
)
from envs.phone.web_tasks import draw_hour, parse_hour, set_time

DETAILS = tap("More options", "button")


def _template(group, name, phrasings, draw, goal, oracle, horizon=15):
    return Template(name, group, phrasings, draw, goal, oracle, horizon)


# --- notes -----------------------------------------------------------------------------------------------------------


def new_title(state, rng):
    """A title that no note or event has."""
    words = f"{pick(rng, state.world.pool('topic'))} {pick(rng, state.world.pool('matter')).lower()}"
    require(words not in [one.title for one in (*state.notes, *state.events)])
    return words


def sentence(state, rng):
    """A few words to write down or to send."""
    world = state.world
    return pick(rng, (
        f"Bring the {pick(rng, world.pool('noun')).lower()} at {rng.randint(2, 9)} PM",
        f"Ask {pick(rng, world.pool('first'))} about the {pick(rng, world.pool('topic')).lower()}",
        f"See you at {rng.randint(2, 98)} {pick(rng, world.pool('street'))} Street",
        f"The {pick(rng, world.pool('code'))} code is {rng.randint(1000, 9999)}",
    ))  # fmt: skip


def _a_note(state, rng):
    return {"title": pick(rng, state.notes).title}


def note_of(state, title):
    found = [note for note in state.notes if note.title == title]
    require(len(found) == 1)
    return found[0]


def with_note(state, new, old=None):
    return Goal({"notes": notes.in_order([*(note for note in state.notes if note != old), *([new] if new else [])])})


def _note_draw(state, rng):
    return {"title": new_title(state, rng), "text": sentence(state, rng)}


def note_moves(slots):
    """Writes a note, from the list of notes."""
    return [
        tap("New note", "button"),
        enter("Title", slots["title"]),
        enter("Note", slots["text"]),
        tap("Save", "button"),
    ]


def _listed(state, rng):
    """A thing of a note that is a list: {"title", "thing", "count"}."""
    note = pick(rng, [note for note in state.notes if " x " in note.words])
    count, _, thing = pick(rng, note.words.split("\n")).partition(" x ")
    return {"title": note.title, "thing": thing}


def _how_many(state, slots):
    for line in note_of(state, slots["title"]).words.split("\n"):
        count, _, thing = line.partition(" x ")
        if thing == slots["thing"]:
            return count
    raise LookupError("no such thing")


# --- calendar --------------------------------------------------------------------------------------------------------


def _an_event(state, rng):
    return {"title": pick(rng, state.events).title}


def event_of(state, title):
    return next(event for event in state.events if event.title == title)


def with_event(state, new, old=None):
    others = [event for event in state.events if event != old]
    return Goal({"events": calendar.in_order([*others, *([new] if new else [])])})


def _event_draw(state, rng):
    day = state.time.date().replace(day=pick(rng, state.world.own(range(1, 29)))).isoformat()
    return {"title": new_title(state, rng), "day": calendar.long_day(day), "time": draw_hour(state, rng)}


def day_of(state, words):
    """2026-03-04 of "Wednesday, March 4", in the phone's year."""
    month, number = words.partition(", ")[2].split()
    names = [date(2026, one, 1).strftime("%B") for one in range(1, 13)]
    return date(state.time.year, names.index(month) + 1, int(number)).isoformat()


def event_moves(state, slots):
    """Makes an event of this month, from the calendar's first screen."""
    number = str(date.fromisoformat(day_of(state, slots["day"])).day)
    return [
        tap(number, "item"),
        tap("New event", "button"),
        enter("Title", slots["title"]),
        BACK,
        tap("Time", "item"),
        *set_time(state, *parse_hour(slots["time"]), 9),
        tap("Save", "button"),
    ]


def event_goal(state, slots):
    return with_event(state, calendar.Event(slots["title"], day_of(state, slots["day"]), *parse_hour(slots["time"])))


def _schedule(slots):
    return [*app("Calendar"), tap("Schedule", "button"), tap(slots["title"], "item")]


def _placed(state, rng):
    return {"title": pick(rng, [event for event in state.events if event.place]).title}


def _place_of(state, slots):
    place = event_of(state, slots["title"]).place
    require(place)
    return place


def _when(state, slots):
    event = event_of(state, slots["title"])
    return hour(event.hour, event.minute, state.settings.whole_day), hour(event.hour, event.minute)


def _next(state):
    now = state.time.date().isoformat(), state.time.hour, state.time.minute
    later = [event for event in state.events if (event.day, event.hour, event.minute) > now]
    require(later and later[0].day > now[0])  # the schedule begins with today, whose events may be over
    require(not [event for event in state.events if event.day == now[0]])
    return later[0].title


# --- clock -----------------------------------------------------------------------------------------------------------


def shown_hour(state, alarm):
    return hour(alarm.hour, alarm.minute, state.settings.whole_day)


def _alarm_draw(on):
    def draw(state, rng):
        return {"time": shown_hour(state, pick(rng, [alarm for alarm in state.clock.alarms if alarm.on == on]))}

    return draw


def _alarm(state, slots):
    return next(alarm for alarm in state.clock.alarms if shown_hour(state, alarm) == slots["time"])


def _alarm_turn(state, slots):
    old = _alarm(state, slots)
    return Goal({"alarms": clock.with_alarm(state.clock, replace(old, on=not old.on), old).alarms})


def _no_alarm_goal(state, slots):
    require(parse_hour(slots["time"]) not in [(alarm.hour, alarm.minute) for alarm in state.clock.alarms])
    return Goal(answer=(IMPOSSIBLE,))


def _timer_draw(state, rng):
    return {"minutes": pick(rng, [minute for minute in state.world.pool("minute") if minute != "0"])}


def _timer_place(minutes, running):
    def place(state):
        if running:
            timer = state.clock.timer
            return timer is not None and timer[1] is not None and minutes * 60 - 90 < timer[0] <= minutes * 60
        shown = state.front == clock.PACKAGE and state.screen.name == "timer"
        return shown and int(state.screen.get("digits") or 0) == minutes * 100

    return place


def _timer_moves(slots):
    digits = [tap(digit, "button") for digit in slots["minutes"]]
    return [*app("Clock"), tap("Timer", "item"), *digits, tap("00", "button")]


def _city_draw(state, rng):
    return {
        "city": pick(
            rng, [city for city in state.world.pool("city") if city in clock.CITIES and city not in state.clock.cities]
        )
    }


# --- files -----------------------------------------------------------------------------------------------------------


def a_file(state, rng):
    file = pick(rng, [file for file in state.files if file.name])
    return {"file": file.name, "folder": file.folder}


def file_of(state, slots):
    return next(file for file in state.files if (file.name, file.folder) == (slots["file"], slots["folder"]))


def _move_draw(state, rng):
    slots = a_file(state, rng)
    return slots | {"target": pick(rng, [folder for folder in files.FOLDERS if folder != slots["folder"]])}


def to_folder(slots):
    return [*app("Files"), tap(slots["folder"], "item")]


def _rename_draw(state, rng):
    slots = a_file(state, rng)
    stem = f"{pick(rng, state.world.pool('topic'))}_{pick(rng, state.world.pool('adjective'))}".lower()
    return slots | {"name": f"{stem}.{slots['file'].rpartition('.')[2]}"}


def _renamed(state, slots):
    old = file_of(state, slots)
    return Goal(
        {"files": files.in_order([replace(one, name=slots["name"]) if one == old else one for one in state.files])}
    )


def _without_file(state, slots):
    return Goal({"files": tuple(one for one in state.files if one != file_of(state, slots))})


def _folder_draw(state, rng):
    return {"name": pick(rng, state.world.pool("topic"))}


# --- settings --------------------------------------------------------------------------------------------------------


def _choice(name, field, values, phrasings, page_name, title):
    """A template of a setting with several options."""

    def draw(state, rng):
        return {"value": pick(rng, [value for value in values(state) if value != getattr(state.settings, field)])}

    def goal(state, slots):
        return Goal({"settings": replace(state.settings, **{field: slots["value"]})})

    def oracle(state, slots):
        return [*app("Settings"), tap(page_name, "item"), tap(title, "item"), tap(slots["value"], "radio")]

    return Template(name, "apps", phrasings, draw, goal, oracle)


def _level_draw(state, rng):
    key = pick(rng, state.world.pool("level"))
    return {"level": settings.LEVELS[key][0].lower(), "end": pick(rng, ("maximum", "minimum"))}


def _level_key(slots):
    return next(key for key, (name, _) in settings.LEVELS.items() if name.lower() == slots["level"])


def _level_goal(state, slots):
    value = 100 if slots["end"] == "maximum" else 0
    return Goal({"settings": replace(state.settings, **{_level_key(slots): value})})


def _level_oracle(state, slots):
    name, at = settings.LEVELS[_level_key(slots)]
    value = "100" if slots["end"] == "maximum" else "0"
    return [*app("Settings"), tap(settings.PAGES[at][0], "item"), enter(name, value)]


def _network_goal(state, slots):
    require(state.settings.wifi and state.settings.network != slots["network"])
    return Goal({"settings": replace(state.settings, network=slots["network"])})


def _silence_draw(state, rng):
    return {"app": pick(rng, state.world.own(LABELS.values()))}


def _silence_goal(state, slots):
    package = next(package for package, name in LABELS.items() if name == slots["app"])
    return Goal({"settings": replace(state.settings, silent=(package,))})


LABELS = {
    "com.android.messaging": "Messages", "com.android.calendar": "Calendar", "com.android.deskclock": "Clock",
    "org.cleangui.shop": "Shop", "org.cleangui.browser": "Browser", "com.android.documentsui": "Files",
}  # fmt: skip


# --- contacts --------------------------------------------------------------------------------------------------------


def a_contact(state, rng):
    return {"name": pick(rng, state.contacts).name}


def contact_of(state, name):
    found = [one for one in state.contacts if one.name == name]
    require(len(found) == 1)
    return found[0]


def with_contact(state, new, old=None):
    others = [one for one in state.contacts if one != old]
    return Goal({"contacts": tuple(sorted([*others, *([new] if new else [])], key=repr))})


def _star_goal(state, slots):
    old = contact_of(state, slots["name"])
    require(not old.starred)
    return with_contact(state, replace(old, starred=True), old)


APPS = [
    _template(
        "apps",
        "note",
        ('Write a note titled "{title}" that says "{text}"', 'In Notes, create "{title}" with the text "{text}"'),
        _note_draw,
        lambda state, slots: with_note(state, notes.Note(slots["title"], slots["text"])),
        lambda state, slots: [*app("Notes"), *note_moves(slots)],
    ),
    _template(
        "apps",
        "timer",
        ("Start a timer of {minutes} minutes", "Set the timer to {minutes} minutes and start it"),
        _timer_draw,
        lambda state, slots: Goal({"timer": True}, place=_timer_place(int(slots["minutes"]), True)),
        lambda state, slots: [*_timer_moves(slots), tap("Start", "button")],
    ),
    _template(
        "apps",
        "event",
        ('Create an event "{title}" on {day} at {time}', 'Add "{title}" to the calendar: {day}, {time}'),
        _event_draw,
        event_goal,
        lambda state, slots: [*app("Calendar"), *event_moves(state, slots)],
        LONG,
    ),
    _template(
        "apps",
        "delete_file",
        ("Delete the file {file} from the {folder} folder", "In Files, remove {file} from {folder}"),
        a_file,
        _without_file,
        lambda state, slots: [
            *to_folder(slots),
            tap(slots["file"], "item"),
            DETAILS,
            tap("Delete", "item"),
            tap("Delete", "button"),
        ],
    ),
    _choice(
        "timeout",
        "timeout",
        lambda state: state.world.own(settings.TIMEOUTS),
        ("Set the screen timeout to {value}", "Let the screen turn off after {value}"),
        "Display",
        "Screen timeout",
    ),
    _template(
        "apps",
        "star",
        ("Add {name} to the favorite contacts", "Mark the contact {name} as a favorite"),
        a_contact,
        _star_goal,
        lambda state, slots: [*app("Contacts"), tap(slots["name"], "item"), tap("Add to favorites", "button")],
    ),
    _template(
        "apps",
        "count_note",
        (
            'The note "{title}" is a list: how many of "{thing}" are on it?',
            'According to the note "{title}", what is the count of "{thing}"?',
        ),
        _listed,
        lambda state, slots: Goal(answer=(_how_many(state, slots),)),
        lambda state, slots: [*app("Notes"), tap(slots["title"], "item"), answer(_how_many(state, slots))],
    ),
    _template(
        "apps",
        "alarm_off",
        ("Turn off the alarm at {time}", "Switch off the {time} alarm, but keep it"),
        _alarm_draw(True),
        _alarm_turn,
        lambda state, slots: [*app("Clock"), tap(f"Alarm {slots['time']}", "check")],
    ),
    _template(
        "apps",
        "level",
        ("Turn the {level} to the {end}", "Set the {level} to its {end}"),
        _level_draw,
        _level_goal,
        _level_oracle,
    ),
    _template(
        "apps",
        "event_place",
        ('Where is the event "{title}"?', 'What is the location of "{title}" in the calendar?'),
        _placed,
        lambda state, slots: Goal(answer=(_place_of(state, slots),)),
        lambda state, slots: [*_schedule(slots), answer(_place_of(state, slots))],
    ),
    _template(
        "apps",
        "stopwatch",
        ("Start the stopwatch", "Run the stopwatch"),
        lambda state, rng: {},
        lambda state, slots: Goal({"stopwatch": True}),
        lambda state, slots: [*app("Clock"), tap("Stopwatch", "item"), tap("Start", "button")],
    ),
    _template(
        "apps",
        "move_file",
        ("Move the file {file} from {folder} to {target}", "Put {file} of the {folder} folder into {target}"),
        _move_draw,
        lambda state, slots: Goal({"files": files.moved(state.files, (file_of(state, slots),), slots["target"])}),
        lambda state, slots: [
            *to_folder(slots),
            tap(slots["file"], "item"),
            DETAILS,
            tap("Move to", "item"),
            tap(slots["target"], "item"),
        ],
    ),
    _template(
        "apps",
        "delete_note",
        ('Delete the note "{title}"', 'In Notes, remove "{title}"'),
        _a_note,
        lambda state, slots: with_note(state, None, note_of(state, slots["title"])),
        lambda state, slots: [
            *app("Notes"),
            tap(slots["title"], "item"),
            DETAILS,
            tap("Delete", "item"),
            tap("Delete", "button"),
        ],
    ),
    _template(
        "apps",
        "event_time",
        ('At what time is the event "{title}"?', 'When does "{title}" begin, by the calendar?'),
        _an_event,
        lambda state, slots: Goal(answer=_when(state, slots)),
        lambda state, slots: [*_schedule(slots), answer(_when(state, slots)[0])],
    ),
    _choice(
        "language",
        "language",
        lambda state: state.world.pool("language"),
        ("Change the phone's language to {value}", "Set the language to {value}"),
        "System",
        "Language",
    ),
    _template(
        "apps",
        "folder",
        ("Create a folder named {name} in Files", "Make a new folder {name} in the Files app"),
        _folder_draw,
        lambda state, slots: Goal({"files": files.in_order([*state.files, files.File(slots["name"])])}),
        lambda state, slots: [
            *app("Files"),
            tap("New folder", "button"),
            enter("Name", slots["name"]),
            tap("Create", "button"),
        ],
    ),
    _template(
        "apps",
        "city",
        ("Add {city} to the world clock", "Show the time of {city} in the Clock app"),
        _city_draw,
        lambda state, slots: Goal({"cities": tuple(sorted((*state.clock.cities, slots["city"])))}),
        lambda state, slots: [
            *app("Clock"),
            tap("World", "item"),
            tap("Add city", "button"),
            tap(slots["city"], "check"),
        ],
    ),
    _template(
        "apps",
        "delete_event",
        ('Delete the event "{title}"', 'Remove "{title}" from the calendar'),
        _an_event,
        lambda state, slots: with_event(state, None, event_of(state, slots["title"])),
        lambda state, slots: [*_schedule(slots), tap("Delete event", "button"), tap("Delete", "button")],
    ),
    _template(
        "apps",
        "silence",
        ("Turn off the notifications of the {app} app", "Do not let {app} send notifications"),
        _silence_draw,
        _silence_goal,
        lambda state, slots: [
            *app("Settings"),
            tap("Apps", "item"),
            tap(slots["app"], "item"),
            tap("Allow notifications", "check"),
        ],
    ),
    _template(
        "apps",
        "pin_note",
        ('Pin the note "{title}"', 'Keep the note "{title}" on top'),
        _a_note,
        lambda state, slots: with_note(
            state, replace(note_of(state, slots["title"]), pinned=True), note_of(state, slots["title"])
        ),
        lambda state, slots: [*app("Notes"), tap(slots["title"], "item"), DETAILS, tap("Pin", "item")],
    ),
    _template(
        "apps",
        "rename_file",
        ("Rename the file {file} in {folder} to {name}", "Give {file} of the {folder} folder the name {name}"),
        _rename_draw,
        _renamed,
        lambda state, slots: [
            *to_folder(slots),
            tap(slots["file"], "item"),
            DETAILS,
            tap("Rename", "item"),
            enter("Name", slots["name"]),
            tap("Rename", "button"),
        ],
    ),
    _template(
        "apps",
        "network",
        ("Connect to the Wi-Fi network {network}", "Use the Wi-Fi of {network}"),
        lambda state, rng: {"network": pick(rng, state.world.own(settings.NETWORKS))},
        _network_goal,
        lambda state, slots: [
            *app("Settings"),
            tap("Network & internet", "item"),
            tap("Networks", "item"),
            tap(slots["network"], "item"),
        ],
    ),
    _template(
        "apps",
        "next_event",
        ("What is my next event?", "Which event comes next in the calendar?"),
        lambda state, rng: {},
        lambda state, slots: Goal(answer=(_next(state),)),
        lambda state, slots: [*app("Calendar"), tap("Schedule", "button"), answer(_next(state))],
    ),
    _template(
        "apps",
        "timer_set",
        (
            "Set the timer to {minutes} minutes, but do not start it",
            "Enter {minutes} minutes in the timer and leave it there",
        ),
        _timer_draw,
        lambda state, slots: Goal(place=_timer_place(int(slots["minutes"]), False)),
        lambda state, slots: _timer_moves(slots),
    ),
    _template(
        "apps",
        "no_alarm",
        ("Turn off the alarm at {time}", "Switch off the {time} alarm, but keep it"),
        lambda state, rng: {"time": draw_hour(state, rng)},
        _no_alarm_goal,
        lambda state, slots: [*app("Clock"), answer(IMPOSSIBLE)],
    ),
]


# --- install ---------------------------------------------------------------------------------------------------------


def _missing(state, rng, count=1):
    names = [name for name in state.world.pool("app") if name not in store.installed(state)]
    require(len(names) >= count)
    chosen = rng.sample(names, count)
    return {"app": chosen[0]} | ({"app2": chosen[1]} if count > 1 else {})


def _present(state, rng):
    return {"app": pick(rng, [name for name in store.installed(state) if name in state.world.pool("app")])}


def _with_apps(state, *names, place=None):
    return Goal({"apps": tuple(sorted((*(name for name, _ in state.store.apps), *names)))}, place=place)


def _to_app(name):
    return [*app("Store"), enter("Search apps", name), tap(name, "item")]


def _wait_for(moves):
    """Until it is installed: the button "Open" is looked for, which takes its time."""
    return [*moves, tap("Install", "button"), tap("Open", "button")]


def _removed(state, slots):
    new = store.removed(state, slots["app"]).store
    return Goal({"apps": tuple(sorted(name for name, _ in new.apps)), "options": tuple(sorted(new.on)),
                 "accounts": (), "rated": new.rated})  # fmt: skip


def _option_draw(state, rng):
    slots = _present(state, rng)
    option = pick(rng, state.world.own(store.OPTIONS))
    return slots | {"option": option, "way": "off" if (slots["app"], option) in state.store.on else "on"}


def _option_goal(state, slots):
    require((slots["way"] == "off") == ((slots["app"], slots["option"]) in state.store.on))
    return Goal({"options": tuple(sorted(store.turned(state.store, slots["app"], slots["option"]).on))})


def _account_draw(state, rng):
    first, last = pick(rng, state.world.pool("first")), pick(rng, state.world.pool("last"))
    word = pick(rng, state.world.pool("noun")).lower()
    return _present(state, rng) | {
        "email": f"{first}.{last}@mail.com".lower(),
        "password": f"{word}{rng.randint(10, 99)}",
    }


def _stars_draw(state, rng):
    return {"app": pick(rng, state.world.pool("app")), "stars": str(rng.randint(2, 5))}


INSTALL = [
    _template(
        "install",
        "install",
        ("Install the {app} app", "Get the {app} app from the Store"),
        _missing,
        lambda state, slots: _with_apps(state, slots["app"]),
        lambda state, slots: [*_to_app(slots["app"]), tap("Install", "button")],
    ),
    _template(
        "install",
        "uninstall",
        ("Uninstall the {app} app", "Remove the {app} app from the phone"),
        _present,
        _removed,
        lambda state, slots: [*_to_app(slots["app"]), tap("Uninstall", "button"), Move("Uninstall", kind="button")],
    ),
    _template(
        "install",
        "install_open",
        ("Install the {app} app and open it", "Open {app} (install it first)"),
        _missing,
        lambda state, slots: _with_apps(
            state, slots["app"], place=lambda now: now.front == store.package(slots["app"])
        ),
        lambda state, slots: _wait_for(_to_app(slots["app"])),
    ),
    _template(
        "install",
        "forgot",
        (
            "Open the {app} app, go to login, and select forgot password",
            "In {app}, go to the page for a forgotten password",
        ),
        _present,
        lambda state, slots: Goal(place=shows(store.package(slots["app"]), "forgot")),
        lambda state, slots: [*app(slots["app"]), tap("Log in", "button"), tap("Forgot password?", "button")],
    ),
    _template(
        "install",
        "option",
        ('Turn {way} "{option}" in the {app} app', "In the settings of {app}, switch {way} {option}"),
        _option_draw,
        _option_goal,
        lambda state, slots: [*app(slots["app"]), tap("Settings", "button"), tap(slots["option"], "check")],
    ),
    _template(
        "install",
        "install_forgot",
        (
            "Install {app}, go to login, and select forgot password",
            "Get {app} from the Store and open its page for a forgotten password",
        ),
        _missing,
        lambda state, slots: _with_apps(state, slots["app"], place=shows(store.package(slots["app"]), "forgot")),
        lambda state, slots: [
            *_wait_for(_to_app(slots["app"])),
            tap("Log in", "button"),
            tap("Forgot password?", "button"),
        ],
        LONG,
    ),
    _template(
        "install",
        "login",
        (
            "Log in to the {app} app with {email} and the password {password}",
            "Open {app} and sign in as {email}, password {password}",
        ),
        _account_draw,
        lambda state, slots: Goal({"accounts": ((slots["app"], slots["email"]),)}),
        lambda state, slots: [
            *app(slots["app"]),
            tap("Log in", "button"),
            enter("Email", slots["email"]),
            enter("Password", slots["password"]),
            BACK,
            tap("Log in", "button"),
        ],
    ),
    _template(
        "install",
        "rate",
        ("Give the {app} app {stars} stars in the Store", "Rate {app} with {stars} stars"),
        _stars_draw,
        lambda state, slots: Goal({"rated": ((slots["app"], int(slots["stars"])),)}),
        lambda state, slots: [*_to_app(slots["app"]), tap(f"{slots['stars']} stars", "button")],
    ),
    _template(
        "install",
        "install_two",
        ("Install the apps {app} and {app2}", "Get {app} and {app2} from the Store"),
        lambda state, rng: _missing(state, rng, 2),
        lambda state, slots: _with_apps(state, slots["app"], slots["app2"]),
        lambda state, slots: [
            *_to_app(slots["app"]),
            tap("Install", "button"),
            BACK,
            enter("Search apps", slots["app2"]),
            tap(slots["app2"], "item"),
            tap("Install", "button"),
        ],
        LONG,
    ),
]
TEMPLATES = [*APPS, *INSTALL]
