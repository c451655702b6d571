"""Hyperparameters that exist only beside certain values of others: drawn, completed, changed, checked, counted."""

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.rng import KeyedRandom
from fanwise.tune.space import (
    Space,
    check_partial_config,
    choice,
    loguniform,
    ordinal,
    parameter,
    randint,
    space_from_json,
    space_priors,
    space_to_json,
    uniform,
)

# nesterov stands before its parent, which stands before its own.
NESTED = Space(
    {
        "nesterov": parameter(choice([True, False]), when={"momentum_kind": "heavy"}),
        "momentum_kind": parameter(ordinal(["none", "light", "heavy"]), when={"optimizer": ["sgd", "rmsprop"]}),
        "optimizer": choice(["sgd", "adam", "rmsprop"]),
        "beta": parameter(uniform(0.8, 1), when={"optimizer": "adam"}),
        "warmup": parameter(3, when={"optimizer": "adam", "layers": [2, 3]}),
        "layers": randint(1, 3),
        "epochs": 10,
    }
)


def named(config: dict[str, object]) -> set[str]:
    """The names that this configuration of NESTED should have, by its values."""
    names = {"optimizer", "layers", "epochs"}
    if config["optimizer"] == "adam":
        return names | {"beta"} | ({"warmup"} if config["layers"] != 1 else set())
    return names | {"momentum_kind"} | ({"nesterov"} if config["momentum_kind"] == "heavy" else set())


SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_sample_has_what_exists_beside_its_values_and_nothing_else(seed: int) -> None:
    config = NESTED.sample(Random(seed))
    assert set(config) == named(config)
    assert list(config) == [name for name in NESTED.names if name in config]
    assert NESTED.check(config) == config


def test_one_number_is_drawn_for_each_domain_whatever_exists() -> None:
    space = Space({"a": choice([1, 2]), "b": parameter(uniform(0, 1), when={"a": 1}), "c": uniform(0, 1)})
    assert space.from_units([0.1, 0.2, 0.3]) == {"a": 1, "b": 0.2, "c": 0.3}
    assert space.from_units([0.9, 0.2, 0.3]) == {"a": 2, "c": 0.3}
    with pytest.raises(ValueError, match="a point of this space has 3 numbers, got 2"):
        space.from_units([0.1, 0.2])


@given(SEEDS, SEEDS, st.data())
def test_complete_draws_parents_that_let_the_given_values_exist(
    seed: int, second_seed: int, data: st.DataObject
) -> None:
    known = NESTED.sample(Random(second_seed))
    names = data.draw(st.sets(st.sampled_from(sorted(known))))
    partial = {name: known[name] for name in names}
    config = NESTED.complete(partial, Random(seed))
    assert {name: config[name] for name in names} == partial
    assert set(config) == named(config)
    drawn = NESTED.sample(Random(seed))
    if not names:
        assert config == drawn


def test_complete_chooses_each_parent_that_is_possible_equally_often() -> None:
    completed = [NESTED.complete({"momentum_kind": "heavy"}, KeyedRandom(f"{n}")) for n in range(600)]
    counts = Counter(config["optimizer"] for config in completed)
    assert counts.keys() == {"sgd", "rmsprop"}
    assert all(abs(count - 300) < 60 for count in counts.values()), counts  # 5 standard deviations
    assert {config["nesterov"] for config in completed} == {True, False}


@given(SEEDS, st.data())
def test_a_change_leaves_a_whole_configuration_and_keeps_what_still_exists(seed: int, data: st.DataObject) -> None:
    config = NESTED.sample(Random(seed))
    config_before = dict(config)
    name = data.draw(st.sampled_from(sorted(set(config) & set(NESTED.domains))))
    changed = NESTED.resample(config, name, Random(seed + 1))
    assert config == config_before, "the caller's dict was modified"
    assert set(changed) == named(changed)
    assert NESTED.check(changed) == changed
    assert all(changed[key] == config[key] for key in set(config) & set(changed) - {name})


