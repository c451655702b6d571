"""The autograd graph of one worker, divided into groups of nodes that run one after another, each node once.

    roots ----> a ----> b ----> leaf          group of the roots:      a
                        ^                     group of both:           b, leaf
    sent 7 ---> c ------+                     group of message 7:      c

A node must wait for everything that flows into it, and the gradients of messages arrive at any time. So nodes are
grouped by what reaches them: the roots (together) and each sent message. A group runs when its last message is
resolved; gradients that leave it are kept for the group they flow into.

torch's engine cannot run a given set of nodes: it runs what lies on a path to its `inputs`, and calls the tensor hooks
of the node where it stops. So a group runs in two ways:

* together, in one call of the engine, where gradients leave the group only for leaves. They are intercepted at the
  leaf;
* one by one, all nodes from which gradients flow into an inner node of another group. A hook on the node takes its
  gradients and stops the engine. torch then keeps the tensors saved by this node until the graph is deleted.

A leaf runs last and once, on the sum, with all its hooks, but its gradient is taken before it reaches `.grad`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward

from .functions import expect, take_grads
from .messages import Grads
from .pass_state import NodeGroup

Edge = tuple[Node, int]

_LEAF = "torch::autograd::AccumulateGrad"
# Post-accumulate hooks read the gradient from `.grad` of the leaf, where it is while the leaf runs.
_grad_attribute_lock = threading.RLock()
# Torch runs nodes of an accelerator in its own threads, where a hook cannot tell which pass it is called for.
_accelerator_lock = threading.RLock()


class GroupResult(NamedTuple):
    """The gradients of a group: of leaves, and of received tensors by message (None: no gradient)."""

    leaves: list[tuple[torch.Tensor, torch.Tensor]]
    received: dict[int, Grads | None]


class _Stop(BaseException):
    """Stops the engine."""


class _GradientSum:
    """The sum of the gradients that have arrived for an output of a node. Thread-safe."""

    __slots__ = ("_is_own", "_lock", "grad", "number")

    def __init__(self, number: int, grad: torch.Tensor) -> None:
        self.number = number
        self.grad = grad
        self._is_own = False  # the first gradient may be in memory that others read
        self._lock = threading.Lock()

    def add(self, grad: torch.Tensor) -> None:
        with self._lock:
            self.grad = self.grad.add_(grad) if self._is_own else self.grad + grad
        self._is_own = True

    def is_alike(self, grad: torch.Tensor) -> bool:
        """Return True if the sum would have the properties of this one. Others are added by the engine."""
        total = self.grad
        return (
            type(total) is type(grad) is torch.Tensor
            and total.layout is grad.layout is torch.strided
            and total.shape == grad.shape
            and total.dtype is grad.dtype
            and total.device == grad.device
        )


class Graph:
    """The nodes that gradients reach from the roots and the sent messages, when it is created.

    Args:
        roots: scalars with history; may be empty.
        sent: edges of the tensors of each sent message.
        received: the Recv of each received message.
    """

    def __init__(
        self, roots: Sequence[torch.Tensor], sent: Mapping[int, Sequence[Edge]], received: Mapping[int, Node]
    ) -> None:
        self._roots = roots  # nodes created in Python live as long as their outputs
        self._sent = sent
        self._message_of = {node: message for message, node in received.items()}
        self._children: dict[Node, list[Edge | None]] = {}
        self._grads: dict[Node, list[_GradientSum]] = {}
        self._grads_lock = threading.Lock()
        self.groups: list[NodeGroup] = []
        self._nodes: list[list[Node]] = []  # of each group, in topological order
        self._group_of: dict[Node, int] = {}
        edges = [(cast(Node, root.grad_fn), root.output_nr) for root in roots]
        self._divide(edges)
        for (node, number), root in zip(edges, roots, strict=True):
            self._add_grad(node, number, torch.ones_like(root))

    # -- dividing --------------------------------------------------------------------------------------------------

    def _divide(self, roots: list[Edge]) -> None:
        messages = list(self._sent)
        reached_by: dict[Node, int] = {}  # bit 0: the roots; bit i + 1: messages[i]
        sources = [roots, *(self._sent[message] for message in messages)]
        for bit, edges in enumerate(sources):
            for node, _ in edges:
                reached_by[node] = reached_by.get(node, 0) | 1 << bit
        nodes_by_mask: dict[int, list[Node]] = {}
        for node in self._topological_order(list(reached_by)):
            mask = reached_by[node]
            nodes_by_mask.setdefault(mask, []).append(node)
            for child in self._children[node]:
                if child is not None:
                    reached_by[child[0]] = reached_by.get(child[0], 0) | mask
        # Gradients flow into a group only from groups with fewer bits.
        for mask in sorted(nodes_by_mask, key=int.bit_count):
            nodes = nodes_by_mask[mask]
            self._group_of.update(dict.fromkeys(nodes, len(self.groups)))
            waits_for = frozenset(message for bit, message in enumerate(messages, 1) if mask >> bit & 1)
            receives = tuple(self._message_of[node] for node in nodes if node in self._message_of)
            self.groups.append(NodeGroup(waits_for, receives))
            self._nodes.append(nodes)

    def _topological_order(self, first: list[Node]) -> list[Node]:
        """Return the reachable nodes, each after those from which gradients flow into it."""
        done: list[Node] = []
        seen: set[Node] = set()
        stack = [(node, False) for node in first]  # no recursion: graphs are deep
        while stack:
            node, is_expanded = stack.pop()
            if is_expanded:
                done.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += ((child[0], False) for child in self._find_children(node) if child is not None)
        done.reverse()
        return done

    def _find_children(self, node: Node) -> list[Edge | None]:
        edges = () if node in self._message_of else node.next_functions  # behind a Recv is only its anchor
        children = [None if child is None else (child, number) for child, number in edges]
        self._children[node] = children
        return children

    def _add_grad(self, node: Node, number: int, grad: torch.Tensor) -> None:
        """Add to the gradient that waits for an output of a node.

        Of a hundred micro-batches, a weight then keeps one sum and not all gradients.
        """
        with self._grads_lock:
            sums = self._grads.setdefault(node, [])
            for grad_sum in sums:
                if grad_sum.number == number and grad_sum.is_alike(grad):
                    break
            else:
                sums.append(_GradientSum(number, grad))
                return
        grad_sum.add(grad)

    # -- running ---------------------------------------------------------------------------------------------------

    def add_arrived(self, message: int, grads: Grads, devices: Sequence[torch.device]) -> None:
        """Add the gradients of a sent message."""
        for (node, number), grad, device in zip(self._sent[message], grads, devices, strict=True):
            if grad is not None and node in self._group_of:
                self._add_grad(node, number, grad.to(device))

    def run(self, number: int, *, retain_graph: bool) -> GroupResult:
        """Run a group, once, on any thread. Raises the errors of the user's functions and hooks."""
        with _accelerator_lock if _has_accelerator() else nullcontext():
            return self._run(number, retain_graph)

    def _run(self, number: int, retain_graph: bool) -> GroupResult:
        single, foreign_leaves = self._split(number)
        for node in self._nodes[number]:
            if node in single:
                self._run_single(node)
        nodes = [node for node in self._nodes[number] if node not in single]
        leaves = [node for node in nodes if _is_leaf(node)]
        receives = [node for node in self._nodes[number] if node in self._message_of]
        for node in receives:
            expect(node)
        try:
            if foreign_leaves:
                inner = [node for node in nodes if not _is_leaf(node)]
                ends = [*leaves, *foreign_leaves]
                # Gradients are added as they come, while they are in the processor's cache.
                with _intercept(ends, lambda leaf, grad: self._add_grad(leaf, 0, grad)):
                    self._run_nodes(inner, ends, receives, retain_graph)
                nodes = leaves
            with _TakeLeafGradients(leaves) as leaf_grads:
                self._run_nodes(nodes, leaves, [] if foreign_leaves else receives, retain_graph)
        finally:
            received = {self._message_of[node]: take_grads(node) for node in receives}
        return GroupResult(leaf_grads.result(), received)

    def _split(self, number: int) -> tuple[set[Node], list[Node]]:
        """Return the nodes that must run one by one, and the leaves of other groups that the other nodes reach."""
        single, foreign_leaves = self._split_at(number, also_own_hooked=False)
        if foreign_leaves:
            # The run then ends at all leaves, also of this group, and must not reach those whose hooks it would call.
            single, foreign_leaves = self._split_at(number, also_own_hooked=True)
        return single, foreign_leaves

    def _split_at(self, number: int, *, also_own_hooked: bool) -> tuple[set[Node], list[Node]]:
        single: set[Node] = set()
        foreign_leaves: dict[Node, None] = {}

        def must_not_reach(child: Node) -> bool:
            is_own = self._group_of[child] == number
            if _is_leaf(child):
                has_hooks = bool(_variable(child)._backward_hooks) or _has_post_hooks(child)
                return has_hooks and (also_own_hooked or not is_own)
            return child in single if is_own else True

        for node in reversed(self._nodes[number]):
            children = [child[0] for child in self._children[node] if child is not None]
            if any(map(must_not_reach, children)):
                single.add(node)
            else:
                foreign_leaves.update(dict.fromkeys(child for child in children if self._group_of[child] != number))
        return single, list(foreign_leaves)

    def _run_single(self, node: Node) -> None:
        outputs, grads = self._take([node])
        if not outputs:
            return
        children = self._children[node]
        computed: list[Grads] = []
        is_this_run = _this_run()

        def stop(input_grads: Grads, _output_grads: Grads) -> None:
            if is_this_run():
                computed.append(input_grads)
                raise _Stop

        hook = node.register_hook(cast(Any, stop))
        # A node computes only requested gradients. The engine stops before it runs these nodes.
        inputs = [GradientEdge(*child) for child in children if child is not None]
        try:
            # An error stops the engine, so it frees nothing.
            _run_engine(outputs, grads, inputs, retain_graph=True, into_leaves=False)
        except _Stop:
            pass
        finally:
            hook.remove()
        for child, grad in zip(children, computed[0], strict=True):
            if child is not None and grad is not None:
                self._add_grad(*child, grad)

    def _run_nodes(self, nodes: list[Node], leaves: list[Node], receives: list[Node], retain_graph: bool) -> None:
        """Run the nodes that have gradients, down to these leaves and received tensors."""
        outputs, grads = self._take(nodes)
        # The engine runs a Recv if the anchor behind it is requested.
        anchors = [cast(Node, node.next_functions[0][0]) for node in receives]
        inputs = [GradientEdge(node, 0) for node in (*leaves, *anchors)]
        if outputs and inputs:
            _run_engine(outputs, grads, inputs, retain_graph=retain_graph, into_leaves=True)

    def _take(self, nodes: Iterable[Node]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        sums = [(node, grad_sum) for node in nodes for grad_sum in self._grads.pop(node, ())]
        return [GradientEdge(node, grad_sum.number) for node, grad_sum in sums], [grad_sum.grad for _, grad_sum in sums]


class _TakeLeafGradients:
    """Takes the gradients of leaves while they run, after all their hooks and before they reach `.grad`."""

    def __init__(self, leaves: list[Node]) -> None:
        self._hooked = [leaf for leaf in leaves if _has_post_hooks(leaf)]
        self._grads: dict[Node, torch.Tensor] = {}
        self._saved: list[torch.Tensor | None] = []
        self._interception = _intercept(set(leaves).difference(self._hooked), self._grads.__setitem__)

    def __enter__(self) -> "_TakeLeafGradients":
        if self._hooked:
            _grad_attribute_lock.acquire()
        for leaf in self._hooked:
            self._saved.append(_variable(leaf).grad)
            _variable(leaf).grad = None
        self._interception.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._interception.__exit__(*exc)
        for leaf, saved in zip(self._hooked, self._saved, strict=True):
            variable = _variable(leaf)
            if variable.grad is not None:
                self._grads[leaf] = variable.grad
            variable.grad = saved
        if self._hooked:
            _grad_attribute_lock.release()

    def result(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return leaves with their gradients. Gradients share no memory, and none is an expanded view."""
        counts: dict[int, int] = {}
        for grad in self._grads.values():
            counts[_address(grad)] = counts.get(_address(grad), 0) + 1
        return [
            (_variable(leaf), grad if counts[_address(grad)] == 1 and not _is_expanded(grad) else _copy(grad))
            for leaf, grad in self._grads.items()
        ]


@contextmanager
def _intercept(leaves: Iterable[Node], take: Callable[[Node, torch.Tensor], None]) -> Iterator[None]:
    """Give the gradients of leaves to `take`, and not to `.grad`, in the run that this thread starts inside."""
    is_this_run = _this_run()

    def hook(leaf: Node, grads: Grads) -> tuple[None] | None:
        if not is_this_run():
            return None  # another thread runs backward through the same leaf
        if grads[0] is not None:
            take(leaf, grads[0])
        return (None,)

    handles = [leaf.register_prehook(cast(Any, partial(hook, leaf))) for leaf in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run_engine(
    outputs: Sequence[GradientEdge],
    grads: Sequence[torch.Tensor],
    inputs: Sequence[GradientEdge],
    *,
    retain_graph: bool,
    into_leaves: bool,
) -> None:
    """Run torch's engine as `torch.autograd.backward` does (`into_leaves`), or as `torch.autograd.grad`.

    Both compare shapes with symbols of torch's compiler first, which loads sympy: half a second of CPU time in each
    worker. The engine compares shapes itself.
    """
    run: Any = _engine_run_backward
    run(tuple(outputs), tuple(grads), retain_graph, False, tuple(inputs), True, accumulate_grad=into_leaves)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def _this_run() -> Callable[[], bool]:
    """Return a function that tells a hook whether it is called in the run that this thread is about to start."""
    if _has_accelerator():
        return lambda: True
    me = threading.get_ident()
    return lambda: threading.get_ident() == me


def _is_leaf(node: Node) -> bool:
    return node.name() == _LEAF


def _variable(leaf: Node) -> torch.Tensor:
    return cast(torch.Tensor, leaf.variable)  # type: ignore[attr-defined]  # torch's stub has the base class only


def _has_post_hooks(leaf: Node) -> bool:
    return bool(_variable(leaf)._post_accumulate_grad_hooks)


def _address(grad: torch.Tensor) -> int:
    if grad.layout is torch.sparse_coo:
        return grad._values().data_ptr()
    return grad.data_ptr() if grad.layout is torch.strided else id(grad)


def _is_expanded(grad: torch.Tensor) -> bool:
    if grad.layout is torch.sparse_coo:
        return not (grad._values().is_contiguous() and grad._indices().is_contiguous())
    return grad.layout is torch.strided and not grad.is_contiguous() and 0 in grad.stride()


def _copy(grad: torch.Tensor) -> torch.Tensor:
    if grad.layout is torch.strided:
        return grad.clone(memory_format=torch.contiguous_format)
    return grad.clone()
