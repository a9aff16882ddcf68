"""Simulated phones for a real adb server: the device's end of the adb protocol, and the emulator's console.

    with AdbServer() as server, Phones(server.port) as phones:
        phone = phones.add(Device())
        driver = Android(phone.serial, server, token_file=phones.token_file)

A phone is attached as an emulator is (serial emulator-NNNN, with a console that saves and loads snapshots), or with
`emulator=False` as a phone on the network (`adb connect`). The server does not know the difference, nor do the adb
program and adbutils. One thread serves all phones of a `Phones`; a Device is used in that thread alone.

The protocol is in packages/modules/adb of Android's source: protocol.txt (messages and streams), docs/dev/services.md,
shell_protocol.h and SYNC.TXT. Only what is advertised in FEATURES is spoken.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import struct
import tempfile
import threading
import traceback
from pathlib import Path

from envs.phone.shell import STDERR, Shell

HOST = "127.0.0.1"
VERSION, MAX_PAYLOAD = 0x01000001, 1 << 20  # from this version on checksums are left out
FEATURES = "shell_v2,cmd,stat_v2,fixed_push_mkdir"
SYNC_CHUNK = 1 << 16
DROP_AFTER = 0.05  # seconds from the console's OK to the lost connection
KNOCK = 0.1  # seconds between two tries to be seen by the adb server
TOKEN_FILE = ".emulator_console_auth_token"
EXIT = 3  # a packet of the shell protocol, as STDOUT and STDERR are
TOKEN, PUBLIC_KEY = 1, 3  # kinds of AUTH


def _command(name):
    return int.from_bytes(name, "little")


CNXN, AUTH, OPEN, OKAY, WRTE, CLSE = (_command(name) for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"WRTE", b"CLSE"))


class Stream:
    """One of the streams that share a connection."""

    def __init__(self, connection, local, remote):
        self.connection, self.local, self.remote = connection, local, remote
        self.inbox, self.taken, self.task = asyncio.StreamReader(), asyncio.Event(), None

    async def write(self, data):
        """Send bytes; the peer allows one message at a time."""
        for start in range(0, len(data), self.connection.max_payload):
            self.taken.clear()
            part = data[start : start + self.connection.max_payload]
            self.connection.send(WRTE, self.local, self.remote, part)
            await self.taken.wait()


class Connection:
    """One connection of the adb server to a phone."""

    def __init__(self, phone, reader, writer):
        self.phone, self.reader, self.writer = phone, reader, writer
        self.streams, self.numbers = {}, itertools.count(1)
        self.max_payload, self.has_checksums, self.version = 4096, True, VERSION

    def send(self, command, first, second, data=b""):
        checksum = sum(data) & 0xFFFFFFFF if self.has_checksums else 0
        header = struct.pack("<6I", command, first, second, len(data), checksum, command ^ 0xFFFFFFFF)
        self.writer.write(header + data)

    async def serve(self):
        """Answer the server's messages until the connection ends."""
        try:
            while True:
                header = await self.reader.readexactly(24)
                command, first, second, length, _, magic = struct.unpack("<6I", header)
                if magic != command ^ 0xFFFFFFFF or length > MAX_PAYLOAD:
                    return
                data = await self.reader.readexactly(length)
                if command in (CNXN, AUTH):
                    await self._greet(command, first, second)
                else:
                    self._receive(command, first, second, data)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            for stream in self.streams.values():
                stream.task.cancel()
            self.writer.close()

    async def _greet(self, command, first, second):
        """Let the adb server in, if its keys are accepted."""
        faults = self.phone.shell.faults
        while faults.offline:  # noqa: ASYNC110  (other threads set it)
            await asyncio.sleep(0.01)
        if command == CNXN:
            self.max_payload, self.has_checksums, self.version = min(second, MAX_PAYLOAD), first < VERSION, first
        if faults.unauthorized and (command, first) != (AUTH, PUBLIC_KEY):
            self.send(AUTH, TOKEN, 0, secrets.token_bytes(20))  # for one of its keys to sign, until it has no more
            return
        while faults.unauthorized:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.send(CNXN, min(self.version, VERSION), MAX_PAYLOAD, self.phone.banner())

    def _receive(self, command, first, second, data):
        if command == OPEN:
            stream = Stream(self, next(self.numbers), first)
            service = self._service(stream, data.rstrip(b"\0").decode(errors="replace"))
            if service is None:
                self.send(CLSE, 0, first)
                return
            self.streams[stream.local] = stream
            self.send(OKAY, stream.local, first)
            stream.task = asyncio.ensure_future(self._run(stream, service))
        elif stream := self.streams.get(second):
            if command == OKAY:
                stream.taken.set()
            elif command == WRTE:
                stream.inbox.feed_data(data)
                self.send(OKAY, stream.local, stream.remote)
            elif command == CLSE:
                del self.streams[second]
                stream.task.cancel()
                self.send(CLSE, stream.local, stream.remote)

    async def _run(self, stream, service):
        try:
            await service
        except asyncio.IncompleteReadError:
            pass
        except Exception:  # of the Device: whoever waits for the answer shall not wait for ever
            traceback.print_exc()
        if self.streams.pop(stream.local, None):
            self.send(CLSE, stream.local, stream.remote)

    def _service(self, stream, name):
        """The coroutine that answers an opened service, None for one that this phone does not have."""
        kind, _, argument = name.partition(":")
        kind, *options = kind.split(",")
        if kind in ("shell", "exec"):
            return self._shell(stream, argument, "v2" in options)
        if kind == "sync":
            return self._sync(stream)
        return None

    async def _shell(self, stream, command, packets):
        shell = self.phone.shell
        await self.phone.wakes()
        if command:
            said, code = await shell.output(command)
        else:
            said, code = [(STDERR, b"this simulated phone has no interactive shell: adb shell COMMAND\n")], 1
        if shell.faults.drop:
            shell.faults.drop -= 1
            self.writer.transport.abort()
        elif packets:
            parts = *said, (EXIT, bytes([code]))
            await stream.write(b"".join(struct.pack("<BI", kind, len(part)) + part for kind, part in parts))
        else:  # one pipe for both
            await stream.write(b"".join(part for _, part in said))

    # ---- push and pull ----

    async def _sync(self, stream):
        shell = self.phone.shell
        while True:
            kind, length = struct.unpack("<4sI", await stream.inbox.readexactly(8))
            if kind == b"QUIT":
                return
            path = (await stream.inbox.readexactly(length)).decode(errors="replace")
            await self.phone.wakes()
            if kind == b"STAT":
                await stream.write(b"STAT" + struct.pack("<III", *shell.about(path)))
            elif kind in (b"STA2", b"LST2"):
                mode, size, changed = shell.about(path)
                error = 0 if mode else 2  # ENOENT
                fields = (error, 0, 0, mode, 1, 0, 0, size, changed, changed, changed)
                await stream.write(kind + struct.pack("<IQQIIIIQqqq", *fields))
            elif kind == b"LIST":
                entries = [(name.encode(), shell.about(f"{path.rstrip('/')}/{name}")) for name in shell.names(path)]
                packed = (b"DENT" + struct.pack("<IIII", *about, len(name)) + name for name, about in entries)
                await stream.write(b"".join(packed) + b"DONE" + bytes(16))
            elif kind == b"RECV":
                await self._pull(stream, path)
            elif kind == b"SEND":
                await self._push(stream, *path.rsplit(",", 1))
            else:
                return

    async def _pull(self, stream, path):
        if path not in self.phone.shell.files:
            reason = b"No such file or directory"
            await stream.write(b"FAIL" + struct.pack("<I", len(reason)) + reason)
            return
        content = self.phone.shell.files[path][2]
        parts = (content[start : start + SYNC_CHUNK] for start in range(0, len(content), SYNC_CHUNK))
        packed = b"".join(b"DATA" + struct.pack("<I", len(part)) + part for part in parts)
        await stream.write(packed + b"DONE" + bytes(4))

    async def _push(self, stream, path, mode):
        content = bytearray()
        while True:
            kind, number = struct.unpack("<4sI", await stream.inbox.readexactly(8))
            if kind == b"DONE":  # the number is the time of change
                break
            content += await stream.inbox.readexactly(number)
        self.phone.shell.files[path] = int(mode), number, bytes(content)
        await stream.write(b"OKAY" + bytes(4))


