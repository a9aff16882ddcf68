"""The driver on simulated phones behind a real adb server: what it does, what it sees, and what it makes of faults."""

import io
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import adbutils
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from little_phone import PACKAGES, LittlePhone
from PIL import Image

from benchmarks.once import phone as benchmark
from common import android
from common.android import (
    AdbServer,
    Android,
    Refused,
    bounds,
    check_png,
    input_commands,
    parse_foreground,
)
from common.errors import EnvFault, EnvHang, UsageError
from envs.phone import adbd
from envs.phone.adbd import Phones
from envs.phone.shell import Failed, png
from tools import doctor

ROOT = Path(__file__).resolve().parent.parent
SHORT = 0.3  # seconds: the timeout where a test waits for it
TYPED = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\n\t%s '\";&$\\"), max_size=90)


@pytest.fixture(scope="module")
def server():
    with AdbServer() as server:
        yield server


@pytest.fixture(scope="module")
def phones(server):
    with Phones(server.port) as phones:
        yield phones


@pytest.fixture
def phone(phones):
    phone = phones.add(LittlePhone())
    yield phone
    phone.shell.faults.hang = phone.shell.faults.offline = phone.shell.faults.unauthorized = False
    phones.remove(phone)


@pytest.fixture
def driver(server, phones, phone):
    return Android(phone.serial, server, timeout=5, token_file=phones.token_file)


@pytest.fixture
def network_phone(phones):
    phone = phones.add(LittlePhone(), emulator=False)
    yield phone
    phones.remove(phone)


def drop(server, phones, phone, state):
    """Break the phone's connection, and wait until another one is in this state."""
    wait_for(lambda: phone.serial in server.devices())
    before = server.devices()[phone.serial]
    phones.drop(phone)
    if phone.emulator:  # a phone on the network keeps its transport id
        wait_for(lambda: server.devices().get(phone.serial, before)[1] != before[1])
    else:
        wait_for(lambda: server.devices()[phone.serial][0] != "device")
    wait_for(lambda: server.devices().get(phone.serial, before)[0] == state)


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- input ----


@pytest.mark.parametrize("emulator", [True, False])
def test_input(server, phones, phone, network_phone, emulator):
    phone = phone if emulator else network_phone
    driver = Android(phone.serial, server)
    driver.tap(10, 20)
    driver.tap(10.4, 20.6)
    driver.double_tap(30, 40)
    driver.long_press(50, 60)
    driver.swipe(0, 639, 359, 0, 0.25)
    driver.key("Back")
    driver.key("app_switch")
    driver.key(25)
    assert phone.device.state.done == (
        ("tap", 10, 20),
        ("tap", 10, 21),
        ("double tap", 30, 40),
        ("long press", 50, 60, 1.0),
        ("swipe", 0, 639, 359, 0, 0.25),
        ("key", 4),
        ("key", 187),
        ("key", 25),
    )


@pytest.mark.parametrize(
    "direction, swipe",
    [("down", (180, 480, 180, 160)), ("up", (180, 160, 180, 480))]
    + [("right", (270, 320, 90, 320)), ("left", (90, 320, 270, 320))],
)
def test_scroll(driver, phone, direction, swipe):
    driver.scroll(direction)
    assert phone.device.state.done == (("swipe", *swipe, 0.5),)


def test_scroll_in_an_element(driver, phone):
    driver.scroll("down", (0, 100, 360, 300))
    assert phone.device.state.done == (("swipe", 180, 250, 180, 150, 0.5),)


def test_what_is_refused_is_not_done(driver, phone):
    for action in (
        lambda: driver.tap(360, 0),
        lambda: driver.tap(0, -1),
        lambda: driver.double_tap(0, 640),
        lambda: driver.swipe(0, 0, 0, 640),
        lambda: driver.scroll("sideways"),
        lambda: driver.key("any"),
        lambda: driver.type("umläut"),
        lambda: driver.type("a\x07"),
        lambda: driver.type("äöüßéèêàâôûî\x07"),
        lambda: driver.type("a\ud800"),
        lambda: driver.start("com.example.none"),
        lambda: driver.start("none; input tap 1 1"),
        lambda: driver.start(""),
    ):
        with pytest.raises(Refused):
            action()
    assert phone.device.state.done == () and phone.device.state.text == ""


def test_a_phone_that_lets_nobody_touch_it(driver, phone, monkeypatch):
    def refuse(arguments):
        raise Failed("java.lang.SecurityException: Injecting input events requires the INJECT_EVENTS permission\n", 255)

    monkeypatch.setattr(phone.shell, "_input", refuse)
    with pytest.raises(UsageError, match="USB debugging .Security settings."):
        driver.tap(1, 1)


def test_an_input_that_fails_is_a_fault(driver, phone, monkeypatch):
    monkeypatch.setattr(phone.shell, "_input", lambda arguments: (_ for _ in ()).throw(Failed("Killed\n", 137)))
    with pytest.raises(EnvFault, match="`input tap 1 1` failed with 137: Killed"):
        driver.tap(1, 1)


# ---- text ----


@pytest.fixture(scope="module")
def typist(server, phones):
    """A driver and its phone for properties, which see one phone for all examples."""
    phone = phones.add(LittlePhone())
    return Android(phone.serial, server, timeout=5), phone


