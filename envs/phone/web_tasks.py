"""Task templates on the web and around it, in the spirit of Android in the Wild's General and Web Shopping."""

from envs.phone.apps import browser, settings, shop, store, web
from envs.phone.apps.clock import Alarm, with_alarm
from envs.phone.screen import hour
from envs.phone.tasks import (
    LONG,
    Goal,
    Template,
    answer,
    app,
    pick,
    require,
    runs,
    search,
    shows,
    tap,
    visits,
)

ADDRESS = "Search or type web address"


# --- general: looking things up --------------------------------------------------------------------------------------


def _one(slot, kind):
    """A draw of one value of a kind."""
    return lambda state, rng: {slot: pick(rng, state.world.pool(kind))}


def _look_up(name, slot, kind, phrasings, before, title, query):
    """A template: find the page of a name. It is the page that counts, not the way there."""

    def oracle(state, slots):
        words = slots[slot]
        shown = title.format(words.capitalize() if words.islower() else words)
        return [*app("Browser"), search(ADDRESS, query.format(words)), tap(shown, "item")]

    def goal(state, slots):
        return Goal(place=visits(before + web.slug(slots[slot])))

    return Template(name, "general", phrasings, _one(slot, kind), goal, oracle)


def _fact(state, address, name):
    """What a page of facts says about something."""
    return next(block[2] for block in web.page(state.world, address).blocks if block[:2] == ("fact", name))


def _ask(name, draw, phrasings, address, fact, query, title, units=()):
    """A template: answer with a fact of a page. `address`, `fact`, `query` and `title` are formats of the slots."""

    def value(state, slots):
        places = {key: web.slug(words) for key, words in slots.items()}
        return _fact(state, address.format(**places), fact.format(**slots))

    def goal(state, slots):
        said = value(state, slots)
        return Goal(answer=(said, *(said.removesuffix(unit) for unit in units if said.endswith(unit))))

    def oracle(state, slots):
        moves = [*app("Browser"), search(ADDRESS, query.format(**slots)), tap(title.format(**slots), "item")]
        return [*moves, answer(value(state, slots))]

    return Template(name, "general", phrasings, draw, goal, oracle)


def _country(state, rng):
    return {"country": pick(rng, state.world.pool("country")).partition("=")[0]}


def _news_oracle(state, slots):
    where = slots["country"]
    return [*app("Browser"), search(ADDRESS, f"news in {where}"), tap(f"News from {where}", "item")]


def _two_cities(state, rng):
    a, b = rng.sample(state.world.pool("city"), 2)
    return {"city": a, "city2": b}


def _flights_oracle(state, slots):
    words = f"flights from {slots['city']} to {slots['city2']}"
    return [*app("Browser"), search(ADDRESS, words), tap(words.capitalize()[:7] + words[7:], "item")]


def _flights_goal(state, slots):
    return Goal(place=visits(f"flyaway.com/{web.slug(slots['city'])}-to-{web.slug(slots['city2'])}"))


def _google_goal(state, slots):
    def place(now):
        here = browser.address(now)
        words = here.partition("search/")[2].lower().split("+")
        asked = here.startswith(web.FINDER) and {"capital", slots["country"].lower()} <= set(words)
        return now.front == browser.PACKAGE and asked

    return Goal(place=place)


# --- general: tabs, alarms, toggles, apps ----------------------------------------------------------------------------


def _new_tab(private):
    def place(now):
        shown = now.browser.tabs[now.browser.current]
        many = len(now.browser.tabs) > 1 or private
        return now.front == browser.PACKAGE and many and shown[1] == private and browser.address(now) == ""

    kind = "private tab" if private else "tab"
    return Template(
        "private_tab" if private else "new_tab",
        "general",
        (f"Open a new {kind} in the browser", f"Add a {kind} to those of the browser"),
        lambda state, rng: {},
        lambda state, slots: Goal(place=place),
        lambda state, slots: [*app("Browser"), tap("More options", "button"), tap(f"New {kind}", "item")],
    )


