"""An environment as a synchronous `gymnasium.Env` (`envs.gym_env`), in scripts and where an event loop is already
running, such as a notebook: the environment's own loop runs in a thread of its own."""

import asyncio
import atexit
import contextlib
import string
import threading
from typing import Any

import gymnasium
from gymnasium.spaces import Dict, Text

import envs

CHARACTERS = string.printable
TEXTS = "goal", "text", "url", "title", "error"
LAST_SECONDS = 30  # for an environment that nobody closed, at the interpreter's end


class SynchronousEnv(gymnasium.Env):
    """`env`, whose tasks are those of `split`.

    Observations are dicts of text (TEXTS) in ASCII, "?" for any other character, because a gymnasium.spaces.Text lists
    its characters. `info["obs"]` is the environment's own observation, whole: Unicode, screenshot, boxes, actions.
    """

    metadata = {"render_modes": []}
    observation_space = Dict({name: Text(1_000_000, min_length=0, charset=CHARACTERS) for name in TEXTS})
    action_space = Text(4096, min_length=0, charset=CHARACTERS)

    def __init__(self, env: "envs.Environment", split: str = "train"):
        self.env, self.split = env, split
        started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._live(started),), daemon=True)
        self._thread.start()
        started.wait()
        atexit.register(self._close_at_exit)

    async def _live(self, started):
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._ended.wait()

    def _run(self, coroutine, seconds=None):
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        finally:
            future.cancel()  # Ctrl-C reaches this thread alone

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[envs.Obs, envs.Info]:
        """Begin a task drawn from the split by `seed`, or `options={"task": task}`: (obs, info)."""
        super().reset(seed=seed)
        tasks = self.env.tasks(self.split)
        task = (options or {}).get("task") or tasks[int(self.np_random.integers(len(tasks)))]
        obs, info = self._run(self.env.reset(task, seed=seed or 0))
        return _plain(obs), info | {"obs": obs}

    def step(self, action: str) -> tuple[envs.Obs, float, bool, bool, envs.Info]:
        """Do the action: Gymnasium's five."""
        obs, reward, terminated, truncated, info = self._run(self.env.step(action))
        return _plain(obs), float(reward), terminated, truncated, info | {"obs": obs}

    def close(self, seconds: float | None = None) -> None:
        """End the environment and its thread, waiting at most `seconds` for each (None: as long as it takes). May be
        called again. Raises TimeoutError where the environment does not end in time."""
        atexit.unregister(self._close_at_exit)
        if not self._thread.is_alive():
            return
        try:
            self._run(self.env.close(), seconds)
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(seconds)

    def _close_at_exit(self):
        with contextlib.suppress(Exception):  # no environment keeps the interpreter from its end
            self.close(LAST_SECONDS)


def _plain(obs):
    return {name: "".join(c if c in CHARACTERS else "?" for c in obs[name]) for name in TEXTS}
