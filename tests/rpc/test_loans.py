"""Which way a tensor goes, and who has which loan. No device is needed to decide it."""

from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fanwise.links.outstanding import Outstanding
from fanwise.rpc.devices.loans import LENT_BYTES_MAX, LENT_FROM_BYTES, NOT_KNOWN, Facts, Loans, Sight, why_staged

SIGHT = Sight({"cuda:0": "A", "cuda:1": "B", "cuda:2": "C"}, frozenset({("B", "A")}))
FACTS = Facts(size_bytes=LENT_FROM_BYTES, uuid="A", target="cuda:0", sight=SIGHT, is_on_this_host=True)


def test_memory_of_a_device_that_both_see_is_lent() -> None:
    assert why_staged(FACTS) is None
    assert why_staged(replace(FACTS, target="cuda:1")) is None, "it reaches the other"
    assert why_staged(replace(FACTS, target=None)) is None, "answers go where the receiver says"
    assert why_staged(replace(FACTS, lent_bytes=LENT_BYTES_MAX - LENT_FROM_BYTES)) is None


def test_names_of_devices_mean_something_else_in_each_process() -> None:
    """The sender's cuda:0 is the receiver's cuda:1."""
    assert why_staged(replace(FACTS, sight=Sight({"cuda:0": "B", "cuda:1": "A"}), target="cuda:1")) is None
    staged = why_staged(replace(FACTS, sight=Sight({"cuda:0": "B", "cuda:1": "A"}), target="cuda:0"))
    assert staged == "the target device cannot access the memory of its device"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (replace(FACTS, uuid=""), "its memory cannot be lent"),
        (replace(FACTS, is_this_worker=True), "a process cannot open its own handle"),
        (replace(FACTS, is_on_this_host=False), "the other worker is on another host"),
        (replace(FACTS, size_bytes=LENT_FROM_BYTES - 1), "it is small"),
        (replace(FACTS, refused=True), "that failed before"),
        (replace(FACTS, sight=None), NOT_KNOWN),
        (replace(FACTS, sight=Sight({"cuda:0": "Z"})), "the other worker does not see the device"),
        (replace(FACTS, sight=Sight()), "the other worker does not see the device"),
        (replace(FACTS, target="cuda:2"), "the target device cannot access the memory of its device"),
        (replace(FACTS, target="cpu"), "the target device cannot access the memory of its device"),
        (replace(FACTS, uuid="B", target="cuda:0"), "the target device cannot access the memory of its device"),
        (replace(FACTS, lent_bytes=LENT_BYTES_MAX), "too much is lent already"),
    ],
)
def test_what_is_staged_says_why(facts: Facts, why: str) -> None:
    assert why_staged(facts) == why


def test_the_other_worker_is_asked_what_it_sees_only_when_all_else_is_well() -> None:
    for other in ({"size_bytes": 1}, {"uuid": ""}, {"is_on_this_host": False}, {"refused": True}):
        assert why_staged(replace(FACTS, sight=None, **other)) != NOT_KNOWN


def test_one_tensor_may_be_bigger_than_all_together() -> None:
    assert why_staged(replace(FACTS, size_bytes=2 * LENT_BYTES_MAX)) is None


class LoansMachine(RuleBasedStateMachine):
    """Against a list of (id, holder, size)."""

    def __init__(self) -> None:
        super().__init__()
        self.loans: Loans[str] = Loans()
        self.model: list[tuple[int, str, int]] = []
        self.ids = 0
        self.unknown = 0

    @rule(holder=st.sampled_from("ab"), size=st.integers(0, 9))
    def lend(self, holder: str, size: int) -> None:
        self.ids += 1
        assert self.loans.lend(f"thing {self.ids}", holder, size) == self.ids, "an id is never used again"
        self.model.append((self.ids, holder, size))

    @rule(holder=st.sampled_from("ab"), ids=st.lists(st.integers(0, 12), max_size=4))
    def give_back(self, holder: str, ids: list[int]) -> None:
        wanted = []
        for loan in ids:
            found = [lent for lent in self.model if lent[:2] == (loan, holder)]
            wanted += [f"thing {loan}" for _ in found]
            self.unknown += not found
            self.model = [lent for lent in self.model if lent not in found]
        assert self.loans.give_back(ids, holder) == wanted

    @rule(holder=st.sampled_from("ab"))
    def lose(self, holder: str) -> None:
        lost = [f"thing {loan}" for loan, lent_to, _ in self.model if lent_to == holder]
        self.model = [lent for lent in self.model if lent[1] != holder]
        assert self.loans.lose(holder) == lost

    @rule()
    def end(self) -> None:
        assert self.loans.end() == [f"thing {loan}" for loan, *_ in self.model]
        self.model = []

    @invariant()
    def it_is_as_the_model_has_it(self) -> None:
        lent: dict[int, tuple[Hashable, tuple[str, int]]] = {
            loan: (holder, (f"thing {loan}", size)) for loan, holder, size in self.model
        }
        total_bytes = sum(size for *_, size in self.model)
        assert self.loans == Loans(total_bytes, Outstanding(self.unknown, lent, self.ids))


TestLoans = LoansMachine.TestCase
TestLoans.settings = settings(max_examples=60, stateful_step_count=20)
