"""The simulated phone: its apps, what is seen and what is hit, the keyboard, dialogs, the clock, snapshots; what agents
read of it and how they act on it; the environment's contract."""

import contextlib
import io
import pickle
import random
import re
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import envs
from common.actions import Action, ActionError, parse
from common.errors import StateMismatch, UsageError
from envs import Prefix
from envs.phone import apps, observe, tasks
from envs.phone.actions import TYPES, Gesture, do_gesture, format_gesture, gestures_of, parse_gesture
from envs.phone.device import PERMISSIONS, Device, _hit, _quoted, _seen_part, walk, window
from envs.phone.paint import keys
from envs.phone.screen import KEYBOARD, LAUNCHER, NAVIGATION, STATUS

BACK, HOME, ENTER, DELETE, RECENTS = 4, 3, 66, 67, 187


def phone(seed=3, **options):
    return Device(seed, **{"asks": 0, "late": 0} | options)


def nodes(device):
    return observe.read(device.hierarchy())[1]


def texts(device):
    return [node.get("text", node.get("label")) for node in nodes(device)]


def press(device, label, kind=r"\w+", hold=False):
    """Tap in the middle of what the hierarchy calls so."""
    found = [n for n in nodes(device) if n.get("label") == label and re.fullmatch(kind, n["kind"])]
    assert found, (label, texts(device))
    left, top, width, height = found[0]["box"]
    place = left + width // 2, top + height // 2
    device.long_press(*place) if hold else device.tap(*place)
    device.advance(1)


def drawer(device):
    device.key(HOME)
    device.swipe(180, 450, 180, 200)


# --- apps ------------------------------------------------------------------------------------------------------------


def test_every_app_opens_from_the_drawer():
    device = phone()
    for package in apps.installed(device.state):
        drawer(device)
        press(device, apps.label(device.state, package), "item")
        assert device.foreground()[0] == package and package in device.packages
        assert ElementTree.fromstring(device.hierarchy())[0].get("package") == package


def test_whatever_is_tapped_the_phone_goes_on_and_nothing_lies_over_what_can_be_tapped():
    places = set()
    for seed in (0, 10_001, 20_002):
        rng, device = random.Random(seed), Device(seed, asks=0.5, late=0.05)
        for _ in range(250):
            state = device.state
            places.add((state.front, state.screen.name, state.screen.dialog))
            items = [(w, b) for w, b, _ in walk(window(state).root, clip=_seen_part(state)) if w.tap or w.slide]
            for widget, (left, top, right, low) in items:
                hit, _ = _hit(state, (left + right) / 2, (top + low) / 2, lambda w: w.tap or w.hold or w.slide)
                assert hit is widget or hit in widget.parts
            draw = rng.random()
            if draw < 0.08:
                device.key(rng.choice((BACK, HOME, RECENTS, ENTER, DELETE, 24)))
            elif draw < 0.18:
                device.swipe(*rng.choice(((180, 450, 180, 150), (180, 200, 180, 500), (300, 300, 40, 300))))
            elif draw < 0.24:
                device.text(rng.choice(("Anna", "5", "lamp")))
            elif items:
                _, (left, top, right, low) = rng.choice(items)
                device.long_press((left + right) / 2, (top + low) / 2, rng.choice((0.1, 0.1, 0.1, 1.0)))
            device.advance(rng.choice((0.5, 1, 2)))
            assert observe.text_of(device.hierarchy())
        device.screenshot()
    assert len(places) > 40 and len({front for front, _, _ in places}) > 10


def test_boxes_of_the_hierarchy_are_what_a_tap_hits():
    """At the corners of each box too, at a scale of one and at another one."""
    for size in ((360, 640), (720, 1280)):
        device = phone(size=size)
        for steps in (("Settings",), ("Shop",), ("Calendar",), ("Clock", "Timer"), ("Contacts", "Create contact")):
            device.key(HOME)
            for label in steps:
                press(device, label)
            state, scale = device.state, device.size[0] / 360
            for node in nodes(device):
                if "kind" not in node:
                    continue
                left, top, width, height = node["box"]
                assert 0 <= left < left + width <= size[0] and 0 <= top < top + height <= size[1]
                inside = (left + 1, top + 1), (left + width - 1, top + height - 1)
                for x, y in inside:
                    widget, _ = _hit(state, x / scale, y / scale, lambda w: w.tap or w.slide)
                    shown = [widget.text, widget.label, widget.hint, *(part.text for part in widget.parts)]
                    overlaid = node["kind"] == "item" and widget.label in ("Create contact", "New event")
                    assert node["label"] in shown or overlaid, (node, shown)
            device.stop(device.foreground()[0])