def parse_hour(words):
    """(hour, minute) of "7:05 PM"."""
    clock, half = words.split()
    hours, minutes = (int(part) for part in clock.split(":"))
    return hours % 12 + 12 * (half == "PM"), minutes


def draw_hour(state, rng):
    """A time of day whose minutes belong to the phone's split."""
    return hour(rng.randint(0, 23), int(pick(rng, state.world.pool("minute"))))


def set_time(state, hours, minutes, old_hours):
    """Moves in the time dialog, which shows `old_hours` and no minutes."""
    moves = []
    if (hours >= 12) != (old_hours >= 12):
        moves.append(tap("AM" if hours < 12 else "PM", "item"))
    shown = f"{hours:02d}" if state.settings.whole_day else str((hours - 1) % 12 + 1)
    moves.append(tap(shown, "button"))
    if minutes:
        moves.append(tap(f"{minutes:02d}", "button"))
    return [*moves, tap("OK", "button")]


def alarm_moves(state, words):
    hours, minutes = parse_hour(words)
    first = state.time.hour + 1 if state.time.hour < 23 else 0
    now = hour(first, 0, state.settings.whole_day)
    return [tap("Add alarm", "button"), tap(now, "item"), *set_time(state, hours, minutes, first)]


def _alarm_goal(state, slots):
    new = Alarm(*parse_hour(slots["time"]))
    require(new not in state.clock.alarms)
    return Goal({"alarms": with_alarm(state.clock, new).alarms})


def draw_toggle(state, rng):
    key = pick(rng, state.world.pool("toggle"))
    return {"toggle": settings.TOGGLES[key][0], "way": "off" if getattr(state.settings, key) else "on"}


def toggle_key(name):
    return next(key for key, (shown, _) in settings.TOGGLES.items() if shown == name)


def toggle_moves(name):
    """From the settings' first screen."""
    return [tap(settings.PAGES[settings.TOGGLES[toggle_key(name)][1]][0], "item"), tap(name, "check")]


def _toggle_goal(state, slots):
    return Goal({"settings": settings.turned(state.settings, toggle_key(slots["toggle"]), slots["way"] == "on")})


def _an_app(state, rng):
    return {"app": pick(rng, [name for name in store.installed(state) if name in state.world.pool("app")])}


def _battery(state):
    return str(40 + state.world.seed % 55)


def _bookmark_goal(state, slots):
    return Goal({"bookmarks": (f"wikifolio.com/animal/{web.slug(slots['animal'])}",)})


def _bookmark_oracle(state, slots):
    shown = f"{slots['animal'].capitalize()} - Wikifolio"
    moves = [*app("Browser"), search(ADDRESS, f"how big is a {slots['animal']}"), tap(shown, "item")]
    return [*moves, tap("More options", "button"), tap("Add bookmark", "item")]


