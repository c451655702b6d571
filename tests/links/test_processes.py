"""Links to real processes, which die, stop, fork and execute programs.

As in the pool, the hub of the test runs in a thread, and the peers are processes with undriven hubs.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from listeners import EchoServer, Transport

from fanwise.base.errors import ClosedError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Reply
from fanwise.links.peers import Peer
from fanwise.testing import within

CHILD = """
import os, sys, threading
from pathlib import Path
from fanwise.links.hub import Hub
from fanwise.links.transports.unix import dial
path, key = sys.argv[1:]
hub = Hub(name="child")
link = dial(hub, Path(path), bytes.fromhex(key))
def handler(request):
    if request.method == "echo":
        request.answer(request.args)
link.handler = handler
link.open()
link.notify("hello", os.getpid())
"""

DRIVEN = "hub.run(until=lambda: link.ending is not None)\n"

KEEPS_A_CHILD = """
import ctypes
pid = ctypes.CDLL(None).fork()  # without the hooks of Python, so the child keeps every descriptor
if pid == 0:
    import signal
    signal.pause()
    os._exit(0)
link.notify("grandchild", pid)
"""


class Child:
    """A fresh interpreter that dials the server and then runs `body`."""

    def __init__(self, server: EchoServer, body: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD + body, str(server.path), server.key.hex()], stdin=subprocess.DEVNULL
        )
        self.pid = self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(server: EchoServer) -> Iterator[Callable[[str], Child]]:
    children: list[Child] = []

    def start(body: str) -> Child:
        children.append(Child(server, body))
        return children[-1]

    yield start
    for child in children:
        child.end()


def expect_lost(replies: list[Reply]) -> None:
    for reply in replies:
        with pytest.raises(WorkerLostError, match="was not answered: the link to process"):
            reply.result(20.0)


# -- death -------------------------------------------------------------------------------------------------------------


def test_open_calls_of_a_killed_process_fail(server: EchoServer, start: Callable[[str], Child]) -> None:
    child = start(DRIVEN)
    link = server.link()
    assert link.ask("echo", 1, within_s=20.0) == (1,)
    assert link.peer == Peer(child.pid, os.getuid()) and link.pidfd >= 0
    replies = [link.call("never") for _ in range(100)]
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            link.ask("never")
        except BaseException as error:
            failures.append(error)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    os.kill(child.pid, signal.SIGKILL)
    expect_lost(replies)
    for asker in askers:
        asker.join(20.0)
    assert [type(error) for error in failures] == [WorkerLostError] * 4
    within(20.0, lambda: server.endings, "the link has ended")
    assert link.ending is not None and not link.ending.clean and len(server.endings) == 1
    assert link.pidfd == -1


def test_killed_process_is_lost_although_its_child_holds_the_socket(
    server: EchoServer, start: Callable[[str], Child]
) -> None:
    child = start(KEEPS_A_CHILD + DRIVEN)
    link = server.link()
    within(20.0, lambda: server.received("grandchild"), "the child has forked")
    (grandchild,) = server.received("grandchild")[0].args
    replies = [link.call("never") for _ in range(10)]
    failures: list[BaseException] = []

    def ask() -> None:  # reads the link itself, so it blocks in the kernel
        try:
            link.ask("never")
        except BaseException as error:
            failures.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        within(20.0, lambda: link._reader.lock.locked(), "it waits")
        child.end()
        asker.join(20.0)
        assert [type(error) for error in failures] == [WorkerLostError]
        expect_lost(replies)
        within(20.0, lambda: server.endings == [f"process {child.pid} ended"], "the link has ended")
        assert Path(f"/proc/{grandchild}").exists(), "the socket was still open there"
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_last_messages_of_a_process_arrive_before_its_end(server: EchoServer, start: Callable[[str], Child]) -> None:
    start("for i in range(1000):\n    link.notify('note', i)\nos._exit(1)\n")
    within(20.0, lambda: server.endings, "the link has ended")
    assert [request.args[0] for request in server.received("note")] == list(range(1000))


def test_stopped_process_is_not_lost(server: EchoServer, start: Callable[[str], Child]) -> None:
    child = start(DRIVEN)
    link = server.link()
    assert link.ask("echo", 1, within_s=20.0) == (1,)
    os.kill(child.pid, signal.SIGSTOP)
    reply = link.call("echo", 2)
    # It does not read, so the data that its socket cannot hold waits here.
    big = [link.call("echo", bytes(100_000)) for _ in range(20)]
    start(DRIVEN)
    assert server.link(2).ask("echo", 3, within_s=20.0) == (3,)
    assert not reply.done() and link.ending is None
    os.kill(child.pid, signal.SIGCONT)
    assert reply.result(20.0) == (2,)
    assert all(one.result(20.0) == (bytes(100_000),) for one in big)


def test_memory_shared_with_a_killed_process_is_dropped_and_not_used_again(
    server: EchoServer, start: Callable[[str], Child]
) -> None:
    start(DRIVEN)
    child = start("kept = []\nlink.handler = lambda r: r.answer(kept.append(r.args[0]))\n" + DRIVEN)
    link, lost = server.link(1), server.link(2)
    if link.peer.pid == child.pid:
        link, lost = lost, link
    for i in range(3):
        assert (lost.ask("keep", np.full(1 << 20, i, np.uint8), within_s=20.0)) is None
        (back,) = link.ask("echo", np.full(1 << 20, i, np.uint8), within_s=20.0)
        assert back.min() == back.max() == i
    sharing = lost._sharing
    assert sharing is not None and sharing._sent
    budget = sharing._budget
    num_bytes = budget.num_bytes
    child.end()
    within(20.0, lambda: server.endings, "the link has ended")
    for i in range(20):  # the living process returns its segments now and then
        (back,) = link.ask("echo", np.full(1 << 20, i, np.uint8), within_s=20.0)
        assert back.min() == back.max() == i
    within(
        20.0,
        lambda: budget.num_bytes < num_bytes and not sharing._sent,
        "its segments are dropped",
    )


# -- forks by user code ------------------------------------------------------------------------------------------------


def uses_of(link: Link, reply: Reply) -> list[str]:
    """Use a link in every way. Return the types of the errors; no use may block or send."""
    uses: list[Callable[[], object]] = [
        lambda: link.ask("from the fork"),
        lambda: link.call("from the fork"),
        lambda: link.notify("from the fork"),
        lambda: reply.result(5.0),
    ]
    outcomes = []
    for use in uses:
        try:
            outcomes.append(repr(use()))
        except BaseException as error:
            outcomes.append(type(error).__name__)
    link.close()
    return outcomes


def in_fork(work: Callable[[], object]) -> str:
    """Call `work` in a child made by os.fork. Return `repr` of its value."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def num_descriptors() -> int:
    """Return the number of sockets, epolls and eventfds of this process."""
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(path).startswith(("socket:", "anon_inode:")) for path in paths if os.path.lexists(path))


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_link_is_inert_in_a_fork_and_stays_usable_in_the_parent(
    serve: Callable[..., EchoServer], hub: Hub, transport: Transport
) -> None:
    before = num_descriptors()
    server = serve(transport)
    near = server.dial(hub)
    near.open()
    reply, far_reply = near.call("later"), server.link().call("never")
    assert num_descriptors() >= before + 4, "epoll, eventfd, a listener, two ends"

    def use_all() -> object:
        descriptors = num_descriptors()
        try:
            near.ask("from the fork")
        except ClosedError as error:
            text = str(error)
        errors = [uses_of(near, reply), uses_of(server.link(), far_reply)]
        server.listener.close()
        return descriptors <= before - 2, errors, text  # those of `hub` are closed, too

    text = in_fork(use_all)
    assert text.startswith(repr((True, [["ClosedError"] * 4] * 2))[:-1])
    assert f"the links of process {os.getpid()} cannot be used in process " in text
    assert "not from its DataLoader workers" in text
    within(20.0, lambda: server.received("later"), "the request has arrived")
    server.received("later")[0].answer("later")
    assert reply.result(20.0) == "later"
    assert near.ask("echo", 1, within_s=20.0) == (1,) and server.serves()
    assert server.received("from the fork") == [] and len(server.links) == 2


