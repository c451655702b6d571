"""Gradients by JAX. What it traces are functions of flat lists of arrays.

Trees, strings and other things that are no arrays pass through a trace inside `_Passed`, a node without leaves, so
each trace of one function keeps its own. Invariant: nothing here is remembered beyond the functions it returns.

JAX's cotangents of complex numbers are the conjugates of torch's and TensorFlow's (JAX's autodiff cookbook, "Complex
numbers and differentiation"; torch's notes, "Autograd mechanics", "Complex autograd"). Invariant: every cotangent that
comes in here and every gradient that goes out is in torch's convention, so they are conjugated on both ways.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..adapters import Call, NoGradient, Pull, Run
from ..dtype_names import is_inexact
from ..random.drawing import words_array
from ..random.keys import Key
from ..trees import Leaf, with_leaves

_NOT_CONCRETE = (
    jax.errors.ConcretizationTypeError,  # with its kin for bool
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class _Passed:
    """Anything, as a tree of no arrays. Compared by identity: what is inside may have no hash."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:  # Any: passed through
        self.inside = inside


jax.tree_util.register_pytree_node(_Passed, lambda passed: ((), passed), lambda passed, _: passed)


def is_real_scalar(x: jax.Array) -> bool:
    return x.ndim == 0 and is_inexact(x.dtype) and x.dtype.kind != "c"


def stop_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)


def value_and_grad(call: Call, wanted: Sequence[int], leaves: list[Leaf]) -> tuple[Any, Any]:
    def of(inputs: list[Leaf]) -> tuple[Leaf, tuple[list[Leaf], _Passed]]:
        value, aux, passed = call(with_leaves(leaves, wanted, inputs))
        return value, (aux, _Passed(passed))

    _check(leaves, wanted)
    differentiated = jax.value_and_grad(of, has_aux=True)
    (value, (aux, passed)), grads = differentiated([leaves[place] for place in wanted])
    return (value, _conjugates(grads), aux), passed.inside


def vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> tuple[list[Leaf], Any, Pull]:
    _check(leaves, wanted)
    of = _smooth_first(lambda leaves: call(leaves)[1:], leaves, wanted)
    smooth, pull_back, (others, passed) = jax.vjp(of, [leaves[place] for place in wanted], has_aux=True)
    each = iter(smooth)
    outputs = [next(each) if y is None else y for y in others]
    return outputs, passed.inside, _among(outputs, pull_back)


def _smooth_first(apply: Run, leaves: list[Leaf], wanted: Sequence[int]) -> Callable[..., Any]:
    """f for JAX: the arrays that have gradients; beside them the others, None for these, and what passed through."""

    def of(inputs: list[Leaf]) -> tuple[list[Leaf], tuple[list[Leaf | None], _Passed]]:
        outputs, passed = apply(with_leaves(leaves, wanted, inputs))
        smooth = [y for y in outputs if is_inexact(y.dtype)]
        return smooth, ([None if is_inexact(y.dtype) else y for y in outputs], _Passed(passed))

    return of


def _among(outputs: list[Leaf], pull_back: Callable[..., Any]) -> Pull:
    """The way back from cotangents of all outputs. Keeps no output alive that it does not need."""
    zeros = [(y.shape, y.dtype) if is_inexact(y.dtype) else None for y in outputs]

    def pull(cotangents: list[Leaf | None]) -> list[Leaf]:
        whole = [
            jnp.zeros(*like) if ct is None else ct
            for ct, like in zip(cotangents, zeros, strict=True)
            if like is not None
        ]
        return _conjugates(pull_back(_conjugates(whole))[0])

    return pull


def _conjugates(arrays: Sequence[Leaf]) -> list[Leaf]:
    """Real arrays as they are: most are, and a call of JAX costs microseconds."""
    return [jnp.conj(x) if x.dtype.kind == "c" else x for x in arrays]


def _check(leaves: list[Leaf], wanted: Sequence[int]) -> None:
    if not all(is_inexact(leaves[place].dtype) for place in wanted):
        raise NoGradient


def jvp(
    apply: Run, leaves: list[Leaf], wanted: Sequence[int], tangents: list[Leaf]
) -> tuple[list[Leaf], Any, list[Leaf | None]]:
    # No conjugate: the derivative along a tangent is that of a real step.
    of = _smooth_first(apply, leaves, wanted)
    smooth, along, (others, passed) = jax.jvp(of, ([leaves[place] for place in wanted],), (tangents,), has_aux=True)
    each, derivatives = iter(smooth), iter(along)
    found = [next(derivatives) if y is None else None for y in others]
    return [next(each) if y is None else y for y in others], passed.inside, found


def is_traced(x: Leaf) -> bool:
    # Python's floats are: a learning rate may change each step.
    return isinstance(x, (jax.Array, float, complex))


def compiled(run: Run) -> Run:
    def traced(arrays: list[Leaf]) -> tuple[Any, _Passed | None]:  # Any: nested tuples and lists of arrays
        result, passed = run(arrays)
        return result, None if passed is None else _Passed(passed)

    fast = jax.jit(traced)

    def call(arrays: list[Leaf]) -> tuple[Any, Any]:  # Any: as above; passed through
        result, passed = fast(arrays)
        return result, None if passed is None else passed.inside

    return call


def is_not_concrete(error: Exception) -> bool:
    return isinstance(error, _NOT_CONCRETE)


def words_of_key(key: Key) -> Leaf:
    return words_array(key, "jax")
