"""TensorFlow's types: their kinds, which two mix to which third, and the standard's functions about types alone.

Kinds and promotion are the standard's, widened by float16 and bfloat16, in which deep learning computes: they promote
to wider floats, and to float32 with each other. Integers never mix with floats, nor uint64 with signed integers: the
standard leaves that open, engines differ, and so it is an error here.
"""

import math
from typing import Any

import numpy as np

from ..namespaces import infos
from ..namespaces.infos import Info, limits_of
from ..namespaces.standard import DTYPES, EXTRA_DTYPES
from . import tf

# Any throughout: TensorFlow has no annotations.
DType = Any
Tensor = Any

KINDS = {kind: frozenset(getattr(tf, name) for name in names) for kind, names in infos.KINDS.items()}
KINDS |= {kind: KINDS[kind] | {tf.float16, tf.bfloat16} for kind in ("real floating", "numeric")}
BOOL, SIGNED, UNSIGNED = KINDS["bool"], KINDS["signed integer"], KINDS["unsigned integer"]
INTEGER, REAL_FLOATING, COMPLEX = KINDS["integral"], KINDS["real floating"], KINDS["complex floating"]
NUMERIC = KINDS["numeric"]
FLOATING = REAL_FLOATING | COMPLEX
REAL = INTEGER | REAL_FLOATING
INTEGER_OR_BOOL = INTEGER | BOOL
ALL = NUMERIC | BOOL
# What a message calls a set of types.
NAMES_OF_KINDS = {
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
COMPLEX_OF = {dtype: tf.complex128 if dtype == tf.float64 else tf.complex64 for dtype in REAL_FLOATING}
NUMBERS = (bool, int, float, complex)
_DEFAULTS = {bool: tf.bool, int: tf.int64, float: tf.float32, complex: tf.complex64}


def as_dtype(dtype: Any) -> DType:
    """The tf.DType meant; `float` and the like mean the defaults of this layer."""
    if isinstance(dtype, tf.DType):
        return dtype
    return _DEFAULTS[dtype] if isinstance(dtype, type) and dtype in _DEFAULTS else tf.as_dtype(dtype)


def _promote(a: DType, b: DType) -> DType | None:
    """The smallest type of the standard that holds both, or None."""
    if a == b:
        return a
    if not any({a, b} <= kind for kind in (INTEGER, FLOATING)):
        return None
    # numpy does not know bfloat16, which mixes as float32 does.
    one, other = (tf.float32 if each == tf.bfloat16 else each for each in (a, b))
    both = tf.as_dtype(np.promote_types(one.as_numpy_dtype, other.as_numpy_dtype))
    return both if both in INTEGER or a in FLOATING else None  # of uint64 and int64 numpy makes a float


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


def promoted_with_number(dtype: DType, number: complex) -> DType:
    """The type of an array of `dtype` together with a Python number.

    Raises:
        TypeError: the number is of a wider kind than the array.
        OverflowError: an integer outside the range of the array's type.
    """
    kind = type(number) if type(number) in _DEFAULTS else next(each for each in NUMBERS if isinstance(number, each))
    if dtype not in (BOOL if kind is bool else NUMERIC if kind is int else FLOATING):
        raise TypeError(
            f"the Python {kind.__name__} {number!r} does not mix with an array of {dtype.name} "
            f"in the array API standard; convert the array: fanwise.tensor.astype(x, dtype)"
        )
    if dtype in INTEGER and not dtype.min <= number <= dtype.max:
        raise OverflowError(f"the Python integer {number} is outside the range of {dtype.name}")
    return COMPLEX_OF.get(dtype, dtype) if kind is complex else dtype


def result_type(*arrays_and_dtypes: Any) -> DType:
    numbers = [each for each in arrays_and_dtypes if isinstance(each, NUMBERS)]
    dtypes = [dtype_of(each) for each in arrays_and_dtypes if not isinstance(each, NUMBERS)]
    if not dtypes:
        raise ValueError("result_type needs an array or a dtype, got Python numbers only")
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = promoted(result, dtype)
    for number in numbers:
        result = promoted_with_number(result, number)
    return result


def dtype_of(x: Any) -> DType:
    """The type of an array, or the type itself."""
    return x.dtype if isinstance(x, (tf.Tensor, tf.Variable)) else as_dtype(x)


def can_cast(from_: Any, to: DType, /) -> bool:
    to = as_dtype(to)
    return bool(_PROMOTED.get((dtype_of(from_), to)) == to)


def isdtype(dtype: DType, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if not isinstance(kind, str):
        return bool(as_dtype(dtype) == as_dtype(kind))
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return as_dtype(dtype) in KINDS[kind]


finfo, iinfo = limits_of(lambda name: getattr(tf, name))


def of_number(number: complex) -> DType:
    """The default type of a Python number."""
    if type(number) is int and not -(2**63) <= number < 2**63:
        return tf.uint64
    return next(dtype for kind, dtype in _DEFAULTS.items() if isinstance(number, kind))


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x as that type; TensorFlow's own cast costs microseconds also where there is nothing to do."""
    return x if x.dtype == dtype else tf.cast(x, dtype)


def constant(number: complex, dtype: DType) -> Tensor:
    """A 0-d tensor of a Python number, which is known to be of the kind or a narrower one."""
    if dtype in REAL_FLOATING and isinstance(number, int):
        number = float(number)
    if dtype == tf.float32 and isinstance(number, float) and math.isfinite(number) and abs(number) > 3.4e38:
        number = float(np.float64(number).astype(np.float32))
    if number == 0 and dtype not in INTEGER_OR_BOOL:
        # TensorFlow remembers constants by equality, and so gives 0.0 for -0.0, or the other way round.
        return tf.constant(np.asarray(number, dtype.as_numpy_dtype))
    return tf.constant(number, dtype)


# -- what TensorFlow tells of itself -----------------------------------------------------------------------------------


def every_dtype() -> dict[str, DType]:
    """By name, also those that are not in the standard."""
    return _standard() | {name: getattr(tf, name) for name in EXTRA_DTYPES}


def _standard() -> dict[str, DType]:
    return {name: getattr(tf, name) for name in DTYPES}


def _devices() -> tuple[str, ...]:
    """The devices, as `x.device` names them; the one where TensorFlow puts floats first."""
    default = str(tf.zeros(()).device)
    task = default.partition("/device:")[0]
    kinds = ("CPU", "GPU")
    named = [task + device.name for device in tf.config.list_logical_devices() if device.device_type in kinds]
    return (default, *(name for name in named if name != default))


_KINDS_OF_DEFAULTS = {
    "real floating": tf.float32,
    "complex floating": tf.complex64,
    "integral": tf.int64,
    "indexing": tf.int64,
}
# Eight axes are what the kernels for slices and transposes of every type take.
_INFO = Info(_standard, lambda: dict(_KINDS_OF_DEFAULTS), _devices, max_dimensions=8)


def __array_namespace_info__() -> Info:
    return _INFO
