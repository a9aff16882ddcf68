"""Tasks that cross two sites: what is read on one is used on the other.

An episode begins with a tab for each site, the first one in front. Each template joins one of the first site that asks
for something with one of the second site that can use it, "assign issue 3 of quiet kettle to the author of visit harbor
in books"; its check is the second one's with the first one's answer in it.
"""

from envs.arena import code_tasks, forum_tasks, map_tasks, shop_admin_tasks, shop_tasks
from envs.arena.tasks import PATTERNS, Template, tab_move, until_valid

_TEMPLATES = {
    (site, template.name): template
    for site, templates in (
        ("shop", shop_tasks.TEMPLATES),
        ("forum", forum_tasks.TEMPLATES),
        ("shop_admin", shop_admin_tasks.TEMPLATES),
        ("code", code_tasks.TEMPLATES),
        ("map", map_tasks.TEMPLATES),
    )
    for template in templates
}


def _cross(first, second, slot, *phrasings, names=None, fixed=None):
    """The second template (site, name) with the first one's answer in its `slot`.

    `names` are the second one's slots that are called otherwise here, {name here: slot there}; `fixed` are values of
    the first one's slots that the phrasings say in words of their own.
    """
    asked, used = _TEMPLATES[first], _TEMPLATES[second]
    names, fixed, patterns = names or {}, fixed or {}, PATTERNS | used.patterns
    there = {name: name for name in used.slots if name != slot and name not in names.values()} | names

    def answer(world, slots):
        slots = slots | fixed
        asked.config(world, slots)  # LookupError where it has no answer
        return asked.oracle(world, slots)[-1].argument

    def meant(world, slots):
        return {known: slots[name] for name, known in there.items()} | {slot: answer(world, slots)}

    def config(world, slots):
        return used.config(world, meant(world, slots))

    def oracle(world, slots):
        return [*asked.oracle(world, slots | fixed)[:-1], tab_move(2), *used.oracle(world, meant(world, slots))]

    def draw(world, rng):
        one, other = asked.sample(world, rng), used.sample(world, rng)
        if one is None or other is None:
            raise LookupError("this world has no such task")
        slots = {name: one[name] for name in asked.slots if name not in fixed}
        return slots | {name: other[known] for name, known in there.items()}

    return Template(
        name="-".join((*first, *second)),
        kind=used.kind,
        requirements=asked.requirements + used.requirements,
        phrasings=phrasings,
        sample=until_valid(draw, config),
        config=config,
        oracle=oracle,
        family=f"cross {slot}",
        patterns=asked.patterns | used.patterns | {name: patterns[known] for name, known in names.items()},
        sites=(first[0], second[0]),
    )


# In the order in which worlds take them: kinds and lengths mixed.
TEMPLATES = [
    _cross(
        ("forum", "author"),
        ("code", "assign"),
        "person",
        "assign {open} to the author of {post}",
        "give {open} to the one who wrote {post}",
    ),
    _cross(
        ("code", "assignee"),
        ("forum", "user_bio"),
        "person",
        "what is the bio of the user who is assigned to {issue}",
        "find the bio of the one that {issue} is assigned to",
    ),
    _cross(
        ("shop", "price"),
        ("shop_admin", "price"),
        "price",
        "set the price of {article} to the price of {product} in the shop",
        "let {article} cost as much as {product} in the shop",
        names={"article": "product"},
    ),
    _cross(
        ("map", "fact"),
        ("forum", "comment"),
        "comment",
        "comment the {fact} of {place} on {post}",
        "write the {fact} of {place} as a comment on {post}",
    ),
    _cross(
        ("shop_admin", "top"),
        ("code", "new_issue"),
        "title",
        "open an issue in {project} with the product that sold most in {month} as the title",
        "write an issue in {project} called like the product that sold most in {month}",
    ),
    _cross(
        ("code", "assignee"),
        ("forum", "open_profile"),
        "person",
        "show the profile of the user who is assigned to {issue}",
        "open the profile of the one that {issue} is assigned to",
    ),
    _cross(
        ("forum", "author"),
        ("code", "no_assign"),
        "person",
        "assign {open} to the author of {post}",
        "give {open} to the one who wrote {post}",
    ),
    _cross(
        ("shop_admin", "count_all"),
        ("shop", "add"),
        "count",
        "add as many {product} to the cart as {person} has orders",
        "put one {product} into my cart for every order of {person}",
    ),
    _cross(
        ("map", "nearest"),
        ("code", "new_issue"),
        "title",
        "open an issue in {project} with the {kind} nearest to {place} by {way} as the title",
        "write an issue in {project} called like the {kind} nearest to {place} by {way}",
    ),
    _cross(
        ("code", "stars"),
        ("forum", "post"),
        "body",
        "post {subject} in {board} with the number of stars of {project} as the text",
        "write a post {subject} in {board} whose text is the number of stars of {project}",
    ),
    _cross(
        ("shop_admin", "order_city"),
        ("shop", "city"),
        "city",
        "change my city to that of the member who placed order {order}",
        "move my account to the city of the member who placed order {order}",
    ),
    _cross(
        ("shop", "price"),
        ("shop_admin", "no_price"),
        "price",
        "set the price of {article} to the price of {product} in the shop",
        "let {article} cost as much as {product} in the shop",
        names={"article": "product"},
    ),
    _cross(
        ("forum", "top_author"),
        ("shop_admin", "group"),
        "person",
        "move the author of the top post in {board} to group {group}",
        "put the one who wrote the top post in {board} into group {group}",
    ),
    _cross(
        ("map", "fact"),
        ("shop", "city-phone"),
        "phone",
        "change my city to {city} and my phone to that of {place}",
        "set my city to {city} and my phone to the one that {place} has",
        fixed={"fact": "phone"},
    ),
    _cross(
        ("shop", "extreme"),
        ("forum", "bio"),
        "bio",
        "change my bio to the name of the {extreme} product in {category}",
        "set my bio to the name of the {extreme} product in {category}",
    ),
    _cross(
        ("code", "best"),
        ("shop_admin", "note"),
        "note",
        "set the note of order {order} to the project in {language} with the most stars",
        "note the project in {language} with the most stars on order {order}",
    ),
]
