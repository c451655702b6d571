"""Programs that tests run: what they leave is told, and none outlives its test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from leaks import Snapshot
from program_runs import LoadedInterpreter, run_program


def test_status_and_both_outputs_are_told(tmp_path: Path) -> None:
    done = run_program(["-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], folder=tmp_path)
    assert (done.status, done.out, done.err, done.said) == (3, "out\n", "err\n", "out\nerr\n")


def test_experiments_are_kept_below_the_folder_unless_told_otherwise(tmp_path: Path) -> None:
    program = ["-c", "import os; print(os.environ['FANWISE_HOME'], os.getcwd())"]
    assert run_program(program, folder=tmp_path).out.split() == [f"{tmp_path}/home", str(tmp_path)]
    assert run_program(program, folder=tmp_path, environment={"FANWISE_HOME": "x"}).out.split()[0] == "x"


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    code = "import os, signal; print('begun', flush=True); os.fork(); signal.pause()"
    done = run_program(["-c", code], folder=tmp_path, limit_s=0.5)
    assert done.status == -9
    assert done.err.endswith("still running after 0.5 s")


def test_ctrl_c_comes_after_the_text_it_waits_for(tmp_path: Path) -> None:
    code = """
import signal
print("ready", flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run_program(["-c", code], folder=tmp_path, interrupt_after="ready").out == "ready\ninterrupted\n"


def test_a_program_that_never_prints_the_text_is_killed_and_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.2 s: it prints 'ready'"):
        run_program(["-c", "import signal; signal.pause()"], folder=tmp_path, limit_s=0.2, interrupt_after="ready")


# -- forked from an interpreter that has loaded something --------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedInterpreter]:
    with LoadedInterpreter("decimal") as loaded:
        yield loaded


def script(folder: Path, code: str) -> Path:
    path = folder / "program.py"
    path.write_text(code)
    return path


def test_a_forked_program_is_as_in_a_fresh_interpreter_but_for_what_is_loaded(
    loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("here = __file__")
    code = """
import os, sys
loaded = {"decimal", "fanwise"} & set(sys.modules)
import __main__, beside, warnings
print(loaded, __name__, __file__ == __main__.__file__ == sys.argv[0], vars(__main__) is globals())
print(os.getcwd(), os.environ["FANWISE_HOME"], os.environ["ONE"], sys.argv[1:], os.getsid(0) == os.getpid())
print(sys.stdin.read() == "", beside.here, sorted(os.listdir("/proc/self/fd")), file=sys.stderr)
try:
    warnings.warn("an error")
except UserWarning:
    sys.exit(3)
"""
    done = loaded.run(script(tmp_path, code), folder=tmp_path, environment={"ONE": "1"})
    assert done.status == 3, done.said
    assert done.out.splitlines() == [
        "{'decimal'} __main__ True True",
        f"{tmp_path} {tmp_path}/home 1 [] True",
    ]
    assert done.err == f"True {tmp_path}/beside.py ['0', '1', '2', '3']\n"


def test_each_forked_program_starts_anew(loaded: LoadedInterpreter, tmp_path: Path) -> None:
    code = "import decimal\nprint(hasattr(decimal, 'mine'))\ndecimal.mine = 1"
    assert [loaded.run(script(tmp_path, code), folder=tmp_path).out for _ in range(2)] == ["False\n"] * 2


def test_how_a_forked_program_ends_is_told(loaded: LoadedInterpreter, tmp_path: Path) -> None:
    done = loaded.run(script(tmp_path, "print('out', end='')\n1 / 0"), folder=tmp_path)
    assert (done.status, done.out) == (1, "out") and done.err.endswith("ZeroDivisionError: division by zero\n")
    ends = (
        "import atexit\natexit.register(print, 'at the end')\nclass A:\n    def __del__(self): print('gone')\na = A()"
    )
    assert loaded.run(script(tmp_path, ends), folder=tmp_path).out == "at the end\ngone\n"
    assert loaded.run(script(tmp_path, "import os; os.kill(os.getpid(), 15)"), folder=tmp_path).status == -15


def test_a_forked_program_that_takes_too_long_is_killed_with_what_it_started(
    loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    code = "import os, signal; print('begun', flush=True); os.fork(); signal.pause()"
    done = loaded.run(script(tmp_path, code), folder=tmp_path, limit_s=0.5)
    assert done.status == -9
    assert done.err.endswith("still running after 0.5 s")


def test_what_a_forked_program_leaves_stays_below_the_test(loaded: LoadedInterpreter, tmp_path: Path) -> None:
    before = Snapshot.take()
    code = """
import os, signal
pid = os.fork()
if pid == 0:
    os.setsid()
    signal.pause()
print(pid)
"""
    left = int(loaded.run(script(tmp_path, code), folder=tmp_path).out)
    assert [leak.pid for leak in before.leaks()] == [left]
    os.kill(left, signal.SIGKILL)
    assert before.leaks(patience_s=60.0) == [], "it is reaped"


STARTS = """
import multiprocessing, os, subprocess, sys

show = "import os, sys, warnings; print('decimal' in sys.modules, 'json.tool' in sys.modules, sys.argv, os.getcwd(), " \
    "os.environ.get('ONE'), os.getppid(), os.getsid(0) == os.getpid(), ('error', None, Warning, None, 0) in " \
    "warnings.filters, sorted(os.listdir('/proc/self/fd')), sys.stdin.read(), flush=True); sys.exit(3)"

def spawned(queue):
    queue.put(("decimal" in sys.modules, "json.tool" in sys.modules, os.environ["ONE"], os.getppid(), __name__))
    sys.exit(4)

if __name__ == "__main__":
    import json.tool  # of the program: nothing that it starts has this
    os.environ["ONE"] = "1"
    given = [sys.executable, "-c", show, "x"]
    done = subprocess.run(given, input="in", stdout=subprocess.PIPE, text=True, start_new_session=True, cwd="/")
    print(done.stdout.replace(str(os.getpid()), "program"), done.returncode)
    done = subprocess.run(given, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, env={})
    print(done.stdout.decode().replace(str(os.getpid()), "program"), done.returncode)
    failed = subprocess.run([sys.executable, "-c", "1 / 0"], stderr=subprocess.PIPE)
    print(failed.returncode, failed.stderr.decode().splitlines()[-1])
    killed = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    killed.kill()
    print(killed.wait())
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=spawned, args=(queue,))
    process.start()
    process.join()
    print(*queue.get(), process.exitcode, end="")
    print("", subprocess.run([sys.executable, "-c", "print(0)"], stdout=subprocess.PIPE).stdout, os.getpid())
"""


def test_what_a_forked_program_starts_is_forked_too_and_is_its_child(loaded: LoadedInterpreter, tmp_path: Path) -> None:
    done = loaded.run(script(tmp_path, STARTS), folder=tmp_path, forks=True)
    assert done.status == 0, done.said
    *lines, last = done.out.splitlines()
    assert lines == [
        "True False ['-c', 'x'] / 1 program True False ['0', '1', '2', '3'] in",
        " 3",
        f"True False ['-c', 'x'] {tmp_path} None program False False ['0', '1', '2', '3'] ",
        " 3",
        "1 ZeroDivisionError: division by zero",
        "-9",
    ]
    *seen, printed, pid = last.split()
    assert seen == ["True", "False", "1", pid, "__mp_main__", "4"]
    assert printed == "b'0\\n'"


def test_without_leave_what_a_forked_program_starts_is_fresh(loaded: LoadedInterpreter, tmp_path: Path) -> None:
    show = "import sys; print('decimal' in sys.modules)"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {show!r}])"
    assert loaded.run(script(tmp_path, code), folder=tmp_path).out == "False\n"


def test_ctrl_c_for_a_forked_program_comes_after_the_text_it_waits_for(
    loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    code = "import signal\nprint('ready', flush=True)\nsignal.pause()"
    done = loaded.run(script(tmp_path, code), folder=tmp_path, interrupt_after="ready")
    assert done.status == -signal.SIGINT and done.err.endswith("KeyboardInterrupt\n")


def test_a_forked_program_that_never_prints_the_text_is_killed_and_told(
    loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    before = Snapshot.take()
    with pytest.raises(AssertionError, match=r"not within 0\.2 s: it prints 'ready'"):
        loaded.run(
            script(tmp_path, "import signal; signal.pause()"), folder=tmp_path, limit_s=0.2, interrupt_after="ready"
        )
    assert before.leaks(patience_s=60.0) == []


def test_what_the_test_itself_starts_is_forked_and_its_child_as_long_as_it_asks_for_it(
    loaded: LoadedInterpreter, tmp_path: Path
) -> None:
    show = "import os, sys; print('decimal' in sys.modules, os.getppid(), os.getcwd(), os.environ['ONE'], sys.argv[1])"

    def starts() -> list[str]:
        environment = {**os.environ, "ONE": "1"}
        command = [sys.executable, "-c", show, "x"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment, check=True)
        return done.stdout.split()

    expected = [str(os.getpid()), str(tmp_path), "1", "x"]
    with loaded.forks_here():
        assert starts() == ["True", *expected]
        killed = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
        # Programs are forked as before, meanwhile.
        assert loaded.run(script(tmp_path, "print('ran')"), folder=tmp_path).out == "ran\n"
    assert starts() == ["False", *expected]
