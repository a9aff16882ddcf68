"""common/lm/rollout.py: batching, independence of the batch, and faults that never become rewards.

The environment here is a counter in plain Python, so that every fault can be placed exactly; tests/test_demo.py does
the same with Chromium killed in mid-run.
"""

import asyncio
import json
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from common.errors import EnvFault, EnvHang, JudgeFault, TooManyFaults
from common.lm import rollout
from common.lm.llm import Completion
from common.replay import TrajectoryStore
from envs import Task


class Counter:
    """The agent says how often it was asked; `plan` maps (task id, attempt number) to (step, exception)."""

    def __init__(self, plan=None, resets=None):
        self.plan, self.resets = plan or {}, resets if resets is not None else {}

    async def reset(self, task, seed=0):
        self.task, self.count = task, 0
        self.resets[task.task_id] = self.resets.get(task.task_id, 0) + 1
        await asyncio.sleep(0)
        return self.observe(), {}

    def observe(self):
        return {"text": f"count {self.count}", "error": "", "url": "", "goal": self.task.instruction}

    async def step(self, action):
        self.count += 1
        when, error = self.plan.get((self.task.task_id, self.resets[self.task.task_id]), (0, None))
        if self.count == when:
            raise error
        await asyncio.sleep(0)
        done = self.count == 3
        return self.observe(), float(done), done, False, {"verdict": float(done), "answer": action}


def policy(batches, slow=0):
    def generate(prompts, seeds):
        batches.append(len(prompts))
        return [Completion([p[0], s % 7], [-0.1, -0.2], 4) for p, s in zip(prompts, seeds, strict=True)]

    return rollout.BatchedPolicy(generate)


def run(envs, tasks, faults, batches=None, lockstep=False):
    batched = policy(batches if batches is not None else [])
    batched.lockstep = lockstep

    async def once(env, task, attempt, index):
        return await rollout.play(env, task, batched, lambda i, steps, obs: [len(steps)], str, 1, attempt)

    return asyncio.run(rollout.play_all(envs, tasks, batched, once, faults))


def tasks(count):
    return [Task(f"t{i}", "shop", f"count {i}", 5) for i in range(count)]


