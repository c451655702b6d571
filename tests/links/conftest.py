"""What tests with a server of their own share: a link to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.transports.unix import dial


class Listening(Protocol):
    """What the `server` of each module has: where it listens, and the key."""

    path: Path
    key: bytes


@pytest.fixture
def near(server: Listening) -> Iterator[Link]:
    """Our end of a link to the server, on an undriven hub of its own."""
    hub = Hub(name="near")
    link = dial(hub, server.path, server.key)
    link.open()
    yield link
    hub.close()
