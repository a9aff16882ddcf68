"""Phones as environments: `envs.make("phone")`, a simulated phone in this process, or "phone/general+shopping".

The same through a real adb server is "phone-adb", and tasks of a file on phones and emulators of the user's are
"phone:tasks.jsonl" (envs/phone/adb.py).

The agent reads the screen's hierarchy as numbered lines and writes calls on them (format "compact"), or sees the
picture and writes the gestures of Android in the Wild (format "aitw"); see envs/phone/observe.py and actions.py.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
from envs.phone.pace import Pace
from envs.phone.paint import png

FORMATS = ("compact", "aitw")
SECONDS = 1.0  # that pass on the phone's clock after every action
PATIENCE = 12  # actions that an oracle puts in to find what its next move needs


def simulated(
    groups=None,
    format="compact",
    viewport=(360, 640),
    screenshots=False,
    asks=0.2,
    late=0.03,
    adb=False,
    timeout=20.0,
    phone_delay="0",
    phone_spread=1.0,
    first_phone=0,
):
    """Simulated phones and their tasks, `groups` of them (None: all).

    `viewport`: the size of the screen in pixels; `screenshots` puts a PNG into every observation; `asks` and `late` are
    the Device's: how often an app asks for a permission, a screen is late. `adb`: behind an adb server, where a call
    may take `timeout` seconds. `phone_delay`, `phone_spread`: how slow the phones are, see Pace; the first slot has the
    phone of number `first_phone`.
    """
    groups = tuple(groups or tasks.GROUPS)
    _check("groups", groups, tasks.GROUPS)
    options = {"size": tuple(viewport), "asks": asks, "late": late}
    if adb:
        from envs.phone.adb import Emulators

        phones = Emulators(timeout, options)
    else:
        phones = InProcess(options)
    pace = Pace.of(phone_delay, phone_spread)
    return PhoneEnv(phones, partial(tasks.split_tasks, groups=groups), format, screenshots, pace, first_phone)


def attached(
    path,
    serials,
    snapshot="",
    format="compact",
    screenshots=False,
    hierarchy=True,
    timeout=20.0,
    first_phone=0,
    token_file=None,
):
    """Phones and emulators of the user's by their serials, from number `first_phone` on one for each slot, with the
    tasks of a file (envs/phone/adb.py has the fields). Every episode begins with `snapshot` on an emulator, or by
    clearing the task's apps. There is no true verdict: a judge says what succeeded.

    `hierarchy` may be False for agents that see: it is not read then, which is slow on a real phone and cannot be done
    at all while a video plays; `text` has the app's name alone, and `restore` compares no more than that.
    """
    from envs.phone.adb import UsersPhones, read_tasks

    if not hierarchy and (format == "compact" or not screenshots):
        raise UsageError('phone: hierarchy=False is for format="aitw" and screenshots=True: nothing else is to be seen')
    splits, entries = read_tasks(path)

    def of_split(split):
        if not splits[split]:
            raise UsageError(f"{path}: no task is in the split {split!r}")
        return splits[split]

    phones = UsersPhones(serials, entries, snapshot, hierarchy, timeout, token_file)
    return PhoneEnv(phones, of_split, format, screenshots, Pace(), first_phone)


def _check(name, values, known):
    if set(values) - set(known):
        raise UsageError(f"phone: {name}: there are {', '.join(known)}, not {', '.join(values)}")


class InProcess:
    """Where the phones of "phone" come from. `blocks`: whether their calls take time, so that they belong in a thread;
    `take` gives a slot's place among them."""

    blocks = False

    def __init__(self, options):
        self.options = options

    def take(self, place):
        return place

    def open(self, place):
        return Here(**self.options)

    def release(self, phone):
        pass

    def close(self):
        pass


