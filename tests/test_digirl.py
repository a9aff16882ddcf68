"""digirl.py: its equations against slow computations, and whole runs on simulated phones: killed and resumed bit for
bit, bad input."""

import random
import signal
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import digirl
from common.lm import checkpoint, learn, llm, rollout
from common.lm.args import parse_args
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from digirl import Args, Learner
from tests import glossary
from tests.nets import net_of
from tests.scripts import run_script
from tests.test_distrl import trajectory
from tests.test_resume import KILLER

ROOT = Path(__file__).resolve().parent.parent
SMALL = """--cpu-threads 1 --num-envs 4 --num-demos 12 --sft-epochs 1 --batch-trajectories 4 --iterations 3
--max-steps 4 --eval-every 2 --eval-tasks 2 --test-tasks 2 --instruction-updates 1 --step-updates 1 --actor-updates 2
--batch-size 8 --save-every 1 --lockstep""".split()


def test_step_advantages_and_what_they_keep():
    outcomes, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.2, 0.6, 0.5, 0.0])
    found = digirl.step_advantages(outcomes, values, 0.5, 0.05)
    assert found.tolist() == pytest.approx([0.4 - 0.05 + 0.25, -0.1 - 0.05 + 0.5, -0.5 - 0.05 + 1 + 1])
    failed = digirl.step_advantages(torch.zeros(3), values, 0.5, 0.05)
    assert (failed > 0).tolist() == [True, False, False]  # where the value rises by more than the cost
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    loss = digirl.policy_loss(logprobs, failed)
    assert loss.item() == pytest.approx(1 / 3)
    loss.backward()
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3, 0.0, 0.0])


def test_trajectories_that_went_better_than_expected_pass():
    scores = digirl.trajectory_scores(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0.9, 0.2, 0.1, 0.8]))
    assert scores.tolist() == pytest.approx([0.1, 0.8, -0.1, -0.8])
    assert digirl.at_least_quantile(scores, 0.9).tolist() == [False, True, False, False]
    assert digirl.at_least_quantile(scores, 0.0).all()
    assert digirl.at_least_quantile(torch.zeros(3), 0.9).all()  # ties stay


@pytest.fixture
def learner():
    torch.manual_seed(1)
    made = Learner(net_of(*llm.load("assets/tiny"), Args()), random.Random(1))
    digirl.make_learner(made, Args())
    return made


def test_values_learn_the_outcome_and_the_actor_what_passes(learner):
    rng = random.Random(2)
    buffer = deque(trajectory(rng, reward=float(k % 2), steps=2) for k in range(4))
    args = Args(batch_size=16, instruction_updates=20, step_updates=20, actor_updates=5, cpu_threads=1, gamma=1.0,
                learning_rate=1e-3, critic_learning_rate=3e-3, filter_quantile=0.5, adam_eps=1e-5)  # fmt: skip
    learner.actor = replace(learner.actor, tokens=args.micro_batch_tokens, eps=args.adam_eps)
    digirl.make_learner(learner, args)
    first = digirl.filtered(learner, buffer, args)
    assert [t.reward for t in first] == [1.0, 1.0]  # every instruction has the value 0.5 still
    losses = digirl.update_values(learner, buffer, args)
    assert all(0 < loss < 0.69 for loss in losses.values())
    values = learner.values["instruction"].values([t.steps[0].prompt_ids for t in buffer])
    assert max(values[0], values[2]) < min(values[1], values[3])
    digirl.set_advantages(learner, first, args)
    assert all(t.steps[-1].advantage > 0 for t in first)
    pairs = [(t, 1) for t in first]

    def score():
        with torch.no_grad():
            return learner.actor.logprobs([t.steps[i] for t, i in pairs])[0].sum().item()

    before = score()
    metrics = digirl.update_actor(learner, first, args)
    assert metrics["losses/passed_trajectories"] == 2 and metrics["losses/trained_steps"] > 0 and score() > before


def test_values_of_the_presets():
    """The paper preset has the released configuration (scripts/config/main); the tiny one what was measured with."""
    released = dict(
        gamma=0.5, filter_quantile=0.9, step_cost=0.05, buffer_steps=2000, batch_trajectories=16, iterations=600,
        batch_size=32 * 4, instruction_batch_size=32 * 8, instruction_updates=5, step_updates=5, actor_updates=20,
        learning_rate=1e-4, critic_learning_rate=1e-4, max_grad_norm=0.01, critic_max_grad_norm=0.01, judge_states=True,
        num_envs=8, max_new_tokens=128, test_tasks=96,
    )  # fmt: skip
    tiny = dict(
        gamma=1.0, filter_quantile=0.5, batch_trajectories=64, iterations=30, batch_size=16, instruction_batch_size=16,
        instruction_updates=8, step_updates=20, actor_updates=20, learning_rate=2e-4, critic_learning_rate=3e-4,
        max_grad_norm=0.1, critic_max_grad_norm=1.0, judge_states=False,
    )  # fmt: skip
    for name, expected in (("paper", released), ("tiny", tiny)):
        args = parse_args(Args, ["--preset", name])
        assert {field: getattr(args, field) for field in expected} == expected
    args = parse_args(Args, ["--preset", "paper"])
    assert args.actor_updates * args.batch_size / args.batch_trajectories == 160  # drawn steps a trajectory


def test_the_buffer_holds_so_many_steps():
    rng, buffer = random.Random(1), deque()
    made = [trajectory(rng, steps=steps) for steps in (2, 3, 1, 2)]
    digirl.store(buffer, made[:2], 6)
    assert list(buffer) == made[:2]
    digirl.store(buffer, made[2:], 6)
    assert list(buffer) == made[1:]
    digirl.store(buffer, [trajectory(rng, steps=9)], 6)  # longer than the buffer: alone
    assert len(buffer) == 1


