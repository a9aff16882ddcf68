"""An observation's nodes -> the text a model reads.

`compact` is one line per item, made for small models; kind and id stand after the label, because the model names the
label first, and what it then has to find follows the copied text:

    page "red lamp"
    "home" link [1]
    "search" box [2] = "blue"
    text "price 24"
    "size" select [3] = "small" of "small" "medium" "large"
    "gift wrap" check [4] on
    below 12

`webrl` is the format of the released WebRL models (VAB-WebArena-Lite): nested tags, an id on what can be acted on, a
short list of attributes and the box in pixels. Its ids count from 1 here, as in `compact`.
"""

from collections.abc import Callable
from dataclasses import replace

from common.browser import Observation

HEAD = 160  # characters of a title, or of what a dialog said, when a page is too long
TEXT_LIMITS = (None, 160, 80, 40)  # characters of a text or label, tried in this order when a page is too long
ATTRIBUTES = (
    "title",
    "value",
    "type",
    "placeholder",
    "selected",
    "data-value",
    "data-text",
    "data-testid",
    "data-label",
)


def render(
    observation: Observation,
    format: str = "compact",
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] = len,
) -> str:
    """The page as text, in at most `max_tokens` as `count_tokens(text)` counts them.

    What does not fit is given up in this order: the ends of long texts, text lines from the end, elements from the end
    (`below` counts those), the ends of the title and of what a dialog said.
    """
    write = {"compact": _compact, "webrl": _webrl}[format]
    nodes = observation.nodes

    def fits(text: str) -> bool:
        return max_tokens is None or count_tokens(text) <= max_tokens

    for limit in TEXT_LIMITS:
        text = write(observation, _shorten(nodes, limit), 0)
        if fits(text):
            return text
        observation = _with_head(observation, HEAD)
    nodes = _shorten(nodes, TEXT_LIMITS[-1])
    texts = [i for i, node in enumerate(nodes) if "text" in node]
    elements = [i for i, node in enumerate(nodes) if "id" in node]

    def without(texts_cut: int, elements_cut: int) -> str:
        cut = set(texts[len(texts) - texts_cut :]) | set(elements[len(elements) - elements_cut :])
        return write(observation, [node for i, node in enumerate(nodes) if i not in cut], elements_cut)

    texts_cut = _fewest(len(texts), lambda n: fits(without(n, 0)))
    elements_cut = _fewest(len(elements), lambda n: fits(without(texts_cut, n))) if texts_cut == len(texts) else 0
    text = without(texts_cut, elements_cut)
    if fits(text):
        return text
    head, bare = observation, [node for node in nodes if "text" not in node and "id" not in node]

    def beheaded(cut: int) -> str:
        return write(_with_head(head, HEAD - cut), bare, len(elements))

    return beheaded(_fewest(HEAD, lambda n: fits(beheaded(n))))


def _with_head(observation: Observation, longest: int) -> Observation:
    """The page with a title and a dialog of at most so many characters."""
    title, dialog = observation.title, observation.dialog
    if len(title) <= longest and len(dialog) <= longest:
        return observation
    return replace(observation, title=title[:longest], dialog=dialog[:longest])


