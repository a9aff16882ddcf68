"""The Android driver: a phone, an emulator or a simulated phone, driven through a real adb server by adbutils.

    with AdbServer.of_the_user() as server:
        phone = Android("emulator-5554", server)
        phone.tap(200, 340)
        picture, elements = phone.screenshot(), phone.hierarchy()

Calls block, so an environment makes them in threads; a phone may be shared by threads, one call runs at a time. Every
call ends within `timeout` seconds: EnvHang where the phone did not answer, EnvFault where the connection is gone. Both
leave the phone usable: the next call finds it again when it has come back. What only looks is
asked again after a lost connection, what acts never is, because nobody knows whether it was done.

`Refused` is the agent's own failure (text that cannot be typed, a point off the screen, no such app) and UsageError the
user's (no adb, no such phone, no such snapshot).

adbutils' own AdbDevice is not used: it waits for 600 s, shows a black picture where a screenshot failed, sleeps 10 ms
and opens two connections for each command (docs/android.md).
"""

import base64
import contextlib
import io
import os
import re
import secrets
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import adbutils
from PIL import Image

from common.actions import ActionError
from common.errors import EnvFault, EnvHang, UsageError

TIMEOUT = 20.0  # seconds; a picture of a real phone takes up to one
PATIENCE = 3.0  # seconds for a phone that is named to appear
POLL = 0.02
REST = 0.2  # seconds between two pictures that must be equal
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0)  # seconds before `uiautomator dump` is tried again
SNAPSHOTS = 3  # times the timeout, for what the emulator's console does
TOKEN_FILE = Path.home() / ".emulator_console_auth_token"
KEYS = dict(home=3, back=4, up=19, down=20, left=21, right=22, power=26, tab=61, space=62, enter=66, delete=67)
KEYS |= {"menu": 82, "search": 84, "escape": 111, "app switch": 187, "wake up": 224}
MOVE_END, FORWARD_DELETE = 123, 112
KEYS_AT_ONCE, KEY_SECONDS = 400, 0.02  # of one `input keyevent`: so many, and what a key may take
MAIN, LAUNCHER = "android.intent.action.MAIN", "android.intent.category.LAUNCHER"
KEYBOARD = "com.android.adbkeyboard"  # https://github.com/senzhk/ADBKeyBoard
PIECE = 40  # characters for one `input text`: long strings come out of order (android_world types word by word)
DUMP = "/data/local/tmp/cleangui.xml"
MARK = "debug.cleangui.mark"
NO_ADB = "no adb: install Android's platform-tools (apt install android-sdk-platform-tools; brew install"
NO_ADB += " android-platform-tools), or set ADBUTILS_ADB_PATH to the program"
SIGNATURE, END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"
STDOUT, STDERR, EXIT = 1, 2, 3  # packets of adb's shell protocol
FIELDS = ("EditText", "AutoCompleteTextView")  # how the names of the classes that take text end
REMEDIES = {
    "unauthorized": "unlock it and accept 'Allow USB debugging' (if nothing is asked: revoke authorisations, replug)",
    "authorizing": "unlock it and accept 'Allow USB debugging'",
    "offline": "unlock and replug it, or `adb reconnect offline`; an emulator: wait until it has booted, or restart it",
    "no": "no permission for the USB device: see `adb devices` and set up udev rules, then replug",
}
# Keeps an adb server of ours until the pipe to this process closes, which it does however this process ends.
KEEPER = 'exec >/dev/null 2>&1; "$@" </dev/null & read _; kill $!; wait $!; rm -rf "$0"'


class Refused(ActionError):
    """An action that the phone cannot do. The message is for the agent."""


class NotThere(UsageError):
    """An app or a snapshot that was named is not on the phone."""


class _Connection(adbutils.AdbConnection):
    """One that neither starts a server where none answers nor sleeps when it is closed."""

    def _safe_connect(self):
        return self._create_socket()

    def close(self):
        self.conn.close()


