"""pad, isclose and create_diagonal in functions of the standard alone, for engines that array-api-extra does not know.

Arguments are those of array-api-extra, after the namespace. Knows no engine.
"""

from collections.abc import Callable, Sequence
from typing import Any

from .spaces import Namespace

Array = Any  # the arrays of any engine


def pad(
    xp: Namespace,
    x: Array,
    pad_width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: str = "constant",
    *,
    constant_values: complex = 0,
) -> Array:
    """x with constant values around it."""
    if mode != "constant":
        raise NotImplementedError(f"pad fills with a constant, mode='constant', got {mode!r}")
    both: Any = (pad_width, pad_width) if isinstance(pad_width, int) else pad_width
    widths: list[tuple[int, int]] = [both] * x.ndim if isinstance(both[0], int) else list(both)
    for axis, (before, after) in enumerate(widths):
        blocks = []
        for width in (before, after):
            shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
            blocks.append(xp.full(shape, constant_values, dtype=x.dtype))
        x = xp.concat([blocks[0], x, blocks[1]], axis=axis)
    return x


def isclose(
    xp: Namespace, a: Array, b: Array, *, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Array:
    """Whether the elements are equal within atol + rtol * abs(b); infinities are equal to themselves alone."""
    same = xp.equal(a, b)
    dtype = xp.result_type(a, b)
    if xp.isdtype(dtype, ("bool", "integral")):
        return same
    finite = xp.logical_and(xp.isfinite(a), xp.isfinite(b))
    near = xp.less_equal(xp.abs(xp.subtract(a, b)), xp.add(xp.multiply(xp.abs(b), rtol), atol))
    found = xp.logical_or(same, xp.logical_and(finite, near))
    return xp.logical_or(found, xp.logical_and(xp.isnan(a), xp.isnan(b))) if equal_nan else found


def create_diagonal(xp: Namespace, x: Array, *, offset: int = 0) -> Array:
    """Square matrices with the last axis of x on the diagonal, and zeros elsewhere."""
    length = x.shape[-1]
    count = length + abs(offset)
    steps = xp.arange(count)
    on_it = xp.equal(steps[None, :] - steps[:, None], offset)
    if not length:
        return xp.zeros((*x.shape[:-1], count, count), dtype=x.dtype)
    places = xp.clip(steps + min(offset, 0), 0, length - 1)
    values = xp.expand_dims(xp.take(x, places, axis=-1), axis=-1)
    return xp.where(on_it, values, xp.zeros_like(values))


PLAIN: dict[str, Callable[..., Array]] = {function.__name__: function for function in (create_diagonal, isclose, pad)}
