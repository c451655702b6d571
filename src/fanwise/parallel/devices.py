"""Which devices a run is given: names and numbers, checked against what there is.

    devices="auto"      all GPUs that this process may use; one CPU device where there is none
    devices=2           two GPUs; two CPU devices where there is no GPU
    devices="cuda:1", ["cuda:0", "cuda:1"], ["cpu"] * 4        these

A job of a pool has the GPUs of its lease, any other process those that CUDA_VISIBLE_DEVICES leaves of the machine. They
are counted without a CUDA context: the processes that train are started later, and one context is one process's.
"""

import os
from collections.abc import Sequence

import torch

from ..pool.contract import Capacity
from ..pool.current import current, in_job
from ..pool.devices import find_machine
from ..pool.leases import Resources
from .config import DEFAULT_SHARDS

Devices = int | str | Sequence[str]

MAX_DEVICES = 1024


def gpus_here() -> tuple[str, ...]:
    """The GPUs that this process may use, cuda:0 first, as CUDA_VISIBLE_DEVICES names them.

    None where this torch cannot use any. Makes no CUDA context.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        return ()
    if in_job():
        return current().gpus
    found = tuple(gpu.visible for gpu in find_machine().gpus)
    if found or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return found
    return tuple(map(str, range(torch.cuda.device_count())))  # where NVML is missing torch may still know some


def devices_of(wanted: Devices, gpus: int | None = None) -> tuple[torch.device, ...]:
    """The devices of a run, at least one, all of one kind.

    Args:
        gpus: how many there are; None: look.

    Raises:
        ValueError: there are no such devices, they are of two kinds, or one GPU is named twice.
        TypeError: `wanted` names no devices.
    """
    if isinstance(wanted, bool) or not isinstance(wanted, int | str | Sequence):
        raise TypeError(f'devices must be a number, "auto" or names, as 2 or ["cpu"] * 2; got {wanted!r}')
    if gpus is None:
        gpus = len(gpus_here())
    if wanted == "auto":
        return _gpus(gpus) if gpus else _cpus(1)
    if isinstance(wanted, int):
        return _so_many(wanted, gpus)
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise ValueError('devices is empty; a run needs at least one, as ["cpu"]')
    devices = tuple(_device(name, gpus) for name in names)
    _check_together(names, devices)
    return devices


def devices_on_hosts(
    wanted: Devices, there: Capacity, threads: int = 1, shards: int | None = None
) -> tuple[torch.device, ...]:
    """The devices of a run on the hosts of a cluster, at least one: GPUs where it has some, else CPU devices.

    "auto" is as many as there is room for with so many threads each: GPUs at most `shards`, if that was said, and CPU
    devices at most one for each shard.

    Raises:
        ValueError: there are not so many, they are of two kinds, or GPUs are named by number. TypeError: as
            `devices_of`.
    """
    if wanted == "auto" and there.gpus:
        room = there.fits(Resources(cpus=threads, gpus=1))
        return _gpus(max(1, room if shards is None else min(room, shards)))
    if wanted == "auto":
        return _cpus(max(1, min(there.fits(Resources(cpus=threads)), shards or DEFAULT_SHARDS)))
    named = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(named, Sequence) and named and all(name == "cuda" for name in named):
        wanted = len(named)
        if not there.gpus:
            raise ValueError(f"devices={named!r} means GPUs, and the cluster has none.\n{_cpus_instead(wanted)}")
    elif isinstance(named, Sequence) and any(str(name).startswith("cuda:") for name in named):
        raise ValueError(
            f"devices={named!r} names GPUs by number, and which ones of its {there.gpus} a run gets is decided by the "
            f"cluster.\nGive a number: devices={len(named)}."
        )
    if isinstance(wanted, int) and not isinstance(wanted, bool) and there.gpus and wanted > there.gpus:
        raise ValueError(
            f"devices={wanted} asks for {wanted} GPUs, and the cluster has {there.gpus}.\n{_cpus_instead(wanted)}"
        )
    return devices_of(wanted, there.gpus)


def _cpus_instead(number: int) -> str:
    return f'Give fewer, or devices=["cpu"] * {number} for CPU devices.'


def _so_many(number: int, gpus: int) -> tuple[torch.device, ...]:
    if not 1 <= number <= MAX_DEVICES:
        raise ValueError(f"devices must be at least 1 and at most {MAX_DEVICES}, got {number!r}")
    if not gpus:
        return _cpus(number)
    if number > gpus:
        raise ValueError(
            f"devices={number} asks for {number} GPUs; {_what_there_is(gpus)}.\n"
            f'Give fewer, or devices=["cpu"] * {number} for CPU devices.'
        )
    return _gpus(number)


def _device(name: object, gpus: int) -> torch.device:
    if not isinstance(name, str | torch.device):
        raise TypeError(f'a device is named by text, as "cpu" or "cuda:0"; got {name!r}')
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; {_what_there_is(gpus)}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(
            f"devices={str(name)!r}: data-parallel runs execute on CPU devices and on GPUs, as devices=2, "
            f'["cpu"] * 2 or ["cuda:0", "cuda:1"].'
        )
    index = device.index or 0
    if index >= gpus:
        raise ValueError(f"there is no device {str(name)!r}; {_what_there_is(gpus)}")
    return torch.device("cuda", index)


def _check_together(names: Sequence[str], devices: Sequence[torch.device]) -> None:
    if len({device.type for device in devices}) > 1:
        raise ValueError(
            f"devices={list(map(str, names))!r} mixes CPU devices and GPUs, whose operators give other bits.\n"
            f"Give devices of one kind."
        )
    twice = [device for device in devices if device.type == "cuda" and devices.count(device) > 1]
    if twice:
        raise ValueError(
            f"devices={list(map(str, names))!r} names {twice[0]} twice; a GPU is one device of a run.\n"
            f"Cut the batches into more parts with shards=, which one GPU executes one after another."
        )


def _cpus(number: int) -> tuple[torch.device, ...]:
    return (torch.device("cpu"),) * number


def _gpus(number: int) -> tuple[torch.device, ...]:
    return tuple(torch.device("cuda", index) for index in range(number))


def _what_there_is(gpus: int) -> str:
    where = "this job" if in_job() else "this machine"
    return f"{where} has: cpu" + "".join(f", cuda:{number}" for number in range(gpus))
