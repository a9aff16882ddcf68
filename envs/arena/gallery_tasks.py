"""The gallery's task templates: how to draw one, how to check it, how to solve it.

A thing is named by size, colour and shape, so that many others differ in one of the three. What was paid and what is
left in the basket is compared as a whole: one thing too many, or another one, scores 0.

Easy, medium and hard are one, two or three, and four or more requirements, with 10, 20 and 30 steps. Every task of eval
and test wants a pair of colour and shape that no training world has.
"""

from envs.arena.gallery import (
    BASKET,
    COLOURS,
    COLUMNS,
    PLURALS,
    ROWS,
    SHAPES,
    SIZES,
    address,
    is_held_out,
    looks,
    record,
    rooms,
)
from envs.arena.tasks import Move, Template, exit_move, until_valid

DONE = exit_move("done")
NUMBERS = {"a": 1, "two": 2, "three": 3}
HORIZONS = {1: 10, 2: 20, 3: 20}  # steps by requirements; more have 30
SHARE = 0.8  # of the horizon, that the shortest way takes at most: mistakes can be mended
THING = rf"(?:{'|'.join(SIZES)}) (?:{'|'.join(COLOURS)}) (?:{'|'.join(SHAPES)})"
AMOUNT = rf"(?:{'|'.join(NUMBERS)}) (?:{'|'.join(SIZES)}) (?:{'|'.join(COLOURS)}) \w+"
PATTERNS = {"amount": AMOUNT, "thing": THING, "other": THING}


def _require(holds, what):
    if not holds:
        raise LookupError(what)


# --- words -----------------------------------------------------------------------------------------------------------


def _amount(count, name):
    """ "a large red circle", "two large red circles"."""
    size, colour, shape = looks(name)
    word = next(word for word, number in NUMBERS.items() if number == count)
    return f"{word} {size} {colour} {shape if count == 1 else PLURALS[shape]}"


def _meant(amount):
    """The names of the things of an amount: ["large red circle", "large red circle"]."""
    word, size, colour, shape = amount.split()
    singular = {plural: shape for shape, plural in PLURALS.items()}
    _require(shape in (SHAPES if word == "a" else singular), "no such shape")
    return NUMBERS[word] * [f"{size} {colour} {singular.get(shape, shape)}"]


def _amounts(slots):
    return [name for slot in sorted(slots) if slot.startswith("amount") for name in _meant(slots[slot])]


# --- what oracles are made of ----------------------------------------------------------------------------------------


def _walk(world, names):
    """From the home page: all of `names` into the basket, those of a room in one visit."""
    content, moves, at = rooms(world), [], None
    doors, places = list(content.shelves), {name: content.find(name) for name in names}
    for name in sorted(places, key=lambda name: (doors.index(places[name][0]), places[name][1])):
        room, number = places[name]
        if at is None or at[0] != room:
            moves += [Move("link", "home")] * (at is not None) + [Move("link", f"{room} room")]
            at = room, 0
        moves += [Move("link", "next shelf")] * (number - at[1])
        moves += [Move("button", name)] * names.count(name)
        at = room, number
    return moves


def _pay():
    return [Move("link", "basket"), Move("button", "pay"), DONE]


def _take_out(names):
    return [Move("button", f"take out {name}") for name in names]


# --- what checks are made of -----------------------------------------------------------------------------------------


def _record(basket, *payments):
    """The basket and all payments after this, and nothing else, was done."""
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "__GALLERY__/record",
                "locator": "document.querySelector('#record').outerText",
                "required_contents": {"exact_match": record(basket, payments)},
            }
        ],
    }


def _answer(world, text):
    """The answer, and nothing changed."""
    check = _record(rooms(world).basket)
    return check | {"eval_types": ["string_match", "program_html"], "reference_answers": {"exact_match": str(text)}}


def _url(path):
    return {"eval_types": ["url_match"], "reference_url": f"__GALLERY__{path}", "url_note": "EXACT"}


def _without(basket, names):
    left = list(basket)
    for name in names:
        _require(name in left, "not in the basket")
        left.remove(name)
    return left


# --- how slots are drawn ---------------------------------------------------------------------------------------------


def _hung(world):
    """The names of all things on shelves."""
    return [thing.name for shelves in rooms(world).shelves.values() for shelf in shelves for thing in shelf]


def _draw_things(world, rng, count):
    """Different things that hang somewhere; of eval and test worlds the first one is held out."""
    names = _hung(world)
    rng.shuffle(names)
    if world.split != "train":
        names.sort(key=lambda name: not is_held_out(name))
        _require(is_held_out(names[0]), "nothing is held out here")
        others = names[1:]
        rng.shuffle(others)
        names = [names[0], *others]
    _require(len(names) >= count, "too few things")
    return rng.sample(names[:count], count)


def _draw_put(kinds):
    def draw(world, rng):
        names = _draw_things(world, rng, kinds)
        return {f"amount{n + 1}": _amount(rng.randint(1, 3 if kinds < 4 else 2), name) for n, name in enumerate(names)}

    return draw


def _put(world, slots):
    names, content = _amounts(slots), rooms(world)
    for name in names:
        content.find(name)
        _require(name not in content.basket, "it is in the basket before")
    _require(len(set(names)) == len(slots), "a thing twice")
    _require(len(names) + len(content.basket) <= BASKET, "the basket is too small")
    _require(len(_walk(world, names) + _pay()) <= SHARE * HORIZONS.get(len(slots), 30), "too long")
    return _record((), [*content.basket, *names])


