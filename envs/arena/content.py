"""A world: everything that is drawn from a content seed and shared by the sites (people, words, randomness).

Two worlds of different splits share no word of `words.py`; a site draws its own rows with `world.rng("site name")`, so
that adding a site leaves the other sites' content as it was.
"""

import random
from dataclasses import dataclass
from functools import cached_property

from envs.arena import words

# Worlds of each split by content seed; the ranges are far apart, so that a seed names its split.
SEEDS = {"train": range(0, 250), "eval": range(10_000, 10_060), "test": range(20_000, 20_120)}
PEOPLE = 10


def draw_pairs(rng, firsts, seconds, count):
    """`count` different texts "first second", as `rng.sample` draws them from the list of all (some 90,000)."""
    drawn = rng.sample(range(len(firsts) * len(seconds)), count)
    return [f"{firsts[place // len(seconds)]} {seconds[place % len(seconds)]}" for place in drawn]


@dataclass(frozen=True)
class World:
    """The content of one seed, with the words of one split."""

    seed: int
    split: str = "train"

    def rng(self, purpose):
        """A generator of its own for each purpose: equal worlds give equal streams."""
        return random.Random(f"{self.split}/{self.seed}/{purpose}")

    def pool(self, kind):
        """The words of `kind` this world may use (see `words.pool`)."""
        return words.pool(kind, self.split)

    @cached_property
    def people(self):
        """`PEOPLE` names, "first last", no first name twice; the first one is the logged-in user."""
        rng = self.rng("people")
        firsts = rng.sample(self.pool("first"), PEOPLE)
        return [f"{first} {rng.choice(self.pool('last'))}" for first in firsts]

    @property
    def user(self):
        """The name of the user who is logged in when an episode starts."""
        return self.people[0]
