"""Whose a connection is, as the kernel tells it."""

import os
import socket

import pytest

from fanwise.board.callers import callers_at, user_of

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2081 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1
   1: 0100007F:2081 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 2
   2: 0100007F:C001 0100007F:2081 01 00000000:00000000 00:00000000 00000000  1001        0 3
   3: 0100007F:C002 0100007F:2081 06 00000000:00000000 00:00000000 00000000     0        0 0
   4: 0100007F:C003 0100007F:2082 01 00000000:00000000 00:00000000 00000000  1000        0 4
broken
""".splitlines()
BOARD = "0100007F:2081"


def test_the_callers_end_counts_and_not_ours() -> None:
    assert user_of(TABLE, "0100007F:C001", BOARD) == 1001


def test_what_is_being_closed_is_nobodys() -> None:
    assert user_of(TABLE, "0100007F:C002", BOARD) is None


def test_a_connection_to_another_port_is_another_one() -> None:
    assert user_of(TABLE, "0100007F:C003", BOARD) is None
    assert user_of(TABLE, "0100007F:C003", "0100007F:2082") == 1000


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_of_ones_own_is_known_while_it_lasts(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listening, socket.socket(family) as own:
        try:
            listening.bind((address, 0))
        except OSError:
            pytest.skip(f"there is no {address} here")
        listening.listen()
        callers = callers_at(listening)
        assert callers is not None, f"the kernel tells of user {os.geteuid()}"
        own.connect(listening.getsockname())
        client, server = own.getsockname()[:2], own.getpeername()[:2]
        assert callers.may(client, server) and not callers.may((address, client[1] + 1), server)
        own.close()
        assert not callers.may(client, server)
