"""Seed the global random generators of torch, numpy and Python for a shard or a sample, and restore them afterwards.

    with isolated_generators(generators):
        seed_generators(key.fold_in(shard), generators)    # random numbers now depend on the key alone

torch's generator of the CPU, numpy's and Python's get all 128 bits of the key; a GPU's takes 64. Restoring numpy's
generator by its state would take 130 us, so it is exchanged for another one, which takes 2 us.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..tensor.random.keys import Key

_numpy_random: Any = np.random  # Any: its annotations lack functions
_CPU_ONLY = (torch.default_generator,)

_spare_bit_generators: list[np.random.MT19937] = []  # creating one takes 180 us

# Template for the state of a freshly seeded CPU generator, which seed_generators fills in, because manual_seed uses
# only 32 bits. Its layout: the seed, 16 bytes of counters, and the 624 words of the Mersenne Twister, each in 8 bytes.
_cpu_state = torch.Generator().manual_seed(0).get_state()
_cpu_state_words: Any = _cpu_state.numpy()[: 627 * 8].view(np.uint64)


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Return torch's generators that operators on this device draw from."""
    if device.type != "cuda":
        return _CPU_ONLY
    torch.cuda.init()  # type: ignore[no-untyped-call]  # it creates them; torch has not annotated it
    return (torch.default_generator, torch.cuda.default_generators[device.index])


@contextmanager
def isolated_generators(generators: Sequence[torch.Generator] = _CPU_ONLY) -> Iterator[None]:
    """Restore these generators, and those of numpy and Python, after the block. First call `seed_generators` in it.

    No device is synchronized: the state of a GPU's generator is kept on the host. `forget_spare_normal` applies.
    """
    states = [generator.get_state() for generator in generators]
    python_state, bit_generator = random.getstate(), _numpy_random.get_bit_generator()
    spare = _spare_bit_generators.pop() if _spare_bit_generators else np.random.MT19937(0)
    _numpy_random.set_bit_generator(spare)
    try:
        yield
    finally:
        _numpy_random.set_bit_generator(bit_generator)
        _spare_bit_generators.append(spare)
        random.setstate(python_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def forget_spare_normal() -> None:
    """Drop the second normal number that `numpy.random.randn` keeps for its next call.

    Called wherever a shard may be read in this process, so that the program's numbers do not depend on whether a
    worker has read it.
    """
    _numpy_random.set_bit_generator(_numpy_random.get_bit_generator())


def seed_generators(key: Key, generators: Sequence[torch.Generator] = _CPU_ONLY) -> None:
    """Seed these generators, and those of numpy and Python, with `key`."""
    high, low = key.words
    random.seed(high << 64 | low)
    for generator in generators:
        if generator.device.type == "cpu":
            _cpu_state_words[0] = high
            _cpu_state_words[3:] = np.frombuffer(random.randbytes(2496), np.uint32)
            generator.set_state(_cpu_state)
        else:
            generator.manual_seed(high)
    np.random.seed((high >> 32, high & 0xFFFFFFFF, low >> 32, low & 0xFFFFFFFF))


@contextmanager
def preserved_cpu_generators() -> Iterator[None]:
    """Restore the CPU generators after the block, including numpy's cached normal number.

    Unlike `isolated_generators`, the block continues the current sequence.
    """
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
