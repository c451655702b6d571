"""Linux futexes: sleep on a number in shared memory until another process changes it. Called through ctypes.

    wait(address, number, 0.05)    sleep while the low 32 bits at `address` are those of `number`
    wake(address)                  wake all processes that sleep on `address`; call it after a change

The kernel compares the number before it puts a process to sleep, so no wake-up is lost. Waits may return early, so
callers check their condition in a loop. Other Python threads run meanwhile.
"""

import ctypes
import errno
import os
import platform

# System calls of the little-endian machines that are supported: futex(2), and membarrier(2) where the machine may
# reorder two writes, or two reads, of a thread.
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_membarrier_number = {"aarch64": 283}.get(platform.machine())
_BARRIER, _REGISTER = 1 << 1, 1 << 2  # MEMBARRIER_CMD_GLOBAL_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
_WAIT, _WAKE = 0, 1
_ALL = 0x7FFFFFFF


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_syscall = ctypes.CDLL(None, use_errno=True).syscall


def register() -> None:
    """Let barriers of other processes act on the threads of this one. Called once before the other functions."""
    if _FUTEX is None:
        raise OSError(
            errno.ENOSYS,
            f"several CPU processes of a run need x86_64 or aarch64, and this machine is a {platform.machine()}",
        )
    _membarrier(_REGISTER)


def barrier() -> None:
    """Make earlier writes visible before later ones, to all threads of processes that have called `register`.

    The barrier also orders the reads of these threads, so readers need none of their own.
    """
    _membarrier(_BARRIER)


def _membarrier(command: int) -> None:
    if _membarrier_number is not None and _syscall(_membarrier_number, command, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"membarrier, which several CPU processes of a run need, failed: {os.strerror(code)}")


def wait(address: int, number: int, timeout_s: float) -> None:
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    low_bits = ctypes.c_uint32(number & 0xFFFFFFFF)
    _syscall(_FUTEX, ctypes.c_void_p(address), _WAIT, low_bits, ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    _syscall(_FUTEX, ctypes.c_void_p(address), _WAKE, ctypes.c_int(_ALL), None, None, 0)
