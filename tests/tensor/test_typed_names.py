"""What type checkers are told of the standard's functions is what those functions take: `namespaces/typed.pyi`."""

import ast
from pathlib import Path

import fanwise.tensor as ft
from fanwise.tensor.namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS

STUB = Path(ft.__file__).parent / "namespaces" / "typed.pyi"


def told() -> tuple[dict[str, ast.FunctionDef], set[str]]:
    """The functions, those of an extension with its name before them, and the other public names."""
    functions, others = {}, set()
    parts = {"_Linalg": "linalg.", "_Fft": "fft."}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef) and node.name in parts:
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            functions |= {parts[node.name] + each.name: each for each in inner}
        elif isinstance(node, ast.AnnAssign):
            others.add(ast.unparse(node.target))
    return functions, others


def bare(arguments: ast.arguments) -> str:
    """Parameters and defaults, without types."""
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg]
    for each in parameters:
        if each is not None:
            each.annotation = None
    return ast.unparse(arguments)


def test_type_checkers_see_every_name_of_the_standard() -> None:
    functions, others = told()
    names = {f"{part}.{name}" if part else name for part, inside in PARTS.items() for name in inside}
    assert functions.keys() == names
    assert others == {*DTYPES, *EXTRA_DTYPES, *CONSTANTS, "linalg", "fft"}


def test_type_checkers_see_the_parameters_and_defaults_of_the_standard() -> None:
    functions, _ = told()
    for part, inside in PARTS.items():
        for name, text in inside.items():
            (wanted,) = ast.parse(f"def f{text}: pass").body
            assert isinstance(wanted, ast.FunctionDef)
            full = f"{part}.{name}" if part else name
            assert (full, bare(functions[full].args)) == (full, bare(wanted.args))


def test_every_parameter_and_result_has_a_type() -> None:
    functions, _ = told()
    for name, node in functions.items():
        assert node.returns is not None, name
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        assert all(each.annotation is not None for each in parameters), name
