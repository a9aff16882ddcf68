"""How far a long part of a run is: a bar on a terminal; elsewhere (a log file, nohup) a line, at most one a minute."""

import sys
import time
from typing import TextIO

from common.lm import parallel

EVERY = 60.0  # seconds between two lines


class Progress:
    """`with Progress(256, "phase 3", "episode") as bar`, then `bar.advance()` for each that is done.

    With `total` None there is no count, only what `advance` notes. `stream` is standard error's by default. Of several
    processes the first one alone shows anything.
    """

    def __init__(
        self, total: int | None, title: str, unit: str = "step", stream: TextIO | None = None, clock=time.monotonic
    ):
        self.total, self.title, self.unit, self.clock = total, title, unit, clock
        self.stream, self.done, self.note = stream or sys.stderr, 0, ""
        self.begun = self.last = clock()
        self.bar = None
        if parallel.is_main() and self.stream.isatty():
            from tqdm import tqdm

            form = "{desc}" if total is None else None
            looks = {"leave": False, "mininterval": 1.0, "bar_format": form}
            self.bar = tqdm(total=total, desc=title, unit=f" {unit}s", file=self.stream, **looks)

    @property
    def pause(self) -> float:
        """Seconds until it shows something new: whoever tells how things stand need not ask before."""
        return EVERY if self.bar is None else 1.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, count: int = 1, note: str = "") -> None:
        """So many more are done; `note`: how things stand."""
        self.done, self.note, now = self.done + count, note, self.clock()
        if self.bar is not None and self.total is None:
            self.bar.set_description_str(self._line(now))
        elif self.bar is not None:
            self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(count)
        elif parallel.is_main() and now - self.last >= EVERY:
            self.last = now
            print(self._line(now), file=self.stream, flush=True)

    def _line(self, now: float) -> str:
        """For instance "phase 3: 120/256 episodes, 2.1 min, some 2 min left; success 0.52"."""
        if self.total is None:
            return f"{self.title}{self.note}"
        minutes = (now - self.begun) / 60
        line = f"{self.title}: {self.done}/{self.total} {self.unit}s, {minutes:.1f} min"
        if 0 < self.done < self.total:
            line += f", some {minutes * (self.total - self.done) / self.done:.0f} min left"
        return f"{line}; {self.note}" if self.note else line
