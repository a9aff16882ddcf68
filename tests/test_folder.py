"""A run's folder that is damaged, in use, read-only or another run's; passwords in addresses; the limits of a process.

Every case works on a copy of one small run: real networks and checkpoints, nothing that plays.
"""

import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from common.errors import UsageError
from common.lm import checkpoint, net, origin, resume
from common.lm.args import RunArgs, parse_args
from common.lm.net import Net
from common.lm.run import Run, read_metrics
from tests.scripts import run_script
from tests.test_run import ROOT, python, trajectory

WEIGHTS = "critic.safetensors"


@dataclass
class Args(RunArgs):
    env_id: str = "arena-v1/shop"
    model_id: str = "assets/tiny"
    judge: str = "env"
    beta: float = 0.1


class Value(Net):
    """A small network of which the checkpoint has all weights."""

    is_value = True


def nets(width=4, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(width, 2)
    return {"critic": Value(model, None, 100).begin(0.1)}


def save(run, step):
    run.trajectories.append([trajectory(step)])
    run.log({"charts/phase": step}, step)
    run.save_checkpoint(step, *net.states_of(nets(seed=step), random.Random(step)), {"phase": step})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A stopped run with two checkpoints, and something after the last one."""
    with pytest.raises(KeyboardInterrupt), Run.create(Args(), __file__, tmp_path_factory.mktemp("made")) as run:
        for step in (1, 2):
            save(run, step)
        run.trajectories.append([trajectory(3)])
        run.log({"charts/phase": 3}, 3)
        raise KeyboardInterrupt
    return run.path


@pytest.fixture
def path(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs" / made.name))


def load(path, args=None, width=4):
    """Goes on with the run as a script does: the Run, and its critic."""
    args, found = args or Args(resume=str(path)), nets(width)
    run = Run.create(args, __file__, path.parent, path)
    net.restore(run, found, random.Random())
    return run, found["critic"].model


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def empty(file):
    file.write_bytes(b"")


def write(text):
    return lambda file: file.write_text(text)


def replace_folder(folder):
    shutil.rmtree(folder)
    folder.write_text("a file")


def clear(folder):
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES = [
    *((name, do) for name in (WEIGHTS, "tensors.pt", "state.json") for do in (cut, flip, empty, Path.unlink)),
    *(("state.json", write(text)) for text in ("null", "{}", '{"state": 1}')),
    *(("sums.json", write(text)) for text in ("", "[]")),
    ("", clear),
    ("", replace_folder),
]


@pytest.mark.parametrize("name, damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_earlier_one_is_used(path, capsys, name, damage):
    damage(path / "checkpoints/0002-2" / name)
    run, critic = load(path)
    said = capsys.readouterr().out
    assert said.startswith("checkpoint 0002-2 is damaged: ") and said.count("\n") == 1
    assert name in said and "goes on from the earlier one, 0001-1" in said
    assert run.resumed.state == {"phase": 1} and torch.equal(critic.weight, nets(seed=1)["critic"].model.weight)
    assert [t.seed for t in run.trajectories] == [1] and len(read_metrics(path)) == 1
    save(run, 2)
    save(run, 3)  # what is damaged is not among the last two
    there = sorted(p.name for p in (path / "checkpoints").iterdir())
    assert there == ["0002-2", "0003-3", "damaged-0002-2"]


def test_without_a_whole_checkpoint_there_is_one_line_and_nothing_is_touched(path):
    flip(path / "checkpoints/0001-1" / WEIGHTS)
    cut(path / "checkpoints/0002-2/tensors.pt")
    before = files_of(path)
    with pytest.raises(
        UsageError, match="no checkpoint that is whole: .*0002-2 .*tensors.pt has .* 0001-1 .*other byt"
    ):
        load(path)
    assert files_of(path) == before


def test_what_is_no_checkpoint_is_left_alone(path):
    for name in ("0003-backup", "5 old", "notes.txt"):
        (path / "checkpoints" / name).mkdir()
    run, _ = load(path)
    assert run.resumed.path.name == "0002-2" and checkpoint.latest(path).path.name == "0002-2"


def test_a_checkpoint_of_before_there_were_sums_is_read(path):
    (path / "checkpoints/0002-2/sums.json").unlink()
    assert load(path)[0].resumed.path.name == "0002-2"
    cut(path / "checkpoints/0002-2" / WEIGHTS)  # nobody knows: what cannot be loaded is one line
    with pytest.raises(UsageError, match="checkpoint 0002-2 cannot be loaded"):
        load(path)


@pytest.mark.parametrize("damage, says", [
    (cut, "trajectories.jsonl has "),
    (Path.unlink, "trajectories.jsonl has 0 of "),
    (lambda file: file.write_bytes(file.read_bytes()[: 3 * file.stat().st_size // 4 - 9] + bytes(10**4)),
        "1 lines of trajectories.jsonl cannot be read"),
])  # fmt: skip
def test_trajectories_that_are_lost_are_said(path, capsys, damage, says):
    sizes = [one.meta["trajectories_size"] for one in checkpoint.every(path)]
    os.truncate(path / "trajectories.jsonl", sizes[1])
    damage(path / "trajectories.jsonl")
    if damage is Path.unlink:
        with pytest.raises(UsageError, match=says):
            load(path)
        return
    run, _ = load(path)
    assert says in capsys.readouterr().out and run.resumed.path.name == "0001-1"
    assert [t.seed for t in run.trajectories] == [1]


def test_metrics_that_are_lost_are_said(path, capsys):
    cut(path / "metrics.jsonl")
    load(path)
    assert "warning: " in (said := capsys.readouterr().out) and "metrics.jsonl has " in said


def files_of(path):
    return {p.name: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != resume.LOCK}


# -- flags


def resumed(path, *flags):
    return parse_args(Args, ["--resume", str(path), "--runs-dir", str(path.parent), *flags])


@pytest.mark.parametrize("flag, value", [
    ("--lora-rank", "8"), ("--model-id", "assets/orm"), ("--env-id", "arena-v1/map"), ("--seed", "3"),
])  # fmt: skip
def test_flags_that_a_run_was_begun_with_stay(path, flag, value):
    with pytest.raises(UsageError, match=f"was begun with {flag} .*, not {value}$"):
        resumed(path, flag, value)
    assert resumed(path, "--env-id", "arena/shop").env_id == "arena-v1/shop"  # the version of then


def test_what_does_not_fit_is_named_and_nothing_is_rewritten(path):
    before = files_of(path)
    with pytest.raises(UsageError, match="0002-2 cannot be loaded with these flags, --beta was 0.1: The size"):
        load(path, replace(Args(), beta=0.5, resume=str(path)), width=5)
    assert files_of(path) == before
    run, _ = load(path, replace(Args(), beta=0.5, resume=str(path)))
    assert json.loads((path / "args.json").read_text())["beta"] == 0.5
    assert origin.read(path)[-1]["changed"] == {"beta": [0.1, 0.5]} and origin.read(path)[-1]["step"] == 2
    assert len(origin.read(path)) == 2 and run.resumed


def test_auto_takes_the_newest_unfinished_run_with_its_own_flags(path, made, capsys):
    runs = path.parent
    (path / "args.json").write_text(json.dumps(json.loads((path / "args.json").read_text()) | {"beta": 0.7}))

    def auto(*flags):
        args = parse_args(Args, ["--resume", "auto", "--runs-dir", str(runs), *flags])
        return args, capsys.readouterr().out

    def another(name, age, **flags):
        other = runs / name
        shutil.copytree(made, other)
        saved = json.loads((other / "args.json").read_text()) | flags
        (other / "args.json").write_text(json.dumps(saved))
        for file in (other / "args.json", *other.glob("checkpoints/*")):
            os.utime(file, (age, age))
        return other

    args, said = auto()
    assert (args.resume, args.beta) == (str(path), 0.7) and said == f"--resume auto: goes on with {path}\n"
    assert auto("--beta", "0.2")[0].beta == 0.2
    future = 2e9
    origin.end(another("finished", future), "finished")
    another("seed", future, seed=2)
    another("named", future, exp_name="mine")
    another("map", future, env_id="arena-v1/map")
    foreign = another("foreign", future)
    (foreign / Path(__file__).name).rename(foreign / "other.py")
    without = another("without", future)
    shutil.rmtree(without / "checkpoints")
    args, said = auto("--env-id", "arena/shop")
    assert args.resume == str(path) and args.env_id == "arena-v1/shop"
    assert said == (
        f"--resume auto: {without} has no checkpoint, it is left as it is\n--resume auto: goes on with {path}\n"
    )
    args, said = auto("--seed", "9")
    assert args.resume == "" and args.beta == 0.1 and "a new run begins" in said
    with pytest.raises(UsageError, match="it is a run of other.py, not of test_folder.py"):
        Run.create(Args(), __file__, runs, foreign)


# -- one process, its rights and its limits

HOLDER = """
import sys
from pathlib import Path
from common.lm import resume
lock = resume.lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid} on .* is at work on this run"):
            Run.create(Args(), __file__, path.parent, path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    run, _ = load(path)
    with pytest.raises(UsageError, match=f"process {os.getpid()} on"):
        Run(path, Args())
    with run:
        pass
    Run(path, Args())


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77
shift
"$@"
"""
RESUMES = """
import sys
from pathlib import Path
from common.lm.run import Run, run_main
from tests.test_run import Args
run_main(Run.create, Args(), "test_folder.py", "", Path(sys.argv[1]))
"""


def test_a_read_only_disk_is_one_line(path):
    if not shutil.which("unshare"):
        pytest.skip("needs unshare")
    command = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(path), sys.executable, "-c", RESUMES, str(path)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("may not mount here")
    assert done.stderr == f"error: cannot write to {path}/.lock: Read-only file system\n" and done.returncode == 2


@pytest.mark.parametrize("body, says", [
    ("raise PermissionError(1, 'Operation not permitted', 'x')", "stopped: cannot write to x: Operation not permitted"),
    ("raise OSError(30, 'Read-only file system', 'x')", "stopped: cannot write to x: Read-only file system"),
    ("raise OSError(24, 'Too many open files')", "stopped: too many files are open at once: ulimit -n"),
])  # fmt: skip
def test_what_the_system_refuses_in_mid_run_is_one_line(body, says):
    done = python(f"from common.lm.run import run_main\ndef main(): {body}\nrun_main(main)")
    assert done.returncode == 1 and done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("soft, hard, says", [
    (64, 64, "error: only 64 files may be open at once here (ulimit -n), too few for a browser: 4096 do\n"),
    (64, 512, ""),
])  # fmt: skip
def test_open_files_are_as_many_as_the_system_allows(soft, hard, says):
    code = f"""
import resource
from common.lm.run import run_main
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
run_main(lambda: print(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
"""
    done = python(code)
    assert done.stderr == says and (done.returncode, done.stdout) == ((2, "") if says else (0, "512\n"))


@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "raise ImportError('broken') from KeyboardInterrupt()"])
def test_ctrl_c_during_imports_is_one_line(how):
    done = python(f"import common.interrupt\n{how}")
    assert done.returncode and done.stderr == "stopped by the user\n"
    assert "ZeroDivisionError" in python("import common.interrupt\n1 / 0").stderr


@pytest.mark.parametrize("script", ["webrl.py", "crps.py", "grpo_async.py", "distrl.py", "digirl.py"])
def test_scripts_are_ready_for_ctrl_c_before_they_import(script):
    tree = ast.parse((ROOT / script).read_text())
    assert ast.unparse(tree.body[1]) == "import common.interrupt"  # behind the docstring


# -- what is secret

SECRET = "http://me:pass-w0rd@h.example:8000/v1?model=x&api_key=t0ken-7"
SHOWN = "http://***@h.example:8000/v1?model=x&api_key=***"


@pytest.mark.parametrize("text, shown", [
    (SECRET, SHOWN),
    (f"--judge {SECRET}: no, https://h/?q=a@b", f"--judge {SHOWN} no, https://h/?q=a@b"),
    ("https://h/a?keyword=lamp&page=2#x@y", "https://h/a?keyword=lamp&page=2#x@y"),
    ("https://tok@h/?access_token=1&X-Amz-Signature=ab&sig=2", "https://***@h/?access_token=***&X-Amz-Signature=***&sig=***"),
    ("mail me@h.example, a://b", "mail me@h.example, a://b"),
])  # fmt: skip
def test_passwords_and_keys_in_addresses_are_stars(text, shown):
    assert origin.without_secrets(text) == shown


def test_no_file_and_no_line_of_a_run_has_a_password(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(sys, "argv", ["webrl.py", "--judge", SECRET])
    with pytest.raises(UsageError), Run.create(Args(judge=SECRET, track=True), __file__, tmp_path) as run:
        run.say(f"asking {SECRET}")
        save(run, 1)
        raise UsageError(f"--judge {SECRET}: no answer")
    import wandb

    wandb.teardown()
    written = [p for p in run.path.rglob("*") if p.is_file() and p.name != Path(__file__).name]
    assert any(p.suffix == ".wandb" for p in written)
    for file in written:
        assert b"pass-w0rd" not in file.read_bytes() and b"t0ken-7" not in file.read_bytes(), file
    assert capsys.readouterr().out == f"asking {SHOWN}\n"
    assert SHOWN in (run.path / "args.json").read_text() and SHOWN in origin.read(run.path)[0]["reason"]
    with pytest.raises(UsageError, match="--judge .* was kept without what is secret: give it again"):
        resumed(run.path)
    args = resumed(run.path, "--judge", SECRET)
    assert args.judge == SECRET and resume.changed(run.path, args) == {}


def test_wandb_that_is_killed_is_said_once(tmp_path, monkeypatch):
    code = f"""
import sys, psutil
from tests.test_folder import Args
from common.lm.run import Run, read_metrics
with Run.create(Args(track=True), "x.py", {str(tmp_path)!r}) as run:
    run.log({{"a": 1}}, 1)
    for process in psutil.Process().children(recursive=True):
        process.kill()
        process.wait()
    for step in range(2, 6):
        run.log({{"a": step}}, step)
print(len(read_metrics(run.path)))
"""
    done = run_script(["-c", code], os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    warning, rows = done.stdout.splitlines()
    assert warning.startswith("warning: --track: wandb's process is gone") and rows == "5"
    assert done.returncode == 0 and done.stderr == ""
