"""`value_and_grad`, `grad`, `vjp`, `stop_gradient` and `jit`, by the engine of the arrays in the arguments."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..adapters import Run
from ..engines import ENGINES
from ..trees import Leaf, flatten, flatten_like, unflatten, with_leaves
from .calls import NOTHING, Arguments, Static, array_engine, check_cotangent, check_value, combine, load, partition

WARN_AT_VERSIONS = 64
_ARRAY = object()
_COPIED = ("__name__", "__doc__")


def value_and_grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function of the same arguments that returns (value of f, gradient).

    Nothing accumulates: torch's `.grad` and the `requires_grad` of the caller's tensors do not change. The results have
    no history, unless the call runs inside another differentiation of this module: nest for second derivatives,
    `grad(grad(f))`. Works under `torch.no_grad()` too.

    Args:
        f: returns one real floating-point array without axes. It must not write into its arguments. Its control flow
            may depend on values unless the result is compiled by `jit`.
        argnums: positions of the arguments to differentiate by, trees of floating-point arrays: dicts, lists, tuples,
            named tuples and None. The gradient has the same structure, with zeros for a leaf that f does not use.
        has_aux: f returns (value, aux) with any aux. The result is ((value, aux), gradient).

    A torch Parameter or TensorFlow Variable is passed to f itself: its hooks run once, and indirect uses (`model(X)`)
    count. The gradient by a complex argument is dL/d(real part) + i dL/d(imaginary part) on every engine, so
    x - lr * gradient descends. This is the convention of torch; `jax.grad` gives the conjugate.

    Raises (when called):
        TypeError: a leaf to differentiate by is not a floating-point array; there are arrays of two engines; the
            engine has no gradients; f's value is not a real floating-point array of the engine without axes.
        ValueError: argnums does not name an argument with arrays.

    >>> import torch
    >>> x = torch.arange(4.0)
    >>> value_and_grad(lambda x: 2 * (x @ x))(x)
    (tensor(28.), tensor([ 0.,  4.,  8., 12.]))
    """
    _check_function(f)
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not numbers or not all(type(number) is int for number in numbers):
        raise TypeError(f"argnums must be an integer or a tuple of integers, got {argnums!r}")
    checked: tuple[Arguments | None, list[int], list[object]] = (None, [], [])

    def check(arguments: Arguments, leaves: list[Leaf]) -> list[int]:
        """Return the places of the leaves to differentiate by."""
        wanted = [place for number in numbers for place in arguments.places(number)]
        if not wanted:
            raise ValueError(f"argnums={argnums!r} names no array to differentiate {_name_of(f)} by.")
        if len(set(wanted)) != len(wanted):
            raise ValueError(f"argnums={argnums!r} names an argument twice.")
        arguments.check_differentiable(leaves, wanted)
        return wanted

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        nonlocal checked
        leaves, arguments = Arguments.of(args, kwargs)
        # Most calls have the structure, types and dtypes of the call before.
        last, wanted, kinds = checked
        if arguments != last or kinds != _kinds(leaves, wanted):
            wanted = check(arguments, leaves)
            checked = arguments, wanted, _kinds(leaves, wanted)
        engine = load(arguments.engine)

        def apply(leaves: list[Leaf]) -> tuple[list[Leaf], list[Leaf], Static]:
            result = arguments.apply(f, leaves)
            if has_aux and (not isinstance(result, tuple) or len(result) != 2):
                raise TypeError(f"with has_aux=True f must return a pair (value, aux), got {type(result).__name__}.")
            value, aux = result if has_aux else (result, None)
            check_value(value, arguments.engine)
            _, auxiliary, static = partition(aux, arguments.engine, differentiate=False) if has_aux else NOTHING
            return [value], auxiliary, static

        (value,), auxiliary, static, grads = engine.value_and_grad(apply, leaves, wanted)
        if isinstance(argnums, tuple):
            remaining = iter(grads)
            gradient: Any = tuple([unflatten(arguments.positional[number], remaining) for number in numbers])
        else:
            gradient = unflatten(arguments.positional[argnums], grads)
        return ((value, combine((), auxiliary, static)) if has_aux else value), gradient

    return functools.wraps(f, _COPIED)(call)


