"""Arrays on a real GPU, each case in a process of its own; on_gpu.py has what is done there."""

import importlib.util
from pathlib import Path

import pytest
from program_runs import run_program

PROGRAM = Path(__file__).with_name("on_gpu.py")
CASES = (
    "goes_to_numpy_and_back",
    "any_layout_goes",
    "a_copy_is_a_copy",
    "devices_are_named_and_moved_between",
    "exact_numbers_are_those_of_the_cpu",
    "the_wire_carries_it",
    "jax_takes_it_and_gives_it_back",
    "jax_takes_any_layout",
    "jax_shares_the_memory_when_asked",
    "jax_refuses_what_it_would_change",
    "jax_keeps_what_torch_writes_over",
    "jax_deletes_what_torch_has_taken",
)
# JAX takes most of the memory else, before torch has any.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case: str, tmp_path: Path) -> None:
    if case.startswith("jax") and importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    done = run_program([str(PROGRAM), "cuda:0", case], folder=tmp_path, environment=ENVIRONMENT, limit_s=300.0)
    assert done.status == 0 and done.out == f"{case}\n", done.said


@pytest.mark.soak  # it tests the program: on a CPU all of this has tests of its own
def test_the_gpu_cases_hold_on_a_cpu(tmp_path: Path) -> None:
    done = run_program([str(PROGRAM), "cpu"], folder=tmp_path)
    assert done.status == 0 and done.out.split() == list(CASES), done.said
