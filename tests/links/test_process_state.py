"""The state of other processes: alive, ended, stopped, or stopped for too long."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from fanwise.links.process_state import FrozenWatch, has_ended, stat_of, this_host
from fanwise.testing import within


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    within(10.0, lambda: stat_of(process.pid).state == "T", "it is stopped")


def resume(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGCONT)
    within(10.0, lambda: stat_of(process.pid).state != "T", "it goes on")


def test_a_process_has_ended_when_it_is_gone_or_another_has_its_pid(process: "subprocess.Popen[bytes]") -> None:
    look = stat_of(process.pid)
    assert not has_ended(process.pid, look.started_ticks)
    assert has_ended(process.pid, look.started_ticks - 1)
    process.kill()
    within(10.0, lambda: has_ended(process.pid, look.started_ticks), "a dead process that nobody has reaped has ended")
    process.wait()
    assert has_ended(process.pid, look.started_ticks)


def test_a_process_is_frozen_when_all_looks_of_five_seconds_found_it_stopped(
    process: "subprocess.Popen[bytes]",
) -> None:
    watch = FrozenWatch()
    pids = [process.pid, os.getpid()]
    assert watch.look(pids, 0.0) == []
    stop(process)
    assert [watch.look(pids, now_s) for now_s in (1.0, 2.0, 3.0, 4.0, 5.0)] == [[]] * 5
    assert watch.look(pids, 6.0) == [process.pid]


def test_who_goes_on_in_between_is_not_frozen(process: "subprocess.Popen[bytes]") -> None:
    watch = FrozenWatch()
    stop(process)
    assert [watch.look([process.pid], now_s) for now_s in (0.0, 2.0, 4.0)] == [[]] * 3
    resume(process)
    assert watch.look([process.pid], 5.0) == []
    stop(process)
    assert watch.look([process.pid], 6.0) == []


def test_time_in_which_nobody_looked_does_not_count(process: "subprocess.Popen[bytes]") -> None:
    watch = FrozenWatch()
    stop(process)
    assert watch.look([process.pid], 0.0) == []
    assert watch.look([process.pid], 60.0) == []


def test_one_host_has_one_name() -> None:
    assert this_host() == this_host() and os.uname().nodename in this_host()
