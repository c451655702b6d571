"""Leases of CPUs, GPUs and memory of a machine. Pure.

    Resources --take--> Ledger --> Lease     (None: not free now; LeaseError: never)
    holder --give_back--> Ledger             (unknown holders are ignored)

Callers retry when something was returned. CPUs are counted. GPUs are named as in
CUDA_VISIBLE_DEVICES. Fractions of a GPU are stored in millionths, rounded down, so that n jobs of 1/n GPU always fit.

Invariants: no GPU is leased beyond 1.0; a whole GPU has one holder; a holder has one lease; free and leased resources
add up to the machine. A fraction is taken from the fullest GPU with room, so that whole GPUs stay free.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

from ..base.errors import LeaseError
from ..base.text import counted
from .settings import require_int

_WHOLE = 1_000_000  # millionths of one GPU


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG instance of a GPU.

    Args:
        index: number of the card in nvidia-smi (PCI order), shared by its MIG instances.
        uuid: `GPU-...` or `MIG-...`.
        name: product name.
        memory_bytes: size of its memory; 0 if unknown.
        visible: its name in CUDA_VISIBLE_DEVICES.
        compute_capability: major and minor number; (0, 0) if unknown.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    visible: str
    compute_capability: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of a machine that this process may use. `notes`: remarks on unusual findings."""

    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one job.

    Args:
        cpus: number of CPUs and threads, at least 1.
        gpus: a number of GPUs, or a float below 1: that part of one GPU's memory, shared with other jobs.
        memory_bytes: host memory; 0: unlimited.

    Raises:
        TypeError, ValueError: invalid value.

    >>> Resources(cpus=2, gpus=0.25)
    Resources(cpus=2, gpus=0.25, memory_bytes=0)
    """

    cpus: int = 1
    gpus: int | float = 0
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        require_int("cpus", self.cpus, least=1)
        require_int("memory_bytes", self.memory_bytes, least=0)
        if isinstance(self.gpus, float):
            if not 0.0 < self.gpus < 1.0:
                raise ValueError(
                    f"gpus must be a whole number of GPUs (0, 1, 2 ...) or a part of one, a float between 0 and 1 "
                    f"(0.5), got {self.gpus!r}"
                )
        else:
            require_int("gpus", self.gpus, least=0)

    @property
    def _parts(self) -> int:
        """Millionths of each of `_cards` GPUs."""
        return max(1, math.floor(self.gpus * _WHOLE)) if isinstance(self.gpus, float) else _WHOLE

    @property
    def _cards(self) -> int:
        return 1 if isinstance(self.gpus, float) else self.gpus


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A fraction of a GPU; 1.0 is the whole GPU."""

    visible: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Lease:
    """Leased or free resources."""

    cpus: int
    gpus: tuple[GpuShare, ...]
    memory_bytes: int

    @property
    def shares_gpu(self) -> bool:
        return bool(self.gpus) and self.gpus[0].fraction < 1


NO_LEASE = Lease(0, (), 0)


