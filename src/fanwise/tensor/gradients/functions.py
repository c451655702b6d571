"""What users call: `value_and_grad`, `grad`, `vjp`, `jvp`, `stop_gradient`, `jit`.

    from fanwise.tensor import value_and_grad

    def loss(params, X, y):
        return ((X @ params["w"] + params["b"] - y) ** 2).mean()

    step = value_and_grad(loss)
    value, grads = step({"w": w, "b": b}, X, y)      # grads == {"w": ..., "b": ...}

The engine is that of the arrays in the arguments. Importing this loads no engine, and no trees either: what works
is loaded when one of these is called.
"""

from collections.abc import Callable, Sequence
from typing import Any

# Any throughout: trees of arrays of any engine, and the user's functions of them.


def value_and_grad(
    f: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    jit: bool = False,
) -> Callable[..., Any]:
    """A function of the same arguments that returns (what f returns, its gradient).

    One rule on all engines: gradients are returned, nothing accumulates. torch's `.grad` is not touched, and no tensor
    of the caller changes its `requires_grad`. What comes back has no history, as of `torch.autograd.grad`, unless the
    call runs inside another differentiation of this module: nest for second derivatives, `grad(grad(f))`. (torch's own
    `backward()` does not see through it.) Under `torch.no_grad()` it works as anywhere.

    Args:
        f: returns one array of no axes, with a real floating-point dtype; a mean or sum. It must not write into its
            arguments. Its control flow may depend on values (`if`, `while`) unless it is compiled.
        argnums: which positional arguments to differentiate by: their numbers, from 0. Each is a tree of
            floating-point arrays: an array, dict, list, tuple, named tuple, None (has no gradient), or a class
            registered with optree under the namespace "fanwise". The gradient has the same shape; a leaf that f
            does not use gets zeros. All other arguments, by name too, are passed on as they are.
        has_aux: f returns (value, aux), aux being anything. The result is then ((value, aux), gradient).
        jit: whether f is compiled, with its gradient: by `jax.jit` or `tf.function` (without AutoGraph). torch runs f
            as it is, with or without: `torch.compile`, which takes a minute, is for you to call.

    A compiled f is run by Python when it is traced, and not again for arguments alike: print, counters and what it
    reads from outside belong to that moment. What changes is an argument: arrays, and keys, from which it draws anew
    each time, the same bits as f as it is. Other arguments that are no arrays (integers, strings, functions; floats on
    TensorFlow) are built into the compiled code, one version for each value by `==` and type; JAX gets floats as
    arguments. Give a step as `asarray(step)`. After 64 versions of one function there is a RuntimeWarning, and what is
    new then is not compiled. Where Python needs a value while tracing (`while x.sum() < 10`), the engine's error is
    raised. All versions belong to the returned function and go with it. It can be pickled if f can.

    A Parameter of torch or Variable of TensorFlow in the arguments reaches f itself: its hooks run, once, and what f
    uses of it by another way (`model(X)`) counts. Any other array is an argument like JAX's: only its own use counts.
    By a complex argument the gradient is dL/d(real part) + i dL/d(imaginary part) on every engine, the direction of
    steepest ascent, so that x - lr * gradient descends. That is torch's convention ("Autograd mechanics", "Complex
    autograd", in its notes); what JAX computes, its conjugate ("Autodiff cookbook"), is conjugated back.

    Raises (when called):
        TypeError: a leaf to differentiate by is no array or has an integer dtype; there are arrays of two engines; the
            engine is numpy, which has no gradients; f's value is no array of the engine, has axes, or is complex.
        ValueError: argnums names no argument, or no array.

    >>> import torch
    >>> x = torch.arange(4.0)
    >>> value_and_grad(lambda x: 2 * (x @ x))(x)
    (tensor(28.), tensor([ 0.,  4.,  8., 12.]))
    """
    from .derivatives import Prepared, derivative

    _check_options(f, argnums)
    return Prepared(f, derivative(f, argnums, has_aux, jit), (value_and_grad, (f, argnums, has_aux, jit)))


def grad(
    f: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    jit: bool = False,
) -> Callable[..., Any]:
    """As `value_and_grad`, without the value: a function that returns the gradient, with has_aux (gradient, aux).

    >>> import torch
    >>> grad(grad(torch.sin))(torch.tensor(0.5))  # the second derivative
    tensor(-0.4794)
    """
    from .derivatives import Prepared, derivative, without_value

    _check_options(f, argnums)
    prepare = without_value(derivative(f, argnums, has_aux, jit), has_aux)
    return Prepared(f, prepare, (grad, (f, argnums, has_aux, jit)))


