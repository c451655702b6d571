"""Gradients of complex numbers are torch's on every engine: dL/d(real part) + i dL/d(imaginary part)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
ENGINES = ["torch", "jax", "tensorflow"]
Array = Any  # Any: of any engine

REAL = np.array([1.0, 2.0, -1.0, 0.5], np.float32)
COMPLEX = (REAL + 1j * np.array([0.5, -1.0, 2.0, 3.0])).astype(np.complex64)
WEIGHTS = np.array([0.0, 1.0, 2.0, 3.0], np.float32)


def close(result: Array, expected: Array) -> bool:
    result, expected = np.asarray(result), np.asarray(expected)
    return result.dtype == expected.dtype and np.allclose(result, expected, rtol=1e-4, atol=1e-4)


def slopes(f: Callable[[Any], Any], x: Any) -> Any:
    """The gradient of f, which is real, by central differences in numpy with 64 bits."""
    x = x.astype(np.complex128)
    result, step = np.zeros_like(x), 1e-6
    for place in np.ndindex(x.shape):
        for direction in (1, 1j):
            up, down = x.copy(), x.copy()
            up[place] += step * direction
            down[place] -= step * direction
            result[place] += direction * (f(up) - f(down)) / (2 * step)
    return result.astype(np.complex64)


# -- grad, value_and_grad, vjp -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "compiled"), [*((engine, lambda f: f) for engine in ENGINES), ("jax", ft.jit)])
def test_a_step_against_a_complex_gradient_descends(engine: str, compiled: Any) -> None:
    def loss(z: Array) -> Array:
        return ft.sum(ft.abs(z - (1.0 + 2.0j)) ** 2)

    with ft.use(engine):
        z = ft.asarray([3.0 - 1.0j])
        value, gradient = compiled(ft.value_and_grad(loss))(z)
        assert close(gradient, np.array([4.0 - 6.0j], np.complex64))
        assert close(compiled(ft.grad(loss))(z), gradient) and close(ft.vjp(loss, z)[1](1.0)[0], gradient)
        assert float(loss(z - 0.1 * gradient)) < float(value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_complex_cotangent_is_the_gradient_of_a_later_loss(engine: str) -> None:
    with ft.use(engine):
        z, weights = ft.asarray(COMPLEX), ft.asarray(WEIGHTS)

        def later(y: Array) -> Array:
            return ft.sum(weights * ft.imag(y) ** 2)

        value, pullback = ft.vjp(lambda z: z * z * (2.0 - 1.0j), z)
        whole = ft.grad(lambda z: later(z * z * (2.0 - 1.0j)))(z)
        assert close(pullback(ft.grad(later)(value))[0], whole)
        assert close(whole, slopes(lambda z: np.sum(WEIGHTS * (z * z * (2 - 1j)).imag ** 2), COMPLEX))


@pytest.mark.parametrize("engine", ENGINES)
def test_second_complex_gradients_follow_the_same_convention(engine: str) -> None:
    def steep(z: Array) -> Array:
        return ft.sum(ft.imag(ft.grad(lambda z: ft.sum(ft.real(z * z * z)))(z)) * ft.asarray(WEIGHTS))

    with ft.use(engine):  # of real(z**3) the gradient is conj(3 z**2)
        assert close(
            ft.grad(steep)(ft.asarray(COMPLEX)), slopes(lambda z: np.sum((3 * z * z).conj().imag * WEIGHTS), COMPLEX)
        )


IN_NUMPY: dict[str, Callable[[Any], Any]] = {
    "acosh": np.arccosh,
    "cumulative_prod": np.cumprod,
    "exp": np.exp,
    "fft.fft": np.fft.fft,
    "fft.ifft": np.fft.ifft,
    "log1p": np.log1p,
    "sign": lambda z: z / np.abs(z),
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (engine, name)
        for engine in ENGINES
        for name in IN_NUMPY
        if engine != "tensorflow" or name in ("exp", "sqrt", "tanh")
    ],
)
def test_complex_gradients_agree_with_finite_differences(engine: str, name: str) -> None:
    part, _, own = name.rpartition(".")
    start = COMPLEX - (1.5 if name in ("acosh", "log1p") else 0)  # left of where they branch, too
    weights = np.random.default_rng(0).normal(size=(2, *np.shape(IN_NUMPY[name](start))))

    with ft.use(engine):
        function = getattr(getattr(ft, part) if part else ft, own)

        def loss(z: Array) -> Array:
            y = function(z)
            real, imag = (ft.asarray(item.astype(np.float32)) for item in weights)
            if not ft.isdtype(y.dtype, "complex floating"):
                return ft.sum(y * real)
            return ft.sum(ft.real(y) * real) + ft.sum(ft.imag(y) * imag)

        def in_numpy(z: Any) -> Any:
            y = IN_NUMPY[name](z)
            return np.sum(y.real * weights[0]) + np.sum(y.imag * weights[1])

        assert close(ft.grad(loss)(ft.asarray(start)), slopes(in_numpy, start))
