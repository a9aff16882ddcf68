"""The driver and its page scripts, in real Chromium, on tiny pages served from this machine."""

import asyncio
import datetime
import io
import os
import random
import socket
import threading
import time

import psutil
import pytest
import pytest_asyncio
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from common import browser as driver
from common.actions import Action
from common.browser import Browser
from common.errors import EnvFault, UsageError
from common.html import render
from tests.one_browser import one_browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Page k of a walk: every way to page k + 1. What a step should show is known, so a stale observation shows.
WALK = """<title>page {k}</title><h1>page {k}</h1>
<a href="/walk/{n}">link</a> <a href="/slow/{n}">slow link</a> <a href="/refresh/{n}">refresh</a>
<a href="/redirect/{n}">redirect</a> <form method=post action="/post/{n}"><button>post</button></form>
<form action="/walk/{n}"><input name=q><button>get</button></form>
<button onclick="setTimeout(() => location.href = '/walk/' + n, 300)">timer</button>
<button onclick="load()">fetch</button> <button onclick="setTimeout(load, 200)">late fetch</button>
<button onclick="xhr()">request</button> <a href="/routed/{n}">router</a>
<button onclick="location.href = '/start/' + n">onload</button>
<button onclick="this.form ? 0 : document.forms[0].submit()">submit by script</button>
<script>
  let n = {n};
  const show = (k) => {{  // a client-side application: the document stays
    history.pushState(0, "", "/walk/" + k);
    document.title = document.querySelector("h1").textContent = "page " + k;
    n = k + 1;
    for (const a of document.links) a.href = a.href.replace(/\\d+$/, n);
    for (const form of document.forms) form.action = form.action.replace(/\\d+$/, n);
  }};
  const load = async () => {{
    const {{k}} = await (await fetch("/api/" + n)).json();
    setTimeout(() => show(k), 50);
  }};
  const xhr = () => {{
    const request = new XMLHttpRequest();
    request.open("GET", "/api/" + n);
    request.onload = () => show(JSON.parse(request.responseText).k);
    request.send();
  }};
  navigation.addEventListener("navigate", (event) => {{
    if (event.destination.url.includes("/routed/")) event.intercept({{handler: load}});
  }});
</script>"""
WAYS = ["link", "slow link", "refresh", "redirect", "post", "get", "timer", "fetch", "late fetch", "request", "onload"]
WAYS += ["submit by script", "router"]

