"""The embedded catalogue: about 1,500 products and 4,500 instructions in the original's schema, drawn from one seed.

Products come in families of six of the same noun and style, which differ in an attribute that the title does not say
(one of the features, or in the description), the price, the colours and the sizes on sale, and now and then in what the
title says. The first result of a search is therefore seldom the right one.

Every word is one token of assets/tiny (tests/test_webshop.py); what the original's labels need besides is in EXTRA.
"""

import itertools
import random
from dataclasses import dataclass

SEED = 20230
EXTRA = frozenset(["dollars"])  # of the original's "price lower than 40.00 dollars"

STYLES = (
    "modern vintage classic rustic nordic urban royal antique elegant fancy simple pretty alpine tropical noble bold "
    "golden jolly"
).split()
COLORS = (
    "red blue green black white navy teal beige brown purple pink orange yellow maroon violet indigo gray olive"
).split()
SIZES = "small medium large".split()
USES = "summer winter spring autumn work school holiday city travel camping".split()

# What the products are, of what they are made and how they can be. An attribute counts wherever its letters stand, so
# none of these words is part of another word of the catalogue.
CLOTH = "cotton linen silk velvet woolen bamboo".split()
WOOD = "wooden bamboo wicker steel plastic marble".split()
WARE = "glass ceramic steel copper plastic granite".split()
WEAR = "cotton linen leather silk velvet woolen".split()
GEAR = "plastic steel rubber leather bamboo".split()
TOOL = "steel plastic wooden rubber copper".split()


@dataclass(frozen=True)
class Group:
    """Nouns that share a category ("home › cloth"), a place, materials and attributes; `sized`: sold in sizes, some."""

    category: str
    name: str
    place: str
    materials: list
    attributes: str
    nouns: str
    sized: bool = True


GROUPS = (
    Group(
        *("home", "cloth", "home", CLOTH),
        "washable waterproof quilted knitted woven striped floral organic padded dotted smooth thick",
        "blanket pillow mattress towel curtain rug carpet doormat napkin tablecloth apron",
    ),
    Group(
        *("home", "house", "home", WOOD),
        "folding sturdy narrow carved polished padded curved portable painted wide",
        "chair table desk bench stool sofa shelf dresser cabinet wardrobe armchair crib basket ladder frame",
    ),
    Group(
        *("home", "light", "home", WARE),
        "solar electric portable waterproof automatic magnetic wireless glossy matte folding",
        "lamp lantern candle vase clock fan heater statue",
    ),
    Group(
        *("food", "table", "kitchen", WARE),
        "insulated portable sturdy thick polished glossy matte narrow painted wide",
        "mug cup kettle teapot pan plate bowl jug ladle spoon fork whisk tray bottle flask saucer pot",
    ),
    Group(
        *("food", "machinery", "kitchen", "steel plastic glass copper".split()),
        "electric automatic digital silent rapid portable wireless glossy matte polished",
        "toaster blender mixer fridge grinder microwave",
    ),
    Group(
        *("clothing", "clothes", "family", WEAR),
        "waterproof washable padded quilted striped floral insulated knitted organic formal dotted",
        "jacket coat shirt sweater skirt dress vest scarf glove hat belt sandal slipper boot sock",
    ),
    Group(
        *("clothing", "travel", "family", "leather cotton linen silk rubber".split()),
        "waterproof folding padded portable striped dotted sturdy magnetic woven",
        "wallet backpack suitcase umbrella",
    ),
    Group(
        *("sports", "camping", "lake", GEAR),
        "waterproof insulated folding portable padded sturdy solar magnetic striped tough",
        "tent kayak canoe hammock snowboard surfboard helmet racket dumbbell bike sled saddle compass telescope",
    ),
    Group(
        *("office", "computers", "office", GEAR),
        "wireless portable bluetooth digital solar waterproof silent magnetic curved rapid",
        "headset speaker charger keyboard mouse laptop cellphone camera printer scanner monitor calculator stopwatch",
        sized=False,
    ),
    Group(
        *("work", "garden", "garden", TOOL),
        "folding sturdy waterproof electric magnetic solar automatic insulated tough painted",
        "shovel rake planter bucket hose sprinkler birdhouse wheelbarrow hammer drill wrench toolbox",
    ),
    Group(
        *("children", "games", "child", "wooden plastic cotton rubber bamboo paper".split()),
        "magnetic electric washable digital folding painted dotted striped portable",
        "puzzle kite doll robot chessboard drum flute guitar piano violin stroller rocket",
    ),
)

FAMILIES = 2  # of each noun
CHEAP, DEAR = 3, 3  # members of a family at the low price, and at two high ones
LOUD = 0.4  # how many of the dear ones say their noun once more, which a search puts first
RARE = 0.15  # how often a member's title has another attribute, or another material
SIZED = 0.6  # how many families have sizes, where there can be any
DESCRIBED = 0.25  # how many say the attribute that the title does not say in the description, not among the features
ASKED = {"color": 0.85, "size": 0.5}  # how often an instruction names one, where there is a choice
PHRASES = (
    "i need {a} {attributes} {noun}{options}",
    "i want {a} {attributes} {noun}{options}",
    "find me {a} {attributes} {noun}{options}",
    "looking for {a} {attributes} {noun}{options}",
    "i want to buy {a} {attributes} {noun}{options}",
    "please get me {a} {attributes} {noun}{options}",
    "i would like {a} {attributes} {noun}{options}",
)
LONG_PHRASES = (
    "i need {a} {noun} that is {joined}{options}",
    "find me {a} {noun} that is {joined}{options}",
    "looking for {a} {noun} that is {joined}{options}",
)


