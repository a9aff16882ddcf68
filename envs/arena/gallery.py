"""The gallery: a shop of coloured shapes, used by looking. Doors, shelves, a basket, a till; nothing on it is read.

A page is a list of Marks, whatever shows it: SVG here, Pillow where scenes are drawn to pretrain a model on. Lengths
are in 96ths of the page's side, whole ones, so that small pictures are sharp. What can be clicked has an accessible
name, as on any good site: a text model can use the gallery, too, and the oracle does.

The rooms of a world are by shape or by colour. In training worlds some pairs of colour and shape never occur
(HELD_OUT); every task of eval and test wants one of them.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.routing import Route

from envs.arena.content import World
from envs.arena.server import database, go, page

NAME = "gallery"
COLOURS = {
    "red": "#d62728",
    "green": "#2ca02c",
    "blue": "#1f5adc",
    "yellow": "#f0c81e",
    "purple": "#943cbd",
    "black": "#282828",
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
SIZES = {"small": (12, 14), "large": (20, 22)}  # from, to
PLURALS = {"cross": "crosses"} | {shape: f"{shape}s" for shape in SHAPES if shape != "cross"}
HELD_OUT = frozenset(zip(COLOURS, ("circle", "star", "triangle", "ring", "square", "cross"), strict=True))

SIDE = 96
SLOT = 32  # six places of this width: two rows of three
ROWS = ("top", "bottom")
COLUMNS = ("left", "middle", "right")
SHELF = len(ROWS) * len(COLUMNS)
TOP = 32  # the upper third: the basket in five columns and two rows of this size, then the buttons
CELL = 12
BASKET = 10  # things that it holds at most
STRIP = {"small": 7, "large": 11}  # their sides there
GREY, PALE, WOOD = "#8a8a8a", "#e4e0d8", "#b79b72"

SCHEMA = """
create table basket (id integer primary key, thing text);
create table payment (id integer primary key, things text);
create table world (split text, seed int);
"""


# --- content ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thing:
    """What hangs on a shelf: its look, its place (0 to 5, row by row), and its box within that place."""

    name: str  # "large red circle"
    place: int
    x: int
    y: int
    side: int


@dataclass(frozen=True)
class Rooms:
    """What a world's gallery holds before anything is done in it."""

    by: str  # "shape" or "colour"
    shelves: dict  # name of a room, in the order of the doors -> its shelves, tuples of Things
    basket: tuple  # names of things that are in it

    def find(self, name):
        """(room, number of the shelf) of a thing; raises LookupError."""
        for room, shelves in self.shelves.items():
            for number, shelf in enumerate(shelves):
                if any(thing.name == name for thing in shelf):
                    return room, number
        raise LookupError(f"there is no {name}")


def looks(name):
    """Size, colour, shape of a thing's name; raises LookupError where it is none."""
    words = name.split()
    if len(words) != 3 or words[0] not in SIZES or words[1] not in COLOURS or words[2] not in SHAPES:
        raise LookupError(f"no thing: {name}")
    return words


def is_held_out(name):
    """Whether no training world has a thing of this colour and shape."""
    return tuple(looks(name)[1:]) in HELD_OUT


@lru_cache(maxsize=512)
def rooms(world):
    """The Rooms of a world, always the same ones."""
    rng = world.rng("gallery")
    by = rng.choice(("shape", "colour"))
    names = [f"{size} {colour} {shape}" for size in SIZES for colour in COLOURS for shape in SHAPES]
    names = [name for name in names if world.split != "train" or not is_held_out(name)]
    doors = list(SHAPES if by == "shape" else COLOURS)
    rng.shuffle(doors)
    shelves, hung = {}, []
    for door in doors:
        here = [name for name in names if door in name.split()]
        here = rng.sample(here, rng.randint(7, len(here)))
        hung += here
        count = rng.choice((2, 3))  # shelves; each has something
        parts = [here[n::count] for n in range(count)]
        shelves[door] = tuple(tuple(_hang(part, rng)) for part in parts)
    basket = rng.sample(hung, rng.choice((0, 2)))
    if basket and world.split != "train":
        basket[0] = rng.choice([name for name in hung if is_held_out(name) and name != basket[1]])
    return Rooms(by, shelves, tuple(basket))


def _hang(names, rng):
    for name, place in zip(names, sorted(rng.sample(range(SHELF), len(names))), strict=True):
        side = rng.randint(*SIZES[looks(name)[0]])
        yield Thing(name, place, rng.randint(1, SLOT - side - 1), rng.randint(1, SLOT - side - 1), side)


def fill(db, world):
    """Write the world's rows into a fresh database."""
    db.execute("insert into world values (?, ?)", (world.split, world.seed))
    db.executemany("insert into basket (thing) values (?)", [(name,) for name in rooms(world).basket])


