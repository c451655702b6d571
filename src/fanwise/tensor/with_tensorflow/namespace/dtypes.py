"""Types of elements: their kinds, which two mix to which third, and the functions that are about types alone.

Kinds and the table of promotion are those of the standard, widened by float16 and bfloat16, in which deep learning
computes: they promote to wider floats, and to float32 with each other. Integers never mix with floats, nor uint64
with signed integers: the standard leaves that open, engines differ, and so it is an error here.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np

from ...namespaces.infos import FloatInfo, IntInfo, float_info, int_info
from .. import tf

DType = Any  # Any: tf.DType; TensorFlow ships no types
Tensor = Any  # Any: tf.Tensor; TensorFlow ships no types

BOOL = frozenset({tf.bool})
SIGNED = frozenset({tf.int8, tf.int16, tf.int32, tf.int64})
UNSIGNED = frozenset({tf.uint8, tf.uint16, tf.uint32, tf.uint64})
INTEGER = SIGNED | UNSIGNED
REAL_FLOATING = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})
COMPLEX = frozenset({tf.complex64, tf.complex128})
FLOATING = REAL_FLOATING | COMPLEX
REAL = INTEGER | REAL_FLOATING
NUMERIC = REAL | COMPLEX
INTEGER_OR_BOOL = INTEGER | BOOL
ALL = NUMERIC | BOOL

DEFAULT_INT = tf.int64
DEFAULT_FLOAT = tf.float32
DEFAULT_COMPLEX = tf.complex64

KINDS = {
    "bool": BOOL,
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGER,
    "real floating": REAL_FLOATING,
    "complex floating": COMPLEX,
    "numeric": NUMERIC,
}
_NAMES_OF_KINDS = {
    ALL: "any",
    BOOL: "bool",
    INTEGER: "integer",
    INTEGER_OR_BOOL: "integer and bool",
    REAL_FLOATING: "real floating-point",
    COMPLEX: "complex",
    FLOATING: "floating-point",
    REAL: "real numeric",
    NUMERIC: "numeric",
}

COMPLEX_OF = {
    tf.float16: tf.complex64,
    tf.bfloat16: tf.complex64,
    tf.float32: tf.complex64,
    tf.float64: tf.complex128,
}
REAL_OF = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def name_of_kind(kind: frozenset[DType]) -> str:
    """What a message calls a set of types."""
    return _NAMES_OF_KINDS[kind]


def as_dtype(dtype: Any) -> DType:  # Any: a tf.DType, or what TensorFlow makes one of
    """The tf.DType meant; `float` and the like mean the defaults of this namespace."""
    if isinstance(dtype, tf.DType):
        return dtype
    defaults = {bool: tf.bool, int: DEFAULT_INT, float: DEFAULT_FLOAT, complex: DEFAULT_COMPLEX}
    return defaults[dtype] if isinstance(dtype, type) and dtype in defaults else tf.as_dtype(dtype)


def _signed_of(bits: int) -> DType:
    return getattr(tf, f"int{bits}")


def _promote(a: DType, b: DType) -> DType | None:
    """The smallest type of the standard that holds both, or None."""
    if a == b:
        return a
    for kind in (SIGNED, UNSIGNED):
        if a in kind and b in kind:
            return max(a, b, key=lambda dtype: dtype.size)
    if a in INTEGER and b in INTEGER:
        signed, unsigned = (a, b) if a in SIGNED else (b, a)
        bits = max(signed.size, 2 * unsigned.size) * 8
        return _signed_of(bits) if bits <= 64 else None
    if a in REAL_FLOATING and b in REAL_FLOATING:
        return max(a, b, key=lambda dtype: dtype.size) if a.size != b.size else tf.float32
    if a in FLOATING and b in FLOATING:
        wide = any(dtype in (tf.float64, tf.complex128) for dtype in (a, b))
        return tf.complex128 if wide else tf.complex64
    return None


_PROMOTED = {(a, b): both for a in ALL for b in ALL if (both := _promote(a, b)) is not None}


def promoted(a: DType, b: DType) -> DType:
    """The type that both mix to.

    Raises:
        TypeError: the standard does not mix them.
    """
    try:
        return _PROMOTED[a, b]
    except KeyError:
        raise TypeError(
            f"{a.name} and {b.name} do not mix in the array API standard; "
            f"convert one of the arrays: fanwise.tensor.astype(x, dtype)"
        ) from None


def promoted_with_scalar(dtype: DType, scalar: complex) -> DType:
    """The type of an array of `dtype` together with a Python number.

    Raises:
        TypeError: the number is of a wider kind than the array.
        OverflowError: an integer outside the range of the array's type.
    """
    if isinstance(scalar, bool):
        allowed, result = BOOL, dtype
    elif isinstance(scalar, int):
        allowed, result = NUMERIC, dtype
        if dtype in INTEGER and not dtype.min <= scalar <= dtype.max:
            raise OverflowError(f"the Python integer {scalar} is outside the range of {dtype.name}")
    elif isinstance(scalar, float):
        allowed, result = FLOATING, dtype
    else:
        allowed, result = FLOATING, COMPLEX_OF.get(dtype, dtype)
    if dtype not in allowed:
        raise TypeError(
            f"the Python {type(scalar).__name__} {scalar!r} does not mix with an array of {dtype.name} "
            f"in the array API standard; convert the array: fanwise.tensor.astype(x, dtype)"
        )
    return result


def result_type(*arrays_and_dtypes: Any) -> DType:  # Any: arrays, types and Python numbers
    """The type that arrays, types and Python numbers together mix to.

    Raises:
        TypeError: they do not mix.
        ValueError: there is no array or type among them.
    """
    scalars = [one for one in arrays_and_dtypes if isinstance(one, (bool, int, float, complex))]
    dtypes = [dtype_of(one) for one in arrays_and_dtypes if not isinstance(one, (bool, int, float, complex))]
    if not dtypes:
        raise ValueError("result_type needs an array or a dtype, got Python numbers only")
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = promoted(result, dtype)
    for scalar in scalars:
        result = promoted_with_scalar(result, scalar)
    return result


def dtype_of(x: Any) -> DType:  # Any: an array or what names a type
    """The type of an array, or the type itself."""
    return x.dtype if isinstance(x, (tf.Tensor, tf.Variable)) else as_dtype(x)


def can_cast(from_: Any, to: DType, /) -> bool:  # Any: an array or a type
    """Whether promotion alone leads from the one type (or array) to the other."""
    to = as_dtype(to)
    return bool(_PROMOTED.get((dtype_of(from_), to)) == to)


def isdtype(dtype: DType, kind: Any) -> bool:  # Any: a type, a name of a kind, or a tuple of them
    """Whether the type is of a kind: "bool", "signed integer", "numeric" ..., a type, or a tuple of these.

    Raises:
        ValueError: there is no such kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        return as_dtype(dtype) in KINDS[kind]
    return bool(as_dtype(dtype) == as_dtype(kind))


