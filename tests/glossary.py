"""Which logged metrics the documentation explains."""

import re
from fnmatch import fnmatch
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def listed(page):
    """The names, patterns among them, in a page's table of metrics."""
    text = (DOCS / page).read_text()
    if "## Logged metrics" in text:
        text = text[text.index("## Logged metrics") : text.index("## Implementation details")]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    while any("{" in name for name in names):
        names = [part for name in names for part in spread(name)]
    return names


def spread(name):
    """`a{b,c}d` as abd and acd."""
    found = re.search(r"\{([^{}]*)\}", name)
    return [name[: found.start()] + part + name[found.end() :] for part in found[1].split(",")] if found else [name]


def check(page, rows):
    """All metrics of the rows are in docs/metrics.md or in the script's page, in one of them alone."""
    own, shared = listed(page), listed("metrics.md")
    logged = {name for row in rows for name in row}
    assert not {name for name in logged if not any(fnmatch(name, pattern) for pattern in own + shared)}
    assert not set(own) & set(shared)
    return own, logged
