"""The back office's task templates: how to draw one, how to check it, how to solve it.

The page of changes says what differs from the beginning, in orders, products, members and reviews; checks of
state-changing tasks compare that whole page, so that a wrong value, a wrong row and anything unwanted scores 0.

Who wrote a review and of what is one slot ("anna baker for red lamp"): instructions varied from text then name pairs
that exist.
"""

from urllib.parse import urlencode

from envs.arena.shop import CITIES, MONTHS
from envs.arena.shop_admin import GROUPS, NEXT, ROWS, STATES, change_lines, draw_note, office, ranking
from envs.arena.tasks import Move, Template, exit_move, until_valid

MOST = ("least stock", "most stock")
DONE = exit_move("done")
NOT_POSSIBLE = exit_move("N/A")
SHOW, SAVE = Move("button", "show"), Move("button", "save")


# --- what oracles are made of ----------------------------------------------------------------------------------------


def _find(name):
    """From any page to the list of what is called `name`."""
    return [Move("box", "search", "Search", name)]


def _to(name):
    """From any page to the page of a product or a member."""
    return [*_find(name), Move("link", name)]


def _to_order(slots):
    return [*_find(slots["order"]), Move("link", f"order {slots['order']}")]


def _type(label, text):
    return Move("box", label, "Type", text)


def _select(label, value):
    return Move("select", label, "Select Dropdown Option", value)


def _show(*way, **filters):
    """By the links `way` to a list, and what of it the filters leave."""
    moves = [_type(key, value) if key == "member" else _select(key, value) for key, value in filters.items()]
    return [*(Move("link", name) for name in way), *moves, SHOW]


def _way(status, target):
    """The statuses that an order goes through from `status` to `target`; None where there is no way."""
    if status == target:
        return []
    ways = ((after, _way(after, target)) for after in NEXT[status])
    return next(([after, *way] for after, way in ways if way is not None), None)


def _set_order(world, slots):
    """From any page: give the order the slots' status and note."""
    *first, last = _way(_order(world, slots).status, slots["status"])
    moves = [move for status in first for move in (_select("status", status), SAVE)]
    note = [_type("note", slots["note"])] if "note" in slots else []
    return [*_to_order(slots), *moves, _select("status", last), *note, SAVE]


def _edit(slots):
    """From any page: give the product the slots' price and stock."""
    boxes = [_type(key, slots[key]) for key in ("price", "stock") if key in slots]
    return [*_to(slots["product"]), Move("link", "edit product"), *boxes, SAVE]


def _switch(name, button):
    return [*_to(name), Move("button", button)]


def _turn(world, name, gone=()):
    """From the first page of the waiting reviews to that review, where those named in `gone` wait no more."""
    waiting = [review.name for review in _waiting(world) if review.name not in gone]
    return [*[Move("link", "next page")] * (waiting.index(name) // ROWS), Move("link", name)]


def _accept(world, names):
    """From any page: accept the reviews; after each one the first page of those that wait is shown."""
    moves = [
        move for i, name in enumerate(names) for move in (*_turn(world, name, names[:i]), Move("button", "accept"))
    ]
    return [Move("link", "reviews"), *moves, DONE]


# --- what checks are made of -----------------------------------------------------------------------------------------


def _answer(text):
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": str(text)}}


def _url(path, **query):
    path = f"{path}?{urlencode(query)}" if query else path
    return {"eval_types": ["url_match"], "reference_url": f"__SHOP_ADMIN__{path}", "url_note": "EXACT"}


def _changed(*changes):
    """These changes, (table, name, field, old, new) each, and no others."""
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "__SHOP_ADMIN__/changes",
                "locator": "document.querySelector('#changes').outerText",
                "required_contents": {"exact_match": "\n".join(change_lines(changes)) or "nothing has changed"},
            }
        ],
    }


def _impossible(reason):
    """The answer N/A (or the reason), and nothing changed."""
    return _changed() | {
        "eval_types": ["string_match", "program_html"],
        "reference_answers": {"fuzzy_match": "N/A"},
        "string_note": reason,
    }


# --- what a world has; each raises LookupError where it does not hold ------------------------------------------------