@given(text=TYPED)
@example("100%sure; echo 'a b' \"c\" && $HOME `x` \\ %%s %s%s s%")
@example("-d 1\n\n\t#x")
@settings(max_examples=40, deadline=None)
def test_any_ascii_text_arrives(typist, text):
    driver, phone = typist
    phone.device.state = type(phone.device.state)()
    driver.type(text)
    assert phone.device.state.text == text


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60))
@example("Grüße; 'ß' %s 😀 \"日本\"")
@settings(max_examples=40, deadline=None)
def test_any_text_arrives_through_the_keyboard_app(typist, text):
    driver, phone = typist
    phone.device.state = type(phone.device.state)()
    phone.shell.has_keyboard = True
    driver.type(text)
    assert phone.device.state.text == text
    phone.shell.has_keyboard = False
    if not text.isascii():
        with pytest.raises(Refused, match="ASCII"):
            driver.type(text)
        assert phone.device.state.text == text


@given(TYPED)
def test_input_text_gets_pieces_that_mean_the_text(text):
    typed = ""
    for command in input_commands(text):
        program, kind, argument = shlex.split(command)
        assert program == "input" and len(argument) <= 4 * android.PIECE
        typed += {"66": "\n", "61": "\t"}[argument] if kind == "keyevent" else android_types(argument)
    assert typed == text


def android_types(argument):
    """What `input text` makes of its argument: Android's own loop (InputShellCommand.sendText)."""
    characters, escaped, i = list(argument), False, 0
    while i < len(characters):
        if escaped:
            escaped = False
            if characters[i] == "s":
                characters[i] = " "
                i -= 1
                del characters[i]
        if characters[i] == "%":
            escaped = True
        i += 1
    return "".join(characters)


def commands_of(phone, monkeypatch):
    """The `input` commands that a phone gets from now on."""
    done, run = [], phone.shell._input
    monkeypatch.setattr(phone.shell, "_input", lambda words: done.append(words) or run(words))
    return done


