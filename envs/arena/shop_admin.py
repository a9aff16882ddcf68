"""The shop's back office: orders, products, members, reviews that wait for the manager, a report.

It is a world of its own: its rows are not those of the shop next door. What has changed since the episode began stands
on one page, `/changes`, computed by comparing each table with a copy of its first rows.
"""

from collections import Counter
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.routing import Route

from envs.arena.server import database, done, form, go, page, whole_number
from envs.arena.shop import CITIES, MONTHS, draw_review

NAME = "shop_admin"
GROUPS = ("family", "plus", "press", "standard")
STATES = ("enabled", "disabled")  # of a product
NEXT = {"pending": ("shipped", "cancelled"), "shipped": ("delivered",), "delivered": (), "cancelled": ()}
SORTS = {"name": "name", "least stock": "stock, name", "most stock": "stock desc, name"}
ROWS = 6  # of a list, on one page
LONGEST = 60  # letters of a note or a city

# The name of an order is its number, that of a review "anna baker for red lamp".
SCHEMA = """
create table admin_manager (name text);
create table admin_product (name text primary key, price int, stock int, status text);
create table admin_member (name text primary key, city text, "group" text);
create table admin_order (name text primary key, member text, product text, count int, total int, day int, month text,
    status text, note text);
create table admin_review (name text primary key, member text, product text, stars int, text text, status text);
"""
# Table -> what a row is called, what of it can change.
TABLES = {
    "product": ("", ("price", "stock", "status")),
    "member": ("", ("city", "group")),
    "order": ("order ", ("status", "note")),
    "review": ("review of ", ("status",)),
}


# --- content ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    name: str
    price: int
    stock: int
    status: str


@dataclass(frozen=True)
class Member:
    name: str
    city: str
    group: str


@dataclass(frozen=True)
class Order:
    name: str
    member: str
    product: str
    count: int
    total: int
    day: int
    month: str
    status: str
    note: str


@dataclass(frozen=True)
class Review:
    name: str
    member: str
    product: str
    stars: int
    text: str
    status: str  # waiting or accepted; deleted ones are kept, and shown nowhere


@dataclass(frozen=True)
class Office:
    """What a world's back office holds before anything is done in it."""

    products: tuple
    members: tuple
    orders: tuple  # oldest first
    reviews: tuple  # as listed
    missing: tuple  # names of products that there are not
    strangers: tuple  # names like those of the members, which none has

    def product(self, name):
        """The product of that name; raises LookupError, as do the other three."""
        return _named(self.products, name)

    def member(self, name):
        return _named(self.members, name)

    def order(self, number):
        return _named(self.orders, number)

    def review(self, name):
        return _named(self.reviews, name)


def _named(rows, name):
    return {row.name: row for row in rows}[name]


def draw_note(world, rng):
    """A note to an order: "wash the lamp"."""
    return f"{rng.choice(world.pool('verb'))} the {rng.choice(world.pool('noun'))}"


def ranking(sold):
    """[(product, how many)] from (product, count) pairs, most first."""
    counts = Counter()
    for product, count in sold:
        counts[product] += count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


@lru_cache(maxsize=512)
def office(world):
    """The Office of a world, always the same one."""
    rng = world.rng("shop_admin")
    people = rng.sample(world.people[1:], 6)
    lasts = rng.sample(world.pool("last"), 5)
    others = [f"{person.split()[0]} {last}" for person in people for last in lasts]  # near misses
    others = rng.sample([name for name in others if name not in world.people], 12)
    names = [*people, *others[:6]]
    adjectives, nouns = rng.sample(world.pool("adjective"), 10), rng.sample(world.pool("noun"), 10)
    goods = rng.sample([f"{adjective} {noun}" for adjective in adjectives for noun in nouns], 26)
    prices, stocks = rng.sample(range(3, 99), 20), rng.sample(range(3, 99), 20)  # so that there is one least stock
    states = rng.sample(["disabled"] * 5 + ["enabled"] * 15, 20)
    products = tuple(map(Product, goods, prices, stocks, states))
    return Office(
        products=products,
        members=tuple(Member(name, rng.choice(CITIES), rng.choice(GROUPS)) for name in names),
        orders=tuple(_draw_orders(world, rng, names, products)),
        reviews=tuple(_draw_reviews(world, rng, names, products)),
        missing=tuple(goods[20:]),
        strangers=tuple(others[6:]),
    )


