"""The lock that says whether a record has a writer."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from fanwise.tune.record.lock import LOCK_NAME, HeldError, hold, is_held, release


def test_the_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    assert is_held(tmp_path) is False
    held = hold(tmp_path)
    assert held is not None
    assert is_held(tmp_path)
    with pytest.raises(HeldError):
        hold(tmp_path)
    release(held)
    assert is_held(tmp_path) is False


def test_readers_who_ask_at_the_same_moment_do_not_take_each_other_for_the_writer(tmp_path: Path) -> None:
    release(hold(tmp_path))
    descriptor = os.open(tmp_path / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # what another reader does
    assert is_held(tmp_path) is False
    os.close(descriptor)


def test_a_reader_that_looks_at_this_moment_does_not_keep_a_writer_out(tmp_path: Path) -> None:
    release(hold(tmp_path))
    descriptor = os.open(tmp_path / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    leaves = threading.Timer(0.05, os.close, [descriptor])
    leaves.start()
    held = hold(tmp_path)
    assert held is not None
    release(held)
    leaves.join()


def test_without_locks_nothing_is_known_of_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("fanwise.tune.record.lock.fcntl.flock", refuse)
    assert hold(tmp_path) is None
    release(None)
    assert is_held(tmp_path) is None
