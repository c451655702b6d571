"""Processes that a launcher has started: whether there are any, which of them this is, and its device.

torch.distributed is initialized                      its world
torchrun, srun or mpirun has started this process     the launcher's world (pool/launchers.py)
neither, or a world of one process                    None: `fanwise.run` starts the processes it needs
a job of a pool                                       None, since it may have inherited a launcher's variables
"""

import os
from dataclasses import dataclass

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ...pool import LaunchedProcess, from_environment
from ..comm.torch_group import World
from ..devices import Devices, devices_of, gpus_here

# The launcher's rendezvous, and how many runs have used it. The process of rank 0 may serve it, so it is kept open for
# the next run: a process that connected again could reach it while it closes.
_store: Store | None = None
_runs = 0


@dataclass(frozen=True, slots=True)
class Launched:
    """This process among those that were started: `rank` of `size`.

    Attributes:
        local_rank: among those of its machine; None: not known.
        is_joined: torch.distributed is initialized already.
        init_method: where torch.distributed finds the others.
    """

    rank: int
    size: int
    local_rank: int | None
    is_joined: bool
    init_method: str = "env://"

    @property
    def world(self) -> World:
        return World(self.rank, self.size, None if self.is_joined else self._make_store)

    def _make_store(self) -> Store:
        global _store, _runs
        if _store is None:
            _store, _, _ = next(iter(rendezvous(self.init_method, self.rank, self.size)))
        _runs += 1
        # A run must not find the addresses of the run before.
        return PrefixStore(f"fanwise/{_runs}", _store)


def launched() -> Launched | None:
    """See the module.

    Raises:
        ValueError: the variables of a launcher are incomplete, contradict each other, or are no numbers.
    """
    if distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        local_rank = os.environ.get("LOCAL_RANK", "")
        return Launched(rank, size, int(local_rank) if local_rank.isdecimal() else None, True) if size > 1 else None
    return launched_as(from_environment())


def launched_as(process: LaunchedProcess) -> Launched | None:
    """What a launcher has started, if that is more than one process."""
    if process.world_size == 1:
        return None
    # torchrun may serve the address itself, which torch reads from other variables.
    method = "env://" if process.launcher == "torchrun" else process.init_method
    return Launched(process.rank, process.world_size, process.local_rank, is_joined=False, init_method=method)


def check_fits(
    launched: Launched, devices: Devices, processes: int | None, *, has_pool: bool = False, restarts: int = 0
) -> None:
    """Raise ValueError if the arguments of `fanwise.run` contradict the launcher."""
    count = None if isinstance(devices, str) else devices if isinstance(devices, int) else len(devices)
    if count not in (None, launched.size):
        _contradict(f"devices={devices!r} asks for {count} of them", launched)
    if processes not in (None, launched.size):
        _contradict(f"processes={processes!r} asks for another number", launched)
    if has_pool:
        _contradict("pool= asks for jobs of a pool", launched)
    if restarts:
        _contradict(f"restarts={restarts} cannot start them again, which the launcher must do", launched)


def _contradict(wish: str, launched: Launched) -> None:
    who = "torch.distributed was initialized with" if launched.is_joined else "a launcher has set"
    raise ValueError(
        f"{who} WORLD_SIZE={launched.size}, and each of these processes is one device of the run; {wish}.\n"
        f"Leave it out, or start the program without the launcher. fanwise.here() trains in this process alone."
    )


def device_of(launched: Launched, devices: Devices, gpus: int | None = None) -> torch.device:
    """Return the device that `devices` names for this process, else a GPU of its own, or the CPU if there is none.

    Args:
        gpus: how many GPUs this process sees; None: look.

    Raises:
        ValueError: there is no device of that name, or there are more processes than GPUs.
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
    """Return the number of the GPU of this process among those that it sees."""
    if gpus <= 1:
        return 0  # a batch system has shown each process its own
    number = launched.rank % gpus if launched.local_rank is None else launched.local_rank
    if number >= gpus:
        raise ValueError(
            f"LOCAL_RANK={number} and {gpus} GPUs: each process of a run needs a GPU of its own.\n"
            f"Start {gpus} processes on this machine, or train on its CPUs: devices='cpu'."
        )
    return number
