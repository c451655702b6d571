"""A Ray cluster for the tests of this folder that ask for one; they are skipped where Ray is not installed."""

import importlib.util
import os
from collections.abc import Iterator

import pytest
from with_ray import ENVIRONMENT, RayCluster


@pytest.fixture(scope="session")
def ray_environment() -> Iterator[None]:
    """Set the environment variables of a test cluster."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    yield
    for name in ENVIRONMENT:
        os.environ.pop(name)
        os.environ.update({name: before[name]} if name in before else {})


@pytest.fixture(scope="session")
def cluster(ray_environment: None) -> Iterator[RayCluster]:
    """One node of two CPUs; a test that adds another removes it again."""
    with RayCluster(cpus=2) as cluster:
        yield cluster
