"""Domains: bounds, round trips, equal shares, plain values and refusals."""

import doctest
import json
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, FloatOperation, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.space.domains import (
    Domain,
    FiniteDomain,
    choice,
    domain_from_json,
    domain_to_json,
    finrange,
    grid_values,
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
from fanwise.tune.values import Value


@pytest.mark.parametrize(
    "domain",
    [
        randint(3, 9),
        choice(["a", "b", "c", "d", "e", "f", "g"]),
        finrange(0.1, 0.7, 7),
        finrange(1, 8, 7, cast_int=True),
    ],
)
def test_every_value_has_the_same_share_of_the_unit_interval(domain: Domain) -> None:
    # One point in the middle of each of 7000 equal pieces: 1000 for each of the 7 values.
    counts = Counter(domain.from_unit((piece + 0.5) / 7000) for piece in range(7000))
    assert sorted(counts.values()) == [1000] * 7


# The middles of equal pieces of the unit interval.
SPREAD = [(piece + 0.5) / 2000 for piece in range(2000)]


def test_the_two_ends_of_lograndint_have_whole_shares() -> None:
    counts = Counter(map(lograndint(2, 5).from_unit, SPREAD))
    whole = math.log(5.5 / 1.5)
    for k in (2, 3, 4, 5):
        assert abs(counts[k] / len(SPREAD) - math.log((k + 0.5) / (k - 0.5)) / whole) <= 2 / len(SPREAD)


def test_an_ordinal_value_has_the_share_of_the_numbers_that_are_nearest_to_it() -> None:
    # The interval is (1 - 33/2, 100 + 33/2), with edges at 1.5, 3, 52.
    counts = Counter(map(ordinal([1, 2, 4, 100]).from_unit, SPREAD))
    for value, width in {1: 17.0, 2: 1.5, 4: 49.0, 100: 64.5}.items():
        assert abs(counts[value] / len(SPREAD) - width / 132) <= 2 / len(SPREAD)
    # On the logarithmic scale 1, 4 and 16 are equally far apart, and 64 is far from 1024.
    assert Counter(map(logordinal([1, 4, 16]).from_unit, SPREAD))[4] == pytest.approx(len(SPREAD) / 3, abs=1)
    counts = Counter(map(logordinal([1, 2, 8]).from_unit, SPREAD))
    for value, width in {1: 1.25, 2: 1.5, 8: 1.75}.items():
        assert abs(counts[value] / len(SPREAD) - width / 4.5) <= 2 / len(SPREAD)
    assert Counter(map(ordinal([1, 2, 100], "equal").from_unit, SPREAD))[2] == pytest.approx(len(SPREAD) / 3, abs=1)


def test_ordinals_take_numbers_that_rise_for_numbers_and_others_for_names() -> None:
    category_lists: list[list[Any]] = [[1, 2.5], [2, 1], ["a", "b"], [1, "b"], [7]]  # Any: mixed on purpose
    assert [ordinal(values).kind for values in category_lists] == ["nn", "equal", "equal", "equal", "equal"]


def test_steps_of_a_decimal_q_are_the_decimal_numbers() -> None:
    tenths = quniform(0.1, 0.9, 0.1)
    assert [tenths.value_at(index) for index in range(9)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert tenths.normalize(0.1 * 3) == 0.3
    assert quniform(0.1 + 0.2, 0.9, 0.1).lower == 0.3


def values_of(domain: FiniteDomain) -> list[Value]:
    values = [domain.value_at(index) for index in range(domain.num_values)]
    assert [domain.index_of(value) for value in values] == list(range(domain.num_values))
    assert [domain.from_unit(domain.to_unit(value)) for value in values] == values
    return values


@given(st.integers(1, 999), st.integers(-12, 12), st.sampled_from([2, 4, 5, 10, 20, 100]), st.integers(2, 5))
def test_powers_of_a_whole_ratio_are_the_decimal_numbers(first: int, exponent: int, ratio: int, size: int) -> None:
    decimals = [Decimal(first).scaleb(exponent) * ratio**index for index in range(size)]
    written = [float(number) for number in decimals]
    assert values_of(logfinrange(written[0], written[-1], size)) == written
    assert grid_values(loguniform(written[0], written[-1]), size) == written


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(-12, 12), st.integers(2, 50))
def test_equal_steps_are_the_decimal_numbers(first: int, step: int, exponent: int, size: int) -> None:
    written = [float(Decimal(first + step * index).scaleb(exponent)) for index in range(size)]
    assert values_of(finrange(written[0], written[-1], size)) == written
    assert grid_values(uniform(written[0], written[-1]), size) == written


@given(st.integers(1, 99), st.integers(1, 99), st.integers(-12, 12), st.integers(2, 50))
def test_multiples_of_q_are_the_decimal_numbers(first: int, step: int, exponent: int, size: int) -> None:
    q = Decimal(step).scaleb(exponent)
    written = [float(q * (first + index)) for index in range(size)]
    for make in (quniform, qloguniform):
        assert values_of(make(written[0], written[-1], float(q))) == written


def test_multiples_of_a_third_reach_one() -> None:
    assert values_of(quniform(0, 1, 1 / 3)) == [0.0, 1 / 3, 2 / 3, 1.0]
    assert quniform(0, 1, 1 / 3).normalize(0.9999999999999999) == 1.0


def test_half_of_loguniform_lies_below_the_geometric_mean() -> None:
    drawn = [*map(loguniform(1e-4, 1.0).from_unit, SPREAD)]
    assert sum(value < 1e-2 for value in drawn) == len(SPREAD) / 2
    assert sum(value < 1e-3 for value in drawn) == len(SPREAD) / 4


def test_loguniform_gives_these_bits_on_every_machine() -> None:
    domain = loguniform(1e-2, 1)
    assert [domain.from_unit(u).hex() for u in (0.1, 0.5, 0.9)] == [
        "0x1.03ab3d12bc2c4p-6",
        "0x1.999999999999ap-4",
        "0x1.430cd74f6d479p-1",
    ]


def test_decimal_context_of_the_caller_has_no_effect() -> None:
    logs: list[Domain] = [loguniform(1e-2, 1), lograndint(1, 10**9)]
    units = (0.3, 0.9)
    before = [(d.from_unit(u), d.to_unit(d.from_unit(u))) for d in logs for u in units]
    with localcontext() as context:
        context.prec = 3
        context.traps[FloatOperation] = True
        assert [(d.from_unit(u), d.to_unit(d.from_unit(u))) for d in logs for u in units] == before


def test_finrange_hits_both_bounds_and_knows_points_written_by_hand() -> None:
    tenths = finrange(0.1, 1.0, 10)
    assert tenths.from_unit(0.0) == 0.1
    assert tenths.from_unit(0.999) == 1.0
    assert tenths.contains(0.3)
    assert tenths.contains(0.7)
    assert not tenths.contains(0.35)
    assert tenths.normalize(0.3) == tenths.from_unit(0.25)


@pytest.mark.parametrize(
    ("domain", "value", "plain"),
    [
        (uniform(0, 1), 1, 1.0),
        (uniform(0, 1), np.float32(0.5), 0.5),
        (randint(1, 9), 3.0, 3),
        (randint(1, 9), np.int64(3), 3),
        (lograndint(1, 9), np.int8(9), 9),
        (choice([0.5, 1]), 1.0, 1),
        (choice([True, False]), False, False),
        (choice([True, False]), np.bool_(False), False),
        (choice([None, "l2"]), np.str_("l2"), "l2"),
        (choice([np.True_, "l2"]), True, True),
    ],
)
def test_numbers_of_other_kinds_are_accepted_and_made_plain(domain: Domain, value: object, plain: object) -> None:
    assert domain.contains(value)
    assert domain.normalize(value) == plain
    assert type(domain.normalize(value)) is type(plain)


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (uniform(0, 1), 1.0000001),
        (uniform(0, 1), math.nan),
        (uniform(0, 1), "0.5"),
        (uniform(0, 1), True),
        (loguniform(1, 2), math.inf),
        (randint(1, 9), 10),
        (randint(1, 9), 3.5),
        (randint(1, 9), math.inf),
        (randint(1, 9), True),
        (lograndint(1, 9), 0),
        (choice([1, 2]), True),
        (choice([True, False]), 1),
        (choice([1, 2]), np.True_),
        (choice(["1"]), 1),
        (choice(["1"]), [1]),
        (qrandint(8, 64, 8), 12),
        (qrandint(8, 64, 8), 72),
        (qlograndint(8, 64, 8), 8.5),
        (quniform(0, 1, 0.1), 0.15),
        (quniform(0, 1, 0.1), 1.1),
        (quniform(0, 1, 0.1), math.nan),
        (reverseloguniform(0, 0.9), 0.95),
        (ordinal([1, 2, 4]), 3),
        (logfinrange(1, 100, 3), 11),
        (finrange(0, 1, 3), math.inf),
        (finrange(0, 1, 3), None),
        (finrange(0, 1, 3), 10**400),
        (quniform(0, 1, 0.1), 10**400),
        (finrange(1, 9, 5, cast_int=True), 4),
    ],
)
def test_values_outside_are_refused(domain: Domain, value: object) -> None:
    assert not domain.contains(value)
    with pytest.raises(ValueError, match="is not in"):
        domain.to_unit(value)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: uniform(2, 1), ValueError, r"lower 2.0 is above upper 1.0; write uniform\(1.0, 2.0\)"),
        (lambda: uniform(1, 1), ValueError, "both 1.0; write the constant 1.0"),
        (lambda: uniform(0, math.nan), ValueError, "upper must be finite, got nan"),
        (lambda: uniform(-math.inf, 0), ValueError, "lower must be finite, got -inf"),
        (lambda: uniform(0, 10**400), ValueError, "upper must be finite"),
        (lambda: uniform(-1e308, 1e308), ValueError, "upper - lower must be finite"),
        (lambda: uniform("0", 1), TypeError, "lower must be a number, got '0' of type str"),  # type: ignore[arg-type]
        (lambda: uniform(False, 1), TypeError, "lower must be a number, got False of type bool"),
        (lambda: loguniform(0, 1), ValueError, "lower must be above 0, got 0.0; to include 0, use uniform"),
        (lambda: loguniform(1, 0.01), ValueError, r"write loguniform\(0.01, 1.0\)"),
        (lambda: randint(1.5, 3), TypeError, "lower must be an int, got 1.5 of type float"),  # type: ignore[arg-type]
        (lambda: randint(256, 32), ValueError, r"write randint\(32, 256\)"),
        (lambda: randint(3, 3), ValueError, "write the constant 3"),
        (lambda: randint(0, 2**53), ValueError, "narrow the range"),
        (lambda: lograndint(1, 9.5), TypeError, "upper must be an int, got 9.5"),  # type: ignore[arg-type]
        (lambda: loguniform("1", 2), TypeError, "lower must be a number, got '1'"),  # type: ignore[arg-type]
        (lambda: lograndint(0, 9), ValueError, "lower must be above 0, got 0; to include 0, use randint"),
        (lambda: lograndint(1, 2**46), ValueError, "use loguniform"),
        (lambda: choice([]), ValueError, "at least one category"),
        (lambda: choice("adam"), TypeError, "takes a list of values, got 'adam'"),
        (lambda: choice({"a", "b"}), TypeError, "of type set"),  # type: ignore[arg-type]
        (lambda: choice(["a", "b", "a"]), ValueError, "has 'a' twice"),
        (lambda: choice([1, 1.0]), ValueError, "has 1.0 twice"),
        (lambda: choice([[1], [2], [1]]), ValueError, r"choice has \[1\] twice"),
        (lambda: ordinal([math.sin, math.cos, math.sin]), ValueError, "ordinal has sin twice"),
        (lambda: choice([1, uniform(0, 1)]), TypeError, r"cannot be a domain, got uniform\(0.0, 1.0\); .* parameter\("),
        (lambda: choice([math.nan]), ValueError, "is NaN"),
        (lambda: logordinal([[1], [2]]), ValueError, "kind 'nn-log' needs increasing numbers"),  # type: ignore[list-item]
        (
            lambda: reverseloguniform(0.5, 1),
            ValueError,
            r"the bounds must lie in \[0, 1\) .* got reverseloguniform\(0.5, 1.0\)",
        ),
        (lambda: reverseloguniform(-0.5, 0.5), ValueError, "for values near 0 use loguniform"),
        (
            lambda: quniform(0, 1, 0.3),
            ValueError,
            "upper 1.0 is not a multiple of q = 0.3; the nearest ones are 0.9 and 1.2",
        ),
        (lambda: qrandint(5, 64, 8), ValueError, "lower 5 is not a multiple of q = 8; the nearest ones are 0 and 8"),
        (lambda: quniform(0, 1, 0), ValueError, "quniform: q must be above 0, got 0.0"),
        (lambda: qrandint(0, 4, 0.5), TypeError, "qrandint: q must be an int, got 0.5"),  # type: ignore[arg-type]
        (
            lambda: qloguniform(0, 1, 0.5),
            ValueError,
            "qloguniform: lower must be above 0, got 0.0; to include 0, use quniform",
        ),
        (
            lambda: ordinal(["a", "b"], "nn"),
            ValueError,
            r"kind 'nn' needs increasing numbers, got \['a', 'b'\]; use 'equal'",
        ),
        (lambda: ordinal([1, 2], "near"), ValueError, "'near' is not a kind; known: 'equal', 'nn', 'nn-log'"),  # type: ignore[arg-type]
        (lambda: ordinal("ab"), TypeError, "ordinal takes a list of values, got 'ab'"),
        (lambda: logordinal([0, 1]), ValueError, "kind 'nn-log' needs numbers above 0, got 0; use 'nn'"),
        (lambda: logordinal([2, 1]), ValueError, "needs increasing numbers"),
        (lambda: logfinrange(0, 1, 3), ValueError, "lower must be above 0, got 0.0; to include 0, use finrange"),
        (
            lambda: logfinrange(1, 8, 6, cast_int=True),
            ValueError,
            "are too close together; reduce size or use lograndint",
        ),
        (lambda: finrange(0, 1, 1), ValueError, "size must be at least 2, got 1"),
        (lambda: finrange(0, 1, 2.0), TypeError, "size must be an int"),  # type: ignore[arg-type]
        (lambda: finrange(1, 0, 3), ValueError, "is above upper"),
        (lambda: finrange(0, 9, 3, "no"), TypeError, "cast_int must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: finrange(1, 4, 10, cast_int=True), ValueError, "fewer than 10 integers"),
        (lambda: finrange(0.5, 4, 2, cast_int=True), TypeError, "lower must be an int"),
        (lambda: finrange(1e16, 1e16 + 4, 1000), ValueError, "too close together"),
    ],
)
def test_bad_bounds_are_refused_at_once(make: Callable[[], Domain], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


OBJECTS: list[tuple[list[Any], list[str]]] = [
    ([(3, 3), (5, 5)], ["(3, 3)", "(5, 5)"]),
    ([[64], [64, 64]], ["[64]", "[64, 64]"]),
    ([{"depth": 1}, {"depth": 2}], ["{'depth': 1}", "{'depth': 2}"]),
    ([math.sin, math.cos], ["sin", "cos"]),
    ([int, np.float32], ["int", "float32"]),
    ([lambda x: x, lambda x: -x], ["<lambda>#0", "<lambda>#1"]),
    ([[1], [True], [1.0]], ["[1]", "[True]", "[1.0]"]),
    ([[math.sin], [print]], ["[<built-in function sin>]", "[<built-in function print>]"]),
    ([[doctest.testmod], object()], ["[<function testmod>]", "<object object>"]),
    ([{"b", "a"}, frozenset("c")], ["{'a', 'b'}", "{'c'}"]),
    ([np.zeros(2), np.ones(2)], ["array([0., 0.])", "array([1., 1.])"]),
]


@pytest.mark.parametrize("make", [choice, ordinal])
@pytest.mark.parametrize(("objects", "names"), OBJECTS)
def test_objects_are_categories_under_names(
    make: Callable[[list[Any]], FiniteDomain], objects: list[Any], names: list[str]
) -> None:
    domain = make(objects)
    assert [domain.value_at(index) for index in range(domain.num_values)] == names
    for index, (value, name) in enumerate(zip(objects, names, strict=True)):
        assert domain.contains(value) and domain.index_of(value) == domain.index_of(name) == index
        assert domain.normalize(value) == name
    restored_domain = domain_from_json(json.loads(json.dumps(domain_to_json(domain))))
    assert restored_domain == domain and repr(restored_domain) == repr(domain)
    assert restored_domain != make(names)


def test_objects_and_plain_categories_with_equal_names_differ() -> None:
    domain = choice(["sin", math.sin, 1, None])
    assert domain.categories == ("sin", "sin#1", 1, None)
    assert [domain.index_of(value) for value in ("sin", math.sin, 1.0, None)] == [0, 1, 2, 3]
    assert not domain.contains(math.cos) and not domain.contains([1])


def test_names_of_objects_are_short_and_differ() -> None:
    names = choice([list(range(100)), list(range(101))]).categories
    assert len(set(names)) == 2 and max(len(str(name)) for name in names) == 60
    assert choice([list(range(100))]).contains(list(range(100)))


def test_an_unknown_kind_of_domain_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'uniform'"):
        domain_from_json({"domain": "unifrom", "lower": 0, "upper": 1})
    with pytest.raises(ValueError, match="not the JSON form of a domain"):
        domain_from_json({"domain": "uniform", "low": 0, "high": 1})
