"""`vmap` at work: f of one element, applied to all at once.

    args --mapped axes first--> arrays --the engine's vmap--> arrays, stacked along the first axis --out_axes--> result

Knows trees and axes; the engine maps the first axis of a flat list of arrays, and stacks along the first.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..namespaces import namespace
from ..state import mapped_over
from ..trees import Leaf, prefix_leaves
from .calls import Arguments, Static, array_engine, load, put_together, taken_apart

# Any throughout: the user's functions, what they take and return, and trees of axes.


def mapped(f: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[[Arguments, list[Leaf]], Any]:
    """What prepares `vmap(f)`."""

    def prepare(arguments: Arguments, leaves: list[Leaf]) -> Callable[[list[Leaf]], Any]:
        name = arguments.engine
        places, axes = _mapped(arguments, leaves, in_axes)
        engine = load(name, "vmap")

        def run(leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
            return taken_apart(arguments.apply(f, leaves), name)

        def runner(leaves: list[Leaf]) -> Any:
            _check_lengths(arguments, leaves, places, axes)
            leaves = list(leaves)
            for place, axis in zip(places, axes, strict=True):
                if axis:
                    leaves[place] = namespace(name).moveaxis(leaves[place], axis, 0)
            with mapped_over():
                outputs, static = engine.vmap(run, leaves, places)
            return _placed(put_together(outputs, static), name, out_axes)

        return runner

    return prepare


def _mapped(arguments: Arguments, leaves: Sequence[Leaf], in_axes: Any) -> tuple[list[int], list[int]]:
    """Which leaves are mapped, and along which axes: arrays whose axis is no None; those given by name along axis 0."""
    args, _ = arguments.spec.unflatten(leaves)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ValueError(f"in_axes has {len(in_axes)} axes, {in_axes!r}, and f got {len(args)} positional arguments.")
    each = prefix_leaves(in_axes, args, "in_axes", "the positional arguments")
    each += [0] * (len(leaves) - len(each))
    found = [
        (place, axis)
        for place, (leaf, axis) in enumerate(zip(leaves, each, strict=True))
        if axis is not None and array_engine(leaf)
    ]
    if not found:
        raise ValueError(f"vmap needs an array to map over, and with in_axes={in_axes!r} there is none.")
    return [place for place, _ in found], [axis for _, axis in found]


def _check_lengths(arguments: Arguments, leaves: list[Leaf], places: list[int], axes: list[int]) -> None:
    """Raises ValueError unless each array has its axis and all are of one length, as far as that is known."""
    first, length = 0, None
    for place, axis in zip(places, axes, strict=True):
        shape = leaves[place].shape
        if not -len(shape) <= axis < len(shape):
            raise ValueError(
                f"vmap maps {arguments.name(place)} along axis {axis}, and its shape is {tuple(shape)}. "
                f"Give None in in_axes for what is the same for all elements."
            )
        if length is None:
            first, length = place, shape[axis]
        elif shape[axis] not in (length, None):
            raise ValueError(
                f"vmap maps axes of one length, and that of {arguments.name(first)} is {length}, that of "
                f"{arguments.name(place)} {shape[axis]}."
            )


def _placed(result: Any, engine: str, out_axes: Any) -> Any:
    """The result with each array's new axis where it shall be."""
    if type(out_axes) is int and out_axes == 0:
        return result
    leaves, static = taken_apart(result, engine)
    each = iter(prefix_leaves(out_axes, result, "out_axes", "what f returned"))
    axes = [axis for axis, is_array in zip(each, static.are_arrays, strict=True) if is_array]
    for x, axis in zip(leaves, axes, strict=True):
        if axis is None:
            raise TypeError(f"out_axes must have an axis for each array that f returned, got {out_axes!r}")
        if not -len(x.shape) <= axis < len(x.shape):
            raise ValueError(f"out_axes has axis {axis} for a result of shape {tuple(x.shape)}, first axis new.")
    moveaxis = namespace(engine).moveaxis
    return put_together([moveaxis(x, 0, axis) if axis else x for x, axis in zip(leaves, axes, strict=True)], static)
