"""The line that shows the progress of a run."""

import io
import math
import re
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from virtual_clock import VirtualClock

import fanwise
from fanwise.parallel import progress as progress
from fanwise.parallel.progress import Display, ProgressLine, RunSnapshot

FULL = RunSnapshot("train", ("cpu", "cpu"), 2, 10, 12_345, 60_000, 8120.4, 0.43214, 75.2, 33.3)
BARE = RunSnapshot("", (), None, None, 7, None, None, None, None, 3.0)


@pytest.mark.parametrize(
    ("snapshot", "line"),
    [
        (FULL, "epoch 3/10, loss 0.4321, 0:01:16 left, 12,345/60,000 samples, 8,120 samples/s, train, 2 x cpu"),
        (BARE, "7 samples"),
        (
            RunSnapshot("", ("cpu",), 0, 2, 5, 5, 0.5, None, 61.0, 9.0, evaluated_fraction=0.426),
            "epoch 1/2, 0:01:01 left, evaluating: 43 %, 0.5 samples/s, cpu",
        ),
        (
            RunSnapshot("", ("cuda:0", "cuda:1"), 9, 10, 5, 5, 0.5, math.nan, None, 7200.0, is_over=True),
            "epoch 10/10, loss nan, in 2:00:00, 0.5 samples/s, cuda:0 cuda:1",
        ),
        (RunSnapshot("a\x1b[31m\n[red]", ("d",), None, None, 0, 9, None, None, None, 0.0),
         "0/9 samples, a\\x1b[31m\\n[red], d"),
    ],
    ids=["full", "bare", "measuring", "over", "escaped"],
)  # fmt: skip
def test_a_line_contains_the_known_values(snapshot: RunSnapshot, line: str) -> None:
    assert str(snapshot) == line


class CountedLoss:
    """A loss that counts how often it is read."""

    reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return 0.5


def test_a_loss_is_read_only_when_the_line_is_shown() -> None:
    clock, shown, loss = VirtualClock(), list[RunSnapshot](), CountedLoss()
    line = ProgressLine(shown.append, clock=clock.now_s, devices=lambda: ["cpu"])
    line.epoch(0, 2)
    line.begin_pass(4000, 0)
    for _ in range(99):
        clock.advance(0.01)
        line.record_step(0, 10, loss)
    assert (shown, loss.reads) == ([], 0)
    clock.advance(0.015)
    for _ in range(205):
        line.record_step(0, 10, loss)
        clock.advance(0.01)
    assert [(snapshot.done, snapshot.of) for snapshot in shown] == [(done, 4000) for done in (1000, 2000, 3010)]
    assert loss.reads == 3
    line.close()
    assert shown[-1].is_over


def test_an_evaluation_does_not_slow_the_rate_but_counts_in_the_time_left() -> None:
    clock, shown = VirtualClock(), list[RunSnapshot]()
    line = ProgressLine(shown.append, clock=clock.now_s)
    clock.advance(50.0)  # loading
    for epoch in range(2):
        line.epoch(epoch, 4)
        line.begin_pass(1000, 0)
        for _ in range(10):
            clock.advance(1.0)
            line.record_step(0, 100, 0.5)
        for tenths in range(11):
            clock.advance(3.0)
            line.record_evaluation(tenths / 10)
    seen = [each for each in shown if each.evaluated_fraction == 0.9][-1]
    assert (seen.done, seen.of) == (1000, 1000) and seen.rate == pytest.approx(100.0)
    # Of the four epochs 1.9 after the first step took 2 * 10 + 2 * 33 seconds, but for that step and the last 3.
    assert seen.left_s == pytest.approx((2 * 43 - 1 - 3) * 2 / 1.9)
    line.epoch(2, 4)
    line.begin_pass(1000, 0)
    line.record_step(0, 100, 0.5)
    assert shown[-1].evaluated_fraction is None


def test_the_time_left_of_a_resumed_run_counts_only_what_it_has_done_itself() -> None:
    clock, shown = VirtualClock(), list[RunSnapshot]()
    line = ProgressLine(shown.append, clock=clock.now_s)
    line.epoch(8, 10)
    line.begin_pass(1000, 500)
    for _ in range(5):
        clock.advance(1.0)
        line.record_step(0, 100, 0.5)
    assert shown[-1].left_s == pytest.approx(10.0)


def test_without_a_loop_over_epochs_each_pass_stands_for_itself() -> None:
    clock, shown = VirtualClock(), list[RunSnapshot]()
    line = ProgressLine(shown.append, clock=clock.now_s)
    for _ in range(2):
        line.begin_pass(1000, 0)
        for _ in range(4):
            clock.advance(1.0)
            line.record_step(0, 100, 0.5)
    last = shown[-1]
    assert (last.done, last.of) == (400, 1000)
    assert shown[-1].left_s == pytest.approx(6.0)


