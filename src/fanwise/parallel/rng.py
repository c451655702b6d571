"""Seed the global random generators of torch, NumPy and Python for a shard or a sample, and restore them afterwards.

    with isolated_generators(generators):
        seed_generators(key.fold_in(shard), generators)    # random numbers now depend only on the key

The CPU generators of torch, NumPy and Python get all 128 bits of the key. The generator of a GPU takes 64.
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

# Torch uses the Mersenne Twister, whose state has 624 words of 32 bits. Its seeding function uses
# 32 bits of a seed. Philox computes the words from the whole key.
_philox: Any = np.random.Philox(0)
_philox_key = np.zeros(2, np.uint64)
_philox_state = {**_philox.state, "state": {"counter": np.zeros(4, np.uint64), "key": _philox_key}}

# State of a freshly seeded CPU generator of torch: the seed, 16 bytes of counters, and each word in 8 bytes.
_torch_state = torch.Generator().manual_seed(0).get_state()
_torch_words: Any = _torch_state.numpy()[: 627 * 8].view(np.uint64)


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Return torch's generators that operators on this device draw from."""
    if device.type != "cuda":
        return _CPU_ONLY
    torch.cuda.init()  # type: ignore[no-untyped-call]  # it creates them; torch has not annotated it
    return (torch.default_generator, torch.cuda.default_generators[device.index])


@contextmanager
def isolated_generators(generators: Sequence[torch.Generator] = _CPU_ONLY) -> Iterator[None]:
    """Restore these generators, and those of NumPy and Python, after the block.

    The block must call `seed_generators` before it draws from NumPy. NumPy forgets its spare normal number, as in
    `forget_spare_normal`. Does not wait for a GPU, because the states of GPU generators are on the host.
    """
    states = [generator.get_state() for generator in generators]
    python_state, bit_generator = random.getstate(), _numpy_random.get_bit_generator()
    spare = _spare_bit_generators.pop() if _spare_bit_generators else np.random.MT19937(0)
    _numpy_random.set_bit_generator(spare)  # takes 2 us; restoring the state of the program's generator takes 130 us
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

    Called wherever a shard may be read in this process, so that the program's random numbers do not depend on whether
    a loader worker has read the shard instead.
    """
    _numpy_random.set_bit_generator(_numpy_random.get_bit_generator())


def seed_generators(key: Key, generators: Sequence[torch.Generator] = _CPU_ONLY) -> None:
    """Seed these generators, and those of NumPy and Python, with `key`. Call it in a block of `isolated_generators`."""
    high, low = key.words
    random.seed(high << 64 | low)
    _philox_key[:] = high, low
    _philox.state = _philox_state
    words = _philox.random_raw(312).view(np.uint32)
    for generator in generators:
        if generator.device.type == "cpu":
            _torch_words[0] = high
            _torch_words[3:] = words
            generator.set_state(_torch_state)
        else:
            generator.manual_seed(high)
    _numpy_random.seed(np.array((high, low), np.uint64).view(np.uint32))


@contextmanager
def preserved_cpu_generators() -> Iterator[None]:
    """Restore the CPU generators after the block, including the spare normal number of NumPy.

    Unlike in `isolated_generators`, the block continues the current sequences.
    """
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