def address(room, number):
    """The path of a room's shelf, from 0, below /gallery."""
    return f"/r/{room}/{number + 1}" if number else f"/r/{room}"


def record(basket, payments):
    """What a check compares: everything that the user can change, as text."""
    lines = [f"basket: {_listed(basket)}", *(f"paid: {_listed(things)}" for things in payments)]
    return "\n".join(lines)


def _listed(names):
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(names).items())) or "nothing"


# --- what is drawn ---------------------------------------------------------------------------------------------------


def _circle(radius, points=48):
    turns = [2 * math.pi * n / points for n in range(points)]
    return [(0.5 + radius * math.cos(turn), 0.5 + radius * math.sin(turn)) for turn in turns]


def _star(points=5, inner=0.42):
    turns = [math.pi * n / points for n in range(2 * points)]
    radii = [0.5 * (inner if n % 2 else 1) for n in range(2 * points)]
    return [(0.5 + r * math.sin(turn), 0.5 - r * math.cos(turn)) for r, turn in zip(radii, turns, strict=True)]


def _box(left, top, right, bottom):
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


# Polygons in the unit square, those after the first are holes in it.
OUTLINES = {
    "circle": [_circle(0.5)],
    "ring": [_circle(0.5), _circle(0.24)],
    "square": [_box(0, 0, 1, 1)],
    "triangle": [[(0, 1), (1, 1), (0.5, 0)]],
    "star": [_star()],
    "cross": [[(a, b) for a, b in (
        (0.34, 0), (0.66, 0), (0.66, 0.34), (1, 0.34), (1, 0.66), (0.66, 0.66),
        (0.66, 1), (0.34, 1), (0.34, 0.66), (0, 0.66), (0, 0.34), (0.34, 0.34),
    )]],
    "before": [[(0.75, 0.1), (0.75, 0.9), (0.15, 0.5)]],
    "after": [[(0.25, 0.1), (0.25, 0.9), (0.85, 0.5)]],
    "house": [[(0.5, 0.08), (0.95, 0.5), (0.8, 0.5), (0.8, 0.92), (0.2, 0.92), (0.2, 0.5), (0.05, 0.5)],
              _box(0.42, 0.6, 0.58, 0.92)],
    "basket": [[(0.05, 0.35), (0.95, 0.35), (0.8, 0.92), (0.2, 0.92)], _box(0.32, 0.48, 0.4, 0.8),
               _box(0.6, 0.48, 0.68, 0.8)],
    "tick": [[(0.05, 0.55), (0.2, 0.4), (0.4, 0.6), (0.8, 0.12), (0.95, 0.27), (0.42, 0.9)]],
    "door": [_box(0.08, 0, 0.92, 1)],
    "bar": [_box(0, 0, 1, 2 / SIDE)],
}  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """One figure of a page. `link`: a click goes there; `post`: a click does that; neither: it is only seen."""

    outline: str
    colour: str
    x: int
    y: int
    side: int
    label: str = ""
    link: str = ""
    post: str = ""

    @property
    def path(self):
        """SVG path data in a box of 1 by 1."""
        return _path(self.outline)


@cache
def _path(outline):
    return "".join("M" + "L".join(f"{x:.3f} {y:.3f}" for x, y in polygon) + "Z" for polygon in OUTLINES[outline])


