"""The project's scripts, run as `python webrl.py ...` runs them, in processes that need not import torch first.

Each is forked from a server process that has the libraries imported and has used none of them; what `python` would set
up for a script (arguments, directory, environment, standard output and errors) is set up anew. That saves 5 to 8
seconds of imports a run. Where the start itself is tested (signals, other launchers) tests use `subprocess`.
"""

import atexit
import contextlib
import multiprocessing
import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from common.lm.cluster import ATTEMPTS

ROOT = Path(__file__).resolve().parent.parent
# ends a command when this process does, however that happens, and ends with the command
KEEPER = 'exec 3<&0; "$@" </dev/null 3<&- & node=$!; { read _ <&3; kill $node; } >/dev/null 2>&1 & wait $node'
RAY = str(Path(sys.executable).with_name("ray"))
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    """tests.scripts common.lm.llm common.lm.run common.lm.rollout transformers.models.llama.modeling_llama peft
    accelerate envs.arena tools.plot matplotlib.pyplot matplotlib.backends.backend_agg scipy.stats tyro""".split()
)


class Script:
    """`python argv...` in a folder, with `input` to read; `argv` may be "-c", code, arguments."""

    def __init__(self, argv, env=None, input="", cwd=ROOT):
        self.argv, self._files = [str(part) for part in argv], [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self._files[0].write(input.encode())
        self._files[0].flush()
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files]
        env = dict(os.environ if env is None else env)
        self._process = _FORKS.Process(target=_main, args=(self.argv, env, str(cwd), *paths))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        """None while it runs; minus the signal's number if one ended it."""
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def kill(self):
        self._process.kill()

    def lines(self):
        """The lines of its output as they come, to its end."""
        with open(self._files[1].fileno(), "rb", closefd=False) as output:
            place, ended = 0, False
            while not ended:
                ended = self.returncode is not None  # before the last look
                output.seek(place)
                while (line := output.readline()).endswith(b"\n"):
                    place = output.tell()
                    yield line.decode()
                self._process.join(0.05)

    def communicate(self, timeout=300):
        """Its output and errors, once it has ended. Where it does not, it is killed: subprocess.TimeoutExpired."""
        self._process.join(timeout)
        late = self.returncode is None
        if late:
            self.kill()
            self._process.join()
        said = [_read(file) for file in self._files][1:]
        if late:
            raise subprocess.TimeoutExpired(self.argv, timeout, *said)
        return tuple(said)


def run_script(argv, env=None, input="", timeout=300, cwd=ROOT):
    """A script to its end, as subprocess.run(..., capture_output=True, text=True)."""
    script = Script(argv, env, input, cwd)
    output, errors = script.communicate(timeout)
    return subprocess.CompletedProcess(script.argv, script.returncode, output, errors)


def run_two(argv, env=None, timeout=300):
    """A script as `torchrun --nproc_per_node 2` runs it, in two processes; as `run_script` of the first one. Where the
    launcher itself is not what is tested: it would import everything thrice."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    place |= os.environ if env is None else env
    first, second = (Script(argv, place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2))
    output, errors = first.communicate(timeout)
    if first.returncode:
        second.kill()  # it may wait for the first one
    second_errors = second.communicate(timeout)[1]
    return subprocess.CompletedProcess(
        first.argv, first.returncode or second.returncode, output, errors + second_errors
    )


@contextlib.contextmanager
def ray_nodes(*cpus):
    """A Ray cluster of nodes with so many CPUs each, as `ray start` makes them on machines: (address, processes)."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    place, nodes = ["--head", "--port", str(port), "--include-dashboard=false"], []
    try:
        for count in cpus:
            said = _start_node(nodes, *place, "--num-cpus", str(count))
            if len(nodes) == 1:
                address = f"{re.search('Local node IP: (.*)', said)[1]}:{port}"
                place = ["--address", address]
        yield address, nodes
    finally:
        for node in nodes:
            for process in [*psutil.Process(node.pid).children(True), node]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            node.communicate()


def _start_node(nodes, *flags):
    """One more process of `ray start`, and what it said. A busy machine takes longer than its 30 seconds: once more."""
    command = ["sh", "-c", KEEPER, "sh", RAY, "start", *flags, "--block"]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for _ in range(ATTEMPTS):
        node, said = subprocess.Popen(command, **pipes), ""
        for line in node.stdout:
            said += line
            if "runtime started" in line:
                nodes.append(node)
                return said
        node.communicate()
    raise AssertionError(said)


def _read(file):
    with file:
        file.seek(0)
        return file.read().decode()


def _main(argv, env, cwd, *paths):
    for number, path in enumerate(paths):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    try:
        if argv[0] == "-c":
            sys.argv, sys.path[0] = ["-c", *argv[2:]], ""
            exec(argv[1], {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = argv, str(Path(cwd, argv[0]).parent)
            runpy.run_path(argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a forked process leaves without
