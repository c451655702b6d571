"""How arrays and tensors are pickled: one table for everything that leaves a process.

Arrays and dense tensors are a header and a buffer, so that the memory travels beside the pickle and is adopted. What
JAX and TensorFlow pickle themselves is copied, and lies inside the pickle. What numpy pickles names modules of its own,
which another version of numpy does not have. Of torch, `with_torch.reducing` has the forms. Loads no engine.
"""

import functools
import importlib
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...base.errors import NotSendableError
from .coding import from_wire, to_wire
from .sendable import loaded_types

Reducer = Callable[[Any], Any]  # Any: reducers of any type, as copyreg has them
_ENGINES = ("jax", "tensorflow")


def array_reducers() -> tuple[dict[type, Reducer], bool]:
    """The reducers of all types that need one, and whether these are all; not so while torch is being imported."""
    reducers: dict[type, Reducer] = {
        kind: _reduce for engine in _ENGINES if engine in sys.modules for kind in loaded_types(engine)
    }
    if (torch := sys.modules.get("torch")) is None:
        return reducers, True
    # Another thread may be importing torch: at first nothing is there, then Tensor, Parameter and the hooks of modules.
    hook = getattr(sys.modules.get("torch.nn.modules.module"), "_WrappedHook", None)
    if hook is None or not hasattr(getattr(torch, "nn", None), "Parameter"):
        return reducers, False
    reducers[torch.Tensor] = reducers[torch.nn.Parameter] = reduce_tensor
    reducers[hook] = _reduce_hook
    return reducers, True


def class_reducer(kind: type) -> Reducer | None:
    """The reducer of a class of torch that no table can list: a subclass of Tensor, the class of one module."""
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.__dict__.get("Tensor") is None:
        return None
    tensor = torch.Tensor
    if tensor in kind.__mro__:
        own: Any = kind  # Any: mypy knows no attributes of a tensor here
        pickles_as_tensor = (
            own.__reduce_ex__ is tensor.__reduce_ex__ and own.__torch_dispatch__ is tensor.__torch_dispatch__
        )
        return _reduce_subclass if pickles_as_tensor else None
    if kind.__module__ == "torch.nn.utils.parametrize" and "__getstate__" in vars(kind):
        return _reduce_parametrized  # a class that register_parametrization made
    return None


@functools.cache
def _of_torch() -> ModuleType:
    """Imported with the first tensor: a job without one does not pay for it."""
    return importlib.import_module("..with_torch.reducing", __package__)


def reduce_tensor(x: Any) -> Any:  # Any: a tensor or Parameter; what its own pickling returns
    """Also called for what another table does not know."""
    return _of_torch().reduce_tensor(x)


def _reduce_subclass(x: Any) -> Any:  # Any: as `reduce_tensor`
    return _of_torch().reduce_subclass(x)


def _reduce_parametrized(module: Any) -> Any:  # Any: as `reduce_tensor`
    return _of_torch().reduce_parametrized(module)


def _reduce_hook(hook: Any) -> Any:  # Any: as `reduce_tensor`
    return _of_torch().reduce_hook(hook)


def numpy_reducers() -> dict[type, Reducer]:
    """The same for numpy's arrays and scalars: for readers that may have another numpy."""
    if "numpy" not in sys.modules:
        return {}
    from ..with_numpy.wire import SCALARS

    return dict.fromkeys(loaded_types("numpy"), _reduce) | dict.fromkeys(SCALARS, _reduce_scalar)


def rebuild_array(header: bytes, buffer: bytes | bytearray | memoryview) -> object:
    """The array again, where the pickle is read."""
    return from_wire(header, [memoryview(buffer)])


def rebuild_scalar(header: bytes, data: bytes) -> object:
    """The scalar of numpy again."""
    array: Any = from_wire(header, [data], engine="numpy")
    return array[()]


def _reduce_scalar(x: Any) -> Any:  # Any: a scalar of numpy; what its own pickling returns
    import numpy as np

    header, (buffer,) = to_wire(np.asarray(x))
    return rebuild_scalar, (header, bytes(buffer))


def _reduce(x: Any) -> Any:  # Any: an array; what its own pickling returns
    try:
        header, (buffer,) = to_wire(x)
    except NotSendableError as refusal:  # strings, types of half a byte: its own pickling may know a way
        try:
            return x.__reduce_ex__(5)
        except Exception:  # any: it is the library's; a deleted array of JAX has none either
            raise refusal from None
    from ..with_numpy.exchange import shown_writable

    # A read-only buffer would arrive read-only, and so be copied: but what arrives is the receiver's own memory.
    return rebuild_array, (header, pickle.PickleBuffer(shown_writable(buffer).data))


def kept_view(buffer: pickle.PickleBuffer) -> memoryview:
    """The bytes of a buffer that a pickle leaves out, to be kept until they are sent.

    `raw()` of a buffer over a memoryview is a view that holds the other view. When CPython's collector finds both among
    what is left of an error and its frames, and clears the inner one first, it crashes: python/cpython#77894, mended in
    3.12.7 and never in 3.11. So what is kept is another view of the same memory, beside the first.
    """
    view = buffer.raw()
    of = view.obj
    return of.cast("B") if type(of) is memoryview and of.c_contiguous and of.format in _BYTES else view


_BYTES = frozenset("Bbc")
