"""KeyedRandom: the same numbers everywhere, spread evenly, and the methods of random.Random."""

import copy
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.rng import KeyedRandom


def test_numbers_are_equal_on_every_machine_and_in_every_version() -> None:
    drawn = KeyedRandom("0/suggest/17")
    assert [drawn.random().hex() for _ in range(9)] == NUMBERS
    assert [drawn.randrange(10), drawn.randrange(10) - 5, drawn.getrandbits(70)] == INTEGERS
    assert "".join(drawn.choice("abcdef") for _ in range(10)) == LETTERS


NUMBERS = [
    "0x1.e2d39d1d3189ap-1",
    "0x1.5d3bc92b13b40p-5",
    "0x1.239bbf5b891e8p-2",
    "0x1.998c666b80e98p-1",
    "0x1.6526c15874a38p-1",
    "0x1.ddce430347897p-1",
    "0x1.de8864df82b57p-1",
    "0x1.7ea2076268cd4p-3",
    "0x1.513589fbb20d9p-1",
]
INTEGERS = [0, -1, 25436532615239281192]
LETTERS = "adadbdcdda"


@given(st.text(), st.integers(1, 40))
def test_numbers_depend_only_on_the_key_and_are_below_one(key: str, count: int) -> None:
    first, second = KeyedRandom(key), KeyedRandom(key)
    numbers = [first.random() for _ in range(count)]
    assert numbers == [second.random() for _ in range(count)]
    assert all(0.0 <= number < 1.0 and (number * 2**53).is_integer() for number in numbers)
    assert numbers != [KeyedRandom(key + "'").random() for _ in range(count)]
    assert len(set(numbers)) == count


def test_numbers_are_uniform_over_keys_and_within_a_key() -> None:
    within_one = KeyedRandom("key")
    for drawn in ([within_one.random() for _ in range(8000)], [KeyedRandom(f"key/{n}").random() for n in range(8000)]):
        counts = Counter(int(number * 8) for number in drawn)
        assert all(abs(count - 1000) < 150 for count in counts.values()), counts  # 5 standard deviations


@given(st.text(), st.integers(1, 10**30))
def test_integers_are_in_their_range(key: str, size: int) -> None:
    assert 0 <= KeyedRandom(key).randrange(size) < size


def test_integers_are_equally_likely() -> None:
    drawn = KeyedRandom("dice")
    counts = Counter(drawn.randrange(6) for _ in range(6000))
    assert sorted(counts) == [0, 1, 2, 3, 4, 5]
    assert all(abs(count - 1000) < 150 for count in counts.values()), counts


@given(st.text(), st.integers(0, 20))
def test_copy_continues_with_the_numbers_of_the_original(key: str, drawn: int) -> None:
    original = KeyedRandom(key)
    for _ in range(drawn):
        original.random()
    copies = [copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
    ahead = [original.random() for _ in range(10)]
    for copied_rng in copies:
        assert [copied_rng.random() for _ in range(10)] == ahead


def test_number_of_bits_is_the_requested_one() -> None:
    drawn = KeyedRandom("bits")
    assert drawn.getrandbits(0) == 0
    for k in (1, 7, 64, 65, 200):
        seen = [drawn.getrandbits(k) for _ in range(200)]
        assert all(0 <= value < 2**k for value in seen)
        assert any(value >> (k - 1) for value in seen)


def test_invalid_ranges_are_refused() -> None:
    drawn = KeyedRandom("nothing")
    with pytest.raises(ValueError, match="stop must be at least 1, got 0"):
        drawn.randrange(0)
    with pytest.raises(IndexError, match="cannot choose from an empty sequence"):
        drawn.choice([])
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        drawn.getrandbits(-1)
