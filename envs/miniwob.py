"""MiniWoB++ (Shi et al., 2017; Liu et al., 2018, arXiv:1802.08802): 125 small tasks on one page each, in the browser.

    env = envs.make("miniwob")                                           # all tasks
    env = envs.make("miniwob/click-checkboxes+enter-text")               # some of them
    env = envs.make("miniwob/webgum")                                    # a set of SETS

The pages are those of the PyPI package `miniwob` (requirements-miniwob.txt), and all that is used of it.
envs/miniwob.js begins an episode in a page and reads its reward. Docs: docs/miniwob.md.
"""

import asyncio
import hashlib
import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from common.actions import Action, ActionError, format_action, parse
from common.browser import Browser
from common.errors import UsageError
from envs import Task
from envs.miniwob_oracles import SOLUTIONS, Page
from envs.site import PageEnv, Shared
from envs.text import Move

MAX_STEPS = 10  # as BrowserGym has it; the pages' own limit, 10 s of real time and more, is lifted
# Episodes of each task. Seed n is Math.seedrandom(n) in the page, as in BrowserGym, which draws the n.
SEEDS = {"train": range(1000, 1080), "eval": range(100, 104), "test": range(5)}
VARIED = range(2000, 2200)  # those that `vary` proposes: a page's other episodes
INSTRUCTIONS_JS = "seeds => seeds.map(__gui.utterance)"
SCRIPT = Path(__file__).with_suffix(".js").read_text().strip()
NO_PAGES = "no pages of MiniWoB++ here: pip install --no-deps -r requirements-miniwob.txt"

# The tasks, and their split into train and test, by similarity, are BrowserGym's; "webgum" is its webgum_subset, the 56
# tasks of WebGUM (Furuta et al., 2024, arXiv:2305.11854). Source: github.com/ServiceNow/BrowserGym at 9e779f08,
# metadata/miniwob.csv (Apache-2.0). Of the package's pages button-delay, chase-circle, hover-shape, moving-items and
# simon-says are no tasks there. Ours: "small", of which a model of 135 M parameters learns about half from two
# demonstrations each, and "small-unseen", others of the same kinds (docs/real.md).
SETS = {
    "browsergym-train": """
        book-flight book-flight-nodelay buy-ticket choose-date choose-date-easy choose-date-medium choose-date-nodelay
        circle-center click-checkboxes click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer
        click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog
        click-dialog-2 click-option click-shades click-test-2 click-test-transfer count-shape daily-calendar drag-box
        drag-items drag-shapes drag-shapes-2 drag-single-shape drag-sort-numbers draw-circle draw-line enter-date
        enter-password enter-text enter-text-2 enter-text-dynamic enter-time find-midpoint focus-text focus-text-2
        form-sequence identify-shape login-user login-user-popup multi-layouts multi-orderings navigate-tree odd-or-even
        read-table read-table-2 search-engine text-editor text-transform unicode-test use-autocomplete
        use-autocomplete-nodelay use-colorwheel use-colorwheel-2 use-slider use-slider-2 visual-addition""",
    "browsergym-test": """
        ascending-numbers bisect-angle choose-list click-button click-button-sequence click-color click-link click-menu
        click-menu-2 click-pie click-pie-nodelay click-scroll-list click-shape click-tab click-tab-2 click-tab-2-easy
        click-tab-2-hard click-tab-2-medium click-test click-widget copy-paste copy-paste-2 count-sides drag-circle
        drag-cube drag-items-grid email-inbox email-inbox-delete email-inbox-forward email-inbox-forward-nl
        email-inbox-forward-nl-turk email-inbox-important email-inbox-nl-turk email-inbox-noscroll email-inbox-reply
        email-inbox-star-reply find-greatest find-word form-sequence-2 form-sequence-3 generate-number grid-coordinate
        guess-number highlight-text highlight-text-2 hot-cold number-checkboxes order-food phone-book resize-textarea
        right-angle scroll-text scroll-text-2 sign-agreement simple-algebra simple-arithmetic social-media
        social-media-all social-media-some stock-market terminal tic-tac-toe use-spinner""",
    "webgum": """
        book-flight choose-date choose-date-easy choose-date-medium choose-list click-button click-button-sequence
        click-checkboxes click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer click-collapsible
        click-collapsible-2 click-color click-dialog click-dialog-2 click-link click-menu click-option click-pie
        click-scroll-list click-shades click-shape click-tab click-tab-2 click-tab-2-hard click-test click-test-2
        click-widget count-shape email-inbox email-inbox-forward-nl email-inbox-forward-nl-turk email-inbox-nl-turk
        enter-date enter-password enter-text enter-text-dynamic enter-time focus-text focus-text-2 grid-coordinate
        guess-number identify-shape login-user login-user-popup multi-layouts multi-orderings navigate-tree
        search-engine social-media social-media-all social-media-some tic-tac-toe use-autocomplete use-spinner""",
    "small": """
        click-checkboxes click-checkboxes-transfer click-collapsible-2 click-dialog-2 click-menu click-option
        click-scroll-list click-widget enter-date enter-password enter-time identify-shape login-user-popup
        multi-layouts multi-orderings navigate-tree search-engine use-autocomplete""",
    "small-unseen": """
        choose-list click-button click-button-sequence click-collapsible click-color click-dialog click-link click-tab
        click-test click-test-2 enter-text enter-text-dynamic enter-text-2 focus-text focus-text-2 form-sequence-2
        login-user use-spinner""",
}
SETS = {name: tuple(tasks.split()) for name, tasks in SETS.items()}
TASKS = tuple(sorted(SETS["browsergym-train"] + SETS["browsergym-test"]))

