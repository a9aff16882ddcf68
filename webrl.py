"""WebRL: training LLM web agents by self-evolving online curriculum reinforcement learning (arXiv 2411.02337).

The whole of Algorithm 1 in this file: supervised fine-tuning on demonstrations; an outcome reward model (ORM) trained
on labelled rollouts; then phases, each of which generates instructions from those the agent failed, filters them by the
critic and by feasibility, rolls the actor out on them, judges the rollouts with the ORM, draws confidence-filtered
replay, and updates critic and actor by the KL-constrained loss (Eq. 12).

The loss is the paper's squared error on sequence log-ratios with Eq. 15's advantages; the released code's differs in
sign, weight and scale. A model of 0.8 M parameters needs other values than Table 5's (`tiny=` below): it drops actions
of negative advantage, as the released code does, and it draws training instructions instead of generating new ones,
with which single runs gained more. docs/webrl.md lists every difference and says why.

    python webrl.py                                   # tiny model, an embedded shop, real Chromium, two CPU cores
    python webrl.py --curriculum                      # generated instructions with the tiny model, too
    python webrl.py --model-id meta-llama/Llama-3.1-8B-Instruct --lora-rank 64 --load-in-4bit
    python webrl.py --loss sft --no-curriculum        # Filtered BC
    python webrl.py --loss released                   # the authors' code, which is not Eq. 12
    python webrl.py --loss reinforce --no-replay      # without the KL constraint and without replay (Figure 5)
    python webrl.py --judge env                       # the true verdict instead of the ORM's: an upper bound
"""

import common.interrupt  # noqa: F401  # isort: skip

import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F

