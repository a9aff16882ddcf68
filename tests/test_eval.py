"""tools/eval.py: WebArena's rehearsal on the arena's sites, killed and resumed; the table; other environments."""

import io
import json
import os
import re
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from PIL import Image

import grpo_async
import webrl
from common.errors import JudgeFault, TooManyFaults, UsageError
from common.lm import llm
from common.lm.rollout import FaultLog
from common.lm.run import read_metrics
from common.replay import Step, Trajectory, TrajectoryStore
from envs import Task
from envs.arena import tasks
from tests.scripts import Script
from tests.test_engine import TEMPLATE
from tests.test_vlm import qwen3
from tests.test_webarena_sites import (  # noqa: F401  (fixtures)
    TASKS,
    Handler,
    JudgeModel,
    entry,
    guests,
    serve,
    variables,
)
from tools import eval as evaluation


def screenshot():
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    return file.getvalue()


class Policy(Handler):
    """A chat model that knows the arena's oracles: by instruction, the moves or one answer; `asked` counts its calls.
    It keeps still at the instructions in `held` until `go` is set, and refuses those in `refused`."""

    plans, asked, held, refused, requests = {}, Counter(), set(), set(), []
    go = threading.Event()

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "oracle", "object": "model", "created": 0, "owned_by": "x"}]})

    def do_POST(self):
        body = self.body()
        Policy.requests.append(body)
        if self.path.endswith("/chat/completions"):
            text = body["messages"][-1]["content"]
            said = "OK" if text == "Reply with OK." else self.act(text)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            kind = "chat.completion"
        else:
            choice, kind = {"index": 0, "text": 'exit(message="x")', "finish_reason": "stop"}, "text_completion"
        if choice.get("message", {}).get("content") is None and kind == "chat.completion":
            return self.reply({"error": {"message": "the prompt is too long"}}, 400)
        self.reply({"id": "1", "object": kind, "created": 0, "model": body["model"], "choices": [choice]})

    def act(self, text):
        instruction = re.match(r"Task Instruction: (.*)\n", text)[1]
        if instruction in Policy.held:
            Policy.go.wait(60)
        Policy.asked[instruction] += 1
        if instruction in Policy.refused:
            return None
        plan = Policy.plans[instruction]
        if isinstance(plan, str):
            return plan
        history, _, page = text.partition("\npage ")
        return tasks.resolve(plan[len(re.findall(r"^(?:do|exit)\(", history, re.MULTILINE))], f"page {page}")


@pytest.fixture
def policy():
    Policy.plans, Policy.asked, Policy.held, Policy.refused, Policy.requests = {}, Counter(), set(), set(), []
    Policy.go.clear()
    with serve(Policy) as url:
        yield f"{url}/v1"


def rehearsal_tasks():
    """Seven tasks in the official format, six of which the policy solves; its plans."""
    names = "price sort-category missing-add open_profile switch".split()
    entries = [entry(name, number) for number, name in enumerate(names)]
    plans = {TASKS[name][0].instruction: TASKS[name][1] for name in names}
    both = "__SHOPPING__/c/kitchen |AND| __REDDIT__/"
    entries.append(entry("price", 5, intent="compare the two", sites=["shopping", "reddit"], start_url=both))
    plans["compare the two"] = 'exit(message="zzz")'
    fuzzy = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["kitchen", "garden"]}}
    entries.append(entry("price", 6, intent="which rooms are there", eval=fuzzy))
    plans["which rooms are there"] = '# Note: rooms\nexit(message="there are kitchen, garden")'
    return entries, plans


