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

from ..adapters import Exported, Kind
from ..placement import canonical, find_device
from ..with_numpy.exchange import Array, Dtype, aligned_copy, cannot_share, locked, no_such_type, reason_unaligned
from . import NARROW, check_width, config

with jax.ensure_compile_time_eval():  # this file may be imported while JAX traces a function
    _PlainArray = type(jax.numpy.zeros(()))
# It has moved between versions.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64
_WITH_ML_DTYPES = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float4_e2m1fn int4 uint4 int2 uint2"
).split()
_DTYPES = {np.dtype(code) for code in "?efbBhHiIF"} | set(NARROW)
_DTYPES |= {np.dtype(getattr(jax.numpy, name)) for name in _WITH_ML_DTYPES if hasattr(jax.numpy, name)}
_PACKED = {dtype for dtype in _DTYPES if dtype.name.startswith(("float4", "int4", "uint4", "int2", "uint2"))}


def export_memory(x: Any, copy: bool | None) -> Exported:
    """Return a read-only view of the memory, or of a copy if it is not one piece on a CPU."""
    if type(x) is not _PlainArray:
        _check_plain(x)
    try:
        array = np.asarray(x)
    except RuntimeError as error:
        _check_plain(x)
        raise ValueError(f"This JAX array of shape {x.shape} cannot be fetched to this process: {error}") from error
    # An array gathered from several devices owns its memory, and its read-only flag could be lifted.
    array = array if array.base is not None else locked(array)
    if copy is False and array.size and array.ctypes.data != _address_of(x):
        raise cannot_share(f"This JAX array of type {array.dtype}", "its elements are not one piece of memory on a CPU")
    return array, "immutable"


def reason_to_copy(array: Array, kind: Kind, copy: bool | None) -> str:
    if copy is not False or not array.size:
        return "it may be written to" if kind == "mutable" and copy is None else ""
    device = _default_device()
    if device.platform != "cpu":
        return f"JAX's default device is {device}, not the CPU"
    return "JAX stores elements of this type in another layout" if array.dtype in _PACKED else reason_unaligned(array)


def share(array: Array) -> jax.Array:
    """Return an array over memory that never changes. It is copied if it is not aligned."""
    check_type(array.dtype)
    array = aligned_copy(array) if reason_unaligned(array) else array
    device = _default_device()
    return _put(array, device) if device.platform == "cpu" else jax.device_put(array)


adopt = share


def _public_put(array: Array, device: jax.Device) -> jax.Array:
    # JAX shares memory that is aligned. Without a named device the result is free to move to others.
    with jax.ensure_compile_time_eval(), jax.default_device(device):
        x: jax.Array = jax.device_put(array, may_alias=True)
        return x


def _fastest_put() -> Callable[[Array, jax.Device], jax.Array]:
    """Return the last step of `jax.device_put`, which takes a quarter of its time; if JAX changed it, all of it."""
    try:
        from jax._src.core import ShapedArray
        from jax._src.lib import xla_client  # type: ignore[attr-defined]

        shaped, sharding = (
            functools.lru_cache(4096)(ShapedArray),
            functools.lru_cache(jax.sharding.SingleDeviceSharding),
        )

        def put(array: Array, device: jax.Device) -> Any:
            shape = shaped(array.shape, array.dtype)
            return xla_client.batched_device_put(shape, sharding(device), [array], [device], False)

        return put if put(np.arange(2, dtype=np.int8), _default_device()).tolist() == [0, 1] else _public_put
    except Exception:  # private code may raise any error
        return _public_put


def has_int64() -> bool:
    return bool(config.jax_enable_x64)


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
    try:
        # In 64-bit mode, so that nothing is narrowed before the type is checked.
        with _enable_x64(True), jax.ensure_compile_time_eval():
            shared: jax.Array = jax.dlpack.from_dlpack(source, copy=False if copy is False else None)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if copy is False:
            raise cannot_share("This array", f"JAX refused its memory: {error}") from error
        return None
    check_type(shared.dtype)
    if copy is False:
        return shared
    with jax.ensure_compile_time_eval():
        copy_of_it: jax.Array = shared.copy().block_until_ready()
    return copy_of_it


def copied(x: Any) -> Any:
    if type(x) is _PlainArray:
        _check_plain(x)
    with _enable_x64(config.jax_enable_x64 or type(x) is _PlainArray):  # x may have been made in 64-bit mode
        return jax.numpy.array(x, copy=True)


def check_type(dtype: Dtype) -> None:
    """Raise TypeError if JAX lacks the element type in its current mode."""
    if dtype not in _DTYPES:
        raise no_such_type("JAX", dtype.name, "x.astype('float32')")
    check_width(dtype)


def _address_of(x: Any) -> int:
    """Return the address of the memory; 0 if it is not one piece."""
    try:
        return int(x.unsafe_buffer_pointer())
    except RuntimeError:  # spread over several devices
        return 0


def _default_device() -> jax.Device:
    device = config.jax_default_device or jax.local_devices()[0]
    return jax.local_devices(backend=device)[0] if isinstance(device, str) else device


def _check_plain(x: Any) -> None:
    if type(x) is not _PlainArray:
        if isinstance(x, jax.core.Tracer):
            raise TypeError(
                f"This array of shape {x.shape} has no values yet, because JAX traces a function (jit, grad). Convert "
                f"outside of the function, or inside of jax.pure_callback"
            )
        raise TypeError(
            f"{type(x).__module__}.{type(x).__qualname__} is not a plain JAX array. Convert jax.numpy.asarray(x), or "
            f"jax.random.key_data(x) for random keys"
        )
    if x.is_deleted():
        raise ValueError(
            f"This JAX array of shape {x.shape} was deleted, or donated to a jitted function (donate_argnums). "
            f"Convert it before, or use the result of the function."
        )


def devices() -> list[str]:
    """Return the devices of JAX's default back end, and the CPU if that is another one."""
    return list(_by_name())


def device_named(name: str) -> jax.Device:
    return _by_name()[find_device("jax", name)]


def device_of(x: jax.Array) -> str:
    if isinstance(x, jax.core.Tracer):
        raise TypeError("an array that JAX is tracing has no device yet; ask outside of jit, grad and vmap")
    devices = x.devices()
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the array is spread over {len(devices)} devices, not on one: {names}")
    return next(name for name, device in _by_name().items() if device in devices)


def move(x: jax.Array, device: str) -> jax.Array:
    target = _by_name()[device]
    if not isinstance(x, jax.core.Tracer) and x.devices() == {target}:
        return x
    return jax.device_put(x, target)  # type: ignore[no-any-return]


@functools.cache
def _by_name() -> dict[str, jax.Device]:
    devices = list(jax.local_devices())
    if devices[0].platform != "cpu":
        try:
            devices = [*jax.local_devices(backend="cpu"), *devices]
        except RuntimeError:  # the user allows JAX this back end only
            pass
    # The number is the place among this process's devices; JAX's `id` counts those of all processes.
    numbers: dict[str, int] = {}
    by_name = {}
    for device in devices:
        number = numbers[device.platform] = numbers.get(device.platform, -1) + 1
        by_name[canonical(f"{device.platform}:{number}")] = device
    return by_name


_put = _fastest_put()
