"""WebShop in the browser: the same pages as HTML on a loopback port, driven as the arena is.

    env = WebShopPages()
    obs, info = await env.reset(task)
    obs, *rest = await env.step('do(action="Search", argument="washable blanket", element="1")')

An address holds all that a page depends on; the site knows of an episode only what it bought, which ends it. The server
is envs/arena/server.py's.
"""

import json
import re
from collections import namedtuple
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import jinja2
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.routing import Route

from common import html
from common.actions import Action, format_action
from common.errors import UsageError
from envs.arena import tasks as browser_tasks
from envs.arena.server import COOKIE, TEMPLATES, Server, go
from envs.site import PageEnv, Served
from envs.webshop import World, data_folder, engine, records, world

HERE = Path(__file__).parent
TEMPLATE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    (HERE / "page.html").read_text()
)
CSS, JS = (HERE / "page.css").read_text(), TEMPLATES.globals["js"]
Nobody = namedtuple("Nobody", "people user")  # the arena's worlds have people, who can log in


class _Site:
    """The shop as a site of the arena's server; `bought` is what its episodes bought, states by the episode's name."""

    NAME = "webshop"
    SCHEMA = ""  # nothing is in a database

    def __init__(self, options):
        self._options = options
        self.bought = {}

    @property
    def world(self) -> World:
        return world(*self._options)

    def fill(self, db, world):
        """An episode begins with nothing."""

    @property
    def routes(self):
        return [
            Route("/buy/{asin}", self._buy, methods=["POST"]),
            Route("/done", self._done),
            Route("/{path:path}", self._page),
        ]

    async def _page(self, request):
        return self._answer(request.path_params["path"], request.query_params)

    def _answer(self, path, params):
        try:
            return self._show(state_at(self.world.shop, path, params))
        except LookupError as error:
            raise HTTPException(404, str(error)) from None

    async def _buy(self, request):
        params = {"o": (await request.form()).get("options", "[]")}
        try:
            state = state_at(self.world.shop, f"item/{request.path_params['asin']}", params)
        except LookupError as error:
            raise HTTPException(404, str(error)) from None
        self.bought.setdefault(request.cookies[COOKIE], state._replace(kind="done"))
        return go(f"/{self.NAME}/done")

    async def _done(self, request):
        if request.cookies[COOKIE] not in self.bought:
            raise HTTPException(404, "nothing was bought")
        return self._show(self.bought[request.cookies[COOKIE]])

    def _show(self, state):
        shop = self.world.shop
        title, lines, elements = engine.view(shop, state)
        links = shop.links(state)
        shown = [
            {"label": text, "kind": kind, "href": address(links[label]), "row": label in shop.by_label}
            for label, (text, kind) in zip(links, elements)
        ]
        page = TEMPLATE.render(
            css=CSS,
            js=JS,
            state=state,
            title=title,
            lines=lines,
            elements=shown,
            options=json.dumps(state.options),
        )
        return HTMLResponse(page, headers={"cache-control": "no-store"})


def state_at(shop, path, params):
    """The state whose page is at a path below /webshop/, with the parameters of its query. Raises LookupError."""
    kind, _, asin = path.strip("/").partition("/")
    asin, _, part = asin.partition("/")
    number = params.get("page", "1")
    if not (number.isascii() and number.isdigit() and len(number) < 3 and int(number)):
        raise LookupError("no such page")
    words = " ".join(params.get("q", "").lower().split())
    if kind == "search":
        return engine.State("results", words, int(number)) if words else engine.START
    if kind != "item" or part not in ("", "description", "features"):
        if kind:
            raise LookupError("no such page")
        return engine.START
    if asin.lower() not in shop.by_label:
        raise LookupError("no such product")
    asin = shop.by_label[asin.lower()]
    try:
        chosen = tuple((str(name), str(value)) for name, value in json.loads(params.get("o", "[]")))
    except (ValueError, TypeError, RecursionError):
        raise LookupError("no such options") from None
    on_sale = shop.products[asin].options
    if len(dict(chosen)) < len(chosen) or any(value not in on_sale.get(name, ()) for name, value in chosen):
        raise LookupError("no such options")
    return engine.State(part or "item", words, int(number), asin, chosen)


