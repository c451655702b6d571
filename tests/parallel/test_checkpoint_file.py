"""Checkpoint files: the saved state is written as a whole or not at all, and errors are reported."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from program_runs import Finished, LoadedInterpreter
from torch import nn

from fanwise.parallel.checkpoint import file as checkpoint_file


def content(number: float, **more: object) -> dict[str, Any]:
    return {"run": {"number": number}, "model": {"w": torch.full((3,), float(number))}, **more}


def number_in(path: Path) -> float:
    loaded = torch.load(path, weights_only=True)
    number: float = loaded["run"]["number"]
    assert torch.equal(loaded["model"]["w"], torch.full((3,), float(number)))
    return number


def write(path: Path, state: dict[str, Any]) -> None:
    checkpoint_file.write_checkpoint(path, checkpoint_file.serialize(state))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError("no space left")

    path = tmp_path / "run.pt"
    write(path, content(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space left"):
            write(path, content(2))
    assert number_in(path) == 1
    assert list(tmp_path.iterdir()) == [path]
    write(path, content(3))
    assert number_in(path) == 3


def test_only_the_elements_of_a_view_are_written() -> None:
    data = checkpoint_file.serialize({"view": torch.zeros(100_000)[:2]})
    assert len(data) < 100_000
    assert torch.load(io.BytesIO(data), weights_only=True)["view"].shape == (2,)


def test_version_numbers_of_modules_are_written() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    loaded = torch.load(io.BytesIO(checkpoint_file.serialize({"model": state})))["model"]
    assert loaded._metadata == state._metadata  # type: ignore[attr-defined]


# -- processes

# Each child writes until it is killed: by a signal after some calls, or by the kernel at the limit of the file size.
KILLED = """
import os, random, resource, signal, sys
from pathlib import Path
import torch
from fanwise.parallel.checkpoint import file as checkpoint_file

def content(number, size):
    return {"run": {"number": number}, "model": {"w": torch.full((size,), float(number))}}

def write(path, state):
    checkpoint_file.write_checkpoint(path, checkpoint_file.serialize(state))

def child(path, seed, by_size, pipe):
    rng = random.Random(seed)
    number = checkpoint_file.read_checkpoint(path, True)["run"]["number"] if path.exists() else 0
    if by_size:  # the kernel kills the process when a file becomes larger
        write(path, content(number := number + 1, 5000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(1, 20_000), resource.RLIM_INFINITY))
    os.write(pipe, b"%d\\n" % number)
    while True:
        number += 1
        write(path, content(number, 5000 if by_size else rng.choice([10, 5000, 200_000])))
        os.write(pipe, b".")

torch.set_num_threads(1)  # a child that is forked from more could not use them
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
half = 0
for seed in range(first, last):
    rng = random.Random(seed)
    by_size = seed % 2 == 0
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(path, seed, by_size, theirs)
        finally:
            os._exit(9)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        before = b""
        while not before.endswith(b"\\n"):
            before += pipe.read(1) or sys.exit(f"the child of seed {seed} did not begin")
        calls = 0
        for _ in range(rng.randrange(1, 40)):
            calls += len(pipe.read(1))
        if not by_size:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        calls += len(pipe.read() or b"")
    assert os.WTERMSIG(status) == (signal.SIGXFSZ if by_size else signal.SIGKILL), status
    half += path.with_name(".run.pt.unfinished").exists()
    if path.exists():
        loaded = torch.load(path, weights_only=True)
        number, model = loaded["run"]["number"], loaded["model"]["w"]
        assert bool((model == number).all()), (number, model)
        assert int(before) <= number <= int(before) + calls + 1, (before, number, calls)
    else:
        assert int(before) == 0
print("half", half, "names", sorted(os.listdir(path.parent)), flush=True)
"""


def program(loaded: LoadedInterpreter, folder: Path, text: str, *arguments: object) -> Finished:
    script = folder / "program.py"
    script.write_text(f"import sys\nsys.argv[1:] = {list(map(str, arguments))!r}\n{text}")
    return loaded.run(script, folder=folder, limit_s=600.0)


def test_a_process_that_is_killed_leaves_the_old_file_or_the_new_one(
    torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    (tmp_path / "killed").mkdir()
    done = program(torch_loaded, tmp_path, KILLED, tmp_path / "killed" / "run.pt", 0, 40)
    assert done.status == 0, done.err
    words = done.out.split(maxsplit=3)
    assert int(words[1]) >= 13, "many were killed while they wrote the file"
    assert set(eval(words[3])) <= {"run.pt", ".run.pt.unfinished"}
