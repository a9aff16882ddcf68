"""Task templates with several parts and exact data, across apps, in the spirit of AndroidWorld."""

from dataclasses import replace
from datetime import date, timedelta

from envs.phone.actions import IMPOSSIBLE
from envs.phone.app_tasks import (
    DETAILS,
    a_contact,
    contact_of,
    event_of,
    new_title,
    note_moves,
    note_of,
    sentence,
    with_contact,
    with_event,
    with_note,
)
from envs.phone.apps import calendar, contacts, files, messages, notes, settings, store
from envs.phone.apps.clock import Alarm, with_alarm
from envs.phone.screen import hour
from envs.phone.tasks import (
    BACK,
    HOME,
    LONG,
    Goal,
    Template,
    answer,
    app,
    enter,
    pick,
    require,
    tap,
)
from envs.phone.web_tasks import alarm_moves, draw_toggle, parse_hour, toggle_key, toggle_moves

SEND = tap("Send message", "button")


def _sent(state, *pairs, **changes):
    """Messages were sent: [(number, words)]."""
    threads = state.threads
    for phone, words in pairs:
        threads = messages.sent(threads, phone, words, "")
    kept = {thread.phone: tuple((m.words, m.sent) for m in thread.messages) for thread in threads}
    return Goal({"threads": kept} | changes)


def _template(name, phrasings, draw, goal, oracle, horizon=15):
    return Template(name, "world", phrasings, draw, goal, oracle, horizon)


# --- contacts --------------------------------------------------------------------------------------------------------


def _person(state, rng):
    first, last = pick(rng, state.world.pool("first")), pick(rng, state.world.pool("last"))
    require(f"{first} {last}" not in [one.name for one in state.contacts])
    return {"first": first, "last": last, "phone": f"555-{rng.randint(1000, 9999)}"}


def _fill(slots):
    fields = ("first", "First name"), ("last", "Last name"), ("phone", "Phone")
    return [tap("Create contact", "button"), *(enter(label, slots[key]) for key, label in fields)]


def _draft_goal(state, slots):
    def place(now):
        screen = now.screen
        values = {key: screen.get(key) for key in ("first", "last", "phone")}
        wanted = {key: slots[key] for key in values}
        chosen = screen.get("label", "Mobile") == slots["label"]
        return now.front == contacts.PACKAGE and screen.name == "form" and values == wanted and chosen

    return Goal(place=place)


def _draft_draw(state, rng):
    return _person(state, rng) | {"label": pick(rng, state.world.own(contacts.LABELS))}


def _draft_oracle(state, slots):
    label = [] if slots["label"] == "Mobile" else [BACK, tap("Label", "item"), tap(slots["label"], "radio")]
    return [*app("Contacts"), *_fill(slots), *label]


def _number_draw(state, rng):
    return a_contact(state, rng) | {"phone": f"555-{rng.randint(1000, 9999)}"}


def _number_goal(state, slots):
    old = contact_of(state, slots["name"])
    return with_contact(state, replace(old, phone=slots["phone"]), old)


# --- messages --------------------------------------------------------------------------------------------------------


def _to_number(state, rng):
    return {"phone": f"555-{rng.randint(1000, 9999)}", "message": sentence(state, rng)}


def _write(phone, words):
    """From the list of conversations."""
    return [tap("Start chat", "button"), enter("Type a name or a number", phone), tap(f"Send to {phone}", "item"),
            enter("Text message", words), SEND]  # fmt: skip


def _to_person(state, rng):
    return a_contact(state, rng) | {"message": sentence(state, rng)}


def _write_to(name, words):
    return [tap("Start chat", "button"), tap(name, "item"), enter("Text message", words), SEND]


def _known_thread(state, rng):
    thread = pick(rng, state.threads)
    return thread, messages.name_of(state, thread.phone)


def _reply_draw(state, rng):
    return {"name": _known_thread(state, rng)[1], "message": sentence(state, rng)}


def _reply_goal(state, slots):
    phone = contact_of(state, slots["name"]).phone
    require(phone in [thread.phone for thread in state.threads])
    return _sent(state, (phone, slots["message"]))


def _newest_goal(state, slots):
    return _sent(state, (state.threads[0].phone, slots["message"]))


def _code(state, name):
    """The code that somebody sent."""
    phone = contact_of(state, name).phone
    for thread in state.threads:
        if thread.phone == phone and " code is " in thread.messages[-1].words:
            return thread.messages[-1].words.rpartition(" ")[2]
    raise LookupError("no code")


def _code_draw(state, rng):
    name = _known_thread(state, rng)[1]
    _code(state, name)
    return {"name": name}


def _forward_draw(state, rng):
    slots = _code_draw(state, rng)
    other = pick(rng, [one.name for one in state.contacts if one.name != slots["name"]])
    return slots | {"other": other}


