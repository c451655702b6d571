"""The lock that says whether a record has a writer."""

import fcntl
import os
from pathlib import Path

import pytest

from fanwise.tune.record.lock import LOCK_NAME, hold, is_held, release, remove
from fanwise.tune.record.reading import FILE_NAME


def test_the_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    held = hold(tmp_path)
    assert held is not None
    assert is_held(file)
    release(held)
    assert is_held(file) is False


def test_readers_who_ask_at_the_same_moment_do_not_take_each_other_for_the_writer(tmp_path: Path) -> None:
    release(hold(tmp_path))
    descriptor = os.open(tmp_path / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # what another reader does
    assert is_held(tmp_path / FILE_NAME) is False
    os.close(descriptor)


def test_without_a_lock_file_a_closed_record_has_no_writer_and_of_an_open_one_nothing_is_known(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    assert is_held(file) is False
    (tmp_path / f"{FILE_NAME}-wal").touch()
    assert is_held(file) is None


def test_the_lock_file_goes_with_the_log(tmp_path: Path) -> None:
    file, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"
    release(hold(tmp_path))
    log.touch()
    remove(file)
    assert (tmp_path / LOCK_NAME).exists()
    log.unlink()
    remove(file)
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_file_system_without_locks_gets_no_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("fanwise.tune.record.lock.fcntl.flock", refuse)
    assert hold(tmp_path) is None
    release(None)
    assert list(tmp_path.iterdir()) == []
