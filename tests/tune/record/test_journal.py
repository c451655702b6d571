"""The journal of a record: whatever is cut off, overwritten or moved meanwhile, what is read is a beginning of it."""

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fanwise.base.errors import RecordError
from fanwise.tune.record import journal as record_journal
from fanwise.tune.record.journal import FILE_NAME, Journal, Row, line_of, next_rows, read_rows, rows_of
from fanwise.tune.record.reading import newest_seq, read_events
from fanwise.tune.record.writer import Record

ALIKE = (0.5, "report", 1, "{}")
# What the kernel brings to the disk at once: two of these lines, so that older ones go on where newer ones end.
PAGE_BYTES = 2 * len(line_of((10, *ALIKE)))

contents = st.tuples(
    st.floats(allow_nan=False),
    st.sampled_from(["report", "tick"]),
    st.none() | st.integers(-3, 10**6),
    st.integers(0, 40).map(lambda n: '{"text":"' + "x y"[: n % 4] * n + '"}') | st.just("{}"),
)


alike = st.integers(1, 6).map(lambda n: [ALIKE] * n)


def rows_from(first: int, made: list[Any]) -> list[Row]:
    return [(first + number, *content) for number, content in enumerate(made)]


@given(st.integers(1, 10**9), st.lists(contents, max_size=5), st.binary(max_size=30))
def test_rows_come_back_and_what_follows_them_is_passed_over(first: int, made: list[Any], rest: bytes) -> None:
    rows = rows_from(first, made)
    assert rows_of(b"".join(map(line_of, rows)) + rest) == rows


def test_an_older_page_before_a_newer_one_does_not_make_a_gap() -> None:
    """As after a power cut: lines are whole, and those between them are missing."""
    rows = rows_from(10, [ALIKE] * 8)
    assert rows_of(b"".join(map(line_of, rows[:2] + rows[6:]))) == rows[:2]


def test_infinity_and_nan_come_back() -> None:
    rows: list[Row] = [(1, math.inf, "tick", None, "{}"), (2, math.nan, "tick", None, '{"a":NaN}')]
    (first, second) = rows_of(b"".join(map(line_of, rows)))
    assert (first, second[4]) == (rows[0], '{"a":NaN}')
    assert math.isnan(second[1])


