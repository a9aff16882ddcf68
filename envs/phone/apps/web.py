"""The small web that the phone's browser shows: a search engine, an encyclopedia, news, weather, travel, shops.

A page is an address and blocks. All of it is drawn from the world's seed: an answer must be read.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from envs.phone.words import everything

FINDER = "finder.com"
NOISE = set("a an the of in for to what is s how do i get where can buy nice good some search best on does much cost "
            "it new find show me s at google latest".split())  # fmt: skip


@dataclass(frozen=True)
class Page:
    """Blocks are ("title", words), ("text", words), ("fact", name, value), ("link", words, note, address),
    ("search", hint, the address before the words) and ("add", site, what goes into its cart)."""

    title: str
    blocks: tuple


@lru_cache(4096)
def _rng(world, address):
    return tuple(world.rng(f"web/{address}").random() for _ in range(8))


def draw(world, address, place, low, high):
    """The `place`-th number of a page, from `low` to `high`."""
    return low + int(_rng(world, address)[place] * (high - low + 1))


def capital(country):
    return dict(pair.split("=") for pair in everything("country"))[country]


def countries():
    return [pair.split("=")[0] for pair in everything("country")]


def slug(words):
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


def _kinds():
    """(the address before the name, title, the words that are searched for, names) of every family of pages."""
    cities, lands = everything("city"), countries()
    return (
        ("wikifolio.com/country/", "{} - Wikifolio", "{} capital country population", lands),
        ("wikifolio.com/animal/", "{} - Wikifolio", "{} big size animal", everything("animal")),
        ("dailynote.com/world/", "News from {}", "news {}", lands),
        ("dailynote.com/science/", "{} news", "news {} science", everything("science")),
        ("skycast.com/", "Weather in {}", "weather {} forecast like", cities),
        ("stayfinder.com/", "Hotels in {}", "hotels hotel {}", cities),
        ("tastemap.com/", "Where to eat {}", "restaurant restaurants menu place {}", everything("dish")),
        ("roomlist.com/", "Apartments in {}", "apartment rent bedroom {}", cities),
    )


@lru_cache(1)
def index():
    """(address, title, the words it is found by) of every page that has a fixed address."""
    found = []
    for before, title, words, names in _kinds():
        for name in names:
            found.append(
                (before + slug(name), title.format(name.capitalize() if name.islower() else name), words.format(name))
            )
    found += [(f"{site}.com", f"{site}.com - online shop", f"{site} shop online") for site in everything("site")]
    return tuple((address, title, frozenset(words.lower().split())) for address, title, words in found)


def search(query):
    """[(title, address)] for a query: flights between two cities, then the pages that share most words with it."""
    asked = re.sub(r"[^a-z0-9 ]+", " ", query.lower()).split()
    words, results = [word for word in asked if word not in NOISE], []
    cities = {city.lower(): city for city in everything("city")}
    ends = [cities[word] for word in words if word in cities]
    if "flights" in words and len(ends) == 2:
        results.append((f"Flights from {ends[0]} to {ends[1]}", f"flyaway.com/{slug(ends[0])}-to-{slug(ends[1])}"))
    scored = []
    for address, title, known in index():
        score = sum(word in known for word in words)
        if score:
            scored.append((-score, len(known), address, title))
    results += [(title, address) for _, _, address, title in sorted(scored)[:6]]
    items = [item for item in everything("item") if item in query.lower()]
    for item in items[:1]:
        results[:0] = [
            (f"{item.capitalize()} at {site}.com", f"{site}.com/search/{slug(item)}") for site in everything("site")[:3]
        ]
    return results[:7]


@lru_cache(2048)
def page(world, address):
    """The page at an address; unknown ones say so."""
    host, _, path = address.partition("/")
    if not host:
        return Page("New tab", (("shortcuts",),))
    if host == FINDER:
        return _results(path)
    if host.removesuffix(".com") in everything("site"):
        return _shop(world, host.removesuffix(".com"), path)
    if host == "flyaway.com" and "-to-" in path:
        return _flights(world, address, path)
    for before, title, _, names in _kinds():
        if address.startswith(before):
            for name in names:
                if slug(name) == address.removeprefix(before):
                    return _known(world, address, before, title, name)
    return Page("Page not found", (("title", "Page not found"), ("text", f"{address} could not be reached.")))


def _results(path):
    query = path.removeprefix("search/").replace("+", " ")
    found = search(query) if path else []
    blocks = [("search", "Search the web", f"{FINDER}/search/")]
    blocks += [("link", title, address, address) for title, address in found]
    if path and not found:
        blocks.append(("text", f"Nothing was found for {query}."))
    return Page(f"{query} - Finder" if path else "Finder", tuple(blocks))


def _known(world, address, before, title, name):
    shown = name.capitalize() if name.islower() else name
    host = before.partition("/")[0]

    def n(place, low, high):
        return draw(world, address, place, low, high)

    head = ("title", title.format(shown).removesuffix(" - Wikifolio"))
    if before.startswith("wikifolio.com/country"):
        facts = ("Capital", capital(name)), ("Population", f"{n(0, 1, 95)} million"), ("Currency", f"{shown} crown")
    elif before.startswith("wikifolio.com/animal"):
        facts = (
            ("Length", f"{n(0, 60, 400)} cm"),
            ("Weight", f"{n(1, 20, 900)} kg"),
            ("Lives for", f"{n(2, 8, 60)} years"),
        )
    elif host == "skycast.com":
        facts = ("Today", SKIES[n(0, 0, 5)]), ("Temperature", f"{n(1, 2, 34)} degrees"), ("Wind", f"{n(2, 3, 60)} km/h")
    elif host == "stayfinder.com":
        hotels = ("Grand", "Harbor", "Station")
        facts = tuple((f"{hotel} Hotel", f"${n(i, 60, 290)} a night") for i, hotel in enumerate(hotels))
    elif host == "roomlist.com":
        facts = tuple((f"{rooms} bedroom{'s' * (rooms > 1)}", f"${n(rooms, 90, 400)}0 a month") for rooms in (1, 2, 3))
    elif host == "tastemap.com":
        facts = ("Nearest", f"{shown} Palace"), ("Price", f"${n(0, 7, 35)}"), ("Open until", f"{n(1, 8, 11)} PM")
    else:
        return Page(head[1], (head, *(("text", line) for line in _news(world, address, shown))))
    return Page(title.format(shown), (head, *(("fact", *fact) for fact in facts)))


def _news(world, address, name):
    lines = (
        f"{name}: {draw(world, address, 0, 2, 40)} new projects were announced this week.",
        f"Experts on {name} meet in {everything('city')[draw(world, address, 1, 0, 20)]}.",
        f"A prize of {draw(world, address, 2, 1, 90)} thousand dollars was given to a team.",
    )
    return lines


def _flights(world, address, path):
    a, b = (part.replace("-", " ").title() for part in path.split("-to-"))
    lines = ("Blue Air", "Northwind", "Sunline")
    facts = tuple(("fact", line, f"${draw(world, address, i, 80, 900)}") for i, line in enumerate(lines))
    return Page(f"Flights from {a} to {b}", (("title", f"Flights from {a} to {b}"), *facts))


def _shop(world, site, path):
    find = "search", f"Search {site}.com", f"{site}.com/search/"
    head = "title", f"{site}.com"
    kind, _, words = path.partition("/")
    if kind == "search" and words:
        plain = words.replace("-", " ").replace("+", " ")
        sizes = ("", " pro", " mini", " plus")
        links = [
            ("link", f"{plain.capitalize()}{size}", f"${price(world, site, slug(plain), i + 1)}",
             f"{site}.com/item/{slug(plain)}-{i + 1}")
            for i, size in enumerate(sizes)
        ]  # fmt: skip
        return Page(f"{plain} - {site}.com", (head, find, ("text", f"Results for {plain}"), *links))
    if kind == "item" and words:
        item, _, number = words.rpartition("-")
        size = ("", " pro", " mini", " plus")[int(number) - 1] if number in ("1", "2", "3", "4") else ""
        name = f"{item.replace('-', ' ').capitalize()}{size}"
        blocks = (
            head,
            find,
            ("title", name),
            ("fact", "Price", f"${price(world, site, item, number)}"),
            ("add", site, name),
        )
        return Page(f"{name} - {site}.com", blocks)
    if kind == "cart":
        return Page(f"Cart - {site}.com", (head, ("cart", site)))
    if path:
        return Page("Page not found", (head, find, ("text", "There is no such page.")))
    deals = [("link", item.capitalize(), "Deal of the day", f"{site}.com/item/{slug(item)}-1") for item in
             world.rng(site).sample(everything("item"), 3)]  # fmt: skip
    return Page(f"{site}.com", (head, find, ("text", "Everything for less."), *deals))


def price(world, site, item, number):
    return draw(world, f"{site}/{item}/{number}", 0, 5, 199)
