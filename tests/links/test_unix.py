"""A listener against strangers: everything that is not one of ours is closed and counted, and good peers are served."""

import contextlib
import gc
import os
import pickle
import resource
import secrets
import socket
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fanwise.base.errors import AuthenticationError, ClosedError, DeadlineExceeded, WorkerLostError
from fanwise.links import frames
from fanwise.links.frames import HEADER, MAGIC, Limits, encode
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.security.handshake import DialerHandshake
from fanwise.links.transports import acceptor
from fanwise.links.transports.unix import UnixListener, dial, new_key, private_folder
from fanwise.testing import within


class Server:
    """A listener whose hub runs in a thread, and that echoes."""

    def __init__(self, folder: Path, *, handshake_s: float = 30.0, limits: Limits | None = None) -> None:
        self.hub = Hub(name="server")
        self.key = new_key()
        self.path = folder / "hub"
        self.links: list[Link] = []
        self.endings: list[str] = []
        self.listener = UnixListener(
            self.hub, self.path, self.key, on_link=self._arrived, limits=limits or Limits(), handshake_s=handshake_s
        )
        self.hub.start()

    def _arrived(self, link: Link) -> None:
        self.links.append(link)
        link.handler = lambda request: request.answer(request.args)
        link.on_ended(lambda link, ending: self.endings.append(ending.reason))

    def refused(self) -> dict[str, int]:
        return {str(why): count for why, count in self.listener.refused.items()}

    def is_refused(self, **counts: int) -> bool:
        return self.refused() == {why.replace("_", "-"): count for why, count in counts.items()}

    def serves(self) -> bool:
        """Whether a good peer gets its answer."""
        hub = Hub(name="good peer")
        try:
            return bool(dial(hub, self.path, self.key).ask("echo", 1, within_s=10.0) == (1,))
        finally:
            hub.close()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(10.0)
        connection.connect(str(self.path))
        return connection

    def authenticated(self) -> socket.socket:
        """A raw connection after a right handshake."""
        connection = self.connect()
        handshake = DialerHandshake(self.key, secrets.token_bytes(32))
        while not handshake.done:
            connection.sendall(handshake.receive(connection.recv(handshake.wants)))
        return connection


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**settings: object) -> Server:
        servers.append(Server(tmp_path, **settings))  # type: ignore[arg-type]  # the test names them right
        return servers[-1]

    yield start
    for server in servers:
        server.hub.close()


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, int]]:
        return os.mkdir, (str(self.path), 0o700)


