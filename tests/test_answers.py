"""What a model writes, of any shape: read in linear time, and never an exception but an ActionError."""

import signal
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import crps
import grpo_async
import webrl
from common import actions, screen, visual
from common.actions import ActionError, between, parse
from common.lm import serve
from envs import Task, webarena_judge
from envs.phone.actions import do_action, parse_gesture
from envs.text import Page, TextEnv

SIZE = 1280, 720
LENGTH = 300_000  # characters: what is quadratic takes minutes of CPU time for them, what is linear some milliseconds
SECONDS = 40  # of CPU time, after which what does not come to an end is a failure and no hang

TASK = Task("1", "a", "b", 5)
READERS = {
    "a call": parse,
    "a tool call": lambda text: visual.read_action(text, SIZE),
    "thoughts": visual.without_thoughts,
    "crps": crps.read_action,
    "grpo, in words": grpo_async.action_in_words,
    "grpo, memory": grpo_async.memory_keys,
    "a gesture": parse_gesture,
    "a generator": lambda text: webrl.written("", [TASK], SimpleNamespace(generator=text, generator_model="")),
    "a judge": lambda text: webarena_judge.last_verdict(text, *webarena_judge.ANSWERED),
}
UNITS = """do( go_ exit( ( ) " ' \\ , 1 1, - None a= "", 'a', <tool_call> </tool_call> <think> </think>
<action> </action>
# #Element: Action: Memory: [ { {"a": ` correct not is status: "typed_text":" "touch_point":[ action_type"""
UNITS = UNITS.split()
UNITS += [" ", "\n", "\r\n", "\t", "\x00", "\u2028", "do( ", "<tool_call>\n", "<think>a</think> ", 'do(action="Wait") ']
HEADS = ["", "do(", 'do("a"', 'do("a",', "do(1 ", "exit(message=", "<tool_call>", "<think>", "Memory: ", "Action:", "#"]
HEADS += ['do(action="Type", argument="', 'do(action="Drag", argument="1', "action_type: TYPE ", "do"]


@pytest.fixture(scope="module")
def unlimited():
    """The readers themselves, without the limits of length that spare them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MAX_LENGTH", "MAX_THOUGHT"):
            patch.setattr(actions, name, 10**9)
        patch.setattr(serve, "ask", lambda said, *_: said)
        yield


@pytest.fixture(scope="module")
def bounded():
    def stop(*_):
        raise TimeoutError(f"not read within {SECONDS} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    yield lambda seconds: signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@given(
    st.sampled_from(HEADS),
    st.lists(st.sampled_from(UNITS), min_size=1, max_size=3).map("".join),
    st.sampled_from(["", "x", ")", "</tool_call>", "\n"]),
)
@example("do(", " ", "")
@example("do(1", " ", "x")
@example("do(", "1,", "x")
@example("", "<tool_call>", "")
@example("<tool_call>", "\n", "")
@example("", "<tool_call> ", "x")
@example("", "<think>", "")
@example("", "<action>", "")
@example("<action>", "go_", "</action>")
@example("", "#", "")
@example("", "correct ", "")
@settings(max_examples=40, deadline=None)
def test_answers_are_read_in_linear_time(unlimited, bounded, head, unit, tail):
    text = head + unit * (LENGTH // len(unit)) + tail
    for name, read in READERS.items():
        bounded(SECONDS)
        try:
            read(text)
        except ActionError:
            pass
        except TimeoutError as error:
            pytest.fail(f"{name}: {error}")
        finally:
            bounded(0)


DIGITS = "9" * 5000  # Python's int() takes 4,300
CALLS = [
    f'do(action="Click", element="{DIGITS},1")',
    f'do(action="Click", element="{DIGITS}")',
    f'do(action="Click", argument="{DIGITS},1")',
    f'do(action="Drag", element="1", argument="{DIGITS},1")',
    f'do(action="Drag", argument="1,1,{DIGITS},1")',
    f'do(action="Type", element="1", argument="{DIGITS}")',
    f'do(action="Switch Tab", argument="{DIGITS}")',
    f'do(action="Wait", argument="{DIGITS}")',
    f'do(action="Click", element={DIGITS})',
    f"exit(message=-{DIGITS})",
]


@pytest.mark.parametrize("text", CALLS)
def test_no_number_is_too_long(text):
    phone = SimpleNamespace(size=(10, 10), tap=print, text=print, swipe=print)
    try:
        action = parse(text)
        assert screen.points(action, {}) == []
        do_action(phone, action, [{"id": "1", "kind": "slider", "box": (0, 0, 9, 9), "value": ""}])
    except ActionError as error:
        assert len(str(error)) < 100


def test_no_number_is_too_long_for_a_text_environment():
    env = TextEnv()
    env._shown = Page("", ("go",))
    text = f'do(action="Click", element="{DIGITS}")'
    assert env._named(text) == text


@pytest.mark.parametrize(
    "inside",
    [
        "[" * 5000,
        '{"a":' * 5000,
        '{"name": "type", "arguments": {"text": ' + "[" * 990 + "]" * 990 + "}}",
        '{"name": "click", "arguments": {"coordinate": [' + DIGITS + ", 1]}}",
        '{"name": "click", "arguments": {"coordinate": [1e999, 1]}}',
    ],
)
def test_no_nesting_is_too_deep(inside):
    answer = f"Memory: {inside}<tool_call>{inside}</tool_call>"
    assert grpo_async.memory_keys(answer) is None or inside.startswith('{"name')
    assert visual.read_action(answer, SIZE) == answer or "text" in inside


def test_what_stands_between_tags(monkeypatch):
    assert between("<a>1</a> <a>2<a>3</a></a><a>4", "<a>", "</a>") == ["1", "2<a>3"]
    assert between("<a>1</a>" + "x" * actions.MAX_THOUGHT, "<a>", "</a>") == []
    monkeypatch.setattr(serve, "ask", lambda said, *_: said)
    assert webrl.written("", [TASK], SimpleNamespace(generator="a `b` ``` c ``` `d", generator_model="")) == ["b", "c"]
