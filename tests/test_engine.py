"""`--engine URL` against a stand-in with vLLM's API, as its documentation has it, and our own sampling behind it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from common import llm
from common.engine import Engine
from common.errors import EnvFault, UsageError
from common.replay import TrajectoryStore
from tests.test_demo import play_run


class Server(BaseHTTPRequestHandler):
    """One base model and one adapter at a time. `loaded`: names in order; `wrong`: it samples from another model."""

    model, tokenizer = None, None
    loaded, unloaded, requests = [], [], []
    wrong = no_ids = broken = False
    lock = threading.Lock()

    def reply(self, body, status=200):
        data = json.dumps(body).encode() if not isinstance(body, str) else body.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json" if not isinstance(body, str) else "text/plain")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        names = ["base", *(name for name in Server.loaded if name not in Server.unloaded)]
        self.reply(
            {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "x"} for n in names]}
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/load_lora_adapter":
            llm.load_trained(Server.model, body["lora_path"])
            if Server.wrong:
                with torch.no_grad():
                    Server.model.get_input_embeddings().weight.mul_(0.7)
            Server.loaded.append(body["lora_name"])
            self.reply(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")
        elif self.path == "/v1/unload_lora_adapter":
            Server.unloaded.append(body["lora_name"])
            self.reply(f"Success: LoRA adapter '{body['lora_name']}' removed successfully.")
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
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/v1"
        http.shutdown()


LORA = ["--lora-rank", "4", "--num-phases", "1", "--judge", "env"]


def test_a_run_samples_from_the_server_and_hands_it_every_new_adapter(tmp_path, server):
    out, _ = play_run(tmp_path, *LORA, "--engine", server, "--filter-low", "2")  # a critic that lets nothing pass
    assert "training instructions instead" in out
    (run,) = tmp_path.iterdir()
    assert [name.rsplit("-", 1)[1] for name in Server.loaded] == ["0", "1"]  # after the fine-tuning, after phase 1
    assert Server.unloaded == Server.loaded[:1]
    assert {body["model"] for body in Server.requests} == set(Server.loaded)  # never the base
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("rollout/logprob_gap", 0) for row in rows) < 1e-4 and "warning" not in out
    steps = [s for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "phase 1" for s in t.steps]
    assert all(len(s.logprobs) == len(s.action_ids) > 0 for s in steps)


def test_a_server_that_samples_from_something_else_is_noticed(tmp_path, server):
    Server.wrong = True
    out, _ = play_run(tmp_path, *LORA, "--engine", server)
    assert "warning: sampling log-probs are" in out


def test_what_the_server_cannot_do_is_one_clear_line(server):
    import asyncio

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
