"""Runs whose ranks are jobs on several hosts: the bits of one device, also after a restart.

Hosts are engines in this process, behind links in memory. The ranks are real processes, with Gloo between them.
"""

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from classification import losses
from memory_hosts import MemoryHosts, memory_pool
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import ClusterError, LeaseError, TrialStopped, WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.devices import devices_on_hosts
from fanwise.parallel.launch import supervisor
from fanwise.parallel.launch.ray import RaySupervisor
from fanwise.parallel.launch.settings import Settings
from fanwise.parallel.progress import Display
from fanwise.parallel.run import run_attempts
from fanwise.pool.contract import Capacity, Reply
from fanwise.pool.current import current
from fanwise.pool.engine import LocalEngine
from fanwise.pool.leases import Gpu, Machine
from fanwise.testing import within

# N: samples, B: samples of a global batch
N, B, EPOCHS = 53, 16, 2
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 12, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)

Found = tuple[str, float, int]


def nothing(run: Run, step: int) -> None: ...


def training(
    run: Run, hidden: int = 8, during: Callable[[Run, int], None] = nothing, folder: Path | None = None
) -> Found:
    """The bits of the parameters, an accuracy, and the number of processes. `during`: is called before each step."""
    model = nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, 3))
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), losses)
    for _ in run.epochs(EPOCHS):
        for batch in run.batches((X, Y), B):
            during(run, step.batches)
            step(batch)
            if folder is not None:
                run.save(folder / f"{step.batches}.pt")
    accuracy = run.mean(lambda model, x, y: model(x).argmax(1) == y, model, (X, Y), batch_size=7)
    bits = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()
    return bits, accuracy, len(run.gather(None))


def large(run: Run) -> Found:
    return training(run, hidden=30_000)


@pytest.fixture(scope="module")
def hosts(forked_pools: None) -> Iterator[MemoryHosts]:
    """Two hosts with two CPUs each."""
    life, hosts = memory_pool(cpus=(2, 2))
    yield hosts
    life.close()


@pytest.fixture
def short_lived(forked_pools: None) -> Iterator[MemoryHosts]:
    """The same, for a test that loses a host."""
    life, hosts = memory_pool(cpus=(2, 2))
    yield hosts
    life.close()


def over(
    hosts: MemoryHosts, train: Callable[[Run], Any], processes: int = 4, restarts: int = 0, **settings: Any
) -> Any:  # Any: as it is
    def start(settings: Settings) -> RaySupervisor:
        return RaySupervisor(hosts.engine, train, settings, Display(False))

    return run_attempts(start, Settings(("cpu",) * processes, 4, **settings), restarts)


@pytest.fixture(scope="module")
def alone() -> dict[str, Found]:
    return {train.__name__: fanwise.run(train, devices="cpu", progress=False) for train in (training, large)}


@pytest.mark.parametrize("train", [training, large])
def test_a_run_on_two_hosts_has_the_bits_of_one_device(
    hosts: MemoryHosts, alone: dict[str, Found], train: Callable[[Run], Found]
) -> None:
    assert over(hosts, train) == (*alone[train.__name__][:2], 4)
    assert over(hosts, train, 2) == (*alone[train.__name__][:2], 2), "on one of them"


def test_ranks_are_on_as_few_hosts_as_possible_and_neighbors_are_together(hosts: MemoryHosts) -> None:
    def where(run: Run) -> list[tuple[int, int]]:
        return run.gather((run.rank, os.getppid()))  # each host has a warm process of its own

    found = over(hosts, where)
    assert [rank for rank, _ in found] == [0, 1, 2, 3]
    assert found[0][1] == found[1][1] != found[2][1] == found[3][1]
    assert len({host for _, host in over(hosts, where, 2)}) == 1


