"""Fixtures of tests with real processes: a pool of two CPUs for each module, a gate, and a module with a thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import Gate

from fanwise.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(cpus=2, seed=11) as pool:
        pool.submit(int).result(within_s=60)  # starts the processes
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as gate:
        yield gate


@pytest.fixture(scope="module")
def unforkable_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a module that starts a thread, so that a process that has imported it cannot be forked."""
    folder = tmp_path_factory.mktemp("modules")
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (folder / "fanwise_test_unforkable.py").write_text(f"import threading\n{thread}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "fanwise_test_unforkable"
