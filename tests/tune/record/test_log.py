"""The writer and the readers of a record, in one process."""

import errno
import json
import math
import os
import resource
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanwise.base.errors import ClosedError, RecordError
from fanwise.testing.within import within
from fanwise.tune.record import log
from fanwise.tune.record.event_codec import RecordedEvent
from fanwise.tune.record.event_file import EVENTS_NAME, META_NAME, SUMMARY_NAME, EventReader, read_events, read_meta
from fanwise.tune.record.lock import LOCK_NAME, is_held
from fanwise.tune.record.log import Record

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
    """A stand-in for fdatasync that counts its calls, and raises `error` once it is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.num_syncs = 0

    def sync(self, fd: int) -> None:
        os.fstat(fd)  # the descriptor must be open
        if self.error is not None:
            raise self.error
        self.num_syncs += 1


def equal_json(first: object, second: object) -> bool:
    """Return True if the values are equal as JSON, so that NaN equals NaN."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


@settings(max_examples=10)  # each example waits for the disk
@given(batches=st.lists(st.lists(appended, max_size=4), max_size=6))
def test_events_are_read_in_the_order_of_writing(batches: list[list[Any]]) -> None:
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "experiment"
        expected = []
        with Record.create(folder, {"name": "x", "batches": len(batches)}) as record:
            follower, followed = EventReader(folder), []
            for batch in batches:
                for t_s, kind, trial_id, body in batch:
                    seq = record.append(t_s, kind, trial_id, body)
                    expected.append([seq, t_s, kind, trial_id, body])
                record.commit()
                read = [[e.seq, e.t_s, e.kind, e.trial_id, e.body] for e in read_events(folder)]
                assert equal_json(read, expected)
                followed += [event.seq for events in follower.read() for event in events]
                assert followed == [row[0] for row in expected]
        assert [row[0] for row in expected] == list(range(1, len(expected) + 1))
        assert read_meta(folder) == {"name": "x", "batches": len(batches), "format": [3, 0]}


def test_nan_and_infinities_are_read_as_written(tmp_path: Path) -> None:
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
        expected = [RecordedEvent(1, 0.5, "start", 3, {"slot": 1}), RecordedEvent(2, 0.6, "stop", None, {})]
        assert read_events(tmp_path / "e") == expected


def test_later_changes_of_a_body_are_not_recorded(tmp_path: Path) -> None:
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


def test_the_folder_is_private_and_a_closed_record_is_unlocked(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "e"
    record = Record.create(folder, {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    record.append(0.0, "stop", None, {})
    record.close()
    record.close()
    assert is_held(folder) is False


def test_closed_record_refuses_events(tmp_path: Path) -> None:
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


def test_meta_that_is_not_json_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Record.create(tmp_path / "e", {"x": object()})
    assert os.listdir(tmp_path) == []


def test_error_names_the_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"file/e.*FANWISE_HOME"):
        Record.create(tmp_path / "file" / "e", {})


def test_failed_creation_removes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RecordError, match="could not be created"):
        Record.create(tmp_path / "e", {})
    assert os.listdir(tmp_path) == []


def test_error_names_the_limit_on_open_files(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    occupied_fd = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (occupied_fd, limits[1]))
    try:
        with pytest.raises(RecordError, match=r"Too many open files.* limits on open files"):
            Record.create(tmp_path / "new", {"name": "new"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(occupied_fd)
    assert not (tmp_path / "new").exists()


def test_commits_are_synced_by_the_thread_and_not_by_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, threads = Disk(), set()

    def sync(fd: int) -> None:
        threads.add(threading.current_thread().name)
        disk.sync(fd)

    monkeypatch.setattr(log, "sync_data", sync)
    with Record.create(tmp_path / "e", {}) as record:
        for number in range(3):
            before = disk.num_syncs
            record.append(float(number), "stop", None, {})
            record.commit()
            within(30.0, lambda before=before: disk.num_syncs > before, "the commit is synced")  # type: ignore[misc]
        assert threads == {"fanwise-record-sync"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError(errno.ENOSPC, "No space left on device"), r"No space left on device\. Check for a full disk"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_every_commit_after_a_failed_sync_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    disk = Disk()
    monkeypatch.setattr(log, "sync_data", disk.sync)
    record = Record.create(tmp_path / "e", {})
    disk.error = error
    record.append(0.0, "stop", None, {})
    record.commit()
    within(30.0, lambda: not sync_threads(), "the sync thread has ended")
    for _ in range(2):
        record.append(1.0, "stop", None, {})
        with pytest.raises(RecordError, match=rf"events.jsonl cannot be written: .*{text}"):
            record.commit()
    with pytest.raises(RecordError, match=text):
        record.close()
    record.close()
    assert len(read_events(tmp_path / "e")) == 1


def sync_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "fanwise-record-sync"]


def test_next_commit_repeats_a_partial_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk becomes full in the middle of a line."""
    write, room = os.write, [1_000]

    def limited(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    with Record.create(tmp_path / "e", {}) as record:
        monkeypatch.setattr(os, "write", limited)
        for number in range(1, 31):
            record.append(0.0, "report", 0, {"number": number})
            if number <= 10:
                record.commit()
        with pytest.raises(RecordError, match=r"No space left on device.* Committed up to event 10"):
            record.commit()
        reader = EventReader(tmp_path / "e")
        assert [event.body["number"] for events in reader.read() for event in events] == list(range(1, 11))
        assert reader.torn_bytes == 0
        room[0] = 1 << 20
        record.commit()
    assert [event.body["number"] for event in read_events(tmp_path / "e")] == list(range(1, 31))


def test_summary_is_replaced_and_read_with_the_meta(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {"name": "e"}) as record:
        assert "summary" not in read_meta(tmp_path / "e")
        for number in range(2):
            record.set_summary({"num_trials": number})
            assert read_meta(tmp_path / "e")["summary"] == {"num_trials": number}
    assert sorted(os.listdir(tmp_path / "e")) == [EVENTS_NAME, META_NAME, SUMMARY_NAME, LOCK_NAME]


def test_only_one_writer_at_a_time(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}), pytest.raises(RecordError, match="being written by another tuner"):
        Record.reopen(tmp_path / "e")
    Record.reopen(tmp_path / "e").close()


@pytest.mark.parametrize(
    "torn", [b"", b'{"seq":3,"t":0.', b"\0" * 500, b'{"seq":3,"t":0.5,"kind":"report"}\n' + b"\0" * 9]
)
def test_incomplete_last_line_is_skipped_by_readers_and_cut_off_by_the_next_writer(tmp_path: Path, torn: bytes) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        for number in range(2):
            record.append(0.0, "report", number, {})
    file = tmp_path / "e" / EVENTS_NAME
    whole = file.read_bytes()
    file.write_bytes(whole + torn)
    reader = EventReader(tmp_path / "e")
    assert [event.seq for events in reader.read() for event in events] == [1, 2]
    assert reader.torn_bytes == len(torn)
    with Record.reopen(tmp_path / "e") as record:
        notice = f"events.jsonl ended with damaged lines, as after a crash: {len(torn)} bytes were cut off"
        assert record.notices == [notice] * bool(torn)
        assert file.read_bytes() == whole
        assert record.append(0.0, "report", 2, {}) == 3
    assert [event.seq for event in read_events(tmp_path / "e")] == [1, 2, 3]
