"""Phones behind adb, as PhoneEnv wants phones: simulated emulators on a private adb server, or phones of the user's.

    env = envs.make("phone-adb")                                       # the tasks of "phone", through a real adb server
    env = envs.make("phone:tasks.jsonl", serials=["emulator-5554"])    # your phones and tasks

Everything here blocks, and is called in a thread of each slot. What the driver (common/android.py) refuses is an
ActionError, so it becomes an observation's `error`; EnvFault and EnvHang go on to who plays.
"""

import contextlib
import json
import secrets
import threading
import time
import zlib
from collections import Counter
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import adbutils

from common.android import FIELDS, KEYBOARD, PATIENCE, TOKEN_FILE, AdbServer, Android, NotThere, Refused
from common.errors import EnvFault, UsageError
from envs import Task
from envs.phone.adbd import Phones
from envs.phone.device import Device

SNAPSHOT = "cleangui"  # of a simulated phone: what its next episode begins with
MARK = "debug.cleangui.phone"  # a property
PAUSE = 1.0  # seconds until a phone that failed is asked again
SPLITS = ("train", "eval", "test")
MAX_STEPS = 20
KNOWN = {"instruction", "start", "clear", "snapshot", "max_steps", "split", "task_id"}  # in a file of tasks


class AdbPhone:
    """A driver with the methods of a Device that actions and the environment use. A child says how an episode begins
    (`_begin`)."""

    def __init__(self, driver):
        self.driver = driver
        self.tap, self.double_tap, self.long_press = driver.tap, driver.double_tap, driver.long_press
        self.swipe, self.key = driver.swipe, driver.key

    def text(self, words):
        self.driver.type(words)

    def fill(self, held, words, unsure=False):
        """Put a text in the place of what the focused field holds."""
        self.driver.erase(len(held))
        self.driver.type(words)

    @property
    def size(self):
        return self.driver.size

    def begin(self, task, state=None):
        """Go to the start of a task, or to `state`; returns the state of the start, None where nobody knows it.

        A phone that fails has the driver's timeout to come back: one that refuses at once shall not use up all tasks
        while the others play. Raises EnvFault after that.
        """
        end = time.monotonic() + self.driver.timeout
        while True:
            try:
                return self._begin(task, state)
            except EnvFault:
                if time.monotonic() + PAUSE > end:
                    raise
            time.sleep(PAUSE)

    def look(self, pictures, after=0.0):
        """After so many seconds of the phone's: (hierarchy as XML, PNG or None)."""
        return self.driver.dump(after), self.driver.screenshot() if pictures else None


# --- simulated phones ------------------------------------------------------------------------------------------------


class Emulator(AdbPhone):
    """A simulated phone. It comes to the start of a task as an emulator does: by a snapshot, loaded with proof."""

    def __init__(self, phone, driver):
        super().__init__(driver)
        self.phone, self._rest = phone, phone.shell.saved()[1:]

    @property
    def state(self):
        return self.phone.device.state

    def _begin(self, task, state):
        start = self.phone.device.new(task.seed)
        self.phone.snapshots[SNAPSHOT] = (start if state is None else state, *self._rest)
        self.driver.load(SNAPSHOT)
        return start


class Emulators:
    """Where the phones of "phone-adb" come from. The first one starts an adb server, `close` ends it."""

    blocks = True

    def __init__(self, timeout, options):
        self.timeout, self.options = timeout, options
        self._lock, self._server, self._phones = threading.Lock(), None, None

    def take(self, place):
        return place

    def open(self, place):
        """Another phone. Raises UsageError without an adb program, EnvFault where adb does not find the phone."""
        with self._lock:
            if self._server is None:
                self._server = AdbServer()
                self._phones = Phones(self._server.port)
            server, phones = self._server, self._phones
            phone = phones.add(Device(0, **self.options))
        phone.shell.has_keyboard = True  # any text can be typed, as in process
        phone.shell.settings["secure", "default_input_method"] = f"{KEYBOARD}/.AdbIME"
        try:
            return Emulator(phone, Android(phone.serial, server, self.timeout, phones.token_file))
        except UsageError as error:  # it is no phone of the user's
            self._remove(phone)
            raise EnvFault(str(error)) from None
        except EnvFault:
            self._remove(phone)
            raise

    def release(self, phone):
        self._remove(phone.phone)

    def _remove(self, phone):
        with self._lock:
            if self._phones is not None and phone in self._phones.phones:
                self._phones.remove(phone)

    def close(self):
        with self._lock:
            server, phones = self._server, self._phones
            self._server = self._phones = None
        if server is not None:
            server.close()  # first: a call that still waits for a phone ends with it
            phones.close()


