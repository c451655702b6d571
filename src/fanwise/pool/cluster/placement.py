"""Which host of a pool runs which job: first come, first served, each on one machine.

    add(job, needs)  --> waits --place()--> Placed(job, host)   takes part of that host's ledger
    release(job)                                                gives it back
    join(host, machine), leave(host) -> the jobs it had

The first job that waits is never passed by, so a big one gets its turn however many small ones come. What it needs may
be on no machine that is here now, as when its node was lost: then `stuck` says so, and the engine decides how long to
wait. A job goes where most CPUs are free, and one that needs no GPU goes to a machine without any while there is room.
Jobs of one group, as the processes of a training, go to where the others of it are, as long as there is room.
What a job costs does not grow with the hosts: `free_hosts` finds one. Knows nothing of links, processes, time or Ray.

Invariant: a job waits, or has exactly one host, or is not here.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import cast

from ..leases import Ledger, Machine, Resources
from .free_hosts import FreeHost, FreeHosts, Shapes


@dataclass(frozen=True, slots=True)
class Placed:
    """Order: `job` runs on `host`."""

    job: int
    host: str


@dataclass(slots=True)
class JobPlacement:
    """See the module.

    >>> placement = JobPlacement()
    >>> placement.join("a", Machine(cpus=2, memory_bytes=0)), placement.add(7, Resources(cpus=2))
    (None, None)
    >>> placement.place(), placement.leave("a")
    ([Placed(job=7, host='a')], [7])
    """

    hosts: dict[str, FreeHost] = field(default_factory=dict)
    where: dict[int, str] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    needs: dict[int, Resources] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    _free: FreeHosts = field(default_factory=FreeHosts)
    _shapes: Shapes = field(default_factory=Shapes)
    _hosts_of: dict[str, Counter[str]] = field(default_factory=dict)  # by group: how many of its jobs are on which host
    _num_joined: int = 0

    def join(self, host: str, machine: Machine) -> None:
        """A host is there, with nothing running."""
        assert host not in self.hosts, f"{host} has joined already"
        self._num_joined += 1
        joined = self.hosts[host] = FreeHost(self._num_joined, host, machine, Ledger(machine, host))
        self._free.changed(joined)
        self._shapes.join(host, machine)

    def leave(self, host: str) -> list[int]:
        """A host is gone; the jobs that it had, which are here no more. Of one that is not here: none."""
        lost = self.hosts.pop(host, None)
        if lost is None:
            return []
        self._free.left(lost)
        self._shapes.leave(host, lost.machine)
        jobs = [cast(int, job) for job in lost.ledger.leases]
        for job in jobs:
            self._forget(job, host)
        return jobs

    def add(self, job: int, needs: Resources, group: str | None = None) -> None:
        """The last of those that wait."""
        assert job not in self.needs, f"job {job} is here already"
        self.needs[job] = needs
        if group is not None:
            self.groups[job] = group
        self.waiting.append(job)

    def withdraw(self, job: int) -> bool:
        """A job that waits does not any more; False when it does not wait."""
        if job not in self.waiting:
            return False
        self.waiting.remove(job)
        del self.needs[job]
        self.groups.pop(job, None)
        return True

    def release(self, job: int) -> None:
        """It has ended and nothing of it is left. Late or repeated: nothing happens."""
        host = self.where.get(job)
        if host is not None:
            self._forget(job, host)
            self.hosts[host].ledger.give_back(job)
            self._free.changed(self.hosts[host])

    def place(self) -> list[Placed]:
        """Give jobs that wait their hosts, as many as can begin now."""
        placed = []
        while self.waiting and (host := self._host_for(self.waiting[0])) is not None:
            job = self.waiting.popleft()
            lease = host.ledger.take(self.needs[job], job)
            assert lease is not None, "it was free"
            self._free.changed(host)
            self.where[job] = host.name
            if (group := self.groups.get(job)) is not None:
                self._hosts_of.setdefault(group, Counter())[host.name] += 1
            placed.append(Placed(job, host.name))
        return placed

    @property
    def stuck(self) -> int | None:
        """The first job that waits, if no machine here can ever run it."""
        if not self.waiting or self._shapes.can_run(self.needs[self.waiting[0]]):
            return None
        return self.waiting[0]

    def _host_for(self, job: int) -> FreeHost | None:
        needs, group = self.needs[job], self.groups.get(job)
        if group in self._hosts_of:
            near = [self.hosts[name] for name in self._hosts_of[group]]
            with_room = [host for host in near if host.ledger.has_room(needs)]
            if with_room:
                return min(with_room, key=lambda host: _rank(host, needs))
        return self._free.first(needs)

    def _forget(self, job: int, host: str) -> None:
        """A job that had this host is here no more."""
        del self.where[job], self.needs[job]
        group = self.groups.pop(job, None)
        if group is not None:
            hosts = self._hosts_of[group]
            hosts[host] -= 1
            if not hosts[host]:
                del hosts[host]
            if not hosts:
                del self._hosts_of[group]


def _rank(host: FreeHost, needs: Resources) -> tuple[bool, int, int]:
    """The least is the best."""
    return not needs.gpus and bool(host.machine.gpus), -host.ledger.free().cpus, host.number
