"""Commands of other processes to a running search: authentication, answers, and removal of the socket."""

import os
import secrets
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from searches import quiet_tuner

from fanwise.base.errors import AuthenticationError, ClosedError, FanwiseError, WorkerLostError
from fanwise.links.frames import REQUEST, encode
from fanwise.links.hub import Hub
from fanwise.links.plain import Plain
from fanwise.links.security.handshake import MAGIC, NONCE_SIZE
from fanwise.links.transports.unix import dial
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import Experiment, Tuner, report, uniform
from fanwise.tune.record.event_file import read_events
from fanwise.tune.record.overview import overview_of
from fanwise.tune.runtime.control import KEY_NAME, SOCKET_NAME, send_command, short_path

ENDLESS = 10**6


def report_forever(x: float, folder: str) -> None:
    """Report about 100 times per second until the search stops the trial."""
    for _ in range(ENDLESS):
        report(loss=x)
        threading.Event().wait(0.01)


class Running:
    """A search in a thread. `experiment`: the result of run(), or None while the search runs."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner
        self.path = tuner.path
        self.experiment: Experiment | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        within(20.0, lambda: (self.path / SOCKET_NAME).exists(), "the search listens")
        within(20.0, lambda: len(Experiment(self.path).results) > 2, "its trials report")

    def _run(self) -> None:
        self.experiment = self.tuner.run()

    def wait(self) -> Experiment:
        self._thread.join(30.0)
        assert self.experiment is not None, "the search has not ended"
        return self.experiment


@contextmanager
def searching(pool: Pool, folder: Path, **options: Any) -> Iterator[Running]:  # Any: options of a Tuner
    space = {"x": uniform(0, 1), "folder": str(folder)}
    running = Running(quiet_tuner(report_forever, space, pool=pool, **{"trials": ENDLESS, **options}))
    try:
        yield running
    finally:
        if overview_of(running.path).state == "running":
            running.tuner.stop()
        running.wait()


def test_other_process_stops_a_search(pool: Pool, tmp_path: Path) -> None:
    with searching(pool, tmp_path) as running:
        answer = send_command(running.path, "stop")
        experiment = running.wait()
    assert answer.startswith("the search ends: running trials are asked to stop. A second stop kills these trials")
    assert (experiment.state, experiment.end_reason) == ("finished", "stopped by hand")
    assert set(experiment.trials["status"]) == {"Stopped"}


def test_accepted_commands_are_recorded_before_the_answer_and_refused_ones_never(pool: Pool, tmp_path: Path) -> None:
    with searching(pool, tmp_path) as running:

        def commands() -> list[tuple[str, int | None]]:
            kinds = ("command", "enqueued", "workers", "interrupt")
            return [(event.kind, event.trial_id) for event in read_events(running.path) if event.kind in kinds]

        send_command(running.path, "pause", 0)
        assert commands() == [("command", 0)]
        send_command(running.path, "enqueue", {"x": 0.5})
        send_command(running.path, "workers", 3)
        running.tuner.enqueue({"x": 0.25})
        expected = [("command", 0), ("enqueued", None), ("workers", None), ("enqueued", None)]
        within(20.0, lambda: commands() == expected, "the configuration of the tuner is recorded")
        with pytest.raises(ValueError, match="the search has no trial 77"):
            send_command(running.path, "pause", 77)
        with pytest.raises(ValueError, match="n_workers must be at least 1, got 0"):
            send_command(running.path, "workers", 0)
        assert commands() == expected


def test_command_to_a_finished_search_says_how_to_resume_it(pool: Pool, tmp_path: Path) -> None:
    with searching(pool, tmp_path) as running:
        send_command(running.path, "stop")
        running.wait()
        with pytest.raises(ClosedError, match=r"has finished \(stopped by hand\). Resume it with: fanwise tune "):
            send_command(running.path, "stop")


# Authentication.


def test_socket_and_key_are_private_and_removed_at_the_end(pool: Pool, tmp_path: Path) -> None:
    with searching(pool, tmp_path) as running:
        modes = [stat.S_IMODE((running.path / name).stat().st_mode) for name in ("", SOCKET_NAME, KEY_NAME)]
        assert modes == [0o700, 0o600, 0o600]
        send_command(running.path, "stop")
        running.wait()
        assert not (running.path / SOCKET_NAME).exists() and not (running.path / KEY_NAME).exists()


def test_peer_without_the_key_is_refused(pool: Pool, tmp_path: Path) -> None:
    with searching(pool, tmp_path) as running:
        hub = Hub(name="stranger")
        try:
            with short_path(running.path) as folder, pytest.raises((AuthenticationError, WorkerLostError)):
                dial(hub, folder / SOCKET_NAME, secrets.token_bytes(32), within_s=5.0)
        finally:
            hub.close()
        assert "interrupt" not in {event.kind for event in read_events(running.path)}
        assert send_command(running.path, "unpause", 0).startswith("trial 0 is running")


def test_peer_with_a_wrong_proof_is_disconnected(pool: Pool, tmp_path: Path) -> None:
    """The peer ignores the proof of the listener, and sends a wrong proof and a command."""
    with searching(pool, tmp_path) as running, short_path(running.path) as folder:
        stranger = _stranger(str(folder / SOCKET_NAME), b"")
        with stranger:
            assert stranger.recv(len(MAGIC) + NONCE_SIZE).startswith(MAGIC)
            head, _ = Plain().dumps(("stop", ()))
            command = b"".join(bytes(part) for part in encode(REQUEST, 1, head))
            stranger.sendall(MAGIC + secrets.token_bytes(NONCE_SIZE) + secrets.token_bytes(32) + command)
            try:
                data = stranger.recv(4096)
            except ConnectionResetError:  # the listener closed before it had read everything
                data = b""
        assert data == b"", "the listener does not send its proof"
        before = len(read_events(running.path))
        within(20.0, lambda: len(read_events(running.path)) > before + 20, "the search continues")
        assert "interrupt" not in {event.kind for event in read_events(running.path)}


# A pickle that would create a file if it were loaded.
PICKLE = b"cposix\nsystem\n(S'touch %s'\ntR."


GARBAGE = [b"", b"\0" * 65536, b"GET / HTTP/1.1\r\n\r\n", b"fanwise1" + b"\xff" * 4096, PICKLE]


def test_garbage_from_many_connections_reaches_nothing(pool: Pool, tmp_path: Path) -> None:
    created_file = tmp_path / "created"
    with searching(pool, tmp_path) as running, short_path(running.path) as folder:
        address = str(folder / SOCKET_NAME)
        before = len(read_events(running.path))
        messages = [garbage.replace(b"%s", os.fsencode(created_file)) for garbage in GARBAGE]
        strangers = [_stranger(address, message) for message in messages * 60]
        try:
            assert send_command(running.path, "unpause", 0).startswith("trial 0 is running"), "the key still works"
            within(20.0, lambda: len(read_events(running.path)) > before + 20, "the search continues")
        finally:
            for stranger in strangers:
                stranger.close()
        send_command(running.path, "stop")
        assert running.wait().end_reason == "stopped by hand"
    assert not created_file.exists()


def _stranger(address: str, garbage: bytes) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.settimeout(5.0)
    stranger.connect(address)
    try:
        stranger.sendall(garbage)
    except OSError:
        pass  # the listener closed before it had read everything
    return stranger


def test_pickle_from_a_peer_with_the_key_is_not_loaded(pool: Pool, tmp_path: Path) -> None:
    created_file = tmp_path / "created"
    with searching(pool, tmp_path) as running:
        hub = Hub(name="insider")
        try:
            with short_path(running.path) as folder:
                link = dial(hub, folder / SOCKET_NAME, (running.path / KEY_NAME).read_bytes(), within_s=5.0)
            link.dumps = lambda value: (PICKLE.replace(b"%s", os.fsencode(created_file)), [])
            link.open()
            with pytest.raises(FanwiseError):
                link.ask("stop", within_s=10.0)
        finally:
            hub.close()
        assert send_command(running.path, "unpause", 0).startswith("trial 0 is running")
    assert not created_file.exists()


def test_folder_with_a_long_name_can_be_controlled(pool: Pool, tmp_path: Path) -> None:
    with searching(pool, tmp_path, name="n" * 100) as running:
        assert len(os.fsencode(running.path / SOCKET_NAME)) > 107
        send_command(running.path, "stop")
        assert running.wait().end_reason == "stopped by hand"
        assert not (running.path / SOCKET_NAME).exists()


def test_search_runs_without_a_socket(pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tuner = quiet_tuner(_returns, {"x": uniform(0, 1)}, pool=pool, trials=2)
    (tmp_path / "home").mkdir()
    bind = socket.socket.bind

    def refuse(self: socket.socket, address: Any) -> None:  # Any: depends on the family
        if self.family == socket.AF_UNIX and str(address).endswith(SOCKET_NAME):
            raise PermissionError(1, "no sockets here")
        bind(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "bind", refuse)
        experiment = tuner.run()
    assert experiment.state == "finished" and len(experiment.trials) == 2
    assert "other processes cannot control the search" in caplog.text
    assert not (tuner.path / KEY_NAME).exists()


def _returns(x: float) -> float:
    return x
