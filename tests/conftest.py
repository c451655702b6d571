"""What all tests share: nothing is left behind, Hypothesis explores anew, a failing order can be repeated."""

import functools
import gc
import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from program_runs import LoadedInterpreter

from fanwise.tensor import namespace

pytest_plugins = ["leak_plugin"]

ROOT = Path(__file__).resolve().parent.parent

# A shell lets what it starts in the background ignore Ctrl-C, and Python keeps to that: tests that press it would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is collected stays, and so do the libraries that it imports: `pytest_collection_finish` ends this.
gc.disable()

# What takes longest begins first, so that no process is left with one of these when the others have ended.
LONG = (
    "tests/docs/test_code_blocks.py",
    "tests/examples/test_worker_examples.py",
    "tests/docs/test_differences.py",
    "tests/examples/test_search_examples.py",
    "tests/docs/",
    "tests/examples/",
    "tests/sources/",
    "tests/board/test_in_a_browser.py",
    "tests/pool/processes/test_orphans.py",
    "tests/rpc/test_rpc_lost_workers.py",
    "tests/rpc/test_two_hosts.py",
    "tests/tensor/test_right_on_every_engine.py",
    "tests/tensor/test_right_or_error.py",
    "tests/tensor/test_standard_values.py",
)

# What computes with TensorFlow: one process runs all of it, and the others never load it.
OF_TENSORFLOW = (
    "tests/docs/test_differences.py",
    "tests/links/test_arrays_of_engines.py",
    "tests/sources/test_arrays.py",
    "tests/tensor/test_adapters.py",
    "tests/tensor/test_gradients.py",
    "tests/tensor/test_gradients_complex.py",
    "tests/tensor/test_gradients_jax.py",
    "tests/tensor/test_gradients_tensorflow.py",
    "tests/tensor/test_keys_at_state_on_engines.py",
    "tests/tensor/test_right_or_error.py",
    "tests/tensor/test_same_beyond_the_standard.py",
    "tests/tensor/test_standard_names.py",
    "tests/tensor/test_standard_values.py",
    "tests/tensor/test_tensor_exchange.py",
    "tests/tensor/test_tensor_wire_engines.py",
)

# No deadline: speed is measured in benchmarks/. Not derandomised, in CI neither: a new example is worth finding
# wherever it turns up, and the printed blob repeats it. What failed is kept in .hypothesis and tried first next time.
# One bug at a time: to look for others takes as long again, in each of the broken versions that a machine must catch.
# Each run looks elsewhere, so few examples a day see much in a week; `make soak` takes the other profile.
settings.register_profile("fanwise", max_examples=30, deadline=None, print_blob=True, report_multiple_bugs=False)
settings.register_profile("soak", settings.get_profile("fanwise"), max_examples=500)
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


@pytest.fixture(scope="session")
def torch_loaded() -> Iterator[LoadedInterpreter]:
    """Runs programs that use torch: loading it, and what its first optimizer loads, takes longer than most of them."""
    with LoadedInterpreter("torch", "torch._dynamo") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def engines_loaded() -> Iterator[LoadedInterpreter]:
    """Runs programs that use JAX or TensorFlow, as far as they are installed."""
    names = ("torch", "torch._dynamo", "jax", "tensorflow")
    with LoadedInterpreter(*(name for name in names if importlib.util.find_spec(name.partition(".")[0]))) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def object_store() -> Iterator[Any]:  # Any: s3fs has no types
    """A client of a server that speaks S3, with a bucket "fanwise". What is started from now on finds it, too."""
    moto = pytest.importorskip("moto.server", reason="needs moto[s3], flask, flask-cors and s3fs")
    s3fs = pytest.importorskip("s3fs", reason="needs moto[s3], flask, flask-cors and s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**told, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
            patch.setenv(name, value)
        store = s3fs.S3FileSystem()
        store.mkdir("fanwise")
        yield store
    server.stop()


@pytest.fixture(autouse=True, scope="module")
def only_what_is_new_is_collected() -> None:
    """What files before this one loaded and compiled is left out of garbage collections: with JAX each takes 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def jax_is_loaded() -> None:
    """JAX, loaded and started before the test begins: both leave variables in the environment."""
    load("jax")
    namespace("jax").ones(1)


@pytest.fixture(scope="session")
def tensorflow_is_loaded() -> None:
    """TensorFlow, loaded before the test begins: that leaves variables in the environment."""
    load("tensorflow")


def load(name: str) -> None:
    """Load an engine, or skip the tests of it; like what collection loads, it is left out of garbage collections."""
    gc.disable()
    pytest.importorskip(name)
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:  # Any: xdist has no types
    """Give each process whole files, and one of them all files of TensorFlow."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class ByLibrary(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "TensorFlow" if file in OF_TENSORFLOW else file

    return ByLibrary(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first, in their order. All else stays in the random order that it has by now.

    What needs more GPUs than there are is skipped.
    """
    items.sort(key=lambda item: next((at for at, of in enumerate(LONG) if item.nodeid.startswith(of)), len(LONG)))
    for item in items:
        if (mark := item.get_closest_marker("gpu")) is not None:
            needed, here = mark.args[0] if mark.args else 1, num_gpus()
            if here < needed:
                item.add_marker(pytest.mark.skip(f"needs {needed} GPU{'s' * (needed > 1)}, and there are {here}"))


@functools.cache
def num_gpus() -> int:
    """Asked of the driver, once: CUDA itself must not be touched by what forks processes that use it."""
    import torch

    return torch.cuda.device_count()


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of all later garbage collections: with three engines each takes a second else."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # with Python's own, (700, 10, 10), collecting takes a twelfth of all time
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # several processes test at once: threads would wait for each other, spinning


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say at the end how to run a failing order again; the header with the seed is far above by then."""
    seed = getattr(config.option, "randomly_seed", None)
    if seed is not None and (terminalreporter.stats.get("failed") or terminalreporter.stats.get("error")):
        terminalreporter.write_line(f"the same order again: make test ARGS=--randomly-seed={seed}")


@pytest.fixture(scope="module")
def fonts() -> None:
    """Draw once before the tests, because matplotlib keeps the font files open that it opens at the first drawing."""
    from fanwise.plot.canvas import file_bytes, new_figure

    figure = new_figure(2.0, 2.0)
    axes = figure.subplots()
    axes.set_yscale("log")
    axes.set_title("bold", fontweight="bold")
    file_bytes(figure)
