"""Leases: capacity, single cases of the ledger, and the ledger against a model of the leases by holder."""

from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fanwise.base.errors import LeaseError
from fanwise.pool.contract import Capacity, Reply
from fanwise.pool.leases import Gpu, GpuShare, Lease, Ledger, Machine, Resources

GIB = 1024**3


def gpus(*names: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, name, "H200", 140 * GIB, name) for index, name in enumerate(names))


BOX = Machine(cpus=6, memory_bytes=100, gpus=gpus("a", "b", "c"))


def shares(**fractions: float) -> tuple[GpuShare, ...]:
    return tuple(GpuShare(name, fraction) for name, fraction in fractions.items())


# -- single cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(cpus=7), "7 CPUs asked for, this machine has 6."),
        (Resources(gpus=4), "4 GPUs asked for, this machine has 3."),
        (Resources(memory_bytes=101), "101 bytes of memory asked for, this machine has 100."),
    ],
)
def test_impossible_resources_are_refused(resources: Resources, text: str) -> None:
    ledger = Ledger(BOX)
    for ask in (ledger.check, lambda resources: ledger.take(resources, "job")):
        with pytest.raises(LeaseError) as caught:
            ask(resources)
        assert str(caught.value).startswith(text)
        assert str(caught.value).endswith("See: fanwise explain lease")
    assert ledger.leases == {}


@pytest.mark.parametrize("number", [2, 3, 6, 7, 10, 49, 1000])
def test_n_jobs_of_one_nth_fit_on_one_gpu(number: int) -> None:
    ledger = Ledger(Machine(2000, 0, gpus("a")))
    assert all(ledger.take(Resources(gpus=1 / number), job) for job in range(number))
    assert ledger.take(Resources(gpus=1 / number), number) is None


def test_jobs_inside_a_job_divide_its_lease() -> None:
    outer = Ledger(BOX).take(Resources(cpus=3, gpus=2, memory_bytes=60), "trial")
    assert outer is not None
    inner = Ledger.within(outer)
    assert inner.free() == outer
    assert inner.take(Resources(cpus=2, gpus=1, memory_bytes=30), 0) == Lease(2, shares(a=1.0), 30)
    assert inner.take(Resources(cpus=2, gpus=1), 1) is None
    assert inner.take(Resources(cpus=1, gpus=1), 1) == Lease(1, shares(b=1.0), 0)
    with pytest.raises(LeaseError, match=r"3 GPUs asked for, the lease of the job that asks has 2\."):
        inner.check(Resources(gpus=3))


def test_a_part_of_a_gpu_can_be_divided_and_is_no_whole_gpu() -> None:
    inner = Ledger.within(Lease(4, shares(a=0.5), 0))
    with pytest.raises(LeaseError, match=r"1 GPU asked for, the lease of the job that asks has 0\.5 of GPU a\."):
        inner.check(Resources(gpus=1))
    assert inner.take(Resources(gpus=0.25), 0)
    assert inner.take(Resources(gpus=0.25), 1) == Lease(1, shares(a=0.25), 0)
    assert inner.take(Resources(gpus=0.25), 2) is None


# -- capacity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resources",
    [
        Resources(),
        Resources(cpus=3),
        Resources(cpus=9),
        Resources(memory_bytes=40),
        Resources(gpus=1),
        Resources(gpus=2),
        Resources(gpus=4),
        Resources(gpus=0.3),
        Resources(gpus=1 / 3),
        Resources(cpus=2, gpus=0.5, memory_bytes=10),
    ],
)
def test_capacity_fits_as_many_jobs_as_a_ledger_leases(resources: Resources) -> None:
    machine = Machine(8, 100, gpus("a", "b", "c"))
    ledger, leased = Ledger(machine), 0
    try:
        while ledger.take(resources, leased) is not None:
            leased += 1
    except LeaseError:
        assert leased == 0
    assert Capacity((machine,)).fits(resources) == leased
    assert Capacity((machine, machine)).fits(resources) == 2 * leased


