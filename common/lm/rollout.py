"""Play episodes: many at once, their model calls batched, faults kept apart from rewards.

Every episode is a coroutine on its own environment. It awaits the policy, and the prompts waiting at that moment become
one `generate` call in a worker thread: no episode waits for the slowest page.
"""

import asyncio
import inspect
import shutil
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial

from common.errors import Blocked, EnvFault, EnvHang, JudgeFault, StateMismatch, TooManyFaults
from common.lm import fsdp, learn, llm, parallel
from common.lm.engine import EnginePolicy
from common.lm.progress import Progress
from common.lm.serve import LIMITS
from common.replay import KINDS, Prefix, Step, Trajectory, kind_of

MAX_ATTEMPTS = 3  # plays of one episode before its task is dropped
BATCH_SHARE = 0.5  # of the active episodes must wait for the policy before a batch begins
FAULT_WINDOW, FAULT_LIMIT = 100, 0.2  # more than this share of the window in faults stops the run
FAULT_ROUNDS = 10  # the window holds at least so many times the slots: one crash of Chromium is a fault in each of them
LOGPROB_GAP = 0.05  # per token, between sampling and our own forward pass: above it a warning


@dataclass
class FaultLog:
    """Faults over a run. `rate` is over the last `window` episodes played (where a judge was lost, and judged); `last`
    is the last one's message, `unanswered` how many are a judge's."""

    window: int = FAULT_WINDOW
    episodes: int = 0
    faults: int = 0
    dropped: int = 0
    agent_hangs: int = 0
    mismatches: int = 0
    unanswered: int = 0
    last: str = ""
    recent: deque = field(default_factory=deque)

    @property
    def rate(self):
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    def state(self):
        """What a checkpoint holds of it, fit for JSON."""
        return vars(self) | {"recent": list(self.recent)}

    def set_state(self, state):
        """The inverse of `state`, but for the window, which is that of the run now."""
        vars(self).update(state | {"recent": deque(state["recent"]), "window": self.window})

    def record(self, fault=None):
        """Count one played episode; `fault` is the exception that ended it, if one did.

        Raises TooManyFaults past the limit.
        """
        self.episodes += 1
        self.unanswered += isinstance(fault, JudgeFault)
        self.recent.append(fault is not None)
        while len(self.recent) > self.window:
            self.recent.popleft()
        if fault is None:
            return
        self.faults += 1
        self.last = str(fault)
        if sum(self.recent) > FAULT_LIMIT * self.window:  # of a whole window, also at a run's start
            raise TooManyFaults(
                f"{sum(self.recent)} of the last {len(self.recent)} episodes ended in faults; the last one: {fault}"
            )

    def add(self, log):
        """Count what another log has: a worker's, of one task's episodes. Raises TooManyFaults as `record` does."""
        self.dropped += log.dropped
        self.agent_hangs += log.agent_hangs
        self.unanswered += log.unanswered
        for fault in log.recent:
            self.record(EnvFault(log.last) if fault else None)


def check_end(run, logs, judge=""):
    """At a run's end, with its processes' FaultLogs: raises TooManyFaults where nothing of it counts, because every
    episode was a fault or hung, or the judge that pays, at the URL `judge`, answered nothing that it was asked."""
    counts = "episodes", "faults", "agent_hangs", "unanswered"
    episodes, faults, hangs, unanswered = (sum(getattr(log, name) for log in logs) for name in counts)
    last = next((log.last for log in logs if log.last), "")
    if episodes and faults == episodes:
        raise TooManyFaults(f"each of the {faults} episodes ended in a fault; the last one: {last}")
    if episodes and faults + hangs == episodes:
        raise TooManyFaults(f"each of the {episodes} episodes hung or ended in a fault; the last one: {last}")
    if judge.startswith("http") and unanswered and all(t.judged is None for t in run.trajectories):
        raise TooManyFaults(f"the judge at {judge} answered none of {unanswered} questions; the last fault: {last}")


def check_tested(name, count, played, faults):
    """Raises TooManyFaults where faults dropped all of a test's `count` tasks: that is no success of 0."""
    if name.startswith("test") and count and not played:
        raise TooManyFaults(f"none of the {count} tasks of the {name!r} could be played; the last fault: {faults.last}")


