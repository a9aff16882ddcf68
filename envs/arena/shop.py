"""The shop: search, categories, products with options and reviews, cart, checkout, orders, account."""

import random
from dataclasses import dataclass
from functools import lru_cache

from starlette.exceptions import HTTPException
from starlette.routing import Route

from envs.arena.content import draw_pairs
from envs.arena.server import database, done, form, go, page, user, whole_number

NAME = "shop"
CATEGORIES = ("kitchen", "garden", "office", "sports", "toys")
SIZES = ("small", "medium", "large")
COLORS = ("cream", "lime", "plum")
ADDRESSES = ("home", "office", "cabin")
SHIPPING = {"standard": 0, "express": 9, "overnight": 19}
SORTS = {"name": "name", "price low": "price", "price high": "price desc", "rating": "rating desc, name"}
CITIES = ("athens", "bergen", "cardiff", "dublin", "geneva", "lisbon", "malmo", "naples", "porto", "turin", "vienna")
MONTHS = ("january", "february", "march", "april", "may", "june")
VERDICTS = ("good", "great", "fine", "poor")
ROWS = 6  # of a list, on one page
ORDER_ROWS = 5

SCHEMA = """
create table product (id integer primary key, name text, category text, price int, stock int, sizes int, colors int);
create table review (id integer primary key, product int, person text, stars int, text text);
create table line (id integer primary key, product int, count int, options text, quick int);
create table purchase (number integer primary key, person text, date text, status text, items text, address text,
    shipping text, total int);
create table account (person text primary key, city text, phone text);
"""


# --- content ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    id: int
    name: str
    category: str
    price: int
    stock: int
    sizes: bool
    colors: bool
    reviews: tuple  # of (person, stars, text), as on the page


@dataclass(frozen=True)
class Order:
    number: int
    date: str
    status: str
    items: str
    address: str
    shipping: str
    total: int


@dataclass(frozen=True)
class Catalogue:
    """What a world's shop holds before anything is done in it."""

    products: tuple
    missing: tuple  # names of products that are not sold
    orders: tuple  # of the user, newest first
    cart: tuple  # of (Product, count)
    city: str
    phone: str

    def product(self, name):
        """The product of that name; raises LookupError."""
        return {product.name: product for product in self.products}[name]


def draw_review(world, rng):
    """A review's text: "good for camping"."""
    return f"{rng.choice(VERDICTS)} for {rng.choice(world.pool('topic'))}"