# Tasks whose page keeps something of an episode that shows in the next one: they are loaded anew for each.
# `python benchmarks/miniwob.py --fuzz` finds them.
FRESH = """
    book-flight book-flight-nodelay choose-date choose-date-easy choose-date-medium choose-date-nodelay click-menu-2
    click-pie copy-paste-2 drag-box drag-items drag-items-grid drag-sort-numbers focus-text-2 form-sequence
    resize-textarea scroll-text scroll-text-2 search-engine use-autocomplete use-autocomplete-nodelay use-colorwheel
    use-colorwheel-2 use-slider use-slider-2 use-spinner""".split()


def choose(names):
    """The tasks that `names`, joined by +, asks for: names of tasks and of SETS. Raises UsageError for others."""
    chosen = []
    for name in names.split("+") if names else TASKS:
        if name not in SETS and name not in TASKS:
            known = f"docs/miniwob.md lists the tasks, the sets are {', '.join(SETS)}"
            raise UsageError(f"--env-id miniwob/{names}: there is no task {name!r}; {known}")
        chosen += SETS.get(name, (name,))
    return tuple(dict.fromkeys(chosen))


@lru_cache
def pages_folder(pages_dir=""):
    """The folder with the tasks' pages: the installed package's, or that in `pages_dir`. Raises UsageError."""
    try:
        html = pages_dir or metadata.distribution("miniwob").locate_file("miniwob/html")
    except metadata.PackageNotFoundError:
        raise UsageError(NO_PAGES) from None
    folder = Path(html).expanduser().absolute() / "miniwob"
    missing = [name for name in TASKS if not (folder / f"{name}.html").is_file()]
    if missing:
        raise UsageError(f"{html}: no MiniWoB++ pages, miniwob/{missing[0]}.html for one, in this folder")
    return folder


