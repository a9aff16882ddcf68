"""The web browser: one Chromium, driven by Playwright's async API, and an isolated session per episode slot.

    browser = await Browser.start()
    session = await browser.session()
    observation = await session.reset("http://127.0.0.1:8000/shop", cookies={"episode": "7"})
    observation = await session.act(parse('do(action="Click", element="3")'))

A step is one round trip: page.js does the action inside the page, settle.js waits until nothing more happens by itself
(navigations, requests of scripts, timers), and what can be seen comes back. A navigation destroys the document and with
it the pending call; the driver then asks the next document, so no observation shows a page that is on its way out.

An action the page refuses is an observation with `error`. EnvFault means that the world broke: Chromium died, the page
or its server did not answer within `timeout` seconds, the connection was refused, the page is a 5xx. The session's
context is then thrown away; the next reset() starts afresh, and Chromium with it where it is gone.

Dialogs are answered at once, as by a user who wants what he clicked: alert, confirm and beforeunload are accepted, a
prompt gets its default text. New tabs are followed. Downloads are refused, uploads are of the task's own files. The
agent cannot leave the task's sites.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from playwright.async_api import Download, async_playwright
from playwright.async_api import Error as PlaywrightError

from common.actions import CLICKS, POINT, Action
from common.errors import Blocked, EnvFault, EnvHang, UsageError
from common.reply import plain, read_reply

VIEWPORT = 1280, 720  # width, height
WAIT = 1.0  # seconds of a Wait that says no number, on the real clock; TICK on the virtual one
MOST_WAIT = 60.0  # seconds
KEYED = 100  # characters of a line that are typed one by one; of a longer one the last, after all others at once
MOST_KEYED = 2000  # the same where a box takes nothing but keys: two milliseconds for each
TICK = 500  # virtual ms that pass with an action (real clock: timers set for less are waited for)
DRAG_STEPS = 8  # moves of the mouse from one point to the next
START = 60  # seconds for a new context, which sixteen sessions may ask for at once on a busy machine
# Headless shell first: a page costs it half of the CPU time and a third of the memory that full Chromium needs.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_CHROMIUM = "no Chromium found: run `playwright install --with-deps chromium`, or set CHROMIUM to a browser's path"
# Without RenderDocument (a new frame host for each navigation) a page load costs 38 ms of CPU time instead of 52.
# Chromium obeys the last --disable-features it is given, so those of Playwright's own that matter are repeated.
FEATURES = (
    "RenderDocument PaintHolding AvoidUnnecessaryBeforeUnloadCheckSync DestroyProfileOnBrowserClose HttpsUpgrades"
)
FEATURES += " HttpsFirstBalancedModeAutoEnable LensOverlay MediaRouter ThirdPartyStoragePartitioning OptimizationHints"
FLAGS = [
    "--disable-features=" + FEATURES.replace(" ", ","),
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
]
# Compositing on the page's own thread: a step costs 37 ms of CPU time instead of 46, but there are no screenshots then,
# and true input waits for frames (57 ms a step instead of 6 to 11).
BLIND = "--disable-threaded-compositing"
# Frames are drawn when a picture or true input asks for them, not at the next sixtieth of a second. Not on the true
# clock, where a page that is always in motion would be drawn without end.
UNPACED = ["--disable-frame-rate-limit", "--disable-gpu-vsync"]
ASKS = "a file is asked for: the action Upload File gives one"
# What page.js does by itself, if true input is not asked for.
IN_PAGE = (*CLICKS, "Type", "Search", "Select Dropdown Option", "Scroll Up", "Scroll Down", "Wait")
KEYS = "Enter Escape Tab Backspace Delete Insert Home End PageUp PageDown ArrowUp ArrowDown ArrowLeft ArrowRight"
KEYS = {key.lower(): key for key in f"{KEYS} Control Shift Alt Meta Space".split()}
KEYS |= {"ctrl": "Control", "cmd": "Meta", "return": "Enter", "esc": "Escape", "del": "Delete", "": "Space"}


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text().strip()


@dataclass
class Observation:
    """What can be seen of the focused tab. `nodes` is page.js's list; `above` and `below` count lines out of view."""

    url: str
    title: str
    nodes: list[dict] = field(default_factory=list)
    above: int = 0
    below: int = 0
    tabs: tuple[int, int] = (1, 1)  # the focused one, counted from 1, and how many there are
    error: str = ""  # why the last action failed, or what was refused
    dialog: str = ""  # the text of dialogs that were shown and answered
    report: dict | None = None  # what an environment's own script says of the page


