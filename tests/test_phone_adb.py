"""Phones behind adb as environments: the same episodes as in process, what is made of faults, phones of the user's, and
the wall times of real devices."""

import asyncio
import io
import json
import math
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from little_phone import PACKAGES, LittlePhone
from PIL import Image

import envs
from common import android
from common.android import AdbServer
from common.errors import EnvFault, EnvHang, StateMismatch, UsageError
from common.lm.rollout import FaultLog, demonstrate, play_until_sound
from envs import Prefix
from envs.phone.adb import read_tasks
from envs.phone.adbd import Phones
from envs.phone.device import Device
from envs.phone.pace import Pace

SHORT = 0.4  # seconds: the timeout where a test waits for it
WAIT = 'do(action="Wait")'
TEMPLATES = "contact", "level", "move_file", "note", "order", "toggle", "two_items", "weather", "web_price"


async def close(*slots):
    for env in slots:
        await env.close()


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
async def env():
    env = envs.make("phone-adb")
    yield env
    await env.close()


def some_tasks(env, names=TEMPLATES):
    tasks = {task.template: task for task in reversed(env.tasks("train")[:600])}
    return [tasks[name] for name in names]


async def play(env, task, stop=None):
    """The oracle's episode, at most so many steps of it: all that is seen, and the last reward."""
    obs, info = await env.reset(task)
    seen, reward = [(obs, info)], 0.0
    for number, move in enumerate(env.oracle(task)):
        if number == stop:
            break
        obs, reward, terminated, truncated, info = await env.step(env.resolve(move, obs))
        seen.append((obs, reward, terminated, truncated, info))
    return seen, reward


# ---- the same as in process ----


@pytest.mark.parametrize("format", ["compact", "aitw"])
async def test_episodes_are_those_of_a_phone_in_process(format):
    here, there = (envs.make(name, format=format, screenshots=True) for name in ("phone", "phone-adb"))
    tasks = some_tasks(here)
    assert there.tasks("train") == here.tasks("train")
    for task in tasks:
        mine, reward = await play(here, task)
        yours, _ = await play(there, task)
        assert yours == mine  # texts, hashes, boxes, pictures, rewards, what `info` has
        assert here._phone.state == there._phone.state and reward == 1.0
    await close(here, there)


async def test_any_action_does_what_it_does_in_process():
    here = envs.make("phone", late=0.5)
    there = envs.make("phone-adb", late=0.5)
    task = some_tasks(here, ["contact"])[0]
    texts = (
        'a "quoted" %s 100% word; and one that is long enough for several pieces',
        "two\nlines",
        "tab\there\r\n",
        "ü€",
    )
    texts += "bell\x07", "", "\\ud800"  # the last one as a literal of Python has it
    actions = [f"do(action=\"Type\", element=\"{box}\", argument={text!r})".replace("\\\\ud", "\\ud")
               for text in texts for box in ("1", "focus")]  # fmt: skip
    actions += ['do(action="Drag", argument="100,600,9000,9000")', 'do(action="Drag", argument="180,500,180,100")']
    actions += ['do(action="Double Click", argument="90,200")', 'do(action="Right Click", argument="90,300")']
    actions += ['do(action="Click", element="99")', 'do(action="Press", argument="F5")', "nonsense"]
    actions += ['do(action="Press", argument="Recents")', 'do(action="Scroll Down")', 'do(action="Go Back")']
    errors = set()
    for group in (actions[:7], actions[7:14], actions[14:]):
        a, b = await here.reset(task), await there.reset(task)
        assert a == b
        for text in ('do(action="Scroll Down")', 'do(action="Click", element="1")', *group):
            a, b = await here.step(text), await there.step(text)
            assert a == b, text
            errors.add(a[0]["error"])
    assert {"'\\x07' cannot be typed on a phone", "'\\ud800' cannot be typed on a phone"} < errors and len(errors) > 5
    await close(here, there)


async def test_the_clock_and_what_comes_late_are_the_same():
    here, there = (envs.make(name, late=1.0, asks=1.0) for name in ("phone", "phone-adb"))
    task = some_tasks(here, ["toggle"])[0]
    assert await play(here, task) == await play(there, task)
    assert here._phone.state.now == there._phone.state.now > task.steps
    await close(here, there)


