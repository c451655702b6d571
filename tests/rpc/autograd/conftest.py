"""Simulated workers."""

from collections.abc import Iterator

import pytest
from simulated_workers import World


@pytest.fixture
def world() -> Iterator[World]:
    """Four simulated workers, ended after the test."""
    workers = World()
    try:
        yield workers
    finally:
        workers.close()
