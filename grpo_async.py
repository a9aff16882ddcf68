"""AsyncWebRL: fully asynchronous multi-step GRPO for visual web agents.

Rollouts never wait for the learner, nor the learner for them: when an episode ends the next one begins, whatever the
policy's version. How far rollouts may run ahead is bounded (staleness), and the loss separates the policy that sampled
from the one whose clip range counts (decoupled, Eq. 1), with a constant 1/k in the place of GRPO's 1/|tau|. Everything
of the paper is in this file: the loss, the groups, admission, the everlasting pool of rollouts, screenshots by
reference, the agent's prompt, and its baselines (coupled loss, RAFT++; WebGym's REINFORCE is in variants/).

On Ray: rollout workers with a browser each, policy servers that batch their prompts and swap weights between two
batches, a store for screenshots, and the learner in this process. On one machine by default, on a cluster with
--ray-address.

    python grpo_async.py                                  # tiny model that sees, gallery, two CPU cores
    python grpo_async.py --sync                           # the same parts, one after the other
    python grpo_async.py --step-weight trajectory         # 1/|tau|: plain multi-step GRPO
    python grpo_async.py --loss coupled                   # also raft, reinforce (with --sync)
    python grpo_async.py --model-id Qwen/Qwen3-VL-8B-Instruct --num-demos 0 --lora-rank 64 --env-id webgym:FILE
"""

import common.interrupt  # noqa: F401  # isort: skip

import asyncio
import contextlib
import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

import envs
from common.actions import between
from common.errors import TooManyFaults, UsageError
from common.lm import estimate, fsdp, learn, llm, net, parallel, serve
from common.lm.args import RunArgs, check_ranges, own_first, parse_args, preset
from common.lm.cluster import start_ray
from common.lm.engine import AnswerServer, EngineServer
from common.lm.learn import mean_loss, padded, warmup_cosine
from common.lm.net import Net
from common.lm.players import Batcher, Players, TaskList
from common.lm.rollout import Slots, check_end, check_tested, demonstrate, logprob_gap, play, warn_of_gap
from common.lm.run import Run, run_main
from common.lm.session import check_flags, context_with, load_actor
from common.lm.stats import evaluation_metrics, rollout_metrics
from common.replay import image_name, kind_of, steps_of
from common.visual import read_action, without_thoughts, write_action
from tools import plot, view
from variants.grpo_async import REPLAYED, changing_steps, play_again, read_schedule, replay, successes


@own_first
@dataclass
class Args(RunArgs):
    # of those that all scripts share (common/lm/args.py)
    cpu_threads: int = preset(0, tiny=1)
    sft_learning_rate: float = preset(1e-5, tiny=1e-3, small=1.5e-4)
    micro_batch_tokens: int = preset(16384, tiny=2048, small=1024)
    adam_eps: float = preset(1e-8, tiny=1e-5, small=1e-8)

    # the environment
    env_id: str = "gallery"
    """the environment: gallery, miniwob/.., arena, webgym:FILE (envs/__init__.py lists them)"""
    viewport: tuple[int, int] = preset((1280, 720), tiny=(96, 96), small=(512, 384))
    """width and height of the page that is seen"""
    max_steps: int = 0
    """longest episode; 0: the task's own (gallery: 10, 20, 30 by its requirements)"""
    train_horizon: int = preset(0, tiny=10)
    """rollouts are of training tasks with a horizon of at most so many steps; 0: of all. Demonstrations are of all"""
    page_delay: float = 0.0
    """seconds that a page takes longer than it does, median of a lognormal: slow sites on a fast machine"""
    page_delay_sigma: float = 1.0
    """and that lognormal's sigma"""

    # the system
    ray_address: str = ""
    """a Ray cluster's address, or auto; its nodes have this project and its packages at the same place. Empty: a Ray of
    our own on this machine"""
    num_workers: int = preset(12, tiny=1)
    """rollout workers, a browser each"""
    envs_per_worker: int = preset(32, tiny=16, small=8, smoke=4)
    """episodes that a worker plays at once (released: 32, and 1,280 in all, of which eta admits 384)"""
    num_servers: int = 1
    """policy servers, which share the workers"""
    gpus_per_server: float = 0.0
    """GPUs that Ray gives each of them"""
    engine: str = ""
    """URL of a vLLM server that samples the answers; needs --lora-rank and a chat prompt: after every batch it loads
    the new adapter (docs/gpu.md)"""
    staleness: int = 2
    """eta: how many versions old a step may be that is trained on"""
    sync: bool = False
    """synchronous: nothing is played while the learner trains (eta = 0)"""
    schedule: str = ""
    """folder of a run whose schedule is played again: the same groups in the same batches, every step sampled by the
    version that it was sampled by there, one prompt at a time; two such runs have the same metrics, bit for bit"""

    # the model
    model_id: str = "assets/tiny-vl"
    """vision-language model: a local folder or a hub id"""
    max_new_tokens: int = preset(4096, tiny=4, small=128)
    """longest answer in tokens (released: 4096)"""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """chat: the paper's response format in the model's chat template; plain: for the tiny model; auto: chat where the
    tokenizer has a template"""
    max_tokens: int = 16384
    """longest prompt with its answer in tokens (released: 16384); a prompt without room for an answer ends the episode,
    a failure"""
    history_images: int = 2
    """screenshots in a chat's prompt, that of now included; the steps before are a line each (released: 2, as
    history_window 1)"""
    response_format: Literal["vanilla", "progress", "additive", "compressive"] = "additive"
    """what an answer in a chat has before its action: nothing; progress and intention; also a memory that is only added
    to (the paper's); or one that is written anew"""

    # supervised fine-tuning: the start of the tiny model
    num_demos: int = preset(128, tiny=130, small=48, smoke=24)
    """demonstrations that the oracle plays on training tasks; 0: none, and no fine-tuning (instruct models, as in the
    paper)"""
    sft_epochs: int = preset(3, tiny=8, small=3, smoke=2)
    """passes over the demonstrations"""
    sft_batch_size: int = 32
    """steps per update of the fine-tuning"""

    # reinforcement learning
    loss: str = "decoupled"
    """decoupled: Eq. 1; coupled: the clip range around the policy that sampled; raft: RAFT++, batches of successes,
    1/|tau|; reinforce: WebGym's rule (with --sync), cross-entropy on steps of the successes of the last four batches"""
    group_size: int = preset(8, tiny=8, smoke=4)
    """rollouts G of a task (released: 8); reinforce: no groups"""
    batch_trajectories: int = preset(128, tiny=128, small=32, smoke=16)
    """trajectories per batch (released: 128)"""
    iterations: int = preset(300, tiny=25, small=10, smoke=2)
    """batches (released: 300)"""
    update_epochs: int = 3
    """passes over a batch (released: 3; reinforce: 2, whatever is here)"""
    minibatches: int = 2
    """updates of a pass (released: 2)"""
    learning_rate: float = preset(5e-6, tiny=4e-4, small=2e-5)
    """peak rate (released: 5e-6); warm-up, then a cosine to a tenth"""
    clip_eps: float = 0.2
    """clip range of pi_theta / pi_prox"""
    dual_clip: float = 3.0
    """bound of a token's loss in multiples of a negative advantage; 0: none"""
    behave_cap: float = 5.0
    """tokens with a larger pi_prox / pi_behave are left out; 0: none are"""
    step_weight: Literal["constant", "trajectory"] = "constant"
    """constant: 1/k; trajectory: 1/|tau|"""
    k: float = 10.0
    """the constant (the easy tasks' horizon). --learning-rate is for 10; the step is 10 / k times as long"""
    loss_mean: Literal["group", "tokens"] = "group"
    """group: summed over a group's steps and tokens and divided by G, as Eq. 1; tokens: the mean over all tokens, as
    the released code"""
    dynamic_sampling: bool = preset(True, tiny=True, smoke=False)
    """groups whose rewards are all equal are gathered anew"""
    max_grad_norm: float = 1.0
    """clip of the norm of the actor's gradient, of a mean over tokens (released: 1): with --loss-mean group times the
    tokens of a trajectory (the fine-tuning's: 1)"""

    # evaluation
    eval_every: int = preset(10, tiny=10, smoke=2)
    """iterations between two evaluations"""
    eval_tasks: int = preset(128, tiny=60, small=16, smoke=4)
    """tasks of the eval split"""
    test_tasks: int = preset(300, tiny=240, small=100, smoke=6)
    """tasks of the test split played at the start and at the end"""
    test_before: bool = True
    """play them at the start, too"""
    eval_servers: int = preset(1, tiny=0)
    """policy servers for evaluations alone, which keep their version while training goes on; 0: training waits for an
    evaluation, as it does with --sync, --schedule and --engine"""
    eval_temperature: float = 0.0
    """sampling temperature of evaluations; 0: greedy"""
    save_every: int = 10
    """iterations between two checkpoints"""


