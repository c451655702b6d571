"""Which GPUs the processes of a run get: each is a job that leases one of its pool, and sees it alone, as cuda:0.

this library's own pool      offers those GPUs that the user means, and no others
a pool of the user's, or     has GPUs that others ask for too, so which ones the processes get is its to say:
the job that this is         the user can give a number, or all of them
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...base.errors import LeaseError
from ...pool import Pool
from ...pool.current import in_job
from ..devices import gpus_here
from .pools import own_pool


@dataclass(frozen=True, slots=True)
class Places:
    """Where the processes of a run are to run.

    Attributes:
        pool: whose jobs they are.
        names: of the devices, for people; "cuda" where it is the pool that chooses.
        gpus: that each leases of it.
        called: GPUs as the user calls them, by what CUDA_VISIBLE_DEVICES calls them; for messages.
    """

    pool: Pool
    names: tuple[str, ...]
    gpus: int = 0
    called: tuple[tuple[str, str], ...] = ()


def places_for(devices: Sequence[torch.device], *, is_named: bool, pool: Pool | None) -> Places:
    """For several processes.

    Args:
        devices: of all, of one kind. is_named: the user has named them one by one. pool: of the user's.

    Raises:
        LeaseError, ValueError: as `check_leased`.
    """
    names = tuple(map(str, devices))
    if devices[0].type != "cuda":
        return Places(own_pool() if pool is None else pool, names)
    if pool is not None and pool.cluster is not None:
        return Places(pool, ("cuda:0",) * len(devices), 1)
    here = gpus_here()
    called = tuple((visible, f"cuda:{number}") for number, visible in enumerate(here))
    numbers = [device.index for device in devices]
    if pool is None and not in_job():
        return Places(own_pool(tuple(here[number] for number in numbers)), names, 1, called)
    used = own_pool() if pool is None else pool
    check_leased(numbers if is_named else None, len(numbers), len(here) if in_job() else len(used.machine.gpus))
    return Places(used, ("cuda",) * len(devices), 1, called)


def check_leased(named: Sequence[int] | None, count: int, available: int) -> None:
    """Whether so many GPUs can be leased of a pool, or a job, that has `available` ones; `named`: by number.

    Raises:
        LeaseError: it has not so many; those processes that got one would wait for ever.
        ValueError: some of them were named, and which ones are leased cannot be chosen.
    """
    if count > available:
        raise LeaseError(f"{count} GPUs are needed at once, one for each process, and the pool has {available}")
    if named is not None and set(named) != set(range(available)):
        asked = [f"cuda:{number}" for number in named]
        raise ValueError(
            f"devices={asked!r}: which of its {available} GPUs the processes get is decided by the pool, or the job, "
            f"whose GPUs others may use too.\nGive a number: devices={count}."
        )
