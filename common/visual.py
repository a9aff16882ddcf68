"""Agents that see: the prompt with screenshots, and the action in an answer.

Two formats. `chat`, for vision-language models with a chat template: AsyncWebRL's response format, Memory, Progress,
Intention, Action and one tool call, with coordinates from 0 to 1000. `plain`, for the tiny model: the instruction, what
was done last and the picture; an answer is a place of an 8 by 8 grid as two tokens.
"""

import json
import re

from common import vlm
from common.actions import POINTED, Action, format_action, parse
from common.screen import NORMAL, to_normal, to_pixels

GRID = 8  # places a side in the tiny model's answers
SYSTEM = """You operate a web browser by what you see. In every turn you get the task and a screenshot of the page, and
you answer in exactly this form:

Memory: a JSON object with what you need to remember. Copy the one of your last answer and only add keys to it.
Progress: a JSON object that maps each part of the task to "finished" or "not finished".
Intention: the part that you work on now.
Action: one sentence that says what you do.
<tool_call>{"name": ..., "arguments": {...}}</tool_call>

Coordinates are [x, y], whole numbers from 0 (left, top) to 1000 (right, bottom). The tools:
click, double_click, hover: {"coordinate": [x, y]}
type: {"text": "...", "coordinate": [x, y], "enter": true or false}; without a coordinate where the focus is
scroll: {"direction": "up" or "down", "coordinate": [x, y]}; without a coordinate the page
drag: {"from": [x, y], "to": [x, y]}
key: {"key": "Enter"}
wait, back: {}
goto: {"url": "..."}
answer: {"content": "the answer, or done"}; ends the task"""


def is_chat(processor, prompt_format):
    return prompt_format == "chat" or (prompt_format == "auto" and bool(processor.tokenizer.chat_template))


def agent_prompt(processor, instruction, steps, obs, prompt_format="auto", history_images=1):
    """The agent's vlm.Prompt: the task, what was answered before, and the screenshot now. In a chat the last
    `history_images` rounds, this one included, have their screenshots (`shown_steps`): bytes, in `step.screenshot`."""
    if not is_chat(processor, prompt_format):
        last = f" after {steps[-1].action}" if steps else ""
        return vlm.encode(processor, f"{instruction}{last}<image><answer>", [obs["screenshot"]])
    images = [step.screenshot for step in shown_steps(steps, history_images)] + [obs["screenshot"]]
    error = f"\nThe last action failed: {obs['error']}" if obs["error"] else ""
    turns = [{"role": "system", "content": [{"type": "text", "text": SYSTEM}]}]
    for number, step in enumerate(steps):
        picture = [{"type": "image"}] if len(steps) - number < history_images else []
        text = f"Task: {instruction}" if number == 0 else "The page now:"
        turns.append({"role": "user", "content": [{"type": "text", "text": text}, *picture]})
        turns.append({"role": "assistant", "content": [{"type": "text", "text": without_thoughts(step.action)}]})
    text = (f"Task: {instruction}" if not steps else "The page now:") + error
    turns.append({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]})
    text = processor.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return vlm.encode(processor, text, images, turns)


def shown_steps(steps, history_images):
    """The earlier steps whose screenshots are in a chat's prompt."""
    return steps[max(0, len(steps) - history_images + 1) :]


def without_thoughts(answer):
    """An answer as the history shows it."""
    return re.sub(r"<think>.*?</think>\s*", "", answer, flags=re.DOTALL)


def memory_keys(answer):
    """How many keys the memory of an answer has, those of objects in it included; None where it has none."""
    found = re.search(r"^Memory:\s*", without_thoughts(answer), re.MULTILINE)
    try:
        memory, _ = json.JSONDecoder().raw_decode(without_thoughts(answer)[found.end() :])
    except (AttributeError, ValueError):
        return None
    return _keys(memory) if isinstance(memory, dict) else None


def _keys(value):
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def read_action(answer, size):
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
    calls = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", without_thoughts(answer), re.DOTALL)
    try:
        call = json.loads(calls[-1])
        return format_action(tool_action(call["name"], call.get("arguments") or {}, size))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return answer


def point(x, y, size):
    return ",".join(map(str, to_pixels(float(x), float(y), size)))


def tool_action(name, arguments, size):
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


def write_action(text, obs, size, chat):
    """What a demonstration answers: the oracle's action with the middle of its element in the element's place. Raises
    LookupError for what no such answer can say."""
    action = parse(text)
    if action.name == "Exit":
        said = action.argument
        if not chat:
            return "done" if said == "done" else f"answer {said}"
        return tool_answer("answer", {"content": said})
    points = points_of(action, obs)
    if not chat:
        if action.name != "Click":
            raise LookupError(f"{action.name} is no click")
        return f"click x{int(points[0][0] * GRID / size[0])} y{int(points[0][1] * GRID / size[1])}"
    return tool_answer(*tool_call(action, [list(to_normal(*place, size)) for place in points]))


def points_of(action, obs):
    """The places, in pixels, that an action names as elements or points, in order."""
    named = [action.element] if action.element != "focus" else []
    if action.name in POINTED and (action.element is None or action.name == "Drag"):
        named.append(action.argument)
    found = []
    for name in [name for name in named if name is not None]:
        if "," in name:
            numbers = [int(number) for number in name.split(",")]
            found += zip(numbers[::2], numbers[1::2], strict=True)
        else:
            left, top, width, height = obs["boxes"][name]
            found.append((left + width / 2, top + height / 2))
    return found


def tool_call(action, places):
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


def tool_answer(name, arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