class _Shared(Shared):
    """What the slots have in common: the browser, the pages, their instructions."""

    def __init__(self, names, pages_dir, cache_dir, browser_options):
        super().__init__(browser_options | {"script": SCRIPT, "embedded": True})
        self.names, self.folder, self.splits, self.said = names, pages_folder(pages_dir), {}, None
        scripts = sorted(self.folder.parent.glob("co*/**/*.js"))  # core and common
        self.made_from = _digest(SCRIPT, str(SEEDS), str(VARIED), *(path.read_text() for path in scripts))
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self.cache = Path(cache_dir or Path(home) / "cleangui" / "miniwob").expanduser()

    def url(self, name):
        return (self.folder / f"{name}.html").as_uri()

    def instructions(self):
        """Task name -> seed (text) -> instruction. The page alone knows it, once an episode has begun: all are asked
        for once, in a browser of their own, and kept in `cache`."""
        if self.said is None:
            self.said = self._find_instructions()
        return self.said

    def _find_instructions(self):
        found = {name: _read(self._kept(name)) for name in self.names}
        missing = [name for name in self.names if found[name] is None]
        if missing:
            with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
                found |= thread.submit(asyncio.run, self._ask(missing)).result()
            for name in missing:
                _write(self._kept(name), found[name])
        return found

    async def _ask(self, names):
        browser = await Browser.start(**self.options)
        seeds = [seed for part in (*SEEDS.values(), VARIED) for seed in part]
        try:
            session, found = await browser.session(), {}
            for name in names:
                await session.reset(self.url(name), keep_page=True, start={"seed": seeds[0]})
                said = await session.read(None, lambda page: page.evaluate(INSTRUCTIONS_JS, seeds))
                found[name] = dict(zip(map(str, seeds), said))
            return found
        finally:
            await browser.close()

    def _kept(self, name):
        """The file of a task's instructions: other pages, scripts or seeds have another one."""
        return self.cache / f"{name}-{_digest(self.made_from, (self.folder / f'{name}.html').read_text())}.json"


