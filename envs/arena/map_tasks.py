"""The map's task templates: how to draw one, how to check it, how to solve it.

Whatever the user can change stands on the page of the user's places; checks of state-changing tasks compare that whole
list, so that a wrong label, a wrong place, anything unwanted and anything left out scores 0.

A question has one answer: where two places are equally near, the instruction means nothing.
"""

from functools import lru_cache

from envs.arena.map import KINDS, LABELS, MINUTES, draw_opening, draw_phone, nearest, record, town, ways
from envs.arena.tasks import Move, Template, exit_move, until_valid

DONE = exit_move("done")
NOT_POSSIBLE = exit_move("N/A")
FACTS = {"address": "address", "phone": "phone", "opening time": "opening", "rating": "rating"}  # page: field


# --- what oracles are made of ----------------------------------------------------------------------------------------


def _search(name):
    """From any page to the list of what is called `name`."""
    return [Move("box", "search", "Search", name)]


def _find(name):
    """From any page to the page of a place."""
    return [*_search(name), Move("link", name)]


def _select(label, value):
    return Move("select", label, "Select Dropdown Option", value)


def _show(slots):
    """Send a form whose way is walking until another one is selected."""
    return [*([_select("by", slots["way"])] if slots["way"] != "walking" else []), Move("button", "show")]


def _near(slots):
    """From any page to the list of the places of a kind, nearest first."""
    return [*_find(slots["place"]), Move("link", "nearest"), _select("kind", slots["kind"]), *_show(slots)]


def _route(slots, start, end):
    """From any page to the route between two places."""
    return [
        Move("link", "route"),
        Move("box", "from", "Type", start),
        Move("box", "to", "Type", end),
        *_show(slots),
    ]


def _save(label):
    """From the page of a place."""
    return [_select("label", label), Move("button", "save")]


def _change(slots):
    """From the page of a place."""
    boxes = {"phone": "phone", "opening": "opening time"}
    typed = [Move("box", label, "Type", slots[slot]) for slot, label in boxes.items() if slot in slots]
    return [Move("link", "change"), *typed, Move("button", "send")]


def _remove(name):
    """From any page."""
    return [Move("link", "places"), Move("link", name), Move("button", "remove")]


# --- what checks are made of -----------------------------------------------------------------------------------------


def _answer(text):
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": str(text)}}


def _url(path):
    return {"eval_types": ["url_match"], "reference_url": f"__MAP__{path}", "url_note": "EXACT"}


def _record(world, save=None, remove=(), change=None, take_back=()):
    """The list of the user's places and changes after this, and nothing else, was done.

    save: {label: name}; change: {name: (phone, opening)}; remove, take_back: names.
    """
    content, save = town(world), save or {}
    saved = {label: name for label, name in content.saved.items() if name not in (*remove, *save.values())}
    changes = {name: what for name, what in content.changes.items() if name not in take_back}
    rows = record(saved | save, changes | (change or {}))
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "__MAP__/places",
                "locator": "document.querySelector('#record').outerText",
                "required_contents": {
                    "exact_match": "\n".join([f"places of {world.user}", *(f"{name} {what}" for name, what in rows)])
                },
            }
        ],
    }


def _impossible(world, reason):
    """The answer N/A (or the reason), and nothing changed."""
    return _record(world) | {
        "eval_types": ["string_match", "program_html"],
        "reference_answers": {"fuzzy_match": "N/A"},
        "string_note": reason,
    }


# --- what a world has; each raises LookupError where it does not hold ------------------------------------------------


def _require(holds, what):
    if not holds:
        raise LookupError(what)


def _place(world, slots, slot="place"):
    return town(world).place(slots[slot])


def _kind(world, slots):
    """The places of the slots' kind."""
    _require(slots["kind"] in KINDS, "no such kind")
    return [place for place in town(world).places if place.kind == slots["kind"]]


@lru_cache(maxsize=64)  # a task's check and oracle ask for the same way, some of them several times
def _ways(world, place, way):
    _require(way in MINUTES, "no such way")
    return ways(town(world).roads, (place.x, place.y), way)


def _km(world, start, end, way):
    _require(start != end, "the same place")
    found = _ways(world, start, way)
    _require((end.x, end.y) in found, "no way")
    return found[end.x, end.y][0]


def _distance(world, slots):
    return _km(world, _place(world, slots), _place(world, slots, "place2"), slots["way"])


