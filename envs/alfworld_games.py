"""The generated games of envs/alfworld.py: rooms from ALFWorld's own floor plans, filled by a seed, written as PDDL.

A game is named by a small dict (`draw` makes it): task type, room, object, receptacle, lamp, sentence, seed, size. The
same dict gives the same game in every process. Rooms and (object, receptacle) pairs belong to one split for good.
"""

import functools
import json
import random
import re
import zlib
from importlib.resources import files

from common.errors import UsageError

GENERATOR = 1  # part of the name of every stored game: count it up when what `problem` writes changes
TYPES = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "pick2": "pick_two_obj_and_place",
}
STATION = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}  # where a type's change is made
ABILITY = {"clean": "Cleanable", "heat": "Heatable", "cool": "Coolable"}
LEAST = 6  # receptacles; a few of the rooms have less
RECEPTACLES = {"tiny": (5, 7), "small": (8, 14), "full": (0, 99)}
OBJECTS = {"tiny": (4, 6), "small": (6, 12), "full": (25, 45)}
# What tiny rooms hold: things whose names a small model reads as one word.
FAMILIAR = frozenset(
    """ArmChair Bed Cabinet Cart CoffeeMachine CounterTop Desk Drawer Dresser Fridge GarbageCan Microwave Safe Shelf
    SideTable SinkBasin Sofa Toaster Toilet Apple Book Bowl Box Bread Candle CellPhone Cloth CreditCard Cup DeskLamp Egg
    Fork HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan Pen Pencil Pillow Plate Pot Potato
    RemoteControl SoapBar Spoon SprayBottle Statue Tomato Towel Vase Watch""".split()
)
LAMP_STANDS = ("Desk", "SideTable", "Dresser")
# classes that the floor plans' object lists name and their receptacle lists leave out, and how many of each there are
UNPLACED = {"CoffeeMachine": 1, "Toaster": 1, "StoveBurner": 4, "GarbageCan": 1, "Bed": 1, "Toilet": 1}
FIXED = {"DeskLamp", "FloorLamp"}  # can be switched on, not carried


@functools.cache
def _constants():
    try:
        from alfworld.gen import constants, goal_library
    except ImportError as error:
        raise UsageError(f"ALFWorld is not installed ({error}): pip install -r requirements-alfworld.txt") from None
    contents = {name: frozenset(o for o in some if "Sliced" not in o)
                for name, some in constants.VAL_RECEPTACLE_OBJECTS.items()
                if name not in constants.MOVABLE_RECEPTACLES_SET or name == "Cart"}  # fmt: skip
    return contents, constants, goal_library.gdict


@functools.cache
def rooms():
    """{floor plan number: (receptacle names, object classes)} of the rooms that alfworld brings."""
    contents, _, _ = _constants()
    folder = files("alfworld") / "gen" / "layouts"
    found = {}
    for entry in sorted(file.name for file in folder.iterdir() if file.name.endswith("-openable.json")):
        number = int(re.search(r"\d+", entry)[0])
        classes = json.loads((folder / f"FloorPlan{number}-objects.json").read_text())
        names = [name for name in sorted(json.loads((folder / entry).read_text())) if class_of(name) in contents]
        present = {class_of(name) for name in names}
        for name, count in UNPLACED.items():
            if name in classes and name not in present:
                names += [f"{name}|{k:+06.2f}|+00.90|{number % 100:+06.2f}" for k in range(count)]
        if len(names) >= LEAST:
            found[number] = tuple(names), frozenset(classes)
    return found


def class_of(name):
    """The class of a receptacle's name: "Cabinet|+00.68|.." is a Cabinet, "Sink|..|SinkBasin" a SinkBasin."""
    return name.rpartition("|")[2] if name.endswith("Basin") else name.partition("|")[0]


def room_split(number):
    """ALFWorld's own test rooms (the first six of each kind) are for test, the next four for eval."""
    place = number % 100
    return "test" if place <= 6 else "eval" if place <= 10 else "train"


