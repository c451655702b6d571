"""check_portable: what is the same everywhere passes, what is not is named with its line."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fanwise.tensor as ft
from fanwise.base.errors import NotPortableError
from fanwise.tensor.portability import tracing

# TensorFlow has its own file: loading it costs seconds. Any throughout: arrays of several engines.
ENGINES = ["numpy", "torch", "jax"]
pytestmark = pytest.mark.usefixtures("jax_is_loaded")


def findings(f: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    with pytest.raises(NotPortableError) as raised:
        ft.check_portable(f, *args, engines=ENGINES, **options)
    return [line.strip() for line in str(raised.value).splitlines()[1:-1]]


def array(*values: float) -> Any:
    return ft.asarray([float(value) for value in values])


# -- what passes ---------------------------------------------------------------------------------------------------


def layer(x: Any, weights: dict[str, Any]) -> dict[str, Any]:
    h = ft.tanh(x @ weights["w"] + weights["b"])
    if ft.sum(h) > 0:
        h = h * 2
    return {"loss": ft.mean(h * h), "h": h, "count": 3}


def test_a_function_of_the_standard_is_portable_with_trees_branches_and_gradients() -> None:
    weights = {"w": ft.full((3, 4), 0.5), "b": ft.zeros(4)}
    ft.check_portable(layer, ft.ones((2, 3)), weights, engines=ENGINES)


def test_integers_of_32_bits_in_jax_are_no_difference() -> None:
    labels = ft.asarray([2, 0, 1])
    assert labels.dtype == ft.int64
    ft.check_portable(lambda x, y: (y, ft.sum(ft.astype(x > 1.0, ft.int32))), array(1, 2, 3), labels, engines=ENGINES)


def test_no_arrays_and_no_floats_are_fine() -> None:
    ft.check_portable(lambda n: ft.arange(n), 5, engines=ENGINES)
    ft.check_portable(lambda x: x == x, array(1, 2), engines=ENGINES)


def test_arguments_of_any_engine_are_taken_and_not_changed() -> None:
    x = np.ones(3, dtype=np.float32)

    def f(x: Any) -> Any:
        return ft.at(x)[0].set(5.0)

    ft.check_portable(f, x, engines=["numpy", "torch"])
    assert np.array_equal(x, np.ones(3))


def test_writing_keys_and_cells_are_portable() -> None:
    def f(x: Any) -> Any:
        cell = ft.State(ft.zeros(3))
        cell[1:] = ft.normal(ft.Key(3), (2,))
        cell += 1.0
        return ft.at(x)[1:].add(cell.value[1:]), ft.stop_gradient(x)

    ft.check_portable(f, array(1, 2, 3), engines=["numpy", "torch", "jax"])


# -- what does not -------------------------------------------------------------------------------------------------


def writes(x: Any) -> Any:
    y = x * 2
    y[0] = 1.0  # here
    return y


def own_method(x: Any) -> Any:
    total = ft.sum(x)
    spread = x.std()  # here
    return total + spread


def mixes(x: Any) -> Any:
    numbers = ft.arange(3)
    return x + numbers  # here


def own_types(x: Any) -> Any:
    y = x * 1.0
    if ft.current_engine() == "torch":  # here
        y = ft.astype(y, ft.float64)
    return y


def other_branch(x: Any) -> Any:
    y = x * 1.0
    if ft.current_engine() == "torch":  # here
        y = y + y
    return y


def inner(x: Any) -> Any:
    def helper(y: Any) -> Any:
        return y.std()  # here

    return helper(x * 2) + 1


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (writes, "fails on jax: TypeError"),
        (own_method, "differs between numpy and torch: values"),
        (mixes, "differs between numpy and torch: types float64 and float32"),
        (own_types, "differs between numpy and torch: types float32 and float64"),
        (other_branch, "differs between numpy and torch: values 1.0 and 2.0 at [0]"),
        (inner, "differs between numpy and torch: values"),
    ],
)
def test_the_line_that_is_not_portable_is_named(f: Callable[..., Any], says: str) -> None:
    found = [finding for finding in findings(f, array(1, 2, 3)) if says in finding]
    assert len(found) == 1 and __file__ in found[0] and "# here`" in found[0]


def test_shapes_and_structures_that_differ_are_told() -> None:
    def shape(x: Any) -> Any:
        return x if ft.current_engine() != "jax" else ft.reshape(x, (3, 1))

    def structure(x: Any) -> Any:
        return (x, x) if ft.current_engine() == "jax" else (x,)

    assert "shapes (3,) and (3, 1)" in findings(shape, array(1, 2, 3))[0]
    assert "the results are" in findings(structure, array(1, 2, 3))[0]


def test_gradients_that_differ_and_fail_are_told() -> None:
    def constant(x: Any) -> Any:
        return ft.sum(ft.stop_gradient(x) + x if ft.current_engine() == "jax" else x * 2)

    def numbers_alone(x: Any) -> Any:
        return ft.sum(ft.asarray([float(v) for v in x]) if ft.current_engine() == "jax" else x * 1.0)

    assert findings(constant, array(1, 2)) == ["the gradients differ between torch and jax: values 2.0 and 1.0 at [0]"]
    assert "has no gradient on jax" in findings(numbers_alone, array(1, 2))[0]


def test_a_float64_argument_names_jax_without_64_bits() -> None:
    assert "fails on jax" in findings(lambda x: x * 2, np.ones(2))[0]


def test_a_branch_on_a_python_number_has_no_gradient_in_jax() -> None:
    def f(x: Any) -> Any:
        return ft.sum(x * 2) if float(ft.sum(x)) > 0 else ft.sum(x)

    assert any("has no gradient on jax: ConcretizationTypeError" in finding for finding in findings(f, array(1, 2)))


def test_rtol_decides_what_is_the_same() -> None:
    def nearly(x: Any) -> Any:
        return x * (1.001 if ft.current_engine() == "torch" else 1.0)

    assert len(findings(nearly, array(1, 2))) >= 1
    ft.check_portable(nearly, array(1, 2), engines=ENGINES, rtol=0.01)


# -- what it leaves behind -----------------------------------------------------------------------------------------


def test_a_trace_function_is_put_back_also_after_an_error() -> None:
    def other(frame: Any, event: str, arg: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        findings(own_method, array(1, 2, 3))
        assert sys.gettrace() is other
    finally:
        sys.settrace(before)


def test_the_current_engine_is_as_before() -> None:
    with ft.use("numpy"):
        findings(own_method, np.ones(3, dtype=np.float32))
        assert ft.current_engine() == "numpy"


def test_big_arrays_are_not_kept_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_KEPT_ELEMENTS_MAX", 2)
    with tracing.Traced(own_method) as traced, pytest.raises(TypeError):
        own_method(np.ones(3) * ft.ones(3))
    with tracing.Traced(layer) as traced:
        layer(np.ones((2, 3)), {"w": np.ones((3, 4)), "b": np.zeros(4)})
    assert traced.steps and all(array.size <= 2 for step in traced.steps for array in step.arrays.values())


def layer_of_one(x: Any) -> Any:
    return ft.sum(ft.tanh(x))


def test_what_it_cannot_compare_is_an_error_and_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    ft.check_portable(layer_of_one, array(1, 2), engines="torch")
    with pytest.raises(ValueError, match="got 'trch'; did you mean 'torch'"):
        ft.check_portable(layer_of_one, array(1, 2), engines=["numpy", "trch"])
    with pytest.raises(ValueError, match="engines must name at least one engine, got none"):
        ft.check_portable(layer_of_one, array(1, 2), engines=[])
    with pytest.raises(TypeError, match="expected a function to check, got int: 3"):
        ft.check_portable(3, array(1, 2))  # type: ignore[arg-type]  # what is tested


def test_constants_of_numpy_are_taken_by_asarray() -> None:
    weights = np.asarray([1.0, 2.0], dtype=np.float32)
    ft.check_portable(lambda x: ft.sum(x * ft.asarray(weights)), array(1, 2), engines=ENGINES)