class BatchedPolicy:
    """Turns single prompts into batches.

    `generate(prompts, seeds) -> list[Completion]` runs in a worker thread, one call at a time. A batch waits for half
    of the active episodes (`enter` and `leave` count them): smaller ones cost twice the time an action. With
    `lockstep` it waits for all, in the order of their seeds, so that the same run makes the same batches.
    """

    def __init__(self, generate, lockstep=False):
        self.generate = generate
        self.lockstep = lockstep
        self.active = 0
        self.waiting = []
        self.running = None
        self.tokens = 0

    def enter(self):
        self.active += 1

    def leave(self):
        self.active -= 1
        self._start()

    async def __call__(self, prompt_ids, seed):
        """One prompt's Completion."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((seed, prompt_ids, future))
        self._start()
        return await future

    def _start(self):
        self.waiting = [w for w in self.waiting if not w[2].done()]  # after Ctrl-C nobody waits for these
        ready = self.waiting and len(self.waiting) >= self.active * (1.0 if self.lockstep else BATCH_SHARE)
        if ready and self.running is None:
            self.running = asyncio.create_task(self._run())

    async def _run(self):
        batch, self.waiting = sorted(self.waiting, key=lambda w: w[0]) if self.lockstep else self.waiting, []
        try:
            completions = await asyncio.to_thread(self.generate, [p for _, p, _ in batch], [s for s, _, _ in batch])
        except BaseException as error:
            for _, _, future in batch:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
        else:
            self.tokens += sum(len(c.ids) for c in completions)
            for (_, _, future), completion in zip(batch, completions, strict=True):
                if not future.done():
                    future.set_result(completion)
        finally:
            self.running = None
            self._start()


def within(prompt, room):
    """`prompt` for `play`, in at most `room` tokens: where it has more, the history loses its oldest steps, one by one
    (the page, which is now, stays). `prompt(instruction, steps, obs, skip=0)` leaves the first `skip` steps out of what
    it shows. None where the page without a history has more; Blocked where that is an episode's first page."""

    def shortened(instruction, steps, obs):
        for skip in range(len(steps) + 1):
            prompt_ids = prompt(instruction, steps, obs, skip) if skip else prompt(instruction, steps, obs)
            if len(prompt_ids) <= room:
                return prompt_ids
        if steps:
            return None
        raise Blocked(f"the first page's prompt has {len(prompt_ids)} tokens, the model takes {room} beside an answer")

    return shortened


async def play(
    env, task, policy, prompt, decode, seed, attempt=0, store_image=None, read_action=str, start=None, succeeded=None
):
    """One episode; a Trajectory without judgement.

    `prompt(instruction, steps, obs) -> token ids` builds the prompt from the steps so far and the observation (None: it
    leaves no room, and the episode ends as an "overflow"); `decode(ids) -> text` gives the answer, `read_action(text)`
    the environment's action in it. `store_image(bytes) -> name` keeps a screenshot. With `start`, (trajectory, t0), the
    episode goes on from that trajectory's state before its step t0: its first t0 steps are this one's `prefix`.
    `succeeded(trajectory)` is asked after every step that does not end the episode, and after the last one there may
    be: where it holds, the episode ends as if by the agent.
    Raises EnvFault; an EnvHang carries the actions that led to it as `actions`. Raises StateMismatch where `start`
    cannot be brought back.
    """
    trajectory, begun = Trajectory(task=task, seed=seed, attempt=attempt), time.monotonic()
    if start is None:
        obs, info = await env.reset(task, seed=seed)
    else:
        source, trajectory.prefix = start
        learned = {"value": None, "advantage": None, "ref_logprob": None}  # the learner's, of the earlier trajectory
        trajectory.steps = [replace(step, **learned, trajectory=None) for step in source.steps[: trajectory.prefix]]
        actions = tuple(read_action(step.action) for step in trajectory.steps)
        hashes = tuple(step.hash for step in source.steps[: trajectory.prefix + 1])
        obs, info = await env.restore(Prefix(task, actions, hashes))
    for number in range(trajectory.prefix, task.max_steps):
        if time.monotonic() - begun > LIMITS.episode:  # between steps, each of which has an end of its own
            raise EnvFault(f"the episode is not over after {LIMITS.episode:g} s (--episode-timeout) and {number} steps")
        prompt_ids = prompt(task.instruction, trajectory.steps, obs)
        if prompt_ids is None:
            trajectory.ending = "overflow"
            trajectory.verdict = 0.0 if task.config is not None or getattr(env, "scores_all", False) else None
            break
        completion = await policy(prompt_ids, llm.seed_of(seed, task.task_id, attempt, number))
        action = decode(completion.ids)
        step = Step(prompt_ids, completion.ids, completion.logprobs, completion.version, obs["text"], action)
        step.url, step.hash = obs["url"], info.get("hash", "")
        if store_image is not None and obs.get("screenshot"):
            step.screenshot = store_image(obs["screenshot"])
        trajectory.steps.append(step)
        try:
            obs, reward, terminated, truncated, info = await env.step(read_action(action))
        except EnvHang as hang:
            hang.actions = [s.action for s in trajectory.steps]
            hang.trajectory = trajectory
            raise
        step.reward, step.error, step.touches = reward, obs["error"], info.get("touches", [])
        trajectory.final_observation = obs["text"]
        if not terminated and succeeded is not None and await succeeded(trajectory):
            trajectory.ending = "exit"
            break
        if terminated or truncated:
            trajectory.ending = "exit" if terminated else "truncated"
            trajectory.answer = info.get("answer", "")
            trajectory.verdict, trajectory.score = info.get("verdict"), info.get("score")
            break
    return trajectory


