"""The TensorFlow namespace in use: gradients, tf.function, variables, errors, and nothing changed around it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fanwise.tensor.namespaces import namespace
from fanwise.testing.late import Late

Tensor = Any  # Any: TensorFlow ships no types
xp = Late(lambda: namespace("tensorflow"))
tf = Late("tensorflow")
pytestmark = pytest.mark.usefixtures("tensorflow_is_loaded")


def late(name: str) -> Callable[..., Any]:  # Any: tensors
    return lambda *arrays: getattr(xp, name)(*arrays)


A = np.array([[0.3, -0.6, 0.9], [0.25, 0.7, -0.45]])
B = np.array([[0.5, 0.8, -0.2], [1.3, 0.4, 0.6]])
M = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.4], [0.1, -0.4, 3.0]])

# Differentiable functions of A (the first argument), with values inside the domain of each.
OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{name: late(name) for name in ("abs", "acos", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp")},
    **{name: late(name) for name in ("expm1", "log1p", "negative", "positive", "reciprocal", "sin", "sinh")},
    **{name: late(name) for name in ("square", "tan", "tanh", "real", "conj", "matrix_transpose")},
    "log": lambda x: xp.log(x * x),
    "log2": lambda x: xp.log2(x * x),
    "log10": lambda x: xp.log10(x * x),
    "sqrt": lambda x: xp.sqrt(x * x),
    "acosh": lambda x: xp.acosh(x * x + 2.0),
    "clip": lambda x: xp.clip(x, -0.5, 0.5),
    "sum": lambda x: xp.sum(x, axis=0),
    "prod": lambda x: xp.prod(x, axis=1),
    "mean": lambda x: xp.mean(x, axis=(0, 1)),
    "var": lambda x: xp.var(x, axis=1, correction=1),
    "std": lambda x: xp.std(x, axis=0),
    "max": lambda x: xp.max(x, axis=1),
    "min": lambda x: xp.min(x),
    "cumulative_sum": lambda x: xp.cumulative_sum(x, axis=1, include_initial=True),
    "cumulative_prod": lambda x: xp.cumulative_prod(x, axis=1),
    "diff": lambda x: xp.diff(x, axis=1, n=2),
    "sort": lambda x: xp.sort(x, axis=1, descending=True),
    "take": lambda x: xp.take(x, xp.asarray([0, -1, 0]), axis=1),
    "take_along_axis": lambda x: xp.take_along_axis(x, xp.asarray([[0, -1], [1, 1]]), axis=1),
    "flip": lambda x: xp.flip(x, axis=1),
    "roll": lambda x: xp.roll(x, 1, axis=1),
    "tile": lambda x: xp.tile(x, (2, 1)),
    "repeat": lambda x: xp.repeat(x, 2),
    "reshape": lambda x: xp.reshape(x, (3, 2)),
    "moveaxis": lambda x: xp.moveaxis(x, 0, 1),
    "broadcast_to": lambda x: xp.broadcast_to(x, (4, 2, 3)),
    "squeeze": lambda x: xp.squeeze(xp.expand_dims(x, axis=1), 1),
    "stack": lambda x: xp.stack([x, x * x]),
    "concat": lambda x: xp.concat([x, x * x], axis=None),
    "tril": lambda x: xp.tril(x),
    "triu": lambda x: xp.triu(x, k=1),
    "unstack": lambda x: xp.unstack(x, axis=1)[1],
    "astype": lambda x: xp.astype(xp.astype(x, xp.complex128) * 1j, xp.complex128),
    "vector_norm": lambda x: xp.linalg.vector_norm(x, axis=1),
    "vector_norm of order 3": lambda x: xp.linalg.vector_norm(x, ord=3),
    "ifft": lambda x: xp.fft.ifft(xp.fft.fft(x), n=4, axis=0),
    "complex exp": lambda x: xp.exp(xp.multiply(x, 1 + 2j)),
    "complex log": lambda x: xp.log(xp.astype(x, xp.complex128) + 1j),
    "complex log1p": lambda x: xp.log1p(xp.astype(x, xp.complex128) + 1j),
    "complex expm1": lambda x: xp.expm1(xp.astype(x, xp.complex128) * 2j),
    "complex sqrt": lambda x: xp.sqrt(xp.astype(x, xp.complex128) + 0.0),
    "complex sign": lambda x: xp.sign(xp.astype(x, xp.complex128) + 1j),
    "complex divide": lambda x: xp.divide(1j, xp.astype(x, xp.complex128) + 1j),
    "complex pow": lambda x: xp.pow(xp.astype(x, xp.complex128), 1.5 + 0.5j),
    "hypot with itself": lambda x: xp.hypot(x, x),
}
OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    **{name: late(name) for name in ("add", "subtract", "multiply", "divide", "atan2", "hypot", "logaddexp")},
    **{name: late(name) for name in ("maximum", "minimum", "remainder", "copysign", "vecdot")},
    "pow": lambda x, y: xp.pow(xp.abs(x), y),
    "where": lambda x, y: xp.where(x > y, x, y),
    "matmul": lambda x, y: xp.matmul(x, xp.matrix_transpose(y)),
    "tensordot": lambda x, y: xp.tensordot(x, y, axes=((0,), (0,))),
    "logaddexp, equal": lambda x, y: xp.logaddexp(x, x) + y,
}
CASES: list[tuple[str, Callable[..., Any], Any]] = [
    *((name, function, (A,)) for name, function in OF_ONE.items()),
    *((name, function, (A, B)) for name, function in OF_TWO.items()),
]


def as_number(function: Callable[..., Any], *arrays: Any) -> Tensor:
    """A weighted sum of all that a function returns, so that every element's gradient matters."""
    result = function(*arrays)
    weights = xp.reshape(xp.arange(1, 1 + math.prod(result.shape), dtype=xp.float64), tuple(result.shape))
    if result.dtype == xp.complex128:
        return xp.sum(weights * xp.real(result)) + xp.sum(weights * xp.imag(result)) / 2
    return xp.sum(weights * result)