import envs
from common import orm
from common.actions import CALLS
from common.errors import JudgeFault, UsageError
from common.lm import estimate, learn, llm, net, parallel, serve
from common.lm.args import RunArgs, check_ranges, own_first, parse_args, preset
from common.lm.learn import mean_loss, warmup_cosine
from common.lm.net import Net, value_net
from common.lm.run import run_main
from common.lm.session import base_model, check_flags, load_actor, session
from common.lm.stats import auc, evaluation_metrics, rollout_metrics
from common.replay import prompt_lengths, read_demos, read_labelled, steps_of
from envs.webarena import AND
from tools import plot, view
from variants.webrl import (
    END,  # noqa: F401 (tools/eval.py)
    OTHER_PROMPTS,
    Variant,
    known_result,
    other_variants,
    released_chat_prompt,
    released_prompt,
    tiny_values,
)


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
    env_id: str = "arena-v1/shop"
    """the environment (envs/__init__.py lists them)"""
    num_envs: int = preset(16, tiny=16, smoke=4)
    """episodes played at once, each in a browser context of its own"""
    real_input: bool = False
    """act by trusted mouse and keyboard events instead of in-page dispatch (slower)"""
    screenshots: bool = False
    """keep a screenshot of every step"""
    port: int = 0
    """the embedded sites' port; 0: any free one"""
    tasks: str = ""
    """--env-id site, webgym: a file of tasks, on any web sites (docs/hacking.md, docs/webgym.md); webarena-lite: a file
    of training instructions (docs/webarena.md)"""
    start_url: str = ""
    """site: where instructions start that do not say it themselves"""
    hosts: str = ""
    """site, webgym: the hosts that the agent may visit, joined by commas; empty: where an instruction starts"""
    action_interval: float = 0.0
    """site, webgym: seconds that lie at least between two actions, of all episodes together"""
    obey_robots: bool = True
    """site, webgym: ask for no page that the host's robots.txt forbids to everybody"""

    # the model
    model_id: str = "assets/tiny"
    """base language model: a local folder or a hub id"""
    engine: str = ""
    """URL of a vLLM server that samples the actions; needs --lora-rank: after every phase it loads the new adapter
    (docs/gpu.md)"""
    max_new_tokens: int = preset(2048, tiny=48, small=64)
    """longest action in tokens"""
    prompt_format: Literal["auto", "plain", "chat", "webrl"] = "auto"
    """plain text; the same in the model's chat template; or the released WebRL checkpoints' own format, HTML included;
    auto: chat where the tokenizer has a template"""
    page_tokens: int = preset(12000, tiny=400, small=800)
    """longest page in a prompt in tokens; longer ones lose their text first, then their last elements"""

    # the training instructions
    train_tasks: int = preset(1186, tiny=0)
    """training instructions, the environment's first N (WebArena-Lite has 1,186); 0: all"""

    # supervised fine-tuning (Table 5: SFT)
    demos: str = ""
    """demonstrations: a trajectories.jsonl of your own; empty: the environment's oracle plays num_demos tasks"""
    num_demos: int = preset(1186, tiny=40, small=56, smoke=20)
    """demonstrations that the oracle plays on training tasks; 0: none, and no fine-tuning"""
    sft_epochs: int = preset(1, tiny=24, small=3, smoke=8)
    """passes over the demonstrations"""
    sft_batch_size: int = preset(128, tiny=8, small=4)
    """steps per update of the fine-tuning"""

    # outcome reward model (Table 6)
    judge: str = "orm"
    """who says that an episode succeeded in training: orm, the outcome reward model trained here; env, the
    environment's true verdict; or the URL of a server with a trained ORM (OpenAI-compatible, with log-probs)"""
    orm_model_id: str = preset("", tiny="assets/orm", small="")
    """what the ORM starts from: the ORM of an earlier run (runs/RUN/checkpoints/.../orm) or a released one, a folder or
    a hub id with the tokenizer of --model-id; empty: --model-id"""
    orm_episodes: int = preset(12200, tiny=2800, small=300, smoke=32)
    """labelled episodes for the ORM (section B.3: 12,200): the start-up rollouts and the demonstrations, then
    --orm-data, drawn at random, then rollouts of the SFT policy, greedy and hotter; a tenth of the instructions is held
    out"""
    orm_demos: int = 1186
    """the ORM's labelled episodes hold at most so many demonstrations: all of these are successes, and where they are
    many the ORM believes too much"""
    orm_data: str = preset("", tiny="assets/orm/labelled.jsonl.gz", small="", smoke="")
    """labelled episodes of earlier runs on training instructions for the ORM: a file of tools/orm_data.py"""
    orm_learning_rate: float = preset(5e-6, tiny=3e-4, small=3e-5)
    """peak rate; warm-up over a tenth, then cosine"""
    orm_epochs: int = preset(4, tiny=1, small=3)
    """passes over the labelled rollouts"""
    orm_batch_size: int = preset(128, tiny=64, small=16)
    """rollouts per update of the ORM"""
    orm_page_first: bool = preset(False, tiny=True)
    """put the page before the instruction in the ORM's prompt (the paper: instruction, actions, page)"""
    orm_lm_weight: float = preset(0.0, tiny=0.3, small=0.0)
    """weight of a language-model loss on the instruction's words in the ORM's training"""
    orm_threshold: float = 0.5
    """P(YES) above which an episode is a success (the paper, 0.5: YES is likelier than NO); higher where the ORM was
    trained on more successes than the rollouts have, and believes too much"""
    orm_refresh: int = preset(0, tiny=0, smoke=4)
    """rollouts on training instructions per phase that go on training the ORM as the policy moves"""

    # Algorithm 1
    num_phases: int = preset(8, tiny=6, small=3, smoke=2)
    """phases N"""
    start_episodes: int = preset(1186, tiny=300, small=72, smoke=12)
    """rollouts of the SFT policy on training instructions that fill buffer and failure set (lines 2 to 5)"""
    start_buffer: Literal["rollouts", "both"] = "rollouts"
    """what the replay buffer holds before phase 1: the successes among these rollouts (Algorithm 1), or the
    demonstrations besides (the authors' runs began with the SFT data)"""
    instructions_per_phase: int = preset(500, tiny=256, small=72, smoke=8)
    """new instructions K a phase"""
    curriculum: bool = preset(True, tiny=False, smoke=True)
    """generate instructions from failed ones; off: draw from the training instructions"""
    fixed_instructions: bool = False
    """go on with the instructions of phase 1 (the paper's "w/o CL")"""
    generator: str = ""
    """URL of an OpenAI-compatible server that writes and filters instructions; empty: the environment does both"""
    generator_model: str = "gpt-4o-2024-05-13"
    """model name at that server; its key is read from OPENAI_API_KEY"""
    generator_prompt: Literal[1, 2, 3] = 1
    """which of three prompts: 1 says what the released one does (Figure 18); 2 and 3 are ours, not the paper's versions
    (Figures 19 and 20)"""
    filter_low: float = 0.05
    """critic filter: keep instructions whose start value is at least this"""
    filter_high: float = 0.75
    """critic filter: and at most this"""
    filter_tries: int = 20
    """candidates drawn for each instruction wanted before the phase goes on with fewer"""

    # the update (Eq. 5 to 8, 12, 15)
    loss: str = "paper"
    """paper: Eq. 12 on Eq. 15's advantages; released: the authors' code (maximum likelihood on actions of positive sign
    that stops at a token log-ratio); reinforce: the policy gradient with V as its baseline (Figure 5's "w/o KL"); awr:
    advantage-weighted regression; forward-kl: Eq. 13, the same weights on fresh rollouts alone; digirl: maximum
    likelihood on what passes DigiRL's two filters (with --fixed-instructions: without a curriculum); sft: maximum
    likelihood on successful trajectories (with --no-curriculum: Filtered BC)"""
    beta: float = 0.1
    """KL coefficient of Eq. 12: the log-ratio it asks for is A / beta, so a larger one moves less (the paper's main
    value is not stated; Figure 7 sweeps it); of awr and forward-kl: the temperature of their weights"""
    gamma: float = preset(0.9, tiny=1.0)
    """discount of Eq. 15"""
    advantage_lambda: float = preset(0.5, tiny=0.0)
    """lambda of Eq. 8 and 15: next-step against final-step advantage"""
    advantage_floor: float = preset(-math.inf, tiny=0.0)
    """lowest advantage: below 0 an action is pushed down, by up to |A| / beta in log-probability a phase"""
    floored_keep: float = preset(1.0, tiny=0.0)
    """share of the actions at the floor that enters the update: at a floor of 0 they only hold the policy in place"""
    filter_quantile: float = preset(0.9, tiny=0.5)
    """of digirl: trajectories whose outcome minus V of their first page is at or above this quantile (released: 0.9)"""
    learning_rate: float = preset(1e-6, tiny=3e-4, small=3e-5)
    """the actor's rate"""
    critic_learning_rate: float = preset(1e-6, tiny=3e-4, small=3e-5)
    """the critic's rate"""
    anneal_lr: bool = preset(False, tiny=True)
    """actor's rate over the whole run: up over the first twentieth, then a cosine down to a tenth"""
    max_grad_norm: float = preset(1.0, tiny=0.1)
    """clip of the norm of Eq. 12's gradient; when it is below most norms, every batch moves the actor equally far (the
    critic's, the ORM's and the fine-tuning's: 1)"""
    batch_size: int = preset(128, tiny=8)
    """steps (state, action) per update"""
    actor_epochs: int = preset(1, tiny=2)
    """passes over a phase's data for the actor"""
    critic_epochs: int = 1
    """passes over a phase's data for the critic"""
    critic_warmup_epochs: int = preset(0, tiny=1)
    """passes over the start-up rollouts that the critic gets before phase 1"""
    critic_first: bool = preset(True, tiny=False)
    """update the critic on a phase's rollouts before it values them (the released code); off: after, so that no
    advantage comes from a critic that has seen the outcome"""
    critic_replay: Literal["success", "both", "none"] = preset("success", tiny="both")
    """what the critic sees beside fresh rollouts: the actor's replay (Algorithm 1); as many steps of old rollouts of
    both outcomes; or nothing (V of pi_old in Figure 10)"""

    # replay (section 2.2)
    replay: bool = True
    """replay successful trajectories of earlier phases"""
    replay_failures: bool = False
    """and failed ones, with their advantages"""
    replay_ratio: float = preset(2.0, tiny=0.5)
    """replayed steps at most this many times the fresh ones"""
    perplexity_low: float = preset(1 / 0.95, tiny=1.0)
    """actor confidence filter: lowest perplexity of a replayed action"""
    perplexity_high: float = 1 / 0.5
    """actor confidence filter: highest perplexity of a replayed action"""

    # evaluation
    eval_tasks: int = preset(165, tiny=48, small=16, smoke=3)
    """tasks of the eval split played after every phase, greedily (165: WebArena-Lite has as many)"""
    test_tasks: int = preset(165, tiny=200, small=112, smoke=6)
    """tasks of the test split played at the start and at the end, greedily"""
    control: bool = preset(False, tiny=True)
    """at the end, fine-tune the start on its demonstrations for as many updates as reinforcement made, and test that,
    too: a gain without this control is no gain"""


# ------------------------------------------------------------------------------------------------------- the equations
def advantages(values, reward, gamma=0.9, lam=0.5):
    """Eq. 15 (Eq. 8 at gamma = 1): advantages of one trajectory's actions.

    values [T]: V of its states; reward: the outcome, paid at the last step; V after the end is 0. Returns [T]:
    A_t = lam (r_t + gamma V_{t+1} - V_t) + (1 - lam) (gamma^{T-t} r_T - V_t).
    """
    steps = len(values)
    rewards = torch.zeros_like(values)
    rewards[-1] = reward
    next_values = torch.cat([values[1:], values.new_zeros(1)])
    to_go = torch.arange(steps - 1, -1, -1, dtype=values.dtype, device=values.device)  # T - t
    one_step = rewards + gamma * next_values - values
    final_step = gamma**to_go * reward - values
    return lam * one_step + (1 - lam) * final_step


def policy_loss(logprobs, ref_logprobs, advantages, beta):
    """Eq. 12 (Eq. 5): mean squared error of beta log(pi / pi_ref) and A. Sequence log-probs, advantages [N]; scalar."""
    return ((beta * (logprobs - ref_logprobs) - advantages) ** 2).mean()


def paper_loss(logprobs, reference, advantages, lengths, args):
    return policy_loss(logprobs, reference, advantages, args.beta)


def paper_advantages(values, reward, args):
    return advantages(values, reward, args.gamma, args.advantage_lambda)