@pytest.mark.parametrize("limit, played", [(25.0, 2), (15.0, 0)])
def test_an_episode_has_an_end_by_the_clock(monkeypatch, limit, played):
    """Its steps take ten seconds each; what is too long is a fault, played again, and no reward."""
    now, faults = [0.0], rollout.FaultLog()

    class Slow(Counter):
        async def step(self, action):
            now[0] += 10.0
            return await super().step(action)

    monkeypatch.setattr(rollout, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(rollout.LIMITS, "episode", limit)
    assert len(run([Slow()], tasks(2), faults)) == played
    assert (faults.faults, faults.dropped) == ((0, 0) if played else (6, 2))
    assert played or faults.last == "the episode is not over after 15 s (--episode-timeout) and 2 steps"


def test_every_task_is_played_once_in_order_and_prompts_are_batched():
    batches, faults = [], rollout.FaultLog()
    played = run([Counter() for _ in range(4)], tasks(10), faults, batches)
    assert [t.task.task_id for t in played] == [f"t{i}" for i in range(10)]
    assert all(len(t.steps) == 3 and t.verdict == 1.0 and t.ending == "exit" for t in played)
    assert max(batches) > 1 and sum(batches) == 30
    assert faults.episodes == 10 and faults.rate == 0.0


def test_an_episode_does_not_depend_on_how_many_share_its_batch():
    alone = run([Counter()], tasks(6), rollout.FaultLog())
    many = run([Counter() for _ in range(6)], tasks(6), rollout.FaultLog())
    for a, b in zip(alone, many, strict=True):
        assert [s.action_ids for s in a.steps] == [s.action_ids for s in b.steps]


def test_lockstep_makes_the_same_batches_every_time():
    first, second = [], []
    for batches in (first, second):
        run([Counter() for _ in range(3)], tasks(7), rollout.FaultLog(), batches, lockstep=True)
    assert first == second and first[0] == 3


def test_a_fault_is_played_again_and_never_a_reward():
    resets, faults = {}, rollout.FaultLog()
    plan = {("t1", 1): (2, EnvFault("lost")), ("t2", 1): (1, EnvFault("lost")), ("t2", 2): (1, EnvFault("lost"))}
    played = run([Counter(plan, resets) for _ in range(2)], tasks(4), faults)
    assert [t.task.task_id for t in played] == ["t0", "t1", "t2", "t3"]
    assert all(t.verdict == 1.0 for t in played)
    assert (resets["t1"], resets["t2"]) == (2, 3)
    assert (faults.faults, faults.dropped, faults.episodes) == (3, 0, 7)


def test_a_task_that_always_faults_is_dropped_and_counted():
    resets, faults = {}, rollout.FaultLog()
    plan = {("t1", n): (2, EnvFault("lost")) for n in range(1, 9)}
    played = run([Counter(plan, resets)], tasks(3), faults)
    assert [t.task.task_id for t in played] == ["t0", "t2"]
    assert (faults.dropped, resets["t1"]) == (1, rollout.MAX_ATTEMPTS)


def test_the_second_hang_after_the_same_actions_is_the_agents_failure():
    def greedy(prompts, seeds):
        return [Completion([p[0]], [-0.1], 4) for p in prompts]

    def sampled(prompts, seeds):  # the seed has the attempt in it
        return [Completion([p[0], s], [-0.1, -0.2], 4) for p, s in zip(prompts, seeds, strict=True)]

    plan = {("t1", 1): (2, EnvHang("hang")), ("t1", 2): (2, EnvHang("hang"))}
    for generate, config, verdict, log in (
        (greedy, {}, 0.0, (1, 1)),
        (greedy, None, None, (1, 1)),  # an instruction without a checker
        (sampled, {}, 1.0, (2, 0)),  # other actions on the way: two faults, and the third attempt counts
    ):
        batched, faults = rollout.BatchedPolicy(generate), rollout.FaultLog()

        async def once(env, task, attempt, index, batched=batched):
            return await rollout.play(env, task, batched, lambda i, steps, obs: [len(steps)], str, 1, attempt)

        tasks = [Task(f"t{i}", "shop", f"count {i}", 5, config=config) for i in range(2)]
        played = asyncio.run(rollout.play_all([Counter(plan, {})], tasks, batched, once, faults))
        assert [t.verdict for t in played] == [1.0, verdict]
        assert (faults.faults, faults.agent_hangs) == log and faults.dropped == 0
        assert len(played[1].steps) == (3 if verdict == 1.0 else 2)


def test_only_episodes_of_the_checkpoints_policy_are_taken_over(tmp_path):
    task = tasks(1)[0]
    store = TrajectoryStore(tmp_path / "unfinished.jsonl")
    for version in (1, 2):
        step = rollout.Step([1], [2], [-0.1], version, "page", "action")
        store.append([rollout.Trajectory(task, 300_000, 0, [step], policy="eval", phase=version)])
    player = rollout.Player.__new__(rollout.Player)
    player.run = SimpleNamespace(unfinished=store)
    for version, resumed, found in ((1, 1, [0]), (2, 1, []), (2, 2, [0]), (3, 3, [])):
        player.version, player.resumed = version, resumed  # version 2 of a run resumed at 1 is an update done again
        assert list(player._finished_before([task], 3, "eval")) == found
    assert not player._finished_before([task], 3, "test after") and not player._finished_before([task], 4, "eval")


def test_episodes_of_an_unknown_title_must_say_what_they_are_for():
    """Their kind decides what becomes of them; a title alone once led them nowhere."""
    player = rollout.Player.__new__(rollout.Player)
    with pytest.raises(ValueError, match="play.name='warm-up'.: what are these episodes for. kind= one of demo, start"):
        player.play(tasks(1), 1.0, 0, "warm-up")
    with pytest.raises(ValueError, match="kind="):
        player.play(tasks(1), 1.0, 0, "start-up", kind="warm-up")


def test_too_many_faults_stop_the_run():
    log = rollout.FaultLog()
    with pytest.raises(TooManyFaults, match="ended in faults"):
        for _ in range(100):
            log.record(EnvFault("the site answers 503"))
    log = rollout.FaultLog()
    for i in range(500):  # under a fifth: goes on
        log.record(EnvFault("lost") if i % 10 == 0 else None)
    assert log.rate == pytest.approx(0.1)
    state = json.loads(json.dumps(log.state()))
    crashed = rollout.FaultLog(window=160)
    for _ in range(2):  # Chromium dies twice under 16 episodes, at a run's start
        for fault in [None] * 10 + [EnvFault("closed")] * 16:
            crashed.record(fault)
    with pytest.raises(TooManyFaults, match="33 of the last 53 episodes"):
        crashed.record(EnvFault("closed"))
    log.record(EnvFault("later"))  # the state is a copy
    silent = rollout.FaultLog()
    silent.record(JudgeFault("the judge said nothing"))
    silent.record()
    worker = rollout.FaultLog()
    worker.record(JudgeFault("the judge is gone"))
    silent.add(worker)
    assert (silent.unanswered, silent.faults, silent.episodes) == (2, 2, 3)
    silence, answered = SimpleNamespace(trajectories=[]), SimpleNamespace(trajectories=[SimpleNamespace(judged=0.2)])
    rollout.check_end(silence, [silent])  # no judge pays
    with pytest.raises(TooManyFaults, match="the judge at http://j answered none of 2 questions; .*the judge"):
        rollout.check_end(silence, [silent, rollout.FaultLog()], "http://j")
    rollout.check_end(answered, [silent], "http://j")
    with pytest.raises(TooManyFaults, match="each of the 1 episodes ended in a fault; the last one: the judge is gone"):
        rollout.check_end(answered, [worker])
    rollout.check_end(silence, [rollout.FaultLog()], "http://j")
    hung = rollout.FaultLog(window=500)  # each twice: a fault, then the agent's own failure
    for _ in range(3):
        hung.record(EnvHang("no answer"))
        hung.agent_hangs += 1
        hung.record()
    with pytest.raises(TooManyFaults, match="each of the 6 episodes hung or ended in a fault; the last one: no answer"):
        rollout.check_end(silence, [hung])
    hung.record()
    rollout.check_end(silence, [hung])
    resumed = rollout.FaultLog(window=7)
    resumed.set_state(state)
    assert (resumed.episodes, resumed.faults, resumed.last, resumed.window) == (500, 50, "lost", 7)
    assert list(resumed.recent) == state["recent"]
    resumed.record()
    assert len(resumed.recent) == 7


def test_a_test_that_lost_all_of_its_tasks_is_no_success_of_0():
    faults = rollout.FaultLog(last="the site is gone")
    with pytest.raises(TooManyFaults, match="none of the 4 tasks of the 'test after' could be played; .*site is gone"):
        rollout.check_tested("test after", 4, [], faults)
    for name, count, played in (
        ("test after", 4, ["one"]),
        ("test before", 0, []),
        ("eval", 4, []),
        ("rollout", 4, []),
    ):
        rollout.check_tested(name, count, played, faults)


def test_a_player_that_tests_says_so():
    env = Counter({(name, attempt): (1, EnvFault("gone")) for name in "ab" for attempt in (1, 2, 3)})
    env.fork = lambda: env
    run = SimpleNamespace(timer=lambda part: nullcontext(), trajectories=SimpleNamespace(add_image=None))
    with asyncio.Runner() as runner:
        player = rollout.Player(env, None, None, lambda *given: [1], run, runner, 1, 1, lockstep=True)
        player.decode = lambda ids: "on"
        player.engine = None
        tasks = [Task(name, "site", "count", 3) for name in "ab"]
        generated = lambda *given: [Completion([1], [0.0], 0)]  # noqa: E731
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rollout.llm, "generate", generated)
            patch.setattr(rollout.llm, "is_tiny", lambda model: True)
            with pytest.raises(TooManyFaults, match="none of the 2 tasks of the 'test after' .*: gone"):
                player.play(tasks, 0.0, 1, "test after")
            assert player.play(tasks, 0.0, 1, "eval") != []  # played again, sound by now


