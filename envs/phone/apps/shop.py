"""The shop: search, sort, filter, an item with its colours, a cart, a checkout, orders."""

from dataclasses import dataclass, replace
from functools import lru_cache

from envs.phone.screen import (
    Screen,
    Widget,
    button,
    choose,
    dialog,
    draft,
    header,
    image,
    line_of,
    page,
    paragraph,
    radio,
    row,
    say,
    search_box,
    swap,
    text,
    to,
    wide_button,
    with_stack,
)

PACKAGE, LABEL, ICON, PERMISSION = "org.cleangui.shop", "Shop", ("bag", (227, 80, 20)), ""
CATEGORIES = ("Home", "Garden", "Sports", "Music", "Office")
COLOURS = {"Red": (217, 48, 37), "Blue": (26, 115, 232), "Green": (24, 128, 56), "Black": (40, 42, 46)}
SORTS = ("Best match", "Price: low to high", "Price: high to low", "Rating")
PRICES = ("Any price", "Under $25", "Under $50", "Under $75")
SHIPPING = {"Standard": 0, "Express": 9, "Pickup": 2}
ADDRESSES = ("Home", "Work", "Locker")


@dataclass(frozen=True)
class Product:
    name: str
    price: int
    stars: float
    category: str
    coloured: bool
    icon: str
    tint: tuple


@dataclass(frozen=True)
class Line:
    """Some of a product in the cart."""

    product: str
    count: int = 1
    colour: str = ""


@dataclass(frozen=True)
class Order:
    lines: tuple
    address: str
    shipping: str
    total: int


@dataclass(frozen=True)
class Shop:
    cart: tuple = ()
    orders: tuple = ()
    wishes: tuple = ()


ICONS = ("diamond", "drop", "leaf", "bolt", "heart", "cloud", "ring", "star_full", "music", "flag", "bell", "truck")
TINTS = tuple(COLOURS.values()) + ((227, 116, 0), (147, 52, 230), (0, 121, 130))


@lru_cache(256)
def catalogue(world):
    """24 products; no two cost the same, and of each kind of thing there are several."""
    rng = world.rng("shop")
    nouns = rng.sample(world.pool("noun"), min(8, len(world.pool("noun"))))
    adjectives = world.pool("adjective")
    prices = rng.sample(range(5, 120), 24)
    names = [f"{adjective} {noun}" for noun in nouns for adjective in rng.sample(adjectives, min(4, len(adjectives)))]
    found = []
    for name, price in zip(sorted(rng.sample(names, min(24, len(names)))), prices):
        picture = rng.choice(ICONS), rng.choice(TINTS)
        kind, stars = rng.choice(CATEGORIES), rng.randint(25, 50) / 10
        found.append(Product(name, price, stars, kind, rng.random() < 0.4, *picture))
    return tuple(found)


def product(world, name):
    return next(one for one in catalogue(world) if one.name == name)


def begin(world, time):
    rng = world.rng("cart")
    chosen = rng.sample([one for one in catalogue(world) if not one.coloured], 3)
    first = (Line(chosen[0].name), Line(chosen[1].name, rng.randint(2, 3)))
    old = Order((Line(chosen[2].name),), "Home", "Standard", chosen[2].price)
    return {"shop": Shop(first if rng.random() < 0.7 else (), (old,))}


def total(world, lines):
    return sum(product(world, line.product).price * line.count for line in lines)


def added(shop, line):
    """The shop with a line more in the cart, or more of a line that is there."""
    cart, merged = [], False
    for old in shop.cart:
        same = (old.product, old.colour) == (line.product, line.colour)
        cart.append(replace(old, count=old.count + line.count) if same else old)
        merged |= same
    return replace(shop, cart=tuple(cart if merged else [*cart, line]))


def _cart_button(state):
    count = sum(line.count for line in state.shop.cart)
    return "cart", f"Cart, {count} item{'s' * (count != 1)}", to("cart")


def _main(state):
    def search(state):
        words = state.screen.get("find").strip()
        return to("results", ("search", words))(swap(state, state.screen.set(find=""))) if words else state

    rows = [search_box(state, "find", "Search the shop", search), header("Categories")]
    icons = ("home", "leaf", "flag", "music", "edit")
    chips = [
        row(name, tap=to("results", ("category", name)), icon=icons[i], disc=TINTS[i])
        for i, name in enumerate(CATEGORIES)
    ]
    rows += [*chips, header("Deals of the day")]
    rows += [_product_row(one) for one in state.world.rng("deals").sample(catalogue(state.world), 4)]
    return page(state, "Shop", rows, up=False, buttons=_buttons(state))


