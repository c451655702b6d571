"""Outcomes of jobs, and the reason in words if a job failed."""

import re
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any, Literal

from ..base.errors import TrialStopped, WorkerLostError
from ..links.codec import error_text, loads, unpack_error
from .contract import Outcome, OutcomeKind
from .output import last_lines, tail
from .specs import LINK_LOST

StopRequest = Literal["terminate", "kill"]

_OUT_OF_MEMORY = frozenset(("MemoryError", "_ArrayMemoryError"))

# Beginnings of lines that are omitted from the stack of a crash.
_HERE = Path(__file__).parent
_OMITTED = (f'  File "{_HERE}', f'  File "{_HERE.parent / "links"}', "Extension modules: ")

# Type names and messages of torch, CUDA and its libraries, XLA (JAX) and TensorFlow.
_GPU_OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|CUDA out of memory|CUDA (driver )?error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|\bCU[A-Z]+_(STATUS_)?ALLOC_FAILED|\bResourceExhaustedError\b.*\bOOM\b"
    r"|RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate|.*\bOOM\b)",
    re.DOTALL,
)
_CUDA_ERROR = re.compile(r"CUDA error|cuDNN error|CUDA_ERROR_|cudaError|MPS (client|server)")
_GPU_FAULT = (
    "Another job may have caused this: under MPS, a fatal error on a GPU ends the work of all jobs that share the GPU."
)

_HINTS = {
    "SIGSEGV": "A crash in native code: a library, or an extension module.",
    "SIGBUS": "Often a lack of shared memory: check whether /dev/shm is full.",
    "SIGABRT": "Native code aborted after a failed check in C++ or CUDA, which is usually in the last output.",
    "SIGFPE": "A crash in native code: often an integer division by zero.",
    "SIGILL": "A crash in native code: often a library built for another processor.",
    "SIGTERM": "fanwise did not send it: a person, a batch system or a container may have.",
    "SIGINT": "An interrupt (Ctrl-C) that the job did not catch.",
    "SIGHUP": "Its terminal or session was closed.",
    "SIGXCPU": "It reached its limit of CPU time.",
    "SIGPIPE": "It wrote to a pipe that has no reader.",
}

# Workers run with faulthandler, which writes this line and the Python stack to stderr.
_STACK_MARK = "Fatal Python error"
_STACK_HINT = " The Python line where it happened is in the last output, at the top of the stack."


def value_of(outcome: Outcome) -> Any:
    """Return the result of a job. Raises like `JobHandle.result`."""
    if outcome.kind == "returned":
        return loads(outcome.payload, outcome.buffers)
    if outcome.kind == "stopped":
        raise TrialStopped(outcome.text)
    if outcome.payload:
        raise unpack_error(outcome.payload)
    raise WorkerLostError(outcome.text)


def exception_outcome(
    packed: bytes, objective_s: float | None, last_output: str, *, threads: tuple[str, ...] = ()
) -> Outcome:
    """Return the outcome of a job whose function raised `packed`. SystemExit and KeyboardInterrupt become an `exit`."""
    text = error_text(packed)
    if text.name in ("SystemExit", "KeyboardInterrupt") and text.module == "builtins":
        reason = f"the job left by {text}"
        return Outcome("exit", reason, text.trace, last_output, objective_s=objective_s, threads=threads)
    kind: OutcomeKind = "exception"
    if text.module == WorkerLostError.__module__ and text.name == WorkerLostError.__name__:
        kind = "lost"  # a process that should have started it, or that it called, died
    elif text.name in _OUT_OF_MEMORY or is_gpu_out_of_memory(str(text)):
        kind = "out-of-memory"
    return Outcome(kind, str(text), text.trace, last_output, packed, objective_s=objective_s, threads=threads)


def never_began(job_id: int) -> Outcome:
    return Outcome("stopped", f"job {job_id} was stopped before it began")


def death_of(status: int, *, stop_request: StopRequest | None, ooms: int, stderr: Path, lost: str) -> Outcome:
    """Return the outcome of a job whose process exited without sending one.

    Args:
        ooms: number of processes that the kernel killed for lack of memory during the job.
        lost: reason for which the pool lost the job; empty if the process died by itself.
    """
    if stop_request == "terminate" and status in (0, LINK_LOST, -Signals.SIGTERM):
        return Outcome("stopped", "ended by SIGTERM after a stop")
    last_output = end_of_stderr(stderr)
    if lost:
        return Outcome("lost", lost, last_output=last_output)
    return replace(
        explain(status, stop_request=stop_request, ooms=ooms, last_output=last_output), last_output=last_output
    )


