"""What is said of a process that hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fanwise.parallel.hangs.stacks import Stacks, doing, own
from fanwise.testing import within
from fanwise.testing.programs import LoadedInterpreter


@pytest.fixture
def stacks() -> Iterator[Stacks]:
    made = Stacks.create()
    yield made
    made.close()


PROGRAM = """
import sys, threading
from fanwise.parallel.hangs.stacks import told_on_request
told_on_request(sys.argv[1])
def waits():
    print("ready", flush=True)
    sys.stdin.read()
waits()
"""


@pytest.fixture
def process(stacks: Stacks, torch_loaded: LoadedInterpreter) -> Iterator[subprocess.Popen[str]]:
    """One that answers, and waits for its standard input to end."""
    command = [sys.executable, "-c", PROGRAM, stacks.path]
    with torch_loaded.forks_here():
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.send_signal(signal.SIGCONT)
        child.communicate()


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_process_that_waits_shows_its_stack_each_time_it_is_asked(
    process: subprocess.Popen[str], stacks: Stacks
) -> None:
    within(5, lambda: state(process.pid) == "S", "it waits")
    for _ in range(2):
        lines = doing(process.pid, stacks, process.send_signal).splitlines()
        assert lines[0].startswith("It waits")
        shown = [line for line in lines if "File" in line and "in waits" in line]
        assert len(shown) == 1 and shown == lines[2:3]
    process.communicate()
    assert process.returncode == 0, "it goes on"


def test_a_process_that_is_stopped_is_not_asked(process: subprocess.Popen[str], stacks: Stacks) -> None:
    process.send_signal(signal.SIGSTOP)
    within(5, lambda: state(process.pid) == "T", "it is stopped")
    said = doing(process.pid, stacks, lambda number: pytest.fail("it would answer when it goes on"))
    expected = f"It is stopped by a signal (SIGSTOP, or Ctrl-Z); kill -CONT {process.pid} lets it go on"
    assert said.startswith(expected)
    assert len(said.splitlines()) == 1


def test_who_does_not_answer_and_who_is_gone_are_told_so(stacks: Stacks) -> None:
    said = doing(os.getpid(), stacks, lambda number: None)
    assert said.endswith("It does not answer with its Python stack.")
    assert doing(2**22 + 1, stacks, lambda number: None) == "It is gone."


def test_of_each_thread_what_called_the_training_function_is_left_out() -> None:
    lines = [
        "Thread 0x01 (most recent call first):",
        '  File "/home/data.py", line 3 in reads',
        "",
        "Current thread 0x02 (most recent call first):",
        '  File "/home/train.py", line 7 in train',
        '  File "/lib/fanwise/parallel/launch/worker.py", line 123 in _train',
        '  File "/lib/fanwise/pool/worker.py", line 162 in _call',
    ]
    assert own(lines) == [lines[0], lines[1], lines[3], lines[4]]
