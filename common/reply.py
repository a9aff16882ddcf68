"""What page.js says of a page, checked where it comes in: the page's own scripts can make anything of it."""

import json
import re

from common.errors import EnvFault

MOST = 8_000_000  # characters of a reply; page.js keeps below a tenth of it
LONGEST = 1_000  # characters of a title, an error or what a dialog says
# The keys of a reply and of its nodes, and their types.
KEYS = {"error": str, "title": str, "named": str, "url": str, "status": int, "above": int, "below": int, "still": bool}
OTHERS = {"nodes": list, "asks": dict | None, "report": dict | None, "keys": dict, "points": list, "inPage": bool}
NODE = {"depth": int, "tag": str, "box": list, "text": str, "id": int, "kind": str, "label": str, "value": str}
NODE |= {"form": str, "options": list, "attributes": dict, "frame": dict}
NODE |= dict.fromkeys(("on", "selected", "disabled", "expanded"), bool)
ALWAYS = {"depth", "tag", "box"}
_UNCLEAN = re.compile(r"\\u(?:00[01]|[dD][89a-fA-F])|\\[bf]|[\x7f-\x9f]")  # in JSON
# Control characters but for blanks, and halves of characters, which no tokenizer and no terminal may get.
_UNSEEN = [*range(9), 11, 12, *range(14, 32), *range(0x7F, 0xA0), *range(0xD800, 0xE000)]
_UNSEEN = dict.fromkeys(_UNSEEN, "\ufffd")


def plain(text: str, most: int = LONGEST) -> str:
    """A text of a page's, without control characters, and no longer than `most`."""
    text = text[:most].translate(_UNSEEN)
    return text if len(text) < most else text[: most - 3] + "..."


def read_reply(call: str, text: object) -> dict:
    """The reply to `call`: an observation (it has `nodes`); of "act" perhaps `keys` alone; of "locate" `points`,
    `inPage` or `error`, of "aim" an `error` or nothing. Raises EnvFault for anything else."""
    try:
        if len(text) > MOST:
            raise ValueError(f"{len(text)} characters")
        reply = json.loads(text)
        if _UNCLEAN.search(text):
            reply = _clean(reply)
        _check(call, reply)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise EnvFault(f"page.js: the page has broken it ({plain(str(error), 100)})") from None
    for key in ("title", "error", "named"):
        if len(reply.get(key, "")) > LONGEST:
            reply[key] = plain(reply[key])
    return reply


def _clean(value):
    if isinstance(value, str):
        return value.translate(_UNSEEN)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {key.translate(_UNSEEN): _clean(item) for key, item in value.items()}
    return value


def _check(call, reply):
    for key, value in reply.items():
        known = KEYS.get(key)
        if type(value) is not known if known else not isinstance(value, OTHERS[key]):
            raise TypeError(f"{key} is {type(value).__name__}")
    parts = {"locate": {"points", "inPage", "error"}, "act": {"keys"}}.get(call, set())
    if call != "aim" and not reply.keys() & parts and not reply.keys() >= {"nodes", *KEYS}:
        raise KeyError("something is missing")
    for node in reply.get("nodes", ()):
        _check_node(node)
    asks, keys = reply.get("asks") or {"multiple": False}, reply.get("keys", {"single": False, "blank": False})
    if keys.keys() != {"single", "blank"} or {type(known) for known in (asks["multiple"], *keys.values())} != {bool}:
        raise TypeError("asks or keys")
    if not all(_is_number(point[axis]) for point in reply.get("points", ()) for axis in "xy"):
        raise TypeError("points")


def _check_node(node):
    for key, value in node.items():
        if type(value) is not NODE[key]:
            raise TypeError(f"{key} is {type(value).__name__}")
    if not node.keys() >= ALWAYS or ("id" in node and not node.keys() >= {"kind", "label"}):
        raise KeyError("a node lacks something")
    if len(node["box"]) != 4 or not all(type(edge) is int for edge in node["box"]):
        raise TypeError("box")
    if "options" in node and not ("value" in node and all(type(option) is str for option in node["options"])):
        raise TypeError("options")
    if "frame" in node:  # of another origin: where its contents begin, what is seen of it, which it is
        place = node["frame"]
        edges = [*place["at"], *place["clip"]]
        if (
            len(place["at"]) != 2
            or len(edges) != 6
            or not all(map(_is_number, edges))
            or type(place["number"]) is not int
        ):
            raise TypeError("frame")
    if "attributes" in node and not all(type(value) is str for value in node["attributes"].values()):
        raise TypeError("attributes")


def _is_number(value):
    return type(value) in (int, float) and abs(value) < 1e6