def _buttons(state):
    return [("note", "Orders", to("orders")), _cart_button(state)]


def _product_row(one):
    made = row(one.name, f"${one.price}, {one.stars} stars", to("item", one.name), icon=one.icon, disc=one.tint)
    return made


def found(world, query, sort=SORTS[0], limit=PRICES[0]):
    """The products of ("search", words) or ("category", name), in their order."""
    what, words = query
    if what == "category":
        some = [one for one in catalogue(world) if one.category == words]
    else:
        wanted = words.lower().split()
        scored = [(sum(word in one.name.lower() for word in wanted), one) for one in catalogue(world)]
        best = max((score for score, _ in scored), default=0)
        some = [one for score, one in scored if score == best > 0]
    if limit != PRICES[0]:
        some = [one for one in some if one.price < int(limit.partition("$")[2])]
    keys = {SORTS[1]: lambda one: one.price, SORTS[2]: lambda one: -one.price, SORTS[3]: lambda one: -one.stars}
    return sorted(some, key=keys[sort]) if sort in keys else some


def _results(state):
    screen = state.screen
    sort, limit = screen.get("sort", SORTS[0]), screen.get("limit", PRICES[0])
    over = None
    if screen.dialog == "sort":
        over = choose(state, "Sort by", SORTS, sort, lambda option: draft(sort=option))
    elif screen.dialog == "filter":
        over = choose(state, "Price", PRICES, limit, lambda option: draft(limit=option))
    bar = (
        button("Sort", 14, 6, 100, dialog("sort"), 36, quiet=True),
        button("Filter", 122, 6, 100, dialog("filter"), 36, quiet=True),
    )
    some = found(state.world, screen.about, sort, limit)
    count = text(f"{len(some)} items", 232, 6, 116, 36, 14, ink="soft", align="right")
    rows = [line_of(*bar, count, height=48)]
    rows += [_product_row(one) for one in some] or [paragraph("Nothing was found", ink="soft")]
    return page(state, screen.about[1], rows, buttons=_buttons(state), over=over)


def _item(state):
    screen, one = state.screen, product(state.world, state.screen.about)
    count, colour = screen.get("count", 1), screen.get("colour")
    wished = one.name in state.shop.wishes

    def add(state):
        if one.coloured and not colour:
            return say(state, "Choose a color")
        return say(replace(state, shop=added(state.shop, Line(one.name, count, colour))), "Added to cart")

    def wish(state):
        old = state.shop.wishes
        new = tuple(name for name in old if name != one.name) if wished else tuple(sorted((*old, one.name)))
        return replace(state, shop=replace(state.shop, wishes=new))

    face = image(one.icon, 110, 10, 140, ink="white", fill=one.tint, radius=24, size=80)
    rows = [
        line_of(face, height=160),
        paragraph(one.name, 22, bold=True, pad=2),
        paragraph(f"${one.price}", 20, ink="accent", pad=2),
        paragraph(f"{one.stars} stars, {one.category}", ink="soft", pad=2),
    ]
    if one.coloured:
        rows.append(line_of(*(_swatch(name, colour, i) for i, name in enumerate(COLOURS)), height=62))
    steps = (
        text("Quantity", 16, 4, 120, 44, 16),
        image("minus", 176, 4, 44, "Less", tap=draft(count=max(count - 1, 1)), ink="accent"),
        text(str(count), 222, 4, 50, 44, 18, align="center", id="quantity"),
        image("plus", 274, 4, 44, "More", tap=draft(count=min(count + 1, 9)), ink="accent"),
    )
    rows += [line_of(*steps, height=52), wide_button("Add to cart", add)]
    rows.append(paragraph(f"Our {one.name.lower()} is made to last. Free returns for 30 days.", ink="soft"))
    heart = "heart", "Remove from wish list" if wished else "Add to wish list", wish
    return page(state, "", rows, buttons=[heart, _cart_button(state)])