# ------------------------------------------------------------------------------------------------------- the equations
def group_advantages(rewards, eps=1e-6):
    """(R - mean) / (population std + eps) over one group's trajectories (Eq. 1's A_i). [G] -> [G], zeros where all
    rewards are equal (in floating point their std need not be 0)."""
    if not len(rewards) or bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + eps)


def decoupled_loss(
    logprobs, prox_logprobs, behave_logprobs, advantages, mask, clip_eps=0.2, dual_clip=3.0, behave_cap=5.0
):
    """Eq. 1 for every token, to be minimised: pi_prox / pi_behave times PPO's clipped objective around pi_prox.

    logprobs, prox_logprobs, behave_logprobs: [N, T], N steps of T tokens, of which `mask` [N, T] are real; advantages:
    [N]. `dual_clip` bounds the loss of a token with a negative advantage by dual_clip * |A| (0: no bound); a token
    whose pi_prox / pi_behave is above `behave_cap` (0: no cap) counts nothing.
    Returns (loss [N, T], 0 where masked or capped; {"clipped", "dual_clipped", "capped"}: shares of the real tokens).
    """
    advantages = advantages[:, None]
    # a ratio that overflows would make the gradient NaN, of a token that counts nothing, too: 0 times infinity
    ratio = (logprobs - prox_logprobs).clamp(-20, 20).exp()
    plain, clipped = ratio * advantages, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantages
    loss = -torch.minimum(plain, clipped)
    dual = torch.zeros_like(mask)
    if dual_clip:
        bound = -dual_clip * advantages
        dual = mask & (advantages < 0) & (loss > bound)
        loss = torch.where((advantages < 0) & (loss > bound), bound, loss)
    behave = (prox_logprobs - behave_logprobs).detach().clamp(-20, 20).exp()
    capped = mask & (behave > behave_cap) if behave_cap else torch.zeros_like(mask)
    counts = mask & ~capped
    loss = torch.where(counts, behave * loss, 0.0)
    real = mask.sum().clamp(min=1)
    shares = {
        "clipped": (mask & (clipped < plain)).sum() / real,
        "dual_clipped": dual.sum() / real,
        "capped": capped.sum() / real,
    }
    return loss, shares


def step_weights(steps, mode, k=10):
    """The weight of each trajectory's steps by its length. steps [M] -> [M]: 1 / k ("constant", the paper's), or 1
    over its own steps ("trajectory", plain multi-step GRPO)."""
    if mode == "constant":
        return torch.full_like(steps, 1 / k, dtype=torch.float32)
    if mode == "trajectory":
        return 1 / steps.float()
    raise ValueError(f"mode {mode!r} is neither constant nor trajectory")


@dataclass(frozen=True)
class Loss:
    """What --loss names. advantages(rewards) of a group, [G] -> [G]. proximal: the clip range is around the policy
    before the updates, else around the one that sampled. step_weight, where it is given, holds in the flag's place.
    wanted: rollouts that a batch is of ("mixed" groups, those with --dynamic-sampling; single "successes"; "single"
    ones). moving: steps without a change of the picture are left out."""

    advantages: Callable = group_advantages
    proximal: bool = False
    step_weight: str = ""
    wanted: str = "mixed"
    moving: bool = False


LOSSES = {
    "decoupled": Loss(proximal=True),  # Eq. 1
    "coupled": Loss(),
    "raft": Loss(successes, proximal=True, step_weight="trajectory", wanted="successes", moving=True),  # RAFT++
    "reinforce": Loss(successes, wanted="single"),  # WebGym's rule: `replay`
}


# ---------------------------------------------------------------------------------------------- what is to be played
@dataclass
class Group:
    """G rollouts of one task. `number` is its place in the order of admission."""

    number: int
    task: object
    todo: list = field(default_factory=list)  # members that nobody plays
    done: dict = field(default_factory=dict)  # member -> trajectory

    def oldest(self):
        """The version of the oldest step in it."""
        return min(step.version for t in self.done.values() for step in t.steps)

    def begins_alike(self):
        """Whether all saw the same at first: else their rewards do not compare."""
        return len({t.steps[0].hash for t in self.done.values()}) == 1

    def is_mixed(self):
        """Whether its rewards differ: without that there is nothing to learn from it."""
        return len({t.reward for t in self.done.values()}) > 1


BATCHES_IN_VAIN = 10  # as many groups as these have, lost in a row for one reason, end the run
WHY = {  # groups are in vain
    "all_equal": "its rewards are all equal: these tasks are too hard for the policy, or too easy (--train-horizon)",
    "unlike": "its members saw different first pages: the environment does not begin a task twice in the same way",
    "failed": "it was no success: these tasks are too hard for the policy",
    "faulty": "a member's task was dropped after faults, or nobody could score its end",
    "stale": "it was older than --staleness when it was taken: episodes take longer than batches",
    "no_pictures": "its screenshots were lost with the store",
}


