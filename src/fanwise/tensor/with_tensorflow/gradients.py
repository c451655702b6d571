"""Gradients by TensorFlow's tapes, and compilation of functions of flat lists of tensors without AutoGraph.

Every input of f is a tensor of its own (`tf.identity`), so the same tensor twice is two arguments, and an inner tape
does not see an outer function's use of its argument. A Variable is its own input.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..adapters import Call, Pullback, Run
from ..trees import Leaf, with_leaves
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


def jvp(
    call: Call, leaves: list[Leaf], wanted: Sequence[int], tangents: list[Leaf]
) -> tuple[list[Leaf], list[Leaf], Any, list[Leaf]]:
    inputs = [tf.identity(leaves[place]) for place in wanted]
    with tf.autodiff.ForwardAccumulator(inputs, tangents) as forward:
        outputs, auxiliary, static = call(with_leaves(leaves, wanted, inputs))
        outputs = [tf.convert_to_tensor(y) for y in outputs]
    return outputs, auxiliary, static, [_dense(forward.jvp(y, unconnected_gradients=_ZERO)) for y in outputs]


def _dense(grad: Leaf) -> Leaf:
    """Return a gradient as a tensor; tf.gather makes one of rows."""
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def is_traced(x: Leaf) -> bool:
    return isinstance(x, (tf.Tensor, tf.Variable))  # not floats: a tensor of one would have a fixed dtype


def compiled(run: Run) -> Run:
    statics: list[Any] = []  # one for each trace

    def traced(*arrays: Leaf) -> tuple[Any, Leaf]:
        result, static = run(list(arrays))
        statics.append(static)
        return result, tf.constant(len(statics) - 1)

    fast = tf.function(traced, autograph=False)
    # TensorFlow counts traces by code object, and all functions share that of `traced`.
    fast._omit_frequent_tracing_warning = True

    def call(arrays: list[Leaf]) -> tuple[Any, Any]:
        if tf.inside_function():
            return run(arrays)
        result, trace = fast(*arrays)
        return result, statics[0 if len(statics) == 1 else int(trace)]

    return call


def computed_on_host(make: Callable[..., Any], arrays: Sequence[Leaf], shape: tuple[int, ...], dtype: str) -> Leaf:
    return tf.ensure_shape(tf.numpy_function(make, arrays, dtype, stateful=False), shape)
