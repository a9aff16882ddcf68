"""CRPS: curriculum replay via progressive suffixes from successful trajectories, for long-horizon LLM agents.

GRPO learns nothing from a group of rollouts that all fail or all succeed. CRPS keeps the rare successes and restarts
rollouts from their last k steps: an easier problem with the same ending. A controller moves k so that these groups
succeed now and fail then, until k is the whole episode and the task is mastered. Everything of the paper is in this
file: supervised start, GRPO over trajectories (Eq. 4), success buffer (Eq. 5 to 7), suffix restarts (Eq. 8 to 12), the
mixture of fresh and replayed groups (Eq. 13), the diagnostics (Eq. 14); its baselines are in variants/crps.py.

The paper's agents are instruct models; the tiny one learns the format from demonstrations first (--num-demos 0 for
that need none), and answers in a shorter one. What the paper leaves open (group size, step sizes, gates) is a field of
Args with its source. docs/crps.md lists every difference and says why.

    python crps.py                                    # tiny model, embedded WebShop, two CPU cores
    python crps.py --env-id alfworld/tiny --max-steps 20 --num-demos 200     # pip install -r requirements-alfworld.txt
    python crps.py --env-id arena --num-envs 16 --num-demos 600 --max-new-tokens 48      # restarts in a real browser
    python crps.py --replay none                      # GRPO; --replay start: with replay from the first step
    python crps.py --algorithm rloo --replay none     # also ppo, rft, sft
    python crps.py --model-id Qwen/Qwen2.5-1.5B-Instruct --num-demos 0 --lora-rank 64 --data-dir WEBSHOP
"""

import common.interrupt  # noqa: F401  # isort: skip

import math
import random
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch

import envs
from common.actions import CALLS, between
from common.errors import UsageError
from common.lm import estimate, learn, llm, net, parallel
from common.lm.args import RunArgs, check_ranges, own_first, parse_args, preset
from common.lm.learn import mean_loss, padded, warmup_cosine
from common.lm.net import Net, value_net
from common.lm.run import run_main
from common.lm.session import check_flags, load_actor, session
from common.lm.stats import evaluation_metrics, rollout_metrics
from common.replay import Trajectory, read_demos, steps_of
from tools import plot, view
from variants.crps import Algorithm, other_algorithms, rejection_fine_tune, set_gae, update_critic