def critic_loss(value_logits, outcomes):
    """Eq. 7: cross-entropy of V = sigmoid(value_logits) and the trajectory's outcome. [N], [N]; scalar."""
    return F.binary_cross_entropy_with_logits(value_logits, outcomes.to(value_logits.dtype))


def perplexity(token_logprobs, mask):
    """exp of the mean negative log-prob of an action's tokens. [N, L], [N, L] -> [N]."""
    mask = mask.to(token_logprobs.dtype)
    return (-(token_logprobs * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).exp()


def in_confidence_band(perplexity, low=1 / 0.95, high=1 / 0.5):
    """The actor confidence filter: neither over-familiar nor too hard. [N] -> bool [N]."""
    return (perplexity >= low) & (perplexity <= high)


# -------------------------------------------------------------------------------------------------------- the networks
@dataclass
class Learner:
    """The networks and the script's random state: what a checkpoint holds."""

    actor: Net
    rng: random.Random
    critic: Net | None = None
    orm: Net | None = None
    phase: int = -2  # the last one done; -1: fine-tuned, 0: ready for phase 1
    updates: int = 0

    def nets(self):
        return {"actor": self.actor, "critic": self.critic, "orm": self.orm}


@dataclass
class Memory:
    """What Algorithm 1 carries from phase to phase. All of it is in the run's trajectories.jsonl, too, in the order in
    which it came: a resumed run reads it from there."""

    known: set  # (instruction, site, seed of its world) of all tasks so far
    earlier: list  # trajectories of --orm-data
    labelled: list = field(default_factory=list)  # those of this run with true verdicts that the ORM may learn from
    before: list = field(default_factory=list)  # the SFT policy's test episodes
    rollouts: list = field(default_factory=list)  # on training and generated instructions
    replay_buffer: list = field(default_factory=list)
    failure_set: list = field(default_factory=list)  # tasks
    start_pages: dict = field(default_factory=dict)  # `start_of` a task -> what its first page says

    def add(self, trajectories, start_buffer):
        """Take in trajectories whose rewards are set, each by what it was played for."""
        for t in trajectories:
            if t.kind in ("demo", "start", "label"):
                self.labelled.append(t)
            if t.kind != "demo":
                first = {"text": t.steps[0].observation, "error": "", "url": t.steps[0].url}
                self.start_pages.setdefault(start_of(t.task), first)
            elif start_buffer == "both":
                self.replay_buffer.append(t)
            if t.kind == "test before":
                self.before.append(t)
            elif t.kind in ("start", "rollout"):  # lines 2 to 5; lines 19, 20
                self.known.add((t.task.instruction, t.task.site, t.task.seed))
                self.rollouts.append(t)
                self.replay_buffer += [t] if t.reward else []
                self.failure_set += [] if t.reward else [t.task]


def save(learner, player):
    """A checkpoint: actor and ORM as Hugging Face folders, what the critic learns, optimisers and generators."""
    state = {"phase": learner.phase, "updates": learner.updates, "player": player.state()}
    player.run.save_checkpoint(player.steps, *net.states_of(learner.nets(), learner.rng), state)


def restore(learner, memory, player, args):
    """Everything as it was at the run's last checkpoint."""
    run = player.run
    state = run.resumed.state
    learner.phase, learner.updates = state["phase"], state["updates"]
    if learner.phase < -1:  # stopped before there was anything to go on from
        run.start_over()
        return
    if learner.phase >= 0:
        make_judge_and_critic(learner, args)
    net.restore(run, learner.nets(), learner.rng)
    for trajectory in run.trajectories:
        memory.add([trajectory], args.start_buffer)
    player.set_state(state["player"])
    player.publish(learner.actor.model)


def make_judge_and_critic(learner, args):
    """Before phase 1: the ORM from the base model, the critic from the SFT model, each where the flags want one, and
    the optimisers (the actor's is not the fine-tuning's)."""
    learner.actor.begin(args.learning_rate)
    if args.judge == "orm":
        learner.orm = make_orm(learner.actor, args).begin(args.orm_learning_rate)
    if VARIANTS[args.loss].critic or args.curriculum:
        learner.critic = value_net(learner.actor).begin(args.critic_learning_rate)


def make_orm(actor, args):
    """The ORM before its training: --orm-model-id, or the base model (with LoRA: new adapters on the actor's)."""
    if args.orm_model_id or not args.lora_rank:
        model, _ = llm.load(args.orm_model_id or args.model_id, *base_model(args)[1:])
    else:
        model = llm.new_adapters(llm.copy_network(actor.model))
    return replace(actor, model=model, optimizer=None)


# --------------------------------------------------------------------------------------------------------- the prompts
def agent_prompt(tokenizer, instruction, steps, obs, prompt_format="auto", skip=0):
    """The agent's prompt as token ids, in the released order: instruction, action history, current page.

    steps: those so far (plain: their actions' token ids as they were sampled), of which the first `skip` are left out;
    obs: the environment's observation.
    """
    stop = llm.end_of_turn(tokenizer)
    past = [[i for i in step.action_ids if i != stop] for step in steps[skip:]]
    if prompt_format == "webrl":
        text = released_prompt(tokenizer, instruction, [tokenizer.decode(ids) for ids in past], obs["text"])
        return tokenizer.encode(text)  # with the beginning-of-text token
    if prompt_format == "chat" or (prompt_format == "auto" and tokenizer.chat_template):
        task = agent_task(instruction, [tokenizer.decode(ids) for ids in past], obs)
        return llm.chat_prompt(tokenizer, AGENT_SYSTEM_PROMPT, task)
    instruction, page = (llm.without_special_tokens(tokenizer, text) for text in (instruction, page_and_error(obs)))
    ids = tokenizer.encode(f"Task Instruction: {instruction}\nAction History:\n", add_special_tokens=False)
    newline = tokenizer.encode("\n", add_special_tokens=False)
    for action in past:
        ids += action + newline
    return ids + tokenizer.encode(f"{page}Action:\n", add_special_tokens=False)


def page_and_error(obs):
    """The observation as a prompt shows it: the page, and why the last action was refused, if it was."""
    error = f'error "{obs["error"]}"\n' if obs["error"] else ""
    return f"{obs['text']}\n{error}"


def agent_task(instruction, actions, obs):
    """What a chat model is told besides AGENT_SYSTEM_PROMPT: the instruction, its answers so far, the page."""
    history = "".join(f"{action}\n" for action in actions)
    return f"Task Instruction: {instruction}\nAction History:\n{history}{page_and_error(obs)}"


AGENT_SYSTEM_PROMPT = f"""You operate a web browser to do the user's task. You see the task, your actions so far and the
page as text, where what can be acted on has a number. Answer with one of these actions:
{CALLS}
Examples:
# Element: "buy now" button [7]
do(action="Click", element="7")
# Element: "search" box [2]
do(action="Search", argument="blue mug", element="2")
# Note: the order of 3 May cost 24
exit(message="24")
REMEMBER:
- One action an answer, in one line, and nothing after it: no list of steps, no code block.
- Only what you see on the page has a number. Scroll, or open another page, to see more.
- Before an action on an element say in a line what it is (# Element: ...), and before any action what of this page you
need later (# Note: ...): of earlier pages you see nothing else.
- Where the page says "tabs 1 of 2" you see the first of two tabs: a task may need them all.
- Do not repeat what changed nothing: try another way. A page that is still loading needs a Wait.
- Do not refuse the task and ask nobody. When it is done, or cannot be done, exit."""
ORM_SYSTEM_PROMPT = (  # the released ORM's, word for word
    "You are an expert in evaluating the performance of a website navigation agent. The agent is designed to help a "
    "human user navigate the website to complete a task. Given the user’s intent, the agent's action history, and the "
    "final state of the screen, your goal is to decide whether the agent’s execution is successful or not. You must "
    "respond with YES or NO."
)


def orm_prompt(tokenizer, trajectory, page_first, prompt_format="auto"):
    """The ORM's prompt (Figure 17): instruction, actions, the last page. Returns (token ids, 0/1 marks of the
    instruction's words, which the other formats do not have)."""
    if prompt_format in ("chat", "webrl") or (prompt_format == "auto" and tokenizer.chat_template):
        actions = "".join("; ".join(step.action.split("\n")).strip() + "\n" for step in trajectory.steps)
        page = trajectory.final_observation.strip()
        text = f"The User Intent:\n{trajectory.task.instruction.strip()}\n\nAction History:\n{actions}"
        text += f"\nThe Current Screenshot:\n{page}"
        chat_prompt = released_chat_prompt if prompt_format == "webrl" else llm.chat_prompt
        ids = chat_prompt(tokenizer, ORM_SYSTEM_PROMPT, text)
        return ids, [0] * len(ids)
    actions = "".join(f"{step.action}\n" for step in trajectory.steps)
    task = f"Task Instruction: {trajectory.task.instruction}\n"
    before, after = f"{trajectory.final_observation}\nAction History:\n{actions}", "Success:"
    if not page_first:
        before, after = "", f"Action History:\n{actions}{trajectory.final_observation}\nSuccess:"
    plain = [llm.without_special_tokens(tokenizer, text) for text in (before, task, after)]
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in plain]
    return parts[0] + parts[1] + parts[2], [0] * len(parts[0]) + [1] * len(parts[1]) + [0] * len(parts[2])


