"""Priors: draws near the centre, all values possible, every domain, and refusals."""

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.space import Space, choice, loguniform, ordinal, parameter, randint, space_priors, uniform
from fanwise.tune.space.domains import Domain
from fanwise.tune.space.parameters import make_prior

UNITS = [(piece + 0.5) / 4000 for piece in range(4000)]
ORDERED: list[Domain] = [uniform(-1, 1), loguniform(1e-5, 1), randint(1, 50), ordinal(["s", "m", "l"])]


@pytest.mark.parametrize("domain", ORDERED, ids=repr)
@pytest.mark.parametrize("confidence", ["low", "medium", "high", 0.99])
@pytest.mark.parametrize("center", [0.0, 0.3, 0.999])
def test_draws_follow_the_cut_off_bell_around_the_centre(domain: Domain, confidence: str, center: float) -> None:
    prior = make_prior(domain, domain.from_unit(center), confidence)
    middle, deviation = domain.to_unit(prior.center), 1 - prior.confidence
    drawn = sorted(domain.to_unit(prior.value_at(domain, u)) for u in UNITS)

    def below(x: float) -> float:
        return 0.5 * math.erf((x - middle) / deviation / math.sqrt(2))

    for x in (0.1, 0.25, 0.5, 0.75, 0.9):
        if domain.num_values is None:
            expected = (below(x) - below(0.0)) / (below(1.0) - below(0.0))
            assert abs(sum(place < x for place in drawn) / len(drawn) - expected) < 0.01
    counts = Counter(drawn)
    if domain.num_values is not None:
        assert counts[middle] >= 0.9 * max(counts.values()), "the centre is drawn most often"
        assert len(counts) == 1 or min(counts.values()) < counts[middle]


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True), st.floats(0.01, 0.99), st.integers(0, 3))
def test_a_larger_number_never_gives_an_earlier_value(u: float, v: float, confidence: float, which: int) -> None:
    domain = ORDERED[which]
    prior = make_prior(domain, domain.from_unit(0.4), confidence)
    first, second = prior.value_at(domain, min(u, v)), prior.value_at(domain, max(u, v))
    assert domain.to_unit(first) <= domain.to_unit(second)


def test_the_centre_of_a_choice_is_drawn_as_often_as_it_is_trusted() -> None:
    domain = choice(["a", "b", "c", "d"])
    for center in domain.categories:
        prior = make_prior(domain, center, 0.7)
        counts = Counter(prior.value_at(domain, u) for u in UNITS)
        assert counts.pop(center) == pytest.approx(2800, abs=2)
        assert all(count == pytest.approx(400, abs=2) for count in counts.values()) and len(counts) == 3


def test_a_choice_of_few_is_never_drawn_less_than_without_a_prior() -> None:
    domain = choice(["a", "b"])
    counts = Counter(make_prior(domain, "b", 0.1).value_at(domain, u) for u in UNITS)
    assert counts == {"a": 2000, "b": 2000}
    assert make_prior(choice(["a"]), "a", 0.1).value_at(choice(["a"]), 0.999) == "a"


def test_sample_ignores_the_prior_and_its_draws_are_near_the_center() -> None:
    space = Space({"x": parameter(uniform(0, 1), prior=0.9, confidence="high")})
    assert space.sample(Random(3)) == {"x": Random(3).random()}
    prior = space_priors(space)["x"]
    drawn = [prior.value_at(space.domains["x"], Random(seed).random()) for seed in range(200)]
    assert sum(0.7 < x for x in drawn if isinstance(x, float)) > 180
    assert prior.center == 0.9


def test_these_draws_are_the_same_on_every_machine() -> None:
    prior = make_prior(loguniform(1e-5, 1), 1e-3, "medium")
    assert [float(str(prior.value_at(loguniform(1e-5, 1), u))).hex() for u in (0.1, 0.5, 0.9)] == BITS


BITS = ["0x1.a0e9e376ce43bp-15", "0x1.362966dcad67ep-10", "0x1.3da28ffa44788p-5"]


@pytest.mark.parametrize(
    ("center", "confidence", "error", "text"),
    [
        (2, "high", ValueError, r"prior 2 is not in uniform\(0.0, 1.0\)"),
        (0.5, "hihg", ValueError, "'hihg' is not a confidence; did you mean 'high'?"),
        (0.5, 1.0, ValueError, "confidence must be above 0 and below 1, got 1.0"),
        (0.5, math.nan, ValueError, "confidence must be above 0 and below 1, got nan"),
        (0.5, None, TypeError, "confidence must be a number or a str, got None"),
    ],
)
def test_wrong_priors_are_refused_at_once(center: object, confidence: float, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Space({"x": parameter(uniform(0, 1), prior=center, confidence=confidence)})


def test_a_constant_has_no_prior() -> None:
    with pytest.raises(ValueError, match="the constant 3 cannot have a prior"):
        parameter(3, prior=3)
