"""Arguments and results of a differentiated function, as flat lists of arrays and a static rest. Knows no engine.

args, kwargs --Arguments.of--> leaves, Arguments       the engine, the positions of each argument's leaves
result --partition--> arrays, Static --combine--> the same result
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..adapters import differentiators
from ..dtype_names import FLOAT, dtype_rank, is_inexact
from ..engines import ENGINES, find_engine
from ..namespaces import namespace
from ..trees import Leaf, Structure, build, flatten, flatten_into, leaf_paths, unflatten


def load(engine: str) -> Any:
    """Return the differentiator of an engine. Raise TypeError if the engine has no gradients."""
    if engine in differentiators:
        return differentiators[engine]
    able = [name for name, properties in ENGINES.items() if properties.autodiff]
    if engine not in able:
        raise TypeError(
            f"{engine} has no gradients; {', '.join(able)} have. Convert the arguments first, "
            f'for example with fanwise.tensor.convert(x, "torch").'
        )
    return differentiators[engine]


def array_engine(leaf: Leaf) -> str:
    """Return the engine of an array; "" for anything else, including NumPy scalars."""
    return _engine_of_type(type(leaf))


def _engine_of_type(kind: type) -> str:
    engine = find_engine(kind)
    return "" if engine == "numpy" and not hasattr(kind, "__setitem__") else engine or ""


_NO_KEYWORDS: Structure = (dict, (), ())


class Arguments(NamedTuple):
    """Structure and engine of a call's arguments, without their leaves.

    Args:
        positional: structure of each positional argument.
        named: structure of the keyword arguments.
        engine: engine of the arrays; empty if there are none.
    """

    positional: tuple[Structure, ...]
    named: Structure
    engine: str

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "tuple[list[Leaf], Arguments]":
        """Return the leaves and the rest of a call's arguments. Raise TypeError if there are arrays of two engines."""
        leaves: list[Leaf] = []
        positional = flatten_into(leaves, args)[2]
        named = flatten_into(leaves, kwargs) if kwargs else _NO_KEYWORDS
        engines = {*map(_engine_of_type, {*map(type, leaves)})} - {""}
        arguments = cls(positional, named, min(engines, default=""))
        if len(engines) > 1:
            places = {engine: place for place, x in reversed([*enumerate(leaves)]) if (engine := array_engine(x))}
            described = ", ".join(f"{arguments._path(places[engine])} is of {engine}" for engine in sorted(places))
            raise TypeError(
                f"arrays of several engines in one call: {described}. Convert them, for example with "
                f'fanwise.tensor.convert(x, "torch").'
            )
        return leaves, arguments

    def apply(self, f: Callable[..., Any], leaves: Iterable[Leaf]) -> Any:
        """Call f with these leaves as arguments."""
        remaining = iter(leaves)
        args = [next(remaining) if structure is None else build(structure, remaining) for structure in self.positional]
        return f(*args, **build(self.named, remaining)) if self.named[1] else f(*args)

    def places(self, argnum: int) -> range:
        """Return the positions of the leaves of one positional argument. Raise ValueError if it does not exist."""
        count = len(self.positional)
        if not -count <= argnum < count:
            raise ValueError(
                f"argnums names argument {argnum}, but f got {count} positional arguments. "
                f"Pass arguments to differentiate by position."
            )
        counts = [len(leaf_paths(structure, "")) for structure in self.positional]
        first = sum(counts[: argnum % count])
        return range(first, first + counts[argnum])

    def check_differentiable(self, leaves: Sequence[Leaf], wanted: Iterable[int]) -> None:
        """Raise TypeError for a wanted leaf that is not a floating-point array."""
        for place in wanted:
            leaf = leaves[place]
            if not array_engine(leaf):
                raise TypeError(
                    f"{self._path(place)} is a {type(leaf).__qualname__}, not an array, so it has no gradient. "
                    f"Make an array of it with fanwise.tensor.asarray, or put it in another argument."
                )
            if not is_inexact(leaf.dtype):
                raise TypeError(
                    f"{self._path(place)} has dtype {leaf.dtype}: only real and complex floating-point arrays have "
                    f"gradients. Convert it to one, or put it in an argument that argnums leaves out."
                )

    def _path(self, place: int) -> str:
        positional = (leaf_paths(structure, f"args[{n}]") for n, structure in enumerate(self.positional))
        return [*(path for paths in positional for path in paths), *leaf_paths(self.named, "kwargs")][place]


def check_cotangent(engine: str, x: Any, value: Leaf, path: str) -> Leaf | None:
    """Return the user's cotangent of one array of the value, which may be a number, as an array; None for zeros."""
    if x is None:
        return None
    if isinstance(x, (int, float, complex)):
        return namespace(engine).full_like(value, x)
    if array_engine(x) != engine:
        raise TypeError(f"{path} must be an array of {engine}, as the value is, got {_describe(x)}.")
    if tuple(x.shape) != tuple(value.shape):
        raise ValueError(f"{path} must have the shape of the value, {tuple(value.shape)}, got {tuple(x.shape)}.")
    if x.dtype != value.dtype:
        raise TypeError(f"{path} must have the dtype of the value, {value.dtype}, got {x.dtype}.")
    return x


def check_value(value: Leaf, engine: str) -> None:
    """Raise TypeError unless f's value is a real floating-point array of the engine, without axes."""
    if array_engine(value) != engine:
        raise TypeError(f"f must return an array of {engine} to differentiate, got {_describe(value)}.")
    if value.ndim:  # None in TensorFlow: unknown while tracing
        raise TypeError(
            f"f must return an array without axes, got shape {tuple(value.shape)}. Return its sum (or mean), "
            f"or weigh its elements: value, pullback = fanwise.tensor.vjp(f, x); pullback(weights)."
        )
    if dtype_rank(value.dtype) != FLOAT:
        raise TypeError(
            f"f must return a real floating-point number to differentiate, got dtype {value.dtype}. "
            f"fanwise.tensor.vjp takes complex values."
        )


def _describe(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


_DIFFERENTIATED, _OTHER = object(), object()


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A result without its arrays. Compared by identity, so that engines can hash it.

    Args:
        structure: of the result.
        leaves: with a mark in place of each array.
    """

    structure: Structure
    leaves: list[Leaf]

    @property
    def is_differentiated(self) -> list[bool]:
        return [leaf is _DIFFERENTIATED for leaf in self.leaves]


NOTHING: tuple[list[Leaf], list[Leaf], Static] = [], [], Static(None, [None])


def partition(result: Any, engine: str, *, differentiate: bool) -> tuple[list[Leaf], list[Leaf], Static]:
    """Return the floating-point arrays of a tree if these are to be differentiated, its other arrays, and the rest."""
    leaves, structure = flatten(result)
    differentiated: list[Leaf] = []
    auxiliary: list[Leaf] = []
    for place, leaf in enumerate(leaves):
        if array_engine(leaf) == engine:
            is_differentiated = differentiate and is_inexact(leaf.dtype)
            (differentiated if is_differentiated else auxiliary).append(leaf)
            leaves[place] = _DIFFERENTIATED if is_differentiated else _OTHER
    return differentiated, auxiliary, Static(structure, leaves)


def combine(differentiated: Iterable[Leaf], auxiliary: Iterable[Leaf], static: Static) -> Any:
    """Return the tree that `partition` split, with these arrays."""
    arrays = {id(_DIFFERENTIATED): iter(differentiated), id(_OTHER): iter(auxiliary)}
    leaves = [next(arrays[id(leaf)]) if id(leaf) in arrays else leaf for leaf in static.leaves]
    return unflatten(static.structure, leaves)