async def test_restore_by_snapshot_and_by_replay(env):
    other = env.fork()
    task = some_tasks(env, ["contact"])[0]
    await play(env, task, stop=3)
    prefix = await env.prefix()
    for way in (prefix, Prefix(prefix.task, prefix.actions, prefix.hashes)):
        obs, info = await other.restore(way)
        assert info["hash"] == prefix.hashes[-1] and other._phone.state == env._phone.state
        assert (await other.prefix()).actions == prefix.actions
        assert other._first == env._first
    with pytest.raises(StateMismatch):
        await other.restore(Prefix(task, prefix.actions, ("0" * 16,), prefix.snapshot))
    assert env._phone.phone.serial != other._phone.phone.serial


async def test_a_task_without_a_check_has_no_verdict(env):
    task = envs.Task("new", "general", "Turn off the light", 2, seed=3)
    await env.reset(task)
    await env.step(WAIT)
    *_, truncated, info = await env.step(WAIT)
    assert truncated and info["verdict"] is None


# ---- slots ----


async def test_slots_have_phones_of_their_own_and_close_ends_what_was_begun():
    env = envs.make("phone-adb")
    await env.close()  # nothing was started
    slots = [env, *(env.fork() for _ in range(4))]
    tasks = env.tasks("train")[:5]
    played = await asyncio.gather(*(play(slot, task) for slot, task in zip(slots, tasks)))
    assert [reward for _, reward in played] == [1.0] * 5
    server, phones = env._phones._server, env._phones._phones
    serials = {slot._phone.phone.serial for slot in slots}
    assert len(serials) == 5 and serials == set(server.devices())
    await slots[1].close()
    assert len(phones.phones) == 4
    keeper = psutil.Process(server.pid)
    family = [keeper, *keeper.children(recursive=True)]
    await env.close()
    assert not any(process.is_running() for process in family) and not phones._thread.is_alive()
    await close(*slots)
    _, reward = await play(env, tasks[0])  # and again
    assert reward == 1.0
    await env.close()


async def test_a_phone_that_hangs_holds_up_no_other(env):
    other, task = env.fork(), env.tasks("train")[0]
    await asyncio.gather(env.reset(task), other.reset(task))
    env._phone.phone.shell.faults.hang = True
    stuck = asyncio.create_task(env.step(WAIT))
    _, reward = await play(other, task)
    assert reward == 1.0 and not stuck.done()
    stuck.cancel()  # Ctrl-C; the call itself goes on in its thread
    start = time.monotonic()
    await close(other, env)
    assert time.monotonic() - start < 10  # and ends with its server, not only at its timeout of 20 s


# ---- faults ----


async def breaks(env, kind, timeout=SHORT):
    """A step that ends in a fault, and what comes of it: the episode is over."""
    driver = env._phone.driver
    driver.timeout, before = timeout, driver.timeout
    with pytest.raises(kind, match=env._phone.phone.serial):
        await env.step('do(action="Press", argument="Home")')
    driver.timeout = before
    with pytest.raises(RuntimeError):
        await env.step(WAIT)


async def test_a_fault_is_never_a_reward_and_the_next_reset_works(env, monkeypatch):
    task = some_tasks(env, ["toggle"])[0]
    await env.reset(task)
    phone = env._phone.phone
    faults = phone.shell.faults
    faults.hang = True
    await breaks(env, EnvHang)
    faults.hang = False
    assert (await play(env, task))[1] == 1.0

    await env.reset(task)
    faults.drop = 1
    await breaks(env, EnvFault, 20)
    assert (await play(env, task))[1] == 1.0

    await env.reset(task)
    faults.offline = True
    env._phones._phones.drop(phone)
    await breaks(env, EnvFault)
    faults.offline = False
    assert (await play(env, task))[1] == 1.0

    await env.reset(task)
    monkeypatch.setattr(android, "PAUSES", (0.0,))
    faults.stale = 2
    await breaks(env, EnvFault, 20)
    assert (await play(env, task))[1] == 1.0
    env.screenshots = True
    await env.reset(task)
    faults.truncated = 2
    await breaks(env, EnvFault, 20)
    assert (await play(env, task))[1] == 1.0

    faults.stale = faults.truncated = 1  # once is mended by the driver
    assert (await play(env, task))[1] == 1.0


