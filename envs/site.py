"""Tasks on web sites that are there already, your own for instance: a file in WebArena's task format and any address.

    python webrl.py --env-id site:tasks.json --demos demos.jsonl --no-curriculum
    python webrl.py --env-id site --start-url https://example.org/ --tasks tasks.jsonl --judge URL --no-curriculum

`PageEnv` is what every environment made of web pages has in common: an episode is a browser session, an action is a
text in the grammar of common/actions.py, the end is scored by WebArena's evaluators.
"""

import asyncio
import base64
import contextlib
import json
import os
import random
import ssl
import time
import urllib.robotparser
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

import httpx

from common import html, screen
from common.actions import Action, ActionError, parse
from common.browser import Browser, Observation
from common.errors import Blocked, EnvFault, UsageError
from common.reply import plain
from envs import Info, Obs, Prefix, Task, observation_hash, replay, webarena

COOKIE = "cleangui-episode"
RESET_SECONDS = 60
ROBOTS = 512 * 1024  # bytes of a robots.txt that are read (RFC 9309 asks for 500 KiB)
WEB_ERRORS = (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)  # TimeoutError is an OSError
LONG = 50_000  # characters of a page, which take a tokenizer some tenths of a second
SPLITS = ("train", "eval", "test")


class Shared:
    """What the slots of one environment have in common: the browser."""

    def __init__(self, browser_options: dict[str, Any]):
        self.options, self.lock, self.browser = browser_options, asyncio.Lock(), None
        self.begun = False  # whether any episode ever saw its start page

    async def start(self) -> None:
        async with self.lock:
            if self.browser is None:
                await self._open()

    async def _open(self):
        self.browser = await Browser.start(**self.options)

    async def close(self) -> None:
        if self.browser is not None:
            await self.browser.close()


class Served(Shared):
    """The same, with web sites of our own: `server` is an envs.arena.server.Server."""

    def __init__(self, server: Any, browser_options: dict[str, Any]):
        super().__init__(browser_options)
        self.server = server

    async def start(self) -> None:
        await super().start()
        if not self.server.alive:
            raise EnvFault("the web server's thread is gone")

    async def _open(self):
        self.server.start()
        await super()._open()

    async def close(self) -> None:
        await super().close()
        self.server.stop()