PAGES = {
    "form": """<title>form</title><form action=/echo>
      <label for=a>name</label><input id=a name=a value="x"> <input name=p type=password placeholder=secret value=abc>
      <select name=size aria-label=size><option>small<option>large<option disabled>huge</select>
      <label><input type=checkbox name=gift> gift wrap</label>
      <input type=radio name=r id=r1 value=1><label for=r1>one</label>
      <textarea name=t title=notes>two\nlines</textarea>
      <input type=submit value=send></form><button disabled>off</button>
      <style>.hide{position:absolute;opacity:0}</style>
      <input type=checkbox id=h class=hide><label for=h>styled</label>""",
    "echo": "<title>echo</title><p id=out></p><script>out.textContent = decodeURIComponent(location.search)</script>",
    "text": """<title>text</title><style>p::first-letter, .up{text-transform:uppercase}</style>
      <p>price <b>2</b>4 <i>each</i></p><p class=up>lower</p><p>see <a href=/>the shop</a> now</p>
      <table><tr><td>red</td><td>12</td></tr></table><img alt="a lamp" src=data:,>
      <div style="display:none">no</div><div style="visibility:hidden">no</div><div style="opacity:0">no</div>
      <div style="height:0;overflow:hidden">no</div><a href=/ style="position:absolute;left:-9999px">no</a>
      <details><summary>more</summary>inside</details><div onclick="1">card</div>
      <div onclick="1">with <a href=/>link</a></div><button aria-label=shut><svg width=9 height=9></svg></button>
      <span role=button tabindex=0 aria-expanded=false>menu</span><div contenteditable>note</div>""",
    "long": "<title>long</title>" + "".join(f"<p style='height:40px;margin:0'>line {i}</p>" for i in range(50)),
    "pane": "<title>pane</title><div style='height:200px;overflow:auto'>"
    + "".join(f"<p style='height:40px;margin:0'>line {i}</p>" for i in range(20))
    + "</div>",
    "frames": """<title>frames</title><p>outer</p><iframe src=/page/inner></iframe>
      <x-box></x-box><script>customElements.define("x-box", class extends HTMLElement { connectedCallback() {
        const root = this.attachShadow({mode: "open"});
        root.innerHTML = "<p>shady</p><button>deep</button><slot></slot>";
        root.querySelector("button").onclick = () => { document.title = "pressed" } } })</script>""",
    "inner": "<a href=/page/inner2>inside</a>",
    "inner2": "<p>second</p>",
    "events": """<title>events</title><input id=box><p id=log>-</p><button id=b>press me</button><script>
      let seen = [];
      const note = (e) => { seen.push(e.type + (e.isTrusted ? "!" : "")); log.textContent = seen.join(" ") };
      for (const t of ["mousedown", "click", "contextmenu"]) b.addEventListener(t, note);
      for (const t of ["focus", "keydown", "input", "change"]) box.addEventListener(t, note);</script>
      <style>#m{display:none} #h:hover #m{display:block}</style><div id=h tabindex=0>hover<i id=m>hidden menu</i></div>
      <div onmousedown=1 tabindex=0 oncontextmenu="this.textContent='context'">right</div>""",
    "double": """<title>-</title><style>body{margin:0} #b{width:80px;height:40px}</style><button id=b>twice</button>
      <script>let seen = [];
      for (const t of ["mousedown", "click", "dblclick"]) b.addEventListener(t, (e) => {
        if (seen.at(-1) === "dblclick") seen = [];
        seen.push(e.type);
        document.title = seen.join(" "); });</script>""",
    "dialogs": """<title>dialogs</title><button onclick="alert('hello')">alert</button>
      <button onclick="document.title = confirm('sure?') ? 'yes' : 'no'">confirm</button>
      <button onclick="document.title = prompt('name?', 'bob')">prompt</button>
      <button onclick="alert('bye'); location.href='/page/echo'">alert and go</button>
      <button onclick="onbeforeunload = (e) => e.preventDefault(); location.href='/page/echo'">unload</button>""",
    "mouse": """<title>mouse</title><style>body{margin:0} .box{position:absolute;width:40px;height:40px}</style>
      <div class=box style="left:0;top:0;background:red" tabindex=0>a</div>
      <div class=box style="left:200px;top:100px;background:blue" tabindex=0>b</div>
      <p style="position:absolute;top:200px;width:600px;margin:0">some words to mark</p>
      <ul style="position:absolute;top:250px"><li role=tab><a href="#there">inner</a></li></ul>
      <div style="position:absolute;top:2000px" tabindex=0>far</div><pre id=log></pre><script>
      const seen = [], at = (e) => e.type.slice(5) + Math.round(e.clientX) + "," + Math.round(e.clientY)
        + (e.buttons ? "*" : "") + (e.isTrusted ? "!" : "");
      for (const t of ["mousedown", "mousemove", "mouseup"]) document.addEventListener(t, (e) => seen.push(at(e)));
      document.addEventListener("click", (e) => { document.title = e.target.localName + e.clientX + "," + e.clientY });
      </script>""",
    "rolls": """<title>top</title><body style="height:3000px"><div id=pane style="height:100px;overflow:auto">
      <p tabindex=0>first</p><div style="height:900px"></div></div><script>
      pane.onscroll = () => { document.title = "pane" };
      window.addEventListener("scroll", () => { document.title = "page" });</script>""",
    "tabs": """<title>tabs</title><a target=_blank href=/page/echo>blank</a>
      <button onclick="window.open('/page/echo')">open</button>
      <form target=_blank action=/echo><button>form</button></form>
      <button onclick="window.close()">close</button> <button onclick="document.write('rewritten')">write</button>
      <a target=_blank href=/page/closing>closing</a><a target=_blank href="http://localhost:PORT/page/echo">out</a>""",
    "closing": "<title>closing</title><button onclick=window.close()>close</button>",
    "out": """<title>out</title><a href="http://localhost:PORT/page/echo">away</a>
      <a href="/away">redirect away</a> <a href="/file">file</a> <a download href=/page/echo>save</a>
      <a href=/nothing>nothing</a>
      <button onclick="location='/nothing'; setTimeout(() => location='/page/echo', 9)">two</button>
      <a href="/error">error</a> <a href="/never">never</a> <a href="http://127.0.0.1:QUERY/">refused</a>""",
    "hang": "<title>hang</title><button onclick='for(;;);'>hang</button>",
    "clock": """<title>clock</title><p id=t>-</p><button onclick="tick()">go</button><script>
      const t0 = Date.now(); let n = 0;
      const nap = (ms) => new Promise((done) => setTimeout(done, ms));
      const tick = async () => { for (let i = 0; i < 4; i++) { await nap(100); n++ } setTimeout(() => n += 10, 30000);
        const end = Date.now() + 50; while (Date.now() < end); t.textContent = n + " " + (Date.now() - t0 > 440);
        requestAnimationFrame(() => document.title = Date().slice(11, 15) + new Date(0).getTime()) };</script>""",
    "gone": """<title>gone</title><button onclick="this.remove()">vanish</button>
      <button onclick="document.querySelector('p').remove()">stay</button><p onclick=1>target</p>
      <button style="position:absolute;left:0;top:300px">under</button>
      <div style="position:absolute;left:0;top:290px;width:300px;height:99px;background:red"></div>
      <input readonly aria-label=fixed value=1>""",
    "poll": """<title>poll</title><button>b</button>
      <script>(async () => { for (;;) await fetch("/never") })()</script>""",
    "store": """<title>store</title><p id=p></p><script>
      const had = [document.cookie, localStorage.x, sessionStorage.x, window.name].join("|");
      p.textContent = "had " + had; document.cookie = "c=" + location.search; localStorage.x = sessionStorage.x = 1;
      window.name = "n"; onpagehide = () => { localStorage.late = sessionStorage.x = 2; document.cookie = "late=1" };
      </script><a href=/page/store?2>again</a><a href=/page/echo>out</a>""",
}


