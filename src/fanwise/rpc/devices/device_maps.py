"""Device maps: the target device of a tensor on the callee, and the device of its result on the caller.

    caller --map_call--> callee     in calls: the sender writes the target into the metadata
    caller <-map_reply-- callee     in replies: the receiver applies the inverse map

Without a map devices keep their names, so `cuda:1` arrives on `cuda:1`. With a map, tensors on other GPUs cannot be
sent. When the group has formed, a map is checked against the devices of this worker, the names of the group, and the
devices of the callee. The messages are torch's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

DeviceMap = Mapping[torch.device, torch.device]

_CPU = torch.device("cpu")


class DeviceMaps:
    """The device maps of this worker.

    Args:
        maps: by the name of the callee, {device of this worker: device of the callee}.
        devices: GPUs of this worker that calls use; empty for all.
    """

    def __init__(self, maps: Mapping[str, DeviceMap], devices: Sequence[torch.device]) -> None:
        self.maps = {to: dict(device_map) for to, device_map in maps.items()}
        self.devices = list(devices)
        self._inverse = {to: {remote: local for local, remote in m.items()} for to, m in self.maps.items()}

    def map_to(self, to: str) -> dict[torch.device, torch.device]:
        """Return the map for a callee; empty if it has none."""
        return self.maps.get(to, {})

    def map_call(self, to: str, local: torch.device) -> torch.device:
        """Return the device of the callee for a tensor on `local`. Raises RuntimeError if the map does not have it."""
        return _mapped(self.maps.get(to), local, f"worker {to}")

    def map_reply(self, to: str, remote: torch.device) -> torch.device:
        """Return the device of this worker for a tensor of a reply that is on `remote` there."""
        return _mapped(self._inverse.get(to), remote, "this worker")


def _mapped(device_map: DeviceMap | None, device: torch.device, to: str) -> torch.device:
    if device_map is None:
        return device
    target = device_map.get(device)
    if target is not None:
        return target
    if device == _CPU:
        return device
    raise RuntimeError(
        f"There is no entry for {device} in the device map to {to}: {_as_text(device_map)}. Add one with "
        f"TensorPipeRpcBackendOptions.set_device_map, or move the tensor to the CPU first."
    )


def check_local(name: str, maps: DeviceMaps, names: Collection[str] | None, num_devices: int) -> None:
    """Check the maps of worker `name` without asking others. Raises ValueError with the messages of torch.

    Args:
        names: of all workers; None in a dynamic group, where a callee may join later.
        num_devices: number of CUDA devices of this worker.
    """
    if len(set(maps.devices)) != len(maps.devices):
        raise ValueError(f"Node {name} has duplicated devices\ndevices = {maps.devices}")
    if not _are_valid(maps.devices, num_devices):
        raise ValueError(
            f"Node {name} has devices with invalid indices\ndevices = {maps.devices}\ndevice count = {num_devices}"
        )
    if names is not None and not set(maps.maps) <= set(names):
        raise ValueError(
            f"Node {name} has invalid target node names in its device maps\ndevice maps = {sorted(maps.maps)}\n"
            f"node names = {sorted(names)}"
        )
    for to, device_map in maps.maps.items():
        _check_map(name, to, device_map, maps.devices, num_devices)


def _check_map(name: str, to: str, device_map: DeviceMap, devices: list[torch.device], num_devices: int) -> None:
    context = f"in its device map for {to}\ndevice map = {_as_text(device_map)}"
    if len(set(device_map.values())) != len(device_map):
        raise ValueError(f"Node {name} has duplicated target devices {context}")
    if devices and not set(device_map) <= {*devices, _CPU}:
        raise ValueError(f"Node {name} has unexpected source devices {context}\ndevices = {devices}")
    if not devices and not _are_valid(device_map, num_devices):
        raise ValueError(f"Node {name} has source devices with invalid indices {context}\ndevice count = {num_devices}")


def check_targets(name: str, to: str, device_map: DeviceMap, description: tuple[int, Sequence[str]]) -> None:
    """Check the targets of a map against `describe_devices` of the callee. Raises ValueError."""
    num_devices, devices = description
    context = f"in its device map for {to}\ndevice map = {_as_text(device_map)}"
    if devices and not {str(remote) for remote in device_map.values()} <= {*devices, "cpu"}:
        raise ValueError(f"Node {name} has unexpected target devices {context}\ndevices = {list(devices)}")
    if not devices and not _are_valid(device_map.values(), num_devices):
        raise ValueError(f"Node {name} has target devices with invalid indices {context}\ndevice count = {num_devices}")


def describe_devices(maps: DeviceMaps) -> tuple[int, list[str]]:
    """Return the number of CUDA devices of this worker, and the names of those that calls use."""
    return torch.cuda.device_count(), [str(device) for device in maps.devices]


def _are_valid(devices: Iterable[torch.device], num_devices: int) -> bool:
    return all(device == _CPU or (device.type == "cuda" and device.index < num_devices) for device in devices)


def _as_text(device_map: Mapping[Any, Any]) -> dict[str, str]:
    return {str(local): str(remote) for local, remote in device_map.items()}