# --- phones of the user's --------------------------------------------------------------------------------------------


class UsersPhone(AdbPhone):
    """A phone or emulator of the user's. Nobody knows its `state`."""

    state = None

    def __init__(self, driver, entry_of, snapshot, hierarchy, saved=()):
        super().__init__(driver)
        self.entry_of, self.snapshot, self.hierarchy = entry_of, snapshot, hierarchy
        self._had = {*driver.packages(), *saved}  # apps and snapshots that were there
        self._forget()

    def look(self, pictures, after=0.0):
        """The same as any AdbPhone's; a hierarchy that nobody reads has the name of the app in front alone."""
        if self.hierarchy:
            xml, picture = super().look(pictures, after)
            return self._without_hints(xml), picture
        if after:
            self.driver.wait(after)
        xml = f"<hierarchy><node package={quoteattr(self.driver.foreground()[0])} /></hierarchy>"
        return xml, self.driver.screenshot() if pictures else None

    def _forget(self):
        self._first, self._fields = {}, set()  # what each field showed when it came up; those of the last hierarchy
        self._typed = [""]  # the texts of this episode

    def text(self, words):
        self._typed.append(words)
        super().text(words)

    def fill(self, held, words, unsure=False):
        """The same as any AdbPhone's. `unsure`: nobody knows whether what the field shows is its content or its hint.
        Then the text is typed first: where it stands alone, the field was empty."""
        self._typed.append(words)
        if unsure and words and words.isprintable():  # no line end, which may send the form
            self.driver.type(words)
            if any(node.get("focused") == "true" and _shows(node, words) for node in self.driver.hierarchy()):
                return
            self._first = {key: "" if text == held else text for key, text in self._first.items()}  # it was no hint
            held += words
        super().fill(held, words)

    def _without_hints(self, xml):
        """Fields without their hints: uiautomator gives an empty field's hint as its text, and says so in an attribute
        `hint` on newer Androids alone. Elsewhere what a field shows when it comes up, and nobody has typed, may be one
        or the other: that becomes its `hint`, which names it, and not what it holds for sure, `text`. What stood there
        goes into the attribute `holds`."""
        root, changed, seen, fields = ElementTree.fromstring(xml), False, Counter(), set()
        for element in root.iter("node"):
            if not element.get("class", "").endswith(FIELDS):
                continue
            text, hint = element.get("text", ""), element.get("hint")
            if hint is None:
                name = element.get("package"), element.get("resource-id"), element.get("class")
                seen[name] += 1  # of several that are named alike each is its own
                field = *name, seen[name]
                if field not in self._fields and text not in self._typed:
                    self._first[field] = text
                fields.add(field)
                hint = self._first.get(field, "")
                element.set("hint", hint)
                changed |= hint != ""
            if text and text == hint != self._typed[-1]:
                element.set("text", "")
                element.set("holds", text)
                changed = True
        self._fields = fields
        return ElementTree.tostring(root, encoding="unicode") if changed else xml

    def _begin(self, task, state):
        """Load the snapshot, or go home and clear the task's apps where there is none; then start the task's app."""
        entry, driver = self.entry_of(task), self.driver
        self._forget()
        if snapshot := entry["snapshot"] or self.snapshot:
            with self._was_there(snapshot):
                driver.load(snapshot)
            self._had.add(snapshot)
        else:
            driver.reset()
            for package in entry["clear"]:
                with self._was_there(package):
                    driver.stop(package)
                    driver.clear(package)
        if start := entry["start"]:
            driver.stop(start)  # so that it begins at its first screen
            try:
                with self._was_there(start):
                    driver.start(start)
            except Refused as error:
                where = f"install it, or see `adb -s {driver.serial} shell pm list packages`"
                raise UsageError(f"phone {driver.serial}: task {task.task_id}: {error}; {where}") from None

    @contextlib.contextmanager
    def _was_there(self, name):
        """An app or a snapshot that is not there is the user's error, but one that was there is this phone's fault."""
        try:
            yield
        except (NotThere, Refused) as error:
            if name in self._had:
                raise EnvFault(f"phone {self.driver.serial}: {name} was there and is gone: {error}") from None
            raise


def _shows(node, words):
    """Whether a field holds this text; a password's shows its length."""
    text = node.get("text", "")
    return len(text) == len(words) if node.get("password") == "true" else text == words


