"""Keys of random numbers.

    Key(0) --fold_in("dropout")--> key --fold_in(step)--> key --split(2)--> key, key

New keys are BLAKE2b hashes of the parent's bytes and the data. Different paths to a key never meet by construction
(integers, text and bytes are marked), and by chance with probability 2**-128 a pair. In compiled code a step or a key
may be an array without a value yet: such a traced key holds the arrays, and a function from their values to the key,
which the host calls whenever the compiled code runs.
"""

import hashlib
import operator
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn, SupportsIndex

from ..dtype_names import INTEGER, dtype_rank

_SIZE_BYTES = 16
_PERSON = b"fanwise key 1"  # changes if the derivation of keys changes

_Words = tuple[int, int]
# The classes of JAX and TensorFlow for an array without a value, while they trace a function.
_TRACERS = {("jax", "Tracer"), ("tensorflow", "SymbolicTensor")}


class Key:
    """A source of random numbers that never changes: the same key draws the same numbers.

    Keys can be compared, hashed, pickled and sent. A compiled function takes keys as arguments and draws new numbers
    from each without another compilation; `fold_in` takes a traced step. A key that it closes over is a constant.

    Args:
        seed: any integer, also negative or large.

    Raises:
        TypeError: the seed is not an integer.

    >>> step_keys = [Key(0).fold_in("dropout").fold_in(step) for step in range(3)]
    >>> len(set(step_keys))
    3
    """

    __slots__ = ("_arrays", "_compute", "_words")

    _words: _Words  # (0, 0) of a traced key
    # Traced arrays of a traced key, and the function from their values to the key.
    _arrays: tuple[Any, ...]
    _compute: "Callable[..., Key] | None"

    def __init__(self, seed: SupportsIndex) -> None:
        if is_tracer(seed):
            _fill(self, (0, 0), (_check_integer_array(seed, "a seed"),), Key)
        else:
            _fill(self, _hash(b"", b"seed", _integer_bytes(seed, "a seed must be an integer")))

    @property
    def words(self) -> _Words:
        """The key itself, as two integers of 64 bits.

        Raises:
            TypeError: inside compiled code, where they are not known.
        """
        if self._arrays:
            raise TypeError(
                "this key belongs to a function that is being compiled, and its words are not known there. "
                "Draw numbers from it; compare, print or store it outside of the function."
            )
        return self._words

    def fold_in(self, data: "SupportsIndex | str | bytes") -> "Key":
        """Return the key of `data` under this one. 3, "3" and b"3" give three different keys.

        Args:
            data: an integer, text or bytes; or a traced array of one integer, which gives the key of its value.

        Raises:
            TypeError: anything else.
        """
        if type(data) is not int and is_tracer(data):
            step = _check_integer_array(data, "data folded into a key")
            return _traced(
                (*self._arrays, step), lambda *values: key_with_values(self, values[:-1]).fold_in(values[-1])
            )
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
        if self._arrays:
            return _traced(self._arrays, lambda *values: key_with_values(self, values)._derived(kind, data))
        low, high = self._words
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
        return "<Key of compiled code>" if self._arrays else f"<Key {self._words[0]:016x} {self._words[1]:016x}>"


def is_tracer(x: object) -> bool:
    """Return whether x is an array without a value, while JAX or TensorFlow traces a function."""
    return any((base.__module__.partition(".")[0], base.__name__) in _TRACERS for base in type(x).__mro__)


def traced_arrays(key: Key) -> tuple[Any, ...]:
    """Return the arrays of a function that is being compiled on which the key depends."""
    return key._arrays


def key_with_values(key: Key, values: Sequence[Any]) -> Key:
    """Return the key for these values of its traced arrays."""
    return key._compute(*values) if key._compute else key


def key_of_words(words: Any) -> Key:
    """Return the key of an array made by `words_array`, which may be traced."""
    if is_tracer(words):
        return _traced((words,), key_of_words)
    a, b, c, d = (int(word) for word in words)
    return _key((a | b << 32, c | d << 32))


def _traced(arrays: tuple[Any, ...], compute: Callable[..., Key]) -> Key:
    return _fill(object.__new__(Key), (0, 0), arrays, compute)


def _key(words: _Words) -> Key:
    return _fill(object.__new__(Key), words)


def _fill(key: Key, words: _Words, arrays: tuple[Any, ...] = (), compute: Callable[..., Key] | None = None) -> Key:
    for name, value in (("_words", words), ("_arrays", arrays), ("_compute", compute)):
        object.__setattr__(key, name, value)
    return key


def _hash(parent: bytes, kind: bytes, data: bytes) -> _Words:
    # No kind contains a zero byte, so kind and data cannot run into each other.
    digest = hashlib.blake2b(kind + b"\0" + data, digest_size=_SIZE_BYTES, key=parent, person=_PERSON).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _check_integer_array(x: Any, name: str) -> Any:
    if dtype_rank(x.dtype) != INTEGER or len(x.shape):
        raise TypeError(f"{name} must be one integer, got a traced array of {x.dtype} with shape {x.shape}")
    return x


def _integer_bytes(number: Any, expected: str) -> bytes:
    try:
        number = operator.index(number)
    except (TypeError, RuntimeError) as error:  # RuntimeError: torch, inside vmap
        hint = "; inside torch's vmap draw for all elements outside" if isinstance(error, RuntimeError) else ""
        raise TypeError(f"{expected}, got {type(number).__name__}{hint}") from error
    size_bytes: int = number.bit_length() // 8 + 1
    data: bytes = number.to_bytes(size_bytes, "little", signed=True)
    return data
