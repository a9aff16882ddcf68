"""The page of episodes: what it chooses, that page content never becomes code, that it needs nothing else."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UsageError
from common.replay import Step, Trajectory, TrajectoryStore
from envs import Task
from tools import view

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = (
    "</script><script>document.title='pwned'</script><img src=x onerror=document.title='pwned'>"
    "<!--<script> &amp; {{data}}"
)


def png(colour=(200, 30, 30), size=(1280, 720)) -> bytes:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def episode(number: int, phase=0, verdict: float | None = 1.0, text="page", screenshot=None, **fields) -> Trajectory:
    step = Step([7777], [8888], [-0.1], 0, text, f'exit(message="{text}")', screenshot=screenshot, url=text, error=text)
    step.value, step.advantage = 0.5, float("nan")
    return Trajectory(
        Task(f"t{number}", "shop", f"buy {number} {text}", 15),
        number,
        0,
        [step],
        verdict=verdict,
        phase=phase,
        **fields,
    )


def written(tmp_path, trajectories, **options) -> str:
    TrajectoryStore(tmp_path / "trajectories.jsonl").append(trajectories)
    return view.write(tmp_path, view.Args(run=str(tmp_path), **options)).read_text()


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def test_last_successes_and_failures_of_every_phase_and_counts_of_all(tmp_path):
    run = [episode(n, phase=n // 10, verdict=float(n % 2), judged=0.9) for n in range(20)]
    run.append(episode(20, phase=1, verdict=None, reward=1.0))  # no true verdict: its reward tells
    data = data_of(written(tmp_path, run, last=2))
    assert [e["seed"] for e in data["episodes"]] == [20, 19, 18, 16, 9, 8, 7, 6]
    assert data["total"] == 21
    assert data["groups"][1] == {
        "phase": 1,
        "policy": "",
        "episodes": 11,
        "known": 10,
        "successes": 5,
        "judged": 10,
        "judged_successes": 10,
    }


def test_numbers_without_json_and_token_ids_are_left_out(tmp_path):
    page = written(tmp_path, [episode(0)])
    assert data_of(page)["episodes"][0]["steps"][0]["advantage"] is None
    assert "NaN" not in page.split('id="data"')[1] and "7777" not in page and "8888" not in page


def test_page_content_is_data(tmp_path):
    page = written(tmp_path, [episode(0, text=EVIL, answer=EVIL, policy=EVIL, final_observation=EVIL)])
    assert "pwned'</script>" not in page and "<img src=x" not in page
    assert data_of(page)["episodes"][0]["steps"][0]["observation"] == EVIL
    assert "default-src 'none'" in page and not re.search(r"(src|href)=\"?(https?:)?//", page)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_in_a_browser(tmp_path):
    store = TrajectoryStore(tmp_path / "trajectories.jsonl")
    name = store.add_image(png())
    written(tmp_path, [episode(0, text=EVIL, screenshot=name, judged=0.1), episode(1, phase=1)])
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    page = f"file://{tmp_path / 'episodes.html'}"
    dom = subprocess.run([*command, profile, page], capture_output=True, text=True, timeout=60).stdout
    assert f"<title>{tmp_path.name}</title>" in dom  # no script of a page ran
    assert dom.count("<button") == 2 + 1  # two episodes; one phase has judged ones
    body = dom.split("</head>")[1].split('id="data"')[0]
    assert "<img src=x" not in body and 'class="chip warn">judge wrong' in body
    assert "2 of 2 episodes here, 2 in the run" in body


def test_pictures_are_scaled_shared_and_bounded(tmp_path):
    store = TrajectoryStore(tmp_path / "trajectories.jsonl")
    names = [store.add_image(png((n, 9, 9))) for n in range(3)]
    run = [episode(n, screenshot=names[min(n, 2)]) for n in range(4)]
    images = view.pictures(run, tmp_path, width=320, megabytes=1)
    assert set(images) == set(names) and all(uri.startswith("data:image/webp;base64,") for uri, _ in images.values())
    few = view.pictures(run, tmp_path, width=320, megabytes=1.5 * len(images[names[2]][0]) / 1e6)
    assert set(few) == {names[2]}  # the last episodes come first
    run = [episode(0, screenshot="../secret.png"), episode(1, screenshot="screenshots/gone.png")]
    (tmp_path / "screenshots" / "torn.png").write_bytes(png()[:500])
    assert view.pictures([*run, episode(2, screenshot="screenshots/torn.png")], tmp_path, 320, 1) == {}


def test_an_empty_lower_part_is_cut_off(tmp_path):
    import base64
    import io

    from PIL import Image

    picture = Image.new("RGB", (1280, 720), "white")
    picture.paste("black", (0, 0, 1280, 400))
    picture.save(tmp_path / "a.png")
    uri, left = view.data_uri(tmp_path / "a.png", width=640)
    assert Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size == (640, 216) and left == 432 / 720


def test_touches_are_the_steps(tmp_path):
    trajectory = episode(1)
    trajectory.steps[0].touches = [[0.5, 0.7], [0.5, 0.3]]
    (shown,) = data_of(written(tmp_path, [trajectory]))["episodes"]
    assert shown["steps"][0]["touches"] == [[0.5, 0.7], [0.5, 0.3]]


def test_bad_folders_are_one_line(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match=r"no trajectories.jsonl"):
            view.write(path, view.Args(run=str(path)))
    (tmp_path / "trajectories.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds no episodes yet"):
        view.write(tmp_path, view.Args(run=str(tmp_path)))
    done = subprocess.run(
        [sys.executable, Path(view.__file__), str(tmp_path / "nowhere")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
