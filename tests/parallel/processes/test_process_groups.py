"""Runs of this machine whose ranks share a process group, as GPUs do. Here they are CPU ranks over Gloo."""

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from classification import losses, same
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import TrialStopped, WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.comm.torch_group import is_connection_error
from fanwise.parallel.launch.local import LocalSupervisor
from fanwise.parallel.launch.settings import Settings, default_backend
from fanwise.parallel.progress import Display
from fanwise.parallel.run import run_attempts
from fanwise.pool import Pool

# N: samples, B: samples of a global batch
N, B, SHARDS, EPOCHS = 53, 16, 6, 2
X = torch.randn(N, 1, 6, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2))

During = Callable[[Run, int], None]  # is called before each step with its number


class Net(nn.Module):
    """With buffers, dropout, a memory format, and parameters without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(64, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub forgets this form

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.frozen(self.head(self.body(x).flatten(1)))
        return result


def nothing(run: Run, step: int) -> None: ...


def train(run: Run, during: During = nothing, **options: Any) -> tuple[list[Tensor], int]:  # Any: of run.step
    """Return all tensors of the model, and the number of processes. Saves after each step if a folder is given."""
    folder = options.pop("folder", None)
    model = Net()
    step = run.step(model, torch.optim.Adam(model.parameters(), 0.01), losses, **options)
    for _ in run.epochs(EPOCHS):
        for batch in run.batches((X, Y), B):
            during(run, step.batches)
            run.report(loss=float(step(batch)), step=step.batches)
            if folder is not None:
                run.save(folder / f"{step.batches}.pt")
    return [tensor.detach() for tensor in model.state_dict().values()], len(run.gather(None))


def settings(processes: int, **given: Any) -> Settings:
    return Settings(("cpu",) * processes, SHARDS, backend="gloo", **given)


def over_gloo(
    pool: Pool, train: Callable[[Run], Any], processes: int = 2, restarts: int = 0, **given: Any
) -> Any:  # Any: the result
    return run_attempts(
        lambda each: LocalSupervisor(pool, train, each, Display(False)), settings(processes, **given), restarts
    )


@pytest.fixture(scope="module")
def expected() -> list[Tensor]:
    return fanwise.run(train, devices="cpu", shards=SHARDS, progress=False)[0]


def once(path: Path, rank: int, step: int, does: Callable[[], Any], run: Run, now: int) -> None:
    """What one rank does before one step, once in all attempts."""
    if (run.rank, now) == (rank, step) and not path.exists():
        path.touch()
        does()


def killed(path: Path, rank: int = 1, step: int = 5) -> During:
    return functools.partial(once, path, rank, step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def always_killed(run: Run, step: int) -> None:
    if run.rank == 1 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_bits_are_those_of_one_device(processes: int, pool: Pool, expected: list[Tensor]) -> None:
    tensors, size = over_gloo(pool, train, processes)
    assert size == processes and same(tensors, expected)


def test_fast_sums_of_two_processes_are_those_of_shared_memory(pool: Pool) -> None:
    direct, _ = fanwise.run(train, devices=["cpu"] * 2, shards=SHARDS, reduce="fast", pool=pool)
    assert same(over_gloo(pool, train, reduce="fast")[0], direct)


def test_a_lack_of_memory_in_a_collective_operation_keeps_its_type(pool: Pool) -> None:
    def lacks(run: Run, step: int) -> None:
        if (run.rank, step) == (1, 1):

            def fails(*args: Any, **options: Any) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

            torch.distributed.all_to_all_single = fails  # in the process of the rank, which ends after it

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        over_gloo(pool, functools.partial(train, during=lacks), restarts=1)


@pytest.mark.parametrize(
    ("error", "is_connection"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shape '[3]' is invalid for input of size 4"), False),
        (torch.distributed.DistBackendError("NCCL error in: ..."), True),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1"), True),
        (RuntimeError("Timed out waiting 1000ms for recv operation to complete"), True),
    ],
    ids=str,
)
def test_only_errors_of_the_connection_are_taken_for_a_lost_process(error: RuntimeError, is_connection: bool) -> None:
    assert is_connection_error(error) == is_connection


def test_a_killed_rank_ends_the_run_and_is_named(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match=r"(?s)rank 1 of 3 .*a process group does not survive"):
        over_gloo(pool, functools.partial(train, during=killed(tmp_path / "killed")), 3)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("saves", [True, False], ids=["from a checkpoint", "from the beginning"])
def test_a_restart_after_a_kill_has_the_same_bits(
    rank: int, saves: bool, pool: Pool, tmp_path: Path, expected: list[Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "checkpoints" if saves else None
    kill, steps = killed(tmp_path / "killed", rank), tmp_path / "steps"

    def during(run: Run, step: int) -> None:
        if run.rank == 0:
            with steps.open("a") as file:
                file.write(f"{step} ")
        run.barrier()  # rank 0 has written the step before rank 1 is killed
        kill(run, step)

    tensors, size = over_gloo(pool, functools.partial(train, during=during, folder=folder), restarts=1)
    assert size == 2 and same(tensors, expected)
    assert steps.read_text().split() == list("012345" + ("567" if saves else "01234567"))
    where = f"from the checkpoint {folder}/5.pt" if saves else "from the beginning"
    assert f"The run starts again {where}; no restarts left." in caplog.text
    reports = [text for text in caplog.messages if text.startswith("report outside a tuner")]
    assert len(reports) == EPOCHS * 4, "no report is made twice"


def test_a_loss_beyond_the_restarts_ends_the_run(pool: Pool, tmp_path: Path) -> None:
    training = functools.partial(train, during=always_killed, folder=tmp_path)
    with pytest.raises(WorkerLostError, match=r"(?s)rank 1 of 2 .*restarts=1 are used up.*checkpoint .*/2\.pt"):
        over_gloo(pool, training, restarts=1)


def test_a_hanging_rank_is_named_and_a_restart_continues(pool: Pool, tmp_path: Path, expected: list[Tensor]) -> None:
    stops = functools.partial(once, tmp_path / "stopped", 1, 4, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    training = functools.partial(train, during=stops, folder=tmp_path)
    with pytest.raises(WorkerLostError, match=r"(?s)rank 1 of 2 .* hangs: .*It is stopped by a signal.*step_timeout_s"):
        over_gloo(pool, training, step_timeout_s=1.0)
    (tmp_path / "stopped").unlink()
    assert same(over_gloo(pool, training, step_timeout_s=1.0, restarts=1)[0], expected)


def test_a_stopped_run_is_stopped_in_all_ranks(pool: Pool) -> None:
    def stops(run: Run, step: int) -> None:
        if (run.rank, step) == (1, 2):
            raise TrialStopped("enough")

    with pytest.raises(TrialStopped):
        over_gloo(pool, functools.partial(train, during=stops))


def test_a_restart_on_cpus_of_one_machine_follows_a_loss_that_ends_the_run(
    pool: Pool, tmp_path: Path, expected: list[Tensor]
) -> None:
    training = functools.partial(train, during=killed(tmp_path / "killed"), folder=tmp_path)
    tensors, size = fanwise.run(training, devices=2, shards=SHARDS, on_loss="stop", restarts=1, pool=pool)
    assert size == 2 and same(tensors, expected)


def test_gpus_use_nccl_if_each_process_has_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert default_backend("cuda", 2, (("GPU-1", "cuda:0"),)) == "nccl"
    assert default_backend("cuda", 2, (("MIG-1", "cuda:0"),)) == "gloo"
    assert default_backend("cuda", 1) == default_backend("cpu", 4) == "shared memory"
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert default_backend("cuda", 2) == "gloo"


def test_a_run_inside_a_rank_is_a_run_of_its_own(pool: Pool) -> None:
    def sizes(run: Run) -> list[int]:
        return run.gather(fanwise.run(lambda inner: inner.world_size, devices="cpu", progress=False) + run.world_size)

    assert over_gloo(pool, sizes, 2) == [3, 3]
