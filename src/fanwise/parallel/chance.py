"""Random numbers inside a shard: torch's global streams, begun anew from a key for each shard and put back after.

    with stream(Key(seed).fold_in("step").fold_in(turn).fold_in(shard)):
        loss_fn(model, *samples)          dropout draws here

So what a shard draws depends on the key alone, never on the shards that the same process executed before it; and the
program around a step sees its own stream go on as if nothing had been drawn. Seeding torch as a whole (398 us on this
path) also prepares every accelerator; the CPU's generator takes 3 us, and of accelerators only that of the run's own
device is needed.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from ..tensor.random.keys import Key

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
    before, before_numpy = (torch.default_generator.get_state(), random.getstate()), np.random.get_state()
    try:
        yield begin
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before_numpy)


def begin(key: Key) -> None:
    """All three begin with `key`, as for one sample."""
    torch.default_generator.manual_seed(key.words[0])
    random.seed(key.words[0])
    np.random.seed(key.words[1] & 0xFFFFFFFF)  # its old generator, which augmentations use, takes 32 bits
