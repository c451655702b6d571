"""Random numbers inside a shard: torch's global streams, begun anew from a key for each shard and put back after.

    with stream(Key(seed).fold_in("step").fold_in(turn).fold_in(shard)):
        loss_fn(model, *samples)          dropout draws here

So what a shard draws depends on the key alone, never on the shards that the same process executed before it; and the
program around a step sees its own stream go on as if nothing had been drawn. Seeding torch as a whole (398 us on this
path) also prepares every accelerator; only the CPU's generator is needed here (3 us).
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ..tensor.random.keys import Key


@contextmanager
def stream(key: Key) -> Iterator[None]:
    """torch's CPU generator begins with `key` in this block, and is as before after it."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(key.words[0])
    try:
        yield
    finally:
        generator.set_state(before)


@contextmanager
def sample_streams() -> Iterator[Callable[[Key], None]]:
    """For reading samples one by one: the generators of torch, Python and numpy are as before after the block."""
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