class Ledger:
    """The leases on one machine, or inside one lease.

    Attributes:
        leases: by holder.
        free_cpus: number of CPUs that are not leased.

    >>> ledger = Ledger(Machine(cpus=4, memory_bytes=8_000))
    >>> ledger.take(Resources(cpus=3), holder=17)
    Lease(cpus=3, gpus=(), memory_bytes=0)
    >>> ledger.take(Resources(cpus=2), holder=18) is None
    True
    >>> ledger.give_back(17)
    True
    """

    def __init__(self, machine: Machine, where: str = "this machine") -> None:
        shares = tuple(GpuShare(gpu.visible, 1.0) for gpu in machine.gpus)
        self.leases: dict[Hashable, Lease] = {}
        self._reset(Lease(machine.cpus, shares, machine.memory_bytes))
        self._where = where

    @staticmethod
    def within(lease: Lease) -> "Ledger":
        """Return a ledger for the jobs that the holder of `lease` starts. They get parts of its GPU shares."""
        ledger = Ledger(Machine(lease.cpus, lease.memory_bytes), "the lease of the job that asks")
        ledger._reset(lease)
        return ledger

    def _reset(self, total: Lease) -> None:
        self._total = total
        self.free_cpus, self._free_bytes = total.cpus, total.memory_bytes
        self._free_parts = {share.visible: _parts(share) for share in total.gpus}

    def check(self, resources: Resources) -> None:
        """Raise LeaseError if the machine does not have these resources."""
        if problem := self._why_impossible(resources):
            raise LeaseError(
                f"{problem} The job would wait for ever, so it was refused: ask for less, or start it where there is "
                f"more (see `fanwise devices`)."
            )

    def take(self, resources: Resources, holder: Hashable) -> Lease | None:
        """Return a lease, or None if the resources are not free now. Raises LeaseError like `check`."""
        assert holder not in self.leases, f"{holder!r} already holds {self.leases.get(holder)}"
        self.check(resources)
        shares = self._free_shares(resources)
        if shares is None:
            return None
        lease = Lease(resources.cpus, shares, resources.memory_bytes)
        self.leases[holder] = lease
        self._count(lease, -1)
        return lease

    def has_room(self, resources: Resources) -> bool:
        return self._free_shares(resources) is not None

    def _free_shares(self, resources: Resources) -> tuple[GpuShare, ...] | None:
        """Return the GPUs of a lease, or None if some of the resources are not free."""
        free = self.free()
        has_rest = resources.cpus <= free.cpus and resources.memory_bytes <= free.memory_bytes
        return _choose(resources, free.gpus) if has_rest else None

    def give_back(self, holder: Hashable) -> bool:
        """Return the lease of `holder` to the ledger. Return False if it has none."""
        lease = self.leases.pop(holder, None)
        if lease is None:
            return False
        self._count(lease, 1)
        return True

    def free(self) -> Lease:
        shares = tuple(GpuShare(visible, parts / _WHOLE) for visible, parts in self._free_parts.items() if parts)
        return Lease(self.free_cpus, shares, self._free_bytes)

    def _count(self, lease: Lease, sign: int) -> None:
        self.free_cpus += sign * lease.cpus
        self._free_bytes += sign * lease.memory_bytes
        for share in lease.gpus:
            self._free_parts[share.visible] += sign * _parts(share)

    def _why_impossible(self, resources: Resources) -> str:
        """Explain why the machine can never provide `resources`; empty if it can."""
        total, where = self._total, self._where
        if resources.cpus > total.cpus:
            return f"{counted(resources.cpus, 'CPU')} asked for, {where} has {total.cpus}."
        if resources.memory_bytes > total.memory_bytes:
            return f"{resources.memory_bytes} bytes of memory asked for, {where} has {total.memory_bytes}."
        if _choose(resources, total.gpus) is None:
            gpus = resources.gpus
            request = f"{gpus} of a GPU" if isinstance(gpus, float) else counted(gpus, "GPU")
            return f"{request} asked for, {where} has {_describe(total.gpus)}."
        return ""


def max_concurrent(machine: Machine, resources: Resources) -> int:
    """Return the number of jobs with these resources that fit on an idle machine.

    >>> machine = Machine(cpus=8, memory_bytes=100)
    >>> max_concurrent(machine, Resources(cpus=3)), max_concurrent(machine, Resources(gpus=1))
    (2, 0)
    """
    limits = [machine.cpus // resources.cpus]
    if resources.memory_bytes:
        limits.append(machine.memory_bytes // resources.memory_bytes)
    if resources._cards:
        limits.append(len(machine.gpus) // resources._cards * (_WHOLE // resources._parts))
    return min(limits)


def _choose(resources: Resources, gpus: tuple[GpuShare, ...]) -> tuple[GpuShare, ...] | None:
    """Return the fullest GPUs with room, in the order of the machine if equal."""
    fitting = sorted((share for share in gpus if _parts(share) >= resources._parts), key=_parts)
    if len(fitting) < resources._cards:
        return None
    return tuple(GpuShare(share.visible, resources._parts / _WHOLE) for share in fitting[: resources._cards])


def _parts(share: GpuShare) -> int:
    # k / 1e6 * 1e6 may differ from k in the last bit; rounding restores k.
    return round(share.fraction * _WHOLE)


def _describe(gpus: tuple[GpuShare, ...]) -> str:
    if not gpus:
        return "none"
    if all(share.fraction == 1.0 for share in gpus):
        return str(len(gpus))
    return " and ".join(f"{share.fraction:g} of GPU {share.visible}" for share in gpus)
