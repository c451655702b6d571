"""Libraries that are loaded when a test uses them: not before, and by no file of tests while it is collected."""

import ast
import re
import sys
from pathlib import Path

import pytest
from late import Late

# These take from one second to several, in every process of a run.
SLOW = ("jax", "tensorflow", "sklearn")


def test_a_module_is_loaded_when_something_of_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_late.py").write_text("three = 3")
    monkeypatch.syspath_prepend(tmp_path)
    late = Late("loaded_late")
    for name in ("_mock_name", "__wrapped__", "__bases__", "__test__"):  # as pytest does while it collects
        assert not hasattr(late, name)
    assert "loaded_late" not in sys.modules
    assert late.three == 3 and "three" in dir(late)
    assert late.__name__ == sys.modules.pop("loaded_late").__name__
    with pytest.raises(AttributeError, match="four"):
        _ = late.four


def test_what_a_function_returns_is_asked_for_each_time() -> None:
    things = iter((1.5, 2.5))
    late = Late(lambda: next(things))
    assert [late.real, late.real] == [1.5, 2.5]


def test_no_file_of_tests_loads_a_slow_library_when_it_is_collected(repository: Path) -> None:
    names = "|".join(SLOW)
    for path in (repository / "tests").rglob("*.py"):
        text = path.read_text()
        if not path.name.startswith("test_") and '__name__ == "__main__"' in text:
            continue  # a program that tests start: no file of tests imports it
        if re.search(rf"^\s*(import|from) ({names})\b", text, re.MULTILINE):
            for node in ast.parse(text).body:
                line = ast.get_source_segment(text, node) if isinstance(node, ast.Import | ast.ImportFrom) else None
                assert not re.match(rf"(import|from) ({names})\b", line or ""), f"{path}: {line}: see {Late.__module__}"