@own_first
@dataclass
class Args(RunArgs):
    # of those that all scripts share (common/lm/args.py)
    cpu_threads: int = preset(0, tiny=2)
    adam_eps: float = preset(1e-8, tiny=3e-5, small=1e-8)
    sft_learning_rate: float = preset(1e-5, tiny=1e-3, small=1.5e-4)
    micro_batch_tokens: int = preset(16384, tiny=768, small=1024)

    lockstep: bool = False
    """let every batch of the policy wait for all episodes: the same seed gives the same metrics, bit for bit on a CPU,
    and so does a run that was killed and resumed (slower)"""

    # the environment
    env_id: str = "webshop"
    """the environment: webshop, alfworld, arena (envs/__init__.py lists them)"""
    data_dir: str = ""
    """the benchmark's original files; empty: the embedded catalogue or generated games"""
    num_envs: int = preset(128, tiny=64, small=16, smoke=16)
    """episodes played at once (arena: each in a browser context of its own)"""
    max_steps: int = 0
    """longest episode; 0: the environment's own (WebShop 15, ALFWorld 50)"""
    screenshots: bool = False
    """arena: keep a screenshot of every step"""
    port: int = 0
    """arena: the embedded sites' port; 0: any free one"""

    # the model
    model_id: str = "assets/tiny"
    """base language model: a local folder or a hub id"""
    engine: str = ""
    """URL of a vLLM server that samples the actions; needs --lora-rank: after every iteration it loads the new adapter
    (docs/gpu.md)"""
    max_new_tokens: int = preset(512, tiny=28, small=64)
    """longest answer in tokens, thought included (verl-agent: 512)"""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """chat: the paper's prompts (appendix C) in the model's chat template, answers in <think> and <action> tags; plain:
    the same content in few tokens; auto: chat where the tokenizer has a template"""
    history_length: int = 2
    """past observations and actions in the prompt (appendix B: 2)"""
    history_tokens: int = preset(1000, tiny=12, small=200)
    """longest past observation in the prompt in tokens; longer ones lose their end"""
    page_tokens: int = preset(3000, tiny=400, small=800)
    """arena: longest page in a prompt in tokens; longer ones lose their text first, then their last elements"""

    # supervised fine-tuning: the start, and the SFT baseline
    demos: str = ""
    """demonstrations: a trajectories.jsonl of your own; empty: the environment's oracle plays num_demos tasks"""
    num_demos: int = preset(128, tiny=64, small=32, smoke=16)
    """demonstrations that the oracle plays on training tasks; 0: none, and no fine-tuning (instruct models, as in the
    paper)"""
    sft_epochs: int = preset(3, tiny=8, small=3, smoke=2)
    """passes over the demonstrations"""
    sft_batch_size: int = preset(32, tiny=16, small=4)
    """steps per update of the fine-tuning"""

    # reinforcement learning
    algorithm: str = "grpo"
    """grpo: advantages of Eq. 4; rloo: reward minus the mean of the group's others; ppo: a critic and GAE; rft: all
    rollouts by the SFT policy, then fine-tuning on the demonstrations and the successes; sft: no rollouts. The
    baselines are these with --replay none"""
    group_size: int = 8
    """rollouts G per group (the paper gives none; verl-agent: 8); ppo needs no groups: 1"""
    groups_per_iteration: int = preset(16, tiny=8, small=4, smoke=4)
    """groups a batch (verl-agent: 16)"""
    iterations: int = preset(150, tiny=1000, smoke=3)
    """batches at most (verl-agent: 150)"""
    total_steps: int = preset(0, tiny=10000, small=4000, smoke=0)
    """stop at the first batch that reaches so many environment steps sampled by the policy; 0: at `iterations`"""
    learning_rate: float = preset(1e-6, tiny=1e-4, small=1e-5)
    """the actor's rate (verl-agent: 1e-6)"""
    anneal_lr: bool = preset(False, tiny=True)
    """actor's rate over the whole run: up over the first fiftieth, then a cosine down to a tenth"""
    clip_eps: float = 0.2
    """clip range of the probability ratio"""
    kl_coef: float = preset(0.01, tiny=0.0)
    """weight of the KL divergence from the policy at the start, estimator k3 (verl-agent: 0.01; the paper is silent);
    above 0 groups without signal are trained on, too"""
    update_epochs: int = 1
    """passes over a batch"""
    batch_size: int = preset(64, tiny=16)
    """steps (prompt, answer) per update (verl-agent: 64 on WebShop, 256 on ALFWorld)"""
    recompute_logprobs: bool = preset(True, tiny=False)
    """take the old log-probs of the ratio from a forward pass before the update instead of from the sampling: on a GPU,
    or in a server, the two differ by rounding"""
    max_grad_norm: float = 1.0
    """clip of the norm of the actor's gradient (the critic's and the fine-tuning's: 1)"""
    train_embeddings: bool = True
    """train the embeddings, too, in reinforcement learning; off: those of words that no rollout shows stay in tune with
    the rest (where they are the head as well, it stays the same)"""
    gamma: float = 1.0
    """ppo: discount"""
    gae_lambda: float = 0.95
    """ppo: lambda of GAE, over steps"""
    critic_learning_rate: float = preset(1e-5, tiny=3e-4, small=3e-5)
    """ppo: the critic's rate (verl-agent: 1e-5)"""

    # the curriculum (sections 3.4 to 3.6)
    replay: Literal["suffix", "start", "none"] = "suffix"
    """suffix: CRPS; start: successful tasks once more from their first step (experience replay); none: fresh groups"""
    p_replay: float = preset(0.2, tiny=0.5)
    """Eq. 13: probability that a group is a replay group (the paper: 0.2)"""
    alpha_max: float = preset(0.875, tiny=0.5)
    """Eq. 7: a success enters the buffer where its group's success rate is at most this (the paper gives none; 7 of 8:
    all but the groups without a failure)"""
    beta_min: float = preset(0.2, tiny=0.5)
    """Eq. 9: first suffix as a share of the trajectory, at success rate 0 (the paper gives none; the controller's band,
    as its share)"""
    beta_max: float = preset(0.8, tiny=1.0)
    """Eq. 9: and at success rate 1 (the paper gives none)"""
    k_min: int = 1
    """Eq. 9, 12: shortest suffix (the paper gives none: the last step alone)"""
    k_max: int = 0
    """Eq. 9, 12: longest suffix; 0: the whole trajectory"""
    fixed_k: int = 0
    """ablation: this suffix length always (the paper's: 10); 0: the controller's"""
    rho_low: float = 0.2
    """Eq. 12: below this replay success rate the suffix gets shorter"""
    rho_high: float = 0.8
    """Eq. 12: and above this longer"""
    smoothing: float = 0.9
    """Eq. 11: lambda, the weight of the newest group"""
    rho_start: float = 0.5
    """Eq. 11: estimate before the first replay group: the middle of the band, so that one group decides"""
    k_step: int = 2
    """Eq. 12: Delta, by which k changes"""
    mastery_rate: float = 0.9
    """a replay group of the whole trajectory that succeeds at least this often ... (the paper gives no threshold; at 8
    rollouts: all of them)"""
    mastery_groups: int = 2
    """... so many times in a row removes its task from the buffer ("consistently": the fewest that are a row)"""
    buffer_size: int = 512
    """tasks in the success buffer; the oldest leave first (the paper gives none: more than a run of its size fills)"""
    difficulty_aware: bool = False
    """draw replayed tasks by p (1 - p) of their estimated success rate p, and let the most extreme leave a full buffer
    ("optionally", section 3.4, without a formula); off: uniformly, and the oldest"""
    count_restored: bool = False
    """environment steps are those of restored prefixes, too: in --total-steps, in global_step and so in plots; off:
    those that the policy sampled"""

    # evaluation
    eval_every: int = preset(5, tiny=8, smoke=2)
    """iterations between two evaluations (verl-agent: 5)"""
    eval_tasks: int = preset(128, tiny=100, small=16, smoke=4)
    """tasks of the eval split (verl-agent: 128)"""
    test_tasks: int = preset(500, tiny=300, small=100, smoke=8)
    """tasks of the test split played at the start and at the end (WebShop has 500)"""
    test_before: bool = True
    """play them at the start, too"""
    eval_temperature: float = 0.4
    """sampling temperature of evaluations (verl-agent: 0.4); 0: greedy"""
    save_every: int = preset(5, tiny=10, smoke=2)
    """iterations between two checkpoints"""


