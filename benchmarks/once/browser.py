"""Steps and resets of the arena in Chromium: our driver, and BrowserGym on the same pages in the same run.

    python benchmarks/once/browser.py --browsergym-python .venv-browsergym/bin/python --write-docs

docs/browser.md says how to make BrowserGym's environment, what the columns mean and what each side observes. Both sides
play the oracles' moves of the same training tasks against the same server code in this process, in turns, in rounds. A
step is all that `env.step` does, until its observation is there; CPU time is that of the whole process tree.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from urllib.parse import urlsplit

import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import envs
from benchmarks.docs import write_docs
from common.errors import UsageError
from common.lm.run import run_main
from envs.arena import SITES, VERSIONS
from envs.arena.content import World
from envs.arena.server import COOKIE, Server
from tools.setup_chromium import installed

WORKER = Path(__file__).with_name("browsergym_worker.py")
DOCS = ROOT / "docs" / "browser.md"
REPLY_SECONDS = 120


@dataclass
class Args:
    browsergym_python: str = ""
    """interpreter of an environment that has browsergym-core (docs/browser.md); empty: our side alone"""
    quick: bool = False
    """one short round, within two minutes (other flags still win)"""
    slots: tuple[int, ...] = (1, 4, 16)
    """our concurrent episodes"""
    browsergym_slots: tuple[int, ...] = (1, 4)
    """BrowserGym's concurrent environments, each a process of its own"""
    rounds: int = 3
    """rounds; medians are over them"""
    tasks: int = 2
    """training tasks of a round; each slot plays each of them"""
    seed: int = 1
    """draws the tasks"""
    minutes: float = 10.0
    """after these the run stops and reports what it has"""
    write_docs: bool = False
    """put the tables into docs/browser.md"""


QUICK = dict(slots=(1, 4), browsergym_slots=(1,), rounds=1, tasks=2, minutes=2.0)


# --- CPU time ------------------------------------------------------------------------------------------------------


class ProcessTree:
    """This process and all that it starts, down to the browsers' renderers. Linux only.

    Orphans become our children (a "subreaper"), so that what a closed browser used is not lost: it stays in the zombie,
    or in the account of the parent that waited for it.
    """

    def __init__(self):
        if sys.platform != "linux":
            raise UsageError("CPU time is read from /proc: this benchmark needs Linux")
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        self._tick = os.sysconf("SC_CLK_TCK")
        self._own = 0.0  # what the reading costs

    def _members(self) -> dict[int, list[str]]:
        """Process id -> the fields of its /proc/<id>/stat that follow the name: state, parent, ..."""
        everyone, children = {}, {}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                everyone[int(name)] = fields
                children.setdefault(int(fields[1]), []).append(int(name))
        tree, frontier = {}, [os.getpid()]
        while frontier:
            pid = frontier.pop()
            tree[pid] = everyone[pid]
            frontier += children.get(pid, ())
        return tree

    def cpu(self) -> float:
        """User and system time used so far, in seconds, by the living and the dead."""
        begin = time.thread_time()
        ticks = sum(int(field) for fields in self._members().values() for field in fields[11:15])
        self._own += time.thread_time() - begin
        return ticks / self._tick - self._own

    def others(self) -> float:
        """CPU seconds that all processes of the machine but this tree have used so far."""
        fields = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:8]]
        return (sum(fields) - fields[3] - fields[4]) / self._tick - self.cpu()  # less idle and waiting for disks

    def end(self) -> None:
        """Kill what is left of the tree but this process, and wait until it is gone."""
        while others := self._members().keys() - {os.getpid()}:
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)  # at least one of them is, or is about to be, our child
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


# --- the two sides -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A way to play. `options` go to envs.make or to the worker."""

    name: str
    observes: str
    options: dict = field(hash=False)
    ours: bool = True


