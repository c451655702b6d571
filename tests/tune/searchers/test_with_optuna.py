"""Optuna's distributions of a space: each holds the same values, and what has no counterpart is named."""

import doctest
from typing import Any

import pytest

from fanwise.tune.space import (
    Space,
    choice,
    constant,
    finrange,
    logfinrange,
    lograndint,
    loguniform,
    ordinal,
    parameter,
    qlograndint,
    qrandint,
    quniform,
    randint,
    reverseloguniform,
    uniform,
)

optuna: Any = pytest.importorskip("optuna")
with_optuna: Any = pytest.importorskip("fanwise.tune.searchers.with_optuna")
Float, Int, Categorical = (
    getattr(optuna.distributions, f"{kind}Distribution") for kind in ("Float", "Int", "Categorical")
)


@pytest.mark.parametrize(
    ("entry", "distribution"),
    [
        (uniform(-1, 1), Float(-1.0, 1.0)),
        (loguniform(1e-5, 1), Float(1e-5, 1.0, log=True)),
        (randint(1, 8), Int(1, 8)),
        (lograndint(8, 1024), Int(8, 1024, log=True)),
        (choice(["x", 3, None, True, 0.5]), Categorical(["x", 3, None, True, 0.5])),
        (quniform(0, 1, 0.1), Float(0.0, 1.0, step=0.1)),
        (qrandint(8, 64, 8), Int(8, 64, step=8)),
        (finrange(0.05, 0.95, 10), Float(0.05, 0.95, step=0.1)),
        (finrange(1, 10, 4, cast_int=True), Int(1, 10, step=3)),
        (10, Categorical([10])),
        (parameter(uniform(0, 1), when={"y": [1, 2]}, prior=0.1), Float(0.0, 1.0)),
    ],
    ids=str,
)
def test_a_domain_has_the_distribution_of_the_same_values(entry: object, distribution: object) -> None:
    assert with_optuna.distributions(Space({"x": entry, "y": randint(1, 3)}))["x"] == distribution


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (reverseloguniform(0.9, 0.99), "'x' cannot be converted: reverseloguniform(0.9, 0.99) has no counterpart"),
        (qlograndint(8, 64, 8), "'x' cannot be converted: qlograndint(8, 64, 8) has no counterpart"),
        (ordinal([1, 2, 9]), "'x' cannot be converted: ordinal([1, 2, 9], kind='nn') has no counterpart"),
        (logfinrange(1, 100, 3), "'x' cannot be converted: logfinrange(1.0, 100.0, 3) has no counterpart"),
        (quniform(0, 1, 1 / 3), "'x' cannot be converted: quniform(0.0, 1.0, 0.3333333333333333) has no counterpart"),
        (finrange(0, 1, 4), "'x' cannot be converted: finrange(0.0, 1.0, 4) has no counterpart"),
        (finrange(0, 10, 4, cast_int=True), "'x' cannot be converted: finrange(0, 10, 4, cast_int=True) has no"),
        (constant([1]), "the constant 'x' cannot be converted: [1] is neither a string, a number nor None"),
    ],
)
def test_a_domain_without_counterpart_is_named(entry: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        with_optuna.distributions(Space({"x": entry, "y": randint(1, 3)}))
    assert text in str(caught.value)


def test_the_examples_run() -> None:
    assert doctest.testmod(with_optuna).failed == 0
