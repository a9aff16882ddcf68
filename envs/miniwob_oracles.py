"""Scripted solutions of MiniWoB++'s tasks: what `env.oracle(task)` of envs/miniwob.py plays.

A solution is a generator function of the instruction and of `page`, what its slot shows at the moment. It yields an
action and goes on when that is done. It knows what an agent is told and no more: the instruction, and labels, texts and
positions of what is in view. SOLUTIONS has one for each task that can be solved so; docs/miniwob.md has the others.
"""

import math
import re

from common.actions import Action
from common.html import compact_line

SUBMIT = re.compile("submit", re.IGNORECASE)
SCROLL = Action("Scroll Down")


class Page:
    """What a slot shows now: `look()` gives its last Observation."""

    def __init__(self, look):
        self._look = look

    @property
    def nodes(self):
        return self._look().nodes

    @property
    def error(self):
        return self._look().error

    @property
    def texts(self):
        return [node["text"] for node in self.nodes if "text" in node]

    def items(self, label="", kind=None, tag=None):
        """The elements in their order whose label is `label`, or begins as a compiled pattern says ("": any)."""
        return [node for node in self.nodes if "id" in node and _fits(node, label, kind, tag)]

    def item(self, label="", kind=None, number=0, tag=None):
        """The `number`-th of them. Raises LookupError if there are fewer."""
        found = self.items(label, kind, tag)
        if len(found) <= number:
            raise LookupError(f"no {kind or 'element'} {label!r} on the page")
        return found[number]

    def begins(self, start, number=0):
        """The `number`-th element whose label begins so."""
        return self.item(re.compile(re.escape(start)), number=number)

    def box(self, number=0):
        return self.item(kind="box", number=number)

    def before(self, item):
        """The text that stands last before an item."""
        return [node["text"] for node in self.nodes[: self.nodes.index(item)] if "text" in node][-1]


def _fits(node, label, kind, tag):
    named = node["label"] == label if isinstance(label, str) else label.match(node["label"])
    return (not label or named) and kind in (None, node["kind"]) and tag in (None, node["tag"])


def act(name, item, argument=None):
    """The action on an item, after the comment that names it."""
    element = compact_line({key: item[key] for key in ("id", "kind", "label")})
    return Action(name, str(item["id"]), argument, f"# Element: {element}")


def click(item):
    return act("Click", item)


def submit(page):
    return click(page.item(SUBMIT))


def centre(item):
    left, top, width, height = item["box"]
    return left + width / 2, top + height / 2


def points(*places):
    """Places as an argument."""
    return ",".join(f"{round(x)},{round(y)}" for x, y in places)


def drag(item, x, y):
    return act("Drag", item, points((x, y)))


def number(text):
    """The first number in a text."""
    return int(re.search(r"-?\d+", text).group())


# --- what the instruction names: some elements, then perhaps a button -------------------------------------------------


def clicks(pattern, kind=None, then=None, label="{}$"):
    """Clicks on the elements that the instruction names (the pattern's groups, as labelled), then on `then`."""

    def solve(goal, page):
        for name in re.search(pattern, goal).groups():
            yield click(page.item(re.compile(label.format(re.escape(name))), kind))
        if then:
            yield click(page.item(then))

    return solve


def first(kind):
    """Clicks on the first element of a kind."""

    def solve(goal, page):
        yield click(page.item(kind=kind))

    return solve


def click_nth_box(goal, page):
    yield click(page.box(number(goal) - 1))


def check_named(goal, page):
    names = re.search("Select (.+) and click", goal).group(1)
    for name in names.split(", ") if names != "nothing" else ():
        yield click(page.item(name, "check"))
    yield submit(page)


def fills(pattern, change=str, then=SUBMIT):
    """Types what the instruction names (the pattern's groups, changed) into the boxes, one after another."""

    def solve(goal, page):
        for place, words in enumerate(re.search(pattern, goal).groups()):
            yield act("Type", page.box(place), change(words))
        yield click(page.item(then))

    return solve


def choose_named(goal, page):
    for name in re.search("Select (.+) from", goal).group(1).split(", "):
        yield act("Select Dropdown Option", page.item(kind="select"), name)
    yield submit(page)


def iso_date(date):
    month, day, year = date.split("/")
    return f"{year}-{month}-{day}"


def clock(time):
    hour, minute, half = re.match(r"(\d+):(\d+) ([AP])M", time).groups()
    return f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}"


def enter_text_2(goal, page):
    words, case = re.search('"(.+)" in all (upper|lower)', goal).groups()
    yield act("Type", page.box(), words.upper() if case == "upper" else words.lower())
    yield submit(page)


