"""Workers on two hosts with a cable between them: joining by a secret, all of the API, NAT, and the cable cut.

    host a: w0, rank 0        host b: w1, w2

Each worker is a process that receives commands through a pipe. The hosts are network namespaces, which serve all
tests; where they cannot be made the tests are skipped.
"""

import contextlib
import ctypes
import logging
import os
import socket
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from networks import PlayedHost
from rpc_workers import Worker, Workers, all_do

from fanwise import rpc
from fanwise.base.errors import AuthenticationError, DeadlineExceeded, WorkerLostError
from fanwise.links.shared_secret import new_secret
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd, connections
from fanwise.rpc.optim import DistributedOptimizer
from fanwise.testing import within

LIMIT_S = 60.0
PORTS = "29600-29619"
SECRET = new_secret()

# Any throughout: what users' functions take and return.


# -- functions that run on workers -------------------------------------------------------------------------------------


def begin_on(host: PlayedHost) -> None:
    """The first that a worker does."""
    host.enter()
    torch.set_num_threads(1)


def join(name: str, rank: int, size: int | None, secret: str, within_s: float = LIMIT_S, **options: Any) -> int:
    """Become a worker; its incarnation."""
    os.environ.update(MASTER_ADDR="10.91.0.1", MASTER_PORT="29500", FANWISE_PORTS=PORTS, FANWISE_SECRET=secret)
    rpc.init_rpc(
        name,
        rank=rank,
        world_size=size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(rpc_timeout=within_s, **options),
    )
    return agents.current().incarnation


def leave() -> None:
    rpc.shutdown()


def leave_at_once() -> None:
    with contextlib.suppress(WorkerLostError):  # of a worker that was cut off
        rpc.shutdown(graceful=False)


def where_it_listens() -> str:
    return agents.current().group.me.address


def hosts_apart() -> int:
    return len({member.host for member in agents.current().group.members().values()})


def others() -> list[str]:
    return [worker.name for worker in agents.current().workers() if worker.name != agents.current().info.name]


def call(to: str, function: Any, *args: Any) -> Any:
    return rpc.rpc_sync(to, function, args=args)


def name_of_this() -> str:
    return agents.current().info.name


def call_async(to: str, number: int) -> list[int]:
    futures = [rpc.rpc_async(to, pow, args=(i, 2)) for i in range(number)]
    return [future.wait() for future in futures]


def sum_there(to: str, megabytes: int) -> tuple[float, float]:
    """Return the sums of a large tensor on the callee and after its return."""
    tensor = torch.arange(megabytes << 18, dtype=torch.float32).remainder_(7)
    back = rpc.rpc_sync(to, torch.neg, args=(tensor,))
    return float(back.sum()), -float(tensor.sum())


def owned() -> int:
    return int(agents.current().references.debug_info()["num_owner_rrefs"])


def process_linked(to: str) -> int:
    """The process at the other end of the link to `to`, as the kernel tells; 0 between hosts."""
    agent = agents.current()
    return agent.connections.to(agent.worker(to).id).peer.pid


def has_shared_memory(to: str) -> bool:
    """Return True if a large buffer was sent to `to` through shared memory."""
    agent = agents.current()
    sharing = agent.connections.to(agent.worker(to).id)._sharing
    return sharing is not None and sharing.num_sent_bytes > 0


def use_a_reference(to: str, through: str) -> tuple[int, list[int]]:
    """Return how many values `to` keeps meanwhile, and the values read here and by `through`."""
    rref = rpc.remote(to, pow, args=(3, 4))
    read = [rref.to_here(), rpc.rpc_sync(through, read_reference, args=(rref,))]
    return rpc.rpc_sync(to, owned), read


def read_reference(rref: Any) -> Any:
    return rref.to_here()


def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return x * by


