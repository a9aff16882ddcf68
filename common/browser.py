"""The web browser: one Chromium, driven by Playwright's async API, and an isolated session per episode slot.

    browser = await Browser.start()
    session = await browser.session()
    observation = await session.reset("http://127.0.0.1:8000/shop", cookies={"episode": "7"})
    observation = await session.act(parse('do(action="Click", element="3")'))

One step is one round trip: page.js does the action in the page, waits until nothing more happens by itself (navigations,
requests of scripts, timers) and returns what can be seen. A navigation destroys the document and with it the pending
call; the driver then asks the next document, so no observation ever describes a page that is on its way out.

An action the page refuses is an observation with `error`. EnvFault means that the world broke: Chromium died, the page
or the server did not answer within `timeout` seconds, the connection was refused or the page itself is a 5xx. After it
the session's context is thrown away; the next reset() starts afresh, and Chromium with it if it is gone.

Dialogs are answered at once, as a user who wants what he clicked would: alert, confirm and beforeunload are accepted, a
prompt gets its default; their text stands in the observation. New tabs are followed. Downloads are refused.
"""

import asyncio
import contextlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from playwright.async_api import Download, async_playwright
from playwright.async_api import Error as PlaywrightError

from common.actions import Action
from common.errors import EnvFault, UsageError

VIEWPORT = {"width": 1280, "height": 720}
TICK = 500  # virtual ms that pass after an action (real clock: timers due within this are waited for)
SETTLE = 2000  # real ms at most that requests of the page's scripts are waited for
FLAGS = [
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
]
# The headless shell comes first: a navigation costs it half of the CPU time that full Chromium needs.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_CHROMIUM = "no Chromium found: run `playwright install --with-deps chromium`, or set CHROMIUM to a browser's path"
KEYS = {"ctrl": "Control", "cmd": "Meta", "return": "Enter", "esc": "Escape", "del": "Delete", "space": "Space"}
SCRIPT = Path(__file__).with_name("page.js").read_text().strip().removesuffix(";")


@dataclass
class Observation:
    """What can be seen of the focused tab. `nodes` is page.js's list, `above` and `below` count lines out of view."""

    url: str
    title: str
    nodes: list[dict] = field(default_factory=list)
    above: int = 0
    below: int = 0
    tabs: tuple[int, int] = (1, 1)  # the focused one, counted from 1, and how many
    error: str = ""  # why the last action failed, or what was refused
    dialog: str = ""  # the text of dialogs that were shown and answered


class Browser:
    """One Chromium process, shared by all sessions; restarted by the first reset() that finds it gone."""

    def __init__(self, headed: bool, real_input: bool, virtual_clock: bool, timeout: float):
        self.headed, self.real_input, self.timeout = headed, real_input, timeout
        config = {"virtualClock": virtual_clock, "tick": TICK, "settle": SETTLE}
        self.script = f"({SCRIPT})({json.dumps(config)});"
        self._lock = asyncio.Lock()
        self._playwright = self._chromium = None

    @classmethod
    async def start(
        cls, headed: bool = False, real_input: bool = False, virtual_clock: bool = True, timeout: float = 10.0
    ) -> "Browser":
        """Start Chromium; raises UsageError if there is none.

        real_input: trusted mouse and keyboard events instead of events made in the page (2.5 times the cost).
        virtual_clock: the page's time moves only with actions, so nothing waits for a timer and the same actions give
            the same page. Turn it off for sites whose scripts need true dates or wait for the network with timers.
        timeout: seconds after which a page that does not answer is an EnvFault.
        """
        browser = cls(headed, real_input, virtual_clock, timeout)
        await browser.connect()
        return browser

    async def connect(self):
        """Playwright's Browser, (re)launched if it is not running."""
        async with self._lock:
            if self._chromium is None or not self._chromium.is_connected():
                await self.close()
                self._playwright = await async_playwright().start()
                self._chromium = await self._launch()
            return self._chromium

    async def _launch(self):
        path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS[self.headed :])), None)
        try:
            return await self._playwright.chromium.launch(
                executable_path=path,  # None: Playwright's own
                headless=not self.headed,
                args=FLAGS + ["--no-sandbox"] * (os.geteuid() == 0),
            )
        except PlaywrightError as error:
            await self.close()
            if path is None:
                raise UsageError(NO_CHROMIUM) from None
            raise UsageError(f"{path} does not start: {error.message.splitlines()[0]}") from None

    async def session(self) -> "Session":
        return Session(self)

    async def close(self):
        for part in (self._chromium and self._chromium.close, self._playwright and self._playwright.stop):
            with contextlib.suppress(PlaywrightError, asyncio.TimeoutError):
                if part:
                    await asyncio.wait_for(part(), 10)
        self._chromium = self._playwright = None


