"""Ctrl-C: the first ends a search cleanly and the second kills it, with and without a terminal, also at start-up."""

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
from fanwise.tune.record.event_file import read_events

SOURCES = Path(fanwise.__file__).parents[1]

# A user's script. Trials report once and wait. The objective `stubborn` ignores requests to stop.
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
    if sys.stdin.isatty():  # a session leader must open the terminal to receive its Ctrl-C
        os.close(os.open(os.ttyname(0), os.O_RDWR))
    scheduler, stop = FIFO(metric="loss"), StoppingCriterion(max_wallclock_time=600)
    objective = globals()[sys.argv[1]]
    tuner = Tuner(objective, {"x": uniform(0, 1)}, scheduler, stop, n_workers=2, name="pressed", stop_grace_s=60)
    try:
        experiment = tuner.run()
    except KeyboardInterrupt as interrupted:
        print("raised", type(interrupted).__name__, "with", len(interrupted.experiment.results), "reports")
        sys.exit(130)
    print("returned", len(experiment.results), "reports")
"""

# A module that creates a file and whose import never ends.
SLOW = """
import os, signal
open(os.environ["SLOW_BEGUN"], "w").close()
while True:
    signal.pause()
"""


class Running:
    """A process that runs the script, and a thread that collects its output."""

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
        except OSError:  # raised when the last writer has closed the terminal
            pass

    def send_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_for_line(self, line: str) -> None:
        within(20.0, lambda: line in self.text, f"the script prints {line!r}")

    def wait(self) -> int:
        within(40.0, lambda: self.process.poll() is not None, "the script has ended")
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
    """Run the script in a process. `terminal`: give it a new terminal, in which Ctrl-C can be typed."""
    path = folder / "script.py"
    path.write_text(SCRIPT)
    source, target = pty.openpty() if terminal else os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, path, objective],
            env={**os.environ, "PYTHONPATH": str(SOURCES), "TERM": "xterm", **(environment or {})},
            stdin=target if terminal else subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    finally:
        os.close(target)
    running = Running(process, source)
    try:
        yield running
    finally:
        running.close()


def num_reports() -> int:
    try:
        return sum(event.kind == "report" for event in read_events(load_experiment("pressed").path))
    except RecordError:  # the folder has no record yet
        return 0


def wait_for_reports() -> None:
    within(40.0, lambda: num_reports() == 2, "both trials have reported")


def check_results() -> Experiment:
    experiment = load_experiment("pressed")
    assert len(experiment.results) == 2
    assert list(experiment.trials["status"]) == ["Stopped", "Stopped"]
    assert experiment.state == "finished"
    return experiment


HINT = "Ctrl-C: stopping the trials; all results are kept. Ctrl-C again kills them."


def test_first_ctrl_c_stops_the_trials_prints_the_summary_and_raises(tmp_path: Path) -> None:
    with script(tmp_path, "gentle") as running:
        wait_for_reports()
        running.send_ctrl_c()
        assert running.wait() == 130
        lines = running.text.splitlines()
    assert "Resource summary (last result is reported):" in lines
    assert lines[-2:] == ["the search ended: interrupted", "raised SearchInterrupted with 2 reports"]
    assert "Traceback" not in running.text
    check_results()


def test_ctrl_c_in_a_terminal_replaces_the_live_table_by_the_summary(tmp_path: Path) -> None:
    with script(tmp_path, "gentle", terminal=True) as running:
        wait_for_reports()
        running.wait_for_line("2 trials running")
        os.write(running._source, b"\x03")
        assert running.wait() == 130
        table, _, summary = running.text.rpartition("\x1b[?25h")  # the cursor is shown again
    assert "\x1b[?25l" in table and "loss" in table
    assert "Resource summary (last result is reported):" in summary
    assert summary.endswith("the search ended: interrupted\r\nraised SearchInterrupted with 2 reports\r\n")
    assert "Traceback" not in running.text
    check_results()


@pytest.mark.parametrize("terminal", [False, True])
def test_second_ctrl_c_kills_trials_that_ignore_the_first(tmp_path: Path, terminal: bool) -> None:
    with script(tmp_path, "stubborn", terminal=terminal) as running:
        wait_for_reports()
        running.send_ctrl_c()
        running.wait_for_line(HINT)
        assert running.process.poll() is None
        running.send_ctrl_c()
        assert running.wait() == 130  # without waiting for the grace period of 60 s
    assert "raised SearchInterrupted" in running.text
    assert "Traceback" not in running.text
    check_results()


def test_ctrl_c_during_an_import_ends_the_search_before_the_first_trial(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    marker = tmp_path / "marker"
    with script(tmp_path, "late", environment={"SLOW_BEGUN": str(marker)}) as running:
        within(40.0, marker.exists, "the warm process imports")
        running.send_ctrl_c()
        assert running.wait() == 130
    assert "raised SearchInterrupted with 0 reports" in running.text
    assert list(load_experiment("pressed").trials["status"]) == ["Stopped", "Stopped"]


# Watching a search.


class EndlessSearch:
    """A search that ends only at call number `ends_at` of `take_news`. 0: it never ends."""

    def __init__(self, ends_at: int = 0) -> None:
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        self.num_calls = 0
        self.num_interrupts = 0
        self.abandoned_by: list[str] = []
        self._ends_at = ends_at

    def apply_command(self, make: Callable[[float], Event]) -> None:
        assert make is Interrupt
        self.num_interrupts += 1

    def abandon(self) -> None:
        self.abandoned_by.append(threading.current_thread().name)
        self.finished.set()

    def take_news(self) -> list[str]:
        self.num_calls += 1
        if self.num_calls == self._ends_at:
            self.finished.set()
        return []

    def take_snapshot(self) -> str:
        return "a snapshot"


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


def watched_lines(hub: Hub, search: EndlessSearch, num_ctrl_c: int = 0, *, is_blank: bool = False) -> list[str]:
    """Watch the search. Return the printed lines."""
    interrupts, screen = Interrupts(), RecordingScreen(is_blank=is_blank)
    for _ in range(num_ctrl_c):
        interrupts.on_sigint(signal.SIGINT, None)
    watch(hub, cast(Any, search), cast(Any, screen), interrupts, end_timeout_s=0.05)  # Any: a stand-in
    return screen.lines


def test_watch_shows_the_search_until_it_ends(hub: Hub) -> None:
    search = EndlessSearch(ends_at=100)
    assert watched_lines(hub, search) == []
    assert search.num_calls == 100


def test_watch_returns_if_a_killed_or_failed_search_does_not_end(hub: Hub) -> None:
    killed = EndlessSearch()
    assert watched_lines(hub, killed, num_ctrl_c=2) == [HINT, "Ctrl-C: the trials are killed."]
    assert killed.num_interrupts == 2
    failed = EndlessSearch()
    failed.failure = MemoryError()
    assert watched_lines(hub, failed) == []


def test_first_ctrl_c_is_forwarded_once_and_has_no_deadline(hub: Hub) -> None:
    search = EndlessSearch(ends_at=2000)
    assert watched_lines(hub, search, num_ctrl_c=1) == [HINT]
    assert (search.num_calls, search.num_interrupts) == (2000, 1)


@pytest.mark.parametrize("is_blank", [False, True])
def test_watch_raises_if_the_hub_has_ended(hub: Hub, is_blank: bool) -> None:
    hub.close()
    with pytest.raises(ClosedError):
        watched_lines(hub, EndlessSearch(), is_blank=is_blank)


def test_watch_takes_no_snapshots_for_a_blank_screen(hub: Hub) -> None:
    search = EndlessSearch()
    hub.call_soon(search.finished.set)
    assert watched_lines(hub, search, is_blank=True) == []
    assert search.num_calls == 0


def test_call_on_a_closed_hub_raises() -> None:
    idle = Hub(name="idle")  # its thread is not started
    errors: list[BaseException] = []

    def call() -> None:
        try:
            call_on(idle, lambda: None)
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    within(10.0, lambda: idle._soon, "the call is queued")
    idle.close()
    thread.join()
    assert len(errors) == 1


def test_search_is_abandoned_on_the_thread_of_the_hub_or_here_if_that_has_ended(hub: Hub) -> None:
    search = EndlessSearch()
    abandon_unless_finished(hub, cast(Any, search))  # Any: a stand-in
    abandon_unless_finished(hub, cast(Any, search))  # Any: a stand-in
    assert search.abandoned_by == ["fanwise-test"]
    hub.close()
    orphan = EndlessSearch()
    abandon_unless_finished(hub, cast(Any, orphan))  # Any: a stand-in
    assert orphan.abandoned_by == [threading.current_thread().name]


def test_error_of_a_snapshot_propagates_from_watch(hub: Hub) -> None:
    search = EndlessSearch()
    search.take_news = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]  # raises
    with pytest.raises(ZeroDivisionError):
        watched_lines(hub, search)


# Counting Ctrl-C.


def test_third_ctrl_c_raises_in_the_main_thread() -> None:
    interrupts = Interrupts()
    interrupts.on_sigint(signal.SIGINT, None)
    interrupts.on_sigint(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        interrupts.on_sigint(signal.SIGINT, None)


def test_signal_handler_is_restored_after_the_block() -> None:
    before = signal.getsignal(signal.SIGINT)
    with counting_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_sigint_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with counting_interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_do_not_change_the_signal_handler() -> None:
    before, handlers = signal.getsignal(signal.SIGINT), []

    def count() -> None:
        with counting_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert handlers == [before]
