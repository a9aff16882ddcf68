"""What a page says is data of any shape: pages that break what the driver stands on, forge its replies, lead off the
task's sites or leave things behind."""

import asyncio
import re
import socket
import threading

import psutil
import pytest
import pytest_asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from common.actions import Action
from common.browser import Browser, Observation, _resolve
from common.errors import Blocked, EnvFault
from common.html import render
from common.reply import LONGEST, read_reply
from tests.one_browser import one_browser

pytestmark = pytest.mark.asyncio(loop_scope="module")
PRESS = "<title>t</title><button onclick=\"document.title = 'pressed'\">press</button>"
NAMES = """localName tagName childNodes children firstElementChild parentElement parentNode getAttribute hasAttribute
matches closest querySelector querySelectorAll checkVisibility getBoundingClientRect ownerDocument nodeType style inert
isContentEditable textContent firstChild getRootNode tabIndex scrollTop elements submit""".split()
FIELDS = "".join(f"<input name={name} value=v>" for name in NAMES)
# what the page shows besides its button, and what of it has to be seen
ORDINARY = {
    "half an emoji": ("<p id=p></p><script>p.textContent = document.title = 'a\\ud83d b'</script>", "a\ufffd b"),
    "a form's name": ("<form name=body></form><form name=querySelectorAll><p>inside</p></form>", "inside"),
    "a frame's name": ("<iframe name=hidden hidden></iframe><img name=activeElement alt=lamp>", "lamp"),
    "a field's name": (f"<form>{FIELDS}<p>inside</p></form>", "inside"),
    "toJSON": ("<script>Array.prototype.toJSON = Object.prototype.toJSON = () => 1</script>", ""),
    "stringify": ("<script>JSON.stringify = () => '{}'</script>", ""),
    "a rectangle": ("<script>Element.prototype.getBoundingClientRect = () => { throw 'no' }</script>", ""),
    "no rectangle": ("<script>Element.prototype.getBoundingClientRect = () => ({})</script>", ""),
    "a style": ("<script>window.getComputedStyle = () => null; window.URL = window.performance = null</script>", ""),
    "matches": ("<script>Element.prototype.matches = () => true; Array.from = () => []</script>", ""),
    "in a frame": (
        '<iframe srcdoc="<p>inner</p><script>Element.prototype.checkVisibility = () => { throw 1 }</script>"></iframe>',
        "inner",
    ),
    "controls": (
        "<p id=p></p><script>p.textContent = 'a\\x1b[2Jb\\x00c\\x9bd\\x7f'</script>",
        "a\ufffd[2Jb\ufffdc\ufffdd\ufffd",
    ),
    "frozen": ("<script>for (const kind of [Array, Object, Element]) Object.freeze(kind.prototype)</script>", ""),
}
# what a page makes of the reply
FORGED = [
    "throw 'a text'",
    "throw null",
    "return 5",
    "return undefined",
    "return {}",
    "return '['.repeat(100000)",
    "return '{\"above\": ' + '9'.repeat(5000) + '}'",
    "return 'x'.repeat(9e6)",
    "return '{\"nodes\": []}'",
    "reply.title = {}",
    "reply.nodes[0].depth = '1'",
    "reply.nodes[0].box = [1, 2]",
    "delete reply.nodes[1].label",
    "reply.nodes[1].options = [1]",
    "reply.nodes = {}",
    "reply.status = null",
    "reply.keys = {}",
]
FORGE = """<script>const observe = __gui.observe; __gui.observe = async (options) => {
    const reply = JSON.parse(await observe(options)); %s; return JSON.stringify(reply) }</script>"""
# All that the page's own half of the host rule stands on.
DISARM = """<script>
    for (const kind of [NavigateEvent, Event]) kind.prototype.preventDefault = () => {};
    String.prototype.startsWith = () => true; Array.prototype.some = () => true;
    delete __gui.sites; Object.defineProperty(__gui, "sites", {get: () => null});
</script>"""
WAYS = {
    "link": "<a href='OUT'>go</a>",
    "redirect": "<a href=/away>go</a>",
    "form": "<form method=post action='OUT'><button>go</button></form>",
    "posted redirect": "<form method=post action=/away><button>go</button></form>",
    "script": "<button onclick=\"location.assign('OUT')\">go</button>",
    "new tab": "<a target=_blank href='OUT'>go</a>",
    "opened": "<button onclick=\"window.open('OUT', '', 'noopener')\">go</button>",
    "redirect in a new tab": "<a target=_blank href=/away>go</a>",
    "refresh": "<template><meta http-equiv=refresh content='0; url=OUT'></template>"
    "<button onclick=\"document.head.append(document.querySelector('template').content)\">go</button>",
}
# What outlives a page: of its own origin, of a frame's, and what it writes on its way out.
KEEPS = """<title>-</title><script>
    const kept = [localStorage.x, sessionStorage.x, document.cookie, window.name];
    const had = Promise.all([...kept, indexedDB.databases(), caches.keys()]).then(JSON.stringify);
    localStorage.x = sessionStorage.x = 1; document.cookie = "x=1"; window.name = "x";
    had.then(() => { indexedDB.open("x"); caches.open("x") });
    onpagehide = () => { localStorage.x = 2; document.cookie = "x=2" };
</script>"""


