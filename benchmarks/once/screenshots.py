"""What screenshots cost on their way through Ray: a store actor and names (grpo_async.py), or bytes in every call.

    python benchmarks/once/screenshots.py --write-docs        # a minute; the table of docs/grpo_async.md

Episodes are played without browser and model, so that only the pictures' way is measured: in every step an episode has
a new screenshot of 1280 by 720, asks the policy server with the last one or three, and hands its trajectory to the
learner when it ends; the learner reads every picture once. "by name" is the Store of grpo_async.py; "as bytes" passes
the pictures themselves in each call. Bytes are those of the calls' arguments and results; memory is the most shared
memory (Ray's object store) that was taken, looked at 50 times a second: let nothing else run beside it.
"""

import asyncio
import io
import itertools
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.docs import write_docs
from common.lm.run import run_main
from common.replay import image_name
from grpo_async import STORE, Store


@dataclass
class Args:
    episodes: tuple[int, ...] = (4, 16, 64)
    """concurrent episodes"""
    workers: int = 2
    """actors that play them"""
    steps: int = 10
    """steps of an episode"""
    rounds: int = 3
    """episodes one after the other"""
    history: tuple[int, ...] = (1, 3)
    """screenshots in a prompt"""
    write_docs: bool = False
    """put the table into docs/grpo_async.md"""


def draw(seed):
    """A page's screenshot: PNG bytes of 1280 by 720, with as much detail as pages have (some 100 kB)."""
    rng = random.Random(seed)
    image = Image.new("RGB", (1280, 720), "white")
    for _ in range(60):
        box = rng.randrange(1100), rng.randrange(640)
        image.paste(tuple(rng.randrange(256) for _ in range(3)), (*box, box[0] + rng.randrange(180), box[1] + 60))
    noise = Image.frombytes("RGB", (240, 120), rng.randbytes(240 * 120 * 3))
    image.paste(noise, (rng.randrange(1000), rng.randrange(560)))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


class Server:
    """Stands in for the policy: it has each prompt's pictures before it, and answers at once."""

    def __init__(self, by_name):
        import ray

        self.store, self.bytes = ray.get_actor(STORE) if by_name else None, 0

    async def complete(self, pictures):
        if self.store is not None:
            pictures = await self.store.get.remote(pictures)
        self.bytes += sum(map(len, pictures))
        return 0

    def received(self):
        return self.bytes


class Worker:
    """Plays episodes: their pictures are drawn once, before the clock starts."""

    def __init__(self, by_name, server, number):
        import ray

        self.by_name, self.server, self.store = by_name, server, ray.get_actor(STORE) if by_name else None
        self.pictures, self.number, self.count = [draw(f"{number}/{n}") for n in range(8)], number, 0

    def ready(self):
        return sum(map(len, self.pictures)) / len(self.pictures)

    async def play(self, steps, history):
        """What the learner gets: the pictures of an episode, or their names."""
        shown = []
        for _ in range(steps):
            self.count += 1
            new = self.pictures[self.count % len(self.pictures)] + self.count.to_bytes(8, "big")  # none occurs twice
            if self.by_name:
                name = image_name(new)
                await self.store.put.remote(name, new, self.number)
                new = name
            shown.append(new)
            await self.server.complete.remote(shown[-history:])
        return shown


def measure(args, episodes, history, by_name):
    """(megabytes a step through calls, peak megabytes of the object store, steps a second)."""
    import ray

    own = {"address": "local", "_node_ip_address": "127.0.0.1", "include_dashboard": False}  # never one that runs
    ray.init(num_cpus=2 + args.workers, logging_level="ERROR", **own)
    try:
        store = ray.remote(Store).options(name=STORE, num_cpus=0).remote()
        server = ray.remote(Server).options(max_concurrency=1000).remote(by_name)
        part = ray.remote(Worker).options(max_concurrency=episodes + 2)
        workers = [part.remote(by_name, server, number) for number in range(args.workers)]
        size = sum(ray.get([worker.ready.remote() for worker in workers])) / args.workers
        peak, done = [0], threading.Event()
        watch = threading.Thread(target=look, args=(peak, done))
        watch.start()
        begun = time.monotonic()
        moved = asyncio.run(collect(args, episodes, history, by_name, workers, store))
        seconds = time.monotonic() - begun
        done.set()
        watch.join()
        steps = episodes * args.rounds * args.steps
        moved += ray.get(server.received.remote()) + by_name * steps * size  # to the server; into the store
        return moved / steps / 1e6, peak[0] / 1e6, steps / seconds
    finally:
        ray.shutdown()


async def collect(args, episodes, history, by_name, workers, store):
    """The learner: every trajectory's pictures, read once. Bytes that came to it."""

    async def slot(number):
        moved = 0
        for _ in range(args.rounds):
            shown = await workers[number % len(workers)].play.remote(args.steps, history)
            moved += sum(map(len, await store.get.remote(shown) if by_name else shown))
            if by_name:
                store.drop.remote(shown)
        return moved

    return sum(await asyncio.gather(*(slot(number) for number in range(episodes))))


def look(peak, done):
    """The most shared memory, in bytes, that was taken while this ran: Ray's object store is made of it."""
    first = shared_memory()
    while not done.wait(0.02):
        peak[0] = max(peak[0], shared_memory() - first)


def shared_memory():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Shmem:"))


def main(args):
    heads = (
        "concurrent episodes",
        "pictures in a prompt",
        "way",
        "MB a step through calls",
        "most in the object store, MB",
        "steps a second",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for episodes, history in itertools.product(args.episodes, args.history):
        for by_name in (True, False):
            moved, peak, rate = measure(args, episodes, history, by_name)
            way = "by name" if by_name else "as bytes"
            lines.append(f"| {episodes} | {history} | {way} | {moved:.2f} | {peak:.0f} | {rate:,.0f} |")
            print(lines[-1], flush=True)
    if args.write_docs:
        write_docs(ROOT / "docs/grpo_async.md", "screenshots", "\n".join(lines))


if __name__ == "__main__":
    run_main(lambda: main(tyro.cli(Args, description=__doc__)))
