"""Standard normal numbers from random words, with the same bits on every machine: only + - * / and sqrt, no log.

Word w becomes x = Q((w + 1/2) / 2**64), where w is read as a signed integer and Q is the inverse of the normal
distribution, counted from its middle: algorithm AS 241, PPND16 (Wichura, Applied Statistics 37, 1988, pp. 477-484), a
rational function of the word in the middle, and of sqrt(-log p) in the tails, 15 % of the words; p is the distance to
the nearer end, to all its bits. The logarithm is the series of fdlibm (Sun Microsystems, e_log.c). IEEE 754 fixes the
result of each operation on 64-bit floats, and NumPy stores each result, so nothing is fused.
"""

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]
_Real = TypeVar("_Real", float, _Floats)
# Coefficients of a polynomial: that of the highest power, those between in order, and the constant.
_Powers = tuple[float, tuple[float, ...], float]


def _powers(numbers: str) -> _Powers:
    highest, *between, constant = map(float, numbers.split())
    return highest, tuple(between), constant


_MIDDLE_TOP = _powers("""
    2.5090809287301226727e3 3.3430575583588128105e4 6.7265770927008700853e4 4.5921953931549871457e4
    1.3731693765509461125e4 1.9715909503065514427e3 1.3314166789178437745e2 3.3871328727963666080e0
""")
_MIDDLE_BOTTOM = _powers("""
    5.2264952788528545610e3 2.8729085735721942674e4 3.9307895800092710610e4 2.1213794301586595867e4
    5.3941960214247511077e3 6.8718700749205790830e2 4.2313330701600911252e1 1.0
""")
_TAIL_TOP = _powers("""
    7.74545014278341407640e-4 2.27238449892691845833e-2 2.41780725177450611770e-1 1.27045825245236838258e0
    3.64784832476320460504e0 5.76949722146069140550e0 4.63033784615654529590e0 1.42343711074968357734e0
""")
_TAIL_BOTTOM = _powers("""
    1.05075007164441684324e-9 5.47593808499534494600e-4 1.51986665636164571966e-2 1.48103976427480074590e-1
    6.89767334985100004550e-1 1.67638483018380384940e0 2.05319162663775882187e0 1.0
""")
_FAR_TOP = _powers("""
    2.01033439929228813265e-7 2.71155556874348757815e-5 1.24266094738807843860e-3 2.65321895265761230930e-2
    2.96560571828504891230e-1 1.78482653991729133580e0 5.46378491116411436990e0 6.65790464350110377720e0
""")
_FAR_BOTTOM = _powers("""
    2.04426310338993978564e-15 1.42151175831644588870e-7 1.84631831751005468180e-5 7.86869131145613259100e-4
    1.48753612908506148525e-2 1.36929880922735805310e-1 5.99832206555887937690e-1 1.0
""")
# fdlibm's Lg7 ... Lg1.
_LOG_SERIES = _powers("""
    1.479819860511658591e-01 1.531383769920937332e-01 1.818357216161805012e-01 2.222219843214978396e-01
    2.857142874366239149e-01 3.999999999940941908e-01 6.666666666666735130e-01
""")
_LN2 = 6.93147180559945309417e-01
_SCALE = 2.0**-64
_REACH = 0.425 * 0.425  # square of the reach of the middle
_FAR_FROM = 5.0
_ROOT_HALF = 0.7071067811865476
_LARGEST = 2**63 - 1
_LARGEST_WORD = 2**64 - 1


def standard_normal(words: Words) -> _Floats:
    """Return one number for each word (one axis)."""
    signed = words.view(np.int64)
    # The same for a word and its complement, -1 - w, although adding 1/2 above 2**53 rounds up or down.
    magnitude = signed ^ (signed >> 63)
    unit = magnitude.astype(np.float64)
    unit += 0.5
    unit *= _SCALE
    np.copysign(unit, signed, out=unit)
    room = unit * unit
    np.subtract(_REACH, room, out=room)
    (tail,) = (room < 0.0).nonzero()
    x = _quotient(_MIDDLE_TOP, _MIDDLE_BOTTOM, room)
    x *= unit
    if tail.size:
        x[tail] = np.copysign(_tail(magnitude[tail]), unit[tail])
    return x


def standard_normal_of(word: int) -> float:
    """Return the number of one word, with the same bits as `standard_normal`."""
    magnitude = word if word <= _LARGEST else _LARGEST_WORD - word
    unit = math.copysign((magnitude + 0.5) * _SCALE, _LARGEST - word)
    room = _REACH - unit * unit
    if room >= 0.0:
        return _quotient(_MIDDLE_TOP, _MIDDLE_BOTTOM, room) * unit
    mantissa, exponent = math.frexp(float(_LARGEST - magnitude) + 0.5)
    if mantissa < _ROOT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    r = math.sqrt(_minus_log(mantissa, (64 - exponent) * _LN2))
    if r > _FAR_FROM:
        return math.copysign(_quotient(_FAR_TOP, _FAR_BOTTOM, r - _FAR_FROM), unit)
    return math.copysign(_quotient(_TAIL_TOP, _TAIL_BOTTOM, r - 1.6), unit)


def _tail(magnitude: npt.NDArray[np.int64]) -> _Floats:
    # The distance to the end is an exact integer before it becomes a float.
    mantissa, exponent = np.frexp((_LARGEST - magnitude).astype(np.float64) + 0.5)
    small = mantissa < _ROOT_HALF
    mantissa[small] *= 2.0
    exponent -= small
    r = np.sqrt(_minus_log(mantissa, (64 - exponent) * _LN2))
    x = _quotient(_TAIL_TOP, _TAIL_BOTTOM, r - 1.6)
    far = r > _FAR_FROM
    if far.any():
        x[far] = _quotient(_FAR_TOP, _FAR_BOTTOM, r[far] - _FAR_FROM)
    return x


def _minus_log(mantissa: _Real, of_exponent: _Real) -> _Real:
    """Return -log of the mantissa, which lies between the roots of 1/2 and 2, plus the part of the exponent.

    The sum is at least 2.5 here, so nothing cancels and one float of log 2 is enough.
    """
    f = mantissa - 1.0
    s = f / (f + 2.0)
    z = s * s
    return of_exponent - (f - s * (f - _polynomial(_LOG_SERIES, z) * z))


def _quotient(top: _Powers, bottom: _Powers, x: _Real) -> _Real:
    y = _polynomial(top, x)
    y /= _polynomial(bottom, x)
    return y


# Horner's rule in place: a new array for every step takes longer than the step.
def _polynomial(powers: _Powers, x: _Real) -> _Real:
    highest, between, constant = powers
    y = highest * x
    for coefficient in between:
        y += coefficient
        y *= x
    y += constant
    return y
