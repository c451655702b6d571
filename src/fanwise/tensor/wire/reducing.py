"""Reducers for pickle: one table for all arrays that leave a process. Loads no engine.

Arrays and dense tensors become a header and a buffer, so the memory travels beside the pickle and is adopted. The
pickles of JAX and TensorFlow copy it into the pickle, and those of NumPy name modules that another version lacks. The
forms of torch's tensors are in `with_torch.wire`.
"""

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

from ...base.errors import NotSendableError
from .coding import from_wire, loaded_types, to_wire

Reducer = Callable[[Any], Any]  # as in copyreg


def array_reducers() -> tuple[dict[type, Reducer], bool]:
    """Return the reducers of all types that need one, and whether they are complete: not while torch is imported."""
    reducers: dict[type, Reducer] = {
        kind: _reduce for engine in ("jax", "tensorflow") if engine in sys.modules for kind in loaded_types(engine)
    }
    if (torch := sys.modules.get("torch")) is None:
        return reducers, True
    # Another thread may be importing torch: Tensor, Parameter and the hooks of modules appear one by one.
    hook = getattr(sys.modules.get("torch.nn.modules.module"), "_WrappedHook", None)
    if hook is None or not hasattr(getattr(torch, "nn", None), "Parameter"):
        return reducers, False
    reducers[torch.Tensor] = reducers[torch.nn.Parameter] = reduce_tensor
    reducers[hook] = _reduce_hook
    return reducers, True


def class_reducer(kind: type) -> Reducer | None:
    """Return the reducer of a class that no table can list: a subclass of torch.Tensor, or the class of one module."""
    torch: Any = sys.modules.get("torch")
    tensor = None if torch is None else torch.__dict__.get("Tensor")
    if tensor in kind.__mro__:
        subclass: Any = kind
        is_like_tensor = subclass.__reduce_ex__ is tensor.__reduce_ex__
        return _reduce_subclass if is_like_tensor and subclass.__torch_dispatch__ is tensor.__torch_dispatch__ else None
    if kind.__module__ == "torch.nn.utils.parametrize" and "__getstate__" in vars(kind):
        return _reduce_parametrized  # a class that register_parametrization made
    return None


def _of_torch(name: str) -> Reducer:
    # Imported with the first tensor: a job without tensors does not pay for it.
    return lambda x: getattr(importlib.import_module("..with_torch.wire", __package__), name)(x)


reduce_tensor = _of_torch("reduce_tensor")
_reduce_subclass = _of_torch("reduce_subclass")
_reduce_parametrized = _of_torch("reduce_parametrized")
_reduce_hook = _of_torch("reduce_hook")


def numpy_reducers() -> dict[type, Reducer]:
    """Return the reducers of NumPy's arrays and scalars, for readers that may have another NumPy."""
    if "numpy" not in sys.modules:
        return {}
    from ..with_numpy.wire import SCALARS

    return dict.fromkeys(loaded_types("numpy"), _reduce) | dict.fromkeys(SCALARS, _reduce_scalar)


def rebuild_array(header: bytes, buffer: bytes | bytearray | memoryview) -> object:
    """Return the array of a pickle."""
    return from_wire(header, [memoryview(buffer)])


def rebuild_scalar(header: bytes, data: bytes) -> object:
    """Return the NumPy scalar of a pickle."""
    array: Any = from_wire(header, [data], engine="numpy")
    return array[()]


def _reduce_scalar(x: Any) -> Any:
    import numpy as np

    header, (buffer,) = to_wire(np.asarray(x))
    return rebuild_scalar, (header, bytes(buffer))


def _reduce(x: Any) -> Any:
    try:
        header, (buffer,) = to_wire(x)
    except NotSendableError as refusal:  # strings, types of half a byte: the library's own pickling may work
        try:
            return x.__reduce_ex__(5)
        except Exception:  # any error of the library; a deleted JAX array cannot be pickled either
            raise refusal from None
    import numpy as np

    from ..with_numpy.exchange import writable_alias

    # A read-only buffer would arrive read-only and be copied, but received memory belongs to the receiver.
    return rebuild_array, (header, pickle.PickleBuffer(writable_alias(np.frombuffer(buffer, np.uint8)).data))


def kept_view(buffer: pickle.PickleBuffer) -> memoryview:
    """Return the bytes of an out-of-band buffer, to be kept until they are sent.

    `raw()` of a buffer over a memoryview is a view that holds the other view. CPython's collector crashes if it finds
    both in the frames of an error and clears the inner one first: python/cpython#77894, fixed in 3.12.7 and never in
    3.11. So this returns another view of the same memory, beside the first.
    """
    view = buffer.raw()
    inner = view.obj
    return inner.cast("B") if type(inner) is memoryview and inner.c_contiguous and inner.format in _BYTES else view


_BYTES = frozenset("Bbc")
