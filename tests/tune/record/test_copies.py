"""A record on local disk and its copies: who goes on from what, who is refused, who hears that a tuner lives."""

import json
import os
import platform
import shutil
import time
from pathlib import Path

import pytest

from fanwise.base.errors import ClosedError, RecordError
from fanwise.testing.within import within
from fanwise.tune.record import heartbeat
from fanwise.tune.record.heartbeat import Heartbeat, last_beat
from fanwise.tune.record.live import VARIABLE, live_file_here, make_live_folder
from fanwise.tune.record.overview import is_written
from fanwise.tune.record.reading import FILE_NAME, read_events, read_meta
from fanwise.tune.record.writer import Record, bring_up_to_date
from fanwise.tune.removing import remove_experiment

NEVER_S = 1e6


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of an experiment, on a home that gets copies only; live files are in `tmp_path`/disk."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "disk"))
    return tmp_path / "home" / "e"


def written(folder: Path, number: int) -> Record:
    """A record with so many events that are committed and not yet copied."""
    record = Record.create(folder, {"name": "e"}, copy_every_s=NEVER_S)
    more(record, number)
    return record


def more(record: Record, number: int) -> None:
    for _ in range(number):
        record.append(0.0, "report", 0, {"seq": record.next_seq})
    record.commit()


def killed(record: Record, kept: Path) -> None:
    """As kill -9 leaves the files: they are set aside as they are, and put back when the record was closed."""
    places = [record.file.parent, record.folder]
    for number, place in enumerate(places):
        shutil.copytree(place, kept / str(number), copy_function=shutil.copy2)
    record.close()
    for number, place in enumerate(places):
        shutil.rmtree(place, ignore_errors=True)
        shutil.move(kept / str(number), place)


def on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "another")


def silence(folder: Path, seconds: float) -> None:
    then_s = time.time() - seconds
    os.utime(folder / heartbeat.FILE_NAME, (then_s, then_s))


def test_the_variable_moves_the_live_file_and_one_line_says_so(folder: Path, tmp_path: Path) -> None:
    with written(folder, 1) as record:
        assert record.file.parent.parent == tmp_path / "disk"
        assert record.file.parent.stat().st_mode & 0o077 == 0
        assert record.notices == [
            f"the record is kept in {record.file.parent} and copied every 1e+06 s, because {VARIABLE} is set"
        ]
    assert list((tmp_path / "disk").iterdir()) == []
    assert os.listdir(folder) == [FILE_NAME]
    assert "live_file" not in read_meta(folder)