# ------------------------------------------------------------------------------------------------------- the equations
def group_advantages(rewards, eps=1e-6):
    """Eq. 4: (R - mean) / (population std + eps) over one group's trajectories. [G] -> [G], zeros where all rewards are
    equal (in floating point their std need not be 0)."""
    if not len(rewards) or bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + eps)


def policy_loss(logprobs, old_logprobs, advantages, clip_eps=0.2):
    """PPO's clipped objective of every token, to be minimised. logprobs, old_logprobs [N, L]; advantages [N], each for
    all tokens of its answer -> [N, L]."""
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()  # finite: a masked token's infinity would be NaN
    advantages = advantages[:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantages)


def kl_k3(logprobs, ref_logprobs):
    """Estimate of KL(pi || pi_ref) from tokens of pi, never below 0 (k3: r - 1 - log r). [N, L], [N, L] -> [N, L]."""
    log_ratio = (ref_logprobs - logprobs).clamp(max=20)  # else its exp overflows
    return log_ratio.exp() - 1 - log_ratio


# what --algorithm names; one of your own is a row
ALGORITHMS = {"grpo": Algorithm(group_advantages)} | other_algorithms()


def initial_suffix(accuracy, length, beta_min, beta_max, k_min, k_max):
    """Eq. 9: the first suffix length of a trajectory of `length` steps whose group succeeded at this rate."""
    k = math.floor((beta_min + (beta_max - beta_min) * accuracy) * length + 1e-9)  # 13 may be 12.999 in floats
    return max(k_min, min(k, k_max))


class SuffixController:
    """Keeps the success rate of replays within [low, high] by the suffix length k, from k_min to `length` (Eq. 11, 12).

    `rate` is the moving average of the replay groups' success rates; `smoothing` is the weight of the newest (lambda).
    """

    def __init__(self, k, length, low=0.2, high=0.8, smoothing=0.9, step=2, k_min=1, rate=0.5):
        self.k, self.length, self.low, self.high = k, length, low, high
        self.smoothing, self.step, self.k_min, self.rate = smoothing, step, k_min, rate

    def update(self, accuracy):
        """Take in a replay group's success rate; the next k."""
        self.rate = (1 - self.smoothing) * self.rate + self.smoothing * accuracy
        if self.rate > self.high:
            self.k = min(self.k + self.step, self.length)
        elif self.rate < self.low:
            self.k = max(self.k - self.step, self.k_min)
        return self.k


def group_entropy(successes, size):
    """Eq. 14: entropy in bits of success among a group's `size` rollouts."""
    rates = successes / size, 1 - successes / size
    return -sum(p * math.log2(p) for p in rates if p > 0)


# ------------------------------------------------------------------------------------------------- the success buffer
@dataclass
class Entry:
    """Eq. 5: a task and a trajectory that solved it. `offset` is where the run's trajectories.jsonl has it; `mastered`
    counts the last groups of the whole trajectory that nearly all succeeded, `extreme` the last groups outside the
    controller's band."""

    trajectory: Trajectory
    offset: int
    controller: SuffixController
    mastered: int = 0
    extreme: int = 0

    @property
    def promise(self):
        """p (1 - p) of the estimated success rate: the variance of a rollout's reward, of which a group learns."""
        return max(1e-3, self.controller.rate * (1 - self.controller.rate))


@dataclass
class Group:
    """G rollouts of a task: fresh ones, or from a state `suffix` steps before the end of `entry`'s trajectory."""

    task: envs.Task
    entry: Entry | None = None
    suffix: int = 0
    rollouts: list = field(default_factory=list)

    @property
    def successes(self):
        return sum(t.reward == 1.0 for t in self.rollouts)

    @property
    def accuracy(self):
        """Eq. 6, 10."""
        return self.successes / len(self.rollouts)

    def start(self):
        """Where its rollouts begin: (trajectory, t0) with Eq. 8's t0, or None."""
        if self.entry is None:
            return None
        return self.entry.trajectory, max(0, len(self.entry.trajectory.steps) - self.suffix)


def draw_groups(buffer, train_tasks, rng, args):
    """Eq. 13: a batch of groups, each with probability p_replay one of the buffer's tasks, else a training task at its
    beginning. No buffered task comes twice in a batch: its controller could not answer in between."""
    entries = rng.sample(list(buffer.values()), len(buffer))  # the last one is drawn first
    if args.difficulty_aware:  # weighted, without replacement (Efraimidis and Spirakis 2006)
        entries.sort(key=lambda entry: rng.random() ** (1 / entry.promise))
    tasks = rng.sample(train_tasks, min(len(train_tasks), args.groups_per_iteration))
    groups = []
    for number in range(args.groups_per_iteration):
        if args.replay != "none" and rng.random() < args.p_replay and entries:
            entry = entries.pop()
            length = len(entry.trajectory.steps)
            suffix = length if args.replay == "start" else args.fixed_k or entry.controller.k
            groups.append(Group(entry.trajectory.task, entry, min(suffix, length)))
        else:
            groups.append(Group(tasks[number % len(tasks)]))
    return groups


