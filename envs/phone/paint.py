"""The picture of a screen: its widgets in Pillow, from masks that are drawn once (glyphs.py)."""

import struct
import zlib
from functools import lru_cache

from PIL import Image

from envs.phone import glyphs
from envs.phone.screen import KEYBOARD, NAVIGATION, STATUS, WIDTH

LIGHT = {
    "paper": (255, 255, 255), "card": (241, 244, 249), "ink": (32, 33, 36), "soft": (95, 99, 104),
    "line": (196, 199, 206), "accent": (26, 101, 210), "on accent": (255, 255, 255),
    "off": (155, 160, 166), "track": (218, 222, 230), "keys": (226, 230, 236), "key": (255, 255, 255),
}  # fmt: skip
DARK = {
    "paper": (24, 25, 28), "card": (43, 45, 50), "ink": (232, 234, 237), "soft": (166, 170, 177), "line": (90, 94, 102),
    "accent": (138, 180, 248), "on accent": (20, 32, 54),
    "off": (138, 142, 150), "track": (70, 74, 82), "keys": (34, 36, 40), "key": (62, 65, 72),
}  # fmt: skip
BOTH = {"white": (255, 255, 255), "gold": (226, 150, 0)}
KEYS = {
    "abc": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "ABC": ("QWERTYUIOP", "ASDFGHJKL", "ZXCVBNM"),
    "123": ("1234567890", "@#$%&-+()", "*\"':;!?"),
}
NAVIGATION_KEYS = (("triangle", 4), ("disc", 3), ("square", 187))  # what is painted, and Android's key code


def keys(board, height):
    """The on-screen keyboard: [(box, what it shows, what it does)], a letter or "shift", "delete", "123", "enter"."""
    top, placed = height - NAVIGATION - KEYBOARD + 6, []
    for line, letters in enumerate(KEYS[board]):
        left = (WIDTH - 36 * len(letters)) // 2
        placed += [((left + 36 * i + 2, top + 50 * line, 32, 44), key, key) for i, key in enumerate(letters)]
    placed.append(((2, top + 100, 50, 44), "shift", "shift"))
    placed.append(((308, top + 100, 50, 44), "delete", "delete"))
    low = top + 150
    placed.append(((2, low, 50, 44), "ABC" if board == "123" else "?123", "123"))
    placed += [((56, low, 32, 44), ",", ","), ((92, low, 172, 44), "", " "), ((268, low, 32, 44), ".", ".")]
    return [*placed, ((304, low, 54, 44), "enter", "enter")]


def appearance(window, state):
    """All that a picture depends on: where it is equal, the picture is."""
    toast = state.toast[0] if state.toast[1] > state.now else ""
    around = state.settings, state.time.strftime("%H:%M"), state.keyboard, toast
    return around, _look(window.root), window.behind and _look(window.behind)


def _look(widget):
    parts = [_look(part) for part in widget.parts]
    return (
        widget.kind, widget.box, widget.text, widget.hint, widget.focused, widget.on, widget.value, widget.scroll,
        widget.size, widget.ink, widget.fill, widget.line, widget.radius, widget.align, widget.bold, widget.icon, parts,
    )  # fmt: skip


