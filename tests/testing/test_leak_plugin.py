"""The plug-in finds each kind of leak, and nothing if there is none.

A file of careless tests runs once, in another pytest. Each test here checks the outcome of one of them.
"""

import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from leaks import Snapshot

SUPPORT = Path(__file__).resolve().parents[1] / "support"

CARELESS = """
import contextlib, glob, os, signal, socket, subprocess, tempfile, threading
import pytest

kept = []
released = threading.Event()

@pytest.fixture(scope="session", autouse=True)
def an_end():
    yield
    released.set()

def until_it_runs(*command):
    "A process has no command line for a moment while the kernel puts one program in the place of another."
    wanted = "".join(part + chr(0) for part in command).encode()
    while True:
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if file.read() == wanted:
                    return
        released.wait(0.01)

def test_thread():
    threading.Thread(target=released.wait, name="left thread").start()

def test_daemon_thread():
    threading.Thread(target=released.wait, name="left daemon", daemon=True).start()

def test_child():
    kept.append(subprocess.Popen(["sleep", "600"]))
    until_it_runs("sleep", "600")

def test_zombie():
    kept.append(subprocess.Popen(["true"]))
    os.waitid(os.P_PID, kept[-1].pid, os.WEXITED | os.WNOWAIT)

def test_grandchild():
    kept.append(subprocess.Popen(["sh", "-c", "sleep 601; true"]))
    until_it_runs("sleep", "601")

def test_orphan():
    subprocess.run(["sh", "-c", "setsid sleep 602 >/dev/null 2>&1 &"], check=True)
    until_it_runs("sleep", "602")

def test_socket():
    kept.append(socket.socket(socket.AF_UNIX))

def test_pipe():
    os.pipe()

def test_eventfd():
    os.eventfd(0)

def test_pidfd():
    os.pidfd_open(os.getpid())

def test_file_descriptor():
    os.open("/dev/null", os.O_RDONLY)

def test_temporary_file():
    open(os.path.join(tempfile.gettempdir(), "fanwise-left"), "w").close()

def test_new_variable():
    os.environ["FANWISE_LEFT"] = "1"

def test_lost_variable():
    del os.environ["KEPT_BY_TEST"]

def test_folder():
    os.chdir("/")

def test_handler():
    signal.signal(signal.SIGUSR1, lambda number, frame: None)

def test_warning():
    import warnings
    warnings.warn("careless")

def test_failing_and_careless():
    os.environ["FANWISE_LEFT"] = "2"
    assert False

@pytest.fixture(scope="module")
def long_lived():
    process = subprocess.Popen(["sleep", "603"])
    yield process
    process.kill()
    process.wait()

def test_wider_fixture(long_lived, tmp_path, monkeypatch):
    monkeypatch.setenv("FANWISE_LEFT", "3")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["true"], check=True)

def test_environment_is_as_before():
    assert "FANWISE_LEFT" not in os.environ and os.environ["KEPT_BY_TEST"] == "1" and os.getcwd() != "/"
"""

RUN = "CARELESS_RUN"  # what the processes of the careless tests carry, to be told from those of other runs

# The test, the kind of leak, and what else the message must hold.
LEAKS = {
    "test_thread": ("thread: thread left thread", "in wait"),
    "test_daemon_thread": ("thread: thread left daemon (daemon)", "in wait"),
    "test_child": ("process: process", "sleep 600"),
    "test_zombie": ("process: process", "State Z (zombie)"),
    "test_grandchild": ("process: process", "sleep 601"),
    "test_orphan": ("process: process", "sleep 602"),
    "test_socket": ("file descriptor: socket:", "1 more"),
    "test_pipe": ("file descriptor: pipe:", "2 more"),
    "test_eventfd": ("file descriptor: anon_inode:[eventfd", "1 more"),
    "test_pidfd": ("file descriptor: anon_inode:[pidfd]", "1 more"),
    "test_file_descriptor": ("file descriptor: /dev/null", "1 more"),
    "test_temporary_file": ("file: ", "/fanwise-left"),
    "test_new_variable": ("environment: FANWISE_LEFT was None, is '1'",),
    "test_lost_variable": ("environment: KEPT_BY_TEST was '1', is None",),
    "test_folder": ("current folder: was ", ", is /"),
    "test_handler": ("signal handler: SIGUSR1 was <Handlers.SIG_DFL",),
    "test_failing_and_careless": ("environment: FANWISE_LEFT was None, is '2'",),
}
CLEAN = ["test_wider_fixture", "test_environment_is_as_before"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By test: '' for passed, otherwise all its messages."""
    folder = tmp_path_factory.mktemp("careless")
    (folder / "test_careless.py").write_text(CARELESS)
    (folder / "conftest.py").write_text("pytest_plugins = ['leak_plugin']\n")
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {SUPPORT}\nfilterwarnings = error\nleak_patience_s = 0\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "--junitxml=out.xml"]
    environment = {**os.environ, "KEPT_BY_TEST": "1", RUN: str(os.getpid())}
    subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    cases: dict[str, str] = {}
    for case in ET.parse(folder / "out.xml").iter("testcase"):
        troubles = "".join(f"{one.tag}: {one.text}\n" for one in case if one.tag in ("failure", "error"))
        cases[case.attrib["name"]] = cases.get(case.attrib["name"], "") + troubles
    return cases


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_an_error_that_shows_it(outcomes: dict[str, str], name: str) -> None:
    assert "error: left behind by this test, 0.0 s later:" in outcomes[name]
    for part in LEAKS[name]:
        assert part in outcomes[name]


@pytest.mark.parametrize("name", CLEAN)
def test_what_leaves_nothing_passes(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""


def test_one_careless_test_makes_one_error(outcomes: dict[str, str]) -> None:
    in_trouble = {name for name, trouble in outcomes.items() if trouble}
    assert in_trouble == {*LEAKS, "test_warning"}
    assert outcomes["test_warning"].startswith("failure: ")
    assert "left behind" not in outcomes["test_warning"]
    assert outcomes["test_failing_and_careless"].startswith("failure: ")


def test_no_process_outlives_its_careless_test(outcomes: dict[str, str]) -> None:
    mark = f"{RUN}={os.getpid()}\0".encode()
    assert outcomes
    assert [path for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)] == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_temporary_files_go_into_a_folder_of_this_run(tmp_path: Path) -> None:
    folder = os.environ["TMPDIR"]
    assert Path(folder).name.startswith("fw-")
    assert not tmp_path.is_relative_to(folder)


def test_what_goes_in_time_is_no_leak() -> None:
    before = Snapshot.take()
    thread = threading.Thread(target=threading.Event().wait, args=[0.05])
    thread.start()
    assert before.leaks(patience_s=60.0) == []
    thread.join()


def test_what_only_a_dead_cycle_holds_is_no_leak() -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.fd = os.eventfd(0)

        def __del__(self) -> None:
            os.close(self.fd)

    before = Snapshot.take()
    Holder()
    assert before.leaks(patience_s=60.0) == []


def test_a_new_thread_with_the_number_of_an_old_one_is_seen() -> None:
    released = threading.Event()
    old = threading.Thread(target=released.wait)
    old.start()
    before = Snapshot.take()
    released.set()
    old.join()
    released.clear()
    new = threading.Thread(target=released.wait, name="new")
    new.start()
    leaks = before.leaks()
    released.set()
    new.join()
    assert [leak.kind for leak in leaks] == ["thread"]


def test_a_snapshot_finds_nothing_new_when_nothing_happened() -> None:
    assert Snapshot.take().leaks() == []
