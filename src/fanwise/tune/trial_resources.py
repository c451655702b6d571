"""Number of workers and devices per trial, with default values.

    n_workers   devices_per_trial   without GPU                           with GPUs
    not given   not given           one trial per core, one core each     one trial per GPU
    w           not given           the cores divided by w, at least 1    1 GPU each; a share if w exceeds the GPUs
    not given   d                   as many trials as fit                 as many trials as fit
    w           d                   as given                              as given

If the user passes a pool, other searches may share the pool, so its machines are not divided. The default of
`devices_per_trial` is then one core or one GPU.

On a machine with GPUs, the cores are divided among the trials that fit on its GPUs. The thread pools of a trial (torch,
BLAS, OpenMP) have as many threads as the trial has cores.
"""

import math

from ..pool import Capacity
from ..pool.leases import Resources
from .values import checked_int, checked_nonnegative


def resolve_devices(
    capacity: Capacity, devices_per_trial: int | float | None, n_workers: int | None, *, is_shared: bool = False
) -> tuple[int | float, int]:
    """Return `devices_per_trial` and `n_workers`, with defaults in place of None. Raises TypeError, ValueError.

    `is_shared`: other searches may use the machines, so they are not divided.
    """
    if n_workers is not None:
        checked_int("n_workers", n_workers, 1)
    if devices_per_trial is not None:
        checked_nonnegative("devices_per_trial", devices_per_trial)
    else:
        devices_per_trial = 1 if n_workers is None or is_shared else default_devices_per_trial(capacity, n_workers)
    if n_workers is None:
        n_workers = max_workers(capacity, trial_resources(capacity, devices_per_trial))
    return devices_per_trial, n_workers


def default_devices_per_trial(capacity: Capacity, n_workers: int) -> int | float:
    """Return the `devices_per_trial` that divides the machines evenly among the workers."""
    if capacity.gpus:
        return 1 if n_workers <= capacity.gpus else 1 / math.ceil(n_workers / capacity.gpus)
    for cpus in range(max(machine.cpus for machine in capacity.machines), 1, -1):
        if max_workers(capacity, Resources(cpus=cpus)) >= n_workers:
            return cpus
    return 1


def trial_resources(capacity: Capacity, devices_per_trial: int | float) -> Resources:
    """Return the resources of one trial on these machines.

    Raises ValueError if `devices_per_trial` is a fraction and no machine has a GPU.
    """
    devices = devices_per_trial
    if capacity.gpus and devices:
        gpus = int(devices) if devices == int(devices) else float(devices)
        gpu_machines = [machine for machine in capacity.machines if machine.gpus]
        cpus = [machine.cpus // max(1, int(round(len(machine.gpus) / devices, 6))) for machine in gpu_machines]
        return Resources(cpus=max(1, min(cpus)), gpus=gpus)
    if devices != int(devices):
        raise ValueError(
            f"devices_per_trial={devices!r}: no GPU was found (see `fanwise devices`), and a CPU cannot be divided "
            f"among trials. Use a whole number"
        )
    return Resources(cpus=max(1, int(devices)))


def max_workers(capacity: Capacity, resources: Resources) -> int:
    """Return the number of trials with these resources that the machines can run at a time, at least 1."""
    if resources.gpus:
        # Rounded, because 1 / (1 / 93) is less than 93.
        return max(1, sum(int(round(len(machine.gpus) / resources.gpus, 6)) for machine in capacity.machines))
    return max(1, sum(machine.cpus // resources.cpus for machine in capacity.machines))
