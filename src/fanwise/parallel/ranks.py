"""`run.gather`, `run.all_reduce`, `run.barrier`: what the processes of a run tell each other, rank by rank.

What comes of these depends on how many processes there are, unless the program sees to it that it does not. What must
not depend on them is for `run.mean` and `run.sum`.

When a process is lost meanwhile, all give what they have once more, without it; a function is called once more for
that, so it can divide the work among those that are left, as `run.mean` does.
"""

import pickle
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..base.errors import NotSendableError
from .checks.checking import check_name
from .shards import Node, total
from .teams.team import Team

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
    return [pickle.loads(packed) for packed in each]


def _packed(value: Any) -> bytes:  # Any: as given
    """One process needs no pickle, but what several cannot be given is refused in one as well."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise NotSendableError(
            f"a {type(value).__name__} that was given to the other processes cannot be pickled: {error}.\n"
            f"Give what it holds, as numbers, tensors, lists and dicts."
        ) from error


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