class PageEnv:
    """One episode slot; `fork()` gives another one on the same browser.

    `format` is the page text's ("compact" or "webrl"), `page_tokens` its longest length as `count_tokens(text)` counts
    (None: whole), `screenshots` puts a PNG into every observation. A child says how an episode begins (`_start`) and
    how an exit is scored (`verdict`).
    """

    live = False  # whether its sites are not ours: a task may begin with another page each time
    scores_without_exit = False  # whether an episode that is cut off is scored, too, as an exit without an answer

    def __init__(
        self,
        shared: Shared,
        format: str,
        page_tokens: int | None,
        count_tokens: Callable[[str], int],
        screenshots: bool,
    ):
        self.format, self.page_tokens, self.count_tokens = format, page_tokens, count_tokens
        self.screenshots = screenshots
        self._shared, self._is_root = shared, True
        self._clear()

    def _clear(self):
        self._session = self._task = self._obs = self._page = None
        self._actions, self._hashes, self._over = [], [], True

    def fork(self) -> Self:
        """Another slot. Closing it closes only itself; closing the slot that `make` gave closes all."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _is_root=False)
        other._clear()
        return other

    async def reset(self, task: Task, seed: int = 0) -> tuple[Obs, Info]:
        """Begin `task`: (obs, info). `seed` changes nothing: what is random in a world is so by `task.seed`."""
        await self._begin(task)
        return await self._observe(await self._start())

    async def _begin(self, task):
        await self._shared.start()
        if self._session is None:
            self._session = await self._shared.browser.session()
        self._task, self._over, self._actions, self._hashes = task, False, [], []

    async def _began(self, opening: Coroutine[Any, Any, Observation]) -> Observation:
        """The start page that `opening` brings: an agent that sees nothing would fail to its last step. What never
        worked is a UsageError, of the file, an address or the network; later on it may be the site's fault."""
        try:
            page = await opening
            problem = (page.error or "it stays blank") if page.url.startswith("about:") else ""  # no content, say
        except Blocked as error:
            problem = str(error)
        if problem:
            reason = f"task {self._task.task_id}: its start page does not open: {problem}"
            if "outside the task's sites" in reason:
                reason += " (it leads there: name that host, too, or start there)"
            raise (Blocked if self._shared.begun else UsageError)(reason)
        self._shared.begun = True
        return page

    async def _observe(self, page, error=""):
        """The observation of a browser page, (obs, info); notes its hash."""
        options = page, self.format, self.page_tokens, self.count_tokens
        # other episodes go on meanwhile
        text = await asyncio.to_thread(html.render, *options) if html.length(page) > LONG else html.render(*options)
        self._obs = {
            "goal": self._task.instruction,
            "text": text,
            "url": page.url,
            "title": page.title,
            "error": error or page.error,
            "boxes": {str(node["id"]): tuple(node["box"]) for node in page.nodes if node.get("id")},
            "screenshot": await self._session.screenshot() if self.screenshots else None,
        }
        self._page = page
        self._hashes.append(observation_hash(self._obs))
        return self._obs, {"task_id": self._task.task_id, "hash": self._hashes[-1]}

    async def step(self, text: str) -> tuple[Obs, float, bool, bool, Info]:
        """Do the action in `text`: Gymnasium's five. At the end `info["verdict"]` is the true score, or None.

        The reward is 1.0 or 0.0 at the agent's exit, and 0.0 at `task.max_steps`. What cannot be parsed or done is an
        observation with `error`. Raises EnvFault if browser or server is lost.
        """
        if self._over:
            raise RuntimeError("the episode is over: call reset")
        self._actions.append(text)
        answer = None
        try:
            action = parse(text)
        except ActionError as error:
            obs, info = await self._observe(await self._session.observe(), str(error))
        else:
            if action.name == "Exit":
                answer = action.argument or ""
                obs, info = await self._observe(await self._session.observe())
            else:
                places = screen.points(action, self._obs["boxes"])
                obs, info = await self._act(action)
                wide, high = self._shared.browser.viewport.values()
                ends = places[:1] + places[1:][-1:]  # of a drag: start and end
                info["touches"] = [[x / wide, y / high] for x, y in ends if 0 <= x <= wide and 0 <= y <= high]
        terminated = answer is not None
        truncated = not terminated and self._is_cut_off()
        reward = 0.0
        if terminated or truncated:
            self._over = True
            checked, scored = self._task.config is not None, terminated or self.scores_without_exit
            verdict = (await self.verdict(answer or "") if scored else 0.0) if checked else None
            reward = verdict or 0.0
            info |= {"answer": answer or "", "verdict": verdict}
        return obs, reward, terminated, truncated, info

    def _is_cut_off(self):
        """Whether the episode ends here although the agent has not ended it."""
        return len(self._actions) >= self._task.max_steps

    async def _act(self, action):
        return await self._observe(await self._session.act(action))

    async def at_page(self, use: Callable) -> Any:
        """What `await use(page)` gives of the focused tab, Playwright's Page: for a person at its window."""
        return await self._session.read(None, use)

    async def prefix(self) -> Prefix:
        """The episode so far, for `restore`, here or in another slot."""
        return Prefix(self._task, tuple(self._actions), tuple(self._hashes))

    async def restore(self, prefix: Prefix) -> tuple[Obs, Info]:
        """Bring back the state after `prefix` by doing its actions again from a reset: (obs, info), the episode goes on
        from there. Raises StateMismatch if what is seen in the end is not what was seen then."""
        return await replay(self, prefix)

    async def close(self) -> None:
        """Free the slot; the first slot stops what all share. May be called again."""
        if self._session is not None:
            with contextlib.suppress(EnvFault):
                await self._session.close()
        self._clear()
        if self._is_root:
            await self._shared.close()