async def walk(request):
    k = int(request.path_params["k"])
    return HTMLResponse(WALK.format(k=k, n=k + 1))


async def redirect(request):
    return RedirectResponse(f"/walk/{request.path_params['k']}", 303)


async def slow(request):
    await asyncio.sleep(random.Random(request.path_params["k"]).random() * 0.1)
    return await walk(request)


async def api(request):
    k = int(request.path_params["k"])
    await asyncio.sleep(random.Random(k).random() * 0.1)
    return JSONResponse({"k": k})


async def refresh(request):
    return HTMLResponse(
        f"<title>wait</title><meta http-equiv=refresh content='0; url=/walk/{request.path_params['k']}'>wait"
    )


async def start(request):
    target = f"/walk/{request.path_params['k']}"
    return HTMLResponse(f"<title>wait</title><script>onload = () => location.replace('{target}')</script>wait")


async def page(request):
    return HTMLResponse(
        PAGES[request.path_params["name"]]
        .replace("PORT", str(request.url.port))
        .replace("QUERY", request.url.query or "1")
    )


async def never(request):
    await asyncio.sleep(60)


async def half(request):
    """A page whose connection breaks in the middle."""

    async def parts():
        yield b"<title>half</title><h1>" + b"x" * 2000
        yield b"</h1><a href=/echo>link</a>" + b" " * 2000
        raise ConnectionError("the site died")

    return StreamingResponse(parts(), media_type="text/html", headers={"content-length": "9000"})


async def who(request):
    response = HTMLResponse(f"<title>{request.cookies.get('episode')}</title><a href=/who>who</a>")
    response.set_cookie("mine", request.cookies.get("episode", ""))
    return response


ROUTES = [
    Route("/walk/{k}", walk),
    Route("/post/{k}", redirect, methods=["POST"]),
    Route("/redirect/{k}", redirect),
    Route("/slow/{k}", slow),
    Route("/api/{k}", api),
    Route("/refresh/{k}", refresh),
    Route("/start/{k}", start),
    Route("/page/{name}", page),
    Route("/echo", lambda request: HTMLResponse(f"<title>echo</title><p>{request.url.query}</p>")),
    Route("/who", who),
    Route("/never", never),
    Route("/half", half),
    Route("/nothing", lambda request: Response(status_code=204)),
    Route("/error", lambda request: HTMLResponse("broken", 503)),
    Route("/away", lambda request: RedirectResponse(f"http://localhost:{request.url.port}/page/echo")),
    Route("/file", lambda request: Response("x", headers={"content-disposition": "attachment; filename=a.txt"})),
]


@pytest.fixture(scope="module")
def site():
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=ROUTES), log_level="error", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(5)


@pytest.fixture
def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with one_browser(timeout=60) as browser:  # as long as a busy machine may need
        yield browser


def find(observation, label):
    """The id of the element with this label."""
    ids = [str(node["id"]) for node in observation.nodes if node.get("label") == label]
    assert ids, f"no {label} in\n{render(observation)}"
    return ids[0]


async def do(session, label, name="Click", argument=None):
    observation = await session.observe()
    return await session.act(Action(name, find(observation, label), argument))


# ---- what is seen ----


async def test_forms_as_text(session, site):
    observation = await session.reset(f"{site}/page/form")
    assert render(observation).splitlines() == [
        'page "form"',
        '"name" box [1] = "x"',
        '"secret" box [2] = "***"',
        '"size" select [3] = "small" of "small" "large" "huge"',
        '"gift wrap" check [4]',
        '"one" radio [5]',
        '"notes" box [6] = "two lines"',
        '"send" button [7]',
        '"off" button [8] disabled',
        '"styled" check [9]',
    ]
    assert "abc" not in str(observation)


async def test_text_and_visibility(session, site):
    observation = await session.reset(f"{site}/page/text")
    assert render(observation).splitlines() == [
        'page "text"',
        'text "price 24 each"',
        'text "lower"',
        'text "see"',
        '"the shop" link [1]',
        'text "now"',
        'text "red 12"',
        'text "a lamp"',
        '"more" button [2] collapsed',
        '"card" item [3]',
        'text "with"',
        '"link" link [4]',
        '"shut" button [5]',
        '"menu" button [6] collapsed',
        '"" box [7] = "note"',
    ]
    webrl = render(observation, "webrl")
    assert '<a id="1" data-text="the shop" data-bbox="' in webrl
    x, y, w, h = next(node["box"] for node in observation.nodes if node.get("label") == "the shop")
    assert 0 < x < 200 and 0 < y < 200 and 20 < w < 200 and 10 < h < 30
    opened = await do(session, "more")
    assert '"more" button [2] expanded\ntext "inside"' in render(opened)


async def test_scrolling_moves_the_window(session, site):
    observation = await session.reset(f"{site}/page/long")
    assert render(observation).splitlines()[1:3] == ['text "line 0"', 'text "line 1"']
    shown = [node["text"] for node in observation.nodes if "text" in node]
    assert (observation.above, observation.below + len(shown)) == (0, 50)
    down = await session.act(Action("Scroll Down"))
    assert down.above >= 11 and down.above + down.below + len([n for n in down.nodes if "text" in n]) == 50
    for _ in range(6):
        down = await session.act(Action("Scroll Down"))
    assert down.below == 0 and down.error == "the page does not scroll further down"
    assert (await session.act(Action("Scroll Up"))).below > 9

    pane = await session.reset(f"{site}/page/pane")
    assert pane.below == 15
    assert (await session.act(Action("Scroll Down"))).above > 0