def _draw_reviews(world, rng, names, products):
    """Of eight people by two each: two people's wait, of each other one's the first."""
    names, goods, pairs = rng.sample(names, 8), [p.name for p in rng.sample(products, 8)] * 2, ()
    while len(set(pairs)) < 16:
        rng.shuffle(goods)
        pairs = tuple(zip([*names, *names], goods))
    for i in rng.sample(range(16), 16):
        name, product = pairs[i]
        status = "waiting" if i < 10 else "accepted"
        yield Review(f"{name} for {product}", name, product, rng.randint(1, 5), draw_review(world, rng), status)


def _draw_orders(world, rng, names, products):
    number = rng.randint(2000, 8000)
    for i, month in enumerate(MONTHS):
        days = sorted(rng.sample(range(1, 29), rng.randint(6, 9)))
        best = ()
        while len(best) < 2 or best[0][1] == best[1][1]:  # until the month has one top product
            some = rng.sample(products, 5)
            items = [(rng.choice(some), rng.randint(1, 4)) for _ in days]
            best = ranking((product.name, count) for product, count in items)
        for day, (product, count) in zip(days, items):
            number += rng.randint(1, 3)
            yield Order(
                name=str(number),
                member=rng.choice(names),
                product=product.name,
                count=count,
                total=count * product.price,
                day=day,
                month=month,
                status=rng.choices(list(NEXT), (2 + i, 3, 7 - i, 2))[0],  # older ones are rather delivered
                note=draw_note(world, rng) if rng.random() < 0.3 else "",
            )


def fill(db, world):
    """Write the world's rows into a fresh database."""
    content = office(world)
    db.execute("insert into admin_manager values (?)", (world.user,))
    for table, rows in zip(TABLES, (content.products, content.members, content.orders, content.reviews)):
        marks = ", ".join("?" for _ in fields(rows[0]))
        db.executemany(f"insert into admin_{table} values ({marks})", [astuple(row) for row in rows])
        db.execute(f"create table admin_{table}_before as select * from admin_{table}")


def change_lines(changes):
    """The page of all changes: a line for each (table, name, field, old, new), in an order of its own."""
    return sorted(
        f"{TABLES[table][0]}{name}: {field} {_shown(old)} to {_shown(new)}" for table, name, field, old, new in changes
    )


def _shown(value):
    return "none" if value == "" else value


# --- looking around --------------------------------------------------------------------------------------------------


def _manager(handler):
    """Send who is not the manager to the log-in page."""

    async def guarded(request):
        sql = "select 1 from login join admin_manager using (name)"
        return await handler(request) if database(request).execute(sql).fetchone() else go("/shop_admin/login")

    return guarded


def _slug(name):
    return name.replace(" ", "-")


def _show(request, template, **values):
    """A page of the office; every template also sees what can be chosen in forms."""
    choices = {"statuses": tuple(NEXT), "states": STATES, "groups": GROUPS, "sorts": tuple(SORTS), "months": MONTHS}
    return page(request, f"shop_admin/{template}.html", slug=_slug, **choices, **values)


def _list(request, title, rows, **asked):
    """The page of a list that the address asks for.

    `asked` are the fields of its form, all of them, so that a view has the same address whichever way it is reached.
    """
    number = whole_number(request.query_params.get("page", "1"), 1, 99) or 1
    start, here = (number - 1) * ROWS, f"{request.url.path}?{urlencode(asked)}"
    return _show(
        request,
        title,
        title=title,
        rows=rows[start : start + ROWS],
        total=len(rows),
        before=f"{here}&page={number - 1}" if number > 2 else here if number == 2 else None,
        after=f"{here}&page={number + 1}" if len(rows) > start + ROWS else None,
        asked=asked,
    )


def _has(text, words):
    """Whether each of the words is a word of the text: "port" is none of "porter"."""
    return set(words.split()) <= set(text.split())