def test_words_are_in_their_boxes_and_stand_out():
    for dark in (False, True):
        device = phone()
        device.state = replace(device.state, settings=replace(device.state.settings, dark=dark))
        for label in ("Settings", "Contacts", "Calendar", "Messages", "Store"):
            device.key(HOME)
            press(device, label)
            picture = device.screenshot().convert("L")
            for widget, (left, top, right, low), _ in walk(window(device.state).root, clip=_seen_part(device.state)):
                if widget.kind == "text" and widget.text and low - top > 14:
                    darkest, brightest = picture.crop((int(left), int(top), int(right), int(low))).getextrema()
                    assert brightest - darkest > 70, (label, widget.text)


def test_words_are_cut_where_there_is_no_room():
    device = phone()
    drawer(device)
    press(device, "Notes")
    press(device, "New note")
    press(device, "Title")
    device.text("a very long title " * 10)
    press(device, "Save")
    before = device.screenshot().copy()
    row = next(n for n in nodes(device) if n.get("label", "").startswith("a very"))
    right = before.crop((352, row["box"][1], 360, row["box"][1] + row["box"][3]))
    assert len(right.convert("L").getcolors()) == 1  # nothing is painted over the edge


# --- keyboard, dialogs, stacks ---------------------------------------------------------------------------------------


def test_the_keyboard_covers_the_lower_part_and_types():
    device = phone()
    press(device, "Contacts")
    press(device, "Create contact")
    assert "Email" in texts(device)
    press(device, "Email")
    top = 640 - NAVIGATION - KEYBOARD
    assert device.state.keyboard and all(n["box"][1] + n["box"][3] <= top for n in nodes(device) if "box" in n)
    for letter in ("shift", "a", "b", " ", "123", "7", "123", "c", "delete", "d"):
        shown = letter.upper() if device.state.keyboard == "ABC" else letter
        box = next(box for box, _, key in keys(device.state.keyboard, 640) if key in (letter, shown))
        device.tap(box[0] + box[2] / 2, box[1] + box[3] / 2)
    assert device.state.screen.get("email") == "Ab 7d"
    device.key(DELETE)
    device.text("x y")
    assert device.state.screen.get("email") == "Ab 7x y"
    press(device, "Clear Email")
    assert device.state.screen.get("email") == ""
    device.text("Ab 7x y")
    device.key(61)  # Tab: the next field, or the first one after the last
    assert device.state.screen.focus == "first"
    press(device, "Email")
    device.key(BACK)
    assert not device.state.keyboard and device.state.screen.name == "form"
    device.text("!")  # the field has the focus still
    assert device.state.screen.get("email") == "Ab 7x y!"
    device.key(BACK)
    assert device.state.screen.name == "main"
    device.text("nothing has the focus")
    assert "nothing" not in device.hierarchy()


def test_a_dialog_is_all_there_is_until_it_is_answered():
    device = phone()
    press(device, "Settings")
    press(device, "Display")
    for away in (lambda: device.key(BACK), lambda: device.tap(180, 40), lambda: press(device, "30 seconds", "radio")):
        press(device, "Screen timeout")
        assert "15 seconds" in texts(device) and "Dark theme" not in texts(device)
        away()
        assert "Dark theme" in texts(device) and "15 seconds" not in texts(device)
    assert device.state.settings.timeout == "30 seconds"


def test_back_leads_the_way_one_came_and_apps_stay_as_they_were():
    device = phone()
    press(device, "Settings")
    press(device, "Display")
    device.key(HOME)
    assert device.foreground()[0] == LAUNCHER
    press(device, "Clock")
    device.key(RECENTS)
    assert {"Settings", "Clock"} <= set(texts(device))
    press(device, "Settings", "item")
    assert "Dark theme" in texts(device)  # where it was left
    device.key(BACK)
    assert "Network & internet" in texts(device)
    device.key(BACK)
    assert device.foreground()[0] == LAUNCHER
    device.key(RECENTS)
    press(device, "Close Clock")
    assert "No recent apps" in texts(device)
    device.tap(180, 640 - NAVIGATION / 2)  # the bar's Home
    assert device.foreground() == (LAUNCHER, ".Launcher")


