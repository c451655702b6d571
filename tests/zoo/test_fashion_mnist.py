"""Fashion-MNIST: files that are wrong are named and not used, downloads come whole or not at all."""

import gzip
import hashlib
import socket
import struct
import threading
import urllib.error
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from fanwise.base.errors import DataFileError
from fanwise.zoo import fashion_mnist
from fanwise.zoo.downloads import Answer, Published, download_missing, fetch_over_http
from fanwise.zoo.fashion_mnist import PUBLISHED

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = (file.name for file in PUBLISHED)


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


def must_not_fetch(address: str) -> Answer:
    raise AssertionError(f"nothing is missing, yet {address} was asked for")


def test_a_little_set_in_the_same_format_is_read(folder: Path) -> None:
    data = fashion_mnist(folder, fetch=must_not_fetch)
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
    for file in PUBLISHED:
        (folder / file.name).rename(raw / file.name)
    packed = fashion_mnist(tmp_path / "root", fetch=must_not_fetch)
    for file in PUBLISHED:
        (raw / file.name.removesuffix(".gz")).write_bytes(gzip.decompress((raw / file.name).read_bytes()))
        (raw / file.name).unlink()
    unpacked = fashion_mnist(tmp_path / "root", fetch=must_not_fetch)
    assert torch.equal(packed.train_images, unpacked.train_images)
    assert unpacked.test_labels.tolist() == [1, 2]


@pytest.mark.parametrize("root", ["data", "../data"])
def test_the_folders_of_tutorials_are_looked_into_when_none_is_named(
    folder: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, raw = folder / "work", folder / "work" / root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in PUBLISHED:
        (folder / file.name).rename(raw / file.name)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("FANWISE_DATA", raising=False)
    assert len(fashion_mnist(fetch=must_not_fetch).train_labels) == 3


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
    assert fashion_mnist(folder, fetch=must_not_fetch).train_labels.tolist() == [0, 9, 4]


def test_an_unpacked_file_that_is_wrong_is_named(folder: Path) -> None:
    (folder / TRAIN_LABELS).rename(folder / TRAIN_LABELS.removesuffix(".gz"))
    with pytest.raises(DataFileError, match=r"train-labels-idx1-ubyte in .*magic number 2049, found"):
        fashion_mnist(folder, download=False)


def test_missing_files_are_listed_when_nothing_may_be_downloaded(folder: Path) -> None:
    (folder / TRAIN_LABELS).unlink()
    (folder / TEST_IMAGES).unlink()
    with pytest.raises(DataFileError, match=f"{TRAIN_LABELS}, {TEST_IMAGES} missing in .*download=True"):
        fashion_mnist(folder, download=False)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        pytest.param(TRAIN_IMAGES, gzipped(images(3))[:-100], "a whole gzip file, found .* bytes", id="cut short"),
        pytest.param(TRAIN_IMAGES, gzipped(images(3))[:-4] + b"\0\0\0\0", "a whole gzip file", id="no checksum"),
        pytest.param(
            TRAIN_IMAGES, gzipped(images(3))[:10] + b"\xff" * 100, "a whole gzip file", id="garbage behind the header"
        ),
        pytest.param(TRAIN_LABELS, b"<html>not found</html>", "a whole gzip file", id="a page of HTML"),
        pytest.param(TRAIN_LABELS, b"", "8 bytes, found 0", id="empty"),
        pytest.param(
            TRAIN_LABELS, gzipped(b"\0\0"), "an idx header of 8 bytes, found 2 bytes", id="short header of labels"
        ),
        pytest.param(TEST_IMAGES, gzipped(labels(1, 2)), "header of 16 bytes, found 10", id="short header of images"),
        pytest.param(TEST_LABELS, gzipped(images(2)), "magic number 2049, found 2051", id="images in place of labels"),
        pytest.param(
            TEST_IMAGES, gzipped(images(2, magic=2049)), "magic number 2051, found 2049", id="labels in place of images"
        ),
        pytest.param(
            TRAIN_IMAGES, gzipped(images(3, rows=32)), "28 x 28 pixels, found 32 x 28", id="images of 32 rows"
        ),
        pytest.param(
            TRAIN_IMAGES,
            gzipped(images(3, pixels=bytes(2000))),
            "2352 bytes after the idx header.*found 2000",
            id="too few pixels",
        ),
        pytest.param(
            TRAIN_IMAGES,
            gzipped(images(3, pixels=bytes(2353))),
            "2352 bytes after the idx header.*found 2353",
            id="too many pixels",
        ),
        pytest.param(TEST_LABELS, gzipped(labels(1, 10)), "labels from 0 to 9, found a label 10", id="a label of 10"),
        pytest.param(
            TEST_LABELS,
            gzipped(labels(1)),
            "2 labels, one for each image of t10k-images.*, found 1",
            id="one label for two images",
        ),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(folder: Path, name: str, content: bytes, says: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DataFileError, match=f"{name} in {folder} cannot be used: expected .*{says}"):
        fashion_mnist(folder, fetch=must_not_fetch)
    assert (folder / name).read_bytes() == content


def test_a_set_without_images_is_refused(folder: Path) -> None:
    (folder / TEST_IMAGES).write_bytes(gzipped(images(0)))
    (folder / TEST_LABELS).write_bytes(gzipped(labels()))
    with pytest.raises(DataFileError, match="at least one image, found none"):
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


# ---- downloads, from a real server on this machine

WHOLE = bytes(range(256)) * 1000
PART = Published("part.gz", len(WHOLE), hashlib.md5(WHOLE).hexdigest())
Reply = Callable[[BaseHTTPRequestHandler], None]


def whole(handler: BaseHTTPRequestHandler, body: bytes = WHOLE, promised: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) if promised is None else promised))
    handler.end_headers()
    handler.wfile.write(body)