def _distance_saved(world, slots):
    return _km(world, town(world).place(town(world).saved[slots["mine"]]), _place(world, slots), slots["way"])


def _minutes(world, slots):
    return _distance(world, slots) * MINUTES[slots["way"]]


def _nearest(world, slots):
    """The place of the slots' kind that is nearer than all others."""
    start = _place(world, slots)
    rows = nearest(_kind(world, slots), _ways(world, start, slots["way"]), start)
    _require(rows and all(km > rows[0][0] for km, _ in rows[1:]), "none is nearest")
    return rows[0][1]


def _highest(world, slots):
    return max(_kind(world, slots), key=lambda place: place.rating)


def _fact(place, slots):
    return str(getattr(place, FACTS[slots["fact"]]))


def _at(world, slots):
    return {place.address: place.name for place in town(world).places}[slots["address"]]


def _saved(world, slots):
    _require(slots["saved"] in town(world).saved.values(), "not saved")
    return slots["saved"]


def _free(world, label):
    _require(label in LABELS and label not in town(world).saved, "no such label, or taken")
    return label


def _missing(world, name):
    _require(all(name != place.name for place in town(world).places), "this place exists")
    return name


# --- drawing


def _draw_place(world, rng):
    """A place that the user has neither saved nor changed."""
    content = town(world)
    return rng.choice([p.name for p in content.places if p.name not in (*content.saved.values(), *content.changes)])


def _draw_missing(world, rng):
    return rng.choice(town(world).missing)


def _draw_unreachable(world, rng):
    """A place where walking does not lead to, or one that is not there."""
    island = [place.name for place in town(world).places if place.x == town(world).island]
    return rng.choice(rng.choice((island, town(world).missing)))


def _draw_address(world, rng):
    return rng.choice(town(world).places).address


def _draw_kind(world, rng):
    return rng.choice(KINDS)


def _draw_way(world, rng):
    return rng.choice(list(MINUTES))


def _draw_fact(world, rng):
    return rng.choice(list(FACTS))


def _draw_label(world, rng):
    """A label that the user has not given yet."""
    return rng.choice([label for label in LABELS if label not in town(world).saved])


def _draw_mine(world, rng):
    return rng.choice(list(town(world).saved))


def _draw_saved(world, rng):
    return rng.choice(list(town(world).saved.values()))


def _draw_changed(world, rng):
    return rng.choice(list(town(world).changes))


def _draw_phone(world, rng):
    return draw_phone(rng)


def _draw_opening(world, rng):
    return str(draw_opening(rng))


def _slots(config, draws):
    """A sampler that draws each slot by itself, and again where the slots mean no task (two equally near, no way)."""

    return until_valid(lambda world, rng: {slot: draw(world, rng) for slot, draw in draws.items()}, config)


# --- configs and oracles of more than a line


def _saving(world, slots, place, **more):
    _require(place.name not in town(world).saved.values(), "saved already")
    return _record(world, save={_free(world, slots["label"]): place.name}, **more)


def _save_two(world, slots):
    names = [_place(world, slots, slot).name for slot in ("place", "place2")]
    labels = [_free(world, slots[slot]) for slot in ("label", "label2")]
    _require(names[0] != names[1] and labels[0] != labels[1], "twice the same")
    _require(not {*names} & {*town(world).saved.values()}, "saved already")
    return _record(world, save=dict(zip(labels, names)))


def _changed(world, slots):
    """What the user's changes have in them after the slots' change."""
    place, phone, opening = _place(world, slots), slots.get("phone"), slots.get("opening")
    _require(place.name not in town(world).changes, "there is a change already")
    _require(phone is None or (phone != place.phone and len(phone) == 6 and phone[0] != "0"), "phone")
    _require(opening is None or (opening != str(place.opening) and opening in map(str, range(24))), "opening time")
    return {place.name: (phone, opening and int(opening))}


def _change_oracle(world, slots):
    return [*_find(slots["place"]), *_change(slots), DONE]


def _taken_back(world, slots):
    _require(slots["changed"] in town(world).changes, "no such change")
    return _record(world, take_back=[slots["changed"]])


def _route_url(world, slots):
    _distance(world, slots)
    return _url(f"/route/{_place(world, slots).id}/{_place(world, slots, 'place2').id}/{slots['way']}")