async def home(request):
    db = database(request)
    pending = db.execute("select count(*) from admin_order where status = 'pending'").fetchone()[0]
    waiting = db.execute("select count(*) from admin_review where status = 'waiting'").fetchone()[0]
    return _show(request, "home", title="office", pending=pending, waiting=waiting)


async def search(request):
    db, query, rows = database(request), (await form(request)).get("q", ""), []
    for table, text in (("member", "'member'"), ("product", "'product'"), ("order", "member || ', ' || status")):
        sql = f"""select '{table}s' as place, name, '{TABLES[table][0]}' || name as label, {text} as text
            from admin_{table} order by name"""
        rows += [row for row in db.execute(sql) if query and _has(row["label"], query)]
    return _list(request, "search", rows, q=query)


async def orders(request):
    asked = await form(request)
    status, member = asked.get("status", ""), asked.get("member", "")
    sql = "select * from admin_order where ? in ('', status) order by name desc"
    rows = [row for row in database(request).execute(sql, (status,)) if _has(row["member"], member)]
    return _list(request, "orders", rows, status=status, member=member)


async def products(request):
    asked = await form(request)
    status = asked.get("status", "")
    sort = asked.get("sort") if asked.get("sort") in SORTS else "name"
    sql = f"select * from admin_product where ? in ('', status) order by {SORTS[sort]}"
    return _list(request, "products", database(request).execute(sql, (status,)).fetchall(), status=status, sort=sort)


async def members(request):
    group = (await form(request)).get("group", "")
    sql = """select * from admin_member where ? in ('', "group") order by name"""
    return _list(request, "members", database(request).execute(sql, (group,)).fetchall(), group=group)


async def reviews(request):
    status = "accepted" if (await form(request)).get("status") == "accepted" else "waiting"
    sql = "select * from admin_review where status = ? order by rowid"
    return _list(request, "reviews", database(request).execute(sql, (status,)).fetchall(), status=status)


async def report(request):
    return _show(request, "report", title="report")


async def top(request):
    month = (await form(request)).get("month", "")
    rows = database(request).execute("select product, count from admin_order where ? in ('', month)", (month,))
    return _show(request, "top", title="top products", rows=ranking(rows)[:ROWS], asked=month)


async def months(request):
    status = (await form(request)).get("status", "")
    sql = "select count(*), ifnull(sum(total), 0) from admin_order where month = ? and ? in ('', status)"
    rows = [(month, *database(request).execute(sql, (month, status)).fetchone()) for month in MONTHS]
    return _show(request, "months", title="orders by month", rows=rows, asked=status)


async def changes(request):
    found, db = [], database(request)
    for table, (_, names) in TABLES.items():
        for field in names:
            sql = f"""select '{table}', name, '{field}', old."{field}", new."{field}" from admin_{table} as new
                join admin_{table}_before as old using (name) where old."{field}" != new."{field}" """
            found += db.execute(sql).fetchall()
    return _show(request, "changes", title="changes", lines=change_lines(found))


# --- doing something -------------------------------------------------------------------------------------------------


def _row(request, table):
    """The row of the table that the address names."""
    name = request.path_params["slug"].replace("-", " ")
    row = database(request).execute(f"select * from admin_{table} where name = ?", (name,)).fetchone()
    if row is None or (table == "review" and row["status"] == "deleted"):
        raise HTTPException(404, f"there is no such {table}")
    return row


def _set(request, table, row, text, path=None, **values):
    """Write the values into the row, then show its page (or `path`), which says `text`."""
    columns = ", ".join(f'"{field}" = ?' for field in values)
    sql = f"update admin_{table} set {columns} where name = ?"
    database(request).execute(sql, (*values.values(), row["name"]))
    return done(request, path or f"/shop_admin/{table}s/{_slug(row['name'])}", text)


async def order(request):
    row, typed, error = _row(request, "order"), await form(request), ""
    choices = (row["status"], *NEXT[row["status"]])
    if request.method == "POST":
        status, note = typed.get("status", ""), typed.get("note", "")
        if status not in choices:
            error = "choose a status"
        elif len(note) > LONGEST:
            error = f"a note has at most {LONGEST} letters"
        else:
            text = f"saved order {row['name']}: status {status}, note {note or 'none'}"
            return _set(request, "order", row, text, status=status, note=note)
    title = f"order {row['name']}"
    return _show(request, "order", title=title, o=row, choices=choices, typed=typed, error=error)


