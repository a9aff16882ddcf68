"""Collect labelled episodes for the outcome reward model from finished runs.

    python tools/orm_data.py runs/A runs/B --out labelled.jsonl.gz
    python webrl.py --orm-data labelled.jsonl.gz

What counts is an episode on a training instruction, with the verdict of its true checker. Generated instructions never
count (their true verdict is not trained on), nor do demonstrations and evaluations. Each line of the file holds what
the model reads: instruction, actions, last page, verdict, and which policy it was of.
"""

import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import envs
from common.errors import UsageError
from common.replay import TrajectoryStore
from common.run import run_main


@dataclass
class Args:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """folders of runs"""
    out: str = "labelled.jsonl.gz"
    """file to write"""


def labelled(run_path):
    """The run's labelled episodes as records, in the order they were played.

    Raises UsageError where there is no run.
    """
    run_path = Path(run_path)
    try:
        env_id = json.loads((run_path / "args.json").read_text())["env_id"]
        trajectories = TrajectoryStore(run_path / "trajectories.jsonl")
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"no run in {run_path}: give the folder that holds args.json") from error
    training = {task.task_id: task.instruction for task in envs.make(env_id).tasks("train")}
    for t in trajectories:
        if (
            t.verdict is not None
            and t.policy not in ("oracle", "demo")
            and training.get(t.task.task_id) == t.task.instruction
        ):
            yield {
                "instruction": t.task.instruction,
                "actions": [step.action for step in t.steps],
                "page": t.final_observation,
                "verdict": int(t.verdict),
                "policy": t.policy,
            }


def main(args):
    """Write the file; what the model would read twice is kept once."""
    records = {}
    for run_path in args.runs:
        for record in labelled(run_path):
            text = (record["instruction"], *record["actions"], record["page"])
            records.setdefault(text, record)
    if not records:
        raise UsageError("these runs hold no labelled episode on a training instruction")
    lines = "".join(json.dumps(record) + "\n" for record in records.values())
    Path(args.out).write_bytes(gzip.compress(lines.encode(), mtime=0))  # the same bytes for the same runs
    won = sum(record["verdict"] for record in records.values())
    print(f"{args.out}: {len(records)} labelled episodes, {won / len(records):.0%} of them successes")


if __name__ == "__main__":
    run_main(main, tyro.cli(Args, description=__doc__))
