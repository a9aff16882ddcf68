"""MiniWoB++: its pages from disk, in real Chromium. What is done here with some tasks is done with all of them by
`python benchmarks/miniwob.py --solve 20` and `--fuzz 30`."""

import asyncio
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

import envs
from benchmarks import miniwob as benchmark
from benchmarks.once.browser import measure
from common.actions import parse
from common.browser import Browser
from common.errors import StateMismatch, UsageError
from common.lm.rollout import demonstrate
from common.replay import TrajectoryStore
from common.visual import read_action, write_action
from envs import miniwob
from envs.miniwob import FRESH, SETS, TASKS, VARIED
from envs.miniwob_oracles import SHAPE, SOLUTIONS
from tests.scripts import run_script

try:
    miniwob.pages_folder()
except UsageError as error:
    pytest.skip(str(error), allow_module_level=True)
pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = {"train": range(1000, 1003), "eval": range(100, 101), "test": range(2)}
# One of each kind of solution, and what is special about a page: its clock, pictures, drags, keys, scrolling.
SOLVED = """ascending-numbers buy-ticket choose-date-easy choose-list click-button click-checkboxes click-collapsible
    click-collapsible-2 click-color click-menu click-menu-2 click-option click-pie-nodelay click-shades click-shape
    click-tab-2-hard click-widget copy-paste-2 count-shape drag-box drag-items-grid drag-shapes-2 drag-sort-numbers
    draw-line email-inbox email-inbox-forward-nl enter-date enter-text-2 find-word focus-text-2 form-sequence
    form-sequence-3 grid-coordinate guess-number highlight-text-2 identify-shape login-user-popup multi-layouts
    navigate-tree phone-book read-table-2 resize-textarea search-engine simple-algebra social-media text-editor
    use-autocomplete use-slider""".split()
GRADED = [("circle-center", 0.97), ("bisect-angle", 0.98), ("hot-cold", 0.25)]
OTHERS = """click-button-sequence click-tab click-test click-test-2 email-inbox-important enter-text social-media-some
    terminal tic-tac-toe use-colorwheel-2""".split()
