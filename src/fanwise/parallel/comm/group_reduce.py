"""Adds gradients over a process group of torch.distributed.

exact   all_to_all: each process sends every owner its slice of the process's nodes
        all_gather: each owner sends its slice of the sum to all
fast    all-reduce of the backend, NCCL or Gloo, in a run with a single step while the last backward pass of each
        process computes the remaining gradients. The order in which the backend adds depends on the number of
        processes, so the last bits of the sum do, too

Parameters without a gradient in any process, such as frozen ones, are not sent. Only the plan tells which ones these
are, so exact sends nothing before all processes have it, and fast relies on the plans of earlier steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .all_reduce import AllReducePlan, Grads, RankNode
from .flat_layout import Bucket, Layout, check_strided, flat_gradients, join_buckets
from .team import divide
from .torch_group import TorchGroup


class GroupTransport:
    """The exact `Transport`."""

    is_changeable = True

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._memory: dict[str, Tensor] = {}
        self._received: dict[tuple[int, int], Tensor] = {}  # the own slice of each node, by index and node index
        self._lay_out([])

    def _lay_out(self, has_grad: Sequence[bool]) -> None:
        self._has_grad = has_grad
        self._layout = Layout(self._params, [index for index, has in enumerate(has_grad) if has])
        self._slice_bytes = self._layout.slice_bytes(self._group.size)
        self._sum = self._flat_memory("sum", self._slice_bytes * self._group.size)
        self._grads = self._layout.param_views(self._sum)

    def send(self, nodes: Sequence[Grads | None]) -> None:
        self._own = flat_gradients(self._params, nodes)

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        if plan.has_grad != self._has_grad:
            self._lay_out(plan.has_grad)
        group, size = self._group, self._slice_bytes
        nodes = [rank_node for rank_node in plan.rank_nodes if rank_node.node.has_grad]
        own = [rank_node.node_index for rank_node in nodes if rank_node.member_index == group.index]
        counts = [sum(rank_node.member_index == index for rank_node in nodes) for index in range(group.size)]
        send = self._flat_memory("send", group.size * len(own) * size).view(group.size, len(own), size)
        self._fill(send, own)
        received = self._flat_memory("received", len(nodes) * size).view(len(nodes), size)
        if size:
            sizes = [len(own) * size] * group.size, [count * size for count in counts]
            group.all_to_all(send.view(-1), received.view(-1), *sizes)
        self._received = {rank_node[:2]: row for rank_node, row in zip(nodes, received, strict=True)}
        return join_buckets(self._layout.buckets_of(group.index, group.size), plan.flags())

    def _fill(self, send: Tensor, own: Sequence[int]) -> None:
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for owner, rows in enumerate(send):
            for bucket in self._layout.buckets_of(owner, len(send)):
                for node_index, row in zip(own, rows, strict=True):
                    if (flat := self._own.get((node_index, bucket.param_index))) is not None:
                        copies.append(bucket.view(row, owner * self._slice_bytes))
                        sources.append(bucket.view_in_param(flat))
        if copies:
            torch._foreach_copy_(copies, sources)

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        return bucket.view(self._received[rank_node[:2]], self._group.index * self._slice_bytes)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.view(self._sum)

    def barrier(self) -> None:
        self._group.all_gather(self._sum)

    def whole_sum(self) -> Grads:
        return self._grads

    def release(self) -> None:
        self._own.clear()

    def _flat_memory(self, name: str, size_bytes: int) -> Tensor:
        if name not in self._memory or len(self._memory[name]) < size_bytes:
            self._memory[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
        return self._memory[name][:size_bytes]


_BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel


class FastAllReduce:
    """The fast `AllReduce`. Each process has one node. Buckets start during the backward pass in a block of `overlap`.

    All processes start the same buckets in the same order, last parameters first, in every step. They may compute the
    gradients in different orders, and some processes may have no gradient of a parameter. All buckets of a step start
    before the processes exchange the plan. If a step is aborted, `release` starts the remaining buckets, so that they
    are not added to those of the next step.

    In a run with several steps, buckets start only after the plan, which shows whether all processes make the same one.

    The buckets contain the parameters that had a gradient in any process in an earlier step. If the plan has others,
    the buckets are enlarged and the sum is repeated.
    """

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self.num_aborted = 0  # steps that were aborted
        self._is_waiting_due = False  # all-reduces of such a step may still use the memory
        self._has_grad: Sequence[bool] = ()
        group.num_fast += 1
        self._lay_out([False] * len(self._params))

    @property
    def _overlaps(self) -> bool:
        return self._group.num_fast == 1

    def _lay_out(self, is_included: Sequence[bool]) -> None:
        self._is_included = is_included
        self._included = [index for index, included in enumerate(is_included) if included]
        layout = Layout(self._params, self._included)
        memory = torch.zeros(layout.size_bytes, dtype=torch.uint8, device=self._device)
        buckets = join_buckets(layout.buckets_of(0, 1), [is_included], _BUCKET_BYTES)[::-1]
        self._first_params = [bucket.param_index for bucket in buckets]
        self._buckets = [bucket.view(memory) for bucket in buckets]
        self._grads = layout.param_views(memory)
        self._reset()

    def _reset(self) -> None:
        self._num_started = 0  # buckets whose all-reduce has started
        self._ready: dict[int, tuple[Tensor, int]] = {}  # gradients in the buckets and their versions, by parameter
        self._missing = list(self._included)  # parameters up to the last one that is not ready

    @contextmanager
    def overlap(self) -> Iterator[None]:
        """Start buckets when the backward pass in this block has computed their gradients. `.grad` is then final."""
        self._wait_for_aborted()
        if not self._overlaps:
            yield
            return
        trained: list[tuple[int, Any]] = [(i, self._params[i]) for i in self._included if self._params[i].requires_grad]
        hooks = [param.register_post_accumulate_grad_hook(partial(self._on_grad, index)) for index, param in trained]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _on_grad(self, index: int, param: Tensor) -> None:
        grad = param.grad
        if grad is None or grad.is_sparse or index in self._ready:
            return
        self._ready[index] = grad, grad._version
        self._copy(index, grad)
        while self._missing and self._missing[-1] in self._ready:
            self._missing.pop()
        self._start_buckets_after(self._missing[-1] if self._missing else -1)

    def _copy(self, index: int, grad: Tensor | None) -> None:
        memory = self._grads[index]
        assert memory is not None, "the parameter is in a bucket"
        memory.zero_() if grad is None else memory.copy_(grad)

    def _start_buckets_after(self, index: int) -> None:
        """Start the next buckets that contain only parameters after this index."""
        while self._num_started < len(self._buckets) and self._first_params[self._num_started] > index:
            self._group.start_all_reduce(self._buckets[self._num_started])
            self._num_started += 1

    def reduce_scatter(self, nodes: Sequence[Grads | None], make_plan: Callable[[], AllReducePlan]) -> None:
        """Add whole gradients, which `all_gather` returns."""
        self._wait_for_aborted()
        grads = nodes[0] or [None] * len(self._params)
        self._check_gradients(grads)
        if self._overlaps:
            self._reduce_missing(grads)
            plan = make_plan()
        else:
            plan = make_plan()
            self._reduce_missing(grads)
        self._group.finish_all_reduce()
        is_included = [had or has for had, has in zip(self._is_included, plan.has_grad, strict=True)]
        if is_included != self._is_included:
            self._lay_out(is_included)
            self._reduce_missing(grads)
            self._group.finish_all_reduce()
        self._reset()
        self._has_grad = plan.has_grad
        if plan.count is not None:
            divide(self._buckets, plan.count)

    def _reduce_missing(self, grads: Grads) -> None:
        for index in self._included:
            if index not in self._ready:
                self._copy(index, grads[index])
        self._start_buckets_after(-1)

    def _check_gradients(self, grads: Grads) -> None:
        """Raise an error for a sparse gradient, or one that has changed after it was copied to its bucket."""
        for grad in grads:
            if grad is not None:
                check_strided(grad)
        for index, (grad, version) in self._ready.items():
            if grads[index] is not grad or grad._version != version:
                raise ValueError(
                    f"the gradient of a parameter of shape {tuple(grad.shape)} has changed after the backward pass had "
                    f"computed it. This happens if the loss itself calls backward, or if a parameter is used twice "
                    f"within checkpoint(..., use_reentrant=True).\n"
                    f"  right:  checkpoint(..., use_reentrant=False)\n"
                    f"  right:  fanwise.run(..., reduce='exact')"
                )

    def all_gather(self) -> Grads:
        return [grad if has else None for grad, has in zip(self._grads, self._has_grad, strict=True)]

    def release(self, *, is_aborted: bool = False) -> None:
        if is_aborted:
            self.num_aborted += 1
            self._is_waiting_due = True
            if self._overlaps:
                self._start_buckets_after(-1)
            self._reset()

    def _wait_for_aborted(self) -> None:
        if self._is_waiting_due:
            self._group.finish_all_reduce()
            self._is_waiting_due = False
