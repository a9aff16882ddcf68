"""What an agent does on a phone, in two grammars, and how it becomes touches and keys.

Agents that read write the web's calls (common/actions.py) on numbered elements or on points of the picture. On a phone
`Right Click` is a long press, `Press` takes Enter, Back, Home, Recents and Delete, and `Type` on a slider sets it to a
percentage.

    do(action="Click", element="3")        do(action="Type", element="4", argument="Anna")        exit(message="42")

Agents that see write the actions of Android in the Wild (Rawles et al., 2023, arXiv:2307.10088), as DigiRL's models
print them; points are (y, x) from 0 to 1:

    "action_type": "DUAL_POINT", "touch_point": "[0.8, 0.5]", "lift_point": "[0.2, 0.5]", "typed_text": ""
"""

import math
import re
from dataclasses import dataclass

from common.actions import POINTED, ActionError

BACK, HOME, ENTER, DELETE, RECENTS = 4, 3, 66, 67, 187
KEYS = {"enter": ENTER, "back": BACK, "home": HOME, "recents": RECENTS, "delete": DELETE, "backspace": DELETE}
TAP = 0.04  # Android in the Wild: points that are nearer to each other are a tap
TYPES = ("DUAL_POINT", "TYPE", "PRESS_BACK", "PRESS_HOME", "PRESS_ENTER", "STATUS_TASK_COMPLETE",
         "STATUS_TASK_IMPOSSIBLE")  # fmt: skip
IMPOSSIBLE = "N/A"  # the answer that says so, as on the arena


@dataclass(frozen=True)
class Gesture:
    """One action of Android in the Wild; `touch` and `lift` are (x, y) from 0 to 1, `text` what is typed, or the answer
    of STATUS_TASK_COMPLETE."""

    type: str
    touch: tuple = (-1.0, -1.0)
    lift: tuple = (-1.0, -1.0)
    text: str = ""

    @property
    def is_tap(self):
        return self.type == "DUAL_POINT" and math.dist(self.touch, self.lift) <= TAP


_POINT = r'"?\[\s*(-?[\d.]+)\s*,\s*(-?[\d.]+)\s*\]"?'
_FIELDS = {
    "type": re.compile(r'"?action_type"?\s*:\s*"?(\w+)', re.IGNORECASE),
    "touch": re.compile(rf'"?touch_point"?\s*:\s*{_POINT}', re.IGNORECASE),
    "lift": re.compile(rf'"?lift_point"?\s*:\s*{_POINT}', re.IGNORECASE),
    "text": re.compile(r'"?typed_text"?\s*:\s*"((?:[^"\\]|\\.)*+)"', re.IGNORECASE),
}


def parse_gesture(text):
    """The Gesture in an answer; raises ActionError, and nothing else, where there is none."""
    found = {name: pattern.search(text[-4000:]) for name, pattern in _FIELDS.items()}
    kind = found["type"][1].upper() if found["type"] else ""
    if kind not in TYPES:
        raise ActionError(f"unknown action type {kind[:40]!r}" if kind else "no action type in the answer")
    words = re.sub(r"\\(.)", r"\1", found["text"][1]) if found["text"] else ""
    if kind != "DUAL_POINT":
        return Gesture(kind, text=words)
    try:
        touch, lift = ((float(found[name][2]), float(found[name][1])) for name in ("touch", "lift"))
    except (TypeError, ValueError):
        raise ActionError("DUAL_POINT needs a touch point and a lift point") from None
    if not all(0 <= place <= 1 for place in (*touch, *lift)):
        raise ActionError("points are from 0 to 1")
    return Gesture(kind, touch, lift)


def format_gesture(gesture):
    """The canonical text of a gesture, with four digits: `parse_gesture` reads it back."""
    words = gesture.text.replace("\\", "\\\\").replace('"', '\\"')
    points = (f"[{y:.4f}, {x:.4f}]" for x, y in (gesture.touch, gesture.lift))
    touch, lift = points
    return f'"action_type": "{gesture.type}", "touch_point": "{touch}", "lift_point": "{lift}", "typed_text": "{words}"'


def gestures_of(action, nodes, size):
    """The gestures that do what a call on elements does: a list, because a text is typed after a tap on its box.

    `nodes` are those of `observe.read`. A box must be empty before: no gesture deletes. What no gesture can do raises
    ActionError.
    """
    name, argument = action.name, action.argument or ""
    if name == "Exit":
        kind = "STATUS_TASK_IMPOSSIBLE" if argument == IMPOSSIBLE else "STATUS_TASK_COMPLETE"
        return [Gesture(kind, text="" if argument in (IMPOSSIBLE, "done") else argument)]
    if name == "Go Back" or (name == "Press" and argument.lower() == "back"):
        return [Gesture("PRESS_BACK")]
    if name == "Press" and argument.lower() in ("home", "enter"):
        return [Gesture(f"PRESS_{argument.upper()}")]
    if name in ("Scroll Down", "Scroll Up"):
        ends = (0.5, 0.7), (0.5, 0.3)
        return [Gesture("DUAL_POINT", *(ends if name == "Scroll Down" else ends[::-1]))]
    if name == "Wait":  # there is no gesture for it; typing nothing does nothing
        return [Gesture("TYPE")]
    if name not in ("Click", "Type", "Search"):
        raise ActionError(f"no gesture does {name}")
    node = _element(action.element, nodes)
    left, top, width, height = node["box"]
    if node["kind"] == "slider" and name == "Type":
        ends = [(left + width / 2) / size[0], (slider_place(node, int(argument), size)) / size[0]]
        y = (top + height / 2) / size[1]
        return [Gesture("DUAL_POINT", *((x, y) for x in ends))]
    gestures = [tap_at(node["box"], size)]
    gestures += [Gesture("TYPE", text=argument)] if name != "Click" else []
    return gestures + [Gesture("PRESS_ENTER")] * (name == "Search")


