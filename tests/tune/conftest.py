"""Fixtures of the tests of the tuner."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fanwise.pool import Pool


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the experiments, which does not exist at first."""
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Yield a pool for all searches of a module, because starting one takes half a second."""
    with Pool(cpus=4, seed=0) as pool:
        pool.submit(int).result(within_s=60)
        yield pool