def update_buffer(buffer, groups, offsets, args):
    """Insertion (Eq. 7), the controllers (Eq. 11, 12) and mastery removal, after the groups were played. `offsets`:
    by id, where the run's file has a trajectory. Returns how many groups each task took to come back into the band
    that did so now (the convergence steps of appendix E), and how many tasks left as mastered."""
    converged, mastered = [], 0
    for group in groups:
        entry = group.entry
        if entry is not None:
            whole = group.suffix >= entry.controller.length
            entry.controller.update(group.accuracy)
            entry.mastered = entry.mastered + 1 if whole and group.accuracy >= args.mastery_rate else 0
            inside = args.rho_low <= entry.controller.rate <= args.rho_high
            if inside and entry.extreme:
                converged.append(entry.extreme)
            entry.extreme = 0 if inside else entry.extreme + 1
            if entry.mastered >= args.mastery_groups:
                mastered += 1
                buffer.pop(group.task.task_id, None)
        elif group.successes and group.accuracy <= args.alpha_max and group.task.task_id not in buffer:
            trace = min((t for t in group.rollouts if t.reward == 1.0), key=lambda t: len(t.steps))
            length = len(trace.steps)
            longest = min(args.k_max or length, length)
            k = initial_suffix(group.accuracy, length, args.beta_min, args.beta_max, args.k_min, longest)  # Eq. 9
            controller = make_controller(k, longest, args.rho_start, args)
            buffer[group.task.task_id] = Entry(trace, offsets[trace], controller)
            if len(buffer) > args.buffer_size:
                by_age = list(buffer)
                extreme = min(by_age, key=lambda name: buffer[name].promise)
                del buffer[extreme if args.difficulty_aware else by_age[0]]
    return converged, mastered


def make_controller(k, length, rate, args):
    low, high = args.rho_low, args.rho_high
    return SuffixController(k, length, low, high, args.smoothing, args.k_step, args.k_min, rate)


# -------------------------------------------------------------------------------------------------------- the networks
@dataclass
class Learner:
    """The networks and the script's random state: what a checkpoint holds."""

    actor: Net
    rng: random.Random
    critic: Net | None = None
    reference: Net | None = None
    iteration: int = -1  # the last one done; 0: fine-tuned
    updates: int = 0
    mastered: int = 0  # tasks that left the buffer as mastered
    restored: int = 0  # steps of prefixes that restarts took in the environment
    tuned: bool = False  # rft: fine-tuned on the rollouts

    def nets(self):
        return {"actor": self.actor, "critic": self.critic, "reference": self.reference}


COUNTS = "iteration", "updates", "mastered", "restored", "tuned"


def save(learner, buffer, player):
    """A checkpoint: the actor as a Hugging Face folder, what the critic learns, optimisers and generators, the buffer
    (its trajectories are in the run's file)."""
    entries = [
        [e.offset, e.mastered, e.extreme, e.controller.k, e.controller.length, e.controller.rate]
        for e in buffer.values()
    ]
    counts = {name: getattr(learner, name) for name in COUNTS}
    state = {"counts": counts, "player": player.state(), "buffer": entries}
    player.run.save_checkpoint(player.steps, *net.states_of(learner.nets(), learner.rng), state)


def restore(learner, buffer, player, args):
    """Everything as it was at the run's last checkpoint; the start's test episodes."""
    run, state = player.run, player.run.resumed.state
    vars(learner).update(state["counts"])
    if learner.iteration < 0:  # stopped before there was anything to go on from
        run.start_over()
        return []
    make_learner(learner, args)
    net.restore(run, learner.nets(), learner.rng)
    for offset, mastered, extreme, k, length, rate in state["buffer"]:
        trace = run.trajectories.read(offset)
        controller = make_controller(k, length, rate, args)
        buffer[trace.task.task_id] = Entry(trace, offset, controller, mastered, extreme)
    player.set_state(state["player"])
    player.publish(learner.actor.model)
    return [t for t in run.trajectories if t.kind == "test before"]


def make_learner(learner, args):
    """Before the first iteration: critic and reference from the SFT model, each where the flags want one, and the
    optimisers (the actor's is not the fine-tuning's)."""
    if not args.train_embeddings:
        learner.actor.model.get_input_embeddings().requires_grad_(False)
    learner.actor.begin(args.learning_rate)
    algorithm = ALGORITHMS[args.algorithm]
    if algorithm.critic:
        learner.critic = value_net(learner.actor).begin(args.critic_learning_rate)
    if args.kl_coef and algorithm.updates:
        learner.reference = replace(learner.actor, model=llm.copy_network(learner.actor.model).eval(), optimizer=None)


