"""scikit-learn's handwritten digits: 1797 real images of 8 x 8 pixels that ship inside its package.

The default data of the demo, because they need no download. They are enlarged to the size that LeNet expects.
The split is part of this file and never changes: in each class, in an order drawn from the class's own seed,
the first fifth is for testing, so that every class is in both halves in the same proportion. It reads no random
state of the process and changes none.
"""

import gzip
import random
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.extras import check_installed
from .data import Data
from .with_sklearn import load_table, shipped_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUM_CLASSES = 10
_SIDE = 8
_BRIGHTEST = 16.0
_TEST_PART = 0.2


def digits(size: int = 28) -> Data:
    """The digits 0 to 9 as written by 43 people: 1438 images for training, 359 for testing.

    Args:
        size: height and width in pixels, at least 1. The original 8 x 8 images are enlarged bilinearly.

    Raises:
        ValueError: `size` is below 1.
        NotInstalled: torch or scikit-learn is not there: `fanwise[demo]`.

    >>> digits().train_images.shape
    torch.Size([1438, 1, 28, 28])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size!r}")
    check_installed("the digits need", "torch", "sklearn", extra="demo")
    import torch
    from torch.nn.functional import interpolate

    pixels, labels_all = read_table()
    small = torch.from_numpy(pixels).to(torch.float32).div_(_BRIGHTEST).reshape(-1, 1, _SIDE, _SIDE)
    images = interpolate(small, size=(size, size), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(labels_all).to(torch.int64)
    train, test = (torch.tensor(half) for half in _split(labels_all.tolist()))
    names = tuple(str(digit) for digit in range(_NUM_CLASSES))
    return Data(images[train], labels[train], images[test], labels[test], names)


def read_table(file: Path | None = None) -> "tuple[NDArray[np.uint8], NDArray[np.uint8]]":
    """Pixels (1797, 64) from 0 to 16, and labels (1797,), from scikit-learn's own table."""
    import numpy as np

    file = file or shipped_table()
    if not file.is_file():
        return load_table()
    with gzip.open(file) as text:
        table = np.loadtxt(text, delimiter=",", dtype=np.uint8)
    return table[:, :-1], table[:, -1]


def _split(labels: list[int]) -> tuple[list[int], list[int]]:
    """Indices for training and for testing, each in an order that mixes the classes."""
    train: list[tuple[float, int]] = []
    test: list[tuple[float, int]] = []
    for digit in range(_NUM_CLASSES):
        chance = random.Random(f"fanwise digits/{digit}")
        drawn = sorted((chance.random(), index) for index, label in enumerate(labels) if label == digit)
        cut = round(len(drawn) * _TEST_PART)
        test += drawn[:cut]
        train += drawn[cut:]
    return [index for _, index in sorted(train)], [index for _, index in sorted(test)]