class Pool:
    """Which rollouts may begin, and which groups the learner gets, by the rule of the released code (AReaL's staleness
    manager), by groups. Counted in trajectories:

        accepted + running + G <= (eta + version + 1) * B

    `accepted` are those of all groups that were ever taken or wait to be, `running` those of groups in the making. The
    bound is on what is begun; a straggler may still be older when its group is taken: then the group is dropped,
    counted, and another one is admitted in its place. What is taken is the oldest first, and never older than eta.

    `wanted`: "mixed" groups, "successes" (groups of one), or whatever comes. `alike`: the environment begins a task in
    the same way each time; a group that did not is dropped.
    """

    def __init__(self, draw_task, group_size, batch_trajectories, eta, wanted="mixed", alike=True):
        self.draw_task, self.group_size, self.batch_trajectories = draw_task, group_size, batch_trajectories
        self.eta, self.wanted, self.alike = eta, wanted, alike
        self.version = self.accepted = self.begun = 0
        self.making, self.ready = {}, []  # number -> Group; complete Groups, oldest first
        self.again = []  # numbers of groups that were begun, but lost with the process that gathered them
        self.counts, self.in_a_row, self.open = Counter(), Counter(), True
        self.discarded = []  # trajectories that nobody will train on

    @property
    def running(self):
        return len(self.making) * self.group_size

    def capacity(self):
        """How many rollouts more may begin now."""
        return (self.eta + self.version + 1) * self.batch_trajectories - self.accepted - self.running

    def next(self):
        """(group, member) to play next, or None where none may begin."""
        if not self.open:
            return None
        group = next((g for g in self.making.values() if g.todo), None)
        if group is None:
            if self.capacity() < self.group_size:
                return None
            number = self.again.pop(0) if self.again else self.begun
            group = self.making[number] = self.new_group(number)
            self.begun = max(self.begun, number + 1)
        return group, group.todo.pop(0)

    def new_group(self, number):
        return Group(number, self.draw_task(number), list(range(self.group_size)))

    def put(self, number, member, trajectory):
        """A member's trajectory, or None where its task had to be dropped: then its group is, too."""
        group = self.making.get(number)
        if group is None:  # another member's task was dropped
            self.discarded += [trajectory] if trajectory is not None else []
            return
        if trajectory is None:
            self._discard(self.making.pop(number), "faulty")
            return
        group.done[member] = trajectory
        if len(group.done) < self.group_size:
            return
        del self.making[number]
        if self.alike and not group.begins_alike():
            self._discard(group, "unlike")
            return
        if self.wanted == "mixed" and not group.is_mixed():
            self._discard(group, "all_equal")
            return
        if self.wanted == "successes" and not all(t.reward > 0 for t in group.done.values()):
            self._discard(group, "failed")
            return
        self.accepted += self.group_size
        for reason in ("all_equal", "unlike", "failed", "faulty"):
            self.in_a_row[reason] = 0
        self.ready.append(group)
        self.ready.sort(key=lambda group: group.number)

    def put_back(self, number, member):
        """Whoever played a member is gone: it is to be played again."""
        self.counts["lost"] += 1
        if number in self.making:
            self.making[number].todo.insert(0, member)

    def _discard(self, group, reason):
        """Count a group that is in vain. Raises TooManyFaults where that is all that happens."""
        self.counts[reason] += 1
        self.in_a_row[reason] += 1
        self.discarded += group.done.values()
        if self.in_a_row[reason] == BATCHES_IN_VAIN * self.batch_trajectories // self.group_size:
            which = f"{self.in_a_row[reason]} groups in a row were in vain (pool/{reason}), the last one of"
            raise TooManyFaults(f"{which} {getattr(group.task, 'task_id', group.task)}: {WHY[reason]}")

    def in_vain(self):
        """What is to be said of the groups that were lost since the last one of use."""
        many = [reason for reason, count in self.in_a_row.items() if count * self.group_size > self.batch_trajectories]
        return "".join(f"; {self.in_a_row[reason]} groups in a row in vain, {reason}" for reason in many)

    def take(self):
        """The groups of a batch, oldest first, or None while there are too few. What is too old is dropped."""
        stale = [group for group in self.ready if self.version - group.oldest() > self.eta]
        for group in stale:
            self._discard(group, "stale")
        self.accepted -= len(stale) * self.group_size
        self.ready = [group for group in self.ready if group not in stale]
        wanted = self.batch_trajectories // self.group_size
        if len(self.ready) < wanted:
            return None
        batch, self.ready = self.ready[:wanted], self.ready[wanted:]
        self.in_a_row.clear()
        return batch

    def give_back(self, groups, lost):
        """Groups of a batch that cannot be trained on, because the others, `lost`, have no screenshots any more."""
        self.ready = groups + self.ready
        self.accepted -= len(lost) * self.group_size
        for group in lost:
            self._discard(group, "no_pictures")

    def lag(self):
        """Versions that the groups which wait are behind, in the mean."""
        return sum(self.version - g.oldest() for g in self.ready) / len(self.ready) if self.ready else 0.0

    def state(self):
        """What a checkpoint holds: groups in the making and those that wait are played again."""
        again = sorted([*self.again, *self.making, *(group.number for group in self.ready)])
        return {"version": self.version, "begun": self.begun, "again": again, "counts": dict(self.counts)}

    def set_state(self, state):
        """After a resume what was consumed counts as accepted, and nothing else: version * B."""
        self.version, self.begun, self.counts = state["version"], state["begun"], Counter(state["counts"])
        self.accepted = self.version * self.batch_trajectories
        self.making, self.ready, self.again = {}, [], list(state.get("again", ()))


# --------------------------------------------------------------------------------------------------------- the prompts
def is_chat(processor, prompt_format):
    return prompt_format == "chat" or (prompt_format == "auto" and bool(processor.tokenizer.chat_template))


def agent_prompt(
    processor, instruction, steps, obs, prompt_format="auto", history_images=2, response_format="additive"
):
    """The agent's llm.Prompt: the task, what was done before, and the screenshot now. In a chat the last rounds
    (`shown_steps`) are turns with their screenshots, bytes, in `step.screenshot`; what was before them is a line a
    step."""
    plain = partial(llm.without_special_tokens, processor)  # an image token would ask for a picture
    instruction, error = plain(instruction), plain(obs["error"])
    if not is_chat(processor, prompt_format):
        last = f" after {plain(steps[-1].action)}" if steps else ""
        return llm.encode(processor, f"{instruction}{last}<image><answer>", [obs["screenshot"]])
    shown, pictures = shown_steps(steps, history_images), [*(step.screenshot for step in steps), obs["screenshot"]]
    answers = [plain(without_thoughts(step.action)) for step in steps]
    told = AGENT_SYSTEM_PROMPT.replace("{response}", RESPONSE_FORMATS[response_format])
    turns = [{"role": "system", "content": [{"type": "text", "text": told}]}]
    text = f"Task: {instruction}" + past_actions(processor.tokenizer, answers[: len(steps) - len(shown)], pictures)
    for answer in answers[len(steps) - len(shown) :]:
        turns.append({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]})
        turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        text = "The page now:"
    text += f"\nThe last action failed: {error}" if error else ""
    turns.append({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]})
    text = processor.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return llm.encode(processor, text, pictures[-len(shown) - 1 :], turns)


def shown_steps(steps, history_images):
    """The earlier steps whose screenshots are in a chat's prompt."""
    return steps[max(0, len(steps) - history_images + 1) :]


def past_actions(tokenizer, answers, pictures, tokens=2048):
    """Answers as a line each, what was done and whether the picture changed: the newest that have room in so many
    tokens."""
    lines = []
    for number in reversed(range(len(answers))):
        changed = "changed" if pictures[number] != pictures[number + 1] else "did not change"
        line = f"\n{number + 1}. {action_in_words(answers[number])}: the page {changed}"
        tokens -= len(tokenizer.encode(line, add_special_tokens=False))
        if tokens < 0:
            break
        lines.insert(0, line)
    return "".join(["\nYour actions so far:", *lines]) if lines else ""


def action_in_words(answer, longest=200):
    """The sentence of an answer that says what it does, else its tool call, else all of it."""
    said = re.findall(r"^Action:(.+)", answer, re.MULTILINE) or between(answer, "<tool_call>", "</")
    return " ".join((said[0] if said else answer).split())[:longest].strip()


def memory_keys(answer):
    """How many keys the memory of an answer has, those of objects in it included; None where it has none."""
    answer, counts = without_thoughts(answer), []
    found = re.search(r"^Memory:\s*(?={)", answer, re.MULTILINE)
    decoder = json.JSONDecoder(object_hook=lambda members: counts.append(len(members)))
    try:
        decoder.raw_decode(answer[found.end() :])
    except (AttributeError, ValueError, RecursionError):
        return None
    return sum(counts)


