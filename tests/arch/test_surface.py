"""The public names, with their signatures, as a snapshot: a change of what users see shows up in the diff.

Public is what `fanwise/__init__.py` and the `__init__.py` of a layer define or re-export (`from .calls import f as f`).
Members of a class that override a member of a base class with the same signature are not listed again. The syntax
trees are read, so the result is the same on every Python version and nothing is imported. After an intended change:

    FANWISE_WRITE_SURFACE=1 .venv/bin/python -m pytest tests/arch/test_surface.py
"""

import ast
import difflib
import functools
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path, PurePosixPath

import pytest

SWITCH = "FANWISE_WRITE_SURFACE"

Sources = Mapping[str, str]  # text by path below src/fanwise
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def surface(sources: Sources) -> list[str]:
    """One line for each public name, and for each public name of a public class."""
    lines: list[str] = []
    for path in sources:
        if PurePosixPath(path).name == "__init__.py" and len(PurePosixPath(path).parts) <= 2:
            module = ".".join(["fanwise", *PurePosixPath(path).parent.parts])
            for name in public_names(sources[path]):
                node = find(sources, path, name)
                inherited = members_of_bases(sources, path, name) if isinstance(node, ast.ClassDef) else set()
                lines += describe(f"{module}.{name}", node, inherited)
    return sorted(lines)


def members_of_bases(sources: Sources, path: str, name: str) -> set[str]:
    """The members of the base classes of a class in the package, without the name of the class."""
    home = locate(sources, path, name)
    if home is None or not isinstance(home[1], ast.ClassDef):
        return set()
    members: set[str] = set()
    for base in home[1].bases:
        found = locate(sources, home[0], base.id) if isinstance(base, ast.Name) else None
        if found is not None and isinstance(found[1], ast.ClassDef):
            lines = describe("", found[1], set())
            members |= {line.replace(" @abc.abstractmethod", "") for line in lines if line.startswith(".")}
            members |= members_of_bases(sources, found[0], found[1].name)
    return members


def public_names(text: str) -> list[str]:
    names = []
    for node in statements(text):
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        names += [name for name in defined_names(node) if not name.startswith("_") or name == "__version__"]
    return names


@functools.cache  # asked for each name of a module
def statements(text: str) -> list[ast.stmt]:
    """The statements of a module, and those below an `if` like TYPE_CHECKING."""
    body = ast.parse(text).body
    return [each for node in body for each in ([*node.body, *node.orelse] if isinstance(node, ast.If) else [node])]


def defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def find(sources: Sources, path: str, name: str) -> Definition | None:
    """The definition behind a name, through re-exports; None for a module."""
    found = locate(sources, path, name)
    return None if found is None else found[1]


def locate(sources: Sources, path: str, name: str) -> tuple[str, Definition] | None:
    """The file and the definition behind a name, through re-exports; None for a module."""
    for node in statements(sources[path]):
        if isinstance(node, Definition) and name in defined_names(node):
            return path, node
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    folder = PurePosixPath(path).parent
                    for _ in range(node.level - 1):
                        folder = folder.parent
                    stem = folder.joinpath(*(node.module or "").split(".")).as_posix().removeprefix("./")
                    home = next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if p in sources), None)
                    return locate(sources, home, alias.name) if home and node.module else None
    return None


def describe(name: str, node: Definition | None, inherited: Set[str]) -> Iterator[str]:
    if node is None:
        yield f"{name}: module"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"{name}{signature(node)}"
    elif isinstance(node, ast.ClassDef):
        decorators = "".join(f"@{ast.unparse(d)} " for d in node.decorator_list)
        yield f"{name}: {decorators}class({', '.join(map(ast.unparse, node.bases))})"
        for member in node.body:
            if isinstance(member, Definition):
                for inner in defined_names(member):
                    if not inner.startswith("_") or inner in ("__init__", "__call__", "__enter__", "__iter__"):
                        lines = describe(f".{inner}", member, set())
                        yield from (f"{name}{line}" for line in lines if line not in inherited)
    elif isinstance(node, ast.AnnAssign):
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        yield f"{name}: {ast.unparse(node.annotation)}{default}"
    else:
        yield f"{name} = {ast.unparse(node.value)}"


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kinds = "".join(f" @{ast.unparse(decorator)}" for decorator in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}{kinds}"


def test_the_public_names_are_those_of_the_snapshot(repository: Path, library: dict[str, str]) -> None:
    snapshot = repository / "tests" / "arch" / "surface.txt"
    now = surface(library)
    if os.environ.get(SWITCH):
        snapshot.write_text("\n".join(now) + "\n")
    changes = list(difflib.unified_diff(snapshot.read_text().splitlines(), now, "surface.txt", "the code", lineterm=""))
    if changes:
        again = f"{SWITCH}=1 .venv/bin/python -m pytest {Path(__file__).relative_to(repository)}"
        pytest.fail(
            "\n".join([*changes, "If this is wanted, add a line to CHANGELOG.md and run:", again]), pytrace=False
        )


WIRES = """
class Wire(Base):
    size: int = 3
    def send(self, parts: list[bytes], *, wait_s: float = 1.0) -> int: ...
    def _hidden(self): ...
@overload
def dial(path: str): ...
"""


def test_an_override_with_the_signature_of_its_base_is_not_listed() -> None:
    sources = {
        "__init__.py": "from .pools import Fast as Fast",
        "pools.py": "from .base import Base\nclass Fast(Base):\n    size: int = 3\n    def run(self, n: int): ...\n"
        "    def stop(self, now: bool): ...\n    def more(self): ...",
        "base.py": "class Root:\n    @abc.abstractmethod\n    def run(self, n: int): ...\n"
        "class Base(Root):\n    size: int\n    def stop(self): ...",
    }
    assert surface(sources) == [
        "fanwise.Fast.more(self)",
        "fanwise.Fast.size: int = 3",
        "fanwise.Fast.stop(self, now: bool)",
        "fanwise.Fast: class(Base)",
    ]


def test_names_are_followed_to_their_definition() -> None:
    sources = {
        "__init__.py": "if TYPE_CHECKING:\n    from . import links as links\n    from .links import Wire as Wire",
        "links/__init__.py": "from typing import Any\nfrom .wires import Wire as Wire, dial as dial\n_a = 1",
        "links/wires.py": WIRES,
        "links/inner/__init__.py": "def not_public(): ...",
    }
    assert surface(sources) == [
        "fanwise.Wire.send(self, parts: list[bytes], *, wait_s: float=1.0) -> int",
        "fanwise.Wire.size: int = 3",
        "fanwise.Wire: class(Base)",
        "fanwise.links.Wire.send(self, parts: list[bytes], *, wait_s: float=1.0) -> int",
        "fanwise.links.Wire.size: int = 3",
        "fanwise.links.Wire: class(Base)",
        "fanwise.links.dial(path: str) @overload",
        "fanwise.links: module",
    ]
