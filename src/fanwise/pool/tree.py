"""The tree of jobs: which job submitted which, and which must be ended or can be forgotten.

    events:  add, outcome, reaped      in any order, any number of times
    orders:  End(job)       end its process tree; given at most once per job
             Finished(job)  nothing of it is left: return its lease

The warm process forks the jobs of a job like all others, so only this table knows how they are related. Pure: no
processes, links, leases or time.

Rules:
* When a job ends for any reason, all unreaped jobs below it are ended.
* Orders go from the top down, and from older to younger jobs. A parent that saw its child die first could report that
  as a failure, or start the child again.
* A job is finished when it is reaped, its outcome is known (it may be unread when the process is gone), and all jobs
  below it are finished. So a lease is returned only when nothing runs inside it.
* Finished jobs are forgotten, and events of unknown jobs are ignored. Ids are never reused and increase.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class End:
    """Order: end this job and its process tree."""

    job: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Order: return this job's lease and forget it."""

    job: int


Order = End | Finished


@dataclass(slots=True)
class Job:
    """State of one job.

    Attributes:
        ending: it was ordered to end.
        over: its outcome is known.
        reaped: its process and everything that it started are reaped.
    """

    parent: int | None
    children: list[int] = field(default_factory=list)
    ending: bool = False
    over: bool = False
    reaped: bool = False


@dataclass(slots=True)
class JobTree:
    """All unfinished jobs.

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
        """Add a job of the user (`parent` None) or of another job.

        A job whose parent is ending, over or unknown is ended at once, because no job may outlive its parent.
        """
        if job in self.jobs:
            return []
        above = None if parent is None else self.jobs.get(parent)
        self.jobs[job] = Job(parent if above else None)
        if above:
            above.children.append(job)
        may_run = parent is None or (above is not None and not (above.ending or above.over or above.reaped))
        return [] if may_run else self._end([job])

    def outcome(self, job: int) -> list[Order]:
        """Record that the outcome of a job is known. Its own process exits without an order."""
        if not (known := self.jobs.get(job)):
            return []
        known.over = True
        return self._end(known.children) + self._finish(job)

    def reaped(self, job: int) -> list[Order]:
        """Record that a job's process and everything that it started are reaped."""
        if not (known := self.jobs.get(job)):
            return []
        known.reaped = True
        return self._end(known.children) + self._finish(job)

    def _breadth_first(self, roots: list[int]) -> list[int]:
        jobs: list[int] = []
        level = list(roots)
        while level:
            jobs += level
            level = sorted(child for job in level for child in self.jobs[job].children)
        return jobs

    def _end(self, roots: list[int]) -> list[Order]:
        orders: list[Order] = []
        for job in self._breadth_first(roots):
            known = self.jobs[job]
            if not known.ending and not known.reaped:
                known.ending = True
                orders.append(End(job))
        return orders

    def _finish(self, job: int) -> list[Order]:
        """Forget the job if it is finished, then its parent, which may have waited only for this job."""
        orders: list[Order] = []
        current: int | None = job
        while current is not None:
            known = self.jobs[current]
            if not (known.reaped and known.over) or known.children:
                break
            del self.jobs[current]
            if known.parent is not None:
                self.jobs[known.parent].children.remove(current)
            orders.append(Finished(current))
            current = known.parent
        return orders