MEMORY = "Memory: a JSON object with what you need to remember. "
PROGRESS = """\
Progress: a JSON object that maps each part of the task to "finished" or "not finished".
Intention: the part that you work on now.
"""
RESPONSE_FORMATS = {
    "vanilla": "",
    "progress": PROGRESS,
    "additive": f"{MEMORY}Copy the one of your last answer and only add keys to it.\n{PROGRESS}",
    "compressive": f"{MEMORY}Write it anew in every answer, with only what is still needed.\n{PROGRESS}",
}
AGENT_SYSTEM_PROMPT = """\
You operate a web browser by what you see. In every turn you get the task and a screenshot of the page, and
you answer in exactly this form:

{response}Action: one sentence that says what you do.
<tool_call>{"name": ..., "arguments": {...}}</tool_call>

Coordinates are [x, y], whole numbers from 0 (left, top) to 1000 (right, bottom). The tools:
click, double_click, hover: {"coordinate": [x, y]}
type: {"text": "...", "coordinate": [x, y], "enter": true or false}; without a coordinate where the focus is
scroll: {"direction": "up" or "down", "coordinate": [x, y]}; without a coordinate the page
drag: {"from": [x, y], "to": [x, y]}
key: {"key": "Enter"}
wait, back: {}
goto: {"url": "..."}
answer: {"content": "the answer, or done"}; ends the task"""


# -------------------------------------------------------------------------------------------- the parts, as Ray actors
STORE = "store"  # the actor's name


class Store:
    """Screenshots by name: one copy on the cluster, whoever needs one asks for it; what travels otherwise is the name.
    `playing`: what is used by episodes that run, by their worker (None: that one was lost)."""

    def __init__(self):
        self.pictures, self.uses, self.playing = {}, Counter(), {}

    def put(self, name, data, worker):
        """One use more of a picture, by an episode of that worker; equal pictures have equal names."""
        mine = self.playing.setdefault(worker, Counter())
        if mine is None:  # a lost worker's last words
            return
        self.pictures[name] = data
        self.uses[name] += 1
        mine[name] += 1

    def ended(self, worker, kept, dropped):
        """An episode of a worker ended: `kept` is what the learner will drop, nobody asks for `dropped`."""
        mine = self.playing.setdefault(worker, Counter())
        if mine is not None:
            mine.subtract([*kept, *dropped])
            self.drop(dropped)

    def forget(self, worker):
        """The worker was lost, and the episodes that it played."""
        lost, self.playing[worker] = self.playing.get(worker, Counter()), None
        self.drop(list(lost.elements()))

    def get(self, names):
        """The files' bytes, None for what is not there (a store that was lost is another one)."""
        return [self.pictures.get(name) for name in names]

    def drop(self, names):
        """One use less of each."""
        self.uses.subtract(names)
        for name in set(names):
            if self.uses[name] <= 0:
                del self.uses[name]
                self.pictures.pop(name, None)

    def size(self):
        """(pictures, bytes)."""
        return len(self.pictures), sum(map(len, self.pictures.values()))


class PolicyServer(AnswerServer):
    """The policy: prompts of all workers that wait at a moment become one batch; weights are swapped between two
    batches, and every answer says by which version it was sampled."""

    def __init__(self, args, store):
        import transformers

        super().__init__(args, store)
        transformers.logging.set_verbosity_error()
        if args.cpu_threads:
            torch.set_num_threads(args.cpu_threads)
        self.model, self.processor = llm.load(args.model_id, args.lora_rank, args.load_in_4bit, vision=True)
        self.batched = Batcher(self.sample)
        self.lock = self.batched.lock  # held as a batch is sampled, too
        self.earlier = {}  # --schedule: the last versions' weights

    @staticmethod
    def weights_of(model, folder):
        return fsdp.trained(model)

    async def load(self, weights, version):
        """Swap the trained weights in place."""
        fsdp.fill(self.model, weights)
        if self.args.schedule:
            self.earlier[version] = weights
            self.earlier.pop(version - self.args.staleness - 1, None)

    async def answer(self, prompt, seed, temperature, version):
        """In the next batch; by the weights of a `version` in one of its own: what it is does not depend on when."""
        if version is None:
            return await self.batched(prompt, seed, temperature)
        async with self.lock:
            if version not in self.earlier:
                raise UsageError("--schedule: the policy server was lost, and the earlier weights; begin again")
            fsdp.fill(self.model, self.earlier[version])
            self.version = version
            return (await self.sample([prompt], [seed], temperature))[0]

    async def sample(self, prompts, seeds, temperature):
        """The batch's Completions, cut where prompt and answer have --max-tokens."""
        begun = time.monotonic()
        sample = partial(llm.generate, self.model, self.processor, prompts, seeds)
        done = await asyncio.to_thread(sample, temperature, self.args.max_new_tokens, self.version)
        self.busy += time.monotonic() - begun
        for prompt, completion in zip(prompts, done, strict=True):
            room = self.args.max_tokens - len(prompt)
            del completion.ids[room:], completion.logprobs[room:]
        return done


class RolloutWorker:
    """Episodes in one browser, `envs_per_worker` at once. `name`: its own, not that of its place. It asks `server`, for
    evaluations `eval_server`."""

    def __init__(self, args, number, name, store, server, eval_server):
        import transformers

        transformers.logging.set_verbosity_error()
        serve.set_limits(args)
        self.args, self.name, self.store, self.server, self.eval_server = args, name, store, server, eval_server
        self.processor = llm.load_processor(llm.find_model(args.model_id))
        self.rng = random.Random(f"{args.seed}/{number}")
        self.slots = Slots(make_env(args), args.envs_per_worker)

    async def play(self, task, seed, temperature, evaluates=False, versions=None, attempt=None):
        """(Trajectory or None where the task was dropped, the faults on the way, seconds that it waited for the
        policy). Its steps' screenshots are in the store, one use of each. With `versions` each step is sampled by the
        weights of that version, with `attempt` as at that one of a run before, faults of now aside."""
        server, waited = self.eval_server if evaluates else self.server, 0.0

        async def episode(env, attempt, album):
            number = 0

            async def policy(prompt, own_seed):
                nonlocal waited, number
                names = [await album.show(picture) for picture in prompt.images]
                await self._delay()
                begun, version = time.monotonic(), versions and versions[min(number, len(versions) - 1)]
                asked = llm.Prompt(prompt, names, prompt.turns)
                done = await server.complete.remote(asked, own_seed, temperature, version)
                waited, number = waited + time.monotonic() - begun, number + 1
                return done

            read = partial(read_action, size=self.args.viewport)
            prompt = partial(self._prompt, album)
            return await play(env, task, policy, prompt, self._decode, seed, attempt, image_name, read)

        return *await self._play(task, episode, attempt), waited

    async def demonstrate(self, task):
        """The same of the oracle's episode."""
        chat, size = is_chat(self.processor, self.args.prompt_format), self.args.viewport

        async def episode(env, attempt, album):
            def write(action, thought, obs):
                return write_action(action, obs, size, chat)

            asked, read = partial(self._prompt, album), partial(read_action, size=size)
            played = await demonstrate(env, task, asked, self._encode, write, image_name, read)
            for step in played.steps:
                await album.show(album.pictures[step.screenshot])
            return played

        return *await self._play(task, episode), 0.0

    async def _play(self, task, episode, as_attempt=None):
        """`episode(env, attempt, album)` until it ends without a fault; what it showed stays in the store."""
        albums = []

        async def play_once(env, task, attempt, index):
            attempt = attempt if as_attempt is None else as_attempt
            albums.append(Album(self.store, self.name))
            return await episode(env, attempt, albums[-1])

        trajectory, log = await self.slots.play(task, play_once)
        kept = albums.pop().shown if trajectory is not None else []
        await self.store.ended.remote(self.name, kept, [name for album in albums for name in album.shown])
        return trajectory, log

    def _prompt(self, album, instruction, steps, obs):
        """`agent_prompt`, for steps that have only the names of their screenshots; None where it leaves no room."""
        album.pictures[image_name(obs["screenshot"])] = obs["screenshot"]
        seen, args = [replace(step, screenshot=album.pictures[step.screenshot]) for step in steps], self.args
        options = {name: getattr(args, name) for name in ("prompt_format", "history_images", "response_format")}
        prompt = agent_prompt(self.processor, instruction, seen, obs, **options)
        if len(prompt) < args.max_tokens:
            return prompt
        if steps:
            return None
        raise UsageError(f"--max-tokens {args.max_tokens}: the first prompt alone has {len(prompt)} tokens")

    async def _delay(self):
        """What a slow site costs (--page-delay)."""
        if self.args.page_delay:
            await asyncio.sleep(self.args.page_delay * math.exp(self.rng.gauss(0.0, self.args.page_delay_sigma)))

    def _decode(self, ids):
        stops = self.processor.tokenizer.all_special_ids
        return self.processor.tokenizer.decode([i for i in ids if i not in stops])

    def _encode(self, text):
        tokenizer, text = self.processor.tokenizer, llm.without_special_tokens(self.processor, text)
        return tokenizer.encode(text, add_special_tokens=False) + [llm.end_of_turn(tokenizer)]

    async def close(self):
        await self.slots.close()


