"""From WebShop's files to products and goals. The embedded catalogue has the same records and goes the same way.

Records are what the original's three files hold: a list of items (items_shuffle.json), attributes by ASIN
(items_ins_v2.json), and instructions that people wrote by ASIN (items_human_ins.json).
"""

import itertools
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError

SPLITS = {"test": slice(0, 500), "eval": slice(500, 1500), "train": slice(1500, None)}
SHUFFLE_SEED = 233
NO_BOUND = 1_000_000
WHERE = "the original's setup.sh downloads it (princeton-nlp/WebShop)"


@dataclass(frozen=True, slots=True)
class Product:
    """What the site knows of a product. `tag` is the price as the pages show it, `price` the one that counts."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict  # name -> its values
    price: float
    tag: str
    category: str
    query: str
    product_category: str


def read(data_dir):
    """The records of a folder with the original's files: (items, attributes, instructions). The small set's names, with
    _1000 in them, are taken where the large set is absent. Raises UsageError for what is missing or cannot be read."""
    folder = Path(data_dir)
    if not folder.is_dir():
        raise UsageError(f"--data-dir {data_dir}: there is no such folder")
    items = _one_of(folder, "items_shuffle.json", "items_shuffle_1000.json")
    small = "_1000" in items.name
    names = ("items_ins_v2.json", "items_ins_v2_1000.json")
    attributes = _one_of(folder, *(names[::-1] if small else names))
    return tuple(_json(path) for path in (items, attributes, _one_of(folder, "items_human_ins.json", required=False)))


def _one_of(folder, *names, required=True):
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found and required:
        raise UsageError(f"--data-dir {folder}: {' or '.join(names)} is missing; {WHERE}")
    return found[0] if found else None


def _json(path):
    if path is None:
        return {}
    try:
        with path.open(encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a JSON file of WebShop ({error})") from None


def products(items, attributes):
    """The products of the records, by ASIN in the file's order."""
    found = {}
    for item in items:
        asin = item["asin"]
        if asin == "nan" or len(asin) > 10 or asin in found:
            continue
        prices = [float(re.sub(r"[^\d.]", "", price)) for price in (item.get("pricing") or "").split("$")[1:]][:2]
        bullets = item["small_description"]
        found[asin] = Product(
            asin=asin,
            title=item["name"],
            description=item["full_description"] or "",
            bullets=tuple(bullets) if isinstance(bullets, list) else (bullets or "",),
            attributes=tuple(attributes.get(asin, {}).get("attributes", ("DUMMY_ATTR",))),
            options={name.lower(): _values(values) for name, values in _options(item) if values is not None},
            price=_price(asin, prices),
            tag=" to ".join(f"${price}" for price in prices or [100.0]),
            category=item["category"],
            query=item["query"].lower().strip(),
            product_category=item["product_category"],
        )
    return found


def _options(item):
    return (item.get("customization_options") or {}).items()


def _values(values):
    return tuple(value["value"].strip().replace("/", " | ").lower() for value in values)


def _price(asin, prices):
    """The price that counts: of a range the original draws one anew in each process, here it is the product's own."""
    if len(prices) < 2:
        return prices[0] if prices else 100.0
    return random.Random(f"price {asin}").uniform(*prices)


def goals(products, attributes, instructions, decimals=2):
    """The goals in the order of their indices: the original's dicts, shuffled by its seed.

    They are the instructions that people wrote, if there are any, otherwise an instruction per combination of options
    from the attributes' file. The bound of the price is drawn by the goal's own seed (the original: anew in each
    process); `decimals` is how many of it the text has.
    """
    draw = _human_goals if instructions else _synthetic_goals
    found = list(draw(products, instructions or attributes, decimals))
    random.Random(SHUFFLE_SEED).shuffle(found)
    return found


def _human_goals(products, instructions, decimals):
    for product in products.values():
        for number, entry in enumerate(instructions.get(product.asin, ())):
            if entry["instruction_attributes"]:
                bound, text = _bound(product, number, decimals)
                instruction = entry["instruction"].strip(".") + text
                yield _goal(product, instruction, entry["instruction_attributes"], entry["instruction_options"], bound)


def _synthetic_goals(products, attributes, decimals):
    for product in products.values():
        entry = attributes.get(product.asin, {})
        if not entry.get("instruction") or not entry.get("instruction_attributes"):
            continue
        bound, text = _bound(product, 0, decimals)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            chosen = dict(zip(names, values))
            wanted = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
            instruction = entry["instruction"] + (f" with {wanted}" if wanted else "") + text
            yield _goal(product, instruction, entry["instruction_attributes"], chosen, bound)


def _bound(product, number, decimals):
    """The upper bound of the price, and the end of the instruction that says so."""
    above = [10.0 * i for i in range(1, 100) if 10.0 * i > product.price][:4]
    if len(above) < 2:
        return NO_BOUND, ""
    bound = max(random.Random(f"bound {product.asin} {number}").sample(above, 2))
    return bound, f", and price lower than {bound:.{decimals}f} dollars"


def _goal(product, instruction, attributes, options, bound):
    return {
        "asin": product.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
        "instruction_text": instruction,
        "attributes": attributes,
        "price_upper": bound,
        "goal_options": options,
    }