def test_a_home_that_locks_has_the_record_itself(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        assert record.file == tmp_path / "e" / FILE_NAME
        assert record.notices == []
        assert record.outlives_s() > time.monotonic()


def test_what_a_killed_tuner_had_not_copied_is_gone_on_with_on_its_machine(folder: Path, tmp_path: Path) -> None:
    first = written(folder, 5)
    killed(first, tmp_path / "kept")
    assert read_events(folder) == []
    with Record.reopen(folder, copy_every_s=NEVER_S) as record:
        assert record.file == first.file
        assert [event.body["seq"] for event in read_events(folder)] == [1, 2, 3, 4, 5]
        more(record, 1)
    assert [event.seq for event in read_events(folder)] == [1, 2, 3, 4, 5, 6]


def test_the_copy_of_a_killed_tuner_is_brought_up_to_date_on_its_machine(folder: Path, tmp_path: Path) -> None:
    record = written(folder, 3)
    bring_up_to_date(folder)
    assert read_events(folder) == []  # its tuner lives, and makes its own copies
    killed(record, tmp_path / "kept")
    bring_up_to_date(folder)
    assert len(read_events(folder)) == 3


def test_on_another_machine_the_copy_is_gone_on_with_and_what_may_be_missing_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = written(folder, 2)
    record._move()
    record._copies.begin(record._connection)  # type: ignore[union-attr]
    more(record, 3)
    killed(record, tmp_path / "kept")
    silence(folder, 3600.0)
    here = platform.node()
    on_another_machine(monkeypatch)
    with Record.reopen(folder, copy_every_s=NEVER_S) as second:
        assert second.next_seq == 3
        assert "what came after it is missing" in second.notices[0]
        assert f"the rest is in {record.file} on {here!r}" in second.notices[0]
        assert read_meta(folder)["live_host"] == "another"


def test_a_second_tuner_on_the_same_machine_is_refused(folder: Path) -> None:
    with written(folder, 1), pytest.raises(RecordError, match="is being written by another tuner"):
        Record.reopen(folder)


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_a_second_tuner_on_another_machine_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    here = platform.node()
    with written(folder, 1):
        on_another_machine(monkeypatch)
        if not locks:
            (folder / "writer.lock").unlink()
        with pytest.raises(RecordError, match="is being written by another tuner") as raised:
            Record.reopen(folder)
        assert locks or f"It runs on {here!r} (process {os.getpid()}) and was heard of" in str(raised.value)
        assert len(list(Path(os.environ[VARIABLE]).iterdir())) == 1
        monkeypatch.undo()


def test_a_tuner_whose_experiment_was_taken_over_lets_it_go(folder: Path) -> None:
    record = Record.create(folder, {"name": "e"}, copy_every_s=0.01)
    Heartbeat(folder).begin()
    within(5.0, lambda: record._sync is not None and record._sync.failure is not None, "the other beat is found")
    copied = (folder / FILE_NAME).stat().st_mtime_ns
    record.append(0.0, "report", 0, {})
    with pytest.raises(RecordError, match="another tuner has gone on with the experiment"):
        record.commit()
    with pytest.raises(RecordError, match="another tuner has gone on with the experiment"):
        record.close()
    assert (folder / FILE_NAME).stat().st_mtime_ns == copied
    assert (folder / heartbeat.FILE_NAME).exists()
    assert record.file.exists()


def test_a_last_copy_does_not_overwrite_what_another_tuner_has_gone_on_with(folder: Path) -> None:
    record = written(folder, 1)
    Heartbeat(folder).begin()
    with pytest.raises(RecordError, match=f"another tuner.*All of it is in {record.file}"):
        record.close()
    assert read_events(folder) == []
    assert live_file_here(read_meta(record.file)) == record.file


def test_other_machines_see_by_the_beats_that_a_tuner_lives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = written(folder, 1)
    meta = read_meta(folder)
    assert is_written(folder, meta) is True
    on_another_machine(monkeypatch)
    assert is_written(folder, meta) is True  # by the lock
    (folder / "writer.lock").unlink()
    assert is_written(folder, meta) is True  # by the beat
    silence(folder, 3600.0)
    assert is_written(folder, meta) is None
    monkeypatch.undo()
    killed(record, tmp_path / "kept")
    assert is_written(folder, meta) is False


def test_beats_go_on_while_nothing_is_written(folder: Path) -> None:
    with Record.create(folder, {"name": "e"}, copy_every_s=0.01):
        silence(folder, 3600.0)
        within(5.0, lambda: (beat := last_beat(folder)) is not None and beat.is_fresh, "a beat")
    assert last_beat(folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"host": "a"})])
def test_a_beat_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / heartbeat.FILE_NAME).write_text(text)
    assert last_beat(tmp_path) is None


def test_what_the_copy_has_outlives_this_machine(folder: Path) -> None:
    with Record.create(folder, {"name": "e"}, copy_every_s=0.01) as record:
        more(record, 1)
        committed_s = time.monotonic()
        more(record, 1)
        within(5.0, lambda: record.outlives_s() > committed_s, "a copy that was begun later")
        assert len(read_events(folder)) == 2


def test_a_live_file_that_others_may_write_to_is_not_gone_on_with(folder: Path) -> None:
    record = written(folder, 1)
    record.file.parent.chmod(0o777)
    assert live_file_here(read_meta(folder)) is None
    record.file.parent.chmod(0o700)
    assert live_file_here(read_meta(folder)) == record.file
    record.close()


def test_without_a_local_disk_it_is_said_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(RecordError, match=f"missing: No such file or directory. Set {VARIABLE} to a folder on a disk"):
        make_live_folder("e")
    with pytest.raises(RecordError, match="no local disk for the record"):
        Record.create(tmp_path / "home" / "e", {})
    assert list((tmp_path / "home").iterdir()) == []


def test_removing_takes_the_live_file_of_a_killed_tuner_along(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = written(folder, 1)
    with pytest.raises(ClosedError, match="is running"):
        remove_experiment(folder)
    killed(record, tmp_path / "kept")
    with monkeypatch.context() as patch:
        on_another_machine(patch)
        with pytest.raises(ClosedError, match="delete it there"):
            remove_experiment(folder)
    remove_experiment(folder)
    assert not folder.exists()
    assert not record.file.parent.exists()
