"""webrl.py for two thousand episodes while the world breaks: what a long run has to live with, in a quarter of an hour.

    python benchmarks/once/soak.py        # 12 minutes on two cores, twice that on a busy machine

Chromium is killed every few minutes; the sites answer late, with errors 500 and with pages that break off in the
middle; the judge, a server, does not answer now and then. Reported at the end: episodes, faults by kind, memory of the
whole process tree over the run (the first fifth is its warm-up), the longest time without progress, and whether any
stored episode shows a trace of a fault. Exit code 1 if one does, if memory grew by more than a tenth, or if nothing
moved for long.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

import psutil
import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import webrl
from common.lm import checkpoint, learn, rollout
from common.lm.args import values_of
from common.lm.run import run_main
from common.replay import TrajectoryStore
from envs.arena import server

MARK = "soak-fault"  # stands on every page that is broken on purpose: no stored episode may show it
BROKEN = f"<html><title>{MARK}</title><body><h1>{MARK}</h1>".encode()


@dataclass
class Args:
    model: str = "assets/tiny"
    """a run's folder (the actor of its last checkpoint) or a model"""
    phases: int = 8
    """phases of the run"""
    instructions: int = 225
    """episodes of each phase; with the start-up and the evaluations about 250"""
    kill_seconds: float = 150.0
    """time between two kills of Chromium"""
    late: float = 0.01
    """share of the sites' answers that come up to two seconds late"""
    errors: float = 0.001
    """share that are errors 500"""
    halves: float = 0.001
    """share of pages that break off in the middle"""
    silent: float = 0.05
    """share of the judge's answers that never come"""
    neither: int = 50
    """every so many answers of the judge one is neither YES nor NO; 0: none"""
    stall_seconds: float = 180.0
    """longest time without a finished episode or an update"""
    runs_dir: str = "runs/soak"
    """where the run's folder is made"""
    seed: int = 1
    """of the run and of what breaks"""


