"""The line that shows how a run goes: what it says, what it costs the program around it, where it appears."""

import io
import math
import os
import pickle
import re
import sys
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fanwise
from fanwise.base.clocks import VirtualClock
from fanwise.parallel.progress import line as progress_line
from fanwise.parallel.progress.line import FarScreen, LiveScreen, LogScreen, NoScreen, ProgressLine, screen_for
from fanwise.parallel.progress.pace import (
    LinePart,
    Pace,
    RunSnapshot,
    duration,
    fitting,
    line_parts,
    next_look_s,
    plain,
)

# -- the quiet part, beside a model that keeps all that happened and computes everything anew


class History:
    """What happened, in order: (what, numbers, seconds since the last one)."""

    def __init__(self) -> None:
        self.worked: list[tuple[int, float]] = []  # samples and seconds, of the whole run
        self.epochs: list[tuple[int, int]] = []  # number and count of each epoch that began
        self.counted: list[list[int]] = [[]]  # samples by epoch; the first is before any
        self.announced: list[list[int]] = [[]]  # lengths by epoch
        self.between: list[float] = [0.0]  # by epoch
        self.seen_time = False  # from the first event on time is either work or between
        self.has_worked = False  # what is loaded in the first step is not rated

    def rest(self, seconds: float) -> None:
        if self.seen_time:
            self.between[-1] += seconds
        self.seen_time = True

    def epoch(self, number: int, count: int, seconds: float) -> None:
        self.rest(seconds)
        self.epochs.append((number, count))
        for each in (self.counted, self.announced):
            each.append([])
        self.between.append(0.0)

    def begin_pass(self, length: int, done: int, seconds: float) -> None:
        self.rest(seconds)
        if not self.epochs and self.announced[-1] and sum(self.counted[-1]) >= sum(self.announced[-1]):
            self.counted[-1], self.announced[-1] = [], []
        self.announced[-1].append(length)
        self.counted[-1].append(done)

    def work(self, samples: int, seconds: float) -> None:
        self.counted[-1].append(samples)
        if self.seen_time and self.has_worked:
            self.worked.append((samples, seconds))
        self.seen_time = self.has_worked = True

    @property
    def follows(self) -> bool:
        """Whether the epoch before is of the same loop."""
        if len(self.epochs) < 2:
            return False
        (before, count), (number, count_now) = self.epochs[-2:]
        return number == before + 1 and count == count_now

    def rate(self, memory_s: float) -> float | None:
        ages = [sum(seconds for _, seconds in self.worked[place + 1 :]) for place in range(len(self.worked))]
        weights = [math.exp(-age / memory_s) for age in ages]
        samples = sum(weight * samples for weight, (samples, _) in zip(weights, self.worked, strict=True))
        seconds = sum(weight * seconds for weight, (_, seconds) in zip(weights, self.worked, strict=True))
        return samples / seconds if samples > 0 and seconds > 0 else None

    def of(self) -> int | None:
        done = sum(self.counted[-1])
        before = sum(self.counted[-2]) if self.follows else 0
        if before:
            return max(before, done)
        return max(sum(self.announced[-1]), done) if self.announced[-1] else None

    def left_s(self, rate: float | None) -> float | None:
        of, after = self.of(), 0
        if of is None or rate is None:
            return None
        if self.epochs:
            after = self.epochs[-1][1] - self.epochs[-1][0] - 1
        between = self.between[-2] if self.follows else 0.0
        rests = max(0.0, between - self.between[-1]) + between * after
        return (of * (after + 1) - sum(self.counted[-1])) / rate + rests


SECONDS = st.integers(0, 100_000).map(lambda milliseconds: milliseconds / 1000)
EVENTS = st.one_of(
    st.tuples(st.just("work"), st.integers(0, 1000), SECONDS),
    st.tuples(st.just("pass"), st.integers(0, 2000), SECONDS),
    st.tuples(st.just("resumed pass"), st.integers(0, 2000), SECONDS),
    st.tuples(st.just("epoch"), st.just(0), SECONDS),
    st.tuples(st.just("loop"), st.integers(0, 5), SECONDS),
)