class _Client(adbutils.AdbClient):
    def make_connection(self, timeout=None):
        connection = _Connection(self.host, self.port)
        connection.conn.settimeout(timeout or TIMEOUT)
        connection.conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class AdbServer:
    """A private adb server on a free port of this machine, which sees no phones but those attached to it.

    It ends with `close`, for good, or with this process in whatever way that ends. `of_the_user()` gives the server
    that the user's `adb devices` talks to; that one is started if none runs, and never stopped.
    """

    def __init__(self, client: adbutils.AdbClient | None = None):
        self.private, self.client = client is None, client
        self.host, self.port = ("127.0.0.1", 0) if self.private else (client.host, client.port)
        self._lock, self._process, self._closed = threading.Lock(), None, False
        self.start()

    @classmethod
    def of_the_user(cls) -> "AdbServer":
        return cls(_Client())  # reads ANDROID_ADB_SERVER_HOST and ANDROID_ADB_SERVER_PORT

    def start(self) -> None:
        """Start the server if none answers, a private one again on its port; UsageError if that does not work, EnvFault
        after `close`: a thread that still waits for a phone shall not bring it back."""
        with self._lock:
            if self._closed:
                raise EnvFault(f"the adb server on port {self.port} was closed")
            if self.port and self._answers():
                return
            program = _adb()
            if self.private:
                self._stop()
                started = self._launch(program) or self._launch(program)  # the port may have been taken meanwhile
            else:
                started = self._start_for_the_user(program)
            if not started:
                raise UsageError(f"no adb server on {self.host}:{self.port}: `{program} start-server` should start one")

    def _start_for_the_user(self, program):
        """More than once: where another adb stops servers, a dying one answers the first call, or the new one is
        stopped, too. A start takes three seconds."""
        for pause in (0.0, 0.2, 0.5):
            time.sleep(pause)
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                command = [program, "-P", str(self.port), "start-server"]
                subprocess.run(command, capture_output=True, timeout=TIMEOUT)
            if self._answers():
                return True
        return False

    def _launch(self, program):
        port = self.port
        if not port:
            with socket.create_server((self.host, 0)) as probe:
                port = probe.getsockname()[1]
        folder = tempfile.mkdtemp(prefix="cleangui-adb-")  # for the server's key
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ADB_", "ANDROID_"))}
        environment |= {"HOME": folder, "ADB_USB": "0", "ADB_EMU": "0", "ADB_MDNS": "0"}
        command = ["sh", "-c", KEEPER, folder, program, "-P", str(port), "nodaemon", "server"]
        # A session of its own: Ctrl-C in the terminal is for this process, which may still need the phones.
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)
        self.client = _Client(self.host, port)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if self._answers():
                self.port = port
                return True
            time.sleep(0.005)
        self._stop()
        return False

    def _answers(self):
        try:
            return self.client.server_version() > 0
        except (adbutils.AdbError, OSError, ValueError):
            return False

    def _stop(self):
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"\n")  # a forked process may hold the pipe open, too
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process that keeps a private server, the server's parent; None for the user's."""
        return self._process and self._process.pid

    def ask(self, call: str, timeout: float = TIMEOUT) -> str:
        """The server's answer to a call of its own, `host:...`."""
        with self.client.make_connection(timeout) as connection:
            connection.send_command(call)
            connection.check_okay()
            return connection.read_string_block()

    def devices(self, timeout: float = TIMEOUT) -> dict[str, tuple[str, int | None]]:
        """{serial: (state, transport id)} of all phones the server knows."""
        lines = [line.split() for line in self.ask("host:devices-l", timeout).splitlines()]
        return {words[0]: (words[1], _transport_id(words)) for words in lines if len(words) > 1}


def _transport_id(words):
    return next((int(word[13:]) for word in words if word.startswith("transport_id:")), None)


def _adb():
    try:
        program = adbutils.adb_path()
    except adbutils.AdbError:
        raise UsageError(NO_ADB) from None
    if not shutil.which(program):
        raise UsageError(f"{program} is no program: set ADBUTILS_ADB_PATH to adb, or unset it")
    return program