def test_one_crash_of_the_browser_stops_no_run():
    env = SimpleNamespace(fork=lambda: None)
    player = rollout.Player(env, None, None, None, None, None, num_envs=64, max_new_tokens=1)
    for _ in range(300):
        player.faults.record()
    for _ in range(64):  # all that were played at that moment
        player.faults.record(EnvFault("Chromium is gone"))
    assert player.faults.rate == pytest.approx(64 / 364)
    state = json.loads(json.dumps(player.state()))
    player.set_state(state)
    assert player.state() == state and player.faults.window == 640


def test_first_pages_come_in_the_tasks_order_and_none_for_a_world_that_cannot_be_reached():
    class World(Counter):
        def fork(self):
            return World()

        async def reset(self, task, seed=0):
            if task.seed == 3:
                raise EnvFault("the site answers 503")
            await asyncio.sleep(0.001 * (10 - task.seed))  # the last one is there first
            obs, info = await super().reset(task, seed)
            return obs | {"text": f"world {task.seed}", "screenshot": b"large"}, info

    tasks = [Task(str(seed), "shop", "do it", max_steps=3, seed=seed) for seed in range(1, 6)]
    with asyncio.Runner() as runner:
        run = SimpleNamespace(timer=lambda name: nullcontext())
        player = rollout.Player(World(), None, None, None, run, runner, num_envs=3, max_new_tokens=1)
        pages = player.first_pages(tasks)
        assert player.first_pages([]) == []
    assert [page and page["text"] for page in pages] == ["world 1", "world 2", None, "world 4", "world 5"]
    assert pages[0] == {"text": "world 1", "error": "", "url": ""} and player.faults.dropped == 1


