"""Computes the devices of a trial, and the number of trials that fit on the machines."""

import math

from ..pool import Capacity, Resources
from .values import is_number


def need_of(capacity: Capacity, devices: int | float) -> Resources:
    """Return the resources for `devices_per_trial` on these machines. Raise TypeError or ValueError for a bad value."""
    if not is_number(devices):
        raise TypeError(f"devices_per_trial must be a number, got {devices!r}")
    if not 0 <= devices < math.inf:
        raise ValueError(f"devices_per_trial must be a number of at least 0, got {devices!r}")
    if capacity.gpus and devices:
        gpus = int(devices) if devices == int(devices) else float(devices)
        shares = [
            machine.cpus // max(1, int(len(machine.gpus) / devices)) for machine in capacity.machines if machine.gpus
        ]
        return Resources(cpus=max(1, min(shares)), gpus=gpus)
    if devices != int(devices):
        raise ValueError(f"devices_per_trial={devices!r}: CPUs are not shared, and no GPU was found (fanwise devices)")
    return Resources(cpus=max(1, int(devices)))


def workers_on(capacity: Capacity, need: Resources) -> int:
    """Return the number of such trials that the machines can run at a time, at least 1."""
    if need.gpus:
        return max(1, sum(int(len(machine.gpus) / need.gpus) for machine in capacity.machines))
    return max(1, sum(machine.cpus // need.cpus for machine in capacity.machines))
