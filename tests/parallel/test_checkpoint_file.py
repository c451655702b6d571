"""Checkpoint files: the saved state is written as a whole or not at all, and errors are reported."""

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from program_runs import Finished, LoadedInterpreter
from torch import nn

from fanwise.parallel.checkpoint import file as checkpoint_file
from fanwise.parallel.checkpoint.file import Writer
from fanwise.testing.within import within


class Slow:
    """Blocks the thread that writes checkpoints until the test opens it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached = threading.Event()
        self.opened = threading.Event()
        self._write = checkpoint_file.write_checkpoint
        monkeypatch.setattr(checkpoint_file, "write_checkpoint", self)

    def __call__(self, location: Any, data: memoryview) -> None:
        self.is_reached.set()
        assert self.opened.wait(30.0)
        self._write(location, data)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def content(number: float, **more: object) -> dict[str, Any]:
    return {"run": {"number": number}, "model": {"w": torch.full((3,), float(number))}, **more}


def number_in(path: Path) -> float:
    loaded = torch.load(path, weights_only=True)
    number: float = loaded["run"]["number"]
    assert torch.equal(loaded["model"]["w"], torch.full((3,), float(number)))
    return number


def waits_in_join(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != "join":
        frame = frame.f_back
    return frame is not None


def test_the_state_at_the_time_of_the_call_is_written(tmp_path: Path, slow: Slow) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def train() -> None:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()

    train()
    weights = [value.clone() for value in model.state_dict().values()]
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    rows = [{"loss": 1.0}]
    with Writer() as writer:
        state = {
            "run": {},
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rows": rows,
        }
        writer.start(tmp_path / "run.pt", state)
        assert slow.is_reached.wait(10.0)
        train()
        rows.append({"loss": 2.0})
        slow.opened.set()
    loaded = checkpoint_file.read_checkpoint(tmp_path / "run.pt", weights_only=True)
    assert all(map(torch.equal, loaded["model"].values(), weights))
    assert all(torch.equal(loaded["optimizer"]["state"][i]["exp_avg"], moment) for i, moment in enumerate(moments))
    assert loaded["rows"] == [{"loss": 1.0}]
    assert not torch.equal(model.weight, weights[0])


def test_write_returns_before_the_file_exists_and_read_waits_for_it(tmp_path: Path, slow: Slow) -> None:
    changes: list[bool] = []
    path, writer = tmp_path / "run.pt", Writer(changes.append)
    writer.start(path, content(1))
    assert slow.is_reached.wait(10.0)
    assert not path.exists() and changes == [True]
    numbers: list[float] = []
    reader = threading.Thread(
        target=lambda: numbers.append(checkpoint_file.read_checkpoint(path, False)["run"]["number"])
    )
    reader.start()
    within(10.0, lambda: waits_in_join(reader), "read waits for the writer")
    slow.opened.set()
    reader.join()
    assert numbers == [1] and changes == [True, False]


def test_the_next_checkpoint_waits_for_the_previous_one(tmp_path: Path, slow: Slow) -> None:
    path, writer = tmp_path / "run.pt", Writer()
    writer.start(path, content(1))
    assert slow.is_reached.wait(10.0)
    thread = threading.Thread(target=lambda: writer.start(path, content(2)))
    thread.start()
    within(10.0, lambda: waits_in_join(thread), "it waits for the first one")
    slow.opened.set()
    thread.join()
    writer.wait()
    assert number_in(path) == 2


@pytest.mark.parametrize("method", ["start", "wait", "block"])
def test_an_error_in_the_background_is_raised_once_by_the_next_call(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError("no space left")

    path, writer = tmp_path / "run.pt", Writer()
    writer.start(path, content(1))
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        writer.start(path, content(2))
        writer.join()
    calls: dict[str, Callable[[], None]] = {
        "start": lambda: writer.start(path, content(3)),
        "wait": writer.wait,
        "block": lambda: writer.__exit__(None, None, None),
    }
    with pytest.raises(OSError, match="no space left") as caught:
        calls[method]()
    assert caught.value.__notes__ == [f"while the checkpoint {path} was written in the background"]
    assert number_in(path) == 1
    assert list(tmp_path.iterdir()) == [path]
    writer.start(path, content(4))
    writer.wait()
    assert number_in(path) == 4


def test_an_error_becomes_a_note_if_the_block_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def fail() -> None:
        with Writer() as writer:
            writer.start(tmp_path / "file" / "run.pt", content(1))
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        fail()
    assert caught.value.__notes__[0].startswith("in addition, a checkpoint could not be written: FileExistsError")


def test_content_that_cannot_be_serialized_is_refused_at_once(tmp_path: Path) -> None:
    changes: list[bool] = []
    with Writer(changes.append) as writer, pytest.raises(TypeError, match="cannot pickle"):
        writer.start(tmp_path / "run.pt", content(1, lock=threading.Lock()))
    assert changes == [True, False], "nobody waits for it"
    assert list(tmp_path.iterdir()) == []


def test_only_the_elements_of_a_view_are_written() -> None:
    data = checkpoint_file.serialize({"view": torch.zeros(100_000)[:2]})
    assert len(data) < 100_000
    assert torch.load(io.BytesIO(data), weights_only=True)["view"].shape == (2,)


def test_version_numbers_of_modules_are_written() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    loaded = torch.load(io.BytesIO(checkpoint_file.serialize({"model": state})))["model"]
    assert loaded._metadata == state._metadata  # type: ignore[attr-defined]


def test_a_relative_path_belongs_to_the_folder_of_the_call(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with Writer() as writer:
        writer.start(Path("run.pt"), content(1))
        assert slow.is_reached.wait(10.0)
        monkeypatch.chdir(tmp_path / "other")
        slow.opened.set()
    assert number_in(tmp_path / "run.pt") == 1


# -- processes

# Each child writes until it is killed: by a signal after some calls, or by the kernel at the limit of the file size.
KILLED = """
import os, random, resource, signal, sys
from pathlib import Path
import torch
from fanwise.parallel.checkpoint import file as checkpoint_file
from fanwise.parallel.checkpoint.file import Writer