PER_REQUEST = 10  # tasks that a generator is shown
GENERATION_PROMPT = """You write tasks for an assistant that works on the web site "{site}". Write practical tasks that
people would really give it there. Let the Given Tasks inspire you: stay in their domain but be more varied; keep about
their difficulty, a little easier or harder at times; be realistic and possible. Use only names (places, people,
products) that occur in the Given Tasks and invent none. Vary the wording. Put every task in back quotes.
Given Tasks:
{tasks}"""
REWRITING_PROMPT = """Say each of these tasks for a web agent in other words. What is asked for stays the same, and so
does every name, number and quoted text. Put every new task in back quotes, in the order of the old ones.
Tasks:
{tasks}"""
FEASIBILITY_PROMPT = """Can this task be done on the web site "{site}" with what such a site offers (its pages, search,
forms and the account that is logged in), without e-mail, outside services or functions the site does not have?
Task: {task}
Give one sentence of reason, then [YES] or [NO]."""


# ------------------------------------------------------------------------------------------------ curriculum (sec. 2.1)
USELESS = 24  # replies of a generator in a row that bring nothing: then it is asked no more for the phase


def vary_instructions(env, failures, rng, args):
    """Instructions evolved from failed tasks: list of (its text, or the Task that it is; the parent task). By the
    generator URL, else by `env.vary`."""
    if not args.generator:
        return [(proposed, task) for task in rng.choices(failures, k=64) for proposed in env.vary(task, rng)]
    one = rng.choice(failures)  # the names in one request must all exist in one world
    given = [task for task in failures if (task.site, task.seed) == (one.site, one.seed)]
    given = rng.sample(given, min(PER_REQUEST, len(given)))
    prompt = OTHER_PROMPTS.get(args.generator_prompt, GENERATION_PROMPT)
    return [(text, rng.choice(given)) for text in written(prompt, given, args)]


def written(prompt, tasks, args):
    """What the generator's model writes on these tasks: the texts that it puts in back quotes; none where no reply
    came."""
    listing = "\n".join(task.instruction for task in tasks)
    reply = asked(prompt.format(site=tasks[0].site, tasks=listing), args)
    return [text.strip() for text in re.split("`+", reply)[1:-1:2] if text.strip()]


def asked(prompt, args):
    """The generator's reply; "" where it gives none, or none in time."""
    try:
        return serve.ask(args.generator, args.generator_model, prompt, "--generator")
    except UsageError:
        return ""


def feasible(task, args):
    """Can the instruction be done? The generator's model is asked; without one the environment, which knows whether
    there is such a task in this world (what it would check is not used)."""
    if not args.generator:
        return task.config is not None
    reply = asked(FEASIBILITY_PROMPT.format(site=task.site, task=task.instruction), args)
    return re.findall(r"\[(YES|NO)\]", reply.upper())[-1:] == ["YES"]  # the last: some repeat the question first


def new_instructions(env, failures, known, start_value, rng, args, phase):
    """K new tasks for a phase: evolved from failed instructions, filtered by the critic's value of the start page
    (`start_value(tasks) -> floats`, or None before there is a critic), then by feasibility.

    `known` holds (instruction, site, seed of its world) of all tasks so far. Returns (tasks, counts by name): fewer
    than K after filter_tries candidates for each task wanted. A generator USELESS of whose replies in a row brought
    nothing new that can be done is left for `env.vary`.
    """
    tasks, seen = [], set(known)
    counts = Counter(candidates=0, repeated=0, too_easy=0, too_hard=0, infeasible=0)
    tries, useful, in_vain = args.filter_tries * args.instructions_per_phase, 0, 0
    while len(tasks) < args.instructions_per_phase and counts["candidates"] < tries:
        before, useful = useful, len(tasks) + counts["too_easy"] + counts["too_hard"]
        in_vain = in_vain + 1 if useful == before else 0
        if args.generator and in_vain > USELESS:
            args, counts["generator_left"] = replace(args, generator=""), 1
        drawn = vary_instructions(env, failures, rng, args)
        counts["candidates"] += max(1, len(drawn))  # an empty reply is a try, too
        rng.shuffle(drawn)
        candidates = []
        for proposed, parent in drawn:
            task = evolved_task(env, proposed, parent)
            if (task.instruction, task.site, task.seed) in seen:
                counts["repeated"] += 1
                continue
            seen.add((task.instruction, task.site, task.seed))  # what is turned away now may fit a later phase
            candidates.append(replace(task, task_id=f"{parent.task_id}-p{phase}-{len(seen)}"))
        values = start_value(candidates) if start_value is not None and candidates else [None] * len(candidates)
        for task, value in zip(candidates, values, strict=True):
            if len(tasks) == args.instructions_per_phase:
                break
            if value is not None and not args.filter_low <= value <= args.filter_high:
                counts["too_hard" if value < args.filter_low else "too_easy"] += 1
            elif not feasible(task, args):
                counts["infeasible"] += 1
            else:
                tasks.append(task)
    counts["shortfall"] = args.instructions_per_phase - len(tasks)
    return tasks, counts


