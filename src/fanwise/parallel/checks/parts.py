"""Whether the parameters that a step was made for are still those of its model and optimizer. Asked before each step.

    model.append(layer)                             a parameter that nobody adds up over the shards
    model.head = layer                              the same, and one that is gone
    optimizer.param_groups[0]["params"] = [...]     perhaps another model's

What a step exchanges, and looks after, is fixed when it is made, so it is refused where parts have come to its modules,
in the same words on any number of devices. What was there already may be frozen, thawed, renamed, left out or given to
the optimizer later. The usual answer costs one comparison of references over all parts, some microseconds.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import nn

from .checking import check_optimizer

_values = operator.methodcaller("values")


class Parts:
    """Of the modules of one step, by name; "" is the model."""

    def __init__(self, modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._modules = modules
        self._optimizers = optimizers
        self._params = dict(_params_of(modules))
        parts = (part for module in modules.values() for part in module.modules())
        self._known = {id(each) for each in (*self._params.values(), *parts)}
        self._remember()

    def _remember(self) -> None:
        parts = [part for module in self._modules.values() for part in module.modules()]
        registers = [register for part in parts for register in (part._parameters, part._modules)]
        self._registers = [register for register in registers if register]
        self._empty = [register for register in registers if not register]
        self._seen = self._now()

    def _now(self) -> list[object]:
        held = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        return [*chain.from_iterable(map(_values, self._registers)), *chain.from_iterable(held)]

    def check(self, number: int) -> None:
        """Before a step, which has this number.

        Raises:
            ValueError: a module has got a parameter, or a part with a state, that it had not when the step was made; or
                the optimizer holds parameters that are not the model's.
        """
        now = self._now()
        if not any(self._empty) and len(now) == len(self._seen) and all(map(operator.is_, now, self._seen)):
            return
        params = dict(_params_of(self._modules))
        new = [name for name, param in params.items() if id(param) not in self._known]
        new = new or [name for name, part in _parts_of(self._modules) if id(part) not in self._known]
        if new:
            is_known = new[0] in self._params
            others = f", and {len(new) - 1} more" if len(new) > 1 else ""
            raise ValueError(
                f"the model has changed since step {number} was made: {new[0]!r} is {'another' if is_known else 'new'}"
                f"{others}. A step exchanges the gradients of the parameters that its model had when it was made, and "
                f"looks after the parts that were there.\n"
                f"  wrong:  model.append(layer); optimizer.add_param_group(...); step(batch)\n"
                f"  right:  model.append(layer); optimizer.add_param_group(...)\n"
                f"          step = run.step(model, optimizer, loss_fn)     # anew; then step(batch)"
            )
        for optimizer in self._optimizers:
            check_optimizer(optimizer, self._modules[""], has_closure=True)
        self._remember()


def _params_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for prefix, module in modules.items():
        for name, param in module.named_parameters():
            yield f"{prefix}.{name}" if prefix else name, param


def _parts_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Those that keep something besides parameters."""
    for prefix, module in modules.items():
        for name, part in module.named_modules(prefix=prefix):
            if part._buffers:
                yield name, part
