"""Checkpoints at URLs: whole or not there on any file system, and what it refuses is said."""

import functools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import CheckpointError
from fanwise.parallel import Run
from fanwise.parallel.checkpoint import file as checkpoint_file
from fanwise.parallel.checkpoint.file import Writer
from fanwise.parallel.checkpoint.location import location_of
from fanwise.pool import Pool
from fanwise.testing.within import within

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


class Ended(Exception):
    """The process ends here."""


def train(run: Run, path: str | Path, end_after: int = 1000) -> Tensor:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), lambda m, x: m(x).square().mean(1))
    for _ in run.epochs(2):
        for batch in run.batches(X, 8):
            step(batch)
            end_after -= 1
            if end_after == 0:
                run.save(path)
                raise Ended
    return model.weight.detach()


def content(number: float) -> dict[str, Any]:  # Any: as of a run
    return {"run": {"number": number}, "model": {"w": torch.full((3,), number)}}


def number_at(url: str) -> float:
    number: float = checkpoint_file.read(url, weights_only=True)["run"]["number"]
    return number


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """What this process keeps at memory://, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


class BreaksOff(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Takes so many bytes of a file, and then the network is gone."""

    protocol = "breaks-off"
    left: int | None = None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:  # Any: as fsspec has it
        file = super()._open(path, mode, **options)
        if "w" in mode and BreaksOff.left is not None:
            file.write = functools.partial(self._write, file)
        return file

    @staticmethod
    def _write(file: MemoryFile, part: bytes) -> int:
        assert BreaksOff.left is not None
        MemoryFile.write(file, part[: BreaksOff.left])
        raise TimeoutError("the network is gone")


@pytest.fixture
def breaks_off(memory: MemoryFileSystem) -> Iterator[type[BreaksOff]]:
    fsspec.register_implementation("breaks-off", BreaksOff, clobber=True)
    yield BreaksOff
    BreaksOff.left = None


def test_a_training_goes_on_from_a_url_with_the_same_bits(memory: MemoryFileSystem) -> None:
    url = "memory://bucket/deep/run.pt"
    whole = fanwise.run(functools.partial(train, path=url), devices=2, processes=1)
    with pytest.raises(Ended):
        fanwise.run(functools.partial(train, path=url, end_after=4), devices=2, processes=1)
    assert torch.equal(whole, fanwise.run(functools.partial(train, path=url), resume=url, devices=1))
    assert [str(path) for path in memory.find("/bucket")] == ["/bucket/deep/run.pt"], "nothing else is left"


def test_a_file_url_is_a_file(tmp_path: Path) -> None:
    assert location_of(f"file://{tmp_path}/run.pt") == tmp_path / "run.pt"
    with pytest.raises(Ended):
        fanwise.run(functools.partial(train, path=f"file://{tmp_path}/run.pt", end_after=2), devices=1)
    assert set(torch.load(tmp_path / "run.pt", weights_only=True)) >= {"model", "optimizer", "run"}


def test_an_upload_that_breaks_off_leaves_the_older_checkpoint_and_says_so(breaks_off: type[BreaksOff]) -> None:
    url = "breaks-off://bucket/run.pt"
    with Writer() as writer:
        writer.write(url, content(1))
        writer.wait()
        breaks_off.left = 1000
        writer.write(url, content(2))
        with pytest.raises(
            CheckpointError, match=r"breaks-off://bucket/run.pt cannot be written on .*TimeoutError"
        ) as said:
            writer.wait()
        assert "The previous content of the URL is unchanged." in str(said.value)
        assert number_at(url) == 1
        breaks_off.left = None
        writer.write(url, content(3))
        writer.wait()
    assert number_at(url) == 3


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_a_part_of_a_checkpoint_is_never_taken_for_one(part: float, memory: MemoryFileSystem) -> None:
    checkpoint_file.write("memory://bucket/run.pt", content(1))
    whole = memory.cat_file("/bucket/run.pt")
    memory.pipe_file("/bucket/run.pt", whole[: int(part * len(whole))])
    with pytest.raises(ValueError, match=r"memory://bucket/run\.pt cannot be read as a checkpoint"):
        fanwise.run(lambda run: None, devices=1, resume="memory://bucket/run.pt")


