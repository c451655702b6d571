"""`pack` and `unpack`: trees to one buffer and back. Checks everything; `with_<engine>` files move the elements.

For what is done once to all of a model at once: allreduce, a checkpoint, a norm. Where arrays can be views (torch,
numpy) the unpacked leaves are the buffer's memory, so what changes the buffer changes them, and nothing is copied.
"""

import importlib
import operator
from typing import Any, Protocol, SupportsIndex, cast

from ..dtype_names import FLOAT, dtype_name, dtype_rank
from ..engines import current_engine, engine_of, is_array_type
from .layout import PackedLeaf, PackSpec, laid_out

_Array = Any  # An array of whichever engine; they have no type in common.
_Tree = Any  # Dicts, lists, tuples ... of arrays and numbers.
_Leaves = tuple[PackedLeaf, ...]
_NUMBERS = {bool: "bool", int: "int", float: "float", complex: "complex"}
_DEFAULTS = ("bool", "int32", "float32", "complex64")
# Integers up to 2 to this are exact in a float.
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "complex64": 24, "complex128": 53}


class _Engine(Protocol):
    """What a `with_<engine>` file offers: gather leaves into a buffer (`out` if given), and take them out again."""

    def gathered(self, leaves: list[Any], spec: PackSpec, out: _Array | None) -> _Array: ...  # Any: arrays, numbers

    def taken_out(self, buffer: _Array, leaves: _Leaves) -> list[Any]: ...  # Any: the same


def pack(
    tree: _Tree, dtype: object = None, *, align_elements: SupportsIndex = 16, out: _Array | None = None
) -> tuple[_Array, PackSpec]:
    """Copy all arrays of a tree into one buffer of one axis.

    The tree may hold dicts (in the order of their sorted keys), lists, tuples, named tuples, None (which has no
    elements), registered classes, arrays of one engine, and Python numbers (one element each). The buffer's first
    element lies at a multiple of 64 bytes; padding is zero. Gradients flow through it, but not with `out`.

    Args:
        tree: of arrays on one device. It is not changed.
        dtype: of the buffer; leaves are converted. If None, all arrays must have the same one.
        align_elements: every leaf begins at a multiple of this many elements.
        out: a buffer to write into, as an earlier `pack` of such a tree returned it; torch and numpy, and a
            tf.Variable. It is also what is returned.

    Returns:
        The buffer, an array of the engine of the leaves (of the current engine if there is no array), and the
        spec for `unpack`.

    Raises:
        TypeError: a leaf is no array and no number; engines or dtypes are mixed; or `dtype` does not hold a leaf.
        ValueError: `align_elements` is less than 1; `out` does not fit; an integer is not exact in the buffer; or a
            shape is not known while TensorFlow traces.

    >>> import numpy
    >>> buffer, spec = pack({"w": numpy.ones((2, 2)), "b": numpy.zeros(2)}, align_elements=4)
    >>> buffer
    array([0., 0., 0., 0., 1., 1., 1., 1.])
    >>> unpack(spec, buffer)["w"]
    array([[1., 1.],
           [1., 1.]])
    """
    from ..trees import flatten

    align = operator.index(align_elements)
    if align < 1:
        raise ValueError(f"align_elements must be at least 1, got {align}")
    leaves, structure = flatten(tree)
    engine = _common_engine(leaves, structure)
    name = _common_dtype(leaves, structure) if dtype is None else dtype_name(dtype)
    described = tuple([_described(leaf, name) for leaf in leaves])
    _check_kinds(described, structure, name)
    placed, size = laid_out(described, align)
    spec = PackSpec(structure, placed, name, size, align)
    if out is not None:
        if engine_of(out) != engine:
            raise TypeError(f"the tree is of {engine} and out of {engine_of(out)}")
        _check_buffer(out, spec, "out")
    return _file(engine).gathered(leaves, spec, out), spec


