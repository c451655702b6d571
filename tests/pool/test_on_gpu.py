"""Jobs and trials that share a real GPU, each case in a process of its own; on_gpu.py has what is done there."""

from pathlib import Path

import pytest

from fanwise.testing.programs import run_program

PROGRAM = Path(__file__).with_name("on_gpu.py")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        "two_trials_on_half_a_gpu_each_run_side_by_side",
        "a_third_half_waits",
        "a_reused_process_keeps_its_context",
        "memory_of_a_killed_job_comes_back",
        "without_a_lease_no_gpu_is_seen",
        "a_run_in_a_job_is_on_its_gpu",
    ],
)
def test_on_a_gpu(case: str, tmp_path: Path) -> None:
    done = run_program([str(PROGRAM), case], folder=tmp_path, limit_s=400.0)
    assert done.status == 0 and done.out.split()[-1] == case, done.said
