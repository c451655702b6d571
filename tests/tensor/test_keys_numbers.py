"""Exact random numbers: their words, errors and distributions."""

import math
import statistics
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanwise.tensor import Key, normal, permutation, uniform, use
from fanwise.tensor.random import exact, gaussian

Array = np.ndarray[Any, Any]  # Any: of any dtype
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
WORDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 64).map(lambda n: (2**63 - 1 + n - 32) % 2**64))


@pytest.fixture(autouse=True)
def _numpy() -> Any:  # Any: a generator
    with use("numpy"):
        yield


def exact_normal(word: int, near: float) -> Any:  # Any: mpmath has no types
    """The inverse of the normal distribution at a word, to 50 digits, by Newton's method from `near`."""
    with mpmath.workdps(50):
        unit = (mpmath.mpf(word if word < 2**63 else word - 2**64) + 0.5) / mpmath.mpf(2) ** 64
        half, x = mpmath.mpf(1) / 2, mpmath.mpf(abs(near))
        for _ in range(4):
            # In the tail the small numbers are compared, not those near one half.
            if abs(unit) < 0.4:
                x -= (mpmath.erf(x / mpmath.sqrt(2)) / 2 - abs(unit)) / mpmath.npdf(x)
            else:
                x += (mpmath.erfc(x / mpmath.sqrt(2)) / 2 - (half - abs(unit))) / mpmath.npdf(x)
        return x if unit > 0 else -x


def of(words_drawn: list[int]) -> list[float]:
    return [float(x) for x in gaussian.standard_normal(np.array(words_drawn, np.uint64))]


@given(WORDS)
def test_a_normal_number_is_exact_to_four_units_of_its_last_place(word: int) -> None:
    result = of([word])[0]
    assert gaussian.standard_normal_of(word) == result
    with mpmath.workdps(50):
        error = abs((mpmath.mpf(result) - exact_normal(word, result)) / exact_normal(word, result))
    assert error < 8e-16


@example(11899801987152873, 0)  # above 2**53 a half cannot be added exactly
@given(WORDS, WORDS)
def test_larger_words_give_larger_numbers_and_complements_their_negatives(a: int, b: int) -> None:
    low, high = sorted([a, b], key=lambda word: (word + 2**63) % 2**64)
    first, second, complement = of([low, high, 2**64 - 1 - low])
    assert complement == -first
    # But for the last places, in which the numbers of neighbours may be the wrong way round.
    assert first <= second + 2e-15 * abs(second)


def test_the_tails_reach_nine_standard_deviations() -> None:
    assert of([2**63 - 1, 2**63]) == [9.155293772686074, -9.155293772686074]


@given(st.integers(0, 99), st.integers(0, 80), st.integers(0, 80))
def test_an_array_begins_with_a_shorter_one(seed: int, n: int, more: int) -> None:
    key = Key(seed)
    for draw in (normal, uniform):
        assert draw(key, n + more)[:n].tolist() == draw(key, n).tolist()


@given(st.integers(0, 99), st.integers(0, 80))
def test_narrow_normal_numbers_are_the_wide_ones_rounded(seed: int, n: int) -> None:
    wide = normal(Key(seed), n, dtype="float64")
    single = wide.astype(np.float32)
    assert normal(Key(seed), n).tolist() == single.tolist()


@given(st.integers(0, 99), SHAPES)
def test_a_shape_is_filled_along_its_last_axis(seed: int, shape: tuple[int, ...]) -> None:
    key, size = Key(seed), math.prod(shape)
    for draw in (normal, uniform):
        result = draw(key, shape)
        assert type(result) is np.ndarray and result.shape == shape
        assert result.reshape(-1).tolist() == draw(key, size).tolist()


