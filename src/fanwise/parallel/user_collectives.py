"""`run.gather`, `run.all_reduce` and `run.barrier`: exchanges between the processes of a run.

Unlike `run.mean` and `run.sum`, their results depend on the number of processes.

If a process is lost meanwhile, the others exchange again without it. If the operand is a function, it is called again,
so that it can divide the work among the remaining processes.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from ..base.errors import NotSendableError
from ..links.codec import dumps_in_band, loads
from .comm.team import Team
from .step.tree import Node, total
from .validation.arguments import check_name

T = TypeVar("T")
Op = Literal["sum", "mean", "min", "max"]
_OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}


def gather(team: Team, operation: str, value: Any) -> list[Any]:
    """Return copies of the values of all processes, by rank. See `Run.gather`.

    Args:
        operation: what this process does, for messages, such as "gathers".
    """
    packed = team.together(lambda: team.gather(operation, _packed(_evaluated(value))))
    return [loads(value) for value in packed]


def _evaluated(value: Any) -> Any:
    # Not `callable`: modules and metrics are values, although they can be called.
    return value() if inspect.isroutine(value) else value


def _packed(value: Any) -> bytes:
    try:
        return dumps_in_band(value)
    except Exception as error:
        raise NotSendableError(
            f"a {type(value).__name__} that was given to the other processes cannot be pickled: {error}.\n"
            f"Use numbers, tensors, lists and dicts."
        ) from error


def copy_of_result(value: T, name: str) -> T:
    """Copy the result of a training function as if another process had sent it. `name`: name of the function."""
    try:
        packed = dumps_in_band(value)
    except Exception as error:
        raise NotSendableError(
            f"{name} returned a {type(value).__name__} that cannot be sent back: {error}.\n"
            f"Return plain values, arrays, or a state_dict."
        ) from error
    result: T = loads(packed)
    return result


def all_reduce(team: Team, tensor: Tensor | Callable[[], Tensor], op: Op) -> Tensor:
    """See `Run.all_reduce`."""
    check_name("op", op, tuple(_OPERATORS))
    device = torch.device("cpu")

    def operand() -> Tensor:
        nonlocal device
        value = _evaluated(tensor)
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
    result: Tensor = total(nodes, len(operands), _OPERATORS[op])
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
            f"run.all_reduce(op='mean') got a tensor of {value.dtype}, whose mean has another type.\n"
            f"  wrong:  run.all_reduce(counts, op='mean')\n"
            f"  right:  run.all_reduce(counts) / run.world_size"
        )
    # A single process does not call the operator, and must raise the same error as several.
    one = torch.empty(1, dtype=value.dtype) if value.layout is torch.strided else value.detach()
    try:
        _OPERATORS[op](one, one)
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        raise TypeError(
            f"run.all_reduce(op={op!r}) got a tensor of {value.dtype}, layout {value.layout}: torch has no "
            f"{_OPERATORS[op].__name__} for it ({error}).\n"
            f"Convert it, for example by tensor.float(); run.gather takes it."
        ) from error
