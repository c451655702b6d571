"""Checkpoints at URLs are replaced as a whole, and errors of the file system are reported."""

import functools
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
from fanwise.pool import Pool

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
    number: float = checkpoint_file.read_checkpoint(url, weights_only=True)["run"]["number"]
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


def test_a_run_resumes_from_a_url_with_the_same_bits(memory: MemoryFileSystem) -> None:
    url = "memory://bucket/deep/run.pt"
    whole = fanwise.run(functools.partial(train, path=url), devices=1)
    with pytest.raises(Ended):
        fanwise.run(functools.partial(train, path=url, end_after=4), devices=1)
    assert torch.equal(whole, fanwise.run(functools.partial(train, path=url), resume=url, devices=1))
    assert [str(path) for path in memory.find("/bucket")] == ["/bucket/deep/run.pt"], "nothing else is left"


def test_a_broken_upload_leaves_the_older_checkpoint(breaks_off: type[BreaksOff]) -> None:
    url = "breaks-off://bucket/run.pt"
    checkpoint_file.write_checkpoint(url, checkpoint_file.serialize(content(1)))
    breaks_off.left = 1000
    message = r"breaks-off://bucket/run.pt cannot be written on .*TimeoutError"
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint_file.write_checkpoint(url, checkpoint_file.serialize(content(2)))
    assert "The previous content of the URL is unchanged." in str(caught.value)
    assert number_at(url) == 1
    breaks_off.left = None
    checkpoint_file.write_checkpoint(url, checkpoint_file.serialize(content(3)))
    assert number_at(url) == 3


@pytest.mark.parametrize("part", [0.0, 0.9])
def test_an_incomplete_checkpoint_is_refused(part: float, memory: MemoryFileSystem) -> None:
    checkpoint_file.write_checkpoint("memory://bucket/run.pt", checkpoint_file.serialize(content(1)))
    whole = memory.cat_file("/bucket/run.pt")
    memory.pipe_file("/bucket/run.pt", whole[: int(part * len(whole))])
    with pytest.raises(ValueError, match=r"memory://bucket/run\.pt cannot be read as a checkpoint"):
        fanwise.run(lambda run: None, devices=1, resume="memory://bucket/run.pt")


def test_a_missing_checkpoint_is_reported_with_the_host(memory: MemoryFileSystem) -> None:
    with pytest.raises(FileNotFoundError, match=r"memory://bucket/run\.pt does not exist, as seen from"):
        fanwise.run(lambda run: None, devices=1, resume="memory://bucket/run.pt")


def test_an_unknown_protocol_is_refused_at_once() -> None:
    text = r"path='gcss://bucket/run.pt': fsspec knows no gcss://; did you mean 'gcs'"
    with pytest.raises(ValueError, match=text):
        fanwise.run(functools.partial(train, path="gcss://bucket/run.pt", end_after=1), devices=1)


def test_memory_urls_are_refused_for_several_processes(pool: Pool) -> None:
    with pytest.raises(ValueError, match="is in the memory of this process, and the other processes"):
        fanwise.run(lambda run: None, devices=2, resume="memory://run.pt", pool=pool)
    with pytest.raises(ValueError, match="is the memory of one process of this run, which is lost"):
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


def test_missing_buckets_and_keys_are_reported(
    object_store: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"s3://fanwize/run\.pt cannot be written on "):
        checkpoint_file.write_checkpoint("s3://fanwize/run.pt", checkpoint_file.serialize(content(1)))
    assert not object_store.exists("fanwize"), "a mistake makes no bucket"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CheckpointError, match=r"NoCredentialsError: .*\n.*runtime_env"):
        checkpoint_file.write_checkpoint("s3://fanwise/other.pt", checkpoint_file.serialize(content(1)))
