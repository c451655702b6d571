"""Functions of complex numbers that TensorFlow computes with an overflow, without its last digits or not at all.

Each is named as in the standard and takes tensors known to be complex; what is missing here TensorFlow does right, but
for special values (nan and infinities in one part), of which nothing is promised. A selection by `tf.where` hands nan
down to gradients from the side that was not taken, so such sides get harmless numbers first.
"""

from collections.abc import Callable

from . import tf
from .dtypes import Tensor


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    return tf.math.real(z), tf.math.imag(z)


def sign(z: Tensor) -> Tensor:
    """z / abs(z), and 0 for 0."""
    length = tf.abs(z)
    is_zero = tf.equal(length, tf.zeros_like(length))
    divisor = tf.where(is_zero, tf.ones_like(length), length)
    return tf.complex(*(tf.where(is_zero, tf.zeros_like(part), part / divisor) for part in _parts(z)))


def expm1(z: Tensor) -> Tensor:
    """exp(z) - 1, from real functions that are exact near 0."""
    a, b = _parts(z)
    return tf.complex(tf.math.expm1(a) * tf.cos(b) - 2 * tf.square(tf.sin(b / 2)), tf.exp(a) * tf.sin(b))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def log(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The logarithm; TensorFlow's overflows for large numbers, and loses digits where the length is near 1."""
    # Not the gradient of the formula: `maximum` and `minimum` have none where both parts are equally large.
    return _log(z), lambda upstream: divide(upstream, tf.math.conj(z))


def _log(z: Tensor) -> Tensor:
    real, imag = _parts(z)
    length = tf.abs(z)
    near = tf.logical_and(length > 0.5, length < 2)
    a, b = tf.maximum(tf.abs(real), tf.abs(imag)), tf.minimum(tf.abs(real), tf.abs(imag))
    a, b = tf.where(near, a, tf.ones_like(a)), tf.where(near, b, tf.zeros_like(b))
    exact = tf.math.log1p((a - 1) * (a + 1) + b * b) / 2
    return tf.complex(tf.where(near, exact, tf.math.log(length)), tf.atan2(imag, real))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def log1p(z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """log(1 + z): near 0 from real functions that are exact there, elsewhere as it stands."""
    real, imag = _parts(z)
    near = tf.logical_and(tf.abs(real) < 0.5, tf.abs(imag) < 0.5)
    a, b = (tf.where(near, part, tf.zeros_like(part)) for part in (real, imag))
    close = tf.complex(tf.math.log1p(a * (2 + a) + b * b) / 2, tf.atan2(b, 1 + a))
    found = tf.where(near, close, _log(tf.complex(1 + real, imag)))
    return found, lambda upstream: divide(upstream, tf.math.conj(1 + z))


def divide(z1: Tensor, z2: Tensor) -> Tensor:
    """z1 / z2 by the method of Smith (1962): the parts' squares, which TensorFlow divides by, may overflow."""
    (a, b), (c, d) = _parts(z1), _parts(z2)
    by_real = tf.abs(c) >= tf.abs(d)
    large, small = tf.where(by_real, c, d), tf.where(by_real, d, c)
    is_zero = tf.equal(large, tf.zeros_like(large))
    ratio = tf.where(is_zero, tf.zeros_like(large), small / tf.where(is_zero, tf.ones_like(large), large))
    divisor = large + small * ratio
    real = tf.where(by_real, a + b * ratio, a * ratio + b)
    imag = tf.where(by_real, b - a * ratio, b * ratio - a)
    return tf.complex(real / divisor, imag / divisor)


def pow(z1: Tensor, z2: Tensor) -> Tensor:
    """z1 to the power z2; TensorFlow takes the logarithm of z1, which 0 has not."""
    from_zero = tf.equal(z1, tf.zeros_like(z1))
    power = tf.pow(tf.where(from_zero, tf.ones_like(z1), z1), z2)
    nothing = tf.where(tf.math.real(z2) > 0, tf.zeros_like(z2), tf.constant(complex("nan+nanj"), z2.dtype))
    power = tf.where(from_zero, nothing, power)
    return tf.where(tf.equal(z2, tf.zeros_like(z2)), tf.ones_like(power), power)