async def product(request):
    row = _row(request, "product")
    return _show(request, "product", title=row["name"], p=row)


async def edit_product(request):
    row, typed, error = _row(request, "product"), await form(request), ""
    if request.method == "POST":
        price, stock = whole_number(typed.get("price", ""), 1, 9999), whole_number(typed.get("stock", ""), 0, 9999)
        if price is None:
            error = "the price must be 1 to 9999"
        elif stock is None:
            error = "the stock must be 0 to 9999"
        else:
            text = f"saved {row['name']}: price {price}, stock {stock}"
            return _set(request, "product", row, text, price=price, stock=stock)
    title = f"edit {row['name']}"
    return _show(request, "edit", title=title, p=row, typed=typed, error=error)


async def switch(request):
    row, status = _row(request, "product"), (await form(request)).get("status")
    if status not in STATES:
        raise HTTPException(400, "a product is enabled or disabled")
    return _set(request, "product", row, f"{row['name']} is {status}", status=status)


async def member(request):
    row, typed, error = _row(request, "member"), await form(request), ""
    if request.method == "POST":
        group, city = typed.get("group", ""), typed.get("city", "")
        if group not in GROUPS:
            error = "choose a group"
        elif not 0 < len(city) <= LONGEST:
            error = f"the city must have 1 to {LONGEST} letters"
        else:
            text = f"saved {row['name']}: group {group}, city {city}"
            return _set(request, "member", row, text, group=group, city=city)
    sql = "select count(*) from admin_order where member = ?"
    total = database(request).execute(sql, (row["name"],)).fetchone()[0]
    return _show(request, "member", title=row["name"], m=row, total=total, typed=typed, error=error)


async def review(request):
    row = _row(request, "review")
    return _show(request, "review", title=row["name"], r=row)


async def accept(request):
    row = _row(request, "review")
    text = f"accepted the review of {row['name']}"
    return _set(request, "review", row, text, "/shop_admin/reviews", status="accepted")


async def delete(request):
    row = _row(request, "review")
    if request.method == "POST":
        text = f"deleted the review of {row['name']}"
        return _set(request, "review", row, text, "/shop_admin/reviews", status="deleted")
    return _show(request, "confirm", title="delete review", r=row)


async def login(request):
    typed, error = await form(request), ""
    if request.method == "POST":
        db, pair = database(request), (typed.get("name", ""), typed.get("password", ""))
        sql = "select 1 from user join admin_manager using (name) where name = ? and password = ?"
        if db.execute(sql, pair).fetchone():
            db.execute("delete from login")
            db.execute("insert into login values (?)", pair[:1])
            return done(request, "/shop_admin/", f"logged in as {pair[0]}")
        error = "wrong name or password"
    return _show(request, "login", title="log in", typed=typed, error=error)


async def logout(request):
    database(request).execute("delete from login")
    return done(request, "/shop_admin/login", "you are logged out")


_BOTH = ["GET", "POST"]
routes = [
    Route("/", _manager(home)),
    Route("/search", _manager(search)),
    Route("/orders", _manager(orders)),
    Route("/orders/{slug}", _manager(order), methods=_BOTH),
    Route("/products", _manager(products)),
    Route("/products/{slug}", _manager(product)),
    Route("/products/{slug}/edit", _manager(edit_product), methods=_BOTH),
    Route("/products/{slug}/switch", _manager(switch), methods=["POST"]),
    Route("/members", _manager(members)),
    Route("/members/{slug}", _manager(member), methods=_BOTH),
    Route("/reviews", _manager(reviews)),
    Route("/reviews/{slug}", _manager(review)),
    Route("/reviews/{slug}/accept", _manager(accept), methods=["POST"]),
    Route("/reviews/{slug}/delete", _manager(delete), methods=_BOTH),
    Route("/report", _manager(report)),
    Route("/report/top", _manager(top)),
    Route("/report/months", _manager(months)),
    Route("/changes", _manager(changes)),
    Route("/login", login, methods=_BOTH),
    Route("/logout", logout, methods=["POST"]),
]
