"""Tier 1: which worker has which name, for any order of what coordinators are asked and told, and of their deaths."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fanwise.rpc.services.directory import Directory, Respond, Taken, Unknown
from fanwise.rpc.worker_info import WorkerKey

NAMES = ["x", "y"]


class OneGroup(RuleBasedStateMachine):
    """The model: what each worker has noted as its own, who asks, and whom the coordinator still waits for."""

    make: Any = Directory

    def __init__(self) -> None:
        super().__init__()
        self.directory = self.make()
        self.noted: dict[WorkerKey, set[str]] = {WorkerKey(id, id): set() for id in range(3)}
        self.untold: set[WorkerKey] = set()
        self.asked: dict[int, tuple[WorkerKey, str, bool]] = {}
        self.count = 3

    def holder(self, name: str) -> WorkerKey | None:
        return next((worker for worker, names in self.noted.items() if name in names), None)

    def ask(self, by: WorkerKey, name: str, reserves: bool) -> None:
        self.count += 1
        self.asked[self.count] = (by, name, reserves)
        fact = self.directory.reserve if reserves else self.directory.find
        self.heard(fact(self.count, by, name))

    def heard(self, said: list[Respond]) -> None:
        assert not (said and self.untold), "nobody is answered before all have told"
        for ticket, result in said:
            assert isinstance(ticket, int) and isinstance(result, Taken)
            by, name, reserves = self.asked.pop(ticket)
            if reserves and self.holder(name) is None:
                self.noted[by].add(name)
            assert result.holder == self.holder(name)
        if not self.untold:
            for by, name, reserves in self.asked.values():
                assert not reserves and self.holder(name) is None, f"{by} is not answered"

    @rule(data=st.data(), name=st.sampled_from(NAMES), reserves=st.booleans())
    def a_worker_asks(self, data: Any, name: str, reserves: bool) -> None:
        self.ask(data.draw(st.sampled_from(sorted(self.noted))), name, reserves)

    @precondition(lambda self: self.asked and not self.untold)
    @rule(data=st.data())
    def the_time_of_one_is_over(self, data: Any) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.asked)))
        there = tuple(sorted(name for names in self.noted.values() for name in names))
        assert self.directory.give_up(ticket) == [Respond(ticket, Unknown(there))]
        assert self.directory.give_up(ticket) == []
        del self.asked[ticket]

    @precondition(lambda self: not self.untold)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def a_worker_gives_a_name_up(self, data: Any, name: str) -> None:
        worker = data.draw(st.sampled_from(sorted(self.noted)))
        self.noted[worker].discard(name)
        self.directory.drop(worker, name)

    @precondition(lambda self: len(self.noted) > 1)
    @rule(data=st.data())
    def a_worker_dies_and_another_comes(self, data: Any) -> None:
        worker = data.draw(st.sampled_from(sorted(self.noted)))
        del self.noted[worker]
        self.untold.discard(worker)
        self.asked = {ticket: asked for ticket, asked in self.asked.items() if asked[0] != worker}
        self.heard(self.directory.gone(worker))
        self.count += 1
        self.noted[WorkerKey(worker.id, self.count)] = set()

    @rule()
    def there_is_another_coordinator(self) -> None:
        """Who asked the one before asks again."""
        again, self.asked = self.asked, {}
        self.directory, self.untold = self.make(), set(self.noted)
        self.directory.collect(self.noted)
        for by, name, reserves in again.values():
            self.ask(by, name, reserves)

    @precondition(lambda self: self.untold)
    @rule(data=st.data())
    def a_worker_tells(self, data: Any) -> None:
        worker = data.draw(st.sampled_from(sorted(self.untold)))
        self.untold.discard(worker)
        self.heard(self.directory.told(worker, tuple(self.noted[worker])))
        assert self.directory.told(worker, NAMES) == []

    @invariant()
    def its_table_is_what_workers_have_noted(self) -> None:
        told = {name: worker for worker, names in self.noted.items() for name in names if worker not in self.untold}
        assert self.directory.holders == told
        assert self.directory._untold == self.untold
        assert {asked.ticket for asked in self.directory._asked} == set(self.asked)


TestOneGroup = OneGroup.TestCase
TestOneGroup.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class TakesTheLast(Directory):
    """Broken: who asks last has the name."""

    def reserve(self, ticket: Any, by: WorkerKey, name: str) -> list[Respond]:
        self.holders.pop(name, None)
        return Directory.reserve(self, ticket, by, name)


class WaitsForNobody(Directory):
    """Broken: it answers before all have told."""

    def collect(self, members: Any) -> None:
        pass


class KeepsTheDead(Directory):
    """Broken: the names of the dead stay taken."""

    def gone(self, member: WorkerKey) -> list[Respond]:
        before = dict(self.holders)
        said = Directory.gone(self, member)
        self.holders = before | self.holders
        return said


@pytest.mark.parametrize("broken", [TakesTheLast, WaitsForNobody, KeepsTheDead])
def test_the_machine_catches_a_broken_one(broken: type[Directory]) -> None:
    machine = type("Broken", (OneGroup,), {"make": broken})
    quick = settings(max_examples=300, stateful_step_count=30, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, StopIteration)):
        run_state_machine_as_test(machine, settings=quick)
