"""softmax, logsumexp, relu, cross_entropy, einsum: one meaning on every engine, against float64 of NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
Array = Any  # Any: of whatever engine
X = np.asarray([[0.5, -1.25, 3.0], [2.0, 2.0, -7.5]])
LABELS = np.asarray([2, 0])


@pytest.fixture(params=("numpy", "torch", "jax", "tensorflow"), autouse=True)
def engine(request: pytest.FixtureRequest) -> Any:
    with ft.use(request.param):
        yield request.param


def narrow(x: Array) -> Array:
    """An array of the current engine, of float32."""
    return ft.asarray(np.asarray(x, dtype=np.float32))


def log_softmax(x: Array) -> Array:
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


REFERENCES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "softmax": (ft.softmax, lambda x: np.exp(log_softmax(x))),
    "log_softmax": (ft.log_softmax, log_softmax),
    "logsumexp": (lambda x: ft.logsumexp(x, axis=-1), lambda x: np.log(np.sum(np.exp(x), axis=-1))),
    "relu": (ft.relu, lambda x: np.where(x > 0, x, 0.0)),
    "cross_entropy": (
        lambda x: ft.cross_entropy(x, ft.asarray(LABELS.tolist())),
        lambda x: -log_softmax(x)[np.arange(2), LABELS],
    ),
    "einsum": (lambda x: ft.einsum("ij,kj->ik", x, x), lambda x: x @ x.T),
}


@pytest.mark.parametrize("name", sorted(REFERENCES))
@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float16", 4e-3), ("bfloat16", 3e-2), ("float32", 2e-6), ("float64", 1e-13)]
)
def test_values_are_those_of_float64_and_types_stay(engine: str, name: str, dtype: str, rtol: float) -> None:
    if (engine, dtype) == ("jax", "float64"):  # it is set to 32 bits
        return
    function, reference = REFERENCES[name]
    given = ft.asarray(X) if dtype == "float64" else ft.astype(narrow(X), getattr(ft, dtype))
    found = function(given)
    assert found.dtype == getattr(ft, dtype)
    wide = ft.to_numpy(found if dtype == "float64" else ft.astype(found, ft.float32))
    np.testing.assert_allclose(wide, reference(X), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_gradients_are_the_slopes_of_the_float64_function(engine: str, name: str) -> None:
    if engine == "numpy":
        return
    function, reference = REFERENCES[name]
    weights = np.cos(np.arange(reference(X).size)).reshape(reference(X).shape)

    def weighed(x: Array) -> Array:
        return ft.sum(function(x) * narrow(weights))

    slopes = np.zeros_like(X)
    for place in np.ndindex(*X.shape):
        step = np.zeros_like(X)
        step[place] = 1e-6
        slopes[place] = np.sum(weights * (reference(X + step) - reference(X - step))) / 2e-6
    found = ft.to_numpy(ft.grad(weighed)(narrow(X)))
    np.testing.assert_allclose(found, slopes, rtol=1e-4, atol=1e-4)


def test_large_numbers_do_not_overflow() -> None:
    x = ft.asarray([1000.0, 0.0])
    assert ft.to_numpy(ft.softmax(x)).tolist() == [1.0, 0.0]
    assert ft.to_numpy(ft.log_softmax(x)).tolist() == [0.0, -1000.0]
    assert ft.item(ft.logsumexp(x)) == 1000.0
    assert ft.item(ft.cross_entropy(x, ft.asarray(1))) == 1000.0
    assert ft.item(ft.logsumexp(ft.asarray([-ft.inf, -ft.inf]))) == -ft.inf


def test_axes_are_the_callers_choice() -> None:
    x = narrow(X)
    np.testing.assert_allclose(ft.to_numpy(ft.sum(ft.softmax(x, axis=0), axis=0)), 1.0, rtol=1e-6)
    assert ft.logsumexp(x).shape == () and ft.logsumexp(x, axis=(0, 1), keepdims=True).shape == (1, 1)
    assert ft.logsumexp(x, axis=-2).shape == (3,) and ft.item(ft.logsumexp(ft.asarray(2.0))) == 2.0
    with pytest.raises(ValueError, match=r"takes each axis once, got \(0, -2\) for an array of shape \(2, 3\)"):
        ft.logsumexp(x, axis=(0, -2))
    for axis in (None, 0.0):
        with pytest.raises(TypeError, match=rf"softmax takes an integer for an axis, -1 for the last; got {axis}"):
            ft.softmax(x, axis=axis)  # type: ignore[arg-type]
    for wrong in (2, -3):
        for function in (ft.softmax, ft.log_softmax, ft.logsumexp):
            with pytest.raises(IndexError, match=rf"has no axis {wrong} in an array of shape \(2, 3\)"):
                function(x, axis=wrong)


def test_of_no_elements_there_are_no_shares_and_the_logarithm_of_0() -> None:
    x = ft.zeros((2, 0))
    assert ft.softmax(x).shape == ft.log_softmax(x).shape == (2, 0)
    assert ft.to_numpy(ft.logsumexp(x, axis=1)).tolist() == [-ft.inf, -ft.inf]


def test_what_is_no_float_is_refused() -> None:
    for function in (ft.softmax, ft.log_softmax, ft.logsumexp):
        for values in ([1, 2], [1j, 2j], [True]):
            with pytest.raises(TypeError, match="takes real floating-point numbers here"):
                function(ft.asarray(values))
    with pytest.raises(TypeError, match="relu takes integers or real floating-point numbers here"):
        ft.relu(ft.asarray([True]))
    with pytest.raises(TypeError, match="softmax takes arrays, and got none"):
        ft.softmax(1.0)
    x = ft.ones(2)
    calls: list[Callable[[], Array]] = [lambda: ft.cross_entropy(x, 1), lambda: ft.einsum("i,", x, 1.0)]
    for call in calls:
        with pytest.raises(TypeError, match=r"expected an array of .*; make an array of it with fanwise\.tensor"):
            call()


def test_relu_is_zero_with_its_gradient_at_zero_and_keeps_nan_and_integers(engine: str) -> None:
    assert np.isnan(ft.item(ft.relu(ft.asarray(ft.nan))))
    assert ft.to_numpy(ft.relu(ft.asarray([-3, 4]))).tolist() == [0, 4]
    if engine != "numpy":
        found = ft.grad(lambda x: ft.sum(ft.relu(x)))(ft.asarray([-1.0, 0.0, 2.0]))
        assert ft.to_numpy(found).tolist() == [0.0, 0.0, 1.0]


def test_losses_have_the_shape_of_the_labels() -> None:
    logits = ft.reshape(ft.arange(24, dtype=ft.float32), (2, 4, 3))
    labels = ft.asarray([[0, 1, 2, 0], [2, 2, 1, 0]])
    losses = ft.to_numpy(ft.cross_entropy(logits, labels))
    wanted = np.log(np.exp([0.0, 1.0, 2.0]).sum()) - np.asarray([[0, 1, 2, 0], [2, 2, 1, 0]])
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    assert ft.cross_entropy(ft.ones((0, 3)), ft.zeros((0,), dtype=ft.int32)).shape == (0,)
    with pytest.raises(ValueError, match=r"logits of shape \(2, 4, 3\) and labels of shape \(2,\)"):
        ft.cross_entropy(logits, ft.asarray([0, 1]))
    with pytest.raises(TypeError, match="takes integers here"):
        ft.cross_entropy(logits, logits[..., 0])


@pytest.mark.parametrize("label", [-1, 3, -100])
def test_a_label_that_is_no_class_is_an_error(label: int) -> None:
    with pytest.raises(IndexError, match="a label is none of the 3 classes"):
        ft.cross_entropy(ft.ones((2, 3)), ft.asarray([0, label]))


A, B = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
CUBE = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("subscripts", "arrays"),
    [
        ("ij,jk->ik", (A, B)),
        ("ba", (A,)),  # the result has letters in order
        ("ij , jk", (A, B)),
        ("ii->i", (B[:, :3],)),
        ("ii", (B[:, :3],)),
        ("...j,j->...", (CUBE, B[0])),
        ("i...,i...->...", (CUBE, CUBE)),
        ("ij,jk,kl->il", (A, B, B.T)),
        ("i,j->ij", (A[0], B[0])),
        (",ij->ij", (np.asarray(2.0), A)),
    ],
)
def test_einsum_is_numpys(subscripts: str, arrays: tuple[Array, ...]) -> None:
    found = ft.einsum(subscripts, *[narrow(x) for x in arrays])
    np.testing.assert_allclose(ft.to_numpy(found), np.einsum(subscripts, *arrays), rtol=1e-6)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(2, 1), (3, 4)]),  # torch and NumPy would broadcast
        ("ij", [(2,)]),
        ("ij,jk", [(2, 3)]),
        ("i1", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("ij->k", [(2, 3)]),
        ("...i->i", [(2, 3)]),
        ("ii", [(2, 3)]),
        ("i,i", [(0,), (3,)]),
    ],
)
def test_subscripts_that_do_not_fit_are_an_error(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="einsum"):
        ft.einsum(subscripts, *map(ft.ones, shapes))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8"])
@pytest.mark.parametrize(("subscripts", "count"), [("i->", 1), ("i,i->", 2), ("i,j->j", 2)])
def test_integers_keep_their_type_and_wrap_around(dtype: str, subscripts: str, count: int) -> None:
    x = np.asarray([100, 90, 7], dtype=dtype)
    found = ft.einsum(subscripts, *[ft.asarray(x)] * count)
    assert found.dtype == getattr(ft, dtype)
    wide = np.einsum(subscripts, *[x.astype(np.int64)] * count)
    assert ft.to_numpy(found).tolist() == wide.astype(dtype).tolist()


def test_einsum_takes_one_type() -> None:
    with pytest.raises(TypeError, match="einsum takes arrays of one type, got float32 and int32"):
        ft.einsum("i,i", ft.ones(2), ft.ones(2, dtype=ft.int32))
    with pytest.raises(TypeError, match="got an array of bool"):
        ft.einsum("i", ft.ones(2, dtype=ft.bool))


def test_a_loss_of_these_is_portable(engine: str) -> None:
    def loss(x: Array) -> Array:
        entropies = ft.einsum("ij,ij->i", ft.softmax(x), ft.log_softmax(x))
        return ft.mean(ft.cross_entropy(ft.relu(x), ft.asarray([2, 0]))) + ft.logsumexp(entropies)

    if engine == "torch":
        ft.check_portable(loss, narrow(X))


def test_compiled_functions_of_lengths_that_are_not_known_yet_work(engine: str) -> None:
    if engine != "tensorflow":
        return
    from fanwise.tensor.with_tensorflow import tf

    shapes = [tf.TensorSpec([None, 3]), tf.TensorSpec([2], tf.int64), tf.TensorSpec([2, None])]
    compiled = tf.function(
        lambda x, labels, y: (ft.cross_entropy(x, labels), ft.einsum("ij,ij->i", x, y)), shapes, autograph=False
    )
    losses, products = compiled(ft.zeros((2, 3)), ft.asarray([0, 2]), ft.ones((2, 3)))
    np.testing.assert_allclose(ft.to_numpy(losses), np.log(3.0), rtol=1e-6)
    assert ft.to_numpy(products).tolist() == [0.0, 0.0]
