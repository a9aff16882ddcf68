"""One web server for all sites and all episodes of a process.

A Starlette app under uvicorn in a daemon thread, on 127.0.0.1. A request names its episode by a cookie; an episode is
one in-memory SQLite database that holds all sites' tables, so that two episodes never see each other and a snapshot is
a copy of some tens of kilobytes.

A site's module has NAME, SCHEMA (SQL), `fill(db, world)` and `routes` (Starlette routes below `/NAME`, numbers in them
as `{id:short}`). Its handlers use `database(request)`, `page(request, template, **values)` and
`done(request, path, text)` of this module.
"""

import socket
import sqlite3
import threading
import uuid
from collections import OrderedDict
from html import escape
from pathlib import Path

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Mount, Route

from common.errors import EnvFault, UsageError

HERE = Path(__file__).parent
COOKIE = "episode"
HEADER = b"x-episode"  # instead of the cookie, for the checks, which read pages of many episodes in one tab
IMAGES_KEPT = 512  # database images of content seeds, about 60 kB each

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
)
# Stylesheet and script stand in the page: one request a page, and no page is ever seen without them.
TEMPLATES.globals["css"] = (HERE / "static" / "arena.css").read_text()
TEMPLATES.globals["js"] = (HERE / "static" / "arena.js").read_text()

# What the last action did is a row here, and the page shown after it names the row in its address (?done=3): the page
# can be loaded again, by a restored episode or an evaluator, and still says it.
SCHEMA = """
create table user (name text primary key, password text);
create table login (name text);
create table done (id integer primary key, text text);
"""


def database(request):
    """The episode's SQLite connection; rows are read by column name."""
    return request.scope["db"]


def user(request):
    """The name of the logged-in user, or None."""
    row = database(request).execute("select name from login").fetchone()
    return row["name"] if row else None


def page(request, template, status=200, **values):
    """Render `template` ("shop/cart.html") as the answer. Every template also sees `user`, `done` and `path`."""
    key = request.query_params.get("done", "")
    row = database(request).execute("select text from done where id = ?", (key,)).fetchone() if key else None
    values |= {"user": user(request), "done": row["text"] if row else "", "path": request.url.path}
    html = TEMPLATES.get_template(template).render(**values)
    # Going back shows the page as it now is on the server, with empty forms: neither copies nor typed text are kept.
    html = html.replace("<form ", '<form autocomplete="off" ')
    return HTMLResponse(html, status, headers={"cache-control": "no-store"})


def go(path):
    """Redirect to `path` after a form was posted."""
    return RedirectResponse(path, 303)


def done(request, path, text):
    """Redirect to `path`, which will say `text`: what the action did, with its values."""
    db = database(request)
    number = db.execute("insert into done (text) values (?)", (text,)).lastrowid
    return go(f"{path}{'&' if '?' in path else '?'}done={number}")


async def form(request):
    """The posted form (or, for a GET, the query) as a dict of stripped lower-case strings."""
    data = await request.form() if request.method == "POST" else request.query_params
    return {key: " ".join(str(value).lower().split()) for key, value in data.items()}