def unpack(spec: PackSpec, buffer: _Array) -> _Tree:
    """The tree that was packed, with the numbers that are in the buffer now.

    Arrays have their shapes and dtypes as they were, and the buffer's engine and device. On torch and numpy they
    are views of the buffer where they have its dtype. Python numbers come back as such (which waits for a GPU);
    while JAX or TensorFlow trace, as arrays without axes.

    Args:
        spec: of `pack`, in this process or another.
        buffer: that `pack` returned, or any array of this size and dtype, of any engine.

    Raises:
        TypeError: the buffer is no array, or of another dtype than the spec says.
        ValueError: it has another shape.
    """
    file = _file(engine_of(buffer))
    _check_buffer(buffer, spec, "the buffer")
    return spec.tree.unflatten(file.taken_out(buffer, spec.leaves))


def _common_engine(leaves: list[Any], structure: Any) -> str:  # Any, here and below: leaves, and optree's spec
    engine, first = "", 0
    for place, leaf in enumerate(leaves):
        if type(leaf) in _NUMBERS:
            continue
        if not is_array_type(type(leaf)):
            raise TypeError(f"{_path(structure, place)} is a {type(leaf).__name__}; pack takes arrays and numbers")
        if engine and engine_of(leaf) != engine:
            raise TypeError(
                f"{_path(structure, first)} is of {engine} and {_path(structure, place)} of {engine_of(leaf)}; "
                f"convert one of them, for example fanwise.tensor.convert(x, {engine!r})"
            )
        if not engine:
            engine, first = engine_of(leaf), place
    return engine or current_engine()


def _common_dtype(leaves: list[Any], structure: Any) -> str:
    """The dtype of all arrays; without any, the layer's default for the numbers."""
    name, first = "", 0
    for place, leaf in enumerate(leaves):
        if type(leaf) in _NUMBERS:
            continue
        own = dtype_name(leaf.dtype)
        if name and own != name:
            widest = max(name, own, key=dtype_rank)
            raise TypeError(
                f"{_path(structure, first)} is {name} and {_path(structure, place)} is {own}, and a buffer has one "
                f"dtype: give one to convert to, as pack(tree, {widest!r}), or pack the leaves of each on their own"
            )
        if not name:
            name, first = own, place
    return name or _DEFAULTS[max((dtype_rank(_NUMBERS[type(leaf)]) for leaf in leaves), default=FLOAT)]


def _described(leaf: Any, dtype: str) -> tuple[tuple[int, ...], str, str]:
    number = _NUMBERS.get(type(leaf), "")
    if not number:
        if None in leaf.shape:
            raise ValueError(f"a shape is not known while TensorFlow traces: {leaf.shape}; give an input_signature")
        return tuple(leaf.shape), dtype_name(leaf.dtype), ""
    if number == "int" and abs(leaf) > 1 << _DIGITS.get(dtype, 64):
        raise ValueError(f"the integer {leaf} is not exact in a buffer of {dtype}; pack it on its own")
    return (), number, number


def _check_kinds(described: tuple[tuple[tuple[int, ...], str, str], ...], structure: Any, dtype: str) -> None:
    holds = dtype_rank(dtype)
    for place, (_, own, _) in enumerate(described):
        if dtype_rank(own) > holds:
            raise TypeError(f"{_path(structure, place)} is {own}, and a buffer of {dtype} does not hold that")


def _check_buffer(buffer: _Array, spec: PackSpec, what: str) -> None:
    shape, dtype = tuple(buffer.shape), dtype_name(buffer.dtype)
    if dtype != spec.dtype:
        raise TypeError(f"{what} must be of {spec.dtype}, got {dtype}")
    if shape != (spec.size,) and shape != (None,):
        raise ValueError(f"{what} must have the shape ({spec.size},), got {shape}")


def _path(structure: Any, place: int) -> str:
    from ..trees import path_of

    return path_of(structure, place, "tree")


_files: dict[str, _Engine] = {}


def _file(engine: str) -> _Engine:
    if engine not in _files:
        _files[engine] = cast(_Engine, importlib.import_module(f".with_{engine}", __package__))
    return _files[engine]