def _fewest(most: int, enough: Callable[[int], bool]) -> int:
    """The smallest n in 0..most with enough(n), by bisection; `most` if none is."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _shorten(nodes: list[dict], limit: int | None) -> list[dict]:
    """The nodes with texts, labels and values of at most `limit` characters, and so many options; new nodes where one
    changes."""
    if limit is None:
        return nodes

    def cut(text):
        return text[: limit - 3].rstrip() + "..." if isinstance(text, str) and len(text) > limit else text

    def shorter(node):
        short = node | {key: cut(node[key]) for key in ("text", "label", "value") if key in node}
        if len(node.get("options", ())) > limit:
            short["options"] = [*node["options"][:limit], "..."]
        return short

    return [shorter(node) for node in nodes]


def length(observation: Observation) -> int:
    """About how many characters `render` has to write, and to count the tokens of more than once."""
    keys = ("text", "label", "value")
    texts = sum(len(node[key]) for node in observation.nodes for key in keys if isinstance(node.get(key), str))
    return texts + sum(map(len, (option for node in observation.nodes for option in node.get("options", ()))))


def _quote(text: str) -> str:
    return '"' + " ".join(text.split()).replace('"', "'") + '"'


def _compact(observation: Observation, nodes: list[dict], cut: int) -> str:
    lines = [f"page {_quote(observation.title)}"]
    if observation.tabs[1] > 1:
        lines.append(f"tabs {observation.tabs[0]} of {observation.tabs[1]}")
    if observation.dialog:
        lines.append(f"dialog {_quote(observation.dialog)}")
    if observation.above:
        lines.append(f"above {observation.above}")
    lines += [compact_line(node) for node in nodes if "text" in node or "id" in node]
    if observation.below + cut:
        lines.append(f"below {observation.below + cut}")
    return "\n".join(lines)


def compact_line(node: dict) -> str:
    """One node as a line of the compact format: `"label" kind [id] = "value" (form) state`."""
    if "text" in node:
        return f"text {_quote(node['text'])}"
    line = f"{_quote(node['label'])} {node['kind']} [{node['id']}]"
    if "options" in node:
        line += f" = {_quote(node['value'])} of " + " ".join(map(_quote, node["options"]))
    elif node.get("value"):
        line += f" = {_quote(node['value'])}"
    if "form" in node:
        line += f" ({node['form']})"
    states = ("on", "selected", "disabled")
    line += "".join(f" {state}" for state in states if node.get(state))
    if "expanded" in node:
        line += " expanded" if node["expanded"] else " collapsed"
    return line


def _webrl(observation: Observation, nodes: list[dict], cut: int) -> str:
    parts, open_tags = ['<html data-bbox="0,0,1280,720">'], []
    for node, following in zip(nodes, [*nodes[1:], None]):
        while open_tags and open_tags[-1]["depth"] >= node["depth"]:
            parts.append(f"</{open_tags.pop()['tag']}>")
        if "text" in node and open_tags and open_tags[-1]["tag"] == node["tag"] and not node.get("attributes"):
            parts.append(node["text"])  # the block's own text
        elif "text" in node or "id" in node:
            parts.append(_leaf(node))
        elif following and following["depth"] > node["depth"]:  # else all that it held was cut
            open_tags.append(node)
            parts.append(_tag(node, {}))
    parts += [f"</{node['tag']}>" for node in reversed(open_tags)] + ["</html>"]
    return " ".join(parts)


def _leaf(node: dict) -> str:
    """A text run, or an element that can be acted on; an input's label is in its attributes, not inside it."""
    inside = node["text"] if "text" in node else "" if node["tag"] in ("input", "select") else node["label"]
    text = " ".join(inside.split())
    extra = {"data-text": text} if text else {}
    if node.get("kind") in ("box", "select"):
        extra |= {"value": node["value"]} if node.get("value") else {}
        extra |= {"data-label": node["label"]} if node["label"] else {}
    if node.get("on") or node.get("selected"):
        extra["selected"] = "true"
    options = [f"<option> {' '.join(option.split())} </option>" for option in node.get("options", ())]
    return " ".join([_tag(node, extra), *([text] if text else []), *options, f"</{node['tag']}>"])


def _tag(node: dict, extra: dict) -> str:
    """The opening tag with the released attributes, in the released order."""
    attributes = node.get("attributes", {}) | extra
    text = f' id="{node["id"]}"' if "id" in node else ""
    for name in ATTRIBUTES:
        if name in attributes:
            text += f" {name}={_quote(attributes[name])}"
    text += ' data-bbox="{},{},{},{}"'.format(*node["box"])
    if "data-status" in attributes:
        text += f" data-status={_quote(attributes['data-status'])}"
    return f"<{node['tag']}{text}>"
