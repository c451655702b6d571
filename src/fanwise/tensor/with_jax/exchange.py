"""JAX arrays in the exchange.

JAX assumes that its arrays are constant: queued work may read them at any time. So memory that may be written to comes
in as a copy, unless copy=False asked for sharing, and goes out read-only. JAX copies a donated array while a view of
it is alive. On an accelerator it may free memory that queued work still reads
(https://github.com/ROCm/xla/pull/979), so a copy is complete while the source's memory is still held.

Without 64-bit mode (`jax_enable_x64`) JAX silently makes float32 of float64; here that is an error.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..adapters import Exported
from ..with_numpy.exchange import (
    Array,
    Dtype,
    aligned_copy,
    cannot_share,
    is_aligned,
    locked,
    no_such_type,
    why_not_aligned,
)
from .devices import device_of

_config: Any = jax.config
with jax.ensure_compile_time_eval():  # this file may be imported while JAX traces a function
    _PlainArray = type(jax.numpy.zeros(()))
# It has moved between versions.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64
_NARROW = {np.dtype("f8"): "float32", np.dtype("i8"): "int32", np.dtype("u8"): "uint32", np.dtype("c16"): "complex64"}
_WITH_ML_DTYPES = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float4_e2m1fn int4 uint4 int2 uint2"
).split()
_DTYPES = {np.dtype(code) for code in "?efbBhHiIF"} | set(_NARROW)
_DTYPES |= {np.dtype(getattr(jax.numpy, name)) for name in _WITH_ML_DTYPES if hasattr(jax.numpy, name)}


def export_memory(x: Any, copy: bool | None) -> Exported:
    """Return a read-only view of the memory, or of a copy if it is not one piece on a CPU."""
    if type(x) is not _PlainArray:
        raise _refused(x)
    array = _view(x)
    if copy is False and array.size and array.ctypes.data != _address_of(x):
        raise cannot_share(f"This JAX array of type {array.dtype}", "its elements are not one piece of memory on a CPU")
    return array, "immutable"


def import_memory(exported: Exported, copy: bool | None) -> jax.Array:
    array, kind = exported
    if kind != "private":
        if copy is False:
            return _shared(array)
        if copy or kind == "mutable":
            array = aligned_copy(array)
    return adopt(array)


def adopt(array: Array) -> jax.Array:
    """Return an array over memory that never changes. It is copied if it is not aligned."""
    check_type(array.dtype)
    array = array if is_aligned(array) else aligned_copy(array)
    device = _default_device()
    return _put(array, device) if device.platform == "cpu" else jax.device_put(array)


def has_int64() -> bool:
    return bool(_config.jax_enable_x64)


def accelerator_of(x: Any) -> str | None:
    if jax.local_devices()[0].platform == "cpu" or type(x) is not _PlainArray or x.is_deleted():
        return None
    if len(x.devices()) > 1 or x.sharding.memory_kind in ("pinned_host", "unpinned_host"):
        return None
    name = device_of(x)
    return None if name.startswith("cpu") else name


def to_dlpack(x: jax.Array, copy: bool | None) -> jax.Array:
    return x


def from_dlpack(source: Any, copy: bool | None) -> jax.Array | None:
    """Return an array over that memory, or a copy, on its device; None if JAX or DLPack lacks the type."""
    try:
        # In 64-bit mode, so that nothing is narrowed before the type is checked.
        with _enable_x64(True), jax.ensure_compile_time_eval():
            shared: jax.Array = jax.dlpack.from_dlpack(source, copy=False if copy is False else None)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if copy is False:
            raise cannot_share("This array", f"JAX does not take its memory: {error}") from error
        return None
    check_type(shared.dtype)
    if copy is False:
        return shared
    with jax.ensure_compile_time_eval():
        copy_of_it: jax.Array = shared.copy().block_until_ready()
    return copy_of_it


def copied(x: Any) -> Any:
    if type(x) is not _PlainArray:
        return jax.numpy.array(x, copy=True)
    if x.is_deleted():
        raise _deleted(x)
    with _enable_x64(True):  # x may have been made in 64-bit mode
        return jax.numpy.array(x, copy=True)


def addresses_of(x: Any) -> tuple[int, int]:
    if type(x) is not _PlainArray:
        raise _refused(x)
    address = _address_of(x)
    return address, address + (x.nbytes if address else 0)


def check_type(dtype: Dtype) -> None:
    """Raise TypeError if JAX lacks the element type in its current mode."""
    if dtype not in _DTYPES:
        raise no_such_type("JAX", dtype.name, "x.astype('float32')")
    if dtype in _NARROW and not _config.jax_enable_x64:
        raise TypeError(
            f"JAX is set to 32 bits and would silently make {_NARROW[dtype]} of {dtype.name}. Set "
            f"jax.config.update('jax_enable_x64', True) before anything else, or x.astype({_NARROW[dtype]!r})"
        )


def _shared(array: Array) -> jax.Array:
    check_type(array.dtype)  # JAX would read past the end of an array that it had narrowed
    if not array.size:
        return adopt(array)
    source, device = f"An array of shape {array.shape} and dtype {array.dtype}", _default_device()
    if device.platform != "cpu":
        raise cannot_share(source, f"JAX's default device is {device}, not the CPU")
    if not is_aligned(array):
        raise cannot_share(source, f"{why_not_aligned(array)}, and JAX takes no other (see empty_aligned)")
    x = _put(array, device)
    if _address_of(x) != array.ctypes.data:
        raise cannot_share(source, "JAX keeps arrays of this type in another form")
    return x


def _view(x: jax.Array) -> Array:
    try:
        array = np.asarray(x)
    except RuntimeError as error:
        if x.is_deleted():
            raise _deleted(x) from error
        raise ValueError(f"This JAX array of shape {x.shape} cannot be fetched to this process: {error}") from error
    # An array gathered from several devices owns its memory, and its read-only flag could be lifted.
    return array if array.base is not None else locked(array)


def _deleted(x: jax.Array) -> ValueError:
    return ValueError(
        f"This JAX array of shape {x.shape} was deleted, or donated to a jitted function (donate_argnums). "
        f"Convert it before, or use the result of the function."
    )


def _address_of(x: jax.Array) -> int:
    """Return the address of the memory; 0 if it is not one piece."""
    if x.is_deleted():
        raise _deleted(x)
    try:
        return int(x.unsafe_buffer_pointer())
    except RuntimeError:  # spread over several devices
        return 0


def _default_device() -> jax.Device:
    device = _config.jax_default_device or jax.local_devices()[0]
    return jax.local_devices(backend=device)[0] if isinstance(device, str) else device


def _refused(x: Any) -> TypeError:
    if isinstance(x, jax.core.Tracer):
        return TypeError(
            f"This array of shape {x.shape} has no values yet, because JAX traces a function (jit, grad). Convert "
            f"outside of the function, or inside of jax.pure_callback"
        )
    return TypeError(
        f"{type(x).__module__}.{type(x).__qualname__} is no plain JAX array. Convert jax.numpy.asarray(x), or "
        f"jax.random.key_data(x) of random keys"
    )


def _put_publicly(array: Array, device: jax.Device) -> jax.Array:
    # JAX shares memory that is aligned. Without a named device the result is free to move to others.
    with jax.ensure_compile_time_eval(), jax.default_device(device):
        x: jax.Array = jax.device_put(array, may_alias=True)
        return x


def _find_put() -> Callable[[Array, jax.Device], jax.Array]:
    """Return the last step of JAX's `device_put`, without 50 us before it; the public function if that has changed."""
    try:
        from jax._src.core import ShapedArray
        from jax._src.lib import xla_client  # type: ignore[attr-defined]

        shaped, sharding = functools.lru_cache(4096)(ShapedArray), functools.lru_cache(SingleDeviceSharding)

        def put(array: Array, device: jax.Device) -> jax.Array:
            x: jax.Array = xla_client.batched_device_put(
                shaped(array.shape, array.dtype), sharding(device), [array], [device], False
            )
            return x

        if put(np.arange(2, dtype=np.int8), _default_device()).tolist() == [0, 1]:
            return put
    except Exception:  # any error of private code
        pass
    return _put_publicly


_put = _find_put()
