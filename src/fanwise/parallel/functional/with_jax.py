"""JAX: loss and gradient, and the update, compiled by `jax.jit`, once for each shape of a shard.

What comes back has memory of its own: gradients are added in place, and arguments of the update lie in memory that is
written again. Compiled for a CPU every result has, with JAX 0.10; where JAX is told to compile nothing a result may be
an argument, or one array two results. Nothing promises either, so a barrier ends both functions: behind it all is made.

JAX begins with as many threads as PJRT_NPROC says, else as there are CPUs for this process; options of the compiler do
not change them (JAX 0.10). They have a name of their own, by which they are counted.
"""

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from ...tensor.exchange import convert, to_numpy
from ...tensor.random.keys import Key, words_of_32_bits
from ..data.splitting import is_column
from .checking import check_result, no_batch_leaf, other_function
from .engines import Gradients, Leaf, Spec, Tree, Update
from .losses import Loss

title = "JAX"
threads_variable = "PJRT_NPROC"

_config: Any = jax.config  # Any: its settings are made when it is loaded
_barrier: Any = jax.lax.optimization_barrier  # Any: JAX has not annotated it, nor the next one
_computed: Any = jax.block_until_ready
_NARROW = {np.dtype(wide): np.dtype(narrow) for wide, narrow in (("f8", "f4"), ("i8", "i4"), ("u8", "u4"))}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|<lambda[^>]*>")
# Of the threads that XLA's operators on the CPU have, as the kernel knows them.
_THREAD = "tf_XLAEigen"


def flatten(tree: Tree) -> tuple[list[Leaf], Spec]:
    return jax.tree_util.tree_flatten(tree)


def unflatten(spec: Spec, leaves: Sequence[Leaf]) -> Tree:
    return jax.tree_util.tree_unflatten(spec, leaves)


def paths(tree: Tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def why_not(leaf: Leaf) -> str:
    if isinstance(leaf, jax.core.Tracer):
        return "traced, without values: call run.step outside of functions that JAX compiles"
    if isinstance(leaf, np.ndarray | np.generic):
        return "a NumPy array; make JAX arrays of all leaves: jax.tree.map(jnp.asarray, tree)"
    if not isinstance(leaf, jax.Array):
        return f"a {type(leaf).__name__}, no JAX array"
    if not leaf.is_fully_addressable or len(leaf.devices()) > 1:
        return f"spread over {len(leaf.devices())} devices; a run needs it whole on one: jax.device_put(x, device)"
    return ""


def is_floating(leaf: Leaf) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating)) and isinstance(leaf, jax.Array)


def is_key(leaf: Leaf) -> bool:
    """Whether it is one of JAX's typed keys, which have no memory to show."""
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


class _Differentiated:
    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._jitted = jax.jit(self._shard, static_argnums=4)
        self._traced: set[object] = set()

    def _shard(self, params: Tree, buffers: Tree, samples: tuple[Any, ...], words: jax.Array, count: int) -> Any:
        def summed(params: Tree) -> tuple[Any, tuple[Any, Tree]]:
            key = _key(words) if self._loss.has_key else None
            # Put together anew: objects of flax refuse to be changed in another trace than that they were made in.
            own = jax.tree_util.tree_map(lambda x: x, buffers)
            found = self._loss.read(params, own, samples, key, count, is_array=_is_array, total=jnp.sum)
            return found.summed, (found.counts, found.buffers)

        (loss, rest), grads = jax.value_and_grad(summed, has_aux=True)(params)
        return _barrier((loss, jax.tree_util.tree_leaves(grads), *rest))

    def __call__(self, params: Tree, buffers: Tree, samples: Sequence[Any], key: Key, count: int) -> Gradients:
        arguments = params, buffers, tuple(samples), np.array(words_of_32_bits(key.words), np.uint32)
        shape = (
            count,
            jax.tree_util.tree_map(lambda x: (x.shape, x.dtype), tuple(samples), is_leaf=_is_array).__repr__(),
        )
        if shape not in self._traced:
            self._check_same(arguments, count)
            self._traced.add(shape)
        loss, grads, counts, made = _computed(self._jitted(*arguments, count))
        counts = to_torch(counts) if isinstance(counts, jax.Array) else counts
        return Gradients(to_torch(loss), [to_torch(grad) for grad in grads], counts, made)

    def _check_same(self, arguments: tuple[Any, ...], count: int) -> None:
        """A function that is traced twice is twice the same; else each process would compile another one."""
        # The first trace is the one that is compiled; a function of its own keeps JAX from handing it out again.
        shard: Any = self._shard
        one = self._jitted.trace(*arguments, count).jaxpr
        two = jax.make_jaxpr(lambda *args: shard(*args, count))(*arguments)
        if _text(one) != _text(two):
            raise other_function()