def _check_options(f: object, argnums: object) -> None:
    if not callable(f):
        raise TypeError(f"expected a function, got {type(f).__qualname__}: {f!r:.100}")
    each = argnums if isinstance(argnums, tuple) else (argnums,)
    if not each or not all(type(argnum) is int for argnum in each):
        raise TypeError(f"argnums must be an integer or a tuple of integers, got {argnums!r}")


def vjp(f: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """f(*args), and its pullback: from a cotangent in the shape of that value to the gradient by each argument.

    For values with axes, for more than one weighing of the same value, and to carry gradients on by hand: the
    cotangent is the gradient of something later by the value. The pullback may be called often, each time with the same
    result for the same cotangent; it keeps alive what it needs. f runs once, and is not compiled (give `jit(f)`).

    Args:
        f: returns a tree; of its arrays those of floating-point dtypes have cotangents.
        args: trees of floating-point arrays, all differentiated by. What has no gradient goes into f by
            `lambda` or `functools.partial`.

    Returns:
        value: what f returned, without a history as in `value_and_grad`.
        pullback: takes a tree like value; None in it stands for zeros, a number for an array of it. Returns a tuple
            with one gradient for each of args, zeros where f does not depend on a leaf. Complex cotangents and
            gradients are in the convention of `value_and_grad`; `jax.vjp` takes and gives their conjugates.

    Raises:
        TypeError, ValueError: as `value_and_grad`; and, of the pullback, when the cotangent is not of the value's
            engine, shape, dtype or tree.

    >>> import torch
    >>> y, pullback = vjp(lambda x: x * x, torch.arange(4.0))
    >>> pullback(torch.ones(4))
    (tensor([0., 2., 4., 6.]),)
    """
    from .pullbacks import pulled_back

    return pulled_back(f, args)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f(*primals), and its derivative along the tangents: d/ds f(primals + s * tangents) at s = 0, for real s.

    Forward mode: one call gives one column of the Jacobian, where the pullback of `vjp` gives a row. With complex
    numbers it is the same derivative on every engine, also where f has none in the complex sense, and no conjugate is
    taken; with the gradients of `vjp`, sum(real(conj(cotangent) * jvp)) = sum(real(conj(pulled back) * tangent)).

    By `torch.func.jvp`, `jax.jvp` and `tf.autodiff.ForwardAccumulator`. f runs once, and is not compiled (give
    `jit(f)`). Nests with `grad`, `vjp` and itself, `jvp(grad(f), ...)` being the product of the Hessian with
    a vector.

    Args:
        f: returns a tree; of its arrays those of floating-point dtypes have derivatives.
        primals: a tuple of arguments, trees of floating-point arrays; what has no tangent goes into f by `lambda`.
        tangents: trees like primals, with arrays of the same shapes and dtypes; None in it stands for zeros, a
            number for an array of it.

    Returns:
        value: what f returned, without a history as in `value_and_grad`.
        tangent: a tree like value, zeros where f does not depend on primals; None in the place of what is no
            floating-point array.

    Raises:
        TypeError, ValueError: as `vjp` for primals, as its pullback for tangents.

    >>> import torch
    >>> jvp(lambda x: x * x, (torch.arange(4.0),), (torch.ones(4),))
    (tensor([0., 1., 4., 9.]), tensor([0., 2., 4., 6.]))
    """
    from .pullbacks import pushed_forward

    _check_options(f, 0)
    return pushed_forward(f, primals, tangents)


def stop_gradient(x: Any) -> Any:
    """The same values as constants: gradients do not flow through them. An array, or a tree with anything in it.

    `detach` of torch, `stop_gradient` of JAX and TensorFlow; numpy, which has no gradients, gives its arrays back.

    >>> import torch
    >>> grad(lambda x: (stop_gradient(x * x) * x).sum())(torch.arange(4.0))  # x * x counts as a constant
    tensor([0., 1., 4., 9.])
    """
    from ..engines import ENGINES
    from ..trees import map_leaves
    from .calls import array_engine, load

    def stopped(leaf: Any) -> Any:
        engine = array_engine(leaf)
        return load(engine).stop_gradient(leaf) if engine in ENGINES and ENGINES[engine].autodiff else leaf

    return map_leaves(stopped, x)


def jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, compiled by the engine of its arguments: `jax.jit` or `tf.function` (without AutoGraph).

    torch and numpy run f as it is. What compiling means for f is told at `value_and_grad`. Keys may be arguments and
    results.

    Args:
        f: takes and returns trees of arrays, and whatever else: strings, None, numbers.

    >>> import torch
    >>> jit(lambda tree, power: {name: x**power for name, x in tree.items()})({"x": torch.tensor(3.0)}, 2)
    {'x': tensor(9.)}
    """
    from .derivatives import Prepared, jitted

    _check_options(f, 0)
    return Prepared(f, jitted(f), (jit, (f,)))
