"""Which GPUs a run gets: of the machine, of a lease, of a launcher; and what a run sets for them and puts back."""

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
    ("wanted", "there", "expected"),
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
def test_devices_are_found(wanted: Devices, there: int, expected: tuple[torch.device, ...]) -> None:
    assert devices_of(wanted, there) == expected


@pytest.mark.parametrize(
    ("wanted", "there", "said"),
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
def test_devices_that_cannot_be_are_refused_with_what_there_is(wanted: Devices, there: int, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        devices_of(wanted, there)
    assert said in str(raised.value)


def test_of_a_pool_gpus_are_leased_by_number_or_all_of_them_by_name() -> None:
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
    ("rank", "local_rank", "devices", "there", "expected"),
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
def test_a_launched_process_has_a_gpu_of_its_own(
    rank: int, local_rank: int | None, devices: Devices, there: int, expected: str
) -> None:
    assert device_of(launched(rank, local_rank), devices, there) == torch.device(expected)


def test_more_launched_processes_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="LOCAL_RANK=2 and 2 GPUs: each process of a run needs a GPU of its own"):
        device_of(launched(2, 2), "auto", 2)
    with pytest.raises(ValueError, match="there is no device 'cuda:0'; this machine has: cpu"):
        device_of(launched(2, 2), "cuda", 0)
    check_gpus([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    with pytest.raises(ValueError, match="processes 0 and 2 of 3 are on the same GPU, GPU-1 of a; each needs its own"):
        check_gpus([("a", "GPU-1"), ("a", "GPU-2"), ("a", "GPU-1")])


def test_the_workspace_of_cublas_is_one_with_which_results_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
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


def of_products(value: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = value


def of_convolutions(value: bool) -> None:
    torch.backends.cudnn.allow_tf32 = value


def seen() -> list[object]:
    """What the older form says, where it can be read, and the newer one."""
    cudnn: Any = torch.backends.cudnn  # Any: torch has annotated the older form only
    found: list[object] = [each.fp32_precision for each in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    for older in (torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32):
        try:
            found.append(older())
        except RuntimeError:
            found.append("cannot be read")
    return [*found, cudnn.benchmark]


@pytest.mark.parametrize(
    "setting",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: of_convolutions(False),
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
    ],
    ids=["nothing", "products", "convolutions", "benchmark"],
)
def test_a_run_on_a_gpu_begins_with_the_precision_that_torch_begins_with(setting: Callable[[], None]) -> None:
    try:
        setting()
        before = seen()
        with _precision():
            assert seen() == ["ieee", "tf32", "tf32", "highest", True, False]
            torch.set_float32_matmul_precision("medium")
            of_convolutions(False)
            torch.backends.cudnn.benchmark = True
        assert seen() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        of_convolutions(True)
        of_products("none")
        torch.backends.cudnn.benchmark = False


def test_the_newer_form_of_a_precision_alone_is_put_back_too() -> None:
    try:
        of_products("tf32")
        with _precision():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")
        of_products("none")


def test_a_run_that_may_be_fast_leaves_the_choice_of_operators_to_the_program() -> None:
    assert fanwise.run(lambda run: torch.are_deterministic_algorithms_enabled(), devices="cpu")
    assert not fanwise.run(lambda run: torch.are_deterministic_algorithms_enabled(), devices="cpu", reduce="fast")
