"""`value_and_grad`, `grad` and `jit` at work: one prepared runner for each shape of the arguments.

    args, kwargs -> leaves, spec -> runner for (spec, types of the leaves) -> arrays -> what the caller gets

What depends on shapes and types alone (which engine, which leaves, is anything mixed) is found out when they come for
the first time. Invariant: all that is remembered hangs on the `Prepared` that the user holds.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..adapters import Call, Differentiator, NoGradient, Run
from ..trees import Leaf, TreeSpec, flatten
from .calls import (
    Arguments,
    Static,
    check_differentiable,
    check_value,
    load,
    load_compiling,
    put_together,
    split_pair,
    taken_apart,
)
from .compiling import Compiler

MAX_RUNNERS = 256

Runner = Callable[[list[Leaf]], Any]  # Any: what the caller gets
# Any throughout: the user's functions, what they take and return.


def _never(leaves: list[Leaf]) -> Any:
    raise AssertionError("no call has been prepared yet")


class Prepared:
    """A function made of f: `value_and_grad(f)`, `grad(f)` or `jit(f)`. It can be pickled if f can.

    Args:
        f: the user's function.
        prepare: makes a runner for a call's leaves.
        remake: the function and its arguments that made this; what pickle keeps.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        prepare: Callable[[Arguments, list[Leaf]], Runner],
        remake: tuple[Callable[..., Any], tuple[object, ...]],
    ) -> None:
        self.__wrapped__ = f
        self.__name__ = name_of(f)
        self.__doc__ = f.__doc__
        self._prepare = prepare
        self._remake = remake
        self._runners: dict[object, Runner] = {}
        self._last: tuple[TreeSpec | None, list[type], Runner] = (None, [], _never)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Most calls are like the one before. To compare with its tree takes 1 us beside the engine's own work,
        # to make a new one 4.
        spec, types, runner = self._last
        leaves: list[Leaf] | None = None
        if spec is not None:
            try:
                leaves = spec.flatten_up_to(cast(Any, (args, kwargs)))
            except ValueError:
                pass  # it is another tree
        if leaves is None or [*map(type, leaves)] != types:
            leaves, spec = flatten((args, kwargs))
            types = [*map(type, leaves)]
            runner = self._runner_for(leaves, spec, types)
            self._last = spec, types, runner
        return runner(leaves)

    def _runner_for(self, leaves: list[Leaf], spec: TreeSpec, types: Sequence[type]) -> Runner:
        key = (spec, *types)
        return self._runners.get(key) or self._kept(key, self._prepare(Arguments.of(leaves, spec), leaves))

    def _kept(self, key: object, runner: Runner) -> Runner:
        if len(self._runners) >= MAX_RUNNERS:
            self._runners.clear()
        self._runners[key] = runner
        return runner

    def __repr__(self) -> str:
        return f"<{self._remake[0].__name__} of {self.__name__}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._remake


def name_of(f: Callable[..., Any]) -> str:
    """A function's name, for messages."""
    return str(getattr(f, "__name__", None) or type(f).__name__)


def derivative(
    f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, jit: bool
) -> Callable[[Arguments, list[Leaf]], Runner]:
    """What prepares `value_and_grad(f)`: runners that give (value, gradients), or ((value, aux), gradients)."""
    compiler = Compiler(name_of(f))

    def prepare(arguments: Arguments, leaves: list[Leaf]) -> Runner:
        each = (argnums,) if isinstance(argnums, int) else argnums
        wanted = [place for argnum in each for place in arguments.places(argnum)]
        if not wanted:
            raise ValueError(f"argnums={argnums!r} names no array to differentiate {name_of(f)} by.")
        check_no_repetition(wanted, argnums)
        check_differentiable(arguments, leaves, wanted)
        engine = load(arguments.engine)
        # A partial: in the time of one frame of Python torch multiplies small matrices.
        run: Run = functools.partial(engine.value_and_grad, _called(f, engine, arguments, has_aux), wanted)
        if jit and (compiling := load_compiling(arguments.engine)):
            run = compiler.runner(compiling, leaves, run)
        shaped = _shaped(arguments, argnums)

        def runner(leaves: list[Leaf]) -> Any:
            try:
                (value, grads, aux), static = run(leaves)
            except NoGradient:
                check_differentiable(arguments, leaves, wanted)
                raise
            return ((value, put_together(aux, static)) if has_aux else value), shaped(grads)

        return runner

    return prepare


def check_no_repetition(wanted: Sequence[int], argnums: object) -> None:
    """Raises ValueError when an argument is named twice."""
    if len(set(wanted)) != len(wanted):
        raise ValueError(f"argnums={argnums!r} names an argument twice.")


def _called(f: Callable[..., Any], engine: Differentiator, arguments: Arguments, has_aux: bool) -> Call:
    """f as the engine differentiates it. Traced when it is compiled."""
    apply, name = arguments.apply, arguments.engine
    checked: type | None = None
    is_real_scalar = engine.is_real_scalar

    def call(leaves: list[Leaf]) -> tuple[Leaf, list[Leaf], Static | None]:
        nonlocal checked
        result = apply(f, leaves)
        value, aux = split_pair(result) if has_aux else (result, None)
        if type(value) is not checked or not is_real_scalar(value):
            check_value(value, name)
            checked = type(value)
        return (value, *taken_apart(aux, name)) if has_aux else (value, [], None)

    return call


def _shaped(arguments: Arguments, argnums: int | tuple[int, ...]) -> Callable[[list[Leaf]], Any]:
    """Gradients of the wanted leaves, in the shape of the arguments."""
    if isinstance(argnums, int):
        return arguments.shaped(argnums)
    parts = [(arguments.shaped(argnum), len(arguments.places(argnum))) for argnum in argnums]

    def shaped(grads: list[Leaf]) -> tuple[Any, ...]:
        each = iter(grads)
        return tuple(shape([next(each) for _ in range(size)]) for shape, size in parts)

    return shaped


def without_value(
    prepare: Callable[[Arguments, list[Leaf]], Runner], has_aux: bool
) -> Callable[[Arguments, list[Leaf]], Runner]:
    """What prepares `grad(f)`: its runners give gradients, with has_aux (gradients, aux)."""

    def prepare_grad(arguments: Arguments, leaves: list[Leaf]) -> Runner:
        runner = prepare(arguments, leaves)

        def grads(leaves: list[Leaf]) -> Any:
            return runner(leaves)[1]

        def grads_and_aux(leaves: list[Leaf]) -> tuple[Any, Any]:
            (_, aux), grads = runner(leaves)
            return grads, aux

        return grads_and_aux if has_aux else grads

    return prepare_grad


def jitted(f: Callable[..., Any]) -> Callable[[Arguments, list[Leaf]], Runner]:
    """What prepares `jit(f)`."""
    compiler = Compiler(name_of(f))

    def prepare(arguments: Arguments, leaves: list[Leaf]) -> Runner:
        compiling = load_compiling(arguments.engine)
        if compiling is None:
            return functools.partial(arguments.apply, f)

        def apply(leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
            return taken_apart(arguments.apply(f, leaves), arguments.engine)

        run = compiler.runner(compiling, leaves, apply)
        return lambda leaves: put_together(*run(leaves))

    return prepare
