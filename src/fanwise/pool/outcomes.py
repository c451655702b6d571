"""How a job ended, in the form that the pool, the tuner and the record share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..base.errors import TrialStopped, WorkerLostError
from ..links.codec import error_text, loads, unpack_error

Kind = Literal["returned", "exception", "exit", "signal", "out-of-memory", "lost", "stopped"]


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
        if self.kind == "exception":
            raise unpack_error(self.payload)
        raise self.as_lost()

    def as_lost(self) -> WorkerLostError:
        """The error for a job that died without a result."""
        return WorkerLostError(self.text)


def exception_outcome(packed: bytes, objective_s: float | None, last_output: str) -> Outcome:
    """The outcome of a job whose function raised. An interpreter's exit is an `exit`, not an exception to pass on."""
    text = error_text(packed)
    if text.name in ("SystemExit", "KeyboardInterrupt") and text.module == "builtins":
        return Outcome("exit", f"the job left by {text}", text.trace, last_output, objective_s=objective_s)
    return Outcome("exception", str(text), text.trace, last_output, payload=packed, objective_s=objective_s)
