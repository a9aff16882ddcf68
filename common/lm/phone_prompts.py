"""What an agent on a phone is shown (digirl.py, distrl.py): the screen as text in the web agents' grammar, or a
screenshot, then in the actions of Android in the Wild."""

from common.lm import llm


def agent_prompt(tokenizer, instruction, steps, obs, prompt_format="auto", skip=0):
    """The agent's prompt as token ids: instruction, action history, current screen.

    steps: those so far (plain: their actions' token ids as they were sampled), of which the first `skip` are left out;
    obs: the environment's observation.
    """
    stop = llm.end_of_turn(tokenizer)
    past = [[i for i in step.action_ids if i != stop] for step in steps[skip:]]
    if prompt_format == "chat" or (prompt_format == "auto" and tokenizer.chat_template):
        task = agent_task(instruction, [tokenizer.decode(ids) for ids in past], obs)
        return llm.chat_prompt(tokenizer, AGENT_SYSTEM_PROMPT, task)
    instruction, page = (llm.without_special_tokens(tokenizer, text) for text in (instruction, page_and_error(obs)))
    ids = tokenizer.encode(f"Task Instruction: {instruction}\nAction History:\n", add_special_tokens=False)
    newline = tokenizer.encode("\n", add_special_tokens=False)
    for action in past:
        ids += action + newline
    return ids + tokenizer.encode(f"{page}Action:\n", add_special_tokens=False)


def page_and_error(obs):
    """The observation as a prompt shows it: the page, and why the last action was refused, if it was."""
    error = f'error "{obs["error"]}"\n' if obs["error"] else ""
    return f"{obs['text']}\n{error}"


def agent_task(instruction, actions, obs):
    """What a chat model is told besides AGENT_SYSTEM_PROMPT: the instruction, its answers so far, the page."""
    history = "".join(f"{action}\n" for action in actions)
    return f"Task Instruction: {instruction}\nAction History:\n{history}{page_and_error(obs)}"


def seeing_prompt(processor, instruction, steps, obs, prompt_format="auto", skip=0):
    """The same of an agent that sees, as an llm.Prompt: the screenshot in the text's place, actions in the form of
    Android in the Wild."""
    tokenizer, error = processor.tokenizer, f'error "{obs["error"]}"\n' if obs["error"] else ""
    history = "".join(f"{step.action}\n" for step in steps[skip:])
    text = f"Task Instruction: {instruction}\nAction History:\n{history}{error}"
    text = llm.without_special_tokens(processor, text)  # an image token would ask for a picture
    if prompt_format == "chat" or (prompt_format == "auto" and tokenizer.chat_template):
        turns = [{"role": "system", "content": [{"type": "text", "text": SEEING_SYSTEM_PROMPT}]}]
        turns.append({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]})
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    else:
        text = f"{text}{processor.image_token}\nAction:\n"
    return llm.encode(processor, text, [obs["screenshot"]])


AGENT_SYSTEM_PROMPT = """You operate an Android phone to do the user's task. You see the task, your actions so far and
the screen as text, where what can be touched has a number. Answer with one action and nothing else:
do(action="Click", element="3"), or "Double Click", or "Right Click" for a long press
do(action="Type", argument="some text", element="3") into a box or, a percentage, onto a slider; "Search" presses Enter
after it
do(action="Press", argument="Back"), or "Home", "Enter", "Recents", "Delete"
do(action="Scroll Down"), do(action="Scroll Up"), do(action="Wait")
exit(message="the answer, N/A if the task cannot be done, or done")
Before it, say in a line what the element is (# Element: ...)."""
SEEING_SYSTEM_PROMPT = """You operate an Android phone to do the user's task. You see the task, your actions so far and
the screen. Answer with one action and nothing else, in this form:
"action_type": "DUAL_POINT", "touch_point": "[0.5000, 0.5000]", "lift_point": "[0.5000, 0.5000]", "typed_text": ""
Points are [y, x], from 0 (top, left) to 1 (bottom, right). The types of action:
DUAL_POINT: touch the first point, lift at the second one; the same point twice is a tap, two points are a swipe
TYPE: put typed_text into the box that has the focus
PRESS_BACK, PRESS_HOME, PRESS_ENTER: keys
STATUS_TASK_COMPLETE: the task is done; where it is a question, typed_text is the answer
STATUS_TASK_IMPOSSIBLE: the task cannot be done"""