def gradients(first: str, second: str) -> list[list[float]]:
    """Return the gradient of sum(2x * 3x), with factors computed on two other workers."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with autograd.context() as context_id:
        a = rpc.rpc_sync(first, scaled, args=(x, torch.tensor(2.0)))
        b = rpc.rpc_sync(second, scaled, args=(x, torch.tensor(3.0)))
        autograd.backward(context_id, [(a * b).sum()])
        return [gradient.tolist() for gradient in autograd.get_gradients(context_id).values()]


class Descent:
    """As torch.optim.SGD, which takes seconds to load."""

    def __init__(self, params: list[torch.Tensor], *, lr: float) -> None:
        self.params = params
        self.lr = lr

    def step(self) -> None:
        with torch.no_grad():
            for param in self.params:
                assert param.grad is not None
                param -= self.lr * param.grad


def parameter() -> torch.Tensor:
    return torch.tensor([1.0, 1.0], requires_grad=True)


def train(on: str) -> list[float]:
    """One step down the gradient, on a parameter that lives there: p - 0.5 * 2p."""
    rref = rpc.remote(on, parameter)
    with autograd.context() as context_id:
        loss = (rref.to_here() ** 2).sum()
        autograd.backward(context_id, [loss])
        DistributedOptimizer(Descent, [rref], lr=0.25).step(context_id)
    values: list[float] = rref.to_here().tolist()
    return values


def be_busy() -> None:
    """Keep the references as long as this process lives."""
    never: torch.futures.Future[None] = torch.futures.Future()
    never.wait()


def begin_endless_call(to: str) -> None:
    globals()["_endless"] = rpc.rpc_async(to, be_busy, timeout=0)


def how_the_call_ended() -> None:
    globals()["_endless"].wait()


def wait_to_connect(within_s: float, directly_s: float) -> None:
    connections._CONNECT_S, connections._DIRECT_S = within_s, directly_s


def cut_all_tcp() -> int:
    """Reset each TCP connection of this process. How many there were."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM and one.getpeername():
                one.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def coordinator_links() -> int:
    server = agents.current().group._server
    return len(server._links) if server is not None else 0


def hold_the_interpreter(milliseconds: int) -> None:
    """No thread of this process runs meanwhile; its host answers."""
    ctypes.PyDLL(None).poll(None, 0, milliseconds)


def keep_warnings() -> None:
    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _warnings.append(record.getMessage())

    logging.getLogger("fanwise").addHandler(Keep(logging.WARNING))


def warnings() -> list[str]:
    return list(_warnings)


_warnings: list[str] = []


# -- the test's side of them -------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Two hosts, and three workers on them."""

    a: PlayedHost
    b: PlayedHost
    workers: Workers

    def start(self, name: str, host: PlayedHost) -> Worker:
        worker = self.workers.start(name)
        worker.do(begin_on, host)
        return worker

    def three(self) -> list[Worker]:
        """They have not joined yet."""
        return [self.start("w0", self.a), self.start("w1", self.b), self.start("w2", self.b)]

    def join(self, size: int | None = 3, *, number: int = 3, **options: Any) -> list[Worker]:
        """The first `number` of them, as members of a group."""
        joining = self.three()[:number]
        for rank, worker in enumerate(joining):
            worker.begin(join, worker.name, rank, size, SECRET, **options)
        for worker in joining:
            worker.result()
        return joining


@pytest.fixture
def cluster(hosts: tuple[PlayedHost, PlayedHost], real_workers: Workers) -> Cluster:
    return Cluster(*hosts, real_workers)


def refuse_newcomers(host: PlayedHost) -> None:
    """As a firewall or NAT does: nobody can connect to the workers of this host, who may connect to others."""
    host.ip("rule", "add", "ipproto", "tcp", "sport", PORTS, "blackhole")


def admit_newcomers(host: PlayedHost) -> None:
    host.ip("rule", "delete", "ipproto", "tcp", "sport", PORTS, "blackhole")


# -- tests -------------------------------------------------------------------------------------------------------------


def test_workers_of_two_hosts_join_by_secret_and_call_each_other(cluster: Cluster) -> None:
    workers = cluster.join()
    assert workers[0].do(hosts_apart) == 2
    listening = [worker.do(where_it_listens).split() for worker in workers]
    assert [host for host, *_ in listening] == ["10.91.0.1", "10.91.0.2", "10.91.0.2"]
    ports = [int(port) for _host, port, *_ in listening]
    assert ports[0] == 29600 and sorted(ports[1:]) == [29600, 29601]
    for caller in workers:
        for to in ("w0", "w1", "w2"):
            assert caller.do(call, to, name_of_this) == to
    assert workers[0].do(call_async, "w2", 100) == [i**2 for i in range(100)]
    for worker, to in ((workers[0], "w1"), (workers[1], "w0")):
        back, here = worker.do(sum_there, to, 16)
        assert back == here
    all_do(workers, leave)


def test_references_gradients_and_optimizers_work_between_hosts(cluster: Cluster) -> None:
    workers = cluster.join()
    assert workers[0].do(use_a_reference, "w1", "w2") == (1, [81, 81])
    within(LIMIT_S, lambda: workers[1].do(owned) == 0, "the value is freed when nobody refers to it")
    assert workers[0].do(gradients, "w1", "w2") == [[12.0, 24.0]]
    assert workers[1].do(gradients, "w0", "w2") == [[12.0, 24.0]]
    assert workers[2].do(train, "w0") == [0.5, 0.5]
    all_do(workers, leave)


