"""Programs that tests run: what they leave is told, and none outlives its test."""

from pathlib import Path

import pytest

from fanwise.testing.programs import run_program


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
