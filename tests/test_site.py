"""Tasks on a web site of one's own: the example of docs/hacking.md as it stands there, and what can be wrong."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import envs
from common.errors import EnvFault, UsageError
from common.replay import TrajectoryStore
from common.run import read_metrics
from envs.site import read_tasks
from tests.scripts import run_script

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs/hacking.md").read_text(), re.DOTALL))
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


def test_the_example_of_the_docs_trains(site, tmp_path):
    demos = site / "demos.jsonl"
    for task, item in enumerate(("bread", "milk")):
        done = play(site, task, f"type 1 {item}\nclick 2\nexit done\n", "--record", str(demos))
        assert "reward 1" in done.stdout and "recorded" in done.stdout, done.stdout + done.stderr
    done = play(site, 2, "exit done\n", "--record", str(demos))
    assert "not recorded" in done.stdout and len(demos.read_text().splitlines()) == 2
    flags = ["--env-id", f"site:{site}/tasks.json", "--demos", demos, "--runs-dir", tmp_path]
    done = run_script(["webrl.py", *flags, *SMALL])
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    played = list(TrajectoryStore(run / "trajectories.jsonl"))
    assert [t.task.instruction for t in played if t.policy == "test after"] == ["add wine to the list"]
    assert {t.task.split for t in played if t.policy in ("start-up", "phase 1")} == {"train"}
    assert read_metrics(run)[-1]["charts/phase"] == 1


async def test_episodes_do_not_see_each_other_and_checks_leave_the_page_alone(site):
    env = envs.make(f"site:{site}/tasks.json")
    other = env.fork()
    try:
        task = env.tasks("train")[0]
        for one in (env, other):
            await one.reset(task)
        await env.step('do(action="Type", argument="bread", element="1")')
        obs, *_ = await env.step('do(action="Click", element="2")')
        assert "bread" in obs["text"]
        elsewhere = await env._session.read(task.site, lambda page: page.inner_text("ul"))
        assert elsewhere == "bread"  # with this episode's cookie, in a tab of its own
        assert (await env._session.observe()).tabs == (1, 1)
        _, reward, *_ = await env.step('exit(message="done")')
        _, other_reward, *_ = await other.step('exit(message="done")')
        assert (reward, other_reward) == (1.0, 0.0)
    finally:
        await env.close()


async def test_a_restored_episode_goes_on(site):
    env = envs.make(f"site:{site}/tasks.json")
    try:
        await env.reset(env.tasks("train")[1])
        await env.step('do(action="Type", argument="milk", element="1")')
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
    env = envs.make(f"site:{tmp_path}/tasks.json")
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


def test_tasks_have_their_splits(tmp_path):
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "hi"}}
    tasks = [{"intent": f"task {i}", "start_url": "http://a.b/", "eval": rules} for i in range(500)]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    splits = read_tasks(tmp_path / "tasks.json")
    assert [len(splits[name]) > least for name, least in (("train", 250), ("eval", 70), ("test", 70))] == [True] * 3
    assert sum(map(len, splits.values())) == 500


@pytest.mark.parametrize(
    "text, says",
    [
        ("no json", "not a list of tasks"),
        ('{"intent": 1}', "not a list of tasks"),
        ('[{"intent": "a", "start_url": "ftp://x", "eval": {}}]', "is no address"),
        ('[{"intent": "a", "start_url": "http://x", "split": "dev", "eval": {}}]', "the split is 'dev'"),
        ('[{"intent": "a", "start_url": "http://x", "eval": {"eval_types": ["guess"]}}]', "guess"),
        ('[{"intent": "a", "start_url": "http://x"}]', "eval"),
        ("[]", "no task is in the split"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, text, says):
    (tmp_path / "tasks.json").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        envs.make(f"site:{tmp_path}/tasks.json").tasks("train")
    assert "\n" not in str(caught.value)


def test_what_a_site_of_ones_own_lacks_is_said_at_once(site, tmp_path):
    command = ["webrl.py", "--env-id", f"site:{site}/tasks.json", "--runs-dir", tmp_path]
    for flags, says in (([], "--no-curriculum"), (["--no-curriculum"], "--demos FILE")):
        done = run_script([*command, *flags])
        assert done.returncode == 2 and says in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
