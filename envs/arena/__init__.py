"""The arena: small web sites on localhost with tasks in WebArena's format. Embedded, offline, sixteen at once.

A site is two modules of this folder, `<site>.py` (tables, content, pages) and `<site>_tasks.py` (TEMPLATES), and one
entry in SITES. The environment keeps the contract of docs/environments.md.
"""

import asyncio
import math
from dataclasses import replace

from playwright.async_api import Error as PlaywrightError

from common import html
from common.actions import Action
from common.errors import EnvFault, UsageError
from envs import webarena
from envs.arena import (
    code,
    code_tasks,
    cross_tasks,
    forum,
    forum_tasks,
    gallery,
    gallery_tasks,
    map,
    map_tasks,
    shop,
    shop_admin,
    shop_admin_tasks,
    shop_tasks,
    tasks,
)
from envs.arena.content import SEEDS, World
from envs.arena.server import COOKIE, Server
from envs.site import PageEnv, Served

SITES = (
    (shop, shop_tasks),
    (forum, forum_tasks),
    (shop_admin, shop_admin_tasks),
    (code, code_tasks),
    (map, map_tasks),
)
LEVELS = {10: "easy", 20: "medium", 30: "hard"}  # by the longest episode
VISUAL = ((gallery, gallery_tasks),)  # no part of the arena's task list
# The sites of each version of the tasks; tests/test_arena.py holds their hashes.
VERSIONS = {
    "arena-v1": ("shop", "forum"),
    "arena-v2": tuple(site.NAME for site, _ in SITES),
    "gallery-v1": ("gallery",),
}
# So many of each version's test tasks, the first, are the split "spent" since 26 November 2026: presets were chosen on
# them, or runs looked at them, and results of before are of them.
SPENT = {"arena-v1": 400, "arena-v2": 200}
CROSS = "cross"  # the group of tasks that cross sites; they are there where all sites are

# What an episode may hold so that its server state and the addresses it went through are all there is to know about it.
LINEAR = ("Click", "Type", "Search", "Select Dropdown Option", "Press", "Goto", "Wait")

READ_SECONDS = 60
SHOW_JS = """
async ([url, episode]) => {
  const answer = await fetch(url, {headers: {"x-episode": episode}});
  document.documentElement.innerHTML = await answer.text();
}
"""


def spent_tasks(sites):
    """How many of the first test tasks of these sites are spent: of a part of a version, all that the whole's are."""
    for version, count in SPENT.items():
        whole = VERSIONS[version]
        if set(sites) <= set(whole):
            groups = len(whole) + (len(whole) == len(SITES))  # those that cross sites are one, too
            return count if len(sites) == len(whole) else len(sites) * math.ceil(count / groups)
    return 0


