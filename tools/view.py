"""Episodes of a run as one HTML file that needs nothing else: screenshots, page text, actions, values, verdicts.

    python tools/view.py runs/RUN                  # writes runs/RUN/episodes.html
    python tools/view.py runs/RUN --last 20 --out /tmp/episodes.html

Of every phase and policy it takes the last N successes and the last N failures.
"""

import base64
import hashlib
import html
import io
import json
import math
import sys
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent))

from common.errors import UsageError
from common.lm.run import run_main
from common.replay import Trajectory, TrajectoryStore


@dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """the run's folder"""
    out: str = ""
    """the file to write; empty: episodes.html in the run's folder"""
    last: int = 6
    """successes, and failures, taken from the end of every phase"""
    image_width: int = 900
    """screenshots are scaled down to this many pixels"""
    image_megabytes: float = 24.0
    """all screenshots together; past it, those of the earliest episodes are left out"""
    judge_threshold: float = 0.5
    """the judge's score from which it says success"""


def finite(value: float | None) -> float | None:
    """None where JSON has no number for it."""
    return None if value is None or not math.isfinite(value) else float(value)


def succeeded(trajectory: Trajectory) -> bool:
    """By the true verdict; by the reward where the environment has none."""
    return (trajectory.reward if trajectory.verdict is None else trajectory.verdict) >= 0.5


def choose(store: TrajectoryStore, last: int, threshold: float) -> tuple[list[Trajectory], list[dict]]:
    """Reads the store once: the episodes to show in the run's order, and counts of each phase and policy over all."""
    kept = defaultdict(lambda: deque(maxlen=last))
    groups = defaultdict(lambda: dict(episodes=0, known=0, successes=0, judged=0, judged_successes=0))
    for number, trajectory in enumerate(store):
        kept[trajectory.phase, trajectory.policy, succeeded(trajectory)].append((number, trajectory))
        count = groups[trajectory.phase, trajectory.policy]
        count["episodes"] += 1
        if trajectory.verdict is not None:
            count["known"] += 1
            count["successes"] += trajectory.verdict >= 0.5
        if trajectory.judged is not None:
            count["judged"] += 1
            count["judged_successes"] += trajectory.judged >= threshold
    chosen = sorted(chain.from_iterable(kept.values()), key=lambda pair: pair[0])
    counts = [dict(phase=phase, policy=policy, **count) for (phase, policy), count in sorted(groups.items())]
    return [trajectory for _, trajectory in chosen], counts


def data_uri(file: Path, width: int) -> tuple[str, float] | None:
    """(The picture, without an empty lower part and scaled down, as a data URI; the share of its height that is left).
    None where the file is no picture."""
    from PIL import Image, ImageChops, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            image = image.convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    corner = image.getpixel((image.width - 1, image.height - 1))
    drawn = ImageChops.difference(image, Image.new("RGB", image.size, corner)).getbbox()
    height = image.height
    if drawn:
        image = image.crop((0, 0, image.width, min(height, max(drawn[3] + 32, height * 2 // 5))))
    left = image.height / height
    if image.width > width:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(out.getvalue()).decode(), left


def pictures(episodes: list[Trajectory], folder: Path, width: int, megabytes: float) -> dict[str, tuple[str, float]]:
    """`data_uri` by file name, each picture once; the last episodes first, until they would be too large together."""
    images, size = {}, 0
    for trajectory in reversed(episodes):
        for name in {step.screenshot: None for step in trajectory.steps if step.screenshot}:
            if name in images or ".." in Path(name).parts or Path(name).is_absolute():
                continue
            picture = data_uri(folder / name, width)
            if picture is None:
                continue
            size += len(picture[0])
            if size > megabytes * 1e6:
                return images
            images[name] = picture
    return images


def episode_data(trajectory: Trajectory) -> dict:
    """What the page shows of a trajectory: no token ids."""
    task = trajectory.task
    return dict(
        task_id=task.task_id,
        site=task.site,
        instruction=task.instruction,
        split=task.split,
        template=task.template,
        seed=trajectory.seed,
        phase=trajectory.phase,
        policy=trajectory.policy,
        ending=trajectory.ending,
        answer=trajectory.answer,
        verdict=finite(trajectory.verdict),
        judged=finite(trajectory.judged),
        score=finite(trajectory.score),
        prefix=trajectory.prefix,
        reward=finite(trajectory.reward) or 0.0,
        final_observation=trajectory.final_observation,
        steps=[
            dict(
                observation=step.observation,
                action=step.action,
                error=step.error,
                url=step.url,
                screenshot=step.screenshot,
                touches=step.touches,
                value=finite(step.value),
                advantage=finite(step.advantage),
            )
            for step in trajectory.steps
        ],
    )


def in_script(value) -> str:
    """JSON that may stand inside a <script> element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII, so no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def fill(template: str, script: str, title: str, data: dict) -> str:
    """The whole HTML file: a template and a script of this folder with the data in it."""
    script = "\n".join((ROOT / name).read_text() for name in ("episode.js", script))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "{{title}}": html.escape(title),
        "{{script_hash}}": f"sha256-{digest}",
        "{{style}}": (ROOT / "view.css").read_text(),
        "{{data}}": in_script(data),
        "{{script}}": script,
    }
    out, rest = [], (ROOT / template).read_text()
    for mark in sorted(parts, key=rest.index):  # in one pass, so that a mark inside the data stays what it is
        before, rest = rest.split(mark, 1)
        out += [before, parts[mark]]
    return "".join([*out, rest])


def write(run_path: str | Path, args: Args) -> Path:
    """Writes the page of a run; gives its path. Raises UsageError where there are no episodes."""
    folder = Path(run_path)
    store = TrajectoryStore(folder / "trajectories.jsonl") if folder.is_dir() else None
    if store is None or not store.path.exists():
        raise UsageError(f"{run_path} is no run: it has no trajectories.jsonl")
    episodes, groups = choose(store, args.last, args.judge_threshold)
    if not episodes:
        raise UsageError(f"{store.path} holds no episodes yet")
    images = pictures(episodes, folder, args.image_width, args.image_megabytes)
    settings = json.loads((folder / "args.json").read_text()) if (folder / "args.json").exists() else {}
    shown = {"env_id": "", "model_id": "", "seed": "seed ", "beta": "β ", "learning_rate": "learning rate "}
    facts = " · ".join(f"{label}{settings[key]}" for key, label in shown.items() if key in settings)
    out = Path(args.out) if args.out else folder / "episodes.html"
    data = dict(
        name=folder.resolve().name,
        facts=facts,
        threshold=args.judge_threshold,
        total=sum(group["episodes"] for group in groups),
        groups=groups,
        images=images,
        episodes=[episode_data(trajectory) for trajectory in reversed(episodes)],
    )
    out.write_text(fill("view.html", "view.js", data["name"], data))
    return out


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    out = write(args.run, args)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_main(main)
