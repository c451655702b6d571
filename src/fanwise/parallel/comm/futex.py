"""Sleeping on a number in shared memory until another process changes it: Linux futexes, by ctypes.

    wait(address, seen, 0.05)      sleeps while the 32 bits at `address` are `seen`
    wake(address)                  after a change: whoever sleeps on it looks again

A wait may return early, and a wake that comes between the look and the sleep is seen by the kernel's own comparison,
so the caller looks again in a loop. It sleeps no longer than its limit in any case. ctypes lets other threads run.
"""

import ctypes
import os
import platform
import time

# From the kernel's tables of system calls. Elsewhere the wait is a short sleep.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_NUMBER = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 0, 1
_ALL = 0x7FFFFFFF
_POLLING_S = 0.0005


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall


def wait(address: int, seen: int, within_s: float) -> None:
    """Sleep until somebody wakes `address`, unless the number there is no longer `seen` (its low 32 bits)."""
    if _NUMBER is None or os.name != "posix":
        time.sleep(min(_POLLING_S, within_s))
        return
    limit = _Timespec(int(within_s), int(within_s % 1 * 1e9))
    _syscall(_NUMBER, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen & 0xFFFFFFFF), ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake everybody who sleeps on `address`."""
    if _NUMBER is not None:
        _syscall(_NUMBER, ctypes.c_void_p(address), _WAKE, ctypes.c_int(_ALL), None, None, 0)
