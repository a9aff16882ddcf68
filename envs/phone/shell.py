"""The shell of a simulated phone: what `adb shell` runs there, on a Device and a few files in memory.

The commands are those that common/android.py, adbutils and the adb program send; what they print is spelt as Android
14 does. Anything else fails as on a phone, so nobody can take the simulation for more than it is. The shell knows
quotes, `;`, `&&`, `||` and `$?`; pipes, variables and redirections are refused.
"""

import asyncio
import base64
import datetime
import re
import stat
from dataclasses import dataclass

from envs.phone.paint import png

EPOCH = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp())  # where a Device's clock begins
FILE, FOLDER = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755
FOLDERS = "/", "/sdcard", "/data", "/data/local", "/data/local/tmp"
LONG_PRESS = 400  # milliseconds from which a touch is one
TOUCH_SLOP = 8  # pixels that a finger may move without swiping
KEYBOARD = "com.android.adbkeyboard"
KEYCODES = {"HOME": 3, "BACK": 4, "TAB": 61, "SPACE": 62, "ENTER": 66, "DEL": 67, "APP_SWITCH": 187, "WAKEUP": 224}
NO_IDLE = "ERROR: could not get idle state.\n"
NOT_TYPED = """java.lang.NullPointerException: Attempt to get length of null array
\tat com.android.server.input.InputShellCommand.sendText(InputShellCommand.java:297)
"""


@dataclass
class Faults:
    """What is wrong with a phone, set by tests at any time. Those that count go down by one when they happen."""

    hang: bool = False  # neither shell nor console answers until this is False again
    drop: int = 0  # commands that are done, whose answer is lost with the connection
    offline: bool = False  # a new connection is not answered
    unauthorized: bool = False  # a new connection's keys are refused
    truncated: int = 0  # pictures that end in the middle
    stale: int = 0  # dumps of the hierarchy that fail and leave the last one's file where it is
    lag: float = 0.0  # seconds of the phone's time for which after an input is seen what was seen before it
    refuse_snapshots: bool = False  # the console refuses to save and load
    ignore_load: bool = False  # the console says OK to a load and does nothing
    drop_on_load: bool = False  # the connection is lost just after a snapshot is loaded


class Failed(Exception):
    """A command that fails: what it prints on stderr, and its exit code."""

    def __init__(self, message, code=1):
        self.message, self.code = message, code


