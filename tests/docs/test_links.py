"""Every link of the README and the docs leads to something: a file, a heading of it, or the line that is meant.

A link to a line has as its text what stands in that line, as [`def allreduce(`](file.py#L40): when the file changes,
the test fails and names the line where that text is now. Links to other sites are not
followed.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCED = re.compile(r"^([ ]*)```.*?^\1```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:`[^`\n]*`|[^]`])*)\]\(([^)\s]+)\)")


def anchors_of(text: str) -> set[str]:
    """The anchors of all headings, as GitHub makes them of their words."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def wrong_links(page: Path, text: str) -> Iterator[str]:
    for label, target in LINK.findall(FENCED.sub("", text)):
        path, _, place = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if path and not file.exists():
            yield f"{target}: there is no such file"
        elif line := re.fullmatch(r"L(\d+)", place):
            yield from _wrong_line(label.strip("`"), int(line[1]), file, target)
        elif place and place not in anchors_of(file.read_text() if path else text):
            yield f"{target}: there is no such heading"


def _wrong_line(label: str, number: int, file: Path, target: str) -> Iterator[str]:
    lines = file.read_text().splitlines()
    places = [at for at, line in enumerate(lines, 1) if label in line]
    if number not in places:
        yield f"{target}: `{label}` stands in {', '.join(f'line {at}' for at in places) or 'no line'}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_what_it_says(page: Path) -> None:
    assert list(wrong_links(page, page.read_text())) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](b.py)", []),
        ("[a](https://b.org/c.py#d) [b](mailto:c)", []),
        ("[`x = [1]`](b.py#L1) and [`y()`](b.py#L2)", []),
        ("# A `b`, c\n## More\n[a](#a-b-c) [b](#more) [c](other.md#one)", []),
        ("```text\n[a](missing.py)\n```\n", []),
        ("[a](missing.py)", ["missing.py: there is no such file"]),
        ("# A\n```python\n# B\n```\n[a](#b)", ["#b: there is no such heading"]),
        ("[a](other.md#two)", ["other.md#two: there is no such heading"]),
        ("[`y()`](b.py#L1)", ["b.py#L1: `y()` stands in line 2"]),
        ("[`z`](b.py#L9)", ["b.py#L9: `z` stands in no line"]),
        ("[\nlong\ntext](missing.py)", ["missing.py: there is no such file"]),
    ],
)
def test_a_wrong_link_is_seen(text: str, wrong: list[str], tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("x = [1]\ny()\n")
    (tmp_path / "other.md").write_text("# One\n")
    assert list(wrong_links(tmp_path / "page.md", text)) == wrong
