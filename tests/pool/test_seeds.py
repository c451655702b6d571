"""Seeds of jobs, seeding of libraries at and after their import, and import watchers."""

import hashlib
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fanwise.pool.seeds
from fanwise.pool.seeds import job_seed, seed_everything

SOURCES = Path(fanwise.pool.seeds.__file__).parents[2]
SEED = 2**63 + 12345


@given(st.integers(), st.integers(0, 10**6), st.integers(0, 10))
def test_a_seed_is_the_documented_hash(experiment: int, job: int, attempt: int) -> None:
    digest = hashlib.sha256(f"fanwise/{experiment}/{job}/{attempt}".encode()).hexdigest()
    assert job_seed(experiment, job, attempt) == int(digest[:16], 16)


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), torch.rand(()).item()


@pytest.fixture(autouse=True)
def restored_states() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_the_same_seed_gives_the_same_numbers_in_every_library() -> None:
    seed_everything(SEED)
    first = draws()
    seed_everything(SEED)
    assert draws() == first
    assert torch.initial_seed() == SEED


@pytest.mark.parametrize("bit", range(64))
def test_every_bit_of_the_seed_counts(bit: int) -> None:
    seed_everything(SEED)
    first = draws()
    seed_everything(SEED ^ (1 << bit))
    same = [a == b for a, b in zip(draws(), first, strict=True)]
    assert same == [False, False, bit >= 32]  # torch's CPU generator knows 32 bits


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=rf"a seed is a number in \[0, 2\*\*64\), got {seed}"):
        seed_everything(seed)


# -- libraries that are not loaded yet ---------------------------------------------------------------------------------

# TensorFlow counts as loaded.
HEAD = f"""
import contextlib, importlib, importlib.util, random, sys, types
from fanwise.pool.late_imports import around_imports, call_on_import
from fanwise.pool.seeds import seed_everything, seed_on_import
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
sys.modules["tensorflow"].random = types.SimpleNamespace(set_seed=lambda seed: None)
SEED = {SEED}
before = list(sys.meta_path)
"""


def output_of_python(code: str, folder: Path) -> list[str]:
    """Return the output lines of a new interpreter with `folder` first on its path."""
    environment = {"PYTHONPATH": f"{folder}:{SOURCES}"}
    command = [sys.executable, "-c", HEAD + textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """Packages that print when they are seeded."""
    for path, text in {
        "numpy/__init__.py": "",
        "numpy/random/__init__.py": "def seed(words): print('numpy', words)\nready = True",
        "torch/__init__.py": "print('torch begins')\ndef manual_seed(seed): print('torch', seed)\nprint('torch ends')",
        "torch/nn.py": "",
        "tensorflow/__init__.py": "class random:\n    set_seed = staticmethod(lambda seed: print('tensorflow', seed))",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_real_libraries_are_seeded_by_their_import(tmp_path: Path) -> None:
    printed = output_of_python(
        """
        seed_everything(SEED)
        assert not {"numpy", "torch"} & set(sys.modules)
        with seed_on_import(SEED):
            import torch, numpy
            first = torch.rand(()).item(), numpy.random.random()
            assert sys.meta_path == before
            assert not torch.cuda.is_initialized()
        print(*first)
        """,
        tmp_path,
    )
    seed_everything(SEED)
    _, from_numpy, from_torch = draws()
    assert printed == [f"{from_torch} {from_numpy}"]


def test_each_library_is_seeded_once_after_its_own_code(stand_ins: Path) -> None:
    printed = output_of_python(
        """
        with seed_on_import(SEED):
            import torch.nn
            assert len(sys.meta_path) == len(before) + 1
            import numpy
            print("numpy alone")
            import numpy.random
            assert sys.meta_path == before
            importlib.reload(torch)
        """,
        stand_ins,
    )
    numpy_line = f"numpy {[SEED >> 32, SEED & 0xFFFFFFFF]}"
    reloaded = ["torch begins", "torch ends"]
    assert printed == ["torch begins", "torch ends", f"torch {SEED}", "numpy alone", numpy_line, *reloaded]


def test_finding_a_library_does_not_seed_it(stand_ins: Path) -> None:
    printed = output_of_python(
        """
        with seed_on_import(SEED):
            assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
            assert importlib.util.find_spec("nothing_here") is None
            assert "torch" not in sys.modules
            print("looked")
            import torch
            assert type(torch.__loader__).__name__ == "SourceFileLoader"
            assert "exec_module" not in vars(torch.__loader__)
            assert "manual_seed" in torch.__loader__.get_source("torch")
        """,
        stand_ins,
    )
    assert printed == ["looked", "torch begins", "torch ends", f"torch {SEED}"]


def test_an_import_that_fails_is_seeded_when_it_succeeds(stand_ins: Path) -> None:
    (stand_ins / "torch/__init__.py").write_text(
        "import builtins\n"
        "builtins.tries = getattr(builtins, 'tries', 0) + 1\n"
        "if builtins.tries == 1: raise ImportError('half installed')\n"
        "def manual_seed(seed): print('torch', seed)\n"
    )
    printed = output_of_python(
        """
        with seed_on_import(SEED):
            try:
                import torch
            except ImportError as error:
                print(error)
            assert "torch" not in sys.modules
            import torch
        """,
        stand_ins,
    )
    assert printed == ["half installed", f"torch {SEED}"]


def test_other_import_hooks_are_called(stand_ins: Path) -> None:
    printed = output_of_python(
        """
        class Counts:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    print("asked")
                if name == "numpy.random":
                    raise ModuleNotFoundError("not today")

        sys.meta_path.insert(0, Counts())
        with seed_on_import(SEED):
            import torch
            try:
                import numpy.random
            except ModuleNotFoundError as error:
                print(error)
        """,
        stand_ins,
    )
    assert printed == ["asked", "torch begins", "torch ends", f"torch {SEED}", "not today"]


def test_tensorflow_is_seeded_with_a_signed_64_bit_number(stand_ins: Path) -> None:
    printed = output_of_python(
        """
        del sys.modules["tensorflow"]
        with seed_on_import(SEED):
            import tensorflow
        seed_everything(7)
        """,
        stand_ins,
    )
    assert printed == [f"tensorflow {SEED - 2**63}", "tensorflow 7"]


def test_several_watchers_of_one_library_are_called(stand_ins: Path) -> None:
    printed = output_of_python(
        """
        call_on_import({"torch": lambda module: print("its share of the GPU")})
        with seed_on_import(SEED):
            import torch
            assert "exec_module" not in vars(torch.__loader__)
            import numpy.random
        assert sys.meta_path == before
        """,
        stand_ins,
    )
    calls = ["its share of the GPU", f"torch {SEED}"]
    assert printed[:2] == ["torch begins", "torch ends"] and sorted(printed[2:4]) == calls


def test_modules_are_executed_in_a_context_with_their_imports(stand_ins: Path) -> None:
    (stand_ins / "outer.py").write_text("import random, inner\nrandom.random()")
    (stand_ins / "inner.py").write_text("print('inner')")
    printed = output_of_python(
        """
        @contextlib.contextmanager
        def unseen():
            state = random.getstate()
            yield
            random.setstate(state)

        random.seed(3)
        state = random.getstate()
        watcher = around_imports(unseen)
        import outer
        assert random.getstate() == state
        watcher.leave()
        assert sys.meta_path == before
        importlib.reload(outer)
        assert random.getstate() != state
        """,
        stand_ins,
    )
    assert printed == ["inner"]
