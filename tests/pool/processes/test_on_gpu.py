"""Jobs and trials that share a real GPU: the cases of on_gpu.py, each in a separate process."""

import shutil
from pathlib import Path

import pytest
from program_runs import run_program

from fanwise.pool import mps

PROGRAM = Path(__file__).with_name("on_gpu.py")

needs_mps = pytest.mark.skipif(shutil.which(mps.PROGRAM) is None, reason=f"{mps.PROGRAM} is not on PATH")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        "two_trials_on_half_a_gpu_each_run_side_by_side",
        "a_reused_process_keeps_its_context",
        "memory_of_a_killed_job_comes_back",
        "without_a_lease_no_gpu_is_seen",
        "a_run_in_a_job_is_on_its_gpu",
        pytest.param("two_jobs_on_half_a_gpu_each_are_clients_of_the_mps_server_of_the_pool", marks=needs_mps),
        pytest.param("jobs_that_share_a_gpu_are_repeated_after_a_fault", marks=needs_mps),
    ],
)
def test_on_a_gpu(case: str, tmp_path: Path) -> None:
    done = run_program([str(PROGRAM), case], folder=tmp_path, limit_s=400.0)
    assert done.status == 0 and done.out.split()[-1] == case, done.said
