"""Simulated workers for each test that asks for them."""

from collections.abc import Iterator

import pytest
from simulated_workers import World


@pytest.fixture
def world() -> Iterator[World]:
    """Four simulated workers, ended after the test."""
    made = World()
    try:
        yield made
    finally:
        made.close()