def address(state):
    """The path of a state's page; of a purchase, where its form goes."""
    if state.kind == "search":
        return "/webshop/"
    if state.kind == "done":
        return f"/webshop/buy/{state.asin.lower()}"
    query = {"q": state.query, "page": state.page}
    if state.kind == "results":
        return f"/webshop/search?{urlencode(query)}"
    path = f"/webshop/item/{state.asin.lower()}" + ("" if state.kind == "item" else f"/{state.kind}")
    return f"{path}?{urlencode(query | ({'o': json.dumps(state.options)} if state.options else {}))}"


class WebShopPages(PageEnv):
    """One episode slot; `fork()` gives another one on the same server and browser.

    `data_dir` and `human_goals` are those of WebShop, the other options those of Arena. The tasks are WebShop's. An
    episode ends at the click on "buy now", and unsuccessfully at an exit.
    """

    def __init__(
        self,
        data_dir="",
        human_goals=None,
        format="compact",
        page_tokens=None,
        count_tokens=len,
        port=0,
        screenshots=False,
        **browser_options,
    ):
        self._site = _Site((data_folder(data_dir), "compact", human_goals))
        shared = Served(Server([self._site], port), browser_options | {"screenshots": screenshots, "embedded": True})
        super().__init__(shared, format, page_tokens, count_tokens, screenshots)

    def _clear(self):
        super()._clear()
        self._episode = None

    @property
    def _world(self):
        return self._site.world

    def tasks(self, split):
        """The tasks of "train", "eval" or "test": always the same ones in the same order."""
        if split not in records.SPLITS:
            raise ValueError(f"split {split!r} is none of {', '.join(records.SPLITS)}")
        return self._world.tasks(split)

    def oracle(self, task):
        """The moves that solve `task`: those of the text mode."""
        return self._world.oracle(task.config)

    def resolve(self, move, obs):
        """The action text of an oracle's move on this observation, the slot's last; raises LookupError if its element
        is not there."""
        text = obs["text"] if self.format == "compact" else html.render(self._page, "compact")
        name, argument = move.action[:-1].split("[", 1)
        if name == "search":
            return browser_tasks.resolve(browser_tasks.Move("box", "search", "Search", argument), text)
        shop, url = self._world.shop, urlsplit(obs["url"])
        state = state_at(shop, url.path.removeprefix(f"/{_Site.NAME}"), dict(parse_qsl(url.query)))
        places = list(shop.links(state))
        if argument not in places:
            raise LookupError(f"{move.action} is not admissible")
        elements = engine.view(shop, state)[2]
        label, kind = elements[places.index(argument)]
        name = f'"{label}" {kind.split()[0]}'
        before = sum(
            other[0] == label for other in elements[: places.index(argument)]
        )  # products of one name and price
        found = re.findall(rf"^{re.escape(name)} \[(\d+)\]", text, re.MULTILINE)
        if len(found) <= before:
            raise LookupError(f"no {name} on the page")
        return format_action(Action("Click", found[before], None, f"# Element: {name} [{found[before]}]"))

    def vary(self, task, rng):
        raise UsageError("webshop has no instruction generator: --no-curriculum")

    def task_from_text(self, text, like):
        """None: there is no true checker for an instruction that is not among the goals."""
        return None

    async def _begin(self, task):
        await super()._begin(task)
        self._end()
        self._episode = self._shared.server.new(Nobody((), ""))

    def _end(self):
        """Forget the episode before."""
        self._shared.server.end(self._episode)
        self._site.bought.pop(self._episode, None)

    async def _start(self):
        base = f"{self._shared.server.url}/{_Site.NAME}"
        cookies = {COOKIE: self._episode}
        return await self._session.reset(f"{base}/", [base], cookies, keep_page=True)  # all state is the server's

    async def step(self, text):
        """As every page's, but that a purchase ends the episode: `info["score"]` is the graded reward for it."""
        obs, reward, terminated, truncated, info = await super().step(text)
        score = self._score()
        if score is not None:
            self._over, terminated, truncated, reward = True, True, False, float(score == 1.0)
            info |= {"answer": "", "verdict": reward}
        if self._over:
            info["score"] = score or 0.0
        return obs, reward, terminated, truncated, info

    def _score(self):
        """The reward for what the episode bought; None if it did not buy yet."""
        state = self._site.bought.get(self._episode)
        return None if state is None else self._world.score(self._task.config, state)

    async def verdict(self, answer):
        """The score, 1.0 or 0.0, of the episode as it is now; `answer` does not matter."""
        return float(self._score() == 1.0)

    async def close(self):
        """Free the slot; the first slot stops server and browser. May be called again."""
        self._end()
        await super().close()