def truncated(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, WHOLE[:1000])


def shorter_than_promised(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, WHOLE[:1000], promised=len(WHOLE))


def cut(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, WHOLE[: len(WHOLE) // 2], promised=len(WHOLE))
    # Linger of zero seconds: closing sends a reset, as when a cable is pulled or a server dies.
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def endless(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, WHOLE * 2)


def other_bytes(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, WHOLE[::-1])


def not_found(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(404)


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"what?\r\n\r\n")


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Reply]], str]]:
    """Starts a server that answers each path in its way, and returns its address."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(replies: dict[str, Reply]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    replies.get(self.path, not_found)(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client has seen enough

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = False  # so that server_close waits for the answers
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


Serve = Callable[[dict[str, Reply]], str]


def test_a_file_that_comes_whole_is_kept_and_readable(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    download_missing([PART], folder, [serve({"/part.gz": whole})], fetch_over_http)
    assert (folder / "part.gz").read_bytes() == WHOLE
    assert [path.name for path in folder.iterdir()] == ["part.gz"]
    assert (folder / "part.gz").stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (truncated, "expected 256000 bytes, got 1000"),
        (shorter_than_promised, "1000"),
        (cut, "expected 256000 bytes, got|reset|IncompleteRead"),
        (endless, "expected 256000 bytes, got more"),
        (other_bytes, f"expected MD5 {PART.md5}, got [0-9a-f]{{32}}"),
        (not_found, "404"),
        (no_http, "what"),
    ],
)
def test_a_file_that_does_not_come_whole_is_named_and_leaves_nothing(
    serve: Serve, tmp_path: Path, reply: Reply, says: str
) -> None:
    address = serve({"/part.gz": reply})
    with pytest.raises(DataFileError, match=f"part.gz could not be downloaded[^$]*{address}/part.gz: .*({says})"):
        download_missing([PART], tmp_path, [address], fetch_over_http)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        nobody = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with pytest.raises(DataFileError, match=f"{nobody}/part.gz: .*refused"):
        download_missing([PART], tmp_path, [nobody], fetch_over_http)


def test_the_next_source_is_asked_when_the_first_fails(serve: Serve, tmp_path: Path) -> None:
    first, second = serve({"/part.gz": cut}), serve({"/data/part.gz": whole})
    download_missing([PART], tmp_path, [first, f"{second}/data/"], fetch_over_http)
    assert [path.name for path in tmp_path.iterdir()] == ["part.gz"]


def test_a_file_that_is_there_is_not_asked_for_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "part.gz").write_bytes(b"mine")
    download_missing([PART], tmp_path, ["http://127.0.0.1:9"], must_not_fetch)
    assert (tmp_path / "part.gz").read_bytes() == b"mine"


def test_an_answer_without_end_is_left_after_the_published_length(tmp_path: Path) -> None:
    sent = []

    class Endless:
        def read(self, size: int, /) -> bytes:
            sent.append(size)
            assert sum(sent) < 2 * PART.size_bytes, "it goes on reading"
            return bytes(size)

        def close(self) -> None: ...

    with pytest.raises(DataFileError, match="got more"):
        download_missing([PART], tmp_path, ["http://somewhere"], lambda _: Endless())


def test_an_interrupted_download_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted:
        def read(self, size: int, /) -> bytes:
            raise KeyboardInterrupt

        def close(self) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        download_missing([PART], tmp_path, ["http://somewhere"], lambda _: Interrupted())
    assert list(tmp_path.iterdir()) == []


def test_fashion_mnist_asks_the_publisher_for_what_is_missing_alone(folder: Path) -> None:
    (folder / TEST_LABELS).unlink()
    asked = []

    def fetch(address: str) -> Answer:
        asked.append(address)
        raise urllib.error.URLError("no network")

    with pytest.raises(DataFileError, match=f"{TEST_LABELS} could not be downloaded[^$]*no network[^$]*{folder}"):
        fashion_mnist(folder, fetch=fetch)
    assert asked == [
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/t10k-labels-idx1-ubyte.gz",
    ]


def test_what_a_false_publisher_sends_is_not_used(serve: Serve, folder: Path) -> None:
    (folder / TEST_LABELS).unlink()
    address = serve({"/t10k-labels-idx1-ubyte.gz": lambda handler: whole(handler, gzipped(labels(1, 2)))})
    with pytest.raises(DataFileError, match="expected 5148 bytes"):
        fashion_mnist(folder, fetch=lambda wanted: fetch_over_http(f"{address}/{wanted.rsplit('/')[-1]}"))
    assert not (folder / TEST_LABELS).exists()
