"""What differs first between processes is found, and said with values and places."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.parallel.checks.agreement import first_difference

SMALL = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2))


def test_the_first_fact_that_differs_is_named_with_who_has_what() -> None:
    different = first_difference([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "c": 4}, {"a": 1, "b": 2, "c": 4}])
    assert different is not None
    assert (different.name, different.place) == ("b", 1)
    assert different.said() == "2 in processes 0 and 2, 5 in process 1"


def test_what_one_process_has_not_is_a_difference() -> None:
    different = first_difference([{"a": "float32"}, {}, {}, {}])
    assert different is not None
    assert different.place == 0
    assert different.said() == "float32 in process 0, not there in processes 1, 2 and 3"


@given(st.lists(SMALL, min_size=1, max_size=4))
def test_a_difference_is_there_exactly_when_facts_differ(each: list[dict[str, int]]) -> None:
    different = first_difference(each)
    assert (different is None) == all(facts == each[0] for facts in each)
    if different is not None:
        values = [facts.get(different.name) for facts in each]
        assert len(set(values)) > 1
        first_names = list({name: None for facts in each for name in facts})
        before = first_names[: first_names.index(different.name)]
        assert all(len({facts.get(name) for facts in each}) == 1 for name in before)
        own = values.count(values[different.place])
        assert own == min(values.count(value) for value in values)
