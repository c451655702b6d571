"""Memory that a run frees stays with its process while the run lasts.

The C library gives blocks above 32 MiB back to the system at once, and the gradients of a step may be such blocks. With
35 MB in one of them each step had 8,700 page faults, 10 to 15 % of its time (measured). The next step needs the same
memory again.

After the last run of a process its free memory goes back, and blocks are kept up to the size up to which the C library
keeps them by itself once it has seen such blocks come and go.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BYTES = 1 << 30
# What glibc's own adjustment ends at: DEFAULT_MMAP_THRESHOLD_MAX, and twice that for what is kept at the top.
_USUAL_BYTES = 1 << 25

_lock = threading.Lock()
_runs = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """In this block, blocks below 1 GiB come from the heap, and it does not shrink.

    Nothing changes where the environment sets these limits, and with C libraries that have none.
    """
    global _runs
    library = ctypes.CDLL(None)
    if _is_set_by_user() or not all(hasattr(library, name) for name in ("mallopt", "malloc_trim")):
        yield
        return
    with _lock:
        _runs += 1
        if _runs == 1:
            _keep_up_to(library, _KEPT_BYTES, _KEPT_BYTES)
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if _runs == 0:
                _keep_up_to(library, _USUAL_BYTES, 2 * _USUAL_BYTES)
                library.malloc_trim(0)


def _after_fork_in_child() -> None:
    """The lock may be held by a thread that is not here."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _keep_up_to(library: ctypes.CDLL, block_bytes: int, top_bytes: int) -> None:
    library.mallopt(_MMAP_THRESHOLD, block_bytes)
    library.mallopt(_TRIM_THRESHOLD, top_bytes)


def _is_set_by_user() -> bool:
    """See mallopt(3), and "Memory Allocation Tunables" in the manual of glibc."""
    return bool(
        {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"} & os.environ.keys()
    ) or any(f"glibc.malloc.{name}" in os.environ.get("GLIBC_TUNABLES", "") for name in ("mmap", "trim", "top_pad"))
