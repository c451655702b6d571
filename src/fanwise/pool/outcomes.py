"""How a job ended, on its way from the process that ran it to whoever asked; what it printed last, fit to be told.

What a job printed is somebody else's text: `end_of_stderr` leaves out the lines that every crash of a worker of ours
has in common.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import TrialStopped, WorkerLostError
from ..links.codec import Beside, ErrorText, error_text, loads, unpack_error
from .contract import Outcome, OutcomeKind, Output
from .deaths import is_gpu_out_of_memory
from .output import tail

_OUT_OF_MEMORY = frozenset(("MemoryError", "_ArrayMemoryError"))
_OUR_FRAMES = (str(Path(__file__).parent), str(Path(__file__).parent.parent / "links"))


def value_of(outcome: Outcome) -> Any:  # Any: the function's result
    """The result; raises the job's error in its original type, `WorkerLostError` for a death."""
    if outcome.kind == "returned":
        return loads(outcome.payload, outcome.buffers)
    if outcome.kind == "stopped":
        raise TrialStopped(outcome.text)
    if outcome.payload:
        raise unpack_error(outcome.payload)
    raise WorkerLostError(outcome.text)


def to_send(outcome: Outcome) -> Outcome:
    """The same, fit to be sent on a link; nothing is copied."""
    return replace(outcome, buffers=[Beside(buffer) for buffer in outcome.buffers])


def exception_outcome(
    packed: bytes, objective_s: float | None, last_output: str, *, threads: tuple[str, ...] = ()
) -> Outcome:
    """The outcome of a job whose function raised. An interpreter's exit is an `exit`, not an exception to pass on."""
    text = error_text(packed)
    if text.name in ("SystemExit", "KeyboardInterrupt") and text.module == "builtins":
        left = f"the job left by {text}"
        return Outcome("exit", left, text.trace, last_output, objective_s=objective_s, threads=threads)
    kind = _kind_of(text)
    return Outcome(kind, str(text), text.trace, last_output, packed, objective_s=objective_s, threads=threads)


def _kind_of(text: ErrorText) -> OutcomeKind:
    if text.module == WorkerLostError.__module__ and text.name == WorkerLostError.__name__:
        return "lost"  # the process that was to start it, or one that it asked, is gone
    return "out-of-memory" if text.name in _OUT_OF_MEMORY or is_gpu_out_of_memory(str(text)) else "exception"


def end_of_stderr(path: Path) -> str:
    """The end of a job's stderr, for people. Of the stack of a crash the frames above the user's are left out."""
    return _without_ours(tail(path, max_lines=80))


def last_words(output: Output) -> str:
    """What to tell of a job that failed: the end of what it printed as errors, or if there is none, of the rest."""
    return _without_ours("\n".join(output.err.split("\n")[-80:])) or "\n".join(output.out.split("\n")[-20:])


def _without_ours(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(line for line in lines if not _is_ours(line) and not line.startswith("Extension modules: "))


def _is_ours(line: str) -> bool:
    return line.startswith('  File "') and line.startswith(_OUR_FRAMES, len('  File "'))
