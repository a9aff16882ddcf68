"""MiniWoB++: steps and resets per second, our driver and BrowserGym in the same episodes; checks of envs/miniwob.py.

    python benchmarks/miniwob.py --quick
    python benchmarks/miniwob.py --browsergym-python .venv-browsergym/bin/python --write-docs
    python benchmarks/miniwob.py --solve 20 --write-docs        # every scripted solution, 20 episodes each
    python benchmarks/miniwob.py --fuzz 30                      # same seed, same episode, whatever ran before

docs/miniwob.md has the figures; docs/browser.md says how to make BrowserGym's environment (here with browsergym-miniwob
besides) and what the columns mean. Both sides do the same moves in the same episodes, in turns, in rounds.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import tyro

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import envs
from benchmarks.docs import write_docs
from benchmarks.once.browser import (
    ProcessTree,
    Script,
    Variant,
    Workers,
    machine,
    play_rounds,
    report,
    table,
    went_wrong,
)
from common.actions import Action, format_action, parse
from common.errors import UsageError
from common.lm.run import run_main
from envs import miniwob
from envs.arena.tasks import Move, resolve
from envs.miniwob_oracles import SOLUTIONS
from tools.setup_chromium import installed

DOCS = ROOT / "docs" / "miniwob.md"
# One in each round. Both sides can name what is on them: elements with a role and a label.
PAGES = ("click-checkboxes", "enter-text", "click-option", "click-button-sequence", "click-test-2")


@dataclass
class Args:
    browsergym_python: str = ""
    """interpreter of an environment that has browsergym-miniwob (docs/browser.md); empty: our side alone"""
    quick: bool = False
    """one short round (other flags still win)"""
    slots: tuple[int, ...] = (1, 4, 16)
    """our concurrent episodes"""
    browsergym_slots: tuple[int, ...] = (1, 4)
    """BrowserGym's concurrent environments, each a process of its own"""
    rounds: int = 5
    """rounds, each on another page; medians are over them"""
    tasks: int = 10
    """episodes of a round; each slot plays each of them"""
    minutes: float = 10.0
    """after these the run stops and reports what it has"""
    solve: int = 0
    """instead: so many training episodes of every scripted solution"""
    fuzz: int = 0
    """instead: so many episodes of every task, in a page that was loaded for it and in one where others were played"""
    names: str = ""
    """with --solve or --fuzz: tasks joined by +; empty: all"""
    write_docs: bool = False
    """put the tables into docs/miniwob.md"""


QUICK = dict(slots=(1, 4), browsergym_slots=(1,), rounds=1)

VIEWPORT = {"viewport": (332, 214)}  # BrowserGym's for these tasks
VARIANTS = (
    Variant("CleanGUI", "text", {}),
    Variant("BrowserGym, defaults", "DOM, AX tree, PNG", {"zeroed": False}, ours=False),
    Variant("CleanGUI + screenshot", "text, PNG", VIEWPORT | {"screenshots": True}),
    Variant("CleanGUI, pages loaded anew", "text", {"reload": True}),
    Variant("BrowserGym, waits at 0", "DOM, AX tree, PNG", {"zeroed": True}, ours=False),
    Variant("CleanGUI --real-input, pages loaded anew", "text", {"reload": True, "real_input": True}),
    Variant(
        "all of this + screenshot",
        "text, PNG",
        VIEWPORT | {"reload": True, "real_input": True, "screenshots": True},
    ),
)


# --- speed ------------------------------------------------------------------------------------------------------------


def page_of(url: str) -> str:
    return url.rpartition("/")[2]


