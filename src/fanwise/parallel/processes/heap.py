"""Memory that a rank frees stays with it.

The C library gives large blocks back to the system at once, and the gradients of every step are such blocks: with 35 MB
of them each step had 8,700 page faults, some 15 % of its time (measured). A rank needs the same memory again in the
next step, so it keeps it. Only for processes that live for one run.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """From now on blocks below 1 GiB come from the heap, and it shrinks no more. Other C libraries do as they do."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
