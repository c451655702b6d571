"""Keys, and the words that they become: against the authors' known answers and a model in plain integers."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tensor import Key, normal
from fanwise.tensor.random import exact

MASK = 2**64 - 1
FOLDED = st.one_of(st.integers(), st.text(max_size=8), st.binary(max_size=8))

# philox4x64 with 10 rounds, of kat_vectors of Random123: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    (
        (MASK, MASK, MASK, MASK),
        (MASK, MASK),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The algorithm as the paper has it, in Python's integers."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (second >> 64) ^ b ^ k0, second & MASK, (first >> 64) ^ d ^ k1, first & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return a, b, c, d


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN, ids=["zeros", "ones", "pi"])
def test_the_model_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, int], result: tuple[int, ...]
) -> None:
    assert philox(counter, key) == result


@given(st.tuples(st.integers(0, MASK), st.integers(0, MASK)), st.integers(1, 5), st.integers(0, 3), st.integers(0, 9))
def test_words_are_philox_of_position_attempt_and_purpose(
    key: tuple[int, int], purpose: int, attempt: int, size: int
) -> None:
    expected = [word for block in range(1, 4) for word in philox((block, 0, attempt, purpose), key)]
    assert exact.words(key, purpose, size, attempt).tolist() == expected[:size]


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 70001])
def test_blocks_hold_the_same_words_side_by_side(size: int) -> None:
    actual = np.zeros(size, np.uint64)
    for place, block in exact.blocks((3, 4), 2, size):
        # A draw in between, from the same thread, changes nothing.
        exact.words((9, 9), 1, 3)
        actual[place] = block
    assert np.array_equal(actual, exact.words((3, 4), 2, size))


def test_keys_are_the_same_on_every_machine() -> None:
    key = Key(0)
    assert key.words == (0xF06D9D7E72153335, 0xD1481990EBBF64DF)
    assert Key(-1).words == (0x48E301844FB07595, 0x705742F744C14F31)
    assert Key(2**64).words == (0xA437EFFB86024CAA, 0xAA5C50F9DFCD2C12)
    assert key.fold_in(3).words == (0x8E27FE6673DE1FDA, 0x5BD1BC1F61B2BFCA)
    assert key.fold_in("3").words == (0x6904F0808DE2B2E4, 0x667AC996F8FD3A31)
    assert key.fold_in(b"3").words == (0x775BB57759065D3B, 0x2C6F26ADE7101457)
    assert key.split(3)[2].words == (0x6DC6AF6C73EEE0DB, 0x5296A549EF6364)


@given(st.lists(FOLDED, unique_by=lambda data: (type(data), data), min_size=2, max_size=6))
def test_different_data_gives_different_keys(folded: list[int | str | bytes]) -> None:
    key = Key(0)
    keys = [key.fold_in(data) for data in folded] + list(key.split(4)) + [key]
    assert len(set(keys)) == len(keys)
    assert key.fold_in(folded[0]) == Key(0).fold_in(folded[0])


@given(st.integers(), st.integers(0, 5), st.integers(0, 5))
def test_a_larger_split_begins_with_the_smaller(seed: int, n: int, more: int) -> None:
    assert Key(seed).split(n + more)[:n] == Key(seed).split(n)


@given(st.integers())
def test_a_key_is_pickled_copied_compared_and_hashed(seed: int) -> None:
    key = Key(seed)
    assert pickle.loads(pickle.dumps(key)) == copy.deepcopy(key) == key == Key(seed)
    assert hash(key) == hash(Key(seed))
    assert Key(np.int64(seed % 2**63)) == Key(seed % 2**63)
    assert repr(key) == f"<Key {key.words[0]:016x} {key.words[1]:016x}>"


def test_a_key_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Key(0).words = (0, 0)


def test_seeds_must_be_integers() -> None:
    with pytest.raises(TypeError, match=r"a seed must be an integer, got float"):
        Key(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be an integer, str or bytes, got tuple"):
        Key(0).fold_in((1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at least 0 keys, got n=-1"):
        Key(0).split(-1)
    with pytest.raises(TypeError, match=r"must be a fanwise.tensor.Key, such as Key\(0\), got int"):
        normal(0, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("distance", [2**16, 2**32, 2**63, 2**64])
def test_large_integers_fold_into_keys_of_their_own(distance: int) -> None:
    assert len({Key(0).fold_in(number) for number in (0, 1, distance, 1 + distance, -distance)}) == 5
