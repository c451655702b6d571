"""Functions of one array, element by element, real types first; complex ones that TensorFlow gets wrong or lacks
are in complexes.py.

The special values (nan, infinities, signed zeros) are those of the standard; where TensorFlow's kernel differs, a
comment says so. On the CPU TensorFlow flushes subnormal numbers to zero.
"""

import math
from collections.abc import Callable

from .. import tf
from . import complexes
from .arguments import Array, one
from .creation import as_device
from .dtypes import (
    ALL,
    BOOL,
    COMPLEX,
    COMPLEX_OF,
    FLOATING,
    INTEGER,
    INTEGER_OR_BOOL,
    NUMERIC,
    REAL,
    REAL_FLOATING,
    UNSIGNED,
    Tensor,
    as_dtype,
    cast,
)

_WORD_OF_SIZE = {2: tf.int16, 4: tf.int32, 8: tf.int64}


def _floating(name: str, x: Array, real: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `real`, or for complex numbers the function of the same name in complexes.py if there is one."""
    x = one(name, x, FLOATING)
    if x.dtype in COMPLEX:
        return getattr(complexes, name, real)(x)
    return real(x)


def abs(x: Array, /) -> Tensor:
    """The absolute value; of a complex number its distance from 0, as a real number."""
    x = one("abs", x, NUMERIC)
    return x if x.dtype in UNSIGNED else tf.abs(x)


def acos(x: Array, /) -> Tensor:
    """The angle in [0, pi] whose cosine x is."""
    return _floating("acos", x, tf.acos)


def acosh(x: Array, /) -> Tensor:
    """The number >= 0 whose hyperbolic cosine x is."""
    return _floating("acosh", x, tf.acosh)


def asin(x: Array, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine x is."""
    return _floating("asin", x, tf.asin)


def asinh(x: Array, /) -> Tensor:
    """The number whose hyperbolic sine x is."""
    return _floating("asinh", x, tf.asinh)


def atan(x: Array, /) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent x is."""
    return _floating("atan", x, tf.atan)


def atanh(x: Array, /) -> Tensor:
    """The number whose hyperbolic tangent x is."""
    return _floating("atanh", x, tf.atanh)


def bitwise_invert(x: Array, /) -> Tensor:
    """Every bit turned over; for bool the same as logical_not."""
    x = one("bitwise_invert", x, INTEGER_OR_BOOL)
    return tf.logical_not(x) if x.dtype == tf.bool else tf.bitwise.invert(x)


def ceil(x: Array, /) -> Tensor:
    """The smallest whole number not below x."""
    x = one("ceil", x, REAL)
    return x if x.dtype in INTEGER else tf.math.ceil(x)


def conj(x: Array, /) -> Tensor:
    """The complex conjugate; real numbers as they are."""
    return tf.math.conj(one("conj", x, NUMERIC))


def cos(x: Array, /) -> Tensor:
    """The cosine of an angle in radians."""
    return _floating("cos", x, tf.cos)


def cosh(x: Array, /) -> Tensor:
    """The hyperbolic cosine."""
    return _floating("cosh", x, tf.cosh)


def exp(x: Array, /) -> Tensor:
    """e to the power x."""
    return _floating("exp", x, tf.exp)


def expm1(x: Array, /) -> Tensor:
    """e to the power x, minus 1, exact also near 0."""
    return _floating("expm1", x, tf.math.expm1)


def floor(x: Array, /) -> Tensor:
    """The largest whole number not above x."""
    x = one("floor", x, REAL)
    return x if x.dtype in INTEGER else tf.floor(x)


def imag(x: Array, /) -> Tensor:
    """The imaginary part of complex numbers, as real numbers."""
    return tf.math.imag(one("imag", x, COMPLEX))


def isfinite(x: Array, /) -> Tensor:
    """Where x is neither nan nor infinite."""
    x = one("isfinite", x, NUMERIC)
    if x.dtype in COMPLEX:
        return tf.logical_and(tf.math.is_finite(tf.math.real(x)), tf.math.is_finite(tf.math.imag(x)))
    return tf.ones_like(x, tf.bool) if x.dtype in INTEGER else tf.math.is_finite(x)


def isinf(x: Array, /) -> Tensor:
    """Where x, or a part of it, is infinite."""
    return _where_part("isinf", x, tf.math.is_inf)


def isnan(x: Array, /) -> Tensor:
    """Where x, or a part of it, is nan."""
    return _where_part("isnan", x, tf.math.is_nan)


def _where_part(name: str, x: Array, is_so: Callable[[Tensor], Tensor]) -> Tensor:
    x = one(name, x, NUMERIC)
    if x.dtype in COMPLEX:
        return tf.logical_or(is_so(tf.math.real(x)), is_so(tf.math.imag(x)))
    return tf.zeros_like(x, tf.bool) if x.dtype in INTEGER else is_so(x)


def log(x: Array, /) -> Tensor:
    """The natural logarithm."""
    return _floating("log", x, tf.math.log)


def log10(x: Array, /) -> Tensor:
    """The logarithm to base 10."""
    return _scaled_log(log(x), math.log(10.0))


def log1p(x: Array, /) -> Tensor:
    """The natural logarithm of 1 + x, exact also near 0."""
    return _floating("log1p", x, tf.math.log1p)


def log2(x: Array, /) -> Tensor:
    """The logarithm to base 2."""
    return _scaled_log(log(x), math.log(2.0))


def _scaled_log(x: Tensor, scale: float) -> Tensor:
    if x.dtype in COMPLEX:  # by parts: a complex quotient makes nan of infinities
        return tf.complex(tf.math.real(x) / scale, tf.math.imag(x) / scale)
    return x / scale


def logical_not(x: Array, /) -> Tensor:
    """Where x is False."""
    return tf.logical_not(one("logical_not", x, BOOL))


def negative(x: Array, /) -> Tensor:
    """-x; of unsigned numbers modulo the size of the type."""
    x = one("negative", x, NUMERIC)
    return tf.zeros_like(x) - x if x.dtype in UNSIGNED else tf.negative(x)


def positive(x: Array, /) -> Tensor:
    """x itself."""
    return one("positive", x, NUMERIC)


def real(x: Array, /) -> Tensor:
    """The real part; real numbers as they are."""
    return tf.math.real(one("real", x, NUMERIC))


def reciprocal(x: Array, /) -> Tensor:
    """1 / x."""
    x = one("reciprocal", x, FLOATING)
    return complexes.divide(tf.ones_like(x), x) if x.dtype in COMPLEX else tf.ones_like(x) / x


def round(x: Array, /) -> Tensor:
    """The nearest whole number, the even one if two are equally near; of complex numbers part by part."""
    x = one("round", x, NUMERIC)
    if x.dtype in COMPLEX:
        return tf.complex(tf.round(tf.math.real(x)), tf.round(tf.math.imag(x)))
    return x if x.dtype in INTEGER else tf.round(x)


def sign(x: Array, /) -> Tensor:
    """-1, 0 or 1 with the sign of x; of a complex number the one of length 1 in its direction."""
    x = one("sign", x, NUMERIC)
    if x.dtype in COMPLEX:
        return complexes.sign(x)
    return tf.cast(tf.not_equal(x, tf.zeros_like(x)), x.dtype) if x.dtype in UNSIGNED else tf.sign(x)


def signbit(x: Array, /) -> Tensor:
    """Where the sign of x is minus, that of -0.0 and nan included."""
    return sign_of(one("signbit", x, REAL_FLOATING))


def sign_of(x: Tensor) -> Tensor:
    """signbit of a tensor known to be floating."""
    return tf.bitcast(x, _WORD_OF_SIZE[x.dtype.size]) < 0


def sin(x: Array, /) -> Tensor:
    """The sine of an angle in radians."""
    return _floating("sin", x, tf.sin)


def sinh(x: Array, /) -> Tensor:
    """The hyperbolic sine."""
    return _floating("sinh", x, tf.sinh)


def sqrt(x: Array, /) -> Tensor:
    """The square root; nan for negative real numbers."""
    return _floating("sqrt", x, tf.sqrt)


def square(x: Array, /) -> Tensor:
    """x * x."""
    return tf.square(one("square", x, NUMERIC))


def tan(x: Array, /) -> Tensor:
    """The tangent of an angle in radians."""
    return _floating("tan", x, tf.tan)


def tanh(x: Array, /) -> Tensor:
    """The hyperbolic tangent."""
    return _floating("tanh", x, tf.tanh)


def trunc(x: Array, /) -> Tensor:
    """The nearest whole number towards 0."""
    x = one("trunc", x, REAL)
    return x if x.dtype in INTEGER else tf.where(x < 0, tf.math.ceil(x), tf.floor(x))


def astype(x: Array, dtype: Tensor, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """x with elements of another type. Floats lose what is behind the point; True is 1, and nan is True.

    A tensor cannot change, so `copy` makes no difference.

    Raises:
        TypeError: complex numbers are asked to become real; take `real` or `imag` of them.
    """
    x, dtype = one("astype", x, ALL), as_dtype(dtype)
    if x.dtype in COMPLEX and dtype not in COMPLEX | BOOL:
        raise TypeError(f"{x.dtype.name} does not become {dtype.name}: take fanwise.tensor.real(x), imag(x) or abs(x)")
    with as_device(device):
        x = cast(x, dtype)
        return x if device is None else tf.identity(x)


def to_complex(x: Tensor) -> Tensor:
    """Complex numbers of a floating-point tensor, which may be complex already."""
    return x if x.dtype in COMPLEX else tf.cast(x, COMPLEX_OF[x.dtype])
