"""The numbers that processes share: written in order also on machines that reorder stores."""

import itertools
import platform
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fanwise.parallel.comm import futex
from fanwise.parallel.comm.control_block import ControlBlock
from fanwise.parallel.comm.shared_memory import SharedMemory

X86_MEMBARRIER = 324


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory.create()
    yield memory
    memory.close()


def test_a_barrier_precedes_every_write_of_a_number(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    block = ControlBlock(memory)
    numbers: Any = block._numbers  # Any: a memoryview
    seen: list[bytes] = []
    monkeypatch.setattr(futex, "barrier", lambda: seen.append(numbers.tobytes()))
    writes: list[Callable[[], object]] = [
        lambda: block.set_view(2),
        lambda: block.decide(4, (0, 2), 7),
        lambda: block.end(1, 3),
        lambda: block.set_answered(5),
        lambda: block.arrive(2, 4, 9),
        lambda: block.acknowledge(2, 5),
        lambda: block.set_idle(1, True),
    ]
    for write in writes:
        seen.clear()
        write()
        states = [memoryview(each).cast("q") for each in (*seen, numbers.tobytes())]
        changes = [sum(map(int.__ne__, one, other)) for one, other in itertools.pairwise(states)]
        assert changes and max(changes) == 1, "two numbers were written without a barrier between them"
    block.clear()


def test_the_kernel_accepts_the_barrier(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    if futex._membarrier_number is None:
        monkeypatch.setattr(futex, "_membarrier_number", X86_MEMBARRIER)
    block = ControlBlock(memory)
    block.arrive(0, 2, 3)
    assert block.arrived(0) == (2, 3)
    block.clear()


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "_FUTEX", None)
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="need x86_64 or aarch64, and this machine is a vax"):
        futex.register()


def test_gradients_of_many_large_models_have_addresses_and_too_many_are_refused() -> None:
    memory = SharedMemory.create()
    far = memory.map(1 << 50, 1 << 21)  # as of 1,000 ranks with 50 GB of gradients each
    far.view[:1] = b"x"
    assert memory.read(1 << 50, 1) == b"x"
    with pytest.raises(MemoryError, match="more than 1048576 TiB of addresses"):
        memory.map(1 << 60, 1 << 21)
    memory.close()
