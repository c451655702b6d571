"""Who holds the entrance of a group on this host: a lock file, free when its process ends, whatever happens to that.

    $XDG_RUNTIME_DIR/fanwise or /tmp/fanwise-<uid>     0700, ours, no link; or ~/.fanwise-<host>: `links.runtime_folder`
        key             proves that one may enter this folder; made once
        guard           locked for moments, while a lock file is replaced or removed, or the folder is swept
        <hash>          the lock file of one address: locked by its holder; says who that is and which socket is its
                        entrance, and below that the processes of this host that are in the group
        <hash>-<random> that socket; a name of its own for each lock, so that who comes late removes nobody else's
        w-<random>      where a worker listens (`entrance`)

The lock is the kernel's (flock) and goes with the holder. A lock that outlives it, because a child that was not forked
by Python keeps the descriptor, is broken when the holder's process has ended; and a holder that was found frozen
is replaced by name. `is_ours` tells a holder that this has happened to it. `has_survivors` tells who finds the lock
file of a dead holder that others of its group live: one of them will take it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import DeadlineExceeded
from ...links.process_state import has_ended, look_at, this_host

_KEY_SIZE = 32
_GUARD_S = 5.0
_PAUSE_S = 0.001
_MEMBER = re.compile(rb"^(\d+) (\d+)$", re.MULTILINE)
_SIZE_MAX = 1 << 16


def host_key(folder: Path) -> bytes:
    """The key of this user on this host, made by whoever comes first."""
    path = folder / "key"
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    fresh = folder / f"key-{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(_KEY_SIZE))
        os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # whole or not at all, and never over another's
    finally:
        fresh.unlink()
    return path.read_bytes()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock file, as it says itself.

    Attributes:
        pid, started_ticks, host: its process.
        socket: the name of its entrance, in the same folder.
        is_gone: it holds it no more, or has ended.
        members: (pid, started ticks) of the others of its group, on its host.
    """

    incarnation: int
    pid: int
    started_ticks: int
    host: str
    socket: str
    is_gone: bool = False
    members: tuple[tuple[int, int], ...] = ()

    @property
    def has_survivors(self) -> bool:
        """Whether it is gone, and a member of its group lives on."""
        if not self.is_gone or self.host != this_host():
            return False
        return any(pid != os.getpid() and not has_ended(pid, ticks) for pid, ticks in self.members)


class LockFile:
    """A lock file that this process holds. `close` gives it back. Made by `try_lock`."""

    def __init__(self, path: Path, descriptor: int, holder: Holder) -> None:
        self.path = path
        self.holder = holder
        self.socket = path.parent / holder.socket
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._size = os.fstat(descriptor).st_size

    def note(self, members: Iterable[tuple[int, int]]) -> None:
        """Write down who is in the group: (pid, started ticks) on this host. Read only when this process is dead, so a
        line that its death cut short names nobody, and hurts nobody."""
        text = b"".join(b"%d %d\n" % member for member in members)
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, self._size)
            os.pwrite(self._descriptor, text, self._size)

    def is_ours(self) -> bool:
        """Whether it has not been given to another."""
        return self._descriptor >= 0 and _is_at(self._descriptor, self.path)

    def close(self) -> None:
        """Give it back. In a fork: nothing.

        Raises `DeadlineExceeded` when another process keeps the guard. The lock is given back then, too.
        """
        if self._descriptor < 0 or self._pid != os.getpid():
            return
        try:
            with guarded(self.path.parent):
                if self.is_ours():
                    self.path.unlink()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def close_fork(self) -> None:
        """In a forked child: close the copy of the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def lock_path(folder: Path, name: str) -> Path:
    """The lock file on the address `name`."""
    return folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def holder_of(path: Path) -> Holder | None:
    """Who holds the lock file now; None when nobody does, or its process has ended."""
    holder = read(path)
    return None if holder is None or holder.is_gone else holder


def has_survivors(path: Path) -> bool:
    """Whether the lock's holder has died, and others of its group live on: one of them will take its place."""
    holder = read(path)
    return holder is not None and holder.has_survivors


def try_lock(path: Path, incarnation: int, *, instead_of: int | None = None) -> LockFile | None:
    """Take the lock file for this process, or None when another holds it. May be tried again and again.

    `instead_of`: the incarnation of a holder that is to be replaced although its process is there, as it is frozen.
    """
    with guarded(path.parent):
        holder = read(path)
        if holder is not None and not holder.is_gone and holder.incarnation != instead_of:
            return None
        if holder is not None:
            for old in (path, path.parent / holder.socket):
                old.unlink(missing_ok=True)
        return _new_lock(path, incarnation)


def _new_lock(path: Path, incarnation: int) -> LockFile:
    """With the guard held. Written first and then put in its place, so that nobody reads half of it."""
    me = os.getpid()
    name = f"{path.name}-{secrets.token_hex(4)}"
    holder = Holder(incarnation, me, look_at(me).started_ticks, this_host(), name)
    fresh = path.with_name(f"{holder.socket}.new")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        text = json.dumps([holder.incarnation, holder.pid, holder.started_ticks, holder.host, holder.socket])
        os.write(descriptor, text.encode() + b"\n")
        fresh.rename(path)
    except BaseException:
        os.close(descriptor)
        fresh.unlink(missing_ok=True)
        raise
    return LockFile(path, descriptor, holder)


def read(path: Path) -> Holder | None:
    """What the lock file says, and whether its holder is gone; None when there is no lock file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        first, _, rest = os.read(descriptor, _SIZE_MAX).partition(b"\n")
        try:
            incarnation, pid, started_ticks, host, name = json.loads(first)
        except ValueError:  # empty: the host has crashed, and had not written it to its disk
            return Holder(0, 0, 0, "", path.name, is_gone=_is_free(descriptor))
        is_gone = _is_free(descriptor) or (host == this_host() and has_ended(pid, started_ticks))
        members = tuple((int(member), int(ticks)) for member, ticks in _MEMBER.findall(rest))
        return Holder(incarnation, pid, started_ticks, host, name, is_gone, members)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


@contextlib.contextmanager
def guarded(folder: Path, *, within_s: float = _GUARD_S) -> Iterator[int]:
    """Hold the guard; its descriptor. Whoever else does is done in a moment, unless it was stopped just there.

    Raises `DeadlineExceeded` after `within_s` seconds.
    """
    descriptor = os.open(folder / "guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        until_s = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise DeadlineExceeded(
                        f"{folder / 'guard'} was locked by another process for {within_s} s."
                    ) from None
                time.sleep(_PAUSE_S)
        yield descriptor
    finally:
        os.close(descriptor)