def test_an_error_of_the_model_reaches_the_caller():
    def broken(prompts, seeds):
        raise MemoryError("out of memory")

    batched = rollout.BatchedPolicy(broken)

    async def once(env, task, attempt, index):
        return await rollout.play(env, task, batched, lambda i, steps, obs: [1], str, 1, attempt)

    with pytest.raises(MemoryError):
        asyncio.run(rollout.play_all([Counter(), Counter()], tasks(4), batched, once, rollout.FaultLog()))


def test_prompts_are_made_of_the_actions_own_tokens():
    seen = []

    async def once(env, task, attempt, index):
        def prompt(instruction, steps, obs):
            seen.append([step.action_ids for step in steps])
            return [len(steps)]

        return await rollout.play(env, task, batched, prompt, str, 1, attempt)

    batched = policy([])
    random.seed(0)
    trajectory = asyncio.run(rollout.play_all([Counter()], tasks(1), batched, once, rollout.FaultLog()))[0]
    assert seen[2] == [s.action_ids for s in trajectory.steps[:2]]


@pytest.mark.parametrize("room, shown", [(9, [[], [0], [0, 1]]), (3, [[], [0], [1]]), (2, [[], [], []])])
def test_a_history_loses_its_oldest_steps_where_the_prompt_has_no_room(room, shown):
    """Two tokens of page, one of each step."""
    prompts, asked = [], policy([])

    def prompt(instruction, steps, obs, skip=0):
        return [7, 7, *range(skip, len(steps))]

    def short(*given):
        prompts.append(rollout.within(prompt, room)(*given))
        return prompts[-1]

    async def once(env, task, attempt, index):
        return await rollout.play(env, task, asked, short, str, 1, attempt)

    (played,) = asyncio.run(rollout.play_all([Counter()], tasks(1), asked, once, rollout.FaultLog()))
    assert [ids[2:] for ids in prompts] == shown and played.ending == "exit"


def test_a_page_without_room_is_a_failure_and_the_first_one_a_fault_that_comes_once():
    pages, asked, faults = {"count 0": 4, "count 1": 5}, policy([]), rollout.FaultLog()

    def prompt(instruction, steps, obs, skip=0):
        return [0] * pages[obs["text"]]

    async def once(env, task, attempt, index):
        return await rollout.play(env, task, asked, rollout.within(prompt, 4), str, 1, attempt)

    checked = [replace(task, config={}) for task in tasks(1)]
    (cut,) = asyncio.run(rollout.play_all([Counter()], checked, asked, once, faults))
    assert (len(cut.steps), cut.ending, cut.verdict, faults.faults) == (1, "overflow", 0.0, 0)
    pages["count 0"] = 5
    assert asyncio.run(rollout.play_all([Counter()], checked, asked, once, faults)) == []
    assert (faults.episodes, faults.faults, faults.dropped) == (2, 1, 1)
    assert faults.last == "the first page's prompt has 5 tokens, the model takes 4 beside an answer"


def test_an_interrupt_before_the_loop_begins_plays_nothing(monkeypatch, tmp_path):
    class Env(Counter):
        async def reset(self, task, seed=0):
            raise AssertionError("an episode was begun after Ctrl-C")

    with asyncio.Runner() as runner:
        player = rollout.Player(Env(), None, None, None, None, runner, 1, 8)
        waiting = rollout.play_all(
            player.envs,
            tasks(2),
            rollout.BatchedPolicy(None),
            player_once,
            player.faults,
            None,
            lambda: not player.interrupted,
        )
        loop = runner.get_loop()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "run_until_complete", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                player._wait(waiting)

        async def the_rest():  # the task that was left over runs now, and must find nothing to do
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

        runner.run(the_rest())
    assert player.faults.episodes == 0


