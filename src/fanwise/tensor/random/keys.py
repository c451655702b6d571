"""Keys of random numbers.

    Key(0) --fold_in("dropout")--> key --fold_in(step)--> key --split(2)--> key, key

New keys are BLAKE2b hashes of the parent's bytes and the data. Different paths to a key never meet by construction
(integers, text and bytes are marked), and by chance with probability 2**-128 a pair.
"""

import hashlib
import operator
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn, SupportsIndex

_SIZE_BYTES = 16
_PERSON = b"fanwise key 1"  # changes if the derivation of keys changes

_Words = tuple[int, int]


class Key:
    """A source of random numbers that never changes: the same key draws the same numbers.

    Keys can be compared, hashed, pickled and sent. A compiled function is compiled again for each key.

    Args:
        seed: any integer, also negative or large.

    Raises:
        TypeError: the seed is not an integer.

    >>> step_keys = [Key(0).fold_in("dropout").fold_in(step) for step in range(3)]
    >>> len(set(step_keys))
    3
    """

    __slots__ = ("words",)

    words: _Words
    """The key itself, as two integers of 64 bits."""

    def __init__(self, seed: SupportsIndex) -> None:
        object.__setattr__(self, "words", _hash(b"", b"seed", _integer_bytes(seed, "a seed must be an integer")))

    def fold_in(self, data: "SupportsIndex | str | bytes") -> "Key":
        """Return the key of `data` under this one. 3, "3" and b"3" give three different keys.

        Args:
            data: an integer, text or bytes.

        Raises:
            TypeError: anything else, and an integer that JAX or TensorFlow traces.
        """
        if isinstance(data, str):
            return self._derived(b"text", data.encode("utf-8", "surrogatepass"))
        if isinstance(data, bytes):
            return self._derived(b"bytes", data)
        return self._derived(b"int", _integer_bytes(data, "data folded into a key must be an integer, str or bytes"))

    def split(self, n: int = 2) -> "tuple[Key, ...]":
        """Return `n` keys that are independent of this one. A larger `n` gives the same keys first.

        Raises:
            ValueError: `n` is negative.

        >>> weights, bias = Key(0).split()
        >>> weights == bias
        False
        """
        if n < 0:
            raise ValueError(f"a key is split into at least 0 keys, got n={n!r}")
        return tuple([self._derived(b"split", number.to_bytes(8, "little")) for number in range(n)])

    def _derived(self, kind: bytes, data: bytes) -> "Key":
        low, high = self.words
        return _key(_hash((low | high << 64).to_bytes(_SIZE_BYTES, "little"), kind, data))

    def __eq__(self, other: object) -> bool:
        return self.words == other.words if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.words)

    def __reduce__(self) -> tuple[Any, tuple[_Words]]:
        return _key, (self.words,)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"a key never changes; cannot set {name}")

    def __repr__(self) -> str:
        return f"<Key {self.words[0]:016x} {self.words[1]:016x}>"


def _key(words: _Words) -> Key:
    key = object.__new__(Key)
    object.__setattr__(key, "words", words)
    return key


def _hash(parent: bytes, kind: bytes, data: bytes) -> _Words:
    # No kind contains a zero byte, so kind and data cannot run into each other.
    digest = hashlib.blake2b(kind + b"\0" + data, digest_size=_SIZE_BYTES, key=parent, person=_PERSON).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _integer_bytes(number: Any, expected: str) -> bytes:
    try:
        number = operator.index(number)
    except (TypeError, RuntimeError) as error:  # RuntimeError: torch, inside vmap
        hint = (
            ""
            if isinstance(error, TypeError) and not hasattr(number, "dtype")
            else ("; in compiled or mapped functions pass the random numbers as an argument")
        )
        raise TypeError(f"{expected}, got {type(number).__name__}{hint}") from error
    size_bytes: int = number.bit_length() // 8 + 1
    data: bytes = number.to_bytes(size_bytes, "little", signed=True)
    return data
