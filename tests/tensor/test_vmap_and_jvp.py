"""`vmap` and `jvp`: one meaning on every engine, by drawn functions beside loops and differences in NumPy's float64."""

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


def close(found: Array, expected: Array) -> bool:
    found, expected = ft.to_numpy(found), np.asarray(expected)
    return found.shape == expected.shape and np.allclose(found, expected, rtol=2e-3, atol=2e-3)


def same_as(x: Array, constant: Any) -> Array:
    """A constant as an array of x's engine and type, so that a function runs in NumPy's float64, too."""
    return ft.astype(ft.namespace(x).asarray(constant), x.dtype)


# Of a vector of three numbers to one: real ones, and real or complex ones.
REAL_STEPS: dict[str, Function] = {
    "sin": ft.sin,
    "tanh": ft.tanh,
    "square": lambda x: x * x,
    "mix": lambda x: ft.matmul(same_as(x, W), x),
    "softmax": lambda x: ft.softmax(x) if ft.engine_of(x) != "numpy" else np.exp(x) / np.sum(np.exp(x)),
    "cumulated": lambda x: ft.cumulative_sum(x) * 0.5,
    "chosen": lambda x: ft.where(x > 0, x * x, x * x * 0.5),
    "turned": lambda x: ft.flip(x) * x,
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


def functions(steps: dict[str, Function], max_size: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(sorted(steps)), min_size=1, max_size=max_size).map(tuple)


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
            other = np.sum(np.conj(back) * ft.to_numpy(tangent)).real
            assert one == pytest.approx(other, rel=2e-3, abs=2e-3)


@some
@given(names=functions(REAL_STEPS), in_axis=st.sampled_from([0, 1, -1]), out_axis=st.sampled_from([0, 1, -2]))
def test_vmap_is_a_loop_over_the_elements(names: tuple[str, ...], in_axis: int, out_axis: int) -> None:
    f = composed(REAL_STEPS, names)
    looped = np.stack([f(row.astype(np.float64)) for row in X], axis=out_axis)
    for engine in ENGINES:
        with ft.use(engine):
            x = ft.asarray(np.moveaxis(X, 0, in_axis).copy())
            assert close(ft.vmap(f, in_axes=in_axis, out_axes=out_axis)(x), looped)


@few
@given(names=functions(REAL_STEPS, max_size=2))
def test_vmap_and_derivatives_nest_in_each_other(names: tuple[str, ...]) -> None:
    f = composed(REAL_STEPS, names)

    def loss(x: Array) -> Array:
        return ft.sum(f(x) ** 2)

    for engine in ENGINES:
        with ft.use(engine):
            x = ft.asarray(X)
            each = np.stack([ft.to_numpy(ft.grad(loss)(ft.asarray(row))) for row in X])
            assert close(ft.vmap(ft.grad(loss))(x), each)
            assert close(ft.grad(lambda x: ft.sum(ft.vmap(loss)(x)))(x), each)
            columns = ft.vmap(lambda x, tangent: ft.jvp(f, (x,), (tangent,))[1], (None, 0), 1)(x[0], ft.eye(3))
            rows = ft.vmap(ft.vjp(f, x[0])[1])(ft.eye(3))[0]
            assert close(columns, ft.to_numpy(rows))  # the Jacobian, both ways


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


# -- vmap --------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: Array
    scale: Array


def test_axes_may_be_trees_like_a_part_of_the_arguments_and_of_the_result(engine: str) -> None:
    def f(pair: Pair, b: Array, name: str, *, k: Array) -> Any:
        assert pair.x.shape == (3,) and pair.scale.shape == (3,) and b.shape == () and k.shape == ()
        return {"y": pair.x * pair.scale + b, "k": k, "name": name, "constant": ft.zeros(2)}

    mapped = ft.vmap(f, in_axes=(Pair(0, None), 0, 0), out_axes={"y": -1, "k": 0, "name": 0, "constant": 1})
    given = (Pair(ft.asarray(X), ft.asarray(W[0])), ft.asarray(X[:, 0].copy()), "text")
    result = mapped(*given, k=ft.asarray(X[:, 1].copy()))
    assert close(result["y"], (X * W[0] + X[:, :1]).T)
    assert close(result["k"], X[:, 1]) and result["name"] == "text"
    assert close(result["constant"], np.zeros((2, 4)))
    none: Any = {"a": None, "b": ft.asarray(X)}
    assert close(ft.vmap(lambda tree: tree["b"][0], in_axes=(0,))(none), X[:, 0])


def test_vmap_in_vmap_and_compiled(engine: str) -> None:
    x, y = ft.asarray(X[0]), ft.asarray(X[1])
    outer = ft.vmap(ft.vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))
    assert close(outer(x, y), np.outer(X[0], X[1]))
    assert close(ft.jit(outer)(x, y), np.outer(X[0], X[1]))
    assert close(ft.jit(ft.vmap(ft.grad(lambda x: ft.sum(x**2))))(ft.asarray(X)), 2.0 * X)
    penalty = ft.grad(lambda w: ft.sum(ft.vmap(ft.grad(lambda x: ft.sum(w * x) ** 3))(ft.asarray(X))))(x)
    inner = X @ X[0]
    assert close(penalty, np.sum(3 * inner**2) + np.sum(6 * inner[:, None] * X * np.sum(X[0]), axis=0))
    of_each = ft.vmap(ft.grad(lambda w, x: ft.sum(w * x) ** 3), (None, 0))
    summed = ft.grad(lambda w: ft.sum(of_each(w, ft.asarray(X))))(x)
    assert close(summed, np.sum(6 * (inner * np.sum(X, axis=1))[:, None] * X, axis=0))