class Browser:
    """One Chromium process, shared by all sessions; restarted by the first reset() that finds it gone."""

    def __init__(self, headed, real_input, virtual_clock, timeout, screenshots, script, viewport, paced, embedded):
        self.headed, self.real_input, self.timeout, self.embedded = headed, real_input, timeout, embedded
        self.viewport = {"width": viewport[0], "height": viewport[1]}
        self.screenshots, self.virtual_clock, self.paced = screenshots or headed, virtual_clock, paced
        config = {"virtualClock": virtual_clock, "tick": TICK, "settle": 500 * timeout, "embedded": embedded}
        self.script = f"({_script('settle.js')})({json.dumps(config)});\n({_script('page.js')})();"
        self.script += f"\n({script})();" if script else ""
        self._lock = asyncio.Lock()
        self._playwright = self._chromium = self._cdp = None
        self.guests: dict[str, Session] = {}  # a Playwright context's id in Chromium -> whose it is

    @classmethod
    async def start(
        cls,
        headed: bool = False,
        real_input: bool = False,
        virtual_clock: bool = True,
        timeout: float = 30.0,
        screenshots: bool = True,
        script: str = "",
        viewport: tuple[int, int] = VIEWPORT,
        paced: bool = False,
        embedded: bool = False,
    ) -> "Browser":
        """Start Chromium; raises UsageError if there is none or it does not start.

        real_input: trusted mouse and keyboard events instead of events made in the page. Scrolling and the choice of an
            option are made in the page all the same: a wheel scrolls smoothly, a native list is no part of the page.
        virtual_clock: the page's time moves with actions alone, so nothing waits for a timer. It begins at the true
            date and goes on from one document to the next. Turn it off for sites that load themselves with timers.
        timeout: seconds after which a page that does not answer is an EnvHang. Half of it is what requests of a page's
            scripts and its images are waited for at most, once: then the page is shown as it is.
        screenshots: whether they can be taken; a step is cheaper without.
        script: a JavaScript function that an environment adds to page.js, which says what it may define.
        viewport: width and height of what is seen of a page, in CSS pixels.
        paced: draw at most 60 frames a second on the virtual clock, too. A picture is there up to a sixtieth of a
            second later, and costs less CPU time: for many sessions at once on a machine that is busy.
        embedded: the pages are our own and need no frames: none is drawn unless screenshots or true input are wanted,
            none is waited for, and on the virtual clock every document begins at the same moment of 2025, so that the
            same actions give the same page. Other sites get two frames after an action: feeds that grow, pictures that
            load when they come into view, ends of transitions depend on them.
        """
        browser = cls(headed, real_input, virtual_clock, timeout, screenshots, script, viewport, paced, embedded)
        await browser.connect()
        return browser

    async def session(self) -> "Session":
        return Session(self)

    async def connect(self, lost=None):
        """Playwright's Browser, launched again if it is gone, or is the one that was found to be `lost`."""
        async with self._lock:
            if self._chromium is None:
                await self._launch()
            elif self._chromium is lost or not self._chromium.is_connected():
                await self.close()
                try:
                    await self._launch()
                except UsageError as error:  # it did start before
                    raise EnvFault(str(error)) from None
            return self._chromium

    async def _launch(self):
        programs = PROGRAMS[1:] if self.headed else PROGRAMS
        flags = FLAGS + [BLIND] * (self.embedded and not self.screenshots and not self.real_input)
        flags += UNPACED * (self.virtual_clock and not self.paced)
        path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, programs)), None)
        self._playwright = await async_playwright().start()
        try:
            self._chromium = await self._playwright.chromium.launch(
                executable_path=path,  # None: Playwright's own
                headless=not self.headed,
                args=flags + ["--no-sandbox"] * (os.geteuid() == 0),
            )
        except PlaywrightError as error:
            await self.close()
            raise UsageError(f"{path} does not start: {_first_line(error)}" if path else NO_CHROMIUM) from None
        if not self.embedded:
            self._cdp = await self._chromium.new_browser_cdp_session()
            self._cdp.on("Fetch.requestPaused", self._on_document)
            documents = {"resourceType": "Document", "requestStage": "Request"}
            await self._cdp.send("Fetch.enable", {"patterns": [documents]})

    async def _on_document(self, event):
        """A document is about to be asked for: by a link, a form, a script, a redirect, in a frame or in a new tab. It
        is asked for if the tasks's sites allow it, whatever the page's scripts have done."""
        verdict = {"requestId": event["requestId"]}
        with contextlib.suppress(PlaywrightError):  # the tab is gone
            if await self._is_barred(event["request"]["url"], event["frameId"]):
                await self._cdp.send("Fetch.failRequest", verdict | {"errorReason": "BlockedByClient"})
            else:
                await self._cdp.send("Fetch.continueRequest", verdict)

    async def _is_barred(self, url, frame):
        try:
            tab = (await self._cdp.send("Target.getTargetInfo", {"targetId": frame}))["targetInfo"]
        except PlaywrightError:  # a frame in a page
            tab = {}
        if tab.get("type") != "page":  # what a page is made of may come from anywhere
            return any(guest.refuses is not None and guest.refuses(url) for guest in self.guests.values())
        guest = self.guests.get(tab.get("browserContextId"))
        theirs = guest is not None and (tab["targetId"] in guest.frames or "openerId" in tab)
        return theirs and not guest._allowed(url)

    async def close(self) -> None:
        for part in (self._chromium and self._chromium.close, self._playwright and self._playwright.stop):
            with contextlib.suppress(Exception):  # where the driver's process is gone, Playwright raises just that
                if part:
                    await asyncio.wait_for(part(), 10)
        self._chromium = self._playwright = self._cdp = None
        self.guests.clear()