def is_closed(connection: socket.socket) -> bool:
    """Reads what the other side sent, up to the end that must come."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


# -- strangers ---------------------------------------------------------------------------------------------------------


def test_a_stranger_with_random_bytes_is_refused_and_good_peers_are_served(serve: Callable[..., Server]) -> None:
    server = serve()
    for size in (1, 8, 72, 5000):
        with server.connect() as stranger:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(b"\0" + secrets.token_bytes(size - 1))
            assert is_closed(stranger)
    assert server.is_refused(not_authentic=4)
    assert server.serves() and len(server.links) == 1


def test_a_wrong_key_is_refused_on_both_sides(serve: Callable[..., Server]) -> None:
    server = serve()
    hub = Hub()
    with pytest.raises(WorkerLostError, match="closed the connection: it did not accept our key"):
        dial(hub, server.path, new_key())
    hub.close()
    within(30.0, lambda: server.is_refused(not_authentic=1), "it is counted")
    assert server.serves()


def test_a_pickle_of_a_stranger_is_never_opened(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    trap = pickle.dumps(("method", (Trap(tmp_path / "sprung"),)))
    frame = encode(frames.REQUEST, 1, trap)[0]
    nonce = secrets.token_bytes(32)
    for opening in (b"", b"fanwise1", b"fanwise1" + nonce, b"fanwise1" + nonce + bytes(32)):
        with server.connect() as stranger:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(opening + bytes(frame) * 3)
            assert is_closed(stranger)
    assert server.is_refused(not_authentic=4) and server.serves()
    assert not (tmp_path / "sprung").exists()
    with server.authenticated() as peer:  # the same bytes of a peer that proved itself do spring it
        peer.sendall(frame)
        within(30.0, (tmp_path / "sprung").exists, "the frame is one that is read after a handshake")


def test_a_recorded_handshake_cannot_be_used_again(serve: Callable[..., Server]) -> None:
    server = serve()
    handshake = DialerHandshake(server.key, secrets.token_bytes(32))
    with server.connect() as peer:
        recorded = handshake.receive(peer.recv(handshake.wants))
        peer.sendall(recorded)
        assert handshake.receive(peer.recv(handshake.wants)) == b"" and handshake.done
    with server.connect() as replayer:
        replayer.sendall(recorded)
        assert is_closed(replayer)
    assert server.is_refused(not_authentic=1) and len(server.links) == 1


def test_half_a_handshake_and_then_silence_is_dropped_after_its_time(serve: Callable[..., Server]) -> None:
    server = serve(handshake_s=0.05)
    for begin in (b"", b"fan", b"fanwise1" + bytes(40)):
        with server.connect() as silent:
            silent.sendall(begin)
            assert is_closed(silent)
    assert server.is_refused(half_open=3) and server.serves()


def test_who_connects_and_goes_away_is_counted_as_half_open(serve: Callable[..., Server]) -> None:
    server = serve()
    for begin in (b"", b"fanwise1"):
        with server.connect() as gone:
            gone.sendall(begin)
    within(30.0, lambda: server.is_refused(half_open=2), "both are counted")
    assert server.serves()


def test_a_dialer_may_come_byte_by_byte(serve: Callable[..., Server]) -> None:
    server = serve()
    handshake = DialerHandshake(server.key, secrets.token_bytes(32))
    with server.connect() as slow:
        answer = handshake.receive(slow.recv(handshake.wants))
        for byte in answer:
            slow.sendall(bytes([byte]))
        handshake.receive(slow.recv(handshake.wants))
        assert handshake.done and server.refused() == {}


def test_thousands_who_say_nothing_do_not_keep_good_peers_out(serve: Callable[..., Server]) -> None:
    server = serve()
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as crowd:
        for _ in range(2000):
            crowd.enter_context(server.connect())
        assert server.serves()
        refused = server.listener.refused
        within(10.0, lambda: refused["half-open"] >= 2000 - acceptor.MAX_PENDING, "the oldest are dropped")
        assert len(os.listdir("/proc/self/fd")) <= before + 2000 + acceptor.MAX_PENDING + 10
        assert server.serves()
    within(10.0, lambda: server.is_refused(half_open=2000), "all are counted")


def test_a_process_without_descriptors_left_pauses_and_then_accepts(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10.0)
    with open(f"/proc/self/fdinfo/{server.hub._poll.fileno()}") as polled, client:

        def watched_events() -> str:
            polled.seek(0)
            watched = dict(line.split()[1:4:2] for line in polled if line.startswith("tfd:"))
            return watched[str(server.listener._acceptor._socket.fileno())]

        within(30.0, lambda: watched_events() == "19", "the listener is polled: 1, and what is always told: 18")
        fillers = [os.dup(0)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(0))
            client.connect(str(server.path))
            within(30.0, lambda: watched_events() == "18", "the listener is left alone")
        finally:
            for fd in fillers:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.recv(8) == b"fanwise1", "it was accepted after all"
    assert server.serves()
    assert "cannot accept a connection: [Errno 24] Too many open files" in caplog.text


# -- peers that proved themselves and then send what is none of ours ---------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"\0" * 100, "not a frame"),
        (HEADER.pack(MAGIC, 1, 0, 0, 1, 2**60, 2**60), f"a frame of {2**60} bytes was announced; this link takes 1000"),
        (HEADER.pack(MAGIC, 1, 0, 9, 1, 0, 500), "a frame of 9 buffers was announced; this link takes 8"),
        (bytes(encode(frames.REQUEST, 1, b"\x80\x05\xff")[0]), "a message of 3 bytes cannot be read"),
        (bytes(encode(frames.NOTICE, 0, b"\x80\x05\xff")[0]), "a message of 3 bytes cannot be read"),
        (bytes(encode(frames.REQUEST, 1, pickle.dumps(("m", ()))[:-3])[0]), "a message of 16 bytes cannot be read"),
    ],
    ids=["no frame", "too big", "too many buffers", "no request", "no notice", "half a pickle"],
)
def test_garbage_after_the_handshake_closes_the_link_and_is_counted(
    serve: Callable[..., Server], bytes_sent: bytes, reason: str
) -> None:
    server = serve(limits=Limits(frame_bytes=1000, buffers=8))
    with server.authenticated() as peer:
        peer.sendall(bytes_sent)
        assert is_closed(peer)
    assert server.is_refused(malformed=1)
    within(30.0, lambda: server.endings, "the ending is told")
    assert len(server.endings) == 1 and server.endings[0].startswith(reason)
    assert server.links[0].ending is not None and not server.links[0].ending.clean
    assert server.serves()


def test_what_came_before_the_garbage_was_served(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.authenticated() as peer:
        peer.sendall(bytes(encode(frames.REQUEST, 7, pickle.dumps(("echo", (1,))))[0]))
        reader = frames.FrameReader(Limits())
        (answer,) = reader.filled(peer.recv_into(reader.space()))
        assert (answer.kind, answer.call_id, pickle.loads(answer.head)) == (frames.REPLY, 7, (1,))
        peer.sendall(b"garbage" * 10)
        assert is_closed(peer)


def test_answers_to_calls_that_were_never_made_change_nothing(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.authenticated() as peer:
        for call_id in (0, 1, 2**63):
            peer.sendall(bytes(encode(frames.REPLY, call_id, pickle.dumps(None))[0]))
        peer.sendall(bytes(encode(frames.REQUEST, 1, pickle.dumps(("echo", ())))[0]))
        assert len(peer.recv(1000)) > HEADER.size
    assert server.links[0]._calls.num_late_answers == 3


@pytest.mark.parametrize(
    "head",
    [pickle.dumps(5), pickle.dumps(("method",)), b"", b"cnowhere\nnothing\n."],
    ids=["no pair", "no arguments", "empty", "unknown class"],
)
def test_a_request_that_cannot_be_read_fails_alone(serve: Callable[..., Server], head: bytes) -> None:
    server = serve()
    with server.authenticated() as peer:
        reader = frames.FrameReader(Limits())
        peer.sendall(bytes(encode(frames.REQUEST, 1, head)[0]))
        (failure,) = reader.filled(peer.recv_into(reader.space()))
        assert (failure.kind, failure.call_id) == (frames.ERROR, 1)
        peer.sendall(bytes(encode(frames.REQUEST, 2, pickle.dumps(("echo", (2,))))[0]))
        (answer,) = reader.filled(peer.recv_into(reader.space()))
        assert pickle.loads(answer.head) == (2,)


# -- who may -----------------------------------------------------------------------------------------------------------


def test_folder_and_socket_are_for_this_user_only(tmp_path: Path) -> None:
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
def test_another_user_is_refused_by_the_folder_and_behind_it_by_the_listener() -> None:
    folder = Path(tempfile.mkdtemp(prefix="fanwise-", dir="/tmp"))  # not below a folder that is closed to others
    server = Server(folder)
    try:
        assert as_nobody(server) == "PermissionError"
        folder.chmod(0o755)
        server.path.chmod(0o666)
        assert as_nobody(server) == "WorkerLostError"  # with the right key
        within(30.0, lambda: server.is_refused(other_user=1), "it is counted")
        assert server.serves()
    finally:
        server.hub.close()
        folder.rmdir()


def as_nobody(server: Server) -> str:
    """What happens to another user who dials with the right key."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = "nothing"
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


