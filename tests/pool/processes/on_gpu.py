"""A program with cases of jobs and trials that share a real GPU. It prints the names of cases that pass.

    python on_gpu.py [NAME ...]

Only the jobs use CUDA.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.parallel import Run
from fanwise.pool import Pool
from fanwise.pool.mps import PROGRAM
from fanwise.testing import within
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform

LIMIT_S = 120.0
SURVIVES_S = 5.0


# -- functions of jobs -------------------------------------------------------------------------------------------------


def has_room(share: float) -> bool:
    """Return whether this process can allocate a share of its GPU's memory and compute on it."""
    size_bytes = int(share * torch.cuda.get_device_properties(0).total_memory)
    try:
        x = torch.zeros(size_bytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return False
    x[-1] = 3
    return int(x[-1]) == 3


def wait_for_processes(folder: Path, number: int, count: int) -> None:
    """Block until `count` processes have run a kernel and hold memory at the same time."""
    tensor = torch.ones(1 << 20, device="cuda")
    assert float(tensor.sum()) == 1 << 20
    (folder / str(number)).write_text(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']} {torch.cuda.device_count()}")
    within(LIMIT_S, lambda: len(list(folder.iterdir())) >= count, f"{count} processes are on the GPU at once")


def written_lines(folder: Path) -> list[list[str]]:
    return [path.read_text().split() for path in sorted(folder.iterdir())]


def objective(place: str, x: float) -> None:
    folder = Path(place)
    wait_for_processes(folder, os.getpid(), 2)
    report(loss=x, fits=float(has_room(0.3)), overflows=float(has_room(0.6)))


def context_of_process() -> tuple[int, bool]:
    was_there = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's
    torch.ones(3, device="cuda").sum().item()
    return os.getpid(), was_there


def dies_with_memory(share: float) -> None:
    assert has_room(share)
    memory = torch.zeros(
        int(share * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda"
    )
    os.kill(os.getpid(), signal.SIGKILL)
    del memory


def visible_gpus() -> tuple[bool, int, str]:
    return torch.cuda.is_available(), torch.cuda.device_count(), os.environ["CUDA_VISIBLE_DEVICES"]


def mps_variables(folder: Path, number: int) -> dict[str, str]:
    wait_for_processes(folder, number, 2)
    within(LIMIT_S, (folder / "continue").exists, "it may continue")
    return {name: value for name, value in os.environ.items() if name.startswith("CUDA_MPS")}


def ask_mps(pipe: Path, line: str) -> list[str]:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    completed = subprocess.run(
        [PROGRAM], input=f"{line}\n", env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    print(f"{line}: {completed.stdout}{completed.stderr}")
    return completed.stdout.split()


def cause_a_fault(folder: Path) -> str:
    """Run a kernel that traps while another process computes. Return in the second attempt."""
    if (folder / "0").exists():
        torch.ones(3, device="cuda").sum().item()
        return "second attempt"
    wait_for_processes(folder, 0, 2)
    torch.zeros(3, device="cuda")[torch.tensor([10], device="cuda")].sum().item()
    return "no fault"


def compute_until_a_fault(folder: Path) -> str:
    """Compute until an error. Return in the second attempt."""
    if (folder / "1").exists():
        torch.ones(3, device="cuda").sum().item()
        return "second attempt"
    wait_for_processes(folder, 1, 2)
    until_s = time.monotonic() + SURVIVES_S
    while time.monotonic() < until_s:
        torch.ones(1 << 20, device="cuda").sum().item()
    return "no fault"


def trained_on(run: Run) -> str:
    model = torch.nn.Linear(3, 1).to(run.device)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x, y: (m(x) - y).square().mean(1))
    loss = step((torch.ones(8, 3), torch.ones(8, 1)))
    return f"{loss.device} {run.device}"


def run_in_a_job() -> str:
    return fanwise.run(trained_on, progress=False)


# -- cases -------------------------------------------------------------------------------------------------------------


def two_trials_on_half_a_gpu_each_run_side_by_side(folder: Path) -> None:
    with Pool() as pool:
        gpu = pool.machine.gpus[0].visible
    with Pool(gpus=[gpu]) as one_gpu:
        tuner = Tuner(
            objective,
            {"place": str(folder), "x": uniform(0, 1)},
            FIFO(metric="loss", random_seed=1),
            StoppingCriterion(max_num_trials_completed=2),
            devices_per_trial=0.5,
            pool=one_gpu,
            quiet=True,
        )
        assert tuner.settings.n_workers == 2
        results = tuner.run().results
    assert sorted(results["fits"]) == [1.0, 1.0], "0.3 of the memory, with half of the GPU"
    assert sorted(results["overflows"]) == [0.0, 0.0], "0.6 of the memory, with half of the GPU"
    pids, gpus, counts = zip(*written_lines(folder), strict=True)
    assert len(set(pids)) == 2 and gpus == (gpu, gpu) and counts == ("1", "1")


def a_reused_process_keeps_its_context(folder: Path) -> None:
    with Pool() as pool:
        contexts = [pool.needs(gpus=1, reuse=True).submit(context_of_process).result(LIMIT_S) for _ in range(2)]
        assert contexts[0][0] == contexts[1][0] and [was_there for _, was_there in contexts] == [False, True]
        fresh = [pool.needs(gpus=1).submit(context_of_process).result(LIMIT_S) for _ in range(2)]
        assert fresh[0][0] != fresh[1][0] and not fresh[0][1] and not fresh[1][1]


def memory_of_a_killed_job_comes_back(folder: Path) -> None:
    with Pool() as pool:
        for _ in range(2):
            with contextlib.suppress(WorkerLostError):
                pool.needs(gpus=1).submit(dies_with_memory, 0.6).result(LIMIT_S)
                raise AssertionError("it was to be killed")
        assert pool.needs(gpus=1).submit(has_room, 0.6).result(LIMIT_S)


def without_a_lease_no_gpu_is_seen(folder: Path) -> None:
    with Pool() as pool:
        assert pool.submit(visible_gpus).result(LIMIT_S) == (False, 0, "")
        is_there, count, visible = pool.needs(gpus=1).submit(visible_gpus).result(LIMIT_S)
        assert is_there and count == 1 and visible in {gpu.visible for gpu in pool.machine.gpus}


def a_run_in_a_job_is_on_its_gpu(folder: Path) -> None:
    with Pool() as pool:
        for gpus in (1, 0.5):
            assert pool.needs(gpus=gpus).submit(run_in_a_job).result(LIMIT_S) == "cuda:0 cuda:0"


def two_jobs_on_half_a_gpu_each_are_clients_of_the_mps_server_of_the_pool(folder: Path) -> None:
    with Pool() as every:
        gpu = every.machine.gpus[0]
    with Pool(gpus=[gpu.visible]) as pool:
        jobs = [pool.needs(gpus=0.5).submit(mps_variables, folder, number) for number in range(2)]
        pipe = pool._life.folder / "mps1"
        within(LIMIT_S, lambda: len(list(folder.iterdir())) == 2, "both compute")
        servers, clients = ask_mps(pipe, "get_server_list"), ask_mps(pipe, "ps")
        assert len(servers) == 1 and all(pid in clients for pid, _, _ in written_lines(folder))
        (folder / "continue").touch()
        half = f"0={gpu.memory_bytes // 2 >> 20}M"
        wanted = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": half}
        assert [job.result(LIMIT_S) for job in jobs] == [wanted] * 2
    assert not pipe.parent.exists() and not Path(f"/proc/{servers[0]}").exists()


def jobs_that_share_a_gpu_are_repeated_after_a_fault(folder: Path) -> None:
    with Pool() as every:
        gpu = every.machine.gpus[0].visible
    with Pool(gpus=[gpu]) as pool:
        needs = pool.needs(gpus=0.5)
        jobs = [needs.submit(cause_a_fault, folder), needs.submit(compute_until_a_fault, folder)]
        results = [job.result(LIMIT_S) for job in jobs]
        print(results)
        assert results[0] == "second attempt"


CASES: dict[str, Callable[[Path], None]] = {
    case.__name__: case
    for case in (
        two_trials_on_half_a_gpu_each_run_side_by_side,
        a_reused_process_keeps_its_context,
        memory_of_a_killed_job_comes_back,
        without_a_lease_no_gpu_is_seen,
        a_run_in_a_job_is_on_its_gpu,
        two_jobs_on_half_a_gpu_each_are_clients_of_the_mps_server_of_the_pool,
        jobs_that_share_a_gpu_are_repeated_after_a_fault,
    )
}


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as place:
            CASES[name](Path(place))
        print(name, flush=True)