# --------------------------------------------------------------------------------------------------------- the prompts
# Appendix C. The paper's words; the web's is ours, in the same form, with all actions that its parser takes.
TAGS = """You should first reason step-by-step about the current situation{more}. This reasoning process MUST be
enclosed within <think> </think> tags.
Once you've finished your reasoning, you should choose an admissible action for current step and present it within
<action> </action> tags."""
ALFWORLD_PROMPT = """You are an expert agent operating in the ALFRED Embodied Environment.
Your task is to: {task}

Prior to this step, you have already taken {count} step(s). Below are the most recent {length} observations and the
corresponding actions you took: {history}

You are now at step {now}. Your current observation is: {observation}
Your admissible actions of the current situation are: [{actions}].

Now it's your turn to take an action.
""" + TAGS.format(more="")
WEBSHOP_PROMPT = """You are an expert autonomous agent operating in the WebShop e-commerce environment.
Your task is to: {task}.
Prior to this step, you have already taken {count} step(s). Below are the most recent {length} observations and the
corresponding actions you took: {history}
You are now at step {now} and your current observation is: {observation}.
Your admissible actions of the current situation are:
[
{actions}
].

Now it's your turn to take one action for the current step.
""" + TAGS.format(more=", then think carefully which admissible action best advances the shopping goal")
WEB_PROMPT = """You are an expert agent that operates a web browser.
Your task is to: {task}

Prior to this step, you have already taken {count} step(s). Below are the most recent {length} observations and the
corresponding actions you took: {history}

You are now at step {now}. Your current page is: {observation}
Your admissible actions are these, on the elements that you see by their numbers:
{actions}

Now it's your turn to take an action.
""" + TAGS.format(more="")


TEMPLATES = {"alfworld": ALFWORLD_PROMPT, "webshop": WEBSHOP_PROMPT}


def agent_prompt(
    tokenizer,
    instruction,
    steps,
    obs,
    prompt_format="auto",
    env_id="webshop",
    history_length=2,
    history_tokens=1000,
    skip=0,
):
    """The agent's prompt as token ids: instruction, step count, the last observations with the actions taken on them
    (but for the first `skip` steps'), the observation now, the admissible actions (appendix B)."""
    recent = steps[max(skip, len(steps) - history_length) :] if history_length else []
    error = f'\nerror "{obs["error"]}"' if obs["error"] else ""
    if is_chat(tokenizer, prompt_format):
        template = TEMPLATES.get(env_id.partition("/")[0], WEB_PROMPT)
        history = "".join(
            f"\n[Observation {len(steps) - len(recent) + i + 1}: '{cut(tokenizer, s.observation, history_tokens)}', "
            f"Action {len(steps) - len(recent) + i + 1}: '{read_action(s.action)}']"
            for i, s in enumerate(recent)
        )
        text = template.format(
            task=instruction,
            count=len(steps),
            length=len(recent),
            history=history,
            now=len(steps) + 1,
            observation=obs["text"] + error,
            actions=CALLS if template is WEB_PROMPT else ",\n".join(f"'{action}'" for action in obs.get("actions", ())),
        )
        return llm.chat_prompt(tokenizer, "You are a helpful assistant.", text)
    history = "".join(f"{cut(tokenizer, s.observation, history_tokens)}\n{s.action}\n" for s in recent)
    now = f'text "step {len(steps) + 1}"\n{obs["text"]}{error}\n'
    text = f"Task Instruction: {instruction}\nAction History:\n{history}{now}"
    return tokenizer.encode(llm.without_special_tokens(tokenizer, text) + "Action:\n", add_special_tokens=False)


def is_chat(tokenizer, prompt_format):
    return prompt_format == "chat" or (prompt_format == "auto" and bool(tokenizer.chat_template))


def cut(tokenizer, text, tokens):
    """The text's first `tokens` tokens."""
    if len(text.encode()) <= tokens:  # no token is shorter than a byte
        return text
    ids = tokenizer.encode(text, add_special_tokens=False)
    return text if len(ids) <= tokens else tokenizer.decode(ids[:tokens])


def read_action(answer):
    """The environment's action in an agent's answer: what the last <action> tags hold, in lower case but for the web's
    calls; the whole answer where there are no tags."""
    found = between(answer, "<action>", "</action>")
    if not found:
        return answer
    action = found[-1].strip()
    return action if re.search(r"(do|exit|go_backward|go_forward)\(", action) else action.lower()


def write_action(action, thought, chat):
    """What a demonstration answers: `read_action` gives the action back. Without tags the thought is the action's own
    comment, the element that it is about."""
    return f"<think>{thought}</think>\n<action>{action}</action>" if chat else action


# --------------------------------------------------------------------------------------------------------- the updates
def set_advantages(groups, learner, args):
    """Each step's advantage into its `advantage`: its trajectory's within the group (GRPO, RLOO), or GAE (PPO)."""
    algorithm = ALGORITHMS[args.algorithm]
    if algorithm.critic:
        set_gae([t for group in groups for t in group.rollouts], learner.critic, args, group_advantages)
        return
    for group in groups:
        rewards = torch.tensor([t.reward for t in group.rollouts])
        for trajectory, advantage in zip(group.rollouts, algorithm.advantages(rewards).tolist(), strict=True):
            for step in steps_of([trajectory]):
                step.advantage = advantage


