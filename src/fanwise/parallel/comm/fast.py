"""The `AllReduce` of `reduce="fast"` over a process group: the all-reduce of the backend, NCCL or Gloo.

Each process adds its own shards first. The order in which the backend adds depends on the number of processes, so the
last bits of the sum do, too. A process without a gradient of a parameter contributes zeros.

Parameters that had a gradient in the last batch are exchanged during the backward pass of the last shard. The others
follow after it if they have a gradient, such as all in the first batch.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..step.gradients import Partial
from .all_reduce import AllReducePlan, Grads
from .flat_layout import Layout, check_strided, join_buckets
from .team import divide
from .torch_group import TorchGroup

_BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel


class FlatGrads:
    """Gradients in flat memory, in the reverse order of the parameters. The memory is divided into buckets.

    Args:
        has_grad: for each parameter, True if the memory contains its gradient.

    Attributes:
        grads: the parts of the memory in the shapes of the parameters; None for parameters that it does not contain.
        missing: indices of the parameters whose gradients have not been put yet.
    """

    def __init__(self, params: Sequence[nn.Parameter], has_grad: Sequence[bool], device: torch.device) -> None:
        self.has_grad = list(has_grad)
        self._indices = [index for index, has in enumerate(has_grad) if has][::-1]
        layout = Layout(params, self._indices)
        memory = torch.zeros(layout.size_bytes, dtype=torch.uint8, device=device)
        pieces = layout.buckets_of(0, 1)
        ranges = join_buckets(pieces, [self.has_grad], _BUCKET_BYTES)
        self.buckets = [bucket.view(memory) for bucket in ranges]
        self.grads = layout.param_views(memory)
        starts = [piece.begin_byte for piece in pieces]
        last_pieces = [pieces[bisect_left(starts, bucket.end_byte) - 1] for bucket in ranges]
        self._last_places = [self._indices.index(piece.param_index) for piece in last_pieces]
        self.reset()

    def reset(self) -> None:
        """Expect the gradients of the next batch."""
        self.missing = dict.fromkeys(self._indices)
        self._num_put = self._num_taken = 0

    def put(self, index: int, operands: Sequence[Tensor | None]) -> bool:
        """Set a gradient to the sum of its operands. Without any, set it to zeros and return False."""
        memory = self.grads[index]
        assert memory is not None, "the memory contains the parameter"
        present = [operand for operand in operands if operand is not None]
        for number, operand in enumerate(present):
            check_strided(operand)
            memory.add_(operand) if number else memory.copy_(operand)
        if not present:
            memory.zero_()
        del self.missing[index]
        return bool(present)

    def take_complete(self) -> list[Tensor]:
        """Return the next buckets, up to the first one that is not complete."""
        while self._num_put < len(self._indices) and self._indices[self._num_put] not in self.missing:
            self._num_put += 1
        begin, self._num_taken = self._num_taken, bisect_left(self._last_places, self._num_put)
        return self.buckets[begin : self._num_taken]


class FastAllReduce:
    """See the module. Each process has one node."""

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self.overlaps = True  # with the backward pass; the same in all processes
        self._group = group
        self._params = list(params)
        self._device = device
        self._has_grad: Sequence[bool] = [False] * len(self._params)  # in the last batch
        self._flat = FlatGrads(self._params, self._has_grad, device)
        self._earlier: Sequence[list[Tensor | None]] = []  # gradients of the shards before the last one
        self._is_started = False  # all buckets of the current batch

    def _begin(self, has_grad: Sequence[bool]) -> None:
        self._is_started = False
        self._group.finish_all_reduces()  # of a batch that has failed
        if list(has_grad) != self._flat.has_grad:
            self._flat = FlatGrads(self._params, has_grad, self._device)
        self._flat.reset()

    def _put(self, index: int, grad: Tensor | None = None) -> bool:
        is_present = self._flat.put(index, [*(grads[index] for grads in self._earlier), grad])
        for grads in self._earlier:
            grads[index] = None
        for bucket in self._flat.take_complete():
            self._group.start_all_reduce(bucket)
        return is_present

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Execute the shards of a batch in this block. At its end, also by an error, all buckets have been started."""
        self._begin(self._has_grad if self.overlaps else [False] * len(self._params))
        try:
            yield
            self._is_started = True
        finally:
            self._earlier = []
            for index in [] if self._group.is_broken else list(self._flat.missing):
                self._put(index)

    def backward(self, earlier: Sequence[list[Tensor | None]], loss: Tensor) -> None:
        """Execute the backward pass of the last shard of this process. Call `take_grads` afterwards.

        Args:
            earlier: gradients of the other shards of this process. Those that are exchanged become None.
        """
        self._earlier = earlier
        params: Any = self._params  # torch has not annotated the hooks
        trained = [index for index in self._flat.missing if params[index].requires_grad]
        hooks = [params[index].register_post_accumulate_grad_hook(partial(self._add, index)) for index in trained]
        try:
            loss.backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        finally:
            for hook in hooks:
                hook.remove()

    def _add(self, index: int, param: Tensor) -> None:
        if index in self._flat.missing and param.grad is not None and param.grad.layout is torch.strided:
            self._put(index, param.grad)
            param.grad = None

    def take_grads(self, last: Partial) -> None:
        """Replace the gradients of the last shard by the memory of the sums over all processes.

        A reentrant checkpoint may compute a gradient again after its bucket was started. The rest is sent with the
        sparse gradients, which is slow, so the following batches do not overlap.
        """
        for index, memory in enumerate(self._flat.grads):
            grad = last.grads[index]
            if index in self._flat.missing:
                last.grads[index] = memory if self._put(index, grad) else None
            elif memory is not None:
                last.grads[index] = memory
                if grad is not None:
                    last.sparse[index] = grad

    def all_reduce(self, nodes: Sequence[Grads | None], make_plan: Callable[[], AllReducePlan]) -> Grads:
        own = nodes[0] or [None] * len(self._params)
        for grad in own:
            if grad is not None:
                check_strided(grad)
        plan = make_plan()
        if not self._is_started:
            self._begin(plan.has_grad)
            for index in list(self._flat.missing):
                self._put(index, own[index])
        self._is_started, self._has_grad = False, plan.has_grad
        both = zip(plan.has_grad, self._flat.has_grad, strict=True)
        rest = FlatGrads(self._params, [has and not is_started for has, is_started in both], self._device)
        for index in list(rest.missing):
            rest.put(index, [own[index]])
        for bucket in rest.buckets:
            self._group.start_all_reduce(bucket)
        self._group.finish_all_reduces()
        if plan.count is not None:
            divide(self._flat.buckets + rest.buckets, plan.count)
        grads = zip(plan.has_grad, self._flat.grads, rest.grads, strict=True)
        return [(later if grad is None else grad) if has else None for has, grad, later in grads]

    def release(self) -> None:
        """Nothing is kept."""
