"""The lock that the writer of a record holds."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from fanwise.tune.record.lock import LOCK_NAME, HeldError, hold, is_held, release


def test_the_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    assert is_held(tmp_path) is False
    lock_fd = hold(tmp_path)
    assert lock_fd is not None
    assert is_held(tmp_path)
    with pytest.raises(HeldError):
        hold(tmp_path)
    release(lock_fd)
    assert is_held(tmp_path) is False


def test_concurrent_readers_do_not_mistake_each_other_for_the_writer(tmp_path: Path) -> None:
    release(hold(tmp_path))
    descriptor = os.open(tmp_path / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as another reader does
    assert is_held(tmp_path) is False
    os.close(descriptor)


def test_writer_waits_for_a_reader_that_checks_the_lock(tmp_path: Path) -> None:
    release(hold(tmp_path))
    descriptor = os.open(tmp_path / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    timer = threading.Timer(0.05, os.close, [descriptor])
    timer.start()
    lock_fd = hold(tmp_path)
    assert lock_fd is not None
    release(lock_fd)
    timer.join()


def test_file_system_without_locks_gives_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("fanwise.tune.record.lock.fcntl.flock", refuse)
    assert hold(tmp_path) is None
    release(None)
    assert is_held(tmp_path) is None