async def test_snapshots_that_fail(env):
    task = some_tasks(env, ["toggle"])[0]
    await env.reset(task)
    faults = env._phone.phone.shell.faults
    faults.refuse_snapshots = True
    asyncio.get_running_loop().call_later(0.5, setattr, faults, "refuse_snapshots", False)
    await env.reset(task)  # a phone has its timeout to come back
    faults.refuse_snapshots = True
    env._phone.driver.timeout = 0.8
    with pytest.raises(EnvFault, match="KO: A snapshot operation"):
        await env.reset(task)
    with pytest.raises(RuntimeError):
        await env.step(WAIT)
    faults.refuse_snapshots, faults.ignore_load = False, True
    with pytest.raises(EnvFault, match="nothing was brought back"):
        await env.reset(task)
    env._phone.driver.timeout, faults.ignore_load, faults.drop_on_load = 20, False, True
    obs, _ = await env.reset(task)
    await asyncio.sleep(0.1)  # the connection breaks after the console's OK
    obs, *_ = await env.step(WAIT)
    assert obs["text"]
    faults.drop_on_load = False
    assert (await play(env, task))[1] == 1.0


async def test_frames_that_come_late_by_a_fault_do_not_outlive_a_reset(env):
    task = some_tasks(env, ["toggle"])[0]
    obs, _ = await env.reset(task)
    env._phone.phone.shell.faults.lag = 1e6
    await env.step('do(action="Scroll Down")')
    env._phone.phone.shell.faults.lag = 0
    assert (await env.reset(task))[0] == obs


async def test_an_adb_server_that_is_killed_comes_back(env):
    task = some_tasks(env, ["contact"])[0]
    expected, _ = await play(envs.make("phone"), task)
    seen = [await env.reset(task)]
    for number, move in enumerate(env.oracle(task)):
        if number == 2:
            for child in psutil.Process(env._phones._server.pid).children():
                child.kill()
        seen.append(await env.step(env.resolve(move, seen[-1][0])))
    assert seen == expected
    for child in psutil.Process(env._phones._server.pid).children():
        child.kill()
    assert (await play(env, task))[1] == 1.0


async def test_a_broken_episode_is_counted_and_played_again(env):
    task = some_tasks(env, ["toggle"])[0]
    log = FaultLog()

    async def play_once(env, task, attempt, index):
        def prompt(instruction, steps, obs):
            env._phone.phone.shell.faults.drop = int(attempt == 0 and len(steps) == 1)
            return [1]

        return await demonstrate(env, task, prompt, lambda answer: [1], lambda action, thought, obs: action)

    trajectory = await play_until_sound(env, task, 0, play_once, log)
    assert trajectory.reward == 1.0 and trajectory.verdict == 1.0
    assert (log.episodes, log.faults, log.dropped) == (2, 1, 0)


async def test_without_adb(monkeypatch, tmp_path):
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(tmp_path / "adb"))
    env = envs.make("phone-adb")
    with pytest.raises(UsageError, match="is no program: set ADBUTILS_ADB_PATH"):
        await env.reset(env.tasks("train")[0])
    await env.close()


# ---- phones of the user's ----


@pytest.fixture
def users(monkeypatch):
    """What the user's adb server has: a simulated emulator, and a phone on the network."""
    with AdbServer() as server, Phones(server.port) as phones:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(server.port))
        found = phones.add(Device(3, late=0)), phones.add(LittlePhone(), emulator=False)
        phones.state = lambda phone: server.devices().get(phone.serial, ("absent",))[0]
        wait_for(lambda: [phones.state(phone) for phone in found] == ["device"] * 2)
        yield phones


