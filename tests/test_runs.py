"""tools/runs.py: the list of runs, and the page that compares some of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UsageError
from common.lm import origin
from common.replay import TrajectoryStore
from tests.test_tools import fake_run
from tests.test_view import CHROMIUM, EVIL, data_of, episode, png
from tools import runs


def settings(folder, **flags):
    file = Path(folder) / "args.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | flags))


def played(folder, outcomes, kind="test after", text="page", **fields):
    """Episodes of tasks t0, t1, ... with these verdicts."""
    store = TrajectoryStore(Path(folder) / "trajectories.jsonl")
    fields = {"policy": kind} | fields
    store.append([episode(n, verdict=float(won), text=text, kind=kind, **fields) for n, won in enumerate(outcomes)])


@pytest.fixture
def three(tmp_path):
    """Three runs, the last one of a script of another name; when they began is their order."""
    (tmp_path / "runs").mkdir()
    folders = [Path(fake_run(tmp_path / "runs" / name, seed, beta, success)) for name, seed, beta, success in SETS]
    for number, (folder, script) in enumerate(zip(folders, ("webrl.py", "webrl.py", "crps.py"))):
        (folder / script).write_text(f"# {script}")
        os.utime(folder / "args.json", (number, number))
    return folders


SETS = ("b", 1, 0.1, [0.25, 0.5]), ("a", 2, 0.1, [0.25, 0.75]), ("c", 1, 1.0, [0.2, 0.4])


def line_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(name + " "))


def test_the_list_has_states_phases_and_success_the_last_begun_below(three):
    origin.begin(three[0])
    origin.begin(three[2])
    origin.end(three[2], "failed", "ValueError: 7")
    text = runs.listing(runs.load(runs.find((str(three[0].parent),))))
    lines = text.splitlines()
    assert lines[0].split() == ["run", "script", "state", "at", "start", "control", "after", "eval", "minutes"]
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == ["b", "a", "c"]
    assert line_of(text, "b").split()[:5] == ["b", "webrl.py", "running", "phase", "1"]
    assert "0.500 [0.400, 0.600]" in line_of(text, "b")  # of eval, which has its interval in the metrics
    assert line_of(text, "a").split()[2] == "finished" and "0.750" in line_of(text, "a")  # a run of before
    assert line_of(text, "c").split()[1:3] == ["crps.py", "failed"] and lines[-2] == "    ValueError: 7"
    assert line_of(text, "b").endswith("1.1")


def test_a_run_of_before_and_one_that_has_just_begun_are_listed(tmp_path, three):
    for name, rows in (("begun", None), ("half", [{"charts/iteration": 3, "eval/success": 0.5}])):
        folder = tmp_path / "runs" / name
        folder.mkdir()
        (folder / "args.json").write_text('{"iterations": 9}' if rows else '{"torn')
        if rows:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = runs.listing(runs.load(runs.find((str(tmp_path / "runs"),))))
    assert "begun" in text and line_of(text, "half").split()[1:4] == ["unfinished", "iteration", "3/9"]


def test_a_killed_run_is_stopped(three, monkeypatch):
    origin.begin(three[0])
    monkeypatch.setattr(origin, "_since", lambda pid: None)
    assert runs.load([three[0]])[0].state() == "stopped"


def test_flags_that_changed_at_a_resume_are_below_the_run(three):
    origin.begin(three[1])
    origin.begin(three[1], {"step": 40, "changed": {"beta": [0.1, 0.5]}})
    assert "\n    from step 40 on: beta 0.5 (before: 0.1)\n" in runs.listing(runs.load(three))


def test_flags_that_differ(three):
    settings(three[0], alone=1, resume="auto", port=7)
    settings(three[1], group=4)
    settings(three[2], group=8)
    flags = runs.differing(runs.load(three))
    assert [list(own) for own in flags] == [["script", "seed", "beta"], *[["script", "seed", "beta", "group"]] * 2]
    assert runs.unusual(flags) == [
        {},  # two of three have its script, seed and beta
        {"seed": "2", "group": "4"},
        {"script": "crps.py", "beta": "1.0", "group": "8"},  # of two values neither is the usual one
    ]


def test_the_last_evaluation_in_which_two_runs_share_tasks(three):
    b, a, c = three
    played(b, [0, 0], "eval", phase=1)
    played(b, [1, 0, 1], "eval", phase=2)
    played(a, [1, 1], "eval", phase=7)
    played(a, [1], "test after")
    kind, own = runs.last_evaluation(runs.load(three))
    assert kind == "eval" and [{t: e.success for t, e in tasks.items()} for tasks in own] == [
        {"t0": True, "t1": False, "t2": True},
        {"t0": True, "t1": True},
        {},
    ]
    assert runs.difference(own, 1).startswith("0.500 [") and runs.difference(own, 1).endswith(" on 2 tasks")
    assert runs.difference(own, 0) == runs.difference(own, 2) == ""
    played(c, [0], "eval", policy="test")  # by tools/eval.py on the test tasks
    assert runs.last_evaluation(runs.load(three))[0] == "test after"
    assert runs.last_evaluation(runs.load([b]))[0] == ""


def test_tasks_of_different_outcomes_come_first_and_episodes_as_many_as_fit(three):
    played(three[0], [1, 1, 0])
    played(three[1], [1, 1, 1, 1])
    _, own = runs.last_evaluation(runs.load(three[:2]))
    tasks, kept = runs.compared_tasks(own, 1)
    assert [(task["id"], task["outcomes"]) for task in tasks] == [
        ("t2", [False, True]),
        ("t0", [True, True]),
        ("t1", [True, True]),
    ]
    assert [[t.task.task_id for t in held] for held in kept] == [["t2", "t0", "t1"]] * 2
    size = len(json.dumps(tasks[0]["episodes"])) / 1e6
    tasks, kept = runs.compared_tasks(own, 1.5 * size)
    assert [task["episodes"] is None for task in tasks] == [False, True, True] and len(kept[0]) == 1


def page_of(folders, **options):
    return runs.compare(runs.load(folders), runs.Args(tuple(map(str, folders)), **options))


def test_the_page_has_the_runs_their_flags_curves_and_pictures(three):
    origin.begin(three[0])
    name = TrajectoryStore(three[0] / "trajectories.jsonl").add_image(png())
    played(three[0], [1, 0], screenshot=name)
    played(three[1], [0, 0])
    page = page_of(three[:2])
    data = data_of(page)
    assert [run["letter"] for run in data["runs"]] == ["A", "B"] and data["runs"][0]["name"] == "b"
    assert "running · phase 1" in data["runs"][0]["facts"][0] and data["flags"] == [["", "A", "B"], ["seed", "1", "2"]]
    assert data["results"][0][-1] == "above A, paired, on test tasks" and data["results"][2][-1].startswith("-0.500 [")
    assert {name for name, _ in data["figures"]} >= {"success", "losses", "time"}
    assert all(uri.startswith("data:image/png;base64,") for _, uri in data["figures"])
    assert list(data["images"]) == [name]
    assert "default-src 'none'" in page and "prompt_ids" not in page


@pytest.fixture
def no_curves(monkeypatch):
    """Drawing takes seconds."""
    monkeypatch.setattr(runs.plot, "figures", lambda *given: ())


def test_what_pages_runs_and_agents_say_is_data(three, no_curves):
    settings(three[0], model_id=EVIL)
    settings(three[1], model_id="tiny")
    for folder in three[:2]:
        played(folder, [1], text=EVIL, answer=EVIL, final_observation=EVIL)
    page = page_of(three[:2])
    assert "pwned'</script>" not in page and "<img src=x" not in page
    data = data_of(page)
    assert ["model_id", EVIL, "tiny"] in data["flags"] and EVIL in data["tasks"][0]["instruction"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_in_a_browser_the_same_task_stands_side_by_side(three, tmp_path, no_curves):
    from playwright.sync_api import sync_playwright

    played(three[0], [1, 1], text=EVIL)
    played(three[1], [0, 1], text=EVIL)
    played(three[2], [1], text=EVIL)
    with open(three[1] / "trajectories.jsonl", "rb") as file:  # the failure goes on where the success had ended
        lines = file.readlines()
    record = json.loads(lines[0])
    record["steps"].append(record["steps"][0] | {"action": "more"})
    (three[1] / "trajectories.jsonl").write_bytes(json.dumps(record).encode() + b"\n" + lines[1])
    (tmp_path / "page.html").write_text(page_of(three))
    errors = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(f"file://{tmp_path / 'page.html'}")
        assert page.title() == "3 runs compared" and page.locator(".about").count() == 3
        assert page.locator("#list button").count() == 3  # the overview and two tasks
        page.keyboard.press("j")
        assert page.locator(".pair .head .chip").all_inner_texts() == ["success", "failure"]
        assert page.locator(".pair code").count() == 3 and page.locator(".pair .end").count() == 2
        assert page.locator(".parting").inner_text() == "from here on they differ"
        page.locator("select[aria-label=right]").select_option("2")
        assert page.locator(".pair .head .chip").all_inner_texts() == ["success", "success"]
        assert page.locator(".parting").inner_text() == "the same actions to the end"
        page.locator("select[aria-label=outcome]").select_option("B alone succeeds")
        assert page.locator("#list button").count() == 1
        page.locator("select[aria-label=outcome]").select_option("outcomes differ")
        page.locator("#list button").nth(1).click()
        assert page.locator("main img").count() == 0 and page.title() == "3 runs compared"  # no script of a page ran
        browser.close()
    assert not errors


def test_on_the_command_line(three, tmp_path, monkeypatch, capsys, no_curves):
    monkeypatch.chdir(tmp_path)

    def said(*words):
        monkeypatch.setattr(sys, "argv", ["runs.py", *words])
        runs.main()
        return capsys.readouterr().out

    assert len(said().splitlines()) >= 4 and not Path("runs/compare.html").exists()
    assert "runs/compare.html (" in said("runs/b", "runs/a") and Path("runs/compare.html").is_file()
    said("--page", "mine.html")
    assert len(data_of(Path("mine.html").read_text())["runs"]) == 3
    with pytest.raises(UsageError, match="cannot write to runs: Is a directory"):
        said("--page", "runs")


def test_bad_input_is_one_line(three, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty: no run in it"):
        runs.find((str(tmp_path / "empty"),))
    with pytest.raises(UsageError, match="a page compares 2 to 26 runs, and these are 1"):
        page_of(three[:1])
    done = subprocess.run([sys.executable, runs.__file__, "nowhere"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr == "error: nowhere: no such folder\n"
