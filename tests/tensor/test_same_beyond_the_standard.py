"""What the standard leaves open and the guide promises all the same: one result, or one error, on every engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
ENGINES = ("numpy", "torch", "jax", "tensorflow")
Array = Any  # Any: of any engine


def bytes_() -> Array:
    return ft.asarray([3, 2], dtype=ft.uint8)


@pytest.fixture(params=ENGINES, autouse=True)
def engine(request: pytest.FixtureRequest) -> Any:
    with ft.use(request.param):
        yield request.param


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: ft.mean(ft.asarray([1, 2])), 1.5),
        (lambda: ft.mean(ft.asarray([[1, 2], [3, 5]]), axis=0, keepdims=True), [[2.0, 3.5]]),
        (lambda: ft.mean(ft.asarray([True, False])), 0.5),
        (lambda: ft.std(ft.asarray([3, -2])), 2.5),
        (lambda: ft.var(bytes_(), correction=1), 0.5),
    ],
)
def test_means_of_integers_are_float32(call: Callable[[], Array], expected: object) -> None:
    result = call()
    assert result.dtype == ft.float32 and np.asarray(result).tolist() == expected


def test_sums_of_booleans_count() -> None:
    b = ft.asarray([True, False, True])
    assert int(ft.sum(b)) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: ft.asarray([-1], dtype=ft.uint8),
        lambda: ft.asarray([[1], [300]], dtype=ft.int8),
        lambda: ft.add(bytes_(), 300),
        lambda: ft.subtract(-1, bytes_()),
        lambda: ft.multiply(bytes_(), 256),
        lambda: ft.maximum(bytes_(), -1),
        lambda: ft.full((2,), -1, dtype=ft.uint8),
        lambda: ft.full_like(bytes_(), 300),
        lambda: ft.asarray(2**64),
        lambda: ft.pow(bytes_(), 300),
    ],
)
def test_a_python_integer_that_the_type_does_not_hold_is_an_error(call: Callable[[], Array]) -> None:
    with pytest.raises(OverflowError):
        call()


def test_a_comparison_beyond_the_range_of_the_type_is_right_or_an_error(engine: str) -> None:
    if engine == "numpy":
        assert np.asarray(ft.less(bytes_(), -1)).tolist() == [False, False]
    else:
        with pytest.raises(OverflowError, match="-1"):
            ft.less(bytes_(), -1)


def test_numbers_in_the_range_of_the_type_are_accepted() -> None:
    assert np.asarray(ft.add(bytes_(), 252)).tolist() == [255, 254]
    assert np.asarray(ft.less(2, bytes_())).tolist() == [True, False]
    assert np.asarray(ft.asarray([255, 0], dtype=ft.uint8)).tolist() == [255, 0]


def test_the_operators_of_the_guide_agree_with_numpy() -> None:
    floats, ints = ([1.5, -2.0], [0.5, 4.0]), ([3, -2], [2, 5])
    operators: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x < y,
        lambda x, y: x <= y,
        lambda x, y: x > y,
        lambda x, y: x >= y,
        lambda x, y: x == y,
        lambda x, y: x != y,
    ]
    of_floats: list[Callable[[Any, Any], Any]] = [lambda x, y: x / y, lambda x, y: x**y]
    for (one, other), number, able in ((floats, 2.0, operators + of_floats), (ints, 2, operators)):
        x, y = ft.asarray(one), ft.asarray(other)
        a, b = (
            np.array(each, dtype=np.float32 if number == 2.0 and able != operators else None) for each in (one, other)
        )
        for operate in able:
            for result, expected in ((operate(x, y), operate(a, b)), (operate(x, number), operate(a, number))):
                assert np.allclose(np.asarray(result), expected, equal_nan=True)
    square = ft.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(square @ square).tolist() == [[7.0, 10.0], [15.0, 22.0]]
    assert np.asarray(square[0, ::1]).tolist() == [1.0, 2.0]


def on(device: object) -> list[Array]:
    x = ft.ones(2)
    return [
        *(ft.zeros(2, device=device), ft.asarray([1.0], device=device), ft.asarray(x, device=device)),
        *(ft.full(2, 1.0, device=device), ft.arange(2, device=device), ft.ones(2, device=device)),
        *(ft.zeros_like(x, device=device), ft.full_like(x, 2.0, device=device)),
        *(
            ft.astype(x, ft.float32, device=device),
            ft.to_device(x, device),
            ft.convert(x, ft.current_engine(), device=device),
        ),
    ]


@pytest.mark.parametrize("device", ["cpu", "CPU", "cpu:0", "CPU:0", torch.device("cpu")])
def test_a_device_has_one_name_in_every_function(device: object) -> None:
    assert {ft.device_of(x) for x in on(device)} == {"cpu"}


def test_the_engines_own_device_names_are_understood(engine: str) -> None:
    own = ft.ones(2).device
    assert ft.device_of(ft.zeros(2, device=own)) == ft.device_of(ft.zeros_like(ft.ones(2), device=own)) == "cpu"
    if engine == "tensorflow":  # a text
        assert {ft.device_of(x) for x in on(own)} == {"cpu"}


@pytest.mark.parametrize("device", ["nowhere", "tpu:77"])
def test_an_unknown_device_is_a_value_error_with_the_known_ones(engine: str, device: str) -> None:
    calls: list[Callable[[], Array]] = [
        lambda: ft.zeros(2, device=device),
        lambda: ft.asarray([1.0], device=device),
        lambda: ft.zeros_like(ft.ones(2), device=device),
        lambda: ft.astype(ft.ones(2), ft.float32, device=device),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"{engine} has no device '{device}' in this process; it has cpu"):
            call()
