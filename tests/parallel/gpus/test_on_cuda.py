"""Training on real GPUs: the bits of one on several, of a plain loop, after kills; no step waits for the GPU."""

import json
import os
from pathlib import Path

import pytest
import torch

from fanwise.testing.programs import run_program

PROGRAM = Path(__file__).with_name("on_cuda.py")
GUESTS = Path(__file__).with_name("on_cuda_as_guests.py")
# As it was before the tests of this folder were told that there are no GPUs.
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@needs_cuda
def test_bits_on_gpus(tmp_path: Path) -> None:
    done = run_program([str(PROGRAM)], folder=tmp_path, environment={"CUDA_VISIBLE_DEVICES": VISIBLE}, limit_s=600.0)
    assert done.status == 0, done.said
    found = json.loads(done.out)
    assert len(found) >= 23
    assert [name for name, is_so in found.items() if not is_so] == []


@needs_two
def test_bits_under_a_launcher(tmp_path: Path) -> None:
    done = run_program(
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(GUESTS)],
        folder=tmp_path,
        environment={"CUDA_VISIBLE_DEVICES": VISIBLE},
        limit_s=600.0,
    )
    assert done.status == 0, done.said