class Site(PageEnv):
    """The tasks of one file. There is no oracle (give demonstrations), and nothing that varies an instruction (a
    generator writes new ones, or none are written).

    The file is a list in WebArena's schema, or one entry a line: `intent`, `start_url` (several joined by " |AND| " are
    tabs), `eval`, with addresses in full; besides, as you like, `split` ("train", "eval" or "test"; without it three in
    five are for training, one is for eval and one for test, by a hash of the instruction), `max_steps` (30), `sites`
    (addresses or hosts that the agent may visit; default: where it starts, as also where only names stand there, as in
    WebArena's files), `storage_state` (a file with a log-in's cookies, as Playwright writes it), `geolocation`,
    `uploads` (a folder, seen from the file's, whose files the agent may upload by their names), and `reset_url`, which
    is asked for before every episode, so that your site can put back what episodes change. Every episode has a cookie
    of its own, `cleangui-episode`, for all hosts that the agent may visit and on that request, too: a site that keeps
    its state by this cookie can serve many episodes at once; for any other there is `--num-envs 1`.

    An entry without `eval` has no true verdict: a judge says what succeeded. `start_url` and `hosts` (joined by commas)
    hold for entries that have none of their own. Between two actions, of all slots together, there are at least
    `action_interval` seconds. With `obey_robots` no page is asked for that the host's robots.txt forbids to everybody.
    """

    title, live = "your own site", True

    def __init__(
        self,
        path: str,
        start_url: str = "",
        hosts: str = "",
        action_interval: float = 0.0,
        obey_robots: bool = True,
        format: str = "compact",
        page_tokens: int | None = None,
        count_tokens: Callable[[str], int] = len,
        screenshots: bool = False,
        **options: Any,
    ):
        shared = _Shared(options | {"screenshots": screenshots}, action_interval, obey_robots)
        super().__init__(shared, format, page_tokens, count_tokens, screenshots)
        self.path = path
        self._splits, self._starts = self._read(start_url, hosts)

    def _read(self, start_url, hosts):
        return read_tasks(self.path, start_url, hosts)

    def tasks(self, split: str) -> list[Task]:
        """The tasks of "train", "eval" or "test" in the file's order. Raises UsageError where there are none."""
        if not self._splits[split]:
            raise UsageError(f"{self.path}: no task is in the split {split!r}")
        return self._splits[split]

    def oracle(self, task: Task) -> Iterable[Any]:
        raise UsageError(f"{self.title} has no oracle: give demonstrations with --demos FILE (tools/play.py records)")

    def vary(self, task: Task, rng: random.Random) -> list[str]:
        raise UsageError(f"nothing varies the instructions of {self.title}: --generator URL or --no-curriculum")

    def task_from_text(self, text: str, like: Task) -> Task | None:
        """None: no true checker is known for an instruction that is not in the file."""
        return None

    async def _start(self):
        # an entry without a check has no config, and an instruction that a generator wrote has no entry
        config, episode = self._task.config or self._starts[self._task.site], uuid.uuid4().hex
        if config.get("reset_url"):
            await _reset(config["reset_url"], episode)
        first, *others = config["start_url"].split(webarena.AND)
        sites = config.get("sites") or list(dict.fromkeys(map(origin, (first, *others))))
        refuses = await self._shared.refuses(sites)
        for url in (first, *others):
            if refuses is not None and refuses(url):
                raise UsageError(f"{url}: its robots.txt forbids it (--no-obey-robots, if you may)")
        await self._shared.turn()
        uploads = Path(self.path).parent / config["uploads"] if config.get("uploads") else None
        options = {"sites": sites, "cookies": {COOKIE: episode}, "refuses": refuses, "context": _context(config)}
        options["uploads"] = uploads
        page = await self._began(self._session.reset(first, **options))
        for url in others:
            await self._shared.turn()
            await self._began(self._session.act(Action("New Tab", argument=url)))
        return await self._session.act(Action("Switch Tab", argument="1")) if others else page

    async def _act(self, action):
        await self._shared.turn()
        return await super()._act(action)

    async def verdict(self, answer: str) -> float:
        """The score, 1.0 or 0.0, that an exit with `answer` would get now."""

        async def fetch(url, locator):
            return await self._session.read(None if url == "last" else url, lambda page: webarena.read(page, locator))

        return await webarena.evaluate(self._task.config, answer, self._obs["url"], fetch)


def read_tasks(path: str, start_url: str = "", hosts: str = "") -> tuple[dict[str, list[Task]], dict[str, dict]]:
    """The file's tasks by split, and an entry for each address where tasks start (`Task.site`). Raises UsageError, one
    line with the line of the file, for a file or a task that cannot be used."""
    tasks, starts = [], {}
    try:
        entries = webarena.read_entries(path)
    except UsageError as error:
        raise UsageError(f"--env-id site: not a list of tasks: {error}") from None
    for number, (line, entry) in enumerate(entries):
        name = number if entry.get("task_id") is None else entry["task_id"]
        try:
            config = _with_defaults(entry, start_url, hosts)
            tasks.append(_task(str(name), config))
        except KeyError as error:
            problem = f"the key {error} is missing"
        except (ValueError, TypeError, AttributeError, OSError) as error:
            problem = str(error)
        else:
            starts[tasks[-1].site] = config
            continue
        raise UsageError(f"--env-id site:{path}: line {line}, task {name}: {problem}")
    for (split, name), count in Counter((task.split, task.task_id) for task in tasks).items():
        if count > 1:
            raise UsageError(f"--env-id site:{path}: {count} tasks of the split {split} have the task_id {name}")
    return by_split(tasks), starts


