"""Fixtures for tests with real workers, which are all forked from one interpreter that has loaded torch."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from networks import PlayedHost, two_hosts, why_not
from rpc_workers import ForkServer, Worker, Workers, all_do, call, leave, pid


@pytest.fixture(scope="session")
def first_fork_server() -> Iterator[ForkServer]:
    with ForkServer.start(Path(tempfile.gettempdir())) as server:
        yield server


@pytest.fixture(scope="module")
def fork_server(first_fork_server: ForkServer, request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    """A fork server whose workers know the functions of the test module."""
    with first_fork_server.fork_server() as server:
        server.load_module(request.module.__name__, request.module.__file__)
        yield server


@pytest.fixture
def real_workers(fork_server: ForkServer, tmp_path: Path) -> Iterator[Workers]:
    """Worker processes of this test."""
    workers = Workers(fork_server, tmp_path)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def shared_pair(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    """Two workers for all tests of a module, which leave gracefully at the end."""
    workers = Workers(fork_server, tmp_path_factory.mktemp("pair"))
    pair = workers.group(2)
    yield pair
    try:
        all_do(pair, leave)
    finally:
        workers.close()


@pytest.fixture
def pair(shared_pair: list[Worker]) -> Iterator[list[Worker]]:
    """Two workers shared with other tests. They must still answer each other afterwards."""
    yield shared_pair
    check_they_answer(shared_pair)


@pytest.fixture
def new_pair(real_workers: Workers) -> Iterator[list[Worker]]:
    """Two workers of this test. They must still answer each other afterwards, and leave gracefully."""
    two = real_workers.group(2)
    yield two
    check_they_answer(two)
    all_do(two, leave)


def check_they_answer(two: list[Worker]) -> None:
    for worker, other in (two, two[::-1]):
        assert worker.do(call, other.name, pid) == other.pid


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[PlayedHost, PlayedHost]]:
    """Two hosts with a network between them. Skips if this machine cannot simulate them."""
    if missing := why_not():
        pytest.skip(missing)
    with two_hosts() as both:
        yield both