class Album:
    """An episode's screenshots by name, and which of them the store has; the episode is one of this worker's."""

    def __init__(self, store, worker):
        self.store, self.worker, self.pictures, self.shown = store, worker, {}, []

    async def show(self, picture):
        """The picture's name, once the store has it."""
        name = image_name(picture)
        if name not in self.shown:
            await self.store.put.remote(name, picture, self.worker)
            self.shown.append(name)
        return name


def make_env(args):
    shown = {"screenshots": True, "viewport": tuple(args.viewport), "paced": True}
    return envs.make(args.env_id, real_clock=args.real_clock, **shown)


# ---------------------------------------------------------------------------------------------------------- the system
class System:
    """The actors, and what keeps every slot of every worker playing, whatever the learner does meanwhile: `players`,
    whose `changed` guards the pool and the counts. `schedule`: what is to be played again (`read_schedule`)."""

    def __init__(self, args, pool, run_folder, schedule=None):
        import ray

        self.ray, self.args, self.pool, self.schedule = ray, args, pool, schedule
        self.folder, self.steps = run_folder / "adapters", 0
        pool.open = False  # until training begins
        # Ray starts a lost store or server anew and asks it once more what was asked of the lost one.
        forever = {"max_restarts": -1, "max_task_retries": -1}
        self.store = ray.remote(Store).options(**forever, name=STORE, num_cpus=0).remote()
        self.kind = EngineServer if args.engine else PolicyServer
        options = forever | {"num_cpus": 1, "num_gpus": args.gpus_per_server, "max_concurrency": 1000}
        count = args.num_servers + args.eval_servers  # the last ones are for evaluations
        server = ray.remote(self.kind).options(**options)
        self.servers = [server.remote(args, STORE) for _ in range(count)]
        self.given = [None] * count  # what each of them is to have: (weights, version)
        self.worker = ray.remote(RolloutWorker).options(num_cpus=1, max_concurrency=args.envs_per_worker + 2)
        self.names, self.started = {}, 0  # a worker's place -> the name of who is there; workers so far
        slots, supply = args.envs_per_worker, [self._supply(number) for number in range(count)]
        self.players = Players(self._start, args.num_workers, slots, self._next, self._status, beside=supply)
        self.changed = self.players.changed
        self.players.start()

    def _start(self, place):
        """A worker, in the place of one that was lost if there was one."""
        if place in self.names:
            self.store.forget.remote(self.names[place])
        self.names[place] = self.started = self.started + 1
        evaluating = self.servers[self.args.num_servers :] or self.servers
        server, eval_server = self.servers[place % self.args.num_servers], evaluating[place % len(evaluating)]
        return self.worker.remote(self.args, place, self.names[place], self.store, server, eval_server)

    # --- in the thread that plays

    async def _supply(self, number):
        """A policy server that was started anew gets its weights from here, whatever else was lost."""
        while True:
            await self.servers[number].without_weights.remote()
            given = await self.players.until(lambda: self.given[number])
            if given is None:  # the end
                return
            weights, version = given
            await self.servers[number].set_weights.remote(weights, version)

    async def _status(self):
        """How things stand, in a line."""
        try:
            asked = sum([(await server.statistics.remote())["asked"] for server in self.servers])
        except self.ray.exceptions.RayError:  # one is lost: whoever plays notices that, too
            asked = 0
        playing, batch = self.players.playing, f"batch {self.pool.version + 1} of {self.args.iterations}"
        with self.changed:
            ready, lag, vain = len(self.pool.ready) * self.pool.group_size, self.pool.lag(), self.pool.in_vain()
        return (
            f"{batch}: {playing} episodes run, {min(asked, playing)} wait for the model, "
            f"{max(0, playing - asked)} for pages; {ready} trajectories of {self.args.batch_trajectories} are there, "
            f"lag {lag:.1f}; {self.players.per_hour():,.0f} an hour{vain}"
        )

    def _next(self, worker):
        """The next rollout, where admission lets one begin (`Players`)."""
        job = self.pool.next()
        if job is None:
            return None
        group, member = job
        seed = llm.seed_of(self.args.seed, group.number, member)
        call = worker.play.remote(group.task, seed, self.args.temperature)
        return call, partial(self._played, group.number, member), partial(self.pool.put_back, group.number, member)

    def _played(self, number, member, trajectory):
        """A rollout into its group; what the timeline shows of it."""
        if trajectory is not None and trajectory.verdict is None:  # nobody knows: no reward of 0
            self.drop(names_of([trajectory]))
            trajectory = None
        row = None
        if trajectory is not None:
            trajectory.reward = float(trajectory.verdict)
            trajectory.place = number * self.pool.group_size + member
            self.steps += len(trajectory.steps)
            row = {"group": number, "member": member, "steps": len(trajectory.steps), "reward": trajectory.reward}
        self.pool.put(number, member, trajectory)
        self._forget()
        return row

    def _forget(self):
        """The store need not keep what the pool has discarded, and others may begin in its place."""
        if self.pool.discarded:
            self.drop(names_of(self.pool.discarded))
            self.pool.discarded = []
            self.players.notify()

    # --- what the learner asks for

    def batch(self, iteration):
        """The next batch: its groups, and their screenshots' bytes by name. What has none any more is dropped."""
        while True:
            groups = play_again(self, iteration) if self.schedule else self.players.wait(self._take)
            pictures = self.pictures(names_of(t for g in groups for t in g.done.values()))
            lost = [g for g in groups if not pictures.keys() >= set(names_of(g.done.values()))]
            if not lost:
                return groups, pictures
            with self.changed:
                self.pool.give_back([g for g in groups if g not in lost], lost)
                self._forget()

    def _take(self):
        groups = self.pool.take()
        self._forget()  # what was too old
        return groups

    def publish(self, model, version):
        """Hand the trained weights to the policy servers, as this version from now on."""
        weights = self.kind.weights_of(model, self.folder / str(version % (self.pool.eta + 2)))  # some are read still
        self._give(range(self.args.num_servers), self.ray.put(weights), version)
        with self.changed:
            self.pool.version = version
        self.players.notify()

    def _give(self, numbers, weights, version):
        """Hand these servers weights, and wait until they have them."""
        with self.changed:  # first: one that is started anew meanwhile must not get the last ones
            for number in numbers:
                self.given[number] = weights, version
        self.players.notify()
        self.ray.get([self.servers[number].set_weights.remote(weights, version) for number in numbers])

    def begin_evaluation(self, tasks, name, iteration, beside=False):
        """Begin episodes by the policy of now at seeds that are the same for every run, before rollouts or beside
        them: an Evaluation."""
        self._give(range(self.args.num_servers, len(self.servers)), *self.given[0])
        versions = [self.pool.version] if self.args.schedule else None

        def call(worker, index):
            seed = llm.seed_of(1234, index)
            return worker.play.remote(tasks[index], seed, self.args.eval_temperature, True, versions)

        return Evaluation(name, iteration, self.steps, self.players.begin_each(call, len(tasks), beside))

    def finish(self, listed):
        """What came of a TaskList's episodes, those that were not dropped, and their screenshots' bytes by name."""
        trajectories = [t for t in self.players.finish_each(listed) if t is not None]
        pictures = self.pictures(names_of(trajectories))
        self.drop(names_of(trajectories))
        return trajectories, pictures

    def pictures(self, names):
        """The files' bytes by name, those that the store has."""
        names = sorted(set(names))
        found = zip(names, self.ray.get(self.store.get.remote(names)), strict=True)
        return {name: picture for name, picture in found if picture is not None}

    def drop(self, names):
        """One use less of each picture."""
        self.store.drop.remote(names)

    def close(self):
        """The end of the servers and the players."""
        with contextlib.suppress(Exception):  # of one that is lost
            self.ray.get([server.close.remote() for server in self.servers], timeout=20)
        self.players.close()

    def metrics(self):
        """Faults, what was gathered in vain, and what the servers did, so far."""
        servers = self.ray.get([server.statistics.remote() for server in self.servers])
        counts = {f"pool/{name}": self.pool.counts[name] for name in (*WHY, "lost")}
        counts["staleness/dropped"] = counts.pop("pool/stale")
        pictures, size = self.ray.get(self.store.size.remote())
        return counts | {
            "perf/tokens_generated": sum(s["tokens"] for s in servers),
            "perf/server_busy": sum(s["busy"] for s in servers[: self.args.num_servers]) / self.args.num_servers,
            "perf/pictures": pictures,
            "perf/picture_bytes": size,
        }


