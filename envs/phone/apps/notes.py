"""Notes: a list by title, each note a title and some lines."""

from dataclasses import dataclass, replace

from envs.phone.screen import (
    Widget,
    ask,
    dialog,
    entry,
    leave,
    menu,
    page,
    row,
    say,
    search_box,
    to,
)

PACKAGE, LABEL, ICON, PERMISSION = "org.cleangui.notes", "Notes", ("note", (242, 153, 0)), ""


@dataclass(frozen=True)
class Note:
    title: str
    words: str = ""
    pinned: bool = False


def begin(world, time):
    """Six notes; some are lists of what to bring."""
    rng, notes = world.rng("notes"), []
    for topic in rng.sample(world.pool("topic"), min(6, len(world.pool("topic")))):
        things = rng.sample(world.pool("noun"), min(3, len(world.pool("noun"))))
        lines = "\n".join(f"{rng.randint(2, 9)} x {thing.lower()}" for thing in things)
        words = lines if rng.random() < 0.6 else f"Ask about the {rng.choice(world.pool('matter')).lower()} next week"
        notes.append(Note(f"{topic} {rng.choice(world.pool('matter')).lower()}", words, rng.random() < 0.15))
    return {"notes": in_order(notes)}


def in_order(notes):
    return tuple(sorted(notes, key=lambda note: (not note.pinned, note.title, note.words)))


def _main(state):
    words, rows = state.screen.get("find").lower(), [search_box(state, "find", "Search notes")]
    for note in state.notes:
        if words in f"{note.title} {note.words}".lower():
            end = (
                Widget("image", (0, 0, 24, 24), icon="pin", label="Pinned", ink="soft", size=18)
                if note.pinned
                else None
            )
            kept = {"title": note.title, "words": note.words}
            rows.append(
                row(note.title or "Untitled", note.words.replace("\n", ", "), to("note", note, **kept), end=end)
            )
    return page(state, "Notes", rows, up=False, fab=("plus", "New note", to("note")))


def _note(state):
    screen, old = state.screen, state.screen.about
    title, words = screen.get("title").strip(), screen.get("words").strip()

    def save(state):
        if not title and not words:
            return say(state, "The note is empty")
        others = [note for note in state.notes if note != old]
        new = Note(title, words, bool(old) and old.pinned)
        return say(leave(replace(state, notes=in_order([*others, new]))), "Note saved")

    def pin(state):
        others = [note for note in state.notes if note != old]
        return leave(replace(state, notes=in_order([*others, replace(old, pinned=not old.pinned)])))

    def delete(state):
        state = leave(replace(state, notes=tuple(note for note in state.notes if note != old)))
        return say(state, "Note deleted")

    over = None
    if screen.dialog == "menu":
        options = [("Unpin" if old.pinned else "Pin", pin), ("Delete", dialog("delete"))]
        over = menu(state, options)
    elif screen.dialog == "delete":
        over = ask(state, "Delete note?", f"{old.title} will be gone for good.", "Delete", delete)
    buttons = [("check", "Save", save)] + ([("more", "More options", dialog("menu"))] if old else [])
    rows = [entry(state, "title", "Title"), entry(state, "words", "Note", high=200)]
    return page(state, "Edit note" if old else "New note", rows, buttons=buttons, over=over)


SCREENS = {"main": _main, "note": _note}