def home_marks(doors, by):
    """The doors of the rooms: a shape on each, or its colour."""
    for n, door in enumerate(doors):
        x, y = SLOT * (n % 3) + 4, TOP + SLOT * (n // 3) + 4
        frame, inside = (PALE, GREY) if by == "shape" else (COLOURS[door], "#ffffff")
        yield Mark("door", frame, x, y, 24, f"{door} room", link=f"/gallery/r/{door}")
        yield Mark(door if by == "shape" else "after", inside, x + 5, y + 5, 14)


def shelf_marks(shelf, room, number):
    """The things on a shelf; a click puts one into the basket."""
    for thing in shelf:
        _, colour, shape = looks(thing.name)
        x, y = SLOT * (thing.place % 3) + thing.x, TOP + SLOT * (thing.place // 3) + thing.y
        post = f"/gallery/r/{room}/{number + 1}/add/{thing.place}"
        yield Mark(shape, COLOURS[colour], x, y, thing.side, thing.name, post=post)


def basket_marks(basket, back):
    """The upper third: what is in the basket. `basket`: (id, name) pairs; a click takes one out and stays at `back`."""
    yield Mark("bar", WOOD, 0, TOP - 5, SIDE)
    for n, (id, name) in enumerate(basket):
        size, colour, shape = looks(name)
        side = STRIP[size]
        x, y = CELL * (n % 5) + (CELL - side) // 2, CELL * (n // 5) + (CELL - side) // 2
        yield Mark(shape, COLOURS[colour], x, y, side, f"take out {name}", post=f"/gallery/out/{id}?back={back}")


def button(outline, column, row, label, **does):
    """A button of the upper right corner."""
    return Mark(outline, GREY, CELL * (5 + column) + 1, CELL * row + 1, CELL - 2, label, **does)


def buttons(room=None, number=0, last=0, at_home=False):
    """The way on: shelves of a room, home, basket."""
    if number > 0:
        yield button("before", 0, 0, "previous shelf", link=f"/gallery{address(room, number - 1)}")
    if number < last:
        yield button("after", 1, 0, "next shelf", link=f"/gallery{address(room, number + 1)}")
    if not at_home:
        yield button("house", 2, 0, "home", link="/gallery/")
    yield button("basket", 2, 1, "basket", link="/gallery/basket")


def till_marks(basket):
    """The basket's own page: the till, if there is something to pay."""
    if basket:
        yield Mark("tick", COLOURS["green"], 36, TOP + 20, 24, "pay", post="/gallery/pay")


def paid_marks(things):
    """The end: what was paid for last."""
    yield Mark("circle", COLOURS["green"], 32, TOP + 2, 32)
    yield Mark("tick", "#ffffff", 38, TOP + 8, 20)
    for n, name in enumerate(things):
        size, colour, shape = looks(name)
        side = STRIP[size]
        x, y = 18 + CELL * (n % 5) + (CELL - side) // 2, TOP + 38 + CELL * (n // 5) + (CELL - side) // 2
        yield Mark(shape, COLOURS[colour], x, y, side)


# --- pages -----------------------------------------------------------------------------------------------------------


def _rooms(request):
    row = database(request).execute("select split, seed from world").fetchone()
    return rooms(World(row["seed"], row["split"]))


def _basket(request):
    return [(row["id"], row["thing"]) for row in database(request).execute("select id, thing from basket order by id")]


def _show(request, title, marks):
    marks = [*marks, *basket_marks(_basket(request), request.url.path)]
    return page(request, "gallery/page.html", title=title, marks=marks)


def _shelf(request):
    """(shelves, room, number of the shelf from 0) of the address."""
    room, number = request.path_params["room"], request.path_params.get("number", 1) - 1
    shelves = _rooms(request).shelves.get(room, ())
    if not 0 <= number < len(shelves):
        raise HTTPException(404, "there is no such shelf")
    return shelves, room, number


async def home(request):
    content = _rooms(request)
    return _show(request, "gallery", [*home_marks(content.shelves, content.by), *buttons(at_home=True)])


async def shelf(request):
    shelves, room, number = _shelf(request)
    if request.url.path != f"/gallery{address(room, number)}":
        return go(f"/gallery{address(room, number)}")
    marks = shelf_marks(shelves[number], room, number)
    return _show(request, f"{room} {number + 1}", [*marks, *buttons(room, number, len(shelves) - 1)])


async def add(request):
    shelves, room, number = _shelf(request)
    thing = {thing.place: thing for thing in shelves[number]}.get(request.path_params["place"])
    if thing is None:
        raise HTTPException(404, "nothing hangs there")
    if len(_basket(request)) < BASKET:  # a full one takes no more
        database(request).execute("insert into basket (thing) values (?)", (thing.name,))
    return go(f"/gallery{address(room, number)}")


async def take_out(request):
    db, back = database(request), request.query_params.get("back", "")
    db.execute("delete from basket where id = ?", (request.path_params["id"],))
    return go(back if back.startswith("/gallery/") else "/gallery/")


async def basket(request):
    return _show(request, "basket", [*till_marks(_basket(request)), *buttons()])


async def pay(request):
    db, things = database(request), [name for _, name in _basket(request)]
    if things:
        db.execute("insert into payment (things) values (?)", (",".join(things),))
        db.execute("delete from basket")
    return go("/gallery/paid" if things else "/gallery/basket")


def _payments(request):
    """The things of each payment, the newest last."""
    return [row["things"].split(",") for row in database(request).execute("select things from payment order by id")]


async def paid(request):
    return _show(request, "paid", [*paid_marks((_payments(request) or [()])[-1]), *buttons()])


async def records(request):
    """For checks: the only page with text, and no link leads there."""
    text = record([name for _, name in _basket(request)], _payments(request))
    return HTMLResponse(f"<!doctype html><pre id='record'>{text}</pre>")


routes = [
    Route("/", home),
    Route("/r/{room}", shelf),
    Route("/r/{room}/{number:short}", shelf),
    Route("/r/{room}/{number:short}/add/{place:short}", add, methods=["POST"]),
    Route("/out/{id:short}", take_out, methods=["POST"]),
    Route("/basket", basket),
    Route("/pay", pay, methods=["POST"]),
    Route("/paid", paid),
    Route("/record", records),
]
