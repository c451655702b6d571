"""Who may import whom in src/fanwise, read from the syntax trees, so that nothing has to be loaded.

Each rule is a function from sources to complaints. It is held against the library, and against small wrong libraries,
which it must refuse: a rule that never complains proves nothing.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest
from random_trees import dotted, nodes_of

Sources = Mapping[str, str]  # text by path below src/fanwise

# DESIGN section 2. Each layer may import those to the left of it; beside the chain `plot -> base` and `zoo -> base`.
CHAIN = ["base", "tensor", "links", "pool", "rendezvous", "rpc", "parallel", "tune", "board"]
MAY_IMPORT = {layer: set(CHAIN[: place + 1]) for place, layer in enumerate(CHAIN)}
MAY_IMPORT |= {"plot": {"plot", "base"}, "zoo": {"zoo", "base"}}
MAY_IMPORT["tune"] |= {"plot"}
MAY_IMPORT["board"] |= {"plot"}
MAY_IMPORT["cli"] = {*CHAIN, "plot", "zoo", "cli"}
MAY_IMPORT["testing"] = {*CHAIN, "plot", "testing"}
MAY_IMPORT[""] = {
    "",
    *CHAIN,
    "plot",
    "zoo",
    "testing",
}  # the package root: names that load on first use, and the errors

# Layers in which files still import each other in circles.
HAVE_CIRCLES = {"tensor"}

# Import name of an optional library, and the only file that may import it, or files that add a subject to that name
# (with_optuna_study.py), or all files of a folder of that name.
OPTIONAL = {
    **{name: f"with_{name}.py" for name in ("jax", "tensorflow", "mxnet", "ray", "optuna", "plotly")},
    **{name: f"with_{name}.py" for name in ("starlette", "uvicorn", "gymnasium", "syne_tune", "tensorboard")},
    **{name: f"with_{name}.py" for name in ("mlflow", "wandb", "sklearn")},
    "cryptography": "security.py",
    "jaxlib": "with_jax.py",
    "IPython": "with_ipython.py",
}

QUIET = [
    "board/guard.py",
    "links/frames.py",
    "links/session.py",
    "links/security/handshake.py",
    "links/counts.py",
    "links/credits.py",
    "links/shared_memory/segment_table.py",
    "parallel/data/position.py",
    "parallel/config.py",
    "parallel/step/tree.py",
    "parallel/comm/stragglers.py",
    "parallel/launch/membership.py",
    "pool/contract.py",
    "pool/leases.py",
    "pool/settings.py",
    "pool/specs.py",
    "pool/cluster/placement.py",
    "rpc/autograd/pass_state.py",
    "rpc/membership/members.py",
    "rpc/membership/coordinator.py",
    "rpc/messages/ids.py",
    "rpc/messages/metadata.py",
    "rpc/references/protocol.py",
    "rpc/references/table.py",
    "tune/rng.py",
    "tune/default_searcher.py",
    "tune/constraints.py",
    "tune/space/space.py",
    "tune/core/validation.py",
    "tune/core/events.py",
    "tune/core/equal_failures.py",
    "tune/core/actions.py",
    "tune/core/slots.py",
    "tune/core/suggestions.py",
    "tune/core/trials.py",
    "tune/core/search_core.py",
    "tune/record/state.py",
    "tune/record/event_codec.py",
    "tune/record/utilization.py",
    "tune/schedulers/asha.py",
    "tune/schedulers/successive_halving.py",
    "tune/schedulers/median.py",
    "tune/schedulers/pbt.py",
    "tune/schedulers/scheduler.py",
    "tune/schedulers/resources.py",
    "tune/schedulers/rungs.py",
    "tune/searchers/searcher.py",
    "tune/searchers/points.py",
    "tune/stopping.py",
]
# What a quiet file may import. Whoever needs more is asked: is it a fact that could be handed in?
QUIET_MAY_IMPORT = {
    *(
        "abc",
        "array",
        "ast",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "decimal",
        "difflib",
        "enum",
    ),
    *("fractions", "functools", "hashlib", "heapq", "hmac", "inspect", "itertools", "json", "keyword", "math"),
    *(
        "numbers",
        "operator",
        "random",
        "re",
        "reprlib",
        "signal",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "zlib",
    ),
}
# Of these modules only what has no effect and no state of its own.
QUIET_MAY_USE = {"random": {"Random"}, "signal": {"Signals", "strsignal"}}
# What a quiet file may use of one that is not: the codec that its records register with, memory to receive into, a
# searcher, which schedulers construct, and Pareto fronts of tuples, which need no NumPy, and the ranking of tuples by
# NumPy.
BOUNDARIES = {
    ("rpc/messages/records.py", "control_codec"),
    ("tensor/__init__.py", "aligned_buffer"),
    ("tune/searchers/__init__.py", "RandomSearcher"),
    ("tune/searchers/__init__.py", "resolve_searcher"),
    ("tune/searchers/tpe.py", "TPESearcher"),
    ("tune/pareto.py", "HypervolumeFront"),
    ("tune/pareto.py", "ParetoFront"),
    ("tune/pareto.py", "best_of"),
}
# Calls that read or change the world, or draw chance from it, without any import.
LOUD_BUILTINS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


@dataclass(frozen=True, slots=True)
class Import:
    """`module` and, for `from module import name`, the name."""

    module: str
    name: str
    line: int


def imports_of(path: str, text: str, *, of_types: bool = True) -> Iterator[Import]:
    """Every import of a file, wherever it stands, relative ones resolved, `import_module("...")` too.

    `of_types`: also those in `if TYPE_CHECKING`.
    """
    package = ["fanwise", *PurePosixPath(path).parent.parts]
    left_out: set[ast.AST] = set()
    if not of_types:
        blocks = [node for node in nodes_of(text) if isinstance(node, ast.If)]
        left_out = {node for block in blocks if dotted(block.test) == "TYPE_CHECKING" for node in block.body}
    for node in nodes_of(text):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("import_module", "__import__"):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield Import(named.value, "", node.lineno)


def own_module(found: Import, sources: Sources) -> str | None:
    """The path of the file of ours that an import reaches, '' for the package root, None for a foreign one."""
    if found.module.split(".")[0] != "fanwise":
        return None
    for name in (f"{found.module}.{found.name}", found.module):
        stem = "/".join(name.rstrip(".").split(".")[1:])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if stem and path in sources:
                return path
    return "" if found.module == "fanwise" else "/".join(found.module.split(".")[1:])


def layer_of(path: str) -> str:
    """The first folder; '' for the files of the package root, of which `python -m fanwise` is the command line."""
    if path == "__main__.py":
        return "cli"
    parts = PurePosixPath(path).parts
    return parts[0] if len(parts) > 1 or not path.endswith(".py") else ""


def wrong_arrows(sources: Sources) -> list[str]:
    wrong = []
    for path, text in sources.items():
        layer = layer_of(path)
        for found in imports_of(path, text):
            target = own_module(found, sources)
            if target is None:
                continue
            if target == "" or (found.name == "" and layer != ""):
                wrong.append(
                    f"{path}:{found.line} imports the package root; name the file: from ..base.errors import X"
                )
            elif layer_of(target) not in MAY_IMPORT.get(layer, ()):
                wrong.append(
                    f"{path}:{found.line} imports {target}: the arrow {layer} -> {layer_of(target)} is not drawn"
                )
    return wrong


def circles(sources: Sources, folder: str) -> list[list[str]]:
    """Groups of files of a folder that import each other in a circle, also inside functions, but not of types alone."""
    inside = [path for path in sources if path.startswith(folder)]
    reached = {
        path: {
            target
            for found in imports_of(path, sources[path], of_types=False)
            if (target := own_module(found, sources))
        }
        for path in inside
    }
    for between in inside:  # as Warshall closes a relation
        for path in inside:
            if between in reached[path]:
                reached[path] |= reached[between]
    groups = {
        frozenset(other for other in inside if other in reached[path] and path in reached[other]) for path in inside
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def wrong_optional_imports(sources: Sources) -> list[str]:
    return [
        f"{path}:{found.line} imports {found.module}, which only {OPTIONAL[library]} may"
        for path, text in sources.items()
        for found in imports_of(path, text)
        if (library := found.module.split(".")[0]) in OPTIONAL and not may_import(path, OPTIONAL[library])
    ]


def may_import(path: str, file: str) -> bool:
    name, folder = PurePosixPath(path).name, PurePosixPath(path).parent.name
    return name == file or name.startswith(file.removesuffix(".py") + "_") or f"{folder}.py" == file


def loud_in_quiet(sources: Sources, quiet: list[str]) -> list[str]:
    """What the files import of ours is held to the same rule, and so on: noise behind a door is still noise."""
    wrong = []
    ahead = list(quiet)
    for path in ahead:
        for found in imports_of(path, sources[path]):
            target = own_module(found, sources)
            top = found.module.split(".")[0]
            if target is not None and target in sources:
                ahead += [target] if target not in ahead and (target, found.name) not in BOUNDARIES else []
            elif top not in QUIET_MAY_IMPORT or found.name not in {"", *QUIET_MAY_USE.get(top, {found.name})}:
                wrong.append(f"{path}:{found.line} imports {found.module} {found.name}".rstrip())
        wrong += [f"{path}:{line} uses {what}" for line, what in loud_uses(sources[path])]
    return wrong


def loud_uses(text: str) -> Iterator[tuple[int, str]]:
    for node in nodes_of(text):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr not in QUIET_MAY_USE.get(node.value.id, {node.attr}):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call):
            called = dotted(node.func)
            if called in LOUD_BUILTINS:
                yield node.lineno, f"{called}()"
            elif called in ("random.Random", "Random") and not node.args:
                yield node.lineno, "a generator without a seed"


def test_imports_point_one_way(library: dict[str, str]) -> None:
    assert "\n".join(wrong_arrows(library)) == ""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("links/wires.py", "from ..pool import Pool"),
        ("links/wires.py", "from ..pool.current import current"),
        ("links/wires.py", "from .. import pool"),
        ("links/wires.py", "if TYPE_CHECKING:\n    from ..pool import Pool"),
        ("links/wires.py", "def f():\n    from fanwise.pool import Pool"),
        ("links/wires.py", "from importlib import import_module\nimport_module('fanwise.pool.current')"),
        ("plot/incumbents.py", "from ..tune import load_experiment"),
        ("tune/tuner.py", "from ..zoo import digits"),
        ("cli/main.py", "from ..testing import within"),
        ("pool/current.py", "from .. import __version__"),
        ("pool/current.py", "import fanwise"),
        ("pool/current.py", "import fanwise.base.errors"),
        ("utils.py", "from .cli import main"),
    ],
)
def test_a_wrong_arrow_is_seen(path: str, text: str) -> None:
    others = {"pool/__init__.py": "", "pool/current.py": "", "testing/__init__.py": ""}
    assert len(wrong_arrows({**others, path: text})) == 1


def test_every_arrow_of_the_design_is_allowed() -> None:
    assert wrong_arrows({
        "base/errors.py": "",
        "links/wires.py": "from ..base.errors import WireError\nfrom .frames import Frame\nfrom . import frames",
        "links/frames.py": "",
        "tune/tuner.py": "from ..pool import Pool\nfrom ..plot.incumbents import draw\nimport json, fanwise_other",
        "pool/__init__.py": "",
        "plot/incumbents.py": "",
        "__init__.py": "from . import tune as tune\nfrom .pool import Pool as Pool",
        "tune/__init__.py": "",
    }) == []  # fmt: skip


@pytest.mark.parametrize("layer", sorted({*CHAIN, "plot", "zoo", "testing", "cli"} - HAVE_CIRCLES))
def test_no_files_of_a_layer_import_each_other_in_a_circle(library: dict[str, str], layer: str) -> None:
    assert circles(library, f"{layer}/") == []


def test_a_circle_is_seen_also_inside_functions_but_not_of_types_alone() -> None:
    sources = {
        "parallel/a.py": "from .b import B",
        "parallel/b.py": "from .room.c import C",
        "parallel/room/c.py": "from ..a import A",
        "parallel/room/d.py": "from .c import C\ndef f():\n    from .e import E",
        "parallel/room/e.py": "from . import d",
        "parallel/f.py": "from .a import A",
        "pool/g.py": "from ..parallel.f import F",
    }
    expected = [["parallel/a.py", "parallel/b.py", "parallel/room/c.py"], ["parallel/room/d.py", "parallel/room/e.py"]]
    assert circles(sources, "parallel/") == expected
    of_types = "if TYPE_CHECKING:\n    from ..a import A"
    assert circles({**sources, "parallel/room/c.py": of_types}, "parallel/") == expected[1:]


def test_optional_libraries_stay_in_files_of_their_name(library: dict[str, str]) -> None:
    assert "\n".join(wrong_optional_imports(library)) == ""


def test_an_optional_library_elsewhere_is_seen() -> None:
    assert len(wrong_optional_imports({"tensor/a.py": "def f():\n    import jax.numpy as jnp"})) == 1
    assert len(wrong_optional_imports({"tensor/with_torch.py": "from jaxlib import xla"})) == 1
    assert len(wrong_optional_imports({"tensor/with_torch/wire.py": "import jax"})) == 1
    assert wrong_optional_imports({"tensor/with_jax.py": "import jax, jaxlib", "tune/a.py": "import json"}) == []
    assert wrong_optional_imports({"tensor/with_jax/wire.py": "import jax, jaxlib"}) == []


def test_quiet_files_hear_and_say_nothing(library: dict[str, str]) -> None:
    assert sorted(set(QUIET) - set(library)) == [], "the list of quiet files names files that are not there"
    assert "\n".join(loud_in_quiet(library, QUIET)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "from threading import Lock",
        "def f():\n    import numpy as np",
        "import random\nx = random.random()",
        "import random\nrandom.seed(1)",
        "from random import random",
        "import random\ngenerator = random.Random()",
        "import signal\nsignal.signal(2, handler)",
        "from .tree import Loud",
        "from ..base.clocks import SystemClock",
        "from ..base.nowhere import Thing",
        "print('hello')",
        "open('file')",
    ],
)
def test_noise_in_a_quiet_file_is_seen(text: str) -> None:
    sources = {"pool/leases.py": text, "pool/tree.py": "import select", "base/clocks.py": "import time"}
    assert len(loud_in_quiet(sources, ["pool/leases.py"])) == 1


def test_a_quiet_file_may_draw_from_a_seeded_generator() -> None:
    text = "import random, signal\ndef f(r: random.Random):\n    return random.Random('7/config/3').random()"
    assert loud_in_quiet({"pool/leases.py": text + "\nname = signal.Signals(9).name"}, ["pool/leases.py"]) == []