def test_the_driver_starts_ends_and_clears_apps():
    device = phone()
    first = device.state.contacts
    assert device.start("com.android.contacts") and not device.start("com.nobody")
    press(device, device.state.contacts[0].name)
    press(device, "More options")
    press(device, "Delete", "item")
    press(device, "Delete", "button")
    assert len(device.state.contacts) == len(first) - 1
    press(device, "Create contact")
    device.stop("com.android.contacts")
    assert device.foreground()[0] == LAUNCHER
    device.start("com.android.contacts")
    assert "Create contact" in texts(device) and "First name" not in texts(device)
    device.clear("com.android.contacts")
    assert device.state.contacts == first


# --- the clock, what is drawn by the seed ----------------------------------------------------------------------------


def test_time_is_the_phones_own():
    device = phone()
    press(device, "Clock")
    press(device, "Stopwatch")
    press(device, "Start")
    device.advance(64)
    assert "01:05" in texts(device)
    press(device, "Pause")
    device.advance(100)
    assert "01:05" in texts(device)
    press(device, "Timer")
    press(device, "2")
    press(device, "00")
    press(device, "Start")
    device.advance(30)
    assert "0:01:29" in texts(device)
    before = device.screenshot().copy()
    device.advance(3600)
    assert "0:00:00" in texts(device) and device.screenshot().tobytes() != before.tobytes()


def test_an_installation_takes_its_time():
    device = phone()
    press(device, "Store")
    name = next(name for name in texts(device) if name in apps.store.everything("app") and
                apps.store.package(name) not in device.packages)  # fmt: skip
    press(device, name)
    press(device, "Install")
    assert "Installing..." in texts(device) and apps.store.package(name) not in device.packages
    device.advance(5)
    press(device, "Open")
    assert device.foreground()[0] == apps.store.package(name)


def test_a_late_screen_shows_the_old_one_for_a_while():
    device = phone(late=1.0)
    before, listed = device.screenshot().tobytes(), device.hierarchy()
    device.tap(222, 380)
    assert device.foreground()[0] != LAUNCHER  # it is there, but not seen
    assert device.screenshot().tobytes() == before and device.hierarchy() == listed
    device.advance(3)
    assert device.screenshot().tobytes() != before and device.hierarchy() != listed


def test_apps_ask_for_a_permission_once():
    device = phone(asks=1.0)
    press(device, "Contacts")
    assert device.foreground()[0] == PERMISSIONS and "Allow" in texts(device)
    device.text("x")
    device.tap(180, 100)  # beside it
    assert device.foreground()[0] == PERMISSIONS
    press(device, "Don't allow")
    assert device.foreground()[0] == "com.android.contacts"
    device.stop("com.android.contacts")
    device.start("com.android.contacts")
    assert device.foreground()[0] == "com.android.contacts"
    assert 0.05 < sum(len(Device(seed).state.asks) for seed in range(60)) / (60 * 5) < 0.4


def wander(device, seed, steps=25):
    rng = random.Random(seed)
    for _ in range(steps):
        device.tap(rng.randrange(360), rng.randrange(640))
        device.advance(1)
        yield device.state, device.screenshot().tobytes(), device.hierarchy()


def test_same_seed_same_phone():
    first, second = list(wander(Device(5), 1)), list(wander(Device(5), 1))
    assert first == second
    assert Device(5).hierarchy() != Device(6).hierarchy() or Device(5).state.contacts != Device(6).state.contacts


def test_a_state_is_a_snapshot():
    device = Device(8)
    seen = list(wander(device, 2))
    later = list(wander(device, 3))
    device.state = seen[-1][0]
    assert device.screenshot().tobytes() == seen[-1][1] and device.hierarchy() == seen[-1][2]
    assert list(wander(device, 3)) == later
    other = Device(8)
    other.state = pickle.loads(pickle.dumps(seen[9][0]))  # noqa: S301
    assert other.state == seen[9][0] and other.screenshot().tobytes() == seen[9][1]


