"""Which host of a pool runs which job: first come, first served, each on one machine.

    add(job, needs)  --> waits --place()--> Placed(job, host)   takes part of that host's ledger
    release(job)                                                gives it back
    join(host, machine), leave(host) -> the jobs it had

The first job that waits is never passed by, so a big one gets its turn however many small ones come. What it needs may
be on no machine that is here now, as when its node was lost: then `stuck` says so, and the engine decides how long to
wait. A job goes where most CPUs are free, and one that needs no GPU goes to a machine without any while there is room.
Jobs of one group, as the processes of a training, go to where the others of it are, as long as there is room.
Knows nothing of links, processes, time or Ray.

Invariant: a job waits, or has exactly one host, or is not here.
"""

from collections import deque
from dataclasses import dataclass, field

from ..leases import Ledger, Machine, Resources, places


@dataclass(frozen=True, slots=True)
class Placed:
    """Order: `job` runs on `host`."""

    job: int
    host: str


@dataclass(slots=True)
class _Host:
    machine: Machine
    ledger: Ledger


@dataclass(slots=True)
class Placement:
    """See the module.

    >>> placement = Placement()
    >>> placement.join("a", Machine(cpus=2, memory_bytes=0)), placement.add(7, Resources(cpus=2))
    (None, None)
    >>> placement.place(), placement.leave("a")
    ([Placed(job=7, host='a')], [7])
    """

    hosts: dict[str, _Host] = field(default_factory=dict)
    where: dict[int, str] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    needs: dict[int, Resources] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)

    def join(self, host: str, machine: Machine) -> None:
        """A host is there, with nothing running."""
        assert host not in self.hosts, f"{host} has joined already"
        self.hosts[host] = _Host(machine, Ledger(machine, host))

    def leave(self, host: str) -> list[int]:
        """A host is gone; the jobs that it had, which are here no more. Of one that is not here: none."""
        if self.hosts.pop(host, None) is None:
            return []
        jobs = [job for job, place in self.where.items() if place == host]
        for job in jobs:
            del self.where[job], self.needs[job]
            self.groups.pop(job, None)
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
        host = self.where.pop(job, None)
        if host is not None:
            del self.needs[job]
            self.groups.pop(job, None)
            self.hosts[host].ledger.give_back(job)

    def place(self) -> list[Placed]:
        """Give jobs that wait their hosts, as many as can begin now."""
        placed = []
        while self.waiting and (host := self._host_for(self.waiting[0])) is not None:
            job = self.waiting.popleft()
            lease = self.hosts[host].ledger.take(self.needs[job], job)
            assert lease is not None, "it was free"
            self.where[job] = host
            placed.append(Placed(job, host))
        return placed

    @property
    def stuck(self) -> int | None:
        """The first job that waits, if no machine here can ever run it."""
        if not self.waiting or any(places(host.machine, self.needs[self.waiting[0]]) for host in self.hosts.values()):
            return None
        return self.waiting[0]

    def _host_for(self, job: int) -> str | None:
        needs, group = self.needs[job], self.groups.get(job)
        near = {self.where.get(other) for other, its in self.groups.items() if its == group}
        best: tuple[bool, bool, int] | None = None
        chosen = None
        for name, host in self.hosts.items():
            if not places(host.machine, needs) or not host.ledger.has_room(needs):
                continue
            rank = (name in near, bool(needs.gpus) or not host.machine.gpus, host.ledger.free().cpus)
            if best is None or rank > best:
                best, chosen = rank, name
        return chosen
