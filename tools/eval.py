"""Plays an environment's test tasks with a policy and prints the success on each site; every episode is kept.

    python tools/eval.py --env-id webarena-lite --policy http://localhost:8000/v1    # a chat model behind a URL
    python tools/eval.py --env-id webarena-lite --policy URL --prompt-format webrl   # a released WebRL checkpoint
    python tools/eval.py --env-id webarena-lite --model-id runs/RUN                  # a run's actor, or any model, here
    python tools/eval.py --env-id gallery --model-id runs/RUN                        # a model that sees
    python tools/eval.py --resume runs/EVALUATION                                    # what is not played yet

An evaluation that was stopped goes on where it was: tasks that were played are not played again. What a WebArena
evaluation needs besides (the sites' addresses, a judge) is in docs/webarena.md.
"""

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import common.interrupt  # noqa: F401
import envs
from common import visual
from common.errors import TooManyFaults, UsageError
from common.lm import learn, llm, resume, serve
from common.lm.args import parse_args, values_of
from common.lm.rollout import Player, within
from common.lm.run import Run, run_main
from common.lm.session import room_of
from common.lm.stats import MANY, by_check, evaluation_metrics, site_name, wilson
from tools import view
from tools.play import PHONE_EYES, eyes, find_policy, prompt_of, prompt_settings, script_module

# The columns of the WebRL paper's Table 1 for WebArena's sites. Tasks that begin on one site and need the encyclopedia
# count for that site, as there; tasks on two sites are in the average alone, there and here.
COLUMNS = {"reddit": "Reddit", "gitlab": "GitLab", "shopping_admin": "CMS", "map": "Map", "shopping": "OSS"}
SEVERAL = "two sites"
PAGE_TOKENS, NEW_TOKENS = 12000, 2048
CHARACTERS_A_TOKEN = 4  # where there is no tokenizer to count with


@dataclass
class Args:
    exp_name: str = "eval"
    """the name of this evaluation"""
    seed: int = 1
    """seed of the policy's sampling"""
    runs_dir: str = "runs"
    """where the evaluation's folder is made"""
    resume: str = ""
    """go on with an evaluation: its folder; its flags hold"""

    # the environment
    env_id: str = "arena"
    """the environment (envs/__init__.py lists them)"""
    split: str = "test"
    """train, eval or test"""
    num_tasks: int = 0
    """tasks from the beginning of the split; 0: all"""
    tasks: str = ""
    """a file with the ids of the split's tasks to play, a line each, in that order; empty: num_tasks says which"""
    max_steps: int = 0
    """longest episode; 0: the run's own, or the environment's"""
    num_envs: int = 8
    """episodes played at once, each in a browser context of its own"""
    real_input: bool = False
    """act by trusted mouse and keyboard events instead of in-page dispatch"""
    real_clock: bool = False
    """--env-id site: pages wait in true time, in the place of a clock that moves with actions alone"""
    serials: tuple[str, ...] = ()
    """your phones and emulators, for --env-id phone:FILE (docs/android.md)"""
    screenshots: bool = False
    """keep a screenshot of every step; a model that sees needs them"""
    viewport: tuple[int, int] = (0, 0)
    """the page's width and height for a model that sees; 0 0: the run's own, or 1280 720"""

    # the policy: one of these two
    model_id: str = ""
    """a run's folder (the actor of its last checkpoint), a checkpoint's actor, or a model (folder or hub id), computed
    here"""
    script: str = ""
    """the script whose prompt the model reads; empty: the one kept in the run's folder, for a bare model webrl.py, for
    one that sees grpo_async.py, or distrl.py on phones"""
    policy: str = ""
    """URL of an OpenAI-compatible server; its key is read from OPENAI_API_KEY"""
    policy_model: str = ""
    """the model's name at that server; empty: the only one that it serves"""
    prompt_format: Literal["auto", "plain", "chat", "webrl"] = "auto"
    """webrl.py's formats; auto: the run's own, chat for a server; webrl: the released checkpoints', which a server is
    asked to complete as text"""
    temperature: float = 0.0
    """sampling temperature; 0: greedy"""
    max_new_tokens: int = 0
    """longest answer in tokens; 0: the run's own, else that of the script's preset for the model's size, or 2048"""
    page_tokens: int = 0
    """longest page in a prompt in tokens (for a server: of four characters); 0: as for the answer, or 12000"""
    reply_timeout: float = 300.0
    """seconds for one whole reply of a model by URL, the policy or a judge: longer is a fault"""
    episode_timeout: float = 0.0
    """seconds for one episode: the step after them is a fault, and it is played again; 0: no limit"""