def records():
    """(items, attributes, instructions) in the original's schema, always the same ones."""
    rng = random.Random(SEED)
    drafts = [
        member
        for group in GROUPS
        for noun in group.nouns.split()
        for style in rng.sample(STYLES, FAMILIES)
        for member in _family(rng, group, noun, style)
    ]
    rng.shuffle(drafts)
    items, attributes, instructions = [], {}, {}
    for number, draft in enumerate(drafts):
        asin = f"B{number:04d}"
        items.append(_item(rng, asin, draft))
        attributes[asin] = {"attributes": [draft["shown"], draft["material"], draft["hidden"]]}
        instructions[asin] = _instructions(rng, asin, draft)
    return items, attributes, instructions


def _family(rng, group, noun, style):
    """Members of one family: at a low price and at two high ones, with one of three attributes that the title does not
    say, and two of four colours."""
    shown, other_shown, *hidden = rng.sample(group.attributes.split(), 5)
    material, other_material = rng.sample(group.materials, 2)
    palette = rng.sample(COLORS, 4)
    low = rng.randint(6, 48)
    high = rng.sample(range(low + 40, low + 51), 2)  # above any bound drawn for the low one
    sizes = SIZES if group.sized and rng.random() < SIZED else []
    where = "description" if rng.random() < DESCRIBED else "features"
    kinds = list(itertools.product(hidden, (palette[:2], palette[1:3], palette[2:])))
    cheap = [(low, *kind) for kind in rng.sample(kinds, CHEAP)]
    dear = [(price, *kind) for price, kind in rng.sample(list(itertools.product(high, kinds)), DEAR)]
    for price, attribute, colors in cheap + dear:
        yield {
            "group": group,
            "noun": noun,
            "style": style,
            "shown": other_shown if rng.random() < RARE else shown,
            "material": other_material if rng.random() < RARE else material,
            "hidden": attribute,
            "where": where,
            "price": price,
            "dear": price > low,
            "palette": palette,
            "options": {"color": colors} | ({"size": rng.choice((sizes[1:], sizes[:-1]))} if sizes else {}),
        }


def _item(rng, asin, draft):
    """The item's record. Title, features and description together say all its attributes."""
    group, noun, options = draft["group"], draft["noun"], draft["options"]
    bullets = [f"good for {use}" for use in rng.sample(USES, 2)]
    if draft["dear"] and rng.random() < LOUD:
        bullets[0] = f"good {noun} for {rng.choice(USES)}"
    # What is not on sale is said here, once: a search for a colour or a size finds all members of a family alike.
    sizes = [size for size in SIZES if size not in options["size"]] if "size" in options else []
    colors = [color for color in draft["palette"] if color not in options["color"]]
    place = " ".join(["a" if sizes else _a(group.place), *sizes, group.place])
    description = f"{_a(noun)} {noun} for {place}, matches {' and '.join(colors)}"
    if draft["where"] == "features":
        bullets.insert(rng.choice((1, 2)), f"it is {draft['hidden']}")
    else:
        description += f", it is {draft['hidden']}"
    return {
        "asin": asin,
        "name": f"{draft['style']} {draft['shown']} {draft['material']} {noun}",
        "full_description": description,
        "small_description": bullets,
        "pricing": f"${draft['price']}.00",
        "category": group.category,
        "query": noun,
        "product_category": f"{group.category} › {group.name} › {noun}",
        "images": [""],
        "customization_options": {name: [{"value": value} for value in values] for name, values in options.items()},
    }


def _instructions(rng, asin, draft):
    """Instructions that the product fulfils, no two with the same attributes and options; more of the cheap ones, which
    have dear twins."""
    shown, hidden, material = draft["shown"], draft["hidden"], draft["material"]
    found, seen = [], set()
    kinds = ([shown], [shown, material], [hidden], [hidden], [hidden, material], [shown, hidden], [shown, hidden])
    for _ in range(1 if draft["dear"] else 6):
        attributes = rng.choice(kinds)
        names = [name for name in draft["options"] if rng.random() < ASKED[name]]
        options = {name: rng.choice(draft["options"][name]) for name in names}
        key = (*sorted(attributes), *options.values())
        if key not in seen:
            seen.add(key)
            found.append(
                {
                    "asin": asin,
                    "instruction": _phrase(rng, draft["noun"], attributes, material, options),
                    "instruction_attributes": attributes,
                    "instruction_options": list(options.values()),
                }
            )
    return found


def _phrase(rng, noun, attributes, material, options):
    """What a person would say: "i need a washable cotton blanket in blue, size large"."""
    said = ""
    if "color" in options:
        said += rng.choice((" in {color}", ", color {color}", " in color {color}"))
    if "size" in options:
        said += rng.choice((", size {size}", " in size {size}"))
    phrase = rng.choice(PHRASES if attributes[-1] == material else PHRASES + LONG_PHRASES)
    return phrase.format(
        a=_a(noun if phrase in LONG_PHRASES else attributes[0]),
        attributes=" ".join(attributes),
        joined=" and ".join(attributes),
        noun=noun,
        options=said.format(**options),
    )


def _a(word):
    return "an" if word[0] in "aeiou" else "a"
