"""The map: places on streets, search, the nearest of a kind, routes by walking or driving, saved places, changes."""

import heapq
import re
from collections import defaultdict
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import accumulate

from starlette.exceptions import HTTPException
from starlette.routing import Route

from envs.arena.server import database, done, form, go, page, user, whole_number

NAME = "map"
KINDS = ("bar", "cinema", "clinic", "garden", "market", "museum", "school", "theater")
LABELS = ("home", "work", "family", "food", "music", "sports")
MINUTES = {"walking": 12, "driving": 2}  # for a km
ROWS = 5  # of a list, on one page

SCHEMA = """
create table place (id integer primary key, name text, kind text, x int, y int, address text, phone text, opening int,
    rating int);
create table road (name text, ax int, ay int, bx int, by int, walking int, driving int);
create table water (ax real, ay real, bx real, by real);
create table saved (person text, label text, place int, primary key (person, label));
create table change (person text, place int, phone text, opening int, primary key (person, place));
"""


# --- content ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    id: int
    name: str
    kind: str
    x: int
    y: int
    address: str
    phone: str
    opening: int
    rating: int  # no two of a kind have the same


@dataclass(frozen=True)
class Road:
    """One km of a street, between two points of the grid."""

    name: str
    ax: int
    ay: int
    bx: int
    by: int
    walking: bool  # whether that way goes here
    driving: bool


@dataclass(frozen=True)
class Town:
    """What a world's map holds before anything is done in it."""

    places: tuple
    roads: tuple
    water: tuple  # of lines (ax, ay, bx, by)
    island: int  # places at this x can be reached by driving alone
    missing: tuple  # names that no place has
    saved: dict  # label -> name of the place, of the user
    changes: dict  # name of the place -> (phone, opening) that the user sent, None for what stays

    def place(self, name):
        """The place of that name; raises LookupError."""
        return {place.name: place for place in self.places}[name]


def draw_phone(rng):
    """A phone number of six digits."""
    return str(rng.randint(200000, 999999))


def draw_opening(rng):
    """An hour of the morning."""
    return rng.randint(6, 12)


@lru_cache(maxsize=512)
def town(world):
    """The Town of a world, always the same one."""
    rng = world.rng("map")
    xs, ys = ([0, *accumulate(rng.choice((2, 3)) for _ in range(n))] for n in (6, 4))
    streets = {y: f"{word} street" for y, word in zip(ys, rng.sample(world.pool("last"), 5))}
    avenues = {x: f"{word} avenue" for x, word in zip(xs, rng.sample(world.pool("last"), 7))}
    roads, water = _draw_roads(rng, streets, avenues)

    # Not at a crossing, so that an address has one street; the island is never empty.
    points = [(x, y) for x in range(xs[-1] + 1) for y in range(ys[-1] + 1) if (x in avenues) != (y in streets)]
    island = [point for point in points if point[0] == xs[-1]]
    kinds = [kind for kind in KINDS for _ in range(rng.randint(5, 7))]
    chosen = rng.sample(island, 2)
    chosen += rng.sample([point for point in points if point not in chosen], len(kinds) - 2)
    rng.shuffle(kinds)
    # few words for the names: near misses
    words = [rng.sample(world.pool(kind), 14) for kind in ("adjective", "noun")]
    names = rng.sample([f"{adjective} {noun}" for adjective in words[0] for noun in words[1]], len(kinds) + 8)
    ratings = {kind: iter(rng.sample(range(10, 100), 7)) for kind in KINDS}
    places = []
    for i, (kind, (x, y)) in enumerate(zip(kinds, chosen)):
        street, along = (avenues[x], y) if x in avenues else (streets[y], x)
        address = f"{4 * along + rng.randint(1, 4)} {street}"
        phone, opening = draw_phone(rng), draw_opening(rng)
        places.append(Place(i + 1, names[i], kind, x, y, address, phone, opening, next(ratings[kind])))
    known = rng.sample(places, 4)
    return Town(
        places=tuple(places),
        roads=roads,
        water=water,
        island=xs[-1],
        missing=tuple(names[len(places) :]),
        saved={label: place.name for label, place in zip(rng.sample(LABELS, 3), known)},
        changes={known[3].name: (draw_phone(rng), None)},
    )


