"""What all tests share: nothing is left behind, Hypothesis explores anew, a failing order can be repeated."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fanwise.testing.programs import LoadedInterpreter

pytest_plugins = ["fanwise.testing.hygiene"]

ROOT = Path(__file__).resolve().parent.parent

# What is collected stays, and so do the libraries that it imports: `pytest_collection_finish` ends this.
gc.disable()

# What takes longest begins first, so that no process is left with one of these when the others have ended.
LONG = (
    "tests/docs/",
    "tests/examples/",
    "tests/pool/test_orphans.py",
    "tests/rpc/test_group_processes.py",
    "tests/rpc/test_two_hosts.py",
    "tests/tensor/test_standard_values.py",
    "tests/tensor/test_tensor_exchange.py",
)

# No deadline: speed is measured in benchmarks/. Not derandomised, in CI neither: a new example is worth finding
# wherever it turns up, and the printed blob repeats it. What failed is kept in .hypothesis and tried first next time.
settings.register_profile("fanwise", deadline=None, print_blob=True)
settings.load_profile("fanwise")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def library(repository: Path) -> dict[str, str]:
    """The source of the library: text by path below src/fanwise."""
    folder = repository / "src" / "fanwise"
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.py"))}


@pytest.fixture(scope="module")
def torch_loaded() -> Iterator[LoadedInterpreter]:
    """Runs programs that use torch: loading it, and what its first optimizer loads, takes longer than most of them."""
    with LoadedInterpreter("torch", "torch._dynamo") as loaded:
        yield loaded


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first. All else stays in the random order that it has by now."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of all later garbage collections: with three engines each takes a second else."""
    gc.enable()
    gc.collect()
    gc.freeze()
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # several processes test at once: threads would wait for each other, spinning


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say at the end how to run a failing order again; the header with the seed is far above by then."""
    seed = getattr(config.option, "randomly_seed", None)
    if seed is not None and (terminalreporter.stats.get("failed") or terminalreporter.stats.get("error")):
        terminalreporter.write_line(f"the same order again: make test ARGS=--randomly-seed={seed}")
