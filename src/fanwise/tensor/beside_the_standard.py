"""Three functions that programs of arrays need and the standard leaves out, written in functions of the standard.

So each does the same on every engine, and gradients flow through it. More of the kind is in array-api-extra, whose
functions take `xp=fanwise.tensor.namespace(x)`. Knows no engine.
"""

from collections.abc import Sequence
from typing import Any

from .namespaces.dispatch import engine_of_all
from .namespaces.spaces import Namespace, part_of

# Any throughout: arrays of any engine.


def isclose(a: Any, b: Any, /, *, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether the elements are equal within atol + rtol * abs(b); infinities are equal to themselves alone.

    Args:
        a, b: arrays of one engine that broadcast, one of them may be a Python number.

    >>> import numpy
    >>> isclose(numpy.asarray([1.0, 2.0]), numpy.asarray([1.0 + 1e-9, 2.1]))
    array([ True, False])
    """
    xp = _space("isclose", a, b)
    same = xp.equal(a, b)
    if xp.isdtype(xp.result_type(a, b), ("bool", "integral")):
        return same
    a, b = (x if hasattr(x, "dtype") else xp.asarray(x) for x in (a, b))
    finite = xp.logical_and(xp.isfinite(a), xp.isfinite(b))
    apart = xp.subtract(xp.where(finite, a, 0.0), xp.where(finite, b, 0.0))  # infinities have no difference
    near = xp.less_equal(xp.abs(apart), xp.add(xp.multiply(xp.abs(b), rtol), atol))
    found = xp.logical_or(same, xp.logical_and(finite, near))
    return xp.logical_or(found, xp.logical_and(xp.isnan(a), xp.isnan(b))) if equal_nan else found


def one_hot(x: Any, /, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """1 where an index says so, 0 elsewhere, along a new axis; an index that is no class gives zeros.

    Args:
        x: integers from 0 to num_classes - 1.
        dtype: of the result, of x's engine; float32 if None.
        axis: where the classes lie in the result.

    >>> import numpy
    >>> one_hot(numpy.asarray([0, 2]), 3)
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    xp = _space("one_hot", x)
    if not xp.isdtype(x.dtype, "integral"):
        raise TypeError(f"one_hot takes integers, got an array of {x.dtype}; convert it: fanwise.tensor.astype")
    classes = xp.astype(xp.arange(num_classes), x.dtype)
    made = xp.astype(xp.equal(xp.expand_dims(x, axis=-1), classes), xp.float32 if dtype is None else dtype)
    return xp.moveaxis(made, -1, axis)


def pad(
    x: Any,
    /,
    pad_width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: str = "constant",
    *,
    constant_values: complex = 0,
) -> Any:
    """x with constant values around it.

    Args:
        pad_width: how many before and after: one number, one pair for all axes, or a pair for each axis.

    Raises:
        NotImplementedError: another mode is asked for.

    >>> import numpy
    >>> pad(numpy.asarray([1, 2]), (1, 2))
    array([0, 1, 2, 0, 0])
    """
    if mode != "constant":
        raise NotImplementedError(f"pad fills with a constant, mode='constant', got {mode!r}")
    xp = _space("pad", x)
    both: Any = (pad_width, pad_width) if isinstance(pad_width, int) else pad_width
    widths: list[tuple[int, int]] = [both] * x.ndim if isinstance(both[0], int) else list(both)
    for axis, before_and_after in enumerate(widths):
        before, after = (
            xp.full((*x.shape[:axis], width, *x.shape[axis + 1 :]), constant_values, dtype=x.dtype)
            for width in before_and_after
        )
        x = xp.concat([before, x, after], axis=axis)
    return x


def _space(name: str, *arrays: Any) -> Namespace:
    return part_of(engine_of_all(arrays, name), "")
