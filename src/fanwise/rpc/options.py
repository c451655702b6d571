"""Options of a worker: timeouts, threads, rendezvous, device maps. The names are torch's.

A device map says on which device of the callee a tensor of the caller arrives; the result takes the reverse way.
Without a map, devices keep their names (`cuda:1` to `cuda:1`); `device_maps` applies and checks the maps. `_transports`
and `_channels` are accepted and ignored. `allow` and `heartbeat_s` are not in torch.
"""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import constants
from .constants import HEARTBEAT_S

if TYPE_CHECKING:  # loaded on use
    from .allowed import Allowed

HEARTBEAT_MIN_S = 1.0

Device = int | str | torch.device
DeviceMap = dict[torch.device, torch.device]


class RpcBackendOptions:
    """Options common to all backends.

    Args:
        rpc_timeout: default timeout of a call in seconds; 0 for no limit.
        init_method: rendezvous of the workers: env://, tcp://host:port or file:///path.
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
    """Options of the backend of fanwise, under the name of torch's.

    Args:
        num_worker_threads: maximum number of received calls that run at a time. A call that waits for another call or
            a future releases its slot and continues without waiting for a free one; `rpc.waiting()` does the same for
            other waits. Up to as many additional threads run callbacks (`then`) and backward passes.
        rpc_timeout: default timeout of a call in seconds; 0 for no limit.
        init_method: rendezvous of the workers.
        device_maps: for each callee by name, {device of this worker: device of the callee}; one to one.
        devices: GPUs of this worker that calls use; None for all.
        allow: the functions that other workers may call here; None for all. Arguments and results, also of the calls
            that this worker makes, are then plain values: None, bool, int, float, str, bytes, tuple, list, dict,
            frozenset, arrays and tensors, which arrive on the CPU. No pickle is read. References, actors,
            streams and distributed autograd cannot be used with this worker. An error of a user's type arrives as a
            RemoteError.
        heartbeat_s: seconds of silence after which a worker on another host counts as lost, because it is stopped or
            holds the interpreter's lock. At least 1, and equal on all workers. A higher value detects a hanging worker
            later; a lower one evicts busy workers. It does not apply to a process that has ended (detected within
            milliseconds), an unreachable host (5 s), or a worker of the same host, which is lost only if its process
            ends or is stopped (SIGSTOP) for 5 s.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
        device_maps: Mapping[str, Mapping[Device, Device]] | None = None,
        devices: Sequence[Device] | None = None,
        allow: Iterable[Callable[..., Any]] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        _transports: Any = None,
        _channels: Any = None,
    ) -> None:
        super().__init__(rpc_timeout, init_method)
        if isinstance(num_worker_threads, bool) or not isinstance(num_worker_threads, int):
            raise TypeError(f"num_worker_threads must be an int, got {num_worker_threads!r}")
        if num_worker_threads < 1:
            raise ValueError(f"num_worker_threads must be at least 1, got {num_worker_threads}")
        self.num_worker_threads = num_worker_threads
        self.heartbeat_s = _check_heartbeat(heartbeat_s)
        self.device_maps: dict[str, DeviceMap] = {}
        for to, device_map in (device_maps or {}).items():
            self.set_device_map(to, device_map)
        self.devices = [_gpu(device) for device in devices or ()]
        self.allowed = None if allow is None else _allow_list(allow)

    def set_device_map(self, to: str, device_map: Mapping[Device, Device]) -> None:
        """Add to the device map for worker `to`. Raises ValueError if a device would map to two devices."""
        new = _check_one_to_one(device_map)
        existing = self.device_maps.setdefault(to, {})
        for local, remote in new.items():
            if existing.get(local, remote) != remote:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {local} to {remote} and "
                    f"{existing[local]}"
                )
        existing.update(new)

    def set_devices(self, devices: Sequence[Device]) -> None:
        """Set the GPUs of this worker that calls use."""
        self.devices = [_gpu(device) for device in devices]


def _check_heartbeat(heartbeat_s: float) -> float:
    if isinstance(heartbeat_s, bool) or not isinstance(heartbeat_s, numbers.Real):
        raise TypeError(f"heartbeat_s must be seconds, got {heartbeat_s!r} of type {type(heartbeat_s).__name__}")
    if not (math.isfinite(heartbeat_s) and heartbeat_s >= HEARTBEAT_MIN_S):
        raise ValueError(
            f"heartbeat_s must be at least {HEARTBEAT_MIN_S:g} second, and finite, got {heartbeat_s!r}: workers are "
            f"checked once a second"
        )
    return float(heartbeat_s)


def _allow_list(allow: Iterable[Callable[..., Any]]) -> "Allowed":
    from .allowed import Allowed

    return Allowed(allow)


def _check_one_to_one(device_map: Mapping[Device, Device]) -> DeviceMap:
    result: DeviceMap = {}
    local_of: DeviceMap = {}
    for local, remote in ((_device(a), _device(b)) for a, b in device_map.items()):
        if remote in local_of:
            raise ValueError(
                f"`device_map` only supports 1-to-1 mapping, trying to map {local} and {local_of[remote]} to {remote}"
            )
        result[local] = remote
        local_of[remote] = local
    return result


def _gpu(device: Device) -> torch.device:
    result = _device(device)
    if result.type != "cuda":
        raise ValueError(f"`set_devices` expect a list of CUDA devices, but got device type {result.type}.")
    return result


def _device(device: Device) -> torch.device:
    result = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if result.type not in ("cpu", "cuda"):
        raise ValueError(f"device maps take CPUs and CUDA devices, got {result}")
    return torch.device("cuda", 0) if result.type == "cuda" and result.index is None else result