def _swatch(name, chosen, i):
    on = chosen == name
    parts = (
        Widget("image", (22, 2, 30, 30), fill=COLOURS[name], radius=15, line="accent" if on else ""),
        text(name, 0, 34, 74, 20, 13, align="center", bold=on),
    )
    return Widget("tab", (20 + 82 * i, 4, 74, 56), tap=draft(colour=name), parts=parts, radius=10, id="color", on=on,
                  fill="card" if on else "")  # fmt: skip


def describe(line):
    return f"{line.product}, {line.colour.lower()}" if line.colour else line.product


def _cart(state):
    shop, rows = state.shop, []
    for line in shop.cart:

        def change(state, line=line, by=1):
            new = [replace(one, count=one.count + by) if one == line else one for one in state.shop.cart]
            return replace(state, shop=replace(state.shop, cart=tuple(one for one in new if one.count)))

        def remove(state, line=line):
            left = tuple(one for one in state.shop.cart if one != line)
            return replace(state, shop=replace(state.shop, cart=left))

        one, name = product(state.world, line.product), describe(line)
        parts = (
            image(one.icon, 14, 12, 44, ink="white", fill=one.tint, radius=12, size=24),
            text(name, 70, 6, 274, 26, 16, id="title"),
            text(f"${one.price * line.count}", 70, 36, 70, 26, 15, ink="soft", id="price"),
            image("minus", 146, 32, 40, f"Less of {name}", tap=lambda s, change=change: change(s, by=-1), ink="accent"),
            text(str(line.count), 186, 32, 34, 40, 16, align="center", id="quantity"),
            image("plus", 220, 32, 40, f"More of {name}", tap=change, ink="accent"),
            image("trash", 304, 32, 40, f"Remove {name}", tap=remove, ink="soft"),
        )
        rows.append(line_of(*parts, height=80))
    if not shop.cart:
        return page(state, "Cart", [paragraph("The cart is empty", ink="soft")])
    foot = line_of(
        text(f"Total ${total(state.world, shop.cart)}", 18, 0, 160, 60, 18, bold=True, id="total"),
        button("Checkout", 190, 10, 152, to("checkout")),
        height=60,
    )
    return page(state, "Cart", rows, foot=foot)


def ordered(state, address, shipping):
    """The shop after the cart was ordered."""
    lines = state.shop.cart
    order = Order(lines, address, shipping, total(state.world, lines) + SHIPPING[shipping])
    return replace(state.shop, cart=(), orders=(order, *state.shop.orders))


def _checkout(state):
    screen = state.screen
    address, shipping = screen.get("address", ADDRESSES[0]), screen.get("shipping", "Standard")

    def place(state):
        new = replace(state, shop=ordered(state, address, shipping))
        return with_stack(new, PACKAGE, (Screen("main"), Screen("order", new.shop.orders[0])))

    rows = [header("Ship to")]
    rows += [row(name, tap=draft(address=name), end=radio(name == address)) for name in ADDRESSES]
    rows.append(header("Delivery"))
    for name, price in SHIPPING.items():
        note = f"${price}" if price else "Free"
        rows.append(row(name, note, draft(shipping=name), end=radio(name == shipping)))
    lines = state.shop.cart
    rows.append(paragraph(f"Total ${total(state.world, lines) + SHIPPING[shipping]}", 18, bold=True))
    rows.append(wide_button("Place order", place))
    return page(state, "Checkout", rows)


def _orders(state):
    rows = []
    for number, order in enumerate(state.shop.orders):
        what = ", ".join(describe(line) for line in order.lines)
        rows.append(
            row(f"Order {len(state.shop.orders) - number}", f"${order.total}: {what}", to("order", order), icon="note")
        )
    rows.append(header("Wish list"))
    rows += [_product_row(product(state.world, name)) for name in state.shop.wishes]
    return page(state, "Orders", rows)


def _order(state):
    order = state.screen.about
    rows = [paragraph("Thank you for your order", 20, bold=True)]
    rows += [row(f"{line.count} x {describe(line)}", icon="bag") for line in order.lines]
    rows += [row(order.address, "Ship to", icon="place"), row(order.shipping, "Delivery", icon="truck")]
    rows.append(row(f"${order.total}", "Total", icon="cart"))
    return page(state, "Order", rows)


SCREENS = {
    "main": _main, "results": _results, "item": _item, "cart": _cart, "checkout": _checkout, "orders": _orders,
    "order": _order,
}  # fmt: skip