def explain(status: int, *, stop_request: StopRequest | None = None, ooms: int = 0, last_output: str = "") -> Outcome:
    """Describe the end of a process.

    Args:
        status: exit code, or minus the number of the signal, as from `os.waitstatus_to_exitcode`.

    >>> explain(3).text
    'ended with exit code 3 before its function returned. Something called sys.exit or os._exit.'
    """
    death = _by_signal(-status, stop_request, ooms, last_output) if status < 0 else _by_exit(status, stop_request)
    lines = last_lines(last_output)
    if not lines:
        return death
    return replace(death, text="\n".join([f"{death.text} Its last output:", *(f"  | {line}" for line in lines)]))


def _by_exit(code: int, stop_request: StopRequest | None) -> Outcome:
    if stop_request is not None:
        return Outcome("exit", f"ended with exit code {code} after a stop.")
    hint = "Something called sys.exit or os._exit."
    if 128 < code < 128 + 65:
        hint = f"A shell reports {signal_name(code - 128)} of a program by this code."
    elif code == 1:
        hint = "Something called sys.exit(1), or an exception outside the function was not caught."
    return Outcome("exit", f"ended with exit code {code} before its function returned. {hint}")


def _by_signal(number: int, stop_request: StopRequest | None, ooms: int, last_output: str) -> Outcome:
    name = signal_name(number)
    text = f"ended by {name}"
    if stop_request is not None and name == "SIGTERM":
        return Outcome("signal", f"{text} after a stop.")
    if stop_request == "kill" and name == "SIGKILL":
        return Outcome("signal", f"{text}, because it did not end in time after a stop.")
    if name == "SIGKILL" and ooms > 0:
        kills = "one process" if ooms == 1 else f"{ooms} processes"
        return Outcome(
            "out-of-memory",
            f"{text}: the kernel ran out of memory and killed {kills} meanwhile. Use less memory (smaller batches, "
            f"fewer data-loading workers) or run fewer jobs at once.",
        )
    if name == "SIGABRT" and "std::bad_alloc" in last_output:
        return Outcome("out-of-memory", f"{text}: native code could not get memory (std::bad_alloc).")
    if name == "SIGABRT" and is_gpu_out_of_memory(last_output):
        return Outcome("out-of-memory", f"{text}: native code could not get memory on a GPU.")
    if name == "SIGKILL":
        hint = (
            "fanwise did not send it, and the kernel counted no kill for lack of memory: a person, a batch system or a "
            "container's memory limit may have."
        )
        return Outcome("signal", f"{text}. {hint}")
    stack = _STACK_HINT if _STACK_MARK in last_output else ""
    return Outcome("signal", f"{text}. {_HINTS.get(name, '')}{stack}".rstrip())


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- GPUs --------------------------------------------------------------------------------------------------------------


def is_gpu_out_of_memory(text: str) -> bool:
    """Return whether an error message reports a lack of memory on a GPU.

    >>> is_gpu_out_of_memory("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    True
    """
    return bool(_GPU_OUT_OF_MEMORY.search(text))


def is_gpu_oom(outcome: Outcome) -> bool:
    texts = (outcome.text, outcome.last_output)
    return outcome.kind == "out-of-memory" and any(map(is_gpu_out_of_memory, texts))


def has_cuda_error(outcome: Outcome) -> bool:
    """Return whether a job failed by an error of the GPU or of MPS other than a lack of memory."""
    if outcome.kind == "exception":
        return bool(_CUDA_ERROR.search(outcome.text))
    return outcome.kind in ("exit", "signal") and bool(_CUDA_ERROR.search(outcome.last_output))


def as_gpu_fault(outcome: Outcome) -> Outcome:
    """Return the outcome of a job with a CUDA error that other jobs on the GPU may have caused."""
    return replace(outcome, kind="gpu-fault", text=f"{outcome.text}\n{_GPU_FAULT}")


def end_of_stderr(path: Path) -> str:
    """Return the end of a job's standard error, without the frames of fanwise in the stack of a crash."""
    lines = tail(path, max_lines=80).split("\n")
    return "\n".join(line for line in lines if not line.startswith(_OMITTED))