def update_actor(learner, groups, player, args):
    """One batch's update by PPO's clipped objective on the groups' own steps: a mean over tokens. Metrics."""
    actor, sums = learner.actor, []
    steps = steps_of(t for group in groups for t in group.rollouts)
    if not args.kl_coef:  # what has no advantage has no gradient
        steps = [step for step in steps if step.advantage]
    old, metrics = {step: step.logprobs for step in steps}, {}
    if args.recompute_logprobs:
        old = actor.token_logprobs(steps, args.temperature)
        for step in steps:
            step.ref_logprob = sum(old[step])
        metrics |= player.check_logprobs(steps)
    reference = {}
    if learner.reference is not None:
        reference = learner.reference.token_logprobs(steps, args.temperature)

    def loss_sum(part):
        logprobs, mask = actor.logprobs(part, args.temperature)  # [N, L]
        old_logprobs = padded([old[step] for step in part], mask)
        advantage = torch.tensor([step.advantage for step in part], device=mask.device)
        loss = policy_loss(logprobs, old_logprobs, advantage, args.clip_eps)
        kl = torch.zeros_like(loss)
        if reference:
            kl = kl_k3(logprobs, padded([reference[step] for step in part], mask))
        drift = (old_logprobs - logprobs).detach()
        clipped = ((-drift).exp() - 1).abs() > args.clip_eps
        sums.append(torch.stack([(x * mask).sum() for x in (drift, clipped, kl.detach(), -logprobs.detach(), mask)]))
        return ((loss + args.kl_coef * kl) * mask).sum()

    progress = player.steps / args.total_steps if args.total_steps else learner.iteration / args.iterations
    rate = args.learning_rate * (warmup_cosine(min(1.0, progress), 0.02, 0.1) if args.anneal_lr else 1.0)
    batches = learn.shuffled(steps, args.batch_size, args.update_epochs, learner.rng)
    rates = [rate] * len(batches)
    counts = [sum(len(step.action_ids) for step in batch) for batch in batches]  # a mean over tokens
    losses, norms = actor.descend(loss_sum, batches, max_norm=args.max_grad_norm, counts=counts, rates=rates)
    learner.updates += len(batches)
    metrics |= {"losses/trained_steps": len(steps), "charts/learning_rate": rate}
    if not losses:
        return metrics
    drift, clipped, kl, surprise, tokens = parallel.column_sums(sums, 5, losses[0].device)
    return metrics | {
        "losses/policy_loss": mean_loss(losses, "actor"),
        "losses/grad_norm": torch.stack(norms).mean().item(),
        "losses/approx_kl": drift / tokens,
        "losses/clip_fraction": clipped / tokens,
        "losses/reference_kl": kl / tokens,
        "losses/surprise": surprise / tokens,
    }