# In the order in which they are played: the two sides take turns.
VARIANTS = (
    Variant("CleanGUI", "text", {}),
    Variant("BrowserGym, defaults", "DOM, AX tree, PNG", {"zeroed": False}, ours=False),
    Variant("CleanGUI + screenshot", "text, PNG", {"screenshots": True}),
    Variant("BrowserGym, waits at 0", "DOM, AX tree, PNG", {"zeroed": True}, ours=False),
    Variant("CleanGUI --real-input", "text", {"real_input": True}),
    Variant("CleanGUI --real-input + screenshot", "text, PNG", {"real_input": True, "screenshots": True}),
)


@dataclass(frozen=True)
class Script:
    """A task, its moves without the closing exit, and the path of the page after the reset and after each move."""

    task: envs.Task
    moves: list
    paths: list[str]


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + ("?" + parts.query if parts.query else "")


class Ours:
    """Slots of the arena environment: one process, one Chromium, a context per slot."""

    def __init__(self, variant: Variant, slots: int):
        self.root = envs.make("arena-v1", **variant.options)
        self.envs = [self.root] + [self.root.fork() for _ in range(slots - 1)]
        self.obs = [None] * slots

    async def start(self, scripts):
        for script in scripts:  # the server builds each world once
            await self.reset(0, script.task)

    async def reset(self, slot, task):
        """(seconds, path)"""
        begin = time.perf_counter()
        self.obs[slot], _ = await self.envs[slot].reset(task)
        return time.perf_counter() - begin, path_of(self.obs[slot]["url"])

    async def step(self, slot, move):
        """(seconds, path, error). Raises LookupError if what the move acts on is not there."""
        action = self.root.resolve(move, self.obs[slot])
        begin = time.perf_counter()
        self.obs[slot], *_ = await self.envs[slot].step(action)
        return time.perf_counter() - begin, path_of(self.obs[slot]["url"]), self.obs[slot]["error"]

    async def finish(self, slot, task):
        """The closing exit with its true check: seconds. Raises RuntimeError if the task is not solved."""
        action = self.root.resolve(self.root.oracle(task)[-1], self.obs[slot])
        begin = time.perf_counter()
        _, reward, *_ = await self.envs[slot].step(action)
        if reward != 1.0:
            raise RuntimeError(f"{task.task_id}: the oracle's moves got {reward}")
        return time.perf_counter() - begin

    async def close(self):
        await self.root.close()


class Workers:
    """Processes of one BrowserGym environment each."""

    def __init__(self, slots: int, python: str, options: dict):
        self.command = [python, str(WORKER), json.dumps(options)]
        self.slots, self.workers = slots, []
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the workers)

    async def start(self, scripts):
        pipe = asyncio.subprocess.PIPE
        for _ in range(self.slots):
            self.workers.append(
                await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe, stderr=self.log)
            )

    async def _ask(self, slot, **request):
        worker = self.workers[slot]
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            line = await asyncio.wait_for(worker.stdout.readline(), REPLY_SECONDS)
        except TimeoutError:
            raise UsageError(f"BrowserGym did not answer within {REPLY_SECONDS} s") from None
        if not line:
            self.log.seek(0)
            said = self.log.read().decode(errors="replace").strip().splitlines() or ["nothing"]
            raise UsageError(f"BrowserGym's process ended; it said last: {said[-1]}")
        reply = json.loads(line)
        if "lost" in reply:
            raise LookupError(reply["lost"])
        return reply

    async def step(self, slot, move):
        reply = await self._ask(slot, do="step", move=asdict(move))
        return reply["seconds"], path_of(reply["url"]), reply["error"]

    async def close(self):
        for worker in self.workers:
            worker.stdin.close()
        for worker in self.workers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.wait(), 20)
        self.log.close()


