"""Device maps: the target device of a tensor on the callee, and the device of its result on the caller.

    local --map_to(callee)--> remote     in calls: the sender names the target in the tensor's header
    local <--its inverse----- remote     in replies: the receiver looks it up

Without a map devices keep their names, so `cuda:1` arrives on `cuda:1`. With a map, tensors on other devices cannot be
sent. When the group has formed, a map is checked against the devices of this worker, the names of the group, and the
devices of the callee. The messages are torch's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

DeviceMap = Mapping[torch.device, torch.device]

_CPU = torch.device("cpu")


class DeviceMaps:
    """The maps of this worker.

    Args:
        maps: by the callee's name, {mine: theirs}.
        devices: GPUs of this worker that calls use; empty for all.
    """

    def __init__(self, maps: Mapping[str, DeviceMap], devices: Sequence[torch.device]) -> None:
        self.maps = {to: dict(device_map) for to, device_map in maps.items()}
        self.devices = list(devices)
        self._inverse = {to: {theirs: mine for mine, theirs in m.items()} for to, m in self.maps.items()}

    def map_to(self, to: str) -> dict[torch.device, torch.device]:
        """The map for this callee; empty when there is none."""
        return self.maps.get(to, {})

    def there(self, to: str, mine: torch.device) -> torch.device:
        """Where a tensor on `mine` arrives. RuntimeError when the map leaves it out."""
        return _mapped(self.maps.get(to), mine, f"worker {to}")

    def here(self, to: str, theirs: torch.device) -> torch.device:
        """Where a tensor of an answer, on `theirs`, comes to."""
        return _mapped(self._inverse.get(to), theirs, "this worker")


def _mapped(device_map: DeviceMap | None, device: torch.device, to: str) -> torch.device:
    if device_map is None:
        return device
    found = device_map.get(device)
    if found is not None:
        return found
    if device == _CPU:
        return device
    raise RuntimeError(
        f"There is no entry for {device} in the device map to {to}: {_shown(device_map)}. Add one with "
        f"TensorPipeRpcBackendOptions.set_device_map, or move the tensor to the CPU first."
    )


def check_here(name: str, maps: DeviceMaps, names: Collection[str] | None, num_devices: int) -> None:
    """Check what this worker can check alone. ValueError in torch's words.

    Args:
        names: of all workers; None in a dynamic group, where a callee may yet come.
        num_devices: CUDA devices of this worker.
    """
    if len(set(maps.devices)) != len(maps.devices):
        raise ValueError(f"Node {name} has duplicated devices\ndevices = {maps.devices}")
    if not _valid(maps.devices, num_devices):
        raise ValueError(
            f"Node {name} has devices with invalid indices\ndevices = {maps.devices}\ndevice count = {num_devices}"
        )
    if names is not None and not set(maps.maps) <= set(names):
        raise ValueError(
            f"Node {name} has invalid target node names in its device maps\ndevice maps = {sorted(maps.maps)}\n"
            f"node names = {sorted(names)}"
        )
    for to, device_map in maps.maps.items():
        _check_one(name, to, device_map, maps.devices, num_devices)


def _check_one(name: str, to: str, device_map: DeviceMap, devices: list[torch.device], num_devices: int) -> None:
    about = f"in its device map for {to}\ndevice map = {_shown(device_map)}"
    if len(set(device_map.values())) != len(device_map):
        raise ValueError(f"Node {name} has duplicated target devices {about}")
    if devices and not set(device_map) <= {*devices, _CPU}:
        raise ValueError(f"Node {name} has unexpected source devices {about}\ndevices = {devices}")
    if not devices and not _valid(device_map, num_devices):
        raise ValueError(f"Node {name} has source devices with invalid indices {about}\ndevice count = {num_devices}")


def check_there(name: str, to: str, device_map: DeviceMap, about: tuple[int, Sequence[str]]) -> None:
    """Check the targets of a map against what the callee said of itself: how many CUDA devices, and which it uses."""
    num_devices, devices = about
    text = f"in its device map for {to}\ndevice map = {_shown(device_map)}"
    if devices and not {str(theirs) for theirs in device_map.values()} <= {*devices, "cpu"}:
        raise ValueError(f"Node {name} has unexpected target devices {text}\ndevices = {list(devices)}")
    if not devices and not _valid(device_map.values(), num_devices):
        raise ValueError(f"Node {name} has target devices with invalid indices {text}\ndevice count = {num_devices}")


def about_here(maps: DeviceMaps) -> tuple[int, list[str]]:
    """What this worker says of itself for `check_there`."""
    return torch.cuda.device_count(), [str(device) for device in maps.devices]


def _valid(devices: Iterable[torch.device], num_devices: int) -> bool:
    return all(device == _CPU or (device.type == "cuda" and device.index < num_devices) for device in devices)


def _shown(device_map: Mapping[Any, Any]) -> dict[str, str]:
    return {str(mine): str(theirs) for mine, theirs in device_map.items()}
