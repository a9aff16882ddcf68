"""Tasks on a web site of one's own: the example of docs/hacking.md as it stands there, and what can be wrong."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import envs
from benchmarks.once import soak
from common.errors import Blocked, EnvFault, UsageError
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from envs import site as site_env
from envs.site import read_tasks
from tests.scripts import run_script
from webrl import Args

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/hacking.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
SMALL = """--no-curriculum --orm-data= --sft-epochs 1 --orm-episodes 4 --orm-epochs 1 --start-episodes 4 --num-phases 1
--instructions-per-phase 4 --num-envs 2""".split()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example's server, in a process of its own, and its tasks: the folder with tasks.json."""
    folder = tmp_path_factory.mktemp("site")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, text in BLOCKS.items():
        (folder / name).write_text(text.replace("8000", str(port)))
    subprocess.run([sys.executable, "tasks.py"], cwd=folder, check=True)
    server = subprocess.Popen([sys.executable, "shopping_list.py"], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if "running on" in line:
                break
        threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield folder
    finally:
        server.kill()
        server.wait()


def play(folder, task, lines, *flags):
    return run_script(["tools/play.py", "--env-id", f"site:{folder}/tasks.json", "--task", task, *flags], input=lines)


def test_the_example_of_the_docs_trains_to_a_success_that_moves(site, tmp_path):
    """The page's commands, the last one cut short: on instructions that training never shows."""
    demos = site / "demos.jsonl"
    shown = re.findall(r"play\.py --env-id site:tasks\.json --task (\d+) --record demos\.jsonl +# (.+)", PAGE)
    for task, moves in shown:
        done = play(site, task, moves.replace(", ", "\n") + "\n", "--record", str(demos))
        assert "reward 1" in done.stdout and "recorded" in done.stdout, done.stdout + done.stderr
    done = play(site, 2, "exit done\n", "--record", str(demos))
    assert "not recorded" in done.stdout and len(demos.read_text().splitlines()) == len(shown) == 2
    flags = re.search(r"^\.venv/bin/python webrl\.py (--env-id site:tasks\.json --demos .*)$", PAGE, re.MULTILINE)[1]
    flags = flags.replace("tasks.json", f"{site}/tasks.json").replace("demos.jsonl", str(demos)).split()
    short = "--lockstep --num-phases 2 --start-episodes 32 --eval-tasks 0 --test-tasks 30 --no-control".split()
    done = run_script(["webrl.py", *flags, *short, "--runs-dir", tmp_path])
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    rows, played = read_metrics(run), list(TrajectoryStore(run / "trajectories.jsonl"))
    before = next(row["test_before/success"] for row in rows if "test_before/success" in row)
    assert 0.2 < before < 0.8 and rows[-1]["test_after/success"] > before + 0.15, (before, rows[-1])
    splits = {split: {t.task.instruction for t in played if t.task.split == split} for split in ("train", "test")}
    assert len(splits["test"]) > 20 and not splits["test"] & splits["train"]
    assert {t.task.split for t in played if t.policy in ("start-up", "phase 1")} == {"train"}


async def test_episodes_do_not_see_each_other_and_checks_leave_the_page_alone(site):
    env = envs.make(f"site:{site}/tasks.json")
    other = env.fork()
    try:
        task = env.tasks("train")[0]
        for one in (env, other):
            await one.reset(task)
        await env.step('do(action="Type", argument="white cheese", element="1")')
        obs, *_ = await env.step('do(action="Click", element="2")')
        assert "white cheese" in obs["text"]
        elsewhere = await env._session.read(task.site, lambda page: page.inner_text("ul"))
        assert elsewhere == "white cheese"  # with this episode's cookie, in a tab of its own
        assert (await env._session.observe()).tabs == (1, 1)
        _, reward, *_ = await env.step('exit(message="done")')
        _, other_reward, *_ = await other.step('exit(message="done")')
        assert (reward, other_reward) == (1.0, 0.0)
    finally:
        await env.close()


async def test_a_restored_episode_goes_on(site):
    env = envs.make(f"site:{site}/tasks.json")
    try:
        await env.reset(env.tasks("train")[0])
        await env.step('do(action="Type", argument="white cheese", element="1")')
        prefix = await env.prefix()
        await env.restore(prefix)
        await env.step('do(action="Click", element="2")')
        assert (await env.step('exit(message="done")'))[1] == 1.0
    finally:
        await env.close()


async def test_the_reset_address_is_asked_with_the_episodes_cookie(tmp_path):
    seen = []

    async def answer(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 9\r\n\r\n<p>hi</p>")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "hi"}}
    task = {"intent": "what does it say", "start_url": f"{base}/", "eval": rules, "reset_url": f"{base}/reset"}
    (tmp_path / "tasks.json").write_text(json.dumps([task | {"split": "train"}]))
    env = envs.make(f"site:{tmp_path}/tasks.json", obey_robots=False)
    try:
        await env.reset(env.tasks("train")[0])
        first, second = [re.search(rb"cleangui-episode=(\w+)", request)[1] for request in seen[:2]]
        assert seen[0].startswith(b"GET /reset ") and seen[1].startswith(b"GET / ") and first == second
        assert (await env.step('exit(message="hi")'))[1] == 1.0
        server.close()
        with pytest.raises(EnvFault, match="reset"):
            await env.reset(env.tasks("train")[0])
    finally:
        await env.close()


async def test_start_tabs_and_a_redirect_among_the_tasks_hosts_have_the_episodes_cookie(tmp_path):
    seen = {}

    async def answer(reader, writer):
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        path, host = request.split()[1], re.search(r"host: (\w+)", request, re.I)[1]
        seen[path] = host, re.search(r"cleangui-episode=(\w+)", request)
        head = f"302 Found\r\nlocation: {other}/end\r\n" if path == "/go" else "200 OK\r\n"
        writer.write(f"HTTP/1.1 {head}content-type: text/html\r\ncontent-length: 9\r\n\r\n<p>hi</p>".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base, other = (f"http://{host}:{server.sockets[0].getsockname()[1]}" for host in ("127.0.0.1", "localhost"))
    task = {"intent": "look", "start_url": f"{base}/go |AND| {other}/b", "split": "train"}
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    env = envs.make(f"site:{tmp_path}/tasks.json", obey_robots=False)
    try:
        obs, _ = await env.reset(env.tasks("train")[0])
    finally:
        await env.close()
        server.close()
    assert obs["url"] == f"{other}/end" and not obs["error"] and "tabs 1 of 2" in obs["text"]
    assert (seen["/go"][0], seen["/end"][0], seen["/b"][0]) == ("127", "localhost", "localhost")
    assert len({cookie[1] for _, cookie in (seen["/go"], seen["/end"], seen["/b"])}) == 1


@pytest.mark.parametrize("real_clock", [False, True])
async def test_pages_wait_in_true_time_where_they_are_told_to(tmp_path, monkeypatch, real_clock):
    async def start(**options):
        raise EnvFault(f"virtual clock: {options['virtual_clock']}")

    task = {"intent": "wait", "start_url": "http://127.0.0.1:9/", "split": "train"}
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    monkeypatch.setattr("common.browser.Browser.start", start)
    env = envs.make(f"site:{tmp_path}/tasks.json", obey_robots=False, real_clock=real_clock)
    with pytest.raises(EnvFault, match=f"virtual clock: {not real_clock}"):
        await env.reset(env.tasks("train")[0])
    await env.close()
    with pytest.raises(UsageError, match="^--real-clock is for --env-id site and webgym, not arena$"):
        envs.make("arena", real_clock=True)


def test_tasks_have_their_splits(tmp_path):
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "hi"}}
    tasks = [{"intent": f"task {i}", "start_url": "http://a.b/", "eval": rules} for i in range(500)]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    splits, starts = read_tasks(tmp_path / "tasks.json")
    assert set(starts) == {"http://a.b/"}
    assert [len(splits[name]) > least for name, least in (("train", 250), ("eval", 70), ("test", 70))] == [True] * 3
    assert sum(map(len, splits.values())) == 500


SAME = {"task_id": 1, "intent": "a", "start_url": "http://x", "split": "eval"}


@pytest.mark.parametrize(
    "text, says",
    [
        ("no json", "not a list of tasks: .*line 1: no JSON object"),
        ('{"intent": "a", "start_url": "http://x"}\n\n{"intent": "b"', "line 3: no JSON object"),
        ('[{"intent": "a"},\n\n3]', "line 3: no JSON object"),
        ('[{"intent": "a"}', "line 1: no JSON"),
        ("[" * 100_000, "recursion"),
        ('{"intent": 1}', "line 1, task 0: it has no start_url"),
        ('{"intent": 1, "start_url": "http://x"}', "line 1, task 0: intent is 1, not a text"),
        ('{"intent": " ", "start_url": "http://x"}', "intent is ' ', not a text"),
        ('{"start_url": "http://x"}', "the key 'intent' is missing"),
        *(
            (json.dumps({"intent": "a", "start_url": "http://x", **more}), says)
            for more, says in (
                ({"start_url": "http://x:y/"}, "task 0: "),
                ({"start_url": "http:///x"}, "'http:///x' is no address"),
                ({"start_url": 3}, "'3' is no address"),
                ({"start_url": "__SHOPPING__/a"}, "'__SHOPPING__/a' is no address"),
                ({"sites": 3}, "sites is 3, not a list"),
                ({"sites": [3]}, "sites holds 3"),
                ({"sites": ["ftp://x"]}, "'ftp://x' is no address"),
                ({"max_steps": 0}, "max_steps is 0"),
                ({"max_steps": "many"}, "many"),
                ({"require_reset": True}, "it requires a reset, and has no reset_url"),
                ({"uploads": 3}, "uploads is 3, not a folder"),
                ({"reset_url": "reset.sh"}, "reset_url 'reset.sh' is no address"),
                ({"storage_state": "nowhere.json"}, "No such file"),
                ({"geolocation": {"latitude": 1}}, "'longitude' is missing"),
                ({"task_id": 9, "eval": {"eval_types": []}}, "line 1, task 9: .*nothing is checked"),
            )
        ),
        (json.dumps([SAME, SAME | {"task_id": "1"}]), "2 tasks of the split eval have the task_id 1"),
        ('[{"intent": "a", "start_url": "ftp://x", "eval": {}}]', "is no address"),
        ('[{"intent": "a", "start_url": "http://x", "split": "dev", "eval": {}}]', "the split is 'dev'"),
        ('[{"intent": "a", "start_url": "http://x", "eval": {"eval_types": ["guess"]}}]', "guess"),
        ('[{"intent": "a", "start_url": "http://x", "eval": {}}]', "eval"),
        ('{"intent": "a"}', "no start_url, and there is no --start-url"),
        ("[]", "no task is in the split"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, text, says):
    (tmp_path / "tasks.json").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        envs.make(f"site:{tmp_path}/tasks.json").tasks("train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_may_be_written_as_people_write_them(tmp_path, encoding):
    """A list, a line each, or one object over several lines; with a byte order mark; with what Python takes for the
    end of a line in a text."""
    intents = ["say hi\u2028to all", "b\x85c", "d"]
    entries = [{"intent": intent, "start_url": "http://x", "eval": None} for intent in intents]
    for text in (
        json.dumps(entries, ensure_ascii=False),
        json.dumps(entries, indent=2, ensure_ascii=False),
        "\r\n\r\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries),
        "\n".join(json.dumps(entry, indent=2, ensure_ascii=False) for entry in entries) + "\n",
    ):
        (tmp_path / "tasks.json").write_bytes(text.encode(encoding))
        splits, _ = read_tasks(tmp_path / "tasks.json")
        found = {task.task_id: task for tasks in splits.values() for task in tasks}
        assert [found[str(number)].instruction for number in range(3)] == intents
        assert all(task.config is None and task.max_steps == 30 for task in found.values())


@pytest.mark.parametrize(
    "given, start, site, sites",
    [
        ({"start_url": " http://H.Example:80/a "}, "http://h.example/a", "http://h.example/a", None),
        ({"start_url": "https://h:443"}, "https://h", "https://h", None),
        ({"start_url": "http://me:Secret@h:8080/"}, "http://me:Secret@h:8080/", "http://h:8080/", None),
        ({"start_url": "http://b\u00fccher.de/"}, "http://xn--bcher-kva.de/", "http://xn--bcher-kva.de/", None),
        ({"start_url": "http://h", "sites": ["shopping", "web"]}, "http://h", "http://h", None),
        ({"start_url": "http://h", "sites": "web"}, "http://h", "http://h", None),
        ({"start_url": "http://h", "sites": "HTTP://H:80"}, "http://h", "http://h", ["http://h"]),
        ({"start_url": "https://h", "sites": ["A.org", "localhost", "*.B.org"]}, "https://h", "https://h",
         ["https://a.org", "https://localhost", "*.b.org"]),
        ({"start_url": "http://h", "sites": ["http://me:x@h/a"]}, "http://h", "http://h", ["http://h/a"]),
        ({"start_url": "http://h |AND| http://I/b"}, "http://h |AND| http://i/b", "http://h", None),
    ],
)  # fmt: skip
def test_addresses_are_spelled_as_a_browser_does(tmp_path, given, start, site, sites):
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "hi"}}
    entry = {"intent": "a", "split": "train", "eval": rules} | given
    (tmp_path / "tasks.json").write_text(json.dumps([entry]))
    (task,) = read_tasks(tmp_path / "tasks.json")[0]["train"]
    assert (task.config["start_url"], task.site, task.config.get("sites")) == (start, site, sites)


def test_what_a_site_of_ones_own_lacks_is_said_at_once(site, tmp_path):
    own, unchecked = f"site:{site}/tasks.json", write_instructions(tmp_path / "unchecked.jsonl")
    for env_id, flags, says in (
        (own, ["--curriculum"], "--no-curriculum"),
        (own, [], "--demos FILE"),
        ("site", [], "site:FILE, or --tasks FILE"),
        ("site", ["--tasks", "nowhere.jsonl"], "cannot read nowhere.jsonl: No such file"),
        ("site", ["--tasks", unchecked], "no start_url"),
        ("arena", ["--start-url", "http://a.b/"], "--start-url is for --env-id site"),
        (
            "site",
            ["--tasks", unchecked, "--start-url", "http://a.b/", "--orm-model-id="],
            "no training task has",
        ),
        (
            "site",
            ["--tasks", unchecked, "--start-url", "http://a.b/", "--judge", "env"],
            "no training task has",
        ),
    ):
        done = run_script(["webrl.py", "--runs-dir", tmp_path, "--env-id", env_id, *flags])
        assert done.returncode == 2 and says in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


# --- sites that are not ours: instructions without checks


class Hotel:
    """A small site that notes what it is asked for: its pages, a robots.txt, and an outcome reward model."""

    PAGES = {
        "/": "<title>hotel</title><a href='/rooms'>rooms</a> <a href='/staff/wages'>wages</a> <a href='/bar'>bar</a>",
        "/rooms": "<title>rooms</title><p>two rooms are free</p><a href='/'>home</a>",
        "/bar": "<title>bar</title><img src='/staff/glass.png'>",
        "/staff/wages": "<title>wages</title>",
    }

    def __init__(self, robots="User-agent: *\nDisallow: /staff/\n"):
        self.asked, self.robots = [], robots

    async def answer(self, reader, writer):
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        self.asked.append(path)
        status, text = (200, self.PAGES[path]) if path in self.PAGES else (404, "nothing")
        if path == "/robots.txt" and self.robots is not None:
            status, text = (200, self.robots) if self.robots else (503, "")
        head = f"HTTP/1.1 {status} X", "content-type: text/html", f"content-length: {len(text)}", "connection: close"
        writer.write("\r\n".join((*head, "", text)).encode())
        await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        async with server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def write_instructions(path, *more, count=12):
    rows = [{"intent": f"find out how many rooms are free, guest {i}", "max_steps": 5} for i in range(count)]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, *more]))
    return path


