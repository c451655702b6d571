"""Syntax trees of source files, as the rules of tests/arch walk over them."""

import ast
import functools
import gc


@functools.cache  # several rules walk over the same trees
def nodes_of(text: str) -> list[ast.AST]:
    collects = gc.isenabled()
    gc.disable()  # all of it stays: to look at it again and again takes two thirds of the time
    try:
        return list(ast.walk(ast.parse(text)))
    finally:
        if collects:
            gc.enable()


def dotted(node: ast.AST) -> str:
    """`a.b.c` for such an expression; other things than names in it are empty. Unlike `ast.unparse` it is quick."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))
