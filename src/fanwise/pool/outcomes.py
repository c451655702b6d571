"""How a job ended, in the form that the pool, the tuner and the record share.

What a job printed last is somebody else's text: `said_last` makes it fit to be told, without the lines that every
crash of a worker of ours has in common.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..base.errors import TrialStopped, WorkerLostError
from ..links.codec import ErrorText, error_text, loads, unpack_error
from .output import tail

Kind = Literal["returned", "exception", "exit", "signal", "out-of-memory", "lost", "stopped"]

_OUT_OF_MEMORY = frozenset(("MemoryError", "_ArrayMemoryError", "OutOfMemoryError"))
_OUR_FRAMES = (str(Path(__file__).parent), str(Path(__file__).parent.parent / "links"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
        kind: what happened; `returned` is the only success.
        text: one line or a few, for people; empty for `returned`.
        traceback: of the worker, when there was an exception.
        last_output: the last lines it wrote, when it failed.
        payload, buffers: the packed result, or the packed error.
        objective_s: seconds inside the function, as the worker measured them; None when it could not tell.
    """

    kind: Kind
    text: str = ""
    traceback: str = ""
    last_output: str = ""
    payload: bytes = b""
    buffers: Sequence[Any] = ()  # Any: bytes-like
    objective_s: float | None = None

    def value(self) -> Any:  # Any: the function's result
        """The result; raises the job's error in its original type, `WorkerLostError` for a death."""
        if self.kind == "returned":
            return loads(self.payload, self.buffers)
        if self.kind == "stopped":
            raise TrialStopped(self.text)
        if self.payload:
            raise unpack_error(self.payload)
        raise self.as_lost()

    def as_lost(self) -> WorkerLostError:
        """The error for a job that died without a result."""
        return WorkerLostError(self.text)

    def to_send(self) -> "Outcome":
        """The same, fit to be sent on a link; nothing is copied."""
        return replace(self, buffers=[pickle.PickleBuffer(buffer) for buffer in self.buffers])


def exception_outcome(packed: bytes, objective_s: float | None, last_output: str) -> Outcome:
    """The outcome of a job whose function raised. An interpreter's exit is an `exit`, not an exception to pass on."""
    text = error_text(packed)
    if text.name in ("SystemExit", "KeyboardInterrupt") and text.module == "builtins":
        return Outcome("exit", f"the job left by {text}", text.trace, last_output, objective_s=objective_s)
    return Outcome(_kind_of(text), str(text), text.trace, last_output, payload=packed, objective_s=objective_s)


def _kind_of(text: ErrorText) -> Kind:
    if text.module == WorkerLostError.__module__ and text.name == WorkerLostError.__name__:
        return "lost"  # the process that was to start it, or one that it asked, is gone
    return "out-of-memory" if text.name in _OUT_OF_MEMORY else "exception"


def said_last(path: Path) -> str:
    """The end of a job's stderr, for people. Of the stack of a crash the frames above the user's are left out."""
    lines = tail(path, max_lines=80).split("\n")
    return "\n".join(line for line in lines if not _is_ours(line) and not line.startswith("Extension modules: "))


def _is_ours(line: str) -> bool:
    return line.startswith('  File "') and line.startswith(_OUR_FRAMES, len('  File "'))
