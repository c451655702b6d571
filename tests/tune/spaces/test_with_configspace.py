"""Spaces from ConfigSpace and for it: what travels comes back the same, what cannot is named."""

import doctest
from collections.abc import Callable
from typing import Any

import pytest

from fanwise.tune.chance import Chance
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
    randint,
    reverseloguniform,
    uniform,
)

cs: Any = pytest.importorskip("ConfigSpace")
with_configspace: Any = pytest.importorskip("fanwise.tune.spaces.with_configspace")
from_configspace, to_configspace = with_configspace.from_configspace, with_configspace.to_configspace

FULL = Space(
    {
        "optimizer": parameter(choice(["sgd", "adam", "rmsprop"]), prior="adam", confidence=0.6),
        "lr": loguniform(1e-4, 1),
        "momentum": parameter(uniform(0, 0.5), when={"optimizer": ["sgd", "rmsprop"]}, prior=0.25, confidence=0.75),
        "size": ordinal(["s", "m", "l"]),
        "layers": parameter(randint(1, 8), prior=3, confidence=0.75),
        "width": parameter(lograndint(8, 1024), when={"layers": [2, 3, 4], "size": "l"}),
        "nesterov": parameter(choice([True, False]), when={"momentum_kind": "heavy"}),
        "momentum_kind": parameter(choice(["light", "heavy"]), when={"optimizer": "sgd"}),
        "epochs": 10,
        "sizes": constant([64, 32]),
    }
)


def test_a_space_comes_back_the_same() -> None:
    assert from_configspace(to_configspace(FULL)).to_json() == FULL.to_json()


def test_what_configspace_draws_is_a_configuration_here() -> None:
    made = to_configspace(FULL, seed=3)
    for drawn in made.sample_configuration(200):
        FULL.check(dict(drawn))


def test_what_is_drawn_here_is_a_configuration_there() -> None:
    made = to_configspace(FULL)
    for n in range(200):
        cs.Configuration(made, values=FULL.sample(Chance(f"{n}"))).check_valid_configuration()


def test_equally_likely_values_in_order_go_out_as_ordinals() -> None:
    space = Space({"a": finrange(0.1, 0.4, 4), "b": qrandint(8, 32, 8), "c": logfinrange(1, 100, 3)})
    back = from_configspace(to_configspace(space))
    assert dict(back.domains) == {
        "a": ordinal([0.1, 0.2, 0.3, 0.4], "equal"),
        "b": ordinal([8, 16, 24, 32], "equal"),
        "c": ordinal([1.0, 10.0, 100.0], "equal"),
    }


def made(*hyperparameters: Any, conditions: Callable[..., Any] | None = None) -> Any:
    space = cs.ConfigurationSpace()
    space.add(*hyperparameters)
    if conditions is not None:
        space.add(conditions(*hyperparameters))
    return space


PARENT = cs.UniformIntegerHyperparameter("layers", 1, 5)
CHILD = cs.UniformFloatHyperparameter("x", 0, 1)


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        (lambda p, c: cs.GreaterThanCondition(c, p, 3), (4, 5)),
        (lambda p, c: cs.LessThanCondition(c, p, 3), (1, 2)),
        (lambda p, c: cs.NotEqualsCondition(c, p, 3), (1, 2, 4, 5)),
        (lambda p, c: cs.InCondition(c, p, [5, 1]), (1, 5)),
        (lambda p, c: cs.OrConjunction(cs.EqualsCondition(c, p, 1), cs.GreaterThanCondition(c, p, 3)), (1, 4, 5)),
        (lambda p, c: cs.AndConjunction(cs.LessThanCondition(c, p, 4), cs.GreaterThanCondition(c, p, 1)), (2, 3)),
    ],
)
def test_conditions_on_counted_parents_become_lists_of_values(condition: Any, values: tuple[int, ...]) -> None:
    space = from_configspace(made(PARENT, CHILD, conditions=condition))
    assert space.conditions["x"] == {"layers": values}


def test_what_has_no_counterpart_here_is_named() -> None:
    other = cs.UniformIntegerHyperparameter("other", 1, 5)
    forbidden = made(PARENT)
    forbidden.add(cs.ForbiddenEqualsClause(PARENT, 5))
    spaces = {
        "the clause Forbidden: layers == 5 has no counterpart": forbidden,
        "'beta' has no counterpart": made(cs.BetaFloatHyperparameter("beta", alpha=2, beta=3, lower=0, upper=1)),
        "'n' has no counterpart": made(cs.NormalFloatHyperparameter("n", 0.1, 0.1, 1e-3, 1, log=True)),
        "the weights of 'c' have no counterpart": made(cs.CategoricalHyperparameter("c", "abc", weights=[3, 2, 1])),
        "here all parents must have one of their values": made(
            PARENT,
            other,
            CHILD,
            conditions=lambda p, o, c: cs.OrConjunction(cs.EqualsCondition(c, p, 1), cs.EqualsCondition(c, o, 1)),
        ),
        "'y' must have few different values": made(
            cs.UniformFloatHyperparameter("y", 0, 1), CHILD, conditions=lambda p, c: cs.GreaterThanCondition(c, p, 0.5)
        ),
    }
    for said, space in spaces.items():
        with pytest.raises(ValueError) as caught:
            from_configspace(space)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (reverseloguniform(0.9, 0.99), "'x' cannot go to ConfigSpace: reverseloguniform(0.9, 0.99) has no counterpart"),
        (qlograndint(8, 64, 8), "'x' cannot go to ConfigSpace: qlograndint(8, 64, 8) has no counterpart"),
        (ordinal([1, 2, 9]), "'x' cannot go to ConfigSpace: ordinal([1, 2, 9], kind='nn') has no counterpart"),
        (parameter(loguniform(1e-3, 1), prior=0.1), "the prior of 'x' cannot go to ConfigSpace, which has them for"),
    ],
)
def test_what_has_no_counterpart_there_is_named(entry: object, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        to_configspace(Space({"x": entry, "y": choice([1, 2])}))
    assert said in str(caught.value)


def test_the_examples_run() -> None:
    assert doctest.testmod(with_configspace).failed == 0
