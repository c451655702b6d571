"""The examples of arrays on all engines: they print what the book prints.

One file for all: loading the engines takes longer than all that they do with them.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Finished, LoadedInterpreter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENGINES = ["torch", "jax", "tensorflow", "numpy"]
Run = Callable[[str, str, Path], Finished]

ARRAYS_OF_THE_BOOK = """\
elements: 12 shape: (12,)
|reshape(x, (3, -1)) =
[[ 0.  1.  2.  3.]
 [ 4.  5.  6.  7.]
 [ 8.  9. 10. 11.]]
|X[-1] =
[ 8.  9. 10. 11.]
|X with [:2, :] = 12 =
[[12. 12. 12. 12.]
 [12. 12. 12. 12.]
 [ 8.  9. 10. 11.]]
|a ** b =
[ 1.  4. 16. 64.]
|X == Y =
[[False  True False  True]
 [False False False False]
 [False False False False]]
|sum(X) =
66.0
|(3, 1) + (1, 2) =
[[0 1]
 [1 2]
 [2 3]]
|W = W + X keeps W: False
|keep Z: True
|X + Y + Y, compiled =
[[ 4.  3. 10.  9.]
 [ 6.  9. 12. 15.]
 [16. 15. 14. 13.]]
|one element: 3.5 3
|X > Y =
[[False False False False]
 [ True  True  True  True]
 [ True  True  True  True]]
"""


@pytest.fixture(scope="module")
def run_on(engines_loaded: LoadedInterpreter) -> Run:
    """Runs an example on an engine, in a folder."""

    def run(name: str, engine: str, folder: Path) -> Finished:
        return engines_loaded.run(EXAMPLES / f"{name}.py", folder=folder, environment={"FANWISE_ENGINE": engine})

    return run


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arrays_of_torch(run_on: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run_on("tensors", "torch", tmp_path_factory.mktemp("torch"))
    assert done.status == 0, done.said
    return done.out


def test_the_book_is_printed(arrays_of_torch: str) -> None:
    for part in ARRAYS_OF_THE_BOOK.split("|"):
        assert part in arrays_of_torch


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_every_engine_prints_the_same_random_numbers_included(
    engine: str, arrays_of_torch: str, run_on: Run, tmp_path: Path
) -> None:
    done = run_on("tensors", engine, tmp_path)
    assert done.status == 0, done.said
    assert done.out.replace(engine, "torch") == arrays_of_torch