class _Shared(Served):
    """What the slots of one arena have in common: the server, the browser, and one page that checks read from."""

    def __init__(self, sites, port, browser_options):
        super().__init__(Server(sites, port), browser_options)
        self.reading, self.reader = asyncio.Lock(), None
        self.splits = {}
        self.instructions = {}  # (site, content seed) -> its training instructions

    async def read(self, episode, url, locator):
        """What `locator` selects on a page of an episode, in a tab of our own: the agent's is left alone.

        The page's HTML is put into a document that stays, where its script does not run: a third of the time that a
        navigation takes.
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


class Arena(PageEnv):
    """One episode slot; `fork()` gives another one on the same server and browser.

    `sites` picks sites by name (None: the arena's), `only` tasks by their template's name or their level (LEVELS),
    `format` is the page text's ("compact" or "webrl"), `page_tokens` its longest length as `count_tokens(text)` counts
    (None: whole), `port` a fixed port for the server (0: any; a busy one: UsageError), `screenshots` puts a PNG into
    every observation; other options go to `Browser.start`.
    """

    def __init__(
        self,
        sites=None,
        format="compact",
        page_tokens=None,
        count_tokens=len,
        port=0,
        screenshots=False,
        only=(),
        **browser_options,
    ):
        sites = VERSIONS["arena-v2"] if sites is None else sites
        chosen = [(site, templates) for site, templates in (*SITES, *VISUAL) if site.NAME in sites]
        self.templates = {site.NAME: site_tasks.TEMPLATES for site, site_tasks in chosen}
        if len(chosen) == len(SITES):
            self.templates[CROSS] = cross_tasks.TEMPLATES
        self.spent = spent_tasks(sites)
        self.only = tuple(only)
        names = {template.name for site in self.templates.values() for template in site}
        if unknown := [name for name in self.only if name not in names and name not in LEVELS.values()]:
            known = ", ".join([*LEVELS.values(), *sorted(names)])
            raise UsageError(f"--env-id: {'+'.join(sites)} has no tasks named {', '.join(unknown)}; there are {known}")
        options = browser_options | {"screenshots": screenshots, "embedded": True}
        shared = _Shared([site for site, _ in chosen], port, options)
        super().__init__(shared, format, page_tokens, count_tokens, screenshots)

    def _clear(self):
        super()._clear()
        self._episode = None

    # --- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split):
        """The tasks of "train", "eval", "test" or "spent" (SPENT): always the same ones in the same order."""
        if split not in (*SEEDS, "spent"):
            raise ValueError(f"split {split!r} is none of {', '.join(SEEDS)}, spent")
        if split not in self._shared.splits:
            made = tasks.split_tasks("test" if split == "spent" else split, self.templates)
            if split in ("test", "spent"):
                made = made[self.spent :] if split == "test" else made[: self.spent]
            kept = [task for task in made if {task.template, LEVELS.get(task.max_steps)} & set(self.only)]
            self._shared.splits[split] = kept if self.only else made
        return self._shared.splits[split]

    def vary(self, task, rng):
        """Neighbouring instructions of `task`, from its text and the training instructions of its world: a list."""
        known = self._shared.instructions
        if not known:
            for other in self.tasks("train"):
                known.setdefault((other.site, other.seed), []).append(other.instruction)
        others = known.get((task.site, task.seed), [])
        return tasks.vary(task.instruction, self._templates(task), others, rng)

    def task_from_text(self, text, like):
        """The task that `text` means in the world of `like`, with its true check; None if it means none there."""
        return tasks.task_from_text(text, like, self._templates(like))

    def _templates(self, task):
        """The templates of tasks that begin where `task` does."""
        if "+" not in task.site:
            return self.templates[task.site]
        return [template for template in self.templates[CROSS] if "+".join(template.sites) == task.site]

    def resolve(self, move, obs):
        """The action text of an oracle's move on this observation, the slot's last; raises LookupError if its element
        is not there."""
        text = obs["text"] if self.format == "compact" else html.render(self._page, "compact")
        return tasks.resolve(move, text)

    def oracle(self, task):
        """The moves that solve `task`, closing exit included; `tasks.resolve` makes an action text of each."""
        template = next(template for template in self._templates(task) if template.name == task.template)
        return template.oracle(World(task.seed, task.split), task.config["instantiation_dict"])

    # --- episodes --------------------------------------------------------------------------------------------------

    async def _begin(self, task):
        await super()._begin(task)
        if self._episode is not None:
            self._shared.server.end(self._episode)
        self._episode = self._shared.server.new(World(task.seed, task.split))
        self._history, self._edited, self._linear = [], False, True

    async def _start(self):
        urls = self._shared.server.urls
        first, *others = [f"{urls[name.upper()]}/" for name in self._task.site.split("+")]
        page = await self._go_first(first)
        for url in others:
            await self._session.act(Action("New Tab", argument=url))
        return await self._session.act(Action("Switch Tab", argument="1")) if others else page

    async def _go_first(self, url):
        server = self._shared.server
        sites, cookies = list(server.urls.values()), {COOKIE: self._episode}
        return await self._session.reset(url, sites, cookies, keep_page=True)  # all state is the server's

    async def _observe(self, page, error=""):
        """The observation of a browser page, (obs, info); notes where the tab has been."""
        observed = await super()._observe(page, error)
        if not self._history or page.url != self._history[-1]:
            self._history.append(page.url)
            self._edited = False
        self._linear &= page.tabs[1] == 1
        return observed

    async def _act(self, action):
        self._edited = True  # until the address changes: a form may hold what no server knows
        self._linear &= action.name in LINEAR
        return await super()._act(action)

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
        plain = await super().prefix()
        if self._edited or not self._linear:
            return plain
        base = self._shared.server.url
        paths = tuple(url.removeprefix(base) for url in self._history)
        return replace(plain, snapshot=self._shared.server.snapshot(self._episode), history=paths)

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
        return await super().restore(prefix)

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
        await super().close()
