"""FILE:FUNCTION and MODULE:FUNCTION: loading, and the errors of missing and failing targets."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanwise.cli.objectives import load_function


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading puts folders into sys.path and modules into sys.modules; here they are taken out again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def complaint(target: str) -> str:
    with pytest.raises(ValueError) as caught:
        load_function(target)
    return str(caught.value)


def test_a_function_can_use_its_module_and_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_train.py").write_text("THREE = 3\n")
    file = written(tmp_path, "import neighbour_of_train as n\nTWO = 2\ndef f(x):\n    return TWO * x + n.THREE\n")
    assert load_function(f"{file}:f")(5) == 13


def test_the_program_below_the_main_guard_does_not_run(tmp_path: Path) -> None:
    file = written(tmp_path, "def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit(9)\n")
    assert load_function(f"{file}:f")() == 1


@pytest.mark.parametrize("target", ["train.py", ":f", "train.py:", ""])
def test_a_target_without_a_function_shows_the_form(target: str) -> None:
    message = complaint(target)
    assert message.startswith("the objective must be FILE:FUNCTION, e.g. train.py:train, or MODULE:FUNCTION, ")
    assert message.endswith(f"got {target!r}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(f"{tmp_path}/none.py:f") == f"there is no file '{tmp_path}/none.py' (from '{tmp_path}/none.py:f')"


def test_a_missing_function_suggests_the_nearest_and_lists_all(tmp_path: Path) -> None:
    file = written(tmp_path, "from math import sin\nLIMIT = 3\ndef train(): ...\ndef test(): ...\n")
    all_of_it = "Its functions: 'train', 'test'."
    assert complaint(f"{file}:trian") == f"{file} has no function 'trian'; did you mean 'train'? {all_of_it}"
    assert complaint(f"{file}:LIMIT") == f"{file} has no function 'LIMIT'. {all_of_it}"
    assert complaint(f"{written(tmp_path, '')}:train") == f"{file} has no function 'train'. Its functions: none."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "train.py cannot be loaded: SyntaxError: "),
        (
            "\nimport no_such_module_1\n",
            "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_1' (in",
        ),
        ("x = 1\n\n1 / 0\n", "train.py cannot be loaded: ZeroDivisionError: division by zero (in line 3)"),
        ("def g():\n    1 / 0\ng()\n", "division by zero (in line 2)"),
        ("raise SystemExit(3)\n", "ended with exit code 3 while it was loaded. Put the code of the program below"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    assert message in complaint(f"{written(tmp_path, text)}:f")


# -- packages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two levels in the working folder; train.py uses relative imports."""
    inner = tmp_path / "vision_project" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "vision_project" / "__init__.py").write_text("ONE = 1\n")
    (inner / "__init__.py").write_text("def of_the_package(): return 'package'\n")
    (inner / "beside_train.py").write_text("TWO = 2\n")
    (inner / "train.py").write_text(
        "from .. import ONE\nfrom .beside_train import TWO\n"
        "def train(x): return ONE + TWO + x\n"
        "if __name__ == '__main__':\n    raise SystemExit(9)\n"
    )
    (inner / "by_bare_name.py").write_text("import beside_train\ndef f(): return beside_train.TWO\n")
    (inner / "broken.py").write_text("\n1 / 0\n")
    (inner / "lacking.py").write_text("import no_such_module_1\n")
    monkeypatch.chdir(tmp_path)
    return inner


def test_a_function_of_a_package_is_loaded_with_its_relative_imports(package: Path) -> None:
    function = load_function("vision_project.inner.train:train")
    assert function(10) == 13
    assert (function.__module__, function.__name__) == ("vision_project.inner.train", "train")


def test_a_file_of_a_package_can_import_files_beside_it(package: Path) -> None:
    assert load_function("vision_project/inner/by_bare_name.py:f")() == 2


def test_a_package_itself_is_a_module(package: Path) -> None:
    assert load_function("vision_project.inner:of_the_package")() == "package"


def test_a_module_without_a_package_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lonely_train.py").write_text("def f(): return 5\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("lonely_train:f")() == 5


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("vision_project.inner.train:trian", "train has no function 'trian'; did you mean 'train'? Its functions: 'tr"),
        ("vision_project.inner.trian:train", "there is no file and no module 'vision_project.inner.trian'; did you me"),
        ("vision_project.iner.train:train", "'vision_project.iner.train'.\nThe working folder and the installed"),
        ("no_such_package.train:f", "there is no file and no module 'no_such_package.train'.\nThe working folder"),
        ("vision_project.inner.train.deeper:f", "there is no file and no module 'vision_project.inner.train.deeper'"),
        ("vision_project.inner.broken:f", "vision_project.inner.broken cannot be loaded: ZeroDivisionError: division "),
        ("vision_project.inner.broken:f", "(in line 2)"),
        ("vision_project/inner/broken.py:f", "vision_project/inner/broken.py cannot be loaded: ZeroDivisionError: "),
        ("vision_project/inner/broken.py:f", "(in line 2)"),
        ("vision_project.inner.lacking:f", "lacking cannot be loaded: ModuleNotFoundError: No module named 'no_such_m"),
        ("vision_project/inner/none.py:f", "there is no file 'vision_project/inner/none.py'"),
        ("..train:f", "cannot be loaded"),
    ],
)
def test_errors_of_modules_are_reported(target: str, message: str, package: Path) -> None:
    assert message in complaint(target)


def test_relative_imports_in_a_file_are_explained(package: Path) -> None:
    hint = "A file with relative imports is part of a package: name it as package.module:FUNCTION."
    assert hint in complaint("vision_project/inner/train.py:train")
