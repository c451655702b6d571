"""Newcomers after rank 0 has gone: on one host, and between two hosts with one address and with several.

Real processes; the two hosts are network namespaces, where they can be made.
"""

import os

import pytest
import torch
from networks import PlayedHost
from rpc_workers import LIMIT_S, Worker, Workers, leave, names

from fanwise import rpc
from fanwise.base.errors import DeadlineExceeded, SecretError
from fanwise.links.shared_secret import new_secret
from fanwise.rpc.rendezvous.addresses import Place, parse
from fanwise.rpc.rendezvous.choosing import meeting_at
from fanwise.testing import within

SECRET = new_secret()
BOTH = "tcp://10.91.0.1:29500,10.91.0.2:29500"


# -- what the workers do -----------------------------------------------------------------------------------------------


def join_on(host: PlayedHost, name: str, rank: int, url: str, within_s: float) -> None:
    host.enter()
    torch.set_num_threads(1)
    os.environ["FANWISE_SECRET"] = SECRET
    join_at(name, rank, url, within_s)


def join_at(name: str, rank: int, url: str, within_s: float) -> None:
    if url.startswith("env://"):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = url.removeprefix("env://"), "29500"
        url = "env://"
    options = rpc.TensorPipeRpcBackendOptions(init_method=url, rpc_timeout=within_s)
    rpc.init_rpc(name, rank=rank, rpc_backend_options=options)


def name_of(to: str) -> str:
    return str(rpc.rpc_sync(to, rpc.get_worker_info).name)


# -- one host ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "tcp", "env"])
@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_on_one_host_newcomers_find_the_group_after_rank_0(real_workers: Workers, kind: str, end: str) -> None:
    port = 1024 + os.getpid() % 60000  # a name only: nothing is opened there
    urls = {"file": real_workers.url, "tcp": f"tcp://localhost:{port}", "env": "env://localhost"}
    one, other = real_workers.start("w0"), real_workers.start("w1")
    for rank, worker in enumerate((one, other)):
        worker.do(join_at, worker.name, rank, urls[kind], LIMIT_S)
    if end == "leaves":
        one.do(leave)
    else:
        one.kill()
    newcomer = real_workers.start("w2")
    newcomer.do(join_at, "w2", 2, urls[kind], LIMIT_S)
    again = real_workers.start("w0")
    again.do(join_at, "w0", 0, urls[kind], LIMIT_S)
    for worker in (other, newcomer, again):
        within(LIMIT_S, lambda worker=worker: worker.do(names) == ["w0", "w1", "w2"], "all see all")  # type: ignore[misc]
    assert again.do(name_of, "w1") == "w1"


# -- two hosts ---------------------------------------------------------------------------------------------------------


def start(workers: Workers, host: PlayedHost, rank: int, url: str, within_s: float = LIMIT_S) -> Worker:
    worker = workers.start(f"w{rank}")
    worker.do(join_on, host, worker.name, rank, url, within_s)
    return worker


@pytest.mark.parametrize("url", [BOTH, "env://10.91.0.1,10.91.0.2"])
@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_with_an_address_on_each_host_newcomers_find_the_group_after_the_host_of_rank_0(
    real_workers: Workers, hosts: tuple[PlayedHost, PlayedHost], url: str, end: str
) -> None:
    a, b = hosts
    rank0, other = start(real_workers, a, 0, url), start(real_workers, b, 1, url)
    assert rank0.do(names) == ["w0", "w1"]
    if end == "leaves":
        rank0.do(leave)
    else:
        rank0.kill()
    newcomer = start(real_workers, a, 2, url)
    again = start(real_workers, a, 0, url)
    for worker in (other, newcomer, again):
        within(LIMIT_S, lambda worker=worker: worker.do(names) == ["w0", "w1", "w2"], "one group")  # type: ignore[misc]
    assert again.do(name_of, "w1") == "w1" and other.do(name_of, "w0") == "w0"
    for worker in (other, newcomer, again):
        worker.do(leave)


def test_of_several_addresses_only_rank_0_opens_one(
    real_workers: Workers, hosts: tuple[PlayedHost, PlayedHost]
) -> None:
    worker = real_workers.start("w1")
    with pytest.raises(DeadlineExceeded, match=r"came in vain\.\nOf several addresses rank 0 opens the first of its"):
        worker.do(join_on, hosts[1], "w1", 1, BOTH, 3.0)


def test_with_one_address_the_error_says_what_to_do(
    real_workers: Workers, hosts: tuple[PlayedHost, PlayedHost]
) -> None:
    a, b = hosts
    rank0, _other = (
        start(real_workers, a, 0, "tcp://10.91.0.1:29500"),
        start(real_workers, b, 1, "tcp://10.91.0.1:29500"),
    )
    rank0.do(leave)
    newcomer = real_workers.start("w2")
    with pytest.raises(DeadlineExceeded) as caught:
        newcomer.do(join_on, b, "w2", 2, "tcp://10.91.0.1:29500", 3.0)
    assert "nobody new can find it then" in str(caught.value)
    assert "tcp://10.91.0.1:29500,another-host:29500 or MASTER_ADDR=10.91.0.1,another-host" in str(caught.value)


# -- what the addresses mean -------------------------------------------------------------------------------------------


def test_several_addresses_are_told_apart() -> None:
    where, rank, _ = parse("tcp://198.51.100.7:80,[::1]:81,127.0.0.1:82?rank=3")
    assert rank == 3 and [(place.host, place.port) for place in where.places] == [
        ("198.51.100.7", 80),
        ("::1", 81),
        ("127.0.0.1", 82),
    ]
    assert where.others[1] == Place("127.0.0.1", 82, is_here=True)
    assert (where.is_here, where.is_any_here, where.are_all_here) == (False, True, False)
    environment = {"MASTER_ADDR": "127.0.0.1, 198.51.100.7", "MASTER_PORT": "29500", "RANK": "0"}
    where, _, _ = parse("env://", environment=environment)
    assert [(place.host, place.port) for place in where.places] == [("127.0.0.1", 29500), ("198.51.100.7", 29500)]


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("tcp://a:80,?rank=0", "host name missing"),
        ("tcp://127.0.0.1:80,127.0.0.1?rank=0", "port number missing"),
        ("tcp://127.0.0.1:80,127.0.0.1:http?rank=0", "'127.0.0.1:http' in "),
    ],
)
def test_a_list_with_a_hole_says_so(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse(url)


def test_one_address_of_another_host_needs_a_secret() -> None:
    where, _, _ = parse("tcp://127.0.0.1:29500,198.51.100.7:29500?rank=0")
    with pytest.raises(SecretError, match="has an address of another host, and there is no secret"):
        meeting_at(where, environment={})
    where, _, _ = parse("tcp://127.0.0.1:29500,127.0.0.1:29501?rank=0")
    assert meeting_at(where, environment={}).is_exclusive


def test_a_host_that_nobody_knows_is_named() -> None:
    where, _, _ = parse("tcp://127.0.0.1:29500,no-such-host.invalid:29500?rank=0")
    with pytest.raises(SecretError, match=r"no host of the name no-such-host\.invalid is known here"):
        meeting_at(where, environment={})
