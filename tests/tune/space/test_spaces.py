"""Spaces: drawing, completing, checking and the JSON form."""

import json
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.space import (
    Space,
    choice,
    constant,
    finrange,
    lograndint,
    loguniform,
    parameter,
    randint,
    space_from_json,
    space_to_json,
    uniform,
)

BOOK = {"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
DOMAINS = st.sampled_from(
    [uniform(-1, 1), loguniform(1e-3, 1), randint(0, 9), lograndint(1, 99), choice(["a", None]), finrange(0, 1, 5)]
)
SPACES = st.dictionaries(st.text(min_size=1), DOMAINS | JSON.map(constant), max_size=6).map(Space)


class CountingRandom(Random):
    calls = 0

    def random(self) -> float:
        self.calls += 1
        return super().random()


@given(SPACES, st.integers())
def test_a_sample_is_complete_in_order_and_passes_the_check(space: Space, seed: int) -> None:
    rng = CountingRandom(seed)
    config = space.sample(rng)
    assert tuple(config) == space.names
    assert space.check(config) == config
    assert rng.calls == len(space.domains), "one number for each domain, none for constants"
    assert json.loads(json.dumps(config)) == config


@given(SPACES, st.integers())
def test_a_space_survives_its_json_form_and_draws_the_same(space: Space, seed: int) -> None:
    restored_space = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert restored_space == space
    assert restored_space.names == space.names
    assert restored_space.sample(Random(seed)) == space.sample(Random(seed))


@given(SPACES.filter(lambda space: len(space.domains) > 0), st.integers(), st.data())
def test_resample_changes_only_the_named_hyperparameter(space: Space, seed: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(space.domains)))
    config = space.sample(Random(seed))
    config_before = dict(config)
    changed = space.resample(config, name, Random(f"{seed}/again"))
    assert config == config_before, "the caller's dict stays as it was"
    assert {key: value for key, value in changed.items() if key != name} == {
        key: value for key, value in config.items() if key != name
    }
    assert space.check(changed) == changed


@given(SPACES, st.integers(), st.data())
def test_complete_keeps_what_is_given_and_draws_the_rest_as_sample_does(
    space: Space, seed: int, data: st.DataObject
) -> None:
    given_names = data.draw(st.sets(st.sampled_from(space.names or ("",)))) & set(space.names)
    random_config = space.sample(Random("other"))
    partial = {name: random_config[name] for name in given_names}
    config = space.complete(partial, Random(seed))
    drawn = space.sample(Random(seed))
    assert config == {name: partial.get(name, drawn[name]) for name in space.names}
    assert set(partial) == given_names


def test_the_view_of_a_space_names_domains_and_constants() -> None:
    space = Space(BOOK)
    assert space.names == ("learning_rate", "batch_size", "max_epochs")
    assert dict(space.domains) == {"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256)}
    assert dict(space.constants) == {"max_epochs": 10}
    assert repr(space) == (
        "Space({'learning_rate': loguniform(0.01, 1.0), 'batch_size': randint(32, 256), 'max_epochs': 10})"
    )


def test_spaces_of_another_order_are_not_equal() -> None:
    assert Space(BOOK) == Space(dict(BOOK))
    assert Space(BOOK) != Space(dict(reversed(BOOK.items()))), "they draw different configurations"
    assert Space(BOOK) != BOOK


def test_the_check_names_everything_that_is_wrong() -> None:
    with pytest.raises(ValueError) as caught:
        Space(BOOK).check({"learning_rat": 0.1, "batch_size": 257, "max_epochs": 11})
    assert str(caught.value).splitlines() == [
        "'learning_rate' is missing",
        "'learning_rat' is not in the space; did you mean 'learning_rate'?",
        "batch_size = 257 is not in randint(32, 256)",
        "max_epochs = 11, but the space has the constant 10",
    ]


def test_constants_may_be_left_out_and_numbers_of_numpy_become_plain() -> None:
    config = Space(BOOK).check({"batch_size": np.int64(64), "learning_rate": np.float32(0.5)})
    assert config == {"learning_rate": 0.5, "batch_size": 64, "max_epochs": 10}
    assert [type(value) for value in config.values()] == [float, int, int]
    assert Space(BOOK).check({**config, "max_epochs": np.int32(10)}) == config


def test_a_constant_that_json_cannot_hold_never_equals_one() -> None:
    with pytest.raises(ValueError, match="the space has the constant 10"):
        Space(BOOK).check({"learning_rate": 0.1, "batch_size": 64, "max_epochs": object()})


def test_complete_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="learning_rate = 5 is not in loguniform"):
        Space(BOOK).complete({"learning_rate": 5}, Random(0))


def test_resample_refuses_constants_unknown_names_and_foreign_configurations() -> None:
    space = Space(BOOK)
    config = space.sample(Random(0))
    with pytest.raises(ValueError, match="'max_epochs' is a constant"):
        space.resample(config, "max_epochs", Random(0))
    with pytest.raises(ValueError, match="'batchsize' is not in the space; did you mean 'batch_size'"):
        space.resample(config, "batchsize", Random(0))
    with pytest.raises(ValueError, match="'learning_rate' is missing"):
        space.resample({"batch_size": 64}, "batch_size", Random(0))


