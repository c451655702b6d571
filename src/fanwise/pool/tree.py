"""The tree of jobs: who started whom, what is known of each job's end, who must be ended, who may be forgotten.

    facts:  add, outcome, reaped      (any order, any number of times)
    orders: End(job)        end its process tree if it is not gone yet; given once a job
            Finished(job)   nothing of it is left: its lease can come back, its slot is free

A job that another job started is forked by the warm process like every other, so the operating system knows nothing
of their kinship; this table does. Knows nothing of processes, links, leases or time, nor how hard an end must be.

Rules:
* When a job ends, for whatever reason, everything below it that is not reaped must end too.
* Orders go from the outside in, parents before their children, elder before younger, also among cousins: a parent that
  saw its child die first could take that for a failure, report it, or start the child again.
* A job is finished only when it is reaped, its outcome is known (it may still lie unread in the socket after the
  process is gone), and every job below it is finished. So inner jobs finish first, and a lease comes back only when
  nothing runs inside it any more.
* A finished job is forgotten. Facts about jobs that are not in the table say nothing new and are dropped. Numbers of
  jobs are never used twice, and the younger has the higher.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class End:
    """Order: end this job and its process tree."""

    job: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Order: give this job's lease back and forget it; nothing of it is left."""

    job: int


Order = End | Finished


@dataclass(slots=True)
class Job:
    """What is known of one job. `over`: its outcome is known; `ending`: it was told to end."""

    parent: int | None
    children: list[int] = field(default_factory=list)
    ending: bool = False
    over: bool = False
    reaped: bool = False


@dataclass(slots=True)
class JobTree:
    """All jobs that are not finished.

    >>> tree = JobTree()
    >>> tree.add(0, None), tree.add(1, 0)
    ([], [])
    >>> tree.outcome(0)
    [End(job=1)]
    >>> tree.reaped(0), tree.reaped(1), tree.outcome(1)
    ([], [], [Finished(job=1), Finished(job=0)])
    """

    jobs: dict[int, Job] = field(default_factory=dict)

    def add(self, job: int, parent: int | None) -> list[Order]:
        """A job was started, by the user (`parent` None) or by another job.

        Under a parent that is ending, over or already forgotten it is told to end at once: nothing may outlive
        the job that started it.
        """
        if job in self.jobs:
            return []
        above = None if parent is None else self.jobs.get(parent)
        self.jobs[job] = Job(parent if above else None)
        if above:
            above.children.append(job)
        welcome = parent is None or (above is not None and not (above.ending or above.over or above.reaped))
        return [] if welcome else self._end([job])

    def outcome(self, job: int) -> list[Order]:
        """Its result or failure is known. Its process is expected to exit by itself, so it gets no order."""
        if not (known := self.jobs.get(job)):
            return []
        known.over = True
        return self._end(known.children) + self._finish(job)

    def reaped(self, job: int) -> list[Order]:
        """Its process and everything its process started are gone."""
        if not (known := self.jobs.get(job)):
            return []
        known.reaped = True
        return self._end(known.children) + self._finish(job)

    def _breadth_first(self, roots: list[int]) -> list[int]:
        found: list[int] = []
        level = list(roots)
        while level:
            found += level
            level = sorted(child for job in level for child in self.jobs[job].children)
        return found

    def _end(self, roots: list[int]) -> list[Order]:
        orders: list[Order] = []
        for job in self._breadth_first(roots):
            known = self.jobs[job]
            if not known.ending and not known.reaped:
                known.ending = True
                orders.append(End(job))
        return orders

    def _finish(self, job: int) -> list[Order]:
        """Forget the job if nothing of it is left, then look at its parent, which may have waited only for it."""
        orders: list[Order] = []
        at: int | None = job
        while at is not None:
            known = self.jobs[at]
            if not (known.reaped and known.over) or known.children:
                break
            del self.jobs[at]
            if known.parent is not None:
                self.jobs[known.parent].children.remove(at)
            orders.append(Finished(at))
            at = known.parent
        return orders
