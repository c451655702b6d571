"""Parses the argument `devices` of `fanwise.run`, and checks that the devices exist.

    "auto"                                                 all GPUs that this process may use, or one CPU device
    2                                                      two GPUs, or two CPU devices if there is no GPU
    "cuda:1", ["cuda:0", "cuda:1"], ["cpu"] * 4            these devices

A job of a pool may use the GPUs of its lease. Other processes may use those in CUDA_VISIBLE_DEVICES. GPUs are counted
without a CUDA context, because the processes that train are forked later.
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

_MAX_DEVICES = 1024
_CPU = torch.device("cpu")


def gpus_here() -> tuple[str, ...]:
    """Return the GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES, cuda:0 first.

    Empty if this torch supports no GPU. Creates no CUDA context.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        return ()
    if in_job():
        return current().gpus
    visible = tuple(gpu.visible for gpu in find_machine().gpus)
    if visible or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return visible
    return tuple(map(str, range(torch.cuda.device_count())))  # torch may find GPUs without NVML


def devices_of(wanted: Devices, num_gpus: int | None = None) -> tuple[torch.device, ...]:
    """Return the devices of a run, at least one, all of one type. `wanted`: argument `devices` of `fanwise.run`."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | str | Sequence):
        raise TypeError(f'devices must be a number, "auto" or names, as 2 or ["cpu"] * 2; got {wanted!r}')
    if num_gpus is None:
        num_gpus = len(gpus_here())
    if wanted == "auto":
        return _gpus(num_gpus) if num_gpus else (_CPU,)
    if isinstance(wanted, int):
        if not 1 <= wanted <= _MAX_DEVICES:
            raise ValueError(f"devices must be at least 1 and at most {_MAX_DEVICES}, got {wanted!r}")
        if num_gpus and wanted > num_gpus:
            raise ValueError(f"devices={wanted} asks for {wanted} GPUs; {_available(num_gpus)}.\n{_use_cpus(wanted)}")
        return _gpus(wanted) if num_gpus else (_CPU,) * wanted
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise ValueError('devices is empty; a run needs at least one, as ["cpu"]')
    devices = tuple(_device(name, num_gpus) for name in names)
    if len({device.type for device in devices}) > 1:
        raise ValueError(
            f"devices={list(map(str, names))!r} mixes CPU devices and GPUs, whose operators give different bits.\n"
            f"Use devices of one kind."
        )
    for device in devices:
        if device.type == "cuda" and devices.count(device) > 1:
            raise ValueError(
                f"devices={list(map(str, names))!r} names {device} twice; a GPU is one device of a run.\n"
                f"Set shards= to cut batches into more parts."
            )
    return devices


def devices_on_hosts(
    wanted: Devices, capacity: Capacity, threads: int = 1, shards: int | None = None
) -> tuple[torch.device, ...]:
    """Return the devices of a run on the hosts of a cluster: GPUs if the cluster has some, else CPU devices.

    "auto" is as many devices as fit: at most `shards` GPUs, or one CPU device per shard.
    """
    if wanted == "auto":
        most = shards or (capacity.gpus or DEFAULT_SHARDS)
        count = max(1, min(most, capacity.fits(Resources(cpus=threads, gpus=1 if capacity.gpus else 0))))
        return _gpus(count) if capacity.gpus else (_CPU,) * count
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(names, Sequence) and names and all(name == "cuda" for name in names):
        wanted = len(names)
        if not capacity.gpus:
            raise ValueError(f"devices={names!r} means GPUs, and the cluster has none.\n{_use_cpus(wanted)}")
    elif isinstance(names, Sequence) and any(str(name).startswith("cuda:") for name in names):
        raise ValueError(
            f"devices={names!r} names GPUs by number, but the cluster decides which of its {capacity.gpus} GPUs a run "
            f"gets.\nGive a number: devices={len(names)}."
        )
    if isinstance(wanted, int) and not isinstance(wanted, bool) and capacity.gpus and wanted > capacity.gpus:
        raise ValueError(
            f"devices={wanted} asks for {wanted} GPUs, and the cluster has {capacity.gpus}.\n{_use_cpus(wanted)}"
        )
    return devices_of(wanted, capacity.gpus)


def _device(name: object, num_gpus: int) -> torch.device:
    if not isinstance(name, str | torch.device):
        raise TypeError(f'a device is named by text, as "cpu" or "cuda:0"; got {name!r}')
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; {_available(num_gpus)}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f'devices={str(name)!r}: a run uses CPU devices or GPUs, as devices=2, ["cpu"] * 2 or ["cuda:0", "cuda:1"].'
        )
    index = device.index or 0
    if device.type == "cuda" and index >= num_gpus:
        raise ValueError(f"there is no device {str(name)!r}; {_available(num_gpus)}")
    return _CPU if device.type == "cpu" else torch.device("cuda", index)


def _gpus(count: int) -> tuple[torch.device, ...]:
    return tuple(torch.device("cuda", index) for index in range(count))


def _available(num_gpus: int) -> str:
    owner = "this job" if in_job() else "this machine"
    return f"{owner} has: cpu" + "".join(f", cuda:{index}" for index in range(num_gpus))


def _use_cpus(count: int) -> str:
    return f'Give fewer, or devices=["cpu"] * {count} for CPU devices.'
