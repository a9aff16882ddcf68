"""Keeps Ray workers playing while the learner trains: a thread of its own, in which every slot of every worker begins
the next episode when the last one ends, and a worker that is lost gets a successor. And batches of the prompts that
wait at a moment."""

import asyncio
import contextlib
import json
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from common.errors import EnvFault, TooManyFaults
from common.lm.progress import Progress
from common.lm.rollout import FAULT_ROUNDS, FAULT_WINDOW, FaultLog
from common.replay import append_lines

RECENT = 256  # rollouts by which the trajectories of an hour are counted
DEATHS = 3  # so many workers of a place in a row that never answered stop the run


@dataclass
class Worker:
    """A Ray actor that plays. `version` is that of its own copy of the policy, where it has one: below 0 until the
    first weights have come (it may not have found a node yet), and nothing is played on it. `deaths` of its forerunners
    in a row that never `answered`."""

    actor: object
    version: int
    deaths: int = 0
    answered: bool = False


@dataclass
class TaskList:
    """Tasks that are played once each: evaluations, demonstrations. `call(actor, index)` begins one; `outcomes` has
    what came of it. `beside`: in turn with rollouts, else before them."""

    call: object
    todo: list
    count: int
    beside: bool = False
    rollout_next: bool = False
    outcomes: dict = field(default_factory=dict)

    def over(self):
        """Whether all have ended."""
        return len(self.outcomes) == self.count


