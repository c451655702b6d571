import pytest

from fanwise.pool import Capacity
from fanwise.pool.leases import Gpu, Machine, Resources
from fanwise.tune.trial_resources import max_workers, resolve_devices, trial_resources


def capacity(*machines: tuple[int, int]) -> Capacity:
    """Machines with these numbers of CPUs and GPUs."""
    return Capacity(
        tuple(
            Machine(cpus, 0, tuple(Gpu(index, f"GPU-{index}", "gpu", 0, f"GPU-{index}") for index in range(gpus)))
            for cpus, gpus in machines
        )
    )


@pytest.mark.parametrize(
    ("machines", "devices", "n_workers", "expected"),
    [
        ([(8, 0)], None, None, (1, 8)),
        ([(8, 0)], None, 1, (8, 1)),
        ([(8, 0)], None, 3, (2, 3)),
        ([(8, 0)], None, 12, (1, 12)),
        ([(8, 0)], 4, None, (4, 2)),
        ([(8, 0)], 3, 4, (3, 4)),
        ([(8, 0), (4, 0)], None, 3, (4, 3)),
        ([(16, 2)], None, None, (1, 2)),
        ([(16, 2)], None, 1, (1, 1)),
        ([(16, 2)], None, 2, (1, 2)),
        ([(16, 2)], None, 4, (0.5, 4)),
        ([(16, 2)], None, 5, (1 / 3, 5)),
        ([(16, 1)], 0.25, None, (0.25, 4)),
        ([(16, 1)], 0, None, (0, 16)),
    ],
)
def test_machine_is_divided_among_the_workers(
    machines: list[tuple[int, int]], devices: float | None, n_workers: int | None, expected: tuple[float, int]
) -> None:
    assert resolve_devices(capacity(*machines), devices, n_workers) == expected


@pytest.mark.parametrize("n_workers", range(1, 200, 7))
def test_default_devices_have_room_for_all_workers_unless_there_are_more_than_cores(n_workers: int) -> None:
    for machines in ([(8, 0)], [(8, 0), (3, 0)], [(16, 2)], [(16, 1), (16, 2)]):
        devices, _ = resolve_devices(capacity(*machines), None, n_workers)
        room = max_workers(capacity(*machines), trial_resources(capacity(*machines), devices))
        has_gpus = any(gpus for _, gpus in machines)
        assert room >= n_workers or (not has_gpus and devices == 1)


def test_shared_pool_is_not_divided() -> None:
    assert resolve_devices(capacity((8, 0)), None, 2, is_shared=True) == (1, 2)
    assert resolve_devices(capacity((16, 1)), None, 2, is_shared=True) == (1, 2)


def test_cores_of_a_gpu_machine_are_divided_among_the_trials_that_its_gpus_have_room_for() -> None:
    assert trial_resources(capacity((16, 1)), 0.25) == Resources(cpus=4, gpus=0.25)
