"""WebArena's environments where the arena's sites stand in for the real ones, under the official variables."""

import asyncio
import contextlib
import importlib.metadata
import json
import shlex
import socket
import sys
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

import pytest

import envs
from common.errors import EnvFault, EnvHang, JudgeFault, TooManyFaults, UsageError
from common.lm.serve import LIMITS
from envs import webarena_sites
from envs.arena import SITES, tasks
from envs.arena.content import World
from envs.arena.server import Server
from envs.webarena_judge import AGREED, ANSWERED, Judge, connect, last_verdict

WORLD = World(20019, "test")
NAMES = {"shop": "shopping", "forum": "reddit"}
FORM = {
    "username": WORLD.user,
    "password": f"{WORLD.user.split()[0]}1",
    "page": "/login",
    "username_field": "label=name",
    "password_field": "css=input[type=password]",
    "button": "log in",
}
LOGINS = {
    "shopping": FORM | {"proof_page": "/account", "proof_text": ""},
    "reddit": FORM | {"proof_page": "/", "proof_text": "new post"},
}


class Guests(Server):
    """The arena's server for browsers that bring no episode: each is a guest with one of its own, logged out, whom a
    cookie names, as on a real site."""

    def __init__(self):
        super().__init__([site for site, _ in SITES])
        self.logins = 0

    def forget(self):
        """Every session ends, and with it what was changed."""
        for name in list(self._episodes):
            self.end(name)

    def _with_episode(self, app):
        inner = super()._with_episode(app)

        async def guarded(scope, receive, send):
            if scope["type"] != "http":
                return await inner(scope, receive, send)
            self.logins += scope["method"] == "POST" and scope["path"].endswith("/login")
            if scope["path"] == "/reset":
                self.forget()
                scope = scope | {"path": "/shop/"}
            headers = dict(scope["headers"])
            cookies = dict(part.partition("=")[::2] for part in headers.get(b"cookie", b"").decode().split("; "))
            if cookies.get("episode") in self._episodes:
                return await inner(scope, receive, send)
            name = self.new(WORLD)
            self._episodes[name].execute("delete from login")
            headers[b"cookie"] = f"episode={name}".encode()

            async def send_cookie(message):
                if message["type"] == "http.response.start":
                    cookie = (b"set-cookie", f"episode={name}; Path=/".encode())
                    message = message | {"headers": [*message["headers"], cookie]}
                await send(message)

            await inner(scope | {"headers": list(headers.items())}, receive, send_cookie)

        return guarded


def official(task, number):
    """A task of the arena as an entry of an official file."""
    text = json.dumps(task.config).replace("__SHOP__", "__SHOPPING__").replace("__FORUM__", "__REDDIT__")
    site = NAMES[task.site]
    changed = {"task_id": number, "sites": [site], "storage_state": f"./.auth/{site}_state.json"}
    return json.loads(text) | changed | {"intent_template_id": number}


def arena_tasks():
    """This world's tasks by template: (task, its moves)."""
    arena = envs.make("arena-v1")
    every = arena.tasks("spent") + arena.tasks("test")
    return {task.template: (task, arena.oracle(task)) for task in every if task.seed == WORLD.seed}


TASKS = arena_tasks()


def entry(template, number=0, **changed):
    return official(TASKS[template][0], number) | changed


@contextlib.contextmanager
def serve(handler):
    """A stand-in server on loopback: its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    def reply(self, body, status=200):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if isinstance(body, str) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def log_message(self, *args):
        pass


@pytest.fixture
def guests():
    server = Guests().start()
    yield server
    server.stop()


@pytest.fixture
def variables(monkeypatch, tmp_path):
    """The official variables without what this machine has set, and a file of log-ins."""
    for name in "SHOPPING SHOPPING_ADMIN REDDIT GITLAB MAP WIKIPEDIA HOMEPAGE".split():
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"WA_{name}", raising=False)
    for name in "RULES LOGINS RESET JUDGE JUDGE_MODEL".split():
        monkeypatch.delenv(f"WEBARENA_{name}", raising=False)
    (tmp_path / "logins.json").write_text(json.dumps(LOGINS))
    monkeypatch.setenv("WEBARENA_LOGINS", str(tmp_path / "logins.json"))
    return monkeypatch


@pytest.fixture
async def make(guests, variables, tmp_path):
    """`make(entries)`: the environment of a task file that holds them, on the arena's sites."""
    variables.setenv("SHOPPING", f"{guests.url}/shop")
    variables.setenv("REDDIT", f"{guests.url}/forum/")
    made = []

    def make(*entries, name="webarena-lite"):
        (tmp_path / "tasks.json").write_text(json.dumps(entries))
        made.append(envs.make(f"{name}:{tmp_path}/tasks.json", port=0, real_input=False))  # as the scripts do
        return made[-1]

    yield make
    for env in made:
        await env.close()


