"""`accelerate launch webrl.py` on two processes gives the losses of one process with the whole batch."""

import json
import math
import subprocess
import sys

from common import checkpoint
from common.replay import TrajectoryStore
from tests.test_demo import ROOT, SMALL

FLAGS = [*SMALL, "--cpu-threads", "1", "--orm-refresh", "3", "--num-phases", "1"]
LAUNCH = "-m accelerate.commands.launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no".split()


def play_run(folder, *launch):
    command = [sys.executable, *launch, "webrl.py", *FLAGS, "--runs-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = folder.iterdir()
    return run, done.stdout


def test_two_processes_give_the_losses_of_one(tmp_path):
    (one, _), (two, out) = play_run(tmp_path / "one"), play_run(tmp_path / "two", *LAUNCH)
    assert out.count("run folder") == out.count("Paired difference") == 1  # the second process is silent
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, two)]
    assert len(rows[0]) == len(rows[1])
    compared = 0
    for a, b in zip(*rows, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if not name.startswith("time/") and not (isinstance(a[name], float) and math.isnan(a[name])):
                assert math.isclose(a[name], b[name], rel_tol=2e-3, abs_tol=1e-5), (name, a[name], b[name])
                compared += name.startswith("losses/")
    assert compared >= 8
    stored = [list(TrajectoryStore(run / "trajectories.jsonl")) for run in (one, two)]
    assert [(t.policy, t.task.task_id) for t in stored[0]] == [(t.policy, t.task.task_id) for t in stored[1]]
    weights = [checkpoint.latest(run).weights("actor") for run in (one, two)]
    for name, value in weights[0].items():
        assert (value - weights[1][name]).abs().max() < 1e-3, name
