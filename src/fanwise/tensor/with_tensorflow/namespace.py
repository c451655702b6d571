"""The array API standard on TensorFlow: a table of operations, and beside it the functions that really differ.

    _OF_ONE, _OF_WHOLE, _OF_TWO, _OVER_AXES   name -> kinds of types, TensorFlow's operation
    creation.py  functions.py  products.py  dtypes.py      the rest; what numbers are accepted is in arguments.py

TensorFlow has a NumPy mode, and it is not used: `enable_numpy_behavior` changes the operators of every tensor of
the process. The functions work on tensors and variables, at once and inside `tf.function`; gradients flow through.
Results are always `tf.Tensor`. Where the standard leaves something open, TensorFlow's own answer is given, except
that what would be silently wrong is an error: the sum of no elements is 0, the maximum of none raises. An integer
divided by zero is a tf.errors.InvalidArgumentError. On the CPU TensorFlow flushes subnormal numbers to zero.

An axis, the number of axes and every shape given as an argument are Python's; the lengths of the axes of an
argument may be unknown while `tf.function` traces, unless the number of results depends on them (`unstack`).
"""

import math
from collections.abc import Callable
from typing import Any

from ..namespaces.standard import CONSTANTS, PARTS
from . import creation, dtypes, functions, products, tf
from .arguments import Array, Axis, Operand, checked, mixed, reduced_axes
from .dtypes import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGER,
    INTEGER_OR_BOOL,
    NUMERIC,
    REAL,
    REAL_FLOATING,
    UNSIGNED,
    DType,
    Tensor,
)

_Kinds = frozenset[DType]
_Op = Callable[[Tensor], Tensor]
_Op2 = Callable[[Tensor, Tensor], Tensor]


def _by_parts(op: _Op) -> _Op:
    """An operation on the real and the imaginary part: a complex quotient makes nan of infinities, for example."""
    return lambda z: tf.complex(op(tf.math.real(z)), op(tf.math.imag(z)))


def _log_to(base: float) -> tuple[_Kinds, _Op]:
    scale = math.log(base)

    def divided(x: Tensor) -> Tensor:
        return x / scale

    return FLOATING, lambda x: _by_parts(divided)(tf.math.log(x)) if x.dtype in COMPLEX else divided(tf.math.log(x))


def _same(x: Tensor) -> Tensor:
    return x


def _raw(op: str) -> _Op2:
    """An operation without the checks of tf.math, which cost up to a microsecond."""
    raw = getattr(tf.raw_ops, op)
    return lambda x, y: raw(x=x, y=y)


def _bits(of_integers: _Op2, of_bools: _Op2) -> _Op2:
    return lambda x, y: of_bools(x, y) if x.dtype == tf.bool else of_integers(x, y)


