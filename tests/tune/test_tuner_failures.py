"""Failures of trials: each kind ends only its own trial, the reason is recorded, and the search continues."""

import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from disks import FullDisk
from searches import quiet_tuner

from fanwise.base.errors import RecordError, SearchFailedError
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import (
    FIFO,
    Experiment,
    StoppingCriterion,
    Tuner,
    choice,
    load_experiment,
    report,
    trial_id,
)
from fanwise.tune.record.event_file import read_events
from fanwise.tune.record.overview import read_search

WAYS = [
    *("good", "raises", "hangs", "crashes", "exits", "leaves", "is killed", "says nothing", "reports nan"),
    *("needs too much memory", "raises what cannot be pickled", "reports a word", "returns a word"),
    *("reports and returns a word", "forgets the metric", "survives a thread", "still good"),
]


class HeavyError(Exception):
    """An error that holds what cannot travel."""

    def __init__(self) -> None:
        super().__init__("too heavy")
        self.lock = threading.Lock()


def end_in_a_way(way: str) -> float | str | None:
    """An objective that ends in the given way."""
    print(f"this trial {way}", file=sys.stderr, flush=True)
    if way == "raises":
        raise ValueError("no such layer")
    if way == "hangs":
        signal.pause()
    if way == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if way == "exits":
        sys.exit(3)
    if way == "leaves":
        os._exit(4)
    if way == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "says nothing":
        return None
    if way == "reports nan":
        report(loss=float("nan"))
    if way == "needs too much memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, resource.RLIM_INFINITY))
        bytearray(1 << 33)
    if way == "raises what cannot be pickled":
        raise HeavyError
    if way == "reports a word":
        report(loss="low")
    if way == "returns a word":
        return "done"
    if way == "reports and returns a word":
        report(loss=0.5)
        return "done"
    if way == "forgets the metric":
        report(loss=0.5)
        report(epoch=2)
    if way == "survives a thread":
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    return 0.5


