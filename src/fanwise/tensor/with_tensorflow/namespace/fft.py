"""The Fourier transforms of the standard. TensorFlow's work on the last axis, without a choice of length or norm.

`norm` says where the factor 1/n goes: with the inverse ("backward"), with the forward transform ("forward"), or its
square root with both ("ortho"). Narrow floats are transformed in float32.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from .. import tf
from .arguments import Array, Size, axes_of, axis_of, ndim_of, one, sizes_of
from .creation import as_device
from .dtypes import DEFAULT_FLOAT, FLOATING, REAL_FLOATING, DType, Tensor, as_dtype
from .elementwise import to_complex
from .manipulation import moveaxis

Norm = Literal["backward", "ortho", "forward"]
_OTHER_WAY: dict[Norm, Norm] = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _check(norm: Norm, n: Size | None) -> None:
    if norm not in _OTHER_WAY:
        raise ValueError(f"norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if isinstance(n, int) and n < 1:
        raise ValueError(f"a Fourier transform needs a length of 1 or more, got {n}")


def _fitted(x: Tensor, n: Size) -> Tensor:
    """The last axis cut, or filled with zeros, to length n."""
    x = x[..., :n]
    missing = n - sizes_of(x)[-1]
    return tf.pad(x, [[0, 0]] * (ndim_of(x) - 1) + [[0, missing]])


def _scaled(x: Tensor, n: Size, norm: Norm, *, inverse: bool) -> Tensor:
    """x, which TensorFlow has divided by n if `inverse`, with the factor that `norm` says."""
    powers = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}
    power = powers[norm] if inverse else -powers[norm]
    if power == 0.0:
        return x
    factor = tf.pow(tf.cast(n, tf.float64), power)
    return x * tf.cast(factor, x.dtype)


def _transformed(
    x: Tensor, n: Size | None, axis: int, norm: Norm, *, transform: Callable[[Tensor], Tensor], inverse: bool
) -> Tensor:
    """A transform of TensorFlow that keeps the length, along any axis."""
    x = moveaxis(x, axis_of(axis, ndim_of(x)), -1)
    n = sizes_of(x)[-1] if n is None else n
    _check(norm, n)
    return moveaxis(_scaled(transform(_fitted(x, n)), n, norm, inverse=inverse), -1, axis)


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The Fourier transform along an axis, cut or filled with zeros to length n.

    Raises:
        ValueError: there is no such norm, or nothing to transform.
    """
    x = to_complex(one("fft", x, FLOATING))
    return _transformed(x, n, axis, norm, transform=tf.signal.fft, inverse=False)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `fft`."""
    x = to_complex(one("ifft", x, FLOATING))
    return _transformed(x, n, axis, norm, transform=tf.signal.ifft, inverse=True)


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The Fourier transform of real numbers: its first n // 2 + 1 numbers, of which the others are conjugates."""
    x = one("rfft", x, REAL_FLOATING)
    x = x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    return _transformed(x, n, axis, norm, transform=tf.signal.rfft, inverse=False)


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers, twice the length of the axis less two if None."""
    x = to_complex(one("irfft", x, FLOATING))
    x = moveaxis(x, axis_of(axis, ndim_of(x)), -1)
    n = 2 * (sizes_of(x)[-1] - 1) if n is None else n
    _check(norm, n)
    x = tf.signal.irfft(_fitted(x, n // 2 + 1), [n])
    return moveaxis(_scaled(x, n, norm, inverse=True), -1, axis)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The Fourier transform of what is half of a Hermitian signal: n real numbers, as for `irfft`."""
    x = to_complex(one("hfft", x, FLOATING))
    _check(norm, n)
    return irfft(tf.math.conj(x), n=n, axis=axis, norm=_OTHER_WAY[norm])


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `hfft`: n // 2 + 1 complex numbers."""
    _check(norm, n)
    return tf.math.conj(rfft(x, n=n, axis=axis, norm=_OTHER_WAY[norm]))


def _plan(x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None, norm: Norm) -> list[tuple[int, int | None]]:
    """Which axes are transformed, to which lengths.

    Raises:
        ValueError: s and axes are of different lengths, or there is no such norm.
    """
    _check(norm, None)
    ndim = ndim_of(x)
    if axes is None:
        chosen = list(range(ndim)) if s is None else list(range(ndim - len(s), ndim))
    else:
        chosen = axes_of(tuple(axes), ndim)
    lengths: list[int | None] = [None] * len(chosen) if s is None else list(s)
    if len(lengths) != len(chosen) or not chosen:
        raise ValueError(f"a length for each of at least one axis is needed, got s={s} and axes={axes}")
    return list(zip(chosen, lengths, strict=True))


def _many(x: Tensor, plan: list[tuple[int, int | None]], norm: Norm, transform: Callable[..., Tensor]) -> Tensor:
    for axis, n in plan:
        x = transform(x, n=n, axis=axis, norm=norm)
    return x


def fftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Tensor:
    """The Fourier transform along several axes, all if None, cut or filled with zeros to the lengths s."""
    x = to_complex(one("fftn", x, FLOATING))
    return _many(x, _plan(x, s, axes, norm), norm, fft)


def ifftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Tensor:
    """The inverse of `fftn`."""
    x = to_complex(one("ifftn", x, FLOATING))
    return _many(x, _plan(x, s, axes, norm), norm, ifft)


def rfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Tensor:
    """The Fourier transform of real numbers along several axes; only the last one is halved as `rfft` does."""
    x = one("rfftn", x, REAL_FLOATING)
    *others, (last, n) = _plan(x, s, axes, norm)
    return _many(rfft(x, n=n, axis=last, norm=norm), others, norm, fft)


def irfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Tensor:
    """The inverse of `rfftn`."""
    x = to_complex(one("irfftn", x, FLOATING))
    *others, (last, n) = _plan(x, s, axes, norm)
    return irfft(_many(x, others, norm, ifft), n=n, axis=last, norm=norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """The frequencies of what `fft` returns, for samples d apart."""
    return _frequencies(list(range((n + 1) // 2)) + list(range(-(n // 2), 0)), n * d, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """The frequencies of what `rfft` returns, for samples d apart."""
    return _frequencies(list(range(n // 2 + 1)), n * d, dtype, device)


def _frequencies(periods: list[int], span: float, dtype: DType | None, device: str | None) -> Tensor:
    """How many periods go into a unit.

    Raises:
        TypeError: dtype is not a real floating-point type.
    """
    dtype = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    if dtype not in REAL_FLOATING:
        raise TypeError(f"frequencies are real floating-point numbers, got dtype {dtype.name}")
    with as_device(device):
        return tf.cast(tf.constant(periods, tf.float64) / span, dtype)


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """x with the frequency 0 in the middle of the axes, all if None."""
    return _shifted("fftshift", x, axes, lambda size: size // 2)


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", x, axes, lambda size: -(size // 2))


def _shifted(name: str, x: Array, axes: int | Sequence[int] | None, shift: Callable[[Size], Size]) -> Tensor:
    x = one(name, x, FLOATING)
    chosen = axes_of(axes, ndim_of(x))
    if not chosen or 0 in x.shape.as_list():
        return x
    return tf.roll(x, [shift(sizes_of(x)[axis]) for axis in chosen], chosen)
