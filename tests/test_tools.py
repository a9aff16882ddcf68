"""tools/plot.py and tools/play.py: what they compute; the pictures are only looked for."""

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import envs
import webrl
from common.actions import parse
from common.errors import UsageError
from common.lm import checkpoint, llm
from common.replay import Step, Trajectory, TrajectoryStore, read_labelled
from tests.scripts import run_script
from tools import export, orm_data, play, plot

PAGE = 'page "red lamp"\n"home" link [1]\n"search" box [2] = "blue"\n"go" button [12]\n"" item [4]'


@pytest.mark.parametrize(
    "line, action",
    [
        ("click 1", '# Element: "home" link [1]\ndo(action="Click", element="1")'),
        ("click [12]", '# Element: "go" button [12]\ndo(action="Click", element="12")'),
        ("click 4", '# Element: "" item [4]\ndo(action="Click", element="4")'),
        ("click 99", 'do(action="Click", element="99")'),  # the page will refuse it
        ("TYPE 2 red  lamp", '# Element: "search" box [2]\ndo(action="Type", argument="red  lamp", element="2")'),
        ("type 2", '# Element: "search" box [2]\ndo(action="Type", argument="", element="2")'),
        ('search 2 a "b"', '# Element: "search" box [2]\ndo(action="Search", argument="a \\"b\\"", element="2")'),
        ("upload 2 a b.png", '# Element: "search" box [2]\ndo(action="Upload File", argument="a b.png", element="2")'),
        ("scroll", 'do(action="Scroll Down")'),
        ("scroll up", 'do(action="Scroll Up")'),
        ("back", "go_backward()"),
        ("exit 24", 'exit(message="24")'),
        ("exit", 'exit(message="")'),
        ("exit(message='24')", "exit(message='24')"),
        ('do(action="Click", element="1")', 'do(action="Click", element="1")'),
        ("nonsense", "nonsense"),
    ],
)
def test_short_forms(line, action):
    assert play.expand(line, PAGE) == action
    if action != "nonsense":
        parse(action)


def fake_run(folder: Path, seed: int, beta: float, success: list[float]) -> str:
    folder.mkdir()
    (folder / "args.json").write_text(json.dumps({"exp_name": "webrl", "seed": seed, "beta": beta}))
    rows = [
        {
            "global_step": 100 * phase,
            "charts/phase": phase,
            "eval/success": value,
            "eval/low": value - 0.1,
            "eval/high": value + 0.1,
            "eval/site_shop": value,
            "orm/auc": 0.9 if phase else math.nan,
            "losses/policy_loss": 1 / (phase + 1),
            "test_before/success": success[0],
            "test_control/success": success[0] + 0.05,
            "test_after/success": value,
            "test_before/site_shop": success[0] - 0.1,
            "test_before/site_map": success[0] - 0.2,
            "test_after/site_shop": value,
            "test_after/site_map": value - 0.3,
            "time/pages": 60.0 * phase,
            "time/other": 5.0,
        }
        for phase, value in enumerate(success)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.fixture
def runs(tmp_path):
    return (
        fake_run(tmp_path / "a", 1, 0.1, [0.3, 0.5]),
        fake_run(tmp_path / "b", 2, 0.1, [0.5, 0.7, 0.9]),
        fake_run(tmp_path / "c", 1, 1.0, [0.2, 0.4]),
    )


def test_runs_that_differ_in_the_seed_are_one_curve(runs):
    both, other = plot.load(runs)
    assert (both.label, other.label) == ("beta 0.1 (2 seeds)", "beta 1.0")
    points = plot.curve(both, "eval/success", "phase")
    assert [round(p.estimate, 6) for p in points.values()] == [0.4, 0.6, 0.9]
    assert points[0].low == pytest.approx(0.4 - 12.7062 * 0.1, abs=1e-4)
    assert list(plot.curve(both, "eval/success", "steps")) == [0, 100, 200]
    assert plot.curve(other, "eval/success", "phase")[1] == pytest.approx((0.4, 0.3, 0.5))  # over tasks
    assert list(plot.curve(other, "orm/auc", "phase")) == [1]  # NaN is no point


def test_results_are_means_over_seeds(runs):
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in plot.table(plot.load(runs)).splitlines()]
    both, other = (dict(zip(lines[0], line)) for line in lines[2:])
    assert both["test after"].startswith("0.700 [") and both["gain"].startswith("0.300 [")
    assert both["control"].startswith("0.450 [") and both["above the control"].startswith("0.250 [")
    assert other["test after"] == "0.400" and other["against the first"] == "-0.100"  # seed 1 alone
    judged = [[cell.strip() for cell in row.split("|")[1:-1]] for row in plot.judge_table(plot.load(runs)).splitlines()]
    assert judged[0][:2] == ["judge", "on"] and judged[0][4] == "auc"
    assert ["beta 0.1 (2 seeds)", "last phase", "", "", "0.900", "", ""] in judged
    sites = [[cell.strip() for cell in row.split("|")[1:-1]] for row in plot.site_table(plot.load(runs)).splitlines()]
    assert sites[0] == ["by site", "test", "shop", "map"]
    assert [row[0:2] for row in sites[2:]] == [
        [g, w] for g in ("beta 0.1 (2 seeds)", "beta 1.0") for w in ("before", "after")
    ]
    assert sites[2][2].startswith("0.30 [") and sites[3][3].startswith("0.40 [") and sites[5][2:] == ["0.40", "0.10"]