def test_neighbours_share_memory_and_hosts_do_not_though_they_share_a_folder(cluster: Cluster) -> None:
    w0, w1, w2 = cluster.join()
    paths = {worker.do(where_it_listens).split(" ", 2)[2].rpartition("/")[0] for worker in (w0, w1, w2)}
    assert len(paths) == 1, "all could reach each other's sockets there"
    assert w1.do(process_linked, "w2") == w2.pid and w2.do(process_linked, "w1") == w1.pid
    assert w0.do(process_linked, "w1") == 0 and w1.do(process_linked, "w0") == 0
    for _ in range(2):
        back, here = w1.do(sum_there, "w2", 16)
        assert back == here
    assert w1.do(has_shared_memory, "w2") and not w1.do(has_shared_memory, "w0")
    all_do([w0, w1, w2], leave)


def test_another_secret_is_refused_and_both_sides_say_so(cluster: Cluster) -> None:
    w0, w1, _ = cluster.three()
    w0.do(keep_warnings)
    w0.begin(join, "w0", 0, 2, SECRET, 4.0)
    with pytest.raises(AuthenticationError, match=r"10\.91\.0\.1:29500 does not hold our secret .*\n.*FANWISE_SECRET"):
        w1.do(join, "w1", 1, 2, new_secret(), 20.0)
    with pytest.raises(DeadlineExceeded, match=r"missing: rank 1; connections that were refused: not-authentic: 1"):
        w0.result()
    [warning] = w0.do(warnings)
    assert warning.startswith("a connection of 10.91.0.2:") and "refused as not-authentic" in warning


def test_a_worker_that_cannot_be_dialled_is_called_over_a_link_it_makes_itself(cluster: Cluster) -> None:
    refuse_newcomers(cluster.b)
    try:
        w0, w1, w2 = cluster.join()
        w0.do(wait_to_connect, LIMIT_S, 0.5)
        assert w0.do(call, "w1", name_of_this) == "w1"
        assert w0.do(call_async, "w2", 20) == [i**2 for i in range(20)]
        assert w2.do(call, "w0", name_of_this) == "w0" and w2.do(call, "w1", name_of_this) == "w1"
        all_do([w0, w1, w2], leave)
    finally:
        admit_newcomers(cluster.b)


def test_two_that_cannot_reach_each_other_at_all_are_told_so(cluster: Cluster) -> None:
    for host in (cluster.a, cluster.b):
        refuse_newcomers(host)
    try:
        w0, w1 = cluster.join(2, number=2)
        for worker, to in ((w0, "w1"), (w1, "w0")):
            worker.do(wait_to_connect, 1.0, 0.5)
            with pytest.raises(WorkerLostError, match=rf"'{to}' .* cannot reach each other.*\n.*their firewalls"):
                worker.do(call, to, name_of_this)
            worker.do(wait_to_connect, 10.0, 2.0)
        all_do([w0, w1], leave)
    finally:
        for host in (cluster.a, cluster.b):
            admit_newcomers(host)


def call_once(to: str, number: int) -> None:
    assert rpc.rpc_sync(to, abs, args=(-number,), timeout=LIMIT_S / 2) == number


def test_a_worker_that_computes_while_its_connections_are_cut_is_not_lost(cluster: Cluster) -> None:
    """It cannot come back in the second that is given to who shows no sign of life; its port shows one."""
    w0, w1, w2 = cluster.join()
    w0.do(note_losses)
    w1.begin(hold_the_interpreter, 2_500)
    assert w0.do(cut_all_tcp) > 0
    w1.result()
    within(LIMIT_S, lambda: w0.do(coordinator_links) == 2, "both are back")
    assert w0.do(losses) == []
    w0.do(call_once, "w1", 1)
    all_do([w0, w1, w2], leave)


def test_how_long_silence_may_last_is_an_option(cluster: Cluster) -> None:
    w0, w1, w2 = cluster.join(heartbeat_s=1.0)
    for worker in (w0, w2):
        worker.do(hear_of_losses)
    w1.begin(hold_the_interpreter, 4_000)
    why = [("w1", "it answered nothing for 1 s")]
    for worker in (w0, w2):
        within(LIMIT_S, lambda worker=worker: worker.do(heard_losses) == why, f"{worker.name} hears of it")  # type: ignore[misc]
    w1.result()
    w1.do(leave_at_once)
    all_do([w0, w2], leave)


