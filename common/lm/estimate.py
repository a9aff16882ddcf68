"""What a run will cost, said before it begins: episodes, steps, tokens, time and memory; and micro-batches that fit the
memory that is free.

The oracle plays two of the training tasks, which shows how long prompts, answers and episodes are and what a step of
the environment costs; then the loaded model generates, reads and learns a few hundred such tokens, for some seconds at
most, by a random state of its own. A script's `Work` says how many of these steps its flags make. docs/real.md has
estimates beside what the runs took.
"""

import asyncio
import itertools
import math
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from common.errors import EnvFault, UsageError
from common.lm import learn, llm, parallel
from common.lm.args import values_of
from common.lm.net import Net
from common.lm.rollout import demonstrate
from common.replay import Step, steps_of

WEAK = 1 / 8  # of the steps that an episode has left where the oracle is done: an agent that fails goes on
SURE = 0.9  # of what is free may be taken: what else runs needs some
SHORT = 0.15  # seconds of a measurement at least: on a busy machine less says nothing
BUSY = 1.5  # times as slow as alone: worth saying
BESIDE = 0.7  # of a core's work is what a second thread adds
DAY = 24 * 3600.0
LIBRARIES = 600 << 20  # bytes of a process that plays beside the learner's, without its weights


@dataclass
class Work:
    """What a script does, in episodes and in steps (a prompt and its answer).

    rollouts, tested: episodes by the policy, of training and of evaluation; learned, scored: steps that go forward and
    backward through a network (each time, whatever network), and forward alone; nets, frozen: networks besides the
    actor that are trained, and that are not; slots: episodes at once; copies: of the policy in other processes;
    beside: rollouts go on while the learner trains; sampled: the share of a rollout's steps that the policy plays.
    """

    demos: int
    rollouts: float
    tested: int
    learned: float
    scored: float
    nets: int
    slots: int
    frozen: int = 0
    copies: int = 0
    beside: bool = False
    sampled: float = 1.0


@dataclass
class Sample:
    """What episodes look like: steps of a few, and their prompts with pictures; seconds of a step in the environment;
    how many steps an episode has."""

    steps: list[Step]
    prompts: list
    seconds: float
    length: float


# ------------------------------------------------------------------------------------ what the scripts' flags amount to
def webrl(args, steps: float, tasks: tuple[int, int, int]) -> Work:
    """Of webrl.py. steps: of an episode; tasks: how many there are in train, eval and test."""
    demos, fresh = _demos(args, tasks), args.instructions_per_phase * steps
    has_orm = args.judge == "orm"
    labels = max(0, args.orm_episodes - args.start_episodes - demos) if has_orm and not args.orm_data else 0
    refreshed = args.num_phases * args.orm_refresh if has_orm else 0
    tested = args.num_phases * min(args.eval_tasks, tasks[1]) + (2 + args.control) * min(args.test_tasks, tasks[2])
    rollouts = args.start_episodes + labels + args.num_phases * args.instructions_per_phase + refreshed
    drawn = fresh * (1 + args.replay * args.replay_ratio)
    kept = drawn * (args.floored_keep + (1 - args.floored_keep) * 0.8)  # so many were above the floor in the demo
    seen = {"none": fresh, "success": drawn, "both": 2 * fresh}[args.critic_replay]
    actor = args.num_phases * args.actor_epochs * kept
    learned = args.sft_epochs * demos * steps + actor + args.num_phases * args.critic_epochs * seen
    learned += args.critic_warmup_epochs * args.start_episodes * steps + args.control * actor
    learned += has_orm * (args.orm_epochs * args.orm_episodes + 4 * refreshed)
    scored = args.num_phases * 3 * drawn + has_orm * (rollouts + tested)
    return Work(demos, rollouts, tested, learned, scored, 1 + has_orm, args.num_envs)


def crps(args, steps: float, tasks: tuple[int, int, int]) -> Work:
    """The same of crps.py."""
    demos, batch = _demos(args, tasks), args.groups_per_iteration * args.group_size
    restored = args.p_replay / 2 if args.replay == "suffix" else 0.0  # about half of a restart is not played
    iterations = args.iterations if args.algorithm != "sft" else 0
    if args.total_steps:
        iterations = min(iterations, math.ceil(args.total_steps / (batch * steps * (1 - restored))))
    rollouts, tests = iterations * batch, (1 + args.test_before) * min(args.test_tasks, tasks[2])
    mixed = 1.0 if args.kl_coef else 0.6  # groups without a signal are not trained on
    trained, critic = mixed * rollouts * steps * args.update_epochs, args.algorithm == "ppo"  # prefixes, too
    learned = args.sft_epochs * demos * steps + trained + critic * rollouts * steps
    scored = rollouts * steps * (mixed * (args.recompute_logprobs + (args.kl_coef > 0)) + critic)
    tested = iterations // args.eval_every * min(args.eval_tasks, tasks[1]) + tests
    nets, frozen = int(critic), int(args.kl_coef > 0)
    return Work(demos, rollouts, tested, learned, scored, nets, args.num_envs, frozen, sampled=1 - restored)


