"""The action in the answer of an agent that sees, and the answer that a demonstration gives.

A model with a chat template answers with one tool call, with coordinates from 0 to 1000; the tiny model with a place of
an 8 by 8 grid as two tokens.
"""

import json
import re

from common.actions import Action, between, format_action, parse
from common.screen import NORMAL, points, to_normal, to_pixels

GRID = 8  # places a side in the tiny model's answers
_BLANKS = re.compile(r"\s*+")


def without_thoughts(answer: str) -> str:
    """An answer as the history shows it."""
    kept, at = [], 0
    while (opens := answer.find("<think>", at)) >= 0 and (closes := answer.find("</think>", opens)) >= 0:
        kept.append(answer[at:opens])
        at = _BLANKS.match(answer, closes + len("</think>")).end()
    return "".join([*kept, answer[at:]])


def read_action(answer: str, size: tuple[int, int]) -> str:
    """The environment's action in an answer, for a page of `size` (width, height). What is none stays as it is: the
    environment says so."""
    words = answer.split()
    if words[:1] == ["done"]:
        return format_action(Action("Exit", None, "done"))
    if words[:1] == ["answer"] and len(words) > 1 and "<tool_call>" not in answer:
        return format_action(Action("Exit", None, words[1]))
    place = re.fullmatch(r"click x(\d) y(\d)", " ".join(words[:3]))
    if place:
        x, y = ((int(number) + 0.5) * NORMAL / GRID for number in place.groups())
        return format_action(Action("Click", None, point(x, y, size)))
    calls = between(without_thoughts(answer), "<tool_call>", "</tool_call>")
    try:
        call = json.loads(calls[-1])
        return format_action(tool_action(call["name"], call.get("arguments") or {}, size))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return answer


def point(x: float, y: float, size: tuple[int, int]) -> str:
    return ",".join(map(str, to_pixels(float(x), float(y), size)))


def tool_action(name: str, arguments: dict, size: tuple[int, int]) -> Action:
    """The Action of a tool call. Raises KeyError, TypeError or ValueError where it is none."""
    at = point(*arguments["coordinate"], size) if arguments.get("coordinate") else None
    if name in ("click", "double_click", "hover"):
        kind, mark = name.replace("_", " ").title(), arguments.get("mark")  # of a set of marks
        return (
            Action(kind, str(mark)) if mark is not None else Action(kind, None, point(*arguments["coordinate"], size))
        )
    if name == "type":
        return Action("Search" if arguments.get("enter") else "Type", at or "focus", str(arguments["text"]))
    if name == "scroll":
        return Action({"up": "Scroll Up", "down": "Scroll Down"}[arguments["direction"]], at)
    if name == "drag":
        ends = (point(*arguments[end], size) for end in ("from", "to"))
        return Action("Drag", None, ",".join(ends))
    if name == "key":
        return Action("Press", None, str(arguments["key"]))
    if name == "goto":
        return Action("Goto", None, str(arguments["url"]))
    if name == "answer":
        return Action("Exit", None, str(arguments["content"]))
    return Action({"wait": "Wait", "back": "Go Back"}[name])


def write_action(text: str, obs: dict, size: tuple[int, int], chat: bool) -> str:
    """What a demonstration answers: the oracle's action with the middle of its element in the element's place. Raises
    LookupError for what no such answer can say."""
    action = parse(text)
    if action.name == "Exit":
        said = action.argument
        if not chat:
            return "done" if said == "done" else f"answer {said}"
        return tool_answer("answer", {"content": said})
    places = points(action, obs["boxes"])
    if action.element not in (None, "focus") and not places:
        raise LookupError(f"{action.element} is not to be seen")
    if not chat:
        if action.name != "Click":
            raise LookupError(f"{action.name} is no click")
        return f"click x{int(places[0][0] * GRID / size[0])} y{int(places[0][1] * GRID / size[1])}"
    return tool_answer(*tool_call(action, [list(to_normal(*place, size)) for place in places]))


def tool_call(action: Action, places: list[list[int]]) -> tuple[str, dict]:
    """(name, arguments) of the tool that does an action, with its places from 0 to 1000. Raises LookupError where none
    does."""
    name, at = action.name, {"coordinate": places[0]} if places else {}
    if name in ("Click", "Double Click", "Hover"):
        return name.lower().replace(" ", "_"), at
    if name in ("Type", "Search"):
        return "type", {"text": action.argument, **at, "enter": name == "Search"}
    if name in ("Scroll Up", "Scroll Down"):
        return "scroll", {"direction": name.split()[1].lower(), **at}
    if name == "Drag" and len(places) == 2:
        return "drag", {"from": places[0], "to": places[1]}
    others = {"Press": ("key", "key"), "Goto": ("goto", "url")}
    if name in others and not places:  # a key goes to what has the focus
        tool, argument = others[name]
        return tool, {argument: action.argument}
    if name in ("Wait", "Go Back"):
        return {"Wait": "wait", "Go Back": "back"}[name], {}
    raise LookupError(f"no tool does {name}")


def tool_answer(name: str, arguments: dict) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
