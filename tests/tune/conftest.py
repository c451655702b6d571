"""What tests of the tuner share: a pool, which costs half a second to begin."""

from collections.abc import Iterator

import pytest

from fanwise.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One pool for all searches here: its supervisor and warm process are there before the first test begins."""
    with Pool(cpus=4, seed=0) as pool:
        pool.submit(int).result(within_s=60)
        yield pool
