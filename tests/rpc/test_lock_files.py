"""Who holds an entrance: one at a time, whatever happens to the holder; and the folder in which that is written."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lock_holders import WITH_LOCK_FILES

from fanwise.base.errors import DeadlineExceeded
from fanwise.rpc.rendezvous.lock_files import guarded, holder_of, host_key, lock_path, try_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return lock_path(tmp_path, "port:1")


def test_one_holds_a_lock_until_it_gives_it_back(path: Path) -> None:
    first = try_lock(path, 1)
    assert first is not None and first.is_ours()
    assert try_lock(path, 2) is None
    holder = holder_of(path)
    assert holder is not None and (holder.incarnation, holder.pid) == (1, os.getpid())
    first.close()
    first.close()
    assert holder_of(path) is None and not path.exists()
    second = try_lock(path, 2)
    assert second is not None
    second.close()


def test_a_lock_is_free_after_a_close_that_could_not_get_the_guard(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = try_lock(path, 1)
    assert lock is not None
    monkeypatch.setattr("fanwise.rpc.rendezvous.lock_files.guarded", functools.partial(guarded, within_s=0.0))
    with guarded(path.parent), pytest.raises(DeadlineExceeded):
        lock.close()
    assert not lock.is_ours() and holder_of(path) is None
    lock.close()
    second = try_lock(path, 2)
    assert second is not None
    second.close()


def test_other_addresses_are_other_locks(tmp_path: Path) -> None:
    one, two = (try_lock(lock_path(tmp_path, name), 1) for name in ("port:1", "port:2"))
    assert one is not None and two is not None
    one.close()
    two.close()


def test_a_frozen_holder_is_replaced_by_name_and_learns_it(path: Path) -> None:
    frozen = try_lock(path, 1)
    assert frozen is not None
    assert try_lock(path, 3, instead_of=2) is None
    new = try_lock(path, 2, instead_of=1)
    assert new is not None and new.is_ours() and not frozen.is_ours()
    frozen.close()
    holder = holder_of(path)
    assert holder is not None and holder.incarnation == 2, "who comes late removes nobody else's"
    new.close()


HOLD_AND_DIE = (
    WITH_LOCK_FILES
    + """
lock = lock_files.try_lock(Path(sys.argv[1]), 1)
Path(lock.socket).touch()
child = None
if sys.argv[2] == "leaving a child":
    os.set_inheritable(lock._descriptor, True)
    child = subprocess.Popen(["cat"], close_fds=False, stdin=sys.stdin, stdout=subprocess.DEVNULL)
os._exit(0)
"""
)


@pytest.mark.parametrize("how", ["alone", "leaving a child"])
def test_a_lock_file_is_free_when_its_holder_has_died(path: Path, how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD_AND_DIE, path, how], stdin=subprocess.PIPE) as process:
        assert process.wait(30.0) == 0
        assert path.exists() and holder_of(path) is None
        new = try_lock(path, 2)
        assert new is not None
        assert [found.name for found in path.parent.glob(f"{path.name}-*")] == [], "the socket of the dead is removed"
        new.close()


def test_a_fork_does_not_give_the_lock_back(path: Path) -> None:
    lock = try_lock(path, 1)
    assert lock is not None
    pid = os.fork()
    if pid == 0:
        lock.close()
        lock.close_fork()
        os._exit(0)
    os.waitpid(pid, 0)
    assert lock.is_ours() and holder_of(path) is not None
    lock.close()


def test_the_key_is_made_once_and_is_for_this_user_only(tmp_path: Path) -> None:
    assert len(host_key(tmp_path)) == 32
    assert host_key(tmp_path) == host_key(tmp_path)
    assert [found.name for found in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