class Phone:
    """One simulated phone: `serial` is what adb calls it, `shell.faults` is what is wrong with it, `snapshots` are
    those of the console by name."""

    def __init__(self, device, emulator, adb_port, token):
        self.device, self.emulator, self.adb_port, self.token = device, emulator, adb_port, token
        self.snapshots, self.connections = {}, set()
        self.connected, self.lost = asyncio.Event(), asyncio.Event()
        self.port, self.serial, self.servers, self.knocking = 0, "", [], None

    async def open(self):
        """Listen, and see to it that the adb server knows the phone."""
        if self.emulator:
            while not self.servers:
                await self._listen_in_pair(20_000 + 2 * secrets.randbelow(6_000))  # below what systems give out
            self.serial = f"emulator-{self.port - 1}"
        else:
            self.servers = [await asyncio.start_server(self._serve, HOST, 0)]
            self.port = self.servers[0].sockets[0].getsockname()[1]
            self.serial = f"{HOST}:{self.port}"
        self.shell = Shell(self.device, self.serial, self.emulator)
        self.knocking = asyncio.ensure_future(self._knock())

    async def _listen_in_pair(self, port):
        """The console on an even port, the phone on the next one, as emulators have them."""
        with contextlib.suppress(OSError):
            console = await asyncio.start_server(self._talk, HOST, port)
            try:
                self.servers = [console, await asyncio.start_server(self._serve, HOST, port + 1)]
                self.port = port + 1
            finally:
                if not self.servers:
                    console.close()

    async def close(self):
        if self.knocking:
            self.knocking.cancel()
        for server in self.servers:
            server.close()
        self.drop()

    def drop(self):
        """Lose all connections."""
        for connection in list(self.connections):
            connection.writer.transport.abort()

    def banner(self):
        names = "ro.product.name", "ro.product.model", "ro.product.device"
        fields = [f"{name}={self.shell.properties[name]}" for name in names]
        return f"device::{';'.join(fields)};features={FEATURES}".encode()

    async def wakes(self):
        """Return when the phone does not hang."""
        while self.shell.faults.hang:  # noqa: ASYNC110  (other threads set it)
            await asyncio.sleep(0.01)

    async def _serve(self, reader, writer):
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        self.connected.set()
        with contextlib.suppress(asyncio.CancelledError):  # at the end; asyncio would print it
            await connection.serve()
        self.connections.discard(connection)
        if not self.connections:
            self.connected.clear()
            self.lost.set()

    async def _knock(self):
        """Tell the adb server of this phone while it is not connected: emulators do, and an adb server that is told of
        a phone on the network once comes back by itself."""
        call = f"host:emulator:{self.port}" if self.emulator else f"host:connect:{self.serial}"
        while True:
            # asyncio.wait_for of Python 3.11 can lose a cancellation, asyncio.timeout cannot
            with contextlib.suppress(OSError):
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(HOST, self.adb_port)
                    writer.write(f"{len(call):04x}{call}".encode())
                    await reader.read(4)
                    writer.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KNOCK):
                    await self.connected.wait()
            while self.connections:
                self.lost.clear()
                await self.lost.wait()

    # ---- the emulator's console ----

    async def _talk(self, reader, writer):
        known = "Android Console: type 'help' for a list of commands\nOK"
        ask = "Android Console: Authentication required\nAndroid Console: type 'auth <auth_token>' to authenticate\n"
        ask += f"Android Console: you can find your <auth_token> in\n'{TOKEN_FILE}'\nOK"
        trusted, reply = False, ask
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while reply is not None:
                await self.wakes()
                writer.write(f"{reply}\n".replace("\n", "\r\n").encode())
                words = (await reader.readline()).decode(errors="replace").split()
                if words[:1] == ["auth"]:
                    trusted = words[1:] == [self.token]
                    reply = known if trusted else "KO: authentication token does not match ~/" + TOKEN_FILE
                elif words and (trusted or words[0] in ("help", "ping", "quit", "exit")):
                    reply = await self._console(words)
                elif words:
                    reply = "KO: unknown command, try 'help'"
                else:
                    reply = None if reader.at_eof() else ""
        writer.close()

    async def _console(self, words):
        """The reply to a command of the console, None for the end of the conversation."""
        match words:
            case ["quit" | "exit"]:
                return None
            case ["help"]:
                lines = (f"    {name}\n" for name in ("help", "ping", "auth", "kill", "quit", "avd"))
                return f"Android console commands:\n\n{''.join(lines)}\nOK"
            case ["ping"]:
                return "I am alive!\nOK"
            case ["kill"]:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, self.close())
                return "OK: killing emulator, bye bye"
            case ["avd", "name"]:
                return "cleangui\nOK"
            case ["avd", "snapshot", "list"]:
                lines = [f"--        {name:<22} 1M 2026-01-01 09:00:00   00:00:01.000\n" for name in self.snapshots]
                head = "List of snapshots present on all disks:\nID        TAG                 VM SIZE"
                return f"{head}                DATE       VM CLOCK\n{''.join(lines)}OK" if lines else "OK"
            case ["avd", "snapshot", "save" | "load", _] if self.shell.faults.refuse_snapshots:
                return "KO: A snapshot operation for 'cleangui' is pending and timeout has expired. Exiting..."
            case ["avd", "snapshot", "save", name]:
                self.snapshots[name] = self.shell.saved()
                return "OK"
            case ["avd", "snapshot", verb, name] if verb in ("load", "delete") and name not in self.snapshots:
                return f"KO: Device 'cache' does not have the requested snapshot '{name}'"
            case ["avd", "snapshot", "delete", name]:
                del self.snapshots[name]
                return "OK"
            case ["avd", "snapshot", "load", name]:
                if not self.shell.faults.ignore_load:
                    self.shell.restore(self.snapshots[name])
                if self.shell.faults.drop_on_load:
                    asyncio.get_running_loop().call_later(DROP_AFTER, self.drop)
                return "OK"
            case ["avd", *_]:
                return "KO: bad sub-command"
        return "KO: unknown command, try 'help'"