def tap_at(box, size):
    """A tap in the middle of a box of pixels."""
    left, top, width, height = box
    place = (left + width / 2) / size[0], (top + height / 2) / size[1]
    return Gesture("DUAL_POINT", place, place)


def slider_place(node, percent, size):
    """Where on a slider a percentage is; its bar ends a thumb's radius inside its box."""
    left, _, width, _ = node["box"]
    ends = 12 * size[0] / 360
    return left + ends + (width - 2 * ends) * percent / 100


# --- done on a phone -------------------------------------------------------------------------------------------------
# `phone` has the methods of envs/phone/device.py, or of a driver that talks to a phone by adb.


def do_gesture(phone, gesture):
    """Do a gesture that ends nothing; the pixels that a finger touched, a swipe's start and end."""
    width, height = phone.size
    points = [
        (min(int(x * width), width - 1), min(int(y * height), height - 1)) for x, y in (gesture.touch, gesture.lift)
    ]
    if gesture.type == "DUAL_POINT":
        if gesture.is_tap:
            phone.tap(*points[0])
            return points[:1]
        phone.swipe(*points[0], *points[1], 0.5)
        return points
    if gesture.type == "TYPE":
        phone.text(gesture.text)
    else:
        phone.key({"PRESS_BACK": BACK, "PRESS_HOME": HOME, "PRESS_ENTER": ENTER}[gesture.type])
    return []


def do_action(phone, action, nodes):
    """Do a call of common/actions.py; the pixels that a finger touched, a swipe's start and end. `nodes` are those of
    `observe.read`. Raises ActionError if the call means nothing."""
    name, argument = action.name, action.argument or ""
    if name in ("Click", "Double Click", "Right Click"):
        place = _place(phone, action.element or argument, nodes)
        if name == "Right Click":
            phone.long_press(*place, 1.0)
        else:
            (phone.tap if name == "Click" else phone.double_tap)(*place)
        return [place]
    if name in ("Type", "Search"):
        return _type(phone, action, nodes)
    if name == "Drag":
        numbers = argument.split(",")
        start = _place(phone, action.element or ",".join(numbers[:2]), nodes)
        end = _place(phone, argument if action.element else ",".join(numbers[-2:]), nodes)
        phone.swipe(*start, *end, 0.5)
        return [start, end]
    if name in ("Scroll Up", "Scroll Down"):
        return _scroll(phone, name, action.element, nodes)
    if name in ("Press", "Go Back"):
        key = BACK if name == "Go Back" else KEYS.get(argument.lower())
        if key is None:
            raise ActionError(f"a phone has no key {argument[:20]!r}")
        phone.key(key)
    elif name != "Wait":
        raise ActionError(f"a phone has no {name}")
    return []


def _place(phone, target, nodes):
    """The pixel that an element or "x,y" names."""
    if re.fullmatch(POINTED["Click"], target):
        x, y = (int(number) for number in target.split(","))
        return min(x, phone.size[0] - 1), min(y, phone.size[1] - 1)
    left, top, width, height = _element(target, nodes)["box"]
    return left + width // 2, top + height // 2


def _element(id, nodes):
    for node in nodes:
        if node.get("id") == id:
            return node
    raise ActionError(f"no element {str(id)[:20]} on the screen")


def _type(phone, action, nodes):
    """Put the focus into a box, empty it, type; the box "focus" is the one that has the focus."""
    words, places = action.argument or "", []
    if action.element == "focus":
        phone.text(words)
    else:
        node = _box_at(phone, action.element, nodes) if "," in action.element else _element(action.element, nodes)
        if node and node["kind"] == "slider":
            if not re.fullmatch(r"\s*+\d{1,3}+\s*+", words) or int(words) > 100:
                raise ActionError("a slider takes a percentage")
            place = round(slider_place(node, int(words), phone.size)), node["box"][1] + node["box"][3] // 2
            phone.tap(*place)
            return [place]
        if node and node["kind"] != "box":
            raise ActionError(f"element {action.element} takes no text")
        places = [_place(phone, action.element, nodes)]
        phone.tap(*places[0])
        phone.fill(node["holds"] if node else "", words, bool(node) and node["holds"] != node["value"])
    if action.name == "Search":
        phone.key(ENTER)
    return places


def _box_at(phone, point, nodes):
    """The box under a point, None where there is none."""
    x, y = _place(phone, point, nodes)
    for node in reversed(nodes):
        left, top, width, height = node.get("box", (0, 0, 0, 0))
        if left <= x < left + width and top <= y < top + height:
            return node if node["kind"] == "box" else None
    return None


def _scroll(phone, name, element, nodes):
    width, height = phone.size
    x, middle = (width // 2, height // 2) if not element else _place(phone, element, nodes)
    top, low = (x, round(middle - 0.2 * height)), (x, round(middle + 0.2 * height))
    places = [low, top] if name == "Scroll Down" else [top, low]
    phone.swipe(*places[0], *places[1], 0.5)
    return places
