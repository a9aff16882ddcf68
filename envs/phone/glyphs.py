"""Shapes and letters of the simulated phone: masks that are drawn once and pasted in any colour.

Everything is an "L" mask in a cache, because drawing letters and smooth edges is what costs time in Pillow. The font is
the one inside Pillow, so a picture is the same on every machine. Text is measured at scale 1, whatever the screen's
size: a line breaks at the same word on all of them.
"""

import math
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

SMOOTH = 4  # shapes are drawn this much larger
GRID = 24  # icons are drawn on 24 x 24


@lru_cache(64)
def font(pixels):
    return ImageFont.load_default(pixels)


@lru_cache(8192)
def width(text, size):
    """The width of a line of text, in units of the layout."""
    return font(size).getlength(text)


@lru_cache(4096)
def wrap(text, size, room):
    """The lines that a text takes in a column `room` wide."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if line and width(longer, size) > room:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return tuple(lines)


@lru_cache(4096)
def fit(text, size, room):
    """The text, or as much of its beginning as there is room for."""
    if width(text, size) <= room:
        return text
    while text and width(text + "...", size) > room:
        text = text[:-1]
    return text.rstrip() + "..."


@lru_cache(4096)
def letters(text, pixels, bold):
    """(mask, its offset from the pen's place on the base line)."""
    face, stroke = font(pixels), pixels / 45 if bold else 0
    left, top, right, bottom = (int(edge) for edge in face.getbbox(text, anchor="ls"))
    mask = Image.new("L", (max(right - left, 0) + 4, max(bottom - top, 0) + 4), 0)
    ImageDraw.Draw(mask).text((2 - left, 2 - top), text, fill=255, font=face, anchor="ls", stroke_width=stroke)
    return mask, (left - 2, top - 2)


@lru_cache(1024)
def rounded(size, radius, outline=0):
    """A box with round corners, filled or `outline` pixels thick."""
    wide, high = size
    radius = min(radius, wide / 2, high / 2)
    mask = Image.new("L", (wide * SMOOTH, high * SMOOTH), 0)
    box, line = (0, 0, wide * SMOOTH - 1, high * SMOOTH - 1), {"fill": 255}
    if outline:
        line = {"outline": 255, "width": max(round(outline * SMOOTH), 1)}
    ImageDraw.Draw(mask).rounded_rectangle(box, radius * SMOOTH, **line)
    return mask.reduce(SMOOTH)


# Strokes of the icons: line points.. | disc x y r | ring x y r | box x0 y0 x1 y1 r | frame x0 y0 x1 y1 r |
# poly points.. | arc x y r from to (degrees, clockwise from the right); a minus before the name erases.
ICONS = {
    "back": "line 20 12 5 12; line 11 5 4 12 11 19",
    "search": "ring 10.5 10.5 6; line 15 15 21 21",
    "plus": "line 12 4 12 20; line 4 12 20 12",
    "minus": "line 4 12 20 12",
    "more": "disc 12 5 2; disc 12 12 2; disc 12 19 2",
    "menu": "line 4 6 20 6; line 4 12 20 12; line 4 18 20 18",
    "close": "line 5 5 19 19; line 19 5 5 19",
    "check": "line 4 12 10 18 20 6",
    "trash": "line 4 6 20 6; line 9 3 15 3; poly 6 8 18 8 17 21 7 21; -line 10 11 10 18; -line 14 11 14 18",
    "edit": "poly 4 20 4 16 15 5 19 9 8 20; line 17 3 21 7",
    "star": "poly 12 2 15 9 22 9.5 16.5 14 18.5 21 12 17 5.5 21 7.5 14 2 9.5 9 9; "
    "-poly 12 7 13.7 11 17.5 11.3 14.4 13.8 15.6 17.6 12 15.3 8.4 17.6 9.6 13.8 6.5 11.3 10.3 11",
    "star_full": "poly 12 2 15 9 22 9.5 16.5 14 18.5 21 12 17 5.5 21 7.5 14 2 9.5 9 9",
    "wifi": "arc 12 19 16 225 315; arc 12 19 10 225 315; disc 12 18.5 2.6",
    "bluetooth": "line 6 7 18 17 12 22 12 2 18 7 6 17",
    "plane": "poly 11 2 13 2 13.5 9 22 14 22 16 13.5 13.5 13.2 18.5 16 20.5 16 22 12 21 8 22 8 20.5 10.8 18.5 "
    "10.5 13.5 2 16 2 14 10.5 9",
    "moon": "disc 12 12 9; -disc 16 9 7.5",
    "place": "disc 12 9 7; poly 5.6 12 18.4 12 12 22; -disc 12 9 3",
    "bell": "disc 12 9 6; box 6 9 18 16 0; poly 6 14 18 14 21 18 3 18; disc 12 20.5 2",
    "sound": "poly 3 9 8 9 14 4 14 20 8 15 3 15; arc 13 12 5 300 60; arc 13 12 9 300 60",
    "sun": "disc 12 12 4.5; line 12 1.5 12 4; line 12 20 12 22.5; line 1.5 12 4 12; line 20 12 22.5 12; "
    "line 4.6 4.6 6.3 6.3; line 17.7 17.7 19.4 19.4; line 4.6 19.4 6.3 17.7; line 17.7 6.3 19.4 4.6",
    "battery": "frame 7 4 17 22 2; box 10 2 14 4 0; box 9 11 15 20 1",
    "gear": "disc 12 12 7; line 12 2 12 22; line 2 12 22 12; line 5 5 19 19; line 19 5 5 19; -disc 12 12 3.2",
    "person": "disc 12 8 4.5; disc 12 21 8; -box 0 21.5 24 24 0",
    "message": "box 2 3 22 17 3; poly 5 15 12 15 5 22; -line 7 8 17 8; -line 7 12 14 12",
    "clock": "ring 12 12 9; line 12 6 12 12 16 14",
    "alarm": "ring 12 13 8; line 12 9 12 13 15 15; line 3 6 7 3; line 21 6 17 3",
    "timer": "poly 5 2 19 2 12 12; poly 5 22 19 22 12 12",
    "stopwatch": "ring 12 14 8; line 12 14 12 9; line 9 2 15 2; line 12 2 12 6; line 18 6 20 8",
    "globe": "ring 12 12 9; line 3 12 21 12; line 12 3 12 21; arc 4 12 11 305 55; arc 20 12 11 125 235",
    "note": "box 4 2 20 22 2; -line 8 7 16 7; -line 8 12 16 12; -line 8 17 13 17",
    "calendar": "box 3 4 21 21 2; box 7 2 9 6 0; box 15 2 17 6 0; -box 5 10 19 19 0; box 8 12.5 11 15.5 0",
    "folder": "box 2 6 22 20 2; box 2 4 11 10 2",
    "file": "poly 5 2 14 2 19 7 19 22 5 22; -poly 14 2.5 18.5 7 14 7",
    "image": "frame 3 4 21 20 2; poly 5 18 10 11 13 15 15.5 12 19 18; disc 15.5 8.5 1.7",
    "music": "disc 7 18 3.5; disc 17 16 3.5; line 9.5 18 9.5 5 19.5 3 19.5 16",
    "film": "box 3 5 21 19 2; -poly 10 8.5 16 12 10 15.5",
    "cart": "line 2 4 5 4 8 15 18 15 20.5 7 6 7; disc 9 19.5 2; disc 17 19.5 2",
    "bag": "box 4 8 20 21 2; arc 12 8 4.5 180 360",
    "store": "poly 6 3 20 12 6 21",
    "download": "line 12 3 12 15; line 6 10 12 16 18 10; line 4 20.5 20 20.5",
    "phone": "poly 3 3 8 3 10 9 7.5 11 13 16.5 15 14 21 16 21 21 16 21 8 16 3 8",
    "home": "poly 12 2 22 11 19 11 19 21 5 21 5 11 2 11; -box 10 14 14 21 0",
    "info": "ring 12 12 9; line 12 11 12 17; disc 12 7.5 1.4",
    "next": "line 9 5 16 12 9 19",
    "previous": "line 15 5 8 12 15 19",
    "up": "poly 12 3 21 12 16 12 16 20 8 20 8 12 3 12",
    "erase": "poly 8 5 22 5 22 19 8 19 2 12; -line 11 9 17 15; -line 17 9 11 15",
    "down": "line 5 9 12 16 19 9",
    "send": "poly 3 3 22 12 3 21 5 13.5 14 12 5 10.5",
    "play": "poly 7 4 20 12 7 20",
    "flag": "line 6 3 6 22; poly 7 4 20 4 17 8.5 20 13 7 13",
    "reset": "arc 12 12 8 300 220; poly 20 2 20 10 13 8",
    "mail": "box 2 5 22 19 2; -line 3 7 12 14 21 7",
    "apps": "disc 5 5 2; disc 12 5 2; disc 19 5 2; disc 5 12 2; disc 12 12 2; disc 19 12 2; disc 5 19 2; disc 12 19 2;"
    "disc 19 19 2",
    "pin": "box 8 2 16 4 0; box 9 4 15 12 0; box 6 12 18 14 0; line 12 14 12 22",
    "sort": "line 3 6 21 6; line 6 12 18 12; line 10 18 14 18",
    "move": "line 3 12 19 12; line 13 6 19 12 13 18",
    "tabs": "frame 4 4 20 20 3",
    "mask": "box 3 10 21 12 0; poly 7 10 9 3 15 3 17 10; ring 7 17 3; ring 17 17 3; line 10 17 14 17",
    "battery_level": "box 7 4 17 22 1; box 10 2 14 4 0",
    "signal": "poly 3 21 21 21 21 3",
    "square": "box 6 6 18 18 2",
    "disc": "disc 12 12 7",
    "triangle": "poly 18 4 18 20 5 12",
    "ring": "ring 12 12 7",
    "diamond": "poly 12 3 21 12 12 21 3 12",
    "drop": "disc 12 15 7; poly 5.6 12.5 18.4 12.5 12 2",
    "leaf": "poly 4 20 4 12 12 4 20 4 20 12 12 20; -line 7 17 16 8",
    "bolt": "poly 13 2 5 14 11 14 10 22 19 9 12.5 9",
    "heart": "disc 8 9 5; disc 16 9 5; poly 3.6 11.5 20.4 11.5 12 21",
    "cloud": "disc 8 14 5; disc 14 11 6; disc 18 15 4; box 8 14 18 19 2",
    "truck": "box 1 6 14 17 1; poly 15 9 19 9 23 13 23 17 15 17; disc 6 18.5 2.5; disc 18 18.5 2.5",
}


@lru_cache(512)
def icon(name, pixels):
    """An icon's mask, `pixels` wide and high."""
    scale = SMOOTH * pixels / GRID
    mask = Image.new("L", (SMOOTH * pixels, SMOOTH * pixels), 0)
    draw = ImageDraw.Draw(mask)
    for stroke in ICONS[name].split(";"):
        what, *numbers = stroke.split()
        ink, what = 0 if what.startswith("-") else 255, what.removeprefix("-")
        _stroke(draw, what, [float(number) * scale for number in numbers], [float(n) for n in numbers], ink, scale)
    return mask.reduce(SMOOTH)


def _stroke(draw, what, at, plain, ink, scale):
    """`at`: the numbers in pixels; `plain`: as they are written, for angles."""
    thick = round(2 * scale)
    if what == "line":
        points = list(zip(at[::2], at[1::2]))
        draw.line(points, fill=ink, width=thick, joint="curve")
        for x, y in (points[0], points[-1]):  # round ends
            draw.ellipse((x - scale, y - scale, x + scale, y + scale), fill=ink)
    elif what == "poly":
        draw.polygon(list(zip(at[::2], at[1::2])), fill=ink)
    elif what in ("box", "frame"):
        style = {"fill": ink} if what == "box" else {"outline": ink, "width": thick}
        draw.rounded_rectangle(tuple(at[:4]), at[4], **style)
    else:
        x, y, r = at[:3]
        box = (x - r, y - r, x + r, y + r)
        if what == "disc":
            draw.ellipse(box, fill=ink)
        elif what == "ring":
            draw.ellipse(box, outline=ink, width=thick)
        else:
            draw.arc(box, plain[3], plain[4], fill=ink, width=thick)


def polar(number, of, radius):
    """Where the `number`-th of `of` places on a clock's face lies, from its middle."""
    angle = 2 * math.pi * number / of - math.pi / 2
    return radius * math.cos(angle), radius * math.sin(angle)
