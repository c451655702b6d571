"""Whether several hosts pay: one line where they do not, from the time of some steps."""

import pytest

from fanwise.parallel.hosts.paying import Paying, Quicker, Took, quicker


def after(steps: int) -> list[Took | None]:
    paying = Paying()
    first = [paying.add(Took(9.0, 0.0)) for _ in range(5)]  # they load
    return first + [paying.add(Took(0.210, 0.150)) for _ in range(steps)]


def test_what_a_step_takes_is_known_once_after_25_steps() -> None:
    assert after(19) == [None] * 24
    assert after(40) == [None] * 24 + [Took(0.210, 0.150)] + [None] * 20


def alone(hosts: str, computing_s: tuple[float, ...], most: float = 0.8) -> Quicker | None:
    """A step takes 210 ms, and of that so much for computing."""
    return quicker([Took(0.210, 0.210 - each) for each in computing_s], hosts, most=most)


def test_one_host_that_would_be_quicker_is_named() -> None:
    assert alone("aabb", (0.06,) * 4) == Quicker(
        (0, 1),
        "a step of 4 processes takes 210 ms, 150 of them to exchange gradients; the 2 of a alone would take about 120.",
    )


def test_one_process_that_would_be_quicker_than_those_of_its_host_is_named() -> None:
    assert alone("aa", (0.06,) * 2) == Quicker(
        (0,),
        "a step of 2 processes takes 210 ms, 150 of them to exchange gradients; one of a alone would take about 120.",
    )


def test_where_the_fewest_are_asked_for_a_host_need_not_be_clearly_quicker() -> None:
    assert alone("aabb", (0.1,) * 4) is None
    assert alone("aabb", (0.1,) * 4, most=1.0) == Quicker(
        (0, 1),
        "a step of 4 processes takes 210 ms, 110 of them to exchange gradients; the 2 of a alone would take about 200.",
    )
    assert alone("aabb", (0.11,) * 4, most=1.0) is None


@pytest.mark.parametrize(
    ("hosts", "computing_s", "left"),
    [
        ("ab", (0.10, 0.03), (1,)),
        ("ab", (0.05, 0.048), (0,)),
        ("abb", (0.04, 0.04, 0.04), (1, 2)),
        ("aabb", (0.03, 0.09, 0.05, 0.05), (2, 3)),
        ("baab", (0.03, 0.05, 0.05, 0.03), (0, 3)),
    ],
    ids=["it is quicker", "the first, if hardly", "it has more processes", "the slowest counts", "not neighbours"],
)
def test_the_best_host_is_left(hosts: str, computing_s: tuple[float, ...], left: tuple[int, ...]) -> None:
    found = alone(hosts, computing_s)
    assert found is not None and found.places == left


@pytest.mark.parametrize(
    ("hosts", "computing_s"),
    [("aabb", 0.11), ("abcd", 0.06), ("aaaa", 0.11), ("a", 0.06)],
    ids=["it pays", "each has few processes", "one host", "alone"],
)
def test_nothing_is_said_where_hosts_pay(hosts: str, computing_s: float) -> None:
    assert alone(hosts, (computing_s,) * len(hosts)) is None