@dataclass
class Evaluation:
    """Episodes by the policy of an iteration; `steps`: environment steps until then."""

    name: str
    iteration: int
    steps: int
    listed: TaskList


def names_of(trajectories):
    """Their screenshots' names, each once a trajectory: the store counts a use for each."""
    return [name for t in trajectories for name in sorted({step.screenshot for step in t.steps if step.screenshot})]


# ---------------------------------------------------------------------------------------------------------- the learner
@dataclass
class Learner:
    """The network and the script's random state: what a checkpoint holds."""

    actor: Net
    rng: random.Random
    history_images: int = 1
    iteration: int = -1  # the last one done; 0: the start
    updates: int = 0
    pictures: dict = field(default_factory=dict)  # the screenshots of what it learns from, by name
    folder: Path | None = None  # where the run's screenshots are
    recent: list = field(default_factory=list)  # reinforce: trajectories of the last batches

    def __post_init__(self):
        self.actor.prompt = self.prompt

    def prompt(self, step):
        """What the network sees of a step: its ids, and the screenshots that it was shown."""
        shown = [*shown_steps(step.trajectory.steps[: step.t], self.history_images), step]
        return llm.Prompt(step.prompt_ids, [self.pictures[one.screenshot] for one in shown])


def load_learner(args):
    """The learner with the model of --model-id. Errors as of `load_actor`."""
    actor = load_actor(args, vision=True, betas=(0.9, 0.999)).begin(args.learning_rate)
    count = args.history_images if is_chat(actor.reader, args.prompt_format) else 1
    return Learner(actor, random.Random(args.seed), count)


def set_advantages(groups, args):
    """Each step's advantage: its trajectory's within the group (LOSSES)."""
    for group in groups:
        trajectories = [group.done[member] for member in sorted(group.done)]
        values = LOSSES[args.loss].advantages(torch.tensor([t.reward for t in trajectories]))
        for trajectory, value in zip(trajectories, values.tolist(), strict=True):
            for step in trajectory.steps:
                step.advantage = value


def actor_loss(actor, steps, weights, prox, args):
    """Eq. 1 summed over the steps, weighted by their trajectories' `weights`; and what is logged, summed over their
    tokens: the clipped, dual-clipped and capped ones, drift, surprise, all [6]. `prox`: the proximal policy's log-probs
    by step; without any the clip range is around the policy that sampled."""
    logprobs, mask = actor.logprobs(steps, args.temperature)  # [N, T]
    behave = padded([step.logprobs for step in steps], mask)
    near = padded([prox[step] for step in steps], mask) if prox else behave
    advantages = torch.tensor([step.advantage for step in steps], device=mask.device)
    weight = torch.tensor([weights[step.trajectory] for step in steps], device=mask.device)
    behave_cap = args.behave_cap if prox else 0.0
    loss, shares = decoupled_loss(logprobs, near, behave, advantages, mask, args.clip_eps, args.dual_clip, behave_cap)
    count, now = mask.sum(), logprobs.detach()
    parts = [shares[name] * count for name in ("clipped", "dual_clipped", "capped")]
    shown = torch.stack([*parts, ((behave - now) * mask).sum(), -(now * mask).sum(), count])
    return (loss * weight[:, None]).sum(), shown


@parallel.everywhere
def update_actor(learner, groups, pictures, version, args):
    """One batch's updates. Metrics; `logprob_gap`: how far an answer's log-prob at sampling is from our own, per
    token, where both are of this version: a server that samples from something else shows there."""
    actor, kind, sums, learner.pictures = learner.actor, LOSSES[args.loss], [], pictures
    played = [t for group in groups for t in group.done.values()]
    trajectories = [t for t in played if t.steps[0].advantage]  # the others have no gradient, but count in the mean
    lengths = torch.tensor([len(t.steps) for t in trajectories])
    weights = step_weights(lengths, kind.step_weight or args.step_weight, args.k)
    weights = dict(zip(trajectories, weights.tolist(), strict=True))
    prox = {}
    if kind.proximal:  # one forward pass by the weights before the updates
        prox = actor.token_logprobs(steps_of(trajectories), args.temperature)
    own_steps = changing_steps if kind.moving else lambda trajectory: steps_of([trajectory])
    steps = {t: own_steps(t) for t in played}

    def loss_sum(part):
        loss, shown = actor_loss(actor, part, weights, prox, args)
        sums.append(shown)
        return loss

    def tokens_of(some):
        return sum(len(step.action_ids) for t in some for step in steps[t])

    max_norm = args.max_grad_norm
    if args.loss_mean == "group":  # --max-grad-norm is that of a mean over tokens
        max_norm *= tokens_of(played) / len(played)
    # Adam takes any constant out of a gradient: what 1/k changes is the rate, and the clip does not see it
    scale = Args.k / args.k if (kind.step_weight or args.step_weight) == "constant" else 1.0
    rate = scale * args.learning_rate * warmup_cosine(learner.iteration / args.iterations, 0.0167, 0.1)
    order, batches, counts = list(played), [], []
    learner.rng.shuffle(order)
    for some in (order[number :: args.minibatches] for number in range(args.minibatches)):
        part = [step for t in some if t in weights for step in steps[t]]
        if part:
            batches.append(part)
            counts.append(tokens_of(some) if args.loss_mean == "tokens" else len(some))
    batches, counts = batches * args.update_epochs, counts * args.update_epochs  # the same minibatches in every pass
    rates = [rate] * len(batches)
    losses, norms = actor.descend(loss_sum, batches, max_norm=scale * max_norm, counts=counts, rates=rates)
    learner.updates += len(batches)
    metrics = {"losses/trained_trajectories": len(trajectories), "charts/learning_rate": rate}
    own = [step for step in prox if step.version == version]
    metrics |= logprob_gap([(sum(step.logprobs), sum(prox[step]), len(prox[step])) for step in own])
    if not losses:
        return metrics
    *shares, drift, entropy, tokens = parallel.column_sums(sums, 6, losses[0].device)
    names = ("clip_fraction", "dual_clip_fraction", "capped_fraction")
    metrics |= {f"losses/{name}": share / tokens for name, share in zip(names, shares, strict=True)}
    return metrics | {
        "losses/policy_loss": mean_loss(losses, "actor"),
        "losses/grad_norm": torch.stack(norms).mean().item(),
        "losses/approx_kl": drift / tokens,
        "losses/surprise": entropy / tokens,
    }


