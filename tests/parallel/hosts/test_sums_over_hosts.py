"""What adds gradients over hosts keeps the contract. Processes are threads here, and links are in memory."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from fanwise.base.errors import WorkerLostError
from fanwise.links import Hub, Link, memory_links
from fanwise.links.codec import pack_error
from fanwise.parallel.all_reduce.contract import AllReduce
from fanwise.parallel.config import Reduce
from fanwise.parallel.hosts import by_hosts
from fanwise.parallel.hosts.main_memory import ThroughMainMemory
from fanwise.parallel.hosts.mesh import Mesh
from fanwise.parallel.hosts.team import HostsTeam
from fanwise.testing.all_reduce_contract import CHECKS, Case, Check, Peer, check_sum, params_of, summed

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HOSTS = ("a", "aa", "ab", "aba", "aabb")


def play(
    hosts: str, check: Check, *, in_boxes_bytes: int, reduce: Reduce = "exact", through_main_memory: bool = False
) -> None:
    """The check in a thread for each process; `hosts` has a letter for each.

    `through_main_memory`: as gradients of a GPU go, with memory of the CPU in its place.
    """
    hubs = [Hub(name=f"process {rank}") for rank in range(len(hosts))]
    for hub in hubs:
        hub.start()
    links: list[dict[int, Link]] = [{} for _ in hosts]
    for one in range(len(hosts)):
        for other in range(one):
            links[one][other], links[other][one] = memory_links(hubs[one], hubs[other])
    called = {rank: f"process {rank}" for rank in range(len(hosts))}
    meshes = [Mesh(hub, rank, links[rank], called, goes_on=True) for rank, hub in enumerate(hubs)]
    raised: list[BaseException] = []

    def live(rank: int) -> None:
        mesh = meshes[rank]
        team = HostsTeam(mesh, dict(enumerate(hosts)), reduce, None)
        team.in_boxes_bytes = in_boxes_bytes

        def make(params: Sequence[nn.Parameter]) -> AllReduce:
            made = team.all_reduce(params)
            return ThroughMainMemory(made, params, CPU) if through_main_memory else made

        try:
            check(Peer(team, make, reduce == "exact", lambda: gone(links[rank]), WorkerLostError, goes_on=True))
        except BaseException as error:
            raised.append(error)
            mesh.fail(pack_error(error))
        mesh.leave(20.0)

    for rank, mesh in enumerate(meshes):
        for other, link in links[rank].items():
            link.handler = taking(mesh, other)
            link.open()
        mesh.begin()
    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for hub in hubs:
        hub.close()
    if raised:
        raise raised[0]


def taking(mesh: Mesh, rank: int) -> Callable[..., None]:
    return lambda request: mesh.take(rank, request)


def gone(links: dict[int, Link]) -> None:
    for link in links.values():
        link.lose("it is gone")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("in_boxes_bytes", [0, 1 << 40], ids=["by hosts", "in boxes"])
def test_sums_over_hosts_keep_the_contract(in_boxes_bytes: int, check: Check) -> None:
    leaving = "gone" in check.__name__
    for hosts in HOSTS[1:] if leaving else HOSTS:
        play(hosts, check, in_boxes_bytes=in_boxes_bytes)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_sums_in_many_slices_keep_the_contract(monkeypatch: pytest.MonkeyPatch, check: Check) -> None:
    monkeypatch.setattr(by_hosts, "_SLICE_BYTES", 1024)
    play("abc" if "gone" in check.__name__ else "aabc", check, in_boxes_bytes=0)


@pytest.mark.parametrize("in_boxes_bytes", [0, 1 << 40], ids=["by hosts", "in boxes"])
def test_sums_that_go_through_main_memory_keep_the_contract(in_boxes_bytes: int) -> None:
    for check in CHECKS:
        play("aab", check, in_boxes_bytes=in_boxes_bytes, through_main_memory=True)


@pytest.mark.parametrize("in_boxes_bytes", [0, 1 << 40], ids=["by hosts", "in boxes"])
def test_one_operand_a_process_keeps_the_contract(in_boxes_bytes: int) -> None:
    for check in CHECKS:
        play("aab", check, in_boxes_bytes=in_boxes_bytes, reduce="fast")


def test_a_sum_that_only_some_have_when_a_host_dies_is_made_again_by_all() -> None:
    class Gone(Exception):
        pass

    one_has_it = threading.Event()

    def check(peer: Peer) -> None:
        params = params_of(peer, (torch.float32,))
        made, case, sent = peer.make(params), Case(params), list[str]()
        team = peer.team
        assert isinstance(team, HostsTeam)
        send, receive = team.send, team.receive

        def send_and_die(place: int, what: str, rows: Tensor) -> None:
            kind = what.split()[0]
            if sent.count("sum") == 1 and kind == "sum":
                assert one_has_it.wait(20), "the first has all slices"
                peer.leave()
                raise Gone
            sent.append(kind)
            send(place, what, rows)

        def receive_and_tell(place: int, what: str) -> Tensor:
            found: Tensor = receive(place, what)
            if place == 2 and what.startswith("sum"):
                one_has_it.set()
            return found

        if team.place == 0:
            team.receive = receive_and_tell  # type: ignore[method-assign]  # the point of the fault
        if team.place == 2:
            team.send = send_and_die  # type: ignore[method-assign]  # the fault: one host has its slice, one has not
            with pytest.raises(Gone):
                summed(peer, made, case)
            return
        check_sum(peer, summed(peer, made, case), case)
        assert team.size == 2

    play("abc", check, in_boxes_bytes=0)
