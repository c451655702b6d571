"""The environment of a run in its process: threads, random states, freed memory and deterministic operators.

With reduce="exact" torch uses deterministic operators, and an operator that has none raises. torch's option to fill
the memory of `torch.empty` is switched off, because it slows down every operator. With reduce="fast" operators are
chosen as the program has set it.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic

from ...pool.late_imports import around_imports
from ..rng import restored_streams
from .cuda import cuda_environment
from .malloc import keep_freed_memory
from .torch_settings import TorchSettings, apply_settings

_deterministic: Any = torch.utils.deterministic


@contextmanager
def _restore_streams_after_imports() -> Iterator[None]:
    """Ignore random numbers that libraries draw when they are imported, because other processes have imported them."""
    watcher = around_imports(restored_streams)
    try:
        yield
    finally:
        watcher.leave()


@contextmanager
def run_environment(
    threads: int, device: torch.device, *, exact: bool = True, settings: TorchSettings | None = None
) -> Iterator[None]:
    """Prepare the process for a run in this block, and restore it afterwards, with its random states.

    Args:
        settings: settings of the process that started the run, if it is another one.

    Raises:
        ValueError: an environment variable makes matrix products on this GPU nondeterministic.
    """
    threads_before, torch_before = torch.get_num_threads(), torch.get_rng_state()
    python_before, numpy_before = random.getstate(), np.random.get_state()
    mode_before = torch.get_deterministic_debug_mode()
    filled = _deterministic.fill_uninitialized_memory
    with (
        apply_settings(settings),
        keep_freed_memory(),
        _restore_streams_after_imports(),
        cuda_environment(device) if device.type == "cuda" else nullcontext(),
    ):
        torch.set_num_threads(threads)
        if exact:
            # Like use_deterministic_algorithms(True), which imports the compiler.
            torch.set_deterministic_debug_mode("error")
        _deterministic.fill_uninitialized_memory = False
        try:
            yield
        finally:
            _deterministic.fill_uninitialized_memory = filled
            torch.set_deterministic_debug_mode(mode_before)
            torch.set_num_threads(threads_before)
            torch.set_rng_state(torch_before)
            random.setstate(python_before)
            np.random.set_state(numpy_before)