class Here(Device):
    """A phone in this process, as PhoneEnv wants phones."""

    def __init__(self, size, asks, late):
        super().__init__(0, size, asks, late)
        self._encoded = None, b""

    def begin(self, task, state=None):
        """Go to the start of a task, or to `state`, what `self.state` was at another time; returns that of the start,
        None where nobody knows it."""
        start = self.new(task.seed)
        self.state = start if state is None else state
        return start

    def look(self, pictures, after=0.0):
        """After so many seconds of the phone's: (hierarchy as XML, PNG or None)."""
        if after:
            self.advance(after)
        return self.hierarchy(), self._picture() if pictures else None

    def _picture(self):
        image = self.screenshot()
        if image is not self._encoded[0]:
            self._encoded = image, png(image)
        return self._encoded[1]


class PhoneEnv:
    """One episode slot with a phone of its own; `fork()` gives another one. The contract of docs/environments.md.

    `phones` is where phones come from: InProcess, or Emulators or UsersPhones of envs/phone/adb.py. `list_tasks(split)`
    are the tasks.
    """

    def __init__(self, phones, list_tasks, format, screenshots, pace, place=0, is_root=True):
        _check("format", (format,), FORMATS)
        self.tasks = list_tasks
        self.format, self.screenshots, self.pace = format, screenshots, pace
        self._phones, self._place, self._is_root = phones, phones.take(place), is_root
        self._count = [place + 1]  # slots so far, shared by all of them
        self._clear()

    def _clear(self):
        self._task, self._phone, self._first, self._obs, self._xml, self._thread = None, None, None, None, "", None
        self._actions, self._hashes, self._over, self._episode = [], [], True, ""

    def fork(self):
        """Another slot, on another phone. Raises UsageError where the user named no more. Closing it closes only
        itself; closing the slot that `make` gave closes all."""
        args = self._phones, self.tasks, self.format, self.screenshots, self.pace
        other = PhoneEnv(*args, self._count[0], is_root=False)
        self._count[0] += 1
        other._count = self._count
        return other

    # --- episodes --------------------------------------------------------------------------------------------------

    async def reset(self, task, seed=0):
        """Begin `task`: (obs, info). What is random on a simulated phone is so by `task.seed`; `seed` changes the
        times of `phone_delay` alone."""
        self._task, self._actions, self._hashes = task, [], []
        self._episode = f"{task.task_id}/{seed}"
        return await self._begin()

    async def _begin(self, state=None):
        self._over = True  # until the phone is there
        if self._thread is None and self._phones.blocks:
            self._thread = ThreadPoolExecutor(1, "phone")
        await self._take_time()
        seen = await self._call(self._start, state)
        self._over = False
        return self._observe(*seen)

    def _start(self, state):
        if self._phone is None:
            self._phone = self._phones.open(self._place)
        self._first = self._phone.begin(self._task, state)
        return self._phone.look(self.screenshots)

    async def step(self, text):
        """Do the action: Gymnasium's five. At the end `info` has "answer" and "verdict", 1.0 or 0.0, which is the
        reward, or None and no reward where nobody knows. What cannot be done is an observation with `error`. Raises
        EnvFault and EnvHang for what is the phone's failure; then the episode is over."""
        if self._over:
            raise RuntimeError("the episode is over: call reset")
        self._over = True  # until it is known what came of the action
        self._actions.append(text)
        await self._take_time()
        answer, error, places, *seen = await self._call(self._turn, text)
        obs, info = self._observe(*seen, error)
        info["touches"] = [[x / self._phone.size[0], y / self._phone.size[1]] for x, y in places]
        terminated = answer is not None
        truncated = not terminated and len(self._actions) >= self._task.max_steps
        self._over, reward = terminated or truncated, 0.0
        if self._over:
            verdict = self.verdict(answer or "")
            verdict = 0.0 if truncated and verdict is not None else verdict
            reward = verdict or 0.0
            info |= {"answer": answer or "", "verdict": verdict}
        return obs, reward, terminated, truncated, info

    def _turn(self, text):
        """Do an action, then look: (the answer of one that ends the episode or None, error, the pixels it touched,
        hierarchy, picture)."""
        answer, error, places = None, "", []
        try:
            answer, places = self._act(text)
        except ActionError as problem:
            error = str(problem)
        return answer, error, places, *self._phone.look(self.screenshots, SECONDS)

    def _act(self, text):
        """Do an action: (the answer of one that ends the episode or None, the pixels it touched)."""
        if self.format == "aitw":
            gesture = parse_gesture(text)
            if gesture.type == "STATUS_TASK_IMPOSSIBLE":
                return IMPOSSIBLE, []
            if gesture.type == "STATUS_TASK_COMPLETE":
                return gesture.text, []
            return None, do_gesture(self._phone, gesture)
        action = parse(text)
        if action.name == "Exit":
            return action.argument, []
        return None, do_action(self._phone, action, observe.read(self._xml)[1])

    def verdict(self, answer):
        """The score, 1.0 or 0.0, that an end with `answer` gets now; None for a phone or task without a check."""
        if self._first is None or self._task.config is None:
            return None
        return float(tasks.is_done(self._task, self._first, self._phone.state, answer))

    def _observe(self, xml, picture, error=""):
        package, nodes, _ = observe.read(xml)
        obs = {"goal": self._task.instruction, "text": observe.text_of(xml), "url": f"android://{package}"}
        obs |= {"title": package, "error": error, "screenshot": picture}
        obs["boxes"] = {node["id"]: node["box"] for node in nodes if "id" in node}
        self._obs, self._xml = obs, xml
        self._hashes.append(observation_hash(obs))
        return obs, {"task_id": self._task.task_id, "hash": self._hashes[-1]}

    async def _call(self, call, *arguments):
        """A call of the phone's: one that blocks in a thread of this slot, so that every phone goes at its own pace,
        and one that nobody waits for any more (Ctrl-C) ends before the next begins."""
        if self._thread is None:
            return call(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def _take_time(self):
        """As long as a real device takes for the coming step."""
        if seconds := self.pace.seconds(self._place, self._episode, len(self._actions)):
            await asyncio.sleep(seconds)

    # --- oracles ---------------------------------------------------------------------------------------------------

    def oracle(self, task):
        """The moves that solve `task`, or gestures in format "aitw", each chosen when it is asked for from what this
        slot shows then: between those of the task it answers a question for a permission, waits for a late screen, and
        scrolls to what is not seen. Raises LookupError where that does not lead to the next move, UsageError for a
        task of the user's."""
        if task.config is None:
            raise UsageError("tasks of your own have no oracle: give demonstrations with --demos FILE")
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
        nodes = observe.read(self._xml)[1]
        size = self._phone.size
        first, *others = gestures_of(action, nodes, size)
        yield first
        if others:
            nodes = observe.read(self._xml)[1]
            clear = [node for node in nodes if node.get("label") == f"Clear {move.label}"]
            yield from (tap_at(node["box"], size) for node in clear)
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
        """The episode so far, for `restore`, here or in another slot. Its snapshot is a simulated phone's immutable
        state."""
        return Prefix(self._task, tuple(self._actions), tuple(self._hashes), self._phone.state)

    async def restore(self, prefix):
        """Bring back the state after `prefix`, by its snapshot or else by its actions: (obs, info), the episode goes on
        from there. Raises StateMismatch if what is seen in the end is not what was seen then."""
        if prefix.snapshot is None:
            return await replay(self, prefix)
        self._task, self._actions, self._hashes = prefix.task, [], []
        self._episode = f"{prefix.task.task_id}/0"
        obs, info = await self._begin(prefix.snapshot)
        if info["hash"] != prefix.hashes[-1]:
            raise StateMismatch(f"{prefix.task.task_id}: after {len(prefix.actions)} actions something else is seen")
        self._actions, self._hashes = list(prefix.actions), list(prefix.hashes)
        return obs, info

    async def close(self):
        """Free the slot; the first slot ends what all share. May be called again."""
        phone, thread = self._phone, self._thread
        self._clear()
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)  # what it waits for, it does not get after this
        if self._phones.blocks:
            await asyncio.to_thread(self._end, phone)

    def _end(self, phone):
        if phone is not None:
            self._phones.release(phone)
        if self._is_root:
            self._phones.close()