def evolved_task(env, proposed, parent):
    """What `vary_instructions` proposed as a task: a text in its parent's world; the true checker comes along where
    there is one, for logging."""
    true = env.task_from_text(proposed, parent) if isinstance(proposed, str) else proposed
    task = true or replace(parent, instruction=proposed, template="", requirements=0, steps=0, config=None)
    return replace(task, max_steps=parent.max_steps)


# --------------------------------------------------------------------------------------------------------- the updates
def set_ref_logprobs(steps, actor):
    """log pi_ref(a | s, I) of the steps' actions into their `ref_logprob`: pi_ref is the actor as it is now, at the
    start of a phase (not its sampling at --temperature). Returns the actions' perplexities."""

    def score(part):
        logprobs, mask = actor.logprobs(part)
        return torch.stack([logprobs.sum(dim=1), perplexity(logprobs, mask)], dim=1)

    scores = actor.score(score, steps)
    for step, (logprob, _) in zip(steps, scores, strict=True):
        step.ref_logprob = logprob
    return [ppl for _, ppl in scores]


def draw_replay(replay_buffer, actor, limit, rng, args):
    """Replay under the last actor (section 2.2): a random subset of the buffer's steps whose actions' perplexity is in
    the band, at most `limit`. Returns (steps, share of the scored actions that was in the band)."""
    candidates, capacity = steps_of(replay_buffer), VARIANTS[args.loss].capacity
    if capacity and len(candidates) > capacity:  # the newest
        candidates = sorted(candidates, key=lambda step: step.trajectory.phase)[-capacity:]
    rng.shuffle(candidates)
    kept, scored = [], 0
    while len(kept) < limit and scored < len(candidates):
        chunk = candidates[scored : scored + 1024]
        ppl = torch.tensor(set_ref_logprobs(chunk, actor))
        inside = in_confidence_band(ppl, args.perplexity_low, args.perplexity_high)
        kept += [chunk[i] for i in inside.nonzero().flatten().tolist()]
        scored += len(chunk)
    return kept[:limit], len(kept) / max(1, scored)


def set_advantages(steps, critic, args):
    """Eq. 15, or another Variant's advantage, into the steps' `advantage`, and V into their `value`. Only the states
    that these need are valued, t and t + 1; the others' values are NaN. Raises ValueError for an advantage that reads
    one of those."""
    variant, by_trajectory, needed = VARIANTS[args.loss], {}, {}
    for step in steps:
        all_steps = step.trajectory.steps
        needed |= dict.fromkeys([*all_steps[step.t : step.t + 2], *all_steps[: variant.first]])
        by_trajectory.setdefault(step.trajectory, []).append(step)
    for step in (step for trajectory in by_trajectory for step in trajectory.steps):
        step.value = None  # an earlier critic's
    values = critic.values([step.prompt_ids for step in needed])
    for step, value in zip(needed, values, strict=True):
        step.value = value
    for trajectory, own in by_trajectory.items():
        value = torch.tensor([math.nan if step.value is None else step.value for step in trajectory.steps])
        advantage = variant.advantages(value, trajectory.reward, args)
        for step in own:
            step.advantage = advantage[step.t].item()
            if math.isnan(step.advantage):
                raise ValueError("the advantage reads V of states other than t and t + 1: value these, too")


def floor_advantages(steps, fresh, rng, args):
    """Floor the advantages and keep only a share of the floored actions."""
    kept = []
    for step in steps:
        floored = step.advantage <= args.advantage_floor
        step.advantage = max(step.advantage, args.advantage_floor)
        if not floored or rng.random() < args.floored_keep:
            kept.append(step)
    return kept


# what --loss names; one of your own is a row: VARIANTS["mine"] = replace(PAPER, loss=my_loss)
PAPER = Variant(paper_loss, paper_advantages, floor_advantages)
VARIANTS = {"paper": PAPER} | other_variants(PAPER)


def update_critic(critic, steps, epochs, rng, args):
    """Eq. 7 on the steps' states and their trajectories' outcomes; the mean loss."""

    def loss_sum(part):
        logits = critic.value_logits([step.prompt_ids for step in part])
        outcomes = torch.tensor([step.trajectory.reward for step in part], device=logits.device)
        return critic_loss(logits, outcomes) * len(part)

    batches = learn.shuffled(steps, args.batch_size, epochs, rng)
    losses, _ = critic.descend(loss_sum, batches, prompt_lengths, title="critic")
    return mean_loss(losses, "critic")


def update_actor(learner, steps, phase, rng, args):
    """Eq. 12, or the loss that --loss names, on the steps' (state, action, advantage, log pi_ref). Metrics."""
    actor, variant, drifts = learner.actor, VARIANTS[args.loss], []

    def loss_sum(part):
        logprobs = actor.action_logprobs(part)  # [N] log pi(a | s, I)
        reference = torch.tensor([step.ref_logprob for step in part], device=logprobs.device)
        drifts.append((reference - logprobs.detach()).sum()[None])
        advantage = None
        if variant.critic:
            advantage = torch.tensor([step.advantage for step in part], device=logprobs.device)
        lengths = torch.tensor([len(step.action_ids) for step in part], device=logprobs.device)
        return variant.loss(logprobs, reference, advantage, lengths, args) * len(part)

    batches = learn.shuffled(steps, args.batch_size, args.actor_epochs, rng)
    done = [(phase - 1 + number / len(batches)) / args.num_phases for number in range(len(batches))]
    rates = [args.learning_rate * (warmup_cosine(x, 0.05, 0.1) if args.anneal_lr else 1.0) for x in done]
    title = f"phase {phase} of {args.num_phases}: actor"
    losses, norms = actor.descend(loss_sum, batches, max_norm=args.max_grad_norm, rates=rates, title=title)
    learner.updates += len(batches)
    if not losses:
        return {}
    (drift,) = parallel.column_sums(drifts, 1, losses[0].device)
    return {
        "losses/policy_loss": mean_loss(losses, "actor"),
        "losses/ref_minus_new_logprob": drift / (len(steps) * args.actor_epochs),
        "losses/grad_norm": torch.stack(norms).mean().item(),
        "charts/learning_rate": rates[-1],
    }


# ------------------------------------------------------------------------------------------- the outcome reward model
def judged(learner, player, trajectories, args, pays=False):
    """The judge's opinion of each trajectory, P(YES), into its `judged`: the ORM's, or a served one's; where there is
    neither (yet) nobody is asked. Returns those whose outcome is known: by the judge alone where it `pays`, else by
    a check, too. Where a served judge gave no answer on one that needs it, that is a fault."""
    if learner.orm is None and not args.judge.startswith("http"):
        return [t for t in trajectories if pays or t.verdict is not None]
    tokenizer = learner.actor.tokenizer
    prompts = [orm_prompt(tokenizer, t, args.orm_page_first, args.prompt_format)[0] for t in trajectories]
    if learner.orm is not None:
        scores = orm.p_yes(learner.orm, prompts)
    else:
        scores = orm.ask_p_yes(args.judge, [tokenizer.decode(prompt) for prompt in prompts])
    for trajectory, score in zip(trajectories, scores, strict=True):
        trajectory.judged = score
    needed = [t for t in trajectories if pays or t.verdict is None]
    lost = {t for t in needed if t.judged is None}
    for t in parallel.share(needed) if lost else ():
        player.faults.record(JudgeFault("the judge did not answer YES or NO") if t in lost else None)
        player.faults.dropped += t in lost
    return [t for t in trajectories if t not in lost]