class BrowserGym(Workers):
    """The same on pages of a server in this process."""

    def __init__(self, variant: Variant, slots: int, python: str, chromium: str):
        super().__init__(slots, python, variant.options | {"chromium": chromium})
        self.episodes = [None] * slots
        self.server = Server([site for site, _ in SITES if site.NAME in VERSIONS["arena-v1"]]).start()

    async def start(self, scripts):
        for script in scripts:
            self.server.end(self.server.new(World(script.task.seed, script.task.split)))
        await super().start(scripts)

    async def reset(self, slot, task):
        begin = time.perf_counter()
        if self.episodes[slot] is not None:
            self.server.end(self.episodes[slot])
        self.episodes[slot] = self.server.new(World(task.seed, task.split))
        made = time.perf_counter() - begin
        start_url = f"{self.server.url}/{task.site}/"
        options = {"start_url": start_url, "goal": task.instruction, "cookies": {COOKIE: self.episodes[slot]}}
        reply = await self._ask(slot, do="reset", task=options)
        return made + reply["seconds"], path_of(reply["url"])

    async def finish(self, slot, task):
        """BrowserGym's open-ended task has no check; that all moves led to the right pages was seen step by step."""

    async def close(self):
        await super().close()
        self.server.stop()


# --- measuring -----------------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """What one side did in one round. Rates and CPU are of all slots together, times are of single calls."""

    steps: int = 0
    resets: int = 0
    step_wall: float = 0.0
    reset_wall: float = 0.0
    step_cpu: float = 0.0
    reset_cpu: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    reset_seconds: list[float] = field(default_factory=list)
    exit_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # actions that were answered with an error
    astray: list[str] = field(default_factory=list)  # episodes cut short: on another page than in the first play

    def figures(self) -> dict[str, float]:
        return {
            "steps/s": self.steps / self.step_wall,
            "ms per step": 1000 * median(self.step_seconds),
            "CPU ms per step": 1000 * self.step_cpu / self.steps,
            "resets/s": self.resets / self.reset_wall,
            "ms per reset": 1000 * median(self.reset_seconds),
            "CPU ms per reset": 1000 * self.reset_cpu / self.resets,
        }


async def write_scripts(tasks) -> list[Script]:
    """Play the oracle of every task once, for the moves and the pages they lead to."""
    scripts = []
    env = envs.make("arena-v1")
    try:
        for task in tasks:
            obs, _ = await env.reset(task)
            moves, paths = env.oracle(task)[:-1], [path_of(obs["url"])]
            for move in moves:
                obs, *_ = await env.step(env.resolve(move, obs))
                paths.append(path_of(obs["url"]))
            scripts.append(Script(task, moves, paths))
    finally:
        await env.close()
    return scripts


async def measure(side, slots: int, scripts: list[Script], tree: ProcessTree) -> Cell:
    """All slots reset together and then play together, task by task: every slot has the same number of steps to do."""
    cell = Cell()

    async def play(slot, script):
        for number, move in enumerate(script.moves):
            where = f"{script.task.task_id}, action {number + 1}"
            try:
                seconds, path, error = await side.step(slot, move)
            except LookupError as error:
                cell.astray.append(f"{where}: {error}")
                return False
            cell.step_seconds.append(seconds)
            if error:  # the action may have been done all the same, as when BrowserGym's time for a click ran out
                cell.errors.append(f"{where}: {error.splitlines()[0]}")
            if path != script.paths[number + 1]:
                cell.astray.append(f"{where}: at {path}, not {script.paths[number + 1]}")
                return False
        return True

    await side.start(scripts)
    for slot in range(slots):  # warm up: contexts are made, and BrowserGym has a browser to close
        await side.reset(slot, scripts[0].task)
        with contextlib.suppress(LookupError):
            await side.step(slot, scripts[0].moves[0])
    for script in scripts:
        cpu, begin = tree.cpu(), time.perf_counter()
        for seconds, path in await asyncio.gather(*(side.reset(slot, script.task) for slot in range(slots))):
            cell.reset_seconds.append(seconds)
            if path != script.paths[0]:
                cell.astray.append(f"{script.task.task_id}, reset: at {path}, not {script.paths[0]}")
        cell.reset_wall += time.perf_counter() - begin
        cell.reset_cpu += tree.cpu() - cpu
        cpu, begin = tree.cpu(), time.perf_counter()
        arrived = await asyncio.gather(*(play(slot, script) for slot in range(slots)))
        cell.step_wall += time.perf_counter() - begin
        cell.step_cpu += tree.cpu() - cpu
        exits = await asyncio.gather(*(side.finish(slot, script.task) for slot in range(slots) if arrived[slot]))
        cell.exit_seconds += filter(None, exits)
    cell.steps, cell.resets = len(cell.step_seconds), len(cell.reset_seconds)
    return cell


