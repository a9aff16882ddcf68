"""Makes sure that there is a Chromium: an installed one, else Playwright's download, else the distribution's package.

    python tools/setup_chromium.py

Prints which one will be used. Exit code 2 and one line where none can be had.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.browser import PROGRAMS


def installed() -> str | None:
    """What the driver (common/browser.py) would start: CHROMIUM from the environment, PATH, Playwright's own."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    return found or downloaded()


def downloaded() -> str | None:
    """Playwright's own Chromium, if it is there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def starts(path: str) -> bool:
    """Whether it starts at all: on Ubuntu `chromium-browser` can be a stub that only asks for a snap."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def attempt(*command: str) -> bool:
    """Runs an installer; whether it succeeded. Of a download's stack traces it shows the line that says why."""
    print("$", " ".join(command), flush=True)
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        print(" ", error)
        return False
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        print(" ", next((line.strip() for line in lines if "rror:" in line), lines[-1] if lines else "failed"))
    return done.returncode == 0


def main() -> int:
    found = installed()
    if found is None:
        install = [sys.executable, "-m", "playwright", "install"]
        got = attempt(*install, "--with-deps", "chromium") or attempt(*install, "chromium")
        if not got and shutil.which("apt-get"):
            root = [] if os.geteuid() == 0 else ["sudo", "-n"]
            attempt(*root, "apt-get", "update", "-qq")
            # the headless shell needs half the time and memory of the full browser, which is for --headed
            packages = attempt(*root, "apt-get", "install", "-y", "-qq", "chromium", "chromium-headless-shell")
            packages or attempt(*root, "apt-get", "install", "-y", "-qq", "chromium")
        found = installed()
    if found is None:
        message = "no Chromium: install the package chromium or google-chrome, or set CHROMIUM to a browser's path"
    elif not starts(found):
        message = f"{found} does not start: install the package chromium, or set CHROMIUM to another browser's path"
    else:
        print("browser:", found)
        return 0
    print("error:", message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
