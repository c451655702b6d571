"""A file is replaced as a whole, or stays as it was."""

import os
from pathlib import Path

import pytest

from fanwise.base.atomic_file import atomic_file


@pytest.mark.parametrize("sync", [False, True])
def test_the_file_is_replaced_at_the_end_of_the_block(sync: bool, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")
    with atomic_file(target, sync=sync, mode=0o600) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")

    def fail() -> None:
        with atomic_file(target) as partial:
            partial.write_text("half")
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_of_the_system_names_the_target(tmp_path: Path) -> None:
    target = tmp_path / "none" / "result.json"
    with pytest.raises(FileNotFoundError) as caught, atomic_file(target):
        pass
    assert caught.value.filename == os.fspath(target)
