"""The idx format of MNIST and its kin: a file of a big-endian header and bytes, as it is or packed (.gz).

    magic (u32): 2051 images, 2049 labels | count (u32) | images: rows, columns (u32 each) | one byte a value

Everything is checked before an array is made: gzip's own checksum and end, magic, counts, sizes, values.
Whatever is wrong is told as `DataFileError` with the file's name, what was expected and what was found.
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import DataFileError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_IMAGES = 2051
_LABELS = 2049
_SIDE = 28


def read_images(file: Path) -> "NDArray[np.uint8]":
    """Images of shape (N, 28, 28)."""
    import numpy as np

    raw = _unpacked(file)
    count, rows, columns = _header(raw, file, magic=_IMAGES, numbers=3)
    if (rows, columns) != (_SIDE, _SIDE):
        raise _wrong(file, f"images of {_SIDE} x {_SIDE} pixels", f"{rows} x {columns}")
    _check_length(raw, file, head_bytes=16, body_bytes=count * rows * columns)
    return np.frombuffer(raw, np.uint8, offset=16).reshape(count, rows, columns)


def read_labels(file: Path, num_classes: int) -> "NDArray[np.uint8]":
    """Labels of shape (N,), each below `num_classes`."""
    import numpy as np

    raw = _unpacked(file)
    (count,) = _header(raw, file, magic=_LABELS, numbers=1)
    _check_length(raw, file, head_bytes=8, body_bytes=count)
    labels = np.frombuffer(raw, np.uint8, offset=8)
    if labels.size and labels.max() >= num_classes:
        raise _wrong(file, f"labels from 0 to {num_classes - 1}", f"a label {labels.max()}")
    return labels


def read_pair(images_file: Path, labels_file: Path, num_classes: int) -> "tuple[NDArray[np.uint8], NDArray[np.uint8]]":
    """Images and the labels that belong to them, equally many and at least one."""
    images, labels = read_images(images_file), read_labels(labels_file, num_classes)
    if len(images) != len(labels):
        raise _wrong(labels_file, f"{len(images)} labels, one for each image of {images_file.name}", str(len(labels)))
    if not len(images):
        raise _wrong(images_file, "at least one image", "none")
    return images, labels


def _unpacked(file: Path) -> bytes:
    packed = file.suffix == ".gz"
    try:
        with gzip.open(file) if packed else file.open("rb") as content:
            return content.read()
    except FileNotFoundError:
        raise _wrong(file, "a file of the idx format", "no file") from None
    except (EOFError, OSError, zlib.error) as error:
        size_bytes = file.stat().st_size if file.is_file() else 0
        expected = "a whole gzip file" if packed else "a file that can be read"
        raise _wrong(file, expected, f"{size_bytes} bytes ({error})") from error


def _header(raw: bytes, file: Path, *, magic: int, numbers: int) -> tuple[int, ...]:
    size_bytes = 4 + 4 * numbers
    if len(raw) < size_bytes:
        raise _wrong(file, f"an idx header of {size_bytes} bytes", f"{len(raw)} bytes")
    found, *rest = struct.unpack_from(f">{1 + numbers}I", raw)
    if found != magic:
        raise _wrong(file, f"the idx magic number {magic}", str(found))
    return tuple(rest)


def _check_length(raw: bytes, file: Path, *, head_bytes: int, body_bytes: int) -> None:
    if len(raw) != head_bytes + body_bytes:
        raise _wrong(file, f"{body_bytes} bytes after the idx header, as that says", str(len(raw) - head_bytes))


def _wrong(file: Path, expected: str, found: str) -> DataFileError:
    return DataFileError(
        f"{file.name} in {file.parent} cannot be used: expected {expected}, found {found}. "
        f"Delete the file and let it be downloaded again, or put the original there."
    )
