"""The book's section on arrays: what it prints in four engines, beside what they and `fanwise.tensor` compute today.

Of this section the page has lost its code: there is prose, which names the functions, and there are the results, one
paragraph of prose for all engines and then the results of PyTorch, MXNet, JAX and TensorFlow, as far as they are there.
So the calls are written here: in each engine's own functions as the prose names them, and in those of fanwise on each
engine's arrays, which are to give what is printed for that engine. MXNet's results are held against NumPy, whose
functions it took.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

Results = dict[str, list[Any]]  # Any: arrays of every engine, nested lists

TO_12 = ["arange", "zeros", "ones", "normal", "list", "rows", "written"]
FROM_EXP = ["exp", "arithmetic", "concat", "equal", "broadcast"]
# Which results are on the page, in this order.
PRINTED = {
    "torch": [*TO_12, *FROM_EXP],
    "mxnet": [*TO_12, *FROM_EXP],
    "jax": [*TO_12, "range written", *FROM_EXP],
    "tensorflow": ["arange", "rows", "written", "arithmetic", "concat", "compiled"],
}
BEGINS = {
    "torch": r"^\(?tensor\(\[",
    "mxnet": r"^\(?array\(\[",
    "jax": r"^\(?Array\(\[",
    "tensorflow": r"^\(?<tf\.(?:Tensor: shape=\(\d|Variable)",
}
LIST_OF_LISTS = [[2, 1, 4, 3], [1, 2, 3, 4], [4, 3, 2, 1]]


@pytest.fixture(scope="module")
def printed(document_text: Callable[[str], str], nested_lists: Callable[[str], list[Any]]) -> dict[str, Results]:
    """By engine and name: the arrays that the page shows."""
    lines = document_text("d2l-2.1-four-engines").splitlines()
    by_engine = {}
    for engine, begins in BEGINS.items():
        shown = [nested_lists(line) for line in lines if re.search(begins, line)]
        by_engine[engine] = dict(zip(PRINTED[engine], shown, strict=True))
    return by_engine


def assert_are_printed(results: Results, shown: Results) -> None:
    """Random numbers have their shape; all others are equal to the digits that are shown, and as exact a type."""
    for name, expected in shown.items():
        assert len(results[name]) == len(expected), name
        for result, wanted in zip(map(np.asarray, results[name]), map(np.asarray, expected), strict=True):
            assert result.shape == wanted.shape, name
            assert result.dtype.kind == wanted.dtype.kind, name
            if name == "normal":
                assert np.isfinite(result).all() and 0.1 < result.std() < 3
            else:
                np.testing.assert_allclose(result, wanted, rtol=5e-5, err_msg=name)


# -- each engine's own functions ---------------------------------------------------------------------------------------


def by_torch() -> Results:
    x = torch.arange(12, dtype=torch.float32)
    found: Results = {"arange": [x.clone()]}
    assert x.numel() == 12
    X = x.reshape(3, 4)
    found |= {"zeros": [torch.zeros((2, 3, 4))], "ones": [torch.ones((2, 3, 4))], "normal": [torch.randn(3, 4)]}
    found["list"] = [torch.tensor(LIST_OF_LISTS)]
    found["rows"] = [X[-1].clone(), X[1:3].clone()]
    X[1, 2] = 17
    found["written"] = [X.clone()]
    X[:2, :] = 12
    found["exp"] = [torch.exp(x)]  # X is a view of x
    a, b = torch.tensor([1.0, 2, 4, 8]), torch.tensor([2, 2, 2, 2])
    found["arithmetic"] = [a + b, a - b, a * b, a / b, a**b]
    X, Y = torch.arange(12, dtype=torch.float32).reshape(3, 4), torch.tensor(LIST_OF_LISTS, dtype=torch.float32)
    found |= {"concat": [torch.cat((X, Y), dim=0), torch.cat((X, Y), dim=1)], "equal": [X == Y]}
    found["broadcast"] = [torch.arange(3).reshape((3, 1)), torch.arange(2).reshape((1, 2))]
    assert X.sum() == 66
    Z = torch.zeros_like(Y)
    before = id(Z), id(X)
    Z[:] = X + Y
    X += Y
    assert (id(Z), id(X)) == before
    number = torch.tensor([3.5])
    assert (number.item(), float(number), int(number)) == (3.5, 3.5, 3)
    return found


def by_jax() -> Results:
    import jax
    from jax import numpy as jnp

    x = jnp.arange(12)
    assert x.size == 12
    X = x.reshape(3, 4)
    found: Results = {"arange": [x], "zeros": [jnp.zeros((2, 3, 4))], "ones": [jnp.ones((2, 3, 4))]}
    found["normal"] = [jax.random.normal(jax.random.PRNGKey(0), (3, 4))]
    found |= {"list": [jnp.array(LIST_OF_LISTS)], "rows": [X[-1], X[1:3]]}
    written = X.at[1, 2].set(17)
    found |= {"written": [written], "range written": [written.at[:2, :].set(12)], "exp": [jnp.exp(x)]}
    a, b = jnp.array([1.0, 2, 4, 8]), jnp.array([2, 2, 2, 2])
    found["arithmetic"] = [a + b, a - b, a * b, a / b, a**b]
    X, Y = jnp.arange(12, dtype=jnp.float32).reshape(3, 4), jnp.array(LIST_OF_LISTS, dtype=jnp.float32)
    found["concat"] = [jnp.concatenate((X, Y), axis=0), jnp.concatenate((X, Y), axis=1)]
    found |= {"equal": [X == Y], "broadcast": [jnp.arange(3).reshape((3, 1)), jnp.arange(2).reshape((1, 2))]}
    assert X.sum() == 66 and jnp.array([3.5]).item() == 3.5
    return found


def by_tensorflow() -> Results:
    import tensorflow as tf

    x = tf.range(12, dtype=tf.float32)
    assert tf.size(x) == 12
    X, Y = tf.reshape(x, (3, 4)), tf.constant(LIST_OF_LISTS, dtype=tf.float32)
    variable = tf.Variable(X)
    variable[1, 2].assign(9)
    found: Results = {"arange": [x], "rows": [X[-1], X[1:3]], "written": [variable]}
    a, b = tf.constant([1.0, 2, 4, 8]), tf.constant([2.0, 2, 2, 2])
    found["arithmetic"] = [a + b, a - b, a * b, a / b, a**b]
    found["concat"] = [tf.concat([X, Y], axis=0), tf.concat([X, Y], axis=1)]
    Y = Y + X
    Z = tf.Variable(tf.zeros_like(Y))
    before = id(Z)
    Z.assign(X + Y)
    assert id(Z) == before

    @tf.function  # type: ignore[untyped-decorator]
    def computation(X: Any, Y: Any) -> Any:
        tf.zeros_like(Y)  # is not used, so not computed
        return X + Y + Y + Y + Y

    found["compiled"] = [computation(X, Y)]
    return found


# -- fanwise's, on every engine ----------------------------------------------------------------------------------------


def by_fanwise(shown: Results) -> Results:
    """In the current engine, with the numbers of the page: there JAX counts in integers, and TensorFlow writes a 9."""
    counts_in_integers = isinstance(shown["arange"][0][0], int)
    x = ft.arange(12) if counts_in_integers else ft.arange(12, dtype=ft.float32)
    assert math.prod(x.shape) == 12
    X, Y = ft.reshape(x, (3, -1)), ft.asarray(LIST_OF_LISTS, dtype=ft.float32)
    found: Results = {"arange": [x], "zeros": [ft.zeros((2, 3, 4))], "ones": [ft.ones((2, 3, 4))]}
    found["normal"] = [ft.normal(ft.Key(0), (3, 4))]
    found["list"] = [ft.asarray(LIST_OF_LISTS) if is_integer(shown, "list") else Y]
    found["rows"] = [X[-1], X[1:3]]
    written = ft.at(X)[1, 2].set(int(shown["written"][0][1][2]))
    found |= {"written": [written], "range written": [ft.at(written)[:2, :].set(12)]}
    found["exp"] = [ft.exp(ft.astype(x, ft.float32))]
    a, b = ft.asarray([1.0, 2, 4, 8]), ft.asarray([2.0, 2, 2, 2])
    found["arithmetic"] = [a + b, a - b, a * b, a / b, a**b]
    X = ft.astype(X, ft.float32)
    found |= {"concat": [ft.concat([X, Y], axis=0), ft.concat([X, Y], axis=1)], "equal": [ft.equal(X, Y)]}
    kind = ft.int32 if is_integer(shown, "broadcast") else ft.float32
    column, row = (ft.arange(count, dtype=kind) for count in (3, 2))
    found["broadcast"] = [ft.reshape(column, (3, 1)), ft.reshape(row, (1, 2))]
    assert float(ft.sum(X)) == 66
    Y = Y + X
    Z = ft.State(ft.zeros_like(Y))
    before = id(Z)
    Z[:] = X + Y
    Z += Y
    assert id(Z) == before
    found["compiled"] = [ft.jit(lambda X, Y: X + Y + Y + Y + Y)(X, Y)]
    np.testing.assert_array_equal(ft.to_numpy(Z.value), ft.to_numpy(X + Y + Y))
    assert isinstance(ft.to_numpy(X), np.ndarray) and ft.engine_of(ft.from_numpy(ft.to_numpy(X))) == ft.current_engine()
    return {name: [ft.to_numpy(each) for each in arrays] for name, arrays in found.items()}


def is_integer(shown: Results, name: str) -> bool:
    return name in shown and np.asarray(shown[name][0]).dtype.kind == "i"


# -- beside the page ---------------------------------------------------------------------------------------------------


def test_lists_are_found_in_what_is_printed(nested_lists: Callable[[str], list[Any]]) -> None:
    assert nested_lists("(tensor([ 8., 9.]), tensor([[1, 2], [3, 4]]))") == [[8.0, 9.0], [[1, 2], [3, 4]]]
    assert nested_lists("<tf.Tensor: shape=(2,), numpy= array([1., 2.], dtype=float32)>") == [[1.0, 2.0]]


def test_torch_computes_what_is_printed(printed: dict[str, Results]) -> None:
    assert_are_printed(by_torch(), printed["torch"])


def test_jax_computes_what_is_printed(printed: dict[str, Results]) -> None:
    assert_are_printed(by_jax(), printed["jax"])


def test_tensorflow_computes_what_is_printed(printed: dict[str, Results]) -> None:
    assert_are_printed(by_tensorflow(), printed["tensorflow"])


@pytest.fixture(params=["torch", "jax", "tensorflow", "numpy"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with ft.use(request.param):
        yield request.param


def test_fanwise_computes_what_is_printed_for_the_engine(engine: str, printed: dict[str, Results]) -> None:
    shown = printed["mxnet" if engine == "numpy" else engine]
    if engine == "torch":  # the book's program has written 12 into a view by then; fanwise's at() writes to a copy
        assert shown["exp"][0][:8] == [162754.7969] * 8
        shown = {**shown, "exp": printed["jax"]["exp"]}
    assert_are_printed(by_fanwise(shown), shown)