@pytest.fixture(scope="module")
def server():
    pages, asked = {}, []

    async def serve(request):
        asked.append((request.headers["host"].partition(":")[0], request.url.path))
        path, port = request.url.path, request.url.port
        if path == "/away":
            return RedirectResponse(f"http://localhost:{port}/out", 307)
        if path == "/secret" and "authorization" not in request.headers:
            return Response("who?", 401, {"www-authenticate": "Basic"})
        text = (pages.get(path) or PRESS).replace("OUT", f"http://localhost:{port}/out").replace("PORT", str(port))
        return HTMLResponse(text.encode("utf-8", "replace"), headers={"cache-control": "no-store"})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    routes = [Route("/{path:path}", serve, methods=["GET", "POST"])]
    config = uvicorn.Config(Starlette(routes=routes), log_level="error", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    server.url, server.pages, server.asked = f"http://127.0.0.1:{listener.getsockname()[1]}", pages, asked
    yield server
    server.should_exit = True
    thread.join(5)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with one_browser(timeout=15, screenshots=False) as browser:
        yield browser


@pytest.fixture
def show(session, server):
    async def show(page, path="/", frame="", **options):
        server.pages.clear()
        server.pages["/frame"] = frame
        server.pages[path] = page
        server.asked.clear()
        return await session.reset(server.url + path, **options)

    return show


async def click(session, observation, label):
    (id,) = [node["id"] for node in observation.nodes if node.get("label") == label]
    return await session.act(Action("Click", str(id)))


# ---- replies ----


@pytest.mark.parametrize("name", ORDINARY)
async def test_what_a_page_has_made_of_names_and_built_ins_does_not_hide_it(session, show, name):
    page, seen = ORDINARY[name]
    observation = await show(PRESS + page)
    assert seen in render(observation) and '"press" button [1]' in render(observation)
    assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]", render(observation) + observation.title)
    assert (await click(session, observation, "press")).title == "pressed"


@pytest.mark.parametrize("forged", FORGED)
async def test_a_reply_of_another_shape_is_a_fault_and_the_slot_recovers(session, show, forged):
    with pytest.raises(EnvFault, match="^page.js: "):
        await show(PRESS + FORGE % forged)
        await session.observe()  # the first look may have come before the page's script
    assert (await show(PRESS)).title == "t"


async def test_replies_are_checked_by_their_call():
    for call, text in (
        ("locate", '{"points": [{"x": 1, "y": 2.5}]}'),
        ("act", '{"keys": {"single": true, "blank": false}}'),
        ("aim", "{}"),
    ):
        read_reply(call, text)
        with pytest.raises(EnvFault):
            read_reply("observe", text)
    for text in (
        '{"points": [{"x": NaN, "y": 2}]}',
        '{"points": [1]}',
        '{"points": [{"x": 1}]}',
        "{}",
        '{"else": 1}',
        "[]",
    ):
        with pytest.raises(EnvFault):
            read_reply("locate", text)


async def test_all_that_a_prompt_holds_is_cut(session, show):
    words = "word " * 50_000
    seen = await show(f"{PRESS}<p>{words}</p><script>document.title = '{words}'</script>")
    assert len(seen.title) <= LONGEST and len(render(seen, max_tokens=300)) <= 300
    seen = await show(
        f"<title>t</title><button onclick=\"for (let i = 0; i < 50; i++) alert('{words}\\x1b')\">press</button>"
    )
    seen = await click(session, seen, "press")
    assert 500 < len(seen.dialog) <= LONGEST and len(render(seen, max_tokens=100)) <= 100
    invalid = f"<form><input id=i><button>press</button></form><script>i.setCustomValidity('{words}')</script>"
    assert 500 < len((await click(session, await show(invalid), "press")).error) <= LONGEST
    for text in ("a" * 5000, "\u4e2d" * 5000):
        page = Observation(
            "http://a/", text, [{"depth": 0, "tag": "p", "text": text, "box": [0, 0, 1, 1]}], dialog=text
        )
        assert len(render(page, max_tokens=40)) <= 40


