"""Powers and logarithms of two with the same bits on every machine, in a microsecond. Quiet: integers only.

    exp2(t) = 2**t      t and the result are integers that count units of 2**-80 (fixed point)
    log2(x)             the other way

The C library's exp and log differ from machine to machine in the last bit, and a search must replay with the same
bits. Integers do not differ. 2**t is taken apart as 2**whole * 2**(i/256) * 2**(j/65536) * 2**rest: two factors
from tables, and for the rest, below 2**-16, three terms of the exponential series. `log2` divides by the same tables.

Error: `exp2` lies below the true value, by less than 2**-70 of it; so a float made of it is off by at most 0.50002
units in the last place, where a correctly rounded one is off by 0.5.

`exp2` never falls. Within a step of the tables each operation is a rounded-down product of numbers that do not fall.
From one step to the next: at its end the series stops short of the true value by more than 2**-71, because its last
term is left out; the next step begins with less than 2**-77 of rounding. The tests look at the steps.
"""

import math
from bisect import bisect_right

FRACTION_BITS = 80
ONE = 1 << FRACTION_BITS

_STEPS = 256  # of each table
_REST_BITS = FRACTION_BITS - 16
_REST = (1 << _REST_BITS) - 1
_THREE = 3 * ONE
_LN2 = 0xB17217F7D1CF79ABC9E3  # in units of 2**-80
_LOG2_E = 0x171547652B82FE1777D0F  # in units of 2**-80
_SMALLEST_NORMAL_EXPONENT = -1000  # with room; below it floats have fewer bits, and are made by a division


def _powers_of_root(root_of: int) -> tuple[int, ...]:
    """2**(k / root_of) for k in 0..255, rounded down; root_of is a power of two."""
    more = 80  # bits beyond the table's, which all the roundings together do not reach
    scale = 1 << (FRACTION_BITS + more)
    root = 2 * scale
    for _ in range(root_of.bit_length() - 1):
        root = math.isqrt(root * scale)
    powers = [scale]
    for _ in range(_STEPS - 1):
        powers.append(powers[-1] * root // scale)
    return tuple(power >> more for power in powers)


_COARSE = _powers_of_root(_STEPS)
_FINE = _powers_of_root(_STEPS * _STEPS)


def exp2(t: int) -> tuple[int, int]:
    """2**t as (m, e): the power is m * 2**(e - 80), with m from 2**80 up to 2**81.

    >>> exp2(3 * ONE) == (ONE, 3)
    True
    """
    x = ((t & _REST) * _LN2) >> FRACTION_BITS
    rest = ONE + x + (((x * x) >> FRACTION_BITS) * (_THREE + x) // 6 >> FRACTION_BITS)
    table = (_COARSE[(t >> 72) & 255] * _FINE[(t >> 64) & 255]) >> FRACTION_BITS
    return (table * rest) >> FRACTION_BITS, t >> FRACTION_BITS


def exp2_float(t: int) -> float:
    """2**t as a float.

    >>> exp2_float(ONE // 2), exp2_float(-3 * ONE)
    (1.4142135623730951, 0.125)
    """
    m, e = exp2(t)
    if e > _SMALLEST_NORMAL_EXPONENT:
        return math.ldexp(m, e - FRACTION_BITS)
    return m / (1 << (FRACTION_BITS - e))


def log2(x: float) -> int:
    """The logarithm to base two of a positive float, in units of 2**-80; off by less than 2**-76.

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