async def player_once(env, task, attempt, index):
    return await rollout.play(env, task, None, None, str, 1, attempt)


def test_a_task_that_occurs_twice_is_played_in_two_ways():
    def seeds_of_a_run():
        made = []

        def generate(prompts, seeds):
            made.extend(seeds)
            return [Completion([p[0], s % 7], [-0.1, -0.2], 4) for p, s in zip(prompts, seeds, strict=True)]

        batched = rollout.BatchedPolicy(generate)

        async def once(env, task, attempt, index):
            return await rollout.play(env, task, batched, lambda i, steps, obs: [len(steps)], str, 5 + index, attempt)

        asyncio.run(rollout.play_all([Counter()], [tasks(1)[0]] * 2, batched, once, rollout.FaultLog()))
        return made

    first = seeds_of_a_run()
    assert len(set(first)) == len(first) and seeds_of_a_run() == first


def demonstrated(env, task):
    """The oracle's episode of a real environment, and what plays its actions from any step on."""
    from crps import read_action

    said = lambda text: [1], write, None, read_action
    demo = asyncio.run(rollout.demonstrate(env, task, lambda i, steps, obs: [len(steps)], *said))
    answers = [step.action for step in demo.steps]

    async def follow(prompt_ids, seed):
        return Completion([prompt_ids[0]], [-0.5], 7)  # the number of the step is its action

    return demo, follow, lambda ids: answers[ids[0]]


def write(action, thought, obs):
    return f"<think>{thought}</think><action>{action}</action>"


def test_an_episode_goes_on_from_another_one_s_middle():
    from crps import read_action
    from envs.webshop import WebShop

    env = WebShop(format="original")
    task = next(task for task in env.tasks("train") if task.steps == 7)
    demo, follow, decode = demonstrated(env, task)
    assert demo.verdict == 1.0 and len(demo.steps) == 7
    demo.steps[0].advantage = demo.steps[0].value = demo.steps[0].ref_logprob = 1.0
    for t0 in (0, 3, 6):
        start = demo, t0
        other = asyncio.run(
            rollout.play(
                env.fork(), task, follow, lambda i, steps, obs: [len(steps)], decode, 1, 0, None, read_action, start
            )
        )
        assert other.prefix == t0 and other.verdict == 1.0 and other.score == 1.0 and len(other.steps) == 7
        assert [s.hash for s in other.steps] == [s.hash for s in demo.steps]
        assert [list(s.prompt_ids) for s in other.steps] == [[i] for i in range(7)]  # the count goes on
        assert [s.version for s in other.steps] == [0] * t0 + [7] * (7 - t0)
        for step in other.steps:  # nothing of the earlier update
            assert step.advantage is None and step.value is None and step.ref_logprob is None
    assert demo.steps[0].advantage == 1.0
    short = replace(task, max_steps=5)  # the restored steps are among them
    cut = asyncio.run(
        rollout.play(
            env.fork(), short, follow, lambda i, steps, obs: [len(steps)], decode, 1, 0, None, read_action, (demo, 3)
        )
    )
    assert cut.ending == "truncated" and len(cut.steps) == 5 and cut.prefix == 3


def test_a_start_that_cannot_be_brought_back_is_dropped_and_counted():
    from crps import read_action
    from envs.webshop import WebShop

    env = WebShop(format="original")
    task = env.tasks("train")[3]
    demo, follow, decode = demonstrated(env, task)
    demo.steps[2].hash = "0" * 16
    faults, batched = rollout.FaultLog(), rollout.BatchedPolicy(None)

    async def once(env, task, attempt, index):
        start = demo, (2, 1)[index]
        return await rollout.play(
            env, task, follow, lambda i, s, o: [len(s)], decode, 1, attempt, None, read_action, start
        )

    played = asyncio.run(rollout.play_all([env], [task, task], batched, once, faults))
    assert [t.prefix for t in played] == [1] and faults.mismatches == 1
    assert faults.faults == 0 and faults.episodes == 1 and faults.dropped == 0


def test_demonstrations_of_what_nobody_solves_are_left_out():

    from envs.webshop import WebShop

    env = WebShop()
    task = env.tasks("train")[0]
    hopeless = replace(task, config=task.config | {"query": "nothing", "attributes": ["none"], "name": "nothing"})
    assert demonstrated(env, hopeless)[0].verdict is None
    assert demonstrated(env, replace(task, max_steps=2))[0].verdict is None  # out of steps before the end
