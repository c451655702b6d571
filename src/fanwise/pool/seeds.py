"""Seeds of jobs: a job always starts from the same random states, and different jobs from different ones.

Otherwise, children forked from one process would continue the same random states. Libraries that a job imports itself
are seeded at the end of the import, because torch starts every process from the same default seed. numpy loads
`numpy.random`, which holds its global state, on first use. Generators that a program makes itself
(`numpy.random.default_rng()`, `torch.Generator()`) are not touched, and JAX has no global state.

Seeding does not initialize a GPU, because torch and TensorFlow store the seed. This module imports none of these
libraries.
"""

import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from .late_imports import call_on_import


def job_seed(experiment_seed: int, job_number: int, attempt: int = 0) -> int:
    """Return the seed of one attempt at a job.

    The seed is the first 8 bytes, big endian, of the sha256 of `fanwise/<experiment_seed>/<job_number>/<attempt>`.

    Returns:
        A number in [0, 2**64), the same on every machine and in every version.

    >>> job_seed(0, 0)
    11285659339495990538
    """
    text = f"fanwise/{experiment_seed:d}/{job_number:d}/{attempt:d}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def seed_everything(seed: int) -> None:
    """Seed `random`, and numpy, torch (CPU and all accelerators) and TensorFlow if they are loaded.

    Raises:
        ValueError: the seed is not in [0, 2**64).
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is a number in [0, 2**64), got {seed}")
    random.seed(seed)
    for name, seed_module in _SEEDERS.items():
        if (module := sys.modules.get(name)) is not None:
            seed_module(seed, module)


@contextmanager
def seed_on_import(seed: int) -> Iterator[None]:
    """Inside the block, seed numpy, torch and TensorFlow as soon as they are imported, if they are not loaded yet."""
    watcher = call_on_import({name: partial(seeder, seed) for name, seeder in _SEEDERS.items()})
    try:
        yield
    finally:
        watcher.leave()


def _seed_torch(seed: int, torch: Any) -> None:
    # torch's CPU generator uses the lower 32 bits, CUDA generators use all.
    if _has_no_accelerator(torch):
        # manual_seed would format a stack trace for each kind of accelerator, which takes 3 ms.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _has_no_accelerator(torch: Any) -> bool:
    try:
        is_built = torch.version.cuda is not None or torch.version.hip is not None
        has_cuda = is_built and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        return not (has_cuda or torch.backends.mps.is_built() or torch.xpu._is_compiled())
    except AttributeError:
        return False  # an unknown version of torch seeds everything itself


_SEEDERS: dict[str, Callable[[int, Any], None]] = {
    "numpy.random": lambda seed, module: module.seed([seed >> 32, seed & 0xFFFF_FFFF]),  # it takes 32-bit words
    "torch": _seed_torch,
    "tensorflow": lambda seed, module: module.random.set_seed(seed % 2**63),  # it takes signed 64-bit numbers
}
