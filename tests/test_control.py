"""benchmarks/control.py: the control is the run's own start, fine-tuned on its demonstrations for as many updates."""

import json
import math
import random
import zlib
from dataclasses import replace

import pytest
import torch

import crps
import distrl
import envs
from benchmarks import comparison, control
from common.errors import UsageError
from common.lm import learn, llm
from common.lm.args import values_of
from common.lm.net import Net
from common.lm.run import read_metrics
from common.replay import TrajectoryStore
from tests.scripts import run_script

SMALL = """--num-demos 48 --sft-epochs 5 --cpu-threads 2 --num-envs 16 --groups-per-iteration 4 --group-size 8
--lockstep --iterations 1 --total-steps 0 --eval-every 9 --test-tasks 8 --max-steps 8""".split()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of crps.py."""
    folder = tmp_path_factory.mktemp("runs")
    done = run_script(["crps.py", *SMALL, "--runs-dir", folder])
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def record(run):
    return control.measure("crps.py", run, control.Args("crps.py", cpu_threads=1, num_envs=8))


def by_hand(run, updates):
    """The weights that `updates` updates on the run's demonstrations make of its start, by a plain loop."""
    args = control.settings_of(crps, run)
    model, tokenizer = llm.load(str(run / "start"))
    demos = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "oracle"]
    steps = [step for demo in demos for step in demo.steps]
    assert 0 < len(demos) <= args.num_demos  # what the oracle fails is no demonstration
    optimizer = Net(model, tokenizer, 0, args.adam_eps).begin(args.sft_learning_rate).optimizer
    rng, batches = random.Random(args.seed), []
    while len(batches) < updates:
        batches += learn.shuffled(range(len(steps)), args.sft_batch_size, 1, rng)
    for number, batch in enumerate(batches[:updates]):
        done = number / updates
        factor = (done + 1e-3) / 0.1 if done < 0.1 else 0.5 + 0.5 * math.cos(math.pi * (done - 0.1) / 0.9)
        optimizer.param_groups[0]["lr"] = args.sft_learning_rate * factor
        optimizer.zero_grad()
        total = 0.0
        for i in batch:
            prompt, action = list(steps[i].prompt_ids), steps[i].action_ids
            logits = model(torch.tensor([prompt + action])).logits[0, len(prompt) - 1 : -1]
            total = total - logits.log_softmax(-1)[range(len(action)), action].sum()
        (total / sum(len(steps[i].action_ids) for i in batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


def test_as_many_updates_on_the_same_demonstrations_as_the_run(run, record):
    updates = max(row["charts/updates"] for row in read_metrics(run) if "charts/updates" in row)
    demos = sum(t.policy == "oracle" for t in TrajectoryStore(run / "trajectories.jsonl"))
    assert record["updates"] == updates > 0 and record["demos"] == demos > 0 and record["seed"] == 1
    expected = by_hand(run, updates)
    found, _ = llm.load(str(run / "control/checkpoints/0001-0/actor"))
    start, _ = llm.load(str(run / "start"))
    for name, weight in found.state_dict().items():
        assert torch.allclose(weight, expected[name], atol=2e-5), name
    assert any(not torch.allclose(w, start.state_dict()[n], atol=1e-3) for n, w in expected.items())


def test_the_same_tasks_with_the_outcomes_that_the_run_had(run, record):
    tests = [t for t in TrajectoryStore(run / "trajectories.jsonl") if t.policy == "test after"]
    assert record["tasks"] == sorted(t.task.task_id for t in tests) and len(tests) == 8
    assert record["after"] == "".join(str(int(t.success)) for t in sorted(tests, key=lambda t: t.task.task_id))
    assert record["before"] and record["differ"] == 0  # so the evaluation is the run's own: seeds, temperature, prompt


def test_a_script_that_tests_on_tasks_from_all_over_its_split_is_controlled_on_those(tmp_path):
    """digirl.py and distrl.py spread their test tasks over the split; its first ones are others."""
    flags = """--num-demos 4 --sft-epochs 1 --iterations 2 --batch-trajectories 8 --test-tasks 8 --eval-tasks 0
    --no-filter-trajectories --no-filter-steps --instruction-updates 1 --step-updates 1 --actor-updates 2""".split()
    done = run_script(["digirl.py", *flags, "--cpu-threads", "1", "--runs-dir", tmp_path])
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    record = control.measure("digirl.py", path, control.Args("digirl.py", cpu_threads=1))
    tests = [t.task.task_id for t in TrajectoryStore(path / "trajectories.jsonl") if t.policy == "test after"]
    assert record["tasks"] == sorted(tests) and len(tests) == 8 and record["differ"] == 0
    assert tests != [task.task_id for task in envs.make("phone").tasks("test")[:8]]
    asked = [tests[5], tests[2]]
    settings = control.settings_of(control.module_of("digirl.py"), path)
    found = control.evaluation(path / "start", tmp_path / "evaluation", settings, tasks=asked)
    assert list(control.played(found, "test")) == asked  # these, in this order
    # distrl.py's learner is made in another way, of the same demonstrations
    args = replace(distrl.Args(**values_of(distrl.Args, "tiny")), env_id="phone/general", sft_epochs=1, cpu_threads=1)
    parts, loss = control.fine_tuned(distrl, args, None, control.demonstrations(path), path)
    assert loss > 0 and len(parts) == 2


def test_as_an_arm_of_a_comparison_it_is_the_same(run, record, tmp_path, capsys):
    method = {"curves": {"charts/updates": [[1, record["updates"]]]}}
    found = control.as_arm("crps.py", run, method, tmp_path / "control")
    made = comparison.record_of(found, (), "global_step", "test/")
    assert made["outcomes"] == record["control"] and made["test"]["episodes"] == 8
    assert made["tasks"] == zlib.crc32(" ".join(record["tasks"]).encode())
    assert control.as_arm("crps.py", run, None, tmp_path / "none") is None
    assert "was not measured" in capsys.readouterr().out and not (tmp_path / "none").exists()


def test_what_has_no_control_is_said_in_one_line(run, tmp_path):
    with pytest.raises(UsageError, match="no run of webrl.py"):
        control.measure("webrl.py", run, control.Args("webrl.py"))
    with pytest.raises(UsageError, match="one of webrl.py"):
        control.main(control.Args("eval.py"))
    with pytest.raises(UsageError, match="no finished run of crps.py"):
        control.main(control.Args("crps.py", runs_dir=str(tmp_path)))


def test_summary_and_table_are_of_the_same_outcomes(record, tmp_path, monkeypatch):
    made = record | {"start": "0011", "control": "0111", "after": "1111", "setting": "here"}
    assert "control 0.750" in control.summary(made) and "control 0.250" in control.summary(made)
    monkeypatch.setattr(control, "RESULTS", tmp_path / "control.jsonl")
    lines = [json.dumps(made | {"seed": seed, "after": after}) for seed, after in enumerate(("1111", "1110", "1111"))]
    control.RESULTS.write_text("\n".join(lines))
    row = control.table("crps.py").splitlines()[2]
    assert row.startswith("| here | 3 | 0.500 ") and "| 0.167 [" in row and "| 0.417 [" in row
    control.RESULTS.write_text(lines[0])
    assert control.table("crps.py").count("°") == 3
    assert control.table("webrl.py") == ""


def test_steps_are_those_of_the_first_pass_again(run):
    """`updates` ends a pass in the middle; without it there are whole passes."""
    args = replace(control.settings_of(crps, run), sft_epochs=1)
    demos = control.demonstrations(run)
    count = len([step for demo in demos for step in demo.steps])
    a_pass = -(-count // args.sft_batch_size)
    whole, loss = control.fine_tuned(crps, args, run / "start", demos, run)
    as_many, same = control.fine_tuned(crps, args, run / "start", demos, run, a_pass)
    assert loss == same
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), as_many[0].parameters(), strict=True))