def test_a_coordinator_that_computes_while_its_connections_are_cut_keeps_its_place(cluster: Cluster) -> None:
    """Its port takes connections, so it lives: nobody takes its place, and two sides never go on."""
    w0, w1, w2 = cluster.join()
    for worker in (w0, w1, w2):
        worker.do(note_losses)
    w0.begin(hold_the_interpreter, 5_000)
    for worker in (w1, w2):
        assert worker.do(cut_all_tcp) > 0
    w0.result()
    within(LIMIT_S, lambda: w0.do(coordinator_links) == 2, "both are back")
    assert [worker.do(losses) for worker in (w0, w1, w2)] == [[], [], []]
    w1.do(call_once, "w0", 1)
    all_do([w0, w1, w2], leave)


@pytest.mark.parametrize("end", ["a", "b"])
def test_a_cut_cable_loses_the_other_host_and_who_is_back_joins_again(cluster: Cluster, end: str) -> None:
    w0, w1 = cluster.join(None, number=2)
    before = w1.do(agents_incarnation)
    w0.do(begin_endless_call, "w1")
    w1.do(begin_endless_call, "w0")
    host = getattr(cluster, end)
    host.cut()
    try:
        for worker, to in ((w0, "w1"), (w1, "w0")):
            with pytest.raises(WorkerLostError, match=to):
                worker.do(how_the_call_ended)
        within(LIMIT_S, lambda: w0.do(others) == [], "rank 0 is alone")
        with pytest.raises(WorkerLostError):
            w0.do(call, "w1", name_of_this)
    finally:
        host.mend()
    w1.do(leave_at_once)
    assert w1.do(join, "w1", 1, None, SECRET) != before
    within(LIMIT_S, lambda: w0.do(others) == ["w1"], "it is back")
    for caller, to in ((w0, "w1"), (w1, "w0")):
        assert caller.do(call, to, name_of_this) == to


@pytest.mark.parametrize("size", [3, None], ids=["static", "dynamic"])
def test_a_cut_that_takes_rank_0_ends_the_group_of_the_others(cluster: Cluster, size: int | None) -> None:
    w0, w1, w2 = cluster.join(size)
    for worker in (w0, w1, w2):
        worker.do(note_losses)
    cluster.a.cut()
    try:
        for worker, other in ((w1, "w2"), (w2, "w1")):
            within(LIMIT_S, lambda worker=worker: worker.do(others) == [], "its group has ended")  # type: ignore[misc]
            lost = sorted(["w0", other])
            within(LIMIT_S, lambda worker=worker, lost=lost: sorted(worker.do(losses)) == lost, "it reports both")  # type: ignore[misc]
            with pytest.raises(WorkerLostError, match=r"because worker 'w0' .*, which coordinates it, was lost"):
                worker.do(call, other, name_of_this)
        within(LIMIT_S, lambda: sorted(w0.do(losses)) == ["w1", "w2"], "rank 0 has lost the others")
        with pytest.raises(WorkerLostError):
            w0.do(call, "w1", name_of_this)
    finally:
        cluster.a.mend()
    w0.do(leave)
    for worker in (w1, w2):
        with pytest.raises(WorkerLostError, match="because worker 'w0'"):
            worker.do(leave)


def test_when_the_process_of_rank_0_dies_the_group_ends_and_another_may_form_there(cluster: Cluster) -> None:
    w0, *rest = cluster.join(None)
    for worker in rest:
        worker.do(note_losses)
    w0.kill()
    for worker in rest:
        within(LIMIT_S, lambda worker=worker: len(worker.do(losses)) == 2, "its group has ended")  # type: ignore[misc]
        worker.do(leave_at_once)
    again = cluster.start("w0", cluster.a)
    again.do(join, "w0", 0, None, SECRET)
    for rank, worker in enumerate(rest, 1):
        worker.do(join, worker.name, rank, None, SECRET)
    assert again.do(call, "w1", name_of_this) == "w1" and rest[1].do(call, "w0", name_of_this) == "w0"


def agents_incarnation() -> int:
    return agents.current().incarnation


def note_losses() -> None:
    _losses.clear()
    agents.current().on_lost.append(lambda worker, _incarnation: _losses.append(worker.name))


def hear_of_losses() -> None:
    rpc.on_worker_lost(lambda worker, why: _heard.append((worker.name, why)))


def heard_losses() -> list[tuple[str, str]]:
    return list(_heard)


_heard: list[tuple[str, str]] = []


def losses() -> list[str]:
    return list(_losses)


_losses: list[str] = []