async def passes(env, trajectory):
    """For `play`: whether the environment's own check holds as things stand, no answer given; noted as the verdict. An
    environment without a `verdict` ends a successful episode itself."""
    if trajectory.task.config is None or not hasattr(env, "verdict"):
        return False
    verdict = env.verdict("")
    trajectory.verdict = await verdict if inspect.isawaitable(verdict) else verdict
    return bool(trajectory.verdict)


async def play_until_sound(env, task, index, play_once, faults):
    """`play_once(env, task, attempt, index)` until it ends without a fault: a Trajectory; None for a dropped task, or
    one whose start could not be brought back.

    The second hang after the same actions is the agent's own failure, not a fault.
    """
    hung = None
    for attempt in range(MAX_ATTEMPTS):
        try:
            trajectory = await play_once(env, task, attempt, index)
        except EnvHang as hang:
            if hung is not None and hung == getattr(hang, "actions", None):
                faults.agent_hangs += 1
                faults.record()
                hang.trajectory.verdict = 0.0 if task.config is not None else None
                hang.trajectory.ending = "truncated"
                return hang.trajectory
            hung = getattr(hang, "actions", None)
            faults.record(hang)
        except StateMismatch:  # it would be the same again
            faults.mismatches += 1
            return None
        except EnvFault as fault:
            faults.record(fault)
            if isinstance(fault, Blocked):
                break
        else:
            faults.record()
            return trajectory
    faults.dropped += 1
    return None


class Slots:
    """An environment and its forks, `count` in all: what a worker on Ray plays on, an episode each at a time."""

    def __init__(self, env, count):
        self.envs, self.free, self.rests = [env, *(env.fork() for _ in range(count - 1))], asyncio.Queue(), {}
        for slot in self.envs:
            self.free.put_nowait(slot)

    async def play(self, task, play_once):
        """`play_until_sound` on the next free one: (a Trajectory or None, the FaultLog of the way there)."""
        env, log = await self.free.get(), FaultLog(window=10**9)
        try:
            return await play_until_sound(env, task, 0, play_once, log), log
        finally:
            # one that failed at a task three times rests before the next one, longer and longer
            rest = self.rests[env] = min(300.0, max(5.0, 2 * self.rests.get(env, 0.0))) if log.dropped else 0.0
            asyncio.get_running_loop().call_later(rest, self.free.put_nowait, env)

    async def close(self):
        await asyncio.gather(*(env.close() for env in self.envs[1:]))
        await self.envs[0].close()  # and what all share