def _require(holds, what):
    if not holds:
        raise LookupError(what)


def _order(world, slots):
    return office(world).order(slots["order"])


def _note(world, slots):
    note = _order(world, slots).note
    _require(note, "it has no note")
    return note


def _known(value, values):
    _require(value in values, f"{value} is none of {', '.join(values)}")
    return value


def _orders(world, slots):
    """The orders of the slots' person, status and month, as far as these are there."""
    person, status, month = slots.get("person"), slots.get("status"), slots.get("month")
    _require(person is None or office(world).member(person), "no such member")
    _require(status in (*NEXT, None) and month in (*MONTHS, None), "no such status or month")
    return [
        order
        for order in office(world).orders
        if person in (None, order.member) and status in (None, order.status) and month in (None, order.month)
    ]


def _newest(world, slots):
    orders = _orders(world, slots)
    _require(orders, "no such order")
    return orders[-1].name


def _top(world, slots):
    return ranking((order.product, order.count) for order in _orders(world, slots))[0][0]


def _most(world, slots):
    """The product of a state that has the least or the most stock; no two have the same."""
    products = [product for product in office(world).products if product.status == _known(slots["state"], STATES)]
    best = min if _known(slots["most"], MOST) == "least stock" else max
    return best(products, key=lambda product: product.stock).name


def _waiting(world):
    return [review for review in office(world).reviews if review.status == "waiting"]


def _two_waiting(world, person):
    names = [review.name for review in _waiting(world) if review.member == person]
    _require(len(names) == 2, "not two waiting reviews")
    return names


def _review(world, slots):
    review = office(world).review(slots["review"])
    _require(review.status == "waiting", "it does not wait")
    return review


def _change(world, table, name, field, new):
    """What the page of changes says of a new value."""
    old = str(getattr(getattr(office(world), table)(name), field))
    _require(old != new, "it is so already")
    return table, name, field, old, new


def _number(text, low):
    _require(str(int(text)) == text and low <= int(text) <= 9999, "no such number")
    return text


def _product_changes(world, slots):
    """Of the price and the stock of the slots' product."""
    name = slots["product"]
    yield _change(world, "product", name, "price", _number(slots["price"], 1))
    if "stock" in slots:
        yield _change(world, "product", name, "stock", _number(slots["stock"], 0))


def _order_changes(world, slots):
    """Of the status and the note of the slots' order, and of the group of its member."""
    order = _order(world, slots)
    if "status" in slots:
        _require(_way(order.status, _known(slots["status"], NEXT)), "no way to this status")
        yield _change(world, "order", order.name, "status", slots["status"])
    if "note" in slots:
        yield _change(world, "order", order.name, "note", slots["note"])
    if "group" in slots:
        yield _change(world, "member", order.member, "group", _known(slots["group"], GROUPS))


def _member_changes(world, slots):
    yield _change(world, "member", slots["person"], "group", _known(slots["group"], GROUPS))
    if "city" in slots:
        yield _change(world, "member", slots["person"], "city", _known(slots["city"], CITIES))


def _review_changes(world, names, status="accepted"):
    _require(len(set(names)) == len(names), "twice the same")
    for name in names:
        yield _change(world, "review", _review(world, {"review": name}).name, "status", status)


def _disabled(world, *names):
    _require(len(set(names)) == len(names), "twice the same")
    return [_change(world, "product", name, "status", "disabled") for name in names]


def _no(rows, kind, name):
    """There is nothing of that name, and nothing changed."""
    _require(all(row.name != name for row in rows), f"this {kind} exists")
    return _impossible(f"there is no {kind} {name}")


def _stuck(world, slots):
    """The order cannot get this status."""
    order = _order(world, slots)
    _require(_way(order.status, _known(slots["status"], NEXT)) is None, "it can have this status")
    return _impossible(f"order {order.name} is {order.status}")


# --- drawing ---------------------------------------------------------------------------------------------------------


def _draw_order(world, rng):
    return rng.choice(office(world).orders).name


def _draw_missing_order(world, rng):
    numbers = [int(order.name) for order in office(world).orders]
    return str(rng.choice([n for n in range(numbers[0], numbers[-1]) if n not in numbers]))


