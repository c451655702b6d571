"""The arguments of a call: which of their leaves are arrays, of which engine, and what f returned.

    args, kwargs --flatten--> leaves + spec --Arguments--> engine, places of the arrays to differentiate by
    f's result   --taken_apart--> arrays + Static --put_together--> the same result

Knows trees and messages; knows no engine. A function that an engine traces sees flat lists of arrays alone, so that
an engine's own idea of trees never matters. Raises TypeError and ValueError for what the caller did wrong.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..adapters import CompilingDifferentiator, Differentiator, differentiators
from ..dtype_names import is_inexact
from ..engines import ENGINES, engine_of, is_array_type
from ..namespaces import namespace
from ..random.keys import Key, key_of_words, traced_arrays
from ..trees import Leaf, TreeSpec, flatten, path_of


def load(engine: str, what: str = "gradients") -> Differentiator:
    """What serves an engine that has gradients, and all else that goes with them.

    Raises:
        TypeError: it has none; the message says which do.
    """
    found = differentiators.get(engine)
    if found is not None:
        return found
    able = [name for name, facts in ENGINES.items() if facts.autodiff]
    if engine not in able:
        raise TypeError(
            f"{engine} has no {what}; {', '.join(able)} have. Convert the arguments first, "
            f'for example with fanwise.tensor.convert(x, "torch").'
        )
    return differentiators[engine]


def load_compiling(engine: str) -> CompilingDifferentiator | None:
    """The same for an engine that compiles; None for one that does not, or for none."""
    return cast(CompilingDifferentiator, load(engine)) if engine in ENGINES and ENGINES[engine].jit else None


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the tree and the types of a call's leaves tell.

    Args:
        spec: of (args, kwargs).
        engine: of the arrays; empty when there is none.
    """

    spec: TreeSpec
    engine: str

    @classmethod
    def of(cls, leaves: Sequence[Leaf], spec: TreeSpec) -> "Arguments":
        """Of a call that was taken apart.

        Raises:
            TypeError: there are arrays of two engines. A single number of numpy goes with all of them.
        """
        return cls(spec, _engine(leaves, spec))

    def apply(self, f: Callable[..., Any], leaves: list[Leaf]) -> Any:  # Any: the user's
        """Call f with the arguments that these leaves make."""
        args, kwargs = self.spec.unflatten(leaves)
        return f(*args, **kwargs)

    def places(self, argnum: int) -> range:
        """Where the leaves of one positional argument are.

        Raises:
            ValueError: there is no such argument.
        """
        args = self.spec.child(0)
        if not -args.num_children <= argnum < args.num_children:
            named = self.spec.num_leaves - args.num_leaves
            raise ValueError(
                f"argnums names argument {argnum}, and f got {args.num_children} positional arguments"
                f"{'; give what is to be differentiated by position, not by name' if named else ''}."
            )
        begin = sum(args.child(number).num_leaves for number in range(argnum % args.num_children))
        return range(begin, begin + args.child(argnum).num_leaves)

    def shaped(self, argnum: int) -> Callable[[list[Leaf]], Any]:  # Any: a tree
        """What makes a tree like one positional argument, of its leaves."""
        shaped: Callable[[list[Leaf]], Any] = self.spec.child(0).child(argnum).unflatten
        return shaped

    def name(self, place: int) -> str:
        """How to write one leaf: `args[0]['w']`, `kwargs['mask']`."""
        return _name(self.spec, place)


def _engine(leaves: Sequence[Leaf], spec: TreeSpec) -> str:
    engine, first = "", 0
    for place, leaf in enumerate(leaves):
        other = array_engine(leaf)
        if other and not engine:
            engine, first = other, place
        elif other and other != engine:
            raise _mixed(spec, (first, engine), (place, other))
    return engine


def array_engine(leaf: Leaf) -> str:
    """The engine of an array, or "" for whatever is none, among it a single number of numpy."""
    if not is_array_type(type(leaf)):
        return ""
    engine = engine_of(leaf)
    return "" if engine == "numpy" and not hasattr(leaf, "__setitem__") else engine


def _name(spec: TreeSpec, place: int) -> str:
    root = "args" if place < spec.child(0).num_leaves else "kwargs"
    path = path_of(spec, place, root)
    return root + path.removeprefix(root).partition("]")[2]  # the first step is to args or kwargs itself


def _mixed(spec: TreeSpec, one: tuple[int, str], other: tuple[int, str]) -> TypeError:
    return TypeError(
        f"arrays of two engines in one call: {_name(spec, one[0])} is of {one[1]}, {_name(spec, other[0])} of "
        f'{other[1]}. Convert one of them, for example with fanwise.tensor.convert(x, "{one[1]}").'
    )


