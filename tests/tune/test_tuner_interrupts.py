"""Ctrl-C: once ends a search cleanly, twice kills it, with a terminal and without, also while it starts up."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import fanwise
from fanwise.base.errors import ClosedError, RecordError
from fanwise.links.hub import Hub
from fanwise.testing import within
from fanwise.tune import Experiment, load_experiment
from fanwise.tune.core.events import Event, Interrupt
from fanwise.tune.display.watch import Interrupts, abandon_unless_finished, call_on, counting_interrupts, watch
from fanwise.tune.record.reading import read_events

SOURCES = Path(fanwise.__file__).parents[1]

# A user's script. Trials report once and wait; stubborn ones cannot be told to stop.
SCRIPT = """
import os, signal, sys
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform

def gentle(x):
    report(loss=x)
    while True:
        signal.pause()

def stubborn(x):
    report(loss=x)
    while True:
        try:
            signal.pause()
        except BaseException:
            pass

def late(x):
    import slow_to_import
    gentle(x)

if __name__ == "__main__":
    if sys.stdin.isatty():  # the leader of a session that opens a terminal gets its Ctrl-C
        os.close(os.open(os.ttyname(0), os.O_RDWR))
    scheduler, stop = FIFO(metric="loss"), StoppingCriterion(max_wallclock_time=600)
    objective = globals()[sys.argv[1]]
    tuner = Tuner(objective, {"x": uniform(0, 1)}, scheduler, stop, n_workers=2, name="pressed", stop_grace_s=60)
    try:
        experiment = tuner.run()
    except KeyboardInterrupt as interrupted:
        print("it raised", type(interrupted).__name__, "with", len(interrupted.experiment.results), "reports")
        sys.exit(130)
    print("it returned", len(experiment.results), "reports")
"""

# Says that it is being imported, and never comes to an end.
SLOW = """
import os, signal
open(os.environ["SLOW_BEGUN"], "w").close()
while True:
    signal.pause()