def train_orm(learner, labelled, epochs, args):
    """Train the ORM on trajectories with true verdicts, to say what these pay; the last epoch's loss."""
    labelled = [t for t in labelled if t.verdict is not None]
    prompts = [orm_prompt(learner.orm.tokenizer, t, args.orm_page_first, args.prompt_format) for t in labelled]
    ids, words = [ids for ids, _ in prompts], [words for _, words in prompts]
    labels = [outcome_reward(t, "env") for t in labelled]
    size, weight = args.orm_batch_size, args.orm_lm_weight
    return orm.train(learner.orm, ids, labels, size, epochs, args.seed, words, weight, warmup_cosine)


def labelled_episodes(memory, args):
    """The run's own episodes that the ORM learns from: of the demonstrations at most --orm-demos, drawn at random."""
    demos = [t for t in memory.labelled if t.kind == "demo"]
    drawn = random.Random(args.seed).sample(demos, min(len(demos), args.orm_demos))
    unwanted = set(demos) - set(drawn)
    return [t for t in memory.labelled if t not in unwanted]


def rewritten(env, tasks, rng, args):
    """Training tasks with other instructions and true checks (B.3): the generator says each in other words, so that its
    check holds; without one `env.vary` writes others, with checks of their own. What came to nothing stays as it is."""
    made = []
    for start in range(0, len(tasks) if args.generator else 0, PER_REQUEST):
        part = tasks[start : start + PER_REQUEST]
        texts = written(REWRITING_PROMPT, part, args)
        whole = len(texts) == len(part)  # else nobody knows which text is whose
        made += [replace(task, instruction=text) for task, text in zip(part, texts)] if whole else part
    for task in () if args.generator else tasks:
        others = [evolved_task(env, proposal, task) for proposal in env.vary(task, rng)]
        made.append(rng.choice([other for other in others if envs.has_check(env, other)] or [task]))
    return made