def test_plots_are_written(runs, tmp_path):
    command = [plot.__file__, *runs, "--out", tmp_path / "out"]
    done = run_script(command)
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["judge.png", "losses.png", "results.md", "sites.png", "success.png", "time.png"]
    assert "| what differs | beta 0.1 (2 seeds) | beta 1.0 |" in done.stdout and "| beta | 0.1 | 1.0 |" in done.stdout
    done = run_script(command[:-2], cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "plots/results.md").is_file(), done.stderr
    assert not list(tmp_path.glob("[abc]/plots"))  # the runs' own plots are not written over


def test_metrics_of_ones_own_are_drawn(runs, tmp_path):
    plot.write(plot.Args(runs, str(tmp_path / "out"), metrics=("losses/policy_loss", "orm/auc")))
    assert (tmp_path / "out/metrics.png").is_file()
    with pytest.raises(UsageError, match="--metrics losses/policy: no run has it; losses/policy_loss"):
        plot.write(plot.Args(runs, str(tmp_path / "out"), metrics=("losses/policy",)))


def test_runs_of_other_scripts_are_other_experiments(tmp_path):
    """A copy of a script with a change in it, and its original: the flags say nothing of it."""
    runs = tuple(fake_run(tmp_path / name, seed, 0.1, [0.3, 0.5]) for name, seed in zip("abcd", (1, 2, 1, 2)))
    for run, text in zip(runs, "xxxy"):
        (Path(run) / "webrl.py").write_text(text)
    assert [group.seeds for group in plot.load(runs)] == [[1, 2, 1], [2]]
    assert all("script webrl.py " in group.label for group in plot.load(runs))
    for run in runs:  # the copy has a name of its own, and --exp-name is left out
        (Path(run) / "args.json").write_text(json.dumps({"exp_name": "", "seed": 1}))
    (Path(runs[3]) / "webrl.py").rename(Path(runs[3]) / "mine.py")
    assert [group.label for group in plot.load(runs)] == ["webrl (3 seeds)", "mine"]
    assert "| script | webrl.py | mine.py |" in plot.differences(plot.load(runs))


def test_what_does_not_vary_has_no_interval(runs):
    same = plot.load((runs[0], runs[0]))
    assert "| 0.500 |" in plot.table(same) and "[0.500, 0.500]" not in plot.table(same)


