"""Keeps Ray workers playing while the learner trains: a thread of its own, in which every slot of every worker begins
the next episode when the last one ends. And batches of the prompts that wait at a moment."""

import asyncio
import contextlib
import threading
import time
from functools import partial


class Players:
    """The thread, and the lock and the waiting between it and the learner's.

    slots: the worker's number of each slot, one for each episode that is played at once. All of these run with
    `changed` held, which guards what they read and write:
      next_job(number): (what is awaited, done(outcome, number, begun), again(), the worker), or None while nothing may
      begin; `done` is told what came, `begun` are seconds since 1970
      lost(number, worker, again, error): the worker was gone before the episode's end
    These run in the thread as long as it plays:
      status(): a coroutine of a line that says how things stand, for a terminal, asked for once a second
      beside: further coroutines, which end when they are cancelled
    """

    def __init__(self, slots, next_job, lost, status, beside=()):
        self.changed, self.error, self.stopping = threading.Condition(), None, False
        self.slots, self.next_job, self.lost, self.status, self.beside = slots, next_job, lost, status, beside
        self.playing = 0
        self.loop = self.wake = None  # the event: something may be there to do
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def start(self):
        self.thread.start()

    def _serve(self):
        try:
            asyncio.run(self._play())
        except BaseExceptionGroup as errors:
            with self.changed:
                self.error = getattr(errors.exceptions[0], "cause", errors.exceptions[0])  # what happened in an actor
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

        while (job := await self.until(partial(self.next_job, number))) is not None:
            call, done, again, worker = job
            self.playing, begun = self.playing + 1, time.time()
            try:
                done = partial(done, await call, number, begun)
            except RayTaskError:  # an error of our own
                raise
            except RayError as error:  # the worker's end, or its node's
                done = partial(self.lost, number, worker, again, error)
            self.playing -= 1
            with self.changed:
                done()
                self.changed.notify_all()
            self.wake.set()

    async def until(self, condition):
        """In the thread: `condition()` once it is not None, asked again whenever something happened; None at the
        end."""
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
        """A line under the last one of the terminal; none where nobody watches."""
        from tqdm import tqdm

        bar = tqdm(total=1, bar_format="{desc}", leave=False, disable=None)
        while not self.stopping and not bar.disable:
            bar.set_description_str(await self.status())
            await asyncio.sleep(1.0)
        bar.close()

    def wait(self, condition):
        """In the learner's thread: `condition()` once it is not None. Raises what ended the thread that plays."""
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

    def stop(self):
        """Nothing begins any more: what is begun after Ray's end would start another Ray."""
        with self.changed:
            self.stopping = True
        self.notify()


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
