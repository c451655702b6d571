"""Gradients by TensorFlow's tapes. What is compiled are functions of flat lists of tensors, without AutoGraph.

Every input of f is a tensor of its own (`tf.identity`), so the same tensor twice is two arguments, and an inner
tape does not see what an outer function does with its argument. A Variable is its own input.
"""

from collections.abc import Sequence
from typing import Any

from ..adapters import Call, NoGradient, Pull, Run
from ..dtype_names import is_inexact
from ..random.drawing import words_array
from ..random.keys import Key
from ..trees import Leaf, with_leaves
from . import tf

_ZERO = tf.UnconnectedGradients.ZERO
# What Python's own conversions say of a tensor that has no value yet has no type of its own.
_SAYS_NOT_CONCRETE = (
    "SymbolicTensor",
    "symbolic tf.Tensor",
    "symbolic Tensor",
)


def is_real_scalar(x: Leaf) -> bool:
    return x.shape.rank in (0, None) and bool(x.dtype.is_floating)


def stop_gradient(x: Leaf) -> Leaf:
    return tf.stop_gradient(x)


def value_and_grad(call: Call, wanted: Sequence[int], leaves: list[Leaf]) -> tuple[Any, Any]:
    inputs = _inputs(leaves, wanted)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        value, aux, passed = call(leaves)
    grads = tape.gradient(value, inputs, unconnected_gradients=_ZERO)
    return (value, [_dense(grad) for grad in grads], aux), passed


def vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> tuple[list[Leaf], Any, Pull]:
    inputs = _inputs(leaves, wanted)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        _, outputs, passed = call(leaves)

    def pull(cotangents: list[Leaf | None]) -> list[Leaf]:
        pairs = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if ct is not None and is_inexact(y.dtype)]
        grads = tape.gradient(
            [y for y, _ in pairs], inputs, output_gradients=[ct for _, ct in pairs], unconnected_gradients=_ZERO
        )
        return [_dense(grad) for grad in grads]

    return outputs, passed, pull


def jvp(
    apply: Run, leaves: list[Leaf], wanted: Sequence[int], tangents: list[Leaf]
) -> tuple[list[Leaf], Any, list[Leaf | None]]:
    inputs = [tf.identity(leaves[place]) for place in wanted]
    with tf.autodiff.ForwardAccumulator(inputs, tangents) as forward:
        outputs, passed = apply(with_leaves(leaves, wanted, inputs))
        outputs = [tf.convert_to_tensor(y) for y in outputs]
    derivatives = [forward.jvp(y, unconnected_gradients=_ZERO) if is_inexact(y.dtype) else None for y in outputs]
    return outputs, passed, [_dense(along) for along in derivatives]


def _inputs(leaves: list[Leaf], wanted: Sequence[int]) -> list[Leaf]:
    if not all(is_inexact(leaves[place].dtype) for place in wanted):
        raise NoGradient
    inputs = [x if isinstance(x, tf.Variable) else tf.identity(x) for x in (leaves[place] for place in wanted)]
    for place, x in zip(wanted, inputs, strict=True):
        leaves[place] = x
    return inputs


def _dense(grad: Leaf | None) -> Leaf | None:
    """A gradient by rows, which gathering makes, as a tensor."""
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def is_traced(x: Leaf) -> bool:
    # Python's numbers are not: a tensor of one has a fixed dtype.
    return isinstance(x, (tf.Tensor, tf.Variable))


def compiled(run: Run) -> Run:
    kept: list[Any] = []  # Any: passed through; one entry a trace

    def traced(*arrays: Leaf) -> tuple[Any, Leaf | None]:  # Any: nested tuples and lists of arrays
        result, passed = run(list(arrays))
        if passed is None:
            return result, None
        kept.append(passed)
        return result, tf.constant(len(kept) - 1)

    fast = tf.function(traced, autograph=False)
    # Its warning counts by code, and `traced` is the code of every function of every user.
    fast._omit_frequent_tracing_warning = True

    def call(arrays: list[Leaf]) -> tuple[Any, Any]:  # Any: as above; passed through
        if tf.inside_function():
            return run(arrays)
        result, trace = fast(*arrays)
        if trace is None:
            return result, None
        return result, kept[0 if len(kept) == 1 else int(trace)]

    return call


def is_not_concrete(error: Exception) -> bool:
    """Also where f makes variables."""
    if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
        return True
    if isinstance(error, ValueError):
        return "made outside of tf.function" in str(error) or "only supports singleton tf.Variables" in str(error)
    kinds = (TypeError, AttributeError, NotImplementedError)
    return isinstance(error, kinds) and any(words in str(error) for words in _SAYS_NOT_CONCRETE)


def words_of_key(key: Key) -> Leaf:
    return words_array(key, "tensorflow")
