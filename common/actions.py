"""The action grammar of WebRL: what a web agent writes, parsed to an `Action` and printed back.

    # Element: "red lamp" link [9]
    do(action="Click", element="9")

An answer is free text with one call in it: `do(action=..., argument=..., element=...)`, `exit(message=...)`,
`go_backward()` or `go_forward()`. Text around the call and code fences are ignored, the last call wins. `# Element:`
and `# Note:` lines before it are kept, because the paper's prompt asks for them and its history shows them.

The released parser (VAB-WebArena-Lite, new/actions.py) searches for the key words in a fixed order and so takes a Click
whose text contains "exit(" for an exit, and refuses `go_backward()`, Wait, Switch Tab and Right Click, which its own
prompt offers. Here whatever the prompt or the paper's list of operations offers is accepted. Nothing is ever evaluated.
"""

import ast
import json
import re
import warnings
from dataclasses import dataclass

MAX_LENGTH = 10_000  # characters of an answer; a model that writes more has lost the thread
MAX_THOUGHT = 100_000  # characters of an answer with all that a model thought before its action

# name -> (needs an element, needs an argument). Everything an agent can do on a web page.
ACTIONS = {
    "Click": (True, False),
    "Right Click": (True, False),
    "Double Click": (True, False),
    "Hover": (True, False),
    "Drag": (True, True),  # from the element to the one that the argument names, or to a point
    "Type": (True, True),  # replaces what the box holds
    "Search": (True, True),  # Type, then Enter
    "Select Dropdown Option": (True, True),
    "Upload File": (True, True),  # of the files that the task comes with, by its name
    "Press": (False, True),  # a key or a combination: Enter, Escape, Control+a
    "Scroll Up": (False, False),
    "Scroll Down": (False, False),
    "New Tab": (False, False),  # the argument, if any, is the URL
    "Switch Tab": (False, True),  # the argument counts from 1
    "Close Tab": (False, False),
    "Goto": (False, True),
    "Go Back": (False, False),
    "Go Forward": (False, False),
    "Wait": (False, False),  # the argument, if any, is how many seconds
    "Exit": (False, True),
}
# The same as a prompt tells an agent: calls as `parse` takes them.
CALLS = """do(action="Click", element="3"): click on what has this number on the page
do(action="Right Click", element="3"), do(action="Double Click", element="3")
do(action="Hover", element="3"): move the mouse over it
do(action="Drag", argument="8", element="3"): drag 3 onto 8
do(action="Type", argument="some text", element="3"): write into the box, in place of what it holds
do(action="Search", argument="some text", element="3"): the same, then press Enter
do(action="Select Dropdown Option", argument="its text", element="3")
do(action="Upload File", argument="photo.png", element="3"): one of the task's files, where a file is asked for
do(action="Press", argument="Control+a"): a key, or several at once; do(action="Press Enter")
do(action="Scroll Down"), do(action="Scroll Up")
do(action="New Tab"): an empty one, or at an address with argument="http://..."
do(action="Switch Tab", argument="2"): to the second tab
do(action="Close Tab")
do(action="Goto", argument="http://..."): to an address, in this tab
go_backward(), go_forward(): to the page before, and back again
do(action="Wait"): let the page finish loading; do(action="Wait", argument="5"): for 5 seconds
exit(message="the answer"): the task is done; N/A if it cannot be done, done if nothing was asked"""
# What takes points of the viewport as its argument in an element's stead, for what is none, such as a place on a
# canvas: "120,80". A drag goes from one to the next: "10,20,120,80". The released grammar has elements only. An agent
# that sees may also name a point, or "focus", as the element: of a box to type into, of what to scroll.
POINT = r"\s*+\d{1,4}+\s*+,\s*+\d{1,4}+\s*+"
POINTS = rf"{POINT}(?:,{POINT}){{0,99}}+"
CLICKS = "Click", "Right Click", "Double Click"
POINTED = dict.fromkeys((*CLICKS, "Hover"), POINT) | {"Drag": rf"{POINT}(?:,{POINT}){{1,99}}+"}
ALIASES = {"go backward": "Go Back", "tab focus": "Switch Tab", "go to": "Goto"}
_NAMES = {name.lower(): name for name in ACTIONS} | ALIASES