class Session:
    """One episode at a time, isolated from every other session and from its own earlier episodes.

    Between episodes the context and its page are kept and emptied (cookies, storage, session storage, history) if the
    last episode stayed in one tab on one origin; otherwise, and after a fault, a new context is made.
    """

    def __init__(self, browser: Browser):
        self.browser = browser
        self.sites: tuple[str, ...] = ()
        self._context = None
        self._tabs: list = []  # Playwright pages, in the order they were opened
        self._cdp: dict = {}  # page -> its CDP session
        self._tab = None  # the focused one
        self._arrivals = self._seen = 0  # tabs that ever came, and how many of them are accounted for
        self._changed = asyncio.Condition()  # a tab came or went
        self._origins: set[str] = set()
        self._dialogs: list[str] = []
        self._notice = ""

    # ---- the four things a caller does ----

    async def reset(
        self, url: str, sites: list[str] | None = None, cookies: dict[str, str] | None = None
    ) -> Observation:
        """Begin an episode at `url`. `sites` are the origins or URL prefixes the agent may visit (default: its origin)."""
        self.sites = tuple(sites or [_origin(url)])
        return await self._bounded(self._reset(url, cookies or {}))

    async def act(self, action: Action) -> Observation:
        """Do an action and say what the page looks like after it."""
        return await self._bounded(self._act(action))

    async def observe(self) -> Observation:
        return await self._bounded(self._look())

    async def screenshot(self, type: str = "png") -> bytes:
        """The viewport as PNG or JPEG."""
        return await self._bounded(self._tab.screenshot(type=type, caret="initial"))

    async def close(self) -> None:
        """Throw the context away; reset() may be called again."""
        context, self._context = self._context, None
        self._tabs, self._cdp, self._tab = [], {}, None
        with contextlib.suppress(PlaywrightError, asyncio.TimeoutError):
            if context is not None:
                await asyncio.wait_for(context.close(), 10)

    async def _bounded(self, work):
        """Run `work` within the time limit; whatever breaks below it is an EnvFault and costs the context."""
        try:
            return await asyncio.wait_for(work, self.browser.timeout)
        except (TimeoutError, PlaywrightError, EnvFault) as error:
            await self.close()
            if isinstance(error, EnvFault):
                raise
            if isinstance(error, asyncio.TimeoutError):
                raise EnvFault(f"the page did not answer within {self.browser.timeout:g} s") from None
            raise EnvFault(f"browser: {error.message.splitlines()[0]}") from None

    # ---- episodes ----

    async def _reset(self, url, cookies):
        chromium = await self.browser.connect()
        reusable = len(self._tabs) == 1 and len(self._origins) <= 1 and self._context.browser is chromium
        if reusable:
            await self._evaluate("leave")
            for origin in self._origins:
                await self._send("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
            await self._send("Network.clearBrowserCookies")
        else:
            await self.close()
            self._context = await chromium.new_context(
                viewport=VIEWPORT, accept_downloads=False, service_workers="block"
            )
            self._context.on("page", self._on_page)
            self._context.on("dialog", self._on_dialog)
            await self._context.add_init_script(self.browser.script)
            await self._open()
        self._origins, self._dialogs, self._notice = set(), [], ""
        if cookies:
            fields = [{"name": name, "value": value, "url": url} for name, value in cookies.items()]
            await self._send("Network.setCookies", cookies=fields)
        await self._goto(url)
        observation = await self._look()
        await self._send("Page.resetNavigationHistory")
        return observation

    async def _act(self, action):
        if self._tab is None:
            raise EnvFault("the session has no page: reset it")
        name, element, argument = action.name, action.element, action.argument
        page, error = self._tab, ""
        if name == "Exit":
            pass
        elif name == "New Tab":
            await self._open()
            if argument:
                error = await self._visit(argument)
        elif name == "Switch Tab":
            index = int(argument) if argument.strip().isdecimal() else 0
            if 1 <= index <= len(self._tabs):
                self._tab = self._tabs[index - 1]
                await self._tab.bring_to_front()
            else:
                error = f"there is no tab {argument}"
        elif name == "Close Tab":
            if len(self._tabs) == 1:
                error = "the only tab cannot be closed"
            else:
                await page.close()
                await self._until(lambda: page not in self._cdp)
        elif name == "Goto":
            error = await self._visit(argument)
        elif name in ("Go Back", "Go Forward"):
            step = 1 if name == "Go Forward" else -1
            history = await self._send("Page.getNavigationHistory")
            index = history["currentIndex"] + step
            if 0 <= index < len(history["entries"]) and history["entries"][index]["url"] != "about:blank":
                return await self._finish(await self._evaluate("traverse", step=step))
            error = f"there is no page to go {'forward' if step > 0 else 'back'} to"
        elif name == "Press":
            error = await self._press(element, argument)
        elif name == "Hover" or self.browser.real_input and name in ("Click", "Right Click", "Type", "Search"):
            point = await self._evaluate("locate", element=element)
            error = point.get("error", "")
            if not error:
                await self._point(name, point["x"], point["y"], argument)
        else:
            reply = await self._evaluate("act", name=name, element=element, argument=argument)
            return await self._finish(reply)
        return await self._look(error)

    async def _point(self, name, x, y, text):
        """The trusted events of Hover, Click, Right Click, Type and Search at a point of the viewport."""
        mouse, keyboard = self._tab.mouse, self._tab.keyboard
        if name == "Hover":
            return await mouse.move(x, y)
        await mouse.click(x, y, button="right" if name == "Right Click" else "left")
        if name in ("Type", "Search"):
            await keyboard.press("Control+a")
            await keyboard.press("Delete")
            await keyboard.type(text)
        if name == "Search":
            await keyboard.press("Enter")

    async def _press(self, element, key) -> str:
        """Press a key or combination, trusted in both modes: only real keys have default actions (Tab, arrows, Enter)."""
        if element is not None:
            error = (await self._evaluate("act", name="Focus", element=element)).get("error")
            if error:
                return error
        parts = [KEYS.get(part.strip().lower(), part.strip()) for part in key.split("+")]
        parts = [part[:1].upper() + part[1:] if len(part) > 1 else part for part in parts]
        try:
            await self._tab.keyboard.press("+".join(parts))
        except PlaywrightError as error:
            if "Unknown key" not in error.message:
                raise
            return f"there is no key {key!r}"
        return ""

    async def _visit(self, url) -> str:
        url = urljoin(self._tab.url, url)
        if not self._allowed(url):
            return f"blocked: {url} is outside the task's sites"
        await self._goto(url)
        return ""

    async def _goto(self, url):
        """Navigate the focused tab; returns when the new document has begun."""
        try:
            reply = await self._send("Page.navigate", url=url)
        except PlaywrightError as error:
            if "invalid URL" not in error.message:
                raise
            self._notice = f"{url} is not a URL"
            return
        error = reply.get("errorText", "")
        if error == "net::ERR_ABORTED":  # 204 No Content, or a download
            self._notice = self._notice or f"{url} shows no page"
        elif error:
            raise EnvFault(f"{url}: {error}")

    # ---- tabs ----

    async def _open(self):
        """Open a tab and focus it."""
        page = await self._context.new_page()
        await self._until(lambda: page in self._cdp)
        self._seen = self._arrivals

    async def _until(self, condition):
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _on_page(self, page):
        page.on("close", self._on_close)
        page.on("download", self._on_refused)
        page.on("requestfailed", self._on_refused)
        with contextlib.suppress(PlaywrightError):  # it may be closed by now
            self._cdp[page] = await page.context.new_cdp_session(page)
            self._tabs.append(page)
            self._tab = page
        self._arrivals += 1
        async with self._changed:
            self._changed.notify_all()

    async def _on_close(self, page):
        self._cdp.pop(page, None)
        if page in self._tabs:
            self._tabs.remove(page)
            if self._tab is page:
                self._tab = self._tabs[-1] if self._tabs else None
        async with self._changed:
            self._changed.notify_all()

    async def _on_dialog(self, dialog):
        if dialog.type != "beforeunload":
            self._dialogs.append(dialog.message)
        with contextlib.suppress(PlaywrightError):
            await (dialog.accept(dialog.default_value) if dialog.type == "prompt" else dialog.accept())

    async def _on_refused(self, event):
        """A navigation led nowhere (a download, 204 No Content): the document stays, so its observation may go on."""
        if isinstance(event, Download):
            self._notice = "downloads are refused"
        elif event.is_navigation_request():
            self._notice = self._notice or f"{event.url} shows no page"
            with contextlib.suppress(PlaywrightError):
                await event.frame.evaluate("() => { if (window.__gui) __gui.leaving = false }")

    # ---- round trips ----

    async def _send(self, method, **parameters):
        return await self._cdp[self._tab].send(method, parameters)

    async def _evaluate(self, call, **arguments) -> dict:
        """page.js's reply to `call`. Where a navigation ends the document under the call, the next one is observed."""
        arguments["sites"] = self.sites
        while True:
            page = self._tab
            expression = f"window.__gui ? __gui.{call}({json.dumps(arguments)}) : '{{\"lost\": true}}'"
            try:
                reply = await self._send(
                    "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
                )
            except PlaywrightError as error:
                if not page.context.browser.is_connected() or "crashed" in error.message:
                    raise
                if "has been closed" in error.message:
                    await self._until(lambda gone=page: gone not in self._cdp)
                    self._notice = "the page closed itself"
                    if self._tab is None:
                        await self._open()
                call, arguments = "observe", {"sites": self.sites}
                continue
            if "exceptionDetails" in reply:  # a fault of page.js, or of a page that broke what it stands on
                raise EnvFault("page.js: " + reply["exceptionDetails"]["exception"]["description"].splitlines()[0])
            return json.loads(reply["result"]["value"])

    async def _look(self, error="") -> Observation:
        return await self._finish(await self._evaluate("observe", error=error))

    async def _finish(self, reply) -> Observation:
        """page.js's reply as an Observation, once new tabs have come and forbidden pages are left."""
        if reply.get("opened"):
            with contextlib.suppress(asyncio.TimeoutError):  # none comes where the page's own code prevented it
                await asyncio.wait_for(self._until(lambda: self._arrivals > self._seen), SETTLE / 1000)
            self._seen = self._arrivals
            return await self._look(reply["error"])
        history = None
        if "lost" in reply or reply["url"].startswith("chrome-error:"):
            history = await self._send("Page.getNavigationHistory")
            url = history["entries"][history["currentIndex"]]["url"]
            if self._allowed(url):
                raise EnvFault(f"{url} cannot be reached")
        elif reply["status"] >= 500:
            raise EnvFault(f"{reply['url']} answered {reply['status']}")
        else:
            url = reply["url"]
        if not self._allowed(url):
            self._origins.add(_origin(url))
            return await self._back_off(url)
        self._origins.add(_origin(url))
        error, self._notice = reply["error"] or self._notice, ""
        dialog, self._dialogs = " ".join(self._dialogs), []
        return Observation(
            reply["url"],
            reply["title"],
            reply["nodes"],
            reply["above"],
            reply["below"],
            (self._tabs.index(self._tab) + 1, len(self._tabs)),
            error,
            dialog,
        )

    async def _back_off(self, url) -> Observation:
        """Leave a page outside the task's sites: back to where the tab came from, or close it."""
        error = f"blocked: {url} is outside the task's sites"
        history = await self._send("Page.getNavigationHistory")
        index = history["currentIndex"] - 1
        if index >= 0 and history["entries"][index]["url"] != "about:blank":
            return await self._finish(await self._evaluate("traverse", step=-1, error=error))
        page = self._tab
        if len(self._tabs) == 1:
            await self._open()
        await page.close()
        await self._until(lambda: page not in self._cdp)
        return await self._look(error)

    def _allowed(self, url: str) -> bool:
        """Whether `url` is on the task's sites; page.js's inSite() says the same of a link before it is followed."""
        return url.startswith("about:") or any(
            url.startswith(site) and (site.endswith("/") or url[len(site) : len(site) + 1] in ("", "/", "?", "#"))
            for site in self.sites
        )


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