def _forward_oracle(state, slots):
    code = _code(state, slots["name"])
    return [*app("Messages"), tap(slots["name"], "item"), BACK, *_write_to(slots["other"], code)]


def _unknown(state, slots):
    phone = contact_of(state, slots["name"]).phone
    threads = {one.phone: tuple((m.words, m.sent) for m in one.messages) for one in state.threads if one.phone != phone}
    return Goal({"threads": threads})


# --- several parts ---------------------------------------------------------------------------------------------------


def _two_toggles(state, rng):
    keys = [key for key in state.world.pool("toggle") if key != "airplane"]
    require(len(keys) > 1)
    a, b = rng.sample(keys, 2)
    both = [(settings.TOGGLES[key][0], "off" if getattr(state.settings, key) else "on") for key in (a, b)]
    return {"toggle": both[0][0], "way": both[0][1], "toggle2": both[1][0], "way2": both[1][1]}


def _two_goal(state, slots):
    changed = settings.turned(state.settings, toggle_key(slots["toggle"]), slots["way"] == "on")
    return Goal({"settings": settings.turned(changed, toggle_key(slots["toggle2"]), slots["way2"] == "on")})


def _two_oracle(state, slots):
    first, second = toggle_moves(slots["toggle"]), toggle_moves(slots["toggle2"])
    if first[0] == second[0]:  # on the same page
        return [*app("Settings"), *first, second[1]]
    return [*app("Settings"), *first, BACK, *second]


def _toggle_app_draw(state, rng):
    slots = draw_toggle(state, rng)
    return slots | {"app": pick(rng, [name for name in store.installed(state) if name in state.world.pool("app")])}


def _toggle_app_goal(state, slots):
    settled = settings.turned(state.settings, toggle_key(slots["toggle"]), slots["way"] == "on")
    return Goal({"settings": settled}, place=lambda now: now.front == store.package(slots["app"]))


def _address_draw(state, rng):
    event = pick(rng, [event for event in state.events if event.place])
    return {"title": event.title} | a_contact(state, rng)


def _address_goal(state, slots):
    place = event_of(state, slots["title"]).place
    require(place)
    return _sent(state, (contact_of(state, slots["name"]).phone, place))


def _address_oracle(state, slots):
    place = event_of(state, slots["title"]).place
    find = [*app("Calendar"), tap("Schedule", "button"), tap(slots["title"], "item")]
    return [*find, HOME, *app("Messages"), *_write_to(slots["name"], place)]


def _note_sms_draw(state, rng):
    return {"title": pick(rng, [note for note in state.notes if "\n" not in note.words]).title} | a_contact(state, rng)


def _note_sms_goal(state, slots):
    words = note_of(state, slots["title"]).words
    require(words and "\n" not in words)
    return _sent(state, (contact_of(state, slots["name"]).phone, words))


def _note_sms_oracle(state, slots):
    find = [*app("Notes"), tap(slots["title"], "item"), HOME, *app("Messages")]
    return [*find, *_write_to(slots["name"], note_of(state, slots["title"]).words)]


def _append_draw(state, rng):
    return {"title": pick(rng, state.notes).title, "text": sentence(state, rng)}


def _change_goal(state, slots):
    old = note_of(state, slots["title"])
    return with_note(state, replace(old, words=slots["text"]), old)


def _event_hour(state, slots):
    """The time of an event, for an alarm on a dial of five minutes."""
    event = event_of(state, slots["title"])
    return hour(event.hour, event.minute)


def _event_alarm_goal(state, slots):
    new = Alarm(*parse_hour(_event_hour(state, slots)))
    require(new not in state.clock.alarms)
    return Goal({"alarms": with_alarm(state.clock, new).alarms})


def _event_alarm_oracle(state, slots):
    find = [*app("Calendar"), tap("Schedule", "button"), tap(slots["title"], "item")]
    return [*find, HOME, *app("Clock"), *alarm_moves(state, _event_hour(state, slots)), tap("Save", "button")]


def _shift_draw(state, rng):
    event = pick(rng, state.events)
    return {"title": event.title}


def _shifted(state, slots):
    """The event a day later."""
    old = event_of(state, slots["title"])
    day = (date.fromisoformat(old.day) + timedelta(days=1)).isoformat()
    return with_event(state, replace(old, day=day), old)


def _day_draw(state, rng):
    days = [event.day for event in state.events]
    month, own = state.time.strftime("%Y-%m"), state.world.own(range(1, 32))
    day = pick(rng, sorted({day for day in days if days.count(day) < 3 and day[:7] == month and int(day[8:]) in own}))
    return {"day": calendar.long_day(day)}


def _on_day(state, slots):
    return [event for event in state.events if calendar.long_day(event.day) == slots["day"]]