async def test_robots_txt_is_obeyed_before_a_page_is_asked_for(tmp_path):
    hotel = Hotel()
    async with hotel.open() as host:
        options = {"tasks": str(write_instructions(tmp_path / "tasks.jsonl")), "start_url": f"http://{host}/"}
        env = envs.make("site", **options)
        try:
            task = env.tasks("train")[0]
            obs, _ = await env.reset(task)
            assert task.config is None and task.site == f"http://{host}/" and "rooms" in obs["text"]
            for action in ('do(action="Click", element="2")', 'do(action="Goto", argument="/staff/wages")'):
                obs, *_ = await env.step(action)
                assert "blocked" in obs["error"] and obs["title"] == "hotel", obs
            obs, *_ = await env.step('do(action="Click", element="3")')
            assert obs["title"] == "bar"
            obs, reward, terminated, _, info = await env.step('exit(message="two")')
            assert terminated and info["verdict"] is None and reward == 0.0
            assert hotel.asked.count("/robots.txt") == 1 and "/staff/wages" not in hotel.asked
            assert "/staff/glass.png" in hotel.asked  # a part of a page that may be seen
        finally:
            await env.close()
        env = envs.make("site", **options, obey_robots=False)
        try:
            await env.reset(task)
            obs, *_ = await env.step('do(action="Click", element="2")')
            assert obs["title"] == "wages" and hotel.asked.count("/robots.txt") == 1
        finally:
            await env.close()


