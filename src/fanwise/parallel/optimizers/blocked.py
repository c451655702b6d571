"""One process updates large parameters block by block: an optimizer goes over its numbers several times.

    Adam of 11 million parameters, one thread (benchmarks/optimizer_blocks.py):   as a whole 73 ms, in blocks 29 ms

torch's optimizers make a pass over the whole tensor for each operation, some ten for Adam, and each fetches everything
from main memory. Here a block takes all of them while it is in the cache. Blocks begin at multiples of 64 bytes, so
that every element is computed by the same instructions: the bits are the same. Several threads share out each operation
of a whole tensor, and would wait for each other after each of a block: with them nothing is cut. Nor is what makes few
passes, as SGD and RMSprop do: they would take a tenth longer.

The optimizer keeps its state as ever; blocks are views of it. Whatever does not fit - the first update of a parameter,
which makes its state, an element order of its own - is updated as a whole.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from .elementwise import KEYS, another, is_elementwise, is_watched

_BLOCK_BYTES = 1 << 20
# Below this many bytes of parameters everything is in the cache anyway.
_LEAST_BYTES = 1 << 22
_MANY_PASSES = (Adam, AdamW)


def pays(optimizer: Optimizer, params: Sequence[nn.Parameter]) -> bool:
    """Whether these parameters are worth the trouble, and the optimizer can be done in parts."""
    on_cpu = all(param.device.type == "cpu" for param in params)
    size = sum(param.numel() * param.element_size() for param in params)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    many = type(optimizer) in _MANY_PASSES
    return many and on_cpu and size >= _LEAST_BYTES and not fused and is_elementwise(optimizer, params)


class _Block(NamedTuple):
    """Elements `start` to `stop` of a parameter, and its state there."""

    start: int
    stop: int
    values: Tensor
    state: dict[str, Tensor]


class _Blocks(NamedTuple):
    """A parameter as it was cut: where it lay, and the state that was cut with it."""

    data: int
    state: list[Tensor]
    blocks: list[_Block]

    def is_of(self, param: nn.Parameter, state: Sequence[Tensor]) -> bool:
        """Whether it still lies there: `load_state_dict` makes other tensors, and so may the program."""
        same = len(state) == len(self.state) and all(map(operator.is_, self.state, state))
        return same and self.data == param.data_ptr()


class BlockedStep:
    """See the module.

    Args:
        optimizer: one that can be done in parts, see `pays`. block_bytes: a multiple of 64.
    """

    def __init__(self, optimizer: Optimizer, block_bytes: int = _BLOCK_BYTES) -> None:
        self._optimizer = optimizer
        self._block_bytes = block_bytes
        self._keys = KEYS[type(optimizer)]
        self._worker = another(optimizer, [{"params": [nn.Parameter(torch.zeros(1))]}])
        self._cut: dict[nn.Parameter, _Blocks] = {}

    def step(self) -> None:
        """As `optimizer.step()`."""
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        # Whoever has begun to watch it meanwhile is to see all gradients.
        for group in () if is_watched(optimizer) or torch.get_num_threads() > 1 else groups:
            keys = self._keys(group)
            for param in group["params"] if keys else ():
                blocks = self._blocks_of(param, keys)
                if blocks is not None:
                    self._update(param, group, blocks)
        optimizer.step()

    def _blocks_of(self, param: nn.Parameter, keys: Sequence[str]) -> list[_Block] | None:
        """None: it is updated as a whole this time."""
        size, grad = param.numel() * param.element_size(), param.grad
        if size <= self._block_bytes or grad is None or not (param.is_contiguous() and grad.is_contiguous()):
            return None
        if grad.dtype != param.dtype:
            return None
        held = self._optimizer.state.get(param, {})
        state = [held.get(key) for key in keys]
        if not all(isinstance(each, Tensor) and each.is_contiguous() for each in state):
            return None
        known = self._cut.get(param)
        if known is None or not known.is_of(param, state):
            known = self._cut[param] = _Blocks(
                param.data_ptr(), state, list(_cut(param, keys, state, self._block_bytes))
            )
        return known.blocks

    def _update(self, param: nn.Parameter, group: dict[str, Any], blocks: Sequence[_Block]) -> None:  # Any: settings
        grad, param.grad = param.grad, None
        assert grad is not None, "it has blocks"
        flat = grad.view(-1)
        own = self._worker.param_groups[0]
        own.update({name: value for name, value in group.items() if name != "params"})
        steps = self._optimizer.state[param].get("step")
        before = None if steps is None else steps.clone()
        for start, stop, values, state in blocks:
            values.grad = flat[start:stop]
            own["params"] = [values]
            if steps is not None:
                state["step"] = steps.copy_(before)
            self._worker.state[values] = state
            self._worker.step()
            values.grad = None
        self._worker.state.clear()


def _cut(param: nn.Parameter, keys: Sequence[str], state: Sequence[Tensor], block_bytes: int) -> Iterator[_Block]:
    flat, states = param.detach().view(-1), [each.view(-1) for each in state]
    elements = block_bytes // param.element_size()
    for start in range(0, len(flat), elements):
        stop = min(start + elements, len(flat))
        yield _Block(
            start, stop, flat[start:stop], {key: each[start:stop] for key, each in zip(keys, states, strict=True)}
        )