def test_f_runs_once_and_no_elements_are_no_error(engine: str) -> None:
    calls = []

    def f(x: Array) -> Array:
        calls.append(x.shape)
        return ft.sum(x)

    assert ft.vmap(f)(ft.zeros((5, 2))).shape == (5,)
    assert [tuple(shape) for shape in calls] == [(2,)]
    assert tuple(ft.vmap(f)(ft.zeros((0, 2))).shape) == (0,)
    assert ft.vmap(lambda x: None)(ft.zeros((2, 2))) is None


def test_python_does_not_see_an_element(engine: str) -> None:
    errors = pytest.importorskip("jax").errors, pytest.importorskip("tensorflow").errors
    kinds = (RuntimeError, errors[0].TracerBoolConversionError, errors[1].OperatorNotAllowedInGraphError)
    with pytest.raises(kinds):
        ft.vmap(branching)(ft.asarray(X[0]))
    with pytest.raises(TypeError, match=r"does not give out its memory|has no values yet"):
        ft.vmap(ft.item)(ft.asarray(X[0]))


def test_a_key_draws_the_same_for_all_elements(engine: str) -> None:
    expected = ft.to_numpy(ft.normal(ft.Key(0), 2, engine="numpy"))
    found = ft.vmap(lambda i, key: ft.normal(key, 2) + i, in_axes=(0, None))(ft.zeros(3), ft.Key(0))
    assert close(found, np.stack([expected] * 3))


def test_a_key_with_the_number_of_an_element_draws_its_numbers_or_says_why_not(engine: str) -> None:
    def f(i: Array) -> Array:
        return ft.normal(ft.Key(0).fold_in(i), 2)

    if engine == "torch":
        with pytest.raises(TypeError, match="not known inside vmap of torch: draw for all elements outside"):
            ft.vmap(f)(ft.arange(3))
        return
    expected = np.stack([ft.to_numpy(ft.normal(ft.Key(0).fold_in(i), 2, engine="numpy")) for i in range(3)])
    assert np.array_equal(ft.to_numpy(ft.vmap(f)(ft.arange(3))), expected)


def test_a_state_is_read_inside_vmap_and_not_written(engine: str) -> None:
    state = ft.State(ft.asarray([1.0, 2.0]))

    def write(v: Array) -> Array:
        state[0] = v
        return v

    assert close(ft.vmap(lambda v: state.value * v)(ft.asarray([1.0, 3.0])), [[1.0, 2.0], [3.0, 6.0]])
    with pytest.raises(TypeError, match="a State cannot be written to inside vmap"):
        ft.vmap(write)(ft.zeros(3))
    with pytest.raises(TypeError, match="a State cannot be written to inside vmap"):
        ft.vmap(lambda v: state.__iadd__(1.0).value)(ft.zeros(3))
    state[0] = 5.0  # outside again
    assert close(state.value, [5.0, 2.0])


def test_at_writes_what_is_mapped_and_where_unless_it_says_why_not(engine: str) -> None:
    v = ft.asarray([1.0, 2.0, 3.0])
    assert close(ft.vmap(lambda v: ft.at(ft.zeros(3))[1:].add(v))(v), [[0.0, n, n] for n in (1.0, 2.0, 3.0)])
    if engine == "torch":
        with pytest.raises(TypeError, match="torch does not know an index that is mapped by vmap"):
            ft.vmap(lambda i: ft.at(ft.zeros(3))[i].set(1.0))(ft.arange(3))
        return
    for how in ("set", "add"):
        written = ft.vmap(lambda i, how=how: getattr(ft.at(ft.zeros(3))[i], how)(1.0))(ft.arange(3))
        assert close(written, np.eye(3))


def test_gradients_flow_through_vmap_into_torch_parameters() -> None:
    w = torch.nn.Parameter(torch.ones(3))
    ft.vmap(lambda x: (x * w).sum())(torch.from_numpy(X)).sum().backward()
    assert w.grad is not None and close(w.grad, X.sum(axis=0))


def branching(x: Array) -> Array:
    if x > 0:
        x = x * 2.0
    return x