class Android:
    """One phone. `serial` is its name in `adb devices`, or HOST:PORT for one on the network.

    `size` is the width and height in pixels of what was last seen; taps are in these pixels.
    """

    def __init__(self, serial: str, server: AdbServer, timeout: float = TIMEOUT, token_file: str | Path = TOKEN_FILE):
        self.serial, self.server, self.timeout, self.token_file = serial, server, timeout, Path(token_file)
        self._lock, self._end, self._attached, self._known = threading.RLock(), None, False, False
        self._size = self._turns = None
        self._keyboard_is_new = False  # it was chosen, and nothing that it typed was seen yet
        with self._call():
            end = time.monotonic() + PATIENCE
            while not self._known:
                try:
                    self._attach()
                    self._wait_for_boot()
                    self._known = True
                except (adbutils.AdbError, OSError) as error:  # another adb may have stopped the server meanwhile
                    if time.monotonic() > min(end, self._end - POLL):
                        raise UsageError(f"phone {serial} was lost while it was attached: {error}") from None
                    time.sleep(POLL)

    def __repr__(self):
        return f"Android({self.serial!r})"

    @property
    def size(self) -> tuple[int, int]:
        if self._size is None:
            self.screenshot()
        return self._size

    # ---- input ----

    def tap(self, x: float, y: float) -> None:
        self._input("tap {} {}", (x, y))

    def double_tap(self, x: float, y: float) -> None:
        """Two taps, as near in time as the phone starts two programs."""
        self._input("tap {0} {1} && input tap {0} {1}", (x, y))

    def long_press(self, x: float, y: float, seconds: float = 1.0) -> None:
        self._input(f"swipe {{0}} {{1}} {{0}} {{1}} {round(1000 * seconds)}", (x, y), seconds=seconds)

    def swipe(self, x0: float, y0: float, x1: float, y1: float, seconds: float = 0.3) -> None:
        self._input(f"swipe {{}} {{}} {{}} {{}} {round(1000 * seconds)}", (x0, y0), (x1, y1), seconds=seconds)

    def scroll(self, direction: str, box: tuple[int, int, int, int] | None = None) -> None:
        """Show what lies "down", "up", "left" or "right" of what is seen, on the screen or in an element's `bounds`."""
        left, top, right, bottom = box or (0, 0, *self.size)
        x, y, wide, high = (left + right) // 2, (top + bottom) // 2, (right - left) // 4, (bottom - top) // 4
        moves = {"down": (0, high), "up": (0, -high), "right": (wide, 0), "left": (-wide, 0)}
        if direction not in moves:
            raise Refused(f"cannot scroll {direction!r}: {', '.join(moves)}")
        dx, dy = moves[direction]  # the finger goes the other way; slowly, so that nothing flies on
        self.swipe(x + dx, y + dy, x - dx, y - dy, 0.5)

    def key(self, name: str | int) -> None:
        """Press a key: a name of KEYS, or one of Android's key codes."""
        code = name if isinstance(name, int) else KEYS.get(name.strip().lower().replace("_", " "))
        if code is None:
            raise Refused(f"there is no key {name[:20]!r}; there are {', '.join(KEYS)}")
        self._do(f"input keyevent {code}")

    def erase(self, count: int) -> None:
        """Delete up to so many characters on each side of where the caret is, from the line's end on: a field that
        holds so many is empty then, wherever a tap has put the caret."""
        if count:
            codes = [MOVE_END] + [KEYS["delete"]] * count + [FORWARD_DELETE] * count
            for start in range(0, len(codes), KEYS_AT_ONCE):
                part = codes[start : start + KEYS_AT_ONCE]
                self._do(f"input keyevent {' '.join(map(str, part))}", KEY_SECONDS * len(part))

    def type(self, text: str) -> None:
        """Type text into the focused field; line ends are Enter, tabs Tab.

        `input text` knows the printable characters of ASCII alone. Where ADBKeyBoard is installed, text with others
        goes through that keyboard, which stays the phone's; elsewhere it is Refused, and nothing is typed.
        """
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        strange = "".join(dict.fromkeys(re.sub(r"[ -~\n\t]", "", text)))
        if found := re.search(r"[\0-\x1f\x7f\ud800-\udfff]", strange):
            raise Refused(f"{found[0]!r} cannot be typed on a phone")
        with self._lock:
            if strange:
                self._type_by_keyboard(text, strange)
            else:
                for command in input_commands(text):
                    self._do(command)

    def _type_by_keyboard(self, text, strange):
        if KEYBOARD not in self.packages():
            raise Refused(f"{strange[:10]!r} cannot be typed: the phone's `input text` knows ASCII alone")
        if not self.look("settings get secure default_input_method").startswith(KEYBOARD):
            self._do(f"ime enable {KEYBOARD}/.AdbIME && ime set {KEYBOARD}/.AdbIME")
            self._keyboard_is_new = True
        for part in re.split(r"([\n\t])", text):  # which that keyboard would write into the field as characters
            if part in ("\n", "\t"):
                self._do(f"input keyevent {KEYS['enter' if part == chr(10) else 'tab']}")
            elif part and self._keyboard_is_new:
                self._commit_first(part)
            elif part:
                self._commit(part)

    def _commit(self, text):
        self._do(f"am broadcast -a ADB_INPUT_B64 --es msg {base64.b64encode(text.encode()).decode()}")

    def _commit_first(self, text):
        """The first text of a keyboard that was just chosen: until it serves the field what it gets is lost, and its
        broadcast says 0 all the same. So look at the field; where nothing came, a tap binds the keyboard to it."""
        before = self._focused()
        if before is None:  # nowhere to be looked for
            self.wait(1.0)
            self._commit(text)
            return
        left, top, right, bottom = bounds(before)
        for _ in range(3):
            self._commit(text)
            for _ in range(3):
                now = self._focused()
                if now is not None and now.get("text") != before.get("text"):
                    self._keyboard_is_new = False
                    return
                self.wait(REST)
            self.tap((left + right) // 2, (top + bottom) // 2)
            self.key(MOVE_END)
        raise Refused(f"the field took nothing of {text[:10]!r}, which {KEYBOARD} typed")

    def _focused(self):
        """The field that has the focus; None where there is none, or nobody can say."""
        with contextlib.suppress(EnvFault):
            fields = (node for node in self.hierarchy() if node.get("class", "").endswith(FIELDS))
            return next((field for field in fields if field.get("focused") == "true"), None)

    def _input(self, command, *points, seconds=0.0):
        """`input COMMAND`, with points of the screen put into it."""
        width, height = self.size
        numbers = []
        for point in points:
            x, y = (round(number) for number in point)
            if not (0 <= x < width and 0 <= y < height):
                raise Refused(f"({x}, {y}) is off the screen, which has {width} x {height} pixels")
            numbers += [x, y]
        self._do("input " + command.format(*numbers), seconds)

    # ---- what is seen ----

    def screenshot(self) -> bytes:
        """The screen as PNG bytes, whole and checked; a picture that comes damaged twice is an EnvFault."""
        with self._call():
            for _ in range(2):
                out, message, _ = self._run("screencap -p", again=True)
                try:
                    picture, self._size = check_png(out)
                    return picture
                except ValueError as error:
                    reason = f"{error} {message}"
        raise self._fault(f"screencap gives no whole picture: {reason}")

    def settle(self, seconds: float = 3.0) -> bytes:
        """The first screenshot that shows the same as the one before it, or the last one after so many seconds of the
        phone's time."""
        before = self.screenshot()
        for _ in range(max(1, round(seconds / REST))):
            self.wait(REST)
            picture = self.screenshot()
            if picture == before:
                break
            before = picture
        return before

    def hierarchy(self) -> list[ElementTree.Element]:
        """The elements of the screen, parents first, as uiautomator describes them in their attributes: `text`,
        `content-desc`, `clickable` ("true" or "false"), ..; `bounds` reads where they are."""
        return list(ElementTree.fromstring(self.dump()).iter("node"))

    def dump(self, after: float = 0.0) -> str:
        """The same as uiautomator's XML, whole and checked; before, let `after` seconds pass on the phone: that is one
        command less than to wait first. A screen that never rests, a video for instance, has none: EnvFault."""
        # the old file first: a dump that fails has exit code 0 too
        command = f"rm -f {DUMP}; uiautomator dump {DUMP}; cat {DUMP}"
        with self._call(self.timeout + after):
            reason = ""
            for pause in (0.0, *PAUSES):
                if reason and time.monotonic() + pause > self._end - POLL:
                    break
                time.sleep(pause)
                try:
                    sleep = f"sleep {after:g}; " if after and not reason else ""
                    out, message, _ = self._run(sleep + command, again=True, seconds=after)
                except EnvHang:
                    if not reason:
                        raise
                    break
                out = out.decode(errors="replace")
                try:
                    xml = mend(out[out.index("<?xml") :])
                    ElementTree.fromstring(xml)
                except (ValueError, ElementTree.ParseError) as error:
                    reason = f"{out[:200]} {message or error}"
                    continue
                turns = re.search(r'<hierarchy[^>]* rotation="(\d)"', xml)
                if turns and turns[1] != self._turns:  # the screen was turned: its size is another one
                    self._turns, self._size = turns[1], None
                return xml
        raise self._fault(f"uiautomator gives no hierarchy: {reason}")

    def window(self) -> tuple[int, int, int]:
        """(width, height, rotation): the screen's size as it is held, and quarter turns from upright."""
        with self._call():
            sizes = dict(re.findall(r"(\w+) size: (\d+x\d+)", self.look("wm size")))
            rotation = re.search(r"DisplayViewport\{.*?valid=true.*?orientation=(\d)", self.look("dumpsys display"))
        if not sizes or not rotation:
            raise self._fault("`wm size` and `dumpsys display` name no size and rotation")
        width, height = (int(number) for number in (sizes.get("Override") or sizes["Physical"]).split("x"))
        turns = int(rotation[1])
        return (height, width, turns) if turns % 2 else (width, height, turns)

    def foreground(self) -> tuple[str, str]:
        """(package, activity) of the app in front; EnvFault where there is none for a second, as while apps change."""
        for _ in range(5):
            with self._call():
                for part in ("window displays", "window windows", "activity activities"):  # Android 10+, before, any
                    if found := parse_foreground(self.look(f"dumpsys {part}")):
                        return found
            time.sleep(0.2)
        raise self._fault("dumpsys names no app in front")

    # ---- apps ----

    def packages(self) -> list[str]:
        """The names of all installed packages."""
        return sorted(re.findall(r"^package:(\S+)", self.look("pm list packages"), re.MULTILINE))

    def start(self, package: str) -> bool:
        """Start an app as by its icon; Refused if there is none. True once it is in front, False where something else
        came, a question for a permission for instance; EnvFault where nothing did for half the timeout."""
        with self._call():
            end, before, home = (time.monotonic() + self._end) / 2, self.foreground(), None
            said = self._launch(package)
            while (now := self.foreground())[0] != package:
                if now != before:
                    home = home or self._component("-c android.intent.category.HOME").partition("/")[0]
                    if now[0] != home:  # the way home may end only now
                        return False
                if time.monotonic() > end:
                    raise self._fault(f"{package} was started and is not in front, {'/'.join(now)} is: {said}")
                time.sleep(POLL)
        return True

    def _launch(self, package):
        """Start an app by monkey, or by its activity's name where monkey does not work; returns what the phone said. On
        a phone without physical keys monkey does not begin unless it is told to press none."""
        name = shlex.quote(package)
        out, message, code = self._run(f"monkey -p {name} -c {LAUNCHER} --pct-syskeys 0 1")
        said = f"monkey ended with {code}: {out.decode(errors='replace')} {message}"
        if "No activities found" in said:
            raise Refused(f"there is no app {package}")
        if code or "injected: 1" not in said:
            component = self._component(f"-c {LAUNCHER} {name}")
            if component.partition("/")[0] != package:
                raise self._fault(f"cannot start {package}: {said}")
            out, message, code = self._run(f"am start -n {shlex.quote(component)} -a {MAIN} -c {LAUNCHER}")
            said += f"; am start ended with {code}: {out.decode(errors='replace')} {message}"
            if code or "Error" in out.decode(errors="replace") + message:  # older ones end with 0 all the same
                raise self._fault(f"cannot start {package}: {said}")
        return said

    def _component(self, intent):
        """PACKAGE/ACTIVITY of what an intent starts, "" where there is none."""
        lines = self.look(f"cmd package resolve-activity --brief -a {MAIN} {intent}").splitlines()
        return lines[-1] if lines and re.fullmatch(r"[\w.]+/[\w.$]+", lines[-1]) else ""

    def stop(self, package: str) -> None:
        self._do(f"am force-stop {shlex.quote(package)}")

    def clear(self, package: str) -> None:
        """Stop an app and delete its data."""
        out, message, _ = self._run(f"pm clear {shlex.quote(package)}")
        if b"Success" not in out:
            where = f"is it installed? `adb -s {self.serial} shell pm list packages`"
            reason = " ".join((out.decode(errors="replace") + message).split())
            kind = UsageError if package in self.packages() else NotThere
            raise kind(f"phone {self.serial}: pm clear {package}: {reason}; {where}")

    # ---- between episodes ----

    def reset(self, packages: Iterable[str] = ()) -> None:
        """What brings a phone without snapshots to a start: awake, these apps stopped and without data, home."""
        with self._lock:
            self.key("wake up")
            self._run("wm dismiss-keyguard")
            for package in packages:
                self.stop(package)
                self.clear(package)
            self.key("home")

    def calm(self) -> None:
        """Settings that make pictures settle at once: no animations, and no sleep while the phone is plugged in."""
        for scale in ("window_animation", "transition_animation", "animator_duration"):
            self._do(f"settings put global {scale}_scale 0")
        self._do("svc power stayon true")

    def wait(self, seconds: float) -> None:
        """Let time pass on the phone (a simulated one has a clock of its own)."""
        self._do(f"sleep {seconds:g}", seconds)

    def set_property(self, name: str, value: str) -> None:
        """Of a system property that lasts until the phone starts anew: adb may set those that begin with "debug."."""
        self._do(f"setprop {name} {shlex.quote(value)}")

    def snapshots(self) -> list[str]:
        """The names of an emulator's snapshots."""
        return re.findall(r"^(?:--|\d+)\s+(\S+)\s+\d", self._console("avd snapshot list"), re.MULTILINE)

    def save(self, name: str) -> None:
        """Take a snapshot of an emulator."""
        self._console(f"avd snapshot save {_snapshot(name)}")

    def delete(self, name: str) -> None:
        """Delete a snapshot of an emulator."""
        self._console(f"avd snapshot delete {_snapshot(name)}")

    def load(self, name: str) -> None:
        """Bring an emulator back to a snapshot, with proof: a mark that is set before is gone afterwards.

        The console's OK proves nothing. The connection may break just after it, and until adb notices, commands go to
        where nobody listens.
        """
        mark = secrets.token_hex(8)
        with self._call(SNAPSHOTS * self.timeout):
            self.set_property(MARK, mark)
            if self.look(f"getprop {MARK}") != mark:
                raise self._fault(f"setprop {MARK} does nothing, so that no load can be proved")
            self._console(f"avd snapshot load {_snapshot(name)}")
            while time.monotonic() < self._end - POLL:
                with contextlib.suppress(EnvFault), self._call(2.0):
                    if self.look(f"getprop {MARK}") != mark and self.look("getprop sys.boot_completed") == "1":
                        return
                time.sleep(POLL)
        raise self._fault(f"the emulator said OK to snapshot {name}, and nothing was brought back")

    def _console(self, command):
        """What the emulator's console replies to a command."""
        port = re.fullmatch(r"emulator-(\d+)", self.serial)
        if not port:
            raise UsageError(
                f"phone {self.serial} is no emulator, so it has no snapshots: it is reset by clearing apps"
                " (docs/android.md)"
            )
        with self._call(SNAPSHOTS * self.timeout):
            try:
                with socket.create_connection((self.server.host, int(port[1])), self._left()) as console:
                    lines = console.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
                    if "Authentication required" in self._reply(console, lines):
                        self._say(console, lines, f"auth {self._token()}")
                    return self._say(console, lines, command)
            except TimeoutError:
                raise EnvHang(f"phone {self.serial}: its console did not answer: {command}") from None
            except OSError as error:
                raise self._fault(f"its console on port {port[1]}: {error}") from None

    def _say(self, console, lines, command):
        lines.write(command + "\n")
        lines.flush()
        return self._reply(console, lines)

    def _reply(self, console, lines):
        """The console's lines up to OK; raises what its KO means."""
        said = []
        while not said or not said[-1].startswith(("OK", "KO")):
            console.settimeout(self._left())
            line = lines.readline()
            if not line:
                raise OSError("closed the connection")
            said.append(line.rstrip())
        reason = said[-1]
        if reason.startswith("OK"):
            return "\n".join(said)
        if "authentication token" in reason:
            remedy = "was it started by another user, or in a container?"
            raise UsageError(f"phone {self.serial}: its console refuses the token of {self.token_file}: {remedy}")
        if "requested snapshot" in reason:
            names = ", ".join(self.snapshots()) or "none"
            raise NotThere(
                f"phone {self.serial}: {reason[4:]}; it has: {names}. Save one:"
                f" `adb -s {self.serial} emu avd snapshot save NAME`"
            )
        raise self._fault(f"its console says {reason}")

    def _token(self):
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            remedy = "the emulator writes it for the user who starts it"
            raise UsageError(f"phone {self.serial}: no token of its console: {error}; {remedy}") from None

    # ---- the connection ----

    def _fault(self, message):
        return EnvFault(f"phone {self.serial}: {' '.join(message.split())[:500]}")

    @contextlib.contextmanager
    def _call(self, seconds=None):
        """The turn of a call that must end in so many seconds, and before a call ends that it is part of."""
        end = time.monotonic() + (seconds or self.timeout)
        if not self._lock.acquire(timeout=end - time.monotonic()):
            raise EnvHang(f"phone {self.serial}: another thread's call has not ended in {self.timeout:g} s")
        outer = self._end
        self._end = min(outer or end, end)
        try:
            yield
        finally:
            self._end = outer
            self._lock.release()

    def _left(self):
        """Seconds that the call has left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise EnvHang(f"phone {self.serial} did not answer in {self.timeout:g} s")
        return left

    def look(self, command: str) -> str:
        """What a command that changes nothing prints."""
        return self._run(command, again=True)[0].decode(errors="replace").strip()

    def _do(self, command, seconds=0.0):
        """Run a command that must succeed and may take so many seconds longer."""
        out, message, code = self._run(command, seconds=seconds)
        message = message or out.decode(errors="replace")
        if "INJECT_EVENTS" in message:
            remedy = "turn on 'USB debugging (Security settings)' in its developer options"
            raise UsageError(f"phone {self.serial} lets nobody touch it through adb: {remedy}")
        if code or "Exception" in message:
            raise self._fault(f"`{command}` failed with {code}: {message}")

    def _run(self, command, again=False, seconds=0.0):
        """Run a command: (stdout, stderr, exit code). `again`: once more if the connection is lost meanwhile."""
        with self._call(self.timeout + seconds):
            while True:
                connection = self._open(f"shell,v2,raw:{command}", again)
                try:
                    return self._read(connection)
                except EnvHang:
                    raise
                except EnvFault:
                    if not again:
                        raise
                    again = False
                finally:
                    connection.close()

    def _read(self, connection):
        """The packets of the shell protocol, up to the exit code."""
        data, said = bytearray(), {STDOUT: bytearray(), STDERR: bytearray()}
        while True:
            connection.conn.settimeout(self._left())
            try:
                received = connection.conn.recv(1 << 18)
            except TimeoutError:
                continue
            except OSError:
                received = b""
            if not received:
                raise self._fault("the connection was lost during a command")
            data += received
            while len(data) >= 5 and len(data) >= (end := 5 + int.from_bytes(data[1:5], "little")):
                kind, content = data[0], data[5:end]
                if kind == EXIT:
                    return bytes(said[STDOUT]), said[STDERR].decode(errors="replace"), content[0]
                said.setdefault(kind, bytearray()).extend(content)
                del data[:end]

    def _open(self, service, again):
        """A connection to a service of the phone. Where the service was not begun it is asked for again: the phone may
        be back. `again`: also where it may have been begun.

        By the serial, because transport ids begin anew with the server: an old one may be another phone's.
        """
        while True:
            if not self._attached:
                self._attach()
            connection = begun = None
            try:
                connection = self.server.client.make_connection(self._left())
                connection.send_command(f"host:transport:{self.serial}")
                connection.check_okay()
                begun = True
                connection.send_command(service)
                connection.check_okay()
                return connection
            except (adbutils.AdbError, OSError) as error:  # AdbTimeout is one, too
                if connection:
                    connection.close()
                if isinstance(error, adbutils.AdbTimeout | TimeoutError):
                    raise EnvHang(f"phone {self.serial} did not answer in {self.timeout:g} s") from None
                self._attached, reason = False, str(error)
            if begun and not again and "offline" not in reason:  # the server refused, the phone was not asked
                raise self._fault(f"the connection was lost as a command began: {reason}")
            if self._end - time.monotonic() < POLL:
                raise self._fault(f"it is gone: {reason}")
            time.sleep(POLL)

    def _attach(self):
        """Wait until adb has the phone. A phone that is not there is the user's error at first, a fault later."""
        end = self._end if self._known else min(self._end, time.monotonic() + PATIENCE)
        while True:
            state = self._find()
            self._attached = state == "device"
            if self._attached:
                return
            if time.monotonic() > end - POLL:
                break
            time.sleep(POLL)
        if self._known:
            raise self._fault(f"it is {state}")
        if state == "absent":
            known = ", ".join(self.server.devices()) or "none"
            raise UsageError(
                f"no phone {self.serial} at the adb server on port {self.server.port}, which has: {known}."
                " See `adb devices`; a phone: plug it in and turn on USB debugging; an emulator: start it"
            )
        raise UsageError(f"phone {self.serial} is {state}: {REMEDIES.get(state, 'see `adb devices`')}")

    def _find(self):
        """The phone's state; "absent" for one that adb does not know."""
        left = max(self._end - time.monotonic(), 1.0)  # what the server says shall decide, not who is a moment late
        try:
            devices = self.server.devices(left)
            if self.serial not in devices and ":" in self.serial:
                with contextlib.suppress(adbutils.AdbTimeout):  # nobody there: adb tries for longer
                    self.server.ask(f"host:connect:{self.serial}", min(left / 2, PATIENCE))
                devices = self.server.devices(left)
            return devices.get(self.serial, ("absent", None))[0]
        except (adbutils.AdbTimeout, TimeoutError):
            raise EnvHang(f"the adb server on port {self.server.port} does not answer") from None
        except (adbutils.AdbError, OSError):
            try:
                self.server.start()
            except UsageError as error:
                if not self._known:
                    raise
                return f"lost: {error}"  # it ran when the phone was attached
            return "absent"

    def _wait_for_boot(self):
        features = self.server.ask(f"host-serial:{self.serial}:features", self._left())
        if "shell_v2" not in features.split(","):
            raise UsageError(f"phone {self.serial}: its adb has no shell_v2: Android 7 or later is needed")
        while self.look("getprop sys.boot_completed") != "1":
            if time.monotonic() > self._end - self.timeout / 2:
                raise UsageError(f"phone {self.serial} is still booting: wait, then try again")
            time.sleep(POLL)


def input_commands(text: str) -> list[str]:
    """The commands that type printable ASCII, line ends and tabs. In `input text` a `%s` stands for a space, and one
    that is meant must be typed in two parts."""
    commands = []
    for part in re.split(r"(?<=%)(?=s)|([\n\t])", text):
        if part in ("\n", "\t"):
            commands.append(f"input keyevent {KEYS['enter' if part == chr(10) else 'tab']}")
        elif part:
            pieces = (part[start : start + PIECE] for start in range(0, len(part), PIECE))
            commands += [f"input text {shlex.quote(piece.replace(' ', '%s'))}" for piece in pieces]
    return commands


def check_png(data: bytes) -> tuple[bytes, tuple[int, int]]:
    """The PNG file in the data and its (width, height); ValueError where it is none or not whole.

    On phones with two screens a warning stands before it, in the same stream.
    """
    start = data.find(SIGNATURE)
    if start < 0:
        raise ValueError(f"no PNG in {len(data)} bytes: {data[:100]!r}")
    file = io.BytesIO(data[start:])
    try:
        with Image.open(file, formats=["PNG"]) as image:
            size = image.size
            image.verify()  # which leaves the last chunk's checksum unread
            data = file.getvalue()[: file.tell() + 4]
    except (OSError, SyntaxError, ValueError, struct.error) as error:
        raise ValueError(f"the PNG is damaged after {len(data)} bytes: {error}") from None
    if not data.endswith(END):
        raise ValueError(f"the PNG is damaged after {len(data)} bytes")
    return data, size


def parse_foreground(text: str) -> tuple[str, str] | None:
    """(package, activity) that a dumpsys names as being in front, None if it names none."""
    for name in (
        r"mCurrentFocus=Window\{",
        r"mFocusedApp=.*?ActivityRecord\{",
        r"ResumedActivity[:=] ?ActivityRecord\{",
    ):
        if found := re.search(name + r"[^}\n]*? ([\w.]+)/([\w.$]+)[ }]", text):
            package, activity = found.groups()
            return package, package + activity if activity.startswith(".") else activity
    return None


def mend(xml: str) -> str:
    """Older Androids write a character such as an emoji as two references, which XML does not allow."""
    return re.sub(r"&#(5[56]\d{3});&#(5[67]\d{3});", _join_surrogates, xml)


def _join_surrogates(match):
    high, low = int(match[1]), int(match[2])
    if 0xD800 <= high < 0xDC00 <= low < 0xE000:
        return f"&#{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00};"
    return match[0]


def bounds(element: ElementTree.Element) -> tuple[int, ...]:
    """(left, top, right, bottom) of an element of the hierarchy, in pixels."""
    return tuple(int(number) for number in re.findall(r"-?\d+", element.get("bounds", "[0,0][0,0]")))


def _snapshot(name):
    if not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(f"{name!r} cannot be a snapshot's name: letters, digits, dots and dashes")
    return name
