"""A vision-language model behind an OpenAI-compatible URL that says from the last screens whether a task was done.

The question is the script's: `prompt` has {task} and {actions}, and asks for a last line "Status: success" or "Status:
failure". Task and actions stand in it as JSON strings, so that nothing in them can pass for a part of the question.
"""

import hashlib
import json
import re

from common.errors import JudgeFault
from common.lm import serve
from common.screen import message_part

STATUS = re.compile(r"\bstatus\W{1,8}(success|failure)\b", re.IGNORECASE)  # whole words: "unsuccessful" is none


class Evaluator:
    """`model` at `url`, asked by `prompt`; its key is read from OPENAI_API_KEY."""

    def __init__(self, url: str, model: str, prompt: str):
        self.url, self.model, self.prompt = url, model, prompt
        self.server = serve.Server(url, f"the judge at {url}", JudgeFault)

    async def success(self, instruction: str, actions: list[str], screens: list[bytes]) -> float:
        """1.0 or 0.0; `screens` are image files' bytes, the last one what was seen in the end. Raises JudgeFault where
        the judge is lost or says neither (no verdict is no failure), TooManyFaults where it stays away."""
        task, actions = (json.dumps(given, ensure_ascii=False) for given in (instruction, actions))
        text = {"type": "text", "text": self.prompt.format(task=task, actions=actions)}
        parts = map(message_part, screens)
        messages = [{"role": "user", "content": [text, *parts]}]
        answer = await self.server.chat(self.model, messages, temperature=0.0)
        found = STATUS.findall(answer)
        if not found:
            raise JudgeFault(f"the judge at {self.url} said neither success nor failure: {answer[-80:]!r}")
        return float(found[-1].lower() == "success")


class Album:
    """An episode's screenshots by name, in the order in which they were seen."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.pictures, self.order = {}, []

    def add(self, picture: bytes) -> str:
        name = hashlib.sha256(picture).hexdigest()[:32]
        self.pictures[name] = picture
        return name

    def see(self, obs: dict) -> None:
        if obs.get("screenshot"):
            self.order.append(self.add(obs["screenshot"]))

    def around(self, step: int) -> list[bytes]:
        """The screens before and after a step."""
        return [self.pictures[name] for name in self.order[step : step + 2]]

    def last(self, count: int) -> list[bytes]:
        return [self.pictures[name] for name in self.order[-count:]]


class Watched:
    """An environment whose screens an album sees: those after the last action too, which no step holds."""

    def __init__(self, env, album):
        self.env, self.album = env, album

    async def reset(self, task, seed=0):
        obs, info = await self.env.reset(task, seed=seed)
        self.album.see(obs)
        return obs, info

    async def step(self, action):
        obs, *rest = await self.env.step(action)
        self.album.see(obs)
        return obs, *rest
