"""ALFWorld: household tasks in text, played by the original engine (envs/alfworld_engine.py).

Optional: pip install -r requirements-alfworld.txt. Games are generated (envs/alfworld_games.py), or those of ALFWorld's
own data, `data_dir="~/.cache/alfworld/json_2.1.1"`.
"""

import hashlib
import json
import os
import re
import uuid
import zlib
from collections import OrderedDict
from pathlib import Path

from common.errors import EnvFault, UsageError
from envs import Task, alfworld_games
from envs.alfworld_engine import LOCK, Game, engine, guarded, limited_plan
from envs.alfworld_games import TYPES
from envs.text import Move, TextEnv

MAX_STEPS = 50
GAMES = {"train": 300, "eval": 60, "test": 300}
FOLDERS = {"train": "train", "eval": "valid_seen", "test": "valid_unseen"}
FORMATS = ("compact", "original")
EXPERTS = ("handcoded", "planner", "mixed")
ATTEMPTS = 20
OPEN_GAMES = 32  # engines in memory, 3 to 20 MB each; the one not used for longest is given up


class ALFWorld(TextEnv):
    """One episode slot; `fork()` gives another one on the same games.

    `data_dir`: a folder with ALFWorld's own games ("train", "valid_seen" and "valid_unseen" of json_2.1.1, or the
    folder above it); without it games are generated. `games`: a dict of how many a split has (generated: 300, 60 and
    300 unless told; the original: the first so many, all unless told). `size` of generated rooms: "tiny" (5 to 7
    receptacles, 4 to 6 objects, their names one word to a small model), "small" (6 to 14
    receptacles, 6 to 13 objects) or "full" (the whole floor plan, up to 45 objects). `expert`: whose moves `oracle`
    gives, "handcoded", "planner" or "mixed" (half of the tasks each, by name). `cache_dir`: where found solutions are
    kept (default: cleangui/alfworld in $XDG_CACHE_HOME or ~/.cache). `format` of the page text: see envs/text.py.
    """

    def __init__(self, data_dir="", games=None, size="small", expert="handcoded", cache_dir="", format="compact"):
        super().__init__(format)
        options = ("size", size, alfworld_games.OBJECTS), ("expert", expert, EXPERTS), ("format", format, FORMATS)
        for name, value, known in options:
            if value not in known:
                raise UsageError(f"alfworld: {name} is one of {', '.join(known)}, not {value!r}")
        if set(games or {}) - set(GAMES):
            raise UsageError(f"alfworld: games is a dict of numbers for {', '.join(GAMES)}")
        self.data_dir, self.size, self.expert = data_dir, size, expert
        self._games = (GAMES | (games or {})) if not data_dir else (games or {})
        self._folder = _json_folder(Path(data_dir).expanduser()) if data_dir else None
        self._shared, self._is_root = Shared(cache_dir, self._folder), True

    def _clear(self):
        super()._clear()
        self._game = self._state = None

    def fork(self):
        """Another slot. Closing it closes only itself; closing the first one frees the engines."""
        other = super().fork()
        other._is_root = False
        return other

    def tasks(self, split):
        """The tasks of "train", "eval" or "test", always the same in the same order; no game is made yet."""
        with LOCK:
            if split not in self._shared.tasks:
                make = self._original if self._folder else self._generated
                self._shared.tasks[split] = make(split)
            return list(self._shared.tasks[split])

    def oracle(self, task):
        """The expert's moves, each with a thought that says what it is for; what solved the game once solves it always.

        Raises LookupError where neither expert solves it within 50 steps, which no generated game does.
        """
        record = self._shared.record(task)
        chosen = self.expert
        if chosen == "mixed":
            chosen = EXPERTS[zlib.crc32(task.task_id.encode()) % 2]
        actions = (record["handcoded"] if chosen == "handcoded" else None) or self.planner(task) or record["handcoded"]
        if not actions:
            raise LookupError(f"{task.task_id}: ALFWorld's experts do not solve it in {MAX_STEPS} steps")
        return [Move(action, thought) for action, thought in zip(actions, thoughts(actions, record["goal"]))]

    def planner(self, task):
        """The actions of the engine's planner, which knows where everything is; [] where it finds none in 30 seconds
        (it may in rooms of full size with two objects to bring)."""
        return self._shared.plan(task)

    def vary(self, task, rng):
        raise UsageError("nothing varies ALFWorld's instructions: --generator URL or --no-curriculum")

    def task_from_text(self, text, like):
        """None: no true checker is known for an instruction that is not a task's."""
        return None

    async def close(self):
        """Free the slot; the first slot frees the engines. May be called again."""
        await super().close()
        if self._is_root:
            self._shared.open.clear()

    def _begin(self, task):
        if task.config is None:
            raise UsageError(f"{task.task_id}: only a task of ALFWorld's own has a game")
        self._game = self._shared.game(task)
        self._state = self._game.start
        return self._game.page()

    def _do(self, text):
        try:
            page, self._state = self._game.step(self._state, text)
        except EnvFault:
            self._shared.open.pop(_key(self._task), None)  # the next one that plays it gets a new engine
            raise
        return page

    def _generated(self, split):
        drawn = [alfworld_games.draw(split, number, self.size) for number in range(self._games[split])]
        return [
            Task(f"alfworld-{split}-{n}", "alfworld", game["sentence"], MAX_STEPS, split, game["seed"], game["type"],
                 config=game)
            for n, game in enumerate(drawn)
        ]  # fmt: skip

    def _original(self, split):
        folder, tasks = self._folder / FOLDERS[split], []
        for path in sorted(folder.rglob("game.tw-pddl")) if folder.is_dir() else []:
            name = path.parent.relative_to(self._folder).as_posix()
            if "movable" in name or "Sliced" in name:  # which ALFWorld leaves out, too
                continue
            game, trial = _read(path), _read(path.parent / "traj_data.json")
            short = next((short for short, kind in TYPES.items() if kind == trial["task_type"]), "")
            if short and game.get("solvable"):
                sentence = game["grammar"].partition("Your task is to: ")[2].partition('"')[0].rstrip(".")
                seed = zlib.crc32(name.encode())
                config = {"file": f"{name}/game.tw-pddl"}
                tasks.append(Task(name, "alfworld", sentence, MAX_STEPS, split, seed, short, config=config))
        if not tasks:
            raise UsageError(f"{folder}: there is no game (a game.tw-pddl that says it is solvable) in this folder")
        return tasks[: self._games.get(split)]