async def test_frames_and_shadow_trees(session, site):
    observation = await session.reset(f"{site}/page/frames")
    assert render(observation).splitlines() == [
        'page "frames"',
        'text "outer"',
        '"inside" link [1]',
        'text "shady"',
        '"deep" button [2]',
    ]
    assert (await do(session, "deep")).title == "pressed"
    inside = await do(session, "inside")
    assert 'text "second"' in render(inside) and inside.title == "pressed"
    back = await session.act(Action("Go Back"))
    assert '"inside" link' in render(back)


# ---- what is done ----


@pytest.mark.parametrize("real", [False, True], ids=["in the page", "real input"])
async def test_fields_can_be_filled_in(session, site, real, monkeypatch):
    monkeypatch.setattr(session.browser, "real_input", real)
    await session.reset(f"{site}/page/form")
    await do(session, "name", "Type", 'é "b"\'')
    await do(session, "secret", "Type", "pw")
    await do(session, "size", "Select Dropdown Option", "LARGE")
    await do(session, "gift wrap")
    await do(session, "one")
    observation = await do(session, "styled")
    lines = render(observation)
    assert '"gift wrap" check [4] on' in lines and '"one" radio [5] on' in lines and '"styled" check [9] on' in lines
    assert '= "large"' in lines and '"name" box [1] = "é \'b\'\'"' in lines and "pw" not in lines
    assert (await do(session, "size", "Select Dropdown Option", "huge")).error == 'option "huge" is disabled'
    wrong = await do(session, "size", "Select Dropdown Option", "blue")
    assert wrong.error == 'there is no option "blue"; there are "small", "large", "huge"'
    assert "disabled" in (await do(session, "off")).error
    sent = await do(session, "name", "Search", "red lamp")
    assert sent.title == "echo" and "a=red+lamp&p=pw&size=large&gift=on&r=1" in sent.nodes[-1]["text"]


@pytest.mark.parametrize("real", [False, True], ids=["in the page", "real input"])
async def test_events(session, site, real, monkeypatch):
    monkeypatch.setattr(session.browser, "real_input", real)
    await session.reset(f"{site}/page/events")
    trusted = "!" if real else ""
    log = render(await do(session, "press me"))
    assert f'text "mousedown{trusted} click{trusted}"' in log
    assert "contextmenu" + trusted in render(await do(session, "press me", "Right Click"))
    assert "input" + trusted in render(await session.act(Action("Type", "1", "a")))
    assert "keydown!" in render(await session.act(Action("Press", "1", "ctrl+a")))
    assert (await session.act(Action("Press", None, "foo"))).error == "there is no key 'foo'"
    assert "hidden menu" in render(await session.act(Action("Hover", find(await session.observe(), "hover"))))


async def mouse_log(session):
    return await session.read(None, lambda page: page.evaluate("seen.splice(0).join(' ')"))


async def test_drags(session, site):
    observation = await session.reset(f"{site}/page/mouse")
    a, b = find(observation, "a"), find(observation, "b")
    assert (await session.act(Action("Drag", a, b))).error == ""
    down, *moves, up = (await mouse_log(session)).split()[1:]
    assert (down, moves[-1], up) == ("down20,20*!", "move220,120*!", "up220,120!")
    assert len(moves) == len(set(moves)) == 8  # no two were made one
    await session.act(Action("Drag", a, "30,90"))
    assert (await mouse_log(session)).endswith("move30,90*! up30,90!")
    await session.act(Action("Drag", None, "5,210, 300,210, 5,50"))
    log = await mouse_log(session)
    assert "down5,210*! " in log and " move300,210*! " in log and log.endswith("move5,50*! up5,50!")
    await session.act(Action("Drag", None, "0,210,300,210"))
    assert await session.read(None, lambda page: page.evaluate("String(getSelection())")) == "some words to mark"


async def test_drags_that_cannot_be(session, site):
    observation = await session.reset(f"{site}/page/mouse")
    a = find(observation, "a")
    assert (await session.act(Action("Drag", a, "9"))).error == "there is no element 9 on this page"
    assert (await session.act(Action("Drag", "9", a))).error == "there is no element 9 on this page"
    assert (await session.act(Action("Drag", a, "5,9999"))).error == "5,9999 is out of view"
    assert (await session.act(Action("Drag", a, "-5,9"))).error == "-5,9 is out of view"
    assert await mouse_log(session) == ""
    await session.read(None, lambda page: page.evaluate("scrollTo(0, 1500)"))
    far = find(await session.observe(), "far")
    await session.read(None, lambda page: page.evaluate("scrollTo(0, 0)"))
    also = "__gui.elements.push(document.querySelector('.box'))"
    near = str(await session.read(None, lambda page: page.evaluate(also)))
    assert "too far apart" in (await session.act(Action("Drag", far, near))).error
    assert await mouse_log(session) == ""


