"""Gradients by TensorFlow's tapes, of functions of flat lists of tensors.

Every input of f is a tensor of its own (`tf.identity`), so the same tensor twice is two arguments, and an inner tape
does not see an outer function's use of its argument. A Variable is its own input.
"""

from collections.abc import Sequence
from typing import Any

from ..adapters import Call, Pullback
from ..trees import Leaf
from . import tf

_ZERO = tf.UnconnectedGradients.ZERO


def stop_gradient(x: Leaf) -> Leaf:
    return tf.stop_gradient(x)


def value_and_grad(
    call: Call, leaves: list[Leaf], wanted: Sequence[int]
) -> tuple[list[Leaf], list[Leaf], Any, list[Leaf]]:
    outputs, auxiliary, static, pull = vjp(call, leaves, wanted, persistent=False)
    return outputs, auxiliary, static, pull([tf.ones_like(outputs[0])])


def vjp(
    call: Call, leaves: list[Leaf], wanted: Sequence[int], persistent: bool = True
) -> tuple[list[Leaf], list[Leaf], Any, Pullback]:
    inputs = [x if isinstance(x, tf.Variable) else tf.identity(x) for x in (leaves[place] for place in wanted)]
    for place, x in zip(wanted, inputs, strict=True):
        leaves[place] = x
    with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        outputs, auxiliary, static = call(leaves)

    def pull(cotangents: Sequence[Leaf | None]) -> list[Leaf]:
        pairs = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if ct is not None]
        grads = tape.gradient(
            [y for y, _ in pairs], inputs, output_gradients=[ct for _, ct in pairs], unconnected_gradients=_ZERO
        )
        return [_dense(grad) for grad in grads]

    return outputs, auxiliary, static, pull


def _dense(grad: Leaf) -> Leaf:
    """Return a gradient as a tensor; tf.gather makes one of rows."""
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad
