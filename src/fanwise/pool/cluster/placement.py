"""Assigns jobs to the hosts of a pool: first in, first out, each job on one host. Pure.

The first job in the queue is never passed over, so large jobs do not starve. If no present machine can ever run it, for
example because a node was lost, it is `stuck`, and the engine decides how long to wait. A job goes to the host with the
most free CPUs, and a job without GPUs to a machine without GPUs if one has room. Jobs of one group, such as the
processes of a training, go to the same hosts if there is room.

Invariant: a job is queued, or has exactly one host, or is unknown.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from ..leases import Ledger, Machine, Resources, max_concurrent


@dataclass(frozen=True, slots=True)
class Placed:
    """An action: run `job` on `host`."""

    job: int
    host: str


@dataclass(frozen=True, slots=True)
class Host:
    """A host. `number`: the order in which hosts joined."""

    number: int
    name: str
    machine: Machine
    ledger: Ledger


@dataclass(slots=True)
class JobPlacement:
    """Queued jobs, and the jobs of all hosts.

    >>> placement = JobPlacement()
    >>> placement.join("a", Machine(cpus=2, memory_bytes=0)), placement.add(7, Resources(cpus=2))
    (None, None)
    >>> placement.place(), placement.leave("a")
    ([Placed(job=7, host='a')], [7])
    """

    hosts: dict[str, Host] = field(default_factory=dict)
    host_of: dict[int, str] = field(default_factory=dict)
    queue: deque[int] = field(default_factory=deque)
    needs: dict[int, Resources] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    _hosts_of: dict[str, Counter[str]] = field(default_factory=dict)  # by group: number of its jobs per host
    _num_joined: int = 0

    def join(self, host: str, machine: Machine) -> None:
        assert host not in self.hosts, f"{host} has joined already"
        self._num_joined += 1
        self.hosts[host] = Host(self._num_joined, host, machine, Ledger(machine, host))

    def leave(self, host: str) -> list[int]:
        """Remove a host, if it is known. Return its jobs, which are removed, too."""
        lost = self.hosts.pop(host, None)
        if lost is None:
            return []
        jobs = [cast(int, job) for job in lost.ledger.leases]
        for job in jobs:
            self._forget(job, host)
        return jobs

    def add(self, job: int, needs: Resources, group: str | None = None) -> None:
        assert job not in self.needs, f"job {job} is known already"
        self.needs[job] = needs
        if group is not None:
            self.groups[job] = group
        self.queue.append(job)

    def withdraw(self, job: int) -> bool:
        """Remove a queued job. Return False if it is not queued."""
        if job not in self.queue:
            return False
        self.queue.remove(job)
        del self.needs[job]
        self.groups.pop(job, None)
        return True

    def release(self, job: int) -> None:
        """Return the lease of a job, if it has one."""
        host = self.host_of.get(job)
        if host is not None:
            self._forget(job, host)
            self.hosts[host].ledger.give_back(job)

    def place(self) -> list[Placed]:
        """Assign queued jobs to hosts until the first one does not fit. Takes time linear in the number of hosts."""
        placed = []
        while self.queue and (host := self._best_host(self.queue[0])) is not None:
            job = self.queue.popleft()
            lease = host.ledger.take(self.needs[job], job)
            assert lease is not None, "it was free"
            self.host_of[job] = host.name
            if (group := self.groups.get(job)) is not None:
                self._hosts_of.setdefault(group, Counter())[host.name] += 1
            placed.append(Placed(job, host.name))
        return placed

    @property
    def stuck(self) -> int | None:
        """The first queued job, if no present machine can ever run it."""
        if not self.queue:
            return None
        needs = self.needs[self.queue[0]]
        is_possible = any(max_concurrent(host.machine, needs) for host in self.hosts.values())
        return None if is_possible else self.queue[0]

    def _best_host(self, job: int) -> Host | None:
        needs, group = self.needs[job], self.groups.get(job)
        near = [self.hosts[name] for name in self._hosts_of.get(group or "", ())]
        return _best(near, needs) or _best(self.hosts.values(), needs)

    def _forget(self, job: int, host: str) -> None:
        del self.host_of[job], self.needs[job]
        group = self.groups.pop(job, None)
        if group is not None:
            hosts = self._hosts_of[group]
            hosts[host] -= 1
            if not hosts[host]:
                del hosts[host]
            if not hosts:
                del self._hosts_of[group]


def _best(hosts: Iterable[Host], needs: Resources) -> Host | None:
    # The first comparison skips full hosts, which are most of a large cluster.
    with_room = [host for host in hosts if host.ledger.free_cpus >= needs.cpus and host.ledger.has_room(needs)]

    def rank(host: Host) -> tuple[bool, int, int]:
        has_idle_gpus = not needs.gpus and bool(host.machine.gpus)
        return has_idle_gpus, -host.ledger.free_cpus, host.number

    return min(with_room, key=rank, default=None)
