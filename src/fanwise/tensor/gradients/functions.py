"""`value_and_grad`, `grad`, `vjp`, `jvp`, `stop_gradient` and `jit`, by the engine of the arrays in the arguments."""

from collections.abc import Callable, Sequence
from typing import Any

from ..adapters import Pullback
from ..engines import ENGINES
from ..namespaces import namespace
from ..trees import Leaf, flatten, flatten_like, leaf_paths, unflatten
from .calls import NOTHING, Arguments, Static, array_engine, check_like, check_value, load, put_together, take_apart
from .compiling import Compiler


class _Derived:
    """A function made of f. It is pickled as the call that made it, so without compiled code."""

    def __init__(
        self, call: Callable[..., Any], make: Callable[..., Any], f: Callable[..., Any], *options: Any
    ) -> None:
        self.__wrapped__ = f
        self.__name__ = _name_of(f)
        self.__doc__ = f.__doc__
        self._call = call
        self._make = make
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self._make.__name__} of {self.__name__}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._make, (self.__wrapped__, *self._options)


def value_and_grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, jit: bool = False
) -> Callable[..., Any]:
    """Return a function of the same arguments that returns (value of f, gradient).

    Nothing accumulates: torch's `.grad` and the `requires_grad` of the caller's tensors do not change. The results have
    no history, unless the call runs inside another differentiation of this module: nest for second derivatives,
    `grad(grad(f))`. Works under `torch.no_grad()` too.

    Args:
        f: returns one real floating-point array without axes. It must not write into its arguments. Its control flow
            may depend on values unless it is compiled.
        argnums: positions of the arguments to differentiate by, trees of floating-point arrays: dicts, lists, tuples,
            named tuples and None. The gradient has the same structure, with zeros for a leaf that f does not use.
        has_aux: f returns (value, aux) with any aux. The result is ((value, aux), gradient).
        jit: compile f with its gradient by `jax.jit` or `tf.function` (without AutoGraph). torch runs f uncompiled.

    Python runs a compiled f only while it is traced. Arrays and keys are arguments of the compiled code, which draws
    the bits of an uncompiled f from each key. Other arguments (integers, strings, functions; floats on TensorFlow) are
    built in, one version for each value and type; the 64th version warns. Pass a step as `asarray(step)`. The versions
    live as long as the returned function. It can be pickled if f can.

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
    call = _differentiated(f, argnums, has_aux, jit)
    return _Derived(call, value_and_grad, f, argnums, has_aux, jit)


def grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, jit: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the gradient only, or (gradient, aux) with has_aux; otherwise like
    `value_and_grad`.

    >>> import torch
    >>> grad(grad(torch.sin))(torch.tensor(0.5))  # the second derivative
    tensor(-0.4794)
    """
    differentiated = _differentiated(f, argnums, has_aux, jit)

    def call(*args: Any, **kwargs: Any) -> Any:
        value, gradient = differentiated(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return _Derived(call, grad, f, argnums, has_aux, jit)


def _differentiated(
    f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, jit: bool
) -> Callable[..., tuple[Any, Any]]:
    _check_function(f)
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not numbers or not all(type(number) is int for number in numbers):
        raise TypeError(f"argnums must be an integer or a tuple of integers, got {argnums!r}")
    compiler = Compiler(_name_of(f))
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
            _, auxiliary, static = take_apart(aux, arguments.engine, differentiate=False) if has_aux else NOTHING
            return [value], auxiliary, static

        def run(leaves: list[Leaf]) -> tuple[Any, Static]:
            (value,), auxiliary, static, grads = engine.value_and_grad(apply, leaves, wanted)
            return (value, auxiliary, grads), static

        is_compiled = jit and ENGINES[arguments.engine].jit
        (value, auxiliary, grads), static = compiler(arguments, leaves, run) if is_compiled else run(leaves)
        if isinstance(argnums, tuple):
            remaining = iter(grads)
            gradient: Any = tuple([unflatten(arguments.positional[number], remaining) for number in numbers])
        else:
            gradient = unflatten(arguments.positional[argnums], grads)
        return ((value, put_together((), auxiliary, static)) if has_aux else value), gradient

    return call


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
    leaves, arguments, apply = _all_differentiated("vjp", f, args)
    outputs, auxiliary, static, pullback = load(arguments.engine).vjp(apply, leaves, range(len(leaves)))
    return put_together(outputs, auxiliary, static), _pullback(arguments, outputs, static, pullback)


def _pullback(
    arguments: Arguments, outputs: list[Leaf], static: Static, pullback: Pullback
) -> Callable[[Any], tuple[Any, ...]]:
    """Return the user's pullback, which takes and returns trees."""

    def call(cotangent: Any) -> tuple[Any, ...]:
        parts = flatten_like(static.structure, cotangent, "cotangent")
        paths = leaf_paths(static.structure, "cotangent")
        chosen = [(x, path) for x, path, is_in in zip(parts, paths, static.is_differentiated, strict=True) if is_in]
        cotangents = [
            check_like(arguments.engine, x, y, "value", path) for (x, path), y in zip(chosen, outputs, strict=True)
        ]
        grads = iter(pullback(cotangents))
        return tuple([unflatten(structure, grads) for structure in arguments.positional])

    return call


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return f(*primals), and its derivative along the tangents: d/ds f(primals + s * tangents) at s = 0, for real s.

    For complex numbers it is the same derivative on every engine, without a conjugate: with the gradients of `vjp`,
    sum(real(conj(cotangent) * jvp)) = sum(real(conj(pulled back) * tangent)). f runs once, and is not compiled (pass
    `jit(f)`). Nests with `grad`, `vjp` and itself; `jvp(grad(f), ...)` is the product of the Hessian with a vector.

    Args:
        f: returns a tree; its floating-point arrays have derivatives.
        primals: a tuple of arguments, trees of floating-point arrays. Pass anything else into f by `lambda`.
        tangents: trees like primals; None stands for zeros, a number for an array of it.

    Returns:
        value: the result of f, without history as in `value_and_grad`.
        tangent: a tree like value, with None in place of anything but floating-point arrays.

    Raises:
        TypeError, ValueError: as `vjp` for primals, as its pullback for tangents.

    >>> import torch
    >>> jvp(lambda x: x * x, (torch.arange(4.0),), (torch.ones(4),))
    (tensor([0., 1., 4., 9.]), tensor([0., 2., 4., 6.]))
    """
    for name, trees in (("primals", primals), ("tangents", tangents)):
        if not isinstance(trees, (tuple, list)):
            kind = type(trees).__qualname__
            raise TypeError(f"{name} must be a tuple, with one for each argument of f, got {kind}.")
    if len(primals) != len(tangents):
        raise ValueError(f"jvp takes a tangent for each primal, got {len(primals)} primals, {len(tangents)} tangents.")
    leaves, arguments, apply = _all_differentiated("jvp", f, tuple(primals))
    xp = namespace(arguments.engine)
    parts: list[Any] = []
    paths: list[str] = []
    for number, (structure, tree) in enumerate(zip(arguments.positional, tangents, strict=True)):
        parts += flatten_like(structure, tree, f"tangents[{number}]")
        paths += leaf_paths(structure, f"tangents[{number}]")
    along = [
        xp.zeros_like(primal) if (x := check_like(arguments.engine, part, primal, "primal", path)) is None else x
        for part, primal, path in zip(parts, leaves, paths, strict=True)
    ]
    outputs, auxiliary, static, derivatives = load(arguments.engine).jvp(apply, leaves, range(len(leaves)), along)
    remaining = iter(derivatives)
    by_leaf = [next(remaining) if is_in else None for is_in in static.is_differentiated]
    return put_together(outputs, auxiliary, static), unflatten(static.structure, by_leaf)


def _all_differentiated(
    name: str, f: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[list[Leaf], Arguments, Callable[[list[Leaf]], tuple[list[Leaf], list[Leaf], Static]]]:
    """Return leaves, arguments, and f on flat lists, for a call that differentiates by all arguments."""
    _check_function(f)
    leaves, arguments = Arguments.of(args, {})
    if not leaves:
        raise ValueError(f"{name} needs an array to differentiate by, and there is none in its arguments.")
    arguments.check_differentiable(leaves, range(len(leaves)))

    def apply(leaves: list[Leaf]) -> tuple[list[Leaf], list[Leaf], Static]:
        return take_apart(arguments.apply(f, leaves), arguments.engine, differentiate=True)

    return leaves, arguments, apply


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
    """Return f, compiled by the engine of its arguments as in `value_and_grad`. torch and NumPy run it uncompiled.

    Args:
        f: takes and returns trees of arrays, keys and anything else.

    >>> import torch
    >>> jit(lambda tree, power: {name: x**power for name, x in tree.items()})({"x": torch.tensor(3.0)}, 2)
    {'x': tensor(9.)}
    """
    _check_function(f)
    compiler = Compiler(_name_of(f))

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, arguments = Arguments.of(args, kwargs)
        if not arguments.engine or not ENGINES[arguments.engine].jit:
            return f(*args, **kwargs)

        def run(leaves: list[Leaf]) -> tuple[list[Leaf], Static]:
            _, auxiliary, static = take_apart(arguments.apply(f, leaves), arguments.engine, differentiate=False)
            return auxiliary, static

        auxiliary, static = compiler(arguments, leaves, run)
        return put_together((), auxiliary, static)

    return _Derived(call, jit, f)


def _kinds(leaves: Sequence[Leaf], places: Sequence[int]) -> list[object]:
    return [(type(leaves[place]), getattr(leaves[place], "dtype", None)) for place in places]


def _check_function(f: object) -> None:
    if not callable(f):
        raise TypeError(f"expected a function, got {type(f).__qualname__}: {f!r:.100}")


def _name_of(f: Callable[..., Any]) -> str:
    return str(getattr(f, "__name__", None) or type(f).__name__)