class Session:
    """One episode at a time, isolated from all other sessions and from its own earlier episodes.

    Every episode gets a context of its own: nothing that pages keep (cookies, storage of any origin, caches, log-ins)
    outlives it. With `keep_page` one that stayed in one tab on one origin leaves its page to the next one.
    """

    def __init__(self, browser: Browser):
        self.browser = browser
        self.sites: tuple[str, ...] = ()
        self.refuses: Callable[[str], bool] | None = None
        self._context = None
        self._tabs: list = []  # Playwright's pages in the order they came
        self._cdp: dict = {}  # page -> its CDP session
        self._tab = None  # the focused page
        self._ours = False  # the tab that comes next is not the agent's
        self._came = self._known = 0  # tabs that ever came, and how many of them an observation has accounted for
        self._due = 0  # tabs that Chromium has announced and that have not come yet
        self._moving: set[tuple] = set()  # (page, frame's id) of navigations under way
        self._changed = asyncio.Condition()  # a tab came or went
        self.uploads: Path | None = None  # the folder of the task's files
        self.frames: set[str] = set()  # ids of the agent's tabs in Chromium
        self._told: dict = {}  # page -> the number of the script that tells its documents which sites are allowed
        self._origins: set[str] = set()  # where this episode has been
        self._begins = False  # no page of this episode was there yet
        self._pointed = False  # the mouse is somewhere on the page
        self._frames: list[tuple] = []  # those of other origins in the last observation: (frame, its box)
        self._places: dict[str, tuple] = {}  # with them, an element's id -> (its frame or None, its id there)
        self._restless: set = set()  # such frames that are not waited for
        self._dialogs: list[str] = []
        self._notice = ""  # what went wrong outside the page: told with the next observation
        self._broken = ""  # a page whose connection broke off in the middle

    # ---- what a caller does ----

    async def reset(
        self,
        url: str,
        sites: list[str] | None = None,
        cookies: dict[str, str] | None = None,
        keep_page: bool = False,
        context: dict | None = None,
        start: dict | None = None,
        actions: Sequence[Action] = (),
        stay: bool = False,
        refuses: Callable[[str], bool] | None = None,
        uploads: str | Path | None = None,
    ) -> Observation:
        """Begin an episode at `url`.

        sites: origins or URL prefixes that the agent may visit (default: the origin of `url`); "*.example.org" is that
            host and all below it.
        refuses: tells which pages on them, and in frames on their pages, must not even be asked for.
        cookies: name -> value, for the hosts of `url` and of `sites`.
        keep_page: go there from the last episode's page as it is. Only for a site that keeps nothing in the browser but
            these cookies, and where it loads its pages by script: that saves a document.
        context: options of Playwright's `new_context` (storage_state, geolocation, ..); given, there is a new one.
        start: what the environment's script (Browser.start) is told to begin the episode with.
        actions: with `start`, what to do at once, without a round trip for each: only what `in_page` allows.
        stay: with `start`, load nothing where a kept page is at `url` already.
        uploads: a folder, whose files the agent may upload by their names. No other file ever is.

        Raises Blocked where `url` leads off the sites.
        """
        self.sites = tuple(sites or [_origin(url)])
        self.uploads = None if uploads is None else Path(uploads)
        if self.uploads is not None and not self.uploads.is_dir():
            raise UsageError(f"uploads: {uploads} is no folder")
        self.refuses = refuses
        chromium = await self.browser.connect()
        kept = keep_page and context is None and self._is_whole(chromium)
        if not kept:
            await self._bounded(self._renew(chromium, context), START)
        if self._pointed:  # what lies under the mouse would look otherwise
            await self._bounded(self._move(*(length - 1 for length in self.browser.viewport.values())))
            self._pointed = False
        if start is None:
            return await self._bounded(self._begin(url, cookies or {}, kept))
        loaded = kept and stay and self._tab.url.partition("#")[0] == url
        return await self._bounded(self._play(url, start, actions, loaded))

    def in_page(self, action: Action) -> bool:
        """Whether it can be one of reset()'s `actions`."""
        return action.name in IN_PAGE and not self.browser.real_input

    async def act(self, action: Action) -> Observation:
        """Do an action; the page after it, with `error` if it was refused."""
        seconds = _seconds(action.argument) if action.name == "Wait" else None
        return await self._bounded(self._act(action), self.browser.timeout + (seconds or 0))

    async def observe(self) -> Observation:
        return await self._bounded(self._look())

    async def screenshot(self) -> bytes:
        """The viewport as PNG. Raises ValueError if the browser was started without `screenshots`."""
        if not self.browser.screenshots:
            raise ValueError("this browser was started with screenshots=False")
        # CDP, not page.screenshot(): it asks for the fast encoder, and leaves the document's style attributes alone
        reply = await self._bounded(self._send("Page.captureScreenshot", format="png", optimizeForSpeed=True))
        return base64.b64decode(reply["data"])

    async def read(self, url: str | None, reader):
        """`await reader(page)` on the focused Playwright page, or on a tab of our own at `url`, with the episode's
        cookies; the agent's tabs stay as they are. What a check at the end of an episode needs."""
        return await self._bounded(self._read(url, reader))

    async def storage_state(self) -> dict:
        """Cookies and local storage, for `context` of a later reset(): what being logged in consists of."""
        return await self._bounded(self._context.storage_state())

    async def close(self) -> None:
        """Throw the context away. reset() makes a new one."""
        context, self._context = self._context, None
        self._tabs, self._cdp, self._tab, self._due, self._told = [], {}, None, 0, {}
        self._frames, self._places = [], {}
        self._restless.clear()
        self._moving.clear()
        self.frames.clear()
        with contextlib.suppress(Exception):  # where Playwright's own process is gone, it raises just that
            if context is not None:
                await asyncio.wait_for(context.close(), 10)
        for name in [name for name, guest in self.browser.guests.items() if guest is self]:
            del self.browser.guests[name]

    async def _bounded(self, work, seconds: float | None = None):
        """Await `work` within the time limit. Whatever breaks in it is an EnvFault and costs the context."""
        try:
            return await asyncio.wait_for(work, seconds or self.browser.timeout)
        except UsageError:
            raise
        except Exception as error:
            await self.close()
            if not isinstance(error, TimeoutError | PlaywrightError) and type(error) is not Exception:
                raise
            if isinstance(error, TimeoutError):
                raise EnvHang(f"the page did not answer within {seconds or self.browser.timeout:g} s") from None
            raise EnvFault(f"browser: {_first_line(error)}") from None

    # ---- episodes ----

    def _is_whole(self, chromium):
        """Whether the last episode stayed in one tab on one origin, and Chromium is still there."""
        return len(self._tabs) == 1 and len(self._origins) <= 1 and self._context.browser is chromium

    async def _renew(self, chromium, options):
        """A page without a past, in a context with these options, if there are any."""
        await self.close()
        options = {"accept_downloads": False, "service_workers": "block"} | (options or {})
        try:
            self._context = await chromium.new_context(viewport=self.browser.viewport, **options)
        except PlaywrightError as error:
            if "has been closed" not in error.message:
                raise
            # Playwright's own process is gone, and all that it tells of Chromium is out of date
            chromium = await self.browser.connect(lost=chromium)
            self._context = await chromium.new_context(viewport=self.browser.viewport, **options)
        self._context.on("page", lambda page: None if self._ours else self._on_page(page))
        self._context.on("dialog", self._on_dialog)
        await self._context.add_init_script(self.browser.script)
        await self._open()

    async def _begin(self, url, cookies, kept) -> Observation:
        self._origins, self._dialogs, self._notice, self._broken, self._begins = set(), [], "", "", True
        if cookies:
            places = filter(None, map(_cookie_place, dict.fromkeys((url, *self.sites))))
            places = list({str(place): place for place in places}.values())
            fields = [
                {"name": name, "value": value, "path": "/", **place}
                for name, value in cookies.items()
                for place in places
            ]
            await self._send("Network.setCookies", cookies=fields)
        if kept:
            observation = await self._finish(await self._evaluate("visit", url=url))
        else:
            if not self.browser.embedded:
                await self._tell_sites(self._tab, self._cdp[self._tab])
            await self._goto(url)
            observation = await self._look()
        self._begins = False
        if kept and observation.error.startswith("blocked: "):  # it is where it was
            await self.close()
            raise Blocked(observation.error)
        await self._send("Page.resetNavigationHistory")
        return observation

    async def _play(self, url, start, actions, loaded) -> Observation:
        self._origins, self._dialogs, self._notice, self._broken = {_origin(url)}, [], "", ""
        if not loaded:
            await self._goto(url)
        steps = [{"name": action.name, "element": action.element, "argument": action.argument} for action in actions]
        observation = await self._finish(await self._evaluate("play", start=start, actions=steps))
        await self._send("Page.resetNavigationHistory")
        return observation

    # ---- actions ----

    async def _read(self, url, reader):
        if url is None:
            return await reader(self._focused())
        self._ours = True
        try:
            page = await self._context.new_page()
        finally:
            self._ours = False
        try:
            answer = await page.goto(url)
            if answer is not None and answer.status >= 500:
                raise EnvFault(f"{url} answered {answer.status}")
            return await reader(page)
        finally:
            await page.close()

    async def _act(self, action) -> Observation:
        name, argument = action.name, action.argument
        page, error = self._focused(), ""
        frame, element, argument = await self._place(name, action.element, argument)
        if self._came > self._known:  # a tab that nobody has seen: the action is for the page that was observed
            self._known = self._came
            await page.bring_to_front()
        if name == "Exit":
            pass
        elif name == "New Tab":
            await self._open()
            if argument:
                error = await self._visit(argument, page.url)
        elif name == "Switch Tab":
            number = int(argument) if argument.strip().isdecimal() and len(argument) < 9 else 0
            if 1 <= number <= len(self._tabs):
                self._tab = self._tabs[number - 1]
                await self._tab.bring_to_front()
            else:
                error = f"there is no tab {argument}"
        elif name == "Close Tab":
            if len(self._tabs) > 1:
                await self._close_tab(page)
            else:
                error = "the only tab cannot be closed"
        elif name == "Goto":
            error = await self._visit(argument, page.url)
        elif name in ("Go Back", "Go Forward"):
            step = 1 if name == "Go Forward" else -1
            if await self._neighbour(step):
                return await self._finish(await self._evaluate("traverse", step=step))
            error = f"there is no page to go {'forward' if step > 0 else 'back'} to"
        elif name == "Press":
            error = await self._press(frame, element, argument)
        elif name == "Wait":
            return await self._wait(argument)
        elif name == "Upload File":
            return await self._upload(frame, element, argument)
        elif name in ("Hover", "Drag") or (self.browser.real_input and name in (*CLICKS, "Type", "Search")):
            found = await self._ask(frame, "locate", name=name, element=element, argument=argument)
            if "nodes" in found:  # a navigation came between
                return await self._end(frame, found)
            error = found.get("error", "")
            if found.get("inPage"):
                return await self._end(
                    frame, await self._ask(frame, "act", name=name, element=element, argument=argument)
                )
            if not error:
                x, y = await self._corner(frame)
                await self._point(name, [(x + point["x"], y + point["y"]) for point in found["points"]])
                if "keys" in found:
                    return await self._type(frame, name, argument, **found["keys"])
                if frame is not None:  # what its timers bring comes before the page is looked at
                    return await self._end(frame, await self._ask(frame, "observe"))
        else:
            reply = await self._ask(frame, "act", name=name, element=element, argument=argument)
            if "keys" in reply:
                return await self._type(frame, name, argument, **reply["keys"])
            if self._frames and element is None and reply["error"].startswith("the page does not scroll"):
                frame = max(self._frames, key=lambda known: known[1][2] * known[1][3])[0]
                reply = await self._ask(frame, "act", name=name, element=None, argument=argument)
            return await self._end(frame, reply)
        return await self._look(error)

    async def _wait(self, argument) -> Observation:
        seconds = _seconds(argument)
        if argument and seconds is None:
            return await self._look(f"Wait takes a number of seconds, at most {MOST_WAIT:g}, not {argument[:40]!r}")
        if self.browser.virtual_clock:
            return await self._finish(await self._evaluate("act", name="Wait", element=None, argument=argument))
        await asyncio.sleep(WAIT if seconds is None else seconds)
        return await self._look()

    async def _upload(self, frame, element, argument) -> Observation:
        """Give the page one of the task's files, or several, with commas between them."""
        if self.uploads is None:
            return await self._look("this task comes with no files to upload")
        known = sorted(path.name for path in self.uploads.iterdir() if path.is_file() and not path.is_symlink())
        names = [argument] if argument in known else [name.strip() for name in argument.split(",")]
        missing = [name for name in names if name not in known]
        if missing:
            return await self._look(f"the task has no file {missing[0][:80]!r}, but {', '.join(known) or 'none'}")
        reply = await self._ask(frame, "act", name="Upload File", element=element, argument=argument)
        asks = reply.get("asks")
        if reply["error"] or not asks or (len(names) > 1 and not asks["multiple"]):
            why = "one file is asked for, not several" if asks else "no file is asked for there"
            return await self._end(frame, reply | {"error": reply["error"] or why, "asks": None})
        box = await (frame or self._tab).evaluate_handle("__gui.fileBox")
        await box.as_element().set_input_files([(self.uploads / name).resolve() for name in names])
        return await self._look()

    async def _type(self, frame, name, text, single, blank) -> Observation:
        """Fill what has the focus by true keys, then press Enter for a Search; an error where it does not take them.
        `single`: it has one line, so that a line's end in the text is none there; `blank`: it holds nothing yet."""
        await self._press_keys(text, single, KEYED, clear=not blank)
        reply = await self._ask(frame, "typed", text=text)
        if reply["error"] and KEYED < len(text) <= MOST_KEYED:  # it may hear nothing but keys
            await self._press_keys(text, single, MOST_KEYED, clear=True)
            reply = await self._ask(frame, "typed", text=text)
        if name == "Search" and not reply["error"]:
            await self._tab.keyboard.press("Enter")
            return await self._look()
        return await self._end(frame, reply)

    async def _press_keys(self, text, single, most, clear):
        """Put the text in the place of what is there. A line of more than `most` characters comes at once, but the last
        of them."""
        keyboard = self._tab.keyboard
        if clear:
            await keyboard.press("Control+a")
            await keyboard.press("Delete")
        lines = re.split(r"\r\n|[\r\n]", text)
        for number, line in enumerate(["".join(lines)] if single else lines):
            if number:
                await keyboard.press("Shift+Enter")  # Enter alone would send a message, or end a paragraph
            at_once = len(line) - 1 if len(line) > most else line.rfind("\t") + 1  # the Tab key leaves the box
            if at_once:
                await keyboard.insert_text(line[:at_once])
            await keyboard.type(line[at_once:])

    async def _point(self, name, points):
        """The trusted events of Hover, Drag and all clicks, at points of the viewport; typing begins with a click."""
        mouse = self._tab.mouse
        self._pointed = True
        if name in ("Hover", "Drag"):  # in both modes: only a real mouse makes :hover true, or marks text
            await self._move(*points[0])
            return await self._drag(points) if name == "Drag" else None
        button, times = "right" if name == "Right Click" else "left", 2 if name == "Double Click" else 1
        await mouse.click(*points[0], button=button, click_count=times)

    async def _move(self, x, y, button="none"):
        """Move the mouse, with this button held."""
        at, mouse = {"x": x, "y": y, "buttons": 1 if button == "left" else 0}, "Input.dispatchMouseEvent"
        # Chromium keeps a move for the next frame, and without compositing there is none: Playwright's mouse.move takes
        # 5 s then. The release of no button, which no page sees, makes it deliver the move at once.
        moved = self._send(mouse, type="mouseMoved", button=button, **at)
        await asyncio.gather(moved, self._send(mouse, type="mouseReleased", button="none", **at))

    async def _drag(self, points):
        """From the first point, where the mouse is, along the others."""
        button, mouse = {"button": "left", "clickCount": 1}, "Input.dispatchMouseEvent"
        (x, y), *rest = points
        await self._send(mouse, type="mousePressed", x=x, y=y, buttons=1, **button)
        for end_x, end_y in rest:
            for step in range(1, DRAG_STEPS + 1):
                part = step / DRAG_STEPS
                await self._move(x + part * (end_x - x), y + part * (end_y - y), "left")
            x, y = end_x, end_y
        await self._send(mouse, type="mouseReleased", x=x, y=y, buttons=0, **button)

    async def _press(self, frame, element, key) -> str:
        """Press a key or combination; trusted in both modes, because only true keys move the focus or submit a form."""
        error = (await self._ask(frame, "aim", element=element)).get("error", "")
        if error:
            return error
        parts = [KEYS.get(part.strip().lower(), part.strip()) if part else "" for part in key.split("+")]
        try:
            await self._tab.keyboard.press("+".join(parts))
        except PlaywrightError as error:
            if "Unknown key" not in error.message:
                raise
            return f"there is no key {key[:20]!r}"
        return ""

    async def _visit(self, url, base) -> str:
        """Go to a URL the agent has named; returns the reason if it may not."""
        try:
            url = _resolve(base, url)
        except ValueError:
            return f"not a URL: {url[:200]}"
        if not self._allowed(url):
            return _blocked(url)
        await self._goto(url)
        return ""

    async def _goto(self, url):
        """Navigate the focused tab. Returns when the new document has begun."""
        reply = await self._send("Page.navigate", url=url)
        error = reply.get("errorText", "")
        if error == "net::ERR_ABORTED":  # 204 No Content, or a download
            self._notice = self._notice or f"{url} shows no page"
        elif error and error != "net::ERR_BLOCKED_BY_CLIENT":  # its address is none of the sites': _finish() leaves it
            raise EnvFault(f"{url}: {error}")

    async def _neighbour(self, step) -> str:
        """The URL one step back or forward in the tab's history, "" if there is none (a tab's blank start is none)."""
        history = await self._send("Page.getNavigationHistory")
        index, entries = history["currentIndex"] + step, history["entries"]
        url = entries[index]["url"] if 0 <= index < len(entries) else ""
        return "" if url == "about:blank" else url

    # ---- tabs, and what comes from the browser unasked ----

    def _focused(self):
        if self._tab is None:
            raise EnvFault("the session has no page: reset it first")
        return self._tab

    async def _open(self):
        """Open a tab and focus it."""
        page = await self._context.new_page()
        await self._until(lambda: page in self._cdp)
        self._known, self._tab = self._came, page

    async def _close_tab(self, page):
        await page.close()
        await self._until(lambda: page not in self._cdp)

    async def _until(self, condition):
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _on_page(self, page):
        page.on("close", self._on_close)
        page.on("download", self._on_lost)
        page.on("requestfailed", self._on_lost)
        with contextlib.suppress(PlaywrightError):  # it may be closed again by now
            cdp = await page.context.new_cdp_session(page)
            if not self.browser.embedded:
                tab = (await cdp.send("Target.getTargetInfo"))["targetInfo"]
                self.frames.add(tab["targetId"])
                self.browser.guests[tab["browserContextId"]] = self
                await self._listen(page, cdp)
            self._cdp[page] = cdp
            self._tabs.append(page)
        self._came, self._due = self._came + 1, max(self._due - 1, 0)
        async with self._changed:
            self._changed.notify_all()

    async def _listen(self, page, cdp):
        """Hear of tabs that open and of navigations. That costs some CPU time with every document, and our own pages
        say themselves what they open."""
        cdp.on("Page.windowOpen", self._on_window)
        cdp.on("Page.frameRequestedNavigation", lambda event: self._moving.add((page, event["frameId"])))
        cdp.on("Page.frameStartedLoading", lambda event: self._moving.add((page, event["frameId"])))
        cdp.on("Page.frameStoppedLoading", lambda event: self._on_stop(page, event["frameId"]))
        await cdp.send("Page.enable")
        await self._tell_sites(page, cdp)

    async def _tell_sites(self, page, cdp):
        """A document of the tab knows from its beginning where it may lead: some lead elsewhere at once."""
        scripts = "ScriptToEvaluateOnNewDocument"
        if page in self._told:
            await cdp.send(f"Page.remove{scripts}", {"identifier": self._told[page]})
        answer = await cdp.send(f"Page.add{scripts}", {"source": f"__gui.sites = {json.dumps(self.sites)}"})
        self._told[page] = answer["identifier"]

    def _on_window(self, event):
        """A tab is about to open. The page's reply to an action that opens one comes later than this."""
        self._due += 1

    async def _on_stop(self, page, frame):
        self._moving.discard((page, frame))
        async with self._changed:
            self._changed.notify_all()

    async def _on_close(self, page):
        self._cdp.pop(page, None)
        self._told.pop(page, None)
        self._moving = {(mover, frame) for mover, frame in self._moving if mover is not page}
        if page in self._tabs:
            self._tabs.remove(page)
        if self._tab is page:
            self._tab = self._tabs[-1] if self._tabs else None
        async with self._changed:
            self._changed.notify_all()

    async def _on_dialog(self, dialog):
        if dialog.message and len(self._dialogs) < 20:
            self._dialogs.append(plain(dialog.message))
        with contextlib.suppress(PlaywrightError):
            await (dialog.accept(dialog.default_value) if dialog.type == "prompt" else dialog.accept())

    async def _on_lost(self, event):
        """A navigation that led nowhere, a download or 204 No Content: the document stays and need not wait for it."""
        if isinstance(event, Download):
            self._notice = "downloads are refused"
        elif event.is_navigation_request() and event.failure == "net::ERR_ABORTED":
            self._notice = self._notice or f"{event.url} shows no page"
            while event.redirected_from:
                event = event.redirected_from
            with contextlib.suppress(PlaywrightError):
                await event.frame.evaluate("url => window.__gui?.failed(url)", event.url)
        elif event.is_navigation_request() and event.frame.parent_frame is None:
            self._broken = f"{event.url}: {event.failure}"
            with contextlib.suppress(PlaywrightError):  # the document would be waited for to the time limit
                await event.frame.evaluate("() => window.__gui?.broken()")

    # ---- round trips ----

    async def _send(self, method, **parameters):
        return await self._cdp[self._focused()].send(method, parameters)

    async def _evaluate(self, call, **arguments) -> dict:
        """page.js's reply to `call`. Where a navigation ends the document under the call, the next one is observed."""
        while True:
            page = self._focused()
            expression = f"__gui.{call}({json.dumps(arguments | {'sites': self.sites})})"
            try:
                # CDP, not page.evaluate(): a third less CPU for a round trip
                answer = await self._send(
                    "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
                )
            except PlaywrightError as error:
                if not page.context.browser.is_connected() or "crashed" in error.message:
                    raise
                if "has been closed" in error.message:
                    await self._until(lambda page=page: page not in self._cdp)
                    self._notice = "the page closed itself"
                    if not self._tabs:
                        await self._open()
                call, arguments = "observe", {"error": arguments.get("error", "")}
                continue
            if "exceptionDetails" in answer:  # a fault of page.js, or a page that broke what it stands on
                thrown = answer["exceptionDetails"].get("exception", {})
                thrown = str(thrown.get("description") or thrown.get("value"))
                raise EnvFault(f"page.js: {plain(thrown, 200).partition(chr(10))[0]}")
            return read_reply(call, answer["result"].get("value"))

    async def _look(self, error="") -> Observation:
        return await self._finish(await self._evaluate("observe", error=error))

    # ---- frames of other origins: page.js of the page around them cannot look into them, their own can ----

    async def _ask(self, frame, call, **arguments) -> dict:
        """The reply of such a frame's page.js; of the page's own where there is no frame."""
        if frame is None:
            return await self._evaluate(call, **arguments)
        try:
            return await self._evaluate_in(frame, call, **arguments)
        except PlaywrightError as error:
            if not self._focused().context.browser.is_connected():
                raise
            return {"error": "" if "navigat" in error.message else "the frame is gone"}  # its document has ended

    async def _evaluate_in(self, frame, call, **arguments) -> dict:
        expression = f"__gui.{call}({json.dumps(arguments | {'sites': self.sites})})"
        return read_reply(call, await frame.evaluate(expression))

    async def _end(self, frame, reply) -> Observation:
        """What is seen after an action's reply."""
        if frame is None:
            return await self._finish(reply)
        return await self._look(reply["error"] or (ASKS if reply.get("asks") else ""))

    async def _place(self, name, element, argument) -> tuple:
        """(frame or None, element, argument) as page.js of that frame knows them."""
        frame, element = self._in_frame(element) if element is not None else (None, None)
        if element == "focus":
            with contextlib.suppress(PlaywrightError):  # one is gone
                for inner, _ in self._frames:
                    frame = inner if await inner.evaluate("document.hasFocus()") else frame
        if name == "Drag" and argument in self._places:
            other, argument = self._in_frame(argument)
            if other is not frame:
                argument = f"{argument} (of another frame)"  # there is no such element in this one
        if element is None and name in (*CLICKS, "Hover") and not self.browser.real_input and argument:
            frame, argument = self._in_frame(argument)
        return frame, element, argument

    def _in_frame(self, element: str) -> tuple:
        """(frame or None, the same in it) of an element's id or of a point, "120,80"."""
        if re.fullmatch(POINT, element):
            x, y = map(int, element.split(","))
            for frame, (left, top, width, height) in reversed(self._frames):
                if 0 <= x - left < width and 0 <= y - top < height:
                    return frame, f"{round(x - left)},{round(y - top)}"
        return self._places.get(element, (None, element))

    async def _corner(self, frame) -> tuple[float, float]:
        """Where a frame's contents begin in the viewport."""
        x = y = 0.0
        while frame is not None and frame.parent_frame is not None:
            at = "el => { const r = el.getBoundingClientRect(); return [r.x + el.clientLeft, r.y + el.clientTop]; }"
            left, top = await (await frame.frame_element()).evaluate(at)
            x, y, frame = x + left, y + top, frame.parent_frame
        return x, y

    async def _look_into_frames(self, reply) -> None:
        """What frames of other origins hold takes the place of the lines that stand for them. Elements are then
        numbered anew."""
        self._frames, self._places = [], {}
        if not any("frame" in node for node in reply["nodes"]):
            return
        nodes = await self._nodes(self._focused(), reply, reply, (0, 0), 0)
        reply["nodes"] = [node for node, _ in nodes]
        elements = [(node, frame) for node, frame in nodes if "id" in node]
        for number, (node, frame) in enumerate(elements, start=1):
            self._places[str(number)] = frame, str(node["id"])
            node["id"] = number

    async def _nodes(self, scope, reply, total, corner, depth) -> list[tuple]:
        """[(node, its frame or None)] of a page or frame whose contents begin at `corner`; `total` counts what is not
        in view."""
        shut = [node for node in reply["nodes"] if "frame" in node]
        inner = zip(map(id, shut), await asyncio.gather(*(self._look_into(scope, node) for node in shut)), strict=True)
        inner, nodes = dict(inner), []
        for node in reply["nodes"]:
            left, top, width, height = node["box"]
            node["box"], node["depth"] = [left + corner[0], top + corner[1], width, height], node["depth"] + depth
            shown, place = inner.get(id(node)), node.pop("frame", None)
            if shown is None:
                nodes.append((node, None if scope is self._tab else scope))
                continue
            frame, held = shown
            at = [round(corner[axis] + place["at"][axis]) for axis in (0, 1)]
            self._frames.append((frame, (*at, width, height)))
            total["above"], total["below"] = total["above"] + held["above"], total["below"] + held["below"]
            left, top, right, bottom = (edge + corner[number % 2] for number, edge in enumerate(place["clip"]))
            for seen, whose in await self._nodes(frame, held, total, at, node["depth"]):
                x, y, wide, high = seen["box"]
                if y + high < top + 2 or y > bottom - 2:
                    total["above" if y < top else "below"] += "id" in seen or "text" in seen
                elif x + wide > left + 2 and x < right - 2:
                    nodes.append((seen, whose))
        return nodes

    async def _look_into(self, scope, node):
        """(frame, what its page.js sees) for a node of `scope` that stands for a frame; None where it gives no answer.
        What did not come to rest once, an advert for instance, is not waited for again."""
        frame = None
        try:
            async with asyncio.timeout(self.browser.timeout / 4):
                element = await scope.evaluate_handle("number => __gui.shut[number]", node["frame"]["number"])
                frame = await element.as_element().content_frame()
                return frame, await self._evaluate_in(frame, "observe", now=frame in self._restless)
        except (PlaywrightError, AttributeError, EnvFault):  # a viewer of Chromium's own; a document that ends
            return None
        except TimeoutError:
            self._restless.add(frame)
            return None

    async def _finish(self, seen) -> Observation:
        """page.js's reply as an Observation, once new tabs have come and forbidden pages are left."""
        page = self._focused()
        if seen["still"] and any(mover is page for mover, _ in self._moving):  # it could not wait for itself
            stopped = self._until(lambda: not any(mover is page for mover, _ in self._moving))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped, self.browser.timeout / 2)
            self._moving.clear()
            return await self._look(seen["error"])
        own = self.browser.embedded and seen["named"] == "_blank"
        if self._due or own:
            here = (lambda: self._came > self._known) if own else (lambda: not self._due)
            with contextlib.suppress(TimeoutError):  # none comes if the page's own code prevented it
                await asyncio.wait_for(self._until(here), self.browser.timeout / 2)
            self._due = 0
        elif seen["named"] and (tab := await self._tab_named(seen["named"])):
            self._tab = tab
            await tab.bring_to_front()
            return await self._look(seen["error"])
        if self._came > self._known:
            self._known, self._tab = self._came, self._tabs[-1]
            return await self._look(seen["error"])
        url, broken = seen["url"] if self.browser.embedded else _without_log_in(page.url), self._broken
        self._broken = ""
        if url.startswith("chrome-error:"):
            url = await self._neighbour(0)
            if self._allowed(url):
                raise EnvFault(f"{url} cannot be reached")
        elif seen["status"] >= 500 and self._allowed(url):
            raise EnvFault(f"{url} answered {seen['status']}")
        elif broken and self._allowed(url):
            raise EnvFault(broken)
        self._origins.add(_origin(url))
        if not self._allowed(url):
            return await self._back_off(_blocked(url))
        await self._look_into_frames(seen)
        error, self._notice = plain(seen["error"] or self._notice or (ASKS if seen.get("asks") else "")), ""
        dialog, self._dialogs = plain(" ".join(self._dialogs)), []
        tabs = (self._tabs.index(self._tab) + 1, len(self._tabs))
        parts = seen["nodes"], seen["above"], seen["below"]
        return Observation(url, seen["title"], *parts, tabs, error, dialog, seen.get("report"))

    async def _tab_named(self, name):
        """Another tab that a page has given this name; None if there is none."""
        for page in [page for page in self._tabs if page is not self._tab]:
            try:
                found = await page.evaluate("window.name")
            except PlaywrightError as error:
                if "context was destroyed" not in error.message:
                    raise
                found = await page.evaluate("window.name")  # it was about to show the next document
            if found == name:
                return page
        return None

    async def _back_off(self, error) -> Observation:
        """Leave a page outside the task's sites: back to where the tab came from, or close the tab."""
        if self._begins:  # behind it is the last episode's
            raise Blocked(error)
        if await self._neighbour(-1):
            return await self._finish(await self._evaluate("traverse", step=-1, error=error))
        page = self._tab
        if len(self._tabs) == 1:
            await self._open()
        await self._close_tab(page)
        return await self._look(error)

    def _allowed(self, url: str) -> bool:
        """Whether `url` is on the task's sites; settle.js's inSite() asks the same before a link is followed."""
        url = _without_log_in(url)
        if self.refuses is not None and self.refuses(url):
            return False
        return url.startswith("about:blank") or any(_is_on(url, site) for site in self.sites)


