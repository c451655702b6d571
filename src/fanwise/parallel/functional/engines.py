"""What a step of a functional model asks of an engine, and which engine a tree of arrays belongs to. Loads none."""

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...tensor.engines import engine_of, is_array_type
from ...tensor.random.keys import Key
from ...tensor.trees import flatten
from .losses import Loss
from .losses import Tree as Tree

Leaf = Any  # Any: an array of the engine
Spec = Any  # Any: the shape of a tree, compared by ==; of its engine
Update = Callable[[Tree, Tree, Tree], Any]  # (gradients, state, params) -> (new params, new state)


class Gradients(NamedTuple):
    """Of one shard. `loss`: summed. `grads`: of it, in memory of their own. `counts`: a number or a tensor."""

    loss: Tensor
    grads: list[Tensor | None]
    counts: Any  # Any: as above
    buffers: Tree


class Differentiated(Protocol):
    """The loss of a step and its gradient, compiled once for each shape of a shard."""

    def __call__(self, params: Tree, buffers: Tree, samples: Sequence[Any], key: Key, count: int) -> Gradients:
        """Of one shard of `count` samples. Blocks until it is computed.

        Raises:
            What the user's function raises; ValueError if it is another one each time it is traced.
        """
        ...


class Engine(Protocol):
    """One engine: the files `with_jax` and `with_tensorflow` are such."""

    title: str  # as users write it
    threads_variable: str  # of the environment, read when it begins

    def flatten(self, tree: Tree) -> tuple[list[Leaf], Spec]: ...

    def unflatten(self, spec: Spec, leaves: Sequence[Leaf]) -> Tree: ...

    def paths(self, tree: Tree) -> list[str]:
        """Of its leaves, as one would write them behind the name of the tree: `['dense']['kernel']`."""
        ...

    def why_not(self, leaf: Leaf) -> str:
        """Why this is no array with values of the engine, and what to write; empty: it is one."""
        ...

    def is_floating(self, leaf: Leaf) -> bool: ...

    def differentiated(self, loss: Loss) -> Differentiated: ...

    def compiled(self, update: Update) -> Update:
        """The same, compiled. What it returns shares no memory with its arguments, and is computed."""
        ...

    def taken(self, content: Any) -> Any:  # Any: a tree of arrays of any engine
        """A tree of its own arrays, over the same memory where that may be; for reading."""
        ...

    def to_torch(self, leaf: Leaf) -> Tensor:
        """In main memory, for reading: perhaps the same memory."""
        ...

    def from_torch(self, tensor: Tensor, like: Leaf, *, shared: bool = False) -> Leaf:
        """Where `like` is. `shared`: perhaps the same memory, which nobody changes before `compiled` has returned."""
        ...

    def placed(self, device: torch.device) -> AbstractContextManager[object]:
        """What is computed in this block is computed there, unless arrays say otherwise."""
        ...

    def place_of(self, leaf: Leaf) -> str:
        """The kind of device that it is on, as torch calls it: "cpu", "cuda"."""
        ...

    def threads(self) -> int:
        """Of its operators on the CPU, in this process; it has begun."""
        ...


# In the order in which they are asked: only what is loaded can have made an array.
_NAMES = ("jax", "tensorflow")


def engine_of_tree(tree: Tree, called: str) -> Engine:
    """The engine whose arrays are the leaves of this tree.

    Raises:
        TypeError: there are no arrays in it, or such of no engine, of two, or without values; says what to write.
    """
    why = ""
    for name in _NAMES:
        if name not in sys.modules:
            continue
        engine = load(name)
        leaves = engine.flatten(tree)[0]
        reasons = [engine.why_not(leaf) for leaf in leaves]
        if leaves and not any(reasons):
            return engine
        if not why and any(_engine(leaf) == name for leaf in leaves):
            place = next(place for place, reason in enumerate(reasons) if reason)
            why = f"{called}{engine.paths(tree)[place]} is {reasons[place]}"
    if not why:
        kind = "NumPy arrays" if _is_numpy(tree) else type(tree).__name__
        why = f"{called} must be a torch.nn.Module, or a tree of arrays of JAX or TensorFlow, got {kind}"
    raise TypeError(
        f"{why}.\n"
        f"  right:  run.step(model, optimizer, loss_fn)             # a torch.nn.Module\n"
        f"  right:  run.step(params, update, loss_fn, state=...)    # dicts, lists, tuples of arrays with values\n"
        f"  right:  jax.tree.map(jnp.asarray, tree), tf.nest.map_structure(tf.convert_to_tensor, tree)    # of NumPy"
    )


def _is_numpy(tree: Tree) -> bool:
    leaves = flatten(tree)[0]
    return bool(leaves) and all(_engine(leaf) == "numpy" for leaf in leaves)


def _engine(leaf: Leaf) -> str:
    """The library of an array, "" for anything else."""
    return engine_of(leaf) if is_array_type(type(leaf)) else ""


def load(name: str) -> Engine:
    engine: Engine = importlib.import_module(f".with_{name}", __package__)
    return engine
