"""How long real devices take, for simulated phones that are to be as slow: `phone_delay` and `phone_spread`."""

import math
import random
from dataclasses import dataclass

from common.errors import UsageError

OF_EPISODES = 0.8  # of the variance of a time's logarithm: the rest is between the steps of one episode
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples lie evenly, however many they are


@dataclass(frozen=True)
class Pace:
    """The wall times of real devices: a step, its action and its picture, takes lognormal time of this median in
    seconds. `sigma` is the standard deviation of its logarithm; most of it is between episodes, so that 95 in 100 of
    them lie within exp(3.6 sigma) of each other (1.3: 100 times). The slowest phone is `spread` times slower than the
    fastest."""

    median: float = 0.0
    sigma: float = 0.0
    spread: float = 1.0

    @classmethod
    def of(cls, delay, spread=1.0):
        """Of "2.5" or "2.5:0.6", median and sigma. Raises UsageError for what is none, or has no end: sigma is at most
        5, `spread` at least 1."""
        median, _, sigma = str(delay).partition(":")
        try:
            pace = cls(float(median or 0), float(sigma or 0), float(spread))
        except ValueError:
            pace = cls(-1)
        if not all(map(math.isfinite, (pace.median, pace.sigma, pace.spread))) or (
            pace.median < 0 or not 0 <= pace.sigma <= 5 or pace.spread < 1
        ):
            raise UsageError(
                f"phone_delay {delay!r}, phone_spread {spread!r}: SECONDS or MEDIAN:SIGMA (2.5:0.6), and at least 1"
            )
        return pace

    def seconds(self, phone, episode, step):
        """Of a step (0: the reset) on the phone of a number; the same for the same numbers, whoever plays beside.
        `episode` is a text."""
        if not self.median:
            return 0.0
        between, within = (random.Random(text).gauss(0, 1) for text in (episode, f"{episode}/{step}"))
        log = self.sigma * (math.sqrt(OF_EPISODES) * between + math.sqrt(1 - OF_EPISODES) * within)
        return self.median * math.exp(log) * self.spread ** ((phone + 1) * GOLDEN % 1 - 0.5)
