"""The benchmark of the browser: its accounts, its report, a short measurement of our side, of theirs where it is."""

import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import tyro
from transformers import LlamaConfig

import crps
import distrl
import grpo_async
import webrl
from benchmarks import comparison, control
from benchmarks import crps as crps_benchmark
from benchmarks import distrl as distrl_benchmark
from benchmarks import grpo as grpo_benchmark
from benchmarks import webrl as webrl_benchmark
from benchmarks.comparison import success
from benchmarks.docs import write_docs
from benchmarks.once import browser, collection, controller, gpu_webrl, memory, phone, throughput
from benchmarks.once.browser import VARIANTS, BrowserGym, Cell, Ours
from benchmarks.once.browsergym_worker import action_text, find_bid
from common.errors import UsageError
from common.lm.stats import mean_ci
from common.replay import Step, Trajectory, TrajectoryStore
from envs import Task
from envs.miniwob import SETS
from tests.scripts import run_script
from tools.setup_chromium import installed

ROOT = Path(__file__).resolve().parent.parent
PHASES = webrl_benchmark.Args().phases
PYTHON = Path(os.environ.get("BROWSERGYM_PYTHON", ROOT / ".venv-browsergym" / "bin" / "python"))


class NoClock:
    """Stands in for ProcessTree, which makes its process the parent of orphans: not in the tests' process."""

    def cpu(self):
        return 0.0


async def scripts():
    return await browser.write_scripts(browser.draw_tasks(1, seed=1))


async def test_our_side_plays_a_task_with_screenshots():
    side, played = Ours(VARIANTS[2], 2), await scripts()
    try:
        cell = await browser.measure(side, 2, played, NoClock())
        assert side.obs[1]["screenshot"].startswith(b"\x89PNG")
    finally:
        await side.close()
    assert not cell.errors and not cell.astray and cell.resets == 2 and cell.steps == 2 * len(played[0].moves) >= 4
    assert len(cell.exit_seconds) == 2  # both slots' exits were scored, as 1
    assert all(math.isfinite(value) for value in cell.figures().values())


@pytest.mark.skipif(
    not PYTHON.exists(), reason=f"needs BrowserGym: no {PYTHON} (docs/browser.md; or BROWSERGYM_PYTHON)"
)
async def test_browsergym_goes_the_same_way():
    side, played = BrowserGym(VARIANTS[3], 1, str(PYTHON), installed()), await scripts()
    try:
        cell = await browser.measure(side, 1, played, NoClock())
    finally:
        await side.close()
    assert not cell.astray and cell.resets == 1 and cell.steps == len(played[0].moves)


CPU_OF_THE_DEAD = r"""
import subprocess, sys, time
from benchmarks.once.browser import ProcessTree

burn = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"]
tree = ProcessTree()
before = tree.cpu()
subprocess.run(burn)
waited_for = tree.cpu()
subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({burn!r})"])
while tree.cpu() < waited_for + 0.3:  # the orphan's time arrives
    time.sleep(0.05)
subprocess.Popen(["sleep", "600"])
tree.end()
print(waited_for - before, len(tree._members()))
"""


def test_cpu_time_of_the_dead_and_of_orphans_counts():
    command = [sys.executable, "-c", CPU_OF_THE_DEAD]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    seconds, left = ran.stdout.split()
    assert 0.25 < float(seconds) < 1.0 and left == "1"


def test_the_report_divides_within_rounds_and_takes_medians():
    def cell(step_seconds):
        return Cell(1, 1, step_seconds, 0.1, 0.05, 0.05, [step_seconds], [0.1])

    ours = {0: cell(0.1), 1: cell(0.2), 2: cell(0.1)}
    theirs = {0: cell(1.0), 1: cell(4.0), 2: cell(3.0)}
    text = browser.report({(VARIANTS[0], 1): ours, (VARIANTS[1], 1): theirs, (VARIANTS[3], 1): {}}, ["a note"])
    assert "- a note" in text
    assert "| CleanGUI | text | 1 | 10.0 | 100 | 50.0 | 10.0 | 100 | 50.0 |" in text
    assert "| BrowserGym, defaults | CleanGUI | 1 | 20.0 (10.0 to 30.0) | 1.00 (1.00 to 1.00) |" in text
    assert VARIANTS[3].name not in text