class Players:
    """The workers, the thread, and the lock and the waiting between it and the learner's.

    An episode is a call of an actor that answers (what came of it, or None where its task was dropped; the FaultLog of
    the way there; seconds that it waited for the policy).

    slots: episodes that each worker plays at once; version: that of a new Worker. These run with `changed` held, which
    guards what they read and write:
      start_worker(number): the actor for a worker's place (the first ones are started here)
      next_rollout(actor): (the call, done(what), again()), or None while none may begin: `done` is told what came and
      returns what the timeline shows of it (None: nothing), `again` that the worker was gone before the episode's end
    These run in the thread as long as it plays:
      status(): a coroutine of a line that says how things stand, asked for once a second for a terminal,
      else once a minute
      beside: further coroutines, which end when they are cancelled
    """

    def __init__(self, start_worker, num_workers, slots, next_rollout, status, version=0, beside=()):
        self.changed, self.error, self.stopping = threading.Condition(), None, False
        self.start_worker, self.next_rollout, self.status, self.beside = start_worker, next_rollout, status, beside
        self.first_version = version
        self.workers = [Worker(start_worker(number), version) for number in range(num_workers)]
        self.slots = [number for number in range(num_workers) for _ in range(slots)]  # each one's worker
        self.faults = FaultLog(max(FAULT_WINDOW, FAULT_ROUNDS * len(self.slots)))
        self.playing, self.listed = 0, None
        self.ended, self.timeline = deque(maxlen=RECENT), []
        self.loop = self.wake = None  # the event: something may be there to do
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def start(self):
        self.thread.start()

    # --- in the thread that plays

    def _serve(self):
        try:
            asyncio.run(self._play())
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]
            while getattr(error, "cause", None) is not None:  # what happened in an actor, or in one that it asked
                error = error.cause
            with self.changed:
                self.error = error
                self.changed.notify_all()

    async def _play(self):
        self.wake, self.loop = asyncio.Event(), asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(task) for task in (self._show_status(), *self.beside)]
            await asyncio.wait([group.create_task(self._slot(number)) for number in self.slots])
            for task in others:
                task.cancel()

    async def _slot(self, number):
        """Play what is next, for ever."""
        from ray.exceptions import RayError, RayTaskError

        while (job := await self.until(partial(self._next, number))) is not None:
            worker, call, done, again = job
            self.playing, begun = self.playing + 1, time.time()
            try:
                end = partial(self._ended, number, worker, done, begun, *await call)
            except RayTaskError:  # an error of our own
                raise
            except RayError as error:  # the worker's end, or its node's
                end = partial(self.lost, number, worker, error, again)
            self.playing -= 1
            with self.changed:
                end()
                self.changed.notify_all()
            self.wake.set()

    def _next(self, number):
        """What a slot of a worker plays next: (the worker, the call, done(what), again()), or None."""
        worker, listed = self.workers[number], self.listed
        if worker.version < 0:
            return None
        if listed is not None and listed.beside:
            listed.rollout_next = not listed.rollout_next
            job = self.next_rollout(worker.actor) if listed.rollout_next else None
            if job is not None:
                return worker, *job
        if listed is not None and listed.todo:
            index = listed.todo.pop(0)
            done, again = partial(listed.outcomes.__setitem__, index), partial(listed.todo.insert, 0, index)
            return worker, listed.call(worker.actor, index), done, again
        job = self.next_rollout(worker.actor)
        return job and (worker, *job)

    def _ended(self, number, worker, done, begun, what, log, waited):
        worker.answered = True
        self.faults.add(log)
        row, now = done(what), time.time()
        if row is not None:
            self.ended.append(now)
            times = {"worker": number, "begun": begun, "ended": now, "model": round(waited, 4)}
            self.timeline.append(row | times)

    def lost(self, number, worker, error, again=lambda: None):
        """A worker is gone: another one takes its place, and what it played is played `again`. Raises TooManyFaults
        where it never answered, nor did the two before it."""
        import ray

        if self.stopping:
            return
        again()
        if self.workers[number] is not worker:  # another slot noticed before
            return
        self.faults.record(EnvFault(f"rollout worker {number} is gone"))
        deaths = 0 if worker.answered else worker.deaths + 1
        if deaths == DEATHS:
            raise TooManyFaults(f"rollout worker {number} cannot start: {str(error)[-600:]}")
        with contextlib.suppress(Exception):
            ray.kill(worker.actor)  # one that is only out of reach would play on beside the new one
        self.workers[number] = Worker(self.start_worker(number), self.first_version, deaths)
        self.changed.notify_all()
        self.wake.set()

    async def until(self, condition):
        """`condition()` once it is not None, asked again whenever something happened; None at the end."""
        while not self.stopping:
            with self.changed:
                value = None if self.stopping else condition()
                if value is not None:
                    return value
                self.wake.clear()
            if not self.stopping:
                await self.wake.wait()
        return None

    async def _show_status(self):
        """A line under the last one of the terminal; without one, a line a minute."""
        with Progress(None, "") as bar:
            while not self.stopping:
                await asyncio.sleep(bar.pause)
                bar.advance(note=await self.status())

    def per_hour(self):
        """Rollouts that ended in an hour, by the last ones."""
        seconds = time.time() - self.ended[0] if len(self.ended) > 1 else math.inf
        return 3600 * (len(self.ended) - 1) / seconds

    # --- what the learner asks for

    def wait(self, condition):
        """`condition()` once it is not None. Raises what ended the thread that plays."""
        self.notify()
        with self.changed:
            while True:
                if self.error is not None:
                    raise self.error
                value = condition()
                if value is not None:
                    return value
                self.changed.wait()

    def notify(self):
        """Something may be there to do."""
        with contextlib.suppress(RuntimeError):  # the thread has ended
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self.wake.set)

    def begin_each(self, call, count, beside=False):
        """`call(actor, index)` for 0 to count - 1 comes before any rollout that has not begun, or in turn with them:
        the TaskList."""
        with self.changed:
            self.listed = TaskList(call, list(range(count)), count, beside)
        self.notify()
        return self.listed

    def finish_each(self, listed):
        """What came of each of its calls, once all have ended; None for what was dropped."""
        self.wait(lambda: True if listed.over() else None)
        with self.changed:
            self.listed = None
        self.notify()
        return [listed.outcomes[index] for index in range(listed.count)]

    def play_each(self, call, count):
        """Both: what came of `call(actor, index)` for 0 to count - 1."""
        return self.finish_each(self.begin_each(call, count))

    def metrics(self):
        """Faults and how fast rollouts come, so far."""
        with self.changed:
            return {
                "rollout/fault_rate": self.faults.rate,
                "rollout/faults": self.faults.faults,
                "rollout/dropped": self.faults.dropped,
                "rollout/unanswered": self.faults.unanswered,
                "rollout/agent_hangs": self.faults.agent_hangs,
                "perf/trajectories_per_hour": self.per_hour(),
            }

    def write_timeline(self, run, *rows):
        """When rollouts began and ended, in seconds since 1970, and `rows`, as lines of the run's timeline.jsonl."""
        with self.changed:
            rows, self.timeline = [*self.timeline, *rows], []
        append_lines(run.path / "timeline.jsonl", [json.dumps(row) for row in rows])

    def close(self):
        """The workers' end, and Ray's. Nothing begins any more: what is begun after Ray's end would start another
        Ray."""
        import ray

        with self.changed:
            self.stopping = True
        self.notify()
        with contextlib.suppress(Exception):
            ray.get([worker.actor.close.remote() for worker in self.workers], timeout=20)
        ray.shutdown()


class Batcher:
    """Turns single prompts into batches: those that wait at a moment (at one temperature) are the next one.

    `sample(prompts, seeds, temperature)` is a coroutine of as many answers. It runs with `lock` held, which whoever
    swaps the weights holds, too.
    """

    def __init__(self, sample):
        self.sample, self.lock = sample, asyncio.Lock()
        self.waiting, self.running = [], None

    async def __call__(self, prompt, seed, temperature):
        """The answer to a prompt."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((prompt, seed, temperature, future))
        if self.running is None:
            self.running = asyncio.create_task(self._run())
        return await future

    async def _run(self):
        while self.waiting:
            async with self.lock:
                temperature = self.waiting[0][2]
                batch = [entry for entry in self.waiting if entry[2] == temperature]
                self.waiting = [entry for entry in self.waiting if entry[2] != temperature]
                prompts, seeds, _, futures = zip(*batch, strict=True)
                try:
                    answers = await self.sample(prompts, seeds, temperature)
                except Exception as error:  # to whoever asked
                    answers = [error] * len(batch)
                for future, answer in zip(futures, answers, strict=True):
                    if future.done():  # nobody waits any more
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        self.running = None
