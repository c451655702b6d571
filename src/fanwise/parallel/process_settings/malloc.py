"""Keeps freed memory in the process during a run.

glibc returns blocks above 32 MiB to the system at once. If gradients are such blocks, every step has page faults: 10 to
15 % of the time of a step with 35 MB in one block (measured). After the last run of a process, free memory is returned.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_KEPT_BYTES = 1 << 30
_GLIBC_MAX_BYTES = 1 << 25  # DEFAULT_MMAP_THRESHOLD_MAX, up to which glibc adjusts its threshold by itself
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}
_TUNABLES = ("glibc.malloc.mmap", "glibc.malloc.trim", "glibc.malloc.top_pad")

_lock = threading.Lock()
_num_runs = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Take blocks below 1 GiB from the heap in this block, and do not shrink the heap.

    Does nothing if the environment sets these limits, or if the C library has none.
    """
    global _num_runs
    library = ctypes.CDLL(None)
    is_set_by_user = bool(_VARIABLES & os.environ.keys()) or any(
        name in os.environ.get("GLIBC_TUNABLES", "") for name in _TUNABLES
    )
    if is_set_by_user or not all(hasattr(library, name) for name in ("mallopt", "malloc_trim")):
        yield
        return
    with _lock:
        _num_runs += 1
        if _num_runs == 1:
            _set_thresholds(library, _MAX_KEPT_BYTES, _MAX_KEPT_BYTES)
    try:
        yield
    finally:
        with _lock:
            _num_runs -= 1
            if _num_runs == 0:
                _set_thresholds(library, _GLIBC_MAX_BYTES, 2 * _GLIBC_MAX_BYTES)
                library.malloc_trim(0)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # the lock may be held by a thread that the child does not have


os.register_at_fork(after_in_child=_after_fork_in_child)


def _set_thresholds(library: ctypes.CDLL, mmap_bytes: int, trim_bytes: int) -> None:
    library.mallopt(_MMAP_THRESHOLD, mmap_bytes)
    library.mallopt(_TRIM_THRESHOLD, trim_bytes)