class Shared:
    """What the slots of one environment have in common: the tasks, the open games, the solutions on disk."""

    def __init__(self, cache_dir, folder):
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self.cache = Path(cache_dir or Path(home) / "cleangui" / "alfworld").expanduser()
        self.folder, self.tasks, self.open, self.records = folder, {}, OrderedDict(), {}

    def game(self, task):
        """The task's game, open."""
        with LOCK:
            key = _key(task)
            if key not in self.open:
                record = self.record(task)  # this may open the game, to find out whether it can be solved
                if key not in self.open:
                    self._keep(key, Game(*self._files(task, record["attempt"])[:3]))
            self.open.move_to_end(key)
            return self.open[key]

    def record(self, task):
        """{"attempt", "handcoded", "planner", "goal"}: how the game is made, and its solutions (None: not looked for
        yet). Found once, then read. A generated game is made anew until the hand-coded expert solves it in MAX_STEPS.
        """
        with LOCK:
            key = _key(task)
            if key not in self.records:
                try:
                    self.records[key] = json.loads(self._path(task).read_text())
                except (OSError, ValueError):
                    self.records[key] = self._solve(task)
                    _write(self._path(task), self.records[key])
            return self.records[key]

    def _solve(self, task):
        small = task.config.get("size") in ("tiny", "small")  # elsewhere the planner can take hours and all memory
        for attempt in range(1 if self.folder else ATTEMPTS):
            *files, goal = self._files(task, attempt)
            game = Game(*files, plans=small)
            record = {"attempt": attempt, "handcoded": expert(game, goal, task.seed), "goal": goal}
            record["planner"] = game.plan() if small else None
            if self.folder or (record["handcoded"] and record["planner"] != []):
                self._keep(_key(task), game)
                return record
        raise UsageError(f"{task.task_id}: the expert solves none of the {ATTEMPTS} rooms that were made for it")

    def plan(self, task):
        """The planner's actions, [] if there are none; looked for once."""
        with LOCK:
            record = self.record(task)
            if record["planner"] is None:
                record["planner"] = limited_plan(*self._files(task, record["attempt"])[:3])
                _write(self._path(task), record)
            return list(record["planner"]) if len(record["planner"]) <= MAX_STEPS else []

    def _keep(self, key, game):
        self.open[key] = game
        while len(self.open) > OPEN_GAMES:  # a slot that still plays one keeps it alive
            self.open.popitem(last=False)

    def _files(self, task, attempt):
        """(domain, grammar, problem, goal) of a task's game."""
        if self.folder:
            path = self.folder / task.config["file"]
            game, trial = _read(path), _read(path.with_name("traj_data.json"))
            goal = {key: trial["pddl_params"][key] for key in ("object_target", "parent_target", "toggle_target")}
            goal["task_type"] = trial["task_type"]
            return game["pddl_domain"], game["grammar"], game["pddl_problem"], goal
        game = task.config
        goal = {"object_target": game["object"], "parent_target": game["receptacle"], "toggle_target": game["lamp"]}
        goal["task_type"] = TYPES[game["type"]]
        grammar = engine().grammar.replace("UNKNOWN GOAL", game["sentence"])
        return engine().domain, grammar, alfworld_games.problem(game, attempt), goal

    def _path(self, task):
        """The game's place in the cache: another version, or another file of the same name, is another game."""
        made_from = (self.folder / task.config["file"]).read_text() if self.folder else alfworld_games.GENERATOR
        text = json.dumps([engine().versions, MAX_STEPS, task.config, task.seed, made_from], sort_keys=True)
        return self.cache / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def expert(game, goal, seed):
    """What ALFWorld's hand-coded expert does in the game, without its idle first "look"; [] if it needs more than
    MAX_STEPS or gives up."""
    agent = engine().Expert(max_steps=MAX_STEPS + 1)
    agent.task_params = {key: value.lower() if value in engine().OBJECTS else value for key, value in goal.items()}
    agent.policy = agent.get_task_policy(agent.task_params)(agent.task_params, max_steps=MAX_STEPS + 1)
    agent.observe(game.intro)
    state, page, action, actions = game.start, None, "look", []
    while not state.won and len(actions) < MAX_STEPS:
        feedback = page.text if page else game.intro
        seen = {"feedback": feedback, "facts": game.facts(state), "admissible_commands": list(state.actions)}
        with guarded("the expert", seed=seed + len(actions)):  # it draws from `random`
            try:
                # its bookkeeping still waits for the verb of older versions, "put": without it what was put down counts
                # as held, and it solves less than half of the tasks with two objects in time
                action = agent.act(seen, 0, state.won, re.sub("^move ", "put ", action))
            except Exception:  # it gives up with errors of its own, and where it is lost with any other
                return []
        action = action if action in state.actions else "look"
        page, state = game.step(state, action)
        actions.append(action)
    return actions if state.won else []


