"""Sleeping on a number in shared memory until another process changes it: Linux futexes, by ctypes.

    wait(address, seen, 0.05)      sleeps while the 32 bits at `address` are `seen`
    wake(address)                  after a change: whoever sleeps on it looks again

A wait may return early, and a wake that comes between the look and the sleep is seen by the kernel's own comparison,
so the caller looks again in a loop. It sleeps no longer than its limit in any case. ctypes lets other threads run.
"""

import ctypes
import errno
import os
import platform
import time

# System call numbers, of little-endian machines: the kernel compares the low 32 bits of a number, which it expects at
# its address. Elsewhere the wait is a short sleep.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_NUMBER = _NUMBERS.get(platform.machine())
# membarrier(2), for machines that may reorder two stores of a thread, or two loads. x86-64 and s390x do not.
_BARRIER_NUMBERS = {"aarch64": 283, "riscv64": 283, "ppc64le": 365}
_barrier_number = _BARRIER_NUMBERS.get(platform.machine())
_BARRIER, _REGISTER = 1 << 1, 1 << 2  # MEMBARRIER_CMD_GLOBAL_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
_WAIT, _WAKE = 0, 1
_ALL = 0x7FFFFFFF
_POLLING_S = 0.0005


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall


def register() -> None:
    """Let the barriers of other processes act on the threads of this one.

    Raises:
        OSError: this kind of machine is not supported, or the kernel has no barrier between processes.
    """
    if _barrier_number is None and platform.machine() not in ("x86_64", "s390x"):
        raise OSError(errno.ENOSYS, f"processes cannot share memory in order on a {platform.machine()}")
    _membarrier(_REGISTER)


def barrier() -> None:
    """Make earlier stores visible before later ones, to all threads of processes that have called `register`.

    It also acts on their loads, so that readers need no barrier.
    """
    _membarrier(_BARRIER)


def _membarrier(command: int) -> None:
    if _barrier_number is not None and _syscall(_barrier_number, command, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"membarrier, which processes need to share memory here: {os.strerror(number)}")


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
