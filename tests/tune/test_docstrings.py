"""The examples in the docstrings of the tuner run."""

import doctest
import importlib
import pkgutil

import fanwise.tune

# Their examples use an experiment or a pool that the docstring does not create.
NEEDS_A_SEARCH = {"ask_tell", "experiment", "tuner"}


def test_examples_in_docstrings_run() -> None:
    names = [name for _, name, _ in pkgutil.walk_packages(fanwise.tune.__path__, "fanwise.tune.")]
    names = [name for name in names if name.rpartition(".")[2] not in NEEDS_A_SEARCH]
    # Importing Weights & Biases or MLflow starts threads.
    modules = [importlib.import_module(name) for name in names if ".callbacks.with_" not in name]
    results = {module.__name__: doctest.testmod(module) for module in modules}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted > 0 for result in results.values()) > 25
