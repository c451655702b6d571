"""Valid names of experiments, and the folder with all experiments."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.home import experiments_folder, list_experiments
from fanwise.tune.record.log import Record
from fanwise.tune.record.names import check_name, new_name


@pytest.mark.parametrize("name", ["a", "train-2026.1_x", "-", "_", "9", "a" * 100])
def test_valid_name_is_returned(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "a\n", "caf\xe9", "a" * 101, "a\0"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_name(name)


@given(st.text(), st.floats(0, 4e9), st.binary(min_size=3, max_size=8))
def test_new_name_is_valid(objective: str, wall_s: float, entropy: bytes) -> None:
    assert check_name(new_name(objective, wall_s, entropy)).endswith(entropy[:3].hex())


def test_new_name_has_the_objective_and_the_time() -> None:
    name = new_name("train_lenet", 1_700_000_000.0, b"\x01\xab\xff")
    assert name.startswith("train_lenet-2023-11-1")
    assert name.endswith("-01abff")
    assert new_name("<lambda>", 0.0, b"abc").startswith("lambda-19")


def test_only_folders_with_a_record_are_listed(home: Path) -> None:
    assert experiments_folder() == home
    assert list_experiments() == []
    for name in ("b", "a"):
        Record.create(home / name, {}).close()
    (home / "c").mkdir()
    (home / "d").write_text("")
    assert list_experiments() == ["a", "b"]


def test_default_folder_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANWISE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert experiments_folder() == Path("/home/me/fanwise")
