"""Fashion-MNIST (Zalando Research, MIT licence): 70,000 grey images of clothes, 28 x 28, ten classes.

    folder of four idx files --checked by format--> Data
         ^--- missing ones are downloaded, checked against the published MD5 sums

The folder may be one that torchvision has filled: its `root=`, with the files in FashionMNIST/raw, unpacked or not.
Files that somebody put there are checked by their format alone, so a part of the set in the same format (a few
hundred images for a quick test) is read like the whole.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import DataFileError
from ..base.extras import check_installed
from .data import Data
from .downloads import Fetch, Published, download_missing, fetch_over_http
from .idx import read_pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

FOLDER_VARIABLE = "FANWISE_DATA"
# Where it is looked for when nobody names a folder. The first is the download's; the others are those that
# torchvision's tutorials (root="data") and "Dive into Deep Learning" (root="../data") have.
_USUAL_FOLDERS = ("~/.cache/fanwise/fashion-mnist", "data", "../data")
_OF_TORCHVISION = Path("FashionMNIST", "raw")
_SOURCES = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
PUBLISHED = (
    Published("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    Published("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    Published("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    Published("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
)
_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def fashion_mnist(
    folder: str | os.PathLike[str] | None = None, download: bool = True, *, fetch: Fetch = fetch_over_http
) -> Data:
    """Fashion-MNIST from its four original files: 60,000 images for training, 10,000 for testing.

    Args:
        folder: where the files are, or go: the folder of the four, or the one that torchvision calls `root`. By
            default `$FANWISE_DATA`; without that the first of `~/.cache/fanwise/fashion-mnist`, `data` and `../data`
            that has them, and they go to the first.
        download: fetch missing files (31 MB in all) from the publisher, if the set is not there.
        fetch: opens one address; a test brings its own.

    Raises:
        DataFileError: a file is missing and not to be downloaded, could not be downloaded whole, or is not
            what its name says. The message names the file and what to do.
        NotInstalled: torch is not there: `fanwise[demo]`.

    Blocks while it downloads. With a folder that holds the files:

        data = fashion_mnist("data/fashion-mnist", download=False)
        data.train_images.shape                       # (60000, 1, 28, 28)
    """
    check_installed("Fashion-MNIST needs", "torch", extra="demo")
    roots = _roots(folder)
    files = _whole_set(roots)
    if files is None and download:
        download_missing(PUBLISHED, roots[0], _SOURCES, fetch)
        files = _whole_set(roots)
    if files is None:
        raise _incomplete(roots)
    train_images, train_labels, test_images, test_labels = files
    train = read_pair(train_images, train_labels, len(_CLASSES))
    test = read_pair(test_images, test_labels, len(_CLASSES))
    return Data(*_tensors(*train), *_tensors(*test), _CLASSES)


def _roots(folder: str | os.PathLike[str] | None) -> list[Path]:
    """The folders to look into, in this order. What is downloaded goes to the first."""
    named = folder or os.environ.get(FOLDER_VARIABLE)
    return [Path(root).expanduser() for root in ([named] if named else _USUAL_FOLDERS)]


def _whole_set(roots: Sequence[Path]) -> list[Path] | None:
    """The four files of the first folder that has all of them, packed or unpacked."""
    for place in (place for root in roots for place in (root, root / _OF_TORCHVISION)):
        found = [_found(place / file.name) for file in PUBLISHED]
        if all(found):
            return [file for file in found if file]
    return None


def _found(packed: Path) -> Path | None:
    """The file; of an unpacked one its name without .gz; None if neither is there."""
    return next((file for file in (packed, packed.with_suffix("")) if file.exists()), None)


def _incomplete(roots: Sequence[Path]) -> DataFileError:
    missing = [file.name for file in PUBLISHED if not _found(roots[0] / file.name)]
    return DataFileError(
        f"Fashion-MNIST is not complete: {'all four files' if len(missing) == len(PUBLISHED) else ', '.join(missing)} "
        f"missing in {', '.join(map(str, roots))}, and in {_OF_TORCHVISION} below. Call with download=True, or put the "
        f"original files there, or name their folder (folder=, or the environment variable {FOLDER_VARIABLE})."
    )


def _tensors(images: "NDArray[np.uint8]", labels: "NDArray[np.uint8]") -> "tuple[Tensor, Tensor]":
    import numpy as np
    import torch

    pixels = torch.from_numpy(images.astype(np.float32)).div_(255.0).unsqueeze(1)
    return pixels, torch.from_numpy(labels.astype(np.int64))
