"""Whether somebody else has started several processes for this program, and which of them this one is.

torch.distributed is initialised                      -> its world
RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set    -> the launcher's, as torchrun sets them
neither, or a world of one process                    -> None: `fanwise.run` starts what it needs
a job of a pool                                       -> None: it may have inherited these variables from elsewhere
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import distributed

from ...pool.current import in_job
from ..devices import Devices, devices_of, gpus_here

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Launched:
    """This process among those that were started: `rank` of `size`.

    `local_rank`: of those on its machine; None: not known. `is_joined`: torch.distributed is initialised already.
    """

    rank: int
    size: int
    local_rank: int | None
    is_joined: bool


def launched() -> Launched | None:
    """See the module.

    Raises:
        ValueError: the variables of a launcher are incomplete, or no numbers.
    """
    if distributed.is_available() and distributed.is_initialized():
        rank, size, local_rank = distributed.get_rank(), distributed.get_world_size(), _number("LOCAL_RANK", os.environ)
        return Launched(rank, size, local_rank, is_joined=True) if size > 1 else None
    return None if in_job() else launched_by(os.environ)


def launched_by(environment: Mapping[str, str]) -> Launched | None:
    """What the variables of a launcher say."""
    size = _number("WORLD_SIZE", environment)
    if size is None or size == 1 or "RANK" not in environment:
        return None
    missing = [name for name in _NEEDED if name not in environment]
    if missing:
        raise ValueError(
            f"RANK={environment['RANK']} and WORLD_SIZE={size} are set, as a launcher sets them for each process, and "
            f"{' and '.join(missing)} not: the processes cannot find each other.\n"
            f"Set MASTER_ADDR and MASTER_PORT to an address of the machine of rank 0, start the program with torchrun, "
            f"or unset WORLD_SIZE to train in this process alone."
        )
    rank, local_rank = _number("RANK", environment), _number("LOCAL_RANK", environment)
    if rank is None or not 0 <= rank < size:
        raise ValueError(f"RANK={environment['RANK']} is not the number of one of WORLD_SIZE={size} processes")
    return Launched(rank, size, local_rank, is_joined=False)


def _number(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}, which a launcher sets for each process, must be a whole number") from None


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
