"""Gradients mean the same on every engine: one suite, run by torch, jax and tensorflow."""

import gc
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fanwise.tensor import convert, grad, jit, namespace, stop_gradient, to_numpy, value_and_grad, vjp
from fanwise.tensor.gradients import functions
from fanwise.tensor.trees import flatten, unflatten

ENGINES = ["torch", "jax", "tensorflow"]
Array = Any  # Any: an array of any engine the test runs on
Namespace = Any  # Any: its functions are made when asked for


@pytest.fixture(scope="module", autouse=True)
def engines_set_the_environment_when_loaded() -> None:
    for engine in ENGINES:
        namespace(engine).ones(1)


@pytest.fixture(params=ENGINES)
def xp(request: pytest.FixtureRequest) -> Namespace:
    return namespace(request.param)


@pytest.fixture
def compiling() -> Namespace:
    return namespace("jax")


def same(got: Array, expected: object, tolerance: float = 1e-5) -> bool:
    return np.allclose(to_numpy(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


def two_dots(xp: Namespace) -> Callable[[Array], Array]:
    return lambda x: 2 * xp.sum(x * x)


# -- what D2L 2.5 does -------------------------------------------------------------------------------------------------


def test_twice_the_dot_product_has_the_gradient_4x(xp: Namespace) -> None:
    value, gradient = value_and_grad(two_dots(xp))(xp.asarray([0.0, 1.0, 2.0, 3.0]))
    assert same(value, 28.0) and same(gradient, [0.0, 4.0, 8.0, 12.0])


def test_a_pullback_may_be_called_repeatedly(xp: Namespace) -> None:
    y, pullback = vjp(lambda x: x * x, xp.asarray([0.0, 1.0, 2.0, 3.0]))
    assert same(y, [0.0, 1.0, 4.0, 9.0])
    assert same(pullback(xp.asarray([1.0, 0.0, 0.0, 2.0]))[0], [0.0, 0.0, 0.0, 12.0])
    assert same(pullback(xp.ones_like(y))[0], [0.0, 2.0, 4.0, 6.0])


def doubled_until_large(xp: Namespace) -> Callable[[Array], Array]:
    def f(a: Array) -> Array:
        b = a * 2
        while xp.sqrt(xp.sum(b * b)) < 1000:
            b = b * 2
        c = b if xp.sum(b) > 0 else 100 * b
        return xp.sum(c)

    return f


@pytest.mark.parametrize("a", [1.5, -0.3, [1.0, 2.0], [[1.0, -2.0], [3.0, 4.0]]], ids=str)
def test_python_control_flow_on_values_has_a_gradient(xp: Namespace, a: list[float]) -> None:
    f = doubled_until_large(xp)
    value, gradient = value_and_grad(f)(xp.asarray(a))
    slope = float(value) / np.sum(a)  # f is linear in pieces
    assert same(gradient, np.full(np.shape(a), slope))


def test_the_second_derivative_of_sin_is_minus_sin(xp: Namespace) -> None:
    x = xp.asarray(0.7)
    assert same(grad(grad(xp.sin))(x), -math.sin(0.7))
    assert same(grad(grad(grad(xp.sin)))(x), -math.cos(0.7))


# -- second derivatives ------------------------------------------------------------------------------------------------


def test_an_inner_gradient_does_not_see_the_outer_use_of_its_argument(xp: Namespace) -> None:
    x = xp.asarray(3.0)
    assert same(grad(lambda x: x * grad(lambda y: x + y)(xp.asarray(1.0)))(x), 1.0)
    assert same(grad(lambda x: grad(lambda y: x * y)(x))(x), 1.0)


def test_a_hessian_times_a_vector(xp: Namespace) -> None:
    def f(x: Array) -> Array:
        return xp.sum(x * x * x)

    x, v = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0])
    assert same(grad(lambda x: xp.sum(grad(f)(x) * v))(x), [18.0, 48.0])
    assert same(vjp(grad(f), x)[1](v)[0], [18.0, 48.0])


def test_gradients_flow_through_a_pullback(xp: Namespace) -> None:
    def f(x: Array) -> Array:
        return x * x * x

    x, v = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0])
    assert same(grad(lambda x: xp.sum(vjp(f, x)[1](v)[0]))(x), [18.0, 48.0])
    assert same(grad(lambda v: xp.sum(vjp(f, x)[1](v)[0]))(v), [3.0, 12.0])
    outside = vjp(f, x)[1]
    assert same(grad(lambda v: xp.sum(outside(v)[0] ** 2))(v), [2 * 3.0 * 9, 2 * 4.0 * 144])


