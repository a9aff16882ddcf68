"""The smallest phone that the tests of adb and the driver need: a list of what was done to it, shown as a colour."""

from dataclasses import dataclass, replace
from xml.sax.saxutils import quoteattr

from PIL import Image

PACKAGES = ["com.example.home", "com.example.notes", "com.example.shop"]
ACTIVITIES = dict(zip(PACKAGES, [".Home", ".Notes", ".Shop"]))


@dataclass(frozen=True)
class State:
    app: str = PACKAGES[0]
    text: str = ""
    done: tuple = ()
    now: float = 0.0


class LittlePhone:
    """envs/phone/device.py's interface. Every input is noted in `state.done`."""

    def __init__(self, size=(360, 640)):
        self.size, self.state, self.packages, self.delay = size, State(), list(PACKAGES), 0.0

    def _note(self, *what):
        self.state = replace(self.state, done=(*self.state.done, what))

    def tap(self, x, y):
        self._note("tap", x, y)

    def double_tap(self, x, y):
        self._note("double tap", x, y)

    def long_press(self, x, y, seconds):
        self._note("long press", x, y, seconds)

    def swipe(self, x0, y0, x1, y1, seconds):
        self._note("swipe", x0, y0, x1, y1, seconds)

    def text(self, string):
        self.state = replace(self.state, text=self.state.text + string)

    def key(self, code):
        if code == 3:
            self.state = replace(self.state, app=PACKAGES[0])
        if code in (61, 66):
            self.text("\t" if code == 61 else "\n")
        self._note("key", code)

    def start(self, package):
        if package in self.packages:
            self.state = replace(self.state, app=package)
        return package in self.packages

    def stop(self, package):
        self._note("stop", package)
        if package == self.state.app:
            self.state = replace(self.state, app=PACKAGES[0])

    def clear(self, package):
        self.stop(package)
        self.state = replace(self.state, text="")

    def foreground(self):
        return self.state.app, self.state.app + ACTIVITIES.get(self.state.app, ".Main")

    def screenshot(self):
        shade = len(self.state.done) * 10 % 256
        return Image.new("RGB", self.size, (shade, 255 - shade, 128))

    def hierarchy(self):
        width, height = self.size
        common = f'package="{self.state.app}" enabled="true" bounds='
        frame = f'class="android.widget.FrameLayout" {common}"[0,0][{width},{height}]"'
        return (
            "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?><hierarchy rotation=\"0\">"
            f'<node index="0" text="" resource-id="" {frame}>'
            f'<node index="0" text={quoteattr(self.state.text)} resource-id="{self.state.app}:id/box" focused="true" '
            f'class="android.widget.EditText" clickable="true" {common}"[10,20][350,60]" />'
            f'<node index="1" text="" content-desc="Taps {len(self.state.done)}" resource-id="" checkable="true" '
            f'class="android.widget.Switch" checked="false" long-clickable="true" {common}"[10,80][350,120]" />'
            "</node></hierarchy>"
        )

    def advance(self, seconds):
        self.state = replace(self.state, now=self.state.now + seconds)
