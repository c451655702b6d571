"""What killed workers leave behind is removed by those who come; what belongs to anybody alive is not."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_holders import die_holding

from fanwise.links.hub import Hub
from fanwise.links.process_state import look_at, this_host
from fanwise.rpc.rendezvous import stale_files
from fanwise.rpc.rendezvous.addresses import Rendezvous
from fanwise.rpc.rendezvous.entrance import LocalMeeting
from fanwise.rpc.rendezvous.lock_files import has_survivors, holder_of, lock_path, try_lock
from fanwise.rpc.rendezvous.stale_files import sweep

NOBODY = 65534  # a user id that is neither ours nor root's
OLD = "w-00000000000000aa"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as sockets need it; last swept long ago."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        due(folder)
        yield folder


def due(folder: Path) -> None:
    """The last sweep was long ago."""
    guard = folder / "guard"
    guard.touch()
    os.utime(guard, (0, 0))


def socket_at(path: Path, *, listens: bool = True, is_old: bool = True) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(os.fspath(path))
    if listens:
        one.listen()
    one.setblocking(False)
    if is_old:
        os.utime(path, (0, 0))
    return one


def dead_socket(path: Path, *, is_old: bool = True) -> None:
    socket_at(path, is_old=is_old).close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "guard")


@pytest.mark.parametrize("name", [OLD, "0123456789abcdef-01234567"])
def test_a_socket_that_nobody_has_open_is_removed(folder: Path, name: str) -> None:
    dead_socket(folder / name)
    sweep(folder)
    assert names(folder) == []


@pytest.mark.parametrize("listens", [True, False])
def test_an_open_socket_stays_also_before_it_listens_and_nobody_connects_to_it(folder: Path, listens: bool) -> None:
    with socket_at(folder / OLD, listens=listens) as living:
        sweep(folder)
        assert names(folder) == [OLD]
        with pytest.raises(OSError) as caught:
            living.accept()
        assert caught.value.errno == (errno.EAGAIN if listens else errno.EINVAL), "nobody has come"


def test_a_young_socket_may_be_about_to_be_bound_and_stays(folder: Path) -> None:
    dead_socket(folder / OLD, is_old=False)
    sweep(folder)
    assert names(folder) == [OLD]


def test_files_of_other_names_and_kinds_stay(folder: Path) -> None:
    dead_socket(folder / "mine")
    (folder / "key").touch()
    (folder / "w-00000000000000bb").touch()
    (folder / "w-00000000000000cc").symlink_to(folder / "mine")
    (folder / "0123456789abcdef").mkdir()
    before = names(folder)
    sweep(folder)
    assert names(folder) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_stay(folder: Path) -> None:
    dead_socket(folder / OLD)
    os.chown(folder / OLD, NOBODY, NOBODY)
    sweep(folder)
    assert names(folder) == [OLD]


def test_it_is_done_again_only_after_a_while(folder: Path) -> None:
    sweep(folder)
    dead_socket(folder / OLD)
    sweep(folder)
    assert names(folder) == [OLD]
    due(folder)
    sweep(folder)
    assert names(folder) == []


def test_thousands_are_removed_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_files, "_REMOVED_AT_ONCE", 3)
    for number in range(7):
        dead_socket(folder / f"w-{number:016x}")
    left = []
    for _ in range(4):
        sweep(folder)
        left.append(len(names(folder)))
    assert left == [4, 1, 0, 0]


def test_while_another_holds_the_guard_nothing_is_removed_and_nobody_waits(folder: Path) -> None:
    dead_socket(folder / OLD)
    with (folder / "guard").open() as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        sweep(folder)
        assert names(folder) == [OLD]
    sweep(folder)
    assert names(folder) == []


def test_a_folder_that_is_gone_is_no_error(folder: Path) -> None:
    sweep(folder / "gone")


# -- lock files ----------------------------------------------------------------------------------------------------


def test_a_lock_file_whose_holder_has_died_is_removed_with_its_socket(folder: Path) -> None:
    path = lock_path(folder, "port:1")
    die_holding(path)
    due(folder)
    name = json.loads(path.read_bytes().splitlines()[0])[4]
    dead_socket(folder / name)
    sweep(folder)
    assert names(folder) == []


def test_a_lock_file_that_is_held_stays(folder: Path) -> None:
    lock = try_lock(lock_path(folder, "port:1"), 1)
    assert lock is not None
    due(folder)
    sweep(folder)
    assert lock.is_ours() and holder_of(lock.path) is not None
    lock.close()


def test_a_lock_file_that_was_not_finished_is_removed(folder: Path) -> None:
    (folder / "0123456789abcdef-01234567.new").touch()
    sweep(folder)
    assert names(folder) == []


def test_a_lock_file_that_was_lost_with_the_host_is_free_and_is_removed(folder: Path) -> None:
    path = lock_path(folder, "port:1")
    path.touch()
    assert holder_of(path) is None
    lock = try_lock(path, 1)
    assert lock is not None
    lock.close()
    path.touch()
    due(folder)
    sweep(folder)
    assert names(folder) == []


# -- survivors -----------------------------------------------------------------------------------------------------


def process_that_lives() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE)


def test_the_lock_file_of_a_dead_holder_stays_for_its_survivors_as_long_as_one_lives(folder: Path) -> None:
    path = lock_path(folder, "port:1")
    with process_that_lives() as other:
        alive = (other.pid, look_at(other.pid).started_ticks)
        die_holding(path, (other.pid, alive[1] - 1), alive)
        due(folder)
        sweep(folder)
        assert has_survivors(path) and names(folder) == [path.name]
        other.communicate()
    assert not has_survivors(path)
    due(folder)
    sweep(folder)
    assert names(folder) == []


def test_only_the_newest_note_of_a_holder_counts(folder: Path) -> None:
    path = lock_path(folder, "port:1")
    lock = try_lock(path, 1)
    assert lock is not None
    noted = []
    for members in ([(1, 2), (3, 4)], [], [(5, 6)]):
        lock.note(members)
        holder = holder_of(path)
        assert holder is not None and not holder.has_survivors, "it lives itself"
        noted.append(holder.members)
    assert noted == [((1, 2), (3, 4)), (), ((5, 6),)]
    lock.close()
    lock.note([(7, 8)])


@pytest.mark.parametrize("rest", [b"12 ", b"12", b"x y\n", b"\xff\n"])
def test_a_note_that_was_cut_short_names_nobody(folder: Path, rest: bytes) -> None:
    path = lock_path(folder, "port:1")
    path.write_bytes(json.dumps([1, 2, 3, this_host(), "s"]).encode() + b"\n" + rest)
    assert holder_of(path) is None and not has_survivors(path)


# -- who listens ---------------------------------------------------------------------------------------------------


def test_who_listens_removes_what_the_dead_have_left(folder: Path) -> None:
    hub = Hub()
    meeting = LocalMeeting(Rendezvous("tcp://127.0.0.1:1", "port:1", "127.0.0.1", 1), folder=folder)
    address = meeting.listen(hub, lambda link: None)
    os.utime(address, (0, 0))
    dead_socket(folder / OLD)
    due(folder)
    meeting.listen(hub, lambda link: None)
    assert not (folder / OLD).exists() and Path(address).exists()
    hub.close()
    assert names(folder) == ["key"]
