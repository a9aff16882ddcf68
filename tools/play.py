"""Drives an environment by hand in the terminal, or watches the oracle or a model do it.

    python tools/play.py --env-id arena --task 3
    python tools/play.py --task 3 --oracle
    python tools/play.py --task 3 --policy runs/RUN --headed     # the actor of the run's last checkpoint
    python tools/play.py --task 3 --policy MODEL --script crps.py   # a bare model, with crps.py's prompt
    python tools/play.py --env-id site:tasks.json --record demos.jsonl      # demonstrations for --demos
    python tools/play.py --env-id site:tasks.json --record demos.jsonl --headed     # made in the browser's window

By hand, type an action in the full grammar or in short:
    click 3   type 2 red lamp   search 2 red lamp   select 4 large   hover 3   drag 3 5   press Enter   scroll down
    back   forward   goto URL   new [URL]   tab 2   close   wait   exit 24
and `undo` for the last move, `wrong` or `wrong 3` to leave the last or the third move out of what is recorded (or not,
after all), `retry` for the task from its beginning, `next [NUMBER]` for another one, `oracle` for the oracle's moves,
`tasks WORD` to find tasks, `help`, `quit`. With --headed, what you click and type in the window is an action, too; an
exit is typed here. What the window cannot express is refused in words.
"""

import asyncio
import importlib.util
import inspect
import json
import re
import sys
import threading
import zlib
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import common.interrupt  # noqa: F401
import envs
from common.actions import ACTIONS, Action, format_action
from common.errors import StateMismatch, UsageError
from common.lm.checkpoint import whole
from common.lm.run import run_main
from common.replay import Step, append_lines

VIEWPORT = 1280, 720  # where no run says another
COMMANDS = "undo", "wrong", "retry", "next"  # lines of the terminal that are no action

# short form -> action; the rest of the line is the element's id, the argument, or both, as the action needs them
SHORT = {
    "click": "Click",
    "hover": "Hover",
    "drag": "Drag",
    "rightclick": "Right Click",
    "type": "Type",
    "search": "Search",
    "select": "Select Dropdown Option",
    "upload": "Upload File",
    "press": "Press",
    "new": "New Tab",
    "tab": "Switch Tab",
    "close": "Close Tab",
    "goto": "Goto",
    "back": "Go Back",
    "forward": "Go Forward",
    "wait": "Wait",
    "exit": "Exit",
}


@dataclass
class Args:
    env_id: str = "arena"
    """the environment (envs/__init__.py lists them)"""
    split: str = "train"
    """train, eval or test"""
    task: int = 0
    """number of the task in its split"""
    headed: bool = False
    """show the browser's window"""
    real_clock: bool = False
    """--env-id site: pages wait in true time, in the place of a clock that moves with actions alone"""
    policy: str = ""
    """a run's folder (the actor of its last checkpoint), a checkpoint's actor, or a model (folder or hub id): it plays,
    you watch"""
    script: str = ""
    """the script whose prompt the policy reads; empty: the one kept in the run's folder, for a bare model webrl.py, for
    one that sees grpo_async.py, or distrl.py on phones"""
    temperature: float = 0.0
    """the policy's sampling temperature; 0: greedy"""
    seed: int = 0
    """seed of the policy's sampling"""
    oracle: bool = False
    """the oracle plays, you watch"""
    step: bool = False
    """when watching: wait for Enter before every action"""
    record: str = ""
    """append every episode that succeeds to this file: a demonstration for webrl.py --demos. Of a task without a check
    you are asked"""


def expand(line: str, page: str) -> str:
    """A short form as the full action text, with its `# Element:` line from the page; any other text as it is."""
    word, _, rest = line.strip().partition(" ")
    word, rest = word.lower(), rest.strip()
    if word == "scroll" and rest.lower() in ("", "up", "down"):
        return format_action(Action("Scroll Up" if rest.lower() == "up" else "Scroll Down"))
    if word not in SHORT or "(" in word:
        return line
    name = SHORT[word]
    needs_element, needs_argument = ACTIONS[name]
    if not needs_element:
        return format_action(Action(name, None, rest or ("" if name == "Exit" else None)))
    element, _, argument = rest.partition(" ")
    return on_element(name, element.strip("[]"), argument if needs_argument else None, page)