"""


class Running:
    """A child that runs the script; a thread collects all it prints."""

    def __init__(self, process: "subprocess.Popen[bytes]", source: int) -> None:
        self.process = process
        self._source = source
        self._text = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        return self._text.decode(errors="replace")

    def _read(self) -> None:
        try:
            while block := os.read(self._source, 65536):
                self._text += block
        except OSError:  # a terminal says so when its last writer has closed it
            pass

    def press(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def says(self, line: str) -> None:
        within(20.0, lambda: line in self.text, f"it says {line!r}")

    def ends(self) -> int:
        within(40.0, lambda: self.process.poll() is not None, "it has ended")
        self._reader.join()
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._source)


@contextmanager
def script(
    folder: Path, objective: str, *, terminal: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """The script in a child; with `terminal` it has one of its own, to which Ctrl-C can be typed."""
    path = folder / "script.py"
    path.write_text(SCRIPT)
    ours, theirs = pty.openpty() if terminal else os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, path, objective],
            env={**os.environ, "PYTHONPATH": str(SOURCES), "TERM": "xterm", **(environment or {})},
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    running = Running(process, ours)
    try:
        yield running
    finally:
        running.close()


def num_reports() -> int:
    try:
        return sum(event.kind == "report" for event in read_events(load_experiment("pressed").path))
    except RecordError:  # its folder is just being made
        return 0


def both_have_reported() -> None:
    within(40.0, lambda: num_reports() == 2, "both trials have reported")


def everything_is_kept() -> Experiment:
    experiment = load_experiment("pressed")
    assert len(experiment.results) == 2
    assert list(experiment.trials["status"]) == ["Stopped", "Stopped"]
    assert experiment.state == "finished"
    return experiment


HINT = "Ctrl-C: stopping the trials; all results are kept. Ctrl-C again kills them."


def test_once_stops_the_trials_prints_the_summary_and_goes_on_as_keyboard_interrupt(tmp_path: Path) -> None:
    with script(tmp_path, "gentle") as running:
        both_have_reported()
        running.press()
        assert running.ends() == 130
        lines = running.text.splitlines()
    assert "Resource summary (last result is reported):" in lines
    assert lines[-2:] == ["the search ended: interrupted", "it raised SearchInterrupted with 2 reports"]
    assert "Traceback" not in running.text
    everything_is_kept()


def test_ctrl_c_typed_into_a_terminal_ends_the_live_table_and_leaves_the_summary(tmp_path: Path) -> None:
    with script(tmp_path, "gentle", terminal=True) as running:
        both_have_reported()
        running.says("2 trials running")
        os.write(running._source, b"\x03")
        assert running.ends() == 130
        table, _, summary = running.text.rpartition("\x1b[?25h")  # the cursor comes back
    assert "\x1b[?25l" in table and "loss" in table
    assert "Resource summary (last result is reported):" in summary
    assert summary.endswith("the search ended: interrupted\r\nit raised SearchInterrupted with 2 reports\r\n")
    assert "Traceback" not in running.text
    everything_is_kept()


@pytest.mark.parametrize("terminal", [False, True])
def test_twice_kills_what_cannot_be_stopped_and_raises_keyboard_interrupt(tmp_path: Path, terminal: bool) -> None:
    with script(tmp_path, "stubborn", terminal=terminal) as running:
        both_have_reported()
        running.press()
        running.says(HINT)
        assert running.process.poll() is None
        running.press()
        assert running.ends() == 130  # long before the 60 s of grace are over
    assert "it raised SearchInterrupted" in running.text
    assert "Traceback" not in running.text
    everything_is_kept()


def test_once_while_an_import_hangs_ends_it_before_any_trial_has_begun(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    begun = tmp_path / "begun"
    with script(tmp_path, "late", environment={"SLOW_BEGUN": str(begun)}) as running:
        within(40.0, begun.exists, "the warm process imports")
        running.press()
        assert running.ends() == 130
    assert "it raised SearchInterrupted with 0 reports" in running.text
    assert list(load_experiment("pressed").trials["status"]) == ["Stopped", "Stopped"]


# Watching a search.


class EndlessSearch:
    """A search that does not end, whatever is done to it; or does when it is shown for the n-th time."""

    def __init__(self, ends_at: int = 0) -> None:
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        self.looks = 0
        self.interrupts = 0
        self.abandoned_by: list[str] = []
        self._ends_at = ends_at

    def apply_command(self, make: Callable[[float], Event]) -> None:
        assert make is Interrupt
        self.interrupts += 1

    def abandon(self) -> None:
        self.abandoned_by.append(threading.current_thread().name)
        self.finished.set()

    def take_frame(self) -> tuple[list[str], str]:
        self.looks += 1
        if self.looks == self._ends_at:
            self.finished.set()
        return [], "a snapshot"


class RecordingScreen:
    """Records the printed lines."""

    pause_s = 0.0

    def __init__(self, *, is_blank: bool = False) -> None:
        self.is_blank = is_blank
        self.lines: list[str] = []

    def show(self, news: list[str], snapshot: object) -> None: ...
    def print_lines(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="test")
    hub.start()
    yield hub
    hub.close()


def watch_it(hub: Hub, search: EndlessSearch, presses: int = 0, *, is_blank: bool = False) -> list[str]:
    """Watch the search. Return the printed lines."""
    interrupts, screen = Interrupts(), RecordingScreen(is_blank=is_blank)
    for _ in range(presses):
        interrupts.on_sigint(signal.SIGINT, None)
    watch(hub, cast(Any, search), cast(Any, screen), interrupts, last_wait_s=0.05)  # Any: a stand-in
    return screen.lines


def test_a_search_is_watched_until_it_ends(hub: Hub) -> None:
    search = EndlessSearch(ends_at=100)
    assert watch_it(hub, search) == []
    assert search.looks == 100


def test_nobody_waits_for_ever_for_a_search_that_was_killed_or_has_failed(hub: Hub) -> None:
    killed = EndlessSearch()
    assert watch_it(hub, killed, presses=2) == [HINT, "Ctrl-C: the trials are killed."]
    assert killed.interrupts == 2
    failed = EndlessSearch()
    failed.failure = MemoryError()
    assert watch_it(hub, failed) == []


def test_one_press_is_told_once_and_the_search_may_take_its_time(hub: Hub) -> None:
    search = EndlessSearch(ends_at=2000)
    assert watch_it(hub, search, presses=1) == [HINT]
    assert (search.looks, search.interrupts) == (2000, 1)


@pytest.mark.parametrize("is_blank", [False, True])
def test_a_search_whose_hub_has_ended_is_not_watched(hub: Hub, is_blank: bool) -> None:
    hub.close()
    with pytest.raises(ClosedError):
        watch_it(hub, EndlessSearch(), is_blank=is_blank)


def test_for_a_screen_that_shows_nothing_nothing_is_looked_at(hub: Hub) -> None:
    search = EndlessSearch()
    hub.call_soon(search.finished.set)
    assert watch_it(hub, search, is_blank=True) == []
    assert search.looks == 0


def test_a_call_on_a_hub_that_is_closed_before_it_raises() -> None:
    idle = Hub(name="idle")  # nobody drives it
    seen: list[BaseException] = []

    def call() -> None:
        try:
            call_on(idle, lambda: None)
        except ClosedError as error:
            seen.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    within(10.0, lambda: idle._soon, "the call is queued")
    idle.close()
    thread.join()
    assert len(seen) == 1


def test_a_search_that_is_left_is_abandoned_on_the_hubs_thread_or_here_when_that_has_ended(hub: Hub) -> None:
    search = EndlessSearch()
    abandon_unless_finished(hub, cast(Any, search))  # Any: a stand-in
    abandon_unless_finished(hub, cast(Any, search))  # Any: a stand-in
    assert search.abandoned_by == ["fanwise-test"]
    hub.close()
    orphan = EndlessSearch()
    abandon_unless_finished(hub, cast(Any, orphan))  # Any: a stand-in
    assert orphan.abandoned_by == [threading.current_thread().name]


def test_what_breaks_a_look_comes_out_of_watching(hub: Hub) -> None:
    search = EndlessSearch()
    search.take_frame = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]  # it breaks
    with pytest.raises(ZeroDivisionError):
        watch_it(hub, search)


# The counting itself.


def test_the_third_press_breaks_out_wherever_the_main_thread_is() -> None:
    interrupts = Interrupts()
    interrupts.on_sigint(signal.SIGINT, None)
    interrupts.on_sigint(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        interrupts.on_sigint(signal.SIGINT, None)


def test_the_handler_is_there_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGINT)
    with counting_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_the_program_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with counting_interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_changed() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def count() -> None:
        with counting_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert seen == [before]
