"""What the pages say of the project is so: index, links, the tree of files, the version, commands."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md"))]


def links(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")]


def anchors(page):
    """The headings' anchors, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_has_every_page_once():
    index = ROOT / "docs/README.md"
    assert sorted(links(index)) == [page.name for page in DOCS if page != index]
    assert {"docs/README.md", "docs/first_hour.md"} <= set(links(ROOT / "README.md"))


def test_the_readmes_tree_is_the_tree():
    tree = re.search(r"## The tree\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    named = set(re.findall(r"\b\w+\.(?:py|js)\b", tree))
    folders = "common", "common/lm", "envs", "tools", "variants", "."
    files = {file.name for folder in folders for file in (ROOT / folder).iterdir()}
    assert named <= files, named - files
    expected = {file.name for folder in (".", "common", "common/lm", "envs") for file in (ROOT / folder).glob("*.py")}
    assert expected <= named, expected - named
    tools = re.search(r"^tools/ .*$", tree, re.MULTILINE)[0]
    assert [file.stem for file in (ROOT / "tools").glob("*.py") if not re.search(rf"\b{file.stem}\b", tools)] == []
    for folder in re.findall(r"^([\w/-]+)/ ", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_the_version_is_one():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest.split()[0] == version


@pytest.mark.parametrize("page", [ROOT / "docs/first_hour.md", ROOT / "docs/hacking.md"], ids=lambda page: page.name)
def test_commands_name_files_that_are_there(page):
    own = {"mine.py", *re.findall(r"^# (\w+\.py)$", page.read_text(), re.MULTILINE)}
    commands = re.findall(r"^(?:\.venv/bin/)?python (\S+\.py)", page.read_text(), re.MULTILINE)
    assert len(commands) > 4
    assert [name for name in commands if name not in own and not (ROOT / name).is_file()] == []