def search(objective: Any, ways: list[str], **options: Any) -> Experiment:  # Any: options of a tuner
    """One search with one trial for each way, in this action."""
    points = [{"way": way} for way in ways]
    scheduler = FIFO(metric="loss", points_to_evaluate=points)
    options = {"n_workers": 2, "quiet": True, **options}
    stop = StoppingCriterion(max_num_trials_started=len(ways))
    return Tuner(objective, {"way": choice(list(dict.fromkeys(ways)))}, scheduler, stop, **options).run()


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiment]:
    """A search in which every way of failing happens once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FANWISE_HOME", str(tmp_path_factory.mktemp("failures")))
        yield search(end_in_a_way, WAYS, trial_timeout_s=3.0)


@pytest.fixture(scope="module")
def trials(failures: Experiment) -> pd.DataFrame:
    """Its trials by number."""
    return failures.trials.set_index("trial_id")


REASONS = {
    "raises": ("exception", "ValueError: no such layer"),
    "hangs": ("time-out", "still running 3 s after the objective of this attempt was called (trial_timeout_s)"),
    "crashes": ("signal", "ended by SIGSEGV. A crash in native code"),
    "exits": ("exit", "the job left by SystemExit: 3"),
    "leaves": ("exit", "ended with exit code 4 before its function returned. Something called sys.exit or os._exit."),
    "is killed": ("signal", "ended by SIGKILL. fanwise did not send it"),
    "says nothing": ("no-report", "the objective ended without reporting 'loss', and returned nothing"),
    "reports nan": ("nan", "the objective reported loss=nan"),
    "needs too much memory": ("out-of-memory", "MemoryError"),
    "raises what cannot be pickled": ("exception", "HeavyError: too heavy"),
    "returns a word": (
        "exception",
        "TypeError: the objective reported nothing and returned 'done', a str, which is not a metric.\nReturn a number",
    ),
    "forgets the metric": (
        "exception",
        "ValueError: the objective reported 'epoch', but not the scheduler's metric 'loss'; ",
    ),
    "reports a word": ("exception", "ValueError: the metric 'loss' must be a number, got 'low' of type str"),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_kind_of_failure_ends_one_trial_and_is_recorded(
    failures: Experiment, trials: pd.DataFrame, way: str
) -> None:
    number = WAYS.index(way)
    row = trials.loc[number]
    reason = failures.reason(number)
    assert row["config_way"] == way
    if way not in REASONS:
        assert row["status"] == "Completed"
        assert reason is None
        return
    kind, text = REASONS[way]
    assert row["status"] == "Failed"
    assert reason is not None
    assert reason.kind == kind
    assert reason.text.startswith(text)
    assert reason.last_output is not None
    assert f"this trial {way}" in reason.last_output or reason.last_output.count("\n") == 19  # its last 20 lines


def test_traceback_names_the_line_that_raised(failures: Experiment) -> None:
    reason = failures.reason(WAYS.index("raises"))
    assert reason is not None
    assert reason.traceback is not None
    assert 'raise ValueError("no such layer")' in reason.traceback
    assert "in end_in_a_way" in reason.traceback


def test_other_trials_continue_after_every_failure(failures: Experiment) -> None:
    assert failures.state == "finished"
    assert list(failures.trials["trial_id"]) == list(range(len(WAYS)))
    assert (failures.trials["status"] == "InProgress").sum() == 0
    assert failures.best is not None
    assert failures.best.value == 0.5


def test_output_of_every_trial_is_kept(failures: Experiment) -> None:
    for number, way in enumerate(WAYS):
        assert (failures.path / "output" / f"{number}.err").read_text().startswith(f"this trial {way}\n")


# The first trials all failing alike.


def test_search_fails_and_keeps_its_results_if_the_first_trials_fail_alike(pool: Pool) -> None:
    with pytest.raises(SearchFailedError) as caught:
        search(end_in_a_way, ["raises"] * 8, pool=pool, name="alike", n_workers=1)
    text = str(caught.value)
    assert text.startswith("the first 3 trials to finish all failed alike (exception): ValueError: no such layer\n")
    assert 'raise ValueError("no such layer")' in text
    assert text.count("Traceback") == text.count('raise ValueError("no such layer")') == 1
    assert "last output:\nthis trial raises\nFix the objective" in text
    assert "set max_equal_failures=None to continue after any failure." in text
    assert "All reports are saved: load_experiment('alike')." in text
    experiment = load_experiment("alike")
    assert list(experiment.trials["status"]) == ["Failed"] * 3
    assert experiment.state == "finished"


def test_search_whose_trials_all_failed_can_be_resumed(pool: Pool) -> None:
    points = [{"way": "raises"}, {"way": "reports nan"}, {"way": "good"}]
    space = {"way": choice(["raises", "reports nan", "good"])}
    tuner = quiet_tuner(end_in_a_way, space, trials=2, points=points, pool=pool, n_workers=1, name="resumed")
    with pytest.raises(SearchFailedError, match="all 2 trials failed"):
        tuner.run()
    stop = StoppingCriterion(max_num_trials_started=3)
    experiment = Tuner.resume("resumed", stop=stop, pool=pool, quiet=True).run()
    assert list(experiment.trials["status"]) == ["Failed", "Failed", "Completed"]


def test_objective_that_cannot_be_imported_in_a_worker_fails_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile.py").write_text(
        "import os\n"
        "if os.getpid() != int(os.environ['FRAGILE_PID']):\n"
        "    raise ImportError('not in a worker')\n"
        "def objective(way):\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FRAGILE_PID", str(os.getpid()))
    import fragile  # type: ignore[import-not-found]  # just written

    with pytest.raises(SearchFailedError, match=r"\(exception\): ImportError: not in a worker"):
        search(fragile.objective, ["good"] * 4)
    monkeypatch.delitem(sys.modules, "fragile")


# Retries.


def fail_at_first(way: str, folder: str) -> float:
    """Fails in its first attempt only."""
    report(loss=9.0)
    marker = Path(folder) / way
    if not marker.exists():
        marker.touch()
        end_in_a_way(way)
    return 0.5


def test_crashed_trial_is_retried_and_only_its_last_attempt_counts(pool: Pool, tmp_path: Path) -> None:
    ways = ["raises", "crashes", "leaves"]
    scheduler = FIFO(metric="loss", points_to_evaluate=[{"way": way} for way in ways])
    space = {"way": choice(ways), "folder": str(tmp_path)}
    stop = StoppingCriterion(max_num_trials_started=3)
    experiment = Tuner(fail_at_first, space, scheduler, stop, pool=pool, n_workers=2, retries=1, quiet=True).run()
    assert list(experiment.trials["status"]) == ["Completed"] * 3
    assert list(experiment.trials["attempt"]) == [1, 1, 1]
    assert list(experiment.results.groupby("trial_id")["loss"].count()) == [2, 2, 2]
    assert sorted(read_search(experiment.path).search.reports.trial_ids) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    outputs = {path.name for path in (experiment.path / "output").iterdir()}
    assert {"0.err", "1.err", "2.err"} <= outputs  # of the first attempts, which printed


# Processes that die from outside.


def wait_for_a_kill(way: str) -> float:
    """Record the pids of the processes that block this one, and wait if requested."""
    warm = psutil.Process(os.getppid())
    report(loss=1.0, worker=os.getpid(), warm=warm.pid, supervisor=warm.ppid())
    if way == "waits":
        signal.pause()
    return 0.5


def run_and_kill(ways: list[str], column: str) -> Experiment:
    """A search whose trial 0 waits; when it has reported, the process in this column is killed."""
    done: list[Experiment] = []
    thread = threading.Thread(target=lambda: done.append(search(wait_for_a_kill, ways, name="killed", n_workers=1)))
    thread.start()

    def reported() -> int:
        try:
            events = read_events(load_experiment("killed").path)
        except RecordError:
            return 0
        return next((int(event.body["values"][column]) for event in events if event.kind == "report"), 0)

    os.kill(within(30.0, reported, "trial 0 has reported"), signal.SIGKILL)
    thread.join(60.0)
    return done[0]


@pytest.mark.parametrize(("column", "kind"), [("worker", "signal"), ("warm", "lost"), ("supervisor", "lost")])
def test_killed_process_fails_the_trial_below_it_and_the_search_continues(column: str, kind: str) -> None:
    experiment = run_and_kill(["waits", "good", "still good"], column)
    assert list(experiment.trials["status"]) == ["Failed", "Completed", "Completed"]
    reason = experiment.reason(0)
    assert reason is not None and reason.kind == kind
    assert experiment.state == "finished"


# The disk.


def fill(folder: str) -> None:
    """Report until a report is refused, and write one byte per recorded report."""
    log_fd = os.open(f"{folder}/{trial_id()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        report(loss=0.1234567890123456)
        os.write(log_fd, b".")


def test_full_disk_ends_the_search_with_one_error_and_keeps_committed_events(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with FullDisk(after_bytes=200_000) as disk:
        with pytest.raises(RecordError, match=r"events\.jsonl cannot be written: .*file sizes") as caught:
            quiet_tuner(fill, {"folder": str(tmp_path / "kept")}, trials=2, name="full", callbacks=[disk]).run()
    assert "All reports are saved: load_experiment('full')." in caught.value.__notes__
    known = load_experiment("full").results["trial_id"].value_counts()
    sizes = {int(path.name): path.stat().st_size for path in (tmp_path / "kept").iterdir()}
    assert len(sizes) == 2
    assert all(known[trial] >= number > 10 for trial, number in sizes.items())