@pytest.mark.parametrize("real", [False, True], ids=["in the page", "real input"])
async def test_points_instead_of_elements(session, site, real, monkeypatch):
    monkeypatch.setattr(session.browser, "real_input", real)
    await session.reset(f"{site}/page/mouse")
    assert (await session.act(Action("Click", None, "215,110"))).title == "div215,110"
    assert ("down215,110*!" if real else "down215,110* ") in await mouse_log(session)
    assert (await session.act(Action("Click", None, "5000,1"))).error == "5000,1 is out of view"
    await session.act(Action("Hover", None, "33,44"))
    assert (await mouse_log(session)).endswith("move33,44!")
    await session.act(Action("Click", "215,110"))
    assert ("down215,110*!" if real else "down215,110* ") in await mouse_log(session)
    assert (await session.act(Action("Double Click", "5000,1"))).error == "5000,1 is out of view"
    await session.act(Action("Drag", "5,210", "300,210"))
    assert (await mouse_log(session)).endswith("up300,210!")

    observation = await session.reset(f"{site}/page/form")
    node = next(node for node in observation.nodes if node.get("label") == "name")
    left, top, width, height = node["box"]
    point = f"{left + width // 2},{top + height // 2}"
    assert '"name" box [1] = "blue"' in render(await session.act(Action("Type", point, "blue")))
    assert '"name" box [1] = "red"' in render(await session.act(Action("Type", "focus", "red")))
    assert (await session.act(Action("Search", "focus", "lamp"))).title == "echo"


@pytest.mark.parametrize("real", [False, True], ids=["in the page", "real input"])
async def test_double_clicks(session, site, real, monkeypatch):
    monkeypatch.setattr(session.browser, "real_input", real)
    await session.reset(f"{site}/page/double")
    for action in (Action("Double Click", "1"), Action("Double Click", None, "20,20"), Action("Double Click", "20,20")):
        observation = await session.act(action)
        assert observation.title == "mousedown click mousedown click dblclick"
    assert (await do(session, "twice")).title == "mousedown click"


@pytest.mark.parametrize("real", [False, True], ids=["in the page", "real input"])
async def test_a_click_goes_to_what_is_innermost(session, site, real, monkeypatch):
    monkeypatch.setattr(session.browser, "real_input", real)
    await session.reset(f"{site}/page/mouse")
    observation = await do(session, "inner")  # a list item with role=tab around a link, as jQuery UI makes them
    assert observation.url.endswith("#there") and observation.title.startswith("a")


async def test_the_mouse_is_away_at_the_beginning(session, site):
    await session.reset(f"{site}/page/events")
    await do(session, "hover", "Hover")
    shown = "getComputedStyle(document.querySelector('#m')).display"
    assert await session.read(None, lambda page: page.evaluate(shown)) == "block"
    for keep_page in (True, False):
        await session.reset(f"{site}/page/events", keep_page=keep_page)
        assert await session.read(None, lambda page: page.evaluate(shown)) == "none"


async def test_press_enter_submits(session, site):
    await session.reset(f"{site}/page/form")
    await do(session, "name", "Type", "blue")
    observation = await session.act(Action("Press", None, "Enter"))
    assert observation.title == "echo" and "a=blue" in observation.nodes[-1]["text"]


async def test_refused_actions_are_observations(session, site):
    await session.reset(f"{site}/page/gone")
    assert (await session.act(Action("Click", "99"))).error == "there is no element 99 on this page"
    assert (await session.act(Action("Click", "x"))).error == "there is no element x on this page"
    assert (await do(session, "under")).error == "another element covers it"
    assert (await do(session, "fixed", "Type", "2")).error == "the box is read-only"
    assert (await do(session, "stay", "Type", "2")).error == "text can only be typed into a box"
    assert (await do(session, "stay", "Select Dropdown Option", "2")).error == "this element has no options"
    before = await session.observe()
    await session._send("Runtime.evaluate", expression="document.querySelector('p').remove()")
    assert "is gone" in (await session.act(Action("Click", find(before, "target")))).error
    assert '"vanish" button' not in render(await do(session, "vanish"))


# ---- when a page is at rest ----


async def test_hundreds_of_navigations_and_no_stale_observation(browser, site):
    stale, steps = [], 0

    async def go(seed):
        nonlocal steps
        session, rng = await browser.session(), random.Random(seed)
        first = seed * 1000
        observation = await session.reset(f"{site}/walk/{first}")
        for k in range(first + 1, first + 51):
            way = rng.choice(WAYS)
            observation = await session.act(Action("Click", find(observation, way)))
            headings = [node["text"] for node in observation.nodes if "text" in node]
            if not (
                observation.title == headings[0] == f"page {k}" and observation.url.split("?")[0].endswith(f"/{k}")
            ):
                stale.append((way, k, observation.title, headings, observation.url, observation.error))
                observation = await session.reset(f"{site}/walk/{k}")
            steps += 1
        await session.close()

    await asyncio.gather(*(go(seed) for seed in range(8)))
    assert steps == 400 and not stale, f"{len(stale)} stale: {stale[:5]}"


async def test_the_clock_moves_with_actions_alone(session, site):
    await session.reset(f"{site}/page/clock")
    started = time.monotonic()
    observation = await do(session, "go")
    assert 'text "4 true"' in render(observation) and observation.title == f"{datetime.date.today().year}0"
    assert time.monotonic() - started < 5


