"""The floor: what a no-op trial in a process of its own costs when nothing but the operating system is in the way.

    this process (torch imported, one thread) --fork--> child: three round trips over a socket pair, exit
                                              --fork--> child: the same; two at a time

No pool, no record, no authentication, no seeding, no output kept. What a library adds on top of this is its own cost.
"""

import os
import selectors
import socket
import sys

import marks

NUM_AT_ONCE = 2
MESSAGE = b"x" * 64


def trial(sock: socket.socket) -> None:
    """The child: mark, import torch as every objective here does, three times ask and wait for the answer."""
    marks.mark()
    import torch  # noqa: F401

    for _ in range(3):
        sock.sendall(MESSAGE)
        if len(sock.recv(len(MESSAGE))) != len(MESSAGE):
            os._exit(1)


def start(waiting: selectors.BaseSelector) -> None:
    """Fork one child; `waiting` tells when it speaks or ends."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        trial(theirs)
        os._exit(0)
    theirs.close()
    waiting.register(ours, selectors.EVENT_READ, pid)


def serve(waiting: selectors.BaseSelector) -> int:
    """Answer what has arrived; reap and count the children that have ended."""
    num_ended = 0
    for key, _ in waiting.select():
        sock = key.fileobj
        assert isinstance(sock, socket.socket), "only sockets are registered"
        message = sock.recv(len(MESSAGE))
        if message:
            sock.sendall(message)
            continue
        waiting.unregister(sock)
        sock.close()
        if os.waitpid(key.data, 0)[1] != 0:
            raise RuntimeError(f"the child with pid {key.data} failed")
        num_ended += 1
    return num_ended


def import_torch() -> None:
    """Import torch so that this process keeps its one thread: the threads of its libraries do not survive a fork."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch  # noqa: F401


def main() -> None:
    args = marks.arguments()
    import_torch()
    run = marks.Run.begin("bare fork", sys.version.split()[0], args.folder)
    with selectors.DefaultSelector() as waiting:
        for _ in range(NUM_AT_ONCE):
            start(waiting)
        num_started, num_ended = NUM_AT_ONCE, 0
        while num_ended < num_started:
            for _ in range(serve(waiting)):
                num_ended += 1
                if num_started < args.trials:
                    start(waiting)
                    num_started += 1
    run.end()


if __name__ == "__main__":
    main()
