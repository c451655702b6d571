"""`vjp` and `jvp` at work: f applied once, with the way back from a cotangent, or with its derivative along a tangent.

    args -> value,  pullback: cotangent in the shape of value -> a gradient for each argument
    primals, tangents -> value, tangent in the shape of value

Knows trees; the engine sees flat lists. Nothing is remembered here: what is needed to go back hangs on the pullback.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from ..adapters import Pull
from ..namespaces import namespace
from ..trees import Leaf, TreeSpec, flatten, path_of
from .calls import Arguments, Static, check_differentiable, checked_like, load, put_together, taken_apart

# Any throughout: the user's functions, what they take and return.


def pulled_back(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """What `vjp` returns."""
    arguments, leaves = _all_differentiable("vjp", args)

    def call(leaves: list[Leaf]) -> tuple[None, list[Leaf], Static]:
        return None, *taken_apart(arguments.apply(f, leaves), arguments.engine)

    outputs, static, pull = load(arguments.engine).vjp(call, leaves, range(len(leaves)))
    way_back = _WayBack(arguments.engine, arguments.spec.child(0), outputs, static, pull)
    return put_together(outputs, static), way_back


def pushed_forward(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """What `jvp` returns."""
    for name, each_of in (("primals", primals), ("tangents", tangents)):
        if not isinstance(each_of, (tuple, list)):
            kind = type(each_of).__qualname__
            raise TypeError(f"{name} must be a tuple, with one for each argument of f, got {kind}.")
    if len(primals) != len(tangents):
        raise ValueError(f"jvp takes a tangent for each primal, got {len(primals)} primals, {len(tangents)} tangents.")
    arguments, leaves = _all_differentiable("jvp", tuple(primals))
    engine = load(arguments.engine)
    spec = arguments.spec.child(0)
    given_leaves: list[Any] = spec.flatten_up_to(cast(Any, tuple(tangents)))
    along = []
    for place, (given, x) in enumerate(zip(given_leaves, leaves, strict=True)):
        tangent = checked_like(arguments.engine, given, x, "primal", path_of(spec, place, "tangents"))
        along.append(namespace(arguments.engine).zeros_like(x) if tangent is None else tangent)

    def apply(leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
        return taken_apart(arguments.apply(f, leaves), arguments.engine)

    outputs, static, derivatives = engine.jvp(apply, leaves, range(len(leaves)), along)
    each = iter(derivatives)
    by_leaf = [next(each) if is_array else None for is_array in static.are_arrays]
    return put_together(outputs, static), static.spec.unflatten(by_leaf)


def _all_differentiable(name: str, args: tuple[Any, ...]) -> tuple[Arguments, list[Leaf]]:
    leaves, spec = flatten((args, {}))
    arguments = Arguments.of(leaves, spec)
    if not leaves:
        raise ValueError(f"{name} needs an array to differentiate by, and there is none in its arguments.")
    check_differentiable(arguments, leaves, range(len(leaves)))
    return arguments, leaves


class _WayBack:
    """The pullback that a user gets: checks the cotangent, and hands its arrays to the engine."""

    def __init__(
        self,
        engine: str,
        spec_of_args: TreeSpec,
        outputs: list[Leaf],
        static: Static,
        pull: Pull,
    ) -> None:
        self._engine = engine
        self._spec_of_args = spec_of_args
        self._outputs = outputs
        self._static = static
        self._pull = pull

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        given = self._static.spec.flatten_up_to(cotangent)
        smooth = iter(self._outputs)
        checked = [
            checked_like(self._engine, ct, next(smooth), "value", path_of(self._static.spec, place, "cotangent"))
            for place, (ct, is_array) in enumerate(zip(given, self._static.are_arrays, strict=True))
            if is_array
        ]
        return tuple(self._spec_of_args.unflatten(self._pull(checked)))
