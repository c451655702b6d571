"""Trees of arrays: dicts, lists, tuples, named tuples, None (no leaf), and classes that a user registered.

    optree.register_pytree_node(Model, take_apart, put_together, namespace="fanwise")
    @optree.dataclasses.dataclass(namespace="fanwise")

Registrations under the namespace "fanwise" count in this layer, and so do optree's global ones. Anything else is
a leaf. optree knows them all. Beside it there is a second way for plain trees (dicts, lists, tuples, None), in
Python: `walk` in the middle of other work costs 4 us where optree, which comes with its own machine code and finds
the caches full of the engine's, costs 15 (alone 2).
Loads optree, which takes 30 ms: import this file inside functions.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import optree

NAMESPACE = "fanwise"

TreeSpec = optree.PyTreeSpec
Leaf = Any  # Any: an array of some engine, or any other object of the user

# Partials and not functions: flattening is in the way of every call. Any: trees.
flatten: Callable[[Any], tuple[list[Leaf], TreeSpec]] = functools.partial(optree.tree_flatten, namespace=NAMESPACE)
map_leaves: Callable[..., Any] = functools.partial(optree.tree_map, namespace=NAMESPACE)


def path_of(spec: TreeSpec, place: int, root: str) -> str:
    """The way to one leaf, as one would write it: `path_of(spec, 1, "args")` is `args[0]['w']`."""
    return spec.accessors()[place].codify(root)


# -- plain trees. Any: trees -------------------------------------------------------------------------------------------


_INNER = frozenset({dict, list, tuple, type(None)})


def walk(tree: Any, leaves: list[Leaf]) -> object:
    """Append the leaves, dicts in their own order. Returns a key: equal for trees of one shape and types of leaves.

    What is no dict, list, tuple or None counts as a leaf here, also where optree would go on.
    """
    kind = type(tree)
    if kind is dict:
        return (dict, *tree, *walk_each(tree.values(), leaves))
    if kind is tuple or kind is list:
        return (kind, *walk_each(tree, leaves))
    if tree is None:
        return None
    leaves.append(tree)
    return kind


def walk_each(trees: Iterable[Any], leaves: list[Leaf]) -> list[object]:
    """`walk` for several trees, without a call for each leaf."""
    keys: list[object] = []
    for tree in trees:
        kind = type(tree)
        if kind in _INNER:
            keys.append(walk(tree, leaves))
        else:
            leaves.append(tree)
            keys.append(kind)
    return keys


def numbered(tree: Any, numbers: Iterator[int]) -> Any:
    """The same tree, with a number in place of each leaf, as `walk` goes."""
    kind = type(tree)
    if kind is dict:
        return {key: numbered(child, numbers) for key, child in tree.items()}
    if kind is tuple or kind is list:
        return kind([numbered(child, numbers) for child in tree])
    return None if tree is None else next(numbers)


def rebuilder(tree: Any) -> Callable[[list[Leaf]], Any]:
    """What makes the tree of leaves in the order of `walk`; from a tree of numbers. One expression, made once."""
    keys: dict[str, Any] = {}
    made: Callable[[list[Leaf]], Any] = eval(f"lambda leaves: {_expression(tree, keys)}", keys)
    return made


def caller(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Callable[..., Any], list[Leaf]], Any]:
    """What calls a function with what `rebuilder` would make of each tree: one expression again."""
    keys: dict[str, Any] = {}
    given = [_expression(tree, keys) for tree in args] + ([f"**{_expression(kwargs, keys)}"] if kwargs else [])
    made: Callable[[Callable[..., Any], list[Leaf]], Any] = eval(f"lambda f, leaves: f({', '.join(given)})", keys)
    return made


def _expression(tree: Any, keys: dict[str, Any]) -> str:
    """The tree as Python writes it, leaves by their number; what dicts have as keys is put into `keys`, by a name."""
    if type(tree) is dict:
        items = []
        for key, child in tree.items():
            name = f"key{len(keys)}"
            keys[name] = key
            items.append(f"{name}: {_expression(child, keys)}")
        return f"{{{', '.join(items)}}}"
    if tree is None or type(tree) is int:
        return "None" if tree is None else f"leaves[{tree}]"
    children = "".join(f"{_expression(child, keys)}, " for child in tree)
    return f"[{children}]" if type(tree) is list else f"({children})"