GENERAL = [
    _look_up(
        "weather",
        "city",
        "city",
        ("What's the weather like in {city}?", "Show me the weather in {city}"),
        "skycast.com/",
        "Weather in {}",
        "weather in {}",
    ),
    Template(
        "news",
        "general",
        ("What's the news in {country}?", "Find the latest news from {country}"),
        _country,
        lambda state, slots: Goal(place=visits(f"dailynote.com/world/{web.slug(slots['country'])}")),
        _news_oracle,
    ),
    Template(
        "alarm",
        "general",
        ("Set an alarm for {time}", "Wake me up at {time}"),
        lambda state, rng: {"time": draw_hour(state, rng)},
        _alarm_goal,
        lambda state, slots: [*app("Clock"), *alarm_moves(state, slots["time"]), tap("Save", "button")],
    ),
    _ask(
        "capital",
        _country,
        ("What is the capital of {country}?", "Which city is the capital of {country}?"),
        "wikifolio.com/country/{country}",
        "Capital",
        "capital of {country}",
        "{country} - Wikifolio",
    ),
    _look_up(
        "hotels",
        "city",
        "city",
        ("Search for hotels in {city}", "Find a place to stay in {city}"),
        "stayfinder.com/",
        "Hotels in {}",
        "hotels in {}",
    ),
    Template(
        "toggle",
        "general",
        ("Turn {way} {toggle}", "Switch {toggle} {way} in the settings"),
        draw_toggle,
        _toggle_goal,
        lambda state, slots: [*app("Settings"), *toggle_moves(slots["toggle"])],
    ),
    _look_up(
        "science",
        "science",
        "science",
        ("What's the latest news in {science}?", "Show me news about {science}"),
        "dailynote.com/science/",
        "{} news",
        "latest news in {}",
    ),
    Template(
        "flights",
        "general",
        ("Search for flights from {city} to {city2}", "Find a flight from {city} to {city2}"),
        _two_cities,
        _flights_goal,
        _flights_oracle,
    ),
    Template(
        "app_settings",
        "general",
        ("Check the settings for the {app} app", "Open the app info of {app}"),
        _an_app,
        lambda state, slots: Goal(place=shows(settings.PACKAGE, "app", store.package(slots["app"]))),
        lambda state, slots: [*app("Settings"), tap("Apps", "item"), tap(slots["app"], "item")],
    ),
    _ask(
        "rent",
        lambda state, rng: {"rooms": str(rng.randint(2, 3)), "city": pick(rng, state.world.pool("city"))},
        (
            "How much does a {rooms} bedroom apartment rent for in {city}?",
            "What is the rent of {rooms} bedrooms in {city}?",
        ),
        "roomlist.com/{city}",
        "{rooms} bedrooms",
        "apartment rent in {city}",
        "Apartments in {city}",
        (" a month",),
    ),
    _look_up(
        "food",
        "dish",
        "dish",
        ("Search for a good place for {dish}", "Where can I eat {dish}?"),
        "tastemap.com/",
        "Where to eat {}",
        "restaurants {}",
    ),
    _new_tab(False),
    _ask(
        "temperature",
        _one("city", "city"),
        ("How many degrees is it in {city} today?", "What's the temperature in {city}?"),
        "skycast.com/{city}",
        "Temperature",
        "weather in {city}",
        "Weather in {city}",
        (" degrees",),
    ),
    Template(
        "open_app",
        "general",
        ("Open the {app} app", "Launch {app}"),
        _an_app,
        lambda state, slots: Goal(place=runs(store.package(slots["app"]))),
        lambda state, slots: app(slots["app"]),
    ),
    _look_up(
        "animal",
        "animal",
        "animal",
        ("How big is a {animal}?", "Look up how big a {animal} is"),
        "wikifolio.com/animal/",
        "{} - Wikifolio",
        "how big is a {}",
    ),
    Template(
        "google",
        "general",
        ("Google the capital of {country}", "Search the web for the capital of {country}"),
        _country,
        _google_goal,
        lambda state, slots: [*app("Browser"), search(ADDRESS, f"capital of {slots['country']}")],
    ),
    _new_tab(True),
    Template(
        "battery",
        "general",
        ("How much battery is left?", "What is the battery level in percent?"),
        lambda state, rng: {},
        lambda state, slots: Goal(answer=(_battery(state), f"{_battery(state)}%")),
        lambda state, slots: [*app("Settings"), tap("Battery", "item"), answer(_battery(state))],
    ),
    Template(
        "bookmark",
        "general",
        ("Find out how big a {animal} is and bookmark the page", "Bookmark Wikifolio's page on the {animal}"),
        _one("animal", "animal"),
        _bookmark_goal,
        _bookmark_oracle,
    ),
    _ask(
        "wind",
        _one("city", "city"),
        ("How strong is the wind in {city}?", "What's the wind like in {city} today?"),
        "skycast.com/{city}",
        "Wind",
        "weather in {city}",
        "Weather in {city}",
        (" km/h",),
    ),
]


