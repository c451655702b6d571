"""Comparisons of two arrays: bool, types mixed first, shapes broadcast; shapes that do not fit are an error."""

from .. import tf
from .arguments import Operand, two
from .dtypes import ALL, REAL, Tensor

_ops = tf.raw_ops


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Where both are the same number; nan is never."""
    x1, x2 = two("equal", x1, x2, ALL)
    return _ops.Equal(x=x1, y=x2)


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Where both are different numbers; nan always."""
    x1, x2 = two("not_equal", x1, x2, ALL)
    return _ops.NotEqual(x=x1, y=x2)


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """Where x1 > x2."""
    x1, x2 = two("greater", x1, x2, REAL)
    return _ops.Greater(x=x1, y=x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Where x1 >= x2."""
    x1, x2 = two("greater_equal", x1, x2, REAL)
    return _ops.GreaterEqual(x=x1, y=x2)


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """Where x1 < x2."""
    x1, x2 = two("less", x1, x2, REAL)
    return _ops.Less(x=x1, y=x2)


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """Where x1 <= x2."""
    x1, x2 = two("less_equal", x1, x2, REAL)
    return _ops.LessEqual(x=x1, y=x2)
