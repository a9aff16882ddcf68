"""How a command line becomes a script's arguments."""

import json

import pytest

import crps
import digirl
import distrl
import grpo_async
import webrl
from common.errors import UsageError
from common.lm.args import parse_args, values_of


@pytest.mark.parametrize(
    "script, old, new",
    [
        (crps, ["--no-sft"], "--no-sft is called --num-demos 0 now"),
        (crps, ["--minibatch-size", "8"], "--minibatch-size is called --batch-size now"),
        (grpo_async, ["--batch-size=8"], "--batch-size is called --batch-trajectories now"),
        (grpo_async, ["--lockstep", "runs/a"], "--lockstep is called --schedule now"),
        (distrl, ["--judge-url", "http://a/v1"], "--judge-url is called --judge now"),
        (webrl, ["--lam", "0.5"], "--lam is called --advantage-lambda now"),
    ],
)
def test_a_flag_that_was_renamed_says_the_new_one(script, old, new):
    with pytest.raises(UsageError, match=f"^{new}$"):
        parse_args(script.Args, old)


def test_a_run_of_before_is_read_by_its_old_names(tmp_path):
    def resumed(script, **saved):
        (tmp_path / "args.json").write_text(json.dumps(saved))
        return parse_args(script.Args, ["--resume", str(tmp_path)])

    before = resumed(crps, sft=False, minibatch_size=7, num_demos=64)
    assert (before.batch_size, before.num_demos) == (7, 0)
    assert resumed(webrl, lam=0.3).advantage_lambda == 0.3
    assert (resumed(distrl, judge_url="").judge, resumed(distrl, judge_url="http://a").judge) == ("env", "http://a")
    asynchronous = resumed(grpo_async, batch_size=16, lockstep="runs/a", sft=True, num_demos=9)
    assert (asynchronous.batch_trajectories, asynchronous.schedule, asynchronous.num_demos) == (16, "runs/a", 9)


@pytest.mark.parametrize("script", [webrl, crps, grpo_async, distrl])
def test_every_preset_is_in_the_fields_own_line(script):
    tiny, smoke = (values_of(script.Args, name) for name in ("tiny", "smoke"))
    assert values_of(script.Args, "paper") == {} and tiny.keys() == smoke.keys()
    assert smoke["num_demos"] < tiny["num_demos"] < script.Args().num_demos or script is grpo_async
    assert smoke["learning_rate"] == tiny["learning_rate"]  # what a preset does not say is the tiny one's
    assert parse_args(script.Args, ["--preset", "smoke"]).num_demos == smoke["num_demos"]
    assert parse_args(script.Args, ["--preset", "smoke", "--num-demos", "3"]).num_demos == 3  # a flag wins


@pytest.mark.parametrize("script", [webrl, crps, grpo_async, distrl, digirl])
@pytest.mark.parametrize("preset", ["paper", "tiny"])
def test_adapters_are_trained_at_ten_times_the_rates_of_all_weights(script, preset, tmp_path):
    def rates(*flags):
        args = parse_args(script.Args, ["--preset", preset, *flags])
        return {name: value for name, value in vars(args).items() if name.endswith("learning_rate")}

    full, adapters = rates(), rates("--lora-rank", "8")
    assert len(full) >= 2 and adapters == pytest.approx({name: 10 * rate for name, rate in full.items()})
    given = rates("--lora-rank", "8", "--learning-rate", "3e-6")  # a rate that is given is what runs
    assert given == adapters | {"learning_rate": 3e-6}
    (tmp_path / "args.json").write_text(json.dumps({"preset": preset, "lora_rank": 8, **adapters}))
    assert rates("--resume", str(tmp_path)) == adapters  # once