def on_element(name: str, element: str, argument: str | None, page: str) -> str:
    """An action on an element as text, with its `# Element:` line from the page."""
    found = re.search(rf'^("[^"]*" [a-z]+ \[{re.escape(element)}\])', page, re.MULTILINE)
    return format_action(Action(name, element, argument, f"# Element: {found[1]}" if found else ""))


def style(code: str, text: str) -> str:
    """The text in a terminal style, where there is a terminal."""
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() else text


def show(obs: dict) -> None:
    """Prints an observation: address, page text, error."""
    print(style("2", f"\n{obs['url']}"))
    for line in obs["text"].splitlines():
        print("  " + re.sub(r"\[\d+\]", lambda match: style("1;34", match[0]), line))
    if obs["error"]:
        print(style("31", f"  error: {obs['error']}"))


def load_script(path: Path):
    """A script as a module, such as a run's folder keeps it. Raises UsageError where it does not run."""
    name = f"script_{zlib.crc32(str(path.absolute()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever an old or a changed script raises
        del sys.modules[name]
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{path} does not run here ({reason}); --script FILE takes another's prompt") from error
    return module


def find_policy(name: str, flag: str, script: str = "", env_id: str = ""):
    """Of a run's folder (its last checkpoint), of an actor in a run's checkpoints or its start, or of a bare model
    (folder or hub id): the model's id, the script whose prompt it reads (`script`; else the one kept in the run's
    folder, which made it; for a bare model webrl.py, for one that sees grpo_async.py or, on phones, distrl.py) and the
    run's settings, {} for a bare model."""
    from common.lm import llm

    given = Path(name)
    above = given.absolute().parents  # an actor is RUN/checkpoints/STEP/actor, or RUN/start
    run = above[2] if len(above) > 2 and above[1].name == "checkpoints" else given
    run = above[0] if given.name == "start" else run
    if not (run / "args.json").is_file():
        usual = "webrl.py" if not llm.sees(name) else "distrl.py" if env_id.startswith("phone") else "grpo_async.py"
        return name, script_module(script or usual), {}
    if run is given:
        checkpoint, damaged = whole(run, lambda one: one.damage("actor/"))
        for one, why in damaged.items():
            print(f"{flag} {run}: checkpoint {one.path.name} is damaged ({why}): the one before it")
        if checkpoint is None:
            raise UsageError(f"{flag} {run}: the run has no checkpoint{' that is whole' if damaged else ' yet'}")
        name = str(checkpoint.folder("actor"))
    settings = json.loads((run / "args.json").read_text())
    if script:
        return name, script_module(script), settings
    kept = sorted(run.glob("*.py"))
    if not kept:
        raise UsageError(f"{flag} {run}: the run keeps no script; say with --script whose prompt it reads")
    return name, load_script(kept[0]), settings


def script_module(script: str):
    """The script of --script: a file, or one of the project's by name. Raises UsageError where there is none."""
    path = Path(script) if Path(script).is_file() else ROOT / script
    if not path.is_file():
        raise UsageError(f"--script {script}: no such file")
    return load_script(path)


def prompt_of(module, sees: bool):
    """A script's function for prompts. Raises UsageError where it has none for such a model."""
    # distrl.py plays by text and by sight; grpo_async.py by sight alone
    name = "seeing_prompt" if sees and hasattr(module, "seeing_prompt") else "agent_prompt"
    found = getattr(module, name, None)
    takes = inspect.signature(found).parameters if found else {}
    if ("processor" in takes) != sees:
        kind = "sees" if sees else "reads text"
        name = Path(module.__file__).name
        raise UsageError(f"the model {kind}, and {name} has no prompt for it: --script takes another's")
    if sees or "skip" in takes:
        return found

    @wraps(found)
    def skipping(reader, instruction, steps, obs, skip=0, **settings):  # of a run of before
        return found(reader, instruction, steps[skip:], obs, **settings)

    return skipping


def prompt_settings(prompt, settings: dict) -> dict:
    """Those of a run's settings that its script's function for prompts takes."""
    takes = inspect.signature(prompt).parameters
    return {name: value for name, value in settings.items() if name in takes}


