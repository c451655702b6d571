"""Every domain keeps the contract; broken ones do not."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, final

import domain_contract
import numpy as np
import pytest
from domain_contract import CHECKS, Check
from hypothesis import given, settings
from hypothesis import strategies as st

from fanwise.tune.space.domains import (
    DOMAIN_TYPES,
    Domain,
    choice,
    finrange,
    logfinrange,
    logordinal,
    lograndint,
    loguniform,
    ordinal,
    qlograndint,
    qloguniform,
    qrandint,
    quniform,
    randint,
    reverseloguniform,
    uniform,
)

DOMAINS: list[Domain] = [
    uniform(-1, 3),
    uniform(1.0, math.nextafter(1.0, 2.0)),
    uniform(-1e300, 1e300 / 3),
    loguniform(1e-6, 1),
    loguniform(5e-324, 1.7e308),
    reverseloguniform(0.9, 0.9999),
    reverseloguniform(0, 1 - 2**-40),
    randint(32, 256),
    randint(-(2**60), -(2**60) + 2**52 - 1),
    lograndint(1, 1000),
    lograndint(2**45 - 1, 2**45),
    lograndint(1, 2**45),
    quniform(0.1, 0.9, 0.05),
    quniform(-1, 1, 0.001),
    qloguniform(1e-4, 0.1, 1e-4),
    qrandint(-16, 64, 8),
    qlograndint(8, 1024, 8),
    finrange(0.1, 1.0, 10),
    finrange(8, 1024, 5, cast_int=True),
    finrange(0, 11, 7, cast_int=True),
    logfinrange(1e-5, 1, 6),
    logfinrange(16, 1024, 7, cast_int=True),
    logfinrange(1, 4, 4, cast_int=True),
    choice(["relu", "tanh", None, True, 1, 0.5]),
    choice([3]),
    choice([[64], [64, 64], print, "print"]),
    ordinal([(3, 3), (5, 5)]),
    ordinal(["small", "medium", "large"]),
    ordinal([3, 1, 2]),
    ordinal([1, 2, 4, 100]),
    ordinal([7]),
    logordinal([0.001, 0.1, 0.5, 64]),
]


def test_every_way_to_make_a_domain_is_held_against_the_contract() -> None:
    assert {domain.domain_type for domain in DOMAINS} | {"logordinal"} == set(DOMAIN_TYPES)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_every_domain_keeps_the_contract(domain: Domain) -> None:
    for check in CHECKS:
        check(domain)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Broken:
    """A domain with one method or property replaced."""

    inner: Any  # Any: all its methods are passed on
    changed: Mapping[str, object]

    def __getattr__(self, name: str) -> object:
        return self.changed[name] if name in self.changed else getattr(self.inner, name)


TEN = randint(1, 10)
TURNS = itertools.count(1)
WRONG: list[tuple[Domain, Mapping[str, object], Check]] = [
    (TEN, {"from_unit": lambda u: 11 if u > 0.9 else TEN.from_unit(u)}, CHECKS[0]),
    (TEN, {"from_unit": lambda u: np.int64(TEN.from_unit(u))}, CHECKS[1]),
    (uniform(0, 1), {"from_unit": lambda _: 1 / next(TURNS)}, CHECKS[2]),
    (TEN, {"from_unit": lambda u: TEN.from_unit(math.nextafter(1.0, 0.0) - u)}, CHECKS[3]),
    (TEN, {"to_unit": lambda value: TEN.to_unit(value) / 2}, CHECKS[4]),
    (loguniform(1e-3, 1), {"to_unit": lambda value: uniform(1e-3, 1).to_unit(value)}, CHECKS[4]),
    (TEN, {"to_unit": lambda value: 1 - TEN.to_unit(value)}, CHECKS[5]),
    (TEN, {"from_unit": lambda u: TEN.from_unit(u % 1)}, CHECKS[6]),
    (TEN, {"contains": lambda value: True}, CHECKS[7]),
    (TEN, {"to_unit": lambda value: 0.5}, CHECKS[7]),
    (TEN, {"settings": lambda: {"lower": 1, "upper": 11}}, CHECKS[8]),
    (TEN, {"num_values": 9}, CHECKS[9]),
    (choice(["a", "b"]), {"value_at": lambda index: "a"}, CHECKS[9]),
    (TEN, {"value_at": lambda index: 1}, CHECKS[10]),
    (uniform(0, 1), {"from_unit": lambda u: 0.5}, CHECKS[10]),
]


@pytest.mark.parametrize(("domain", "changed", "check"), WRONG, ids=lambda part: getattr(part, "__name__", ""))
def test_a_broken_domain_is_seen(domain: Domain, changed: Mapping[str, object], check: Callable[[Any], None]) -> None:
    check(domain)
    with pytest.raises((AssertionError, ValueError)):
        check(Broken(domain, changed))


def test_every_check_has_a_broken_domain_that_it_refuses() -> None:
    assert {check for _, _, check in WRONG} == set(domain_contract.CHECKS)


REALS = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
POSITIVE = st.floats(-30, 30).map(lambda x: float(f"{10**x:.6g}"))
NAMES = (
    st.none() | st.booleans() | st.text(max_size=5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
LENGTHS = st.integers(2, 60)


def in_order(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(numbers, numbers).filter(lambda pair: pair[0] != pair[1]).map(lambda p: (min(p), max(p)))


@st.composite
def multiples(draw: st.DrawFn, lowest: int, q: st.SearchStrategy[Any]) -> tuple[Any, Any, Any]:
    step = draw(q)
    first = draw(st.integers(lowest, 1000))
    exact = Fraction(repr(step))
    plain = int if isinstance(step, int) else float
    return plain(first * exact), plain((first + draw(st.integers(1, 1000))) * exact), step


@st.composite
def ints_far_apart(draw: st.DrawFn) -> tuple[int, int, int]:
    size, lower = draw(LENGTHS), draw(st.integers(-(10**6), 10**6))
    return lower, lower + draw(st.integers(size - 1, 10**7)), size


def are_ratios_of_integers(bounds_and_size: tuple[tuple[float, float], int]) -> bool:
    """Return True if logfinrange rounds all of its points to different integers."""
    (lower, upper), size = bounds_and_size
    points = [lower * (upper / lower) ** (index / (size - 1)) for index in range(size)]
    if any(abs(point % 1 - 0.5) < 1e-9 for point in points):
        return False  # which way such a point is rounded hangs on the last bit
    whole = [math.floor(point + 0.5) for point in points]
    if len(set(whole)) < size:
        with pytest.raises(ValueError, match=r"too close together|fewer than"):
            logfinrange(lower, upper, size, cast_int=True)
        return False
    return True


STEPS = st.sampled_from([0.001, 0.05, 0.1, 0.25, 1.0, 2.5, 1e-7])
CATEGORIES = st.lists(NAMES, min_size=1, max_size=12, unique_by=lambda value: (isinstance(value, bool), value))
INCREASING = st.lists(st.integers(-1000, 1000), min_size=1, max_size=12, unique=True).map(sorted)
GENERATED: st.SearchStrategy[Domain] = st.one_of(
    in_order(REALS).map(lambda b: uniform(*b)),
    in_order(POSITIVE).map(lambda b: loguniform(*b)),
    in_order(st.integers(0, 9999)).map(lambda b: reverseloguniform(b[0] / 10000, b[1] / 10000)),
    in_order(st.integers(-(10**12), 10**12)).map(lambda b: randint(int(b[0]), int(b[1]))),
    in_order(st.integers(1, 2**45)).map(lambda b: lograndint(int(b[0]), int(b[1]))),
    multiples(-1000, STEPS).map(lambda b: quniform(*b)),
    multiples(1, STEPS).map(lambda b: qloguniform(*b)),
    multiples(-1000, st.integers(1, 50)).map(lambda b: qrandint(*b)),
    multiples(1, st.integers(1, 50)).map(lambda b: qlograndint(*b)),
    st.tuples(in_order(REALS), LENGTHS).map(lambda b: finrange(*b[0], b[1])),
    ints_far_apart().map(lambda b: finrange(*b, cast_int=True)),
    st.tuples(in_order(POSITIVE), LENGTHS)
    .filter(lambda b: b[0][1] > 1.001 * b[0][0])
    .map(lambda b: logfinrange(*b[0], b[1])),
    st.tuples(in_order(st.integers(1, 300)), st.integers(2, 40))
    .filter(are_ratios_of_integers)
    .map(lambda b: logfinrange(*b[0], b[1], cast_int=True)),
    CATEGORIES.map(choice),
    CATEGORIES.map(lambda values: ordinal(values, "equal")),
    INCREASING.map(ordinal),
    INCREASING.map(lambda values: logordinal([value + 1001 for value in values])),
)


@pytest.mark.parametrize("max_examples", [30, pytest.param(3000, marks=pytest.mark.soak)])
def test_any_domain_keeps_the_contract(max_examples: int) -> None:
    @given(GENERATED, st.sampled_from(CHECKS))
    @settings(max_examples=max_examples)
    def keeps(domain: Domain, check: Check) -> None:
        check(domain)

    keeps()
