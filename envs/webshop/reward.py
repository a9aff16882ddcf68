"""WebShop's reward: how much of what the goal asks for the bought product has, in [0, 1].

    r = r_type * (attributes matched + options matched + 1[price <= bound]) / (attributes + options + 1)

The rules are those of web_agent_site/engine/goal.py in princeton-nlp/WebShop (MIT), odd ones included. A product is
anything with the fields of `records.Product`; a goal is the original's dict.
"""

import importlib.util
import re
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

# The original's known colours. Their order decides: the first one that an option contains stands for it, so that
# "royal blue" is "blue" and "standard" is "tan".
COLORS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
).split()
DROPPED = dict.fromkeys(range(128, 256))  # by thefuzz, before it compares
NO_NOUNS = frozenset(
    "a an and as at by for from in into is it of off on or our over per that the this to up with without your you "
    "big black blue brown classic compact cool dark deep easy fine flat fresh full gentle gold golden good gray great "
    "green grey heavy high hot huge large light little long low matte medium mini modern natural navy new nice non "
    "old orange organic pink plain plus purple quick quiet rapid red round short silent slim small smooth soft solid "
    "sturdy super thick thin tiny tough ultra urban vintage warm white wide yellow listed more most much not only "
    "very all any each both many other such".split()
)
ADJECTIVE = re.compile(r".{2,}(able|ible|proof|less|ful|ous|ish|ical|ic|ive|ly|ed)$")


def heuristic_nouns(text):
    """The nouns of a product's name without a tagger: words of letters that are neither in a short list of other words
    nor end like an adjective or an adverb. Lower-case, in order, repetitions kept (they count, as in the original)."""
    words = re.findall(r"[^\W\d_]{2,}", text.lower())
    return [word for word in words if word not in NO_NOUNS and not ADJECTIVE.match(word)]


def spacy_nouns():
    """A function like `heuristic_nouns` that asks spaCy, as the original does, or None where spaCy or both of its
    English models en_core_web_sm (the original's) and en_core_web_lg are missing."""
    for model in ("en_core_web_sm", "en_core_web_lg"):
        if importlib.util.find_spec("spacy") and importlib.util.find_spec(model):
            import spacy  # seconds: not where its models are missing

            nlp = spacy.load(model)
            return lambda text: [token.text.lower() for token in nlp(text) if token.pos_ in ("NOUN", "PROPN")]
    return None


@lru_cache(maxsize=1 << 16)
def similar(one, other):
    """Whether two texts have a token set ratio above 85, as thefuzz says it: without Latin-1's upper half, and rounded
    to a whole number first, so that 85.6 is above and 85.4 is not."""
    one, other = (default_process(text.translate(DROPPED)) for text in (one, other))
    return round(token_set_ratio(one, other)) > 85


@lru_cache(maxsize=1 << 14)
def normal_color(option):
    """The first known colour that the option's text contains, or the text."""
    return next((color for color in COLORS if color in option), option)


def wanted_options(goal_options):
    """Goal options as texts to match. Those of a dict are (name, value) pairs, which the original compares as such: a
    colour is one of the known ones exactly, and the name is part of the text."""
    if not isinstance(goal_options, dict):
        return [normal_color(option) for option in goal_options]
    found = [next((color for color in COLORS if color in pair), pair) for pair in goal_options.items()]
    return [text if isinstance(text, str) else " ".join(text) for text in found]


def option_matches(chosen, goal_options):
    """How many of the goal's options are among the values that were chosen."""
    chosen = [normal_color(value) for value in chosen]
    return sum(any(similar(value, wanted) for value in chosen) for wanted in wanted_options(goal_options))


def has_attribute(product, attribute):
    """Whether a product has it: in its list of attributes, or anywhere in its texts."""
    if any(similar(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def attribute_matches(product, attributes):
    """How many of the attributes the product has."""
    return sum(has_attribute(product, attribute) for attribute in attributes)


def type_reward(product, goal, nouns=heuristic_nouns):
    """Whether it is the kind of product that was asked for: a dict of r_type, query_match, category_match and
    title_score."""
    query_match = product.query == goal["query"]
    own, wanted = (_levels(path) for path in (product.product_category, goal["product_category"]))
    category_match = len(own & wanted) >= 2
    wanted_nouns = nouns(goal["name"])
    shared = set(nouns(product.title)) & set(wanted_nouns)
    title_score = len(shared) / len(wanted_nouns) if wanted_nouns else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:  # these two hold even where query and category match
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return dict(r_type=r_type, query_match=query_match, category_match=category_match, title_score=title_score)


def _levels(path):
    return {level.strip() for level in path.split("›")}


def reward(product, goal, price, chosen, nouns=heuristic_nouns):
    """The reward for buying `product` at `price` with the option values `chosen`: 1.0 exactly where all is right."""
    options = goal["goal_options"]
    met = attribute_matches(product, goal["attributes"]) + option_matches(chosen, options)
    met += price <= goal["price_upper"]
    return type_reward(product, goal, nouns)["r_type"] * met / (len(goal["attributes"]) + len(options) + 1)
