"""Every python block of the README and the docs runs as it stands, alone, in a fresh interpreter and an empty folder.

A fragment that cannot run is no python block: it is marked `text`. There is no mark to leave a block out.
Design notes are not run.
"""

import re
from pathlib import Path

import pytest

from fanwise.testing.programs import run_program

ROOT = Path(__file__).resolve().parents[2]

# The opening fence with what follows it, the text, and a closing fence that is as far to the right.
BLOCK = re.compile(r"^([ ]*)```([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Of each fenced block its line, what stands behind the fence, and its text without common indentation."""
    found = []
    for match in BLOCK.finditer(text):
        indent = len(match[1])
        code = "\n".join(line[indent:] for line in match[3].split("\n"))
        found.append((text.count("\n", 0, match.start()) + 1, match[2].strip(), code))
    return found


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.is_file() and (ROOT / "docs" / "design") not in page.parents]


def labelled(language: str) -> list[tuple[str, str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{line}", label, code)
        for page in pages()
        for line, label, code in blocks(page.read_text())
        if label.lower().startswith(language)
    ]


def run_alone(code: str, folder: Path) -> tuple[int, str]:
    """Exit status and output of a script with this text. Whatever it started ends with it."""
    script = folder / "block.py"
    script.write_text(code)
    done = run_program(["-W", "error", script.name], folder=folder)
    return done.status, done.said


@pytest.mark.parametrize(("place", "code"), [(place, code) for place, _, code in labelled("python")])
def test_the_block_runs_as_it_stands(place: str, code: str, tmp_path: Path) -> None:
    status, output = run_alone(code, tmp_path)
    assert status == 0, f"the block at {place} failed:\n{output}"


def test_no_python_block_is_left_out() -> None:
    odd = [f"{place}: {label}" for place, label, _ in labelled("py") if label != "python"]
    assert odd == [], "a block is either exactly `python`, and runs, or it is `text`"


def test_there_is_a_readme() -> None:
    assert (ROOT / "README.md").is_file()


def test_blocks_are_found_with_their_lines() -> None:
    page = "# A\n```python\nx = 1\n\ny = 2\n```\n- item\n  ```python no-run\n  z = 3\n  ```\n```text\nno\n```\n"
    assert blocks(page) == [
        (2, "python", "x = 1\n\ny = 2\n"),
        (8, "python no-run", "z = 3\n"),
        (11, "text", "no\n"),
    ]


def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    status, output = run_alone("x = 1\nassert x == 2, 'no'\n", tmp_path)
    assert status == 1
    assert "AssertionError: no" in output


def test_a_block_finds_its_experiments_in_its_own_folder(tmp_path: Path) -> None:
    status, output = run_alone("import os\nprint(os.environ['FANWISE_HOME'], os.getcwd())", tmp_path)
    assert (status, output.split()) == (0, [f"{tmp_path}/home", str(tmp_path)])
