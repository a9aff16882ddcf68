"""Simulated phones seen by a real adb server: through the adb program, through adbutils, and the shell by itself."""

import asyncio
import io
import shlex
import socket
import struct
import subprocess
import threading
import time

import adbutils
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from little_phone import PACKAGES, LittlePhone
from PIL import Image

from common.android import AdbServer
from envs.phone import adbd
from envs.phone.adbd import Phones
from envs.phone.shell import EPOCH, Shell, png, split

DATE_REFUSED = "255\n255\n255\nThu Jan  1 00:00:00 GMT 2026\n"
AM_STARTED = "Starting: Intent { cmp=com.example.shop/.Shop }\nStarting: Intent { cmp=a/.B }\n1\n"
SEPARATORS = st.sampled_from([";", "&&", "||", "\n"])


@pytest.fixture(scope="module")
def server():
    with AdbServer() as server:
        yield server


@pytest.fixture
def phones(server):
    with Phones(server.port) as phones:
        yield phones


@pytest.fixture(params=["emulator", "network"])
def phone(server, phones, request):
    phone = phones.add(LittlePhone(), emulator=request.param == "emulator")
    server.client.wait_for(phone.serial, timeout=5)
    return phone


def adb(server, phones, *words, stderr=subprocess.PIPE):
    """The adb program's exit code, stdout and stderr."""
    environment = {"HOME": str(phones.token_file.parent)}
    command = [adbutils.adb_path(), "-P", str(server.port), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, timeout=10)
    return done.returncode, done.stdout, done.stderr


def shell(command, device=None):
    """What a shell by itself prints: (stdout, stderr, exit code)."""
    out, err, code = asyncio.run(Shell(device or LittlePhone(), "s", True).run(command))
    return out.decode(), err.decode(), code


# ---- the adb program ----


def test_the_adb_program_takes_it_for_a_phone(server, phones, phone, tmp_path):
    at = ("-s", phone.serial)
    _, out, _ = adb(server, phones, "devices", "-l")
    line = next(line for line in out.decode().splitlines() if line.startswith(phone.serial))
    assert line.split()[1:4] == ["device", "product:cleangui", "model:CleanGUI_Phone"]
    assert adb(server, phones, *at, "get-state")[1] == b"device\n"
    assert adb(server, phones, *at, "shell", "echo a; cat /no; false") == (
        1,
        b"a\n",
        b"cat: /no: No such file or directory\n",
    )
    assert adb(server, phones, *at, "shell", "nonsense")[::2] == (
        127,
        b"/system/bin/sh: nonsense: inaccessible or not found\n",
    )
    assert b"no interactive shell" in adb(server, phones, *at, "shell")[2]
    _, picture, _ = adb(server, phones, *at, "exec-out", "screencap -p")
    assert Image.open(io.BytesIO(picture)).size == (360, 640)
    assert adb(server, phones, *at, "reboot")[0] != 0  # a service that it does not have


def test_push_pull_and_list_of_the_adb_program(server, phones, phone, tmp_path):
    at, content = ("-s", phone.serial), bytes(range(256)) * 12_345  # more than a message, and than a chunk
    (tmp_path / "film").write_bytes(content)
    assert adb(server, phones, *at, "push", str(tmp_path / "film"), "/sdcard/Movies/film")[0] == 0
    assert phone.shell.files["/sdcard/Movies/film"][2] == content
    assert adb(server, phones, *at, "shell", "ls /sdcard")[1] == b"Movies\n"
    assert b"film" in adb(server, phones, *at, "ls", "/sdcard/Movies")[1]
    assert adb(server, phones, *at, "pull", "/sdcard/Movies/film", str(tmp_path / "back"))[0] == 0
    assert (tmp_path / "back").read_bytes() == content
    assert adb(server, phones, *at, "pull", "/sdcard", str(tmp_path / "all"))[0] == 0  # a folder with folders
    assert (tmp_path / "all/Movies/film").read_bytes() == content
    code, out, err = adb(server, phones, *at, "pull", "/no", str(tmp_path))
    assert code == 1 and b"No such file" in out + err
    assert adb(server, phones, *at, "shell", "rm -r /sdcard/Movies; ls /sdcard")[:2] == (0, b"")