def draw_tasks(count: int, seed: int):
    """Training tasks, the sites in turns, none that is over after one page."""
    rng = random.Random(seed)
    arena = envs.make("arena-v1")
    everything = arena.tasks("train")
    pools = [[task for task in everything if task.site == name and task.steps >= 3] for name in VERSIONS["arena-v1"]]
    return [rng.choice(pools[i % len(pools)]) for i in range(count)]


# --- the report ----------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head, rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def report(cells: dict, notes: list[str], variants=VARIANTS, against=(VARIANTS[0], VARIANTS[5])) -> str:
    """Markdown. `cells`: (variant, slots) -> {round: Cell}. BrowserGym's figures are divided by those of `against`: our
    default, and the one of ours that does most nearly what BrowserGym does."""
    figures = {key: {i: cell.figures() for i, cell in rounds.items()} for key, rounds in cells.items() if rounds}
    names = ["steps/s", "ms per step", "CPU ms per step", "resets/s", "ms per reset", "CPU ms per reset"]
    order = sorted(figures, key=lambda key: (not key[0].ours, variants.index(key[0]), key[1]))
    rows = [
        [variant.name, variant.observes, slots]
        + [number(median(values[name] for values in figures[variant, slots].values())) for name in names]
        for variant, slots in order
    ]
    parts = ["\n".join(f"- {note}" for note in notes), table(["", "observes", "slots", *names], rows)]
    ratios = []
    for variant, slots in order:
        for other in against:
            both = sorted(figures[variant, slots].keys() & figures.get((other, slots), {}).keys())
            if variant.ours or not both:
                continue
            row = [variant.name, other.name, slots]
            for name in ("ms per step", "CPU ms per step", "ms per reset", "CPU ms per reset"):
                values = [figures[variant, slots][i][name] / figures[other, slots][i][name] for i in both]
                spread = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
                row.append(number(median(values)) + spread)
            ratios.append(row)
    if ratios:
        head = ["", "divided by", "slots", "time per step", "CPU per step", "time per reset", "CPU per reset"]
        parts.append(table(head, ratios))
    return "\n\n".join(parts)


def machine(args: Args, chromium: str) -> list[str]:
    """What the figures depend on, as lines."""
    said = subprocess.run([chromium, "--version"], capture_output=True, text=True).stdout.strip()
    versions = f"{said} ({Path(chromium).name}); Playwright {version('playwright')}"
    if args.browsergym_python:
        code = "import importlib.metadata as m; print(m.version('browsergym-core'), m.version('playwright'))"
        ran = subprocess.run([args.browsergym_python, "-c", code], capture_output=True, text=True)
        if ran.returncode:
            raise UsageError(f"--browsergym-python {args.browsergym_python} has no browsergym-core (docs/browser.md)")
        versions += "; browsergym-core {} with Playwright {}".format(*ran.stdout.split())
    return [f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}, {platform.system()}", versions]


def went_wrong(cells: dict) -> list[str]:
    """A line for each row that had errors or lost its way; one line if none had."""
    lines = []
    for (variant, slots), rounds in cells.items():
        errors = sum(len(cell.errors) for cell in rounds.values())
        astray = sum(len(cell.astray) for cell in rounds.values())
        steps = sum(cell.steps for cell in rounds.values())
        if errors or astray:
            lines.append(f"{variant.name}, slots {slots}: {errors} errors in {steps} steps, {astray} episodes astray")
    return lines or ["no action was answered with an error, and no episode went astray"]