@given(events=st.lists(EVENTS, max_size=30))
def test_the_pace_is_that_of_all_that_happened(events: list[tuple[str, int, float]]) -> None:
    now_s, number, count = 50.0, -1, 7
    pace, model = Pace(now_s), History()
    for what, value, seconds in events:
        now_s += seconds
        if what == "work":
            pace.worked(value, now_s)
            model.work(value, seconds)
        elif what.endswith("pass"):
            done = value // 3 if what == "resumed pass" else 0
            pace.begin_pass(value, done, now_s)
            model.begin_pass(value, done, seconds)
        else:
            if what == "loop" or number + 1 == count:
                number, count = value - 1, value + 3
            number += 1
            pace.epoch(number, count, now_s)
            model.epoch(number, count, seconds)
    made = pace.snapshot("run", ["cpu"], 0.5, now_s)
    assert (made.done, made.of) == (sum(model.counted[-1]), model.of())
    assert (made.epoch, made.epochs) == (model.epochs[-1] if model.epochs else (None, None))
    assert made.rate == about(model.rate(10.0))
    assert made.left_s == about(model.left_s(made.rate))
    assert made.elapsed_s == now_s - 50.0
    at_end = pace.snapshot("run", ["cpu"], 0.5, now_s, is_over=True)
    seconds = sum(seconds for _, seconds in model.worked)
    samples = sum(samples for samples, _ in model.worked)
    assert at_end.rate == about(samples / seconds if samples and seconds else None)
    assert (at_end.left_s, at_end.is_over) == (None, True)


def about(value: float | None) -> object:
    return None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)


def test_evaluation_does_not_slow_the_rate_but_counts_in_the_time_left() -> None:
    pace, now_s = Pace(0.0), 0.0
    for epoch in range(2):
        pace.epoch(epoch, 4, now_s)
        pace.begin_pass(1000, 0, now_s)
        for _ in range(10):
            now_s += 1.0
            pace.worked(100, now_s)
        if epoch == 0:
            now_s += 30.0  # evaluation
    made = pace.snapshot("", [], None, now_s)
    assert made.rate == pytest.approx(100.0)
    assert made.left_s == pytest.approx(2 * 10.0 + 3 * 30.0)


def test_while_it_evaluates_the_time_left_goes_down_with_the_clock() -> None:
    pace = Pace(0.0)
    for epoch in range(2):
        pace.epoch(epoch, 3, 50.0 * epoch)
        pace.begin_pass(1000, 0, 50.0 * epoch)
        pace.worked(500, 50.0 * epoch + 5)
        pace.worked(500, 50.0 * epoch + 10)
    left = {now_s: pace.snapshot("", [], None, now_s).left_s for now_s in (60.0, 75.0, 99.0, 200.0)}
    assert left == {60.0: about(90.0), 75.0: about(75.0), 99.0: about(51.0), 200.0: about(50.0)}


def test_a_slow_terminal_is_drawn_to_less_often() -> None:
    assert next_look_s(10.0, 0.2, 0.001) == 10.2
    assert next_look_s(10.0, 0.2, 0.1) == 15.0


FULL = RunSnapshot("train", ("cpu", "cpu"), 2, 10, 12_345, 60_000, 8120.4, 0.43214, 75.2, 33.3)
BARE = RunSnapshot("", (), None, None, 7, None, None, None, None, 3.0)