def test_console_through_the_adb_program(server, phones):
    phone = phones.add(LittlePhone())
    server.client.wait_for(phone.serial, timeout=5)

    def console(*words):
        return adb(server, phones, "-s", phone.serial, "emu", *words)[1].decode().replace("\r", "")

    assert console("avd", "name") == "cleangui\nOK\n"
    assert console("ping") == "I am alive!\nOK\n"
    assert console("avd", "snapshot", "save", "one") == "OK\n"
    phone.device.tap(1, 2)
    assert console("avd", "snapshot", "list").splitlines()[2].split()[:2] == ["--", "one"]
    assert console("avd", "snapshot", "load", "two").startswith("KO: Device 'cache' does not have the requested")
    assert phone.device.state.done
    assert console("avd", "snapshot", "load", "one") == "OK\n"
    assert not phone.device.state.done
    assert console("avd", "snapshot", "delete", "one") == "OK\n" and not phone.snapshots
    assert console("avd", "nonsense") == "KO: bad sub-command\n"
    assert console("kill").startswith("OK: killing emulator")
    server.client.wait_for(phone.serial, state="disconnect", timeout=5)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", phone.port), 1)


def test_the_adb_program_without_the_token_ends(server, phones, tmp_path):
    phone = phones.add(LittlePhone())
    server.client.wait_for(phone.serial, timeout=5)
    command = [adbutils.adb_path(), "-P", str(server.port), "-s", phone.serial, "emu", "avd", "snapshot", "save", "x"]
    done = subprocess.run(command, capture_output=True, env={"HOME": str(tmp_path)}, timeout=10)
    assert b"KO: unknown command" in done.stdout and not phone.snapshots


@pytest.mark.parametrize("said, reply", [("quit", ""), ("exit", ""), ("ping", "I am alive!"), ("help", "commands:")])
def test_what_the_console_answers_without_its_token(phones, said, reply):
    phone = phones.add(LittlePhone())
    with socket.create_connection(("127.0.0.1", phone.port - 1), 5) as console:
        console.sendall(f"{said}\nquit\n".encode())
        with console.makefile() as lines:
            heard = lines.read()  # until the console closes the connection
    assert reply in heard and "KO" not in heard


def test_the_console_wants_its_token(phones):
    phone = phones.add(LittlePhone())
    with socket.create_connection(("127.0.0.1", phone.port - 1), 5) as console:
        lines = console.makefile("rw", newline="\n")
        while lines.readline() != "OK\r\n":
            pass
        for said, reply in (
            ("avd snapshot save x", "KO: unknown command"),
            ("auth wrong", "KO: authentication token does not match"),
            ("avd name", "KO: unknown command"),
        ):
            lines.write(said + "\n")
            lines.flush()
            assert lines.readline().startswith(reply)
    assert not phone.snapshots


def test_everything_listens_on_loopback_only(server, phones):
    import psutil

    phones.add(LittlePhone())
    here = psutil.Process()
    # other tests of this process may have Ray and browsers running
    mine = [here] + [child for child in here.children(recursive=True) if "adb" in child.name()]
    listening = [c for p in mine for c in p.net_connections() if c.status == "LISTEN"]
    assert len(listening) >= 3  # the adb server, the console, the phone
    assert {connection.laddr.ip for connection in listening} <= {"127.0.0.1", "::1"}


# ---- adbutils ----