def unreliable(app, args, counts):
    """The sites' ASGI app with delays, errors and pages that break off."""
    rng = random.Random(args.seed)

    async def wrapped(scope, receive, send):
        if scope["type"] != "http":
            return await app(scope, receive, send)
        draw = rng.random()
        if draw < args.errors:
            counts["error 500"] += 1
            await send({"type": "http.response.start", "status": 500, "headers": [(b"content-type", b"text/html")]})
            return await send({"type": "http.response.body", "body": BROKEN})
        if draw < args.errors + args.halves:
            counts["half a page"] += 1
            headers = [(b"content-type", b"text/html"), (b"content-length", b"100000")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": BROKEN, "more_body": True})
            raise ConnectionError("broken off on purpose")
        if draw < args.errors + args.halves + args.late:
            counts["late"] += 1
            await asyncio.sleep(2 * rng.random())
        return await app(scope, receive, send)

    return wrapped


REPLY_SECONDS = 2.0  # of the judge


def judge_server(args, counts):
    """A served judge that says YES to every second episode, and nothing now and then: its URL."""
    rng = random.Random(args.seed + 1)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.reply({"object": "list", "data": [{"id": "judge", "object": "model", "created": 0, "owned_by": "x"}]})

        def do_POST(self):
            prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["prompt"]
            if rng.random() < args.silent:
                counts["judge silent"] += 1
                time.sleep(2 * REPLY_SECONDS)  # the caller has given up by then
                return
            counts["judge asked"] += 1
            said = {"YES": -0.1 if len(prompt) % 2 else -3.0, "NO": -1.0}
            if args.neither and counts["judge asked"] % args.neither == 0:
                counts["judge said neither"] += 1
                said = {"MAYBE": -0.1}
            logprobs = {"tokens": ["YES"], "token_logprobs": [-0.1], "top_logprobs": [said]}
            choice = {"index": 0, "text": "YES", "finish_reason": "length", "logprobs": logprobs}
            self.reply({"id": "1", "object": "text_completion", "created": 0, "model": "judge", "choices": [choice]})

        def reply(self, body):
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{http.server_port}/v1"


class Watcher(threading.Thread):
    """Kills Chromium at intervals, and notes memory and progress every five seconds until `end`."""

    def __init__(self, args, counts):
        super().__init__(daemon=True)
        self.args, self.counts, self.ended = args, counts, threading.Event()
        self.memory, self.stalled, self.progress = [], 0.0, 0

    def run(self):
        me, killed, moved, seen = psutil.Process(), time.monotonic(), time.monotonic(), -1
        while not self.ended.wait(5.0):
            tree = [me, *me.children(recursive=True)]
            if time.monotonic() - killed > self.args.kill_seconds:
                killed = time.monotonic()
                self.counts["Chromium killed"] += kill_chromium(tree)
            own, others = shared_memory(me), sum(shared_memory(process) for process in tree[1:])
            self.memory.append((own + others, own, others))
            if self.progress != seen:
                moved, seen = time.monotonic(), self.progress
            self.stalled = max(self.stalled, time.monotonic() - moved)

    def moved(self, function):
        """The function, noting that it was called."""

        def called(*args, **kwargs):
            self.progress += 1
            return function(*args, **kwargs)

        return called


def kill_chromium(processes):
    """Kill the browser process among these; how many died."""
    killed = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if any("--remote-debugging" in word for word in command) and "--type=" not in " ".join(command):
                process.kill()
                killed += 1
    return min(killed, 1)  # a shell script around the browser is no second one


def shared_memory(process):
    """The process's share of memory in bytes: what it shares counts in parts (PSS)."""
    with contextlib.suppress(psutil.Error):
        return process.memory_full_info().pss
    return 0


def traces(trajectories):
    """Stored episodes that show a fault: a page broken on purpose, an end that is none."""
    found = []
    for t in trajectories:
        pages = [step.observation for step in t.steps] + [t.final_observation]
        whole = t.ending == "exit" or len(t.steps) == t.task.max_steps
        if not whole or not t.final_observation or any(MARK in page for page in pages):
            found.append(t)
    return found


def fifths(samples):
    """Medians of the five parts of a series of bytes, in MiB."""
    bounds = [len(samples) * k // 5 for k in range(6)]
    return [median(samples[low : max(high, low + 1)]) / 2**20 for low, high in itertools.pairwise(bounds)]


def main(args):
    """The run, and the report."""
    counts = Counter()
    plain = server.Server._with_episode
    server.Server._with_episode = lambda self, app: unreliable(plain(self, app), args, counts)
    logging.disable(logging.ERROR)  # the web server's traceback for every page broken on purpose
    watcher = Watcher(args, counts)
    rollout.FaultLog.record = watcher.moved(rollout.FaultLog.record)
    learn.backward = watcher.moved(learn.backward)
    last = checkpoint.latest(args.model)
    settings = replace(
        webrl.Args(),
        **values_of(webrl.Args, "tiny")
        | dict(
            model_id=str(last.folder("actor")) if last else args.model,
            exp_name="soak",
            reply_timeout=REPLY_SECONDS,
            seed=args.seed,
            runs_dir=args.runs_dir,
            judge=judge_server(args, counts),
            num_demos=100,
            orm_data="",
            start_episodes=100,
            num_phases=args.phases,
            instructions_per_phase=args.instructions,
            actor_epochs=1,
            eval_tasks=12,
            test_tasks=24,
        ),
    )
    watcher.start()
    start = time.monotonic()
    webrl.main(settings)
    watcher.ended.set()
    watcher.join()
    run = max(Path(args.runs_dir).glob("*soak*"), key=lambda path: path.stat().st_mtime)
    episodes = list(TrajectoryStore(run / "trajectories.jsonl"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    faults = next(row["rollout/faults"] for row in reversed(rows) if "rollout/faults" in row)
    dropped = next(row["rollout/dropped"] for row in reversed(rows) if "rollout/dropped" in row)
    bad = traces(episodes)
    judged = [t for t in episodes if t.kind == "rollout"]
    unjudged = [t for t in judged if t.judged is None]
    by_fifths = [fifths(some) for some in zip(*watcher.memory, strict=True)]  # of all processes, this one, the others
    whole, own, browser = (" ".join(f"{each:.0f}" for each in some) for some in by_fifths)
    growth = by_fifths[0][4] / by_fifths[0][1] - 1
    print(
        f"\n{len(episodes)} episodes in {(time.monotonic() - start) / 60:.0f} minutes; "
        + ", ".join(f"{name} {count} times" for name, count in sorted(counts.items()))
        + f"\n{faults} faults ({faults / (len(episodes) + faults):.1%} of what was played), {dropped} tasks dropped"
        f"\nmemory in MiB, medians of the run's fifths: {whole} ({growth:+.0%} from the second to the last); this "
        f"process {own}; the browser's {browser}"
        f"\nlongest time without an episode or an update {watcher.stalled:.0f} s"
        f"\nstored episodes with a trace of a fault {len(bad)}; trained on without a verdict {len(unjudged)}"
    )
    if bad or unjudged or growth > 0.1 or watcher.stalled > args.stall_seconds:
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
