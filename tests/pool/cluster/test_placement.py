"""Placement of jobs on hosts in the order of submission."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanwise.pool import Machine
from fanwise.pool.cluster.placement import JobPlacement, Placed
from fanwise.pool.leases import Gpu, Resources, max_concurrent

SMALL, BIG = Resources(cpus=1), Resources(cpus=4)


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{index}", "", 0, f"GPU-{index}") for index in range(count))


def test_jobs_go_where_most_cpus_are_free() -> None:
    placement = JobPlacement()
    placement.join("a", Machine(2, 0))
    placement.join("b", Machine(4, 0))
    for job in range(4):
        placement.add(job, SMALL)
    assert [placed.host for placed in placement.place()] == ["b", "b", "a", "b"]


def test_a_job_without_gpus_leaves_those_to_others_while_it_can() -> None:
    placement = JobPlacement()
    placement.join("with", Machine(8, 0, gpus(1)))
    placement.join("without", Machine(1, 0))
    for job in range(2):
        placement.add(job, SMALL)
    assert [placed.host for placed in placement.place()] == ["without", "with"]
    placement.add(2, Resources(gpus=1))
    assert placement.place() == [Placed(2, "with")]


def test_jobs_of_one_group_fill_one_host_before_the_next() -> None:
    placement = JobPlacement()
    placement.join("a", Machine(2, 0))
    placement.join("b", Machine(4, 0))
    for job, group in enumerate([None, "g", "g", "g", "g", "h"]):
        placement.add(job, SMALL, group)
    assert [placed.host for placed in placement.place()] == ["b", "b", "b", "b", "a", "a"]
    placement.leave("a")
    for job in range(4):
        placement.release(job)
    assert placement.groups == {}


def test_what_only_a_lost_host_could_run_is_stuck_until_such_a_host_comes() -> None:
    placement = JobPlacement()
    placement.join("a", Machine(4, 0))
    placement.join("b", Machine(1, 0))
    placement.add(1, BIG)
    assert placement.stuck is None
    placement.leave("a")
    assert placement.place() == [] and placement.stuck == 1
    placement.join("c", Machine(4, 0))
    assert placement.stuck is None and placement.place() == [Placed(1, "c")]


# -- any order of everything -------------------------------------------------------------------------------------------

NEEDS = st.builds(
    Resources,
    cpus=st.integers(1, 3),
    gpus=st.sampled_from([0, 0, 1, 0.5]),
    memory_bytes=st.sampled_from([0, 0, 10, 20]),
)
MACHINES = st.builds(
    lambda cpus, memory, cards: Machine(cpus, memory, gpus(cards)),
    cpus=st.integers(1, 4),
    memory=st.sampled_from([0, 20, 30]),
    cards=st.integers(0, 2),
)


class PlacementMachine(RuleBasedStateMachine):
    """Any operations in any order, compared with plain sets."""

    make: Callable[[], Any] = JobPlacement  # Any: broken ones too

    def __init__(self) -> None:
        super().__init__()
        self.placement = type(self).make()
        self.machines: dict[str, Machine] = {}
        self.waiting: list[tuple[int, Resources]] = []
        self.running: dict[int, tuple[str, Resources]] = {}
        self.number = 0

    @rule(machine=MACHINES)
    def join(self, machine: Machine) -> None:
        self.number += 1
        self.machines[f"host-{self.number}"] = machine
        self.placement.join(f"host-{self.number}", machine)
        self._place()

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(sorted(self.machines)))
        del self.machines[host]
        expected = {job for job, (place, _) in self.running.items() if place == host}
        left = self.placement.leave(host)
        assert set(left) == expected
        self.running = {job: place for job, place in self.running.items() if place[0] != host}

    @rule(needs=NEEDS, group=st.sampled_from([None, "g", "h"]))
    def add(self, needs: Resources, group: str | None) -> None:
        self.number += 1
        self.waiting.append((self.number, needs))
        self.placement.add(self.number, needs, group)
        self._place()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[job]
        self.placement.release(job)
        self.placement.release(job)
        self._place()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.waiting) - 1))
        job, _ = self.waiting.pop(place)
        assert self.placement.withdraw(job) and not self.placement.withdraw(job)
        self._place()

    def _place(self) -> None:
        placed = self.placement.place()
        heads, self.waiting = self.waiting[: len(placed)], self.waiting[len(placed) :]
        assert [order.job for order in placed] == [job for job, _ in heads], "in their order, nobody passed by"
        for order, (job, needs) in zip(placed, heads, strict=True):
            self.running[job] = (order.host, needs)

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        for host, machine in self.machines.items():
            resources_here = [needs for place, needs in self.running.values() if place == host]
            assert sum(needs.cpus for needs in resources_here) <= machine.cpus
            assert sum(needs.gpus for needs in resources_here) <= len(machine.gpus)
            assert sum(needs.memory_bytes for needs in resources_here) <= machine.memory_bytes

    @invariant()
    def the_first_waits_only_for_what_is_not_free(self) -> None:
        if self.waiting:
            needs = self.waiting[0][1]
            for host, machine in self.machines.items():
                used = sum(resources.cpus for place, resources in self.running.values() if place == host)
                idle = not any(place == host for place, _ in self.running.values())
                fits = max_concurrent(machine, needs) > 0
                assert not (idle and fits), f"{host} is idle, and the first job fits"
                assert needs.gpus or needs.memory_bytes or machine.cpus - used < needs.cpus

    @invariant()
    def the_books_are_whole(self) -> None:
        assert self.placement.host_of == {job: host for job, (host, _) in self.running.items()}
        assert list(self.placement.queue) == [job for job, _ in self.waiting]
        assert set(self.placement.needs) == {*self.running, *(job for job, _ in self.waiting)}
        assert set(self.placement.groups) <= set(self.placement.needs)
        assert list(self.placement.hosts) == list(self.machines)


TestPlacement = PlacementMachine.TestCase