class MiniWoB(PageEnv):
    """One episode slot; `fork()` gives another one on the same browser.

    `names` picks tasks, joined by + (see `choose`); `pages_dir` is the package's folder html where it is not installed,
    `cache_dir` where instructions are kept (default: cleangui/miniwob in $XDG_CACHE_HOME or ~/.cache), `max_steps` an
    episode's actions, `reload` whether every episode (True) or none (False) loads its page anew, not only those of
    FRESH (None); the other options are those of Arena. An episode ends where the page says so, and unsuccessfully
    at an exit, or where the page is left. `info["score"]` is the page's reward without its discount by time, from -1 to
    1, 0 where the page gave none; success is a score above 0, as BrowserGym counts it.
    """

    def __init__(
        self,
        names="",
        format="compact",
        page_tokens=None,
        count_tokens=len,
        screenshots=False,
        pages_dir="",
        cache_dir=None,
        max_steps=MAX_STEPS,
        reload=None,
        **browser_options,
    ):
        shared = _Shared(choose(names), pages_dir, cache_dir, browser_options | {"screenshots": screenshots})
        super().__init__(shared, format, page_tokens, count_tokens, screenshots)
        self._max_steps, self.reload = max_steps, reload

    # --- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split):
        """The tasks of "train", "eval" or "test", always the same in the same order: every task's page with one seed,
        then with the next. `Task.site` is the page's name. The first call for a page takes its instructions from a
        browser; they are kept on disk."""
        if split not in SEEDS:
            raise ValueError(f"split {split!r} is none of {', '.join(SEEDS)}")
        if not self._shared.splits:
            said = self._shared.instructions()
            for part, seeds in SEEDS.items():
                pairs = [(name, seed) for seed in seeds for name in self._shared.names]
                self._shared.splits[part] = [self._make(part, *pair, said[pair[0]][str(pair[1])]) for pair in pairs]
        return self._shared.splits[split]

    def _make(self, split, name, seed, instruction):
        config = {"page": name, "seed": seed}  # what has one has a true check
        return Task(f"{name}-{seed}", name, instruction, self._max_steps, split, seed, name, config=config)

    def oracle(self, task):
        """The moves that solve `task` in this slot: a generator, which looks at what the slot shows when the next one
        is asked for, and ends where the one before has not been done. Raises LookupError if nobody has written them."""
        if task.site not in SOLUTIONS:
            raise LookupError(f"{task.site} has no scripted solution (docs/miniwob.md says why)")
        return self._moves(SOLUTIONS[task.site](task.instruction, Page(lambda: self._page)))

    def _moves(self, actions):
        done = None
        while not self._over and done != len(self._actions):
            done = len(self._actions)
            action = next(actions, None)
            if action is None:
                return
            yield Move(format_action(action))

    def resolve(self, move, obs):
        """The move's action text: the oracle has chosen it for this observation."""
        return move.action

    def vary(self, task, rng):
        """Another episode of the task's page, by one of the seeds that no split has: a list of one task, because many
        pages' instructions do not say which seed is meant."""
        seed = rng.choice(VARIED)
        return [self._make(task.split, task.site, seed, self._shared.instructions()[task.site][str(seed)])]

    def task_from_text(self, text, like):
        """The episode of the page of `like` that asks for `text`, by the next seed of VARIED after that of `like`;
        None where no other one does, because a page checks its own instruction alone."""
        said = self._shared.instructions()[like.site]
        after = sorted(VARIED, key=lambda seed: (seed <= like.seed, seed))
        seed = next((seed for seed in after if seed != like.seed and said[str(seed)] == text), None)
        return None if seed is None else self._make(like.split, like.site, seed, text)

    # --- episodes --------------------------------------------------------------------------------------------------

    async def reset(self, task, seed=0):
        """Begin `task`: (obs, info). `seed` changes nothing: what is random on a page is so by `task.seed`."""
        obs, info = await super().reset(task)
        self._check()
        return obs, info

    def _check(self):
        task, said = self._task, self._page.report["utterance"]
        if task.config is not None and said != task.instruction:
            raise UsageError(
                f"{task.task_id}: the page says {said!r}, not {task.instruction!r} (other pages than before?)"
            )

    async def _observe(self, page, error=""):
        here = self._shared.folder.as_uri()  # which differs between machines
        return await super()._observe(replace(page, url=page.url.replace(here, "file:///miniwob")), error)

    async def _start(self, actions=()):
        name, url = self._task.site, self._shared.url(self._task.site)
        return await self._session.reset(
            url,
            [url],
            keep_page=True,  # the pages keep nothing in the browser
            start={"seed": self._task.seed},
            actions=actions,
            stay=not (name in FRESH if self.reload is None else self.reload),
        )

    async def step(self, text):
        """As every page's, but that the page ends the episode: `info["score"]` is its reward."""
        obs, reward, terminated, truncated, info = await super().step(text)
        score = self._outcome()
        if score is not None:
            self._over, terminated, truncated = True, True, False
        if self._over:
            checked = self._task.config is not None
            reward = float(checked and (score or 0.0) > 0)
            info |= {"answer": info.get("answer", ""), "verdict": reward if checked else None, "score": score or 0.0}
        return obs, reward, terminated, truncated, info

    def _outcome(self):
        """The page's reward; None while the episode goes on there. A new tab, or the page loaded once more, holds no
        episode of ours: 0.0."""
        report = self._page.report
        if not report or report["seed"] != self._task.seed:
            return 0.0
        return float(report["raw"]) if report["done"] else None

    async def verdict(self, answer):
        """0.0: an exit is no answer that a page takes."""
        return 0.0

    async def restore(self, prefix):
        """Bring back the state after `prefix`: (obs, info), the episode goes on from there. In one round trip where all
        of its actions are made inside the page; otherwise, or if something else is seen then, action by action, which
        raises StateMismatch if what is seen in the end is still not what was seen."""
        await self._begin(prefix.task)
        actions = [_action(text) for text in prefix.actions]
        if all(map(self._session.in_page, actions)):
            obs, info = await self._observe(await self._start(actions))
            if info["hash"] == prefix.hashes[-1] and self._outcome() is None:
                self._actions, self._hashes = list(prefix.actions), list(prefix.hashes)
                return obs, info
        return await super().restore(prefix)


def _action(text):
    """What `step` does with the text; where it cannot be read, it looks at the page again, which is what Wait does."""
    try:
        return parse(text)
    except ActionError:
        return Action("Wait")


def _digest(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _write(path, record):
    """Aside and renamed: other processes may write the same file now."""
    aside = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(record))
        os.replace(aside, path)
    except OSError as error:
        raise UsageError(f"{path.parent}: instructions cannot be kept here ({error}); give another cache_dir") from None