def test_a_short_temporary_folder_is_found_when_the_usual_one_is_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = private_folder()
    assert folder.parent == Path("/tmp") and os.listdir(deep) == []
    folder.rmdir()


# -- dialing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def test_dialing_where_nobody_listens_says_so(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match=r"nobody listens at .*/hub: .*No such file.*Its process may have ended"):
        dial(hub, tmp_path / "hub", new_key())


@contextlib.contextmanager
def impostor(path: Path, says: bytes) -> Iterator[None]:
    """Listens at `path`, and says this to whoever connects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        over = threading.Event()

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(says)
                over.wait(10.0)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        over.set()
        thread.join()


def test_a_listener_without_the_key_gets_nothing_from_us(hub: Hub, tmp_path: Path) -> None:
    with impostor(tmp_path / "hub", b"fanwise1" + bytes(32) + bytes(32)):
        with pytest.raises(AuthenticationError, match="the listener does not hold the key"):
            dial(hub, tmp_path / "hub", new_key())


def test_a_listener_of_another_protocol_is_refused(hub: Hub, tmp_path: Path) -> None:
    with impostor(tmp_path / "hub", b"HTTP/1.1 400 Bad Request" + bytes(40)):
        with pytest.raises(AuthenticationError, match="the listener does not speak our protocol"):
            dial(hub, tmp_path / "hub", new_key())


@pytest.mark.parametrize("says", [b"", b"fanwise1"])
def test_a_listener_that_falls_silent_is_waited_for_as_long_as_was_said(hub: Hub, tmp_path: Path, says: bytes) -> None:
    with impostor(tmp_path / "hub", says):
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.05 s"):
            dial(hub, tmp_path / "hub", new_key(), within_s=0.05)


@contextlib.contextmanager
def full_listener(path: Path) -> Iterator[tuple[socket.socket, int]]:
    """A listener that cannot take one connection more, and how many it has."""
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


def test_a_busy_listener_is_waited_for_and_not_taken_for_a_dead_one(hub: Hub, tmp_path: Path) -> None:
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
        within(10.0, is_connecting, "it waits in line")
        for _ in range(waiting):
            listener.accept()[0].close()
        with listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request" + bytes(40))
            dialer.join(10.0)
    assert [type(error) for error in failures] == [AuthenticationError]


def test_a_listener_that_stays_busy_is_waited_for_as_long_as_was_said(hub: Hub, tmp_path: Path) -> None:
    with full_listener(tmp_path / "hub"), pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.05 s"):
        dial(hub, tmp_path / "hub", new_key(), within_s=0.05)


# -- the listener's own life -------------------------------------------------------------------------------------------


def test_a_closed_listener_accepts_nobody_and_its_links_stay(serve: Callable[..., Server], hub: Hub) -> None:
    server = serve()
    link = dial(hub, server.path, server.key)
    with server.connect() as half_open:
        assert half_open.recv(8) == b"fanwise1"
        server.hub.call_soon(server.listener.close)
        assert is_closed(half_open)
    within(30.0, lambda: not server.path.exists(), "the socket is gone")
    assert server.is_refused(half_open=1)
    with pytest.raises(WorkerLostError):
        dial(hub, server.path, server.key)
    assert link.ask("echo", 2, within_s=10.0) == (2,)


def test_closing_twice_does_not_take_the_socket_of_a_successor(hub: Hub, tmp_path: Path) -> None:
    first = UnixListener(hub, tmp_path / "hub", new_key(), on_link=lambda link: None)
    first.close()
    second = UnixListener(hub, tmp_path / "hub", new_key(), on_link=lambda link: None)
    first.close()
    assert (tmp_path / "hub").exists()
    second.close()


def test_a_path_in_use_is_an_error_and_leaves_the_listener_there_alone(serve: Callable[..., Server], hub: Hub) -> None:
    server = serve()
    with pytest.raises(OSError, match="in use"):
        UnixListener(hub, server.path, new_key(), on_link=lambda link: None)
    assert server.serves()


def test_a_link_that_is_turned_away_on_arrival_ends_for_its_dialer(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Hub(name="server")
    key = new_key()
    arrivals: list[Link] = []

    def on_link(link: Link) -> None:
        arrivals.append(link)
        if len(arrivals) == 1:
            link.close("not today")
        else:
            raise RuntimeError("this traceback in the log belongs to a test")

    listener = UnixListener(server, tmp_path / "hub", key, on_link=on_link)
    server.start()
    with pytest.raises(ClosedError, match="not today"):
        dial(hub, tmp_path / "hub", key).ask("hello", within_s=10.0)
    with pytest.raises(ClosedError, match="it could not be welcomed"):
        dial(hub, tmp_path / "hub", key).ask("hello", within_s=10.0)
    server.call_soon(listener.close)
    server.close()
    assert [record.getMessage()[:25] for record in caplog.records] == ["server: a callback failed"]


@pytest.mark.parametrize("size", [1000, 1 << 20])  # through the socket, and through shared memory
@pytest.mark.parametrize("way", ["ask", "call"])
def test_a_call_that_failed_keeps_nothing_of_what_was_sent(serve: Callable[..., Server], way: str, size: int) -> None:
    def fail(request: Request) -> None:
        raise ValueError("it has failed")

    server = serve()
    hub = Hub(name="near")
    near = dial(hub, server.path, server.key)
    near.ask("echo", 1, within_s=10.0)
    server.links[0].handler = fail
    gc.collect()
    gc.disable()
    try:
        x = np.ones(size)
        seen = weakref.ref(x)
        try:
            near.call(way, x).result(10.0) if way == "call" else near.ask(way, x, within_s=10.0)
        except ValueError:
            del x
        assert seen() is None
    finally:
        gc.enable()
        hub.close()


class CannotBeRead(ValueError):
    """Raised where its message is read."""


def _refuse() -> None:
    raise CannotBeRead("it does not come back")


class Unreadable:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _refuse, ()


def test_the_error_of_an_answer_that_cannot_be_read_ends_with_its_last_user(serve: Callable[..., Server]) -> None:
    """It must not lie in a ring with the frames that read the answer, which hold all the bytes that came."""
    server = serve()
    hub = Hub(name="near")
    near = dial(hub, server.path, server.key)
    near.ask("echo", 1, within_s=10.0)
    server.links[0].handler = lambda request: request.answer(Unreadable())
    gc.collect()
    gc.disable()
    try:
        seen: list[weakref.ref[CannotBeRead]] = []
        try:
            near.ask("read", within_s=10.0)
        except CannotBeRead as error:
            seen.append(weakref.ref(error))
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()
        hub.close()
