"""Functions of two arrays that compute numbers: types mix as the standard says, shapes broadcast.

Integer division by zero raises tf.errors.InvalidArgumentError, as TensorFlow has it: the standard leaves it open.
"""

from collections.abc import Callable

from .. import tf
from . import complexes
from .arguments import Array, Operand, one, two
from .dtypes import (
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGER,
    INTEGER_OR_BOOL,
    NUMERIC,
    REAL,
    REAL_FLOATING,
    UNSIGNED,
    Tensor,
)
from .elementwise import sign_of

_ops = tf.raw_ops


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 + x2."""
    x1, x2 = two("add", x1, x2, NUMERIC)
    return _ops.AddV2(x=x1, y=x2)


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle of the point with height x1 and breadth x2, in [-pi, pi]."""
    x1, x2 = two("atan2", x1, x2, REAL_FLOATING)
    return tf.atan2(x1, x2)


def _bitwise(name: str, x1: Operand, x2: Operand, on_bool: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    x1, x2 = two(f"bitwise_{name}", x1, x2, INTEGER_OR_BOOL)
    return on_bool(x1, x2) if x1.dtype == tf.bool else getattr(tf.bitwise, f"bitwise_{name}")(x1, x2)


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits that both have."""
    return _bitwise("and", x1, x2, tf.logical_and)


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits that one or both have."""
    return _bitwise("or", x1, x2, tf.logical_or)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits that just one has."""
    return _bitwise("xor", x1, x2, tf.not_equal)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of x1, x2 places to the left; 0 once all are pushed out."""
    x1, x2 = two("bitwise_left_shift", x1, x2, INTEGER)
    # TensorFlow's kernel takes more places than there are for one less than there are.
    return tf.where(_all_out(x1, x2), tf.zeros_like(x1), tf.bitwise.left_shift(x1, x2))


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """The bits of x1, x2 places to the right; the sign's bit moves in from the left."""
    x1, x2 = two("bitwise_right_shift", x1, x2, INTEGER)
    shifted = tf.bitwise.right_shift(x1, x2)
    return tf.where(_all_out(x1, x2), tf.zeros_like(x1), shifted) if x1.dtype in UNSIGNED else shifted


def _all_out(x: Tensor, places: Tensor) -> Tensor:
    return places >= tf.constant(8 * x.dtype.size, x.dtype)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """The magnitude of x1 with the sign of x2."""
    x1, x2 = two("copysign", x1, x2, REAL_FLOATING)
    magnitude = tf.abs(x1)
    return tf.where(sign_of(x2), -magnitude, magnitude)


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2 of floating-point numbers."""
    x1, x2 = two("divide", x1, x2, FLOATING)
    return complexes.divide(x1, x2) if x1.dtype in COMPLEX else _ops.RealDiv(x=x1, y=x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """The largest whole number not above x1 / x2.

    Raises:
        tf.errors.InvalidArgumentError: an integer is divided by zero.
    """
    x1, x2 = two("floor_divide", x1, x2, REAL)
    return _ops.FloorDiv(x=x1, y=x2)


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """The square root of x1 * x1 + x2 * x2, without overflow on the way."""
    x1, x2 = two("hypot", x1, x2, REAL_FLOATING)
    if x1.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.abs(tf.complex(tf.cast(x1, tf.float32), tf.cast(x2, tf.float32))), x1.dtype)
    return tf.abs(tf.complex(*_broadcast(x1, x2)))


def _broadcast(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    if x1.shape.is_fully_defined() and x1.shape == x2.shape:
        return x1, x2
    shape = tf.broadcast_dynamic_shape(tf.shape(x1), tf.shape(x2))
    if x1.shape.is_fully_defined() and x2.shape.is_fully_defined():
        shape = tf.broadcast_static_shape(x1.shape, x2.shape)
    return tf.broadcast_to(x1, shape), tf.broadcast_to(x2, shape)


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """The logarithm of exp(x1) + exp(x2), without overflow on the way."""
    x1, x2 = two("logaddexp", x1, x2, REAL_FLOATING)
    return _logaddexp(*_broadcast(x1, x2))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _logaddexp(x1: Tensor, x2: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    # Equal infinities have no difference.
    difference = tf.where(tf.equal(x1, x2), tf.zeros_like(x1), x1 - x2)

    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
        return upstream * tf.sigmoid(difference), upstream * tf.sigmoid(-difference)

    return tf.maximum(x1, x2) + tf.math.log1p(tf.exp(-tf.abs(difference))), gradient


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Where both are True."""
    return tf.logical_and(*two("logical_and", x1, x2, BOOL))


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Where one or both are True."""
    return tf.logical_or(*two("logical_or", x1, x2, BOOL))


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Where just one is True."""
    x1, x2 = two("logical_xor", x1, x2, BOOL)
    return _ops.NotEqual(x=x1, y=x2)


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of both; nan if one is nan."""
    return tf.maximum(*two("maximum", x1, x2, REAL))


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of both; nan if one is nan."""
    return tf.minimum(*two("minimum", x1, x2, REAL))


def clip(x: Array, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x, raised to `min` where it is below and lowered to `max` where it is above; of x's type.

    Raises:
        TypeError: a bound is of another kind than x.
    """
    x = one("clip", x, REAL)
    for bound, limit in ((min, tf.maximum), (max, tf.minimum)):
        if bound is not None:
            x = limit(x, _bound(x, bound))
    return x


def _bound(x: Tensor, bound: Operand) -> Tensor:
    """A bound of x's type; one outside its range becomes the end of the range."""
    if isinstance(bound, (bool, int, float)):
        if x.dtype in INTEGER and isinstance(bound, int):
            bound = sorted((x.dtype.min, bound, x.dtype.max))[1]
        return two("clip", x, bound, REAL)[1]
    wide, bound = two("clip", x, bound, REAL)
    if wide.dtype != x.dtype and x.dtype in INTEGER:
        bound = tf.clip_by_value(bound, tf.cast(x.dtype.min, bound.dtype), tf.cast(x.dtype.max, bound.dtype))
    return tf.cast(bound, x.dtype)


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * x2."""
    x1, x2 = two("multiply", x1, x2, NUMERIC)
    return _ops.Mul(x=x1, y=x2)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The next floating-point number after x1 in the direction of x2."""
    return tf.math.nextafter(*two("nextafter", x1, x2, REAL_FLOATING))


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 to the power x2.

    Raises:
        tf.errors.InvalidArgumentError: an integer to a negative integer power.
    """
    x1, x2 = two("pow", x1, x2, NUMERIC)
    if x1.dtype in UNSIGNED:  # TensorFlow lacks it; powers modulo 2**64 are right in the low bits
        return tf.cast(tf.pow(tf.cast(x1, tf.int64), tf.cast(x2, tf.int64)), x1.dtype)
    return complexes.pow(x1, x2) if x1.dtype in COMPLEX else _ops.Pow(x=x1, y=x2)


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """What is left of x1 after taking whole multiples of x2; it has the sign of x2.

    Raises:
        tf.errors.InvalidArgumentError: the remainder of an integer by zero.
    """
    x1, x2 = two("remainder", x1, x2, REAL)
    left = tf.math.floormod(x1, x2)
    if x1.dtype in INTEGER:
        return left
    return tf.where(tf.equal(left, tf.zeros_like(left)), copysign(tf.zeros_like(left), x2), left)


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2."""
    x1, x2 = two("subtract", x1, x2, NUMERIC)
    return _ops.Sub(x=x1, y=x2)
