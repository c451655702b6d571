"""TensorFlow: loss and gradient, and the update, as `tf.function`, without AutoGraph, once for each shape of a shard.

Gradients are copied, since TensorFlow hands on the memory of one tensor for another. A traced function is searched for
what would give other results in each process: random numbers of TensorFlow's own generators, whose next numbers depend
on what the process has executed before, and assignments to variables.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...tensor.exchange import convert, to_numpy
from ...tensor.random.keys import Key
from ...tensor.trees import flatten as flatten_tree
from ...tensor.with_tensorflow import tf
from ..data.splitting import is_column
from .checking import check_result, no_batch_leaf, other_function
from .engines import Gradients, Leaf, Spec, Tree, Update
from .losses import Loss

title = "TensorFlow"
threads_variable = "TF_NUM_INTRAOP_THREADS"

_RANDOM = re.compile(
    r"^(Random(?!Dataset)|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Stateful(Uniform|Standard|Random|Truncated|Binomial))"
)
_ASSIGN = re.compile(r"^(Assign|ResourceScatter|ResourceApply|ResourceSparseApply)")
_NUMBER = re.compile(r"_\d+")


def flatten(tree: Tree) -> tuple[list[Leaf], Spec]:
    return flatten_tree(tree)


def unflatten(spec: Spec, leaves: Sequence[Leaf]) -> Tree:
    return spec.unflatten(leaves)


def paths(tree: Tree) -> list[str]:
    return [accessor.codify("") for accessor in flatten_tree(tree)[1].accessors()]


def why_not(leaf: Leaf) -> str:
    if isinstance(leaf, tf.Variable):
        return (
            "a tf.Variable, which a step cannot replace; give values: [tf.convert_to_tensor(v) for v in variables], of "
            "a Keras model tf.convert_to_tensor(v.value)"
        )
    if isinstance(leaf, np.ndarray | np.generic):
        return "a NumPy array; make tensors of all leaves: tf.nest.map_structure(tf.convert_to_tensor, tree)"
    if not isinstance(leaf, tf.Tensor):
        return f"a {type(leaf).__name__}, no TensorFlow tensor"
    if not hasattr(leaf, "numpy"):
        return "symbolic, without values: call run.step outside of functions that TensorFlow compiles"
    return ""


def is_floating(leaf: Leaf) -> bool:
    return bool(isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating)


class _Differentiated:
    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._functions: dict[object, Any] = {}

    def __call__(self, params: Tree, buffers: Tree, samples: Sequence[Any], key: Key, count: int) -> Gradients:
        trees = params, buffers, tuple(samples)
        leaves, spec = flatten_tree(trees)
        shape = count, spec, tuple((leaf.shape.rank and tuple(leaf.shape), leaf.dtype) for leaf in leaves)
        seed = tf.constant(np.array(key.words, np.uint64).view(np.int64))
        number = len(flatten_tree(params)[0])
        if shape not in self._functions:
            self._functions[shape] = self._traced(leaves, spec, seed, number, count)
        loss, grads, counts, made = self._functions[shape](leaves, seed)
        counts = to_torch(counts) if isinstance(counts, tf.Tensor) else counts
        return Gradients(to_torch(loss), [convert(grad, "torch", copy=True) for grad in grads], counts, made)

    def _traced(self, leaves: list[Any], spec: Spec, seed: Any, number: int, count: int) -> Callable[..., Any]:
        def shard(leaves: list[Any], seed: Any) -> Any:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(leaves[:number])
                params, buffers, samples = spec.unflatten(leaves)
                found = self._loss.read(
                    params, buffers, samples, seed, count, is_array=tf.is_tensor, total=tf.reduce_sum
                )
            grads = tape.gradient(found.summed, leaves[:number], unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return found.summed, list(map(tf.convert_to_tensor, grads)), found.counts, found.buffers

        # Two functions: one would hand out its first trace again.
        made = [tf.function(shard, autograph=False) for _ in range(2)]
        one, two = (each.get_concrete_function(leaves, seed).graph.as_graph_def() for each in made)
        for operator in _operators(one):
            _check_operator(operator)
        if _text(one) != _text(two):
            raise other_function()
        function: Callable[..., Any] = made[0]
        return function


def _operators(graph: Any) -> Iterator[str]:  # Any: a GraphDef
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)


def _check_operator(operator: str) -> None:
    if _RANDOM.match(operator):
        raise ValueError(
            f"loss_fn draws random numbers by {operator}, whose next ones depend on what this process has drawn "
            f"before.\n"
            f"  wrong:  tf.random.uniform(shape), tf.nn.dropout(x, 0.5)\n"
            f"  right:  def loss_fn(params, x, y, key): ... tf.random.stateless_uniform(shape, seed=key)\n"
            f"  right:  tf.nn.experimental.stateless_dropout(x, 0.5, seed=key)"
        )
    if _ASSIGN.match(operator):
        raise ValueError(
            f"loss_fn assigns to a variable ({operator}), and each process would assign what its own shards say.\n"
            f"  wrong:  model(x, training=True)                        # batch normalisation writes into variables\n"
            f"  right:  model.stateless_call(params, buffers, x, training=True)    # run.step(..., buffers=...)"
        )


def _text(graph: Any) -> str:  # Any: a GraphDef
    """The operators with what is built in, without the numbers that TensorFlow gives to functions."""
    return _NUMBER.sub("", str(graph))


def differentiated(loss: Loss) -> _Differentiated:
    return _Differentiated(loss)


def compiled(update: Update) -> Update:
    def checked(leaves: list[Any], spec: Spec) -> Any:
        result = update(*spec.unflatten(leaves))
        check_result(result)
        return result

    functions: dict[Spec, Any] = {}

    def call(grads: Tree, state: Tree, params: Tree) -> Any:
        leaves, spec = flatten_tree((grads, state, params))
        if spec not in functions:
            functions[spec] = tf.function(lambda leaves: checked(leaves, spec), autograph=False)
        return functions[spec](leaves)

    return call


def taken(content: Any) -> Any:  # Any: a tree of arrays of any engine
    if isinstance(content, dict):
        return {name: taken(value) for name, value in content.items()}
    if isinstance(content, list | tuple) and not is_column(content):
        return tuple(taken(value) for value in content)
    if isinstance(content, list | tuple):
        content = np.asarray(content)
    if isinstance(content, tf.Tensor):
        return content
    array = to_numpy(content)
    if array.dtype.kind in "OUS":
        raise no_batch_leaf(title, array.dtype)
    with suppress(ValueError):
        return convert(array, "tensorflow", copy=False)
    return convert(array, "tensorflow")


def to_torch(leaf: Leaf) -> Tensor:
    on_cpu = place_of(leaf) == "cpu"
    try:
        made: Tensor = convert(leaf, "torch", copy=False if on_cpu else None)
    except ValueError:  # a type that TensorFlow shows in another form
        made = convert(leaf, "torch")
    return made


def from_torch(tensor: Tensor, like: Leaf, *, shared: bool = False) -> Leaf:
    # Never the same memory: what tf.function returns may be that of its arguments.
    with tf.device(like.device):
        return convert(tensor, "tensorflow", copy=True)


def placed(device: torch.device) -> AbstractContextManager[object]:
    made: AbstractContextManager[object] = tf.device("/CPU:0" if device.type == "cpu" else f"/GPU:{device.index or 0}")
    return made


def place_of(leaf: Leaf) -> str:
    return "cuda" if "GPU" in leaf.device else "cpu"


def threads() -> int:
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    return int(asked or os.environ.get(threads_variable, 0)) or len(os.sched_getaffinity(0))
