"""Pictures of pages: sizes, formats, marks, coordinates."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from common import screen
from common.actions import parse


def picture(size=(96, 64), colour=(255, 255, 255)):
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_size_and_format(format):
    image = Image.open(io.BytesIO(screen.encode(picture(), (48, 32), format)))
    assert (image.format, image.size) == (format, (48, 32))


def test_smaller_pictures_are_means_of_areas():
    image = Image.new("RGB", (4, 4), "white")
    for x, y in ((0, 0), (1, 1), (2, 3)):
        image.putpixel((x, y), (0, 0, 0))
    out = io.BytesIO()
    image.save(out, "PNG")
    small = screen.load(screen.encode(out.getvalue(), (2, 2)))
    values = [small.getpixel((x, y))[0] for y in range(2) for x in range(2)]
    assert values == pytest.approx([127.5, 255, 255, 191.25], abs=1)
    same = screen.load(screen.encode(out.getvalue()))
    assert list(same.tobytes()) == list(image.tobytes())


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match="no picture"):
        screen.encode(b"GIF")
    with pytest.raises(ValueError, match="neither PNG nor JPEG"):
        screen.encode(picture(), format="GIF")


def test_marks_stand_on_their_boxes():
    nodes = [
        {"id": 1, "box": [10, 20, 30, 20]},
        {"text": "no mark", "box": [60, 30, 20, 20]},
        {"id": 2, "box": [80, -4, 40, 20]},  # cut off
    ]
    marked = screen.load(screen.mark(picture(), nodes))
    white = (255, 255, 255)
    assert marked.size == (96, 64)
    assert marked.getpixel((40, 35)) == (0, 71, 171) and marked.getpixel((25, 30)) == white  # frame, inside
    assert all(marked.getpixel((x, y)) == white for x in range(60, 79) for y in range(30, 50))
    assert marked.getpixel((81, 1)) == (0, 112, 60)  # the number of the cut one is inside


@given(
    st.floats(-100, 2000),
    st.floats(-100, 2000),
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
)
def test_places_are_inside(x, y, size):
    for place, length in zip(screen.to_pixels(x, y, size), size, strict=True):
        assert 0 <= place < length


@given(st.data())
def test_places_come_back(data):
    size = data.draw(st.tuples(st.integers(1, 1000), st.integers(1, 1000)))
    pixel = tuple(data.draw(st.integers(0, length - 1)) for length in size)
    assert screen.to_pixels(*screen.to_normal(*pixel, size), size) == pixel


def test_points_of_an_action():
    boxes = {"5": (10, 20, 40, 8), "6": (0, 0, 2, 2)}
    for call, places in {
        'do(action="Click", element="5")': [(30, 24)],
        'do(action="Click", argument="12,40")': [(12, 40)],
        'do(action="Type", argument="12,40", element="5")': [(30, 24)],  # what is typed is no place
        'do(action="Type", argument="12,40", element="7,9")': [(7, 9)],
        'do(action="Drag", argument="1,2,3,4,5,6")': [(1, 2), (3, 4), (5, 6)],
        'do(action="Drag", argument="5", element="6")': [(1, 1), (30, 24)],
        'do(action="Drag", argument="5,6", element="6")': [(1, 1), (5, 6)],
        'do(action="Click", element="7")': [],
        'do(action="Press", argument="Enter")': [],
        'do(action="Scroll Down")': [],
    }.items():
        assert [tuple(place) for place in screen.points(parse(call), boxes)] == places, call
