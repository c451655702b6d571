"""What the benchmarks have in common, where a mistake would be in their tables."""

import subprocess
import sys
from pathlib import Path

import numpy as np

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_peak_of_a_process_is_not_that_of_the_one_which_started_it() -> None:
    ours = np.ones(64 << 17)  # 64 MiB
    program = "from measuring import peak_mib; print(peak_mib())"
    child = subprocess.run([sys.executable, "-c", program], cwd=BENCHMARKS, check=True, capture_output=True, text=True)
    assert 1 < float(child.stdout) < 64 <= ours.nbytes / 2**20
