"""Files: folders of the phone's storage; a long press selects."""

from dataclasses import dataclass, replace

from envs.phone.screen import (
    ask,
    close_dialog,
    dialog,
    draft,
    header,
    leave,
    menu,
    page,
    paragraph,
    prompt,
    row,
    say,
    search_box,
    swap,
    then,
    to,
)

PACKAGE, LABEL, ICON = "com.android.documentsui", "Files", ("folder", (0, 121, 130))
PERMISSION = "access files on this phone"
FOLDERS = ("Documents", "Download", "Music", "Pictures", "DCIM")
KINDS = {"txt": "file", "pdf": "file", "jpg": "image", "png": "image", "mp3": "music", "mp4": "film"}


@dataclass(frozen=True)
class File:
    """A file, or with no name the folder itself."""

    folder: str
    name: str = ""
    size: int = 0  # kB


def begin(world, time):
    rng, files = world.rng("files"), [File(folder) for folder in FOLDERS]
    kinds = {"Documents": ("txt", "pdf"), "Download": ("pdf", "jpg", "mp3"), "Music": ("mp3",),
             "Pictures": ("jpg", "png"), "DCIM": ("jpg", "mp4")}  # fmt: skip
    for folder in FOLDERS:
        stems = set()
        while len(stems) < rng.randint(2, 4):
            stems.add(f"{rng.choice(world.pool('topic'))}_{rng.choice(world.pool('matter'))}".lower())
        files += [File(folder, f"{stem}.{rng.choice(kinds[folder])}", rng.randint(3, 4000)) for stem in sorted(stems)]
    return {"files": in_order(files)}


def in_order(files):
    return tuple(sorted(files, key=lambda file: (file.folder, file.name)))


def folders(state):
    return sorted(file.folder for file in state.files if not file.name)


def _size(kilobytes):
    return f"{kilobytes} kB" if kilobytes < 1000 else f"{kilobytes / 1000:.1f} MB"


def _main(state):
    words, screen = state.screen.get("find").lower(), state.screen
    rows = [search_box(state, "find", "Search files")]
    if words:
        rows += [_file_row(state, file, True) for file in state.files if file.name and words in file.name]
        return page(state, "Files", rows, up=False)

    def make(state):
        name = screen.get("new").strip()
        if not name or name in folders(state):
            return say(state, "Choose another name")
        return swap(replace(state, files=in_order([*state.files, File(name)])), state.screen.set(new=""))

    over = prompt(state, "New folder", "new", "Name", "Create", make) if screen.dialog == "new" else None
    rows.append(header("Folders"))
    for folder in folders(state):
        count = sum(file.folder == folder and bool(file.name) for file in state.files)
        note = f"{count} file" + "s" * (count != 1)
        rows.append(row(folder, note, to("folder", folder), icon="folder", disc=(0, 121, 130)))
    return page(state, "Files", rows, up=False, fab=("plus", "New folder", dialog("new")), over=over)


def _file_row(state, file, with_folder=False):
    chosen = file in state.screen.get("chosen", ())
    note = f"{file.folder}, {_size(file.size)}" if with_folder else _size(file.size)

    def pick(state):
        old = state.screen.get("chosen", ())
        return swap(state, state.screen.set(chosen=tuple(one for one in (*old, file) if (one in old) != (one == file))))

    picking = bool(state.screen.get("chosen", ()))
    tap = pick if picking else to("file", file)
    made = row(file.name, note, tap, pick, icon="check" if chosen else KINDS[file.name.rpartition(".")[2]])
    return replace(made, fill="card" if chosen else "", on=chosen)


def _folder(state):
    screen, folder = state.screen, state.screen.about
    chosen = screen.get("chosen", ())

    def clear(state):
        return swap(state, state.screen.set(chosen=()))

    def delete(state):
        left = tuple(file for file in state.files if file not in chosen)
        return say(clear(replace(state, files=left)), f"{len(chosen)} deleted")

    over, count = None, len(chosen)
    if screen.dialog == "delete":
        over = ask(state, "Delete?", f"{count} file{'s' * (count != 1)} will be gone for good.", "Delete", delete)
    mine = [file for file in state.files if file.folder == folder and file.name]
    rows = [_file_row(state, file) for file in mine] or [paragraph("This folder is empty", ink="soft")]
    if not chosen:
        return page(state, folder, rows, over=over)
    buttons = [
        ("move", "Move to", lambda state: to("target", chosen)(clear(state))),
        ("trash", "Delete", dialog("delete")),
        ("close", "Clear selection", clear),
    ]
    return page(state, f"{count} selected", rows, buttons=buttons, over=over)


def moved(files, chosen, folder):
    return in_order([replace(file, folder=folder) if file in chosen else file for file in files])


def _target(state):
    """Where to move what was chosen."""
    chosen = state.screen.about

    def move(folder):
        def tap(state):
            state = leave(replace(state, files=moved(state.files, chosen, folder)))
            return say(state, f"Moved to {folder}")

        return tap

    rows = [row(folder, tap=move(folder), icon="folder", disc=(0, 121, 130)) for folder in folders(state)]
    return page(state, "Move to", rows)


def _file(state):
    screen, file = state.screen, state.screen.about
    ending = file.name.rpartition(".")[2]

    def rename(state):
        name = screen.get("name").strip()
        taken = {one.name for one in state.files if one.folder == file.folder}
        if not name or name in taken or name.rpartition(".")[2] not in KINDS:
            return say(state, "Choose another name")
        new = replace(file, name=name)
        state = replace(state, files=in_order([new if one == file else one for one in state.files]))
        return swap(state, replace(close_dialog(state).screen, about=new))

    def delete(state):
        state = leave(replace(state, files=tuple(one for one in state.files if one != file)))
        return say(state, "1 deleted")

    def move(state):
        return to("target", (file,))(leave(state))

    over = None
    if screen.dialog == "menu":
        begin_rename = then(draft(name=file.name), dialog("rename"))
        over = menu(state, [("Rename", begin_rename), ("Move to", move), ("Delete", dialog("delete"))])
    elif screen.dialog == "rename":
        over = prompt(state, "Rename", "name", "Name", "Rename", rename)
    elif screen.dialog == "delete":
        over = ask(state, "Delete file?", file.name, "Delete", delete)
    rows = [
        row(file.name, "Name", icon=KINDS[ending]),
        row(file.folder, "Folder", icon="folder"),
        row(_size(file.size), "Size", icon="info"),
    ]
    return page(state, "Details", rows, buttons=[("more", "More options", dialog("menu"))], over=over)


SCREENS = {"main": _main, "folder": _folder, "target": _target, "file": _file}
