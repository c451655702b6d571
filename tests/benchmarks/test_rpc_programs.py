"""benchmarks/rpc_programs.py: both libraries get the same program; where its time went is read as it was written."""

from pathlib import Path

import pytest
import rpc_programs
from rpc_programs import LIBRARIES, PROGRAMS, Found, Moment, Program, Run


def test_every_program_is_there_for_both_libraries_and_differs_in_its_imports_alone() -> None:
    for program in PROGRAMS:
        for quick in (False, True):
            ours, theirs = (
                rpc_programs.text_of(program, library, Path("/folder"), quick=quick).splitlines()
                for library in LIBRARIES
            )
            differing = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
            assert 1 <= len(differing) <= 3, program.name
            for one, other in differing:
                assert "fanwise.rpc" in one and "torch.distributed" in other and "fanwise" not in other
            assert not any("file:///" in line and "/folder" not in line for line in ours)


def test_a_constant_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import fanwise.rpc as rpc\nSTEPS = 3\n")
    assert "STEPS = 5" in rpc_programs.text_of(Program("p", path, {"STEPS": 5}, {}), "fanwise", tmp_path, quick=False)
    with pytest.raises(LookupError, match="0 lines that begin with 'STEP' ="):
        rpc_programs.text_of(Program("p", path, {"STEP": 5}, {}), "fanwise", tmp_path, quick=False)


def test_sections_are_the_times_between_what_was_written_down() -> None:
    moments = [Moment(name, s) for name, s in (("joining", 2.0), ("joined", 2.5), ("leaving", 7.0), ("left", 7.25))]
    parts = rpc_programs.parts_of(moments, 1.0, 8.0)
    assert parts == {"start": 1.0, "join": 0.5, "work": 4.5, "leave": 1.0}


def test_tables_have_the_ratio_of_the_medians() -> None:
    found = Found(PROGRAMS[0])
    for library, walls in (("fanwise", (1.0, 2.0, 9.0)), ("torch", (4.0, 3.0, 5.0))):
        found.runs[library] = [
            Run(wall, 1.0, dict.fromkeys(("start", "join", "work", "leave"), 0.25)) for wall in walls
        ]
    assert "| 2.0 (1.0-9.0) | 4.0 (3.0-5.0) | 0.50 " in rpc_programs.whole([found])
    assert rpc_programs.parts([found]).count("0.25 / 0.25") == 4
    assert PROGRAMS[0].name not in rpc_programs.moments([found])


def test_a_program_runs_with_our_library_and_says_where_its_time_went() -> None:
    program = next(one for one in PROGRAMS if one.name == "first calls")
    run = rpc_programs.run(program, "fanwise", threads=1, quick=True)
    assert set(run.parts_s) >= {"start", "join", "first rpc_sync", "first 1 MiB", "leave"}
    assert sum(run.parts_s.values()) == pytest.approx(run.wall_s)
    assert run.cpu_s > 0