def test_labelled_episodes_are_of_training_instructions_and_read_as_the_judge_saw_them(tmp_path, tiny_tokenizer):
    train, test = envs.make("arena/shop").tasks("train")[:3], envs.make("arena/shop").tasks("test")[0]

    def episode(task, policy, verdict):
        steps = [
            Step([5, 6], [7], [], 0, "page", 'do(action="Go back")'),
            Step([8], [9], [], 0, "b", 'exit(message="x")'),
        ]
        page = f'page "{policy}"\nü'
        return Trajectory(task, 0, 0, steps, "exit", verdict=verdict, policy=policy, final_observation=page)

    generated = replace(train[0], task_id=train[0].task_id + "-p1-7", instruction="another one")
    taken = [episode(train[0], "start-up", 1.0), episode(train[1], "phase 1", 0.0), episode(train[2], "phase 2", 1.0)]
    left = [
        episode(train[0], "demo", 1.0),
        episode(train[1], "oracle", 1.0),
        episode(generated, "phase 1", 1.0),
        episode(test, "test after", 1.0),
        episode(train[0], "phase 3", None),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/args.json").write_text(json.dumps({"env_id": "arena/shop"}))
    TrajectoryStore(tmp_path / "run/trajectories.jsonl").append(taken + left + taken[:1])  # the last: a repeat
    file = tmp_path / "labelled.jsonl.gz"
    orm_data.main(orm_data.Args((str(tmp_path / "run"),), out=str(file)))
    read = read_labelled(file)
    assert [t.verdict for t in read] == [1.0, 0.0, 1.0]
    for got, was in zip(read, taken, strict=True):
        for page_first in (True, False):
            assert webrl.orm_prompt(tiny_tokenizer, got, page_first) == webrl.orm_prompt(
                tiny_tokenizer, was, page_first
            )
    again = file.read_bytes()
    orm_data.main(orm_data.Args((str(tmp_path / "run"),), out=str(file)))
    assert file.read_bytes() == again

    (tmp_path / "bad.jsonl").write_text('{"instruction": "a", "actions": [], "page": "", "verdict": 1}\n{"instr')
    with pytest.raises(UsageError, match="line 2"):
        read_labelled(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl.gz").write_text("no gzip")
    with pytest.raises(UsageError, match="bad.jsonl.gz"):
        read_labelled(tmp_path / "bad.jsonl.gz")
    with pytest.raises(UsageError, match="no run in"):
        orm_data.main(orm_data.Args((str(tmp_path),), out=str(file)))


def test_slips_differ_from_the_oracle_as_they_say_and_their_verdict_is_the_checkers(tmp_path):
    args = orm_data.Args(slips=21, seed=3, out=str(tmp_path / "slips.jsonl"))
    records = orm_data.slipped(args)
    assert records == orm_data.slipped(args)  # the seed decides
    env = envs.make(args.env_id)
    tasks = random.Random(3).choices(env.tasks("train"), k=21)

    async def replay():
        try:
            for task, record in zip(tasks, records, strict=True):
                obs, _ = await env.reset(task, seed=0)
                for action in record["actions"]:
                    obs, _, _, _, info = await env.step(action)
                assert (obs["text"], info["verdict"]) == (record["page"], record["verdict"])
        finally:
            await env.close()

    asyncio.run(replay())
    kinds = [record["policy"].removeprefix("oracle, slip: ") for record in records]
    assert kinds == [*orm_data.Slip.__args__, "quit", "elsewhere"] * 3
    for task, record, kind in zip(tasks, records, kinds, strict=True):
        moves, length = env.oracle(task), len(record["actions"])
        assert record["instruction"] == task.instruction
        assert parse(record["actions"][-1]).name == "Exit"
        assert length < len(moves) if kind in ("quit", "skip") else length <= len(moves) + (kind == "more")
        if kind == "answer":
            assert parse(record["actions"][-1]).argument != moves[-1].argument
    assert {record["verdict"] for record in records} == {0, 1}


def test_what_is_said_or_clicked_instead_is_another():
    rng = random.Random(0)
    said = {orm_data.other_answer("done", PAGE, rng) for _ in range(50)}
    assert "done" not in said and {"N/A", "home"} <= said
    clicked = {orm_data.other_click('"home" link', PAGE, rng) for _ in range(20)}
    assert clicked == {'# Element: "go" button [12]\ndo(action="Click", element="12")'}


@pytest.fixture
def tiny_tokenizer():
    return AutoTokenizer.from_pretrained(Path(__file__).resolve().parent.parent / "assets/tiny")


@pytest.mark.parametrize("rank", [0, 4])
def test_an_exported_actor_is_one_model_that_computes_the_same(tmp_path, rank):
    model, tokenizer = llm.load("assets/tiny", lora_rank=rank)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.01)
    ids = tokenizer.encode(PAGE)
    wanted = llm.hidden_states(model, tokenizer, [ids])[0]
    checkpoint.save(tmp_path / "run", 1, {"actor": [model, tokenizer]}, {}, {"state": {}, "global_step": 1})
    out = tmp_path / "agent"
    export.main(export.Args(run=str(tmp_path / "run"), out=str(out), dtype="float32"))
    assert not (out / "adapter_config.json").exists()
    exported = AutoModelForCausalLM.from_pretrained(out).eval()
    assert AutoTokenizer.from_pretrained(out).encode(PAGE) == ids
    assert torch.allclose(llm.hidden_states(exported, tokenizer, [ids])[0], wanted, atol=1e-5)


def test_export_says_what_it_cannot_do(tmp_path):
    with pytest.raises(UsageError, match="no checkpoint"):
        export.main(export.Args(run=str(tmp_path)))
    (tmp_path / "checkpoints/0001-1/actor").mkdir(parents=True)
    (tmp_path / "checkpoints/0001-1/state.json").write_text("{}")
    for flags, says in (({"network": "orm"}, "orm"), ({"dtype": "int8"}, "int8"), ({"out": str(tmp_path)}, "already")):
        with pytest.raises(UsageError, match=says):
            export.main(export.Args(run=str(tmp_path), **flags))


def test_a_policy_is_found_with_the_run_that_it_is_of(tmp_path):
    run = tmp_path / "gallery__grpo_async__1"
    for step in ("0001-0", "0002-78"):
        (run / "checkpoints" / step / "actor").mkdir(parents=True)
        (run / "checkpoints" / step / "meta.json").write_text("{}")
    (run / "args.json").write_text(json.dumps({"viewport": [96, 96]}))
    (run / "mine.py").write_text("def agent_prompt(processor, instruction, steps, obs):\n    return 'mine'\n")
    actors = [str(run / "checkpoints" / step / "actor") for step in ("0001-0", "0002-78")]
    for given, model_id in ((str(run), actors[1]), *((actor, actor) for actor in actors)):
        found, script, settings = play.find_policy(given, "--policy")
        assert found == model_id and settings == {"viewport": [96, 96]}
        assert play.prompt_of(script, True)(None, "", [], {}) == "mine"  # the copy's own, kept in its run
    with pytest.raises(UsageError, match="reads text, and mine.py has no prompt for it"):
        play.prompt_of(script, False)
    usual = [("assets/tiny", "arena", "webrl"), ("assets/tiny-vl", "gallery", "grpo_async")]
    usual.append(("assets/tiny-vl", "phone/general", "distrl"))
    for bare, env_id, name in usual:
        found, script, settings = play.find_policy(bare, "--policy", env_id=env_id)
        assert (found, Path(script.__file__).stem, settings) == (bare, name, {})
    script = play.find_policy("assets/tiny", "--policy", "crps.py")[1]
    assert script.agent_prompt.__code__.co_filename.endswith("crps.py")
    (run / "mine.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(UsageError, match="mine.py does not run here .ModuleNotFoundError: .* --script FILE"):
        play.find_policy(str(run), "--policy")
    assert play.find_policy(str(run), "--policy", "grpo_async.py")[0] == actors[1]
    with pytest.raises(UsageError, match="--script other.py: no such file"):
        play.find_policy(str(run), "--policy", "other.py")