async def play_rounds(args, chromium, scripts, cells, tree, sides=(Ours, BrowserGym)) -> None:
    """Fill `cells`; every second round goes through them backwards. A round takes the next `args.tasks` scripts."""
    for i in range(args.rounds):
        for variant, slots in list(cells)[:: 1 if i % 2 == 0 else -1]:
            if variant.ours:
                side = sides[0](variant, slots)
            else:
                side = sides[1](variant, slots, args.browsergym_python, chromium)
            try:
                cell = await measure(side, slots, scripts[i * args.tasks : (i + 1) * args.tasks], tree)
            finally:
                await side.close()
            cells[variant, slots][i] = cell
            shown = ", ".join(f"{number(value)} {name}" for name, value in cell.figures().items())
            lines = [f"round {i + 1}, {variant.name}, slots {slots}: {shown}", *cell.errors, *cell.astray]
            print("\n  ".join(lines), file=sys.stderr, flush=True)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    if args.quick:
        args = tyro.cli(Args, description=__doc__, default=replace(Args(), **QUICK))
    if args.browsergym_python and not Path(args.browsergym_python).is_file():
        raise UsageError(f"--browsergym-python {args.browsergym_python}: no such file (docs/browser.md makes it)")
    if min(args.rounds, args.tasks, *args.slots, *args.browsergym_slots) < 1:
        raise UsageError("--rounds, --tasks and --slots start at 1")
    chromium = installed()
    if chromium is None:
        raise UsageError("no Chromium found: python tools/setup_chromium.py gets one")
    os.environ["CHROMIUM"] = chromium  # the same one for both sides
    notes = machine(args, chromium)
    theirs = args.browsergym_slots if args.browsergym_python else ()
    plan = [
        (variant, slots)
        for slots in sorted({*args.slots, *theirs})
        for variant in VARIANTS
        if slots in (args.slots if variant.ours else theirs)
    ]
    cells, scripts, tree, cut = {key: {} for key in plan}, [], ProcessTree(), ""
    begin, load, others = time.monotonic(), [os.getloadavg()[0]], tree.others()

    async def run():
        async with asyncio.timeout(60 * args.minutes):
            scripts.extend(await write_scripts(draw_tasks(args.rounds * args.tasks, args.seed)))
            await play_rounds(args, chromium, scripts, cells, tree)

    try:
        asyncio.run(run())
    except TimeoutError:
        cut = f"; cut short after {args.minutes:g} minutes: not every row has all rounds"
    finally:
        tree.end()
    load.append(os.getloadavg()[0])

    done = [cell for rounds in cells.values() for cell in rounds.values()]
    if not done:
        raise UsageError(f"nothing was measured within {args.minutes:g} minutes: is the machine busy?")
    lengths = fmean(len(script.moves) for script in scripts)
    exits = [1000 * seconds for cell in done for seconds in cell.exit_seconds]
    seconds = time.monotonic() - begin
    busy = (tree.others() - others) / seconds
    notes += [
        f"load average {load[0]:.1f} before and {load[1]:.1f} after the run, which took {seconds / 60:.1f} minutes; "
        f"other processes kept {busy:.1f} cores busy meanwhile",
        f"rounds: {args.rounds}, tasks in each: {args.tasks}, page actions of a task: {lengths:.1f} (mean){cut}",
        *went_wrong(cells),
        *([f"our closing exit with its true check, in no row: {number(median(exits))} ms"] if exits else []),
    ]
    text = report(cells, notes)
    print(text)
    if args.write_docs:
        if not all(cells.values()):
            raise UsageError("docs/browser.md is left as it was: some rows have no figures yet (raise --minutes)")
        write_docs(DOCS, "browser", text)


if __name__ == "__main__":
    run_main(main)