def draw_split(text: str) -> str:
    """Three in five texts are for training, one is for eval and one for test, always the same."""
    return {0: "eval", 1: "test"}.get(zlib.crc32(text.encode()) % 5, "train")


def by_split(tasks: list[Task]) -> dict[str, list[Task]]:
    return {split: [task for task in tasks if task.split == split] for split in SPLITS}


def _with_defaults(config, start_url, hosts):
    """The entry with where it starts and which sites it may visit, all addresses in one spelling: `hosts`, by the
    scheme of its start, where it names none. Raises ValueError."""
    given = config.get("start_url") or start_url
    if not given:
        raise ValueError("it has no start_url, and there is no --start-url")
    starts = [web_address("start_url", url) for url in str(given).split(webarena.AND.strip())]
    scheme, named = urlsplit(starts[0]).scheme, config.get("sites") or []
    named = named.split(",") if isinstance(named, str) else named
    if not isinstance(named, list):
        raise ValueError(f"sites is {named!r}, not a list of addresses")
    hosts = [host.strip() for host in hosts.split(",") if host.strip()]
    sites = [site for site in (_site(site, scheme) for site in named) if site]
    sites = sites or [_site(f"{scheme}://{host}", scheme) for host in hosts]
    config = config | {"start_url": webarena.AND.join(starts)}
    config = {key: value for key, value in config.items() if key != "sites"} | ({"sites": sites} if sites else {})
    if config.get("reset_url"):
        config["reset_url"] = web_address("reset_url", config["reset_url"])
    elif config.get("require_reset"):
        raise ValueError("it requires a reset, and has no reset_url")
    if not isinstance(config.get("uploads", ""), str):
        raise ValueError(f"uploads is {config['uploads']!r}, not a folder")
    return config


def _site(site, scheme):
    """Where an agent may go, as an address without a log-in, or "*.host" for a host and all below it; "" for what only
    names a site, as WebArena's files do. Raises ValueError."""
    if not isinstance(site, str):
        raise ValueError(f"sites holds {site!r}, not an address")
    site = site.strip()
    if site.startswith("*."):
        return site.lower()
    if "://" not in site and not set(".:") & set(site) and site.lower() != "localhost":
        return ""
    parts = urlsplit(web_address("sites", site if "://" in site else f"{scheme}://{site}"))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def web_address(key: str, url: str) -> str:
    """An http(s) address as a browser spells it: scheme and host in small letters, a foreign host as it is asked for,
    without the port that is the scheme's own. Raises ValueError for what is none."""
    parts = urlsplit(url.strip())
    known = parts.scheme in ("http", "https") and parts.hostname
    if not known or any(c.isspace() for c in parts.netloc):
        raise ValueError(f"{key} {url!r} is no address")
    log_in, at, host = parts.netloc.rpartition("@")
    host = host.lower() if host.isascii() else host.encode("idna").decode()
    host = host.removesuffix({"http": ":80", "https": ":443"}[parts.scheme]).removesuffix(":")
    if parts.port == 0:  # a ValueError, too, for what is no port
        raise ValueError(f"{key} {url!r} is no address")
    return parts._replace(netloc=log_in + at + host).geturl()


def _task(name, config):
    split = config.get("split") or draw_split(webarena.text_of(config, "intent"))
    if split not in SPLITS:
        raise ValueError(f"the split is {split!r}")
    checked = config.get("eval") is not None
    if checked:
        webarena.check_rules(config["eval"])
    _context(config)
    steps = webarena.MAX_STEPS if config.get("max_steps") is None else int(config["max_steps"])
    if steps < 1:
        raise ValueError(f"max_steps is {steps}, less than one")
    start = urlsplit(config["start_url"].split(webarena.AND)[0])
    return Task(
        task_id=name,
        site=start._replace(netloc=start.netloc.rpartition("@")[2]).geturl(),
        instruction=webarena.text_of(config, "intent"),
        max_steps=steps,
        split=split,
        template=str(config.get("intent_template_id", "")),
        config=config if checked else None,
    )


def _context(config):
    """Options of the browser's context for an entry; None: the usual ones. Raises ValueError, KeyError or OSError."""
    options, place = {}, config.get("geolocation")
    if config.get("storage_state"):
        options["storage_state"] = json.loads(Path(config["storage_state"]).read_text())
        if not isinstance(options["storage_state"], dict):
            raise ValueError(
                f"storage_state {config['storage_state']}: no cookies and origins, as Playwright writes them"
            )
    if place:
        where = {key: float(place[key]) for key in ("latitude", "longitude")}
        options |= {"geolocation": where, "permissions": ["geolocation"]}
    return options or None


