"""Trees of arrays: dicts, lists, tuples, named tuples, None (no leaf), and classes that a user registered.

    optree.register_pytree_node(Model, take_apart, put_together, namespace="fanwise")
    @optree.dataclasses.dataclass(namespace="fanwise")

Registrations under the namespace "fanwise" count in this layer, and so do optree's global ones. Anything else is
a leaf. Loads optree, which takes 30 ms: import this file inside functions.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import optree

NAMESPACE = "fanwise"

TreeSpec = optree.PyTreeSpec
Leaf = Any  # Any: an array of some engine, or any other object of the user

# Partials and not functions: flattening is in the way of every call. Any: trees.
flatten: Callable[[Any], tuple[list[Leaf], TreeSpec]] = functools.partial(optree.tree_flatten, namespace=NAMESPACE)
map_leaves: Callable[..., Any] = functools.partial(optree.tree_map, namespace=NAMESPACE)


def with_leaves(leaves: Sequence[Leaf], places: Sequence[int], others: Sequence[Leaf]) -> list[Leaf]:
    """The leaves, with others in some places."""
    changed = list(leaves)
    for place, x in zip(places, others, strict=True):
        changed[place] = x
    return changed


def path_of(spec: TreeSpec, place: int, root: str) -> str:
    """The way to one leaf, as one would write it: `path_of(spec, 1, "args")` is `args[0]['w']`."""
    return spec.accessors()[place].codify(root)
