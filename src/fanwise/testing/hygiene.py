"""A pytest plugin: after each test nothing may be left, or the test is an error that says what.

Load it in `conftest.py` with `pytest_plugins = ["fanwise.testing.hygiene"]`. Always on, for every test, with no list
of exceptions; what is seen is told in `leaks.py`. What a test leaves has `leak_patience_s` (2 s; set it in pytest's
settings) to go by itself. Then it is reported, and processes, environment and current folder are put back, so that one
careless test makes one error.

Each run gets a temporary folder of its own (TMPDIR), which ends with the run: other runs on the machine are
not mistaken for leaks. A fixture of wider scope may keep what it starts: it is there before the test begins.

This is the only file of the package that imports pytest.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from ..pool.backend import release
from .leaks import Snapshot
from .processes import MARKER

_numbers = itertools.count(1)
_own_folder = pytest.StashKey[str]()
_environment_before = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leak_patience_s", "how long what a test leaves may take to go, in seconds", default="2.0")


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder for temporary files. pytest's own, which it keeps for reading, stay where they were."""
    usual = tempfile.gettempdir()
    config.stash[_environment_before] = dict(os.environ)
    config.stash[_own_folder] = tempfile.mkdtemp(prefix="fw-")  # short: paths of Unix sockets end at 107 bytes
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    os.environ["TMPDIR"] = tempfile.tempdir = config.stash[_own_folder]


def pytest_unconfigure(config: pytest.Config) -> None:
    before = config.stash[_environment_before]
    for key in ("TMPDIR", "PYTEST_DEBUG_TEMPROOT"):
        os.environ.pop(key, None)
        os.environ.update({key: before[key]} if key in before else {})
    tempfile.tempdir = None
    shutil.rmtree(config.stash[_own_folder], ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_is_left(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fails a test that leaves threads, processes, descriptors, files or changed settings behind."""
    patience_s = float(pytestconfig.getini("leak_patience_s"))
    marker = f"{os.getpid()}-{next(_numbers)}"
    outer = os.environ.get(MARKER)
    os.environ[MARKER] = marker
    before = Snapshot.take(marker)
    yield
    release()
    left = before.leaks(patience_s)
    if left:
        before.put_back(left)
    del os.environ[MARKER]
    os.environ.update({MARKER: outer} if outer is not None else {})
    if left:
        pytest.fail(f"left behind by this test, {patience_s} s later:\n" + "\n".join(map(str, left)), pytrace=False)
