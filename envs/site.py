"""Tasks on web sites that are there already, your own for instance: a file in WebArena's task format and any address.

    python webrl.py --env-id site:tasks.json --demos demos.jsonl --no-curriculum

`PageEnv` is what every environment made of web pages has in common: an episode is a browser session, an action is a
text in the grammar of common/actions.py, the end is scored by WebArena's evaluators.
"""

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
import uuid
import zlib
from urllib.parse import urlsplit

from common import html
from common.actions import ActionError, parse
from common.browser import Browser
from common.errors import EnvFault, UsageError
from envs import Prefix, Task, observation_hash, replay, webarena

COOKIE = "cleangui-episode"
RESET_SECONDS = 60


class Shared:
    """What the slots of one environment have in common: the browser."""

    def __init__(self, browser_options):
        self.options, self.lock, self.browser = browser_options, asyncio.Lock(), None

    async def start(self):
        async with self.lock:
            if self.browser is None:
                await self._open()

    async def _open(self):
        self.browser = await Browser.start(**self.options)

    async def close(self):
        if self.browser is not None:
            await self.browser.close()


class Served(Shared):
    """The same, with web sites of our own: `server` is an envs.arena.server.Server."""

    def __init__(self, server, browser_options):
        super().__init__(browser_options)
        self.server = server

    async def start(self):
        await super().start()
        if not self.server.alive:
            raise EnvFault("the web server's thread is gone")

    async def _open(self):
        self.server.start()
        await super()._open()

    async def close(self):
        await super().close()
        self.server.stop()


class PageEnv:
    """One episode slot; `fork()` gives another one on the same browser.

    `format` is the page text's ("compact" or "webrl"), `page_tokens` its longest length as `count_tokens(text)` counts
    (None: whole), `screenshots` puts a PNG into every observation. A child says how an episode begins (`_start`) and
    how an exit is scored (`verdict`).
    """

    scores_without_exit = False  # whether an episode that is cut off is scored, too, as an exit without an answer

    def __init__(self, shared, format, page_tokens, count_tokens, screenshots):
        self.format, self.page_tokens, self.count_tokens = format, page_tokens, count_tokens
        self.screenshots = screenshots
        self._shared, self._is_root = shared, True
        self._clear()

    def _clear(self):
        self._session = self._task = self._obs = self._page = None
        self._actions, self._hashes, self._over = [], [], True

    def fork(self):
        """Another slot. Closing it closes only itself; closing the slot that `make` gave closes all."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _is_root=False)
        other._clear()
        return other

    async def reset(self, task, seed=0):
        """Begin `task`: (obs, info). `seed` changes nothing: what is random in a world is so by `task.seed`."""
        await self._begin(task)
        return await self._observe(await self._start())

    async def _begin(self, task):
        await self._shared.start()
        if self._session is None:
            self._session = await self._shared.browser.session()
        self._task, self._over, self._actions, self._hashes = task, False, [], []

    async def _observe(self, page, error=""):
        """The observation of a browser page, (obs, info); notes its hash."""
        self._obs = {
            "goal": self._task.instruction,
            "text": html.render(page, self.format, self.page_tokens, self.count_tokens),
            "url": page.url,
            "title": page.title,
            "error": error or page.error,
            "screenshot": await self._session.screenshot() if self.screenshots else None,
        }
        self._page = page
        self._hashes.append(observation_hash(self._obs))
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

    async def prefix(self):
        """The episode so far, for `restore`, here or in another slot."""
        return Prefix(self._task, tuple(self._actions), tuple(self._hashes))

    async def restore(self, prefix):
        """Bring back the state after `prefix` by doing its actions again from a reset: (obs, info), the episode goes on
        from there. Raises StateMismatch if what is seen in the end is not what was seen then."""
        return await replay(self, prefix)

    async def close(self):
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

    The file is a list in WebArena's schema: `intent`, `start_url`, `eval`, with addresses in full; besides, as you
    like, `split` ("train", "eval" or "test"; without it three in five are for training, one is for eval and one for
    test, by a hash of the instruction), `max_steps` (30), `sites` (addresses that the agent may visit; default:
    where it starts), and `reset_url`, which is asked for before every episode, so that your site can put back what
    episodes change. Every episode has a cookie of its own, `cleangui-episode`, on that request, too: a site that keeps
    its state by this cookie can serve many episodes at once; for any other there is `--num-envs 1`.
    """

    def __init__(self, path, format="compact", page_tokens=None, count_tokens=len, screenshots=False, **options):
        super().__init__(Shared(options | {"screenshots": screenshots}), format, page_tokens, count_tokens, screenshots)
        self.path, self._splits = path, read_tasks(path)
        # by start page, for an instruction that a generator wrote: it has no entry of its own
        self._configs = {task.site: task.config for tasks in self._splits.values() for task in tasks}

    def tasks(self, split):
        """The tasks of "train", "eval" or "test" in the file's order. Raises UsageError where there are none."""
        if not self._splits[split]:
            raise UsageError(f"{self.path}: no task is in the split {split!r}")
        return self._splits[split]

    def oracle(self, task):
        raise UsageError("your own site has no oracle: give demonstrations with --demos FILE (tools/play.py records)")

    def vary(self, task, rng):
        raise UsageError("nothing varies the instructions of your own site: --generator URL or --no-curriculum")

    def task_from_text(self, text, like):
        """None: no true checker is known for an instruction that is not in the file."""
        return None

    async def _start(self):
        config, episode = self._task.config or self._configs[self._task.site], uuid.uuid4().hex
        if config.get("reset_url"):
            await asyncio.to_thread(_ask, config["reset_url"], episode)
        return await self._session.reset(config["start_url"], sites=config.get("sites"), cookies={COOKIE: episode})

    async def verdict(self, answer):
        """The score, 1.0 or 0.0, that an exit with `answer` would get now."""

        async def fetch(url, locator):
            return await self._session.read(None if url == "last" else url, lambda page: webarena.read(page, locator))

        return await webarena.evaluate(self._task.config, answer, self._obs["url"], fetch)


def read_tasks(path):
    """The file's tasks by split; `Task.site` is the address where a task starts. Raises UsageError, one line, for a
    file or a task that cannot be used."""
    try:
        with open(path, encoding="utf-8") as file:
            configs = json.load(file)
        tasks = [_task(number, config) for number, config in enumerate(configs)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--env-id site:{path}: not a list of tasks ({type(error).__name__}: {error})") from None
    return {split: [task for task in tasks if task.split == split] for split in ("train", "eval", "test")}


def _task(number, config):
    share = zlib.crc32(config["intent"].encode()) % 5
    split = config.get("split") or {0: "eval", 1: "test"}.get(share, "train")
    if split not in ("train", "eval", "test"):
        raise ValueError(f"task {number}: the split is {split!r}")
    if urlsplit(config["start_url"]).scheme not in ("http", "https"):
        raise ValueError(f"task {number}: start_url {config['start_url']!r} is no address")
    webarena.check(config)
    return Task(
        task_id=str(config.get("task_id", number)),
        site=config["start_url"],
        instruction=config["intent"],
        max_steps=int(config.get("max_steps", webarena.MAX_STEPS)),
        split=split,
        template=str(config.get("intent_template_id", "")),
        config=config,
    )


def _ask(url, episode):
    request = urllib.request.Request(url, headers={"cookie": f"{COOKIE}={episode}"})
    try:
        with urllib.request.urlopen(request, timeout=RESET_SECONDS):
            pass
    except (urllib.error.URLError, TimeoutError) as error:
        raise EnvFault(f"reset_url {url}: {error}") from None
