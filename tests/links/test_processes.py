"""What only real processes do: die, leave children that hold their sockets, fork in the middle, execute programs.

The pool's way: the hub runs in a thread here, and the peers are processes of their own with undriven hubs.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data

from fanwise.base.errors import ClosedError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Reply, Request
from fanwise.links.peers import Peer
from fanwise.links.transports.unix import UnixListener, dial, new_key
from fanwise.testing import within


class Server:
    """The side of the test: a hub in a thread, and what the peers did."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(name="server")
        self.path, self.key = folder / "hub", new_key()
        self.links: list[Link] = []
        self.requests: list[Request] = []
        self.endings: list[tuple[str, bool]] = []
        self.listener = UnixListener(self.hub, self.path, self.key, on_link=self._arrived)
        self.hub.start()

    def _arrived(self, link: Link) -> None:
        self.links.append(link)
        link.handler = self._serve
        link.on_ended(lambda link, ending: self.endings.append((ending.reason, ending.clean)))

    def _serve(self, request: Request) -> None:
        self.requests.append(request)
        if request.method == "echo":
            request.answer(request.args)

    def link(self, number: int = 1) -> Link:
        """The link of the peer that came as number `number`."""
        within(20.0, lambda: len(self.links) >= number, "the peer has come")
        return self.links[number - 1]

    def told(self, method: str) -> list[Request]:
        return [request for request in list(self.requests) if request.method == method]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.hub.close()


CHILD = """
import os, sys, threading
from pathlib import Path
from fanwise.links.hub import Hub
from fanwise.links.transports.unix import dial
path, key, what = sys.argv[1:]
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
pid = ctypes.CDLL(None).fork()  # as C code forks: no hook of Python runs, so the child keeps every descriptor
if pid == 0:
    import signal
    signal.pause()
    os._exit(0)
link.notify("grandchild", pid)
"""


class Child:
    """A fresh interpreter that dials the server and then runs `body`."""

    def __init__(self, server: Server, body: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD + body, str(server.path), server.key.hex(), ""], stdin=subprocess.DEVNULL
        )
        self.pid = self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(server: Server) -> Iterator[Callable[[str], Child]]:
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


def test_every_open_call_of_a_killed_process_fails_and_its_end_is_told_once(
    server: Server, start: Callable[[str], Child]
) -> None:
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
    within(20.0, lambda: server.endings, "the end is told")
    server.hub.call_soon(lambda: server.endings.append(("after it", True)))
    within(20.0, lambda: len(server.endings) == 2, "the hub goes on")
    assert [clean for _, clean in server.endings] == [False, True]
    assert link.pidfd == -1


def test_a_killed_process_is_known_to_be_dead_though_a_child_of_its_holds_the_socket(
    server: Server, start: Callable[[str], Child]
) -> None:
    child = start(KEEPS_A_CHILD + DRIVEN)
    link = server.link()
    within(20.0, lambda: server.told("grandchild"), "the child has a child")
    (grandchild,) = server.told("grandchild")[0].args
    replies = [link.call("never") for _ in range(10)]
    try:
        child.end()
        expect_lost(replies)
        within(20.0, lambda: server.endings, "the end is told")
        assert server.endings == [(f"process {child.pid} ended", False)]
        assert Path(f"/proc/{grandchild}").exists(), "the socket was still open there"
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_who_waits_for_a_killed_process_is_woken_though_a_child_of_its_holds_the_socket(
    server: Server, start: Callable[[str], Child]
) -> None:
    child = start(KEEPS_A_CHILD + DRIVEN)
    link = server.link()
    within(20.0, lambda: server.told("grandchild"), "the child has a child")
    (grandchild,) = server.told("grandchild")[0].args
    failures: list[BaseException] = []

    def ask() -> None:  # reads the link itself, and so is blocked in the kernel
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
        assert f"process {child.pid} ended" in str(failures[0])
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_what_a_process_said_last_is_heard_before_its_end(server: Server, start: Callable[[str], Child]) -> None:
    start("for i in range(1000):\n    link.notify('note', i)\nos._exit(1)\n")
    within(20.0, lambda: server.endings, "the end is told")
    assert [request.args[0] for request in server.told("note")] == list(range(1000))