NAMES = [*SOLVED, *OTHERS, *(name for name, _ in GRADED)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def root(tmp_path_factory):
    """Some tasks, with few seeds: their instructions are asked for here, once."""
    patch = pytest.MonkeyPatch()
    patch.setattr(miniwob, "SEEDS", SEEDS)
    patch.setattr(miniwob, "VARIED", range(2000, 2012))
    try:
        env = envs.make(f"miniwob/{'+'.join(NAMES)}", cache_dir=tmp_path_factory.mktemp("instructions"))
        try:
            env.tasks("train")
        except UsageError as error:
            pytest.skip(str(error))
        yield env
        await env.close()
    finally:
        patch.undo()


@pytest_asyncio.fixture(loop_scope="module")
async def env(root):
    slot = root.fork()
    yield slot
    await slot.close()


def task_of(env, name, split="train", number=0):
    return [task for task in env.tasks(split) if task.site == name][number]


async def solve(env, task):
    """The scripted solution's (score, actions)."""
    obs, info = await env.reset(task)
    actions = []
    for move in env.oracle(task):
        actions.append(env.resolve(move, obs))
        obs, *_, info = await env.step(actions[-1])
        assert not obs["error"] or "does not scroll" in obs["error"]
    return info.get("score"), actions


def element(obs, label):
    line = next(line for line in obs["text"].splitlines() if line.startswith(f'"{label}'))
    return line.rpartition("[")[2].partition("]")[0]


def click(obs, label):
    return f'do(action="Click", element="{element(obs, label)}")'


# ---- tasks ----


async def test_the_tasks_are_browsergyms():
    train, test = SETS["browsergym-train"], SETS["browsergym-test"]
    assert (len(TASKS), len(train), len(test), len(SETS["webgum"])) == (125, 62, 63, 56)
    assert not set(train) & set(test) and set(SETS["webgum"]) < set(TASKS)
    assert set(FRESH) < set(TASKS) and set(SOLUTIONS) < set(TASKS) and set(benchmark.LACKS) < set(TASKS)
    assert set(TASKS) - set(SOLUTIONS) <= set(benchmark.LACKS)  # what has no solution says why
    assert set(SOLVED) <= set(SOLUTIONS) and len(SOLVED) >= 40


async def test_tasks_are_chosen_by_name():
    assert miniwob.choose("") == TASKS and miniwob.choose("webgum") == SETS["webgum"]
    assert miniwob.choose("click-test+enter-text+click-test") == ("click-test", "enter-text")
    for wrong in ("click-tests", "click-test+", "hover-shape"):
        with pytest.raises(UsageError, match="there is no task") as caught:
            envs.make(f"miniwob/{wrong}")
        assert "\n" not in str(caught.value)


async def test_pages_that_are_not_there_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no MiniWoB\\+\\+ pages"):
        envs.make("miniwob", pages_dir=str(tmp_path))
    miniwob.pages_folder.cache_clear()
    monkeypatch.setattr(sys, "path", [])  # where packages are looked for
    with pytest.raises(UsageError, match="pip install --no-deps -r requirements-miniwob.txt"):
        envs.make("miniwob")


async def test_splits_have_seeds_of_their_own(root):
    seeds = {split: {task.seed for task in root.tasks(split)} for split in SEEDS}
    assert seeds == {split: set(numbers) for split, numbers in SEEDS.items()}
    train = root.tasks("train")
    assert [task.site for task in train] == NAMES * 3  # a page comes once in a round
    assert len({task.task_id for split in SEEDS for task in root.tasks(split)}) == 6 * len(NAMES)
    assert root.tasks("train") is train and task_of(root, "click-test").max_steps == 10
    assert task_of(root, "enter-text").instruction.startswith('Enter "')


async def test_instructions_are_asked_for_once(root, monkeypatch):
    async def no_browser(*args, **options):
        raise AssertionError("a browser was started")

    monkeypatch.setattr(Browser, "start", no_browser)
    other = envs.make("miniwob/click-test+enter-text", cache_dir=root._shared.cache, port=0)
    assert other.tasks("test") == [t for t in root.tasks("test") if t.site in ("click-test", "enter-text")]
    (kept,) = root._shared.cache.glob("click-test-2-*")
    whole = kept.read_text()
    kept.write_text(whole[:-9])  # half a file is none
    with pytest.raises(AssertionError, match="a browser was started"):
        envs.make("miniwob/click-test-2", cache_dir=root._shared.cache).tasks("test")
    kept.write_text(whole)


async def test_an_instruction_that_is_not_the_pages_is_refused(env):
    task = task_of(env, "enter-text")
    with pytest.raises(UsageError, match="other pages than before"):
        await env.reset(replace(task, instruction="Enter something"))
    obs, _ = await env.reset(replace(task, instruction="Enter something", config=None))  # a generated one has no check
    assert obs["goal"] == "Enter something"
    *_, reward, terminated, truncated, info = await env.step('exit(message="")')
    assert (reward, terminated, info["verdict"]) == (0.0, True, None)


async def test_the_curriculum_proposes_other_seeds_of_the_page(env):
    split_seeds = {seed for numbers in SEEDS.values() for seed in numbers}
    for name in ("enter-text", "click-button"):  # all its instructions differ; hardly any does
        task, rng = task_of(env, name), random.Random(1)
        drawn = [env.vary(task, rng)[0] for _ in range(40)]
        assert {made.site for made in drawn} == {name} and len({made.task_id for made in drawn}) > 6
        assert {made.seed for made in drawn} <= set(miniwob.VARIED) and not set(miniwob.VARIED) & split_seeds
        asked = env.task_from_text(drawn[0].instruction, task)  # of a generator, which knows no seeds
        assert asked.instruction == drawn[0].instruction and asked.seed in miniwob.VARIED
    made = drawn[0]
    obs, _ = await env.reset(made)  # which compares the page's instruction with the task's
    assert obs["goal"] == made.instruction and made.config is not None
    assert env.task_from_text("Stand on your head", task) is None


# ---- what is seen ----


async def test_the_page_as_text(env):
    obs, _ = await env.reset(task_of(env, "click-option"))
    lines = obs["text"].splitlines()
    assert lines[0] == 'page "Click Option Task"' and lines[-1].startswith('"Submit" button')
    assert all(" radio [" in line for line in lines[1:-1])  # neither the instruction nor the reward's display
    assert obs["url"] == "file:///miniwob/click-option.html"  # the same on every machine


async def test_what_has_no_text_is_told_by_shape_colour_and_place(env):
    obs, _ = await env.reset(task_of(env, "click-shape"))
    _, *lines = obs["text"].splitlines()
    assert len(lines) >= 3 and all(SHAPE.match(line.removeprefix('"')) for line in lines)
    obs, _ = await env.reset(task_of(env, "click-color"))
    assert sum(line.startswith('"color ') for line in obs["text"].splitlines()) == 4
    obs, _ = await env.reset(task_of(env, "use-colorwheel-2"))  # whose instruction shows what it does not say
    assert 'text "Select the following color"' in obs["text"] and '"cc rgb(' in obs["text"]


async def test_pictures_are_waited_for(env):
    obs, _ = await env.reset(task_of(env, "email-inbox-important"))
    name = obs["goal"].split(" by ")[1].split()[0]
    obs, *_ = await env.step(click(obs, name))
    assert all(f'"{icon} at ' in obs["text"] for icon in ("close-email", "trash", "star"))


# ---- solutions ----


@pytest.mark.parametrize("name", SOLVED)
async def test_the_scripted_solution_gets_all_of_the_reward(env, name):
    for split, number in (("train", 0), ("test", 1)):
        score, actions = await solve(env, task_of(env, name, split, number))
        assert score == 1.0, actions
        assert len(actions) <= 10


@pytest.mark.parametrize("name, least", GRADED)
async def test_graded_tasks(env, name, least):
    for number in range(3):
        score, actions = await solve(env, task_of(env, name, "train", number))
        assert least <= score <= 1.0, actions


async def test_a_demonstration(env):
    task = task_of(env, "click-checkboxes", number=1)
    write = lambda action, thought, obs: action  # noqa: E731
    played = await demonstrate(env, task, lambda goal, steps, obs: [len(steps)], lambda text: [0], write)
    assert (played.verdict, played.score, played.ending) == (1.0, 1.0, "exit")
    assert played.steps[0].action.startswith("# Element: ") and parse(played.steps[-1].action).name == "Click"
    unsolved = await demonstrate(env, task_of(env, "tic-tac-toe"), None, None, None)
    assert not unsolved.steps and unsolved.verdict is None


async def test_slots_do_not_disturb_each_other(root):
    names = "use-slider drag-box click-menu text-editor click-checkboxes highlight-text-2 use-slider drag-box".split()
    slots = [root.fork() for _ in names]
    try:
        for number in range(2):
            played = await asyncio.gather(*(solve(s, task_of(s, n, "train", number)) for s, n in zip(slots, names)))
            assert [score for score, _ in played] == [1.0] * len(names)
            assert played[0] == played[6] and played[1] == played[7]
    finally:
        for slot in slots:
            await slot.close()


async def test_an_oracle_waits_for_its_move_to_be_done(env):
    task = task_of(env, "click-button-sequence")
    obs, _ = await env.reset(task)
    assert len(list(env.oracle(task))) == 1


async def test_true_input(root):
    real = envs.make(f"miniwob/{'+'.join(NAMES)}", cache_dir=root._shared.cache, real_input=True)
    try:
        for name in ("click-checkboxes", "enter-text", "click-tab", "click-shape", "bisect-angle"):
            score, actions = await solve(real, task_of(real, name))
            assert score > 0.95, actions
        task = task_of(real, "terminal", "test")  # which hears true keys alone
        obs, _ = await real.reset(task)
        obs, *_ = await real.step('do(action="Search", element="1", argument="ls")')
        files = obs["text"].split("user$ ls ")[1].split(" user$")[0].split()
        wanted = task.instruction.rpartition(" ")[2] if "extension ." in task.instruction else ""
        file = next(file for file in files if (file.endswith(wanted) if wanted else "." not in file))
        _, reward, *_ = await real.step(f'do(action="Search", element="1", argument="rm {file}")')
        assert reward == 1.0
    finally:
        await real.close()


# ---- how an episode ends ----


async def test_a_wrong_answer(env):
    task = task_of(env, "click-option")
    obs, _ = await env.reset(task)
    obs, reward, terminated, truncated, info = await env.step(click(obs, "Submit"))
    assert (reward, terminated, truncated, info["verdict"], info["score"]) == (0.0, True, False, 0.0, -1.0)
    with pytest.raises(RuntimeError):
        await env.step('do(action="Wait")')


async def test_an_exit_and_ten_steps_are_no_success(env):
    task = task_of(env, "click-test")
    await env.reset(task)
    _, reward, terminated, truncated, info = await env.step('exit(message="done")')
    assert (reward, terminated, info["verdict"], info["score"], info["answer"]) == (0.0, True, 0.0, 0.0, "done")
    obs, _ = await env.reset(task)
    for number in range(10):
        assert not number or not truncated
        _, reward, terminated, truncated, info = await env.step("no action")
    assert (reward, terminated, truncated, info["verdict"], info["score"]) == (0.0, False, True, 0.0, 0.0)
    obs, _ = await env.reset(task)
    for _ in range(9):
        await env.step('do(action="Wait")')
    _, reward, terminated, truncated, info = await env.step(click(obs, "Click Me"))
    assert (reward, terminated, truncated) == (1.0, True, False)  # the tenth still counts


async def test_there_is_no_time_limit_and_no_discount(root):
    patient = envs.make("miniwob/click-test", cache_dir=root._shared.cache, max_steps=60)
    try:
        obs, _ = await patient.reset(task_of(patient, "click-test"))
        for _ in range(50):  # 25 s of the page's time; its own limit is 10 s
            obs, _, terminated, truncated, _ = await patient.step('do(action="Wait")')
            assert not terminated and not truncated
        *_, info = await patient.step(click(obs, "Click Me"))
        assert info["score"] == 1.0
        asked = "[WOB_REWARD_GLOBAL, Date.now() - core.ept0]"
        paid, passed = await patient._session.read(None, lambda page: page.evaluate(asked))
        assert paid == 0 and passed >= 25_000  # what the page itself would have given for it
    finally:
        await patient.close()


@pytest.mark.parametrize("leave", ['do(action="Goto", argument="click-test.html")', 'do(action="New Tab")'])
async def test_who_leaves_the_page_has_lost(env, leave):
    task = task_of(env, "click-test")
    await env.reset(task)
    obs, reward, terminated, _, info = await env.step(leave)
    assert terminated and (reward, info["score"]) == (0.0, 0.0)
    assert (await solve(env, task))[0] == 1.0  # and the next episode is as if nothing had been


async def test_no_other_file_is_read(env):
    await env.reset(task_of(env, "click-test"))
    for address in ("file:///etc/passwd", "click-test-2.html", "../core/core.js", "http://localhost/"):
        obs, _, terminated, *_ = await env.step(f'do(action="Goto", argument="{address}")')
        assert obs["error"].startswith("blocked") and not terminated and obs["url"].endswith("/click-test.html")


# ---- the same seed, the same episode ----


async def test_an_episode_does_not_depend_on_what_ran_before(root, capsys):
    names = "click-menu+email-inbox+terminal+use-slider"
    assert await benchmark.fuzz(benchmark.Args(fuzz=2, names=names), cache_dir=root._shared.cache)
    assert "of these not in FRESH: none" in capsys.readouterr().out


async def test_that_test_sees_what_a_page_keeps(root, monkeypatch, capsys):
    monkeypatch.setattr(miniwob, "FRESH", ())
    assert not await benchmark.fuzz(benchmark.Args(fuzz=2, names="focus-text-2"), cache_dir=root._shared.cache)
    assert "of these not in FRESH: focus-text-2" in capsys.readouterr().out


async def test_where_the_mouse_was_left_does_not_matter(env):
    task = task_of(env, "social-media-some")  # a post under the mouse has another colour, its icon another picture
    obs, first = await env.reset(task)
    look = "getComputedStyle(document.querySelector('.media')).backgroundColor"
    before = await env._session.read(None, lambda page: page.evaluate(look))
    await env.step('do(action="Hover", argument="40,70")')
    assert await env._session.read(None, lambda page: page.evaluate(look)) != before
    _, again = await env.reset(task)
    assert await env._session.read(None, lambda page: page.evaluate(look)) == before and first["hash"] == again["hash"]


# ---- going back ----


async def test_restored_in_one_round_trip(env, root, monkeypatch):
    task = task_of(env, "click-checkboxes", number=2)
    _, actions = await solve(env, task)
    obs, _ = await env.reset(task)
    for action in [*actions[:-1], "no action"]:
        obs, *_ = await env.step(action)
    prefix = await env.prefix()
    other = root.fork()

    async def no_steps(action):
        raise AssertionError("an action of its own")

    try:
        await other.reset(task_of(env, "click-checkboxes"))
        monkeypatch.setattr(other._session, "act", no_steps)
        restored, info = await other.restore(prefix)
        assert restored["text"] == obs["text"] and info["hash"] == prefix.hashes[-1]
        assert (await other.prefix()) == prefix
        monkeypatch.undo()
        _, reward, *_ = await other.step(actions[-1])
        assert reward == 1.0
        with pytest.raises(StateMismatch):
            await other.restore(replace(prefix, actions=prefix.actions[1:]))
    finally:
        await other.close()


async def test_restored_by_doing_it_again(env):
    task = task_of(env, "use-slider", number=1)
    obs, _ = await env.reset(task)
    moves = env.oracle(task)
    obs, *_ = await env.step(next(moves).action)  # a true key
    assert parse((await env.prefix()).actions[0]).name == "Press"
    restored, _ = await env.restore(await env.prefix())
    assert restored["text"] == obs["text"]
    for move in moves:
        *_, info = await env.step(move.action)
    assert info["score"] == 1.0


# ---- elsewhere ----


class NoClock:
    def cpu(self):
        return 0.0


async def test_the_benchmark_plays(root):
    options = {"cache_dir": root._shared.cache}
    scripts = await benchmark.write_scripts(2, 2, **options)
    assert [script.task.site for script in scripts] == ["click-checkboxes"] * 2 + ["enter-text"] * 2
    side = benchmark.Ours(benchmark.Variant("ours", "text", options), 2)
    try:
        cell = await measure(side, 2, scripts, NoClock())
        assert not cell.errors and not cell.astray and cell.resets == 8 and side.rewards == [1.0, 1.0]
        assert cell.steps == 2 * sum(len(script.moves) for script in scripts)
        side.rewards[0] = 0.0
        with pytest.raises(RuntimeError, match="the moves got 0.0"):
            await side.finish(0, scripts[0].task)
    finally:
        await side.close()


async def test_visual_tasks_are_solved_by_places_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(miniwob, "SEEDS", {"train": range(1000, 1001), "eval": range(100, 101), "test": range(1)})
    names, size = "click-color click-shape identify-shape count-shape click-pie grid-coordinate drag-circle", (500, 320)
    env = envs.make(f"miniwob/{'+'.join(names.split())}", cache_dir=tmp_path, screenshots=True, viewport=size)

    def write(action, thought, obs):
        return write_action(action, obs, size, chat=True)

    try:
        for task in env.tasks("train"):
            read = partial(read_action, size=size)
            played = await demonstrate(env, task, lambda *_: [], lambda answer: [], write, lambda image: "x", read)
            assert played.verdict == 1.0 and all(step.screenshot == "x" for step in played.steps), task.task_id
            assert not any("element" in step.action for step in played.steps)
    finally:
        await env.close()


UNDER_GYMNASIUM = """
import sys, warnings
from gymnasium.utils.env_checker import check_env
import envs
warnings.simplefilter("ignore")
env = envs.gym_env("miniwob/click-test", split="test", cache_dir=sys.argv[1])
check_env(env, skip_render_check=True)
env.reset(seed=3)
obs, reward, terminated, *_ = env.step('do(action="Click", element="1")')
env.close()
assert reward == 1.0 and terminated and "torch" not in sys.modules
"""


async def test_under_gymnasium(root):
    command = [sys.executable, "-c", UNDER_GYMNASIUM, str(root._shared.cache)]
    options = dict(cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=120)
    ran = await asyncio.to_thread(subprocess.run, command, **options)
    assert ran.returncode == 0, ran.stderr


async def test_webrl_trains_with_its_curriculum(tmp_path):
    """The critic values pages that no episode has shown: they are looked at. What is proposed has its page's check."""
    small = """--num-demos 4 --sft-epochs 1 --start-episodes 4 --instructions-per-phase 4 --num-phases 1 --eval-tasks 0
        --test-tasks 2 --num-envs 2 --filter-low 1e-9 --filter-high 1 --judge env --orm-data= --curriculum""".split()
    flags = ["--env-id", "miniwob/click-option+click-test-2", "--runs-dir", tmp_path, *small]
    done = await asyncio.to_thread(run_script, ["webrl.py", *flags])
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    rollouts = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "phase 1"]
    assert len({(t.task.site, t.task.seed) for t in rollouts}) == len(rollouts) == 4
    assert [t.task for t in rollouts if t.task.seed not in VARIED or not t.task.config] == []
    assert all(t.reward == (t.verdict or 0.0) for t in rollouts)  # an episode that ran out of steps has no verdict
