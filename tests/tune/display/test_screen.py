"""What a search shows: a live table in a terminal, lines elsewhere, nothing when it is quiet or cannot be shown."""

import io
import itertools
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanwise
from fanwise.testing.terminals import output_in_a_terminal
from fanwise.tune.display.screen import FragileScreen, LiveScreen, LogScreen, NoScreen, screen_for
from fanwise.tune.record.snapshot import SearchSnapshot, TrialRow

SOURCES = Path(fanwise.__file__).parents[1]

ROWS = [
    TrialRow(0, "Completed", 3, {"depth": 2}, {"loss": 0.5}, 1.25),
    TrialRow(1, "InProgress", 1, {"depth": 5}, {"loss": 0.25}, 0.5),
]


def snapshot() -> SearchSnapshot:
    return SearchSnapshot(
        name="digits",
        metric="loss",
        rows=ROWS,
        config_names=("depth",),
        value_names=("loss",),
        running=1,
        finished=1,
        completed=1,
        failed=0,
        best=(0.25, 1),
        elapsed_s=2.5,
    )


def test_a_log_gets_every_line_at_once_and_the_table_of_the_book_at_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = LogScreen(3600.0)
    screen.begin(["experiment digits"])
    screen.show(["trial 0 scheduled", "trial 1 scheduled"], snapshot())
    screen.say("Ctrl-C")
    assert capsys.readouterr().out == "experiment digits\ntrial 0 scheduled\ntrial 1 scheduled\nCtrl-C\n"
    often = LogScreen(1e-9)
    often.show([], snapshot())
    assert capsys.readouterr().out.splitlines() == [
        " trial_id     status  iter  depth  loss  worker-time",
        "        0  Completed     3      2  0.50         1.25",
        "        1 InProgress     1      5  0.25         0.50",
        "1 trials running, 1 finished (1 until the end), 2.50s wallclock-time",
    ]


def test_the_end_of_a_log_is_the_news_the_summary_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    LogScreen(3600.0).end(["trial 0 completed"], snapshot(), ["the search ended: enough"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trial 0 completed"
    assert lines[2] == "Resource summary (last result is reported):"
    assert lines[-3:] == ["loss: best 0.25 for trial-id 1", "-" * 20, "the search ended: enough"]


def test_a_quiet_search_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    screen = screen_for(1e-9, quiet=True)
    screen.begin(["experiment digits"])
    screen.show(["trial 0 scheduled"], snapshot())
    screen.say("Ctrl-C")
    screen.end(["trial 0 completed"], snapshot(), ["the search ended"])
    assert capfd.readouterr() == ("", "")


def test_without_a_standard_output_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert isinstance(screen_for(30.0, quiet=False), NoScreen)


class Terminal(io.StringIO):
    """A standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveScreen), ("dumb", LogScreen), ("", LogScreen)])
def test_the_live_table_needs_a_terminal_that_can_draw(term: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", term)
    screen = screen_for(30.0, quiet=False)
    assert isinstance(screen, FragileScreen)
    assert type(screen._screen) is kind


def test_a_screen_that_cannot_be_written_to_is_given_up_with_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = io.StringIO()
    closed.close()
    screen = FragileScreen(LogScreen(3600.0))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        screen.begin(["experiment digits"])
        screen.show(["trial 0 scheduled"], snapshot())
        screen.say("Ctrl-C")
        screen.end([], snapshot(), ["the search ended"])
    assert caplog.messages == [
        "the search goes on, but can no longer be shown: I/O operation on closed file",
    ]


def test_a_stream_that_cannot_encode_a_line_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    FragileScreen(LogScreen(3600.0)).begin(["\u20ac"])
    assert "can no longer be shown: 'ascii' codec can't encode" in caplog.text


def test_an_error_in_what_is_to_be_shown_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    def wrong_lines() -> Iterator[str]:
        yield f"{0.5:d}"

    class WrongFormat(NoScreen):
        def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
            format(0.5, "d")

    with pytest.raises(ValueError, match="format code 'd'"):
        FragileScreen(LogScreen(3600.0)).begin(wrong_lines())
    with pytest.raises(ValueError, match="format code 'd'"):
        FragileScreen(WrongFormat()).show([], snapshot())
    assert not caplog.messages


LIVE = """
from fanwise.tune.display.screen import screen_for
from fanwise.tune.record.snapshot import SearchSnapshot, TrialRow

def snapshot(loss, status):
    row = TrialRow(7, status, 3, {"depth": 2}, {"loss": loss}, 1.25)
    return SearchSnapshot("digits", "loss", [row], ("depth",), ("loss",), 1, 0, 0, 0, (loss, 7), 2.5, limit_s=60.0)

screen = screen_for(30.0, quiet=False)
screen.begin(["experiment digits"])
screen.show(["trial 7 scheduled"], snapshot(0.5, "InProgress"))
screen.say("Ctrl-C: the trials are stopped")
screen.show([], snapshot(0.125, "InProgress"))
screen.end(["news that a table has no place for"], snapshot(0.125, "Completed"), ["the search ended: enough"])
"""


def test_in_a_terminal_the_table_is_redrawn_in_place_and_the_summary_stays() -> None:
    text = output_in_a_terminal(LIVE, COLUMNS="80")
    hidden, shown = text.index("\x1b[?25l"), text.rindex("\x1b[?25h")  # the cursor
    before, live, after = text[:hidden], text[hidden:shown], text[shown:]
    assert before == "experiment digits\r\n"
    assert "InProgress" in live and "best loss 0.5 (trial 7)" in live and "2.5 of 60 s" in live
    line, up = "Ctrl-C: the trials are stopped\r\n", "\x1b[1A\x1b[2K"  # up one line, and wipe it
    assert live.index("best loss 0.5") < live.index(up) < live.index(line) < live.index("best loss 0.125")
    wiped, _, summary = after.rpartition(up)
    assert wiped.count(up) == live[live.rindex(up) :].count("\n") - 1
    assert summary.startswith("-" * 20 + "\r\nResource summary (last result is reported):\r\n")
    assert "Completed" in summary
    assert summary.endswith("the search ended: enough\r\n")
    assert "news" not in text


def test_what_logging_writes_to_the_console_is_not_printed_a_second_time(capsys: pytest.CaptureFixture[str]) -> None:
    screen, events = LogScreen(3600.0), logging.getLogger("fanwise.tune.events")
    handler = logging.StreamHandler(sys.stderr)
    events.addHandler(handler)
    try:
        screen.show(["trial 0 scheduled"], snapshot())
        assert "trial 0 scheduled" in capsys.readouterr().out, "logging is not asked for what is no warning"
        events.setLevel(logging.INFO)
        screen.show(["trial 1 scheduled"], snapshot())
        assert capsys.readouterr().out == ""
    finally:
        events.removeHandler(handler)
        events.setLevel(logging.NOTSET)


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 0.5), (0.004, 0.8), (0.5, 2.0)])
def test_a_table_is_redrawn_the_less_often_the_longer_it_takes(
    took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(clock) * took_s)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    screen = FragileScreen(LiveScreen())
    screen.begin([])
    assert screen.pause_s == 0.5
    screen.show([], snapshot())
    assert screen.pause_s == pytest.approx(pause_s)
    screen.end([], snapshot(), [])