def content(number, size):
    return {"run": {"number": number}, "model": {"w": torch.full((size,), float(number))}}

def child(path, seed, by_size, pipe):
    rng = random.Random(seed)
    number = checkpoint_file.read_checkpoint(path, True)["run"]["number"] if path.exists() else 0
    writer = Writer()
    if by_size:  # the kernel kills the process when a file becomes larger
        writer.start(path, content(number := number + 1, 5000))
        writer.wait()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(1, 20_000), resource.RLIM_INFINITY))
    os.write(pipe, b"%d\\n" % number)
    while True:
        number += 1
        writer.start(path, content(number, 5000 if by_size else rng.choice([10, 5000, 200_000])))
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


def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(
    torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    (tmp_path / "killed").mkdir()
    done = program(torch_loaded, tmp_path, KILLED, tmp_path / "killed" / "run.pt", 0, 40)
    assert done.status == 0, done.err
    words = done.out.split(maxsplit=3)
    assert int(words[1]) >= 13, "many were killed while they wrote the file"
    assert set(eval(words[3])) <= {"run.pt", ".run.pt.unfinished"}


LEAVING = """
import sys
from pathlib import Path
import torch
from fanwise.parallel.checkpoint.file import Writer

writer = Writer()
writer.start(Path(sys.argv[1]), {"run": {"number": 3}, "model": {"w": torch.full((3,), 3.0)}})
if "fail" in sys.argv:
    writer.start(Path(sys.argv[1]) / "below-a-file", {})
if "raise" in sys.argv:
    raise KeyError("the training ends")
if "exit" in sys.argv:
    sys.exit(3)
"""


@pytest.mark.parametrize(("end", "status"), [("raise", 1), ("exit", 3), ("fail", 0)])
def test_a_process_that_ends_completes_its_checkpoint(
    end: str, status: int, torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    done = program(torch_loaded, tmp_path, LEAVING, tmp_path / "run.pt", end)
    assert done.status == status, done.err
    assert number_in(tmp_path / "run.pt") == 3
    assert ("a checkpoint could not be written: FileExistsError" in done.err) == (end == "fail")