@lru_cache(maxsize=512)
def catalogue(world):
    """The Catalogue of a world, always the same one."""
    rng = world.rng("shop")
    adjectives = [word for word in world.pool("adjective") if word not in SIZES]
    nouns = rng.sample(world.pool("noun"), min(20, len(world.pool("noun"))))  # fewer nouns than products: near misses
    names = draw_pairs(rng, adjectives, nouns, 41)
    options = [(False, False)] * 16 + [(True, False)] * 8 + [(False, True)] * 5 + [(True, True)] * 6
    rng.shuffle(options)
    prices = {category: rng.sample(range(3, 99), 7) for category in CATEGORIES}
    products = []
    for i, (sizes, colors) in enumerate(options):
        people = rng.sample(world.people[1:], rng.choice((2, 3, 3, 4, 7)))
        products.append(
            Product(
                id=101 + i,
                name=names[i],
                category=CATEGORIES[i % 5],
                price=prices[CATEGORIES[i % 5]][i // 5],
                stock=rng.randint(5, 60),
                sizes=sizes,
                colors=colors,
                reviews=tuple((person, rng.randint(1, 5), draw_review(world, rng)) for person in people),
            )
        )
    return Catalogue(
        products=tuple(products),
        missing=tuple(names[35:]),
        orders=tuple(_draw_orders(rng, products)),
        cart=tuple((p, rng.randint(1, 3)) for p in rng.sample([p for p in products if not (p.sizes or p.colors)], 2)),
        city=rng.choice(CITIES),
        phone=str(rng.randint(200000, 999999)),
    )


def _draw_orders(rng, products):
    numbers = sorted((rng.randint(2000, 8999) for _ in range(7)), reverse=True)
    while len(set(numbers)) < 7:
        numbers = sorted((rng.randint(2000, 8999) for _ in range(7)), reverse=True)
    days = sorted(rng.sample(range(len(MONTHS) * 28), 7), reverse=True)
    for k, (number, day) in enumerate(zip(numbers, days)):
        product, count = rng.choice(products), rng.randint(1, 3)
        shipping = rng.choice(list(SHIPPING))
        yield Order(
            number=number,
            date=f"{day % 28 + 1} {MONTHS[day // 28]}",
            status=("pending", "pending", "pending", "shipped", "delivered", "delivered", "delivered")[k],
            items=describe(count, product.name),
            address=rng.choice(ADDRESSES),
            shipping=shipping,
            total=count * product.price + SHIPPING[shipping],
        )


def describe(count, name, size="", color="", gift=False):
    """A line of the cart or of an order: "2 red lamp, size large, color plum, gift wrap"."""
    parts = [f"{count} {name}", size and f"size {size}", color and f"color {color}", gift and "gift wrap"]
    return ", ".join(part for part in parts if part)


def fill(db, world):
    """Write the world's rows into a fresh database."""
    shop = catalogue(world)
    for p in shop.products:
        row = (p.id, p.name, p.category, p.price, p.stock, p.sizes, p.colors)
        db.execute("insert into product values (?, ?, ?, ?, ?, ?, ?)", row)
        # The newest review stands first on the page, so the first of `reviews` is inserted last.
        reviews = [(p.id, person, stars, text) for person, stars, text in reversed(p.reviews)]
        db.executemany("insert into review (product, person, stars, text) values (?, ?, ?, ?)", reviews)
    for o in shop.orders:
        row = (o.number, world.user, o.date, o.status, o.items, o.address, o.shipping, o.total)
        db.execute("insert into purchase values (?, ?, ?, ?, ?, ?, ?, ?)", row)
    for product, count in shop.cart:
        db.execute("insert into line (product, count, options, quick) values (?, ?, '', 0)", (product.id, count))
    rng = random.Random(f"{world.seed}/accounts")
    for person in world.people:
        city, phone = rng.choice(CITIES), str(rng.randint(200000, 999999))
        row = (person, shop.city, shop.phone) if person == world.user else (person, city, phone)
        db.execute("insert into account values (?, ?, ?)", row)


# --- looking around -----------------------------------------------------------------------------------------------


def _product(request):
    sql = "select product.*, (select round(avg(stars)) from review where product = product.id) as rating from product"
    row = database(request).execute(f"{sql} where id = ?", (request.path_params["id"],)).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such product")
    return row


def _paged(rows, request, size):
    """The rows of the page that the address asks for, and that page's number and the next one's (None at the end)."""
    number = whole_number(request.query_params.get("page", "1"), 1, 99) or 1
    start = (number - 1) * size
    return rows[start : start + size], number, number + 1 if len(rows) > start + size else None


LISTED = """select product.id, name, price, cast(round(avg(stars)) as int) as rating from product
    join review on review.product = product.id {where} group by product.id order by {order}"""


async def home(request):
    return page(request, "shop/home.html", title="shop", categories=CATEGORIES)


async def category(request):
    name = request.path_params["name"]
    if name not in CATEGORIES:
        raise HTTPException(404, "there is no such category")
    sort = request.query_params.get("sort", "name").replace("-", " ")
    sort = sort if sort in SORTS else "name"
    sql = LISTED.format(where="where category = ?", order=SORTS[sort])
    rows = database(request).execute(sql, (name,)).fetchall()
    rows, number, after = _paged(rows, request, ROWS)
    return page(
        request, "shop/category.html", title=name, rows=rows, sort=sort, sorts=list(SORTS), number=number, after=after
    )


async def search(request):
    query = (await form(request)).get("q", "")
    words = query.split()
    rows = database(request).execute(LISTED.format(where="", order="name")).fetchall()
    rows = [row for row in rows if words and all(word in row["name"].split() for word in words)]
    found, number, after = _paged(rows, request, ROWS)
    return page(
        request,
        "shop/search.html",
        title="search",
        rows=found,
        query=query,
        total=len(rows),
        number=number,
        after=after,
    )


async def product(request, error="", typed=None):
    row = _product(request)
    typed = typed or {"count": "1"}
    return page(
        request, "shop/product.html", title=row["name"], p=row, sizes=SIZES, colors=COLORS, typed=typed, error=error
    )


async def reviews(request):
    row = _product(request)
    sql = "select * from review where product = ? order by id desc"
    rows = database(request).execute(sql, (row["id"],)).fetchall()
    shown, number, after = _paged(rows, request, ROWS)
    title = f"reviews of {row['name']}"
    return page(
        request, "shop/reviews.html", title=title, p=row, rows=shown, total=len(rows), number=number, after=after
    )


async def write_review(request):
    if not user(request):
        return go("/shop/login")
    row, typed, error = _product(request), await form(request), ""
    if request.method == "POST":
        stars = whole_number(typed.get("stars", ""), 1, 5)
        if stars is None:
            error = "choose the stars"
        elif not typed.get("text"):
            error = "write something"
        else:
            sql = "insert into review (product, person, stars, text) values (?, ?, ?, ?)"
            database(request).execute(sql, (row["id"], user(request), stars, typed["text"]))
            text = f"your review of {row['name']} is posted: {stars} stars, {typed['text']}"
            return done(request, f"/shop/p/{row['id']}/reviews", text)
    return page(request, "shop/write.html", title=f"review {row['name']}", p=row, typed=typed, error=error)


# --- cart and checkout --------------------------------------------------------------------------------------------


def _lines(request, quick=0):
    sql = """select line.*, name, price, stock from line join product on product.id = line.product
        where quick = ? order by name, line.id"""
    return database(request).execute(sql, (quick,)).fetchall()


def _what(line):
    return f"{line['count']} {line['name']}{line['options']}"


async def choose(request):
    """The product page's form: into the cart, or ("buy now") straight to the checkout."""
    db, row, typed = database(request), _product(request), await form(request)
    count = whole_number(typed.get("count", ""), 1, row["stock"])
    size, color = typed.get("size", ""), typed.get("color", "")
    if count is None:
        return await product(request, f"the quantity must be 1 to {row['stock']}", typed)
    if row["sizes"] and size not in SIZES:
        return await product(request, "choose a size", typed)
    if row["colors"] and color not in COLORS:
        return await product(request, "choose a color", typed)
    what = describe(count, row["name"], row["sizes"] and size, row["colors"] and color, "gift" in typed)
    options = what.removeprefix(f"{count} {row['name']}")
    quick = int("buy" in typed)
    if quick:
        db.execute("delete from line where quick = 1")
    old = db.execute(
        "select * from line where product = ? and options = ? and quick = ?", (row["id"], options, quick)
    ).fetchone()
    if old and old["count"] + count > row["stock"]:
        return await product(request, f"the cart has {old['count']} of {row['stock']} already", typed)
    if old:
        db.execute("update line set count = count + ? where id = ?", (count, old["id"]))
    else:
        sql = "insert into line (product, count, options, quick) values (?, ?, ?, ?)"
        db.execute(sql, (row["id"], count, options, quick))
    return go("/shop/checkout?quick=1") if quick else done(request, "/shop/cart", f"added to the cart: {what}")


async def cart(request):
    lines = _lines(request)
    total = sum(line["count"] * line["price"] for line in lines)
    return page(request, "shop/cart.html", title="cart", lines=lines, what=_what, total=total)


async def quantities(request):
    db, lines, typed, error = database(request), _lines(request), await form(request), ""
    if not lines:
        return go("/shop/cart")
    if request.method == "POST":
        counts = {line["id"]: whole_number(typed.get(f"count{line['id']}", ""), 1, line["stock"]) for line in lines}
        wrong = [line for line in lines if counts[line["id"]] is None]
        if not wrong:
            db.executemany("update line set count = ? where id = ?", [(n, i) for i, n in counts.items()])
            return done(request, "/shop/cart", "changed: " + "; ".join(_what(line) for line in _lines(request)))
        error = f"the quantity of {wrong[0]['name']} must be 1 to {wrong[0]['stock']}"
    return page(request, "shop/quantities.html", title="change quantities", lines=lines, typed=typed, error=error)


def _line(request):
    lines = [line for line in _lines(request) if line["id"] == request.path_params["id"]]
    if not lines:
        raise HTTPException(404, "this is not in the cart")
    return lines[0]


async def remove(request):
    line = _line(request)
    if request.method == "POST":
        database(request).execute("delete from line where id = ?", (line["id"],))
        return done(request, "/shop/cart", f"removed from the cart: {_what(line)}")
    return page(
        request,
        "shop/confirm.html",
        title="remove",
        text=f"remove {_what(line)} from the cart?",
        yes="yes, remove",
        no="/shop/cart",
    )


async def checkout(request):
    if not user(request):
        return go("/shop/login")
    db, typed, error = database(request), await form(request), ""
    quick = int("quick" in request.query_params)
    lines = _lines(request, quick)
    if not lines:
        return go("/shop/cart")
    items = "; ".join(_what(line) for line in lines)
    total = sum(line["count"] * line["price"] for line in lines)
    if request.method == "POST":
        address, shipping = typed.get("address", ""), typed.get("shipping", "")
        if address not in ADDRESSES:
            error = "choose an address"
        elif shipping not in SHIPPING:
            error = "choose a shipping method"
        else:
            number = db.execute("select max(number) from purchase").fetchone()[0] + 1
            row = (number, user(request), "today", "pending", items, address, shipping, total + SHIPPING[shipping])
            db.execute("insert into purchase values (?, ?, ?, ?, ?, ?, ?, ?)", row)
            for line in lines:
                db.execute("update product set stock = stock - ? where id = ?", (line["count"], line["product"]))
            db.execute("delete from line where quick = ?", (quick,))
            return done(request, f"/shop/orders/{number}", f"order {number} is placed")
    return page(
        request,
        "shop/checkout.html",
        title="checkout",
        items=items,
        total=total,
        addresses=ADDRESSES,
        shipping=SHIPPING,
        typed=typed,
        error=error,
    )


# --- orders and account -------------------------------------------------------------------------------------------


async def orders(request):
    if not user(request):
        return go("/shop/login")
    sql = "select * from purchase where person = ? order by number desc"
    rows = database(request).execute(sql, (user(request),)).fetchall()
    pending = sum(row["status"] == "pending" for row in rows)
    shown, number, after = _paged(rows, request, ORDER_ROWS)
    return page(
        request,
        "shop/orders.html",
        title="orders",
        rows=shown,
        total=len(rows),
        pending=pending,
        number=number,
        after=after,
    )


def _order(request):
    sql = "select * from purchase where number = ? and person = ?"
    row = database(request).execute(sql, (request.path_params["number"], user(request))).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such order")
    return row


async def order(request):
    row = _order(request)
    return page(request, "shop/order.html", title=f"order {row['number']}", o=row)


async def cancel(request):
    row = _order(request)
    here = f"/shop/orders/{row['number']}"
    if row["status"] != "pending":
        return go(here)
    if request.method == "POST":
        database(request).execute("update purchase set status = 'cancelled' where number = ?", (row["number"],))
        return done(request, here, f"order {row['number']} is cancelled")
    return page(
        request, "shop/confirm.html", title="cancel", text=f"cancel order {row['number']}?", yes="yes, cancel", no=here
    )


def _account(request):
    return database(request).execute("select * from account where person = ?", (user(request),)).fetchone()


async def account(request):
    if not user(request):
        return go("/shop/login")
    return page(request, "shop/account.html", title="account", a=_account(request))


async def edit_account(request):
    if not user(request):
        return go("/shop/login")
    typed, error = dict(_account(request)), ""
    if request.method == "POST":
        typed |= await form(request)
        if not typed["city"]:
            error = "the city is missing"
        elif whole_number(typed["phone"], 100000, 999999) is None:
            error = "a phone number has 6 digits"
        else:
            row = (typed["city"], typed["phone"], user(request))
            database(request).execute("update account set city = ?, phone = ? where person = ?", row)
            return done(request, "/shop/account", f"saved: city {typed['city']}, phone {typed['phone']}")
    return page(request, "shop/edit.html", title="edit account", typed=typed, error=error)


async def login(request):
    typed, error = await form(request), ""
    if request.method == "POST":
        db, pair = database(request), (typed.get("name", ""), typed.get("password", ""))
        if db.execute("select 1 from user where name = ? and password = ?", pair).fetchone():
            db.execute("delete from login")
            db.execute("insert into login values (?)", pair[:1])
            return done(request, "/shop/", f"logged in as {pair[0]}")
        error = "wrong name or password"
    return page(request, "shop/login.html", title="log in", typed=typed, error=error)


async def logout(request):
    database(request).execute("delete from login")
    return done(request, "/shop/login", "you are logged out")


_BOTH = ["GET", "POST"]
routes = [
    Route("/", home),
    Route("/c/{name}", category),
    Route("/search", search),
    Route("/p/{id:short}", product),
    Route("/p/{id:short}/choose", choose, methods=["POST"]),
    Route("/p/{id:short}/reviews", reviews),
    Route("/p/{id:short}/review", write_review, methods=_BOTH),
    Route("/cart", cart),
    Route("/cart/edit", quantities, methods=_BOTH),
    Route("/cart/{id:short}/remove", remove, methods=_BOTH),
    Route("/checkout", checkout, methods=_BOTH),
    Route("/orders", orders),
    Route("/orders/{number:short}", order),
    Route("/orders/{number:short}/cancel", cancel, methods=_BOTH),
    Route("/account", account),
    Route("/account/edit", edit_account, methods=_BOTH),
    Route("/login", login, methods=_BOTH),
    Route("/logout", logout, methods=["POST"]),
]