async def play_all(envs, tasks, policy, play_once, faults, on_done=None, going=lambda: True):
    """Play `tasks`, one environment each at a time; the trajectories that ended without a fault, in the tasks' order.

    `play_once(env, task, attempt, index) -> Trajectory`, `index` being the place in `tasks`;
    `on_done(index, trajectory or None)` reports progress; no episode is begun once `going()` is false.
    """
    queue = deque(enumerate(tasks))
    results = [None] * len(tasks)

    async def worker(env):
        while queue and going():
            index, task = queue.popleft()
            results[index] = await play_until_sound(env, task, index, play_once, faults)
            if on_done is not None:
                on_done(index, results[index])

    async def counted(env):
        try:
            await worker(env)
        finally:
            policy.leave()

    used = envs[: max(1, min(len(envs), len(tasks)))]
    for _ in used:
        policy.enter()
    try:
        async with asyncio.TaskGroup() as group:
            for env in used:
                group.create_task(counted(env))
    except BaseExceptionGroup as errors:  # the first one ended the others
        raise errors.exceptions[0] from None
    return [trajectory for trajectory in results if trajectory is not None]


async def demonstrate(env, task, prompt, encode, write_action, store_image=None, read_action=str):
    """The oracle's episode on `task` as a Trajectory: a demonstration. `write_action(action, thought, obs)` is what an
    agent would answer (LookupError: it has no words for that), `encode(answer) -> token ids`, stop token included;
    `store_image` and `read_action` as of `play`: what is done is what the answer says. Log-probs are empty: no policy
    sampled it."""
    try:
        moves = iter(env.oracle(task))
    except LookupError:  # a task that nobody solves
        return Trajectory(task, 0, 0, policy="oracle")
    answer = ""

    def ask(instruction, steps, obs):
        nonlocal answer
        try:
            move = next(moves)
            answer = write_action(env.resolve(move, obs), getattr(move, "thought", ""), obs)
        except (StopIteration, LookupError):
            return None
        return prompt(instruction, steps, obs)

    async def policy(prompt_ids, seed):
        return llm.Completion(encode(answer), [], 0)

    trajectory = await play(env, task, policy, ask, lambda ids: answer, 0, 0, store_image, read_action)
    trajectory.policy, trajectory.kind = "oracle", "demo"
    trajectory.verdict = trajectory.verdict if trajectory.ending == "exit" else None  # its own end, and no other
    trajectory.reward = trajectory.verdict or 0.0
    return trajectory


def logprob_gap(actions):
    """How far actions' log-probs at sampling are from our own forward pass by the same weights, per token, in the mean:
    a metric; none without actions. `actions`: (its log-prob at sampling, ours, its tokens) each."""
    gaps = [abs(sampled - own) / count for sampled, own, count in actions]
    return {"rollout/logprob_gap": sum(gaps) / len(gaps)} if gaps else {}


def warn_of_gap(run, metrics):
    """Say so where an engine samples from something else than the model."""
    if metrics.get("rollout/logprob_gap", 0.0) > LOGPROB_GAP:
        run.say(f"warning: sampling log-probs are {metrics['rollout/logprob_gap']:.3f} a token from the model's own")


