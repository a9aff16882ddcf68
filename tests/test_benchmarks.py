"""The benchmark of the browser: its accounts, its report, a short measurement of our side, of theirs where it is."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import browser
from benchmarks.browser import VARIANTS, BrowserGym, Cell, Ours
from benchmarks.browsergym_worker import action_text, find_bid
from tools.setup_chromium import installed

ROOT = Path(__file__).resolve().parent.parent
PYTHON = Path(os.environ.get("BROWSERGYM_PYTHON", ROOT / ".venv-browsergym" / "bin" / "python"))


class NoClock:
    """Stands in for ProcessTree, which makes its process the parent of orphans: not in the tests' process."""

    def cpu(self):
        return 0.0


async def scripts():
    return await browser.write_scripts(browser.draw_tasks(1, seed=1))


async def test_our_side_plays_a_task_with_screenshots():
    side, played = Ours(VARIANTS[2], 2), await scripts()
    try:
        cell = await browser.measure(side, 2, played, NoClock())
        assert side.obs[1]["screenshot"].startswith(b"\x89PNG")
    finally:
        await side.close()
    assert not cell.errors and not cell.astray and cell.resets == 2 and cell.steps == 2 * len(played[0].moves) >= 4
    assert len(cell.exit_seconds) == 2  # both slots' exits were scored, as 1
    assert all(math.isfinite(value) for value in cell.figures().values())


@pytest.mark.skipif(
    not PYTHON.exists(), reason=f"needs BrowserGym: no {PYTHON} (docs/browser.md; or BROWSERGYM_PYTHON)"
)
async def test_browsergym_goes_the_same_way():
    side, played = BrowserGym(VARIANTS[3], 1, str(PYTHON), installed()), await scripts()
    try:
        cell = await browser.measure(side, 1, played, NoClock())
    finally:
        await side.close()
    assert not cell.astray and cell.resets == 1 and cell.steps == len(played[0].moves)


CPU_OF_THE_DEAD = r"""
import subprocess, sys, time
from benchmarks.browser import ProcessTree

burn = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"]
tree = ProcessTree()
before = tree.cpu()
subprocess.run(burn)
waited_for = tree.cpu()
subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({burn!r})"])
while tree.cpu() < waited_for + 0.3:  # the orphan's time arrives
    time.sleep(0.05)
subprocess.Popen(["sleep", "600"])
tree.end()
print(waited_for - before, len(tree._members()))
"""


def test_cpu_time_of_the_dead_and_of_orphans_counts():
    command = [sys.executable, "-c", CPU_OF_THE_DEAD]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    seconds, left = ran.stdout.split()
    assert 0.25 < float(seconds) < 1.0 and left == "1"


def test_the_report_divides_within_rounds_and_takes_medians():
    def cell(step_seconds):
        return Cell(1, 1, step_seconds, 0.1, 0.05, 0.05, [step_seconds], [0.1])

    ours = {0: cell(0.1), 1: cell(0.2), 2: cell(0.1)}
    theirs = {0: cell(1.0), 1: cell(4.0), 2: cell(3.0)}
    text = browser.report({(VARIANTS[0], 1): ours, (VARIANTS[1], 1): theirs, (VARIANTS[3], 1): {}}, ["a note"])
    assert "- a note" in text
    assert "| CleanGUI | text | 1 | 10.0 | 100 | 50.0 | 10.0 | 100 | 50.0 |" in text
    assert "| BrowserGym, defaults | CleanGUI | 1 | 20.0 (10.0 to 30.0) | 1.00 (1.00 to 1.00) |" in text
    assert VARIANTS[3].name not in text


def test_the_docs_keep_what_stands_around_the_tables(tmp_path, monkeypatch):
    docs = tmp_path / "browser.md"
    docs.write_text(f"above\n{browser.MARKS[0]}\nold\n{browser.MARKS[1]}\nbelow\n")
    monkeypatch.setattr(browser, "DOCS", docs)
    browser.write_docs("new")
    assert docs.read_text() == f"above\n{browser.MARKS[0]}\nnew\n{browser.MARKS[1]}\nbelow\n"
    assert (ROOT / "docs" / "browser.md").read_text().count(browser.MARKS[0]) == 1


def node(bid, role, name):
    return {"browsergym_id": bid, "role": {"value": role}, "name": {"value": name}}


def test_a_move_becomes_browsergyms_action():
    nodes = [node("30", "link", "Red  Lamp"), node("9", "link", "red lamp"), node("4", "button", "red lamp"), {}]
    assert find_bid(nodes, "link", "red lamp") == "9"  # the first on the page, as in ours
    with pytest.raises(LookupError):
        find_bid(nodes, "box", "red lamp")
    assert action_text({"op": "Search", "argument": "it's"}, "9") == "fill('9', \"it's\")\npress('9', 'Enter')"


def test_a_wrong_interpreter_is_one_line_and_exit_code_2():
    command = [sys.executable, "benchmarks/browser.py", "--browsergym-python", "nowhere/python"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and "nowhere/python" in ran.stderr