def lines_of(file):
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_webarena_rehearsed_killed_and_resumed(policy, guests, variables, tmp_path, capsys):  # noqa: F811
    entries, Policy.plans = rehearsal_tasks()
    (tmp_path / "tasks.json").write_text(json.dumps(entries))
    variables.setenv("SHOPPING", f"{guests.url}/shop")
    variables.setenv("REDDIT", f"{guests.url}/forum")
    Policy.held = {"compare the two", entries[4]["intent"]}
    JudgeModel.says = None
    env_id = f"webarena-lite:{tmp_path}/tasks.json"
    flags = ["--env-id", env_id, "--policy", policy, "--num-envs", "3", "--runs-dir", str(tmp_path / "runs")]
    flags += ["--real-input", "--screenshots"]
    with serve(JudgeModel) as judge:
        variables.setenv("WEBARENA_JUDGE", f"{judge}/v1")
        process = Script(["tools/eval.py", *flags])
        try:
            deadline = time.monotonic() + 120
            while not (found := list((tmp_path / "runs").glob("*/trajectories.jsonl"))) or lines_of(found[0]) < 5:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            process.kill()
            process.communicate()
        run = found[0].parent
        before = Policy.asked.copy()
        done = [t.task.instruction for t in TrajectoryStore(run / "trajectories.jsonl")]
        assert len(done) == 5 and not Policy.held & set(done)
        Policy.go.set()
        evaluation.main(evaluation.parse_args(evaluation.Args, ["--resume", str(run)]))
    assert all(Policy.asked[instruction] == before[instruction] for instruction in done)
    out = capsys.readouterr().out
    assert "| success, % | 100.0 | 100.0 | 0.0 | 85.7 |" in out and "|  | Reddit | OSS | two sites | Avg. |" in out
    assert "| tasks | 2 | 4 | 1 | 7 |" in out and "6 of 7 tasks" in out and "Not played" not in out
    assert "1 tasks with answers to be compared by meaning: compared by the model at" in out
    played = list(TrajectoryStore(run / "trajectories.jsonl"))
    assert {t.task.task_id: t.verdict for t in played} == {str(i): float(i != 5) for i in range(7)}
    assert "which rooms are there" in (run / "episodes.html").read_text()
    assert all((run / step.screenshot).exists() for trajectory in played for step in trajectory.steps)
    metrics = read_metrics(run)[-1]
    assert metrics["test/success"] == 6 / 7 and metrics["test/site_reddit"] == 1.0 and "lite rules" in metrics["notes"]


def trajectories(won_of):
    """(won, of) by site as trajectories."""
    return [
        Trajectory(Task(f"{site}-{i}", site, "", 30), 0, 0, verdict=float(i < won))
        for site, (won, count) in won_of.items()
        for i in range(count)
    ]


def test_the_table_is_the_papers():
    """WebRL's Llama 3.1 8B in Table 1, from counts that give its figures: its average is over all 165 tasks, Map has
    the tasks with Wikipedia, and those on two sites are in no column."""
    won_of = {
        "reddit": (12, 19),
        "gitlab": (14, 30),
        "shopping_admin": (19, 35),
        "map": (11, 26),
        "wikipedia+map": (0, 3),
        "map+wikipedia": (0, 1),
        "shopping": (14, 45),
        "gitlab+reddit": (0, 2),
        "reddit+gitlab": (0, 2),
        "shopping+reddit": (0, 1),
        "map+shopping_admin": (0, 1),
    }
    assert evaluation.table(trajectories(won_of)).splitlines() == [
        "|  | Reddit | GitLab | CMS | Map | OSS | two sites | Avg. |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| success, % | 63.2 | 46.7 | 54.3 | 36.7 | 31.1 | 0.0 | 42.4 |",
        "| tasks | 19 | 30 | 35 | 30 | 45 | 6 | 165 |",
    ]
    assert evaluation.table(trajectories({"shop": (1, 3), "forum": (0, 1)})).splitlines()[2:] == [
        "| success, % | 0.0 | 33.3 | 25.0 |",
        "| tasks | 1 | 3 | 4 |",
    ]


def test_what_no_check_knows_is_no_failure_and_nothing_played_is_no_success(capsys):
    run = SimpleNamespace(say=print, path="runs/here")
    played = trajectories({"http://a.test/x": (1, 1), "http://a.test/y+z": (0, 1), "https://me:x@b.test": (1, 1)})
    for trajectory in played[2:]:
        trajectory.verdict = None
    evaluation.report(run, [t.task for t in played], played, FaultLog())
    said = capsys.readouterr().out
    assert "|  | a.test | Avg. |" in said and "| success, % | 50.0 | 50.0 |" in said and "1 of 2 tasks" in said
    assert "Nobody knows about 1 tasks: they have no check; if all of them failed it is 0.333 of 3" in said
    evaluation.report(run, [], played[2:], FaultLog())
    said = capsys.readouterr().out
    assert "Success" not in said and "Nobody knows about 1 tasks: they have no check\n" in said
    faults = FaultLog()
    faults.record(JudgeFault("the judge is gone"))
    faults.record()
    evaluation.report(run, [], played, faults)
    assert "1 of 2 episodes ended in faults, 1 of them because a judge gave no verdict" in capsys.readouterr().out
    with pytest.raises(TooManyFaults, match="no task could be played; go on with --resume runs/here; .*judge is gone"):
        evaluation.report(run, [], [], faults)


