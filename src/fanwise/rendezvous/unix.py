"""Rendezvous within one host: Unix sockets in the runtime folder of this user.

    <folder>/key           proves the permission to enter this folder
    <folder>/lock          locked while sockets are made and removed
    <folder>/g-<hash>      socket of the coordinator of the group at an address
    <folder>/w-<random>    socket of a worker

A process that is killed leaves its sockets in the folder. The next coordinator removes those at which no process
listens. The lock keeps it from removing a socket that is about to listen.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..base.errors import DeadlineExceeded, WorkerLostError
from ..links.hub import Hub
from ..links.link import Link
from ..links.runtime_folder import runtime_folder
from ..links.transports.unix import UnixListener, dial
from .addresses import Address

OnLink = Callable[[Link], None]

_KEY_BYTES = 32
_LOCK_S, _PAUSE_S = 5.0, 0.001


class UnixRendezvous:
    """See `rendezvous.Rendezvous`. Tests give another `folder` than that of the user."""

    def __init__(self, address: Address, *, folder: Path | None = None) -> None:
        self.address = address
        self._folder = folder or runtime_folder()
        self._key = host_key(self._folder)
        self._path = self._folder / f"g-{hashlib.sha256(address.name.encode()).hexdigest()[:16]}"

    def open(self, hub: Hub, on_link: OnLink) -> "LockedListener | None":
        with folder_lock(self._folder):
            remove_stale_sockets(self._folder)
            if self._path.exists():
                return None
            return LockedListener(UnixListener(hub, self._path, self._key, on_link=on_link))

    def dial(self, hub: Hub, *, within_s: float) -> Link | None:
        try:
            return dial(hub, self._path, self._key, within_s=within_s)
        except WorkerLostError:
            return None

    def listen(self, hub: Hub, on_link: OnLink) -> str:
        return listen_in(self._folder, hub, self._key, on_link)

    def dial_member(self, hub: Hub, address: str, host: str, *, within_s: float) -> Link:
        return dial(hub, Path(address), self._key, within_s=within_s)


class LockedListener:
    """A listener that is closed with the folder locked, so that its path is not removed from a successor."""

    def __init__(self, listener: UnixListener) -> None:
        self._listener = listener
        self.refused = listener.refused

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(DeadlineExceeded):
                stack.enter_context(folder_lock(self._listener.path.parent))
            self._listener.close()


def listen_in(folder: Path, hub: Hub, key: bytes, on_link: OnLink) -> str:
    """Listen as a worker at a new socket in `folder`. The hub closes the listener. Return the path."""
    path = folder / f"w-{secrets.token_hex(8)}"
    with folder_lock(folder):
        UnixListener(hub, path, key, on_link=on_link)
    return str(path)


def remove_stale_sockets(folder: Path) -> None:
    """Remove the sockets of killed processes. The folder must be locked."""
    for path in folder.glob("[gw]-*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_socket() and not is_open(path):
                path.unlink()


def host_key(folder: Path) -> bytes:
    """Return the key of this user on this host. The first process makes it."""
    path, new_path = folder / "key", folder / "key.new"
    with folder_lock(folder):
        if not path.exists():
            new_path.touch(0o600)
            new_path.write_bytes(secrets.token_bytes(_KEY_BYTES))
            new_path.replace(path)
        return path.read_bytes()


@contextlib.contextmanager
def folder_lock(folder: Path, *, within_s: float = _LOCK_S) -> Iterator[None]:
    """Hold the lock of the runtime folder. Raises `DeadlineExceeded` if a stopped process holds it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise DeadlineExceeded(
                        f"{folder / 'lock'} was locked by another process for {within_s} s."
                    ) from None
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def is_open(path: Path) -> bool:
    """Return True if a process listens at a Unix socket. Does not connect, unless the kernel requires it to know.

    A datagram socket is refused with another error if a process has the other socket open.
    """
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                continue
            except OSError:
                pass
            return True
    return False
