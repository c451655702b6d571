"""Checkpoints in the background: what was saved is what is written, whole or not at all, and no error is lost."""

import gc
import itertools
import logging
import os
import random
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from torch import Tensor, nn

from fanwise.base.errors import ClosedError
from fanwise.parallel.checkpoint import file as checkpoint_file
from fanwise.parallel.checkpoint.file import MOST_WAITING, Writer
from fanwise.parallel.checkpoint.snapshot import snapshot
from fanwise.testing.programs import Finished, LoadedInterpreter
from fanwise.testing.within import within


class Slow:
    """Takes part in a checkpoint, and blocks the thread that writes it until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __deepcopy__(self, memo: object) -> "Slow":
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle wants it
        self.reached.set()
        assert self.go_on.wait(30.0)
        return OrderedDict, ()


class Noted:
    """Notes in a list when it is written."""

    def __init__(self, name: str, order: list[str]) -> None:
        self._name = name
        self._order = order

    def __deepcopy__(self, memo: object) -> "Noted":
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle wants it
        self._order.append(self._name)
        return OrderedDict, ()


class Unwritable:
    """Can be copied, but not written."""

    def __reduce_ex__(self, protocol: object) -> Any:  # Any: never returns
        raise OSError("no space left")

    def __deepcopy__(self, memo: object) -> "Unwritable":
        return self


def content(number: float, **more: object) -> dict[str, Any]:  # Any: as of a run
    return {"run": {"number": number}, "model": {"w": torch.full((3,), float(number))}, **more}


def number_in(path: Path) -> float:
    loaded = torch.load(path, weights_only=True)
    number: float = loaded["run"]["number"]
    assert torch.equal(loaded["model"]["w"], torch.full((3,), float(number)))
    return number


def test_what_is_written_is_what_was_there_when_it_was_saved(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def train() -> None:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()

    train()
    before = [value.clone() for value in model.state_dict().values()]
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    rows, slow = [{"loss": 1.0}], Slow()
    with Writer() as writer:
        writer.write(tmp_path / "first.pt", {"run": {}, "slow": slow})
        slow.reached.wait(10.0)
        state = {"run": {}, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows}
        writer.write(tmp_path / "run.pt", state)
        train()
        rows.append({"loss": 2.0})
        slow.go_on.set()
    found = checkpoint_file.read(tmp_path / "run.pt", weights_only=True)
    assert all(map(torch.equal, found["model"].values(), before))
    assert [torch.equal(found["optimizer"]["state"][i]["exp_avg"], each) for i, each in enumerate(moments)] == [
        True
    ] * 2
    assert found["rows"] == [{"loss": 1.0}]
    assert not torch.equal(model.weight, before[0])


def test_of_several_that_wait_for_one_path_the_newest_is_written(tmp_path: Path) -> None:
    slow, path = Slow(), tmp_path / "run.pt"
    seen: list[str] = []
    with Writer() as writer:
        writer.write(tmp_path / "first.pt", {"run": {}, "slow": slow})
        slow.reached.wait(10.0)
        for number in range(5):
            writer.write(path, content(number, noted=Noted(str(number), seen)))
        slow.go_on.set()
    assert number_in(path) == 4
    assert seen == ["4"]


def test_paths_are_written_in_order_and_none_waits_for_ever(tmp_path: Path) -> None:
    """A path that is saved again and again while the disk is slow keeps its place, and lets the other one through."""
    order: list[str] = []
    gates = [Slow() for _ in range(6)]

    with Writer() as writer:
        writer.write(tmp_path / "x", {"slow": gates[0]})
        for before, after in itertools.pairwise(gates):
            assert before.reached.wait(10.0)
            for name in ("last", "best"):
                writer.write(tmp_path / name, {"noted": Noted(name, order), "slow": after})
            before.go_on.set()
        assert gates[-1].reached.wait(10.0)
        gates[-1].go_on.set()
    assert order[:5] == ["last", "best", "last", "best", "last"]


def test_saving_waits_when_the_disk_does_not_keep_up(tmp_path: Path) -> None:
    slow, writer = Slow(), Writer()
    writer.write(tmp_path / "0.pt", {"run": {}, "slow": slow})
    slow.reached.wait(10.0)
    for number in range(1, MOST_WAITING + 1):
        writer.write(tmp_path / f"{number}.pt", content(number))
    done = threading.Event()

    def one_more() -> None:
        writer.write(tmp_path / "more.pt", content(9))
        done.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    writer.write(tmp_path / "1.pt", content(10))  # a path that has a place already need not wait
    within(10.0, lambda: in_line(thread, "wait_for"), "the other thread waits for a place")
    assert not done.is_set()
    slow.go_on.set()
    thread.join()
    writer.wait()
    assert [number_in(tmp_path / f"{name}.pt") for name in (1, 2, "more")] == [10, 2, 9]


def in_line(thread: threading.Thread, function: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_saving_does_not_wait_for_the_disk_but_wait_and_read_do(tmp_path: Path) -> None:
    slow, path, writer = Slow(), tmp_path / "run.pt", Writer()
    writer.write(path, content(1, slow=slow))
    assert slow.reached.wait(10.0)
    assert not path.exists()
    read: list[float] = []
    reader = threading.Thread(target=lambda: read.append(checkpoint_file.read(path, False)["run"]["number"]))
    reader.start()
    within(10.0, lambda: in_line(reader, "wait_for"), "reading waits for the writer")
    slow.go_on.set()
    reader.join()
    writer.wait()
    assert read == [1]
    assert number_in(path) == 1


def test_writing_now_comes_after_all_that_waits(tmp_path: Path) -> None:
    slow, path, writer = Slow(), tmp_path / "run.pt", Writer()
    writer.write(path, content(1, slow=slow))
    slow.reached.wait(10.0)
    thread = threading.Thread(target=lambda: writer.write_now(path, content(2)))
    thread.start()
    within(10.0, lambda: in_line(thread, "join"), "it waits for the first one")
    slow.go_on.set()
    thread.join()
    assert number_in(path) == 2


@pytest.mark.parametrize("how", ["write", "write_now", "wait", "block"])
def test_an_error_of_the_writer_is_raised_once_at_the_next_opportunity(how: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    checkpoint_file.write(path, content(1))
    writer = Writer()
    writer.write(path, content(2, bad=Unwritable()))
    writer.wait_for(path)
    asks: dict[str, Callable[[], None]] = {
        "write": lambda: writer.write(path, content(3)),
        "write_now": lambda: writer.write_now(path, content(3)),
        "wait": writer.wait,
        "block": lambda: writer.__exit__(None, None, None),
    }
    with pytest.raises(OSError, match="no space left") as caught:
        asks[how]()
    assert caught.value.__notes__ == [f"when the checkpoint {path} was written in the background"]
    assert number_in(path) == 1
    assert list(tmp_path.iterdir()) == [path]
    writer.write(path, content(4))
    writer.wait()
    assert number_in(path) == 4


def test_several_errors_come_together_and_hold_no_contents(tmp_path: Path) -> None:
    slow, writer = Slow(), Writer()
    bad = [Unwritable(), Unwritable()]
    contents = [weakref.ref(each) for each in bad]
    writer.write(tmp_path / "a", content(1, slow=slow, bad=bad.pop()))
    writer.write(tmp_path / "b", content(1, bad=bad.pop()))
    slow.go_on.set()
    with pytest.raises(OSError, match="no space left") as caught:
        writer.wait()
    assert caught.value.__notes__[1] == (
        f"and then: OSError: no space left; when the checkpoint {tmp_path / 'b'} was written in the background"
    )
    gc.collect()
    assert [each() for each in contents] == [None, None]


def test_an_error_that_is_under_way_gets_a_note_and_is_not_replaced(tmp_path: Path) -> None:
    def fail() -> None:
        with Writer() as writer:
            writer.write(tmp_path / "run.pt", content(1, bad=Unwritable()))
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        fail()
    assert caught.value.__notes__[0].startswith("besides, a checkpoint failed: OSError: no space left; when the")


def test_an_error_that_nobody_asked_for_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer()
    writer.write(tmp_path / "run.pt", content(1, bad=Unwritable()))
    writer.wait_for(tmp_path / "run.pt")
    writer._join()
    with caplog.at_level(logging.ERROR):
        del writer
        within(10.0, lambda: [gc.collect()] and caplog.messages, "it is logged")
    assert caplog.messages[0].startswith("a checkpoint could not be written: OSError: no space left; when the")


def test_what_cannot_be_copied_is_refused_at_once(tmp_path: Path) -> None:
    with Writer() as writer, pytest.raises(TypeError, match="cannot pickle"):
        writer.write(tmp_path / "run.pt", content(1, bad=threading.Lock()))
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_of_the_folder_in_which_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with Writer() as writer:
        writer.write(Path("run.pt"), content(1, slow=slow))
        slow.reached.wait(10.0)
        monkeypatch.chdir(tmp_path / "other")
        slow.go_on.set()
    assert number_in(tmp_path / "run.pt") == 1


# -- snapshots


def test_a_snapshot_shares_no_memory_and_keeps_what_belongs_together() -> None:
    tied = torch.arange(6.0).reshape(2, 3)
    flat = torch.arange(10.0)
    state = {
        "a": tied,
        "b": tied.detach(),
        "first": flat[:5],
        "rest": flat[5:],
        "turned": tied.T,
        "none": torch.empty(0),
    }
    made = snapshot(state)
    expected = {name: value.clone() for name, value in state.items()}
    tied.zero_()
    flat.zero_()
    assert all(torch.equal(made[name], value) for name, value in expected.items())
    assert made["a"] is made["b"]  # one in the file, too
    assert made["first"].untyped_storage().nbytes() == 20  # not the whole of which it is a part


def test_a_snapshot_keeps_types_and_what_a_module_knows_of_its_versions() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    made = snapshot({"model": state, "n": [1, (2.0, None, True)], "size": torch.Size([2]), "odd": {1, 2}})
    assert type(made["model"]) is OrderedDict
    assert made["model"]._metadata == state._metadata and made["model"]._metadata is not state._metadata  # type: ignore[attr-defined]  # of torch
    assert (made["n"], made["size"], made["odd"]) == ([1, (2.0, None, True)], torch.Size([2]), {1, 2})


def test_a_snapshot_takes_sparse_tensors_and_parameters() -> None:
    param = nn.Parameter(torch.ones(2))
    made = snapshot({"sparse": torch.eye(3).to_sparse(), "param": param})
    assert torch.equal(made["sparse"].to_dense(), torch.eye(3))
    assert type(made["param"]) is Tensor and not made["param"].requires_grad


# -- processes

# Each child writes until it is killed: from outside after some calls returned, or by the kernel at a byte of a file.
KILLED = """
import os, random, resource, signal, sys
from pathlib import Path
import torch
from fanwise.parallel.checkpoint import file as checkpoint_file
from fanwise.parallel.checkpoint.file import Writer