@pytest.fixture
def tasks_file(tmp_path):
    lines = (
        {
            "instruction": "Turn on NFC",
            "start": "com.android.settings",
            "clear": ["com.android.settings"],
            "split": "train",
        },
        {"instruction": "Find a lamp", "split": "train", "max_steps": 2, "task_id": "lamp"},
        {"instruction": "Which version is it?", "start": "com.none", "split": "eval"},
        {"instruction": "Go on", "snapshot": "begun", "split": "test"},
    )
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def test_the_users_phones(users, tasks_file):
    emulator, phone = users.phones
    env = envs.make(f"phone:{tasks_file}", serials=[emulator.serial, phone.serial], screenshots=True)
    env._phones.token_file = users.token_file
    other = env.fork()
    with pytest.raises(UsageError, match="3 slots, but --serials names 2 phones"):
        env.fork()
    first, second = env.tasks("train")
    assert (first.site, second.site, second.task_id, first.config) == ("com.android.settings", "home", "lamp", None)

    obs, info = await env.reset(first)
    assert obs["title"] == "com.android.settings" and obs["goal"] == "Turn on NFC"
    assert Image.open(io.BytesIO(obs["screenshot"])).size == (360, 640)
    obs, *_ = await env.step('do(action="Click", element="2")')
    assert not obs["error"] and "Airplane mode" in obs["text"]
    prefix = await env.prefix()
    assert prefix.snapshot is None
    obs, reward, terminated, _, info = await env.step('exit(message="it is on")')
    assert terminated and reward == 0.0 and info["verdict"] is None and info["answer"] == "it is on"
    assert (await env.restore(prefix))[1]["hash"] == prefix.hashes[-1]  # by replay

    obs, _ = await other.reset(second)
    assert obs["title"] == PACKAGES[0] and '"box" box [1]' in obs["text"]
    obs, *_ = await other.step('do(action="Type", element="1", argument="ü")')
    assert obs["error"] == "'ü' cannot be typed: the phone's `input text` knows ASCII alone"
    *_, truncated, info = await other.step('do(action="Type", element="1", argument="u")')
    assert truncated and info["verdict"] is None and phone.device.state.text == "u"
    with pytest.raises(UsageError, match="have no oracle"):
        env.oracle(first)
    await env.close()
    assert emulator.connections  # what the user started goes on


async def test_who_sees_needs_no_hierarchy(users, tasks_file):
    emulator, _ = users.phones
    options = {"serials": emulator.serial, "format": "aitw", "hierarchy": False, "token_file": users.token_file}
    with pytest.raises(UsageError, match="screenshots=True"):
        envs.make(f"phone:{tasks_file}", **options)
    env = envs.make(f"phone:{tasks_file}", screenshots=True, **options)
    emulator.shell.faults.stale = 10_000  # a video plays
    obs, _ = await env.reset(env.tasks("train")[0])
    now = emulator.device.state.now
    assert obs["title"] == "com.android.settings" and obs["text"] == 'page "settings"'
    tap = '"action_type": "DUAL_POINT", "touch_point": "[0.3, 0.5]", "lift_point": "[0.3, 0.5]"'
    after, *_ = await env.step(tap)
    assert after["screenshot"] != obs["screenshot"] and not after["error"]
    assert emulator.device.state.now == now + 1
    await env.close()


async def test_the_users_snapshots(users, tasks_file):
    emulator, phone = users.phones
    options = {"serials": [emulator.serial, phone.serial], "token_file": users.token_file}
    env = envs.make(f"phone:{tasks_file}", **options)
    task = env.tasks("test")[0]
    with pytest.raises(UsageError, match=f"{emulator.serial}.*does not have the requested snapshot 'begun'.*save NAME"):
        await env.reset(task)
    await env.reset(env.tasks("train")[0])
    opened = env._phone.driver.dump()
    env._phone.driver.save("begun")
    env._phone.driver.key("home")
    await env.reset(task)
    assert env._phone.driver.dump() == opened
    other = env.fork()
    with pytest.raises(UsageError, match=f"{phone.serial} is no emulator, so it has no snapshots"):
        await other.reset(task)
    await close(other, env)
    env = envs.make(f"phone:{tasks_file}", snapshot="begun", first_phone=0, **options)
    await env.reset(env.tasks("train")[1])
    assert env._xml == opened
    await env.close()


