"""The simulated phone as an environment, in this process: `envs.make("phone")`, or "phone/general+shopping".

The agent reads the screen's hierarchy as numbered lines and writes calls on them (format "compact"), or sees the
picture and writes the gestures of Android in the Wild (format "aitw"); see envs/phone/observe.py and actions.py.
"""

from common.actions import ActionError, parse
from common.errors import StateMismatch, UsageError
from envs import Prefix, observation_hash, replay
from envs.phone import observe, tasks
from envs.phone.actions import (
    IMPOSSIBLE,
    do_action,
    do_gesture,
    format_gesture,
    gestures_of,
    parse_gesture,
    tap_at,
)
from envs.phone.device import PERMISSIONS, Device
from envs.phone.paint import png

FORMATS = ("compact", "aitw")
SECONDS = 1.0  # that pass on the phone's clock after every action
PATIENCE = 12  # actions that an oracle puts in to find what its next move needs


class PhoneEnv:
    """One episode slot; `fork()` gives another one. The contract of docs/environments.md.

    `groups` of tasks (None: all); `viewport`, the size of the screen in pixels; `screenshots` puts a PNG into every
    observation; `asks` and `late` are the Device's: how often an app asks for a permission, a screen is late.
    """

    def __init__(self, groups=None, format="compact", viewport=(360, 640), screenshots=False, asks=0.2, late=0.03):
        groups = tuple(groups or tasks.GROUPS)
        for name, values, known in (("groups", groups, tasks.GROUPS), ("format", (format,), FORMATS)):
            if set(values) - set(known):
                raise UsageError(f"phone: {name}: there are {', '.join(known)}, not {', '.join(values)}")
        self.groups, self.format, self.size, self.screenshots = groups, format, tuple(viewport), screenshots
        self._odds = {"asks": asks, "late": late}
        self._clear()

    def _clear(self):
        self._task, self._phone, self._first, self._obs = None, None, None, None
        self._actions, self._hashes, self._over, self._encoded = [], [], True, (None, b"")

    def fork(self):
        """Another slot."""
        return PhoneEnv(self.groups, self.format, self.size, self.screenshots, **self._odds)

    def tasks(self, split):
        """The tasks of "train", "eval" or "test": always the same ones in the same order."""
        return tasks.split_tasks(split, self.groups)

    # --- episodes --------------------------------------------------------------------------------------------------

    async def reset(self, task, seed=0):
        """Begin `task`: (obs, info). `seed` changes nothing: what is random on a phone is so by `task.seed`."""
        self._task, self._over, self._actions, self._hashes = task, False, [], []
        self._phone = Device(task.seed, self.size, **self._odds)
        self._first = self._phone.state
        return self._observe()

    async def step(self, text):
        """Do the action: Gymnasium's five. At the end `info` has "verdict", 1.0 or 0.0, which is the reward, and
        "answer". What cannot be done is an observation with `error`."""
        if self._over:
            raise RuntimeError("the episode is over: call reset")
        self._actions.append(text)
        error, answer = "", None
        try:
            answer = self._act(text)
        except ActionError as problem:
            error = str(problem)
        self._phone.advance(SECONDS)
        obs, info = self._observe(error)
        terminated = answer is not None
        truncated = not terminated and len(self._actions) >= self._task.max_steps
        reward = 0.0
        if terminated or truncated:
            self._over = True
            reward = self.verdict(answer) if terminated else 0.0
            info |= {"answer": answer or "", "verdict": reward}
        return obs, reward, terminated, truncated, info

    def _act(self, text):
        """Do an action; the answer of one that ends the episode, None of any other."""
        if self.format == "aitw":
            gesture = parse_gesture(text)
            if gesture.type == "STATUS_TASK_IMPOSSIBLE":
                return IMPOSSIBLE
            if gesture.type == "STATUS_TASK_COMPLETE":
                return gesture.text
            do_gesture(self._phone, gesture)
            return None
        action = parse(text)
        if action.name == "Exit":
            return action.argument
        do_action(self._phone, action, observe.read(self._phone.hierarchy())[1])
        return None

    def verdict(self, answer):
        """The score, 1.0 or 0.0, that an end with `answer` gets now."""
        return float(tasks.is_done(self._task, self._first, self._phone.state, answer))

    def _observe(self, error=""):
        xml = self._phone.hierarchy()
        package, nodes, _ = observe.read(xml)
        obs = {"goal": self._task.instruction, "text": observe.text_of(xml), "url": f"android://{package}"}
        obs |= {"title": package, "error": error, "screenshot": self._picture() if self.screenshots else None}
        obs["boxes"] = {node["id"]: node["box"] for node in nodes if "id" in node}
        self._obs = obs
        self._hashes.append(observation_hash(obs))
        return obs, {"task_id": self._task.task_id, "hash": self._hashes[-1]}

    def _picture(self):
        image = self._phone.screenshot()
        if image is not self._encoded[0]:
            self._encoded = image, png(image)
        return self._encoded[1]

    # --- oracles ---------------------------------------------------------------------------------------------------

    def oracle(self, task):
        """The moves that solve `task`, or gestures in format "aitw", each chosen when it is asked for from what this
        slot shows then: between those of the task it answers a question for a permission, waits for a late screen, and
        scrolls to what is not seen. Raises LookupError where that does not lead to the next move."""
        moves = self._moves(task)
        return moves if self.format == "compact" else (gesture for move in moves for gesture in self._gestures(move))

    def _moves(self, task):
        for move in tasks.oracle(task):
            before = None
            for _ in range(PATIENCE):
                text = self._obs["text"]
                if self._obs["title"] == PERMISSIONS:
                    yield tasks.tap("Allow", "button")
                elif tasks.find(move, text):
                    break
                elif text != before and text.endswith("\nscrolls") and not self._is_late():
                    before = text
                    yield tasks.Move("", "Scroll Down")
                else:
                    before = text
                    yield tasks.WAIT
            else:
                raise LookupError(f"{task.task_id}: {move} is nowhere to be found")
            seen = self._obs["text"]
            yield move
            for _ in range(3):  # a tap that changed nothing that is seen: the screen may be late
                if move.op != "Click" or self._obs["text"] != seen or self._over:
                    break
                yield tasks.WAIT

    def _gestures(self, move):
        """The gestures of one move; a box that holds something is emptied by the button in it."""
        action = parse(tasks.resolve(move, self._obs["text"]))
        nodes = observe.read(self._phone.hierarchy())[1]
        first, *others = gestures_of(action, nodes, self.size)
        yield first
        if others:
            nodes = observe.read(self._phone.hierarchy())[1]
            clear = [node for node in nodes if node.get("label") == f"Clear {move.label}"]
            yield from (tap_at(node["box"], self.size) for node in clear)
        yield from others

    def _is_late(self):
        """Whether the last action has not changed what is seen."""
        return len(self._hashes) > 1 and self._hashes[-1] == self._hashes[-2]

    def resolve(self, move, obs):
        """The action text of an oracle's move on this observation; raises LookupError if its element is not there."""
        return tasks.resolve(move, obs["text"]) if self.format == "compact" else format_gesture(move)

    def vary(self, task, rng):
        raise UsageError("nothing varies the phone's instructions: --generator URL or --no-curriculum")

    def task_from_text(self, text, like):
        """None: no true checker is known for an instruction that is not a task's."""
        return None

    # --- going back to a state -------------------------------------------------------------------------------------

    async def prefix(self):
        """The episode so far, for `restore`, here or in another slot. Its snapshot is the phone's immutable state."""
        return Prefix(self._task, tuple(self._actions), tuple(self._hashes), self._phone.state)

    async def restore(self, prefix):
        """Bring back the state after `prefix`, by its snapshot or else by its actions: (obs, info), the episode goes on
        from there. Raises StateMismatch if what is seen in the end is not what was seen then."""
        if prefix.snapshot is None:
            return await replay(self, prefix)
        await self.reset(prefix.task)
        self._phone.state = prefix.snapshot
        obs, info = self._observe()
        if info["hash"] != prefix.hashes[-1]:
            raise StateMismatch(f"{prefix.task.task_id}: after {len(prefix.actions)} actions something else is seen")
        self._actions, self._hashes = list(prefix.actions), list(prefix.hashes)
        return obs, info

    async def close(self):
        """Free the slot. May be called again."""
        self._clear()
