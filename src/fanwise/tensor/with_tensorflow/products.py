"""Products, the norm of vectors, the Fourier transform. For the rest of `linalg` and `fft`: tf.linalg and tf.signal."""

import math
from collections.abc import Callable, Sequence

from . import tf
from .arguments import Array, Axis, axes_of, checked, mixed, ndim_of, sizes_of
from .dtypes import ALL, COMPLEX, COMPLEX_OF, FLOATING, INTEGER, NUMERIC, Tensor, cast
from .functions import moveaxis

# What TensorFlow multiplies; other integers go through int64, whose low bits are right for all of them.
_NATIVE = frozenset({tf.int32, tf.int64})


def _in_native(product: Callable[[Tensor, Tensor], Tensor], x1: Tensor, x2: Tensor) -> Tensor:
    dtype = x1.dtype
    if dtype in INTEGER and dtype not in _NATIVE:
        return tf.cast(product(tf.cast(x1, tf.int64), tf.cast(x2, tf.int64)), dtype)
    return product(x1, x2)


def matmul(x1: Array, x2: Array, /) -> Tensor:
    x1, x2 = mixed("matmul", x1, x2, NUMERIC)
    first, second = ndim_of(x1), ndim_of(x2)
    if first >= 2 and second >= 2:
        return _in_native(tf.matmul, x1, x2)
    if first == 0 or second == 0:
        raise ValueError(f"matmul needs arrays of one axis or more, got shapes {x1.shape} and {x2.shape}")
    x1, x2 = x1[tf.newaxis] if first == 1 else x1, x2[:, tf.newaxis] if second == 1 else x2
    product = _in_native(tf.matmul, x1, x2)
    if second == 1:
        product = tf.squeeze(product, -1)
    return tf.squeeze(product, -1 if second == 1 else -2) if first == 1 else product


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    x1, x2 = mixed("tensordot", x1, x2, NUMERIC)
    if not isinstance(axes, int):
        axes = axes_of(tuple(axes[0]), ndim_of(x1)), axes_of(tuple(axes[1]), ndim_of(x2))
    return _in_native(lambda a, b: tf.tensordot(a, b, axes), x1, x2)


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Tensor:
    x1, x2 = mixed("vecdot", x1, x2, NUMERIC)
    if not -min(ndim_of(x1), ndim_of(x2)) <= axis <= -1:
        raise ValueError(f"vecdot needs an axis counted from the end that both have, got {axis}")
    # Otherwise the lengths would broadcast.
    if None not in (lengths := (x1.shape[axis], x2.shape[axis])) and lengths[0] != lengths[1]:
        raise ValueError(f"vecdot over axes of different lengths, {lengths[0]} and {lengths[1]}")
    return tf.reduce_sum(tf.math.conj(x1) * x2, axis)


def matrix_transpose(x: Array, /) -> Tensor:
    x = checked("matrix_transpose", x, ALL)
    if ndim_of(x) < 2:
        raise ValueError(f"matrix_transpose needs two axes or more, got an array of shape {tuple(x.shape)}")
    return tf.linalg.matrix_transpose(x)


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    x = checked("vector_norm", x, FLOATING)
    axes, lengths = axes_of(axis, ndim_of(x)), tf.abs(x)
    if ord == 2:  # by squares, which have no kink at 0 for the gradient
        parts = (tf.math.real(x), tf.math.imag(x)) if x.dtype in COMPLEX else (x,)
        return tf.sqrt(tf.reduce_sum(sum(map(tf.square, parts)), axes, keepdims))
    if abs(ord) == math.inf:
        return (tf.reduce_max if ord > 0 else tf.reduce_min)(lengths, axes, keepdims)
    if ord == 0:
        return tf.reduce_sum(cast(tf.not_equal(lengths, 0), lengths.dtype), axes, keepdims)
    return tf.pow(tf.reduce_sum(tf.pow(lengths, ord), axes, keepdims), 1 / ord)


_POWERS = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _transformed("fft", tf.signal.fft, x, n, axis, norm)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _transformed("ifft", tf.signal.ifft, x, n, axis, norm)


def _transformed(
    name: str, transform: Callable[[Tensor], Tensor], x: Array, n: int | None, axis: int, norm: str
) -> Tensor:
    """TensorFlow's work on the last axis of complex numbers, without a choice of length or norm."""
    if norm not in _POWERS:
        raise ValueError(f"norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if n is not None and n < 1:
        raise ValueError(f"a Fourier transform needs a length of 1 or more, got {n}")
    x = checked(name, x, FLOATING)
    x = moveaxis(x if x.dtype in COMPLEX else tf.cast(x, COMPLEX_OF[x.dtype]), axis, -1)
    length = sizes_of(x)[-1] if n is None else n
    x = x[..., :length]
    y = transform(tf.pad(x, [[0, 0]] * (ndim_of(x) - 1) + [[0, length - sizes_of(x)[-1]]]))
    power = _POWERS[norm] if name == "ifft" else -_POWERS[norm]  # TensorFlow has divided by n where it goes back
    y = y * tf.cast(tf.pow(tf.cast(length, tf.float64), power), y.dtype) if power else y
    return moveaxis(y, -1, axis)