class Ours:
    """Slots of the environment: one process, one Chromium, a context per slot."""

    def __init__(self, variant: Variant, slots: int):
        self.root = envs.make("miniwob", **variant.options)
        self.envs = [self.root] + [self.root.fork() for _ in range(slots - 1)]
        self.obs, self.rewards = [None] * slots, [0.0] * slots

    async def start(self, scripts):
        pass

    async def reset(self, slot, task):
        """(seconds, path)"""
        begin = time.perf_counter()
        self.obs[slot], _ = await self.envs[slot].reset(task)
        return time.perf_counter() - begin, page_of(self.obs[slot]["url"])

    async def step(self, slot, move):
        """(seconds, path, error). Raises LookupError if what the move acts on is not there."""
        action = resolve(move, self.obs[slot]["text"])
        begin = time.perf_counter()
        self.obs[slot], self.rewards[slot], *_ = await self.envs[slot].step(action)
        return time.perf_counter() - begin, page_of(self.obs[slot]["url"]), self.obs[slot]["error"]

    async def finish(self, slot, task):
        """Raises RuntimeError if the moves did not solve the task."""
        if self.rewards[slot] != 1.0:
            raise RuntimeError(f"{task.task_id}: the moves got {self.rewards[slot]}")

    async def close(self):
        await self.root.close()


class BrowserGym(Workers):
    """BrowserGym's tasks on the same files."""

    def __init__(self, variant: Variant, slots: int, python: str, chromium: str):
        super().__init__(slots, python, variant.options | {"chromium": chromium, "miniwob": True})
        self.rewards = [0.0] * slots

    async def _ask(self, slot, **request):
        reply = await super()._ask(slot, **request)
        self.rewards[slot] = reply["reward"]
        return reply

    async def reset(self, slot, task):
        base_url = miniwob.pages_folder().as_uri() + "/"
        options = {"page": task.site, "page_seed": task.seed, "base_url": base_url}
        reply = await self._ask(slot, do="reset", task=options)
        return reply["seconds"], page_of(reply["url"])

    async def step(self, slot, move):
        seconds, path, error = await super().step(slot, move)
        return seconds, page_of(path), error

    finish = Ours.finish


async def write_scripts(rounds: int, count: int, **options) -> list[Script]:
    """The scripted solution's moves in `count` training episodes of each round's page."""
    env, scripts = envs.make(f"miniwob/{'+'.join(PAGES)}", **options), []
    pages = [PAGES[i % len(PAGES)] for i in range(rounds)]
    try:
        for task in [task for page in pages for task in [t for t in env.tasks("train") if t.site == page][:count]]:
            obs, _ = await env.reset(task)
            moves, paths = [], [page_of(obs["url"])]
            for oracle_move in env.oracle(task):
                action = parse(env.resolve(oracle_move, obs))
                label, kind = action.comment.removeprefix('# Element: "').split('" ')
                moves.append(Move(kind.split()[0], label, action.name, action.argument))
                obs, *_ = await env.step(format_action(action))
                paths.append(page_of(obs["url"]))
            scripts.append(Script(task, moves, paths))
    finally:
        await env.close()
    return scripts


def measure_speed(args, chromium):
    notes = machine(args, chromium)
    theirs = args.browsergym_slots if args.browsergym_python else ()
    plan = [
        (variant, slots)
        for slots in sorted({*args.slots, *theirs})
        for variant in VARIANTS
        if slots in (args.slots if variant.ours else theirs)
    ]
    cells, scripts, tree, cut = {key: {} for key in plan}, [], ProcessTree(), ""
    begin, load, others = time.monotonic(), os.getloadavg()[0], tree.others()

    async def run():
        async with asyncio.timeout(60 * args.minutes):
            scripts.extend(await write_scripts(args.rounds, args.tasks))
            await play_rounds(args, chromium, scripts, cells, tree, (Ours, BrowserGym))

    try:
        asyncio.run(run())
    except TimeoutError:
        cut = f"; cut short after {args.minutes:g} minutes: not every row has all rounds"
    finally:
        tree.end()
    if not any(cells.values()):
        raise UsageError(f"nothing was measured within {args.minutes:g} minutes: is the machine busy?")
    seconds = time.monotonic() - begin
    notes += [
        f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after the run, which took {seconds / 60:.1f} "
        f"minutes; other processes kept {(tree.others() - others) / seconds:.1f} cores busy meanwhile",
        f"rounds: {args.rounds}, episodes of a slot in each: {args.tasks}, actions of an episode: "
        f"{fmean(len(script.moves) for script in scripts):.1f} (mean){cut}",
        *went_wrong(cells),
    ]
    text = report(cells, notes, VARIANTS, (VARIANTS[0], VARIANTS[2], VARIANTS[-1]))
    print(text)
    if args.write_docs:
        if not all(cells.values()):
            raise UsageError("docs/miniwob.md is left as it was: some rows have no figures yet (raise --minutes)")
        write_docs(DOCS, "speed", text)