class Player:
    """Plays tasks with a model on `num_envs` slots of an environment; what it needs of a script is the prompt.

    `prompt(instruction, steps, obs) -> token ids`; `read_action(answer)` is the environment's action in what the model
    answers, `write_action(action, thought, obs)` the answer that a demonstration gives. `model` is read at every call,
    so training it in place is enough. `version` is written into every step; the caller counts it up when it changes the
    model.
    """

    def __init__(
        self,
        env,
        model,
        reader,
        prompt,
        run,
        runner,
        num_envs,
        max_new_tokens,
        lockstep=False,
        engine=None,
        read_action=str,
        write_action=lambda action, thought, obs: action,
        judge_states=False,
        save=None,
    ):
        self.envs = [env] + [env.fork() for _ in range(num_envs - 1)]
        self.model, self.reader, self.prompt = model, reader, prompt
        self.tokenizer = llm.tokenizer_of(reader)
        self.read_action, self.write_action = read_action, write_action
        self.run, self.runner, self.max_new_tokens, self.lockstep = run, runner, max_new_tokens, lockstep
        self.engine = engine  # an Engine that samples in the model's stead, or None
        self.save = save  # the script's: a checkpoint
        self.judge_states = judge_states  # whether an episode ends where the environment's check holds (`passes`)
        self.faults = FaultLog(max(FAULT_WINDOW, FAULT_ROUNDS * num_envs))
        self.version = self.resumed = 0  # now; of the checkpoint that the run went on from
        self.steps = 0  # environment steps that the caller counts as training
        self.tokens = 0  # generated so far
        self.interrupted = False

    def play(self, tasks, temperature, seed, name, phase=0, starts=None, kind=""):
        """One trajectory a task at this temperature (0: greedy); those that ended without a fault, in tasks' order.
        `starts` has for each task where it goes on from, (trajectory, t0), or None: from its beginning. `name` is the
        episodes' title, `kind` what they are for, one of replay.KINDS: known of the titles that the scripts use, else
        it must be given (ValueError).

        What the run had finished of them before it was stopped is taken from its folder, except in lockstep, where
        every batch must be as it would have been.
        """
        kind = kind or kind_of(name)
        if kind not in KINDS:
            raise ValueError(f"play(name={name!r}): what are these episodes for? kind= one of {', '.join(KINDS)}")

        def answer(asked):
            prompts, seeds = zip(*asked, strict=True)
            settings = temperature, self.max_new_tokens, self.version
            return llm.generate(self.model, self.reader, prompts, seeds, *settings)

        def generate(prompts, seeds):
            asked = list(zip(prompts, seeds, strict=True))
            with self.run.timer("generation"):
                # of a tiny model most of the time is Python's, which does one thing at a time
                return answer(asked) if llm.is_tiny(self.model) else learn.in_parts(answer, asked)

        async def play_once(env, task, attempt, place):
            images = self.run.trajectories.add_image
            own = seed * 100_000 + place  # a task that occurs twice is played in two ways
            start = starts[place] if starts else None
            succeeded = partial(passes, env) if self.judge_states else None
            return await play(
                env, task, policy, self.prompt, self.decode, own, attempt, images, self.read_action, start, succeeded
            )

        if self.engine is None:
            policy = BatchedPolicy(generate, self.lockstep)
        else:
            policy = EnginePolicy(self.engine, temperature, self.max_new_tokens, self.version, self.run.timer)
        finished = {} if self.lockstep else self._finished_before(tasks, seed, name)
        finished = dict(parallel.gather(list(finished.items())))  # each process has a file of its own
        won = []

        def done(place, trajectory):
            if trajectory is not None:
                won.append(trajectory.verdict or 0.0)
                trajectory.phase, trajectory.policy, trajectory.place = phase, name, place
                trajectory.kind = kind
                if not self.lockstep:
                    self.run.unfinished.append([trajectory])
            return f"success {sum(won) / max(1, len(won)):.2f}, faults {self.faults.faults}"

        finished |= self._play_each(tasks, play_once, name, policy, done, without=finished)
        self.tokens += sum(parallel.gather([policy.tokens]))
        check_tested(kind, len(tasks), finished, self.faults)
        return [finished[index] for index in sorted(finished)]

    def _play_each(self, tasks, play_once, title, policy=None, done=lambda place, what: "", without=()):
        """`play_once(env, task, attempt, place)` of the tasks, but for those `without` at their places, by all
        processes: what came of them, by place, where no fault did. `done(place, what)` gives the bar's note."""
        places, found = parallel.share([place for place in range(len(tasks)) if place not in without]), {}

        async def once(env, task, attempt, index):
            return await play_once(env, task, attempt, places[index])

        def on_done(index, what):
            if what is not None:
                found[places[index]] = what
            bar.advance(note=done(places[index], what))

        with self.run.timer("pages"), Progress(len(places), title, "episode") as bar:
            todo, policy = [tasks[place] for place in places], policy or BatchedPolicy(None)
            self._wait(play_all(self.envs, todo, policy, once, self.faults, on_done, lambda: not self.interrupted))
        return dict(parallel.gather(list(found.items())))

    def _finished_before(self, tasks, seed, name):
        """Episodes of this very call that the run had finished before it was stopped, by their places in `tasks`: those
        of the checkpoint's policy. What a later one played is of weights that are gone."""
        if self.version != self.resumed:
            return {}
        places = {(seed * 100_000 + index, task.task_id): index for index, task in enumerate(tasks)}
        finished = {}
        for trajectory in self.run.unfinished:
            index = places.get((trajectory.seed, trajectory.task.task_id))
            same_policy = trajectory.policy == name and trajectory.steps[-1].version == self.version == self.resumed
            if index is not None and same_policy and trajectory.task == tasks[index]:
                finished[index] = trajectory
        return finished

    def first_pages(self, tasks):
        """What the observation that each task begins with says; None where a fault kept it from being seen."""

        async def look(env, task, attempt, place):
            obs, _ = await env.reset(task)
            return {part: obs[part] for part in ("text", "error", "url")}

        pages = self._play_each(tasks, look, "first pages")
        return [pages.get(place) for place in range(len(tasks))]

    def state(self):
        """What a checkpoint holds of it, fit for JSON."""
        faults = self.faults.state()
        return {"version": self.version, "steps": self.steps, "tokens": self.tokens, "faults": faults}

    def set_state(self, state):
        """The inverse of `state`."""
        self.version, self.steps, self.tokens = state["version"], state["steps"], state["tokens"]
        self.resumed = self.version
        # those of all processes are added up
        counts = "episodes", "faults", "dropped", "agent_hangs", "mismatches", "unanswered"
        self.faults.set_state(state["faults"] | ({} if parallel.is_main() else dict.fromkeys(counts, 0)))

    def publish(self, model, metrics=None):
        """Sample from the model as it is now: its adapters are handed to the engine, where there is one; of a sharded
        model a whole copy plays. Raises EnvFault or TooManyFaults where the engine is lost: then what was learnt is
        saved before, and its `metrics` logged (None: nothing was)."""
        if parallel.sharded():
            self.model = fsdp.whole_copy(model, None if self.model is model else self.model, half=True)
        if self.engine is None:
            return
        folder, lost = self.run.path / "adapters" / f"{self.run.name}-{self.version}", None
        if parallel.is_main():
            model.save_pretrained(folder)
            try:
                self.engine.load_adapter(folder, folder.name)
            except (EnvFault, TooManyFaults) as fault:  # the others must know
                lost = fault
            for old in set(folder.parent.iterdir()) - {folder}:
                shutil.rmtree(old)
        lost = parallel.broadcast(lost)
        if lost is not None:
            if metrics is not None:
                self.run.log(metrics, self.steps)
                self.save(self)
                self.run.say(f"checkpoint {self.run.latest().path}; go on with --resume {self.run.path}")
            raise lost
        self.engine.model = parallel.broadcast(folder.name)

    def check_logprobs(self, steps):
        """`logprob_gap` of steps whose `ref_logprob` is that of the weights which sampled them, with a warning."""
        steps = [step for step in steps if step.logprobs]  # demonstrations have none
        found = logprob_gap([(sum(step.logprobs), step.ref_logprob, len(step.logprobs)) for step in steps])
        warn_of_gap(self.run, found)
        return found

    def metrics(self):
        """Faults and generated tokens so far, by metric name."""
        return {
            "rollout/fault_rate": self.faults.rate,
            "rollout/faults": sum(parallel.gather([self.faults.faults])),
            "rollout/dropped": sum(parallel.gather([self.faults.dropped])),
            "rollout/unanswered": sum(parallel.gather([self.faults.unanswered])),
            "rollout/agent_hangs": sum(parallel.gather([self.faults.agent_hangs])),
            "rollout/restore_mismatches": sum(parallel.gather([self.faults.mismatches])),
            "perf/tokens_generated": self.tokens,
        }

    def _wait(self, coroutine):
        try:
            return self.runner.run(coroutine)
        except BaseException:
            # Ctrl-C can come before the loop has begun the task; it would begin, with a new browser, on the next run.
            self.interrupted = True
            if all(task.get_coro() is not coroutine for task in asyncio.all_tasks(self.runner.get_loop())):
                coroutine.close()  # no task was made of it
            raise

    def demonstrate(self, tasks):
        """The environment's oracle on `tasks`: the trajectories that its true verdict calls successes."""

        async def play_once(env, task, attempt, place):
            write, read = self.write_action, self.read_action
            return await demonstrate(env, task, self.prompt, self.encode_action, write, read_action=read)

        finished = self._play_each(tasks, play_once, "demonstrations")
        return [finished[place] for place in sorted(finished) if finished[place].verdict]

    def decode(self, ids):
        """An action's token ids as text, without stop tokens."""
        stops = llm.stop_ids(self.model, self.tokenizer)
        return self.tokenizer.decode([i for i in ids if i not in stops])

    def encode_action(self, text):
        """An action's text as token ids with the stop token: what a policy would have sampled."""
        text = llm.without_special_tokens(self.tokenizer, text)
        return self.tokenizer.encode(text, add_special_tokens=False) + [llm.end_of_turn(self.tokenizer)]
