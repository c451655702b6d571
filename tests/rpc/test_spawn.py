"""Groups whose workers are jobs of a pool: on this machine here; on a cluster in tests/pool/cluster."""

import operator
import os
from pathlib import Path

import pytest

import fanwise.rpc as rpc
from fanwise import Pool
from fanwise.base.errors import LeaseError
from fanwise.pool.current import current


def asks_the_next(rank: int, offset: int) -> tuple[int, str]:
    workers = 3
    total: int = rpc.rpc_sync(f"worker{(rank + 1) % workers}", operator.add, args=(rank, offset))
    return total, rpc.get_worker_info().name


def test_workers_call_each_other_and_what_they_return_comes_by_rank() -> None:
    assert rpc.spawn(asks_the_next, (10,), world_size=3) == [(10, "worker0"), (11, "worker1"), (12, "worker2")]


def test_a_worker_that_raises_ends_the_group_with_its_error(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        (tmp_path / f"{rank}-{os.getpid()}").touch()
        if rank == 1:
            raise KeyError("poison")
        rpc.rpc_sync("worker1", operator.add, args=(1, 2))

    with Pool(cpus=2) as pool:
        with pytest.raises(KeyError, match="poison") as raised:
            rpc.spawn(work, world_size=2, pool=pool)
        assert "in worker1 of 2" in raised.value.__notes__
        pids = [int(path.name.partition("-")[2]) for path in tmp_path.iterdir()]
        assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_reports_of_the_function_leave_the_group_as_it_is() -> None:
    def work(rank: int) -> str:
        for report in ({"loss": 0.5}, ("127.0.0.1", 1), rank):
            current().report(report)
        return asks_the_next(rank, 10)[1]

    assert rpc.spawn(work, world_size=3) == ["worker0", "worker1", "worker2"]


def test_more_workers_than_there_is_room_for_are_refused() -> None:
    with Pool(cpus=2) as pool, pytest.raises(LeaseError, match=r"3 workers .* has room for 2: 2 CPUs on 1"):
        rpc.spawn(asks_the_next, (0,), world_size=3, pool=pool)


@pytest.mark.parametrize("world_size", [0, True, 1.5])
def test_a_world_has_at_least_one_worker(world_size: object) -> None:
    with pytest.raises(ValueError, match="world_size must be a whole number of at least 1"):
        rpc.spawn(asks_the_next, (0,), world_size=world_size)  # type: ignore[arg-type]  # the mistake
