"""Reading: what is not a record is told apart, and what may only be read is read."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fanwise.base.errors import RecordError
from fanwise.tune.record import reading
from fanwise.tune.record.reading import FILE_NAME, iter_events, read_events, read_meta
from fanwise.tune.record.writer import Record


def filled(folder: Path, num_events: int) -> Path:
    with Record.create(folder, {"name": folder.name}) as record:
        for number in range(num_events):
            record.append(float(number), "report", number, {"values": {"loss": 1.0 / (number + 1)}})
    return folder


def test_each_thing_that_is_not_a_record_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.sqlite").write_text("this is a text of some length, and not a database" * 100)
    (tmp_path / "nothing.sqlite").write_bytes(b"")
    with closing(sqlite3.connect(tmp_path / "foreign.sqlite")) as other:
        other.execute("CREATE TABLE trials(id INTEGER)")
        other.commit()
    with closing(sqlite3.connect(tmp_path / "alike.sqlite")) as other:
        other.execute("CREATE TABLE meta(key TEXT, value TEXT)")
        other.commit()
    for name, text in [
        ("missing", "There is no experiment at .*missing"),
        ("empty", "empty is not an experiment: the folder holds no record.sqlite"),
        ("text.sqlite", "text.sqlite is not the record of an experiment: it is not an SQLite file"),
        ("nothing.sqlite", "nothing.sqlite is an SQLite file, but not the record .*no such table: meta"),
        ("foreign.sqlite", "foreign.sqlite is an SQLite file, but not the record .*no such table: meta"),
        ("alike.sqlite", "alike.sqlite is not the record of an experiment: .*no key 'format'"),
    ]:
        for read in (read_meta, read_events):
            with pytest.raises(RecordError, match=text):
                read(tmp_path / name)


def test_a_record_of_another_version_names_both(tmp_path: Path) -> None:
    filled(tmp_path / "e", 1)
    with closing(sqlite3.connect(tmp_path / "e" / FILE_NAME)) as other:
        other.execute("UPDATE meta SET value = '2' WHERE key = 'format'")
        other.commit()
    for read in (read_meta, read_events):
        with pytest.raises(RecordError, match=r"is of format 2, and this version of fanwise reads format \[2, 0\]"):
            read(tmp_path / "e")


@pytest.mark.parametrize("kept", [1, 50, 500, 3_000, 20_000])
def test_a_torn_file_is_called_damaged_or_foreign(tmp_path: Path, kept: int) -> None:
    file = filled(tmp_path / "e", 2_000) / FILE_NAME
    content = file.read_bytes()
    assert len(content) > 50_000
    file.write_bytes(content[:kept])
    with pytest.raises(RecordError, match=r"is damaged|is not the record|but not the record"):
        read_events(tmp_path / "e")


def test_a_body_that_is_not_json_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "e", 3)
    for damage in ("{", "1],[2", "1,2", "", None):
        with closing(sqlite3.connect(tmp_path / "e" / FILE_NAME)) as other:
            other.execute("UPDATE events SET body = ? WHERE seq = 2", (damage,))
            other.commit()
        with pytest.raises(RecordError, match="the body of event 2 is not JSON"):
            read_events(tmp_path / "e")


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """The rights of another user, as far as root can take them; another user has them already."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """A folder that everybody may read and, after `chmod`, nobody but its owner may write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        os.chmod(above, 0o755)
        yield Path(above) / "e"
        os.chmod(Path(above) / "e", 0o755)


def test_a_closed_record_can_be_read_where_nothing_may_be_written(foreign_folder: Path) -> None:
    filled(foreign_folder, 3)
    os.chmod(foreign_folder, 0o555)
    with as_somebody_else():
        assert len(read_events(foreign_folder)) == 3


def test_a_record_in_wal_mode_can_be_read_where_nothing_may_be_written(foreign_folder: Path) -> None:
    filled(foreign_folder, 3)
    with closing(sqlite3.connect(foreign_folder / FILE_NAME)) as other:
        other.execute("PRAGMA journal_mode=WAL")
    os.chmod(foreign_folder, 0o555)
    with as_somebody_else():
        assert len(read_events(foreign_folder)) == 3


def test_a_log_that_cannot_be_read_here_is_explained(foreign_folder: Path) -> None:
    filled(foreign_folder, 3)
    (foreign_folder / f"{FILE_NAME}-wal").write_bytes(b"something")
    with closing(sqlite3.connect(foreign_folder / FILE_NAME)) as other:
        other.execute("PRAGMA journal_mode=WAL")
    (foreign_folder / f"{FILE_NAME}-wal").write_bytes(b"something")
    os.chmod(foreign_folder, 0o555)
    with as_somebody_else(), pytest.raises(RecordError, match="Copy the whole folder"):
        read_events(foreign_folder)


def test_a_record_that_may_not_be_read_says_so(foreign_folder: Path) -> None:
    filled(foreign_folder, 1)
    os.chmod(foreign_folder, 0o755)
    os.chmod(foreign_folder / FILE_NAME, 0o000)
    with as_somebody_else(), pytest.raises(RecordError, match="permission denied"):
        read_meta(foreign_folder)


def test_a_path_with_odd_characters_is_a_path(tmp_path: Path) -> None:
    filled(tmp_path / "a?b#c%20 d", 2)
    assert len(read_events(tmp_path / "a?b#c%20 d")) == 2


def test_reading_goes_on_over_the_size_of_a_chunk(tmp_path: Path) -> None:
    num_events = reading._CHUNK * 2 + 1
    filled(tmp_path / "e", num_events)
    assert [event.seq for event in read_events(tmp_path / "e")] == list(range(1, num_events + 1))
    assert [event.seq for event in read_events(tmp_path / "e", num_events - 1)] == [num_events]


@pytest.mark.parametrize("has_index", [True, False])  # records of older versions have none
def test_some_of_the_reports_come_with_all_that_is_no_report_in_order(tmp_path: Path, has_index: bool) -> None:
    with Record.create(tmp_path / "e", {"name": "e"}) as record:
        for number in range(1, 501):
            record.append(float(number), "start" if number % 50 == 7 else "report", number, {})
    if not has_index:
        with closing(sqlite3.connect(tmp_path / "e" / FILE_NAME)) as other:
            other.execute("DROP INDEX no_reports")
            other.commit()
    for after, every in [(0, 3), (100, 7), (101, 7), (104, 7), (105, 7), (457, 1_000), (500, 2)]:
        read = [event for events in iter_events(tmp_path / "e", after, reports_every=every) for event in events]
        wanted = [seq for seq in range(after + 1, 501) if seq % 50 == 7 or seq % every == 0]
        assert [event.seq for event in read] == wanted, (after, every)
        starts = [
            e.seq for events in iter_events(tmp_path / "e", after, ["start"], reports_every=every) for e in events
        ]
        assert starts == [seq for seq in range(after + 1, 501) if seq % 50 == 7]