class Painter:
    """Paints windows at one size of screen."""

    def __init__(self, size):
        self.size, self.scale = size, size[0] / WIDTH
        self.image, self.colours = None, LIGHT

    def paint(self, window, state, height):
        """An RGB picture of a window with the bars around it."""
        self.colours = (DARK if state.settings.dark else LIGHT) | BOTH
        self.image = Image.new("RGB", self.size, self.colours["paper"])
        if window.behind is not None:
            self._tree(window.behind, 0, 0)
            self.image.paste(_shade(self.size), (0, 0), _shade(self.size, 110))
        self._tree(window.root, 0, 0)
        dark_bar = window.root.fill == "wallpaper" and window.behind is None
        self._status(state, "white" if dark_bar or window.behind is not None else "ink")
        if state.toast[1] > state.now:
            self._toast(state, height)
        if state.keyboard:
            self._keyboard(state, height)
        self._navigation(height, dark_bar or window.behind is not None)
        return self.image

    # --- pieces ----------------------------------------------------------------------------------------------------

    def _px(self, value):
        return round(value * self.scale)

    def _colour(self, name):
        return self.colours[name] if isinstance(name, str) else name

    def _box(self, left, top, width, height, colour, radius=0, outline=0):
        x, y = self._px(left), self._px(top)
        size = self._px(left + width) - x, self._px(top + height) - y
        if size[0] <= 0 or size[1] <= 0:
            return
        if radius or outline:
            self.image.paste(self._colour(colour), (x, y), glyphs.rounded(size, self._px(radius), outline * self.scale))
        else:
            self.image.paste(self._colour(colour), (x, y, x + size[0], y + size[1]))

    def _text(self, words, x, middle, size, colour, bold=False, align="left", room=0):
        """One line of text, from `x`, in the middle of `room` or at its end."""
        if not words:
            return
        if align != "left":
            spare = room - glyphs.width(words, size)
            x += spare / 2 if align == "center" else spare
        mask, (left, top) = glyphs.letters(words, max(self._px(size), 4), bold)
        base = self._px(middle + 0.35 * size)
        self.image.paste(self._colour(colour), (self._px(x) + left, base + top), mask)

    def _icon(self, name, left, top, side, size, colour):
        pixels = self._px(size)
        x, y = self._px(left + (side[0] - size) / 2), self._px(top + (side[1] - size) / 2)
        self.image.paste(self._colour(colour), (x, y), glyphs.icon(name, pixels))

    def _tree(self, widget, left, top):
        x, y, width, height = widget.box
        left, top = left + x, top + y
        if widget.fill == "wallpaper":
            self.image.paste(_wallpaper(self.size, self.colours["paper"] == DARK["paper"]))
        elif widget.fill:
            self._box(left, top, width, height, widget.fill, widget.radius)
        if widget.line:
            colour = "accent" if widget.focused else widget.line
            self._box(left, top, width, height, colour, widget.radius, 2 if widget.focused else 1)
        special = getattr(self, f"_draw_{widget.kind}", None)
        if special:
            special(widget, left, top, width, height)
        elif widget.icon:
            self._icon(widget.icon, left, top, (width, height), widget.size, widget.ink)
        elif widget.text:
            self._words(widget, left, top, width, height)
        for part in sorted(widget.parts, key=lambda part: part.kind != "list"):  # a list's rows end under the bars
            self._tree(part, left, top)
        if widget.kind == "list" and widget.scroll and widget.scroll[1]:
            offset, most = widget.scroll
            bar = max(height * height / (height + most), 24)
            self._box(left + width - 4, top + (height - bar) * offset / most, 3, bar, "line", 1)

    def _words(self, widget, left, top, width, height):
        size = widget.size
        if not widget.wrapped:
            pad = 10 if widget.kind == "button" else 0
            words = glyphs.fit(widget.text, size, width - 2 * pad)
            place = left + pad, top + height / 2, size
            self._text(words, *place, widget.ink, widget.bold, widget.align, width - 2 * pad)
            return
        lines = glyphs.wrap(widget.text, size, width)
        first = top + (height - len(lines) * size * 1.4) / 2 + size * 0.7
        for i, words in enumerate(lines):
            place = left, first + i * size * 1.4, size
            self._text(words, *place, widget.ink, widget.bold, widget.align, width)

    # --- widgets with a look of their own ---------------------------------------------------------------------------

    def _draw_field(self, widget, left, top, width, height):
        x, pad = left + 14, 14
        if widget.icon:
            self._icon(widget.icon, left + 8, top, (28, height), 20, "soft")
            x, pad = left + 44, 44
        room = width - pad - (42 if widget.parts else 12)
        if not widget.text:
            self._text(glyphs.fit(widget.hint, 16, room), x, top + min(height, 48) / 2, 16, "soft")
            end, line = x, top + min(height, 48) / 2
        else:
            lines = glyphs.wrap(widget.text, 16, room) if height > 60 else (_part(widget, room),)
            if widget.line:  # the hint stays, small, in the frame
                wide = glyphs.width(widget.hint, 11) + 8
                self._box(left + 10, top - 7, wide, 14, "card" if widget.fill == "card" else "paper")
                self._text(widget.hint, left + 14, top, 11, "accent" if widget.focused else "soft")
            fits = max(int((height - 16) / 22), 1)
            lines = lines[-fits:]
            for i, words in enumerate(lines):
                line = top + (24 if height > 60 else height / 2) + 22 * i
                self._text(words, x, line, 16, "ink")
            end = x + glyphs.width(lines[-1], 16) + 1
        if widget.focused:
            self._box(end, line - 10, 1.6, 20, "accent")

    def _draw_switch(self, widget, left, top, width, height):
        self._box(left, top, width, height, "accent" if widget.on else "track", height / 2)
        if not widget.on:
            self._box(left, top, width, height, "off", height / 2, 1.5)
        side = height - 8
        x = left + width - side - 4 if widget.on else left + 4
        self._box(x, top + 4, side, side, "on accent" if widget.on else "off", side / 2)

    def _draw_check(self, widget, left, top, width, height):
        if widget.on:
            self._box(left + 2, top + 2, width - 4, height - 4, "accent", 4)
            self._icon("check", left, top, (width, height), 14, "on accent")
        else:
            self._box(left + 2, top + 2, width - 4, height - 4, "soft", 4, 2)

    def _draw_radio(self, widget, left, top, width, height):
        self._box(left + 2, top + 2, width - 4, height - 4, "accent" if widget.on else "soft", width, 2)
        if widget.on:
            self._box(left + 7, top + 7, width - 14, height - 14, "accent", width)

    def _draw_slider(self, widget, left, top, width, height):
        inner, middle = width - 24, top + height / 2
        done = inner * widget.value / 100
        self._box(left + 12, middle - 3, inner, 6, "track", 3)
        self._box(left + 12, middle - 3, max(done, 1), 6, "accent", 3)
        self._box(left + 12 + done - 9, middle - 9, 18, 18, "accent", 9)

    def _draw_progress(self, widget, left, top, width, height):
        self._box(left, top, width, height, "track", height / 2)
        self._box(left, top, max(width * widget.value / 100, height), height, "accent", height / 2)

    def _draw_dial(self, widget, left, top, width, height):
        self._box(left, top, width, height, "track", width / 2)

    def _draw_hand(self, widget, left, top, width, height):
        """The hand of a clock's face: from the middle to the `value`-th of sixty places."""
        x, y = glyphs.polar(widget.value, 60, width / 2 - 22)
        for step in range(40):
            self._box(left + width / 2 + x * step / 40 - 1, top + height / 2 + y * step / 40 - 1, 2, 2, "accent")
        self._box(left + width / 2 + x - 18, top + height / 2 + y - 18, 36, 36, "accent", 18)
        self._box(left + width / 2 - 4, top + height / 2 - 4, 8, 8, "accent", 4)

    # --- around the app ---------------------------------------------------------------------------------------------

    def _status(self, state, ink):
        settings = state.settings
        words = state.time.strftime("%H:%M") if settings.whole_day else state.time.strftime("%I:%M").lstrip("0")
        self._text(words, 14, STATUS / 2, 13, ink, bold=True)
        shown = ["battery_level"]
        shown += ["plane"] if settings.airplane else ["signal"] if settings.data else []
        shown += [name for name, on in (("wifi", settings.wifi), ("bluetooth", settings.bluetooth)) if on]
        shown += ["place"] if settings.location else []
        for i, name in enumerate(shown):
            self._icon(name, WIDTH - 28 - 18 * i, 0, (16, STATUS), 13, ink)

    def _navigation(self, height, on_wallpaper):
        top = height - NAVIGATION
        if not on_wallpaper:
            self._box(0, top, WIDTH, NAVIGATION, "paper")
        for i, (name, _) in enumerate(NAVIGATION_KEYS):
            ink = "white" if on_wallpaper else "soft"
            self._icon(name, WIDTH * i / 3, top, (WIDTH / 3, NAVIGATION), 20, ink)

    def _toast(self, state, height):
        words = glyphs.fit(state.toast[0], 14, 280)
        wide = glyphs.width(words, 14) + 36
        top = height - NAVIGATION - 124 - (KEYBOARD if state.keyboard else 0)
        self._box((WIDTH - wide) / 2, top, wide, 38, (50, 52, 56), 19)
        self._text(words, (WIDTH - wide) / 2 + 18, top + 19, 14, "white")

    def _keyboard(self, state, height):
        dark = self.colours["paper"] == DARK["paper"]
        board = _keyboard(state.keyboard, self.size, height, dark)
        self.image.paste(board, (0, self._px(height - NAVIGATION - KEYBOARD)))

    def keyboard_picture(self, board, height, dark):
        self.colours = (DARK if dark else LIGHT) | BOTH
        self.image = Image.new("RGB", self.size, self.colours["keys"])
        for box, shown, _ in keys(board, height):
            strong = shown == "enter"
            wide = shown in ("shift", "delete", "?123", "ABC")
            self._box(*box, "accent" if strong else "track" if wide else "key", 16 if strong else 6)
            icon = {"enter": "check", "shift": "up", "delete": "erase"}.get(shown)
            left, top, width, high = box
            if icon:
                self._icon(icon, left, top, (width, high), 20, "on accent" if strong else "ink")
            else:
                small = 14 if len(shown) > 1 else 19
                self._text(shown, left, top + high / 2, small, "ink", align="center", room=width)
        top, end = self._px(height - NAVIGATION - KEYBOARD), self._px(height - NAVIGATION)
        return self.image.crop((0, top, self.size[0], end))