@given(st.integers(0, 99), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_uniform_is_low_plus_the_words_upper_bits_times_the_range(seed: int, low: float, width: float) -> None:
    key, high = Key(seed), low + width
    drawn = exact.words(key.words, exact.UNIFORM, 40).tolist()
    top = math.nextafter(high, -math.inf)
    expected = [min((word >> 11) * 2.0**-53 * (high - low) + low, top) for word in drawn]
    assert uniform(key, 40, low, high, dtype="float64").tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_is_less_than_high_after_rounding(dtype: str) -> None:
    near = 2.0**-51 if dtype == "float64" else 2.0**-22
    for low, high in [(0.0, 1.0), (-1.0, 0.1), (3.0, 3.01), (0.5, 0.7), (1.0, 1.0 + near)]:
        result = uniform(Key(1), 50_000, low, high, dtype=dtype).astype(np.float64)
        assert result.max() < high
        assert result.min() >= low - 0.01 * abs(low)


@given(st.integers(0, 99), st.integers(0, 300))
def test_a_permutation_has_each_number_once(seed: int, n: int) -> None:
    order = permutation(Key(seed), n)
    assert sorted(order.tolist()) == list(range(n)) and order.dtype == np.int64


def test_permutations_are_equally_likely() -> None:
    result = [tuple(permutation(Key(0).fold_in(number), 3).tolist()) for number in range(3000)]
    counts = [result.count(order) for order in set(result)]
    assert len(counts) == 6 and sum((count - 500) ** 2 / 500 for count in counts) < 20.5


def test_normal_numbers_have_the_moments_of_the_distribution() -> None:
    x = normal(Key(3), 400_000, dtype="float64")
    for power, moment, sd in [(1, 0.0, 1.0), (2, 1.0, 2**0.5), (3, 0.0, 15**0.5), (4, 3.0, 96**0.5)]:
        assert abs((x**power).mean() - moment) < 4 * sd / 400_000**0.5
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 4 / 400_000**0.5
    assert np.array_equal(normal(Key(3), 100, 5.0, 0.25), (x[:100] * 0.25 + 5.0).astype(np.float32))


def test_kinds_of_numbers_from_one_key_have_nothing_in_common() -> None:
    u, x = uniform(Key(0), 10_000), normal(Key(0), 10_000)
    ranks = [np.argsort(np.argsort(values)) for values in (u, x, permutation(Key(0), 10_000))]
    assert np.abs(np.corrcoef(ranks) - np.eye(3)).max() < 0.05


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ten_million_normal_numbers_are_normal_to_their_tails(dtype: str) -> None:
    from scipy import stats

    n, exact = 10_000_000, statistics.NormalDist()
    x = normal(Key(11), n, dtype=dtype).astype(np.float64)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    for sigmas in (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0):
        expected = n * exact.cdf(-sigmas)
        for tail in (int((x < -sigmas).sum()), int((x > sigmas).sum())):
            assert stats.poisson.cdf(tail, expected) > 1e-5 and stats.poisson.sf(tail - 1, expected) > 1e-5


# Any: functions of a key.
REFUSED: list[tuple[Any, str]] = [
    (lambda k: uniform(k, 2, 1.0, 1.0), "low must be less than high"),
    (lambda k: uniform(k, 2, 0.0, 1e39), "finite in float32"),
    (lambda k: uniform(k, 2, dtype="int32"), "dtype must be one of float32, float64"),
    (lambda k: normal(k, -1), "must be at least 0, got -1"),
    (lambda k: normal(k, 2, 0.0, -1.0), "std finite and at least 0"),
    (lambda k: normal(k, 2, math.nan), "mean must be finite"),
    (lambda k: normal(k, 2, engine="tourch"), "one of torch, jax, tensorflow, numpy, got 'tourch'"),
    (lambda k: permutation(k, -3), "must be at least 0"),
]


def test_wrong_arguments_of_draws_are_refused() -> None:
    for draw, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            draw(Key(0))
    with pytest.raises(TypeError):
        normal(Key(0), 2.5)  # type: ignore[arg-type]
