"""Random numbers from text keys, identical in every version of Python and on every machine.

    KeyedRandom("7/suggest/17").random()      seed 7, suggestion 17

Each key has a separate stream of 64-bit words, which are the hashes BLAKE2b(block number + key). So the numbers for
suggestion 17 do not depend on how many numbers were drawn for other suggestions. The methods are a subset of those of
`random.Random`, which is not used because its algorithms change between versions of Python, and because initializing
`random.Random("text")` is slow.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol, TypeVar, final

T = TypeVar("T")

_unpack_words = struct.Struct("<8Q").unpack
_PERSON = b"fanwise chance 1"  # personalization of BLAKE2b; must change if the algorithm changes
_FLOAT = 2.0**-53


class RandomSource(Protocol):
    """The method of `KeyedRandom` and `random.Random` that spaces need."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""


@final
class KeyedRandom:
    """A random number generator with a text as its seed. Use a different key for each decision.

    A deep or pickled copy continues with the same numbers as the original.

    >>> rng = KeyedRandom("0/suggest/17")
    >>> rng.random() == KeyedRandom("0/suggest/17").random()
    True
    >>> rng.choice("abc") in "abc"
    True
    """

    __slots__ = ("_block", "_key", "_words")

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._block = 0
        self._words: list[int] = []  # unused words of the current block, in reverse order

    def _next_word(self) -> int:
        if not self._words:
            data = self._block.to_bytes(8, "little") + self._key
            self._words.extend(_unpack_words(hashlib.blake2b(data, person=_PERSON).digest())[::-1])
            self._block += 1
        return self._words.pop()

    def random(self) -> float:
        """Return the next number in [0, 1), a multiple of 2**-53."""
        return (self._next_word() >> 11) * _FLOAT

    def getrandbits(self, k: int) -> int:
        """Return an integer of k random bits. Raises ValueError for negative k."""
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k!r}")
        bits = 0
        for _ in range(-(-k // 64)):
            bits = bits << 64 | self._next_word()
        return bits >> (-k % 64)

    def randrange(self, stop: int) -> int:
        """Return an integer in [0, stop). Raises ValueError for stop < 1."""
        if stop < 1:
            raise ValueError(f"stop must be at least 1, got {stop!r}")
        bits = stop.bit_length()
        number = self.getrandbits(bits)
        while number >= stop:
            number = self.getrandbits(bits)
        return number

    def choice(self, values: Sequence[T]) -> T:
        """Return a random element. Raises IndexError for an empty sequence."""
        if not values:
            raise IndexError("cannot choose from an empty sequence")
        return values[self.randrange(len(values))]