def test_a_job_must_fit_on_one_machine() -> None:
    capacity = Capacity((Machine(2, 10), Machine(8, 10, gpus("a", "b", "c"))))
    capacity.check(Resources(cpus=8, gpus=3))
    assert (capacity.cpus, capacity.gpus) == (10, 3)
    with pytest.raises(LeaseError, match="10 CPUs asked for"):
        capacity.check(Resources(cpus=10))  # only all machines together have them
    with pytest.raises(LeaseError, match="has no machine now"):
        Capacity(()).check(Resources())


@pytest.mark.parametrize("decision", ["stop", "GO", "", None])
def test_an_unknown_decision_is_refused(decision: str | None) -> None:
    with pytest.raises(ValueError, match="CONTINUE, STOP or PAUSE, got"):
        Reply(decision)  # type: ignore[arg-type]


# -- all cases ---------------------------------------------------------------------------------------------------------

RESOURCES = st.builds(
    Resources,
    cpus=st.integers(1, 3),
    gpus=st.integers(0, 3) | st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.7]),
    memory_bytes=st.sampled_from([0, 0, 30, 50]),
)


class LedgerMachine(RuleBasedStateMachine):
    """A model of the leases. Parts of GPUs are counted in millionths."""

    make: type[Ledger] = Ledger
    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = self.make(BOX)
        self.leased: dict[Hashable, tuple[Resources, tuple[str, ...]]] = {}
        self.next_holder = 0

    def used(self) -> Counter[str]:
        parts: Counter[str] = Counter()
        for resources, cards in self.leased.values():
            for card in cards:
                parts[card] += self.parts(resources)
        return parts

    @staticmethod
    def parts(resources: Resources) -> int:
        return {0.1: 100000, 0.25: 250000, 1 / 3: 333333, 0.5: 500000, 0.7: 700000}.get(resources.gpus, 1000000)

    def expected_cards(self, resources: Resources) -> tuple[str, ...] | None:
        """The cards with room, fullest first; None if they cannot be met now."""
        used = self.used()
        cpus = sum(leased.cpus for leased, _ in self.leased.values()) + resources.cpus
        memory = sum(leased.memory_bytes for leased, _ in self.leased.values()) + resources.memory_bytes
        number = resources.gpus if isinstance(resources.gpus, int) else 1
        room = [card for card in "abc" if used[card] + self.parts(resources) <= 1000000]
        fullest_first = sorted(room, key=lambda card: -used[card])
        if cpus > 6 or memory > 100 or len(room) < number:
            return None
        return tuple(fullest_first[:number])

    @rule(target=holders, resources=RESOURCES)
    def take(self, resources: Resources) -> int:
        self.next_holder += 1
        expected = self.expected_cards(resources)
        lease = self.ledger.take(resources, self.next_holder)
        assert (lease is None) == (expected is None)
        if lease is not None and expected is not None:
            fraction = self.parts(resources) / 1000000
            assert lease == Lease(
                resources.cpus, tuple(GpuShare(card, fraction) for card in expected), resources.memory_bytes
            )
            self.leased[self.next_holder] = (resources, expected)
        return self.next_holder

    @rule(holder=holders)
    def give_back(self, holder: int) -> None:
        assert self.ledger.give_back(holder) == (self.leased.pop(holder, None) is not None)

    @rule(holder=consumes(holders))
    def give_back_twice(self, holder: int) -> None:
        self.ledger.give_back(holder)
        self.leased.pop(holder, None)
        assert not self.ledger.give_back(holder)

    @invariant()
    def the_whole_state_is_the_models(self) -> None:
        used = self.used()
        assert set(self.ledger.leases) == set(self.leased)
        assert self.ledger.free() == Lease(
            cpus=6 - sum(resources.cpus for resources, _ in self.leased.values()),
            gpus=tuple(GpuShare(card, (1000000 - used[card]) / 1000000) for card in "abc" if used[card] < 1000000),
            memory_bytes=100 - sum(resources.memory_bytes for resources, _ in self.leased.values()),
        )


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=25)