# --- shopping: on the web --------------------------------------------------------------------------------------------


def _site_item(state, rng):
    return {"site": pick(rng, state.world.pool("site")), "item": pick(rng, state.world.pool("item"))}


def _find_there(slots):
    """Moves to a shop's results."""
    site = slots["site"]
    return [*app("Browser"), search(ADDRESS, f"{site}.com"), search(f"Search {site}.com", slots["item"])]


def _results(slots):
    """The addresses of a shop's results: words are joined in two ways."""
    words = slots["item"]
    return tuple(f"{slots['site']}.com/search/{joined}" for joined in (words.replace(" ", "+"), web.slug(words)))


def _entry(slots, number=1):
    return f"{slots['site']}.com/item/{web.slug(slots['item'])}-{number}"


def _cheapest(state, slots):
    """(number, name) of the cheapest result; LookupError if two cost the same."""
    site, item = slots["site"], web.slug(slots["item"])
    prices = [web.price(state.world, site, item, number) for number in (1, 2, 3, 4)]
    require(prices.count(min(prices)) == 1)
    number = prices.index(min(prices)) + 1
    return number, slots["item"].capitalize() + ("", " pro", " mini", " plus")[number - 1]


def _price_goal(state, slots):
    price = web.price(state.world, slots["site"], web.slug(slots["item"]), 1)
    return Goal(answer=(f"${price}",))


def _in_cart(state, *things):
    return Goal({"carts": tuple(sorted((*state.browser.carts, *things)))})


def _two_items(state, rng):
    a, b = rng.sample(state.world.pool("item"), 2)
    return {"site": pick(rng, state.world.pool("site")), "item": a, "item2": b}


def _two_oracle(state, slots):
    first = [*_find_there(slots), tap(slots["item"].capitalize(), "item"), tap("Add to cart", "button")]
    second = [search(f"Search {slots['site']}.com", slots["item2"]), tap(slots["item2"].capitalize(), "item")]
    return [*first, *second, tap("Add to cart", "button")]


# --- shopping: the shop's app ----------------------------------------------------------------------------------------


def _product(state, rng, coloured=False):
    carted = [line.product for line in state.shop.cart]
    some = [one for one in shop.catalogue(state.world) if one.coloured == coloured and one.name not in carted]
    return {"product": pick(rng, some).name}


def _to_item(name):
    return [*app("Shop"), search("Search the shop", name), tap(name, "item")]


def _cart_of(state, line):
    return Goal({"cart": tuple(sorted(shop.added(state.shop, line).cart, key=repr))})


def _count_draw(state, rng):
    return _product(state, rng) | {"count": str(rng.randint(2, 4))}


def _count_oracle(state, slots):
    more = [tap("More", "button")] * (int(slots["count"]) - 1)
    return [*_to_item(slots["product"]), *more, tap("Add to cart", "button")]


def _colour_draw(state, rng):
    return _product(state, rng, True) | {"color": pick(rng, state.world.own(shop.COLOURS)).lower()}


def _colour_oracle(state, slots):
    return [*_to_item(slots["product"]), tap(slots["color"].capitalize(), "item"), tap("Add to cart", "button")]


def _line(state, rng):
    return {"product": pick(rng, state.shop.cart).product}


def _carted(state, slots):
    return next(line for line in state.shop.cart if line.product == slots["product"])


def _without(state, slots):
    return Goal({"cart": tuple(sorted((one for one in state.shop.cart if one != _carted(state, slots)), key=repr))})


def _cart_moves():
    return [*app("Shop"), tap("Cart", "button")]


def _order_draw(state, rng):
    require(state.shop.cart)
    return {"address": pick(rng, state.world.own(shop.ADDRESSES)), "shipping": pick(rng, shop.SHIPPING)}


