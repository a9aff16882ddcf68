"""The arena: small web sites on localhost with tasks in WebArena's format. Embedded, offline, sixteen at once.

A site is two modules of this folder, `<site>.py` (tables, content, pages) and `<site>_tasks.py` (TEMPLATES), and one
entry in SITES. The environment keeps the contract of docs/environments.md.
"""

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass

from playwright.async_api import Error as PlaywrightError

from common import html
from common.actions import Action, ActionError, parse
from common.browser import Browser
from common.errors import EnvFault, StateMismatch
from envs import Task, webarena
from envs.arena import forum, forum_tasks, shop, shop_tasks, tasks
from envs.arena.content import SEEDS, World
from envs.arena.server import COOKIE, Server

SITES = ((shop, shop_tasks), (forum, forum_tasks))

# What an episode may hold so that its server state and the addresses it went through are all there is to know about it.
LINEAR = ("Click", "Type", "Search", "Select Dropdown Option", "Press", "Goto", "Wait")

READ_SECONDS = 60
SHOW_JS = """
async ([url, episode]) => {
  const answer = await fetch(url, {headers: {"x-episode": episode}});
  document.documentElement.innerHTML = await answer.text();
}
"""


def observation_hash(obs):
    """16 hex digits for what the agent sees (address without the port, title, text): equal across ports and runs."""
    path = obs["url"].partition("://")[2].partition("/")[2]
    return hashlib.sha256("\n".join((path, obs["title"], obs["text"])).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Prefix:
    """The beginning of an episode, as `env.restore` wants it: what was done, and the hash of what was seen after it.

    `hashes` has one entry more than `actions`: the start page's. `snapshot` is the server's state and `history` the
    paths of the tab's pages, the current one last; both are left out where only a replay can bring the page back.
    """

    task: Task
    actions: tuple[str, ...]
    hashes: tuple[str, ...]
    snapshot: bytes | None = None
    history: tuple[str, ...] = ()


class _Shared:
    """What the slots of one arena have in common: the server, the browser, and one page that checks read from."""

    def __init__(self, sites, port, browser_options):
        self.server = Server(sites, port)
        self.options, self.lock, self.reading = browser_options, asyncio.Lock(), asyncio.Lock()
        self.browser = self.reader = None
        self.splits = {}
        self.instructions = {}  # (site, content seed) -> its training instructions

    async def start(self):
        async with self.lock:
            if self.browser is None:
                self.server.start()
                self.browser = await Browser.start(**self.options)
        if not self.server.alive:
            raise EnvFault("arena: the web server's thread is gone")

    async def read(self, episode, url, locator):
        """What `locator` selects on a page of an episode, in a tab of our own: the agent's is left alone.

        The page's HTML is put into a document that stays (no page of the arena has scripts): a third of the time that
        a navigation takes.
        """
        async with self.reading:
            try:
                return await asyncio.wait_for(self._read(episode, url, locator), READ_SECONDS)
            except (PlaywrightError, TimeoutError) as error:
                self.reader = None
                reason = (str(error) or f"no answer in {READ_SECONDS} s").splitlines()[0]
                raise EnvFault(f"arena: a check could not be read: {reason}") from None

    async def _read(self, episode, url, locator):
        if self.reader is None or self.reader.is_closed():
            chromium = await self.browser.connect()
            self.reader = await (await chromium.new_context()).new_page()
            await self.reader.goto(self.server.url)  # nothing is there but the origin
        await self.reader.evaluate(SHOW_JS, [url, episode])
        return await webarena.read(self.reader, locator)

    async def close(self):
        if self.browser is not None:
            await self.browser.close()
        self.server.stop()


class Arena:
    """One episode slot; `fork()` gives another one on the same server and browser.

    `sites` picks sites by name, `format` is the page text's ("compact" or "webrl"), `page_tokens` its longest length as
    `count_tokens(text)` counts (None: whole), `port` a fixed port for the server (0: any; a busy one is a UsageError),
    `screenshots` puts a PNG into every observation; other options go to `Browser.start`.
    """

    def __init__(
        self,
        sites=None,
        format="compact",
        page_tokens=None,
        count_tokens=len,
        port=0,
        screenshots=False,
        **browser_options,
    ):
        chosen = [(site, templates) for site, templates in SITES if sites is None or site.NAME in sites]
        self.sites = {site.NAME: site_tasks.TEMPLATES for site, site_tasks in chosen}
        self.format, self.page_tokens, self.count_tokens = format, page_tokens, count_tokens
        self.screenshots = screenshots
        browser_options["screenshots"] = screenshots
        self._shared, self._is_root = _Shared([site for site, _ in chosen], port, browser_options), True
        self._clear()

    def _clear(self):
        self._session = self._episode = self._task = self._obs = None
        self._over = True

    def fork(self):
        """Another slot. Closing it closes only itself; closing the slot that `make` gave closes all."""
        other = object.__new__(Arena)
        other.__dict__.update(self.__dict__, _is_root=False)
        other._clear()
        return other

    # --- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split):
        """The tasks of "train", "eval" or "test": always the same ones in the same order."""
        if split not in SEEDS:
            raise ValueError(f"split {split!r} is none of {', '.join(SEEDS)}")
        if split not in self._shared.splits:
            self._shared.splits[split] = tasks.split_tasks(split, self.sites)
        return self._shared.splits[split]

    def vary(self, task, rng):
        """Neighbouring instructions of `task`, from its text and the training instructions of its world: a list."""
        known = self._shared.instructions
        if not known:
            for other in self.tasks("train"):
                known.setdefault((other.site, other.seed), []).append(other.instruction)
        others = known.get((task.site, task.seed), [])
        return tasks.vary(task.instruction, self.sites[task.site], others, rng)

    def task_from_text(self, text, like):
        """The task that `text` means in the world of `like`, with its true check; None if it means none there."""
        return tasks.task_from_text(text, like, self.sites[like.site])

    def resolve(self, move, obs):
        """The action text of an oracle's move on this observation; raises LookupError if its element is not there."""
        return tasks.resolve(move, obs["text"])

    def oracle(self, task):
        """The moves that solve `task`, closing exit included; `tasks.resolve` makes an action text of each."""
        template = next(template for template in self.sites[task.site] if template.name == task.template)
        return template.oracle(World(task.seed, task.split), task.config["instantiation_dict"])

    # --- episodes --------------------------------------------------------------------------------------------------

    async def reset(self, task, seed=0):
        """Begin `task` in a fresh copy of its world: (obs, info). `seed` changes nothing: the world has its own."""
        await self._begin(task)
        start = (task.config or {}).get("start_url") or f"__{task.site.upper()}__"
        url = webarena.resolve(start, self._shared.server.urls) + "/"
        return await self._observe(await self._go_first(url))

    async def _begin(self, task):
        await self._shared.start()
        if self._session is None:
            self._session = await self._shared.browser.session()
        if self._episode is not None:
            self._shared.server.end(self._episode)
        self._task, self._episode = task, self._shared.server.new(World(task.seed, task.split))
        self._over, self._actions, self._hashes = False, [], []
        self._history, self._edited, self._linear = [], False, True

    async def _go_first(self, url):
        server = self._shared.server
        return await self._session.reset(url, sites=list(server.urls.values()), cookies={COOKIE: self._episode})

    async def _observe(self, page, error=""):
        """The observation of a browser page, (obs, info); notes its hash and where the tab has been."""
        self._obs = {
            "goal": self._task.instruction,
            "text": html.render(page, self.format, self.page_tokens, self.count_tokens),
            "url": page.url,
            "title": page.title,
            "error": error or page.error,
            "screenshot": await self._session.screenshot() if self.screenshots else None,
        }
        self._hashes.append(observation_hash(self._obs))
        if not self._history or page.url != self._history[-1]:
            self._history.append(page.url)
            self._edited = False
        self._linear &= page.tabs[1] == 1
        return self._obs, {"task_id": self._task.task_id, "hash": self._hashes[-1]}

    async def step(self, text):
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
                obs, info = await self._act(action)
        terminated = answer is not None
        truncated = not terminated and len(self._actions) >= self._task.max_steps
        reward = 0.0
        if terminated or truncated:
            self._over = True
            checked = self._task.config is not None
            verdict = (await self.verdict(answer) if terminated else 0.0) if checked else None
            reward = verdict or 0.0
            info |= {"answer": answer or "", "verdict": verdict}
        return obs, reward, terminated, truncated, info

    async def _act(self, action):
        self._edited = True  # until the address changes: a form may hold what no server knows
        self._linear &= action.name in LINEAR
        return await self._observe(await self._session.act(action))

    async def verdict(self, answer):
        """The score, 1.0 or 0.0, that an exit with `answer` would get now."""
        config = webarena.resolve(self._task.config, self._shared.server.urls)
        here = self._obs["url"]

        async def fetch(url, locator):
            return await self._shared.read(self._episode, here if url == "last" else url, locator)

        return await webarena.evaluate(config, answer, here, fetch)

    # --- going back to a state -------------------------------------------------------------------------------------

    async def prefix(self):
        """The episode so far, for `restore`, here or in another slot."""
        plain = (self._task, tuple(self._actions), tuple(self._hashes))
        if self._edited or not self._linear:
            return Prefix(*plain)
        base = self._shared.server.url
        paths = tuple(url.removeprefix(base) for url in self._history)
        return Prefix(*plain, self._shared.server.snapshot(self._episode), paths)

    async def restore(self, prefix):
        """Bring back the state after `prefix`: (obs, info), the episode goes on from there.

        By the snapshot where there is one: the server's state is copied and the tab visits its pages again. Otherwise,
        or if a page of the way cannot be visited (the answer to a posted form), by doing the actions again from a
        reset. Raises StateMismatch if what is seen in the end is not what was seen then.
        """
        if prefix.snapshot is not None:
            obs, info = await self._revisit(prefix)
            if info["hash"] == prefix.hashes[-1]:
                self._actions, self._hashes = list(prefix.actions), list(prefix.hashes)
                return obs, info
        obs, info = await self.reset(prefix.task)
        for number, action in enumerate(prefix.actions):
            if self._over:
                raise StateMismatch(f"{prefix.task.task_id}: the episode ended at action {number}")
            obs, _, _, _, info = await self.step(action)
        if info["hash"] != prefix.hashes[-1]:
            raise StateMismatch(f"{prefix.task.task_id}: after {len(prefix.actions)} actions the page is another one")
        return obs, info

    async def _revisit(self, prefix):
        await self._begin(prefix.task)
        base = self._shared.server.url
        self._shared.server.restore(self._episode, prefix.snapshot)
        observed = await self._observe(await self._go_first(base + prefix.history[0]))
        for path in prefix.history[1:]:
            observed = await self._observe(await self._session.act(Action("Goto", None, base + path)))
        return observed

    async def close(self):
        """Free the slot; the first slot stops server and browser. May be called again."""
        if self._episode is not None:
            self._shared.server.end(self._episode)
        if self._session is not None:
            with contextlib.suppress(EnvFault):
                await self._session.close()
        self._clear()
        if self._is_root:
            await self._shared.close()