# --- the scripted solutions -------------------------------------------------------------------------------------------

# What keeps a task from being solved, or from being solved always. Where there is no script and nothing else is said,
# the actions suffice.
LACKS = {
    "bisect-angle": "graded; whole pixels fall short of 1",
    "book-flight": "no script; 8 actions, one more a month, and the scrolling through the results: 10 and more",
    "circle-center": "graded; the page's own rounding keeps the best click below 1",
    "click-checkboxes-large": "up to 12 boxes and Submit: some seeds need more than 10 actions",
    "click-checkboxes-soft": "no script: synonyms",
    "choose-date": "one click a month, back from December: some seeds need more than 10 actions",
    "count-sides": "the shape is pixels of a canvas: not in the text (screenshots=True has it)",
    "drag-cube": "which side is in front is not in the text, and a drag takes no time, which turns the cube",
    "email-inbox-forward-nl-turk": "no script: free text (in some of it the two names are exchanged)",
    "email-inbox-nl-turk": "no script: free text",
    "find-midpoint": "graded; whole pixels fall short of 1",
    "hot-cold": "graded; the script is content with COLD (0.25): to find the place takes more looks",
    "number-checkboxes": "the figure to copy is a picture, and all digits but 1 need more than 10 actions",
    "order-food": "four of a kind and the scrolling to the end can need more than 10 actions",
    "right-angle": "graded; whole pixels fall short of 1",
    "sign-agreement": "18 scrolls and more to its end: within 10 actions only where it is to be cancelled",
    "social-media-all": "scrolling and one click a post: some seeds need more than 10 actions",
    "social-media-some": "scrolling and one click a post: some seeds need more than 10 actions",
    "stock-market": "the price changes every 100 ms and is seen every 500: at some seeds too late, or never low enough",
    "terminal": "no script; --real-input only: what is typed goes to a hidden box by true keys (a test does it)",
    "tic-tac-toe": "no script; whether X can win depends on what the computer draws",
    "use-slider-2": "three sliders by drags and keys: some seeds need more than 10 actions",
}
LACKS |= {"book-flight-nodelay": LACKS["book-flight"], "choose-date-nodelay": LACKS["choose-date"]}


async def solve(env, task):
    """(score, actions) of the scripted solution."""
    obs, info = await env.reset(task)
    actions = 0
    for move in env.oracle(task):
        obs, *_, info = await env.step(env.resolve(move, obs))
        actions += 1
    return info.get("score", 0.0), actions


