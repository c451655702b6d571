"""The lease of a GPU is returned when the driver has released its memory. The event loop does not wait for NVML."""

import threading
from collections.abc import Iterator

import pytest

from fanwise.links.hub import Hub
from fanwise.pool import gpu_release
from fanwise.pool.gpu_release import GpuReservation
from fanwise.pool.leases import GpuShare, Lease


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="test")
    hub.start()
    yield hub
    hub.close()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """NVML lists process 17 on the GPU, and answers when the event is set."""
    answers = threading.Event()

    def pids(visible: str) -> set[int]:
        answers.wait()
        return {17}

    monkeypatch.setattr(gpu_release, "gpu_pids", pids)
    monkeypatch.setattr(gpu_release, "gpu_memory_used", lambda visible: 0)
    yield answers
    answers.set()


def reservation_of(pid: int) -> GpuReservation:
    gpus = GpuReservation(Lease(1, (GpuShare("GPU-aa11", 1.0),), 0))
    gpus.pids.add(pid)
    return gpus


def on_hub(hub: Hub, gpus: GpuReservation) -> threading.Event:
    free = threading.Event()
    hub.call_soon(lambda: gpus.on_free(hub, "job 1", free.set))
    return free


def test_the_hub_does_not_wait_for_nvml_before_the_lease_is_returned(hub: Hub, nvml: threading.Event) -> None:
    free, turn = on_hub(hub, reservation_of(18)), threading.Event()
    hub.call_soon(turn.set)
    assert turn.wait(10) and not free.is_set()
    nvml.set()
    assert free.wait(10)


def test_gpus_are_released_with_a_warning_if_nvml_never_answers(
    hub: Hub, nvml: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_release, "_RELEASE_S", 0.0)
    monkeypatch.setattr(gpu_release, "_ANSWER_S", 0.0)
    assert on_hub(hub, reservation_of(18)).wait(10)
    assert "NVML does not answer" in caplog.text


def test_gpus_are_released_with_a_warning_if_the_process_stays_listed(
    hub: Hub, nvml: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_release, "_RELEASE_S", 0.0)
    nvml.set()
    assert on_hub(hub, reservation_of(17)).wait(10)
    assert "process 17 is still listed on GPU GPU-aa11" in caplog.text


def test_a_lease_without_gpus_is_returned_at_once(hub: Hub, nvml: threading.Event) -> None:
    done: list[bool] = []
    GpuReservation(Lease(1, (), 0)).on_free(hub, "job 1", lambda: done.append(True))
    assert done == [True]
