"""Settings of a worker: time-outs, threads, where to meet, device maps. The names are torch's.

A device map says on which device of the callee a tensor of mine arrives; the answer goes the other way. Without one,
devices keep their names (`cuda:1` to `cuda:1`); `device_maps` applies and checks them. `_transports` and `_channels`
are taken and mean nothing here. `allow` and `heartbeat_s` are ours.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import constants
from .constants import HEARTBEAT_S

if TYPE_CHECKING:  # loaded when they are used, which is not in every program
    from .allow_list.allowing import Allow, Allowed
    from .devices.device_memory import DeviceMemory

HEARTBEAT_MIN_S = 1.0

Device = int | str | torch.device
DeviceMap = dict[torch.device, torch.device]


class RpcBackendOptions:
    """What every backend's options have.

    Args:
        rpc_timeout: seconds that a call may take; 0: no limit.
        init_method: where the workers meet: env://, tcp://host:port or file:///path.
    """

    def __init__(
        self,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
    ) -> None:
        if isinstance(rpc_timeout, bool) or not isinstance(rpc_timeout, numbers.Real):
            raise TypeError(
                f"incompatible constructor arguments: rpc_timeout must be seconds, got {rpc_timeout!r} of type "
                f"{type(rpc_timeout).__name__}"
            )
        if not rpc_timeout >= 0:
            raise ValueError(f"rpc_timeout must be at least 0 seconds, got {rpc_timeout!r}")
        self.rpc_timeout: float = float(rpc_timeout)
        self.init_method: str = init_method


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """Options of our one backend, under torch's name for its own.

    Args:
        num_worker_threads: functions of others that run at a time. One that waits for a call or a future gives up
            its place, and does not wait for another when it goes on; `rpc.waiting()` does so for waits of other kinds.
            As many threads more, if need be, are for callbacks (`then`) and backward passes.
        rpc_timeout: seconds that a call may take; 0: no limit.
        init_method: where the workers meet.
        device_maps: by the callee's name, {mine: theirs}; one to one.
        devices: GPUs of this worker that calls use; None: all.
        allow: what other workers may have this one call and make, as objects or as names such as "shop.train.step" and
            "shop.train.*"; None: everything. A function: calls may name it. A class, and no subclass of it: its
            constructor, its methods without a leading underscore and `__call__`, also by a reference, and instances of
            it among arguments, results and errors. A module: what is defined there. Plain values and containers,
            tensors, references and the errors of Python need no leave; a method of a value that stays here needs its
            class to be listed, tensors' too. All else is refused, by name, before it is imported; an error that is not
            listed comes as a RemoteError. What a listed function does with its arguments is its own.
        heartbeat_s: between hosts, seconds of silence after which a worker counts as lost: it answers nothing, as one
            that is stopped or never lets go of the interpreter's lock; or its link to the coordinator was cut and it
            does not come back. At least 1; the same for all workers of a group. The higher, the later a worker that
            hangs is noticed; the lower, the sooner a busy one is taken for dead. Not what decides about a process that
            has ended, which is noticed within milliseconds, a host that is off or cut off (5 s), or a worker of the
            same host, which is lost only when its process ends or was stopped (SIGSTOP) for 5 s.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
        device_maps: Mapping[str, Mapping[Device, Device]] | None = None,
        devices: Sequence[Device] | None = None,
        allow: "Iterable[Allow] | None" = None,
        heartbeat_s: float = HEARTBEAT_S,
        _transports: Any = None,  # Any: of torch's own transports
        _channels: Any = None,  # Any: as above
    ) -> None:
        super().__init__(rpc_timeout, init_method)
        if isinstance(num_worker_threads, bool) or not isinstance(num_worker_threads, int):
            raise TypeError(f"num_worker_threads must be an int, got {num_worker_threads!r}")
        if num_worker_threads < 1:
            raise ValueError(f"num_worker_threads must be at least 1, got {num_worker_threads}")
        self.num_worker_threads = num_worker_threads
        self.heartbeat_s = _heartbeat(heartbeat_s)
        self.device_maps: dict[str, DeviceMap] = {}
        for to, device_map in (device_maps or {}).items():
            self.set_device_map(to, device_map)
        self.devices = [_gpu(device) for device in devices or ()]
        self.allowed = None if allow is None else _allowed(allow)
        self.memory: DeviceMemory | None = None  # whose memory is lent; None: that of CUDA devices

    def set_device_map(self, to: str, device_map: Mapping[Device, Device]) -> None:
        """Add to the map for worker `to`. ValueError when a device of mine would go to two of theirs."""
        added = _one_to_one(device_map)
        known = self.device_maps.setdefault(to, {})
        for mine, theirs in added.items():
            if known.get(mine, theirs) != theirs:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {mine} to {theirs} and {known[mine]}"
                )
        known.update(added)

    def set_devices(self, devices: Sequence[Device]) -> None:
        """The GPUs of this worker that calls use."""
        self.devices = [_gpu(device) for device in devices]


def _heartbeat(heartbeat_s: float) -> float:
    if isinstance(heartbeat_s, bool) or not isinstance(heartbeat_s, numbers.Real):
        raise TypeError(f"heartbeat_s must be seconds, got {heartbeat_s!r} of type {type(heartbeat_s).__name__}")
    if not (math.isfinite(heartbeat_s) and heartbeat_s >= HEARTBEAT_MIN_S):
        raise ValueError(
            f"heartbeat_s must be at least {HEARTBEAT_MIN_S:g} second, and finite, got {heartbeat_s!r}: workers are "
            f"looked at once a second"
        )
    return float(heartbeat_s)


def _allowed(allow: "Iterable[Allow]") -> "Allowed":
    from .allow_list.allowing import Allowed

    return Allowed(allow)


def _one_to_one(device_map: Mapping[Device, Device]) -> DeviceMap:
    found: DeviceMap = {}
    mine_of: DeviceMap = {}
    for mine, theirs in ((_device(a), _device(b)) for a, b in device_map.items()):
        if theirs in mine_of:
            raise ValueError(
                f"`device_map` only supports 1-to-1 mapping, trying to map {mine} and {mine_of[theirs]} to {theirs}"
            )
        found[mine] = theirs
        mine_of[theirs] = mine
    return found


def _gpu(device: Device) -> torch.device:
    found = _device(device)
    if found.type != "cuda":
        raise ValueError(f"`set_devices` expect a list of CUDA devices, but got device type {found.type}.")
    return found


def _device(device: Device) -> torch.device:
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device maps take CPUs and CUDA devices, got {found}")
    return torch.device("cuda", 0) if found.type == "cuda" and found.index is None else found
