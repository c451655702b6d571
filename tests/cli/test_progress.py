"""What a person sees of a command that takes long: a line on the terminal that goes again, and nothing in a log."""

import io
import threading

import pytest

from fanwise.cli.progress import at_work
from fanwise.testing import within


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_takes_long_is_shown_and_wiped() -> None:
    screen = Terminal()
    with at_work("reading", after_s=0.0, stream=screen) as now_doing:
        within(30.0, lambda: "reading ... 0 s" in screen.getvalue(), "it is shown")
        now_doing("drawing")
        within(30.0, lambda: "drawing ... " in screen.getvalue(), "what is done now is shown")
    assert screen.getvalue().endswith("\r\x1b[K") and "\n" not in screen.getvalue()


def test_what_is_quick_shows_nothing_and_an_error_passes() -> None:
    screen = Terminal()
    with pytest.raises(ValueError, match="as asked"), at_work("reading", after_s=60.0, stream=screen):
        raise ValueError("as asked")
    assert screen.getvalue() == ""


def test_a_log_is_told_nothing() -> None:
    log = io.StringIO()
    before = threading.active_count()
    with at_work("reading", after_s=0.0, stream=log) as now_doing:
        now_doing("drawing")
        assert threading.active_count() == before
    closed = Terminal()
    closed.close()
    with at_work("reading", after_s=0.0, stream=closed):
        pass
    assert log.getvalue() == ""


def test_a_terminal_that_has_gone_does_not_end_the_work() -> None:
    screen = Terminal()
    with at_work("reading", after_s=0.0, stream=screen):
        within(30.0, lambda: "reading" in screen.getvalue(), "it is shown")
        screen.close()
