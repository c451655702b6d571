"""What importing loads, seen from a fresh interpreter. How long it takes is measured in benchmarks/, not here."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from program_runs import LoadedInterpreter

import fanwise.base.errors
import fanwise.errors

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "numpy", "pandas", "matplotlib", "rich", "typer", "sklearn", "scipy", "yaml", "psutil", "cloudpickle"}
OPTIONAL = {"jax", "tensorflow", "mxnet", "ray", "optuna", "plotly", "starlette", "uvicorn"}


def loaded_by(code: str) -> set[str]:
    """The top-level modules that an interpreter has loaded after `code`."""
    show = "import sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_import_fanwise_loads_no_library_and_no_layer_but_base() -> None:
    ours = "[name for name in sys.modules if name.startswith('fanwise.')]"
    loaded = {"fanwise.base", "fanwise.base.lazy_names", "fanwise.base.version"}
    code = f"import fanwise, sys\nassert set({ours}) == {loaded!r}"
    assert loaded_by(code) & (HEAVY | OPTIONAL) == set()


def test_importing_links_loads_no_torch() -> None:
    assert "torch" not in loaded_by("import fanwise.links")


def test_only_links_between_hosts_load_tls() -> None:
    assert loaded_by("import fanwise.links") & {"ssl", "cryptography"} == set()
    assert loaded_by("import fanwise.links.transports.tcp") >= {"ssl", "cryptography"}


def test_importing_rpc_loads_no_more_than_is_needed_to_spawn_workers_and_walks_over_torch_not_once(
    torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, sys, torch\n"
        "gc.enable(); gc.unfreeze(); [gc.collect(1) for _ in range(11)]; before = gc.get_stats()[2]['collections']\n"
        "import fanwise.rpc as rpc\n"
        "parts = ('rpc.agent', 'links.link', 'rpc.autograd', 'rpc.streams', 'rpc.allowed', 'rpc.devices')\n"
        "print([name for name in parts if f'fanwise.{name}' in sys.modules])\n"
        "names = dict(vars(rpc))\n"
        "rpc.RRef, rpc.rpc_sync, rpc.functions, rpc.autograd, rpc.TensorPipeRpcBackendOptions\n"
        "print(gc.get_stats()[2]['collections'] - before, gc.get_freeze_count(), 'fanwise.rpc.agent' in sys.modules)\n"
        "print(rpc.BackendType.TENSORPIPE, 'init_rpc' in dir(rpc), rpc.init_rpc.__module__, 'init_rpc' in vars(rpc))\n"
        "import importlib, pkgutil\n"
        "for found in pkgutil.iter_modules(rpc.__path__): importlib.import_module(f'fanwise.rpc.{found.name}')\n"
        "print([name for name, value in names.items() if vars(rpc)[name] is not value])\n"
    )
    done = torch_loaded.run(script, folder=tmp_path)
    assert done.out == "[]\n0 0 False\nBackendType.TENSORPIPE True fanwise.rpc.starting True\n[]\n", done.said


def test_importing_rpc_leaves_frozen_what_the_program_has_frozen(
    torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, torch\ngc.freeze(); before = gc.get_freeze_count()\nimport fanwise.rpc\n"
        "print(gc.get_freeze_count() > before // 2 > 1000)\n"  # what ends is frozen no more
    )
    done = torch_loaded.run(script, folder=tmp_path)
    assert done.out == "True\n", done.said


def test_a_library_that_is_loaded_is_seen() -> None:
    assert loaded_by("import fanwise, numpy") & HEAVY == {"numpy"}


@pytest.mark.parametrize(
    ("name", "layer"), [("Pool", "pool"), ("current", "pool"), ("here", "parallel"), ("run", "parallel")]
)
def test_the_names_of_the_root_load_on_first_use(
    name: str, layer: str, torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    home = f"fanwise.{layer}"
    script = tmp_path / "script.py"
    script.write_text(f"import fanwise, sys\nassert '{home}' not in sys.modules\nfanwise.{name}\nsys.modules['{home}']")
    done = torch_loaded.run(script, folder=tmp_path)  # which has loaded nothing of fanwise
    assert (done.status, done.err) == (0, "")


def test_an_unknown_name_of_the_root_says_what_there_is() -> None:
    done = subprocess.run([sys.executable, "-c", "import fanwise\nfanwise.Tuner"], capture_output=True, text=True)
    assert "module 'fanwise' has no attribute 'Tuner'" in done.stderr
    assert "tune" in done.stderr


def test_import_fanwise_is_enough_for_every_layer_and_for_the_errors() -> None:
    layers = {path.parent.name for path in (REPOSITORY / "src" / "fanwise").glob("*/__init__.py")} - {
        "cli",
        "links",
        "rendezvous",
    }
    uses = "\n".join(f"assert fanwise.{name}.__name__ == 'fanwise.{name}'" for name in sorted({*layers, "errors"}))
    listed = f"assert { ({*layers, 'errors', 'Pool'})!r} <= set(dir(fanwise))"
    assert "fanwise" in loaded_by(f"import fanwise\n{listed}\n{uses}\nfrom fanwise import errors, rpc")


def test_the_errors_import_by_name_and_load_nothing_else() -> None:
    code = "from fanwise.errors import WorkerLostError\nassert WorkerLostError.__module__ == 'fanwise.base.errors'"
    assert loaded_by(code) & (HEAVY | OPTIONAL) == set()


def test_every_error_is_public() -> None:
    def named(module: ModuleType) -> dict[str, object]:
        return {name: value for name, value in vars(module).items() if isinstance(value, type)}

    assert named(fanwise.errors) == named(fanwise.base.errors)
