"""The tree of jobs against a model that recomputes everything from the facts it was told."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fanwise.pool.tree import End, Finished, JobTree, Order


def family() -> JobTree:
    """0 has 1 and 2, 1 has 3; 4 stands alone."""
    tree = JobTree()
    for job, parent in [(0, None), (1, 0), (2, 0), (3, 1), (4, None)]:
        assert tree.add(job, parent) == []
    return tree


def test_a_job_that_ends_takes_everything_below_it_along_from_the_outside_in() -> None:
    assert family().outcome(0) == [End(1), End(2), End(3)]
    assert family().reaped(0) == [End(1), End(2), End(3)]


def test_an_end_is_ordered_once() -> None:
    tree = family()
    assert tree.outcome(1) == [End(3)]
    assert tree.outcome(0) == [End(1), End(2)]
    assert tree.outcome(0) + tree.outcome(0) + tree.outcome(1) == []


def test_what_is_reaped_needs_no_end() -> None:
    tree = family()
    tree.reaped(1)
    assert tree.outcome(0) == [End(2)]


def test_a_job_is_finished_when_it_is_reaped_and_its_outcome_known() -> None:
    tree = family()
    assert tree.reaped(4) == []
    assert tree.outcome(4) == [Finished(4)]
    assert 4 not in tree.jobs
    tree = family()
    assert tree.outcome(4) == []
    assert tree.reaped(4) == [Finished(4)]


def test_inner_jobs_finish_before_the_job_they_belong_to() -> None:
    tree = family()
    tree.outcome(0)
    assert tree.reaped(0) == []
    tree.outcome(3), tree.outcome(1), tree.outcome(2)
    assert tree.reaped(1) == []
    assert tree.reaped(2) == [Finished(2)]
    assert tree.reaped(3) == [Finished(3), Finished(1), Finished(0)]
    assert set(tree.jobs) == {4}


def test_a_job_started_by_one_that_ends_is_ended_at_once() -> None:
    tree = family()
    tree.outcome(4)
    assert tree.add(5, 4) == [End(5)]
    tree.outcome(0)
    assert tree.add(6, 3) == [End(6)]
    assert tree.add(7, 99) == [End(7)]
    assert tree.jobs[7].ending


def test_facts_about_unknown_jobs_are_dropped() -> None:
    tree = JobTree()
    assert tree.outcome(1) + tree.reaped(1) == []
    assert tree.jobs == {}


def test_among_cousins_the_elder_is_ended_first() -> None:
    tree = JobTree()
    for job, parent in ((0, None), (1, 0), (2, 0), (3, 2), (4, 1)):
        tree.add(job, parent)
    assert tree.outcome(0) == [End(1), End(2), End(3), End(4)]


# -- all orders of facts -----------------------------------------------------------------------------------------------


@dataclass
class Known:
    """What the model was told of one job."""

    parent: int | None
    facts: set[str] = field(default_factory=set)
    ended: bool = False


class TreeMachine(RuleBasedStateMachine):
    """The model: after each fact, look at every job and ask anew whether it must end, and whether it is finished."""

    make: type[JobTree] = JobTree

    def __init__(self) -> None:
        super().__init__()
        self.tree = self.make()
        self.jobs: dict[int, Known] = {}
        self.number = 0

    def ancestors(self, job: int) -> list[int]:
        parent = self.jobs[job].parent
        return [] if parent is None else [parent, *self.ancestors(parent)]

    def must_end(self, job: int) -> bool:
        own = self.jobs[job].facts
        above = [self.jobs[other].facts for other in self.ancestors(job)]
        return "reaped" not in own and ("orphan" in own or any(above))

    def is_finished(self, job: int) -> bool:
        facts = self.jobs[job].facts
        nothing_below = all(known.parent != job for known in self.jobs.values())
        return {"reaped", "outcome"} <= facts and nothing_below

    def expect(self, orders: list[Order]) -> None:
        ends = [job for job, known in self.jobs.items() if self.must_end(job) and not known.ended]
        for job in ends:
            self.jobs[job].ended = True
        ends.sort(key=lambda job: (len(self.ancestors(job)), job))
        finished = []
        while ready := [job for job in self.jobs if self.is_finished(job)]:
            finished += ready
            for job in ready:
                del self.jobs[job]
        assert orders == [*map(End, ends), *map(Finished, finished)]

    def some_job(self) -> st.SearchStrategy[int]:
        """Any number so far, more often one that is there."""
        there = st.sampled_from(sorted(self.jobs)) if self.jobs else st.nothing()
        return there | st.integers(0, self.number)

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        parent = data.draw(st.none() | self.some_job())
        job = self.number
        self.number += 1
        parent = None if parent == job else parent
        known = parent is None or parent in self.jobs
        self.jobs[job] = Known(parent if known else None, set() if known else {"orphan"})
        self.expect(self.tree.add(job, parent))

    @rule(data=st.data(), under_another=st.booleans())
    def add_again(self, data: st.DataObject, under_another: bool) -> None:
        job = data.draw(st.integers(0, self.number))
        if job in self.jobs:
            self.expect(self.tree.add(job, None if under_another else self.jobs[job].parent))

    @rule(data=st.data(), fact=st.sampled_from(["outcome", "reaped"]))
    def tell(self, data: st.DataObject, fact: str) -> None:
        job = data.draw(self.some_job())
        if job in self.jobs:
            self.jobs[job].facts.add(fact)
        self.expect(getattr(self.tree, fact)(job))

    @invariant()
    def the_whole_state_is_the_models(self) -> None:
        assert set(self.tree.jobs) == set(self.jobs)
        for number, known in self.jobs.items():
            job = self.tree.jobs[number]
            assert job.parent == known.parent
            assert job.children == [other for other, one in self.jobs.items() if one.parent == number]
            assert (job.over, job.reaped) == ("outcome" in known.facts, "reaped" in known.facts)
            assert job.ending == known.ended


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=80, stateful_step_count=40)
