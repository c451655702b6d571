"""The linear algebra extension: decompositions, norms and what is made of them, on stacks of matrices.

TensorFlow's kernels take floating-point numbers of 32 and 64 bits; narrower ones are computed in float32.
M, N: rows and columns of the matrices; K: the smaller of both.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from .. import tf
from .arguments import Array, axes_of, axis_of, ndim_of, one, sizes_of, two
from .dtypes import ALL, COMPLEX, FLOATING, NUMERIC, REAL_OF, DType, Tensor, cast, finfo
from .elementwise import to_complex
from .manipulation import matrix_transpose as matrix_transpose
from .products import broadcast_stacks
from .products import matmul as matmul
from .products import tensordot as tensordot
from .products import vecdot as vecdot
from .reductions import sum as sum_of


class Eig(NamedTuple):
    """What `eig` and `eigh` return."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """What `qr` returns."""

    Q: Tensor
    R: Tensor


class Slogdet(NamedTuple):
    """What `slogdet` returns."""

    sign: Tensor
    logabsdet: Tensor


class SVD(NamedTuple):
    """What `svd` returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _matrices(name: str, x: Array, *, square: bool = False, allowed: frozenset[DType] = FLOATING) -> Tensor:
    """x as a tensor of matrices.

    Raises:
        ValueError: it has fewer than two axes, or matrices that are not square where they have to be.
    """
    x = one(name, x, allowed)
    if ndim_of(x) < 2:
        raise ValueError(f"{name} needs matrices, got an array of shape {tuple(x.shape)}")
    if square and None not in (sizes := x.shape.as_list()[-2:]) and sizes[0] != sizes[1]:
        raise ValueError(f"{name} needs square matrices, got an array of shape {tuple(x.shape)}")
    return x


def _wide(x: Tensor) -> Tensor:
    return cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x


def _real(x: Tensor) -> Tensor:
    """Real numbers that TensorFlow gives out as complex ones."""
    return tf.math.real(x) if x.dtype in COMPLEX else x


def cholesky(x: Array, /, *, upper: bool = False) -> Tensor:
    """The triangular L with L @ conj(L.T) == x, or its conjugate transpose if `upper`; of symmetric positive x.

    Raises:
        tf.errors.InvalidArgumentError: a matrix is not positive definite.
    """
    x = _matrices("cholesky", x, square=True)
    lower = cast(tf.linalg.cholesky(_wide(x)), x.dtype)
    return tf.linalg.adjoint(lower) if upper else lower


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of 3 numbers along an axis, counted from the end.

    Raises:
        ValueError: the axis has another length.
    """
    x1, x2 = two("cross", x1, x2, NUMERIC)
    for x in (x1, x2):
        if x.shape[axis_of(axis, ndim_of(x))] not in (3, None):
            raise ValueError(f"cross needs 3 numbers along axis {axis}, got an array of shape {tuple(x.shape)}")
    a, b = (tf.unstack(x, num=3, axis=axis) for x in (x1, x2))
    parts = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return tf.stack(parts, axis)


def det(x: Array, /) -> Tensor:
    """The determinants of square matrices."""
    x = _matrices("det", x, square=True)
    return cast(_complex_det(x) if x.dtype in COMPLEX else tf.linalg.det(_wide(x)), x.dtype)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _complex_det(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """TensorFlow's own gradient has the determinant itself where its conjugate belongs."""

    def gradient(upstream: Tensor) -> Tensor:
        return (upstream * tf.math.conj(_complex_det(x)))[..., None, None] * tf.linalg.inv(x, adjoint=True)

    return tf.linalg.det(x), gradient


def diagonal(x: Array, /, *, offset: int = 0) -> Tensor:
    """The diagonals `offset` places to the right of the main ones; of length 0 if there is none."""
    x = _matrices("diagonal", x, allowed=ALL)
    rows, columns = x.shape.as_list()[-2:]
    if (rows is not None and -offset >= rows) or (columns is not None and offset >= columns):
        return tf.zeros([*sizes_of(x)[:-2], 0], x.dtype)
    return tf.linalg.diag_part(x, k=offset)