def enter_password(goal, page):
    for place in range(2):
        yield act("Type", page.box(place), re.search('"(.+)"', goal).group(1))
    yield submit(page)


LOGIN = 'username "(.+)" and the password "(.+)" into'


def login_user_popup(goal, page):
    for place, words in enumerate(re.search(LOGIN, goal).groups()):
        yield act("Type", page.box(place), words)
        if page.items("Cancel"):  # it asks whether to leave
            yield click(page.item("Cancel"))
    yield click(page.item("OK"))


def use_spinner(goal, page):
    yield act("Type", page.box(), str(number(goal)))
    yield submit(page)


def click_widget(goal, page):
    name = re.search('"(.+)" widget', goal).group(1)
    if name in ("text", "textarea"):
        yield click(page.item(kind="box", tag="input" if name == "text" else name))
    else:
        yield click(page.item(kind="check" if name == "checkbox" else name))


def click_dialog(goal, page):
    label = re.search('"(.+)"', goal).group(1)
    yield click(page.item("Close" if label == "x" else label))


def form_sequence_2(goal, page):
    radio, value, box = re.search(r'the (\d)\w+ radio .* number "(-?\d+)" into the (\d)', goal).groups()
    yield click(page.item(kind="radio", number=int(radio) - 1))
    yield act("Type", page.box(int(box) - 1), value)
    yield submit(page)


def form_sequence_3(goal, page):
    option, button = re.search('Choose (.+) from .* labeled "(.+)"', goal).groups()
    yield click(page.item("▾"))
    while not page.items(option):
        yield act("Scroll Down", page.item(re.compile(r"\d ?ft")))
    yield click(page.item(option))
    yield click(page.item(button))


def search_movies(goal, page):
    wanted = re.search(r"for (.+) movies directed by (.+) from year (\d+)", goal).groups()
    for words, name in zip(wanted, ("genre", "director", "year|date")):
        names = [text for text in page.texts if re.search("genre|director|year|date", text.lower())]
        place = next(i for i, text in enumerate(names) if re.search(name, text.lower()))
        yield act("Type", page.box(place), words)
    yield click(page.item(re.compile("submit|search|go", re.IGNORECASE)))


# --- what has to be found ---------------------------------------------------------------------------------------------


def click_collapsible(goal, page):
    yield click(page.begins("Section"))
    yield submit(page)


def explore(places):
    """Opens one place after another until the link that the instruction names is there, and clicks on it."""

    def solve(goal, page):
        wanted, opened = re.search('link "(.+)"', goal).group(1), 0
        while not page.items(wanted):
            yield click(page.item(re.compile(places), number=opened))
            opened += 1
        yield click(page.items(wanted)[-1])

    return solve


def navigate_tree(goal, page):
    name, opened = re.escape(re.search('named "(.+)"', goal).group(1)), []
    wanted = re.compile(rf"{name} (folder|file)$")
    while not page.items(wanted):
        folder = next(i for i in page.items(re.compile(".* folder$")) if i["box"][:2] not in opened)
        opened.append(folder["box"][:2])
        yield click(folder)
    yield click(page.item(wanted))


def click_menu(goal, page):
    *parents, leaf = goal.removeprefix("Select ").split(">")
    for name in parents:  # a click would choose it
        yield act("Hover", page.begins(f"{name} ui-icon"))
    yield click(page.item(leaf))


def click_menu_2(goal, page):
    label = re.search('labeled "(.+)"', goal)  # or the icon is shown
    wanted = re.compile(f"{label[1]} ui-icon" if label else f".* {page.begins('ui-icon')['label'].split()[0]}$")
    yield click(page.item("Menu", "button"))
    if not page.items(wanted):
        yield act("Hover", page.begins("Playback"))
    yield click(page.item(wanted))


def click_pie(goal, page):
    yield click(page.begins("+ text"))
    seen = None
    while seen != page.nodes:  # it unfolds
        seen = page.nodes
        yield Action("Wait")
    yield click(page.begins(f"{re.search('labeled .(.).', goal).group(1)} text"))


def minutes(duration):
    hours, rest = re.match(r"(\d+)h (\d+)m", duration).groups()
    return 60 * int(hours) + int(rest)


def buy_ticket(goal, page):
    tickets = page.items(re.compile("Book for"))
    worth = [number(i["label"]) if "cost" in goal else minutes(page.before(i)) for i in tickets]
    best = min(worth) if re.search("cheapest|shortest", goal) else max(worth)
    yield click(tickets[worth.index(best)])