async def test_the_real_clock_waits_for_short_timers_and_for_a_poll_once(site):
    browser = await Browser.start(virtual_clock=False, timeout=10)
    try:
        session = await browser.session()
        observation = await session.reset(f"{site}/walk/5")
        for k, way in enumerate(["timer", "late fetch", "request", "fetch", "post"], start=6):
            observation = await session.act(Action("Click", find(observation, way)))
            assert observation.title == f"page {k}"
        await session.reset(f"{site}/page/poll")
        started = time.monotonic()
        await do(session, "b")
        assert time.monotonic() - started < 4  # seconds; half of the timeout was for reset() to wait
    finally:
        await browser.close()


# ---- what comes unasked ----


async def test_dialogs_are_answered_and_told(session, site):
    await session.reset(f"{site}/page/dialogs")
    observation = await do(session, "alert")
    assert observation.dialog == "hello" and 'dialog "hello"' in render(observation)
    confirmed = await do(session, "confirm")
    assert (confirmed.title, confirmed.dialog) == ("yes", "sure?")
    assert (await do(session, "prompt")).title == "bob"
    gone = await do(session, "alert and go")
    assert (gone.title, gone.dialog) == ("echo", "bye")
    await session.act(Action("Go Back"))
    left = await do(session, "unload")
    assert (left.title, left.dialog) == ("echo", "")


async def test_tabs(session, site):
    await session.reset(f"{site}/page/tabs")
    for count, label in enumerate(["blank", "open", "form"], start=2):
        observation = await do(session, label)
        assert observation.title == "echo" and observation.tabs == (count, count)
        assert render(observation).splitlines()[1] == f"tabs {count} of {count}"
        observation = await session.act(Action("Switch Tab", None, "1"))
        assert observation.title == "tabs" and observation.tabs == (1, count)
    assert (await session.act(Action("Switch Tab", None, "7"))).error == "there is no tab 7"
    blocked = await do(session, "out")
    assert blocked.error.startswith("blocked: http://localhost") and blocked.tabs[1] == 4
    fresh = await session.act(Action("New Tab", None, "/page/echo"))
    assert (fresh.title, fresh.tabs) == ("", (5, 5)) or fresh.tabs == (5, 5)
    for count in (4, 3, 2, 1):
        observation = await session.act(Action("Close Tab"))
        assert observation.tabs[1] == count
    assert (await session.act(Action("Close Tab"))).error == "the only tab cannot be closed"
    await session.reset(f"{site}/page/tabs")
    assert 'text "rewritten"' in render(await do(session, "write"))


async def test_a_page_that_closes_itself(session, site):
    await session.reset(f"{site}/page/tabs")
    assert (await do(session, "closing")).title == "closing"
    back = await do(session, "close")
    assert (back.title, back.tabs, back.error) == ("tabs", (1, 1), "the page closed itself")
    blank = await do(session, "close")  # the only tab, without a history: Chromium lets it close itself
    assert blank.error == "the page closed itself" and blank.url == "about:blank"
    assert (await session.reset(f"{site}/page/echo")).title == "echo"


async def test_the_agent_cannot_leave_the_sites(session, site):
    away = site.replace("127.0.0.1", "localhost")
    await session.reset(f"{site}/page/out")
    for label in ("away", "redirect away"):
        observation = await do(session, label)
        assert observation.error.startswith(f"blocked: {away}/page/echo") and observation.url == f"{site}/page/out"
    assert "blocked" in (await session.act(Action("Goto", None, away))).error
    assert "blocked" in (await session.act(Action("Goto", None, "file:///etc/passwd"))).error
    assert "blocked" in (await session.act(Action("Goto", None, f"{site}.evil.com/"))).error
    assert "not a URL" in (await session.act(Action("Goto", None, "http://["))).error
    assert (await session.act(Action("Goto", None, "/page/echo"))).title == "echo"
    await session.reset(f"{site}/page/echo", sites=[f"{site}/page"])
    assert "blocked" in (await session.act(Action("Goto", None, f"{site}/pages"))).error


async def test_navigations_that_lead_nowhere(session, site):
    observation = await session.reset(f"{site}/page/out")
    for label, error in [
        ("file", "downloads are refused"),
        ("save", "downloads are refused"),
        ("nothing", "shows no page"),
    ]:
        observation = await do(session, label)
        assert error in observation.error and observation.title == "out", label
    assert (await do(session, "two")).title == "echo"


# ---- history ----


async def test_back_and_forward(session, site):
    observation = await session.reset(f"{site}/walk/1")
    assert (await session.act(Action("Go Back"))).error == "there is no page to go back to"
    for way in ("link", "fetch", "post"):
        observation = await session.act(Action("Click", find(observation, way)))
    titles = [(await session.act(Action("Go Back"))).url[len(site) :] for _ in range(3)]
    assert titles == ["/walk/3", "/walk/2", "/walk/1"]
    assert (await session.act(Action("Go Forward"))).url == f"{site}/walk/2"


# ---- isolation ----