_OF_ONE: dict[str, tuple[_Kinds, _Op]] = {
    **{name: (FLOATING, getattr(tf, name)) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{name: (FLOATING, getattr(tf, name)) for name in ("cos", "cosh", "exp", "sin", "sinh", "sqrt", "tan", "tanh")},
    **{name: (FLOATING, getattr(tf.math, name)) for name in ("expm1", "log", "log1p")},
    "bitwise_invert": (INTEGER_OR_BOOL, lambda x: tf.logical_not(x) if x.dtype == tf.bool else tf.bitwise.invert(x)),
    "conj": (NUMERIC, tf.math.conj),
    "imag": (COMPLEX, tf.math.imag),
    "isfinite": (NUMERIC, lambda x: functions.is_so_of_parts(x, tf.math.is_finite, tf.logical_and)),
    "isinf": (NUMERIC, lambda x: functions.is_so_of_parts(x, tf.math.is_inf, tf.logical_or)),
    "isnan": (NUMERIC, lambda x: functions.is_so_of_parts(x, tf.math.is_nan, tf.logical_or)),
    "log10": _log_to(10.0),
    "log2": _log_to(2.0),
    "logical_not": (BOOL, tf.logical_not),
    "negative": (NUMERIC, lambda x: tf.zeros_like(x) - x if x.dtype in UNSIGNED else tf.negative(x)),
    "positive": (NUMERIC, _same),
    "real": (NUMERIC, tf.math.real),
    "reciprocal": (FLOATING, lambda x: tf.ones_like(x) / x),
    "sign": (NUMERIC, functions.sign),
    "signbit": (REAL_FLOATING, functions.signbit),
    "square": (NUMERIC, tf.square),
}
# The same of integers, which stay as they are: all of them, or those without a sign.
_OF_WHOLE: dict[str, tuple[_Kinds, _Kinds, _Op]] = {
    "abs": (NUMERIC, UNSIGNED, tf.abs),
    "ceil": (REAL, INTEGER, tf.math.ceil),
    "floor": (REAL, INTEGER, tf.floor),
    "round": (NUMERIC, INTEGER, lambda x: _by_parts(tf.round)(x) if x.dtype in COMPLEX else tf.round(x)),
    "trunc": (REAL, INTEGER, lambda x: tf.where(x < 0, tf.math.ceil(x), tf.floor(x))),
}
_OF_TWO: dict[str, tuple[_Kinds, _Op2]] = {
    "add": (NUMERIC, _raw("AddV2")),
    "subtract": (NUMERIC, _raw("Sub")),
    "multiply": (NUMERIC, _raw("Mul")),
    "floor_divide": (REAL, _raw("FloorDiv")),
    "equal": (ALL, _raw("Equal")),
    "not_equal": (ALL, _raw("NotEqual")),
    "greater": (REAL, _raw("Greater")),
    "greater_equal": (REAL, _raw("GreaterEqual")),
    "less": (REAL, _raw("Less")),
    "less_equal": (REAL, _raw("LessEqual")),
    "logical_xor": (BOOL, _raw("NotEqual")),
    "bitwise_and": (INTEGER_OR_BOOL, _bits(tf.bitwise.bitwise_and, tf.logical_and)),
    "bitwise_or": (INTEGER_OR_BOOL, _bits(tf.bitwise.bitwise_or, tf.logical_or)),
    "bitwise_xor": (INTEGER_OR_BOOL, _bits(tf.bitwise.bitwise_xor, tf.not_equal)),
    "atan2": (REAL_FLOATING, tf.atan2),
    "bitwise_left_shift": (INTEGER, functions.left_shift),
    "bitwise_right_shift": (INTEGER, functions.right_shift),
    "copysign": (REAL_FLOATING, functions.copysign),
    "divide": (FLOATING, _raw("RealDiv")),
    "hypot": (REAL_FLOATING, functions.hypot),
    "logaddexp": (REAL_FLOATING, functions.logaddexp),
    "logical_and": (BOOL, tf.logical_and),
    "logical_or": (BOOL, tf.logical_or),
    "maximum": (REAL, tf.maximum),
    "minimum": (REAL, tf.minimum),
    "nextafter": (REAL_FLOATING, tf.math.nextafter),
    "pow": (NUMERIC, functions.power),
    "remainder": (REAL, functions.remainder),
}
# What the array is made before, and the operation.
_OVER_AXES: dict[str, tuple[Callable[[str, Array], Tensor], Callable[..., Tensor]]] = {
    "all": (functions.truth, tf.reduce_all),
    "any": (functions.truth, tf.reduce_any),
    "count_nonzero": (lambda name, x: tf.cast(functions.truth(name, x), tf.int64), tf.reduce_sum),
    "max": (lambda name, x: checked(name, x, REAL), tf.reduce_max),
    "mean": (lambda name, x: functions.floats(name, x, FLOATING), tf.reduce_mean),
    "min": (lambda name, x: checked(name, x, REAL), tf.reduce_min),
}


def _of_one(name: str, kinds: _Kinds, op: _Op) -> Callable[[Array], Tensor]:
    def function(x: Array, /) -> Tensor:
        return op(checked(name, x, kinds))

    return function


def _of_whole(name: str, kinds: _Kinds, stay: _Kinds, op: _Op) -> Callable[[Array], Tensor]:
    def function(x: Array, /) -> Tensor:
        x = checked(name, x, kinds)
        return x if x.dtype in stay else op(x)

    return function


def _of_two(name: str, kinds: _Kinds, op: _Op2) -> Callable[[Operand, Operand], Tensor]:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        return op(*mixed(name, x1, x2, kinds))

    return function


def _over_axes(name: str, prepared: Callable[[str, Array], Tensor], op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
        x = prepared(name, x)
        if name in ("max", "min"):
            functions.check_not_empty(name, x, axis)
        return op(x, reduced_axes(x, axis), keepdims)

    return function


def names(part: str) -> dict[str, Any]:  # Any: functions, numbers and types
    """Every name of that part of the standard that TensorFlow has, and what it is there."""
    offered: dict[str, Any] = {}
    for file in (dtypes, creation, functions, products):
        offered |= vars(file)
    offered |= {name: _of_one(name, *row) for name, row in _OF_ONE.items()}
    offered |= {name: _of_whole(name, *row) for name, row in _OF_WHOLE.items()}
    offered |= {name: _of_two(name, *row) for name, row in _OF_TWO.items()}
    offered |= {name: _over_axes(name, *row) for name, row in _OVER_AXES.items()}
    offered |= {"empty": creation.zeros, "empty_like": creation.zeros_like}  # tensors cannot be filled later
    found = {name: _as_it_is(name, offered[name]) for name in PARTS[part] if name in offered}
    return found if part else found | CONSTANTS | dtypes.every_dtype() | {_INFO: offered[_INFO]}


_INFO = "__array_namespace_info__"


def _as_it_is(name: str, function: Any) -> Any:  # Any: a function
    """The function, marked so that tf.function calls it as it is.

    Rewriting its source, as is done with user code, would take tens of milliseconds a function and do nothing:
    branches here depend on Python values alone. The mark is the one of tf.autograph.experimental.do_not_convert,
    whose wrapper would cost every call.
    """
    function.autograph_info__ = {}
    function.__doc__ = function.__doc__ or f"`{name}` of the array API standard, on TensorFlow."
    return function
