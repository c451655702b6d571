"""`run.gather`, `run.all_reduce`, `run.barrier`: what the processes of a run tell each other, rank by rank.

What comes of these depends on how many processes there are, unless the program sees to it that it does not. What must
not depend on them is for `run.mean` and `run.sum`.

When a process is lost meanwhile, all give what they have once more, without it; a function is called once more for
that, so it can divide the work among those that are left, as `run.mean` does.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from ..base.errors import NotSendableError
from ..links.codec import dumps_by_value, dumps_whole, loads
from ..tensor import aligned_buffer
from .checks.checking import check_name
from .comm.team import Team
from .shards import Node, total

T = TypeVar("T")
Op = Literal["sum", "mean", "min", "max"]
_OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}


def gather(team: Team, what: str, value: Any) -> list[Any]:  # Any: what can be pickled, or a function that returns it
    """What all have given, by rank, also to itself, as copies. `what`: this process does."""
    # A model, and a class, can be called as well, and mean themselves.
    is_called = callable(value) and not isinstance(value, nn.Module | type)
    each = team.together(lambda: team.gather(what, _packed(value() if is_called else value)))
    return [loads(packed) for packed in each]


def _packed(value: Any) -> bytes:  # Any: as given
    """One process needs no pickle, but what several cannot be given is refused in one as well."""
    try:
        return dumps_whole(value)
    except Exception as error:
        raise NotSendableError(
            f"a {type(value).__name__} that was given to the other processes cannot be pickled: {error}.\n"
            f"Give what it holds, as numbers, tensors, lists and dicts."
        ) from error


def _check_type(tensor: Tensor, op: Op) -> None:
    """Refuse types that torch cannot add or compare, also where one process has nothing to add."""
    one = torch.empty(1, dtype=tensor.dtype) if tensor.layout is torch.strided else tensor.detach()
    try:
        _OPERATORS[op](one, one)
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        raise TypeError(
            f"run.all_reduce(op={op!r}) got a tensor of {tensor.dtype}, layout {tensor.layout}: torch has no "
            f"{_OPERATORS[op].__name__} for it ({error}).\n"
            f"Convert it, for example by tensor.float(); run.gather takes it."
        ) from error


def copy_of_result(value: T, name: str) -> T:
    """What a training function has returned, as several processes would send it back. `name`: of the function."""
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
    """A new tensor; see `Run.all_reduce`."""
    check_name("op", op, tuple(_OPERATORS))
    home = torch.device("cpu")

    def given() -> Tensor:
        nonlocal home
        mine = tensor() if callable(tensor) else tensor
        if not isinstance(mine, Tensor):
            raise TypeError(
                f"run.all_reduce takes a tensor, or a function that returns one, got {type(mine).__name__}.\n"
                f"  wrong:  run.all_reduce(0.5)\n"
                f"  right:  run.all_reduce(torch.tensor(0.5))"
            )
        if op == "mean" and not (mine.is_floating_point() or mine.is_complex()):
            raise TypeError(
                f"run.all_reduce(op='mean') got a tensor of {mine.dtype}, whose mean is another type.\n"
                f"  wrong:  run.all_reduce(counts, op='mean')\n"
                f"  right:  run.all_reduce(counts) / run.world_size"
            )
        _check_type(mine, op)
        home = mine.device
        return mine.detach().cpu()

    each: list[Tensor] = gather(team, f"reduces tensors by {op}", given)
    kinds = [f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in each]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"run.all_reduce got tensors that cannot be reduced, by rank: {', '.join(kinds)}.\n"
            f"Every process gives one of the same type and shape; run.gather takes any."
        )
    nodes = [Node(rank, rank + 1, one) for rank, one in enumerate(each)]
    result: Tensor = total(nodes, len(each), _OPERATORS[op])
    return (result / len(each) if op == "mean" else result).to(home)