# What an evaluation measures: with another value it is another one.
FIXED = """env_id split tasks seed model_id script policy policy_model prompt_format temperature max_new_tokens
page_tokens max_steps viewport real_clock""".split()


class Bytes:
    """The tokenizer of a policy that takes and gives text: its tokens are the bytes."""

    eos_token_id = chat_template = None

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


class Endpoint:
    """A model behind an OpenAI-compatible URL: what samples in a Player's stead (an Engine that needs no tokens).

    `prompt` is the Player's: it keeps the text and hands on its number, in the place of token ids.
    """

    def __init__(self, args):
        self.released = args.prompt_format == "webrl"
        self.script = script_module(args.script or "webrl.py")
        if not hasattr(self.script, "released_prompt" if self.released else "agent_task"):
            raise UsageError(f"--script {args.script}: a server is asked in the format of webrl.py or a copy of it")
        self.server = serve.Server(args.policy, f"--policy {args.policy}")
        self.model = args.policy_model or serve.served_model(args.policy, "--policy", only=True)
        if not self.released:  # a wrong URL, key or name shows now, not in every episode
            serve.reply(args.policy, self.model, "Reply with OK.", "--policy", serve.LIMITS.start)
        self.texts, self.count = {}, 0

    def prompt(self, instruction, steps, obs):
        actions = [step.action for step in steps]
        if self.released:
            text = self.script.released_prompt(LLAMA, instruction, actions, obs["text"])
        else:
            text = self.script.agent_task(instruction, actions, obs)
        self.count += 1
        self.texts[self.count] = text
        return [self.count]

    async def complete(self, prompt_ids, seed, temperature, max_new_tokens, version):
        """One prompt's Completion, without log-probs. Raises EnvFault where the server gives none."""
        text = self.texts.pop(prompt_ids[0])
        settings = {"temperature": temperature, "max_tokens": max_new_tokens}
        settings |= {"seed": seed} if temperature else {}
        if self.released:
            body = {"model": self.model, "prompt": text, "stop": [self.script.END], **settings}
            said = await self.server.ask("/completions", body, lambda reply: serve.clean(reply["choices"][0]["text"]))
        else:
            system = {"role": "system", "content": self.script.AGENT_SYSTEM_PROMPT}
            said = await self.server.chat(self.model, [system, {"role": "user", "content": text}], **settings)
        return llm.Completion(list(said.encode(errors="replace")), [], version)


# What `released_prompt` takes out of a page, for a model whose tokenizer is at the server: Llama 3's control tokens.
LLAMA = SimpleNamespace(
    added_tokens_decoder={
        number: SimpleNamespace(content=f"<|{name}|>", special=True)
        for number, name in enumerate(
            "begin_of_text end_of_text start_header_id end_header_id eot_id eom_id python_tag "
            "finetune_right_pad_id".split()
        )
    }
)


def make_env(args, settings, format, count_tokens):
    """The environment, with what only web pages need."""
    if args.env_id.partition("/")[0] in ("webshop", "alfworld"):
        return envs.make(args.env_id, format=format, data_dir=settings.get("data_dir", ""))
    return envs.make(
        args.env_id,
        format=format,
        page_tokens=args.page_tokens or settings.get("page_tokens", PAGE_TOKENS),
        count_tokens=count_tokens,
        real_input=args.real_input,
        real_clock=args.real_clock,
        screenshots=args.screenshots,
        serials=args.serials,
    )


