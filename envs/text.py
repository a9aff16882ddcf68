"""What text environments have in common: an episode lives in this process, an action is one of the admissible lines.

A child says how an episode begins (`_begin`) and what an action does (`_do`); both give a Page.
"""

from dataclasses import dataclass

from common.errors import StateMismatch
from envs import Prefix, observation_hash


@dataclass(frozen=True)
class Move:
    """One step of an oracle: the action, and the thought that a demonstration shows before it."""

    action: str
    thought: str = ""


@dataclass(frozen=True)
class Page:
    """What an action brought: the text the agent reads, the admissible actions, why the action was refused ("" if it
    was not), and at the episode's end its score in [0, 1], of which 1 is success."""

    text: str
    actions: tuple[str, ...]
    title: str = ""
    error: str = ""
    score: float | None = None


class TextEnv:
    """One episode slot; `fork()` gives another one. The contract of docs/environments.md, with `obs["actions"]`."""

    def __init__(self):
        self._clear()

    def _clear(self):
        self._task, self._actions, self._hashes, self._over = None, [], [], True

    def fork(self):
        """Another slot on the same data."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._clear()
        return other

    async def reset(self, task, seed=0):
        """Begin `task`: (obs, info). `seed` changes nothing: what is random in a world is so by `task.seed`."""
        self._task, self._over, self._actions, self._hashes = task, False, [], []
        return self._observe(self._begin(task))

    def _observe(self, page):
        obs = {"goal": self._task.instruction, "text": page.text, "url": "", "title": page.title, "error": page.error}
        obs |= {"screenshot": None, "actions": page.actions}
        self._hashes.append(observation_hash(obs))
        return obs, {"task_id": self._task.task_id, "hash": self._hashes[-1]}

    async def step(self, text):
        """Do the action: Gymnasium's five. At the end `info` has "verdict", 1.0 or 0.0, which is the reward, and
        "score", the graded one. What is not admissible is an observation with `error`."""
        if self._over:
            raise RuntimeError("the episode is over: call reset")
        self._actions.append(text)
        page = self._do(text)
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

    def resolve(self, move, obs):
        """The action text of an oracle's move on this observation; raises LookupError if it is not admissible."""
        if move.action not in obs["actions"] and not move.action.startswith("search["):
            raise LookupError(f"{move.action} is not admissible")
        return move.action

    async def prefix(self):
        """The episode so far, for `restore`, here or in another slot."""
        return Prefix(self._task, tuple(self._actions), tuple(self._hashes))

    async def restore(self, prefix):
        """Bring back the state after `prefix` by doing its actions again from a reset: (obs, info), the episode goes on
        from there. Raises StateMismatch if what is seen in the end is not what was seen then."""
        obs, info = await self.reset(prefix.task)
        for number, action in enumerate(prefix.actions):
            if self._over:
                raise StateMismatch(f"{prefix.task.task_id}: the episode ended at action {number}")
            obs, _, _, _, info = await self.step(action)
        if info["hash"] != prefix.hashes[-1]:
            raise StateMismatch(f"{prefix.task.task_id}: after {len(prefix.actions)} actions the text is another one")
        return obs, info

    async def close(self):
        """Free the slot. May be called again."""
        self._clear()