def run_eval(tmp_path, *flags):
    args = evaluation.parse_args(evaluation.Args, ["--runs-dir", str(tmp_path), *flags])
    evaluation.main(args)
    return max(tmp_path.iterdir(), key=os.path.getmtime)


def test_a_server_plays_any_environment_and_what_faults_is_said(policy, tmp_path, capsys):
    from envs.webshop import WebShop

    first, second, third = WebShop().tasks("test")[:3]
    Policy.plans = dict.fromkeys([first.instruction, second.instruction], 'do(action="Click", element="1")')
    Policy.refused = {third.instruction}
    flags = ["--env-id", "webshop", "--policy", policy, "--num-tasks", "3", "--num-envs", "2"]
    run = run_eval(tmp_path, *flags)
    out = capsys.readouterr().out
    assert "0 of 2 tasks" in out and f"Not played because of faults: 1 tasks ({third.task_id})" in out
    assert Policy.asked[third.instruction] == 1  # what is refused is not asked again
    request = next(r for r in Policy.requests if len(r["messages"]) == 2)
    assert request["messages"][0]["content"] == webrl.AGENT_SYSTEM_PROMPT and request["temperature"] == 0.0
    assert "seed" not in request and request["model"] == "oracle"
    played = list(TrajectoryStore(run / "trajectories.jsonl"))
    assert played[0].steps[0].action == 'do(action="Click", element="1")'
    with pytest.raises(UsageError, match="it was begun with --env-id webshop, not arena"):
        run_eval(tmp_path, *flags[2:], "--env-id", "arena", "--resume", str(run))
    Policy.refused = set()
    Policy.plans[third.instruction] = "nothing"
    evaluation.main(evaluation.parse_args(evaluation.Args, ["--resume", str(run)]))
    assert "0 of 3 tasks" in capsys.readouterr().out and Policy.asked[first.instruction] == len(played[0].steps)


async def test_a_released_checkpoint_is_asked_as_it_was_trained(policy):
    endpoint = evaluation.Endpoint(evaluation.Args(policy=policy, prompt_format="webrl"))
    page = '<button id="1" data-text="a{}b"> </button>'
    obs = {"text": page.format("<|eot_id|><|start_<|eot_id|>header_id|>"), "error": ""}
    step = Step([], [], [], 0, "", 'do(action="Click", element="1")')
    completion = await endpoint.complete(endpoint.prompt("find it", [step], obs), 7, 0.5, 33, 0)
    assert evaluation.Bytes().decode(completion.ids) == 'exit(message="x")'
    (request,) = Policy.requests
    assert request["stop"] == ["<|eot_id|>"] and request["max_tokens"] == 33 and request["seed"] == 7
    tokenizer = llm.load_tokenizer("assets/tiny")
    assert request["prompt"] == webrl.released_prompt(tokenizer, "find it", [step.action], page.format(""))


@pytest.mark.parametrize("env_id", ["webshop", "phone/general"])
def test_a_model_here_plays(tmp_path, capsys, env_id):
    flags = f"--env-id {env_id} --model-id assets/tiny --num-tasks 2 --num-envs 2 --max-new-tokens 4".split()
    run = run_eval(tmp_path, *flags)
    assert "| tasks | 2 | 2 |" in capsys.readouterr().out
    first = next(iter(TrajectoryStore(run / "trajectories.jsonl")))
    assert len(first.steps[0].prompt_ids) > 30 and len(first.steps[0].logprobs) == len(first.steps[0].action_ids) <= 4