def _put_template(kinds):
    slots = [f"{{amount{n + 1}}}" for n in range(kinds)]
    listed = ", ".join(slots[:-1]) + f" and {slots[-1]}" if kinds > 1 else slots[0]
    return _template(
        f"put{kinds}",
        kinds,
        (f"put {listed} in the basket and pay", f"buy {listed}"),
        _draw_put(kinds),
        _put,
        lambda world, slots: [*_walk(world, _amounts(slots)), *_pay()],
        family="put",
    )


def _template(name, requirements, phrasings, draw, config, oracle, kind="state", family=""):
    return Template(
        name,
        kind,
        requirements,
        phrasings,
        until_valid(draw, config),
        config,
        oracle,
        family=family or name,
        patterns=PATTERNS,
        max_steps=HORIZONS.get(requirements, 30),
    )


def _in_basket(world, rng):
    """A thing of the basket; of eval and test worlds one that is held out."""
    names = [name for name in rooms(world).basket if world.split == "train" or is_held_out(name)]
    _require(names, "nothing of that kind is in the basket")
    return rng.choice(names)


def _draw_exchange(world, rng):
    thing = _in_basket(world, rng)
    others = [name for name in _hung(world) if sum(a != b for a, b in zip(name.split(), thing.split())) == 1]
    _require(others, "nothing is like it")
    return {"thing": thing, "other": rng.choice(others)}


def _exchange(world, slots):
    content = rooms(world)
    content.find(slots["other"])
    _require(slots["thing"] != slots["other"] and content.basket.count(slots["thing"]) == 1, "not one of it")
    return _record((), [*_without(content.basket, [slots["thing"]]), slots["other"]])


def _spot(world, slots):
    """The thing at a place of a room's first shelf."""
    place = len(COLUMNS) * ROWS.index(slots["row"]) + COLUMNS.index(slots["column"])
    shelves = rooms(world).shelves
    _require(slots["room"] in shelves, "no such room")
    found = [thing.name for thing in shelves[slots["room"]][0] if thing.place == place]
    _require(found and found[0] not in rooms(world).basket, "nothing hangs there")
    return found[0]


def _draw_spot(world, rng):
    slots = {"row": rng.choice(ROWS), "column": rng.choice(COLUMNS), "room": rng.choice(list(rooms(world).shelves))}
    _require(world.split == "train" or is_held_out(_spot(world, slots)), "not held out")
    return slots


def _counted(world, slots):
    """How many of a size hang on a room's first shelf."""
    shelves = rooms(world).shelves
    _require(slots["room"] in shelves and slots["size"] in SIZES, "no such room or size")
    return sum(thing.name.startswith(slots["size"]) for thing in shelves[slots["room"]][0])


def _draw_count(world, rng):
    room = rng.choice(list(rooms(world).shelves))
    held_out = any(is_held_out(thing.name) for thing in rooms(world).shelves[room][0])
    _require(world.split == "train" or held_out, "not held out")
    return {"size": rng.choice(list(SIZES)), "room": room}


def _draw_shelf(world, rng):
    (name,) = _draw_things(world, rng, 1)
    return {"thing": name}


def _shelf_path(world, slots):
    return address(*rooms(world).find(slots["thing"]))


# In the order in which worlds take them: kinds and lengths mixed.
TEMPLATES = [
    _put_template(1),
    _put_template(2),
    _template(
        "take_out",
        1,
        ("take the {thing} out of the basket and pay for the rest", "pay for the basket without the {thing}"),
        lambda world, rng: {"thing": _in_basket(world, rng)},
        lambda world, slots: _record((), _without(rooms(world).basket, [slots["thing"]])),
        lambda world, slots: [*_take_out([slots["thing"]]), *_pay()],
    ),
    _put_template(4),
    _template(
        "spot",
        1,
        (
            "put what hangs at the {row} {column} of the {room} room in the basket",
            "go to the {room} room and take the thing at the {row} {column}",
        ),
        _draw_spot,
        lambda world, slots: _record([*rooms(world).basket, _spot(world, slots)]),
        lambda world, slots: [*_walk(world, [_spot(world, slots)]), DONE],
    ),
    _put_template(3),
    _template(
        "find",
        1,
        ("show the shelf with the {thing}", "where does a {thing} hang"),
        _draw_shelf,
        lambda world, slots: _url(_shelf_path(world, slots)),
        lambda world, slots: [*_walk(world, [slots["thing"]])[:-1], DONE],
        kind="navigation",
    ),
    _put_template(5),
    _template(
        "exchange",
        2,
        (
            "put a {other} in the basket instead of the {thing} and pay",
            "take the {thing} out of the basket, put a {other} in and pay",
        ),
        _draw_exchange,
        _exchange,
        lambda world, slots: [*_take_out([slots["thing"]]), *_walk(world, [slots["other"]]), *_pay()],
    ),
    _template(
        "count",
        1,
        ("how many {size} things hang on the first shelf of the {room} room",),
        _draw_count,
        lambda world, slots: _answer(world, _counted(world, slots)),
        lambda world, slots: [Move("link", f"{slots['room']} room"), exit_move(str(_counted(world, slots)))],
        kind="information",
    ),
    _put_template(6),
]
