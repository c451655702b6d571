"""Tests with real processes: writers are killed or forked, run out of disk space, or are followed by a reader."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fanwise.tune.record.event_file import EventReader, read_events, read_meta
from fanwise.tune.record.lock import is_held

WRITER = """
import random, sys
from pathlib import Path
from fanwise.tune.record.log import Record

folder, seed, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
record = Record.create(folder, {"name": "killed"})
print("folder", record.folder, flush=True)
seq = 0
while True:
    for _ in range(chance.randrange(1, 4)):
        seq += 1
        record.append(1.5, "report", 7, {"seq": seq, "text": "x" * chance.randrange(size)})
    record.commit()
    print(seq, flush=True)
"""

FORKER = """
import os, sys, threading
from pathlib import Path
from fanwise.base.errors import ClosedError
from fanwise.tune.record import log
from fanwise.tune.record.log import Record

def fail(fd):
    raise OSError("no disk")

if "orphan" in sys.argv:
    log.sync_data = fail
record = Record.create(Path(sys.argv[1]), {"name": "forked"})
record.append(0.0, "start", 0, {})
record.commit()
record.append(0.0, "start", 1, {})
if "orphan" in sys.argv:
    # A thread that runs during the fork would keep the objects that it uses alive in the child.
    [thread.join() for thread in threading.enumerate() if thread.name == "fanwise-record-sync"]
alive, dead = os.pipe()
pid = os.fork()
if pid == 0:
    for use in (lambda: record.append(0.0, "report", 0, {}), record.commit):
        try:
            use()
        except ClosedError as error:
            print(error, flush=True)
    record.close()
    if "orphan" in sys.argv:
        os.close(dead)
        os.read(alive, 1)      # returns when the parent has ended
    del record
    sys.exit(0)                # the interpreter deletes all objects
if "orphan" in sys.argv:
    os.kill(os.getpid(), 9)
os.waitpid(pid, 0)
record.append(0.0, "report", 0, {})
record.commit()
record.close()
"""

FILLER = """
import resource, sys
from pathlib import Path
from fanwise.base.errors import RecordError
from fanwise.tune.record.log import Record

record = Record.create(Path(sys.argv[1]), {"name": "full"})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
committed = 0
while committed < 10_000:
    seq = record.append(0.0, "report", 0, {"text": "x" * 300})
    try:
        record.commit()
    except RecordError as error:
        print(committed, error, flush=True)
        break
    committed = seq
input()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
record.append(0.0, "stop", None, {})
record.commit()
record.close()
"""


@contextmanager
def python(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a child process, which is killed at the end of the block."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def kill_after(process: subprocess.Popen[str], num_commits: int) -> int:
    """Read `num_commits` lines, then send SIGKILL. Return the last sequence number that the process printed, or 0."""
    for _ in range(num_commits):
        line(process)
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    rest = process.stdout.read().splitlines(keepends=True)
    process.wait()
    numbers = [int(text) for text in rest if text.endswith("\n")]
    return numbers[-1] if numbers else 0


@pytest.mark.parametrize(("seed", "size"), [(seed, 20 if seed % 2 else 20_000) for seed in range(4)])
def test_killed_writer_loses_no_committed_event(tmp_path: Path, seed: int, size: int) -> None:
    check_killed_writer(tmp_path / "e", seed, size)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_hundreds_of_killed_writers_lose_no_committed_event(tmp_path: Path, seed: int) -> None:
    check_killed_writer(tmp_path / "e", seed, random.Random(seed).choice([20, 2_000, 20_000]))


def check_killed_writer(folder: Path, seed: int, size: int) -> None:
    with python(WRITER, folder, seed, size) as process:
        assert line(process) == f"folder {folder}"
        acknowledged = kill_after(process, random.Random(seed).randrange(1, 1500))
    events = read_events(folder)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.body["seq"] for event in events] == [event.seq for event in events]
    assert len(events) >= acknowledged
    assert is_held(folder) is False


def test_reader_of_a_growing_record_sees_all_committed_events_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    with python(WRITER, folder, 0, 20_000) as process:
        line(process)
        num_read = acknowledged = 0
        reader = EventReader(folder)
        num_reads = 0
        while num_read < 1_000 or num_reads < 2:
            acknowledged = int(line(process))
            if acknowledged < num_read:
                continue
            events = [event for chunk in reader.read() for event in chunk]
            assert [event.seq for event in events] == list(range(num_read + 1, num_read + 1 + len(events)))
            num_read += len(events)
            assert num_read >= acknowledged
            num_reads += 1
        assert process.poll() is None
        assert read_meta(folder)["name"] == "killed"


def test_record_refuses_events_in_a_fork_and_accepts_them_in_the_parent(tmp_path: Path) -> None:
    with python(FORKER, tmp_path / "e") as process:
        assert "belongs to the process that this one was forked from" in line(process)
        assert "belongs to the process that this one was forked from" in line(process)
        assert process.wait() == 0
    assert [(event.kind, event.trial_id) for event in read_events(tmp_path / "e")] == [
        ("start", 0),
        ("start", 1),
        ("report", 0),
    ]
    assert is_held(tmp_path / "e") is False


def test_fork_that_outlives_its_parent_does_not_write(tmp_path: Path) -> None:
    with python(FORKER, tmp_path / "e", "orphan") as process:
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        process.stdout.read()  # the end of file is the end of the child
    assert [event.kind for event in read_events(tmp_path / "e")] == ["start"]


def test_limit_on_the_file_size_raises_an_error_and_loses_no_committed_event(tmp_path: Path) -> None:
    with python(FILLER, tmp_path / "e") as process:
        committed, _, message = line(process).partition(" ")
        assert "events.jsonl cannot be written" in message
        assert "file sizes" in message
        assert f"Committed up to event {committed}." in message
        assert len(read_events(tmp_path / "e")) == int(committed) > 0
        process.communicate("go on\n")
        assert process.returncode == 0
    events = read_events(tmp_path / "e")
    assert [event.seq for event in events] == list(range(1, int(committed) + 3))
    assert events[-1].kind == "stop"