def _day_oracle(state, slots):
    events = _on_day(state, slots)
    number = slots["day"].rpartition(" ")[2]
    moves = [*app("Calendar"), tap(number, "item")]
    for event in events:
        moves += [tap(event.title, "item"), tap("Delete event", "button"), tap("Delete", "button")]
    return moves


def _day_goal(state, slots):
    require(_on_day(state, slots))
    return Goal({"events": tuple(event for event in state.events if event not in _on_day(state, slots))})


def _folder_of(state, rng):
    counts = {
        folder: [f for f in state.files if f.folder == folder and f.name] for folder in state.world.own(files.FOLDERS)
    }
    return {"folder": pick(rng, [folder for folder, inside in counts.items() if len(inside) == 2])}


def _inside(state, slots):
    return [file for file in state.files if file.folder == slots["folder"] and file.name]


def _clean_oracle(state, slots):
    moves = [*app("Files"), tap(slots["folder"], "item")]
    for file in _inside(state, slots):
        moves += [tap(file.name, "item"), DETAILS, tap("Delete", "item"), tap("Delete", "button")]
    return moves


def _contact_note_draw(state, rng):
    return a_contact(state, rng) | {"title": new_title(state, rng)}


def _contact_note_goal(state, slots):
    phone = contact_of(state, slots["name"]).phone
    return with_note(state, notes.Note(slots["title"], phone))


def _contact_note_oracle(state, slots):
    note = {"title": slots["title"], "text": contact_of(state, slots["name"]).phone}
    return [*app("Contacts"), tap(slots["name"], "item"), HOME, *app("Notes"), *note_moves(note)]


def _no_contact_goal(state, slots):
    require(f"{slots['first']} {slots['last']}" not in [one.name for one in state.contacts])
    return Goal(answer=(IMPOSSIBLE,))


