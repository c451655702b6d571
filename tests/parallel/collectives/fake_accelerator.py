"""A program: the collectives on torch devices that do not exist, and what they moved, as JSON.

torch lets Python stand for an accelerator. Here "fake:0", "fake:1" ... keep their data in CPU tensors; an operation
on tensors of two of them is an error, as on GPUs; a copy from one to another is counted. The registration holds for
the whole process, so the tests run this file in one of its own.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as trees
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fanwise.parallel import all_gather, allreduce, broadcast, reduce_scatter

SIZE = 840  # elements; divides by every number of devices below
COUNTS = (1, 2, 3, 4, 7, 8)
HOWS = ("root", "owner", "ring", "tree")
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)

sent: Counter[str] = Counter()
received: Counter[str] = Counter()
waits: list[bool] = []


class Fake(Tensor):
    """A tensor on a fake device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: str | torch.device) -> "Fake":
        made: Fake = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=torch.device(device)
        )
        made.held = held
        return made

    # The stub of torch has another signature than its documentation.
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch's
        kwargs = kwargs or {}
        if func in _COPIES:
            return copied(func, args, kwargs)
        places = {x.device for x in trees.tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        assert len(places) == 1, f"{func} got tensors of {places}"
        (place,) = places
        bare = trees.tree_map(lambda x: x.held if isinstance(x, Fake) else x, (args, kwargs))
        result = func(*bare[0], **bare[1])
        if func._schema.is_mutable:
            return args[0]
        return trees.tree_map(lambda x: Fake(x, place) if isinstance(x, Tensor) else x, result)


def copied(func: Any, args: Any, kwargs: Any) -> Any:
    """The two ways of torch to copy between devices."""
    if func is torch.ops.aten._to_copy.default:
        source, goal = args[0], kwargs["device"]
        target: Any = Fake(torch.empty_like(source.held), goal)
        waited = not kwargs["non_blocking"]
    else:
        target, source = args[:2]
        waited = not (len(args) > 2 and args[2])
    target.held.copy_(source.held)
    if source.device != target.device:
        sent[str(source.device)] += source.numel()
        received[str(target.device)] += source.numel()
        waits.append(waited)
    return target


def fakes(values: Sequence[Tensor]) -> list[Fake]:
    return [Fake(value.clone(), f"fake:{place}") for place, value in enumerate(values)]


def measured(function: Callable[[list[Any]], list[Any]], values: Sequence[Tensor]) -> dict[str, object]:
    """What a function returned, and the elements that each device sent and received."""
    sent.clear()
    received.clear()
    result = function(fakes(values))
    names = [f"fake:{place}" for place in range(len(values))]
    assert [str(x.device) for x in result] == names, "results lie on other devices"
    return {
        "result": [x.held.tolist() for x in result],
        "sent": [sent[name] for name in names],
        "received": [received[name] for name in names],
    }


def main() -> None:
    _setup_privateuseone_for_python_backend("fake")
    chance = torch.Generator().manual_seed(7)
    found = {}
    for count in COUNTS:
        values = [torch.randn(SIZE, generator=chance) for _ in range(count)]
        for how in HOWS:
            on_cpus = [x.tolist() for x in allreduce([x.clone() for x in values], how)]  # type: ignore[arg-type]
            found[f"{how} {count}"] = measured(lambda xs, how=how: allreduce(xs, how), values)  # type: ignore[misc]
            assert found[f"{how} {count}"]["result"] == on_cpus, f"other bits than on CPU devices: {how} {count}"
        matrices = [x.reshape(4, -1).t() for x in values]  # not contiguous
        for how in HOWS:
            strided = measured(lambda xs, how=how: allreduce(xs, how), matrices)  # type: ignore[misc]
            assert strided["result"] == [x.tolist() for x in allreduce([x.clone() for x in matrices], how)]  # type: ignore[arg-type]
        found[f"reduce_scatter {count}"] = measured(reduce_scatter, values)
        found[f"broadcast {count}"] = measured(lambda xs: broadcast(xs, len(xs) - 1), values)
        found[f"all_gather {count}"] = measured(all_gather, [x[: SIZE // count] for x in values])
    for measurement in found.values():
        del measurement["result"]
    print(json.dumps({"found": found, "num_copies": len(waits), "num_waits": sum(waits)}))


if __name__ == "__main__":
    main()
