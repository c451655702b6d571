"""Which devices a run is given: names and numbers, checked against what there is.

What there is now: CPU devices. Each is a process of its own, or several take turns in one, as `fanwise.run` is told.
"""

from collections.abc import Sequence

import torch

Devices = int | str | Sequence[str]

MAX_DEVICES = 1024


def devices_of(wanted: Devices) -> tuple[torch.device, ...]:
    """The devices of a run, at least one.

    Raises:
        ValueError: there are no such devices, or not in one process yet. TypeError: `wanted` names no devices.
    """
    if wanted == "auto":
        wanted = 1
    if isinstance(wanted, bool) or not isinstance(wanted, int | str | Sequence):
        raise TypeError(f'devices must be a number, "auto" or names, as 2 or ["cpu"] * 2; got {wanted!r}')
    if isinstance(wanted, int):
        if not 1 <= wanted <= MAX_DEVICES:
            raise ValueError(f"devices must be at least 1 and at most {MAX_DEVICES}, got {wanted!r}")
        return (torch.device("cpu"),) * wanted
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise ValueError('devices is empty; a run needs at least one, as ["cpu"]')
    return tuple(_device(name) for name in names)


def _device(name: object) -> torch.device:
    if not isinstance(name, str | torch.device):
        raise TypeError(f'a device is named by text, as "cpu"; got {name!r}')
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; {_what_there_is()}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {str(name)!r}; {_what_there_is()}")
    raise ValueError(f'devices={str(name)!r}: data-parallel runs execute on CPU devices: devices=2, or ["cpu"] * 2.')


def _what_there_is() -> str:
    gpus = torch.cuda.device_count()
    return "this machine has: cpu" + "".join(f", cuda:{number}" for number in range(gpus))
