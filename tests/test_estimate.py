"""What a run says at its start of its episodes, time and memory; micro-batches that fit what is free."""

import asyncio
import random
from dataclasses import replace
from functools import partial

import pytest
import torch

import crps
import digirl
import distrl
import envs
import grpo_async
import webrl
from common.errors import EnvFault, UsageError
from common.lm import estimate, learn, llm
from common.lm.args import parse_args
from tests.nets import net_of

GIB = 1 << 30


@pytest.fixture(scope="module")
def tiny():
    return llm.load("assets/tiny", device="cpu")


@pytest.fixture
def shop():
    env = envs.make("webshop", format="compact")
    yield env
    asyncio.run(env.close())


def begun(tiny, env, *flags):
    """(Lines that are said, the net) of crps.py with these flags."""
    args, lines = parse_args(crps.Args, ["--preset", "smoke", *flags]), []
    random.seed(7)  # the command line's parser draws
    net, prompt = net_of(*tiny, args), partial(crps.agent_prompt, tiny[1])
    with asyncio.Runner() as runner:
        write = partial(crps.write_action, chat=False)
        answers = lambda action, thought, obs: write(action, thought)  # noqa: E731
        estimate.begin(args, net, env, prompt, estimate.crps, lines.append, answers, crps.read_action, runner)
    return lines, net


def test_a_run_says_what_it_is_and_changes_nothing(tiny, shop):
    model, _ = tiny
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    random.seed(7)
    states = torch.get_rng_state(), random.getstate()
    lines, net = begun(tiny, shop)
    assert len(lines) == 1 and net.tokens == 768
    said = "--preset smoke: 16 demonstrations, 116 episodes of some 9 steps, "
    assert lines[0].startswith(said) and " GiB on this machine" in lines[0]
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())


def test_days_are_told_beside_the_small_presets_time(tiny, shop):
    args = parse_args(crps.Args, ["--preset", "paper", "--model-id", "assets/tiny", "--group-size", "4"])
    small = estimate.small_preset(args)
    assert (small.groups_per_iteration, small.total_steps, small.lora_rank) == (4, 4000, 16)
    assert small.group_size == 4  # it was given
    line = begun(tiny, shop, "--preset", "paper", "--iterations", "1000000")[0][0]
    assert " days and " in line and "; --preset small: " in line
    assert "small" not in begun(tiny, shop)[0][0]


def test_an_oracle_that_fails_or_is_not_there_leaves_a_guess(tiny, shop, monkeypatch):
    async def fault(task, seed=None):
        raise EnvFault("gone")

    monkeypatch.setattr(shop, "reset", fault)
    assert "episodes of some 9 steps" in begun(tiny, shop)[0][0]  # the tasks know how many steps they take

    def nobody(task):
        raise LookupError("nobody solves it")

    monkeypatch.setattr(shop, "oracle", nobody)
    assert len(begun(tiny, shop)[0]) == 1


def test_little_memory_lowers_the_micro_batches_and_too_little_is_one_line(tiny, shop, monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 120 << 20)
    lines, net = begun(tiny, shop, "--micro-batch-tokens", "100000")
    assert 200 < net.tokens < 100000
    assert lines[1] == f"micro-batches of {net.tokens:,} tokens, not 100,000: 0.1 GiB of memory are free"
    monkeypatch.setattr(estimate, "free_memory", lambda device: 1 << 20)
    with pytest.raises(UsageError, match=r"^0.0 GiB of memory are free, and a step of \d+ tokens needs 0.\d GiB"):
        begun(tiny, shop)


@pytest.mark.parametrize("threads", [1, 2])
def test_micro_batches_side_by_side_share_the_memory(tiny, threads, monkeypatch):
    monkeypatch.setattr(learn, "side_by_side", lambda: threads)
    net = net_of(*tiny, parse_args(crps.Args, ["--micro-batch-tokens", "4096"]))
    assert estimate.fit(net, held=0, bytes_per_token=GIB / 1000, longest=100, free=GIB).startswith("micro-batches of")
    assert net.tokens == 900 // threads  # a tenth is left to others
    assert estimate.fit(net, held=0, bytes_per_token=GIB / 1000, longest=100, free=GIB) == ""
    with pytest.raises(UsageError, match="--lora-rank 16"):
        estimate.fit(net, held=0, bytes_per_token=GIB / 1000, longest=901, free=GIB)


def test_what_the_backward_pass_keeps_is_counted_without_the_weights():
    layer, inputs = torch.nn.Linear(8, 3, bias=False), torch.randn(5, 8, requires_grad=True)
    assert estimate.saved_bytes(layer, lambda: layer(inputs).exp().sum()) == 4 * 5 * (8 + 3)


def test_the_bytes_of_a_token_do_not_depend_on_how_many_are_measured(tiny):
    model, reader = tiny
    sizes = []
    for count in (100, 200, 400):
        part = [[5] * count], [[7] * 8]
        sizes.append(estimate.saved_bytes(model, lambda part=part: llm.token_logprobs(model, reader, *part)[0].sum()))
    assert (sizes[2] - sizes[1]) / 200 == pytest.approx((sizes[1] - sizes[0]) / 100, rel=0.01)


def test_free_memory_is_what_the_control_group_leaves(tmp_path):
    assert estimate.group_memory(tmp_path) is None
    files = {"memory.max": 9000, "memory.current": 5000, "memory.stat": "anon 1\ninactive_file 700\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert estimate.group_memory(tmp_path) == 4700  # files that are only cached can go
    (tmp_path / "memory.max").write_text("max\n")
    assert estimate.group_memory(tmp_path) is None
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.usage_in_bytes").write_text("5000\n")
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # version 1's word for none
    assert estimate.group_memory(tmp_path) is None
    (old / "memory.limit_in_bytes").write_text("8000\n")
    assert estimate.group_memory(tmp_path) == 3000
    assert 0 < estimate.free_memory(torch.device("cpu")) < 1 << 62


# Counted by hand from what the smoke preset plays: rollouts (of webrl.py with start-up and refresh), evaluations.
@pytest.mark.parametrize(
    ("script", "rollouts", "tested"),
    [
        (webrl, 12 + 16 + 8, 6 + 18),
        (crps, 96, 4 + 16),
        (digirl, 24, 3 + 12),
        (distrl, 12, 3 + 12),
        (grpo_async, 32, 4 + 12),
    ],
)
def test_the_flags_amount_to_so_many_episodes(script, rollouts, tested):
    work_of = getattr(estimate, script.__name__)
    args = parse_args(script.Args, ["--preset", "smoke"], getattr(script, "tiny_values", lambda args: {}))
    work = work_of(args, 5.0, (1000, 200, 200))
    assert (work.rollouts, work.tested) == (rollouts, tested)
    twice = replace(args, **{("num_phases" if script is webrl else "iterations"): 2 * 10})
    assert work_of(twice, 5.0, (1000, 200, 200)).learned > 2 * work.learned
    none = replace(args, num_demos=0)
    assert work_of(none, 5.0, (1000, 200, 200)).demos == 0
    few = work_of(args, 5.0, (5, 2, 2))  # an environment with few tasks
    assert few.tested < tested and few.demos == 5


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 second"), (61, "61 seconds"), (600, "10 minutes"), (7000, "2 hours"), (8 * 86400, "8 days")],
)
def test_durations_are_said_as_people_do(seconds, words):
    assert estimate.spoken(seconds) == words
