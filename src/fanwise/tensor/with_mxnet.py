"""MXNet 1.9.1 as a legacy: the operations of "Dive into Deep Learning" 2.1, and gradients, on `mxnet.np` arrays.

    import fanwise.tensor.with_mxnet as mxt

    x = mxt.asarray([[1.0, 2.0], [3.0, 4.0]])
    value, gradient = mxt.value_and_grad(lambda x: mxt.sum(x * x))(x)
    rpc_sync("torch-worker", train, args=(mxt.to_numpy(x),))        # others need no MXNet

MXNet was retired in 2023. It needs Python 3.11 or older and numpy below 1.24, so it cannot live beside the other
engines and is none of them: `engine_of` does not know it, and no extra installs it. It lives in an environment of its
own, whose processes join the others as RPC workers; numpy arrays are what they exchange. `make test-mxnet` makes such
an environment and tests this file in it.

What MXNet does differently is undone here: types are kept (`mxnet.np.array([True])` makes a float, which as a mask
gathers elements), and so are those of conversions. Types that it lacks (int16, uint16, complex, bfloat16) are refused
by name. Arrays copy on the way from and to numpy. Importing this turns on MXNet's NumPy mode (`npx.set_np`), for the
whole process, as the book does. Operators, indexing and writing in place are MXNet's own.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as onp
import optree

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses names of numpy that are deprecated; nothing a user could change
    from mxnet import autograd, np, npx

npx.set_np()

Array = Any  # mxnet.numpy.ndarray: MXNet has no annotations
DtypeLike = Any  # as numpy takes them

float16, float32, float64 = "float16", "float32", "float64"
int8, int32, int64, uint8, bool_ = "int8", "int32", "int64", "uint8", "bool"
DTYPES = (float16, float32, float64, int8, int32, int64, uint8, bool_)


def _dtype(dtype: DtypeLike) -> str:
    name: str = onp.dtype(dtype).name
    if name not in DTYPES:
        raise TypeError(f"MXNet 1.9 has no arrays of {name}; it has {', '.join(DTYPES)}. Convert first, with astype.")
    return name


# -- making arrays -------------------------------------------------------------------------------------------------


def from_numpy(x: "onp.ndarray[Any, Any]") -> Array:  # Any: known only when it runs
    """A copy of a numpy array, of the same type. TypeError for a type that MXNet does not have."""
    return np.array(onp.ascontiguousarray(x).reshape(x.shape), dtype=_dtype(x.dtype))


def to_numpy(x: Array) -> "onp.ndarray[Any, Any]":  # Any: as above
    """A copy as a numpy array, which can be sent to any worker. Blocks until x is computed."""
    return x.asnumpy()  # type: ignore[no-any-return]  # as above


def asarray(values: object, dtype: DtypeLike = None) -> Array:
    """An array of nested lists, numbers or a numpy array. Floats are float32, integers int64, unless `dtype` is given.

    >>> asarray([[2, 1], [4, 3]]).dtype
    dtype('int64')
    """
    plain = onp.asarray(values, dtype=None if dtype is None else onp.dtype(dtype))
    if dtype is None and plain.dtype == onp.float64 and not isinstance(values, (onp.ndarray, onp.generic)):
        plain = plain.astype(onp.float32)
    return from_numpy(plain)


def arange(start: float, stop: float | None = None, step: float = 1, *, dtype: DtypeLike = None) -> Array:
    """start, start + step, ... below stop; with one argument from 0. Integers are int64, else float32."""
    first, last = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(number, int) for number in (first, last, step))
    return from_numpy(onp.arange(first, last, step, dtype=_dtype(dtype or (int64 if whole else float32))))


def zeros(shape: int | Sequence[int], *, dtype: DtypeLike = float32) -> Array:
    """Zeros, in an array of this shape."""
    return np.zeros(shape, dtype=_dtype(dtype))


def ones(shape: int | Sequence[int], *, dtype: DtypeLike = float32) -> Array:
    """Ones, in an array of this shape."""
    return np.ones(shape, dtype=_dtype(dtype))


def seed(value: int) -> None:
    """Begin MXNet's own random numbers anew, in this process."""
    npx.random.seed(value)


def normal(shape: int | Sequence[int], mean: float = 0.0, std: float = 1.0, *, dtype: DtypeLike = float32) -> Array:
    """Normally distributed numbers from MXNet's own generator. The same on all engines: `fanwise.tensor.Key`."""
    return np.random.normal(mean, std, size=shape, dtype=_dtype(dtype))


# -- operations ----------------------------------------------------------------------------------------------------


def size(x: Array) -> int:
    """How many elements x has."""
    return int(x.size)


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """x in another shape; one length may be -1."""
    return np.reshape(x, tuple(shape))


def exp(x: Array) -> Array:
    """e to the power of each element."""
    return np.exp(x)


def concat(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one type joined along an axis. TypeError when the types differ."""
    kinds = {str(onp.dtype(x.dtype)) for x in arrays}
    if len(kinds) > 1:
        raise TypeError(f"MXNet joins arrays of one type only, got {', '.join(sorted(kinds))}. Convert with astype.")
    return np.concatenate(list(arrays), axis=axis)


def sum(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """The sum of elements; of small integers as int64, where MXNet's own overflows."""
    kind = onp.dtype(x.dtype)
    if kind.kind in "iub" and kind.itemsize < 8:
        x = x.astype(int64)
    return np.sum(x, axis=tuple(axis) if isinstance(axis, Sequence) else axis)


# -- gradients -----------------------------------------------------------------------------------------------------


def value_and_grad(
    f: Callable[..., Any],  # Any: the user's
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
) -> Callable[..., tuple[Any, Any]]:  # Any: a value and a tree
    """A function that returns f's value, a scalar array, and its gradients for the arguments numbered `argnums`.

    Arguments may be trees of float arrays; the gradients have their form. Nothing accumulates, and the caller's arrays
    do not change: f runs on copies. With `has_aux` f returns (value, more), and so does what is returned here. MXNet
    differentiates once: most of its operations have no second derivative. In f, what must not be differentiated is
    computed under `stop_gradient`.

    Raises:
        TypeError: an argument to be differentiated is no float array.
        ValueError: f's value is no scalar.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:  # Any: the user's
        chosen: Any = tuple(args[number] for number in numbers)
        leaves, form = optree.tree_flatten(chosen)
        copies = [_watched(leaf) for leaf in leaves]
        inputs = list(args)
        for number, tree in zip(numbers, optree.tree_unflatten(form, copies), strict=True):
            inputs[number] = tree
        with autograd.record():
            result = f(*inputs, **kwargs)
            value = result[0] if has_aux else result
            if value.size != 1:
                raise ValueError(f"the value must be a scalar, got shape {value.shape}; take its sum")
        value.backward()
        gradients = optree.tree_unflatten(form, [copy.grad.copy() for copy in copies])
        return (result, gradients[0]) if isinstance(argnums, int) else (result, gradients)

    return run


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:  # Any: as above
    """As `value_and_grad`, without the value."""
    both = value_and_grad(f, argnums)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


def stop_gradient(x: Array) -> Array:
    """x as a constant: what is computed from it has no gradient for it."""
    return x.detach()


def _watched(x: object) -> Array:
    if not isinstance(x, np.ndarray) or onp.dtype(x.dtype).kind != "f":
        raise TypeError(f"gradients are taken for float arrays of MXNet, got {getattr(x, 'dtype', type(x).__name__)}")
    copy = x.copy()
    copy.attach_grad()
    return copy