async def solve(env, task, template):
    """Play the arena's moves for this template: the last reward and the last page."""
    obs, _ = await env.reset(task)
    for move in TASKS[template][1]:
        obs, reward, *_ = await env.step(tasks.resolve(move, obs["text"]))
    return reward, obs


# --- log-in ----------------------------------------------------------------------------------------------------------


async def test_an_episode_is_logged_in_and_the_stored_state_serves_the_next_ones(make, guests):
    env = make(entry("price"), entry("buy-size", 1))
    price, buy = env.tasks("test")
    assert (await solve(env, price, "price"))[0] == 1.0
    reward, obs = await solve(env, buy, "buy-size")  # it needs the account
    assert reward == 1.0 and WORLD.user in obs["text"] and guests.logins == 1


async def test_a_log_in_that_expired_is_done_again(make, guests):
    env = make(entry("buy-size"))
    (task,) = env.tasks("test")
    assert (await solve(env, task, "buy-size"))[0] == 1.0
    guests.forget()
    assert (await solve(env, task, "buy-size"))[0] == 1.0 and guests.logins == 2
    await env.reset(task)
    obs, *_ = await env.step(f'do(action="Goto", argument="{guests.url}/shop/account")')
    await env.step(tasks.resolve(tasks.Move("button", "log out"), obs["text"]))  # an agent can do that, too
    obs, _ = await env.reset(task)
    assert guests.logins == 3 and WORLD.user in obs["text"]


async def test_slots_are_logged_in_each_by_itself(make, guests):
    env = make(entry("buy-size"))
    other = env.fork()
    (task,) = env.tasks("test")
    played = await asyncio.gather(solve(env, task, "buy-size"), solve(other, task, "buy-size"))
    assert [reward for reward, _ in played] == [1.0, 1.0] and guests.logins == 2  # one order each


async def test_who_is_not_to_be_logged_in_is_a_guest(make, guests):
    env = make(entry("price", storage_state=None))
    _, obs = await solve(env, env.tasks("test")[0], "price")
    assert WORLD.user not in obs["text"] and guests.logins == 0


async def test_a_log_in_that_fails_is_a_usage_error_at_first_and_a_fault_later(make, guests, tmp_path):
    env = make(entry("price", 7))
    (task,) = env.tasks("test")
    right = env._logins["shopping"]
    env._logins = env._logins | {"shopping": right | {"password": "wrong"}}
    says = rf"task 7: SHOPPING={guests.url}/shop: logging in as {WORLD.user} at /login failed \(it is not logged in"
    with pytest.raises(UsageError, match=says):
        await env.reset(task)
    env._logins = env._logins | {"shopping": right}
    await env.reset(task)
    guests.forget()
    env._logins = env._logins | {"shopping": right | {"button": "no such button"}}
    webarena_sites.FORM_SECONDS, seconds = 0.2, webarena_sites.FORM_SECONDS
    try:
        with pytest.raises(EnvFault, match=r"task 7: SHOPPING.*Locator.*\(SHOPPING\)") as caught:
            await env.reset(task)
    finally:
        webarena_sites.FORM_SECONDS = seconds
    assert "\n" not in str(caught.value)


NEWSLETTER = "<form><label for=n>Sign Up for Our Newsletter: Email</label><input id=n><button>Subscribe</button></form>"
FIELDS = {  # as each site's own page names them
    "shopping": "<label for=a>Email</label><input id=a name=u><label for=b>Password</label><input id=b name=p>",
    "shopping_admin": "<input name=u placeholder='user name'><input name=p placeholder=password>",
    "reddit": "<label for=a>Username</label><input id=a name=u><label for=b>Password</label><input id=b name=p>",
    "gitlab": "<input name=u data-testid=username-field><input name=p data-testid=password-field>",
}


