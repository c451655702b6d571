"""The hosts of a pool by what is free on them, so that a job finds its host without a look at all of them.

    changed(host) --> hosts with the same free CPUs and parts of GPUs are one group, in the order in which they joined
    first(needs)  --> groups by rank, best first: the first that has room, and in it the first host

Hosts of a group answer alike but for memory, which is a number of each host's own. A pool has as many groups as there
are different answers to "what is free", some tens, however many hosts there are; to move a host to another group takes
a binary search. Only a job that states memory may look at more than one host of a group.

Invariant: a host is in the group of what is free on it now, or is not here.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from ..leases import Ledger, Machine, Resources, places


class _Free(NamedTuple):
    """What the hosts of a group have, in order of rank: without GPUs first, then with most CPUs free."""

    has_gpus: bool
    taken_cpus: int  # free ones, negated: the least is the best
    gpus: tuple[float, ...]  # what is left of each GPU of which something is left


@dataclass(frozen=True, slots=True, order=True)
class FreeHost:
    """A host and when it joined, as a number; of equals the first is taken."""

    number: int
    name: str = field(compare=False)
    machine: Machine = field(compare=False)
    ledger: Ledger = field(compare=False)


@dataclass(slots=True)
class FreeHosts:
    """See the module."""

    _groups: dict[_Free, list[FreeHost]] = field(default_factory=dict)
    _by_rank: list[_Free] = field(default_factory=list)
    _group_of: dict[str, _Free] = field(default_factory=dict)

    def changed(self, host: FreeHost) -> None:
        """It has joined, or something was lent or given back."""
        free = host.ledger.free()
        gpus = tuple(sorted(share.fraction for share in free.gpus))
        group = _Free(bool(host.machine.gpus), -free.cpus, gpus)
        if self._group_of.get(host.name) == group:
            return
        self.left(host)
        if group not in self._groups:
            self._groups[group] = []
            insort(self._by_rank, group)
        insort(self._groups[group], host)
        self._group_of[host.name] = group

    def left(self, host: FreeHost) -> None:
        """It is not here any more. Of one that is not here: nothing happens."""
        group = self._group_of.pop(host.name, None)
        if group is None:
            return
        hosts = self._groups[group]
        del hosts[bisect_left(hosts, host)]
        if not hosts:
            del self._groups[group]
            del self._by_rank[bisect_left(self._by_rank, group)]

    def first(self, needs: Resources) -> FreeHost | None:
        """Where most CPUs are free, and without GPUs if none are needed, as long as there is room; None: nowhere."""
        best: FreeHost | None = None
        best_rank: tuple[bool, int] | None = None
        for group in self._by_rank:
            if best_rank is not None and group[:2] != best_rank:
                break
            if -group.taken_cpus < needs.cpus or (needs.gpus and not group.gpus):
                continue
            found = _first_with_room(self._groups[group], needs)
            if found is not None and (best is None or found < best):
                best, best_rank = found, group[:2]
        return best


def _first_with_room(hosts: list[FreeHost], needs: Resources) -> FreeHost | None:
    """Of one group. All have the same CPUs and GPUs free: when these are too few on one, they are on all."""
    if not needs.memory_bytes:
        return hosts[0] if hosts[0].ledger.has_room(needs) else None
    for host in hosts:
        if host.ledger.free().memory_bytes >= needs.memory_bytes:
            return host if host.ledger.has_room(needs) else None
    return None


@dataclass(slots=True)
class Shapes:
    """The kinds of machines that are here, to say whether any of them could ever run a job.

    Machines with the same CPUs and number of GPUs are one kind, for which the one with most memory speaks.
    """

    _kinds: dict[tuple[int, int], list[tuple[int, str, Machine]]] = field(default_factory=dict)

    def join(self, name: str, machine: Machine) -> None:
        insort(
            self._kinds.setdefault(_kind(machine), []), (machine.memory_bytes, name, machine), key=lambda one: one[:2]
        )

    def leave(self, name: str, machine: Machine) -> None:
        kind = self._kinds[_kind(machine)]
        del kind[bisect_left(kind, (machine.memory_bytes, name), key=lambda one: one[:2])]
        if not kind:
            del self._kinds[_kind(machine)]

    def can_run(self, needs: Resources) -> bool:
        """When everything is free."""
        return any(places(machines[-1][2], needs) for machines in self._kinds.values())


def _kind(machine: Machine) -> tuple[int, int]:
    return machine.cpus, len(machine.gpus)
