"""Links within a host: who may connect, sockets and folders, busy listeners. See test_listeners.py for the rest."""

import contextlib
import os
import resource
import secrets
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from listeners import LIMIT_S, EchoServer, is_closed

from fanwise.base.errors import AuthenticationError, DeadlineExceeded, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.security.handshake import DialerHandshake
from fanwise.links.transports.unix import UnixListener, dial, new_key, private_folder
from fanwise.testing import within


def test_dialer_with_another_key_is_refused(server: EchoServer, hub: Hub) -> None:
    with pytest.raises(WorkerLostError, match="closed the connection: it did not accept our key"):
        dial(hub, server.path, new_key())
    within(LIMIT_S, lambda: server.is_refused(not_authentic=1), "it is counted")


def test_recorded_handshake_cannot_be_replayed(server: EchoServer) -> None:
    handshake = DialerHandshake(server.key, secrets.token_bytes(32))
    with server.connect() as peer:
        recorded = handshake.receive(peer.recv(handshake.wants))
        peer.sendall(recorded)
        assert handshake.receive(peer.recv(handshake.wants)) == b"" and handshake.done
    with server.connect() as replayer:
        replayer.sendall(recorded)
        assert is_closed(replayer)
    assert server.is_refused(not_authentic=1) and len(server.links) == 1


def test_folder_and_socket_are_for_this_user_only() -> None:
    folder, hub = private_folder(), Hub()
    try:
        listener = UnixListener(hub, folder / "hub", new_key(), on_link=lambda link: None)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "hub").stat().st_mode) == 0o600
        assert folder.stat().st_uid == os.getuid()
        listener.close()
        assert os.listdir(folder) == []
    finally:
        hub.close()
        folder.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_by_the_folder_and_by_the_listener() -> None:
    folder = Path(tempfile.mkdtemp(prefix="fanwise-", dir="/tmp"))  # not below a folder that is closed to others
    server = EchoServer("unix", folder)
    try:
        assert dialed_by_nobody(server) == "PermissionError"
        folder.chmod(0o755)
        server.path.chmod(0o666)
        assert dialed_by_nobody(server) == "WorkerLostError"
        within(LIMIT_S, lambda: server.is_refused(other_user=1), "it is counted")
        assert server.serves()
    finally:
        server.hub.close()
        folder.rmdir()


def dialed_by_nobody(server: EchoServer) -> str:
    """Dial with the right key as the user `nobody`. Return the type of the error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = "no error"
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            dial(Hub(), server.path, server.key, within_s=10.0)
        except BaseException as error:
            outcome = type(error.__cause__ or error).__name__
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_private_folder_has_a_short_path_even_if_the_temporary_folder_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = private_folder()
    assert folder.parent == Path("/tmp") and os.listdir(deep) == []
    folder.rmdir()


def test_listener_pauses_while_the_process_has_no_descriptors_left(
    server: EchoServer, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10.0)
    with open(f"/proc/self/fdinfo/{server.hub._poll.fileno()}") as polled, client:

        def watched_events() -> str:
            polled.seek(0)
            watched = dict(line.split()[1:4:2] for line in polled if line.startswith("tfd:"))
            return watched[str(server.listener._acceptor._socket.fileno())]

        within(LIMIT_S, lambda: watched_events() == "19", "the listener is polled: EPOLLIN, and EPOLLERR | EPOLLHUP")
        fillers = [os.dup(0)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(0))
            client.connect(str(server.path))
            within(LIMIT_S, lambda: watched_events() == "18", "the listener is not polled")
        finally:
            for fd in fillers:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.recv(8) == b"fanwise1", "it was accepted after all"
    assert server.serves()
    assert "cannot accept a connection: [Errno 24] Too many open files" in caplog.text


# -- busy listeners ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_listener(path: Path) -> Iterator[tuple[socket.socket, int]]:
    """Listen with a full backlog. Yields the socket and the number of connections that wait."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.settimeout(10.0)
        listener.bind(str(path))
        listener.listen(1)
        waiting = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                early = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                early.setblocking(False)
                early.connect(str(path))
                waiting += 1
        yield listener, waiting


def test_dialer_waits_for_a_busy_listener(hub: Hub, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def dialing() -> None:
        try:
            dial(hub, tmp_path / "hub", new_key(), within_s=20.0)
        except BaseException as error:
            failures.append(error)

    def is_connecting() -> bool:
        frame = sys._current_frames().get(dialer.ident or 0)
        return frame is not None and frame.f_code.co_name == "_connect"

    with full_listener(tmp_path / "hub") as (listener, waiting):
        dialer = threading.Thread(target=dialing)
        dialer.start()
        within(10.0, is_connecting, "it waits for a place in the backlog")
        for _ in range(waiting):
            listener.accept()[0].close()
        with listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request" + bytes(40))
            dialer.join(10.0)
    assert [type(error) for error in failures] == [AuthenticationError]


def test_listener_that_stays_busy_is_given_up_at_the_time_limit(hub: Hub, tmp_path: Path) -> None:
    with full_listener(tmp_path / "hub"), pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.05 s"):
        dial(hub, tmp_path / "hub", new_key(), within_s=0.05)


# -- the path ----------------------------------------------------------------------------------------------------------


def test_second_close_leaves_the_socket_of_a_successor(hub: Hub, tmp_path: Path) -> None:
    first = UnixListener(hub, tmp_path / "hub", new_key(), on_link=lambda link: None)
    first.close()
    second = UnixListener(hub, tmp_path / "hub", new_key(), on_link=lambda link: None)
    first.close()
    assert (tmp_path / "hub").exists()
    second.close()


def test_path_in_use_is_an_error_and_leaves_the_other_listener_alone(server: EchoServer, hub: Hub) -> None:
    with pytest.raises(OSError, match="in use"):
        UnixListener(hub, server.path, new_key(), on_link=lambda link: None)
    assert server.serves()
