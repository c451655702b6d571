"""scikit-learn's handwritten digits: 1797 real images of 8 x 8 pixels, which need no download.

The images are enlarged to the size that LeNet expects. The split never changes: in each class, in an order drawn from a
seed of the class, the first fifth is for testing. Global random states are not used.
"""

import gzip
import random
from importlib.util import find_spec
from pathlib import Path

from ..base.errors import DataFileError
from ..base.extras import check_installed
from .data import Data

_NUM_CLASSES = 10
_SIDE = 8
_MAX_PIXEL = 16.0
_TEST_FRACTION = 0.2


def digits(size: int = 28) -> Data:
    """Return the digits 0 to 9 as written by 43 people: 1438 images for training, 359 for testing.

    Args:
        size: height and width in pixels, at least 1. The original 8 x 8 images are scaled bilinearly.

    Raises:
        ValueError: `size` is below 1.
        NotInstalled: torch or scikit-learn is not installed: `fanwise[demo]`.

    >>> digits().train_images.shape
    torch.Size([1438, 1, 28, 28])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size!r}")
    check_installed("the digits need", "torch", "sklearn", extra="demo")
    import numpy as np
    import torch
    from torch.nn.functional import interpolate

    with gzip.open(_table_of_sklearn()) as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.uint8))
    small = table[:, :-1].to(torch.float32).div_(_MAX_PIXEL).reshape(-1, 1, _SIDE, _SIDE)
    images = interpolate(small, size=(size, size), mode="bilinear", align_corners=False)
    labels = table[:, -1].to(torch.int64)
    train, test = (torch.tensor(half) for half in _split(labels.tolist()))
    names = tuple(str(digit) for digit in range(_NUM_CLASSES))
    return Data(images[train], labels[train], images[test], labels[test], names)


def _table_of_sklearn() -> Path:
    """Return the file inside scikit-learn, without importing it, which would take a second in every trial."""
    spec = find_spec("sklearn")
    package = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""
    file = Path(package, "datasets", "data", "digits.csv.gz")
    if not file.is_file():
        raise DataFileError(f"this version of scikit-learn has no file {file}. Install another version.")
    return file


def _split(labels: list[int]) -> tuple[list[int], list[int]]:
    """Return the indices for training and for testing, each in an order that mixes the classes."""
    train: list[tuple[float, int]] = []
    test: list[tuple[float, int]] = []
    for digit in range(_NUM_CLASSES):
        rng = random.Random(f"fanwise digits/{digit}")
        shuffled = sorted((rng.random(), index) for index, label in enumerate(labels) if label == digit)
        num_test = round(len(shuffled) * _TEST_FRACTION)
        test += shuffled[:num_test]
        train += shuffled[num_test:]
    return [index for _, index in sorted(train)], [index for _, index in sorted(test)]
