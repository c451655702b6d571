"""Sleeping on a number in shared memory until another process changes it: Linux futexes, by ctypes.

    wait(address, seen, 0.05)      sleeps while the 32 bits at `address` are `seen`
    wake(address)                  after a change, wakes the processes that sleep on it

Waits may return early, so the caller checks again in a loop. The kernel compares the number before it sleeps, so no
wake-up is lost. ctypes releases the interpreter lock meanwhile.
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


def wait(address: int, number: int, within_s: float) -> None:
    """Sleep until `address` is woken, unless the low 32 bits there differ from those of `number`."""
    if _NUMBER is None or os.name != "posix":
        time.sleep(min(_POLLING_S, within_s))
        return
    limit = _Timespec(int(within_s), int(within_s % 1 * 1e9))
    _syscall(
        _NUMBER, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(number & 0xFFFFFFFF), ctypes.byref(limit), None, 0
    )


def wake(address: int) -> None:
    """Wake all processes that sleep on `address`."""
    if _NUMBER is not None:
        _syscall(_NUMBER, ctypes.c_void_p(address), _WAKE, ctypes.c_int(_ALL), None, None, 0)
