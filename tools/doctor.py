"""Tries the Android driver on a phone, step by step, and says what does not work and what to do about it.

    python tools/doctor.py --serial emulator-5554      # a name in `adb devices`, or HOST:PORT of a phone on the network
    python tools/doctor.py                             # a simulated phone, to see that adb works here

It goes to the home screen, opens the settings and types into their search, and on an emulator it takes, loads and
deletes a snapshot "cleangui-doctor"; it changes nothing else, but for `--calm`, which turns animations off. What was
seen goes to the terminal and, with what the phone printed, into a file: add it to a report of a bug.
"""

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import screen
from common.android import KEYBOARD, AdbServer, Android, Refused, bounds
from common.errors import EnvFault, UsageError
from common.lm.run import run_main

SETTINGS = "com.android.settings"
SNAPSHOT = "cleangui-doctor"
TEXT = "wi-fi 100%s 'a' & \"b\";"  # what shells and `input text` stumble over
RAW = "getprop ro.build.fingerprint", "wm size", "dumpsys display", "dumpsys window displays", "dumpsys power"
TELLING = "DisplayViewport{", "mCurrentFocus", "mFocusedApp", "mWakefulness=", "size:", "/"  # lines worth keeping
DOCS = "docs/android.md"


@dataclass
class Args:
    serial: str = ""
    """the phone: its name in `adb devices`, or HOST:PORT; none: a simulated phone"""
    out: str = "doctor.md"
    """the file to write, Markdown, or JSON where its name ends so"""
    calm: bool = False
    """turn the phone's animations off, and let it stay awake while it is plugged in"""
    timeout: float = 20.0
    """seconds that a call may take"""


@dataclass
class Finding:
    """What came of one step: `state` is ok, failed or skipped, `remedy` is for one that failed."""

    step: str
    state: str
    seen: str
    seconds: float
    remedy: str = ""


class Skipped(Exception):
    """A step that cannot be tried on this phone, and why."""


class Trouble(Exception):
    """What is wrong, and the remedy."""