def test_what_begins_to_exist_is_drawn_and_what_ends_is_left_out() -> None:
    config = {"optimizer": "adam", "beta": 0.9, "warmup": 3, "layers": 2, "epochs": 10}
    samples = [NESTED.resample(config, "optimizer", KeyedRandom(f"{n}")) for n in range(60)]
    assert {str(changed.get("momentum_kind")) for changed in samples} == {"None", "none", "light", "heavy"}
    assert all(("beta" in changed) == (changed["optimizer"] == "adam") for changed in samples)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"optimizer": "adam", "beta": 0.9, "layers": 1, "momentum_kind": "none"},
            "momentum_kind = 'none' is given, but it exists only when optimizer is 'sgd' or 'rmsprop', and "
            "optimizer is 'adam'",
        ),
        ({"optimizer": "adam", "layers": 1}, "'beta' is missing"),
        ({"optimizer": "sgd", "layers": 1, "momentum_kind": "heavy"}, "'nesterov' is missing"),
        (
            {"optimizer": "adam", "beta": 0.9, "layers": 1, "warmup": 3},
            "warmup = 3 is given, but it exists only when layers is 2 or 3, and layers is 1",
        ),
        (
            {"optimizer": "adam", "beta": 0.9, "layers": 1, "nesterov": True},
            "nesterov = True is given, but it exists only when optimizer is 'sgd' or 'rmsprop', and optimizer is "
            "'adam'",
        ),
    ],
)
def test_the_check_says_what_does_not_fit_the_parents(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        NESTED.check(config)
    assert message in str(caught.value).splitlines()


def test_values_that_never_exist_together_are_refused_when_the_rest_is_missing() -> None:
    with pytest.raises(
        ValueError, match="beta and momentum_kind never exist together: beta only when optimizer is 'adam', mom"
    ):
        check_partial_config(NESTED, {"beta": 0.9, "momentum_kind": "none"})
    with pytest.raises(ValueError, match="nesterov = True is given, but it exists only when optimizer is"):
        NESTED.complete({"nesterov": True, "optimizer": "adam"}, Random(0))


def test_a_change_of_what_does_not_exist_is_refused() -> None:
    config = NESTED.complete({"optimizer": "adam"}, Random(0))
    with pytest.raises(
        ValueError, match="'nesterov' does not exist in this configuration; it exists only when momentum_kind"
    ):
        NESTED.resample(config, "nesterov", Random(0))


def test_a_grid_has_every_configuration_once_and_the_number_says_how_many() -> None:
    # adam: beta 3 x layers 3; else: 2 optimizers x (none, light, heavy x 2) x layers 3
    configs = list(NESTED.grid(3))
    assert len(configs) == 3 * 3 + 2 * 4 * 3
    assert len({json.dumps(config) for config in configs}) == len(configs)
    for config in configs:
        assert set(config) == named(config)
    assert NESTED.num_configurations is None, "beta is a real number"
    counted = Space(
        {
            "optimizer": choice(["sgd", "adam", "rmsprop"]),
            "kind": parameter(ordinal(["none", "light", "heavy"]), when={"optimizer": ["sgd", "rmsprop"]}),
            "nesterov": parameter(choice([True, False]), when={"kind": "heavy"}),
            "layers": randint(1, 3),
            "depth": parameter(randint(1, 10**6), when={"optimizer": "adam", "layers": 3}),
        }
    )
    assert counted.num_configurations == (2 + 10**6) + 2 * 4 * 3


def test_true_is_another_parent_value_than_1() -> None:
    space = Space({"a": choice([True, 1]), "b": parameter(choice([5, 6]), when={"a": True})})
    assert space.num_configurations == 3
    assert space.complete({"a": 1}, Random(0)) == {"a": 1}
    for n in range(20):
        assert space.complete({"b": 5}, KeyedRandom(f"{n}"))["a"] is True
    assert len(list(space.grid(2))) == 3


def test_a_space_with_conditions_and_priors_survives_its_json_form_and_its_repr() -> None:
    space = Space(
        {
            "optimizer": parameter(choice(["sgd", "adam"]), prior="adam", confidence="low"),
            "momentum": parameter(uniform(0, 0.99), when={"optimizer": "sgd"}, prior=0.9, confidence=0.8),
            "none": parameter(choice([None, 1]), prior=None),
            "fixed": parameter(3, when={"optimizer": ["sgd", "adam"]}),
        }
    )
    restored_space = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert restored_space == space
    assert dict(space_priors(restored_space)) == dict(space_priors(space))
    assert repr(space) == (
        "Space({'optimizer': parameter(choice(['sgd', 'adam']), prior='adam', confidence=0.5), "
        "'momentum': parameter(uniform(0.0, 0.99), when={'optimizer': 'sgd'}, prior=0.9, confidence=0.8), "
        "'none': parameter(choice([None, 1]), prior=None, confidence=0.75), "
        "'fixed': parameter(3, when={'optimizer': ['sgd', 'adam']})})"
    )
    assert eval(repr(space)) == space
    assert Space({"optimizer": choice(["sgd", "adam"])}) != space


@pytest.mark.parametrize(
    ("when", "error", "text"),
    [
        (
            {"optimiser": "sgd"},
            ValueError,
            "'x' depends on 'optimiser', which is not in the space; did you mean 'o",
        ),
        ({"epochs": 10}, ValueError, "'x' depends on 'epochs', which is a constant of the space; known: "),
        ({"lr": 0.1}, ValueError, r"'x' depends on 'lr', which is real-valued"),
        ({"optimizer": "sdg"}, ValueError, r"'x' depends on 'optimizer' = 'sdg', which is not in choice\("),
        ({"optimizer": []}, ValueError, "'x': `when` lists no value for 'optimizer', so 'x' would never exist"),
        ({"x": 1}, ValueError, "'x' depends on itself"),
        ({}, ValueError, "'x': `when` is empty; omit it"),
        ("sgd", TypeError, "'x': `when` must map parents to values, got 'sgd' of type str"),
        ({"y": 1}, ValueError, "depend on each other in a cycle: x -> y -> x"),
    ],
)
def test_wrong_conditions_are_refused_at_once(when: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Space(
            {
                "optimizer": choice(["sgd", "adam"]),
                "lr": loguniform(1e-2, 1),
                "epochs": 10,
                "x": parameter(randint(1, 2), when=when),
                "y": parameter(randint(1, 2), when={"x": 1}),
            }
        )
