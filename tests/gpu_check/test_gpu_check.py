"""`make gpu-check` without a GPU: what the table says of each end a part can come to, and parts that come to each."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from gpu_rows import Ended, Row, Seen, refusal, rows_of_benchmark, rows_of_tests, shown, status_of

import gpu_check
from gpu_check import BENCHMARKS, Part, parts_of, run, run_all, tell

GOOD = Ended(0, 3.0, 600.0)
HUNG = Ended(None, 600.0, 600.0)


def phases(test: str, **outcomes: str) -> list[dict[str, Any]]:  # Any: JSON
    """As told.py writes them."""
    lines: list[dict[str, Any]] = [{"test": test, "when": "began"}]
    for when, outcome in outcomes.items():
        lines.append({"test": test, "when": when, "outcome": outcome, "seconds": 0.5, "why": f"E  {when} {outcome}"})
    return lines


def beside(ours: str, times: float | None, **more: str) -> dict[str, Any]:  # Any: JSON
    return {"ours": ours, "peer": "torch", "times": times, "trouble": "", "no_peer": "", **more}


# -- what the table says -----------------------------------------------------------------------------------------------


def test_each_test_has_its_row() -> None:
    told = [
        *phases("t.py::good", setup="passed", call="passed", teardown="passed"),
        *phases("t.py::bad", setup="passed", call="failed", teardown="passed"),
        *phases("t.py::leaks", setup="passed", call="passed", teardown="failed"),
        *phases("t.py::skipped", setup="skipped", teardown="passed"),
    ]
    rows = rows_of_tests("t.py", told, Ended(1, 3.0, 600.0))
    assert [(row.name, row.result, row.seconds, row.why) for row in rows] == [
        ("good", "passed", 1.5, ""),
        ("bad", "failed", 1.5, "call failed"),
        ("leaks", "failed", 1.5, "teardown failed"),
        ("skipped", "skipped", 1.0, "setup skipped"),
    ]
    assert status_of(rows) == 1 and status_of(rows[:1] + rows[3:]) == 0


def test_a_test_that_was_killed_says_after_how_long() -> None:
    told = [
        *phases("t.py::one", setup="passed", call="passed", teardown="passed"),
        *phases("t.py::two", setup="passed"),
    ]
    one, two = rows_of_tests("t.py", told, HUNG)
    assert one.result == "passed"
    assert (two.name, two.result, two.why) == ("two", "failed", "still running after 600 s, killed")


def test_a_test_in_which_the_process_died_says_by_which_signal() -> None:
    (row,) = rows_of_tests("t.py", phases("t.py::one", setup="passed"), Ended(-11, 3.0, 600.0))
    assert (row.result, row.why) == ("failed", "the process ended here: died by signal 11")


def test_a_process_that_dies_after_its_tests_is_a_failure() -> None:
    told = phases("t.py::one", setup="passed", call="passed", teardown="passed")
    rows = rows_of_tests("t.py", told, Ended(-6, 3.0, 600.0))
    assert [row.result for row in rows] == ["passed", "failed"] and "after its tests: died by signal 6" in rows[1].why
    assert [row.result for row in rows_of_tests("t.py", told, HUNG)] == ["passed", "failed"]
    assert [row.result for row in rows_of_tests("t.py", told, Ended(1, 3.0, 600.0))] == ["passed", "failed"]


@pytest.mark.parametrize(
    ("ended", "why"),
    [(GOOD, "no test of it has run"), (Ended(5, 1.0, 9.0), "ended with status 5"), (HUNG, "still running after 600 s")],
    ids=["good", "status", "hung"],
)
def test_a_file_that_told_nothing_is_a_failure(ended: Ended, why: str) -> None:
    (row,) = rows_of_tests("t.py", [], ended)
    assert row.result == "failed" and why in row.why


@pytest.mark.parametrize(
    ("times", "result"), [(2.0, "faster"), (1.05, "as fast"), (0.95, "as fast"), (0.94, "slower"), (0.001, "slower")]
)
def test_slower_than_its_peer_is_a_fact_and_no_failure(times: float, result: str) -> None:
    rows = rows_of_benchmark("b.py", [beside("1 MiB", times)], GOOD)
    assert [(row.name, row.result, row.times, row.why) for row in rows] == [("1 MiB", result, times, "beside torch")]
    assert status_of(rows) == 0


def test_what_of_ours_could_not_be_measured_failed_and_what_has_no_peer_did_not() -> None:
    ours, peer = rows_of_benchmark(
        "b.py", [beside("a", None, trouble="RuntimeError: no"), beside("b", None, no_peer="no CUDA")], GOOD
    )
    assert (ours.result, ours.why) == ("failed", "not measured: RuntimeError: no")
    assert (peer.result, peer.why) == ("skipped", "no torch to compare with: no CUDA")


@pytest.mark.parametrize(
    ("found", "ended", "why"),
    [
        (None, GOOD, "it has written no results"),
        ([], GOOD, "it compares with nothing"),
        ([beside("a", 2.0)], Ended(3, 1.0, 9.0), "ended with status 3"),
        ([beside("a", 2.0)], HUNG, "still running after 600 s, killed"),
        (None, Ended(-9, 1.0, 9.0), "died by signal 9"),
    ],
    ids=["nothing", "no peer", "status", "hung", "killed"],
)
def test_a_benchmark_without_an_answer_is_a_failure(found: Any, ended: Ended, why: str) -> None:  # Any: JSON
    (row,) = rows_of_benchmark("b.py", found, ended)
    assert (row.result, row.why, status_of([row])) == ("failed", why, 1)


def test_the_reason_of_a_failure_is_the_error_and_not_the_assertion_around_it() -> None:
    said = "E   AssertionError: Traceback:\nE     File x\nE   RuntimeError: CUDA | went\nE   assert 1 == 0"
    told = phases("t.py::one", setup="passed", call="failed", teardown="passed")
    told[2]["why"] = said
    (row,) = rows_of_tests("t.py", told, Ended(1, 3.0, 600.0))
    assert row.why == "RuntimeError: CUDA | went"
    assert "CUDA / went" in shown([row]), "a bar would end the cell"


def test_what_needs_a_look_stands_first() -> None:
    rows = [
        Row("a", "1", "passed", 1.0),
        Row("b", "2", "faster", times=3.0),
        Row("c", "3", "slower", times=0.5),
        Row("d", "4", "skipped", why="needs 2 GPUs"),
        Row("e", "5", "failed", 2.0, why="RuntimeError"),
    ]
    lines = shown(rows).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:7]] == ["failed", "slower", "skipped", "faster", "passed"]
    assert {len(line) for line in lines[:7]} == {len(lines[0])}
    assert lines[-1] == "1 failed, 1 slower, 1 skipped, 1 faster, 1 passed"


@pytest.mark.parametrize(
    ("seen", "missing", "status", "said"),
    [
        (Seen("2.13.0"), [], 0, "there is no GPU here"),
        (Seen(""), ["numpy>=2.0"], 0, "there is no GPU here"),
        (Seen("2.13.0+cpu", driver_gpus=1), [], 1, "torch 2.13.0+cpu of /py cannot use them. Nothing was checked"),
        (
            Seen("2.11", driver_gpus=1, problem="RuntimeError: no kernel"),
            [],
            1,
            "cannot use them (RuntimeError: no kern",
        ),
        (Seen("", driver_gpus=2), [], 1, "/py has no torch. Nothing was checked"),
        (Seen("2.11", ("H100",), 1), ["numpy>=2.0", "psutil>=5.9"], 1, "/py -m pip install 'numpy>=2.0' 'psutil"),
    ],
    ids=["no GPU", "nothing", "torch for CPUs", "broken", "no torch", "no libraries"],
)
def test_what_cannot_begin_says_why(seen: Seen, missing: Sequence[str], status: int, said: str) -> None:
    found = refusal(seen, "/py", missing)
    assert found is not None and found[0] == status and said in found[1]


def test_with_a_gpu_and_all_libraries_it_begins() -> None:
    assert refusal(Seen("2.11", ("H100",), 1), "/py", []) is None


# -- parts that are processes ------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def program(folder: Path, text: str, name: str = "b.py", limit_s: float = 60.0) -> Part:
    (folder / name).write_text(textwrap.dedent(text))
    return Part("benchmark", name, (sys.executable, str(folder / name)), limit_s)


def test_a_benchmark_is_read_by_the_result_file_that_it_names(tmp_path: Path, results: Path) -> None:
    file = tmp_path / "b-1.json"
    file.write_text(json.dumps({"beside": [beside("a", 2.0), beside("b", 0.5)]}))
    part = program(tmp_path, f"import sys; print('written: {file}', file=sys.stderr)")
    assert [(row.name, row.result) for row in run(part, results)] == [("a", "faster"), ("b", "slower")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died by signal 11"),
        ("raise SystemExit(4)", "ended with status 4"),
        ("print('first_kernel: no GPU was found here')", "it has written no results"),
    ],
    ids=["dies", "fails", "says nothing"],
)
def test_a_benchmark_that_comes_to_no_result_has_its_row(tmp_path: Path, results: Path, text: str, why: str) -> None:
    (row,) = run(program(tmp_path, text), results)
    assert (row.result, row.why) == ("failed", why)


HANGS = """
    import os, subprocess, sys
    read, write = os.pipe()
    child = subprocess.Popen(["cat"], stdin=read, pass_fds=[write])  # waits for what nobody writes
    print("child", child.pid, flush=True)
    child.wait()