def eyes(settings: dict, viewport=VIEWPORT):
    """What an environment needs for a model that sees: that of the run it was trained in."""
    return {"screenshots": True, "viewport": tuple(settings.get("viewport", viewport))}


PHONE_EYES = {"screenshots": True, "format": "aitw"}  # the same on phones: distrl.py's


def load_policy(args: Args):
    """Of the model that --policy names: `act(instruction, steps, obs) -> Step`, its `read_action(answer)`, and what its
    environment is made with."""
    from common import visual
    from common.lm import learn, llm

    model_id, module, settings = find_policy(args.policy, "--policy", args.script, args.env_id)
    sees = llm.sees(model_id)
    make_prompt = prompt_of(module, sees)
    length = min(settings.get("max_new_tokens", 64), 2048)
    if llm.size_of(model_id) == "tiny":
        learn.use_threads(1)  # two inside an operation wait for each other
    model, reader = llm.load(model_id, vision=sees)
    tokenizer, needs, read_action = llm.tokenizer_of(reader), {}, getattr(module, "read_action", str)
    if sees and args.env_id.startswith("phone"):
        needs, read_action = PHONE_EYES, str
    elif sees:
        needs = eyes(settings)
        read_action = partial(visual.read_action, size=needs["viewport"])
    own = prompt_settings(make_prompt, settings)

    def act(instruction: str, steps: list[Step], obs: dict) -> Step:
        prompt = make_prompt(reader, instruction, steps, obs, **own)
        seed = llm.seed_of(args.seed, len(steps))
        ids = llm.generate(model, reader, [prompt], [seed], args.temperature, length)[0].ids
        answer = tokenizer.decode([i for i in ids if i != llm.end_of_turn(tokenizer)])
        return Step(prompt, ids, [], 0, obs["text"], answer, screenshot=obs.get("screenshot"))

    return act, read_action, needs


def element_at(point: list[float] | None, boxes: dict) -> str | None:
    """The id of the smallest of an observation's boxes, {id: (left, top, width, height)}, that holds a point."""
    if point is None:
        return None
    x, y = point
    holding = [
        (wide * high, number)
        for number, (left, top, wide, high) in boxes.items()
        if left - 1 <= x <= left + wide + 1 and top - 1 <= y <= top + high + 1
    ]
    return min(holding)[1] if holding else None


class Window:
    """What a person does in the browser's window (play.js), as actions; and the terminal's lines, both in one queue."""

    def __init__(self, env):
        self.env, self.context, self.thread = env, None, None
        self.heard, self.told = asyncio.Queue(), []  # ("line", text), ("end", ""), ("told", ..); told, not done yet

    async def next(self, obs: dict | None, prompt: str) -> str:
        """The next action text, or line of the terminal. Raises EOFError at the terminal's end."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True)
            self.thread.start()
        print(prompt, end="", flush=True)
        if obs is None:  # a question, to be answered in the terminal
            self.told = []
        elif not self.told:
            await self.env.at_page(self._listen)
        while True:
            kind, said = ("told", self.told) if self.told else await self.heard.get()
            if kind == "told" and obs is None:
                continue
            if kind == "line":
                await self.env.at_page(self._stop)
                return said
            if kind == "end":
                raise EOFError
            first, *self.told = said
            try:
                action = self.action(first, obs)  # where several were told, the next one on what this one brings
            except LookupError as error:
                self.told = []
                print(style("31", f"\n  not an agent's action: {error}"), end=f"\n{prompt}", flush=True)
                await self.env.at_page(self._deafen if "left" in first else self._listen)
            else:
                await self.env.at_page(self._stop)
                return action

    @staticmethod
    def action(told: dict, obs: dict) -> str:
        """What play.js told, as an action on the observation's elements. Raises LookupError, in words, for the rest."""
        if "left" in told:
            raise LookupError(f"the window went to {told['left']} by itself: type goto, back, undo or retry")
        if "refused" in told:
            raise LookupError(told["refused"])
        found = [element_at(point, obs["boxes"]) for point in told["points"]]
        if None in found:
            raise LookupError("nothing that an agent can point at is there")
        name, text = told["name"], told.get("text")
        if not found:
            return format_action(Action(name, None, text))
        return on_element(name, found[0], found[1] if name == "Drag" else text, obs["text"])

    async def _listen(self, page):
        if page.context is not self.context:
            self.context = page.context
            script = Path(__file__).with_suffix(".js").read_text()
            await self.context.expose_binding("__heard", lambda source, said: self._hear(json.loads(said)))
            await self.context.add_init_script(f"({script})()")
            for tab in self.context.pages:
                for frame in tab.frames:
                    await frame.evaluate(f"({script})()")
        lines = []
        while not self.heard.empty():  # what pages told while the driver acted was its doing
            kind, said = self.heard.get_nowait()
            lines += [(kind, said)] if kind != "told" else []
        for line in lines:
            self.heard.put_nowait(line)
        await self._set(page, "on")

    async def _stop(self, page):
        await self._set(page, "off")

    async def _deafen(self, page):  # what it would do is on a page that is in no observation
        await self._set(page, "told")

    async def _set(self, page, state):
        for frame in page.frames:
            await frame.evaluate("state => { if (window.__person) window.__person.state = state; }", state)

    def _hear(self, told):
        self.heard.put_nowait(("told", told))

    def _read(self, loop):
        for line in sys.stdin:
            loop.call_soon_threadsafe(self.heard.put_nowait, ("line", line))
        loop.call_soon_threadsafe(self.heard.put_nowait, ("end", ""))