class Forms(Handler):
    """Log-in forms of the four sites at /SITE, in the sites' own words; who is not logged in is sent to them."""

    def do_GET(self):
        _, site, *rest = self.path.split("/")
        form, path = webarena_sites.LOGINS[site], "/" + "/".join(rest)
        inside = f"{site}=in" in self.headers.get("cookie", "")
        if path.rstrip("/") == form["page"].rstrip("/") and not inside:
            fields = f"{FIELDS[site]}<button>{form['button']}</button>"
            return self.reply(f"<a href='#'>{form['button']}</a>{NEWSLETTER}<form method=post>{fields}</form>")
        if inside or path == "/start":
            return self.reply(f"<p>{form['proof_text'] if inside else 'guest'}</p>")
        self.send(f"/{site}{form['page']}")

    def do_POST(self):
        site, text = self.path.split("/")[1], self.rfile.read(int(self.headers["content-length"])).decode()
        account = {"u": webarena_sites.LOGINS[site]["username"], "p": webarena_sites.LOGINS[site]["password"]}
        self.send(f"/{site}/start", f"{site}=in; Path=/" if dict(parse_qsl(text)) == account else "x=y")

    def send(self, path, cookie="x=y"):
        self.send_response(302)
        self.send_header("location", path)
        self.send_header("set-cookie", cookie)
        self.send_header("content-length", "0")
        self.end_headers()


async def test_the_table_logs_in_at_forms_with_the_official_names(make, variables):
    variables.delenv("WEBARENA_LOGINS")
    with serve(Forms) as url:
        for site in FIELDS:
            variables.setenv(site.upper(), f"{url}/{site}")
        everywhere = dict(sites=list(FIELDS), storage_state=f"./.auth/{'.'.join(FIELDS)}_state.json")
        env = make(entry("price", start_url="__GITLAB__/start", **everywhere))
        await env.reset(env.tasks("test")[0])
        (state,) = env._states.values()
        assert {cookie["name"] for cookie in state["cookies"]} - {"x"} == set(FIELDS)


# --- how an episode begins and ends ----------------------------------------------------------------------------------


async def test_start_pages_are_tabs_of_which_the_first_is_shown(make):
    start = "__SHOPPING__/c/kitchen |AND| __REDDIT__/ |AND| __SHOPPING__/cart"
    both = entry(
        "price", sites=["shopping", "reddit"], start_url=start, storage_state="./.auth/reddit.shopping_state.json"
    )
    env = make(both)
    obs, _ = await env.reset(env.tasks("test")[0])
    assert obs["url"].endswith("/shop/c/kitchen") and env._page.tabs == (1, 3)
    obs, *_ = await env.step('do(action="Switch Tab", argument="2")')
    assert obs["url"].endswith("/forum/") and env._page.tabs == (2, 3)
    obs, *_ = await env.step("go_backward()")
    assert "no page to go back to" in obs["error"]
    obs, *_ = await env.step('do(action="Goto", argument="http://example.com/")')
    assert "outside the task's sites" in obs["error"]


async def test_the_page_knows_where_it_is_and_what_time_it_is(make):
    env = make(entry("price", geolocation={"latitude": 40.5, "longitude": -79.9}))
    await env.reset(env.tasks("test")[0])
    here = "new Promise(done => navigator.geolocation.getCurrentPosition(p => done(p.coords.latitude), () => done(0)))"
    read = f"async () => [innerWidth, innerHeight, await {here}, new Date().getFullYear()]"
    width, height, latitude, year = await env._session.read(None, lambda page: page.evaluate(read))
    assert (width, height, latitude) == (1280, 720, 40.5) and year == datetime.now().year


async def test_an_episode_is_cut_off_as_in_the_original_runs(make):
    env = make(entry("price"))
    look, answers = 'do(action="Scroll Down")', [f"what {i}?" for i in range(9)]
    for actions, steps in (
        ([look] * 9, 5),
        (["what?"] * 9, 5),
        (answers, 5),
        ([look, *answers], 6),
        ([*answers[:4], look, *answers], 10),
        ([look] * 4 + ["go_forward()"] + [look] * 9, 10),
        ([look, "go_forward()"] * 20, 30),
        (['do(action="Wait", argument="0.1")'] * 6 + ["what?"] * 9, 11),  # who waits is not stuck
    ):
        await env.reset(env.tasks("test")[0])
        played, truncated = 0, False
        while not truncated:
            obs, reward, terminated, truncated, info = await env.step(actions[played])
            played += 1
        assert (played, terminated, info["verdict"]) == (steps, False, 0.0), actions