@pytest.mark.parametrize("count", [0, 1, 7, 450])
def test_a_field_is_erased_on_both_sides_of_the_caret(driver, phone, monkeypatch, count):
    given = commands_of(phone, monkeypatch)
    driver.erase(count)
    codes = [code for words in given for code in words[1:]]
    assert codes == (["123"] + ["67"] * count + ["112"] * count if count else [])
    assert len(given) == -(-len(codes) // android.KEYS_AT_ONCE)


@pytest.fixture
def keyboard(phone):
    """A phone with ADBKeyBoard, which is not the one it types with yet."""
    phone.shell.has_keyboard = True
    return phone


@pytest.mark.parametrize("text", ["chat\n", "chät\n", "\tä\n\nü\t", "\r\nö"])
def test_line_ends_and_tabs_are_keys_in_both_ways(driver, keyboard, text):
    driver.type(text)
    typed = text.replace("\r\n", "\n")
    keys = [done[1] for done in keyboard.device.state.done if done[0] == "key" and done[1] != android.MOVE_END]
    assert keys == [{"\n": 66, "\t": 61}[end] for end in typed if end in "\n\t"]
    assert keyboard.device.state.text == typed  # LittlePhone writes what the two keys are


def test_the_first_text_of_another_keyboard_is_not_lost(driver, keyboard):
    """Until it serves the field, which begins with a tap or after a moment, that keyboard loses what it gets."""
    driver.type("a")
    driver.type("ä")
    assert keyboard.device.state.text == "aä"
    assert [done[0] for done in keyboard.device.state.done].count("tap") <= 1
    assert keyboard.shell.settings["secure", "default_input_method"].startswith(android.KEYBOARD)
    now = len(keyboard.device.state.done)
    driver.type("öö")  # and from now on it is not looked at
    assert keyboard.device.state.text == "aäöö" and len(keyboard.device.state.done) == now
    keyboard.shell.settings["secure", "default_input_method"] = "com.other/.Keyboard"  # as a snapshot brings it back
    driver.type("ü")
    assert keyboard.device.state.text == "aäööü"


def test_a_keyboard_that_never_serves_the_field_is_no_silent_loss(driver, keyboard, monkeypatch):
    monkeypatch.setattr(keyboard.shell, "_broadcast", lambda action, extras: None)
    with pytest.raises(Refused, match="the field took nothing of 'ä'"):
        driver.type("ä")
    with pytest.raises(Refused):
        driver.type("ä")  # it is still not known to work
    monkeypatch.undo()
    driver.type("ä")
    assert keyboard.device.state.text == "ä"


def test_a_keyboard_without_a_field_that_can_be_seen_has_a_moment(driver, keyboard, monkeypatch):
    shown = keyboard.device.hierarchy
    monkeypatch.setattr(keyboard.device, "hierarchy", lambda: shown().replace('focused="true"', 'focused="false"'))
    driver.type("ä")
    assert keyboard.device.state.text == "ä"


def test_line_ends_of_windows_are_one_enter(driver, phone):
    driver.type("a\r\nb\rc")
    assert phone.device.state.text == "a\nb\nc"


# ---- what is seen ----


def test_a_screenshot_is_the_screen(driver, phone):
    for _ in range(3):
        with Image.open(io.BytesIO(driver.screenshot())) as picture:
            assert picture.size == driver.size == (360, 640)
            assert picture.tobytes() == phone.device.screenshot().tobytes()
        driver.tap(1, 1)


def test_size_and_rotation(driver, phone):
    assert driver.window() == (360, 640, 0)
    phone.device.size, phone.device.state = (640, 360), type(phone.device.state)(text="turned")
    assert driver.window() == (640, 360, 1)
    driver.screenshot()
    driver.tap(600, 20)
    assert driver.size == (640, 360)


def test_hierarchy(driver, phone):
    driver.type('<a & "b">\'')
    driver.tap(1, 1)
    frame, box, switch = driver.hierarchy()
    assert driver.dump() == phone.device.hierarchy()
    assert list(frame) == [box, switch] and not [*box, *switch]  # parents first
    assert (box.get("class"), box.get("text")) == ("android.widget.EditText", '<a & "b">\'')
    assert bounds(box) == (10, 20, 350, 60)
    assert (box.get("resource-id"), box.get("package")) == ("com.example.home:id/box", "com.example.home")
    assert [box.get(flag) for flag in ("clickable", "focused", "enabled")] == ["true"] * 3
    flags = [switch.get(flag) for flag in ("checkable", "checked", "long-clickable")]
    assert switch.get("content-desc") == "Taps 1" and flags == ["true", "false", "true"]


def test_a_screen_that_is_turned_has_another_size(driver, phone, monkeypatch):
    driver.hierarchy()
    with pytest.raises(Refused, match="360 x 640"):
        driver.tap(600, 300)
    turned = phone.device.hierarchy().replace('rotation="0"', 'rotation="1"')
    monkeypatch.setattr(phone.device, "size", (640, 360))
    monkeypatch.setattr(phone.device, "hierarchy", lambda: turned)
    driver.hierarchy()
    driver.tap(600, 300)
    assert driver.size == (640, 360)


def test_a_dump_may_wait_before(driver, phone):
    assert driver.dump(1.5) == phone.device.hierarchy() and phone.device.state.now == 1.5
    phone.shell.faults.stale = 1
    assert driver.dump(1.0) and phone.device.state.now == 2.5  # the second try waits no more


def test_hierarchies_of_other_phones(driver, phone, monkeypatch):
    def shown(nodes):
        head = "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>"
        monkeypatch.setattr(phone.device, "hierarchy", lambda: f'{head}<hierarchy rotation="1">{nodes}</hierarchy>')
        return driver.hierarchy()

    assert shown('<node text="&#55357;&#56832;!" />')[0].get("text") == "😀!"
    assert shown('<node text="&#55000;&#57400;" />')[0].get("text") == "\ud6d8\ue038"
    assert bounds(shown('<node bounds="[-5,0][10,20]" />')[0]) == (-5, 0, 10, 20)
    assert shown("") == []
    deeper_than_recursion_goes = shown('<node text="x">' * 2000 + "</node>" * 2000)
    assert len(deeper_than_recursion_goes) == 2000
    for broken in ('<node text="&#55357;!" />', "<node>"):
        with pytest.raises(EnvFault, match="gives no hierarchy"):
            shown(broken)


@pytest.mark.parametrize(
    "text, found",
    [
        ("  mCurrentFocus=Window{41b u0 com.a/com.a.Main}\n", ("com.a", "com.a.Main")),
        ("  mCurrentFocus=Window{41b u0 com.a/.Main}\n", ("com.a", "com.a.Main")),
        (
            "  mCurrentFocus=Window{5c3 u0 NotificationShade}\n  mFocusedApp=ActivityRecord{f2 u0 com.a/.b.C$D t14}\n",
            ("com.a", "com.a.b.C$D"),
        ),
        (
            "mCurrentFocus=null\nmFocusedApp=AppWindowToken{422 token=Token{422 ActivityRecord{1 u0 com.a/.B t1}}}",
            ("com.a", "com.a.B"),
        ),
        ("    mResumedActivity: ActivityRecord{1 u0 com.a/com.b.C t3}\n", ("com.a", "com.b.C")),
        ("  topResumedActivity=ActivityRecord{1 u0 com.a/.C t3}\n", ("com.a", "com.a.C")),
        ("  ResumedActivity: ActivityRecord{1 u0 com.a/.C t3}\n", ("com.a", "com.a.C")),
        ("mCurrentFocus=null\n  mFocusedApp=null\n", None),
        ("", None),
    ],
)
def test_the_app_in_front_as_androids_name_it(text, found):
    assert parse_foreground(text) == found


def test_settle_waits_for_what_moves(driver, phone):
    before = driver.screenshot()
    phone.shell.faults.lag = 0.5
    driver.tap(1, 1)
    assert driver.screenshot() == before  # the tap is not to be seen yet
    driver.wait(0.3)
    after = driver.settle()
    assert after != before and after == driver.screenshot()
    pictures = []
    phone.shell._picture = lambda: pictures.append(0) or png(Image.effect_noise((36, 64), 90))
    driver.settle(1.0)  # nothing ever rests
    assert len(pictures) == 6


def test_png_check():
    out = io.BytesIO()
    Image.effect_noise((40, 50), 80).convert("RGB").save(out, "PNG")
    good = out.getvalue()
    assert check_png(good) == (good, (40, 50))
    assert check_png(b"[Warning] Multiple displays were found\n" + good + b"\n") == (good, (40, 50))  # foldables
    for length in (0, 7, 8, 20, 33, len(good) // 2, len(good) - 1):
        with pytest.raises(ValueError):
            check_png(good[:length])
    for position in range(16, len(good), 211):
        with pytest.raises(ValueError):
            check_png(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
    with pytest.raises(ValueError, match="no PNG in 5 bytes"):
        check_png(b"black")


# ---- apps and resets ----


def test_apps(driver, phone):
    assert driver.packages() == PACKAGES
    assert driver.foreground() == (PACKAGES[0], PACKAGES[0] + ".Home")
    assert driver.start(PACKAGES[1])
    assert driver.foreground() == (PACKAGES[1], PACKAGES[1] + ".Notes")
    driver.stop(PACKAGES[1])
    assert driver.foreground()[0] == PACKAGES[0]
    driver.type("x")
    driver.clear(PACKAGES[2])
    assert phone.device.state.text == ""
    with pytest.raises(UsageError, match="pm clear none: Failed; is it installed"):
        driver.clear("none")


def test_an_app_that_does_not_come_to_the_front(driver, phone, monkeypatch):
    driver.timeout = 1
    phone.device.start = lambda package: True
    with pytest.raises(EnvFault, match="is not in front, .*Home is: monkey ended with 0: Events inj"):
        driver.start(PACKAGES[1])
    driver.timeout = 20
    phone.device.start = lambda package: type(phone.device).start(phone.device, PACKAGES[2])  # a question, say
    looks, foreground = [], driver.foreground
    monkeypatch.setattr(driver, "foreground", lambda: looks.append(foreground()) or looks[-1])
    assert driver.start(PACKAGES[1]) is False
    assert len(looks) == 2  # before and after: nothing is waited for


def test_the_way_home_is_not_taken_for_what_a_start_did(driver, phone):
    """An app is still in front while the phone goes home, and the start does nothing."""
    phone.device.start(PACKAGES[2])
    phone.device.start = lambda package: type(phone.device).start(phone.device, PACKAGES[0])
    driver.timeout = 1
    with pytest.raises(EnvFault, match=f"{PACKAGES[1]} was started and is not in front, {PACKAGES[0]}"):
        driver.start(PACKAGES[1])


def test_an_app_starts_on_a_phone_without_physical_keys(driver, phone):
    phone.shell.faults.no_keys = True
    assert driver.look(f"monkey -p {PACKAGES[1]} -c android.intent.category.LAUNCHER 1; echo $?") == "251"
    assert driver.start(PACKAGES[1]) is True
    with pytest.raises(Refused, match="there is no app com.nope"):
        driver.start("com.nope")


@pytest.mark.parametrize("words, code", [("** SYS_KEYS has no physical keys", 251), ("Killed", 137), ("", 0)])
def test_an_app_starts_where_monkey_does_not_work(driver, phone, monkeypatch, words, code):
    def refuse(arguments):
        raise Failed(words + "\n", code)

    monkeypatch.setattr(phone.shell, "_monkey", refuse)
    assert driver.start(PACKAGES[1]) is True
    with pytest.raises(EnvFault, match=f"cannot start com.nope: monkey ended with {code}:.*{re.escape(words)}"):
        driver.start("com.nope")
    monkeypatch.setattr(phone.shell, "_start", refuse)
    driver.key("home")
    driver.timeout = 1
    with pytest.raises(EnvFault, match=f"monkey ended with {code}:.*{re.escape(words)}"):
        driver.start(PACKAGES[1])


def test_a_phone_without_snapshots_is_reset_by_clearing_apps(server, network_phone):
    driver = Android(network_phone.serial, server)
    driver.type("x")
    driver.start(PACKAGES[1])
    driver.reset([PACKAGES[1], PACKAGES[2]])
    state = network_phone.device.state
    assert state.text == "" and state.app == PACKAGES[0]
    assert [done[1] for done in state.done if done[0] == "key"] == [224, 3]
    for call in (driver.snapshots, lambda: driver.save("a"), lambda: driver.load("a"), lambda: driver.delete("a")):
        with pytest.raises(UsageError, match=f"{network_phone.serial} is no emulator, so it has no snapshots"):
            call()


def test_calm_and_wait(driver, phone):
    driver.calm()
    assert phone.shell.settings["global", "window_animation_scale"] == "0"
    driver.wait(2.5)
    assert phone.device.state.now == 2.5


# ---- snapshots ----


def test_a_snapshot_brings_everything_back(driver, phone):
    driver.type("before")
    before = driver.screenshot(), driver.dump()
    driver.save("one")
    driver.type(" after")
    driver.tap(1, 1)
    driver._do("settings put global a b")
    driver.save("two")
    assert driver.snapshots() == ["one", "two"]
    for _ in range(3):
        driver.tap(5, 5)
        driver.load("one")
        assert (driver.screenshot(), driver.dump()) == before
        assert ("global", "a") not in phone.shell.settings
        driver.load("two")
        assert phone.device.state.text == "before after" and len(phone.device.state.done) == 1
    driver.delete("one")
    assert driver.snapshots() == ["two"]


def test_snapshots_while_the_connection_breaks(driver, phone):
    broken, drop = threading.Event(), phone.drop

    def dropped():
        drop()
        broken.set()

    driver.save("one")
    phone.drop = dropped
    phone.shell.faults.drop_on_load = True
    for _ in range(5):
        driver.tap(1, 1)
        driver.load("one")
        assert driver.hierarchy()[2].get("content-desc") == "Taps 0"
        assert broken.wait(10)
        broken.clear()
        label = driver.hierarchy()[2].get("content-desc")  # asked for again; a tap on its way would be a fault
        assert label == "Taps 0"


def test_a_load_that_does_nothing_is_found_out(driver, phone):
    driver.timeout = SHORT
    driver.save("one")
    phone.shell.faults.ignore_load = True
    with pytest.raises(EnvFault, match="said OK to snapshot one, and nothing was brought back"):
        driver.load("one")


def test_what_the_console_refuses(driver, phone, phones, tmp_path):
    with pytest.raises(UsageError, match="requested snapshot 'one'; it has: none. Save one: `adb -s emulator-"):
        driver.load("one")
    driver.save("two")
    with pytest.raises(UsageError, match="it has: two"):
        driver.delete("one")
    phone.shell.faults.refuse_snapshots = True
    for call in (lambda: driver.save("one"), lambda: driver.load("two")):
        with pytest.raises(EnvFault, match="KO: A snapshot operation .* is pending"):
            call()
    for name in ("a b", "", "a\nkill"):
        with pytest.raises(UsageError, match="cannot be a snapshot's name"):
            driver.save(name)
    driver.token_file = tmp_path / "token"
    with pytest.raises(UsageError, match="no token of its console"):
        driver.snapshots()
    driver.token_file.write_text("wrong")
    with pytest.raises(UsageError, match="console refuses the token"):
        driver.snapshots()


def test_a_load_without_a_mark_is_not_begun(driver, phone):
    driver.save("one")
    driver.tap(1, 1)
    phone.shell._configure = lambda program, arguments: "\n"
    with pytest.raises(EnvFault, match="no load can be proved"):
        driver.load("one")
    assert phone.device.state.done


def test_a_console_that_hangs_or_is_gone(driver, phone, phones):
    driver.save("one")
    driver.timeout, phone.shell.faults.hang = 0.1, True
    with pytest.raises(EnvHang, match="console did not answer"):
        driver.snapshots()
    phone.shell.faults.hang = False
    assert driver.snapshots() == ["one"]
    driver.serial = "emulator-2"
    with pytest.raises(EnvFault, match="console on port 2"):
        driver.snapshots()


# ---- faults ----


def test_a_phone_that_hangs(driver, phone):
    driver.screenshot()
    driver.timeout = SHORT
    phone.shell.faults.hang = True
    for call in (driver.screenshot, driver.hierarchy, lambda: driver.tap(1, 1), driver.foreground, driver.packages):
        with pytest.raises(EnvHang, match=f"{phone.serial} did not answer in 0.3 s"):
            call()
    phone.shell.faults.hang = False
    driver.tap(2, 2)
    assert phone.device.state.done == (("tap", 2, 2),)  # the tap that was given up is not done later


def test_a_slow_phone_is_none_that_hangs(driver, phone):
    phone.device.delay = 0.2
    driver.tap(1, 1)
    driver.timeout = 0.3
    driver.wait(1)
    driver.screenshot()
    driver.timeout = 0.1
    with pytest.raises(EnvHang):
        driver.screenshot()


def test_the_commands_of_a_call_share_its_time(driver, phone):
    driver.timeout, phone.device.delay, phone.shell.faults.truncated = 0.3, 0.2, 1
    with pytest.raises(EnvHang):  # each of its commands alone would end in time
        driver.screenshot()


@pytest.mark.parametrize("emulator", [True, False])
def test_a_lost_connection(server, phones, phone, network_phone, emulator):
    phone = phone if emulator else network_phone
    driver = Android(phone.serial, server, timeout=5)
    driver.screenshot()
    phone.shell.faults.drop = 1
    with pytest.raises(EnvFault, match="lost during a command"):
        driver.tap(1, 1)
    driver.tap(2, 2)
    assert phone.device.state.done == (("tap", 1, 1), ("tap", 2, 2))  # never done twice
    for look in (driver.screenshot, driver.hierarchy, driver.foreground):
        phone.shell.faults.drop = 1
        look()
    phone.shell.faults.drop = 2
    with pytest.raises(EnvFault, match="lost during a command"):
        driver.screenshot()
    phones.drop(phone)
    driver.tap(3, 3)
    assert phone.device.state.done[2:] == (("tap", 3, 3),)


def test_a_connection_lost_before_the_phone_says_that_it_has_begun(driver, phone, monkeypatch):
    driver.screenshot()
    send = adbd.Connection.send
    monkeypatch.setattr(adbd.Connection, "send", lambda self, what, *rest: what == adbd.OKAY or send(self, what, *rest))
    phone.shell.faults.drop = 1
    with pytest.raises(EnvFault, match="lost as a command began: closed"):
        driver.tap(1, 1)
    assert phone.device.state.done == (("tap", 1, 1),)
    monkeypatch.undo()
    assert driver.screenshot()


def test_the_transport_id_changes(server, phones, phone, driver):
    before = server.devices()[phone.serial][1]
    phones.drop(phone)
    driver.screenshot()
    assert server.devices()[phone.serial][1] != before


@pytest.mark.parametrize("fault, remedy", [("offline", "replug"), ("unauthorized", "Allow USB debugging")])
def test_a_phone_that_lets_nobody_in(server, phones, phone, driver, fault, remedy):
    driver.timeout = SHORT
    setattr(phone.shell.faults, fault, True)
    drop(server, phones, phone, fault)
    with pytest.raises(EnvFault, match=f"{phone.serial}: it is {fault}"):
        driver.screenshot()
    with pytest.raises(UsageError, match=f"{phone.serial} is {fault}.*{remedy}"):
        Android(phone.serial, server, timeout=SHORT)
    setattr(phone.shell.faults, fault, False)
    driver.timeout = 5
    driver.screenshot()


def test_damaged_pictures(driver, phone):
    phone.shell.faults.truncated = 1
    assert check_png(driver.screenshot())
    phone.shell.faults.truncated = 2
    with pytest.raises(EnvFault, match="no whole picture: the PNG is damaged"):
        driver.screenshot()
    assert driver.screenshot()


def test_a_hierarchy_that_fails_is_not_the_last_one(driver, phone, monkeypatch):
    driver.hierarchy()
    driver.tap(1, 1)
    phone.shell.faults.stale = 1
    assert driver.hierarchy()[2].get("content-desc") == "Taps 1"
    monkeypatch.setattr(android, "PAUSES", (0.0,) * len(android.PAUSES))
    phone.shell.faults.stale = len(android.PAUSES)
    assert driver.hierarchy()
    phone.shell.faults.stale = len(android.PAUSES) + 1
    with pytest.raises(EnvFault, match="could not get idle state"):
        driver.hierarchy()


def test_a_hierarchy_that_fails_is_asked_for_again_within_the_time_of_the_call(driver, phone, monkeypatch):
    monkeypatch.setattr(android, "PAUSES", (0.01, 60.0))
    phone.shell.faults.stale = 2
    with pytest.raises(EnvFault, match="could not get idle state"):  # the third try would be one too late
        driver.hierarchy()
    assert phone.shell.faults.stale == 0
    kinds = iter([("Killed", 137), ("ERROR: null root node returned by UiTestAutomationBridge.", 0)])
    run = phone.shell._uiautomator

    def fail(arguments):
        for words, code in kinds:
            raise Failed(words + "\n", code)
        return run(arguments)

    monkeypatch.setattr(android, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(phone.shell, "_uiautomator", fail)
    assert driver.hierarchy()


def test_a_dump_that_fails_and_then_hangs_says_why(driver, phone, monkeypatch):
    """A screen that never rests takes uiautomator ten seconds to give up."""
    driver.timeout = SHORT

    def fail(arguments):
        phone.shell.faults.hang = True
        raise Failed("ERROR: could not get idle state.\n", 0)

    monkeypatch.setattr(android, "PAUSES", (0.01,))
    monkeypatch.setattr(phone.shell, "_uiautomator", fail)
    with pytest.raises(EnvFault, match="could not get idle state"):
        driver.hierarchy()


def test_a_phone_that_never_stops_talking_hangs(monkeypatch):
    """A server whose phone sends a byte now and then: each comes in time, all together never."""
    stop = threading.Event()

    def serve(listener):
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection):
        with connection:
            while length := connection.recv(4):
                call = connection.recv(int(length, 16)).decode()
                text = {"host:devices-l": "one device transport_id:1", "host:version": "0029"}.get(call, "shell_v2")
                if "-l" in call or "version" in call or "features" in call:
                    connection.sendall(f"OKAY{len(text):04x}{text}".encode())
                    return
                connection.sendall(b"OKAY")
                if "boot_completed" in call:
                    connection.sendall(struct.pack("<BI", 1, 2) + b"1\n" + struct.pack("<BIB", 3, 1, 0))
                    return
                for _ in range(100 * call.startswith("shell")):  # then it is a fault, and no hang
                    if stop.wait(0.05):
                        break
                    connection.sendall(struct.pack("<BI", 1, 1) + b".")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(listener.getsockname()[1]))
        driver = Android("one", AdbServer.of_the_user(), timeout=SHORT)
        with pytest.raises(EnvHang):
            driver.screenshot()
        stop.set()


def test_threads_share_a_phone(driver, phone):
    threads = [threading.Thread(target=lambda n=n: [driver.double_tap(n, i) for i in range(10)]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = phone.device.state.done
    assert sorted(done) == [("double tap", n, i) for n in range(8) for i in range(10)]
    began, end = threading.Event(), threading.Event()

    def hold():
        with driver._call(60):
            began.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait()
    driver.timeout = 0.2
    with pytest.raises(EnvHang, match="another thread's call"):
        driver.tap(1, 1)
    end.set()
    holder.join()


# ---- servers ----


def test_phones_survive_their_server(server, phone, driver, network_phone):
    other = Android(network_phone.serial, server)
    port = server.port
    for child in psutil.Process(server.pid).children():
        child.kill()
    driver.tap(1, 1)
    other.tap(1, 1)
    assert server.port == port
    assert len(phone.device.state.done) == len(network_phone.device.state.done) == 1


def test_a_server_that_comes_back_takes_no_phone_for_another(phones, server):
    """Transport ids begin anew with the server, and phones come back in any order."""
    found = [phones.add(LittlePhone()) for _ in range(8)]
    drivers = [Android(phone.serial, server, token_file=phones.token_file) for phone in found]
    for driver in drivers:
        driver.screenshot()
    for child in psutil.Process(server.pid).children():
        child.kill()
    for number, driver in reversed(list(enumerate(drivers))):
        driver.tap(number, 5)
        driver.tap(number, 6)
    assert [phone.device.state.done for phone in found] == [(("tap", n, 5), ("tap", n, 6)) for n in range(8)]
    for phone in found:
        phones.remove(phone)


def test_a_server_ends_with_close():
    server = AdbServer()
    keeper = psutil.Process(server.pid)
    family = [keeper, *keeper.children(recursive=True)]
    folder = Path(server._process.args[3])
    assert len(family) == 2 and folder.is_dir()
    server.close()
    assert not any(process.is_running() for process in family) and not folder.exists()
    server.close()
    with pytest.raises(EnvFault, match="was closed"):
        server.start()


def test_a_server_ends_with_its_process():
    code = "from common.android import AdbServer\ns = AdbServer()\nprint(s.port, s.pid, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as run:
        port, keeper = map(int, run.stdout.readline().split())
        family = [psutil.Process(keeper), *psutil.Process(keeper).children(recursive=True)]
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    _, alive = psutil.wait_procs(family, 5)
    assert not alive
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)


def test_the_users_server_is_started_and_left_alone(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    quiet = {
        "HOME": str(tmp_path),
        "ADB_MDNS": "0",
        "ADB_USB": "0",
        "ADB_EMU": "0",
        "ANDROID_ADB_SERVER_PORT": str(port),
    }
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    with AdbServer.of_the_user() as server:
        assert server.port == port
        with pytest.raises(UsageError, match=f"no phone emulator-2 at the adb server on port {port}, which has: none"):
            Android("emulator-2", server, timeout=0.2)
    again = AdbServer.of_the_user()
    assert again.devices() == {}
    subprocess.run([adbutils.adb_path(), "-P", str(port), "kill-server"], check=True, capture_output=True)


@pytest.fixture
def users_server(monkeypatch, tmp_path):
    """An adb server as the user has one, on a port of ours; what stops it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    quiet = {"HOME": str(tmp_path), "ADB_MDNS": "0", "ADB_USB": "0", "ADB_EMU": "0"}
    for name, value in (quiet | {"ANDROID_ADB_SERVER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    kill = [adbutils.adb_path(), "-P", str(port), "kill-server"]
    yield AdbServer.of_the_user(), lambda: subprocess.run(kill, check=True, capture_output=True)
    monkeypatch.delenv("ADBUTILS_ADB_PATH", raising=False)
    subprocess.run(kill, capture_output=True)


def test_phones_survive_an_adb_that_kills_the_users_server_ten_times(users_server):
    server, kill = users_server
    with Phones(server.port) as phones:
        found = phones.add(LittlePhone()), phones.add(LittlePhone(), emulator=False)
        drivers = [Android(phone.serial, server, 10, phones.token_file) for phone in found]
        for number in range(10):
            kill()
            for driver in drivers:
                driver.tap(number, 1)
        for phone in found:
            assert phone.device.state.done == tuple(("tap", number, 1) for number in range(10))


def test_a_dying_server_answers_the_call_that_should_start_one(users_server, monkeypatch, tmp_path):
    server, kill = users_server
    program, count, adb = tmp_path / "adb", tmp_path / "count", adbutils.adb_path()
    program.write_text(f'#!/bin/sh\necho >>{count}\n[ $(wc -l <{count}) -lt 3 ] || exec {adb} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(program))
    kill()
    server.start()
    assert server.devices() == {} and count.read_text() == "\n\n\n"


def test_a_known_phone_whose_server_does_not_come_back_is_a_fault(users_server, monkeypatch):
    server, kill = users_server
    with Phones(server.port) as phones:
        driver = Android(phones.add(LittlePhone()).serial, server, 0.3, phones.token_file)
        kill()
        monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/true")
        with pytest.raises(EnvFault, match="no adb server on"):
            driver.tap(1, 1)
        monkeypatch.delenv("ADBUTILS_ADB_PATH")
        driver.timeout = 10
        driver.tap(1, 1)


def test_no_adb(monkeypatch, tmp_path):
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(tmp_path / "adb"))
    with pytest.raises(UsageError, match="is no program: set ADBUTILS_ADB_PATH"):
        AdbServer()
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/true")
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    with pytest.raises(UsageError, match="no adb server on 127.0.0.1:1"):
        AdbServer.of_the_user()

    def missing():
        raise adbutils.AdbError("No adb exe could be found")

    monkeypatch.setattr(adbutils, "adb_path", missing)
    with pytest.raises(UsageError, match="no adb: install"):
        AdbServer()


def test_phones_that_cannot_be_driven(server, phones, phone, network_phone, monkeypatch):
    with pytest.raises(UsageError, match="no phone emulator-2 .* which has: .*emulator-"):
        Android("emulator-2", server, timeout=0.2)
    with pytest.raises(UsageError, match="no phone 127.0.0.1:2 at"):
        Android("127.0.0.1:2", server, timeout=0.2)
    assert Android(phone.serial, server)  # sees to it that it is connected
    phone.shell.properties["sys.boot_completed"] = "0"
    with pytest.raises(UsageError, match="still booting"):
        Android(phone.serial, server, timeout=SHORT)
    monkeypatch.setattr(adbd, "FEATURES", "cmd")
    drop(server, phones, network_phone, "device")
    with pytest.raises(UsageError, match="Android 7 or later"):
        Android(network_phone.serial, server)


def test_every_message_is_one_line():
    """Of UsageError and EnvFault, as far as the source shows."""
    source = (ROOT / "common/android.py").read_text()
    assert not re.search(r"(UsageError|EnvFault|EnvHang)\([^)]*\\n", source)


# ---- tools/doctor.py ----


def test_the_doctor_finds_nothing_wrong(driver, phone, tmp_path, capsys):
    phone.device.packages.append(doctor.SETTINGS)
    args = doctor.Args(out=str(tmp_path / "found.json"), calm=True)
    doctor.treat(args, driver)
    written = json.loads((tmp_path / "found.json").read_text())
    assert [step["state"] for step in written["steps"]] == ["ok"] * len(doctor.STEPS)
    assert "everything that was tried works" in capsys.readouterr().out
    assert phone.device.state.text == doctor.TEXT and not phone.snapshots
    assert phone.shell.settings["global", "window_animation_scale"] == "0"
    assert written["raw"]["wm size"] == ["Physical size: 360x640"]


def test_the_doctor_says_what_is_wrong(driver, phone, tmp_path, capsys, monkeypatch):
    shown = phone.shell._dumpsys
    monkeypatch.setattr(phone.shell, "_dumpsys", lambda what: shown(what).replace("Awake", "Asleep"))
    phone.device.screenshot = lambda: Image.new("RGB", (180, 320))
    monkeypatch.setattr(android, "PAUSES", (0.0,))
    phone.shell.faults.stale = 2
    phone.shell.faults.refuse_snapshots = True
    with pytest.raises(SystemExit):
        doctor.treat(doctor.Args(out=str(tmp_path / "found.md")), driver)
    said = capsys.readouterr().out
    assert "does not work: awake, screenshot, size and rotation, hierarchy, snapshot; see" in said
    table = (tmp_path / "found.md").read_text()
    assert "| awake | failed |" in table and "the screen is off -> unlock the phone" in table
    assert "all black" in table and "could not get idle state" in table and "KO: A snapshot operation" in table
    assert "| start an app | skipped |" in table and "there is no app com.android.settings" in table
    with pytest.raises(UsageError, match="--out .*: No such file"):
        doctor.report(tmp_path / "no/found.md", "s", [], {})


def test_the_doctor_says_what_monkey_said(driver, phone, tmp_path, monkeypatch):
    def refuse(arguments):
        raise Failed("** SYS_KEYS has no physical keys but with factor 2.0%.\n", 251)

    phone.device.packages.append(doctor.SETTINGS)
    monkeypatch.setattr(phone.shell, "_monkey", refuse)
    monkeypatch.setattr(phone.shell, "_start", refuse)
    found = {finding.step: finding for finding in doctor.examine(driver)}
    assert found["start an app"].state == "failed" and "SYS_KEYS has no physical keys" in found["start an app"].seen


def test_the_doctor_as_a_program(server, phone, phones, tmp_path):
    home = phones.token_file.parent
    environment = dict(os.environ, ANDROID_ADB_SERVER_PORT=str(server.port), HOME=str(home), PYTHONWARNINGS="ignore")
    command = [sys.executable, ROOT / "tools/doctor.py", "--out", str(tmp_path / "doctor.md"), "--serial"]
    done = subprocess.run([*command, phone.serial], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "saved, loaded in" in (tmp_path / "doctor.md").read_text()
    done = subprocess.run([*command, "emulator-2"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: no phone emulator-2 at the adb server on port")
    assert done.stderr.count("\n") == 1


def test_the_benchmark_counts_steps():
    rate, median, own, others = benchmark.measure(lambda number: LittlePhone(), 2, 0.2)
    assert rate > 5 and 0 < median < 0.2 and own > 0 and others >= 0


async def test_the_benchmark_counts_steps_of_the_environment():
    for screenshots in (False, True):
        rate, median, own, others = await benchmark.measure_env(2, 0.5, screenshots)
        assert rate > 2 and 0 < median < 0.5 and own > 0 and others >= 0
