"""Descriptions of processes that hang."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from program_runs import LoadedInterpreter

from fanwise.parallel.comm.stack_dump import StackFile, describe_process
from fanwise.testing import within


@pytest.fixture
def stacks() -> Iterator[StackFile]:
    file = StackFile()
    yield file
    file.close()


PROGRAM = """
import sys, threading
from fanwise.parallel.comm.stack_dump import install_stack_dump
install_stack_dump(sys.argv[1])
def waits():
    print("ready", flush=True)
    sys.stdin.read()
waits()
"""


@pytest.fixture
def process(stacks: StackFile, torch_loaded: LoadedInterpreter) -> Iterator[subprocess.Popen[str]]:
    """A process with the signal handler, which waits for the end of its standard input."""
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


def test_a_waiting_process_dumps_its_stack_at_each_request(process: subprocess.Popen[str], stacks: StackFile) -> None:
    within(30, lambda: state(process.pid) == "S", "it waits")
    for _ in range(2):
        lines = describe_process(process.pid, stacks, process.send_signal).splitlines()
        assert lines[0].startswith("It waits")
        assert [line for line in lines if "File" in line and "in waits" in line] == lines[2:3]
    process.communicate()
    assert process.returncode == 0, "it continues"


def test_a_stopped_process_gets_no_signal(process: subprocess.Popen[str], stacks: StackFile) -> None:
    process.send_signal(signal.SIGSTOP)
    within(30, lambda: state(process.pid) == "T", "it is stopped")
    (line,) = describe_process(process.pid, stacks, lambda number: pytest.fail("a signal")).splitlines()
    assert line.startswith(f"It is stopped by a signal (SIGSTOP, or Ctrl-Z); kill -CONT {process.pid} continues it")


def test_a_missing_answer_and_an_ended_process_are_reported(stacks: StackFile) -> None:
    description = describe_process(os.getpid(), stacks, lambda number: None)
    assert description.endswith("It wrote no Python stack within 0.5 s.")
    assert describe_process(2**22 + 1, stacks, lambda number: None) == "It has ended."
