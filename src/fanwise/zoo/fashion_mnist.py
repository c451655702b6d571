"""Fashion-MNIST (Zalando Research, MIT license): 70,000 grey images of clothes, 28 x 28 pixels, ten classes.

Reads the four original files, packed or unpacked, also from the folder of torchvision. A part of the set in the same
format is valid, too. Files are downloaded completely and with the published MD5 sum, or not at all.
"""

import gzip
import hashlib
import http.client
import os
import struct
import sys
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import DataFileError
from ..base.extras import check_installed
from .data import Data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

FOLDER_VARIABLE = "FANWISE_DATA"
# Default folders: of downloads, and of torchvision's tutorials and "Dive into Deep Learning".
_DEFAULT_FOLDERS = ("~/.cache/fanwise/fashion-mnist", "data", "../data")
_TORCHVISION_FOLDER = Path("FashionMNIST", "raw")
SOURCES = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
PUBLISHED = {  # {name: (size in bytes, MD5)}
    "train-images-idx3-ubyte.gz": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte.gz": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte.gz": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte.gz": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
}
_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_SIDE = 28
_TIMEOUT_S = 30.0


def fashion_mnist(folder: str | os.PathLike[str] | None = None, download: bool = True) -> Data:
    """Return Fashion-MNIST: 60,000 images for training, 10,000 for testing. Blocks during a download.

    Args:
        folder: of the four files, or the `root` of torchvision. Default: `$FANWISE_DATA`, or the first of
            `~/.cache/fanwise/fashion-mnist`, `data` and `../data` that has the files.
        download: download missing files (31 MB in all) to the first of these folders.

    Raises:
        DataFileError: a file is missing, invalid, or cannot be downloaded.
        NotInstalled: torch is not installed: `fanwise[demo]`.

    Example:

        data = fashion_mnist("data/fashion-mnist", download=False)
        data.train_images.shape                       # (60000, 1, 28, 28)
    """
    check_installed("Fashion-MNIST needs", "torch", extra="demo")
    named = folder or os.environ.get(FOLDER_VARIABLE)
    roots = [Path(root).expanduser() for root in ([named] if named else _DEFAULT_FOLDERS)]
    files = _complete_set(roots)
    if files is None and download:
        for name in PUBLISHED:
            if not (roots[0] / name).exists():
                _download(name, roots[0])
        files = _complete_set(roots)
    if files is None:
        missing = [name for name in PUBLISHED if not _packed_or_not(roots[0] / name)]
        raise DataFileError(
            f"Fashion-MNIST is not complete: {'all four files' if len(missing) == 4 else ', '.join(missing)} missing "
            f"in {', '.join(map(str, roots))}, and in {_TORCHVISION_FOLDER} below. Call with download=True, or name "
            f"the folder of the original files (folder=, or the environment variable {FOLDER_VARIABLE})."
        )
    train_images, train_labels, test_images, test_labels = files
    return Data(*_tensors(train_images, train_labels), *_tensors(test_images, test_labels), _CLASSES)


def _complete_set(roots: Sequence[Path]) -> list[Path] | None:
    """Return the four files of the first folder that has all of them."""
    for folder in (folder for root in roots for folder in (root, root / _TORCHVISION_FOLDER)):
        files = [_packed_or_not(folder / name) for name in PUBLISHED]
        if all(files):
            return [file for file in files if file]
    return None


def _packed_or_not(packed: Path) -> Path | None:
    return next((file for file in (packed, packed.with_suffix("")) if file.exists()), None)


def _download(name: str, folder: Path) -> None:
    """Download a file from the first source that has it. Other processes may download it at the same time."""
    from rich.console import Console
    from rich.progress import wrap_file

    size_bytes, md5 = PUBLISHED[name]
    console = Console(file=sys.stderr)
    failures = []
    for source in SOURCES:
        try:
            with urllib.request.urlopen(f"{source}/{name}", timeout=_TIMEOUT_S) as response:
                hidden = not console.is_terminal
                with wrap_file(response, size_bytes, description=name, console=console, disable=hidden) as body:
                    content = body.read(size_bytes + 1)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"  {source}/{name}: {error or type(error).__name__}")
            continue
        if len(content) == size_bytes and hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f".{name}.{os.getpid()}"
            try:
                partial.write_bytes(content)
                partial.replace(folder / name)
            finally:
                partial.unlink(missing_ok=True)
            return
        failures.append(f"  {source}/{name}: expected {size_bytes} bytes with MD5 {md5}, got other content")
    raise DataFileError(
        f"{name} could not be downloaded:\n"
        + "\n".join(failures)
        + f"\nTry again later, or put the file into {folder}."
    )


def _tensors(images_file: Path, labels_file: Path) -> "tuple[Tensor, Tensor]":
    import numpy as np
    import torch

    images = _read(images_file, magic=2051, shape=(_SIDE, _SIDE))
    labels = _read(labels_file, magic=2049, shape=())
    if len(images) != len(labels) or not len(images):
        raise _invalid(labels_file, "one label per image and at least one", f"{len(labels)} for {len(images)} images")
    if labels.max() >= len(_CLASSES):
        raise _invalid(labels_file, f"labels from 0 to {len(_CLASSES) - 1}", f"label {labels.max()}")
    pixels = torch.from_numpy(images.astype(np.float32)).div_(255.0).unsqueeze(1)
    return pixels, torch.from_numpy(labels.astype(np.int64))


def _read(file: Path, *, magic: int, shape: tuple[int, ...]) -> "NDArray[np.uint8]":
    """Read a file of the idx format: magic number, count and shape as big-endian u32, and one byte per value."""
    import numpy as np

    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            content = opened.read()
    except (EOFError, OSError, zlib.error) as error:
        raise _invalid(file, "a complete file", str(error)) from error
    header = struct.Struct(f">{2 + len(shape)}I")
    if len(content) < header.size:
        raise _invalid(file, f"an idx header of {header.size} bytes", f"{len(content)} bytes")
    file_magic, count, *sides = header.unpack_from(content)
    if (file_magic, *sides) != (magic, *shape):
        raise _invalid(file, f"magic number and shape {(magic, *shape)}", str((file_magic, *sides)))
    values = np.frombuffer(content, np.uint8, offset=header.size)
    if values.size != count * int(np.prod(shape)):
        raise _invalid(file, f"{count * int(np.prod(shape))} bytes after the header", str(values.size))
    return values.reshape(count, *shape)


def _invalid(file: Path, expected: str, content: str) -> DataFileError:
    return DataFileError(
        f"{file.name} in {file.parent} cannot be used: expected {expected}, found {content}. "
        f"Delete the file so that it is downloaded again, or replace it by the original."
    )
