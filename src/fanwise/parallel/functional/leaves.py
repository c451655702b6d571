"""Trees of arrays by the paths of their leaves: what a checkpoint holds of them, and what is wrong with one.

{"dense": {"kernel": array}}  --held-->  {"['dense']['kernel']": torch tensor}  --restored-->  the same tree
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .engines import Engine, Tree


def held(engine: Engine, tree: Tree) -> dict[str, Any]:  # Any: tensors and numbers
    """Its leaves as torch tensors, by path; numbers as they are. For reading."""
    both = zip(engine.paths(tree), engine.flatten(tree)[0], strict=True)
    return {path: leaf if isinstance(leaf, int | float) else engine.to_torch(leaf) for path, leaf in both}


def restored(engine: Engine, like: Tree, state: Mapping[str, Any], called: str) -> Tree:  # Any: as `held` gives
    """A tree as `like`, of what `held` gave.

    Raises:
        ValueError: a leaf is missing, is too many, or has another shape or type.
    """
    leaves, spec = engine.flatten(like)
    paths = engine.paths(like)
    missing, unknown = [path for path in paths if path not in state], [path for path in state if path not in paths]
    if missing or unknown:
        what = f"has no {called}{missing[0]}" if missing else f"has {called}{unknown[0]}, which is not here"
        raise ValueError(
            f"the checkpoint does not fit: it {what}; {len(state)} leaves there, {len(paths)} here.\n"
            f"Give run.step the same tree as the training that wrote it."
        )
    both = zip(paths, leaves, strict=True)
    return engine.unflatten(spec, [_leaf(engine, leaf, state[path], f"{called}{path}") for path, leaf in both])


def _leaf(engine: Engine, like: Any, stored: Any, called: str) -> Any:  # Any: arrays and numbers
    if isinstance(like, int | float) or not isinstance(stored, Tensor):
        return stored
    there, here = _kind(stored), _kind(engine.to_torch(like))
    if there != here:
        raise ValueError(f"the checkpoint does not fit: {called} is {there} there, {here} here")
    return engine.from_torch(stored, like)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def check_same_tree(engine: Engine, made: Tree, like: Tree, what: str) -> None:
    """Raises ValueError for a tree that a user's function made, if its shape or its leaves are not those of `like`."""
    (leaves, made_spec), (before, spec) = engine.flatten(made), engine.flatten(like)
    if made_spec != spec:
        raise ValueError(f"{what} of another shape as a tree.\n  before:  {spec}\n  now:     {made_spec}")
    for place, (leaf, earlier) in enumerate(zip(leaves, before, strict=True)):
        if hasattr(earlier, "dtype"):
            now, then = _described(leaf), _described(earlier)
            if now != then:
                raise ValueError(f"{what} of which {engine.paths(made)[place] or 'the array'} is {now}, and was {then}")


def _described(leaf: Any) -> str:  # Any: an array
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)} {tuple(getattr(leaf, 'shape', ()))}"


def like_params(tensors: Sequence[Tensor]) -> list[torch.nn.Parameter]:
    """Parameters of the same types and shapes, whose memory nobody touches: what a team lays its sums out by."""
    made = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    return [torch.nn.Parameter(each, requires_grad=False) for each in made]