def make_policy(args):
    """The environment, and a Player's arguments for who plays it (and `max_steps`, of a run). Raises UsageError for
    what cannot be had."""
    if args.policy:
        endpoint, script, settings, length = Endpoint(args), SimpleNamespace(), {}, args.max_new_tokens or NEW_TOKENS
        model, tokenizer, prompt = SimpleNamespace(generation_config=None), Bytes(), endpoint.prompt
        format = "webrl" if endpoint.released else "compact"

        def count_tokens(text):
            return len(text) / CHARACTERS_A_TOKEN

    else:
        endpoint = None
        model_id, script, settings = find_policy(args.model_id, "--model-id", args.script, args.env_id)
        preset = values_of(script.Args, llm.size_of(model_id))  # where no run says more
        settings = {name: preset[name] for name in ("max_new_tokens", "page_tokens") if name in preset} | settings
        if llm.size_of(model_id) == "tiny":
            learn.use_threads(1)  # two inside an operation wait for each other: thirty times slower on a busy machine
        if llm.sees(model_id) and args.prompt_format != "webrl":
            return make_seeing(args, model_id, script, settings)
        if args.prompt_format != "auto":
            settings = settings | {"prompt_format": args.prompt_format}
        model, tokenizer = llm.load(model_id)
        make_prompt = prompt_of(script, False)
        own = prompt_settings(make_prompt, settings)
        form = own.get("prompt_format", "auto")
        format = "webrl" if form == "webrl" else "compact"
        if hasattr(script, "is_chat") and args.env_id.partition("/")[0] in ("webshop", "alfworld"):
            format = "original" if script.is_chat(tokenizer, form) else "compact"  # crps.py's

        def prompt(instruction, steps, obs, skip=0):
            return make_prompt(tokenizer, instruction, steps, obs, skip=skip, **own)

        def count_tokens(text):
            return len(tokenizer.encode(text, add_special_tokens=False))

        length = args.max_new_tokens or settings.get("max_new_tokens", NEW_TOKENS)
        prompt = within(prompt, room_of(llm.context_of(model), length, f"--model-id {args.model_id}"))

    return make_env(args, settings, format, count_tokens), dict(
        model=model,
        reader=tokenizer,
        prompt=prompt,
        engine=endpoint,
        max_new_tokens=length,
        max_steps=settings.get("max_steps", 0),  # 0: the environment's
        judge_states=settings.get("judge_states", False),  # as the run's own episodes end
        read_action=getattr(script, "read_action", str),
    )


class SeeingPrompt:
    """The `prompt` of a model that sees. `folder` is the evaluation's, where earlier steps' screenshots are."""

    def __init__(self, prompt, processor, settings):
        self.prompt, self.processor, self.settings, self.folder = prompt, processor, settings, None

    def __call__(self, instruction, steps, obs):
        steps = [replace(step, screenshot=self.picture(step.screenshot)) for step in steps]
        return self.prompt(self.processor, instruction, steps, obs, **self.settings)

    def picture(self, name):
        return name and (self.folder / name).read_bytes()


def make_seeing(args, model_id, script, settings):
    """The same for a model that sees."""
    if args.env_id.partition("/")[0] in ("webshop", "alfworld"):
        raise UsageError(f"--model-id {args.model_id} sees, {args.env_id} has no pictures")
    model, processor = llm.load(model_id, vision=True)
    if args.prompt_format != "auto":
        settings = settings | {"prompt_format": args.prompt_format}
    on_phone = args.env_id.startswith("phone")
    needs = (
        dict(PHONE_EYES)
        if on_phone
        else eyes(settings) | {"real_input": args.real_input, "real_clock": args.real_clock}
    )
    if any(args.viewport):
        needs["viewport"] = tuple(args.viewport)
    make_prompt = prompt_of(script, True)
    prompt = SeeingPrompt(make_prompt, processor, prompt_settings(make_prompt, settings))

    return envs.make(args.env_id, serials=args.serials, **needs), dict(
        model=model,
        reader=processor,
        prompt=prompt,
        max_new_tokens=args.max_new_tokens or settings.get("max_new_tokens", NEW_TOKENS),
        max_steps=settings.get("max_steps", 0),  # 0: the environment's
        judge_states=settings.get("judge_states", False),  # as the run's own episodes end
        read_action=str if on_phone else partial(visual.read_action, size=needs["viewport"]),
    )


def column(site):
    """The table's column of a task's `site`, which may join several by +, or be an address: its host."""
    if "://" in site:
        return site_name(site)
    names = [name for name in site.split("+") if name != "wikipedia"] or ["wikipedia"]
    return COLUMNS.get(names[0], names[0]) if len(names) == 1 else SEVERAL


