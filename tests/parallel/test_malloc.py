"""Blocks that a run frees are there for its next step, and go back to the system when it has ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from fanwise.testing.programs import LoadedInterpreter

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


def said(loaded: LoadedInterpreter, folder: Path, **environment: str) -> Any:  # Any: JSON
    (folder / "program.py").write_text(PROGRAM)
    done = loaded.run(folder / "program.py", folder=folder, environment=environment)
    assert done.status == 0, done.said
    return json.loads(done.out)


def test_blocks_are_used_again_in_a_run_and_go_back_after_it(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    found = said(torch_loaded, tmp_path)
    assert found["inside"] < 50
    assert found["outside"] >= 100  # with pages of 2 MiB; with small ones it is 80,000
    assert found["given back, MB"] >= 35


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_blocks_holds(name: str, torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    value = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432"}.get(name, "33554432")
    assert said(torch_loaded, tmp_path, **{name: value})["inside"] >= 100