async def test_the_page_counts_where_an_episode_was_cut_off(make):
    env = make(entry("sort-category"))
    (task,) = env.tasks("test")
    obs, _ = await env.reset(task)
    *moves, last = TASKS["sort-category"][1]
    assert last.kind == "exit"
    for move in moves:
        obs, *_ = await env.step(tasks.resolve(move, obs["text"]))
    for _ in range(5):
        _, reward, terminated, truncated, info = await env.step("what?")
    assert (reward, terminated, truncated, info["answer"]) == (1.0, False, True, "")


async def test_what_scripts_put_on_a_page_is_there_when_it_is_checked(make):
    page = "<p id=p></p><script>setTimeout(() => { document.querySelector('#p').textContent = 'late' }, 300)</script>"

    class Late(Handler):
        def do_GET(self):
            self.reply(page if self.path == "/late" else "<script>setTimeout(() => location = '/late', 100)</script>")

    with serve(Late) as url:
        target = {"url": f"{url}/", "locator": "document.querySelector('#p').outerText"}
        target["required_contents"] = {"exact_match": "late"}
        env = make(entry("price", eval={"eval_types": ["program_html"], "program_html": [target]}))
        await env.reset(env.tasks("test")[0])
        assert (await env.step('exit(message="")'))[1] == 1.0


# --- resets ----------------------------------------------------------------------------------------------------------


async def test_a_reset_comes_before_every_task_that_requires_one(make, guests, variables, tmp_path):
    variables.setenv("WEBARENA_RESET", f"{guests.url}/reset")
    env = make(entry("buy-size"), entry("buy-size", 1, require_reset=True))
    first, second = env.tasks("test")
    assert (await solve(env, first, "buy-size"))[0] == 1.0
    assert (await solve(env, first, "buy-size"))[0] == 0.0  # it is the second order, which the check does not expect
    assert (await solve(env, second, "buy-size"))[0] == 1.0
    note = tmp_path / "note"
    code = f"open({str(note)!r}, 'a').write('reset ')"
    env._reset = shlex.join([sys.executable, "-c", code])
    await env.reset(first)
    assert not note.exists()
    await env.reset(second)
    assert note.read_text() == "reset "
    env._reset = shlex.join([sys.executable, "-c", "raise SystemExit('no docker here')"])
    with pytest.raises(EnvFault, match="task 1: WEBARENA_RESET=.*ended with 1 no docker here"):
        await env.reset(second)
    env._reset = f"{guests.url}/shop/nothing"
    with pytest.raises(EnvFault, match="status 404"):
        await env.reset(second)
    env.fork()
    with pytest.raises(UsageError, match="task 1 requires a reset.*--num-envs 1"):
        await env.reset(second)


# --- what is down, missing or wrong ----------------------------------------------------------------------------------


async def test_a_site_that_is_down(make, guests, variables):
    env = make(entry("price", 3))
    (task,) = env.tasks("test")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    variables.setenv("SHOPPING", f"http://127.0.0.1:{port}")
    down = make(entry("price", 3))
    with pytest.raises(UsageError, match=rf"SHOPPING=http://127.0.0.1:{port} does not answer .*refused; task 3 needs"):
        await down.reset(down.tasks("test")[0])
    await env.reset(task)
    guests.stop()
    with pytest.raises(EnvFault, match=r"task 3: .*\(SHOPPING\)$") as caught:
        await env.step('do(action="Goto", argument="' + f'{guests.url}/shop/cart")')
    assert not isinstance(caught.value, EnvHang)
    with pytest.raises(EnvFault, match=r"task 3: .*\(SHOPPING\)$"):
        await env.reset(task)


def without(key, value):
    return {name: item for name, item in value.items() if name != key}