async def test_phones_that_cannot_be_had(users, tasks_file):
    emulator, phone = users.phones
    name = f"phone:{tasks_file}"
    env = envs.make(name, serials=["emulator-2"], timeout=SHORT)
    with pytest.raises(UsageError, match="no phone emulator-2 at the adb server on port .*, which has: "):
        await env.reset(env.tasks("train")[0])
    env = envs.make(name, serials=[emulator.serial])
    with pytest.raises(UsageError, match=f"phone {emulator.serial}: task 2: there is no app com.none; install it"):
        await env.reset(env.tasks("eval")[0])
    for fault, remedy in (("offline", "replug"), ("unauthorized", "Allow USB debugging")):
        setattr(emulator.shell.faults, fault, True)
        users.drop(emulator)
        wait_for(lambda fault=fault: users.state(emulator) == fault)
        fresh = envs.make(name, serials=emulator.serial, timeout=SHORT)
        with pytest.raises(UsageError, match=f"phone {emulator.serial} is {fault}: .*{remedy}"):
            await fresh.reset(fresh.tasks("train")[1])
        await fresh.close()
        setattr(emulator.shell.faults, fault, False)
    obs, _ = await env.reset(env.tasks("train")[1])  # it is back
    assert obs["text"]
    await env.close()


class FieldPhone(LittlePhone):
    """One field as phones have it: a tap puts the caret where it taps (ten pixels a character), and what uiautomator
    gives as the text of an empty field is its hint, which newer Androids name beside it."""

    hint, caret, newer = "Search here", 0, False

    def tap(self, x, y):
        super().tap(x, y)
        self.caret = min(len(self.state.text), (x - 10) // 10)

    def put(self, start, end, words):
        text = self.state.text
        self.state = replace(self.state, text=text[:start] + words + text[end:])
        self.caret = start + len(words)

    def text(self, string):
        self.put(self.caret, self.caret, string)

    def key(self, code):
        self._note("key", code)
        if code in (61, 66):
            self.text("\t" if code == 61 else "\n")
        elif code == 67 and self.caret:
            self.put(self.caret - 1, self.caret, "")
        elif code == 112:
            self.put(self.caret, self.caret + 1, "")
        elif code == 123:  # to the end of the line
            rest = self.state.text[self.caret :]
            self.caret += len(rest.partition("\n")[0])

    def hierarchy(self):
        xml, more = super().hierarchy(), f' hint="{self.hint}"' if self.newer else ""
        return xml.replace(' text="" resource-id="com', f' text="{self.hint}" resource-id="com', 1).replace(
            ' focused="true"', f' focused="true"{more}', 1
        )


@pytest.fixture
async def field(users, tasks_file, request):
    """A phone with such a field, and an environment on it: what it held before, and whether its Android is a newer one,
    are the test's parameters."""
    phone = users.add(FieldPhone(), emulator=False)
    wait_for(lambda: users.state(phone) == "device")
    held, phone.device.newer = request.param
    phone.device.state = replace(phone.device.state, text=held)
    env = envs.make(f"phone:{tasks_file}", serials=[phone.serial])
    yield phone.device, phone.shell, env
    await env.close()


LONG = "a long text about networks that is longer than the field"


@pytest.mark.parametrize("field", [("", False), ("", True)], indirect=True)
async def test_the_hint_of_an_empty_field_is_not_its_text(field, monkeypatch):
    device, shell, env = field
    task = env.tasks("train")[1]
    task = replace(task, max_steps=9)
    commands, run = [], shell._input
    monkeypatch.setattr(shell, "_input", lambda words: commands.append(words) or run(words))
    obs, _ = await env.reset(task)
    assert '"Search here" box [1]' in obs["text"].splitlines()
    commands.clear()
    for words in (LONG, "bluetooth", "b", "Search here", "wi-fi"):
        before = device.state.text
        obs, *_ = await env.step(f'do(action="Type", element="1", argument="{words}")')
        assert device.state.text == words and not obs["error"]
        assert f'"Search here" box [1] = "{words}"' in obs["text"].splitlines()
        erasing = [command for command in commands if "67" in command]
        keys = ["keyevent", "123"] + ["67"] * len(before) + ["112"] * len(before)
        assert erasing == ([keys] if before else [])  # nothing was typed before: nothing is deleted
        commands.clear()
    obs, *_ = await env.step('do(action="Type", element="1", argument="")')
    assert device.state.text == "" and '"Search here" box [1]' in obs["text"].splitlines()
    obs, *_ = await env.step('do(action="Search", element="1", argument="lamp")')
    assert device.state.text == "lamp\n"


@pytest.mark.parametrize(
    "field", [("Anna", False), ("Anna", True), ("two\nlines", False), ("two\nlines", True)], indirect=True
)
@pytest.mark.parametrize("words", ["Bob", "a\tb", ""])
async def test_type_replaces_what_a_field_held_before_the_episode(field, words):
    device, shell, env = field
    held = device.state.text
    obs, _ = await env.reset(replace(env.tasks("train")[1], max_steps=9))
    line = next(line for line in obs["text"].splitlines() if " box [" in line)
    assert json.dumps(held) in line or held.replace("\n", " ") in line  # the agent reads it
    obs, *_ = await env.step(f'do(action="Type", element="1", argument={words!r})')
    assert device.state.text == words


@pytest.mark.parametrize("field", [("Anna", False)], indirect=True)
async def test_a_field_that_comes_up_anew_has_another_hint(field):
    """Fields of other screens have the same name: a note's title, then that of a new note."""
    device, shell, env = field

    async def away_and_back(text):
        shown = device.hierarchy
        device.hierarchy = lambda: LittlePhone().hierarchy().replace("EditText", "TextView")
        await env.step(WAIT)
        device.hierarchy, device.state = shown, replace(device.state, text=text)
        return (await env.step(WAIT))[0]["text"].splitlines()

    await env.reset(replace(env.tasks("train")[1], max_steps=99))
    assert '"Search here" box [1]' in await away_and_back("")
    assert '"Bob" box [1]' in await away_and_back("Bob")
    obs, *_ = await env.step('do(action="Type", element="1", argument="Eve")')
    assert '= "Eve"' in obs["text"] and device.state.text == "Eve"
    assert any('= "Eve"' in line for line in await away_and_back("Eve"))  # which was typed
    assert '"Search here" box [1]' in await away_and_back("")


@pytest.mark.parametrize("field", [("Anna", False)], indirect=True)
async def test_type_at_a_point_replaces_what_the_field_there_holds(field):
    device, shell, env = field
    await env.reset(replace(env.tasks("train")[1], max_steps=9))
    await env.step('do(action="Type", element="25,30", argument="Bob")')
    assert device.state.text == "Bob"
    await env.step('do(action="Type", element="25,30", argument="Eve")')
    assert device.state.text == "Eve"
    await env.step('do(action="Type", element="focus", argument=" B.")')  # goes on where the caret is
    assert device.state.text == "Eve B."


async def test_type_at_a_point_replaces_on_the_simulated_phone_too():
    here, there = envs.make("phone", late=0), envs.make("phone-adb", late=0)
    task = some_tasks(here, ["contact"])[0]
    seen = []
    for env in (here, there):
        await env.reset(task)
        obs, *_ = await env.step('do(action="Scroll Down")')
        obs, *_ = await env.step('do(action="Type", element="1", argument="long words")')
        left, top, width, height = obs["boxes"]["1"]
        point = f"{left + width // 3},{top + height // 2}"
        obs, *_ = await env.step(f'do(action="Type", element="{point}", argument="b")')
        seen.append(obs)
    assert seen[0] == seen[1] and '= "b"' in seen[0]["text"]
    await close(here, there)


async def test_an_app_or_snapshot_that_vanishes_is_the_phones_fault(users, tasks_file):
    emulator, _ = users.phones
    options = {"serials": emulator.serial, "token_file": users.token_file, "timeout": 3}
    env = envs.make(f"phone:{tasks_file}", **options)
    app, last = env.tasks("train")[0], env.tasks("test")[0]
    emulator.snapshots["begun"] = emulator.shell.saved()
    await env.reset(app)
    await env.reset(last)
    del emulator.snapshots["begun"]
    with pytest.raises(EnvFault, match="begun was there and is gone: .* requested snapshot"):
        await env.reset(last)
    installed = type(emulator.device).packages
    try:
        type(emulator.device).packages = property(lambda device: [])
        with pytest.raises(EnvFault, match="com.android.settings was there and is gone"):
            await env.reset(app)  # it cannot be cleared
        env._phone.entry_of = lambda task: {"start": app.site, "clear": [], "snapshot": ""}
        with pytest.raises(EnvFault, match="com.android.settings was there and is gone: there is no app"):
            await env.reset(app)  # nor started
    finally:
        type(emulator.device).packages = installed
    await env.reset(app)  # and it is back
    await env.close()
    # what never was there is the user's error
    with pytest.raises(UsageError, match="task 2: there is no app com.none"):
        await env.reset(env.tasks("eval")[0])
    with pytest.raises(UsageError, match="requested snapshot 'begun'"):
        await env.reset(last)
    await env.close()


async def test_an_app_that_does_not_start_begins_no_episode(users, tasks_file, monkeypatch):
    emulator, _ = users.phones
    options = {"serials": emulator.serial, "token_file": users.token_file, "timeout": 2}
    env = envs.make(f"phone:{tasks_file}", **options)
    emulator.shell.faults.no_keys = True  # monkey's own way does not work
    obs, _ = await env.reset(env.tasks("train")[0])
    assert obs["title"] == "com.android.settings"
    monkeypatch.setattr(emulator.device, "start", lambda package: True)  # it does nothing
    with pytest.raises(EnvFault, match="com.android.settings was started and is not in front"):
        await env.reset(env.tasks("train")[0])
    await env.close()


async def test_one_phone_under_two_names_is_refused(users, tasks_file):
    emulator, phone = users.phones
    server = AdbServer.of_the_user()
    for one, port in ((emulator, emulator.port), (phone, phone.port)):
        other = f"localhost:{port}"
        server.ask(f"host:connect:{other}")
        wait_for(lambda other=other: server.devices().get(other, ("",))[0] == "device")
        env = envs.make(f"phone:{tasks_file}", serials=[one.serial, other], token_file=users.token_file)
        for slot in (env, env.fork()):
            with pytest.raises(UsageError, match="are one phone: name it once"):
                await slot.reset(env.tasks("train")[1])
        await env.close()
    env = envs.make(f"phone:{tasks_file}", serials=[emulator.serial, phone.serial], token_file=users.token_file)
    for slot in (env, env.fork()):  # two phones are two
        await slot.reset(env.tasks("train")[1])
    await env.close()


def test_words_that_do_not_fit(tasks_file):
    name = f"phone:{tasks_file}"
    for env_id, options, said in (
        (name, {}, "--serials NAME"),
        ("phone", {"serials": ["a"]}, "--env-id phone:FILE"),
        ("phone-adb", {"serials": ["a"]}, "is for --env-id phone:FILE, not phone-adb"),
        (name, {"serials": ["a", "a"]}, "a is named twice"),
        (name, {"serials": ["a"], "first_phone": 1}, "2 slots"),
        (name, {"serials": ["a"], "phone_delay": "2"}, "phone_delay is for simulated phones"),
        (name, {"serials": ["a"], "format": "html"}, "there are compact, aitw"),
        ("phone:none.jsonl", {"serials": ["a"]}, "cannot read it: No such file"),
        ("phone-adb-v2", {}, "phone-adb-v1"),
        ("phone-adb/bank", {}, "groups"),
        ("phone", {"phone_delay": "fast"}, "MEDIAN:SIGMA"),
        ("phone", {"phone_delay": "-1"}, "MEDIAN:SIGMA"),
        ("phone-adb", {"phone_delay": "1:nan"}, "MEDIAN:SIGMA"),
        ("phone", {"phone_delay": "1:6"}, "MEDIAN:SIGMA"),
        ("phone", {"phone_spread": 0.5}, "at least 1"),
    ):
        with pytest.raises(UsageError, match=said):
            envs.make(env_id, **options)
    env = envs.make("phone", tasks=str(tasks_file), serials="a", viewport=(1, 1), port=0, phone_delay="0")
    assert [task.task_id for task in env.tasks("train")] == ["0", "lamp"]
    assert envs.full_name("phone-adb/general") == "phone-adb-v1/general"


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "there is no task in it"),
        ("{", "not a list of tasks"),
        ("3", "the fields are"),
        ('{"start": "a"}', "KeyError: 'instruction'"),
        ('{"instruction": "a", "strat": "b"}', "the fields are clear, instruction"),
        ('{"instruction": "a", "clear": "b"}', "clear is a list of packages"),
        ('{"instruction": "a", "start": 4}', "are texts"),
        ('{"instruction": "a", "split": "dev"}', "the split is 'dev'"),
        ('{"instruction": "a", "task_id": 1}\n{"instruction": "b", "task_id": "1"}', "occurs twice"),
    ],
)
def test_files_that_are_no_tasks(tmp_path, text, said):
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_tasks(path)
    assert "\n" not in str(caught.value)


