"""MXNet's programs of the book, in the environment that `make test-mxnet` makes; skipped where there is none."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
FASHION = HERE.parents[2] / "shared" / "data" / "fashion-mnist-900"
LIMIT_S = 100.0

# Which results of MXNet the page on arrays shows, in this order.
PRINTED = "arange zeros ones normal list rows written exp arithmetic concat equal broadcast".split()

EDITS = [
    ("a command of notebooks", "%matplotlib inline\n", ""),
    ("what was trained is compared", "  print(f'test acc:", "  trained.append(device_params[-1])\n  print(f'test acc:"),
]
OF_TORCH = re.compile(r"\b(?:torch|nn|F)\b|\.to\(")
FIRST = """\
import warnings
warnings.simplefilter("ignore")
import mxnet
mxnet.npx.gpu = mxnet.npx.cpu
mxnet.random.seed(1)
trained = []
"""
LAST = """\
one, two = trained
def largest(some, others):
    return max(float(abs(a.asnumpy() - b.asnumpy()).max()) for a, b in zip(some, others))
print('between 1 and 2 devices:', largest(one, two))
print('in training:', largest(one, params))
"""

Run = Callable[[Path], str]


@pytest.fixture
def run_in_mxnet(repository: Path, tmp_path: Path) -> Run:
    python = repository / ".venv-mxnet" / "bin" / "python"
    if not python.exists():
        pytest.skip("MXNet needs an environment of its own: make test-mxnet")

    def run(script: Path) -> str:
        paths = [repository / "src", HERE / "shims"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "FANWISE_DATA": str(FASHION)}
        done = subprocess.run(
            [python, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_arrays_are_as_they_are_printed(
    run_in_mxnet: Run, document_text: Callable[[str], str], nested_lists: Callable[[str], list[Any]]
) -> None:
    lines = [line for line in document_text("d2l-2.1-four-engines").splitlines() if re.match(r"\(?array\(\[", line)]
    shown = dict(zip(PRINTED, map(nested_lists, lines), strict=True))
    for who, found in json.loads(run_in_mxnet(HERE / "mxnet_arrays.py")).items():
        for name, arrays in shown.items():
            for result, wanted in zip(found[name], arrays, strict=True):
                if name == "normal":
                    assert np.shape(result) == np.shape(wanted)
                else:
                    np.testing.assert_allclose(result, wanted, rtol=5e-5, err_msg=f"{who}: {name}")


def test_two_devices_train_as_one_does(
    run_in_mxnet: Run,
    read_document: Callable[..., list[str]],
    program_of: Callable[[list[str]], str],
    tmp_path: Path,
) -> None:
    found = [cell for cell in read_document("d2l-13.5-multi-gpu", EDITS) if not OF_TORCH.search(cell)]
    cells = [cell for before, cell in zip(["", *found], found, strict=False) if cell != before]
    functions = [name for cell in cells for name in re.findall(r"^def (\w+)", cell, re.M)]
    assert functions == ["lenet", "get_params", "allreduce", "split_batch", "train_batch", "train"] and len(cells) == 15
    script = tmp_path / "program.py"
    script.write_text(program_of([FIRST, *cells, LAST]))
    printed = run_in_mxnet(script)
    assert re.search(r"before allreduce:n \[\[1\. 1\.\]\].* n \[\[2\. 2\.\]\].*\n", printed)
    assert re.search(r"after allreduce:n \[\[3\. 3\.\]\].* n \[\[3\. 3\.\]\].*\n", printed)
    accuracies = re.findall(r"^test acc: (0\.\d\d), \d+\.\d sec/epoch on \[cpu\(0\).*\]$", printed, re.M)
    assert len(accuracies) == 2 and accuracies[0] == accuracies[1]
    difference = re.search(r"^between 1 and 2 devices: (\S+)\nin training: (\S+)$", printed, re.M)
    assert difference and float(difference[1]) < 0.05 * float(difference[2])