# -- trees and arguments -----------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Array
    y: Array


def mapped(f: Callable[[Array], Any], tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(structure, [f(leaf) for leaf in leaves])


def test_the_gradient_has_the_structure_of_the_argument(xp: Namespace) -> None:
    first, second = xp.asarray(1.0), xp.asarray(2.0)
    df = grad(lambda tree: sum(x * x for x in flatten(tree)[0]))
    trees: list[Any] = [
        {"p": Point(first, [second, None]), "n": None, "t": (second,), "o": OrderedDict(b=first, a=second)},
        *({"a": first, "b": second}, {"b": second, "a": first}, {"c": first, "b": second}, {"a": first, "b": None}),
        *([first, second], (first, second), Point(first, second), Point(second, None), OrderedDict(a=first)),
    ]
    for tree in trees * 2:
        result = mapped(float, df(tree))
        assert result == mapped(lambda x: float(x) * 2, tree) and repr(type(result)) == repr(type(tree))


def test_a_leaf_that_is_not_used_gets_zeros(xp: Namespace) -> None:
    x = xp.asarray([1.0, 2.0])
    result = grad(lambda tree: xp.sum(tree["used"]))({"used": x, "unused": x * 3})
    assert same(result["unused"], [0.0, 0.0]) and result["unused"].dtype == x.dtype
    assert same(grad(lambda x: xp.asarray(1.0))(x), [0.0, 0.0])
    assert same(vjp(lambda x, y: x, x, x)[1](x)[1], [0.0, 0.0])


def test_the_same_array_twice_is_two_arguments(xp: Namespace) -> None:
    x = xp.asarray(2.0)
    assert [float(item) for item in grad(lambda a, b: a * b * b, argnums=(0, 1))(x, x)] == [4.0, 8.0]


def test_argnums_select_the_arguments_to_differentiate_by(xp: Namespace) -> None:
    x, y = xp.asarray(2.0), xp.asarray(3.0)

    def f(text: str, x: Array, y: Array, power: int, *, scale: Array, mode: str | None = None) -> Array:
        assert (text, power, mode) == ("text", 2, "fast")
        return x * y**power * scale

    both = grad(f, argnums=(2, 1))("text", x, y, 2, scale=x, mode="fast")
    assert [float(item) for item in both] == [24.0, 18.0]
    assert float(grad(f, argnums=-2)("text", x, y, power=2, scale=x, mode="fast")) == 18.0


def test_aux_of_any_kind_is_returned_with_the_value(xp: Namespace) -> None:
    def f(x: Array) -> tuple[Array, object]:
        return xp.sum(x * x), {"twice": x * 2, "name": "square", "count": 3, "nothing": None}

    x = xp.asarray([1.0, 2.0])
    for _ in range(2):  # the second call is compiled
        (value, aux), gradient = value_and_grad(f, has_aux=True)(x)
        assert same(value, 5.0) and same(gradient, [2.0, 4.0]) and same(aux["twice"], [2.0, 4.0])
        assert (aux["name"], aux["count"], aux["nothing"]) == ("square", 3, None)
    gradient, aux = grad(f, has_aux=True)(x)
    assert same(gradient, [2.0, 4.0]) and aux["name"] == "square"


@st.composite
def trees(draw: st.DrawFn) -> Any:
    numbers = st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=3).map(lambda x: np.array(x, np.float32))
    inner = st.recursive(
        numbers | st.none(),
        lambda tree: st.lists(tree, max_size=3) | st.dictionaries(st.sampled_from("abc"), tree) | st.tuples(tree, tree),
        max_leaves=6,
    )
    return (draw(numbers), draw(inner))


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=12)
@given(tree=trees())
def test_gradients_of_any_tree_agree_with_calculus_and_central_differences(engine: str, tree: Any) -> None:
    xp = namespace(engine)

    def f(tree: Any, xp: Namespace = xp) -> Array:
        return sum(i * xp.sum(xp.sin(x) * x) for i, x in enumerate(flatten(tree)[0], 1))

    result, structure = flatten(grad(f)(mapped(lambda x: convert(x, engine), tree)))
    leaves, expected_structure = flatten(tree)
    assert structure == expected_structure
    slopes = [to_numpy(x) for x in result]
    for i, (x, slope) in enumerate(zip(leaves, slopes, strict=True), 1):
        assert np.allclose(slope, i * (np.cos(x) * x + np.sin(x)), rtol=1e-4, atol=1e-5)
    step = 1e-5
    up, down = (f(unflatten(structure, [x.astype(np.float64) + s for x in leaves]), np) for s in (step, -step))
    assert math.isclose((up - down) / (2 * step), sum(slope.sum() for slope in slopes), rel_tol=1e-3, abs_tol=1e-3)


