"""Fingerprints of tensors, and the comparison of what processes report."""

import math

from hypothesis import given
from hypothesis import strategies as st

from fanwise.parallel.validation.fingerprints import first_difference

SMALL = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2))


def test_first_difference_says_which_processes_have_which_value() -> None:
    facts = [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "c": 4}, {"a": 1, "b": 2, "c": 4}]
    assert first_difference(facts) == ("b", "2 in processes 0 and 2, 5 in process 1")
    missing = "float32 in process 0, missing in processes 1, 2 and 3"
    assert first_difference([{"a": "float32"}, {}, {}, {}]) == ("a", missing)


def test_nan_does_not_differ_from_nan() -> None:
    assert first_difference([{"lr": math.nan}, {"lr": float("nan")}]) is None


@given(st.lists(SMALL, min_size=1, max_size=4))
def test_a_difference_is_returned_exactly_when_facts_differ(facts: list[dict[str, int]]) -> None:
    difference = first_difference(facts)
    assert (difference is None) == all(each == facts[0] for each in facts)
    if difference is not None:
        names = list(dict.fromkeys(name for each in facts for name in each))
        before = names[: names.index(difference[0])]
        assert all(len({each.get(name) for each in facts}) == 1 for name in before)
        assert len({each.get(difference[0]) for each in facts}) > 1
