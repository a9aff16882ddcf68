"""What `env.vary` makes of training instructions of the arena: how often it leaves their family, makes them easier or
means no task. A minute.

    python benchmarks/once/vary.py
"""

import random
import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import envs

PARENTS, HARD = 2000, 7  # drawn of each kind; steps that the oracle needs
COLUMNS = "proposals a parent", "of another family", "easier", "requirements", "cannot be done"


def row(env, parents, rng):
    """Table cells of the proposals for these tasks. Requirements: of the parents, and of what can be done."""
    family = {template.name: template.family for site in env.templates.values() for template in site}
    pairs = [(parent, env.task_from_text(text, parent)) for parent in parents for text in env.vary(parent, rng)]
    known = [(parent, task) for parent, task in pairs if task is not None]
    left = fmean(family[task.template] != family[parent.template] for parent, task in known)
    easier = fmean(task.requirements < parent.requirements for parent, task in known)
    before, after = fmean(parent.requirements for parent in parents), fmean(task.requirements for _, task in known)
    impossible = 1 - len(known) / len(pairs)
    return f"{len(pairs) / len(parents):.2f} | {left:.3f} | {easier:.3f} | {before:.2f}, {after:.2f} | {impossible:.3f}"


def main():
    print(f"| parents | {' | '.join(COLUMNS)} |\n|{'---|' * (1 + len(COLUMNS))}")
    for env_id in ("arena-v1", "arena-v2"):
        env = envs.make(env_id)
        for name, steps in ((env_id, 0), (f"{env_id}, {HARD} steps or more", HARD)):
            rng = random.Random(0)
            parents = rng.choices([task for task in env.tasks("train") if task.steps >= steps], k=PARENTS)
            print(f"| {name} | {row(env, parents, rng)} |", flush=True)


if __name__ == "__main__":
    main()
