"""Names of devices, the same on every engine: "cpu", "cuda:0", "cuda:1".

    torch  device(type='cuda', index=0)    jax  CudaDevice(id=0), "gpu"    tensorflow  /device:GPU:0
                              \\__________________ "cuda:0" ____________________/

A number counts the devices of this process. GPUs of AMD are "cuda:0" too, as in torch; others keep their engine's
name ("mps:0", "tpu:0"). The CPU has no number, except the further CPUs that JAX can pretend to have ("cpu:1").
Arguments may also be "gpu" or "cuda" for "cuda:0", and torch.device objects.
"""

import functools
from typing import Any

from .adapters import exchanges
from .engines import check_engine, current_engine, engine_of


def device_of(x: object, /) -> str:
    """Return the name of the device of the array x, for example "cpu" or "cuda:0".

    Raises:
        TypeError: x is not an array, or it is traced and has no device yet.
        ValueError: x is spread over several devices.

    >>> import numpy
    >>> device_of(numpy.zeros(3))
    'cpu'
    """
    return str(exchanges[engine_of(x)].device_of(x))


def devices(engine: str | None = None) -> list[str]:
    """Return the names of the devices that an engine can use in this process; of the current engine by default.

    Initializes the engine's devices, which creates a CUDA context on some engines.

    Raises:
        ValueError: there is no such engine.
        NotInstalled: it is not installed.
    """
    return list(_known(current_engine() if engine is None else check_engine(engine)))


def to_device(x: Any, device: object, /) -> Any:
    """Return the array x on a device; x itself if it is there already. Gradients flow through it.

    Args:
        x: an array of any engine.
        device: a name, as `devices` lists them, or a torch.device.

    Raises:
        TypeError: x is not an array.
        ValueError: its engine has no such device in this process; the message lists the devices.
    """
    engine = engine_of(x)
    return exchanges[engine].move(x, find_device(engine, device))


def find_device(engine: str, device: object) -> str:
    """Return the full name of a device of that engine. Raise ValueError if it does not exist."""
    name = canonical(str(device))
    if has_device(engine, name):
        return name
    raise ValueError(f"{engine} has no device {str(device)!r} in this process; it has {', '.join(_known(engine))}")


def has_device(engine: str, name: str) -> bool:
    return name in _known(engine)


def canonical(name: str) -> str:
    """Return the name of a device from any form that an engine writes."""
    kind, _, number = name.lower().rpartition("device:")[2].partition(":")
    kind = {"gpu": "cuda", "rocm": "cuda"}.get(kind, kind)
    number = number or "0"
    return kind if kind == "cpu" and number == "0" else f"{kind}:{number}"


# Devices do not change while a process runs.
@functools.cache
def _known(engine: str) -> tuple[str, ...]:
    return tuple(exchanges[engine].devices())