def test_fork_while_other_threads_hold_the_locks_of_a_link_does_not_hang(server: EchoServer, near: Link) -> None:
    far = server.link()
    reply = near.call("never")
    locks: list[contextlib.AbstractContextManager[object]] = [
        near._state.lock,
        near._reader.lock,
        near._writer._lock,
        near._hub._waking,
        far._state.lock,
        far._reader.lock,
    ]
    are_held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(near._reader.waiters._lock)
            for lock in locks:
                stack.enter_context(lock)
            are_held.set()
            over.wait(20.0)

    def work() -> object:
        outcomes = uses_of(near, reply)
        server.listener.close()
        near._hub.close()
        return outcomes

    holder = threading.Thread(target=hold)
    holder.start()
    are_held.wait(20.0)
    try:
        assert in_fork(work) == repr(["ClosedError"] * 4)
    finally:
        over.set()
        holder.join()
    assert server.path.exists(), "the listener's socket belongs to the parent"
    assert near.ask("echo", 1, within_s=20.0) == (1,)


def test_fork_may_open_its_own_links(server: EchoServer, near: Link) -> None:
    def work() -> object:
        hub = Hub(name="fork")
        link = server.dial(hub)
        answer = link.ask("echo", "own", within_s=20.0)
        link.close()
        hub.close()
        return answer

    assert in_fork(work) == "('own',)"
    assert near.ask("echo", 1, within_s=20.0) == (1,)


def test_executed_program_inherits_no_descriptor(server: EchoServer, near: Link) -> None:
    server.link()
    done = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], stdin=subprocess.DEVNULL, capture_output=True, text=True, close_fds=False
    )
    assert "pipe:" in done.stdout
    assert not any(kind in done.stdout for kind in ("socket:", "eventpoll", "eventfd", "pidfd")), done.stdout
