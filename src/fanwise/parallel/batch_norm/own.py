"""What a shard has for itself while others are at work between its meetings.

    random state    torch's generators go on where this shard left them
    attributes      each module has a `__dict__` for each shard: what a forward pass writes there (a buffer, a cached
                    activation, an auxiliary loss) is what the same shard reads later
    gradients       are moved out of a parameter as soon as they are there

The modules stay the same objects, so hooks, closures and references from one to another mean what they mean elsewhere.
What the shards share is what an attribute refers to, such as a list. After a step a module has the attributes of the
first shard, which are the same on any number of devices, and the buffers of before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Attributes = dict[str, Any]  # Any: of a module

_REGISTERS = ("_parameters", "_buffers", "_modules")


class Own:
    """Of one shard. Begins with what there is when it is made."""

    def __init__(self, modules: Sequence[nn.Module], generators: Sequence[torch.Generator]) -> None:
        copies: dict[int, Tensor] = {}
        self._modules = modules
        self._attributes = [_copied(module.__dict__, copies) for module in modules]
        self._generators = generators
        self._states = [generator.get_state() for generator in generators]

    def enter(self) -> None:
        """It is this shard's turn."""
        for module, attributes in zip(self._modules, self._attributes, strict=True):
            object.__setattr__(module, "__dict__", attributes)
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)

    def leave(self) -> None:
        """It is another one's turn."""
        self._states = [generator.get_state() for generator in self._generators]

    @property
    def attributes(self) -> list[Attributes]:
        """Of each module, without parameters, buffers and modules."""
        return [{name: value for name, value in each.items() if name not in _REGISTERS} for each in self._attributes]


def _copied(attributes: Attributes, copies: dict[int, Tensor]) -> Attributes:
    """A buffer that several modules have is one buffer in the copy, too."""
    buffers = attributes["_buffers"]
    for buffer in buffers.values():
        if buffer is not None and id(buffer) not in copies:
            copies[id(buffer)] = buffer.detach().clone()
    own = {name: None if buffer is None else copies[id(buffer)] for name, buffer in buffers.items()}
    return {**attributes, **{name: dict(attributes[name]) for name in _REGISTERS}, "_buffers": own}


@contextmanager
def apart(model: nn.Module, count: int) -> Iterator[list[Own]]:
    """What so many shards have for themselves. After the block modules and random states are as before it."""
    modules = list(model.modules())
    generators = [torch.default_generator, *_accelerator_generators(model)]
    before = [module.__dict__ for module in modules]
    states = [generator.get_state() for generator in generators]
    made = [Own(modules, generators) for _ in range(count)]
    try:
        yield made
        for attributes, of_first in zip(before, made[0].attributes, strict=True):
            attributes.update(of_first)
    finally:
        for module, attributes in zip(modules, before, strict=True):
            object.__setattr__(module, "__dict__", attributes)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _accelerator_generators(model: nn.Module) -> list[torch.Generator]:
    found = sorted({param.device.index for param in model.parameters() if param.device.type == "cuda"})
    return [torch.cuda.default_generators[index] for index in found]


class Gradients:
    """Of shards that are executed in turns: a list for each, by parameter. None: the loss did not reach it.

    Args:
        turn: which shard's turn it is.
    """

    def __init__(self, params: Sequence[nn.Parameter], count: int, turn: Callable[[], int]) -> None:
        self.of: list[list[Tensor | None]] = [[None] * len(params) for _ in range(count)]
        self._params = params
        self._turn = turn

    @contextmanager
    def taken(self) -> Iterator[None]:
        """In this block a gradient that is added to a parameter is taken out of it, for the shard whose turn it is."""
        handles = [
            param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # not annotated
                partial(self._take, place)
            )
            for place, param in enumerate(self._params)
            if param.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _take(self, place: int, param: Tensor) -> None:
        mine = self.of[self._turn()]
        so_far = mine[place]
        mine[place] = param.grad if so_far is None or param.grad is None else so_far + param.grad
        param.grad = None
