"""The shop itself: search, and which page a click leads to. Pages are small tuples, so that a state can be kept,
compared and put back; nothing here knows of episodes.

Rules and labels are the original's: 50 results, ten on a page; options are forgotten on the way back to the results.
"""

import re
from functools import lru_cache
from typing import NamedTuple

import bm25s
import numpy as np

RESULTS, ROWS = 50, 10
SUB_PAGES = ("description", "features", "reviews")
BUY, BACK, NEXT, PREV = "buy now", "back to search", "next >", "< prev"
NOT_INDEXED = frozenset(  # Lucene's English stop words
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)


class State(NamedTuple):
    """A page of the site: its kind ("search", "results", "item", one of SUB_PAGES, or "done"), and what led there.
    `options` are the chosen ones, pairs of name and value."""

    kind: str = "search"
    query: str = ""
    page: int = 0
    asin: str = ""
    options: tuple = ()


START = State()


def terms(text):
    """The terms of a text for retrieval: lower-case words without stop words and without the plural's s."""
    words = re.findall(r"\w+", text.lower())
    return [_singular(word) for word in words if word not in NOT_INDEXED]


def _singular(word):
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]


def document(product):
    """What of a product is searched: title, description, the first bullet point and the options, as in the original."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.title, product.description, *product.bullets[:1], options)).lower()


class Shop:
    """Products with their search. `reviews` puts the button Reviews on the item pages; there are none in the released
    data, so the page behind it is empty."""

    def __init__(self, products, reviews=False):
        self.products, self.reviews = products, reviews
        self._asins = list(products)
        self.by_label = {asin.lower(): asin for asin in products}
        vocabulary, documents = {}, []
        for product in products.values():
            documents.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms(document(product))])
        self._vocabulary = vocabulary
        self._index = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend="numpy")
        self._index.index((documents, vocabulary), show_progress=False)
        self.search = lru_cache(maxsize=8192)(self._search)
        self.links = lru_cache(maxsize=1024)(self._links)  # asked for two or three times in a step

    def _search(self, query):
        """The ASINs of the products that match the query, best first, at most RESULTS; equals in the products' order.

        Scores are rounded: sums of the same numbers in another order are equals, whatever the machine.
        """
        ids = [self._vocabulary[term] for term in terms(query) if term in self._vocabulary]
        if not ids:
            return ()
        scores = np.round(self._index.get_scores_from_ids(ids), 4)
        last = min(RESULTS, len(scores))
        least = max(np.partition(scores, -last)[-last], 1e-4)
        matching = np.flatnonzero(scores >= least)
        best = matching[np.argsort(-scores[matching], kind="stable")][:RESULTS]
        return tuple(self._asins[i] for i in best)

    def rows(self, state):
        """The products that a page of results lists."""
        asins = self.search(state.query)[(state.page - 1) * ROWS : state.page * ROWS]
        return [self.products[asin] for asin in asins]

    def product(self, state):
        """The product of an item page or of one of its sub pages."""
        return self.products[state.asin]

    def search_for(self, keywords):
        """The page of results for these keywords."""
        return State("results", keywords, 1)

    def _links(self, state):
        """What can be clicked on a page, as the original's text environment lists it (buttons, then products, then
        option values): label -> the page that the click brings."""
        if state.kind in ("search", "done"):
            return {}
        links = {BACK: START}
        if state.kind == "results":
            if state.page > 1:
                links[PREV] = state._replace(page=state.page - 1)
            links[NEXT] = state._replace(page=state.page + 1)  # offered on the last page, too
            for product in self.rows(state):
                links[product.asin.lower()] = state._replace(kind="item", asin=product.asin)
            return links
        if state.kind in SUB_PAGES:
            links[PREV] = state._replace(kind="item")
            return links
        links[PREV] = State("results", state.query, state.page)
        for kind in SUB_PAGES[: 3 if self.reviews else 2]:
            links[kind] = state._replace(kind=kind)
        links[BUY] = state._replace(kind="done")
        for name, values in self.product(state).options.items():
            for value in values:
                links[value] = state._replace(options=_chosen(state.options, name, value))
        return links


def _chosen(options, name, value):
    """The chosen options after a click: another value of the same option takes the old one's place."""
    return tuple((dict(options) | {name: value}).items())


# --- text ---------------------------------------------------------------------------------------------------------


def view(shop, state):
    """What a small model sees: the page's title, its lines of text, and a (label, kind) for each of its links (or for
    the search box), in their order. The pages of the browser show the same."""
    if state.kind == "search":
        return "webshop", (), (("search", "box"),)
    if state.kind == "results":
        rows = {product.asin.lower(): describe(product) for product in shop.rows(state)}
        elements = tuple((rows.get(label, label), "link") for label in shop.links(state))
        return f"page {state.page} of {page_count(shop, state)}", () if rows else ("no results",), elements
    product = shop.product(state)
    if state.kind == "done":
        return product.title, (" ".join(["bought", *(value for _, value in state.options)]),), ()
    chosen = dict(state.options)
    names = {value: name for name, values in product.options.items() for value in values}
    elements = []
    for label in shop.links(state):
        if state.kind == "item" and label in names:
            name = names[label]
            elements.append((f"{name} {label}", "radio on" if chosen.get(name) == label else "radio"))
        else:
            elements.append((label, "button" if label == BUY else "link"))
    lines = {"item": (short_price(product.tag),), "description": (product.description,), "features": product.bullets}
    return product.title, lines.get(state.kind, ()), tuple(elements)


def describe(product):
    """A product in the list of results: title and price."""
    return f"{product.title} {short_price(product.tag)}"


def page_count(shop, state):
    """How many pages the results of a state's query fill."""
    return -(-len(shop.search(state.query)) // ROWS)


def short_price(tag):
    """$24.0 as $24: prices without what says nothing."""
    return re.sub(r"\.0\b", "", tag)


def original(shop, state, instruction, score=None):
    """The page as the original's text environment gives it in its mode "text"."""
    parts = ["Instruction:", instruction]
    if state.kind == "search":
        return " [SEP] ".join(["WebShop", *parts, "Search"])
    if state.kind == "done":
        said = ["Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(score)]
        return " [SEP] ".join(said)
    parts.append("Back to Search")
    if state.kind == "results":
        parts.append(f"Page {state.page} (Total results: {len(shop.search(state.query))})")
        parts += (["< Prev"] if state.page > 1 else []) + ["Next >"]
        for product in shop.rows(state):
            parts += [product.asin, product.title.strip(), product.tag]
        return " [SEP] ".join(parts)
    product = shop.product(state)
    parts.append("< Prev")
    if state.kind == "description":
        parts += [product.description.strip()] if product.description.strip() else []
    elif state.kind == "features":
        parts += [bullet.strip() for bullet in product.bullets]
    elif state.kind == "item":
        for name, values in product.options.items():
            parts += [name, *values]
        parts += [product.title.strip(), f"Price: {product.tag}", "Rating: N.A.", "Description", "Features"]
        parts += (["Reviews"] if shop.reviews else []) + ["Buy Now"]
    return " [SEP] ".join(parts)
