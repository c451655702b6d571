"""Every example is short, says what it takes, and is run by a test."""

import ast
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_LINES = 80


def test_every_example_is_run_by_a_test(shrunk: set[str]) -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == shrunk


def test_the_list_of_examples_has_all(repository: Path) -> None:
    linked = re.findall(r"\[([^]\n]*)\]\(\.\./examples/([\w.]+)\)", (repository / "docs" / "examples.md").read_text())
    assert {file for _, file in linked} == {path.name for path in EXAMPLES.glob("*.py")}
    assert [name for name, file in linked if name != file] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_has_no_command_line(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < MAX_LINES
    assert not re.search(r"argparse|sys\.argv|typer", text)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_first_how_long_it_takes_with_its_own_constants(path: Path) -> None:
    tree = ast.parse(path.read_text())
    first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
    said = re.match(r"Takes about (\d+) (seconds|minutes?): ", first_line)
    assert said, first_line
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    constants = {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in assigned}
    if "SECONDS" in constants:
        searches = 2 * constants.get("REPETITIONS", 1)  # both examples compare two kinds of search
        assert int(said[1]) == round(searches * constants["SECONDS"] / 60)