def _draw_noted(world, rng):
    return rng.choice([order for order in office(world).orders if order.note]).name


def _draw_person(world, rng):
    return rng.choice(office(world).members).name


def _draw_stranger(world, rng):
    return rng.choice(office(world).strangers)


def _draw_product(world, rng):
    return rng.choice(office(world).products).name


def _draw_missing(world, rng):
    return rng.choice(office(world).missing)


def _draw_number(world, rng):
    return str(rng.randint(3, 98))


def _draw_review(world, rng):
    return rng.choice(_waiting(world)).name


def _draw_no_review(world, rng):
    """A member and a product with waiting reviews, which may be of other products and by other members."""
    return f"{rng.choice(_waiting(world)).member} for {rng.choice(_waiting(world)).product}"


def _one_of(*values):
    return lambda world, rng: rng.choice(values)


def _slots(**draws):
    """Draw each slot by itself."""
    return lambda world, rng: {slot: draw(world, rng) for slot, draw in draws.items()}


def _of_order(*slots):
    """Draw the slots from one order, so that there is such an order."""

    def draw(world, rng):
        order = rng.choice(office(world).orders)
        values = {"person": order.member, "status": order.status, "month": order.month}
        return {slot: values[slot] for slot in slots}

    return draw


_TWO = r"[a-z]+ [a-z]+"
_PATTERNS = {
    "review": rf"{_TWO} for {_TWO}",
    "note": r"[a-z]+ the [a-z]+",
    "stock": r"\d+",
    "most": r"[a-z]+ stock",
    **dict.fromkeys(("status", "month", "group", "city", "state"), r"[a-z]+"),
}
_STATUS, _GROUP, _CITY = _one_of(*NEXT), _one_of(*GROUPS), _one_of(*CITIES)


def _template(name, kind, family, requirements, phrasings, draw, config, oracle):
    sample = until_valid(draw, config)
    return Template(name, kind, requirements, phrasings, sample, config, oracle, f"shop_admin {family}", _PATTERNS)


