"""The action grammar: what the paper's prompt offers, what models write around it, and no way to crash the parser."""

import time
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.actions import ACTIONS, MAX_LENGTH, Action, ActionError, format_action, parse


@pytest.mark.parametrize(
    "text, action",
    [
        ('do(action="Click", element="3")', Action("Click", "3")),
        ('do(action="Type", argument="red lamp", element="2")', Action("Type", "2", "red lamp")),
        ('do(action="Search", argument="red lamp", element="2")', Action("Search", "2", "red lamp")),
        (
            'do(action="Select Dropdown Option", argument="Month", element="20")',
            Action("Select Dropdown Option", "20", "Month"),
        ),
        ('do(action="Right Click", element="1")', Action("Right Click", "1")),
        ('do(action="Hover", element="1")', Action("Hover", "1")),
        ('do(action="Drag", element="3", argument="5")', Action("Drag", "3", "5")),
        ('do(action="Drag", element="3", argument="120,80")', Action("Drag", "3", "120,80")),
        ('do(action="Drag", argument="10,20,120,80,10,20")', Action("Drag", None, "10,20,120,80,10,20")),
        ('do(action="Click", argument="120,80")', Action("Click", None, "120,80")),
        ('do(action="Double Click", element="12")', Action("Double Click", "12")),
        ('do(action="Double Click", argument="120,80")', Action("Double Click", None, "120,80")),
        ('do(action="Right Click", argument=" 120 , 80")', Action("Right Click", None, " 120 , 80")),
        ('do(action="Hover", argument="0,0")', Action("Hover", None, "0,0")),
        ('do(action="Press Enter")', Action("Press", None, "Enter")),
        ('do(action="Press", argument="Control+a")', Action("Press", None, "Control+a")),
        ('do(action="Scroll Down")', Action("Scroll Down")),
        ('do(action="Scroll Up", element="4")', Action("Scroll Up", "4")),
        ('do(action="Switch Tab", argument="2")', Action("Switch Tab", None, "2")),
        ('do(action="Tab_focus", argument=2)', Action("Switch Tab", None, "2")),
        ('do(action="New Tab")', Action("New Tab")),
        ('do(action="Close Tab")', Action("Close Tab")),
        ('do(action="Goto", argument="http://127.0.0.1/x")', Action("Goto", None, "http://127.0.0.1/x")),
        ('do(action="Go Backward")', Action("Go Back")),
        ('do(action="Go Forward")', Action("Go Forward")),
        ('do(action="Wait")', Action("Wait")),
        ("go_backward()", Action("Go Back")),
        ("go_forward()", Action("Go Forward")),
        ('exit(message="24")', Action("Exit", None, "24")),
        ("exit()", Action("Exit", None, "")),
    ],
)
def test_everything_the_prompt_offers(text, action):
    assert parse(text) == action


@pytest.mark.parametrize(
    "text, action",
    [
        # the released parser takes the first of these for an exit
        ('do(action="Click", argument="exit(message=1)", element="3")', Action("Click", "3", "exit(message=1)")),
        ("do(action='click', element=3)", Action("Click", "3")),
        ('do("Type", "a", 3)', Action("Type", "3", "a")),
        ('```python\ndo(action="Click", element="3")\n```', Action("Click", "3")),
        ('First do(action="Wait"), then:\nexit(message="x")', Action("Exit", None, "x")),
        ('do( action = "Click" , element = "3" , )', Action("Click", "3")),
        (r'exit(message="a \"b\" \\ é\n")', Action("Exit", None, 'a "b" \\ é\n')),
        (r'exit(message="\d")', Action("Exit", None, r"\d")),
        ('I redo(x). undo("a") exit(message="y")', Action("Exit", None, "y")),
    ],
)
def test_what_models_write_around_it(text, action):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse(text) == action


