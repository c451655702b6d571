"""The meaning of addresses, and the errors for invalid ones."""

import pytest

from fanwise.base.errors import SecretError
from fanwise.rendezvous.addresses import Address, is_address_of_this_host, parse
from fanwise.rendezvous.rendezvous import open_rendezvous

MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
RANKED = {**MASTER, "RANK": "2", "WORLD_SIZE": "4"}


def test_rank_and_world_size_come_from_the_environment_unless_they_are_given() -> None:
    assert parse("env://", environment=RANKED)[1:] == (2, 4)
    assert parse("env://", rank=1, world_size=3, environment=RANKED)[1:] == (1, 3)
    assert parse("env://?rank=1&world_size=3", environment=RANKED)[1:] == (1, 3)
    assert parse("env://", rank=1, environment=MASTER)[1:] == (1, None)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:29500", "tcp://localhost:29500", "tcp://[::1]:29500"])
def test_all_names_of_this_host_mean_the_same_place(url: str) -> None:
    if not is_address_of_this_host(parse(url, rank=0)[0].host):
        pytest.skip(reason="this host has no such address")
    assert parse(url, rank=0)[0].name == parse("env://", rank=0, environment=MASTER)[0].name
    assert parse(url, rank=0)[0].is_here


def test_another_host_is_not_here() -> None:
    where, rank, size = parse("tcp://198.51.100.7:80?rank=3&world_size=5")
    assert where == Address(where.url, "198.51.100.7:80", "198.51.100.7", 80, is_here=False)
    assert (rank, size) == (3, 5)


def test_a_file_is_a_place_by_its_path() -> None:
    where, rank, size = parse("file:///tmp/../tmp/meet?rank=1&world_size=2")
    assert (where.name, where.port, rank, size) == ("file:/tmp/meet", 0, 1, 2)
    assert parse("file:///tmp/meet", rank=0, world_size=2)[0].name == where.name


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file:///tmp/meet", "rank parameter missing"),
        ("tcp://127.0.0.1:23456", "rank parameter missing"),
        ("env://", "environment variable RANK expected"),
        ("env://?rank=0", "environment variable MASTER_ADDR expected"),
        ("tcp://127.0.0.1?rank=0", "port number missing"),
        ("tcp://:80?rank=0", "host name missing"),
        ("tcp://127.0.0.1:http?rank=0", "'127.0.0.1:http' in "),
        ("tcp://a:80,b:80?rank=0", "is no host:port"),
        ("file://?rank=0", "path missing"),
        ("tcp://127.0.0.1:80?rank=first", "rank must be a whole number, got 'first'"),
        ("nfs://there", "must begin with env://, tcp:// or file://"),
    ],
)
def test_an_address_that_is_none_says_what_is_missing(url: str, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(url, environment={})
    assert text in str(caught.value)


def test_a_rank_that_the_address_says_in_another_way_is_refused() -> None:
    with pytest.raises(ValueError, match="rank=1 was given, but the address says rank=0"):
        parse("tcp://127.0.0.1:80?rank=0", rank=1)


def test_a_port_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="MASTER_PORT must be a port number, got 'http'"):
        parse("env://", rank=0, environment={**MASTER, "MASTER_PORT": "http"})


def test_several_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="one host expected, that of rank 0, got 'a,b'"):
        parse("env://", rank=0, environment={"MASTER_ADDR": "a,b", "MASTER_PORT": "29500"})


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(SecretError, match=r"no host of the name no-such-host\.invalid is known here"):
        open_rendezvous(parse("tcp://no-such-host.invalid:29500", rank=0)[0], environment={})
