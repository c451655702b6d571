"""Functions of jax.numpy whose values at zeros and infinities, or whose complex gradients, are wrong in JAX.

Real numbers get the values that the standard asks for, with the derivative that JAX has. `sign` and `acosh` of complex
numbers have the derivatives that JAX has wrong: 0 for the one, the other sign left of 0 for the other. Of complex
numbers with an infinite or NaN part nothing is promised. Each function is compiled, so that a call outside of `jax.jit`
is one step, as JAX's own is.
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


@_mended(jnp.abs, jnp.floating, lambda x, dx: dx * jnp.sign(x))
def abs(x: Array, /) -> Array:
    return jnp.abs(x)


def _tangent_of_hypot(x1: Array, x2: Array, dx1: Array, dx2: Array) -> Array:
    length = jnp.hypot(x1, x2)
    return (x1 * dx1 + x2 * dx2) / jnp.where(length == 0, 1, length)


@_mended(jnp.hypot, jnp.floating, _tangent_of_hypot)
def hypot(x1: Array, x2: Array, /) -> Array:
    return jnp.hypot(x1, x2)


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
    found = jnp.where(usual, found, jnp.where(jnp.isfinite(x2) & (found == 0), jnp.copysign(found, plain), plain))
    # As on NumPy and torch, where the standard leaves a choice.
    is_below = jnp.isinf(x2) & jnp.isfinite(x1) & (x1 != 0) & (jnp.signbit(x1) != jnp.signbit(x2))
    return jnp.where(is_below, -1, jnp.where(jnp.isinf(x1) & (x2 != 0), jnp.nan, found)).astype(found.dtype)


@_mended(jnp.remainder, jnp.floating)
def remainder(x1: Array, x2: Array, /) -> Array:
    found = jnp.remainder(x1, x2)
    return jnp.where(found == 0, jnp.copysign(found, x2), found)


@_mended(jnp.acosh, tangent=lambda z, dz: dz / (jnp.sqrt(z - 1) * jnp.sqrt(z + 1)))
def acosh(x: Array, /) -> Array:
    return jnp.acosh(x)