def test_adbutils_takes_it_for_a_phone(server, phones, phone, tmp_path):
    device = server.client.device(phone.serial)
    little = phone.device
    device.click(10, 20)
    device.click(0.5, 0.5)  # percent
    device.swipe(10, 20, 10, 120, 0.5)
    device.swipe(10, 20, 12, 20, 1.0)
    device.swipe(10, 20, 12, 20, 0.1)
    device.drag(1, 2, 100, 2, 1.5)
    device.keyevent("HOME")
    device.keyevent(66)
    assert little.state.done == (
        ("tap", 10, 20),
        ("tap", 180, 320),
        ("swipe", 10, 20, 10, 120, 0.5),
        ("long press", 10, 20, 1.0),
        ("tap", 10, 20),
        ("swipe", 1, 2, 100, 2, 1.5),
        ("key", 3),
        ("key", 66),
    )
    device.send_keys('it\'s; 50% "a"%sb && $?')
    assert little.state.text == '\nit\'s; 50% "a" b && $?'
    assert device.screenshot(error_ok=False).size == (360, 640)
    assert "it's; 50%" in device.dump_hierarchy().replace("&apos;", "'").replace("&quot;", '"')
    assert tuple(device.window_size()) == (360, 640) and device.rotation() == 0
    assert device.list_packages() == PACKAGES
    device.app_start(PACKAGES[1])
    assert (device.app_current().package, device.app_current().activity) == (PACKAGES[1], PACKAGES[1] + ".Notes")
    device.app_start(PACKAGES[2], ".Shop")
    assert little.state.app == PACKAGES[2]
    device.app_stop(PACKAGES[2])
    device.app_clear(PACKAGES[1])
    assert little.state.text == "" and little.state.done[-2:] == (("stop", PACKAGES[2]), ("stop", PACKAGES[1]))
    device.brightness_value = 7
    assert device.brightness_value == 7
    assert device.getprop("ro.product.model") == "CleanGUI_Phone" and device.is_screen_on()
    for v2 in (False, True):
        done = device.shell2("echo out; false", v2=v2)
        assert (done.returncode, done.output) == (1, "out\n")
        done = device.shell2("ls /nope", v2=v2)
        assert (done.returncode, done.output) == (1, "ls: /nope: No such file or directory\n")
    # in the order of time, also in one pipe
    both = "echo a; ls /nope; echo b; nonsense"
    said = "a\nls: /nope: No such file or directory\nb\n/system/bin/sh: nonsense: inaccessible or not found"
    assert device.shell(both) == said
    done = adb(server, phones, "-s", phone.serial, "shell", f"{both}", stderr=subprocess.STDOUT)
    assert done == (127, f"{said}\n".encode(), None)
    v2 = device.shell2(both, v2=True)
    assert (v2.stdout, v2.returncode) == ("a\nb\n", 127) and "nonsense" in v2.stderr
    assert device.shell("input tap inf 5").startswith("Error: Invalid arguments")
    assert device.shell("uiautomator dump /dev/tty").startswith("<?xml")
    device.sync.push(b"hello", "/sdcard/a", 0o600)
    assert device.sync.read_text("/sdcard/a") == "hello"
    assert [info.path for info in device.sync.list("/sdcard")] == ["a"]
    assert device.sync.stat("/sdcard/a").size == 5 and not device.sync.exists("/sdcard/b")
    device.remove("/sdcard/a")
    assert not phone.shell.files.get("/sdcard/a")


def test_a_phone_held_across(server, phones):
    phone = phones.add(LittlePhone((640, 360)))
    server.client.wait_for(phone.serial, timeout=5)
    device = server.client.device(phone.serial)
    assert tuple(device.window_size()) == (640, 360) and device.rotation() == 1
    assert device.screenshot(error_ok=False).size == (640, 360)


def test_many_phones_of_one_server(server, phones):
    many = [phones.add(LittlePhone(), emulator=bool(number % 2)) for number in range(12)]
    for number, phone in enumerate(many):
        server.client.wait_for(phone.serial, timeout=5)
        server.client.device(phone.serial).click(number, number)
    assert [phone.device.state.done for phone in many] == [(("tap", number, number),) for number in range(12)]