def pair_split(thing, receptacle):
    """The one split in which `thing` is ever brought to `receptacle` (or looked at under that lamp)."""
    return ("train", "train", "train", "eval", "test")[zlib.crc32(f"{thing} to {receptacle} 8".encode()) % 5]


@functools.cache
def goals(kind, split):
    """{room number: [(object, receptacle or lamp), ..]}: what a task of this type can ask for in the split's rooms."""
    contents, constants, _ = _constants()
    able = constants.VAL_ACTION_OBJECTS[ABILITY[kind]] if kind in ABILITY else None
    found = {}
    for number, (names, classes) in rooms().items():
        if room_split(number) != split:
            continue
        present = {class_of(name) for name in names}
        movable = sorted(o for o in classes - FIXED if any(o in contents[r] for r in present))
        if kind == "look":
            lit = "DeskLamp" in classes and present & set(LAMP_STANDS)
            pairs = [(o, "DeskLamp") for o in movable] if lit else []
        elif kind in STATION and STATION[kind] not in present:
            pairs = []
        else:
            pairs = [(o, r) for o in movable for r in sorted(present - {STATION.get(kind)}) if o in contents[r]]
            pairs = [(o, r) for o, r in pairs if able is None or o in able]
            # from somewhere else it must come
            pairs = [(o, r) for o, r in pairs if any(o in contents[other] for other in present - {r})]
        pairs = [pair for pair in pairs if pair_split(*pair) == split]
        if pairs:
            found[number] = pairs
    return found


def _familiar(room, pairs):
    """The pairs that tiny rooms can ask for: of familiar things, with a familiar place that the object comes from."""
    contents, _, _ = _constants()
    present = {class_of(name) for name in rooms()[room][0]} & FAMILIAR
    return [(o, r) for o, r in pairs if {o, r} <= FAMILIAR and any(o in contents[other] for other in present - {r})]


def draw(split, number, size):
    """The dict that names game `number` of the split: the types take turns, the rest is drawn."""
    _, _, library = _constants()
    rng = random.Random(f"alfworld-{split}-{number}")
    kind = list(TYPES)[number % len(TYPES)]
    choices = goals(kind, split)
    if size == "tiny":
        choices = {room: _familiar(room, pairs) for room, pairs in choices.items()}
        choices = {room: pairs for room, pairs in choices.items() if pairs}
    room = rng.choice(list(choices))
    thing, place = rng.choice(choices[room])
    lamp = place if kind == "look" else ""
    words = {"obj": thing.lower(), "recep": place.lower(), "toggle": lamp.lower(), "mrecep": ""}
    sentence = rng.choice(library[TYPES[kind]]["templates"]).format(**words)
    seed = zlib.crc32(f"alfworld-{split}-{number}".encode())
    return {"type": kind, "room": room, "object": thing, "receptacle": "" if lamp else place, "lamp": lamp,
            "sentence": sentence, "seed": seed, "size": size}  # fmt: skip


def problem(game, attempt=0):
    """The game's PDDL. `attempt` places the same things anew, for where the expert fails in the first room."""
    contents, constants, library = _constants()
    rng = random.Random(f"{game['seed']} {attempt}")
    here = _receptacles(game, rng)
    things = _things(game, rng, here)
    kinds, stands = sorted({kind for kind, _, _ in things}), sorted({class_of(name) for name in here})
    spots = {name: f"loc_bar_{k}" for k, name in enumerate(here)}
    start = f"loc_bar_{len(here)}"
    objects = ["agent1 - agent", *(f"{kind}Type - otype" for kind in kinds)]
    objects += [f"{kind}Type - rtype" for kind in stands]
    objects += [f"{mangle(name)} - object" for _, name, _ in things]
    objects += [f"{mangle(name)} - receptacle" for name in here]
    objects += [f"{spot} - location" for spot in (*spots.values(), start)]
    facts = [f"(atLocation agent1 {start})"]
    for name in here:
        kind, name, spot = class_of(name), mangle(name), spots[name]
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {spot})"]
        facts += [f"(openable {name})"] if kind in constants.OPENABLE_CLASS_SET else []
    facts += [f"(canContain {r}Type {o}Type)" for r in stands for o in kinds if o in contents[r]]
    abilities = {name: constants.VAL_ACTION_OBJECTS[name] for name in sorted(constants.VAL_ACTION_OBJECTS)}
    for kind, name, place in things:
        name = mangle(name)
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {mangle(place)})"]
        facts += [f"(objectAtLocation {name} {spots[place]})"]
        facts += [f"(pickupable {name})"] if kind not in FIXED else []
        facts += [f"({ability.lower()} {name})" for ability, some in abilities.items() if kind in some]
    goal = library[TYPES[game["type"]]]["pddl"]
    goal = goal.format(obj=game["object"], recep=game["receptacle"], toggle=game["lamp"])
    lines = ["(define (problem cleangui)", "(:domain alfred)", "(:objects", *objects, ")", "(:init", *facts, ")"]
    return "\n".join(lines) + "\n" + goal.replace("#", "-")


