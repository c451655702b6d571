"""Whether somebody else has started several processes for this program, and which of them this one is.

torch.distributed is initialised                      -> its world
torchrun, srun or mpirun have started this process    -> the launcher's world (pool/launchers.py)
neither, or a world of one process                    -> None: `fanwise.run` starts what it needs
a job of a pool                                       -> None: it may have inherited a launcher's variables
"""

import os
from dataclasses import dataclass

import torch
from torch import distributed

from ...pool import LaunchedProcess, from_environment
from ..devices import Devices, devices_of, gpus_here


@dataclass(frozen=True, slots=True)
class Launched:
    """This process among those that were started: `rank` of `size`.

    `local_rank`: of those on its machine; None: not known. `is_joined`: torch.distributed is initialised already.
    `init_method`: where torch.distributed finds the others. `place`: as the launcher has told it, if one has.
    """

    rank: int
    size: int
    local_rank: int | None
    is_joined: bool
    init_method: str = "env://"
    place: LaunchedProcess | None = None


def launched() -> Launched | None:
    """See the module.

    Raises:
        ValueError: the variables of a launcher are incomplete, contradict each other, or are no numbers.
    """
    if distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        local_rank = os.environ.get("LOCAL_RANK", "")
        own = int(local_rank) if local_rank.isdecimal() else None
        return Launched(rank, size, own, is_joined=True) if size > 1 else None
    return launched_as(from_environment())


def launched_as(found: LaunchedProcess) -> Launched | None:
    """What a launcher has started, if that is more than one process."""
    if found.world_size == 1:
        return None
    # torchrun may serve the address itself, and says so in variables that torch reads.
    method = "env://" if found.launcher == "torchrun" else found.init_method
    return Launched(found.rank, found.world_size, found.local_rank, is_joined=False, init_method=method, place=found)


def check_fits(launched: Launched, devices: Devices, processes: int | None, *, has_pool: bool) -> None:
    """Raises ValueError when the user asks for other processes than were started."""
    named = _count_of(devices)
    if named not in (None, launched.size):
        _contradict(f"devices={devices!r} asks for {named} of them", launched)
    if processes not in (None, launched.size):
        _contradict(f"processes={processes!r} asks for another number", launched)
    if has_pool:
        _contradict("pool= asks for jobs of a pool", launched)


def _count_of(devices: Devices) -> int | None:
    """How many devices were asked for; None: as many as there are processes."""
    if isinstance(devices, str):
        return None
    return devices if isinstance(devices, int) else len(devices)


def _contradict(wish: str, launched: Launched) -> None:
    who = "torch.distributed was initialised with" if launched.is_joined else "a launcher has set"
    raise ValueError(
        f"{who} WORLD_SIZE={launched.size}, and each of these processes is one device of the run; {wish}.\n"
        f"Leave it out, or start the program without the launcher. fanwise.here() trains in this process alone."
    )


def device_of(launched: Launched, devices: Devices, gpus: int | None = None) -> torch.device:
    """The device of this process: what `devices` names for it, else a GPU of its own, or the CPU where there is none.

    Args:
        gpus: how many this process sees; None: look.

    Raises:
        ValueError: no device of that name; or more processes than GPUs.
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
    """The number of the GPU of this process, of those that it sees."""
    if gpus <= 1:
        return 0  # a batch system has shown each process its own
    number = launched.rank % gpus if launched.local_rank is None else launched.local_rank
    if number >= gpus:
        raise ValueError(
            f"LOCAL_RANK={number} and {gpus} GPUs: each process of a run needs a GPU of its own.\n"
            f"Start {gpus} processes on this machine, or train on its CPUs: devices='cpu'."
        )
    return number
