"""The pages of the book and of the tutorial have every name that the sources define.

Where the lines are to which the pages lead is seen by tests/docs/test_links.py, and what the examples print by
tests/examples.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Read = Callable[..., list[str]]


def defined(cells: list[str]) -> set[str]:
    """The classes, functions and methods of cells, and what is assigned outside of them."""
    return {name for cell in cells for name in _names(ast.parse(cell).body) if name != "__init__"}


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from _names([each for each in node.body if isinstance(each, ast.FunctionDef)])
        elif isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.fixture(scope="module")
def page(repository: Path) -> Callable[[str], str]:
    return lambda name: (repository / "docs" / "book" / f"{name}.md").read_text()


def test_what_cells_define_is_found() -> None:
    cells = [
        "import x\ny = 1\nclass A:\n    z = 2\n    def __init__(self): self.b = 3\n    def c(self): d = 4\n",
        "y()",
    ]
    assert defined(cells) == {"y", "A", "c"}


def test_the_page_of_19_3_has_every_name_of_the_section(read_document: Read, page: Callable[[str], str]) -> None:
    layout = [
        ("an empty line that the site has put into a function", "as d2l\n\n  model", "as d2l\n  model"),
        ("what a notebook shows", "Text(0, 0.5, 'objective function')", ""),
    ]
    names = defined(read_document("d2l-19.3-edition-b", layout))
    assert {"hpo_objective_lenet_synetune", "config_space", "trial_backend"} < names
    assert sorted(name for name in names if name not in page("19.3")) == []


@pytest.mark.parametrize(
    ("part", "one_of_them"), [("rpc-1", "finish_episode"), ("rpc-2", "EmbeddingTable")], ids=["part 1", "part 2"]
)
def test_the_pages_of_the_tutorial_have_every_name_of_its_programs(
    part: str, one_of_them: str, read_document: Read, page: Callable[[str], str]
) -> None:
    cells = read_document(
        "pytorch-rpc-tutorial",
        [
            ("spaces that the site has lost", '  r"""\n', '    r"""\n'),
            ("a parenthesis is missing", "input.cuda()).cpu()\n", "input.cuda()).cpu())\n"),
        ],
    )
    names = defined(cells[:7] if part == "rpc-1" else cells[7:])
    assert one_of_them in names
    assert sorted(name for name in names if name not in page(part)) == []
