"""`run.gather` and `run.barrier`: collective operations that programs call.

Unlike that of `run.mean`, the result depends on the number of processes.

If a process is lost during the operation, the remaining processes repeat it. An operand that is a function is called
again, so that it can redivide the work.
"""

import inspect
from typing import Any

from ..base.errors import NotSendableError
from ..links.codec import dumps_in_band, loads
from .comm.team import Team


def gather(team: Team, operation: str, value: Any) -> list[Any]:
    """Return copies of all processes' values, by rank. `operation`: verb for error messages, such as "gathers"."""
    pickles = team.together(lambda: team.gather(operation, _pickle(_call_if_function(value))))
    return [loads(value) for value in pickles]


def _call_if_function(value: Any) -> Any:
    # Not `callable`: modules and metrics are values, although they can be called.
    return value() if inspect.isroutine(value) else value


def _pickle(value: Any) -> bytes:
    try:
        return dumps_in_band(value)
    except Exception as error:
        raise NotSendableError(
            f"run.gather cannot send a {type(value).__name__} to the other processes, because "
            f"it cannot be pickled: {error}.\nUse numbers, tensors, lists and dicts."
        ) from error
