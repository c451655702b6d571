"""An rpc group on the nodes of a real Ray cluster: calls between nodes, and the loss of a node."""

import operator
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from with_ray import RayCluster

import fanwise.rpc as rpc
from fanwise import Pool
from fanwise.base.errors import OwnerLostError, WorkerLostError
from fanwise.testing import within


def work(rank: int, folder: str) -> None:
    """Three workers: 0 and 1 on the node that stays, 2 on the one that dies."""
    if rank == 2:
        threading.Event().wait()
    if rank == 0:
        assert rpc.rpc_sync("worker2", operator.add, args=(1, 2)) == 3
        reference = rpc.remote("worker2", dict, args=({"a": 1},))
        assert reference.to_here() == {"a": 1}
        Path(folder, "asked").touch()
        error_names = []
        calls: list[Callable[[], object]] = [
            lambda: rpc.rpc_sync("worker2", time.sleep, args=(600,)),
            reference.to_here,
        ]
        for call in calls:
            try:
                call()
            except (WorkerLostError, OwnerLostError) as error:
                error_names.append(type(error).__name__)
        Path(folder, "errors").write_text(" ".join(error_names))


@pytest.mark.soak  # three processes that load torch, on nodes that begin
def test_calls_to_a_lost_node_and_references_to_what_it_had_fail_as_they_should(
    cluster: RayCluster, tmp_path: Path
) -> None:
    with Pool(ray=cluster.address, seed=9) as pool:
        within(60, lambda: pool.capacity().cpus == 2, "the node that stays is there")
        node = cluster.add(cpus=1)
        within(60, lambda: pool.capacity().cpus == 3, "the node has joined")

        def kill() -> None:
            within(120, lambda: (tmp_path / "asked").exists(), "worker 0 has called")
            cluster.remove(node)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(WorkerLostError, match="it was lost with its node") as raised:
            rpc.spawn(work, (str(tmp_path),), world_size=3, pool=pool)
        killer.join()
    assert "in worker2 of 3" in raised.value.__notes__
    assert (tmp_path / "errors").read_text() == "WorkerLostError OwnerLostError"
