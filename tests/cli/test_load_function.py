"""FILE:FUNCTION: what is loaded, and what is said when it is not there or fails."""

import sys
from pathlib import Path

import pytest

from fanwise.cli.searching import load_function


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading puts the file's folder into sys.path; here it is taken out again."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def complaint(target: str) -> str:
    with pytest.raises(ValueError) as caught:
        load_function(target)
    return str(caught.value)


def test_the_function_sees_its_module_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_train.py").write_text("THREE = 3\n")
    file = written(tmp_path, "import neighbour_of_train as n\nTWO = 2\ndef f(x):\n    return TWO * x + n.THREE\n")
    try:
        assert load_function(f"{file}:f")(5) == 13
    finally:
        sys.modules.pop("neighbour_of_train", None)


def test_the_program_below_the_main_guard_does_not_run(tmp_path: Path) -> None:
    file = written(tmp_path, "def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit(9)\n")
    assert load_function(f"{file}:f")() == 1


@pytest.mark.parametrize("target", ["train.py", ":f", "train.py:", ""])
def test_a_target_without_a_function_shows_the_form(target: str) -> None:
    assert complaint(target) == f"the objective must be FILE:FUNCTION, e.g. train.py:train, got {target!r}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(f"{tmp_path}/none.py:f") == f"there is no file '{tmp_path}/none.py' (from '{tmp_path}/none.py:f')"


def test_a_missing_function_is_told_with_the_nearest_or_all(tmp_path: Path) -> None:
    file = written(tmp_path, "from math import sin\nLIMIT = 3\ndef train(): ...\ndef test(): ...\n")
    assert complaint(f"{file}:trian") == f"{file} has no function 'trian'; did you mean 'train'?"
    assert complaint(f"{file}:LIMIT") == f"{file} has no function 'LIMIT'; known: 'train', 'test'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "train.py cannot be loaded: SyntaxError: "),
        (
            "\nimport no_such_module_1\n",
            "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_1' (in",
        ),
        ("x = 1\n\n1 / 0\n", "train.py cannot be loaded: ZeroDivisionError: division by zero (in line 3)"),
        ("def g():\n    1 / 0\ng()\n", "division by zero (in line 2)"),
        ("raise SystemExit(3)\n", "ended with exit code 3 while it was loaded. Put what it does as a program below"),
    ],
)
def test_a_file_that_fails_is_told_with_the_place(text: str, said: str, tmp_path: Path) -> None:
    assert said in complaint(f"{written(tmp_path, text)}:f")
