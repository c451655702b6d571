"""Commands that take long show a line on a terminal, and nothing in a log."""

import io
import sys

import pytest

from fanwise.cli.console import at_work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_activity_is_shown_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with at_work("reading"):
        pass
    assert "reading ..." in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")


def test_log_has_no_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with pytest.raises(ValueError, match="as raised"), at_work("reading"):
        raise ValueError("as raised")
    assert log.getvalue() == ""