def test_the_docs_keep_what_stands_around_the_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- one -->\n<!-- end -->\nbetween\n<!-- two -->\nold\n<!-- end -->\nbelow\n")
    write_docs(page, "two", "new")
    write_docs(page, "one", "first\nlines")
    wanted = "above\n<!-- one -->\nfirst\nlines\n<!-- end -->\nbetween\n<!-- two -->\nnew\n<!-- end -->\nbelow\n"
    assert page.read_text() == wanted
    write_docs(page, "one", "first\nlines")
    assert page.read_text() == wanted
    with pytest.raises(UsageError, match="three"):
        write_docs(page, "three", "lost")
    assert page.read_text() == wanted


def test_the_docs_have_the_places_that_benchmarks_write_to():
    for page, name in (
        (browser.DOCS, "browser"),
        (gpu_webrl.DOCS, "gpu_webrl"),
        (memory.DOCS, "memory"),
        (phone.DOCS, "phone"),
        (phone.DOCS, "phone_env"),
    ):
        assert page.read_text().count(f"<!-- {name} -->\n") == 1
    for script in control.SCRIPTS:
        assert (ROOT / f"docs/{script.removesuffix('.py')}.md").read_text().count("<!-- control -->\n") == 1
    assert (ROOT / "docs/webrl.md").read_text().count("<!-- fine-tuning -->\n") == 1


def test_the_passes_of_a_gpu_are_measured_on_a_small_shape(capsys):
    args = gpu_webrl.Args(shape="small", context=64, action=8, sequences=2, lora_rank=4, repeats=1)
    results = gpu_webrl.measure(args)
    assert [name.split()[0] for name, *_ in results] == ["generation", "log-prob", "update"]
    assert all(rate > 0 and memory > 0 for _, rate, _, memory in results)
    assert gpu_webrl.table(args, results).count("\n| ") == 4
    with pytest.raises(UsageError, match="--action"):
        gpu_webrl.main(gpu_webrl.Args(shape="small", context=8, action=8))


def test_flops_are_those_of_the_matrices_and_of_causal_attention():
    config = LlamaConfig(hidden_size=8, num_hidden_layers=3, num_attention_heads=2)
    # a causal T x T product of D numbers: half of 2 T^2 D for the scores, half for the weighted values
    assert gpu_webrl.forward_flops(config, 100, 2, 5) == 2 * (2 * 100 * 5 + 3 * 2 * (2 * 5 * 5 * 8) // 2)


def test_memory_is_measured_in_processes_of_their_own(tmp_path):
    memory.make_model(tmp_path, layers=2)
    peaks = []
    for layout in ("released", "lora"):
        done = run_script(["benchmarks/once/memory.py", "--layout", layout, "--model", tmp_path])
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]))
    weights = (tmp_path / "model.safetensors").stat().st_size
    assert peaks[0] > 7 * weights  # two models with gradients in turn and AdamW's states, and a third
    assert weights < peaks[1] < peaks[0] / 2


def test_the_arithmetic_of_memory():
    released, full, lora, quantised = memory.arithmetic(8.0, 32, 4096)
    assert released == 8 * 34 and full == 8 * 28
    assert quantised < lora < 2 * 8 + 10 < full < released


def node(bid, role, name):
    return {"browsergym_id": bid, "role": {"value": role}, "name": {"value": name}}


def test_a_controller_that_is_smoothed_more_takes_longer():
    args = controller.Args(samples=300)
    (fast, *_), (slow, *_) = (controller.cell(args, (10, 40), 2, smoothing) for smoothing in (0.9, 0.1))
    assert slow.low > fast.high
    (_, _, small), (_, _, large) = (controller.cell(args, (10, 40), step, 0.9) for step in (1, 8))
    assert large > small