# In the order in which worlds take them: kinds and lengths mixed.
TEMPLATES = [
    _template(
        "order_status",
        "information",
        "order facts",
        1,
        ("what is the status of order {order}", "tell me the status of order {order}"),
        _slots(order=_draw_order),
        lambda w, s: _answer(_order(w, s).status),
        lambda w, s: [*_find(s["order"]), exit_move(_order(w, s).status)],
    ),
    _template(
        "set_status",
        "state",
        "order",
        1,
        ("set order {order} to {status}", "change the status of order {order} to {status}"),
        _slots(order=_draw_order, status=_STATUS),
        lambda w, s: _changed(*_order_changes(w, s)),
        lambda w, s: [*_set_order(w, s), DONE],
    ),
    _template(
        "show_orders",
        "navigation",
        "orders",
        1,
        ("show the {status} orders", "list all {status} orders"),
        _slots(status=_STATUS),
        lambda w, s: _url("/orders", status=_known(s["status"], NEXT), member=""),
        lambda w, s: [*_show("orders", status=s["status"]), DONE],
    ),
    _template(
        "price_stock",
        "state",
        "product",
        2,
        (
            "set the price of {product} to {price} and the stock to {stock}",
            "change the price of {product} to {price} and its stock to {stock}",
        ),
        _slots(product=_draw_product, price=_draw_number, stock=_draw_number),
        lambda w, s: _changed(*_product_changes(w, s)),
        lambda w, s: [*_edit(s), DONE],
    ),
    _template(
        "no_order",
        "impossible",
        "order facts",
        1,
        ("what is the status of order {order}", "tell me the status of order {order}"),
        _slots(order=_draw_missing_order),
        lambda w, s: _no(office(w).orders, "order", s["order"]),
        lambda w, s: [*_find(s["order"]), NOT_POSSIBLE],
    ),
    _template(
        "accept",
        "state",
        "review",
        1,
        ("accept the review of {review}", "accept the waiting review of {review}"),
        _slots(review=_draw_review),
        lambda w, s: _changed(*_review_changes(w, [s["review"]])),
        lambda w, s: _accept(w, [s["review"]]),
    ),
    _template(
        "top",
        "information",
        "top",
        1,
        ("which product sold most in {month}", "what is the top product of {month}"),
        _of_order("month"),
        lambda w, s: _answer(_top(w, s)),
        lambda w, s: [*_show("report", "top products", month=s["month"]), exit_move(_top(w, s))],
    ),
    _template(
        "group",
        "state",
        "member",
        1,
        ("move {person} to group {group}", "change the group of {person} to {group}"),
        _slots(person=_draw_person, group=_GROUP),
        lambda w, s: _changed(*_member_changes(w, s)),
        lambda w, s: [*_to(s["person"]), _select("group", s["group"]), SAVE, DONE],
    ),
    _template(
        "status_note",
        "state",
        "order",
        2,
        (
            "set order {order} to {status} with the note {note}",
            "change the status of order {order} to {status} and its note to {note}",
        ),
        _slots(order=_draw_order, status=_STATUS, note=draw_note),
        lambda w, s: _changed(*_order_changes(w, s)),
        lambda w, s: [*_set_order(w, s), DONE],
    ),
    _template(
        "count",
        "information",
        "count",
        2,
        ("how many orders of {person} are {status}", "count the {status} orders of {person}"),
        _of_order("person", "status"),
        lambda w, s: _answer(len(_orders(w, s))),
        lambda w, s: [*_show("orders", status=s["status"], member=s["person"]), exit_move(str(len(_orders(w, s))))],
    ),
    _template(
        "disable",
        "state",
        "switch",
        1,
        ("disable {product}", "disable the product {product}"),
        _slots(product=_draw_product),
        lambda w, s: _changed(*_disabled(w, s["product"])),
        lambda w, s: [*_switch(s["product"], "disable"), DONE],
    ),
    _template(
        "no_review",
        "impossible",
        "review",
        1,
        ("accept the review of {review}", "accept the waiting review of {review}"),
        _slots(review=_draw_no_review),
        lambda w, s: _no(office(w).reviews, "review", s["review"]),
        lambda w, s: [
            Move("link", "reviews"),
            *[Move("link", "next page")] * ((len(_waiting(w)) - 1) // ROWS),
            NOT_POSSIBLE,
        ],
    ),
    _template(
        "status_note_group",
        "state",
        "order",
        3,
        (
            "set order {order} to {status} with the note {note} and move its member to group {group}",
            "change the status of order {order} to {status}, its note to {note} and the group of its member to {group}",
        ),
        # these two are one step away; the longest tasks stay within nine
        _slots(order=_draw_order, status=_one_of("shipped", "cancelled"), note=draw_note, group=_GROUP),
        lambda w, s: _changed(*_order_changes(w, s)),
        lambda w, s: [
            *_set_order(w, s),
            Move("link", _order(w, s).member),
            _select("group", s["group"]),
            SAVE,
            DONE,
        ],
    ),
    _template(
        "city",
        "information",
        "member facts",
        1,
        ("what is the city of {person}", "tell me the city of {person}"),
        _slots(person=_draw_person),
        lambda w, s: _answer(office(w).member(s["person"]).city),
        lambda w, s: [*_to(s["person"]), exit_move(office(w).member(s["person"]).city)],
    ),
    _template(
        "price",
        "state",
        "product",
        1,
        ("set the price of {product} to {price}", "change the price of {product} to {price}"),
        _slots(product=_draw_product, price=_draw_number),
        lambda w, s: _changed(*_product_changes(w, s)),
        lambda w, s: [*_edit(s), DONE],
    ),
    _template(
        "open_member",
        "navigation",
        "member facts",
        2,
        ("open the page of the member who placed order {order}", "show the member who placed order {order}"),
        _slots(order=_draw_order),
        lambda w, s: _url(f"/members/{_order(w, s).member.replace(' ', '-')}"),
        lambda w, s: [*_to_order(s), Move("link", _order(w, s).member), DONE],
    ),
    _template(
        "accept_two",
        "state",
        "review",
        2,
        ("accept the reviews of {review} and of {review2}", "accept the review of {review} and that of {review2}"),
        _slots(review=_draw_review, review2=_draw_review),
        lambda w, s: _changed(*_review_changes(w, [s["review"], s["review2"]])),
        lambda w, s: _accept(w, [s["review"], s["review2"]]),
    ),
    _template(
        "most_stock",
        "information",
        "stock",
        2,
        ("which {state} product has the {most}", "find the {state} product with the {most}"),
        _slots(state=_one_of(*STATES), most=_one_of(*MOST)),
        lambda w, s: _answer(_most(w, s)),
        lambda w, s: [*_show("products", status=s["state"], sort=s["most"]), exit_move(_most(w, s))],
    ),
    _template(
        "no_price",
        "impossible",
        "product",
        1,
        ("set the price of {product} to {price}", "change the price of {product} to {price}"),
        _slots(product=_draw_missing, price=_draw_number),
        lambda w, s: _no(office(w).products, "product", s["product"]),
        lambda w, s: [*_find(s["product"]), NOT_POSSIBLE],
    ),
    _template(
        "enable",
        "state",
        "switch",
        1,
        ("enable {product}", "enable the product {product}"),
        _slots(product=_draw_product),
        lambda w, s: _changed(_change(w, "product", s["product"], "status", "enabled")),
        lambda w, s: [*_switch(s["product"], "enable"), DONE],
    ),
    _template(
        "order_city",
        "information",
        "order facts",
        2,
        ("what is the city of the member who placed order {order}", "in which city is the member of order {order}"),
        _slots(order=_draw_order),
        lambda w, s: _answer(office(w).member(_order(w, s).member).city),
        lambda w, s: [
            *_to_order(s),
            Move("link", _order(w, s).member),
            exit_move(office(w).member(_order(w, s).member).city),
        ],
    ),
    _template(
        "group_city",
        "state",
        "member",
        2,
        (
            "move {person} to group {group} and to the city {city}",
            "change the group of {person} to {group} and the city to {city}",
        ),
        _slots(person=_draw_person, group=_GROUP, city=_CITY),
        lambda w, s: _changed(*_member_changes(w, s)),
        lambda w, s: [*_to(s["person"]), _select("group", s["group"]), _type("city", s["city"]), SAVE, DONE],
    ),
    _template(
        "delete",
        "state",
        "review",
        1,
        ("delete the review of {review}", "delete the waiting review of {review}"),
        _slots(review=_draw_review),
        lambda w, s: _changed(*_review_changes(w, [s["review"]], "deleted")),
        lambda w, s: [
            Move("link", "reviews"),
            *_turn(w, s["review"]),
            Move("link", "delete review"),
            Move("button", "yes, delete"),
            DONE,
        ],
    ),
    _template(
        "show_member_orders",
        "navigation",
        "orders",
        2,
        ("show the {status} orders of {person}", "list all {status} orders of {person}"),
        _of_order("status", "person"),
        lambda w, s: _url("/orders", status=_known(s["status"], NEXT), member=office(w).member(s["person"]).name),
        lambda w, s: [*_show("orders", status=s["status"], member=s["person"]), DONE],
    ),
    _template(
        "month_total",
        "information",
        "month",
        2,
        (
            "what is the total of the {status} orders of {month}",
            "find the total of all {status} orders placed in {month}",
        ),
        _of_order("status", "month"),
        lambda w, s: _answer(sum(order.total for order in _orders(w, s))),
        lambda w, s: [
            *_show("report", "orders by month", status=s["status"]),
            exit_move(str(sum(order.total for order in _orders(w, s)))),
        ],
    ),
    _template(
        "stuck",
        "impossible",
        "order",
        1,
        ("set order {order} to {status}", "change the status of order {order} to {status}"),
        _slots(order=_draw_order, status=_STATUS),
        _stuck,
        lambda w, s: [*_to_order(s), NOT_POSSIBLE],
    ),
    _template(
        "price_stock_disable",
        "state",
        "product",
        3,
        (
            "set the price of {product} to {price} and the stock to {stock} and disable it",
            "change the price of {product} to {price}, its stock to {stock} and disable the product",
        ),
        _slots(product=_draw_product, price=_draw_number, stock=_draw_number),
        lambda w, s: _changed(*_product_changes(w, s), *_disabled(w, s["product"])),
        lambda w, s: [*_edit(s), Move("button", "disable"), DONE],
    ),
    _template(
        "order_note",
        "information",
        "order facts",
        1,
        ("what is the note of order {order}", "what does the note of order {order} say"),
        _slots(order=_draw_noted),
        lambda w, s: _answer(_note(w, s)),
        lambda w, s: [*_to_order(s), exit_move(_note(w, s))],
    ),
    _template(
        "accept_all",
        "state",
        "review",
        2,
        ("accept all reviews of {person}", "accept all waiting reviews of {person}"),
        _slots(person=lambda w, rng: rng.choice(_waiting(w)).member),
        lambda w, s: _changed(*_review_changes(w, _two_waiting(w, s["person"]))),
        lambda w, s: _accept(w, _two_waiting(w, s["person"])),
    ),
    _template(
        "show_top",
        "navigation",
        "top",
        1,
        ("show the top products of {month}", "list the products that sold most in {month}"),
        _of_order("month"),
        lambda w, s: _url("/report/top", month=_known(s["month"], MONTHS)),
        lambda w, s: [*_show("report", "top products", month=s["month"]), DONE],
    ),
    _template(
        "disable_two",
        "state",
        "switch",
        2,
        ("disable {product} and {product2}", "disable the products {product} and {product2}"),
        _slots(product=_draw_product, product2=_draw_product),
        lambda w, s: _changed(*_disabled(w, s["product"], s["product2"])),
        lambda w, s: [*_switch(s["product"], "disable"), *_switch(s["product2"], "disable"), DONE],
    ),
    _template(
        "count_all",
        "information",
        "count",
        1,
        ("how many orders does {person} have", "count the orders of {person}"),
        _of_order("person"),
        lambda w, s: _answer(len(_orders(w, s))),
        lambda w, s: [*_to(s["person"]), exit_move(str(len(_orders(w, s))))],
    ),
    _template(
        "note",
        "state",
        "order",
        1,
        ("set the note of order {order} to {note}", "write the note {note} to order {order}"),
        _slots(order=_draw_order, note=draw_note),
        lambda w, s: _changed(*_order_changes(w, s)),
        lambda w, s: [*_to_order(s), _type("note", s["note"]), SAVE, DONE],
    ),
    _template(
        "show_products",
        "navigation",
        "stock",
        2,
        ("show the {state} products sorted by {most}", "list all {state} products sorted by {most}"),
        _slots(state=_one_of(*STATES), most=_one_of(*MOST)),
        lambda w, s: _url("/products", status=_known(s["state"], STATES), sort=_known(s["most"], MOST)),
        lambda w, s: [*_show("products", status=s["state"], sort=s["most"]), DONE],
    ),
    _template(
        "no_group",
        "impossible",
        "member",
        1,
        ("move {person} to group {group}", "change the group of {person} to {group}"),
        _slots(person=_draw_stranger, group=_GROUP),
        lambda w, s: _no(office(w).members, "member", s["person"]),
        lambda w, s: [*_find(s["person"]), NOT_POSSIBLE],
    ),
    _template(
        "newest",
        "information",
        "count",
        2,
        (
            "what is the number of the newest {status} order of {person}",
            "find the number of the newest {status} order of {person}",
        ),
        _of_order("status", "person"),
        lambda w, s: _answer(_newest(w, s)),
        lambda w, s: [*_show("orders", status=s["status"], member=s["person"]), exit_move(_newest(w, s))],
    ),
    _template(
        "review_text",
        "information",
        "review",
        1,
        ("what does the waiting review of {review} say", "tell me the text of the waiting review of {review}"),
        _slots(review=_draw_review),
        lambda w, s: _answer(_review(w, s).text),
        lambda w, s: [Move("link", "reviews"), *_turn(w, s["review"]), exit_move(_review(w, s).text)],
    ),
    _template(
        "month_count",
        "information",
        "month",
        1,
        ("how many orders were placed in {month}", "find the number of orders of {month}"),
        _of_order("month"),
        lambda w, s: _answer(len(_orders(w, s))),
        lambda w, s: [
            Move("link", "report"),
            Move("link", "orders by month"),
            exit_move(str(len(_orders(w, s)))),
        ],
    ),
]