def test_a_stopped_process_is_not_taken_for_a_dead_one(server: Server, start: Callable[[str], Child]) -> None:
    child = start(DRIVEN)
    link = server.link()
    assert link.ask("echo", 1, within_s=20.0) == (1,)
    os.kill(child.pid, signal.SIGSTOP)
    reply = link.call("echo", 2)
    # It does not read: what its socket cannot hold waits here, and the hub goes on.
    big = [link.call("echo", bytes(100_000)) for _ in range(20)]
    start(DRIVEN)
    assert server.link(2).ask("echo", 3, within_s=20.0) == (3,)
    assert not reply.done() and link.ending is None
    os.kill(child.pid, signal.SIGCONT)
    assert reply.result(20.0) == (2,)
    assert all(one.result(20.0) == (bytes(100_000),) for one in big)


def test_a_peer_that_dies_while_it_is_sent_something_big_fails_that_call(
    server: Server, start: Callable[[str], Child]
) -> None:
    child = start("import signal; signal.pause()\n")  # reads nothing
    link = server.link()
    replies = [link.call("big", bytes(10_000_000)) for _ in range(3)]
    child.end()
    expect_lost(replies)


def test_memory_shared_with_a_killed_process_is_not_used_again_and_dropped(
    server: Server, start: Callable[[str], Child]
) -> None:
    start(DRIVEN)
    child = start("kept = []\nlink.handler = lambda r: r.answer(kept.append(r.args[0]))\n" + DRIVEN)
    link, other = server.link(1), server.link(2)
    if link.peer.pid == child.pid:
        link, other = other, link
    for i in range(3):
        assert (other.ask("keep", np.full(1 << 20, i, np.uint8), within_s=20.0)) is None
        (back,) = link.ask("echo", np.full(1 << 20, i, np.uint8), within_s=20.0)
        assert back.min() == back.max() == i
    sharing = other._sharing
    assert sharing is not None and sharing._sent
    budget = sharing._budget
    num_bytes = budget.num_bytes
    child.end()
    within(20.0, lambda: server.endings, "the end is told")
    for i in range(20):  # what the living one has is returned, now and then
        (back,) = link.ask("echo", np.full(1 << 20, i, np.uint8), within_s=20.0)
        assert back.min() == back.max() == i
    within(20.0, lambda: budget.num_bytes < num_bytes and not sharing._sent, "the segments of the dead are dropped")


# -- forks by user code ------------------------------------------------------------------------------------------------


def uses_of(link: Link, reply: Reply) -> list[str]:
    """What each use of a link says here; none may block or send."""
    uses: list[Callable[[], object]] = [
        lambda: link.ask("from the fork"),
        lambda: link.call("from the fork"),
        lambda: link.notify("from the fork"),
        lambda: reply.result(5.0),
    ]
    said = []
    for use in uses:
        try:
            said.append(repr(use()))
        except BaseException as error:
            said.append(type(error).__name__)
    link.close()
    return said


def in_fork(work: Callable[[], object]) -> str:
    """`repr` of what `work` returns in a child made by os.fork."""
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