def actions_of(args: Args, env, task, policy, ask):
    """A generator of action texts: `send(obs)` the observation, get the next action; it ends when nobody has one."""
    obs = yield ""
    if args.oracle:
        try:
            moves = env.oracle(task)
        except LookupError as error:
            raise UsageError(f"--oracle: {error}") from None
        for move in moves:
            obs = yield env.resolve(move, obs)
        return
    steps = []
    while True:
        if policy:
            act, read_action, _ = policy
            steps.append(act(task.instruction, steps, obs))
            obs = yield read_action(steps[-1].action)
        else:
            obs = yield by_hand(args, env, task, obs, ask)


def by_hand(args: Args, env, task, obs: dict, ask) -> str:
    """One action by `ask(obs)`, or one of COMMANDS; answers the questions that are none. Raises EOFError at the end of
    the input."""
    while True:
        line = ask(obs).strip()
        word, _, rest = line.partition(" ")
        if word in ("quit", "q"):
            raise EOFError
        if word in ("help", "?"):
            print(__doc__)
        elif line == "oracle":
            for move in env.oracle(task):
                print("  ", *[part for part in vars(move).values() if part])
        elif word == "tasks":
            found = [(i, t) for i, t in enumerate(env.tasks(args.split)) if rest in t.instruction]
            for number, other in found[:20]:
                print(f"  {number:5} {other.site}: {other.instruction}")
            print(f"  {len(found)} tasks; start one with --task NUMBER")
        elif word in COMMANDS:
            return line
        elif line:
            return expand(line, obs["text"])


def record(path: str, task, steps: list[dict], last_page: str) -> None:
    """Appends a successful episode to a file of demonstrations, without the moves that are marked as wrong."""
    kept = [{key: value for key, value in step.items() if key != "wrong"} for step in steps if not step.get("wrong")]
    demo = {"task": vars(task), "verdict": 1.0, "steps": kept, "final_observation": last_page}
    try:
        append_lines(Path(path), [json.dumps(demo)])
    except OSError as error:
        raise UsageError(f"--record {path}: {error.strerror}") from error
    left_out = len(steps) - len(kept)
    print(f"recorded in {path}" + (f", {left_out} moves left out" if left_out else ""))


def mark_wrong(steps: list[dict], which: str) -> None:
    """Turns the mark of a move by its number, the last one without, and says so."""
    number = int(which) if which.isdecimal() else len(steps) if not which else 0
    if not 1 <= number <= len(steps):
        return print("  which move? wrong, or wrong NUMBER")
    step = steps[number - 1]
    step["wrong"] = not step.get("wrong")
    print(f"  move {number} is {'left out' if step['wrong'] else 'kept'}: {step['action'].splitlines()[-1]}")


