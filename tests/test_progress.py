"""The bar on a terminal, and the line that stands for it elsewhere. The clock is the tests' own."""

import asyncio
import io
from types import SimpleNamespace

import pytest

from common.lm import llm, progress
from common.lm.llm import Completion
from common.lm.progress import Progress
from common.lm.rollout import Player
from common.lm.run import Timer
from tests.test_players import finish, players_of
from tests.test_rollout import Counter, tasks


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_a_line_a_minute():
    clock, log = Clock(), io.StringIO()
    with Progress(256, "phase 3", "episode", log, clock) as bar:
        for seconds, count in ((59, 30), (1, 30), (59, 30), (0.5, 30), (6.5, 6), (300, 130)):
            clock.now += seconds
            bar.advance(count, "success 0.50")
    assert log.getvalue().splitlines() == [
        "phase 3: 60/256 episodes, 1.0 min, some 3 min left; success 0.50",
        "phase 3: 126/256 episodes, 2.1 min, some 2 min left; success 0.50",
        "phase 3: 256/256 episodes, 7.1 min; success 0.50",
    ]


def test_what_is_short_says_nothing():
    log = io.StringIO()
    with Progress(2, "eval", stream=log, clock=Clock()) as bar:
        bar.advance()
        bar.advance()
    assert log.getvalue() == ""


def test_a_status_without_a_count():
    clock, log = Clock(), io.StringIO()
    with Progress(None, "", stream=log, clock=clock) as bar:
        assert bar.pause == 60
        bar.advance(note="4 run")
        clock.now += 60
        bar.advance(note="5 run")
    assert log.getvalue() == "5 run\n"
    with Progress(None, "", stream=(screen := Terminal()), clock=clock) as bar:
        assert bar.pause == 1
        bar.advance(note="4 run")
    assert "4 run" in screen.getvalue()


def test_on_a_terminal_a_bar_and_no_line():
    clock, screen = Clock(), Terminal()
    with Progress(3, "eval", "episode", screen, clock) as bar:
        for _ in range(3):
            clock.now += 90
            bar.advance(note="success 0.50")
        assert "\n" not in screen.getvalue() and "eval: " in screen.getvalue()
        assert bar.bar.n == 3 and bar.bar.postfix == "success 0.50"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_other_processes_show_nothing(monkeypatch, stream):
    monkeypatch.setenv("RANK", "1")
    clock, out = Clock(), stream()
    with Progress(2, "eval", stream=out, clock=clock) as bar:
        clock.now += 90
        bar.advance()
    assert out.getvalue() == ""


def test_a_players_episodes_are_lines_in_a_log(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    store = SimpleNamespace(add_image=None)
    unfinished = SimpleNamespace(append=lambda trajectories: None)
    run = SimpleNamespace(timer=Timer(), trajectories=store, unfinished=unfinished)

    def generate(model, tokenizer, prompts, *settings):
        return [Completion([1], [0.0], 0) for _ in prompts]

    monkeypatch.setattr(llm, "generate", generate)
    monkeypatch.setattr(llm, "is_tiny", lambda model: True)
    with asyncio.Runner() as runner:
        player = Player(Counter(), None, None, lambda i, s, o: [1], run, runner, 1, 1, lockstep=True)
        player.decode = str
        player.play(tasks(2), 0.0, 1, "eval")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("eval: 1/2 episodes, 0.0 min, some ") and second.endswith("success 1.00, faults 0")


def test_the_status_of_players_is_a_line_in_a_log(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    players, asked = players_of(1, [], lambda what: None), []

    async def status():
        asked.append(1)
        if len(asked) == 3:
            players.stopping = True
            players.wake.set()
        return f"{len(asked)} run"

    players.status = status
    players.start()
    players.thread.join(timeout=30)
    finish(players)
    assert capsys.readouterr().err.splitlines()[:3] == ["1 run", "2 run", "3 run"]