@pytest.fixture
def sigchld() -> Iterator[None]:
    """torch's DataLoader sets a handler and leaves it."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_a_link_is_inert_in_a_fork_and_goes_on_in_the_parent(server: Server, near: Link) -> None:
    reply, far_reply = near.call("later"), server.link().call("never")
    said = in_fork(lambda: (uses_of(near, reply), uses_of(server.link(), far_reply)))
    assert said == repr((["ClosedError"] * 4, ["ClosedError"] * 4))
    within(20.0, lambda: server.told("later"), "the request has come")
    server.told("later")[0].answer("later")
    assert reply.result(20.0) == "later"
    assert near.ask("echo", 1, within_s=20.0) == (1,)
    assert server.told("from the fork") == [] and server.endings == []


def test_the_message_in_a_fork_says_which_process_may(server: Server, near: Link) -> None:
    def text() -> str:
        try:
            near.ask("from the fork")
        except ClosedError as error:
            return str(error)
        return "nothing was raised"

    me = os.getpid()
    assert f"the links of process {me} cannot be used in process " in in_fork(text)
    assert "not from its DataLoader workers" in in_fork(text)


def open_here() -> set[tuple[str, str]]:
    """Number and target of each socket, epoll and eventfd of this process."""
    paths = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    found = ((path, os.readlink(path)) for path in paths if os.path.lexists(path))
    return {(path, target) for path, target in found if target.startswith(("socket:", "anon_inode:"))}


@pytest.fixture
def of_others() -> set[tuple[str, str]]:
    """What else is open in this process, of libraries or of earlier tests. Looked at before our links are made."""
    return open_here()


def test_a_fork_holds_no_descriptor_of_ours(of_others: set[tuple[str, str]], server: Server, near: Link) -> None:
    server.link()
    mine = open_here() - of_others
    assert len(mine) >= 5, "epoll, eventfd, a listener, two ends"
    assert in_fork(lambda: sorted(mine & open_here())) == "[]"


def test_a_fork_while_other_threads_hold_the_locks_of_a_link_hangs_nowhere(server: Server, near: Link) -> None:
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
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(near._reader.waiters._lock)
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(20.0)

    def work() -> object:
        said = uses_of(near, reply)
        server.listener.close()
        near._hub.close()
        return said

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20.0)
    try:
        assert in_fork(work) == repr(["ClosedError"] * 4)
    finally:
        over.set()
        holder.join()
    assert server.path.exists(), "the listener's socket belongs to the parent"
    assert near.ask("echo", 1, within_s=20.0) == (1,)


def test_a_fork_may_have_links_of_its_own(server: Server, near: Link) -> None:
    def work() -> object:
        hub = Hub(name="fork")
        link = dial(hub, server.path, server.key)
        answer = link.ask("echo", "own", within_s=20.0)
        link.close()
        hub.close()
        return answer

    assert in_fork(work) == "('own',)"
    assert near.ask("echo", 1, within_s=20.0) == (1,)


def use_in_process(link: Link, reply: Reply, queue: "multiprocessing.SimpleQueue[list[str]]") -> None:
    queue.put(uses_of(link, reply))


def test_a_link_is_inert_in_a_process_of_multiprocessing(server: Server, near: Link) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.SimpleQueue[list[str]] = context.SimpleQueue()
    process = context.Process(target=use_in_process, args=(near, near.call("never"), queue))
    process.start()
    assert queue.get() == ["ClosedError"] * 4
    process.join()
    queue.close()
    process.close()
    assert near.ask("echo", 1, within_s=20.0) == (1,)
    assert server.told("from the fork") == []


class Reporting(torch.utils.data.Dataset[str]):
    """A careless data set: it reports from wherever it is read."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> str:
        try:
            self.link.notify("from the fork", index)
        except ClosedError:
            return f"refused in {os.getpid()}"
        return "sent"


@pytest.mark.usefixtures("sigchld")
def test_a_data_loader_of_torch_sends_nothing_and_the_link_goes_on(server: Server, near: Link) -> None:
    loader = torch.utils.data.DataLoader(Reporting(near), batch_size=2, num_workers=2)
    for _ in range(2):
        said = [text for batch in loader for text in batch]
        assert len(set(said)) == 2 and all(text.startswith("refused in ") for text in said)
        assert f"refused in {os.getpid()}" not in said
        assert near.ask("echo", 1, within_s=20.0) == (1,)
    assert server.told("from the fork") == [] and server.endings == []


def test_an_executed_child_inherits_nothing(server: Server, near: Link) -> None:
    server.link()
    done = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], stdin=subprocess.DEVNULL, capture_output=True, text=True, close_fds=False
    )
    assert "pipe:" in done.stdout
    assert not any(kind in done.stdout for kind in ("socket:", "eventpoll", "eventfd", "pidfd")), done.stdout
