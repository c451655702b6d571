"""What tests with real workers share: one interpreter that has loaded torch, from which all of them are forked."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from networks import PlayedHost, two_hosts, why_not
from rpc_workers import Nursery, Workers


@pytest.fixture(scope="session")
def first_nursery() -> Iterator[Nursery]:
    with Nursery.start(Path(tempfile.gettempdir())) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def nursery(first_nursery: Nursery) -> Iterator[Nursery]:
    with first_nursery.another() as nursery:
        yield nursery


@pytest.fixture
def real_workers(nursery: Nursery, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workers]:
    """Workers that are processes of their own. They know the functions of the module of the test."""
    nursery.learn(request.module.__name__, request.module.__file__)
    workers = Workers(nursery, tmp_path)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[PlayedHost, PlayedHost]]:
    """Two hosts with a cable between them; skips where the machine does not let them be made."""
    missing = why_not()
    if missing:
        pytest.skip(missing)
    with two_hosts() as both:
        yield both
