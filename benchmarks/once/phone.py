"""Steps per second on simulated phones, through a real adb server.

    python benchmarks/once/phone.py --write-docs

Of the driver: a step is a tap and a screenshot; each phone has a thread that taps at random places. Of the environment
"phone-adb": a step is an action, a second of the phone's time and the hierarchy, or the hierarchy and a screenshot;
each slot clicks on random elements in one event loop, and begins a task (a snapshot loaded with proof) after every 15
steps. Phones, drivers and environment share this process; the adb server is a process of its own.
"""

import asyncio
import os
import platform
import random
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import psutil
import tyro

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import envs
from benchmarks.docs import write_docs
from common.android import AdbServer, Android
from common.lm.run import run_main
from envs.phone.adbd import Phones

DOCS = ROOT / "docs/android.md"
EPISODE = 15  # steps


@dataclass
class Args:
    phones: tuple[int, ...] = (1, 8, 32)
    """numbers of phones that are used at once"""
    seconds: float = 5.0
    """how long each number is measured"""
    write_docs: bool = False
    """put the tables into docs/android.md"""


def play(driver, number, end, durations):
    """Steps on one phone until `end`; their durations go into the list."""
    draw, (width, height) = random.Random(number), driver.size
    while (start := time.perf_counter()) < end:
        driver.tap(draw.randrange(width), draw.randrange(height))
        driver.screenshot()
        durations.append(time.perf_counter() - start)


def measure(make_device, count, seconds):
    """(steps per second, median seconds of a step, CPU seconds of this process and of the adb server per step)."""
    with AdbServer() as server, Phones(server.port) as phones:
        devices = [phones.add(make_device(number)) for number in range(count)]
        drivers = [Android(phone.serial, server, token_file=phones.token_file) for phone in devices]
        for number, driver in enumerate(drivers):  # everything is loaded
            play(driver, number, time.perf_counter() + 0.05, [])
        adb = psutil.Process(server.pid).children()[0]
        durations, own, others = [], time.process_time(), sum(adb.cpu_times()[:2])
        start = time.perf_counter()
        jobs = [(driver, number, start + seconds, durations) for number, driver in enumerate(drivers)]
        threads = [threading.Thread(target=play, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = len(durations) / (time.perf_counter() - start)
        own, others = time.process_time() - own, sum(adb.cpu_times()[:2]) - others
    return rate, statistics.median(durations), own / len(durations), others / len(durations)


async def play_episodes(env, number, end, durations):
    """Steps of one slot until `end`; their durations go into the list."""
    draw, tasks = random.Random(number), env.tasks("train")
    while time.perf_counter() < end:
        obs, _ = await env.reset(draw.choice(tasks))
        for _ in range(EPISODE):
            if (start := time.perf_counter()) > end:
                break
            element = draw.choice(list(obs["boxes"]) or [""])
            obs, *_ = await env.step(f'do(action="Click", element="{element}")' if element else 'do(action="Wait")')
            durations.append(time.perf_counter() - start)


async def measure_env(count, seconds, screenshots):
    """The same as `measure`, of the environment."""
    env = envs.make("phone-adb", screenshots=screenshots)
    slots = [env, *(env.fork() for _ in range(count - 1))]
    try:
        await asyncio.gather(*(slot.reset(slot.tasks("train")[0]) for slot in slots))
        adb = psutil.Process(env._phones._server.pid).children()[0]
        durations, own, others = [], time.process_time(), sum(adb.cpu_times()[:2])
        start = time.perf_counter()
        jobs = (play_episodes(slot, number, start + seconds, durations) for number, slot in enumerate(slots))
        await asyncio.gather(*jobs)
        rate = len(durations) / (time.perf_counter() - start)
        own, others = time.process_time() - own, sum(adb.cpu_times()[:2]) - others
    finally:
        await env.close()
    return rate, statistics.median(durations), own / len(durations), others / len(durations)


def table(head, rows):
    """Lines of a table: `rows` are pairs of the first cells and what `measure` gives."""
    lines = [f"| {head} | steps/s | ms per step (median) | CPU ms per step | of it the adb server |"]
    lines.append("| --- |" + " --- |" * (head.count("|") + 4))
    for cells, (rate, median, own, others) in rows:
        parts = (f"{rate:.0f}", f"{1000 * median:.1f}", f"{1000 * (own + others):.2f}", f"{1000 * others:.2f}")
        lines.append(f"| {cells} | {' | '.join(parts)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main(args):
    from envs.phone.device import Device

    def driver():
        for count in args.phones:
            yield f"{count}", measure(Device, count, args.seconds)

    def environment():
        for count in args.phones:
            for screenshots, seen in ((False, "hierarchy"), (True, "hierarchy and picture")):
                yield f"{count} | {seen}", asyncio.run(measure_env(count, args.seconds, screenshots))

    for name, head, rows in (("phone", "phones", driver()), ("phone_env", "phones | seen", environment())):
        load = os.getloadavg()[0]
        text = table(head, rows)
        machine = f"{date.today()}, {os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
        load = f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after"
        text = f"{machine}; {load}; {args.seconds:g} s for each row\n\n{text}"
        print(f"\n{text}")
        if args.write_docs:
            write_docs(DOCS, name, text)


if __name__ == "__main__":
    run_main(main, tyro.cli(Args, description=__doc__))