MONTHS = "January February March April May June July August September October November December".split()


def choose_date(goal, page):
    month, day = (int(part) for part in re.search(r"(\d+)/(\d+)/", goal).groups())
    yield click(page.box())
    shown = re.compile("|".join(MONTHS))
    while (now := 1 + MONTHS.index(next(filter(None, map(shown.match, page.texts))).group())) != month:
        yield click(page.item("Prev" if now > month else "Next"))
    yield click(page.item(str(day), "link"))
    yield submit(page)


def find_greatest(goal, page):
    yield click(max(page.items(re.compile(r"\d+$")), key=lambda item: int(item["label"])))
    yield submit(page)


def odd_or_even(goal, page):
    for row in range(3):
        buttons = page.items(re.compile("Odd|Even"))[2 * row : 2 * row + 2]
        yield click(buttons[0 if int(page.texts[row]) % 2 else 1])
    yield submit(page)


def generate_number(goal, page):
    limit = re.search(r"(greater|less) than (\d+)", goal)

    def good(value):
        if limit:
            return value > int(limit[2]) if limit[1] == "greater" else value < int(limit[2])
        return value % 2 == ("odd" in goal)

    while not (page.texts[0].isdigit() and good(int(page.texts[0]))):
        yield click(page.item("Generate"))
    yield submit(page)


def guess_number(goal, page):
    low, high = 0, 9
    while True:
        guess = (low + high) // 2
        yield act("Type", page.box(), str(guess))
        yield submit(page)
        low, high = (low, guess - 1) if "lower" in page.texts[0] else (guess + 1, high)


def phone_book(goal, page):
    name, what = re.search(r"Find (.+) in the .* their (\w+)", goal).groups()
    while page.texts[0] != name:
        yield click(page.item(">"))
    yield click(next(item for item in page.items() if page.before(item).lower() == f"{what}:"))


