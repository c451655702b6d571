"""Memory that is given out again: never while anybody refers to it, in whatever form, and never more than allowed."""

import ctypes
import gc
import os
import threading
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fanwise.links.reused_memory import ReusedMemory

KEEP_BYTES = 4 << 20
SIZES = (1000, 256 << 10, (256 << 10) + 1, 400_000, 1 << 20, (1 << 20) + 1, 3 << 20)

# What a receiver makes of the memory of a message.
FORMS: dict[str, Any] = {  # Any: functions from a memoryview to what holds it
    "memoryview": lambda view: view,
    "a part": lambda view: view[len(view) // 2 :],
    "numpy": lambda view: np.frombuffer(view, np.uint8),
    "numpy, a part": lambda view: np.frombuffer(view, np.uint8)[3:],
    "torch": lambda view: torch.frombuffer(view, dtype=torch.uint8),
    "torch, a part": lambda view: torch.from_numpy(np.frombuffer(view, np.uint8))[5:],
    "ctypes": lambda view: (ctypes.c_uint8 * len(view)).from_buffer(view),
    "a cycle": lambda view: _in_a_cycle(view),
}


def _in_a_cycle(view: memoryview) -> list[Any]:
    made: list[Any] = [view]
    made.append(made)
    return made


def content(held: Any) -> set[int]:  # Any: as FORMS make
    view = held[0] if isinstance(held, list) else held
    return set(np.asarray(view).view(np.uint8)[::997].tolist())


class Holding(RuleBasedStateMachine):
    """Messages come, are held in some form, and are let go of."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = ReusedMemory(KEEP_BYTES)
        self.held: dict[int, Any] = {}  # Any: as FORMS make; by what is written into it
        self.number = 0

    @rule(size=st.sampled_from(SIZES), form=st.sampled_from(sorted(FORMS)))
    def comes(self, size: int, form: str) -> None:
        view = self.memory.buffer(size)
        assert len(view) == size and not view.readonly
        self.number = self.number % 255 + 1
        np.frombuffer(view, np.uint8)[:] = self.number
        self.held[self.number] = FORMS[form](view)

    @rule(which=st.randoms(use_true_random=False))
    def is_let_go_of(self, which: Any) -> None:  # Any: random.Random
        if self.held:
            del self.held[which.choice(sorted(self.held))]

    @rule()
    def is_collected(self) -> None:
        gc.collect()

    @invariant()
    def what_is_held_is_as_it_came(self) -> None:
        for number, held in self.held.items():
            assert content(held) == {number}

    @invariant()
    def no_more_is_kept_than_allowed(self) -> None:
        assert sum(map(len, self.memory._kept)) <= KEEP_BYTES


TestHolding = Holding.TestCase


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_memory_comes_again_when_the_last_view_of_it_is_gone() -> None:
    memory = ReusedMemory(KEEP_BYTES)
    first = memory.buffer(300_000)
    place, tensor = address(first), torch.frombuffer(first, dtype=torch.uint8)
    del first
    second = memory.buffer(300_000)
    assert address(second) != place
    del tensor
    assert address(memory.buffer(290_000)) == place, "nearly the same size takes the same memory"
    assert place % 64 == 0


def test_a_child_that_is_forked_while_a_thread_holds_the_lock_gets_memory() -> None:
    memory = ReusedMemory(KEEP_BYTES)
    with memory._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if len(memory.buffer(300_000)) == 300_000 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_threads_get_memory_of_their_own() -> None:
    memory, wrong = ReusedMemory(KEEP_BYTES), []

    def receive(mark: int) -> None:
        for _ in range(300):
            view = memory.buffer(300_000)
            array = np.frombuffer(view, np.uint8)
            array[:] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=receive, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