def _near_url(world, slots):
    start = _place(world, slots)
    _require(nearest(_kind(world, slots), _ways(world, start, slots["way"]), start), "none")
    return _url(f"/p/{start.id}/near?kind={slots['kind']}&by={slots['way']}")


def _no_fact(world, slots):
    return _impossible(world, f"no place {_missing(world, slots['place'])}")


def _no_save(world, slots):
    _free(world, slots["label"])
    return _impossible(world, f"no place {_missing(world, slots['place'])}")


def _no_remove(world, slots):
    _require(slots["place"] not in town(world).saved.values(), "it is saved")
    return _impossible(world, f"{slots['place']} is not saved")


def _no_route(world, slots):
    """One of the two places is not there, or no way leads from one to the other."""
    _require(slots["way"] in MINUTES, "no such way")
    places = {place.name: place for place in town(world).places}
    absent = [slots[slot] for slot in ("place", "place2") if slots[slot] not in places]
    if absent:
        return _impossible(world, f"no place {absent[0]}")
    start, end = places[slots["place"]], places[slots["place2"]]
    _require((end.x, end.y) not in _ways(world, start, slots["way"]), "there is a way")
    return _impossible(world, f"no way by {slots['way']}")


_TWO = r"[a-z]+ [a-z]+"
_PATTERNS = {
    **dict.fromkeys(("place", "saved", "changed"), _TWO),
    **dict.fromkeys(("kind", "label", "mine", "way"), r"[a-z]+"),
    "fact": "|".join(FACTS),
    "address": r"\d+ [a-z]+ (?:street|avenue)",
    "opening": r"\d+",
}


def _template(name, kind, family, requirements, phrasings, draws, config, oracle):
    sample = _slots(config, draws)
    return Template(name, kind, requirements, phrasings, sample, config, oracle, f"map {family}", _PATTERNS)


_PLACE = {"place": _draw_place}
_ROUTE = {"place": _draw_place, "place2": _draw_place, "way": _draw_way}
_NO_ROUTE = _ROUTE | {"place2": _draw_unreachable}
_NEAR = {"kind": _draw_kind, "place": _draw_place, "way": _draw_way}
_SAVE = {"place": _draw_place, "label": _draw_label}