def _draw_roads(rng, streets, avenues):
    """The roads and the water: a river between two streets, and a strait before the last avenue, an island.

    One avenue has a bridge for all across the river, one for walking alone and one for driving alone. One street leads
    to the island, for driving alone.
    """
    width, height = max(avenues), max(streets)
    causeway = rng.choice(list(streets))
    river = rng.randint(min(streets), height - 1)
    bridges = dict(zip(rng.sample(sorted(avenues)[:-1], 3), [(True, True), (True, False), (False, True)]))
    roads = []
    for y, name in streets.items():
        roads += [Road(name, x, y, x + 1, y, True, True) for x in range(width - 1)]
    roads.append(Road(streets[causeway], width - 1, causeway, width, causeway, False, True))
    for x, name in avenues.items():
        for y in range(height):
            open_to = bridges.get(x, (False, False)) if y == river and x < width else (True, True)
            if any(open_to):
                roads.append(Road(name, x, y, x, y + 1, *open_to))
    water = ((-1, river + 0.5, width - 0.5, river + 0.5), (width - 0.5, -1, width - 0.5, height + 1))
    return tuple(roads), water


def ways(roads, start, way):
    """{point: (km, streets, path)} for all points that `way` leads to from the point `start`, by the shortest path.

    streets: ((name, km), ...), as few as a search that keeps one path a point finds; path: the points. The order of the
    tuples decides between equal ones, so the same roads always give the same path.
    """
    beside = defaultdict(list)
    for road in roads:
        if getattr(road, way):
            beside[road.ax, road.ay].append((road.name, (road.bx, road.by)))
            beside[road.bx, road.by].append((road.name, (road.ax, road.ay)))
    found, queue = {}, [(0, 0, (), (start,))]
    while queue:
        km, _, streets, path = heapq.heappop(queue)
        if path[-1] in found:
            continue
        found[path[-1]] = km, streets, path
        for name, point in beside[path[-1]]:
            if point not in found:
                before, run = (streets[:-1], streets[-1][1]) if streets and streets[-1][0] == name else (streets, 0)
                longer = (*before, (name, run + 1))
                heapq.heappush(queue, (km + 1, len(longer), longer, (*path, point)))
    return found


def nearest(places, found, start):
    """[(km, place)] of those of `places` that are in `found` (of `ways`), nearest first, without `start` itself."""
    rows = [(found[p.x, p.y][0], p) for p in places if p != start and (p.x, p.y) in found]
    return sorted(rows, key=lambda row: (row[0], row[1].name))


def describe(phone, opening):
    """A change: "phone 234567, opening time 9", or one of the two."""
    parts = [phone and f"phone {phone}", opening is not None and f"opening time {opening}"]
    return ", ".join(part for part in parts if part)


def record(saved, changes):
    """All that a user changed, [(name of a place, what)], in an order that does not depend on when it was done.

    saved: {label: name}; changes: {name: (phone, opening)}. The page of the user's places shows these rows, so a check
    that compares all of them also sees what should not have been done.
    """
    rows = [(name, f"as {label}") for label, name in saved.items()]
    return [*sorted(rows), *((name, f"change: {describe(*changes[name])}") for name in sorted(changes))]


