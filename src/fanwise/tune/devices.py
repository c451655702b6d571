"""How many devices a trial takes, and how many trials a machine has room for."""

import math

from ..pool import Machine, Resources
from .values import is_number


def need_of(machine: Machine, devices: int | float) -> Resources:
    """What `devices_per_trial` means on this machine. TypeError, ValueError: it makes no sense."""
    if not is_number(devices):
        raise TypeError(f"devices_per_trial must be a number, got {devices!r}")
    if not 0 <= devices < math.inf:
        raise ValueError(f"devices_per_trial must be a number of at least 0, got {devices!r}")
    if machine.gpus and devices:
        gpus = int(devices) if devices == int(devices) else float(devices)
        return Resources(cpus=max(1, machine.cpus // max(1, int(len(machine.gpus) / devices))), gpus=gpus)
    if devices != int(devices):
        raise ValueError(f"devices_per_trial={devices!r}: CPUs are not shared, and no GPU was found (fanwise devices)")
    return Resources(cpus=max(1, int(devices)))


def workers_on(machine: Machine, need: Resources) -> int:
    """How many such trials the machine runs at a time; at least 1."""
    if need.gpus:
        return max(1, int(len(machine.gpus) / need.gpus))
    return max(1, machine.cpus // need.cpus)