# ---- addresses ----


async def test_the_address_is_the_browsers_own(session, show):
    forged = FORGE % "reply.url = location.origin + '/won'"
    await show(PRESS + forged, "/lost")
    assert (await session.observe()).url.endswith("/lost")
    seen = await click(
        session, await show("<button onclick=\"history.pushState(0, '', '/next')\">press</button>"), "press"
    )
    assert seen.url.endswith("/next")


@pytest.mark.parametrize("way, disarmed", [*((way, False) for way in WAYS), *((way, True) for way in list(WAYS)[:5])])
async def test_no_request_for_a_page_leaves_the_sites(session, server, show, way, disarmed):
    seen = await show(f"<title>home</title>{WAYS[way]}" + (DISARM if disarmed else ""))
    try:
        seen = await click(session, seen, "go")
    except EnvFault:
        assert disarmed  # what the driver stands on is broken
    else:
        assert disarmed or (seen.title == "home" and seen.tabs == (1, 1) and "outside the task's" in seen.error)
    assert ("localhost", "/out") not in server.asked


async def test_what_a_page_is_made_of_may_come_from_anywhere(session, server, show):
    await show("<iframe src='OUT'></iframe><img src='http://localhost:PORT/img'>")
    assert {("localhost", "/out"), ("localhost", "/img")} <= set(server.asked)


@pytest.mark.parametrize(
    "url",
    [
        "/app/../admin",
        "/app/%2e%2E/admin",
        "/app\\..\\admin",
        "/app/x/.././../admin",
        "\t/ap\np/..//admin",
        "/application",
    ],
)
async def test_steps_in_a_path_lead_nowhere(session, server, show, url):
    await show(PRESS, "/app/")
    seen = await session.reset(f"{server.url}/app/", sites=[f"{server.url}/app"])
    for action in (
        Action("Goto", argument=url),
        Action("Goto", argument=server.url + url),
        Action("New Tab", argument=url),
    ):
        seen = await session.act(action)
        assert "outside the task's sites" in seen.error, action
    assert {path for _, path in server.asked} == {"/app/"}


async def test_addresses_as_a_browser_reads_them():
    base = "http://host/a/b"
    for url, address in (
        ("c", "http://host/a/c"),
        ("../../c/.", "http://host/c/"),
        ("HTTP://HOST", "http://host/"),
        (" http://host\\@evil/ ", "http://host/@evil/"),
        ("?q=..\\..", "http://host/a/b?q=..\\.."),
        ("http://host/a/%2E%2e/c?x#/../y", "http://host/c?x#/../y"),
        ("javascript:1", "javascript:1"),
    ):
        assert _resolve(base, url) == address


# ---- episodes ----


async def test_nothing_of_any_origin_outlives_an_episode(session, server, show):
    async def had(page):
        return [await frame.evaluate("had") for frame in page.frames]

    for _ in range(2):
        await show(KEEPS + "<iframe src='http://localhost:PORT/frame'></iframe>", frame=KEEPS)
        assert await session.read(None, had) == ['[null,null,"","",[],[]]'] * 2
        await session.act(Action("Goto", argument=server.url + "/else"))


async def test_a_log_in_of_the_browsers_own_ends_with_the_episode(session, server, show):
    address = server.url.replace("//", "//me:word@") + "/secret"
    assert (await session.reset(address)).title == "t"
    assert (await session.act(Action("Goto", argument=server.url + "/secret"))).title == "t"
    seen = await session.reset(server.url + "/secret")
    assert seen.title != "t" and "me:word" not in seen.url


async def test_a_start_page_that_leads_off_the_sites_is_a_fault(session, server, show):
    await show(PRESS)
    with pytest.raises(Blocked, match="outside the task's sites"):
        await session.reset(server.url + "/away")
    with pytest.raises(EnvFault):  # never the last episode's page
        await session.observe()
    assert ("localhost", "/out") not in server.asked
    assert (await show(PRESS)).title == "t"


async def test_playwrights_own_process_is_killed_and_comes_back(server):
    mine = psutil.Process()
    before = set(mine.children())
    browser = await Browser.start(timeout=5, screenshots=False)
    try:
        sessions = [await browser.session() for _ in range(2)]
        for session in sessions:
            await session.reset(server.url)
        (process,) = (child for child in set(mine.children()) - before if "node" in child.name())
        process.kill()
        with pytest.raises(EnvFault):
            await sessions[0].observe()
        pages = await asyncio.gather(*(session.reset(server.url) for session in sessions))
        assert [page.title for page in pages] == ["t", "t"]
    finally:
        await browser.close()
