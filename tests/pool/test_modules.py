"""The modules that a function will import, and edits of source files."""

import csv
import functools
import importlib
import json
import os
import os.path
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from fanwise.pool.modules import Sources, modules_needed, sources_of, travels_by_value


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Return a function that writes a module into a folder of the search path."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(name: str, text: str) -> Path:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return path

    yield write_module
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def in_main(text: str, name: str = "objective") -> Any:
    """Return the variable `name` of a script."""
    module = ModuleType("__main__")
    exec(textwrap.dedent(text), vars(module))
    return vars(module)[name]


def test_modules_it_refers_to_are_found_in_order_each_once() -> None:
    objective = in_main("""
        import json, csv, sys as system, textwrap
        def objective():
            first = json.loads(csv.reader([]))
            return lambda: (json.dumps(first), system)
    """)
    assert modules_needed(objective) == ("json", "csv", "sys")


def test_variables_of_enclosing_functions_and_defaults_count() -> None:
    inside, default = json, csv

    def objective(reader: Any = default, *, path: Any = os) -> Any:
        return inside, reader, path

    assert set(modules_needed(objective)) == {"json", "csv", "os"}


def test_import_statements_inside_it_are_found_without_importing(write: Callable[[str, str], Path]) -> None:
    write("never_loaded", "raise RuntimeError('imported')")
    write("package.__init__", "raise RuntimeError('imported')")
    write("package.part", "")
    objective = in_main("""
        def objective():
            import never_loaded
            from package import part, name
            def inner():
                import missing.deep as deep
                return deep
            return never_loaded, part, name, inner
    """)
    assert modules_needed(objective) == ("never_loaded", "package", "package.part", "missing.deep")
    assert not {"never_loaded", "package", "missing"} & set(sys.modules)


def test_submodules_of_loaded_packages_are_distinguished_from_attributes() -> None:
    def objective() -> Any:
        from os import path, sep
        from xml.etree import ElementTree

        return path, sep, ElementTree

    assert modules_needed(objective) == ("os", "os.path", "xml.etree", "xml.etree.ElementTree")


def test_a_dotted_import_is_found_by_the_names_that_are_used() -> None:
    objective = in_main("""
        import os.path, xml.dom.minidom
        def objective():
            return xml.dom.minidom.parseString
    """)
    assert modules_needed(objective) == ("xml", "xml.dom", "xml.dom.minidom")


def test_functions_and_classes_of_the_script_are_followed() -> None:
    objective = in_main("""
        import json, csv, textwrap, tempfile, shutil
        from dataclasses import dataclass
        class Base:
            def save(self):
                import zipfile
                return zipfile
        class Model(Base):
            def forward(self):
                return json.dumps([])
            @staticmethod
            def load():
                return csv.reader
            @property
            def folder(self):
                return tempfile.gettempdir()
        def helper():
            return [Model() for _ in range(3)]
        def unused():
            return textwrap.dedent
        objects = {"model": Model()}
        def objective():
            return helper(), objects, objective
    """)
    modules = modules_needed(objective)
    assert set(modules) >= {"zipfile", "json", "csv", "tempfile"}
    assert not set(modules) & {"__main__", "builtins", "textwrap", "shutil"}


def test_methods_partials_and_wrappers_are_followed() -> None:
    script = """
        import json, csv, functools
        def decorate(function):
            @functools.wraps(function)
            def wrapper():
                import zipfile
                return function()
            return wrapper
        @decorate
        def objective():
            return json.dumps
        class Model:
            def run(self):
                return csv.reader
        method = Model().run
        bound = functools.partial(objective)
        cached = functools.lru_cache(Model.run)
    """
    assert set(modules_needed(in_main(script))) >= {"zipfile", "json"}
    assert "csv" in modules_needed(in_main(script, "method"))
    assert "json" in modules_needed(in_main(script, "bound"))
    assert "csv" in modules_needed(in_main(script, "cached"))


def test_modules_of_the_classes_of_objects_are_found() -> None:
    where, built_in = Path("x"), json.dumps

    def objective() -> Any:
        return where, built_in, os.getpid, [1, "a", None]

    assert set(modules_needed(objective)) == {Path.__module__, "json", "os"}  # Python 3.13: pathlib._local


def test_modules_of_importable_functions_and_imports_inside_them_are_found(
    write: Callable[[str, str], Path],
) -> None:
    write("near_module", "from far_module import far\ndef objective():\n    import csv\n    return far()")
    write("far_module", "from farther import away\ndef far():\n    import zipfile\n    return away()")
    write("farther", "def away():\n    import tempfile")
    objective = importlib.import_module("near_module").objective
    assert modules_needed(objective) == ("near_module", "csv", "far_module", "zipfile", "farther", "tempfile")


