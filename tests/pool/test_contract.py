"""What an engine has, and what a report may be answered with."""

import pytest

from fanwise.base.errors import LeaseError
from fanwise.pool import Capacity, Machine
from fanwise.pool.contract import GO_ON, Reply
from fanwise.pool.leases import Gpu, Ledger, Resources

GPUS = tuple(Gpu(number, f"GPU-{number}", "test", 0, str(number)) for number in range(3))


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
def test_as_many_fit_as_a_ledger_lends(resources: Resources) -> None:
    machine = Machine(8, 100, GPUS)
    ledger, lent = Ledger(machine), 0
    try:
        while ledger.take(resources, lent) is not None:
            lent += 1
    except LeaseError:
        assert lent == 0
    assert Capacity((machine,)).fits(resources) == lent
    assert Capacity((machine, machine)).fits(resources) == 2 * lent


def test_a_job_fits_that_one_of_the_machines_can_hold() -> None:
    capacity = Capacity((Machine(2, 10), Machine(8, 10, GPUS)))
    capacity.check(Resources(cpus=8, gpus=3))
    assert (capacity.cpus, capacity.gpus) == (10, 3)
    with pytest.raises(LeaseError, match="10 CPUs asked for"):
        capacity.check(Resources(cpus=10))  # all have them together, none alone
    with pytest.raises(LeaseError, match="has no machine now"):
        Capacity(()).check(Resources())


@pytest.mark.parametrize("word", ["stop", "GO", "", None])
def test_a_decision_that_there_is_not_is_refused_with_those_there_are(word: str | None) -> None:
    with pytest.raises(ValueError, match="CONTINUE, STOP or PAUSE, got"):
        Reply(word)  # type: ignore[arg-type]  # as users do who do not check types


def test_only_continue_lets_a_job_go_on() -> None:
    assert [Reply("CONTINUE", {"rate": 0.1}).ends, GO_ON.ends, Reply("STOP").ends, Reply("PAUSE").ends] == [
        *(False, False, True, True)
    ]