def search_engine(goal, page):
    words, which = re.search(r'enter "(.+)" and press .* the (\d)\w+ search', goal).groups()
    yield act("Type", page.box(), words)
    yield click(page.item("Search", "button"))
    if int(which) > 3:
        yield click(page.item(str((int(which) + 2) // 3), "link"))
    results = [item for item in page.items(kind="link") if not re.fullmatch(r"\d|<|>", item["label"])]
    yield click(results[(int(which) - 1) % 3])


def sign_agreement(goal, page):
    name = re.search('name "(.+)" then press "(.+)"', goal)
    if name:
        while page.box(1).get("disabled"):
            yield SCROLL
        yield act("Type", page.box(1), name[1])
    yield click(page.item(name[2] if name else "Cancel"))


def scroll_text_2(goal, page):
    while "does not scroll" not in page.error:
        yield act("Scroll Down" if "bottom" in goal else "Scroll Up", page.box())
    yield submit(page)


def use_autocomplete(goal, page):
    start, end = re.search('starts with "(.+?)"(?: and ends with "(.+)")?', goal).groups()
    yield act("Type", page.box(), start)
    yield click(page.item(re.compile(f"(?=.*{re.escape(end or '')}$){re.escape(start)}"), "item"))
    yield submit(page)


def stock_market(goal, page):
    price = re.compile(r"\$(\d+\.\d+)")
    while (now := price.search(" ".join(page.texts))) and float(now[1]) > float(price.search(goal)[1]):
        yield Action("Wait")
    if now:  # else the day is over
        yield click(page.item("Buy"))


# --- what has to be worked out and typed ------------------------------------------------------------------------------


def answers(answer):
    """Types `answer(goal, page)` into the last box."""

    def solve(goal, page):
        yield act("Type", page.items(kind="box")[-1], str(answer(goal, page)))
        yield submit(page)

    return solve


def copy_text(goal, page):
    which = number(goal) - 1 if re.search(r"\d", goal) else 0
    words = page.item(kind="box", tag="textarea", number=which)["value"]
    yield act("Type", page.item(kind="box", tag="input"), f"{words} ")  # all of these texts end so; it is not shown
    yield submit(page)


def nth_word(goal, page):
    return re.sub("[^a-zA-Z]", "", " ".join(page.texts).split()[number(goal) - 1])


def last_word(goal, page):
    return page.item(kind="box", tag="textarea")["value"].split()[-1].rstrip(".")


def arithmetic(goal, page):
    first, sign, second = re.search(r"(\d+) ([-+x]) (\d+)", " ".join(page.texts)).groups()
    return {"+": int(first) + int(second), "-": int(first) - int(second), "x": int(first) * int(second)}[sign]


def algebra(goal, page):
    left, sign, right, result = re.search(r"(x|\d+) ([-+]) (x|\d+) = (\d+)", " ".join(page.texts)).groups()
    known = int(right if left == "x" else left)
    if sign == "+":
        return int(result) - known
    return int(result) + known if left == "x" else known - int(result)


def captcha(goal, page):
    return "".join(page.texts).replace(" ", "")


def cell(page, key):
    """The value beside `key` in a table of two columns."""
    return next(text.removeprefix(f"{key} ") for text in page.texts if text.startswith(f"{key} "))


def read_table(goal, page):
    return cell(page, re.search("value of (.+) into", goal).group(1))


def read_table_2(goal, page):
    for place in range(2):
        yield act("Type", page.box(place), cell(page, page.before(page.box(place)).rstrip(":")))
    yield submit(page)


def count_blocks(goal, page):
    return len(page.items(re.compile("addition-block")))


def named_colour(goal, page):
    from PIL import ImageColor

    return "{:02X}{:02X}{:02X}".format(*ImageColor.getrgb(re.search("Select (.+) with", goal).group(1)))


def shown_colour(goal, page):
    return "".join(f"{int(part):02X}" for part in re.search(RGB, page.begins("cc")["label"]).groups())


# --- shapes, colours, places ------------------------------------------------------------------------------------------

RGB = re.compile(r"rgb\((\d+), (\d+), (\d+)\)")
TAGS = {"circle": "circle", "rectangle": "rect", "triangle": "polygon"}
SHAPE = re.compile(r"(?:(?P<text>.) )?(?P<tag>text|rect|circle|polygon) (?P<colour>\w+) \d+x(?P<height>\d+) at")


def shapes(page):
    """Pairs of (item, match of SHAPE), in their order."""
    found = [(item, SHAPE.match(item["label"])) for item in page.items()]
    return [(item, shape) for item, shape in found if shape]


def is_such(shape, words):
    """Whether a shape is what words such as "small red circle" say."""
    text = shape["text"] or ""
    kinds = {"digit": text.isdigit(), "letter": text.isalpha(), "shape": not text, "item": True, text: True}
    kinds |= {name: not text and shape["tag"] == tag for name, tag in TAGS.items()}
    *properties, kind = words.split()
    own = ("large" if int(shape["height"]) > 15 else "small", shape["colour"])
    return kinds.get(kind, False) and all(word in own for word in properties)


def click_shape(goal, page):
    words = goal.removeprefix("Click on a ")
    yield click(next(item for item, shape in shapes(page) if is_such(shape, words)))


def count_shape(goal, page):
    words = re.search("How many (.+)s are", goal).group(1)
    yield click(page.item(str(sum(is_such(shape, words) for _, shape in shapes(page))), "button"))


def identify_shape(goal, page):
    _, shape = shapes(page)[0]
    kind = next(kind for kind in (*TAGS, "letter", "digit") if is_such(shape, kind))
    yield click(page.item("Number" if kind == "digit" else kind.capitalize(), "button"))


def click_shades(goal, page):
    wanted = ("red", "green", "blue").index(re.search("shades of (.+) and", goal).group(1))
    for item in page.items(RGB):
        parts = [int(part) for part in RGB.match(item["label"]).groups()]
        if parts.index(max(parts)) == wanted:
            yield click(item)
    yield submit(page)


def ascending_numbers(goal, page):
    places = [centre(item) for item in sorted(page.items(re.compile(r"\d text")), key=lambda item: item["label"])]
    for place in places:  # they are covered once the first is clicked
        yield click(min(page.items(re.compile(r"\d text|rect")), key=lambda item: math.dist(centre(item), place)))


def at_place(place):
    """Clicks at `place(page)` of a drawing, then Submit."""

    def solve(goal, page):
        yield Action("Click", None, points(place(page)))
        yield submit(page)

    return solve


def circle(page, name, nth=0):
    """Where to click for a point at the centre of a drawing's circle: the drawing puts it 2 pixels to the right of the
    click, and 2 below."""
    label = page.item(re.compile(f"circle .*{name}"), number=nth)["label"]
    x, y = re.search(r"at (\d+),(\d+)", label).groups()
    return int(x) - 2, int(y) - 2


def midpoint(page):
    (ax, ay), (bx, by) = circle(page, "black-circle"), circle(page, "black-circle", 1)
    return (ax + bx) / 2, (ay + by) / 2


def bisector(page):
    x, y = circle(page, "init-blue")
    ends = circle(page, "init-black"), circle(page, "init-black", 1)
    ways = [((end[0] - x) / math.dist(end, (x, y)), (end[1] - y) / math.dist(end, (x, y))) for end in ends]
    return far(x, y, ways[0][0] + ways[1][0], ways[0][1] + ways[1][1])


def right_angle(page):
    (x, y), (end_x, end_y) = circle(page, "init-blue"), circle(page, "init-black")
    sides = far(x, y, end_y - y, x - end_x), far(x, y, y - end_y, end_x - x)
    return max(sides, key=lambda place: math.dist(place, (x, y)))


def far(x, y, dx, dy):
    """The last place of a drawing from x, y in that direction: the farther, the less does rounding change an angle."""
    length = math.hypot(dx, dy)
    way = [(x + dx / length * step, y + dy / length * step) for step in range(200)]
    return [place for place in way if 5 <= place[0] <= 148 and 55 <= place[1] <= 175][-1]


def draw_line(goal, page):
    x, y = centre(page.begins("circle circ"))
    dx, dy = (0, 25) if "vertical" in goal else (25, 0)
    yield Action("Drag", None, points((x - dx, y - dy), (x + dx, y + dy)))
    yield submit(page)


def draw_circle(goal, page):
    x, y = centre(page.begins("circle circ"))
    turns = [part * math.pi / 12 for part in range(25)]
    yield Action("Drag", None, points(*((x + 20 * math.cos(turn), y + 20 * math.sin(turn)) for turn in turns)))
    yield submit(page)


def hot_cold(goal, page):
    """Looks in six places until it is not ICE COLD, and is content with that: the exact place would take more steps."""
    left, top, width, height = page.begins("touch-area")["box"]
    for place in ((left + width * (1 + 2 * i) / 6, top + height * (1 + 2 * j) / 4) for i in range(3) for j in range(2)):
        yield Action("Hover", None, points(place))
        if page.items()[-1]["label"] != "ICE COLD":
            yield Action("Click", None, points(place))


# --- drags ------------------------------------------------------------------------------------------------------------


def drag_box(goal, page):
    yield drag(page.item("s"), *centre(page.item("L")))
    yield submit(page)


def drag_shape(goal, page):
    shape = page.item(re.compile("circle|rect|polygon"))
    (x, y), way = centre(shape), re.search("(left|right|up|down) then", goal).group(1)
    dx, dy = {"left": (-20, 0), "right": (20, 0), "up": (0, -20), "down": (0, 20)}[way]
    yield drag(shape, x + dx, y + dy)
    yield submit(page)


def drag_shapes(goal, page):
    """Those that the instruction names go into the (first) box, all others into the second, where there is one."""
    name = re.search(r"all (\w+?)s? (?:shapes )?into", goal).group(1)
    boxes = [centre(box) for box in page.items(re.compile("rect shape-container"))]
    for place, (_, shape) in enumerate(shapes(page)):
        named = TAGS[name] == shape["tag"] if name in TAGS else name == shape["colour"]
        if named or len(boxes) > 1:
            yield drag(shapes(page)[place][0], *boxes[0 if named else 1])
    yield submit(page)


def drag_items(goal, page):
    name, where = re.search(r"Drag (\S+) (.+)\.", goal).groups()
    names = [item["label"] for item in page.items()]
    place, last = names.index(name), len(names) - 1
    words = {"to the top": 0, "to the bottom": last, "down by one position": place + 1, "up by one position": place - 1}
    target = words[where] if where in words else number(where) - 1
    x, y = centre(page.item(names[target]))
    yield drag(page.item(name), x, y + (4 if target > place else -4))


def drag_items_grid(goal, page):
    name, where = re.search(r"Drag (\S+) (.+)\.", goal).groups()
    names = [item["label"] for item in page.items()]
    steps = {"up by one": -3, "down by one": 3, "left by one": -1, "right by one": 1}
    rows, columns = {"top": 0, "center": 3, "bottom": 6}, {"left": 0, "center": 1, "right": 2}
    words = where.removeprefix("to the ").split()
    place = names.index(name)
    target = place + steps[where] if where in steps else rows[words[0]] + columns[words[-1]]
    (x, y), (end_x, end_y) = (centre(page.item(names[index])) for index in (place, target))
    end_x, end_y = end_x + 6 * ((end_x > x) - (end_x < x)), end_y + 6 * ((end_y > y) - (end_y < y))
    # Along the row, then along the column, and past the middle of what is there: so it makes room.
    yield act("Drag", page.item(name), points((end_x, y), (end_x, end_y)))


def drag_sort_numbers(goal, page):
    for place in range(3):
        items = page.items(re.compile(r"-?\d+$"))
        least = min(items[place:], key=lambda item: int(item["label"]))
        if least is not items[place]:
            x, y = centre(items[place])
            yield drag(least, x, y - 4)
    yield submit(page)


def highlight(goal, page):
    which = number(goal) - 1 if re.search(r"\d", goal) else 0
    left, top, width, height = [node for node in page.nodes if "text" in node][which]["box"]
    yield Action("Drag", None, points((left - 1, top + 5), (left + width + 5, top + height - 5)))
    yield submit(page)


def resize_textarea(goal, page):
    side, size = re.search("the (width|height) is (larger|smaller)", goal).groups()
    handle, way = page.begins("ui-resizable-se"), 15 if size == "larger" else -15
    x, y = centre(handle)
    yield drag(handle, x + way * (side == "width"), y + way * (side == "height"))
    yield submit(page)


def slide(page, nth, wanted):
    """Brings the nth slider to `wanted`: near it by a drag, where that saves keys, the rest by keys."""

    def handle():
        return page.begins("slider handle", nth)

    def value():
        return int([text for text in page.texts if re.fullmatch(r"-?\d+", text)][nth])

    ends = []
    for key in ("Home", "End"):  # which values these are is not shown
        if abs(value() - wanted) > 3:
            yield act("Press", handle(), key)
            ends.append((value(), centre(handle())))
    if abs(value() - wanted) > 3:
        (low, (left, top)), (high, (right, bottom)) = ends
        part = (wanted - low) / (high - low)
        yield drag(handle(), left + part * (right - left), top + part * (bottom - top))
    while value() != wanted:
        yield act("Press", handle(), "ArrowRight" if value() < wanted else "ArrowLeft")


def use_sliders(goal, page):
    for nth, wanted in enumerate(re.findall(r"-?\d+", goal)):
        yield from slide(page, nth, int(wanted))
    yield submit(page)


def form_sequence(goal, page):
    value, box = re.search(r"Select (-?\d+) .* the (\d)", goal).groups()
    yield from slide(page, 0, int(value))
    yield click(page.item(kind="check", number=int(box) - 1))
    yield submit(page)


def free_halves(page, window, halves):
    """So many half hours in a row, in view and within the window, that no event covers; None if there are none."""
    events = [node["box"] for node in page.nodes if not node.keys() & {"id", "text"} and 95 < node["box"][2] < 105]
    for start in window[: len(window) - halves + 1]:
        span = [item for half in range(start, start + halves) for item in page.items(re.compile(f"hh-{half} "))]
        if len(span) < halves or span[0]["box"][1] < 53 or centre(span[-1])[1] > 199:
            continue
        top, bottom = span[0]["box"][1] + 2, span[-1]["box"][1] + 18
        if not any(y < bottom and y + height > top for _, y, _, height in events):
            return span
    return None


def daily_calendar(goal, page):
    length, unit, name, hour, half = re.search(r'a ([\d.]+) (\w+) .*"(.+)", between (\d+)([AP])M', goal).groups()
    halves = round(float(length) / 30 if unit == "mins" else float(length) * 2)
    first = 2 * (int(hour) % 12 + 12 * (half == "P"))
    window, refused = range(first, first + 8), True
    while refused:
        span = free_halves(page, window, halves)
        if span is None:
            yield SCROLL
            continue
        x, y = centre(span[0])
        yield drag(span[0], x, y + 4) if halves == 1 else act("Drag", span[0], str(span[-1]["id"]))
        refused = page.error  # an event covers it that begins out of view
        window = range(1 - number(span[0]["label"]), window.stop)  # hh-24 ..
    yield act("Type", page.box(), name)
    while not page.items("Create"):
        yield SCROLL
    yield click(page.item("Create"))


# --- longer ones ------------------------------------------------------------------------------------------------------


def email(goal, page):
    reply = re.search('by (.+) and reply to them with the text "(.+)"', goal)
    forward = re.search(r"by (.+) and forward that email to (.+)\.", goal)
    icon = re.search("by (.+) and click the (star|trash)", goal)
    name = (reply or forward or icon)[1]
    while not page.items(re.compile(f"{name} ")):
        yield SCROLL
    yield click(page.begins(f"{name} "))
    if icon:
        yield click(page.begins(icon[2]))
        return
    yield click(page.item("Reply" if reply else "Forward"))
    yield act("Type", page.item(kind="box", tag="textarea" if reply else "input"), (reply or forward)[2])
    yield click(page.begins("send-"))


def email_forward_nl(goal, page):
    """The instruction is free text with two names, both of senders; the one whose mail it is goes with "by", "from",
    "sent" or "wants his or her message to be sent"."""
    senders = {item["label"].split()[0] for item in page.items(kind="item")}
    one, other = [name for name in re.findall(r"[\w-]+", goal) if name in senders]
    sender = re.search(rf"(?:by|from) ({one}|{other})|({one}|{other}) (?:sent|wants his)", goal)
    if (sender[1] or sender[2]) == other:
        one, other = other, one
    yield from email(f"Find the email by {one} and forward that email to {other}.", page)


def posts(page):
    """Pairs of (user, items below) of the posts in view."""
    found = []
    for node in page.nodes:
        user = re.search(r"@\S+", node.get("text", ""))
        if user:
            found.append((user.group(), []))
        elif "id" in node and found:
            found[-1][1].append(node)
    return found


def icons(page, user, label):
    """The items of a user's posts whose label begins so."""
    return [item for name, items in posts(page) if name == user for item in items if re.match(label, item["label"])]


def social_media(goal, page):
    user, button = re.search('user (@.+), click on the "(.+)" button', goal).groups()
    icon = button.lower() if button in ("Reply", "Retweet", "Like") else "more"
    while not icons(page, user, icon):
        yield SCROLL
    yield click(icons(page, user, icon)[0])
    if icon == "more":
        while not page.items(re.compile(button)):
            yield SCROLL
        yield click(page.begins(button))


def social_media_some(goal, page):
    button, amount, user = re.search(r'the "(.+)" button on (all|\d+) posts? by (@\S+)', goal).groups()
    left = math.inf if amount == "all" else int(amount)
    while True:
        plain = icons(page, user, f"{button.lower()} at")  # where it has been clicked, its label says active
        if plain and left:
            left -= 1
            yield click(plain[0])
        elif page.items(SUBMIT):
            yield submit(page)
        else:
            yield SCROLL


def dishes(page):
    """Pairs of (texts, the item that orders one more) of the dishes in view."""
    found, texts = [], []
    for node in page.nodes:
        if "text" in node:
            texts.append(node["text"])
        elif node.get("label") == "+":
            found.append((texts, node))
            texts = []
    return found


def order_food(goal, page):
    """All of a kind are of one dish; the page does not mind."""
    kind = re.search(r"Order (\d) items that are (.+)", goal)
    left = [kind[2]] * int(kind[1]) if kind else goal.removeprefix("Order one of each item: ").split(", ")
    while left:
        found = [(w, plus) for texts, plus in dishes(page) for w in left if any(is_dish(t, w, kind) for t in texts)]
        if found:
            left.remove(found[0][0])
        yield click(found[0][1]) if found else SCROLL
    while not page.items("Order!"):
        yield SCROLL
    yield click(page.item("Order!"))


def is_dish(text, wanted, kind):
    return wanted in text.split() if kind else wanted == text


# Of the editor's palette, one ink of each colour.
INKS = {"red": "230, 0, 0", "orange": "255, 153, 0", "yellow": "255, 255, 0", "green": "0, 138, 0"}
INKS |= {"blue": "0, 102, 204", "purple": "153, 51, 255"}
STYLES = {"bold": "ql-bold", "italics": "ql-italic", "underlined": "ql-underline"}


def text_editor(goal, page):
    word = re.search(r"give the text (\S+) the", goal)
    keys = ["Control+a"]
    if word:  # the keys stop at words and at punctuation
        before = page.box()["value"].split(word[1])[0]
        stops, own = (len(re.findall(r"\w+|[^\w\s]", text)) for text in (before, word[1]))
        keys = ["Control+Home", *["Control+ArrowRight"] * stops, *["Control+Shift+ArrowRight"] * own]
    for key in keys:
        yield act("Press", page.box(), key)
    style, colour = re.search(r"the style (\w+)", goal), re.search(r"the color (\w+)", goal)
    if style:
        yield click(page.begins(STYLES[style[1]]))
    else:
        yield click(page.begins("ql-picker-label"))
        yield click(page.begins(f"ql-picker-item ql-primary rgb({INKS[colour[1]]})"))
    yield submit(page)


SOLUTIONS = {
    "ascending-numbers": ascending_numbers,
    "bisect-angle": at_place(bisector),
    "buy-ticket": buy_ticket,
    "choose-date": choose_date,
    "choose-date-easy": choose_date,
    "choose-date-medium": choose_date,
    "choose-date-nodelay": choose_date,
    "choose-list": choose_named,
    "circle-center": at_place(lambda page: circle(page, "black-circle")),
    "click-button": clicks('"(.+)" button', "button"),
    "click-button-sequence": clicks(r"button (\w+), then click button (\w+)"),
    "click-checkboxes": check_named,
    "click-checkboxes-large": check_named,
    "click-checkboxes-transfer": check_named,
    "click-collapsible": click_collapsible,
    "click-collapsible-2": explore("Section #"),
    "click-collapsible-2-nodelay": explore("Section #"),
    "click-collapsible-nodelay": click_collapsible,
    "click-color": clicks(r"the (\w+) colored", label="color {} "),
    "click-dialog": click_dialog,
    "click-dialog-2": click_dialog,
    "click-link": clicks('link "(.+)"'),
    "click-menu": click_menu,
    "click-menu-2": click_menu_2,
    "click-option": clicks("Select (.+) and click", "radio", SUBMIT),
    "click-pie": click_pie,
    "click-pie-nodelay": click_pie,
    "click-scroll-list": choose_named,
    "click-shades": click_shades,
    "click-shape": click_shape,
    "click-tab": clicks(r"on (Tab #\d)"),
    "click-tab-2": explore("Tab #"),
    "click-tab-2-easy": explore("Tab #"),
    "click-tab-2-hard": explore(r"\d$"),
    "click-tab-2-medium": explore("Tab #"),
    "click-test": first("button"),
    "click-test-2": clicks(r"button (\w+)"),
    "click-test-transfer": clicks(r"button (\w+)"),
    "click-widget": click_widget,
    "copy-paste": copy_text,
    "copy-paste-2": copy_text,
    "count-shape": count_shape,
    "daily-calendar": daily_calendar,
    "drag-box": drag_box,
    "drag-circle": drag_shape,
    "drag-items": drag_items,
    "drag-items-grid": drag_items_grid,
    "drag-shapes": drag_shapes,
    "drag-shapes-2": drag_shapes,
    "drag-single-shape": drag_shape,
    "drag-sort-numbers": drag_sort_numbers,
    "draw-circle": draw_circle,
    "draw-line": draw_line,
    "email-inbox": email,
    "email-inbox-delete": email,
    "email-inbox-forward": email,
    "email-inbox-forward-nl": email_forward_nl,
    "email-inbox-important": email,
    "email-inbox-noscroll": email,
    "email-inbox-reply": email,
    "email-inbox-star-reply": email,
    "enter-date": fills(r"Enter (\S+) as", iso_date),
    "enter-password": enter_password,
    "enter-text": fills('"(.+)"'),
    "enter-text-2": enter_text_2,
    "enter-text-dynamic": fills('"(.+)"'),
    "enter-time": fills("Enter (.+) as", clock),
    "find-greatest": find_greatest,
    "find-midpoint": at_place(midpoint),
    "find-word": answers(nth_word),
    "focus-text": first("box"),
    "focus-text-2": click_nth_box,
    "form-sequence": form_sequence,
    "form-sequence-2": form_sequence_2,
    "form-sequence-3": form_sequence_3,
    "generate-number": generate_number,
    "grid-coordinate": clicks(r"coordinate (\(.+\))", label="circle {} "),
    "guess-number": guess_number,
    "highlight-text": highlight,
    "highlight-text-2": highlight,
    "hot-cold": hot_cold,
    "identify-shape": identify_shape,
    "login-user": fills(LOGIN, then="Login"),
    "login-user-popup": login_user_popup,
    "multi-layouts": search_movies,
    "multi-orderings": search_movies,
    "navigate-tree": navigate_tree,
    "odd-or-even": odd_or_even,
    "order-food": order_food,
    "phone-book": phone_book,
    "read-table": answers(read_table),
    "read-table-2": read_table_2,
    "resize-textarea": resize_textarea,
    "right-angle": at_place(right_angle),
    "scroll-text": answers(last_word),
    "scroll-text-2": scroll_text_2,
    "search-engine": search_engine,
    "sign-agreement": sign_agreement,
    "simple-algebra": answers(algebra),
    "simple-arithmetic": answers(arithmetic),
    "social-media": social_media,
    "social-media-all": social_media_some,
    "social-media-some": social_media_some,
    "stock-market": stock_market,
    "text-editor": text_editor,
    "text-transform": answers(captcha),
    "unicode-test": clicks('"(.+)" button', "button"),
    "use-autocomplete": use_autocomplete,
    "use-autocomplete-nodelay": use_autocomplete,
    "use-colorwheel": answers(named_colour),
    "use-colorwheel-2": answers(shown_colour),
    "use-slider": use_sliders,
    "use-slider-2": use_sliders,
    "use-spinner": use_spinner,
    "visual-addition": answers(count_blocks),
}