@pytest.mark.parametrize("robots", [None, "", "User-agent: *\nDisallow: /\n"])
async def test_a_robots_txt_that_is_missing_broken_or_forbids_all(tmp_path, robots):
    async with Hotel(robots).open() as host:
        env = envs.make("site", tasks=str(write_instructions(tmp_path / "a.jsonl")), start_url=f"http://{host}/")
        try:
            if robots is None:
                assert (await env.reset(env.tasks("train")[0]))[0]["title"] == "hotel"
            elif robots == "":
                with pytest.raises(EnvFault, match="503"):
                    await env.reset(env.tasks("train")[0])
            else:
                with pytest.raises(UsageError, match="no-obey-robots"):
                    await env.reset(env.tasks("train")[0])
        finally:
            await env.close()


def write_start(path, url, **more):
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "12"}}
    entries = [{"intent": "how many", "start_url": url, "split": "train", "eval": rules} | more]
    path.write_text(json.dumps(entries))
    return f"site:{path}"


async def test_a_start_page_that_does_not_open_is_an_error_at_the_start(tmp_path):
    """Not blank pages to the last step: it leads to another host, shows no page, is never there. Once a page was there
    it is a fault, of a task that is dropped."""

    async def answer(reader, writer):
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        port = writer.get_extra_info("sockname")[1]
        head = {
            "/away": f"302 Found\r\nlocation: http://localhost:{port}/",
            "/none": "204 No Content",
            "/file": "200 OK\r\ncontent-disposition: attachment",
            "/robots.txt": "404 Not Found",
        }.get(path, "200 OK")
        writer.write(f"HTTP/1.1 {head}\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n".encode())
        writer.write(b"" if path == "/none" else b"<title>hotel</title>")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        for path, says in (
            ("/away", "blocked: http://localhost.*it leads there: name that host"),
            ("/none", ".*shows no page"),
            ("/file", ""),
        ):
            env = envs.make(write_start(tmp_path / "tasks.json", base + path))
            try:
                says = f"^task 0: its start page does not open: {says}"
                with pytest.raises(UsageError, match=says):
                    await env.reset(env.tasks("train")[0])
                env._shared.begun = True
                with pytest.raises(Blocked, match=says):
                    await env.reset(env.tasks("train")[0])
            finally:
                await env.close()
        port = base.rpartition(":")[2]
        for url, more in (
            (f"http://LocalHost:{port}/", {}),
            (f"http://me:secret@127.0.0.1:{port}/", {"reset_url": f"{base}/caf\u00e9"}),
            (f"{base}/away", {"sites": [base, f"localhost:{port}"]}),
            (f"{base}/ |AND| {base}/b", {"sites": ["notes"], "geolocation": {"latitude": 1, "longitude": 2}}),
        ):
            env = envs.make(write_start(tmp_path / "tasks.json", url, **more))
            try:
                obs, _ = await env.reset(env.tasks("train")[0])
                assert obs["title"] == "hotel" and ("tabs 1 of 2" in obs["text"]) is ("|AND|" in url), obs
                assert (await env.step('exit(message="12")'))[1] == 1.0
            finally:
                await env.close()


