"""`namespaces/typed.pyi`, which tells type checkers of the standard's functions, has all names, each with its types.

That the parameters are those of the standard is tested with the names: the functions are made from them.
"""

import ast
from pathlib import Path

import fanwise.tensor as ft
from fanwise.tensor.namespaces.namespace import CONSTANTS, DTYPES, EXTRA_DTYPES, FUNCTIONS

STUB = ast.parse((Path(ft.__file__).parent / "namespaces" / "typed.pyi").read_text()).body


def test_type_checkers_see_every_name_of_the_standard() -> None:
    assert [node.name for node in STUB if isinstance(node, ast.FunctionDef)] == list(FUNCTIONS)
    others = {ast.unparse(node.target) for node in STUB if isinstance(node, ast.AnnAssign)}
    assert others == {*DTYPES, *EXTRA_DTYPES, *CONSTANTS, "linalg", "fft"}


def test_every_parameter_and_result_has_a_type() -> None:
    for node in STUB:
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, node.name
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            assert all(each.annotation is not None for each in parameters), node.name
