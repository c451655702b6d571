"""Memory that a run frees is reused by its next step, and returned to the system after the run."""

import json
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

PROGRAM = """
import json, os, resource
import torch
import fanwise

def faults_of_blocks():
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(10_000_000)  # 40 MB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 10**6

def train(run):
    faults_of_blocks()  # the first one comes from the system
    return faults_of_blocks(), resident_mb()

(inside, resident), before = fanwise.run(train, devices="cpu"), resident_mb()
print(json.dumps({"inside": inside, "outside": faults_of_blocks(), "given back, MB": resident - before}))
"""


def run_program(loaded: LoadedInterpreter, folder: Path, **environment: str) -> Any:  # Any: JSON
    (folder / "program.py").write_text(PROGRAM)
    done = loaded.run(folder / "program.py", folder=folder, environment=environment)
    assert done.status == 0, done.said
    return json.loads(done.out)


def test_freed_blocks_are_reused_in_a_run_and_then_returned(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    result = run_program(torch_loaded, tmp_path)
    assert result["inside"] < 50
    assert result["outside"] >= 100  # with pages of 2 MiB; 80,000 with small pages
    assert result["given back, MB"] >= 35


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_are_kept(name: str, torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    value = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432"}.get(name, "33554432")
    assert run_program(torch_loaded, tmp_path, **{name: value})["inside"] >= 100