def png(image):
    """A picture as a PNG file: without filters and at zlib's first level it takes a third of Pillow's time, and flat
    pictures of screens get smaller."""
    (width, height), raw = image.size, image.convert("RGB").tobytes()
    rows = b"".join(b"\0" + raw[start : start + 3 * width] for start in range(0, len(raw), 3 * width))
    chunks = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows, 1))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    )


def _part(field, room):
    """What a field of one line shows: its end while it is typed into, else its beginning."""
    words = field.text
    if not field.focused:
        return glyphs.fit(words, 16, room)
    while words and glyphs.width(words, 16) > room:
        words = words[1:]
    return words


@lru_cache(16)
def _keyboard(board, size, height, dark):
    return Painter(size).keyboard_picture(board, height, dark)


@lru_cache(4)
def _shade(size, strength=None):
    return Image.new("RGB", size, (0, 0, 0)) if strength is None else Image.new("L", size, strength)


@lru_cache(4)
def _wallpaper(size, dark):
    """Soft hills under an evening sky."""
    high, wide = (18, 28, 58) if dark else (44, 94, 168), (70, 44, 92) if dark else (236, 170, 150)
    column = Image.new("RGB", (1, 64))
    for y in range(64):
        column.putpixel((0, y), tuple(round(a + (b - a) * y / 63) for a, b in zip(high, wide)))
    image = column.resize(size, Image.Resampling.BICUBIC)
    hills = ((0.25, 0.30, (58, 74, 120), 0.62), (0.75, 0.42, (44, 56, 96), 0.72), (0.3, 0.6, (30, 40, 72), 0.84))
    for middle, half, colour, top in hills:
        box = round(2 * half * size[0] * 1.6), round(size[1] * 0.9)
        mask = glyphs.rounded(box, max(box))
        place = round(middle * size[0] - box[0] / 2), round(top * size[1])
        shade = tuple(channel // 2 for channel in colour) if dark else colour
        image.paste(shade, place, mask)
    return image
