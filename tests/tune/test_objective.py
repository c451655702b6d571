"""Return values and reports of objectives: valid metrics, invalid ones, and error messages."""

import logging
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from fanwise.pool.reporting import is_plain, plain_metrics
from fanwise.tune.objective import report, run_objective

NUMBERS: list[tuple[Any, float | int]] = [  # Any: scalars of three libraries
    (0.25, 0.25),
    (3, 3),
    (True, 1),
    (-math.inf, -math.inf),
    (Fraction(1, 4), 0.25),
    (2**63 - 1, 2**63 - 1),
    (2**70, float(2**70)),
    (np.float64(0.25), 0.25),
    (np.float32(0.25), 0.25),
    (np.float16(0.25), 0.25),
    (np.int64(7), 7),
    (np.uint8(7), 7),
    (np.bool_(True), 1),
    (np.array(0.25), 0.25),
    (np.array([0.25]), 0.25),
    (np.array([[7]]), 7),
    (torch.tensor(0.25), 0.25),
    (torch.tensor([0.25]), 0.25),
    (torch.tensor([[7]]), 7),
    (torch.tensor(True), 1),
    (torch.tensor(0.25, dtype=torch.bfloat16), 0.25),
    (torch.tensor(0.25, requires_grad=True) * 1, 0.25),
    (torch.nn.Parameter(torch.tensor(0.25)), 0.25),
]


@pytest.mark.parametrize(("value", "number"), NUMBERS, ids=lambda value: f"{type(value).__name__} {value!r}")
def test_scalars_and_one_element_arrays_become_python_numbers(value: Any, number: float) -> None:
    plain = plain_metrics({"loss": value})
    assert plain == {"loss": number}
    assert type(plain["loss"]) is type(number)
    assert is_plain(plain["loss"])


class Eager:
    """Imitates a scalar of TensorFlow, which has a shape and `numpy`, but no `item`."""

    def __init__(self, value: float, *shape: int) -> None:
        self._value = np.full(shape, value, np.float32)
        self.shape = shape

    def numpy(self) -> Any:  # Any: an array, or numpy's scalar
        return self._value[()]


def test_array_without_item_is_converted_by_numpy() -> None:
    assert plain_metrics({"loss": Eager(0.25), "error": Eager(0.5, 1)}) == {"loss": 0.25, "error": 0.5}
    text = Eager(0.0)
    text.numpy = lambda: b"a"  # type: ignore[method-assign]  # as of a tensor of text
    with pytest.raises(TypeError, match="a value must be a number or a string, got Eager"):
        plain_metrics({"loss": text})
    with pytest.raises(TypeError, match=r"must be one number, got a Eager of shape \(2,\)"):
        plain_metrics({"loss": Eager(0.25, 2)})


def test_nan_stays_nan() -> None:
    for nan in (math.nan, np.float32("nan"), torch.tensor(math.nan)):
        assert math.isnan(float(plain_metrics({"loss": nan})["loss"]))


class Named(str):
    """A string of another class."""


@pytest.mark.parametrize("value", ["large", Named("large"), np.str_("large"), np.array("large")])
def test_strings_are_kept(value: object) -> None:
    plain = plain_metrics({"loss": 0.25, "note": value})
    assert plain == {"loss": 0.25, "note": "large"}
    assert type(plain["note"]) is str
    assert is_plain(plain["note"])


def test_long_string_is_shortened() -> None:
    assert plain_metrics({"note": "x" * 1000}) == {"note": "x" * 1000}
    cut = plain_metrics({"note": "x" * 1001})["note"]
    assert cut == "x" * 997 + "..."
    assert is_plain(cut) and not is_plain("x" * 1001)


@pytest.mark.parametrize("value", [None, [0.25], {"a": 1}, 1j, Decimal("0.25"), b"large", object()])
def test_error_names_a_value_that_is_neither_a_number_nor_a_string(value: object) -> None:
    with pytest.raises(TypeError, match=r"report\(loss=.*a value must be a number or a string, got \w+\.\nReport numb"):
        plain_metrics({"epoch": 1, "loss": value})


@pytest.mark.parametrize("value", [np.zeros(2), torch.zeros(2, 3), np.zeros(0)])
def test_error_names_the_shape_of_an_array_with_several_elements(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        plain_metrics({"loss": value})
    shape = tuple(value.shape)
    assert f"must be one number, got a {type(value).__name__} of shape {shape}. Reduce it first" in str(caught.value)


def test_integer_that_exceeds_the_range_of_floats_is_refused() -> None:
    with pytest.raises(ValueError, match=r"report\(loss=\.\.\.\): the number is too large for a float"):
        plain_metrics({"loss": 10**400})


@pytest.mark.parametrize("name", ["st_decision", "config_depth", "trial_id"])
def test_names_of_built_in_columns_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"report\({name}=\.\.\.\): .* are columns of the result"):
        report(**{name: 1.0})


def test_empty_report_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"called without values\.\n  right:  report\(validation_error=0\.12\)"):
        report()


def test_report_outside_a_tuner_validates_values_and_sends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fanwise")
    report(epoch=1, loss=np.float32(0.25))
    assert caplog.messages == ["report outside a tuner: {'epoch': 1, 'loss': 0.25}"]
    with pytest.raises(TypeError):
        report(loss=["low"])


@pytest.mark.parametrize(
    ("returned", "reported"),
    [
        (0.25, {"loss": 0.25}),
        (3, {"loss": 3}),
        (np.float32(0.25), {"loss": 0.25}),
        (torch.tensor(0.25), {"loss": 0.25}),
        (torch.tensor([0.25]), {"loss": 0.25}),
        ({"loss": torch.tensor(1), "epoch": 2}, {"loss": 1, "epoch": 2}),
        (None, None),
    ],
)
def test_returned_number_or_dict_is_the_last_report(
    returned: object, reported: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fanwise")
    run_objective(lambda depth: returned, "loss", depth=3)
    assert caplog.messages == ([] if reported is None else [f"report outside a tuner: {reported}"])


NO_METRICS = [
    ("done", "'done', a str"),
    ([0.1, 0.2], "[0.1, 0.2], a list"),
    (np.zeros(3), "a ndarray of shape (3,)"),
    (torch.zeros(2, 2), "a Tensor of shape (2, 2)"),
    (torch.nn.Sequential(), "Sequential(), a Sequential"),
]


@pytest.mark.parametrize(("returned", "described"), NO_METRICS)
def test_error_names_a_returned_value_that_is_not_a_metric(returned: object, described: str) -> None:
    with pytest.raises(TypeError) as caught:
        run_objective(lambda: returned, "loss")
    assert str(caught.value) == (
        f"the objective reported nothing and returned {described}, which is not a metric.\n"
        f"Return a number or a dict of numbers and notes, e.g. {{'loss': 0.12}}, or call report() before."
    )


@pytest.mark.parametrize(("returned", "described"), NO_METRICS)
def test_objective_that_has_reported_can_return_any_value(returned: object, described: str) -> None:
    def objective() -> object:
        report(loss=0.5)
        return returned

    run_objective(objective, "loss")
    with pytest.raises(TypeError, match="reported nothing"):  # the report of the last call does not count for the next
        run_objective(lambda: returned, "loss")


def test_objective_receives_hyperparameters_with_any_names() -> None:
    reports: list[dict[str, object]] = []
    run_objective(lambda **config: reports.append(config), "loss", objective=1, metric=2)
    assert reports == [{"objective": 1, "metric": 2}]