def _text(closed: Any) -> tuple[str, list[bytes]]:  # Any: a ClosedJaxpr
    """The operators, and the arrays that are built in."""
    return _ADDRESS.sub("", str(closed.jaxpr)), [np.asarray(const).tobytes() for const in closed.consts]


def differentiated(loss: Loss) -> _Differentiated:
    return _Differentiated(loss)


def _key(words: jax.Array) -> Any:  # Any: JAX's typed keys have no type
    kind = jax.random.key(0)
    return jax.random.wrap_key_data(words[: jax.random.key_data(kind).size], impl=jax.random.key_impl(kind))


def _is_array(x: object) -> bool:
    return isinstance(x, jax.Array)


def compiled(update: Update) -> Update:
    def apart(grads: Tree, state: Tree, params: Tree) -> Any:
        result = update(grads, state, params)
        check_result(result)
        return _barrier(result)

    jitted = jax.jit(apart)
    return lambda grads, state, params: _computed(jitted(grads, state, params))


def taken(content: Any) -> Any:  # Any: a tree of arrays of any engine
    if isinstance(content, dict):
        return {name: taken(value) for name, value in content.items()}
    if isinstance(content, list | tuple) and not is_column(content):
        return tuple(taken(value) for value in content)
    if isinstance(content, list | tuple):
        content = np.asarray(content)
    if isinstance(content, jax.Array):
        return content
    array = to_numpy(content)
    if array.dtype.kind in "OUS":
        raise no_batch_leaf(title, array.dtype)
    if array.dtype in _NARROW and not _config.jax_enable_x64:
        array = array.astype(_NARROW[array.dtype])  # as JAX does with every argument
    return _shared(array)


def to_torch(leaf: Leaf) -> Tensor:
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    on_cpu = place_of(leaf) == "cpu"
    made: Tensor = convert(leaf, "torch", copy=False) if on_cpu else convert(leaf, "torch", device="cpu")
    return made


def from_torch(tensor: Tensor, like: Leaf, *, shared: bool = False) -> Leaf:
    device = next(iter(like.devices()))
    with jax.default_device(device):
        made = _shared(tensor) if shared else convert(tensor, "jax", copy=True)
    return jax.random.wrap_key_data(made, impl=jax.random.key_impl(like)) if is_key(like) else made


def _shared(x: Any) -> Any:  # Any: an array of any engine
    """Over the same memory where JAX can have it."""
    with suppress(ValueError):
        return convert(x, "jax", copy=False)
    return convert(x, "jax")


def placed(device: torch.device) -> AbstractContextManager[object]:
    if device.type == "cpu":
        made: AbstractContextManager[object] = jax.default_device(jax.local_devices(backend="cpu")[0])
    else:
        made = jax.default_device(jax.local_devices(backend="gpu")[device.index or 0])
    return made


def place_of(leaf: Leaf) -> str:
    platform = next(iter(leaf.devices())).platform
    return "cuda" if platform in ("gpu", "cuda", "rocm") else str(platform)


def threads() -> int:
    jax.local_devices(backend="cpu")
    names = (Path(f"/proc/self/task/{task}/comm") for task in os.listdir("/proc/self/task"))
    count = 0
    for name in names:
        with suppress(OSError):  # it has ended meanwhile
            count += name.read_text().strip() == _THREAD
    return count or int(os.environ.get(threads_variable, 0)) or len(os.sched_getaffinity(0))
