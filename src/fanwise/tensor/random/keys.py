"""Keys: where every random number of this layer comes from. A quiet file: hashes, no engine, no state.

    Key(0) --fold_in("dropout")--> key --fold_in(step)--> key --split(2)--> key, key
                                                           normal(key, shape): the same numbers, always

A key is 16 bytes and never changes; drawing does not use it up. So one key gives one set of numbers, and who
needs others folds something in: a name, a step, a rank. New keys come from BLAKE2b, a cryptographic hash, over
the parent's bytes and what is folded in. No two ways to a key meet by construction (integers, text and bytes
are marked), by chance with probability 2**-128 a pair.

Inside compiled code a step, or a key that is an argument, is an array without numbers yet. Such a key is the way to it
instead of its bytes: the same derivations, each with its data, which are carried out on the host, with the same
hashes, when the compiled code runs and the arrays have numbers.

    Key(0).fold_in("dropout").fold_in(traced)  =  (words of the first two, ("int", traced))
"""

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn, SupportsIndex

from ..dtype_names import INTEGER, dtype_rank

_SIZE_BYTES = 16
_PERSON = b"fanwise key 1"  # A change of how keys are made must change this.

_Words = tuple[int, int]
_Array = Any  # Any: an array of an engine that is tracing, or the numbers of one
# What is done, with what, and whether that is an array: ("int", 3, False), ("words", four words of 32 bits, True), ...
_Derivation = tuple[str, Any, bool]
_put = object.__setattr__  # a key's own refuses
_BEGINNINGS = frozenset(("known", "words", "seed"))
# What engines put in an array's place while they trace: it has a shape and no numbers.
_STAND_INS = {("jax", "Tracer"), ("tensorflow", "SymbolicTensor")}


class Key:
    """A source of random numbers that never changes: the same key draws the same numbers.

    Can be compared, hashed, pickled and sent. A compiled function (`jit(f)`, `value_and_grad(f, jit=True)`) takes keys
    as arguments, and draws anew from each without being compiled again; `fold_in` takes a step that is traced. The
    bits are those of the function as it is. A key that a compiled function closes over is a constant of it.

    Args:
        seed: any integer, also negative or large.

    Raises:
        TypeError: the seed is no integer.

    >>> step_keys = [Key(0).fold_in("dropout").fold_in(step) for step in range(3)]
    >>> len(set(step_keys))
    3
    """

    __slots__ = ("_known", "_way")

    _known: _Words | None
    _way: tuple[_Derivation, ...]

    def __init__(self, seed: SupportsIndex) -> None:
        if type(seed) is not int and stands_for_array(seed):
            _set(self, None, (("seed", _whole(seed, "a seed"), True),))
        else:
            _set(self, _hash(b"", b"seed", _whole_number_bytes(seed, "a seed")), ())

    @property
    def words(self) -> _Words:
        """The key itself, as two integers of 64 bits.

        Raises:
            TypeError: inside compiled code, where they are not known.
        """
        if traced_arrays(self):
            raise TypeError(
                "this key belongs to a function that is being compiled, and its words are not known there. "
                "Numbers can be drawn from it; compare, print or store it outside of the function."
            )
        assert self._known is not None, "a key depends on nothing and is not known"
        return self._known

    def fold_in(self, data: "SupportsIndex | str | bytes") -> "Key":
        """The key that belongs to `data` under this one: 3, "3" and b"3" give three different keys.

        Args:
            data: a step that is traced, as `jit` hands in an array of one integer, gives the key of its number.

        Raises:
            TypeError: `data` is none of these.
        """
        if type(data) is int and self._known is not None:
            return _key(_derived(self._known, "int", data))
        kind = "text" if isinstance(data, str) else "bytes" if isinstance(data, bytes) else "int"
        if kind == "int" and type(data) is not int and stands_for_array(data):
            return self._on(kind, _whole(data, "what is folded into a key"), is_array=True)
        if self._known is None:
            return self._on(
                kind, data if isinstance(data, (str, bytes)) else _integer(data, "what is folded into a key")
            )
        return _key(_derived(self._known, kind, data))

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
        if self._known is None:
            return tuple(self._on("split", number) for number in range(n))
        return tuple(_key(_derived(self._known, "split", number)) for number in range(n))

    def _on(self, kind: str, data: object, is_array: bool = False) -> "Key":
        way = self._way if self._known is None else (("known", self._known, False),)
        return _key(None, (*way, (kind, data, is_array)))

    def __eq__(self, other: object) -> bool:
        return self.words == other.words if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.words)

    def __reduce__(self) -> tuple[Any, tuple[_Words]]:
        return _key, (self.words,)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"a key never changes; {name} cannot be set")

    def __repr__(self) -> str:
        if traced_arrays(self):
            return "<Key of compiled code>"
        return f"<Key {self.words[0]:016x} {self.words[1]:016x}>"