@pytest.mark.parametrize("fails", [False, True])
def test_an_evaluation_reports_its_progress_and_its_end(fails: bool) -> None:
    parts: list[float] = []

    class Watching(ProgressLine):
        def record_evaluation(self, part: float) -> None:
            parts.append(part)

    def measure(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if fails and len(parts) == 3:
            raise ValueError("of the third chunk")
        return x

    run = fanwise.here()
    run._progress_line = Watching()
    with pytest.raises(ValueError, match="third") if fails else nullcontext():
        run.mean(measure, nn.Linear(1, 1), torch.zeros(10), batch_size=3)
    assert parts == [0, 0.25, 0.5, *([1] if fails else [0.75, 1])]


def test_a_run_that_is_short_shows_nothing() -> None:
    clock, shown = VirtualClock(), list[RunSnapshot]()
    line = ProgressLine(shown.append, clock=clock.now_s)
    line.begin_pass(100, 0)
    clock.advance(0.9)
    line.record_step(0, 10, 1.0)
    clock.advance(1.0)
    line.close()
    assert shown == []


def test_only_one_of_several_step_objects_counts_the_batches() -> None:
    clock, shown = VirtualClock(), list[RunSnapshot]()
    line = ProgressLine(shown.append, clock=clock.now_s)
    for epoch, leader in enumerate((1, 0)):
        line.epoch(epoch, 2)
        line.begin_pass(100, 0)
        for _ in range(3):
            for number in (leader, 1 - leader):
                clock.advance(0.5)
                line.record_step(number, 10, 1.0)
    line.close()
    assert shown[-1].done == 30


def test_a_loss_that_a_failed_device_cannot_compute_is_not_shown() -> None:
    class Failed:
        def __float__(self) -> float:
            raise RuntimeError("the device is gone")

    clock, shown = VirtualClock(), list[RunSnapshot]()
    line = ProgressLine(shown.append, clock=clock.now_s)
    line.record_step(0, 10, 1.0)
    clock.advance(2.0)
    line.record_step(0, 10, 1.0)
    line.record_step(0, 10, Failed())
    line.close()
    assert [snapshot.loss for snapshot in shown] == [1.0, None]


# -- the display


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def as_stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard error. Not a fixture: pytest replaces the stream between set-up and test."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return stream


def test_a_log_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch)
    for term in ("dumb", ""):
        monkeypatch.setenv("TERM", term)
        display = Display(True)
        for elapsed_s in range(1, 26):
            display.show(replace(FULL, elapsed_s=elapsed_s))
        display.close()
    assert terminal.getvalue() == 4 * f"{FULL}\n", "every 10 s"


def test_a_run_that_was_too_short_for_a_log_shows_no_end_either(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    display = Display(True)
    display.show(replace(FULL, elapsed_s=1.0))
    display.show(replace(FULL, elapsed_s=2.0, is_over=True))
    display.close()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("columns", [100, 40])
def test_in_a_terminal_one_line_is_redrawn_below_what_is_printed(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    display = Display(True)
    for done in (100, 200):
        display.show(RunSnapshot("train", ("cpu",), 0, 3, done, 1000, 100.0, 0.5, 20.0, 5.0))
    print("printed meanwhile", file=sys.stderr)
    display.show(FULL)
    display.close()
    assert sys.stderr is terminal
    assert terminal.getvalue().count("\n") == 2, "only what was printed, and the last line, stay"
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).rstrip("\n").rpartition("\r")[2]
    assert last == str(FULL)[:columns]


def test_only_one_run_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    unwanted, first, second = Display(False), Display(True), Display(True)
    for number, display in enumerate([unwanted, first, second]):
        display.show(replace(FULL, name=f"run {number}"))
        display.close()
        display.close()
    assert "run 1" in terminal.getvalue() and terminal.getvalue().count("\n") == 1
    third = Display(True)
    third.show(FULL)
    third.close()
    assert terminal.getvalue().count("\n") == 2
    monkeypatch.setattr(sys, "stderr", None)
    Display(True).show(FULL)


def test_a_terminal_that_has_gone_ends_the_line_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = as_stderr(monkeypatch)
    display = Display(True)
    display.show(FULL)
    terminal.close()
    display.show(FULL)
    display.show(FULL)
    display.close()
    assert len(caplog.messages) == 1 and sys.stderr is terminal
    assert caplog.messages[0].startswith("the run continues, but its progress can no longer be shown: ")
    Display(True).close()  # also of a stream that is closed already
