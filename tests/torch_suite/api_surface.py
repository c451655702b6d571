#!/usr/bin/env python3
"""The names of torch's RPC modules that its shipped tests touch, with counts.

    python api_surface.py --impl fanwise.rpc     which of them the package lacks

Reads the sources of the tests by their syntax trees; runs nothing of them.
"""

import argparse
import ast
import collections
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import suite_alias

_PREFIXES = (
    *("torch.distributed.rpc", "torch.distributed.autograd", "torch.distributed.optim", "torch.distributed.nn"),
)
_FILES = (
    *("rpc/rpc_test.py", "rpc/dist_autograd_test.py", "rpc/dist_optimizer_test.py", "rpc/faulty_agent_rpc_test.py"),
    *("rpc/faulty_rpc_agent_test_fixture.py", "rpc/tensorpipe_rpc_agent_test_fixture.py"),
    *("rpc/examples/parameter_server_test.py", "rpc/examples/reinforcement_learning_rpc_test.py"),
    *("nn/api/remote_module_test.py", "ddp_under_dist_autograd_test.py", "../dist_utils.py"),
)


def surface() -> "collections.Counter[str]":
    """How often the tests touch each name."""
    torch_spec = importlib.util.find_spec("torch")
    assert torch_spec is not None and torch_spec.origin is not None, "torch is installed"
    folder = Path(torch_spec.origin).parent / "testing" / "_internal" / "distributed"
    names: collections.Counter[str] = collections.Counter()
    for name in _FILES:
        names.update(_names_of(ast.parse((folder / name).read_text())))
    return names


def _names_of(tree: ast.AST) -> Iterator[str]:
    meanings = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            own = [alias for alias in node.names if alias.asname and alias.name.startswith("torch.distributed")]
            meanings.update({str(alias.asname): alias.name for alias in own})
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            for alias in node.names:
                full = meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if full.startswith(_PREFIXES):
                    yield full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            full = _full(node, meanings)
            if full.startswith(_PREFIXES):
                yield full


def _full(node: ast.expr, meanings: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        base = _full(node.value, meanings)
        return f"{base}.{node.attr}" if base else ""
    return meanings.get(node.id, "") if isinstance(node, ast.Name) else ""


def missing(names: "collections.Counter[str]", impl: str) -> list[str]:
    """The names that `impl` lacks. Replaces torch's modules in this process."""
    os.environ["RPC_SUITE_STRICT"] = "1"
    suite_alias.install(impl)
    lacking = []
    for name in sorted(names):
        found: object = importlib.import_module("torch")
        try:
            for part in name.split(".")[1:]:
                found = getattr(found, part)
        except AttributeError:
            lacking.append(name)
    return lacking


def main() -> None:
    """Print the names, or those that a package lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", default="", help="the package in the place of torch.distributed.rpc")
    impl = parser.parse_args().impl
    names = surface()
    if not impl:
        print("\n".join(f"{count:4d} {name}" for name, count in sorted(names.items())), f"{len(names)} names", sep="\n")
        return
    lacking = missing(names, impl)
    print(f"{len(names) - len(lacking)} of {len(names)} names present; missing:", *lacking, sep="\n  ")


if __name__ == "__main__":
    main()
