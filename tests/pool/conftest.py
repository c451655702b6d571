"""What the tests of jobs in real processes share: a pool of two CPUs for each module, and a gate to hold a job at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import Gate

from fanwise.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(cpus=2, seed=11) as pool:
        pool.submit(int).result(within_s=60)  # its processes are there before the test begins
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as gate:
        yield gate
