"""The examples of arrays and derivatives on all engines: they print what the book prints.

One file for all: loading the engines takes longer than all that they do with them.
"""

import re
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
DERIVATIVES_OF_THE_BOOK = [
    "y = 2 x.x: 28.0",
    "gradient of y: [ 0.  4.  8. 12.]",
    "it is 4 x: [ True  True  True  True]",
    "gradient of sum(x), which adds nothing to the last: [1. 1. 1. 1.]",
    "gradient of x * x, weighed by ones: [0. 2. 4. 6.]",
    "u = x * x detached, gradient of u x is u: [ True  True  True  True]",
    "control flow: gradient of f(a) is f(a) / a: True",
    "exercise 2: backward twice gives the same twice: [ True  True  True  True]",
    "exercise 3: gradient by an a of shape (2,): [512. 512.]",
]


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


# -- derivatives -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "numpy"])
def test_the_derivatives_of_every_engine_are_those_of_the_book(
    engine: str, run_on: Run, tmp_path: Path, assert_is_picture: Callable[[Path], None]
) -> None:
    done = run_on("autograd", engine, tmp_path)
    assert done.status == 0, done.said
    lines = done.out.splitlines()
    assert lines[0] == f"engine: {engine}"
    assert [line for line in DERIVATIVES_OF_THE_BOOK if line not in lines] == []
    slopes = re.findall(r"^exercise 6 and 7: .*: (\S+)$", done.out, re.MULTILINE)
    assert [round(float(slope), 5) for slope in slopes] == [0.0824] * 3
    assert len(re.findall(r"^exercise 1: the (?:first|second) derivative takes \d+ us$", done.out, re.MULTILINE)) == 2
    assert_is_picture(tmp_path / "autograd.png")


def test_numpy_is_told_which_engines_have_gradients(run_on: Run, tmp_path: Path) -> None:
    done = run_on("autograd", "numpy", tmp_path)
    assert done.status == 1 and "TypeError: numpy has no gradients; torch, jax, tensorflow have." in done.err