def test_a_split_without_tasks(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"instruction": f"do {number}"} for number in range(60)]))
    splits, entries = read_tasks(path)
    assert 25 < len(splits["train"]) < 50 and min(map(len, splits.values())) > 3 and len(entries) == 60
    path.write_text('{"instruction": "a", "split": "eval"}')
    with pytest.raises(UsageError, match="no task is in the split 'train'"):
        envs.make(f"phone:{path}", serials="a").tasks("train")


# ---- the wall times of real devices ----


def test_times_are_drawn_by_episode_and_step():
    pace = Pace.of("2.5:0.6")
    assert pace == Pace(2.5, 0.6) and Pace.of(2) == Pace(2.0) and Pace.of("").seconds(0, "a", 0) == 0.0
    assert pace.seconds(0, "a", 3) == pace.seconds(4, "a", 3) != pace.seconds(0, "a", 4)
    times = [pace.seconds(0, f"task/{number}", number % 9) for number in range(4000)]
    assert abs(statistics.median(times) - 2.5) < 0.15
    assert abs(statistics.stdev(map(math.log, times)) - 0.6) < 0.03
    wide = Pace.of("1:1.3")
    episodes = sorted(sum(wide.seconds(0, f"task/{number}", step) for step in range(10)) for number in range(2000))
    assert 60 < episodes[-51] / episodes[50] < 160  # 95 in 100 of them
    assert len({round(pace.seconds(0, "a", step), 9) for step in range(50)}) == 50


