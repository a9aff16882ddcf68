"""What an agent reads of a phone's screen: the hierarchy of `uiautomator dump` as numbered lines.

The lines are those of web pages (common/html.py), so that a model points at things in one way everywhere:

    page "settings"
    text "Network & internet"
    "Navigate up" button [1]
    "Wi-Fi" check [2] on
    "Screen timeout" item [3] = "After 30 seconds"
    "Search settings" box [4]
    "Media volume" slider [5] = "40"
    scrolls
"""

import re
from functools import lru_cache
from xml.etree import ElementTree

from common.html import compact_line

_BOUNDS = re.compile(r"\[(-?\d+),(-?\d+)\]\[(-?\d+),(-?\d+)\]")
_CHECKS = {"Switch": "check", "CheckBox": "check", "ToggleButton": "check", "RadioButton": "radio"}


@lru_cache(256)
def read(xml):
    """(package, nodes, whether something scrolls). A node is {"text"} or {"id", "kind", "label", "box", ..}, as on a
    web page; `box` is left, top, width, height in pixels. Kinds: button, item, box, check, radio, slider. A box has
    `value`, what it shows as its content, and `holds`, what it may hold: that can be a hint (envs/phone/adb.py).
    """
    root, nodes = ElementTree.fromstring(xml), []
    first = root.find("node")
    package = "" if first is None else first.get("package", "")
    scrolls = _collect(root, nodes)
    for number, node in enumerate((node for node in nodes if "kind" in node), 1):
        node["id"] = str(number)
    return package, tuple(nodes), scrolls


def text_of(xml):
    """The screen as lines."""
    package, nodes, scrolls = read(xml)
    lines = [f'page "{package.rpartition(".")[2]}"', *(compact_line(node) for node in nodes)]
    return "\n".join(lines + ["scrolls"] * scrolls)


def _collect(element, nodes):
    """Adds what is in an element; whether something in it scrolls."""
    scrolls = element.get("scrollable") == "true" and _kind(element) != "slider"
    for child in element:
        node = _node(child)
        if node:
            nodes.append(node)
        if node and "kind" in node:  # its texts are its label: only what can be tapped on its own is left
            inner = []
            scrolls |= _collect(child, inner)
            nodes += [one for one in inner if "kind" in one]
        else:
            scrolls |= _collect(child, nodes)
    return scrolls


def _kind(element):
    name = element.get("class", "").rpartition(".")[2]
    if name in ("EditText", "AutoCompleteTextView"):
        return "box"
    if name == "SeekBar":
        return "slider"
    if element.get("clickable") != "true" and element.get("long-clickable") != "true":
        return ""
    return _CHECKS.get(name) or ("button" if name in ("Button", "ImageButton") else "item")


def _node(element):
    """The node of one element, None where it has nothing to show."""
    kind, words, said = _kind(element), element.get("text", ""), element.get("content-desc", "")
    if not kind:
        return {"text": words or said} if words or said else None
    found = _BOUNDS.fullmatch(element.get("bounds", ""))
    left, top, right, low = (int(edge) for edge in found.groups()) if found else (0, 0, 0, 0)
    node = {"id": "", "kind": kind, "box": (left, top, right - left, low - top)}
    if kind in ("box", "slider"):
        label = element.get("hint") or said or element.get("resource-id", "").rpartition("/")[2]
        if kind == "slider":
            return node | {"label": label, "value": words.removesuffix(".0")}
        return node | {"label": label, "value": words, "holds": element.get("holds", words)}
    inside = list(_inside(element))
    texts = [one for one in [words or said, *(one.get("text") or one.get("content-desc") for one in inside)] if one]
    checks = [one for one in (element, *inside) if one.get("checkable") == "true"]
    if checks:
        name = checks[0].get("class", "").rpartition(".")[2]
        node |= {"kind": _CHECKS.get(name, "check"), "on": checks[0].get("checked") == "true"}
    node |= {"label": texts[0] if texts else "", "value": ", ".join(texts[1:])}
    if element.get("selected") == "true":
        node["selected"] = True
    if element.get("enabled") == "false":
        node["disabled"] = True
    return node


def _inside(element):
    """What is in an element and cannot be tapped on its own."""
    for child in element:
        if not _kind(child):
            yield child
            yield from _inside(child)