async def test_sixteen_sessions_never_meet(browser, site):
    async def episode(number):
        session = await browser.session()
        for round in range(2):
            name = f"{number}-{round}"
            observation = await session.reset(f"{site}/who", cookies={"episode": name})
            for _ in range(3):
                observation = await session.act(Action("Click", "1"))
                assert observation.title == name
            stored = await session.reset(f"{site}/page/store")
            assert 'text "had |||"' in render(stored), (name, render(stored))
        await session.close()

    await asyncio.gather(*(episode(number) for number in range(16)))


async def test_an_episode_leaves_nothing_behind(session, site):
    for _ in range(3):
        observation = await session.reset(f"{site}/page/store")
        assert 'text "had |||"' in render(observation)
        again = await do(session, "again")
        assert 'text "had c=; late=1|1|2|n"' in render(again)
    await do(session, "out")
    await session.reset(f"{site}/page/store")
    assert (await session.act(Action("Go Back"))).error == "there is no page to go back to"


# ---- faults ----


async def test_an_episode_can_begin_with_what_an_earlier_one_kept(session, site):
    await session.reset(f"{site}/page/echo", cookies={"name": "a"})
    await session.act(Action("Goto", argument=f"{site}/page/text"))
    state = await session.storage_state()
    assert [(cookie["name"], cookie["value"]) for cookie in state["cookies"]] == [("name", "a")]
    await session.reset(f"{site}/page/echo")
    assert (await session.storage_state())["cookies"] == []
    seen = await session.reset(f"{site}/page/echo", context={"storage_state": state})
    assert await session.read(None, lambda page: page.evaluate("document.cookie")) == "name=a"
    assert seen.tabs == (1, 1) and (await session.observe()).tabs == (1, 1)
    await session.read(None, lambda page: page.evaluate("localStorage.x = 1"))
    await session.act(Action("Goto", argument="about:blank"))
    state = await session.storage_state()  # of an origin that no tab shows
    assert state["origins"][0]["localStorage"] == [{"name": "x", "value": "1"}]
    assert (await session.observe()).tabs == (1, 1)


@pytest.mark.parametrize("label, reason", [("error", "503"), ("refused", "cannot be reached")])
async def test_a_broken_server_is_a_fault(session, site, closed_port, label, reason):
    await session.reset(f"{site}/page/out?{closed_port}", sites=[site, f"http://127.0.0.1:{closed_port}"])
    with pytest.raises(EnvFault, match=reason):
        await do(session, label)
    with pytest.raises(EnvFault, match="reset"):
        await session.observe()
    assert (await session.reset(f"{site}/page/echo")).title == "echo"


async def test_a_page_that_breaks_off_is_a_fault(session, site):
    for _ in range(20):  # whether its failure or the page comes first
        with pytest.raises(EnvFault, match="/half"):
            await session.reset(f"{site}/half")
        await session.reset(f"{site}/page/out?1", sites=[site])
        with pytest.raises(EnvFault, match="/half"):
            await session.act(Action("Goto", None, f"{site}/half"))
    assert (await session.reset(f"{site}/page/echo")).title == "echo"


async def test_a_start_page_that_cannot_be_reached_is_a_fault(session, closed_port):
    with pytest.raises(EnvFault, match="REFUSED"):
        await session.reset(f"http://127.0.0.1:{closed_port}/")


@pytest.mark.parametrize("page, label", [("hang", "hang"), ("out", "never")])
async def test_a_hang_is_a_fault_and_ends(session, site, page, label, monkeypatch):
    await session.reset(f"{site}/page/{page}")
    monkeypatch.setattr(session.browser, "timeout", 1.5)
    with pytest.raises(EnvFault, match="did not answer within 1.5 s"):
        await do(session, label)
    monkeypatch.undo()
    assert (await session.reset(f"{site}/page/echo")).title == "echo"


async def test_a_killed_chromium_is_a_fault_and_comes_back(site):
    others = {process.pid for process in psutil.Process().children(recursive=True)}
    browser = await Browser.start(timeout=20)
    try:
        sessions = [await browser.session() for _ in range(3)]
        await asyncio.gather(*(session.reset(f"{site}/walk/{k}") for k, session in enumerate(sessions)))
        mine = [p for p in psutil.Process().children(recursive=True) if p.pid not in others]
        commands = {process: process.cmdline() for process in mine}  # all read before the first one dies
        for process, command in commands.items():  # the browser, and the shell script a distribution puts around it
            if "--remote-debugging-pipe" in command and not any(a.startswith("--type=") for a in command):
                process.kill()
        for session in sessions:
            with pytest.raises(EnvFault):
                await session.act(Action("Click", "1"))
        again = await asyncio.gather(*(session.reset(f"{site}/walk/{k}") for k, session in enumerate(sessions)))
        assert [observation.title for observation in again] == ["page 0", "page 1", "page 2"]
    finally:
        await browser.close()


async def test_a_missing_chromium_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "chromium"))
    with pytest.raises(UsageError) as error:
        await Browser.start()
    assert "\n" not in str(error.value) and "does not start" in str(error.value)
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setattr(driver.shutil, "which", lambda name: None)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(UsageError, match="playwright install"):
        await Browser.start()


def pixels(picture):
    with Image.open(io.BytesIO(picture)) as image:
        return image.size, image.convert("RGB").tobytes()


