"""The example of automatic differentiation prints what the book prints, and the same on every engine."""

import re
from pathlib import Path

import matplotlib.image
import pytest

from fanwise.testing.programs import run_program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "autograd.py"

OF_THE_BOOK = [
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


@pytest.mark.parametrize("engine", ["torch", "jax", "tensorflow"])
def test_every_engine_prints_what_the_book_does(engine: str, tmp_path: Path) -> None:
    done = run_program(["-W", "error", str(EXAMPLE)], folder=tmp_path, environment={"FANWISE_ENGINE": engine})
    assert done.status == 0, done.said
    lines = done.out.splitlines()
    assert lines[0] == f"engine: {engine}"
    assert [line for line in OF_THE_BOOK if line not in lines] == []
    slopes = re.findall(r"^exercise 6 and 7: .*: (\S+)$", done.out, re.MULTILINE)
    assert [round(float(slope), 5) for slope in slopes] == [0.0824] * 3
    assert len(re.findall(r"^exercise 1: the (?:first|second) derivative takes \d+ us$", done.out, re.MULTILINE)) == 2
    picture = matplotlib.image.imread(tmp_path / "autograd.png")
    assert picture.shape[1] > 800 and picture[..., :3].std() > 0.02, "an empty picture"


def test_numpy_is_told_which_engines_have_gradients(tmp_path: Path) -> None:
    done = run_program([str(EXAMPLE)], folder=tmp_path, environment={"FANWISE_ENGINE": "numpy"})
    assert done.status == 1 and "TypeError: numpy has no gradients; torch, jax, tensorflow have." in done.err
