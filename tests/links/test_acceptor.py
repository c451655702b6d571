"""What all listeners share, with greetings that do what the test says."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fanwise.links.hub import READ, WRITE, Hub
from fanwise.links.link import Link
from fanwise.links.transports.acceptor import Acceptor, PendingHandshake, Refused


class Played:
    """A greeting that is done when it has read "in", and refuses "out". It notes what is done to it."""

    def __init__(self, connection: socket.socket, notes: list[str], meanwhile: Callable[[], None]) -> None:
        self.connection = connection
        self.notes = notes
        self.meanwhile = meanwhile

    def fileno(self) -> int:
        return self.connection.fileno()

    def step(self) -> int:
        try:
            said = self.connection.recv(10)
        except BlockingIOError:
            return READ
        self.notes.append(said.decode())
        if said == b"out":
            raise Refused("not-authentic")
        return {b"in": 0, b"write": WRITE}.get(said, READ)

    def link(self) -> Link:
        raise ZeroDivisionError("no link is made here")

    def reject(self) -> None:
        self.meanwhile()
        self.notes.append("turned away")
        self.connection.close()

    def close_fork(self) -> None:
        self.notes.append("closed in the fork")
        self.connection.close()


class Place:
    """An acceptor at a Unix socket, on a hub that the test drives."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.notes: list[str] = []
        self.hub = Hub()
        self.meanwhile: Callable[[], None] = lambda: None
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
        if "nobody" in self.notes:
            raise Refused("other-user")
        return Played(connection, self.notes, lambda: self.meanwhile())

    @contextlib.contextmanager
    def guest(self, says: bytes = b"") -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
            guest.connect(self.path)
            guest.sendall(says)
            yield guest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "socket")
    yield place
    place.acceptor.close()
    place.hub.close()


def test_a_greeting_is_stepped_on_until_it_refuses(place: Place) -> None:
    with place.guest(b"one") as guest:
        place.hub.turn()
        place.hub.turn()
        guest.sendall(b"out")
        place.hub.turn(1.0)
        assert place.notes == ["one", "out", "turned away"]
        assert place.acceptor.refused == {"not-authentic": 1} and not place.acceptor.pending
        assert guest.recv(1) == b""


def test_a_greeting_is_called_for_the_events_it_asks_for(place: Place) -> None:
    with place.guest(b"write") as guest:
        place.hub.turn()
        place.hub.turn()
        guest.sendall(b"then")
        place.hub.turn(1.0)  # there is room to write at once; a hub that waits for bytes only would be here too
        place.hub.turn()
        assert place.notes == ["write", "then"]


def test_who_may_not_even_begin_is_closed_and_counted(place: Place) -> None:
    place.notes.append("nobody")
    with place.guest() as guest:
        place.hub.turn()
        assert guest.recv(1) == b"" and place.acceptor.refused == {"other-user": 1}


def test_a_turn_takes_some_and_leaves_the_others_for_the_next(place: Place) -> None:
    with place.guest(), place.guest(), place.guest():
        place.hub.turn()
        assert len(place.acceptor.pending) == 2
        place.hub.turn()
        assert len(place.acceptor.pending) == 3


def test_who_is_turned_away_by_the_closing_and_comes_again_finds_nobody(place: Place) -> None:
    def come_again() -> None:
        with pytest.raises(ConnectionRefusedError), place.guest():
            pass
        place.notes.append("found nobody")

    with place.guest():
        place.hub.turn()
        place.meanwhile = come_again
        assert place.acceptor.close()
    assert place.notes == ["found nobody", "turned away"]
    assert place.acceptor.refused == {"half-open": 1}
    assert not place.acceptor.close(), "once is enough"


def test_a_fork_closes_its_copies_and_takes_nothing_from_the_guests(place: Place) -> None:
    with place.guest(b"unread"):
        place.hub.turn()
        place.acceptor.close_fork()
    assert place.notes == ["unread", "closed in the fork"]
    for guest in place.acceptor.pending:  # what a fork does not close twice
        place.acceptor.pending.remove(guest)


def test_a_link_that_cannot_be_made_ends_its_greeting(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.guest(b"in"):
        place.hub.turn()
        place.hub.turn()
    assert place.notes == ["in", "turned away"] and not place.acceptor.pending
    assert "a callback failed" in caplog.text
