"""How a job's process died, in words: from its exit status, who asked for it, and what it printed last.

    exit status, asked for?, kernel's count of kills, last output --> Death(kind, text)

Decides only; reads no file, sends no signal. Whether the job's function had returned or raised is not asked here:
this is for processes that ended without saying why. `last_lines` also serves those who show output.
"""

import re
from dataclasses import dataclass
from signal import Signals
from typing import Literal

from ..base.text import printable

DeathKind = Literal["exit", "signal", "out-of-memory"]

_MAX_LINES = 20
_MAX_CHARS = 4_000

_HINTS = {
    "SIGSEGV": "A crash in native code: a library, or an extension module.",
    "SIGBUS": "Often shared memory that could not be had: look whether /dev/shm is full.",
    "SIGABRT": "Native code gave up: a failed check in C++ or CUDA, usually told in the last output.",
    "SIGFPE": "A crash in native code: often an integer division by zero.",
    "SIGILL": "A crash in native code: often a library built for another processor.",
    "SIGTERM": "fanwise did not send it: a person, a batch system or a container may have.",
    "SIGINT": "An interrupt (Ctrl-C) that the job did not catch.",
    "SIGHUP": "Its terminal or session was closed.",
    "SIGXCPU": "It used up its limit of CPU time.",
    "SIGPIPE": "It wrote to a pipe that nobody reads any more.",
}


# The type or the message, as torch, CUDA and its libraries, XLA (JAX) and TensorFlow report it.
_GPU_OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|CUDA out of memory|CUDA (driver )?error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|\bCU[A-Z]+_(STATUS_)?ALLOC_FAILED|\bResourceExhaustedError\b.*\bOOM\b"
    r"|RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate|.*\bOOM\b)",
    re.DOTALL,
)

# Every worker runs with faulthandler, which writes this and the stack of Python; not where a job has closed its stderr.
_STACK_MARK = "Fatal Python error"
_STACK_TOLD = " The Python line where it happened is in the last output, at the top of the stack."


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended; `text` is for people, several lines if it printed something."""

    kind: DeathKind
    text: str


def explain(
    status: int, *, asked: Literal["terminate", "kill"] | None = None, ooms: int = 0, last_output: str = ""
) -> Death:
    """Say how a process ended.

    Args:
        status: an exit code, or minus the number of the signal, as `os.waitstatus_to_exitcode` gives it.
        asked: what the pool had sent to it.
        ooms: how many processes the kernel killed for lack of memory while it ran.
        last_output: the end of what it printed; cut and escaped here.

    >>> explain(3).text
    'ended with exit code 3 before its function returned. Something called sys.exit or os._exit.'
    """
    death = _by_signal(-status, asked, ooms, last_output) if status < 0 else _by_exit(status, asked)
    lines = last_lines(last_output)
    if not lines:
        return death
    return Death(death.kind, "\n".join([f"{death.text} Its last output:", *(f"  | {line}" for line in lines)]))


def _by_exit(code: int, asked: str | None) -> Death:
    if asked is not None:
        return Death("exit", f"ended with exit code {code} after it was told to end.")
    hint = "Something called sys.exit or os._exit."
    if 128 < code < 128 + 65:
        hint = f"A shell reports a program that {signal_name(code - 128)} ended in this way."
    elif code == 1:
        hint = "Something called sys.exit(1), or an exception went uncaught outside the function."
    return Death("exit", f"ended with exit code {code} before its function returned. {hint}")


def _by_signal(number: int, asked: str | None, ooms: int, last_output: str) -> Death:
    name = signal_name(number)
    what = f"ended by {name}"
    if asked is not None and name == "SIGTERM":
        return Death("signal", f"{what}, as it was told to.")
    if asked == "kill" and name == "SIGKILL":
        return Death("signal", f"{what}: told to end, it had not ended when its time was up.")
    if name == "SIGKILL" and ooms > 0:
        kills = "one process" if ooms == 1 else f"{ooms} processes"
        return Death(
            "out-of-memory",
            f"{what}: the kernel ran out of memory and killed {kills} meanwhile. Use less memory (smaller batches, "
            f"fewer data-loading workers) or run fewer jobs at once.",
        )
    if name == "SIGABRT" and "std::bad_alloc" in last_output:
        return Death("out-of-memory", f"{what}: native code could not get memory (std::bad_alloc).")
    if name == "SIGABRT" and is_gpu_out_of_memory(last_output):
        return Death("out-of-memory", f"{what}: native code could not get memory on a GPU.")
    if name == "SIGKILL":
        hint = (
            "fanwise did not send it, and the kernel counted no kill for lack of memory: a person, a batch system or a "
            "container's memory limit may have."
        )
        return Death("signal", f"{what}. {hint}")
    where = _STACK_TOLD if _STACK_MARK in last_output else ""
    return Death("signal", f"{what}. {_HINTS.get(name, '')}{where}".rstrip())


def is_gpu_out_of_memory(text: str) -> bool:
    """Return whether an error message reports that there was not enough memory on a GPU.

    >>> is_gpu_out_of_memory("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    True
    """
    return bool(_GPU_OUT_OF_MEMORY.search(text))


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 77` for a number without a name.

    >>> signal_name(9), signal_name(77)
    ('SIGKILL', 'signal 77')
    """
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(text: str, *, max_lines: int = _MAX_LINES, max_chars: int = _MAX_CHARS) -> list[str]:
    r"""The last lines of what a program printed, fit to be shown: at most so many lines and characters, escaped.

    Of a line that was overwritten with carriage returns, as progress bars do, the last state is kept, as on a screen.

    >>> last_lines("start\n10 %\r20 %\r30 %\n")
    ['start', '30 %']
    """
    lines = [_as_on_screen(line) for line in text[-16 * max_chars :].split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    kept: list[str] = []
    room = max_chars
    for line in map(printable, reversed(lines[-max_lines:])):
        if len(line) > room:
            if room > 3:
                kept.append(f"...{line[len(line) - room + 3 :]}")
            break
        room -= len(line)
        kept.append(line)
    return kept[::-1]


def _as_on_screen(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
