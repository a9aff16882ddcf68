"""What text environments have in common: an episode lives in this process, an action is one of the admissible lines.

A child says how an episode begins (`_begin`) and what an action does (`_do`); both give a Page. What the agent reads is
the benchmark's own text (format "original"), or that of common/html.py's pages (format "compact"), in which the
admissible actions are numbered elements: a small model learns to point at things once, for all environments.

    "quilted cotton blanket $24" link [3]        do(action="Click", element="3")  for  click[b0417]
"""

import random
from dataclasses import dataclass
from typing import Self

from common.actions import Action, ActionError, format_action, parse
from common.errors import UsageError
from envs import Info, Obs, Prefix, Task, observation_hash, replay


@dataclass(frozen=True)
class Move:
    """One step of an oracle: the action, and the thought that a demonstration shows before it."""

    action: str
    thought: str = ""


@dataclass(frozen=True)
class Page:
    """What an action brought: the text in the original format, the admissible actions, why the action was refused (""
    if it was not), and at the episode's end its score in [0, 1], of which 1 is success.

    For the compact format: `lines` of text besides the elements, and for each action its `elements` entry, (label,
    kind), with kind "link", "button", "box" (an action with words of the agent's own, "search[...]") or "radio on".
    """

    text: str
    actions: tuple[str, ...]
    title: str = ""
    error: str = ""
    score: float | None = None
    lines: tuple[str, ...] = ()
    elements: tuple[tuple[str, str], ...] = ()

    def compact(self) -> str:
        """The page in the format of common/html.py."""
        head = [f'page "{self.title}"'] if self.title else []
        numbered = enumerate(self.elements, 1)
        shown = [f'"{label}" {kind.split()[0]} [{i}]{" on" * kind.endswith(" on")}' for i, (label, kind) in numbered]
        return "\n".join([*head, *(f'text "{line}"' for line in self.lines), *shown])


class TextEnv:
    """One episode slot; `fork()` gives another one. The contract of docs/environments.md, with `obs["actions"]`. Every
    episode has a score."""

    scores_all = True

    def __init__(self, format: str = "compact"):
        self.format = format
        self._clear()

    def _clear(self):
        self._task, self._shown, self._actions, self._hashes, self._over = None, None, [], [], True

    def fork(self) -> Self:
        """Another slot on the same data."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._clear()
        return other

    def vary(self, task: Task, rng: random.Random) -> list[str]:
        """Neighbouring instructions of `task`: nobody writes them here."""
        raise UsageError(f"nothing varies the instructions of {type(self).__name__}: --no-curriculum")

    def task_from_text(self, text: str, like: Task) -> Task | None:
        """None: an instruction that is not among the tasks has no score."""
        return None

    async def reset(self, task: Task, seed: int = 0) -> tuple[Obs, Info]:
        """Begin `task`: (obs, info). `seed` changes nothing: what is random in a world is so by `task.seed`."""
        self._task, self._over, self._actions, self._hashes = task, False, [], []
        return self._observe(self._begin(task))

    def _observe(self, page):
        self._shown = page
        text = page.compact() if self.format == "compact" else page.text
        obs = {"goal": self._task.instruction, "text": text, "url": "", "title": page.title, "error": page.error}
        obs |= {"screenshot": None, "actions": page.actions}
        self._hashes.append(observation_hash(obs))
        return obs, {"task_id": self._task.task_id, "hash": self._hashes[-1]}

    async def step(self, text: str) -> tuple[Obs, float, bool, bool, Info]:
        """Do the action, in the benchmark's words or as a call on a numbered element: Gymnasium's five. At the end
        `info` has "verdict", 1.0 or 0.0, which is the reward, and "score", the graded one. What is not admissible is an
        observation with `error`."""
        if self._over:
            raise RuntimeError("the episode is over: call reset")
        self._actions.append(text)
        page = self._do(self._named(text))
        obs, info = self._observe(page)
        terminated = page.score is not None
        truncated = not terminated and len(self._actions) >= self._task.max_steps
        reward = 0.0
        if terminated or truncated:
            self._over = True
            score = page.score or 0.0
            reward = float(score == 1.0)
            info |= {"answer": "", "verdict": reward, "score": score}
        return obs, reward, terminated, truncated, info

    def _named(self, text):
        """The benchmark's action for a call such as do(action="Click", element="3"); any other text as it is."""
        try:
            call = parse(text)
        except ActionError:
            return text
        number = call.element or ""
        if not number.isdecimal() or len(number) > 9 or not 1 <= int(number) <= len(self._shown.actions):
            return text
        action = self._shown.actions[int(number) - 1]
        return f"{action.partition('[')[0]}[{call.argument}]" if call.argument is not None else action

    def resolve(self, move: Move, obs: Obs) -> str:
        """The action text of an oracle's move on this observation, the slot's last, in the slot's format; raises
        LookupError if it is not admissible."""
        words = move.action.removeprefix("search[").removesuffix("]") if move.action.startswith("search[") else None
        places = [
            i for i, action in enumerate(obs["actions"]) if action == move.action or (words and "<your " in action)
        ]
        if not places:
            raise LookupError(f"{move.action} is not admissible")
        if self.format != "compact":
            return move.action
        label, kind = self._shown.elements[places[0]]
        comment = f'# Element: "{label}" {kind.split()[0]} [{places[0] + 1}]'
        return format_action(Action("Search" if words else "Click", str(places[0] + 1), words, comment))

    async def prefix(self) -> Prefix:
        """The episode so far, for `restore`, here or in another slot."""
        return Prefix(self._task, tuple(self._actions), tuple(self._hashes))

    async def restore(self, prefix: Prefix) -> tuple[Obs, Info]:
        """Bring back the state after `prefix` by doing its actions again from a reset: (obs, info), the episode goes on
        from there. Raises StateMismatch if what is seen in the end is not what was seen then."""
        return await replay(self, prefix)

    async def close(self) -> None:
        """Free the slot. May be called again."""
        self._clear()
