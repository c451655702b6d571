"""The lists of test files in the Makefile are complete, and `make test` starts no processes of a pool."""

import re
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("variable", ["SYSTEM_PATTERNS", "PROCESS_PATTERNS"])
def test_every_pattern_in_the_makefile_matches_a_file(variable: str, repository: Path) -> None:
    command = ["make", "--print-data-base", "--question", "help"]
    database = subprocess.run(command, cwd=repository, capture_output=True, text=True).stdout
    (patterns,) = re.findall(rf"^{variable} :?= (.*)$", database, re.MULTILINE)
    assert [pattern for pattern in patterns.split() if not list(repository.glob(pattern))] == []


def test_tests_that_use_a_pool_are_in_the_folders_for_processes_and_clusters(repository: Path) -> None:
    files = list((repository / "tests" / "pool").glob("*.py"))
    assert files
    assert [file.name for file in files if re.search(r"\bPool\(|: Pool\b", file.read_text())] == []