def test_gradients_of_each_element_have_no_history_but_inside_of_a_differentiation() -> None:
    w, x = torch.nn.Parameter(torch.ones(3)), torch.from_numpy(X)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w * x).sum() ** 3

    each = ft.vmap(ft.value_and_grad(loss), (None, 0))
    twice = ft.vmap(lambda w, x: ft.vmap(ft.grad(loss), (None, 0))(w, x), (None, 0))
    for under in (torch.enable_grad(), torch.no_grad()):
        with under:
            value, grads = each(w, x)
            assert not value.requires_grad and not grads.requires_grad
            assert not twice(w, x[None]).requires_grad
    assert ft.vmap(lambda w: w * 2.0)(w).requires_grad
    after = torch.func.grad(lambda w: ft.grad(loss)(w, x[0]).sum())(w)
    assert torch.allclose(after, 6.0 * x[0].sum() * torch.outer(x[0], x[0]).sum(dim=1), atol=1e-4)
    wanted = [6.0 * row.sum() * torch.outer(row, row).sum(dim=1) for row in x]
    hessians = ft.vmap(ft.grad(lambda w, x: ft.grad(loss)(w, x).sum()), (None, 0))(w, x)
    assert torch.allclose(hessians, torch.stack(wanted), atol=1e-4) and not hessians.requires_grad
    along = ft.jvp(lambda w: ft.vmap(ft.grad(loss), (None, 0))(w, x), (w,), (torch.ones(3),))[1]
    assert torch.allclose(along, torch.stack(wanted), atol=1e-4)
    outer = ft.grad(lambda w: ft.vmap(ft.grad(loss), (None, 0))(w, x).sum())(w)
    by_func = torch.func.grad(lambda w: ft.vmap(ft.grad(loss), (None, 0))(w, x).sum())(w)
    assert torch.allclose(outer, torch.stack(wanted).sum(dim=0), atol=1e-4) and torch.allclose(by_func, outer)
    by_func = ft.grad(lambda w: torch.func.vmap(ft.grad(loss), (None, 0))(w, x).sum())(w)
    assert torch.allclose(by_func, outer)


def scaled(x: Array) -> Array:
    return x * 2.0


def test_vmap_can_be_pickled_and_says_what_it_is(engine: str) -> None:
    mapped = pickle.loads(pickle.dumps(ft.vmap(scaled, 0, 1)))
    assert close(mapped(ft.asarray(X)), 2.0 * X.T)
    assert repr(mapped) == "<vmap of scaled>"


def test_what_vmap_does_not_take(engine: str) -> None:
    x, y = ft.zeros(3), ft.zeros(4)
    with pytest.raises(ValueError, match=r"axes of one length, and that of args\[0\] is 3, that of args\[1\]\['a'\] 4"):
        ft.vmap(lambda x, y: x)(x, {"a": y})
    with pytest.raises(ValueError, match=r"vmap maps kwargs\['y'\] along axis 0, and its shape is \(\)"):
        ft.vmap(lambda x, y: x)(x, y=ft.asarray(1.0))
    with pytest.raises(ValueError, match=r"vmap maps args\[0\] along axis 1, and its shape is \(3,\)"):
        ft.vmap(scaled, in_axes=1)(x)
    with pytest.raises(ValueError, match=r"in_axes has 2 axes, \(0, 0\), and f got 1 positional"):
        ft.vmap(scaled, in_axes=(0, 0))(x)
    with pytest.raises(ValueError, match=r"in_axes=.* must be one axis, or have the shape of .*: dictionary key mism"):
        ft.vmap(lambda tree: tree["a"], in_axes=({"b": 0},))({"a": x})
    with pytest.raises(ValueError, match="needs an array to map over, and with in_axes=None there is none"):
        ft.vmap(scaled, in_axes=None)(x)
    with pytest.raises(TypeError, match=r"in_axes must be an integer, None, or a tuple .*, got \[0\]"):
        ft.vmap(scaled, in_axes=[0])
    with pytest.raises(TypeError, match=r"out_axes must have integers, got True in \(True,\)"):
        ft.vmap(scaled, out_axes=(True,))
    with pytest.raises(TypeError, match="out_axes must have an axis for each array that f returned, got None"):
        ft.vmap(scaled, out_axes=None)(x)
    with pytest.raises(ValueError, match=r"out_axes has axis 1 for a result of shape \(3,\)"):
        ft.vmap(scaled, out_axes=1)(x)
    with pytest.raises(TypeError, match="arrays of two engines in one call"):
        ft.vmap(lambda x, y: x)(x, np.zeros(3))
    with pytest.raises(TypeError, match="expected a function, got"):
        ft.vmap(x)


def test_numpy_has_none_of_it() -> None:
    with pytest.raises(TypeError, match=r"numpy has no vmap; torch, jax, tensorflow have\. Convert"):
        ft.vmap(scaled)(X)
    with pytest.raises(TypeError, match=r"numpy has no gradients; torch, jax, tensorflow have\. Convert"):
        ft.jvp(scaled, (X,), (X,))