def test_a_phone_that_is_switched_off(server, phones):
    phone = phones.add(LittlePhone())
    server.client.wait_for(phone.serial, timeout=5)
    phones.remove(phone)
    server.client.wait_for(phone.serial, state="disconnect", timeout=5)


def test_phones_can_be_closed_at_any_moment(server, capfd):
    for number in range(40):
        phones = Phones(server.port)
        phones.add(LittlePhone(), emulator=bool(number % 2)).shell.faults.hang = number % 3 == 0
        time.sleep(number % 8 * 0.002)
        closer = threading.Thread(target=phones.close, daemon=True)
        closer.start()
        closer.join(5)
        assert not closer.is_alive()
    assert capfd.readouterr().err == ""


def test_a_bug_of_the_device_ends_the_command(server, phones, capfd):
    phone = phones.add(LittlePhone())
    server.client.wait_for(phone.serial, timeout=5)
    phone.device.tap = lambda x, y: 1 / 0
    assert server.client.device(phone.serial).shell("input tap 1 2", timeout=5) == ""
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_garbage_ends_the_connection_and_nothing_else(server, phone):
    with socket.create_connection(("127.0.0.1", phone.port), 5) as intruder:
        intruder.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert intruder.recv(100) == b""
    assert server.client.device(phone.serial).shell("echo a", timeout=5) == "a"


@pytest.mark.parametrize("version", [0x01000000, 0x01000001])
def test_messages_are_those_of_the_protocol(phone, version):
    """An adb server of our own, which takes small messages: one is under way at a time, older ones want checksums."""
    with socket.create_connection(("127.0.0.1", phone.port), 5) as peer:
        stream = peer.makefile("rwb")

        def send(command, first, second, data=b""):
            header = struct.pack("<6I", command, first, second, len(data), sum(data), command ^ 0xFFFFFFFF)
            stream.write(header + data)
            stream.flush()

        def receive():
            command, first, second, length, checksum, magic = struct.unpack("<6I", stream.read(24))
            data = stream.read(length)
            assert magic == command ^ 0xFFFFFFFF and checksum == (sum(data) if version < adbd.VERSION else 0)
            return command, first, second, data

        send(adbd.CNXN, version, 100, b"host::")
        command, first, second, data = receive()
        assert (command, first, second) == (adbd.CNXN, version, adbd.MAX_PAYLOAD) and data.startswith(b"device::")
        send(adbd.OPEN, 7, 0, b"exec:screencap -p\0")
        command, number, seven, _ = receive()
        assert (command, seven) == (adbd.OKAY, 7)
        picture = b""
        while True:
            command, first, second, data = receive()
            assert (first, second) == (number, 7) and len(data) <= 100
            if command == adbd.CLSE:
                break
            picture += data
            peer.settimeout(0.003)
            with pytest.raises(TimeoutError):
                peer.recv(1)
            peer.settimeout(5)
            send(adbd.OKAY, 7, number)
        assert picture == png(phone.device.screenshot())
        send(adbd.OPEN, 8, 0, b"framebuffer:\0")
        assert receive()[:3] == (adbd.CLSE, 0, 8)


# ---- the shell ----