async def test_hosts_are_those_that_are_named_and_actions_keep_their_distance(tmp_path):
    here, there = Hotel(), Hotel()
    async with here.open() as host, there.open() as other, Hotel().open() as third:
        file = write_instructions(tmp_path / "tasks.jsonl")
        options = {"start_url": f"http://{host}/", "hosts": f"{host}, {other}", "action_interval": 0.3}
        env = envs.make("site", tasks=str(file), **options)
        forks = [env, env.fork(), env.fork()]
        try:
            began = time.monotonic()
            await asyncio.gather(*(env._shared.turn() for _ in range(3)))  # the third waits for two
            assert time.monotonic() > began + 2 * 0.3 and env._shared.next_turn > began + 3 * 0.3
            began = time.monotonic()
            await asyncio.gather(*(one.reset(env.tasks("train")[0]) for one in forks))
            assert here.asked.count("/") == 3
            obs, *_ = await env.step(f'do(action="Goto", argument="http://{other}/rooms")')
            assert obs["title"] == "rooms" and there.asked[-1] == "/rooms"
            obs, *_ = await env.step(f'do(action="Goto", argument="http://{third}/rooms")')
            assert "blocked" in obs["error"]
            assert env._shared.next_turn > began + 5 * 0.3  # three beginnings, two actions
        finally:
            await env.close()


