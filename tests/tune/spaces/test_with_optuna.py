"""Spaces from Optuna's distributions and for them: what travels comes back the same, what cannot is named."""

import doctest
from typing import Any

import pytest

from fanwise.tune.spaces import (
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
with_optuna: Any = pytest.importorskip("fanwise.tune.spaces.with_optuna")
from_optuna, suggest, to_optuna = with_optuna.from_optuna, with_optuna.suggest, with_optuna.to_optuna

FLAT = Space(
    {
        "a": uniform(-1, 1),
        "b": loguniform(1e-5, 1),
        "c": randint(1, 8),
        "d": lograndint(8, 1024),
        "e": choice(["x", 3, None, True, 0.5]),
        "f": quniform(0, 1, 0.1),
        "g": qrandint(8, 64, 8),
        "h": finrange(0.05, 0.95, 10),
        "i": finrange(1, 10, 4, cast_int=True),
        "j": 10,
    }
)


def test_a_space_comes_back_the_same() -> None:
    assert from_optuna(to_optuna(FLAT)) == FLAT


def test_optunas_forms_of_one_value_are_constants() -> None:
    given = {
        "x": optuna.distributions.FloatDistribution(2.0, 2.0),
        "y": optuna.distributions.IntDistribution(3, 3),
        "z": optuna.distributions.CategoricalDistribution(["only"]),
        "w": optuna.distributions.FloatDistribution(0.5, 0.5, step=0.5),
    }
    assert dict(from_optuna(given).constants) == {"x": 2.0, "y": 3, "z": "only", "w": 0.5}


TREE = Space(
    {
        "nesterov": parameter(choice([True, False]), when={"momentum_kind": "heavy"}),
        "momentum_kind": parameter(choice(["light", "heavy"]), when={"optimizer": "sgd"}),
        "optimizer": choice(["sgd", "adam"]),
        "beta": parameter(uniform(0.8, 1), when={"optimizer": "adam"}),
        "lr": loguniform(1e-4, 1),
        "width": qrandint(8, 64, 8),
        "epochs": 10,
    }
)


def test_a_trial_of_optuna_suggests_configurations_with_conditions() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    kinds = set()
    for _ in range(40):
        trial = study.ask()
        config = suggest(TREE, trial)
        assert TREE.check(config) == config
        assert set(trial.params) == set(config) - {"epochs"}, "only what exists is asked for"
        kinds.add(frozenset(config))
        study.tell(trial, 0.0)
    assert len(kinds) == 3


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (reverseloguniform(0.9, 0.99), "'x' cannot go to Optuna: reverseloguniform(0.9, 0.99) has no counterpart"),
        (qlograndint(8, 64, 8), "'x' cannot go to Optuna: qlograndint(8, 64, 8) has no counterpart"),
        (ordinal([1, 2, 9]), "'x' cannot go to Optuna: ordinal([1, 2, 9], kind='nn') has no counterpart"),
        (logfinrange(1, 100, 3), "'x' cannot go to Optuna: logfinrange(1.0, 100.0, 3) has no counterpart"),
        (finrange(0, 1, 4), "'x' cannot go to Optuna: finrange(0.0, 1.0, 4) has no counterpart"),
        (finrange(0, 10, 4, cast_int=True), "'x' cannot go to Optuna: finrange(0, 10, 4, cast_int=True) has no"),
        (parameter(uniform(0, 1), prior=0.1), "the prior of 'x' cannot go to Optuna: its distributions have none"),
        (constant([1]), "the constant 'x' cannot go to Optuna: [1] is neither text, number nor None"),
        (
            parameter(uniform(0, 1), when={"y": [1, 2]}),
            "'x' exists only when y is 1 or 2, and Optuna's distributions have no conditions; use suggest(",
        ),
    ],
)
def test_what_has_no_counterpart_there_is_named(entry: object, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        to_optuna(Space({"x": entry, "y": randint(1, 3)}))
    assert said in str(caught.value)


def test_what_is_no_distribution_is_named() -> None:
    with pytest.raises(ValueError, match=r"'x' has no counterpart in a fanwise.tune.Space: 3"):
        from_optuna({"x": 3})


def test_the_examples_run() -> None:
    assert doctest.testmod(with_optuna).failed == 0