def test_pictures_scale():
    small, large = phone(), phone(size=(720, 1280))
    for device, scale in ((small, 1), (large, 2)):
        device.tap(222 * scale, 380 * scale)
        device.advance(1)
    assert small.foreground() == large.foreground() and texts(small) == texts(large)
    assert small.screenshot().size == (360, 640) and large.screenshot().size == (720, 1280)
    a, b = small.screenshot().resize((45, 80)), large.screenshot().resize((45, 80))
    assert sum(abs(x - y) for x, y in zip(a.tobytes(), b.tobytes())) / (45 * 80 * 3) < 6
    assert phone(size=(1080, 2400)).state.height == 800


def test_the_picture_is_made_once():
    device = phone()
    assert device.screenshot() is device.screenshot() and device.hierarchy() is device.hierarchy()
    assert device.screenshot().mode == "RGB"


def test_scrolling_stops_at_the_ends():
    device = phone()
    press(device, "Settings")
    top = texts(device)
    device.swipe(180, 200, 180, 500)
    assert texts(device) == top
    for _ in range(4):
        device.swipe(180, 500, 180, 200)
    assert "About phone" in texts(device) and device.state.screen.scroll < 200
    for _ in range(4):
        device.swipe(180, 200, 180, 500)
    assert texts(device) == top
    press(device, "Sound & vibration")
    bar = next(n["box"] for n in nodes(device) if n.get("kind") == "slider")
    device.swipe(bar[0] + 30, bar[1] + 18, bar[0] + bar[2] - 1, bar[1] + 18)
    assert device.state.settings.media == 100
    device.tap(bar[0] + bar[2] // 2, bar[1] + 18)
    assert 48 <= device.state.settings.media <= 52


# --- what agents read and do -----------------------------------------------------------------------------------------


def test_lines_of_a_screen():
    device = phone()
    press(device, "Settings")
    press(device, "Display")
    assert observe.text_of(device.hierarchy()) == "\n".join((
        'page "settings"', '"Navigate up" button [1]', 'text "Display"', 'text "Brightness level"',
        '"Brightness level" slider [2] = "60"', '"Dark theme" check [3]',
        '"Screen timeout" item [4] = "After 30 seconds"', '"Font size" item [5] = "Small"',
        '"Auto-rotate screen" check [6] on',
    ))  # fmt: skip


def test_a_dump_of_a_real_phone_can_be_read():
    xml = (
        "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?><hierarchy rotation=\"0\">"
        '<node index="0" text="" resource-id="" class="android.widget.FrameLayout" package="com.android.settings" '
        'content-desc="" clickable="false" bounds="[0,0][1080,2400]">'
        '<node index="0" class="android.widget.ScrollView" scrollable="true" bounds="[0,300][1080,2400]">'
        '<node index="0" class="android.widget.LinearLayout" clickable="true" bounds="[0,300][1080,500]">'
        '<node text="Airplane &amp; more" class="android.widget.TextView" bounds="[0,300][500,400]" />'
        '<node text="" class="android.widget.Switch" checkable="true" checked="true" bounds="[900,300][1000,400]" />'
        '</node><node text="abc" class="android.widget.EditText" resource-id="a:id/name" clickable="true" '
        'bounds="[0,500][1080,600]" /><node text="Off" class="android.widget.Button" clickable="true" enabled="false" '
        'bounds="[0,600][100,700]" /></node></node></hierarchy>'
    )
    assert observe.text_of(xml).splitlines()[1:] == [
        '"Airplane & more" check [1] on',
        '"name" box [2] = "abc"',
        '"Off" button [3] disabled',
        "scrolls",
    ]


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=30)
PLACES = st.floats(0, 1).map(lambda place: round(place, 4))


@given(st.sampled_from(TYPES), st.tuples(PLACES, PLACES), st.tuples(PLACES, PLACES), WORDS)
@settings(max_examples=100, deadline=None)
def test_gestures_are_read_as_they_are_written(kind, touch, lift, words):
    gesture = Gesture(kind, touch, lift) if kind == "DUAL_POINT" else Gesture(kind, text=words)
    assert parse_gesture(format_gesture(gesture)) == gesture
    assert parse_gesture("Action Plan: [tap]; Action Decision: " + format_gesture(gesture)) == gesture


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_the_parser_of_gestures(text):
    with contextlib.suppress(ActionError):
        parse_gesture(text)


