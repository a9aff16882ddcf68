"""What a run's folder says of where it comes from and how it ended, and what git has to do with it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest

from common.errors import TooManyFaults, UsageError
from common.lm import origin
from common.lm.run import Run
from tests.test_run import Args, trajectory


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *names, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with one file, where the code is said to be."""
    if not shutil.which("git"):
        pytest.skip("no git")
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-b", "trunk")
    (folder / "code.py").write_text("old = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    monkeypatch.setattr(origin, "ROOT", folder)
    return folder


def test_a_run_says_where_it_comes_from(project, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["webrl.py", "--exp-name", "two words"])
    monkeypatch.chdir(tmp_path)
    run = Run.create(Args(), __file__, tmp_path / "runs")
    (record,) = json.loads((run.path / "origin.json").read_text())
    assert record["command"] == "python webrl.py --exp-name 'two words'" and record["folder"] == str(tmp_path)
    assert record["commit"] == git(project, "rev-parse", "HEAD").strip() and record["branch"] == "trunk"
    assert record["untracked"] == [] and "uncommitted" not in record
    assert not list(run.path.glob("*.diff"))
    assert set(record["versions"]) >= {"torch", "transformers", "peft", "playwright"} and record["python"]
    assert record["machine"]["cpus"] == os.cpu_count() and record["machine"]["host"] and record["started"]


def test_uncommitted_changes_are_kept_and_new_files_named(project, tmp_path, monkeypatch):
    monkeypatch.setattr(origin, "LARGEST_DIFF", 400)
    monkeypatch.setattr(origin, "MOST_NAMES", 2)
    (project / "code.py").write_text("new = 2\n")
    for name in "abc":
        (project / name).write_text("secret")
    (record,) = origin.read(Run.create(Args(), __file__, tmp_path / "one").path)
    (diff,) = (tmp_path / "one").glob("*/" + record["uncommitted"])
    assert "-old = 1\n+new = 2\n" in diff.read_text() and "secret" not in diff.read_text()
    assert record["untracked"] == ["a", "b", "and 1 more"]
    (project / "code.py").write_text("new = 2\n" * 100)
    path = Run.create(Args(), __file__, tmp_path / "two").path
    text = (path / "uncommitted.diff").read_bytes()
    assert text[:400].count(b"+new") > 1 and text[400:].startswith(b"\n... cut: ") and len(text) < 450


def test_without_git_or_a_repository_there_is_no_commit(project, tmp_path, monkeypatch):
    (project / "vendored").mkdir()
    (project / "vendored/file").write_text("nobody's")  # inside another project's repository
    assert origin.code(project)["commit"]
    for folder in (project / "vendored", tmp_path, tmp_path / "nowhere"):
        assert origin.code(folder) == {"commit": None}
    git(tmp_path, "init", "empty")
    assert origin.code(tmp_path / "empty") == {"commit": None}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert origin.code(project) == {"commit": None}


def test_a_resumed_run_keeps_the_records_of_before(project, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["webrl.py"])
    with Run.create(Args(), __file__, tmp_path / "runs") as run:
        run.save_checkpoint(1, {}, {}, {})
    (project / "code.py").write_text("new = 2\n")
    for flag in ("--a", "--b"):
        monkeypatch.setattr(sys, "argv", ["webrl.py", flag])
        Run.create(Args(), __file__, tmp_path / "runs", run.path).begin()
    records = origin.read(run.path)
    assert [record["command"] for record in records] == ["python webrl.py" + flag for flag in ("", " --a", " --b")]
    assert [record.get("uncommitted") for record in records] == [None, "uncommitted-2.diff", "uncommitted-3.diff"]
    assert [record["state"] for record in records] == ["finished", "running", "running"]


@pytest.mark.parametrize("error, state, reason", [
    (None, "finished", None),
    (KeyboardInterrupt(), "stopped", "stopped by the user"),
    (TooManyFaults("the shop\nrefuses"), "stopped", "stopped: the shop refuses"),
    (ExceptionGroup("tasks", [TooManyFaults("no shop")]), "stopped", "stopped: no shop"),
    (UsageError("no file"), "failed", "error: no file"),
    (ValueError("7"), "failed", "ValueError: 7"),
    (asyncio.CancelledError(), "failed", "CancelledError: "),
])  # fmt: skip
def test_how_a_run_ended(tmp_path, error, state, reason):
    try:
        with Run.create(Args(), __file__, tmp_path) as run:
            run.trajectories.append([trajectory(0)])
            assert origin.state(origin.read(run.path)[0]) == "running"
            if error:
                raise error
    except BaseException as raised:
        assert raised is error
    (record,) = origin.read(run.path)
    assert (record["state"], record.get("reason")) == (state, reason and reason.strip()) and record["ended"]


def test_a_killed_run_is_stopped_and_not_taken_for_another_process(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from common.lm import origin
origin.begin(Path({str(tmp_path)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=origin.ROOT, timeout=60)
    (record,) = origin.read(tmp_path)
    assert record["state"] == "running" and origin.state(record) == "stopped"
    reused = record | {"pid": os.getpid()}
    assert origin.state(reused) == "stopped"
    elsewhere = record | {"machine": {"host": "another"}}
    assert origin.state(elsewhere) == "running" and origin.state({}) == ""


def test_a_full_disk_or_a_torn_file_ends_nothing(tmp_path, monkeypatch):
    assert origin.read(tmp_path) == []
    origin.end(tmp_path, "finished")
    assert not list(tmp_path.iterdir())  # a run of before
    origin.begin(tmp_path)
    before = (tmp_path / "origin.json").read_text()

    def full(path, text):
        path.write_bytes(b"[")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    origin.end(tmp_path, "finished")
    monkeypatch.undo()
    assert (tmp_path / "origin.json").read_text() == before and not list(tmp_path.glob(".*"))
    for torn in (before[:40], "3", "[3]"):
        (tmp_path / "origin.json").write_text(torn)
        assert origin.read(tmp_path) == []


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    path = Run.create(Args(), __file__, tmp_path).path
    before = (path / "origin.json").read_text()
    monkeypatch.setenv("RANK", "1")
    with Run(path, Args()):
        pass
    assert (path / "origin.json").read_text() == before
