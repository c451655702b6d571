"""Options: accepted values, and torch's messages for others."""

import pytest
import torch

from fanwise.rpc import TensorPipeRpcBackendOptions, backend_registry, constants
from fanwise.rpc.options import RpcBackendOptions


def cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


def test_defaults_are_torchs() -> None:
    options = TensorPipeRpcBackendOptions()
    assert (options.rpc_timeout, options.init_method, options.num_worker_threads) == (60.0, "env://", 16)
    assert (options.device_maps, options.devices, options.allowed) == ({}, [], None)
    assert options.heartbeat_s == 30.0


@pytest.mark.parametrize("timeout", ["60", None, True])
def test_a_timeout_that_is_no_number_is_a_type_error(timeout: object) -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments: rpc_timeout must be seconds"):
        RpcBackendOptions(timeout)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_below_zero_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="at least 0 seconds"):
        RpcBackendOptions(timeout)


@pytest.mark.parametrize(("count", "kind"), [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)])
def test_the_number_of_threads_is_checked(count: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"num_worker_threads must be .*got {count}"):
        TensorPipeRpcBackendOptions(num_worker_threads=count)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("heartbeat_s", ["30", None, True])
def test_a_heartbeat_that_is_no_number_is_a_type_error(heartbeat_s: object) -> None:
    with pytest.raises(TypeError, match="heartbeat_s must be seconds, got"):
        TensorPipeRpcBackendOptions(heartbeat_s=heartbeat_s)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("heartbeat_s", [0.0, 0.99, -30.0, float("nan"), float("inf")])
def test_a_heartbeat_is_a_second_or_more_and_finite(heartbeat_s: float) -> None:
    with pytest.raises(ValueError, match=f"heartbeat_s must be at least 1 second, and finite, got {heartbeat_s!r}"):
        TensorPipeRpcBackendOptions(heartbeat_s=heartbeat_s)
    assert TensorPipeRpcBackendOptions(heartbeat_s=1).heartbeat_s == 1.0


def test_device_maps_are_kept_as_devices() -> None:
    options = TensorPipeRpcBackendOptions(device_maps={"b": {0: "cuda:1", "cpu": "cpu"}}, devices=[0, "cuda:2"])
    assert options.device_maps == {"b": {cuda(0): cuda(1), torch.device("cpu"): torch.device("cpu")}}
    assert options.devices == [cuda(0), cuda(2)]


def test_a_map_grows_with_each_call() -> None:
    options = TensorPipeRpcBackendOptions()
    options.set_device_map("b", {0: 1})
    options.set_device_map("b", {1: 0, "cpu": "cpu"})
    assert options.device_maps["b"] == {cuda(0): cuda(1), cuda(1): cuda(0), torch.device("cpu"): torch.device("cpu")}


def test_a_device_goes_to_one_place_only() -> None:
    options = TensorPipeRpcBackendOptions()
    options.set_device_map("b", {0: 1})
    with pytest.raises(ValueError, match="`set_device_map` only supports 1-to-1 mapping, trying to map cuda:0 to"):
        options.set_device_map("b", {0: 0})
    assert options.device_maps["b"] == {cuda(0): cuda(1)}


def test_two_devices_of_one_map_do_not_go_to_the_same_place() -> None:
    with pytest.raises(ValueError, match=r"`device_map` only supports 1-to-1 mapping, .* cuda:1 and cuda:0 to cuda:0"):
        TensorPipeRpcBackendOptions(device_maps={"b": {0: 0, 1: 0}})


def test_devices_are_gpus() -> None:
    options = TensorPipeRpcBackendOptions()
    with pytest.raises(ValueError, match="`set_devices` expect a list of CUDA devices, but got device type cpu"):
        options.set_devices(["cpu"])
    with pytest.raises(ValueError, match="device maps take CPUs and CUDA devices, got meta"):
        options.set_device_map("b", {"meta": 0})
    with pytest.raises(RuntimeError, match="must not be negative"):
        options.set_device_map("b", {-1: 0})


def test_a_backend_is_registered_once() -> None:
    assert backend_registry.backend_registered("TENSORPIPE")
    assert not backend_registry.backend_registered("GLOO")
    with pytest.raises(RuntimeError, match=r"^RPC backend TENSORPIPE: already registered$"):
        backend_registry.register_backend("TENSORPIPE", RpcBackendOptions, RpcBackendOptions)


def test_a_backend_makes_its_options() -> None:
    backend = backend_registry.BackendType.TENSORPIPE
    options = backend_registry.construct_rpc_backend_options(backend, 3.0, "file:///x", num_worker_threads=2)
    assert isinstance(options, TensorPipeRpcBackendOptions)
    assert (options.rpc_timeout, options.init_method, options.num_worker_threads) == (3.0, "file:///x", 2)
    assert repr(backend) == "BackendType.TENSORPIPE"
    assert constants.UNSET_RPC_TIMEOUT == -1.0
