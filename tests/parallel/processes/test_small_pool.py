"""Runs that share a pool in which there is not room for all of them."""

import copy
import functools
import logging
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import LeaseError
from fanwise.parallel import Run
from fanwise.pool import Pool
from fanwise.pool.backlog import Backlog
from fanwise.pool.current import current, in_job
from fanwise.pool.leases import Ledger, Machine, Resources
from fanwise.testing import within


def summed(run: Run) -> float:
    return run.sum(values, nn.Identity(), torch.arange(10))


def values(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x)
    return found


@pytest.mark.usefixtures("forked_pools")
@pytest.mark.parametrize("cpus", [2, 3])
def test_runs_at_once_come_one_after_another_where_there_is_room_for_one(cpus: int) -> None:
    begin = threading.Barrier(4)
    found: list[float] = []

    def work() -> None:
        begin.wait()
        found.extend(fanwise.run(summed, devices=2, pool=small) for _ in range(2))

    with Pool(seed=0, cpus=cpus) as small:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [45] * 8


def waits_for(path: Path, run: Run) -> int:
    within(30, path.exists, "it may end")
    return run.world_size


@pytest.mark.usefixtures("forked_pools")
def test_a_run_that_waits_for_another_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, found = tmp_path / "end", [0, 0]

    def work(number: int) -> None:
        found[number] = fanwise.run(functools.partial(waits_for, path), devices=2, pool=small)

    with Pool(seed=0, cpus=3) as small:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        within(30, lambda: len(caplog.records) > 0, "it is said")
        path.touch()
        for thread in threads:
            thread.join()
    assert found == [2, 2]
    (told,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert told == (
        "1 of 2 processes of the run wait for a place: the pool has 3 CPUs, and other jobs or runs hold them.\n"
        "The run begins when these end. For all at once: a pool with more cpus=, or fewer devices= for each."
    )


CPUS = 5


class Places:
    """How the processes of runs get places: the pool's own books, and the loop of its engine over them."""

    def __init__(self) -> None:
        self.ledger = Ledger(Machine(CPUS, 0))
        self.backlog: Backlog[tuple[int, int, int]] = Backlog()  # run, number, CPUs
        self.runs: dict[int, set[tuple[int, int, int]]] = {}

    def begin(self, run: int, ranks: int, cpus: int) -> None:
        """One after another, as the supervisor does that holds the lock."""
        self.runs[run] = set()
        for rank in range(ranks):
            self.submit((run, rank, cpus))

    def settle(self) -> None:
        """Nothing is under way any more."""

    def submit(self, job: tuple[int, int, int]) -> None:
        self.runs[job[0]].add(job)
        self.backlog.append(None, job)
        self.schedule()

    def schedule(self) -> None:
        while (job := self.backlog.head(None)) is not None:
            if self.ledger.take(Resources(cpus=job[2]), job) is None:
                return
            self.backlog.remove(None, job)

    def dies(self, job: tuple[int, int, int]) -> None:
        """The others go on without it."""
        self.runs[job[0]].discard(job)
        self.ledger.give_back(job)
        self.schedule()

    def can_end(self, run: int) -> bool:
        """All that are left have places."""
        return all(job in self.ledger.leases for job in self.runs[run])

    def end(self, run: int) -> None:
        for job in self.runs.pop(run):
            if not self.ledger.give_back(job):
                self.backlog.remove(None, job)
        self.schedule()


class PlacesMachine(RuleBasedStateMachine):
    make: type[Places] = Places

    def __init__(self) -> None:
        super().__init__()
        self.places = self.make()
        self.begun = 0

    @rule(ranks=st.integers(1, CPUS), cpus=st.integers(1, 2))
    def begins(self, ranks: int, cpus: int) -> None:
        if ranks * cpus <= CPUS:
            self.begun += 1
            self.places.begin(self.begun, ranks, cpus)

    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        if ended := [run for run in self.places.runs if self.places.can_end(run)]:
            self.places.end(data.draw(st.sampled_from(ended)))

    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        """One of several that have places."""
        for run in self.places.runs:
            held = sorted(job for job in self.places.runs[run] if job in self.places.ledger.leases)
            if len(held) > 1 and self.places.can_end(run):
                self.places.dies(data.draw(st.sampled_from(held)))
                return

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        """When no new run comes, and those that can end do, all come to their end."""
        left = copy.deepcopy(self.places)
        left.settle()
        while ended := [run for run in left.runs if left.can_end(run)]:
            left.end(ended[0])
        assert not left.runs and not len(left.backlog) and not left.ledger.leases


TestPlaces = PlacesMachine.TestCase
TestPlaces.settings = settings(max_examples=60, stateful_step_count=25)


class OneByOne(Places):
    """A run submits one process, and the next ones after what other runs submit meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[int, int, int]] = []

    def begin(self, run: int, ranks: int, cpus: int) -> None:
        self.runs[run] = {(run, rank, cpus) for rank in range(ranks)}
        self.submit((run, 0, cpus))
        later, self.later = self.later, [(run, rank, cpus) for rank in range(1, ranks)]
        self.submit_all(later)

    def settle(self) -> None:
        later, self.later = self.later, []
        self.submit_all(later)

    def submit_all(self, jobs: list[tuple[int, int, int]]) -> None:
        for job in jobs:
            if job[0] in self.runs:
                self.submit(job)


def test_the_machine_catches_runs_that_wait_for_each_other() -> None:
    class Machine(PlacesMachine):
        make = OneByOne

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Machine, settings=settings(max_examples=500, phases=[Phase.generate], derandomize=True, database=None)
        )


@pytest.mark.usefixtures("forked_pools")
def test_a_pool_is_used_for_one_device_too() -> None:
    with Pool(seed=0, cpus=2) as pool:
        assert fanwise.run(lambda run: (in_job(), current().cpus), devices="cpu", threads=2, pool=pool) == (True, 2)
        assert pool.stats().jobs_finished == 1
        with pytest.raises(LeaseError, match=r"1 processes, threads=3, need 3 CPUs at once, and the pool has 2"):
            fanwise.run(summed, devices="cpu", threads=3, pool=pool)