class Journaled(RuleBasedStateMachine):
    """A writer with its journal and a database that is only a number; who looks may be slow, and the power may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.record = Path(self.scratch.name) / "record.sqlite"
        self.rows = rows_from(1, [ALIKE] * 9)
        self.database = len(self.rows)
        self.versions = [b""]
        self.early: tuple[list[Row], int] = ([], 0)  # what a reader found who has not looked into the database yet

    @initialize()
    def begin(self) -> None:
        self.journal = Journal(self.record)

    def teardown(self) -> None:
        self.journal.close()
        self.scratch.cleanup()

    @rule(made=st.lists(contents, min_size=1, max_size=3) | alike)
    def commit(self, made: list[Any]) -> None:
        rows = rows_from(len(self.rows) + 1, made)
        if self.journal.write(rows):
            self.rows += rows
            self.versions.append((Path(self.scratch.name) / FILE_NAME).read_bytes())
        else:
            self.rows += rows
            self.move()

    @rule()
    def move(self) -> None:
        self.database = len(self.rows)
        self.journal.begin_anew()

    @rule()
    def look_early(self) -> None:
        self.early = (read_rows(self.record), len(self.rows))

    @rule()
    def look_late(self) -> None:
        found, then = self.early
        seen = self.database + len(next_rows(found, self.database))
        assert seen >= then
        assert next_rows(found, self.database) == self.rows[self.database : seen]

    @rule(made=st.lists(contents, min_size=1, max_size=2), share=st.floats(0, 1))
    def die_while_it_writes(self, made: list[Any], share: float) -> None:
        """Killed in the middle of a commit; another goes on."""
        rows = rows_from(len(self.rows) + 1, made)
        lines = b"".join(map(line_of, rows))
        fd = os.open(Path(self.scratch.name) / FILE_NAME, os.O_RDWR)
        os.pwrite(fd, lines[: round(share * len(lines))], self.journal._end)
        os.close(fd)
        found = next_rows(read_rows(self.record), self.database)
        assert found == (self.rows + rows)[self.database : self.database + len(found)]
        assert self.database + len(found) >= len(self.rows)
        self.rows += rows[: self.database + len(found) - len(self.rows)]
        self.database = len(self.rows)
        self.journal.close()
        self.journal = Journal(self.record)
        self.versions, self.early = [b""], ([], 0)

    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        """Each page of the file is as it once was, and the database lacks its last rows: still nothing is made up."""
        length = max(map(len, self.versions))
        newest = st.integers(max(0, len(self.versions) - 6), len(self.versions) - 1)
        page_of = [self.versions[data.draw(newest)].ljust(length, b"\0") for _ in range(0, length, PAGE_BYTES)]
        mixed = b"".join(page[at * PAGE_BYTES :][:PAGE_BYTES] for at, page in enumerate(page_of))
        for database in range(max(0, self.database - 20), self.database + 1):
            found = next_rows(rows_of(mixed), database)
            assert found == self.rows[database : database + len(found)]

    @invariant()
    def everything_is_there(self) -> None:
        if hasattr(self, "journal"):
            found = next_rows(read_rows(self.record), self.database)
            assert found == self.rows[self.database :]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_journal, "CAPACITY_BYTES", 600)


def test_what_is_read_is_a_beginning_that_has_everything_committed() -> None:
    run_state_machine_as_test(Journaled, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))


def test_what_does_not_fit_goes_into_the_database_and_keeps_its_place(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        for number in range(200):
            record.append(0.0, "report", 0, {"number": number, "text": "x" * (1_000 if number % 7 == 3 else 20)})
            if number % 3:
                record.commit()
                assert newest_seq(tmp_path / "e") == number + 1
                assert (tmp_path / "e" / FILE_NAME).stat().st_size == 600
        record.commit()
        assert [event.body["number"] for event in read_events(tmp_path / "e")] == list(range(200))
    assert [event.body["number"] for event in read_events(tmp_path / "e")] == list(range(200))


def test_a_journal_that_is_none_is_passed_over_or_named(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        record.append(0.0, "report", 0, {})
    file = tmp_path / "e" / FILE_NAME
    for written in (b"", b"\n\n", b"no journal\n" * 5, bytes(range(256)) * 9, line_of((7, 0.0, "report", 0, "{}"))):
        file.write_bytes(written)
        assert len(read_events(tmp_path / "e")) == 1
    file.unlink()
    os.mkfifo(file)
    assert len(read_events(tmp_path / "e")) == 1
    file.unlink()
    file.symlink_to(file)
    assert len(read_events(tmp_path / "e")) == 1


def test_a_journal_that_is_no_file_is_refused_and_not_written_through(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        record.append(0.0, "report", 0, {})
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "e" / FILE_NAME).symlink_to(tmp_path / "mine")
    refused = "record.journal is a link, a folder or a pipe"
    with pytest.raises(RecordError, match=refused):
        Record.reopen(tmp_path / "e")
    assert (tmp_path / "mine").read_text() == "mine"
    for make in (os.mkfifo, os.mkdir):
        (tmp_path / "e" / FILE_NAME).unlink()
        make(tmp_path / "e" / FILE_NAME)
        with pytest.raises(RecordError, match=refused):
            Record.reopen(tmp_path / "e")
    (tmp_path / "e" / FILE_NAME).rmdir()
    Record.reopen(tmp_path / "e").close()
    assert os.listdir(tmp_path / "e") == ["record.sqlite"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_journal_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    with Record.create(tmp_path / "e", {}) as record:
        record.append(0.0, "report", 0, {})
        (tmp_path / "e" / FILE_NAME).chmod(0)
        with pytest.raises(RecordError, match=r"record.journal cannot be read: Permission denied"):
            read_events(tmp_path / "e")