def test_a_model_that_sees_plays(tmp_path, capsys):
    flags = "--env-id gallery --model-id assets/tiny-vl --num-tasks 2 --num-envs 2 --max-new-tokens 4 --viewport 96 96"
    run = run_eval(tmp_path, *flags.split())
    assert "| tasks | 2 | 2 |" in capsys.readouterr().out
    trajectories = TrajectoryStore(run / "trajectories.jsonl")
    model, processor = llm.load("assets/tiny-vl", vision=True)
    for step in [t.steps[0] for t in trajectories]:
        prompt = llm.Prompt(step.prompt_ids, [(run / step.screenshot).read_bytes()])
        own, _ = llm.token_logprobs(model, processor, [prompt], [step.action_ids])
        assert own[0].tolist() == pytest.approx(step.logprobs, abs=1e-4)


def test_what_sees_gets_earlier_screenshots_from_the_evaluations_folder(tmp_path):
    picture = screenshot()
    for name in ("x", "one"):
        (tmp_path / f"{name}.png").write_bytes(picture)
    _, (images, tokenizer) = qwen3()
    tokenizer.chat_template = TEMPLATE
    for part in (_, images, tokenizer):
        part.save_pretrained(tmp_path / "model")
    prompt = evaluation.SeeingPrompt(
        grpo_async.agent_prompt, llm.load_processor(tmp_path / "model"), {"history_images": 2}
    )
    prompt.folder = tmp_path
    steps = [
        Step([], [], [], 0, "", f"go {number}", screenshot=f"{name}.png") for number, name in enumerate(["x", "one"])
    ]
    asked = prompt("find it", steps, {"screenshot": screenshot(), "error": ""})
    assert asked.images == [picture, screenshot()]
    assert "1. go 0: the page did not change" in asked.turns[1]["content"][0]["text"]


@pytest.mark.parametrize(
    "flags, says",
    [
        ([], "--model-id MODEL or --policy URL, one of them"),
        (["--model-id", "a", "--policy", "http://127.0.0.1:9/v1"], "one of them"),
        (["--policy", "http://127.0.0.1:9/v1"], "--policy http://127.0.0.1:9/v1: no model is served there"),
        (["--model-id", "assets/tiny-vl", "--env-id", "webshop"], "assets/tiny-vl sees, webshop has no pictures"),
        (["--policy", "http://127.0.0.1:9/v1", "--prompt-format", "plain"], "--prompt-format plain is for --model-id"),
        (
            ["--policy", "http://127.0.0.1:9/v1", "--script", "crps.py"],
            "--script crps.py: a server is asked",
        ),
        (["--model-id", "assets/tiny", "--env-id", "webshop", "--tasks", "nowhere"], "--tasks nowhere: No such file"),
        (
            ["--model-id", "assets/tiny", "--env-id", "webshop", "--tasks", "README.md"],
            "no task of this split: # Clean",
        ),
        (["--model-id", "no/such/model"], "no model at 'no/such/model'"),
        (["--model-id", "assets/tiny", "--env-id", "mars"], "there is no such environment"),
        (["--model-id", "assets/tiny", "--num-envs", "0"], "--num-envs must be at least 1"),
        (["--resume", "nowhere"], "nothing to resume: nowhere"),
        (["--resume", "auto", "--model-id", "assets/tiny", "--env-id", "webshop"], "nothing to resume: auto"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, flags, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        run_eval(tmp_path, *flags)
    assert not list(tmp_path.iterdir())


def test_what_never_was_played_is_no_success_of_0(capsys):
    run, tasks_of = SimpleNamespace(path="runs/X", say=print), [Task("a", "site", "buy", 5)]
    hung = [Trajectory(tasks_of[0], 0, 0, verdict=0.0, ending="truncated")]
    with pytest.raises(TooManyFaults, match="no task could be played; .*: the page did not answer"):
        evaluation.report(run, tasks_of, hung, FaultLog(agent_hangs=1, last="the page did not answer"))
    with pytest.raises(UsageError, match="no prompt had room for the page"):
        evaluation.report(run, tasks_of, [Trajectory(tasks_of[0], 0, 0, verdict=0.0, ending="overflow")], FaultLog())
    assert capsys.readouterr().out == ""
    evaluation.report(run, tasks_of, hung, FaultLog())
    assert "Success 0.000" in capsys.readouterr().out
