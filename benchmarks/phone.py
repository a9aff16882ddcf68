"""Steps per second on simulated phones, through a real adb server: a step is a tap and a screenshot.

    python benchmarks/phone.py [--phones 1 8 32] [--seconds 5] [--write-docs]

Each phone has a thread that taps at random places and takes a picture after each tap. Phones and drivers share this
process, as they do in the environment; the adb server is a process of its own.
"""

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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.docs import write_docs
from common.android import AdbServer, Android
from common.run import run_main
from envs.phone.adbd import Phones

DOCS = ROOT / "docs/android.md"


@dataclass
class Args:
    phones: tuple[int, ...] = (1, 8, 32)
    """numbers of phones that are used at once"""
    seconds: float = 5.0
    """how long each number is measured"""
    write_docs: bool = False
    """put the table into docs/android.md"""


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


def main(args):
    from envs.phone.device import Device

    load = os.getloadavg()[0]
    lines = [
        "| phones | steps/s | ms per step (median) | CPU ms per step | of it the adb server |",
        "| --- |" + " --- |" * 4,
    ]
    for count in args.phones:
        rate, median, own, others = measure(Device, count, args.seconds)
        parts = (f"{rate:.0f}", f"{1000 * median:.1f}", f"{1000 * (own + others):.2f}", f"{1000 * others:.2f}")
        lines.append(f"| {count} | {' | '.join(parts)} |")
        print(lines[-1], flush=True)
    machine = (
        f"{date.today()}, {os.cpu_count()} cores, {platform.machine()}, {platform.system()}; load average {load:.1f}"
    )
    text = f"{machine} before, {os.getloadavg()[0]:.1f} after; {args.seconds:g} s for each row\n\n" + "\n".join(lines)
    print(f"\n{text}")
    if args.write_docs:
        write_docs(DOCS, "phone", text)


if __name__ == "__main__":
    run_main(main, tyro.cli(Args, description=__doc__))
