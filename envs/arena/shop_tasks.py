"""The shop's task templates: how to draw one, how to check it, how to solve it.

Checks compare whole blocks of the pages (all lines of the cart, the whole order), so that a wrong count, a wrong
option, anything unwanted and anything done twice scores 0.
"""

from envs.arena.shop import (
    ADDRESSES,
    CATEGORIES,
    CITIES,
    COLORS,
    ORDER_ROWS,
    ROWS,
    SHIPPING,
    SIZES,
    catalogue,
    describe,
    draw_review,
)
from envs.arena.tasks import WORDS, Move, Template, exit_move

SORTS = ("price low", "price high", "rating")
EXTREMES = {"cheapest": "price low", "dearest": "price high"}


# --- what oracles are made of -------------------------------------------------------------------------------------


def _find(name):
    """From any page to the page of a product."""
    return [Move("box", "search", "Search", name), Move("link", name)]


def _select(label, value):
    return Move("select", label, "Select Dropdown Option", value)


def _options(slots):
    """Fill the product form with the slots that are there."""
    moves = [Move("box", "quantity", "Type", slots["count"])] if "count" in slots else []
    return moves + [_select(key, slots[key]) for key in ("size", "color") if key in slots]


def _ship(slots):
    return [_select("address", slots["address"]), Move("radio", slots["shipping"]), Move("button", "place order")]


def _order_page(world, number):
    """From any page to the page of an order, past the first page of the list where it is not on it."""
    place = [str(order.number) for order in catalogue(world).orders].index(number)
    turn = [Move("link", "next page")] * (place // ORDER_ROWS)
    return [Move("link", "orders"), *turn, Move("link", f"order {number}")]


DONE = exit_move("done")
NOT_POSSIBLE = exit_move("N/A")


# --- what checks are made of --------------------------------------------------------------------------------------


def _answer(text):
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": text}}


def _url(path):
    return {"eval_types": ["url_match"], "reference_url": f"__SHOP__{path}", "url_note": "EXACT"}


def _html(*targets):
    """`targets`: (path, selector, the text of the element, whole)."""
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": f"__SHOP__{path}",
                "locator": f"document.querySelector('{selector}').outerText",
                "required_contents": {"exact_match": text},
            }
            for path, selector, text in targets
        ],
    }


def _cart(world, *added, without=None):
    """The cart holds its first lines, less the product `without`, and the lines `added`, and nothing else.

    A line is (name, count, size, color); the cart page sorts them by name.
    """
    lines = [(product.name, count, "", "") for product, count in catalogue(world).cart if product != without]
    lines = [describe(count, name, size, color) for name, count, size, color in sorted([*lines, *added])]
    return _html(("/cart", "#lines", "\n".join(lines)))


def _placed(world, items, slots, price):
    """There is one order more, for `items`, with the slots' address and shipping."""
    shop = catalogue(world)
    number = shop.orders[0].number + 1
    total = price + SHIPPING[slots["shipping"]]
    text = f"{items}\nship to {slots['address']} by {slots['shipping']}\ntotal {total}\ndate today\nstatus pending"
    pending = 1 + sum(order.status == "pending" for order in shop.orders)
    return _html(
        (f"/orders/{number}", "#order", text),
        ("/orders", "#count", f"{len(shop.orders) + 1} orders, {pending} pending"),
    )


def _known(value, values):
    """`value`, or LookupError where it is not one of `values`."""
    if value not in values:
        raise LookupError(f"{value} is none of {', '.join(map(str, values))}")
    return value


def _sold(world, slots, slot="product"):
    """The product of a slot, if it can be bought with the count, size and color of the slots, and these only."""
    product = catalogue(world).product(slots[slot])
    if not 1 <= int(slots.get("count", 1)) <= product.stock:
        raise LookupError("count")
    if product.sizes:
        _known(slots.get("size"), SIZES)
    if product.colors:
        _known(slots.get("color"), COLORS)
    if ("size" in slots and not product.sizes) or ("color" in slots and not product.colors):
        raise LookupError(f"{product.name} has no such option")
    return product


def _line(slots):
    """The cart line of the slots."""
    return slots["product"], slots.get("count", "1"), slots.get("size", ""), slots.get("color", "")


# --- drawing ------------------------------------------------------------------------------------------------------


def _draw(world, rng, sizes=False, colors=False):
    """A product with exactly these options that is not in the cart yet."""
    shop = catalogue(world)
    carted = [product for product, _ in shop.cart]
    return rng.choice([p for p in shop.products if (p.sizes, p.colors) == (sizes, colors) and p not in carted])


def _any_product(world, rng):
    return {"product": rng.choice(catalogue(world).products).name}


def _draw_ship(rng):
    return {"address": rng.choice(ADDRESSES), "shipping": rng.choice(list(SHIPPING))}