def grad(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that returns the gradient only, or (gradient, aux) with has_aux; otherwise like
    `value_and_grad`.

    >>> import torch
    >>> grad(grad(torch.sin))(torch.tensor(0.5))  # the second derivative
    tensor(-0.4794)
    """
    differentiated = value_and_grad(f, argnums, has_aux)

    def call(*args: Any, **kwargs: Any) -> Any:
        value, gradient = differentiated(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return functools.wraps(f, _COPIED)(call)


def vjp(f: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return f(*args), and its pullback: from a cotangent of the value to the gradient by each argument.

    f runs once, and is not compiled (pass `jit(f)`). The pullback may be called repeatedly, and keeps the memory
    it needs.

    Args:
        f: returns a tree; its floating-point arrays have cotangents.
        args: trees of floating-point arrays, all differentiated by. Pass anything else into f by `lambda`.

    Returns:
        value: the result of f, without history as in `value_and_grad`.
        pullback: takes a tree like value, in which None stands for zeros and a number for an array of it. Returns a
            tuple with one gradient for each of args. Complex cotangents and gradients follow the convention of
            `value_and_grad`; `jax.vjp` takes and gives their conjugates.

    Raises:
        TypeError, ValueError: as `value_and_grad`; and, from the pullback, if the cotangent does not have the value's
            engine, shape, dtype or structure.

    >>> import torch
    >>> y, pullback = vjp(lambda x: x * x, torch.arange(4.0))
    >>> pullback(torch.ones(4))
    (tensor([0., 2., 4., 6.]),)
    """
    _check_function(f)
    leaves, arguments = Arguments.of(args, {})
    if not leaves:
        raise ValueError("vjp needs an array to differentiate by, and there is none in its arguments.")
    arguments.check_differentiable(leaves, range(len(leaves)))
    engine = arguments.engine

    def apply(leaves: list[Leaf]) -> tuple[list[Leaf], list[Leaf], Static]:
        return partition(arguments.apply(f, leaves), engine, differentiate=True)

    outputs, auxiliary, static, pull = load(engine).vjp(apply, leaves, range(len(leaves)))

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        parts = flatten_like(static.structure, cotangent, "cotangent")
        chosen = [part for part, is_in in zip(parts, static.is_differentiated, strict=True) if is_in]
        cotangents = [check_cotangent(engine, x, y, path) for (path, x), y in zip(chosen, outputs, strict=True)]
        grads = iter(pull(cotangents))
        return tuple([unflatten(structure, grads) for structure in arguments.positional])

    return combine(outputs, auxiliary, static), pullback


def stop_gradient(x: Any) -> Any:
    """Return an array, or a tree of anything, with its arrays as constants. NumPy arrays are returned unchanged.

    >>> import torch
    >>> grad(lambda x: (stop_gradient(x * x) * x).sum())(torch.arange(4.0))  # x * x is a constant
    tensor([0., 1., 4., 9.])
    """
    leaves, structure = flatten(x)
    for place, leaf in enumerate(leaves):
        engine = array_engine(leaf)
        if engine and ENGINES[engine].autodiff:
            leaves[place] = load(engine).stop_gradient(leaf)
    return unflatten(structure, leaves)


def jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return f, compiled for arrays of JAX; other engines run it uncompiled.

    JAX runs f in Python only while it traces it. Arrays and floats are arguments of the compiled code. Other arguments
    (integers, strings, keys, functions) are built in, one version for each value and type; the 64th version warns. Pass
    a step as `asarray(step)`, and random numbers as arrays. The versions live as long as the returned function.
    Compile derivatives by `jit(value_and_grad(f))`.

    Args:
        f: takes and returns trees of arrays and anything else.

    Raises (when called):
        TypeError: an argument to build in cannot be hashed; there are arrays of two engines.

    >>> import torch
    >>> jit(lambda tree, power: {name: x**power for name, x in tree.items()})({"x": torch.tensor(3.0)}, 2)
    {'x': tensor(9.)}
    """
    _check_function(f)
    versions: dict[object, Run] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, arguments = Arguments.of(args, kwargs)
        if not arguments.engine or not ENGINES[arguments.engine].jit:
            return f(*args, **kwargs)
        engine = load(arguments.engine)
        places = [place for place, leaf in enumerate(leaves) if engine.is_argument(leaf)]
        constants = with_leaves(leaves, places, [_ARRAY] * len(places))

        def run(arrays: list[Leaf]) -> tuple[list[Leaf], Static]:
            result = arguments.apply(f, with_leaves(constants, places, arrays))
            _, auxiliary, static = partition(result, arguments.engine, differentiate=False)
            return auxiliary, static

        # The texts of floats tell 0.0 from -0.0, and find nan again.
        key = (arguments, *[(type(x), repr(x) if isinstance(x, (float, complex)) else x) for x in constants])
        try:
            version = versions.get(key)
        except TypeError as error:
            error.add_note(f"{_name_of(f)} is compiled for each value of its arguments that are not arrays.")
            raise
        if version is None:
            version = versions[key] = engine.compiled(run)
            if len(versions) == WARN_AT_VERSIONS:
                warnings.warn(
                    f"{_name_of(f)} has been compiled for {WARN_AT_VERSIONS} different values of its arguments. Pass "
                    f"numbers that change as arrays, fanwise.tensor.asarray(step), and random numbers instead of keys.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        auxiliary, static = version([leaves[place] for place in places])
        return combine((), auxiliary, static)

    return functools.wraps(f, _COPIED)(call)


def _kinds(leaves: Sequence[Leaf], places: Sequence[int]) -> list[object]:
    return [(type(leaves[place]), getattr(leaves[place], "dtype", None)) for place in places]


def _check_function(f: object) -> None:
    if not callable(f):
        raise TypeError(f"expected a function, got {type(f).__qualname__}: {f!r:.100}")


def _name_of(f: Callable[..., Any]) -> str:
    return str(getattr(f, "__name__", None) or type(f).__name__)
