"""Who hands what to whom: every part gets everywhere, once, and as seldom as the tables say."""

import math

import pytest

from fanwise.parallel.collectives.hops import exchanges, ring_hops, tree_levels

COUNTS = range(1, 18)


@pytest.mark.parametrize("count", COUNTS)
def test_the_tree_has_log2_levels_and_brings_every_device_to_device_0_once(count: int) -> None:
    levels = tree_levels(count)
    assert len(levels) == math.ceil(math.log2(count))
    assert sorted(source for level in levels for source, _ in level) == list(range(1, count))
    given_away: set[int] = set()
    for level in levels:
        busy = [device for hop in level for device in hop]
        assert len(set(busy)) == len(busy), "a device is twice in one level"
        assert not given_away & set(busy), "what was given away is used again"
        given_away |= {source for source, _ in level}


@pytest.mark.parametrize("count", COUNTS)
def test_in_a_ring_every_device_hands_one_slice_a_step_to_the_next(count: int) -> None:
    hops = list(ring_hops(count, first=0))
    assert len(hops) == count * (count - 1)
    for step in range(count - 1):
        now = hops[step * count : (step + 1) * count]
        assert sorted(source for source, _, _ in now) == list(range(count))
        assert all(target == (source + 1) % count for source, target, _ in now)
        assert sorted(part for _, _, part in now) == list(range(count))


@pytest.mark.parametrize("count", COUNTS)
def test_two_ways_round_the_ring_bring_every_slice_of_all_to_all(count: int) -> None:
    held = [{part: {device} for part in range(count)} for device in range(count)]
    for source, target, part in ring_hops(count, first=0):
        assert not held[target][part] & held[source][part], "something is added twice"
        held[target][part] |= held[source][part]
    for source, target, part in ring_hops(count, first=1):
        held[target][part] = held[source][part]
    assert all(parts == {part: set(range(count)) for part in range(count)} for parts in held)


@pytest.mark.parametrize("count", COUNTS)
def test_every_device_meets_every_other_in_both_directions_once(count: int) -> None:
    hops = list(exchanges(count))
    assert sorted(hops) == [(one, other) for one in range(count) for other in range(count) if one != other]
    pairs_at_once = count // 2
    for start in range(0, len(hops), max(1, pairs_at_once)):
        busy = [device for hop in hops[start : start + pairs_at_once] for device in hop]
        assert len(set(busy)) == len(busy), "copies side by side share a device"
