"""Gradients of JAX only: compilation, and its own transforms around them."""

from typing import Any

import pytest
from late import Late

from fanwise.tensor import grad, jit, stop_gradient, value_and_grad, vjp

jax, jnp = Late("jax"), Late("jax.numpy")
pytestmark = pytest.mark.usefixtures("jax_is_loaded")
Array = Any  # Any: jax has no types where it is not installed


def test_a_float_is_an_argument_of_compiled_code_and_keeps_its_weak_type() -> None:
    runs: list[object] = []

    def f(x: Array, rate: float) -> Array:
        runs.append(rate)
        return x * rate

    df = jit(value_and_grad(f))
    x = jnp.ones((), dtype=jnp.bfloat16)
    for rate in (0.5, 0.25, 2.0):
        value, slope = df(x, rate)
        assert float(slope) == rate and value.dtype == slope.dtype == jnp.bfloat16
    assert len(runs) == 1


def test_jit_compiles_a_gradient() -> None:
    text = str(jax.make_jaxpr(jit(grad(lambda x: jnp.sin(x))))(1.0 * jnp.ones(())))
    assert "jit" in text and "cos" in text
    assert "jit" not in str(jax.make_jaxpr(grad(lambda x: jnp.sin(x)))(1.0 * jnp.ones(())))


def test_gradients_work_inside_jit_vmap_and_scan() -> None:
    x = jnp.asarray([1.0, 2.0])

    def cubes(x: Array) -> Array:
        return (x**3).sum()

    assert jnp.allclose(jax.jit(grad(cubes))(x), 3 * x**2)
    assert jnp.allclose(jax.vmap(grad(lambda x: x**3))(x), 3 * x**2)
    assert jnp.allclose(jax.grad(lambda x: grad(cubes)(x).sum())(x), 6 * x)
    assert jnp.allclose(jax.jit(lambda x: vjp(lambda x: x**3, x)[1](x)[0])(x), 3 * x**3)
    assert jnp.allclose(jax.jit(lambda x: jit(lambda x, n: x * n)(x, 3))(x), 3 * x)
    assert jnp.allclose(jax.jit(stop_gradient)(x), x)
    last, _ = jax.lax.scan(lambda w, _: (w - 0.1 * grad(lambda w: (w * w).sum())(w), None), x, None, length=2)
    assert jnp.allclose(last, x * 0.64)


def test_aux_without_arrays_passes_an_outer_trace() -> None:
    def outer(x: Array) -> Array:
        (value, aux), slope = value_and_grad(lambda x: (x * x, {"name": "square", "twice": 2 * x}), has_aux=True)(x)
        assert aux["name"] == "square"
        return value + aux["twice"] + slope

    assert float(jax.jit(outer)(jnp.asarray(3.0))) == 9.0 + 6.0 + 6.0


def test_an_outer_jit_gets_the_error_of_control_flow() -> None:
    df = grad(lambda x: x if x > 0 else -x)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(df)(jnp.ones(()))
    assert float(df(-jnp.ones(()))) == -1.0


def test_no_tracer_leaks() -> None:
    with jax.checking_leaks():
        f = jit(value_and_grad(lambda tree, n: ((tree["x"] ** n).sum(), {"n": n, "x": tree["x"]}), has_aux=True))
        (_, aux), slope = f({"x": jnp.ones(2)}, 3)
        assert aux["n"] == 3 and float(slope["x"].sum()) == 6.0
        assert float(vjp(lambda x: x * x, jnp.ones(()))[1](1.0)[0]) == 2.0
