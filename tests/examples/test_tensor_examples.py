"""The examples of the tensor layer print the same on every engine, and what the book prints."""

from pathlib import Path

import pytest

from fanwise.testing.programs import run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENGINES = ["torch", "jax", "tensorflow", "numpy"]

# As the book prints them.
OF_THE_BOOK = """\
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
|one element: 3.5 3
|X > Y =
[[False False False False]
 [ True  True  True  True]
 [ True  True  True  True]]
"""


def printed(name: str, engine: str, folder: Path) -> str:
    done = run_program([str(EXAMPLES / f"{name}.py")], folder=folder, environment={"FANWISE_ENGINE": engine})
    assert done.status == 0, done.said
    return done.out


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed("tensors", "torch", tmp_path_factory.mktemp("torch"))


def test_the_book_is_printed(of_torch: str) -> None:
    for part in OF_THE_BOOK.split("|"):
        assert part in of_torch


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_every_engine_prints_the_same_random_numbers_included(engine: str, of_torch: str, tmp_path: Path) -> None:
    own = printed("tensors", engine, tmp_path)
    assert own.replace(engine, "torch") == of_torch
