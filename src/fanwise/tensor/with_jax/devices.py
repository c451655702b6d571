"""Devices of JAX: those of its default back end, and the CPU if that is another one.

The number in a name is the place among this process's devices; JAX's `id` counts those of all processes.
"""

import functools

import jax

from ..placement import canonical, find_device


def names() -> list[str]:
    return list(_by_name())


def device_named(name: str) -> jax.Device:
    """Return the device with that name. Raise ValueError as `find_device`."""
    return _by_name()[find_device("jax", name)]


def device_of(x: jax.Array) -> str:
    if isinstance(x, jax.core.Tracer):
        raise TypeError("an array that JAX is tracing has no device yet; ask outside of jit, grad and vmap")
    devices = x.devices()
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the array is spread over {len(devices)} devices, not on one: {names}")
    (device,) = devices
    return _names_by_device()[device]


def move(x: jax.Array, device: str) -> jax.Array:
    target = _by_name()[device]
    if not isinstance(x, jax.core.Tracer) and x.devices() == {target}:
        return x
    moved: jax.Array = jax.device_put(x, target)
    return moved


@functools.cache
def _by_name() -> dict[str, jax.Device]:
    devices = list(jax.local_devices())
    if devices[0].platform != "cpu":
        try:
            devices = [*jax.local_devices(backend="cpu"), *devices]
        except RuntimeError:  # the user allows JAX this back end only
            pass
    numbers: dict[str, int] = {}
    by_name = {}
    for device in devices:
        number = numbers[device.platform] = numbers.get(device.platform, -1) + 1
        by_name[canonical(f"{device.platform}:{number}")] = device
    return by_name


@functools.cache
def _names_by_device() -> dict[jax.Device, str]:
    return {device: name for name, device in _by_name().items()}