def fake_result(arm, seed, success, all_zero):
    curves = {"groups/all_zero": [[100, all_zero], [200, 0.1], [300, 0.0]], "groups/entropy": [[100, 0.5], [300, 0.4]]}
    test = {"success": success, "score": success + 0.2, "kind_0_options": success}
    return {"arm": arm, "seed": seed, "minutes": 2.0, "test": test, "curves": curves}


def test_the_report_of_crps_pairs_seeds():
    records = [fake_result("grpo", seed, 0.3 + seed / 100, 0.8) for seed in (1, 2, 3)]
    records += [fake_result("crps", seed, 0.4 + seed / 100, 0.5) for seed in (3, 1, 2, 4)]
    arms = crps_benchmark.by_arm(records)
    assert list(arms) == ["grpo", "crps"] and crps_benchmark.early(arms["grpo"][1], "groups/all_zero") == 0.8
    table = crps_benchmark.main_table(arms).splitlines()
    row = [cell.strip() for cell in table[3].strip("|").split("|")]
    assert row[0] == "GRPO + CRPS" and row[1] == "4" and row[2].startswith("0.425 [")
    assert row[4].startswith("0.100 [") and row[5] == ""  # at the three seeds that both have; nobody replays
    signal = crps_benchmark.signal_table(arms).splitlines()
    assert "-0.300 [-0.300, -0.300]" in signal[3]
    for record in records:
        record["curves"]["groups/fresh_all_zero"] = [[100, 0.5 + record["seed"] / 100]]
    assert "| 0.525 [" in crps_benchmark.signal_table(arms).splitlines()[3]
    two = {arm: {seed: runs[seed] for seed in (1, 2)} for arm, runs in arms.items()}
    assert "[" not in crps_benchmark.main_table(two)  # of two seeds an interval says nothing
    assert "| GRPO | 0.32 |" in crps_benchmark.kind_table(arms)


def test_a_move_becomes_browsergyms_action():
    nodes = [node("30", "link", "Red  Lamp"), node("9", "link", "red lamp"), node("4", "button", "red lamp"), {}]
    assert find_bid(nodes, "link", "red lamp") == "9"  # the first on the page, as in ours
    with pytest.raises(LookupError):
        find_bid(nodes, "box", "red lamp")
    assert action_text({"op": "Search", "argument": "it's"}, "9") == "fill('9', \"it's\")\npress('9', 'Enter')"


def test_a_wrong_interpreter_is_one_line_and_exit_code_2():
    ran = run_script(["benchmarks/once/browser.py", "--browsergym-python", "nowhere/python"])
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and "nowhere/python" in ran.stderr


def test_the_best_possible_throughput_of_hand_made_schedules():
    """Groups of two, on two slots."""

    def best(lengths, updates, eta):
        return throughput.best_possible(lengths, updates, 2, 2, 2, eta)

    assert best([1.0], [1.0, 1.0], 0) == 4.0  # play, train, play, train
    assert best([1.0], [1.0, 1.0], 1) == 3.0  # the second batch is played while the first is trained on
    assert best([1.0, 3.0], [0.5], 2) == 3.5  # the slower member of the group
    assert best([1.0], [5.0, 5.0, 5.0], 2) == 16.0  # the learner is what takes time
    assert best([2.0], [0.0] * 10, 0) == best([2.0], [0.0] * 10, 2) == 20.0


def collection_line(trajectories, length):
    return {"trajectories": trajectories, "seconds": 60.0, "waiting_for_model": 0.25, "ended": [1.0] * trajectories} | {
        "shortest": 1.0,
        "longest": length,
    }