def digirl(args, steps: float, tasks: tuple[int, int, int]) -> Work:
    """The same of digirl.py."""
    demos, rounds = _demos(args, tasks), args.iterations
    if args.total_trajectories:
        rounds = min(rounds, math.ceil(args.total_trajectories / args.batch_trajectories))
    held = min(args.buffer_steps, rounds * args.batch_trajectories * steps / 2)  # steps in the buffer, in the mean
    passed = held * (1 - args.filter_quantile * args.filter_trajectories)
    positive = 0.5 if args.filter_steps else 1.0
    learned = args.sft_epochs * demos * steps + rounds * (
        positive * args.actor_updates * args.batch_size
        + args.step_updates * args.batch_size
        + args.instruction_updates * args.instruction_batch_size
    )
    scored = rounds * (held / steps + passed)
    tested = rounds // args.eval_every * min(args.eval_tasks, tasks[1])
    tested += (1 + args.test_before) * min(args.test_tasks, tasks[2])
    return Work(demos, rounds * args.batch_trajectories, tested, learned, scored, 2, args.num_envs)


def distrl(args, steps: float, tasks: tuple[int, int, int]) -> Work:
    """The same of distrl.py."""
    demos, drawn = _demos(args, tasks), args.iterations * args.batch_trajectories
    rollouts = drawn / args.replay_ratio if args.replay_ratio else args.total_trajectories or drawn
    rollouts = max(rollouts, args.warmup_trajectories)
    critics = args.algorithm != "filtered-bc"
    learned = args.sft_epochs * demos * steps + drawn * steps * args.actor_epochs
    if critics:
        seen = drawn * args.critic_epochs + args.warmup_trajectories * args.critic_warmup_epochs
        learned += seen * (steps + 1)  # of V and of V_traj
    refreshed = args.iterations / args.refresh_every * (args.refresh_size or rollouts / 2)
    scored = critics * 2 * steps * (2 * drawn + refreshed)
    tested = args.iterations // args.eval_every * min(args.eval_tasks, tasks[1])
    tested += (1 + args.test_before) * min(args.test_tasks, tasks[2])
    slots = args.num_workers * args.phones_per_worker
    copies = args.num_workers if not args.gpus_per_worker else 0
    return Work(demos, rollouts, tested, learned, scored, 2 * critics, slots, copies=copies, beside=not args.sync)


def grpo_async(args, steps: float, tasks: tuple[int, int, int]) -> Work:
    """The same of grpo_async.py."""
    demos, batch = _demos(args, tasks), args.iterations * args.batch_trajectories
    rollouts = batch / 0.7 if args.dynamic_sampling else batch  # some groups are gathered in vain
    learned = args.sft_epochs * demos * steps + batch * steps * args.update_epochs
    tested = args.iterations // args.eval_every * min(args.eval_tasks, tasks[1])
    tested += (1 + args.test_before) * min(args.test_tasks, tasks[2])
    slots, copies = args.num_workers * args.envs_per_worker, args.num_servers + args.eval_servers
    copies = 0 if args.engine or args.gpus_per_server else copies
    scored = batch * steps * (args.loss in ("decoupled", "raft"))
    return Work(demos, rollouts, tested, learned, scored, 0, slots, copies=copies, beside=not args.sync)


def _demos(args, tasks):
    return args.num_demos if not getattr(args, "demos", "") and args.num_demos < tasks[0] else min(128, tasks[0])


