"""Tables that benchmarks write into the documentation."""

from pathlib import Path

from common.errors import UsageError


def write_docs(page: Path, name: str, text: str) -> None:
    """Put `text` between the page's marks `<!-- name -->` and the next `<!-- end -->`.

    Raises UsageError where the page has no such marks.
    """
    begin, end = f"<!-- {name} -->\n", "\n<!-- end -->"
    head, mark, rest = page.read_text().partition(begin)
    if not mark or "<!-- end -->" not in rest:
        raise UsageError(f"{page} has no part {begin.strip()} ... <!-- end -->")
    page.write_text(f"{head}{begin}{text}{end}{rest[rest.index(end.strip()) + len(end.strip()) :]}")
