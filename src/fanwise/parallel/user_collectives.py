"""`run.gather`, `run.all_reduce` and `run.barrier`: exchanges between the processes of a run, by rank.

Their results depend on the number of processes, unlike those of `run.mean` and `run.sum`.

If a process is lost meanwhile, the others exchange again without it. A function is called again for that, so that it
can divide the work among the remaining processes.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from ..base.errors import NotSendableError
from ..links.codec import dumps_by_value, dumps_whole, loads
from ..tensor import aligned_buffer
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


def gather(team: Team, operation: str, value: Any) -> list[Any]:  # Any: what can be pickled, or a function
    """Return copies of the values of all processes, by rank. `operation`: for messages, as "gathers"."""
    packed = team.together(lambda: team.gather(operation, _packed(_called(value))))
    return [loads(value) for value in packed]


def _called(value: Any) -> Any:  # Any: as given, or the result of the function
    """Call functions and methods. Other objects that can be called, such as modules and metrics, are values."""
    return value() if inspect.isroutine(value) else value


def _packed(value: Any) -> bytes:  # Any: as given
    """Pickle the value, also for a single process, so that it raises as several do."""
    try:
        return dumps_whole(value)
    except Exception as error:
        raise NotSendableError(
            f"a {type(value).__name__} that was given to the other processes cannot be pickled: {error}.\n"
            f"Use numbers, tensors, lists and dicts."
        ) from error


def copy_of_result(value: T, name: str) -> T:
    """Copy the result of a training function as if another process had sent it. `name`: of the function."""
    try:
        head, buffers = dumps_by_value(value)
    except Exception as error:
        raise NotSendableError(
            f"{name} returned a {type(value).__name__} that cannot be sent back: {error}.\n"
            f"Return plain values, arrays, or a state_dict."
        ) from error
    result: T = loads(head, [_copied(buffer) for buffer in buffers])
    return result


def _copied(buffer: memoryview) -> memoryview:
    memory = aligned_buffer(buffer.nbytes)
    memory[:] = buffer
    return memory


def all_reduce(team: Team, tensor: Tensor | Callable[[], Tensor], op: Op) -> Tensor:
    """Return a new tensor; see `Run.all_reduce`."""
    check_name("op", op, tuple(_OPERATORS))
    device = torch.device("cpu")

    def operand() -> Tensor:
        nonlocal device
        value = _called(tensor)
        _check_operand(value, op)
        device = value.device
        cpu: Tensor = value.detach().cpu()
        return cpu

    operands: list[Tensor] = gather(team, f"reduces tensors by {op}", operand)
    kinds = [f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" for value in operands]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"run.all_reduce got tensors that cannot be reduced, by rank: {', '.join(kinds)}.\n"
            f"Every process gives one of the same type and shape; run.gather takes any."
        )
    nodes = [Node(rank, rank + 1, value) for rank, value in enumerate(operands)]
    result: Tensor = total(nodes, len(operands), _OPERATORS[op])
    return (result / len(operands) if op == "mean" else result).to(device)


def _check_operand(value: Any, op: Op) -> None:  # Any: as given
    """Raise TypeError for a value that cannot be reduced, even with a single process."""
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
    one = torch.empty(1, dtype=value.dtype) if value.layout is torch.strided else value.detach()
    try:
        _OPERATORS[op](one, one)
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        raise TypeError(
            f"run.all_reduce(op={op!r}) got a tensor of {value.dtype}, layout {value.layout}: torch has no "
            f"{_OPERATORS[op].__name__} for it ({error}).\n"
            f"Convert it, for example by tensor.float(); run.gather takes it."
        ) from error
