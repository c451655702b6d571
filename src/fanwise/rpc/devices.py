"""Devices of the tensors in calls: device maps, and CUDA tensors between processes of one host.

    caller --map_call--> callee     in calls: the sender writes the target into the metadata
    caller <-map_reply-- callee     in replies: the receiver applies the inverse map

Without a map devices keep their names, so `cuda:1` arrives on `cuda:1`. With a map, tensors on other GPUs cannot be
sent. When the group has formed, a map is checked against the devices of this worker, the names of the group, and the
devices of the callee. The messages are torch's.
"""

import logging
import os
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from .calling.futures import error_of
from .messages.ids import WorkerKey

if TYPE_CHECKING:
    from .agent import Agent
    from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

# Smaller tensors go through main memory: opening a handle takes half a millisecond, as long as such a copy (H200).
_SHARED_FROM_BYTES = 1 << 20
_DEVICE = 6  # position of the device among the arguments of `rebuild_cuda_tensor`
_UUIDS = "devices.uuids"

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


# -- CUDA IPC ----------------------------------------------------------------------------------------------------


class CudaIpc:
    """Sends CUDA tensors to processes of this host as handles of `torch.multiprocessing` instead of bytes.

        sender    copies the tensor on its device --> handle of the copy, pickled
        receiver  opens the handle, copies the tensor; torch then releases the sender's copy

    Both sides copy: the sender may change its tensor as soon as the call returns, and the receiver's must outlive the
    sender. The first large tensor for a worker goes through main memory, and the sender asks which devices that worker
    sees: their numbers depend on CUDA_VISIBLE_DEVICES, their UUIDs do not. A copy whose handle is never opened, because
    the message was not sent or its receiver died, is kept until the sender ends.

    FANWISE_CUDA_IPC=0 turns it off.
    """

    def __init__(self, agent: "Agent", environment: Mapping[str, str] = os.environ) -> None:
        self._agent = agent
        self._is_on = environment.get("FANWISE_CUDA_IPC") != "0"
        self._uuids: dict[WorkerKey, tuple[str, ...]] = {}  # empty while a worker was asked
        agent.on(_UUIDS, self._on_uuids_requested)

    def share(self, to: int, tensor: torch.Tensor) -> bytes | None:
        """Return the handle of a copy of a contiguous tensor for worker `to`, or None to send its bytes."""
        if not (self._is_on and tensor.is_cuda and tensor.nbytes >= _SHARED_FROM_BYTES):
            return None
        group = self._agent.group
        member = group.members().get(to)
        if member is None or member.host != group.me.host or member.pid == group.me.pid:
            return None
        uuids = self._uuids.get(member.key)
        if uuids is None:
            self._uuids[member.key] = ()
            self._agent.request(to, _UUIDS).add_done_callback(partial(self._on_uuids, member.key))
            return None
        uuid = _uuid(tensor.device.index)
        if uuid not in uuids:
            return None
        try:
            with torch.cuda.device(tensor.device):
                copy = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                _, args = reduce_tensor(copy)  # type: ignore[no-untyped-call]  # torch's
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:  # such as expandable segments, which cannot be shared
            self._is_on = False
            _log.warning("CUDA tensors are sent through main memory from now on: %s", error)
            return None
        return pickle.dumps((uuid, args, tensor.requires_grad, type(tensor) is torch.nn.Parameter))

    def _on_uuids(self, key: WorkerKey, reply: "Future[Any]") -> None:
        if error_of(reply) is None:
            self._uuids[key] = tuple(reply.value())
        else:
            self._uuids.pop(key, None)  # ask again with the next large tensor

    def _on_uuids_requested(self, sender: "WorkerInfo") -> "Future[Any]":
        """Reply from another thread, because the first use of CUDA blocks."""
        future: Future[Any] = Future()

        def reply() -> None:
            try:
                future.set_result(_visible_uuids())
            except Exception as error:
                future.set_exception(error.with_traceback(None))

        self._agent.answer(reply)
        return future


def open_handle(handle: memoryview) -> torch.Tensor:
    """Return a copy of the tensor, on the same GPU. Raises RuntimeError if its memory cannot be opened."""
    uuid, args, requires_grad, is_parameter = pickle.loads(handle)
    index = _visible_uuids().index(uuid)
    try:
        with torch.cuda.device(index):
            local_args = (*args[:_DEVICE], index, *args[_DEVICE + 1 :])
            copy: torch.Tensor = rebuild_cuda_tensor(*local_args).clone()  # type: ignore[no-untyped-call]  # torch's
    except RuntimeError as error:
        raise RuntimeError(
            f"a tensor in the memory of GPU {uuid} could not be opened: {error}\n"
            f"Start its sender with FANWISE_CUDA_IPC=0, which sends CUDA tensors through main memory."
        ) from error
    return torch.nn.Parameter(copy, requires_grad) if is_parameter else copy.requires_grad_(requires_grad)


def _visible_uuids() -> list[str]:
    return [_uuid(index) for index in range(torch.cuda.device_count())]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
