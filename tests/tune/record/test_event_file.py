"""Reading records: errors for folders without a record and for damaged records, and records that are read-only."""

import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from fanwise.base.errors import RecordError
from fanwise.tune.record import event_file
from fanwise.tune.record.event_file import EVENTS_NAME, META_NAME, EventReader, iter_events, read_events, read_meta
from fanwise.tune.record.log import Record
from fanwise.tune.record.overview import SearchReader


def filled(folder: Path, num_events: int) -> Path:
    with Record.create(folder, {"name": folder.name}) as record:
        for number in range(num_events):
            record.append(float(number), "report", number, {"values": {"loss": 1.0 / (number + 1)}})
    return folder


def test_error_says_why_a_path_is_not_a_record(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("a text")
    for name, text in [
        ("missing", "There is no experiment at .*missing"),
        ("text", "There is no experiment at .*text: no such folder"),
        ("empty", "empty is not an experiment: the folder has no events.jsonl"),
    ]:
        for read in (read_meta, read_events):
            with pytest.raises(RecordError, match=text):
                read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "it has no meta.json"),
        ("{", "damaged: it is not JSON"),
        ("[]", "damaged: it is not a JSON object"),
        ("{}", "is not the record of an experiment: it has no key 'format'"),
        ('{"format": [2, 0]}', r"has format \[2, 0\], and this version of fanwise reads format \[3, 0\]"),
    ],
)
def test_error_names_the_problem_with_the_meta(tmp_path: Path, text: str | None, problem: str) -> None:
    meta = filled(tmp_path / "e", 1) / META_NAME
    meta.unlink()
    if text is not None:
        meta.write_text(text)
    with pytest.raises(RecordError, match=problem):
        read_meta(tmp_path / "e")


def test_error_names_a_changed_line(tmp_path: Path) -> None:
    file = filled(tmp_path / "e", 9) / EVENTS_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    for number in (1, 5, 8):
        changed = lines[number - 1].replace(b"loss", b"cost")
        file.write_bytes(b"".join([*lines[: number - 1], changed, *lines[number:]]))
        with pytest.raises(RecordError, match=f"events.jsonl is damaged in line {number}: its checksum is wrong"):
            read_events(tmp_path / "e")


@pytest.mark.parametrize("number", [2, 9])
def test_error_names_the_number_after_a_missing_or_repeated_line(tmp_path: Path, number: int) -> None:
    file = filled(tmp_path / "e", 9) / EVENTS_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    if number < len(lines):
        file.write_bytes(b"".join([*lines[: number - 1], *lines[number:]]))
        with pytest.raises(RecordError, match="is damaged in line 8: its sequence number is 9, not 8"):
            read_events(tmp_path / "e")
    file.write_bytes(b"".join([*lines[:number], *lines[number - 1 :]]))
    with pytest.raises(RecordError, match="is damaged in line 10: its sequence number is 9, not 10"):
        read_events(tmp_path / "e")


def test_error_names_an_intact_line_that_is_not_an_event(tmp_path: Path) -> None:
    file = filled(tmp_path / "e", 2) / EVENTS_NAME
    text = b'{"sort":"something else"'
    with file.open("ab") as log:
        log.write(b'%b,"crc":"%08x"}\n' % (text, zlib.crc32(text)))
    with pytest.raises(RecordError, match="is damaged in line 3: it is not an event"):
        read_events(tmp_path / "e")


def test_each_line_is_a_json_object(tmp_path: Path) -> None:
    file = filled(tmp_path / "e", 3) / EVENTS_NAME
    decoded = [json.loads(line) for line in file.read_text().splitlines()]
    assert [list(one) for one in decoded] == [["seq", "t", "kind", "trial", "body", "crc"]] * 3
    assert [(one["seq"], one["trial"]) for one in decoded] == [(1, 0), (2, 1), (3, 2)]


def test_pandas_reads_a_record_with_nan(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        record.append(0.5, "report", 3, {"values": {"loss": float("nan")}})
        record.append(0.75, "tick", None, {})
    frame = pd.read_json(tmp_path / "e" / EVENTS_NAME, lines=True)
    assert list(frame["kind"]) == ["report", "tick"] and list(frame["t"]) == [0.5, 0.75]


def test_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    file = filled(tmp_path / "e", 5) / EVENTS_NAME
    reader = EventReader(tmp_path / "e")
    list(reader.read())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RecordError, match="is shorter than before"):
        list(reader.read())


@contextmanager
def without_root_rights() -> Iterator[None]:
    """Drop the privileges of root during the block. Do nothing for other users."""
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
    """The path of a new folder below one that all users may read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        os.chmod(above, 0o755)
        yield Path(above) / "e"
        os.chmod(Path(above) / "e", 0o755)


def test_record_in_a_read_only_folder_is_read(foreign_folder: Path) -> None:
    filled(foreign_folder, 3)
    os.chmod(foreign_folder, 0o555)
    with without_root_rights():
        assert len(read_events(foreign_folder)) == 3


def test_record_without_permission_to_read_is_an_error(foreign_folder: Path) -> None:
    filled(foreign_folder, 1)
    os.chmod(foreign_folder, 0o755)
    os.chmod(foreign_folder / META_NAME, 0o000)
    with without_root_rights(), pytest.raises(RecordError, match="Permission denied"):
        read_meta(foreign_folder)


def test_file_is_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "_CHUNK_BYTES", 1_000)
    filled(tmp_path / "e", 100)
    chunks = list(EventReader(tmp_path / "e").read())
    assert len(chunks) > 5
    assert [event.seq for events in chunks for event in events] == list(range(1, 101))


def test_only_events_of_the_given_kinds_are_yielded(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {"name": "e"}) as record:
        for number in range(1, 501):
            record.append(float(number), "start" if number % 50 == 7 else "report", number, {})
    starts = [event.seq for event in iter_events(tmp_path / "e", ["start"])]
    assert starts == [seq for seq in range(1, 501) if seq % 50 == 7]


def test_time_of_a_running_search_is_extrapolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    meta = {"name": "e", "metric": "loss", "mode": "min", "n_workers": 1, "space": {}}
    with Record.create(tmp_path / "e", meta) as record:
        record.append(2.0, "begin", None, {})
        record.commit()
        record.set_summary({"last_s": 5.0})
        reader = SearchReader(tmp_path / "e")
        reader.refresh()
        assert reader.state == "running"
        clock_s[0] = 101.5
        reader.refresh()
        assert reader.now_s == 6.5
        record.append(7.0, "begin", None, {})
        record.commit()
        reader.refresh()
        assert (reader.now_s, reader.is_tuner_killed) == (7.0, False)
    clock_s[0] = 200.0
    reader.refresh()
    assert (reader.now_s, reader.is_tuner_killed) == (7.0, True)