def in_process(monkeypatch, tmp_path, train, *flags):
    """digirl.py's main with another `train`."""
    monkeypatch.setattr(digirl, "train", train)
    monkeypatch.setattr(learn, "use_threads", lambda count: None)
    digirl.main(parse_args(Args, ["--runs-dir", str(tmp_path), *SMALL, *flags]))


@pytest.mark.parametrize("flag, ending", [("--judge-states", "exit"), ("--no-judge-states", "truncated")])
def test_an_episode_ends_where_the_task_is_done(tmp_path, monkeypatch, flag, ending):
    """An agent that solves the task on a simulated phone and then, instead of saying so, goes home again and again."""
    found = []

    def train(args, env, player, learner):
        task = next(task for task in env.tasks("train") if task.steps >= 3 and not task.template.startswith("ask"))
        moves = env.oracle(task)

        def generate(model, reader, prompts, seeds, *settings):
            move = next(moves, None)
            solved = move is None or move.op == "Exit"
            text = 'do(action="Press", argument="Home")' if solved else env.resolve(move, env._obs)
            ids = player.encode_action(text)
            return [llm.Completion(ids, [0.0] * len(ids), 0)]

        monkeypatch.setattr(llm, "generate", generate)
        found.extend(player.play([task], 1.0, 1, "rollouts"))

    in_process(monkeypatch, tmp_path, train, flag, "--num-envs", "1", "--max-steps", "0")
    (played,) = found
    assert played.ending == ending and played.verdict == float(ending == "exit")
    home = sum("Home" in step.action for step in played.steps)
    assert len(played.steps) - home >= 2 and (home == 0) == (ending == "exit")


def test_rounds_filter_by_the_last_values_play_what_can_be_scored_and_survive_that_nothing_came(tmp_path, monkeypatch):
    """The released order: trajectories are filtered, then the values and the actor learn."""
    order, asked, real_play = [], [], rollout.Player.play
    for name in ("filtered", "update_values", "update_actor"):
        real = getattr(digirl, name)
        monkeypatch.setattr(digirl, name, lambda *given, real=real, name=name: order.append(name) or real(*given))

    def play(player, tasks, *given):
        asked.append(tasks)
        return real_play(player, tasks, *given) if asked[1:] else []  # all of the first round was dropped

    monkeypatch.setattr(digirl.envs, "has_check", lambda env, task: task.template == "weather")
    monkeypatch.setattr(rollout.Player, "play", play)
    monkeypatch.setattr(digirl, "finish", lambda *given: None)
    flags = "--iterations 2 --num-demos 0 --test-tasks 0 --eval-tasks 0".split()
    in_process(monkeypatch, tmp_path, digirl.train, *flags)
    assert order == ["filtered", "update_values", "update_actor"]
    assert all(task.template == "weather" for tasks in asked for task in tasks) and list(map(len, asked)) == [4, 4]
    (run,) = tmp_path.iterdir()
    assert [row["charts/iteration"] for row in read_metrics(run) if "rollout/reward" in row] == [2]


def run_digirl(runs_dir, *flags, kill=None, code=0):
    """`digirl.py` with these flags; with `kill` (module, function, n) it must not survive the n-th call."""
    script = ["-c", KILLER.replace("webrl.py", "digirl.py"), *kill, "digirl.py"] if kill else ["digirl.py"]
    done = run_script([*script, "--runs-dir", runs_dir, *SMALL, *flags])
    assert done.returncode == (-signal.SIGKILL if kill else code), done.stdout + done.stderr
    return done.stdout + done.stderr


def metrics_of(run):
    rows = read_metrics(run)
    clock = "time/", "charts/seconds"
    return [{name: repr(value) for name, value in row.items() if not name.startswith(clock)} for row in rows]


def test_killed_and_resumed_is_bit_for_bit_the_run_that_was_not(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    output = run_digirl(whole)
    for part in ("demonstrations of", "Test success", "Episodes", "Plots"):
        assert part in output
    run_digirl(cut, "--resume", "auto", kill=("common.lm.checkpoint", "save", 3))  # the second round is not saved
    (run,) = cut.iterdir()
    assert checkpoint.latest(run).state["counts"]["iteration"] == 1
    run_digirl(cut, "--resume", "auto")
    (expected,) = whole.iterdir()
    assert metrics_of(run) == metrics_of(expected)
    ours, theirs = (checkpoint.latest(r).path / "actor/model.safetensors" for r in (run, expected))
    assert ours.read_bytes() == theirs.read_bytes()
    assert list(TrajectoryStore(expected / "trajectories.jsonl")) == list(TrajectoryStore(run / "trajectories.jsonl"))
    glossary.check("digirl.md", metrics_of(expected))


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--total-trajectories", "-1"], "--total-trajectories must not be negative"),
        (["--num-envs", "0"], "--num-envs must be at least 1"),
        (["--filter-quantile", "2"], "--filter-quantile must be from 0 to 1, and is 2"),
        (["--engine", "http://127.0.0.1:9/v1"], "--engine needs --lora-rank"),
        (["--env-id", "phone/mars"], "phone: groups: there are"),
        (["--demos", "none.jsonl"], "--demos none.jsonl: no such file"),
        (["--prompt-format", "chat"], "has no chat template"),
    ],
)
def test_bad_input_is_one_line(tmp_path, flags, said):
    done = run_script(["digirl.py", "--runs-dir", str(tmp_path), *SMALL, *flags], timeout=120)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())  # nothing was begun