class _Shared(Shared):
    """What the slots have in common besides the browser: the next moment for an action, and what robots.txt says."""

    def __init__(self, browser_options, action_interval, obey_robots):
        super().__init__(browser_options)
        self.interval, self.obey_robots, self.next_turn = action_interval, obey_robots, 0.0
        self.rules = {}  # origin -> its robots.txt
        self.reading = defaultdict(asyncio.Lock)  # origin -> held while it is read

    async def turn(self) -> None:
        """Wait until `interval` seconds after the last one who came here could go on."""
        if self.interval > 0:
            now = time.monotonic()
            self.next_turn = max(now, self.next_turn) + self.interval
            await asyncio.sleep(self.next_turn - self.interval - now)

    async def refuses(self, sites: Iterable[str]) -> Callable[[str], bool] | None:
        """Whether robots.txt forbids a URL, as a function; None where it forbids nothing, or nobody asks. Raises
        EnvFault where it cannot be read."""
        if not self.obey_robots:
            return None
        hosts = {origin(site) for site in sites if not site.startswith("*.")}
        for host in hosts:
            async with self.reading[host]:
                if host not in self.rules:
                    self.rules[host] = await _robots(host)
        return self.is_forbidden if any(self.rules[host] for host in hosts) else None

    def is_forbidden(self, url: str) -> bool:
        """By the host's robots.txt, or, where that was not read, by that of the nearest host above it that was."""
        parts = urlsplit(url)
        labels = parts.netloc.split(".")
        above = (".".join(labels[place:]) for place in range(len(labels)))
        origins = (f"{parts.scheme}://{www}{host}" for host in above for www in ("", "www."))
        rules = next((self.rules[origin] for origin in origins if origin in self.rules), None)
        return rules is not None and not rules.can_fetch("*", url)


async def _robots(site):
    """What robots.txt says to everybody; None where that is nothing. (RFC 9309: what cannot be read for a fault of the
    server's may forbid everything.)"""
    url = f"{site}/robots.txt"
    try:
        status, text = await ask(url, most=ROBOTS)
    except WEB_ERRORS as error:
        raise EnvFault(f"{url}: {reason_of(error)}") from None
    if status >= 500:
        raise EnvFault(f"{url}: status {status}")
    if status >= 400:
        return None
    rules = urllib.robotparser.RobotFileParser(url)
    rules.parse(text.decode("utf-8", "replace").splitlines())
    return rules if rules.default_entry else None


async def ask(
    url: str,
    headers: dict[str, str] | None = None,
    body: Any = None,
    most: int = 0,
    seconds: float = RESET_SECONDS,
) -> tuple[int, bytes]:
    """The status of an answer and the first `most` bytes of its text, whatever the server does within `seconds`
    altogether. `body`: JSON to be posted. Raises one of WEB_ERRORS."""
    tls = ssl.create_default_context()
    method, text = ("GET" if body is None else "POST"), b""
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(verify=tls, follow_redirects=True, timeout=seconds) as client,
    ):
        async with client.stream(method, url, headers=headers, json=body) as answer:
            async for part in answer.aiter_raw(1 << 16):
                text += part
                if len(text) >= most:
                    break
    return answer.status_code, text[:most]


def reason_of(error: BaseException) -> str:
    """An error of `ask` in a few words: the system's own where it is one of the connection's."""
    cause = error
    while cause is not None:
        if getattr(cause, "errno", None) and cause.errno > 0:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return plain(str(error), 200) or type(error).__name__


def origin(url: str) -> str:
    """Scheme and host of an address, without a log-in."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def _reset(url, episode):
    parts = urlsplit(url)
    log_in, _, host = parts.netloc.rpartition("@")
    url = quote(parts._replace(netloc=host).geturl(), safe="%/:=&?~#+!$,;'@()*[]")
    headers = {"cookie": f"{COOKIE}={episode}"}
    if log_in:
        headers["authorization"] = f"Basic {base64.b64encode(unquote(log_in).encode()).decode()}"
    try:
        status, _ = await ask(url, headers)
    except WEB_ERRORS as error:
        raise EnvFault(f"reset_url {url}: {reason_of(error)}") from None
    if status >= 400:
        raise EnvFault(f"reset_url {url}: status {status}")
