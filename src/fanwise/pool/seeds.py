"""Every job starts from random states of its own, and the same job from the same ones.

    (experiment seed, job number, attempt) --sha256--> 64 bits --> random, numpy's global state, torch, TensorFlow

Children forked from one process would otherwise all continue the random state they inherited. Libraries that a job
imports itself are seeded at the end of that import (`seed_on_import`), because torch starts every process from one
and the same default seed. numpy's global state lives in `numpy.random`, which numpy loads on first use, so that is
the module to watch. Generators that a program makes itself (`numpy.random.default_rng()`, `torch.Generator()`) are
its own business.

JAX has no global state. Imports none of these libraries. torch keeps the seed of CUDA generators until CUDA is
initialised, so seeding does not touch a GPU; TensorFlow keeps its seed as well.
"""

import hashlib
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from .late_imports import call_on_import


def job_seed(experiment_seed: int, job_number: int, attempt: int = 0) -> int:
    """The seed of one attempt at one job: the first 8 bytes, big endian, of a sha256 over the three numbers.

    The text that is hashed is `fanwise/<experiment_seed>/<job_number>/<attempt>`, so anybody can compute the seed.

    Returns:
        A number in [0, 2**64), the same on every machine and in every version.

    >>> job_seed(0, 0)
    11285659339495990538
    """
    text = f"fanwise/{experiment_seed:d}/{job_number:d}/{attempt:d}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def seed_everything(seed: int) -> None:
    """Seed `random`, and numpy, torch (CPU and all accelerators) and TensorFlow as far as they are loaded.

    Args:
        seed: a number in [0, 2**64), as `job_seed` gives.

    Raises:
        ValueError: the seed is out of range.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is a number in [0, 2**64), got {seed}")
    random.seed(seed)
    for name, seed_it in _LATE.items():
        if (module := sys.modules.get(name)) is not None:
            seed_it(module, seed)


@contextmanager
def seed_on_import(seed: int) -> Iterator[None]:
    """Inside the block, numpy, torch and TensorFlow are seeded as soon as they are imported, if not loaded yet.

    Works through an entry in `sys.meta_path`, which is gone when nothing is left to seed, at the latest at the end
    of the block. Other import hooks are asked as before, in their order.
    """
    watcher = call_on_import({name: partial(_seed_module, seed_it, seed) for name, seed_it in _LATE.items()})
    try:
        yield
    finally:
        watcher.leave()


def _seed_module(seed_it: Callable[[types.ModuleType, int], None], seed: int, module: types.ModuleType) -> None:
    seed_it(module, seed)


def _seed_numpy(numpy_random: types.ModuleType, seed: int) -> None:
    # numpy's global state takes 32-bit words; the pair keeps all 64 bits.
    numpy_random.seed([seed >> 32, seed & 0xFFFF_FFFF])


def _seed_torch(torch: Any, seed: int) -> None:  # Any: the module torch
    # torch's CPU generator uses the lower 32 bits, the CUDA generators all.
    if _sees_no_accelerator(torch):
        # manual_seed would format a stack trace for each kind of accelerator, to blame later: 3 ms in every trial.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _sees_no_accelerator(torch: Any) -> bool:  # Any: the module torch
    try:
        built = torch.version.cuda is not None or torch.version.hip is not None
        cuda = built and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        return not (cuda or torch.backends.mps.is_built() or torch.xpu._is_compiled())
    except AttributeError:
        return False  # a torch that is arranged in another way: let it seed whatever it has


def _seed_tensorflow(tensorflow: Any, seed: int) -> None:  # Any: the module tensorflow
    # It takes signed numbers of 64 bits. Nothing of TensorFlow begins by this.
    tensorflow.random.set_seed(seed % 2**63)


_LATE: dict[str, Callable[[types.ModuleType, int], None]] = {
    "numpy.random": _seed_numpy,
    "torch": _seed_torch,
    "tensorflow": _seed_tensorflow,
}