@pytest.mark.parametrize(
    ("snapshot", "line"),
    [
        (
            FULL,
            "train, epoch 3/10, 12,345/60,000 samples, loss 0.4321, 8,120 samples/s, 1:16 left, 2 x cpu",
        ),
        (BARE, "7 samples"),
        (
            RunSnapshot("", ("cpu",), 0, 2, 5, 5, 0.5, None, 61.0, 9.0, measured=0.426),
            "epoch 1/2, measuring 43 %, 0.5 samples/s, 1:01 left, cpu",
        ),
        (
            RunSnapshot("", ("cuda:0", "cuda:1"), 9, 10, 5, 5, 0.5, math.nan, None, 7200.0, is_over=True),
            "epoch 10/10, loss nan, 0.5 samples/s, in 2:00:00, cuda:0 cuda:1",
        ),
        (RunSnapshot("a\x1b[31m\n[red]", tuple("abcde"), None, None, 0, 9, 2.5e6, None, 0.0, 0.0),
         "a\\x1b[31m\\n[red], 0/9 samples, 2.50 M samples/s, 0:00 left, 5 devices"),
        (RunSnapshot("n" * 50, ("d\x07",), None, None, 0, None, None, None, None, 0.0),
         f"{'n' * 37}..., 0 samples, d\\x07"),
    ],
    ids=["full", "bare", "measuring", "over", "escaped", "long"],
)  # fmt: skip
def test_a_line_says_what_is_known(snapshot: RunSnapshot, line: str) -> None:
    assert plain(line_parts(snapshot)) == line


@given(width=st.integers(1, 120))
def test_what_fits_is_the_most_important(width: int) -> None:
    line = line_parts(FULL)
    kept = fitting(line, width)
    assert kept == [part for part in line if part in kept]
    used = sum(len(part.text) + 2 for part in kept) - 2
    assert used <= width or kept == [min(line, key=lambda part: part.drop_order)]
    for part in line:
        if part not in kept:
            better = sum(len(other.text) + 2 for other in line if other.drop_order < part.drop_order and other in kept)
            assert better + len(part.text) > width or width < len(kept[0].text)


def test_at_least_one_piece_stays() -> None:
    assert fitting([LinePart(1, "wide"), LinePart(0, "wider")], 1) == [LinePart(0, "wider")]


@given(seconds=st.floats(0.0, 1e7))
def test_durations_are_rounded_up_to_what_they_show(seconds: float) -> None:
    text = duration(seconds)
    if " d " in text:
        days, hours = map(int, re.findall(r"[\d]+", text.replace(",", "")))
        shown_s, unit_s = (24 * days + hours) * 3600, 3600
    else:
        shown_s, unit_s = 0, 1
        for part in text.split(":"):
            shown_s = 60 * shown_s + int(part)
    assert 0 <= shown_s - seconds < unit_s + 1e-6


# -- looks at the right moments


class Watched:
    """A number that notes when it is read."""

    def __init__(self, value: float, reads: list[float]) -> None:
        self._value = value
        self._reads = reads

    def __float__(self) -> float:
        self._reads.append(self._value)
        return self._value


class ListScreen:
    """Keeps what it is shown."""

    first_s, every_s = 1.0, 0.2

    def __init__(self) -> None:
        self.shown: list[RunSnapshot] = []
        self.closed = 0

    def show(self, snapshot: RunSnapshot) -> None:
        self.shown.append(snapshot)

    def close(self) -> None:
        self.closed += 1


def test_a_loss_is_read_only_when_the_line_is_drawn_and_is_the_mean_of_the_last_ones() -> None:
    clock, screen, reads = VirtualClock(), ListScreen(), list[float]()
    line = ProgressLine(screen, clock=clock.now_s, devices=lambda: ["cpu"])
    line.epoch(0, 2)
    line.begin_pass(4000, 0)
    for number in map(float, range(99)):
        clock.advance(0.01)
        line.stepped(0, 10, Watched(number, reads))
    assert (screen.shown, reads) == ([], [])
    clock.advance(0.015)
    line.stepped(0, 10, Watched(99.0, reads))
    assert reads == list(range(84, 100))
    assert [(each.loss, each.done, each.of) for each in screen.shown] == [(91.5, 1000, 4000)]
    for number in map(float, range(100, 140)):
        clock.advance(0.01)
        line.stepped(0, 10, Watched(number, reads))
    assert [each.done for each in screen.shown] == [1000, 1200, 1400]
    line.close()
    assert (screen.shown[-1].is_over, screen.closed) == (True, 1)


