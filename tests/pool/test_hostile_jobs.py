"""Jobs that do what no job should, many kinds in random order: each ends alone, truly explained; nothing is left.

A pool of two CPUs gets them one after another as leases come back, so that each has another hostile one beside it, and
harmless ones in between, which must not notice.
"""

import contextlib
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from job_functions import local_engine, submitted

from fanwise.pool import Pool
from fanwise.testing import within


@dataclass(frozen=True)
class Hostile:
    """A kind of job: what it does, and the kind and a part of the text of its outcome."""

    act: Callable[[], object]
    kind: str
    text: str


def harmless() -> int:
    return sum(range(1000))


def raise_group() -> None:
    raise ExceptionGroup("both", [ValueError("one"), OSError("two")])


def raise_base() -> None:
    class Odd(BaseException):
        pass

    raise Odd("not an Exception")


def recurse_for_ever() -> object:
    return recurse_for_ever()


def os_exit_in_a_thread() -> None:
    threading.Thread(target=os._exit, args=(18,)).start()
    signal.pause()


def crash() -> None:
    import ctypes

    ctypes.string_at(8)


def crash_in_a_thread() -> None:
    import ctypes

    threading.Thread(target=ctypes.string_at, args=(8,)).start()
    signal.pause()


def crash_without_stderr() -> None:
    os.close(2)
    crash()


def kill_its_group() -> None:
    os.killpg(0, signal.SIGKILL)


def terminate_itself() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    signal.pause()


def print_much() -> str:
    for _ in range(200):
        print("x" * 100_000)
        print("y" * 100_000, file=sys.stderr)
    return "printed"


def print_binary() -> None:
    os.write(2, bytes(range(256)) * 100 + b"\x1b]0;title\x07")
    os._exit(19)


def return_what_fails_to_pickle() -> object:
    class Bad:
        def __reduce__(self) -> str:
            raise RuntimeError("no form")

    return Bad()


def return_what_exits_when_pickled() -> object:
    class Bad:
        def __reduce__(self) -> str:
            sys.exit(20)

    return Bad()


def handle_signals_itself() -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return str(sum(range(300_000)))


def block_all_signals() -> str:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return "blocked"


def be_killed_by_an_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while True:
        signal.pause()


def close_output() -> str:
    os.close(1)
    os.close(2)
    return "closed"


def close_output_objects() -> str:
    sys.stdout.close()
    sys.stderr.close()
    return "closed"


def replace_output() -> str:
    sys.stdout = sys.stderr = None  # as some libraries do
    return "replaced"


def write_to_all_sockets() -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), b"\xff" * 4096)


def exit_with_nothing_to_blame() -> None:
    os._exit(0)


def go_to_a_deleted_folder() -> str:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)
    return "nowhere"


def forbid_big_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.write(1, b"x" * 100)
    os.write(1, b"x")


def use_up_descriptors() -> str:
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    threading.stack_kept = kept  # type: ignore[attr-defined]  # so that they stay open
    return "none left"


def break_exceptions() -> None:
    sys.excepthook = lambda *_: sys.exit(21)
    raise ValueError("behind a hook")


def break_modules() -> str:
    for name in ("os", "pickle", "signal", "threading"):
        sys.modules.pop(name)
    gc.collect()
    return "forgotten"


def fail_at_exit() -> str:
    import atexit

    def fail() -> None:
        raise RuntimeError("at exit")

    atexit.register(fail)
    return "returned"


def exit_at_exit() -> str:
    import atexit

    atexit.register(os._exit, 22)
    return "returned"


RETURN = [
    *(harmless, print_much, handle_signals_itself, block_all_signals, close_output, close_output_objects),
    *(replace_output, go_to_a_deleted_folder, use_up_descriptors, break_modules, fail_at_exit, exit_at_exit),
]
KINDS = [
    *(Hostile(act, "returned", "") for act in RETURN),
    Hostile(raise_group, "exception", "ExceptionGroup: both (2 sub-exceptions)"),
    Hostile(raise_base, "exception", "not an Exception"),
    Hostile(recurse_for_ever, "exception", "RecursionError"),
    Hostile(os_exit_in_a_thread, "exit", "ended with exit code 18 before its function returned"),
    Hostile(crash_in_a_thread, "signal", "ended by SIGSEGV"),
    Hostile(crash_without_stderr, "signal", "ended by SIGSEGV. A crash in native code"),
    Hostile(kill_its_group, "signal", "ended by SIGKILL. fanwise did not send it"),
    Hostile(terminate_itself, "signal", "ended by SIGTERM. fanwise did not send it"),
    Hostile(hang_up, "signal", "ended by SIGHUP"),
    Hostile(print_binary, "exit", r"\x1b]0;title\x07"),
    Hostile(return_what_fails_to_pickle, "exception", "no form"),
    Hostile(return_what_exits_when_pickled, "exit", "SystemExit: 20"),
    Hostile(be_killed_by_an_alarm, "signal", "ended by SIGALRM"),
    Hostile(write_to_all_sockets, "lost", "its link to the pool broke"),
    Hostile(exit_with_nothing_to_blame, "exit", "ended with exit code 0 before its function returned"),
    Hostile(forbid_big_files, "signal", "ended by SIGXFSZ"),
    Hostile(break_exceptions, "exception", "ValueError: behind a hook"),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.act.__name__)
def test_a_hostile_job_ends_alone_and_is_explained(pool: Pool, kind: Hostile) -> None:
    beside = pool.submit(harmless)
    outcome = submitted(pool.submit(kind.act)).outcome(within_s=120)
    assert outcome.kind == kind.kind and kind.text in outcome.text, outcome.text
    engine = local_engine(pool)
    within(20, lambda: engine.ledger.leases == {}, "all leases are back")
    assert (engine._jobs, engine._backlog._queues, engine._workers._workers) == ({}, {}, {})
    assert beside.result(within_s=30) == pool.submit(harmless).result(within_s=30) == 499500
