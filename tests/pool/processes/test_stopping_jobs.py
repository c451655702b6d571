"""Stop requests: `TrialStopped` in the job, and SIGKILL after the grace period."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from gates import Gate
from job_functions import began, local_engine, submitted

from fanwise.base.errors import TrialStopped
from fanwise.pool import JobHandle, Outcome, Pool, current
from fanwise.testing import within


def stopped(handle: JobHandle, grace_s: float = 30.0) -> Outcome:
    handle.stop(grace_s)
    return handle.outcome(within_s=30)


def test_except_exception_does_not_catch_a_stop_and_finally_runs(pool: Pool, tmp_path: Path) -> None:
    def catch_exceptions() -> None:
        while True:
            try:
                (tmp_path / "ready").touch()
                signal.pause()
            except Exception:
                continue
            finally:
                (tmp_path / "cleaned").touch()

    handle = began(pool.submit(catch_exceptions))
    within(30, (tmp_path / "ready").exists, "the job is inside its try")
    assert stopped(handle).kind == "stopped"
    assert (tmp_path / "cleaned").exists()


def test_a_second_stop_may_shorten_the_grace(pool: Pool, tmp_path: Path) -> None:
    def ignore_sigterm() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "ready").touch()
        while True:
            signal.pause()

    handle = began(pool.submit(ignore_sigterm))
    within(30, (tmp_path / "ready").exists, "the job ignores SIGTERM")
    handle.stop(grace_s=600)
    handle.stop(grace_s=0.1)
    handle.stop(grace_s=600)
    assert handle.outcome(within_s=30).kind == "signal"


def test_a_stop_is_raised_once(pool: Pool, gate: Gate, tmp_path: Path) -> None:
    def clean_up() -> str:
        try:
            (tmp_path / "ready").touch()
            signal.pause()
        except TrialStopped:
            gate.wait()
            return "cleaned up"
        return "not stopped"

    handle = began(pool.submit(clean_up))
    within(30, (tmp_path / "ready").exists, "the job is inside its try")
    for _ in range(5):
        handle.stop(grace_s=30)
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGTERM)
    gate.open()
    assert handle.result(within_s=30) == "cleaned up"


def test_a_stop_during_a_report_is_raised_after_the_answer(pool: Pool) -> None:
    def report() -> str:
        try:
            current().report(os.getpid())
            return "went on"
        except TrialStopped:
            return "stopped after the report, and the link still works: " + current().report(None).decision

    def decide(pid: int | None) -> str:
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            within(30, lambda: not _signal_is_pending(pid), "the signal has arrived in the job")
        return "CONTINUE"

    handle = pool.needs(on_report=decide).submit(report)
    assert handle.result(within_s=30) == "stopped after the report, and the link still works: CONTINUE"


def _signal_is_pending(pid: int) -> bool:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(status["ShdPnd"], 16) | int(status["SigPnd"], 16)
    return bool(pending & (1 << (signal.SIGTERM - 1)))


def test_a_decision_to_stop_in_another_thread_stops_the_function(pool: Pool) -> None:
    def train() -> None:
        threading.Thread(target=lambda: current().report(1)).start()
        signal.pause()

    handle = submitted(pool.needs(on_report=lambda values: "STOP").submit(train))
    assert handle.outcome(within_s=30).kind == "stopped"


def test_a_job_that_is_stopped_while_its_function_is_loaded_never_begins(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch() -> None:
        import fanwise_test_waits  # type: ignore[import-not-found]  # noqa: F401  # written by the test

        (tmp_path / "began").touch()

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fanwise_test_waits.py").write_text(f"open({str(gate.path)!r}, 'rb', buffering=0).read(1)\n")
    with Pool(cpus=1) as pool:
        for end in (JobHandle.stop, JobHandle.kill):
            handle = submitted(pool.submit(touch))
            end(handle)
            assert handle.outcome(within_s=30).text == f"job {handle.id} was stopped before it began"
        gate.open()
        assert pool.submit(int).result(within_s=60) == 0  # its lease had come back
    assert not (tmp_path / "began").exists()


def test_sigterm_is_repeated(pool: Pool, tmp_path: Path) -> None:
    def ignore_first_sigterm() -> None:
        previous_handler = signal.getsignal(signal.SIGTERM)

        def restore_handler(number: int, frame: object) -> None:
            signal.signal(signal.SIGTERM, previous_handler)

        signal.signal(signal.SIGTERM, restore_handler)
        (tmp_path / "ignore_sigterm").touch()
        threading.Event().wait(60)

    handle = submitted(pool.submit(ignore_first_sigterm))
    within(30, (tmp_path / "ignore_sigterm").exists, "it ignores the next SIGTERM")
    assert stopped(handle).kind == "stopped"


def test_jobs_can_be_stopped_at_any_moment_of_their_start(pool: Pool) -> None:
    handles = []
    for number in range(40):
        handle = submitted(pool.submit(signal.pause))
        # Choose a moment of the start.
        until_s = time.monotonic() + number * 0.0003
        while time.monotonic() < until_s:
            pass
        handle.stop(grace_s=30)
        handles.append(handle)
    assert {handle.outcome(within_s=30).kind for handle in handles} == {"stopped"}
    within(30, lambda: local_engine(pool).ledger.leases == {}, "all leases are back")


def test_a_killed_job_is_not_retried(pool: Pool) -> None:
    handle = began(pool.needs(retries=3).submit(signal.pause))
    handle.kill()
    assert handle.outcome(within_s=30).kind == "signal"
    assert handle.attempt == 0


def test_sigterm_ends_a_child_process_of_a_job(pool: Pool) -> None:
    def start() -> int | None:
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join()
        return child.exitcode

    assert pool.submit(start).result(within_s=30) == -signal.SIGTERM
