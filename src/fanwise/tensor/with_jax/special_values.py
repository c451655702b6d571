"""Functions of jax.numpy with the values that the standard asks for at zeros, infinities and NaN.

Only such arguments are looked at; all others get what JAX computes. The gradients are JAX's own but for two that JAX
has wrong for complex numbers: `sign`, whose derivative it takes for 0, and `acosh` left of 0, with the other sign.
Each function is compiled, so that a call outside of `jax.jit` is one step, as JAX's own is. Real numbers go straight
to JAX where JAX has them right. For complex z = x + iy (C99, annex G) the formulas are

    cosh z = cosh x cos y + i sinh x sin y        sinh z = sinh x cos y + i cosh x sin y
    f(conj z) = conj f(z), so the upper half-plane decides on both sides of a cut, by the sign of a zero
    cos z = cosh iz,  sin z = -i sinh iz, and so on

with zeros and infinities taken out before they meet a NaN.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Function = Callable[..., Any]  # Any: arrays, or arrays while they are traced

VALUES: dict[str, Function] = {}


def _mended(
    raw: Function, kind: Any = jnp.complexfloating, tangent: Function | None = None
) -> Callable[[Function], Function]:
    """Take `values` in place of `raw` for arrays of that kind, with the derivative of `raw`, or this one."""

    def decorate(values: Function) -> Function:
        def rule(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
            return ruled(*primals), (tangent or derivative)(*primals, *tangents)

        def derivative(*both: Array) -> Array:
            found: Array = jax.jvp(raw, both[: len(both) // 2], both[len(both) // 2 :])[1]
            return found

        ruled = jax.custom_jvp(values)
        ruled.defjvp(rule)

        @jax.jit
        @functools.wraps(values)
        def function(*arguments: Any) -> Any:
            dtype = jnp.result_type(*arguments)
            if not jnp.issubdtype(dtype, kind):
                return raw(*arguments)
            return ruled(*(jnp.asarray(each, dtype=dtype) for each in arguments))

        VALUES[values.__name__] = function
        return values

    return decorate


def _tangent_of_sign(z: Array, dz: Array) -> Array:
    """What turns z without changing its length; of real numbers nothing does."""
    if not jnp.iscomplexobj(z):
        return jnp.zeros_like(z)
    length = jnp.where(z == 0, 1, jnp.abs(z))
    direction = z / length
    return jnp.where(z == 0, 0, dz - direction * (jnp.conj(direction) * dz).real) / length


@_mended(jnp.sign, jnp.inexact, _tangent_of_sign)
def sign(x: Array, /) -> Array:
    # JAX gives -0 for -0.
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.sign(x))


@_mended(jnp.floor_divide, jnp.floating)
def floor_divide(x1: Array, x2: Array, /) -> Array:
    # JAX computes by the remainder, which is NaN where x1 is infinite or x2 zero, and loses the sign of zeros.
    found = jnp.floor_divide(x1, x2)
    plain = jnp.floor(jnp.divide(x1, x2))
    usual = jnp.isfinite(plain) & jnp.isfinite(x2) & (found != 0)
    return jnp.where(usual, found, jnp.where(jnp.isfinite(x2) & (found == 0), jnp.copysign(found, plain), plain))


@_mended(jnp.remainder, jnp.floating)
def remainder(x1: Array, x2: Array, /) -> Array:
    found = jnp.remainder(x1, x2)
    return jnp.where(found == 0, jnp.copysign(found, x2), found)


@_mended(jnp.exp)
def exp(x: Array, /) -> Array:
    return jnp.where(_has_no_angle(x), _without_angle(x, 0.0), jnp.exp(x))


@_mended(jnp.expm1)
def expm1(x: Array, /) -> Array:
    return jnp.where(_has_no_angle(x), _without_angle(x, -1.0), jnp.expm1(x))


def _has_no_angle(x: Array) -> Array:
    """Infinitely far, in a direction that is not known."""
    return jnp.isinf(x.real) & ~jnp.isfinite(x.imag)


def _without_angle(x: Array, least: float) -> Array:
    far = x.real > 0
    return jax.lax.complex(jnp.where(far, x.real, least), jnp.where(far, jnp.nan, jnp.zeros_like(x.real)))


@_mended(jnp.cosh)
def cosh(x: Array, /) -> Array:
    real, imag = x.real, x.imag
    across = jnp.where(imag == 0, jnp.cosh(real), jnp.cosh(real) * jnp.cos(imag))
    on_axis = (real == 0) | (imag == 0)
    along = jnp.where(on_axis, jnp.copysign(0.0, real) * jnp.copysign(1.0, imag), jnp.sinh(real) * jnp.sin(imag))
    return jax.lax.complex(jnp.where(_has_no_angle(x), jnp.inf, across), along)


@_mended(jnp.sinh)
def sinh(x: Array, /) -> Array:
    real, imag = x.real, x.imag
    across = jnp.where((real == 0) | (imag == 0), jnp.sinh(real), jnp.sinh(real) * jnp.cos(imag))
    along = jnp.where(imag == 0, imag, jnp.cosh(real) * jnp.sin(imag))
    return jax.lax.complex(jnp.where(_has_no_angle(x), real, across), along)


@_mended(jnp.tanh)
def tanh(x: Array, /) -> Array:
    real, imag = x.real, x.imag
    found = jnp.tanh(x)
    turned = jnp.where(jnp.isfinite(imag), jnp.sin(2 * imag), 1.0)
    found = jnp.where(jnp.isinf(real), jax.lax.complex(jnp.sign(real), jnp.copysign(0.0, turned)), found)
    found = jnp.where((real == 0) & ~jnp.isfinite(imag), jax.lax.complex(real, jnp.full_like(imag, jnp.nan)), found)
    return jnp.where(jnp.isnan(real) & (imag == 0), x, found)


@_mended(jnp.acos)
def acos(x: Array, /) -> Array:
    found = _by_upper_half(jnp.acos, x)
    beside = jax.lax.complex(jnp.full_like(x.real, jnp.pi / 2), jnp.full_like(x.real, jnp.nan))
    return jnp.where((x.real == 0) & jnp.isnan(x.imag), beside, found)


@_mended(jnp.acosh, tangent=lambda z, dz: dz / (jnp.sqrt(z - 1) * jnp.sqrt(z + 1)))
def acosh(x: Array, /) -> Array:
    found = _by_upper_half(jnp.acosh, x)
    beside = jax.lax.complex(jnp.full_like(x.real, jnp.nan), jnp.full_like(x.real, jnp.pi / 2))
    return jnp.where((x.real == 0) & jnp.isnan(x.imag), beside, found)


@_mended(jnp.asinh)
def asinh(x: Array, /) -> Array:
    left = jnp.signbit(x.real)
    found = jnp.asinh(jnp.where(left, -x, x))
    return jnp.where(jnp.isnan(x.real) & (x.imag == 0), x, jnp.where(left, -found, found))


@_mended(jnp.atanh)
def atanh(x: Array, /) -> Array:
    real, imag = x.real, x.imag
    known = (real == 0) | jnp.isinf(real) | jnp.isinf(imag)
    beside = jax.lax.complex(
        jnp.where(known, jnp.copysign(0.0, real), jnp.nan),
        jnp.where(jnp.isinf(imag), jnp.copysign(jnp.pi / 2, imag), jnp.nan),
    )
    return jnp.where(jnp.isnan(real) | jnp.isnan(imag), beside, _by_upper_half(jnp.atanh, x))


def _by_upper_half(function: Function, x: Array) -> Array:
    below = jnp.signbit(x.imag)
    found = function(jnp.where(below, jnp.conj(x), x))
    return jnp.where(below, jnp.conj(found), found)


def _turned(function: Function, x: Array) -> Array:
    """-i f(iz): what cos, sin, tan, asin and atan are of their hyperbolic kin."""
    found = function(jax.lax.complex(-x.imag, x.real))
    return jax.lax.complex(found.imag, -found.real)


@_mended(jnp.cos)
def cos(x: Array, /) -> Array:
    return cosh(jax.lax.complex(-x.imag, x.real))  # type: ignore[no-any-return]  # the decorator knows no types


@_mended(jnp.sin)
def sin(x: Array, /) -> Array:
    return _turned(sinh, x)


@_mended(jnp.tan)
def tan(x: Array, /) -> Array:
    return _turned(tanh, x)


@_mended(jnp.asin)
def asin(x: Array, /) -> Array:
    return _turned(asinh, x)


@_mended(jnp.atan)
def atan(x: Array, /) -> Array:
    return _turned(atanh, x)


@_mended(jnp.log)
def log(x: Array, /) -> Array:
    return _infinite_logarithm(jnp.log(x), x)


@_mended(jnp.log1p)
def log1p(x: Array, /) -> Array:
    return _infinite_logarithm(jnp.log1p(x), x)


@_mended(jnp.log2)
def log2(x: Array, /) -> Array:
    return _infinite_logarithm(jnp.log2(x), x)


@_mended(jnp.log10)
def log10(x: Array, /) -> Array:
    return _infinite_logarithm(jnp.log10(x), x)


def _infinite_logarithm(found: Array, x: Array) -> Array:
    return jax.lax.complex(jnp.where(jnp.isinf(x.real) | jnp.isinf(x.imag), jnp.inf, found.real), found.imag)


@_mended(jnp.sqrt)
def sqrt(x: Array, /) -> Array:
    nan = jnp.full_like(x.real, jnp.nan)
    far = jnp.where(x.real > 0, jax.lax.complex(x.real, nan), jax.lax.complex(nan, -x.real))
    found = jnp.where(jnp.isinf(x.real) & jnp.isnan(x.imag), far, _by_upper_half(jnp.sqrt, x))
    return jnp.where(jnp.isinf(x.imag), jax.lax.complex(jnp.full_like(x.real, jnp.inf), x.imag), found)


@_mended(jnp.abs)
def abs(x: Array, /) -> Array:
    return jnp.where(jnp.isinf(x.real) | jnp.isinf(x.imag), jnp.inf, jnp.abs(x))