def test_imports_inside_functions_of_user_modules_are_found(write: Callable[[str, str], Path]) -> None:
    write("helpers", "def load():\n    import zipfile\n\ndef other():\n    import tempfile")
    objective = in_main("import helpers\ndef objective():\n    return helpers.load()")
    assert modules_needed(objective) == ("helpers", "zipfile")


def test_functions_of_libraries_are_not_searched() -> None:
    def objective() -> Any:
        return json.load, subprocess.run, functools.reduce

    assert set(modules_needed(objective)) == {"json", "subprocess", "functools"}


def test_cyclic_and_deep_objects_are_searched() -> None:
    ring: list[Any] = [json]
    ring.append(ring)
    deep: list[Any] = [csv]
    for _ in range(5000):
        deep = [deep]

    def objective() -> Any:
        return ring, deep

    assert set(modules_needed(objective)) == {"json", "csv"}


def test_the_search_is_limited() -> None:
    long: list[Any] = [*range(1000), json]
    wide: list[Any] = [[object() for _ in range(1000)] for _ in range(25)]
    wide.append([[[csv]]])

    def objective() -> Any:
        import zipfile

        return long, wide, zipfile

    assert modules_needed(objective) == ("zipfile",)


# -- by value or by name -----------------------------------------------------------------------------------------------


def test_functions_and_classes_are_sent_by_name_if_the_name_leads_to_them(
    write: Callable[[str, str], Path],
) -> None:
    write("own_module", "class A:\n    @staticmethod\n    def s(): ...\n    def m(self): ...\ndef f(): ...\n")
    module = importlib.import_module("own_module")
    by_name = [module.A, module.A.s, module.A.m, module.f, json.dumps, int, dict]
    assert not any(travels_by_value(thing) for thing in by_name)
    old, replacement = module.f, vars(json)["dumps"]
    vars(module)["f"] = replacement
    assert travels_by_value(old)
    assert not travels_by_value(replacement)
    assert travels_by_value(in_main("def objective(): ..."))
    assert travels_by_value(in_main("class objective: ..."))


def test_modules_registered_with_cloudpickle_are_sent_by_value(write: Callable[[str, str], Path]) -> None:
    write("registered", "import csv\ndef f():\n    return csv")
    module = importlib.import_module("registered")
    assert modules_needed(module.f) == ("registered", "csv")
    cloudpickle.register_pickle_by_value(module)
    try:
        assert travels_by_value(module.f)
        assert modules_needed(module.f) == ("csv",)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


# -- source files ------------------------------------------------------------------------------------------------------


def test_only_the_users_own_files_are_watched(write: Callable[[str, str], Path]) -> None:
    path = write("watched", "x = 1")
    module = importlib.import_module("watched")
    loaded = sources_of(list(sys.modules))
    assert loaded[path] == (path.stat().st_mtime_ns, path.stat().st_size)
    assert Path(json.__file__) not in loaded
    assert Path(pytest.__file__) not in loaded
    assert sources_of(["watched", "json", "sys", "not_loaded", "__main__"]) == {path: loaded[path]}
    module.__file__ = None
    assert sources_of(["watched"]) == {}


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_installed_files_are_not_watched(
    write: Callable[[str, str], Path], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(f"{folder}.installed", "")
    monkeypatch.syspath_prepend(str(path.parent))
    assert importlib.import_module("installed").__file__ == str(path)
    assert sources_of(["installed"]) == {}


def test_the_files_of_fanwise_are_not_watched() -> None:
    assert sources_of(["fanwise.pool.modules"]) == {}


def test_edited_replaced_and_removed_files_are_reported(write: Callable[[str, str], Path]) -> None:
    paths = [write(f"watched{number}", "x = 1") for number in range(4)]
    for number in range(4):
        importlib.import_module(f"watched{number}")
    sources = Sources()
    assert sources.remember() and not sources.remember()
    assert sources.edited() == []
    stamp = paths[0].stat()
    paths[0].write_text("x = 22")
    os.utime(paths[0], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the size alone tells
    os.utime(paths[1], ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000))
    paths[2].unlink()
    assert sorted(sources.edited()) == paths[:3]


def test_a_removed_file_is_not_watched(write: Callable[[str, str], Path]) -> None:
    path = write("gone", "")
    importlib.import_module("gone")
    path.unlink()
    assert sources_of(["gone"]) == {}