@pytest.mark.parametrize("lost", ["host-1", "host-2"], ids=["with the first rank", "without it"])
def test_a_run_starts_again_on_the_hosts_that_are_left_after_one_is_lost(
    short_lived: MemoryHosts, alone: dict[str, Found], tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hangs(run: Run, step: int) -> None:
        if run.world_size == 4 and step == 5:
            (tmp_path / "step").touch()
            threading.Event().wait()

    lose = threading.Thread(target=lose_when, args=(short_lived, lost, tmp_path / "step"))
    lose.start()
    found = over(short_lived, partial(training, during=hangs, folder=tmp_path), restarts=1)
    lose.join()
    assert found == (*alone["training"][:2], 2)
    assert f"starts again from the checkpoint {tmp_path}/" in caplog.text and "; no restarts left" in caplog.text


def lose_when(hosts: MemoryHosts, key: str, mark: Path) -> None:
    within(60, mark.exists, "a process is in the step")
    hosts.lose(key)


def test_a_killed_process_ends_the_run_and_is_named(hosts: MemoryHosts) -> None:
    def dies(run: Run, step: int) -> None:
        if run.rank == 1 and step == 3:
            os.kill(os.getpid(), 9)

    with pytest.raises(WorkerLostError, match=r"(?s)rank 1 of 4 \(node .*a process group does not survive"):
        over(hosts, lambda run: training(run, during=dies))


def test_a_hanging_process_ends_the_run(hosts: MemoryHosts) -> None:
    def stops(run: Run, step: int) -> None:
        if run.rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(WorkerLostError, match=r"process 0 of 2 .* has waited for .*step_timeout_s=1"):
        over(hosts, lambda run: training(run, during=stops), 2, step_timeout_s=1.0)


def test_what_a_rank_raises_is_raised_here_and_names_it(hosts: MemoryHosts) -> None:
    def train(run: Run) -> None:
        if run.rank == 3:
            raise KeyError("poison")
        run.barrier()

    with pytest.raises(KeyError, match="poison") as raised:
        over(hosts, train)
    assert any("in rank 3 of 4 (node " in note and "node host-2), pid " in note for note in raised.value.__notes__)


def test_the_first_prints_reports_and_returns_for_all(
    hosts: MemoryHosts, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: Run) -> Tensor:
        print(f"I am {run.rank}")
        run.print("all of us")
        run.report(loss=0.5)
        return torch.full((3,), run.rank)

    caplog.set_level("INFO")
    assert over(hosts, train).tolist() == [0, 0, 0]
    assert capsys.readouterr().out == "I am 0\nall of us\n"
    assert caplog.text.count("report outside a tuner: {'loss': 0.5}") == 1


@pytest.mark.parametrize("decision", [Reply(), Reply("STOP"), ValueError("no such metric")], ids=str)
def test_all_ranks_obey_the_answer_to_a_report(
    decision: Reply | ValueError, hosts: MemoryHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Decided:
        def reply(self, within_s: float) -> Reply:
            if isinstance(decision, Exception):
                raise decision
            return decision

    def train(run: Run) -> list[str]:
        try:
            run.report(loss=0.5)
        except ValueError as error:
            return run.gather(str(error).partition("\n")[0])
        return run.gather("continued")

    monkeypatch.setattr(supervisor, "begin_report", lambda values: Decided())
    if isinstance(decision, Reply) and decision.ends:
        with pytest.raises(TrialStopped):
            over(hosts, train, 2)
        return
    expected = "continued" if isinstance(decision, Reply) else "no such metric"
    assert over(hosts, train, 2) == [expected] * 2


def test_more_processes_than_there_is_room_for_are_refused_at_once(hosts: MemoryHosts) -> None:
    with pytest.raises(
        LeaseError, match=r"5 processes with threads=1 .* is room for 4: the cluster has 4 CPUs on 2 hosts\."
    ):
        over(hosts, training, 5)


# -- devices="auto" ----------------------------------------------------------------------------------------------------


def test_auto_is_as_many_cpu_devices_as_there_are_shards_and_places() -> None:
    there = Capacity((Machine(2, 0), Machine(5, 0)))
    assert [len(devices_on_hosts("auto", there, *each)) for each in ((1, 4), (1, 9), (2, 4), (6, 4))] == [4, 7, 3, 1]


def cluster(*gpus: int, cpus: int = 4) -> Capacity:
    """Nodes of so many GPUs each."""
    return Capacity(tuple(Machine(cpus, 0, tuple(Gpu(n, f"{n}", "", 0, f"{n}") for n in range(its))) for its in gpus))


def test_a_number_of_devices_means_gpus_where_a_cluster_has_some() -> None:
    for wanted in (3, "auto", ["cuda"] * 3):
        assert [device.type for device in devices_on_hosts(wanted, cluster(2, 1))] == ["cuda"] * 3
    assert [device.type for device in devices_on_hosts("cuda", cluster(2))] == ["cuda"]
    assert len(devices_on_hosts("auto", cluster(2, 2), threads=4)) == 2, "as many as have CPUs"
    assert len(devices_on_hosts("auto", cluster(2, 2), shards=3)) == 3
    assert devices_on_hosts(["cpu"] * 3, cluster(2)) == (torch.device("cpu"),) * 3
    assert devices_on_hosts("auto", cluster(0, 0), shards=5) == (torch.device("cpu"),) * 5
    assert devices_on_hosts("auto", cluster(0, 0)) == (torch.device("cpu"),) * 4


@pytest.mark.parametrize(
    ("devices", "gpus", "why"),
    [
        (4, 3, r'asks for 4 GPUs, and the cluster has 3\.\nGive fewer, or devices=\["cpu"\] \* 4'),
        (["cuda"] * 4, 3, r"asks for 4 GPUs, and the cluster has 3"),
        ("cuda", 0, r"means GPUs, and the cluster has none"),
        ("cuda:1", 3, r"a run gets\.\nGive a number: devices=1"),
        (["cuda:0", "cuda:1"], 3, r"Give a number: devices=2"),
        (["cuda", "cpu"], 3, r"mixes CPU devices and GPUs"),
        (0, 3, r"at least 1"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused_with_what_to_say(devices: Any, gpus: int, why: str) -> None:  # Any: bad
    with pytest.raises(ValueError, match=why):
        devices_on_hosts(devices, cluster(gpus))


@pytest.fixture
def with_gpus(forked_pools: None) -> Iterator[MemoryHosts]:
    """Two hosts that say that they have two GPUs each."""
    life, hosts = memory_pool(cpus=(2, 2), gpus=tuple(Gpu(n, f"GPU-{n}", "", 0, f"GPU-{n}") for n in range(2)))
    yield hosts
    life.close()


def test_each_process_leases_a_gpu_of_its_node(with_gpus: MemoryHosts) -> None:
    def where(run: Run) -> list[tuple[tuple[str, ...], str]]:
        return run.gather((current().gpus, os.environ["CUDA_VISIBLE_DEVICES"]))

    found = over(with_gpus, where, gpus=1)
    assert sorted(found) == [((name,), name) for name in ("GPU-0", "GPU-0", "GPU-1", "GPU-1")]
    with pytest.raises(
        LeaseError, match=r"5 processes with threads=1 and a GPU each .* room for 4: the cluster has 4 CPUs and 4 GPUs"
    ):
        over(with_gpus, where, 5, gpus=1)


def test_a_node_whose_torch_cannot_use_its_gpu_is_named_before_anything_begins(with_gpus: MemoryHosts) -> None:
    def train(run: Run) -> None:
        raise AssertionError("it has begun")

    settings = Settings(("cuda:0",) * 2, 2, gpus=1)
    with pytest.raises(ClusterError, match=r"GPU GPU-. of .* torch .* there cannot use it") as raised:
        RaySupervisor(with_gpus.engine, train, settings, Display(False)).run()
    assert any("host-" in note for note in raised.value.__notes__)
    within(30, lambda: with_gpus.engine.counts() == (0, 0), "no job is left")


def test_what_a_process_raised_is_told_though_another_was_stopped_before_it_began(forked_pools: None) -> None:
    """The warm process of the second host stands still, so that what it was to run has not begun when it is stopped."""
    life, hosts = memory_pool(cpus=(1, 1), gpus=(Gpu(0, "GPU-0", "", 0, "GPU-0"),))
    second = hosts.lives["host-2"].engine
    assert isinstance(second, LocalEngine)
    warm = second.worker_set._warm
    assert warm is not None
    os.kill(warm.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ClusterError, match="there cannot use it"):
            RaySupervisor(hosts.engine, lambda run: None, Settings(("cuda:0",) * 2, 2, gpus=1), Display(False)).run()
    finally:
        os.kill(warm.pid, signal.SIGCONT)
        life.close()
