"""tools/play.py by hand: what is recorded, undone and left out, and what a person does in the browser's window."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import envs
from tests.scripts import run_script
from tools import play

SHOP = """<title>shop</title><h1>Shop</h1>
<form action="/found"><input name="q" placeholder="search"><button>go</button></form>
<select name="size"><option>small<option>large</select>
<label><input type="checkbox"> gift</label><textarea placeholder="note"></textarea>
<a href="/next">next page</a> <input type="file" title="picture"><p style="margin-top: 3000px">end</p>"""


class Shop(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(SHOP.replace("<h1>Shop", f"<h1>{self.path}").encode())

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def shop():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def write_tasks(folder, shop):
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "12"}}
    tasks = [{"intent": f"task {i}", "start_url": f"{shop}/", "split": "train"} for i in range(3)]
    tasks[0]["eval"] = rules
    (folder / "tasks.json").write_text(json.dumps(tasks))
    return f"site:{folder}/tasks.json"


def test_moves_are_undone_and_left_out_and_tasks_follow_each_other(shop, tmp_path):
    """One session in the terminal: a wrong move is left out, another undone, the first try dropped, a task without a
    check asked for."""
    lines = [
        *("click 6", "retry"),  # task 0, begun anew
        *("search 1 lamp", "click 7", "wrong 1", "wrong 9", "type 1 red", "undo", "exit 12"),
        *("next", "click 6", "wrong", "wrong", "exit done", "y"),  # task 1: marked, and not after all
        *("next", "exit done", "n", "next"),  # task 2, not right; there is no more
    ]
    demos = tmp_path / "demos.jsonl"
    flags = ["--env-id", write_tasks(tmp_path, shop), "--record", str(demos)]
    done = run_script(["tools/play.py", *flags], input="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, demos.read_text().splitlines())
    actions = [[step["action"].splitlines()[-1] for step in demo["steps"]] for demo in (first, second)]
    assert actions == [
        ['do(action="Click", element="7")', 'exit(message="12")'],
        ['do(action="Click", element="6")', 'exit(message="done")'],
    ]
    assert "/found" in first["steps"][0]["text"] and "red" not in first["steps"][1]["text"]
    assert not any("wrong" in step for demo in (first, second) for step in demo["steps"])
    assert [demo["task"]["instruction"] for demo in (first, second)] == ["task 0", "task 1"]
    for said in ("move 1 is left out", "which move?", "1 moves left out", "no check knows: was it right?",
                 "not recorded", "the split train has tasks 0 to 2"):  # fmt: skip
        assert said in done.stdout, done.stdout
    done = run_script(["tools/play.py", *flags, "--task", "1"], input="exit done\n")  # nobody says so
    assert done.returncode == 0 and "not recorded" in done.stdout and len(demos.read_text().splitlines()) == 2


class Deaf(play.Window):
    """A Window without a terminal."""

    def _read(self, loop):
        pass


MANY = "<select multiple aria-label=many><option selected>pen<option>ink<option>cup</select>"


async def test_what_a_person_does_in_the_window_is_an_agents_action(shop, tmp_path, capsys):
    """By trusted events, as of a mouse and a keyboard; what the driver then does is not heard again."""
    env = envs.make(write_tasks(tmp_path, shop), screenshots=True)  # a window has frames, as this browser then
    try:
        obs, _ = await env.reset(env.tasks("train")[1])
        window = Deaf(env)

        async def get(page):
            return page

        page = await env.at_page(get)
        mouse, keys = page.mouse, page.keyboard

        async def middle(css):
            box = await page.locator(css).bounding_box()
            return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

        async def click(css):
            await mouse.click(*await middle(css))

        async def begin(*moves):
            """Someone at the window makes moves once it listens; what `next` gives, not awaited."""
            nonlocal obs
            heard = asyncio.create_task(window.next(obs, ""))
            while not heard.done() and await page.evaluate("window.__person?.state") != "on":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for move in moves:
                await move
            return heard

        async def does(*moves, told=1):
            nonlocal obs
            heard, actions = await begin(*moves), []
            for number in range(told):
                action = await asyncio.wait_for(heard if not number else window.next(obs, ""), 20)
                obs, *_ = await env.step(action)
                assert not obs["error"], (action, obs["error"])
                actions.append(action.splitlines()[-1])
            return actions

        assert await does(click("[name=q]"), keys.type("red lamp"), keys.press("Enter")) == [
            'do(action="Search", argument="red lamp", element="1")'
        ]
        assert "q=red+lamp" in obs["url"]
        assert await does(click("[name=q]"), keys.type("blue"), click("button"), told=2) == [
            'do(action="Type", argument="blue", element="1")',
            'do(action="Click", element="2")',
        ]
        assert "q=blue" in obs["url"]
        assert await does(click("[type=checkbox]")) == ['do(action="Click", element="4")']
        assert '"gift" check [4] on' in obs["text"] or await page.is_checked("[type=checkbox]")
        choice = await does(page.locator("select").focus(), keys.press("ArrowDown"))
        assert choice == ['do(action="Select Dropdown Option", argument="large", element="3")']
        assert await does(click("textarea"), keys.type("two\nlines"), click("a"), told=2) == [
            'do(action="Type", argument="two\\nlines", element="5")',
            'do(action="Click", element="6")',
        ]
        assert obs["url"].endswith("/next")
        assert await does(mouse.wheel(0, 300)) == ['do(action="Scroll Down")']
        assert await does(keys.press("PageUp")) == ['do(action="Scroll Up")']
        assert await does(keys.press("Escape")) == ['do(action="Press", argument="Escape")']
        assert await does(mouse.click(*await middle("a"), button="right")) == ['do(action="Right Click", element="6")']
        await page.evaluate("document.body.insertAdjacentHTML('afterbegin', many)".replace("many", repr(MANY)))
        obs, *_ = await env.step('do(action="Wait")')

        async def add(option, *held):
            await page.locator(f"option:text-is('{option}')").click(modifiers=held)

        assert await does(add("ink", "Control")) == ['do(action="Select Dropdown Option", argument="ink", element="1")']
        assert '= "pen, ink"' in obs["text"]
        capsys.readouterr()

        refusals = (
            (mouse.click(700, 400), "nothing that an agent can point at is there"),
            (click("[type=file]"), "a choice of files"),
            (add("cup"), "an option taken back in a list of several"),
            (page.locator("a").click(modifiers=["Shift"]), "a click with a key held"),
            (page.goto(f"{shop}/elsewhere"), f"the window went to {shop}/elsewhere by itself"),
        )
        heard = await begin()
        for move, says in refusals:
            await move
            said = ""
            async with asyncio.timeout(20):
                while says not in said:
                    await asyncio.sleep(0.02)
                    said += capsys.readouterr().out
                    assert not heard.done()
        window.heard.put_nowait(("line", "back\n"))
        assert await heard == "back\n"
    finally:
        await env.close()


def test_the_smallest_box_around_a_point_is_meant():
    boxes = {"1": (0, 0, 100, 100), "2": (10, 10, 20, 20), "3": (300, 0, 10, 10)}
    assert [play.element_at(point, boxes) for point in ([15, 15], [90, 90], [305, 5], [200, 5], None)] == [
        *("2", "1", "3"),
        *(None, None),
    ]
