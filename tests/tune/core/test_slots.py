"""`Slots` is compared with a model, the set of used slots."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fanwise.tune.core.slots import Slots


class SlotsMachine(RuleBasedStateMachine):
    @initialize(n_workers=st.integers(0, 3))
    def begin(self, n_workers: int) -> None:
        self.slots = Slots(n_workers, asynchronous=True)
        self.n_workers = n_workers
        self.used: set[int] = set()
        self.has_request = False

    @precondition(lambda self: self.slots.has_room)
    @rule()
    def take(self) -> None:
        self.has_request = self.has_request and len(self.used) < self.n_workers
        slot = self.slots.take()
        assert slot == min(set(range(len(self.used) + 1)) - self.used), "the smallest free slot"
        self.used.add(slot)

    @precondition(lambda self: self.used)
    @rule(index=st.integers(0, 5))
    def release(self, index: int) -> None:
        slot = sorted(self.used)[index % len(self.used)]
        self.slots.release(slot)
        self.used.remove(slot)

    @rule(n_workers=st.integers(0, 4))
    def resize(self, n_workers: int) -> None:
        self.slots.resize(n_workers)
        self.n_workers = n_workers

    @rule()
    def request(self) -> None:
        self.slots.has_request = self.has_request = True

    @invariant()
    def slots_equal_the_model(self) -> None:
        if hasattr(self, "slots"):
            assert self.slots.num_used == len(self.used)
            assert self.slots.has_request == self.has_request
            assert self.slots.has_room == (len(self.used) < self.n_workers or self.has_request)


SlotsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSlotsAgainstTheModel = SlotsMachine.TestCase


def filled(slots: Slots) -> list[int]:
    numbers = []
    while slots.open_batch() and slots.has_room:
        numbers.append(slots.take())
    return numbers


def test_synchronous_search_fills_the_slots_when_all_are_free() -> None:
    slots = Slots(2, asynchronous=False)
    assert filled(slots) == [0, 1]
    slots.release(1)
    assert filled(slots) == []
    slots.release(0)
    assert filled(slots) == [0, 1]


def test_open_batch_grows_with_the_workers_and_a_full_batch_does_not() -> None:
    slots = Slots(2, asynchronous=False)
    assert slots.open_batch() and slots.take() == 0
    slots.resize(3)
    assert filled(slots) == [1, 2]
    slots.resize(4)
    assert filled(slots) == []