# In the order in which worlds take them: kinds and lengths mixed.
TEMPLATES = [
    _template(
        "fact",
        "information",
        "facts",
        1,
        ("what is the {fact} of {place}", "tell me the {fact} of {place}"),
        {"fact": _draw_fact, "place": _draw_place},
        lambda w, s: _answer(_fact(_place(w, s), s)),
        lambda w, s: [*_find(s["place"]), exit_move(_fact(_place(w, s), s))],
    ),
    _template(
        "save",
        "state",
        "saved",
        1,
        ("save {place} as {label}", "save {place} with the label {label}"),
        _SAVE,
        lambda w, s: _saving(w, s, _place(w, s)),
        lambda w, s: [*_find(s["place"]), *_save(s["label"]), DONE],
    ),
    _template(
        "distance",
        "information",
        "route",
        1,
        (
            "how many km is it from {place} to {place2} by {way}",
            "tell me how many km it is from {place} to {place2} by {way}",
        ),
        _ROUTE,
        lambda w, s: _answer(_distance(w, s)),
        lambda w, s: [*_route(s, s["place"], s["place2"]), exit_move(str(_distance(w, s)))],
    ),
    _template(
        "phone_opening",
        "state",
        "change",
        2,
        (
            "change the phone of {place} to {phone} and its opening time to {opening}",
            "correct the phone of {place} to {phone} and its opening time to {opening}",
        ),
        _PLACE | {"phone": _draw_phone, "opening": _draw_opening},
        lambda w, s: _record(w, change=_changed(w, s)),
        _change_oracle,
    ),
    _template(
        "highest",
        "information",
        "rating",
        1,
        ("which {kind} has the highest rating", "what is the name of the {kind} with the highest rating"),
        {"kind": _draw_kind},
        lambda w, s: _answer(_highest(w, s).name),
        lambda w, s: [Move("link", s["kind"]), Move("link", "rating"), exit_move(_highest(w, s).name)],
    ),
    _template(
        "show_route",
        "navigation",
        "route",
        1,
        ("show the route from {place} to {place2} by {way}", "open the route from {place} to {place2} by {way}"),
        _ROUTE,
        _route_url,
        lambda w, s: [*_route(s, s["place"], s["place2"]), DONE],
    ),
    _template(
        "remove",
        "state",
        "saved",
        1,
        ("remove {saved} from my places", "take {saved} out of my places"),
        {"saved": _draw_saved},
        lambda w, s: _record(w, remove=[_saved(w, s)]),
        lambda w, s: [*_remove(s["saved"]), DONE],
    ),
    _template(
        "no_distance",
        "impossible",
        "route",
        1,
        (
            "how many km is it from {place} to {place2} by {way}",
            "tell me how many km it is from {place} to {place2} by {way}",
        ),
        _NO_ROUTE,
        _no_route,
        lambda w, s: [*_route(s, s["place"], s["place2"]), NOT_POSSIBLE],
    ),
    _template(
        "nearest",
        "information",
        "near",
        1,
        (
            "which {kind} is nearest to {place} by {way}",
            "what is the name of the {kind} nearest to {place} by {way}",
        ),
        _NEAR,
        lambda w, s: _answer(_nearest(w, s).name),
        lambda w, s: [*_near(s), exit_move(_nearest(w, s).name)],
    ),
    _template(
        "save_two",
        "state",
        "saved",
        2,
        (
            "save {place} as {label} and {place2} as {label2}",
            "save {place} with the label {label} and {place2} with the label {label2}",
        ),
        _SAVE | {"place2": _draw_place, "label2": _draw_label},
        _save_two,
        lambda w, s: [*_find(s["place"]), *_save(s["label"]), *_find(s["place2"]), *_save(s["label2"]), DONE],
    ),
    _template(
        "at",
        "information",
        "facts",
        1,
        ("which place is at {address}", "what is the name of the place at {address}"),
        {"address": _draw_address},
        lambda w, s: _answer(_at(w, s)),
        lambda w, s: [*_search(s["address"]), exit_move(_at(w, s))],
    ),
    _template(
        "take_back",
        "state",
        "change",
        1,
        ("take back my change of {changed}", "cancel my change of {changed}"),
        {"changed": _draw_changed},
        _taken_back,
        lambda w, s: [Move("link", "places"), Move("link", s["changed"]), Move("button", "take back"), DONE],
    ),
    _template(
        "nearest_fact",
        "information",
        "near",
        2,
        (
            "what is the {fact} of the {kind} nearest to {place} by {way}",
            "tell me the {fact} of the {kind} nearest to {place} by {way}",
        ),
        {"fact": _draw_fact} | _NEAR,
        lambda w, s: _answer(_fact(_nearest(w, s), s)),
        lambda w, s: [*_near(s), Move("link", _nearest(w, s).name), exit_move(_fact(_nearest(w, s), s))],
    ),
    _template(
        "show_rating",
        "navigation",
        "rating",
        1,
        ("show each {kind} sorted by rating", "list each {kind} sorted by rating"),
        {"kind": _draw_kind},
        lambda w, s: _url(f"/k/{_kind(w, s)[0].kind}?sort=rating"),
        lambda w, s: [Move("link", s["kind"]), Move("link", "rating"), DONE],
    ),
    _template(
        "relabel",
        "state",
        "saved",
        1,
        ("change the label of {saved} to {label}", "set the label of {saved} to {label}"),
        {"saved": _draw_saved, "label": _draw_label},
        lambda w, s: _record(w, save={_free(w, s["label"]): _saved(w, s)}),
        lambda w, s: [Move("link", "places"), Move("link", s["saved"]), *_save(s["label"]), DONE],
    ),
    _template(
        "no_fact",
        "impossible",
        "facts",
        1,
        ("what is the {fact} of {place}", "tell me the {fact} of {place}"),
        {"fact": _draw_fact, "place": _draw_missing},
        _no_fact,
        lambda w, s: [*_search(s["place"]), NOT_POSSIBLE],
    ),
    _template(
        "phone",
        "state",
        "change",
        1,
        ("change the phone of {place} to {phone}", "correct the phone of {place} to {phone}"),
        _PLACE | {"phone": _draw_phone},
        lambda w, s: _record(w, change=_changed(w, s)),
        _change_oracle,
    ),
    _template(
        "minutes",
        "information",
        "route",
        1,
        (
            "how many minutes does it take from {place} to {place2} by {way}",
            "tell me how many minutes it takes from {place} to {place2} by {way}",
        ),
        _ROUTE,
        lambda w, s: _answer(_minutes(w, s)),
        lambda w, s: [*_route(s, s["place"], s["place2"]), exit_move(str(_minutes(w, s)))],
    ),
    _template(
        "save_highest",
        "state",
        "rating",
        2,
        (
            "save the {kind} with the highest rating as {label}",
            "save the {kind} that has the highest rating with the label {label}",
        ),
        {"kind": _draw_kind, "label": _draw_label},
        lambda w, s: _saving(w, s, _highest(w, s)),
        lambda w, s: [
            Move("link", s["kind"]),
            Move("link", "rating"),
            Move("link", _highest(w, s).name),
            *_save(s["label"]),
            DONE,
        ],
    ),
    _template(
        "show_place",
        "navigation",
        "facts",
        1,
        ("show {place} on the map", "open {place} on the map"),
        _PLACE,
        lambda w, s: _url(f"/p/{_place(w, s).id}"),
        lambda w, s: [*_find(s["place"]), DONE],
    ),
    _template(
        "no_save",
        "impossible",
        "saved",
        1,
        ("save {place} as {label}", "save {place} with the label {label}"),
        {"place": _draw_missing, "label": _draw_label},
        _no_save,
        lambda w, s: [*_search(s["place"]), NOT_POSSIBLE],
    ),
    _template(
        "distance_saved",
        "information",
        "route",
        2,
        (
            "how many km is it from the place saved as {mine} to {place} by {way}",
            "tell me how many km it is from the place saved as {mine} to {place} by {way}",
        ),
        {"mine": _draw_mine, "place": _draw_place, "way": _draw_way},
        lambda w, s: _answer(_distance_saved(w, s)),
        lambda w, s: [
            Move("link", "places"),
            *_route(s, town(w).saved[s["mine"]], s["place"]),
            exit_move(str(_distance_saved(w, s))),
        ],
    ),
    _template(
        "change_save",
        "state",
        "change",
        3,
        (
            "change the phone of {place} to {phone} and its opening time to {opening} and save it as {label}",
            "correct the phone of {place} to {phone} and its opening time to {opening} and save it as {label}",
        ),
        _PLACE | {"phone": _draw_phone, "opening": _draw_opening, "label": _draw_label},
        lambda w, s: _saving(w, s, _place(w, s), change=_changed(w, s)),
        lambda w, s: [*_find(s["place"]), *_change(s), *_save(s["label"]), DONE],
    ),
    _template(
        "show_near",
        "navigation",
        "near",
        1,
        ("show each {kind} near {place} by {way}", "list each {kind} near {place} by {way}"),
        _NEAR,
        _near_url,
        lambda w, s: [*_near(s), DONE],
    ),
    _template(
        "no_remove",
        "impossible",
        "saved",
        1,
        ("remove {place} from my places", "take {place} out of my places"),
        _PLACE,
        _no_remove,
        lambda w, s: [Move("link", "places"), NOT_POSSIBLE],
    ),
    _template(
        "opening",
        "state",
        "change",
        1,
        ("change the opening time of {place} to {opening}", "correct the opening time of {place} to {opening}"),
        _PLACE | {"opening": _draw_opening},
        lambda w, s: _record(w, change=_changed(w, s)),
        _change_oracle,
    ),
    _template(
        "save_nearest",
        "state",
        "near",
        2,
        ("save the {kind} nearest to {place} by {way} as {label}",),
        _NEAR | {"way": lambda w, rng: "walking", "label": _draw_label},
        lambda w, s: _saving(w, s, _nearest(w, s)),
        lambda w, s: [*_near(s), Move("link", _nearest(w, s).name), *_save(s["label"]), DONE],
    ),
    _template(
        "replace",
        "state",
        "saved",
        2,
        (
            "remove {saved} from my places and save {place} as {label}",
            "take {saved} out of my places and save {place} as {label}",
        ),
        {"saved": _draw_saved} | _SAVE,
        lambda w, s: _saving(w, s, _place(w, s), remove=[_saved(w, s)]),
        lambda w, s: [*_remove(s["saved"]), *_find(s["place"]), *_save(s["label"]), DONE],
    ),
    _template(
        "no_minutes",
        "impossible",
        "route",
        1,
        (
            "how many minutes does it take from {place} to {place2} by {way}",
            "tell me how many minutes it takes from {place} to {place2} by {way}",
        ),
        _NO_ROUTE,
        _no_route,
        lambda w, s: [*_route(s, s["place"], s["place2"]), NOT_POSSIBLE],
    ),
]