# A backslash keeps its meaning in double quotes before these alone.
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\\\n) | (?P<operator>;|&&|\|\||\n) | '(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.) | (?P<status>\$\?) | (?P<comment>\#[^\n]*) | (?P<plain>[^\s;&|'"\\$\#<>()`]+|\$(?![\w({@*\#!$-]))
    """,
    re.VERBOSE | re.DOTALL,
)
_STATUS = "\0"  # stands for $? in a word: no command that adb sends can contain it


def split(command):
    """A command line as [(operator, words)], the operator being that before the command ("" for the first).

    `$?` in a word becomes the character 0. Raises ValueError for what this shell does not know.
    """
    commands, words, word, operator, position = [], [], None, "", 0
    while position < len(command):
        token = _TOKEN.match(command, position)
        kind = token.lastgroup if token else None
        if kind == "comment" and word is not None:  # a#b is a word
            kind, text, position = "plain", "#", position + 1
        elif token is None:
            text = command[position]
            raise ValueError("no closing quote" if text in "'\"" else f"syntax error: unexpected {text!r}")
        else:
            text, position = token[kind], token.end()
        if kind in ("blank", "operator"):
            if word is not None and text != "\\\n":
                words.append(word)
                word = None
            if kind == "operator":
                operator = _close(commands, operator, words, text)
                words = []
        elif kind != "comment":
            word = (word or "") + _unquote(kind, text)
    if word is not None:
        words.append(word)
    if not words and operator in ("&&", "||"):
        raise ValueError("syntax error: unexpected end")
    _close(commands, operator, words, "\n")
    return commands


def _close(commands, before, words, after):
    """End a command at the operator `after`; returns the operator that the next one has before it."""
    if words:
        commands.append((before, words))
        return ";" if after == "\n" else after
    if after != "\n":
        raise ValueError(f"syntax error: unexpected {after!r}")
    return before


def _unquote(kind, text):
    if kind == "status":
        return _STATUS
    if kind != "double":
        return text
    if re.search(r"(?<!\\)(?:\\\\)*(?:`|\$[\w({@*#!$-])", text):
        raise ValueError("syntax error: variables are not simulated")
    text = re.sub(r"(?<!\\)((?:\\\\)*)\$\?", rf"\1{_STATUS}", text)
    return re.sub(r'\\([$`"\\\n])', lambda match: match[1].strip("\n"), text)


def _numbers(*words, kind=int):
    try:
        return [kind(float(word)) for word in words]
    except ValueError:
        raise Failed(f"Error: Invalid arguments for command: {' '.join(words)}\n", 255) from None


class Shell:
    """The shell and the files of one phone; `device.state.now` is its clock. `run` is not for two threads at once."""

    def __init__(self, device, serial, emulator):
        self.device, self.faults = device, Faults()
        self.files = {}  # path -> (mode, time of change, content)
        self.settings = {("system", "screen_brightness"): "128", ("system", "screen_brightness_mode"): "0"}
        self.has_keyboard = False  # whether ADBKeyBoard is installed, which types any text
        self.properties = {
            "ro.product.name": "cleangui",
            "ro.product.model": "CleanGUI_Phone",
            "ro.product.device": "cleangui",
            "ro.product.manufacturer": "CleanGUI",
            "ro.serialno": serial,
            "ro.build.version.release": "14",
            "ro.build.version.sdk": "34",
            "sys.boot_completed": "1",
            "dev.bootcomplete": "1",
        } | ({"ro.kernel.qemu": "1", "ro.boot.qemu": "1"} if emulator else {})
        self._encoded = (None, b"")  # the Device's last picture and its file
        self._before = (0.0, b"", "")  # until when, which picture and which hierarchy are shown instead

    def saved(self):
        """All that a snapshot brings back."""
        return self.device.state, dict(self.files), dict(self.settings), dict(self.properties)

    def restore(self, saved):
        self.device.state = saved[0]
        self.files, self.settings, self.properties = (dict(part) for part in saved[1:])
        self._before = (0.0, b"", "")  # of a time that has not been yet

    async def run(self, command):
        """Run a command line: (stdout, stderr, exit code), the first two as bytes."""
        out, err, status = bytearray(), bytearray(), 0
        try:
            commands = split(command)
        except ValueError as error:
            return b"", f"/system/bin/sh: {error}\n".encode(), 1
        commands.reverse()
        while commands:
            operator, words = commands.pop()
            if (operator == "&&" and status) or (operator == "||" and not status):
                continue
            if words[:2] == ["input", "tap"] and commands and commands[-1][1] == words and commands[-1][0] != "||":
                commands.pop()
                words = ["input", "double tap", *words[2:]]
            words = [word.replace(_STATUS, str(status)) for word in words]
            try:
                printed, status = await self._do(words), 0
            except Failed as failure:
                printed, status = "", failure.code
                err += failure.message.encode()
            out += printed if isinstance(printed, bytes) else printed.encode()
        return bytes(out), bytes(err), status

    async def _do(self, words):
        """One command; returns what it prints on stdout."""
        program, *arguments = words
        if program in ("input", "screencap", "uiautomator", "monkey", "am"):
            await asyncio.sleep(getattr(self.device, "delay", 0.0))
        match program:
            case "input":
                return self._input(arguments)
            case "screencap":
                return self._screencap(arguments)
            case "uiautomator":
                return self._uiautomator(arguments)
            case "wm":
                return self._window_manager(arguments)
            case "dumpsys":
                return self._dumpsys(arguments)
            case "am" | "monkey" | "pm":
                return self._apps(program, arguments)
            case "settings" | "getprop" | "setprop" | "ime" | "svc":
                return self._configure(program, arguments)
            case "cat" | "ls" | "rm":
                return self._file(program, arguments)
            case "echo":
                return " ".join(arguments) + "\n"
            case "sleep":
                self.device.advance(sum(_numbers(*arguments, kind=float)))
                return ""
            case "date":
                now = datetime.datetime.fromtimestamp(EPOCH + self.device.state.now, datetime.UTC)
                return now.strftime(arguments[0][1:] if arguments else "%a %b %e %H:%M:%S GMT %Y") + "\n"
            case "true" | ":":
                return ""
            case "false":
                raise Failed("")
        raise Failed(f"/system/bin/sh: {program}: inaccessible or not found\n", 127)

    # ---- what is touched and seen ----

    def _input(self, arguments):
        if self.faults.lag:
            self._before = self.device.state.now + self.faults.lag, self._picture(), self.device.hierarchy()
        if arguments[:1] == ["-d"]:
            arguments = arguments[2:]
        device = self.device
        match [word for word in arguments if word not in ("touchscreen", "keyboard", "--longpress")]:
            case ["tap", x, y]:
                device.tap(*_numbers(x, y))
            case ["double tap", x, y]:
                device.double_tap(*_numbers(x, y))
            case ["swipe" | "draganddrop", x0, y0, x1, y1, *rest]:
                x0, y0, x1, y1, duration = _numbers(x0, y0, x1, y1, *(rest or ["300"]))
                if max(abs(x1 - x0), abs(y1 - y0)) >= TOUCH_SLOP:
                    device.swipe(x0, y0, x1, y1, duration / 1000)
                elif duration >= LONG_PRESS:
                    device.long_press(x0, y0, duration / 1000)
                else:
                    device.tap(x0, y0)
            case ["text", text]:
                text = text.replace("%s", " ")
                if not all(" " <= character <= "~" for character in text):
                    raise Failed(NOT_TYPED, 255)
                device.text(text)
            case ["keyevent", *names]:
                names = [KEYCODES.get(name.removeprefix("KEYCODE_"), name) for name in names]
                for code in _numbers(*names):
                    device.key(code)
            case _:
                raise Failed(f"Error: Invalid arguments for command: {' '.join(arguments)}\n", 255)
        return ""

    def _picture(self):
        image = self.device.screenshot()
        if image is not self._encoded[0]:
            self._encoded = image, png(image)
        return self._encoded[1]

    def _screencap(self, arguments):
        if [word for word in arguments if word.startswith("-")] != ["-p"]:
            raise Failed("screencap: only -p is simulated\n")
        until, before, _ = self._before
        picture = before if self.device.state.now < until else self._picture()
        if self.faults.truncated:
            self.faults.truncated -= 1
            picture = picture[: len(picture) // 2]
        if arguments[1:]:
            self._write(arguments[1], picture)
        return b"" if arguments[1:] else picture

    def _uiautomator(self, arguments):
        if arguments[:1] != ["dump"]:
            raise Failed("uiautomator: only dump is simulated\n")
        paths = [word for word in arguments[1:] if not word.startswith("--")]
        path = paths[0] if paths else "/sdcard/window_dump.xml"
        if self.faults.stale:
            self.faults.stale -= 1
            raise Failed(NO_IDLE, 0)  # as on a phone: the exit code says nothing
        until, _, before = self._before
        self._write(path, (before if self.device.state.now < until else self.device.hierarchy()).encode())
        return f"UI hierchary dumped to: {path}\n"  # Android's spelling

    def _window_manager(self, arguments):
        width, height = sorted(self.device.size)
        if arguments == ["size"]:
            return f"Physical size: {width}x{height}\n"  # upright, however the phone is held
        if arguments == ["density"]:
            return "Physical density: 320\n"
        if arguments == ["dismiss-keyguard"]:
            return ""
        raise Failed(f"wm: {' '.join(arguments)} is not simulated\n", 255)

    def _dumpsys(self, arguments):
        package, activity = self.device.foreground()
        record = f"ActivityRecord{{422dee38 u0 {package}/{activity.removeprefix(package)} t14}}"
        width, height = self.device.size
        match arguments:
            case ["display", *_]:
                return (
                    "  mViewports=[DisplayViewport{type=INTERNAL, valid=true, isActive=true, displayId=0, "
                    f"orientation={int(width > height)}, logicalFrame=Rect(0, 0 - {width}, {height}), "
                    f"deviceWidth={width}, deviceHeight={height}}}]\n"
                )
            case ["window"] | ["window", "displays" | "windows", *_]:
                return f"  mCurrentFocus=Window{{41b37570 u0 {package}/{activity}}}\n  mFocusedApp={record}\n"
            case ["activity", *_]:
                top = f"ACTIVITY {package}/{activity.removeprefix(package)} 1a2b3c pid=4242\n"
                return f"  mResumedActivity: {record}\n{top}"
            case ["power"]:
                return "  mWakefulness=Awake\n  mHoldingDisplaySuspendBlocker=true\n"
        return f"Can't find service: {' '.join(arguments)}\n"

    # ---- apps ----

    def _packages(self):
        return sorted({*self.device.packages, *([KEYBOARD] if self.has_keyboard else [])})

    def _apps(self, program, arguments):
        device = self.device
        match [program, *arguments]:
            case ["monkey", "-p", package, *_]:
                if not device.start(package):
                    raise Failed("** No activities found to run, monkey aborted.\n", 252)
                return "Events injected: 1\n"
            case ["am", "start" | "start-activity", *_, component]:
                if not device.start(component.partition("/")[0]):
                    raise Failed(f"Error type 3\nError: Activity class {{{component}}} does not exist.\n")
                return f"Starting: Intent {{ cmp={component} }}\n"
            case ["am", "force-stop", package]:
                device.stop(package)
                return ""
            case ["am", "broadcast", "-a", action, *extras]:
                typing = self.settings.get(("secure", "default_input_method"), "").startswith(KEYBOARD)
                if typing and action == "ADB_INPUT_B64" and extras[:2] == ["--es", "msg"]:
                    device.text(base64.b64decode(extras[2]).decode())
                return f"Broadcasting: Intent {{ act={action} }}\nBroadcast completed: result=0\n"
            case ["pm", "list", "packages", *rest]:
                words = [word for word in rest if not word.startswith("-")]
                return "".join(f"package:{name}\n" for name in self._packages() if not words or words[0] in name)
            case ["pm", "path", package] if package in self._packages():
                return f"package:/data/app/{package}/base.apk\n"
            case ["pm", "clear", package] if package in self._packages():
                device.clear(package)
                return "Success\n"
            case ["pm", "clear", _]:
                raise Failed("Failed\n")
        raise Failed(f"{program}: {' '.join(arguments)} is not simulated\n", 255)

    def _configure(self, program, arguments):
        method = ("secure", "default_input_method")
        match program, arguments:
            case "settings", ["get", space, name]:
                return self.settings.get((space, name), "null") + "\n"
            case "settings", ["put", space, name, value]:
                self.settings[space, name] = value
            case "settings", ["delete", space, name]:
                self.settings.pop((space, name), None)
            case "getprop", []:
                return "".join(f"[{name}]: [{value}]\n" for name, value in sorted(self.properties.items()))
            case "getprop", [name, *default]:
                return (self.properties.get(name) or "".join(default)) + "\n"
            case "setprop", [name, value]:
                if not name.startswith("debug."):
                    raise Failed(f"Failed to set property '{name}' to '{value}'.\nSee dmesg for error reason.\n")
                self.properties[name] = value
            case "ime", ["enable" | "set" as verb, component]:
                if component.partition("/")[0] not in self._packages():
                    raise Failed(f"Unknown input method {component} cannot be {verb} for user #0\n", 255)
                if verb == "set":
                    self.settings[method] = component
                return f"Input method {component}: now {verb}\n"
            case "svc", ["power", "stayon", _]:
                pass
            case _:
                raise Failed(f"{program}: {' '.join(arguments)} is not simulated\n", 255)
        return ""

    # ---- files ----

    def _write(self, path, content):
        self.files[path] = FILE, int(EPOCH + self.device.state.now), content

    def about(self, path):
        """(mode, size, time of change) of a file or folder; zeros where there is none."""
        if path in self.files:
            mode, changed, content = self.files[path]
            return mode, len(content), changed
        folder = (path.rstrip("/") or "/") in FOLDERS or self.names(path)
        return (FOLDER, 0, EPOCH) if folder else (0, 0, 0)

    def names(self, folder):
        """What lies in a folder."""
        prefix = folder.rstrip("/") + "/"
        inside = (path[len(prefix) :] for path in (*self.files, *FOLDERS) if path.startswith(prefix))
        return sorted({path.partition("/")[0] for path in inside if path})

    def _file(self, program, arguments):
        options = "".join(word for word in arguments if word.startswith("-"))
        paths = [word for word in arguments if not word.startswith("-")]
        printed = []
        for path in paths or ["/"]:
            mode, _, _ = self.about(path)
            if program == "ls" and mode == FOLDER:
                printed += [f"{name}\n".encode() for name in self.names(path)]
            elif program == "rm" and mode == FOLDER and "r" in options:
                for name in [name for name in self.files if name.startswith(path.rstrip("/") + "/")]:
                    del self.files[name]
            elif mode == FOLDER:
                raise Failed(f"{program}: {path}: Is a directory\n")
            elif program == "rm" and (mode or "f" in options):
                self.files.pop(path, None)
            elif not mode:
                raise Failed(f"{program}: {path}: No such file or directory\n")
            else:
                printed.append(f"{path}\n".encode() if program == "ls" else self.files[path][2])
        return b"".join(printed)