def succeeded(env, task, reward: float, ask) -> bool:
    """Whether an episode that ended by an exit was right: by the task's check, or as a person says."""
    if envs.has_check(env, task):
        return bool(reward)
    try:
        return ask("no check knows: was it right? (y/n) ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def play(args: Args, env, runner: asyncio.Runner, policy=None) -> None:
    """Episodes in the terminal: one, or, by hand, as many as are asked for."""
    tasks, number = env.tasks(args.split), args.task
    if not 0 <= number < len(tasks):
        raise UsageError(f"--task {number}: the split {args.split} has tasks 0 to {len(tasks) - 1}")
    hands = not (args.oracle or args.policy)
    window = Window(env) if args.headed and hands and hasattr(env, "at_page") else None

    def ask(prompt, obs=None):
        if window is not None:
            return runner.run(window.next(obs, prompt))
        return input(prompt)

    while number is not None:
        command = play_task(args, env, runner, tasks[number], policy, ask)
        if hands and not command:
            try:
                command = ask(style("1", "next, retry or quit> ")).strip()
            except EOFError:
                command = "quit"
        word, _, rest = command.partition(" ")
        wanted = int(rest) if rest.strip().isdecimal() else number + 1
        number = number if word == "retry" else wanted if word == "next" else None
        if number is not None and number >= len(tasks):
            print(f"the split {args.split} has tasks 0 to {len(tasks) - 1}")
            number = None
    if args.headed and not hands and sys.stdin.isatty():
        input("Enter closes the browser ")


def play_task(args: Args, env, runner: asyncio.Runner, task, policy, ask) -> str:
    """One episode; the command that it ended by, or ""."""
    obs, _ = runner.run(env.reset(task, seed=args.seed))
    print(style("1", f"\n{task.instruction}") + style("2", f"   {task.task_id}, at most {task.max_steps} steps"))
    show(obs)
    hands, steps, prefixes = not (args.oracle or args.policy), [], []  # the state before each move
    actions = actions_of(args, env, task, policy, lambda obs: ask(style("1", f"{len(steps) + 1}> "), obs))
    next(actions)
    done = False
    try:
        while not done:
            if hands and len(prefixes) == len(steps):
                prefixes.append(runner.run(env.prefix()))
            action = actions.send(obs)
            word, _, rest = action.partition(" ")
            if hands and word in ("retry", "next"):
                return action
            if hands and word == "wrong":
                mark_wrong(steps, rest.strip())
                continue
            if hands and word == "undo":
                if steps:
                    del steps[-1], prefixes[-1]
                    obs, _ = runner.run(env.restore(prefixes[-1]))
                    show(obs)
                continue
            if args.oracle or args.policy:
                if args.step:
                    input(style("2", "Enter for the next action "))
                print("\n" + style("1;36", action))
            steps.append({"text": obs["text"], "action": action})
            obs, reward, terminated, truncated, _ = runner.run(env.step(action))
            steps[-1]["error"] = obs["error"]
            done = terminated or truncated
            show(obs)
    except (EOFError, StopIteration):
        print("\nleft before the end")
        return "quit"
    except StateMismatch as error:
        print(f"\nit cannot be undone ({error}): the task begins anew")
        return "retry"
    end = "ended by the agent" if terminated else "out of steps"
    known = f"reward {reward:g}" if envs.has_check(env, task) else "no check, so no reward"
    print(style("1;32" if reward else "1;31", f"\n{known}") + f"   {end}")
    if args.record and terminated and succeeded(env, task, reward, ask):
        record(args.record, task, steps, obs["text"])
    elif args.record:
        print(f"not recorded in {args.record}: only successes are demonstrations")
    return ""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    if args.oracle and args.policy:
        raise UsageError("--oracle or --policy, not both")
    policy = load_policy(args) if args.policy else None
    options = {"real_clock": args.real_clock} | ({"headed": True} if args.headed else {})
    env = envs.make(args.env_id, **options, **(policy[2] if policy else {}))
    with asyncio.Runner() as runner:
        try:
            play(args, env, runner, policy)
        finally:
            runner.run(env.close())


if __name__ == "__main__":
    run_main(main)
