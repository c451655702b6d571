"""What every domain of a search space promises, as checks that any domain can run. Loads no pytest.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_domain_keeps_the_contract(check: Check) -> None:
        check(my_domain())

Each check raises `AssertionError`, or what the domain raised, when the promise is broken. The numbers in [0, 1) that
are tried are the edges, powers of two, and a few hundred at random with a fixed key.
"""

import json
import math
from collections.abc import Callable, Sequence

from fanwise.tune.rng import KeyedRandom
from fanwise.tune.space.domains import Domain, domain_from_json, domain_to_json, grid_values, is_finite

Check = Callable[[Domain], None]

_NUM_UNITS = 300
_MOST_COUNTED = 2000
_NEAREST_TO_ONE = math.nextafter(1.0, 0.0)


def _units() -> list[float]:
    chance = KeyedRandom("domain contract")
    edges = [0.0, 5e-324, 2.0**-64, 2.0**-53, 0.25, 0.5, 0.75, 1.0 - 2.0**-52, _NEAREST_TO_ONE]
    return sorted(edges + [chance.random() for _ in range(_NUM_UNITS)])


def every_number_below_one_becomes_a_value(domain: Domain) -> None:
    for u in _units():
        assert domain.contains(domain.from_unit(u)), f"from_unit({u!r}) = {domain.from_unit(u)!r} is not in {domain!r}"


def values_are_plain_and_json_keeps_them(domain: Domain) -> None:
    for u in _units():
        value = domain.from_unit(u)
        assert type(value) in (int, float, str, bool, type(None)), f"{value!r} is of type {type(value)}"
        again = json.loads(json.dumps(value))
        assert again == value and type(again) is type(value), f"JSON makes {again!r} of {value!r}"
        assert domain.normalize(value) == value and type(domain.normalize(value)) is type(value)


def the_same_number_gives_the_same_value(domain: Domain) -> None:
    for u in _units():
        assert repr(domain.from_unit(u)) == repr(domain.from_unit(u)), f"from_unit({u!r}) changes"


def a_larger_number_never_gives_an_earlier_value(domain: Domain) -> None:
    if not domain.ordered:
        return
    places = [_place(domain, domain.from_unit(u)) for u in _units()]
    assert places == sorted(places), f"from_unit falls somewhere in {domain!r}"


def _place(domain: Domain, value: object) -> float:
    return domain.index_of(value) if is_finite(domain) else float(value)  # type: ignore[arg-type]  # a real number


def the_way_back_leads_to_the_same_value(domain: Domain) -> None:
    for u in _units():
        value = domain.from_unit(u)
        back = domain.to_unit(value)
        assert 0.0 <= back < 1.0, f"to_unit({value!r}) = {back!r} is not in [0, 1)"
        again = domain.from_unit(back)
        if is_finite(domain):
            assert again == value and type(again) is type(value), f"{value!r} comes back as {again!r}"
        else:
            assert abs(domain.to_unit(again) - back) <= 1e-9, f"{value!r} comes back as {again!r}"
            assert abs(back - u) <= 1e-3 or value == domain.from_unit(back), f"{u!r} comes back as {back!r}"


def values_keep_their_order_on_the_way_back(domain: Domain) -> None:
    if domain.ordered:
        backs = [domain.to_unit(domain.from_unit(u)) for u in _units()]
        assert backs == sorted(backs), f"to_unit falls somewhere in {domain!r}"


def numbers_outside_are_refused(domain: Domain) -> None:
    for u in (-0.1, -5e-324, 1.0, 1.5, math.nan, math.inf):
        message = _refused(lambda u=u: domain.from_unit(u))  # type: ignore[misc]  # bound at once
        assert "must lie in [0, 1)" in message and repr(u) in message, message


def foreign_values_are_refused(domain: Domain) -> None:
    for value in (object(), [1], {"a": 1}, math.nan, math.inf, "a value of no domain", (1, 2)):
        assert not domain.contains(value), f"{value!r} is not in {domain!r}"
        message = _refused(lambda value=value: domain.to_unit(value))  # type: ignore[misc]  # bound at once
        assert repr(value) in message and repr(domain) in message, message


def it_survives_its_json_form(domain: Domain) -> None:
    again = domain_from_json(json.loads(json.dumps(domain_to_json(domain))))
    assert again == domain and repr(again) == repr(domain), f"{domain!r} comes back as {again!r}"
    assert [again.from_unit(u) for u in _units()] == [domain.from_unit(u) for u in _units()]


def its_values_can_be_counted_if_it_says_so(domain: Domain) -> None:
    if not is_finite(domain) or domain.num_values > _MOST_COUNTED:
        return
    values = [domain.value_at(index) for index in range(domain.num_values)]
    assert [domain.index_of(value) for value in values] == list(range(domain.num_values))
    assert [repr(domain.from_unit(domain.to_unit(value))) for value in values] == list(map(repr, values))
    assert domain.from_unit(0.0) == values[0] and domain.from_unit(_NEAREST_TO_ONE) == values[-1]


def a_grid_spreads_different_values_over_the_domain(domain: Domain) -> None:
    for num_points in (1, 2, 3, 7, 20):
        points = grid_values(domain, num_points)
        assert all(map(domain.contains, points))
        places = [_place(domain, point) for point in points]
        assert len(set(places)) == len(places), f"a grid of {num_points} has a value twice: {points!r}"
        if domain.ordered:
            assert places == sorted(places) and len(points) <= num_points
        if is_finite(domain) and (domain.num_values <= num_points or not domain.ordered):
            assert places == list(range(domain.num_values)), f"{points!r} are not all values of {domain!r}"
        elif num_points > 1:
            assert len(points) >= 2 and points[0] == domain.from_unit(0.0)
            assert domain.to_unit(points[-1]) >= domain.to_unit(domain.from_unit(_NEAREST_TO_ONE))


def _refused(work: Callable[[], object]) -> str:
    try:
        value = work()
    except ValueError as error:
        return str(error)
    raise AssertionError(f"ValueError was not raised; there was an answer: {value!r}")


CHECKS: Sequence[Check] = (
    every_number_below_one_becomes_a_value,
    values_are_plain_and_json_keeps_them,
    the_same_number_gives_the_same_value,
    a_larger_number_never_gives_an_earlier_value,
    the_way_back_leads_to_the_same_value,
    values_keep_their_order_on_the_way_back,
    numbers_outside_are_refused,
    foreign_values_are_refused,
    it_survives_its_json_form,
    its_values_can_be_counted_if_it_says_so,
    a_grid_spreads_different_values_over_the_domain,
)
