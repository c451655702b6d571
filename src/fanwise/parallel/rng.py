"""Random numbers inside a shard: the global streams, begun anew from a key for each shard and put back after.

    with stream(Key(seed).fold_in("step").fold_in(turn).fold_in(shard)):
        loss_fn(model, *samples)          dropout draws here

So what a shard draws depends on the key alone, never on the shards that the same process executed before it; and the
program around a step sees its own stream go on as if nothing had been drawn. Seeding torch as a whole (398 us on this
path) also prepares every accelerator; the CPU's generator takes 3 us, and of accelerators only that of the run's own
device is needed.

numpy's and Python's global streams are begun and put back in the same way, but only by a step whose loss draws from
them: to read and set numpy's state takes 50 us. The others compare the states, byte by byte in memory (1 us), and a
shard that has drawn after all is made again with streams of its own. So are generators that the program has made
itself, where the loss or the model names them.
"""

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from ..tensor.random.keys import Key

T = TypeVar("T")

_numpy_random: Any = np.random  # Any: not all that it has is annotated
_OF_CPU = (torch.default_generator,)


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Those that operators on this device draw from."""
    if device.type != "cuda":
        return _OF_CPU
    torch.cuda.init()  # type: ignore[no-untyped-call]  # before it there are none; torch has not annotated it
    return (torch.default_generator, torch.cuda.default_generators[device.index])


@contextmanager
def stream(key: Key, generators: Sequence[torch.Generator] = _OF_CPU) -> Iterator[None]:
    """These generators, torch's CPU generator by default, begin with `key` in this block, and are as before after it.

    No device is waited for: the state of a GPU's generator is kept on the host.
    """
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(key.words[0])
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


@contextmanager
def sample_streams() -> Iterator[Callable[[Key], None]]:
    """For reading samples one by one: the generators of torch, Python and numpy are as before after the block.

    Samples are read on the host, so an accelerator's generator is left alone.
    """
    before = torch.default_generator.get_state()
    with _host_streams():
        try:
            yield begin
        finally:
            torch.default_generator.set_state(before)


def begin(key: Key) -> None:
    """All three begin with `key`, as for one sample."""
    torch.default_generator.manual_seed(key.words[0])
    _begin_on_host(key)


def _begin_on_host(key: Key) -> None:
    random.seed(key.words[0])
    np.random.seed(key.words[1] & 0xFFFFFFFF)  # its old generator, which augmentations use, takes 32 bits


@contextmanager
def _host_streams() -> Iterator[None]:
    """Python's and numpy's global streams are as before after the block."""
    before, before_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


@contextmanager
def own_streams(key: Key, generators: Sequence[Generator]) -> Iterator[None]:
    """Generators that the program has made itself begin with `key` in this block, and are as before after it."""
    before: list[Any] = []  # Any: states
    for place, generator in enumerate(generators):
        before.append(_state(generator))
        _seed(generator, key.fold_in(place).words[0])
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            _set_state(generator, state)


def _state(generator: Generator) -> Any:  # Any: of its kind
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _seed(generator: Generator, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        kind: Any = type(generator.bit_generator)  # Any: one of numpy's, which all take a seed
        generator.bit_generator.state = kind(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    else:
        generator.seed(seed if isinstance(generator, random.Random) else seed & 0xFFFFFFFF)


def _set_state(generator: Generator, state: Any) -> None:  # Any: as above
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


@contextmanager
def all_streams(key: Key, generators: Sequence[torch.Generator] = _OF_CPU) -> Iterator[None]:
    """As `stream`, with Python's and numpy's."""
    with stream(key, generators), host_streams(key):
        yield


@contextmanager
def host_streams(key: Key) -> Iterator[None]:
    """Python's and numpy's global streams begin with `key` in this block, and are as before after it."""
    with _host_streams():
        _begin_on_host(key)
        yield


class HostStreams:
    """Python's and numpy's global streams for the shards of one step; see the module."""

    def __init__(self) -> None:
        self._is_new = True
        self._draws = False

    def run(self, key: Key, body: Callable[[], T], undo: Callable[[], None]) -> T:
        """What `body` returns, drawing from streams that begin with `key`. They are as before after it.

        Args:
            undo: takes back what a first call of `body` has done, before a second one.
        """
        if not (self._is_new or self._draws):
            before = MEMORY.read()
            try:
                result = body()
                if MEMORY.read() == before:
                    return result
            except BaseException:
                MEMORY.write(before)
                raise
            MEMORY.write(before)
            undo()
        with _host_streams():
            _begin_on_host(key)
            seeded = MEMORY.read()
            result = body()
            self._draws = self._draws or MEMORY.read() != seeded
            self._is_new = False
            return result


_WORDS = 624  # of a Mersenne twister, which both of them are
_BYTES = 4 * _WORDS + 4  # and the place of the next word


class _Memory:
    """The states of both streams as they lie in memory. Where they do not lie as expected, as they are told.

    numpy shows where its state lies. Python does not: there it comes behind the head of the object, which is tried out
    once. A second normal number that numpy keeps for the next call is no part of it; the numbers that it came from are.
    """

    def __init__(self) -> None:
        self._python = random.random.__self__  # type: ignore[attr-defined]  # the one of the module's functions
        address = id(self._python) + object.__basicsize__
        self._address = address if _lies_there(self._python, address) else None
        self._numpy: Any = None
        self._numpy_address = 0

    def read(self) -> tuple[Any, ...]:  # Any: bytes, or what the libraries tell
        """Equal to what was read before if nobody has drawn meanwhile."""
        python = self._python.getstate() if self._address is None else ctypes.string_at(self._address, _BYTES)
        return python, self._python.gauss_next, self._read_numpy()

    def write(self, states: tuple[Any, ...]) -> None:  # Any: as above
        """As they were when this was read."""
        python, gauss_next, in_numpy = states
        if self._address is None:
            self._python.setstate(python)
        else:
            ctypes.memmove(self._address, python, _BYTES)
        self._python.gauss_next = gauss_next
        if isinstance(in_numpy, bytes):
            ctypes.memmove(self._numpy_address, in_numpy, _BYTES)
        else:
            _numpy_random.get_bit_generator().state = in_numpy

    def _read_numpy(self) -> Any:  # Any: bytes, or what numpy tells
        found = _numpy_random.get_bit_generator()
        if not isinstance(found, np.random.MT19937):
            return found.state
        if found is not self._numpy:
            self._numpy, self._numpy_address = found, found.ctypes.state_address
        return ctypes.string_at(self._numpy_address, _BYTES)


def _lies_there(generator: random.Random, address: int) -> bool:
    """Whether the state of a generator is at this address: the place of the next word, then the words."""
    words = (ctypes.c_uint32 * (_WORDS + 1)).from_address(address)
    *state, place = generator.getstate()[1]
    return list(words) == [place, *state]


MEMORY = _Memory()