def whole_number(text, low, high):
    """`text` as an int within [low, high], or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high else None


class _Short(IntegerConvertor):
    """`{id:short}` in a route: a whole number that SQLite can hold; with a longer one the page is not found."""

    regex = "[0-9]{1,9}"


register_url_convertor("short", _Short())


async def _broken(request):
    """Where arena.js goes when it could not fetch a page: a fault, which no page that is shown would be."""
    return HTMLResponse(f"a page could not be fetched: {escape(request.url.query)}", 502)


BROKEN = Route("/broken", _broken)


class Server:
    """The sites on one port. `start` and `stop` are idempotent; the episode methods may be called from any thread."""

    def __init__(self, sites, port=0):
        self.sites = tuple(sites)
        self._episodes = {}
        self._images = OrderedDict()
        self._lock = threading.Lock()
        self._server = self._thread = None
        # With IPPROTO_TCP asyncio sets TCP_NODELAY on each connection; without it a request takes 45 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(128)
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise UsageError(f"cannot listen on 127.0.0.1:{port} ({error}): choose another port, or 0") from None
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def urls(self):
        """Name of the placeholder -> address: {"SHOP": "http://127.0.0.1:PORT/shop", ...}."""
        return {site.NAME.upper(): f"{self.url}/{site.NAME}" for site in self.sites}

    def start(self):
        """Serve in a daemon thread. The socket already listens, so a request that comes at once waits its turn."""
        if self._thread is None:
            routes = [Mount(f"/{site.NAME}", routes=[*site.routes, BROKEN]) for site in self.sites]
            app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
            config = uvicorn.Config(
                self._with_episode(app),
                log_level="error",
                access_log=False,
                lifespan="off",
                loop="asyncio",
                timeout_keep_alive=600,
                timeout_graceful_shutdown=1,
            )
            self._server = uvicorn.Server(config)
            self._thread = threading.Thread(
                target=self._server.run, kwargs={"sockets": [self._socket]}, name="arena", daemon=True
            )
            self._thread.start()
        return self

    def stop(self):
        """Stop serving, free the port and drop all episodes."""
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=10)
            self._thread = None
        self._socket.close()
        for name in list(self._episodes):
            self.end(name)

    @property
    def alive(self):
        """Whether the serving thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _with_episode(self, app):
        """ASGI: hand the request its episode's database, or answer 403."""

        async def guarded(scope, receive, send):
            if scope["type"] != "http":
                return await app(scope, receive, send)
            headers = dict(scope["headers"])
            cookies = headers.get(b"cookie", b"").decode("latin-1").split(";")
            names = dict(cookie.strip().partition("=")[::2] for cookie in cookies)
            name = headers[HEADER].decode("latin-1") if HEADER in headers else names.get(COOKIE)
            scope["db"] = self._episodes.get(name)
            if scope["db"] is None:
                html = TEMPLATES.get_template("message.html").render(title="no episode", text="no episode of that name")
                return await HTMLResponse(html, 403)(scope, receive, send)
            return await app(scope, receive, send)

        return guarded

    def _image(self, world):
        """The serialised database of a fresh episode in `world`; built once per world."""
        with self._lock:
            if world in self._images:
                self._images.move_to_end(world)
                return self._images[world]
        db = sqlite3.connect(":memory:", isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("pragma page_size = 1024")  # many small tables: a quarter of the default's size
        db.executescript(SCHEMA)
        db.executemany("insert into user values (?, ?)", [(name, f"{name.split()[0]}1") for name in world.people])
        db.execute("insert into login values (?)", (world.user,))
        for site in self.sites:
            db.executescript(site.SCHEMA)
            db.execute("begin")
            site.fill(db, world)
            db.execute("commit")
        image = db.serialize()
        db.close()
        with self._lock:
            self._images[world] = image
            while len(self._images) > IMAGES_KEPT:
                self._images.popitem(last=False)
        return image

    def new(self, world):
        """Begin an episode in a fresh copy of `world`; returns its name, the cookie's value."""
        name = uuid.uuid4().hex
        self._open(name, self._image(world))
        return name

    def _open(self, name, image):
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.deserialize(image)
        self._episodes[name] = db

    def end(self, name):
        """Forget an episode; unknown names are ignored.

        Its database closes with the last request that holds it: closed here, under a statement that a handler's thread
        has running (of a browser that was killed, say), it would take the process with it.
        """
        self._episodes.pop(name, None)

    def snapshot(self, name):
        """The episode's whole server state. Raises EnvFault if there is no such episode."""
        if name not in self._episodes:
            raise EnvFault(f"arena: no episode {name}")
        return self._episodes[name].serialize()

    def restore(self, name, image):
        """Put the episode `name` (known or new) into the state of a snapshot."""
        self._open(name, image)


async def _refused(request, error):
    """A page the site does not have, or a request it refuses: a page that says so, not a fault."""
    return page(request, "message.html", status=error.status_code, title="not found", text=str(error.detail).lower())
