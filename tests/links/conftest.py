"""Fixtures for listeners and links to them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from listeners import EchoServer, Transport

from fanwise.links.hub import Hub
from fanwise.links.link import Link


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., EchoServer]]:
    """Start servers, which end with the test."""
    servers: list[EchoServer] = []

    def start(transport: Transport, **settings: Any) -> EchoServer:
        servers.append(EchoServer(transport, tmp_path, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.hub.close()


@pytest.fixture
def server(serve: Callable[..., EchoServer]) -> EchoServer:
    """A server at a Unix socket."""
    return serve("unix")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An undriven hub."""
    hub = Hub(name="near")
    yield hub
    hub.close()


@pytest.fixture
def near(server: EchoServer, hub: Hub) -> Link:
    """The dialer's end of a link to `server`."""
    link = server.dial(hub)
    link.open()
    return link
