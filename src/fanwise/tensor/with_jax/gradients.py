"""Gradients and compilation by JAX, of functions of flat lists of arrays.

JAX's cotangents of complex numbers are the conjugates of torch's and TensorFlow's ("Complex autograd" in torch's notes,
"Complex numbers and differentiation" in JAX's autodiff cookbook), so they are conjugated on the way in and out.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..adapters import Call, Pullback, Run
from ..trees import Leaf, with_leaves


class _Static:
    """A tree without arrays, so that each trace of a function keeps its own static result."""

    __slots__ = ("static",)

    def __init__(self, static: Any) -> None:
        self.static = static


# Compared by identity: the static result may have no hash.
jax.tree_util.register_pytree_node(_Static, lambda node: ((), node), lambda node, _: node)


def stop_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)


def value_and_grad(
    call: Call, leaves: list[Leaf], wanted: Sequence[int]
) -> tuple[list[Leaf], list[Leaf], Any, list[Leaf]]:
    outputs, auxiliary, static, pull = vjp(call, leaves, wanted)
    return outputs, auxiliary, static, pull([jnp.ones_like(outputs[0])])


def vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> tuple[list[Leaf], list[Leaf], Any, Pullback]:
    def of_inputs(inputs: list[Leaf]) -> tuple[list[Leaf], tuple[list[Leaf], _Static]]:
        outputs, auxiliary, static = call(with_leaves(leaves, wanted, inputs))
        return outputs, (auxiliary, _Static(static))

    outputs, pull_back, (auxiliary, node) = jax.vjp(of_inputs, [leaves[place] for place in wanted], has_aux=True)
    likes = [(y.shape, y.dtype) for y in outputs]  # the outputs themselves are not kept alive

    def pull(cotangents: Sequence[Leaf | None]) -> list[Leaf]:
        cts = [jnp.zeros(*like) if ct is None else ct for ct, like in zip(cotangents, likes, strict=True)]
        return _conjugates(pull_back(_conjugates(cts))[0])

    return outputs, auxiliary, node.static, pull


def _conjugates(arrays: Sequence[Leaf]) -> list[Leaf]:
    """Return the conjugates; real arrays unchanged, because a call of JAX takes microseconds."""
    return [jnp.conj(x) if x.dtype.kind == "c" else x for x in arrays]


def is_argument(x: Leaf) -> bool:
    return isinstance(x, (jax.Array, float, complex))  # floats too: a learning rate may change every step


def compiled(run: Run) -> Run:
    def traced(arrays: list[Leaf]) -> tuple[Any, _Static]:
        result, static = run(arrays)
        return result, _Static(static)

    fast = jax.jit(traced)

    def call(arrays: list[Leaf]) -> tuple[Any, Any]:
        result, node = fast(arrays)
        return result, node.static

    return call
