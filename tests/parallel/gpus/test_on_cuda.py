"""Training on real GPUs: equal bits on several GPUs, as a plain loop and after kills; no step waits for the GPU."""

import json
import os
from pathlib import Path

import pytest
import torch
from program_runs import run_program

PROGRAM = Path(__file__).with_name("on_cuda.py")
GUESTS = Path(__file__).with_name("on_cuda_as_guests.py")
# The GPUs before the fixtures of this folder hide them.
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))


@pytest.mark.gpu
def test_bits_on_gpus(tmp_path: Path) -> None:
    assert len(checked(tmp_path)) >= 32


@pytest.mark.soak
def test_the_program_for_gpus_works_on_cpus(tmp_path: Path) -> None:
    assert len(checked(tmp_path, "cpu")) == 23


def checked(folder: Path, *arguments: str) -> dict[str, str]:
    """Run the program and return the names of its checks, all of which must hold."""
    environment = {"CUDA_VISIBLE_DEVICES": VISIBLE}
    done = run_program([str(PROGRAM), *arguments], folder=folder, environment=environment, limit_s=800.0)
    assert done.status == 0, done.said
    errors: dict[str, str] = json.loads(done.out)
    assert set(errors.values()) == {""}, "\n".join(f"{name}: {error}" for name, error in errors.items() if error)
    return errors


@pytest.mark.gpu(2)
def test_bits_under_a_launcher(tmp_path: Path) -> None:
    done = run_program(
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(GUESTS)],
        folder=tmp_path,
        environment={"CUDA_VISIBLE_DEVICES": VISIBLE},
        limit_s=600.0,
    )
    assert done.status == 0, done.said
