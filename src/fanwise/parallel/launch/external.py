"""Processes that a launcher has started: `launched` returns which of them this one is.

torch.distributed is initialized                         its processes
torchrun, SLURM or MPI has started this process          the launcher's processes; see `launchers`
neither, or there is only one process                    None: `fanwise.run` starts the processes that it needs
in a job of a pool                                       None, because the job may have inherited a launcher's variables
"""

import os
from dataclasses import dataclass

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ...pool.current import in_job
from ..comm.torch_group import TorchGroup, World
from ..devices import Devices, devices_of, gpus_here
from .launchers import LaunchedProcess, from_environment

# The launcher's store and the number of runs that have used it. The store stays open for the next run: rank 0 may serve
# it, and a process that connects again could reach it while it closes.
_store: Store | None = None
_runs = 0


@dataclass(frozen=True, slots=True)
class Launched:
    rank: int
    size: int
    local_rank: int | None  # rank among the processes of this machine. None: unknown
    is_joined: bool  # the program has initialized torch.distributed
    init_method: str = "env://"  # URL for the rendezvous of torch.distributed

    @property
    def world(self) -> World:
        return World(self.rank, self.size, None if self.is_joined else self._make_store)

    def _make_store(self) -> Store:
        global _store, _runs
        if _store is None:
            _store, _, _ = next(iter(rendezvous(self.init_method, self.rank, self.size)))
        _runs += 1
        return PrefixStore(f"fanwise/{_runs}", _store)  # separate keys for each run


def launched() -> Launched | None:
    is_own_rank = in_job() and TorchGroup.is_open  # a rank of a run, which itself calls fanwise.run
    if distributed.is_available() and distributed.is_initialized() and not is_own_rank:
        rank, size = distributed.get_rank(), distributed.get_world_size()
        local_rank = os.environ.get("LOCAL_RANK", "")
        return Launched(rank, size, int(local_rank) if local_rank.isdecimal() else None, True) if size > 1 else None
    return launched_as(from_environment())


def launched_as(process: LaunchedProcess) -> Launched | None:
    if process.world_size == 1:
        return None
    # torch reads from other variables of torchrun whether torchrun itself serves the address.
    method = "env://" if process.launcher == "torchrun" else process.init_method
    return Launched(process.rank, process.world_size, process.local_rank, is_joined=False, init_method=method)


def check_arguments(launched: Launched, devices: Devices, *, has_pool: bool, restarts: int) -> None:
    """Raise ValueError if the arguments of `fanwise.run` contradict the launcher."""
    count = None if isinstance(devices, str) else devices if isinstance(devices, int) else len(devices)
    if count not in (None, launched.size):
        conflict = f"devices={devices!r} asks for {count}"
    elif has_pool:
        conflict = "pool= asks for jobs of a pool"
    elif restarts:
        conflict = f"restarts={restarts} cannot start them again, which is up to the launcher"
    else:
        return
    source = "torch.distributed was initialized with" if launched.is_joined else "a launcher has set"
    raise ValueError(
        f"{source} WORLD_SIZE={launched.size}, and each of these processes is one device of the run, but {conflict}.\n"
        f"Leave the argument out, or start the program without the launcher. fanwise.here() trains in one process."
    )


def device_of(launched: Launched, devices: Devices, gpus: int | None = None) -> torch.device:
    """Return the device of this process: the one that `devices` names, else its own GPU, or the CPU without GPUs.

    `gpus`: number of GPUs that this process sees. None: count them.
    """
    gpus = len(gpus_here()) if gpus is None else gpus
    if isinstance(devices, str) and devices not in ("auto", "cuda"):
        return devices_of(devices, gpus)[0]
    if not isinstance(devices, int | str):
        return devices_of([devices[launched.rank]], gpus)[0]
    if devices == "cuda" or gpus:
        return devices_of([f"cuda:{_own_gpu(launched, gpus)}"], gpus)[0]
    return torch.device("cpu")


def _own_gpu(launched: Launched, gpus: int) -> int:
    if gpus <= 1:
        return 0  # a batch system may show each process only its own GPU
    number = launched.rank % gpus if launched.local_rank is None else launched.local_rank
    if number >= gpus:
        raise ValueError(
            f"LOCAL_RANK={number} and {gpus} GPUs: each process of a run needs a GPU of its own.\n"
            f"Start {gpus} processes on this machine, or train on its CPUs: devices='cpu'."
        )
    return number