# -------------------------------------------------------------------------------------------------------- measurements
async def sample(env, args, prompt: Callable, encode: Callable, write: Callable, read: Callable) -> Sample:
    """What the oracle does at two of the training tasks. Arguments as of `rollout.demonstrate`. Where there is no
    oracle, or a fault, a guess."""
    steps, prompts, lengths, seconds = [], [], [], 0.5  # a page somewhere on the net

    def ask(instruction, before, obs):
        found = prompt(instruction, before, obs)
        if found is not None:
            prompts.append(found)
        return found

    tasks = tasks_of(env, "train", args)
    for task in (tasks[len(tasks) // 3], tasks[2 * len(tasks) // 3]) if tasks else ():
        begun = time.perf_counter()
        try:
            played = await demonstrate(env, task, ask, encode, write, lambda picture: picture, read)
        except (EnvFault, UsageError):  # what is wrong with the user's input the script says itself
            del prompts[len(steps) :]
            continue
        if played.steps:
            seconds = (time.perf_counter() - begun) / len(played.steps)  # of the last one: the first starts a browser
            steps += steps_of([played])
            lengths.append(len(played.steps))
    if not steps:
        steps = [Step([0] * 500, [0] * min(32, args.max_new_tokens), [], 0, "", "")]
        prompts = [list(step.prompt_ids) for step in steps]
    known = [task.steps for task in tasks if task.steps] or lengths or [mean([task.max_steps for task in tasks]) / 2]
    length = mean(known)
    return Sample(steps, prompts, seconds, length + WEAK * max(0.0, mean([t.max_steps for t in tasks]) - length))


def tasks_of(env, split: str, args) -> list:
    """A split's tasks as the script plays them."""
    horizon, longest = (getattr(args, name, 0) for name in ("train_horizon", "max_steps"))
    kept = [task for task in env.tasks(split) if task.max_steps <= horizon or not horizon or split != "train"]
    return [replace(task, max_steps=longest or task.max_steps) for task in kept]


def mean(numbers: list) -> float:
    return sum(numbers) / max(1, len(numbers))


@dataclass
class Speed:
    """Seconds on this machine, had it nothing else to do, of a token: that generation reads; of the answers of all rows
    of a batch; that goes forward, and forward and backward. bytes_per_token: what the backward pass keeps of one; busy:
    how many times as long all took because of what else runs now."""

    read: float
    write: float
    score: float
    learn: float
    bytes_per_token: float
    busy: float


def measure(net: Net, seen: Sample, rows: int) -> Speed:
    """How fast the model is on prompts and answers like these, `rows` answers at a time. Nothing of it changes, no
    random state either. Less than a second on the tiny model, some seconds on one of 100 M weights on two cores."""
    on_gpu, parts, spent = net.model.device.type == "cuda", learn.side_by_side(), []
    weights = sum(p.numel() for p in net.model.parameters())
    budget = min(512, max(8, int((5e12 if on_gpu else 4e10) / weights)))  # tokens of a pass
    run, trained = learn.mapper(), [p for p in net.model.parameters() if p.requires_grad]
    alone = llm.is_tiny(net.model)  # others answer in parts, side by side (Player.play)
    whole = llm.takes_pictures(net.model)  # a prompt with a part of its picture's tokens is none

    def some(tokens):
        """(prompts, answers, tokens) of as many steps as have so many tokens; the last one is cut short."""
        prompts, answers, count = [], [], 0
        while count < tokens:
            number = len(prompts) % len(seen.steps)
            prompt, answer = seen.prompts[number], list(seen.steps[number].action_ids)
            prompts.append(prompt if whole else list(prompt)[: max(1, tokens - count - len(answer))])
            answers.append(answer)
            count += len(prompts[-1]) + len(answer)
        return prompts, answers, count

    def loss(part):
        return llm.token_logprobs(net.model, net.reader, *part[:2])[0].sum()

    def gradient(part):
        torch.autograd.grad(loss(part), trained, allow_unused=True)

    def forward(part):
        with torch.no_grad():
            loss(part)

    def timed(function, each, run=map, threads=1):
        """Seconds of `function` on each of them, without what else the machine does: by the CPU's time."""
        begun, used, times = time.perf_counter(), time.process_time(), 0
        while not times or time.perf_counter() - begun < SHORT:
            list(run(function, each))
            if on_gpu:
                torch.cuda.synchronize()
            times += 1
        wall, used = time.perf_counter() - begun, time.process_time() - used
        threads = max(threads, torch.get_num_threads() if run is map else parts)
        quiet = wall if on_gpu else min(wall, used / (1 + BESIDE * (threads - 1)))
        spent.append((wall, quiet))
        return quiet / times

    def generated(tokens):
        def answer(prompts):
            return llm.generate(net.model, net.reader, prompts, [0] * len(prompts), max_new_tokens=tokens)

        return answer if alone else lambda prompts: learn.in_parts(answer, prompts)

    with torch.random.fork_rng():
        learn.train_mode(net.model)
        small, large = some(budget // 4), some(budget)
        kept = [saved_bytes(net.model, partial(loss, part)) for part in (small, large)]  # and a warm-up
        more = large[2] - small[2]
        per_token = (kept[1] - kept[0]) / more if more else kept[1] / large[2]
        learning = timed(gradient, [large] * parts, run) / parts / large[2]
        net.model.eval()
        scoring = timed(forward, [large] * parts, run) / parts / large[2]
        reading = timed(forward, [large]) / large[2] if alone else scoring
        # that many rows of a few tokens: how much they have read matters little
        prompts = large[0] if whole else [list(seen.prompts[i % len(seen.prompts)])[:16] for i in range(rows)]
        one, five = (timed(generated(tokens), [prompts], threads=1 if alone else parts) for tokens in (1, 5))
    walls, quiet = map(sum, zip(*spent, strict=True))
    return Speed(reading, max(0.0, five - one) / 4 * rows / len(prompts), scoring, learning, per_token, walls / quiet)


def saved_bytes(model: torch.nn.Module, loss: Callable) -> int:
    """Bytes that the graph of `loss()` keeps for its backward pass, the weights themselves left out."""
    own, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = loss()  # held: a storage that is freed would be counted as the next one
    del value
    return sum(kept.values())


# -------------------------------------------------------------------------------------------------------------- memory
def free_memory(device: torch.device) -> int:
    """Bytes that may be taken: of the GPU, with what torch holds unused; else what the machine has and the process's
    control group allows."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [group_memory()]
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(1024 * int(line.split()[1]))
    return min((limit for limit in limits if limit is not None), default=1 << 62)


def group_memory(root: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that the control group (a container's limit) leaves free, by version 2 or 1; None where it has no limit."""
    for limit, used, stat, idle in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        most, now = (read_text(f"{root}/{name}").strip() for name in (limit, used))
        if most.isdigit() and now.isdigit() and int(most) < 1 << 60:  # version 1 has a huge number for none
            idle_pages = [line.split()[1] for line in read_text(f"{root}/{stat}").splitlines() if line.startswith(idle)]
            return int(most) - int(now) + int(idle_pages[0] if idle_pages else 0)
    return None


def read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def held_bytes(net: Net, work: Work, longest: int) -> int:
    """Bytes that a run takes besides the weights that are there and the activations: gradients, Adam's two means, the
    other networks' own weights, keys and values of all slots' prompts, copies of the policy in other processes."""
    trained = sum(p.numel() * p.element_size() for p in net.model.parameters() if p.requires_grad)
    config = net.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * heads * size * llm.base_of(net.model).dtype.itemsize * longest * work.slots
    parts = learn.side_by_side()  # each has gradients of its own
    copies = work.copies * (sum(p.numel() * p.element_size() for p in net.model.parameters()) + LIBRARIES)
    return int(trained * (2 + 3 * work.nets + work.frozen + parts) + cache + copies)


def fit(net: Net, held: int, bytes_per_token: float, longest: int, free: int) -> str:
    """Lowers the tokens of the net's micro-batches to what the free memory holds, and says so ("": nothing is lowered).
    Raises UsageError where the longest step alone does not fit."""
    parts = learn.side_by_side()
    room = SURE * free - held
    tokens = int(room / max(1.0, bytes_per_token) / parts)
    if tokens < longest:
        needed = (held + longest * bytes_per_token * parts) / SURE
        raise UsageError(
            f"{gib(free)} of memory are free, and a step of {longest} tokens needs {gib(needed)}: --lora-rank 16, "
            "--gradient-checkpointing, --cpu-threads 1, a shorter page or a smaller model"
        )
    if tokens >= net.tokens:
        return ""
    before, net.tokens = net.tokens, tokens
    return f"micro-batches of {tokens:,} tokens, not {before:,}: {gib(free)} of memory are free"


# ------------------------------------------------------------------------------------------------------------ the words
def seconds_of(work: Work, speed: Speed, seen: Sample, args, tested_length: float) -> float:
    """Wall seconds of a run on a machine that does nothing else."""
    tokens = sum(len(s.prompt_ids) + len(s.action_ids) for s in seen.steps) / len(seen.steps)
    answer = max(len(step.action_ids) for step in seen.steps)  # a batch goes on to its longest
    rows, columns = rows_of(work), zip(*(step.prompt_ids for step in seen.steps), strict=False)
    common = len(list(itertools.takewhile(lambda ids: len(set(ids)) == 1, columns)))  # read once for all rows
    read = max(1.0, tokens - common * (1 - 1 / rows))
    a_step = 0.0 if getattr(args, "engine", "") else speed.read * read + speed.write * answer / rows
    waits = getattr(args, "phone_delay", "0") != "0" or getattr(args, "page_delay", 0.0) > 0
    page = seen.seconds / speed.busy + getattr(args, "page_delay", 0.0)
    page /= work.slots if waits else min(work.slots, os.cpu_count() or 1)
    rollouts = work.rollouts * work.sampled * seen.length * max(a_step, page)
    tested = work.tested * tested_length * max(a_step, page)
    training = tokens * (work.learned * speed.learn + work.scored * speed.score)
    whole = tested + (max(rollouts, training) if work.beside else rollouts + training)
    return work.demos * seen.length * page + whole / parallel.size()


def rows_of(work: Work) -> int:
    """Answers that are generated at a time: a batch waits for half of the slots."""
    return max(1, min(64, work.slots) // 2)


def small_preset(args):
    """The arguments as --preset small would have them, those kept that are not their preset's."""
    before = {f: getattr(type(args)(), f) for f in values_of(type(args), "small")} | values_of(type(args), args.preset)
    changed = {f: value for f, value in values_of(type(args), "small").items() if getattr(args, f) == before[f]}
    return replace(args, **changed, preset="small")


def begin(
    args,
    net: Net,
    env,
    prompt: Callable,
    work_of: Callable,
    say: Callable,
    write_action: Callable = lambda action, thought, obs: action,
    read_action: Callable = str,
    runner: asyncio.Runner | None = None,
) -> None:
    """Say what the run is and what it will cost, and lower the net's micro-batches to what is free.

    `work_of`: of the functions above the script's; `runner`: the asyncio.Runner that plays on `env` from then on,
    without one the environment is for this alone, and closed; `prompt`, `write_action`, `read_action` as of
    `rollout.demonstrate`. Under FSDP nothing is measured or said. Raises UsageError where the longest step does not
    fit into memory.
    """

    if parallel.sharded():  # its passes must be as many in every process, which a clock does not make them
        return

    def encode(answer):
        answer = llm.without_special_tokens(net.tokenizer, answer)
        return net.tokenizer.encode(answer, add_special_tokens=False) + [llm.end_of_turn(net.tokenizer)]

    async def look():
        try:
            return await sample(env, args, prompt, encode, write_action, read_action)
        finally:
            if runner is None:
                await env.close()

    seen = runner.run(look()) if runner else asyncio.run(look())
    splits = [tasks_of(env, split, args) for split in ("train", "eval", "test")]
    counts = tuple(map(len, splits))
    ends = [mean([task.max_steps for task in tasks]) for tasks in splits]
    longer = ends[2] / ends[0] if all(ends) else 1.0  # an episode of evaluation than one of training
    work = work_of(args, seen.length, counts)
    speed = measure(net, seen, rows_of(work))
    longest = max(len(step.prompt_ids) for step in seen.steps) + args.max_new_tokens
    held, here = held_bytes(net, work, longest), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    lowered = fit(net, held, speed.bytes_per_token, longest, free_memory(net.model.device) // here)

    def seconds(args):
        return seconds_of(work_of(args, seen.length, counts), speed, seen, args, seen.length * longer)

    whole, activations = seconds(args), speed.bytes_per_token * max(longest, net.tokens) * learn.side_by_side()
    line = (
        f"--preset {args.preset}: {work.demos:,} demonstrations, {work.rollouts + work.tested:,.0f} episodes of some "
    )
    line += f"{seen.length:.0f} steps, {work.learned:,.0f} steps through training: about {spoken(whole)}"
    line += f" and {gib(held + activations + taken(net))} on this machine"
    line += f" ({speed.busy:.1f} times that while so much else runs)" if speed.busy > BUSY else ""
    line += ", without the time of --engine" if getattr(args, "engine", "") else ""
    line += "; a part of that is done" if args.resume else ""
    if whole > DAY and args.preset != "small":
        line += f"; --preset small: {spoken(seconds(small_preset(args)))}"
    say(line)
    if lowered:
        say(lowered)


def taken(net: Net) -> int:
    """Bytes that this process has taken."""
    if net.model.device.type == "cuda":
        return torch.cuda.memory_allocated()
    return int((read_text("/proc/self/statm") or "0 0").split()[1]) * resource.getpagesize()


def spoken(seconds: float) -> str:
    """A duration as people say it."""
    for unit, size, most in (("second", 1, 90), ("minute", 60, 90), ("hour", 3600, 36)):
        if seconds < most * size:
            count = max(1, round(seconds / size))
            return f"{count} {unit}{'s' * (count > 1)}"
    return f"{round(seconds / DAY):,} days"


def gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"