def table(trajectories):
    """Success in percent and number of tasks, by column (up to MANY) and in all, as a Markdown table: the paper's
    Table 1."""
    played, won = Counter(), Counter()
    for trajectory in trajectories:
        played[column(trajectory.task.site)] += 1
        won[column(trajectory.task.site)] += bool(trajectory.verdict)
    order = [*COLUMNS.values(), *sorted(set(played) - {*COLUMNS.values(), SEVERAL}), SEVERAL]
    names = [name for name in order if played[name]] if len(played) <= MANY else []  # WebGym has thousands of sites
    rates = [f"{100 * won[name] / played[name]:.1f}" for name in names]
    rows = [
        ["", *names, "Avg."],
        ["---"] * (len(names) + 2),
        ["success, %", *rates, f"{100 * won.total() / played.total():.1f}"],
        ["tasks", *(str(played[name]) for name in names), str(played.total())],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def report(run, tasks, trajectories, faults):
    """Prints the table of the tasks that have a check, and what was not played. Raises TooManyFaults where nothing
    was, or every page hung, UsageError where no prompt had room: that is no success of 0."""
    if len(trajectories) <= faults.agent_hangs:
        raise TooManyFaults(f"no task could be played; go on with --resume {run.path}; the last fault: {faults.last}")
    if all(t.ending == "overflow" for t in trajectories):
        raise UsageError("no prompt had room for the page: fewer --page-tokens, or a model with a longer context")
    checked, unknown = by_check(trajectories)
    won = sum(bool(t.verdict) for t in checked)
    if checked:
        run.say(f"\n{table(checked)}\n\nSuccess {wilson(won, len(checked))}, {won} of {len(checked)} tasks")
    if unknown:
        others = f"if all of them failed it is {won / len(trajectories):.3f} of {len(trajectories)}" if checked else ""
        run.say(f"Nobody knows about {len(unknown)} tasks: they have no check{'; ' * bool(others)}{others}")
    if faults.faults:
        of_judges = f", {faults.unanswered} of them because a judge gave no verdict" if faults.unanswered else ""
        run.say(f"{faults.faults} of {faults.episodes} episodes ended in faults{of_judges}")
    played = {t.task.task_id for t in trajectories}
    missing = [task.task_id for task in tasks if task.task_id not in played]
    if missing:
        run.say(
            f"Not played because of faults: {len(missing)} tasks ({', '.join(missing[:20])}); as failures they make"
        )
        run.say(f"it {won / len(tasks):.3f}. --resume {run.path} plays them again")


def named_tasks(tasks, file):
    """Those of the tasks whose ids are in the file, in its order. Raises UsageError for an id that is none of them."""
    try:
        wanted = [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"--tasks {file}: {error.strerror}") from error
    by_id = {task.task_id: task for task in tasks}
    unknown = [task_id for task_id in wanted if task_id not in by_id]
    if unknown or not wanted:
        raise UsageError(f"--tasks {file}: no task of this split: {', '.join(unknown[:5]) or 'the file is empty'}")
    return [by_id[task_id] for task_id in wanted]


def open_run(args):
    """The evaluation's folder, a new one or that of --resume."""
    if not args.resume:
        return Run.create(args, __file__, args.runs_dir)
    saved = resume.saved_args(args.resume)
    for name in FIXED:
        before, now = saved.get(name, getattr(Args(), name)), getattr(args, name)
        if before != (list(now) if isinstance(now, tuple) else now):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--resume {args.resume}: it was begun with {flag} {before}, not {now}")
    run = Run(Path(args.resume), args, __file__)
    run.begin()
    return run


def main(args):
    args.env_id = envs.full_name(args.env_id)
    if bool(args.model_id) == bool(args.policy):
        raise UsageError("who plays? --model-id MODEL or --policy URL, one of them")
    if args.policy and args.prompt_format == "plain":
        raise UsageError("--prompt-format plain is for --model-id; a server is asked in chat or webrl")
    if args.num_envs < 1:
        raise UsageError("--num-envs must be at least 1")
    serve.set_limits(args)
    env, policy = make_policy(args)
    own = policy.pop("max_steps")
    longest = args.max_steps or own
    tasks = [replace(task, max_steps=longest or task.max_steps) for task in env.tasks(args.split)]
    tasks = named_tasks(tasks, args.tasks) if args.tasks else tasks[: args.num_tasks or None]
    with asyncio.Runner() as runner, open_run(args) as run:
        if isinstance(policy["prompt"], SeeingPrompt):
            policy["prompt"].folder = run.path
        run.unfinished = run.trajectories  # the Player keeps each episode at once, and takes from there what it finds
        notes = getattr(env, "notes", [])
        run.say("\n".join([f"run folder {run.path}", *notes]))
        player = Player(env, run=run, runner=runner, num_envs=args.num_envs, **policy)
        try:
            trajectories = player.play(tasks, args.temperature, args.seed, args.split, kind="eval")
        except (KeyboardInterrupt, TooManyFaults):
            run.say(f"go on with --resume {run.path}")
            raise
        finally:
            runner.run(env.close())
        metrics = evaluation_metrics(by_check(trajectories)[0], args.split) | player.metrics()
        if args.policy:
            del metrics["perf/tokens_generated"]  # they were bytes
        run.log(metrics | {"notes": "; ".join(notes)}, 0)
        report(run, tasks, trajectories, player.faults)
        if trajectories:
            print(f"Episodes    {view.write(run.path, view.Args(run=str(run.path)))}")


if __name__ == "__main__":
    run_main(lambda: main(parse_args(Args)))
