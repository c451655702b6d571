"""What a run changes in its process, and puts back: threads, random states, freed memory, how operators are chosen.

What the program has set for its process (torch_settings.py) is what a run finds, in whatever process it takes place.

Results that are the same again need operators that are: where torch has a deterministic one it is taken, and where it
has none the call raises. What torch adds to that, filling what `torch.empty` gives, is left out: it costs time in every
operator, and a run reads nothing that it has not written. With reduce="fast" operators are as the program has set them.

Settings that only a GPU needs are in cuda.py.
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
from .cuda import as_in_every_process
from .malloc import keep_freed_memory
from .torch_settings import TorchSettings, apply_settings

_filling: Any = torch.utils.deterministic  # Any: torch sets this module's attributes behind its types


@contextmanager
def _imports_unseen() -> Iterator[None]:
    """What libraries draw while they are loaded in this block does not count: another process has them already."""
    watcher = around_imports(restored_streams)
    try:
        yield
    finally:
        watcher.leave()


@contextmanager
def run_environment(
    threads: int, device: torch.device, *, exact: bool = True, settings: TorchSettings | None = None
) -> Iterator[None]:
    """As a run needs them, in this block. The random states are for the block to set; what was is put back.

    Args:
        switches: of the program, where this is another process than the one that it runs in.

    Raises:
        ValueError: the environment lets matrix products on this GPU give other bits each time.
    """
    threads_before, torch_before = torch.get_num_threads(), torch.get_rng_state()
    python_before, numpy_before = random.getstate(), np.random.get_state()
    mode_before = torch.get_deterministic_debug_mode()
    filled = _filling.fill_uninitialized_memory
    with (
        apply_settings(settings),
        keep_freed_memory(),
        _imports_unseen(),
        as_in_every_process(device) if device.type == "cuda" else nullcontext(),
    ):
        torch.set_num_threads(threads)
        if exact:
            # As use_deterministic_algorithms(True), which would first load the compiler.
            torch.set_deterministic_debug_mode("error")
        _filling.fill_uninitialized_memory = False
        try:
            yield
        finally:
            _filling.fill_uninitialized_memory = filled
            torch.set_deterministic_debug_mode(mode_before)
            torch.set_num_threads(threads_before)
            torch.set_rng_state(torch_before)
            random.setstate(python_before)
            np.random.set_state(numpy_before)