async def test_screenshots(session, site):
    await session.reset(f"{site}/page/text")
    picture = await session.screenshot()
    assert picture.startswith(b"\x89PNG") and pixels(picture)[0] == tuple(session.browser.viewport.values())
    theirs = await session.read(None, lambda page: page.screenshot(caret="initial"))
    assert pixels(picture) == pixels(theirs)
    await session.reset(f"{site}/page/mouse")
    assert pixels(await session.screenshot()) != pixels(picture)


async def test_a_paced_browser_shows_the_same(session, site, tmp_path, monkeypatch):
    await session.reset(f"{site}/page/text")
    picture = await session.screenshot()
    programs = [os.environ.get("CHROMIUM"), *map(driver.shutil.which, driver.PROGRAMS)]
    program = next(filter(None, programs), None)
    if program is None:
        pytest.skip("Playwright's own Chromium has no path to wrap")
    wrapper, flags = tmp_path / "chromium", tmp_path / "flags"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {flags}\nexec {program} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(wrapper))
    for paced in (True, False):
        flags.unlink(missing_ok=True)
        browser = await Browser.start(paced=paced)
        try:
            other = await browser.session()
            await other.reset(f"{site}/page/text")
            assert pixels(await other.screenshot()) == pixels(picture)
        finally:
            await browser.close()
        assert [flag in flags.read_text().split() for flag in driver.UNPACED] == [not paced] * len(driver.UNPACED)


async def test_an_endless_animation_stands_still_on_the_virtual_clock(tmp_path, session):
    page = tmp_path / "page.html"
    style = "@keyframes turn { to { transform: rotate(360deg) } } div { width: 90px; height: 60px; background: red;"
    page.write_text(f"<style>{style} animation: turn 1s linear infinite }}</style><div>turns</div>")
    await session.reset(page.as_uri(), [page.as_uri()])
    first = await session.screenshot()
    await asyncio.sleep(0.3)  # nothing is waited for: true time passes, and must show nowhere
    assert await session.screenshot() == first
    await session.act(Action("Wait"))
    assert await session.screenshot() == first


async def test_a_browser_without_screenshots_acts_as_the_others_do(site):
    browser = await Browser.start(screenshots=False, real_input=True)
    try:
        session = await browser.session()
        seen = await session.reset(f"{site}/page/text")
        assert seen.url.endswith("/page/text") and not seen.error
        with pytest.raises(ValueError, match="screenshots=False"):
            await session.screenshot()
        await session.reset(f"{site}/page/events")
        began = time.monotonic()
        assert "hidden menu" in render(await do(session, "hover", "Hover"))
        await session.reset(f"{site}/page/mouse")
        await do(session, "a", "Drag", "100,100")
        moves = (await mouse_log(session)).count("move")
        assert moves == 9 and time.monotonic() - began < 4  # a move that waits for a frame takes 5 s
        await session.reset(f"{site}/page/rolls")
        assert (await do(session, "first", "Scroll Down")).title == "pane"
        assert (await session.act(Action("Scroll Down"))).title == "page"
    finally:
        await browser.close()


SCRIPT = """() => {
  let episode = null;
  __gui.start = ({number}) => {
    __gui.rewind();
    episode = number;
    document.body.innerHTML = `<p hidden>${Date.now()}</p><input><b id=secret>s</b><u>u</u>`;
    setTimeout(() => document.body.append("later"), 700);
  };
  __gui.kind = (el) => el.id === "secret" ? null : el.localName === "u" ? "item" : undefined;
  __gui.label = (el, label) => el.localName === "input" ? `box ${episode}` : undefined;
  __gui.ready = async () => { document.title = "ready"; };
  __gui.report = () => ({episode, time: Math.floor(Date.now() / 500) % 1000});
}"""


async def test_an_environments_own_script(site):
    browser = await Browser.start(script=SCRIPT, timeout=60)
    try:
        session = await browser.session()
        url = f"{site}/page/form"
        first = await session.reset(url, keep_page=True, start={"number": 7}, stay=True)
        assert render(first).splitlines() == ['page "ready"', '"box 7" box [1]', '"u" item [2]']
        assert first.report["episode"] == 7
        second = await session.act(Action("Type", "1", "x"))
        assert render(second).splitlines()[1:] == ['"box 7" box [1] = "x"', '"u" item [2]', 'text "later"']
        assert second.report["time"] == first.report["time"] + 1
        mark = "document.mine = (document.mine ?? 0) + 1"
        await session.read(None, lambda page: page.evaluate(mark))
        again = await session.reset(
            url, keep_page=True, start={"number": 7}, stay=True, actions=[Action("Type", "1", "x")]
        )
        assert again == second  # one round trip, at the same time on the page's clock
        assert await session.read(None, lambda page: page.evaluate(mark)) == 2  # in the same document
        for options in ({"keep_page": True}, {"stay": True}):
            await session.reset(url, start={"number": 8}, **options)
            assert await session.read(None, lambda page: page.evaluate(mark)) == 1  # loaded anew
        assert [session.in_page(Action(name)) for name in ("Click", "Wait", "Press", "Drag", "Goto")] == [True] * 2 + [
            False
        ] * 3
    finally:
        await browser.close()