def test_comment_lines_are_kept():
    text = (
        'I look.\n# Element: "red lamp" link [9]\n# note: price 24, exit(message="no")\ndo(action="Click", element="9")'
    )
    assert parse(text) == Action(
        "Click", "9", None, '# Element: "red lamp" link [9]\n# note: price 24, exit(message="no")'
    )
    later = parse('# Note: old\ndo(action="Wait")\n# Element: new\ndo(action="Click", element="1")')
    assert later.comment == "# Element: new"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no action"),
        ("click on 3", "no action"),
        ('do(action="Click", element=', "malformed"),
        ("do(action=Click)", "malformed"),
        ('do(action=__import__("os").system("x"))', "malformed"),
        ('do(action="Fly")', "unknown action 'Fly'"),
        ('do(action="Click")', "needs an element"),
        ('do(action="Click", argument="the lamp")', "needs an element"),
        ('do(action="Click", argument="120")', "needs an element"),
        ('do(action="Click", argument="120,80,9")', "needs an element"),
        ('do(action="Click", argument="120,-80")', "needs an element"),
        ('do(action="Drag", argument="120,80")', "needs an element"),
        ('do(action="Drag", element="3")', "needs an argument"),
        ('do(action="Type", argument="120,80")', "needs an element"),
        ('do(action="Type", element="3")', "needs an argument"),
        ('do(action="Click", target="3")', "takes action, argument, element"),
        ('do("Click", action="Click", element="3")', "takes"),
        ('exit("a", "b")', "takes message"),
        (r'exit(message="\x")', "malformed"),
        ("x" * (MAX_LENGTH + 1), "longer than"),
    ],
)
def test_errors_say_why(text, reason):
    with pytest.raises(ActionError, match=reason):
        parse(text)


words = st.text(max_size=30)
notes = st.lists(
    st.builds("# {}: {}".format, st.sampled_from(["Element", "Note"]), st.text("ab \"'()=#é[]", max_size=20)),
    max_size=3,
).map(lambda lines: "\n".join(line.rstrip() for line in lines))


@st.composite
def actions(draw):
    name = draw(st.sampled_from(sorted(ACTIONS)))
    needs_element, needs_argument = ACTIONS[name]
    element = draw(words.filter(bool) if needs_element else st.none() | words.filter(bool))
    argument = draw(words if needs_argument else st.none() | words)
    if name in ("Exit", "Go Back", "Go Forward"):
        element = None
    if name in ("Go Back", "Go Forward"):
        argument = None
    return Action(name, element, argument, draw(notes))


@given(actions())
@example(Action("Exit", None, "\ud800\x00\u2028\"'\\\n"))
@example(Action("Click", "1", None, '# Note: exit(message="a")'))
def test_print_then_parse_is_the_identity(action):
    assert parse(format_action(action)) == action


fragments = st.sampled_from(
    ["do(", "exit(", "go_backward(", ")", '"', "'", "\\", "=", ",", "action=", "\x00", "((", "\n#", "None", "1"]
)


@given(st.text() | st.lists(fragments | st.text(max_size=3), max_size=60).map("".join))
@settings(max_examples=500)
def test_no_text_crashes_the_parser(text):
    try:
        action = parse(text)
    except ActionError as error:
        assert 0 < len(str(error)) < 100
    else:
        assert parse(format_action(action)) == action


@pytest.mark.parametrize(
    "text",
    [
        "do(" * 3333,
        "do(" + "(" * 9000 + ")" * 990,
        "do('" * 2500,
        'do("a",' * 1400,
        "do(" + "1," * 4990,
        "do(" + "-" * 9000,
        "exit(message=" + "9" * 9000 + ")",
        "exit(message=" + "'" * 9000,
        "\x00" * 9999,
        'do(action="Drag", argument="' + "1,1," * 2400 + '1")',
    ],
)
def test_hostile_text_is_refused_quickly(text):
    started = time.process_time()
    with pytest.raises(ActionError):
        parse(text)
    assert time.process_time() - started < 0.5
