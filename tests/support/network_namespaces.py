"""Entering a network namespace of Linux."""

import ctypes

_CLONE_NEWNET = 0x40000000


def set_namespace(path: str) -> None:
    """The calling thread, and what it starts, is in this one from now on. Raises OSError when it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path) as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
