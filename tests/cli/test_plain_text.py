"""Nothing that is printed can drive a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.cli.text import plain_line, plain_text


@given(st.text())
def test_a_plain_line_holds_only_what_prints(text: str) -> None:
    assert plain_line(text).isprintable()


@given(st.text())
def test_plain_text_keeps_line_ends_and_tabs_and_nothing_else_of_control(text: str) -> None:
    shown = plain_text(text)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert (shown.count("\n"), shown.count("\t")) == (text.count("\n"), text.count("\t"))


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_what_prints_stays_as_it_is(text: str) -> None:
    assert plain_line(text) == plain_text(text) == text


def test_an_escape_sequence_is_shown() -> None:
    assert plain_line("a\x1b]0;title\x07\nb\u202e") == "a\\x1b]0;title\\x07\\nb\\u202e"