class UsersPhones:
    """Phones and emulators by serials, the names that `adb devices` has, or HOST:PORT; one for each slot."""

    blocks = True

    def __init__(self, serials, entries, snapshot, hierarchy, timeout, token_file=None):
        self.serials = [serials] if isinstance(serials, str) else list(serials)
        if twice := {serial for serial in self.serials if self.serials.count(serial) > 1}:
            raise UsageError(f"--serials: {', '.join(sorted(twice))} is named twice")
        self.entries, self.snapshot, self.hierarchy, self.timeout = entries, snapshot, hierarchy, timeout
        self.token_file = token_file or TOKEN_FILE
        self._lock, self._server = threading.Lock(), None

    def take(self, place):
        if place >= len(self.serials):
            raise UsageError(
                f"{place + 1} slots, but --serials names {len(self.serials)} phones: name more, or play on fewer"
            )
        return place

    def open(self, place):
        """The phone. Raises UsageError where it is not there, offline or unauthorised, with the remedy."""
        with self._lock:
            if self._server is None:
                self._server = AdbServer.of_the_user()
        driver = Android(self.serials[place], self._server, self.timeout, self.token_file)
        self._check_name(driver)
        saved = ()
        if any([self.snapshot, *(entry["snapshot"] for entry in self.entries.values())]):
            with contextlib.suppress(UsageError):  # it is raised when a task needs one
                saved = driver.snapshots()
        return UsersPhone(driver, self._entry, self.snapshot, self.hierarchy, saved)

    def _check_name(self, driver):
        """Raises UsageError where another serial is of the same phone, an emulator's and its address for instance: a
        property that is set by the one name is read by the other. A phone where it cannot be set passes."""
        mark = secrets.token_hex(8)
        with contextlib.suppress(EnvFault):
            driver.set_property(MARK, mark)
        try:
            attached = self._server.devices()
        except (adbutils.AdbError, OSError) as error:
            raise EnvFault(f"the adb server on port {self._server.port} was lost: {error}") from None
        for serial in self.serials:
            found = None
            if serial != driver.serial and attached.get(serial, ("", None))[0] == "device":
                with contextlib.suppress(EnvFault, UsageError):  # it will be asked for when its own turn comes
                    found = Android(serial, self._server, PATIENCE).look(f"getprop {MARK}")
            if found == mark:
                raise UsageError(f"--serials: {driver.serial} and {serial} are one phone: name it once")

    def _entry(self, task):
        """Of an instruction that is not in the file (a generator wrote it): that of a task that starts there."""
        return self.entries.get(task.task_id) or next(e for e in self.entries.values() if _site(e) == task.site)

    def release(self, phone):
        pass

    def close(self):
        pass


def read_tasks(path):
    """(tasks by split, entries by task_id) of a file of JSON lines, or of one list. Raises UsageError, one line.

    An entry has an `instruction` and, as you like, `start` (the package of the app to start with; default: the home
    screen), `clear` (packages whose data is deleted before), `snapshot` (of an emulator, instead of clearing),
    `max_steps` (20), `split` ("train", "eval" or "test"; without it three in five are for training, one is for eval
    and one for test, by a hash of the instruction) and `task_id`.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"--env-id phone:{path}: cannot read it: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--env-id phone:{path} is no text ({error})") from None
    try:
        lines = [line for line in text.splitlines() if line.strip()]
        listed = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
        entries = [_with_defaults(number, entry) for number, entry in enumerate(listed)]
        tasks = [_task(entry) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--env-id phone:{path}: not a list of tasks ({type(error).__name__}: {error})") from None
    by_id = {entry["task_id"]: entry for entry in entries}
    if not by_id or len(by_id) < len(entries):
        raise UsageError(f"--env-id phone:{path}: {'a task_id occurs twice' if by_id else 'there is no task in it'}")
    return {split: [task for task in tasks if task.split == split] for split in SPLITS}, by_id


def _with_defaults(number, entry):
    if not isinstance(entry, dict) or set(entry) - KNOWN:
        raise ValueError(f"task {number}: the fields are {', '.join(sorted(KNOWN))}")
    entry = {"task_id": number, "start": "", "clear": [], "snapshot": "", "max_steps": MAX_STEPS} | entry
    instruction, split = entry["instruction"], entry.get("split")
    if split is None:
        split = {0: "eval", 1: "test"}.get(zlib.crc32(instruction.encode()) % 5, "train")
    if split not in SPLITS:
        raise ValueError(f"task {number}: the split is {split!r}")
    words = instruction, entry["start"], entry["snapshot"], *entry["clear"]
    if isinstance(entry["clear"], str) or not instruction or not all(isinstance(one, str) for one in words):
        raise ValueError(f"task {number}: instruction, start and snapshot are texts, clear is a list of packages")
    return entry | {"split": split, "task_id": str(entry["task_id"])}


def _task(entry):
    """Without `config`: there is no check."""
    return Task(entry["task_id"], _site(entry), entry["instruction"], int(entry["max_steps"]), entry["split"])


def _site(entry):
    return entry["start"] or "home"