def test_gestures_that_are_none():
    point = '"action_type": "DUAL_POINT", "touch_point": "{}", "lift_point": "[0.5, 0.5]"'
    wrong = (
        "",
        '"action_type": "FLY"',
        '"action_type": "DUAL_POINT"',
        point.format("[0.5, 2.0]"),
        point.format("[., .]"),
    )
    for text in wrong:
        with pytest.raises(ActionError):
            parse_gesture(text)


def test_points_that_are_near_are_a_tap_and_others_a_swipe():
    assert Gesture("DUAL_POINT", (0.5, 0.5), (0.52, 0.52)).is_tap
    assert not Gesture("DUAL_POINT", (0.5, 0.5), (0.5, 0.55)).is_tap
    device = phone()
    do_gesture(
        device, parse_gesture('"action_type": "DUAL_POINT", "touch_point": "[0.8, 0.5]", "lift_point": "[0.3, 0.5]"')
    )
    assert device.foreground()[1] == ".Drawer"
    assert parse_gesture('"action_type": "TYPE", "typed_text": "a \\"b\\""') == Gesture("TYPE", text='a "b"')
    box = {"id": "1", "kind": "box", "label": "x", "value": "", "box": (0, 64, 36, 64)}
    tapped = gestures_of(parse('do(action="Search", element="1", argument="x")'), [box], (360, 640))
    assert [g.type for g in tapped] == ["DUAL_POINT", "TYPE", "PRESS_ENTER"] and tapped[0].touch == (0.05, 0.15)
    for action in (Action("Hover", "1"), Action("Click", "2")):
        with pytest.raises(ActionError):
            gestures_of(action, [box], (360, 640))


# --- the environment -------------------------------------------------------------------------------------------------


def task_of(env, name):
    return next(task for task in env.tasks("train") if task.template == name)


async def test_errors_are_observations():
    env = envs.make("phone")
    await env.reset(env.tasks("train")[0])
    for text in ("nothing", 'do(action="Click", element="99")', 'do(action="Press", argument="F5")',
                 'do(action="Goto", argument="a.com")', 'do(action="Type", element="1", argument="x")'):  # fmt: skip
        obs, reward, terminated, truncated, _ = await env.step(text)
        assert obs["error"] and reward == 0 and not terminated and not truncated
    obs, reward, terminated, _, info = await env.step('exit(message="done")')
    assert terminated and reward == 0.0 and info["verdict"] == 0.0 and info["answer"] == "done"
    with pytest.raises(RuntimeError):
        await env.step("again")


async def test_what_no_keyboard_has_is_refused_and_line_ends_are_enter():
    env = envs.make("phone", asks=0, late=0)
    await env.reset(env.tasks("train")[0])
    device = env._phone
    device.start("org.cleangui.browser")
    obs, *_ = await env.step('do(action="Wait")')
    assert "box [1]" in obs["text"]
    for escape in ("\\ud800", "\\x07", "\\x7f"):
        obs, *_ = await env.step(f'do(action="Type", element="1", argument="lamp{escape}")')
        assert "cannot be typed on a phone" in obs["error"] and "lamp" not in obs["text"]
    before = device.state.screen
    obs, *_ = await env.step(r'do(action="Type", element="1", argument="lamp\r\n")')
    assert device.state.screen != before and not obs["error"] and "lamp" in obs["text"]


