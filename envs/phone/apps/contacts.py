"""Contacts: a list with a search, a page for each person, a form."""

from dataclasses import dataclass, replace

from envs.phone.screen import (
    WIDTH,
    Screen,
    Widget,
    ask,
    button,
    choose,
    colour,
    dialog,
    entry,
    image,
    leave,
    line_of,
    menu,
    open_app,
    open_screen,
    page,
    row,
    say,
    search_box,
    swap,
    text,
    to,
)

PACKAGE, LABEL, ICON = "com.android.contacts", "Contacts", ("person", (26, 115, 232))
PERMISSION = "access your contacts"
LABELS = ("Mobile", "Home", "Work", "School", "Other")
FIELDS = ("first", "last", "phone", "email")


@dataclass(frozen=True)
class Contact:
    first: str
    last: str = ""
    phone: str = ""
    label: str = "Mobile"
    email: str = ""
    starred: bool = False

    @property
    def name(self):
        return f"{self.first} {self.last}".strip()


def begin(world, time):
    """Ten people, each with another first name; one of them has no e-mail address."""
    rng, known = world.rng("contacts"), []
    for first in rng.sample(world.pool("first"), min(10, len(world.pool("first")))):
        last = rng.choice(world.pool("last"))
        phone = f"555-{rng.randint(1000, 9999)}"
        email = f"{first}.{last}@mail.com".lower() if rng.random() < 0.7 else ""
        known.append(Contact(first, last, phone, rng.choice(LABELS[:3]), email, rng.random() < 0.2))
    return {"contacts": in_order(known)}


def in_order(known):
    return tuple(sorted(known, key=lambda contact: (contact.first, contact.last, contact.phone)))


def _main(state):
    words = state.screen.get("find").lower()
    found = [contact for contact in state.contacts if words in contact.name.lower() or words in contact.phone]
    rows = [search_box(state, "find", "Search contacts")]
    rows += [
        row(one.name, icon=one.name[:1] or "?", disc=colour(one.name), tap=to("person", one),
            end=Widget("image", (0, 0, 22, 22), icon="star_full", ink="gold", size=18) if one.starred else None)
        for one in found
    ]  # fmt: skip
    return page(state, "Contacts", rows, up=False, fab=("plus", "Create contact", to("form")))


def _person(state):
    contact = state.screen.about

    def star(state):
        new = replace(contact, starred=not contact.starred)
        return _saved(state, contact, new)

    def delete(state):
        state = leave(replace(state, contacts=tuple(one for one in state.contacts if one != contact)))
        return say(state, "1 contact deleted")

    over = None
    if state.screen.dialog == "menu":
        over = menu(state, [("Delete", dialog("delete")), ("Share", lambda state: say(state, "Nothing to share with"))])
    elif state.screen.dialog == "delete":
        over = ask(state, "Delete contact?", f"{contact.name} will be removed from this phone.", "Delete", delete)
    face = (
        Widget("image", (140, 12, 80, 80), contact.name[:1] or "?", size=36, ink="white", fill=colour(contact.name),
               radius=40, align="center"),
        text(contact.name, 16, 98, WIDTH - 32, 34, 24, align="center", id="name"),
    )  # fmt: skip
    rows = [line_of(*face, height=140)]
    actions = (
        _action("message", "Message", 84, lambda state: _write(state, contact)),
        _action("phone", "Call", 208, lambda state: say(state, f"Calling {contact.name}: no network")),
    )
    rows.append(line_of(*actions, height=72))
    rows += [row(contact.phone, contact.label, icon="phone", id="phone")] if contact.phone else []
    rows += [row(contact.email, "Email", icon="mail", id="email")] if contact.email else []
    kept = {name: getattr(contact, name) for name in FIELDS}
    buttons = [
        ("edit", "Edit contact", to("form", contact, label=contact.label, **kept)),
        ("star_full" if contact.starred else "star", "Remove from favorites" if contact.starred else "Add to favorites",
         star),
        ("more", "More options", dialog("menu")),
    ]  # fmt: skip
    return page(state, "", rows, buttons=buttons, over=over)


def _action(icon, label, left, tap):
    face = image(icon, 20, 4, 36, ink="accent", fill="card", radius=18, size=20)
    parts = face, text(label, 0, 42, 76, 20, 13, ink="accent", align="center")
    return Widget("row", (left, 2, 76, 68), tap=tap, parts=parts)


def _write(state, contact):
    return open_app(state, "com.android.messaging", Screen("main"), Screen("thread", contact.phone))


def _saved(state, old, new):
    """`new` in the place of `old`, and on its page."""
    others = [one for one in state.contacts if one != old]
    return swap(replace(state, contacts=in_order([*others, new])), Screen("person", new))


def _form(state):
    screen, old = state.screen, state.screen.about

    def save(state):
        values = {name: screen.get(name).strip() for name in FIELDS}
        if not values["first"] and not values["last"]:
            return say(state, "Enter a name")
        new = Contact(**values, label=screen.get("label", "Mobile"), starred=bool(old) and old.starred)
        if old is None:
            return _saved(open_screen(leave(state), "person", new), None, new)
        state = leave(state)
        return _saved(state, old, new)

    over = None
    if screen.dialog == "label":
        chosen = screen.get("label", "Mobile")
        over = choose(state, "Label", LABELS, chosen, lambda label: lambda s: swap(s, s.screen.set(label=label)))
    rows = [
        entry(state, "first", "First name"),
        entry(state, "last", "Last name"),
        entry(state, "phone", "Phone"),
        row("Label", end=None, value=screen.get("label", "Mobile"), tap=dialog("label"), icon="down"),
        entry(state, "email", "Email"),
    ]
    title = "Edit contact" if old else "Create contact"
    shown = page(state, title, rows, over=over)
    save_button = button("Save", WIDTH - 92, 30, 80, save, height=38)
    if over:
        return shown
    return replace(shown, root=replace(shown.root, parts=(*shown.root.parts, save_button)))


SCREENS = {"main": _main, "person": _person, "form": _form}