async def check_solutions(args):
    """The table of all tasks."""
    env, rows, counts = envs.make(f"miniwob/{args.names}".rstrip("/"), max_steps=60), [], Counter()
    try:
        for name in miniwob.choose(args.names):
            played = []
            for task in [task for task in env.tasks("train") if task.site == name][: args.solve]:
                if name in SOLUTIONS:
                    played.append(await solve(env, task))
            scores, lengths = zip(*played) if played else ((), ())
            in_time = [score for score, length in played if length <= miniwob.MAX_STEPS]
            full, won = sum(score == 1 for score in in_time), sum(score > 0 for score in in_time)
            sets = ["train" if name in miniwob.SETS["browsergym-train"] else "test"]
            sets += ["webgum"] * (name in miniwob.SETS["webgum"])
            cells = [f"{full} / {won} of {len(played)}", spread(scores), spread(lengths)] if played else ["-"] * 3
            rows.append([name, " ".join(sets), *cells, LACKS.get(name, "")])
            counts += Counter(scripted=bool(played), full=bool(played) and full == len(played), won=won > 0)
            print("  ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    finally:
        await env.close()
    head = ["task", "sets", "score 1 / above 0 within 10 actions", "score", "actions", "what is missing"]
    intro = (
        f"{len(rows)} tasks, {counts['scripted']} with a scripted solution; {args.solve} training episodes of each. "
        f"{counts['won']} tasks are solved within {miniwob.MAX_STEPS} actions in some of them, {counts['full']} with a "
        "score of 1 in all."
    )
    return f"{intro}\n\n{table(head, rows)}"


def spread(values):
    low, high = (f"{value:.2f}".rstrip("0").rstrip(".") for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


# --- same seed, same episode ------------------------------------------------------------------------------------------

# All that a reset leaves on the page, whether it is seen or not: elements, attributes, values, scroll positions, texts.
PAGE_JS = """() => {
  const seen = [`focus ${document.activeElement?.localName}#${document.activeElement?.id}`, String(getSelection())];
  const walk = (el) => {
    if (/^(reward-display|sync-task-cover|click-canvas)$/.test(el.id) || el.localName === "script") return;
    const named = [...el.attributes].filter((a) => a.value && !a.name.startsWith("data-tampered"));
    seen.push(JSON.stringify([el.localName, named.map((a) => `${a.name}=${a.value}`).sort(), el.value, el.checked,
      el.scrollTop, el.scrollLeft]));
    for (const node of el.childNodes)
      if (node.nodeType === 1) walk(node);
      else if (node.nodeType === 3 && node.data.trim()) seen.push(node.data.trim());
  };
  walk(document.body);
  return seen;
}"""
KEYS = "Enter Tab Escape a Home End PageUp ArrowUp ArrowDown Control+a Shift+End".split()
WORDS = ["ab", "5", "-3", "Sa", "x y", "2017-10-20", "10:30"]


def random_action(rng, page):
    """Something to do on a page: mostly what its elements are for."""
    items = [node for node in page.nodes if "id" in node]
    place = f"{rng.randrange(2, 158)},{rng.randrange(52, 208)}"
    chance = rng.random()
    if chance < 0.06 or not items:
        return Action(rng.choice(["Click", "Right Click", "Hover"]), None, place)
    item = rng.choice(items)
    if "submit" in item["label"].lower() and rng.random() < 0.6:  # which would end it
        item = rng.choice(items)
    element = str(item["id"])
    if chance < 0.14:
        return Action("Press", rng.choice([element, None]), rng.choice(KEYS))
    if chance < 0.18:
        return Action("Drag", element, rng.choice([place, str(rng.choice(items)["id"])]))
    if chance < 0.22:
        return Action(rng.choice(["Scroll Down", "Scroll Up"]), rng.choice([element, None]))
    if item["kind"] == "box" and rng.random() < 0.8:
        return Action(rng.choice(["Type", "Search"]), element, rng.choice(WORDS))
    if item["kind"] == "select" and item.get("options"):
        return Action("Select Dropdown Option", element, rng.choice(item["options"]))
    return Action("Click", element)


async def trace(env, task, choose):
    """(page after the reset, what was seen at each step, actions) of an episode; `choose(obs)` is the next action, None
    ends it."""
    obs, info = await env.reset(task)
    page = await env._session.read(None, lambda tab: tab.evaluate(PAGE_JS))
    seen, actions, over = [(obs["text"], info["hash"])], [], False
    while not over and (action := choose(obs)) is not None:
        actions.append(action)
        obs, reward, terminated, truncated, info = await env.step(action)
        seen.append((obs["text"], obs["error"], info["hash"], info.get("score"), reward))
        over = terminated or truncated
    return page, seen, actions


async def fuzz(args, **options):
    """Whether the same actions on the same seed show the same, and leave the same page after the reset, in a page that
    is loaded for the episode, in another one, and by default; prints what differs there and in pages that are kept.
    Odd episodes play the scripted solution, where there is one, the others anything."""
    first = envs.make(f"miniwob/{args.names}".rstrip("/"), reload=True, **options)
    second, kept, default = first.fork(), first.fork(), first.fork()
    kept.reload, default.reload = False, None
    different = {}
    try:
        for name in miniwob.choose(args.names):
            counts, begin = Counter(), time.monotonic()
            tasks = [task for task in first.tasks("train") if task.site == name]
            for number in range(args.fuzz):
                task, rng = tasks[number % len(tasks)], random.Random(f"{name} {number}")
                moves = first.oracle(task) if number % 2 and name in SOLUTIONS else None

                def choose(obs, rng=rng, moves=moves):
                    if moves is None:
                        return format_action(random_action(rng, first._page))
                    move = next(moves, None)
                    return move and first.resolve(move, obs)

                page, seen, actions = await trace(first, task, choose)
                for other, what in ((second, "loaded anew"), (kept, "kept"), (default, "default")):
                    again = iter(actions)
                    other_page, other_seen, _ = await trace(other, task, lambda obs, again=again: next(again, None))
                    counts[f"{what}: page"] += page != other_page
                    counts[f"{what}: episode"] += seen != other_seen
            different[name] = {what: count for what, count in counts.items() if count}
            fresh = " (FRESH)" if name in miniwob.FRESH else ""
            line = f"{name}{fresh}: {different[name] or 'equal'}, {time.monotonic() - begin:.0f} s"
            print(line, file=sys.stderr, flush=True)
    finally:
        await first.close()
    kept_bad = {name for name, counts in different.items() if any(what.startswith("kept") for what in counts)}
    other_bad = {name for name, counts in different.items() if any(not what.startswith("kept") for what in counts)}
    print(f"{args.fuzz} episodes of {len(different)} tasks")
    print(f"differ in a page that is kept: {' '.join(sorted(kept_bad)) or 'none'}")
    print(f"of these not in FRESH: {' '.join(sorted(kept_bad - set(miniwob.FRESH))) or 'none'}")
    print(f"differ by default, or between two pages loaded anew: {' '.join(sorted(other_bad)) or 'none'}")
    return not other_bad and kept_bad <= set(miniwob.FRESH)


def main():
    args = tyro.cli(Args, description=__doc__)
    if args.quick:
        args = tyro.cli(Args, description=__doc__, default=replace(Args(), **QUICK))
    if args.browsergym_python and not Path(args.browsergym_python).is_file():
        raise UsageError(f"--browsergym-python {args.browsergym_python}: no such file (docs/browser.md makes it)")
    if min(args.rounds, args.tasks, *args.slots, *args.browsergym_slots) < 1:
        raise UsageError("--rounds, --tasks and --slots start at 1")
    if max(args.tasks, args.solve) > len(miniwob.SEEDS["train"]):
        raise UsageError(f"--tasks and --solve: a page has {len(miniwob.SEEDS['train'])} training episodes")
    if args.fuzz:
        sys.exit(0 if asyncio.run(fuzz(args)) else 1)
    if args.solve:
        text = asyncio.run(check_solutions(args))
        print(text)
        if args.write_docs:
            write_docs(DOCS, "tasks", text)
        return
    chromium = installed()
    if chromium is None:
        raise UsageError("no Chromium found: python tools/setup_chromium.py gets one")
    os.environ["CHROMIUM"] = chromium  # the same one for both sides
    measure_speed(args, chromium)


if __name__ == "__main__":
    run_main(main)