async def test_touches_are_told_in_shares_of_the_screen():
    env = envs.make("phone", asks=0, late=0)
    obs, _ = await env.reset(env.tasks("train")[0])
    env._phone.start("org.cleangui.browser")
    obs, *_ = await env.step('do(action="Wait")')
    left, top, width, height = obs["boxes"]["1"]
    box = [[pytest.approx((left + width / 2) / 360, abs=0.002), pytest.approx((top + height / 2) / 640, abs=0.002)]]
    for text, touches in {
        'do(action="Type", element="1", argument="lamp")': box,
        'do(action="Scroll Down")': [[0.5, 0.7], [0.5, 0.3]],
        'do(action="Drag", argument="36,64,72,128")': [[0.1, 0.1], [0.2, 0.2]],
        'do(action="Right Click", argument="180,320")': [[0.5, 0.5]],
        'do(action="Press", argument="Home")': [],
        'do(action="Click", element="99")': [],  # refused
    }.items():
        *_, info = await env.step(text)
        assert info["touches"] == touches, text
    env = envs.make("phone", asks=0, late=0, format="aitw")
    await env.reset(env.tasks("train")[0])
    for gesture, touches in {
        Gesture("DUAL_POINT", (0.25, 0.5), (0.25, 0.5)): [[0.25, 0.5]],
        Gesture("DUAL_POINT", (0.5, 0.8), (0.5, 0.2)): [[0.5, 0.8], [0.5, 0.2]],
        Gesture("PRESS_BACK"): [],
    }.items():
        *_, info = await env.step(format_gesture(gesture))
        assert info["touches"] == touches, gesture


def test_what_xml_cannot_hold_is_a_dot_in_the_hierarchy():
    assert _quoted("a\x00b\x0bc\udc80\uffff") == '"a.b.c.."'


async def test_an_episode_ends_at_its_horizon():
    env = envs.make("phone")
    task = env.tasks("train")[0]
    await env.reset(task)
    for number in range(task.max_steps):
        *_, terminated, truncated, info = await env.step('do(action="Wait")')
        assert truncated == (number == task.max_steps - 1) and not terminated
    assert info["verdict"] == 0.0


async def test_restore_by_snapshot_and_by_replay():
    first, second = envs.make("phone"), envs.make("phone").fork()
    task = task_of(first, "contact")
    obs, _ = await first.reset(task)
    prefixes, seen, actions = [await first.prefix()], [obs["text"]], []
    for move in first.oracle(task):
        actions.append(first.resolve(move, obs))
        obs, reward, *_ = await first.step(actions[-1])
        prefixes.append(await first.prefix())
        seen.append(obs["text"])
    assert reward == 1.0
    for number in (0, 2, len(actions) - 1):
        prefix = prefixes[number]
        for way in (prefix, Prefix(prefix.task, prefix.actions, prefix.hashes)):
            obs, _ = await second.restore(way)
            assert obs["text"] == seen[number]
            for action in actions[number:]:
                obs, reward, *_ = await second.step(action)
            assert reward == 1.0
    with pytest.raises(StateMismatch):
        await second.restore(replace(prefixes[2], hashes=(*prefixes[2].hashes[:-1], "0" * 16)))
    await first.close()
    await first.close()


async def test_who_sees_writes_gestures():
    env = envs.make("phone/general", format="aitw", screenshots=True, viewport=(180, 320))
    task = task_of(env, "toggle")
    obs, _ = await env.reset(task)
    picture = Image.open(io.BytesIO(obs["screenshot"]))
    assert picture.size == (180, 320) and picture.tobytes() == env._phone.screenshot().tobytes()
    obs, *_ = await env.step('do(action="Click", element="1")')
    assert obs["error"] == "no action type in the answer"
    *_, terminated, _, info = await env.step(format_gesture(Gesture("STATUS_TASK_IMPOSSIBLE")))
    assert terminated and info["answer"] == "N/A" and info["verdict"] == 0.0


def test_names_of_environments():
    assert envs.full_name("phone/general") == "phone-v1/general"
    assert {task.site for task in envs.make("phone-v1/general+world").tasks("eval")} == {"general", "world"}
    for name in ("phone/bank", "phone-v2"):
        with pytest.raises(UsageError):
            envs.make(name)
    with pytest.raises(UsageError):
        envs.make("phone", format="webrl")


def test_gymnasiums_checker_accepts_it():
    from gymnasium.utils.env_checker import check_env

    env = envs.gym_env("phone")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(spec|render).*")
        check_env(env, skip_render_check=True)
    env.close()


def test_the_status_bar_is_out_of_the_way():
    device = phone()
    before = device.state
    device.tap(180, STATUS // 2)
    assert device.state.screen == before.screen and tasks.record(device.state) == tasks.record(before)
