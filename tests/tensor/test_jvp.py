"""`jvp`: one meaning on every engine, by drawn functions beside loops and differences in NumPy's float64."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded", "torch_func_is_loaded")
ENGINES = ["torch", "jax", "tensorflow"]
Array = Any  # Any: of whatever engine
Function = Callable[[Array], Array]

W = np.asarray([[0.5, -1.0, 0.25], [1.0, 0.75, -0.5], [-0.25, 0.5, 1.5]], np.float32)
X = np.asarray([[0.3, -1.2, 0.8], [1.1, 0.4, -0.6], [-0.9, 0.2, 1.4], [0.7, 1.3, -0.1]], np.float32)
Z = (X + 1j * X[::-1]).astype(np.complex64)


@pytest.fixture(scope="module")
def torch_func_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its compiler, which torch.func loads, else adds the variable to the environment in the middle of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
        torch.func.vmap(torch.sin)(torch.ones(1))
        yield


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with ft.use(request.param):
        yield request.param


def close(result: Array, expected: Array) -> bool:
    result, expected = ft.to_numpy(result), np.asarray(expected)
    return result.shape == expected.shape and np.allclose(result, expected, rtol=2e-3, atol=2e-3)


def same_as(x: Array, constant: Any) -> Array:
    """A constant as an array of x's engine and type, so that a function runs in NumPy's float64, too."""
    return ft.astype(ft.namespace(x).asarray(constant), x.dtype)


# Of a vector of three numbers to one: real ones, and real or complex ones.
REAL_STEPS: dict[str, Function] = {
    "sin": ft.sin,
    "tanh": ft.tanh,
    "square": lambda x: x * x,
    "mix": lambda x: ft.matmul(same_as(x, W), x),
    "cumulated": lambda x: ft.cumulative_prod(x) * 0.5,
    "chosen": lambda x: ft.where(x > 0, x * x, x * x * 0.5),
    "turned": lambda x: ft.at(x)[::-1].get() * x,
    "scaled": lambda x: x / (1.0 + ft.sum(x * x)),
    "written": lambda x: ft.at(x)[0].set(x[1] * 2.0),
}
COMPLEX_STEPS: dict[str, Function] = {
    "square": REAL_STEPS["square"],
    "mix": REAL_STEPS["mix"],
    "turned": REAL_STEPS["turned"],
    "exp": lambda x: ft.exp(x * same_as(x, 0.3 + 0.2j)),
    "conj": lambda x: ft.conj(x) * same_as(x, 1.0 - 0.5j),
    "abs": lambda x: ft.astype(ft.abs(x), x.dtype) * x,
    "parts": lambda x: ft.astype(ft.real(x) * ft.imag(x), x.dtype) + x,
}
some = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
few = settings(some, max_examples=2)


def functions(steps: dict[str, Function]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(sorted(steps)), min_size=1, max_size=3).map(tuple)


def composed(steps: dict[str, Function], names: tuple[str, ...]) -> Function:
    return lambda x: functools.reduce(lambda y, name: steps[name](y), names, x)


def slope(f: Function, x: Array, along: Array) -> Array:
    """The derivative along a direction, by central differences in NumPy with 64 bits."""
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    x, along, step = x.astype(wide), along.astype(wide), 1e-6
    return (f(x + step * along) - f(x - step * along)) / (2 * step)


# -- drawn functions ---------------------------------------------------------------------------------------------------


@some
@given(names=functions(REAL_STEPS), row=st.integers(0, 3), direction=st.integers(0, 3))
def test_jvp_is_the_slope_along_the_tangent(names: tuple[str, ...], row: int, direction: int) -> None:
    f = composed(REAL_STEPS, names)
    for engine in ENGINES:
        with ft.use(engine):
            value, along = ft.jvp(f, (ft.asarray(X[row]),), (ft.asarray(X[direction]),))
            assert close(value, f(X[row].astype(np.float64)))
            assert close(along, slope(f, X[row], X[direction]))


@some
@given(names=functions(COMPLEX_STEPS), row=st.integers(0, 3), direction=st.integers(0, 3))
def test_jvp_of_complex_numbers_is_the_slope_along_a_real_step_on_every_engine(
    names: tuple[str, ...], row: int, direction: int
) -> None:
    f = composed(COMPLEX_STEPS, names)
    for engine in ENGINES:
        with ft.use(engine):
            _, along = ft.jvp(f, (ft.asarray(0.5 * Z[row]),), (ft.asarray(0.5 * Z[direction]),))
            expected = slope(f, 0.5 * Z[row], 0.5 * Z[direction])
            assert np.allclose(ft.to_numpy(along), expected, rtol=5e-3, atol=5e-3)


@few
@given(names=functions(COMPLEX_STEPS), row=st.integers(0, 3))
def test_jvp_and_vjp_are_adjoint(names: tuple[str, ...], row: int) -> None:
    f = composed(COMPLEX_STEPS, names)
    for engine in ENGINES:
        with ft.use(engine):
            x, tangent, cotangent = (ft.asarray(0.5 * Z[(row + shift) % 4]) for shift in range(3))
            forward = ft.to_numpy(ft.jvp(f, (x,), (tangent,))[1])
            back = ft.to_numpy(ft.vjp(f, x)[1](cotangent)[0])
            one = np.sum(np.conj(ft.to_numpy(cotangent)) * forward).real
            target = np.sum(np.conj(back) * ft.to_numpy(tangent)).real
            assert one == pytest.approx(target, rel=2e-3, abs=2e-3)


# -- jvp ---------------------------------------------------------------------------------------------------------------


def test_second_derivatives_in_any_order_of_forward_and_reverse(engine: str) -> None:
    def f(x: Array) -> Array:
        return ft.sum(x**3)

    x, tangent = ft.asarray(X[0]), ft.asarray(X[1])
    expected = 6.0 * X[0] * X[1]
    assert close(ft.jvp(ft.grad(f), (x,), (tangent,))[1], expected)
    assert close(ft.grad(lambda x: ft.jvp(f, (x,), (tangent,))[1])(x), expected)
    assert close(ft.jvp(lambda x: ft.jvp(f, (x,), (tangent,))[1], (x,), (tangent,))[1], np.sum(expected * X[1]))
    assert close(ft.grad(lambda x: ft.sum(ft.jvp(ft.grad(f), (x,), (tangent,))[1]))(x), 6.0 * X[1])
    assert close(ft.jit(lambda x, t: ft.jvp(f, (x,), (t,))[1])(x, tangent), 3.0 * np.sum(X[0] ** 2 * X[1]))


def test_jvp_of_a_tree_gives_a_tree_with_none_where_nothing_has_a_derivative(engine: str) -> None:
    def f(tree: Any, z: Array) -> Any:
        return {"y": tree["a"] * z, "n": ft.argmax(tree["a"]), "s": "text", "c": ft.asarray(2.0), "b": tree["b"] * 3.0}

    tree = {"a": ft.asarray([1.0, 2.0]), "b": ft.asarray([1.0])}
    value, along = ft.jvp(f, (tree, ft.asarray(4.0)), ({"a": ft.asarray([1.0, 0.5]), "b": None}, 2.0))
    assert close(value["y"], [4.0, 8.0]) and value["s"] == "text" and ft.item(value["n"]) == 1
    assert close(along["y"], [6.0, 6.0]) and close(along["c"], 0.0) and close(along["b"], [0.0])
    assert along["n"] is None and along["s"] is None
    assert ft.jvp(lambda x: "nothing", (ft.asarray(1.0),), (1.0,)) == ("nothing", None)


def test_the_same_array_twice_is_two_arguments(engine: str) -> None:
    x = ft.asarray([2.0, 3.0])
    assert close(ft.jvp(lambda a, b: a * b * b, (x, x), (1.0, None))[1], [4.0, 9.0])


def test_a_tangent_does_not_flow_through_stop_gradient(engine: str) -> None:
    x = ft.asarray([2.0, 3.0])
    assert close(ft.jvp(lambda x: ft.stop_gradient(x) * x, (x,), (1.0,))[1], [2.0, 3.0])


def test_what_jvp_does_not_take(engine: str) -> None:
    x = ft.asarray([1.0, 2.0])
    with pytest.raises(TypeError, match="primals must be a tuple, with one for each argument of f"):
        ft.jvp(ft.sin, x, (x,))
    with pytest.raises(ValueError, match="a tangent for each primal, got 1 primals, 2 tangents"):
        ft.jvp(ft.sin, (x,), (x, x))
    with pytest.raises(ValueError, match=r"tangents\[0\]\['a'\] must have the shape of the primal, \(2,\), got \(1,\)"):
        ft.jvp(lambda tree: tree["a"], ({"a": x},), ({"a": x[:1]},))
    with pytest.raises(TypeError, match=r"tangents\[0\] must have the dtype of the primal, .*float32\W*, got .*int32"):
        ft.jvp(ft.sin, (x,), (ft.asarray([1, 2], dtype=ft.int32),))
    with pytest.raises(TypeError, match=rf"tangents\[0\] must be an array of {engine}, as the primal is, got"):
        ft.jvp(ft.sin, (x,), (np.ones(2, np.float32),))
    with pytest.raises(TypeError, match=r"args\[0\] has dtype .*int32\W*: only real and complex"):
        ft.jvp(lambda x: x, (ft.asarray([1, 2], dtype=ft.int32),), (1,))
    with pytest.raises(ValueError, match="jvp needs an array to differentiate by"):
        ft.jvp(lambda: 1, (), ())
    with pytest.raises(TypeError, match="expected a function, got"):
        ft.jvp(x, (x,), (x,))


def test_jvp_in_torch_leaves_no_history_but_inside_of_a_differentiation() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    value, along = ft.jvp(torch.sin, (x,), (torch.ones(2),))
    assert not value.requires_grad and not along.requires_grad and x.grad is None
    value, along = ft.jvp(lambda z: z * x, (torch.ones(2),), (torch.ones(2),))
    assert not value.requires_grad and not along.requires_grad
    inside = torch.func.grad(lambda x: ft.jvp(lambda x: (x**3).sum(), (x,), (torch.ones(2),))[1])(x)
    assert torch.allclose(inside, 6.0 * x)
    with torch.no_grad(), torch.inference_mode():
        assert torch.allclose(ft.jvp(torch.sin, (x,), (torch.ones(2),))[1], torch.cos(x))


def test_numpy_has_none_of_it() -> None:
    with pytest.raises(TypeError, match=r"numpy has no gradients; torch, jax, tensorflow have\. Convert"):
        ft.jvp(ft.sin, (X,), (X,))
