"""Who holds which CPUs, GPUs and memory of a machine. Takes requests for resources, hands out leases, takes them back.

    Resources --take--> Ledger --> Lease     (None: not now; LeaseError: never)
    holder --give_back--> Ledger             (late or repeated: nothing happens)
    Lease --within--> Ledger                 for the jobs that a job starts inside its own lease

Knows nothing of processes, of time or of who waits: the pool asks again when something came back.
What is free is counted along with the table of leases, so that a lease costs the same whether ten are out or 10,000.

CPUs are counted, not named. GPUs are named by what goes into CUDA_VISIBLE_DEVICES. A fraction of a GPU is kept in
millionths, rounded down, so that n jobs of 1/n of a GPU always fit, whatever floats make of 1/n.

Invariants: no GPU is lent beyond 1.0 of it; a whole GPU is lent to one holder only; a holder has one lease; what is
free and what is lent are together all there is.
Packing: a fraction goes to the fullest GPU that still has room, so that whole GPUs stay whole as long as possible.
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
    """One GPU, or one MIG instance of a GPU, that jobs may be given.

    Args:
        index: the number nvidia-smi gives the card (PCI order); MIG instances of one card share it.
        uuid: `GPU-...` or `MIG-...`; unique.
        name: the product name, for people.
        memory_bytes: its memory; 0 where the driver does not tell.
        visible: what goes into CUDA_VISIBLE_DEVICES of a job that may use it.
        compute_capability: major and minor number; (0, 0) if the driver does not report them.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    visible: str
    compute_capability: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use of the machine it runs on; `notes` says, for people, what was odd while looking."""

    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What one job asks for.

    Args:
        cpus: number of CPUs, at least 1; a job gets as many threads.
        gpus: a whole number of GPUs, or a float below 1: that part of one GPU's memory, shared with other jobs.
        memory_bytes: host memory; 0 leaves it unstated.

    Raises:
        TypeError, ValueError: the values make no sense; the caller's mistake.

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
        """Millionths of a GPU asked for of each of `_cards` GPUs."""
        return max(1, math.floor(self.gpus * _WHOLE)) if isinstance(self.gpus, float) else _WHOLE

    @property
    def _cards(self) -> int:
        return 1 if isinstance(self.gpus, float) else self.gpus


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A GPU, or the part of its memory, that belongs to a lease; 1.0 is the whole GPU."""

    visible: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Lease:
    """What a holder was given; also the form in which a ledger says what is free."""

    cpus: int
    gpus: tuple[GpuShare, ...]
    memory_bytes: int

    @property
    def visible(self) -> str:
        """What goes into CUDA_VISIBLE_DEVICES of the job: empty when it has no GPU."""
        return ",".join(share.visible for share in self.gpus)


