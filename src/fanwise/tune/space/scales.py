"""Logarithmic scales between two bounds, with bit-identical results on every machine.

    log            the scale from 1 to 100 maps 0.5 to 10         (loguniform)
    reverse log    the scale from 0.9 to 0.999 maps 0.5 to 0.99   (reverseloguniform; 1 - x is on a log scale)

Scales are monotone and never leave their bounds. A replay must be bit-identical, so scales do not use exp and log of
the C library, which differ between machines in the last bit.

Logarithms are integers in units of 2**-80 (fixed point). An exponent t is written as n + i/256 + j/65536 + r with
r < 2**-16. Then 2**t = 2**n * 2**(i/256) * 2**(j/65536) * e**x with x = r ln 2. Two tables hold the second and third
factors. e**x is computed by its series up to x**3. `exp2` rounds down with a relative error below 2**-70, so floats
from `exp2_float` are off by at most 0.50002 units in the last place. `exp2` is monotone within a table entry, because
all factors are monotone. It is also monotone across table entries: just below the next entry, the omitted x**4 / 24 is
more than 2**-71, so the result is too low by more than the rounding error (below 2**-77).
"""

import math
from bisect import bisect_right
from typing import final

FRACTION_BITS = 80
ONE = 1 << FRACTION_BITS

_FLOAT_ONE = float(ONE)
_BELOW_ONE = math.nextafter(1.0, 0.0)
_TABLE_SIZE = 256  # entries of each table
_X_BITS = FRACTION_BITS - 16
_X_MASK = (1 << _X_BITS) - 1
_THREE = 3 * ONE
_LN2 = 0xB17217F7D1CF79ABC9E3  # in units of 2**-80
_LOG2_E = 0x171547652B82FE1777D0F  # in units of 2**-80
_MIN_LDEXP_EXPONENT = -1000  # below this exponent, floats may be subnormal, and ldexp would round twice


def _powers_of_root(degree: int) -> tuple[int, ...]:
    """Return 2**(k / degree) for k in 0..255, rounded down. `degree` must be a power of two."""
    guard_bits = 80
    scale = 1 << (FRACTION_BITS + guard_bits)
    root = 2 * scale
    for _ in range(degree.bit_length() - 1):
        root = math.isqrt(root * scale)
    powers = [scale]
    for _ in range(_TABLE_SIZE - 1):
        powers.append(powers[-1] * root // scale)
    return tuple(power >> guard_bits for power in powers)


_COARSE = _powers_of_root(_TABLE_SIZE)
_FINE = _powers_of_root(_TABLE_SIZE * _TABLE_SIZE)


def exp2(log: int) -> tuple[int, int]:
    """Return (m, e) such that 2**(log / 2**80) = m * 2**(e - 80) and 2**80 <= m < 2**81.

    >>> exp2(3 * ONE) == (ONE, 3)
    True
    """
    x = ((log & _X_MASK) * _LN2) >> FRACTION_BITS
    series = ONE + x + (((x * x) >> FRACTION_BITS) * (_THREE + x) // 6 >> FRACTION_BITS)
    table = (_COARSE[(log >> 72) & 255] * _FINE[(log >> 64) & 255]) >> FRACTION_BITS
    return (table * series) >> FRACTION_BITS, log >> FRACTION_BITS


def exp2_float(log: int) -> float:
    """Return 2**(log / 2**80) as a float.

    >>> exp2_float(ONE // 2), exp2_float(-3 * ONE)
    (1.4142135623730951, 0.125)
    """
    m, e = exp2(log)
    if e > _MIN_LDEXP_EXPONENT:
        return math.ldexp(m, e - FRACTION_BITS)
    return m / (1 << (FRACTION_BITS - e))


def log2(x: float) -> int:
    """Return the base-2 logarithm of a positive float in units of 2**-80, with an error below 2**-76.

    >>> log2(0.25) == -2 * ONE
    True
    """
    part, exponent = math.frexp(x)
    m = int(part * (1 << 53)) << (FRACTION_BITS - 52)
    i = bisect_right(_COARSE, m) - 1
    m = (m << FRACTION_BITS) // _COARSE[i]
    j = bisect_right(_FINE, m) - 1
    z = (m << FRACTION_BITS) // _FINE[j] - ONE
    z2 = (z * z) >> FRACTION_BITS
    z3 = (z2 * z) >> FRACTION_BITS
    z4 = (z3 * z) >> FRACTION_BITS
    natural = z - z2 // 2 + z3 // 3 - z4 // 4
    return ((exponent - 1) << FRACTION_BITS) + (i << 72) + (j << 64) + ((natural * _LOG2_E) >> FRACTION_BITS)


def check_unit(u: float) -> float:
    """Return u. Raises ValueError if it is not in [0, 1)."""
    if not 0.0 <= u < 1.0:
        raise ValueError(f"u must lie in [0, 1), got {u!r}")
    return u


def below_one(u: float) -> float:
    """Clip u to [0, 1)."""
    return min(max(u, 0.0), _BELOW_ONE)


@final
class LogScale:
    """A log scale. Equal distances in [0, 1) are equal ratios of values. `lower` must be above 0."""

    __slots__ = ("_log_lower", "_log_width", "_lower", "_upper")

    def __init__(self, lower: float, upper: float) -> None:
        self._lower, self._upper = lower, upper
        self._log_lower = log2(lower)
        self._log_width = log2(upper) - self._log_lower

    def log_at(self, u: float) -> int:
        """Return the logarithm of the value at u, in units of 2**-80."""
        return self._log_lower + (int(u * _FLOAT_ONE) * self._log_width >> FRACTION_BITS)

    def at(self, u: float) -> float:
        """Return the value at u in [0, 1)."""
        return min(max(exp2_float(self.log_at(u)), self._lower), self._upper)

    def at_step(self, index: int, num_steps: int) -> float:
        """Return the value after `index` of `num_steps` equal steps.

        Bounds such as 0.001 are not exact in binary, so the computed value may be 9.999999999999998 instead of 10. It
        is therefore rounded to 12 significant digits if that changes it by at most 2 ulp.
        """
        value = exp2_float(self._log_lower + self._log_width * index // num_steps)
        decimal = float(f"{value:.12g}")
        return decimal if abs(decimal - value) <= 2 * math.ulp(value) else value

    def position(self, value: float) -> float:
        """Return the u in [0, 1) that `at` maps to this value. The value must be between the bounds."""
        return below_one((log2(value) - self._log_lower) / self._log_width)


@final
class ReverseLogScale:
    """A log scale of the distances of values to 1. `upper` must be below 1. Methods are those of `LogScale`."""

    __slots__ = ("_log_max_distance", "_log_width", "_lower", "_upper")

    def __init__(self, lower: float, upper: float) -> None:
        self._lower, self._upper = lower, upper
        self._log_max_distance = log2(1.0 - lower)
        self._log_width = self._log_max_distance - log2(1.0 - upper)

    def at(self, u: float) -> float:
        if u == 0.0:
            return self._lower  # because 1 - (1 - lower) may differ
        distance = exp2_float(self._log_max_distance - (int(u * _FLOAT_ONE) * self._log_width >> FRACTION_BITS))
        return min(max(1.0 - distance, self._lower), self._upper)

    def position(self, value: float) -> float:
        return below_one((self._log_max_distance - log2(1.0 - value)) / self._log_width)
