"""Cutting is exact, and the tree over the shards is the same whoever executes which of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.parallel.step.tree import Node, TreeSum, assign, cut, tree_reduce

# A value is the text of its own sum, so that any other order of additions shows.
MANY = 40


def leaf(index: int) -> Node[str]:
    return Node(index, index + 1, str(index))


def add(left: str, right: str) -> str:
    return f"({left}+{right})"


def recursive(start: int, stop: int) -> str:
    """The tree as a definition: the left child is the largest power of two that leaves something for the right one."""
    if stop - start == 1:
        return str(start)
    size = 1
    while size * 2 < stop - start:
        size *= 2
    return add(recursive(start, start + size), recursive(start + size, stop))


@given(count=st.integers(0, 1000), parts=st.integers(1, 50))
def test_every_thing_is_in_one_part_and_parts_differ_by_one_at_most(count: int, parts: int) -> None:
    ranges = cut(count, parts)
    assert [thing for each in ranges for thing in each] == list(range(count))
    assert len(ranges) == parts
    assert [len(each) for each in ranges] == sorted((len(each) for each in ranges), reverse=True)
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize(("count", "parts"), [(-1, 2), (3, 0), (3, -1)])
def test_nothing_is_cut_into_no_parts(count: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"got {count} and {parts}"):
        cut(count, parts)


def test_devices_beyond_the_shards_have_none() -> None:
    assert [len(each) for each in assign(2, 4)] == [1, 1, 0, 0]


@given(shards=st.integers(1, MANY))
def test_one_device_adds_along_the_tree(shards: int) -> None:
    assert tree_reduce(map(leaf, range(shards)), shards, add) == recursive(0, shards)


@given(shards=st.integers(1, MANY), data=st.data())
def test_any_cut_among_devices_makes_the_same_additions(shards: int, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, shards), max_size=8).map(sorted))
    nodes: list[Node[str]] = []
    for start, stop in zip([0, *cuts], [*cuts, shards], strict=True):
        device = TreeSum(shards, add)
        for index in range(start, stop):
            device.put(leaf(index))
        assert len(device.nodes) <= 2 * shards.bit_length()
        nodes += device.nodes
    assert tree_reduce(nodes, shards, add) == recursive(0, shards)


@given(shards=st.integers(1, MANY), data=st.data())
def test_a_shard_without_samples_takes_no_part(shards: int, data: st.DataObject) -> None:
    full = data.draw(st.integers(1, shards))
    nodes: list[Node[str]] = [leaf(index) if index < full else Node(index, index + 1, None) for index in range(shards)]
    found = tree_reduce(nodes, shards, add)
    assert found == tree_reduce(nodes, shards, add)
    assert sorted(found.replace("(", "").replace(")", "").split("+")) == sorted(map(str, range(full)))
    # Leaves that are missing at the end leave the tree of the others as it is.
    assert found == recursive(0, full)


def test_a_missing_shard_is_noticed() -> None:
    with pytest.raises(AssertionError, match="a shard is missing"):
        tree_reduce([leaf(0), leaf(1), leaf(2)], 4, add)
    with pytest.raises(AssertionError, match="in the order of the shards"):
        tree_reduce([leaf(0), leaf(2)], 4, add)