@pytest.mark.parametrize(
    "entries, says",
    [
        ("no json", "line 1: no JSON object"),
        ({"a": 1}, "line 1: task number 0: the key 'task_id' is missing"),
        ([1], "line 1: no JSON object"),
        ([], "holds no tasks"),
        *(
            (
                [without(key, entry("price", 5))],
                f"task {5 if key != 'task_id' else 'number 0'}: the key '{key}' is missing",
            )
            for key in ("task_id", "sites", "intent", "start_url", "eval")
        ),
        ([entry("price", 5, eval={"eval_types": ["string_match"]})], "task 5: reference_answers is None"),
        ([entry("price", 5, eval=3)], "task 5: eval has no list of eval_types"),
        ([entry("price", 5, intent=3)], "line 1: task 5: a value is of the wrong type .intent is 3"),
        ([entry("price", 5), entry("price", 5)], "task 5: this task_id is that of line 1, too"),
        ([entry("price", 5, start_url=3)], "task 5: the key 'start_url' is missing, or no text"),
        ([entry("price", 5, sites="web")], "task 5: unknown site 'web', known are shopping"),
        ([entry("price", 5, eval={"eval_types": ["guess"]})], "task 5: unknown eval_type 'guess'"),
        ([entry("price", 5, sites=["bank"])], "task 5: unknown site 'bank', known are shopping"),
        ([entry("price", 5, split="dev")], "task 5: the split is 'dev'"),
        ([entry("price", 5, start_url="http://elsewhere/")], "task 5: its start_url http://elsewhere/ is on none"),
        ([entry("price", 5, start_url="__BANK__")], "task 5: no URL is set for the site __BANK__"),
        ([entry("price", 5, storage_state="bank_state.json")], "task 5: there is no log-in for 'bank'"),
        ([entry("price", 5, require_reset=True)], "task 5 requires a reset: set WEBARENA_RESET"),
        ([entry("price", 5, sites=["map", "shopping"])], "not set: MAP \\(task 5\\); export MAP="),
        ([entry("price", 5, storage_state="./.auth/gitlab_state.json")], "not set: GITLAB \\(task 5\\)"),
    ],
)
async def test_a_task_file_that_cannot_be_used_is_one_line(make, tmp_path, entries, says):
    with pytest.raises(UsageError, match=says) as caught:
        if isinstance(entries, list):
            make(*entries)
        else:
            (tmp_path / "tasks.json").write_text(entries if isinstance(entries, str) else json.dumps(entries))
            envs.make(f"webarena:{tmp_path}/tasks.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("SHOPPING", "127.0.0.1:7770", "SHOPPING=127.0.0.1:7770 is no address"),
        ("SHOPPING", "", "SHOPPING \\(task 5\\)"),
        ("WEBARENA_RULES", "mine", "WEBARENA_RULES=mine: own, lite, original"),
        ("WEBARENA_JUDGE_VERDICT", "mine", "WEBARENA_JUDGE_VERDICT=mine: last, original"),
        ("WEBARENA_LOGINS", "/nowhere.json", "WEBARENA_LOGINS=/nowhere.json: no table"),
    ],
)
async def test_a_variable_that_cannot_be_used_is_one_line(make, variables, name, value, says):
    variables.setenv(name, value)
    with pytest.raises(UsageError, match=says):
        make(entry("price", 5))


@pytest.mark.parametrize(
    "table, says",
    [
        ([1], "no table of log-ins"),
        ({"shopping": {"user": "a"}}, "shopping: wrong or missing: user"),
        ({"bank": {"username": "a"}}, "bank: wrong or missing: button, page"),
        ({"shopping": {"username_field": "id=name"}}, "shopping: wrong or missing: id"),
    ],
)
async def test_a_table_of_log_ins_that_cannot_be_used_is_one_line(make, tmp_path, table, says):
    (tmp_path / "logins.json").write_text(json.dumps(table))
    with pytest.raises(UsageError, match=says):
        make(entry("price"))


async def test_sites_can_be_chosen(make, tmp_path, variables):
    make(entry("price"), entry("open_profile", 1), entry("price", 2, sites=["reddit", "shopping"]))
    variables.delenv("REDDIT")
    variables.setenv("WA_SHOPPING", "http://127.0.0.1:7770")
    variables.delenv("SHOPPING")
    env = envs.make(f"webarena-lite/shopping:{tmp_path}/tasks.json")
    assert [task.task_id for task in env.tasks("test")] == ["0"] and env.sites == {"shopping": "http://127.0.0.1:7770"}
    with pytest.raises(UsageError, match="no task is in the split 'train'"):
        env.tasks("train")
    with pytest.raises(UsageError, match="webarena-lite/bank: no tasks; its sites are"):
        envs.make(f"webarena-lite/bank:{tmp_path}/tasks.json")


