"""What the functions accept: tensors, variables and Python numbers of the right kinds, axes within bounds.

Each function begins with one of these and then has tensors of one type. They are on the path of every call, so
the usual case, tensors of one type, comes first.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ..engines import is_array_type
from . import tf
from .dtypes import NAMES_OF_KINDS, NUMBERS, DType, Tensor, cast, constant, promoted, promoted_with_number

Array = Any  # Any: a tf.Tensor or tf.Variable; TensorFlow ships no types
Operand = Any  # Any: the same, or a Python number
Size = Any  # Any: an int, or a 0-d int32 tensor while tf.function traces
Axis = int | tuple[int, ...] | None

_Tensor = tf.Tensor


def as_tensor(x: Array) -> Tensor:
    """x itself, or the value of a variable.

    Raises:
        TypeError: x belongs to another engine or is no array; the message says how to convert it.
    """
    if isinstance(x, _Tensor):
        return x
    if isinstance(x, tf.Variable):
        return tf.convert_to_tensor(x)
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    if is_array_type(type(x)):
        raise TypeError(
            f"arrays of two engines in one operation: got {kind} where TensorFlow computes; "
            f'convert it: fanwise.tensor.convert(x, "tensorflow")'
        )
    raise TypeError(f"expected a tf.Tensor or tf.Variable, got {kind}; make a tensor: fanwise.tensor.asarray(x)")


def checked(name: str, x: Array, allowed: frozenset[DType]) -> Tensor:
    """x as a tensor of a kind that the function `name` is defined for.

    Raises:
        TypeError: it is of another kind, or no tensor.
    """
    x = as_tensor(x)
    if x.dtype not in allowed:
        raise TypeError(
            f"{name} takes {NAMES_OF_KINDS[allowed]} types, got an array of {x.dtype.name}; "
            f"convert it: fanwise.tensor.astype(x, dtype)"
        )
    return x


def mixed(name: str, x1: Operand, x2: Operand, allowed: frozenset[DType]) -> tuple[Tensor, Tensor]:
    """Both as tensors of the type that they mix to.

    Raises:
        TypeError: they do not mix, both are Python numbers, or they are of a kind that `name` is not defined for.
        OverflowError: a Python integer outside the range of the other's type.
    """
    if isinstance(x1, _Tensor) and isinstance(x2, _Tensor) and (dtype := x1.dtype) == x2.dtype and dtype in allowed:
        return x1, x2
    if isinstance(x2, NUMBERS):
        if isinstance(x1, NUMBERS):
            raise TypeError(f"{name} needs an array, got the Python numbers {x1!r} and {x2!r}")
        return _with_number(name, x1, x2, allowed)
    if isinstance(x1, NUMBERS):
        x2, x1 = _with_number(name, x2, x1, allowed)
        return x1, x2
    x1, x2 = mixed_all(name, (x1, x2), allowed)
    return x1, x2


def _with_number(name: str, x: Array, number: complex, allowed: frozenset[DType]) -> tuple[Tensor, Tensor]:
    x = checked(name, x, allowed)
    dtype = promoted_with_number(x.dtype, number)
    if dtype not in allowed:
        raise TypeError(f"{name} takes {NAMES_OF_KINDS[allowed]} types, got the Python number {number!r}")
    return cast(x, dtype), constant(number, dtype)


def mixed_all(name: str, arrays: Iterable[Array], allowed: frozenset[DType]) -> list[Tensor]:
    """All as tensors of the type that they mix to. Raises TypeError as `mixed`; ValueError: there are none."""
    tensors = [checked(name, x, allowed) for x in arrays]
    if not tensors:
        raise ValueError(f"{name} needs at least one array")
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = promoted(dtype, x.dtype)
    return [cast(x, dtype) for x in tensors]


def ndim_of(x: Tensor) -> int:
    """The number of axes.

    Raises:
        ValueError: it is unknown while tf.function traces.
    """
    rank = x.shape.rank
    if rank is None:
        raise ValueError(
            "the number of axes of a tensor is unknown while tf.function traces; "
            "say it with tf.ensure_shape(x, [None, None]) or input_signature="
        )
    return int(rank)


def axis_of(axis: int, ndim: int) -> int:
    """The axis counted from the front.

    Raises:
        IndexError: there is no such axis.
    """
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise IndexError(f"axis {axis} is out of bounds for an array of {ndim} axes")
    return axis + ndim if axis < 0 else axis


def axes_of(axis: Axis, ndim: int) -> list[int]:
    """The axes counted from the front; all for None. Raises IndexError as `axis_of`; ValueError: one is named twice."""
    if axis is None:
        return list(range(ndim))
    if not isinstance(axis, (tuple, list)):
        return [axis_of(axis, ndim)]
    axes = [axis_of(each, ndim) for each in axis]
    if len(set(axes)) < len(axes):
        raise ValueError(f"an axis is named twice in {tuple(axis)}")
    return axes


def reduced_axes(x: Tensor, axis: Axis) -> Any:  # Any: an int or a tensor, as TensorFlow takes them fastest
    """The axes that a reduction goes over."""
    axes = axes_of(axis, ndim_of(x))
    return axes[0] if len(axes) == 1 else ints(axes)


def sizes_of(x: Tensor) -> list[Size]:
    """The lengths of all axes: ints where they are known, 0-d tensors where tf.function does not know yet."""
    static = x.shape.as_list()
    if None not in static:
        return static  # type: ignore[no-any-return]
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def ints(numbers: Sequence[Size]) -> Any:  # Any: a tensor, or a list that holds tensors
    """Axes or lengths as TensorFlow takes them fastest: a bare list costs it ten times as much as a constant."""
    for number in numbers:
        if isinstance(number, _Tensor):
            return list(numbers)
    return tf.constant(numbers, tf.int64 if max(numbers, default=0) >= 2**31 else tf.int32)


def as_shape(shape: Any) -> Any:  # Any: sizes, a tf.TensorShape, an int for one axis; or what `tf.shape` returns
    """A shape argument as TensorFlow takes it fastest."""
    if isinstance(shape, _Tensor) and shape.shape.rank == 1:
        return shape
    sizes = list(shape) if isinstance(shape, (tuple, list, tf.TensorShape)) else [shape]
    if None in sizes:
        raise ValueError(f"the shape {shape} is not all known while tf.function traces; give tf.shape(x)")
    return ints(sizes)


def flat(x: Tensor) -> Tensor:
    """All elements along one axis."""
    return tf.reshape(x, ints((-1,)))
