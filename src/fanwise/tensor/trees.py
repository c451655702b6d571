"""Trees of arrays: nested dicts, ordered dicts, lists, tuples and named tuples. None has no leaves.

    flatten({"w": w, "b": [b, None]})  ->  [w, b], structure      unflatten(structure, [w, b])  ->  the tree

A structure can be hashed: None for a leaf, otherwise (class, keys of a dict or None, structures of the children).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any

from .engines import is_remembered

Leaf = Any
Structure = Any

_NONE = (NoneType, None, ())


def flatten(tree: Any) -> tuple[list[Leaf], Structure]:
    """Return the leaves and the structure of a tree."""
    leaves: list[Leaf] = []
    return leaves, flatten_into(leaves, tree)


def flatten_into(leaves: list[Leaf], tree: Any) -> Structure:
    """Append the leaves of a tree to a list and return its structure."""
    kind = type(tree)
    if kind is dict or kind is OrderedDict:
        keys, subtrees = tuple(tree), tree.values()
    elif kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(kind, "_fields")):
        keys, subtrees = None, tree
    elif tree is None:
        return _NONE
    else:
        leaves.append(tree)
        return None
    if all(map(is_remembered, map(type, subtrees))):  # arrays only, without a call for each
        leaves += subtrees
        return kind, keys, (None,) * len(tree)
    return kind, keys, tuple([flatten_into(leaves, subtree) for subtree in subtrees])


def unflatten(structure: Structure, leaves: Iterable[Leaf]) -> Any:
    """Return a tree of this structure. From an iterator, take only the leaves it needs."""
    leaves = iter(leaves)
    return next(leaves) if structure is None else build(structure, leaves)


def flatten_like(structure: Structure, tree: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts of `tree` in the positions of the leaves of a structure, with their paths. Raise ValueError."""
    if structure is None:
        return [(path, tree)]
    kind, keys, children = structure
    if keys is not None:
        if not isinstance(tree, dict) or tree.keys() != set(keys):
            raise ValueError(f"{path} must be a dict with the keys {list(keys)}, got {tree!r:.100}")
        parts = [tree[key] for key in keys]
    elif type(tree) is not kind or (kind is not NoneType and len(tree) != len(children)):
        raise ValueError(f"{path} must be a {kind.__name__} of length {len(children)}, got {tree!r:.100}")
    else:
        parts = list(tree or ())
    steps = zip(children, parts, _steps(structure), strict=True)
    return [pair for child, subtree, step in steps for pair in flatten_like(child, subtree, path + step)]


def with_leaves(leaves: Sequence[Leaf], places: Sequence[int], replacements: Sequence[Leaf]) -> list[Leaf]:
    """Return the leaves, with replacements in some places."""
    changed = list(leaves)
    for place, x in zip(places, replacements, strict=True):
        changed[place] = x
    return changed


def leaf_paths(structure: Structure, path: str) -> list[str]:
    """Return the path of each leaf, such as `path[0]['w']`."""
    if structure is None:
        return [path]
    steps = zip(structure[2], _steps(structure), strict=True)
    return [leaf for child, step in steps for leaf in leaf_paths(child, path + step)]


def build(structure: Structure, leaves: Iterator[Leaf]) -> Any:
    kind, keys, children = structure
    if kind is NoneType:
        return None
    values = [next(leaves) if child is None else build(child, leaves) for child in children]
    if kind is list:
        return values
    if keys is not None:
        return kind(zip(keys, values, strict=True))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def _steps(structure: Structure) -> list[str]:
    kind, keys, children = structure
    if keys is not None:
        return [f"[{key!r}]" for key in keys]
    if hasattr(kind, "_fields"):
        return [f".{field}" for field in kind._fields]
    return [f"[{number}]" for number in range(len(children))]
