"""The GPUs that a run gets from the machine, a lease or a launcher; settings that a run changes and restores."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fanwise
from fanwise.base.errors import LeaseError
from fanwise.parallel.comm.torch_group import check_gpus
from fanwise.parallel.devices import Devices, devices_of
from fanwise.parallel.launch.external import Launched, device_of
from fanwise.parallel.launch.pools import check_leasable
from fanwise.parallel.process_settings import WORKSPACE, _precision, _workspace

CPU = torch.device("cpu")


def gpus(*numbers: int) -> tuple[torch.device, ...]:
    return tuple(torch.device("cuda", number) for number in numbers)


@pytest.mark.parametrize(
    ("wanted", "num_gpus", "expected"),
    [
        ("auto", 0, (CPU,)),
        ("auto", 1, gpus(0)),
        ("auto", 3, gpus(0, 1, 2)),
        (2, 0, (CPU, CPU)),
        (2, 3, gpus(0, 1)),
        (3, 3, gpus(0, 1, 2)),
        ("cuda", 2, gpus(0)),
        ("cuda:1", 2, gpus(1)),
        (["cuda:2", "cuda:0"], 3, gpus(2, 0)),
        (["cuda", "cuda:1"], 2, gpus(0, 1)),
        ("cpu", 2, (CPU,)),
        (["cpu"] * 3, 2, (CPU, CPU, CPU)),
    ],
    ids=str,
)
def test_devices_are_found(wanted: Devices, num_gpus: int, expected: tuple[torch.device, ...]) -> None:
    assert devices_of(wanted, num_gpus) == expected


@pytest.mark.parametrize(
    ("wanted", "num_gpus", "text"),
    [
        (3, 2, 'devices=3 asks for 3 GPUs; this machine has: cpu, cuda:0, cuda:1.\nGive fewer, or devices=["cpu"] * 3'),
        ("cuda:2", 2, "there is no device 'cuda:2'; this machine has: cpu, cuda:0, cuda:1"),
        ("cuda", 0, "there is no device 'cuda'; this machine has: cpu"),
        (["cpu", "cuda:0"], 1, "devices=['cpu', 'cuda:0'] mixes CPU devices and GPUs"),
        (["cuda:1", "cuda:0", "cuda:1"], 2, "names cuda:1 twice; a GPU is one device of a run"),
        (["cuda", "cuda:0"], 2, "names cuda:0 twice"),
    ],
    ids=str,
)
def test_impossible_devices_are_refused(wanted: Devices, num_gpus: int, text: str) -> None:
    with pytest.raises(ValueError) as raised:
        devices_of(wanted, num_gpus)
    assert text in str(raised.value)


def test_gpus_of_a_pool_are_leased_by_number_or_all_by_name() -> None:
    check_leasable(None, 2, 2)
    check_leasable(None, 2, 3)
    check_leasable([1, 0], 2, 2)
    with pytest.raises(LeaseError, match="3 GPUs are needed at once, one for each process, and the pool has 2"):
        check_leasable(None, 3, 2)
    with pytest.raises(
        ValueError,
        match=r"devices=\['cuda:1', 'cuda:2'\]: .* decides which of its 3 GPUs .*\nGive a number: devices=2",
    ):
        check_leasable([1, 2], 2, 3)


def launched(rank: int, local_rank: int | None, size: int = 8) -> Launched:
    return Launched(rank, size, local_rank, is_joined=False)


@pytest.mark.parametrize(
    ("rank", "local_rank", "devices", "num_gpus", "expected"),
    [
        (5, 1, "auto", 4, "cuda:1"),
        (5, 1, "auto", 1, "cuda:0"),  # a batch system has hidden the others
        (5, 1, "auto", 0, "cpu"),
        (5, None, "auto", 4, "cuda:1"),
        (5, 1, "cuda", 4, "cuda:1"),
        (5, 1, 8, 4, "cuda:1"),
        (5, 1, "cpu", 4, "cpu"),
        (5, 1, "cuda:3", 4, "cuda:3"),
        (1, 1, ["cuda:1", "cuda:0"], 2, "cuda:0"),
        (1, 1, ["cpu", "cpu"], 2, "cpu"),
    ],
    ids=str,
)
def test_each_launched_process_gets_its_own_gpu(
    rank: int, local_rank: int | None, devices: Devices, num_gpus: int, expected: str
) -> None:
    assert device_of(launched(rank, local_rank), devices, num_gpus) == torch.device(expected)


def test_more_launched_processes_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="LOCAL_RANK=2 and 2 GPUs: each process of a run needs a GPU of its own"):
        device_of(launched(2, 2), "auto", 2)
    with pytest.raises(ValueError, match="there is no device 'cuda:0'; this machine has: cpu"):
        device_of(launched(2, 2), "cuda", 0)
    check_gpus([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    with pytest.raises(ValueError, match="processes 0 and 2 of 3 are on the same GPU, GPU-1 of a; each needs its own"):
        check_gpus([("a", "GPU-1"), ("a", "GPU-2"), ("a", "GPU-1")])


def test_the_workspace_of_cublas_gives_reproducible_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    with _workspace():
        assert os.environ[WORKSPACE] == ":4096:8"
    assert WORKSPACE not in os.environ
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with _workspace():
        assert os.environ[WORKSPACE] == ":16:8"
    assert os.environ[WORKSPACE] == ":16:8"
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with pytest.raises(ValueError, match="CUBLAS_WORKSPACE_CONFIG=':0:0' makes matrix products on a GPU"), _workspace():
        pass


def set_matmul_precision(value: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = value


def set_conv_tf32(value: bool) -> None:
    torch.backends.cudnn.allow_tf32 = value


def precision_settings() -> list[object]:
    """Return the settings of torch's new interface, then those of the old one where it can be read."""
    cudnn: Any = torch.backends.cudnn  # Any: torch has annotated the older form only
    settings: list[object] = [part.fp32_precision for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    for read in (torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32):
        try:
            settings.append(read())
        except RuntimeError:
            settings.append("cannot be read")
    return [*settings, cudnn.benchmark]


@pytest.mark.parametrize(
    "setting",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: set_conv_tf32(False),
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
    ],
    ids=["nothing", "products", "convolutions", "benchmark"],
)
def test_a_run_on_a_gpu_starts_with_the_default_precision_of_torch(setting: Callable[[], None]) -> None:
    try:
        setting()
        before = precision_settings()
        with _precision():
            assert precision_settings() == ["ieee", "tf32", "tf32", "highest", True, False]
            torch.set_float32_matmul_precision("medium")
            set_conv_tf32(False)
            torch.backends.cudnn.benchmark = True
        assert precision_settings() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        set_conv_tf32(True)
        set_matmul_precision("none")
        torch.backends.cudnn.benchmark = False


def test_a_precision_of_the_new_interface_is_restored() -> None:
    try:
        set_matmul_precision("tf32")
        with _precision():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")
        set_matmul_precision("none")


def test_reduce_fast_does_not_require_deterministic_operators() -> None:
    assert fanwise.run(lambda run: torch.are_deterministic_algorithms_enabled(), devices="cpu")
    assert not fanwise.run(lambda run: torch.are_deterministic_algorithms_enabled(), devices="cpu", reduce="fast")
