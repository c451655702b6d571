"""Where a group is entered, and where its members listen: Unix sockets of this user on one host.

    try_open   be the one who lets others in; at most one process at a time for one address (`lock_files.py`)
    dial       reach whoever that is now
    listen, dial_member     a listener of each member, for the links between members

What meets between hosts, with a secret, offers the same (`entrance_tls.py`). Opens and dials only; who is let in, and
what is said, is decided elsewhere. Who listens removes what killed workers have left in the folder (`stale_files.py`).
"""

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from ...base.errors import FanwiseError, WorkerLostError
from ...links.hub import Hub
from ...links.link import Link
from ...links.process_state import this_host
from ...links.runtime_folder import runtime_folder
from ...links.transports.unix import UnixListener, dial
from ..membership.members import Member
from .addresses import Rendezvous
from .lock_files import LockFile, has_survivors, holder_of, host_key, lock_path, try_lock
from .stale_files import sweep

OnLink = Callable[[Link], None]


class Entrance(Protocol):
    """What the coordinator holds."""

    def is_ours(self) -> bool:
        """False when another has replaced us: we were taken for dead."""

    def note(self, members: Sequence[Member]) -> None:
        """Write down who is in the group, for whoever comes after the death of this process. On the hub's thread."""

    def refused(self) -> str:
        """For a message: how many were not let in and why; empty when nobody was turned away."""

    def close(self) -> None:
        """Let nobody in any more. On the hub's thread. A second call does nothing."""


class Meeting(Protocol):
    """How the members of one group reach each other.

    Attributes:
        where: the place.
        is_exclusive: whether all can see who holds the entrance, so that there is one coordinator at most. Between
            hosts that cannot be: there the members themselves decide, by their majority (`coordinator`).
    """

    where: Rendezvous
    is_exclusive: bool

    def try_open(
        self, hub: Hub, incarnation: int, on_link: OnLink, *, instead_of: int | None = None
    ) -> Entrance | None:
        """Open the entrance, or None when another holds it. `instead_of`: one that is frozen, to be replaced."""

    def dial(self, hub: Hub, *, within_s: float, but_not: int | None = None) -> Link | None:
        """A link to whoever holds the entrance; None when nobody does, or only the incarnation `but_not`. Blocks."""

    def listen(self, hub: Hub, on_link: OnLink) -> str:
        """Let links in, until the hub closes. The address, for `dial_member`."""

    def dial_member(self, hub: Hub, member: Member, *, within_s: float) -> Link:
        """A link to the member's own listener. Blocks; raises as `links.dial` does."""

    def is_listening(self, address: str) -> bool:
        """Whether a member of this host still listens at `address`. Does not block."""

    def has_survivors(self) -> bool:
        """Whether who held the entrance died, and members of its group live on, one of whom is about to open it."""


class LocalMeeting:
    """Within this host and this user, by Unix sockets. `folder` is another than the user's own for tests only."""

    is_exclusive = True

    def __init__(self, where: Rendezvous, *, folder: Path | None = None) -> None:
        self.where = where
        self._folder = folder or runtime_folder()
        self._key = host_key(self._folder)
        self._lock_path = lock_path(self._folder, where.name)

    def try_open(
        self, hub: Hub, incarnation: int, on_link: OnLink, *, instead_of: int | None = None
    ) -> "UnixEntrance | None":
        lock = try_lock(self._lock_path, incarnation, instead_of=instead_of)
        if lock is None:
            return None
        try:
            listener = UnixListener(hub, lock.socket, self._key, on_link=on_link)
        except BaseException:
            lock.close()
            raise
        return UnixEntrance(hub, lock, listener)

    def dial(self, hub: Hub, *, within_s: float, but_not: int | None = None) -> Link | None:
        holder = holder_of(self._lock_path)
        if holder is None or holder.incarnation == but_not:
            return None
        try:
            return dial(hub, self._folder / holder.socket, self._key, within_s=within_s)
        except WorkerLostError:  # it is just opening, or just closing
            return None

    def listen(self, hub: Hub, on_link: OnLink) -> str:
        sweep(self._folder)
        path = self._folder / f"w-{secrets.token_hex(8)}"
        UnixListener(hub, path, self._key, on_link=on_link)  # its hub keeps and closes it
        return str(path)

    def dial_member(self, hub: Hub, member: Member, *, within_s: float) -> Link:
        return dial(hub, Path(member.address), self._key, within_s=within_s)

    def is_listening(self, address: str) -> bool:
        return is_open(address)

    def has_survivors(self) -> bool:
        return has_survivors(self._lock_path)


def is_open(path: str) -> bool:
    """Whether somebody listens at the Unix socket `path`. Does not block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # many have just come
        except OSError:
            return False
    return True


def refused_text(refused: Iterable[tuple[str, int]]) -> str:
    """As `Entrance.refused` says it, of a listener's counts by reason."""
    kinds = ", ".join(f"{why}: {count}" for why, count in sorted(refused))
    return f"connections that were refused: {kinds}" if kinds else ""


class UnixEntrance:
    """A lock file and the listener behind it."""

    def __init__(self, hub: Hub, lock: LockFile, listener: UnixListener) -> None:
        self._lock = lock
        self._listener = listener
        hub.close_in_fork(self)

    def is_ours(self) -> bool:
        return self._lock.is_ours()

    def note(self, members: Sequence[Member]) -> None:
        me, host = os.getpid(), this_host()
        with contextlib.suppress(OSError):  # it is there for a moment that may never come
            self._lock.note((m.pid, m.started_ticks) for m in members if m.host == host and m.pid != me)

    def refused(self) -> str:
        return refused_text(self._listener.refused.items())

    def close(self) -> None:
        self._listener.close()
        try:
            self._lock.close()
        except FanwiseError:
            pass  # it ends with this process all the same

    def close_fork(self) -> None:
        """In a forked child: close the copy of the descriptor."""
        self._lock.close_fork()