def start_orm(learner, memory, player, train_tasks, args):
    """Train the ORM on what is labelled and, where that is too little, on rollouts of the SFT policy, greedy and
    hotter (with the curriculum on rewritten instructions). Returns metrics on a held-out tenth of the instructions."""
    wanted = max(0, args.orm_episodes - len(labelled_episodes(memory, args)) - len(memory.earlier))
    for temperature, share in ((0.0, 0.6), (1.5 * args.temperature, 0.4)):
        tasks = draw_tasks(train_tasks, int(share * wanted), learner.rng)
        if args.curriculum:  # whose instructions the ORM will judge
            tasks = rewritten(player.envs[0], tasks, learner.rng, args)
        played = player.play(tasks, temperature, args.seed + 77, f"ORM data, T={temperature:g}")
        keep(player.run, memory, played, args)
    own = labelled_episodes(memory, args)
    missing = min(len(memory.earlier), max(0, args.orm_episodes - len(own)))
    rollouts = own + learner.rng.sample(memory.earlier, missing)
    asked = {t: (t.task.config or {}).get("intent", t.task.instruction) for t in rollouts}  # before it was rewritten
    instructions = sorted(set(asked.values()))
    unseen = set(learner.rng.sample(instructions, len(instructions) // 10))
    held = [t for t in rollouts if asked[t] in unseen]
    with player.run.timer("training"):
        loss = train_orm(learner, [t for t in rollouts if asked[t] not in unseen], args.orm_epochs, args)
        judged(learner, player, held, args)
    return {"orm/loss": loss, "orm/labelled": len(rollouts)} | orm.judge_metrics(held, "orm_start", args.orm_threshold)


def refresh_orm(learner, memory, player, train_tasks, phase, args):
    """Rollouts of the actor as it is now on training instructions, labelled by their true verdicts, go on training the
    ORM together with three times as many older ones."""
    tasks, seed = draw_tasks(train_tasks, args.orm_refresh, learner.rng), args.seed * 1000 + phase
    extra = player.play(tasks, args.temperature, seed, "refresh", phase)
    with player.run.timer("training"):
        known = memory.earlier + labelled_episodes(memory, args)
        older = learner.rng.sample(known, min(len(known), 3 * len(extra)))
        train_orm(learner, extra + older, 1, args)
    keep(player.run, memory, extra, args)


# ------------------------------------------------------------------------------------------------- Algorithm 1 (App. B)
def draw_tasks(tasks, count, rng):
    """`count` of the tasks at random, none a second time before all have had their turn."""
    return [task for _ in range(math.ceil(count / len(tasks))) for task in rng.sample(tasks, len(tasks))][:count]


def draw_evenly(tasks, count, rng):
    """`count` of the tasks at random, of every template as many, give or take one: of a kind that the demonstrations
    lack no rollout succeeds, and there is nothing to reinforce."""
    turns = Counter()

    def turn(task):
        turns[task.template] += 1
        return turns[task.template]

    return sorted(rng.sample(tasks, len(tasks)), key=turn)[:count]


def keep(run, memory, trajectories, args):
    """Into the run's folder, and into what the method remembers."""
    run.trajectories.append(trajectories)
    memory.add(trajectories, args.start_buffer)


def evaluate(learner, memory, player, tasks, name, phase, args):
    """Greedy episodes at seeds that are the same for every run, judged where there is an ORM (for logging, and where no
    true verdict is known)."""
    trajectories = judged(learner, player, player.play(tasks, 0.0, 1234, name, phase), args)
    keep(player.run, memory, trajectories, args)
    return trajectories


def start_values(learner, memory, player, tasks, args):
    """The critic's value of each task's start page, as seen in an earlier episode that started there, or in a visit to
    it. A page that cannot be reached has none: 0, and the filter turns the task away."""
    pages = memory.start_pages
    unseen = {start_of(task): task for task in tasks if start_of(task) not in pages}
    visited = zip(unseen, player.first_pages(list(unseen.values())), strict=True)
    pages.update({start: page for start, page in visited if page is not None})
    seen = [task for task in tasks if start_of(task) in pages]
    states = [player.prompt(task.instruction, [], pages[start_of(task)]) for task in seen]
    values = iter(learner.critic.values(states))
    return [next(values) if start_of(task) in pages else 0.0 for task in tasks]


def start_of(task):
    """Where a task's episodes start: its site, the world's seed, and the address if it is not the site's own start,
    which is where instructions without a check start."""
    address, home = (task.config or {}).get("start_url", ""), AND.join(f"__{s.upper()}__" for s in task.site.split("+"))
    return task.site, task.seed, "" if address in (home, task.site) else address


def experience(learner, memory, rollouts, rng, args):
    """Line 17: a phase's rollouts and what is replayed, under the last actor; the critic's update, their advantages.
    Returns (the steps that the actor is trained on, metrics)."""
    fresh = steps_of(rollouts)
    set_ref_logprobs(fresh, learner.actor)
    replayed, metrics = [], {}
    if args.replay:
        limit = int(args.replay_ratio * len(fresh))
        buffer = memory.replay_buffer + [t for t in memory.rollouts if args.replay_failures and not t.reward]
        replayed, share = draw_replay(buffer, learner.actor, limit, rng, args)
        demonstrated = sum(step.trajectory.kind == "demo" for step in replayed)
        metrics |= {"replay/steps": len(replayed), "replay/in_band": share, "replay/demonstrations": demonstrated}
    steps = fresh + replayed
    if learner.critic is not None:
        data = fresh if args.critic_replay == "none" else steps
        if args.replay and args.critic_replay == "both":
            old = steps_of(memory.rollouts)
            data = fresh + rng.sample(old, min(len(old), len(fresh)))
        if args.critic_first:
            metrics["losses/critic_loss"] = update_critic(learner.critic, data, args.critic_epochs, rng, args)
        set_advantages(steps, learner.critic, args)
        metrics |= value_metrics(fresh, replayed)
        if not args.critic_first:
            metrics["losses/critic_loss"] = update_critic(learner.critic, data, args.critic_epochs, rng, args)
    return VARIANTS[args.loss].keep(steps, fresh, rng, args), metrics


def outcome_reward(trajectory, judged_by, threshold=0.5):
    """r_T of an episode wherever it is one (start-up, ORM labels, phases): 1.0 where the judge says success, else 0.0.
    An agent that ran out of steps never said it was done: 0.0, though a check may pass on the page that it left."""
    success = bool(trajectory.verdict) if judged_by == "env" else trajectory.judged > threshold
    return float(success and trajectory.ending == "exit")


def check_metrics(env, rollouts):
    """The share of the rollouts' instructions that have a true check, and the true success where the others, of which
    many cannot be done, count as failures."""
    sums = {"checkable": [envs.has_check(env, t.task) for t in rollouts], "true_success": [t.verdict for t in rollouts]}
    return {f"curriculum/{name}": sum(filter(None, each)) / max(1, len(each)) for name, each in sums.items()}


def value_metrics(fresh, experience):
    """Means of values and advantages, and how well the critic tells this phase's outcomes apart."""
    values = {won: [s.value for s in fresh if bool(s.trajectory.reward) is won] for won in (True, False)}
    metrics = {"losses/critic_auc": auc(values[True], values[False])}
    metrics["losses/value_fresh"] = sum(values[True] + values[False]) / max(1, len(fresh))
    for name, steps in (("fresh", fresh), ("replay", experience)):
        if steps:
            metrics[f"losses/advantage_{name}"] = sum(step.advantage for step in steps) / len(steps)
    return metrics


def main(args):
    args.env_id = envs.full_name(args.env_id)
    at_least_1 = """num_envs max_new_tokens page_tokens sft_epochs sft_batch_size orm_epochs orm_batch_size
    instructions_per_phase filter_tries batch_size micro_batch_tokens actor_epochs start_episodes"""
    shares = "gamma advantage_lambda filter_quantile floored_keep orm_threshold"
    check_ranges(args, at_least_1, shares, above_0="beta", any_value="advantage_floor")
    if args.loss not in VARIANTS:
        raise UsageError(f"--loss {args.loss}: one of {', '.join(VARIANTS)}")
    if args.fixed_instructions and not args.curriculum:
        raise UsageError("--fixed-instructions keeps those that the curriculum writes: not with --no-curriculum")
    if args.judge not in ("orm", "env") and not args.judge.startswith(("http://", "https://")):
        raise UsageError(f"--judge {args.judge}: orm, env or a URL")
    check_flags(args)
    if args.judge not in ("orm", "env"):  # a wrong URL or key shows now, not after the first hour
        orm.check_judge(args.judge)
    if args.generator:
        serve.reply(args.generator, args.generator_model, "Reply with OK.", "--generator", serve.LIMITS.start)
    learner = Learner(load_actor(args), random.Random(args.seed))
    tokenizer = learner.actor.tokenizer
    if args.orm_model_id and args.judge == "orm":  # now, not after the first hours
        other = llm.load_tokenizer(args.orm_model_id)
        if other.get_vocab() != tokenizer.get_vocab():
            reason = f"its tokenizer is not that of {args.model_id}: leave it empty (--orm-model-id=)"
            raise UsageError(f"--orm-model-id {args.orm_model_id}: {reason} to start from that")
    env = envs.make(
        args.env_id,
        format="webrl" if args.prompt_format == "webrl" else "compact",
        page_tokens=args.page_tokens,
        count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
        real_input=args.real_input,
        screenshots=args.screenshots,
        port=args.port,
        **{name: getattr(args, name) for name in envs.SITE_OPTIONS},
    )

    def prompt(instruction, steps, obs, skip=0):
        return agent_prompt(tokenizer, instruction, steps, obs, args.prompt_format, skip)

    with session(args, __file__, learner.actor, env, prompt, partial(save, learner), estimate.webrl) as player:
        train(args, env, player, learner)


def train(args, env, player, learner):
    """Algorithm 1, and the evaluations around it."""
    run, (train_tasks, eval_tasks, test_tasks) = player.run, tasks_of(env, args)
    known = {(t.instruction, t.site, t.seed) for t in train_tasks}
    memory = Memory(known, read_labelled(args.orm_data) if args.judge == "orm" and args.orm_data else [])
    run.say(f"run folder {run.path}")
    if run.resumed:
        restore(learner, memory, player, args)
    if learner.phase < -1:  # line 1
        start_actor(learner, memory, player, train_tasks, args)
    if learner.phase < 0:  # lines 2 to 7
        start_memory(learner, memory, player, train_tasks, test_tasks, args)
    for phase in range(learner.phase + 1, args.num_phases + 1):
        # lines 9 to 14: instructions
        tasks, counts = phase_tasks(learner, memory, player, env, train_tasks, phase, args)
        # 15, 16: rolled out and judged
        rollouts = player.play(tasks, args.temperature, args.seed * 1000 + phase, f"phase {phase}", phase)
        player.steps += sum(len(t.steps) for t in rollouts)
        with run.timer("training"):
            rollouts = judged(learner, player, rollouts, args, pays=True)
            for trajectory in rollouts:
                trajectory.reward = outcome_reward(trajectory, args.judge, args.orm_threshold)
            metrics = rollout_metrics(rollouts) | orm.judge_metrics(rollouts, "orm", args.orm_threshold)
            metrics |= player.metrics() | {f"curriculum/{name}": value for name, value in counts.items()}
            metrics |= check_metrics(env, rollouts)
            # 17, 18: the critic and the actor
            steps, found = experience(learner, memory, rollouts, learner.rng, args)
            metrics |= found | update_actor(learner, steps, phase, learner.rng, args)
            if args.temperature == 1.0:  # sampling's are of the tempered policy
                metrics |= player.check_logprobs([step for t in rollouts for step in t.steps])
        # 19, 20: buffer and failure set
        keep(run, memory, rollouts, args)
        learner.phase = phase
        metrics |= {"charts/phase": phase, "charts/updates": learner.updates}
        publish(learner, player, metrics)
        if args.orm_refresh and learner.orm is not None and any(envs.has_check(env, task) for task in train_tasks):
            refresh_orm(learner, memory, player, train_tasks, phase, args)
        metrics |= evaluation_metrics(evaluate(learner, memory, player, eval_tasks, "eval", phase, args), "eval")
        run.log(metrics, player.steps)
        save(learner, player)
        shown = "rollout/reward rollout/true_success orm/precision eval/success losses/policy_loss"
        run.report(f"phase {phase}", metrics, shown)
    finish(args, player, learner, memory, test_tasks)


def tasks_of(env, args):
    """Training, eval and test tasks. Raises UsageError where nothing would say what succeeded at them, and where the
    curriculum has nobody to write instructions."""
    train_tasks = env.tasks("train")[: args.train_tasks or None]
    trained_judge = args.judge.startswith("http") or (args.judge == "orm" and args.orm_model_id)
    if not trained_judge and not any(envs.has_check(env, task) for task in train_tasks):
        raise UsageError("no training task has a check: --judge URL, or --orm-model-id, an ORM that is trained")
    if args.curriculum and not args.generator:
        env.vary(train_tasks[0], random.Random(0))  # an environment that cannot says so now
    return train_tasks, env.tasks("eval")[: args.eval_tasks], env.tasks("test")[: args.test_tasks]


def finish(args, player, learner, memory, test_tasks):
    """The control, the test, the summary and the pages."""
    run = player.run
    control = fine_tuned_control(learner, memory, player, test_tasks, args) if args.control else []
    after = evaluate(learner, memory, player, test_tasks, "test after", args.num_phases, args)
    metrics = evaluation_metrics(after, "test_after") | orm.judge_metrics(after, "orm_test", args.orm_threshold)
    metrics |= evaluation_metrics(control, "test_control")
    run.log({**metrics, "charts/phase": args.num_phases}, player.steps)
    if after:
        run.summary(memory.before, after, control, known_result(args))
    if parallel.is_main():
        page = view.Args(run=str(run.path), judge_threshold=args.orm_threshold)
        print(f"Episodes    {view.write(run.path, page)}")
        print(f"Plots       {', '.join(str(file) for file in plot.write(plot.Args(runs=(str(run.path),))))}")


def start_actor(learner, memory, player, train_tasks, args):
    """Line 1: supervised fine-tuning on demonstrations."""
    run = player.run
    if args.demos:
        demos = read_demos(args.demos, player.prompt, player.encode_action, player.envs[0].tasks("train"))
    else:
        demos = player.demonstrate(draw_evenly(train_tasks, args.num_demos, learner.rng))
    if (args.demos or args.num_demos) and not demos:
        raise UsageError("there is no demonstration of a success: --demos FILE, --num-demos N, or 0 for none")
    keep(run, memory, demos, args)
    metrics = {"charts/phase": 0}
    if demos:
        run.say(f"{len(demos)} demonstrations of {sum(len(d.steps) for d in demos)} steps: fine-tuning")
        with run.timer("training"):
            metrics["losses/sft_loss"] = learner.actor.fine_tune(steps_of(demos), args)
        run.save_start(*learner.actor.weights())
    learner.phase = -1
    run.log(metrics, player.steps)
    save(learner, player)
    player.publish(learner.actor.model)


def start_memory(learner, memory, player, train_tasks, test_tasks, args):
    """Lines 2 to 7: the SFT policy on the training instructions, whose true verdicts (the judge's, of tasks without a
    check) fill buffer and failure set; the ORM and the critic."""
    run, has_checks = player.run, any(envs.has_check(player.envs[0], task) for task in train_tasks)
    if not has_checks:
        make_judge_and_critic(learner, args)
    before = evaluate(learner, memory, player, test_tasks, "test before", 0, args)
    metrics = evaluation_metrics(before, "test_before")
    run.report("SFT", metrics, "test_before/success")
    tasks = draw_tasks(train_tasks, args.start_episodes, learner.rng)
    start = player.play(tasks, args.temperature, args.seed, "start-up")
    unchecked = [t for t in start if t.verdict is None]
    start = [t for t in start if t.verdict is not None] + judged(learner, player, unchecked, args)
    for t in start:
        t.reward = outcome_reward(t, args.judge if t.verdict is None else "env", args.orm_threshold)
    keep(run, memory, start, args)
    if has_checks:
        make_judge_and_critic(learner, args)
    if learner.orm is not None and has_checks:
        metrics |= start_orm(learner, memory, player, train_tasks, args)
        run.report("ORM", metrics, "orm/labelled orm_start/accuracy orm_start/auc orm_start/base_rate")
        if "orm_start/accuracy" not in metrics:  # too few instructions to hold a tenth out
            run.say(orm.UNKNOWN)
    if learner.critic is not None:
        with run.timer("training"):
            steps, epochs = steps_of(memory.rollouts), args.critic_warmup_epochs
            metrics["losses/critic_loss"] = update_critic(learner.critic, steps, epochs, learner.rng, args)
    learner.phase = 0
    run.log({**metrics, "charts/phase": 0}, player.steps)
    save(learner, player)


def fine_tuned_control(learner, memory, player, test_tasks, args):
    """What fine-tuning alone makes of the start, in as many updates on the demonstrations as reinforcement made: its
    test episodes."""
    run, demos = player.run, [t for t in player.run.trajectories if t.kind == "demo"]
    if not demos or not learner.updates:
        return []
    run.say(f"control: the start, fine-tuned for {learner.updates} updates more on its demonstrations")
    actor = run.latest().folder("actor")
    with run.timer("control"):
        llm.load_trained(learner.actor.model, run.path / "start")
        learner.actor.fine_tune(steps_of(demos), args, learner.updates)
    publish(learner, player)
    episodes = evaluate(learner, memory, player, test_tasks, "test control", args.num_phases, args)
    llm.load_trained(learner.actor.model, actor)  # the run's own again
    publish(learner, player)
    return episodes


def publish(learner, player, metrics=None):
    """From here on the actor as it is now plays (`metrics`: as of `Player.publish`)."""
    player.version += 1
    player.publish(learner.actor.model, metrics)


def phase_tasks(learner, memory, player, env, train_tasks, phase, args):
    """Lines 9 to 14: the phase's instructions, and what became of the candidates (a Counter)."""
    if not args.curriculum:
        return draw_tasks(train_tasks, args.instructions_per_phase, learner.rng), Counter()
    if args.fixed_instructions and phase > 1:
        first = [t.task for t in memory.rollouts if t.kind == "rollout" and t.phase == 1]
        return draw_tasks(first or train_tasks, args.instructions_per_phase, learner.rng), Counter()
    # There is no trained critic before phase 1 unless it was warmed up.
    has_critic = phase > 1 or args.critic_warmup_epochs > 0
    values = (lambda tasks: start_values(learner, memory, player, tasks, args)) if has_critic else None
    failures = memory.failure_set or [t.task for t in memory.rollouts]  # all, where none failed
    tasks, counts = new_instructions(env, failures, memory.known, values, learner.rng, args, phase)
    if counts["generator_left"]:
        player.run.say(f"phase {phase}: {USELESS} replies of --generator in a row were of no use: varied without it")
    if counts["shortfall"]:
        player.run.say(f"phase {phase}: {len(tasks)} instructions passed the filters, of {counts['candidates']} tried")
    if not tasks:  # a critic that turns everything away would do so for ever
        player.run.say(f"phase {phase}: training instructions instead")
        tasks = draw_tasks(train_tasks, args.instructions_per_phase, learner.rng)
    return tasks, counts


if __name__ == "__main__":
    run_main(lambda: main(parse_args(Args, variant=tiny_values)))