class Phones:
    """Simulated phones of the adb server on `adb_port`, served by a thread of their own until `close`."""

    def __init__(self, adb_port):
        self.adb_port, self.phones = adb_port, []
        self._folder = tempfile.TemporaryDirectory(prefix="cleangui-phones-")
        self.token_file = Path(self._folder.name) / TOKEN_FILE  # what lets a driver into the consoles
        self.token_file.write_text(secrets.token_urlsafe(12))
        os.chmod(self.token_file, 0o600)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="phones", daemon=True)
        self._thread.start()

    def add(self, device, emulator=True):
        """A phone made of this device; adb will see it in a moment."""
        phone = Phone(device, emulator, self.adb_port, self.token_file.read_text())
        self._do(phone.open())
        self.phones.append(phone)
        return phone

    def drop(self, phone):
        """The phone's connection breaks, as when a cable is pulled for a moment."""
        self._loop.call_soon_threadsafe(phone.drop)

    def remove(self, phone):
        """Switch a phone off for good."""
        self.phones.remove(phone)
        self._do(phone.close())

    def close(self):
        if self._thread.is_alive():
            self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _close(self):
        """Close all phones, and wait for what talks to them. Most of it ends with its connection; what is just being
        accepted shows only a moment later."""
        now, quiet = asyncio.get_running_loop().time, 0
        start = now()
        while quiet < 3 and now() < start + 5:
            for phone in self.phones:
                await phone.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if now() > start + 0.3:  # not at once: asyncio prints it when a task is cancelled that has not begun
                for task in others:
                    task.cancel()
            await asyncio.wait({*others, asyncio.ensure_future(asyncio.sleep(0.001))}, timeout=0.05)
            quiet = 0 if others else quiet + 1
