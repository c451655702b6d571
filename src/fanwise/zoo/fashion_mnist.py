"""Fashion-MNIST (Zalando Research, MIT licence): 70,000 grey images of clothes, 28 x 28, ten classes.

    folder of four idx.gz files --checked by format--> Data
         ^--- missing ones are downloaded, checked against the published MD5 sums

Files that somebody put into the folder are checked by their format alone, so a part of the set in the same
format (a few hundred images for a quick test) is read like the whole.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import DataFileError
from .data import Data
from .downloads import Fetch, Published, download_missing, fetch_over_http
from .idx import read_pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

FOLDER_VARIABLE = "FANWISE_DATA"
_DEFAULT_FOLDER = "~/.cache/fanwise/fashion-mnist"
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
        folder: where the files are, or go; by default `$FANWISE_DATA`, else `~/.cache/fanwise/fashion-mnist`.
        download: fetch missing files (31 MB in all) from the publisher.
        fetch: opens one address; a test brings its own.

    Raises:
        DataFileError: a file is missing and not to be downloaded, could not be downloaded whole, or is not
            what its name says. The message names the file and what to do.

    Blocks while it downloads. With a folder that holds the files:

        data = fashion_mnist("data/fashion-mnist", download=False)
        data.train_images.shape                       # (60000, 1, 28, 28)
    """
    where = _folder(folder)
    if download:
        download_missing(PUBLISHED, where, _SOURCES, fetch)
    _check_all_there(where)
    train_images, train_labels, test_images, test_labels = (where / file.name for file in PUBLISHED)
    train = read_pair(train_images, train_labels, len(_CLASSES))
    test = read_pair(test_images, test_labels, len(_CLASSES))
    return Data(*_tensors(*train), *_tensors(*test), _CLASSES)


def _folder(folder: str | os.PathLike[str] | None) -> Path:
    if folder is None:
        folder = os.environ.get(FOLDER_VARIABLE) or _DEFAULT_FOLDER
    return Path(folder).expanduser()


def _check_all_there(folder: Path) -> None:
    missing = [file.name for file in PUBLISHED if not (folder / file.name).exists()]
    if missing:
        raise DataFileError(
            f"Fashion-MNIST is not complete: {', '.join(missing)} not in {folder}. Call with download=True, or put "
            f"the original files there, or name their folder (folder=, or the environment variable {FOLDER_VARIABLE})."
        )


def _tensors(images: "NDArray[np.uint8]", labels: "NDArray[np.uint8]") -> "tuple[Tensor, Tensor]":
    import numpy as np
    import torch

    pixels = torch.from_numpy(images.astype(np.float32)).div_(255.0).unsqueeze(1)
    return pixels, torch.from_numpy(labels.astype(np.int64))