def content(number, size):
    return {"run": {"number": number}, "model": {"w": torch.full((size,), float(number))}}

def child(path, seed, by_size, said):
    chance = random.Random(seed)
    number = checkpoint_file.read(path, True)["run"]["number"] if path.exists() else 0
    writer = Writer()
    if by_size:  # the kernel kills who writes beyond this byte of a file
        writer.write_now(path, content(number := number + 1, 5000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (chance.randrange(1, 20_000), resource.RLIM_INFINITY))
    os.write(said, b"%d\\n" % number)
    while True:
        number += 1
        writer.write(path, content(number, 5000 if by_size else chance.choice([10, 5000, 200_000])))
        os.write(said, b".")

torch.set_num_threads(1)  # a child that is forked from more could not use them
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
half = 0
for seed in range(first, last):
    chance = random.Random(seed)
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
        for _ in range(chance.randrange(1, 40)):
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
    """Run it in the folder, with these arguments."""
    script = folder / "program.py"
    script.write_text(f"import sys\nsys.argv[1:] = {list(map(str, arguments))!r}\n{text}")
    return loaded.run(script, folder=folder, limit_s=600.0)


def kill_writers_and_look(loaded: LoadedInterpreter, folder: Path, first: int, last: int) -> None:
    (folder / "killed").mkdir()
    done = program(loaded, folder, KILLED, folder / "killed" / "run.pt", first, last)
    assert done.status == 0, done.err
    words = done.out.split(maxsplit=3)
    assert int(words[1]) >= (last - first) // 3, "many were killed in the middle of a file"
    assert set(eval(words[3])) <= {"run.pt", ".run.pt.unfinished"}


def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(
    torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    kill_writers_and_look(torch_loaded, tmp_path, 0, 40)


@pytest.mark.soak
def test_hundreds_of_killed_writers_leave_whole_files(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    first = random.randrange(10**6)
    (tmp_path / f"from{first}").mkdir()
    kill_writers_and_look(torch_loaded, tmp_path / f"from{first}", first, first + 1000)


LEAVING = """
import sys
from pathlib import Path
import torch
from fanwise.parallel.checkpoint.file import Writer

class Unwritable:
    def __reduce_ex__(self, protocol):
        raise OSError("no space left")
    def __deepcopy__(self, memo):
        return self

writer = Writer()
for number in range(1, 4):
    writer.write(Path(sys.argv[1]), {"run": {"number": number}, "model": {"w": torch.full((3,), float(number))}})
if "fail" in sys.argv:
    writer.write(Path(sys.argv[1] + "2"), {"bad": Unwritable()})
if "raise" in sys.argv:
    raise KeyError("the training ends")
if "exit" in sys.argv:
    sys.exit(3)
"""


@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("exit", 3)])
def test_a_process_that_ends_has_written_all(
    how: str, status: int, torch_loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    done = program(torch_loaded, tmp_path, LEAVING, tmp_path / "run.pt", how)
    assert done.status == status, done.err
    assert number_in(tmp_path / "run.pt") == 3


def test_an_error_at_the_very_end_is_not_lost(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    done = program(torch_loaded, tmp_path, LEAVING, tmp_path / "run.pt", "fail")
    assert number_in(tmp_path / "run.pt") == 3
    assert "a checkpoint could not be written: OSError: no space left; when the checkpoint" in done.err


def test_a_fork_writes_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    slow, path, writer = Slow(), tmp_path / "run.pt", Writer()
    writer.write(path, content(1, slow=slow))
    slow.reached.wait(10.0)
    writer.write(tmp_path / "second.pt", content(2))
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            writer.wait()
            writer.wait_for(path)
            try:
                writer.write(path, content(3))
            except ClosedError as error:
                os.write(theirs, str(error).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert f"process {child} is a fork of process {os.getpid()}" in said
    assert list(tmp_path.glob("*.pt")) == []
    slow.go_on.set()
    writer.wait()
    assert (number_in(path), number_in(tmp_path / "second.pt")) == (1, 2)