def _draw_options(rng, product):
    slots = {"count": str(rng.randint(2, 5)), "product": product.name}
    if product.sizes:
        slots["size"] = rng.choice(SIZES)
    if product.colors:
        slots["color"] = rng.choice(COLORS)
    return slots


# --- information --------------------------------------------------------------------------------------------------


def _price(world, slots):
    return str(catalogue(world).product(slots["product"]).price)


def _stock(world, slots):
    return str(catalogue(world).product(slots["product"]).stock)


def _stars(world, slots):
    """(answer, whether the reviewer is on the second page of reviews)"""
    reviews = catalogue(world).product(slots["product"]).reviews
    place = [person for person, _, _ in reviews].index(_known(slots["person"], [person for person, _, _ in reviews]))
    return str(reviews[place][1]), place >= ROWS


def _stars_sample(world, rng):
    product = rng.choice(catalogue(world).products)
    return {"product": product.name, "person": rng.choice(product.reviews)[0]}


def _stars_oracle(world, slots):
    answer, second = _stars(world, slots)
    turn = [Move("link", "next page")] * second
    return [*_find(slots["product"]), Move("link", "reviews"), *turn, exit_move(answer)]


def _total(world, slots):
    totals = {str(order.number): str(order.total) for order in catalogue(world).orders}
    return totals[slots["order"]]


def _extreme(world, slots):
    _known(slots["category"], CATEGORIES)
    products = [p for p in catalogue(world).products if p.category == slots["category"]]
    best = min if _known(slots["extreme"], EXTREMES) == "cheapest" else max
    return best(products, key=lambda p: p.price).name  # the prices of a category all differ


INFORMATION = [
    Template(
        name="price",
        kind="information",
        family="facts",
        requirements=1,
        phrasings=("what is the price of {product}", "how much is {product}"),
        sample=_any_product,
        config=lambda world, slots: _answer(_price(world, slots)),
        oracle=lambda world, slots: [_find(slots["product"])[0], exit_move(_price(world, slots))],
    ),
    Template(
        name="stock",
        kind="information",
        family="facts",
        requirements=1,
        phrasings=("how many {product} are in stock", "tell me the stock of {product}"),
        sample=_any_product,
        config=lambda world, slots: _answer(_stock(world, slots)),
        oracle=lambda world, slots: [*_find(slots["product"]), exit_move(_stock(world, slots))],
    ),
    Template(
        name="stars",
        kind="information",
        family="facts",
        requirements=2,
        phrasings=("how many stars did {person} give {product}",),
        sample=_stars_sample,
        config=lambda world, slots: _answer(_stars(world, slots)[0]),
        oracle=_stars_oracle,
    ),
    Template(
        name="order-total",
        kind="information",
        family="orders",
        requirements=1,
        phrasings=("what is the total of order {order}", "how much did order {order} cost"),
        sample=lambda world, rng: {"order": str(rng.choice(catalogue(world).orders).number)},
        config=lambda world, slots: _answer(_total(world, slots)),
        oracle=lambda world, slots: [*_order_page(world, slots["order"]), exit_move(_total(world, slots))],
    ),
    Template(
        name="extreme",
        kind="information",
        family="category",
        requirements=2,
        phrasings=("what is the {extreme} product in {category}",),
        sample=lambda world, rng: {"extreme": rng.choice(list(EXTREMES)), "category": rng.choice(CATEGORIES)},
        config=lambda world, slots: _answer(_extreme(world, slots)),
        oracle=lambda world, slots: [
            Move("link", slots["category"]),
            _select("sort by", EXTREMES[slots["extreme"]]),
            Move("button", "sort"),
            exit_move(_extreme(world, slots)),
        ],
    ),
]


# --- navigation ---------------------------------------------------------------------------------------------------


def _sorted_url(world, slots):
    _known(slots["category"], CATEGORIES)
    return _url(f"/c/{slots['category']}?sort={_known(slots['sort'], SORTS).replace(' ', '-')}")


NAVIGATION = [
    Template(
        name="open-product",
        kind="navigation",
        family="open",
        requirements=1,
        phrasings=("open the page of {product}", "show me {product}"),
        sample=_any_product,
        config=lambda world, slots: _url(f"/p/{catalogue(world).product(slots['product']).id}"),
        oracle=lambda world, slots: [*_find(slots["product"]), DONE],
    ),
    Template(
        name="sort-category",
        kind="navigation",
        family="category",
        requirements=2,
        phrasings=("show {category} sorted by {sort}",),
        patterns={"sort": WORDS},
        sample=lambda world, rng: {"category": rng.choice(CATEGORIES), "sort": rng.choice(SORTS)},
        config=_sorted_url,
        oracle=lambda world, slots: [
            Move("link", slots["category"]),
            _select("sort by", slots["sort"]),
            Move("button", "sort"),
            DONE,
        ],
    ),
]


