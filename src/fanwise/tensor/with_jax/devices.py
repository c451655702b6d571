"""Devices of JAX: those of its default back end, and the CPU if that is another one.

The number in a name is the place among this process's own devices; JAX's `id` counts those of all processes.
"""

import functools

import jax

from ..placement import canonical, find_device


def names() -> list[str]:
    return list(_by_name())


def named(name: str) -> jax.Device:
    """The device of that name. Raises ValueError as `find_device`."""
    return _by_name()[find_device("jax", name)]


def device_of(x: jax.Array) -> str:
    if isinstance(x, jax.core.Tracer):
        raise TypeError("an array that JAX is tracing has no device yet; ask outside of jit, grad and vmap")
    places = x.devices()
    if len(places) > 1:
        spread = ", ".join(sorted(map(str, places)))
        raise ValueError(f"the array is spread over {len(places)} devices, not on one: {spread}")
    (place,) = places
    return _names_by_device()[place]


def move(x: jax.Array, device: str) -> jax.Array:
    place = _by_name()[device]
    if not isinstance(x, jax.core.Tracer) and x.devices() == {place}:
        return x
    moved: jax.Array = jax.device_put(x, place)
    return moved


@functools.cache
def _by_name() -> dict[str, jax.Device]:
    found = list(jax.local_devices())
    if found[0].platform != "cpu":
        try:
            found = [*jax.local_devices(backend="cpu"), *found]
        except RuntimeError:  # JAX was told to use this back end alone
            pass
    numbers: dict[str, int] = {}
    by_name = {}
    for device in found:
        number = numbers[device.platform] = numbers.get(device.platform, -1) + 1
        by_name[canonical(f"{device.platform}:{number}")] = device
    return by_name


@functools.cache
def _names_by_device() -> dict[jax.Device, str]:
    return {device: name for name, device in _by_name().items()}
