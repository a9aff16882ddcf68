"""`--engine URL` against a stand-in with vLLM's API, as its documentation has it, and our own sampling behind it."""

import asyncio
import base64
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

import crps
import webrl
from common.errors import Blocked, EnvFault, TooManyFaults, UsageError
from common.lm import checkpoint, llm, serve
from common.lm.args import parse_args
from common.lm.engine import Engine, EnginePolicy, EngineServer
from common.lm.run import Timer, read_metrics
from common.replay import TrajectoryStore
from tests.scripts import run_script
from tests.test_demo import play_run
from tests.test_vlm import qwen3


class Server(BaseHTTPRequestHandler):
    """One base model and one adapter at a time. `loaded`: names in order; `wrong`: it samples from another model;
    `context`: what it says of its longest prompt; `lost`: it is gone once an adapter with this ending comes."""

    model, tokenizer = None, None
    loaded, unloaded, requests = [], [], []
    wrong = no_ids = broken = False
    context = lost = None
    lock = threading.Lock()

    def reply(self, body, status=200, headers=None):
        data = json.dumps(body).encode() if not isinstance(body, str) else body.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json" if not isinstance(body, str) else "text/plain")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        names = ["base", *(name for name in Server.loaded if name not in Server.unloaded)]
        if self.path != "/v1/models":
            return self.reply("<html>nothing here</html>", 404)
        model = {"object": "model", "created": 0, "owned_by": "x", "max_model_len": Server.context}
        self.reply({"object": "list", "data": [{"id": name, **model} for name in names]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if Server.lost and body.get("lora_name", "").endswith(Server.lost):
            return self.reply({"message": "gone"}, 503, {"retry-after": "99999"})
        elif self.path == "/v1/load_lora_adapter":
            llm.load_trained(Server.model, body["lora_path"])
            if Server.wrong:
                with torch.no_grad():
                    Server.model.get_input_embeddings().weight.mul_(0.7)
            Server.loaded.append(body["lora_name"])
            Server.unloaded[:] = [name for name in Server.unloaded if name != body["lora_name"]]
            self.reply(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")
        elif self.path == "/v1/unload_lora_adapter":
            if body["lora_name"] not in Server.loaded:
                return self.reply({"error": {"message": "cannot be found", "code": 404}}, 404)
            Server.unloaded.append(body["lora_name"])
            self.reply(f"Success: LoRA adapter '{body['lora_name']}' removed successfully.")
        elif body["model"] not in ("base", *Server.loaded):
            self.reply({"error": {"message": f"The model {body['model']} does not exist.", "code": 404}}, 404)
        elif Server.broken:
            self.reply({"error": {"message": "engine is dead", "code": 400}}, 400)
        else:
            self.complete(body)

    def complete(self, body):
        with Server.lock:
            Server.requests.append(body)
            done = llm.generate(
                Server.model,
                Server.tokenizer,
                [body["prompt"]],
                [body["seed"]],
                body["temperature"],
                body["max_tokens"],
            )[0]
        text = Server.tokenizer.decode(done.ids, skip_special_tokens=True)
        names = [f"token_id:{i}" for i in done.ids]
        logprobs = {"tokens": names, "token_logprobs": done.logprobs, "top_logprobs": None, "text_offset": []}
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": logprobs}
        if body.get("return_token_ids") and not Server.no_ids:
            choice["token_ids"] = done.ids
        self.reply({"id": "1", "object": "text_completion", "created": 0, "model": body["model"], "choices": [choice]})

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Server.model, Server.tokenizer = llm.load("assets/tiny", lora_rank=4)
    Server.loaded, Server.unloaded, Server.requests = [], [], []
    Server.wrong = Server.no_ids = Server.broken = False
    Server.lost = None
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/v1"
        http.shutdown()


LORA = ["--lora-rank", "4", "--num-phases", "1", "--judge", "env"]


def test_a_run_samples_from_the_server_and_hands_it_every_new_adapter(tmp_path, server):
    out, _ = play_run(tmp_path, *LORA, "--engine", server, "--filter-low", "2")  # a critic that lets nothing pass
    assert "training instructions instead" in out
    (run,) = tmp_path.iterdir()
    # to see whether it can, after the fine-tuning, after phase 1
    assert [name.rsplit("-", 1)[1] for name in Server.loaded] == ["0", "0", "1"]
    assert Server.unloaded == list(dict.fromkeys(Server.loaded))  # the last one at the end
    assert {body["model"] for body in Server.requests} == set(Server.loaded)  # never the base
    rows = read_metrics(run)
    assert max(row.get("rollout/logprob_gap", 0) for row in rows) < 1e-4 and "warning" not in out
    steps = [s for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "phase 1" for s in t.steps]
    assert all(len(s.logprobs) == len(s.action_ids) > 0 for s in steps)


def test_a_server_that_samples_from_something_else_is_noticed(tmp_path, server):
    Server.wrong = True
    out, _ = play_run(tmp_path, *LORA, "--engine", server)
    assert "warning: sampling log-probs are" in out


def test_what_the_server_cannot_do_is_one_clear_line(server):
    def ask():
        return asyncio.run(Engine(server, [1]).complete([5, 6], 3, 1.0, 4, 0))

    assert ask().ids
    Server.no_ids = True
    with pytest.raises(UsageError, match="token ids"):
        ask()
    Server.broken = True
    with pytest.raises(EnvFault, match="engine is dead"):
        ask()
    with pytest.raises(UsageError, match="no model is served there"):
        Engine("http://127.0.0.1:9/v1", [1])


def test_a_server_that_was_started_anew_gets_its_adapter_again(tmp_path, server):
    """And is not told to unload what it does not have."""
    engine, folders = Engine(server, [1]), [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        Server.model.save_pretrained(folder)
    engine.load_adapter(folders[0], "a")
    Server.loaded.clear()

    async def ask_twice():
        return await asyncio.gather(*(engine.complete([5, 6], seed, 1.0, 4, 0) for seed in (1, 2)))

    assert all(answer.ids for answer in asyncio.run(ask_twice()))
    assert Server.loaded == ["a"] and {body["model"] for body in Server.requests} == {"a"}
    Server.loaded.clear()
    engine.load_adapter(folders[1], "b")
    assert (Server.loaded, Server.unloaded) == (["b"], [])
    engine.close()
    assert Server.unloaded == ["b"]
    Server.loaded.clear()
    engine.close()
    engine.model = "c"  # which was never ours
    with pytest.raises(EnvFault, match="The model c does not exist"):
        asyncio.run(ask_twice())


def test_what_a_server_refuses_is_not_asked_again_and_a_lost_one_is_no_wrong_flag(server, tmp_path, monkeypatch):
    engine = Engine(server, [1])
    Server.broken = True
    with pytest.raises(Blocked, match="engine is dead"):
        asyncio.run(engine.complete([5, 6], 3, 1.0, 4, 0))
    engine.server.url = "http://127.0.0.1:9/v1"
    monkeypatch.setattr(serve.LIMITS, "patience", 0.1)
    with pytest.raises(TooManyFaults, match="did not load an adapter: .*Connection error"):
        engine.load_adapter(tmp_path, "a")


def test_where_the_engine_is_lost_what_a_batch_taught_is_saved_before(server, tmp_path):
    """And a resumed run goes on with the next one."""
    flags = """--num-demos 4 --sft-epochs 1 --group-size 2 --groups-per-iteration 2 --iterations 2 --num-envs 4
    --eval-every 9 --save-every 9 --test-tasks 1 --max-new-tokens 8 --lora-rank 4""".split()
    command = ["crps.py", *flags, "--engine", server, "--runs-dir", tmp_path]
    Server.lost = "-1"
    done = run_script(command)
    assert done.returncode == 1 and "did not load an adapter: " in done.stderr, done.stderr[-2000:]
    (run,) = tmp_path.iterdir()
    assert f"go on with --resume {run}" in done.stdout
    assert [row["charts/iteration"] for row in read_metrics(run)] == [0, 1]
    state = checkpoint.latest(run).state
    assert (state["counts"]["iteration"], state["player"]["version"]) == (1, 1)
    Server.lost = None
    done = run_script([*command, "--resume", run])
    assert done.returncode == 0, done.stderr[-2000:]
    assert [row["charts/iteration"] for row in read_metrics(run)] == [0, 1, 2, 2]  # the last one: the test's


def test_time_while_most_episodes_wait_for_the_engine_is_generation():
    """And what is left is the pages'."""
    seconds, now = Timer(), [0.0]
    answers = [asyncio.Event(), asyncio.Event()]

    async def complete(prompt, seed, *settings):
        await answers[prompt[0]].wait()
        return llm.Completion([1, 2], [0.0, 0.0], 0)

    async def play():
        policy = EnginePolicy(SimpleNamespace(complete=complete), 1.0, 4, 0, seconds)
        for _ in range(3):
            policy.enter()
        with seconds("pages"):
            asked = []
            for number in (0, 1):
                asked.append(asyncio.create_task(policy([number], 1)))
                await asyncio.sleep(0)
                now[0] += 5.0  # one of three waits, then two
            answers[0].set()
            await asked[0]
            now[0] += 2.0
            for _ in range(3):
                policy.leave()
            now[0] += 4.0  # nobody plays, one waits
            answers[1].set()
            await asked[1]
            now[0] += 1.0
        return policy.tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: now[0])
        seconds._mark = 0.0
        assert asyncio.run(play()) == 4
        assert seconds.metrics() == {"time/other": 0.0, "time/pages": 8.0, "time/generation": 9.0}


def test_a_server_s_context_counts(server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "context", 40)
        assert serve.served_context(server, "--engine") == 40
        flags = ["--engine", server, "--lora-rank", "4", "--model-id", "./nothing", "--max-new-tokens", "40"]
        with pytest.raises(UsageError, match="prompt and answer have 40 tokens together"):
            crps.main(parse_args(crps.Args, flags))
    assert serve.served_context(server, "--engine") == math.inf


def test_urls_are_asked_before_a_model_is_loaded(server, capsys):
    with pytest.raises(
        UsageError, match=r"--engine .*: no model is served there: .*; such a URL usually ends with /v1"
    ):
        crps.main(parse_args(crps.Args, ["--engine", server[:-3], "--lora-rank", "4", "--model-id", "./nothing"]))
    for flag in ("--judge", "--generator"):
        with pytest.raises(UsageError, match=f"^{flag} http://127.0.0.1:9/v1: "):
            webrl.main(parse_args(webrl.Args, [flag, "http://127.0.0.1:9/v1", "--model-id", "./nothing"]))


def test_an_answer_with_an_image_token_is_a_fault_and_room_is_what_the_prompt_leaves():
    asked, part = [], object.__new__(EngineServer)

    async def get(names):
        return [b"picture" for _ in names]

    async def complete_chat(turns, pictures, seed, temperature, max_new_tokens, version):
        asked.append(max_new_tokens)
        return llm.Completion([7, 99], [-1.0, -2.0], version), [1, 99, 2]

    async def ask(image_token):
        part.given, part.image_token = asyncio.Event(), image_token
        part.given.set()
        return await part.complete(llm.Prompt([1, image_token, 2], ["a"], []), 3, 1.0)

    part.engine = SimpleNamespace(complete_chat=complete_chat, url="http://e/v1")
    part.store = SimpleNamespace(get=SimpleNamespace(remote=get))
    part.args = SimpleNamespace(max_new_tokens=64, max_tokens=20)
    part.version, part.asked, part.busy, part.tokens = 5, 0, 0.0, 0
    with pytest.raises(EnvFault, match="sampled an image token"):
        asyncio.run(ask(99))
    assert asked == [17]


TEMPLATE = """{% for turn in messages %} <|im_start|> user {% if turn['content'] is string %}{{ turn['content'] }}
{% else %}{% for part in turn['content'] %}{% if part['type'] == 'image' %} <|vision_start|> <|image_pad|>
<|vision_end|> {% else %} {{ part['text'] }} {% endif %}{% endfor %}{% endif %} <|im_end|> {% endfor %}
{% if add_generation_prompt %} <|im_start|> user {% endif %}"""


class SeeingServer(Server):
    """The same for chats with pictures. `other`: it reads them with another template."""

    processor, other = None, False

    def complete(self, body):
        pictures = []
        for part in [part for turn in body["messages"] for part in turn["content"]]:
            if part["type"] == "image_url":
                pictures.append(base64.b64decode(part.pop("image_url")["url"].removeprefix("data:image/png;base64,")))
                part["type"] = "image"
        tokenizer = SeeingServer.processor.tokenizer
        text = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        prompt = llm.encode(SeeingServer.processor, text + " w7" * SeeingServer.other, pictures)
        with Server.lock:
            Server.requests.append(body)
            settings = body["temperature"], body["max_tokens"]
            (done,) = llm.generate(Server.model, SeeingServer.processor, [prompt], [body["seed"]], *settings)
        logprobs = [{"token": str(i), "logprob": p, "top_logprobs": []} for i, p in zip(done.ids, done.logprobs)]
        message = {"role": "assistant", "content": tokenizer.decode(done.ids)}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": logprobs}}
        reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        reply |= {"choices": [choice | {"token_ids": done.ids}], "prompt_token_ids": list(prompt)}
        self.reply(reply)


@pytest.fixture
def seeing(tmp_path):
    """(A small model that sees, the URL where it is served)."""
    torch.manual_seed(0)
    model, (images, tokenizer) = qwen3()
    tokenizer.chat_template = TEMPLATE
    for part in (model, images, tokenizer):
        part.save_pretrained(tmp_path / "model")
    Server.model, SeeingServer.processor = llm.load(str(tmp_path / "model"), lora_rank=4, vision=True)
    Server.loaded, Server.unloaded, Server.requests = [], [], []
    Server.wrong = Server.no_ids = Server.broken = SeeingServer.other = False
    with ThreadingHTTPServer(("127.0.0.1", 0), SeeingServer) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield str(tmp_path / "model"), f"http://127.0.0.1:{http.server_port}/v1"
        http.shutdown()


def play_seeing(folder, seeing, address):
    model, url = seeing
    flags = """--num-demos 0 --lora-rank 4 --batch-trajectories 4 --group-size 2 --iterations 1 --num-workers 1
    --no-dynamic-sampling --envs-per-worker 4 --max-steps 2 --max-new-tokens 6 --test-tasks 0
    --viewport 96 96""".split()
    command = ["grpo_async.py", "--runs-dir", str(folder), "--model-id", model, "--engine", url, *flags]
    return run_script([*command, "--ray-address", address], timeout=200)


def test_an_agent_that_sees_is_sampled_by_the_server(tmp_path, seeing, ray_address):
    done = play_seeing(tmp_path / "runs", seeing, ray_address)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [name.rsplit("-", 1)[1] for name in Server.loaded] == ["0", "1"]
    (run,) = (tmp_path / "runs").iterdir()
    rollouts = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "rollouts"]
    assert len(rollouts) == 4
    for step in [step for t in rollouts for step in t.steps[:1]]:  # the first round has one picture
        prompt = llm.Prompt(step.prompt_ids, [(run / step.screenshot).read_bytes()])
        model, processor = llm.load(seeing[0], vision=True)  # the adapter had not been trained
        own, _ = llm.token_logprobs(model, processor, [prompt], [step.action_ids])
        assert own[0].tolist() == pytest.approx(step.logprobs, abs=1e-4)


def test_a_server_that_reads_chats_in_another_way_is_refused(tmp_path, seeing, ray_address):
    SeeingServer.other = True
    done = play_seeing(tmp_path / "runs", seeing, ray_address)
    assert done.returncode == 2 and "reads a chat in another way" in done.stderr, done.stderr[-2000:]