async def test_training_instructions_without_checks_come_from_a_file(make, tmp_path, guests):
    """In the released list's format: they begin at their site's start page, logged in as the tasks there."""
    make(entry("price", start_url="__SHOPPING__/orders"), entry("open_profile", 1, storage_state=None))
    file = tmp_path / "instructions.json"
    sites = ("shopping", "reddit")
    released = [{"intent": f" Buy  lamp {i} ", "sites": [sites[i % 2]], "start_url": "__MAP__"} for i in range(200)]
    file.write_text(json.dumps(released))
    env = envs.make(f"webarena-lite:{tmp_path}/tasks.json", tasks=str(file))
    try:
        train, evaluated, test = (env.tasks(split) for split in ("train", "eval", "test"))
        assert len(train) + len(evaluated) == 200 and 8 <= len(evaluated) <= 40 and len(test) == 2
        assert train[0].config is None and train[0].instruction.startswith("Buy lamp ") and "2 tasks of" in env.notes[0]
        shop, forum = (next(task for task in train if task.site == site) for site in sites)
        obs, _ = await env.reset(shop)
        assert obs["url"].rstrip("/").endswith("/shop") and WORLD.user in obs["text"]
        obs, _ = await env.reset(forum)
        assert obs["url"].rstrip("/").endswith("/forum") and WORLD.user not in obs["text"]
        _, reward, terminated, _, info = await env.step('exit(message="done")')
        assert terminated and info["verdict"] is None
    finally:
        await env.close()
    for text, says in (
        ("[1]", "no list of"),
        ('[{"intent": "a"}]', "KeyError: 'sites'"),
        ('[{"intent": "a", "sites": ["bank"]}]', "entry 0 is on 'bank'; there are reddit, shopping"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=says) as error:
            envs.make(f"webarena-lite:{tmp_path}/tasks.json", tasks=str(file))
        assert "\n" not in str(error.value)


def test_the_task_files_are_found_in_their_packages(variables, tmp_path):
    for site in webarena_sites.SITES:
        variables.setenv(site.upper(), "http://127.0.0.1:7770")
    variables.delenv("WEBARENA_LOGINS")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("browsergym-webarenalite")
        env = envs.make("webarena-lite")
        assert len(env.tasks("test")) == 165 and env.rules == "lite" and "browsergym" not in sys.modules
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("libwebarena")
        pytest.skip("libwebarena is installed: a made-up one would not be found")
    with pytest.raises(UsageError, match="pip install --no-deps libwebarena, or give a file: --env-id webarena:FILE"):
        envs.make("webarena")
    info = tmp_path / "libwebarena-0.0.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: libwebarena\nVersion: 0.0.5\n")
    (info / "RECORD").write_text("webarena/__init__.py,,\nwebarena/test.raw.json,,\n")
    (tmp_path / "webarena").mkdir()
    (tmp_path / "webarena/__init__.py").write_text("raise SystemExit('its code was run')")
    (tmp_path / "webarena/test.raw.json").write_text(json.dumps([entry("price", 5)]))
    variables.syspath_prepend(str(tmp_path))
    env = envs.make("webarena")
    assert [task.task_id for task in env.tasks("test")] == ["5"] and env.rules == "original"


# --- the shop's REST interface, the judge ----------------------------------------------------------------------------


