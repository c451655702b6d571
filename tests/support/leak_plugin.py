"""A pytest plug-in that fails each test which leaves threads, processes, descriptors, files or settings behind.

It is active for every test, without exceptions. Leaks have `leak_patience_s` (an ini option, 2 s) to end by themselves.
Then they are reported, and processes, environment and current folder are restored, so that one careless test is one
error.

Each run has its own folder for temporary files (TMPDIR), which is deleted at the end, so that other runs on the machine
are not mistaken for leaks. A fixture of wider scope may keep what it starts, because it starts before the test.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from leaks import Snapshot
from process_tree import MARKER

from fanwise.pool.backend import release

_numbers = itertools.count(1)
_temporary_folder = pytest.StashKey[str]()
_environment_before = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leak_patience_s", "time in seconds that leaks of a test have to end by themselves", default="2.0")


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder for temporary files. pytest's own, which are kept for reading, stay in their usual place."""
    usual = tempfile.gettempdir()
    config.stash[_environment_before] = dict(os.environ)
    config.stash[_temporary_folder] = tempfile.mkdtemp(prefix="fw-")  # short: Unix socket paths have 107 bytes
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    os.environ["TMPDIR"] = tempfile.tempdir = config.stash[_temporary_folder]


def pytest_unconfigure(config: pytest.Config) -> None:
    before = config.stash[_environment_before]
    for key in ("TMPDIR", "PYTEST_DEBUG_TEMPROOT"):
        os.environ.pop(key, None)
        os.environ.update({key: before[key]} if key in before else {})
    tempfile.tempdir = None
    shutil.rmtree(config.stash[_temporary_folder], ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_is_left(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fail a test that leaks."""
    patience_s = float(pytestconfig.getini("leak_patience_s"))
    marker = f"{os.getpid()}-{next(_numbers)}"
    outer = os.environ.get(MARKER)
    os.environ[MARKER] = marker
    before = Snapshot.take(marker)
    yield
    release()
    leaks = before.leaks(patience_s)
    if leaks:
        before.put_back(leaks)
    del os.environ[MARKER]
    os.environ.update({MARKER: outer} if outer is not None else {})
    if leaks:
        pytest.fail(f"left behind by this test, {patience_s} s later:\n" + "\n".join(map(str, leaks)), pytrace=False)