@pytest.mark.parametrize(
    "command, printed",
    [
        ("echo a  b", "a b\n"),
        ("echo 'a  b' \"c  d\" e\\ f", "a  b c  d e f\n"),
        ("echo a;echo b&&echo c||echo d", "a\nb\nc\n"),
        ("false && echo a; echo b", "b\n"),
        ("false || echo a && echo b", "a\nb\n"),
        ("true || echo a && echo b", "b\n"),
        ("false; echo $?", "1\n"),
        ("false; echo \"$?\" '$?' \\$? a$?b", "1 $? $? a1b\n"),
        ("nonsense; echo X4EXIT:$?", "X4EXIT:127\n"),
        ("echo a # comment; echo b", "a\n"),
        ("echo a#b '#c' \\#", "a#b #c #\n"),
        ("echo a \\\n b\necho c", "a b\nc\n"),
        ("echo '' \"\" x", "  x\n"),
        ('echo "a\\b \\" \\\\ \\$x"', 'a\b " \\ $x\n'),
        ("echo -n a; echo -E 'b\\n'; echo -ne 'c\\td'; echo -- -n; echo -x", "ab\\n\nc\td-- -n\n-x\n"),
        ("echo 'a\\n\\\\n\\q\\'; echo 'a\\0101'; echo $?", "a\n\\n\\q\\\n255\n"),
        ("echo 5$ '$HOME'", "5$ $HOME\n"),
        ("\n\n echo a \n", "a\n"),
        ("rm -f /x; echo $?; rm /x; echo $?", "0\n1\n"),
        ("getprop debug.a; setprop debug.a b; getprop debug.a; getprop none default", "\nb\ndefault\n"),
        ("setprop ro.serialno x; echo $?; getprop ro.serialno", "1\ns\n"),
        ("date +%s; sleep 1.5; sleep 2; date +%s", f"{EPOCH}\n{EPOCH + 3}\n"),
        ("sleep 1.25; date -u +%s.%N%%N", f"{EPOCH + 1}.250000000%N\n"),
        ("date -s 20300101; echo $?; date 010100002030; echo $?", 2 * "Thu Jan  1 00:00:00 GMT 2026\n1\n"),
        ("date +%3N; echo $?; sleep inf; echo $?; sleep 1e99; echo $?; date", DATE_REFUSED),
        ("settings get system a; settings put system a b; settings get system a", "null\nb\n"),
        ("monkey -p nothing -c x 1; echo $?", "252\n"),
        ("input keyevent NONSENSE; echo $?; input tap 1; echo $?; input; echo $?", "255\n255\n255\n"),
        ("pm list packages notes", "package:com.example.notes\n"),
        ("pm list packages -3 -f shop", "package:/data/app/com.example.shop/base.apk=com.example.shop\n"),
        ("cmd package list packages -s; pm list packages -d; pm list packages -i; echo $?", "255\n"),
        ("pm path com.example.shop", "package:/data/app/com.example.shop/base.apk\n"),
        ("pm path none; echo $?; cmd none; echo $?", "1\n127\n"),
        (
            "cmd package resolve-activity --brief -c android.intent.category.LAUNCHER com.example.shop",
            "priority=0 preferredOrder=0 match=0x108000 isDefault=true\ncom.example.shop/.Shop\n",
        ),
        ("pm resolve-activity --components -c android.intent.category.HOME", "com.example.home/.Home\n"),
        ("pm resolve-activity --brief -c android.intent.category.LAUNCHER none", "No activity found\n"),
        ("am start -n com.example.shop/.Shop; am start a/.B; echo $?", AM_STARTED),
        ("uiautomator dump /dev/tty", LittlePhone().hierarchy() + "UI hierchary dumped to: /dev/tty\n"),
        ("uiautomator dump /dev/null; ls /dev", "UI hierchary dumped to: /dev/null\n"),
    ],
)
def test_shell(command, printed):
    assert shell(command)[0] == printed


@pytest.mark.parametrize(
    "command",
    [
        "echo 'a",
        'echo "a',
        "echo a | cat",
        "echo > a",
        "a &",
        "echo $HOME",
        'echo "${a}"',
        "echo `a`",
        "$(a)",
        ";",
        "a;;b",
    ]
    + ["a && && b", "echo a &&", "(echo a)", "echo a\\"],
)
def test_what_the_shell_does_not_know_is_an_error_and_does_nothing(command):
    device = LittlePhone()
    out, err, code = shell(f"input tap 1 1; {command}", device)
    assert (out, code) == ("", 1) and err.startswith("/system/bin/sh: ")
    assert device.state.done == ()


