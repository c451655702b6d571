"""Results and gradients that were wrong or different on one engine: the same on all of them now, or an error."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
ENGINES = ("torch", "jax", "tensorflow")
Array = Any  # Any: of any engine


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with ft.use(request.param):
        yield request.param


def plain(x: Array) -> Any:
    return ft.to_numpy(x).tolist()


KINKS: dict[str, tuple[Callable[[Array], Array], list[float], list[float]]] = {
    "abs at 0": (ft.abs, [0.0], [0.0]),
    "std of equal numbers": (ft.std, [1.0, 1.0], [0.0, 0.0]),
    "vector_norm at 0": (lambda x: ft.linalg.vector_norm(x), [0.0, 0.0], [0.0, 0.0]),
    "maximum of equal numbers": (lambda x: ft.maximum(x, 1.0), [1.0], [0.5]),
    "clip at its bounds": (lambda x: ft.clip(x, 0.0, 1.0), [0.0, 1.0, 2.0], [1.0, 1.0, 0.0]),
    "hypot at 0": (lambda x: ft.hypot(x, ft.zeros(1)), [0.0], [0.0]),
    "descending sort of equal numbers": (
        lambda x: ft.sort(x, descending=True) * ft.asarray([1.0, 2.0]),
        [1.0, 1.0],
        [1.0, 2.0],
    ),
    "power 0 at 0": (lambda x: ft.pow(x, 0.0), [0.0, 2.0], [0.0, 0.0]),
    "power of zeros at 0": (lambda x: ft.pow(x, ft.zeros(2)), [0.0, 2.0], [0.0, 0.0]),
    "exponent 0": (lambda y: ft.pow(ft.asarray([np.e]), y), [0.0], [1.0]),
    "cumulative_prod with a zero": (ft.cumulative_prod, [2.0, 0.0, 3.0], [1.0, 8.0, 0.0]),
    "asarray of scalars": (lambda x: ft.asarray([x[0] ** 2, 3 * x[1]]), [2.0, 5.0], [4.0, 3.0]),
    "asarray of arrays and numbers": (lambda x: ft.asarray([[x[0], 1.0], [2.0, x[1]]]), [2.0, 5.0], [1.0, 1.0]),
    "full": (lambda x: ft.full((3,), ft.sum(x)), [2.0], [3.0]),
}


@pytest.mark.parametrize("name", list(KINKS))
def test_gradients_at_kinks_ties_and_zeros_are_the_same(engine: str, name: str) -> None:
    if engine == "tensorflow" and ("cumulative_prod" in name or "sort" in name):
        pytest.skip("TensorFlow has a part of the functions")
    f, start, expected = KINKS[name]
    assert np.allclose(plain(ft.grad(lambda x: ft.sum(f(x)))(ft.asarray(start))), expected, atol=1e-6)


def test_a_bound_given_as_an_array_has_a_gradient_or_is_refused(engine: str) -> None:
    for f in (lambda x: ft.linspace(0.0, x, 3), lambda x: ft.arange(0.0, x)):
        try:
            result = plain(ft.grad(lambda x, f=f: ft.sum(f(x)))(ft.asarray(2.0)))
        except (TypeError, RuntimeError):
            continue
        assert result == 1.5


@pytest.mark.parametrize("name", ["numpy", *ENGINES])
def test_values_at_the_edges_are_the_same(name: str) -> None:
    with ft.use(name):
        x = ft.asarray([1.0, 2.0])
        assert np.isnan(plain(ft.var(x, correction=2))) and np.isnan(plain(ft.std(x, correction=5)))
        with_nan = ft.asarray([1.0, float("nan"), 3.0])
        assert (ft.item(ft.argmax(with_nan)), ft.item(ft.argmin(with_nan))) == (1, 1)
        assert tuple(ft.asarray([ft.ones((1,)), ft.zeros((1,))]).shape) == (2, 1)
        for wrong in (None, "a", [1, None]):
            with pytest.raises(TypeError):
                ft.asarray(wrong)
        for large in (2**64, [-(2**63) - 1]):
            with pytest.raises(OverflowError):
                ft.asarray(large)
        with pytest.raises(ValueError, match="one-dimensional indices"):
            ft.take(x, ft.asarray(0), axis=0)


INDICES: list[Callable[[], Any]] = [
    lambda: (0, slice(None), ft.asarray([0, 1])),
    lambda: (None, 0, slice(None), ft.asarray([1, 0])),
    lambda: (0, slice(None), [1, 1]),
    lambda: (slice(None), ft.asarray([1, -1]), slice(None)),
    lambda: (slice(None, None, -1), 1),
]


@pytest.mark.parametrize("number", range(len(INDICES)))
def test_mixed_indices_mean_what_numpys_mean(engine: str, number: int) -> None:
    start = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    index = INDICES[number]()
    in_numpy = tuple(ft.to_numpy(part) if hasattr(part, "shape") else part for part in index)
    x, part = ft.asarray(start), start[in_numpy]
    assert plain(ft.at(x)[index].get()) == part.tolist()
    value = np.arange(10, 10 + part.size, dtype=np.float32).reshape(part.shape)
    written, added = start.copy(), start.copy()
    written[in_numpy] = value
    np.add.at(added, in_numpy, value)
    assert plain(ft.at(x)[index].set(ft.asarray(value))) == written.tolist()
    assert plain(ft.at(x)[index].add(ft.asarray(value))) == added.tolist()
    cell = ft.State(x)
    cell[index] = ft.asarray(value)
    assert plain(cell.value) == written.tolist()


def test_only_the_last_value_of_a_repeated_element_has_a_gradient(engine: str) -> None:
    def loss(v: Array) -> Array:
        return ft.sum(ft.at(ft.zeros((3,)))[ft.asarray([0, 0])].set(v) ** 2)

    value, gradient = ft.value_and_grad(loss)(ft.asarray([1.0, 2.0]))
    assert (ft.item(value), plain(gradient)) == (4.0, [0.0, 4.0])


def test_a_value_with_more_axes_than_the_place_is_refused(engine: str) -> None:
    with pytest.raises(ValueError, match="does not broadcast"):
        ft.at(ft.zeros((3,)))[:].set(ft.ones((1, 3)))


def test_floor_divide_of_torch_has_a_derivative() -> None:
    x = torch.tensor([3.5])
    assert plain(ft.grad(lambda x: ft.sum(ft.floor_divide(x, 2.0) * x))(x)) == [1.0]
