"""Seed the global random generators of torch, numpy and Python for a shard or a sample, and restore them afterwards.

    with kept_streams(generators):
        begin(key.fold_in(shard), generators)      # what the loss draws depends on the key alone

Seeding the three of them takes 15 us on a CPU. Restoring numpy's generator by its state would take 130 us, so it is
exchanged for another one instead, which takes 2 us. Seeding torch as a whole (398 us here) would also prepare every
accelerator; of these only the generator of the run's own device is needed.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..tensor.random.keys import Key

_numpy_random: Any = np.random  # Any: its annotations lack functions
_OF_CPU = (torch.default_generator,)

_spares: list[np.random.MT19937] = []  # bit generators for `kept_streams`; creating one takes 180 us


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Return torch's generators that operators on this device draw from."""
    if device.type != "cuda":
        return _OF_CPU
    torch.cuda.init()  # type: ignore[no-untyped-call]  # before it there are none; torch has not annotated it
    return (torch.default_generator, torch.cuda.default_generators[device.index])


@contextmanager
def kept_streams(generators: Sequence[torch.Generator] = _OF_CPU) -> Iterator[None]:
    """Restore these generators, and those of numpy and Python, after the block. Call `begin` before drawing in it.

    No device is synchronized: the state of a GPU's generator is kept on the host. A second normal number that
    `numpy.random.randn` keeps for its next call is dropped.
    """
    states = [generator.get_state() for generator in generators]
    python_state, numpy_bits = random.getstate(), _numpy_random.get_bit_generator()
    spare = _spares.pop() if _spares else np.random.MT19937(0)
    _numpy_random.set_bit_generator(spare)
    try:
        yield
    finally:
        _numpy_random.set_bit_generator(numpy_bits)
        _spares.append(spare)
        random.setstate(python_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def begin(key: Key, generators: Sequence[torch.Generator] = _OF_CPU) -> None:
    """Seed these generators, and those of numpy and Python, with `key`."""
    for generator in generators:
        generator.manual_seed(key.words[0])
    random.seed(key.words[0])
    np.random.seed(key.words[1] & 0xFFFFFFFF)  # it takes 32 bits


@contextmanager
def restored_streams() -> Iterator[None]:
    """Restore the CPU generators exactly after the block. They go on as they are in it."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
