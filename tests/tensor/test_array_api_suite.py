"""The array API's own test suite, if ARRAY_API_TESTS names a checkout of github.com/data-apis/array-api-tests.

Needs the packages of its requirements.txt, and takes up to an hour for each engine.
"""

import os
import re
import subprocess
import sys

import pytest

CHECKOUT = os.environ.get("ARRAY_API_TESTS")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="ARRAY_API_TESTS names no checkout of the suite")
MAX_EXAMPLES = os.environ.get("ARRAY_API_TESTS_MAX_EXAMPLES", "20")
UPSTREAM = {
    "numpy": "import array_api_compat.numpy as xp",
    "torch": "import array_api_compat.torch as xp",
    "jax": "import jax.numpy as xp",
}


def failures(script: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["--max-examples", MAX_EXAMPLES, "--disable-deadline", "array_api_tests"]
    environment = os.environ | {"ARRAY_API_TESTS_MODULE": f"exec('{script}')"}
    result = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stdout[-2000:] + result.stderr[-2000:]
    return set(re.findall(r"^FAILED (\S+)", result.stdout, re.MULTILINE))


@pytest.mark.parametrize("engine", UPSTREAM)
def test_a_namespace_fails_no_more_tests_than_the_library_below_it(engine: str) -> None:
    upstream = failures(UPSTREAM[engine])
    ours = failures(f'import fanwise.tensor as ft; xp = ft.namespace("{engine}")')
    print(f"{engine}: {len(ours)} failures, upstream {len(upstream)}")
    assert len(ours) <= len(upstream), sorted(ours - upstream)