def test_half_precision_stays_half_precision(xp: Namespace) -> None:
    for dtype in (xp.float16, xp.bfloat16) if hasattr(xp, "bfloat16") else (xp.float16,):
        x = xp.asarray([1.0, 2.0], dtype=dtype)
        value, gradient = value_and_grad(lambda x: xp.sum(x * x))(x)
        assert value.dtype == gradient.dtype == x.dtype
        assert [float(item) for item in gradient] == [2.0, 4.0]


# -- cotangents --------------------------------------------------------------------------------------------------------


def test_a_cotangent_may_be_a_number_or_none(xp: Namespace) -> None:
    x = xp.asarray([1.0, 2.0])
    value, pullback = vjp(lambda x: {"square": x * x, "count": xp.argmax(x), "same": x}, x)
    assert int(value["count"]) == 1
    assert same(pullback({"square": 2.0, "count": None, "same": None})[0], [4.0, 8.0])
    assert same(pullback({"square": None, "count": 1, "same": x})[0], [1.0, 2.0])
    assert same(pullback({"square": None, "count": None, "same": None})[0], [0.0, 0.0])


def test_a_cotangent_of_another_structure_shape_or_dtype_is_refused(xp: Namespace) -> None:
    _, pullback = vjp(lambda x: {"y": x}, xp.asarray([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"cotangent\['y'\] must have the shape of the value, \(2,\), got \(3,\)"):
        pullback({"y": xp.ones((3,))})
    with pytest.raises(TypeError, match=r"cotangent\['y'\] must be an array of \w+, .* got numpy.ndarray"):
        pullback({"y": np.ones(2)})
    with pytest.raises(ValueError, match=r"cotangent must be a dict with the keys \['y'\]"):
        pullback({"z": xp.ones((2,))})
    with pytest.raises(TypeError, match=r"cotangent\['y'\] must have the dtype of the value, .*float32.*, got .*int32"):
        pullback({"y": xp.ones((2,), dtype=xp.int32)})


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_names_the_integer_leaf(xp: Namespace) -> None:
    tree = {"w": [xp.asarray(1.0), xp.asarray([1, 2])]}
    f = grad(lambda tree: tree["w"][0])
    f({"w": [xp.asarray(1.0), xp.asarray([1.0])]})
    for _ in range(2):
        with pytest.raises(TypeError, match=r"args\[0\]\['w'\]\[1\] has dtype .*int\d\d.*: only real and complex"):
            f(tree)
    with pytest.raises(TypeError, match=r"args\[0\]\['w'\]\[1\] has dtype"):
        vjp(lambda tree: tree["w"][0], tree)
    with pytest.raises(TypeError, match=r"args\[0\]\.y\['lr'\] is a float, not an array"):
        grad(lambda point: point.x)(Point(xp.asarray(1.0), {"lr": 0.1}))


def test_numpy_arrays_are_refused_with_the_engines_that_have_gradients() -> None:
    with pytest.raises(
        TypeError, match=r"numpy has no gradients; torch, jax, tensorflow have.*convert\(x, \"torch\"\)"
    ):
        grad(lambda x: x.sum())(np.ones(3))
    with pytest.raises(TypeError, match="numpy has no gradients"):
        vjp(lambda x: x.sum(), np.ones(3))


def test_an_error_names_both_engines_of_a_call(xp: Namespace) -> None:
    x, y = xp.ones((2,)), np.ones(2)
    with pytest.raises(TypeError, match=r"several engines in one call: .*kwargs\['data'\]\[0\] is of numpy.*convert\("):
        grad(lambda x, data: x)(x, data=[y])
    assert same(grad(lambda x, scale: xp.sum(x * float(scale)))(x, np.float64(2)), [2.0, 2.0])  # a number, no array


def test_a_value_that_has_no_gradient_is_refused(xp: Namespace) -> None:
    for returned in (1.0, None, np.ones(())):
        with pytest.raises(TypeError, match="f must return an array of"):
            grad(lambda x, returned=returned: returned)(xp.ones(()))
    with pytest.raises(TypeError, match=r"without axes, got shape \(4,\)\. Return its sum .* fanwise\.tensor\.vjp"):
        grad(lambda x: x * x)(xp.ones((4,)))
    with pytest.raises(TypeError, match="f must return a real floating-point number"):
        grad(lambda x: xp.argmax(x))(xp.ones((2,)))
    df = grad(lambda x, weight: xp.sum(x * weight))
    assert same(df(xp.ones((2,)), 2.0), [2.0, 2.0])
    z = xp.asarray([1.0 + 2.0j])
    square = grad(lambda z: xp.sum(z * z))
    squares = [square, jit(square)]
    for squared in squares:
        with pytest.raises(TypeError, match=r"f must return a real floating-point number .*, got dtype .*complex64"):
            squared(z)
    (slope,) = vjp(lambda z: xp.sum(z * z), z)[1](1.0)
    assert abs(complex(slope[0])) == abs(2 + 4j)


def test_wrong_options_are_refused(xp: Namespace) -> None:
    with pytest.raises(TypeError, match=r"expected a function, got \w*(Tensor|Array)\w*: "):
        grad(xp.ones(()))
    for wrong in (1.0, (), "0", [0]):
        with pytest.raises(TypeError, match="argnums must be an integer or a tuple of integers"):
            grad(xp.sin, argnums=wrong)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="argnums names argument 1, but f got 1 positional"):
        grad(xp.sin, argnums=1)(xp.ones(()))
    with pytest.raises(ValueError, match=r"argnums=\(0, -1\) names an argument twice"):
        grad(xp.sin, argnums=(0, -1))(xp.ones(()))
    with pytest.raises(ValueError, match="argnums=0 names no array"):
        grad(lambda nothing, x: x)(None, xp.ones(()))
    with pytest.raises(TypeError, match=r"return a pair \(value, aux\), got "):
        grad(lambda x: x, has_aux=True)(xp.ones(()))


class OwnError(Exception):
    pass


def test_an_exception_leaves_no_state_behind(xp: Namespace) -> None:
    x, failing = xp.asarray(2.0), [True]

    def f(x: Array) -> Array:
        if failing[0]:
            raise OwnError("stop")
        return x * x

    df = grad(f)
    with pytest.raises(OwnError, match="stop"):
        df(x)
    with pytest.raises(OwnError, match="stop"):
        grad(lambda x: df(x) * x)(x)
    failing[0] = False
    result = df(x)
    assert float(result) == 4.0 and not getattr(result, "requires_grad", False)


def test_threads_do_not_see_each_other(xp: Namespace) -> None:
    f = value_and_grad(lambda x, n: xp.sum(grad(lambda y: xp.sum(y**3))(x)) * n)
    result: dict[int, list[float]] = {}
    start = threading.Barrier(4)

    def work(number: int) -> None:
        x = xp.asarray([float(number), 1.0])
        start.wait()
        result[number] = [float(item) for _ in range(5) for item in f(x, 2.0)[1]]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == {number: [12.0 * number, 12.0] * 5 for number in range(4)}


# -- compiling ---------------------------------------------------------------------------------------------------------


def test_similar_calls_are_traced_once(compiling: Namespace) -> None:
    runs: list[object] = []

    def f(x: Array, n: int, name: str) -> Array:
        runs.append((n, name))
        return compiling.sum(x**n)

    df, x = jit(grad(f)), compiling.asarray([1.0, 2.0])
    for _ in range(3):
        assert same(df(x, 2, "a"), [2.0, 4.0]) and same(df(x, 3, "a"), [3.0, 12.0])
    df(x, 2, "b")
    assert runs == [(2, "a"), (3, "a"), (2, "b")]
    plain = grad(f)
    plain(x, 2, "c")
    plain(x, 2, "c")
    assert runs[3:] == [(2, "c"), (2, "c")]


def test_equal_constants_of_different_types_are_compiled_separately(compiling: Namespace) -> None:
    f = jit(lambda x, n: {"x": x, "n": n})
    one = compiling.ones(())
    assert [type(f(one, n)["n"]) for n in (1, True, 1)] == [int, bool, int]
    sign = jit(lambda x, n: x * n)
    assert [math.copysign(1.0, float(sign(one, n))) for n in (0.0, -0.0)] == [1.0, -1.0]


def test_jit_refuses_an_argument_that_cannot_be_hashed(compiling: Namespace) -> None:
    x = compiling.ones(())
    assert float(grad(lambda x, names: x * len(names))(x, {"a", "b"})) == 2.0
    with pytest.raises(TypeError, match="unhashable type: 'set'"):
        jit(lambda x, names: x * len(names))(x, {"a", "b"})


def test_many_versions_warn_once(compiling: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "WARN_AT_VERSIONS", 3)
    f, x = jit(lambda x, n: x * n), compiling.ones(())
    assert [float(f(x, n)) for n in (1, 2, 1, 2)] == [1.0, 2.0, 1.0, 2.0]
    with pytest.warns(RuntimeWarning, match=r"<lambda> has been compiled for 3 different .* Pass numbers") as recorded:
        assert float(f(x, 3)) == 3.0
    assert recorded[0].filename == __file__
    assert float(f(x, 4)) == 4.0  # a second warning would be an error


def test_functions_are_not_compiled_without_jit(xp: Namespace) -> None:
    scale = {"now": 0.0}

    def f(x: Array) -> Array:
        return x * scale["now"] if x > 0 else x * 3

    made, result = value_and_grad(f), []
    for scale["now"] in (2.0, 4.0):
        result += [float(item) for item in (*made(xp.asarray(2.0)), grad(f)(xp.asarray(1.0)))]
    assert result == [4.0, 2.0, 2.0, 8.0, 4.0, 4.0]
    assert float(made(xp.asarray(-1.0))[0]) == -3.0


def test_control_flow_in_compiled_code_raises_the_error_of_the_engine(compiling: Namespace) -> None:
    def signed(x: Array) -> Array:
        return x if x > 0 else -x

    for compiled in (jit(grad(signed)), jit(signed)):
        with pytest.raises(Exception, match="bool"):
            compiled(compiling.ones(()))


def test_jit_passes_whole_trees(xp: Namespace) -> None:
    f = jit(lambda tree, n, *, name: {"sum": tree["a"] + tree["b"] * n, "name": name, "none": None})
    tree = {"a": xp.asarray([1.0]), "b": xp.asarray([2.0])}
    for _ in range(2):
        out = f(tree, 3, name="x")
        assert same(out["sum"], [7.0]) and out["name"] == "x" and out["none"] is None
    assert same(grad(lambda tree: xp.sum(f(tree, 3, name="y")["sum"]))(tree)["b"], [3.0])
    size = jit(value_and_grad(lambda x: (xp.sum(x), f"{x.shape[0]} numbers"), has_aux=True))
    assert [size(xp.ones((n,)))[0][1] for n in (3, 4, 3)] == ["3 numbers", "4 numbers", "3 numbers"]
    assert jit(lambda x: x.sum() > 2 and x.sum())(np.ones(3)) == 3.0  # NumPy does not compile


def test_compiled_code_is_freed_with_the_function(xp: Namespace) -> None:
    class Held:
        """Something that f closes over."""

    def made() -> tuple[Any, "weakref.ref[Held]"]:
        owner = Held()

        def f(x: Array, n: int) -> Array:
            assert owner is not None
            return x * n

        derived = [value_and_grad(f), jit(grad(f)), jit(f)]
        for item in derived:
            item(xp.ones(()), 2)
            item(xp.ones(()), 3)
        return derived, weakref.ref(owner)

    derived, owner = made()
    assert owner() is not None
    del derived
    gc.collect()
    assert owner() is None


def test_stop_gradient_takes_trees_of_any_objects(xp: Namespace) -> None:
    x = xp.asarray([0.0, 1.0, 2.0, 3.0])
    assert same(grad(lambda x: xp.sum(stop_gradient(x * x) * x))(x), [0.0, 1.0, 4.0, 9.0])
    tree = {"x": xp.ones((2,)), "n": 3, "none": None, "numpy": np.ones(2)}
    result = stop_gradient(tree)
    assert same(result["x"], [1.0, 1.0]) and (result["n"], result["none"]) == (3, None)
    assert result["numpy"] is tree["numpy"]
