"""The writer and the readers of a record, in one process."""

import errno
import json
import math
import os
import resource
import shutil
import sqlite3
import stat
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanwise.base.errors import ClosedError, RecordError
from fanwise.testing.within import within
from fanwise.tune.record import journal as record_journal
from fanwise.tune.record import sync as record_sync
from fanwise.tune.record.reading import FILE_NAME, Event, read_events, read_meta
from fanwise.tune.record.writer import Record

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
appended = st.tuples(
    st.floats(0, 1e9),
    st.sampled_from(["start", "ready", "report", "end", "free", "stop"]),
    st.none() | st.integers(0, 2**40),
    st.dictionaries(st.text(), json_values, max_size=4),
)


class Disk:
    """A stand-in for fdatasync that counts, and fails from a moment on."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.num_syncs = 0

    def sync(self, fd: int) -> None:
        os.fstat(fd)  # the descriptor must be open
        if self.error is not None:
            raise self.error
        self.num_syncs += 1


def same(one: object, other: object) -> bool:
    """Equality in which NaN is NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@settings(max_examples=25)  # each one waits for the disk
@given(batches=st.lists(st.lists(appended, max_size=4), max_size=6), after=st.integers(0, 30))
def test_what_is_written_is_read_in_order(batches: list[list[Any]], after: int) -> None:
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "experiment"
        expected = []
        with Record.create(folder, {"name": "x", "batches": len(batches)}) as record:
            for batch in batches:
                for t_s, kind, trial_id, body in batch:
                    seq = record.append(t_s, kind, trial_id, body)
                    expected.append([seq, t_s, kind, trial_id, body])
                record.commit()
                read = [[e.seq, e.t_s, e.kind, e.trial_id, e.body] for e in read_events(folder)]
                assert same(read, expected)
        assert [row[0] for row in expected] == list(range(1, len(expected) + 1))
        read = [[e.seq, e.t_s, e.kind, e.trial_id, e.body] for e in read_events(folder, after)]
        assert same(read, expected[after:])
        assert read_meta(folder) == {"name": "x", "batches": len(batches), "format": [2, 0]}


def test_nan_and_infinities_come_back(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {"bound": math.inf}) as record:
        record.append(0.0, "report", 0, {"values": {"a": math.nan, "b": math.inf, "c": -math.inf}})
    values = read_events(tmp_path / "e")[0].body["values"]
    assert math.isnan(values["a"])
    assert (values["b"], values["c"]) == (math.inf, -math.inf)
    assert read_meta(tmp_path / "e")["bound"] == math.inf


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        assert record.append(0.5, "start", 3, {"slot": 1}) == 1
        assert record.append(0.6, "stop", None, {}) == 2
        assert read_events(tmp_path / "e") == []
        record.commit()
        expected = [Event(1, 0.5, "start", 3, {"slot": 1}), Event(2, 0.6, "stop", None, {})]
        assert read_events(tmp_path / "e") == expected


def test_a_body_is_taken_as_it_was_when_appended(tmp_path: Path) -> None:
    body = {"loss": 1.0}
    with Record.create(tmp_path / "e", {}) as record:
        record.append(0.0, "report", 0, body)
        body["loss"] = 2.0
    assert read_events(tmp_path / "e")[0].body == {"loss": 1.0}