def test_the_tables_of_collected_trajectories(tmp_path):
    args = collection.Args(phones=(8,), sigmas=(0.3, 1.0), scaling=(1, 4, 8))
    wanted = collection.cells(args)
    assert len(wanted) == len(set(wanted)) == 6 and (8, 0.3, False) in wanted
    counts = {(8, 0.3, False): 72, (8, 0.3, True): 48, (1, 0.3, False): 10, (4, 0.3, False): 39}
    found = {cell: collection_line(count, 2.5) for cell, count in counts.items()}
    table = collection.collection_table(found, args).splitlines()
    assert table[2:] == ["| 8 | 2.5 times (sigma 0.3) | 72 | 48 | 1.50 | 25% |"]  # sigma 1 has not been measured
    assert collection.scaling_rows(found, args) == [(1, 10.0, 1.0), (4, 39.0, 0.975), (8, 72.0, 0.9)]
    collection.draw(found, args, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_webrl_tables_pair_the_seeds_and_keep_the_settings_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(webrl_benchmark, "RESULTS", tmp_path / "webrl.jsonl")

    def record(arm, seed, success, there, setting="miniwob"):
        curves = {"rollout/true_success": [[1, 0.25], [2, 0.5]], "eval/success": [[1, 0.4], [2, 0.6]]}
        curves |= {f"orm/{name}": [[1, 0.7], [2, 0.8]] for name in ("accuracy", "precision", "auc", "base_rate")}
        test = {"success": success, "site_click-test": success}
        place = {"arm": arm, "seed": seed, "setting": setting, "phases": PHASES, "flags": ""}
        place |= {"steps": 1000, "minutes": 5.0}
        other = {"success": there, "site_click-tab": there}
        return place | {"test": test, "elsewhere": other, "curves": curves if arm == "webrl" else {}}

    rows = [record("sft", 1, 0.1, 0.3), record("sft", 2, 0.3, 0.2), record("sft", 3, 0.2, 0.1)]
    rows += [record("webrl", 1, 0.3, 0.3), record("webrl", 2, 0.5, 0.2), record("webrl", 3, 0.4, 0.1)]
    rows += [record("webrl", 1, 0.9, 0.9, "arena")]
    webrl_benchmark.RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = webrl_benchmark.report(webrl_benchmark.Args(setting="miniwob"))
    (row,) = [line for line in text.splitlines() if line.startswith("| WebRL | 3 |")]
    assert "| 0.400 [" in row and "| 0.200 [0.200, 0.200] |" in row  # paired: the same gain at every seed
    assert "| 0.000 [0.000, 0.000] |" in row and "0.9" not in text  # nothing gained there; nothing of the arena
    assert "| WebRL | 0.250, 0.500 | 0.400, 0.600 |" in text and "| WebRL | last phase | 0.800 [" in text
    assert "| click-test | 0.20 (0.10 to 0.30) |" in text and "| click-tab | 0.20 (0.10 to 0.30) |" in text
    assert "| WebRL above SFT (Table 1) | 0.200 [0.200, 0.200] | holds |" in text and "Filtered BC (T" not in text
    arms = webrl_benchmark.results(webrl_benchmark.Args(setting="miniwob"))
    swapped = {"sft": arms["webrl"], "webrl": arms["sft"]}
    assert "| does not hold |" in webrl_benchmark.claim_table(swapped)
    two = {arm: {seed: runs[seed] for seed in (1, 2)} for arm, runs in arms.items()}
    assert "| cannot tell |" in webrl_benchmark.claim_table(two)  # too few seeds for an interval that says anything
    with pytest.raises(UsageError, match="nothing has been measured"):
        webrl_benchmark.report(webrl_benchmark.Args(setting="miniwob", phases=9))
    assert not webrl_benchmark.measured(webrl_benchmark.Args(setting="miniwob", phases=4), "webrl", 1)
    assert set(webrl_benchmark.TRAIN) < set(SETS["browsergym-train"])  # no test task is trained on
    assert set(webrl_benchmark.HELD_OUT) < set(SETS["browsergym-test"])


def test_differences_are_over_seeds_or_over_the_tasks_of_a_few():
    def runs(*successes, outcomes=()):
        found = {seed: {"test": {"success": value}} for seed, value in enumerate(successes, 1)}
        return {
            seed: record | {"outcomes": o, "tasks": 7} for (seed, record), o in zip(found.items(), outcomes)
        } or found

    many = {"a": runs(0.5, 0.6, 0.7), "b": runs(0.4, 0.5, 0.6)}
    found = comparison.difference(many, "a", "b", success)
    assert found.over == "seeds" and found.interval.low == pytest.approx(0.1) and found.verdict == "holds"
    swapped = comparison.difference(many, "b", "a", success)
    assert swapped.verdict == "does not hold"

    assert found.verdict_of_none() == "holds, within 0.1" and found.interval.estimate == pytest.approx(0.1)
    far = {"a": runs(0.5, 0.6, 0.7), "b": runs(0.2, 0.3, 0.41)}
    assert comparison.difference(far, "a", "b", success).verdict_of_none() == "does not hold"
    lost = {"a": {1: {"x": None}}, "b": {1: {"x": 0.5}}}
    assert comparison.difference(lost, "a", "b", lambda record: record["x"]) is None  # an evaluation that failed
    close = {"a": runs(0.5, 0.6, 0.7), "b": runs(0.52, 0.59, 0.7)}
    assert comparison.difference(close, "a", "b", success).verdict_of_none() == "holds, within 0.1"
    assert comparison.difference(close, "a", "b", success).verdict_of_none(0.03) == "cannot tell"
    claims = {"the same": ("a", "b", success, 0.03), "within .1": ("a", "b", success, comparison.SAME)}
    strict, wide = comparison.claim_table(close, claims).splitlines()[2:]
    assert "| cannot tell |" in strict and "| holds, within 0.1 |" in wide
    sure = {"a": runs(0.51, 0.61, 0.71), "b": runs(0.5, 0.6, 0.699)}
    assert comparison.difference(sure, "a", "b", success).verdict_of_none() == "holds, within 0.1"  # small, if not 0
    wide = {"a": runs(0.5, 0.9, 0.1), "b": runs(0.9, 0.5, 0.1)}
    found = comparison.difference(wide, "a", "b", success)
    assert found.verdict == found.verdict_of_none() == "cannot tell"
    few = {"a": runs(0.75, outcomes=["11101110"]), "b": runs(0.25, outcomes=["00100010"])}
    found = comparison.difference(few, "a", "b", success)  # six tasks, of which four gained: 1, 1, 0, 0, 1, 1, 0, 0
    gains = [1, 1, 0, 0, 1, 1, 0, 0]
    assert found.over == "tasks" and found.interval == mean_ci(gains) and found.verdict == "holds, at 1 seed"
    assert "\u00b0" in comparison.versus(few, "a", "b", success)
    assert comparison.page(["", comparison.versus(few, "a", "b", success)]).endswith(comparison.TASKS_NOTE)
    older = {arm: {1: {k: v for k, v in runs[1].items() if k != "tasks"}} for arm, runs in few.items()}
    assert comparison.difference(older, "a", "b", success).over == "tasks"  # lines from before the checksum
    other = {"a": few["a"], "b": {1: few["b"][1] | {"tasks": 8}}}
    assert comparison.difference(other, "a", "b", success).over == "nothing"  # other tasks: they do not pair
    starts = {"a": {1: few["a"][1] | {"start": 5}}, "b": {1: few["b"][1] | {"start": 6}}}
    assert comparison.difference(starts, "a", "b", success) is None  # went on from other policies
    assert comparison.difference(starts | {"b": few["b"]}, "a", "b", success).over == "tasks"  # older: not known
    both = {arm: {1: record[1], 2: record[1]} for arm, record in few.items()}
    assert comparison.difference(both, "a", "b", success).interval == mean_ci(gains * 2)
    length = comparison.difference(few, "a", "b", lambda record: record["test"]["success"])  # no outcomes of its own
    assert length.over == "nothing" and length.verdict == "cannot tell" and str(length) == "0.500"
    assert comparison.versus(few, "a", "a", success) == comparison.versus(few, "a", "c", success) == ""
    three = {arm: dict.fromkeys((1, 2, 3), record[1]) for arm, record in few.items()}
    table = comparison.claim_table(three, {"more": ("a", "b", success), "longer": ("a", "b", lambda r: len(r))})
    assert f"| more | 0.500 [0.500, 0.500] | holds | {mean_ci(gains * 3)} |" in table  # over seeds; over tasks
    assert "| longer | 0.000 [0.000, 0.000] | cannot tell |  |" in table and "| |" not in table
    assert "| holds, at 1 seed |  |" in comparison.claim_table(few, {"more": ("a", "b", success)})  # is over tasks


def test_required_steps_are_those_of_the_shortest_success_of_any_method():
    records = [{"tasks": 7, "lengths": lengths} for lengths in ([3, 0, 9, 0], [5, 8, 0, 0], [0, 7, 0, 0])]
    shortest = webrl_benchmark.shortest_successes(records)
    assert shortest == {7: [3, 7, 9, 0]}  # the last one nobody did: it counts for nobody
    rates = [webrl_benchmark.rates_by_steps(shortest, record) for record in records]
    assert rates == [{"steps_1-3": a, "steps_7+": b} for a, b in ((1.0, 0.5), (1.0, 0.5), (0.0, 0.5))]
    assert webrl_benchmark.shortest_successes([*records, {"tasks": 7}]) == {}  # a record of before


def test_a_record_has_the_outcome_of_each_test_task(tmp_path):
    rows = [{"global_step": 7, "x": 1, "test_after/success": 0.5, "time/other": 60.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = TrajectoryStore(tmp_path / "trajectories.jsonl")

    def episode(name, verdict, policy):
        task = Task(name, "shop", "do it", max_steps=3)
        steps = [Step([1], [2], [-0.5], 0, "page", "exit()")]
        return Trajectory(task, 0, 0, steps, reward=verdict, verdict=verdict, policy=policy, ending="exit")

    store.append([episode("b", 1.0, "test after"), episode("a", 0.0, "test after"), episode("a", 1.0, "test before")])
    record = comparison.record_of(tmp_path, ["x"], "x")
    assert record["outcomes"] == "01" and record["lengths"] == [0, 1]  # by id, of the test meant
    comparison.without_episodes(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_every_arm_of_every_comparison_is_a_run_that_its_script_takes():
    """The flags parse, and what the tables, groups and claims name is there."""
    scripts = {webrl_benchmark: webrl, crps_benchmark: crps, grpo_benchmark: grpo_async, distrl_benchmark: distrl}
    for benchmark, script in scripts.items():
        for arm, flags in benchmark.ARMS.items():
            tyro.cli(script.Args, args=flags.split())
            assert arm in benchmark.NAMES
    named = [*webrl_benchmark.EXHIBITS.values(), *webrl_benchmark.GROUPS.values()]
    assert {arm for names in named for arm in names.split()} - {"sft"} == set(webrl_benchmark.ARMS)
    for benchmark in (webrl_benchmark, grpo_benchmark, distrl_benchmark):
        for more, less, *_ in benchmark.CLAIMS.values():
            assert {more, less} <= {"sft", *benchmark.ARMS}


def test_webrls_exhibits_have_the_arms_that_the_paper_shows_together():
    def runs(success):
        return {seed: {"test": {"success": success}, "steps": 10, "minutes": 1.0} for seed in (1, 2, 3)}

    arms = {"sft": runs(0.3), "webrl": runs(0.5), "fixed": runs(0.4), "band-low": runs(0.2)}
    for seed in (2, 3):  # older lines have no such curve
        arms["webrl"][seed]["curves"] = {"charts/updates": [[1, 40], [2, 10 * seed + 60]]}
    first, second, third = webrl_benchmark.exhibits(arms, "")
    assert first.startswith("Table 1, every") and first.count("\n| ") == 3 and "phase 1" not in first
    assert second.splitlines()[-1].endswith("| 10 | 85 | 1.0 |")
    assert second.startswith("Figure 5") and "| WebRL, instructions of phase 1 | 3 |" in second
    assert third.startswith("Table 2") and "| below 1/.95 | 3 |" in third


def test_success_by_phase_and_site_of_the_phases_that_all_runs_have():
    def run(success, shop, phases):
        names = {"eval/success": success, "eval/site_shop": shop}
        return {"curves": {name: [[phase, value] for phase in phases] for name, value in names.items()}}

    runs = {1: run(0.5, 0.4, (1, 2)), 2: run(0.7, 0.8, (1, 2, 3))}
    head, _, *rows = webrl_benchmark.site_phase_table(runs).splitlines()
    assert head == "| after phase | all | shop |"
    assert rows == [f"| {phase} | 0.600 | 0.60 (0.40 to 0.80) |" for phase in (1, 2)]
    assert webrl_benchmark.titled("Figures 12 and 13", webrl_benchmark.site_phase_table({})) == ""


def test_a_result_knows_its_start_and_one_whose_evaluation_failed_is_none(tmp_path, monkeypatch):
    args = webrl_benchmark.Args(setting="miniwob", runs_dir=str(tmp_path))
    actor = webrl_benchmark.folder_of(args, "start", 1) / "run/checkpoints/0002-0/actor"
    actor.mkdir(parents=True)
    (actor / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(webrl_benchmark, "RESULTS", tmp_path / "webrl.jsonl")
    monkeypatch.setattr(webrl_benchmark.checkpoint, "latest", lambda run: SimpleNamespace(folder=lambda name: actor))
    monkeypatch.setattr(comparison, "record_of", lambda *_: {"test": {"success": 0.5}, "minutes": 1.0})
    for found, lines in ((None, 0), ({"success": 0.25}, 1)):
        monkeypatch.setattr(comparison, "evaluate", lambda *_, found=found: found)
        webrl_benchmark.keep(args, "webrl", 1, tmp_path)
        assert len(comparison.results(webrl_benchmark.RESULTS, ["webrl"], {})) == lines
    (record,) = webrl_benchmark.results(args)["webrl"].values()
    assert record["elsewhere"] == {"success": 0.25} and record["start"] == zlib.crc32(b"weights")


@pytest.mark.parametrize(
    ("measured", "most"), [({"webrl": 40, "no-curriculum": 60}, 60), ({"webrl": 9}, 9), ({}, None)]
)
def test_the_control_makes_as_many_updates_as_the_longer_of_webrls_arms(measured, most, tmp_path, monkeypatch):
    arms = {arm: {3: {"curves": {"charts/updates": [[1, 1], [2, n]]}}} for arm, n in measured.items()}
    monkeypatch.setattr(webrl_benchmark, "results", lambda args: arms)
    asked = []
    monkeypatch.setattr(control, "as_arm", lambda script, begin, method, folder: asked.append(method))
    webrl_benchmark.keep_control(webrl_benchmark.Args(runs_dir=str(tmp_path)), 3, tmp_path)
    assert [method and comparison.updates(method) for method in asked] == [most]


def test_an_arm_that_two_groups_share_is_run_once(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(webrl_benchmark, "results", lambda args: {})
    monkeypatch.setattr(webrl_benchmark, "start", lambda args, seed: tmp_path)
    monkeypatch.setattr(webrl_benchmark, "one", lambda args, arm, seed, begin: ran.append(arm))
    webrl_benchmark.measure(webrl_benchmark.Args(seeds=1, arms=("demo", "main", "ablations")))
    assert len(ran) == len(set(ran)) and {"no-curriculum", "control", "no-kl"} <= set(ran) and ran[-1] == "control"


def test_sizes_of_the_base_model_are_settings_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(webrl_benchmark, "RESULTS", tmp_path / "webrl.jsonl")
    place = {"setting": "shop", "phases": PHASES, "steps": 10, "minutes": 1.0, "curves": {}}
    rows = [
        place | {"arm": arm, "seed": seed, "flags": flags, "test": {"success": success + seed / 100}}
        for flags, gain in (("", 0.5), ("--model-id runs/bases/small", 0.1), ("--model-id runs/bases/large", 0.2))
        for arm, success in (("sft", 0.2), ("webrl", 0.2 + gain))
        for seed in (1, 2, 3)
    ]
    webrl_benchmark.RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = webrl_benchmark.size_table(webrl_benchmark.Args())
    large, small = table.splitlines()[-2:]
    assert large.startswith("| large | 3 | 0.220 [") and large.endswith("| 0.200 [0.200, 0.200] |")
    assert small.startswith("| small | 3 |") and small.endswith("| 0.100 [0.100, 0.100] |")


def test_the_throughput_tables_keep_settings_apart_and_need_both_of_a_pair(tmp_path):
    line = {"best_per_hour": 4000.0, "slots_idle": 0.25, "learner_idle": 0.5, "lag_mean": 1.0, "lag_max": 2}
    runs = [(1, 1000.0, True, 16), (1, 2500.0, False, 16), (1, 2000.0, True, 32), (2, 500.0, True, 16)]
    rows = [
        line
        | {"median": median, "sigma": 1.0, "per_hour": rate, "sync": sync, "settings": [8, size, 16, 12, 1]}
        | {"published": [50.0, 60.0, 90.0] if sync else [50.0, 58.0, 60.0]}
        for median, rate, sync, size in runs
    ]
    file = tmp_path / "throughput.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = throughput.measured(file)
    assert {settings[1]: list(cells) for settings, cells in found.items()} == {16: [(1, 1.0), (2, 1.0)], 32: [(1, 1.0)]}
    own = throughput.table(found[8, 16, 16, 12, 1, ""]).splitlines()
    assert len(own) == 3 and "| 1,000 | 2,500 | 2.50 | 4.00 | 60.0, 24.0 | 0.25 and 0.62 |" in own[2]
    assert throughput.report(found).count("Batches of ") == 2


def test_collecting_by_the_clock_in_both_ways():
    """Real workers and simulated phones: asynchronous, a phone begins its next episode when its last one ends."""
    args = collection.Args(seconds=6.0, median=0.05, max_steps=3)
    for sync in (True, False):
        rows = collection.collect(args, 2, 0.3, sync)
        assert len(rows) >= 2 and all(0.0 <= row["begun"] < row["ended"] <= 6.0 for row in rows)
        begins = sorted(row["begun"] for row in rows)
        if sync:  # in pairs
            ends = sorted(row["ended"] for row in rows)
            assert all(begin >= ends[2 * (i // 2) - 1] - 0.01 for i, begin in enumerate(begins) if i > 1)


@pytest.mark.parametrize("processes", [1, 3])
def test_each_run_that_is_not_there_yet_goes_on_from_its_seeds_start(tmp_path, monkeypatch, processes):
    monkeypatch.setattr(webrl_benchmark, "RESULTS", tmp_path / "webrl.jsonl")
    args = webrl_benchmark.Args(seeds=3, arms=("webrl", "ablations"), processes=processes)
    done = {"arm": "no-replay", "seed": 2, **webrl_benchmark.setting(args)}
    webrl_benchmark.RESULTS.write_text(json.dumps(done) + "\n")
    started, ran, kept = [], [], []

    def start(args, seed):
        started.append(seed)
        return None if seed == 3 else tmp_path / f"start-{seed}"  # one that failed

    def go_on(args, begin, arm, seed):
        ran.append((arm, seed, begin.name))
        (tmp_path / f"{arm}-{seed}" / "checkpoints").mkdir(parents=True)
        return tmp_path / f"{arm}-{seed}"

    monkeypatch.setattr(webrl_benchmark, "start", start)
    monkeypatch.setattr(webrl_benchmark, "go_on", go_on)
    monkeypatch.setattr(webrl_benchmark, "keep", lambda args, arm, seed, path: kept.append(path.name))
    webrl_benchmark.measure(args)
    arms = ["webrl", *webrl_benchmark.GROUPS["ablations"].split()]
    wanted = {(arm, seed, f"start-{seed}") for arm in arms for seed in (1, 2)} - {("no-replay", 2, "start-2")}
    assert sorted(started) == [1, 2, 3] and set(ran) == wanted and len(ran) == len(wanted) == len(kept)
    assert not list(tmp_path.glob("*/checkpoints"))


def test_curves_of_equal_time_are_over_seconds():
    curves = {"charts/seconds": [[1, 10.0], [2, 25.0]], "eval/success": [[2, 0.5]]}
    assert distrl_benchmark.seconds_of({"curves": curves})["curves"]["eval/success"] == [(25.0, 0.5)]
