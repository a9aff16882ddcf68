"""`--generator URL`: the real client against a small OpenAI-compatible server on loopback."""

import asyncio
import json
import random
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

import webrl
from common import orm
from common.errors import JudgeFault, UsageError
from common.lm import serve
from common.lm.evaluator import Evaluator
from envs import Task
from envs.webarena_judge import connect
from envs.webgym_judge import _plain
from tests.test_webarena_sites import NO_REPLIES, Handler
from tests.test_webarena_sites import serve as serve_http

PNG = _plain("red")


@pytest.fixture
def server():
    """Writes two tasks per request; says [NO] to whatever has "email" in it. `asked` holds the prompts."""

    class Handler(BaseHTTPRequestHandler):
        asked = []
        failures = 0  # answer 503 so many times first

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if Handler.failures:
                Handler.failures -= 1
                self.send_response(503)
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                return
            prompt = body["messages"][0]["content"]
            Handler.asked.append(prompt)
            if "[YES]" in prompt:
                text = "[YES] or [NO]? "  # some repeat the question first
                text += "It needs e-mail. [NO]" if "email" in prompt else "The site does that. [YES]"
            else:
                text = f"1. `add blue mug {len(Handler.asked)} to the cart`\n2. ```email the shop```\nand more"
            message = {"role": "assistant", "content": text}
            reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
            reply["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}/v1", Handler
    listening.shutdown()
    listening.server_close()


class Sites:
    def task_from_text(self, text, like):
        return None


def make_args(url, **changes):
    settings = {"instructions_per_phase": 4, "filter_tries": 10} | changes
    return webrl.replace(webrl.Args(), generator=url, **settings)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_instructions_come_from_back_quotes_and_pass_the_feasibility_prompt(server, version):
    url, handler = server
    failures = [Task("a", "shop", "buy red lamp", 15), Task("b", "forum", "post hello", 15)]
    args = make_args(url, generator_prompt=version)
    tasks, counts = webrl.new_instructions(Sites(), failures, set(), None, random.Random(0), args, 1)
    assert len(tasks) == 4 and all(t.instruction.startswith("add blue mug") for t in tasks)
    assert counts["infeasible"] >= 1  # the e-mail one
    assert all(t.config is None for t in tasks)  # no checker: nothing to train on but the judge
    first = handler.asked[0]
    assert ("buy red lamp" in first) != ("post hello" in first)  # one request per site


def test_a_generator_of_no_use_is_left_for_the_environment(server, monkeypatch):
    """Empty replies and lost ones are tries."""
    url, handler = server
    asked = []

    def silent(url, model, prompt, flag):
        asked.append(prompt)
        if len(asked) % 2:
            raise UsageError("Request timed out.")
        return "I cannot help with that."

    class World(Sites):
        def vary(self, task, rng):
            return [replace(task, instruction=f"buy lamp {rng.random()}", config={})]

    monkeypatch.setattr(serve, "reply", silent)
    failures = [Task("a", "shop", "buy red lamp", 15)]
    given = World(), failures, set(), None, random.Random(0), make_args(url), 1
    tasks, counts = webrl.new_instructions(*given)
    assert len(tasks) == 4 and all(task.instruction.startswith("buy lamp") for task in tasks)
    assert len(asked) == webrl.USELESS and counts["generator_left"] == 1
    said = []
    learner, memory = SimpleNamespace(rng=random.Random(0)), SimpleNamespace(failure_set=failures, known=set())
    args = make_args(url, critic_warmup_epochs=0)
    webrl.phase_tasks(learner, memory, SimpleNamespace(run=SimpleNamespace(say=said.append)), World(), [], 1, args)
    assert said == ["phase 1: 24 replies of --generator in a row were of no use: varied without it"]


def test_a_generator_that_is_of_use_now_and_then_goes_on(server, monkeypatch):
    url, _ = server
    replies = (f"`buy lamp {number}`" if number % 9 == 8 else "Sorry." for number in range(10**6))
    monkeypatch.setattr(serve, "ask", lambda u, m, prompt, flag: "[YES]" if "[YES]" in prompt else next(replies))
    args = make_args(url, instructions_per_phase=8, filter_tries=20)
    given = Sites(), [Task("a", "shop", "buy red lamp", 15)], set(), None, random.Random(0), args, 1
    tasks, counts = webrl.new_instructions(*given)
    assert len(tasks) == 8 and not counts["generator_left"]


def test_a_reply_has_an_end(server):
    """A weak model may write on for ever."""
    bodies = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", lambda text, load=json.loads: bodies.append(load(text)) or bodies[-1])
        serve.reply(server[0], "m", "write tasks", "--generator")
    assert any(body.get("max_tokens") == serve.REPLY_TOKENS for body in bodies)


def test_a_server_that_fails_for_a_moment_is_asked_again(server):
    url, handler = server
    handler.failures = 2
    assert "blue mug" in serve.ask(url, "m", "write tasks", "--generator")


def test_a_server_that_stays_away_is_one_clear_line():
    with pytest.raises(UsageError, match="--generator http://127.0.0.1:9/v1"):
        serve.ask("http://127.0.0.1:9/v1", "m", "hello", "--generator")


@pytest.mark.parametrize("reply", NO_REPLIES)
async def test_no_client_by_url_takes_what_is_no_reply_for_one(reply):
    """Servers and gateways answer 200 with an error, without choices, or with a page to sign in: never a traceback, nor
    a verdict."""

    class Broken(Handler):
        def do_GET(self):
            self.reply({"object": "list", "data": None} if isinstance(reply, dict) else reply)

        def do_POST(self):
            self.body()
            self.reply(reply)

    with serve_http(Broken) as url:
        url = f"{url}/v1"
        with pytest.raises(JudgeFault, match=f"the judge at {url}: no reply in the API's form"):
            await Evaluator(url, "m", "{task} {actions}").success("buy", ["go"], [PNG])
        with pytest.raises(UsageError, match=f"--generator {url}: no reply in the API's form"):
            await asyncio.to_thread(serve.ask, url, "m", "hello", "--generator")
        with pytest.raises(UsageError, match=f"--judge {url}: no model is served there"):
            await asyncio.to_thread(serve.served_model, url, "--judge")
        with pytest.raises(UsageError, match=f"X={url}: "):
            await connect("X", url, "", 5, 0)

    class Silent(Broken):
        def do_GET(self):
            self.reply({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]})

    with serve_http(Silent) as url:
        assert await asyncio.to_thread(orm.ask_p_yes, f"{url}/v1", ["one", "two"]) == [None, None]