# --- state-changing -----------------------------------------------------------------------------------------------


def _add_config(world, slots):
    product = _sold(world, slots)
    if product in [p for p, _ in catalogue(world).cart]:
        raise LookupError("it is in the cart already")  # its line would grow: another task
    return _cart(world, _line(slots))


def _add_oracle(world, slots):
    return [*_find(slots["product"]), *_options(slots), Move("button", "add to cart"), DONE]


def _add_two_sample(world, rng):
    first, second = _draw(world, rng), _draw(world, rng)
    return {"product": first.name, "product2": second.name} if first != second else None


def _add_two_config(world, slots):
    products = [_sold(world, slots, slot) for slot in ("product", "product2")]
    if products[0] == products[1] or set(products) & {p for p, _ in catalogue(world).cart}:
        raise LookupError("two different products that are not in the cart yet")
    return _cart(world, *((p.name, 1, "", "") for p in products))


def _removed(world, slots):
    product = catalogue(world).product(slots["product"])
    if product not in [p for p, _ in catalogue(world).cart]:
        raise LookupError("it is not in the cart")
    return _cart(world, without=product)


def _buy_config(world, slots):
    _known(slots["address"], ADDRESSES), _known(slots["shipping"], SHIPPING)
    product = _sold(world, slots)
    name, count, size, color = _line(slots)
    return _placed(world, describe(count, name, size, color), slots, int(slots.get("count", 1)) * product.price)


def _buy_oracle(world, slots):
    return [*_find(slots["product"]), *_options(slots), Move("button", "buy now"), *_ship(slots), DONE]


def _review_config(world, slots):
    product = catalogue(world).product(slots["product"])
    _known(slots["stars"], tuple("12345"))
    path = f"/p/{product.id}/reviews"
    mine = f"{world.user} gave {slots['stars']} of 5: {slots['text']}"
    return _html((path, "#count", f"{len(product.reviews) + 1} reviews"), (path, ".review", mine))


def _review_sample(world, rng):
    return _any_product(world, rng) | {"stars": str(rng.randint(1, 5)), "text": draw_review(world, rng)}


def _cancel_config(world, slots):
    orders = {str(order.number): order for order in catalogue(world).orders}
    order = orders[slots["order"]]
    if order.status != "pending":
        raise LookupError("only a pending order can be cancelled")
    pending = sum(o.status == "pending" for o in orders.values()) - 1
    text = f"{order.items}\nship to {order.address} by {order.shipping}\ntotal {order.total}\ndate {order.date}"
    return _html(
        (f"/orders/{order.number}", "#order", f"{text}\nstatus cancelled"),
        ("/orders", "#count", f"{len(orders)} orders, {pending} pending"),
    )


def _cancel_sample(world, rng):
    return {"order": str(rng.choice([o for o in catalogue(world).orders if o.status == "pending"]).number)}


def _account_sample(world, rng):
    city = rng.choice([city for city in CITIES if city != catalogue(world).city])
    return {"city": city, "phone": str(rng.randint(200000, 999999))}


def _account_config(world, slots):
    shop = catalogue(world)
    if slots["city"] == shop.city or slots.get("phone") == shop.phone or len(slots.get("phone", shop.phone)) != 6:
        raise LookupError("nothing would change")
    phone = slots.get("phone", shop.phone)
    return _html(("/account", "#account", f"name {world.user}\ncity {slots['city']}\nphone {phone}"))


def _account_oracle(world, slots):
    boxes = [Move("box", key, "Type", slots[key]) for key in ("city", "phone") if key in slots]
    return [Move("link", "account"), Move("link", "edit account"), *boxes, Move("button", "save"), DONE]


# Instructions whose product has no options, or sizes only, for `vary`.
PLAIN, SIZED = ("add", "add-two", "buy"), ("add-size", "buy-size")