# ------------------------------------------------------------------------------------------------------------ the loop
def collect(learner, buffer, player, train_tasks, args):
    """A batch of groups, played: those with at least half of their rollouts, all begun with the same observation. An
    entry none of whose rollouts could begin or end leaves the buffer."""
    groups = draw_groups(buffer, train_tasks, learner.rng, args)
    tasks = [group.task for group in groups for _ in range(args.group_size)]
    starts = [group.start() for group in groups for _ in range(args.group_size)]
    seed = args.seed * 100_000 + learner.iteration
    rollouts = player.play(tasks, args.temperature, seed, "rollouts", learner.iteration, starts)
    for trajectory in rollouts:
        learner.restored += trajectory.prefix
        player.steps += len(trajectory.steps) - (0 if args.count_restored else trajectory.prefix)
        if trajectory.verdict is not None:  # else nobody knows its outcome
            trajectory.reward = float(trajectory.verdict)  # Eq. 2
            groups[trajectory.place // args.group_size].rollouts.append(trajectory)
    for group in groups:
        if group.entry is not None and not group.rollouts:
            buffer.pop(group.task.task_id, None)
    whole = [group for group in groups if 2 * len(group.rollouts) >= args.group_size]
    return [group for group in whole if len({t.steps[t.prefix].hash for t in group.rollouts}) == 1]


def group_metrics(groups):
    """The diagnostics of section 5.2 and the suffixes."""
    if not groups:
        return {}
    fresh, replayed = [g for g in groups if g.entry is None], [g for g in groups if g.entry is not None]
    metrics = {
        "groups/all_zero": sum(g.successes == 0 for g in groups) / len(groups),
        "groups/all_one": sum(g.successes == len(g.rollouts) for g in groups) / len(groups),
        "groups/entropy": sum(group_entropy(g.successes, len(g.rollouts)) for g in groups) / len(groups),
        "groups/replayed": len(replayed) / len(groups),
    }
    if fresh:
        metrics["groups/fresh_success"] = sum(g.accuracy for g in fresh) / len(fresh)
        metrics["groups/fresh_all_zero"] = sum(g.successes == 0 for g in fresh) / len(fresh)
    if replayed:
        lengths = sorted(g.suffix for g in replayed)
        shares = [g.suffix / len(g.entry.trajectory.steps) for g in replayed]
        metrics |= {
            "replay/success": sum(g.accuracy for g in replayed) / len(replayed),
            "replay/suffix_mean": sum(lengths) / len(lengths),
            "replay/suffix_median": lengths[len(lengths) // 2],
            "replay/suffix_max": lengths[-1],
            "replay/suffix_share": sum(shares) / len(shares),
        }
        for k in sorted(set(lengths)):
            at_k = [g.accuracy for g in replayed if g.suffix == k]
            metrics |= {f"replay/success_k{k}": sum(at_k) / len(at_k), f"replay/groups_k{k}": len(at_k)}
    return metrics


def evaluate(player, tasks, name, iteration, args):
    """Episodes at seeds that are the same for every run: (trajectories, metrics, by kind of task too)."""
    trajectories = player.play(tasks, args.eval_temperature, 1234, name, iteration)
    player.run.trajectories.append(trajectories)
    title = name.replace(" ", "_")
    metrics, kinds = evaluation_metrics(trajectories, title), {t.task.template for t in trajectories}
    kinds = kinds if len(kinds) <= 8 else ()  # ALFWorld's six, WebShop's numbers of options; no list of hundreds
    for kind in sorted(kinds):
        verdicts = [t.verdict or 0.0 for t in trajectories if t.task.template == kind]
        metrics[f"{title}/kind_{kind.replace(' ', '_')}"] = sum(verdicts) / len(verdicts)
    return trajectories, metrics


def main(args):
    args.env_id = envs.full_name(args.env_id)
    at_least_1 = """num_envs max_new_tokens sft_epochs sft_batch_size group_size groups_per_iteration batch_size
    micro_batch_tokens update_epochs k_min k_step mastery_groups buffer_size eval_every save_every"""
    shares = """p_replay alpha_max beta_min beta_max rho_low rho_high rho_start smoothing mastery_rate gamma
    gae_lambda"""
    check_ranges(args, at_least_1, shares)
    if args.k_max and args.k_max < args.k_min:
        raise UsageError(f"--k-max {args.k_max} is below --k-min {args.k_min}")
    if args.algorithm not in ALGORITHMS:
        raise UsageError(f"--algorithm {args.algorithm}: one of {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[args.algorithm]
    alone = not algorithm.updates or (algorithm.critic and args.replay == "none")
    if args.group_size < 2 and not alone:
        raise UsageError("--group-size 1: without a group's rollouts to compare there is --algorithm ppo --replay none")
    if args.rho_low > args.rho_high or args.beta_min > args.beta_max:
        raise UsageError("--rho-low must not be above --rho-high, --beta-min not above --beta-max")
    if not args.smoothing:
        raise UsageError("--smoothing 0: the estimate would never move")
    check_flags(args)
    learner, buffer = Learner(load_actor(args), random.Random(args.seed)), {}
    tokenizer = learner.actor.tokenizer
    chat = is_chat(tokenizer, args.prompt_format)
    if chat and args.demos and args.env_id.partition("/")[0] in TEMPLATES:
        raise UsageError(f"--demos: the chat prompt of {args.env_id} lists actions that no file holds: leave it empty")
    env = make_env(args, tokenizer)

    def prompt(instruction, steps, obs, skip=0):
        length, tokens = args.history_length, args.history_tokens
        return agent_prompt(tokenizer, instruction, steps, obs, args.prompt_format, args.env_id, length, tokens, skip)

    def write(action, thought, obs):
        return write_action(action, thought, chat)

    answers, saves = dict(read_action=read_action, write_action=write), partial(save, learner, buffer)
    with session(args, __file__, learner.actor, env, prompt, saves, estimate.crps, **answers) as player:
        train(args, env, player, learner, buffer)


def make_env(args, tokenizer):
    """The environment, with what it alone has."""
    name = args.env_id.partition("/")[0]
    options = {"data_dir": args.data_dir} if name in ("webshop", "webshop-pages", "alfworld") else {}
    if args.data_dir and not options:
        raise UsageError(f"--data-dir: {args.env_id} has no files of its own")
    if name in TEMPLATES:
        options["format"] = "original" if is_chat(tokenizer, args.prompt_format) else "compact"
    return envs.make(
        args.env_id,
        page_tokens=args.page_tokens,
        count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
        screenshots=args.screenshots,
        port=args.port,
        real_clock=args.real_clock,
        **options,
    )


def train(args, env, player, learner, buffer):
    """Sections 3.4 to 3.6: fine-tuning, then batch after batch of groups, fresh ones and restarts from suffixes."""
    run, (train_tasks, eval_tasks, test_tasks) = player.run, tasks_of(env, args)
    run.say(f"run folder {run.path}")
    before, updates = [], ALGORITHMS[args.algorithm].updates
    if run.resumed:
        before = restore(learner, buffer, player, args)
    if learner.iteration < 0:
        before = start_actor(learner, buffer, player, train_tasks, test_tasks, args)
    while not finished(learner, player, args):
        learner.iteration += 1
        groups = collect(learner, buffer, player, train_tasks, args)  # Eq. 13, 8
        if not groups:
            run.say("warning: no group of this batch began alike, or kept half of its rollouts: nothing to train on")
        rollouts = [t for group in groups for t in group.rollouts]
        offsets = parallel.broadcast(run.trajectories.append(rollouts))
        with run.timer("training"):
            metrics = rollout_metrics(rollouts) | group_metrics(groups) | player.metrics()
            metrics["groups/dropped"] = args.groups_per_iteration - len(groups)
            # Eq. 5 to 7, 9: what enters the buffer; Eq. 10 to 12: how long suffixes are next
            metrics |= replay_metrics(learner, buffer, groups, dict(zip(rollouts, offsets, strict=True)), args)
            if updates:
                set_advantages(groups, learner, args)  # Eq. 4
                metrics |= update_actor(learner, groups, player, args)
            if learner.critic is not None:
                metrics["losses/critic_loss"] = update_critic(learner.critic, steps_of(rollouts), learner.rng, args)
        metrics |= {"charts/iteration": learner.iteration, "charts/updates": learner.updates}
        if updates:
            player.version += 1
            player.publish(learner.actor.model, metrics)
        if learner.iteration % args.eval_every == 0 and updates:
            metrics |= evaluate(player, eval_tasks, "eval", learner.iteration, args)[1]
        shown = "rollout/reward groups/all_zero groups/entropy replay/buffer_size replay/suffix_mean eval/success"
        run.report(f"iteration {learner.iteration}, {player.steps} steps", metrics, shown)
        metrics["charts/restored_steps"] = learner.restored
        run.log(metrics, player.steps)
        if learner.iteration % args.save_every == 0:
            save(learner, buffer, player)
    finish(args, player, learner, buffer, before, test_tasks)


def replay_metrics(learner, buffer, groups, offsets, args):
    """Bring the buffer up to date with the groups (`update_buffer`); what became of it."""
    before = set(buffer)
    converged, mastered = update_buffer(buffer, groups, offsets, args)
    learner.mastered += mastered
    metrics = {"replay/buffer_size": len(buffer), "replay/inserted": len(set(buffer) - before)}
    metrics["replay/mastered"] = learner.mastered
    if converged:
        metrics |= {"replay/convergence_steps": sum(converged) / len(converged), "replay/converged": len(converged)}
    return metrics


def tasks_of(env, args):
    """Training, eval and test tasks. Raises UsageError where nothing would say what succeeded at them."""
    train_tasks, eval_tasks, test_tasks = (
        [replace(task, max_steps=args.max_steps or task.max_steps) for task in env.tasks(split)]
        for split in ("train", "eval", "test")
    )
    if not any(envs.has_check(env, task) for task in train_tasks):
        raise UsageError(
            f"{args.env_id}: no training task has a check of its own, and nothing else says what succeeded"
        )
    return train_tasks, eval_tasks[: args.eval_tasks], test_tasks[: args.test_tasks]


def finish(args, player, learner, buffer, before, test_tasks):
    """The test, the summary and the pages (RFT: its fine-tuning first)."""
    run, algorithm = player.run, ALGORITHMS[args.algorithm]
    if algorithm.plays and not algorithm.updates and not learner.tuned:
        rejection_fine_tune(learner, player, args)
    if run.latest().state["counts"] != {name: getattr(learner, name) for name in COUNTS}:
        save(learner, buffer, player)
    after, metrics = evaluate(player, test_tasks, "test after", learner.iteration, args)
    run.log({**metrics, "charts/iteration": learner.iteration}, player.steps)
    if after:
        run.summary(before, after)
    if parallel.is_main():
        if "test_after/score" in metrics:
            print(f"Task score  {metrics['test_after/score']:.3f}")
        print(f"Episodes    {view.write(run.path, view.Args(run=str(run.path), last=2))}")
        print(f"Plots       {', '.join(str(file) for file in plot.write(plot.Args(runs=(str(run.path),))))}")


def finished(learner, player, args):
    reached = args.total_steps and player.steps >= args.total_steps
    return not ALGORITHMS[args.algorithm].plays or learner.iteration >= args.iterations or reached


def start_actor(learner, buffer, player, train_tasks, test_tasks, args):
    """Supervised fine-tuning on a few demonstrations, and what the start can do: its test episodes."""
    run, metrics = player.run, {}
    if args.num_demos or args.demos:
        if args.demos:
            demos = read_demos(args.demos, player.prompt, player.encode_action, train_tasks)
        else:
            demos = player.demonstrate(learner.rng.sample(train_tasks, min(len(train_tasks), args.num_demos)))
        if not demos:
            raise UsageError("there is no demonstration of a success: --demos FILE, --num-demos N, or 0 for none")
        run.trajectories.append(demos)
        run.say(f"{len(demos)} demonstrations of {sum(len(d.steps) for d in demos)} steps: fine-tuning")
        with run.timer("training"):
            metrics["losses/sft_loss"] = learner.actor.fine_tune(steps_of(demos), args)
        run.save_start(*learner.actor.weights())
    player.publish(learner.actor.model)
    before = []
    if args.test_before:
        before, tested = evaluate(player, test_tasks, "test before", 0, args)
        metrics |= tested
        run.report("start", tested, "test_before/success test_before/score")
    make_learner(learner, args)
    learner.iteration = 0
    run.log({**metrics, "charts/iteration": 0}, player.steps)
    save(learner, buffer, player)
    return before


if __name__ == "__main__":
    run_main(lambda: main(parse_args(Args)))
