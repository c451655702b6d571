"""Acceptors, with scripted handshakes; which connection is dropped when too many are pending."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanwise.links.hub import READ, WRITE, Hub
from fanwise.links.link import Link
from fanwise.links.transports.acceptor import Acceptor, PendingConnections, PendingHandshake, Refused


class ScriptedHandshake:
    """A handshake that is complete when it has read "in", and refuses "out". It notes its calls."""

    def __init__(self, connection: socket.socket, notes: list[str], on_reject: Callable[[], None]) -> None:
        self.connection = connection
        self.notes = notes
        self.on_reject = on_reject

    def fileno(self) -> int:
        return self.connection.fileno()

    def step(self) -> int:
        try:
            data = self.connection.recv(10)
        except BlockingIOError:
            return READ
        self.notes.append(data.decode())
        if data == b"out":
            raise Refused("not-authentic")
        return {b"in": 0, b"write": WRITE}.get(data, READ)

    def link(self) -> Link:
        raise ZeroDivisionError("there is no link")

    def reject(self) -> None:
        self.on_reject()
        self.notes.append("rejected")
        self.connection.close()

    def close_fork(self) -> None:
        self.notes.append("fork closed")
        self.connection.close()


class Scene:
    """An acceptor at a Unix socket, on a hub that the test turns."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.notes: list[str] = []
        self.hub = Hub()
        self.on_reject: Callable[[], None] = lambda: None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(self.path)
        listening.listen()
        listening.setblocking(False)
        self.acceptor = Acceptor(
            self.hub,
            listening,
            self._begin,
            where=self.path,
            on_link=lambda link: None,
            handshake_s=60.0,
            accepted_a_turn=2,
        )

    def _begin(self, connection: socket.socket, _address: object) -> PendingHandshake:
        if "refuse" in self.notes:
            raise Refused("other-user")
        return ScriptedHandshake(connection, self.notes, lambda: self.on_reject())

    @contextlib.contextmanager
    def guest(self, data: bytes = b"") -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
            guest.connect(self.path)
            guest.sendall(data)
            yield guest


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "socket")
    yield scene
    scene.acceptor.close()
    scene.hub.close()


def test_handshake_is_stepped_until_it_refuses(scene: Scene) -> None:
    with scene.guest(b"one") as guest:
        scene.hub.turn()
        scene.hub.turn()
        guest.sendall(b"out")
        scene.hub.turn(1.0)
        assert scene.notes == ["one", "out", "rejected"]
        assert scene.acceptor.refused == {"not-authentic": 1} and not scene.acceptor.pending
        assert guest.recv(1) == b""


def test_handshake_is_called_for_the_events_it_returned(scene: Scene) -> None:
    with scene.guest(b"write") as guest:
        scene.hub.turn()
        scene.hub.turn()
        guest.sendall(b"then")
        scene.hub.turn(1.0)  # there is room to write; a hub that only waits for bytes would return, too
        scene.hub.turn()
        assert scene.notes == ["write", "then"]


def test_connection_refused_before_its_handshake_is_closed_and_counted(scene: Scene) -> None:
    scene.notes.append("refuse")
    with scene.guest() as guest:
        scene.hub.turn()
        assert guest.recv(1) == b"" and scene.acceptor.refused == {"other-user": 1}


def test_turn_accepts_a_bounded_number_of_connections(scene: Scene) -> None:
    with scene.guest(), scene.guest(), scene.guest():
        scene.hub.turn()
        assert len(scene.acceptor.pending) == 2
        scene.hub.turn()
        assert len(scene.acceptor.pending) == 3


def test_listening_socket_is_closed_before_the_pending_connections(scene: Scene) -> None:
    def dial_again() -> None:
        with pytest.raises(ConnectionRefusedError), scene.guest():
            pass
        scene.notes.append("nobody listens")

    with scene.guest():
        scene.hub.turn()
        scene.on_reject = dial_again
        assert scene.acceptor.close()
    assert scene.notes == ["nobody listens", "rejected"]
    assert scene.acceptor.refused == {"half-open": 1}
    assert not scene.acceptor.close()


def test_fork_closes_its_copies_and_reads_nothing(scene: Scene) -> None:
    with scene.guest(b"unread"):
        scene.hub.turn()
        scene.acceptor.close_fork()
    assert scene.notes == ["unread", "fork closed"]
    for guest in scene.acceptor.pending:  # so that the fixture does not close it again
        scene.acceptor.pending.remove(guest)


def test_link_that_cannot_be_made_rejects_the_connection(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with scene.guest(b"in"):
        scene.hub.turn()
        scene.hub.turn()
    assert scene.notes == ["in", "rejected"] and not scene.acceptor.pending
    assert "a callback failed" in caplog.text


# -- which connection is dropped ---------------------------------------------------------------------------------------

LIMIT, LIMIT_PER_ADDRESS = 6, 3


class PendingConnectionsMachine(RuleBasedStateMachine):
    """The model is a list of (connection, address), the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: PendingConnections[int] = PendingConnections(limit=LIMIT, limit_per_address=LIMIT_PER_ADDRESS)
        self.model: list[tuple[int, str | None]] = []
        self.number = 0

    @rule(address=st.sampled_from(["a", "b", "c", "d", "e", "f", "g", None]))
    def add(self, address: str | None) -> None:
        self.number += 1
        expected = self._dropped_by(address)
        assert self.pending.add(self.number, address) == expected
        self.model = [one for one in self.model if one[0] != expected] + [(self.number, address)]

    def _dropped_by(self, address: str | None) -> int | None:
        counts = {key: sum(one[1] == key for one in self.model) for _, key in self.model}
        if address is not None and counts.get(address, 0) >= LIMIT_PER_ADDRESS:
            return next(connection for connection, key in self.model if key == address)
        if len(self.model) < LIMIT:
            return None
        return next(connection for connection, key in self.model if counts[key] == max(counts.values()))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.model))
        self.model.remove(one)
        assert self.pending.remove(one[0]) and not self.pending.remove(one[0])

    @invariant()
    def contents_are_the_models(self) -> None:
        assert list(self.pending) == [connection for connection, _ in self.model]
        assert len(self.pending) == len(self.model)
        assert set(self.pending._by_address) == {address for _, address in self.model}


TestPendingConnections = PendingConnectionsMachine.TestCase


def test_address_with_many_connections_cannot_keep_out_another() -> None:
    pending: PendingConnections[str] = PendingConnections(limit=4, limit_per_address=4)
    for number in range(50):
        pending.add(f"greedy {number}", "x")
    assert pending.add("alone", "y") == "greedy 46"
    for number in range(50, 100):
        pending.add(f"greedy {number}", "x")
    assert "alone" in list(pending)