STATE = [
    Template(
        name="add",
        kind="state",
        family="cart",
        requirements=1,
        phrasings=("add {count} {product} to the cart", "put {count} {product} into my cart"),
        values_from=PLAIN,
        sample=lambda world, rng: _draw_options(rng, _draw(world, rng)),
        config=_add_config,
        oracle=_add_oracle,
    ),
    Template(
        name="add-size",
        kind="state",
        family="cart",
        requirements=2,
        phrasings=("add {count} {product} in size {size} to the cart",),
        values_from=SIZED,
        sample=lambda world, rng: _draw_options(rng, _draw(world, rng, sizes=True)),
        config=_add_config,
        oracle=_add_oracle,
    ),
    Template(
        name="add-size-color",
        kind="state",
        family="cart",
        requirements=3,
        phrasings=("add {count} {product} in size {size} and color {color} to the cart",),
        values_from=("add-size-color",),
        sample=lambda world, rng: _draw_options(rng, _draw(world, rng, sizes=True, colors=True)),
        config=_add_config,
        oracle=_add_oracle,
    ),
    Template(
        name="add-two",
        kind="state",
        family="cart",
        requirements=2,
        phrasings=("add {product} and {product2} to the cart", "put {product} and {product2} into my cart"),
        values_from=PLAIN,
        sample=_add_two_sample,
        config=_add_two_config,
        oracle=lambda world, slots: [
            *_find(slots["product"]),
            Move("button", "add to cart"),
            *_find(slots["product2"]),
            Move("button", "add to cart"),
            DONE,
        ],
    ),
    Template(
        name="remove",
        kind="state",
        family="remove",
        requirements=1,
        phrasings=("remove {product} from the cart", "take {product} out of my cart"),
        values_from=("remove",),
        sample=lambda world, rng: {"product": rng.choice(catalogue(world).cart)[0].name},
        config=_removed,
        oracle=lambda world, slots: [
            Move("link", "cart"),
            Move("link", f"remove {slots['product']}"),
            Move("button", "yes, remove"),
            DONE,
        ],
    ),
    Template(
        name="buy",
        kind="state",
        family="buy",
        requirements=2,
        phrasings=("buy {product} and ship it to {address} by {shipping}",),
        values_from=PLAIN,
        sample=lambda world, rng: {"product": _draw(world, rng).name} | _draw_ship(rng),
        config=_buy_config,
        oracle=_buy_oracle,
    ),
    Template(
        name="buy-size",
        kind="state",
        family="buy",
        requirements=3,
        phrasings=("buy {count} {product} in size {size} and ship it to {address} by {shipping}",),
        values_from=SIZED,
        sample=lambda world, rng: _draw_options(rng, _draw(world, rng, sizes=True)) | _draw_ship(rng),
        config=_buy_config,
        oracle=_buy_oracle,
    ),
    Template(
        name="review",
        kind="state",
        family="review",
        requirements=2,
        phrasings=("review {product} with {stars} stars and say {text}",),
        patterns={"text": WORDS},
        sample=_review_sample,
        config=_review_config,
        oracle=lambda world, slots: [
            *_find(slots["product"]),
            Move("link", "write a review"),
            _select("stars", slots["stars"]),
            Move("box", "review", "Type", slots["text"]),
            Move("button", "post review"),
            DONE,
        ],
    ),
    Template(
        name="cancel-order",
        kind="state",
        family="orders",
        requirements=1,
        phrasings=("cancel order {order}",),
        values_from=("cancel-order",),
        sample=_cancel_sample,
        config=_cancel_config,
        oracle=lambda world, slots: [
            *_order_page(world, slots["order"]),
            Move("link", "cancel order"),
            Move("button", "yes, cancel"),
            DONE,
        ],
    ),
    Template(
        name="city",
        kind="state",
        family="account",
        requirements=1,
        phrasings=("change my city to {city}",),
        sample=lambda world, rng: {"city": _account_sample(world, rng)["city"]},
        config=_account_config,
        oracle=_account_oracle,
    ),
    Template(
        name="city-phone",
        kind="state",
        family="account",
        requirements=2,
        phrasings=("change my city to {city} and my phone to {phone}",),
        sample=_account_sample,
        config=_account_config,
        oracle=_account_oracle,
    ),
]


# --- impossible: the words are those of a possible task, only looking tells ---------------------------------------


def _missing(world, slots):
    if slots["product"] in {product.name for product in catalogue(world).products}:
        raise LookupError("it is sold")
    return _answer("N/A")


def _missing_add(world, slots):
    """The answer, and a cart that is as it was."""
    check = _cart(world) | _missing(world, slots)
    return check | {"eval_types": ["string_match", "program_html"]}


def _missing_oracle(world, slots):
    return [_find(slots["product"])[0], NOT_POSSIBLE]


IMPOSSIBLE = [
    Template(
        name="missing-price",
        kind="impossible",
        family="missing",
        requirements=1,
        phrasings=("what is the price of {product}", "how much is {product}"),
        sample=lambda world, rng: {"product": rng.choice(catalogue(world).missing)},
        config=_missing,
        oracle=_missing_oracle,
    ),
    Template(
        name="missing-add",
        kind="impossible",
        family="missing",
        requirements=1,
        phrasings=("add {count} {product} to the cart", "put {count} {product} into my cart"),
        sample=lambda world, rng: {"count": str(rng.randint(2, 5)), "product": rng.choice(catalogue(world).missing)},
        config=_missing_add,
        oracle=_missing_oracle,
    ),
]

TEMPLATES = [*INFORMATION, *NAVIGATION, *STATE, *IMPOSSIBLE]
