"""What real pages are made of, in real Chromium: an agent sees and can do there what a person can."""

import http.server
import threading
import time

import pytest
import pytest_asyncio

from common.actions import Action
from common.browser import Browser
from common.errors import UsageError
from common.html import render
from tests.one_browser import one_browser

pytestmark = pytest.mark.asyncio(loop_scope="module")
both_inputs = pytest.mark.parametrize("real", [False, True], ids=["in the page", "real input"])


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with one_browser(timeout=60, screenshots=False) as browser:  # as the scripts start it, for sites of others
        yield browser


class Server(http.server.ThreadingHTTPServer):
    pages: dict[str, str] = {}  # path -> page, or (page, headers)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page, headers = self.server.pages.get(self.path, ("<title>none</title>", {}))
        self.send_response(200)
        for name, value in ({"content-type": "text/html; charset=utf-8"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def show(session, server):
    """Begin an episode at this page; its other pages are by their paths."""

    async def show(page, headers=None, uploads=None, **others):
        pages = {f"/{name}": (text.replace("PORT", str(server.server_port)), {}) for name, text in others.items()}
        server.pages = pages | {"/": (page.replace("PORT", str(server.server_port)), headers or {})}
        return await session.reset(f"http://127.0.0.1:{server.server_port}/", uploads=uploads)

    return show


def lines(observation):
    """The page's lines but its title."""
    return render(observation).splitlines()[1:]


async def do(session, label, name="Click", argument=None):
    observation = await session.observe()
    ids = [str(node["id"]) for node in observation.nodes if node.get("label") == label]
    assert ids, f"no {label} in\n{render(observation)}"
    return await session.act(Action(name, ids[0], argument))


# ---- frames ----


async def test_what_comes_with_frames_comes_without_screenshots(session, show):
    feed = await show("""<div id=feed></div><div id=end style="height:20px"></div><script>
      const more = () => { for (let i = 0; i < 15;
      i++) feed.insertAdjacentHTML("beforeend", "<p style='height:60px;margin:0'>post") };
      more();
      new IntersectionObserver((all) => { if (all.some((one) =>
      one.isIntersecting)) more() }).observe(end);</script>""")
    counts = [feed.below] + [(await session.act(Action("Scroll Down"))).below for _ in range(3)]
    assert counts[0] == 3 and max(counts) > 10  # it has grown
    await show("""<button onclick="big.style.height = '90px'; big.style.opacity = 0.5">go</button><p id=out>-</p>
      <div id=big style="height:9px;transition:opacity 1s">box</div><script>
      const say = (word) => { out.textContent += " " + word };
      new ResizeObserver(() => say("size" + big.offsetHeight)).observe(big);
      big.ontransitionend = () => say("faded");
      requestIdleCallback(() => say("idle"));</script>""")
    said = await do(session, "go")
    assert {"size9", "idle", "size90", "faded"} <= set(render(said).replace('"', " ").split()), render(said)


# ---- clicks that are heard further out ----

ROOT = "<div id=root><h1>Thank you</h1><p>Order 4711.</p><div><b class=t>track</b> <b class=t>cancel</b></div></div>"
LISTEN = (
    '<script>for (const t of "TYPES".split(" ")) document.getElementById("root").addEventListener(t, (e) => {'
    ' if (t === "click") document.title = e.target.closest("li,tr,td,b,span,i,div").textContent.trim() })</script>'
)
POINTER = "<style>b, .p { cursor: pointer }</style>"


@pytest.mark.parametrize(
    "page, expected, pressed",
    [
        (ROOT, ['text "Thank you"', 'text "Order 4711."', '"track" item [1]', '"cancel" item [2]'], "cancel"),
        ("<ul id=root><li>one</li><li>two</li></ul>", ['"one" item [1]', '"two" item [2]'], "two"),
        ("<ul id=root role=listbox tabindex=0><li role=option>one<li role=option>two</ul>",
         ['"one" item [1]', '"two" item [2]'], "two"),
        ("<table><tbody id=root><tr><th>name<th>price<tr><td>pen<td>12<tr><td>ink<td>30</table>",
         ['text "name price"', '"pen 12" item [1]', '"ink 30" item [2]'], "ink 30"),
        ("<table id=root><tr><td>1<td>2<td>3<td>4<td>5<tr><td>6<td>7<td>8<td>9<td></table>",
         [f'"{day}" item [{day}]' for day in range(1, 10)], "7"),
        ("<div id=root tabindex=-1><span class=p tabindex=-1>30</span><span class=p tabindex=-1>31</span></div>",
         ['"30" item [1]', '"31" item [2]'], "31"),
        ("<ul id=root class=p tabindex=0><li><div tabindex=-1>Rome</div><li><div tabindex=-1>Oslo</div></ul>",
         ['"Rome" item [1]', '"Oslo" item [2]'], "Oslo"),
        ("<div id=root><div data-id=1>first</div><div data-id=2>second</div></div>",
         ['"first" item [1]', '"second" item [2]'], "second"),
        ("<div id=root role=tree tabindex=0><div role=treeitem>a<div role=group>"
         "<div role=treeitem>b</div></div></div></div>",
         ['"a" item [1]', '"b" item [2]'], "b"),
        ("<div id=root role=grid tabindex=0><div role=row><i role=gridcell tabindex=-1>7</i>"
         "<i role=gridcell tabindex=-1>8</i></div></div>",
         ['"7" item [1]', '"8" item [2]'], "8"),
        ("<div id=root class=p><h3>Red lamp, the best of all</h3><span id=s>like</span></div>"
         "<script>s.addEventListener('click', () => 1)</script>",
         ['"Red lamp, the best of all" item [1]', '"like" item [2]'], "like"),
    ],
)  # fmt: skip
@both_inputs
async def test_delegated_clicks(session, show, monkeypatch, page, expected, pressed, real):
    monkeypatch.setattr(session.browser, "real_input", real)
    seen = await show(POINTER + page + LISTEN.replace("TYPES", "click mousedown mouseup"))
    assert lines(seen) == expected
    title = (await do(session, pressed)).title
    assert title and title in pressed


AT_THE_ROOT = """<script>document.addEventListener("click", (e) => {
  const one = e.target.closest("[data-id],[data-user-id],[data-do-action],.row,tr");
  if (one) document.title = one.textContent.trim() })</script>"""
JQUERY = """<script>window.jQuery = (root) => ({find: (all) => ({toArray: () => [...root.querySelectorAll(all)]})});
  jQuery._data = (el) => el === document && {click: [{selector: ".row"}, {}]};</script>"""


@pytest.mark.parametrize(
    "page, expected, pressed",
    [
        ("<ul><li data-id=1>one<li data-id=2>two</ul>", ['"one" item [1]', '"two" item [2]'], "two"),
        ("<div><div data-user-id=1>one</div><div data-user-id=2>two</div></div><div data-testid=a>no</div>",
         ['"one" item [1]', '"two" item [2]', 'text "no"'], "one"),
        ("<p data-id=1>no</p><p data-id=2>not</p><span data-do-action=save>save</span>",
         ['text "no"', 'text "not"', '"save" item [1]'], "save"),
        ("<table><tr><th>name<th>age<tr data-href=a><td>Ann<td>3<tr data-href=b><td>Bob<td>4</table>",
         ['text "name age"', '"Ann 3" item [1]', '"Bob 4" item [2]'], "Bob 4"),
        ("<div><div class=row>one</div><div class=row>two</div><div>no</div></div>" + JQUERY,
         ['"one" item [1]', '"two" item [2]', 'text "no"'], "two"),
        ("<div id=a>one</div><div id=b>two</div><script>a.$$click = b.__click = () => 1</script><i class=row>no</i>",
         ['"one" item [1]', '"two" item [2]', 'text "no"'], ""),
    ],
    ids=["list", "others", "actions", "table", "jQuery", "notes"],
)  # fmt: skip
async def test_clicks_that_the_whole_document_hears(session, show, page, expected, pressed):
    assert lines(await show(page + AT_THE_ROOT)) == expected
    if pressed:
        title = (await do(session, pressed)).title
        assert title and title.replace("\n", "") in pressed.replace(" ", "")
    if "id=a>" not in page:
        assert "item" not in render(await show(page))
        body_hears = "<script>document.body.onclick = () => 1</script>"
        assert lines(await show(page + body_hears)) == expected


async def test_what_only_scrolls_or_is_a_landmark_is_text(show):
    seen = await show("""<main tabindex=-1><div tabindex=0 style="overflow:auto;height:90px"><p>one<p>two</div></main>
      <div id=card><h3>lamp</h3><p>24</p></div><script>card.addEventListener("click", () => 1)</script>""")
    assert lines(seen) == ['text "one"', 'text "two"', '"lamp 24" item [1]']


# ---- what is there to be seen ----


async def test_boxes_that_hold_nothing_of_their_own(session, show):
    seen = await show("""<div style="display:grid"><a href="#a" style="display:contents"><span>lamp</span>
      <span>12</span></a>
      </div><button style="display:contents" onclick="document.title='pressed'"><i>press</i></button>
      <a href="#f"><div style="float:left">float</div></a><br style="clear:both">
      <a href="#p"><span style="position:absolute;left:300px;top:90px">placed</span></a>
      <a href="#no" style="display:block;height:0;overflow:hidden">no</a>""")
    labels = ['"lamp 12" link [1]', '"press" button [2]', '"float" link [3]', '"placed" link [4]']
    assert lines(seen) == labels
    assert (await do(session, "press")).title == "pressed"
    for label in ("lamp 12", "float", "placed"):
        assert (await do(session, label)).url.endswith("#" + label[0] if label != "lamp 12" else "#a")


async def test_inputs_that_are_not_seen_take_clicks(session, show):
    seen = await show("""<style>.w{position:relative;width:60px;height:30px;display:inline-block}
      .w > :is(input, select){position:absolute;inset:0;opacity:0;margin:0}
      .off{position:absolute;clip:rect(0,0,0,0);width:1px;height:1px}</style>
      <span class=w><input type=checkbox aria-label=row><svg width=20 height=20></svg></span>
      <div class=w>small<select aria-label=size><option>small<option>large</select></div>
      <input type=checkbox class=off id=c><label for=c>news</label>
      <label><input type=file hidden>picture</label>
      <div style="opacity:0"><a href="#">ghost</a> words</div>
      <input style="opacity:0;pointer-events:none" aria-label=dead>""")
    assert lines(seen) == [
        '"row" check [1]',
        'text "small"',
        '"size" select [2] = "small" of "small" "large"',
        '"news" check [3]',
        '"picture" file [4]',
    ]
    assert '"row" check [1] on' in render(await do(session, "row"))
    assert '"news" check [3] on' in render(await do(session, "news"))
    assert '= "large"' in render(await do(session, "size", "Select Dropdown Option", "large"))


async def test_a_menu_out_of_the_box_that_would_cut_it(show):
    menu = "<ul style='position:absolute;top:60px;left:0'><li><a href='#'>entry</a></ul>"
    cut = "<div style='height:30px;overflow:hidden'>"
    assert '"entry" link' in render(await show(f"<div style='position:relative'>{cut}bar{menu}</div></div>"))
    assert '"entry" link' not in render(
        await show(f"<div style='overflow:hidden;height:30px;position:relative'>bar{menu}</div>")
    )


async def test_trees_and_frames_of_all_kinds(session, show):
    seen = await show(
        """<div id=h></div><script>const root = h.attachShadow({mode: "closed"});
      root.innerHTML = "<button>shut</button>";
        root.firstChild.onclick = () => { document.title = "pressed" }</script>
        <iframe src="http://localhost:PORT/card"></iframe><iframe src="http://localhost:PORT/card" width=1 height=1>
        </iframe><iframe src="http://localhost:PORT/old" onload="this.contentWindow.name = 'x'"></iframe>
        <x-shut style="display:block;height:30px"><template shadowrootmode=closed>hidden</template></x-shut>
        <iframe srcdoc="<p>letter</p>" onload="this.contentDocument.designMode = 'on'" title=letter></iframe>""",
        card="<input>",
        old="<p>none</p>",
    )
    assert lines(seen)[:3] == ['"shut" button [1]', '"" box [2]', 'text "none"']
    assert lines(seen)[3].startswith('text "x-shut: what it holds') and lines(seen)[4:] == ['"" box [3] = "letter"']
    assert (await do(session, "shut")).title == "pressed"
    seen = await show(
        "<frameset cols='200,*'><frame name=menu src=menu><frame name=main src=main></frameset>",
        menu="<a href=form target=main>orders</a>", main="<h1>welcome</h1>", form="<input aria-label=number>",
    )  # fmt: skip
    assert lines(seen) == ['"orders" link [1]', 'text "welcome"']
    assert lines(await do(session, "orders")) == ['"orders" link [1]', '"number" box [2]']


CARD = """<input aria-label=number><select aria-label=kind><option>one<option>two</select><input type=file title=scan>
  <div contenteditable aria-label=note></div><a href=next target=_self>next</a>
  <button onclick="setTimeout(() => parent.postMessage('paid ' + document.querySelector('input').value, '*'), 300)">pay
  </button><iframe src="http://127.0.0.1:PORT/deep" height=60></iframe>"""


@both_inputs
async def test_frames_of_other_origins(session, show, monkeypatch, tmp_path, real):
    monkeypatch.setattr(session.browser, "real_input", real)
    (tmp_path / "a.txt").write_text("a")
    page = """<a href="#">above</a><iframe src="http://localhost:PORT/card" width=600 height=260></iframe>
      <button>after</button><p id=out></p><script>onmessage = (event) => { out.textContent = event.data }</script>"""
    others = {"card": CARD, "deep": "<button onclick='this.textContent = `was pressed`'>deep</button>"}
    seen = await show(page, uploads=tmp_path, **others, next="<p>thanks</p>")
    inner = ["number", "kind", "scan", "note", "next", "pay", "deep"]
    assert [node["label"] for node in seen.nodes if "id" in node] == ["above", *inner, "after"]
    await do(session, "number", "Type", "4111")
    await do(session, "note", "Type", "hello")
    await do(session, "scan", "Upload File", "a.txt")
    seen = await do(session, "kind", "Select Dropdown Option", "two")
    assert {'"number" box [2] = "4111"', '"kind" select [3] = "two" of "one" "two"', '"scan" file [4] = "a.txt"',
            '"note" box [5] = "hello"'} <= set(lines(seen))  # fmt: skip
    assert "no option" in (await do(session, "kind", "Select Dropdown Option", "three")).error
    assert "Upload File" in (await do(session, "scan")).error
    assert "was pressed" in render(await do(session, "deep"))
    assert 'text "paid 4111"' in lines(await do(session, "pay"))
    boxes = {node["label"]: node["box"] for node in (await session.observe()).nodes if "id" in node}
    left, top, width, height = boxes["number"]
    await session.act(Action("Click", None, f"{left + width // 2},{top + height // 2}"))
    assert '= "4222"' in render(await session.act(Action("Type", "focus", "4222")))
    assert "there is no element" in (await do(session, "number", "Drag", "1")).error
    assert lines(await do(session, "next")) == [
        '"above" link [1]', 'text "thanks"', '"after" button [2]', 'text "paid 4111"'
    ]  # fmt: skip


async def test_a_frame_of_another_origin_scrolls_and_may_be_lost(session, show):
    page = '<body style="margin:0"><iframe src="http://localhost:PORT/rows" style="width:99vw;height:95vh"></iframe>'
    seen = await show(page, rows=ROWS)
    assert seen.below > 20 and "link [1]" in lines(seen)[0]
    seen = await session.act(Action("Scroll Down"))
    assert seen.above > 5 and not seen.error
    assert (await session.act(Action("Scroll Down", "2"))).above > seen.above
    assert "further" in [await session.act(Action("Scroll Up")) for _ in range(6)][-1].error
    await session.read(None, lambda page: page.evaluate("document.querySelector('iframe').remove()"))
    assert (await session.act(Action("Click", "2"))).error == "the frame is gone"


async def test_a_frame_that_never_rests_is_waited_for_once(session, show, monkeypatch):
    monkeypatch.setattr(session.browser, "timeout", 16)  # a quarter of it
    advert = "<p>advert</p><script>__gui.pending.add('a request without an answer')</script>"
    page = "<p>news</p><iframe src='http://localhost:PORT/advert'></iframe>"
    assert "cannot be seen here" in lines(await show(page, advert=advert))[1]
    assert lines(await session.observe()) == ['text "news"', 'text "advert"']


COVERED = """<h1>shop</h1><a href="#a">lamps</a> <iframe srcdoc="<a href='#'>inner</a>" height=50></iframe>"""


@pytest.mark.parametrize(
    "cover",
    [
        "<div id=w style='position:fixed;inset:0;background:#0008'><p>cookies<button>yes</button></div>",
        """<div style="position:fixed;top:0;left:0;width:100vw;height:100vh"></div>
           <div style="position:fixed;left:300px;top:300px">cookies<button>yes</button></div>""",
        """<div id=h></div><script>h.attachShadow({mode: "closed"}).innerHTML =
           "<div style='position:fixed;inset:0'>cookies<button>yes</button></div>"</script>""",
        """<iframe style="position:fixed;inset:0;width:100%;height:100%"
           srcdoc="cookies<button>yes</button>"></iframe>""",
        """<div style="position:fixed;inset:0"></div>
           <div role=dialog aria-modal=true style="position:fixed;inset:99px">cookies<button>yes</button></div>""",
    ],
    ids=["around", "beside", "shadow", "frame", "modal"],
)
async def test_what_covers_the_view_has_it_to_itself(session, show, cover):
    seen = await show(COVERED + cover)
    assert [node["label"] for node in seen.nodes if "id" in node] == ["yes"]
    assert 'text "shop"' in lines(seen)  # it is seen, though


async def test_what_covers_nothing_hides_nothing(show):
    shell = f"""<div style="position:fixed;inset:0;overflow:auto"><div style="position:sticky;top:0;height:60px">
      <a href="#h">home</a></div>{ROWS}</div>"""
    rows = [f"row {number}" for number in range(11)]
    seen = await show(shell)
    assert [node["label"] for node in seen.nodes if "id" in node] == ["home", *rows] and seen.below == 29
    seen = await show(f"""<div style="position:fixed;inset:0;z-index:-1;background:#eee"></div>{COVERED}
      <canvas style="position:fixed;inset:0;pointer-events:none" width=1280 height=720></canvas>
      <p style="width:70px"><a href="#b">a link over three lines</a></p><a href="#c" style="position:absolute;top:0">
      under the bar</a><div style="position:fixed;top:0;left:0;width:200px;height:40px">bar</div>""")
    labels = [node["label"] for node in seen.nodes if "id" in node]
    assert labels == ["lamps", "inner", "a link over three lines", "under the bar"]


async def test_a_modal_dialog_has_the_page_to_itself(session, show):
    await show("""<button onclick="d.showModal()">open</button><a href="#">behind</a>
      <dialog id=d><button onclick="d.close()">close</button></dialog><p inert><a href="#">never</a></p>
      <div style="position:fixed;inset:0;background:#fff" role=dialog aria-modal=true id=m hidden>
      <button>inner</button></div>""")
    assert [node["label"] for node in (await do(session, "open")).nodes if "id" in node] == ["close"]
    assert [node["label"] for node in (await do(session, "close")).nodes if "id" in node] == ["open", "behind"]
    await session.read(None, lambda page: page.evaluate("document.getElementById('m').hidden = false"))
    assert [node["label"] for node in (await session.observe()).nodes if "id" in node] == ["inner"]


OWN_BUBBLES = "document.addEventListener('invalid', (e) => e.preventDefault(), true)"


async def test_the_bubble_of_a_form_that_is_not_sent(session, show):
    await show("""<form><input required aria-label=name><input type=email aria-label=mail><button>send</button></form>
      <button onclick="document.forms[0].checkValidity()">check</button>""")
    assert (await do(session, "check")).error == ""
    assert (await do(session, "send")).error.startswith('"name": ')
    await do(session, "name", "Type", "Ann")
    await do(session, "mail", "Type", "nowhere")
    assert (await do(session, "send")).error.startswith('"mail": ')
    await session.read(None, lambda page: page.evaluate(OWN_BUBBLES))
    assert (await do(session, "send")).error == ""


async def test_a_long_text_is_shown_where_it_is_in_view(session, show):
    log = "\n".join(f"{number:04} step" for number in range(1500))
    seen = await show(log, {"content-type": "text/plain"})
    assert lines(seen)[0] == 'text "0000 step"' and seen.below > 1400
    for _ in range(3):
        seen = await session.act(Action("Scroll Down"))
    texts = [node["text"] for node in seen.nodes if "text" in node]
    assert seen.above + len(texts) + seen.below == 1500 and texts[0] == f"{seen.above:04} step"
    await show(f"<textarea aria-label=notes style='height:90px'>{log}</textarea>")
    assert '= "0000 step' in render(await session.observe())
    assert '"... ' in render(await do(session, "notes", "Scroll Down"))
    await show(
        f"<div contenteditable aria-label=notes style='height:90px;overflow:auto'>{log.replace('000', '')}</div>"
    )
    assert '"... ' in render(await do(session, "notes", "Scroll Down"))
    code = "\n".join(f"<i>let</i> <b>x{number}</b><span>={number};</span>" for number in range(400))
    seen = await show(f"<pre>{code}</pre>")
    assert lines(seen)[:2] == ['text "let x0=0;"', 'text "let x1=1;"'] and seen.below > 300
    words = " ".join(f"word{number}" for number in range(6000))
    await show(f"<p>{words}</p>")
    first = {word for node in (await session.observe()).nodes for word in node.get("text", "").split()}
    await session.act(Action("Press", None, "End"))
    last = {word for node in (await session.observe()).nodes for word in node.get("text", "").split()}
    assert "word0" in first and "word5999" in last and not first & last and first | last <= set(words.split())


# ---- scrolling ----

ROWS = "".join(f"<p style='margin:0;height:60px'><a href='#'>row {number}</a></p>" for number in range(40))


@pytest.mark.parametrize(
    "page",
    [
        f'''<body style="margin:0;overflow:hidden">
            <iframe style="border:0;width:100vw;height:100vh" srcdoc="{ROWS}"></iframe>''',
        f"""<body style="margin:0;overflow:hidden"><div id=h></div><script>h.attachShadow({{mode: "open"}}).innerHTML =
            `<div style="height:100vh;overflow:auto">{ROWS}</div>`</script>""",
    ],
    ids=["frame", "shadow"],
)
async def test_scrolling_inside_frames_and_shadow_trees(session, show, page):
    for action in (Action("Scroll Down"), Action("Scroll Down", "3"), Action("Press", "3", "PageDown"),
                   Action("Press", None, "PageDown"), Action("Press", None, "End")):  # fmt: skip
        await show(page)
        seen = await session.act(action)
        assert seen.above > 5 and not seen.error, (action, render(seen))
    assert seen.below == 0
    assert (await session.act(Action("Press", None, "Home"))).above == 0


# ---- tabs ----


async def test_tabs_that_open_by_name_or_late(session, show):
    await show(
        """<title>portal</title><a href=help target=help>help</a>
      <button onclick="window.open('help', 'popup')">popup</button>
        <button onclick="setTimeout(() => window.open('help'), 100)">timer</button>
        <button onclick="setTimeout(() => window.open('help'), 5000)">late</button>
      <p onclick="document.title = 'here'">here</p>""",
        help="<title>help</title><button onclick=\"document.title='deleted'\">delete</button>",
    )
    for label, count in [("help", 2), ("help", 2), ("popup", 3), ("popup", 3), ("timer", 4)]:
        seen = await do(session, label)
        assert (seen.title, seen.tabs[1]) == ("help", count), label
        assert (await session.act(Action("Switch Tab", None, "1"))).title == "portal"
    await session.read(None, lambda page: page.evaluate("void open('help', 'unasked')"))
    await session._until(lambda: len(session._tabs) == 5)
    seen = await session.act(Action("Click", "5"))  # of the page that was seen, not of the tab that has come meanwhile
    assert (seen.title, seen.tabs) == ("here", (1, 5))
    assert (await do(session, "late")).title == "here"
    assert (await session.act(Action("Wait", None, "5"))).title == "help"


# ---- typing ----

EDITOR = """<div id=ed contenteditable aria-label=message style="border:1px solid;min-height:40px"></div><script>
  let model = "";
  ed.addEventListener("beforeinput", (e) => {
    e.preventDefault();
    if (/^insert/.test(e.inputType)) model += e.data ?? (e.inputType === "insertLineBreak" ? "/" : "");
    else model = "";
    ed.textContent = document.title = model;
  });
  new MutationObserver(() => { if (ed.textContent !== model) ed.textContent = model })
    .observe(ed, {childList: true, subtree: true});
  </script>"""


@both_inputs
async def test_editors_get_the_text_or_an_error(session, show, monkeypatch, real):
    monkeypatch.setattr(session.browser, "real_input", real)
    await show(EDITOR)
    for text in ("hello there", "other\nwords", "x" * 300):
        assert (await do(session, "message", "Type", text)).title == text.replace("\n", "/")
    await show("<div contenteditable aria-label=shut onbeforeinput='event.preventDefault()'>old</div>")
    assert (await do(session, "shut", "Type", "new")).error == "the box did not take the text"
    await show("""<div contenteditable aria-label=keys></div><script>const ed = document.querySelector("div");
      ed.onkeydown = (e) => {
        if (e.key.length > 1 || e.ctrlKey) return;
        e.preventDefault();
        document.title += e.key;
        ed.textContent = document.title;
      };
      ed.onbeforeinput = (e) => { if (e.inputType === "insertText") e.preventDefault() }</script>""")
    assert "y" * 120 in (await do(session, "keys", "Type", "y" * 120)).title
    await show("<div contenteditable aria-label=plain>old</div>")
    assert (await do(session, "plain", "Type", "new")).error == ""
    assert '= "new"' in render(await session.observe())


@both_inputs
async def test_keys_are_heard(session, show, monkeypatch, real):
    monkeypatch.setattr(session.browser, "real_input", real)
    await show("""<input aria-label=filter onkeyup="document.title = 'for ' + this.value">
      <input aria-label=keys onkeydown="if (event.key.length === 1 && !event.ctrlKey) { event.preventDefault();
      this.value += event.key.toUpperCase() }">""")
    assert (await do(session, "filter", "Type", "ban")).title == "for ban"
    assert (await do(session, "filter", "Type", "")).title == "for"
    assert '= "ABC"' in render(await do(session, "keys", "Type", "abc"))


FOUR = "".join(f"<input maxlength=1 aria-label=digit{number}>" for number in range(4))


@pytest.mark.parametrize(
    "page, label, text, title",
    [
        (FOUR + """<script>for (const box of document.querySelectorAll("input")) box.oninput = () => {
           document.title += box.value; box.nextElementSibling?.focus() }</script>""", "digit0", "1234", "1234"),
        ("<textarea aria-label=words></textarea>"
         "<script>onkeydown = (event) => { if (/[0-9]/.test(event.key)) event.preventDefault() };"
         "oninput = (event) => { document.title = event.target.value }</script>", "words", "a1b2c", "abc"),
        ("""<input aria-label=tag><script>const box = document.querySelector("input");
           box.addEventListener("keydown", (event) => { if (event.key !== ",") return;
             document.title += `[${box.value}]`; box.value = ""; event.preventDefault() })</script>""",
         "tag", "blue,", "[blue]"),
    ],
    ids=["a box for each letter", "letters alone", "tags"],
)  # fmt: skip
@both_inputs
async def test_every_key_is_heard(session, show, monkeypatch, page, label, text, title, real):
    monkeypatch.setattr(session.browser, "real_input", real)
    await show(page)
    seen = await do(session, label, "Type", text)
    assert (seen.title, seen.error) == (title, "")


@both_inputs
async def test_boxes_with_a_form_of_their_own(session, show, monkeypatch, real):
    monkeypatch.setattr(session.browser, "real_input", real)
    await show("""<input type=date aria-label=day value=2025-03-01><input type=number aria-label=count value=2>
      <input type=time aria-label=time><input type=range aria-label=volume value=10 step=5>
      <input type=month aria-label=month>
      <input type=color aria-label=colour value="#ff0000"><input type=datetime-local aria-label=at>
      <input type=file aria-label=photo>""")
    good = {"day": "2025-03-15", "count": "3", "time": "09:30", "volume": "55", "month": "2025-12", "colour": "#00ff00",
            "at": "2025-03-15T09:30"}  # fmt: skip
    bad = {"day": "03/15/2025", "count": "3 nights", "time": "9:30 am", "volume": "loud", "month": "May",
           "colour": "red", "at": "noon"}  # fmt: skip
    for label, text in good.items():
        seen = await do(session, label, "Type", text)
        assert not seen.error and f'= "{text}"' in render(seen), render(seen)
        refused = await do(session, label, "Type", bad[label])
        assert bad[label] in refused.error and f'= "{text}"' in render(refused)
    assert 'box [1] = "2025-03-15" (YYYY-MM-DD)' in render(seen) and "(0 to 100 by 5)" in render(seen)
    assert (await do(session, "volume", "Type", "500")).error.startswith("the box takes 0 to 100 by 5")
    assert "Upload File" in (await do(session, "photo", "Type", "/etc/hosts")).error


async def test_a_choice_is_exact_or_the_only_one_that_begins_so(session, show):
    sizes = "<option>Small<option>small<option>Medium size<option>Large<option>Largest"
    await show(f"<select aria-label=size>{sizes}</select>")
    for text, chosen in [("small", "small"), ("medium", "Medium size"), ("large", "Large"), ("LARGEST", "Largest")]:
        assert f'= "{chosen}"' in render(await do(session, "size", "Select Dropdown Option", text)), text
    assert (await do(session, "size", "Select Dropdown Option", "lar")).error == '"lar" may be "Large", "Largest"'
    assert '"Medium size", "Large"' in (await do(session, "size", "Select Dropdown Option", "size")).error


async def test_only_the_tasks_files_are_uploaded(session, show, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "in" / name).write_text(name * 2)
    (tmp_path / "secret.txt").write_text("no")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "secret.txt")
    page = """<input type=file aria-label=photo onchange="document.title = [...this.files].map((f) => f.name + f.size)">
      <input type=file multiple aria-label=many><button onclick="const i = document.createElement('input');
      i.type = 'file';
      i.onchange = () => { document.title = 'chosen ' + i.files[0].name }; i.click()">pick</button><a href="#">no</a>"""
    await show(page)
    assert "no files" in (await do(session, "photo", "Upload File", "a.txt")).error
    with pytest.raises(UsageError, match="is no folder"):
        await show(page, uploads=tmp_path / "none")
    await show(page, uploads=tmp_path / "in")
    assert (await do(session, "photo", "Upload File", "a.txt")).title == "a.txt10"
    assert '"photo" file [1] = "a.txt"' in render(await session.observe())
    assert '= "a.txt, b.txt"' in render(await do(session, "many", "Upload File", "a.txt, b.txt"))
    assert "one file" in (await do(session, "photo", "Upload File", "a.txt, b.txt")).error
    for name in ("../secret.txt", str(tmp_path / "secret.txt"), "link.txt", "c.txt"):
        assert "but a.txt, b.txt" in (await do(session, "photo", "Upload File", name)).error
    assert (await do(session, "pick", "Upload File", "b.txt")).title == "chosen b.txt"
    assert (await do(session, "no", "Upload File", "b.txt")).error == "no file is asked for there"
    assert "Upload File" in (await do(session, "pick")).error


# ---- the clock, and what is waited for ----


async def test_the_virtual_clock_is_of_today_and_goes_on(session, show):
    page = """<p id=p></p><a href=/>again</a><script>const d = new Date(), last = +localStorage.t || 0;
      p.textContent = [d.constructor === Date, d instanceof Date, d.getTime() >= last].join();
      onpagehide = () => { localStorage.t = Date.now() };
      document.cookie = "c=1; expires=" + new Date(Date.now() + 60000).toUTCString();
      document.title = document.cookie + d.getTime()</script>"""
    seen = await show(page)
    assert abs(int(seen.title.removeprefix("c=1")) / 1000 - time.time()) < 60
    await session.act(Action("Wait", None, "30"))
    after = await do(session, "again")
    assert lines(after)[0] == 'text "true,true,true"'
    assert int(after.title.removeprefix("c=1")) - int(seen.title.removeprefix("c=1")) > 30_000


async def test_waiting(session, show):
    page = "<button onclick=\"setTimeout(() => { document.title = 'ready' }, 2000)\">go</button>"
    await show(page)
    await do(session, "go")
    assert (await session.act(Action("Wait", None, "1"))).title == ""
    assert (await session.act(Action("Wait", None, "1.5"))).title == "ready"
    for argument in ("soon", "-1", "1e9", "nan"):
        assert "number of seconds" in (await session.act(Action("Wait", None, argument))).error


async def test_a_refresh_comes_with_the_virtual_time(session, show):
    await show('<meta http-equiv=refresh content="2; url=next">soon', next="<title>next</title>")
    assert (await session.act(Action("Wait", None, "2"))).title == "next"


async def test_a_wait_on_the_real_clock_takes_its_time(server):
    browser = await Browser.start(timeout=20, virtual_clock=False, screenshots=False)
    try:
        session = await browser.session()
        later = "document.title = Date.now() - t > 1500"
        page = f"<script>const t = Date.now(); setInterval(() => {{ {later} }}, 100)</script>"
        server.pages = {"/": (page, {})}
        assert (await session.reset(f"http://127.0.0.1:{server.server_port}/")).title != "true"
        assert (await session.act(Action("Wait", None, "2"))).title == "true"
    finally:
        await browser.close()


@pytest.mark.parametrize(
    "page, headers",
    [
        ("""<title>mail</title><iframe sandbox=allow-same-origin srcdoc="<p>code 5512</p>"></iframe>
      <a href=next>next</a>""", {}),
        ("<title>mail</title><p>code 5512</p><a href=next>next</a>", {"content-security-policy": "sandbox"}),
        ("""<title>mail</title><meta http-equiv=refresh content="0; url=http://localhost:PORT/"><p>code 5512</p>
            <a href=next>next</a>""", {}),
    ],
    ids=["frame", "header", "refresh"],
)  # fmt: skip
async def test_where_scripts_are_off_nothing_is_waited_for(session, show, page, headers, monkeypatch):
    seen = await show(page, headers, next="<title>next</title>")
    assert 'text "code 5512"' in lines(seen)
    for _ in range(3):
        await session.observe()
    late = "__gui.frames().some((w) => w.__gui.slow)"  # half of the time limit was over, in one observation
    assert not await session.read(None, lambda page: page.evaluate(late))
    assert (await do(session, "next")).title == "next"


# ---- pages that break what they stand on ----


async def test_pages_of_any_shape_can_be_told(session, show):
    seen = await show("""<script>Array.prototype.toJSON = String.prototype.toJSON = () => "broken"</script>
      <a href="#">shoes</a>
      <p id=p></p><input aria-label=nick maxlength=4>
      <script>p.textContent = "so \\u{1f600}".slice(0, 4) + "\\\\ud83d"</script>""")
    assert lines(seen) == ['"shoes" link [1]', 'text "so \ufffd\\ud83d"', '"nick" box [2]']
    assert '= "abc"' in render(await do(session, "nick", "Type", "abc\U0001f600"))
