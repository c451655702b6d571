"""The programs of the documents that this project was made from, taken out of them and run.

    ../shared/seeds/<name>.txt --edits--> text --cells--> pieces of Python --program--> one script --> runs

The documents are pages of web sites: prose, code and output without any mark between them. They are not part of this
repository; where they do not lie beside the checkout, the tests of them are skipped. A program runs as it is printed
but for edits: each has its reason, and one whose place is not found fails the test, so none outlives its need.
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from program_runs import Finished, LoadedInterpreter

HERE = Path(__file__).resolve().parent
DOCUMENTS = HERE.parents[1].parent / "shared" / "seeds"

Edits = Sequence[tuple[str, str, str]]  # why, what is there, what takes its place

GOES_ON = re.compile(r"(class \w+.*:\n)    \.\.\.\n")


def edited(text: str, edits: Edits) -> str:
    """The text with each edit made, wherever its place is found, and it has to be found."""
    for why, old, new in edits:
        assert old in text, f"an edit has no place: {why}: {old!r}"
        text = text.replace(old, new)
    return text


def cells_of(text: str) -> list[str]:
    """The paragraphs that are Python and do something: prose, numbers, names of pictures and output are no cells."""
    paragraphs = (paragraph.strip("\n") for paragraph in re.split(r"\n[ \t]*\n", text))
    return [paragraph for paragraph in paragraphs if paragraph.isascii() and _does_something(paragraph)]


def _does_something(paragraph: str) -> bool:
    try:
        body = ast.parse(paragraph).body
    except SyntaxError:
        return False
    return any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in body)


def program_of(cells: Sequence[str]) -> str:
    """One script. A class whose body begins with `...` goes on where an earlier cell has left it."""
    parts: list[str] = []
    for cell in cells:
        if found := GOES_ON.match(cell):
            at = next(
                i for i in reversed(range(len(parts))) if parts[i].rpartition("\nclass ")[2] and found[1] in parts[i]
            )
            parts[at] += "\n" + cell[found.end() :]
        else:
            parts.append(cell)
    return "\n\n".join(parts) + "\n"


def nested_lists(line: str) -> list[Any]:
    """The lists that stand in a line, each with all that is in it."""
    found, depth, begin = [], 0, 0
    for place, sign in enumerate(line):
        if sign == "[":
            begin, depth = (place, 1) if depth == 0 else (begin, depth + 1)
        elif sign == "]":
            depth -= 1
            if depth == 0:
                found.append(ast.literal_eval(line[begin : place + 1]))
    return found


@pytest.fixture(scope="session")
def read_document() -> Callable[[str, Edits], list[str]]:
    """The cells of a document, with edits; skips where the documents are not."""

    def read(name: str, edits: Edits) -> list[str]:
        return cells_of(edited(document(name), edits))

    return read


@pytest.fixture(scope="session")
def document_text() -> Callable[[str], str]:
    """A document as it came; skips where the documents are not."""
    return document


def document(name: str) -> str:
    path = DOCUMENTS / f"{name}.txt"
    if not path.is_file():
        pytest.skip(f"the document is not beside this checkout: {path}")
    return path.read_text()


@pytest.fixture
def run_cells(torch_loaded: LoadedInterpreter, tmp_path: Path) -> Callable[..., str]:
    """Runs cells as one script, with the shims beside it; returns what it printed. Whatever it started ends with it.

    Groups of workers that meet at the port that is printed meet by that name, in a runtime folder of this test's own.
    """

    def run(*cells: str) -> str:
        shutil.copytree(HERE / "shims", tmp_path, dirs_exist_ok=True)
        script = tmp_path / "program.py"
        script.write_text(program_of(cells))
        with tempfile.TemporaryDirectory(prefix="fw-") as runtime:
            done: Finished = torch_loaded.run(
                script, folder=tmp_path, environment={"XDG_RUNTIME_DIR": runtime}, forks=True
            )
        assert done.status == 0, done.said
        return done.out

    return run


@pytest.fixture(scope="session", name="nested_lists")
def nested_lists_fixture() -> Callable[[str], list[Any]]:
    """The lists that stand in a line of output, each with all that is in it."""
    return nested_lists


@pytest.fixture(scope="session", name="program_of")
def program_of_fixture() -> Callable[[Sequence[str]], str]:
    """One script of several cells."""
    return program_of


@pytest.fixture(scope="session")
def tools() -> tuple[Callable[..., str], Callable[..., list[str]], Callable[..., str]]:
    """What takes programs out of documents, for the tests of it."""
    return edited, cells_of, program_of
