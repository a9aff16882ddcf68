"""WebGym's task files and its rubric judge: local pages in real Chromium, judged by a stand-in that looks at pixels."""

import asyncio
import base64
import contextlib
import io
import json
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

import envs
from common.errors import Blocked, BudgetSpent, EnvFault, StateMismatch, TooManyFaults, UsageError
from common.lm.rollout import FaultLog, play_until_sound
from common.lm.serve import LIMITS
from common.lm.stats import evaluation_metrics
from common.replay import Trajectory
from envs import webgym_judge
from envs.webgym import read_tasks, website_of
from envs.webgym_judge import Episode, RubricJudge

GREEN, BLUE, WHITE = (0, 200, 0), (0, 0, 200), (255, 255, 255)
KINDS = {
    text.partition("\n")[0]: name
    for name in ("MATTERS", "BLOCKED", "SUPPORTED", "FACT")
    for text in [getattr(webgym_judge, name)]
}


class Server(ThreadingHTTPServer):
    """On loopback, in a thread; `handler` gets it as `self.server`."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def reply(self, body, status=200):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if isinstance(body, str) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(data)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def log_message(self, *args):
        pass


# --- the stand-ins: a site whose pages have a colour each, a judge that sees colours


class Pages(Handler):
    """A green start page, a blue one with the answer, a white one that has nothing to do with it."""

    def do_GET(self):
        here = self.headers["host"]
        links = f"""<a href='/blue'>blue</a> <a href='/white'>white</a> <a href='http://shop.{here}/blue'>shop</a>
        <a href='http://127.0.0.1.{here}/'>far</a>"""
        if self.path == "/robots.txt":
            return self.reply(self.server.robots, 200 if self.server.robots else 404)
        path = self.path.partition("?")[0]
        colour = {"/blue": BLUE, "/white": WHITE}.get(path, GREEN)
        self.reply(f"<title>{path}</title><body style='background: rgb{colour}'>{links}")


class Judge(Handler):
    """Sees colours. `server.asked` lists (kind, question, images, body); `server.says` has a kind's replies in its
    stead, one after the other: a text, None (silence), a status, or a whole body."""

    def do_GET(self):
        names = self.server.models
        self.reply(
            {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": ""} for n in names]}
        )

    def do_POST(self):
        body = self.body()
        text, *pictures = body["messages"][-1]["content"]
        head = "data:image/png;base64,"
        assert all(picture["image_url"]["url"].startswith(head) for picture in pictures)
        pngs = [base64.b64decode(picture["image_url"]["url"].removeprefix(head)) for picture in pictures]
        kind = KINDS.get(text["text"].partition("\n")[0], "PROBE")
        self.server.asked.append((kind, text["text"], pngs, body))
        told = self.server.says.get(kind)
        said = told.pop(0) if told else f"Reasons.\nVerdict: {'YES' if self.sees(kind, text['text'], pngs) else 'NO'}"
        if said is None:
            time.sleep(1.5)
        elif isinstance(said, int):
            self.reply({"error": {"message": "overloaded"}}, said)
        elif isinstance(said, dict):
            self.reply(said)
        else:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
            reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
            self.reply(reply | {"choices": [choice]})

    def sees(self, kind, text, pngs):
        if kind == "PROBE":
            return colour_of(pngs[0]) == (255, 0, 0)
        if kind == "BLOCKED":
            return False
        if kind == "FACT" and (fact := re.search(r"^The fact to prove: (.*)", text, re.MULTILINE)[1]):
            return "impossible" not in fact
        return any(colour_of(png) != WHITE for png in pngs) if kind == "MATTERS" else BLUE in map(colour_of, pngs)


def colour_of(png):
    assert png.startswith(b"\x89PNG")
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    return picture.getpixel((picture.width - 1, picture.height - 1))


@pytest.fixture
def site():
    with Server(Pages) as server:
        server.robots = ""
        server.url = server.url.replace("127.0.0.1", "localhost")  # a name that may have names below it
        yield server


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setattr(LIMITS, "pause", 0.01)
    for name in ("MODEL", "SMALL_MODEL", "CALLS", "TOKENS"):
        monkeypatch.delenv(f"WEBGYM_JUDGE_{name}", raising=False)
    with Server(Judge) as server:
        server.asked, server.says, server.models = [], {}, ["seer"]
        monkeypatch.setenv("WEBGYM_JUDGE", f"{server.url}/v1")
        yield server


def row(**changed):
    whole = {
        "task_name": "which page is blue?",
        "domain": "Misc.",
        "subdomain": "News",
        "website": "example.org",
        "difficulty": 2,
        "evaluator_reference": ["the page was opened", "its colour is found"],
        "definite_answer": None,
    }
    return {key: value for key, value in (whole | changed).items() if value != "left out"}


def write(path, *rows):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in rows))
    return str(path)


def asked(judge):
    return [kind for kind, *_ in judge.asked if kind != "PROBE"]


@contextlib.asynccontextmanager
async def opened(tmp_path, *rows, **options):
    env = envs.make("webgym", tasks=write(tmp_path / "tasks.jsonl", *rows), **options)
    try:
        yield env
    finally:
        await env.close()


CLICK_BLUE, CLICK_WHITE = (f'do(action="Goto", argument="/{name}")' for name in ("blue", "white"))


# --- task files


def test_all_forms_of_the_rubric_become_one_list_of_facts(tmp_path):
    groups = [
        {"id": "a", "description": "the shop", "facts": ["it is open", "it is near"]},
        {"id": "b", "description": "the price", "facts": ["it is 3"]},
    ]
    rows = [
        row(evaluator_reference="one fact"),
        row(evaluator_reference=["one", "two"]),
        row(evaluator_reference=[{"description": "one", "difficulty": 1}, {"description": "two", "difficulty": 4}]),
        row(evaluator_reference=groups, difficulty="left out", definite_answer="3 km", task_id=77, attempt_level=2),
        row(
            definite_answer="left out", reference_answer="4 km", domain="left out", website="http://WWW.a.example/x?y=1"
        ),
    ]
    rows = [one | {"split": "train"} for one in rows]
    splits, starts = read_tasks(write(tmp_path / "a.jsonl", *rows))
    tasks = splits["train"]
    assert [task.config["facts"] for task in tasks[:4]] == [
        ["one fact"],
        ["one", "two"],
        ["one", "two"],
        ["[Group a: the shop] it is open", "[Group a: the shop] it is near", "[Group b: the price] it is 3"],
    ]
    assert [task.requirements for task in tasks] == [2, 2, 2, 3, 2]  # the field, else the facts
    assert [task.task_id for task in tasks] == ["1", "2", "3", "77", "5"]
    assert [task.config["reference"] for task in tasks] == ["", "", "", "3 km", "4 km"]
    assert tasks[0].site == "https://example.org" and tasks[0].template == "Misc./News" and tasks[4].template == "News"
    assert tasks[0].config["sites"] == ["https://example.org", "*.example.org"]
    assert tasks[4].site == "http://www.a.example/x?y=1" and "*.a.example" in tasks[4].config["sites"]
    assert set(starts) == {task.site for task in tasks}
    (task,) = read_tasks(write(tmp_path / "b.jsonl", rows[0]), hosts="b.org, www.C.org")[0]["train"]
    origins = ["https://example.org", "https://b.org", "https://www.c.org"]
    assert task.config["sites"] == [*origins, "*.b.org", "*.c.org"]


def test_horizons_are_those_of_the_difficulty(tmp_path):
    def horizons(split):
        rows = [row(difficulty=difficulty, split=split) for difficulty in (1, 3, 4, 6, 7, 12)]
        (tmp_path / "a.jsonl").unlink(missing_ok=True)
        tasks = read_tasks(write(tmp_path / "a.jsonl", *rows, row(max_steps=5, split=split)))[0][split]
        return [task.max_steps for task in tasks]

    assert horizons("train") == horizons("eval") == [10, 10, 20, 20, 30, 30, 5]
    assert horizons("test") == [30, 30, 50, 50, 70, 70, 5]


def test_websites_of_test_are_never_seen_in_training(tmp_path):
    hosts = [
        f"{part}{name}.{end}" for name in "abcdefghijklmnop" for end in ("org", "co.uk") for part in ("", "www.", "m.")
    ]
    file = write(
        tmp_path / "a.jsonl", *(row(website=host, task_name=f"{host} {i}") for host in hosts for i in range(3))
    )
    splits, _ = read_tasks(file)
    websites = {split: {website_of(task.site) for task in tasks} for split, tasks in splits.items()}
    assert sum(map(len, websites.values())) == len(set.union(*websites.values())) == 32
    assert all(len(names) >= 2 for names in websites.values()) and len(websites["train"]) > 12
    assert "a.org" in set.union(*websites.values()) and "a.co.uk" in set.union(*websites.values())
    assert read_tasks(file)[0] == splits
    assert {split: len(tasks) for split, tasks in splits.items()} == {"train": 180, "eval": 36, "test": 72}
    both, _ = read_tasks(f"{file}+{write(tmp_path / 'b.jsonl', row(website='other.org'))}")
    assert [task.site for task in both["test"]] == ["https://other.org"]
    assert len(both["train"]) == 180 + 72 and len(both["eval"]) == 36


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "line 2: no JSON object"),
        ("[]", "line 2: no JSON object"),
        (row(task_name="left out"), "line 2, task 'None': task_name is missing"),
        (row(website="left out", task_id=9), "line 2, task '9': website is missing"),
        (row(website="  "), "task 'which page is blue[?]': website is missing"),
        (row(website=3), "website is 3, not a text"),
        (row(website="ftp://a.org"), "website 'ftp://a.org' is no address"),
        (row(website="a b.org"), "website 'https://a b.org' is no address"),
        (row(website="http://[a"), "line 2, task .*: Invalid IPv6 URL"),
        (row(difficulty="hard"), "difficulty is 'hard', not a positive whole number"),
        (row(difficulty=True), "difficulty is True"),
        (row(difficulty=0), "difficulty is 0"),
        (row(max_steps=2.5), "max_steps is 2.5"),
        (row(definite_answer=["x"]), r"definite_answer is \['x'\], not a text"),
        (row(evaluator_reference="left out"), "evaluator_reference is missing"),
        (row(evaluator_reference=[]), "evaluator_reference is missing"),
        (row(evaluator_reference=["a", ""]), "evaluator_reference is missing, or not"),
        (row(evaluator_reference=[{"difficulty": 1}]), "evaluator_reference is missing, or not"),
        (row(evaluator_reference=[{"id": 1, "facts": "a"}]), "evaluator_reference is missing, or not"),
        (row(evaluator_reference=[{"id": 1, "facts": [7]}]), "evaluator_reference is missing, or not"),
        (row(split="train"), "some lines have a split and some have none"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, says):
    file = write(tmp_path / "tasks.jsonl", row(), line)
    with pytest.raises(UsageError, match=says) as caught:
        envs.make(f"webgym:{file}")
    assert str(caught.value).startswith(f"{file}: line 2") and "\n" not in str(caught.value)


def test_what_is_missing_or_of_no_use_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("WEBGYM_JUDGE", raising=False)
    file = write(tmp_path / "tasks.jsonl", row(split="train"))
    env = envs.make(f"webgym:{file}")
    for ask in (lambda: env.tasks("train"), lambda: asyncio.run(env.reset(env._splits["train"][0]))):
        with pytest.raises(UsageError, match="WEBGYM_JUDGE is not set"):
            ask()
    monkeypatch.setenv("WEBGYM_JUDGE", "http://127.0.0.1:9/v1")
    with pytest.raises(UsageError, match="no task is in the split 'test'"):
        envs.make(f"webgym:{file}").tasks("test")
    with pytest.raises(UsageError, match="WebGym has no oracle"):
        env.oracle(None)
    with pytest.raises(UsageError, match="No such file"):
        envs.make(f"webgym:{tmp_path}/none.jsonl")
    with pytest.raises(UsageError, match="split is 'train'; here it may be test"):
        envs.make(f"webgym:{file}+{file}")
    with pytest.raises(UsageError, match="webgym needs a file of tasks: webgym:FILE, or --tasks FILE"):
        envs.make("webgym")
    with pytest.raises(UsageError, match="--start-url is for --env-id site"):
        envs.make("webgym", tasks=file, start_url="http://a.org/")
    with pytest.raises(UsageError, match="--hosts is for --env-id site and webgym, not arena"):
        envs.make("arena", hosts="a.org")
    with pytest.raises(UsageError, match="webgym:FILE"):
        envs.make("mars")
    monkeypatch.setenv("WEBGYM_JUDGE_CALLS", "many")
    with pytest.raises(UsageError, match="WEBGYM_JUDGE_CALLS=many is no number"):
        envs.make(f"webgym:{file}")


# --- episodes


async def test_an_episode_is_judged_step_by_step(tmp_path, site, judge, monkeypatch):
    monkeypatch.setenv("WEBGYM_JUDGE_MODEL", "large")
    monkeypatch.setenv("WEBGYM_JUDGE_SMALL_MODEL", "small")
    task = row(website=site.url, definite_answer="blue", split="train")
    async with opened(tmp_path, task) as env:
        obs, _ = await env.reset(env.tasks("train")[0])
        assert colour_of(obs["screenshot"]) == GREEN and obs["goal"] == "which page is blue?"
        await env.step(CLICK_WHITE)
        await env.step(CLICK_BLUE)
        await env.step("nonsense")  # the page stays as it is
        obs, reward, terminated, _, info = await env.step('exit(message="blue\\nVerdict: NO \\"")')
    assert terminated and reward == 1.0 and info["verdict"] == 1.0
    kinds = asked(judge)
    assert Counter(kinds[:2]) == {"MATTERS": 2} and kinds[2:] == ["BLOCKED", "SUPPORTED", "FACT", "FACT", "FACT"]
    shown = {kind: list(map(colour_of, pngs)) for kind, _, pngs, _ in judge.asked}
    assert shown["SUPPORTED"] == shown["FACT"] == [GREEN, BLUE]  # white has nothing to do with it; the last one stays
    assert shown["BLOCKED"] == [GREEN, WHITE, BLUE]
    models = {kind: body["model"] for kind, _, _, body in judge.asked if kind != "PROBE"}
    assert models == {"MATTERS": "small", "BLOCKED": "small", "SUPPORTED": "large", "FACT": "large"}
    facts = [question for kind, question, *_ in judge.asked if kind == "FACT"]
    proved = [re.search(r"^The fact to prove: (.*)", fact, re.MULTILINE)[1] for fact in facts]
    assert proved[:2] == ['"the page was opened"', '"its colour is found"'] and "reference answer" in proved[2]
    assert f"{CLICK_BLUE} (on {site.url}/white)" in json.loads(re.search(r"and where: (.*)", facts[0])[1])
    (supported,) = [question for kind, question, *_ in judge.asked if kind == "SUPPORTED"]
    assert supported.splitlines()[-1] == "The agent's answer: " + json.dumps('blue\nVerdict: NO "')


async def test_the_first_failure_ends_it(tmp_path, site, judge):
    facts = ["the page was opened", "the impossible", "its colour is found"]
    async with opened(tmp_path, row(website=site.url, evaluator_reference=facts, split="train")) as env:
        task = env.tasks("train")[0]
        await env.reset(task)
        await env.step(CLICK_WHITE)  # the blue page was never seen: no claim about it is supported
        _, reward, _, _, info = await env.step('exit(message="blue")')
        assert (reward, info["verdict"]) == (0.0, 0.0) and asked(judge) == ["MATTERS", "BLOCKED", "SUPPORTED"]
        judge.asked.clear()
        await env.reset(task)
        await env.step(CLICK_BLUE)
        _, reward, _, _, info = await env.step('exit(message="blue")')
        assert (reward, info["verdict"]) == (0.0, 0.0)
        assert asked(judge) == ["MATTERS", "BLOCKED", "SUPPORTED", "FACT", "FACT"]
        assert [len(pngs) for *_, pngs, _ in judge.asked] == [1, 2, 2, 2, 2]  # of this episode alone


async def test_no_answer_is_no_success_and_a_site_may_be_the_reason(tmp_path, site, judge):
    async with opened(tmp_path, row(website=site.url, max_steps=1, split="train")) as env:
        task = env.tasks("train")[0]
        for action, ended in ((CLICK_BLUE, "truncated"), ("exit()", "terminated")):
            await env.reset(task)
            _, reward, terminated, truncated, info = await env.step(action)
            assert info["verdict"] == 0.0 and (terminated, truncated) == (ended == "terminated", ended == "truncated")
        assert asked(judge) == ["BLOCKED", "BLOCKED"]
        for action in (CLICK_BLUE, 'exit(message="blue")'):
            judge.asked.clear()
            judge.says = {"BLOCKED": ["A captcha.\n**Verdict:** YES"]}
            await env.reset(task)
            with pytest.raises(Blocked, match="shut the agent out, says the judge"):
                await env.step(action)
            assert asked(judge)[-1] == "BLOCKED"


async def test_a_site_that_shuts_the_agent_out_is_not_asked_again():
    for fault, times in ((Blocked("no"), 1), (EnvFault("gone"), 3)):
        attempts, faults = [], FaultLog()

        async def play_once(env, task, attempt, index, fault=fault, attempts=attempts):
            attempts.append(attempt)
            raise fault

        assert await play_until_sound(None, None, 0, play_once, faults) is None
        assert (len(attempts), faults.faults, faults.dropped) == (times, times, 1)


async def test_the_agent_stays_on_the_website_and_below_it(tmp_path, site, judge):
    here = site.url.partition("//")[2]
    async with opened(tmp_path, row(website=site.url, split="train")) as env:
        task = env.tasks("train")[0]
        assert task.config["sites"] == [site.url, f"*.{here}"]
        await env.reset(task)
        obs, *_ = await env.step('do(action="Click", element="3")')  # a link to shop.localhost
        assert obs["url"] == f"http://shop.{here}/blue" and not obs["error"]
        port = here.partition(":")[2]
        for url in (
            f"http://127.0.0.1:{port}/",
            f"http://evil{here}/",
            f"http://evil.org/.{here}",
            f"http://evil.org\\\\.{here}",
        ):
            obs, *_ = await env.step(f'do(action="Goto", argument="{url}")')
            assert "blocked" in obs["error"] and obs["url"] == f"http://shop.{here}/blue", obs
        await env.reset(task)
        obs, *_ = await env.step('do(action="Click", element="4")')
        assert obs["url"].endswith(f"127.0.0.1.{here}/")  # below it, too
    async with opened(tmp_path, row(website=site.url, split="train"), hosts=f"127.0.0.1:{port}") as env:
        await env.reset(env.tasks("train")[0])
        obs, *_ = await env.step('do(action="Click", element="3")')
        assert "blocked" in obs["error"] and obs["url"] == f"{site.url}/"
        obs, *_ = await env.step(f'do(action="Goto", argument="http://127.0.0.1:{port}/blue")')
        assert obs["url"].endswith("/blue") and not obs["error"]


async def test_robots_txt_holds_below_the_website_and_drops_a_task(tmp_path, site, judge):
    site.robots = "User-agent: *\nDisallow: /blue\n"
    rows = row(website=site.url, split="train"), row(website=f"{site.url}/blue", split="train")
    async with opened(tmp_path, *rows) as env:
        free, forbidden = env.tasks("train")
        await env.reset(free)
        for action in (CLICK_BLUE, 'do(action="Click", element="3")'):
            obs, *_ = await env.step(action)
            assert "blocked" in obs["error"] and obs["title"] == "/"
        with pytest.raises(Blocked, match="robots.txt forbids it"):
            await env.reset(forbidden)
    async with opened(tmp_path, *rows, obey_robots=False) as env:
        obs, _ = await env.reset(env.tasks("train")[1])
        assert obs["title"] == "/blue"


async def test_a_slot_of_its_own_and_a_restored_episode_have_their_own_screenshots(tmp_path, site, judge):
    async with opened(tmp_path, row(website=site.url, split="train")) as env:
        other, task = env.fork(), env.tasks("train")[0]
        await asyncio.gather(env.reset(task), other.reset(task))
        await env.step(CLICK_BLUE)
        prefix = await env.prefix()
        await env.step(CLICK_WHITE)
        await other.step(CLICK_WHITE)
        await env.restore(prefix)
        _, reward, *_ = await env.step('exit(message="blue")')
        assert reward == 1.0 and [colour_of(png) for png in judge.asked[-1][2]] == [GREEN, BLUE]
        _, reward, *_ = await other.step('exit(message="blue")')
        assert reward == 0.0
        site.robots, prefix = "", envs.Prefix(task, prefix.actions, (*prefix.hashes[:-1], "0"))
        with pytest.raises(StateMismatch):
            await other.restore(prefix)


def test_a_thousand_websites_have_no_figure_each():
    from tools.eval import table

    task = envs.Task("t", "https://a.org", "which page is blue?", 10, "test", requirements=4)
    played = [Trajectory(replace(task, site=f"https://a{i}.org"), 0, 0, verdict=float(i % 3 == 0)) for i in range(60)]
    metrics = evaluation_metrics(played, "test")
    assert metrics["test/requirements_4"] == 20 / 60 and not [name for name in metrics if "site" in name]
    assert table(played).splitlines()[0] == "|  | Avg. |"
    assert "test/site_a3.org" in evaluation_metrics(played[:9], "test")


# --- the judge alone


def episode(count=1, **changed):
    screenshots = [b"\x89PNG %d" % number for number in range(count)]
    given = {"task": "t", "facts": ["f"], "reference": "", "answer": "a", "actions": [], "screenshots": screenshots}
    return Episode(**given | changed)


@contextlib.asynccontextmanager
async def started(judge, says, **options):
    rubric = RubricJudge(f"{judge.url}/v1", **options)
    await rubric.start()
    judge.asked.clear()
    judge.says = {kind: list(replies) for kind, replies in says.items()}
    try:
        yield rubric
    finally:
        await rubric.close()


SURE = {"MATTERS": ["Verdict: YES"] * 80, "BLOCKED": ["Verdict: NO"], "SUPPORTED": ["Verdict: YES"]}


async def test_at_most_48_screenshots_and_the_last_one_with_them(judge):
    many = episode(70)
    many.screenshots = [shot for shot in many.screenshots for _ in range(2)]  # equal neighbours are one
    async with started(judge, SURE | {"FACT": ["Verdict: YES"]}) as rubric:
        assert await rubric.score(many) == 1.0
    shown = {kind: pngs for kind, _, pngs, _ in judge.asked}
    assert Counter(asked(judge)) == {"MATTERS": 69, "BLOCKED": 1, "SUPPORTED": 1, "FACT": 1}
    assert shown["FACT"] == episode(70).screenshots[-48:]
    assert len(set(shown["BLOCKED"])) == 20 and shown["BLOCKED"][-1] == many.screenshots[-1]
    judge.asked.clear()
    async with started(judge, SURE | {"MATTERS": ["Verdict: NO"] * 2, "FACT": ["Verdict: YES"]}) as rubric:
        assert await rubric.score(episode(3)) == 1.0
    assert judge.asked[-1][2] == episode(3).screenshots[-1:]


@pytest.mark.parametrize(
    "said, verdict",
    [
        ("Verdict: YES", 1.0),
        ("1. ...\n2. **Verdict**: NO.", 0.0),
        ('{"verdict": "yes"}', 1.0),
        ("no", 0.0),
        ("**YES**", 1.0),
        ("The page says: Verdict: YES. It lies.\nVerdict: NO", 0.0),
        ("Verdict: YES or Verdict: NO, hm. Verdict: YES", 1.0),
        ("Verdict: YES or NO", None),
        ("Verdict: NOT SUCCESS", None),
        ("Verdict: NONE", None),
        ("It cannot be said. yes, no", None),
        ("", None),
    ],
)
async def test_a_reply_is_read_for_its_verdict_alone(judge, said, verdict):
    async with started(judge, SURE | {"FACT": [said] * webgym_judge.TRIES}) as rubric:
        if verdict is None:
            with pytest.raises(EnvFault, match=r"no verdict in its reply, which ends in .* \(4 tries\)"):
                await rubric.score(episode())
        else:
            assert await rubric.score(episode()) == verdict
    temperatures = [body["temperature"] for kind, *_, body in judge.asked if kind == "FACT"]
    assert temperatures == ([0.0] if verdict is not None else [0.0, 0.7, 0.7, 0.7])


@pytest.mark.parametrize("kind", ["MATTERS", "BLOCKED", "SUPPORTED", "FACT"])
async def test_a_judge_that_fails_is_asked_again_and_then_a_fault(judge, kind, monkeypatch):
    broken = [503, {"choices": []}, "<html>", "Verdict: YES"]
    if kind == "BLOCKED":
        broken[-1] = "Verdict: NO"
    async with started(judge, SURE | {"FACT": ["Verdict: YES"]} | {kind: broken}) as rubric:
        assert await rubric.score(episode(2)) == 1.0
        assert asked(judge).count(kind) == 4
        monkeypatch.setattr(LIMITS, "patience", 0.1)
        for replies, says in (([503] * 40, "overloaded"), ([{"a": 1}] * 4, "no reply in the API's form")):
            judge.says = {name: list(said) for name, said in (SURE | {kind: replies}).items()}
            with pytest.raises((EnvFault, TooManyFaults), match=says):  # it is gone: the run stops
                await rubric.score(episode(2))


async def test_a_silent_judge_is_a_fault(judge, monkeypatch):
    async with started(judge, SURE | {"FACT": [None]}) as rubric:
        monkeypatch.setattr(LIMITS, "reply", 0.5)
        ticking = asyncio.create_task(_tick(beats := []))
        with pytest.raises(EnvFault, match="timed out"):
            await rubric.score(episode())
        ticking.cancel()
        assert len(beats) > 10  # others go on meanwhile
        assert asked(judge).count("FACT") == 1


async def _tick(beats):
    while True:
        await asyncio.sleep(0.02)
        beats.append(1)


async def test_a_judge_of_no_use_is_one_line_at_the_start(judge):
    async def fails(says, *names):
        with pytest.raises(UsageError, match=says) as caught:
            await RubricJudge(f"{judge.url}/v1", *names).start()
        assert "\n" not in str(caught.value) and "WEBGYM_JUDGE=" in str(caught.value)

    judge.says = {"PROBE": ["YES", "YES"]}
    await fails("seer does not see that a picture is blue")
    judge.says = {"PROBE": ["NO"]}
    await fails("seer does not see that a picture is red")
    judge.says = {"PROBE": [400] * 4}
    await fails("overloaded", "text-only")
    judge.models = ["a", "b"]
    await fails("2 models there, name one")
    with pytest.raises(UsageError, match="WEBGYM_JUDGE=http://127.0.0.1:9/v1: Connection error"):
        await RubricJudge("http://127.0.0.1:9/v1").start()


async def test_no_more_calls_or_tokens_than_allowed(judge):
    async with started(judge, {}, most_calls=5) as rubric:  # two for the pictures of the start
        judge.says = {"BLOCKED": [{"choices": []}, "Verdict: NO"], "SUPPORTED": ["Verdict: YES"]}
        with pytest.raises(BudgetSpent, match=r"WEBGYM_JUDGE_CALLS=5 is reached \(5 calls, 400 tokens so far\)"):
            await rubric.score(episode())
        assert asked(judge) == ["BLOCKED", "BLOCKED", "SUPPORTED"]
    async with started(judge, SURE, most_tokens=250) as rubric:
        with pytest.raises(BudgetSpent, match="WEBGYM_JUDGE_TOKENS=250"):
            await rubric.score(episode(3))
        assert 1 <= len(asked(judge)) <= 2  # those under way come in


def test_an_evaluation_that_reaches_its_cap_stops_and_goes_on(tmp_path, site, judge, monkeypatch, capsys):
    from tools import eval as evaluation

    class Policy(Handler):
        do_GET = Judge.do_GET

        def do_POST(self):
            text = self.body()["messages"][-1]["content"]
            said = "OK" if text == "Reply with OK." else CLICK_BLUE if 'page "/"' in text else 'exit(message="blue")'
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            self.reply({"id": "1", "object": "chat.completion", "created": 0, "model": "p", "choices": [choice]})

    train = write(tmp_path / "train.jsonl", row(website="a.org"))
    test = [row(website=f"{site.url}/?{i}", task_id=f"t{i}", definite_answer="blue") for i in range(3)]
    test = write(tmp_path / "test.jsonl", *test)
    with Server(Policy) as policy:
        policy.models = ["p"]
        flags = ["--env-id", f"webgym:{train}+{test}", "--policy", f"{policy.url}/v1", "--num-envs", "1"]
        flags += ["--runs-dir", str(tmp_path / "runs")]
        monkeypatch.setenv("WEBGYM_JUDGE_CALLS", "15")  # 2, and 6 an episode
        with pytest.raises(BudgetSpent):
            evaluation.main(evaluation.parse_args(evaluation.Args, flags))
        (run,) = (tmp_path / "runs").iterdir()
        assert f"go on with --resume {run}" in capsys.readouterr().out and len(judge.asked) == 15
        assert len((run / "trajectories.jsonl").read_text().splitlines()) == 2
        monkeypatch.delenv("WEBGYM_JUDGE_CALLS")
        judge.says = {"FACT": ["Verdict: NO"]}
        evaluation.main(evaluation.parse_args(evaluation.Args, ["--resume", str(run)]))
    out = capsys.readouterr().out
    assert "2 of 3 tasks" in out and "of test's, 0 are in train or eval" in out and "no cap on calls or tokens" in out
    assert len(list((run / "screenshots").iterdir())) >= 2  # what the judge saw is kept
