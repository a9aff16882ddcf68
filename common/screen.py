"""Screenshots for agents that see: smaller pictures, numbered elements, coordinates that no size changes.

Models name places by whole numbers from 0 to 1000, left to right and top to bottom, whatever size they see a page in.
"""

import base64
import io
import re
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from common.actions import POINTED, POINTS, Action

NORMAL = 1000
MARKS = "#d6001c", "#0047ab", "#00703c", "#7b2d8e", "#b35900", "#00677a"  # readable under white digits


def encode(picture: bytes, size: tuple[int, int] | None = None, format: str = "PNG", quality: int = 85) -> bytes:
    """A picture (bytes of an image file) as a file of that format, "PNG" or "JPEG", in `size` (width, height) pixels.

    Smaller sizes are averages over the area of a pixel, so that nothing thin gets lost. Raises ValueError for another
    format and for bytes that are no picture.
    """
    if format not in ("PNG", "JPEG"):
        raise ValueError(f"format {format!r} is neither PNG nor JPEG")
    image = load(picture)
    if size is not None and image.size != tuple(size):
        image = image.resize(size, Image.Resampling.BOX if size[0] < image.width else Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, format, **({"quality": quality} if format == "JPEG" else {"compress_level": 1}))
    return out.getvalue()


def message_part(picture: bytes) -> dict:
    """The picture, a PNG or JPEG file's bytes, as a part of a chat message for OpenAI-compatible servers."""
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"}}


def load(picture: bytes) -> Image.Image:
    """The RGB image of a file's bytes. Raises ValueError where they are no picture."""
    try:
        return Image.open(io.BytesIO(picture)).convert("RGB")
    except OSError as error:
        raise ValueError(f"no picture: {error}") from None


def mark(picture: bytes, nodes: list[dict]) -> bytes:
    """The picture, as PNG, with a box and a number on everything that can be acted on (a set of marks).

    `nodes` are page.js's: `id` and `box` (left, top, width, height in pixels of the picture). A number stands on its
    box's upper left corner, or inside the picture where that would be cut off.
    """
    image = load(picture)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(max(10, image.height // 45))
    boxes = [(node["id"], node["box"]) for node in nodes if node.get("id")]
    for id, (left, top, width, height) in boxes:
        draw.rectangle((left, top, left + width, top + height), outline=MARKS[int(id) % len(MARKS)], width=1)
    for id, (left, top, _, _) in boxes:  # over all boxes
        x0, y0, x1, y1 = draw.textbbox((0, 0), str(id), font=font)
        wide, high = x1 - x0 + 4, y1 - y0 + 4
        x = min(max(left, 0), image.width - wide)
        y = min(max(top - high + 1, 0), image.height - high)
        draw.rectangle((x, y, x + wide, y + high), fill=MARKS[int(id) % len(MARKS)], outline="white")
        draw.text((x + 2 - x0, y + 2 - y0), str(id), fill="white", font=font)
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def points(action: Action, boxes: dict[str, Sequence[float]]) -> list[tuple[float, float]]:
    """The pixels that an action names, in order: the middles of its elements' boxes and points, "x,y"; none for what
    points nowhere. `boxes` is that of the observation."""
    names, found = [action.element], []
    if action.name == "Drag" or (action.name in POINTED and action.element is None):
        names.append(action.argument)
    for name in names:
        if name in boxes:
            left, top, width, height = boxes[name]
            found.append((left + width / 2, top + height / 2))
        elif re.fullmatch(POINTS, name or ""):
            numbers = [int(number) for number in name.split(",")]
            found += zip(numbers[::2], numbers[1::2], strict=False)
    return found


def to_pixels(x: float, y: float, size: tuple[int, int]) -> tuple[int, int]:
    """The pixel of a normalised place in a picture of `size` (width, height): inside, whatever x and y are."""
    return tuple(
        min(max(round(place / NORMAL * length), 0), length - 1) for place, length in zip((x, y), size, strict=True)
    )


def to_normal(x: float, y: float, size: tuple[int, int]) -> tuple[int, int]:
    """The normalised place of a pixel, from 0 to 1000."""
    return tuple(round(place / length * NORMAL) for place, length in zip((x, y), size, strict=True))