def test_an_evaluation_is_shown_and_is_no_work_of_the_pass() -> None:
    clock, screen = VirtualClock(), ListScreen()
    line = ProgressLine(screen, clock=clock.now_s, devices=lambda: ["cpu"])
    line.begin_pass(100, 0)
    for _ in range(2):
        clock.advance(1.0)
        line.stepped(0, 50, 0.5)
    for tenths in range(11):
        clock.advance(0.15)
        line.measured(tenths / 10)
    assert [each.measured for each in screen.shown] == [None, 0.1, 0.3, 0.5, 0.7, 0.9]
    assert {each.rate for each in screen.shown} == {50.0}
    clock.advance(0.2)
    line.begin_pass(100, 0)
    line.stepped(0, 50, 0.5)
    assert screen.shown[-1].measured is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_measure_tells_how_far_it_is_and_that_it_has_ended(fails: bool) -> None:
    told: list[float] = []

    class Watching(ProgressLine):
        def measured(self, part: float) -> None:
            told.append(part)

    def measure(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if fails and len(told) == 3:
            raise ValueError("of the third chunk")
        return x

    run = fanwise.here()
    run._line = Watching(NoScreen())
    with pytest.raises(ValueError, match="third") if fails else nullcontext():
        run.mean(measure, nn.Linear(1, 1), torch.zeros(10), batch_size=3)
    assert told == [0, 0.25, 0.5, *([1] if fails else [0.75, 1])]


def test_a_run_that_is_short_shows_nothing() -> None:
    clock, screen = VirtualClock(), ListScreen()
    line = ProgressLine(screen, clock=clock.now_s)
    line.begin_pass(100, 0)
    clock.advance(0.9)
    line.stepped(0, 10, 1.0)
    clock.advance(1.0)
    line.close()
    assert (screen.shown, screen.closed) == ([], 1)


def test_of_several_step_objects_on_the_same_batches_one_counts() -> None:
    clock, screen = VirtualClock(), ListScreen()
    line = ProgressLine(screen, clock=clock.now_s)
    for epoch, leader in enumerate((1, 0)):
        line.epoch(epoch, 2)
        line.begin_pass(100, 0)
        for _ in range(3):
            for number in (leader, 1 - leader):
                clock.advance(0.5)
                line.stepped(number, 10, 1.0)
    line.close()
    assert screen.shown[-1].done == 30
    assert {each.of for each in screen.shown if each.epoch == 0} == {100}


def test_a_device_that_has_failed_does_not_hide_why_the_run_ends() -> None:
    class Failed:
        def __float__(self) -> float:
            raise RuntimeError("the device is gone")

    clock, screen = VirtualClock(), ListScreen()
    line = ProgressLine(screen, clock=clock.now_s)
    clock.advance(2.0)
    line.stepped(0, 10, 1.0)
    line.stepped(0, 10, 1.0)
    line.stepped(0, 10, Failed())
    line.close()
    assert [each.loss for each in screen.shown] == [1.0, None]


def test_the_first_drawing_and_the_first_step_are_no_measure_of_the_others() -> None:
    clock, screen = VirtualClock(), ListScreen()
    taking = iter([5.0, 0.0, 0.1, 0.0])  # seconds of each drawing

    def show(snapshot: RunSnapshot) -> None:
        screen.shown.append(snapshot)
        clock.advance(next(taking))

    line = ProgressLine(FarScreen(show, first_s=1.0, every_s=0.15), clock=clock.now_s)
    line.begin_pass(10_000, 0)
    clock.advance(100.0)
    line.stepped(0, 10, 1.0)  # with all that is loaded in it
    assert screen.shown == []
    times_s = []
    while len(screen.shown) < 4:
        clock.advance(0.07)
        seen = len(screen.shown)
        line.stepped(0, 10, 1.0)
        if len(screen.shown) > seen:
            times_s.append(round(screen.shown[-1].elapsed_s, 3))
    assert times_s == [100.07, 105.28, 105.49, 110.63]
    assert screen.shown[0].rate == pytest.approx(10 / 0.07)


def test_snapshots_go_to_the_process_that_has_the_screen() -> None:
    sent: list[RunSnapshot] = []
    screen = FarScreen(sent.append, first_s=1.0, every_s=0.2)
    screen.show(FULL)
    screen.close()
    assert [pickle.loads(pickle.dumps(each)) for each in sent] == [FULL]


# -- screens


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_plain_lines() -> None:
    stream = io.StringIO()
    screen = LogScreen(stream, 10.0)
    screen.show(FULL)
    screen.close()
    assert (screen.first_s, screen.every_s) == (10.0, 10.0)
    assert stream.getvalue() == plain(line_parts(FULL)) + "\n"


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveScreen), ("dumb", LogScreen), ("", LogScreen)])
def test_the_live_line_needs_a_terminal_that_can_draw(term: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", term)
    screen = screen_for(True)
    assert type(screen._screen) is kind  # type: ignore[attr-defined]  # a OneScreen
    screen.close()


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["none", "file"])
def test_no_terminal_no_live_line(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    screen = screen_for(True)
    assert isinstance(screen, NoScreen) == (stream is None)
    screen.close()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    screen_for(True).close()


def test_one_line_at_a_time_and_none_if_it_is_not_wanted() -> None:
    assert isinstance(screen_for(False), NoScreen)
    first, second = screen_for(True), screen_for(True)
    assert isinstance(second, NoScreen) and not isinstance(first, NoScreen)
    second.close()
    assert isinstance(screen_for(True), NoScreen)
    first.close()
    first.close()
    third = screen_for(True)
    assert not isinstance(third, NoScreen)
    third.close()


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_notice_is_shown_once_before_the_first_line(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "_told", set())
    monkeypatch.setenv("TERM", term)
    shown = []
    for _ in range(2):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        screen = screen_for(True, notice="something to know")
        screen.show(FULL)
        screen.show(FULL)
        screen.close()
        shown.append(stream.getvalue())
    assert shown[0].startswith("fanwise.run: something to know\n") and shown[0].count("to know") == 1
    assert shown[1] == shown[0].partition("\n")[2]


def test_a_notice_does_not_tear_what_the_program_has_begun_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "_told", set())
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    screen = screen_for(True, notice="something to know")
    sys.stderr.write("a prompt: ")
    screen.show(FULL)
    assert stream.getvalue() == "a prompt: "
    sys.stderr.write("yes\n")
    screen.show(FULL)
    assert "fanwise.run: something to know\n" in stream.getvalue()
    screen.close()


def test_a_terminal_that_has_gone_ends_the_line_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    screen = screen_for(True)
    screen.show(FULL)
    stream.close()
    screen.show(FULL)
    screen.show(FULL)
    screen.close()
    assert caplog.messages == [
        "the run goes on, but its progress can no longer be shown: I/O operation on closed file",
    ]
    assert "write" not in vars(stream)


def test_streams_are_put_back_also_when_somebody_else_had_replaced_write(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    stream = Terminal()
    stream.write = said.append  # type: ignore[method-assign,assignment]  # somebody else's
    others = stream.write
    monkeypatch.setattr(sys, "stderr", stream)
    screen = LiveScreen(stream)
    stream.write("hello")
    screen.close()
    assert stream.write is others and said == ["hello"]


def test_a_fork_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    screen = screen_for(True)
    screen.show(FULL)
    before = stream.getvalue()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            screen.show(BARE)
            stream.write("x\n")
            screen.close()
            is_free = progress_line._taken.acquire(blocking=False)
            os.write(theirs, repr((stream.getvalue()[len(before) :], is_free)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert pipe.read().decode() == repr(("x\n", True))
    os.waitpid(child, 0)
    screen.close()