def test_lists_among_the_constants_are_copied_in_and_out() -> None:
    layers = [64, [32]]
    space = Space({"layers": constant(layers)})
    layers.append(1)
    config = space.sample(Random(0))
    assert config == {"layers": [64, [32]]}
    assert repr(space) == "Space({'layers': constant([64, [32]])})"
    config["layers"][1].append(7)  # type: ignore[index]
    assert space.sample(Random(0)) == {"layers": [64, [32]]}


@pytest.mark.parametrize(
    ("mapping", "error", "text"),
    [
        ({"device": object()}, TypeError, "the constant 'device' is .* of type object, which cannot be recorded"),
        ({"sizes": constant((1, 2))}, TypeError, "of type tuple"),
        ({"sizes": {1: 2}}, TypeError, "dicts with string keys"),
        ({"sizes": constant([1, {2}])}, TypeError, r"the constant 'sizes'\[1\] is \{2\} of type set"),
        ({"learning_rate": loguniform}, TypeError, "of type function"),
        ({"x": math.nan}, ValueError, "the constant 'x' is NaN"),
        ({3: uniform(0, 1)}, TypeError, "name must be a str, got 3"),
        ({"": uniform(0, 1)}, ValueError, "must not be empty"),
        ([uniform(0, 1)], TypeError, "a space must be a dict"),
    ],
)
def test_bad_spaces_are_refused_at_once(mapping: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Space(mapping)


@pytest.mark.parametrize(
    ("bare", "shown"),
    [
        ([0.1, 0.01], "[0.1, 0.01]"),
        ((0.1, 0.01), "[0.1, 0.01]"),
        ({1}, "[1]"),
        (range(10**12), "[0, 1, 2, 3, 4, 5, ...]"),
    ],
)
def test_bare_collection_is_refused_with_both_meanings(bare: object, shown: str) -> None:
    with pytest.raises(TypeError) as caught:
        Space({"lr": bare})
    assert str(caught.value) == (
        f"'lr' is a bare {type(bare).__name__}, which is ambiguous:\n"
        f"  one of these values for each trial:     'lr': choice({shown})\n"
        f"  all of them, the same for every trial:  'lr': constant({shown})"
    )


def test_objects_take_the_places_of_their_names() -> None:
    sizes = [[64], [64, 64]]
    space = Space({"act": choice([math.sin, math.cos]), "sizes": choice(sizes), "act_name": choice(["sin"]), "n": 3})
    sizes[0].append(1)
    config = space.check({"act": math.sin, "sizes": [64], "act_name": "sin"})
    assert config == {"act": "sin", "sizes": "[64]", "act_name": "sin", "n": 3}
    whole = space.with_objects(config)
    assert whole == {"act": math.sin, "sizes": [64], "act_name": "sin", "n": 3}
    whole["sizes"].append(1)
    assert space.with_objects(config)["sizes"] == [64], "the space does not change"
    assert space.with_objects(whole) == whole and space.with_objects({}) == {}


def test_conditions_and_priors_are_about_objects_or_their_names() -> None:
    def space(sin: object, small: object, one: object) -> Space:
        return Space(
            {
                "act": choice([math.sin, math.cos]),
                "sizes": choice([[64], [64, 64], [1]]),
                "x": parameter(uniform(0, 1), when={"act": sin}),
                "y": parameter(uniform(0, 1), when={"sizes": small}),
                "z": parameter(choice([(3, 3), (5, 5)]), when={"sizes": [small, one]}, prior=(5, 5)),
            }
        )

    object_space = space(math.sin, [64], [1])
    assert (
        object_space
        == space("sin", "[64]", "[1]")
        == space_from_json(json.loads(json.dumps(space_to_json(object_space))))
    )
    assert list(object_space.check({"act": math.cos, "sizes": [64], "y": 0.5, "z": (3, 3)})) == [
        "act",
        "sizes",
        "y",
        "z",
    ]
    assert object_space.complete({"z": "(3, 3)"}, Random(0))["sizes"] in ("[64]", "[1]")


def test_a_space_from_json_knows_that_its_objects_are_missing() -> None:
    space = space_from_json(space_to_json(Space({"sizes": choice([[64], [1]]), "n": 3})))
    assert space.check({"sizes": [64]}) == {"sizes": "[64]", "n": 3}
    with pytest.raises(ValueError, match=r"sizes: choice\(\[\[64\], \[1\]\]\) was restored from a record, "):
        space.with_objects({"sizes": "[64]"})


def test_foreign_json_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' is 3, not the JSON form"):
        space_from_json({"x": 3})
    with pytest.raises(ValueError, match="None is not a type of domain"):
        space_from_json({"x": {"lower": 3}})
