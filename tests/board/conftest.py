"""Shared fixtures: each test has its own runtime folder, so that it sees no other training runs."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, as the path of a socket must be."""
    folder = Path(tempfile.mkdtemp(prefix="r-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(folder))
    yield folder / "fanwise"
    shutil.rmtree(folder)
