"""`run.gather`, `run.all_reduce` and `run.barrier`: collective operations that programs call.

Unlike `run.mean` and `run.sum`, their results depend on the number of processes.

If a process is lost during the operation, the remaining processes repeat it. An operand that is a function is called
again, so that it can redivide the work.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.errors import NotSendableError
from ..links.codec import dumps_in_band, loads
from .comm.team import Team
from .step.tree import Node, tree_reduce


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
            f"run.gather and run.all_reduce cannot send a {type(value).__name__} to the other processes, because "
            f"it cannot be pickled: {error}.\nUse numbers, tensors, lists and dicts."
        ) from error


def all_reduce(team: Team, tensor: Tensor | Callable[[], Tensor]) -> Tensor:
    """See `Run.all_reduce`."""
    device = torch.device("cpu")

    def operand() -> Tensor:
        nonlocal device
        value = _call_if_function(tensor)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"run.all_reduce takes a tensor, or a function that returns one, got {type(value).__name__}.\n"
                f"  wrong:  run.all_reduce(0.5)\n"
                f"  right:  run.all_reduce(torch.tensor(0.5))"
            )
        device = value.device
        return value.detach().cpu()

    operands: list[Tensor] = gather(team, "reduces tensors", operand)
    kinds = [f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" for value in operands]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"run.all_reduce got tensors of different types or shapes, by rank: {', '.join(kinds)}.\n"
            f"Pass tensors of the same type and shape in all processes, or use run.gather."
        )
    nodes = [Node(rank, rank + 1, value) for rank, value in enumerate(operands)]
    result: Tensor = tree_reduce(nodes, len(operands), torch.add)
    return result.to(device)
