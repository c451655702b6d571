"""Keys: where every random number of this layer comes from. A quiet file: hashes, no engine, no state.

    Key(0) --fold_in("dropout")--> key --fold_in(step)--> key --split(2)--> key, key
                                                           normal(key, shape): the same numbers, always

A key is 16 bytes and never changes; drawing does not use it up. So one key gives one set of numbers, and who
needs others folds something in: a name, a step, a rank. New keys come from BLAKE2b, a cryptographic hash, over
the parent's bytes and what is folded in. No two ways to a key meet by construction (integers, text and bytes
are marked), by chance with probability 2**-128 a pair.
"""

import hashlib
import operator
from dataclasses import dataclass
from typing import SupportsIndex

_SIZE_BYTES = 16
_PERSON = b"fanwise key 1"  # A change of how keys are made must change this.


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Key:
    """A source of random numbers that never changes: the same key draws the same numbers.

    Can be compared, hashed, pickled and sent. It is no array: inside `jit` it is a constant, and what is drawn
    from it there is drawn once, when the function is traced; draw outside and pass the numbers in.

    Args:
        seed: any integer, also negative or large.

    Raises:
        TypeError: the seed is no integer.

    >>> step_keys = [Key(0).fold_in("dropout").fold_in(step) for step in range(3)]
    >>> len(set(step_keys))
    3
    """

    words: tuple[int, int]

    def __init__(self, seed: SupportsIndex) -> None:
        object.__setattr__(self, "words", _hash(b"", b"seed", _whole_number_bytes(seed, "a seed")))

    def fold_in(self, data: "SupportsIndex | str | bytes") -> "Key":
        """The key that belongs to `data` under this one: 3, "3" and b"3" give three different keys.

        Raises:
            TypeError: `data` is none of these. Inside `jit` a traced number is none either.
        """
        if isinstance(data, str):
            return _key(_hash(self._bytes(), b"text", data.encode("utf-8", "surrogatepass")))
        if isinstance(data, bytes):
            return _key(_hash(self._bytes(), b"bytes", data))
        return _key(_hash(self._bytes(), b"int", _whole_number_bytes(data, "what is folded into a key")))

    def split(self, n: int = 2) -> "tuple[Key, ...]":
        """`n` keys that have nothing in common with this one. A larger `n` gives the same keys first.

        Raises:
            ValueError: `n` is negative.

        >>> weights, bias = Key(0).split()
        >>> weights == bias
        False
        """
        if n < 0:
            raise ValueError(f"a key is split into at least 0 keys, got n={n!r}")
        own = self._bytes()
        return tuple(_key(_hash(own, b"split", number.to_bytes(8, "little"))) for number in range(n))

    def _bytes(self) -> bytes:
        low, high = self.words
        return (low | high << 64).to_bytes(_SIZE_BYTES, "little")

    def __repr__(self) -> str:
        return f"<Key {self.words[0]:016x} {self.words[1]:016x}>"


def _key(words: tuple[int, int]) -> Key:
    key = object.__new__(Key)
    object.__setattr__(key, "words", words)
    return key


def _hash(parent: bytes, kind: bytes, data: bytes) -> tuple[int, int]:
    # The kind ends with a zero byte, which no kind contains, so kind and data cannot run into each other.
    made = hashlib.blake2b(kind + b"\0" + data, digest_size=_SIZE_BYTES, key=parent, person=_PERSON).digest()
    return int.from_bytes(made[:8], "little"), int.from_bytes(made[8:], "little")


def _whole_number_bytes(number: SupportsIndex, what: str) -> bytes:
    try:
        whole = operator.index(number)
    except TypeError as error:
        allowed = "an integer" if what == "a seed" else "an integer, str or bytes"
        raise TypeError(
            f"{what} must be {allowed}, got {type(number).__name__}; "
            f"inside jit numbers are not known: make the key outside"
        ) from error
    return whole.to_bytes(whole.bit_length() // 8 + 1, "little", signed=True)
