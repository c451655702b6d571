"""Chance: random numbers from a text, the same in every version of Python and on every machine. Quiet.

    Chance("7/suggest/17").random()      7: the seed; suggest/17: the decision that the numbers are for

Word i of a key is a part of BLAKE2b(key, block i // 8), so the 17th decision draws the same numbers whatever the
first 16 drew, and no two keys share a sequence. The methods are those of `random.Random` that a search needs, with
the same meanings; their algorithms are written here, because Python changes its own from version to version.
To make one and draw eight numbers costs one hash; `random.Random("text")` fills 624 words of state first.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol, TypeVar, final

T = TypeVar("T")

_WORDS = struct.Struct("<8Q").unpack
_PERSON = b"fanwise chance 1"  # A change of how numbers are drawn must change this.
_FLOAT = 2.0**-53


class Draws(Protocol):
    """What spaces ask of a generator: `Chance` and `random.Random` both have it."""

    def random(self) -> float:
        """The next number in [0, 1)."""


@final
class Chance:
    """A generator of random numbers; its key is a text. A copy goes on where the original stands.

    Args:
        key: any text. Give every decision a key of its own.

    >>> chance = Chance("0/suggest/17")
    >>> chance.random() == Chance("0/suggest/17").random()
    True
    >>> chance.choice("abc") in "abc"
    True
    """

    __slots__ = ("_block", "_key", "_words")

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._block = 0
        self._words: list[int] = []  # of the current block, the next one last

    def _word(self) -> int:
        """The next 64 random bits."""
        if not self._words:
            data = self._block.to_bytes(8, "little") + self._key
            self._words.extend(_WORDS(hashlib.blake2b(data, person=_PERSON).digest())[::-1])
            self._block += 1
        return self._words.pop()

    def random(self) -> float:
        """The next number in [0, 1), a multiple of 2**-53."""
        return (self._word() >> 11) * _FLOAT

    def getrandbits(self, k: int) -> int:
        """An integer of k random bits.

        Raises:
            ValueError: k is negative.
        """
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k!r}")
        bits = 0
        for _ in range(-(-k // 64)):
            bits = bits << 64 | self._word()
        return bits >> (-k % 64)

    def randrange(self, start: int, stop: int | None = None) -> int:
        """An integer from start up to stop, without stop; from 0 up to start, if stop is left out.

        Raises:
            ValueError: there is none.
        """
        lower, size = (0, start) if stop is None else (start, stop - start)
        if size < 1:
            raise ValueError(f"there are no integers from {lower!r} up to {lower + size!r}")
        bits = size.bit_length()
        number = self.getrandbits(bits)
        while number >= size:  # drawn again, so that all are equally likely
            number = self.getrandbits(bits)
        return lower + number

    def choice(self, values: Sequence[T]) -> T:
        """One of the values.

        Raises:
            IndexError: there is none.
        """
        if not values:
            raise IndexError("there is nothing to choose from")
        return values[self.randrange(len(values))]
