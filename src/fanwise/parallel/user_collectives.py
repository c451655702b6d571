"""`run.gather`, `run.all_reduce` and `run.barrier`: collective operations that programs call.

Unlike `run.mean` and `run.sum`, their results depend on the number of processes.

If a process is lost during the operation, the remaining processes repeat it. An operand that is a function is called
again, so that it can redivide the work.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..base.errors import NotSendableError
from ..links.codec import dumps_in_band, loads
from .comm.team import Team
from .step.tree import Node, tree_reduce
from .validation.arguments import check_one_of

Op = Literal["sum", "mean", "min", "max"]
_OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}


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


def all_reduce(team: Team, tensor: Tensor | Callable[[], Tensor], op: Op) -> Tensor:
    """See `Run.all_reduce`."""
    check_one_of("op", op, tuple(_OPERATORS))
    device = torch.device("cpu")

    def operand() -> Tensor:
        nonlocal device
        value = _call_if_function(tensor)
        _check_operand(value, op)
        device = value.device
        on_host: Tensor = value.detach().cpu()
        return on_host

    operands: list[Tensor] = gather(team, f"reduces tensors by {op}", operand)
    kinds = [f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" for value in operands]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"run.all_reduce got tensors of different types or shapes, by rank: {', '.join(kinds)}.\n"
            f"Pass tensors of the same type and shape in all processes, or use run.gather."
        )
    nodes = [Node(rank, rank + 1, value) for rank, value in enumerate(operands)]
    result: Tensor = tree_reduce(nodes, len(operands), _OPERATORS[op])
    return (result / len(operands) if op == "mean" else result).to(device)


def _check_operand(value: Any, op: Op) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"run.all_reduce takes a tensor, or a function that returns one, got {type(value).__name__}.\n"
            f"  wrong:  run.all_reduce(0.5)\n"
            f"  right:  run.all_reduce(torch.tensor(0.5))"
        )
    if op == "mean" and not (value.is_floating_point() or value.is_complex()):
        raise TypeError(
            f"run.all_reduce(op='mean') got a tensor of {value.dtype}, but the mean of integers is not an integer.\n"
            f"  wrong:  run.all_reduce(counts, op='mean')\n"
            f"  right:  run.all_reduce(counts) / run.world_size"
        )
    # With one process the operator is never called, so call it here to raise the same error as with several.
    probe = torch.empty(1, dtype=value.dtype) if value.layout is torch.strided else value.detach()
    try:
        _OPERATORS[op](probe, probe)
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        raise TypeError(
            f"run.all_reduce(op={op!r}) got a tensor of {value.dtype}, layout {value.layout}: torch has no "
            f"{_OPERATORS[op].__name__} for it ({error}).\n"
            f"Convert it, for example with tensor.float(), or use run.gather, which accepts any tensor."
        ) from error
