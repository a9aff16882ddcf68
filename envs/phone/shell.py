"""The shell of a simulated phone: what `adb shell` runs there, on a Device and a few files in memory.

The commands are those that common/android.py, adbutils and the adb program send; what they print is spelt as Android
14 does (but for the attribute `hint` of the hierarchy, which came later). Anything else, an option too, fails and says
that it is not simulated, so nobody can take the simulation for more than it is. The shell knows quotes, `;`, `&&`, `||`
and `$?`; pipes, variables and redirections are refused.
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
LAUNCHES, HOMES = "android.intent.category.LAUNCHER", "android.intent.category.HOME"
LONG_PRESS = 400  # milliseconds from which a touch is one
MOST = 1e9  # a number that is larger has no meaning: pixels, milliseconds, seconds
BINDS = 0.3  # seconds of the phone's time from `ime set` until the keyboard serves a field that has the focus
STDOUT, STDERR = 1, 2
TERMINALS = "/dev/tty", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"
TOUCH_SLOP = 8  # pixels that a finger may move without swiping
KEYBOARD = "com.android.adbkeyboard"
KEYCODES = {"HOME": 3, "BACK": 4, "TAB": 61, "SPACE": 62, "ENTER": 66, "DEL": 67, "FORWARD_DEL": 112, "MOVE_END": 123}
KEYCODES |= {"APP_SWITCH": 187, "WAKEUP": 224}
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
    no_keys: bool = False  # the phone has no physical keys: monkey does not begin unless it is told to press none


class Failed(Exception):
    """A command that fails: what it prints on stderr, its exit code, and what it prints on stdout all the same."""

    def __init__(self, message, code=1, printed=""):
        self.message, self.code, self.printed = message, code, printed


# A backslash keeps its meaning in double quotes before these alone.
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\\\n) | (?P<operator>;|&&|\|\||\n) | '(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.) | (?P<status>\$\?) | (?P<comment>\#[^\n]*) | (?P<plain>[^\s;&|'"\\$\#<>()`]+|\$(?![\w({@*\#!$-]))
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
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
    """Numbers as Java reads them, which knows no infinity by this name."""
    if not all(_NUMBER.fullmatch(word) and abs(float(word)) < MOST for word in words):
        raise Failed(f"Error: Invalid arguments for command: {' '.join(words)}\n", 255)
    return [kind(float(word)) for word in words]


def _options(program, arguments, known):
    """(options, other words): options are {name: its value, "" for one that takes none}. `known` are the names, those
    that take a value with a "=" behind. Failed for any other one: whoever uses it expects what is not simulated."""
    options, others, waiting = {}, [], list(arguments)
    while waiting:
        word = waiting.pop(0)
        if f"{word}=" in known and waiting:
            options[word] = waiting.pop(0)
        elif word in known:
            options[word] = ""
        elif word.startswith("-"):
            raise _not_simulated(program, arguments)
        else:
            others.append(word)
    return options, others


def _not_simulated(program, arguments):
    return Failed(f"{program}: {' '.join(arguments)} is not simulated\n", 255)


def _echo(words):
    """Android's shell, mksh, reads options and escapes."""
    line_end, escapes = "\n", True
    while words and re.fullmatch("-[neE]+", words[0]):
        option, *words = words
        line_end = "" if "n" in option else line_end
        escapes = option.rfind("e") >= option.rfind("E") if re.search("[eE]", option) else escapes
    text = " ".join(words)
    if not escapes:
        return text + line_end
    if re.search(r"\\[c0-9uUxEe]", text.replace("\\\\", "")):
        raise _not_simulated("echo", words)
    return re.sub(r"\\([abfnrtv\\])", lambda match: ESCAPES[match[1]], text) + line_end


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
        self._binds = 0.0  # when a keyboard that was just chosen serves the field

    def saved(self):
        """All that a snapshot brings back."""
        return self.device.state, dict(self.files), dict(self.settings), dict(self.properties)

    def restore(self, saved):
        self.device.state = saved[0]
        self.files, self.settings, self.properties = (dict(part) for part in saved[1:])
        self._before, self._binds = (0.0, b"", ""), 0.0  # of a time that has not been yet

    async def run(self, command):
        """Run a command line: (stdout, stderr, exit code), the first two as bytes."""
        said, code = await self.output(command)
        return *(b"".join(part for kind, part in said if kind == which) for which in (STDOUT, STDERR)), code

    async def output(self, command):
        """Run a command line: (what it says in the order of time, a list of (STDOUT or STDERR, bytes), exit code)."""
        try:
            commands = split(command)
        except ValueError as error:
            return [(STDERR, f"/system/bin/sh: {error}\n".encode())], 1
        said, status = [], 0
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
                printed, message, status = await self._do(words), "", 0
            except Failed as failure:
                printed, message, status = failure.printed, failure.message, failure.code
            said.append((STDERR, message.encode()))
            said.append((STDOUT, printed if isinstance(printed, bytes) else printed.encode()))
        return [(kind, part) for kind, part in said if part], status

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
            case "cmd" if arguments[:1] == ["package"]:
                return self._apps("pm", arguments[1:])
            case "settings" | "getprop" | "setprop" | "ime" | "svc":
                return self._configure(program, arguments)
            case "cat" | "ls" | "rm":
                return self._file(program, arguments)
            case "echo":
                return _echo(arguments)
            case "sleep":
                self.device.advance(sum(_numbers(*arguments, kind=float)))
                return ""
            case "date":
                return self._date(arguments)
            case "true" | ":":
                return ""
            case "false":
                raise Failed("")
        raise Failed(f"/system/bin/sh: {program}: inaccessible or not found\n", 127)

    def _date(self, arguments):
        seconds = EPOCH + self.device.state.now
        options, words = _options("date", arguments, ("-u", "-s="))
        if "-s" in options or (words and not words[0].startswith("+")):  # only root may set it
            raise Failed("date: cannot set date: Operation not permitted\n", 1, self._date([]))
        form = words[0][1:] if words else "%a %b %e %H:%M:%S GMT %Y"
        if len(words) > 1 or re.search(r"%([^a-zA-Z%]|$)", form):
            raise _not_simulated("date", arguments)
        own = {"%s": str(int(seconds)), "%N": f"{round(seconds % 1 * 1e9):09}"}  # the C library's are the machine's
        form = re.sub("%.", lambda match: own.get(match[0], match[0]), form)
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime(form) + "\n"

    # ---- what is touched and seen ----

    def _input(self, arguments):
        if self.faults.lag:
            self._before = self.device.state.now + self.faults.lag, self._picture(), self.device.hierarchy()
        words = arguments[2:] if arguments[:2] == ["-d", "0"] else arguments
        words = words[1:] if words[:1] in (["touchscreen"], ["keyboard"]) else words
        device = self.device
        match words:
            case ["tap" | "double tap" as how, x, y]:
                (device.tap if how == "tap" else device.double_tap)(*_numbers(x, y))
                self._binds = 0.0  # it is focused anew
            case ["swipe" | "draganddrop", x0, y0, x1, y1, *rest] if len(rest) < 2:
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
            case ["keyevent", *names] if names and "--" not in " ".join(names):
                names = [str(KEYCODES.get(name.removeprefix("KEYCODE_"), name)) for name in names]
                for code in _numbers(*names):
                    device.key(code)
            case ["tap" | "swipe" | "draganddrop" | "text", *_] | []:
                raise Failed(f"Error: Invalid arguments for command: {' '.join(arguments)}\n", 255)
            case _:
                raise _not_simulated("input", arguments)
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
        return self._write(arguments[1], picture) if arguments[1:] else picture

    def _uiautomator(self, arguments):
        if arguments[:1] != ["dump"]:
            raise _not_simulated("uiautomator", arguments)
        _, paths = _options("uiautomator", arguments[1:], ("--compressed",))
        path = paths[0] if paths else "/sdcard/window_dump.xml"
        if self.faults.stale:
            self.faults.stale -= 1
            raise Failed(NO_IDLE, 0)  # as on a phone: the exit code says nothing
        until, _, before = self._before
        printed = self._write(path, (before if self.device.state.now < until else self.device.hierarchy()).encode())
        return printed + f"UI hierchary dumped to: {path}\n".encode()  # Android's spelling

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
        raise _not_simulated("dumpsys", arguments)

    # ---- apps ----

    def _packages(self):
        return sorted({*self.device.packages, *([KEYBOARD] if self.has_keyboard else [])})

    def _apps(self, program, arguments):
        device = self.device
        match [program, *arguments]:
            case ["monkey", *_]:
                return self._monkey(arguments)
            case ["am", "start" | "start-activity", *words]:
                return self._start(words)
            case ["am", "force-stop", package]:
                device.stop(package)
                return ""
            case ["am", "broadcast", "-a", action, *extras]:
                self._broadcast(action, extras)
                return f"Broadcasting: Intent {{ act={action} }}\nBroadcast completed: result=0\n"
            case ["pm", "list", "packages", *words]:
                return self._list_packages(words)
            case ["pm", "resolve-activity", *words]:
                return self._resolve(words)
            case ["pm", "path", package] if package in self._packages():
                return f"package:{self._file_of(package)}\n"
            case ["pm", "path", _]:
                raise Failed("")
            case ["pm", "clear", package] if package in self._packages():
                device.clear(package)
                return "Success\n"
            case ["pm", "clear", _]:
                raise Failed("Failed\n")
        raise _not_simulated(program, arguments)

    def _monkey(self, arguments):
        """The first event that monkey injects is the start of an app, all others are random ones."""
        known = "-p=", "-c=", "--pct-syskeys=", "--throttle=", "-s="
        options, events = _options("monkey", arguments, known)
        if events != ["1"] or "-p" not in options:
            raise _not_simulated("monkey", arguments)
        if self.faults.no_keys and options.get("--pct-syskeys") != "0":
            raise Failed("** SYS_KEYS has no physical keys but with factor 2.0%.\n", 251)
        if options.get("-c", LAUNCHES) != LAUNCHES or not self.device.start(options["-p"]):
            raise Failed("** No activities found to run, monkey aborted.\n", 252)
        return "Events injected: 1\n## Network stats: elapsed time=15ms (0ms mobile, 0ms wifi, 15ms not connected)\n"

    def _start(self, words):
        """`am start` of an app's first screen. It ends with 0 where there is none only on older phones than this."""
        options, rest = _options("am start", words, ("-n=", "-a=", "-c=", "-f=", "--user="))
        name = options.get("-n", "".join(rest[:1]))
        package, slash, activity = name.partition("/")
        if not slash or len(rest) > ("-n" not in options):
            raise _not_simulated("am start", words)
        said, first = f"Starting: Intent {{ cmp={name} }}\n", self._first_screen(package)
        if not first:
            raise Failed(f"Error type 3\nError: Activity class {{{name}}} does not exist.\n", 1, said)
        if activity.removeprefix(package) != first:
            raise _not_simulated("am start", words)
        self.device.start(package)
        return said

    def _first_screen(self, package):
        """The activity that an app's icon starts, "" where there is no such app."""
        device = self.device
        before = device.state
        try:
            if not device.start(package):
                return ""
            if device.foreground()[0] != package:  # it asks for a permission
                device.key(KEYCODES["BACK"])
            return device.foreground()[1].removeprefix(package)
        finally:
            device.state = before

    def _broadcast(self, action, extras):
        """ADBKeyBoard's text, while that keyboard serves a field; what is for nobody is lost."""
        typing = self.settings.get(("secure", "default_input_method"), "").startswith(KEYBOARD)
        if typing and action == "ADB_INPUT_B64" and extras[:2] == ["--es", "msg"]:
            text = base64.b64decode(extras[2]).decode()
            if re.search(r"[\0-\x1f]", text):
                raise Failed("ADBKeyBoard: control characters in a text are not simulated\n", 255)
            if self.device.state.now >= self._binds:
                self.device.text(text)

    def _list_packages(self, words):
        options, parts = _options("pm list packages", words, ("-3", "-s", "-f", "-e", "-d", "--user="))
        names = [name for name in self._packages() if all(part in name for part in parts) and "-d" not in options]
        if {"-3", "-s"} & set(options):
            names = [name for name in names if ("-3" if self._is_added(name) else "-s") in options]
        where = {name: f"{self._file_of(name)}=" if "-f" in options else "" for name in names}
        return "".join(f"package:{where[name]}{name}\n" for name in names)

    def _is_added(self, package):
        """Whether an app did not come with the phone."""
        return package == KEYBOARD or not package.startswith("com.android.")

    def _file_of(self, package):
        return f"/{'data/app' if self._is_added(package) else 'system/app'}/{package}/base.apk"

    def _resolve(self, words):
        """What an intent for the launcher, or for an app's first screen, starts."""
        options, package = _options("pm resolve-activity", words, ("--brief", "--components", "-a=", "-c=", "--user="))
        wanted, brief = options.get("-c"), {"--brief", "--components"} & set(options)
        if wanted not in (LAUNCHES, HOMES) or not brief or len(package) > 1:
            raise _not_simulated("pm resolve-activity", words)
        name = "".join(package) if wanted == LAUNCHES else self.device.packages[0]
        activity = self._first_screen(name)
        if not activity:
            return "No activity found\n"
        priority = "" if "--components" in options else "priority=0 preferredOrder=0 match=0x108000 isDefault=true\n"
        return f"{priority}{name}/{activity}\n"

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
            case "getprop", [name, *default] if not name.startswith("-"):
                return (self.properties.get(name) or "".join(default)) + "\n"
            case "setprop", [name, value]:
                if not name.startswith("debug."):
                    raise Failed(f"Failed to set property '{name}' to '{value}'.\nSee dmesg for error reason.\n")
                self.properties[name] = value
            case "ime", ["enable" | "set" as verb, component]:
                if component.partition("/")[0] not in self._packages():
                    raise Failed(f"Unknown input method {component} cannot be {verb} for user #0\n", 255)
                if verb == "set" and self.settings.get(method) != component:
                    self.settings[method] = component
                    self._binds = self.device.state.now + BINDS
                return f"Input method {component}: now {verb}\n"
            case "svc", ["power", "stayon", _]:
                pass
            case _:
                raise _not_simulated(program, arguments)
        return ""

    # ---- files ----

    def _write(self, path, content):
        """Write a file; returns what is printed by that, where it is the terminal."""
        if path in TERMINALS:
            return content
        if path.startswith(("/dev/", "/proc/")) and path != "/dev/null":
            raise Failed(f"{path}: open failed: EACCES (Permission denied)\n")
        if path != "/dev/null":
            self.files[path] = FILE, int(EPOCH + self.device.state.now), content
        return b""

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
        known = {"ls": ("-1",), "rm": ("-f", "-r", "-rf", "-fr", "-R"), "cat": ()}[program]
        options, paths = _options(program, arguments, known)
        options = "".join(options)
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