@parallel.everywhere
def fine_tune(learner, demos, pictures, args, updates=0):
    """Supervised fine-tuning on demonstrations (`Net.fine_tune`), with all cores. The last pass's mean loss."""
    learner.pictures = pictures
    if args.cpu_threads:
        learn.use_threads(os.cpu_count())  # nothing else runs yet
    loss = learner.actor.fine_tune(steps_of(demos), args, updates)
    if args.cpu_threads:
        learn.use_threads(args.cpu_threads)
    return loss


# ------------------------------------------------------------------------------------------------------------ the loop
COUNTS = "iteration", "updates"


def save(learner, system, run):
    """A checkpoint: the actor as a Hugging Face folder, optimiser and generators, the pool's counts. Rollouts on their
    way are played again."""
    counts = {name: getattr(learner, name) for name in COUNTS}
    with system.changed:
        state = {"counts": counts, "pool": system.pool.state(), "steps": system.steps}
        state["faults"] = system.players.faults.state()
    run.save_checkpoint(system.steps, *net.states_of({"actor": learner.actor}, learner.rng), state)


def restore(learner, system, run, args):
    """Everything as it was at the run's last checkpoint; the staleness bound holds on."""
    restore_learner(learner, run)
    state = run.resumed.state
    system.pool.set_state(state["pool"])
    system.steps = state["steps"]
    system.players.faults.set_state(state["faults"])
    if LOSSES[args.loss].wanted == "single":
        rollouts = [t for t in run.trajectories if t.kind == "rollout"]
        learner.recent = [t for t in rollouts if t.phase > learner.iteration - REPLAYED]
    system.publish(learner.actor.model, system.pool.version)


def restore_learner(learner, run):
    """The learner as it was at the run's last checkpoint."""
    vars(learner).update(run.resumed.state["counts"])
    net.restore(run, {"actor": learner.actor}, learner.rng)


def keep(run, trajectories, pictures, title, iteration):
    """Write trajectories, with their screenshots as files, to the run's folder."""
    for t in trajectories:
        t.policy, t.kind, t.phase = title, kind_of(title), iteration
    for step in steps_of(trajectories):
        picture = pictures.get(step.screenshot)
        step.screenshot = run.trajectories.add_image(picture) if picture is not None else None
    run.trajectories.append(trajectories)


def evaluate(system, run, tasks, name, iteration):
    """Episodes by the policy of now: (trajectories, metrics)."""
    return end_evaluation(system, run, system.begin_evaluation(tasks, name, iteration))


def end_evaluation(system, run, evaluation):
    """The same of an evaluation that was begun, once it is over."""
    with run.timer("evaluation"):
        trajectories, pictures = system.finish(evaluation.listed)
    check_tested(evaluation.name, evaluation.listed.count, trajectories, system.players.faults)
    keep(run, trajectories, pictures, evaluation.name, evaluation.iteration)
    return trajectories, evaluation_metrics(trajectories, evaluation.name.replace(" ", "_"))


def log_evaluation(system, run, beside):
    """Log an evaluation that ran beside training, under the iteration whose policy it is of."""
    _, metrics = end_evaluation(system, run, beside)
    run.log({**metrics, "charts/iteration": beside.iteration}, beside.steps)
    run.report(f"evaluation of iteration {beside.iteration}", metrics, "eval/success")


def staleness(trajectories, version):
    """How many versions behind the steps are. Metrics."""
    lags = [version - step.version for t in trajectories for step in t.steps]
    return {"staleness/mean": sum(lags) / len(lags), "staleness/max": max(lags)}


def lengths(trajectories):
    """How long episodes and answers are. Metrics: steps of successes and of failures; tokens a step; keys of answers'
    memories, where they have one; the share of episodes that had no room for another answer."""
    steps = [step for t in trajectories for step in t.steps]
    won, lost = ([len(t.steps) for t in trajectories if bool(t.reward) == success] for success in (True, False))
    keys = [count for step in steps if (count := memory_keys(step.action)) is not None]
    found = {"success_length": won, "failure_length": lost, "memory_keys": keys}
    found["tokens_per_step"] = [len(step.action_ids) for step in steps]
    found["overflowed"] = [t.ending == "overflow" for t in trajectories]
    return {f"rollout/{name}": sum(values) / len(values) for name, values in found.items() if values}


def start_actor(learner, system, run, train_tasks, args):
    """Supervised fine-tuning on a few demonstrations. Metrics."""
    rng = random.Random(args.seed)  # its own: what follows is then as from the saved start
    tasks = rng.sample(train_tasks, min(len(train_tasks), args.num_demos))

    def call(worker, index):
        return worker.demonstrate.remote(tasks[index])

    with run.timer("waiting"):
        demos, pictures = system.finish(system.players.begin_each(call, len(tasks)))
    demos = [t for t in demos if t.verdict and pictures.keys() >= set(names_of([t]))]  # a lost store has none
    if not demos:
        raise UsageError("there is no demonstration of a success: --num-demos N, or 0 for none")
    run.say(f"{len(demos)} demonstrations of {len(steps_of(demos))} steps: fine-tuning")
    with run.timer("training"):
        loss = fine_tune(learner, demos, pictures, args)
    run.save_start(*learner.actor.weights())
    keep(run, demos, pictures, "oracle", 0)
    return {"losses/sft_loss": loss}


def begin(learner, system, run, train_tasks, test_tasks, args):
    """The start, or the run's last checkpoint. What the start can do: its test episodes."""
    before, metrics = [], {"charts/iteration": 0}
    if run.resumed:
        restore(learner, system, run, args)
        before = [t for t in run.trajectories if t.kind == "test before"]
        if learner.iteration or before or not test_tasks:
            return before
    else:
        metrics |= start_actor(learner, system, run, train_tasks, args) if args.num_demos else {}
        learner.iteration = 0
        system.publish(learner.actor.model, 0)
    if test_tasks:
        before, tested = evaluate(system, run, test_tasks, "test before", 0)
        metrics |= tested
        run.report("start", tested, "test_before/success")
    run.log(metrics, system.steps)
    save(learner, system, run)
    return before


def begin_again(learner, system, run, eval_tasks, args):
    """The evaluation beside training that a resumed run's end cut off, begun again: it is of the checkpoint's policy.
    Else None."""
    due = learner.iteration and learner.iteration % args.eval_every == 0 and args.eval_servers and eval_tasks
    if not due or any(t.kind == "eval" and t.phase == learner.iteration for t in run.trajectories):
        return None
    return system.begin_evaluation(eval_tasks, "eval", learner.iteration, beside=True)


def tasks_of(env, split, args, horizon=0):
    """A split's tasks, those of a longer horizon left out (0: none are)."""
    kept = [task for task in env.tasks(split) if task.max_steps <= horizon or not horizon]
    return [replace(task, max_steps=args.max_steps or task.max_steps) for task in kept]