class Doctor:
    """The steps, each a method that returns what it saw; in this order, because later ones build on earlier ones."""

    def __init__(self, phone, calm):
        self.phone, self.calm = phone, calm

    def system(self):
        names = "ro.product.manufacturer", "ro.product.model", "ro.build.version.release", "ro.build.version.sdk"
        maker, model, release, level = (self.phone.look(f"getprop {name}") for name in names)
        return f"{maker} {model}, Android {release} (API {level})"

    def awake(self):
        self.phone.key("wake up")
        if "mWakefulness=Awake" not in self.phone.look("dumpsys power"):
            raise Trouble("the screen is off", "unlock the phone; --calm lets it stay awake while it is plugged in")
        if self.calm:
            self.phone.calm()
        scale = self.phone.look("settings get global window_animation_scale")
        return f"awake; scale of animations {'1 (the default)' if scale in ('null', '') else scale}"

    def screenshot(self):
        self.phone.key("home")
        picture = self.phone.settle()
        warning = self.phone.look("screencap -p")[:400]
        image = screen.load(picture)
        seen = f"{image.width} x {image.height}, {len(picture) / 1000:,.0f} kB"
        if "Multiple displays" in warning:
            seen += "; the phone has several displays and shows its first"
        if max(high for _, high in image.getextrema()) < 8:
            raise Trouble(f"{seen}, all black", "unlock the phone; apps that forbid screenshots are black, too")
        return seen

    def size(self):
        width, height, turns = self.phone.window()
        if (width, height) != self.phone.size:
            wide, high = self.phone.size
            raise Trouble(
                f"{width} x {height}, turned {turns} times, but pictures have {wide} x {high}",
                "points are taken in pixels of the picture: reset `wm size`, or fold the phone out",
            )
        return f"{width} x {height}, turned {turns} times"

    def front(self):
        return "/".join(self.phone.foreground())

    def hierarchy(self):
        nodes = self.phone.hierarchy()
        if not nodes:
            raise Trouble("no element", "unlock the phone; games and videos have none")
        return f"{len(nodes)} elements, {sum(_is(node, 'clickable') for node in nodes)} to be clicked"

    def apps(self):
        packages = self.phone.packages()
        return f"{len(packages)} packages; ADBKeyBoard is {'' if KEYBOARD in packages else 'not '}installed"

    def open_settings(self):
        try:
            came = self.phone.start(SETTINGS)
        except Refused as error:
            raise Skipped(str(error)) from None
        if not came:
            raise Trouble(f"in front is {self.front()}", "close what is over the settings, then try again")
        self.phone.settle()
        return self.front()

    def scroll(self):
        if self.phone.foreground()[0] != SETTINGS:
            raise Skipped("the settings are not open")
        before = self.phone.screenshot()
        self.phone.scroll("down")
        moved = self.phone.settle() != before
        self.phone.scroll("up")
        self.phone.settle()
        return "the settings move" if moved else "the settings do not move: they may be short"

    def tap(self):
        """Into the search of the settings, or else on what leads further."""
        if self.phone.foreground()[0] != SETTINGS:
            raise Skipped("the settings are not open")
        for _ in range(2):  # Android's search is a button first, which opens the true one
            nodes = self.phone.hierarchy()
            found = [node for node in nodes if _is_search(node)] or [node for node in nodes if _is_row(node)]
            if not found:
                raise Skipped("nothing to tap in the settings")
            if _is(found[0], "focused"):
                break
            before, (left, top, right, bottom) = self.phone.screenshot(), bounds(found[0])
            self.phone.tap((left + right) // 2, (top + bottom) // 2)
            if self.phone.settle() == before:
                raise Trouble(
                    "nothing happened", "Xiaomi: 'USB debugging (Security settings)' in the developer options"
                )
            if not _is_search(found[0]):
                break
        names = (found[0].get(name) for name in ("text", "content-desc", "resource-id", "class"))
        return f"{next(filter(None, names))} is open"

    def type(self):
        if not any(_is(node, "focused") and _is_box(node) for node in self.phone.hierarchy()):
            raise Skipped("no field has the focus")
        self.phone.type(TEXT)
        self.phone.settle()
        field = next((node for node in self.phone.hierarchy() if _is(node, "focused")), {})
        if field.get("text") != TEXT:
            raise Trouble(
                f"{TEXT!r} came as {field.get('text')!r}",
                "another keyboard (its corrections off) or ADBKeyBoard; send us this file",
            )
        return f"{TEXT!r} came whole"

    def back_home(self):
        self.phone.key("back")
        self.phone.key("home")
        self.phone.settle()
        if self.phone.foreground()[0] == SETTINGS:
            raise Trouble("the settings are still in front", "does the phone ask for something? Unlock it")
        return self.front()

    def speed(self):
        """Taps at the very top, where there is nothing to tap, and a picture after each."""
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            self.phone.tap(self.phone.size[0] // 2, 2)
            self.phone.screenshot()
            seconds.append(time.perf_counter() - start)
        return f"{1000 * statistics.median(seconds):,.0f} ms for a tap and a picture"

    def snapshot(self):
        if not self.phone.serial.startswith("emulator-"):
            raise Skipped("only emulators have snapshots: this phone is reset by clearing apps")
        self.phone.save(SNAPSHOT)
        try:
            if SNAPSHOT not in self.phone.snapshots():
                raise Trouble("saved, but not listed", "start the emulator without -read-only and -no-snapstorage")
            start = time.perf_counter()
            self.phone.load(SNAPSHOT)
            return f"saved, loaded in {time.perf_counter() - start:.1f} s with proof, deleted"
        finally:
            self.phone.delete(SNAPSHOT)


STEPS = {
    "Android": Doctor.system,
    "awake": Doctor.awake,
    "screenshot": Doctor.screenshot,
    "size and rotation": Doctor.size,
    "app in front": Doctor.front,
    "hierarchy": Doctor.hierarchy,
    "packages": Doctor.apps,
    "start an app": Doctor.open_settings,
    "scroll": Doctor.scroll,
    "tap": Doctor.tap,
    "type": Doctor.type,
    "keys": Doctor.back_home,
    "speed": Doctor.speed,
    "snapshot": Doctor.snapshot,
}


def _is(node, flag):
    return node.get(flag) == "true"


def _is_box(node):
    return node.get("class", "").endswith("EditText")


def _is_search(node):
    words = " ".join(node.get(name, "") for name in ("text", "content-desc", "resource-id")).lower()
    return "search" in words and _is(node, "enabled") and (_is(node, "clickable") or _is_box(node))


def _is_row(node):
    """Whether it leads to another page: nothing in it can be switched."""
    can_be_switched = any(_is(part, "checkable") for part in (node, *node))
    return _is(node, "clickable") and node.get("package") == SETTINGS and not can_be_switched


def examine(phone, calm=False):
    """All steps: a Finding for each. A step that fails does not keep the others from being tried."""
    doctor, findings = Doctor(phone, calm), []
    for name, step in STEPS.items():
        start, remedy = time.perf_counter(), ""
        try:
            state, seen = "ok", step(doctor)
        except Skipped as reason:
            state, seen = "skipped", str(reason)
        except Trouble as trouble:
            state, (seen, remedy) = "failed", trouble.args
        except (EnvFault, Refused, UsageError) as error:
            state, seen, remedy = "failed", str(error), f"the table of faults in {DOCS}"
        findings.append(Finding(name, state, seen, round(time.perf_counter() - start, 3), remedy))
        show(findings[-1])
    return findings


def show(finding):
    colour = {"ok": "32", "failed": "31", "skipped": "2"}[finding.state]
    state = f"\033[{colour}m{finding.state:8}\033[0m" if sys.stdout.isatty() else f"{finding.state:8}"
    print(f"{state} {finding.step:18} {finding.seconds:6.2f} s  {finding.seen}")
    if finding.remedy:
        print(f"{'':8} {'':18} {'':8}  -> {finding.remedy}")


def printed(phone):
    """What the phone prints for the commands that the driver reads, without the lines that say nothing."""
    raw = {}
    for command in RAW:
        try:
            lines = phone.look(command).splitlines()
        except EnvFault as error:
            lines = [f"/ {error}"]
        raw[command] = [line.strip()[:300] for line in lines if any(word in line for word in TELLING)][:20]
    return raw


def report(path, serial, findings, raw):
    """Write the file."""
    if path.suffix == ".json":
        steps = [asdict(finding) for finding in findings]
        content = json.dumps({"serial": serial, "steps": steps, "raw": raw}, indent=2)
    else:
        rows = []
        for finding in findings:
            seen = " -> ".join(filter(None, (finding.seen, finding.remedy))).replace("|", "\\|")
            rows.append(f"| {finding.step} | {finding.state} | {finding.seconds:.2f} | {' '.join(seen.split())} |")
        head = f"# {serial}\n\n| step | state | seconds | seen |\n| --- | --- | --- | --- |\n"
        blocks = "".join(f"\n`{command}`\n```\n{chr(10).join(lines)}\n```\n" for command, lines in raw.items())
        content = head + "\n".join(rows) + "\n" + blocks
    try:
        path.write_text(content)
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}") from error


def treat(args, phone):
    """Examine a phone, write the file, and end with 1 if something failed."""
    findings = examine(phone, args.calm)
    path = Path(args.out)
    report(path, phone.serial, findings, printed(phone))
    failed = [finding.step for finding in findings if finding.state == "failed"]
    verdict = f"does not work: {', '.join(failed)}" if failed else "everything that was tried works"
    print(f"\n{verdict}; see {path}")
    if failed:
        raise SystemExit(1)


def simulated(args):
    """Examine a simulated phone."""
    from envs.phone.adbd import Phones
    from envs.phone.device import Device

    print("a simulated phone; `adb devices` names yours, for --serial\n")
    with AdbServer() as server, Phones(server.port) as phones:
        phone = phones.add(Device(seed=0))
        treat(args, Android(phone.serial, server, args.timeout, phones.token_file))


def main():
    args = tyro.cli(Args, description=__doc__)
    if not args.serial:
        simulated(args)
        return
    with AdbServer.of_the_user() as server:
        treat(args, Android(args.serial, server, args.timeout))


if __name__ == "__main__":
    run_main(main)