def test_instructions_without_checks_are_trained_on_by_a_judge_alone(tmp_path):
    """The served judge pays; success in the end is its opinion, and the run says so."""
    file = write_instructions(tmp_path / "tasks.jsonl", count=20)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    hotel = Hotel()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(hotel.answer, "127.0.0.1", 0), loop).result()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    counts = Counter()
    judge = soak.judge_server(soak.Args(silent=0.0, neither=4), counts)
    flags = ["--tasks", file, "--start-url", url, "--runs-dir", tmp_path / "runs", "--num-demos", 0, *SMALL]
    try:
        done = run_script(["webrl.py", "--env-id", "site", "--judge", judge, *flags])
    finally:
        loop.call_soon_threadsafe(loop.stop)
    assert done.returncode == 0, done.stderr
    assert "success is what the judge takes for it" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    played = list(TrajectoryStore(run / "trajectories.jsonl"))
    # what the judge said neither of is in no figure and no batch, in evaluations either
    answered = counts["judge asked"] - counts["judge said neither"]
    assert counts["judge said neither"] and len(played) == answered - 1  # the first question is none of an episode
    assert all(t.verdict is None and t.judged is not None for t in played)
    paid = [t.judged > Args.orm_threshold and t.ending == "exit" for t in played]
    assert any(t.reward for t in played) == any(paid)
    row = read_metrics(run)[-1]
    after = [t for t in played if t.policy == "test after"]
    assert row["test_after/success"] == sum(t.success for t in after) / len(after)


async def test_a_server_that_never_ends_or_drips_or_hangs_up_is_bounded():
    sent, dripping = 0, asyncio.Event()

    async def answer(reader, writer):
        nonlocal sent
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        with contextlib.suppress(ConnectionError):
            if path == "/robots.txt":
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nUser-agent: *\nDisallow: /no\n")
                while True:
                    writer.write(b"# and so on\n" * 5000)
                    await writer.drain()
                    sent += 60_000
            if path == "/drips":
                writer.write(b"HTTP/1.1 200 OK\r\n")
                await dripping.wait()  # the rest of the head never comes
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        rules = await site_env._robots(base)
        assert not rules.can_fetch("*", f"{base}/no") and rules.can_fetch("*", f"{base}/yes") and sent < 20_000_000
        with pytest.raises(site_env.WEB_ERRORS):
            await site_env.ask(f"{base}/drips", seconds=0.2)
        dripping.set()
        with pytest.raises(EnvFault, match="^reset_url .*disconnected"):
            await site_env._reset(f"{base}/gone", "7")