def _order_goal(state, slots):
    require(state.shop.cart)
    new = shop.ordered(state, slots["address"], slots["shipping"])
    return Goal({"cart": (), "orders": new.orders})


def _order_oracle(state, slots):
    chosen = [tap(slots["address"], "radio")] * (slots["address"] != "Home")
    chosen += [tap(slots["shipping"], "radio")] * (slots["shipping"] != "Standard")
    return [*_cart_moves(), tap("Checkout", "button"), *chosen, tap("Place order", "button")]


def _cheapest_of(state, slots):
    some = shop.found(state.world, ("category", slots["category"]), shop.SORTS[1])
    carted = [line.product for line in state.shop.cart]
    require(len(some) > 2 and not some[0].coloured and some[0].name not in carted)
    return some[0].name


def _cheapest_oracle(state, slots):
    moves = [*app("Shop"), tap(slots["category"], "item"), tap("Sort", "button"), tap("Price: low to high", "radio")]
    return [*moves, tap(_cheapest_of(state, slots), "item"), tap("Add to cart", "button")]


def _best(state, slots):
    some = shop.found(state.world, ("category", slots["category"]), shop.SORTS[3])
    require(len(some) > 2 and some[0].stars > some[1].stars)
    return some[0].name


def _quantity_draw(state, rng):
    line = pick(rng, [line for line in state.shop.cart if line.count < 4])
    return {"product": line.product, "count": str(line.count + rng.randint(1, 2))}


def _quantity_goal(state, slots):
    old, count = _carted(state, slots), int(slots["count"])
    changed = [shop.Line(one.product, count, one.colour) if one == old else one for one in state.shop.cart]
    return Goal({"cart": tuple(sorted(changed, key=repr))})


def _quantity_oracle(state, slots):
    more = int(slots["count"]) - _carted(state, slots).count
    return [*_cart_moves(), *[tap(f"More of {slots['product']}", "button")] * more]


def _wish_draw(state, rng):
    return {"product": pick(rng, shop.catalogue(state.world)).name}


def _category(state, rng):
    return {"category": pick(rng, state.world.own(shop.CATEGORIES))}


