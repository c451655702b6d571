"""Products, and of the extensions what TensorFlow has by name: `linalg` without matrix_power, of `fft` half.

TensorFlow's kernels for matrices take floats of 32 and 64 bits, as those of the other engines do. Results of `eig` and
`svd` are named as the standard says.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from . import tf
from .arguments import Array, Axis, axes_of, axis_of, checked, mixed, ndim_of, sizes_of
from .dtypes import (
    ALL,
    COMPLEX,
    COMPLEX_OF,
    FLOATING,
    INTEGER,
    NUMERIC,
    REAL_FLOATING,
    REAL_OF,
    WIDE_FLOATING,
    DType,
    Tensor,
    cast,
)
from .functions import moveaxis
from .functions import sum as sum_of

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
    return tf.linalg.matrix_transpose(_matrices("matrix_transpose", x, ALL))


# -- linalg ------------------------------------------------------------------------------------------------------------


class Eig(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    Q: Tensor
    R: Tensor


class Slogdet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


class SVD(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


def _matrices(name: str, x: Array, allowed: frozenset[DType] = WIDE_FLOATING) -> Tensor:
    x = checked(name, x, allowed)
    if ndim_of(x) < 2:
        raise ValueError(f"{name} needs two axes or more, got an array of shape {tuple(x.shape)}")
    return x


def _real(x: Tensor) -> Tensor:
    """Real numbers that TensorFlow gives out as complex ones."""
    return tf.math.real(x) if x.dtype in COMPLEX else x


def _to_complex(x: Tensor) -> Tensor:
    return x if x.dtype in COMPLEX else tf.cast(x, COMPLEX_OF[x.dtype])


def cholesky(x: Array, /, *, upper: bool = False) -> Tensor:
    lower = tf.linalg.cholesky(_matrices("cholesky", x))
    return tf.linalg.adjoint(lower) if upper else lower


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Tensor:
    x1, x2 = mixed("cross", x1, x2, NUMERIC)
    for x in (x1, x2):
        if x.shape[axis_of(axis, ndim_of(x))] not in (3, None):
            raise ValueError(f"cross needs 3 numbers along axis {axis}, got an array of shape {tuple(x.shape)}")
    a, b = (tf.unstack(x, num=3, axis=axis) for x in (x1, x2))
    return tf.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], axis)


def det(x: Array, /) -> Tensor:
    x = _matrices("det", x)
    return _complex_det(x) if x.dtype in COMPLEX else tf.linalg.det(x)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _complex_det(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    # TensorFlow's own gradient has the determinant itself where its conjugate belongs.
    def gradient(upstream: Tensor) -> Tensor:
        return (upstream * tf.math.conj(_complex_det(x)))[..., None, None] * tf.linalg.inv(x, adjoint=True)

    return tf.linalg.det(x), gradient


def diagonal(x: Array, /, *, offset: int = 0) -> Tensor:
    x = _matrices("diagonal", x, ALL)
    rows, columns = x.shape.as_list()[-2:]
    if (rows is not None and -offset >= rows) or (columns is not None and offset >= columns):
        return tf.zeros([*sizes_of(x)[:-2], 0], x.dtype)
    return tf.linalg.diag_part(x, k=offset)


def eig(x: Array, /) -> Eig:
    return Eig(*tf.linalg.eig(_to_complex(_matrices("eig", x))))


def eigvals(x: Array, /) -> Tensor:
    return tf.linalg.eigvals(_to_complex(_matrices("eigvals", x)))


def eigh(x: Array, /) -> Eig:
    values, vectors = tf.linalg.eigh(_matrices("eigh", x))
    return Eig(_real(values), vectors)


def eigvalsh(x: Array, /) -> Tensor:
    return _real(tf.linalg.eigvalsh(_matrices("eigvalsh", x)))


def inv(x: Array, /) -> Tensor:
    return tf.linalg.inv(_matrices("inv", x))


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Tensor:
    x = _matrices("matrix_norm", x)
    if ord in ("nuc", 2, -2):
        reduce = {"nuc": tf.reduce_sum, 2: tf.reduce_max, -2: tf.reduce_min}[ord]
        norm = reduce(svdvals(x), -1)
        return norm[..., tf.newaxis, tf.newaxis] if keepdims else norm
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    sums = tf.reduce_sum(tf.abs(x), -2 if abs(ord) == 1 else -1, keepdims=True)
    return (tf.reduce_max if ord > 0 else tf.reduce_min)(sums, [-2, -1], keepdims)


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Tensor:
    values = svdvals(x)
    return tf.reduce_sum(cast(values > _least(x, values, rtol), tf.int64), -1)


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Tensor:
    left, values, right = svd(x, full_matrices=False)
    counts = values > _least(x, values, rtol)
    inverted = tf.where(counts, 1 / tf.where(counts, values, tf.ones_like(values)), tf.zeros_like(values))
    return matmul(tf.linalg.adjoint(right) * cast(inverted, left.dtype)[..., tf.newaxis, :], tf.linalg.adjoint(left))


def _least(x: Array, values: Tensor, rtol: float | Array | None) -> Tensor:
    """Up to what a singular value counts as 0: rtol (the larger side * eps if None) times the largest one."""
    eps = tf.experimental.numpy.finfo(values.dtype.as_numpy_dtype).eps
    factor = (
        tf.cast(tf.reduce_max(tf.shape(x)[-2:]), values.dtype) * eps if rtol is None else tf.cast(rtol, values.dtype)
    )
    return (factor[..., tf.newaxis] if factor.shape.rank else factor) * tf.reduce_max(values, -1, keepdims=True)


def outer(x1: Array, x2: Array, /) -> Tensor:
    x1, x2 = mixed("outer", x1, x2, NUMERIC)
    if ndim_of(x1) != 1 or ndim_of(x2) != 1:
        raise ValueError(f"outer needs two vectors, got shapes {tuple(x1.shape)} and {tuple(x2.shape)}")
    return x1[:, tf.newaxis] * x2[tf.newaxis]


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    if mode not in ("reduced", "complete"):
        raise ValueError(f"mode must be 'reduced' or 'complete', got {mode!r}")
    return QR(*tf.linalg.qr(_matrices("qr", x), full_matrices=mode == "complete"))


def slogdet(x: Array, /) -> Slogdet:
    sign, logabsdet = tf.linalg.slogdet(_matrices("slogdet", x))
    return Slogdet(sign, _real(logabsdet))


def solve(x1: Array, x2: Array, /) -> Tensor:
    x1, x2 = mixed("solve", x1, x2, WIDE_FLOATING)
    x1, is_vector = _matrices("solve", x1), ndim_of(x2) == 1
    x2 = x2[:, tf.newaxis] if is_vector else x2
    outer = tf.broadcast_dynamic_shape(tf.shape(x1)[:-2], tf.shape(x2)[:-2])
    x1, x2 = (tf.broadcast_to(x, tf.concat([outer, tf.shape(x)[-2:]], 0)) for x in (x1, x2))
    solution = tf.linalg.solve(x1, x2)
    return tf.squeeze(solution, -1) if is_vector else solution


def svd(x: Array, /, *, full_matrices: bool = True) -> SVD:
    values, left, right = tf.linalg.svd(_matrices("svd", x), full_matrices=full_matrices)
    return SVD(left, _real(values), tf.linalg.adjoint(right))


def svdvals(x: Array, /) -> Tensor:
    return _real(tf.linalg.svd(_matrices("svdvals", x), compute_uv=False))


def trace(x: Array, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    return sum_of(diagonal(checked("trace", x, NUMERIC), offset=offset), axis=-1, dtype=dtype)


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


# -- fft: TensorFlow's work on the last axis, without a choice of length or norm ---------------------------------------

_POWERS = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _transformed(tf.signal.fft, _to_complex(checked("fft", x, FLOATING)), n, axis, norm, inverse=False)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _transformed(tf.signal.ifft, _to_complex(checked("ifft", x, FLOATING)), n, axis, norm, inverse=True)


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    x = checked("rfft", x, REAL_FLOATING)
    return _transformed(tf.signal.rfft, cast(x, REAL_OF[COMPLEX_OF[x.dtype]]), n, axis, norm, inverse=False)


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    x = _to_complex(checked("irfft", x, FLOATING))
    n = 2 * (sizes_of(x)[axis_of(axis, ndim_of(x))] - 1) if n is None else n
    return _transformed(lambda x: tf.signal.irfft(x[..., : n // 2 + 1], [n]), x, n, axis, norm, inverse=True)


def _transformed(
    transform: Callable[[Tensor], Tensor], x: Tensor, n: Any, axis: int, norm: str, *, inverse: bool
) -> Tensor:
    if norm not in _POWERS:
        raise ValueError(f"norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if isinstance(n, int) and n < 1:
        raise ValueError(f"a Fourier transform needs a length of 1 or more, got {n}")
    x = moveaxis(x, axis_of(axis, ndim_of(x)), -1)
    n = sizes_of(x)[-1] if n is None else n
    x = x[..., :n]
    y = transform(tf.pad(x, [[0, 0]] * (ndim_of(x) - 1) + [[0, n - sizes_of(x)[-1]]]))
    # TensorFlow has divided by n where it goes back.
    power = _POWERS[norm] if inverse else -_POWERS[norm]
    y = y * tf.cast(tf.pow(tf.cast(n, tf.float64), power), y.dtype) if power else y
    return moveaxis(y, -1, axis)


def fftshift(x: Array, /, *, axes: Axis = None) -> Tensor:
    return tf.signal.fftshift(checked("fftshift", x, FLOATING), axes)


def ifftshift(x: Array, /, *, axes: Axis = None) -> Tensor:
    return tf.signal.ifftshift(checked("ifftshift", x, FLOATING), axes)