def eig(x: Array, /) -> Eig:
    """Eigenvalues and eigenvectors (the columns) of square matrices; always complex, in no promised order."""
    x = _matrices("eig", x, square=True)
    return Eig(*tf.linalg.eig(to_complex(_wide(x))))


def eigvals(x: Array, /) -> Tensor:
    """Eigenvalues of square matrices; always complex, in no promised order."""
    return tf.linalg.eigvals(to_complex(_wide(_matrices("eigvals", x, square=True))))


def eigh(x: Array, /) -> Eig:
    """Eigenvalues, rising, and eigenvectors (the columns) of symmetric or Hermitian matrices."""
    x = _matrices("eigh", x, square=True)
    values, vectors = tf.linalg.eigh(_wide(x))
    return Eig(cast(_real(values), REAL_OF.get(x.dtype, x.dtype)), cast(vectors, x.dtype))


def eigvalsh(x: Array, /) -> Tensor:
    """Eigenvalues, rising, of symmetric or Hermitian matrices."""
    x = _matrices("eigvalsh", x, square=True)
    return cast(_real(tf.linalg.eigvalsh(_wide(x))), REAL_OF.get(x.dtype, x.dtype))


def inv(x: Array, /) -> Tensor:
    """The inverses of square matrices.

    Raises:
        tf.errors.InvalidArgumentError: a matrix has none.
    """
    x = _matrices("inv", x, square=True)
    return cast(tf.linalg.inv(_wide(x)), x.dtype)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Tensor:
    """Norms of matrices: "fro", "nuc", 1, -1, 2, -2, inf or -inf.

    Raises:
        ValueError: there is no such norm.
    """
    x = _matrices("matrix_norm", x)
    if ord in ("fro", None):
        return tf.sqrt(tf.reduce_sum(_squares(x), [-2, -1], keepdims))
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        reduce = tf.reduce_sum if ord == "nuc" else tf.reduce_max if ord == 2 else tf.reduce_min
        norm = reduce(values, -1)
        return norm[..., tf.newaxis, tf.newaxis] if keepdims else norm
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    sums = tf.reduce_sum(tf.abs(x), -2 if abs(ord) == 1 else -1, keepdims=True)
    norm = (tf.reduce_max if ord > 0 else tf.reduce_min)(sums, [-2, -1], keepdims)
    return norm


def _squares(x: Tensor) -> Tensor:
    """Squares of absolute values; of real numbers without a kink at 0 for the gradient."""
    return tf.square(tf.math.real(x)) + tf.square(tf.math.imag(x)) if x.dtype in COMPLEX else tf.square(x)


def matrix_power(x: Array, n: int, /) -> Tensor:
    """Square matrices multiplied with themselves; their inverses for negative n."""
    x = _matrices("matrix_power", x, square=True)
    if n < 0:
        x, n = inv(x), -n
    power = None
    while n:
        if n & 1:
            power = x if power is None else matmul(power, x)
        n >>= 1
        if n:
            x = matmul(x, x)
    if power is not None:
        return power
    return tf.eye(sizes_of(x)[-1], batch_shape=sizes_of(x)[:-2], dtype=x.dtype)


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Tensor:
    """How many singular values are larger than rtol times the largest, as int64."""
    x = _matrices("matrix_rank", x)
    values = svdvals(x)
    return tf.reduce_sum(cast(values > _smallest(x, values, rtol), tf.int64), -1)


def _smallest(x: Tensor, values: Tensor, rtol: float | Array | None) -> Tensor:
    """Below which a singular value counts as 0: rtol, max(M, N) * eps if None, times the largest one."""
    sizes = tf.shape(x)[-2:]
    if rtol is None:
        rtol = cast(tf.reduce_max(sizes), values.dtype) * tf.constant(finfo(values.dtype).eps, values.dtype)
    factor: Tensor = tf.cast(rtol, values.dtype)
    return (factor[..., tf.newaxis] if factor.shape.rank else factor) * tf.reduce_max(values, -1, keepdims=True)


