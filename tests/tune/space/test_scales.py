"""Powers and logarithms of two, held against decimal arithmetic with 60 digits."""

import math
from decimal import Context, Decimal, localcontext
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.space import scales
from fanwise.tune.space.scales import ONE, exp2, exp2_float, log2

PRECISE = Context(prec=60)
LN2 = PRECISE.ln(Decimal(2))
ARGUMENTS = st.integers(-1020 * ONE, 1020 * ONE)


def power(t: int) -> Decimal:
    return PRECISE.exp(PRECISE.multiply(PRECISE.divide(Decimal(t), Decimal(ONE)), LN2))


def value_of(m: int, e: int) -> Decimal:
    with localcontext(PRECISE):
        return Decimal(m) * Decimal(2) ** (e - 80)


@given(ARGUMENTS)
def test_a_power_lies_below_the_true_one_by_less_than_2_to_the_minus_70(t: int) -> None:
    m, e = exp2(t)
    with localcontext(PRECISE):
        error = (power(t) - value_of(m, e)) / power(t)
        assert -(Decimal(2) ** -180) < error < Decimal(2) ** -70  # the reference is rounded too
    assert ONE <= m < 2 * ONE


@given(ARGUMENTS)
def test_a_float_is_off_by_hardly_more_than_half_a_unit_in_the_last_place(t: int) -> None:
    result = exp2_float(t)
    with localcontext(PRECISE):
        assert abs(Decimal(result) - power(t)) <= Decimal("0.50002") * Decimal(math.ulp(result))


@given(st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False))
def test_a_logarithm_is_off_by_less_than_2_to_the_minus_76(x: float) -> None:
    with localcontext(PRECISE):
        assert abs(Decimal(log2(x)) / ONE - Decimal(x).ln() / LN2) < Decimal(2) ** -76


@given(st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False))
def test_the_power_of_a_logarithm_is_the_number(x: float) -> None:
    assert exp2_float(log2(x)) == x


@given(ARGUMENTS, st.integers(0, 2**70))
def test_powers_do_not_fall(t: int, further: int) -> None:
    assert value_of(*exp2(t)) <= value_of(*exp2(t + further))
    assert exp2_float(t) <= exp2_float(t + further)


def test_powers_rise_from_each_step_of_the_tables_to_the_next() -> None:
    # Between steps every operation is monotone; at a step the tables take over from the series.
    for step in range(1, 256 * 256):
        (before, whole_before), (after, whole_after) = exp2((step << 64) - 1), exp2(step << 64)
        assert whole_before == whole_after == 0
        assert before < after, f"at step {step}"


def test_the_tables_are_the_powers_rounded_down() -> None:
    for table, root in ((scales._COARSE, 256), (scales._FINE, 65536)):
        assert [int(power(k * ONE // root) * ONE) for k in range(256)] == list(table)


def test_the_constants_are_rounded_down() -> None:
    assert int(LN2 * ONE) == scales._LN2
    assert int(PRECISE.divide(Decimal(ONE), LN2)) == scales._LOG2_E


def test_the_smallest_floats_are_rounded_once() -> None:
    chance = Random(3)
    for _ in range(300):
        t = -1000 * ONE - chance.randrange(80 * ONE)
        with localcontext(PRECISE):
            nearest = int((power(t) * Decimal(2) ** 1074).to_integral_value())
        if t > -1022 * ONE:
            continue  # normal floats, which other tests look at
        assert exp2_float(t) == nearest * 5e-324


def test_these_bits_are_the_same_on_every_machine() -> None:
    assert [exp2_float(t).hex() for t in (ONE // 3, -7 * ONE // 5, 1000 * ONE + ONE // 7)] == BITS
    assert [log2(x) for x in (3.0, 1e-4)] == LOGARITHMS


BITS = ["0x1.428a2f98d728bp+0", "0x1.8406003b2ae5cp-2", "0x1.1aa59c4115e7dp+1000"]
LOGARITHMS = [1916102090242776021049355, -16063858579250272566590230]
