"""`vjp` at work: f applied once, and the way back from a cotangent, as often as the caller likes.

    args -> value,  pullback: cotangent in the shape of value -> a gradient for each argument

Knows trees; the engine sees flat lists. Nothing is remembered here: what is needed to go back hangs on the pullback.
"""

from collections.abc import Callable
from typing import Any

from ..adapters import Differentiator, Pull
from ..trees import Leaf, TreeSpec, flatten, path_of
from .calls import Arguments, Static, array_engine, check_differentiable, load, put_together, taken_apart

# Any throughout: the user's functions, what they take and return.


def pulled_back(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """What `vjp` returns."""
    leaves, spec = flatten((args, {}))
    arguments = Arguments.of(leaves, spec)
    if not leaves:
        raise ValueError("vjp needs an array to differentiate by, and there is none in its arguments.")
    check_differentiable(arguments, leaves, range(len(leaves)))
    engine = load(arguments.engine)

    def call(leaves: list[Leaf]) -> tuple[None, list[Leaf], Static]:
        given, _ = spec.unflatten(leaves)
        return None, *taken_apart(f(*given), arguments.engine)

    outputs, static, pull = engine.vjp(call, leaves, range(len(leaves)))
    way_back = _WayBack(engine, arguments.engine, spec.child(0), outputs, static, pull)
    return put_together(outputs, static), way_back


class _WayBack:
    """The pullback that a user gets: checks the cotangent, and hands its arrays to the engine."""

    def __init__(
        self,
        engine: Differentiator,
        engine_name: str,
        spec_of_args: TreeSpec,
        outputs: list[Leaf],
        static: Static,
        pull: Pull,
    ) -> None:
        self._engine = engine
        self._name = engine_name
        self._spec_of_args = spec_of_args
        self._outputs = outputs
        self._static = static
        self._pull = pull

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        given = self._static.spec.flatten_up_to(cotangent)
        smooth = iter(self._outputs)
        checked = [
            self._checked(ct, next(smooth), place)
            for place, (ct, is_array) in enumerate(zip(given, self._static.are_arrays, strict=True))
            if is_array
        ]
        return tuple(self._spec_of_args.unflatten(self._pull(checked)))

    def _checked(self, cotangent: Any, output: Leaf, place: int) -> Leaf | None:
        """None for a cotangent of zeros, an array of the output's shape else."""
        if cotangent is None or not self._engine.is_differentiable(output):
            return None
        if isinstance(cotangent, (int, float, complex)):
            return self._engine.filled_like(output, cotangent)
        name = path_of(self._static.spec, place, "cotangent")
        found = array_engine(cotangent)
        if found != self._name:
            raise TypeError(
                f"{name} must be an array of {self._name}, as the value is, got "
                f"{f'one of {found}' if found else type(cotangent).__qualname__}."
            )
        if tuple(cotangent.shape) != tuple(output.shape):
            raise ValueError(
                f"{name} must have the shape of the value, {tuple(output.shape)}, got {tuple(cotangent.shape)}."
            )
        if cotangent.dtype != output.dtype:
            raise TypeError(f"{name} must have the dtype of the value, {output.dtype}, got {cotangent.dtype}.")
        return cotangent