SHOPPING = [
    Template(
        "site",
        "shopping",
        ("Go to {site}.com", "Open {site}.com in the browser"),
        _one("site", "site"),
        lambda state, slots: Goal(place=visits(f"{slots['site']}.com")),
        lambda state, slots: [*app("Browser"), search(ADDRESS, f"{slots['site']}.com")],
    ),
    Template(
        "add",
        "shopping",
        ("Add the {product} to the cart of the Shop app", "Put a {product} in the Shop's cart"),
        _product,
        lambda state, slots: _cart_of(state, shop.Line(slots["product"])),
        lambda state, slots: [*_to_item(slots["product"]), tap("Add to cart", "button")],
    ),
    Template(
        "site_search",
        "shopping",
        ('Go to {site}.com, search for "{item}"', 'Search for "{item}" on {site}.com'),
        _site_item,
        lambda state, slots: Goal(place=visits(*_results(slots))),
        lambda state, slots: _find_there(slots),
    ),
    Template(
        "order",
        "shopping",
        (
            "Order what is in the Shop's cart to {address} with {shipping} delivery",
            "Check out in the Shop app: ship to {address}, delivery {shipping}",
        ),
        _order_draw,
        _order_goal,
        _order_oracle,
    ),
    Template(
        "first_entry",
        "shopping",
        (
            'Go to {site}.com, search for "{item}", and select the first entry',
            'On {site}.com look for "{item}" and open the first result',
        ),
        _site_item,
        lambda state, slots: Goal(place=visits(_entry(slots))),
        lambda state, slots: [*_find_there(slots), tap(slots["item"].capitalize(), "item")],
    ),
    Template(
        "add_count",
        "shopping",
        ("Add {count} of the {product} to the Shop's cart", "Put {count} x {product} in the cart of the Shop app"),
        _count_draw,
        lambda state, slots: _cart_of(state, shop.Line(slots["product"], int(slots["count"]))),
        _count_oracle,
    ),
    Template(
        "web_cart",
        "shopping",
        (
            'Go to {site}.com, search for "{item}", select the first entry, and add it to the cart',
            'Add the first "{item}" of {site}.com to its cart',
        ),
        _site_item,
        lambda state, slots: _in_cart(state, (slots["site"], slots["item"].capitalize())),
        lambda state, slots: [
            *_find_there(slots),
            tap(slots["item"].capitalize(), "item"),
            tap("Add to cart", "button"),
        ],
    ),
    Template(
        "remove",
        "shopping",
        ("Remove the {product} from the Shop's cart", "Take the {product} out of the cart of the Shop app"),
        _line,
        _without,
        lambda state, slots: [*_cart_moves(), tap(f"Remove {slots['product']}", "button")],
    ),
    Template(
        "web_cheapest",
        "shopping",
        (
            'On {site}.com search for "{item}" and open the cheapest result',
            'Go to {site}.com and select the "{item}" that costs least',
        ),
        _site_item,
        lambda state, slots: Goal(place=visits(_entry(slots, _cheapest(state, slots)[0]))),
        lambda state, slots: [*_find_there(slots), tap(_cheapest(state, slots)[1], "item")],
    ),
    Template(
        "cheapest",
        "shopping",
        (
            "Add the cheapest thing of the category {category} to the Shop's cart",
            "In the Shop app put the cheapest {category} product in the cart",
        ),
        _category,
        lambda state, slots: _cart_of(state, shop.Line(_cheapest_of(state, slots))),
        _cheapest_oracle,
    ),
    Template(
        "web_price",
        "shopping",
        (
            'What does the first "{item}" on {site}.com cost?',
            'How much is the first result for "{item}" on {site}.com?',
        ),
        _site_item,
        _price_goal,
        lambda state, slots: [*_find_there(slots), answer(_price_goal(state, slots).answer[0])],
    ),
    Template(
        "add_color",
        "shopping",
        ("Add the {product} in {color} to the Shop's cart", "Put the {product} in {color} in the cart of the Shop app"),
        _colour_draw,
        lambda state, slots: _cart_of(state, shop.Line(slots["product"], 1, slots["color"].capitalize())),
        _colour_oracle,
    ),
    Template(
        "two_items",
        "shopping",
        (
            'On {site}.com add the first "{item}" and the first "{item2}" to the cart',
            'Put the first result for "{item}" and for "{item2}" in the cart of {site}.com',
        ),
        _two_items,
        lambda state, slots: _in_cart(state, *((slots["site"], slots[key].capitalize()) for key in ("item", "item2"))),
        _two_oracle,
        LONG,
    ),
    Template(
        "wish",
        "shopping",
        ("Add the {product} to the Shop's wish list", "Put the {product} on the wish list of the Shop app"),
        _wish_draw,
        lambda state, slots: Goal({"wishes": (slots["product"],)}),
        lambda state, slots: [*_to_item(slots["product"]), tap("Add to wish list", "button")],
    ),
    Template(
        "quantity",
        "shopping",
        (
            "Change the quantity of the {product} in the Shop's cart to {count}",
            "Make it {count} of the {product} in the cart of the Shop app",
        ),
        _quantity_draw,
        _quantity_goal,
        _quantity_oracle,
    ),
    Template(
        "best",
        "shopping",
        (
            "Which product of the Shop's category {category} has the best rating?",
            "What is the top rated {category} product in the Shop app?",
        ),
        _category,
        lambda state, slots: Goal(answer=(_best(state, slots),)),
        lambda state, slots: [
            *app("Shop"),
            tap(slots["category"], "item"),
            tap("Sort", "button"),
            tap("Rating", "radio"),
            answer(_best(state, slots)),
        ],
    ),
]
TEMPLATES = [*GENERAL, *SHOPPING]
