"""The book's section on training on several GPUs, from scratch: as it is printed, and with the primitives of fanwise.

The programs of PyTorch and MXNet stand on the page cell by cell; here PyTorch's run. With 700 images in the place of
60,000 the book's ten epochs are 30 steps: the network begins to learn, which is enough to compare what is trained.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

FASHION = Path(__file__).resolve().parents[3] / "shared" / "data" / "fashion-mnist-900"

EDITS = [
    ("a command of notebooks", "%matplotlib inline\n", ""),
    ("what is on the CPU already is not copied", "[p.to(device) for", "[p.to(device).clone() for"),
    ("what was trained is compared", "  print(f'test acc:", "  trained.append(device_params[-1])\n  print(f'test acc:"),
]
OF_MXNET = re.compile(r"\b(?:mxnet|gluon|npx|np|autograd|copyto|ctx)\b")
FIRST = """\
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
trained = []
if torch.cuda.device_count() < 2:
    torch.cuda.synchronize = lambda: None
    torch.nn.parallel.scatter = lambda inputs, devices: inputs.chunk(len(devices))
"""
OURS = """\
from fanwise.parallel import allreduce, replicate, split_batch
def get_params(params, device):
    return [p.requires_grad_() for p in replicate(params, [device])[0]]
"""
LAST = """\
torch.set_grad_enabled(False)
one, two = trained
print('between 1 and 2 devices:', max(float((a - b).abs().max()) for a, b in zip(one, two)))
print('in training:', max(float((a - b).abs().max()) for a, b in zip(one, params)))
print('norms:', *(float(p.double().norm()) for p in one + two))
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cells(read_document: Callable[..., list[str]]) -> list[str]:
    """PyTorch's. A cell that both programs have stands there twice."""
    found = [cell for cell in read_document("d2l-13.5-multi-gpu", EDITS) if not OF_MXNET.search(cell)]
    return [cell for before, cell in zip(["", *found], found, strict=False) if cell != before]


def test_all_cells_are_found(cells: list[str]) -> None:
    functions = [name for cell in cells for name in re.findall(r"^def (\w+)", cell, re.M)]
    assert functions == ["lenet", "get_params", "allreduce", "split_batch", "train_batch", "train"]
    assert len(cells) == 14
    assert cells[-2:] == [f"train(num_gpus={number}, batch_size=256, lr=0.2)" for number in (1, 2)]


def test_two_devices_train_as_one_does_and_ours_as_the_books(
    cells: list[str], run_cells: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANWISE_DATA", str(FASHION))
    printed = run_cells(FIRST, *cells, LAST)
    assert re.match(r"b1 weight: tensor\(\[0\., .*requires_grad=True\)\nb1 grad: None\n", printed, re.S)
    assert re.search(r"before allreduce:n tensor\(\[\[1\., 1\.\]\].*\) n tensor\(\[\[2\., 2\.\]\].*\)\n", printed)
    assert re.search(r"after allreduce:n tensor\(\[\[3\., 3\.\]\].*\) n tensor\(\[\[3\., 3\.\]\].*\)\n", printed)
    assert re.search(r"output: \(tensor\(\[\[0, +1, .* 9\]\].*\), tensor\(\[\[10, 11, .* 19\]\].*\)\)\n", printed, re.S)
    accuracies = re.findall(r"^test acc: (0\.\d\d), \d+\.\d sec/epoch on \[device\(.*\)\]$", printed, re.M)
    assert len(accuracies) == 2 and accuracies[0] == accuracies[1]
    difference = re.search(r"^between 1 and 2 devices: (\S+)\nin training: (\S+)$", printed, re.M)
    assert difference and float(difference[1]) < 0.05 * float(difference[2])  # rounding: 5e-18 of 6e-3 in float64

    own = next(number for number, cell in enumerate(cells) if cell.startswith("def train_batch"))
    ours = run_cells(FIRST, *cells[:own], OURS, *cells[own:], LAST)
    assert ours.splitlines()[-3:] == printed.splitlines()[-3:], "the same bits"
