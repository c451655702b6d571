"""Nothing that is shown can drive a terminal."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base import text as module
from fanwise.base.text import printable, printable_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\x00b\x7fc\x9bd", "a\\x00b\\x7fc\\x9bd"),
        ("left\u202eright\u2066", "left\\u202eright\\u2066"),
        ("a\u2028b", "a\\u2028b"),
        ("\udce4", "\\udce4"),
        ("tab\tand line\n", "tab\tand line\n"),
        ("\u00e4\u4e2d\U0001f600 \\x1b", "\u00e4\u4e2d\U0001f600 \\x1b"),
    ],
)
def test_only_harmless_characters_are_shown(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable_line(text) == shown.replace("\t", "\\t").replace("\n", "\\n")


@given(st.text())
def test_line_ends_and_tabs_are_kept_and_nothing_else_that_controls_gets_through(text: str) -> None:
    shown = printable(text)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert (shown.count("\n"), shown.count("\t")) == (text.count("\n"), text.count("\t"))
    assert printable(shown) == shown


@given(st.text())
def test_one_line_holds_only_what_prints(text: str) -> None:
    assert printable_line(text).isprintable()


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_what_prints_stays_as_it_is(text: str) -> None:
    assert printable_line(text) == printable(text) == text


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(module).failed == 0