def test_what_is_not_there_is_named_with_who_looked(memory: MemoryFileSystem) -> None:
    with pytest.raises(FileNotFoundError, match=r"memory://bucket/run\.pt does not exist, as seen from"):
        fanwise.run(lambda run: None, devices=1, resume="memory://bucket/run.pt")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("gcss://bucket/run.pt", r"path='gcss://bucket/run.pt': fsspec knows no gcss://; did you mean 'gcs'"),
        (Path("s3://bucket/run.pt"), r"(?s)a Path cannot hold a URL.*path='s3://bucket/run.pt'"),
    ],
)
def test_what_is_no_place_is_refused_at_once(path: str | Path, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fanwise.run(functools.partial(train, path=path, end_after=1), devices=1)


def test_the_memory_of_one_process_is_refused_where_a_run_has_several(pool: Pool) -> None:
    with pytest.raises(ValueError, match="is in the memory of this process, and the run has others"):
        fanwise.run(lambda run: None, devices=2, resume="memory://run.pt", pool=pool)
    with pytest.raises(ValueError, match="is the memory of one process of this run, which is gone with it"):
        fanwise.run(lambda run: run.save("memory://run.pt"), devices=2, pool=pool)


@pytest.fixture
def fresh_pool(object_store: Any, forked_pools: None) -> Iterator[Pool]:
    """Whose processes know where the object store is."""
    with Pool(seed=0, cpus=64) as pool:
        yield pool


# -- a real object store -----------------------------------------------------------------------------------------------


def test_processes_save_and_resume_in_an_object_store(object_store: Any, fresh_pool: Pool) -> None:
    url = "s3://fanwise/runs/run.pt"
    whole = fanwise.run(functools.partial(train, path=url), devices=2, pool=fresh_pool)
    with pytest.raises(Ended):
        fanwise.run(functools.partial(train, path=url, end_after=4), devices=2, pool=fresh_pool)
    object_store.invalidate_cache()
    assert object_store.ls("fanwise/runs", detail=False) == ["fanwise/runs/run.pt"]
    assert torch.equal(whole, fanwise.run(functools.partial(train, path=url), resume=url, devices=2, pool=fresh_pool))


def test_a_bucket_that_is_not_there_and_keys_that_are_missing_are_said(
    object_store: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"s3://fanwize/run\.pt cannot be written on "):
        checkpoint_file.write("s3://fanwize/run.pt", content(1))
    assert not object_store.exists("fanwize"), "a mistake makes no bucket"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CheckpointError, match=r"NoCredentialsError: .*\n.*runtime_env"):
        checkpoint_file.write("s3://fanwise/other.pt", content(1))


KILLED = """
import torch
from fanwise.parallel.checkpoint import file as checkpoint_file
checkpoint_file.write("s3://fanwise/killed.pt", {"run": {"number": 2}, "model": torch.zeros(40_000_000)})
"""


@pytest.mark.soak
def test_a_kill_in_the_middle_of_an_upload_leaves_the_older_checkpoint(object_store: Any) -> None:
    checkpoint_file.write("s3://fanwise/killed.pt", content(1))
    child = subprocess.Popen([sys.executable, "-c", KILLED])
    try:
        within(60, lambda: bool(uploads(object_store)), "the upload in parts has begun")
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert number_at("s3://fanwise/killed.pt") == 1


def uploads(object_store: Any) -> list[Any]:  # Any: as S3 says it
    found: list[Any] = object_store.call_s3("list_multipart_uploads", Bucket="fanwise").get("Uploads", [])
    return found