def finfo(type: Any, /) -> FloatInfo:  # Any: an array or a type
    """Limits of a floating-point type; those of the parts of a complex one.

    Raises:
        TypeError: the type is not floating-point.
    """
    dtype = dtype_of(type)
    if dtype not in FLOATING:
        raise TypeError(f"finfo is about floating-point types, got {dtype.name}; for integers there is iinfo")
    if dtype in REAL_OF:
        dtype = REAL_OF[dtype]
    facts = ml_dtypes.finfo(dtype.as_numpy_dtype)  # type: ignore[no-untyped-call]
    return float_info(facts, dtype)


def iinfo(type: Any, /) -> IntInfo:  # Any: an array or a type
    """Limits of an integer type.

    Raises:
        TypeError: the type is no integer type.
    """
    dtype = dtype_of(type)
    if dtype not in INTEGER:
        raise TypeError(f"iinfo is about integer types, got {dtype.name}; for floats there is finfo")
    return int_info(np.iinfo(dtype.as_numpy_dtype), dtype)


def of_scalar(scalar: complex) -> DType:
    """The default type of a Python number."""
    if isinstance(scalar, bool):
        return tf.bool
    if isinstance(scalar, int):
        return DEFAULT_INT if -(2**63) <= scalar < 2**63 else tf.uint64
    return DEFAULT_FLOAT if isinstance(scalar, float) else DEFAULT_COMPLEX


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x as that type; TensorFlow's own cast costs microseconds also where there is nothing to do."""
    return x if x.dtype == dtype else tf.cast(x, dtype)


def constant(scalar: complex, dtype: DType) -> Tensor:
    """A 0-d tensor of a Python number, which is known to be of the kind or a narrower one."""
    if dtype in REAL_FLOATING and isinstance(scalar, int):
        scalar = float(scalar)
    if dtype == tf.float32 and isinstance(scalar, float) and math.isfinite(scalar) and abs(scalar) > 3.4e38:
        scalar = float(np.float64(scalar).astype(np.float32))
    if scalar == 0 and dtype not in INTEGER_OR_BOOL:
        # TensorFlow remembers constants by equality, and so gives 0.0 for -0.0, or the other way round.
        return tf.constant(np.asarray(scalar, dtype.as_numpy_dtype))
    return tf.constant(scalar, dtype)