@pytest.mark.parametrize("number", ["inf", "nan", "Infinity", "1e999", "1_0", "0x10", "", "١", "9" * 400])
def test_what_is_no_number_is_an_invalid_argument(number):
    device = LittlePhone()
    for command in (f"input tap '{number}' 5", f"input swipe 1 1 5 5 '{number}'", f"input keyevent '{number}'"):
        out, err, code = shell(command, device)
        assert (out, code) == ("", 255) and err.startswith("Error: Invalid arguments for command: ")
    assert device.state.done == ()


@pytest.mark.parametrize(
    "command",
    ["monkey -p com.example.shop -v 1", "monkey -p com.example.shop 5", "monkey 1", "ls -l", "cat -n /x", "rm -i /x"]
    + ["am start -a android.intent.action.VIEW -d http://a", "am start -W -n com.example.shop/.Shop", "getprop -T"]
    + ["am start -n com.example.shop/.Cart", "dumpsys battery", "uiautomator dump --windows /x"]
    + ["uiautomator events", "input keyevent --longpress 3", "input motionevent DOWN 1 1", "input -d 1 tap 1 1"]
    + ["pm resolve-activity com.example.shop", "pm list features", "wm size 100x100", "settings list global"],
)
def test_what_is_not_simulated_says_so_and_does_nothing(command):
    device = LittlePhone()
    before = device.state
    out, err, code = shell(command, device)
    assert (out, code) == ("", 255) and err.endswith(" is not simulated\n") and device.state == before


def test_two_taps_at_one_place_are_a_double_tap():
    device = LittlePhone()
    shell("input tap 5 6 && input tap 5 6", device)
    shell("input tap 5 6; input tap 7 6", device)
    shell("input tap 5 6 || input tap 5 6", device)
    assert [done[0] for done in device.state.done] == ["double tap", "tap", "tap", "tap"]


@given(
    st.lists(st.tuples(st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1), SEPARATORS), min_size=1)
)
@example([(["a", ""], "&&"), ([";"], "||"), (["#", "ä 😀\n'\""], ";")])
def test_split_is_the_opposite_of_quoting(commands):
    line = " ".join(f"{shlex.join(words)} {operator}" for words, operator in commands)
    line = line.rsplit(commands[-1][1], 1)[0]
    found = split(line)
    assert [words for _, words in found] == [words for words, _ in commands]
    assert [operator for operator, _ in found[1:]] == [operator.replace("\n", ";") for _, operator in commands[:-1]]


@given(st.text("ab'\"\\ #\t\n-%", max_size=12))
@settings(max_examples=100, deadline=None)
def test_words_are_those_of_a_real_shell(line):
    script = """eval "set -- $1" && printf '%s\\0' "$@" """
    done = subprocess.run(["sh", "-c", script, "sh", line], capture_output=True)
    try:
        found = split(f"x {line}")
    except ValueError:
        assert done.returncode or line.endswith("\\")
        return
    if len(found) == 1:
        words = found[0][1][1:]
        assert (done.returncode, done.stdout) == (0, b"".join(word.encode() + b"\0" for word in words or [""]))


def test_png_is_the_picture():
    picture = Image.effect_noise((37, 21), 90).convert("RGB")
    with Image.open(io.BytesIO(png(picture))) as read:
        assert (read.mode, read.size, read.tobytes()) == ("RGB", (37, 21), picture.tobytes())


def test_a_picture_is_encoded_once(monkeypatch):
    device, encoded = LittlePhone(), []
    picture = device.screenshot()
    device.screenshot = lambda: picture
    monkeypatch.setattr("envs.phone.shell.png", lambda image: encoded.append(image) or png(image))
    asyncio.run(Shell(device, "s", True).run("screencap -p; input tap 1 1; screencap -p"))
    assert encoded == [picture]
