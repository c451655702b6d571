"""Links of every transport keep the contract, read by a hub thread or by the waiting thread."""

from collections.abc import Callable

import pytest
from link_contract import CHECKS, Check, LinkPair
from listeners import EchoServer, Transport

from fanwise.links.hub import Hub


@pytest.mark.parametrize("near_is_driven", [True, False], ids=["driven", "undriven"])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_link_keeps_the_contract(
    check: Check, serve: Callable[..., EchoServer], hub: Hub, transport: Transport, near_is_driven: bool
) -> None:
    server = serve(transport)
    server.on_link = server.links.append
    if near_is_driven:
        hub.start()
    near = server.dial(hub)
    near.open()
    far = server.link()
    server.hub.call_soon(server.listener.close)
    check(LinkPair(near, far, far._wire.hang_up, near_is_driven))