@pytest.mark.parametrize(("function", "arrays"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_gradients_are_those_of_small_differences(function: Callable[..., Any], arrays: Any) -> None:
    inputs = [tf.Variable(array) for array in arrays]
    with tf.GradientTape() as tape:
        value = as_number(function, *inputs)
    gradients = tape.gradient(value, inputs)
    for place, gradient in enumerate(gradients):
        if gradient is not None:
            np.testing.assert_allclose(gradient, differences(function, arrays, place), rtol=1e-5, atol=1e-7)
    assert gradients[0] is not None


def differences(function: Callable[..., Any], arrays: Any, place: int) -> Any:
    found, step = np.zeros_like(arrays[place]), 1e-6
    for index in np.ndindex(found.shape):
        ends = []
        for sign in (1, -1):
            moved = [array.copy() for array in arrays]
            moved[place][index] += sign * step
            ends.append(float(as_number(function, *map(tf.constant, moved))))
        found[index] = (ends[0] - ends[1]) / (2 * step)
    return found


def test_gradients_are_finite_where_a_formula_divides_by_zero() -> None:
    zero = tf.zeros((2,), tf.complex128)
    for function in (xp.sign, xp.log1p, xp.expm1, lambda z: xp.pow(z + 2.0, z)):
        with tf.GradientTape() as tape:
            tape.watch(zero)
            value = xp.sum(xp.real(function(zero)))
        assert bool(xp.all(xp.isfinite(tape.gradient(value, zero))))
    equal = tf.constant([1.0, math.inf, -math.inf])
    with tf.GradientTape() as tape:
        tape.watch(equal)
        value = xp.logaddexp(equal, equal)
    assert tape.gradient(value, equal).numpy().tolist() == [1.0, 1.0, 1.0]


def test_second_derivatives_flow_through() -> None:
    x = tf.Variable([0.5, 1.0])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = xp.sum(xp.pow(x, 3) + xp.logaddexp(x, xp.multiply(x, 0.0)))
        first = inner.gradient(value, x)
    logistic = 1 / (1 + np.exp([-0.5, -1.0]))
    np.testing.assert_allclose(outer.gradient(first, x), [3.0, 6.0] + logistic * (1 - logistic), rtol=1e-5)


EAGER_ONLY = {"unstack"}  # the number of its results is a length that tracing does not know


@pytest.mark.parametrize("dynamic", [False, True], ids=["known lengths", "unknown lengths"])
def test_functions_trace_and_give_the_same(dynamic: bool) -> None:
    cases = [case for case in CASES if not (dynamic and case[0] in EAGER_ONLY)]

    def all_of_them(a: Tensor, b: Tensor, m: Tensor) -> list[Tensor]:
        given = {id(A): a, id(B): b, id(M): m}
        return [function(*(given[id(array)] for array in arrays)) for _, function, arrays in cases]

    tensors = [tf.constant(array) for array in (A, B, M)]
    shape = [[None] * array.ndim if dynamic else array.shape for array in (A, B, M)]
    # Not rewritten: the lambdas above would cost 40 ms each.
    traced = tf.function(
        all_of_them, autograph=False, input_signature=[tf.TensorSpec(each, tf.float64) for each in shape]
    )
    for case, one, other in zip(cases, traced(*tensors), all_of_them(*tensors), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14, err_msg=case[0])


def test_whole_numbers_trace_with_unknown_lengths() -> None:
    def several(x: Tensor) -> list[Tensor]:
        found = xp.unique_all(xp.reshape(x, (-1,)))
        return [
            *found,
            xp.argsort(x, axis=0),
            xp.sort(x, axis=1),
            xp.searchsorted(xp.sort(xp.reshape(x, (-1,))), x),
            xp.isin(x, x[:1]),
            *xp.nonzero(x),
            *xp.broadcast_arrays(x, x[:1]),
            *xp.meshgrid(x[0], x[:, 0]),
            xp.count_nonzero(x, axis=0),
            xp.argmax(x),
            xp.zeros_like(x),
            xp.full_like(x, 3),
            xp.arange(tf.shape(x)[0]),
            xp.eye(3),
            xp.repeat(x, x[0] * 0 + 2, axis=1),
            xp.take(x, xp.asarray([-1]), axis=0),
            xp.var(xp.astype(x, xp.float32), correction=1),
            xp.linalg.vector_norm(xp.astype(x, xp.float32), axis=1),
        ]

    x = tf.constant([[3, 1, 2], [1, 0, 3]])
    traced = tf.function(several, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    for one, other in zip(traced(x), several(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_variables_are_read_and_results_are_tensors() -> None:
    x, y = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    for result in (xp.add(x, y), xp.add(y, x), xp.add(x, 1), xp.positive(x), xp.asarray(x), xp.concat([x, y])):
        assert isinstance(result, tf.Tensor) and not isinstance(result, tf.Variable)
    assert xp.result_type(x, 1.0) == xp.float32
    before = xp.asarray(x)
    x.assign([7.0, 8.0])
    assert before.numpy().tolist() == [1.0, 2.0]


def test_half_precision_goes_through() -> None:
    for dtype in (xp.float16, xp.bfloat16):
        x = xp.asarray([[4.0, 1.0], [1.0, 3.0]], dtype=dtype)
        for result in (xp.exp(x), xp.sort(x), xp.hypot(x, x), xp.matmul(x, x)):
            assert result.dtype == dtype
        assert (x + x).dtype == dtype and xp.add(x, xp.ones(2)).dtype == xp.float32
        assert xp.finfo(dtype).bits == 16
    assert xp.result_type(xp.float16, xp.bfloat16) == xp.float32


class Foreign:
    """Another library's array."""

    def __dlpack__(self) -> object:
        raise AssertionError("nobody asked for a conversion")


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        (lambda: xp.equal(xp.ones(2), xp.ones(3)), Exception, "shape"),
        (lambda: xp.max(xp.zeros((0,))), ValueError, "of no elements has no value"),
        (lambda: xp.min(xp.zeros((2, 0)), axis=1), ValueError, "of no elements"),
        (lambda: xp.argmax(xp.zeros((0,))), ValueError, "of no elements"),
        (lambda: xp.take(xp.ones(3), xp.asarray([3])), IndexError, "out of range for axis 0 with 3"),
        (lambda: xp.take(xp.ones(3), xp.asarray([-4])), IndexError, "out of range for axis 0 with 3"),
        (lambda: xp.take(xp.ones((3, 3)), xp.asarray([0])), ValueError, "needs an axis"),
        (lambda: xp.sum(xp.ones(3), axis=1), IndexError, "out of bounds"),
        (lambda: xp.sum(xp.ones((3, 3)), axis=(0, -2)), ValueError, "twice"),
        (lambda: xp.expand_dims(xp.ones(3), axis=3), IndexError, "out of bounds"),
        (lambda: xp.squeeze(xp.ones(3), 0), ValueError, "length 1"),
        (lambda: xp.concat([xp.ones(3), np.ones(3)]), TypeError, r'convert\(x, "tensorflow"\)'),
        (lambda: xp.add(xp.ones(3), np.ones(3)), TypeError, r'convert\(x, "tensorflow"\)'),
        (lambda: xp.asarray(Foreign()), TypeError, "fanwise.tensor.asarray"),
        (lambda: xp.sum([1.0, 2.0]), TypeError, "asarray"),
        (lambda: xp.add(xp.ones(2, dtype=xp.int32), xp.ones(2)), TypeError, "int32 and float32 do not mix"),
        (lambda: xp.add(xp.ones(2, dtype=xp.int8), 200), OverflowError, "range of int8"),
        (lambda: xp.add(1, 2), TypeError, "needs an array"),
        (lambda: xp.exp(xp.arange(3)), TypeError, "floating-point types, got an array of int64"),
        (lambda: xp.maximum(xp.ones(2), 1j), TypeError, "real numeric"),
        (lambda: xp.asarray([1, 2], dtype=xp.uint8, copy=False), ValueError, "copy=False"),
        (lambda: xp.asarray(["a"]), TypeError, "numbers"),
        (lambda: xp.asarray(300, dtype=xp.uint8), OverflowError, "300"),
        (lambda: xp.linspace(0, 1, -1), ValueError, "num >= 0"),
        (lambda: xp.arange(0, 3, 0), ValueError, "step other than 0"),
        (lambda: xp.nonzero(xp.ones(())), ValueError, "one axis"),
        (lambda: xp.cumulative_sum(xp.ones((2, 2))), ValueError, "needs an axis"),
        (lambda: xp.searchsorted(xp.ones(2), xp.ones(2), side="middle"), ValueError, "'left' or 'right'"),
        (lambda: xp.broadcast_to(xp.ones((2, 2)), (2,)), ValueError, "does not broadcast"),
        (lambda: xp.broadcast_arrays(xp.ones(2), xp.ones(3)), ValueError, "do not fit"),
        (lambda: xp.matmul(xp.ones(()), xp.ones(2)), ValueError, "one axis"),
        (lambda: xp.vecdot(xp.ones(2), xp.ones(3)), ValueError, "different lengths"),
        (lambda: xp.fft.fft(xp.ones(3), norm="other"), ValueError, "norm must be"),
        (lambda: xp.fft.fft(xp.ones(3), n=0), ValueError, "length of 1 or more"),
        (lambda: xp.isdtype(xp.int8, "whole"), ValueError, "kind must be"),
        (lambda: xp.finfo(xp.int8), TypeError, "iinfo"),
        (lambda: xp.iinfo(xp.float32), TypeError, "finfo"),
        (lambda: xp.result_type(1, 2.0), ValueError, "an array or a dtype"),
        (lambda: xp.from_dlpack([1, 2]), TypeError, "__dlpack__"),
    ],
)  # fmt: skip
def test_mistakes_are_errors_that_say_what_to_do(what: Callable[[], Any], error: Any, text: str) -> None:
    with pytest.raises(getattr(tf.errors, error) if isinstance(error, str) else error, match=text):
        what()


def test_an_unknown_number_of_axes_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"tf\.ensure_shape"):
        tf.function(lambda x: xp.sum(x), input_signature=[tf.TensorSpec(None, tf.float32)])(tf.ones(3))


def test_operators_of_tensors_are_as_tensorflow_made_them() -> None:
    xp.add(xp.ones(2), xp.sum(xp.ones(3)))
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError)):
        tf.constant([1]) + tf.constant([1.0])
    assert not hasattr(tf.constant([1.0]), "astype") and tf.constant([1.0]).dtype == tf.float32
    with pytest.raises(AttributeError, match="enable_numpy_behavior"):
        tf.constant([1.0]).size  # noqa: B018
    assert isinstance(tf.constant([1.0, 2.0]) == tf.constant([1.0, 2.0, 3.0]), bool | tf.Tensor)


def test_devices_are_found_and_obeyed() -> None:
    info = xp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    for device in ("cpu", "CPU:0", info.devices()[0]):
        assert xp.ones(2, device=device).device in info.devices()
        assert xp.asarray([1.0], device=device).device == xp.astype(xp.ones(2), xp.int8, device=device).device
    assert info.default_dtypes()["integral"] == xp.int64
    assert info.capabilities()["boolean indexing"] is True
