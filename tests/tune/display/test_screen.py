"""Output of a search: a live table in a terminal, lines elsewhere, nothing with `quiet` or a broken stream."""

import io
import itertools
import logging
import sys
import time
from pathlib import Path

import pytest
from terminals import output_in_a_terminal

import fanwise
from fanwise.tune.display.screen import LiveOutput, LogOutput, Screen, screen_for
from fanwise.tune.record.trials import SearchSnapshot, TrialRow

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


def test_log_gets_every_line_at_once_and_the_table_at_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen(LogOutput(3600.0))
    screen.print_lines("experiment digits")
    screen.show(["trial 0 scheduled", "trial 1 scheduled"], snapshot)
    screen.print_lines("Ctrl-C")
    assert capsys.readouterr().out == "experiment digits\ntrial 0 scheduled\ntrial 1 scheduled\nCtrl-C\n"
    screen = Screen(LogOutput(1e-9))
    screen.show([], snapshot)
    assert capsys.readouterr().out.splitlines() == [
        "trial_id      status  iter  depth  loss  worker-time",
        "       0   Completed     3      2   0.5         1.25",
        "       1  InProgress     1      5  0.25         0.50",
        "1 trials running, 1 finished (1 until the end), 2.50s wallclock-time",
        "loss: best 0.25 for trial-id 1",
    ]


def test_log_ends_with_the_news_the_summary_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(LogOutput(3600.0)).end(["trial 0 completed"], snapshot, ["the search ended: enough"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trial 0 completed"
    assert lines[2] == "Resource summary (last result is reported):"
    assert lines[-3:] == ["loss: best 0.25 for trial-id 1", "-" * 20, "the search ended: enough"]


def test_quiet_search_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    screen = screen_for(1e-9, quiet=True)
    screen.print_lines("experiment digits")
    screen.show(["trial 0 scheduled"], snapshot)
    screen.end(["trial 0 completed"], snapshot, ["the search ended"])
    assert screen.is_blank
    assert capfd.readouterr() == ("", "")


def test_process_without_standard_output_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert screen_for(30.0, quiet=False).is_blank


class Terminal(io.StringIO):
    """A stream whose `isatty` returns True."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveOutput), ("dumb", LogOutput), ("", LogOutput)])
def test_live_table_needs_a_terminal_that_can_redraw(term: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", term)
    assert type(screen_for(30.0, quiet=False)._output) is kind


def test_closed_stream_ends_the_output_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = io.StringIO()
    closed.close()
    screen = Screen(LogOutput(3600.0))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        screen.print_lines("experiment digits")
        screen.show(["trial 0 scheduled"], snapshot)
        screen.end([], snapshot, ["the search ended"])
    assert caplog.messages == [
        "the search continues, but can no longer be shown: I/O operation on closed file",
    ]


def test_stream_that_cannot_encode_a_line_ends_the_output(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    Screen(LogOutput(3600.0)).print_lines("\u20ac")
    assert "can no longer be shown: 'ascii' codec can't encode" in caplog.text


def test_other_errors_of_an_output_propagate(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    output = LogOutput(3600.0)
    monkeypatch.setattr(output, "show", lambda news, snapshot: format(0.5, "d"))
    with pytest.raises(ValueError, match="format code 'd'"):
        Screen(output).show([], snapshot)
    assert not caplog.messages


LIVE = """
from fanwise.tune.display.screen import screen_for
from fanwise.tune.record.trials import SearchSnapshot, TrialRow

def snapshot(loss, status):
    row = TrialRow(7, status, 3, {"depth": 2}, {"loss": loss}, 1.25)
    return SearchSnapshot("digits", "loss", [row], ("depth",), ("loss",), 1, 0, 0, 0, (loss, 7), 2.5, limit_s=60.0)

screen = screen_for(30.0, quiet=False)
screen.print_lines("experiment digits")
screen.show(["trial 7 scheduled"], lambda: snapshot(0.5, "InProgress"))
screen.print_lines("Ctrl-C: the trials are stopped")
screen.show([], lambda: snapshot(0.125, "InProgress"))
screen.end(["news that a live table does not show"], lambda: snapshot(0.125, "Completed"), ["the search ended: enough"])
"""


def test_terminal_shows_a_table_that_is_redrawn_and_then_the_summary() -> None:
    text = output_in_a_terminal(LIVE, COLUMNS="80")
    hidden, shown = text.index("\x1b[?25l"), text.rindex("\x1b[?25h")  # the cursor
    before, live, after = text[:hidden], text[hidden:shown], text[shown:]
    assert before == "experiment digits\r\n"
    assert "InProgress" in live and "best 0.5 for trial-id 7" in live and "time limit 60s" in live
    line, up = "Ctrl-C: the trials are stopped\r\n", "\x1b[1A\x1b[2K"  # move up one line and erase it
    assert live.index("best 0.5") < live.index(up) < live.index(line) < live.index("best 0.125")
    erased, _, summary = after.rpartition(up)
    assert erased.count(up) == live[live.rindex(up) :].count("\n") - 1
    assert summary.startswith("-" * 20 + "\r\nResource summary (last result is reported):\r\n")
    assert "Completed" in summary
    assert summary.endswith("the search ended: enough\r\n")
    assert "news" not in text


def test_lines_that_logging_writes_to_the_console_are_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    screen, events = Screen(LogOutput(3600.0)), logging.getLogger("fanwise.tune.events")
    handler = logging.StreamHandler(sys.stderr)
    events.addHandler(handler)
    try:
        screen.show(["trial 0 scheduled"], snapshot)
        assert "trial 0 scheduled" in capsys.readouterr().out, "logging writes only warnings so far"
        events.setLevel(logging.INFO)
        screen.show(["trial 1 scheduled"], snapshot)
        assert capsys.readouterr().out == ""
    finally:
        events.removeHandler(handler)
        events.setLevel(logging.NOTSET)


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 0.5), (0.004, 0.8), (0.5, 2.0)])
def test_slow_table_is_redrawn_less_often(took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(clock) * took_s)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    screen = Screen(LiveOutput())
    assert screen.pause_s == 0.5
    screen.show([], snapshot)
    assert screen.pause_s == pytest.approx(pause_s)
    screen.end([], snapshot, [])
