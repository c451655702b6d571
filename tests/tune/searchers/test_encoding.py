"""Encoder: its vectorized conversions equal those of the domains, value by value."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.testing.searcher_checks import SPACES
from fanwise.tune.rng import KeyedRandom
from fanwise.tune.searchers.encoding import Encoder
from fanwise.tune.space import Space, choice, ordinal, parameter, randint, uniform

EACH_SPACE = pytest.mark.parametrize("name", SPACES)
SEEDS = st.integers(0, 2**32)


@EACH_SPACE
@given(seed=SEEDS)
def test_decode_inverts_encode(name: str, seed: int) -> None:
    space = SPACES[name]
    config = space.sample(KeyedRandom(str(seed)))
    encoder = Encoder(space)
    row = encoder.encode(config)
    again = encoder.decode(row)
    for key, value in config.items():
        assert again[key] == value or math.isclose(again[key], value, rel_tol=1e-12)  # type: ignore[arg-type]
    assert again.keys() == config.keys()
    assert encoder.keys(row[None]) == encoder.keys(encoder.encode(again)[None])


@EACH_SPACE
@given(seed=SEEDS)
def test_snap_equals_from_units_of_the_space(name: str, seed: int) -> None:
    space = SPACES[name]
    encoder = Encoder(space)
    points = np.random.default_rng(seed).random((20, encoder.num_dims))
    rows = encoder.snap(points)
    one_by_one = encoder.encode_all([space.from_units(point) for point in points.tolist()])
    np.testing.assert_allclose(rows, one_by_one, rtol=0, atol=1e-12)
    real = [domain.num_values is None for domain in encoder.domains]
    assert (np.abs(encoder.value_indices(rows) - encoder.value_indices(one_by_one)) <= real).all()
    np.testing.assert_array_equal(encoder.snap(rows), encoder.snap(encoder.snap(rows)))


@EACH_SPACE
def test_different_configurations_have_different_keys(name: str) -> None:
    space = SPACES[name]
    encoder = Encoder(space)
    configs = [space.sample(KeyedRandom(str(seed))) for seed in range(200)]
    keys = encoder.keys(encoder.encode_all(configs))
    assert len(set(keys)) == len({repr(config) for config in configs})


@EACH_SPACE
def test_sample_returns_n_configurations(name: str) -> None:
    encoder = Encoder(SPACES[name])
    for prior in (False, True):
        rows = encoder.sample(30, np.random.default_rng(0), use_priors=prior)
        assert rows.shape == (30, encoder.num_dims)
        for row in rows:
            SPACES[name].check(encoder.decode(row))


def test_missing_hyperparameter_is_nan_and_has_neutral_features() -> None:
    encoder = Encoder(
        Space(
            {
                "kind": choice(["a", "b"]),
                "x": parameter(uniform(0, 1), when={"kind": "a"}),
                "how": parameter(choice(["p", "q", "r"]), when={"kind": "b"}),
            }
        )
    )
    rows = encoder.encode_all([{"kind": "a", "x": 0.25}, {"kind": "b", "how": "r"}])
    np.testing.assert_array_equal(rows, [[0.25, 0.25, np.nan], [0.75, np.nan, 5 / 6]])
    np.testing.assert_array_equal(encoder.features(rows), [[1, 0, 0.25, 0, 0, 0, 1, 0], [0, 1, 0.5, 0, 0, 1, 0, 1]])


def test_snap_applies_nested_conditions() -> None:
    space = SPACES["conditions"]
    rows = Encoder(space).snap(np.random.default_rng(0).random((500, len(space.domains))))
    column = {name: rows[:, place] for place, name in enumerate(space.domains)}
    assert (np.isnan(column["momentum_kind"]) == (column["optimizer"] > 0.5)).all()
    assert (np.isnan(column["nesterov"]) == ~(column["momentum_kind"] > 1 / 3)).all()
    assert (np.isnan(column["beta"]) == (column["optimizer"] < 0.5)).all()


@pytest.mark.parametrize("name", ["few values", "few values and a condition", "one value", "constants only"])
def test_untried_row_returns_every_configuration_once_and_then_none(name: str) -> None:
    space = SPACES[name]
    encoder = Encoder(space)
    used: set[bytes] = set()
    for number in range(space.num_configurations or 0):
        row = encoder.untried_row(used, np.random.default_rng(number))
        assert row is not None
        assert encoder.keys(row[None])[0] not in used
        used.update(encoder.keys(row[None]))
    assert encoder.untried_row(used, np.random.default_rng(0)) is None


def test_untried_row_returns_the_last_configuration_of_an_uneven_space() -> None:
    small = Encoder(Space({"x": ordinal([0, 1, 10**9]), "n": randint(1, 30)}))
    rows = small.encode_all(list(small.space.grid(30)))
    keys = small.keys(rows)
    assert len(rows) == 90
    for row, key in zip(rows, keys, strict=True):
        left = small.untried_row(set(keys) - {key}, np.random.default_rng(0))
        np.testing.assert_array_equal(left, row)


def test_untried_row_searches_a_large_finite_space() -> None:
    space = Space({"x": ordinal([0, 1, 10**15]), "a": randint(0, 299), "b": randint(0, 299)})
    encoder = Encoder(space)

    class AllButZero:
        """Contains all keys but that of x = 0, which one draw in 10**15 has."""

        def __contains__(self, key: object) -> bool:
            assert isinstance(key, bytes)
            return int(np.frombuffer(key, np.int64)[0]) != 0

    row = encoder.untried_row(AllButZero(), np.random.default_rng(0))
    assert row is not None
    assert encoder.decode(row)["x"] == 0


def test_half_of_the_candidates_are_near_the_priors() -> None:
    encoder = Encoder(Space({"x": parameter(uniform(0, 1), prior=0.9, confidence="high"), "y": uniform(0, 1)}))
    near = np.abs(encoder.candidates(1000, np.random.default_rng(0))[:, 0] - 0.9) < 0.1
    assert np.mean(near[:500]) < 0.3 < 0.6 < np.mean(near[500:])
    plain = Encoder(Space({"x": uniform(0, 1)}))
    assert np.array_equal(plain.candidates(9, np.random.default_rng(1)), plain.sample(9, np.random.default_rng(1)))