def train(args, env, run, learner, system):
    """The start, then batch after batch: taken, trained on, published; and the evaluations around them."""
    torch.manual_seed(args.seed)
    train_tasks, eval_tasks, test_tasks = (tasks_of(env, split, args) for split in ("train", "eval", "test"))
    eval_tasks, test_tasks = eval_tasks[: args.eval_tasks], test_tasks[: args.test_tasks]
    run.say(f"run folder {run.path}")
    before = begin(learner, system, run, train_tasks, test_tasks if args.test_before else [], args)
    beside = begin_again(learner, system, run, eval_tasks, args)  # an evaluation that runs beside training
    system.pool.open = not args.schedule  # then a batch's rollouts are all that is played
    while learner.iteration < args.iterations:
        learner.iteration += 1
        # a batch of groups is taken, whatever the workers play meanwhile
        times = {"asked": time.time()}
        with run.timer("waiting"):
            groups, pictures = system.batch(learner.iteration)
        times["taken"] = time.time()
        rollouts = [t for group in groups for t in group.done.values()]
        metrics = staleness(rollouts, system.pool.version) | rollout_metrics(rollouts) | lengths(rollouts)
        assert metrics["staleness/max"] <= args.staleness
        # trained on
        set_advantages(groups, args)
        keep(run, rollouts, pictures, "rollouts", learner.iteration)
        with run.timer("training"):
            if LOSSES[args.loss].wanted == "single":
                metrics |= replay(learner, rollouts, args)
            else:
                metrics |= update_actor(learner, groups, pictures, system.pool.version, args)
        times["trained"] = time.time()
        # and the new weights published
        system.publish(learner.actor.model, system.pool.version + 1)
        times["published"] = time.time()
        system.drop(names_of(rollouts))
        system.players.write_timeline(run, {"batch": learner.iteration, "groups": [g.number for g in groups], **times})
        warn_of_gap(run, metrics)
        metrics |= system.players.metrics() | system.metrics()
        metrics |= {"charts/iteration": learner.iteration, "charts/updates": learner.updates}
        # evaluations, beside training or before it goes on
        due, saves = (learner.iteration % every == 0 for every in (args.eval_every, args.save_every))
        if beside and (due or saves or beside.listed.over()):
            beside = log_evaluation(system, run, beside)
        if due and args.eval_servers and eval_tasks:
            beside = system.begin_evaluation(eval_tasks, "eval", learner.iteration, beside=True)
        elif due and eval_tasks:
            metrics |= evaluate(system, run, eval_tasks, "eval", learner.iteration)[1]
        run.log(metrics, system.steps)
        if due and eval_tasks:
            shown = "rollout/reward staleness/mean losses/clip_fraction eval/success"
            run.report(f"iteration {learner.iteration}, {system.steps} steps", metrics, shown)
        if saves:
            save(learner, system, run)
    system.pool.open = False
    if beside:
        log_evaluation(system, run, beside)
    if run.latest().state["counts"] != {name: getattr(learner, name) for name in COUNTS}:
        save(learner, system, run)
    after, metrics = evaluate(system, run, test_tasks, "test after", learner.iteration)
    run.log({**metrics, "charts/iteration": learner.iteration}, system.steps)
    if after:
        run.summary(before, after)
    print(f"Episodes    {view.write(run.path, view.Args(run=str(run.path), last=2))}")
    print(f"Plots       {', '.join(str(file) for file in plot.write(plot.Args(runs=(str(run.path),))))}")
    check_end(run, [system.players.faults])


def make_pool(env, args):
    """The Pool of the tasks that have a check, in a random order. Raises UsageError where there are none."""
    if not any(envs.has_check(env, task) for task in env.tasks("train")):
        raise UsageError(
            f"{args.env_id}: no training task has a check of its own, and nothing else says what succeeded"
        )
    tasks = [task for task in tasks_of(env, "train", args, args.train_horizon) if envs.has_check(env, task)]
    if not tasks:
        raise UsageError(f"--train-horizon {args.train_horizon}: no task of {args.env_id} is that short; 0: all")
    order, wanted = random.Random(args.seed).sample(tasks, len(tasks)), LOSSES[args.loss].wanted
    in_a_row = args.group_size if wanted == "successes" else 1  # a task's rollouts, one by one
    size = args.group_size if wanted == "mixed" else 1
    wanted = "any" if wanted == "mixed" and not args.dynamic_sampling else wanted
    alike = not getattr(env, "live", False)

    def draw_task(number):
        return order[number // in_a_row % len(order)]

    return Pool(draw_task, size, args.batch_trajectories, args.staleness, wanted, alike)


def main(args):
    args.env_id = envs.full_name(args.env_id)
    at_least_1 = """num_workers envs_per_worker num_servers max_new_tokens max_tokens history_images sft_epochs
    sft_batch_size group_size batch_trajectories iterations update_epochs minibatches micro_batch_tokens eval_every
    save_every"""
    check_ranges(args, at_least_1, above_0="k")
    if args.loss not in LOSSES:
        raise UsageError(f"--loss {args.loss}: one of {', '.join(LOSSES)}")
    if LOSSES[args.loss].wanted == "single" and not args.sync:
        raise UsageError(f"--loss {args.loss} is synchronous, as WebGym is: add --sync")
    if args.sync or args.schedule or args.engine:
        args.eval_servers = 0
    if args.sync:
        args.staleness = 0
    if args.batch_trajectories % args.group_size:
        raise UsageError(
            f"--batch-trajectories {args.batch_trajectories} is no multiple of --group-size {args.group_size}"
        )
    if args.engine and args.num_servers > 1:
        raise UsageError("--engine is one server: --num-servers 1")
    check_flags(args)
    if args.schedule and args.resume:
        raise UsageError("--schedule needs the weights of earlier versions, which no checkpoint has: begin it again")
    if parallel.sharded():
        raise UsageError("FSDP is not used here: accelerate launch without it splits the batches, not the weights")
    schedule = read_schedule(args) if args.schedule else None
    learner = load_learner(args)
    args.max_tokens = min(args.max_tokens, context_with(args, learner.actor.model))
    if args.engine and not is_chat(learner.actor.reader, args.prompt_format):
        raise UsageError(f"--engine needs a chat: {args.model_id} has no chat template, or --prompt-format is plain")
    env = make_env(args)  # its tasks; the workers have their own
    pool = make_pool(env, args)
    if parallel.is_main():
        start_ray(args.ray_address, args.num_workers + args.num_servers + args.eval_servers)
    with Run.create(args, __file__, args.runs_dir, args.resume) as run:
        learner.folder = run.path
        if not parallel.is_main():
            if run.resumed:
                restore_learner(learner, run)
            parallel.follow(learner)
            return
        shown = {name: getattr(args, name) for name in ("prompt_format", "history_images", "response_format")}
        chat, prompt = is_chat(learner.actor.reader, args.prompt_format), partial(agent_prompt, learner.actor.reader)

        def write(action, thought, obs):
            return write_action(action, obs, args.viewport, chat)

        estimate.begin(
            args, learner.actor, make_env(args), partial(prompt, **shown), estimate.grpo_async, run.say, write
        )
        system = System(args, pool, run.path, schedule)
        try:
            train(args, env, run, learner, system)
            parallel.let_go()
        except (KeyboardInterrupt, TooManyFaults):
            if run.latest() is None and learner.iteration == 0:
                save(learner, system, run)
            if run.latest() is not None:
                run.say(f"go on with --resume {run.path}")
            raise
        finally:
            system.close()


if __name__ == "__main__":
    run_main(lambda: main(parse_args(Args)))
