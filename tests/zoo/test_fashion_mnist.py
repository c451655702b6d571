"""Fashion-MNIST: invalid files are named and not used, downloads are complete or leave nothing."""

import gzip
import hashlib
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fanwise.base.errors import DataFileError
from fanwise.zoo import fashion_mnist

module = sys.modules[fashion_mnist.__module__]

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = module.PUBLISHED


def images(count: int, *, magic: int = 2051, rows: int = 28, pixels: bytes | None = None) -> bytes:
    """An idx file of images whose pixels count up."""
    body = bytes(n % 256 for n in range(count * rows * 28)) if pixels is None else pixels
    return struct.pack(">4I", magic, count, rows, 28) + body


def labels(*values: int, magic: int = 2049) -> bytes:
    return struct.pack(">2I", magic, len(values)) + bytes(values)


def gzipped(raw: bytes) -> bytes:
    """The same bytes in every process: gzip would put the time of day into its header."""
    return gzip.compress(raw, mtime=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a whole little set: three images for training, two for testing."""
    for name, raw in [
        (TRAIN_IMAGES, images(3)),
        (TRAIN_LABELS, labels(0, 9, 4)),
        (TEST_IMAGES, images(2)),
        (TEST_LABELS, labels(1, 2)),
    ]:
        (tmp_path / name).write_bytes(gzipped(raw))
    return tmp_path


def test_a_little_set_in_the_same_format_is_read(folder: Path) -> None:
    data = fashion_mnist(folder)
    assert data.train_images.shape == (3, 1, 28, 28)
    assert data.test_labels.tolist() == [1, 2]
    assert (data.train_images.dtype, data.train_labels.dtype) == (torch.float32, torch.int64)
    assert torch.equal((data.train_images.flatten()[:300] * 255).round().int(), torch.arange(300).int() % 256)
    assert (data.train_images.min().item(), data.train_images.max().item()) == (0, 1)
    assert [data.classes[label] for label in data.train_labels] == ["T-shirt/top", "Ankle boot", "Coat"]


def test_the_folder_may_come_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_DATA", str(folder))
    assert len(fashion_mnist(download=False).train_labels) == 3


def test_the_folder_is_below_the_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FANWISE_DATA", raising=False)
    with pytest.raises(DataFileError) as caught:
        fashion_mnist(download=False)
    assert str(tmp_path / ".cache" / "fanwise" / "fashion-mnist") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_root_of_torchvision_is_understood_packed_and_unpacked(folder: Path, tmp_path: Path) -> None:
    raw = tmp_path / "root" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in module.PUBLISHED:
        (folder / name).rename(raw / name)
    packed = fashion_mnist(tmp_path / "root")
    for name in module.PUBLISHED:
        (raw / name.removesuffix(".gz")).write_bytes(gzip.decompress((raw / name).read_bytes()))
        (raw / name).unlink()
    unpacked = fashion_mnist(tmp_path / "root")
    assert torch.equal(packed.train_images, unpacked.train_images)
    assert unpacked.test_labels.tolist() == [1, 2]


@pytest.mark.parametrize("root", ["data", "../data"])
def test_the_folders_of_tutorials_are_looked_into_when_none_is_named(
    folder: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, raw = folder / "work", folder / "work" / root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in module.PUBLISHED:
        (folder / name).rename(raw / name)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("FANWISE_DATA", raising=False)
    assert len(fashion_mnist(download=False).train_labels) == 3


def test_a_named_folder_is_the_only_one_that_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "data").symlink_to(folder)  # ../data has the set
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("FANWISE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataFileError, match=r"four files missing in .*/elsewhere, and in FashionMNIST/raw below. Call"):
        fashion_mnist(download=False)


def test_a_file_that_was_unpacked_is_read_beside_packed_ones(folder: Path) -> None:
    (folder / TRAIN_LABELS.removesuffix(".gz")).write_bytes(labels(0, 9, 4))
    (folder / TRAIN_LABELS).unlink()
    assert fashion_mnist(folder).train_labels.tolist() == [0, 9, 4]


def test_an_unpacked_file_that_is_wrong_is_named(folder: Path) -> None:
    (folder / TRAIN_LABELS).rename(folder / TRAIN_LABELS.removesuffix(".gz"))
    with pytest.raises(DataFileError, match=r"train-labels-idx1-ubyte in .*magic number and shape .*2049"):
        fashion_mnist(folder, download=False)


def test_missing_files_are_listed_when_nothing_may_be_downloaded(folder: Path) -> None:
    (folder / TRAIN_LABELS).unlink()
    (folder / TEST_IMAGES).unlink()
    with pytest.raises(DataFileError, match=f"{TRAIN_LABELS}, {TEST_IMAGES} missing in .*download=True"):
        fashion_mnist(folder, download=False)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        pytest.param(TRAIN_IMAGES, gzipped(images(3))[:-100], "a complete file", id="cut short"),
        pytest.param(TRAIN_IMAGES, gzipped(images(3))[:-4] + b"\0\0\0\0", "a complete file", id="no checksum"),
        pytest.param(
            TRAIN_IMAGES, gzipped(images(3))[:10] + b"\xff" * 100, "a complete file", id="garbage behind the header"
        ),
        pytest.param(TRAIN_LABELS, b"<html>not found</html>", "a complete file", id="a page of HTML"),
        pytest.param(TRAIN_LABELS, b"", "8 bytes, found 0", id="empty"),
        pytest.param(
            TRAIN_LABELS, gzipped(b"\0\0"), "an idx header of 8 bytes, found 2 bytes", id="short header of labels"
        ),
        pytest.param(TEST_IMAGES, gzipped(labels(1, 2)), "header of 16 bytes, found 10", id="short header of images"),
        pytest.param(
            TEST_LABELS,
            gzipped(images(2)),
            r"magic number and shape \(2049,\), found \(2051,\)",
            id="images in place of labels",
        ),
        pytest.param(
            TEST_IMAGES,
            gzipped(images(2, magic=2049)),
            r"magic number and shape \(2051, 28, 28\), found \(2049, 28, 28\)",
            id="labels in place of images",
        ),
        pytest.param(
            TRAIN_IMAGES,
            gzipped(images(3, rows=32)),
            r"shape \(2051, 28, 28\), found \(2051, 32, 28\)",
            id="images of 32 rows",
        ),
        pytest.param(
            TRAIN_IMAGES,
            gzipped(images(3, pixels=bytes(2000))),
            "2352 bytes after the header, found 2000",
            id="too few pixels",
        ),
        pytest.param(
            TRAIN_IMAGES,
            gzipped(images(3, pixels=bytes(2353))),
            "2352 bytes after the header, found 2353",
            id="too many pixels",
        ),
        pytest.param(TEST_LABELS, gzipped(labels(1, 10)), "labels from 0 to 9, found label 10", id="a label of 10"),
        pytest.param(
            TEST_LABELS,
            gzipped(labels(1)),
            "one label per image and at least one, found 1 for 2 images",
            id="one label for two images",
        ),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(folder: Path, name: str, content: bytes, says: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DataFileError, match=f"{name} in {folder} cannot be used: expected .*{says}"):
        fashion_mnist(folder, download=False)
    assert (folder / name).read_bytes() == content


def test_a_set_without_images_is_refused(folder: Path) -> None:
    (folder / TEST_IMAGES).write_bytes(gzipped(images(0)))
    (folder / TEST_LABELS).write_bytes(gzipped(labels()))
    with pytest.raises(DataFileError, match="one label per image and at least one, found 0"):
        fashion_mnist(folder, download=False)


def test_a_folder_in_place_of_a_file_is_named(folder: Path) -> None:
    (folder / TEST_LABELS).unlink()
    (folder / TEST_LABELS).mkdir()
    with pytest.raises(DataFileError, match=TEST_LABELS):
        fashion_mnist(folder, download=False)


def test_nine_hundred_original_images_are_read(repository: Path) -> None:
    original = repository.parent / "shared" / "data" / "fashion-mnist-900"
    if not original.is_dir():
        pytest.skip("the part of Fashion-MNIST that developers share is not here")
    data = fashion_mnist(original, download=False)
    assert (data.train_images.shape, data.test_images.shape) == ((700, 1, 28, 28), (200, 1, 28, 28))
    assert (data.train_labels.bincount() + data.test_labels.bincount()).tolist() == [90] * 10
    assert 0.2 < data.train_images.mean() < 0.4


@pytest.fixture
def published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Publish the little set in the folder "source", and return a folder without files."""
    sizes = {}
    (folder / "source").mkdir()
    for name in module.PUBLISHED:
        content = (folder / name).read_bytes()
        sizes[name] = (len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())
        (folder / name).rename(folder / "source" / name)
    monkeypatch.setattr(module, "PUBLISHED", sizes)
    monkeypatch.setattr(module, "SOURCES", [(folder / "nowhere").as_uri(), (folder / "source").as_uri()])
    return folder / "a" / "b"


def test_missing_files_are_downloaded_from_the_first_source_that_has_them(published: Path) -> None:
    assert fashion_mnist(published).test_labels.tolist() == [1, 2]
    assert sorted(path.name for path in published.iterdir()) == sorted(module.PUBLISHED)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in published.iterdir())


def test_only_missing_files_are_downloaded(published: Path) -> None:
    fashion_mnist(published)
    (published / TEST_LABELS).unlink()
    (published / TRAIN_LABELS).write_bytes(gzipped(labels(5, 5, 5)))
    assert fashion_mnist(published).train_labels.tolist() == [5, 5, 5]


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"x", lambda raw: raw[::-1]])
def test_a_file_that_differs_from_the_published_one_is_not_kept(
    published: Path, folder: Path, change: Callable[[bytes], bytes]
) -> None:
    file = folder / "source" / TEST_IMAGES
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataFileError, match=f"{TEST_IMAGES} could not be downloaded") as caught:
        fashion_mnist(published)
    assert "nowhere" in str(caught.value) and "with MD5" in str(caught.value)
    assert sorted(path.name for path in published.iterdir()) == sorted([TRAIN_IMAGES, TRAIN_LABELS])


def test_an_interrupted_download_leaves_nothing(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(address: str, timeout: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("urllib.request.urlopen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fashion_mnist(published)
    assert not published.exists()
