"""Messages: conversations by number, newest first; names come from the contacts."""

from dataclasses import dataclass, replace

from envs.phone.glyphs import width as text_width
from envs.phone.glyphs import wrap
from envs.phone.screen import (
    WIDTH,
    Widget,
    ask,
    box,
    colour,
    dialog,
    header,
    hour,
    image,
    leave,
    line_of,
    menu,
    open_screen,
    page,
    row,
    say,
    search_box,
    swap,
    text,
    to,
)

PACKAGE, LABEL, ICON = "com.android.messaging", "Messages", ("message", (24, 128, 56))
PERMISSION = "send and view SMS messages"


@dataclass(frozen=True)
class Message:
    words: str
    sent: bool  # by the phone's owner
    time: str


@dataclass(frozen=True)
class Thread:
    phone: str
    messages: tuple = ()


def begin(world, time):
    """Five conversations with people of the contacts; the last message of each is a question, a code or an address."""
    from envs.phone.apps.contacts import begin as people

    rng, threads = world.rng("messages"), []
    known = people(world, time)["contacts"]
    for contact in rng.sample(known, min(5, len(known))):
        minute = rng.randint(0, 59)
        talk = [Message(*one, hour(8, minute)) for one in _talk(world, rng)]
        threads.append(Thread(contact.phone, tuple(talk)))
    return {"threads": tuple(threads)}


def _talk(world, rng):
    """[(words, sent)]; the last words were received."""
    topic, place = rng.choice(world.pool("topic")).lower(), rng.choice(world.pool("street"))
    first = rng.choice(("Hello!", "Hi there", "Good morning", "Are you awake?"))
    last = rng.choice((
        f"The {rng.choice(world.pool('code'))} code is {rng.randint(1000, 9999)}",
        f"The {topic} class is at {rng.randint(2, 98)} {place} Street",
        f"Shall we talk about the {topic} {rng.choice(world.pool('matter')).lower()}?",
        f"Please bring {rng.randint(2, 9)} tickets for the {topic} evening",
    ))  # fmt: skip
    return [(first, False), (rng.choice(("Hi, what is new?", "All fine here", "Yes, tell me")), True), (last, False)]


def name_of(state, phone):
    """Who a number belongs to, or the number."""
    return next((contact.name for contact in state.contacts if contact.phone == phone), phone)


def sent(threads, phone, words, time):
    """The conversations after a message was sent to a number."""
    old = next((thread for thread in threads if thread.phone == phone), Thread(phone))
    new = replace(old, messages=(*old.messages, Message(words, True, time)))
    return (new, *(thread for thread in threads if thread.phone != phone))


def _main(state):
    words, rows = state.screen.get("find").lower(), [search_box(state, "find", "Search messages")]
    for thread in state.threads:
        name, last = name_of(state, thread.phone), thread.messages[-1]
        if words and not any(words in part.lower() for part in (name, *(m.words for m in thread.messages))):
            continue
        note = ("You: " if last.sent else "") + last.words
        rows.append(row(name, note, to("thread", thread.phone), icon=name[:1], disc=colour(name),
                        end=text(last.time, 0, 0, 62, 20, 12, ink="soft", align="right")))  # fmt: skip
    return page(state, "Messages", rows, up=False, fab=("plus", "Start chat", to("new")))


def _new(state):
    """To whom: a number that is typed, or somebody of the contacts."""
    typed = state.screen.get("to").strip()

    def start(phone):
        return lambda state: open_screen(leave(state), "thread", phone)

    found = [one for one in state.contacts if one.phone and (typed.lower() in one.name.lower() or typed in one.phone)]
    number = typed.replace("-", "").replace("+", "").replace(" ", "")
    exact = typed if number.isdecimal() and len(number) > 2 else found[0].phone if len(found) == 1 else ""
    rows = [search_box(state, "to", "Type a name or a number", enter=start(exact) if exact else None)]
    if number.isdecimal() and len(number) > 2:
        rows.append(row(f"Send to {typed}", tap=start(typed), icon="message"))
    rows.append(header("Contacts"))
    rows += [row(one.name, one.phone, start(one.phone), icon=one.name[:1], disc=colour(one.name)) for one in found]
    return page(state, "New conversation", rows)


def _thread(state):
    screen, phone = state.screen, state.screen.about
    thread = next((thread for thread in state.threads if thread.phone == phone), Thread(phone))

    def send(state):
        words = state.screen.get("message").strip()
        if not words:
            return state
        state = replace(state, threads=sent(state.threads, phone, words, hour(state.time.hour, state.time.minute)))
        return swap(state, replace(state.screen.set(message=""), scroll=10_000))

    def delete(state):
        state = leave(replace(state, threads=tuple(one for one in state.threads if one.phone != phone)))
        return say(state, "Conversation deleted")

    over = None
    if screen.dialog == "menu":
        over = menu(state, [("Details", dialog("details")), ("Delete", dialog("delete"))])
    elif screen.dialog == "delete":
        over = ask(state, "Delete conversation?", "All of its messages will be gone.", "Delete", delete)
    elif screen.dialog == "details":
        over = ask(state, "Details", f"Number: {phone}", "OK", lambda state: state, no="Close")
    foot = line_of(
        box(state, "message", "Text message", 10, 6, WIDTH - 68, 46, enter=None, fill="card", line="", radius=23),
        image("send", WIDTH - 52, 7, 44, "Send message", 24, tap=send, ink="accent"),
        height=58,
    )
    rows = [_bubble(message) for message in thread.messages]
    title = name_of(state, phone)
    return page(state, title, rows, buttons=[("more", "More options", dialog("menu"))], foot=foot, over=over)


def _bubble(message):
    lines = wrap(message.words, 15, 210)
    wide = round(max(text_width(line, 15) for line in lines)) + 26
    high = len(lines) * 21 + 16
    left = WIDTH - 14 - wide if message.sent else 14
    ink, fill = ("on accent", "accent") if message.sent else ("ink", "card")
    shape = Widget("group", (left, 6, wide, high), fill=fill, radius=16)
    words = text(message.words, left + 13, 14, wide - 12, high - 16, 15, ink=ink, wrapped=True, id="message_text")
    place = (left, 8 + high, wide, 16) if message.sent else (left + 4, 8 + high, 90, 16)
    time = Widget("text", place, message.time, size=11, ink="soft", align="right" if message.sent else "left")
    return line_of(shape, words, time, height=high + 28)


SCREENS = {"main": _main, "new": _new, "thread": _thread}
