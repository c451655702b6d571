"""Whether several hosts pay: one line where they do not, from the time of some steps."""

import pytest

from fanwise.parallel.hosts.paying import Paying, Quicker


def after(steps: int, step_s: float, exchange_s: float) -> Paying:
    paying = Paying()
    for _ in range(5):
        paying.add(9.0, 0.0)  # the first ones load
    for _ in range(steps):
        paying.add(step_s, exchange_s)
    return paying


def test_one_host_that_would_be_quicker_is_named_once() -> None:
    paying = after(20, 0.210, 0.150)
    assert paying.quicker(4, 2, "a") == Quicker(
        "host",
        "a step of 4 processes takes 210 ms, 150 of them to exchange gradients; the 2 of a alone would take about 120.",
    )
    assert paying.quicker(4, 2, "a") is None


def test_one_process_that_would_be_quicker_than_those_of_its_host_is_named() -> None:
    assert after(20, 0.210, 0.150).quicker(2, 2, "a") == Quicker(
        "process",
        "a step of 2 processes takes 210 ms, 150 of them to exchange gradients; one of a alone would take about 120.",
    )


@pytest.mark.parametrize(
    ("steps", "exchange_s", "processes", "here"),
    [(19, 0.150, 4, 2), (20, 0.100, 4, 2), (20, 0.150, 4, 1), (20, 0.100, 4, 4), (20, 0.150, 1, 1)],
    ids=["too early", "it pays", "this host has few processes", "one host", "alone"],
)
def test_nothing_is_said_where_hosts_pay_or_it_is_not_known(
    steps: int, exchange_s: float, processes: int, here: int
) -> None:
    assert after(steps, 0.210, exchange_s).quicker(processes, here, "a") is None
