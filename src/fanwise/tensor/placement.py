"""Names of devices: "cpu", "cuda:0", "cuda:1" ..., whatever the engine calls them.

    torch  device(type='cuda', index=0)    jax  CudaDevice(id=0), "gpu"    tensorflow  /device:GPU:0
                              \\__________________ "cuda:0" ____________________/

A number counts the devices of this process. GPUs of AMD are "cuda:0" too, as in torch; others keep their
engine's name ("mps:0", "tpu:0"). The CPU has no number, but for the further CPUs that JAX can pretend to have
("cpu:1"). On the way in "gpu" and "cuda" stand for "cuda:0", and torch.device objects are understood.
"""

import functools
from typing import Any

from .adapters import device_placements
from .engines import check_engine, current_engine, engine_of


def device_of(x: object, /) -> str:
    """The name of the device on which the array x lies, for example "cpu" or "cuda:0".

    Raises:
        TypeError: x is no array, or only stands for one while a function is traced and has no device yet.
        ValueError: x is spread over several devices.

    >>> import numpy
    >>> device_of(numpy.zeros(3))
    'cpu'
    """
    return device_placements[engine_of(x)].device_of(x)


def devices(engine: str | None = None) -> list[str]:
    """The names of the devices that an engine can use in this process; of the current engine if None.

    Starts the engine's devices (a CUDA context too, on engines that make one to count them).

    Raises:
        ValueError: there is no such engine.
        NotInstalled: it is not installed.
    """
    return device_placements[current_engine() if engine is None else check_engine(engine)].names()


def to_device(x: Any, device: object, /) -> Any:  # Any: an array in, an array of the same engine out
    """The array x on a device; x itself if it is there already. Gradients flow through it.

    Args:
        x: an array of any engine.
        device: a name, as `devices` lists them, or a torch.device.

    Raises:
        TypeError: x is no array.
        ValueError: its engine has no such device here; the message says which there are.
    """
    engine = engine_of(x)
    return device_placements[engine].move(x, find_device(engine, device))


def find_device(engine: str, device: object) -> str:
    """The full name of a device of that engine, if there is one.

    Raises:
        ValueError: there is none; the message says which there are.
    """
    name = canonical(str(device))
    if has_device(engine, name):
        return name
    raise ValueError(f"{engine} has no device {str(device)!r} here, it has {', '.join(_known(engine))}")


def has_device(engine: str, name: str) -> bool:
    """Whether that engine has the device of this full name. Starts the engine's devices."""
    return name in _known(engine)


def canonical(name: str) -> str:
    """A device's name in the one form used here, from any form that an engine writes."""
    kind, _, number = name.lower().rpartition("device:")[2].partition(":")
    kind = {"gpu": "cuda", "rocm": "cuda"}.get(kind, kind)
    number = number or "0"
    return kind if kind == "cpu" and number == "0" else f"{kind}:{number}"


# Devices do not come and go while a process runs.
@functools.cache
def _known(engine: str) -> tuple[str, ...]:
    return tuple(device_placements[engine].names())