def fill(db, world):
    """Write the world's rows into a fresh database."""
    content = town(world)
    ids = {p.name: p.id for p in content.places}
    db.executemany("insert into place values (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(astuple, content.places))
    db.executemany("insert into road values (?, ?, ?, ?, ?, ?, ?)", map(astuple, content.roads))
    db.executemany("insert into water values (?, ?, ?, ?)", content.water)
    rows = [(world.user, label, ids[name]) for label, name in content.saved.items()]
    db.executemany("insert into saved values (?, ?, ?)", rows)
    rows = [(world.user, ids[name], *change) for name, change in content.changes.items()]
    db.executemany("insert into change values (?, ?, ?, ?)", rows)


# --- looking around --------------------------------------------------------------------------------------------------


def _places(request):
    return [Place(*row) for row in database(request).execute("select * from place order by name")]


def _roads(request):
    return [Road(*row) for row in database(request).execute("select * from road")]


def _paged(rows, request):
    """The rows of the page that the address asks for, that page's number and the next one's (None at the end)."""
    number = whole_number(request.query_params.get("page", "1"), 1, 99) or 1
    start = (number - 1) * ROWS
    return {
        "rows": rows[start : start + ROWS],
        "total": len(rows),
        "number": number,
        "after": number + 1 if len(rows) > start + ROWS else None,
    }


def _line(*points):
    """SVG path data; a single point is a dot."""
    return "M" + "L".join(f"{x} {y}" for x, y in points) + ("h0" if len(points) == 1 else "")


def _drawn(request, marks=(), path=()):
    """What the drawn map shows: SVG path data, and the names of streets and of the places `marks` as (x, y, name)."""
    places, roads = _places(request), _roads(request)
    names = {}
    for road in roads:
        names.setdefault(road.name, (road.ax, road.ay, road.name))
    return {
        "width": max(road.bx for road in roads),
        "height": max(road.by for road in roads),
        "water": [_line((r[0], r[1]), (r[2], r[3])) for r in database(request).execute("select * from water")],
        "roads": [
            (use, "".join(_line((r.ax, r.ay), (r.bx, r.by)) for r in roads if (r.walking, r.driving) == open_to))
            for use, open_to in (("both", (1, 1)), ("walking", (1, 0)), ("driving", (0, 1)))
        ],
        "dots": [(i, "".join(_line((p.x, p.y)) for p in places if p.kind == kind)) for i, kind in enumerate(KINDS)],
        "path": _line(*path) if path else "",
        "streets": [name for name in names.values() if name[2].endswith("street")],
        "avenues": [name for name in names.values() if name[2].endswith("avenue")],
        "marks": [(place.x, place.y, place.name) for place in marks],
    }


async def home(request):
    return page(request, "map/home.html", title="map", kinds=KINDS, drawn=_drawn(request))


async def kind(request):
    name, rated = request.path_params["kind"], request.query_params.get("sort") == "rating"
    if name not in KINDS:
        raise HTTPException(404, "there is no such kind of place")
    rows = [p for p in _places(request) if p.kind == name]
    rows = sorted(rows, key=lambda p: -p.rating) if rated else rows
    return page(request, "map/kind.html", title=name, rated=rated, **_paged(rows, request))


async def search(request):
    query = (await form(request)).get("q", "")
    words = set(query.split())
    rows = [p for p in _places(request) if words and words <= {*p.name.split(), p.kind, *p.address.split()}]
    return page(request, "map/search.html", title="search", query=query, **_paged(rows, request))


def _place(request, key="id"):
    row = database(request).execute("select * from place where id = ?", (request.path_params[key],)).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such place")
    return Place(*row)


async def place(request, error=""):
    p, db = _place(request), database(request)
    pair = (user(request), p.id)
    saved = db.execute("select label from saved where person = ? and place = ?", pair).fetchone()
    sent = db.execute("select phone, opening from change where person = ? and place = ?", pair).fetchone()
    return page(
        request,
        "map/place.html",
        title=p.name,
        p=p,
        labels=LABELS,
        label=saved["label"] if saved else "",
        change=describe(*sent) if sent else "",
        drawn=_drawn(request, [p]),
        error=error,
    )


async def near(request):
    p, typed = _place(request), await form(request)
    name, way = typed.get("kind", ""), typed.get("by", "walking")
    known = name in KINDS and way in MINUTES
    found = ways(_roads(request), (p.x, p.y), way) if known else {}
    rows = nearest([other for other in _places(request) if other.kind == name], found, p)
    return page(
        request,
        "map/near.html",
        title="nearest",
        p=p,
        kinds=KINDS,
        kind=name,
        minutes=MINUTES,
        way=way,
        known=known,
        error="choose a kind" if "kind" in typed and not known else "",
        **_paged(rows, request),
    )


async def plan(request):
    """The route's form: to the address of the route, which has no typed text in it."""
    typed, error = await form(request), ""
    if "from" in typed:
        ids = {p.name: p.id for p in _places(request)}
        names = [typed["from"], typed.get("to", "")]
        absent = [name for name in names if name not in ids]
        if not all(names):
            error = "type the names of two places"
        elif absent:
            error = f"there is no place {absent[0]}"
        elif names[0] == names[1]:
            error = "these are the same place"
        elif typed.get("by") not in MINUTES:
            error = "choose walking or driving"
        else:
            return go(f"/map/route/{ids[names[0]]}/{ids[names[1]]}/{typed['by']}")
    return page(request, "map/route.html", title="route", minutes=MINUTES, typed=typed, error=error)


async def route(request):
    start, end, way = _place(request, "start"), _place(request, "end"), request.path_params["way"]
    if start == end or way not in MINUTES:
        raise HTTPException(404, "there is no such route")
    km, streets, path = ways(_roads(request), (start.x, start.y), way).get((end.x, end.y), (None, (), ()))
    return page(
        request,
        "map/route.html",
        title="route",
        minutes=MINUTES,
        typed={"from": start.name, "to": end.name, "by": way},
        km=km,
        streets=streets,
        drawn=_drawn(request, [start, end], path),
    )


# --- doing something -------------------------------------------------------------------------------------------------


def _members_only(handler):
    """Send who is not logged in to the log-in page."""

    async def guarded(request):
        return await handler(request) if user(request) else go("/map/login")

    return guarded


async def places(request):
    db, person = database(request), user(request)
    sql = "select label, name from saved join place on id = place where person = ?"
    saved = dict(map(tuple, db.execute(sql, (person,))))
    sql = "select name, change.phone, change.opening from change join place on id = place where person = ?"
    changes = {name: (phone, opening) for name, phone, opening in db.execute(sql, (person,))}
    ids = {p.name: p.id for p in _places(request)}
    return page(request, "map/places.html", title="places", rows=record(saved, changes), ids=ids)


async def save(request):
    p, db = _place(request), database(request)
    label = (await form(request)).get("label", "")
    if label not in LABELS:
        return await place(request, "choose a label")
    sql = "select name from saved join place on id = place where person = ? and label = ? and place != ?"
    other = db.execute(sql, (user(request), label, p.id)).fetchone()
    if other:
        return await place(request, f"{other['name']} is saved as {label}")
    db.execute("delete from saved where person = ? and place = ?", (user(request), p.id))
    db.execute("insert into saved values (?, ?, ?)", (user(request), label, p.id))
    return done(request, f"/map/p/{p.id}", f"saved {p.name} as {label}")


async def remove(request):
    p = _place(request)
    database(request).execute("delete from saved where person = ? and place = ?", (user(request), p.id))
    return done(request, "/map/places", f"removed {p.name} from your places")


async def change(request):
    p, error = _place(request), ""
    typed = {"phone": p.phone, "opening": str(p.opening)}
    if request.method == "POST":
        typed |= await form(request)
        opening = whole_number(typed["opening"], 0, 23)
        if not re.fullmatch("[1-9][0-9]{5}", typed["phone"]):
            error = "a phone has 6 digits"
        elif opening is None:
            error = "the opening time must be 0 to 23"
        elif (typed["phone"], opening) == (p.phone, p.opening):
            error = "nothing is changed"
        else:
            new = (typed["phone"] if typed["phone"] != p.phone else None, opening if opening != p.opening else None)
            database(request).execute("insert or replace into change values (?, ?, ?, ?)", (user(request), p.id, *new))
            return done(request, f"/map/p/{p.id}", f"sent your change of {p.name}: {describe(*new)}")
    return page(request, "map/change.html", title="change", p=p, typed=typed, error=error)


async def take_back(request):
    p = _place(request)
    database(request).execute("delete from change where person = ? and place = ?", (user(request), p.id))
    return done(request, "/map/places", f"your change of {p.name} is taken back")


async def login(request):
    typed, error = await form(request), ""
    if request.method == "POST":
        db, pair = database(request), (typed.get("name", ""), typed.get("password", ""))
        if db.execute("select 1 from user where name = ? and password = ?", pair).fetchone():
            db.execute("delete from login")
            db.execute("insert into login values (?)", pair[:1])
            return done(request, "/map/", f"logged in as {pair[0]}")
        error = "wrong name or password"
    return page(request, "map/login.html", title="log in", typed=typed, error=error)


async def logout(request):
    database(request).execute("delete from login")
    return done(request, "/map/login", "you are logged out")


_BOTH = ["GET", "POST"]
routes = [
    Route("/", home),
    Route("/k/{kind}", kind),
    Route("/search", search),
    Route("/p/{id:short}", place),
    Route("/p/{id:short}/near", near),
    Route("/p/{id:short}/save", _members_only(save), methods=["POST"]),
    Route("/p/{id:short}/remove", _members_only(remove), methods=["POST"]),
    Route("/p/{id:short}/change", _members_only(change), methods=_BOTH),
    Route("/p/{id:short}/back", _members_only(take_back), methods=["POST"]),
    Route("/route", plan),
    Route("/route/{start:short}/{end:short}/{way}", route),
    Route("/places", _members_only(places)),
    Route("/login", login, methods=_BOTH),
    Route("/logout", logout, methods=["POST"]),
]
