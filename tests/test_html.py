"""Observation -> text: the compact lines, the released format, and what a token budget gives up first."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from common.browser import Observation
from common.html import render

BOX = [0, 0, 10, 10]


def text(words, depth=1):
    return {"depth": depth, "tag": "p", "text": words, "box": BOX}


def element(number, kind, label, tag="a", depth=1, **state):
    return {"depth": depth, "tag": tag, "id": number, "kind": kind, "label": label, "box": BOX} | state


SHOP = Observation(
    "http://127.0.0.1/shop",
    "red lamp",
    [
        {"depth": 0, "tag": "body", "box": [0, 0, 1280, 900]},
        element(1, "link", "home"),
        element(2, "box", "search", "input", value="blue", attributes={"type": "text", "placeholder": "search"}),
        element(3, "button", "go", "button"),
        {"depth": 1, "tag": "p", "box": BOX},
        text("price  24", 2),
        element(4, "select", "size", "select", value="small", options=["small", "large one"]),
        element(5, "check", "gift wrap", "input", on=True, attributes={"type": "checkbox"}),
        element(6, "radio", "express", "input", on=False),
        element(7, "button", 'say "hi"', "button", disabled=True),
        element(8, "item", "more", "div", expanded=False, selected=True),
        element(9, "box", "password", "input", value="***"),
    ],
    above=2,
    below=12,
    tabs=(2, 3),
    dialog="sure?",
)


def test_compact():
    assert render(SHOP).splitlines() == [
        'page "red lamp"',
        "tabs 2 of 3",
        'dialog "sure?"',
        "above 2",
        '"home" link [1]',
        '"search" box [2] = "blue"',
        '"go" button [3]',
        'text "price 24"',
        '"size" select [4] = "small" of "small" "large one"',
        '"gift wrap" check [5] on',
        '"express" radio [6]',
        "\"say 'hi'\" button [7] disabled",
        '"more" item [8] selected collapsed',
        '"password" box [9] = "***"',
        "below 12",
    ]


def test_webrl():
    lines = render(SHOP, "webrl").replace(" <", "\n<").splitlines()
    assert lines[:4] == [
        '<html data-bbox="0,0,1280,720">',
        '<body data-bbox="0,0,1280,900">',
        '<a id="1" data-text="home" data-bbox="0,0,10,10"> home',
        "</a>",
    ]
    assert (
        '<input id="2" value="blue" type="text" placeholder="search" data-label="search" data-bbox="0,0,10,10">'
        in lines
    )
    assert (
        '<p data-bbox="0,0,10,10"> price 24'
        in " ".join(render(SHOP, "webrl").split()).replace(" <", "\n<").splitlines()
    )
    assert "<option> large one" in lines
    assert '<input id="5" type="checkbox" selected="true" data-bbox="0,0,10,10">' in lines


def balanced(page: str) -> bool:
    open_tags = []
    for closing, tag in re.findall(r"<(/?)(\w+)", re.sub(r'"[^"]*"', "", page)):
        if closing and (not open_tags or open_tags.pop() != tag):
            return False
        if not closing:
            open_tags.append(tag)
    return not open_tags


def words(page: str) -> int:
    return len(page.split())


@st.composite
def pages(draw):
    nodes, count = [], 0
    for _ in range(draw(st.integers(0, 30))):
        depth = draw(st.integers(0, 4))
        what = draw(st.sampled_from(["text", "element", "block"]))
        label = draw(st.text("ab \n'", max_size=300))
        count += what == "element"
        nodes.append(
            {
                "text": text(label, depth),
                "element": element(count, "link", label, depth=depth),
                "block": {"depth": depth, "tag": "div", "box": BOX},
            }[what]
        )
    return Observation("u", "t", nodes, below=draw(st.integers(0, 5)))


@given(pages(), st.integers(1, 200), st.sampled_from(["compact", "webrl"]))
@settings(deadline=None)
def test_a_budget_is_kept_and_elements_last_longest(page, budget, format):
    full, cut = render(page, format), render(page, format, budget, words)
    least = render(Observation("u", "t", [], below=page.below + 1), format)
    assert words(cut) <= budget or cut.count("\n") <= least.count("\n")
    if words(full) <= budget:
        assert cut == full
    kept, all_ids = re.findall(r"\[(\d+)\]", cut), re.findall(r"\[(\d+)\]", full)
    assert kept == all_ids[: len(kept)]  # from the end
    if format == "compact" and "\ntext" in cut:
        assert kept == all_ids  # texts go first
    if format == "compact" and len(kept) < len(all_ids):
        assert f"below {page.below + len(all_ids) - len(kept)}" in cut
    if format == "webrl":
        assert balanced(full) and balanced(cut)


def test_a_long_list_of_options_is_shortened():
    names = [f"country {number}" for number in range(300)]
    page = Observation("", "form", [element(1, "select", "country", "select", value="country 7", options=names)])
    assert '"country 299"' in render(page)
    short = render(page, max_tokens=1000)
    assert short.endswith('"country 39" "..."') and '= "country 7"' in short


def test_a_long_text_is_shortened_before_anything_is_dropped():
    page = Observation("u", "t", [text("word " * 100), element(1, "link", "home"), text("price 24")])
    cut = render(page, max_tokens=60, count_tokens=words)
    assert cut.splitlines()[1].endswith('wo..."')
    assert cut.splitlines()[2:] == ['"home" link [1]', 'text "price 24"']
    assert render(page, max_tokens=6, count_tokens=words) == 'page "t"\n"home" link [1]'
    assert render(page, max_tokens=5, count_tokens=words) == 'page "t"\n"home" link [1]'
    assert render(page, max_tokens=4, count_tokens=words) == 'page "t"\nbelow 1'