def thoughts(actions, goal):
    """A few words for each action, from what was done before it and the goal alone."""
    thing, place, lamp = (goal[key].lower() for key in ("object_target", "parent_target", "toggle_target"))
    change = {"clean": "clean", "heat": "heat", "cool": "cool"}.get(goal["task_type"].split("_")[1])
    held, changed, said = "", False, []
    for action in actions:
        verb, *words = action.split()
        named = " ".join(words[:2])
        if verb == "move":
            said.append(f"put {named} in {' '.join(words[-2:])}")
            held = ""
        elif verb in ("open", "close", "take", "heat", "clean", "cool", "use"):
            said.append(f"{verb} {named}")
            held = named if verb == "take" else held
            changed = verb == change if verb in ("take", "heat", "clean", "cool") else changed
        elif not held:
            said.append(f"find {thing}")
        elif held.split()[0] != thing:
            said.append(f"put back {held}")
        elif lamp:
            said.append(f"find {lamp}")
        else:
            said.append(f"{change} {held}" if change and not changed else f"put {held} in {place}")
    return said


def _key(task):
    return json.dumps(task.config, sort_keys=True)


def _json_folder(folder):
    """The folder that has "train" and the others in it: this one or the json_2.1.1 in it."""
    for path in (folder, folder / "json_2.1.1"):
        if any((path / name).is_dir() for name in FOLDERS.values()):
            return path
    raise UsageError(f"{folder}: not ALFWorld's data (no folder train, valid_seen or valid_unseen in it)")


def _read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not one of ALFWorld's files ({type(error).__name__}: {error})") from None


def _write(path, record):
    """Aside and renamed: other processes may write the same file now."""
    aside = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(record))
        os.replace(aside, path)
    except OSError as error:
        raise UsageError(f"{path.parent}: solutions cannot be kept here ({error}); give another cache_dir") from None