# One call whose arguments are literals. Newlines end a string, as in Python. Every repetition is possessive: whatever a
# model writes is read in linear time.
_STRING = r'"(?:[^"\\\r\n]|\\.)*+"' + r"|'(?:[^'\\\r\n]|\\.)*+'"
_ARGUMENT = rf"(?:\w++\s*+=\s*+)?+(?:{_STRING}|-?+\d++|None)"
_OPENS = r"(?<![\w.])(?:do|exit|go_backward|go_forward)\s*+\("
_ARGUMENTS = rf"\s*+(?:{_ARGUMENT}(?:\s*+,\s*+{_ARGUMENT})*+)?+\s*+,?+\s*+"
_CALL = re.compile(rf"^[^\S\n]*+#[^\n]*+|(?P<call>{_OPENS}{_ARGUMENTS}\))", re.MULTILINE)  # or a comment, quoting one
_BROKEN = re.compile(r"\b(?:do|exit|go_\w++)\s*+\(")
_COMMENT = re.compile(r"^[ \t]*+(#[ \t]*+(?:Element|Note):[^\r\n]*+)", re.IGNORECASE | re.MULTILINE)


class ActionError(ValueError):
    """The text holds no action. The message says why, in a few words an agent can be shown."""


@dataclass(frozen=True)
class Action:
    """One action: `name` is a key of ACTIONS, `element` an id of the last observation, `comment` its `#` lines."""

    name: str
    element: str | None = None
    argument: str | None = None
    comment: str = ""


def parse(text: str) -> Action:
    """The last call in `text` as an Action; raises ActionError, and nothing else, for any other string."""
    if len(text) > MAX_LENGTH:
        raise ActionError(f"answer longer than {MAX_LENGTH} characters")
    call, start = None, 0
    for match in _CALL.finditer(text):
        if match["call"]:
            start, call = (call.end() if call else 0), match
    if call is None:
        raise ActionError("malformed call" if _BROKEN.search(text) else "no action in the answer")
    name, element, argument = _fields(call.group())
    comment = "\n".join(line.rstrip() for line in _COMMENT.findall(text, start, call.start()))
    return Action(name, element, argument, comment)


def between(text: str, start: str, end: str) -> list[str]:
    """What stands between two tags in what a model wrote (the last MAX_THOUGHT characters), each pair's."""
    found, at = [], max(len(text) - MAX_THOUGHT, 0)
    while (opens := text.find(start, at)) >= 0 and (closes := text.find(end, opens + len(start))) >= 0:
        found.append(text[opens + len(start) : closes])
        at = closes + len(end)
    return found


def _fields(source: str) -> tuple[str, str | None, str | None]:
    """Name, element and argument of one call's source."""
    try:
        with warnings.catch_warnings():  # "\d" is a SyntaxWarning, not a reason to refuse
            warnings.simplefilter("ignore")
            call = ast.parse(source, mode="eval").body
        values = [ast.literal_eval(value) for value in call.args]
        keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
        SystemError,
    ):  # SystemError: deep nesting, CPython 3.11
        raise ActionError("malformed call") from None
    order = {"do": ("action", "argument", "element"), "exit": ("message",)}.get(call.func.id, ())
    if len(values) > len(order) or set(keywords) - set(order) or set(order[: len(values)]) & set(keywords):
        raise ActionError(f"{call.func.id}() takes {', '.join(order) or 'nothing'}")
    given = {
        key: None if value is None else str(value)
        for key, value in (dict(zip(order, values, strict=False)) | keywords).items()
    }
    if call.func.id != "do":
        name = {"exit": "Exit", "go_backward": "Go Back", "go_forward": "Go Forward"}[call.func.id]
        return name, None, (given.get("message") or "") if name == "Exit" else None

    wanted, element, argument = (
        " ".join((given.get("action") or "").replace("_", " ").split()),
        given.get("element"),
        given.get("argument"),
    )
    if wanted.lower() == "press enter":
        wanted, argument = "Press", "Enter"
    name = _NAMES.get(wanted.lower())
    if name is None:
        raise ActionError(f"unknown action {wanted[:40]!r}")
    needs_element, needs_argument = ACTIONS[name]
    at_points = name in POINTED and re.fullmatch(POINTED[name], argument or "")
    if needs_element and not element and not at_points:
        raise ActionError(f"{name} needs an element")
    if needs_argument and argument is None:
        raise ActionError(f"{name} needs an argument")
    return name, element, argument


def format_action(action: Action) -> str:
    """The canonical text of an action: its comment lines, then the call. `parse(format_action(a)) == a`."""
    if action.name == "Exit":
        call = f"exit(message={_quote(action.argument or '')})"
    elif action.name in ("Go Back", "Go Forward"):
        call = "go_backward()" if action.name == "Go Back" else "go_forward()"
    else:
        name, argument = action.name, action.argument
        if (name, argument) == ("Press", "Enter"):
            name, argument = "Press Enter", None
        fields = {"action": name, "argument": argument, "element": action.element}
        call = f"do({', '.join(f'{key}={_quote(value)}' for key, value in fields.items() if value is not None)})"
    return f"{action.comment}\n{call}" if action.comment else call


def _quote(text: str) -> str:
    """A Python string literal in double quotes. JSON's escapes are Python's, but for lone surrogates."""
    return re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m.group()):04x}", json.dumps(text, ensure_ascii=False))