def _is_on(url: str, site: str) -> bool:
    if site.startswith("*."):
        host = re.match(r"https?://([\w.:-]+)(?![^/?#])", url)
        return host is not None and f".{host[1]}".lower().endswith(site[1:])
    return url.startswith(site) and (site.endswith("/") or url[len(site) : len(site) + 1] in ("", "/", "?", "#"))


def _resolve(base: str, url: str) -> str:
    """The address that a browser makes of `url` on the page `base`: a backslash is a slash, steps in the path (.., as
    %2e%2e, too) are taken. Raises ValueError."""
    url = url.strip("".join(map(chr, range(33)))).translate(dict.fromkeys(map(ord, "\t\r\n")))
    head, mark, rest = re.match(r"([^?#]*+)([?#]?)(.*+)", url, re.DOTALL).groups()
    parts = urlsplit(urljoin(base, head.replace("\\", "/") + mark + rest))
    if parts.scheme not in ("http", "https"):
        return parts.geturl()
    path, place = [], ""
    for step in parts.path.split("/")[1:]:
        place = step.lower().replace("%2e", ".")
        path = path[:-1] if place == ".." else path if place == "." else [*path, step]
    path += [""] * (place in (".", ".."))
    return parts._replace(netloc=parts.netloc.lower(), path="/" + "/".join(path)).geturl()


def _without_log_in(url):
    return re.sub(r"^(https?://)[^/?#]*@", r"\1", url)


def _blocked(url):
    return f"blocked: {url[:200]} is outside the task's sites"


def _seconds(text: str | None) -> float | None:
    """The number of seconds in a Wait's argument; None where that is none, or too many."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds <= MOST_WAIT else None


def _cookie_place(site: str) -> dict:
    """Where a cookie for one of the sites belongs, in Chromium's words; {} for hosts below an address in numbers."""
    if not site.startswith("*."):
        return {"url": _origin(site)}
    host = site.removeprefix("*").partition(":")[0]
    return {"domain": host} if not host.replace(".", "").isdigit() and "." in host[1:] else {}


def _origin(url: str) -> str:
    scheme, mark, rest = _without_log_in(url).partition("://")
    return scheme + mark + re.match("[^/?#]*", rest)[0]


def _first_line(error: PlaywrightError) -> str:
    return error.message.splitlines()[0]
