"""Programs are found in pages without marks, changed only where somebody says why, and put together."""

from collections.abc import Callable
from typing import Any

import pytest

Tools = tuple[Callable[..., str], Callable[..., list[str]], Callable[..., str]]

PAGE = """\
Some prose, with a name = or two.

x = 1
def f():
    return x

tensor([1., 2.])

28

aOs-AAM.svg

print(f())

\u8bad\u7ec3 = 1

class A:
    def f(self): return 1

def g(): return A().f() + A().h()

class A:
    ...
    def h(self): return 2
"""


def test_cells_are_the_paragraphs_that_do_something(tools: Tools) -> None:
    _, cells_of, _ = tools
    firsts = [cell.partition("\n")[0] for cell in cells_of(PAGE)]
    assert firsts == [
        "x = 1",
        "tensor([1., 2.])",
        "print(f())",
        "class A:",
        "def g(): return A().f() + A().h()",
        "class A:",
    ]


def test_a_class_goes_on_where_it_was_left(tools: Tools) -> None:
    _, cells_of, program_of = tools
    assert program_of(cells_of(PAGE)[3:]) == (
        "class A:\n    def f(self): return 1\n    def h(self): return 2\n\ndef g(): return A().f() + A().h()\n"
    )


def test_an_edit_without_a_place_fails(tools: Tools) -> None:
    edited: Any = tools[0]
    assert edited(PAGE, [("a reason", "x = 1", "x = 2")]).count("x = 2") == 1
    with pytest.raises(AssertionError, match="an edit has no place: a reason: 'x = 3'"):
        edited(PAGE, [("a reason", "x = 3", "x = 2")])