TEMPLATES = [
    _template(
        "contact",
        (
            "Create a new contact for {first} {last}. Their number is {phone}.",
            "Save {phone} as the number of {first} {last} in the contacts",
        ),
        _person,
        lambda state, slots: with_contact(state, contacts.Contact(**slots)),
        lambda state, slots: [*app("Contacts"), *_fill(slots), tap("Save", "button")],
    ),
    _template(
        "sms",
        ("Send a text message to {phone} with the message: {message}", 'Text "{message}" to {phone}'),
        _to_number,
        lambda state, slots: _sent(state, (slots["phone"], slots["message"])),
        lambda state, slots: [*app("Messages"), *_write(slots["phone"], slots["message"])],
    ),
    _template(
        "two_toggles",
        (
            "Turn {way} {toggle}, then turn {way2} {toggle2}",
            "In the settings, switch {toggle} {way} and {toggle2} {way2}",
        ),
        _two_toggles,
        _two_goal,
        _two_oracle,
    ),
    _template(
        "reply",
        ("Reply to {name} with the message: {message}", 'Answer {name}\'s last message: "{message}"'),
        _reply_draw,
        _reply_goal,
        lambda state, slots: [
            *app("Messages"),
            tap(slots["name"], "item"),
            enter("Text message", slots["message"]),
            SEND,
        ],
    ),
    _template(
        "clean_folder",
        ("Delete all files of the {folder} folder", "Empty the folder {folder}, but keep it"),
        _folder_of,
        lambda state, slots: Goal({"files": tuple(f for f in state.files if f not in _inside(state, slots))}),
        _clean_oracle,
        LONG,
    ),
    _template(
        "code",
        ("What is the code that {name} sent?", "Which code is in the message of {name}?"),
        _code_draw,
        lambda state, slots: Goal(answer=(_code(state, slots["name"]),)),
        lambda state, slots: [*app("Messages"), tap(slots["name"], "item"), answer(_code(state, slots["name"]))],
    ),
    _template(
        "event_alarm",
        ('Set an alarm for the time at which the event "{title}" begins', 'Let the alarm ring when "{title}" begins'),
        lambda state, rng: {"title": pick(rng, state.events).title},
        _event_alarm_goal,
        _event_alarm_oracle,
        LONG,
    ),
    _template(
        "draft",
        (
            "Go to the new contact screen and enter the following details: first name {first}, last name "
            "{last}, phone {phone}, label {label}. Do NOT save.",
            "Fill in a new contact, {first} {last}, {phone}, label {label}, and leave it unsaved",
        ),
        _draft_draw,
        _draft_goal,
        _draft_oracle,
        LONG,
    ),
    _template(
        "sms_contact",
        ("Send {name} the message: {message}", 'Text "{message}" to {name}'),
        _to_person,
        lambda state, slots: _sent(state, (contact_of(state, slots["name"]).phone, slots["message"])),
        lambda state, slots: [*app("Messages"), *_write_to(slots["name"], slots["message"])],
    ),
    _template(
        "toggle_app",
        ("Turn {way} {toggle}, then open the {app} app", "Switch {toggle} {way} and launch {app}"),
        _toggle_app_draw,
        _toggle_app_goal,
        lambda state, slots: [*app("Settings"), *toggle_moves(slots["toggle"]), HOME, *app(slots["app"])],
    ),
    _template(
        "edit_number",
        ("Change the number of {name} to {phone}", "{name} has a new number, {phone}: update it"),
        _number_draw,
        _number_goal,
        lambda state, slots: [
            *app("Contacts"),
            tap(slots["name"], "item"),
            tap("Edit contact", "button"),
            enter("Phone", slots["phone"]),
            tap("Save", "button"),
        ],
    ),
    _template(
        "forward_code",
        (
            "Send {other} the code that {name} sent, and nothing else",
            "Text the code from {name}'s message to {other}: the number only",
        ),
        _forward_draw,
        lambda state, slots: _sent(state, (contact_of(state, slots["other"]).phone, _code(state, slots["name"]))),
        _forward_oracle,
    ),
    _template(
        "delete_contact",
        ("Delete the contact {name}", "Remove {name} from the contacts"),
        a_contact,
        lambda state, slots: with_contact(state, None, contact_of(state, slots["name"])),
        lambda state, slots: [
            *app("Contacts"),
            tap(slots["name"], "item"),
            DETAILS,
            tap("Delete", "item"),
            tap("Delete", "button"),
        ],
    ),
    _template(
        "address",
        (
            'Text the location of the event "{title}" to {name}',
            'Send {name} the place of "{title}", as the calendar has it',
        ),
        _address_draw,
        _address_goal,
        _address_oracle,
        LONG,
    ),
    _template(
        "change_note",
        ('Update the content of the note "{title}" to "{text}"', 'Replace what the note "{title}" says by "{text}"'),
        _append_draw,
        _change_goal,
        lambda state, slots: [
            *app("Notes"),
            tap(slots["title"], "item"),
            enter("Note", slots["text"]),
            tap("Save", "button"),
        ],
    ),
    _template(
        "delete_thread",
        ("Delete the conversation with {name}", "Remove all messages of {name}"),
        lambda state, rng: {"name": _known_thread(state, rng)[1]},
        _unknown,
        lambda state, slots: [
            *app("Messages"),
            tap(slots["name"], "item"),
            DETAILS,
            tap("Delete", "item"),
            tap("Delete", "button"),
        ],
    ),
    _template(
        "note_sms",
        (
            'Send {name} what the note "{title}" says',
            'Text the content of the note "{title}" to {name}',
        ),
        _note_sms_draw,
        _note_sms_goal,
        _note_sms_oracle,
        LONG,
    ),
    _template(
        "reply_newest",
        ("Reply to the most recent text message with: {message}", 'Answer the newest conversation: "{message}"'),
        lambda state, rng: {"message": sentence(state, rng)},
        _newest_goal,
        lambda state, slots: [
            *app("Messages"),
            tap(messages.name_of(state, state.threads[0].phone), "item"),
            enter("Text message", slots["message"]),
            SEND,
        ],
    ),
    _template(
        "contact_note",
        (
            'Write the number of {name} in a note titled "{title}"',
            'Make a note "{title}" that holds {name}\'s phone number',
        ),
        _contact_note_draw,
        _contact_note_goal,
        _contact_note_oracle,
        LONG,
    ),
    _template(
        "shift_event",
        ('Move the event "{title}" to the day after', 'Let "{title}" take place one day later'),
        _shift_draw,
        _shifted,
        lambda state, slots: [
            *app("Calendar"),
            tap("Schedule", "button"),
            tap(slots["title"], "item"),
            tap("Edit event", "button"),
            tap("Next day", "button"),
            tap("Save", "button"),
        ],
    ),
    _template(
        "clear_day",
        ("Delete all events on {day}", "Clear the calendar on {day}"),
        _day_draw,
        _day_goal,
        _day_oracle,
        LONG,
    ),
    _template(
        "phone_number",
        ("What is the phone number of {name}?", "Which number does {name} have?"),
        a_contact,
        lambda state, slots: Goal(answer=(contact_of(state, slots["name"]).phone,)),
        lambda state, slots: [
            *app("Contacts"),
            tap(slots["name"], "item"),
            answer(contact_of(state, slots["name"]).phone),
        ],
    ),
    _template(
        "no_contact",
        ("What is the phone number of {first} {last}?", "Which number do the contacts have for {first} {last}?"),
        lambda state, rng: {key: words for key, words in _person(state, rng).items() if key != "phone"},
        _no_contact_goal,
        lambda state, slots: [*app("Contacts"), enter("Search contacts", slots["first"]), answer(IMPOSSIBLE)],
    ),
]
