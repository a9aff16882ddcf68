"""How a command line becomes a script's arguments."""

import json
from types import SimpleNamespace

import pytest

import crps
import digirl
import distrl
import grpo_async
import webrl
from common.errors import UsageError
from common.lm import llm
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


def model_folder(path, **config):
    """A model's folder, of which there is the configuration alone."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_the_preset_goes_by_the_models_size(tmp_path):
    smollm2 = dict(hidden_size=576, num_hidden_layers=30, intermediate_size=1536, vocab_size=49152)
    small = model_folder(tmp_path / "small", **smollm2)
    assert llm.size_of(small) == "small"
    assert llm.size_of(model_folder(tmp_path / "sees", text_config=smollm2, vision_config={})) == "small"
    qwen = dict(hidden_size=1536, num_hidden_layers=28, intermediate_size=8960, vocab_size=151936)  # 1.5 B
    assert llm.size_of(model_folder(tmp_path / "qwen", **qwen)) == "small"
    assert llm.size_of(model_folder(tmp_path / "experts", **qwen, num_experts=16)) == "paper"
    large = model_folder(tmp_path / "large", hidden_size=4096, num_hidden_layers=32, intermediate_size=14336)
    assert (
        llm.size_of(large)
        == llm.size_of(model_folder(tmp_path / "strange"))
        == llm.size_of("nobody/nothing")
        == "paper"
    )
    assert llm.size_of("assets/tiny") == llm.size_of("assets/tiny-vl") == "tiny"
    assert parse_args(crps.Args, ["--model-id", small]).preset == "small"
    assert parse_args(crps.Args, ["--model-id", large]).preset == "paper"
    args = parse_args(webrl.Args, ["--model-id", small, "--preset", "tiny"], webrl.tiny_values)
    assert args.orm_model_id == args.orm_data == ""  # which are of another model's tokens


@pytest.mark.parametrize("script", [webrl, crps, grpo_async, distrl, digirl])
def test_the_small_preset_trains_adapters(script):
    def parsed(*flags):
        return parse_args(script.Args, ["--preset", "small", *flags])

    full = values_of(script.Args, "small")["learning_rate"]
    assert (parsed().lora_rank, parsed().learning_rate) == (16, pytest.approx(10 * full))
    assert (parsed("--lora-rank", "0").lora_rank, parsed("--lora-rank", "0").learning_rate) == (0, full)


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


@pytest.mark.parametrize("script", [webrl, crps, grpo_async, distrl, digirl])
def test_every_script_has_the_real_clock(script, monkeypatch):
    def made(env_id, **options):
        raise UsageError(f"{env_id}: {options['real_clock']}")

    monkeypatch.setattr("envs.make", made)
    actor = SimpleNamespace(tokenizer=llm.load_tokenizer("assets/tiny"))
    monkeypatch.setattr(script, "load_actor", lambda args: actor, raising=False)
    args = parse_args(script.Args, ["--env-id", "site:a.json", "--real-clock"])
    with pytest.raises(UsageError, match="^site:a.json: True$"):
        script.make_env(args) if script in (grpo_async, distrl) else script.main(args)
