"""WebShop (Yao et al., 2022, arXiv:2207.01206) in this process: search a shop, choose options, buy what was asked for.

    env = envs.make("webshop")                                 # the embedded catalogue
    env = envs.make("webshop", data_dir="~/WebShop/data")      # the original's files

Actions are the original's, search[words] and click[label]. The reward is 1 where the graded score is 1.
"""

import re
from functools import lru_cache
from pathlib import Path

from common.errors import UsageError
from envs import Task
from envs.text import Move, Page, TextEnv
from envs.webshop import catalogue, engine, records, reward

MAX_STEPS = 15
SEARCH = "search[<your query>]"  # how an action of any words is listed, as verl-agent's prompt lists it
ACTION = re.compile(r"(search|click)\[(.+)\]")


class World:
    """A catalogue with its goals, the same for all slots of a process."""

    def __init__(self, data_dir, format, human_goals):
        self.format, self.embedded = format, not data_dir
        items, attributes, instructions = records.read(data_dir) if data_dir else catalogue.records()
        if human_goals is False:
            instructions = {}
        elif human_goals and not instructions:
            raise UsageError(f"--data-dir {data_dir}: items_human_ins.json is missing; {records.WHERE}")
        decimals = 2 if format == "original" else 0
        try:
            products = records.products(items, attributes)
            self.goals = records.goals(products, attributes, instructions, decimals)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise UsageError(f"--data-dir {data_dir}: not the schema of WebShop's files ({problem})") from None
        if not self.goals:
            raise UsageError(f"--data-dir {data_dir}: no product has an instruction")
        self.shop = engine.Shop(products, reviews=format == "original")
        # The embedded catalogue's scores are the same on every machine, whether it has spaCy or not.
        self.nouns = reward.heuristic_nouns if self.embedded else reward.spacy_nouns() or reward.heuristic_nouns
        self.nouns = lru_cache(maxsize=1 << 16)(self.nouns)
        self.splits = {}

    def tasks(self, split):
        if split not in self.splits:
            part = range(len(self.goals))[records.SPLITS[split]]
            if not part:
                raise UsageError(f"--data-dir: of {len(self.goals)} goals none is in the split {split!r}")
            self.splits[split] = [self._task(index, split) for index in part]
        return self.splits[split]

    def _task(self, index, split):
        goal = self.goals[index]
        options = len(goal["goal_options"])
        return Task(
            task_id=f"webshop-{index}",
            site="webshop",
            instruction=goal["instruction_text"],
            max_steps=MAX_STEPS,
            split=split,
            seed=index,
            template=f"{options} option{'' if options == 1 else 's'}",
            requirements=len(goal["attributes"]) + options + (goal["price_upper"] < records.NO_BOUND),
            steps=len(self.oracle(goal)) if self.embedded else 0,  # a search in a large catalogue takes its time
            config=goal,
        )

    def score(self, goal, state):
        """The reward for buying what the page of `state` shows, with the options chosen there."""
        product = self.shop.product(state)
        chosen = [value for _, value in state.options]
        return reward.reward(product, goal, product.price, chosen, self.nouns)

    def oracle(self, goal):
        """The moves of a shopper who sees what the pages show, and earns the whole reward: opens the results that look
        as good as the one it ends with, in their order, looks up what a title does not say, goes back where something
        is missing. Where this takes more than MAX_STEPS the first of them are passed over. Raises LookupError where no
        result earns the whole reward."""
        query, rank, chosen = self._find(goal)
        results = [self.shop.products[asin] for asin in self.shop.search(query)[: rank + 1]]
        least = _promise(results[-1], goal)
        tries = [i for i, product in enumerate(results[:-1]) if _promise(product, goal) >= least]
        while True:
            moves = [Move(f"search[{query}]", goal["query"])]
            page = 0
            for place in [*tries, rank]:
                moves += [Move(f"click[{engine.NEXT}]", "next")] * (place // engine.ROWS - page)
                page = place // engine.ROWS
                moves += self._look_at(results[place], goal, last=place == rank)
            moves += [Move(f"click[{value}]", f"{name} {value}") for name, value in chosen]
            moves.append(Move(f"click[{engine.BUY}]", "buy"))
            if len(moves) <= MAX_STEPS or not tries:
                return moves
            tries = tries[1:]

    def _find(self, goal):
        """(query, rank, options) of the first result that earns the whole reward."""
        for query in _queries(goal):
            for rank, asin in enumerate(self.shop.search(query)):
                chosen = self._choose(goal, asin)
                if chosen is not None:
                    return query, rank, chosen
        raise LookupError(f"no product is found that earns the whole reward: {goal['instruction_text']}")

    def _look_at(self, product, goal, last):
        """Moves that open a product and look up what the title does not say; and, unless it is the last, go back."""
        back = Move(f"click[{engine.PREV}]", "back")
        moves = [Move(f"click[{product.asin.lower()}]", engine.describe(product))]
        values = [value for values in product.options.values() for value in values]
        offered = all(reward.option_matches(values, [wanted]) for wanted in reward.wanted_options(goal["goal_options"]))
        missing = [a for a in goal["attributes"] if a not in product.title.lower()] if offered else []
        said = {"features": " ".join(product.bullets).lower(), "description": product.description.lower()}
        for kind, text in said.items():
            if missing:
                moves += [Move(f"click[{kind}]", missing[0]), back]
                missing = [attribute for attribute in missing if attribute not in text]
        return moves if last else [*moves, back]

    def _choose(self, goal, asin):
        """Options of a product that earn the whole reward, pairs of name and value; None if there are none."""
        product = self.shop.products[asin]
        if product.price > goal["price_upper"]:
            return None
        chosen = []
        for wanted in reward.wanted_options(goal["goal_options"]):
            values = [(name, value) for name, values in product.options.items() for value in values]
            # An exact value before one that is only similar; of the same option no second one.
            values.sort(key=lambda pair: pair[1] != wanted)
            taken = {name for name, _ in chosen}
            fit = [p for p in values if p[0] not in taken and reward.option_matches([p[1]], [wanted])]
            if not fit:
                return None
            chosen.append(fit[0])
        state = engine.State("item", asin=asin, options=tuple(chosen))
        return chosen if self.score(goal, state) == 1.0 else None


def _queries(goal):
    """What the oracle searches for: as a shopper would, and, where that does not find it among a million, by name."""
    return " ".join([*goal["attributes"], goal["query"]]).lower(), goal["name"].lower()


def _promise(product, goal):
    """How good a result looks in the list: wanted attributes in its title; -1 for another thing, or too dear a one."""
    title = product.title.lower()
    if goal["query"].lower() not in title or product.price > goal["price_upper"]:
        return -1
    return sum(attribute in title for attribute in goal["attributes"])


@lru_cache(maxsize=4)
def world(data_dir="", format="compact", human_goals=None):
    """The World of these options; built once per process."""
    return World(data_dir, format, human_goals)


def data_folder(data_dir):
    """The folder in full, "" for the embedded catalogue: names of one World."""
    return str(Path(data_dir).expanduser().resolve()) if data_dir else ""


class WebShop(TextEnv):
    """One episode slot; `fork()` gives another one on the same catalogue.

    `data_dir` is a folder with the original's files ("": the embedded catalogue), `format` the page text's: "compact",
    or "original" for what the original's text environment shows (prices with decimals, and a page for reviews).
    `human_goals` picks the instructions that people wrote or those made from attributes and options (None: people's
    where the folder has them).
    """

    def __init__(self, data_dir="", format="compact", human_goals=None):
        if format not in ("compact", "original"):
            raise UsageError(f"--format {format}: webshop has compact and original")
        super().__init__(format)
        self._options = (data_folder(data_dir), format, human_goals)

    @property
    def _world(self):
        return world(*self._options)

    def _clear(self):
        super()._clear()
        self._state = engine.START

    def tasks(self, split):
        """The tasks of "train", "eval" or "test": always the same ones in the same order."""
        if split not in records.SPLITS:
            raise ValueError(f"split {split!r} is none of {', '.join(records.SPLITS)}")
        return self._world.tasks(split)

    def oracle(self, task):
        """The moves that solve `task`."""
        return self._world.oracle(task.config)

    def vary(self, task, rng):
        raise UsageError("webshop has no instruction generator: --no-curriculum")

    def task_from_text(self, text, like):
        """None: there is no true checker for an instruction that is not among the goals."""
        return None

    def _begin(self, task):
        self._state = engine.START
        return self._show()

    def _do(self, text):
        shop = self._world.shop
        match = ACTION.fullmatch(text.strip().lower())
        if match is None:
            return self._show("an action is search[words] or click[label]")
        name, value = match[1], match[2].strip()
        if name == "search":
            if self._state.kind != "search":
                return self._show("the search is on another page: click[back to search]")
            if not value:
                return self._show("search needs words")
            self._state = shop.search_for(value)
            return self._show()
        links = shop.links(self._state)
        if value not in links:
            return self._show(f"{value} cannot be clicked here")
        self._state = links[value]
        if self._state.kind == "done":
            return self._show(score=self._world.score(self._task.config, self._state))
        return self._show()

    def _show(self, error="", score=None):
        shop, state, text = self._world.shop, self._state, ""
        if self.format == "original":
            text = engine.original(shop, state, self._task.instruction, score)
        title, lines, elements = engine.view(shop, state)
        actions = (SEARCH,) if state.kind == "search" else tuple(f"click[{label}]" for label in shop.links(state))
        return Page(text, actions, title, error, score, lines, elements)