def test_a_body_that_is_not_json_takes_no_sequence_number(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        with pytest.raises(TypeError):
            record.append(0.0, "report", 0, {"x": object()})
        assert record.append(0.0, "report", 0, {}) == 1


def test_the_folder_is_private_and_a_closed_record_is_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "e"
    record = Record.create(folder, {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    record.append(0.0, "stop", None, {})
    record.close()
    record.close()
    assert os.listdir(folder) == [FILE_NAME]


def test_close_commits_what_is_buffered(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "e", {})
    record.append(0.0, "stop", None, {})
    record.close()
    assert [event.kind for event in read_events(tmp_path / "e")] == ["stop"]


def test_a_closed_record_refuses(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "e", {})
    record.close()
    with pytest.raises(ClosedError, match="is closed"):
        record.append(0.0, "stop", None, {})
    with pytest.raises(ClosedError, match="is closed"):
        record.commit()


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="another name"):
        Record.create(tmp_path / "e", {})
    assert os.listdir(tmp_path / "e") == ["mine.txt"]


def test_meta_that_is_not_json_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Record.create(tmp_path / "e", {"x": object()})
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"file/e.*FANWISE_HOME"):
        Record.create(tmp_path / "file" / "e", {})


def test_a_creation_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    deep = tmp_path
    while len(str(deep)) < 700:  # SQLite takes shorter paths than the file system does
        deep = deep / ("d" * 100)
    with pytest.raises(RecordError, match="No experiment could be made"):
        Record.create(deep, {})
    assert not deep.exists()


def test_who_may_open_no_more_files_is_told_so(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken, limits[1]))
    try:
        with pytest.raises(RecordError, match=rf"may not open more than {taken} files\. Raise that \(ulimit -n\)"):
            Record.create(tmp_path / "new", {"name": "new"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(taken)
    assert not (tmp_path / "new").exists()


def test_commits_are_synced_by_the_thread_and_not_by_the_writer(tmp_path: Path) -> None:
    disk, threads = Disk(), set()

    def sync(fd: int) -> None:
        threads.add(threading.current_thread().name)
        disk.sync(fd)

    with Record.create(tmp_path / "e", {}, fdatasync=sync) as record:
        for number in range(3):
            before = disk.num_syncs
            record.append(float(number), "stop", None, {})
            record.commit()
            within(5.0, lambda before=before: disk.num_syncs > before, "the commit is synced")  # type: ignore[misc]
        assert threads == {"fanwise-record-sync"}


def test_a_failing_disk_surfaces_at_the_next_commit_and_for_good(tmp_path: Path) -> None:
    disk = Disk()
    record = Record.create(tmp_path / "e", {}, fdatasync=disk.sync)
    disk.error = OSError(errno.EIO, "Input/output error")
    record.append(0.0, "stop", None, {})
    record.commit()
    within(5.0, lambda: not sync_threads(), "the thread has given up")
    for _ in range(2):
        record.append(1.0, "stop", None, {})
        with pytest.raises(RecordError, match=r"record.sqlite cannot be written: .*Input/output error"):
            record.commit()
    with pytest.raises(RecordError, match="Input/output error"):
        record.close()
    record.close()
    assert len(read_events(tmp_path / "e")) == 1


def test_whatever_ends_the_thread_surfaces_at_the_next_commit_and_at_the_end(tmp_path: Path) -> None:
    disk = Disk()
    record = Record.create(tmp_path / "e", {}, fdatasync=disk.sync)
    disk.error = MemoryError()
    record.append(0.0, "stop", None, {})
    record.commit()
    within(5.0, lambda: not sync_threads(), "the thread has given up")
    record.append(1.0, "stop", None, {})
    with pytest.raises(RecordError, match=r"record.sqlite cannot be written: MemoryError"):
        record.commit()
    with pytest.raises(RecordError, match="MemoryError"):
        record.close()


def test_a_full_disk_is_called_full(tmp_path: Path) -> None:
    disk = Disk()
    record = Record.create(tmp_path / "e", {}, fdatasync=disk.sync)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    record.append(0.0, "stop", None, {})
    with pytest.raises(RecordError, match=r"disk is full\. Free some space"):
        record.close()


def sync_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "fanwise-record-sync"]


def test_what_the_database_refuses_is_raised_by_the_next_commit_and_tried_again(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        with closing(sqlite3.connect(record.file, isolation_level=None)) as intruder:
            intruder.execute("INSERT INTO events(seq) VALUES (2)")
            record.append(0.0, "report", 0, {"number": 1})
            record.append(0.0, "report", 0, {"number": 2})
            record.commit()
            within(5.0, lambda: record._refused is not None, "the thread has tried to move them")
            record.append(0.0, "report", 0, {"number": 3})
            for _ in range(2):
                with pytest.raises(RecordError, match=r"cannot be written: .*UNIQUE.* Committed up to event 2"):
                    record.commit()
            intruder.execute("DELETE FROM events")
        assert [event.body["number"] for event in read_events(tmp_path / "e")] == [1, 2]
        record.commit()
        assert [event.body["number"] for event in read_events(tmp_path / "e")] == [1, 2, 3]
    assert [event.body["number"] for event in read_events(tmp_path / "e")] == [1, 2, 3]


def test_what_is_refused_at_the_end_stays_in_the_journal(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "e", {})
    with closing(sqlite3.connect(record.file, isolation_level=None)) as intruder:
        intruder.execute("INSERT INTO events(seq) VALUES (2)")
        record.append(0.0, "report", 0, {"number": 1})
        record.append(0.0, "report", 0, {"number": 2})
        with pytest.raises(RecordError, match="UNIQUE"):
            record.close()
        intruder.execute("DELETE FROM events")
    assert [event.body["number"] for event in read_events(tmp_path / "e")] == [1, 2]
    with Record.reopen(tmp_path / "e") as record:
        assert record.append(0.0, "report", 0, {"number": 3}) == 3
    assert [event.body["number"] for event in read_events(tmp_path / "e")] == [1, 2, 3]
    assert os.listdir(tmp_path / "e") == [FILE_NAME]


def test_a_journal_moves_with_a_record_that_is_copied_from_now_on(tmp_path: Path) -> None:
    """SQLite's own log is gone, because somebody has made one file of the database."""
    folder = tmp_path / "e"
    record = Record.create(folder, {})
    record.append(0.0, "report", 0, {"number": 1})
    record.commit()
    written = (folder / record_journal.FILE_NAME).read_bytes()
    within(5.0, lambda: not record._waiting, "it is in the database")
    with closing(sqlite3.connect(record.file, isolation_level=None)) as database:
        database.execute("DELETE FROM events")
    record.close()
    (folder / record_journal.FILE_NAME).write_bytes(written)
    with Record.reopen(folder, copied=True) as record:
        assert record.file.parent != folder
        assert record.append(0.0, "report", 0, {"number": 2}) == 2
        assert not (folder / record_journal.FILE_NAME).exists()
    assert [event.body["number"] for event in read_events(folder)] == [1, 2]
    assert os.listdir(folder) == [FILE_NAME]


def test_the_log_is_checkpointed_while_the_record_is_open(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        for _ in range(record_sync.CHECKPOINT_BYTES // 100_000 + 2):
            record.append(0.0, "report", 0, {"text": "x" * 100_000})
            record.commit()
        within(10.0, lambda: record.file.stat().st_size > record_sync.CHECKPOINT_BYTES, "the database has grown")
        assert len(read_events(tmp_path / "e")) == record_sync.CHECKPOINT_BYTES // 100_000 + 2


class CountingLock:
    """A lock that knows how often it was taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_taken = 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self.num_taken += 1

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@pytest.mark.parametrize("max_log_bytes", [0, 1 << 30])
def test_only_a_long_log_is_checkpointed_under_the_lock_of_the_writer(tmp_path: Path, max_log_bytes: int) -> None:
    lock, file = CountingLock(), tmp_path / "x.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.execute("CREATE TABLE numbers(x)")
        sync = record_sync.RecordSync(
            file,
            lock=lock,
            move=lambda: 100_000,
            copies=None,
            fdatasync=lambda fd: None,
            checkpoint_bytes=0,
            max_log_bytes=max_log_bytes,
        )
        for _ in range(5):
            size_bytes = file.stat().st_size
            writer.execute("INSERT INTO numbers VALUES (?)", ("x" * 100_000,))
            sync.committed()
            within(5.0, lambda size_bytes=size_bytes: file.stat().st_size > size_bytes, "the insert is checkpointed")  # type: ignore[misc]
        sync.close()
    assert sync.failure is None
    assert (lock.num_taken > 0) == (max_log_bytes == 0)


def test_a_reader_that_stays_hinders_neither_commit_nor_close(tmp_path: Path) -> None:
    filled_with = 5
    record = Record.create(tmp_path / "e", {})
    for number in range(filled_with):
        record.append(0.0, "report", number, {})
    record.commit()
    with closing(sqlite3.connect(f"file:{record.file}?mode=ro", uri=True, isolation_level=None)) as reader:
        count = "SELECT count(*) FROM events"
        within(5.0, lambda: reader.execute(count).fetchone() == (filled_with,), "they are in the database")
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (filled_with,)
        record.append(0.0, "stop", None, {})
        record.close()
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (filled_with,)
    assert len(read_events(tmp_path / "e")) == filled_with + 1


def test_on_a_network_the_folder_gets_copies_and_the_live_file_is_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    record = Record.create(folder, {"name": "x"}, copied=True, copy_every_s=0.01)
    meta = read_meta(folder)
    assert meta["live_file"] == str(record.file)
    assert folder not in record.file.parents
    for number in range(3):
        record.append(0.0, "report", number, {})
        record.commit()
        within(5.0, lambda n=number: len(read_events(folder)) == n + 1, "the copy has the event")  # type: ignore[misc]
    assert len(read_events(record.file)) == 3
    record.append(0.0, "stop", None, {})
    record.close()
    assert len(read_events(folder)) == 4
    assert os.listdir(folder) == [FILE_NAME]
    assert not record.file.parent.exists()


def test_on_a_network_copies_are_made_at_intervals_only(tmp_path: Path) -> None:
    disk = Disk()
    with Record.create(tmp_path / "e", {}, copied=True, copy_every_s=1e6, fdatasync=disk.sync) as record:
        record.append(0.0, "report", 0, {})
        record.commit()
        within(5.0, lambda: disk.num_syncs > 0, "the thread has seen the commit")
        assert read_events(tmp_path / "e") == []
    assert len(read_events(tmp_path / "e")) == 1


def test_a_copy_that_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, away = tmp_path / "e", tmp_path / "away"
    with Record.create(folder, {}, copied=True, copy_every_s=0.01) as record:
        folder.rename(away)
        record.append(0.0, "report", 0, {})
        record.commit()
        within(5.0, lambda: "trying again" in caplog.text, "a failed copy is logged")
        away.rename(folder)
        within(5.0, lambda: len(read_events(folder)) == 1, "the copy has the event")


def test_a_last_copy_that_fails_names_the_file_that_has_everything(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    record = Record.create(folder, {}, copied=True, copy_every_s=1e6)
    record.append(0.0, "report", 0, {})
    folder.rename(tmp_path / "away")
    with pytest.raises(RecordError, match=str(record.file)):
        record.close()
    assert len(read_events(record.file)) == 1
    shutil.rmtree(record.file.parent)