def stands_for_array(x: object) -> bool:
    """Whether x is what JAX or TensorFlow put in an array's place while they trace: it has a shape and no numbers."""
    return any((base.__module__.partition(".")[0], base.__name__) in _STAND_INS for base in type(x).__mro__)


def traced_arrays(key: Key) -> list[_Array]:
    """The arrays on which the key depends, while one of them is traced; none outside of compiled code."""
    if key._known is not None:
        return []
    arrays = [data for _, data, is_array in key._way if is_array]
    if any(map(stands_for_array, arrays)):
        return arrays
    _set(key, words_with(key, arrays), ())
    return []


def words_with(key: Key, numbers: Sequence[_Array]) -> _Words:
    """The words, with these in place of the arrays of `traced_arrays`."""
    each = iter(numbers)
    words: _Words = (0, 0)
    for kind, data, is_array in key._way:
        words = _derived(words, kind, next(each) if is_array else data)
    return words


def key_of_words(words: _Array) -> Key:
    """A key, of an array of four words of 32 bits, the lowest first; also of one that is traced."""
    return _key(None, (("words", words, True),))


def words_of_32_bits(words: _Words) -> list[int]:
    """What `key_of_words` takes, as integers."""
    return [word >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]


def _set(key: Key, known: _Words | None, way: tuple[_Derivation, ...]) -> None:
    _put(key, "_known", known)
    _put(key, "_way", way)


def _key(known: _Words | None, way: tuple[_Derivation, ...] = ()) -> Key:
    key = object.__new__(Key)
    _put(key, "_known", known)
    _put(key, "_way", way)
    return key


def _derived(words: _Words, kind: str, data: Any) -> _Words:  # Any: as the kind says
    if kind in _BEGINNINGS:
        return _begun(kind, data)
    low, high = words
    parent = (low | high << 64).to_bytes(_SIZE_BYTES, "little")
    if kind == "int":
        return _hash(parent, b"int", _whole_number_bytes(data, "what is folded into a key"))
    if kind == "text":
        return _hash(parent, b"text", data.encode("utf-8", "surrogatepass"))
    if kind == "bytes":
        return _hash(parent, b"bytes", data)
    assert kind == "split", f"no key is derived by {kind!r}"
    return _hash(parent, b"split", data.to_bytes(8, "little"))


def _begun(kind: str, data: Any) -> _Words:  # Any: as the kind says
    if kind == "seed":
        return _hash(b"", b"seed", _whole_number_bytes(data, "a seed"))
    if kind == "words":
        a, b, c, d = (int(word) for word in data)
        return a | b << 32, c | d << 32
    known: _Words = data
    return known


def _hash(parent: bytes, kind: bytes, data: bytes) -> _Words:
    # The kind ends with a zero byte, which no kind contains, so kind and data cannot run into each other.
    made = hashlib.blake2b(kind + b"\0" + data, digest_size=_SIZE_BYTES, key=parent, person=_PERSON).digest()
    return int.from_bytes(made[:8], "little"), int.from_bytes(made[8:], "little")


def _whole(data: _Array, what: str) -> _Array:
    """A stand-in for one integer.

    Raises:
        TypeError: it has axes or another type.
    """
    if dtype_rank(data.dtype) != INTEGER or len(data.shape):
        raise TypeError(f"{what} must be one integer, got a traced array of {data.dtype} with shape {data.shape}")
    return data


def _whole_number_bytes(number: SupportsIndex, what: str) -> bytes:
    whole = number if type(number) is int else _integer(number, what)
    return whole.to_bytes(whole.bit_length() // 8 + 1, "little", signed=True)


def _integer(number: SupportsIndex, what: str) -> int:
    try:
        return operator.index(number)
    except (TypeError, RuntimeError) as error:  # the second is torch's, inside vmap
        allowed = "an integer" if what == "a seed" else "an integer, str or bytes"
        hint = "; its number is not known inside vmap of torch: draw for all elements outside, and map over the numbers"
        hint = hint if isinstance(error, RuntimeError) else ""
        raise TypeError(f"{what} must be {allowed}, got {type(number).__name__}{hint}") from error