def _receptacles(game, rng):
    """The receptacles of the room that the game has: those the task needs, and others in the layout's proportions."""
    contents, _, _ = _constants()
    everything = list(rooms()[game["room"]][0])
    if game["size"] == "tiny":
        everything = [name for name in everything if class_of(name) in FAMILIAR]
    least, most = RECEPTACLES[game["size"]]
    if len(everything) <= most:
        return everything
    needed = [game["receptacle"], STATION.get(game["type"], "")]
    if game["lamp"]:
        needed.append(next(name for name in LAMP_STANDS if any(class_of(r) == name for r in everything)))
    rng.shuffle(everything)
    everything.sort(key=lambda name: class_of(name) not in needed)
    chosen, counts = [], {}
    for name in everything:  # at first two of a class, so that twenty cabinets do not crowd out the rest
        if counts.get(class_of(name), 0) < (2 if class_of(name) in needed else 3):
            counts[class_of(name)] = counts.get(class_of(name), 0) + 1
            chosen.append(name)
    chosen = chosen[: rng.randint(least, most)]
    if not any(game["object"] in contents[class_of(r)] and class_of(r) != game["receptacle"] for r in chosen):
        homes = [r for r in everything if game["object"] in contents[class_of(r)] and r not in chosen]
        chosen.append(next(r for r in homes if class_of(r) != game["receptacle"]))
    return sorted(chosen)


def _things(game, rng, here):
    """[(class, name, receptacle)]: the task's objects, outside the place they belong to, and others around them."""
    contents, _, _ = _constants()
    classes = rooms()[game["room"]][1]
    targets = 2 if game["type"] == "pick2" else 1
    wanted = [game["object"]] * rng.randint(targets, targets + 1)
    others = sorted(o for o in classes - FIXED - {game["object"]} if any(o in contents[class_of(r)] for r in here))
    if game["size"] == "tiny":
        others = [kind for kind in others if kind in FAMILIAR]
    rng.shuffle(others)
    total = rng.randint(*OBJECTS[game["size"]])
    while others and len(wanted) < total:  # all classes once, then twice, then a third time
        wanted += others[: total - len(wanted)]
        if wanted.count(others[0]) == 3:
            break
    things = []
    for kind in wanted:
        fits = [r for r in here if kind in contents[class_of(r)]]
        if kind == game["object"]:
            fits = [r for r in fits if class_of(r) != game["receptacle"]]
        things.append((kind, _name(kind, rng), rng.choice(fits)))
    if game["lamp"]:
        stands = [r for r in here if class_of(r) in LAMP_STANDS]
        things.append((game["lamp"], _name(game["lamp"], rng), rng.choice(stands)))
    return things


def _name(kind, rng):
    return kind + "".join(f"|{rng.uniform(-9, 9):+06.2f}" for _ in range(3))


def mangle(name):
    """A name as ALFWorld writes it in PDDL; its Demangler makes "mug 1" of it."""
    for sign, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_"), (",", "_comma_")):
        name = name.replace(sign, word)
    return name