class Magento(Handler):
    """What Magento 2's REST documentation says of the three calls; `orders` and `reviews` are its state."""

    orders, reviews, broken = [], {}, False

    def do_POST(self):
        assert self.path == "/rest/default/V1/integration/admin/token"
        right = self.body() == {"username": "admin", "password": "admin1234"}
        self.reply("token7") if False else self.reply_json(
            "token7" if right else {"message": "no"}, 200 if right else 401
        )

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path.startswith("/sales/order/view/order_id/"):
            return self.reply(f"<p>order {path.split('/')[-2]}</p>")
        if not path.startswith("/rest/"):
            return self.reply("<p>shop</p>")
        if self.headers["authorization"] != "Bearer token7":
            return self.reply_json({"message": "not authorised"}, 401)
        if path == "/rest/V1/orders":
            assert "searchCriteria%5BsortOrders%5D%5B0%5D%5Bdirection%5D=DESC" in query and "pageSize%5D=1" in query
            return self.reply_json({"items": Magento.orders[-1:]} if not Magento.broken else {"message": "?"})
        sku = path.removeprefix("/rest/V1/products/").removesuffix("/reviews")
        self.reply_json(Magento.reviews[sku])

    def reply_json(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_the_rest_helpers():
    Magento.orders = [{"increment_id": "000000187"}, {"increment_id": "000000191"}]
    old, new = (
        {"nickname": name, "ratings": [{"rating_name": "Rating", "percent": p}]} for name, p in (("a", 20), ("b", 80))
    )
    Magento.reviews = {"B0": [old, new], "B1": [], "a%2Fb": [old]}
    account, wrong = webarena_sites.LOGINS["shopping_api"], {"username": "admin", "password": "x"}
    with serve(Magento) as url:
        assert webarena_sites.latest_order_url(url, account) == f"{url}/sales/order/view/order_id/191/"
        assert webarena_sites.latest_review_author(url, account, "B0") == "b"
        assert webarena_sites.latest_review_rating(url, account, "B0") == "80"
        assert webarena_sites.latest_review_author(url, account, "a/b") == "a"
        assert webarena_sites.latest_review_rating(url, account, "B1") == ""
        Magento.orders = []
        assert webarena_sites.latest_order_url(url, account) == ""
        with pytest.raises(EnvFault, match="token: status 401"):
            webarena_sites.latest_order_url(url, wrong)
    with pytest.raises(EnvFault, match="refused"):
        webarena_sites.latest_order_url(url, account)


async def test_a_task_whose_check_asks_the_shop(make, variables):
    wanted = {"url": "func:shopping_get_latest_order_url()", "locator": "document.querySelector('p').outerText"}
    order = wanted | {"required_contents": {"exact_match": "order 191"}}
    asked = {"url": "last", "locator": "func:shopping_get_sku_latest_review_rating('B0')"}
    review = asked | {"required_contents": {"must_include": ["80"]}}
    Magento.orders, Magento.broken = [{"increment_id": "000000191"}], False
    Magento.reviews = {"B0": [{"nickname": "b", "ratings": [{"rating_name": "Rating", "percent": 80}]}]}
    with serve(Magento) as url:
        variables.setenv("SHOPPING", url)
        env = make(
            entry("price", storage_state=None, eval={"eval_types": ["program_html"], "program_html": [order, review]})
        )
        (task,) = env.tasks("test")

        async def score():
            await env.reset(task)
            return (await env.step('exit(message="done")'))[1]

        assert await score() == 1.0
        Magento.reviews["B0"].append({"nickname": "c", "ratings": [{"rating_name": "Rating", "percent": 20}]})
        assert await score() == 0.0
        Magento.orders = []
        assert await score() == 0.0
        Magento.broken = True
        with pytest.raises(EnvFault, match="task 0: .*/rest: not Magento's answer to shopping_get_latest_order_url"):
            await score()


class JudgeModel(Handler):
    """A model that compares words; `says` is what it answers instead."""

    says, served, prompts = None, ["judge"], []

    def do_GET(self):
        self.reply(
            {
                "object": "list",
                "data": [{"id": n, "object": "model", "created": 0, "owned_by": "x"} for n in JudgeModel.served],
            }
        )

    def do_POST(self):
        body = self.body()
        text = body["messages"][-1]["content"]
        JudgeModel.prompts.append(text)
        assert body["temperature"] == 0.0 and body["model"] == "judge"
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        if "Reference answer" in fields:
            said = "correct" if fields["Reference answer"][1:-1] in fields["Answer to grade"] else "incorrect"
        else:
            said = "same" if fields["Actual reason"][1:-1] in fields["Reported reason"] else "different"
        said = JudgeModel.says or f"Verdict: {said.title()}."
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self.reply({"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]})


async def test_the_judge(monkeypatch):
    monkeypatch.setattr(LIMITS, "patience", 0.1)
    JudgeModel.says = None
    with serve(JudgeModel) as url:
        judge = Judge(f"{url}/v1")
        await judge.start()
        assert judge.model == "judge"
        assert await judge.same_answer("q", "3 km", "it is 3 km")
        assert not await judge.same_answer("q", "3 km", "it is 4 km")
        assert await judge.same_reason("q", "no such board", "N/A, no such board")
        assert not await judge.same_reason("q", "no such board", "done")
        for says, verdict in (("partially correct", False), ("It is incorrect.", False), ("CORRECT", True)):
            JudgeModel.says = says
            assert await judge.same_answer("q", "a", "b") is verdict
        JudgeModel.says = None
        for rule, verdict in (("last", False), ("original", True)):
            other = Judge(f"{url}/v1", verdict=rule)
            await other.start()
            JudgeModel.says = "Not correct."
            assert await other.same_answer("q", "a", "b") is verdict
            JudgeModel.says = None
        JudgeModel.says = "hm"
        with pytest.raises(EnvFault, match="says neither 'correct' nor 'incorrect': 'hm'"):
            await judge.same_answer("q", "a", "b")
        with pytest.raises(UsageError, match="WEBARENA_JUDGE=.*says neither"):
            await Judge(f"{url}/v1").start()
        JudgeModel.says = "incorrect"
        with pytest.raises(UsageError, match="judge calls 5 a wrong answer to 2 [+] 3"):
            await Judge(f"{url}/v1").start()
        JudgeModel.served = ["judge", "other"]
        with pytest.raises(UsageError, match="2 models there"):
            await Judge(f"{url}/v1").start()
        JudgeModel.served, JudgeModel.says = ["judge"], None
    with pytest.raises(TooManyFaults, match="the judge at"):
        await judge.same_answer("q", "a", "b")
    with pytest.raises(UsageError, match="WEBARENA_JUDGE="):
        await Judge(f"{url}/v1").start()


@pytest.mark.parametrize(
    "said, verdict",
    [
        ("The wording differs, but that does not make it incorrect. Verdict: correct", True),
        ("<think>Is it incorrect? The total is 12, so no.</think>\n\ncorrect", True),
        ("<think>correct</think>\nIncorrect", False),
        ("<think>It may be correct, or", None),
        ("**Correct**", True),
        ("Not correct.", False),
        ("The answer isn\u2019t entirely correct.", False),
        ("This is not a correct answer.", False),
        ("I cannot say that it is correct.", False),
        ("wrong", False),
        ("mostly correct", False),
        ("It is not incorrect.", None),
        ("Incorrect. The correct answer is 5.", False),
        ("Incorrect. Correct answer: 5", False),
        ("This is the correct answer.", True),
        ("This isn't the correct answer.", False),
        ("It does not contradict the reference and is correct.", True),
        ("5", None),
    ],
)
def test_the_last_verdict_word_counts(said, verdict):
    assert last_verdict(said.lower(), *ANSWERED) is verdict


@pytest.mark.parametrize(
    "said, verdict",
    [
        ("The reasons are the same; the words are different.", True),
        ("It says the same in different words.", True),
        ("not the same", False),
        ("They differ.", False),
        ("At first they look the same. Different.", False),
        ("Not different", None),
    ],
)
def test_the_last_verdict_word_on_reasons_counts(said, verdict):
    assert last_verdict(said.lower(), *AGREED) is verdict


NO_REPLIES = {"choices": None}, {"choices": []}, {"choices": [{"message": None}]}, {"error": "overloaded"}, "<html>"


@pytest.mark.parametrize("reply", NO_REPLIES)
async def test_a_reply_that_is_none_is_a_fault(reply):
    class Broken(JudgeModel):
        def do_POST(self):
            self.body()
            self.reply(reply)

    with serve(Broken) as url:
        judge = Judge(f"{url}/v1", "judge")
        judge.server, _ = await connect("X", judge.url, "judge")
        with pytest.raises(JudgeFault, match="overloaded" if "error" in reply else "no reply in the API's form"):
            await judge.same_answer("q", "a", "b")


async def test_a_task_whose_answer_is_compared_by_meaning(make, variables):
    references = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["3", "4"]}}
    nothing = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": "N/A"}, "string_note": "no stock"}
    entries = [entry("price", 0, eval=references), entry("price", 1, eval=nothing)]
    JudgeModel.prompts, JudgeModel.says = [], None
    with serve(JudgeModel) as url:
        variables.setenv("WEBARENA_JUDGE", f"{url}/v1")
        env = make(*entries)
        for task, answer, reward in (
            (0, "3, 4", 1.0),
            (0, "4, 3", 0.0),  # the stand-in wants the reference as it is, joined
            (1, "there is no stock", 1.0),
            (1, "n/a", 1.0),
            (1, "done", 0.0),
        ):
            await env.reset(env.tasks("test")[task])
            assert (await env.step(f'exit(message="{answer}")'))[1] == reward, answer
        assert ["Actual reason" in prompt for prompt in JudgeModel.prompts] == [False] * 3 + [True] * 2
        assert "by the model at" in env.notes[-1]
        variables.setenv("WEBARENA_RULES", "original")
        env = make(*entries)
        await env.reset(env.tasks("test")[0])
        assert (await env.step('exit(message="4, 3")'))[1] == 1.0