def outer(x1: Array, x2: Array, /) -> Tensor:
    """All products of an element of the vector x1 and one of the vector x2.

    Raises:
        ValueError: an array has not one axis.
    """
    x1, x2 = two("outer", x1, x2, NUMERIC)
    if ndim_of(x1) != 1 or ndim_of(x2) != 1:
        raise ValueError(f"outer needs two vectors, got shapes {tuple(x1.shape)} and {tuple(x2.shape)}")
    return x1[:, tf.newaxis] * x2[tf.newaxis]


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Tensor:
    """The pseudo-inverses; singular values up to rtol times the largest count as 0."""
    x = _matrices("pinv", x)
    left, values, right = svd(x, full_matrices=False)
    counts = values > _smallest(x, values, rtol)
    inverted = tf.where(counts, 1 / tf.where(counts, values, tf.ones_like(values)), tf.zeros_like(values))
    scaled = tf.linalg.adjoint(right) * cast(inverted, x.dtype)[..., tf.newaxis, :]
    return matmul(scaled, tf.linalg.adjoint(left))


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """Q with orthonormal columns and the triangular R with Q @ R == x; Q is M x K, or M x M if "complete".

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"mode must be 'reduced' or 'complete', got {mode!r}")
    x = _matrices("qr", x)
    q, r = tf.linalg.qr(_wide(x), full_matrices=mode == "complete")
    return QR(cast(q, x.dtype), cast(r, x.dtype))


def slogdet(x: Array, /) -> Slogdet:
    """The sign of the determinants, and the logarithms of their absolute values."""
    x = _matrices("slogdet", x, square=True)
    sign, logabsdet = tf.linalg.slogdet(_wide(x))
    return Slogdet(cast(sign, x.dtype), cast(_real(logabsdet), REAL_OF.get(x.dtype, x.dtype)))


def solve(x1: Array, x2: Array, /) -> Tensor:
    """The x with x1 @ x == x2; x2 is a vector if it has one axis, else a stack of matrices.

    Raises:
        tf.errors.InvalidArgumentError: a matrix of x1 has no inverse.
    """
    x1, x2 = two("solve", x1, x2, FLOATING)
    x1, is_vector = _matrices("solve", x1, square=True), ndim_of(x2) == 1
    dtype = x1.dtype
    x1, x2 = broadcast_stacks(_wide(x1), _wide(x2[:, tf.newaxis] if is_vector else x2))
    solution = cast(tf.linalg.solve(x1, x2), dtype)
    return tf.squeeze(solution, -1) if is_vector else solution


def svd(x: Array, /, *, full_matrices: bool = True) -> SVD:
    """U, the singular values S, falling, and Vh with U @ diag(S) @ Vh == x.

    U is M x M and Vh N x N; M x K and K x N without `full_matrices`.
    """
    x = _matrices("svd", x)
    values, left, right = tf.linalg.svd(_wide(x), full_matrices=full_matrices)
    values = cast(_real(values), REAL_OF.get(x.dtype, x.dtype))
    return SVD(cast(left, x.dtype), values, cast(tf.linalg.adjoint(right), x.dtype))


def svdvals(x: Array, /) -> Tensor:
    """The singular values, falling."""
    x = _matrices("svdvals", x)
    return cast(_real(tf.linalg.svd(_wide(x), compute_uv=False)), REAL_OF.get(x.dtype, x.dtype))


def trace(x: Array, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """The sums of the diagonals `offset` places to the right of the main ones; types as for `sum`."""
    return sum_of(diagonal(one("trace", x, NUMERIC), offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """The norm of order `ord` of the vectors along the axes, all if None; 0 counts what is not zero."""
    x = one("vector_norm", x, FLOATING)
    axes = axes_of(axis, ndim_of(x))
    if ord == 2:
        return tf.sqrt(tf.reduce_sum(_squares(x), axes, keepdims))
    lengths = tf.abs(x)
    if ord == math.inf:
        return tf.reduce_max(lengths, axes, keepdims)
    if ord == -math.inf:
        return tf.reduce_min(lengths, axes, keepdims)
    if ord == 0:
        return tf.reduce_sum(cast(tf.not_equal(lengths, 0), lengths.dtype), axes, keepdims)
    if ord == 1:
        return tf.reduce_sum(lengths, axes, keepdims)
    order = tf.constant(ord, lengths.dtype)
    return tf.pow(tf.reduce_sum(tf.pow(lengths, order), axes, keepdims), 1 / order)