def test_some_phones_are_slower():
    speeds = [Pace.of(1, 9).seconds(phone, "a", 0) for phone in range(32)]
    assert 1 / 3 <= min(speeds) < 0.4 and 2.6 < max(speeds) <= 3 and len(set(speeds)) == 32
    assert 14 <= sum(speed < 1 for speed in speeds) <= 18


@pytest.mark.parametrize("name", ["phone", "phone-adb"])
async def test_a_slow_phone_does_not_block_the_others(name):
    env = envs.make(name, phone_delay="0.2", phone_spread=4)
    slots = [env, *(env.fork() for _ in range(7))]
    assert [slot._place for slot in slots] == list(range(8))
    task = env.tasks("train")[0]
    await asyncio.gather(*(slot.reset(task) for slot in slots))
    ended = []

    async def wait(slot):
        for _ in range(4):
            await slot.step(WAIT)
        ended.append(slot._place)

    start = time.monotonic()
    await asyncio.gather(*(wait(slot) for slot in slots))
    alone = [sum(slot.pace.seconds(slot._place, slot._episode, step) for step in range(4)) for slot in slots]
    assert max(alone) < time.monotonic() - start < sum(alone) / 2
    assert ended.index(alone.index(min(alone))) < ended.index(alone.index(max(alone)))
    await close(*slots)


def test_a_phone_in_process_needs_neither_adb_nor_torch():
    code = "import sys, envs; envs.make('phone').tasks('eval')\n"
    code += "assert not {'torch', 'adbutils'} & set(sys.modules)\n"
    code += "envs.make('phone-adb'); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
