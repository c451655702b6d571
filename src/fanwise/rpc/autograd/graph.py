"""The autograd graph of one worker, cut so that it can be run in pieces, each node once.

    roots ----> a ----> b ----> leaf          class of the roots:      a
                        ^                     class of both:           b, leaf
    sent 7 ---> c ------+                     class of message 7:      c

A node must wait for all that flows into it, and a message's gradients come when they come. So nodes are put into
classes by what can reach them: the roots (all at once) and each sent message. A class runs when its last message has
come; gradients that leave it are kept for the class they go to.

torch's engine has no "run these nodes and no others": it runs what lies on a way to its `inputs`, and where it stops it
calls the tensor hooks of the node it stopped at. Hence two ways to run a class:

* together, in one call of the engine, wherever gradients leave for leaves only: at a leaf without hooks of the user's,
  they are taken away before it;
* one by one, all nodes from which gradients flow to an inner node of another class: a hook on the node takes its
  gradients and stops the engine. torch then keeps the tensors this node saved until the graph itself goes.

A leaf runs last and once, on the sum, with all its hooks, but its gradient is taken away before it reaches `.grad`.
Knows no message beyond its number, no context and no peer.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward

from .functions import Grads, expect, take_arrived

Edge = tuple[Node, int]

_LEAF = "torch::autograd::AccumulateGrad"
# Leaves with post-accumulate hooks show these their gradient in `.grad`, for as long as they run.
_shown = threading.RLock()
# With an accelerator torch runs nodes in threads of its own, where we cannot tell whose run it is: then one at a time.
_one_at_a_time = threading.RLock()


class Ran(NamedTuple):
    """What came out of a class: gradients of leaves, and of received tensors by message (None: no gradient)."""

    leaves: list[tuple[torch.Tensor, torch.Tensor]]
    received: dict[int, Grads | None]


class Class(NamedTuple):
    """Nodes that the same messages reach, those earlier in the backward pass first."""

    waits: frozenset[int]
    receives: tuple[int, ...]
    nodes: list[Node]


class _Stop(BaseException):
    """Ends a call of the engine that has done what it was made for."""


class _Kept:
    """The sum of the gradients that have come for an output of a node. By any thread."""

    __slots__ = ("_is_ours", "_lock", "grad", "number")

    def __init__(self, number: int, grad: torch.Tensor) -> None:
        self.number = number
        self.grad = grad
        self._is_ours = False  # the first one may lie in memory that others see
        self._lock = threading.Lock()

    def add(self, grad: torch.Tensor) -> None:
        with self._lock:  # neither wants a gradient of its own
            self.grad = self.grad.add_(grad) if self._is_ours else self.grad + grad
        self._is_ours = True


class Graph:
    """What can be reached from the roots and from the sent messages, at the moment it is made.

    Args:
        roots: scalars with history; may be empty.
        sent: by message, where its tensors lie.
        received: by message, the node of its Recv.
    """

    def __init__(
        self,
        roots: Sequence[torch.Tensor],
        sent: Mapping[int, Sequence[Edge]],
        received: Mapping[int, Node],
    ) -> None:
        self._roots = roots  # nodes made in Python live as long as their outputs
        self._receives = {node: message for message, node in received.items()}
        self._children: dict[Node, list[Edge | None]] = {}
        # Gradients on their way to a node, by output.
        self._kept: dict[Node, list[_Kept]] = {}
        self._keeping = threading.Lock()
        edges = [(cast(Node, root.grad_fn), root.output_nr) for root in roots]
        self._sent = sent
        self._class_of: dict[Node, int] = {}
        self.classes = self._classify(edges)
        for (node, number), root in zip(edges, roots, strict=True):
            self._keep(node, number, torch.ones_like(root))

    # -- cutting ---------------------------------------------------------------------------------------------------

    def _classify(self, roots: list[Edge]) -> list[Class]:
        messages = list(self._sent)
        reached: dict[Node, int] = {}  # bit 0: the roots; bit i + 1: messages[i]
        sources = [roots, *(self._sent[message] for message in messages)]
        for bit, edges in enumerate(sources):
            for node, _ in edges:
                reached[node] = reached.get(node, 0) | 1 << bit
        order = self._ordered(list(reached))
        groups: dict[int, list[Node]] = {}
        for node in order:
            mask = reached[node]
            groups.setdefault(mask, []).append(node)
            for child in self._children[node]:
                if child is not None:
                    reached[child[0]] = reached.get(child[0], 0) | mask
        classes: list[Class] = []
        # Whatever flows into a class comes from classes that fewer reach.
        for mask in sorted(groups, key=int.bit_count):
            for node in groups[mask]:
                self._class_of[node] = len(classes)
            waits = frozenset(message for bit, message in enumerate(messages, 1) if mask >> bit & 1)
            receives = tuple(self._receives[node] for node in groups[mask] if node in self._receives)
            classes.append(Class(waits, receives, groups[mask]))
        return classes

    def _ordered(self, first: list[Node]) -> list[Node]:
        """All nodes below, each after those from which gradients flow into it. No recursion: graphs are deep."""
        done: list[Node] = []
        seen: set[Node] = set()
        ahead = [(node, False) for node in first]
        while ahead:
            node, left = ahead.pop()
            if left:
                done.append(node)
            elif node not in seen:
                seen.add(node)
                ahead.append((node, True))
                ahead += ((child[0], False) for child in self._children_of(node) if child is not None)
        done.reverse()
        return done

    def _children_of(self, node: Node) -> list[Edge | None]:
        # Nothing lies behind a Recv but its anchor.
        edges = () if node in self._receives else node.next_functions
        children = [None if child is None else (child, number) for child, number in edges]
        self._children[node] = children
        return children

    def _keep(self, node: Node, number: int, grad: torch.Tensor) -> None:
        """Add to what is on its way there, in the order in which it comes, as the engine would: of a hundred
        micro-batches a weight keeps one sum, and not a hundred gradients."""
        with self._keeping:
            kept = self._kept.setdefault(node, [])
            for one in kept:
                if one.number == number and _is_alike(one.grad, grad):
                    break
            else:
                kept.append(_Kept(number, grad))
                return
        one.add(grad)

    # -- running ---------------------------------------------------------------------------------------------------

    def arrived(self, message: int, grads: Grads, devices: Sequence[torch.device]) -> None:
        """The gradients of a sent message have come."""
        for (node, number), grad, device in zip(self._sent[message], grads, devices, strict=True):
            if grad is not None and node in self._class_of:
                self._keep(node, number, grad.to(device))

    def run(self, number: int, *, retain_graph: bool) -> Ran:
        """Run a class. Raises what the user's functions and hooks raise. By any thread; each class once."""
        with _one_at_a_time if _has_accelerator() else nullcontext():
            return self._run(number, retain_graph)

    def _run(self, number: int, retain_graph: bool) -> Ran:
        nodes = self.classes[number].nodes
        alone, foreign = self._split(number)
        for node in nodes:
            if node in alone:
                self._run_alone(node)
        leaves = [node for node in nodes if _is_leaf(node)]
        receives = [node for node in nodes if node in self._receives]
        ran = Ran([], {self._receives[node]: None for node in receives})
        rest = [node for node in nodes if node not in alone]
        for node in receives:
            expect(node)
        try:
            if foreign:
                self._run_up_to([*leaves, *foreign], receives, rest, retain_graph)
                self._run_leaves([], leaves, leaves, ran, retain_graph)
            else:
                self._run_leaves(receives, leaves, rest, ran, retain_graph)
        finally:
            for node in receives:
                ran.received[self._receives[node]] = take_arrived(node)
        return ran

    def _split(self, number: int) -> tuple[set[Node], list[Node]]:
        """Which nodes must run one by one, and the leaves of other classes into which the others' gradients flow."""
        alone, foreign = self._split_at(number, hooked_too=False)
        if foreign:
            # It comes as far as the leaves, of this class too; where hooks would be called then, it must not.
            alone, foreign = self._split_at(number, hooked_too=True)
        return alone, foreign

    def _split_at(self, number: int, *, hooked_too: bool) -> tuple[set[Node], list[Node]]:
        alone: set[Node] = set()
        foreign: dict[Node, None] = {}
        for node in reversed(self.classes[number].nodes):
            children = [child[0] for child in self._children[node] if child is not None]
            if any(self._stands_apart(child, number, alone, hooked_too) for child in children):
                alone.add(node)
            else:
                foreign.update(dict.fromkeys(child for child in children if self._class_of[child] != number))
        return alone, list(foreign)

    def _stands_apart(self, child: Node, number: int, alone: set[Node], hooked_too: bool) -> bool:
        here = self._class_of[child] == number
        if _is_leaf(child):
            return (hooked_too or not here) and (bool(_variable(child)._backward_hooks) or _shows(child))
        return child in alone if here else True

    def _run_alone(self, node: Node) -> None:
        outputs, grads = self._take([node])
        if not outputs:
            return
        children = self._children[node]
        caught: list[Grads] = []
        mine = _this_run()

        def stop(given: Grads, _got: Grads) -> None:
            if mine():
                caught.append(given)
                raise _Stop

        stopping = node.register_hook(cast(Any, stop))
        # A node computes only what somebody wants; that some of these lie behind others does not matter, as it stops.
        wanted = [GradientEdge(*child) for child in children if child is not None]
        try:
            # It stops with an error, after which torch frees nothing: `retain_graph` would change nothing.
            _run_engine(outputs, grads, wanted, retain_graph=True, into_leaves=False)
        except _Stop:
            pass
        finally:
            stopping.remove()
        for child, grad in zip(children, caught[0], strict=True):
            if child is not None and grad is not None:
                self._keep(*child, grad)

    def _run_up_to(self, leaves: list[Node], receives: list[Node], nodes: list[Node], retain_graph: bool) -> None:
        """Run inner nodes, and keep what flows into leaves. None of these has hooks."""
        outputs, grads = self._take([node for node in nodes if not _is_leaf(node)])
        if not outputs:
            return
        ends = [GradientEdge(node, 0) for node in leaves]
        anchors = [_anchor(node) for node in receives]
        # At once, not all of them in the end: now they are in the processor's cache, and their memory is used again.
        taking = _prehooks(leaves, lambda leaf, grad: self._keep(leaf, 0, grad))
        try:
            _run_engine(outputs, grads, [*ends, *anchors], retain_graph=retain_graph, into_leaves=True)
        finally:
            for handle in taking:
                handle.remove()

    def _run_leaves(
        self, receives: list[Node], leaves: list[Node], nodes: list[Node], ran: Ran, retain_graph: bool
    ) -> None:
        """Run `nodes` down to the leaves, these included."""
        outputs, grads = self._take(nodes)
        if not outputs:
            return
        ends = [GradientEdge(node, 0) for node in leaves]
        anchors = [_anchor(node) for node in receives]
        with _Taking(leaves) as taking:
            if ends or anchors:
                _run_engine(outputs, grads, [*ends, *anchors], retain_graph=retain_graph, into_leaves=True)
        ran.leaves.extend(taking.taken())

    def _take(self, nodes: Iterable[Node]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        kept = [(node, one) for node in nodes for one in self._kept.pop(node, ())]
        return [GradientEdge(node, one.number) for node, one in kept], [one.grad for _, one in kept]


class _Taking:
    """While leaves run: takes their gradients away, after all hooks on them, before they reach `.grad`."""

    def __init__(self, leaves: list[Node]) -> None:
        self._leaves = leaves
        self._taken: dict[Node, torch.Tensor] = {}
        self._grads: list[tuple[Node, torch.Tensor | None]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> "_Taking":
        hooked = [leaf for leaf in self._leaves if _shows(leaf)]
        if hooked:
            _shown.acquire()
        for leaf in hooked:
            self._grads.append((leaf, _variable(leaf).grad))
            _variable(leaf).grad = None
        shown = set(hooked)
        self._handles = _prehooks([leaf for leaf in self._leaves if leaf not in shown], self._taken.__setitem__)
        return self

    def __exit__(self, *_exc: object) -> None:
        for handle in self._handles:
            handle.remove()
        for leaf, before in self._grads:
            variable = _variable(leaf)
            if variable.grad is not None:
                self._taken[leaf] = variable.grad
            variable.grad = before
        if self._grads:
            _shown.release()

    def taken(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Leaves and their gradients; no two of these share memory, and none is a spread-out view."""
        owners: dict[int, int] = {}
        for grad in self._taken.values():
            where = _where(grad)
            owners[where] = owners.get(where, 0) + 1
        return [
            (_variable(leaf), grad if owners[_where(grad)] == 1 and _is_plain(grad) else _copied(grad))
            for leaf, grad in self._taken.items()
        ]


_NOTHING = (None,)


def _prehooks(leaves: Iterable[Node], take: Callable[[Node, torch.Tensor], None]) -> list[Any]:
    """In the run that this thread is about to start, `take` gets a leaf's gradient as it comes; `.grad` does not."""
    mine = _this_run()

    def of(leaf: Node) -> Any:
        def hook(grads: Grads) -> tuple[None] | None:
            if not mine():
                return None  # another thread runs backward over the same leaf
            if (grad := grads[0]) is not None:
                take(leaf, grad)
            return _NOTHING

        return hook

    return [leaf.register_prehook(of(leaf)) for leaf in leaves]


def _run_engine(
    outputs: Sequence[GradientEdge],
    grads: Sequence[torch.Tensor],
    inputs: Sequence[GradientEdge],
    *,
    retain_graph: bool,
    into_leaves: bool,
) -> tuple[torch.Tensor | None, ...]:
    """torch's engine: as `torch.autograd.backward` calls it (`into_leaves`), or as `torch.autograd.grad` does.

    Before that these two compare shapes by symbols of torch's compiler, which loads sympy: half a second of processor
    time in each worker, and once each call. The engine compares them too.
    """
    run: Any = _engine_run_backward
    found: tuple[torch.Tensor | None, ...] = run(
        tuple(outputs), tuple(grads), retain_graph, False, tuple(inputs), True, accumulate_grad=into_leaves
    )
    return found


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def _this_run() -> Callable[[], bool]:
    """Tells a hook whether it is called in the run that this thread is about to start, or in somebody else's."""
    if _has_accelerator():
        return lambda: True
    me = threading.get_ident()
    return lambda: threading.get_ident() == me


def _is_leaf(node: Node) -> bool:
    return node.name() == _LEAF


def _anchor(receive: Node) -> GradientEdge:
    """The leaf behind a Recv: the engine runs what lies on the way to it."""
    return GradientEdge(cast(Node, receive.next_functions[0][0]), 0)


def _variable(leaf: Node) -> torch.Tensor:
    return cast(torch.Tensor, leaf.variable)  # type: ignore[attr-defined]  # torch's stub has the base class only


def _shows(leaf: Node) -> bool:
    return bool(_variable(leaf)._post_accumulate_grad_hooks)


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the sum of the two is as the first: the engine knows best how to add others."""
    return (
        type(one) is type(other) is torch.Tensor
        and one.layout is other.layout is torch.strided
        and one.shape == other.shape
        and one.dtype is other.dtype
        and one.device == other.device
    )


def _where(grad: torch.Tensor) -> int:
    if grad.layout is torch.sparse_coo:
        return grad._values().data_ptr()
    return grad.data_ptr() if grad.layout is torch.strided else id(grad)


def _is_plain(grad: torch.Tensor) -> bool:
    if grad.layout is torch.sparse_coo:
        return grad._values().is_contiguous() and grad._indices().is_contiguous()
    return grad.layout is not torch.strided or grad.is_contiguous() or 0 not in grad.stride()


def _copied(grad: torch.Tensor) -> torch.Tensor:
    if grad.layout is torch.strided:
        return grad.clone(memory_format=torch.contiguous_format)
    return grad.clone()