def check_differentiable(arguments: Arguments, leaves: Sequence[Leaf], wanted: Iterable[int]) -> None:
    """Raises TypeError for a leaf that is no array, or an array that has no gradient."""
    for place in wanted:
        leaf = leaves[place]
        if not array_engine(leaf):
            raise TypeError(
                f"{arguments.name(place)} is a {type(leaf).__qualname__}, not an array, so there is no gradient by it. "
                f"Make an array of it with fanwise.tensor.asarray, or put it in another argument."
            )
        if not is_inexact(leaf.dtype):
            raise TypeError(
                f"{arguments.name(place)} has dtype {leaf.dtype}: only real and complex floating-point arrays have "
                f"gradients. Convert it to one, or put it in an argument that argnums leaves out."
            )


def checked_like(engine: str, given: Any, like: Leaf, what: str, name: str) -> Leaf | None:  # Any: the user's
    """A tangent or cotangent of one array; None for zeros.

    Args:
        like: the array.
        what, name: "argument" or "value", and the way to what was given, for messages.
    """
    if given is None or not is_inexact(like.dtype):
        return None
    if isinstance(given, (int, float, complex)):
        return namespace(engine).full_like(like, given)
    found = array_engine(given)
    if found != engine:
        raise TypeError(
            f"{name} must be an array of {engine}, as the {what} is, got "
            f"{f'one of {found}' if found else type(given).__qualname__}."
        )
    if tuple(given.shape) != tuple(like.shape):
        raise ValueError(f"{name} must have the shape of the {what}, {tuple(like.shape)}, got {tuple(given.shape)}.")
    if given.dtype != like.dtype:
        raise TypeError(f"{name} must have the dtype of the {what}, {like.dtype}, got {given.dtype}.")
    return given


# -- what f returned ---------------------------------------------------------------------------------------------------

_AN_ARRAY, _A_KEY = object(), object()


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A result without its arrays. Two are never equal, so that engines may hash it whatever is in it."""

    spec: TreeSpec
    rest: list[Leaf]

    @property
    def are_arrays(self) -> list[bool]:
        """Which leaves are arrays."""
        return [leaf is _AN_ARRAY or leaf is _A_KEY for leaf in self.rest]


def taken_apart(result: Any, engine: str) -> tuple[list[Leaf], Static]:  # Any: a tree
    """The engine's arrays of a tree, and the rest of it. Of a key of compiled code there is an array of its words."""
    leaves, spec = flatten(result)
    arrays, rest = [], []
    for leaf in leaves:
        mark = leaf
        if array_engine(leaf) == engine:
            mark = _AN_ARRAY
            arrays.append(leaf)
        elif type(leaf) is Key and traced_arrays(leaf):
            mark = _A_KEY
            arrays.append(cast(CompilingDifferentiator, load(engine)).words_of_key(leaf))
        rest.append(mark)
    return arrays, Static(spec, rest)


def put_together(arrays: Sequence[Leaf], static: Static) -> Any:  # Any: a tree
    """What was taken apart, with these arrays."""
    each = iter(arrays)
    leaves = [
        next(each) if leaf is _AN_ARRAY else key_of_words(next(each)) if leaf is _A_KEY else leaf
        for leaf in static.rest
    ]
    return static.spec.unflatten(leaves)


def check_value(value: Leaf, engine: str) -> None:
    """Raises TypeError unless f's value is an array of no axes, of the engine and with a gradient."""
    if array_engine(value) != engine:
        raise TypeError(f"f must return an array of {engine} to differentiate, got {_describe(value)}.")
    if load(engine).is_real_scalar(value):
        return
    if tuple(value.shape):
        raise TypeError(
            f"f must return an array of no axes, got shape {tuple(value.shape)}. Return its sum (or mean), "
            f"or weigh its elements: value, pullback = fanwise.tensor.vjp(f, x); pullback(weights)."
        )
    if not is_inexact(value.dtype):
        raise TypeError(f"f must return a floating-point array to differentiate, got dtype {value.dtype}.")
    raise TypeError(
        f"f must return a real number to differentiate, got dtype {value.dtype}. Return its real or imaginary part, "
        f"or its absolute value; fanwise.tensor.vjp takes complex values."
    )


def split_pair(result: Any) -> tuple[Any, Any]:  # Any: what f returned
    """Value and auxiliary result of an f with has_aux.

    Raises:
        TypeError: it is no pair.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"with has_aux=True f must return a pair (value, aux), got {_describe(result)}.")
    return result


def _describe(x: object) -> str:
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