class Ledger:
    """The leases on one machine, or inside one lease.

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
        self._has(Lease(machine.cpus, shares, machine.memory_bytes))
        self._where = where

    @staticmethod
    def within(lease: Lease) -> "Ledger":
        """A ledger for the jobs that the holder of `lease` starts: they divide it among themselves.

        A job that holds half a GPU can give its own jobs parts of that half, and no whole GPU.
        """
        ledger = Ledger(Machine(lease.cpus, lease.memory_bytes), "the lease of the job that asks")
        ledger._has(lease)
        return ledger

    def _has(self, everything: Lease) -> None:
        self._all = everything
        self._cpus, self._memory_bytes = everything.cpus, everything.memory_bytes  # not lent
        self._left = {share.visible: _parts(share) for share in everything.gpus}

    def check(self, resources: Resources) -> None:
        """Return if `resources` can be met when everything is free.

        Raises:
            LeaseError: it can never be met; says what there is.
        """
        if problem := self._never(resources):
            raise LeaseError(
                f"{problem} The job would wait for ever, so it was refused: ask for less, or start it where there is "
                f"more (`fanwise devices` lists what was found and why)."
            )

    def take(self, resources: Resources, holder: Hashable) -> Lease | None:
        """Lend what `resources` asks for, or return None if it is not free now.

        Raises:
            LeaseError: it will never be free, because there is not that much.
        """
        assert holder not in self.leases, f"{holder!r} already holds {self.leases.get(holder)}"
        self.check(resources)
        shares = self._shares_now(resources)
        if shares is None:
            return None
        lease = Lease(resources.cpus, shares, resources.memory_bytes)
        self.leases[holder] = lease
        self._count(lease, -1)
        return lease

    def has_room(self, resources: Resources) -> bool:
        """Whether `take` would lend it now."""
        return self._shares_now(resources) is not None

    def _shares_now(self, resources: Resources) -> tuple[GpuShare, ...] | None:
        """The GPUs it would get, None when something of it is not free."""
        free = self.free()
        if resources.cpus > free.cpus or resources.memory_bytes > free.memory_bytes:
            return None
        return _choose(resources, free.gpus)

    def give_back(self, holder: Hashable) -> bool:
        """Take the lease of `holder` back; False if it has none (a late or repeated message)."""
        lease = self.leases.pop(holder, None)
        if lease is None:
            return False
        self._count(lease, 1)
        return True

    def free(self) -> Lease:
        """What is not lent now; GPUs of which nothing is left are not listed."""
        shares = tuple(GpuShare(visible, parts / _WHOLE) for visible, parts in self._left.items() if parts)
        return Lease(self._cpus, shares, self._memory_bytes)

    def _count(self, lease: Lease, sign: int) -> None:
        """It is lent (-1) or comes back (1)."""
        self._cpus += sign * lease.cpus
        self._memory_bytes += sign * lease.memory_bytes
        for share in lease.gpus:
            self._left[share.visible] += sign * _parts(share)

    def _never(self, resources: Resources) -> str:
        """Why `resources` can never be met; empty if it can."""
        have, where = self._all, self._where
        if resources.cpus > have.cpus:
            return f"{counted(resources.cpus, 'CPU')} asked for, {where} has {have.cpus}."
        if resources.memory_bytes > have.memory_bytes:
            return f"{resources.memory_bytes} bytes of memory asked for, {where} has {have.memory_bytes}."
        if _choose(resources, have.gpus) is None:
            gpus = resources.gpus
            asked = f"{gpus} of a GPU" if isinstance(gpus, float) else counted(gpus, "GPU")
            return f"{asked} asked for, {where} has {_describe(have.gpus)}."
        return ""


def places(machine: Machine, resources: Resources) -> int:
    """How many jobs that need this the machine has room for when everything is free.

    >>> places(Machine(cpus=8, memory_bytes=100), Resources(cpus=3)), places(Machine(8, 100), Resources(gpus=1))
    (2, 0)
    """
    room = [machine.cpus // resources.cpus]
    if resources.memory_bytes:
        room.append(machine.memory_bytes // resources.memory_bytes)
    if resources._cards:
        room.append(len(machine.gpus) // resources._cards * (_WHOLE // resources._parts))
    return min(room)


def check_fits(machine: Machine, resources: Resources, where: str = "this pool") -> None:
    """Return if the machine can meet `resources` when everything is free; else LeaseError, which says what there is."""
    Ledger(machine, where).check(resources)


def _choose(resources: Resources, gpus: tuple[GpuShare, ...]) -> tuple[GpuShare, ...] | None:
    """The GPUs for `resources` among those free: the fullest that fit, in the order of the machine if equal."""
    fitting = sorted((share for share in gpus if _parts(share) >= resources._parts), key=_parts)
    if len(fitting) < resources._cards:
        return None
    return tuple(GpuShare(share.visible, resources._parts / _WHOLE) for share in fitting[: resources._cards])


def _parts(share: GpuShare) -> int:
    # k / 1e6 * 1e6 may miss k by one unit in the last place; rounding brings back exactly k.
    return round(share.fraction * _WHOLE)


def _describe(gpus: tuple[GpuShare, ...]) -> str:
    if not gpus:
        return "none"
    if all(share.fraction == 1.0 for share in gpus):
        return str(len(gpus))
    return " and ".join(f"{share.fraction:g} of GPU {share.visible}" for share in gpus)