"""


def test_a_benchmark_that_hangs_is_killed_with_what_it_started(tmp_path: Path, results: Path) -> None:
    """The plug-in for leak checks fails the test if the child is still alive."""
    (row,) = run(program(tmp_path, HANGS, limit_s=2.0), results)
    assert (row.result, row.why) == ("failed", "still running after 2 s, killed")
    assert "child " in (results / "b.log").read_text()


TESTS = """
    import os, signal, pytest

    @pytest.mark.gpu
    def test_needs_more():
        pytest.skip("needs 99 GPUs")

    @pytest.mark.gpu
    def test_holds(): ...

    @pytest.mark.gpu
    def test_fails():
        assert 1 == 2

    def test_is_for_every_machine():
        raise RuntimeError

    @pytest.mark.gpu(2)
    def test_dies():
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.gpu
    def test_after(): ...
"""


def file_of_tests(folder: Path, text: str) -> Part:
    (folder / "test_stand_in.py").write_text(textwrap.dedent(text))
    (part,) = parts_of(folder, {})
    return part


def test_a_file_of_tests_that_dies_has_told_how_far_it_came(tmp_path: Path, results: Path) -> None:
    assert [(row.name, row.result, row.why) for row in run(file_of_tests(tmp_path, TESTS), results)] == [
        ("test_needs_more", "skipped", "needs 99 GPUs"),
        ("test_holds", "passed", ""),
        ("test_fails", "failed", "assert 1 == 2"),
        ("test_dies", "failed", "the process ended here: died by signal 9"),
    ]


def test_a_file_of_tests_that_cannot_be_imported_has_its_row(tmp_path: Path, results: Path) -> None:
    (row,) = run(file_of_tests(tmp_path, "import no_such_module\npytestmark = pytest.mark.gpu"), results)
    assert (row.result, row.why) == ("failed", "ModuleNotFoundError: No module named 'no_such_module'")


def test_what_there_is_no_time_for_is_in_the_table(tmp_path: Path, results: Path) -> None:
    parts = [program(tmp_path, "raise SystemExit(4)", name) for name in ("a.py", "b.py")]
    assert [(row.part, row.result) for row in run_all(parts, results, 0.0)] == [
        ("a.py", "skipped"),
        ("b.py", "skipped"),
    ]
    assert [row.result for row in run_all(parts, results, 60.0)] == ["failed", "failed"]


def test_what_failed_parts_have_printed_stands_below_the_table(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [program(tmp_path, f"print('said by {name}'); raise SystemExit(1)", name) for name in ("a.py", "b.py")]
    rows = [*run(parts[0], results), Row("b.py", "x", "passed")]
    run(parts[1], results)
    tell(parts, rows, results, Seen("2.11", ("H100",), 1))
    said = capsys.readouterr().out
    assert said.index("1 failed, 1 passed") < said.index("GPU: H100; torch 2.11") < said.index("said by a.py")
    assert "said by b.py" not in said
    assert (results / "table.md").read_text().startswith("| result")
    assert json.loads((results / "rows.json").read_text())[0]["result"] == "failed"


def test_without_a_gpu_it_says_so_and_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, gpu_check.__file__],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "gpu-check: there is no GPU here that may be used, so nothing was checked.\n"


# -- all that exists ---------------------------------------------------------------------------------------------------


def test_every_benchmark_with_a_gpu_is_in_it(repository: Path) -> None:
    speak = {path.name for path in (repository / "benchmarks").glob("*.py") if "cuda" in path.read_text()}
    assert speak == set(BENCHMARKS)


def test_every_test_with_a_gpu_is_in_it(repository: Path) -> None:
    """A mark that is not found by its text would leave a file out in silence."""
    names = {part.name for part in parts_of(repository / "tests", {})}
    said = {
        str(path.relative_to(repository))
        for path in (repository / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text() and path != Path(__file__)
    }
    assert names == said and len(names) >= 4
